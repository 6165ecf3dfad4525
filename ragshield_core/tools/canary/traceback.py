"""From drift, or from one wrong answer, to the entries that are to blame; no language model."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.findings import Decision, Finding, Verdict, printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS
from ragshield_core.tools.canary.figures import (
    PERSISTENCE,
    alike,
    echoes_of,
    matrix,
    newcomers_of,
    says,
    text_findings,
    words,
)
from ragshield_core.tools.canary.knowledge_base import Embedder, Passage

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    from ragshield_core.tools.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
    from ragshield_core.tools.canary.storage import Baseline, Observation
    from ragshield_core.tools.canary.suite import Canary

# Who is more likely to be to blame than not is a suspect.
SUSPECT_AT = 0.5
# Metadata keys under which programs keep the time of ingestion. Not those of a document's own date,
# which is a claim of whoever wrote it.
TIME_KEYS = ("ingested_at", "indexed_at", "inserted_at", "added_at")
# Numbers from here on are milliseconds: as seconds, they lie beyond the year 5000.
MILLISECONDS = 1e11
# Rows of a table; beyond, there are suspects only.
SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspect:
    """An entry, and how much it is to blame.

    Attributes
    ----------
    entry_id, passage
        Which, and what was retrieved.
    responsibility
        In [0, 1].
    why
        One sentence with the numbers that convinced, the entry's lineage and time of ingestion.
    canaries
        Names of the flagged canaries for which it was retrieved.
    rank
        Best one, from 1.
    related_ids
        Entries that say much the same.
    """

    entry_id: str
    passage: Passage
    responsibility: float
    why: str
    canaries: tuple[str, ...] = ()
    rank: int = 1
    related_ids: tuple[str, ...] = ()

    def decision(self) -> Decision:
        """Return the decision to hold it, with why."""
        finding = Finding(
            detector="canary_traceback",
            entry_id=self.entry_id,
            score=self.responsibility,
            threshold=SUSPECT_AT,
            p_value=None,
            evidence=self.why,
            related_ids=self.related_ids,
            taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        )
        return Decision(entry_id=self.entry_id, verdict=Verdict.QUARANTINE, findings=(finding,))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the text as JSON-ready values."""
        when = ingested_at(self.passage)
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "passage"}
        return values | {
            "lineage": self.passage.lineage,
            "ingested_at": None if when is None else when.isoformat(),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Traceback:
    """Entries that were looked at, most responsible first.

    Attributes
    ----------
    candidates
        All of them.
    subject
        What was traced.
    """

    candidates: tuple[Suspect, ...]
    subject: str = ""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those that are more likely to blame than not."""
        return tuple(s for s in self.candidates if s.responsibility >= SUSPECT_AT)

    def summary(self) -> str:
        """Return the counts in one line."""
        return f"{self.subject}: {len(self.suspects)} suspects of {len(self.candidates)} candidates"

    def __repr__(self) -> str:
        return f"<Traceback {self.summary()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but texts as JSON-ready values."""
        return {
            "subject": self.subject,
            "suspects": [s.entry_id for s in self.suspects],
            "candidates": [s.to_dict() for s in self.candidates],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()

    def table(self, limit: int | None = None) -> Table | Text:
        """Return a table of candidates for :mod:`rich`, most responsible first, text escaped.

        By default it has all suspects, and of other candidates as many as make ten.
        """
        from rich.table import Table  # noqa: PLC0415 - only where something is shown
        from rich.text import Text  # noqa: PLC0415

        title = Text(printable(self.summary(), 200))
        if not self.candidates:
            return title
        table = Table(title=title)
        table.add_column("entry", overflow="fold")
        table.add_column("blame", justify="right")
        table.add_column("rank", justify="right")
        table.add_column("why", overflow="fold")
        table.add_column("text", overflow="fold")
        suspects = set(self.suspects)
        for suspect in self.candidates[:limit]:
            if limit is None and suspect not in suspects and len(table.rows) >= SHOWN:
                continue
            row = (
                suspect.entry_id,
                f"{suspect.responsibility:.3f}",
                str(suspect.rank),
                suspect.why,
                printable(suspect.passage.text, 80),
            )
            style = "red" if suspect in suspects else ""
            table.add_row(*(Text(printable(cell, 500), style=style) for cell in row))
        left = len(self.candidates) - len(table.rows)
        if left:
            table.caption = f"and {left} more: --limit, or --output suspects.json"
        return table


def ingested_at(passage: Passage) -> dt.datetime | None:
    """Return the time of ingestion that the metadata names, in UTC; None if it names none."""
    for key in TIME_KEYS:
        value = passage.metadata.get(key)
        try:
            if isinstance(value, dt.datetime):
                when = value
            elif isinstance(value, str):
                when = dt.datetime.fromisoformat(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                seconds = value / 1000 if abs(value) >= MILLISECONDS else value
                when = dt.datetime.fromtimestamp(seconds, dt.UTC)
            else:
                continue
            if when == when:  # noqa: PLR0124 - how data frames say that there is none: NaT
                return _in_utc(when)
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _in_utc(when: dt.datetime) -> dt.datetime:
    """Return a time in UTC; one without a zone is taken to be."""
    return when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when.astimezone(dt.UTC)


def _suspicious(passage: Passage, suspicion: float) -> list[str]:
    """Return the part of a sentence that says how suspicious a text is, if it is."""
    said = "".join(f": {one}" for one in text_findings(passage)[:1]) if suspicion else ""
    return [f"suspicious text ({suspicion:.2f}{said})"] if suspicion else []


def _origin(passage: Passage) -> str:
    """Return where an entry comes from and when, as its metadata says."""
    parts = [f"from {printable(passage.lineage, 60)!r}"] if passage.lineage else []
    when = ingested_at(passage)
    if when is not None:
        parts.append(f"ingested {when:%Y-%m-%d %H:%M}")
    return f" ({', '.join(parts)})" if parts else ""


# What an entry that stands before all that was known is to blame for by that alone.
HEAD_BLAME = 0.5
# Up to this share, ordinary answers repeat the words of a query; an echo of all of them is to blame
# for so much.
USUAL_ECHO, ECHO_BLAME = 0.7, 0.9
# What an entry that says all that is new in an answer is to blame for by that.
ANSWER_BLAME = 0.5
# No cause alone is certain.
MOST = 0.99
# Less than this is no reason worth a sentence: an answer's "the" stands in most passages.
TOLD = 0.25
# How causes are told that have no number.
SENTENCES = {
    "head": "stands before all that was known",
    "expected": "an expected entry is back without it",
    "forbidden": "holds a forbidden string",
    "answer": "says what the changed answer says",
}


def trace_drift(
    report: DriftReport,
    passages: Mapping[str, Sequence[Passage]],
    then: Baseline,
    canaries: Sequence[Canary],
    suspicion: Callable[[Passage], float],
    *,
    weights: AnomalyWeights,
) -> Traceback:
    """Return the newcomers among what flagged canaries retrieve, most responsible first.

    ``passages`` are what each of them retrieved: the places that are compared, and what would move
    up into them. An entry is left out of it, together with those that say much the same, and the
    next ones move up. It is to blame for the share of the newcomers' takeover that is gone then;
    for standing before all that was known, alone or through such a companion; for an expected entry
    that is back then; for a forbidden string; for repeating the query; for suspicious text; and for
    saying what a changed answer says. These join as independent causes do (noisy or), and over the
    canaries the gravest counts. The first two do not count where the canary is flagged for
    something else, such as an expected entry that somebody deleted. What was there at the baseline,
    unchanged, is to blame for nothing.
    """
    # Names of the canaries, and the ranks, of each entry among the first k places.
    found: dict[str, list[tuple[str, int]]] = {}
    for name, listed in passages.items():
        for rank, passage in enumerate(listed[: report.k], start=1):
            found.setdefault(passage.id, []).append((name, rank))
    gravest: dict[str, Suspect] = {}
    for canary in canaries:
        before = then.observations.get(canary.name)
        if before is not None:
            listed = passages[canary.name]
            for blamed in _blamed(
                canary, report[canary.name], before, listed, report.k, suspicion, weights
            ):
                known = gravest.get(blamed.entry_id)
                if known is None or blamed.responsibility > known.responsibility:
                    gravest[blamed.entry_id] = blamed
    suspects = [
        replace(
            blamed,
            why=blamed.why + _origin(blamed.passage),
            canaries=tuple(name for name, _ in found[entry_id]),
            rank=min(rank for _, rank in found[entry_id]),
        )
        for entry_id, blamed in gravest.items()
    ]
    suspects.sort(key=lambda s: (-s.responsibility, -len(s.canaries), s.rank))
    return Traceback(candidates=tuple(suspects), subject=f"drift of suite {report.suite!r}")


def _blamed(
    canary: Canary,
    drift: CanaryDrift,
    before: Observation,
    passages: Sequence[Passage],
    k: int,
    suspicion: Callable[[Passage], float],
    weights: AnomalyWeights,
) -> Iterator[Suspect]:
    """Yield each newcomer among the first k places of a flagged canary, with its blame."""
    fresh = newcomers_of(passages, before)
    rows = [row for row, is_new in enumerate(fresh) if is_new]
    new = [passages[row] for row in rows]
    same = alike(new, [p for p, is_new in zip(passages, fresh, strict=True) if not is_new])
    echo = echoes_of(drift.query, passages)[rows]
    # The words that a changed answer holds, and neither query nor old answer.
    said: set[str] = set()
    if drift.answer is not None and before.answer is not None:
        said = {*words(drift.answer)} - {*words(drift.query)} - {*words(before.answer)}
    # Whether it is flagged for what newcomers do, not for what is missing.
    taken_over = (
        bool(said)
        or drift.taken_over
        or (drift.takeover_p is not None and drift.takeover_p <= weights.takeover_p)
        or drift.score >= weights.threshold
        or (drift.answer_drift or 0.0) >= weights.answer_takeover
    )
    first_known = fresh.index(False) if False in fresh else len(fresh)
    displaced = {*canary.expected_entries} & {*before.ids} - {p.id for p in passages[:k]}
    held = _held(fresh[:k])
    for number, passage in enumerate(new):
        if rows[number] >= k:
            break
        group = np.flatnonzero(same[number]).tolist()
        out = {rows[member] for member in group}
        # What would be retrieved without them, and which of it is new.
        left = [row for row in range(len(passages)) if row not in out][:k]
        gone = held - _held([fresh[row] for row in left])
        suspicious = suspicion(passage)
        repeated = (float(echo[number]) - USUAL_ECHO) / (1 - USUAL_ECHO)
        causes = {
            "drop": taken_over * max(0.0, gone) / held,
            "head": taken_over * HEAD_BLAME * (min(out) < first_known),
            "expected": float(bool(displaced & {passages[row].id for row in left})),
            "forbidden": float(any(says(passage.text, f) for f in canary.forbidden)),
            "echo": ECHO_BLAME * max(0.0, repeated),
            "suspicion": suspicious,
            "answer": ANSWER_BLAME * len(said & {*words(passage.text)}) / max(1, len(said)),
        }
        parts = [f"new at rank {rows[number] + 1}"]
        if taken_over:
            others = len(group) - 1
            companions = f" and {others} that say the same" if others else ""
            parts.append(f"without it{companions} {causes['drop']:.0%} of the takeover is gone")
        parts += [sentence for cause, sentence in SENTENCES.items() if causes[cause] >= TOLD]
        if causes["echo"]:
            parts.append(f"repeats {echo[number]:.0%} of the query")
        yield Suspect(
            entry_id=passage.id,
            passage=passage,
            responsibility=1.0 - math.prod(1.0 - min(cause, MOST) for cause in causes.values()),
            why=", ".join([*parts, *_suspicious(passage, suspicious)]),
            related_ids=tuple(new[member].id for member in group if member != number),
        )


def _held(fresh: Sequence[bool]) -> float:
    """Return the weight of the ranks that newcomers hold."""
    return sum(PERSISTENCE**row for row, is_new in enumerate(fresh) if is_new)


# Most retrieved texts repeat so much of it.
ORDINARY_ECHO = 0.4
# Of a wrong answer's entries, log odds: relevance (in robust standard deviations above the other
# retrieved entries), the answer word for word (per log of how rarely the others state it), the
# share of its words, the share of the query's words, the echo of the query, likeness to other
# retrieved entries (in standard deviations), and suspicious text. Rounded from a logistic
# regression on PoisonedRAG's NQ texts, where five of fifty state the answer; the priors, chosen by
# a look at its HotpotQA texts too, leave one or two clean entries in a hundred above one half.
ODDS = {
    "relevance": 2.1,
    "answer": 1.35,
    "answer_words": 1.0,
    "query_words": 1.0,
    "echo": 3.5,
    "likeness": 0.7,
    "suspicion": 2.0,
}
PRIOR = -6.5
# Where the rank stands for relevance, which goes up to 2 then, and likeness may not be known.
PRIOR_BY_RANK = -4.5
# A text that holds less than half of the wrong answer's words is no more than so relevant.
HALF, SILENT_RELEVANCE = 0.5, 2.0
# Where fewer passages are given, the next ones are taken not to state the answer.
USUAL_DEPTH = 50
# Numbers that texts spell out.
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: str(number) for number, word in enumerate(_NUMBERS.split())}
# Answers that texts lead to without stating them.
_VERDICTS = (
    "yes no true false ja nein oui non sí si sì não sim da nee 是 否 不是 はい いいえ 예 아니요"
)
VERDICTS = frozenset(words(_VERDICTS))
# An entry that was there when the answer was still right has no more, whatever else it shows.
OLDER = -5.0


def trace_answer(
    query: str,
    wrong_answer: str,
    passages: Sequence[Passage],
    *,
    embedder: Any = None,
    suspicion: Callable[[Passage], float] = lambda _passage: 0.0,
    since: dt.datetime | None = None,
) -> Traceback:
    """Return which retrieved entries are to blame for a wrong answer, most responsible first.

    Parameters
    ----------
    query, wrong_answer
        As reported.
    passages
        Retrieved for the query, best first; some dozens, so that the clean ones show what is usual.
    embedder
        The model, of any kind. With it, and with passages that carry their vectors, relevance is
        the similarity to query and answer together; without, the rank stands for it.
    suspicion
        Of a text, in [0, 1].
    since
        When the answer was still right: entries whose metadata name an earlier time of ingestion
        (:data:`~ragshield_core.tools.canary.traceback.TIME_KEYS`) are not to blame. Only where your
        own pipeline writes it: who brings an entry could claim what he likes.

    Notes
    -----
    A text is to blame if it makes the answer: it is more relevant to the question with this answer
    than the other retrieved ones (in robust standard deviations), states the answer, which most
    others do not, and holds the words of the question. Each adds to the log odds, see :data:`ODDS`;
    the responsibility is the probability. The right answer's texts are as relevant to the question:
    what holds no word of the wrong answer is given little for relevance and likeness, unless the
    answer is a mere yes or no, and is found by its echo of the question alone.
    """
    if not passages:
        return Traceback(candidates=(), subject="one wrong answer")
    vectors = matrix(passages)
    by_rank = vectors is None or embedder is None
    relevance, likeness = _by_rank(len(passages)), np.zeros(len(passages))
    if vectors is not None:
        others = np.sort(vectors @ vectors.T, axis=1)[:, ::-1][:, 1:5]
        likeness = _standing(others.mean(axis=1), -3.0, 6.0) if others.size else likeness
        if embedder is not None:
            statement = Embedder.of(embedder).queries([f"{query} {wrong_answer}"])[0]
            relevance = _standing(vectors @ statement, -3.0, 8.0)
    shared, echo = _word_signs(query, wrong_answer, passages), echoes_of(query, passages)
    silent = shared["answer_words"] < HALF
    if set(words(wrong_answer)) <= VERDICTS:
        silent[:] = False  # no text can be asked to state it
    most = SILENT_RELEVANCE / 2 if by_rank else SILENT_RELEVANCE
    signs = {
        "relevance": np.where(silent, np.minimum(relevance, most), relevance),
        **shared,
        "echo": np.maximum(0.0, (echo - ORDINARY_ECHO) / (1.0 - ORDINARY_ECHO)),
        "likeness": np.where(silent, np.minimum(likeness, 1.0), likeness),
        "suspicion": np.array([suspicion(passage) for passage in passages]),
    }
    odds = np.full(len(passages), PRIOR_BY_RANK if by_rank else PRIOR)
    for name, values in signs.items():
        odds += ODDS[name] * values
    older = np.zeros(len(passages), dtype=np.bool_)
    if since is not None:
        times = map(ingested_at, passages)
        older[:] = [when is not None and when < _in_utc(since) for when in times]
    odds = np.where(older, np.minimum(odds, OLDER), odds)
    same = alike(passages, passages)
    suspects = []
    for row, passage in enumerate(passages):
        better = "better" if relevance[row] > 0 else "no better"
        parts = [f"rank {row + 1}", f"fits {better} than the others ({relevance[row]:+.1f} sd)"]
        stated = float(signs["answer_words"][row])
        parts.append(
            "states the wrong answer"
            if signs["answer"][row]
            else f"holds {stated:.0%} of the wrong answer's words"
        )
        parts.append(f"repeats {echo[row]:.0%} of the query")
        parts += _suspicious(passage, float(signs["suspicion"][row]))
        if older[row]:
            parts.append("was there when the answer was right")
        suspects.append(
            Suspect(
                entry_id=passage.id,
                passage=passage,
                responsibility=float(1.0 / (1.0 + np.exp(-odds[row]))),
                why=", ".join(parts) + _origin(passage),
                rank=row + 1,
                related_ids=tuple(
                    passages[n].id for n in np.flatnonzero(same[row]).tolist() if n != row
                ),
            )
        )
    suspects.sort(key=lambda s: (-s.responsibility, s.rank))
    return Traceback(candidates=tuple(suspects), subject="one wrong answer")


def _word_signs(
    query: str, answer: str, passages: Sequence[Passage]
) -> dict[str, NDArray[np.float64]]:
    """Return, per passage, how much it says that it states the answer, and shares of words.

    What few of the passages hold weighs more, words as well as the answer: a text that states what
    half of the others state is hardly the one that makes it.
    """
    listed = [_terms(passage.text) for passage in passages]
    sets = [set(each) for each in listed]
    counts = Counter(word for each in sets for word in each)
    n = len(passages)

    def shares(wanted: Sequence[str]) -> NDArray[np.float64]:
        weights = {w: max(math.log((n + 1) / (counts[w] + 0.5)), 0.05) for w in wanted}
        whole = sum(weights.values())
        if not whole:
            return np.zeros(n)
        held = [sum(weight for w, weight in weights.items() if w in each) for each in sets]
        return np.array(held) / whole

    said = _terms(answer)
    phrase = f" {' '.join(said)} "
    stated = np.array([bool(said) and phrase in f" {' '.join(each)} " for each in listed])
    rarity = math.log((max(n, USUAL_DEPTH) + 1) / (np.count_nonzero(stated) + 0.5))
    return {
        "answer": stated * rarity,
        "answer_words": shares(said),
        "query_words": shares(_terms(query)),
    }


def _terms(text: str) -> list[str]:
    """Return the words of a text, numbers as digits."""
    return [NUMBERS.get(word, word) for word in words(text)]


def _standing(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return how many robust standard deviations each value is above the median."""
    median = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - median))) + 0.02
    return np.asarray(np.clip((values - median) / spread, low, high), dtype=np.float64)


def _by_rank(n: int) -> NDArray[np.float64]:
    """Return a relevance by rank alone, from +2 for the first to -1 for the last."""
    return np.asarray(2.0 - 3.0 * (np.arange(n) / max(1, n - 1)) ** 0.5, dtype=np.float64)
