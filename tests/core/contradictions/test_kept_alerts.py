"""Alerts about contradictions stay in the database until a person closes them."""

import datetime as dt
import json
import logging

import pytest
from canary_world import batch, embed, knowledge
from sqlalchemy import text as sql
from test_contradictions import FALSE, KNOWN, Scripted, clean_scores, new, wrong
from typer.testing import CliRunner

from ragshield_core import Guard, Quarantine
from ragshield_core.cli import app
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.tools.alerts import pair_of
from ragshield_core.tools.contradictions import Alert, ContradictionChecker, KeptAlerts

DAY = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/guard.db"


def alert(name="new", **values):
    values = {"score": 0.9, "p_value": 0.01, "relation": "conflicts"} | values
    return Alert(
        entry_id=name,
        claim=f"{name} opens at nine",
        passage_id="old",
        passage="it opens at eight",
        pair=pair_of((name, f"{name} opens at nine"), ("old", "it opens at eight")),
        **values,
    )


def names(alerts):
    return [one.entry_id for one in alerts]


def checker(kept, standing=KNOWN, **options):
    options = {"k": 2, "embedder": embed, "clean_scores": clean_scores(), "kept": kept} | options
    return ContradictionChecker(standing, Scripted(), **options)


def test_an_alert_is_there_for_other_processes_and_once(url):
    first, second = KeptAlerts(Quarantine(url)), KeptAlerts(Quarantine(url))
    assert first.add([alert()]) == ([alert()], [])
    assert second.add([alert(), alert("other")]) == ([alert(), alert("other")], [])
    assert [(one.number, one.alert) for one in second.list()] == [
        (1, alert()),
        (2, alert("other")),
    ]
    assert Quarantine(url).open_alerts() == 2


def test_open_alerts_are_listed_most_consequential_first_and_bounded():
    kept = KeptAlerts(Quarantine("sqlite://"))
    some = [
        alert("plain"),
        alert("asked", questions=1),
        alert("rare", p_value=0.001),
        alert("high", score=0.95),
        alert("canary", canaries=1),
    ]
    kept.add(some)
    order = ["canary", "asked", "rare", "high", "plain"]
    assert [one.alert.entry_id for one in kept.list()] == order
    assert [one.alert.entry_id for one in kept.list(limit=2)] == order[:2]


def test_a_closed_pair_raises_no_alert_again_and_another_text_does():
    kept = KeptAlerts(Quarantine("sqlite://"), now=lambda: DAY)
    kept.add([alert(), alert("other")])
    closed = kept.close(1, by="anna", reason="both are right")
    assert (closed.closed_by, closed.reason) == ("anna", "both are right")
    assert closed.closed_at.startswith("2026-05-01T12:00")
    assert kept.add([alert()]) == ([], [])
    assert [one.number for one in kept.list()] == [2]
    again = checker(kept)
    (found,) = again.check(new(wrong())).alerts
    kept.close(3, by="anna", reason="an old page")
    assert not again.check(new(wrong())).alerts
    assert again.check(new(f"{wrong()} anew")).alerts[0].pair != found.pair


@pytest.mark.parametrize(
    ("number", "reason", "told"),
    [
        (7, "x", "no alert 7"),
        (1, "x", "closed by 'anna' on .* already"),
        (2, " ", "reason has 1 characters, expected 1 to 2000, not blank"),
        (2, "x" * 2_001, "reason has 2001 characters"),
    ],
)
def test_what_cannot_be_closed_is_refused(number, reason, told):
    kept = KeptAlerts(Quarantine("sqlite://"))
    kept.add([alert(), alert("other")])
    kept.close(1, by="anna", reason="read")
    with pytest.raises(QuarantineError, match=told):
        kept.close(number, by="bert", reason=reason)
    assert [one.number for one in kept.list()] == [2]


def test_the_budget_of_a_day_is_that_of_all_processes(url):
    now = [DAY]
    first, second = (KeptAlerts(Quarantine(url), now=lambda: now[0]) for _ in range(2))
    assert names(first.add([alert("a"), alert("b")], per_day=3)[0]) == ["a", "b"]
    told, over = second.add([alert("c"), alert("d")], per_day=3)
    assert (names(told), names(over)) == (["c"], ["d"])
    first.close(1, by="anna", reason="read")
    assert names(first.add([alert("e")], per_day=3)[1]) == ["e"]  # a closed one was told as well
    now[0] += dt.timedelta(days=1)
    assert names(second.add([alert("d")], per_day=3)[0]) == ["d"]


def test_a_used_up_budget_keeps_no_more_consequential_alert_out():
    kept = KeptAlerts(Quarantine("sqlite://"), now=lambda: DAY)
    kept.add([alert("a"), alert("b", questions=1)], per_day=2)
    told, over = kept.add([alert("c", canaries=1), alert("d", score=0.1)], per_day=2)
    assert (names(told), names(over)) == (["c"], ["d"])
    assert [(one.number, one.alert.entry_id) for one in kept.list()] == [(3, "c"), (1, "b")]
    # A smaller budget, of another process, takes no place away.
    assert names(kept.add([alert("e")], per_day=1)[1]) == ["e"]
    assert len(kept.list()) == 2
    kept.add([alert("f", canaries=2)], per_day=2)
    assert [one.number for one in kept.list()] == [4, 3]  # no number is used again


def test_tenants_do_not_see_alerts_of_each_other(url):
    mine, theirs = (KeptAlerts(Quarantine(url, namespace=name)) for name in ("mine", "theirs"))
    theirs.add([alert("theirs")], per_day=1)
    assert mine.list() == ()
    assert names(mine.add([alert("theirs")], per_day=1)[0]) == ["theirs"]
    with pytest.raises(QuarantineError, match="no alert 2"):
        mine.close(2, by="anna", reason="x")


def test_a_changed_alert_is_noticed(url):
    kept = KeptAlerts(Quarantine(url))
    kept.add([alert()])
    quarantine = Quarantine(url)
    quarantine.log.verify()
    with quarantine.database.engine() as engine, engine.begin() as connection:
        connection.execute(sql("UPDATE ragshield_contradiction SET canaries = 9"))
    for use in (kept.list, lambda: kept.close(1, by="a", reason="b"), quarantine.log.verify):
        with pytest.raises(TamperedError, match="ragshield_contradiction"):
            use()


# From a checker


def test_a_checker_keeps_its_alerts_behind_writes(url):
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    watcher = checker(KeptAlerts(Quarantine(url))).watch(guard)
    guard.writes.learn(new(wrong(), "The violin is old"))
    guard.writes.learn(new(wrong()))
    assert watcher.wait(10)
    assert [one.alert.entry_id for one in KeptAlerts(Quarantine(url)).list()] == ["new-0"]


def test_two_checkers_share_the_budget(url):
    pair = [checker(KeptAlerts(Quarantine(url)), per_day=1) for _ in range(2)]
    first, second = (
        one.check(batch([(name, wrong())])) for one, name in zip(pair, "ab", strict=True)
    )
    assert (names(first.alerts), names(second.alerts)) == (["a"], [])
    assert names(second.over_budget) == ["b"]


def test_an_alert_that_cannot_be_kept_is_told(tmp_path, caplog):
    broken = KeptAlerts(Quarantine(f"sqlite:///{tmp_path}"))  # a folder
    done = checker(broken, per_day=1).check(new(wrong()))
    assert names(done.alerts) == ["new-0"]
    assert "alerts cannot be kept: QuarantineError" in caplog.text


def test_quotations_stay_out_of_logs_and_are_bounded(url, caplog):
    kept = KeptAlerts(Quarantine(url))
    with caplog.at_level(logging.DEBUG):
        checker(kept).check(new(f"{wrong()} \0 \ud800 {'x' * 5_000}"))
        (one,) = kept.list()
        kept.close(one.number, by="anna \ud800", reason="\0 read")
    assert FALSE in one.alert.claim
    assert len(one.alert.claim) <= 600
    assert FALSE not in caplog.text


# Shown


@pytest.fixture
def bad(url):
    KeptAlerts(Quarantine(url)).add([alert("\x1b[2J bad\u202e"), alert("second", canaries=1)])
    return url


def run(*arguments):
    return CliRunner().invoke(app, ["contradictions", *arguments])


def test_the_command_lists_and_closes(bad):
    shown = run("list", "--database", bad, "--limit", "1")
    assert shown.exit_code == 0, shown.output
    assert "2 open alerts" in shown.output
    assert "1. 20" in shown.output
    assert '"second opens at nine", there stands "it opens at eight"' in shown.output
    assert "bad" not in shown.output
    closed = run("close", "1", "--database", bad, "--by", "anna", "--reason", "read")
    assert "alert 1 is closed" in closed.output
    shown = run("list", "--database", bad)
    assert "1 open alerts" in shown.output
    assert "\x1b" not in shown.output
    (one,) = json.loads(run("list", "--database", bad, "--format", "json").output)
    assert (one["number"], one["claim"]) == (2, "\x1b[2J bad\u202e opens at nine")
    again = run("close", "1", "--database", bad, "--by", "anna", "--reason", "read")
    assert again.exit_code == 2
    assert "closed by 'anna'" in again.output
    assert run("list", "--database", f"{bad}.other").exit_code == 2


def test_the_status_names_open_alerts_and_the_command(url):
    guard = Guard.open(url, detectors=[LabelCentroidDetector()])
    assert "ragshield contradictions list" not in str(guard.status())
    KeptAlerts(guard.quarantine).add([alert()])
    KeptAlerts(Quarantine(url, namespace="other")).add([alert("x"), alert("y")])
    assert guard.status().contradictions == 1
    assert "1 open: ragshield contradictions list" in str(guard.status())
    outside = CliRunner().invoke(app, ["status", "--database", url])
    assert "1 open: ragshield contradictions list" in outside.output


def test_the_check_of_a_file_keeps_alerts_on_request(tmp_path, url):
    facts = "The keeper of the lantern on the Norrholm rocks is called Ingrid Vestergaard."
    rows = [*zip(KNOWN.ids, KNOWN.texts, strict=True), ("fact", facts)]
    rows.append(("altered", facts.replace("Ingrid Vestergaard", "Peter Lund")))
    lines = [
        json.dumps({"id": i, "text": one, "embedding": vector})
        for (i, one), vector in zip(rows, embed([one for _, one in rows]).tolist(), strict=True)
    ]
    (tmp_path / "kb.jsonl").write_text("\n".join(lines))
    (tmp_path / "clean.txt").write_text("\n".join([*knowledge().ids, "fact"]))
    arguments = ["check", str(tmp_path / "kb.jsonl"), "--clean", str(tmp_path / "clean.txt")]
    arguments += ["--work-dir", str(tmp_path), "--database", url]
    assert run(*arguments).exit_code == 1
    assert not Quarantine(url).exists()
    assert run(*arguments, "--keep").exit_code == 1
    assert [one.alert.entry_id for one in KeptAlerts(Quarantine(url)).list()] == ["altered"]
    KeptAlerts(Quarantine(url)).close(1, by="anna", reason="read")
    assert run(*arguments, "--keep").exit_code == 0
