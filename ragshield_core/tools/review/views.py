"""Contents of the review pages: texts, a case, open questions about sources, health."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from ragshield_core.calibration.arrivals import Question
from ragshield_core.database.read_only import read_only
from ragshield_core.detectors.hidden.detector import payloads
from ragshield_core.files.pages import shown_in
from ragshield_core.learning.status import GuardStatus
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import Decision, Finding, Verdict, by_strength, printable
from ragshield_core.origin import Origin
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.sharing.standing import questions_of, status_of
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.audit.cases import advice_on, title_of
from ragshield_core.tools.canary.storage import CanaryStore
from ragshield_core.tools.evaluate.rates import exact_interval
from ragshield_core.tools.review.cases import Case, Cases
from ragshield_core.tools.review.desk import proposed
from ragshield_core.tools.review.quarantine_report import heading
from ragshield_core.tools.review.sources_command import command_of
from ragshield_core.tools.rules.register import is_hostile

# Characters of a text that are shown at once.
SHOWN = 4_000
# Characters that are searched for hidden text: a reviewer is waiting.
READ = 200_000
# Words of each of two compared texts: the time grows with the product of lengths at worst.
COMPARED = 1_500
# Control characters that hide nothing.
HARMLESS = "\n\t\r"

# Categories of control and format characters, surrogates, private and unassigned ones, separators.
GLYPHLESS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))

Kind = Literal["plain", "evidence", "hidden", "invisible"]


class TextPiece(NamedTuple):
    """A part of a text, shown in one way; an "invisible" one has no glyph but a code point."""

    kind: Kind
    text: str  # to be escaped
    title: str = ""  # its tooltip


def pieces(text: str, findings: Sequence[Finding] = (), start: int = 0) -> list[TextPiece]:
    """Return the pieces of at most ``SHOWN`` characters of a text from a start on.

    Spans of findings and hidden text are marked.
    """
    stop = min(len(text), start + SHOWN)
    marks: list[tuple[Kind, str]] = [("plain", "")] * (stop - start)
    spans: list[tuple[tuple[int, int], Kind, str]] = [
        (one.span, "evidence", one.detector)
        for one in findings
        if one.span is not None and not one.beside
    ]
    for found in payloads(text[:READ]) if start < READ else ():
        reads = f": a machine reads {printable(found.decoded, 200)!r}" if found.decoded else ""
        spans.append((found.span, "hidden", f"{found.kind}{reads}"))
    for span, kind, title in spans:
        first, last = max(span[0], start) - start, min(span[1], stop) - start
        if first < last:
            marks[first:last] = [(kind, title)] * (last - first)
    shown: list[TextPiece] = []
    runs = groupby(zip(text[start:stop], marks, strict=True), lambda e: (e[1], invisible(e[0])))
    for ((kind, title), hidden), run in runs:
        characters = [character for character, _ in run]
        if not hidden:
            shown.append(TextPiece(kind, "".join(characters), title))
        for character in characters if hidden else ():
            name = unicodedata.name(character, "control character").lower()
            code = f"U+{ord(character):04X}"
            shown.append(TextPiece("invisible", code, "; ".join(filter(None, (name, title)))))
    return shown


def invisible(character: str) -> bool:
    """Return whether a character has no glyph, or changes the direction of others."""
    if character in HARMLESS:
        return False
    return unicodedata.category(character) in GLYPHLESS or character in SELECTORS


def rendered(text: str) -> str | None:
    """Return the text that a reader of the page would see, or ``None`` if it is the same.

    It lacks hidden text, tags, comments and characters without a glyph.
    """
    begin = text[:READ]
    kept, last = [], 0
    for found in payloads(begin):
        first, end = found.span
        if first >= last and found.kind != "look-alike letters":
            kept.append(begin[last:first])
            last = end
    kept.append(begin[last:])
    shown = "".join(c for c in shown_in("".join(kept)) if not invisible(c)).strip()
    return None if shown.split() == begin.split() else shown[:SHOWN]


def changes(older: str, newer: str) -> list[tuple[str, str]]:
    """Return runs of words that are "same", "removed" or "added" in a new revision.

    Only the beginnings of long texts are compared.
    """
    before, after = older.split()[:COMPARED], newer.split()[:COMPARED]
    found: list[tuple[str, str]] = []
    for tag, i, j, k, m in SequenceMatcher(None, before, after).get_opcodes():
        same = tag == "equal"
        found.append(("same" if same else "removed", visible(" ".join(before[i:j]))))
        found.append(("added", "" if same else visible(" ".join(after[k:m]))))
    return [(kind, text) for kind, text in found if text]


def visible(text: str) -> str:
    """Return text with invisible characters as code points; line breaks stay."""
    return "".join(f"<U+{ord(c):04X}>" if invisible(c) else c for c in text)


# Duration in days of a rule that is made with a release.
RULE_DAYS = 90


def rulable(held: Sequence[HeldEntry]) -> str | None:
    """Return the source whose rule would excuse all findings of some entries, if there is one."""
    sources = {one.entry.lineage for one in held}
    findings = [finding for one in held for finding in one.findings]
    if not findings or any(map(is_hostile, findings)):
        return None
    return sources.pop() or None if len(sources) == 1 else None


# Entries of a case on one page.
PAGE = 20
# Neighbours shown beside an entry.
NEAREST = 3
# Sources of a case that its page names.
SOURCES = 5
# Latest lines of the log on a page.
HISTORY = 200
# Characters of the text of an example.
BEGINNING = 160


def case_view(
    quarantine: Quarantine, store: Guarded | None, case: Case, offset: int = 0
) -> dict[str, Any]:
    """Return the contents of the page of a case, with its entries from an offset on.

    ``last`` is the number of its latest entry. Entries are compared with the texts of the store, if
    one is given.
    """
    cases = Cases(quarantine)
    held = cases.members(case.number, limit=PAGE, offset=offset)
    head = heading(case, cases.firsts([case]).get(case.number))
    ids = [one.id for one in held]
    remarks: list[str] = []
    older = _older(quarantine, held)
    neighbors: dict[int, list[tuple[Entry, float, Origin | None]]] = {}
    if store is None:
        remarks.append("no store is at hand: what its entries resemble in it is not shown")
    else:
        try:
            older |= {entry.id: ("in the store", entry.text) for entry in store.standing(ids)}
            neighbors = _neighbors(store, held)
        except RAGShieldError as error:
            remarks.append(f"the store could not be asked: {error}")
    proposals = proposed(quarantine, ids)
    origins = store.guard.origins if store is not None else None
    entries = [
        _shown(one, *older.get(one.id, ("", one.entry.text)))
        | {
            "convicts": head.convicts(one),
            "neighbors": neighbors.get(one.number, []),
            "proposed": proposals.get(one.id),
            "origin": origins.of_entry(one.entry) if origins else None,
        }
        for one in held
    ]
    sources = dict.fromkeys(one.entry.lineage for one in held if one.entry.lineage is not None)
    return {
        "case": case,
        "head": head,
        "advice": advice_on(head.main),
        "last": Cases(quarantine).newest(case.number),
        "entries": entries,
        "history": quarantine.log.lines(ids)[-HISTORY:],
        "sources": list(sources)[:SOURCES],
        "remarks": remarks,
        "rulable": rulable([one for one in held if one.status is Status.HELD]),
    }


def _shown(held: HeldEntry, older: str, before: str) -> dict[str, Any]:
    """Return the view of an entry, with its changes since an older revision.

    ``rest`` counts the characters after ``pieces``; ``rendered`` is the text that a reader of the
    page would see, if it differs. Findings begin with the most convincing one.
    """
    text = held.entry.text
    found = Decision(entry_id=held.id, verdict=Verdict.QUARANTINE, findings=held.findings)
    return {
        "held": held,
        "waits": held.status is Status.HELD,
        "pieces": pieces(text, held.findings),
        "rest": max(0, len(text) - SHOWN),
        "rendered": rendered(text),
        "findings": [(finding, title_of(finding.detector, 1)) for finding in by_strength(found)],
        "older": older,
        "diff": changes(before, text) if before != text else (),
        "metadata": [
            (printable(str(key), 80), printable(repr(value), 300))
            for key, value in list(held.entry.metadata.items())[:20]
        ],
    }


def _older(quarantine: Quarantine, held: Sequence[HeldEntry]) -> dict[str, tuple[str, str]]:
    """Return the latest admitted revision under each id, if the quarantine has it."""
    mine = {one.id: one.entry.fingerprint for one in held}
    others = [
        one.number
        for one in (quarantine.prints(ids=list(mine)) if mine else ())
        if one.status in (Status.RELEASED, Status.READMITTED, Status.REPLACED)
        and one.fingerprint != mine[one.id]
    ]
    return {
        one.id: (f"{one.status} on {one.held_at:%Y-%m-%d}", one.entry.text)
        for one in Cases(quarantine).entries(others).values()
    }


def _neighbors(
    store: Guarded, held: Sequence[HeldEntry]
) -> dict[int, list[tuple[Entry, float, Origin | None]]]:
    """Return the store's nearest entries to each held one, with similarities and origins."""
    asked = [one for one in held if one.vector.size == (store.guard.judge.dim or -1)]
    if not asked:
        return {}
    batch = Batch.of(
        ids=[f"{uuid4().hex}-{one.number}" for one in asked],  # unused ids: none is left out
        texts=[""] * len(asked),
        embeddings=[one.vector for one in asked],
    )
    near = store.guard.judge.nearest(batch, NEAREST)
    wanted = list(dict.fromkeys(name for name in near.ids.ravel().tolist() if name is not None))
    there = {entry.id: entry for entry in store.standing(wanted)}
    known = store.guard.origins
    origins = {i: known.of_entry(entry) if known else None for i, entry in there.items()}
    return {
        one.number: [
            (there[i], float(cos), origins[i]) for i, cos in zip(*found, strict=True) if i in there
        ]
        for one, *found in zip(asked, near.ids.tolist(), near.similarities.tolist(), strict=True)
    }


def open_questions(quarantine: Quarantine, store: Guarded | None) -> tuple[Question, ...]:
    """Return the open questions of the guard of the store, or in the database."""
    try:
        if store is not None:
            store.guard.writes.catch_up()
            return store.guard.sources.questions()
        with read_only(quarantine.database.url) as session:
            url, digests = quarantine.database.url, quarantine.log.digests
            return questions_of(session, url, quarantine.namespace, digests=digests)
    except RAGShieldError:
        return ()


def source_view(quarantine: Quarantine, store: Guarded | None) -> list[dict[str, Any]]:
    """Return open questions about sources, with examples of held and admitted entries.

    Nothing is changed. Forms name a source by its key, since its name may be hostile. If the page
    cannot decide, people run one of the commands. An example has an id, a number in quarantine, and
    the beginning of its text.
    """
    found = []
    for question in open_questions(quarantine, store):
        ids = question.held_ids
        held = {one.id: one for one in (quarantine.list(ids=ids) if ids else ())}
        let_in: dict[str, str] = {}
        if store is not None and question.admitted_ids:
            with suppress(RAGShieldError):  # without an answer from the store, ids are shown alone
                let_in = {one.id: one.text for one in store.standing(question.admitted_ids)}
        found.append(
            {
                "question": question,
                "key": key_of(question.source),
                "held": [
                    (i, held[i].number, printable(held[i].entry.text, BEGINNING))
                    if i in held
                    else (i, None, "")
                    for i in ids
                ],
                "admitted": [
                    (i, None, printable(let_in.get(i, ""), BEGINNING))
                    for i in question.admitted_ids
                ],
                "commands": [
                    command_of(choice, question.source, quarantine.namespace)
                    for choice in ("adopt", "keep")
                ],
            }
        )
    return found


def key_of(source: str | None) -> str:
    """Return the key of a source in a form.

    Examples
    --------
    >>> key_of(None) == key_of("None")
    False
    """
    return hashlib.sha256(repr(source).encode("utf-8", "backslashreplace")).hexdigest()


def health_view(quarantine: Quarantine, store: Guarded | None) -> dict[str, Any]:
    """Return the status of guard and quarantine for the health page; changes nothing.

    ``concerns`` lacks open questions, which the page shows apart. ``good`` is the share of good
    entries among decided ones, an estimate for all held entries. ``whole`` says whether the cases'
    counts match the waiting entries. ``verified`` is the log's line about the last verification of
    log and entries, and ``believed`` says whether that line is unchanged.
    """
    standing, why_not = _standing(quarantine, store)
    there = quarantine.exists()
    asked = {str(question) for question in standing.questions} if standing else set()
    concerns = [one for one in standing.concerns() if one not in asked] if standing else []
    counts = {str(status): quarantine.count(status) if there else 0 for status in Status}
    judged = counts[Status.RELEASED] + counts[Status.CONFIRMED]
    verified, believed = quarantine.log.verification() if there else (None, True)
    return {
        "standing": standing,
        "concerns": concerns,
        "why_not": why_not,
        "counts": counts,
        "good": exact_interval(counts[Status.RELEASED], judged) if judged else None,
        "whole": Cases(quarantine).whole() if there else True,
        "head": quarantine.log.head() if there else "0:",
        "suites": _suites(quarantine) if there else [],
        "contradictions": quarantine.open_alerts() if there else 0,
        "verified": verified,
        "believed": believed,
    }


def _standing(quarantine: Quarantine, store: Guarded | None) -> tuple[GuardStatus | None, str]:
    try:
        if store is not None:
            return store.guard.status(), ""
        with read_only(quarantine.database.url) as session:
            url, digests = quarantine.database.url, quarantine.log.digests
            return status_of(session, url, quarantine.namespace, digests=digests), ""
    except RAGShieldError as error:
        return None, printable(str(error), 300)


def _suites(quarantine: Quarantine) -> list[tuple[str, str, str]]:
    """Return each suite of canaries with time and number of drifted canaries of its last check."""
    kept, found = CanaryStore(quarantine), []
    with suppress(RAGShieldError):
        for name in kept.suites():
            if checks := kept.checks(name, limit=1):
                drifted = f"{len(checks[0].flagged)} of {len(checks[0].canaries)}"
                found.append((name, f"{checks[0].checked_at:%Y-%m-%d %H:%M} UTC", drifted))
            else:
                found.append((name, "never", f"not checked of {len(kept.baseline(name).asked)}"))
    return found
