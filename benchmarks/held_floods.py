"""Effect of a flood of held attacks on later entries, and on genuine pages before it.

    python benchmarks/held_floods.py            # writes benchmarks/results/held_floods.md
    python benchmarks/held_floods.py --quick    # a small flood, writes nothing

Nobody reviews the held entries. Then clean passages arrive, and raw texts of poisonedrag_nq one by
one. In the second part genuine pages on the attacked questions arrive first; the figure is how many
of them are recalled because an attack on the same questions is held.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

import numpy as np
from corpora import load, read_rows
from decisions import arrive, chunks
from results_files import RESULTS
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.model.entries import concatenate

KNOWN, CLEAN, QUESTIONS, PAGES, BATCH = 2_000, 1_000, 60, 1_000, 50
FLOODS = (0, 300, 1_350)
ATTACKED = 40


def attack(form: str, n: int) -> Batch:
    """Return the texts of poisonedrag_nq for the first n questions, question by question."""
    batch = load("poisonedrag_nq", text=form)
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(read_rows("poisonedrag_nq")):
        rows.setdefault(text["target_question_id"], []).append(row)
    return batch.take([row for own in list(rows.values())[:n] for row in own])


def adopted(known: Batch) -> Guard:
    """Return a guard that has adopted a knowledge base."""
    return Guard.default(quarantine=Quarantine("sqlite://")).adopt(known)


def flood(n: int) -> list[Batch]:
    """Return n texts of attacks on other questions, of orders, and of claims, in batches."""
    kinds = [
        load("poisonedrag_hotpotqa", text="text_blackbox"),
        load("promptinjection_nq"),
        load("authchain_nq"),
        load("poisonedrag_msmarco_half", text="text_blackbox"),
    ]
    return chunks(concatenate(kinds).take(range(n)), BATCH) if n else []


def after(n: int, known: Batch, clean: Batch, later: Batch) -> str:
    """Return a row of the first table."""
    guard = adopted(known)
    held = sum(int(arrive(guard, [part]).out.sum()) for part in flood(n))
    ordinary = arrive(guard, chunks(clean, BATCH))
    poisoned = arrive(guard, chunks(later, 1))
    return f"| {n:,} | {held:,} | {ordinary.out.mean():.3f} | {poisoned.out.mean():.2f} |"


def recalled(form: str, known: Batch, pages: Batch) -> str:
    """Return a row of the second table."""
    guard = adopted(known)
    poison = attack(form, ATTACKED)
    alone = arrive(guard, chunks(pages, BATCH))
    standing = pages.take(~alone.out)
    both = arrive(guard, chunks(poison, 1), standing)
    return f"| {form} | {both.out.mean():.2f} | {both.others} of {len(standing)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small flood; writes nothing")
    quick = parser.parse_args(arguments).quick
    logging.disable(logging.WARNING)
    wiki = load("wiki_passages")
    drawn = np.random.default_rng(0).permutation(len(wiki))
    known, clean = wiki.take(np.sort(drawn[:KNOWN])), wiki.take(drawn[KNOWN : KNOWN + CLEAN])
    contexts = load("nq_target_contexts")
    pages = contexts.take(np.random.default_rng(1).permutation(len(contexts))[:PAGES])
    later = attack("text", 5 if quick else QUESTIONS)
    floods = FLOODS[1:2] if quick else FLOODS
    rows = [after(n, known, clean, later) for n in track(floods)]
    forms = () if quick else ("text_blackbox", "text")
    genuine = [recalled(form, known, pages) for form in track(forms)]
    page = f"""# Floods of held attacks

Written by `benchmarks/held_floods.py`. A guard with all detectors adopts {KNOWN:,} Wikipedia
passages, at 1 %. A flood of texts on other questions, orders and claims comes in batches of
{BATCH}, and nobody reviews it. Then {CLEAN:,} clean passages come, and raw fives for {QUESTIONS}
questions of NQ, one by one.

| flood | held | clean, held or recalled | raw fives, held or recalled |
|---|---|---|---|
{chr(10).join(rows)}

Genuine pages on the attacked questions ({PAGES:,}, in batches of {BATCH}) come before an attack on
{ATTACKED} of the questions, whose texts come one by one.

| attack | held or recalled | genuine pages recalled by it |
|---|---|---|
{chr(10).join(genuine)}
"""
    print(page)
    if not quick:
        (RESULTS / "held_floods.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
