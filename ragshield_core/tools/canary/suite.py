"""Which questions are asked of a knowledge base to see whether it still answers as it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.tools.audit.readers.json_lines import objects
from ragshield_core.tools.audit.readers.source import reading

# Entries that suggestions have to cover, and of which they choose: more say little about what the
# subjects are.
SAMPLE, CANDIDATES = 20_000, 500
# Characters of a text that a suggestion is cut to, at the end of a sentence if there is one; ends
# before the least are those of abbreviations, as a rule.
SUGGESTED, LEAST = 160, 20
# Of the columns in the database.
MAX_NAME = 200


class Canary(BaseModel):
    """A question whose answer is known, and what may be expected of it.

    Parameters
    ----------
    name
        Unique within a suite; the default is the query.
    query
        Asked word for word at every check.
    expected_entries
        Ids that must stay among the top k.
    expected_answer
        Must stay in the answer, without regard to case and white space, if it was in the
        baseline's.
    forbidden
        Strings that must stand neither in the answer nor in a passage that is new among the top k.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str = Field(min_length=1)
    name: str = Field(default="", validate_default=False)
    expected_entries: tuple[str, ...] = ()
    expected_answer: str | None = None
    forbidden: tuple[str, ...] = ()

    def model_post_init(self, _context: object, /) -> None:
        """Name the canary after its query if it has no name."""
        if not self.name:
            object.__setattr__(self, "name", self.query)


class CanarySuite:
    """Named canary queries.

    Parameters
    ----------
    canaries
        Queries, dicts with the fields of :class:`Canary`, or canaries.
    name
        Under which baselines and checks are kept; up to 200 characters.

    Raises
    ------
    CanaryError
        If there is none, a field is unknown or of the wrong type, or names repeat.

    Examples
    --------
    >>> suite = CanarySuite(["What is the refund policy?",
    ...                      {"name": "ceo", "query": "Who leads the firm?",
    ...                       "expected_answer": "Ada Smith", "forbidden": ["crypto"]}])
    >>> suite.names
    ('What is the refund policy?', 'ceo')
    """

    def __init__(
        self, canaries: Iterable[str | dict[str, Any] | Canary], *, name: str = "default"
    ) -> None:
        if isinstance(canaries, str):
            msg = f"suite {name!r} is one str, expected a list of queries: put it into a list."
            raise CanaryError(msg)
        if not 0 < len(name) <= MAX_NAME:
            msg = f"a suite's name has {len(name)} characters, expected 1 to {MAX_NAME}."
            raise CanaryError(msg)
        self.name = name
        self.canaries = tuple(_canary(item, row) for row, item in enumerate(canaries))
        if not self.canaries:
            msg = f"suite {name!r} has no canaries, expected at least one query."
            raise CanaryError(msg)
        counts = Counter(self.names)
        if repeated := next((n for n, count in counts.items() if count > 1), None):
            msg = f"canary {repeated!r} is duplicated in suite {name!r}; names must differ."
            raise CanaryError(msg)

    def __len__(self) -> int:
        return len(self.canaries)

    def __iter__(self) -> Iterator[Canary]:
        return iter(self.canaries)

    def __repr__(self) -> str:
        return f"CanarySuite({len(self)} canaries, name={self.name!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the canaries, in order."""
        return tuple(canary.name for canary in self.canaries)

    @property
    def queries(self) -> list[str]:
        """Of the canaries, in order."""
        return [canary.query for canary in self.canaries]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a suite from YAML or from JSON Lines, by the ending of the file's name.

        YAML holds a list of canaries, or a mapping with ``name`` and ``canaries``; a canary is a
        query, or a mapping with the fields of :class:`Canary`. JSON Lines hold one such mapping per
        line.

        Raises
        ------
        SourceError
            If the file cannot be read; a :class:`CanaryError` if what it says is no suite.
        """
        path = Path(path)
        if path.suffix.lower() == ".jsonl":
            return cls([dict(row) for _, row in objects(path)], name=path.stem)
        if path.suffix.lower() not in (".yaml", ".yml"):
            msg = f"{path} ends in {path.suffix!r}, expected .yaml, .yml or .jsonl."
            raise CanaryError(msg)
        try:
            import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - only for this format
        except ImportError as error:
            msg = f"{path} needs PyYAML, which is not installed; pip install pyyaml, or use JSONL."
            raise CanaryError(msg) from error
        try:
            with reading(path):
                content = yaml.safe_load(path.read_bytes())
        except (yaml.YAMLError, RecursionError) as error:
            msg = f"{path} is not YAML ({type(error).__name__}); expected a list of canaries."
            raise CanaryError(msg) from error
        name = path.stem
        if isinstance(content, dict) and set(content) <= {"name", "canaries"}:
            name, content = content.get("name") or name, content.get("canaries")
        if not isinstance(content, list) or not isinstance(name, str | int | float):
            msg = f"{path} holds no list of canaries under 'canaries:', or no name of a few words."
            raise CanaryError(msg)
        return cls(content, name=str(name))

    @classmethod
    def suggest(
        cls, source: Batch | Iterable[str], n: int = 20, *, name: str = "suggested", seed: int = 0
    ) -> Self:
        """Return canaries for a knowledge base or from a log of queries.

        Parameters
        ----------
        source
            A knowledge base with vectors: of n entries that all others together resemble most, the
            text, shortened, becomes a canary that expects this entry. Or logged queries,
            repetitions and all: the most frequent ones are taken, without regard to case and white
            space.
        n
            How many at most.
        seed
            Of the entries that are looked at, if there are many.

        Notes
        -----
        Suggestions cover a knowledge base, but nobody has asked them: look them through, and word
        them as your users do.

        Raises
        ------
        CanaryError
            If there is nothing to suggest.
        ValueError
            If n is less than 1.

        Examples
        --------
        >>> CanarySuite.suggest(["opening hours?", "price", "Opening  hours?"], n=1).queries
        ['opening hours?']
        """
        if n < 1:
            msg = f"n is {n}, expected at least 1."
            raise ValueError(msg)
        if isinstance(source, str):
            msg = "source is one str, expected a list of queries: put it into a list."
            raise CanaryError(msg)
        if isinstance(source, Batch):
            return cls(_covering(source, n, seed), name=name)
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for query in source:
            key = " ".join(query.lower().split())
            if key:
                counts[key] += 1
                first.setdefault(key, " ".join(query.split()))
        return cls([first[key] for key, _ in counts.most_common(n)], name=name)


def _canary(item: str | dict[str, Any] | Canary, row: int) -> Canary:
    if isinstance(item, Canary):
        return item
    try:
        return Canary.model_validate({"query": item} if isinstance(item, str) else item)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the canary"
        msg = (
            f"canary {row + 1}: {where}: {first['msg']}; expected a query, or a mapping with "
            f"{', '.join(Canary.model_fields)}."
        )
        raise CanaryError(msg) from error


def _covering(batch: Batch, n: int, seed: int) -> list[Canary]:
    """Return canaries for n entries that all others resemble most, chosen one after the other."""
    rows = np.array([row for row, text in enumerate(batch.texts) if text.strip()], dtype=np.intp)
    if not batch.dim or not rows.size:
        msg = "the knowledge base has no entry with text and vector; pass logged queries instead."
        raise CanaryError(msg)
    rng = np.random.default_rng(seed)
    if rows.size > SAMPLE:
        rows = np.sort(rng.choice(rows, SAMPLE, replace=False))
    vectors = batch.embeddings[rows]
    candidates = rng.permutation(rows.size)[:CANDIDATES]
    similarities = vectors[candidates] @ vectors.T
    chosen: dict[int, None] = {}
    nearest = np.full(rows.size, -1.0, dtype=np.float32)
    for _ in range(n):
        taken = int(np.argmax(np.maximum(similarities, nearest).sum(axis=1, dtype=np.float64)))
        nearest = np.maximum(nearest, similarities[taken])
        chosen[int(rows[candidates[taken]])] = None
    by_query = {_shortened(batch.texts[row]): row for row in chosen}
    return [Canary(query=q, expected_entries=(batch.ids[r],)) for q, r in by_query.items()]


def _shortened(text: str) -> str:
    text = " ".join(text[: 4 * SUGGESTED].split())
    if len(text) <= SUGGESTED:
        return text
    cut = text[:SUGGESTED]
    end = max(cut.rfind(mark) for mark in (". ", "? ", "! ", "。", "？", "！"))
    if end >= LEAST:
        return cut[: end + 1]
    return cut[: cut.rfind(" ")] if " " in cut else cut
