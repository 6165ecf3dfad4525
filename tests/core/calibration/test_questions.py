"""A source with far too many held entries raises one question: opened, decided, shared, shown."""

import json
import logging
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Scripted, guard_of, loaded, parts, scored, write

from ragshield_core import Batch, Guard, PoisonedEntryError, Policy
from ragshield_core.detectors import StatelessDetector
from ragshield_core.model.entries import concatenate
from ragshield_core.model.findings import Verdict
from ragshield_core.tools.review.notifications import Kind, Notifier

RATE = 0.01
KNOWN = scored(np.random.default_rng(0).normal(size=1_500))
HOSTILE = "evil\x1b[31m\u202e<b>[red]\nforged line"
HIGH = 9.0  # far above the threshold, 3 or so


def calibrated(*detectors, **policy):
    guard = guard_of(*(detectors or [Scripted()]), quarantine_at=RATE, **policy)
    return guard.fit(KNOWN).calibrate()


FOLDER = TemporaryDirectory()


@cache
def saved():
    """Return the folder of a calibrated guard."""
    calibrated().save(FOLDER.name, detectors=[Scripted])
    return FOLDER.name


@pytest.fixture
def guard():
    return loaded(saved(), detectors=[Scripted])


def arrivals(scores, source, prefix):
    return scored(scores, prefix, sources=[source] * len(scores))


def usual(n, seed):
    return np.random.default_rng([5, seed]).uniform(-2.0, 1.5, size=n)


def odd(guard, source="odd", n=60, n_held=20, prefix=None):
    """Write entries of a source of which some are held; return the report."""
    scores = usual(n, n)
    scores[:n_held] = HIGH + np.arange(n_held)
    return write(guard, arrivals(scores, source, prefix or f"{source}-"))


# When it is asked


def test_source_with_too_many_held_entries_raises_a_question(guard):
    odd(guard)
    write(guard, arrivals(usual(200, 1), "fine", "fine-"))
    (question,) = guard.sources.questions()
    assert (question.source, question.n_entries, question.n_held) == ("odd", 60, 20)
    assert question.detectors == {"scripted": 20}
    assert set(question.held_ids) <= {f"odd-{i}" for i in range(20)}
    assert set(question.admitted_ids) <= {f"odd-{i}" for i in range(20, 60)}
    assert question.held_ids
    assert question.admitted_ids
    assert question.to_dict()["since"] == question.since.isoformat()
    assert "60 documents of 'odd'" in str(question)
    assert "20 of them held (scripted 20)" in str(question)
    status = guard.status()
    assert status.questions == (question,)
    assert str(question) in status.concerns()
    assert json.loads(json.dumps(status.to_dict()))["questions"] == [
        json.loads(json.dumps(question.to_dict()))
    ]


@pytest.mark.parametrize(("n", "n_held"), [(500, 5), (500, 15), (60, 4), (4, 4), (200, 0)])
def test_normal_rate_or_few_entries_raise_no_question(guard, n, n_held):
    odd(guard, n=n, n_held=n_held)
    assert guard.sources.questions() == ()


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.slow
def test_the_size_of_batches_does_not_matter(guard, size):
    scores = usual(60, 2)
    scores[::4] = HIGH
    for part in parts(arrivals(scores, "odd", "odd-"), size):
        write(guard, part)
    (question,) = guard.sources.questions()
    assert (question.n_entries, question.n_held) == (60, 15)


def test_entries_without_a_source_count_as_one_source(guard):
    odd(guard, None)
    (question,) = guard.sources.questions()
    assert question.source is None
    assert "60 documents that name no source" in str(question)
    assert guard.sources.adopt(None)
    assert guard.sources.questions() == ()


def test_recalled_entries_count_towards_a_question(guard):
    batch = arrivals(usual(40, 3), "odd", "odd-")
    report = write(guard, batch)
    gone = batch.take(range(12))
    decisions = [guard.screen(arrivals([HIGH], "odd", f"odd-{i}x")).decisions[0] for i in range(12)]
    decisions = [type(d)(entry_id=i, verdict=d.verdict, findings=d.findings)
                 for d, i in zip(decisions, gone.ids, strict=True)]  # fmt: skip
    guard.recall(gone, decisions, lambda _: None)
    assert report.admitted.all()
    (question,) = guard.sources.questions()
    assert (question.n_entries, question.n_held) == (40, 12)
    assert set(question.held_ids) <= set(gone.ids)


@pytest.mark.slow
def test_excess_rate_is_a_concern_that_excludes_questioned_sources(guard):
    odd(guard, n=60, n_held=20)
    write(guard, arrivals(usual(400, 4), "fine", "fine-"))
    assert len(guard.status().concerns()) == 1  # the question
    for number in range(12):  # a few of each of many sources: no question
        odd(guard, f"s{number}", n=20, n_held=3)
    (question,) = guard.sources.questions()
    (beyond,) = [one for one in guard.status().concerns() if "are accepted" in one]
    assert beyond == (
        "36 of 640 entries were held or recalled, 5.62% where 1.00% of clean ones are accepted "
        "(20 more are asked about): an attack, or entries unlike those that thresholds were "
        "taken from"
    )
    assert question.n_held == 20


# Adopting


def test_adopting_a_source_frees_all_but_the_accepted_share(guard):
    odd(guard, n=400, n_held=100)
    others = guard.calibration.thresholds
    freed = guard.sources.adopt("odd", by="anna")
    assert guard.sources.questions() == ()
    # One in a hundred of 400 stays, the most suspicious ones.
    assert set(freed) == {f"odd-{i}" for i in range(96)}
    assert guard.calibration.thresholds == others
    assert guard.quarantine.log.lines()[-1].action == "adopt"
    # Later entries of the source are judged by the same thresholds; others by theirs.
    scores = [HIGH + 50.0, HIGH + 95.0, HIGH + 96.0, HIGH + 200.0]
    assert guard.screen(arrivals(scores, "odd", "new-")).admitted.tolist() == [
        *(True, True, False, False),
    ]
    for other in ("fine", None, "odd ", "Odd"):
        assert not guard.screen(arrivals(scores, other, "new-")).admitted.any()


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.floats(-3.0, 40.0), min_size=20, max_size=60))
def test_adopting_never_lowers_a_threshold(scores):
    guard = loaded(saved(), detectors=[Scripted])
    write(guard, arrivals(scores, "odd", "odd-"))
    probe = arrivals(np.linspace(-3.0, 45.0, 60), "odd", "probe-")
    admitted = guard.screen(probe).admitted
    before = guard.calibration.thresholds
    held = guard.quarantine.count()
    if not held:
        with pytest.raises(ValueError, match="nothing of the source"):
            guard.sources.adopt("odd")
        return
    freed = guard.sources.adopt("odd")
    assert len(freed) <= held
    assert guard.calibration.thresholds == before
    assert (guard.screen(probe).admitted >= admitted).all()


def test_detectors_share_the_accepted_rate_of_an_adopted_source():
    class Length(Scripted):
        kind = "length"

        def score(self, batch):
            return np.array([10.0 * text.count("!") - 1.0 for text in batch.texts])

    guard = calibrated(Scripted(), Length("length"))
    n = 400
    scores = usual(n, 1)
    scores[:50] = HIGH + np.arange(50)
    batch = arrivals(scores, "odd", "odd-")
    texts = [t + "!" * (i // 4) if 40 <= i < 100 else t for i, t in enumerate(batch.texts)]
    texts = [t.replace("!", "") if i < 40 else t for i, t in enumerate(texts)]
    texts = [f"{'!' * t.count('!')} {t.replace('!', '')}" for t in texts]
    batch = Batch.of(ids=batch.ids, texts=texts, embeddings=batch.embeddings, sources=batch.sources)
    report = write(guard, batch)
    freed = guard.sources.adopt("odd")
    assert 0 < len(report.quarantined) - len(freed) <= n * RATE


def test_a_standing_entry_of_an_adopted_source_is_recalled_by_its_thresholds_only(guard):
    odd(guard, n=400, n_held=100)
    found = guard.screen(arrivals([HIGH + 50.0, HIGH + 200.0], "odd", "new-")).decisions
    # Of a source that is asked about they are held by default.
    assert [d.verdict for d in found] == [Verdict.QUARANTINE] * 2
    standing = arrivals([HIGH + 50.0, HIGH + 200.0], "odd", "new-")
    elsewhere = arrivals([HIGH + 50.0, HIGH + 200.0], "fine", "new-")
    guard.sources.adopt("odd")
    assert guard.judge.accused(standing, found)[0].ids == ("new-1",)
    assert guard.judge.accused(elsewhere, found)[0].ids == ("new-0", "new-1")


def test_adopting_a_source_frees_no_orders():
    class Orders(Scripted, StatelessDetector):
        name = "orders"

    guard = calibrated(Orders("orders"))
    odd(guard, n=400, n_held=100)
    assert guard.sources.adopt("odd") == ()
    assert guard.quarantine.count() == 100


def test_adopting_a_source_frees_weak_orders_and_no_clear_ones():
    class Orders(Scripted, StatelessDetector):
        name = "orders"
        traits = replace(Scripted.traits, beyond_doubt=HIGH + 59.5)

    guard = calibrated(Orders("orders"))
    odd(guard, n=400, n_held=100)
    freed = guard.sources.adopt("odd")
    assert sorted(freed) == sorted(f"odd-{i}" for i in range(60))
    later = arrivals([HIGH + 40.0, HIGH + 59.0, HIGH + 60.0], "odd", "new-")
    assert guard.screen(later).admitted.tolist() == [True, True, False]
    elsewhere = arrivals([HIGH + 40.0], "fine", "new-")
    assert not guard.screen(elsewhere).admitted.any()


def test_source_without_waiting_entries_cannot_be_adopted(guard):
    write(guard, arrivals(usual(60, 1), "fine", "fine-"))
    for source in ("fine", "never seen", None, HOSTILE):
        with pytest.raises(ValueError, match="nothing of the source") as error:
            guard.sources.adopt(source)
        assert "\x1b" not in str(error.value)
        assert "\n" not in str(error.value)
    odd(guard)
    guard.quarantine.confirm([f"odd-{i}" for i in range(20)])
    with pytest.raises(ValueError, match="nothing of the source"):
        guard.sources.adopt("odd")


def test_thresholds_of_a_source_and_questions_are_saved(guard, tmp_path):
    odd(guard, n=400, n_held=100)
    guard.sources.adopt("odd")
    odd(guard, "another")
    guard.save(tmp_path, detectors=[Scripted])
    again = Guard.load(tmp_path, detectors=[Scripted], quarantine=guard.quarantine)
    assert again.sources.questions() == guard.sources.questions() != ()
    batch = arrivals([HIGH + 50.0, HIGH + 97.0], "odd", "new-")
    assert again.screen(batch).admitted.tolist() == [True, False]
    again.fit(KNOWN)
    assert again.sources.questions() == ()
    assert not again.screen(batch).admitted.any()  # thresholds are of another fit


# Holding on


def test_question_returns_after_twice_as_many_held_entries(guard):
    odd(guard, n=40, n_held=20)
    before = guard.calibration.thresholds
    guard.sources.keep_holding("odd", by="anna")
    assert guard.sources.questions() == ()
    assert guard.quarantine.log.lines()[-1].action == "keep"
    assert guard.quarantine.count() == 20
    odd(guard, n=20, n_held=20, prefix="again-")
    assert guard.sources.questions() == ()
    odd(guard, n=20, n_held=20, prefix="third-")
    (question,) = guard.sources.questions()
    assert question.n_held == 60
    assert guard.calibration.thresholds == before
    assert len(guard.sources.adopt("odd")) == 60


# What becomes of it meanwhile


def test_suspects_of_a_questioned_source_may_be_flagged():
    guard = calibrated(on_shift="flag")
    first = odd(guard)
    assert len(first.quarantined) == 20
    report = write(guard, arrivals([HIGH, 0.0], "odd", "new-"))
    assert [d.verdict for d in report.decisions] == [Verdict.FLAG, Verdict.ADMIT]
    assert "asked about" in report.decisions[0].note
    other = guard.screen(arrivals([HIGH, 0.0], "fine", "fine-"))
    assert [d.verdict for d in other.decisions] == [Verdict.QUARANTINE, Verdict.ADMIT]
    guard.sources.keep_holding("odd")
    held = guard.screen(arrivals([HIGH], "odd", "last-"))
    assert held.decisions[0].verdict is Verdict.QUARANTINE


def test_stateless_detector_still_holds_entries_of_a_questioned_source():
    class Fixed(Scripted, StatelessDetector):
        kind = "fixed"

    guard = calibrated(Fixed("fixed"), on_shift="flag")
    odd(guard)
    report = guard.screen(arrivals([HIGH], "odd", "new-"))
    assert report.decisions[0].verdict is Verdict.QUARANTINE


def test_suspects_of_a_questioned_source_may_be_refused():
    guard = calibrated(on_shift="raise")
    odd(guard)
    n_held = guard.quarantine.count()
    with pytest.raises(PoisonedEntryError):
        guard.hold(guard.screen(arrivals([0.0, HIGH], "odd", "new-")))
    assert guard.quarantine.count() == n_held
    assert write(guard, arrivals([0.0], "odd", "fine-")).admitted.all()
    mixed = concatenate([arrivals([0.0], "odd", "a-"), arrivals([HIGH], "fine", "b-")])
    assert [d.verdict for d in write(guard, mixed).decisions] == [
        *(Verdict.ADMIT, Verdict.QUARANTINE),
    ]


# Shared


@pytest.mark.slow
def test_guards_of_one_database_ask_and_decide_together(tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    one = Guard.open(url, detectors=[Scripted()], policy=Policy(quarantine_at=RATE))
    one.fit(KNOWN).calibrate()
    other = Guard.open(url, detectors=[Scripted()])
    odd(one, n=400, n_held=100)
    other.writes.catch_up()
    assert other.sources.questions() == one.sources.questions() != ()
    assert other.calibration.thresholds == one.calibration.thresholds
    freed = other.sources.adopt("odd")
    assert len(freed) == 96
    one.writes.catch_up()
    assert one.sources.questions() == other.sources.questions() == ()
    batch = arrivals([HIGH + 50.0, HIGH + 97.0], "odd", "new-")
    for guard in (one, other, Guard.open(url, detectors=[Scripted()])):
        assert guard.screen(batch).admitted.tolist() == [True, False]
    odd(other, "another")
    one.writes.catch_up()
    assert one.sources.questions() == other.sources.questions()
    one.sources.keep_holding("another")
    other.writes.catch_up()
    assert other.sources.questions() == one.sources.questions() == ()


@pytest.mark.slow
def test_the_command_exits_with_one_while_a_question_is_open(tmp_path, ragshield):
    url = f"sqlite:///{tmp_path}/guard.db"
    guard = Guard.open(url, detectors=[Scripted()], policy=Policy(quarantine_at=RATE))
    guard.fit(KNOWN).calibrate()
    write(guard, arrivals(usual(100, 1), "fine", "fine-"))
    assert ragshield("status", "--database", url)[0] == 0
    odd(guard, HOSTILE)
    code, out, _ = ragshield("status", "--database", url, "--format", "json")
    (question,) = json.loads(out)["questions"]
    assert (code, question["source"], question["n_held"]) == (1, HOSTILE, 20)
    code, out, _ = ragshield("status", "--database", url)
    assert code == 1
    assert "mass attack" in out
    for letter in ("\x1b[31m", "\u202e"):
        assert letter not in out
    guard.sources.keep_holding(HOSTILE)
    said = json.loads(ragshield("status", "--database", url, "--format", "json")[1])
    assert said["questions"] == []


# Told, and escaped


def test_each_question_is_notified_once(guard, caplog):
    heard = []
    notifier = Notifier([heard.append], group=None)
    guard.notify(notifier)
    with caplog.at_level(logging.WARNING, "ragshield"):
        odd(guard)
        for number in range(3):
            write(guard, arrivals([HIGH, 0.0], "odd", f"later{number}-"))
    assert notifier.flush()
    (one,) = [notice for notice in heard if notice.kind == Kind.SOURCE_ASKED]
    assert (one.data["source"], one.data["n_held"]) == ("odd", 20)
    assert sum("mass attack" in record.getMessage() for record in caplog.records) == 1


def test_hostile_names_are_escaped(guard, caplog):
    heard = []
    notifier = Notifier([heard.append], group=None)
    guard.notify(notifier)
    with caplog.at_level(logging.DEBUG, "ragshield"):
        odd(guard, HOSTILE, prefix="h-")
        odd(guard, "x" * 5_000, prefix="x-")
    assert notifier.flush()
    said = [str(question) for question in guard.sources.questions()]
    assert len(said) == 2
    said += [one.said for one in heard] + [one.data["source"] for one in heard]
    status = guard.status()
    said += [str(status), *status.concerns()]
    said += [record.getMessage() for record in caplog.records]
    guard.sources.adopt(HOSTILE)
    guard.sources.keep_holding("x" * 5_000)
    said += [record.note or "" for record in guard.quarantine.log.lines()]
    for text in said:
        for letter in ("\x1b", "\u202e"):
            assert letter not in text
        assert "\nforged" not in text
        assert "x" * 500 not in text
