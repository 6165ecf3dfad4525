"""An audit whose entries are never all in one memory: by partitions, as tasks of an engine."""
