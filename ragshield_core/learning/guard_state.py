"""All that a guard has learned and goes by, changed by events only, so that processes share it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from ragshield_core.calibration.arrivals import Counted
from ragshield_core.calibration.calibrator import Calibrator, Measured
from ragshield_core.calibration.recalibration import Recalibration
from ragshield_core.detectors.base import Detector, GroupDetector, Need, learns
from ragshield_core.detectors.registry import (
    copied_for,
    detectors_from,
    learned_of,
    saved_detectors,
)
from ragshield_core.learning.connections import Connections
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Report, Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.screening.knowledge import Knowledge

# How often an entry is screened again by itself: where the detector judges others, and fails on it
# time and again, it is the entry's own doing.
TRIES = 3

Failures = Mapping[str, str]  # by detector, what was said


class GuardState:
    """What a guard knows and goes by.

    States that were alike are alike again once the same events were applied to them in the same
    order: the same entries are known, held and trusted, by the same thresholds.

    Parameters
    ----------
    detectors
        With different names.
    policy
        Thresholds and actions.
    seed
        Of the parts that are held out when it is fitted.

    Attributes
    ----------
    lock
        Held by whoever reads or changes the state.
    knowledge
        What the detectors have learned.
    calibrator, recalibration
        Thresholds, and when they are taken anew.
    unscreened
        What was let in although a detector failed on it.
    failing
        Detectors that failed when they were asked last, and how; of this process, and not saved.
    left_out
        Detectors that take no part, and why.
    power
        Share of planted texts that were held when the store was adopted, by the form of the attack.
    connections
        What the store lends; not saved.
    """

    def __init__(self, detectors: Sequence[Detector], policy: Policy, seed: int) -> None:
        self.lock = threading.RLock()
        self.detectors = tuple(detectors)
        self.seed = seed
        self.knowledge = Knowledge(self.detectors)
        self.calibrator = Calibrator(self.knowledge, policy, seed)
        self.recalibration = Recalibration(self.knowledge, self.calibrator)
        self.unscreened = Unscreened()
        self.failing: dict[str, str] = {}
        self.left_out: tuple[Skipped, ...] = ()
        self.power: dict[str, float] = {}
        self.connections = Connections(self.detectors, self.lock)

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean entries rather than from default thresholds."""
        return self.calibrator.calibration is not None

    def apply(self, event: Event) -> None:  # noqa: C901 - a case for each change
        """Change what is known as an event says; the quarantine is neither asked nor changed.

        Parameters
        ----------
        event
            That happened here or elsewhere, or that was read again.

        Raises
        ------
        ValueError
            If it says that the state was replaced as a whole; or, an
            :class:`~ragshield_core.model.errors.InvalidBatchError`, if its entries cannot be
            learned: every guard refuses them then.

        Examples
        --------
        >>> from ragshield_core import Batch, Guard, Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> batch = Batch.of(ids=["a"], texts=["hi"], labels=["ham"], embeddings=[[1, 0]])
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> guard.state.apply(Event(change=Change.LEARNED, entries=batch))
        >>> guard.n_known
        1
        """
        with self.lock:
            match event:
                case Event(change=Change.LEARNED, entries=Batch() as entries):
                    again = self.knowledge.among(entries.ids)
                    self.knowledge.learn(entries)
                    self.recalibration.note_learned(entries, again)
                case Event(change=Change.FORGOTTEN, entries=Batch() as entries):
                    self.knowledge.forget(entries)
                case Event(change=Change.HELD, entries=Batch() as entries):
                    self.recalibration.note_held(entries, event.accused)
                case Event(change=Change.RECALLED, entries=Batch() as entries):
                    self.knowledge.forget(entries)
                    self.calibrator.recalled(entries, event.accused)
                    self.recalibration.note_held(entries, event.accused)
                    self.unscreened.drop(entries.ids)
                case Event(change=Change.CONFIRMED):
                    self.knowledge.note_confirmed(event.entries, event.ids)
                case Event(change=Change.HELD_FORGOTTEN):
                    self.knowledge.forget_held(event.ids)
                case Event(change=Change.TRUSTED):
                    self.recalibration.drop_pending(event.ids)
                    self.knowledge.trust(event.ids)
                    self.unscreened.drop(event.ids)
                case Event(change=Change.UNSCREENED | Change.SCREENED):
                    self.unscreened.add(event.failed)
                    self.unscreened.drop(event.ids)
                case Event(change=Change.COUNTED, counted=Counted() as counted):
                    self.calibrator.count(counted)
                case Event(change=Change.RECALIBRATED, measured=Measured() as measured):
                    self.recalibration.take_measured(measured, event.ids)
                case Event(change=Change.RECALIBRATED):
                    self.recalibration.take_anew(event.ids)
                case _:
                    msg = (
                        f"an event says that a guard was {event.change} and not how, expected one "
                        "of another change, with its entries; load the guard as it was saved then."
                    )
                    raise ValueError(msg)

    # For those who ask how the guard stands

    def force(self) -> dict[str, str | None]:
        """Return, by detector, why it takes no part for now; ``None`` where it does."""
        waiting = self.recalibration.waiting()
        known = self.knowledge.known
        labelled = known.labelled
        why_not: dict[str, str | None] = {}
        for detector in self.detectors:
            name = detector.name
            why_not[name] = waiting[name].reason if name in waiting else None
            if (
                why_not[name] is None
                and len(known)
                and not labelled
                and Need.LABEL in detector.needs
            ):
                why_not[name] = "no entry of the knowledge base has a label"
        return why_not

    def doubted(self) -> dict[str, int]:
        """Return, by detector, how many entries it takes for poison among what it has learned."""
        doubted = {d.name: d.n_doubted() for d in self.detectors if isinstance(d, GroupDetector)}
        return {name: n for name, n in doubted.items() if n}

    # Saving

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all that was learned, as JSON-ready values and arrays."""
        values: dict[str, Any] = {
            "policy": self.calibrator.policy.model_dump(mode="json"),
            "seed": self.seed,
            "dim": self.knowledge.dim,
            "confirmed": self.knowledge.confirmed,
            "unscreened": self.unscreened.state(),
            # For who asks how the guard stands, and has not its detectors.
            "standing": self.force(),
            "doubted": self.doubted(),
            "power": self.power,
            "neighbors": self.connections.where_in_words(),
            "left_out": [[skipped.detector, skipped.reason] for skipped in self.left_out],
        }
        values["detectors"], arrays = saved_detectors(self.detectors)
        for part in (self.knowledge.known, self.calibrator, self.recalibration):
            more, columns = part.state()
            values |= more
            arrays |= columns
        return values, arrays

    @classmethod
    def from_parts(
        cls,
        values: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        detectors: Sequence[Detector | type[Detector]] = (),
    ) -> Self:
        """Return the state that :meth:`to_parts` described.

        Parameters
        ----------
        values, arrays
            As returned there.
        detectors
            Classes that are not registered, and detectors that hold what is not saved.

        Raises
        ------
        StateError
            If a detector is neither registered nor given, or is given with other options.
        """
        own = detectors_from(values["detectors"], detectors)
        restored = cls(own, Policy.model_validate(values["policy"]), values["seed"])
        # First, so that entries come in the order in which they came to be known.
        restored.knowledge.known.restore(values, arrays)
        for detector in restored.knowledge.learners:
            number = own.index(detector)
            learned = learned_of(number, arrays)
            detector.restore(values["detectors"][number]["learned"], learned)
        restored.knowledge.dim = values["dim"]
        # A guard saved before detectors heard of confirmations hears of all of them.
        restored.knowledge.confirmed = dict(values.get("confirmed", {}))
        restored.left_out = tuple(
            Skipped(detector=name, reason=why) for name, why in values["left_out"]
        )
        restored.power = dict(values["power"])
        restored.calibrator.restore(values, arrays)
        restored.recalibration.restore(values, arrays)
        restored.unscreened.restore(values["unscreened"])
        return restored

    def become(self, other: Self) -> None:
        """Be what another state is, with its detectors; nobody may use that one any more."""
        self.detectors, self.seed, self.left_out = other.detectors, other.seed, other.left_out
        self.power = other.power
        self.knowledge, self.unscreened = other.knowledge, other.unscreened
        self.calibrator, self.recalibration = other.calibrator, other.recalibration
        self.connections.reconnect(self.detectors)

    @property
    def can_be_copied(self) -> bool:
        """Whether there can be another like it: neighbours are here, all that learns can be saved.

        A store may be asked by the thread of its writer alone.
        """
        kept = any(learns(d) and d.traits.unsaved is not None for d in self.detectors)
        return self.connections.where == "memory" and not kept

    def copied(self) -> Self:
        """Return the same state with detectors of its own, to measure by while this one goes on.

        Only what holds something that is not saved, and learns nothing, is used by both.
        """
        values, arrays = self.to_parts()
        plain = json.loads(json.dumps(values))
        own = {name: array.copy() for name, array in arrays.items()}
        copy = self.from_parts(plain, own, copied_for(plain["detectors"], self.detectors))
        if (embed := self.connections.embedder) is not None:
            copy.connections.use_embedder(embed)
        return copy


class Unscreened:
    """Remembers entries that are to be screened again, and which detectors have to.

    Of an entry that was not written after all it may remember more than there is: who asks looks
    at what is known.
    """

    def __init__(self) -> None:
        self._failures: dict[str, Failures] = {}
        self._tries: Counter[str] = Counter()  # of this process

    def __len__(self) -> int:
        return len(self._failures)

    def add(self, failures: Mapping[str, Failures]) -> None:
        """Remember entries, by id."""
        self._failures |= failures

    def drop(self, ids: Iterable[str]) -> None:
        """Forget entries: they were screened, or a person has judged them."""
        for entry_id in ids:
            self._failures.pop(entry_id, None)
            self._tries.pop(entry_id, None)

    def clear(self) -> None:
        """Forget all: the knowledge base was vouched for, or judged as a whole."""
        self._failures, self._tries = {}, Counter()

    def tried(self, ids: Iterable[str]) -> None:
        """Take note that a detector failed again."""
        self._tries.update(ids)

    def among(self, known: Collection[str]) -> dict[str, Failures]:
        """Return what is remembered of the entries that are known."""
        return {i: failures for i, failures in self._failures.items() if i in known}

    def due(self, known: Collection[str], failing: Collection[str]) -> list[str]:
        """Return the known entries of which the detectors work again, so far as is known."""
        return [
            i
            for i, failures in self.among(known).items()
            if self._tries[i] < TRIES and not failures.keys() & set(failing)
        ]

    def state(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {i: dict(failures) for i, failures in self._failures.items()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.clear()
        self._failures = {i: dict(failures) for i, failures in values.items()}


def let_in(report: Report) -> dict[str, Failures]:
    """Return by id what a report admits although detectors failed on it, and what they said."""
    return {
        decision.entry_id: {item.detector: item.reason for item in decision.unjudged if item.failed}
        for decision in report.remarkable.values()
        if decision.unscreened
    }


def failing(report: Report) -> dict[str, str]:
    """Return the detectors that failed on entries of a report, and what they said."""
    return {item.detector: item.reason for item in report.unjudged if item.failed}
