"""Guard state shared by all processes that use one database and one namespace.

Changes are written as numbered *events* to a *journal* that only grows; a *snapshot* is the whole
state at one position. A process starts from the latest snapshot, replays the later events, and then
has the same state as every other process. To write, it

1. queues for its turn (:meth:`Journal.take_turn`), catches up (:meth:`Journal.since`) and
   screens its batch against its current state;
2. writes its intent as *pending* events, with its findings about the entries, and the held entries
   into quarantine, in one short transaction;
3. writes the vector store, with no transaction open, and
4. closes the events, or adds contrary events that undo them (:meth:`Journal.close_pending`).

Writers show by heartbeats that they are alive. If a writer is silent for longer than its *lease*,
its pending events are abandoned. Another writer takes them over (:meth:`Journal.take_over`), reads
the store and closes them; the first writer can no longer do so (``TakenOverError``). A writer that
is silent in its turn for longer than its lease loses the turn, and writes nothing
(``OvertakenError``). All times come from the database's clock, and it runs one write at a time.
"""
