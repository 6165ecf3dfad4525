"""A process that writes to a journal, as a program and as the tests' own way into its database."""

import json
import sys
import time

from ragshield_core.database import Database
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.errors import OvertakenError
from ragshield_core.sharing import Journal

TRIES = 3  # before it queues for a turn
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
        self.tries = []

    def catch_up(self):
        while found := self.shared.read(lambda s: self.journal.since(s, len(self.known))):
            self.known += [(r.writer, *r.event.ids) for r in found]

    def queue(self):
        if not self.shared.write(lambda s: self.journal.take_turn(s, self.name)):
            while self.shared.read(self.journal.turn) != self.name:
                time.sleep(0.02)

    def append(self, number):
        tries, mine = 0, False
        while True:
            tries += 1
            mine = mine or tries > TRIES
            if mine:
                self.queue()
            self.catch_up()
            seen = len(self.known)
            event = Event(change=Change.LEARNED, ids=(str(number),), accused={"seen": (str(seen),)})
            try:
                positions = self.shared.write(
                    lambda s: self.journal.append(  # within its round of the loop
                        s,
                        [event],  # noqa: B023
                        writer=self.name,
                        expected=seen,  # noqa: B023
                        pending=[True],
                    )
                )
            except OvertakenError as error:
                if mine:  # nobody can overtake it in its own turn
                    raise
                mine = error.turn is not None
                continue
            self.tries.append(tries)
            return positions

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
                shared.write(lambda s: journal.beat(s, name, len(worker.known)))
                shared.write(journal.prune)
        say(json.dumps(worker.tries))
    elif task == "stop between":
        positions = worker.append(0)
        while wait("pending") == "beat":
            shared.write(lambda s: journal.beat(s, name))
        worker.finish(positions)
        say("finished")


if __name__ == "__main__":
    main()
