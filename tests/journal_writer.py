"""A process that writes to a journal, as a program and as the tests' own way into its database."""

import sys
import time
from functools import partial

from ragshield_core.database import Database
from ragshield_core.learning.events import Change, Event
from ragshield_core.sharing.journal import Journal

LEASE = 600.0  # nobody is dead here for being slow


class Shared:
    """Transactions on a database."""

    def __init__(self, url):
        self.url = url
        self.database = Database(url)
        self.write = self.database.write

    @property
    def engine(self):
        """For transactions of another kind."""
        with self.database.engine() as engine:
            return engine

    def read(self, work):
        with self.database.read() as session:
            return work(session)


class Worker:
    """Knows what it has read, and writes only what it has judged by all that there is."""

    def __init__(self, shared, journal, name):
        self.shared, self.journal, self.name = shared, journal, name
        self.known = []

    def catch_up(self):
        while found := self.shared.read(lambda s: self.journal.since(s, len(self.known))):
            self.known += [(r.writer, *r.event.ids) for r in found]

    def append(self, number):
        """Write an event that says how many this worker has read, in a turn of its own."""
        if not self.shared.write(lambda s: self.journal.take_turn(s, self.name)):
            while self.shared.read(self.journal.turn) != self.name:
                time.sleep(0.02)
        self.catch_up()
        seen = (str(len(self.known)),)
        event = Event(change=Change.LEARNED, ids=(str(number),), accused={"seen": seen})
        append = partial(self.journal.append, events=[event], writer=self.name, pending=[True])
        return self.shared.write(append)

    def finish(self, positions):
        self.shared.write(lambda s: self.journal.close_pending(s, positions, writer=self.name))


def say(word):
    """Say what was done."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def wait(word):
    """Say what was done, and wait for a line."""
    say(word)
    return sys.stdin.readline().strip()


def main():
    """Do what the command line says: DATABASE NAMESPACE NAME TASK [NUMBER]."""
    url, namespace, name, task, *rest = sys.argv[1:]
    shared, journal = Shared(url), Journal(namespace, lease=LEASE)
    worker = Worker(shared, journal, name)
    wait("ready")
    if task == "prepare":
        for _ in range(int(rest[0])):
            shared.read(journal.head)
    elif task == "append":
        for number in range(int(rest[0])):
            worker.finish(worker.append(number))
            if number % 10 == 0:  # what else may cross a write
                shared.write(lambda s: journal.beat(s, name))
                shared.write(journal.prune)
        say("done")
    elif task == "stop between":
        positions = worker.append(0)
        while wait("pending") == "beat":
            shared.write(lambda s: journal.beat(s, name))
        worker.finish(positions)
        say("finished")


if __name__ == "__main__":
    main()
