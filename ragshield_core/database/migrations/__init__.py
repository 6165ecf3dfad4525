"""One file a change of the tables; each says what was before it, and alembic runs what is new."""
