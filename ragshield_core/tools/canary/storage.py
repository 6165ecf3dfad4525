"""Baselines and checks, kept in the database of the quarantine."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import BaselineRow, CheckRow, table_of
from ragshield_core.model.errors import CanaryError
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.digests import check_key
from ragshield_core.quarantine.evidence import changed, last_line
from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.knowledge_base import Vectors

Row = TypeVar("Row", BaselineRow, CheckRow)

# Version of the JSON within a row.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Retrieved passages and answer of one canary."""

    query: str
    ids: tuple[str, ...]  # retrieved, best first
    revisions: tuple[str, ...]  # hashes of their texts
    suspicions: tuple[float, ...]  # of each text, in [0, 1]
    coverages: tuple[float, ...]  # share of the query that each holds in one place, in [0, 1]
    answer: str | None = None
    # Ids and hashes of the passages just below: they are not new when they move up.
    below: tuple[tuple[str, str], ...] = ()


_OBSERVATIONS = TypeAdapter(dict[str, Observation])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Baseline:
    """A suite's results while the knowledge base was believed clean."""

    suite: str
    version: int = 0
    k: int  # number of compared places
    size: int | None  # entries of the knowledge base, if the retriever knew
    observations: Mapping[str, Observation]  # by the canary's name
    # Vectors of the canaries, if there was an embedder, and of their answers.
    queries: Vectors | None = None
    answers: Vectors | None = None

    @property
    def asked(self) -> dict[str, str]:
        """Query by the canary's name."""
        return {name: observation.query for name, observation in self.observations.items()}


class CanaryStore:
    """Baselines and checks of a namespace, in the database of a quarantine."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine

    def save_baseline(self, baseline: Baseline) -> int:
        """Keep a baseline as the next version of its suite; return the version."""
        observations = {name: asdict(seen) for name, seen in baseline.observations.items()}
        content = {"k": baseline.k, "size": baseline.size, "observations": observations}
        vectors: dict[str, Any] = {"queries": baseline.queries, "answers": baseline.answers}
        file = io.BytesIO()
        np.savez(file, **{name: each for name, each in vectors.items() if each is not None})
        values = {
            "suite": baseline.suite,
            "created_at": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
            "content": json.dumps({"format": FORMAT} | content),
            "vectors": file.getvalue(),
        }

        def work(session: Session) -> int:
            latest = session.scalar(self._of(baseline.suite, func.max(BaselineRow.version)))
            version = int(latest or 0) + 1
            self._add(session, BaselineRow, values | {"version": version})
            return version

        return self._quarantine.database.write(work)

    def baseline(self, suite: str, version: int | None = None) -> Baseline:
        """Return a baseline; the latest by default."""
        query = self._of(suite, BaselineRow)
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
            row = self._checked(row)
            content = json.loads(row.content)
            if (found := content.pop("format")) != FORMAT:
                msg = (
                    f"baseline {row.version} of suite {suite!r} is of format {found}, this version "
                    f"of RAGShield reads only format {FORMAT}; set the baseline anew."
                )
                raise CanaryError(msg)
            observations = _OBSERVATIONS.validate_python(content.pop("observations"))
            with np.load(io.BytesIO(row.vectors), allow_pickle=False) as file:
                vectors = dict(file)
            return Baseline(
                suite=suite, version=row.version, observations=observations, **content, **vectors
            )

    def suites(self) -> list[str]:
        """Return the names of all suites that have a baseline."""
        mine = BaselineRow.namespace == self._quarantine.namespace
        with self._quarantine.database.read() as session:
            return sorted(session.scalars(select(BaselineRow.suite).where(mine).distinct()))

    def versions(self, suite: str) -> list[tuple[int, dt.datetime]]:
        """Return number and time of each baseline of a suite, in order."""
        query = self._of(suite, BaselineRow.version, BaselineRow.created_at)
        query = query.order_by(BaselineRow.version)
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
            .where(CheckRow.namespace == self._quarantine.namespace, CheckRow.suite == suite)
            .order_by(CheckRow.number.desc())
            .limit(limit)
        )
        with self._quarantine.database.read() as session:
            found = [self._checked(row).report for row in session.scalars(query)]
        return [DriftReport.from_dict(json.loads(text)) for text in reversed(found)]

    @property
    def busy(self) -> bool:
        """Whether this thread is in a transaction of the quarantine and cannot begin another."""
        return self._quarantine.database.busy

    def _of(self, suite: str, *columns: Any) -> Select[Any]:
        mine = BaselineRow.namespace == self._quarantine.namespace
        return select(*columns).where(mine, BaselineRow.suite == suite)

    def _add(
        self, session: Session, kind: type[BaselineRow | CheckRow], values: Mapping[str, Any]
    ) -> None:
        """Write a row, with its digest."""
        digests = self._quarantine.log.digests
        if (last := last_line(session)) is not None:
            check_key("the audit log", last.key_name, digests)
        number = int(session.scalar(select(func.max(kind.number))) or 0) + 1
        row = {**values, "namespace": self._quarantine.namespace, "number": number}
        session.add(kind(**row, digest=digests.of(kind, row)))

    def _checked(self, row: Row) -> Row:
        """Return an unchanged row; raise TamperedError for a changed one."""
        digests = self._quarantine.log.digests
        values = {column.name: getattr(row, column.name) for column in table_of(type(row)).columns}
        if not digests.match(type(row), values):
            raise changed(type(row), values, digests)
        return row
