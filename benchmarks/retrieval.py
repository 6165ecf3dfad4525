"""Screening of retrieved sets of ten: shares of poisoned and of clean passages dropped.

    python benchmarks/retrieval.py            # everything, writes benchmarks/results/
    python benchmarks/retrieval.py --quick    # fewer calibrations, writes nothing
    python benchmarks/retrieval.py --texts    # detectors of texts alone, writes nothing

A set is the ten best of a target question's clean contexts, by MiniLM cosine; poison replaces the
tail. Thresholds come from queries that are not attacked. Needs the extra ``minilm`` for the vectors
of the target questions.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpora import data_folder, load, read_rows
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from rates import proportion_interval
from results_files import RESULTS, write
from rich.progress import track

from ragshield_core import Batch
from ragshield_core.detectors import HiddenTextDetector, InstructionDetector
from ragshield_core.detectors.groups.consensus import ConsensusDetector
from ragshield_core.detectors.question.query_echo import QueryEchoDetector
from ragshield_core.retrieval import RetrievalGuard
from ragshield_langchain.retrieval import GuardedRetriever

ATTACKS = ("nq", "hotpotqa")
TEXTS = {"text_blackbox": "black-box", "text": "raw, without the question"}
NUMBERS = (5, 3, 2, 1)
K = 10
FPR = 0.01

HEAD = """# Screening retrieved sets

Written by `benchmarks/retrieval.py`. Sets of ten: the clean contexts of a PoisonedRAG target
question nearest to it by all-MiniLM-L6-v2, of which {numbers} are replaced by texts of the attack,
from the tail. Recall is the share of poisoned passages dropped; "clean" the share of clean ones
dropped in poisoned sets, "unpoisoned" in sets without poison, "first" the share of first-ranked
passages among these. Wilson 95 % intervals over passages; those of a set hang together, so that the
true intervals are wider. Calibrated at 1 %, on queries other than the attacked ones; "half of nq"
is calibrated on the clean sets of every other target and tested on the rest, both ways round. The
guard has the detectors that look at query and set, `query_echo` and `consensus`; what the detectors
of texts add, which a default guard has as well, stands in a table of its own.
"""

WORDINGS = Path(__file__).parent / "wordings"
# Number of questions about Wikipedia whose retrieved texts are judged; an instruction detector
# takes a few milliseconds per text.
N_TEXTS = 500


class Target(NamedTuple):
    """An attacked question, its clean contexts, nearest first, and the attack texts."""

    question: str
    vector: np.ndarray
    contexts: Batch
    poison: dict[str, Batch]


class RetrievedExample(NamedTuple):
    """A set of passages with their true labels."""

    question: str
    vector: np.ndarray
    passages: Batch
    poisoned: np.ndarray  # (n_passages,), bool


def of_queries() -> RetrievalGuard:
    """Return a guard with the detectors of the query and the whole set."""
    return RetrievalGuard([QueryEchoDetector(), ConsensusDetector()])


def join(*batches: Batch) -> Batch:
    """Return the passages of several batches as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.embeddings for b in batches]),
    )


def targets(attack: str, embed: Callable[[list[str]], Any]) -> list[Target]:
    """Return the attacked questions of one data set."""
    rows = read_rows(f"poisonedrag_{attack}")
    poison = {text: load(f"poisonedrag_{attack}", text=text) for text in TEXTS}
    questions: dict[str, str] = {}
    texts = defaultdict(list)
    for number, row in enumerate(rows):
        questions[row["target_question_id"]] = row["target_question"]
        texts[row["target_question_id"]].append(number)
    contexts = load(f"{attack}_target_contexts")
    retrieved = defaultdict(set)
    for number, row in enumerate(read_rows(f"{attack}_target_contexts")):
        for hit in row["retrieved_for"]:
            retrieved[hit["question_id"]].add(number)
    vectors = np.asarray(embed(list(questions.values())), dtype=np.float32)
    found = []
    for (target, question), vector in zip(questions.items(), vectors, strict=True):
        candidates = np.array(sorted(retrieved[target]))
        order = np.argsort(-(contexts.embeddings[candidates] @ vector), kind="stable")
        chosen = contexts.take(candidates[order[:K]])
        bad = {text: batch.take(texts[target]) for text, batch in poison.items()}
        found.append(Target(question, vector, chosen, bad))
    return found


def poisoned_set(target: Target, text: str, n: int, rng: np.random.Generator) -> RetrievedExample:
    """Return the ten passages of a target, n of them poisoned, nearest first."""
    bad = target.poison[text].take(rng.permutation(len(target.poison[text]))[:n])
    passages = join(target.contexts.take(range(K - n)), bad)
    order = np.argsort(-(passages.embeddings @ target.vector), kind="stable")
    return RetrievedExample(
        target.question, target.vector, passages.take(order), order >= len(passages) - n
    )


class Tally:
    """Counts of hits and trials, by name."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, key: tuple[str, ...], hits: np.ndarray) -> None:
        """Add trials."""
        self.counts[key][0] += int(np.count_nonzero(hits))
        self.counts[key][1] += len(hits)

    def __getitem__(self, key: tuple[str, ...]) -> str:
        return str(proportion_interval(*self.counts[key]))


def measure(
    guard: RetrievalGuard, name: str, attack: str, some: list[Target], tally: Tally
) -> None:
    """Screen sets with and without poison for some targets."""
    rng = np.random.default_rng(0)
    for text in TEXTS:
        for n in (*NUMBERS, 0):
            for target in some:
                example = poisoned_set(target, text, n, rng)
                dropped = ~guard.screen(example.question, example.passages, example.vector).admitted
                key = (name, attack, text, str(n))
                tally.add((*key, "poisoned"), dropped[example.poisoned])
                tally.add((*key, "clean"), dropped[~example.poisoned])
                tally.add((*key, "first"), dropped[:1])


def wiki() -> tuple[Batch, list[str], np.ndarray]:
    """Return Wikipedia passages, questions about them, and the questions' vectors."""
    passages = load("wiki_passages", lineage="title")
    questions = [row["question"] for row in read_rows("wiki_questions")]
    with np.load(data_folder() / "embeddings" / "wiki_questions.npz", allow_pickle=False) as file:
        vectors = file["embeddings"].astype(np.float32)
    return passages, questions, vectors


def clean_of(some: Sequence[Target]) -> Batch:
    """Return the distinct clean contexts of targets."""
    everything: dict[str, tuple[str, np.ndarray]] = {}
    for target in some:
        for entry in target.contexts:
            everything[entry.id] = (entry.text, entry.embedding)
    return Batch.of(
        ids=list(everything),
        texts=[text for text, _ in everything.values()],
        embeddings=np.array([vector for _, vector in everything.values()]),
    )


def fitted_on_targets(knowledge_base: Batch, some: Sequence[Target], fpr: float) -> RetrievalGuard:
    """Return a guard calibrated on the clean sets of targets."""
    vectors = np.array([target.vector for target in some])
    return of_queries().fit(knowledge_base, [target.question for target in some], vectors, fpr=fpr)


def wiki_halves(tally: Tally, fpr: float, seed: int = 0) -> None:
    """Count dropped passages for half of the questions, calibrated on the other half."""
    passages, questions, vectors = wiki()
    order = np.random.default_rng(seed).permutation(len(questions))
    for mine, theirs in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        guard = of_queries().fit(passages, [questions[i] for i in mine], vectors[mine], fpr=fpr)
        for number in theirs.tolist():
            vector = vectors[number]
            best = np.argsort(-(passages.embeddings @ vector), kind="stable")[:K]
            dropped = ~guard.screen(questions[number], passages.take(best), vector).admitted
            tally.add(("half of wiki", "wiki", "clean"), dropped)
            tally.add(("half of wiki", "wiki", "first"), dropped[:1])


class Remembered(Embeddings):
    """Embedding model that looks up precomputed vectors of queries."""

    def __init__(self, queries: Sequence[str], vectors: np.ndarray) -> None:
        self._vectors = dict(zip(queries, vectors.tolist(), strict=True))

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a known query."""
        return self._vectors[text]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Raise: vectors of documents are read from the store."""
        msg = f"{len(texts)} documents would be embedded again"
        raise NotImplementedError(msg)


def poisoned_store(text: str, some: list[Target], tally: Tally) -> None:
    """Query a FAISS store, poisoned before it was guarded, through a retriever, k = 5."""
    passages, questions, vectors = wiki()
    poison = load("poisonedrag_nq", text=text)
    everything = join(passages, load("nq_target_contexts"), poison)
    asked = [*questions, *(target.question for target in some)]
    known = np.concatenate([vectors, [target.vector for target in some]])
    store = FAISS.from_embeddings(
        zip(everything.texts, everything.embeddings, strict=True),
        Remembered(asked, known),
        ids=list(everything.ids),
    )
    before = store.as_retriever(search_kwargs={"k": 5})
    retrievers: dict[str, BaseRetriever] = {
        "unguarded": before,
        "default thresholds": GuardedRetriever(retriever=before, guard=of_queries()),
    }
    bad = set(poison.ids)
    gold = {row["question"]: row["passage_id"] for row in read_rows("wiki_questions")}
    for name, retriever in retrievers.items():
        for question in track(asked, description=f"{text}, {name}"):
            found = {str(document.id) for document in retriever.invoke(question)}
            if question in gold:
                tally.add(("store", text, name, "gold"), np.array([gold[question] in found]))
            else:
                tally.add(("store", text, name, "poisoned"), np.array([bool(bad & found)]))


def store_table(tally: Tally) -> list[str]:
    """Return the table of the queries to a poisoned store."""
    lines = [
        "\n## A store that was poisoned before it was guarded\n",
        (
            "FAISS with wiki_passages, nq_target_contexts and all 500 texts of one kind; "
            "`GuardedRetriever`, k = 5. Share of the 100 target questions with poison among the "
            "five, and of 2,000 others with their gold passage there.\n"
        ),
        "| texts | retriever | targets with poison | gold passage found |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {TEXTS[text]} | {name} | {tally[('store', text, name, 'poisoned')]} | "
        f"{tally[('store', text, name, 'gold')]} |"
        for text in TEXTS
        for name in ("unguarded", "default thresholds")
    ]


def texts_table(found: dict[str, list[Target]], tally: Tally) -> list[str]:
    """Return the table of passages dropped by detectors of texts, in clean and poisoned sets."""
    passages, questions, vectors = wiki()
    sets = {
        attack: [(t.question, t.vector, t.contexts) for t in some] for attack, some in found.items()
    }
    sets["wiki"] = [
        (question, vector, passages.take(np.argsort(-(passages.embeddings @ vector))[:K]))
        for question, vector in zip(questions[:N_TEXTS], vectors[:N_TEXTS], strict=True)
    ]
    guards = {
        "instruction": RetrievalGuard([InstructionDetector()]),
        "hidden_text": RetrievalGuard([HiddenTextDetector()]),
        "all four, the default": RetrievalGuard(),
    }
    for name, guard in guards.items():
        for where, some in sets.items():
            for question, vector, clean in track(some, description=f"{name}, {where}"):
                dropped = ~guard.screen(question, clean, vector).admitted
                tally.add(("texts", name, where, "clean"), dropped)
                tally.add(("texts", name, where, "first"), dropped[:1])
        for kind in ("attacks", "benign"):
            for row in read_lines(WORDINGS / f"{kind}_test.jsonl"):
                one = Batch.of(ids=["wording"], texts=[row["text"]], embeddings=None)
                dropped = ~guard.screen(None, one, has_vectors=False).admitted
                tally.add(("texts", name, kind), dropped)
    lines = [
        "\n## Detectors of texts, default thresholds\n",
        (
            "Dropped of clean sets: of the target questions, and of ten Wikipedia passages for "
            f"each of {N_TEXTS} questions; of all passages, and of the first-ranked. Beside it, of "
            "the wordings in `benchmarks/wordings` (`*_test.jsonl`): attacks, and benign texts "
            "that are written to look like them.\n"
        ),
        "| detectors | nq | hotpotqa | wiki | first of wiki | attacks | benign look-alikes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in guards:
        cells = [tally[("texts", name, where, "clean")] for where in sets]
        cells.append(tally[("texts", name, "wiki", "first")])
        cells += [tally[("texts", name, kind)] for kind in ("attacks", "benign")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def speed(some: list[Target]) -> str:
    """Return the time per query of ten passages, vectors given."""
    guard = of_queries()
    examples = [poisoned_set(target, "text", 2, np.random.default_rng(0)) for target in some]
    seconds = []
    for _ in range(3):
        for example in examples:
            start = time.perf_counter()
            guard.screen(example.question, example.passages, example.vector)
            seconds.append(time.perf_counter() - start)
    p50, p95 = np.quantile(np.array(seconds) * 1000, [0.5, 0.95])
    return f"{p50:.2f} ms (p95 {p95:.2f})"


def table(tally: Tally, name: str, attacks: Sequence[str]) -> list[str]:
    """Return the rows of one calibration."""
    lines = [f"\n## Calibrated on {name}\n" if name != "rules" else "\n## Default thresholds\n"]
    lines += [
        f"{attack}, unpoisoned: {tally[(name, attack, 'text', '0', 'clean')]} of all, "
        f"{tally[(name, attack, 'text', '0', 'first')]} of the first.\n"
        for attack in attacks
    ]
    lines += ["| attack | texts | poisoned of 10 | recall | clean |", "|---|---|---|---|---|"]
    for attack in attacks:
        for text, title in TEXTS.items():
            for n in NUMBERS:
                key = (name, attack, text, str(n))
                lines.append(
                    f"| {attack} | {title} | {n} | {tally[(*key, 'poisoned')]} | "
                    f"{tally[(*key, 'clean')]} |"
                )
    return lines


def calibrated(found: dict[str, list[Target]], tally: Tally) -> dict[str, list[str]]:
    """Measure guards calibrated on clean sets; return the data sets of the test by name."""
    passages, questions, vectors = wiki()
    knowledge_bases = {attack: load(f"{attack}_target_contexts") for attack in ATTACKS}
    jobs: list[tuple[str, RetrievalGuard, str, list[Target]]] = []
    guard = of_queries().fit(passages, questions, vectors, fpr=FPR)
    jobs += [("wiki questions", guard, attack, found[attack]) for attack in ATTACKS]
    for attack, other in (ATTACKS, ATTACKS[::-1]):
        guard = fitted_on_targets(knowledge_bases[attack], found[attack], FPR)
        jobs.append((f"the questions of {attack}", guard, other, found[other]))
        for half in (0, 1):
            # 50 queries cannot justify 1 % of first-ranked passages.
            guard = fitted_on_targets(knowledge_bases[attack], found[attack][half::2], 2 * FPR)
            tested = found[attack][1 - half :: 2]
            jobs.append((f"half of {attack}, at {2 * FPR:.0%}", guard, attack, tested))
    names: dict[str, list[str]] = {}
    for name, guard, attack, tested in track(jobs, description="calibrations"):
        print(name, {key: round(threshold, 3) for key, threshold in guard.thresholds.items()})
        measure(guard, name, attack, tested, tally)
        if attack not in names.setdefault(name, []):
            names[name].append(attack)
    wiki_halves(tally, FPR)
    return names


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rules only, writes nothing")
    parser.add_argument("--texts", action="store_true", help="detectors of texts, writes nothing")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - an extra

    model = MiniLMEmbeddings()
    found = {attack: targets(attack, model.embed_documents) for attack in ATTACKS}
    tally = Tally()
    if arguments.texts:
        print("\n".join(texts_table(found, tally)))
        print(json.dumps({" | ".join(key): counts for key, counts in tally.counts.items()}))
        return
    names: dict[str, list[str]] = {"rules": list(ATTACKS)}
    for attack in ATTACKS:
        measure(of_queries(), "rules", attack, found[attack], tally)
    lines = [HEAD.format(numbers=", ".join(map(str, NUMBERS)))]
    machine = platform.processor() or platform.machine()
    lines.append(f"Per query, vectors given, {machine}, one thread: {speed(found['nq'])}.")
    if not arguments.quick:
        names |= calibrated(found, tally)
        lines.append(
            f"\nWikipedia questions, half calibrates and half tests, dropped: "
            f"{tally[('half of wiki', 'wiki', 'clean')]} of all, "
            f"{tally[('half of wiki', 'wiki', 'first')]} of the first."
        )
        for text in TEXTS:
            poisoned_store(text, found["nq"], tally)
        lines += store_table(tally)
        lines += texts_table(found, tally)
    for name, attacks in names.items():
        lines += table(tally, name, attacks)
    text = "\n".join(lines) + "\n"
    print(text)
    if not arguments.quick:
        write("retrieval", text)
        rows = {" | ".join(key): counts for key, counts in tally.counts.items()}
        (RESULTS / "retrieval.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
