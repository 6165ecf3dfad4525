"""Which questions are asked of a knowledge base to see whether it still answers as it did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError

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

        YAML holds a list of canaries, or a mapping with ``name`` and ``canaries``; JSON Lines one
        canary per line. A canary is a query, or a mapping with the fields of :class:`Canary`.

        Raises
        ------
        CanaryError
            If the file cannot be read, or what it says is no suite.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{path} cannot be read ({type(error).__name__}); expected a YAML or JSONL file."
            raise CanaryError(msg) from error
        if path.suffix.lower() in (".yaml", ".yml"):
            return cls._from_yaml(path, text)
        if path.suffix.lower() != ".jsonl":
            raise CanaryError(_wrong_ending(path))
        canaries = []
        for number, line in enumerate(text.split("\n"), start=1):  # a query may hold U+2028
            if not line.strip():
                continue
            try:
                canaries.append(json.loads(line))
            except (ValueError, RecursionError) as error:  # a number may be too long as well
                deep = isinstance(error, RecursionError)
                said = "nested too deeply" if deep else getattr(error, "msg", "no JSON")
                msg = f"{path}, line {number}: {said}; expected one JSON value per line."
                raise CanaryError(msg) from error
        return cls(canaries, name=path.stem)

    @classmethod
    def _from_yaml(cls, path: Path, text: str) -> Self:
        try:
            import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - only for this format
        except ImportError as error:
            msg = f"{path} needs PyYAML, which is not installed; pip install pyyaml, or use JSONL."
            raise CanaryError(msg) from error
        try:
            content = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # 2024-13-45 is no date
            msg = f"{path} is not YAML ({type(error).__name__}); expected a list of canaries."
            raise CanaryError(msg) from error
        name = path.stem
        if isinstance(content, dict) and set(content) <= {"name", "canaries"}:
            name, content = content.get("name") or name, content.get("canaries")
        if not isinstance(name, str | int | float):
            msg = f"{path} has a name of type {type(name).__name__}, expected a str."
            raise CanaryError(msg)
        if not isinstance(content, list):
            msg = f"{path} holds no list of canaries, expected queries under 'canaries:'."
            raise CanaryError(msg)
        return cls(content, name=str(name))

    def save(self, path: str | Path) -> None:
        """Write the suite as YAML or as JSON Lines, by the ending of the file's name.

        JSON Lines keep no name: read again, the suite is named after the file.

        Raises
        ------
        CanaryError
            If the name ends otherwise.
        """
        path = Path(path)
        rows = [canary.model_dump(mode="json", exclude_defaults=True) for canary in self]
        if path.suffix.lower() in (".yaml", ".yml"):
            import yaml  # noqa: PLC0415 - only for this format

            content = {"name": self.name, "canaries": rows}
            text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        elif path.suffix.lower() == ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            raise CanaryError(_wrong_ending(path))
        path.write_text(text, encoding="utf-8")

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


def _wrong_ending(path: Path) -> str:
    return f"{path} ends in {path.suffix!r}, expected .yaml, .yml or .jsonl."


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
