"""A flood: one case with any number of members."""

from held import found

from ragshield_core import Batch

SOURCE = "flood.example"


def hold(quarantine, start, end):
    """Hold some of them, as one group: each names the first one. They differ in a number."""
    numbers = range(start, end)
    ids = [f"e{n}" for n in numbers]
    batch = Batch.of(
        ids=ids,
        texts=[f"Call 0800 {n} now: your account was closed." for n in numbers],
        embeddings=[[1.0, 0.0]] * len(numbers),
        lineages=[SOURCE] * len(numbers),
    )
    quarantine.hold(batch, [found(i, ["e0"]) for i in ids])
