"""Two tenants in one process and one database never see each other.

Both use the same ids and texts, so an entry of the other tenant would be taken for one's own.
"""

import logging
import re
import threading
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import typer
from shared_store import FolderKeeper, add
from sqlalchemy import Engine, event
from support import Scripted, group, passages, saved, scored

from ragshield_core import Guard, Quarantine
from ragshield_core.cli import app
from ragshield_core.database import TableBase
from ragshield_core.detectors import CliqueDetector, QueryEchoDetector
from ragshield_core.model.errors import QuarantineError, StateError
from ragshield_core.quarantine import Status
from ragshield_core.retrieval import RetrievalGuard
from ragshield_core.sharing import shared_writes as sharing
from ragshield_core.store import recalling, reviewing, writing
from ragshield_core.tools.canary import CanaryMonitor
from ragshield_core.tools.contradictions import Alert, KeptAlerts

MINE, THEIRS = "tenant-mine", "tenant-theirs"
RATE = 0.05
# Of a status: when and where a guard was, which is each one's own.
NOWHERE = dict.fromkeys(("snapshot", "namespace", "database", "calibrated_on"))


@pytest.fixture(autouse=True)
def short_journals(monkeypatch):
    """Snapshots are taken, and journals pruned, all the time."""
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 5)


class Tenant:
    """One of several, with a store of its own."""

    def __init__(self, url, namespace, folder, **options):
        self.url, self.namespace, self.folder = url, namespace, folder
        options = {"detectors": [Scripted()], "lease": 60} | options
        self.guard = Guard.open(url, namespace, **options)
        self.keeper = FolderKeeper(self.guard, folder)
        self.quarantine = self.guard.quarantine

    def view(self):
        """Return everything the tenant can see."""
        guard, quarantine = self.guard, self.quarantine
        canaries = CanaryMonitor(["refund?"], canary_texts(), quarantine=quarantine, k=1)
        return {
            "known": guard.writes.known(IDS),
            "status": replace(guard.status(), **NOWHERE),
            "seen": self.keeper.seen(),
            "held": [(h.id, str(h.status), h.entry.text, h.note) for h in quarantine.list(None)],
            "log": [(r.action, r.entry_id, r.actor, r.note) for r in quarantine.log.lines()],
            "counts": [quarantine.count(status) for status in (None, "held", "released")],
            "prints": [p[1:] for p in quarantine.prints()],
            "noted": quarantine.indexes.ids("manual"),
            "confirmed": list(quarantine.confirmed_ids()),
            "copies": quarantine.confirmed_among(GOOD),
            "released": quarantine.released_among(BAD),
            "held ids": quarantine.held_ids(IDS),
            "mask": [self.keeper.mask.covers(entry) for entry in BAD],
            "baselines": canaries.store.suites(),
            "checks": len(canaries.history()),
            "contradictions": [(one.number, one.alert) for one in KeptAlerts(quarantine).list()],
            "abandoned": guard.writes.abandoned(),
            "retrieved": kept(quarantine),
        }


def canary_texts():
    return lambda _query: [("a", "refund in 14 days"), ("b", "ships in 3 days")]


def kept(quarantine):
    """Return the passages that a filter at retrieval lets through."""
    guard = RetrievalGuard([QueryEchoDetector()], quarantine=quarantine)
    return guard.screen("a question of somebody", BAD).admitted.tolist()


GOOD = scored([-0.1, -0.2, -0.3], prefix="e", lineages=["wiki", "wiki", "wiki"])
BAD = scored([5.0, 6.0, 7.0], prefix="e", lineages=["wiki", "wiki", "wiki"])
OTHER = scored([-0.5, -0.6, -0.7], prefix="e", lineages=["forum", "forum", "forum"])
IDS = list(GOOD.ids)


def crashed(tenant):
    """Record a pending write, then disappear."""
    gone = Guard.open(tenant.url, tenant.namespace, detectors=[Scripted()])
    gone.writes.intend(scored([0.9], prefix="lost"))
    gone.close()


def contradictions(tenant):
    """Keep two alerts, and close one."""
    kept = KeptAlerts(tenant.quarantine)
    some = {"claim": "open", "passage_id": "e1", "passage": "shut", "relation": "conflicts"}
    some |= {"score": 0.9, "p_value": 0.01}
    kept.add([Alert(entry_id=name, pair=name, **some) for name in ("e0", "e2")])
    kept.close(kept.list()[0].number, by="anna", reason="read")


def canaries(tenant):
    monitor = CanaryMonitor(["refund?"], canary_texts(), quarantine=tenant.quarantine, k=1)
    monitor.record_baseline()
    monitor.check()


# Actions of a tenant, in this order.
LIFE = {
    "write": lambda t: add(t.keeper, GOOD),
    "hold": lambda t: add(t.keeper, BAD),
    "release": lambda t: t.keeper.run(reviewing.release, t.keeper, ["e0"], "anna", "fine"),
    "confirm": lambda t: t.quarantine.confirm(["e1"], by="anna"),
    "recall": lambda t: t.keeper.run(recalling.recall, t.keeper, ["e2"], None, "anna", "odd"),
    "replace": lambda t: add(t.keeper, OTHER.take([0])),
    "restore": lambda t: t.keeper.run(reviewing.restore, t.keeper, ["e0"], "anna", None),
    "purge": lambda t: t.keeper.run(reviewing.purge, t.keeper, ["e2"], "anna", None),
    "delete": lambda t: t.keeper.run(writing.delete, t.keeper, ["e0"]),
    "write again": lambda t: add(t.keeper, GOOD.take([0, 2])),
    "note": lambda t: t.quarantine.indexes.note(["e0", "e1"], "manual"),
    "forget note": lambda t: t.quarantine.indexes.forget(["e0"], "manual"),
    "stand": lambda t: t.quarantine.keep_stored(GOOD.take([2]), Status.READMITTED),
    "canaries": canaries,
    "contradictions": contradictions,
    "crash": crashed,
    "recover": lambda t: t.keeper.recover(),
    "fit": lambda t: t.guard.fit(scored(np.linspace(-1, 1, 40), prefix="fitted")),
    "calibrate": lambda t: t.guard.calibrate(fpr=0.2),
    "grow": lambda t: t.guard.learn(scored(np.linspace(-1, 1, 20), prefix="grown")),
    "scan": lambda t: recalling.scan(t.keeper, 0.2, None, 0),
    "open again": lambda t: Guard.open(t.url, t.namespace, detectors=[Scripted()]).close(),
}


def two(url, tmp_path, **options):
    mine = Tenant(url, MINE, tmp_path / "mine", **options)
    theirs = Tenant(url, THEIRS, tmp_path / "theirs", **options)
    return mine, theirs


@pytest.mark.slow
def test_actions_of_one_tenant_are_invisible_to_another(any_url, tmp_path):
    mine, theirs = two(any_url, tmp_path)
    for life in (["write", "hold"], [*LIFE], [*LIFE]):  # with nothing, something, all of their own
        mine.guard.writes.settled()  # its own thresholds are taken in the background
        before = mine.view()
        for step in life:
            LIFE[step](theirs)
            assert mine.view() == before, step
        mine, theirs = theirs, mine
    for tenant in (mine, theirs):
        tenant.quarantine.log.verify()
        again = Guard.open(any_url, tenant.namespace, detectors=[Scripted()])
        tenant.guard.writes.catch_up()
        assert again.status().n_known == tenant.guard.status().n_known > 0
    assert len({record.seq for t in (mine, theirs) for record in t.quarantine.log.lines()}) == sum(
        len(t.quarantine.log.lines()) for t in (mine, theirs)
    )


@pytest.mark.slow
def test_tenant_has_the_same_state_as_if_alone(url, tmp_path):
    mine, theirs = two(url, tmp_path)
    alone = Tenant(f"sqlite:///{tmp_path}/alone.db", MINE, tmp_path / "alone")
    for step in LIFE.values():
        for tenant in (mine, theirs, alone):
            step(tenant)
            tenant.guard.writes.settled()  # thresholds are taken in the background
    assert mine.view() == alone.view() == theirs.view()
    states = [saved(t.guard, tmp_path / f"of {n}") for n, t in enumerate((mine, theirs, alone))]
    assert states[0] == states[1] == states[2]


@pytest.mark.slow
def test_evidence_names_only_entries_of_the_tenant(url, tmp_path):
    mine, theirs = (
        Guard.open(url, namespace, detectors=[CliqueDetector()], fpr=RATE)
        for namespace in (MINE, THEIRS)
    )
    for guard in (mine, theirs):
        guard.fit(passages(300, 1)).calibrate()
    bad = group(6, 3)
    for row in range(4):
        theirs.admit(theirs.hold(theirs.screen(bad.take([row]))))
    held = {entry.id for entry in theirs.quarantine.list()}
    assert len(held) >= 2
    report = mine.screen(bad.take([4]))
    assert report.admitted.all()  # the others of its group are not here
    report = mine.hold(mine.screen(bad.take([4, 5])))
    named = {i for d in report.quarantined for f in d.findings for i in f.related_ids}
    assert named <= {*bad.ids[4:], *passages(300, 1).ids}
    assert not report.retroactive
    said = [f.evidence for d in report.quarantined for f in d.findings]
    assert not [i for i in bad.ids[:4] for sentence in said if i in sentence]
    mine.close()
    saved = tmp_path / "saved"
    mine.save(saved)
    whole = b"".join(path.read_bytes() for path in saved.iterdir())
    assert not [i for i in bad.ids[:4] if i.encode() in whole]


def test_a_detector_learns_for_one_tenant(url):
    mine = CliqueDetector()
    guard = Guard.open(url, MINE, detectors=[mine])
    for namespace in (THEIRS, MINE):
        with pytest.raises(StateError, match=r"learns for another guard .* CliqueDetector\(\)"):
            Guard.open(url, namespace, detectors=[mine])
    guard.learn(passages(5, 1))
    Guard.open(url, THEIRS, detectors=[CliqueDetector()])
    guard.close()
    again = Guard.open(url, THEIRS, detectors=[mine])
    assert again.status().n_known == 0
    assert again.screen(passages(1, 2)).admitted.all()


def test_turn_and_pending_writes_block_no_other_tenant(url, tmp_path):
    mine, theirs = two(url, tmp_path)
    theirs.guard.writes.take_turn()
    intent = theirs.guard.writes.intend(scored([0.4], prefix="slow"))
    add(mine.keeper, GOOD)
    assert mine.guard.status().pending == 0
    assert mine.guard.writes.abandoned() is None
    theirs.guard.writes.finish(intent)
    assert theirs.guard.writes.known(["slow0"]) == ["slow0"]


def test_crashed_writes_are_recovered_only_by_their_tenant(url, tmp_path):
    mine, theirs = two(url, tmp_path)
    crashed(theirs)
    assert mine.keeper.recover() == 0
    assert theirs.guard.status().pending == 1
    assert theirs.keeper.recover() == 1


# Every statement


# Tables that are nobody's, and why: nothing in them tells of entries.
COMMON = {
    "ragshield_schema": "the version of the tables",
    "ragshield_changes": "how often the database was written",
}
TABLES = TableBase.metadata.sorted_tables
# Whether there are tables, and how they are made.
CATALOGUE = re.compile(r"^\s*(PRAGMA|CREATE)|pg_catalog", re.IGNORECASE)
# Statements that name no tenant, and why they may.
ANYBODYS = {
    # The log is one chain: each new line needs the number and the digest of the last.
    r"FROM ragshield_audit_log ORDER BY ragshield_audit_log\.seq DESC\s+LIMIT",
    r"SELECT max\(ragshield_audit_log\.seq\)",
    r"FROM ragshield_audit_log\s+WHERE ragshield_audit_log\.seq = ",
    r"FROM ragshield_audit_log\s+WHERE ragshield_audit_log\.held_number = ",
    # Numbers are those of the database.
    r"SELECT max\(ragshield_(quarantine|indexed|canary_baseline|canary_check)\.number\)",
    # Rows that were read before, by their tenant.
    r"^(UPDATE|DELETE FROM) ragshield_quarantine .*WHERE ragshield_quarantine\.number = ",
}


def test_every_table_has_a_namespace_column():
    unowned = {table.name for table in TABLES if "namespace" not in table.columns}
    assert unowned == set(COMMON)
    assert len(TABLES) >= 14


def values_of(parameters):
    """Return the parameter values of a statement."""
    if isinstance(parameters, dict):
        return list(parameters.values())
    if isinstance(parameters, list | tuple):
        return [value for one in parameters for value in values_of(one)]
    return [parameters]


@pytest.mark.slow
def test_every_statement_of_a_tenant_names_it_and_no_other(any_url, tmp_path):
    mine, theirs = two(any_url, tmp_path)
    for step in LIFE.values():
        step(theirs)
    seen, wrong, here = set(), [], threading.get_ident()

    def check(_connection, _cursor, statement, parameters, _context, _many):
        # In other threads guards that are open say that they are alive.
        if CATALOGUE.search(statement) or threading.get_ident() != here:
            return
        used = set(re.findall(r"ragshield_\w+", statement)) & {table.name for table in TABLES}
        values = values_of(parameters)
        seen.update(used)
        owned = used - set(COMMON)
        by_none = any(re.search(form, statement, re.DOTALL) for form in ANYBODYS)
        if THEIRS in values or (owned and MINE not in values and not by_none):
            wrong.append(statement)

    mine.guard.writes.in_background = False  # snapshots are written in this thread
    event.listen(Engine, "before_cursor_execute", check)
    try:
        for step in LIFE.values():
            step(mine)
            mine.view()
    finally:
        event.remove(Engine, "before_cursor_execute", check)
    assert wrong == []
    unused = {"ragshield_schema", "ragshield_stores", "ragshield_changes"}
    assert seen >= {table.name for table in TABLES} - unused


# Names


PAIRS = [
    ("o'brien", "o''brien"),
    ('"; DROP TABLE ragshield_quarantine; --', "'; DROP TABLE ragshield_quarantine; --"),
    ("%", "_"),
    ("tenant%", "tenant1"),
    ("a_b", "axb"),
    ("a", "A"),
    ("a", "a "),
    (" a", "a"),
    ("admin", "\N{CYRILLIC SMALL LETTER A}dmin"),
    (unicodedata.normalize("NFC", "José"), unicodedata.normalize("NFD", "José")),
    ("straße", "strasse"),
    ("x" * 200, "x" * 199),
    ("\N{SNAKE}", "\N{SNAKE}\N{SNAKE}"),
    ("می\N{ZERO WIDTH NON-JOINER}خواهم", "میخواهم"),
    ("../../etc/passwd", "..\\..\\etc\\passwd"),
    ("*", "default"),
    (":namespace", "%(namespace)s"),
    ("{namespace}", "?"),
]


@pytest.mark.slow
def test_names_that_look_alike_are_tenants_of_their_own(any_url):
    names = [*dict.fromkeys(name for pair in PAIRS for name in pair)]
    for number, name in enumerate(names):
        guard = Guard.open(any_url, name, detectors=[Scripted()])
        entry = scored([5.0], prefix=f"of-{number}-")
        guard.admit(guard.hold(guard.screen(entry)))
        guard.learn(scored([0.1], prefix=f"good-{number}-"))
        guard.close()
    for number, name in enumerate(names):
        guard = Guard.open(any_url, name, detectors=[Scripted()])
        assert [held.id for held in guard.quarantine.list()] == [f"of-{number}-0"]
        assert {record.entry_id for record in guard.quarantine.log.lines()} == {f"of-{number}-0"}
        assert guard.status().n_known == 1
        assert guard.writes.known([f"good-{other}-0" for other in range(len(names))]) == [
            f"good-{number}-0"
        ]
        guard.close()
    Quarantine(any_url).log.verify()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is of 0 characters"),
        ("x" * 201, "is of 201 characters"),
        ("a\0b", r"U\+0000"),
        ("a\nb", r"U\+000A"),
        ("\x1b[2J", r"U\+001B"),
        ("\ud800", r"U\+D800"),
        (None, "is a NoneType"),
        (b"a", "is a bytes"),
        (7, "is a int"),
    ],
)
def test_invalid_namespace_is_refused_at_once(url, name, said):
    for make in (Quarantine, Guard.open):
        with pytest.raises(QuarantineError, match=f"the namespace .*{said}.*1 to 200") as found:
            make(url, namespace=name)
        assert "\x1b" not in str(found.value)


# The command line


def commands(group=None, path=()):
    """Yield the commands, and the options that each takes."""
    group = group or typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))
        else:
            options = {o for p in command.params for o in p.opts}
            yield " ".join((*path, name)), options


@pytest.mark.slow
def test_each_command_that_takes_a_database_takes_a_namespace():
    found = dict(commands())
    assert {"quarantine list", "quarantine rekey", "canary check", "scan"} <= set(found)
    for name, options in found.items():
        if "--database" in options:
            assert "--namespace" in options, name


@pytest.mark.slow
def test_quarantine_commands_are_limited_to_their_tenant(url, tmp_path, ragshield):
    mine, theirs = two(url, tmp_path)
    add(theirs.keeper, scored([5.0, 6.0], prefix="secret"))
    add(theirs.keeper, BAD)
    add(mine.keeper, BAD)
    where = ("--database", url, "--namespace", MINE)
    before = theirs.view()
    for command in ("list", "log"):
        for more in (
            (),
            (
                "--format",
                "json",
            ),
        ):
            code, out, _ = ragshield("quarantine", command, *where, *more)
            assert code == 0
            assert "e0" in out
            assert "secret" not in out
    code, _, error = ragshield("quarantine", "show", "secret0", *where)
    assert (code, "is not in" in error) == (2, True)
    for command in ("release", "confirm"):
        code, _, error = ragshield("quarantine", command, "secret0", *where)
        assert (code, "is not held in" in error) == (2, True)
    assert "deleted 0" in ragshield("quarantine", "purge", "secret0", *where)[1]
    ragshield("quarantine", "release", "e0", *where)
    ragshield("quarantine", "confirm", "e1", *where)
    ragshield("quarantine", "purge", "e2", *where)
    assert ragshield("quarantine", "verify", *where)[0] == 0
    assert theirs.view() == before
    code, _, error = ragshield("quarantine", "list", "--database", url, "--namespace", "")
    assert (code, "the namespace '' is of 0 characters" in error) == (2, True)


@pytest.mark.slow
def test_canary_commands_are_limited_to_their_tenant(url, tmp_path, ragshield):
    Quarantine(url).count()
    (tmp_path / "canaries.yaml").write_text("- refund?\n- shipping?\n")
    (tmp_path / "asked.py").write_text("def ask(query):\n    return [('a', 'in 14 days')]\n")
    options = ("--retriever", "asked:ask", "--k", "1", "--database", url)
    suite = "canaries.yaml"
    theirs = ("--namespace", THEIRS)
    for expected in (1, 2):
        code, out, error = ragshield("canary", "baseline", suite, *options, *theirs)
        assert code == 0, error
        assert f"baseline {expected} " in out
    assert ragshield("canary", "check", suite, *options, *theirs)[0] == 0
    mine = ("--namespace", MINE)
    code, _, error = ragshield("canary", "check", suite, *options, *mine)
    assert (code, "no baseline" in error) == (2, True)
    code, _, error = ragshield("canary", "report", suite, "--database", url, *mine)
    assert (code, "never checked" in error) == (2, True)
    assert "baseline 1 " in ragshield("canary", "baseline", suite, *options, *mine)[1]


@pytest.mark.slow
def test_log_records_name_no_entries_of_other_tenants(url, tmp_path, caplog):
    mine, theirs = two(url, tmp_path)
    add(theirs.keeper, scored([5.0], prefix="secret"))
    caplog.clear()
    caplog.set_level(logging.DEBUG, logger="ragshield")
    for step in LIFE.values():
        step(mine)
    assert "secret" not in caplog.text
