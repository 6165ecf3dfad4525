"""A flood: one case of as many members as somebody likes, held, or written without being held."""

import hashlib
import itertools
import json

from sqlalchemy import create_engine, event, select, update

from ragshield_core import Batch
from ragshield_core.database import table_of
from ragshield_core.findings import Decision, Finding, Verdict
from ragshield_core.quarantine.tables import CaseRow, HeldRow, LogRow, MemberRow

SOURCE = "flood.example"
# Rows of one statement.
PAGE = 20_000
TABLES = (HeldRow, LogRow, MemberRow, CaseRow)


def batch_of(start, end):
    """Return entries that are copies of each other but for a number."""
    numbers = range(start, end)
    return Batch.of(
        ids=[f"e{n}" for n in numbers],
        texts=[f"Call 0800 {n} now: your account was closed." for n in numbers],
        embeddings=[[1.0, 0.0]] * len(numbers),
        lineages=[SOURCE] * len(numbers),
    )


def hold(quarantine, start, end):
    """Hold some of them, as one group: each names the first one."""
    batch = batch_of(start, end)
    findings = (
        Finding(
            detector="clique",
            entry_id=entry_id,
            score=9.0,
            threshold=6.9,
            p_value=0.001,
            evidence="one of a group",
            related_ids=("e0",),
        )
        for entry_id in batch.ids
    )
    decisions = [
        Decision(entry_id=one.entry_id, verdict=Verdict.QUARANTINE, findings=(one,))
        for one in findings
    ]
    quarantine.hold(batch, decisions)


def rows(quarantine):
    """Return what the tables hold, but for the times."""
    with quarantine.database.read() as session:
        return [
            [dict(row) for row in session.execute(select(table_of(kind))).mappings()]
            for kind in TABLES
        ]


def fill(quarantine, n):
    """Write the rows that :func:`hold` does of ``n`` entries, several times as quick.

    From those of the first one, which is held. A test compares them with what is held.
    """
    hold(quarantine, 0, 1)
    (row,), (line,), _, _ = rows(quarantine)
    of_entry = row["findings"].replace('"entry_id": "e0"', '"entry_id": "%(id)s"')
    sealed = _filled(
        row, number="n", entry_id="id", fingerprint="print", text="text", findings=of_entry
    )
    told = _filled(
        line, seq="n", entry_id="id", fingerprint="print", held_number="n", held_digest="row"
    )
    before = line["digest"]
    held, log, members, cases = map(table_of, TABLES)
    fillings = (
        (held, ("number", "entry_id", "fingerprint", "text", "findings", "digest")),
        (log, ("seq", "entry_id", "fingerprint", "held_number", "held_digest", "digest")),
        (members, ("number", "searched")),
    )
    indexes = [index for table in (held, log, members) for index in table.indexes]
    quarantine.close()
    engine = create_engine(quarantine.database.url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _without_safety)
    with engine.begin() as connection:
        for index in indexes:  # made at once, which takes a third of the time
            index.drop(connection)
        for start in range(1, n, PAGE):
            batch = batch_of(start, min(start + PAGE, n))
            new = [], [], []
            numbers = itertools.count(start + 1)
            texts = (text.encode() for text in batch.texts)
            for number, entry_id, text, made in zip(
                numbers, batch.ids, texts, batch.fingerprints(), strict=False
            ):
                values = {"n": number, "id": entry_id, "print": made, "text": text.hex()}
                values["row"] = digest = _sha256(sealed % values)
                before = _sha256(f'["{before}", "{_sha256(told % values)}"]')
                new[0].append((number, entry_id, made, text, of_entry % values, digest))
                new[1].append((number, entry_id, made, number, digest, before))
                new[2].append((number, f"{entry_id}\n{text.decode().casefold()}"))
            for (table, columns), some in zip(fillings, new, strict=True):
                connection.exec_driver_sql(_filling(table, columns, engine.dialect), some)
        connection.execute(update(cases).values(n_members=n, n_waiting=n))
        for index in indexes:
            index.create(connection)
    engine.dispose()


def _without_safety(connection, _record):
    """Write everything once, and wait for no disk."""
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")


def _filled(row, *, findings=None, **marks):
    """Return the text of which a row's digest is made, with places for what differs."""
    made = {name: value for name, value in row.items() if value is not None and name != "digest"}
    made |= {name: f"<{mark}>" for name, mark in marks.items()}
    if findings is not None:
        made["findings"] = findings
    plain = {name: v.hex() if isinstance(v, bytes) else v for name, v in made.items()}
    text = json.dumps(plain, sort_keys=True)
    for mark in set(marks.values()):
        text = text.replace(f'"<{mark}>"', "%(n)d" if mark == "n" else f'"%({mark})s"')
    return text


def _filling(table, columns, dialect):
    """Return a statement that copies the first row, but for some columns."""
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    names = [*columns, *(one.name for one in table.columns if one.name not in columns)]
    values = [mark if name in columns else name for name in names]
    (key,) = table.primary_key.columns
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) "  # noqa: S608 - names of our own
        f"SELECT {', '.join(values)} FROM {table.name} WHERE {key.name} = 1"
    )


def _sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
