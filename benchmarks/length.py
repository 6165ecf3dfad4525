"""Long carriers: a question and its wrong answer within mails, pages and articles.

    python benchmarks/length.py            # everything, writes benchmarks/results/length.md
    python benchmarks/length.py --quick    # few carriers, writes nothing

The default guard, adopted on short chunks of a source; every text is screened by itself. Carriers
are clean text of the same source, of pages and mails that the guard does not know.
"""

from __future__ import annotations

import argparse
import logging
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from corpora import from_source, load, read_rows
from results_files import write
from rich.progress import track
from singles import alone, targets
from vectors import embedded

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LeadingQuestionDetector
from ragshield_core.tools.evaluate.rates import proportion_interval

FPR, KNOWN, NEW, CARRIERS = 0.01, 2_000, 500, 40
LENGTHS = (100, 400, 1_500)  # words
PLACES = ("front", "middle", "end")
KINDS = ("documentation", "mails", "encyclopaedia")
CLEAN = (*KINDS, "web passages", "short messages")
LEAST = 0.3  # held at the end of long carriers in a small run, on average: .06 before
SEEN = 2_500  # characters, more than 256 tokens
# As people write them. "{before}" and "{after}" are of the carrier.
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


class Corpus(NamedTuple):
    """Clean texts that a guard is adopted on, and more of them, page after page."""

    known: Batch
    rest: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A carrier, with or without what was put into it."""

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
    """Return running texts of so many words, and the source of each."""
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
    """Return texts with their vectors; the model reads no more than the first 256 tokens."""
    vectors = embedded("length", [text[:SEEN] for text in texts])
    ids = [f"{prefix} {number}" for number in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=vectors, sources=list(sources))


def guard_on(known: Batch) -> Guard:
    """Return a guard that is adopted on a knowledge base."""
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
    held = [bool(kinds) for kinds in found]
    return f"| {name} | {len(held)} | {shown(held)} | {why} |"


def planted_lines(name: str, guard: Guard, rest: Batch, n: int) -> tuple[list[str], dict]:
    """Return the lines of a kind of carriers, and the shares held by words and place."""
    texts, sources = texts_of(rest, n)
    entries = batch_of([one.text for one in texts], sources, name)
    hits: dict[tuple[int, str], list[bool]] = defaultdict(list)
    forms: dict[str, list[bool]] = defaultdict(list)
    last = list(FORMS)[-1]
    for one, found in zip(texts, track(alone(guard, entries), name, len(texts)), strict=True):
        held = bool(found)
        where = one.place if one.form != last else f"{one.place}, {last}"
        hits[one.words, where].append(held)
        if one.place in ("middle", "end") and one.words > LENGTHS[0]:
            forms[one.form].append(held)
    columns = ["clean", *PLACES, *(f"{place}, {last}" for place in PLACES)]
    lines = [
        f"| {name} | {words} | " + " | ".join(shown(hits[words, c]) for c in columns) + " |"
        for words in LENGTHS
    ]
    by_form = ", ".join(f"{form} {np.mean(held):.2f}" for form, held in forms.items())
    lines.append(f"| | inside, {LENGTHS[1]} words and more, by form | {by_form} |" + " |" * 5)
    return lines, {key: float(np.mean(held)) for key, held in hits.items()}


def cost(rest: Batch, known: Batch) -> list[str]:
    """Return how long the detector of questions reads one text, by length."""
    from ragshield_core.detectors.question import leading_question  # noqa: PLC0415

    detector = LeadingQuestionDetector().fit(known)
    lines = ["\n## Cost\n\n| words | ms a text |\n|---|---|"]
    for words in LENGTHS:
        found = [text for text, _ in carriers(rest, words, 30)]
        entries = batch_of(found, [None] * len(found), "cost")
        least = np.inf
        for _ in range(5):
            leading_question._remembered.forget()  # noqa: SLF001
            begin = time.process_time()
            detector.score(entries)
            least = min(least, time.process_time() - begin)
        lines.append(f"| {words:,} | {1e3 * least / len(found):.2f} |")
    return lines


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--only", nargs="*", default=list(CLEAN))
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    n, new = (8, 50) if arguments.quick else (CARRIERS, NEW)
    clean, table, shares = [], [], {}
    for name in arguments.only:
        known, rest = corpus(name)
        guard = guard_on(known)
        line = clean_line(name, guard, rest, new)
        clean.append(line)
        print(line, flush=True)
        if name in KINDS:
            lines, shares[name] = planted_lines(name, guard, rest, n)
            table += lines
            print("\n".join(lines), flush=True)
    if arguments.quick:
        inside = [share for name in shares for share in shares[name].items()]
        ends = [share for (words, place), share in inside if place == "end" and words > LENGTHS[0]]
        if not ends or np.mean(ends) < LEAST:
            raise SystemExit(
                f"held at the end of long carriers: {ends}, expected {LEAST} on average"
            )
        return
    known, rest = corpus("documentation")
    columns = ["carriers", "words", "clean", *PLACES, *(f"{p}, published form" for p in PLACES)]
    lines = [
        HEAD,
        "## Held, by place\n",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *table,
        "\n## Clean texts of the same sources, as they are\n",
        "| source | texts | held | by |\n|---|---|---|---|",
        *clean,
        *cost(rest, known),
    ]
    write("length", "\n".join(lines))


if __name__ == "__main__":
    main()
