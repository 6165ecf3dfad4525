"""With the database away, full or locked, nothing is let in, lost or done twice."""

import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import tempfile
import time
import uuid
from pathlib import Path

import chromadb
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import VectorStoreQuery
from llama_index.vector_stores.chroma import ChromaVectorStore
from small_store import SmallKeeper
from sqlalchemy import make_url
from support import CountingEmbeddings, Scripted, vector_of

from ragshield_core import Guard, Policy, Quarantine
from ragshield_core.database import connecting
from ragshield_core.model.errors import QuarantineError
from ragshield_core.store import mask, recalling
from ragshield_langchain import GuardedVectorStore
from ragshield_llamaindex import GuardedVectorStore as GuardedNodeStore


class Server:
    """A PostgreSQL of our own, to be stopped and started."""

    def __init__(self, folder):
        pgserver = pytest.importorskip("pgserver")
        self._pid = Path(folder) / "pg" / "postmaster.pid"
        self._server = pgserver.get_server(self._pid.parent, cleanup_mode="stop")
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self.url = url.set(password="secret").render_as_string(hide_password=False)  # noqa: S106

    @contextlib.contextmanager
    def away(self):
        os.kill(int(self._pid.read_text().split()[0]), signal.SIGQUIT)
        while self._pid.exists():
            time.sleep(0.02)
        yield
        self.start()

    def start(self):
        self._server.ensure_postgres_running()

    def close(self):
        self._server.cleanup()


class File:
    """An SQLite file, to be taken away and put back."""

    def __init__(self, folder):
        self._file = Path(folder) / "guard.db"
        self.url = f"sqlite:///{self._file}"

    @contextlib.contextmanager
    def away(self):
        files = [Path(f"{self._file}{end}") for end in ("", "-wal", "-shm")]
        there = [file for file in files if file.exists()]
        for file in there:
            file.rename(file.with_suffix(f"{file.suffix}.away"))
        yield
        for file in there:
            file.with_suffix(f"{file.suffix}.away").rename(file)

    def close(self):
        pass


@pytest.fixture(
    params=[
        pytest.param(File, id="sqlite"),
        pytest.param(Server, id="postgres", marks=pytest.mark.slow),
    ]
)
def database(request):
    folder = tempfile.mkdtemp(prefix="rs")  # the path of a socket has to be short
    made = request.param(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def opened(url, policy=None):
    return Guard.open(url, detectors=[Scripted()], policy=policy)


def check_error(error, database):
    """Check that an error says where and the way out, and no password."""
    assert isinstance(error.value, QuarantineError)
    assert make_url(database.url).database.rpartition("/")[2] in str(error.value)
    assert "secret" not in str(error.value)


def check_all_there(keeper, live, held):
    assert set(keeper.store) == keeper.seen() == live
    keeper.guard.writes.catch_up()
    assert set(keeper.guard.writes.known([*live, *held])) == live
    assert keeper.guard.quarantine.held_ids([*live, *held]) == held
    assert keeper.guard.quarantine.count() == len(held)
    assert keeper.guard.status().pending == 0
    keeper.guard.quarantine.log.verify()


@pytest.mark.slow
def test_nothing_is_written_during_an_outage_and_a_retry_succeeds(database):
    store = {}
    first, second = (SmallKeeper(opened(database.url), store) for _ in range(2))
    first.add(a="fine")
    second.add(b="fine")
    with database.away():
        for keeper in (first, second):
            with pytest.raises(QuarantineError) as error:
                keeper.add(c="fine", d="score=5")
            check_error(error, database)
        assert set(store) == {"a", "b"}
    first.add(c="fine", d="score=5")
    # One that was not used meanwhile connects anew without a word.
    second.add(e="fine", f="score=5")
    for keeper in (first, second):
        check_all_there(keeper, {"a", "b", "c", "e"}, {"d", "f"})


@pytest.mark.slow
def test_outage_during_a_store_write_loses_nothing(database):
    keeper = SmallKeeper(opened(database.url), {})
    keeper.add(a="fine")
    write, gone = keeper.write_entries, contextlib.ExitStack()

    def away_afterwards(*args):
        write(*args)
        gone.enter_context(database.away())

    keeper.write_entries = away_afterwards
    with gone:
        with pytest.raises(QuarantineError) as error:
            keeper.add(b="fine", c="score=5")
        check_error(error, database)
        with pytest.raises(QuarantineError):
            keeper.seen()
    keeper.write_entries = write
    keeper.add(b="fine", c="score=5")
    check_all_there(keeper, {"a", "b"}, {"c"})


def test_outage_before_a_store_write_lets_nothing_in(database):
    keeper = SmallKeeper(opened(database.url), {})
    keeper.add(a="fine")
    guard, gone = keeper.guard, contextlib.ExitStack()
    screen = guard.screen

    def away_afterwards(*args, **options):
        report = screen(*args, **options)
        gone.enter_context(database.away())
        return report

    guard.screen = away_afterwards
    with gone, pytest.raises(QuarantineError):
        keeper.add(b="fine")
    del guard.screen
    assert set(keeper.store) == {"a"} == set(guard.writes.known(["a", "b"]))
    keeper.add(b="fine")
    check_all_there(keeper, {"a", "b"}, set())


@pytest.mark.parametrize("policy", [Policy(), Policy(fail_open=True)])
def test_reads_fail_during_an_outage_unless_they_fail_open(database, policy, monkeypatch, caplog):
    monkeypatch.setattr(mask, "LOOK_EVERY", 0.0)
    store = {}
    first, second = (SmallKeeper(opened(database.url, policy), store) for _ in range(2))
    first.add(a="fine", b="fine")
    assert second.seen() == {"a", "b"}
    first.delete_entries = lambda *_: iter(())  # recalled entries are only hidden
    first.run(recalling.recall, first, ["b"], by="anna")
    assert second.seen() == {"a"}
    with database.away(), caplog.at_level(logging.WARNING, "ragshield"):
        if policy.fail_open:
            assert second.seen() == second.seen() == {"a"}
            assert caplog.text.count("reads use the last known held entries") == 1
            assert "secret" not in caplog.text
            # A write that cannot be recorded is refused under every policy.
            with pytest.raises(QuarantineError):
                second.add(c="fine")
        else:
            with pytest.raises(QuarantineError, match="reads are refused") as error:
                second.seen()
            check_error(error, database)
    assert second.seen() == {"a"} == set(store) - {"b"}
    first.run(recalling.recall, first, ["a"], by="anna")
    assert second.seen() == set()


class LangChain:
    def __init__(self, guard, inner):
        self.store = GuardedVectorStore(inner, guard=guard)

    def add(self, **texts):
        self.store.add_documents([Document(id=i, page_content=t) for i, t in texts.items()])

    def reads(self):
        mmr = self.store.max_marginal_relevance_search
        asked = [self.store.similarity_search, mmr]
        by_id = lambda _: self.store.get_by_ids(["a", "b"])  # noqa: E731
        for search in (*asked, by_id):
            yield lambda search=search: {document.id for document in search("billing")}


class LlamaIndex:
    def __init__(self, guard, inner):
        self.store = GuardedNodeStore(inner, guard=guard)

    def add(self, **texts):
        nodes = [TextNode(id_=i, text=t, embedding=vector_of(t).tolist()) for i, t in texts.items()]
        self.store.add(nodes)

    def reads(self):
        query = VectorStoreQuery(query_embedding=vector_of("billing").tolist(), similarity_top_k=4)
        yield lambda: set(self.store.query(query).ids)


ADAPTERS = {
    LangChain: lambda: InMemoryVectorStore(CountingEmbeddings()),
    LlamaIndex: lambda: ChromaVectorStore(
        chromadb.EphemeralClient().create_collection(f"test_{uuid.uuid4().hex}")
    ),
}


@pytest.mark.parametrize("fails_open", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.slow
def test_every_read_of_both_adapters_looks_and_refuses(adapter, fails_open, tmp_path):
    database, inner = File(tmp_path), ADAPTERS[adapter]()
    policy = Policy(fail_open=fails_open)
    first, second = (adapter(opened(database.url, policy), inner) for _ in range(2))
    first.add(a="billing a", b="billing b")
    assert [read() for read in second.reads()] == [{"a", "b"}] * len(list(second.reads()))
    with database.away():
        for read in second.reads():
            if fails_open:
                assert read() == {"a", "b"}
            else:
                with pytest.raises(QuarantineError, match="reads are refused"):
                    read()
        with pytest.raises(QuarantineError):
            second.add(c="billing c")
    second.add(c="billing c")
    assert second.store.guard.writes.known(["a", "b", "c"]) == ["a", "b", "c"]


def test_guard_status_is_available_during_an_outage(database):
    guard = opened(database.url)
    keeper = SmallKeeper(guard, {})
    keeper.add(a="fine", b="score=5")
    assert guard.status().unreachable is None
    with database.away():
        status = guard.status()
        assert status.n_known == 1
        assert "cannot be used" in status.concerns()[0]
        assert "unknown: the database cannot be used" in str(status)
        assert status.to_dict()["unreachable"] == status.unreachable
        assert database.url.rpartition("/")[2] in status.unreachable
    assert guard.status().held == 1


@pytest.mark.parametrize("shared", [False, True])
def test_full_database_rejects_the_whole_batch(shared, tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    guard = opened(url) if shared else Guard([Scripted()], quarantine=Quarantine(url))
    keeper = SmallKeeper(guard, {})
    keeper.add(a="fine", b="score=5")
    texts = {"c": "fine", "d": "score=5 " + "z" * 100_000}
    limit(guard, 1)
    with pytest.raises(QuarantineError, match=r"full.*has room"):
        keeper.add(**texts)
    assert set(keeper.store) == {"a"} == set(guard.writes.known(["a", "c"]))
    limit(guard, 1_000_000)
    keeper.add(**texts)
    check_all_there(keeper, {"a", "c"}, {"b", "d"})


def limit(guard, pages):
    """Let the database of a guard have no more pages than those, or than it has."""
    guard.quarantine.database.version()  # which keeps a connection for itself
    with guard.quarantine.database.engine() as engine, engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


@pytest.mark.parametrize("shared", [False, True])
def test_database_locked_too_long_raises_quarantine_error(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "BUSY", 10)
    url = f"sqlite:///{tmp_path}/guard.db"
    guard = opened(url) if shared else Guard([Scripted()], quarantine=Quarantine(url))
    keeper = SmallKeeper(guard, {})
    keeper.add(a="fine", b="score=5")
    locking = sqlite3.connect(tmp_path / "guard.db", isolation_level=None)
    locking.execute("BEGIN EXCLUSIVE")
    with pytest.raises(QuarantineError, match=r"guard.db.*others were in the way.*try again"):
        keeper.add(c="fine", d="score=5")
    assert set(keeper.store) == {"a"}
    locking.execute("ROLLBACK")
    locking.close()
    keeper.add(c="fine", d="score=5")
    check_all_there(keeper, {"a", "c"}, {"b", "d"})


def test_a_file_that_was_replaced_is_not_written_to(tmp_path):
    keeper = SmallKeeper(opened(f"sqlite:///{tmp_path}/guard.db"), {})
    keeper.add(a="fine")
    for file in tmp_path.iterdir():  # as who restores a backup does
        shutil.copy(file, file.with_suffix(f"{file.suffix}.copy"))
        file.with_suffix(f"{file.suffix}.copy").replace(file)
    with pytest.raises(QuarantineError, match="start the process again"):
        keeper.add(b="score=5")
    again = SmallKeeper(opened(f"sqlite:///{tmp_path}/guard.db"), keeper.store)
    again.add(b="score=5")
    check_all_there(again, {"a"}, {"b"})
