"""Time after which a silent writer counts as crashed."""

# Seconds without a heartbeat after which a writer counts as crashed. Long enough for a host that
# swaps; the pending events of a crashed writer wait as long.
DEFAULT_LEASE = 30.0
