"""Somebody changes rows of the database with SQL: with a key, opening or verifying notices it."""

import datetime as dt
import shutil
import sqlite3
from contextlib import closing, suppress

import numpy as np
import pytest
from canary_world import watched
from sqlalchemy import LargeBinary
from support import group, passages, slowly

from ragshield_core import Batch, Decision, Guard, Quarantine, Verdict
from ragshield_core.cli import main
from ragshield_core.database.tables import UNSEALED, TableBase, table_of
from ragshield_core.detectors import CliqueDetector
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.errors import QuarantineError, RAGShieldError
from ragshield_core.quarantine.digests import PLAIN
from ragshield_core.store.one_store import store_of
from ragshield_core.tools.alerts import pair_of
from ragshield_core.tools.contradictions import Alert, KeptAlerts
from ragshield_core.tools.rules import Rules

KEY, OTHER = "a secret of the tests, long enough", "another secret of the tests"
RATE = 0.05
TABLES = {table.name: table for table in TableBase.metadata.sorted_tables}
# Tables whose rows may be deleted unnoticed, and why that makes no guard more permissive.
MAY_BE_DELETED = {
    "ragshield_indexed": "an index that forgets a held entry leaves it held",
    "ragshield_stores": "the next store to be wrapped gives its name",
    "ragshield_canary_baseline": "a check without a baseline says that there is none",
    "ragshield_canary_check": "a record for people; nothing is decided by it",
    "ragshield_contradiction": "an alert for people; nothing is decided by it",
}


def opened(url, namespace="default", key=KEY, **options):
    return Guard.open(url, namespace, detectors=[CliqueDetector()], audit_key=key, **options)


def a_contradiction(name):
    return Alert(
        entry_id=name,
        claim="open",
        passage_id="old",
        passage="shut",
        score=0.9,
        p_value=0.01,
        relation="conflicts",
        pair=pair_of((name, "open"), ("old", "shut")),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A database in which every column of every table is filled somewhere, and its anchors."""
    folder = tmp_path_factory.mktemp("written")
    url = f"sqlite:///{folder / 'guard.db'}"
    anchors = []
    guard = opened(url, fpr=RATE, anchor=anchors.append)
    quarantine = guard.quarantine
    guard.fit(passages(300, 1)).calibrate()
    sql(folder / "guard.db", "VACUUM INTO ?", (str(folder / "older.db"),))
    bad = group(6, 3)
    guard.admit(guard.hold(guard.screen(bad)))
    by_hand = Batch.of(
        ids=["odd", "fine"],
        texts=["buy now", "buy later"],
        embeddings=[[1.0] * bad.dim] * 2,
        labels=["ham"] * 2,
        lineages=["mails"] * 2,
        contexts=["what stood before"] * 2,
        metadatas=[{"doc_id": "manual"}] * 2,
    )
    decisions = [
        Decision(entry_id=i, verdict=Verdict.QUARANTINE, findings=(), note="odd")
        for i in by_hand.ids
    ]
    quarantine.hold(by_hand, decisions, by="import")
    quarantine.release(["fine"], by="anna", note="no spam")
    quarantine.indexes.note(["odd"], "manual")
    rules = Rules(quarantine)
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    given = {"detectors": ["clique"], "reason": "ours", "by": "dora", "expires_at": end}
    rules.revoke(rules.add("mails", **given).number, by="emil", reason="sold")
    store_of(quarantine.database, "default", "docs", quarantine.log.digests)
    watched(quarantine=quarantine).monitor.check()
    kept = KeptAlerts(quarantine)
    kept.add([a_contradiction("new"), a_contradiction("other")])
    kept.close(1, by="fritz", reason="both are right")
    other = opened(url, "others", fpr=RATE)
    other.fit(passages(60, 2))
    other.quarantine.hold(by_hand, by="import")
    other.learn(passages(5, 5, "later"))
    other.close()
    intended = Event(change=Change.LEARNED, entries=passages(3, 4, "new"))
    guard.writes.intend(intended.entries)
    quarantine.log.verify()
    sql(folder / "guard.db", "VACUUM INTO ?", (str(folder / "whole.db"),))
    return folder / "whole.db", anchors


@pytest.fixture
def file(written, tmp_path):
    shutil.copy(written[0], tmp_path / "guard.db")
    return tmp_path / "guard.db"


def sql(file, statement, values=()):
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows


def noticed(file, anchor=None, namespaces=("default", "others")):
    """Return what opening a guard or verifying says; nothing where nobody notices."""
    url = f"sqlite:///{file}"
    said = []
    for namespace in namespaces:
        with suppress(RAGShieldError):
            opened(url, namespace).quarantine.close()
            continue
        said.append(f"opening {namespace}")
    try:
        Quarantine(url, audit_key=KEY).log.verify(anchor)
    except QuarantineError as error:
        said.append(str(error))
    return said


def covered():
    """Yield each column that has to be covered."""
    for name, table in TABLES.items():
        for column in table.columns:
            if UNSEALED not in table.info and UNSEALED not in column.info:
                yield name, column.name


def test_every_table_has_digests_or_says_why_not():
    for table in TABLES.values():
        reasons = [table.info.get(UNSEALED), *(c.info.get(UNSEALED) for c in table.columns)]
        assert "digest" in table.columns or table.info[UNSEALED]
        assert all(reason is None or len(reason) > 20 for reason in reasons)
    assert set(MAY_BE_DELETED) < set(TABLES)


@pytest.mark.slow
def test_unchanged_database_passes_verification(file, written):
    assert noticed(file, written[1][-1]) == []
    for table, column in covered():
        query = f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608
        assert sql(file, query) != [(0,)], (table, column)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), list(covered()))
def test_no_column_can_be_changed_unnoticed(file, table, column):
    # The latest row: earlier rows may be of a snapshot that is no longer read.
    query = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY rowid DESC"  # noqa: S608
    ((row, before),) = sql(file, f"{query} LIMIT 1")
    if isinstance(before, int | float):
        changed = before + 100
    elif isinstance(TABLES[table].columns[column].type, LargeBinary):
        changed = before[:-1] + bytes([before[-1] ^ 1]) if before else b"x"
    else:
        changed = before[:-1] + ("x" if before[-1:] != "x" else "y")
    sql(file, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (changed, row))  # noqa: S608
    (said,) = noticed(file, namespaces=()) or [""]  # verifying alone tells
    assert any(word in said for word in ("row ", "line ", "kept with the key"))


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), list(covered()))
def test_no_column_can_change_its_type_unnoticed(file, table, column):
    """SQLite keeps the same characters as bytes, and no query finds them any more."""
    other = "TEXT" if isinstance(TABLES[table].columns[column].type, LargeBinary) else "BLOB"
    try:
        sql(file, f"UPDATE {table} SET {column} = CAST({column} AS {other})")  # noqa: S608
    except sqlite3.IntegrityError:  # of a key, which holds numbers only
        return
    assert noticed(file, namespaces=())  # verifying alone tells


def test_held_entry_cannot_be_hidden_from_queries_unnoticed(file):
    change = "UPDATE ragshield_quarantine SET {0} = CAST({0} AS BLOB) WHERE entry_id = 'odd'"
    for column in ("status", "namespace"):
        sql(file, change.format(column))
    assert "ragshield_quarantine" in noticed(file)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["MIN", "MAX"])
@pytest.mark.parametrize(
    "table", [n for n, t in TABLES.items() if UNSEALED not in t.info and n not in MAY_BE_DELETED]
)
def test_no_row_can_be_deleted_unnoticed(file, table, which, written):
    row = f"(SELECT {which}(rowid) FROM {table})"  # noqa: S608
    sql(file, f"DELETE FROM {table} WHERE rowid = {row}")  # noqa: S608
    assert noticed(file, written[1][-1]), table


@pytest.mark.parametrize(
    "table",
    [n for n, t in TABLES.items() if UNSEALED not in t.info and "namespace" in t.columns],
)
@pytest.mark.slow
def test_no_row_moves_to_another_namespace_unnoticed(file, table):
    sql(file, f"UPDATE {table} SET namespace = 'elsewhere' WHERE namespace = 'default'")  # noqa: S608
    assert noticed(file), table


def test_the_journals_of_two_namespaces_cannot_be_swapped_unnoticed(file):
    for table in (n for n in TABLES if "journal" in n or n == "ragshield_snapshots"):
        for before, after in (("default", "?"), ("others", "default"), ("?", "others")):
            change = f"UPDATE {table} SET namespace = ? WHERE namespace = ?"  # noqa: S608
            sql(file, change, (after, before))
    assert len(noticed(file)) == 3


def test_learned_state_cannot_be_replaced_with_matching_checksums(file):
    """The attack that needs no key where digests have none."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.row_factory = sqlite3.Row
        for mapped in TableBase.registry.mappers:
            table = table_of(mapped.class_)
            if table.name not in {"ragshield_snapshot_chunks", "ragshield_journal"}:
                continue
            for row in connection.execute(f"SELECT rowid, * FROM {table.name}").fetchall():  # noqa: S608
                values = dict(row)
                part = "data" if "data" in values else "arrays"
                values[part] = values[part][:-400] + np.full(100, 1e6, np.float32).tobytes()
                change = f"UPDATE {table.name} SET {part} = ?, digest = ? WHERE rowid = ?"  # noqa: S608
                made = PLAIN.of(mapped.class_, values)
                connection.execute(change, (values[part], made, values["rowid"]))
    assert len(noticed(file)) == 3


def moved_back(file, older, tables):
    """Give tables the rows that they had when an older copy of the file was made."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("ATTACH ? AS older", (str(older),))
        for table in tables:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
            connection.execute(f"INSERT INTO {table} SELECT * FROM older.{table}")  # noqa: S608


LEARNED = [name for name in TABLES if "journal" in name or "snapshot" in name]


def test_learned_state_cannot_be_rolled_back_unnoticed(file, written):
    older = written[0].with_name("older.db")
    moved_back(file, older, LEARNED)
    said = noticed(file, namespaces=("default",))
    assert said[0] == "opening default"
    assert "row default of ragshield_journal_heads" in said[1]
    assert "or more" in said[1]
    assert "backup" in said[1]


@pytest.mark.parametrize("column", ["position", "digest"])
def test_open_guard_reports_changed_rows_in_its_status(file, column):
    guard = opened(f"sqlite:///{file}")
    assert not any("cannot be used" in concern for concern in guard.status().concerns())
    sql(file, f"UPDATE ragshield_journal_heads SET {column} = 7 WHERE namespace = 'default'")  # noqa: S608
    assert "row default of ragshield_journal_heads was changed" in guard.status().concerns()[0]


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.slow
def test_the_commands_say_what_is_not_covered(on_file, key, monkeypatch, capsys):
    guard = opened(on_file, key=key, fpr=RATE)
    guard.fit(passages(60, 1))
    guard.close()
    if key is not None:
        monkeypatch.setenv("RAGSHIELD_AUDIT_KEY", key)
    for command in (
        ("quarantine", "verify", "--database", on_file),
        ("status", "--database", on_file),
    ):
        monkeypatch.setattr("sys.argv", ["ragshield", *command])
        with suppress(SystemExit):
            main()
        said = capsys.readouterr().out
        assert ("who may write to the" in said) == (key is None), said


def test_a_status_without_the_key_says_which_is_missing(file, monkeypatch, capsys):
    monkeypatch.setenv("RAGSHIELD_AUDIT_KEY", OTHER)
    for command in (["--namespace", "others"], ["--namespace", "default"]):
        monkeypatch.setattr(
            "sys.argv", ["ragshield", "status", "--database", f"sqlite:///{file}", *command]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "is kept with the key" in capsys.readouterr().err.replace("\n", " ")


def test_a_database_cannot_be_set_back_as_a_whole_if_there_is_an_anchor(file, written):
    shutil.copy(written[0].with_name("older.db"), file)
    assert noticed(file, namespaces=("default",)) == []
    assert "the anchor has seen it" in noticed(file, written[1][-1], namespaces=())[0]


def test_a_guard_that_was_deleted_is_not_made_anew(file):
    for table in LEARNED:
        sql(file, f"DELETE FROM {table}")  # noqa: S608
    with pytest.raises(QuarantineError, match=r"expected .* or more: rows were deleted"):
        opened(f"sqlite:///{file}")


@pytest.mark.parametrize("key", [None, OTHER])
def test_without_the_key_nothing_is_opened_and_the_error_says_so(file, key):
    with pytest.raises(QuarantineError, match=r"is kept with the key .* set RAGSHIELD_AUDIT_KEY"):
        opened(f"sqlite:///{file}", key=key)
    with pytest.raises(QuarantineError, match="with the key"):
        Quarantine(f"sqlite:///{file}", audit_key=key).log.verify()


@pytest.fixture(params=["on_file", *slowly("empty_postgres")])
def any_url(request):
    return request.getfixturevalue(request.param)


@pytest.mark.slow
def test_a_new_key_needs_a_seal_and_can_be_exchanged(any_url):
    guard = opened(any_url, key=None, fpr=RATE)
    guard.fit(passages(60, 1))
    guard.quarantine.hold(group(2, 3), by="anna")
    assert "none: who may write" in str(guard.status())
    guard.close()
    with pytest.raises(QuarantineError, match="ragshield quarantine seal"):
        opened(any_url)
    Quarantine(any_url, audit_key=KEY).log.seal()
    guard = opened(any_url)
    assert guard.status().sealed
    guard.learn(passages(5, 2, "new"))
    guard.quarantine.log.rekey(OTHER)
    guard.learn(passages(5, 3, "newer"))  # with the new one
    guard.quarantine.log.verify()
    guard.close()
    later = opened(any_url, key=OTHER)
    assert len(later.writes.known(passages(5, 3, "newer").ids)) == 5
    with pytest.raises(QuarantineError, match="set RAGSHIELD_AUDIT_KEY"):
        opened(any_url)


def test_cases_that_were_changed_are_told_anew_at_the_next_write(file):
    change = "UPDATE ragshield_case SET n_waiting = n_waiting + 5 WHERE namespace = 'default'"
    sql(file, change)
    quarantine = Quarantine(f"sqlite:///{file}", audit_key=KEY)
    quarantine.release(["odd"], by="anna")
    quarantine.for_store("x").hold(group(1, 9), by="anna")
    quarantine.log.verify()
