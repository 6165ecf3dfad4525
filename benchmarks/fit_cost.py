"""Cost of fitting a guard with all detectors, and of screening.

    python benchmarks/fit_cost.py                    # writes benchmarks/results/fit_cost.md
    python benchmarks/fit_cost.py --quick            # small, writes nothing
    python benchmarks/fit_cost.py --size 1000000     # one size; writes a separate file

The cost per passage is compared with embedding by MiniLM on the same cores.

Entries of the shared corpora without labels; vectors are given. Beyond 77,000 entries the words of
the texts are shuffled (see ``corpora.py``), which takes longer to read than prose.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from corpora import many

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors.claim.roles import passage_of as roles
from ragshield_core.detectors.instruction.matching import suspicion as instructions
from ragshield_core.detectors.question.leading_question import _remembered as questions
from ragshield_core.text.normalized import readable as readable_texts
from ragshield_langchain.minilm import MiniLMEmbeddings

RESULTS = Path(__file__).parent / "results"
N_NEW, ROUNDS = 1_000, 5
TEXTS = (
    "instruction",
    "hidden_text",
    "trigger_phrase",
    "leading_question",
    "meta_claim",
    "disfluency",
)

COLUMNS = (
    *("entries", "seconds", "of processor time", "texts"),
    *(*TEXTS, "clique", "grows by", "of vectors"),
)


def timed(call: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """Return the method with a timer: each call adds its seconds to ``spent``."""

    def timing(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            spent[name] += time.perf_counter() - start

    return timing


def forget_readings() -> None:
    """Clear the caches of texts read before."""
    for remembered in (readable_texts, instructions, roles, questions):
        remembered.forget()


def fitted(entries: Batch) -> tuple[Guard, float, float, Counter[str], float]:
    """Return a guard; its wall and processor seconds, those of each detector, and peak GiB.

    Memory counts the growth of this process; the entries were in memory before.
    """
    forget_readings()
    guard = Guard.default(quarantine=Quarantine("sqlite://"))
    spent: Counter[str] = Counter()
    for detector in guard.detectors:
        own = hasattr(detector, "held_out_scores")  # else its scores are held-out scores
        for method in ("fit", "held_out_scores" if own else "score"):
            setattr(detector, method, timed(getattr(detector, method), detector.name, spent))
    before = high_water(anew=True)
    start, here = time.perf_counter(), time.process_time()
    guard.fit(entries).calibrate()
    took = time.perf_counter() - start, time.process_time() - here
    return guard, *took, spent, high_water() - before


def high_water(*, anew: bool = False) -> float:
    """Return the peak memory of this process in GiB, or restart it from now; Linux only."""
    if anew:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else memory freed by earlier fits would hide the growth
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    told = Path("/proc/self/status").read_text(encoding="ascii")
    return float(told.partition("VmHWM:")[2].split()[0]) / 2**20


def screening(guard: Guard, new: Batch) -> float:
    """Return the seconds of screening new entries, the median of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        forget_readings()
        start = time.perf_counter()
        guard.screen(new)
        rounds.append(time.perf_counter() - start)
    return median(rounds)


def embedding(texts: Sequence[str]) -> float:
    """Return the seconds that MiniLM takes to embed texts."""
    model = MiniLMEmbeddings()
    model.embed_documents(texts[:64])  # warm-up: loads the model
    start = time.perf_counter()
    model.embed_documents(list(texts))
    return time.perf_counter() - start


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--size", type=int, help="one size; a file of its own")
    given = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    cores = os.cpu_count()
    n_new = 100 if given.quick else N_NEW
    sizes = [given.size] if given.size else [1_000] if given.quick else [8_000, 100_000]
    fits, screens, alone = [], [], 0.0
    for n in sizes:
        corpus = many(n_new + n)
        new = corpus.take(range(n_new))
        alone = alone or embedding(new.texts)
        known = corpus.take(range(n_new, n_new + n))
        guard, seconds, here, spent, grown = fitted(known)
        vectors = known.embeddings.nbytes / 2**30
        texts = sum(spent[name] for name in TEXTS)
        fits.append(
            f"| {n:,} | {seconds:.1f} | {here:.1f} | {texts:.1f} | "
            + " | ".join(f"{spent[name]:.1f}" for name in (*TEXTS, "clique"))
            + f" | {grown:.2f} GiB | {grown / vectors:.1f} |"
        )
        print(fits[-1], flush=True)
        took = screening(guard, new)
        screens.append(f"| {n:,} | {took:.2f} s | {took / alone:.1%} |")
        print(screens[-1], flush=True)
    if given.quick:
        return
    name, memory = "fit_cost.md", ""
    if given.size:
        name = f"fit_cost_{given.size}.md"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        memory = (
            f"\nThe process took {peak:.1f} GiB at the most while it made the corpus, embedded and "
            f"fitted; the vectors alone are {vectors:.1f} GiB.\n"
        )
        print(memory)
    words = sum(len(text.split()) for text in new.texts) / len(new)
    RESULTS.joinpath(name).write_text(
        f"""# What fit and screening cost

Written by `benchmarks/fit_cost.py`. The default guard, fitted and calibrated on entries of several
corpora, vectors given, no labels. Seconds: of the whole; of processor time;
of the six text detectors together and each; of the search for groups (`clique`), which compares
vectors. Memory: by how much the process grows at the most, entries, their vectors and the
model that embeds being there before; and that as a multiple of the vectors. {cores} cores,
`OMP_NUM_THREADS={os.environ.get("OMP_NUM_THREADS", "unset")}`, Python {platform.python_version()}.

| {" | ".join(COLUMNS)} |
{"|---" * len(COLUMNS)}|
{chr(10).join(fits)}

{n_new:,} new passages of {words:.0f} words on average, screened at once by the same guard, nothing
remembered of their texts; median of {ROUNDS} rounds. To embed them by MiniLM takes {alone:.1f} s.

| known entries | screening | of embedding |
|---|---|---|
{chr(10).join(screens)}
{memory}""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
