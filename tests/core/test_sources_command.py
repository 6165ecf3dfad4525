"""``ragshield sources``: open questions and decisions on them."""

import json
import re
import shlex

import pytest
from support import passages

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LeadingQuestionDetector
from ragshield_core.tools.review.sources_command import command_of

RATE = 0.05
SITE = "docs.example"
HOSTILE = "a; rm -rf ~ [red]\x1b[31m\u202e"


@pytest.fixture
def guard(url):
    return guard_of(url)


def guard_of(url, namespace="default"):
    guard = Guard.open(url, namespace, detectors=[LeadingQuestionDetector()])
    return guard.fit(passages(300, 1)).calibrate(fpr=RATE)


def bring(guard, source, n=30, seed=2):
    """Bring entries of a source that asks questions; return their ids."""
    asked = ("who won the cup in", "When was the bridge built that fell in", "Why is it cold in")
    texts = [f"{asked[i % 3]} {1900 + i}? The answer to that is in the record." for i in range(n)]
    texts[-1] = "who won the cup in 1890?The home team won the cup in 1890."  # the worst
    vectors = passages(n, seed).vectors
    metadata = {} if source is None else {"ragshield_source": source}
    ids = [f"{seed}-{i}" for i in range(n)]
    batch = Batch.of(ids=ids, texts=texts, embeddings=vectors, metadatas=[metadata] * n)
    guard.admit(guard.hold(guard.screen(batch)))
    assert set(guard.quarantine.held_ids(ids)) == set(ids)
    return ids


@pytest.mark.slow
def test_nothing_is_asked_of_a_guard_that_holds_nothing(guard, url, ragshield):
    guard.close()
    code, out, _ = ragshield("sources", "list", "--database", url)
    assert (code, out) == (0, "no source is asked about\n")
    code, out, _ = ragshield("sources", "list", "--database", url, "--format", "json")
    assert (code, json.loads(out)) == (0, {"questions": []})


@pytest.mark.slow
def test_open_question_is_listed_with_examples_and_commands(guard, url, ragshield):
    ids = bring(guard, SITE)
    guard.admit(guard.hold(guard.screen(passages(5, 7, "more"))))
    code, out, _ = ragshield("sources", "list", "--database", url)
    assert code == 1
    assert f"a new source or a mass attack: 30 documents of '{SITE}'" in " ".join(out.split())
    assert f"held, for example: {', '.join(ids[-5:])}" in out
    assert f"ragshield sources adopt --by YOU {SITE}\n" in out
    code, out, _ = ragshield("sources", "list", "--database", url, "--format", "json")
    (question,) = json.loads(out)["questions"]
    assert code == 1
    assert (question["namespace"], question["source"], question["n_held"]) == ("default", SITE, 30)
    code, out, _ = ragshield("status", "--database", url)
    assert code == 1
    assert "a new source or a mass attack" in " ".join(out.split())


@pytest.mark.slow
def test_adopting_a_source_releases_its_entries(guard, url, ragshield):
    ids = bring(guard, SITE)
    code, out, err = ragshield(
        *("sources", "adopt", SITE, "--by", "anna", "--note", "ours", "--database", url)
    )
    assert (code, err) == (0, "")
    quarantine = Quarantine(url)
    released = {one.id for one in quarantine.list("released")}
    assert 0 < len(released) < 30
    assert f"released {len(released)} entries; the guard admits them at the next ingest" in out
    assert {one.reviewed_by for one in quarantine.list("released")} == {"anna"}
    notes = {line.note for line in quarantine.log.lines() if line.action == "release"}
    assert notes == {"ours"}
    assert quarantine.held_ids(ids) == set(ids) - released
    assert ragshield("sources", "list", "--database", url)[0] == 0
    assert ragshield("status", "--database", url)[0] == 0
    again = [one.entry for one in quarantine.list("released")]
    batch = Batch.of(
        ids=[one.id for one in again],
        texts=[one.text for one in again],
        embeddings=passages(len(again), 2).vectors,
        metadatas=[{"ragshield_source": SITE}] * len(again),
    )
    assert not guard.hold(guard.screen(batch)).quarantined
    assert ragshield("sources", "adopt", SITE, "--database", url)[0] in (0, 2)


@pytest.mark.slow
def test_keeping_a_source_closes_the_question_and_holds_entries(guard, url, ragshield):
    ids = bring(guard, None)
    code, out, _ = ragshield("sources", "keep", "--unnamed", "--by", "bert", "--database", url)
    assert (code, out) == (0, "the entries without a source: held entries stay held\n")
    assert Quarantine(url).held_ids(ids) == set(ids)
    assert ragshield("sources", "list", "--database", url)[0] == 0
    assert ragshield("status", "--database", url)[0] == 0
    code, _, err = ragshield("sources", "keep", "--unnamed", "--database", url)
    assert code == 2
    assert "is not asked about" in err


@pytest.mark.slow
def test_all_guards_are_listed_and_decisions_need_a_namespace(guard, url, ragshield):
    news = guard_of(url, "news")
    bring(news, SITE)
    guard.close()
    code, out, _ = ragshield("sources", "list", "--database", url)
    assert code == 1
    assert "news: a new source" in out
    assert f"ragshield sources adopt --by YOU --namespace news {SITE}\n" in out
    code, _, err = ragshield("sources", "adopt", SITE, "--database", url)
    assert code == 2
    assert "there are 2 guards; choose one with --namespace" in err
    assert ragshield("sources", "keep", SITE, "--database", url, "--namespace", "news")[0] == 0


@pytest.mark.slow
def test_hostile_source_name_is_escaped_and_usable_as_shown(guard, url, ragshield):
    bring(guard, HOSTILE)
    code, out, _ = ragshield("sources", "list", "--database", url)
    assert code == 1
    assert not re.search("[\x1b\u202e]", out)
    (line,) = re.findall(r"^ +(ragshield sources keep.*)$", out, re.MULTILINE)
    assert ragshield(*shlex.split(line)[1:], "--database", url)[0] == 0
    assert ragshield("sources", "list", "--database", url)[0] == 0
    assert command_of("keep", "-x", "-y") == "ragshield sources keep --by YOU --namespace -y -- -x"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("adopt",), "name a source, or what names none by --unnamed"),
        (("adopt", SITE, "--unnamed"), "and not both"),
        (("adopt", SITE), f"nothing of the source '{SITE}' waits"),
        (("keep", SITE), "is not asked about"),
        (("adopt", SITE, "--namespace", "gone"), "there is no guard in namespace 'gone'"),
        (("adopt", SITE, "--into", "mine:store"), "expected a guarded store"),
    ],
)
@pytest.mark.slow
def test_impossible_decision_is_an_error(guard, url, ragshield, tmp_path, words, why):
    (tmp_path / "mine.py").write_text("store = 'no store'")
    guard.close()
    code, out, err = ragshield(
        "sources", *words, *(() if "--into" in words else ("--database", url))
    )
    assert (code, out) == (2, "")
    assert why in err


def test_missing_database_is_not_created(tmp_path, ragshield):
    for words in (("list",), ("adopt", SITE), ("keep", SITE)):
        code, _, err = ragshield("sources", *words, "--database", f"sqlite:///{tmp_path}/gone.db")
        assert code == 2
        assert "there is no" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_into_option_releases_entries_into_the_store(url, ragshield, tmp_path):
    (tmp_path / "library.py").write_text(
        "from langchain_core.embeddings import DeterministicFakeEmbedding\n"
        "from langchain_core.vectorstores import InMemoryVectorStore\n"
        "from ragshield_core import Guard\n"
        "from ragshield_langchain import GuardedVectorStore\n"
        "inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))\n"
        f"store = GuardedVectorStore(inner, guard=Guard.open({url!r}), check=False)\n"
    )
    bring(guard_of(url), SITE)
    words = ("sources", "adopt", SITE, "--into", "library:store", "--by", "anna")
    code, out, err = ragshield(*words)
    assert (code, err) == (0, "")
    import library  # noqa: PLC0415 - written above

    assert f"released {len(library.inner.store)} entries into the store" in out
    assert len(library.inner.store) > 0
