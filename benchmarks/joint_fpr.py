"""Whether the default guard keeps its rate on seven corpora, and with poison in its sample.

    python benchmarks/joint_fpr.py            # writes benchmarks/results/joint_fpr.md
    python benchmarks/joint_fpr.py --quick    # one split of a small corpus; writes nothing
    python benchmarks/joint_fpr.py --only "templated reference"   # one row, the rest as before

A random half of a corpus is what the guard is fitted and calibrated on; the other half is new. It
is screened and not admitted: the rate at the moment of calibration (as it grows: growth.md).
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cliques import attack, join, knowledge_base, renamed
from corpora import load, read_rows
from growth import ham
from rich.progress import track
from templated import templated

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.attacks import plant_phrase
from ragshield_core.evaluation import exact_interval

RESULTS = Path(__file__).parent / "results"
FPR = 0.01
SPLITS = 3
TOGETHER, SINGLY = 100, 300  # entries of a batch; entries that are screened one by one
CORPORA: dict[str, Callable[[], Batch]] = {
    "Wikipedia": lambda: knowledge_base("wikipedia"),
    "near-duplicate docs": lambda: knowledge_base("near-duplicate docs"),
    "templated reference": templated,
    "web pages": lambda: load("redundant_web_passages"),
    "Enron, ham": lambda: ham("enron1_spam"),
    "SMS, ham": lambda: ham("sms_spam"),
    "banking77": lambda: load("banking77"),
}
# Of those whose sample is poisoned: the corpus, and the attack texts for questions about it.
POISONED = {"web + nq": "poisonedrag_nq", "web + hotpotqa": "poisonedrag_hotpotqa"}
SHARE = 0.05
PHRASE = "amber kettle northern"
N_PHRASES = 60


def guard_of(known: Batch) -> Guard:
    """Return the default guard, fitted and calibrated."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()


def adopting(known: Batch) -> Guard:
    """Return the default guard that has adopted a sample that nobody has vouched for."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)


def halves(corpus: Batch, seed: int) -> tuple[Batch, Batch]:
    """Return what is known and what is new."""
    order = np.random.default_rng(seed).permutation(len(corpus))
    return corpus.take(order[: len(order) // 2]), corpus.take(order[len(order) // 2 :])


def held(guard: Guard, new: Batch, together: int) -> tuple[np.ndarray, Counter[str]]:
    """Return which entries are quarantined, and how many by which detector."""
    found = []
    by: Counter[str] = Counter()
    for start in range(0, len(new), together):
        report = guard.screen(new.take(range(len(new))[start : start + together]))
        found += [decision.verdict == "quarantine" for decision in report.decisions]
        for decision in report.quarantined:
            by.update({finding.detector for finding in decision.findings})
    return np.array(found, dtype=np.bool_), by


def clean_rates(names: list[str], splits: int) -> list[str]:
    """Return the table of clean entries held."""
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
    """Return the page with these rows of the table of clean entries, in the order of CORPORA."""
    head, line, rest = page.partition("|---|---|---|---|---|---|---|\n")
    table, gap, rest = rest.partition("\n\n")
    by_name = {row.split(" | ")[0]: row for row in [*table.splitlines(), *rows]}
    ordered = [by_name[f"| {name}"] for name in CORPORA if f"| {name}" in by_name]
    return head + line + "\n".join(ordered) + gap + rest


def planted_into(known: Batch, source: str, seed: int) -> tuple[Batch, set[str]]:
    """Return a sample with poison in it, and the questions that it is made for."""
    rng = np.random.default_rng(seed)
    fives = join(
        *(
            renamed(attack(source, column, 5, one_lineage=False), f"{column}-")
            for column in ("text_blackbox", "text")
        )
    )
    n_groups = len(fives) // 5
    chosen = rng.permutation(n_groups)
    wanted = int(SHARE * len(known)) - N_PHRASES
    rows = (5 * chosen[:, None] + np.arange(5)).ravel()[:wanted]
    carriers = known.take(rng.permutation(len(known))[:N_PHRASES])
    phrased = Batch.of(
        ids=[f"phrase-{i}" for i in carriers.ids],
        texts=plant_phrase(carriers, range(N_PHRASES), PHRASE, seed=seed),
        embeddings=carriers.embeddings,
        lineages=[None] * N_PHRASES,
    )
    asked = questions_of(source)
    used = {asked[fives.ids[row].split("poison-")[1]] for row in rows.tolist()}
    return join(known, fives.take(rows), phrased), used


def questions_of(source: str) -> dict[str, str]:
    """Return the question of each attack text, by its id."""
    return {row["id"]: row["target_question_id"] for row in read_rows(source)}


def poisoned_samples(names: list[str], splits: int) -> list[str]:
    """Return the table of guards whose sample was poisoned."""
    rows = []
    for name in names:
        source = POISONED[name]
        corpus, asked = knowledge_base(name), questions_of(source)
        shares: dict[tuple[str, str], list[float]] = {}
        n_poison = 0
        for seed in track(range(splits), description=name):
            known, new = halves(corpus, seed)
            sample, used = planted_into(known, source, seed)
            n_poison = len(sample) - len(known)
            guards = {"clean": adopting(known), "poisoned": adopting(sample)}
            for where, guard in guards.items():
                out = held(guard, new.take(range(2_000)), TOGETHER)[0]
                shares.setdefault(("clean entries", where), []).append(out.mean())
            for column, size in (("text_blackbox", 5), ("text", 5), ("text", 3)):
                texts = attack(source, column, 5, one_lineage=False)
                fresh = [
                    row
                    for start in range(0, len(texts), 5)
                    if asked[texts.ids[start].removeprefix("poison-")] not in used
                    for row in range(start, start + size)
                ]
                bad = texts.take(fresh)
                for where, guard in guards.items():
                    batch = join(bad, new.take(range(500)))
                    out = held(guard, batch, len(batch))[0][: len(bad)]
                    what = f"{'black-box' if column == 'text_blackbox' else 'raw'}, {size} each"
                    shares.setdefault((what, where), []).append(out.mean())
        for what in dict.fromkeys(each for each, _ in shares):
            clean, poisoned = (np.mean(shares[what, where]) for where in ("clean", "poisoned"))
            rows.append(
                f"| {name}, {n_poison} of {len(sample):,} | {what} | {clean:.3f} | {poisoned:.3f} "
                f"| {poisoned - clean:+.3f} |"
            )
            print(rows[-1], flush=True)
    return rows


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
        (RESULTS / "joint_fpr.md").write_text(
            with_rows(page, clean_rates(options.only, SPLITS)), encoding="utf-8"
        )
        return
    rates = clean_rates(["SMS, ham"] if quick else list(CORPORA), 1 if quick else SPLITS)
    if quick:
        return
    samples = poisoned_samples(list(POISONED), SPLITS)
    newline = "\n"
    RESULTS.joinpath("joint_fpr.md").write_text(
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

With {SHARE:.0%} of the sample poisoned: PoisonedRAG's texts, five for a question, and
{N_PHRASES} entries with a phrase planted, adopted with the rest, which nobody has vouched for. Then
texts for other questions come, all with 500 clean entries in one batch, and 2,000 clean ones in
batches of {TOGETHER}. Shares held, means of {SPLITS} splits. What limits it: docs/growth.md.

| knowledge base, poison in the sample | what comes | clean sample | poisoned | difference |
|---|---|---|---|---|
{newline.join(samples)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
