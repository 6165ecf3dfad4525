"""What it costs to fit and calibrate a guard with all detectors, in one process and in several.

    python benchmarks/fit_cost.py            # writes benchmarks/results/fit_cost.md
    python benchmarks/fit_cost.py --quick    # small, writes nothing

Entries of the shared corpora; vectors are given, without labels. Past 77,000 entries the words of
their texts are shuffled (see ``corpora.py``), which is harder to read than prose.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import many

from ragshield_core import Batch, Guard, Quarantine, set_workers
from ragshield_core.detectors.instruction.matching import suspicions
from ragshield_core.detectors.leading_question import questions_in
from ragshield_core.detectors.meta_claim.roles import passages
from ragshield_core.text import normalized
from ragshield_core.text.workers import n_workers

RESULTS = Path(__file__).parent / "results"
TEXTS = (
    "instruction",
    "hidden_text",
    "trigger_phrase",
    "leading_question",
    "meta_claim",
    "disfluency",
)


def timed(call: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """Return a method that notes how long it took."""

    def timing(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            spent[name] += time.perf_counter() - start

    return timing


def fitted(entries: Batch, processes: int) -> tuple[float, float, Counter[str]]:
    """Return the seconds of fit and calibration, those of this process, and those by detector."""
    set_workers(processes)
    normalized._remembered.cache_clear()  # noqa: SLF001
    for readings in (suspicions, passages, questions_in):
        readings.forget()
    guard = Guard.default(quarantine=Quarantine("sqlite://"))
    spent: Counter[str] = Counter()
    for detector in guard.detectors:
        for method in ("fit", "held_out_scores"):
            setattr(detector, method, timed(getattr(detector, method), detector.name, spent))
    start, here = time.perf_counter(), time.process_time()
    guard.fit(entries).calibrate()
    return time.perf_counter() - start, time.process_time() - here, spent


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    cores = n_workers()
    rows = []
    for n in (1_000,) if quick else (8_000, 100_000):
        corpus = many(n)
        for processes in dict.fromkeys((1, cores)):
            # A batch of its own: what was read of one is remembered as long as it is there.
            seconds, here, spent = fitted(corpus.take(range(n)), processes)
            texts = sum(spent[name] for name in TEXTS)
            rows.append(
                f"| {n:,} | {processes} | {seconds:.1f} | {here:.1f} | {texts:.1f} | "
                + " | ".join(f"{spent[name]:.1f}" for name in (*TEXTS, "clique"))
                + " |"
            )
            print(rows[-1], flush=True)
    if quick:
        return
    RESULTS.joinpath("fit_cost.md").write_text(
        f"""# What fit and calibration cost

Written by `benchmarks/fit_cost.py`. The default guard, fitted and calibrated on entries of several
corpora, vectors given, no labels. Seconds: of the whole; of processor time in the calling process;
of the six text detectors together and each; of the search for groups (`clique`), which compares
vectors. {cores} cores, `OMP_NUM_THREADS={os.environ.get("OMP_NUM_THREADS", "unset")}`, Python
{platform.python_version()}.

| entries | processes | seconds | of this process | texts | {" | ".join((*TEXTS, "clique"))} |
{"|---" * (len(TEXTS) + 6)}|
{chr(10).join(rows)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
