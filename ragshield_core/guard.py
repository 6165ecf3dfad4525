"""The guard: detectors, their calibration, a policy and a quarantine, put together."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from ragshield_core import state
from ragshield_core.calibration.arrivals import Counted
from ragshield_core.detectors.base import Detector, learns
from ragshield_core.detectors.registry import (
    BUILT_IN,
    built_in_detectors,
    check_detectors,
    check_loadable,
    copied_for,
    kind_of,
)
from ragshield_core.hooks import answered, tools
from ragshield_core.learning.calibration import CalibrationInForce, Sources
from ragshield_core.learning.events import Change
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.judge import Judge
from ragshield_core.learning.status import GuardStatus, since_calibration
from ragshield_core.learning.writes import Writes
from ragshield_core.model.arguments import check_names, check_type
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import PoisonedEntryError, QuarantineError, StateError
from ragshield_core.model.findings import Decision, Report, Skipped, Verdict, accusers, printable
from ragshield_core.model.policy import Policy
from ragshield_core.screening.screening import overruled

if TYPE_CHECKING:
    from ragshield_core.calibration.calibrator import Calibrator
    from ragshield_core.hooks import Notified
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.sharing.shared_writes import SharedWrites, Whole

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

G = TypeVar("G", bound="Guard")
# What a guard asks of a quarantine: it is not imported before it is needed.
QUARANTINE_METHODS = ("hold", "held_ids", "released_among", "confirmed_among")


class Guard:
    """Screen entries on their way into a knowledge base.

    Parameters
    ----------
    detectors
        At least one; names must differ.
    policy
        Thresholds and actions; the default quarantines at an expected 1 % of clean entries once
        calibrated, and by the default thresholds before.
    quarantine
        Where held entries go; the default is the SQLite file ``ragshield.db`` in the working
        directory, made when the first entry is held.
    seed
        Of the parts held out by :meth:`fit`.

    Attributes
    ----------
    calibration
        The thresholds in force; borrows the calibration of another guard, or takes its own anew.
    sources
        Questions about sources of which far more is held than accepted, and people's answers.
    judge, writes, state
        What guarded stores use beside the methods.

    Examples
    --------
    >>> from ragshield_core import Batch, Quarantine
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> guard = Guard([LabelCentroidDetector(min_entries=1)], quarantine=Quarantine("sqlite://"))
    >>> knowledge_base = Batch.of(ids=["a", "b"], texts=["hi", "win!"], labels=["ham", "spam"],
    ...                           embeddings=[[1, 0], [0, 1]])
    >>> new = Batch.of(ids=["c"], texts=["hello"], labels=["spam"], embeddings=[[1, 0.1]])
    >>> report = guard.fit(knowledge_base).screen(new)
    >>> report.decisions[0].verdict
    <Verdict.QUARANTINE: 'quarantine'>
    """

    def __init__(
        self,
        detectors: Sequence[Detector],
        *,
        policy: Policy | None = None,
        quarantine: Quarantine | None = None,
        seed: int = 0,
    ) -> None:
        check_detectors(detectors)
        check_type("policy", policy, Policy, "a Policy, such as Policy()")
        check_type("quarantine", quarantine, QUARANTINE_METHODS, "a Quarantine: Quarantine(url)")
        check_names([detector.name for detector in detectors])
        guard_state = GuardState(detectors, policy if policy is not None else Policy(), seed)
        self._begin(guard_state, Writes(guard_state, _or_default(quarantine)))

    def _begin(self, guard_state: GuardState, writes: Writes) -> None:
        self.state, self.writes = guard_state, writes
        self.judge = Judge(guard_state, self.writes)
        self.calibration = CalibrationInForce(guard_state, self.writes)
        self.sources = Sources(guard_state, self.writes, self.judge)
        self._notifier: Notified | None = None
        self._warned = False  # that it is not calibrated

    @classmethod
    def _of(cls, guard_state: GuardState, writes: Writes) -> Self:
        """Return a guard with a state that was built before."""
        guard = cls.__new__(cls)
        guard._begin(guard_state, writes)  # noqa: SLF001 - of this very class
        return guard

    @property
    def quarantine(self) -> Quarantine:
        """Where held entries go: all of the namespace, or of one store once the guard is of one."""
        return self.writes.quarantine

    @quarantine.setter
    def quarantine(self, quarantine: Quarantine) -> None:
        self.writes.quarantine = quarantine

    @property
    def detectors(self) -> tuple[Detector, ...]:
        """The detectors, in the order in which they were given."""
        return self.state.detectors

    def __repr__(self) -> str:
        how = "calibrated" if self.calibrated else "not calibrated"
        names = ", ".join(detector.name for detector in self.detectors)
        return f"<Guard {self.n_known} entries known, {how}: {names}; {self.quarantine!r}>"

    @classmethod
    def default(
        cls, fpr: float = 0.01, *, quarantine: Quarantine | None = None, seed: int = 0
    ) -> Self:
        """Return a guard with every built-in detector.

        A detector takes part where it has what it needs; one that lacks labels, or a package, is
        named among :attr:`Report.skipped`, with the reason.

        Parameters
        ----------
        fpr
            Accepted share of clean entries that are quarantined, by all detectors together. In
            force once the guard is calibrated, see :meth:`calibrate`; before, each detector goes
            by its default threshold.
        quarantine, seed
            As for the constructor.

        Examples
        --------
        >>> from ragshield_core import Quarantine
        >>> guard = Guard.default(fpr=0.01, quarantine=Quarantine("sqlite://"))
        >>> "clique" in [detector.name for detector in guard.detectors]
        True
        """
        detectors, missing = built_in_detectors()
        guard = cls(detectors, policy=Policy(quarantine_at=fpr), quarantine=quarantine, seed=seed)
        guard.state.left_out = tuple(missing)
        return guard

    @classmethod
    def open(  # noqa: PLR0913 - of the guard, its database and its log
        cls,
        url: str,
        namespace: str = "default",
        *,
        detectors: Sequence[Detector] | None = None,
        policy: Policy | None = None,
        fpr: float = 0.01,
        seed: int = 0,
        lease: float | None = None,
        audit_key: str | bytes | None = None,
        anchor: Callable[[str], object] | None = None,
        calibration_of: str | None = None,
    ) -> Self:
        """Return a guard whose knowledge, quarantine and log are in a database.

        Whoever opens the same database and namespace, in whichever process, has the same guard:
        what one learns, holds or forgets, the others know at their next screening, and what a
        process has learned is not lost with it. Nothing has to be saved.

        Parameters
        ----------
        url
            SQLAlchemy database URL: ``"sqlite:///guard.db"`` for processes of one host, PostgreSQL
            for those of several.
        namespace
            Of a tenant: others in the same database are not seen.
        detectors
            Of a guard that is not there yet; the default is every built-in one. Of one that is,
            the same with the same options, as far as they are not registered.
        policy, fpr, seed
            Of a guard that is not there yet, as for the constructor and :meth:`default`; ``policy``
            is meant where both are given.
        lease
            Seconds without a sign of life after which a process counts as crashed, and others
            recover its writes; the same in every process. The default is 30.
        audit_key, anchor
            As of :class:`ragshield_core.Quarantine`.
        calibration_of
            Of a guard that is not there yet: another namespace of the database, whose calibration
            it takes over as it is now; ``guard.calibration.borrow`` does so later.

        Raises
        ------
        StateError
            If the guard that is there has other detectors, or its snapshots are damaged; if those
            that are given learn for another opened guard; or if there is none whose calibration
            could be taken over.
        CalibrationError
            If that one is not calibrated, or in another way.
        QuarantineError
            If the database cannot be used, was written with another key or set back to an earlier
            state, or the namespace is no name.

        Examples
        --------
        >>> from ragshield_core import Batch
        >>> guard = Guard.open("sqlite://")  # in memory: for tests
        >>> guard.learn(Batch.of(ids=["a"], texts=["hi"], embeddings=[[1, 0]]))
        >>> guard.status().position  # after that of its making
        2
        """
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415
        from ragshield_core.sharing.journal import DEFAULT_LEASE  # noqa: PLC0415 - SQLAlchemy
        from ragshield_core.sharing.shared_writes import SharedWrites  # noqa: PLC0415

        if detectors is not None:
            check_detectors(detectors)
            _check_unused(detectors)
        quarantine = Quarantine(url, namespace=namespace, audit_key=audit_key, anchor=anchor)
        lease = DEFAULT_LEASE if lease is None else lease
        sharing = SharedWrites(quarantine, lease=lease)
        sharing.check()
        whole = sharing.latest()
        if whole is None:
            policy = policy if policy is not None else Policy(quarantine_at=fpr)
            missing: Sequence[Skipped] = ()
            if (own := detectors) is None:
                own, missing = built_in_detectors()
            guard = cls(own, policy=policy, quarantine=quarantine, seed=seed)
            guard.state.left_out = tuple(missing)
            check_loadable(guard.detectors, detectors or ())
            if calibration_of is not None:
                lender = SharedWrites(quarantine, calibration_of, lease=lease)
                guard.state.recalibration.borrow(cls._lent_by(lender, own), ())
            guard._begin(guard.state, sharing.of(guard.state))
            if sharing.found():
                return _used(guard)
            whole = sharing.latest()  # of who was faster
            if whole is None:
                msg = (
                    f"the journal of namespace {namespace!r} is there, and none of its snapshots: "
                    "the database was damaged or changed by hand; restore it from a backup, or fit "
                    "the guard again in another namespace."
                )
                raise StateError(msg)
        _check_same(whole.values["detectors"], detectors)
        return _used(cls._going_on(sharing, whole, detectors or ()))

    @classmethod
    def from_config(
        cls, path: str | Path | None = None, *, detectors: Sequence[Detector] | None = None
    ) -> Self:
        r"""Return a guard as a file and the environment describe it, see :meth:`open`.

        Parameters
        ----------
        path
            Of the file; ``None``, the default, for the one that ``RAGSHIELD_CONFIG`` names, or else
            ``ragshield.toml`` in the working directory, if it is there. Environment variables are
            stronger, see :class:`ragshield_core.settings.Settings`.
        detectors
            Of your own, in place of those that are named there.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or has a value that is none.
        ImportError
            If a detector that is named there lacks a package.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "ragshield.toml"
        >>> text = 'database = "sqlite://"\ndetectors = ["clique", "instruction"]\n'
        >>> _ = file.write_text(text)
        >>> guard = Guard.from_config(file)
        >>> [detector.name for detector in guard.detectors]
        ['clique', 'instruction']
        """
        from ragshield_core.settings import Settings  # noqa: PLC0415 - pydantic-settings, SQLAlchemy

        settings = Settings.read(path)
        if detectors is None and settings.detectors is not None:
            detectors = [BUILT_IN[kind]() for kind in settings.detectors]
        notifier = tools().notifier(settings=settings)
        if settings.webhook is not None:
            answered(notifier, "webhook")
        guard = cls.open(
            settings.database,
            settings.namespace,
            detectors=detectors,
            policy=settings.policy,
            lease=settings.lease,
            calibration_of=settings.calibration_of,
        )
        return guard if notifier is None else guard.notify(notifier)

    @classmethod
    def _going_on(
        cls,
        sharing: SharedWrites,
        whole: Whole,
        detectors: Sequence[Detector | type[Detector]],
    ) -> Self:
        """Return a guard that is there, as one process more."""
        guard_state = GuardState.from_parts(whole.values, whole.arrays, detectors)
        guard = cls._of(guard_state, sharing.of(guard_state))
        whole.arrays.clear()  # the guard has its own, and they are large
        state.give_back()
        # Who finds neighbours in the store reads on once that is at hand.
        sharing.start(whole, read_on=guard_state.complete)
        return guard

    @classmethod
    def _lent_by(cls, sharing: SharedWrites, detectors: Sequence[Detector]) -> Calibrator:
        """Return the calibration of another namespace, whose guard is opened for it."""
        sharing.check()
        whole = sharing.latest()
        if whole is None:
            msg = (
                f"there is no guard in {sharing!r}, expected one whose calibration can be taken "
                "over; name the namespace of one, or leave calibration_of out."
            )
            raise StateError(msg)
        try:
            # With detectors that nobody else uses: they learn what is known there.
            own = copied_for(whole.values["detectors"], detectors)
            return cls._going_on(sharing, whole, own).state.calibrator
        finally:
            sharing.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no part any more, and give the connections of an opened guard back.

        ``with Guard.open(...) as guard:`` closes it as well.
        """
        self.writes.close()
        for detector in self.detectors:  # which another may be opened with
            _USED.pop(id(detector), None)

    @property
    def policy(self) -> Policy:
        """Thresholds and actions; :meth:`calibrate` replaces it when given another rate."""
        return self.state.calibrator.policy

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean entries rather than from default thresholds."""
        return self.state.calibrated

    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> Self:
        """Let detectors embed suspicious sentences with the knowledge base's own model.

        Guarded stores hand over theirs. Give it here before :meth:`fit` and :meth:`adopt` of a
        guard that is fitted without a store.

        Parameters
        ----------
        embed
            From a list of texts to a vector each, such as ``embeddings.embed_documents`` of
            LangChain. ``None`` turns it off: detectors that need it are named as skipped.

        Raises
        ------
        StateError
            If what a detector has learned is of another model.

        Examples
        --------
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import OrderDetector
        >>> guard = Guard([OrderDetector()], quarantine=Quarantine("sqlite://"))
        >>> guard.use_embedder(lambda texts: [[1.0, 0.0] for _ in texts]).detectors[0].lacks()
        """
        self.state.use_embedder(embed)
        return self

    def notify(self, notifier: Notified | None) -> Self:
        """Tell people of groups that are held, of long queues and of detectors that fail.

        Parameters
        ----------
        notifier
            Told after each write that went through this guard, in this process; ``None`` tells
            nobody any more.

        Examples
        --------
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import CliqueDetector
        >>> from ragshield_core.tools.review.notifications import Notifier
        >>> guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
        >>> guard = guard.notify(Notifier([print], group=5))
        """
        check_type("notifier", notifier, ("screened", "tell"), "a Notifier: Notifier([print])")
        self._notifier = notifier
        return self

    def status(self) -> GuardStatus:
        """Return how the guard stands: what it knows and goes by, and what to look at.

        Where the database cannot be used, that is a part of the answer (``unreachable``).
        """
        held, standing, unreachable = 0, None, None
        try:
            held = self.quarantine.count() if self.quarantine.exists() else 0
        except QuarantineError as error:
            unreachable = str(error)
        with self.state.lock:
            try:  # here, so that the position is that of what is known
                standing = self.writes.standing()
            except (QuarantineError, StateError) as error:  # the latter: it was changed
                unreachable = str(error)
            calibrator, recalibration = self.state.calibrator, self.state.recalibration
            shared: dict[str, Any] = {} if standing is None else standing._asdict()
            if not self.calibrated:
                shared.pop("calibrated_on", None)
            names = [detector.name for detector in self.detectors]
            why_not = self.state.force()
            why_not |= {skipped.detector: skipped.reason for skipped in self.state.left_out}
            rate, sample = self.policy.quarantine_at, calibrator.sample
            return GuardStatus(
                **shared,
                pending=sum(one.n_events for one in shared.get("writers", ())),
                held=held,
                **since_calibration(calibrator.arrivals, rate, names, why_not),
                n_known=self.n_known,
                calibrated=self.calibrated,
                calibrated_at=calibrator.calibrated_at if self.calibrated else None,
                next_at=recalibration.next_at,
                n_sample=0 if sample is None else len(sample),
                vetted=sample is not None and sample.vetted,
                wanted_rate=recalibration.wanted_rate,
                doubted=self.state.doubted(),
                power=self.state.power,
                failing=self.state.knowledge.missed | self.state.failing,
                unscreened=len(self.state.known_unscreened()),
                borrowed=calibrator.borrowed is not None,
                unreachable=unreachable,
                neighbors=self.state.where_in_words(),
            )

    def change_policy(
        self, *, fail_open: bool | None = None, time_budget: float | Literal["keep"] | None = "keep"
    ) -> Self:
        """Change what happens where detectors fail, for all that share the guard.

        Parameters
        ----------
        fail_open, time_budget
            As of :class:`Policy`; the default changes nothing.
        """
        changed: dict[str, Any] = {} if fail_open is None else {"fail_open": fail_open}
        if time_budget != "keep":
            changed["time_budget"] = time_budget
        policy = Policy.model_validate(self.policy.model_dump() | changed)
        with self.writes.replaced():
            self.state.calibrator.policy = policy
        return self

    def fit(
        self,
        batch: Batch,
    ) -> Self:
        """Learn the knowledge base as it stands; replaces what was learned before.

        Entries are also scored while held out in turn, so that :meth:`calibrate` needs no
        other sample.

        Parameters
        ----------
        batch
            The knowledge base, believed to be clean.
        """
        with self.writes.replaced():
            self.state.recalibration.fit(batch)
            self.state.vouched_for()
        return self

    def calibrate(
        self,
        clean: Batch | None = None,
        fpr: float | None = None,
        *,
        at_most: float | None = None,
    ) -> Self:
        """Take thresholds from clean entries and the false-positive rate that is accepted.

        Parameters
        ----------
        clean
            Entries known to be clean that the guard was not fitted on. ``None`` uses the
            fitted entries, each scored while it was held out; where nothing was fitted, what the
            guard has learned so far, which nobody has vouched for.
        fpr
            Accepted share of clean entries to be quarantined, by all detectors together; replaces
            ``policy.quarantine_at``. ``None`` keeps that.
        at_most
            Where there are too few clean entries for the rate, the smallest rate that they can
            justify is taken instead, with a warning in the log, if it is not larger than this; it
            stays the policy's until another ``fpr`` is given. ``None`` refuses.

        Raises
        ------
        NotFittedError
            If nothing was fitted.
        CalibrationError
            If there are too few clean entries to honour the rate; names how many would do. The
            guard stays as it was.

        Notes
        -----
        A detector that judged too few of the entries for its share of the rate is left out; every
        report names it among the skipped.
        """
        confirmed = self.quarantine.confirmed_ids() if clean is None else ()
        with self.writes.replaced():
            self.state.recalibration.calibrate(clean, fpr, at_most, confirmed)
        return self

    def adopt(self, batch: Batch, *, at_most: float | None = None) -> Self:
        """Learn and calibrate on a knowledge base that nobody has vouched for.

        As :meth:`fit` and :meth:`calibrate`, but a few per cent of the entries may be poisoned:
        what is usual is measured so that they hardly move it, and entries that are far from
        everything usual do not count as clean, and are watched instead of trusted. They stay where
        they are until a reviewer looks, see :func:`ragshield_core.tools.audit.scan`, or the rest of
        their group comes.

        Parameters
        ----------
        batch
            The knowledge base.
        at_most
            As of :meth:`calibrate`.

        Notes
        -----
        With too few entries for a calibration the guard begins as it does with nothing: detectors
        that have to know first what is usual wait until the knowledge base has grown.
        """
        confirmed = self.quarantine.confirmed_ids()
        with self.writes.replaced():
            self.state.recalibration.adopt(batch, at_most, confirmed)
            self.state.vouched_for()
        return self

    def screen(self, batch: Batch, *, replacing: Collection[str] = ()) -> Report:
        """Judge entries, which the guard does not learn by it; it catches up with others before.

        Findings that a rule excuses are left out of the decisions, whose notes say so; see
        :class:`ragshield_core.tools.rules.Rules`.

        Parameters
        ----------
        batch
            New entries, or new revisions of known ones.
        replacing
            Ids of known entries that will leave once the batch is written, e.g. the chunks of an
            earlier version of a document. What a new version resembles them by is no evidence
            against it, nor is it against them; an id that the batch has itself need not be named.

        Returns
        -------
        Report
            One decision per entry, in the order of the batch.

        Raises
        ------
        InvalidBatchError
            If the vectors are of another dimension than those of the knowledge base.
        """
        return self.judge.screen(batch, replacing)

    # What is known

    @property
    def n_known(self) -> int:
        """How many entries were learned."""
        return len(self.state.knowledge)

    def admit(self, report: Report) -> None:
        """Learn the entries that a report admits; costs O(batch).

        Call it once per report, after they are written. Of a new revision of a known entry,
        :meth:`forget` the old one first.
        """
        admitted = report.admitted
        self.learn(report.batch if admitted.all() else report.batch.take(admitted))

    def learn(self, entries: Batch) -> None:
        """Learn entries that are in the knowledge base."""
        self.writes.learn(entries)

    def forget(self, entries: Batch) -> None:
        """Forget entries that have left the knowledge base.

        Parameters
        ----------
        entries
            With their vectors as they were learned; those never learned are ignored. Their
            labels the guard remembers, since those of a live document may have been edited.
        """
        if len(entries):
            self.writes.happened(Change.FORGOTTEN, entries=entries)

    def trust(self, ids: Sequence[str]) -> None:
        """Say that a person has judged entries good: no later batch condemns them."""
        if ids:
            self.writes.happened(Change.TRUSTED, ids=tuple(ids))

    def hold(self, report: Report, *, by: str = "ragshield") -> Report:
        """Put the quarantined entries of a report into the quarantine, durably.

        The step between :meth:`screen` and the write of the admitted entries. What a person has
        decided before stands: an entry that was released, under the same id and unchanged, is
        admitted, and one that was confirmed as poisoned, unchanged under any id, is quarantined.

        Parameters
        ----------
        report
            From :meth:`screen`.
        by
            Who holds them, for the record.

        Returns
        -------
        Report
            The report, with earlier decisions of people in it.

        Raises
        ------
        PoisonedEntryError
            If entries are to be quarantined and the policy says ``on_detect="raise"``.
        """
        if missing := report.not_judged():
            logger.warning(
                "%d of %d entries, such as %r, were judged by no detector; the report says why",
                *(len(missing), len(report.batch), printable(missing[0], 80)),
            )
        waits = self.calibrated or self.state.recalibration.collecting
        if self.n_known and not waits and not self._warned:
            self._warned = True
            if self.state.calibrator.possible:
                logger.warning(
                    "not calibrated: detectors go by their default thresholds, and the accepted "
                    "rate of %g is not in force; call calibrate(), or adopt() on what the store "
                    "holds",
                    self.policy.quarantine_at,
                )
        try:
            report = self.writes.together(partial(self._held, report, by))
        except PoisonedEntryError as error:
            tools().decided(stage="ingestion", report=error.report)
            raise
        report = self.judge.with_spent(report)
        self.writes.afterwards(partial(self._tell_decided, report))
        return report

    def _held(self, report: Report, by: str) -> Report:
        """Hold what is to be quarantined, and take note of what was decided."""
        quarantine, policy, raises = self.quarantine, self.policy, self.policy.on_detect == "raise"
        confirmed = quarantine.confirmed_among(report.batch)
        report = overruled(report, confirmed, Verdict.QUARANTINE)
        if report.retroactive and raises:
            raise PoisonedEntryError(report)
        if rows := np.flatnonzero(~report.admitted).tolist():
            if policy.on_shift == "raise":
                asked = {question.source for question in self.sources.questions()}
                if any(report.batch.sources[row] in asked for row in rows):
                    raise PoisonedEntryError(report)
            suspects = report.batch.take(rows)
            decisions = [report.remarkable[row] for row in rows]
            if raises:
                released = quarantine.released_among(suspects, decisions)
            else:
                released = quarantine.hold(suspects, decisions, by=by)
            report = overruled(report, released, Verdict.ADMIT)
            if raises and report.quarantined:
                raise PoisonedEntryError(report)
            if not raises:
                held, accused = report.batch.take(~report.admitted), accusers(report.quarantined)
                self.writes.happened(Change.HELD, entries=held, accused=accused)
                self.writes.afterwards(partial(_log_held, report, rows))
        if self.calibrated:
            self.writes.happened(Change.COUNTED, counted=Counted.of(report))
        failed = {
            d.entry_id: {u.detector: u.reason for u in d.unjudged if u.failed}
            for d in report.remarkable.values()
            if d.unscreened
        }
        if failed:
            self.writes.happened(Change.UNSCREENED, failed=failed)
            names = ", ".join(sorted({name for failures in failed.values() for name in failures}))
            logger.warning(
                "%d of %d entries are let in although %s failed on them, and are screened later",
                *(len(failed), len(report.batch), names),
            )
        return report

    def _tell_decided(self, report: Report) -> None:
        """Tell tools and the notifier what was decided."""
        tools().decided(stage="ingestion", report=report)
        if self._notifier is not None:
            self._notifier.screened(report, self.quarantine)
            self._notifier.asked(self.sources.questions(), self.quarantine)

    def recall(
        self,
        entries: Batch,
        decisions: Sequence[Decision],
        delete: Callable[[Sequence[str]], object],
        *,
        by: str = "ragshield",
    ) -> tuple[str, ...]:
        """Quarantine entries that were admitted earlier; see :attr:`Report.retroactive`.

        Parameters
        ----------
        entries
            As they are in the store.
        decisions
            Why, one per entry.
        delete
            Called with the ids that are to leave the store, once they are held durably.
        by
            Who recalls them, for the record.

        Returns
        -------
        tuple[str, ...]
            The ids that left; what a person has released before stays, and so does what rules
            excuse.
        """
        entries, decisions, _ = self.judge.accused(entries, decisions)
        released = self.quarantine.hold(entries, decisions, by=by)
        gone = entries.take(np.array([i not in released for i in entries.ids], dtype=np.bool_))
        if len(gone):
            delete(gone.ids)
            self.writes.finish(self.writes.intend_recall(gone, decisions))
        return gone.ids

    def save(
        self, path: str | Path, *, detectors: Sequence[Detector | type[Detector]] = ()
    ) -> None:
        """Write what was learned into a folder, as JSON and npz with checksums, never pickle.

        The quarantine is a database of its own and is not part of it. An existing state in the
        folder is replaced in one step: a crash leaves the old one.

        Parameters
        ----------
        path
            The folder.
        detectors
            What :meth:`load` will be given: detectors that are not registered, or that hold
            something that cannot be saved.

        Raises
        ------
        StateError
            If a detector could not be loaded again; nothing is written then.
        """
        check_loadable(self.detectors, detectors)
        with self.state.lock:
            state.write(Path(path), *self.state.to_parts())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        quarantine: Quarantine | None = None,
        detectors: Sequence[Detector | type[Detector]] = (),
    ) -> Self:
        """Return the guard that :meth:`save` wrote.

        Parameters
        ----------
        path
            The folder.
        quarantine
            As for the constructor; it is not saved with the guard.
        detectors
            Classes of detectors that are not registered, and detectors, with the same options as
            when the guard was saved, that hold something that is not saved, such as a classifier.

        Raises
        ------
        StateError
            If files are missing, damaged, changed by hand, or of another format; or if a detector
            is neither registered nor given, or is given with another classifier.
        """
        check_detectors(detectors, classes=True)
        with state.opened(Path(path)) as (values, arrays):
            guard_state = GuardState.from_parts(values, arrays, detectors)
            guard = cls._of(guard_state, Writes(guard_state, _or_default(quarantine)))
        state.give_back()
        return guard


# Of detectors that learn, by their ids: the guard that was opened with them, and keeps them.
_USED: weakref.WeakValueDictionary[int, Guard] = weakref.WeakValueDictionary()


def _log_held(report: Report, rows: Sequence[int]) -> None:
    """Log how many entries were quarantined and, for each suspect, why."""
    logger.warning("quarantined %d of %d entries", len(report.quarantined), len(report.batch))
    if not logger.isEnabledFor(logging.INFO):
        return
    for row in rows:
        entry, decision = report.batch[row], report.remarkable[row]
        evidence = [f"{f.detector} {f.score:.4f}" for f in decision.findings]
        logger.info(
            "%s %r (revision %s): %s",
            decision.verdict,
            entry.id,
            entry.fingerprint,
            ", ".join(evidence) or decision.note or "not judged",
        )


def _used(guard: G) -> G:
    """Note that the detectors of an opened guard are its own."""
    _USED.update({id(detector): guard for detector in guard.detectors if learns(detector)})
    return guard


def _check_unused(detectors: Sequence[Detector]) -> None:
    """Refuse detectors that learn for another opened guard: they would know of two tenants."""
    used = next((one for one in detectors if id(one) in _USED), None)
    if used is not None:
        msg = (
            f"the detector {used.name!r} learns for another guard that was opened in this process; "
            f"make one for each: {type(used).__name__}()."
        )
        raise StateError(msg)


def _check_same(saved: Sequence[Mapping[str, Any]], detectors: Sequence[Detector] | None) -> None:
    """Refuse to open a guard with other detectors than it has."""
    if detectors is None:
        return
    has = sorted(json.dumps([form["kind"], form["config"]], sort_keys=True) for form in saved)
    given = sorted(json.dumps([kind_of(d), d.config()], sort_keys=True) for d in detectors)
    if has != given:
        own, others = [form["kind"] for form in saved], [kind_of(d) for d in detectors]
        msg = (
            f"the guard in this database and namespace has the detectors {', '.join(own)}, and "
            f"those given ({', '.join(others)}) are others or have other options; leave detectors "
            "out, or take another namespace."
        )
        raise StateError(msg)


def _or_default(quarantine: Quarantine | None) -> Quarantine:
    from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy is slow to import

    return Quarantine() if quarantine is None else quarantine
