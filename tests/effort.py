"""How the effort for a text grows with its length, told by ratios: a busy machine fails no test."""

import math
import time

# So many times longer, so that linear and quadratic effort lie far apart.
TIMES = 16
# A measurement lasts at least so many seconds of this process, and the least of some counts.
LEAST, ROUNDS = 0.02, 2


def effort(work, text):
    """Return the seconds of this process that a call takes."""
    found = math.inf
    for _ in range(ROUNDS):
        calls, spent = 0, 0.0
        while spent < LEAST:
            start = time.process_time()
            work(text)
            spent += time.process_time() - start
            calls += 1
        found = min(found, spent / calls)
    return found


def assert_linear(work, unit, length):
    """Check that a text of repeated units costs no more than in proportion to its length.

    Four times of that are allowed; sixteen times would be quadratic.
    """
    long = (unit * (length // len(unit) + 1))[:length]
    short = long[: length // TIMES]
    work(short)  # what is made once is not counted
    before, after = effort(work, short), effort(work, long)
    assert after < 4 * TIMES * before, f"{TIMES} times as long costs {after / before:.0f} times"
