"""Every exception that RAGShield raises on purpose.

Each message says what is wrong, where, what was expected and the way out. They derive from the
built-in exception a caller would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragshield_core.findings import Report


class RAGShieldError(Exception):
    """Base of all of RAGShield's own exceptions."""


class InvalidBatchError(RAGShieldError, ValueError):
    """Entries that cannot be judged or stored as given; the message names the entry."""


class NotFittedError(RAGShieldError, RuntimeError):
    """A detector was asked for scores before it had learned a knowledge base."""


class CalibrationError(RAGShieldError, ValueError):
    """The clean sample cannot honour the accepted false-positive rate."""


class StateError(RAGShieldError, ValueError):
    """A saved guard is damaged, tampered with, or of a newer format."""


class QuarantineError(RAGShieldError, ValueError):
    """The quarantine cannot do what was asked; the message names the entry."""


class CanaryError(RAGShieldError, ValueError):
    """A suite, a baseline or a retriever cannot be used as given; the message names it."""


class EmbedderChangedError(CanaryError):
    """The embedder, or k, is not that of the baseline: a comparison would show drift everywhere."""


class TooManyPairsError(RAGShieldError, ValueError):
    """More pairs are alike than the caller allowed for; none is returned rather than some."""


class SourceError(RAGShieldError, ValueError):
    """A knowledge base on disk that cannot be read; the message names the file and the row."""


class ContractError(AssertionError):
    """A detector does not do what is asked of every detector."""


class PoisonedEntryError(RAGShieldError):
    """Raised instead of a write when ``Policy(on_detect="raise")`` meets a poisoned entry.

    Attributes
    ----------
    report : Report
        The whole screening; nothing of it was written.
    """

    def __init__(self, report: Report) -> None:
        ids = [decision.entry_id for decision in (*report.quarantined, *report.retroactive)]
        shown = ", ".join(repr(entry_id) for entry_id in ids[:5]) + (", ..." if ids[5:] else "")
        super().__init__(
            f"{len(ids)} entries, of {len(report.batch)} new ones and those admitted earlier, are "
            f"suspected of poisoning ({shown}); "
            "nothing was written. See .report for the evidence, or use "
            'Policy(on_detect="quarantine") to write the others.'
        )
        self.report = report

    def __reduce__(self) -> tuple[type[PoisonedEntryError], tuple[Report]]:
        """Cross a process boundary with the report, not with the message."""
        return type(self), (self.report,)
