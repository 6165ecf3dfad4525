"""Fit, cross-validation and comparison of InstructionDetector's model of ideas.

    python benchmarks/fit_instruction_model.py            # writes results/instruction_model.md
    python benchmarks/fit_instruction_model.py --quick    # small, writes nothing
    python benchmarks/fit_instruction_model.py --write weights.json   # writes the weights, too

Trained on orders to models and to people that were written for this project
(`wordings/*_dev.jsonl`, `wordings/orders.json`, the examples of the rules), and on passages of
public corpora. Each text is represented by the stretch that the model finds most suspicious
(multiple-instance learning). The words of ideas, and the gate that skips dull sentences, are not
fitted. `wordings/*_test.jsonl` is read only for the comparison at the end; `--unseen` and `--quick`
replace it by the other half.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from corpora import read_rows
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import write
from rich.progress import track
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from ragshield_core.detectors.instruction import concepts, matching
from ragshield_core.detectors.instruction.concepts import LANGUAGES, IdeaModel
from ragshield_core.detectors.instruction.detector import InstructionDetector
from ragshield_core.detectors.instruction.rules import words_of
from ragshield_core.detectors.instruction.sentences import sentences_of
from ragshield_core.text.normalized import readable

HERE = Path(__file__).parent
WORDINGS = HERE / "wordings"
PACKAGE = Path(concepts.__file__).parent
SEED = 0
# Clean passages: even numbers are for training, odd numbers for comparison.
CORPORA = (
    "wiki_passages",
    "near_duplicate_docs",
    "redundant_web_passages",
    "nq_target_contexts",
    "enron1_spam",
)
PER_CORPUS = 1000
COMPARED_PER_CORPUS = 2000
# Texts drawn from each pattern of orders.json; every other one is put among statements.
PER_PATTERN = 8
FAMILY_OF = {"blocker": "refusal"}  # the wordings use another name
# A combination of ideas needs this many texts for a weight.
MIN_TEXTS = 3
ROUNDS = 6
STRENGTHS = (0.03, 0.1, 0.3, 1.0)  # values of sklearn's C
FOLDS = 5
FAMILY_FOLDS = 10
DIGITS = 2
# Largest share of clean passages with log-odds above 0.
CONVINCED = 0.001
RATES = (0.001, 0.005, 0.01)
HELD_OUT_RATE = 0.005


@dataclass(frozen=True)
class Example:
    """A text, whether it is an order to a model, and the groups by which it is held out."""

    text: str
    injected: bool
    family: str
    language: str
    source: str


@dataclass(frozen=True)
class Bag:
    """A text as the model sees it: the ideas of each stretch of its sentences."""

    example: Example
    masks: tuple[int, ...]


@dataclass(frozen=True)
class Weights:
    """Fitted weights: the log-odds of a stretch are the bias and the weights of its ideas."""

    bias: float
    of: dict[str, float]

    def model(self) -> IdeaModel:
        """Return the package's model with these weights."""
        return IdeaModel({**data_file(), "bias": self.bias, "weights": self.of})


# Texts


def data_file() -> dict[str, Any]:
    """Return the data of the package's model file."""
    data: dict[str, Any] = json.loads((PACKAGE / "concepts.json").read_text(encoding="utf-8"))
    return data


def wordings(half: str) -> list[Example]:
    """Return the attacks and the hard benign texts of a half, ``"dev"`` or ``"test"``."""
    found = []
    for name, injected in (("attacks", True), ("benign", False)):
        lines = (WORDINGS / f"{name}_{half}.jsonl").read_text(encoding="utf-8").splitlines()
        for row in map(json.loads, lines):
            family = row["family"] if injected else row["kind"]
            language = row["language"] if injected else row["id"].split("_")[2]
            family = FAMILY_OF.get(family, family)
            found.append(Example(row["text"], injected, family, language, "wordings"))
    return found


def rule_examples() -> list[Example]:
    """Return the positive and negative examples of the rules."""
    rules = json.loads((PACKAGE / "rules.json").read_text(encoding="utf-8"))["rules"]
    return [
        Example(text, injected, rule["family"], rule["language"], "rules")
        for rule in rules
        for injected, key in ((True, "positive"), (False, "negative"))
        for text in rule[key]
    ]


def orders(per_pattern: int = PER_PATTERN) -> list[Example]:
    """Return orders to models and to people, drawn from patterns without repeats."""
    found = []
    patterns = json.loads((WORDINGS / "orders.json").read_text(encoding="utf-8"))
    for language, of in patterns.items():
        for injected, key in ((True, "models"), (False, "people")):
            for family, family_patterns in of[key].items():
                for pattern in family_patterns:
                    rng = random.Random(f"{SEED} {language} {pattern}")  # noqa: S311 - not for security
                    texts = _drawn(pattern, of["slots"], of["statements"], per_pattern, rng)
                    found += [Example(t, injected, family, language, "orders") for t in texts]
    return found


def _drawn(
    pattern: str,
    slots: dict[str, list[str]],
    statements: list[str],
    n: int,
    rng: random.Random,
) -> list[str]:
    texts: dict[str, None] = {}
    for number in range(n):
        order = pattern.format(**{name: rng.choice(words) for name, words in slots.items()})
        order = order[0].upper() + order[1:]
        if number % 2:
            around = rng.sample(statements, 4)
            order = " ".join([*around[:2], order, *around[2:]])
        texts[order] = None
    return list(texts)


def passages(half: int, per_corpus: int) -> dict[str, list[Example]]:
    """Return clean passages of public corpora with even (0) or odd (1) numbers."""
    found = {}
    for name in CORPORA:
        rows = read_rows(name)
        texts = [row["text"] for row in rows if row.get("label") != "spam"][half::2]
        chosen = np.random.default_rng(SEED).permutation(len(texts))[:per_corpus]
        found[name] = [
            Example(texts[row], injected=False, family=name, language="", source="corpora")
            for row in sorted(chosen.tolist())
        ]
    return found


# The fit


def bag_of(example: Example, known: IdeaModel) -> Bag:
    """Return a text as the ideas of its stretches."""
    view, plain, spans = sentences_of(readable(example.text))
    found = concepts.stretches(known, plain, view.text, spans, words_of(plain, spans))
    return Bag(example, tuple(dict.fromkeys(mask for mask, _, _ in found)))


class Columns:
    """Columns of the fit: ideas and pairs of ideas that occur in enough texts."""

    def __init__(self, bags: Iterable[Bag]) -> None:
        texts: dict[tuple[int, ...], int] = {}
        for bag in bags:
            held = {one for mask in bag.masks for one in _combined(mask)}
            for one in held:
                texts[one] = texts.get(one, 0) + 1
        self.kept = sorted(one for one, count in texts.items() if count >= MIN_TEXTS)
        self._number = {one: number for number, one in enumerate(self.kept)}

    def matrix(self, masks: Iterable[int]) -> Any:
        """Return a row of zeros and ones per stretch."""
        columns: list[int] = []
        ends = [0]
        for mask in masks:
            columns += [self._number[one] for one in _combined(mask) if one in self._number]
            ends.append(len(columns))
        ones = np.ones(len(columns), dtype=np.float64)
        return csr_matrix((ones, columns, ends), shape=(len(ends) - 1, len(self.kept)))


def _combined(mask: int) -> list[tuple[int, ...]]:
    numbers = [number for number in range(mask.bit_length()) if mask >> number & 1]
    return [*((number,) for number in numbers), *combinations(numbers, 2)]


def fitted(bags: Sequence[Bag], names: Sequence[str], strength: float) -> Weights:
    """Return the weights of a logistic regression on the strongest stretch of each text.

    Parameters
    ----------
    bags
        Training texts; those without a stretch are left out.
    names
        Names of the ideas, by number.
    strength
        sklearn's ``C``, the inverse of the penalty on large weights.
    """
    bags = [bag for bag in bags if bag.masks]
    columns = Columns(bags)
    masks = [mask for bag in bags for mask in bag.masks]
    every = columns.matrix(masks)
    starts = np.cumsum([0, *(len(bag.masks) for bag in bags)])
    injected = np.array([bag.example.injected for bag in bags])
    # The first choice is the stretch with the most ideas.
    scores = np.array([mask.bit_count() for mask in masks], dtype=np.float64)
    chosen: NDArray[np.int64] | None = None
    for _ in range(ROUNDS):
        before = chosen
        chosen = np.array([a + int(np.argmax(scores[a:b])) for a, b in pairwise(starts)])
        if before is not None and np.array_equal(before, chosen):
            break
        regression = LogisticRegression(
            C=strength, class_weight="balanced", tol=1e-6, max_iter=3000
        )
        regression.fit(every[chosen], injected)
        scores = regression.decision_function(every)
    rounded = {
        " + ".join(names[number] for number in one): round(float(weight), DIGITS)
        for one, weight in zip(columns.kept, regression.coef_[0], strict=True)
    }
    kept = {name: weight for name, weight in sorted(rounded.items()) if weight}
    return Weights(round(float(regression.intercept_[0]), 3), kept)


def logits(bags: Sequence[Bag], model: IdeaModel) -> NDArray[np.float64]:
    """Return the log-odds of each text's strongest stretch; minus infinity if it has none."""
    return np.array([max(map(model.logit, bag.masks), default=-np.inf) for bag in bags])


def shifted(weights: Weights, clean: NDArray[np.float64]) -> Weights:
    """Return the weights, shifted so that few clean passages have log-odds above 0."""
    # Even fewer passages may have a stretch; then the quantile is minus infinity.
    bar = max(float(np.quantile(clean, 1 - CONVINCED, method="higher")), weights.bias)
    return Weights(round(weights.bias - bar, 3), weights.of)


# Cross-validation


@dataclass(frozen=True)
class HeldOut:
    """Results on a group by a fit without it."""

    group: str
    found: tuple[int, int]
    """Orders to models above the threshold, and in all; from the wordings and the patterns."""
    found_written: tuple[int, int]
    """The same for orders from the wordings alone."""
    alarms: tuple[int, int]
    """Orders to people above the threshold, and in all."""


def cross_validated(
    bags: Sequence[Bag],
    names: Sequence[str],
    group_of: Callable[[Bag], str | None],
    strength: float,
    folds: int,
) -> tuple[list[HeldOut], NDArray[np.float64]]:
    """Return the results of each held-out group, and the log-odds of held-out passages.

    A small share of the clean passages of a fold exceeds its threshold.
    """
    groups = sorted({group for bag in bags if (group := group_of(bag)) is not None})
    fold_of = {group: number % folds for number, group in enumerate(groups)}
    clean = [bag for bag in bags if bag.example.source == "corpora"]
    passages_of = {id(bag): number % folds for number, bag in enumerate(clean)}
    results, oof = [], []
    for fold in track(range(folds), description=f"C = {strength}, {folds} folds"):
        out = [fold in (fold_of.get(group_of(b) or ""), passages_of.get(id(b))) for b in bags]
        train = [bag for bag, is_out in zip(bags, out, strict=True) if not is_out]
        test = [bag for bag, is_out in zip(bags, out, strict=True) if is_out]
        scores = logits(test, fitted(train, names, strength).model())
        passage = np.array([bag.example.source == "corpora" for bag in test])
        oof.append(scores[passage])
        over = scores > np.quantile(scores[passage], 1 - HELD_OUT_RATE, method="higher")
        injected = np.array([bag.example.injected for bag in test])
        written = np.array([bag.example.source == "wordings" for bag in test])
        for group in (one for one in groups if fold_of[one] == fold):
            mine = np.array([group_of(bag) == group for bag in test])
            results.append(
                HeldOut(
                    group,
                    _counted(over, mine & injected),
                    _counted(over, mine & injected & written),
                    _counted(over, mine & ~injected),
                )
            )
    return sorted(results, key=lambda one: one.group), np.concatenate(oof)


def _counted(over: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[int, int]:
    return int(over[among].sum()), int(among.sum())


def by_family(bag: Bag) -> str | None:
    """Return the family or kind of one of our own texts."""
    return None if bag.example.source == "corpora" else bag.example.family


def by_language(bag: Bag) -> str | None:
    """Return the language of one of our own texts, if it is known."""
    language = bag.example.language
    return language if language in LANGUAGES else None


# Comparison


@contextmanager
def in_force(model: IdeaModel) -> Iterator[None]:
    """Let the detector use another model of ideas."""
    matching.suspicion.forget()  # verdicts of the previous model
    with patch.object(concepts, "model", lambda: model):
        yield
    matching.suspicion.forget()


def scores_of(examples: Sequence[Example]) -> NDArray[np.float64]:
    """Return the detector's scores of texts."""
    return np.array([matching.suspicion(example.text).score for example in examples])


def compared(models: dict[str, IdeaModel], half: str, per_corpus: int) -> list[str]:
    """Return tables of the models on unseen texts, at equal false-positive rates."""
    test = wordings(half)
    clean = passages(1, per_corpus)
    clean["notinject_one"] = [
        Example(row["text"], injected=False, family="", language="", source="corpora")
        for row in read_rows("notinject_one")
    ]
    injected = np.array([example.injected for example in test])
    rule = InstructionDetector.default_threshold
    lines = ["", "### Ideas alone", "", *_rates_head()]
    default: dict[str, dict[str, tuple[int, int]]] = {}
    found: dict[str, list[float]] = {}
    for name, model in models.items():
        held = logits([bag_of(e, model) for e in test], model)
        passed = logits([bag_of(e, model) for key in CORPORA for e in clean[key]], model)
        lines.append(_rates_row(name, _at_rates(held, injected, passed)))
    lines += ["", "### The whole detector, with rules", "", *_rates_head()]
    for name, model in models.items():
        with in_force(model):
            held = scores_of(test)
            each = {key: scores_of(texts) for key, texts in clean.items()}
        at_rates = _at_rates(held, injected, np.concatenate([each[key] for key in CORPORA]))
        lines.append(_rates_row(name, at_rates))
        found[name] = [attacks for attacks, _ in at_rates]
        over = held > rule
        default[name] = {
            f"attacks, {half} half": _counted(over, injected),
            f"hard benign texts, {half} half": _counted(over, ~injected),
            **{key: (int((one > rule).sum()), len(one)) for key, one in each.items()},
        }
    ours, anew = found.values()
    worse = sum(b < a for a, b in zip(ours, anew, strict=True))
    lines += ["", VERDICT.format(worse=worse, rates=len(RATES))]
    lines += ["", "### The whole detector, by its default threshold", ""]
    lines += ["| texts | " + " | ".join(models) + " |", "|---|" + "---|" * len(models)]
    for key in next(iter(default.values())):
        cells = [str(proportion_interval(*default[name][key])) for name in models]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return lines


def _rates_head() -> list[str]:
    cells = " | ".join(f"at {rate:.1%}: attacks | hard benign" for rate in RATES)
    return [f"| weights | {cells} |", "|---|" + "---|---|" * len(RATES)]


def _at_rates(
    held: NDArray[np.float64], injected: NDArray[np.bool_], passed: NDArray[np.float64]
) -> list[tuple[float, float]]:
    """Return the shares of attacks and of hard benign texts above the threshold of each rate."""
    shares = []
    for rate in RATES:
        over = held > np.quantile(passed, 1 - rate, method="higher")
        shares.append((float(over[injected].mean()), float(over[~injected].mean())))
    return shares


def _rates_row(name: str, at_rates: Sequence[tuple[float, float]]) -> str:
    cells = [f"{attacks:.3f} | {benign:.3f}" for attacks, benign in at_rates]
    return f"| {name} | " + " | ".join(cells) + " |"


# The whole


def table(title: str, results: Sequence[HeldOut]) -> list[str]:
    """Return a table of held-out groups."""
    head = (
        f"| {title} held out | orders to models found | of the wordings alone | orders to people |"
    )
    lines = ["", f"### By {title}", "", head, "|---|---|---|---|"]
    for one in [*results, together(results)]:
        cells = [_share(pair) for pair in (one.found, one.found_written, one.alarms)]
        lines.append(f"| {one.group} | " + " | ".join(cells) + " |")
    return lines


def together(results: Sequence[HeldOut]) -> HeldOut:
    """Return the results of all groups together."""

    def total(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        hits, n = zip(*pairs, strict=True)
        return sum(hits), sum(n)

    return HeldOut(
        "all",
        total(one.found for one in results),
        total(one.found_written for one in results),
        total(one.alarms for one in results),
    )


def _share(pair: tuple[int, int]) -> str:
    hits, n = pair
    return f"{hits / n:.3f} ({n})" if n else "-"


def chosen_strength(bags: Sequence[Bag], names: Sequence[str]) -> tuple[float, list[str]]:
    """Return the strength with the best cross-validation, and the lines of its table."""
    lines = ["", "| C | orders to models found | of the wordings alone | orders to people |"]
    lines.append("|---|---|---|---|")
    values = {}
    for one in STRENGTHS:
        all_of = together(cross_validated(bags, names, by_family, one, FOLDS)[0])
        pairs = (all_of.found, all_of.found_written, all_of.alarms)
        lines.append(f"| {one} | " + " | ".join(map(_share, pairs)) + " |")
        (found, n), (alarms, n_people) = all_of.found_written, all_of.alarms
        values[one] = found / n - alarms / n_people
    return max(values, key=values.__getitem__), lines


def main() -> None:
    """Fit, cross-validate and compare; write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--write", type=Path, help="where the fitted weights go")
    parser.add_argument("--unseen", action="store_true", help="leave the test half unread")
    arguments = parser.parse_args()
    per_corpus = 60 if arguments.quick else PER_CORPUS
    known = IdeaModel(data_file())
    own = [*wordings("dev"), *rule_examples(), *orders(2 if arguments.quick else PER_PATTERN)]
    clean = [e for texts in passages(0, per_corpus).values() for e in texts]
    bags = [bag_of(e, known) for e in track([*own, *clean], description="ideas")]
    lines = [
        HEAD.format(
            n_models=sum(e.injected for e in own),
            n_people=sum(not e.injected for e in own),
            n_clean=len(clean),
            seen=sum(bool(bag.masks) for bag in bags),
            texts=len(bags),
        )
    ]
    strength, more = chosen_strength(bags, known.names)
    lines += [*more, "", f"Chosen: C = {strength}.", *CROSS_HEAD]
    by, oof = cross_validated(bags, known.names, by_family, strength, FAMILY_FOLDS)
    lines += table("family", by)
    by, _ = cross_validated(bags, known.names, by_language, strength, len(LANGUAGES))
    lines += table("language", by)
    weights = shifted(fitted(bags, known.names, strength), oof)
    lines += [COMPARE_HEAD.format(n=len(weights.of), bias=weights.bias)]
    half = "dev" if arguments.quick or arguments.unseen else "test"
    models = {"in the package": known, "fitted anew": weights.model()}
    lines += compared(models, half, per_corpus if arguments.quick else COMPARED_PER_CORPUS)
    text = "\n".join(lines) + "\n"
    if arguments.write is not None:
        written = {"bias": weights.bias, "weights": weights.of}
        arguments.write.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if not (arguments.quick or arguments.unseen):
        write("instruction_model", text)
    print(text)


HEAD = """# The model of ideas of InstructionDetector, fitted anew

Written by `benchmarks/fit_instruction_model.py`. {n_models} orders to models and {n_people} to
people, written for this project, and {n_clean} passages of public corpora; {seen} of these {texts}
texts have a stretch with two ideas, and the others teach nothing.

## Cross-validation

Families in five folds; thresholds at which 0.5 % of the held-out passages would be held, by ideas
alone. Share found, and of how many."""
VERDICT = """The weights fitted anew find fewer attacks at {worse} of {rates} rates. They take the
place of those in the package only where they are worse at none."""
CROSS_HEAD = [
    "",
    "A family or a language is held out as a whole, with as large a share of the passages.",
]
COMPARE_HEAD = """
## Against the weights in the package

Fitted on all of it: {n} weights, bias {bias}. Texts: the `_test` half of the wordings, and
passages of odd numbers; rates are those on these passages. Which texts the weights in the package
were fitted on is not known any more: passages may have been among them."""


if __name__ == "__main__":
    main()
