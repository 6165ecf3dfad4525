"""Baselines and checks, kept in the database of the quarantine."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Engine, Index, LargeBinary, String, Text, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ragshield_core.database.connecting import WRITES
from ragshield_core.database.retrying import TRIES
from ragshield_core.model.errors import CanaryError
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.rank_figures import Rule

# Of the JSON within a row.
FORMAT = 1


class _Base(DeclarativeBase):
    pass


class _Baseline(_Base):
    __tablename__ = "ragshield_canary_baseline"
    __table_args__ = (
        Index("ragshield_canary_version", "namespace", "suite", "version", unique=True),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(200))
    version: Mapped[int]
    created_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    content: Mapped[str] = mapped_column(Text)
    vectors: Mapped[bytes] = mapped_column(LargeBinary)  # npz: probes, queries, answers


class _Check(_Base):
    __tablename__ = "ragshield_canary_check"
    __table_args__ = (Index("ragshield_canary_checks", "namespace", "suite", "number"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(200))
    report: Mapped[str] = mapped_column(Text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """What one canary gave when it was asked.

    Attributes
    ----------
    ids, revisions
        Retrieved, best first; hashes of their texts.
    suspicions
        Of each retrieved text, in [0, 1].
    coverages
        How much of the query each retrieved text holds in one place, in [0, 1].
    answer, answer_vector
        ``None`` without an answerer, or an embedder.
    poison_ratio
        ``None`` without ground truth.
    below
        Ids and hashes of what stood just below: it is not new when it moves up.
    """

    ids: tuple[str, ...]
    revisions: tuple[str, ...]
    suspicions: tuple[float, ...]
    answer: str | None
    answer_vector: Vectors | None
    poison_ratio: float | None
    coverages: tuple[float, ...]
    below: tuple[tuple[str, str], ...] = ()

    @property
    def suspicion_ratio(self) -> float:
        """Mean suspicion of the retrieved texts; 0 for none."""
        return float(np.mean(self.suspicions)) if self.suspicions else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Baseline:
    """What a suite gave when all was well.

    Attributes
    ----------
    suite, version, k, rule
        Name of the suite, number of the baseline, places, and the rule of its suspicions.
    size
        Entries of the knowledge base, if the retriever told.
    probes, queries
        Vectors of fixed texts, by which a changed embedder is known, and of the canaries; ``None``
        without an embedder.
    observations
        By the canary's name.
    asked
        Query by the canary's name.
    """

    suite: str
    version: int
    k: int
    rule: Rule
    size: int | None
    probes: Vectors | None
    queries: Vectors | None
    asked: Mapping[str, str]
    observations: Mapping[str, Observation]


class CanaryStore:
    """Baselines and checks of a namespace, in the database of a quarantine."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._prepared: Engine | None = None

    def save_baseline(self, baseline: Baseline) -> int:
        """Keep a baseline as the next version of its suite; return the version."""
        for tries_left in reversed(range(TRIES)):
            try:
                return self._next_version(baseline)
            except IntegrityError:  # another process took the number
                if not tries_left:
                    raise
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def _next_version(self, baseline: Baseline) -> int:
        with self._session(writes=True) as session:
            last = session.scalar(
                select(func.max(_Baseline.version)).where(
                    _Baseline.namespace == self._namespace, _Baseline.suite == baseline.suite
                )
            )
            version = int(last or 0) + 1
            content, vectors = _packed(baseline)
            session.add(
                _Baseline(
                    namespace=self._namespace,
                    suite=baseline.suite,
                    version=version,
                    created_at=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
                    content=json.dumps(content),
                    vectors=vectors,
                )
            )
        return version

    def baseline(self, suite: str, version: int | None = None) -> Baseline:
        """Return a baseline; the latest by default.

        Raises
        ------
        CanaryError
            If there is none, or it is of another format.
        """
        query = select(_Baseline).where(
            _Baseline.namespace == self._namespace, _Baseline.suite == suite
        )
        if version is not None:
            query = query.where(_Baseline.version == version)
        with self._session() as session:
            row = session.scalars(query.order_by(_Baseline.version.desc()).limit(1)).first()
            if row is None:
                which = "no baseline" if version is None else f"no baseline {version}"
                msg = (
                    f"suite {suite!r} has {which} in {self._quarantine!r}; record one while the "
                    "knowledge base is believed to be clean: record_baseline(), or `ragshield "
                    "canary baseline`."
                )
                raise CanaryError(msg)
            return _unpacked(row)

    def suites(self) -> list[str]:
        """Return the names of all suites that have a baseline."""
        query = select(_Baseline.suite).where(_Baseline.namespace == self._namespace).distinct()
        with self._session() as session:
            return sorted(session.scalars(query))

    def versions(self, suite: str) -> list[tuple[int, dt.datetime]]:
        """Return number and time of each baseline of a suite, in order."""
        query = (
            select(_Baseline.version, _Baseline.created_at)
            .where(_Baseline.namespace == self._namespace, _Baseline.suite == suite)
            .order_by(_Baseline.version)
        )
        with self._session() as session:
            return [
                (number, dt.datetime.fromisoformat(at)) for number, at in session.execute(query)
            ]

    def save_check(self, report: DriftReport) -> None:
        """Keep a check."""
        with self._session(writes=True) as session:
            session.add(
                _Check(
                    namespace=self._namespace,
                    suite=report.suite,
                    report=report.to_json(),
                )
            )

    def checks(self, suite: str, limit: int = 100) -> list[DriftReport]:
        """Return the latest checks of a suite, oldest first."""
        query = (
            select(_Check.report)
            .where(_Check.namespace == self._namespace, _Check.suite == suite)
            .order_by(_Check.number.desc())
            .limit(limit)
        )
        with self._session() as session:
            found = session.scalars(query).all()
        return [DriftReport.from_dict(json.loads(text)) for text in reversed(found)]

    @property
    def busy(self) -> bool:
        """Whether this thread is within a transaction of the quarantine, where none can begin."""
        return self._quarantine.database.busy

    @property
    def _namespace(self) -> str:
        return self._quarantine.namespace

    @contextmanager
    def _session(self, *, writes: bool = False) -> Iterator[Session]:
        """One transaction."""
        with self._quarantine.database.engine() as engine:
            if self._prepared is not engine:
                # The lock comes first, or two processes make the tables at once and one fails.
                with Session(engine) as session, session.begin():
                    connection = session.connection(execution_options={WRITES: True})
                    _Base.metadata.create_all(connection)
                self._prepared = engine
            with Session(engine) as session, session.begin():
                session.connection(execution_options={WRITES: writes})
                yield session


def _packed(baseline: Baseline) -> tuple[dict[str, Any], bytes]:
    """Return a baseline as JSON-ready values, and its vectors as the bytes of an npz file."""
    vectors: dict[str, Any] = {"probes": baseline.probes, "queries": baseline.queries}
    canaries: list[dict[str, Any]] = []
    for name, observation in baseline.observations.items():
        values = asdict(observation)
        vectors[f"answer {len(canaries)}"] = values.pop("answer_vector")
        canaries.append({"name": name, "query": baseline.asked[name]} | values)
    file = io.BytesIO()
    np.savez(file, **{name: v for name, v in vectors.items() if v is not None})
    content = {"format": FORMAT, "k": baseline.k, "rule": baseline.rule, "size": baseline.size}
    return content | {"canaries": canaries}, file.getvalue()


def _unpacked(row: _Baseline) -> Baseline:
    content = json.loads(row.content)
    if content["format"] != FORMAT:
        msg = (
            f"baseline {row.version} of suite {row.suite!r} is of format {content['format']}, this "
            f"version of RAGShield reads only format {FORMAT}; set the baseline anew."
        )
        raise CanaryError(msg)
    with np.load(io.BytesIO(row.vectors), allow_pickle=False) as file:
        vectors = dict(file)
    observations, asked = {}, {}
    for number, item in enumerate(content["canaries"]):
        name = item.pop("name")
        asked[name] = item.pop("query")
        lists = ("ids", "revisions", "suspicions", "coverages")
        item |= {each: tuple(item[each]) for each in lists}
        item["below"] = tuple(map(tuple, item["below"]))
        observations[name] = Observation(**item, answer_vector=vectors.get(f"answer {number}"))
    return Baseline(
        suite=row.suite,
        version=row.version,
        **{name: content[name] for name in ("k", "rule", "size")},
        probes=vectors.get("probes"),
        queries=vectors.get("queries"),
        asked=asked,
        observations=observations,
    )
