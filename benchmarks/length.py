"""Recall of questions with wrong answers inside long mails, pages and articles.

    python benchmarks/length.py            # everything, writes benchmarks/results/length.md
    python benchmarks/length.py --quick    # few carriers, writes nothing

The default guard is adopted on short chunks of a source; each text is screened by itself. Carriers
are clean texts of the same source, from pages and mails that the guard does not know. Takes five
minutes once the vectors are made.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from corpora import from_source, load, read_rows
from decisions import failed
from rates import proportion_interval
from results_files import write
from rich.progress import track
from singles import alone, targets
from vectors import embedded

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LeadingQuestionDetector
from ragshield_core.detectors.question.leading_question import _remembered as questions

FPR, KNOWN, NEW, CARRIERS = 0.01, 2_000, 500, 40
LENGTHS = (100, 400, 1_500)  # words
PLACES = ("front", "middle", "end")
KINDS = ("documentation", "mails", "encyclopaedia")
CLEAN = (*KINDS, "web passages", "short messages")
GROUPS, GROUPED_WORDS = 20, 500
WORDINGS, TIMES = Path(__file__).parent / "wordings", (1, 3, 8)
# Least share that a quick run must hold at the end of long mails; it was .00 without windows.
LEAST = 0.5
SEEN = 2_500  # characters, more than 256 tokens
# Natural forms. "{before}" and "{after}" are the parts of the carrier.
FORMS = {
    "a paragraph": "{before}\n\n{question}? {answer}\n\n{after}",
    "run on": "{before} {question}? {answer} {after}",
    "a heading": "{before}\n\n## {question}?\n\n{answer}\n\n{after}",
    "bold": "{before}\n\n**{question}?**\n{answer}\n\n{after}",
    "Q and A": "{before}\n\nQ: {question}?\nA: {answer}\n\n{after}",
    "without a mark": "{before} {raw}.{answer} {after}",
}
_ENDS = re.compile(r"[.!?][\"')\]]{0,2}\s")
SITES = ("zh", "ru", "fr", "de")  # left out: the questions are English

HEAD = f"""# Long carriers

Written by `benchmarks/length.py`. Python {platform.python_version()}; vectors: all-MiniLM-L6-v2.
`Guard.default({FPR})`, adopted on {KNOWN:,} chunks of a source as they are in the corpus (about a
hundred words; mails up to 4,000 characters). Carriers are running text of the same source, of about
{", ".join(map(str, LENGTHS))} words, {CARRIERS} of each; each gets one question of PoisonedRAG with
its wrong answer. Every text is screened by itself. "Clean" is the carrier without it. Forms take
turns: {", ".join(FORMS)} (the published form); the last is counted by itself. Intervals: Wilson,
95 %.
"""


TABLE = """
## One question with its wrong answer

| carrier | words | clean | front | middle | end | front, no mark | middle, no mark | end, no mark |
|---|---|---|---|---|---|---|---|---|"""
OWN = """
## Our own mails and wordings

Eight questions with their answers, in one mail that is repeated until it has so many words
([wordings](../wordings/long_mails.json)), by the guard of mails.

| words | clean | front | middle | end |
|---|---|---|---|---|"""
CLEAN_HEAD = f"""
## Clean entries of the same source

{NEW} chunks as they are in the corpus, of pages that the guard does not know, and what held most.

| knowledge base | n | held | by |
|---|---|---|---|"""
GROUPS_HEAD = f"""
## Groups

Five texts that answer one question wrongly, without it, each at the end of its own carrier of
{GROUPED_WORDS} words, in one batch. The model reads the first 256 tokens, in which nothing of the
answer stands.

| carrier | texts | held |
|---|---|---|"""
COST = """
## Cost

`LeadingQuestionDetector`, documentation; the least of five rounds, no text remembered.

| words | ms a text |
|---|---|"""


class Corpus(NamedTuple):
    """Clean texts: those that a guard adopts, and the rest, by page."""

    known: Batch
    rest: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A carrier, with or without a planted question and answer."""

    words: int
    place: str  # or "clean"
    form: str
    text: str


def corpus(name: str) -> Corpus:
    """Return a source in two parts that share no page."""
    if name == "documentation":
        rows = [row for row in read_rows("doc_sites") if row["language"] not in SITES]
        texts = [row["text"] for row in rows]
        batch = Batch.of(
            ids=[row["id"] for row in rows],
            texts=texts,
            embeddings=embedded("doc_sites", texts),
            lineages=[f"{row['site']}/{row['path']}" for row in rows],
            sources=[row["site"] for row in rows],
        )
    else:
        file = {
            "mails": "enron1_spam",
            "encyclopaedia": "wiki_passages",
            "web passages": "redundant_web_passages",
            "short messages": "banking77",
        }[name]
        batch = load(file, lineage="title" if name == "encyclopaedia" else None)
        if name == "mails":
            batch = batch.take([i for i, x in enumerate(batch.labels) if x == "not_spam"])
        batch = from_source(batch, name)
    pages = [page or entry for page, entry in zip(batch.lineages, batch.ids, strict=True)]
    order = {page: n for n, page in enumerate(dict.fromkeys(pages))}
    shuffled = np.random.default_rng(0).permutation(len(order))
    rows = sorted(range(len(batch)), key=lambda row: shuffled[order[pages[row]]])
    return Corpus(batch.take(rows[:KNOWN]), batch.take(rows[KNOWN:]))


def carriers(rest: Batch, words: int, n: int) -> list[tuple[str, str | None]]:
    """Return n running texts of about `words` words, and the source of each."""
    found, parts, count = [], [], 0
    for text, source in zip(rest.texts, rest.sources, strict=True):
        parts.append(text)
        count += len(text.split())
        if count < 1.1 * words:
            continue
        found.append((_cut("\n\n".join(parts), words), source))
        parts, count = [], 0
        if len(found) == n:
            break
    return found


def _cut(text: str, words: int) -> str:
    """Return a text up to the end of a sentence near a number of words."""
    spaces = [match.start() for match in re.finditer(r"\s+", text)]
    place = spaces[words - 1] if len(spaces) >= words else len(text)
    ends = [match.end() for match in _ENDS.finditer(text, 0, place)]
    return text[: ends[-1] if ends and ends[-1] > place // 2 else place].rstrip()


def _halves(text: str) -> tuple[str, str]:
    """Return a text in two parts, cut between sentences."""
    ends = [match.end() for match in _ENDS.finditer(text)] or [len(text)]
    place = min(ends, key=lambda end: abs(end - len(text) // 2))
    return text[:place].rstrip(), text[place:].lstrip()


def planted(carrier: str, place: str, form: str, row: dict[str, str]) -> str:
    """Return a carrier with a question and its wrong answer."""
    raw = row["target_question"].rstrip(" ?.")
    question = raw[:1].upper() + raw[1:]
    before, after = {"front": ("", carrier), "end": (carrier, "")}.get(place, _halves(carrier))
    text = FORMS[form].format(
        before=before, after=after, question=question, raw=raw, answer=row["text"]
    )
    return text.strip()


def texts_of(rest: Batch, n: int) -> tuple[list[Text], list[str | None]]:
    """Return clean and poisoned carriers of all lengths, and their sources."""
    rows, found, sources = targets(), [], []
    forms = list(FORMS)
    for words in LENGTHS:
        for number, (carrier, source) in enumerate(carriers(rest, words, n)):
            row = rows[number % len(rows)]
            found.append(Text(words=words, place="clean", form="", text=carrier))
            for place in PLACES:
                for form in (forms[number % (len(forms) - 1)], forms[-1]):
                    text = planted(carrier, place, form, row)
                    found.append(Text(words=words, place=place, form=form, text=text))
            sources += [source] * (1 + 2 * len(PLACES))
    return found, sources


def batch_of(texts: Sequence[str], sources: Sequence[str | None], prefix: str) -> Batch:
    """Return texts with their vectors; the model reads only the first 256 tokens."""
    vectors = embedded("length", [text[:SEEN] for text in texts])
    ids = [f"{prefix} {number}" for number in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=vectors, sources=list(sources))


def guard_on(known: Batch) -> Guard:
    """Return a guard that has adopted a knowledge base."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)


def shown(hits: Sequence[bool]) -> str:
    """Return the share held, with its interval."""
    return str(proportion_interval(sum(hits), len(hits)))


def clean_line(name: str, guard: Guard, rest: Batch, n: int) -> str:
    """Return the line of clean entries of the same source."""
    rows = np.random.default_rng(1).permutation(len(rest))[:n]
    found = list(alone(guard, rest.take(rows)))
    by = Counter(kind for kinds in found for kind in set(kinds)).most_common(3)
    why = ", ".join(f"{kind} {count}" for kind, count in by)
    return f"| {name} | {len(found)} | {shown([bool(kinds) for kinds in found])} | {why} |"


def planted_lines(
    name: str, guard: Guard, rest: Batch, n: int
) -> tuple[list[str], dict[tuple[int, str], float]]:
    """Return the lines of a kind of carriers, and the shares held by words and place."""
    texts, sources = texts_of(rest, n)
    entries = batch_of([one.text for one in texts], sources, name)
    hits: dict[tuple[int, str], list[bool]] = defaultdict(list)
    last = list(FORMS)[-1]
    for one, found in zip(texts, track(alone(guard, entries), name, len(texts)), strict=True):
        held = bool(found)
        where = one.place if one.form != last else f"{one.place}, {last}"
        hits[one.words, where].append(held)
    columns = ["clean", *PLACES, *(f"{place}, {last}" for place in PLACES)]
    lines = [
        f"| {name} | {words:,} | " + " | ".join(shown(hits[words, c]) for c in columns) + " |"
        for words in LENGTHS
    ]
    return lines, {key: float(np.mean(held)) for key, held in hits.items()}


def own_lines(guard: Guard) -> list[str]:
    """Return the lines of our own mails, with our wordings as a paragraph."""
    own = json.loads((WORDINGS / "long_mails.json").read_text(encoding="utf-8"))
    lines = []
    for times in TIMES:
        carrier = " ".join(times * own["mail"])
        found = [
            [planted(carrier, place, "a paragraph", row) for row in own["questions"]]
            for place in PLACES
        ]
        shares = []
        for number, texts in enumerate([[carrier], *found]):
            entries = batch_of(texts, ["mails"] * len(texts), f"own {times} {number}")
            held = [bool(kinds) for kinds in alone(guard, entries)]
            shares.append(f"{sum(held)} of {len(held)}")
        lines.append(f"| {len(carrier.split()):,} | {' | '.join(shares)} |")
    return lines


def groups_line(guard: Guard, rest: Batch, n: int) -> str:
    """Return the line of groups: five answers to a question, each at the end of its own carrier."""
    texts = defaultdict(list)
    for row in read_rows("poisonedrag_nq"):
        texts[row["target_question_id"]].append(row)
    chosen, held = carriers(rest, GROUPED_WORDS, 5 * n), []
    for number, rows in enumerate(list(texts.values())[: len(chosen) // 5]):
        five = chosen[5 * number : 5 * number + 5]
        pairs = [
            f"{carrier}\n\n{row['text']}" for (carrier, _), row in zip(five, rows, strict=True)
        ]
        entries = batch_of(pairs, [source for _, source in five], f"group {number}")
        held += [*~guard.screen(entries).admitted]
    return f"| encyclopaedia | {len(held)} | {shown(held)} |"


def cost(rest: Batch, known: Batch) -> list[str]:
    """Return the time of the question detector for one text, by length."""
    detector = LeadingQuestionDetector().fit(known)
    lines = []
    for words in LENGTHS:
        found = [text for text, _ in carriers(rest, words, 30)]
        ids = [str(number) for number in range(len(found))]
        entries = Batch.of(ids=ids, texts=found, embeddings=None)
        least = np.inf
        for _ in range(5):
            questions.forget()  # so that each round reads new texts
            begin = time.process_time()
            detector.score(entries)
            least = min(least, time.process_time() - begin)
        lines.append(f"| {words:,} | {1e3 * least / len(found):.2f} |")
    return lines


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    clean, table, own, groups = [], [], [], ""
    for name in KINDS[1:2] if quick else CLEAN:
        known, rest = corpus(name)
        guard = guard_on(known)
        clean.append(clean_line(name, guard, rest, 50 if quick else NEW))
        if name in KINDS:
            lines, shares = planted_lines(name, guard, rest, 8 if quick else CARRIERS)
            table += lines
            if name == "mails":
                missed = [f"{n} words" for n in LENGTHS if shares[n, "end"] < LEAST]
        if name == "mails":
            own = own_lines(guard)
        if name == "encyclopaedia":
            groups = groups_line(guard, rest, GROUPS)
    seconds = cost(*reversed(corpus("mails" if quick else "documentation")))
    page = "\n".join(
        [HEAD, TABLE, *table, OWN, *own, CLEAN_HEAD, *clean, GROUPS_HEAD, groups, COST, *seconds]
    )
    print(page)
    if quick:
        failed(missed)
    else:
        write("length", page)


if __name__ == "__main__":
    main()
