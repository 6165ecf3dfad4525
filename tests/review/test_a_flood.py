"""A case of very many members is shown and decided in small requests."""

import re
import tracemalloc
from contextlib import contextmanager

import flood
import pytest
from reviewers import TOKENS, Browser
from sqlalchemy import event
from support import slowly

from ragshield_core import Quarantine
from ragshield_core.tools.review import review_app
from ragshield_core.tools.review.cases import Cases
from ragshield_core.tools.review.desk import AT_ONCE, Action, Desk
from ragshield_core.tools.review.feedback import reviewed
from ragshield_core.tools.review.views import PAGE

# Too many to be read within the bounds below.
MEMBERS = 3_000
# Of a step of a decision.
STEP = 50
# Of SQLite: fewer than it takes to read every member.
STEPS = 20_000


@pytest.fixture(params=["sqlite", *slowly("postgresql")])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("empty_postgres")
    return f"sqlite:///{tmp_path}/flood.db"


class Effort:
    """What requests have made a database and this process do."""

    def __init__(self, quarantine):
        self.rows = self.steps = self.most = 0
        self.n_steps = 1_000
        with quarantine.database.engine() as engine:
            self.counts_steps = engine.dialect.name == "sqlite"
            watch, when = self._watch_file, "connect"
            if not self.counts_steps:
                watch, when = self._count_answer, "after_cursor_execute"
            event.listen(engine, when, watch)
            engine.dispose()  # those that are connected are not watched

    def _watch_file(self, connection, _record):
        connection.set_progress_handler(self._count_steps, self.n_steps)
        connection.row_factory = self._count_row

    def _count_steps(self):
        self.steps += self.n_steps

    def _count_row(self, _cursor, row):
        self.rows += 1
        return row

    def _count_answer(self, _connection, cursor, statement, *_):
        if statement.lstrip().startswith(("SELECT", "WITH")):
            self.rows += max(0, cursor.rowcount)

    @contextmanager
    def of(self, *, rows, steps=None):
        """Check how many rows are read, steps made in the file, and bytes taken here.

        Where nothing is read, nothing is counted.
        """
        self.rows = self.steps = 0
        tracemalloc.start()
        try:
            yield
            (_, most) = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 0 < self.rows <= rows
        assert most < 20_000_000
        if self.counts_steps and steps is not None:
            assert self.steps <= steps


@pytest.mark.slow
@pytest.mark.parametrize("action", ["confirm", "release"])
def test_bulk_decision_and_undo_use_few_statements(url, action):
    quarantine = Quarantine(url)
    flood.hold(quarantine, 0, 3 * AT_ONCE)
    desk, sent = Desk(quarantine), []
    with quarantine.database.engine() as engine:
        event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    done = list(desk.decide_case(Action(action), 1, by="anna", note=None))
    assert len(sent) < 40 * 3
    sent.clear()
    lines = done[0].lines[0], done[-1].lines[1]
    assert sum(one.n_done for one in desk.undo(lines, by="anna")) == 3 * AT_ONCE
    assert len(sent) < 40 * 3
    assert len(quarantine.vouched([f"e{k}" for k in range(3 * AT_ONCE)])) == 3 * AT_ONCE
    quarantine.log.verify()
    quarantine.close()


@pytest.mark.slow
def test_feedback_memory_does_not_grow_with_entries(url, monkeypatch):
    monkeypatch.setattr("ragshield_core.tools.review.feedback.PAGE", 100)
    quarantine, found = Quarantine(url), []
    for n in (1_000, 2_000):
        flood.hold(quarantine, n - 1_000, n)
        reviewed(quarantine)  # one-time work is not counted
        tracemalloc.start()
        total = reviewed(quarantine).total
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (total.held, total.waiting) == (n, n)
    assert found[1] < 1.2 * found[0]
    quarantine.close()


@pytest.mark.slow
def test_feedback_of_a_small_tenant_reads_nothing_of_a_large_one(url, monkeypatch):
    monkeypatch.setattr("ragshield_core.tools.review.feedback.PAGE", 7)
    quarantine, n = Quarantine(url), MEMBERS
    flood.hold(quarantine, 0, n)
    small = Quarantine(url, namespace="small")
    flood.hold(small, 0, 20)
    small.release(["e3", "e8"], by="anna")
    small.confirm(["e5", "e14"], by="anna")
    effort = Effort(small)
    with effort.of(rows=20, steps=5_000):
        total = reviewed(small).total
    assert (total.held, total.released, total.confirmed, total.waiting) == (20, 2, 2, 16)
    quarantine.close()
    small.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["there", "released", "elsewhere"])
def test_holding_one_more_entry_of_a_flood_stays_cheap(url, place):
    quarantine, n = Quarantine(url), MEMBERS
    flood.hold(quarantine, 0, n)
    if place == "released":
        quarantine.release([f"e{k}" for k in range(n)], by="anna")
    store = quarantine.for_store("another") if place == "elsewhere" else quarantine
    effort = Effort(quarantine)
    quarantine.count()  # connected
    for k in range(n, n + 3):
        with effort.of(rows=100, steps=3_000):
            flood.hold(store, k, k + 1)
    waiting = {case.store: case.n_waiting for case in Cases(quarantine).page().cases}
    assert (
        waiting
        == {
            "there": {None: n + 3},
            "released": {None: 3},
            "elsewhere": {None: n, "another": 3},
        }[place]
    )
    assert Cases(quarantine).whole()
    quarantine.close()


@pytest.mark.slow
def test_a_case_of_very_many_is_shown_decided_and_taken_back(url, monkeypatch):
    monkeypatch.setattr("ragshield_core.tools.review.app.STEP", 0.0)  # seconds: one step a request
    monkeypatch.setattr("ragshield_core.tools.review.desk.AT_ONCE", STEP)
    quarantine, n = Quarantine(url), MEMBERS
    flood.hold(quarantine, 0, n)
    anna, effort = Browser(review_app(quarantine, tokens=TOKENS)), Effort(quarantine)

    def decide(path, **data):
        with effort.of(rows=20 * STEP, steps=STEPS):  # and shown after that
            return anna.post(path, **data)

    with effort.of(rows=100, steps=STEPS):
        queue = anna.get("/").text
    assert f"{n:,} entries" in " ".join(queue.split())
    assert (queue.count("<tr data-row>"), len(queue) < 20_000) == (1, True)

    def check_case(page):
        with effort.of(rows=1_000, steps=STEPS):
            case = anna.get(f"/cases/1?page={page}").text
        assert (case.count("<article"), len(case) < 200_000) == (PAGE, True)
        return re.findall(r'class="text">Call 0800 (\d+) now', case)[0]

    assert check_case(1) == "0"
    for search, found in (("0800 777 NOW", True), ("0800 x", False)):  # reads all texts, there
        with effort.of(rows=100):
            page = anna.post("/filter", search=search, source="", detector="").text
        assert (page.count("<tr data-row>"), len(page) < 20_000) == (found, True)
    with effort.of(rows=100):
        page = anna.post("/filter", search="", source=flood.SOURCE, detector="").text
    assert page.count("<tr data-row>") == 1
    anna.post("/filter", search="", source="", detector="")
    with effort.of(rows=100):  # counts all of them, there
        health = anna.get("/health").text
    assert (f"<dd>{n:,}</dd>" in health, len(health) < 50_000) == (True, True)

    anna.get("/cases/1")
    decide("/cases/1", action="confirm", all="yes", note="a flood")
    assert f"{STEP} entries confirmed" in anna.told
    assert f"{n - STEP:,} entries of the case still wait" in anna.told
    with effort.of(rows=100, steps=STEPS):
        flood.hold(quarantine, n, n + 1)  # meanwhile, one more of it comes
    decide("/cases/1", action="confirm", all="yes", last=f"{n}")
    assert (quarantine.count("confirmed"), quarantine.count()) == (2 * STEP, n + 1 - 2 * STEP)
    assert check_case(1) == f"{2 * STEP}"  # waiting entries come first
    assert check_case((n - 2 * STEP) // PAGE + 2) == "19"  # after one that waits, decided ones
    lines = quarantine.log.lines(since=n)
    assert [one.entry_id for one in lines if one.action == "confirm"] == [
        f"e{k}" for k in range(2 * STEP)
    ]
    for _ in range(2):
        decide("/undo")
        assert f"{STEP} entries wait again" in anna.told
    assert (quarantine.count("confirmed"), quarantine.count()) == (0, n + 1)
    assert Cases(quarantine).whole()
    assert len(quarantine.vouched([f"e{k}" for k in range(3 * STEP)])) == 3 * STEP
    quarantine.close()
