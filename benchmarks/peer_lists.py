"""Peers that screen the passages retrieved for a question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from corpora import load, read_rows
from numpy.typing import NDArray
from peer_tables import FPR, Counts, embedding_cost, timed
from retrieval import K, RetrievedExample, Target, of_queries, poisoned_set, targets, wiki
from rich.progress import track

from ragshield_core import Batch
from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.model.p_values import Calibration
from ragshield_core.retrieval import RetrievalGuard

Drops = Callable[[RetrievedExample, str], NDArray[np.bool_]]

# RAGDefender gets the kind of question, as in its paper.
TASKS = {"nq": "single_hop", "hotpotqa": "multi_hop", "msmarco_half": "single_hop"}
# The authors' own texts that are used beside PoisonedRAG's, and their number per question.
OWN = {
    "nq": {"ragdefender_blind": 5},
    "msmarco_half": {"ragdefender_dispersion": 4, "ragdefender_mixed": 4},
}
# Questions about Wikipedia with clean retrieved sets, for calibration and for a test.
N_QUESTIONS = 500

HEAD = """
## 3. Retrieved sets that hold poison

Ten passages per question, the nearest clean contexts of the question, some replaced by poison from
the tail, as in [retrieval.md](retrieval.md): PoisonedRAG on NQ and HotpotQA, with the question in
front or raw; "blind" (NQ), "dispersion" and "mixed" (MS MARCO) are texts that RAGDefender's
authors published, the last two made to avoid resembling each other. "Clean sets": ten Wikipedia
passages for each of {n} questions, without poison; "beside poison": the clean passages of sets in
which half is poisoned.

RAGDefender has no threshold: it estimates how many are poisoned, and always drops someone. It is
told the kind of question, as in its paper. It embeds the passages again for each question unless
given vectors, as here, which adds 1.0 to the last column. "Told how many" gives its second stage
the true number, which nobody knows. Our filter is shown by its default thresholds; calibrated at 1
% on other questions about Wikipedia; and its scores alone, which drop as many passages of each set
as RAGDefender does, or the true number: no accepted rate makes the filter drop a third of clean
passages, since its detectors have floors.
"""


class Vectors:
    """Stand-in for the embedding model: looks up precomputed vectors of passages."""

    def __init__(self) -> None:
        self._of: dict[str, NDArray[np.float32]] = {}

    def know(self, passages: Batch) -> None:
        """Store vectors by text."""
        self._of |= dict(zip(passages.texts, passages.embeddings, strict=True))

    def encode(self, texts: Sequence[str], **_: object) -> torch.Tensor:
        """Return vectors, like sentence-transformers."""
        return torch.from_numpy(np.array([self._of[text] for text in texts]))


def rag_defender() -> dict[str, Drops]:
    """Return RAGDefender, and its second stage alone with the true number of poisoned texts."""
    from ragdefender import RAGDefender  # noqa: PLC0415 - an extra
    from ragdefender.identification import IdentifyAdversarial  # noqa: PLC0415

    vectors = Vectors()
    defender = RAGDefender(embedder=vectors, device="cpu")
    second = IdentifyAdversarial(vectors)

    def drops(example: RetrievedExample, data: str) -> NDArray[np.bool_]:
        vectors.know(example.passages)
        _, removed = defender.defend(
            example.question,
            list(example.passages.texts),
            task_type=TASKS[data],
            return_indices=True,
        )
        return np.isin(np.arange(len(example.poisoned)), removed)

    def told(example: RetrievedExample, _data: str) -> NDArray[np.bool_]:
        vectors.know(example.passages)
        number = int(example.poisoned.sum())
        removed = second.select(
            list(example.passages.texts), number, vectors.encode(example.passages.texts)
        )
        return np.isin(np.arange(len(example.poisoned)), removed)

    return {"RAGDefender": drops, "RAGDefender, told how many": told}


def filtered(guard: RetrievalGuard) -> Drops:
    """Return our filter: a function to a mask of dropped passages."""

    def drops(example: RetrievedExample, _data: str) -> NDArray[np.bool_]:
        return ~guard.screen(example.question, example.passages, example.vector).admitted

    return drops


class Ranked:
    """Our filter's scores without its thresholds: another rule sets the number to drop.

    Passages are dropped in the order of their smallest p-value among clean passages.
    """

    def __init__(
        self,
        calibration: Sequence[RetrievedExample],
        number: Callable[[RetrievedExample, str], int],
    ) -> None:
        self._guard, self._number = RetrievalGuard(), number
        parts = [self._scores(example) for example in calibration]
        self._clean = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def __call__(self, example: RetrievedExample, data: str) -> NDArray[np.bool_]:
        """Return a mask of the dropped passages."""
        scores = self._scores(example)
        p_values = [
            Calibration.of(self._clean[name]).p_values(part) for name, part in scores.items()
        ]
        order = np.lexsort((np.log(p_values).sum(axis=0), np.min(p_values, axis=0)))
        return np.isin(np.arange(len(order)), order[: self._number(example, data)])

    def _scores(self, example: RetrievedExample) -> dict[str, NDArray[np.float64]]:
        report = self._guard.screen(example.question, example.passages, example.vector)
        return {name: np.nan_to_num(part, nan=-1e9) for name, part in report.scores.items()}


def attacked(n: int | None) -> dict[str, list[Target]]:
    """Return the attacked questions of each data set, with the poison of all attacks."""
    model = MiniLM()
    rows, everything = read_rows("ragdefender_attacks"), load("ragdefender_attacks")
    found = {}
    for data in TASKS:
        questions = targets(data, model.embed)
        asked = {row["target_question"]: row for row in read_rows(f"poisonedrag_{data}")}
        by_question: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            if row["corpus"] == data.removesuffix("_half"):
                by_question[row["target_question_id"], row["attack"]].append(number)
        found[data] = []
        for target in questions[:n]:
            target_id = asked[target.question]["target_question_id"]
            own = {kind: by_question[target_id, kind] for kind in OWN.get(data, {})}
            poison = {kind: everything.take(numbers) for kind, numbers in own.items() if numbers}
            found[data].append(target._replace(poison=target.poison | poison))
    return found


def examples(found: dict[str, list[Target]]) -> dict[str, list[tuple[str, RetrievedExample]]]:
    """Return poisoned sets and their data set, by column of the table."""
    sets: dict[str, list[tuple[str, RetrievedExample]]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for data, some in found.items():
        cases = {"text_blackbox": (5, 1), "text": (5, 1)} if data != "msmarco_half" else {}
        cases |= {kind: (n,) for kind, n in OWN.get(data, {}).items()}
        for kind, numbers in cases.items():
            shown = {"text_blackbox": "question in front", "text": "raw"}.get(
                kind, kind.removeprefix("ragdefender_")
            )
            for n in numbers:
                column = f"{data.removesuffix('_half')}, {shown}, {n} of {K}"
                for target in some:
                    if kind in target.poison and len(target.poison[kind]) >= n:
                        sets[column].append((data, poisoned_set(target, kind, n, rng)))
    return sets


def clean_sets(n: int) -> tuple[list[RetrievedExample], list[RetrievedExample]]:
    """Return clean sets for calibration, and others for a test."""
    passages, questions, vectors = wiki()
    order = np.random.default_rng(0).permutation(len(questions))[: 2 * n]
    found = []
    for row in order.tolist():
        best = np.argsort(-(passages.embeddings @ vectors[row]), kind="stable")[:K]
        none = np.zeros(K, dtype=np.bool_)
        found.append(RetrievedExample(questions[row], vectors[row], passages.take(best), none))
    return found[:n], found[n:]


def lists(*, quick: bool = False) -> tuple[list[str], dict[str, object]]:
    """Return the tables, and all counts."""
    n = 120 if quick else N_QUESTIONS
    calibration, test = clean_sets(n)
    sets = examples(attacked(5 if quick else None))
    passages, _, _ = wiki()
    asked = [example.question for example in calibration]
    vectors = np.array([example.vector for example in calibration])
    screens = rag_defender()
    peer = screens["RAGDefender"]
    screens |= {
        "**query and set alone**, by default": filtered(of_queries()),
        "**default filter**, by default": filtered(RetrievalGuard()),
        "**default filter**, at 1 %": filtered(
            RetrievalGuard().fit(passages, asked, vectors, fpr=FPR)
        ),
        "**its scores**, as many as RAGDefender": Ranked(
            calibration, lambda example, data: int(peer(example, data).sum())
        ),
        "**its scores**, told how many": Ranked(
            calibration, lambda example, _: int(example.poisoned.sum())
        ),
    }
    counts = Counts()
    for name, drops in track(screens.items(), description="retrieved sets"):
        seconds = 0.0
        for example in test:
            flagged, took = timed(lambda: drops(example, "nq"))
            seconds += took
            counts.add(name, "clean sets", flagged)
        counts.took(name, seconds, n * K)
        for column, some in sets.items():
            for data, example in some:
                flagged = drops(example, data)
                counts.add(name, column, flagged[example.poisoned])
                if not column.endswith(f" 1 of {K}"):
                    counts.add(name, "beside poison", flagged[~example.poisoned])
    cost = embedding_cost(passages.texts[: 50 if quick else None])
    many = [column for column in sets if not column.endswith(f" 1 of {K}")]
    one = [column for column in sets if column not in many]
    lines = [HEAD.format(n=n), f"Embedding a passage takes {cost:.1f} ms.\n"]
    lines += ["### Half of the set is poisoned\n"]
    lines += counts.table(["clean sets", "beside poison", *many], cost)
    lines += ["\n### One of ten is poisoned\n", *counts.table(one, cost)]
    return lines, counts.to_dict()
