"""Every exception that RAGShield raises on purpose.

Each message says what is wrong, where, what was expected and the way out. They derive from the
built-in exception a caller would expect, so ``except ValueError`` keeps working.
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
    """Entries that cannot be judged or stored as given; the message names the entry."""


class MalformedEntriesError(InvalidBatchError):
    """Entries that can be neither stored nor held; the others of the same write were.

    Attributes
    ----------
    reasons : dict[int, str]
        By position in the call, counted from 0, what is wrong; all of them, where the message names
        the first :data:`NAMED`.
    ids : list[str]
        Of all entries of the call, as it would have returned them; empty where nothing was written.
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
    """The store in which neighbours are to be found is not at hand, or did not answer."""


class NotFittedError(RAGShieldError, RuntimeError):
    """A detector was asked for scores before it had learned a knowledge base."""


class CalibrationError(RAGShieldError, ValueError):
    """The clean sample cannot honour the accepted false-positive rate."""


class ConfigurationError(RAGShieldError, ValueError):
    """A setting of a file or of the environment that is unknown, or has a value that is none."""


class StateError(RAGShieldError, ValueError):
    """A saved guard is damaged, tampered with, or of another format."""


class QuarantineError(RAGShieldError, ValueError):
    """The quarantine cannot do what was asked; the message names the entry."""


class TamperedError(QuarantineError):
    """Log, entries or rules are not as they were written; the message says what was expected.

    Attributes
    ----------
    where : str
        The line of the log, or the row of a table: the same as long as that is what is broken.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.where = where
        super().__init__(message)


class RuleError(RAGShieldError, ValueError):
    """A rule cannot be made or revoked as asked for; the message says what was expected."""


class OvertakenError(RAGShieldError, RuntimeError):
    """Another process has the turn, or has had it since; nothing was written: write again."""


class TakenOverError(RAGShieldError, RuntimeError):
    """Another process, which believed this one dead, has recovered its events or is about to."""


class PrunedError(RAGShieldError, LookupError):
    """What is asked for is no longer kept by itself; it is part of a later snapshot."""


class CanaryError(RAGShieldError, ValueError):
    """A suite, a baseline or a retriever cannot be used as given; the message names it."""


class EmbedderChangedError(CanaryError):
    """The embedder, or k, is not that of the baseline: a comparison would show drift everywhere."""


class SourceError(RAGShieldError, ValueError):
    """A knowledge base on disk that cannot be read; the message names the file and the row."""


class AttestationError(RAGShieldError, ValueError):
    """A statement, a report or a key that cannot be read, or not be used for this."""


class ContractError(AssertionError):
    """A detector does not do what is asked of every detector."""


class InvalidScoresError(RAGShieldError, ValueError):
    """What a detector returned is no score for each entry: whatever the entries are."""


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


class UnfittedGuardWarning(UserWarning):
    """A guard that knows nothing stands in front of a store that holds entries."""


class SharedQuarantineWarning(UserWarning):
    """Two stores hold entries under one name, in one namespace of a quarantine."""


class SharedFolderWarning(UserWarning):
    """Two processes have a folder open that is for one."""


class StoreDiffersWarning(UserWarning):
    """A store holds entries that its guard does not know, or lacks entries that it knows."""


class MalformedEntriesWarning(UserWarning):
    """Nothing of a write can be judged as it came, and all of it is held."""


class PoisonGuardOrderWarning(UserWarning):
    """A language model reads nodes before a PoisonGuard has judged them."""


class HeldTextElsewhereWarning(UserWarning):
    """Text that is held in quarantine stays in another place as well."""


class PoisonFilterOrderWarning(UserWarning):
    """Something after a PoisonFilter puts text into the prompt that was not judged."""
