"""How far what is retrieved and answered now is from what it was: figures, weights, reports."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from ragshield_core.canary.likeness import words
from ragshield_core.canary.retrievers import Passage
from ragshield_core.findings import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Rule = Literal["ragshield", "source"]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Threshold = Annotated[float, Field(gt=0.0, le=1.0)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]

# Ranks that the growth test looks at; with a persistence of .8, those behind hold 7 % of the weight
# together, and every pattern of newcomers among so many can be enumerated.
HEAD = 12
# Chunks of one document, closer to each other than this, are no accident of chunking.
SIBLINGS_APART = 0.8
# A passage holds the words of a query in one place if they lie within so many times its length.
SLACK = 1.25
# Characters of an id that are shown.
SHOWN_ID = 60
# Words of a query that are looked at; longer ones are no questions. Those of fewer words than three
# stand in any passage about them, of fewer than five in many.
LONGEST, FULL_LENGTH, LEAST_LENGTH = 64, 5, 3


class AnomalyWeights(BaseModel):
    """Weights and thresholds of the anomaly score.

    Parameters
    ----------
    answer, answer_cap
        The score gains ``answer`` times the drift of the answer (1 - cosine), up to the cap.
    jaccard, overlap
        It gains so much of 1 - Jaccard similarity and of 1 - overlap@k.
    suspicion, suspicion_cap
        It gains so much of a rise of the suspicion ratio, up to the cap.
    poison, poison_cap
        The same for the poison ratio; only with ``rule="source"`` and ground truth.
    threshold
        A score from it on is flagged.
    poison_delta
        So is a rise of the poison ratio from it on; as above.
    answer_takeover
        An answer that drifted so much is flagged where the entry at the first rank is new, or the
        one that the answer follows. Not of the source: with few entries and canaries, growth cannot
        be told from takeover by ranks.
    takeover_p
        A canary is flagged if newcomers at its head are less probable than this under mere growth:
        additions of the same kind as what was there flag at most this share of the canaries, fewer
        as a rule. More finds more of single poisoned entries. Where nearly all canaries are below
        .05, and three are, these are flagged as well. Not of the source.
    persistence
        Each rank weighs so much of the one before it, in the rank-biased figures; .8 gives half of
        the weight to the first three ranks.

    Notes
    -----
    The defaults down to ``poison_delta`` are those of "Detecting RAG Poisoning via Canary Queries
    and Retrieval Drift" (MP Aghababa, a public notebook).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    answer: Weight = 0.75
    answer_cap: Share = 0.60
    jaccard: Share = 0.20
    overlap: Share = 0.15
    suspicion: Weight = 0.8
    suspicion_cap: Share = 0.10
    poison: Weight = 0.8
    poison_cap: Share = 0.10
    threshold: Threshold = 0.65
    poison_delta: Threshold = 0.30
    answer_takeover: Threshold = 0.25
    takeover_p: Probability = 0.015
    persistence: Probability = 0.8

    def score(
        self,
        *,
        answer_drift: float | None,
        jaccard: float,
        overlap: float,
        suspicion_delta: float,
        poison_delta: float | None = None,
    ) -> float:
        """Return the anomaly score, at most 1.

        Examples
        --------
        >>> AnomalyWeights().score(answer_drift=0.4, jaccard=0.5, overlap=0.5, suspicion_delta=0.1)
        0.555
        """
        score = (1.0 - jaccard) * self.jaccard + (1.0 - overlap) * self.overlap
        score += min(self.answer_cap, (answer_drift or 0.0) * self.answer)
        score += min(self.suspicion_cap, max(0.0, suspicion_delta) * self.suspicion)
        score += min(self.poison_cap, max(0.0, poison_delta or 0.0) * self.poison)
        return min(1.0, score)


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the Jaccard similarity of two lists as sets, in [0, 1]; 1 for two empty ones."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one or other else 1.0


def overlap_at_k(
    first: Sequence[str], second: Sequence[str], k: int, *, rule: Rule = "ragshield"
) -> float:
    """Return the share of the first k places that two lists have in common, in [0, 1].

    Parameters
    ----------
    first, second
        Ids, best first.
    k
        Places that are compared.
    rule
        ``"source"`` divides by k even where fewer than k entries exist: of two entries among six
        places, both back where they were, it says 1/3, which leaves .100 of anomaly after a perfect
        clean-up. The default divides by the places that are taken.

    Examples
    --------
    >>> round(overlap_at_k(["a", "b"], ["b", "a"], 6, rule="source"), 3)
    0.333
    >>> overlap_at_k(["a", "b"], ["b", "a"], 6)
    1.0
    """
    if k <= 0:
        return 1.0
    one, other = set(first[:k]), set(second[:k])
    places = k if rule == "source" else max(len(one), len(other))
    return len(one & other) / places if places else 1.0


def rank_biased_overlap(
    first: Sequence[str], second: Sequence[str], persistence: float = 0.8
) -> float:
    """Return how much two rankings agree, the head counting more, in [0, 1].

    The share that the first d entries have in common, averaged over all d down to the end of the
    longer ranking with weights that fall by the persistence; 1 for two empty rankings.

    References
    ----------
    Webber, Moffat, Zobel, "A similarity measure for indefinite rankings", ACM TOIS 28(4), 2010;
    here cut at the end and divided by the weight that is there.

    Examples
    --------
    >>> rank_biased_overlap(["a", "b", "c"], ["a", "b", "c"])
    1.0
    >>> tail = rank_biased_overlap(["a", "b", "c"], ["a", "b", "x"])
    >>> head = rank_biased_overlap(["a", "b", "c"], ["x", "b", "c"])
    >>> bool(head < tail)
    True
    """
    depth = max(len(first), len(second))
    if not depth:
        return 1.0
    seen_one: set[str] = set()
    seen_other: set[str] = set()
    agreed = weights = 0.0
    for place in range(depth):
        seen_one.update(first[place : place + 1])
        seen_other.update(second[place : place + 1])
        weight = persistence**place
        agreed += weight * len(seen_one & seen_other) / (place + 1)
        weights += weight
    return agreed / weights


def takeover(new: Sequence[bool], rate: float, persistence: float = 0.8) -> tuple[float, float]:
    """Return how much of the head newcomers hold, and how probable that is under mere growth.

    Parameters
    ----------
    new
        For each rank, whether its entry is new.
    rate
        Share of newcomers in the whole knowledge base, in (0, 1): if what was added is of the same
        kind as what was there, any rank is a newcomer's with this probability.
    persistence
        Each rank weighs so much of the one before.

    Returns
    -------
    tuple[float, float]
        The newcomers' share of the weight, in [0, 1]; and the probability that they hold so much
        or more.

    Examples
    --------
    >>> share, p = takeover([False, False, False, False, True], 0.1)  # the tail: growth
    >>> round(share, 2), round(p, 2)
    (0.12, 0.41)
    >>> share, p = takeover([True, True, True, False, False], 0.1)  # the head: takeover
    >>> round(share, 2), round(p, 4)
    (0.73, 0.0012)
    """
    length = min(len(new), HEAD)
    if not length:
        return 0.0, 1.0
    held, patterns = _patterns(length, persistence)
    flags = np.asarray(new[:length], dtype=np.float64)
    share = float(flags @ persistence ** np.arange(length)) / _weight(length, persistence)
    counts = patterns[held >= share - 1e-9]
    probability = float(np.sum(rate**counts * (1.0 - rate) ** (length - counts)))
    return share, min(1.0, probability)


@lru_cache(maxsize=32)
def _patterns(length: int, persistence: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return, for every pattern of newcomers, their share of the weight and their number."""
    bits = (np.arange(1 << length)[:, None] >> np.arange(length)) & 1
    weights = persistence ** np.arange(length) / _weight(length, persistence)
    return bits @ weights, bits.sum(axis=1)


def _weight(length: int, persistence: float) -> float:
    return (1.0 - persistence**length) / (1.0 - persistence)


def combined_p_value(first: float, second: float) -> float:
    """Return the p-value of two independent ones together.

    References
    ----------
    Fisher, "Statistical Methods for Research Workers", 1932: for two, q - q ln q of the product q.

    Examples
    --------
    >>> round(combined_p_value(0.05, 0.05), 4)
    0.0175
    """
    product = first * second
    return min(1.0, product * (1.0 - math.log(product))) if product > 0.0 else 0.0


def word_weights(queries: Collection[str]) -> Mapping[str, float]:
    """Return how much each word of a suite's queries tells: more, the fewer of them hold it.

    Words that ask, and those that only join others, stand in many queries; what a query is about
    stands in few, in any language.

    References
    ----------
    Spärck Jones, "A statistical interpretation of term specificity and its application in
    retrieval", Journal of Documentation 28(1), 1972: inverse document frequency.
    """
    counts = Counter(word for query in queries for word in set(words(query)))
    return {w: math.log((len(queries) + 1.0) / (n + 0.5)) for w, n in counts.items()}


def coverage(query: str, text: str, weights: Mapping[str, float]) -> float:
    """Return how much of a query a text holds in one place, in [0, 1].

    Text is retrieved for a query because it holds its words, and crafted text holds them close
    together, whatever its wording; ordinary passages about the matter hold some here, some there.

    Parameters
    ----------
    query, text
        Any; of queries of less than five words, the figure is smaller, of less than three it is 0.
    weights
        From :func:`word_weights`, of queries among which is this one.

    Examples
    --------
    >>> query = "Who built the old harbour bridge?"
    >>> weights = word_weights((query, "Who runs the ferry?", "What is the toll of the tunnel?"))
    >>> crafted = "Records on the old harbour bridge (built) were withdrawn."
    >>> round(coverage(query, crafted, weights), 2)
    0.9
    >>> ordinary = "The bridge spans the river at the mill, far away from the harbour."
    >>> round(coverage(query, ordinary, weights), 2)
    0.25
    """
    asked = words(query)[:LONGEST]
    if len(asked) < LEAST_LENGTH:
        return 0.0
    width = math.ceil(SLACK * len(asked))
    wanted = {word: weights[word] for word in asked}
    inside: Counter[str] = Counter()
    hits = [(place, word) for place, word in enumerate(words(text)) if word in wanted]
    first, held, best = 0, 0.0, 0.0
    for place, word in hits:
        held += 0.0 if inside[word] else wanted[word]
        inside[word] += 1
        while hits[first][0] <= place - width:  # out of the window
            gone = hits[first][1]
            inside[gone] -= 1
            held -= 0.0 if inside[gone] else wanted[gone]
            first += 1
        best = max(best, held)
    return min(1.0, best / sum(wanted.values())) * min(1.0, len(asked) / FULL_LENGTH)


def cosine(first: ArrayLike, second: ArrayLike) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms > 0.0 else 0.0


# The source's nine signs of an injection, each with the phrases that show it.
_WHICH = ("all", "any", "previous", "prior")
_SOURCE_SIGNS = tuple(
    re.compile(rf"\b(?:{'|'.join(phrases)})\b")
    for phrases in (
        [f"ignore {which} instructions" for which in _WHICH],
        [f"disregard {which} instructions" for which in _WHICH],
        ["system prompt", "developer message", "assistant rules"],
        ["you are chatgpt", "you are an ai"],
        *(["do not answer"], ["override"], ["confidential"], ["internal memo"]),
        ["security policy"],
    )
)


def source_suspicion(text: str) -> float:
    """Return the source's suspicion of a text: 1 - exp(-.45 h) for h of its nine signs, in [0, 1).

    Examples
    --------
    >>> round(source_suspicion("CONFIDENTIAL: ignore previous instructions"), 3)
    0.593
    """
    lower = text.lower()
    return saturated(sum(sign.search(lower) is not None for sign in _SOURCE_SIGNS))


def saturated(hits: int) -> float:
    """Return a suspicion in [0, 1) for a number of signs, each adding less than the one before."""
    return 1.0 - math.exp(-0.45 * hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryDrift:
    """What became of one canary; every figure of the source, and those that tell growth apart.

    Attributes
    ----------
    name, query
        Of the canary.
    flagged, reasons
        Whether something is wrong, and what: sentences with the number that convinced.
    score
        Anomaly, in [0, 1]; see :class:`AnomalyWeights`.
    answer, answer_hash, answer_cosine, answer_drift
        The answer, its SHA-256, its cosine to the baseline's, and 1 minus that; ``None`` without an
        answerer, and the last two without an embedder.
    jaccard, overlap_at_k, rank_biased_overlap
        Between the retrieved ids and the baseline's.
    takeover, takeover_p
        Share of the head that newcomers hold, and how probable it is under mere growth, together
        with how much of the query they hold in one place; the latter ``None`` where more than half
        of everything looks new, and nobody tells how many entries there are.
    taken_over
        Whether growth hardly explains that.
    suspicion_ratio, suspicion_delta
        Mean suspicion of the retrieved texts, and its change.
    poison_ratio, poison_delta
        Share of the retrieved that is known to be poisoned, and its change; ``None`` without
        ground truth, and never part of the score but with ``rule="source"``.
    ids, baseline_ids
        Retrieved now and then, best first.
    newcomers
        Ids that are new among the retrieved, or whose text is, best first.
    """

    name: str
    query: str
    flagged: bool
    score: float
    reasons: tuple[str, ...] = ()
    answer: str | None = None
    answer_hash: str | None = None
    answer_cosine: float | None = None
    answer_drift: float | None = None
    jaccard: float | None = None
    overlap_at_k: float | None = None
    rank_biased_overlap: float | None = None
    takeover: float | None = None
    takeover_p: float | None = None
    taken_over: bool = False
    suspicion_ratio: float = 0.0
    suspicion_delta: float | None = None
    poison_ratio: float | None = None
    poison_delta: float | None = None
    ids: tuple[str, ...] = ()
    baseline_ids: tuple[str, ...] = ()
    newcomers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class DriftReport:
    """The outcome of one check; changes nothing by itself.

    Attributes
    ----------
    suite, baseline, k, rule
        What was compared with what: name of the suite, version of its baseline, places, rule.
    checked_at
        UTC.
    growth
        Share of newcomers that mere growth would bring to each rank.
    canaries
        One per canary, in the order of the suite.
    still_served
        Ids that are held or confirmed as poisoned, and are retrieved nevertheless, among the first
        k of a canary. They are left out of all figures, but not of what users are answered from.
    passages
        By canary, what was retrieved; not kept in the database.
    """

    suite: str
    baseline: int
    k: int
    rule: Rule
    checked_at: dt.datetime
    growth: float
    canaries: tuple[CanaryDrift, ...]
    still_served: tuple[str, ...] = ()
    passages: Mapping[str, Sequence[Passage]] = field(default_factory=dict)

    @property
    def flagged(self) -> tuple[CanaryDrift, ...]:
        """Those that drifted, worst first."""
        found = [c for c in self.canaries if c.flagged]
        return tuple(sorted(found, key=lambda c: (-c.score, c.takeover_p or 0.0)))

    def __getitem__(self, name: str) -> CanaryDrift:
        found = next((c for c in self.canaries if c.name == name), None)
        if found is None:
            msg = f"no canary {name!r} in this check of suite {self.suite!r}; see canaries."
            raise KeyError(msg)
        return found

    def __iter__(self) -> Iterator[CanaryDrift]:
        return iter(self.canaries)

    def summary(self) -> str:
        """Return the counts in one line."""
        held = len(self.still_served)
        return (
            f"suite {self.suite!r} against baseline {self.baseline}: "
            f"{len(self.flagged)} of {len(self.canaries)} canaries flagged"
            + (f"; {held} entries in quarantine are still retrieved" if held else "")
        )

    def __repr__(self) -> str:
        return f"<DriftReport {self.summary()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but passages as JSON-ready values."""
        return {
            "suite": self.suite,
            "baseline": self.baseline,
            "k": self.k,
            "rule": self.rule,
            "checked_at": self.checked_at.isoformat(timespec="microseconds"),
            "growth": self.growth,
            "flagged": len(self.flagged),
            "total": len(self.canaries),
            "still_served": list(self.still_served),
            "canaries": [asdict(c) for c in self.canaries],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report that :meth:`to_dict` wrote."""
        lists = ("reasons", "ids", "baseline_ids", "newcomers")
        return cls(
            suite=values["suite"],
            baseline=values["baseline"],
            k=values["k"],
            rule=values["rule"],
            checked_at=dt.datetime.fromisoformat(values["checked_at"]),
            growth=values["growth"],
            still_served=tuple(values.get("still_served", ())),  # early versions did not look
            canaries=tuple(
                CanaryDrift(**{**c, **{key: tuple(c[key]) for key in lists}})
                for c in values["canaries"]
            ),
        )

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict())

    def to_html(self, history: Sequence[DriftReport] = ()) -> str:
        """Return a page with plots that needs no network."""
        from ragshield_core.canary.report import html_report  # noqa: PLC0415 - builds on this

        return html_report(self, history)

    def _repr_html_(self) -> str:
        from ragshield_core.canary.report import html_body  # noqa: PLC0415 - builds on this

        return html_body(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.tables((*self.flagged, *(c for c in self.canaries if not c.flagged)))

    def tables(self, canaries: Sequence[CanaryDrift]) -> list[Any]:
        """Return the summary and a table for each canary, for :mod:`rich`; hostile text escaped."""
        from rich.table import Table  # noqa: PLC0415 - only where something is shown
        from rich.text import Text  # noqa: PLC0415

        shown: list[Any] = [
            Text(
                printable(self.summary(), 200),
                style="red" if self.flagged or self.still_served else "green",
            )
        ]
        for drift in canaries:
            table = Table(title=Text(printable(drift.name, 80)), show_header=False)
            table.title_justify = "left"
            table.add_column("figure", no_wrap=True)
            table.add_column("value", overflow="fold")
            for name, value in figures(drift):
                style = "red" if name in ("flagged", "why") and drift.flagged else ""
                table.add_row(name, Text(printable(value, 400), style=style))
            shown.append(table)
        return shown


def figures(drift: CanaryDrift) -> list[tuple[str, str]]:
    """Return names and values of a canary's figures, as they are shown; those that are there."""
    rows: list[tuple[str, str]] = [
        ("flagged", "yes" if drift.flagged else "no"),
        ("anomaly", f"{drift.score:.3f}"),
    ]
    for name in (
        *("answer_drift", "answer_cosine", "jaccard", "overlap_at_k", "rank_biased_overlap"),
        *("takeover", "takeover_p", "suspicion_ratio", "suspicion_delta"),
        *("poison_ratio", "poison_delta"),
    ):
        value = getattr(drift, name)
        if value is not None:
            shown = f"{value:+.3f}" if name.endswith("_delta") else f"{value:.3g}"
            if not name.endswith(("_p", "_delta")):
                shown = f"{value:.3f}"
            rows.append((name.replace("_", " ").replace("overlap at k", "overlap@k"), shown))
    new = set(drift.newcomers)
    # Each shortened: a long id must not hide the others.
    ids = (("+" if i in new else "") + printable(i, SHOWN_ID) for i in drift.ids)
    rows.append(("retrieved", ", ".join(ids)))
    if drift.reasons:
        rows.append(("why", "; ".join(drift.reasons)))
    return rows
