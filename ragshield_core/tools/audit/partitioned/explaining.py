"""Evidence of findings, on its way from the workers to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ragshield_core.detectors.base import Evidence
from ragshield_core.screening import explained
from ragshield_core.tools.audit.partitioned.files import as_bytes, as_text
from ragshield_core.tools.audit.partitioned.placing import read_rows
from ragshield_core.tools.audit.partitioned.plan import Plan


def explain_texts(which: int, plan: Plan, number: int, rows: Sequence[int], name: str) -> None:
    """Say why a detector finds entries of a piece, given their rows, ascending."""
    batch, detector = read_rows(plan, number, rows), plan.detectors()[which]
    told = explained(detector.name, detector.explain, batch, list(range(len(batch))))
    write_explained(plan, name, told)


def write_explained(plan: Plan, name: str, told: Sequence[Evidence]) -> None:
    """Write evidence down."""
    lines = [[one.sentence, one.related_ids, one.span] for one in told]
    plan.files.write(name, {"evidence": as_bytes(json.dumps(lines))})


def read_explained(plan: Plan, name: str) -> list[Evidence]:
    """Return what was written down."""
    lines = json.loads(as_text(plan.files.read(name)["evidence"]))
    return [
        Evidence(sentence=sentence, related_ids=tuple(ids), span=span and (span[0], span[1]))
        for sentence, ids, span in lines
    ]
