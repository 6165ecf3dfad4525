"""Final recall and false-positive rate on streams with one poisoned entry in a hundred.

    python benchmarks/stream.py            # everything, writes benchmarks/results/stream.md
    python benchmarks/stream.py --quick    # one short stream of one attack, writes nothing

The texts of a target come one by one, at random places among clean new entries; entries that a
later text makes suspicious are recalled. Texts come from `RAGSHIELD_DATA`.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections import defaultdict
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from cliques import join, knowledge_base, renamed
from corpora import load, read_rows
from decisions import failed
from ingestion import chunks, guard_of, split
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import write
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors.registry import BUILT_IN

FPR, BATCH, CLEAN, POISONED, STREAMS = 0.01, 20, 1_000, 10, 5


class Attack(NamedTuple):
    """An attack: texts of one file, several for each target."""

    knowledge_base: str
    name: str
    file: str
    text: str
    size: int  # texts per target
    kind: str | None = None  # kind of attack, if the file has several


ATTACKS = (
    Attack("wikipedia", "PoisonedRAG (NQ), black-box", "poisonedrag_nq", "text_blackbox", 5),
    Attack("wikipedia", "PoisonedRAG (NQ), raw", "poisonedrag_nq", "text", 5),
    Attack("wikipedia", "PoisonedRAG (NQ), raw", "poisonedrag_nq", "text", 2),
    Attack("wikipedia", "AuthChain", "authchain_nq", "text", 1),
    Attack("web + nq", "PoisonedRAG (NQ), raw", "poisonedrag_nq", "text", 5),
    Attack(
        "web + msmarco", "PoisonedRAG (MS MARCO), black-box",
        "poisonedrag_msmarco_half", "text_blackbox", 5,
    ),
    Attack("web + msmarco", "PoisonedRAG (MS MARCO), raw", "poisonedrag_msmarco_half", "text", 5),
    *(
        Attack("web + msmarco", f"RAGDefender's evasions, {kind}", "ragdefender_attacks", "text", 4,
               f"ragdefender_{kind}")
        for kind in ("dispersion", "mixed", "synonym", "paraphrase")
    ),
)  # fmt: skip
# Entries of a quick run, the least share of poisoned ones that it must hold, and the largest share
# of clean ones that it may hold.
QUICK, LEAST, MOST = 3_000, 0.9, 0.05
HEAD = f"""# Streams with one per cent of poison

Written by `benchmarks/stream.py`. Python {platform.python_version()}; vectors: all-MiniLM-L6-v2.
The default guard, fitted and calibrated at {FPR:.0%} on a random 70 % of a knowledge base. Of the
rest, {CLEAN:,} entries come in batches of {BATCH}, with {POISONED} poisoned ones at random places:
all the texts of some targets. {STREAMS} streams for each attack, of other targets and other clean
entries; the guard begins anew in each. Held: when they came, or taken back later. Shares with the
95 % interval (Wilson); texts of one target are held together, so that the true ones are wider.

| knowledge base | attack | texts of a target | poisoned, held | clean, held |
|---|---|---|---|---|"""


def texts_of(attack: Attack, number: int) -> Batch:
    """Return the texts of the targets of the stream with this number."""
    rows, entries = read_rows(attack.file), load(attack.file, text=attack.text)
    by_target: dict[str, list[int]] = defaultdict(list)
    for row, values in enumerate(rows):
        if attack.kind in (None, values["attack"]):
            by_target[values["target_question_id"]].append(row)
    targets = [found[: attack.size] for found in by_target.values() if len(found) >= attack.size]
    order = np.random.default_rng(0).permutation(len(targets)).tolist()
    n = POISONED // attack.size
    chosen = [order[place % len(order)] for place in range(number * n, (number + 1) * n)]
    return renamed(entries.take([row for target in chosen for row in targets[target]]), "poison-")


def streamed(guard: Guard, clean: Batch, poison: Batch, seed: int) -> NDArray[np.bool_]:
    """Return a mask of entries held at the end of a stream, poisoned ones first."""
    whole = join(poison, clean)
    order = np.random.default_rng(seed).permutation(len(whole))
    gone = np.zeros(len(whole), dtype=np.bool_)
    row_of = {entry_id: row for row, entry_id in enumerate(whole.ids)}
    for batch in chunks(whole.take(order), BATCH):
        report = guard.hold(guard.screen(batch))
        guard.admit(report)
        earlier = [d for d in report.retroactive if d.entry_id in row_of]
        rows = [row_of[decision.entry_id] for decision in earlier]
        guard.recall(whole.take(rows), earlier, lambda _: None)
        gone[[row_of[decision.entry_id] for decision in report.quarantined] + rows] = True
    return gone


def measured(
    attacks: Sequence[Attack], *, streams: int, n_clean: int, size: int | None = None
) -> tuple[list[str], list[str]]:
    """Return a row for each attack on a knowledge base or its first entries, and missed goals."""
    corpus = knowledge_base(attacks[0].knowledge_base)
    known, rest = split(corpus.take(range(size or len(corpus))), 0)
    lines, broken = [], []
    with TemporaryDirectory(prefix="ragshield") as folder:
        guard_of([cls() for cls in BUILT_IN.values()], known, FPR).save(folder)
        for attack in attacks:
            held = {"poisoned": [0, 0], "clean": [0, 0]}
            for number in track(range(streams), f"{attack.name}, {attack.size}", transient=True):
                guard = Guard.load(folder, quarantine=Quarantine("sqlite://"))
                poison = texts_of(attack, number)
                drawn = np.random.default_rng(number).permutation(len(rest))[:n_clean]
                gone = streamed(guard, rest.take(drawn), poison, number)
                for label, part in (
                    ("poisoned", gone[: len(poison)]),
                    ("clean", gone[len(poison) :]),
                ):
                    held[label][0] += int(part.sum())
                    held[label][1] += len(part)
            cells = " | ".join(str(proportion_interval(*counts)) for counts in held.values())
            line = f"| {attack.knowledge_base} | {attack.name} | {attack.size} | {cells} |"
            print(line, flush=True)
            lines.append(line)
            (bad, n_bad), (good, n_good) = held.values()
            if bad < LEAST * n_bad or good > MOST * n_good:
                broken.append(line)
    return lines, broken


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    streams, n_clean = (1, 100) if quick else (STREAMS, CLEAN)
    by_base: dict[str, list[Attack]] = defaultdict(list)
    for attack in ATTACKS[:1] if quick else ATTACKS:
        by_base[attack.knowledge_base].append(attack)
    lines, size = [HEAD], QUICK if quick else None
    for attacks in by_base.values():
        rows, broken = measured(attacks, streams=streams, n_clean=n_clean, size=size)
        lines += rows
        if quick:
            failed(broken)
    if not quick:
        write("stream", "\n".join(lines))


if __name__ == "__main__":
    main()
