"""Six hundred generated hostile writes per store: each odd entry bears the consequences alone.

Every entry of every write ends in the store, in quarantine, or in an exception of ours that names
it; good entries are never lost, and never held for the odd entries beside them.
"""

import datetime as dt
import logging
import random
import string
import threading
import uuid
import warnings
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from support import DIM, Scripted, vector_of

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import HiddenTextDetector, InstructionDetector
from ragshield_core.model.errors import MalformedEntriesError, MalformedEntriesWarning
from ragshield_langchain import GuardedVectorStore

N_WRITES = 600  # dealt out to the stores
STORES = ("memory", "faiss", "chroma", "qdrant")
MARK = "swordfish"  # of texts and metadata: never in messages or logs


class Strict(Embeddings):
    """Refuses what tokenizers refuse, and says NaN or zero to some texts."""

    def embed_documents(self, texts):
        return [self._embed(text) for text in texts]

    def embed_query(self, text):
        return self._embed(text)

    def _embed(self, text):
        text.encode()
        if not text.strip():
            return [0.0] * DIM
        if "not a number" in text:
            return [float("nan")] * DIM
        return vector_of(text).tolist()


class Lying(dict):
    """A mapping that cannot be read."""

    def items(self):
        raise RuntimeError(MARK)


class Raising:
    """Cannot be shown, copied or compared."""

    def __repr__(self):
        raise RuntimeError(MARK)

    __str__ = __repr__

    def __deepcopy__(self, memo):
        raise RuntimeError(MARK)


def circular():
    value = {"a": MARK}
    value["self"] = [value]
    return value


def deep(n=3000):
    value = MARK
    for _ in range(n):
        value = [value]
    return value


# Each makes a new value from the random generator it is given.
VALUES = {
    "list": lambda _: [MARK],
    "empty list": lambda _: [],
    "mixed list": lambda _: [1, MARK, None],
    "dict": lambda _: {"deep": {"er": MARK}},
    "None": lambda _: None,
    "bytes": lambda _: b"\x00\xff",
    "numpy number": lambda _: np.float32(0.5),
    "numpy array": lambda _: np.ones(3),
    "NaN": lambda _: float("nan"),
    "infinity": lambda _: float("inf"),
    "infinity in a list": lambda _: [1.0, float("-inf")],
    "large number": lambda _: 2**80,
    "huge number": lambda _: 10**5000,
    "complex": lambda _: 1j,
    "date": lambda _: dt.date(2026, 1, 1),
    "decimal": lambda _: Decimal("1.1"),
    "uuid": lambda rng: uuid.UUID(int=rng.getrandbits(128)),
    "set": lambda _: {1, 2},
    "tuple": lambda _: (1, 2),
    "object": lambda _: object(),
    "lock": lambda _: threading.Lock(),
    "function": lambda _: len,
    "generator": lambda _: (n for n in range(3)),
    "circular": lambda _: circular(),
    "deep": lambda _: deep(),
    "lying mapping": lambda _: Lying(a=MARK),
    "raising": lambda _: Raising(),
    "NUL": lambda _: f"{MARK}\0",
    "surrogate": lambda _: f"{MARK}\ud83d",
    "control": lambda _: f"{MARK}\x1b[2J\x07\r\n",
    "long": lambda _: MARK * 5000,
}
KEYS = (
    "label",
    "source",
    "page",
    "",
    "#x",
    "$in",
    "chroma:document",
    "a" * 5000,
    "\0",
    "\ud83d",
    "\x1b[31m",
    7,
    None,
    ("a", 1),
)
TEXTS = (
    *("", " ", "\0", f"{MARK} \ud83d", f"{MARK}\x1b[2J", "not a number", "\u202egnp.exe"),
    *("word " * 20_000, "\U000e0041" * 50, None, 7, b"bytes", ["list"]),
)
IDS = (
    *(
        "",
        "\0",
        "a\0b",
        "half \ud83d",
        "\x1b[31m",
        "a" * 5000,
        " ",
        "{}",
        "' OR 1=1 --",
        "../../etc",
    ),
    *(7, 1.5, b"id", ("a",), "held"),
)
VECTORS = {
    "NaN": lambda: [float("nan")] * DIM,
    "one NaN": lambda: [float("nan"), *[1.0] * (DIM - 1)],
    "infinite": lambda: [float("inf")] * DIM,
    "too large": lambda: [1e300] * DIM,
    "zero": lambda: [0.0] * DIM,
    "shorter": lambda: [1.0] * (DIM - 1),
    "longer": lambda: [1.0] * (DIM + 1),
    "empty": list,
    "None": lambda: None,
    "str": lambda: "vector",
    "nested": lambda: [[1.0]] * DIM,
    "tiny": lambda: [1e-40] * DIM,
}


class Given:
    """One entry of a write."""

    def __init__(self, entry_id, text, metadata, vector, *, good):
        self.id, self.text, self.metadata, self.vector = entry_id, text, metadata, vector
        self.good = good


def good_one(rng, number):
    text = f"billing {number} " + "".join(rng.choices(string.ascii_lowercase, k=8))
    return Given(
        f"good-{number}", text, {"source": f"s{number}"}, vector_of(text).tolist(), good=True
    )


def hostile_one(rng, number, before):
    one = good_one(rng, number)
    one.id, one.good = f"odd-{number}", False
    for what in rng.sample(
        ["metadata", "text", "id", "vector", "twin"], k=rng.choice([1, 1, 1, 2, 3])
    ):
        if what == "metadata":
            for _ in range(rng.choice([1, 1, 2])):
                one.metadata[rng.choice(KEYS)] = VALUES[rng.choice(list(VALUES))](rng)
            if rng.random() < 0.1:
                one.metadata = rng.choice([None, [], "text", 7, Lying(a=1)])
        elif what == "text":
            one.text = rng.choice(TEXTS)
        elif what == "id":
            one.id = rng.choice(IDS)
        elif what == "vector":
            one.vector = VECTORS[rng.choice(list(VECTORS))]()
        elif before:
            one.id = rng.choice(before).id
    return one


def a_write(seed):
    """Return entries: good ones, and hostile ones after them, or anywhere but under a good id."""
    rng = random.Random(seed)  # noqa: S311 - the same at each run
    entries = [good_one(rng, 100 * seed + n) for n in range(rng.randint(1, 4))]
    hostile = [hostile_one(rng, 100 * seed + 50 + n, entries) for n in range(rng.randint(1, 3))]
    ids = {one.id for one in entries}
    for one in hostile:
        taken = isinstance(one.id, str) and one.id in ids
        entries.insert(len(entries) if taken else rng.randint(0, len(entries)), one)
    return entries, rng


def write(store, entries, rng):
    """Write entries by one of the ways in."""
    ids = [one.id for one in entries]
    texts, metadatas = [one.text for one in entries], [one.metadata for one in entries]
    if rng.random() < 0.5:
        vectors = [one.vector for one in entries]
        return store.add_embeddings(texts=texts, embeddings=vectors, metadatas=metadatas, ids=ids)
    if rng.random() < 0.5:
        return store.add_texts(texts, metadatas, ids=ids)
    documents = []
    for one in entries:
        document = Document(page_content="x")
        document.page_content, document.metadata = one.text, one.metadata
        documents.append(document)
    return store.add_documents(documents, ids)


def fate_of(store, entries, seed, error):
    """Return what became of each entry, by its place."""
    refused = error.reasons if isinstance(error, MalformedEntriesError) else {}
    ids = [one.id for one in entries if isinstance(one.id, str) and one.id and _valid(one.id)]
    there = {d.id: d for d in store.get_by_ids(list(dict.fromkeys(ids)))}
    held = store.quarantine.held_ids(list(dict.fromkeys(ids)))
    fates = []
    for row, one in enumerate(entries):
        if row in refused:
            fates.append("refused")
        elif one.id in there and there[one.id].page_content == one.text:
            fates.append("stored")
        elif one.id in held:
            fates.append("held")
        else:
            fates.append(f"lost (write {seed}, entry {row}, {type(error).__name__})")
    return fates


def _valid(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_hostile_writes_cost_themselves(kind, make_store, caplog):
    caplog.set_level(logging.INFO, logger="ragshield")
    detectors = [Scripted(), InstructionDetector(), HiddenTextDetector()]
    guard = Guard(detectors, quarantine=Quarantine("sqlite://"))
    store = GuardedVectorStore(make_store(kind, Strict(), DIM), guard=guard)
    store.add_texts(["billing score=9", "billing fine"], ids=["held", "fine"])
    assert store.quarantine.held_ids(["held"])
    counts, errors, wrong = Counter(), Counter(), []
    dealt = range(STORES.index(kind), N_WRITES, len(STORES))
    for seed in dealt:
        entries, rng = a_write(seed)
        error = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MalformedEntriesWarning)
            try:
                write(store, entries, rng)
            except Exception as raised:  # noqa: BLE001 - any is counted
                error = raised
                errors[type(raised).__name__] += 1
        if error is not None and (
            not isinstance(error, MalformedEntriesError) or MARK in str(error)
        ):
            wrong.append(f"write {seed}: {type(error).__name__}: {str(error)[:200]}")
        fates = fate_of(store, entries, seed, error)
        counts.update(fate.split(" ")[0] for fate in fates)
        wrong += [fate for fate in fates if fate.startswith("lost")]
        for one, fate in zip(entries, fates, strict=True):
            if one.good and fate != "stored":
                wrong.append(f"write {seed}: good entry {one.id} is {fate}")
        if kept := [one.id for one in entries if one.good]:
            found = {d.id: d.metadata for d in store.get_by_ids(kept)}
            wrong += [
                f"write {seed}: metadata"
                for o in entries
                if o.good and found.get(o.id) != o.metadata
            ]
    print(kind, dict(counts), dict(errors))  # noqa: T201 - shown with -s
    assert not wrong, f"{len(wrong)} of {sum(counts.values())}: " + "\n".join(wrong[:40])
    assert min(counts[fate] for fate in ("stored", "held", "refused")) > len(dealt) // 10
    assert MARK not in caplog.text
    assert store.scan().batch.ids  # all that is in there can be read back
    assert len(store.quarantine.list(None)) == store.quarantine.count(None)
    store.quarantine.log.verify()
