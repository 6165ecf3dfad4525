"""False-positive rate of the default guard on seven corpora.

    python benchmarks/joint_fpr.py            # writes benchmarks/results/joint_fpr.md
    python benchmarks/joint_fpr.py --quick    # one split of a small corpus; writes nothing
    python benchmarks/joint_fpr.py --only "templated reference"   # one row, the others stay

The guard is fitted and calibrated on a random half of a corpus; the other half is new. It is
screened and not admitted: the rate right after calibration (growth.md has later rates).
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections import Counter
from collections.abc import Callable

import numpy as np
from cliques import knowledge_base
from corpora import load
from growth import ham
from results_files import RESULTS, write
from rich.progress import track
from templated import templated

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.tools.evaluate.rates import exact_interval

FPR = 0.01
SPLITS = 3
TOGETHER, SINGLY = 100, 300  # entries per batch; entries that are screened one by one
CORPORA: dict[str, Callable[[], Batch]] = {
    "Wikipedia": lambda: knowledge_base("wikipedia"),
    "near-duplicate docs": lambda: knowledge_base("near-duplicate docs"),
    "templated reference": templated,
    "web pages": lambda: load("redundant_web_passages"),
    "Enron, ham": lambda: ham("enron1_spam"),
    "SMS, ham": lambda: ham("sms_spam"),
    "banking77": lambda: load("banking77"),
}


def guard_of(known: Batch) -> Guard:
    """Return the default guard, fitted and calibrated."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()


def halves(corpus: Batch, seed: int) -> tuple[Batch, Batch]:
    """Return the known and the new half of a corpus."""
    order = np.random.default_rng(seed).permutation(len(corpus))
    return corpus.take(order[: len(order) // 2]), corpus.take(order[len(order) // 2 :])


def held(guard: Guard, new: Batch, together: int) -> tuple[np.ndarray, Counter[str]]:
    """Return a mask of quarantined entries, and the number of findings of each detector."""
    found = []
    by: Counter[str] = Counter()
    for start in range(0, len(new), together):
        report = guard.screen(new.take(range(len(new))[start : start + together]))
        found += [decision.verdict == "quarantine" for decision in report.decisions]
        for decision in report.quarantined:
            by.update({finding.detector for finding in decision.findings})
    return np.array(found, dtype=np.bool_), by


def clean_rates(names: list[str], splits: int) -> list[str]:
    """Return the table of held clean entries."""
    rows = []
    for name in names:
        corpus = CORPORA[name]()
        at_once, alone = [], []
        by: Counter[str] = Counter()
        for seed in track(range(splits), description=name):
            known, new = halves(corpus, seed)
            guard = guard_of(known)
            out, named = held(guard, new, TOGETHER)
            at_once.append(out.mean())
            by += named
            alone.append(held(guard, new.take(range(min(SINGLY, len(new)))), 1)[0].mean())
        n = len(new)
        share = float(np.mean(at_once))
        interval = exact_interval(round(share * n), n)
        shares = ", ".join(f"{each:.4f}" for each in at_once)
        most = ", ".join(f"{kind} {count}" for kind, count in by.most_common(3))
        rows.append(
            f"| {name} | {n:,} | {share:.4f} | {interval} | {shares} | {np.mean(alone):.4f} "
            f"| {most} |"
        )
        print(rows[-1], flush=True)
    return rows


def with_rows(page: str, rows: list[str]) -> str:
    """Return the page with these rows in the table of clean entries, in the order of CORPORA."""
    head, line, rest = page.partition("|---|---|---|---|---|---|---|\n")
    table, gap, rest = rest.partition("\n\n")
    by_name = {row.split(" | ")[0]: row for row in [*table.splitlines(), *rows]}
    ordered = [by_name[f"| {name}"] for name in CORPORA if f"| {name}" in by_name]
    return head + line + "\n".join(ordered) + gap + rest


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--only", nargs="+", choices=CORPORA, help="clean rates of these anew")
    options = parser.parse_args()
    quick = options.quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if options.only:
        page = (RESULTS / "joint_fpr.md").read_text(encoding="utf-8")
        write("joint_fpr", with_rows(page, clean_rates(options.only, SPLITS)), partly=True)
        return
    rates = clean_rates(["SMS, ham"] if quick else list(CORPORA), 1 if quick else SPLITS)
    if quick:
        return
    newline = "\n"
    write(
        "joint_fpr",
        f"""# Whether the rate is kept, by all detectors together

Written by `benchmarks/joint_fpr.py`. The default guard at an accepted rate of {FPR:.0%}, fitted and
calibrated on a random half of each corpus, {SPLITS} splits; the other half screened in batches of
{TOGETHER}, and {SINGLY} of it one by one. Nothing is admitted: the rate at the moment of
calibration. The interval is Clopper and Pearson's at 95 %, of the mean share in one half; splits
share entries, so that more of them do not narrow it. "Templated reference" are pages of software
that does not exist, on five templates (`benchmarks/templated.py`). Python
{platform.python_version()}.

| corpus | new | held | 95 % | by split | one by one | by |
|---|---|---|---|---|---|---|
{newline.join(rates)}
""",
    )


if __name__ == "__main__":
    main()
