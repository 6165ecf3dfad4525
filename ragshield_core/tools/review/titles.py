"""What a case is, in plain words, and which of its entries it speaks against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ragshield_core.model.findings import Decision, Finding, Verdict, by_strength, printable
from ragshield_core.quarantine import HeldEntry
from ragshield_core.tools.audit.cases import QUOTED, convicting, quote_of, title_of
from ragshield_core.tools.review.cases import Case

BY_HAND = ("A person holds an entry", "A person holds {n} entries")


class Heading(NamedTuple):
    """What a case is.

    Attributes
    ----------
    title
        In a sentence without its end.
    quote
        The words that convict, or how the first text begins.
    main
        The detector that convicts; ``None`` where a person does.
    """

    title: str
    quote: str
    main: str | None

    def convicts(self, held: HeldEntry) -> bool:
        """Return whether what the title says was found in an entry itself.

        Others came into the case since the evidence names them: they may be as good as any page.
        """
        return self.main is None or any(one.detector == self.main for one in held.findings)


def heading(case: Case, first: tuple[Sequence[Finding], str] | None) -> Heading:
    """Return what a case is.

    Parameters
    ----------
    case
        Which.
    first
        What was found in its first entry, and its text or how that begins; ``None`` if it is gone.
    """
    findings, text = first or ((), "")
    found = Decision(entry_id="", verdict=Verdict.QUARANTINE, findings=tuple(findings))
    strongest = next(iter(by_strength(found)), None)
    n = case.n_waiting or case.n_members
    quote = printable(quote_of(text, strongest), QUOTED)
    if strongest is None and not case.detectors:
        return Heading(BY_HAND[n > 1].format(n=n), quote, None)
    first_by = case.detectors[0] if strongest is None else strongest.detector
    main = convicting(first_by, case.detectors, n)
    return Heading(title_of(printable(main, 60), n), quote, main)
