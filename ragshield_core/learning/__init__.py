"""Learning from writes, as events that can be stored, and the status of a guard."""
