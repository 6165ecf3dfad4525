"""What a guard has learned, shared by every process that uses one database and one namespace.

What happens is written as numbered *events* to a *journal* that only ever grows; a *snapshot* is
the whole state at one position. A process starts from the latest snapshot, replays what came after
it, and is then what every other process is. To write, it

1. queues for its turn (:meth:`Journal.take_turn`), catches up (:meth:`Journal.since`) and
   screens its batch against what it knows now;
2. in one short transaction writes what it intends as *pending* events, beside what it holds in
   quarantine;
3. writes the vector store, with no transaction open, and
4. closes the events, perhaps by events to the contrary (:meth:`Journal.close_pending`).

Writers show by heartbeats that they are alive. What is pending of one that was silent for longer
than its *lease* is abandoned; another takes it over (:meth:`Journal.take_over`), asks the store
and closes it, and the first can close it no more (``TakenOverError``). A writer that was silent in
its turn for longer than its lease has lost the turn, and writes nothing (``OvertakenError``). The
database tells the time, whatever the hosts' clocks say, and has one transaction write at a time.
"""

from ragshield_core.sharing.journal import DEFAULT_LEASE, Journal, Pending, new_writer
from ragshield_core.sharing.rows import JournalRecord
from ragshield_core.sharing.snapshots import Snapshot, Snapshots

__all__ = [
    "DEFAULT_LEASE",
    "Journal",
    "JournalRecord",
    "Pending",
    "Snapshot",
    "Snapshots",
    "new_writer",
]
