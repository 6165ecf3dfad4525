"""Traceback from drift, or from one wrong answer, to the entries to blame; no language model."""

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

# Responsibility from which an entry is a suspect: it is more likely to blame than not.
SUSPECT_AT = 0.5
# Metadata keys under which programs keep the time of ingestion. Keys of a document's own date are
# not among them, since its author claims that date.
TIME_KEYS = ("ingested_at", "indexed_at", "inserted_at", "added_at")
# Numbers from here on are milliseconds: as seconds, they lie beyond the year 5000.
MILLISECONDS = 1e11
# Rows of a table; further rows show suspects only.
SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspect:
    """An entry with its share of the blame.

    Attributes
    ----------
    entry_id, passage
        The entry's id, and the retrieved passage.
    responsibility
        In [0, 1].
    why
        One sentence with the deciding numbers, the entry's lineage and time of ingestion.
    canaries
        Names of the flagged canaries that retrieved it.
    rank
        Its best rank, from 1.
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
        """Return the decision to hold the entry, with its reason."""
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
    """Candidates for the blame, most responsible first.

    Attributes
    ----------
    candidates
        All candidates.
    subject
        The traced drift or answer, in words.
    """

    candidates: tuple[Suspect, ...]
    subject: str = ""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Candidates that are more likely to blame than not."""
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

        By default it has all suspects, and other candidates up to ten rows in all.
        """
        from rich.table import Table  # noqa: PLC0415 - only for display
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
    """Return the time of ingestion in the metadata, in UTC; None if there is none."""
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
            if when == when:  # noqa: PLR0124 - false for NaT, a missing time in data frames
                return _in_utc(when)
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _in_utc(when: dt.datetime) -> dt.datetime:
    """Return a time in UTC; a time without a zone is taken as UTC."""
    return when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when.astimezone(dt.UTC)


def _suspicious(passage: Passage, suspicion: float) -> list[str]:
    """Return the part of a sentence about a text's suspicion, if it has any."""
    said = "".join(f": {one}" for one in text_findings(passage)[:1]) if suspicion else ""
    return [f"suspicious text ({suspicion:.2f}{said})"] if suspicion else []


def _origin(passage: Passage) -> str:
    """Return an entry's lineage and time of ingestion in words, as far as known."""
    parts = [f"from {printable(passage.lineage, 60)!r}"] if passage.lineage else []
    when = ingested_at(passage)
    if when is not None:
        parts.append(f"ingested {when:%Y-%m-%d %H:%M}")
    return f" ({', '.join(parts)})" if parts else ""


# Blame of an entry that ranks before all known ones, for its rank alone.
HEAD_BLAME = 0.5
# Share of a query's words that ordinary answers repeat at most, and the blame for an echo of all.
USUAL_ECHO, ECHO_BLAME = 0.7, 0.9
# Blame of an entry that holds all new words of a changed answer.
ANSWER_BLAME = 0.5
# Largest blame for one cause: no cause alone is certain.
MOST = 0.99
# Smaller blame is no reason worth a sentence: most passages hold an answer's "the".
TOLD = 0.25
# Sentences for causes without a number.
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
    """Return the newcomers among the passages of flagged canaries, most responsible first.

    ``passages`` are those in the compared places of each canary and those that would move up. Each
    newcomer is left out in turn, with those that say much the same, and the next passages move up.
    It is to blame for the share of the takeover that is gone then; for a rank before all known
    passages, its own or a companion's; for an expected entry that comes back; for a forbidden
    string; for repeating the query; for suspicious text; and for words of the changed answer. These
    combine as independent causes (noisy or), and an entry's gravest canary counts. The first two
    causes are left out if the canary is flagged for something else, such as an expected entry that
    somebody deleted. Unchanged entries of the baseline are never to blame.
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
    # Words of a changed answer that neither the query nor the old answer holds.
    said: set[str] = set()
    if drift.answer is not None and before.answer is not None:
        said = {*words(drift.answer)} - {*words(drift.query)} - {*words(before.answer)}
    # Whether newcomers, and not only a missing entry or answer, caused the flag.
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
        # Passages that would be retrieved without the group, and the takeover that is gone.
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


# Share of a query that ordinary retrieved texts repeat at most.
ORDINARY_ECHO = 0.4
# Log odds of an entry's blame for a wrong answer: relevance (in robust standard deviations above
# the other retrieved entries), the answer word for word (times the log of its rarity among them),
# the share of its words, the share of the query's words, the echo of the query, likeness to other
# retrieved entries (in robust standard deviations), and suspicious text. Rounded from a logistic
# regression on PoisonedRAG's NQ texts, where five of fifty state the answer; the priors, chosen on
# its HotpotQA texts too, leave one or two clean entries in a hundred above one half.
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
# Prior if the rank stands for relevance, which is at most 2 then, and likeness may be unknown.
PRIOR_BY_RANK = -4.5
# Largest relevance of a text that holds less than half of the wrong answer's words.
HALF, SILENT_RELEVANCE = 0.5, 2.0
# Passages below the given ones, down to this depth, are taken not to state the answer.
USUAL_DEPTH = 50
# Numbers in words.
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: str(number) for number, word in enumerate(_NUMBERS.split())}
# Answers that texts imply without stating them.
_VERDICTS = (
    "yes no true false ja nein oui non sí si sì não sim da nee 是 否 不是 はい いいえ 예 아니요"
)
VERDICTS = frozenset(words(_VERDICTS))
# Largest log odds of an entry that was there when the answer was still right.
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
    """Return the retrieved entries to blame for a wrong answer, most responsible first.

    Parameters
    ----------
    query, wrong_answer
        As reported.
    passages
        Retrieved for the query, best first; some dozens, so that clean ones show the usual values.
    embedder
        The model, of any kind. If it is given and all passages carry their vectors, relevance is
        the similarity to query and answer together; otherwise the rank stands for it.
    suspicion
        Function from a passage to the suspicion of its text, in [0, 1].
    since
        A time when the answer was still right: entries whose metadata have an earlier time of
        ingestion (:data:`~ragshield_core.tools.canary.traceback.TIME_KEYS`) are not to blame. Use
        it only if your own pipeline writes the time, since an attacker could claim any.

    Notes
    -----
    A text is to blame if it causes the answer: it is more relevant to question and answer together
    than the other retrieved texts (in robust standard deviations), states the answer, which most
    others do not, and holds the words of the question. Each sign adds to the log odds, see
    :data:`ODDS`; the responsibility is the probability. Texts with the right answer are as relevant
    to the question, so relevance and likeness count little for a text with less than half of the
    wrong answer's words, unless that is a mere yes or no: the echo of the question has to tell.
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
        silent[:] = False  # texts imply such an answer without stating it
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
    """Return, per passage, the sign that it states the answer, and its shares of the words.

    Words and answers weigh more if few passages hold them: a text that states the same as half of
    the others hardly causes the answer.
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
    """Return the distance of each value above the median, in robust standard deviations."""
    median = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - median))) + 0.02
    return np.asarray(np.clip((values - median) / spread, low, high), dtype=np.float64)


def _by_rank(n: int) -> NDArray[np.float64]:
    """Return relevance by rank alone, from +2 for the first to -1 for the last."""
    return np.asarray(2.0 - 3.0 * (np.arange(n) / max(1, n - 1)) ** 0.5, dtype=np.float64)
