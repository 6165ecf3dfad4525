"""Databases of earlier versions open, with what they hold, in SQLite and in PostgreSQL."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from old_databases import make_old, one
from sqlalchemy import create_engine, inspect, make_url, text

from ragshield_core import Batch, Quarantine
from ragshield_core.errors import QuarantineError
from ragshield_core.quarantine.documents import document_of

ENTRIES = [one("a", "buy now", label="ham", lineage="mails"), one("b", "buy later")]
REVISED = Batch.of(ids=["b"], texts=["a later revision"], embeddings=[[0.0, 2.0]])


@pytest.fixture(params=["file", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("empty_postgres")
    return f"sqlite:///{tmp_path}/q.db"


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_what_an_older_database_holds_is_there_and_can_be_judged(url, schema):
    make_old(url, schema, ENTRIES, metadata='{"page": 1}')
    for _ in range(2):
        quarantine = Quarantine(url)
        held = quarantine.show("a")
        assert (held.entry.text, held.entry.label, held.entry.lineage) == (
            *("buy now", "ham", "mails"),
        )
        assert held.entry.metadata == {"page": 1}
        assert held.store is None
        assert [record.action for record in quarantine.log()][:2] == ["hold", "hold"]
        quarantine.verify()
        quarantine.close()
    quarantine = Quarantine(url)
    quarantine.note_index(["a"], "manual")
    quarantine.release(["a"], by="anna")
    quarantine.for_store("news").hold(REVISED)
    assert quarantine.show("b").store in (None, "news")
    quarantine.verify()
    quarantine.close()


def test_of_several_held_revisions_the_latest_stays(url):
    twice = [one("a", "an early revision"), one("b", "another"), one("a", "a later revision")]
    make_old(url, 3, twice)
    quarantine = Quarantine(url)
    assert [(h.entry.text, str(h.status)) for h in quarantine.list(None)] == [
        ("an early revision", "superseded"),
        ("another", "held"),
        ("a later revision", "held"),
    ]
    (last,) = (record for record in quarantine.log() if record.action == "supersede")
    assert (last.action, last.fingerprint, last.actor) == (
        *("supersede", twice[0].fingerprint, "migration"),
    )
    quarantine.verify()
    quarantine.close()


@pytest.mark.parametrize(
    ("metadata", "document"),
    [
        ('{"doc_id": "d1"}', "d1"),
        (
            '{"_ragshield_node": {"content": {"relationships": {"1": {"node_id": "d2"}}}}}',
            "d2",
        ),
        ('{"doc_id": "%s"}' % ("d" * 999), "d" * 999),
        ('{"doc_id": 7}', None),
        ('{"$ragshield": ["dict", [[1, 2], ["doc_id", "d3"]]]}', "d3"),
        ("{}", None),
    ],
)
def test_entries_of_before_know_their_document(tmp_path, metadata, document):
    url = f"sqlite:///{tmp_path}/q.db"
    make_old(url, 3, ENTRIES, metadata=metadata)
    quarantine = Quarantine(url)
    expected = [] if document is None else ["a", "b"]
    assert [p.id for p in quarantine.prints(documents=[document or "d1"])] == expected
    before = [held.entry.metadata for held in quarantine.list()]
    assert [document_of(one) for one in before] == [document, document]


def test_a_database_of_schema_8_keeps_its_cases_and_finds_lines_by_their_entries(on_file):
    quarantine = Quarantine(on_file)
    quarantine.hold(Batch.of(ids=["a", "b"], texts=["Call 1", "Call 2"], embeddings=None))
    (case,) = quarantine.cases.list()
    quarantine.close()
    with closing(sqlite3.connect(on_file.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("DROP INDEX ragshield_audit_log_entry")
        for mark in ("wording", "anchor"):
            name, table = f"ragshield_case_member_{mark}", "ragshield_case_member"
            connection.execute(f"DROP INDEX {name}")
            connection.execute(f"CREATE INDEX {name} ON {table} (namespace, {mark})")
        connection.execute("UPDATE ragshield_migration SET version_num = '8'")
        # As told by an earlier version, in another way: nobody asked for others.
        connection.execute("UPDATE ragshield_case SET severity = 5.0")
    quarantine = Quarantine(on_file)
    (kept,) = quarantine.cases.list()
    assert (kept.number, kept.severity) == (case.number, 5.0)
    assert [line.action for line in quarantine.log(["b"])] == ["hold"]
    with quarantine.database.engine() as engine:
        names = {index["name"] for index in inspect(engine).get_indexes("ragshield_audit_log")}
        members = inspect(engine).get_indexes("ragshield_case_member")
    assert "ragshield_audit_log_entry" in names
    columns = {index["name"].split("_")[-1]: index["column_names"] for index in members}
    for mark in ("wording", "anchor"):
        assert columns[mark] == ["namespace", mark, "case_number", "number"]
    quarantine.close()


OPENING = """
import sys
from ragshield_core import Batch, Quarantine

quarantine, name = Quarantine(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
quarantine.hold(Batch.of(ids=[name], texts=["t"], embeddings=[[1.0, 0.0]]))
print(quarantine.count())
"""


@pytest.mark.slow
@pytest.mark.parametrize("schema", [None, 1, 3])
def test_processes_that_open_one_at_once_all_succeed(url, schema):
    if schema is not None:
        make_old(url, schema, ENTRIES)
    names = ["p", "q", "r", "s"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [
        subprocess.Popen([sys.executable, "-c", OPENING, url, name], text=True, **pipes)
        for name in names
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=120)[1] for child in children] == [""] * len(names)
    quarantine = Quarantine(url)
    assert {held.id for held in quarantine.list()} >= set(names)
    quarantine.verify()
    quarantine.close()


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_who_may_only_read_is_shown_an_older_file(tmp_path, schema):
    make_old(f"sqlite:///{tmp_path}/q.db", schema, ENTRIES)
    before = (tmp_path / "q.db").read_bytes()
    reading = Quarantine(f"sqlite:///file:{tmp_path}/q.db?mode=ro&uri=true", store="news")
    assert [held.id for held in reading.list()] == ["a", "b"]
    assert reading.noted_by("manual") == ()
    assert len(reading.log()) == 2
    assert [one.id for one in reading.vouched(["a"])] == ["a"]  # there were no digests
    with pytest.raises(QuarantineError, match="cannot be used"):
        reading.hold(REVISED)
    reading.close()
    assert (tmp_path / "q.db").read_bytes() == before


@pytest.mark.parametrize("schema", [7, 8])
def test_who_may_only_read_an_older_file_takes_digests_for_what_they_are(on_file, schema, caplog):
    file = on_file.removeprefix("sqlite:///")
    batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[0.0, 2.0]] * 2)
    quarantine = Quarantine(on_file)
    quarantine.hold(batch)
    quarantine.release(["a", "b"])
    quarantine.close()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("DROP INDEX ragshield_audit_log_entry")
        if schema == 7:
            for table in ("ragshield_rule", "ragshield_case", "ragshield_case_member"):
                connection.execute(f"DROP TABLE {table}")
            connection.execute("DROP INDEX ragshield_audit_log_rule")
            for column in ("rule_number", "rule_digest"):
                connection.execute(f"ALTER TABLE ragshield_audit_log DROP COLUMN {column}")
        connection.execute("UPDATE ragshield_migration SET version_num = ?", (str(schema),))
        connection.execute("UPDATE ragshield_quarantine SET label = 'x' WHERE entry_id = 'b'")
    reading = Quarantine(f"sqlite:///file:{file}?mode=ro&uri=true")
    assert [one.entry.text for one in reading.vouched(["a"])] == ["one"]
    with pytest.raises(QuarantineError, match=r"entry 'b'.*not as it was written"):
        reading.vouched(["b"])
    assert list(reading.released_among(batch)) == ["a"]
    assert "does not count as released" in caplog.text
    with pytest.raises(QuarantineError, match="earlier version and may only be read"):
        reading.release(["b"])
    reading.close()


@pytest.mark.parametrize("schema", [1, 3])
def test_who_may_only_read_is_shown_an_older_server(empty_postgres, schema):
    make_old(empty_postgres, schema, ENTRIES)
    engine = create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    role = f"reader_{make_url(empty_postgres).database}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    reading = Quarantine(make_url(empty_postgres).set(username=role))
    assert [held.id for held in reading.list()] == ["a", "b"]
    assert reading.noted_by("manual") == ()
    with pytest.raises(QuarantineError, match="cannot be used"):
        reading.hold(REVISED)
    reading.close()
    with engine.connect() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()


def test_code_of_before_refuses_a_database_of_today(url):
    """It looks for the highest version in this table, and knows up to 3."""
    quarantine = Quarantine(url)
    quarantine.count()
    with quarantine.engine() as engine, engine.connect() as connection:
        assert connection.scalar(text("SELECT MAX(version) FROM ragshield_schema")) > 3
    quarantine.close()


@pytest.mark.parametrize(
    "table", ["ragshield_schema SET version", "ragshield_migration SET version_num"]
)
def test_a_database_of_a_later_version_is_refused(url, table):
    quarantine = Quarantine(url)
    quarantine.count()
    quarantine.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} = '99'"))
    with pytest.raises(QuarantineError, match=r"schema 99.*upgrade"):
        quarantine.count()
    engine.dispose()
