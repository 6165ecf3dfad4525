"""Where rules are kept: beside the quarantine, vouched for by its audit log."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Sequence
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import ANY_STORE, LogRow, RuleRow
from ragshield_core.model.errors import RuleError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.evidence import is_vouched, log_is_complete
from ragshield_core.tools.rules.phrases import Phrase
from ragshield_core.tools.rules.rule import CAUTIONS, LOCAL, SHOWN, Kind, Rule, Standing

logger = logging.getLogger("ragshield")  # numbers, never values

NEVER: Literal["never"] = "never"
# Characters of a value, a reason and a name.
LONGEST = 2000


class Rules:
    """The rules of a quarantine's namespace, and of its store if it is one store's.

    Parameters
    ----------
    quarantine
        Beside which they are kept. Rules that are made through one store's view of it
        (:meth:`ragshield_core.Quarantine.for_store`) count for that store, others for all stores
        of the namespace.

    Examples
    --------
    >>> rules = Rules(Quarantine("sqlite://"))
    >>> rule = rules.add(Kind.OWN_PHRASE, "ACME service line", reason="our footer", by="anna",
    ...                  expires_at=NEVER)
    >>> [found.value for found in rules.in_force()]
    ['ACME service line']
    >>> rules.revoke(rule.number, by="bert", reason="a new footer").revoked_by
    'bert'
    >>> rules.in_force()
    ()
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        # Version of the database, last line of the log about a rule, and what they say.
        self._known: tuple[tuple[int, ...], int, tuple[Rule, ...]] | None = None

    def add(
        self,
        kind: Kind | str,
        value: str,
        *,
        reason: str,
        by: str,
        expires_at: dt.datetime | Literal["never"],
        detectors: Sequence[str] | None = None,
    ) -> Rule:
        """Make a rule, with a line in the audit log; it is in force at once, in every process.

        What is held already stays held: a person releases it.

        Parameters
        ----------
        kind, value
            ``"trusted_source"`` and a lineage, which is compared to the bit; or ``"own_phrase"``
            and a phrase, compared as detectors compare words. :data:`CAUTIONS` says what either is
            worth; the log of the program repeats it.
        reason, by
            Why, and who decided.
        expires_at
            When it stops counting, with a time zone; ``"never"`` has to be said.
        detectors
            Names of those whose findings it excuses. ``None``, the default: of a source all but
            those of hidden text and of instructions, which have to be named, since one text of
            that kind is an attack by itself and no honest author writes it; of a phrase those that
            say where in the text they found it, ``trigger_phrase`` and ``instruction``, and no
            others.

        Returns
        -------
        Rule
            As it is kept.

        Raises
        ------
        RuleError
            If something is missing, of another form, or has passed already.
        QuarantineError
            If the database cannot be written.
        """
        kind = _checked_kind(kind)
        row = {
            "namespace": self.quarantine.namespace,
            "store": ANY_STORE if self.quarantine.store is None else self.quarantine.store,
            "kind": str(kind),
            "value": _checked_value(kind, value),
            "detectors": _checked_detectors(kind, detectors),
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
        logger.warning("%s is made: %s", made.told(), CAUTIONS[kind])
        return made

    def list(self, *, every: bool = False) -> tuple[Rule, ...]:
        """Return the rules that are seen from here, oldest first.

        Parameters
        ----------
        every
            Whether also those that are expired, revoked or broken; :meth:`Rule.standing` says
            which are. By default those that are in force somewhere in the namespace, or in the
            store.
        """
        if not self.quarantine.exists():
            return ()
        with self.quarantine.database.read() as session:
            found = self._read(session)
        return found if every else _counting(found)

    def revoke(self, number: int, *, by: str, reason: str) -> Rule:
        """Take a rule back, with a line in the audit log.

        What came in by it stays where it is: an audit (``scan``) judges it without the rule.

        Parameters
        ----------
        number
            Of the rule.
        by, reason
            Who decided, and why.

        Raises
        ------
        RuleError
            If there is no such rule here, it is revoked already, or its row is not as the log says.
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
                who = printable(str(row.revoked_by), SHOWN)
                msg = f"rule {number} was revoked by {who!r} on {row.revoked_at} already."
                raise RuleError(msg)
            changes.revoke_rule(row, by)
            return _to_rule(row)

        return self.quarantine.log.change(work, by=by, note=lambda rule: f"{rule.told()}: {reason}")

    def in_force(self) -> tuple[Rule, ...]:
        """Return the rules that count for what is on its way through this quarantine, oldest first.

        Asked with every batch: a look at whether the database has changed, as reads take one, and
        if so one query by an index; rules are read again once one was made or revoked.

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
                if known is None or known[1] != position:
                    rules = tuple(rule for rule in self._read(session) if self._counts(rule))
                else:
                    rules = known[2]
            self._known = known = version, position, rules
        return _counting(known[2])

    def _read(self, session: Session) -> tuple[Rule, ...]:
        """Return all rules that are seen from here, and which of them the log vouches for."""
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

    def _counts(self, rule: Rule) -> bool:
        """Return whether a rule is of this very store, or of all stores."""
        return rule.store in (None, self.quarantine.store)


def _counting(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    now = _now()
    return tuple(rule for rule in rules if rule.standing(now) is Standing.IN_FORCE)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _checked_kind(kind: str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        msg = (
            f"the kind of a rule is {printable(str(kind), SHOWN)!r}, expected one of "
            f"{', '.join(map(repr, map(str, Kind)))}."
        )
        raise RuleError(msg) from None


def _checked_text(what: str, text: object) -> str:
    """Return a text that every database keeps as it is."""
    expected = f"expected a str of 1 to {LONGEST} characters"
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        how = f"of {len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
        msg = f"{what} of a rule is {how}, {expected}, not blank."
        raise RuleError(msg)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        msg = f"{what} of a rule holds NUL or half of a surrogate pair, {expected} without these."
        raise RuleError(msg)
    return text


def _checked_value(kind: Kind, value: object) -> str:
    text = _checked_text("the value", value)
    if kind is Kind.OWN_PHRASE and not Phrase(text).words:
        msg = f"the phrase {printable(text, SHOWN)!r} has no word, expected one at least."
        raise RuleError(msg)
    return text


def _checked_detectors(kind: Kind, detectors: Sequence[str] | None) -> str | None:
    if detectors is None:
        return None
    if isinstance(detectors, str) or not detectors:
        msg = (
            f"detectors of a rule is {printable(repr(detectors), SHOWN)}, expected a list of "
            "names, or None for the usual ones."
        )
        raise RuleError(msg)
    names = [_checked_text("a detector", name) for name in dict.fromkeys(detectors)]
    odd = next((name for name in names if name not in LOCAL), None)
    if kind is Kind.OWN_PHRASE and odd is not None:
        msg = (
            f"{printable(odd, SHOWN)!r} does not say where in a text it finds something, or is not "
            f"to be excused by a phrase; expected some of {', '.join(sorted(LOCAL))}."
        )
        raise RuleError(msg)
    return json.dumps(names)


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
        kind=Kind(row.kind),
        value=row.value,
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
