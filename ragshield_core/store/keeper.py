"""Runs the operations of a guarded store one at a time, after recovery from those that crashed."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Generic, TypeVar

from ragshield_core.model.errors import RAGShieldError
from ragshield_core.store.adapter import PART, Adapter
from ragshield_core.store.recalling import rescreen
from ragshield_core.store.recovering import recover
from ragshield_core.store.steps import Step, Steps, done

Item = TypeVar("Item")
T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text


class Keeper(Adapter[Item], Generic[Item]):
    """Keeps a store and a guard in step: one operation after the other.

    Operations are functions of :mod:`~ragshield_core.store.writing`,
    :mod:`~ragshield_core.store.reviewing`, :mod:`~ragshield_core.store.recalling`,
    :mod:`~ragshield_core.store.recovering` and :mod:`~ragshield_core.store.reconciling`.
    """

    def run(self, steps: Steps[T]) -> T:
        """Do an operation by the store's synchronous methods, once no other is being done."""
        with self.turns.alone():
            return done(self._recovered(steps))

    def run_recovery(self) -> int:
        """Recover and do nothing else."""
        with self.turns.alone():
            return done(recover(self))

    async def arun(self, steps: Steps[T]) -> T:
        """Do an operation by the store's asynchronous methods."""
        return await self.turns.arun(self._recovered(steps))

    def step(self, steps: Steps[Any]) -> Step:
        """Return an operation as one step of another, which does not keep others out between."""
        return Step(partial(self.run, steps), partial(self.arun, steps))

    def _recovered(self, steps: Steps[T]) -> Steps[T]:
        """Recover, do an operation, and screen entries that were let in unscreened, if possible."""
        if self.guard.writes.shared:
            yield from recover(self)
        try:
            answer = yield from steps
        except RAGShieldError:
            raise
        except Exception as error:
            # The error is the store's or its embedding model's, and keeps its type.
            error.add_note(
                "RAGShield: the store inside or its embedding model failed, and this operation on "
                f"it came to no end ({self.guard.quarantine!r}). What was judged suspicious is "
                "held; repeat the operation once they answer: what has the same ids is not there "
                "twice then."
            )
            raise
        if due := self.guard.writes.due_for_screening():
            try:
                yield from rescreen(self, due[:PART])
            except Exception as error:  # noqa: BLE001 - the operation itself is done
                kind = type(error).__name__
                logger.warning("what was let in unscreened could not be screened yet (%s)", kind)
        return answer
