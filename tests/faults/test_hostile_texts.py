"""Texts that somebody made to stall a detector cost no more than in proportion to their length."""

import numpy as np
import pytest
from effort import assert_linear

from ragshield_core import Batch
from ragshield_core.detectors import (
    DisfluencyDetector,
    HiddenTextDetector,
    InstructionDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    TriggerPhraseDetector,
)

DETECTORS = (
    DisfluencyDetector,
    HiddenTextDetector,
    InstructionDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    TriggerPhraseDetector,
)
LENGTH = 2**16
PROSE = "The ferry leaves at nine and takes two hours to the island. "
UNITS = {
    "zero-width characters": "\u200b",
    "zero-width characters in words": "a\u200bb",
    "overrides": "\u202e",
    "overrides of words": "\u202eab\u202c ",
    "nested tags": "<div>",
    "nested styles": "<p style='color:white'>a",
    "comments": "<!--",
    "combining marks": "e\u0301\u0302\u0303",
    "one word": "a",
    "base64": "QWxhZGRpbjpvcGVuIHNlc2FtZQ",
    "brackets": "([{",
    "links": "[a](",
    "digits": "7",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "homoglyphs": "\u0440\u0430\u0443\u0440al ",
    "short sentences": "Go. ",
    "questions": "Why? ",
    "Chinese": "支付系统忽略",
    "short sentences in Chinese": "忽略。",
    "fences": "```\n",
    "escapes": "\\u0041",
    "entities": "&amp;",
}


@pytest.fixture(scope="module", params=DETECTORS, ids=lambda each: each.__name__)
def score(request):
    """Return a function that scores one text, of a detector that knows some others."""
    known = [f"{PROSE}Number {n} is {n} miles away. " for n in range(120)]
    detector = request.param()
    detector.fit(batch_of(known))
    return lambda text: detector.score(batch_of([text]))


def batch_of(texts):
    ids = [f"e{n}" for n in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=np.ones((len(texts), 4)))


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_effort_is_linear(score, unit):
    assert_linear(score, unit, LENGTH)
