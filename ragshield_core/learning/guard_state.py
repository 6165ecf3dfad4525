"""State of a guard, changed by events only, with the vectors and embedder that its store lends."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from ragshield_core.calibration.arrivals import Counted
from ragshield_core.calibration.calibrator import Calibrator, Measured
from ragshield_core.calibration.recalibration import Recalibration
from ragshield_core.detectors.base import Detector, GroupDetector, Need, UsesEmbedder, learns
from ragshield_core.detectors.registry import (
    copied_for,
    detectors_from,
    learned_of,
    saved_detectors,
)
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.neighbors.stored import IndexOwner, VectorTable, Where, not_at_hand
from ragshield_core.screening.knowledge import Knowledge
from ragshield_core.text.readings import Remembered


class GuardState:
    """Knowledge and thresholds of a guard, and the vectors and embedding model of its store.

    Equal states stay equal if the same events are applied to them in the same order: the same
    entries are known, held and trusted, by the same thresholds.
    """

    def __init__(self, detectors: Sequence[Detector], policy: Policy, seed: int) -> None:
        self.lock = threading.RLock()  # held by every reader and writer of the state
        self.detectors = tuple(detectors)
        self.seed = seed  # random seed of the held-out parts
        self.knowledge = Knowledge(self.detectors)
        self.calibrator = Calibrator(self.knowledge, policy, seed)
        self.recalibration = Recalibration(self.knowledge, self.calibrator)
        # Entries that were admitted although detectors failed on them: by id, detector to message.
        # Some of them may not exist, because their write failed later.
        self.unscreened: dict[str, Mapping[str, str]] = {}
        self.tries: Counter[str] = Counter()  # attempts of this process to screen each again
        self.failing: dict[str, str] = {}  # detectors that failed last, and how; in this process
        self.left_out: tuple[Skipped, ...] = ()  # detectors that take no part, and why
        # Share of planted texts that were held when the store was adopted, by form of attack.
        self.power: dict[str, float] = {}
        self.embedder: Callable[[list[str]], Any] | None = None
        self._chosen = False  # whether the user chose the embedder; stores then offer none
        self._table: VectorTable | None = None
        self._where: Where | None = None

    @property
    def readers(self) -> tuple[Remembered[Any], ...]:
        """Readers that detectors use when they learn texts."""
        return tuple(reader for one in self.detectors if learns(one) for reader in one.traits.reads)

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean entries rather than from default thresholds."""
        return self.calibrator.calibration is not None

    def apply(self, event: Event) -> None:  # noqa: C901 - a case for each change
        """Apply an event to the state; the quarantine is neither read nor changed.

        Parameters
        ----------
        event
            From this process, from another one, or read again from a journal.

        Raises
        ------
        ValueError
            If the event says that the whole state was replaced. As an
            :class:`~ragshield_core.model.errors.InvalidBatchError`, if its entries cannot be
            learned: every guard refuses them.

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
                    self.knowledge.learn(entries, event.prepared)
                    self.recalibration.note_learned(entries, again)
                case Event(change=Change.FORGOTTEN, entries=Batch() as entries):
                    self.knowledge.forget(entries)
                case Event(change=Change.HELD, entries=Batch() as entries):
                    self.recalibration.note_held(entries, event.accused)
                case Event(change=Change.RECALLED, entries=Batch() as entries):
                    self.knowledge.forget(entries)
                    self.calibrator.recalled(entries, event.accused)
                    self.recalibration.note_held(entries, event.accused)
                    self._drop_unscreened(entries.ids)
                case Event(change=Change.CONFIRMED):
                    self.knowledge.note_confirmed(event.entries, event.ids)
                case Event(change=Change.HELD_FORGOTTEN):
                    self.knowledge.forget_held(event.ids)
                case Event(change=Change.TRUSTED):
                    self.recalibration.drop_pending(event.ids)
                    self.knowledge.trust(event.ids)
                    self._drop_unscreened(event.ids)
                case Event(change=Change.UNSCREENED | Change.SCREENED):
                    self.unscreened |= event.failed
                    self._drop_unscreened(event.ids)
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

    def _drop_unscreened(self, ids: Sequence[str]) -> None:
        for entry_id in ids:
            self.unscreened.pop(entry_id, None)
            self.tries.pop(entry_id, None)

    def changed_by(self, event: Event) -> set[str]:
        """Return the names of the detectors whose state an event may change."""
        if event.change is Change.HELD:
            return set().union(*event.accused.values())
        if event.change in (Change.COUNTED, Change.UNSCREENED, Change.SCREENED):
            return set()
        return {detector.name for detector in self.detectors}

    def vouched_for(self) -> None:
        """Forget the entries that were admitted unscreened: the whole knowledge base was judged."""
        self.unscreened, self.tries = {}, Counter()

    def known_unscreened(self) -> dict[str, Mapping[str, str]]:
        """Return the known entries that were admitted although detectors failed, and why."""
        return {i: why for i, why in self.unscreened.items() if i in self.knowledge}

    # For callers that ask for the guard's status

    def force(self) -> dict[str, str | None]:
        """Return, by detector, why it takes no part at present; ``None`` if it takes part."""
        waiting, known = self.recalibration.waiting(), self.knowledge.known
        unlabelled = bool(len(known)) and not known.counts.any()
        why_not: dict[str, str | None] = {}
        for detector in self.detectors:
            why_not[detector.name] = None
            if (skipped := waiting.get(detector.name)) is not None:
                why_not[detector.name] = skipped.reason
            elif unlabelled and Need.LABEL in detector.needs:
                why_not[detector.name] = "no entry of the knowledge base has a label"
        return why_not

    def doubted(self) -> dict[str, int]:
        """Return, by detector, how many of its learned entries it takes for poison."""
        doubted = {d.name: d.n_doubted() for d in self.detectors if isinstance(d, GroupDetector)}
        return {name: n for name, n in doubted.items() if n}

    # Saving

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the whole state, as JSON-ready values and arrays."""
        values: dict[str, Any] = {
            "policy": self.calibrator.policy.model_dump(mode="json"),
            "seed": self.seed,
            "dim": self.knowledge.dim,
            "confirmed": self.knowledge.confirmed,
            "unscreened": {i: dict(failures) for i, failures in self.unscreened.items()},
            # For callers that ask for the guard's status without its detectors.
            "standing": self.force(),
            "doubted": self.doubted(),
            "power": self.power,
            "neighbors": self.where_in_words(),
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
        """Return the state from the result of :meth:`to_parts`.

        ``detectors`` are classes that are not registered, and detectors with unsaved state. A
        :class:`StateError` is raised if one is missing, or has other options.
        """
        own = detectors_from(values["detectors"], detectors)
        restored = cls(own, Policy.model_validate(values["policy"]), values["seed"])
        # First, so that entries keep the order in which they were learned.
        restored.knowledge.known.restore(values, arrays)
        for detector in restored.knowledge.learners:
            number = own.index(detector)
            learned = learned_of(number, arrays)
            detector.restore(values["detectors"][number]["learned"], learned)
        restored.knowledge.dim = values["dim"]
        restored.knowledge.confirmed = dict(values["confirmed"])
        restored.left_out = tuple(
            Skipped(detector=name, reason=why) for name, why in values["left_out"]
        )
        restored.power = dict(values["power"])
        restored.calibrator.restore(values, arrays)
        restored.recalibration.restore(values, arrays)
        restored.unscreened = {i: dict(why) for i, why in values["unscreened"].items()}
        return restored

    def become(self, other: Self) -> None:
        """Take over another state and its detectors; the other may not be used any more."""
        self.detectors, self.seed, self.left_out = other.detectors, other.seed, other.left_out
        self.power, self.knowledge = other.power, other.knowledge
        self.unscreened, self.tries = other.unscreened, other.tries
        self.calibrator, self.recalibration = other.calibrator, other.recalibration
        self._connect()
        if self.embedder is not None:
            self._hand_over()

    @property
    def can_be_copied(self) -> bool:
        """Whether it can be copied: neighbours are in memory, and all learning detectors are saved.

        Only the thread of its writer may query a store.
        """
        kept = any(learns(d) and d.traits.unsaved is not None for d in self.detectors)
        return self.where == "memory" and not kept

    def frozen(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """Return the whole present state, as JSON and arrays that later changes do not reach."""
        values, arrays = self.to_parts()
        # Arrays that nobody can write to are lent for good, as vectors are.
        kept = {name: a.copy() if a.flags.writeable else a for name, a in arrays.items()}
        return json.dumps(values, separators=(",", ":")), kept

    def thawed(self, values: str, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return a copy from the result of :meth:`frozen`, for measurements beside this state.

        It has its own detectors; the two share only those with unsaved state, which learn nothing.
        """
        plain = json.loads(values)
        copy = self.from_parts(plain, arrays, copied_for(plain["detectors"], self.detectors))
        if self.embedder is not None:
            copy.use_embedder(self.embedder)
        return copy

    # The vectors of the store

    def use_table(self, table: VectorTable, where: Where | None = None) -> None:
        """Connect the vectors of the store; guarded stores call this.

        Parameters
        ----------
        table
            The vectors of this guard's store.
        where
            ``"store"``: detectors find neighbours there from now on, and keep vectors only of
            entries that the store lacks. ``"memory"``: all vectors are fetched. ``None``, the
            default, changes nothing: a guard that was saved without vectors needs its store.

        Raises
        ------
        ValueError
            If ``where`` has another value, or no detector can leave vectors in the store.
        NeighborsError
            If vectors cannot be fetched.
        """
        if where not in (None, "memory", "store"):
            msg = f"neighbors is {where!r}, expected 'memory', 'store' or None."
            raise ValueError(msg)
        if where == "store" and not self._table_users:
            names = ", ".join(detector.name for detector in self.detectors)
            msg = (
                f"none of the detectors ({names}) can find neighbours in the store; add "
                "CliqueDetector(), which others share, or leave neighbors out."
            )
            raise ValueError(msg)
        with self.lock:
            self._table, self._where = table, where
            self._connect()

    def let_go(self) -> int:
        """Drop vectors that the store now has, see :meth:`use_table`; return how many."""
        with self.lock:
            return sum(user.let_go() for user in self._table_users)

    @property
    def where(self) -> Where:
        """Where detectors find neighbours: in ``"memory"``, or in the ``"store"``."""
        return "store" if any(user.in_store is not None for user in self._table_users) else "memory"

    def where_in_words(self) -> str:
        """Return in words the place where detectors find neighbours."""
        for user in self._table_users:
            if user.in_store is not None:
                lost = "" if user.connected else ", which is not at hand"
                return f"the store {user.in_store!r}{lost}; {user.n_local} vectors in memory"
        return "memory"

    @property
    def complete(self) -> bool:
        """Whether every detector that finds neighbours in the store is connected to it."""
        return all(user.connected for user in self._table_users)

    def check(self) -> None:
        """Refuse to judge without the store in which neighbours are found.

        Raises
        ------
        NeighborsError
            If the store is not connected.
        """
        lost = next((user for user in self._table_users if not user.connected), None)
        if lost is not None:
            raise not_at_hand(lost.in_store or "")

    def _connect(self) -> None:
        if self._table is not None:
            for user in self._table_users:
                user.use_table(self._table, self._where)

    @property
    def _table_users(self) -> list[IndexOwner]:
        return [detector for detector in self.detectors if isinstance(detector, IndexOwner)]

    # The embedding model

    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> None:
        """Use the embedding model that the user has chosen, or none."""
        with self.lock:
            self.embedder, self._chosen = embed, True
            self._hand_over()

    def offer_embedder(self, embed: Callable[[list[str]], Any]) -> None:
        """Use the embedding model of a store, unless the user chose one; stores call this."""
        with self.lock:
            if not self._chosen and embed != self.embedder:
                self.embedder = embed
                self._hand_over()

    def _hand_over(self) -> None:
        for detector in self.detectors:
            if isinstance(detector, UsesEmbedder):
                detector.use_embedder(self.embedder)
