"""An audit by partitions, as tasks of an engine, for entries that do not fit in one memory."""
