"""``ragshield guard``: act on a guard."""
