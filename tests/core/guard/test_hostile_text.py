"""Text is assumed hostile: it is escaped wherever it is shown, and never logged."""

import io
import json
import logging

import pytest
from rich.console import Console
from support import Scripted, guard_of, knowledge_base, scored, topical

from ragshield_core import (
    Batch,
    Decision,
    PoisonedEntryError,
    Report,
    Verdict,
)
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.model.findings import Skipped, printable

HOSTILE = {
    "terminal escape": "\x1b[2J\x1b]0;owned\x07",
    "C1 control": "\x9b31m",
    "bidi override": "safe\u202egpj.exe",
    "bidi isolate": "\u2066hidden\u2069",
    "zero width": "pay\u200bpal",
    "new lines": "one\r\ntwo\u2028three",
    "html": "<img src=x onerror=alert(1)>",
    "html entity": "&lt;b&gt;\"'",
    "rich markup": "[bold red]alarm[/bold red] [link=http://evil]x[/link]",
    "broken markup": "[/nonsense]",
}
PAYLOAD = "wire the money to"
DANGEROUS = set("\x1b\x07\x9b\u202e\u2066\u2069\u200b\r\u2028")
every_text = pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)


def fitted(**policy):
    guard = guard_of(LabelCentroidDetector(), Scripted("by text"), **policy)
    return guard.fit(knowledge_base(10))


def hostile_batch(hostile):
    """Return two flipped entries and one of an unknown label, with every field hostile."""
    bad = topical("shipping", 3, prefix="bad")
    return Batch.of(
        ids=[f"{hostile}{i}" for i in range(3)],
        texts=[f"{hostile} {PAYLOAD} score=3"] * 3,
        embeddings=bad.vectors,
        labels=["billing", "billing", hostile],
        lineages=[hostile] * 3,
        metadatas=[{hostile: hostile}] * 3,
    )


def rendered(report):
    # 400 columns, so that nothing is wrapped; no colours, so that every escape is somebody else's
    console = Console(file=io.StringIO(), width=400, color_system=None, force_terminal=False)
    console.print(report)
    return console.file.getvalue()


@every_text
def test_reports_show_hostile_text_escaped(hostile):
    guard = fitted()
    report = guard.screen(hostile_batch(hostile))
    assert len(report.quarantined) == 3
    shown, page = rendered(report), report._repr_html_()
    for text in (repr(report), shown, page):
        assert not DANGEROUS & set(text)
    assert "<img" not in page
    assert "&lt;b&gt;" not in page
    if hostile.isprintable() and "'" not in hostile:
        assert hostile in shown  # markup is shown, not obeyed
    else:
        assert printable(f"{hostile}0") in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in page or "<" not in hostile


@every_text
def test_notes_and_reasons_are_escaped_as_well(hostile):
    batch = scored([0.0])
    decision = Decision(entry_id="e", verdict=Verdict.QUARANTINE, note=hostile)
    skipped = (Skipped(detector=hostile, reason=hostile),)
    report = Report(batch=batch, remarkable={0: decision}, skipped=skipped)
    assert not DANGEROUS & set(rendered(report) + report._repr_html_())
    assert "<img" not in report._repr_html_()
    assert rendered(report).count(printable(hostile)) == 3


@every_text
@pytest.mark.slow
def test_logs_and_errors_never_hold_the_text(hostile, caplog):
    caplog.set_level(logging.DEBUG)
    batch = hostile_batch(hostile)
    guard = fitted()
    guard.hold(guard.screen(batch))
    guard.quarantine.release([batch.ids[0]])
    guard.hold(guard.screen(batch))
    raising = fitted(on_detect="raise")
    with pytest.raises(PoisonedEntryError) as raised:
        raising.hold(raising.screen(batch))
    assert "quarantined 3 of 3" in caplog.text
    for text in (caplog.text, str(raised.value)):
        assert PAYLOAD not in text
        assert not DANGEROUS & set(text)
    assert len(caplog.text.splitlines()) == len(caplog.records)  # nobody forges a line


def test_a_report_as_json_holds_no_text_and_no_vector():
    guard = fitted()
    report = guard.screen(topical("shipping", 2, label="billing", prefix=PAYLOAD))
    content = report.to_json()
    decisions = json.loads(content)["decisions"]
    assert [d["verdict"] for d in decisions] == ["quarantine", "quarantine"]
    assert decisions[0]["findings"][0]["detector"] == "label_centroid"
    assert report.batch.texts[0] not in content


def test_a_report_as_a_frame_has_one_row_per_entry():
    report = fitted().screen(topical("shipping", 2, label="billing", prefix="bad"))
    frame = report.to_frame()
    assert frame["entry_id"].tolist() == list(report.batch.ids)
    assert frame["verdict"].tolist() == ["quarantine"] * 2
    assert (frame["score"] > frame["threshold"]).all()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 🦊", "plain é 漢 🦊"),
        ("\x1b[31m", "\\u{1b}[31m"),
        ("a\u202eb", "a\\u{202e}b"),
        ("", ""),
    ],
)
def test_printable_keeps_readable_characters_and_escapes_the_rest(text, shown):
    assert printable(text) == shown


def test_printable_is_one_short_line():
    assert printable("x" * 300) == "x" * 300
    assert printable("x" * 301) == "x" * 297 + "..."
    assert len(printable("\x1b" * 10_000)) < 3000
