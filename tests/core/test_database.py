"""One database for many processes: reads, writes, versions and errors."""

import multiprocessing
import os
import pickle
import sqlite3
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, make_url, text
from support import Scripted, slowly

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.database import Database, connecting, read_only
from ragshield_core.model.errors import QuarantineError

NOTE = text("INSERT INTO note (version) VALUES (:version)")
COUNT = text("SELECT COUNT(*) FROM note")


def with_notes(database):
    """Return a database with a table to write to."""
    table = text("CREATE TABLE note (version INTEGER PRIMARY KEY)")
    database.write(lambda session: session.execute(table))
    return database


def note(database, version):
    return database.write(lambda session: session.execute(NOTE, {"version": version}))


def count(database):
    with database.read() as session:
        return session.scalar(COUNT)


@pytest.fixture(params=["memory", "file", *slowly("postgres")])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("empty_postgres")
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.db"


@pytest.fixture
def database(url):
    database = with_notes(Database(url))
    yield database
    database.close()


def test_a_write_is_whole_or_not_at_all(database):
    before = count(database)

    def work(session):
        session.execute(NOTE, {"version": 1})
        message = "stop"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="stop"):
        database.write(work)
    assert count(database) == before
    note(database, 1)
    assert count(database) == before + 1


def test_every_write_changes_the_version(database):
    seen = [database.version()]
    for number in (1, 2):
        assert database.version() == seen[-1]
        note(database, number)
        assert database.version() not in seen
        seen.append(database.version())
    with pytest.raises(ZeroDivisionError):
        database.write(lambda _session: 1 / 0)


@pytest.mark.parametrize("url", ["file", *slowly("postgres")], indirect=True)
def test_writes_of_others_change_the_version(database, url):
    before = database.version()
    other = Database(url)
    note(other, 1)
    other.close()
    assert database.version() != before


def test_version_of_a_missing_database_creates_no_file(tmp_path):
    assert Database(f"sqlite:///{tmp_path}/q.db").version() == ()
    assert not list(tmp_path.iterdir())


def test_read_within_a_write_sees_its_changes(database):
    before = count(database)

    def work(session):
        session.execute(NOTE, {"version": 1})
        assert database.busy
        return count(database)

    assert database.write(work) == before + 1
    assert not database.busy


def test_a_write_within_a_write_is_refused(database):
    with pytest.raises(QuarantineError, match="hand its session on"):
        database.write(lambda _session: note(database, 1))
    note(database, 1)


def test_write_that_times_out_reports_the_conflict(tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "BUSY", 10)
    database = with_notes(Database(f"sqlite:///{tmp_path}/q.db"))
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(QuarantineError, match=r"others were in the way.*Nothing was written"):
            note(database, 1)
    note(database, 1)
    assert count(database) == 1


def test_threads_write_one_after_the_other(database):
    start = count(database)

    def work(name):
        for i in range(5):
            note(database, 100 * name + i + 10)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(database) == start + 20


def test_database_is_pickled_as_its_url(tmp_path):
    database = with_notes(Database(f"sqlite:///{tmp_path}/q.db"))
    note(database, 1)
    assert count(pickle.loads(pickle.dumps(database))) == count(database)  # noqa: S301 - our own
    with pytest.raises(TypeError, match="lives in this process"):
        pickle.dumps(Database("sqlite://"))


def _write_in_child(database, number, answers):
    note(database, number)
    answers.put((database.version() != (), count(database)))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("url", ["file", *slowly("postgres")], indirect=True)
@pytest.mark.slow
def test_a_forked_process_has_connections_of_its_own(database):
    before = database.version()
    start = count(database)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = []

    def fork():
        child = context.Process(target=_write_in_child, args=(database, 2, answers))
        child.start()
        children.append(child)

    def work(session):  # which another thread waits for, to fork
        forking.start()
        session.execute(NOTE, {"version": 1})

    forking = threading.Thread(target=fork)
    database.write(work)
    assert answers.get(timeout=60) == (True, start + 2)
    forking.join()
    children[0].join()
    assert count(database) == start + 2
    assert database.version() != before


def test_reads_do_not_wait_for_a_write(tmp_path):
    database = with_notes(Database(f"sqlite:///{tmp_path}/q.db"))
    before = count(database)
    seen = []

    def work(session):
        session.execute(NOTE, {"version": 1})
        reader = threading.Thread(target=lambda: seen.append(count(database)))
        reader.start()
        reader.join(30)

    database.write(work)
    assert seen == [before]


# Making tables


@pytest.mark.parametrize("url", ["file", *slowly("postgres")], indirect=True)
def test_a_database_of_another_schema_is_refused(url):
    Quarantine(url).count()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ragshield_schema SET version = 99"))
    with pytest.raises(QuarantineError, match=r"of schema 99.*only schema 1; install the version"):
        Quarantine(url).count()
    engine.dispose()


def test_read_only_file_can_be_read(tmp_path):
    path = tmp_path / "q.db"
    batch = Batch.of(ids=["a"], texts=["t"], embeddings=[[1.0, 0.0]])
    quarantine = Quarantine(f"sqlite:///{path}")
    quarantine.hold(batch)
    quarantine.close()
    before = path.read_bytes()
    reading = Quarantine(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert [held.id for held in reading.list()] == ["a"]
    with pytest.raises(QuarantineError, match="cannot be used"):
        reading.release(["a"])
    reading.close()
    assert path.read_bytes() == before


@pytest.mark.slow
def test_read_only_role_can_read_a_server(empty_postgres):
    quarantine = Quarantine(empty_postgres)
    quarantine.hold(Batch.of(ids=["a"], texts=["t"], embeddings=[[1.0, 0.0]]))
    quarantine.close()
    engine = create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    role = f"reader_{make_url(empty_postgres).database}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    reading = Quarantine(make_url(empty_postgres).set(username=role))
    assert [held.id for held in reading.list()] == ["a"]
    with pytest.raises(QuarantineError, match="cannot be used"):
        reading.release(["a"])
    reading.close()
    with engine.connect() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()


@pytest.mark.parametrize("what", ["file system", "folder"])
def test_database_in_a_read_only_folder_opens_as_immutable(tmp_path, monkeypatch, what):
    folder = tmp_path / "50% of # it"
    folder.mkdir()
    url = f"sqlite:///{folder}/guard.db"
    with Guard.open(url, detectors=[Scripted()]):
        pass
    before = sorted(path.name for path in folder.iterdir())
    if what == "folder":  # which root may write whatever its mode is
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder or mode != os.W_OK)
    else:
        still = SimpleNamespace(f_flag=os.ST_RDONLY)
        monkeypatch.setattr(os, "statvfs", lambda _: still)
    with read_only.read_only(url) as session:
        assert (
            session.execute(text("SELECT count(*) FROM ragshield_audit_log")).scalar() is not None
        )
        assert "immutable=1" in str(session.get_bind().url)
    assert sorted(path.name for path in folder.iterdir()) == before
