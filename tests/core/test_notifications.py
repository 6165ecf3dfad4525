"""Notices: sent once, signed, and without blocking a write."""

import base64
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from canary_world import poison, questions, watched
from held import found, hold
from support import knowledge_base, topical

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.errors import ConfigurationError
from ragshield_core.model.findings import Decision, Report, Unjudged, Verdict
from ragshield_core.tools.review.notifications import (
    TITLES,
    Kind,
    Notice,
    Notifier,
    Webhook,
)

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
MARKER = "a text about g0 and nothing else"


def report_of(*decisions):
    ids = [decision.entry_id for decision in decisions]
    batch = Batch.of(ids=ids, texts=["x"] * len(ids), embeddings=np.eye(len(ids), 8))
    return Report(batch=batch, remarkable=dict(enumerate(decisions)))


class Receiver:
    """A server that takes notices, after some other answers."""

    def __init__(self, *answers, slow=0.0):
        self.requests, self.answers = [], list(answers)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                time.sleep(slow)
                receiver.requests.append((self.path, dict(self.headers), body))
                status = receiver.answers.pop(0) if receiver.answers else 200
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=hidden"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver():
    made = []

    def make(*answers, **how):
        made.append(Receiver(*answers, **how))
        return made[-1]

    yield make
    for each in made:
        each.server.shutdown()
        each.server.server_close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("ragshield_core.tools.review.notifications.LONGEST_PAUSE", 0.01)


class Heard(list):
    """The notices of a notifier, once all are delivered."""

    def __init__(self, **options):
        self.notifier = Notifier([self.append], **options)

    def all(self):
        assert self.notifier.flush()
        return self


def notice(number=0):
    return Notice(id=f"msg_{number}", kind=Kind.LOG_BROKEN, said="broken", data={"n": 1})


def test_large_group_is_notified_once(quarantine):
    heard = Heard(group=5)
    ids = [f"g{n}" for n in range(6)]
    decisions = [found(i, [j for j in ids if j != i]) for i in ids]
    hold(quarantine, *decisions[:4])
    heard.notifier.screened(report_of(*decisions[:4]), quarantine)
    assert heard.all() == []
    hold(quarantine, decisions[4])
    heard.notifier.screened(report_of(decisions[4]), quarantine)
    hold(quarantine, decisions[5])
    heard.notifier.screened(report_of(decisions[5]), quarantine)
    (one,) = heard.all()
    assert (one.kind, one.data["n_waiting"], one.data["detectors"]) == ("group_held", 5, ["clique"])
    assert one.data["entry_ids"] == ids[:5]
    assert MARKER not in json.dumps(one.to_dict())
    again = []
    other = Notifier([again.append], group=5)  # of another worker
    other.screened(report_of(decisions[5]), quarantine)
    assert other.flush()
    assert again[0].id == one.id


def test_long_queue_is_notified_once_until_it_shrinks(quarantine):
    heard = Heard(group=None, longest_queue=2)
    for number in range(5):
        hold(quarantine, found(f"e{number}"))
        heard.notifier.screened(report_of(found(f"e{number}")), quarantine)
    quarantine.confirm([f"e{number}" for number in range(4)])
    heard.notifier.screened(report_of(Decision(entry_id="x", verdict=Verdict.ADMIT)), quarantine)
    for number in range(5, 8):
        hold(quarantine, found(f"e{number}"))
        heard.notifier.screened(report_of(found(f"e{number}")), quarantine)
    assert [(one.kind, one.data["n_waiting"]) for one in heard.all()] == [("queue_long", 3)] * 2


def test_failing_detector_is_notified_once_until_it_recovers(quarantine):
    heard = Heard()

    def screened(*, failed):
        unjudged = (Unjudged(detector="clique", entry_id="a", reason="x", failed=True),)
        decision = Decision(
            entry_id="a", verdict=Verdict.ADMIT, unjudged=unjudged if failed else ()
        )
        one = report_of(decision)
        scores = {} if failed else {"clique": np.zeros(1)}
        heard.notifier.screened(
            Report(batch=one.batch, remarkable=one.remarkable, scores=scores), quarantine
        )

    for failed in (True, True, False, True):
        screened(failed=failed)
    assert [(one.kind, one.data["detector"]) for one in heard.all()] == [
        ("detector_failing", "clique")
    ] * 2


def test_nightly_verification_is_recorded_and_a_broken_log_notified(on_file):
    quarantine, heard = Quarantine(on_file), Heard()
    hold(quarantine, found("g0"))
    assert heard.notifier.verify(quarantine)
    assert quarantine.log.verification() == (None, True)  # nobody in particular
    assert heard.notifier.verify(quarantine, by="nightly")
    last, _ = quarantine.log.verification()
    assert (last.actor, last.note) == ("nightly", "whole up to line 1")
    with quarantine.database.engine() as engine, engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ragshield_audit_log SET actor = 'eve' WHERE seq = 1")
    for _ in range(2):
        assert not heard.notifier.verify(quarantine, by="nightly")
    last, _ = quarantine.log.verification()
    assert last.note.startswith("broken up to line 3: the audit log is broken at line 1")
    assert [one.kind for one in heard.all()] == [Kind.LOG_BROKEN]  # once, though the log has grown


def test_truncated_log_is_notified_once_and_not_overwritten(on_file):
    quarantine, heard = Quarantine(on_file), Heard()
    hold(quarantine, *(found(f"g{n}") for n in range(5)))
    anchor = quarantine.log.head()
    with quarantine.database.engine() as engine, engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM ragshield_audit_log WHERE seq > 2")
        connection.exec_driver_sql("DELETE FROM ragshield_quarantine WHERE number > 2")
    for _ in range(4):
        assert not heard.notifier.verify(quarantine, anchor, by="nightly")
    assert quarantine.log.end() == 2
    assert quarantine.log.verification() == (None, True)
    for n in range(5, 9):  # others write on, up to the anchor and past it
        hold(quarantine, found(f"g{n}"))
        assert not heard.notifier.verify(quarantine, anchor, by="nightly")
    assert quarantine.log.verification()[0].note.startswith("broken up to line")
    (one,) = heard.all()
    said = "broken at line 5: the anchor has seen it, and the log ends at line 2"
    assert (one.kind, said in one.said) == (Kind.LOG_BROKEN, True)


def test_tampered_quarantine_rows_are_notified(on_file):
    quarantine, heard = Quarantine(on_file), Heard()
    hold(quarantine, found("g0"), found("g1"))
    for number in (2, 1):
        with quarantine.database.engine() as engine, engine.begin() as connection:
            change = "UPDATE ragshield_quarantine SET label = 'x' WHERE number = ?"
            connection.exec_driver_sql(change, (number,))
        for _ in range(2):
            assert not heard.notifier.verify(quarantine)
    assert MARKER not in json.dumps([one.to_dict() for one in heard])
    assert [one.said.partition(" (")[0] for one in heard.all()] == [
        f"row {number} of ragshield_quarantine" for number in (2, 1)
    ]


def test_only_drifted_canaries_are_notified(quarantine):
    heard = Heard()
    guard = Guard([LabelCentroidDetector()], quarantine=quarantine).fit(knowledge_base())
    world = watched(quarantine=quarantine)
    world.monitor.watch(guard, heard.notifier.drifted)
    guard.admit(guard.screen(topical("billing", 2, prefix="new")))
    heard.notifier.drifted(world.monitor.check())  # nothing has
    assert heard.all() == []
    question = questions()[0]
    world.add(poison(question, 4))
    guard.admit(guard.screen(topical("billing", 2, prefix="newer")))
    (one,) = heard.all()
    assert one.kind is Kind.CANARY_DRIFTED
    assert one.data["n"] == len(one.data["canaries"]) >= 1
    assert question in one.data["canaries"]
    assert "certainly false" not in json.dumps(one.to_dict())


def test_guard_notifies_about_held_groups(quarantine):
    heard = []
    notifier = Notifier([heard.append])
    guard = Guard([CliqueDetector()], quarantine=quarantine).notify(notifier)
    ids = [f"g{n}" for n in range(5)]
    decisions = [found(i, [j for j in ids if j != i]) for i in ids]
    guard.hold(report_of(*decisions))
    assert notifier.flush()
    assert [one.kind for one in heard] == ["group_held"]
    with pytest.raises(TypeError, match="Notifier"):
        guard.notify("everybody")


@pytest.mark.slow
def test_webhook_carries_a_signature_that_receivers_can_verify(receiver):
    there = receiver()
    Webhook(there.url, SECRET)(notice())
    ((path, headers, body),) = there.requests
    assert path == "/hook?token=hidden"
    named = {name.lower(): value for name, value in headers.items()}
    signed = f"{named['webhook-id']}.{named['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert named["webhook-signature"] == f"v1,{digest}"
    assert abs(int(named["webhook-timestamp"]) - time.time()) < 60
    told = json.loads(body)
    assert told["type"] == "ragshield.log_broken"
    assert told["data"]["id"] == named["webhook-id"] == "msg_0"


@pytest.mark.slow
def test_webhook_retries_and_logs_the_final_failure(receiver, caplog):
    there = receiver(500, 503)
    Webhook(there.url, SECRET)(notice())
    assert len(there.requests) == 3
    assert len({headers["webhook-id"] for _, headers, _ in there.requests}) == 1
    gone = receiver(*[500] * 10)
    heard = []
    notifier = Notifier([Webhook(gone.url, SECRET), heard.append])
    notifier.tell(notice())
    assert notifier.flush(20.0)
    assert (len(gone.requests), notifier.n_failed, len(heard)) == (6, 1, 1)
    assert "msg_0 (log_broken) did not reach Webhook('127.0.0.1')" in caplog.text
    assert "hidden" not in caplog.text  # addresses hold secrets


@pytest.mark.slow
def test_redirects_are_not_followed(receiver):
    there = receiver(302)
    Webhook(there.url, SECRET)(notice())
    assert [path for path, _, _ in there.requests] == ["/hook?token=hidden"] * 2


@pytest.mark.slow
def test_slow_receiver_blocks_nobody_and_full_queue_is_logged(receiver, monkeypatch, caplog):
    monkeypatch.setattr("ragshield_core.tools.review.notifications.WAITING", 3)
    there = receiver(slow=0.3)
    notifier = Notifier([Webhook(there.url, SECRET)])
    start = time.monotonic()
    for number in range(10):
        notifier.tell(notice(number))
    assert time.monotonic() - start < 0.25
    assert notifier.n_dropped >= 5
    assert "is dropped" in caplog.text
    assert notifier.flush(30.0)
    assert len(there.requests) == 10 - notifier.n_dropped


@pytest.mark.parametrize(
    ("url", "secret", "said"),
    [
        ("http://example.org/hook", SECRET, "no https"),
        ("ftp://127.0.0.1/", SECRET, "no https"),
        ("https://example.org/hook", "secret", "openssl"),
        ("https://example.org/hook", "whsec_dG9vIHNob3J0", "openssl"),
    ],
)
def test_insecure_url_or_secret_is_refused(url, secret, said):
    with pytest.raises(ConfigurationError, match=said):
        Webhook(url, secret)


HOSTILE = "<!channel> & <https://evil.example|read> [this](https://evil.example) \x1b[2J"


@pytest.fixture
def group_held(quarantine):
    """Return the notice of a group with hostile ids."""
    heard = Heard(group=5)
    decisions = [found(f"{HOSTILE}{n}" + "i" * 1_000, [f"{HOSTILE}0"]) for n in range(8)]
    hold(quarantine, *decisions)
    heard.notifier.screened(report_of(*decisions), quarantine)
    (notice,) = heard.all()
    assert len(notice.said) <= 600
    return notice


@pytest.mark.slow
def test_slack_message_escapes_hostile_text(receiver, group_held):
    there = receiver(500)
    Webhook(there.url, form="slack", review_url="https://review.example/a&b/")(group_held)
    assert len(there.requests) == 2
    _, headers, body = there.requests[-1]
    assert "webhook-signature" not in {name.lower() for name in headers}
    told = json.loads(body)
    assert told["text"] == TITLES[Kind.GROUP_HELD]
    title, text, link = (block["text"] for block in told["blocks"])
    assert [one["type"] for one in (title, text, link)] == ["mrkdwn", "plain_text", "mrkdwn"]
    assert "8 entries wait for one decision, case 1, found by clique" in text["text"]
    assert "&lt;!channel&gt; &amp; &lt;https" in text["text"]
    assert "<" not in text["text"]
    assert len(text["text"]) < 3_000
    assert "\x1b" not in text["text"]
    assert link["text"] == "<https://review.example/a&amp;b/cases/1|Open the review page>"


@pytest.mark.slow
def test_teams_gets_a_card_whose_text_has_no_markdown(receiver, group_held):
    there = receiver(202)
    Webhook(there.url, form="teams", review_url="https://review.example")(group_held)
    ((_, _, body),) = there.requests
    told = json.loads(body)
    (attachment,) = told["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    title, text = attachment["content"]["body"]
    assert title["text"] == TITLES[Kind.GROUP_HELD]
    assert text["type"] == "RichTextBlock"
    assert HOSTILE.split("\x1b", maxsplit=1)[0] in text["inlines"][0]["text"]
    (action,) = attachment["content"]["actions"]
    assert action["url"] == "https://review.example/cases/1"
    Webhook(there.url, form="teams")(group_held)
    assert "actions" not in json.loads(there.requests[-1][2])["attachments"][0]["content"]


def test_a_chat_needs_https_and_a_real_review_page():
    with pytest.raises(ConfigurationError, match="no https"):
        Webhook("http://hooks.example/services/1", form="slack")
    with pytest.raises(ConfigurationError, match="review_url"):
        Webhook("https://hooks.example/1", form="teams", review_url="javascript:alert(1)")


@pytest.mark.slow
def test_settings_name_the_chat(tmp_path, monkeypatch, receiver):
    monkeypatch.chdir(tmp_path)
    there = receiver()
    (tmp_path / "ragshield.toml").write_text(
        f'webhook = "{there.url}"\nwebhook_format = "slack"\ndatabase = "sqlite://"\n'
        'review_url = "https://review.example"\ndetectors = ["clique"]\n'
    )
    guard = Guard.from_config()
    guard._notifier.tell(notice())
    assert guard._notifier.flush()
    assert "https://review.example/health" in there.requests[0][2].decode()
    guard.close()


def test_settings_name_a_webhook_and_hide_it(tmp_path, monkeypatch):
    from ragshield_core.settings import Settings  # noqa: PLC0415
    from ragshield_core.settings.reading import listed  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ragshield.toml").write_text(
        'webhook = "https://hooks.example/services/hidden"\ngroup = 3\ndatabase = "sqlite://"\n'
        'detectors = ["clique"]\n'
    )
    shown = {name: value for name, value, _ in listed(Settings.read())}
    assert shown["webhook"] == "(an address of hooks.example)"
    with pytest.raises(ConfigurationError, match="RAGSHIELD_WEBHOOK_SECRET"):
        Guard.from_config()
    monkeypatch.setenv("RAGSHIELD_WEBHOOK_SECRET", SECRET)
    guard = Guard.from_config()
    assert guard._notifier.group == 3
    shown = {name: value for name, value, _ in listed(Settings.read())}
    assert shown["webhook_secret"] == "(set, hidden)"  # noqa: S105 - as it is shown
    guard.close()
