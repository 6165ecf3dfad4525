"""A store of several processes, a folder of files, and a process that writes to it."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from support import group
from test_mask import Pairs

from ragshield_core import Batch, Guard
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.entries import NO_ENTRIES, concatenate
from ragshield_core.quarantine.entries import batch_of
from ragshield_core.store import writing
from ragshield_core.store.inner import StoredEntries
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import RawEntries, sift
from ragshield_core.store.mask import Claims


class Folder:
    """Entries, each in a file."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.mkdir(exist_ok=True)

    def ids(self):
        return sorted(file.stem for file in self.path.glob("*.json"))

    def read(self, ids):
        return [self._read(i) for i in ids if (self.path / f"{i}.json").exists()]

    def _read(self, entry_id):
        columns = json.loads((self.path / f"{entry_id}.json").read_text())
        return Batch.of(**columns)[0]

    def write(self, batch):
        for entry, vector in zip(batch, batch.vectors, strict=True):
            columns = {
                "ids": [entry.id],
                "texts": [entry.text],
                "lineages": [entry.lineage],
                "embeddings": [vector.tolist()],
            }
            (self.path / f"{entry.id}.json").write_text(json.dumps(columns))

    def delete(self, ids):
        for entry_id in ids:
            (self.path / f"{entry_id}.json").unlink(missing_ok=True)


class Mask(Pairs):
    """Of entries."""

    def id_of(self, item):
        return item.id

    def claims_of(self, item):
        return Claims(item.text, item.label, item.lineage, item.context)


class FolderKeeper(Keeper):
    """Keeps a folder and a guard in step."""

    def __init__(self, guard, path):
        super().__init__(guard, Mask())
        self.store = Folder(path)

    def stored(self, ids):
        found = self.store.read(list(dict.fromkeys(ids)))
        return StoredEntries(batch(found), found)

    def ids(self):
        return self.store.ids()

    def write_entries(self, entries, how, older):  # noqa: ARG002
        self.store.write(entries)

    def delete_entries(self, ids, options=None):  # noqa: ARG002
        self.store.delete(ids)

    def nearest(self, vector, k):  # noqa: ARG002
        return []

    def entries_of(self, held, embed):  # noqa: ARG002
        return batch_of(held)

    def everything(self, *_):
        return batch([e for e in self.store.read(self.store.ids()) if not self.mask.hides(e)])

    def seen(self):
        """Return the ids that a reader of the guarded store sees."""
        self.mask.catch_up()
        return list(self.everything().ids)


def batch(entries):
    """Return entries as one batch."""
    some = [
        Batch.of(
            ids=[one.id],
            texts=[one.text],
            embeddings=[one.embedding],
            lineages=[one.lineage],
        )
        for one in entries
    ]
    return concatenate(some) if some else NO_ENTRIES


def add(keeper, entries):
    """Write entries; return the report."""
    return keeper.run(
        writing.add, keeper, sift(RawEntries.of(entries), keeper.guard), lambda _: None
    )


def main():
    """Do what the command line says: DATABASE FOLDER TASK [NUMBER]."""
    url, path, task, *rest = sys.argv[1:]
    guard = Guard.open(url, detectors=[CliqueDetector()], lease=float(os.environ["LEASE"]))
    keeper = FolderKeeper(guard, path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    if task == "group":  # its members, every so many of several groups
        number, workers, groups = map(int, rest)
        for seed in range(groups):
            bad = group(5, seed)
            for row in range(number, len(bad), workers):
                add(keeper, bad.take([row]))
    else:
        write, n = keeper.store.write, int(task == "killed half way")

        def killed(entries):
            write(entries.take(np.arange(n)))
            os.kill(os.getpid(), signal.SIGKILL)

        keeper.store.write = killed
        add(keeper, group(2, 77))


if __name__ == "__main__":
    main()
