"""Register of rules about sources, in the quarantine's database and checked by its audit log."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import ANY_STORE, LogRow, RuleRow
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import QuarantineError, RuleError
from ragshield_core.model.findings import Decision, Finding, printable
from ragshield_core.model.policy import Policy
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.evidence import is_vouched, log_is_complete

logger = logging.getLogger("ragshield")  # numbers, never values

NEVER: Literal["never"] = "never"
# Characters of a source, a reason and a name; and of a name in messages.
LONGEST, SHOWN = 2000, 60
# Taxonomy of findings that a rule excuses only by naming the detector: indirect prompt injection
# and obfuscation. An honest source may have unusual resemblance, templates and labels, but orders
# to the model and hidden text come from an intruder, and one such text is an attack.
HOSTILE = frozenset({"AML.T0051.001", "AML.T0068"})
# Names of the same detectors: findings need not have a taxonomy.
HOSTILE_BY_NAME = frozenset({"instruction", "hidden_text"})
# Warning to everybody who makes a rule.
CAUTION = (
    "the lineage of an entry is a claim of whoever brings it: trust only a source whose name "
    "nobody else can write into metadata"
)


def is_hostile(finding: Finding) -> bool:
    """Return whether a finding is excused only by a rule that names its detector."""
    return finding.detector in HOSTILE_BY_NAME or not HOSTILE.isdisjoint(finding.taxonomy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that excuses findings on entries of one source.

    Attributes
    ----------
    number
        Its number in the whole database, without gaps.
    source
        The lineage of the entries, which has to match exactly.
    namespace, store
        Scope of the rule; a store of ``None`` stands for all stores of the namespace.
    detectors
        Names of the detectors that it covers. ``None`` for all but hidden text and instructions.
    reason, made_by, made_at
        Reason, author and time.
    expires_at
        End of the rule; ``None`` for never.
    revoked_at, revoked_by
        Time and author of its revocation, if any.
    vouched
        Whether the audit log confirms the row. A row that somebody changed or inserted without
        RAGShield is ``False``, and the rule does not count.
    """

    number: int
    source: str
    namespace: str
    store: str | None
    detectors: tuple[str, ...] | None
    reason: str
    made_by: str
    made_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None = None
    revoked_by: str | None = None
    vouched: bool = True

    def standing(self, now: dt.datetime) -> Literal["in force", "expired", "revoked", "broken"]:
        """Return its state at a time; the log does not confirm a "broken" rule."""
        if not self.vouched:
            return "broken"
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "in force"

    def excuses(self, finding: Finding) -> bool:
        """Return whether the rule excuses a finding, by its detector."""
        if self.detectors is not None:
            return finding.detector in self.detectors
        return not is_hostile(finding)

    def told(self) -> str:
        """Return the rule in a few words, without its source, which may be hostile."""
        until = "without an end" if self.expires_at is None else f"until {self.expires_at:%Y-%m-%d}"
        by = printable(self.made_by, SHOWN)
        return f"rule {self.number} (trusted source, by {by!r}, {until})"

    def to_dict(self, now: dt.datetime) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        values = asdict(self)
        del values["vouched"]
        for name in ("made_at", "expires_at", "revoked_at"):
            values[name] = values[name] and values[name].isoformat()
        return {"number": self.number, "standing": self.standing(now), **values}


class Rules:
    """The rules of a quarantine's namespace, or of one store there.

    Parameters
    ----------
    quarantine
        Its database keeps the rules. Rules made through one store's view of it
        (:meth:`ragshield_core.Quarantine.for_store`) count for that store, others for all stores
        of the namespace.

    Examples
    --------
    >>> rules = Rules(Quarantine("sqlite://"))
    >>> rule = rules.add("https://wiki.example", reason="ours", by="anna", expires_at=NEVER)
    >>> [found.source for found in rules.in_force()]
    ['https://wiki.example']
    >>> rules.revoke(rule.number, by="bert", reason="sold").revoked_by
    'bert'
    >>> rules.in_force()
    ()
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        # Version of the database, last line of the log about a rule, and the rules at that line.
        self._known: tuple[tuple[int, ...], int, tuple[Rule, ...]] | None = None

    def add(
        self,
        source: str,
        *,
        reason: str,
        by: str,
        expires_at: dt.datetime | Literal["never"],
        detectors: Sequence[str] | None = None,
    ) -> Rule:
        """Make a rule, with a line in the audit log; it is in force at once, in every process.

        Held entries stay held until a person releases them.

        Parameters
        ----------
        source
            A lineage, which has to match exactly; see the warning in :data:`CAUTION`, which the
            program's log repeats.
        reason, by
            Reason of the rule, and name of its author.
        expires_at
            End of the rule, with a time zone, or ``"never"``; there is no default.
        detectors
            Names of the detectors that it covers. ``None``, the default, for all but hidden text
            and instructions, which have to be named: one text of that kind is an attack by itself,
            and no honest author writes it.

        Returns
        -------
        Rule
            The stored rule.

        Raises
        ------
        RuleError
            If an argument is missing or malformed, or the end has passed.
        QuarantineError
            If the database cannot be written.
        """
        if detectors is not None:
            if isinstance(detectors, str) or not detectors:
                msg = (
                    f"detectors of a rule is {printable(repr(detectors), SHOWN)}, expected a list "
                    "of names, or None for the usual ones."
                )
                raise RuleError(msg)
            detectors = [_checked_text("a detector", name) for name in dict.fromkeys(detectors)]
        row = {
            "namespace": self.quarantine.namespace,
            "store": ANY_STORE if self.quarantine.store is None else self.quarantine.store,
            "source": _checked_text("the source", source),
            "detectors": None if detectors is None else json.dumps(detectors),
            "reason": _checked_text("reason", reason),
            "made_at": _now().isoformat(timespec="microseconds"),
            "made_by": _checked_text("by", by),
            "expires_at": _checked_end(expires_at),
        }

        def work(session: Session, changes: Changes) -> Rule:
            del session
            return _to_rule(changes.add_rule(row))

        made = self.quarantine.log.change(
            work, by=by, note=lambda rule: f"{rule.told()}: {rule.reason}"
        )
        logger.warning("%s is made: %s", made.told(), CAUTION)
        return made

    def list(self, *, every: bool = False) -> tuple[Rule, ...]:
        """Return the rules of the namespace, or those that concern the store, oldest first.

        Parameters
        ----------
        every
            Whether to include expired, revoked and broken rules; :meth:`Rule.standing` tells them
            apart. By default only rules in force are returned.
        """
        if not self.quarantine.exists():
            return ()
        with self.quarantine.database.read() as session:
            found = self._read(session)
        return found if every else _counting(found)

    def revoke(self, number: int, *, by: str, reason: str) -> Rule:
        """Take a rule back, with a line in the audit log.

        Entries that it let in stay in the store: an audit (``scan``) judges them without the rule.

        Parameters
        ----------
        number
            Of the rule.
        by, reason
            Name of the person who revokes it, and the reason.

        Raises
        ------
        RuleError
            If there is no such rule here, it is revoked already, or the log does not confirm it.
        """
        by, reason = _checked_text("by", by), _checked_text("reason", reason)

        def work(session: Session, changes: Changes) -> Rule:
            row = session.get(RuleRow, number)
            if row is None or not self._sees(row):
                msg = f"there is no rule {number} in {self.quarantine!r}; list() names those."
                raise RuleError(msg)
            if not is_vouched(session, self.quarantine.log.digests, row):
                msg = (
                    f"rule {number} is not as the audit log says, and does not count; verify() "
                    "says what was changed."
                )
                raise RuleError(msg)
            if row.revoked_at is not None:
                revoker = printable(str(row.revoked_by), SHOWN)
                msg = f"rule {number} was revoked by {revoker!r} on {row.revoked_at} already."
                raise RuleError(msg)
            changes.revoke_rule(row, by)
            return _to_rule(row)

        return self.quarantine.log.change(work, by=by, note=lambda rule: f"{rule.told()}: {reason}")

    def in_force(self) -> tuple[Rule, ...]:
        """Return the rules in force for entries that pass this quarantine, oldest first.

        Every batch calls this. It costs a check of the database's version and, after a change, one
        query by an index; rules are read again only if one was made or revoked.

        Raises
        ------
        QuarantineError
            If the database cannot be read.
        """
        if not self.quarantine.exists():
            return ()
        version, known = self.quarantine.database.version(), self._known
        if known is None or known[0] != version:
            latest = select(func.max(LogRow.seq)).where(LogRow.rule_number.is_not(None))
            with self.quarantine.database.read() as session:
                position = int(session.scalar(latest) or 0)
                if known is None or known[1] != position:  # rules of this store or of all stores
                    mine = (None, self.quarantine.store)
                    rules = tuple(rule for rule in self._read(session) if rule.store in mine)
                else:
                    rules = known[2]
            self._known = known = version, position, rules
        return _counting(known[2])

    def excuse(
        self, batch: Batch, decisions: Mapping[int, Decision], policy: Policy
    ) -> Mapping[int, Decision]:
        """Return the decisions after rules have excused findings, with notes on the rules.

        If rules cannot be read, none excuses anything.

        Parameters
        ----------
        batch
            Entries.
        decisions
            By row; other rows are admitted without findings.
        policy
            Decides by the remaining findings.
        """
        try:
            by_source: dict[str | None, list[Rule]] = {}
            for rule in self.in_force():
                by_source.setdefault(rule.source, []).append(rule)
        except QuarantineError as error:
            logger.warning("rules cannot be read, and none excuses anything: %s", error)
            return decisions
        changed: dict[int, Decision] = {}
        used: list[int] = []
        for row, decision in decisions.items():
            left, notes = [], [decision.note]
            for finding in decision.findings:
                mine = by_source.get(batch.lineages[row], ())
                oldest = next((rule for rule in mine if rule.excuses(finding)), None)
                if oldest is None:
                    left.append(finding)
                else:
                    used.append(oldest.number)
                    notes.append(f"{oldest.told()} excuses {finding.detector} {finding.score:.4f}")
            if len(left) < len(decision.findings):
                anew = policy.decide(decision.entry_id, left, decision.unjudged)
                notes[1:1] = [anew.note] if anew.note != decision.note else []
                changed[row] = replace(anew, note="; ".join(filter(None, notes)))
        if not changed:
            return decisions
        numbers = sorted(set(used))
        logger.info(
            "%d findings on %d entries are excused by rules %s", len(used), len(changed), numbers
        )
        return {**decisions, **changed}

    def _read(self, session: Session) -> tuple[Rule, ...]:
        """Return the rules of the namespace or store, and mark those that the log confirms."""
        query = select(RuleRow).where(RuleRow.namespace == self.quarantine.namespace)
        rows = [row for row in session.scalars(query.order_by(RuleRow.number)) if self._sees(row)]
        if not rows:
            return ()
        complete = log_is_complete(session)
        if not complete:
            logger.error("lines are missing in the audit log: no rule counts; verify() says more")
        digests, found = self.quarantine.log.digests, []
        for row in rows:
            vouched = complete and is_vouched(session, digests, row)
            if complete and not vouched:
                logger.error(
                    "rule %d is not as the audit log says, and does not count: it was changed, or "
                    "slipped in",
                    row.number,
                )
            try:
                found.append(_to_rule(row, vouched=vouched))
            except (ValueError, TypeError, RecursionError):
                if vouched:
                    raise
        return tuple(found)

    def _sees(self, row: RuleRow) -> bool:
        store = self.quarantine.store
        mine = row.namespace == self.quarantine.namespace
        return mine and (store is None or row.store in (store, ANY_STORE))


def _counting(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    now = _now()
    return tuple(rule for rule in rules if rule.standing(now) == "in force")


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _checked_text(field: str, text: object) -> str:
    """Return a text if every database keeps it unchanged; else raise RuleError."""
    expected = f"expected a str of 1 to {LONGEST} characters"
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        got = f"of {len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
        msg = f"{field} of a rule is {got}, {expected}, not blank."
        raise RuleError(msg)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        msg = f"{field} of a rule holds NUL or half of a surrogate pair, {expected} without these."
        raise RuleError(msg)
    return text


def _checked_end(expires_at: object) -> str | None:
    if expires_at == NEVER:
        return None
    expected = f"expected a time with a time zone that is to come, or {NEVER!r}"
    if not isinstance(expires_at, dt.datetime) or expires_at.tzinfo is None:
        msg = f"expires_at of a rule is {printable(repr(expires_at), SHOWN)}, {expected}."
        raise RuleError(msg)
    if expires_at <= _now():
        msg = f"a rule would expire at {expires_at.isoformat()}, which has passed, {expected}."
        raise RuleError(msg)
    return expires_at.astimezone(dt.UTC).isoformat(timespec="microseconds")


def _to_rule(row: RuleRow, *, vouched: bool = True) -> Rule:
    return Rule(
        number=row.number,
        source=row.source,
        namespace=row.namespace,
        store=None if row.store == ANY_STORE else row.store,
        detectors=None if row.detectors is None else tuple(json.loads(row.detectors)),
        reason=row.reason,
        made_by=row.made_by,
        made_at=dt.datetime.fromisoformat(row.made_at),
        expires_at=None if row.expires_at is None else dt.datetime.fromisoformat(row.expires_at),
        revoked_at=None if row.revoked_at is None else dt.datetime.fromisoformat(row.revoked_at),
        revoked_by=row.revoked_by,
        vouched=vouched,
    )
