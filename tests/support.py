"""Entries, guards, detectors and embeddings; everything is seeded by what it is called."""

import io
import json
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from ragshield_core import Batch, Detector, Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector, Evidence, GroupDetector, Need
from ragshield_core.sharing.shared_writes import SharedWrites

DIM = 12
TOPICS = ("billing", "shipping", "refunds")
LENGTH = 2.5  # vectors are not of unit length, so that a test sees when somebody normalises them


def slowly(*values):
    """Return parameters that only the whole suite takes: the fast one has others of their kind."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def the_one(seen, category):
    """Return the only recorded warning of ``category``; what else was warned of is others'.

    A connection that another test left behind is warned of wherever it happens to be collected.
    """
    (warned,) = (one for one in seen if one.category is category)
    return warned


def guard_of(*detectors, url="sqlite://", quarantine=None, seed=0, **policy):
    """Return a guard of detectors, else a scripted one, with a quarantine in memory, else there."""
    quarantine = quarantine or Quarantine(url)
    detectors = detectors or [Scripted()]
    return Guard(detectors, policy=Policy(**policy), quarantine=quarantine, seed=seed)


def loaded(folder, **options):
    """Return the guard that was saved in a folder, with an empty quarantine."""
    return Guard.load(folder, **{"quarantine": Quarantine("sqlite://")} | options)


def write(guard, batch, live=None):
    """Write a batch as a store does, a dict being the store; return the report."""
    live = {} if live is None else live
    report = guard.hold(guard.screen(batch))
    recalled = [d for d in report.retroactive if d.entry_id in live]
    if recalled:
        gone = join(*(live[d.entry_id] for d in recalled))
        guard.recall(gone, recalled, lambda ids: [live.pop(i) for i in ids])
    guard.admit(report)
    kept = batch.take(report.admitted)
    live |= {entry_id: kept.take([row]) for row, entry_id in enumerate(kept.ids)}
    return report


def held_in(report):
    """Return the ids of what a report holds."""
    return {decision.entry_id for decision in report.quarantined}


def parts(batch, size=1):
    """Return a batch in parts."""
    return [batch.take(range(s, min(s + size, len(batch)))) for s in range(0, len(batch), size)]


def through_files(values, arrays):
    """Return a state after a way through JSON and npz, without pickle."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as read:
        return json.loads(json.dumps(values)), dict(read)


def entries(texts, prefix="e", **columns):
    """Return entries of texts, all with the same vector unless others are given."""
    texts = list(texts)
    ids = [f"{prefix}{i}" for i in range(len(texts))]
    return Batch.of(
        **{"ids": ids, "texts": texts, "embeddings": np.ones((len(texts), 2))} | columns
    )


def vector_of(text, noise=0.1):
    """Return a float32 vector near the axis of the text's first word, of length ``LENGTH``."""
    words = text.split()
    topic = words[0] if words else ""
    rng = np.random.default_rng(zlib.crc32(text.encode("utf-8", "surrogatepass")))
    vector = rng.normal(scale=noise, size=DIM)
    axis = TOPICS.index(topic) if topic in TOPICS else zlib.crc32(topic.encode()) % DIM
    vector[axis] += 1.0
    return (LENGTH * vector / np.linalg.norm(vector)).astype(np.float32)


def topical(topic, n, *, label=None, prefix="kb", noise=0.1, **columns):
    """Return n entries about a topic, labelled with it or with a wrong ``label``."""
    texts = [f"{topic} {prefix} {i}" for i in range(n)]
    given = {"labels": [label or topic] * n} | columns
    return Batch.of(
        ids=[f"{prefix}-{topic}-{i}" for i in range(n)],
        texts=texts,
        embeddings=np.array([vector_of(text, noise) for text in texts]).reshape(n, DIM),
        **given,
    )


def join(*batches):
    """Return the entries of several batches as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.vectors for b in batches]),
        labels=[label for b in batches for label in b.labels],
        lineages=[lineage for b in batches for lineage in b.lineages],
        metadatas=[m for b in batches for m in b.metadatas],
    )


def knowledge_base(n=20, **options):
    """Return n entries of each topic."""
    return join(*(topical(topic, n, **options) for topic in TOPICS))


def gaussian(n, seed, *, labels=("ham", "spam"), spread=1.0, dim=16, prefix="g"):
    """Return entries of overlapping clouds, one per label: some clean ones look flipped."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(len(labels), size=n)
    vectors = rng.normal(scale=spread, size=(n, dim)) + 1.0
    vectors[np.arange(n), codes] += 2.0
    return Batch.of(
        ids=[f"{prefix}{seed}-{i}" for i in range(n)],
        texts=[""] * n,
        embeddings=vectors,
        labels=[labels[code] for code in codes],
    )


def scored(scores, prefix="s", **columns):
    """Return entries to which :class:`Scripted` gives these scores."""
    n = len(scores)
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[f"score={score}" for score in scores],
        embeddings=np.ones((n, 2)),
        **columns,
    )


class Scripted(Detector):
    """Reads its score out of the text, else -1; needs neither labels nor knowledge."""

    name = "scripted"
    needs = frozenset({Need.TEXT})

    def __init__(self, name="scripted"):
        self.name = name
        self.learned = 0

    def reset(self):
        self.learned = 0

    def learn(self, entries):
        self.learned += len(entries)

    def forget(self, entries):
        self.learned -= len(entries)

    def score(self, batch):
        said = [text.partition("score=")[2] for text in batch.texts]
        return np.array([float(score or -1) for score in said])

    def explain(self, batch, rows):
        return [Evidence(sentence=f"its text says {batch.texts[row][-12:]!r}") for row in rows]

    def state(self):
        return {"learned": self.learned}, {}

    def restore(self, values, arrays):  # noqa: ARG002
        self.learned = values["learned"]


class FindsNoGroups(GroupDetector):
    """Does nothing of what is asked of groups; put another base class before it."""

    def remember_held(self, entries):
        pass

    def forget_held(self, ids):
        pass

    def overlook(self, ids):
        pass

    def trust(self, ids):
        pass

    def outliers(self, reference):
        return np.zeros(len(reference), dtype=np.bool_)

    def held_outliers(self, entries, scores):  # noqa: ARG002
        return self.outliers(entries)

    def n_doubted(self):
        return 0

    def retroactive(self, batch, condemned, unusual=()):  # noqa: ARG002
        return [], np.empty(0)

    def explain_retroactive(self, batch, ids):
        return self.explain(batch, range(len(ids)))


class ScriptedGroups(Scripted, FindsNoGroups):
    """A scripted detector that is told of what is held."""


class CountingEmbeddings(Embeddings):
    """Remembers every call for documents; ``native`` ones come through the async method."""

    def __init__(self):
        self.calls = []
        self.native = 0

    @property
    def texts(self):
        return [text for call in self.calls for text in call]

    def embed_documents(self, texts):
        self.calls.append(list(texts))
        return [vector_of(text).tolist() for text in texts]

    async def aembed_documents(self, texts):
        self.native += 1
        return self.embed_documents(texts)

    def embed_query(self, text):
        return vector_of(text).tolist()


def snapshot(detector):
    """Return a detector's state as comparable values."""
    values, arrays = detector.state()
    # As JSON: a NaN is equal to itself there.
    return json.dumps(values), {key: json.dumps(array.tolist()) for key, array in arrays.items()}


def saved(guard, folder):
    """Return all that a guard has learned, as the bytes that it saves."""
    guard.save(folder, detectors=guard.detectors)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Passages of a knowledge base of several topics: documents of a few chunks, in words that say
# nothing. Unlike the entries above they have lineages, and hardly ever three words in common.

PASSAGE_DIM = 32
CHUNKS = 3
VOCABULARY = np.array([f"word{i}" for i in range(300)])
CENTRES = np.random.default_rng(99).normal(size=(8, PASSAGE_DIM))
CENTRES /= np.linalg.norm(CENTRES, axis=1, keepdims=True)
# Noise of this standard deviation per coordinate has a length of about one.
UNIT = PASSAGE_DIM**-0.5


def prose(rng, n_words=30):
    """Return random words."""
    return " ".join(rng.choice(VOCABULARY, n_words))


def passages(n, seed, prefix="kb"):
    """Return n clean passages of documents of three chunks each, about eight topics."""
    rng = np.random.default_rng(seed)
    n_documents = -(-n // CHUNKS)
    documents = CENTRES[rng.integers(len(CENTRES), size=n_documents)]
    documents = documents + rng.normal(scale=UNIT, size=documents.shape)
    rows = np.arange(n) // CHUNKS
    return Batch.of(
        ids=[f"{prefix}-{i}" for i in range(n)],
        texts=[prose(rng) for _ in range(n)],
        embeddings=documents[rows] + rng.normal(scale=0.6 * UNIT, size=(n, PASSAGE_DIM)),
        lineages=[f"{prefix}-doc{row}" for row in rows],
    )


def group(size, seed, prefix="bad", *, spread=0.25, lineage=None):
    """Return texts crafted for one question: alike in meaning, not in wording.

    Each is of a lineage of its own, or all of one ``lineage``.
    """
    rng = np.random.default_rng([7, seed])
    target = CENTRES[rng.integers(len(CENTRES))] + rng.normal(scale=UNIT, size=PASSAGE_DIM)
    ids = [f"{prefix}{seed}-{i}" for i in range(size)]
    return Batch.of(
        ids=ids,
        texts=[prose(rng) for _ in range(size)],
        embeddings=target + rng.normal(scale=spread * UNIT, size=(size, PASSAGE_DIM)),
        lineages=[lineage or entry_id for entry_id in ids],
    )


def of_source(batch, source):
    """Return a batch that comes from a source."""
    return replace(batch, sources=(source,) * len(batch))


def answers(entry, n, seed, prefix="bad", spread=0.2):
    """Return texts that answer what an entry answers, each in its own words."""
    rng = np.random.default_rng([11, seed])
    ids = [f"{prefix}{seed}-{i}" for i in range(n)]
    return Batch.of(
        ids=ids,
        texts=[prose(rng) for _ in range(n)],
        embeddings=entry.embedding + rng.normal(scale=spread * UNIT, size=(n, PASSAGE_DIM)),
        lineages=ids,
    )


def site(n, seed, spread=0.8, text="{}"):
    """Return entries of one template, about something that the knowledge base says nothing of."""
    rng = np.random.default_rng([3, seed])
    axis = rng.normal(size=PASSAGE_DIM)
    basis, _ = np.linalg.qr(CENTRES.T)
    axis -= basis @ (basis.T @ axis)
    axis /= np.linalg.norm(axis)
    return Batch.of(
        ids=[f"site{seed}-{i}" for i in range(n)],
        texts=[text.format(prose(rng)) for _ in range(n)],
        embeddings=axis + rng.normal(scale=spread * UNIT, size=(n, PASSAGE_DIM)),
        lineages=[f"site/{seed}/{i}.md" for i in range(n)],
    )


def clones_of(entry, n, prefix="clone", *, lineage=None):
    """Return n copies of an entry under lineages of their own, or all of one ``lineage``."""
    ids = [f"{prefix}-{i}" for i in range(n)]
    return Batch.of(
        ids=ids,
        texts=[entry.text] * n,
        embeddings=[entry.embedding] * n,
        lineages=[lineage or entry_id for entry_id in ids],
    )


def held_by_one(known, bad, rate):
    """Return the ids of what one guard holds, to which entries come one after the other."""
    guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
    guard.fit(known).calibrate(fpr=rate)
    for row in range(len(bad)):
        guard.admit(guard.hold(guard.screen(bad.take([row]))))
    return {entry.id for entry in guard.quarantine.list()}


@contextmanager
def meanwhile(guard, others):
    """Have others begin to write while a guard has the turn: it has screened, and not yet written.

    They wait for their own turn, and are done when the block is.
    """
    screen, waiting, begun = guard.screen, list(others), []
    contested = property(lambda _: False, lambda *_: None)  # all queue for their turns
    with (
        ThreadPoolExecutor() as threads,
        patch.object(SharedWrites, "_uncontested", contested, create=True),
    ):

        def screened(*args, **kwargs):
            report = screen(*args, **kwargs)
            if waiting:
                begun.append(threads.submit(waiting.pop(0)))
                time.sleep(0.1)
                assert not begun[-1].done()
            return report

        with patch.object(guard, "screen", screened):
            yield
        for one in begun:
            one.result()
