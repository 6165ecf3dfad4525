"""The custom event and the log report findings, and never quote texts."""

import json
import logging

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from support import Scripted, scored

from ragshield_core import Guard, Policy, Quarantine
from ragshield_langchain.events import EVENT, areport_detection, report_detection

HOSTILE = "hostile words"


class Heard(BaseCallbackHandler):
    raise_error = True

    def __init__(self):
        self.events = []

    def on_custom_event(self, name, data, *, run_id, **_):
        assert run_id is not None
        self.events.append((name, data))


class HeardAsync(AsyncCallbackHandler):
    def __init__(self):
        self.events = []

    async def on_custom_event(self, name, data, **_):
        self.events.append((name, data))


def screened(*scores):
    guard = Guard([Scripted()], policy=Policy(), quarantine=Quarantine("sqlite://"))
    batch = scored(scores)
    texts = [f"{HOSTILE} {text}" for text in batch.texts]
    return guard.screen(
        type(batch).of(
            ids=batch.ids, texts=texts, embeddings=batch.embeddings, labels=[HOSTILE] * 3
        )
    )


FOUND, NOTHING = screened(-1, 5, -1), screened(-1, -1, -1)


def test_event_carries_ids_hashes_and_scores_but_no_text():
    heard = Heard()
    step = RunnableLambda(report_detection)
    step.invoke(FOUND, {"callbacks": [heard]})
    ((name, data),) = heard.events
    assert name == EVENT == "ragshield.detection"
    (item,) = data["quarantined"]
    assert item["entry_id"] == FOUND.batch.ids[1]
    assert item["fingerprint"] == FOUND.batch[1].fingerprint
    assert item["findings"][0]["score"] == 5
    assert (data["n_entries"], data["flagged"], data["retroactive"]) == (3, [], [])
    assert HOSTILE not in json.dumps(data)
    assert "score=" not in json.dumps(data), "evidence quotes the text"


async def test_async_handlers_and_astream_events_receive_the_event():
    heard = HeardAsync()

    async def step(report):
        await areport_detection(report)

    stream = RunnableLambda(step).astream_events(FOUND, {"callbacks": [heard]}, version="v2")
    streamed = [event async for event in stream if event["event"] == "on_custom_event"]
    assert [name for name, _ in heard.events] == [EVENT]
    assert [event["name"] for event in streamed] == [EVENT]


async def test_detection_outside_a_run_is_only_logged(caplog):
    heard = Heard()
    with caplog.at_level(logging.INFO, "ragshield"):
        report_detection(FOUND)
        report_detection(FOUND, [heard])
        await areport_detection(FOUND)
    assert heard.events == []
    assert len(caplog.records) == 6
    assert FOUND.batch[1].fingerprint in caplog.text
    assert HOSTILE not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "ragshield"):
        report_detection(FOUND, stage="ingestion")  # the guard logs the entries it holds
    assert caplog.records == []


def test_the_error_of_a_handler_is_not_swallowed():
    class Broken(Heard):
        def on_custom_event(self, *_, **__):
            msg = "handler"
            raise RuntimeError(msg)

    step = RunnableLambda(report_detection)
    with pytest.raises(RuntimeError, match="handler"):
        step.invoke(FOUND, {"callbacks": [Broken()]})
