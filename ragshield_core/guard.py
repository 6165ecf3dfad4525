"""The guard: detectors with their calibration, a policy and a quarantine."""

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
from ragshield_core.origin import Origins
from ragshield_core.screening.screening import overruled
from ragshield_core.sharing.lease import DEFAULT_LEASE

if TYPE_CHECKING:
    from ragshield_core.calibration.calibrator import Calibrator
    from ragshield_core.hooks import Notified
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.sharing.shared_writes import SharedWrites, Whole

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

G = TypeVar("G", bound="Guard")
# Methods that a quarantine must have; the class itself is imported only when needed.
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
        Receives held entries; the default is the SQLite file ``ragshield.db`` in the working
        directory, created when the first entry is held.
    seed
        Random seed of the parts that :meth:`fit` holds out.

    Attributes
    ----------
    calibration
        The thresholds in force, with methods to borrow or refresh a calibration.
    sources
        Questions about sources with far more held entries than accepted, and people's answers.
    origins
        The keys that may vouch for entries, an :class:`~ragshield_core.origin.Origins`; set it in
        each process, or in the settings. By default there are none, and origin changes nothing.
    judge, writes, state
        Parts that guarded stores use besides the methods.

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
        self.origins = Origins()
        self._notifier: Notified | None = None
        self._warned = False  # whether it has warned that it is not calibrated

    @classmethod
    def _of(cls, guard_state: GuardState, writes: Writes) -> Self:
        """Return a guard with a state that was built before."""
        guard = cls.__new__(cls)
        guard._begin(guard_state, writes)  # noqa: SLF001 - of this class
        return guard

    @property
    def quarantine(self) -> Quarantine:
        """Held entries of the whole namespace, or of one store once the guard belongs to it."""
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

        A detector that lacks labels or a package takes no part: :attr:`Report.skipped` lists it,
        with the reason.

        Parameters
        ----------
        fpr
            Accepted share of clean entries that are quarantined, by all detectors together. In
            force once the guard is calibrated, see :meth:`calibrate`; before, each detector uses
            its default threshold.
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
    def open(  # noqa: PLR0913 - options of the guard, its database and its log
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
        """Return a guard that keeps its knowledge, quarantine and log in a database.

        All processes that open the same database and namespace share one guard: each applies the
        changes of the others at its next screening, and no knowledge is lost when a process ends.
        There is no need to save.

        Parameters
        ----------
        url
            SQLAlchemy database URL: ``"sqlite:///guard.db"`` for processes on one host, PostgreSQL
            for processes on several hosts.
        namespace
            Name of a tenant, isolated from the others in the same database.
        detectors
            For a new guard: its detectors; the default is every built-in one. For an existing
            guard: all of them, with the same options; needed only if one is not registered.
        policy, fpr, seed
            For a new guard, as for the constructor and :meth:`default`; ``policy`` overrides
            ``fpr``.
        lease
            Seconds of silence after which a process counts as crashed, and others recover its
            writes; the same in every process. The default is 30.
        audit_key, anchor
            As for :class:`ragshield_core.Quarantine`.
        calibration_of
            For a new guard: another namespace of the database, whose current calibration it
            borrows; ``guard.calibration.borrow`` does so later.

        Raises
        ------
        StateError
            If an existing guard has other detectors or damaged snapshots; if the given detectors
            learn for another opened guard; or if the namespace in ``calibration_of`` has no
            guard.
        CalibrationError
            If that guard is not calibrated, or its calibration does not fit.
        QuarantineError
            If the database cannot be used, was written with another key or set back to an earlier
            state, or the namespace is not a valid name.

        Examples
        --------
        >>> from ragshield_core import Batch
        >>> guard = Guard.open("sqlite://")  # in memory: for tests
        >>> guard.learn(Batch.of(ids=["a"], texts=["hi"], embeddings=[[1, 0]]))
        >>> guard.status().position  # after that of its making
        2
        """
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415
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
            whole = sharing.latest()  # written by a faster process
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
        r"""Open a guard as configured by a file and the environment; see :meth:`open`.

        Parameters
        ----------
        path
            Path of the file; ``None``, the default, for the path in ``RAGSHIELD_CONFIG``, or else
            ``ragshield.toml`` in the working directory, if it exists. Environment variables
            override the file, see :class:`ragshield_core.settings.Settings`.
        detectors
            Your own detectors, instead of the configured ones.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or has an invalid value.
        ImportError
            If a configured detector lacks a package.

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
        guard.origins = settings.known_origins()
        return guard if notifier is None else guard.notify(notifier)

    @classmethod
    def _going_on(
        cls,
        sharing: SharedWrites,
        whole: Whole,
        detectors: Sequence[Detector | type[Detector]],
    ) -> Self:
        """Return an existing guard, for one more process."""
        guard_state = GuardState.from_parts(whole.values, whole.arrays, detectors)
        guard = cls._of(guard_state, sharing.of(guard_state))
        whole.arrays.clear()  # the guard has copies, and they are large
        state.give_back()
        # A guard that finds neighbours in the store reads on once the store is connected.
        sharing.start(whole, read_on=guard_state.complete)
        return guard

    @classmethod
    def _lent_by(cls, sharing: SharedWrites, detectors: Sequence[Detector]) -> Calibrator:
        """Open the guard of another namespace, and return its calibration."""
        sharing.check()
        whole = sharing.latest()
        if whole is None:
            msg = (
                f"there is no guard in {sharing!r}, expected one whose calibration can be taken "
                "over; name the namespace of one, or leave calibration_of out."
            )
            raise StateError(msg)
        try:
            # With separate detectors: they learn the entries of the other guard.
            own = copied_for(whole.values["detectors"], detectors)
            return cls._going_on(sharing, whole, own).state.calibrator
        finally:
            sharing.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop taking part, and close the connections of an opened guard.

        ``with Guard.open(...) as guard:`` closes it as well.
        """
        self.writes.close()
        for detector in self.detectors:  # another guard may be opened with them
            _USED.pop(id(detector), None)

    @property
    def policy(self) -> Policy:
        """The policy; :meth:`calibrate` replaces it when given another rate."""
        return self.state.calibrator.policy

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean entries rather than from default thresholds."""
        return self.state.calibrated

    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> Self:
        """Let detectors embed suspicious sentences with the knowledge base's own model.

        Guarded stores pass their model themselves. For a guard without a store, call this before
        :meth:`fit` or :meth:`adopt`.

        Parameters
        ----------
        embed
            Returns a vector for each text of a list, such as ``embeddings.embed_documents`` of
            LangChain. With ``None``, detectors that need it are skipped.

        Raises
        ------
        StateError
            If a detector has learned with another model.

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
        """Notify people of held groups, long queues and failing detectors.

        Parameters
        ----------
        notifier
            Called after each write through this guard, in this process; ``None`` ends the
            notices.

        Examples
        --------
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import CliqueDetector
        >>> from ragshield_core.tools.review.notifications import Notifier
        >>> guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
        >>> guard = guard.notify(Notifier([print], group=5))
        """
        check_type("notifier", notifier, ("screened", "asked"), "a Notifier: Notifier([print])")
        self._notifier = notifier
        return self

    def status(self) -> GuardStatus:
        """Return the status of the guard: its knowledge, calibration and concerns.

        If the database cannot be used, ``unreachable`` of the status says why.
        """
        held, alerts, standing, unreachable = 0, 0, None, None
        try:
            if self.quarantine.exists():
                held, alerts = self.quarantine.count(), self.quarantine.open_alerts()
        except QuarantineError as error:
            unreachable = str(error)
        with self.state.lock:
            try:  # under the lock, so that the position matches the knowledge
                standing = self.writes.standing()
            except (QuarantineError, StateError) as error:  # StateError: it was tampered with
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
                contradictions=alerts,
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
        """Change the handling of failing detectors, in all processes that share the guard.

        Parameters
        ----------
        fail_open, time_budget
            As for :class:`Policy`; the default changes nothing.
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
        """Learn the current knowledge base; replaces all earlier knowledge.

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
        """Set thresholds from clean entries and the accepted false-positive rate.

        Parameters
        ----------
        clean
            Entries known to be clean that the guard was not fitted on. ``None`` uses the
            fitted entries, each scored while it was held out; without a fit, the entries that the
            guard has learned so far, which are unvetted.
        fpr
            Accepted share of clean entries to be quarantined, by all detectors together; replaces
            ``policy.quarantine_at``. ``None`` keeps that rate.
        at_most
            Largest acceptable rate if there are too few clean entries for ``fpr``: the smallest
            rate that they justify is used, with a warning in the log, and stays the policy's rate
            until another ``fpr`` is given. ``None`` raises an error instead.

        Raises
        ------
        NotFittedError
            If nothing was fitted.
        CalibrationError
            If there are too few clean entries for the rate; says how many are needed. The guard
            does not change.

        Notes
        -----
        A detector that judged too few of the entries for its share of the rate is left out; every
        report lists it as skipped.
        """
        confirmed = self.quarantine.confirmed_ids() if clean is None else ()
        with self.writes.replaced():
            self.state.recalibration.calibrate(clean, fpr, at_most, confirmed)
        return self

    def adopt(self, batch: Batch, *, at_most: float | None = None) -> Self:
        """Learn an unvetted knowledge base, and calibrate on it.

        Like :meth:`fit` and :meth:`calibrate`, but a few per cent of the entries may be poisoned:
        the usual values are measured so that these entries hardly move them, and outliers do not
        count as clean, and are watched instead of trusted. They stay in the store until a reviewer
        finds them, see :func:`ragshield_core.tools.audit.scan`, or the rest of their group
        arrives.

        Parameters
        ----------
        batch
            The knowledge base.
        at_most
            As for :meth:`calibrate`.

        Notes
        -----
        With too few entries for a calibration, the guard begins as if empty: detectors that must
        first learn the usual values wait until the knowledge base has grown.
        """
        confirmed = self.quarantine.confirmed_ids()
        with self.writes.replaced():
            self.state.recalibration.adopt(batch, at_most, confirmed)
            self.state.vouched_for()
        return self

    def screen(self, batch: Batch, *, replacing: Collection[str] = ()) -> Report:
        """Judge entries without learning them, after catching up with other processes.

        Findings that a rule excuses are left out of the decisions, whose notes say so; see
        :class:`ragshield_core.tools.rules.Rules`.

        Parameters
        ----------
        batch
            New entries, or new revisions of known ones.
        replacing
            Ids of known entries that will leave once the batch is written, e.g. the chunks of an
            earlier version of a document. Similarity between old and new version is no evidence
            against either. Ids in the batch itself need not be listed.

        Returns
        -------
        Report
            One decision per entry, in the order of the batch.

        Raises
        ------
        InvalidBatchError
            If the dimension of the vectors differs from that of the knowledge base.
        """
        return self.judge.screen(batch, replacing)

    # Knowledge

    @property
    def n_known(self) -> int:
        """Number of known entries."""
        return len(self.state.knowledge)

    def admit(self, report: Report) -> None:
        """Learn the entries that a report admits; costs O(batch).

        Call it once per report, after they are written. Before it admits a new revision of a known
        entry, :meth:`forget` the old one.
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
            Entries with the vectors with which they were learned; unknown entries are ignored. The
            guard uses the labels that it learned, because a live document may have new ones.
        """
        if len(entries):
            self.writes.happened(Change.FORGOTTEN, entries=entries)

    def trust(self, ids: Sequence[str]) -> None:
        """Record that a person has judged entries good: no later batch condemns them."""
        if ids:
            self.writes.happened(Change.TRUSTED, ids=tuple(ids))

    def hold(self, report: Report, *, by: str = "ragshield") -> Report:
        """Put the quarantined entries of a report into the quarantine, durably.

        Call it between :meth:`screen` and the write of the admitted entries. Earlier decisions of
        people have priority: an entry that was released, under the same id and unchanged, is
        admitted, and one that was confirmed as poisoned, unchanged under any id, is quarantined.

        Parameters
        ----------
        report
            From :meth:`screen`.
        by
            Name of the person or program that holds them, for the log.

        Returns
        -------
        Report
            The report, with earlier decisions of people.

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
        """Hold the quarantined entries, and record the decisions."""
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
        """Tell tools and the notifier of the decisions."""
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
            The stored entries.
        decisions
            Decisions against them, one per entry.
        delete
            Called with the ids that must leave the store, once they are held durably.
        by
            Name of the person or program that recalls them, for the log.

        Returns
        -------
        tuple[str, ...]
            The ids that left; entries that a person released before, or that rules excuse, stay.
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
        """Write the guard's state into a folder, as JSON and npz with checksums, never pickle.

        The quarantine is a separate database and is not saved. An existing state in the folder is
        replaced in one step: a crash leaves the old one.

        Parameters
        ----------
        path
            The folder.
        detectors
            The detectors that :meth:`load` will get: those that are not registered, or have
            state that cannot be saved.

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
            Classes of detectors that are not registered, and detectors with unsaved state, such as
            a classifier, with the same options as when the guard was saved.

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


# Opened guards by the ids of their learning detectors; a guard keeps its detectors alive.
_USED: weakref.WeakValueDictionary[int, Guard] = weakref.WeakValueDictionary()


def _log_held(report: Report, rows: Sequence[int]) -> None:
    """Log the number of quarantined entries, and the reason for each suspect."""
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
    """Register the detectors of an opened guard as its own."""
    _USED.update({id(detector): guard for detector in guard.detectors if learns(detector)})
    return guard


def _check_unused(detectors: Sequence[Detector]) -> None:
    """Refuse detectors that learn for another opened guard: they would mix two tenants."""
    used = next((one for one in detectors if id(one) in _USED), None)
    if used is not None:
        msg = (
            f"the detector {used.name!r} learns for another guard that was opened in this process; "
            f"make one for each: {type(used).__name__}()."
        )
        raise StateError(msg)


def _check_same(saved: Sequence[Mapping[str, Any]], detectors: Sequence[Detector] | None) -> None:
    """Refuse to open a guard with detectors that differ from its own."""
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
