"""The findings of an audit as cases: the entries of one attack are one case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Decision, Finding
from ragshield_core.model.severity import GROUP, HIDDEN, ORDER, QUESTION, TOP, Severity, severity_by
from ragshield_core.tools.case_report import SHOWN_TEXTS, ShownCase, ShownText, span_of

ORDERED = list(map(str, Severity))
# Characters of a text that a case shows.
QUOTED = 160
# Tag characters, which are invisible, and the letters that they stand for.
TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
# Titles of cases, by the detector with the rarest finding: for one entry, and for several.
TITLES = {
    GROUP: (
        "An entry agrees with others more closely than is usual here",
        "{n} entries say the same in other words",
    ),
    ORDER: ("An entry gives orders to the model", "{n} entries give orders to the model"),
    HIDDEN: ("An entry has text that people do not see", "{n} entries have text nobody sees"),
    QUESTION: (
        "An entry repeats a question and answers it, unlike other entries here",
        "{n} entries repeat a question and answer it",
    ),
    "meta_claim": (
        "An entry vouches for its own truth, or against other sources",
        "{n} entries vouch for their own truth, or against other sources",
    ),
    "trigger_phrase": (
        "An entry has a phrase that was planted in several",
        "{n} entries share a phrase that is unusual here",
    ),
    "disfluency": ("An entry is no fluent text", "{n} entries are no fluent text"),
}
OTHER = ("{detector} suspects an entry", "{detector} suspects {n} entries")
# Advice on a case, by its main detector.
ADVICE = {
    GROUP: (
        "Check what they agree on against a source that you trust. If it is wrong, delete all of "
        "them, and look for more by the same authors."
    ),
    ORDER: "Delete it, unless it is an example in a text about such orders.",
    HIDDEN: "Ask who put the hidden text there. Delete it if nobody can say what it is for.",
    QUESTION: (
        "Check the answer. If it is wrong, delete the entry. Questions and answers of your own "
        "are fine."
    ),
    "meta_claim": (
        "Check what it states against another source. If it is wrong, delete the entry. People who "
        "complain or report write like that as well."
    ),
    "trigger_phrase": (
        "Find out who writes this phrase. If nobody of yours does, delete the entries. A footer of "
        "your own is fine, and a rule excuses it."
    ),
    "disfluency": "Delete it, unless it is code, a table or a list that belongs here.",
}
OTHER_ADVICE = "Read it. Delete it if it is wrong, or does not belong here."


def cases_of(
    batch: Batch,
    found: Mapping[int, Decision],
    strongest: Mapping[int, Finding],
    *,
    whole: bool = True,
) -> tuple[ShownCase, ...]:
    """Return the findings of an audit as cases, worst first.

    Two entries are in one case if a finding on one names the other, and its detector found both or
    is the group detector. Only found entries are in cases. ``found`` has the decisions against
    entries by row, worst first; ``strongest`` has the most convincing finding of each. Effects on
    questions are counted only in a ``whole`` knowledge base.
    """
    cases = [_case(batch, rows, found, strongest, whole) for rows in _tied(batch, found)]
    return tuple(sorted(cases, key=lambda case: ORDERED.index(case.severity)))


def _tied(batch: Batch, found: Mapping[int, Decision]) -> list[list[int]]:
    """Return the rows of each case; cases and rows in the order of the findings."""
    place_of = {batch.ids[row]: place for place, row in enumerate(found)}
    by = [{finding.detector for finding in one.findings} for one in found.values()]
    edges = [
        (place, place_of[other])
        for place, decision in enumerate(found.values())
        for finding in decision.findings
        for other in finding.related_ids
        if other in place_of
        and (finding.detector == GROUP or finding.detector in by[place_of[other]])
    ]
    ends = np.array(edges, dtype=np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (ends[0], ends[1])), shape=(len(found), len(found)))
    tied: dict[int, list[int]] = defaultdict(list)
    _, labels = connected_components(graph, directed=False)
    for row, label in zip(found, labels.tolist(), strict=True):
        tied[label].append(row)
    return list(tied.values())


def _case(
    batch: Batch,
    rows: Sequence[int],
    found: Mapping[int, Decision],
    strongest: Mapping[int, Finding],
    whole: bool,  # noqa: FBT001
) -> ShownCase:
    findings = [finding for row in rows for finding in found[row].findings]
    detectors = tuple(dict.fromkeys(finding.detector for finding in findings))
    main = strongest[rows[0]]
    kind = convicting(main.detector, detectors, len(rows))
    if kind != main.detector:
        main = next(finding for finding in findings if finding.detector == kind)
    ids = [batch.ids[row] for row in rows]
    named = [i for f in findings if f.detector == GROUP for i in f.related_ids]
    places, effect = None, ""
    if whole and rows[1:] and batch.dim:  # count its entries among those nearest to its topic
        topic = batch.embeddings[list(rows)].mean(axis=0)
        nearest = np.argsort(-(batch.embeddings @ topic), kind="stable")[:TOP]
        places = int(np.isin(nearest, rows).sum())
        effect = f"A question on their topic finds them: they are {places} of the first {TOP} "
        effect += "entries."
    severity = severity_by(detectors, len(rows), places)
    return ShownCase(
        severity=severity,
        title=title_of(main.detector, len(rows)),
        entry_ids=tuple(ids),
        texts=tuple(
            ShownText(id=batch.ids[row], text=batch.texts[row], span=span_of(found[row].findings))
            for row in rows[:SHOWN_TEXTS]
        ),
        by=f"Found by {', '.join(detectors)}",
        beside=tuple(dict.fromkeys(i for i in named if i not in ids)),
        detectors=detectors,
        evidence=main.evidence,
        quote=quote_of(batch.texts[rows[ids.index(main.entry_id)]], main),
        effect=effect,
        advice=advice_on(main.detector),
    )


def advice_on(detector: str | None) -> str:
    """Return the advice on a case, by its main detector."""
    return ADVICE.get(detector or "", OTHER_ADVICE)


def convicting(strongest: str, detectors: Sequence[str], n: int) -> str:
    """Return a case's main detector: the group detector, if it took part and n is above 1."""
    return GROUP if n > 1 and GROUP in detectors else strongest


def title_of(detector: str, n: int) -> str:
    """Return the title of a case, by its main detector and its number of entries."""
    one, several = TITLES.get(detector, OTHER)
    return (several if n > 1 else one).format(n=n, detector=detector)


def quote_of(text: str, finding: Finding | None) -> str:
    """Return the part of a text that a finding marks, or else the beginning of the text."""
    start, end = (finding and finding.span) or (0, 0)
    quoted = text[start:end] if end > start else text
    return " ".join(quoted.translate(TAGS).split())[:QUOTED]
