"""A quarantine with cases, and reviewers who look at it."""

import pytest
from reviewers import TOKENS, Browser

from ragshield_core import Quarantine
from ragshield_core.tools.review import review_app


@pytest.fixture
def quarantine(tmp_path):
    return Quarantine(f"sqlite:///{tmp_path}/review.db")


@pytest.fixture
def app(quarantine):
    return review_app(quarantine, tokens=TOKENS)


@pytest.fixture
def anna(app):
    return Browser(app)
