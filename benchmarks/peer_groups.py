"""Peers that could hold groups of poisoned documents at ingestion.

Each method gets the clean knowledge base and judges a batch of new entries.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import faiss
import numpy as np
from cliques import attack, clones, join, knowledge_base
from ingestion import guard_of, split
from numpy.typing import NDArray
from peer_tables import FPR, Counts, Judgement, embedding_cost, threshold_at, timed
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups.cleanbase import K, clique_members, edge_threshold, undirected
from ragshield_core.detectors.groups.graph import Lists

os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # bars of cleanlab

SPLITS, AMONG = 3, 1_000
N_PERM = 128  # datasketch's default
STEP = 0.05
TEXTS = {"text_blackbox": "question in front", "text": "raw"}
BASES = {"wikipedia": "poisonedrag_nq", "web + nq": "poisonedrag_nq"}

HEAD = """
## 1. Groups of documents, when they are written

PoisonedRAG's texts on NQ: five or three for each of 100 questions, with the question in front (as
the black-box attack injects them) or raw, and five exact copies. A random 70 % of the corpus is
the knowledge base; of the rest, one half is clean calibration data, from which peers take the
threshold that 1 % of it exceeds ("at 1 %"), the other half is clean and new. All texts of an
attack are judged in one batch with {among:,} of these. {splits} random splits, pooled as if
independent (the attack texts are the same in each). The guard takes its threshold from the
knowledge base itself, keeps the rate with 90 % confidence (peers: in expectation) and does not see
the calibration data.
"""


class GroupPeer(ABC):
    """A method that learns a knowledge base and judges new entries."""

    @abstractmethod
    def fit(self, known: Batch) -> None:
        """Learn the clean knowledge base."""

    @abstractmethod
    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Return the judgements of a batch, by row of the table."""


class NearDuplicates(GroupPeer):
    """The largest estimated Jaccard similarity of word shingles to any other text."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.name = "MinHash, words" if words == 1 else f"MinHash, shingles of {words} words"

    def fit(self, known: Batch) -> None:
        """Keep the signatures of the knowledge base."""
        self._known = self._signatures(known.texts)

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Compare every signature with every other."""
        mine = self._signatures(new.texts)
        everything = np.concatenate([self._known, mine])
        scores = np.empty(len(mine))
        for row, signature in enumerate(mine):
            same = np.count_nonzero(everything == signature, axis=1)
            same[len(self._known) + row] = 0  # the entry itself
            scores[row] = same.max() / N_PERM
        return {self.name: Judgement(scores=scores)}

    def _signatures(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        return np.array([one.hashvalues for one in minhashes(texts, self.words)], dtype=np.uint32)


class NearDuplicateIndex(GroupPeer):
    """datasketch's index with its defaults: Jaccard similarity of at least 0.9, by hashing."""

    def fit(self, known: Batch) -> None:
        """Fill the index."""
        from datasketch import MinHashLSH  # noqa: PLC0415 - an extra

        self._index = MinHashLSH(num_perm=N_PERM)
        for number, one in enumerate(minhashes(known.texts, 1)):
            self._index.insert(f"known {number}", one)

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Add the batch to the index, and query it."""
        mine = minhashes(new.texts, 1)
        for number, one in enumerate(mine):
            self._index.insert(f"new {number}", one)
        found = np.array([len(self._index.query(one)) > 1 for one in mine])
        for number in range(len(mine)):
            self._index.remove(f"new {number}")
        return {"MinHashLSH": Judgement(own=found)}


def minhashes(texts: Sequence[str], words: int) -> list[object]:
    """Return the MinHash of each text's shingles of ``words`` words."""
    from datasketch import MinHash  # noqa: PLC0415 - an extra

    sets = []
    for text in texts:
        parts = text.lower().split()
        shingles = {" ".join(parts[i : i + words]) for i in range(max(1, len(parts) - words + 1))}
        sets.append([shingle.encode() for shingle in shingles])
    return list(MinHash.generator(sets, num_perm=N_PERM, seed=1))


class CleanBase(GroupPeer):
    """The paper's rule: an audit of the knowledge base and the new entries together.

    The score of an entry is the largest alpha, in steps of 0.05, at which it is in a clique.
    """

    def fit(self, known: Batch) -> None:
        """Keep the knowledge base."""
        self._known = known

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Audit knowledge base and batch together."""
        vectors = np.concatenate([self._known.embeddings, new.embeddings])
        n, first = len(vectors), len(self._known)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        similarities, slots = index.search(vectors, K + 1)
        itself = slots == np.arange(n)[:, None]  # not always the first, because of copies
        itself[:, -1] |= ~itself.any(axis=1)
        lists = (part[~itself].reshape(n, K) for part in (slots, similarities))
        slots, similarities = lists
        edges, weights = undirected(
            np.arange(n), Lists(slots, similarities, np.zeros_like(similarities))
        )
        own = clique_members(n, edges[weights > edge_threshold(weights)[0]])
        mean, deviation = float(weights.mean()), float(weights.std())
        scores = np.full(n, -np.inf)
        for alpha in np.arange(-2.0, (1.0 - mean) / deviation, STEP):
            scores[clique_members(n, edges[weights > mean + alpha * deviation])] = alpha
        return {"CleanBase": Judgement(own[first:], scores[first:])}


class Outliers(GroupPeer):
    """scikit-learn's outlier detectors on vectors, fitted on the knowledge base."""

    def fit(self, known: Batch) -> None:
        """Fit both detectors."""
        from sklearn.ensemble import IsolationForest  # noqa: PLC0415 - slow to import
        from sklearn.neighbors import LocalOutlierFactor  # noqa: PLC0415

        self._models = {
            "IsolationForest": IsolationForest(random_state=0).fit(known.embeddings),
            "LocalOutlierFactor": LocalOutlierFactor(novelty=True).fit(known.embeddings),
        }

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Score vectors; both flag scores below zero by default."""
        found = {}
        for name, model in self._models.items():
            scores = -model.decision_function(new.embeddings)
            found[name] = Judgement(scores > 0.0, scores)
        return found


class DatalabIssues(GroupPeer):
    """cleanlab's Datalab on vectors: outliers and near duplicates among all entries."""

    def fit(self, known: Batch) -> None:
        """Keep the knowledge base."""
        self._known = known

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Look for issues in knowledge base and batch together."""
        from cleanlab import Datalab  # noqa: PLC0415 - an extra

        everything = join(self._known, new)
        lab = Datalab(data={"text": list(everything.texts)}, verbosity=0)
        kinds = ("outlier", "near_duplicate")
        lab.find_issues(features=everything.embeddings, issue_types={kind: {} for kind in kinds})
        found = {}
        for kind in kinds:
            issues = lab.get_issues(kind).iloc[len(self._known) :]
            found[f"Datalab, {kind.replace('_', ' ')}"] = Judgement(
                issues[f"is_{kind}_issue"].to_numpy(), -issues[f"{kind}_score"].to_numpy()
            )
        return found


class Ours(GroupPeer):
    """A guard, calibrated on the knowledge base."""

    def __init__(self, name: str, *, groups_only: bool) -> None:
        self.name, self._groups_only = name, groups_only

    def fit(self, known: Batch) -> None:
        """Fit and calibrate."""
        if self._groups_only:
            self._guard = guard_of([CliqueDetector()], known, FPR)
        else:
            self._guard = Guard.default(FPR, quarantine=Quarantine("sqlite://"))
            self._guard.fit(known).calibrate()

    def judge(self, new: Batch) -> dict[str, Judgement]:
        """Screen the batch."""
        return {self.name: Judgement(own=~self._guard.screen(new).admitted)}


def peers() -> list[GroupPeer]:
    """Return every method."""
    return [
        *(NearDuplicateIndex(), NearDuplicates(1), NearDuplicates(3)),
        *(CleanBase(), Outliers(), DatalabIssues()),
        Ours("**groups alone** (`CliqueDetector`), at 1 %", groups_only=True),
        Ours("**default guard**, at 1 %", groups_only=False),
    ]


def groups(*, quick: bool = False) -> tuple[list[str], dict[str, object]]:
    """Return the tables, and all counts."""
    splits = 1 if quick else SPLITS
    lines, counted = [HEAD.format(among=AMONG, splits=splits)], {}
    for name, source in list(BASES.items())[-1:] if quick else BASES.items():
        counts, embedding = Counts(), []
        for seed in track(range(splits), description=f"groups, {name}"):
            corpus = knowledge_base(name)
            if quick:
                corpus = corpus.take(np.random.default_rng(0).permutation(len(corpus))[:3_000])
            known, rest = split(corpus, seed)
            clean, test = split(rest, seed, 0.5)
            embedding.append(embedding_cost(test.texts[: 50 if quick else None]))
            attacks = {
                f"{title}, {n}": attack(source, text, n, one_lineage=False, seed=seed)
                for text, title in TEXTS.items()
                for n in (5, 3)
            }
            attacks["copies, 5"] = clones(source, 5)
            if quick:
                attacks = {column: batch.take(range(30)) for column, batch in attacks.items()}
            for peer in peers():
                measure(peer, known, clean, test, attacks, counts)
        columns = ["clean", *attacks]
        cost = float(np.mean(embedding))
        lines += [f"\n### {name}\n", f"Embedding a text takes {cost:.1f} ms.\n"]
        lines += counts.table(columns, cost)
        counted[name] = counts.to_dict()
    return lines, counted


def measure(
    peer: GroupPeer,
    known: Batch,
    clean: Batch,
    test: Batch,
    attacks: dict[str, Batch],
    counts: Counts,
) -> None:
    """Count the findings of a peer, by its default and at a common rate."""
    peer.fit(known)
    thresholds = {
        row: threshold_at(judged.scores)
        for row, judged in peer.judge(clean).items()
        if judged.scores is not None
    }
    some = test.take(range(min(AMONG, len(test))))
    for column, poison in {"clean": test.take([]), **attacks}.items():
        batch = test if column == "clean" else join(poison, some)
        found, seconds = timed(lambda: peer.judge(batch))
        part = slice(None) if column == "clean" else slice(len(poison))
        for row, judged in found.items():
            rows = {}
            if judged.own is not None:
                rows[row if "**" in row else f"{row}, as it comes"] = judged.own
            if judged.scores is not None:
                rows[f"{row}, at 1 %"] = judged.scores > thresholds[row]
            for shown, flagged in rows.items():
                counts.add(shown, column, flagged[part])
                if column == "clean":
                    counts.took(shown, seconds, len(batch))
