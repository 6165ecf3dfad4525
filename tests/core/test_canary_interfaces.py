"""Retrievers, answerers and embedders: functions, custom knowledge bases, frameworks."""

from types import SimpleNamespace

import numpy as np
import pytest
from canary_world import embed

from ragshield_core import Batch, Quarantine
from ragshield_core.tools.canary import (
    CanaryError,
    CanaryMonitor,
    Embedder,
    KnowledgeBase,
    Passage,
    knowledge_base,
)
from ragshield_core.tools.canary.knowledge_base import as_answerer, as_knowledge_base, as_passage


@pytest.mark.parametrize(
    ("item", "entry_id", "lineage"),
    [
        ({"id": "d", "text": "text", "lineage": "l"}, "d", "l"),
        ({"text": "text", "chunk_id": "c", "source": "f.txt"}, "c", "f.txt"),
        ({"text": "text", "metadata": {"_id": 7, "title": "t"}}, "7", "t"),
        (("e", "text"), "e", None),
        (({"id": "d", "text": "text"}, 0.3), "d", None),
    ],
)
def test_retrieved_item_becomes_a_passage(item, entry_id, lineage):
    passage = as_passage(item)
    assert (passage.id, passage.text, passage.lineage) == (entry_id, "text", lineage)
    # Without an id, the text names it; a document's id is none of a chunk.
    assert as_passage("x").id == as_passage({"text": "x", "doc_id": "l"}).id != as_passage("y").id


@pytest.mark.parametrize("item", [3, {"id": "a"}, ({"text": None}, 0.3), object()])
def test_item_without_text_is_refused(item):
    with pytest.raises(CanaryError, match="text"):
        as_passage(item)


@pytest.mark.parametrize(
    "source",
    [
        lambda query: [(str(n), query) for n in range(5)],
        lambda query, k: [(str(n), query) for n in range(k)],
        lambda query, k=4: [(str(n), query) for n in range(k)],
    ],
)
def test_every_kind_of_function(source):
    found = as_knowledge_base(source).search(["one", "two"], None, 3)
    assert [[p.id for p in passages] for passages in found] == [["0", "1", "2"]] * 2
    assert [passages[0].text for passages in found] == ["one", "two"]
    assert as_knowledge_base(source).size() is None


def test_a_batch_is_a_retriever():
    batch = Batch.of(ids=["a", "b"], texts=["x", "y"], embeddings=[[1.0, 0.0], [0.0, 1.0]])
    retriever = as_knowledge_base(batch)
    assert (retriever.size(), retriever.embedder) == (2, None)
    assert as_knowledge_base(batch.take([])).search(["q"], batch.embeddings[:1], 6) == [[]]
    assert retriever.search(["q"], np.array([[0.1, 1.0]], dtype=np.float32), 1)[0][0].id == "b"


@pytest.mark.parametrize(
    "source",
    [
        lambda query: f"to {query}",
        lambda query, texts: f"to {query}" if texts == ["t"] else "",
        lambda query: SimpleNamespace(content=f"to {query}"),
        lambda query: {"answer": f" to {query} "},
        lambda query: SimpleNamespace(response=f"to {query}"),
        lambda query: {"text": f"to {query}"},
        lambda query: {"output": SimpleNamespace(content=f"to {query}")},
        lambda query: SimpleNamespace(content=[{"type": "text"}], text=f"to {query}"),
    ],
)
def test_every_kind_of_answerer(source):
    assert as_answerer(source)("q", ["t"]) == "to q"
    with pytest.raises(CanaryError, match=r"'messages'.*expected one of answer"):
        as_answerer(lambda _query: {"messages": []})("q", [])  # it would be the same ever after


def test_a_function_is_an_embedder():
    assert Embedder.of(embed).queries(["a"]).shape == (1, 512)
    np.testing.assert_allclose(
        np.linalg.norm(Embedder.of(embed).documents(["a", "b c"]), axis=1), 1
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: as_knowledge_base(3), "retriever is a int"),
        (lambda: as_answerer(3), "answerer is a int"),
        (lambda: Embedder.of(3), "embedder is a int"),
        (lambda: Embedder.of(lambda _texts: [[np.nan]]).queries(["a"]), "not finite"),
    ],
)
def test_unsupported_object_is_refused(make, said):
    with pytest.raises(CanaryError, match=said):
        make()


def test_optional_parameters_of_a_function_keep_their_defaults():
    def search(query, config=None):
        assert config is None
        return [query]

    def answer(query, config=None):
        assert config is None
        return query

    assert as_knowledge_base(search).search(["one"], None, 3)[0][0].text == "one"
    assert as_answerer(answer)("one", ["t"]) == "one"


@pytest.mark.parametrize("embeddings", [[[1.0, 0.0]], None])
def test_vectors_of_another_dimension_are_named(embeddings):
    retriever = as_knowledge_base(Batch.of(ids=["a"], texts=["x"], embeddings=embeddings))
    with pytest.raises(CanaryError, match="dimension 3"):
        retriever.search(["q"], np.ones((1, 3), dtype=np.float32), 1)


@pytest.mark.parametrize("shape", [(2, 8), (4,), (4, 2, 2)])
def test_one_vector_per_text_is_expected(shape):
    with pytest.raises(CanaryError, match="4 texts"):
        Embedder.of(lambda _texts: np.ones(shape)).queries(["a", "b", "c", "d"])


# Knowledge bases of one's own


class Shelf(KnowledgeBase):
    """Texts by id, found by their words."""

    def __init__(self, books):
        self.books = books

    def search(self, queries, vectors, k):
        assert vectors is not None  # of the model that it carries
        found = []
        for query in queries:
            words = set(query.split())
            ranked = sorted(self.books, key=lambda i: -len(words & {*self.books[i].split()}))
            found.append([Passage(id=i, text=self.books[i]) for i in ranked[:k]])
        return found

    def size(self):
        return len(self.books)

    @property
    def embedder(self):
        return embed

    def texts(self, ids):
        return {i: self.books[i] for i in ids if i in self.books}

    def remove(self, ids):
        left = [i for i in ids if i == "nailed"]
        for i in {*ids} - {*left}:
            self.books.pop(i, None)
        return left

    def restore(self, entries):
        self.books |= dict(zip(entries.ids, entries.texts, strict=True))


BOOKS = {f"book-{n}": f"book {n} is about harbours and ships" for n in range(30)}


def attacked_shelf(*names):
    shelf = Shelf(dict(BOOKS))
    monitor = CanaryMonitor(
        ["who owns the old lighthouse", *(f"what of book {n}" for n in range(6))],
        shelf,
        quarantine=Quarantine("sqlite://"),
    )
    monitor.record_baseline()
    for name in names:
        shelf.books[name] = f"who owns the old lighthouse {name}"
    return shelf, monitor


def test_custom_knowledge_base_is_remediated_and_restored():
    shelf, monitor = attacked_shelf("bad-0", "bad-1", "bad-2")
    outcome = monitor.remediate()
    assert set(outcome.quarantined) == {"bad-0", "bad-1", "bad-2"}
    assert outcome.clean
    assert shelf.books == BOOKS
    held = monitor.quarantine_store.show("bad-0")
    assert held.vector is not None  # the passages had none
    monitor.restore(["bad-0"])
    assert shelf.books == BOOKS | {"bad-0": "who owns the old lighthouse bad-0"}


def test_entry_corrected_meanwhile_is_not_removed():
    shelf, monitor = attacked_shelf("bad-0", "bad-1", "bad-2")
    suspects = monitor.traceback().suspects
    shelf.books["bad-1"] = "the page as its author meant it"
    assert set(monitor.quarantine(suspects)) == {"bad-0", "bad-2"}
    assert "bad-1" in shelf.books


def test_entry_that_cannot_be_deleted_is_reported(caplog):
    shelf, monitor = attacked_shelf("nailed", "bad-1", "bad-2")
    outcome = monitor.remediate()
    assert outcome.after.still_served == ("nailed",)
    assert not outcome.clean
    assert "1 held entries could not be deleted" in caplog.text
    assert {*shelf.books} - {*BOOKS} == {"nailed"}


def test_knowledge_base_only_needs_search():
    class Least(KnowledgeBase):
        def search(self, queries, _vectors, k):
            return [[Passage(id="a", text=f"on {query}")][:k] for query in queries]

    monitor = CanaryMonitor(["tea"], Least(), quarantine=Quarantine("sqlite://"))
    assert monitor.record_baseline() == 1
    assert monitor.check().flagged == ()
    with pytest.raises(TypeError, match="search"):
        type("Nothing", (KnowledgeBase,), {})()


# Frameworks


class Drawer:
    """A store of somebody else's framework."""

    __module__ = "their_framework.drawers"
    content = "in the drawer"


class OldDrawer(Drawer):
    """An application's own kind of it."""

    __module__ = "my_application"


THEIRS = SimpleNamespace(
    knowledge_base=lambda source: as_knowledge_base(lambda query: [(query, source.content)]),
    passage=lambda item: Passage.of("drawn", item.content) if type(item) is OldDrawer else None,
    embedder=lambda _model: Embedder.of(lambda texts: [[len(text), 3.0] for text in texts]),
    answerer=lambda source: lambda query: f"{query}: {source.content}",
)


@pytest.fixture
def imported(monkeypatch):
    """Return the names of adapters that were imported, of a framework with drawers alone."""
    names = []
    monkeypatch.setattr(knowledge_base, "ADAPTERS", {"their_framework": "theirs"})
    monkeypatch.setattr(knowledge_base, "import_module", lambda name: names.append(name) or THEIRS)
    return names


@pytest.mark.parametrize("kind", [Drawer, OldDrawer])
@pytest.mark.usefixtures("imported")
def test_framework_objects_are_recognized_by_their_module(kind):
    (passage,) = as_knowledge_base(kind()).search(["tea"], None, 6)[0]
    assert (passage.id, passage.text) == ("tea", "in the drawer")
    assert Embedder.of(kind()).queries(["four"], unit=False).tolist() == [[4.0, 3.0]]
    assert as_answerer(kind())("what", []) == "what: in the drawer"


@pytest.mark.usefixtures("imported")
def test_object_unknown_to_a_framework_is_refused():
    assert as_passage(OldDrawer()).id == "drawn"
    with pytest.raises(CanaryError, match="the retriever returned a Drawer"):
        as_passage(Drawer())


def test_an_adapter_is_imported_for_its_own_framework_alone(imported):
    with pytest.raises(CanaryError, match="retriever is a SimpleNamespace"):
        as_knowledge_base(SimpleNamespace(content="x"))
    assert imported == []
    as_knowledge_base(Drawer())
    assert imported == ["theirs"]


def test_an_adapter_that_lacks_something_says_what(monkeypatch):
    monkeypatch.setattr(knowledge_base, "ADAPTERS", {"their_framework": "theirs_is_absent"})
    with pytest.raises(CanaryError, match=r"theirs_is_absent.*No module.*pass functions"):
        as_knowledge_base(Drawer())
