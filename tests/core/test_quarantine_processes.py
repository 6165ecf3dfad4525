"""Many processes hold, judge and purge at once; afterwards everything adds up."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from sqlalchemy import text
from support import slowly

from ragshield_core import Batch, Quarantine
from ragshield_core.model.errors import QuarantineError

WORKERS, ROUNDS = 8, 40

# Each of them works on the same few ids, in an order of its own, in batches: as bad as it gets.
WORKER = """
import json, random, sys
from collections import Counter

from ragshield_core import Batch, Decision, Quarantine, Verdict
from ragshield_core.model.errors import QuarantineError

url, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
quarantine, rng = Quarantine(url), random.Random(name)
done, released = Counter(), {}
print("ready", flush=True)
sys.stdin.readline()
for i in range(rounds):
    ids = rng.sample([f"e{n}" for n in range(6)], 3)
    text = f"revision {rng.randrange(3)}"
    batch = Batch.of(ids=ids, texts=[text] * 3, embeddings=[[1.0, 0.0]] * 3)
    what = rng.choice(["hold", "hold", "hold", "release", "confirm", "purge", "note", "readmit"])
    try:
        if what == "hold":
            decisions = [Decision(entry_id=i, verdict=Verdict.QUARANTINE) for i in ids]
            quarantine.hold(batch, decisions, by=name)
        elif what in ("release", "confirm"):
            getattr(quarantine, what)(ids[:1], by=name)
        elif what == "purge":
            quarantine.purge(ids[:1], by=name, held_only=True)
        elif what == "note":
            quarantine.indexes.note(ids, "shared")
        else:
            quarantine.readmit(batch, by=name)
        done[what] += 1
    except QuarantineError as error:
        if "is not held" not in str(error):  # another reviewer was quicker
            raise
        done["refused"] += 1
print(json.dumps(done))
"""


@pytest.fixture(params=["file", *slowly("postgres")])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("empty_postgres")
    return f"sqlite:///{tmp_path}/q.db"


def run(url, script, arguments):
    """Run child processes at once and return their output; fail on any error output."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [
        subprocess.Popen([sys.executable, "-c", script, url, *map(str, some)], text=True, **pipes)
        for some in arguments
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=300) for child in children]
    assert [errors for _, errors in said] == [""] * len(children)
    return [json.loads(answer) for answer, _ in said]


def replayed(log):
    """Return the status of each revision, replayed from the log alone."""
    status = {}
    becomes = {"hold": "held", "supersede": "superseded", "release": "released"} | {
        "confirm": "confirmed",
        "readmit": "readmitted",
    }
    for record in log:
        revision = record.entry_id, record.fingerprint
        if record.action == "purge":
            del status[revision]
        elif record.action in becomes:
            status[revision] = becomes[record.action]
    return status


@pytest.mark.slow
def test_processes_that_judge_the_same_entries_never_contradict_each_other(url):
    said = run(url, WORKER, [(f"w{n}", ROUNDS) for n in range(WORKERS)])
    assert sum(sum(done.values()) for done in said) == WORKERS * ROUNDS
    quarantine = Quarantine(url)
    log = quarantine.log.lines()
    quarantine.log.verify()
    assert [record.seq for record in log] == list(range(1, len(log) + 1))
    now = {(h.id, h.entry.fingerprint): str(h.status) for h in quarantine.list(None)}
    assert now == replayed(log)
    held = Counter(item.id for item in quarantine.list())
    assert max(held.values(), default=1) == 1
    # Every decision that a process was told of is in the log, once.
    for action in ("release", "confirm"):
        decided = Counter(record.actor for record in log if record.action == action)
        assert decided == Counter({f"w{n}": d.get(action, 0) for n, d in enumerate(said)})
    # Only a person holds a released entry again, and no person acts here.
    released = set()
    for record in log:
        revision = record.entry_id, record.fingerprint
        if record.action == "release":
            released.add(revision)
        assert record.action != "hold" or revision not in released
    assert len(set(quarantine.indexes.ids("shared"))) == len(quarantine.indexes.ids("shared"))
    quarantine.close()


def test_database_allows_one_held_revision_per_entry(url):
    quarantine = Quarantine(url)
    quarantine.hold(Batch.of(ids=["a", "b"], texts=["x", "y"], embeddings=None))
    both = text("UPDATE ragshield_quarantine SET entry_id = 'a'")
    with pytest.raises(QuarantineError, match=r"(?i)cannot be used.*unique"):
        quarantine.database.write(lambda session: session.execute(both))
    assert quarantine.held_ids(["a", "b"]) == {"a", "b"}
    quarantine.close()
