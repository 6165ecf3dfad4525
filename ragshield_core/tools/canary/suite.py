"""Suites of canary queries: questions whose answers from a knowledge base are watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragshield_core.model.errors import CanaryError
from ragshield_core.tools.audit.readers.records import objects
from ragshield_core.tools.audit.readers.source import reading

# Characters of a name in the database's columns.
MAX_NAME = 200


class Canary(BaseModel):
    """A question with a known answer, and expectations of its results.

    Parameters
    ----------
    name
        Unique within a suite; the default is the query.
    query
        Asked word for word at every check.
    expected_entries
        Ids that must stay among the top k.
    expected_answer
        Must stay in the answer if it was in the baseline's; case and white space make no
        difference.
    forbidden
        Strings that must not be in the answer or in a new passage among the top k.
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
        Name of the baselines and checks in the database; up to 200 characters.

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
        """Names of the canaries, in order."""
        return tuple(canary.name for canary in self.canaries)

    @property
    def queries(self) -> list[str]:
        """Queries of the canaries, in order."""
        return [canary.query for canary in self.canaries]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a suite from YAML or JSON Lines, by the file's ending.

        YAML holds a list of canaries, or a mapping with ``name`` and ``canaries``; a canary is a
        query, or a mapping with the fields of :class:`Canary`. JSON Lines hold one such mapping per
        line.

        Raises
        ------
        SourceError
            If the file cannot be read; a :class:`CanaryError` if it holds no suite.
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
    def suggest(cls, log: Iterable[str], n: int = 20, *, name: str = "suggested") -> Self:
        """Return canaries of the n most frequent logged queries.

        Case and white space make no difference.

        Raises
        ------
        CanaryError
            If there is nothing to suggest.

        Examples
        --------
        >>> CanarySuite.suggest(["opening hours?", "price", "Opening  hours?"], n=1).queries
        ['opening hours?']
        """
        if isinstance(log, str):
            msg = "log is one str, expected a list of queries: put it into a list."
            raise CanaryError(msg)
        queries = [" ".join(query.split()) for query in log if query.strip()]
        counts = Counter(query.lower() for query in queries)
        first = {query.lower(): query for query in reversed(queries)}
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
