"""Recall of orders to the model, detected by meaning, in sources that were not used to fit.

    python benchmarks/orders.py            # everything, writes benchmarks/results/orders.md
    python benchmarks/orders.py --quick    # one knowledge base, few entries, writes nothing

The knowledge base is a sample of a clean corpus. Thresholds come from held-out scores of its
entries; the other corpora are new sources.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from corpora import read_rows
from numpy.typing import NDArray
from results_files import write

from ragshield_core import Batch
from ragshield_core.detectors import InstructionDetector, OrderDetector
from ragshield_core.detectors.base import judged_scores
from ragshield_core.huggingface.minilm import MiniLM

RATE, SEED, PER_SITE = 0.002, 1, 60
CORPORA = {"Wikipedia": 1_500, "web": 1_500, "mails": 800, "cloud documentation": 800}
QUICK = 8  # factor by which a quick run has fewer entries
HEAD = f"""# Orders to the model, by meaning

Written by `benchmarks/orders.py`. Python {platform.python_version()}; vectors: all-MiniLM-L6-v2.
`OrderDetector` is fitted on a sample of a clean corpus, with a threshold that {RATE:.1%} of its own
entries reach. Nothing of the attacks was in the corpus of sentences that it learns from. Choices of
its design were compared on these sets, so that figures are a little optimistic.

Tool responses: InjecAgent, base attacks, by order. Red-team documents: spikee, English and four
other languages. Security: indirect injections of CyberSecEval, English / 17 others; this embedding
model knows English alone.
"""


def texts(quick: bool) -> dict[str, list[str]]:  # noqa: FBT001 - a script
    """Return the clean texts of each corpus."""
    rng = np.random.default_rng(SEED)
    near = [r for r in read_rows("near_duplicate_docs") if r["source"].startswith("aws")]
    whole = {
        "Wikipedia": read_rows("wiki_passages"),
        "web": read_rows("redundant_web_passages"),
        "mails": [row for row in read_rows("enron1_spam") if row["label"] == "not_spam"],
        "cloud documentation": near,
    }
    found = {}
    for name, rows in whole.items():
        some = rng.permutation(len(rows))[: CORPORA[name] // (QUICK if quick else 1)]
        found[name] = [rows[row]["text"] for row in some.tolist()]
    sites = defaultdict(list)
    for row in read_rows("doc_sites"):
        sites[row["site"]].append(row["text"])
    found["documentation sites"] = [
        rows[at]
        for rows in sites.values()
        for at in rng.permutation(len(rows))[: PER_SITE // (QUICK if quick else 1)].tolist()
    ]
    return found


def attacks() -> dict[str, tuple[list[str], list[str]]]:
    """Return the texts of each set of attacks, and the order in each text."""
    rows = [row for row in read_rows("injecagent") if row["attack"].endswith("base")]
    spikee = read_rows("spikee_documents")
    security = [
        row for row in read_rows("cyberseceval_injections") if row["attack"].startswith("indirect")
    ]
    english = [row for row in security if row["language"] == "English"]
    others = [row for row in security if row["language"] != "English"]

    def each(rows: Sequence[dict[str, str]]) -> tuple[list[str], list[str]]:
        return [row["text"] for row in rows], [row["id"] for row in rows]

    return {
        "tool responses": ([row["text"] for row in rows], [row["injection"] for row in rows]),
        "red-team documents": each(spikee),
        "security, English": each(english),
        "security, others": each(others),
    }


def batch_of(listed: Sequence[str]) -> Batch:
    """Return texts without vectors."""
    return Batch.of(ids=list(map(str, range(len(listed)))), texts=listed, embeddings=None)


def threshold(scores: NDArray[np.float64], rate: float, floor: float) -> float:
    """Return the score that a share ``rate`` of clean entries exceeds, at least the floor."""
    known = np.nan_to_num(scores, nan=0.0)
    return max(floor, float(np.sort(known)[::-1][int(rate * len(known))]))


def by_order(hit: NDArray[np.bool_], orders: Sequence[str]) -> float:
    """Return the share found; each distinct order counts once."""
    found = defaultdict(list)
    for order, one in zip(orders, hit.tolist(), strict=True):
        found[order].append(one)
    return float(np.mean([np.mean(each) for each in found.values()]))


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    model, remembered = MiniLM(), dict[str, list[float]]()

    def embed(listed: list[str]) -> list[list[float]]:
        new = [text for text in dict.fromkeys(listed) if text not in remembered]
        remembered.update(zip(new, model.embed(new), strict=True))
        return [remembered[text] for text in listed]

    clean, given = texts(quick), attacks()
    rules = InstructionDetector()
    ruled = {name: rules.score(batch_of(some)) for name, (some, _) in given.items()}
    found_rows, held_rows = [], []
    for name in list(clean)[: 1 if quick else None]:
        detector, known = OrderDetector(embed), batch_of(clean[name])
        own = detector.fit(known).held_out_scores(known, SEED)
        alone = threshold(own, RATE, detector.traits.floor)
        half = threshold(own, RATE / 2, detector.traits.floor)
        by_rules = threshold(rules.score(known), RATE / 2, rules.traits.floor)
        cells = []
        for kind, (some, orders) in given.items():
            scores = np.nan_to_num(judged_scores(detector, batch_of(some)), nan=0.0)
            both = (scores > half) | (ruled[kind] > by_rules)
            cells.append(f"{by_order(scores > alone, orders):.2f} / {by_order(both, orders):.2f}")
        found_rows.append(f"| {name} | {alone:.2f} | {' | '.join(cells)} |")
        shares = [
            np.nan_to_num(own if other == name else judged_scores(detector, batch_of(some)), nan=0)
            for other, some in clean.items()
        ]
        held = " | ".join(f"{float((one > alone).mean()):.3f}" for one in shares)
        held_rows.append(f"| {name} | {held} |")
        print(found_rows[-1], held_rows[-1], sep="\n")
    cost = costs(model, clean["Wikipedia"])
    report = [
        HEAD,
        "## Orders found\n",
        "Alone / with the rules of `InstructionDetector`, half of the rate each.\n",
        f"| knowledge base | threshold | {' | '.join(given)} |",
        "|---" * (len(given) + 2) + "|",
        *found_rows,
        "\n## Clean texts held, by the threshold of the knowledge base\n",
        f"| knowledge base | {' | '.join(clean)} |",
        "|---" * (len(clean) + 1) + "|",
        *held_rows,
        f"\n## Cost\n\nJudging Wikipedia passages took {cost:.2f} of the time of embedding them.",
    ]
    if not quick:
        write("orders", "\n".join(report) + "\n")


def costs(model: MiniLM, listed: Sequence[str]) -> float:
    """Return the time of judging new texts relative to the time of embedding them."""
    new = list(listed)[:300]
    detector = OrderDetector(model.embed).fit(batch_of(list(listed)[300:320]))
    start = time.perf_counter()
    model.embed(new)
    embedded = time.perf_counter() - start
    start = time.perf_counter()
    detector.score(batch_of(new))
    return (time.perf_counter() - start) / embedded


if __name__ == "__main__":
    main()
