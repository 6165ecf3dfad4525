"""Every exception that RAGShield raises on purpose.

Each message names the fault, its place, the expected value and the way out. Each class derives from
the built-in exception that a caller would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragshield_core.model.findings import Report


class RAGShieldError(Exception):
    """Base of all of RAGShield's own exceptions."""


class InvalidBatchError(RAGShieldError, ValueError):
    """A batch holds entries that cannot be judged or stored; the message names the entry."""


class MalformedEntriesError(InvalidBatchError):
    """Some entries of a write can be neither stored nor held; the others were.

    Attributes
    ----------
    reasons : dict[int, str]
        The fault of each such entry by its position in the call, counted from 0. The message names
        only the first :data:`NAMED`.
    ids : list[str]
        The ids that the call would have returned, of all its entries; empty if it wrote nothing.
    """

    NAMED = 20

    def __init__(
        self, reasons: Mapping[int, str], *, ids: Sequence[Any] = (), written: bool = True
    ) -> None:
        self.reasons = dict(sorted(reasons.items()))
        self.ids = list(ids)
        self._written = written
        named = [f"entry {row}: {reason}" for row, reason in self.reasons.items()]
        more = f" (and {len(named) - self.NAMED} more, see .reasons)" if named[self.NAMED :] else ""
        rest = "the others were written, or held" if written else "nothing was written or held"
        super().__init__(
            f"{len(named)} entries cannot be taken in, and {rest}: "
            f"{'; '.join(named[: self.NAMED])}{more}. Entries are counted from 0."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary with the reasons, not with the message."""
        return partial(type(self), ids=self.ids, written=self._written), (self.reasons,)


class NeighborsError(RAGShieldError, RuntimeError):
    """The store that finds the neighbours is not at hand, or did not answer."""


class NotFittedError(RAGShieldError, RuntimeError):
    """A detector was asked for scores before it had learned a knowledge base."""


class CalibrationError(RAGShieldError, ValueError):
    """The clean sample cannot honour the accepted false-positive rate."""


class ConfigurationError(RAGShieldError, ValueError):
    """A setting of a file or of the environment is unknown, or has an invalid value."""


class StateError(RAGShieldError, ValueError):
    """A saved guard is damaged, tampered with, or in another format."""


class QuarantineError(RAGShieldError, ValueError):
    """The quarantine cannot carry out a request; the message names the entry."""


class TamperedError(QuarantineError):
    """Log, entries or rules were changed after they were written; the message says how.

    Attributes
    ----------
    where : str
        The broken line of the log, or row of a table; the same until the fault is repaired.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.where = where
        super().__init__(message)


class RuleError(RAGShieldError, ValueError):
    """A rule cannot be made or revoked; the message names the expected value."""


class OvertakenError(RAGShieldError, RuntimeError):
    """Another process has taken the turn meanwhile; nothing was written, so write again."""


class TakenOverError(RAGShieldError, RuntimeError):
    """Another process took this one for dead, and has recovered its events or is about to."""


class PrunedError(RAGShieldError, LookupError):
    """A requested event is no longer kept by itself; it is part of a later snapshot."""


class CanaryError(RAGShieldError, ValueError):
    """A suite, a baseline or a retriever cannot be used as given; the message names it."""


class EmbedderChangedError(CanaryError):
    """The embedder or k differs from the baseline's: a comparison would show drift everywhere."""


class SourceError(RAGShieldError, ValueError):
    """A knowledge base on disk cannot be read; the message names the file and the row."""


class AttestationError(RAGShieldError, ValueError):
    """A statement, a report or a key cannot be read, or does not fit its purpose."""


class ContractError(AssertionError):
    """A detector breaks the contract that every detector must keep."""


class InvalidScoresError(RAGShieldError, ValueError):
    """A detector did not return one score for each entry; the entries are not to blame."""


class PoisonedEntryError(RAGShieldError):
    """A poisoned entry prevented a write under ``Policy(on_detect="raise")``.

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


class UpdateHeldError(RAGShieldError):
    """A step holds a part of a new version, and an unguarded index would go on without it."""


class UnfittedGuardWarning(UserWarning):
    """A guard without any known entry protects a store that already holds entries."""


class SharedQuarantineWarning(UserWarning):
    """Two stores hold entries under one name, in one namespace of a quarantine."""


class SharedFolderWarning(UserWarning):
    """Two processes have opened a folder that is meant for one."""


class StoreDiffersWarning(UserWarning):
    """A store holds entries that its guard does not know, or lacks some that the guard knows."""


class MalformedEntriesWarning(UserWarning):
    """No entry of a write can be judged, so all of them are held."""


class PoisonGuardOrderWarning(UserWarning):
    """A language model reads nodes before a PoisonGuard has judged them."""


class HeldTextElsewhereWarning(UserWarning):
    """The text of a held entry is still present outside the quarantine."""


class PoisonFilterOrderWarning(UserWarning):
    """A language model reads passages before a PoisonFilter, or a later step may change them."""
