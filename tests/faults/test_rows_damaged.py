"""Damaged rows of the database give a clear error, and nothing else fails."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import String
from starlette.testclient import TestClient
from test_rows_changed import KEY, TABLES, opened, sql, written  # noqa: F401 - a fixture

from ragshield_core import Quarantine
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.tools.review import review_app
from ragshield_core.tools.review.cases import Cases
from ragshield_core.tools.rules import Rules

ESCAPE = "\x1b[2J \u202e"
# SQLite keeps any type in any column.
WRONG_TYPE = {"text": b"\xff\x00\xfe", "other": ESCAPE}
TOKEN = "of more than thirty-two characters"  # noqa: S105 - of tests
PAGES = ("/", "/cases/1", "/rules")
SHOWN = {f"ragshield_{name}" for name in ("quarantine", "audit_log", "rule", "case")}
COLUMNS = [(name, column.name) for name, table in TABLES.items() for column in table.columns]


def quarantine_of(url):
    return Quarantine(url, audit_key=KEY)


def guard(url):
    guard = opened(url)
    guard.status()
    guard.quarantine.close()


def entries(url):
    quarantine_of(url).list(status=None)
    quarantine_of(url).count(None)
    quarantine_of(url).show("odd")


def cases(url):
    cases = Cases(quarantine_of(url))
    for case in cases.page().cases:
        cases.members(case.number)


def rules(url):
    Rules(quarantine_of(url)).list()


def log(url):
    list(quarantine_of(url).log.lines())
    quarantine_of(url).log.verify()


def pages(url):
    app = review_app(quarantine_of(url), tokens={"anna": TOKEN})
    client = TestClient(app, base_url="http://localhost")
    client.post("/login", data={"token": TOKEN})
    for path in PAGES:
        answer = client.get(path)
        assert answer.status_code in (200, 404, 503), path
        assert not {*ESCAPE} & {*answer.text} - {*"[2J "}, path


def damaged(whole, file, table, column, value):
    """Copy the database with a value in the latest row; return its address, or ``None``."""
    shutil.copy(whole, file)
    change = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT max(rowid) FROM {table})"  # noqa: S608
    try:
        sql(file, change, (value,))
    except sqlite3.IntegrityError:  # of a key, which holds numbers only
        return None
    return f"sqlite:///{file}"


@pytest.mark.slow
@pytest.mark.parametrize("use", [guard, entries, cases, rules, log, pages])
def test_a_value_of_another_type_is_told_in_words(written, tmp_path, use):  # noqa: F811
    failed = {}
    for table, column in COLUMNS:
        if use is pages and table not in SHOWN:
            continue
        text = isinstance(TABLES[table].columns[column].type, String)
        value = WRONG_TYPE["text" if text else "other"]
        url = damaged(written[0], tmp_path / f"{table}.{column}.db", table, column, value)
        try:
            if url is not None:
                use(url)
        except RAGShieldError:
            pass
        except Exception as error:  # noqa: BLE001 - any other is what must not be
            failed[table, column] = repr(error)
    assert failed == {}


@pytest.mark.parametrize("column", ["findings", "entry_metadata", "vector", "held_at", "text"])
@pytest.mark.slow
def test_a_damaged_entry_is_named_and_the_others_are_listed(written, tmp_path, column, caplog):  # noqa: F811
    url = damaged(written[0], tmp_path / "guard.db", "ragshield_quarantine", column, b"\xff")
    query = "SELECT entry_id FROM ragshield_quarantine ORDER BY number DESC LIMIT 1"
    ((last,),) = sql(tmp_path / "guard.db", query)
    with closing(Quarantine(url, namespace="others", audit_key=KEY)) as quarantine:
        listed = {held.id for held in quarantine.list()}
    assert listed == {"odd", "fine"} - {last}
    assert f"entry {last!r}, cannot be read" in caplog.text
