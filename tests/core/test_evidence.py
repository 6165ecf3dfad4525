"""Any change behind the quarantine's back is found: each column, each row, the log's end.

The tests change each column of each table in the code, so a new column is covered.
"""

import datetime as dt
import pickle
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import LargeBinary

from ragshield_core import Batch, Decision, Finding, Quarantine, Verdict
from ragshield_core.cli import main
from ragshield_core.database import table_of
from ragshield_core.database.tables import HeldRow, IndexedRow, LogRow, RuleRow
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.quarantine.digests import PLAIN
from ragshield_core.tools.rules import Rules

KEY = "a secret of the tests, long enough"
TABLES = [table_of(kind) for kind in (HeldRow, LogRow, IndexedRow, RuleRow)]
COLUMNS = [(table.name, column.name) for table in TABLES for column in table.columns]
# With a key: tests/faults/test_rows_changed.py.
WITHOUT_KEY = pytest.mark.parametrize("key", [None], indirect=True, ids=["plain"])
FINDING = Finding(
    detector="d", entry_id="a", score=1.0, threshold=0.5, p_value=0.01, evidence="looks odd"
)


@pytest.fixture(params=[None, KEY], ids=["plain", "key"])
def key(request):
    return request.param


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return, by key, database files in which each column of each table has a value."""
    folder = tmp_path_factory.mktemp("written")
    return {key: filled(folder / f"{key}.db", key) for key in (None, KEY)}


@pytest.fixture
def quarantine(written, tmp_path, key):
    shutil.copy(written[key], tmp_path / "quarantine.db")
    return Quarantine(f"sqlite:///{tmp_path / 'quarantine.db'}", audit_key=key)


def filled(file, key):
    quarantine = Quarantine(f"sqlite:///{file}", audit_key=key)
    batch = Batch.of(
        ids=["a", "b", "c", "d"],
        texts=["buy now", "buy later", "never buy", "sell"],
        embeddings=[[0.0, 2.0]] * 4,
        labels=["ham"] * 4,
        lineages=["mails"] * 4,
        contexts=["what stood before"] * 4,
        metadatas=[{"doc_id": "manual"}] * 4,
    )
    decisions = [
        Decision(entry_id=i, verdict=Verdict.QUARANTINE, findings=(FINDING,), note="odd")
        for i in batch.ids
    ]
    quarantine.hold(batch, decisions, by="import")
    quarantine.release(["b"], by="anna", note="fine")
    quarantine.confirm(["c"], by="bert")
    quarantine.purge(["d"], by="carl")
    quarantine.indexes.note(["a", "b", "c"], "manual")
    rules = Rules(quarantine)
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    given = {"detectors": ["d"], "reason": "ours", "by": "dora", "expires_at": end}
    rule = rules.add("mails", **given)
    rules.revoke(rule.number, by="emil", reason="sold")
    rules.add("wiki", **given)
    quarantine.log.verify()
    quarantine.close()
    return file


def sql(quarantine, statement, values=()):
    quarantine.close()
    file = quarantine.database.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0, statement


def value_of(quarantine, table, column):
    file = quarantine.database.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection:
        query = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608
        return connection.execute(query).fetchone() or (1, None)


@WITHOUT_KEY
@pytest.mark.parametrize(("table", "column"), COLUMNS)
@pytest.mark.slow
def test_no_column_can_be_changed_unnoticed(quarantine, table, column):
    row, before = value_of(quarantine, table, column)
    if isinstance(before, int):
        changed = before + 100
    elif isinstance(before, bytes):
        changed = bytes([before[0] ^ 1]) + before[1:]
    else:
        changed = "" if before is None else before[:-1] + ("x" if before[-1:] != "x" else "y")
    change = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"  # noqa: S608
    sql(quarantine, change, (changed, row))
    numbers = f"({row}|{changed if column == 'number' else row})"
    with pytest.raises(QuarantineError, match=rf"(line|row) {numbers}\b.*backup"):
        quarantine.log.verify()


@pytest.mark.parametrize(
    ("table", "column"),
    [(table.name, column.name) for table in TABLES for column in table.columns if column.nullable],
)
@pytest.mark.slow
def test_no_column_can_be_emptied_unnoticed(quarantine, table, column):
    row, before = value_of(quarantine, table, column)
    if before is None:  # the name of a key, where there is none
        return
    change = f"UPDATE {table} SET {column} = NULL WHERE rowid = ?"  # noqa: S608
    sql(quarantine, change, (row,))
    with pytest.raises(QuarantineError, match=rf"(line|row) {row}\b.*backup"):
        quarantine.log.verify()


def test_every_column_was_filled(quarantine, key):
    """Otherwise the tests above would change empty values only."""
    empty = {
        f"{table}.{column}"
        for table, column in COLUMNS
        if value_of(quarantine, table, column)[1] is None
    }
    # There is no guard here: tests/faults/test_rows_changed.py has one.
    missing = {"ragshield_audit_log.journal_position"}
    assert empty == missing | (set() if key else {"ragshield_audit_log.key_name"})
    assert any(isinstance(column.type, LargeBinary) for column in table_of(HeldRow).columns)


@pytest.mark.parametrize("table", ["ragshield_quarantine", "ragshield_audit_log", "ragshield_rule"])
@pytest.mark.parametrize("which", ["MIN", "MAX"])
def test_no_row_can_be_deleted_unnoticed(quarantine, table, which):
    anchor = quarantine.log.head()
    row = f"(SELECT {which}(rowid) FROM {table})"  # noqa: S608
    sql(quarantine, f"DELETE FROM {table} WHERE rowid = {row}")  # noqa: S608
    with pytest.raises(QuarantineError, match=r"missing|line"):
        quarantine.log.verify(anchor)


def test_no_row_can_be_slipped_in(quarantine):
    names = [c.name for c in table_of(HeldRow).columns if c.name not in ("number", "status")]
    values = ", ".join("'new'" if name == "entry_id" else name for name in names)
    into = f"ragshield_quarantine (status, {', '.join(names)})"
    taken = f"SELECT 'released', {values} FROM ragshield_quarantine WHERE entry_id = 'a'"  # noqa: S608
    sql(quarantine, f"INSERT INTO {into} {taken}")
    with pytest.raises(QuarantineError, match=r"entry 'new'.*slipped in"):
        quarantine.log.verify()


def test_an_emptied_log_is_not_whole(quarantine):
    sql(quarantine, "DELETE FROM ragshield_audit_log")
    with pytest.raises(QuarantineError, match="slipped in"):
        quarantine.log.verify()


@pytest.mark.slow
def test_a_log_that_was_cut_off_does_not_reach_its_anchor(quarantine):
    early = quarantine.log.head()
    quarantine.hold(Batch.of(ids=["e"], texts=["t"], embeddings=None))
    anchor = quarantine.log.head()
    quarantine.log.verify(early)
    quarantine.log.verify(anchor)
    sql(quarantine, "DELETE FROM ragshield_quarantine WHERE entry_id = 'e'")
    sql(quarantine, "DELETE FROM ragshield_audit_log WHERE entry_id = 'e'")
    quarantine.log.verify(early)  # from within it cannot be seen
    with pytest.raises(QuarantineError, match="lines were cut off"):
        quarantine.log.verify(anchor)
    quarantine.hold(Batch.of(ids=["f"], texts=["u"], embeddings=None))
    with pytest.raises(QuarantineError, match="expected the digest of the anchor"):
        quarantine.log.verify(anchor)


@pytest.mark.parametrize("anchor", ["", "x:y", "7", "7:", "0:abc", "-1:abc"])
def test_invalid_anchor_is_refused(quarantine, anchor):
    with pytest.raises(QuarantineError, match="expected what `ragshield quarantine verify --head`"):
        quarantine.log.verify(anchor)


@pytest.mark.parametrize(
    "change", ["text = x'00'", "vector = x'00000000'", "entry_metadata = '{}'", "digest = ''"]
)
def test_tampered_entry_is_not_released(quarantine, change):
    sql(quarantine, f"UPDATE ragshield_quarantine SET {change} WHERE entry_id = 'a'")  # noqa: S608
    with pytest.raises(QuarantineError, match=r"entry 'a'.*not as it was written"):
        quarantine.release(["a"])
    assert quarantine.show("a").status == "held"
    assert quarantine.purge(["a"]) == 1  # the way out, with a line in the log


def test_a_release_by_sql_lets_nothing_in(quarantine, caplog):
    sql(
        quarantine,
        "UPDATE ragshield_quarantine SET status = 'released', reviewed_by = 'anna' "
        "WHERE entry_id = 'a'",
    )
    entry = quarantine.show("a").entry
    batch = Batch.of(
        ids=["a"],
        texts=[entry.text],
        embeddings=[entry.embedding],
        labels=["ham"],
        lineages=["mails"],
        contexts=["what stood before"],
    )
    assert batch[0].fingerprint == entry.fingerprint
    assert quarantine.released_among(batch) == {}
    assert "does not count as released" in caplog.text
    assert entry.text not in caplog.text
    decision = Decision(entry_id="a", verdict=Verdict.QUARANTINE, findings=(FINDING,))
    with pytest.raises(QuarantineError, match="not as it was written"):
        quarantine.hold(batch, [decision])


def test_a_new_digest_does_not_hide_a_change_from_the_log(quarantine):
    """Without a key anybody can compute a digest, but the log records another one."""
    with quarantine.database.read() as session:
        row = session.get(HeldRow, 1)
        row.text = b"poison"
        made = quarantine.log.digests.of(HeldRow, row)
        session.rollback()
    change = "UPDATE ragshield_quarantine SET text = ?, digest = ? WHERE number = 1"
    sql(quarantine, change, (b"poison", made))
    with pytest.raises(QuarantineError, match="not as it was written"):
        quarantine.release(["a"])
    with pytest.raises(QuarantineError, match=r"row 1 .*the log says"):
        quarantine.log.verify()


# Keys


def test_log_cannot_be_verified_or_continued_without_its_key(on_file):
    Quarantine(on_file, audit_key=KEY).hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    for other in (None, "another key, which is long as well"):
        stranger = Quarantine(on_file, audit_key=other)
        with pytest.raises(QuarantineError, match="written with the key"):
            stranger.log.verify()
        with pytest.raises(QuarantineError, match=r"kept with the key.*Nothing was written"):
            stranger.hold(Batch.of(ids=["b"], texts=["t"], embeddings=None))
        assert stranger.count() == 1


@pytest.mark.slow
def test_log_rebuilt_without_the_key_is_refused(tmp_path):
    """An attacker replaces the whole database with an intact one of their own."""
    theirs = Quarantine(f"sqlite:///{tmp_path}/q.db")
    theirs.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    theirs.log.verify()
    mine = Quarantine(theirs.database.url, audit_key=KEY)
    with pytest.raises(QuarantineError, match="written without a key"):
        mine.log.verify()
    with pytest.raises(QuarantineError, match="ragshield quarantine seal"):
        mine.hold(Batch.of(ids=["b"], texts=["t"], embeddings=None))


def test_new_key_seals_records_written_without_a_key(on_file):
    plain = Quarantine(on_file)
    plain.hold(Batch.of(ids=["a", "b"], texts=["t", "u"], embeddings=None))
    plain.indexes.note(["a"], "manual")
    with pytest.raises(QuarantineError, match="no key to seal with"):
        plain.log.seal()
    mine = Quarantine(on_file, audit_key=KEY)
    mine.log.seal(by="anna")
    mine.log.verify()
    assert [(r.action, r.actor) for r in mine.log.lines()[-2:]] == [("seal", "anna")] * 2
    mine.release(["a"])
    mine.log.verify()
    with pytest.raises(QuarantineError, match="written with the key"):
        mine.log.seal()  # it is


def test_new_key_does_not_seal_tampered_records(on_file):
    plain = Quarantine(on_file)
    plain.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    sql(plain, "UPDATE ragshield_quarantine SET status = 'released'")
    with pytest.raises(QuarantineError, match="it was changed"):
        Quarantine(on_file, audit_key=KEY).log.seal()


def test_a_key_may_come_from_the_environment(on_file, monkeypatch):
    monkeypatch.setenv("RAGSHIELD_AUDIT_KEY", KEY)
    Quarantine(on_file).hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    monkeypatch.delenv("RAGSHIELD_AUDIT_KEY")
    Quarantine(on_file, audit_key=KEY.encode()).for_store("news").log.verify()
    assert KEY not in repr(vars(Quarantine(on_file, audit_key=KEY)))
    with pytest.raises(QuarantineError, match="expected 16 or more"):
        Quarantine(on_file, audit_key="short")


NEW = "another secret of the tests, as long"


@pytest.mark.slow
def test_rekeying_covers_all_records(quarantine, key):
    anchors = []
    mine = Quarantine(quarantine.database.url, audit_key=key, anchor=anchors.append)
    quarantine.for_store("news").release(["a"], by="dora")
    before, head = mine.log.lines(), mine.log.head()
    mine.log.rekey(NEW, by="anna")
    mine.log.verify(anchors[-1])
    Quarantine(mine.database.url, audit_key=NEW).log.verify()
    assert mine.log.lines()[: len(before)] == before
    told = mine.log.lines()[len(before)]
    assert (told.action, told.actor) == ("rekey", "anna")
    assert head in told.note
    with pytest.raises(QuarantineError, match="expected the digest of the anchor"):
        mine.log.verify(head)
    with pytest.raises(QuarantineError, match="used already"):
        mine.log.rekey(NEW)
    with pytest.raises(QuarantineError, match="kept with the key"):
        quarantine.hold(Batch.of(ids=["late"], texts=["t"], embeddings=None))
    with pytest.raises(QuarantineError, match="was written with the key"):
        quarantine.log.verify()
    mine.release([held.id for held in mine.list()])
    mine.hold(Batch.of(ids=["later"], texts=["t"], embeddings=None))
    mine.log.verify()
    for statement in (
        "UPDATE ragshield_audit_log SET actor = 'x' WHERE seq = 1",
        "UPDATE ragshield_quarantine SET status = 'released' WHERE entry_id = 'later'",
    ):
        sql(mine, statement)
        with pytest.raises(QuarantineError, match="broken"):
            Quarantine(mine.database.url, audit_key=NEW).log.verify()


def test_rekeying_refuses_tampered_records(quarantine, key):
    sql(quarantine, "UPDATE ragshield_quarantine SET note = 'x' WHERE entry_id = 'c'")
    before = quarantine.log.head()
    mine = Quarantine(quarantine.database.url, audit_key=key)
    with pytest.raises(QuarantineError, match="entry 'c'"):
        mine.log.rekey(NEW)
    assert mine.log.head() == before
    with pytest.raises(QuarantineError, match="entry 'c'"):
        mine.log.verify()  # still by the old one


def test_rekeying_requires_the_old_key(on_file):
    Quarantine(on_file, audit_key=KEY).hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    with pytest.raises(QuarantineError, match="none is given"):
        Quarantine(on_file).log.rekey(NEW)
    with pytest.raises(QuarantineError, match="expected 16 or more"):
        Quarantine(on_file, audit_key=KEY).log.rekey("short")


def test_entries_of_other_namespaces_are_not_named(on_file):
    theirs = Quarantine(on_file, namespace="theirs")
    theirs.hold(Batch.of(ids=["secret"], texts=["t"], embeddings=None))
    sql(theirs, "UPDATE ragshield_quarantine SET note = 'x'")
    with pytest.raises(QuarantineError, match="entry 'secret'"):
        theirs.log.verify()
    with pytest.raises(QuarantineError, match="of another namespace") as found:
        Quarantine(on_file).log.verify()
    assert "secret" not in str(found.value)
    assert "theirs" not in str(found.value)


# Anchors


def test_each_new_head_is_sent_to_the_anchor(on_file, caplog):
    sent = []
    quarantine = Quarantine(on_file, anchor=sent.append)
    news = quarantine.for_store("news")
    news.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    assert sent == [quarantine.log.head()]
    news.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))  # nothing new
    assert len(sent) == 1
    news.release(["a"])
    assert sent[1:] == [quarantine.log.head()]

    def fail(_head):
        msg = "no network"
        raise OSError(msg)

    Quarantine(on_file, anchor=fail).purge(["a"])
    assert quarantine.count(None) == 0
    assert "could not be anchored" in caplog.text


# The command


@pytest.fixture
def ragshield(monkeypatch, capsys):
    """Run the command as a shell does; return its exit code and output."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["ragshield", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out + told.err.replace("\n", " ")

    return run


@pytest.mark.slow
def test_the_command_says_what_is_broken(on_file, ragshield):
    quarantine = Quarantine(on_file)
    quarantine.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    code, head = ragshield("quarantine", "verify", "--head", "--database", on_file)
    assert (code, head.strip()) == (0, quarantine.log.head())
    quarantine.purge(["a"])
    check = ("quarantine", "verify", "--database", on_file)
    code, said = ragshield(*check, "--anchor", head.strip())
    assert (code, "whole" in said) == (0, True)
    sql(quarantine, "DELETE FROM ragshield_audit_log")
    code, said = ragshield(*check, "--anchor", head.strip())
    assert (code, "broken at line 1" in said) == (1, True)


@pytest.mark.slow
def test_the_command_seals(on_file, ragshield, monkeypatch):
    Quarantine(on_file).hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    monkeypatch.setenv("RAGSHIELD_AUDIT_KEY", KEY)
    assert ragshield("quarantine", "verify", "--database", on_file)[0] == 1
    assert ragshield("quarantine", "seal", "--by", "anna", "--database", on_file)[0] == 0
    assert ragshield("quarantine", "verify", "--database", on_file)[0] == 0
    assert Quarantine(on_file).log.lines()[-1].actor == "anna"


@pytest.mark.parametrize("change", ["actor = 'eve'", "note = 'whole up to line 9'", "note = NULL"])
def test_verification_record_is_believed_only_if_unchanged(quarantine, on_file, key, change):
    assert quarantine.log.verification() == (None, True)
    last = quarantine.log.end()
    quarantine.log.verify(by="nina")
    line, believed = quarantine.log.verification()
    assert (line.actor, line.note, believed) == ("nina", f"whole up to line {last}", True)
    others = Quarantine(on_file, namespace="others", audit_key=key)
    assert others.log.verification() == (None, True)
    quarantine.log.verify()  # its own line is one of the log
    sql(quarantine, f"UPDATE ragshield_audit_log SET {change} WHERE action = 'verify'")  # noqa: S608
    line, believed = quarantine.log.verification()
    assert (line.action, believed) == ("verify", False)


FORGED = {
    "without a key": {"key_name": None},
    "with the name of the key": {},
}


def forge(quarantine, seq, **values):
    """Change a line of the log, and give it a digest computed without the key."""
    quarantine.close()
    with closing(sqlite3.connect(quarantine.database.url.removeprefix("sqlite:///"))) as connection:
        connection.row_factory = sqlite3.Row
        query = "SELECT * FROM ragshield_audit_log WHERE seq = ?"
        before = connection.execute(query, (seq - 1,)).fetchone()
        line = dict(connection.execute(query, (seq,)).fetchone()) | values
        values["digest"] = PLAIN.of_line(line, before["digest"])
        named = ", ".join(f"{name} = ?" for name in values)
        change = f"UPDATE ragshield_audit_log SET {named} WHERE seq = ?"  # noqa: S608
        with connection:
            connection.execute(change, (*values.values(), seq))


@pytest.mark.parametrize("how", FORGED.values(), ids=FORGED)
def test_verification_cannot_be_forged_without_the_key(on_file, how):
    quarantine = Quarantine(on_file, audit_key=KEY)
    quarantine.hold(Batch.of(ids=["a", "b"], texts=["t", "u"], embeddings=None))
    sql(quarantine, "UPDATE ragshield_quarantine SET label = 'x' WHERE entry_id = 'a'")
    with pytest.raises(QuarantineError):
        quarantine.log.verify(by="nightly")
    line, believed = quarantine.log.verification()
    assert (line.note.partition(":")[0], believed) == ("broken up to line 2", True)
    forge(quarantine, 3, note="whole up to line 2", **how)
    line, believed = quarantine.log.verification()
    assert (line.note, believed) == ("whole up to line 2", False)


@pytest.mark.parametrize("how", FORGED.values(), ids=FORGED)
def test_old_release_cannot_be_restored_without_the_key(on_file, how):
    """An earlier row has a valid digest, but the last line of the log does not record it."""
    quarantine = Quarantine(on_file, audit_key=KEY)
    quarantine.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    quarantine.release(["a"])
    columns = ("status", "reviewed_at", "reviewed_by", "digest")
    before = [value_of(quarantine, "ragshield_quarantine", name)[1] for name in columns]
    quarantine.reopen(["a"])
    changed = ", ".join(f"{name} = ?" for name in columns)
    sql(quarantine, f"UPDATE ragshield_quarantine SET {changed}", before)  # noqa: S608
    forge(quarantine, 3, held_digest=before[-1], **how)
    with pytest.raises(QuarantineError, match="not as it was written"):
        quarantine.vouched(["a"])


def test_restoring_an_old_row_does_not_restore_its_release(quarantine):
    """The old row has a valid digest, and anybody may have kept a copy of it."""
    batch = Batch.of(ids=["e"], texts=["poison"], embeddings=[[0.0, 2.0]])
    quarantine.hold(batch)
    quarantine.release(["e"])
    assert quarantine.released_among(batch)
    columns = ("status", "reviewed_at", "reviewed_by", "digest")
    query = f"SELECT {', '.join(columns)} FROM ragshield_quarantine WHERE entry_id = 'e'"  # noqa: S608
    with closing(sqlite3.connect(quarantine.database.url.removeprefix("sqlite:///"))) as connection:
        before = connection.execute(query).fetchone()
    quarantine.reopen(["e"])
    quarantine.confirm(["e"])
    changed = ", ".join(f"{name} = ?" for name in columns)
    sql(quarantine, f"UPDATE ragshield_quarantine SET {changed} WHERE entry_id = 'e'", before)  # noqa: S608
    assert quarantine.released_among(batch) == {}
    found = replace(FINDING, entry_id="e")
    decision = Decision(entry_id="e", verdict=Verdict.QUARANTINE, findings=(found,))
    assert quarantine.released_among(batch, [decision]) == {}
    with pytest.raises(QuarantineError, match="not as it was written"):
        quarantine.vouched(["e"])
    assert quarantine.hold(batch, [decision]) == {}


def test_a_verification_with_another_key_is_not_believed(on_file):
    quarantine = Quarantine(on_file, audit_key=KEY)
    quarantine.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    quarantine.log.verify(by="nina")
    keys = (None, NEW, KEY)
    believed = [Quarantine(on_file, audit_key=one).log.verification()[1] for one in keys]
    assert believed == [False, False, True]


@pytest.mark.parametrize("note", ["whole up to line 9", "whole", None])
def test_a_verification_that_was_changed_is_not_believed(quarantine, note):
    quarantine.log.verify(by="nina")
    assert quarantine.log.verification()[1]
    sql(quarantine, "UPDATE ragshield_audit_log SET note = ? WHERE action = 'verify'", (note,))
    assert not quarantine.log.verification()[1]


@pytest.mark.parametrize("anchor", ["7", "9:abc"])
def test_verification_against_a_bad_anchor_is_not_recorded(on_file, anchor):
    quarantine = Quarantine(on_file)
    quarantine.hold(Batch.of(ids=["a"], texts=["t"], embeddings=None))
    quarantine.log.verify(by="nina")
    before = quarantine.log.head()
    with pytest.raises(QuarantineError):
        quarantine.log.verify(anchor, by="nina")
    assert quarantine.log.head() == before
    line, believed = quarantine.log.verification()
    assert (line.note, believed) == ("whole up to line 1", True)


def test_tampering_error_keeps_its_location_when_pickled(quarantine):
    sql(quarantine, "DELETE FROM ragshield_quarantine WHERE entry_id = 'a'")
    with pytest.raises(TamperedError) as found:
        quarantine.log.verify()
    there = pickle.loads(pickle.dumps(found.value))  # noqa: S301 - our own
    assert (there.where, str(there)) == ("row 1 of ragshield_quarantine", str(found.value))


def test_unrecorded_verification_still_reports_its_result(quarantine, on_file, caplog):
    other = Quarantine(on_file, audit_key="another secret of the tests")
    with pytest.raises(QuarantineError, match="the audit log is broken at line 1"):
        other.log.verify(by="nina")
    assert "could not be told that it was verified" in caplog.text
    assert [line for line in quarantine.log.lines() if line.action == "verify"] == []
