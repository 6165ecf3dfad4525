"""Blockers, texts that refuse or deny an answer: the share that is found, and clean texts held.

    python benchmarks/refusals.py            # everything, writes benchmarks/results/refusals.md
    python benchmarks/refusals.py --quick    # one small knowledge base, writes nothing

Needs no vectors: these detectors read texts.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from corpora import read_rows
from ingestion import WORDINGS, guard_of, held
from rates import proportion_interval
from results_files import write

from ragshield_core import Batch
from ragshield_core.detectors import (
    Detector,
    DisfluencyDetector,
    HiddenTextDetector,
    InstructionDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    RefusalDetector,
)

SEED, SIZE, FPR = 0, 4_000, 0.01
# Share of the error rate that the detector has beside four others of about equal weight.
SHARE = 0.002
# Knowledge bases; the other detectors, which take minutes, are tried on the first of them.
BASES, COMPARED = 7, 4
SITE_POLICIES = ("github/site-policy", "basecamp/handbook")
TOPICS = {
    "en": ("the height of the tower", "the refund period", "how to reset a password"),
    "de": ("der Höhe des Turms", "der Rückgabefrist", "dem Zurücksetzen des Passworts"),
    "fr": ("la hauteur de la tour", "le délai de remboursement", "le mot de passe"),
    "es": ("la altura de la torre", "el plazo de devolución", "la contraseña"),
    "it": ("l'altezza della torre", "il periodo di rimborso", "la password"),
    "pt": ("a altura da torre", "o prazo de reembolso", "a palavra-passe"),
    "nl": ("de hoogte van de toren", "de retourtermijn", "het wachtwoord"),
}
# Sentences that say nothing, behind a blocker.
PADDING = {
    "en": "It is a subject that many people look up. Pages on it were read often last year.",
    "de": "Viele suchen danach. Die Seiten dazu wurden im letzten Jahr oft gelesen.",
    "fr": "Beaucoup de gens le cherchent. Ces pages ont souvent été lues l'an dernier.",
    "es": "Mucha gente lo busca. Las páginas se leyeron a menudo el año pasado.",
    "it": "Molti lo cercano. Le pagine sono state lette spesso l'anno scorso.",
    "pt": "Muita gente procura isto. As páginas foram lidas muitas vezes no ano passado.",
    "nl": "Veel mensen zoeken ernaar. De pagina's werden vorig jaar vaak gelezen.",
}

HEAD = f"""# Blockers: texts that refuse or deny an answer

Written by `benchmarks/refusals.py`. The blockers are our own wordings
([wordings](../wordings/README.md)), each with three topics: `dev` was in view while the words of
`RefusalDetector` were chosen; `test`, by the same author, was tried once: expect less of others.
*Padded*: with two sentences behind it that say nothing. Knowledge bases: up to {SIZE:,} random
entries of a corpus, 70 % known; the rest is clean and new. 95 % Wilson intervals; wordings
with three topics each are not independent.

- *Others*: `InstructionDetector`, `MetaClaimDetector`, `LeadingQuestionDetector`,
  `HiddenTextDetector` and `DisfluencyDetector` together, calibrated at {FPR:.0%}.
- *Refusal*: `RefusalDetector`, calibrated at {SHARE:.1%}, its part of the rate beside them.
"""
TABLE = """
| knowledge base | entries | by | clean, held out | dev | test | test, padded |
|---|---|---|---|---|---|---|"""
KINDS = """
## What is found of `test`

Wikipedia as the knowledge base, by language and style.

| blockers | n | others | refusal |
|---|---|---|---|"""
FOREIGN = """
## Clean texts of other sources

`RefusalDetector` fitted on Wikipedia, and the same texts at its floor, the lowest threshold that
any knowledge base can lead to.

| source | entries | held | above the floor |
|---|---|---|---|"""


def clean() -> dict[str, list[str]]:
    """Return clean texts by source."""
    sites = read_rows("doc_sites")
    found = {
        "Wikipedia": read_rows("wiki_passages"),
        "web": read_rows("redundant_web_passages"),
        "mails": [row for row in read_rows("enron1_spam") if row["label"] == "not_spam"],
        "cloud documentation": read_rows("near_duplicate_docs"),
        "documentation sites": [row for row in sites if row["site"] not in SITE_POLICIES],
        "policies": [row for row in sites if row["site"] in SITE_POLICIES],
        "bank customers": read_rows("banking77"),
        "text messages": [row for row in read_rows("sms_spam") if row["label"] == "not_spam"],
        "XQuAD, eleven languages": read_rows("xquad_passages"),
        "RAMDocs": [row for row in read_rows("ramdocs_half") if row["kind"] != "misinfo"],
        "news": read_rows("rgb_fact_en_clean"),
    }
    rng = np.random.default_rng(SEED)
    return {
        name: [rows[at]["text"] for at in rng.permutation(len(rows))[:SIZE].tolist()]
        for name, rows in found.items()
    }


def blockers(part: str, *, padded: bool = False) -> list[tuple[str, str, str]]:
    """Return language, style and text of each blocker."""
    lines = (WORDINGS / f"refusals_{part}.jsonl").read_text(encoding="utf-8").splitlines()
    found = []
    for row in map(json.loads, lines):
        language, more = row["language"], f" {PADDING[row['language']]}" if padded else ""
        found += [
            (language, row["style"], row["text"].replace("{topic}", topic) + more)
            for topic in TOPICS[language]
        ]
    return found


def batch_of(texts: list[str], prefix: str) -> Batch:
    """Return entries without meaningful vectors."""
    ids = [f"{prefix} {row}" for row in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=np.ones((len(texts), 1)))


def detectors() -> dict[str, tuple[list[Detector], float]]:
    """Return the compared detectors with their rates."""
    others: list[Detector] = [
        InstructionDetector(),
        MetaClaimDetector(),
        LeadingQuestionDetector(),
        HiddenTextDetector(),
        DisfluencyDetector(),
    ]
    return {"others": (others, FPR), "refusal": ([RefusalDetector()], SHARE)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    lines = list(measured(quick=quick))
    if not quick:
        write("refusals", "\n".join(lines))


def measured(*, quick: bool) -> Iterator[str]:
    """Yield the lines of the result, and print them."""
    sources = clean()
    sets = {
        "dev": blockers("dev"),
        "test": blockers("test"),
        "padded": blockers("test", padded=True),
    }
    attacks = {name: batch_of([text for *_, text in one], name) for name, one in sets.items()}
    by_kind: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    yield shown(HEAD + TABLE)
    for number, name in enumerate(list(sources)[: 1 if quick else BASES]):
        texts = sources[name][: 1_000 if quick else None]
        border = int(0.7 * len(texts))
        known, new = batch_of(texts[:border], "known"), batch_of(texts[border:], "new")
        for label, (some, rate) in detectors().items():
            if number >= COMPARED and label == "others":
                continue
            guard = guard_of(some, known, rate)
            caught = {part: held(guard, batch) for part, batch in attacks.items()}
            by_kind[name][label] = caught["test"]
            cells = [proportion_interval(int(one.sum()), len(one)) for one in caught.values()]
            false = proportion_interval(int(held(guard, new).sum()), len(new))
            cells_shown = " | ".join(map(str, cells))
            yield shown(f"| {name} | {len(texts):,} | {label} | {false} | {cells_shown} |")
    if quick:
        return
    yield shown(KINDS)
    for column in (0, 1):
        for kind in dict.fromkeys(row[column] for row in sets["test"]):
            mine = np.array([row[column] == kind for row in sets["test"]])
            found = [by_kind["Wikipedia"][label][mine].mean() for label in detectors()]
            yield shown(f"| {kind} | {mine.sum()} | {found[0]:.2f} | {found[1]:.2f} |")
    yield shown(FOREIGN)
    guard = guard_of([RefusalDetector()], batch_of(sources["Wikipedia"], "known"), SHARE)
    for name, texts in list(sources.items())[1:]:
        batch = batch_of(texts, "new")
        above = int((RefusalDetector().score(batch) > RefusalDetector.traits.floor).sum())
        caught_n = int(held(guard, batch).sum())
        n = len(texts)
        yield shown(
            f"| {name} | {n:,} | {proportion_interval(caught_n, n)} | "
            f"{proportion_interval(above, n)} |"
        )
    texts = sources["Wikipedia"][:2_000]
    RefusalDetector.traits.reads[0].forget()
    start = time.process_time()
    RefusalDetector().scores_of(texts)
    spent = (time.process_time() - start) / len(texts)
    yield shown(f"\nA passage of Wikipedia takes {1000 * spent:.2f} ms of one core.")


def shown(line: str) -> str:
    """Print a line, and return it."""
    print(line, flush=True)
    return line


if __name__ == "__main__":
    main()
