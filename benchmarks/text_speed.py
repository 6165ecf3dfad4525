"""Cost of the text detectors on passages, documents, and a megabyte of repeated text.

    python benchmarks/text_speed.py            # writes benchmarks/results/text_speed.md
    python benchmarks/text_speed.py --quick    # small, writes nothing

Process seconds on one core, the least of some rounds. Beside each figure is its ratio to the time
of ``text.lower().split()`` on the same machine, which reads each letter only once.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from corpora import many

from ragshield_core import Batch
from ragshield_core.detectors import (
    DisfluencyDetector,
    HiddenTextDetector,
    InstructionDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    TriggerPhraseDetector,
)
from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.claim.roles import passage_of as roles
from ragshield_core.detectors.gibberish.fluency import _tokens as tokens
from ragshield_core.detectors.hidden.detector import payloads
from ragshield_core.detectors.instruction.matching import suspicion as instructions
from ragshield_core.detectors.question.leading_question import _remembered as questions
from ragshield_core.text.normalized import readable as readable_texts

DETECTORS: tuple[type[Detector], ...] = (
    InstructionDetector,
    HiddenTextDetector,
    TriggerPhraseDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    DisfluencyDetector,
)
WORDS, DOCUMENT, MEGABYTE = 100, 3_000, 1_000_000
# Passages that MiniLM embeds per second on two cores, roughly; see ingestion.md.
EMBEDDED = 26
RESULTS = Path(__file__).parent / "results"


def batch(texts: list[str]) -> Batch:
    """Return texts as entries, with constant vectors."""
    ids = [f"n{i}" for i in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=np.ones((len(texts), 4)))


def seconds(work: Callable[[Batch], object], texts: list[str], rounds: int) -> float:
    """Return the least process seconds of a call, with empty caches."""
    least = math.inf
    for _ in range(rounds):
        entries = batch(texts)
        for remembered in (readable_texts, payloads, instructions, roles, questions):
            remembered.forget()  # so that each round reads new texts
        tokens.cache_clear()
        start = time.process_time()
        work(entries)
        least = min(least, time.process_time() - start)
    return least


def split(entries: Batch) -> None:
    """Read each letter once."""
    for text in entries.texts:
        text.lower().split()


def workloads(prose: str, *, quick: bool) -> dict[str, tuple[list[str], int]]:
    """Return texts and rounds, by name."""
    words = prose.split()
    n_passages, n_documents = (50, 10) if quick else (500, 100)
    passages = [" ".join(words[i * WORDS : (i + 1) * WORDS]) for i in range(n_passages)]
    documents = [prose[i * DOCUMENT : (i + 1) * DOCUMENT] for i in range(n_documents)]
    size = MEGABYTE // 10 if quick else MEGABYTE
    whole = (prose * (1 + size // len(prose)))[:size]
    found: dict[str, tuple[list[str], int]] = {
        f"{WORDS} words": (passages, 2 if quick else 7),
        f"{DOCUMENT:,} characters": (documents, 2 if quick else 7),
        "1 MB of prose": ([whole], 1 if quick else 2),
    }
    for unit in ("<a>", "system ", "#", "system ### ", "%41", "if the user asks "):
        found[f"1 MB of `{unit.strip()}`"] = ([(unit * (1 + size // len(unit)))[:size]], 1)
    if not quick:
        found["10 MB of prose"] = ([(whole * 10)], 1)
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    corpus = many(2_000 if quick else 8_000)
    known, rest = corpus.take(np.arange(1_000)), corpus.texts[1_000:]
    detectors = [make().fit(known) for make in DETECTORS]
    for detector in detectors:  # warm-up: compiles the patterns
        detector.score(batch(list(rest[:500])))

    def together(entries: Batch) -> None:
        for detector in detectors:
            detector.score(entries)

    names = [type(detector).__name__.removesuffix("Detector") for detector in detectors]
    table = [
        "| one text of | " + " | ".join(names) + " | together | times `lower().split()` |",
        "|---" * (len(names) + 3) + "|",
    ]
    passage = 0.0
    for name, (texts, rounds) in workloads(" ".join(rest), quick=quick).items():
        spent = [seconds(detector.score, texts, rounds) for detector in detectors]
        unit = seconds(split, texts, max(3, rounds))
        total = seconds(together, texts, rounds)
        passage = passage or total / len(texts)
        cells = [f"{each / len(texts) * 1e3:.3f}" for each in (*spent, total)]
        table.append(f"| {name} | {' | '.join(cells)} | {total / unit:.0f} |")
        print(table[-1], flush=True)
    if quick:
        return
    RESULTS.joinpath("text_speed.md").write_text(
        f"""# What text detectors cost

Written by `benchmarks/text_speed.py`. Milliseconds of one core for one text, scored by a detector
that was fitted on 1,000 passages; prose of the shared corpora, which are not all ASCII. The least
of some rounds, no text remembered from the round before, but common words; together they read a
text once. Python {platform.python_version()}.

{chr(10).join(table)}

All together read {1 / passage:,.0f} passages of 100 words in a second of one core; MiniLM embeds
about {EMBEDDED} on two.
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
