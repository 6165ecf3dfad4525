"""Test n-grams for too many recent entries among those that hold them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import N_ORDERS, TAIL, Background, order_of

# With fewer recent entries than so many times the expected ones, too many innocent entries are
# among those that hold an n-gram to condemn them all, however sure it is that some are not.
MIN_LIFT = 4.0


class Tests:
    """Tests of some n-grams, each for too many recent entries among those that hold it."""

    def __init__(
        self,
        hashes: NDArray[np.uint32],
        background: Background,
        share: NDArray[np.float64],
        part: float,  # of the knowledge base that recent entries are compared with
    ) -> None:
        self.hashes = hashes
        self.orders = order_of(hashes)
        self.known = part * background.of(hashes)
        self.share, self.odds = share[self.orders], (share / (1.0 - share))[self.orders]
        # How many n-grams are tested at once, as a logarithm, by order and number of holders.
        self._log_tests = np.log10(background.tail * N_ORDERS)
        self._log_parts = np.full(len(hashes), np.inf)  # less for parts of a known phrase

    def scores(self, recent: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the corrected surprisal for numbers of recent entries, shape (n_hashes,)."""
        more = np.flatnonzero(recent > self.known)
        usual = self.known[more] * self.odds[more]
        more = more[recent[more] > MIN_LIFT * usual]
        surprisal = np.zeros(len(recent))
        held, known, share = recent[more], self.known[more], self.share[more]
        with np.errstate(divide="ignore", invalid="ignore"):
            part = held / (held + known)
            tail = held * np.log(part / share)
            rest = known * np.log((1.0 - part) / (1.0 - share))
            surprisal[more] = np.where(known > 0, tail + rest, tail) / math.log(10.0)
        frequent = np.minimum(recent + self.known, TAIL - 1).astype(np.int64)
        frequent += self.orders * TAIL
        surprisal -= np.minimum(self._log_tests.ravel()[frequent], self._log_parts)
        return surprisal

    def relate(self, parts: NDArray[np.int64]) -> None:
        """Test n-grams only among each other from now on: they are parts of one phrase."""
        self._log_parts[parts] = np.minimum(self._log_parts[parts], math.log10(max(1, len(parts))))
