"""From drift, or from one wrong answer, to the entries that are to blame; no language model."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.canary.retrievers import Embedder, Passage, Vectors
from ragshield_core.detectors.query_echo import QueryEchoDetector
from ragshield_core.detectors.retrieved import RetrievedSet
from ragshield_core.entries import Batch
from ragshield_core.findings import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from ragshield_core.canary.drift import DriftReport
    from ragshield_core.canary.storage import Observation

# Who is more likely to be to blame than not is a suspect.
SUSPECT_AT = 0.5
# Entries as close to each other as this say much the same: they are left out together. Texts made
# for one question are; chunks of one document, as a rule, are less.
SAME = 0.7
# What an entry that stands before all that was known is to blame for by that alone.
HEAD_BLAME = 0.5
# Up to this share, ordinary answers repeat the words of a query.
USUAL_ECHO = 0.7
# Most retrieved texts repeat so much of it.
ORDINARY_ECHO = 0.4
# Metadata keys under which programs keep the time of ingestion.
TIME_KEYS = ("ingested_at", "created_at", "added_at", "timestamp", "date")
# Of a wrong answer's entries, log odds: relevance (in robust standard deviations above the other
# retrieved entries), the answer word for word, the share of its words, the share of the query's
# words, the echo of the query, likeness to other retrieved entries (in standard deviations), and
# suspicious text. Rounded from a logistic regression on PoisonedRAG's NQ texts; the priors, chosen
# by a look at its HotpotQA texts too, leave about one clean entry in a hundred above one half.
ODDS = {
    "relevance": 2.1,
    "answer": 3.0,
    "answer_words": 1.0,
    "query_words": 1.0,
    "echo": 3.5,
    "likeness": 0.7,
    "suspicion": 2.0,
}
PRIOR = -7.5
# Where the rank stands for relevance, which goes up to 2 then, and likeness may not be known.
PRIOR_BY_RANK = -5.0
# A text that holds less than half of the wrong answer's words is no more than so relevant.
HALF, SILENT_RELEVANCE = 0.5, 2.5
# Answers that texts lead to without stating them.
_VERDICTS = "yes no true false ja nein oui non sí si sì não sim da nee 是 否"
VERDICTS = frozenset(_VERDICTS.split())
# An entry that was there when the answer was still right.
OLDER = -8.0
# Characters of a text that are looked at.
MAX_CHARACTERS = 16_000

_WORD = re.compile(r"\w+")


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
        One sentence with the numbers that convinced.
    canaries
        Names of the flagged canaries for which it was retrieved.
    rank
        Best one, from 1.
    rank_score
        The source's: .55 for each appearance, and .45 divided by its rank.
    related_ids
        Entries that say much the same.
    """

    entry_id: str
    passage: Passage
    responsibility: float
    why: str
    canaries: tuple[str, ...] = ()
    rank: int = 1
    rank_score: float = 0.0
    related_ids: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the text as JSON-ready values."""
        return {
            "entry_id": self.entry_id,
            "responsibility": self.responsibility,
            "why": self.why,
            "canaries": list(self.canaries),
            "rank": self.rank,
            "rank_score": self.rank_score,
            "related_ids": list(self.related_ids),
            "lineage": self.passage.lineage,
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
    all_are_suspects: bool = field(default=False, repr=False)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those that are more likely to blame than not; by the source's rule, all of them."""
        if self.all_are_suspects:
            return self.candidates
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
        from rich.table import Table  # noqa: PLC0415 - only where something is shown
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=Text(printable(self.summary(), 200)))
        table.add_column("entry", overflow="fold")
        table.add_column("blame", justify="right")
        table.add_column("rank", justify="right")
        table.add_column("why", overflow="fold")
        table.add_column("text", overflow="fold")
        suspects = set(self.suspects)
        for suspect in self.candidates:
            if suspect not in suspects and len(table.rows) >= 10:  # noqa: PLR2004 - a screenful
                continue
            row = (
                suspect.entry_id,
                f"{suspect.responsibility:.3f}",
                str(suspect.rank),
                suspect.why,
                printable(suspect.passage.text, 80),
            )
            style = "red" if suspect in suspects else ""
            table.add_row(*(Text(printable(cell), style=style) for cell in row))
        yield table


def newcomers_of(passages: Sequence[Passage], before: Observation) -> list[bool]:
    """Return, per passage, whether it was not there at the baseline, or had another text.

    What stood just below the baseline's top k, and moved up because others left, is not new.
    """
    known = dict(zip(before.ids, before.revisions, strict=True)) | dict(before.below)
    return [known.get(passage.id) != passage.revision for passage in passages]


def trace_drift_as_source(
    report: DriftReport, passages: Mapping[str, Sequence[Passage]], top_n: int = 10
) -> Traceback:
    """Return everything retrieved for flagged canaries, by appearances and rank: the source's rule.

    The responsibility is the score as a share of the highest one; all are suspects.
    """
    found = _appearances(passages)
    highest = max((score for *_, score in found.values()), default=1.0)
    suspects = [
        Suspect(
            entry_id=entry_id,
            passage=passage,
            responsibility=score / highest,
            why=f"retrieved for {len(names)} flagged canaries, rank score {score:.3f}",
            canaries=tuple(names),
            rank=rank,
            rank_score=score,
        )
        for entry_id, (passage, names, rank, score) in found.items()
    ]
    suspects.sort(key=lambda s: -s.rank_score)
    return Traceback(
        candidates=tuple(suspects[:top_n]),
        subject=f"drift of suite {report.suite!r} (source's rule)",
        all_are_suspects=True,
    )


def trace_drift(
    report: DriftReport,
    passages: Mapping[str, Sequence[Passage]],
    observations: Mapping[str, Observation],
    suspicion: Callable[[Passage], float],
    persistence: float = 0.8,
    top_n: int | None = None,
) -> Traceback:
    """Return the newcomers among what flagged canaries retrieve, most responsible first.

    Parameters
    ----------
    report
        Of the check.
    passages
        By flagged canary, what was retrieved.
    observations
        By canary, the baseline.
    suspicion
        Of a text, in [0, 1].
    persistence
        Each rank weighs so much of the one before.
    top_n
        How many at most.

    Notes
    -----
    An entry is to blame, per canary, for the share of the head that newcomers hold no more once it
    and those that say much the same are left out; for standing before all that was known, alone or
    through such a companion; for repeating the query; for suspicious text; and for saying what a
    changed answer says. These join as independent causes do (noisy or), and over the canaries the
    gravest counts. What was there at the baseline, unchanged, is to blame for nothing.
    """
    found = _appearances(passages)
    blame: dict[str, tuple[float, str, tuple[str, ...]]] = {}
    for name, listed in passages.items():
        before, drift = observations.get(name), report[name]
        if before is None:
            continue
        for entry_id, verdict in _blame(
            drift.query, drift.answer, before, listed, suspicion, persistence
        ).items():
            if entry_id not in blame or verdict[0] > blame[entry_id][0]:
                blame[entry_id] = verdict
    suspects = []
    for entry_id, (responsibility, why, related) in blame.items():
        passage, names, rank, score = found[entry_id]
        suspects.append(
            Suspect(
                entry_id=entry_id,
                passage=passage,
                responsibility=responsibility,
                why=why + _origin(passage),
                canaries=tuple(names),
                rank=rank,
                rank_score=score,
                related_ids=related,
            )
        )
    suspects.sort(key=lambda s: (-s.responsibility, -s.rank_score))
    return Traceback(candidates=tuple(suspects[:top_n]), subject=f"drift of suite {report.suite!r}")


def _appearances(
    passages: Mapping[str, Sequence[Passage]],
) -> dict[str, tuple[Passage, list[str], int, float]]:
    """Return each entry, where it was retrieved, its best rank, and the source's score."""
    found: dict[str, tuple[Passage, list[str], int, float]] = {}
    for name, listed in passages.items():
        for rank, passage in enumerate(listed, start=1):
            first, names, best, score = found.get(passage.id, (passage, [], rank, 0.0))
            score += 0.55 + 0.45 / (rank + 1e-6)
            found[passage.id] = (first, [*names, name], min(best, rank), score)
    return found


def _blame(
    query: str,
    answer: str | None,
    before: Observation,
    passages: Sequence[Passage],
    suspicion: Callable[[Passage], float],
    persistence: float,
) -> dict[str, tuple[float, str, tuple[str, ...]]]:
    """Return responsibility, reason and companions of each newcomer of one canary."""
    fresh = newcomers_of(passages, before)
    rows = [row for row, is_new in enumerate(fresh) if is_new]
    if not rows:
        return {}
    new = [passages[row] for row in rows]
    alike = _alike(new)
    first_known = fresh.index(False) if False in fresh else len(fresh)
    echo = echoes_of(query, new)
    total = _held(fresh, persistence)
    changed = answer is not None and before.answer is not None and answer != before.answer
    said = set(_words(answer or "")) - set(_words(query)) - set(_words(before.answer or ""))
    verdicts = {}
    for number, passage in enumerate(new):
        group = np.flatnonzero(alike[number])
        out = {rows[member] for member in group.tolist()}
        left = [is_new for row, is_new in enumerate(fresh) if row not in out]
        drop = max(0.0, total - _held(left, persistence)) / total
        head = min(out) < first_known
        causes = {
            "drop": drop,
            "head": HEAD_BLAME * head,
            "echo": max(0.0, float(echo[number]) - USUAL_ECHO) / (1.0 - USUAL_ECHO) * 0.9,
            "suspicion": suspicion(passage),
            "answer": 0.0,
        }
        if changed and said:
            causes["answer"] = 0.5 * len(said & set(_words(passage.text))) / len(said)
        responsibility = 1.0 - math.prod(1.0 - min(cause, 0.99) for cause in causes.values())
        parts = [
            f"new at rank {rows[number] + 1}",
            f"{drop:.0%} of the takeover is gone without it{_and_companions(len(group) - 1)}",
        ]
        if head:
            parts.append("stands before all that was known")
        if causes["echo"]:
            parts.append(f"repeats {echo[number]:.0%} of the query")
        if causes["suspicion"]:
            parts.append(f"suspicious text ({causes['suspicion']:.2f})")
        if causes["answer"]:
            parts.append("says what the changed answer says")
        related = tuple(new[member].id for member in group.tolist() if member != number)
        verdicts[passage.id] = (responsibility, ", ".join(parts), related)
    return verdicts


def _and_companions(n: int) -> str:
    return f" and {n} that say the same" if n else ""


def _held(fresh: Sequence[bool], persistence: float) -> float:
    """Return the weight of the ranks that newcomers hold."""
    return sum(persistence**row for row, is_new in enumerate(fresh) if is_new)


def trace_answer(
    query: str,
    wrong_answer: str,
    passages: Sequence[Passage],
    *,
    embedder: Embedder | None = None,
    suspicion: Callable[[Passage], float] | None = None,
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
        With it, and with passages that carry their vectors, relevance is the similarity to query
        and answer together; without, the rank stands for it.
    suspicion
        Of a text, in [0, 1].
    since
        When the answer was still right.

    Notes
    -----
    A text is to blame if it makes the answer: it is more relevant to the question with this answer
    than the other retrieved ones (in robust standard deviations), states the answer, and holds the
    words of the question. Each adds to the log odds, see :data:`ODDS`; the responsibility is the
    probability. The right answer's texts are as relevant to the question: what holds no word of
    the wrong answer is given little for relevance and likeness, unless the answer is a mere yes or
    no, and is found by its echo of the question alone.
    """
    if not passages:
        return Traceback(candidates=(), subject="one wrong answer")
    vectors = _matrix(passages)
    by_rank = vectors is None or embedder is None
    relevance, likeness = _by_rank(len(passages)), np.zeros(len(passages))
    if vectors is not None:
        others = np.sort(vectors @ vectors.T, axis=1)[:, ::-1][:, 1:5]
        likeness = _standing(others.mean(axis=1), -3.0, 6.0) if others.size else likeness
        if embedder is not None:
            statement = embedder.queries([f"{query} {wrong_answer}"])[0]
            relevance = _standing(vectors @ statement, -3.0, 8.0)
    words, echo = _word_signs(query, wrong_answer, passages), echoes_of(query, passages)
    silent = words["answer_words"] < HALF
    if set(_words(wrong_answer)) <= VERDICTS:
        silent[:] = False  # no text can be asked to state it
    most = SILENT_RELEVANCE / 2 if by_rank else SILENT_RELEVANCE
    signs = {
        "relevance": np.where(silent, np.minimum(relevance, most), relevance),
        **words,
        "echo": np.maximum(0.0, (echo - ORDINARY_ECHO) / (1.0 - ORDINARY_ECHO)),
        "likeness": np.where(silent, np.minimum(likeness, 1.0), likeness),
        "suspicion": np.array([suspicion(p) if suspicion else 0.0 for p in passages]),
    }
    odds = np.full(len(passages), PRIOR_BY_RANK if by_rank else PRIOR)
    for name, values in signs.items():
        odds += ODDS[name] * values
    older = np.array([_is_older(p, since) for p in passages])
    odds += OLDER * older
    alike = _alike(passages)
    suspects = []
    for row, passage in enumerate(passages):
        parts = [f"rank {row + 1}", f"relevance {relevance[row]:+.1f} sd"]
        stated = float(signs["answer_words"][row])
        parts.append(
            "states the wrong answer"
            if signs["answer"][row]
            else f"holds {stated:.0%} of the wrong answer's words"
        )
        parts.append(f"repeats {echo[row]:.0%} of the query")
        if signs["suspicion"][row]:
            parts.append(f"suspicious text ({signs['suspicion'][row]:.2f})")
        if older[row]:
            parts.append("was there when the answer was right")
        suspects.append(
            Suspect(
                entry_id=passage.id,
                passage=passage,
                responsibility=float(1.0 / (1.0 + np.exp(-odds[row]))),
                why=", ".join(parts) + _origin(passage),
                rank=row + 1,
                rank_score=0.55 + 0.45 / (row + 1),
                related_ids=tuple(
                    passages[n].id for n in np.flatnonzero(alike[row]).tolist() if n != row
                ),
            )
        )
    suspects.sort(key=lambda s: (-s.responsibility, s.rank))
    return Traceback(candidates=tuple(suspects), subject="one wrong answer")


def _word_signs(
    query: str, answer: str, passages: Sequence[Passage]
) -> dict[str, NDArray[np.float64]]:
    """Return, per passage, whether it states the answer, and shares of the words that count.

    Words weigh by how few of the passages hold them.
    """
    listed = [_words(passage.text) for passage in passages]
    sets = [set(words) for words in listed]
    counts = Counter(word for words in sets for word in words)
    n = len(passages)

    def shares(wanted: Sequence[str]) -> NDArray[np.float64]:
        weights = {w: max(math.log((n + 1) / (counts[w] + 0.5)), 0.05) for w in wanted}
        whole = sum(weights.values())
        if not whole:
            return np.zeros(n)
        held = [sum(weight for w, weight in weights.items() if w in words) for words in sets]
        return np.array(held) / whole

    said = _words(answer)
    phrase = f" {' '.join(said)} "
    stated = [bool(said) and phrase in f" {' '.join(words)} " for words in listed]
    return {
        "answer": np.array(stated, dtype=np.float64),
        "answer_words": shares(said),
        "query_words": shares(_words(query)),
    }


def _standing(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return how many robust standard deviations each value is above the median."""
    median = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - median))) + 0.02
    return np.asarray(np.clip((values - median) / spread, low, high), dtype=np.float64)


def _by_rank(n: int) -> NDArray[np.float64]:
    """Return a relevance by rank alone, from +2 for the first to -1 for the last."""
    return np.asarray(2.0 - 3.0 * (np.arange(n) / max(1, n - 1)) ** 0.5, dtype=np.float64)


def _alike(passages: Sequence[Passage]) -> NDArray[np.bool_]:
    """Return which passages say much the same, themselves included, shape (n, n).

    By vectors where they are known, else by their words.
    """
    vectors = _matrix(passages)
    if vectors is not None:
        alike = vectors @ vectors.T >= SAME
    else:
        sets = [set(_words(passage.text)) for passage in passages]
        alike = np.array(
            [[len(a & b) >= SAME * max(1, len(a | b)) for b in sets] for a in sets]
        ).reshape(len(sets), len(sets))
    np.fill_diagonal(alike, val=True)
    return np.asarray(alike, dtype=np.bool_)


def _matrix(passages: Sequence[Passage]) -> Vectors | None:
    vectors = [passage.vector for passage in passages if passage.vector is not None]
    return np.stack(vectors) if vectors and len(vectors) == len(passages) else None


def echoes_of(query: str, passages: Sequence[Passage]) -> NDArray[np.float64]:
    """Return how much of a query each passage repeats, in [0, 1], shape (n_passages,)."""
    batch = Batch.of(
        ids=[str(row) for row in range(len(passages))],
        texts=[passage.text for passage in passages],
        embeddings=None,
    )
    return QueryEchoDetector().score(RetrievedSet.of(query, batch, has_vectors=False))


def _words(text: str) -> list[str]:
    return _WORD.findall(text[:MAX_CHARACTERS].casefold())


def _origin(passage: Passage) -> str:
    """Return where an entry comes from and when, as its metadata says."""
    parts = [f"from {printable(passage.lineage, 60)!r}"] if passage.lineage else []
    when = _ingested(passage)
    if when is not None:
        parts.append(f"ingested {when:%Y-%m-%d %H:%M}")
    return f" ({', '.join(parts)})" if parts else ""


def _ingested(passage: Passage) -> dt.datetime | None:
    """Return the time of ingestion that the metadata names, in UTC."""
    for key in TIME_KEYS:
        value = passage.metadata.get(key)
        try:
            if isinstance(value, dt.datetime):
                when = value
            elif isinstance(value, str):
                when = dt.datetime.fromisoformat(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                when = dt.datetime.fromtimestamp(value, dt.UTC)
            else:
                continue
            return when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when.astimezone(dt.UTC)
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _is_older(passage: Passage, since: dt.datetime | None) -> bool:
    if since is None:
        return False
    when = _ingested(passage)
    given = since.replace(tzinfo=dt.UTC) if since.tzinfo is None else since
    return when is not None and when < given
