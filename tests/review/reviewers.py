"""Cases to review, and reviewers who look at them."""

import re

import numpy as np
from held import found
from starlette.testclient import TestClient

from ragshield_core import Batch

TOKEN = "of more than thirty-two characters"  # noqa: S105 - of tests
TOKENS = {"anna": f"anna's, {TOKEN}", "bert": f"bert's, {TOKEN}"}


def held(quarantine, texts, *, related=True, detector="clique", lineages=None, spans=None):
    """Hold texts as one group, or each by itself; return their ids."""
    start = quarantine.count(None) if quarantine.exists() else 0
    ids = [f"e{start + n}" for n in range(len(texts))]
    decisions = [
        found(i, [j for j in ids if related and j != i], detector, span=span)
        for i, span in zip(ids, spans or [None] * len(ids), strict=True)
    ]
    vectors = np.random.default_rng(start).normal(size=(len(ids), 8))
    batch = Batch.of(ids=ids, texts=texts, embeddings=vectors, lineages=lineages)
    quarantine.hold(batch, decisions)
    return ids


class Browser:
    """The actions of a person on the page, without a browser."""

    def __init__(self, app, name="anna", *, token=None, log_in=True):
        self.client = TestClient(app, base_url="http://localhost")
        self.name = name
        if log_in:
            self.last = self.client.post("/login", data={"token": token or TOKENS[name]})
            assert self.last.status_code == 200, self.last.text

    def get(self, path):
        self.last = self.client.get(path)
        return self.last

    @property
    def csrf(self):
        return re.search(r'name="csrf" value="([^"]+)"', self.last.text).group(1)

    @property
    def told(self):
        return " ".join(re.findall(r'class="told"[^>]*>([^<]+)', self.last.text))

    @property
    def entries(self):
        return re.findall(r'name="entry" value="(\d+)"', self.last.text)

    def post(self, path, **data):
        self.last = self.client.post(path, data={"csrf": self.csrf, **data})
        return self.last

    def decide(self, case, action, entries=None, **data):
        self.get(f"/cases/{case}")
        chosen = self.entries if entries is None else entries
        return self.post(f"/cases/{case}", action=action, entry=chosen, **data)
