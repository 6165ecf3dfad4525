"""Baselines and checks, kept in the database of the quarantine."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import BaselineRow, CheckRow, table_of
from ragshield_core.model.errors import CanaryError
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.digests import check_key
from ragshield_core.quarantine.evidence import changed, last_line
from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.figures import Rule
from ragshield_core.tools.canary.knowledge_base import Vectors

Row = TypeVar("Row", BaselineRow, CheckRow)

# Of the JSON within a row.
FORMAT = 1


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

    def save_baseline(self, baseline: Baseline) -> int:
        """Keep a baseline as the next version of its suite; return the version."""
        content, vectors = _packed(baseline)
        values = {
            "suite": baseline.suite,
            "created_at": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
            "content": json.dumps(content),
            "vectors": vectors,
        }
        latest = select(func.max(BaselineRow.version)).where(
            BaselineRow.namespace == self._namespace, BaselineRow.suite == baseline.suite
        )

        def work(session: Session) -> int:
            version = int(session.scalar(latest) or 0) + 1
            self._add(session, BaselineRow, values | {"version": version})
            return version

        return self._quarantine.database.write(work)

    def baseline(self, suite: str, version: int | None = None) -> Baseline:
        """Return a baseline; the latest by default.

        Raises
        ------
        CanaryError
            If there is none, or it is of another format.
        """
        query = select(BaselineRow).where(
            BaselineRow.namespace == self._namespace, BaselineRow.suite == suite
        )
        if version is not None:
            query = query.where(BaselineRow.version == version)
        with self._quarantine.database.read() as session:
            row = session.scalars(query.order_by(BaselineRow.version.desc()).limit(1)).first()
            if row is None:
                which = "no baseline" if version is None else f"no baseline {version}"
                msg = (
                    f"suite {suite!r} has {which} in {self._quarantine!r}; record one while the "
                    "knowledge base is believed to be clean: record_baseline(), or `ragshield "
                    "canary baseline`."
                )
                raise CanaryError(msg)
            return _unpacked(self._checked(row))

    def suites(self) -> list[str]:
        """Return the names of all suites that have a baseline."""
        query = select(BaselineRow.suite).where(BaselineRow.namespace == self._namespace).distinct()
        with self._quarantine.database.read() as session:
            return sorted(session.scalars(query))

    def versions(self, suite: str) -> list[tuple[int, dt.datetime]]:
        """Return number and time of each baseline of a suite, in order."""
        query = (
            select(BaselineRow.version, BaselineRow.created_at)
            .where(BaselineRow.namespace == self._namespace, BaselineRow.suite == suite)
            .order_by(BaselineRow.version)
        )
        with self._quarantine.database.read() as session:
            return [
                (number, dt.datetime.fromisoformat(at)) for number, at in session.execute(query)
            ]

    def save_check(self, report: DriftReport) -> None:
        """Keep a check."""
        values = {"suite": report.suite, "report": report.to_json()}
        self._quarantine.database.write(lambda session: self._add(session, CheckRow, values))

    def checks(self, suite: str, limit: int = 100) -> list[DriftReport]:
        """Return the latest checks of a suite, oldest first."""
        query = (
            select(CheckRow)
            .where(CheckRow.namespace == self._namespace, CheckRow.suite == suite)
            .order_by(CheckRow.number.desc())
            .limit(limit)
        )
        with self._quarantine.database.read() as session:
            found = [self._checked(row).report for row in session.scalars(query)]
        return [DriftReport.from_dict(json.loads(text)) for text in reversed(found)]

    @property
    def busy(self) -> bool:
        """Whether this thread is within a transaction of the quarantine, where none can begin."""
        return self._quarantine.database.busy

    @property
    def _namespace(self) -> str:
        return self._quarantine.namespace

    def _add(
        self, session: Session, kind: type[BaselineRow | CheckRow], values: Mapping[str, Any]
    ) -> None:
        """Write a row, with its digest."""
        digests = self._quarantine.log.digests
        if (last := last_line(session)) is not None:
            check_key("the audit log", last.key_name, digests)
        number = int(session.scalar(select(func.max(kind.number))) or 0) + 1
        row = {**values, "namespace": self._namespace, "number": number}
        session.add(kind(**row, digest=digests.of(kind, row)))

    def _checked(self, row: Row) -> Row:
        """Return a row that is as it was written.

        Raises
        ------
        TamperedError
            If it is not.
        """
        digests = self._quarantine.log.digests
        values = {column.name: getattr(row, column.name) for column in table_of(type(row)).columns}
        if not digests.match(type(row), values):
            raise changed(type(row), values, digests)
        return row


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


def _unpacked(row: BaselineRow) -> Baseline:
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
