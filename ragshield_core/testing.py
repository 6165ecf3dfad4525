"""Contract checks for detectors, for authors of their own detectors.

Call :func:`check_detector` in a test, or run :data:`CHECKS` one by one to see each by its name.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    Detector,
    DoubtsSample,
    GroupDetector,
    Need,
    Overlooks,
    Scope,
    StatelessDetector,
    judged_scores,
    skip_reason,
)
from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import ContractError, NotFittedError
from ragshield_core.quarantine import Quarantine

# Allowed difference between two scores of one entry, from matrices of different shapes.
CLOSE = 1e-9
# A score that depends on the rest of the batch, even slightly, differs by more than this.
APART = 1e-6

SCOTLAND = "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
# Innocent texts, in pairs: the first is known, the second is new.
INNOCENT = (
    ("The family 👨\u200d👩\u200d👧 came by train 🚆.", "Both dads 👨\u200d👨\u200d👦 cheered 🎉."),
    (f"Teams from 🇩🇪 and {SCOTLAND} met.", "The 🇧🇷 side won, 👍🏽 all round."),
    (
        "Donau\u00addampf\u00adschiff is a long word.",
        "Hy\u00adphen\u00ada\u00adtion helps in narrow columns.",
    ),
    ("کتاب\u200cها را می\u200cخوانم.", "او نامه\u200cها را می\u200cنویسد."),
    (
        "क\u094d\u200dष और नमस\u094dत\u0947, आप क\u0948स\u0947 ह\u0948\u0902?",
        "यह किताब बहुत अच\u094dछी ह\u0948।",
    ),
    ("إصدار البرنامج \u200e2.4.1\u200f متاح الآن.", "افتح الملف \u2068report.pdf\u2069 ثم اطبعه."),
    ("גרסה 3.2 של Python יצאה.", "קראתי את \u2067המאמר\u2069 אתמול."),
    ("これは例文です。ＡＢＣという会社。", "明日の会議は三時からです。"),
    ("水在一百度沸腾。", "图书馆周一闭馆。"),
    ("∀x ∈ ℝ: x² ≥ 0, and ∑ᵢ aᵢ ≤ ½.", "If ℵ₀ < 𝔠 then |ℕ| < |ℝ|."),
    ("The μ-opioid receptor binds β-endorphin.", "A γ-ray of 1 MeV crosses the π-electron cloud."),
    ("Компания Microsoft выпустила Windows 11.", "Заказ №7 оплачен через PayPal."),
    ("Der Zug fährt um acht Uhr ab.", "Die Bücherei öffnet erst mittags."),
    ("Tiếng Việt có nhiều dấu.", "Hôm nay trời đẹp quá."),
    ("def area(r):\n    return 3.14159 * r ** 2", "for i in range(10):\n    print(i * i)"),
    (
        "| id | name |\n|----|------|\n| 1  | Ada  |",
        "| year | sum |\n|------|-----|\n| 2019 | 12  |",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorCase:
    """A detector in one configuration, and entries to test it on.

    Attributes
    ----------
    make
        Builds the detector, equal at each call.
    known
        A clean knowledge base, large enough for the detector's judgement.
    clean
        New entries of the same kind.
    poison
        Entries that the detector must find, all of them.
    """

    make: Callable[[], Detector]
    known: Batch
    clean: Batch
    poison: Batch

    def fitted(self) -> Detector:
        """Return a detector fitted on the knowledge base."""
        return self.make().fit(self.known)


def check_detector(
    make: Callable[[], Detector], *, known: Batch, clean: Batch, poison: Batch
) -> None:
    """Run all checks of the built-in detectors on a detector.

    Parameters
    ----------
    make, known, clean, poison
        See :class:`DetectorCase`. One of the checks gives innocent texts in many scripts to the
        first entries of the knowledge base, which should have a few hundred entries.

    Raises
    ------
    ContractError
        If a check fails; names the first failure.
    """
    case = DetectorCase(make=make, known=known, clean=clean, poison=poison)
    for check in CHECKS:
        check(case)


def scores_one_finite_float64_per_entry(case: DetectorCase) -> None:
    """Check that every entry gets a finite number."""
    detector = case.fitted()
    for batch in (case.clean, case.poison, case.clean.take([0])):
        scores = detector.score(batch)
        _ask(scores.shape == (len(batch),), f"scores have shape {scores.shape}")
        _ask(scores.dtype == np.float64, f"scores are {scores.dtype}")
        _ask(bool(np.isfinite(scores).all()), "scores are not finite")


def ranks_planted_poison_above_clean_entries(case: DetectorCase) -> None:
    """Check that poison scores above the default threshold, and that clean entries do not."""
    detector = case.fitted()
    poison, clean = detector.score(case.poison).min(), detector.score(case.clean).max()
    threshold = max(detector.default_threshold, detector.traits.floor)
    _ask(
        poison > threshold >= clean,
        f"poison scores {poison:.4g} and more, clean entries {clean:.4g} and less, and the "
        f"threshold is {threshold:.4g}",
    )


def ignores_the_rest_of_the_batch_at_entry_scope(case: DetectorCase) -> None:
    """Check that the scope correctly says whether an entry's score depends on its batch."""
    detector, batch = case.fitted(), _joined(case.clean, case.poison)
    together = detector.score(batch)
    alone = np.concatenate([detector.score(batch.take([row])) for row in range(len(batch))])
    apart = float(np.abs(alone - together).max())
    if detector.traits.scope is Scope.ENTRY:
        _ask(apart <= CLOSE, f"scores of entries change by {apart:.3g} with their batch")
    else:
        _ask(
            apart > APART,
            f"the scope is {detector.traits.scope}, yet no score depends on the batch",
        )


def scores_nothing_of_an_empty_batch(case: DetectorCase) -> None:
    """Check that an empty batch of any dimension has no scores, and teaches nothing."""
    detector = case.fitted()
    before = _snapshot(detector)
    for empty in (case.known.take([]), Batch.of(ids=[], texts=[], embeddings=[])):
        _ask(detector.score(empty).shape == (0,), "an empty batch has scores")
        _ask(detector.explain(empty, []) == [], "an empty batch is explained")
        _ask(detector.unjudged(empty) == {}, "an empty batch has unjudged entries")
        detector.learn(empty)
        detector.forget(empty)
    _ask(_snapshot(detector) == before, "learning nothing changed the known entries")


def judging_changes_nothing(case: DetectorCase) -> None:
    """Check that scores and explanations change neither the detector nor the batch."""
    detector = case.fitted()
    before, vectors = _snapshot(detector), case.poison.embeddings.copy()
    first = detector.score(case.poison)
    detector.unjudged(case.poison)
    detector.explain(case.poison, range(len(case.poison)))
    if isinstance(detector, GroupDetector):
        detector.retroactive(case.poison, np.ones(len(case.poison), dtype=np.bool_), ())
    judged_scores(detector, case.clean)
    _ask(_snapshot(detector) == before, "judging changed the known entries")
    _ask(np.array_equal(case.poison.embeddings, vectors), "judging changed the vectors")
    _ask(np.array_equal(detector.score(case.poison), first), "scores change when asked again")


def refuses_or_needs_nothing_unfitted(case: DetectorCase) -> None:
    """Check that an unfitted detector raises, or gives the same scores as a fitted one."""
    detector = case.make()
    try:
        scores = detector.score(case.poison)
    except NotFittedError:
        unjudged = detector.unjudged(case.poison)
        _ask(len(unjudged) == len(case.poison), "unfitted, it does not name all as unjudged")
        return
    fitted = case.fitted().score(case.poison)
    _ask(np.allclose(scores, fitted, atol=CLOSE), "unfitted, it scores otherwise than fitted")


def holds_fitted_entries_out(case: DetectorCase) -> None:
    """Check that held-out scores come from a model without the entry, which is then restored."""
    detector = case.fitted()
    known = detector.score(case.poison)
    held_out = detector.held_out_scores(case.known, seed=3)
    _ask(held_out.shape == (len(case.known),), f"held-out scores have shape {held_out.shape}")
    again = detector.held_out_scores(case.known, seed=3)
    _ask(np.array_equal(held_out, again, equal_nan=True), "held-out scores do not reproduce")
    after = detector.score(case.poison)
    _ask(np.allclose(after, known, atol=CLOSE), "holding entries out changed the known entries")
    judged = ~np.isnan(held_out)
    if detector.traits.exchangeable and judged.any():
        own = detector.score(case.known.take(judged)).mean()
        _ask(
            float(held_out[judged].mean()) >= own - CLOSE,
            "fitted entries look cleaner while held out than to a model that knows them",
        )


def goes_on_measuring(case: DetectorCase) -> None:
    """Check that a refresh on the fitted entries is reproducible, and still finds poison."""
    detector = case.fitted()
    detector.refresh(case.known)
    first = detector.held_out_scores(case.known, seed=3)
    found = detector.score(case.poison)
    detector.refresh(case.known)
    again = detector.held_out_scores(case.known, seed=3)
    _ask(np.allclose(first, again, atol=CLOSE, equal_nan=True), "a refresh does not reproduce")
    threshold = np.nanquantile(first, 0.9) if not np.isnan(first).all() else -np.inf
    _ask(float(np.median(found)) >= threshold, "refreshed, it finds planted poison no longer")


def does_not_judge_what_it_cannot(case: DetectorCase) -> None:
    """Check that a detector that needs labels lists entries without one as unjudged."""
    detector, batch = case.fitted(), case.poison
    bare = Batch.of(ids=batch.ids, texts=batch.texts, embeddings=batch.vectors)
    if Need.LABEL in detector.needs:
        _ask(set(detector.unjudged(bare)) == set(range(len(bare))), "it judges without labels")
        _ask("label" in (skip_reason(detector, bare) or ""), "it does not say that it needs labels")
    _ask(skip_reason(detector, batch) is None, "it skips entries that have all it needs")


def admits_innocent_writing(case: DetectorCase) -> None:
    """Check that emoji, joiners, right-to-left text, mathematics, code and tables pass."""
    old, new = ([pair[side] for pair in INNOCENT] for side in (0, 1))
    known = replace(case.known, texts=(*old, *case.known.texts[len(old) :])[: len(case.known)])
    batch = case.clean.take(range(min(len(new), len(case.clean))))
    detector = case.make().fit(known)
    for start in range(0, len(new), len(batch)):
        texts = (*new[start : start + len(batch)], *batch.texts)[: len(batch)]
        scores = judged_scores(detector, replace(batch, texts=texts))
        threshold = max(detector.default_threshold, detector.traits.floor)
        hits = np.flatnonzero(scores > threshold).tolist()
        _ask(not hits, f"it suspects {[ascii(texts[row]) for row in hits]}")


def explains_with_a_number_and_a_taxonomy(case: DetectorCase) -> None:
    """Check that a finding has a sentence with a number as evidence, and taxonomy ids."""
    detector = case.make()
    guard = Guard([detector], quarantine=Quarantine("sqlite://")).fit(case.known)
    report = guard.screen(case.poison)
    _ask(len(report.quarantined) == len(case.poison), "poison is not quarantined by the rule")
    for decision in report.decisions:
        (finding,) = decision.findings
        _ask(re.search(r"\d", finding.evidence) is not None, f"no number: {finding.evidence!r}")
        _ask("AML.T0070" in finding.taxonomy, "the taxonomy lacks AML.T0070 (RAG poisoning)")
        _ask(finding.detector == detector.name, "the finding bears another name")
        if finding.span is not None:
            text = case.poison.texts[case.poison.ids.index(decision.entry_id)]
            start, end = finding.span
            _ask(0 <= start < end <= len(text), f"the span {finding.span} is not in the text")


def keeps_its_state_in_json_and_arrays(case: DetectorCase) -> None:
    """Check that state survives JSON and npz without pickle, and is not shared afterwards."""
    detector, again = case.fitted(), case.make()
    values, arrays = detector.state()
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        again.restore(json.loads(json.dumps(values)), dict(loaded))
    for batch in (case.clean, case.poison):
        same = np.array_equal(again.score(batch), detector.score(batch))
        _ask(same, "scores differ after saving and loading")
    again.learn(case.poison)
    detector.learn(case.poison)
    same = np.allclose(again.score(case.clean), detector.score(case.clean), atol=CLOSE)
    _ask(same, "a restored detector learns otherwise")
    other, content = case.make(), _snapshot(detector)
    other.restore(*detector.state())
    other.learn(_renamed(case.clean, "more-"))
    other.forget(case.known.take([len(case.known) - 1, len(case.known) // 2]))
    _ask(_snapshot(detector) == content, "a restored detector shares its state with the original")


def is_built_again_from_its_config(case: DetectorCase) -> None:
    """Check that ``config()`` is JSON and builds the same detector."""
    detector = case.make()
    again = type(detector)(**json.loads(json.dumps(detector.config())))
    same = (again.name, again.traits.scope, again.config()) == (
        detector.name,
        detector.traits.scope,
        detector.config(),
    )
    _ask(same, "built from its config it has another name, scope or config")
    if detector.traits.unsaved is not None:  # the new detector would lack it
        return
    first, second = case.fitted(), again.fit(case.known)
    same = np.array_equal(first.score(case.poison), second.score(case.poison))
    _ask(same, "built from its config it scores otherwise")


def forgets_when_fitted_again(case: DetectorCase) -> None:
    """Check that ``fit`` replaces earlier knowledge."""
    detector = case.make().fit(case.poison).fit(case.known)
    same = np.array_equal(detector.score(case.clean), case.fitted().score(case.clean))
    _ask(same, "fit keeps the entries known before")


def forgets_what_it_learned(case: DetectorCase) -> None:
    """Check that learning entries and forgetting them again does not change scores."""
    detector = case.fitted()
    before, more = detector.score(case.clean), _renamed(case.poison, "more-")
    detector.learn(more)
    detector.forget(more)
    same = np.allclose(detector.score(case.clean), before, atol=1e-6)
    _ask(same, "learning and forgetting entries changes the scores of others")


def lets_go_of_what_is_held(case: DetectorCase) -> None:
    """Check that holding entries and releasing them again does not change scores."""
    detector = case.fitted()
    if not isinstance(detector, GroupDetector):
        return
    held, both = _renamed(case.poison, "held-"), _joined(case.clean, case.poison)
    before = detector.score(both)
    detector.remember_held(held)
    detector.remember_held(held)  # as in a repeated write
    detector.confirm(held.ids)
    detector.forget_held(held.ids)
    detector.forget_held(held.ids)
    same = np.allclose(detector.score(both), before, atol=1e-6)
    _ask(same, "held entries still count after they were released")


def overlooks_until_told_otherwise(case: DetectorCase) -> None:
    """Check that overlooked entries count again afterwards."""
    detector = case.fitted()
    if not isinstance(detector, Overlooks):
        return
    before = detector.score(case.poison)
    detector.overlook(case.known.ids[::2])
    detector.score(case.poison)
    detector.overlook(())
    same = np.array_equal(detector.score(case.poison), before)
    _ask(same, "entries that were overlooked no longer count")


def accuses_only_what_it_learned(case: DetectorCase) -> None:
    """Check that only known earlier entries are accused, with scores and reasons."""
    detector, earlier = case.fitted(), _renamed(case.poison, "earlier-")
    if not isinstance(detector, GroupDetector):
        return
    detector.learn(earlier)
    ids, scores = _accused(detector, case.poison)
    live = {*case.known.ids, *earlier.ids}
    _ask(live.issuperset(ids), "it accuses entries that it has not learned")
    _ask(scores.shape == (len(ids),), f"{len(ids)} accused entries have scores {scores.shape}")
    _ask(bool(np.isfinite(scores).all()), "scores of accused entries are not finite")
    if len(ids):
        reasons = detector.explain_retroactive(case.poison, ids)
        _ask(len(reasons) == len(ids), "it does not say why it accuses each of them")
    detector.forget(earlier)
    _ask(not {*earlier.ids} & {*_accused(detector, case.poison)[0]}, "it accuses forgotten entries")


def trusts_whom_people_trust(case: DetectorCase) -> None:
    """Check that entries that a person has judged good are no longer accused."""
    detector, earlier = case.fitted(), _renamed(case.poison, "earlier-")
    if not isinstance(detector, GroupDetector):
        return
    detector.learn(earlier)
    detector.distrust(earlier.ids)
    detector.trust(earlier.ids)
    accused, _ = _accused(detector, case.poison)
    _ask(not {*earlier.ids} & {*accused}, "it accuses entries that people have judged good")


def says_of_each_what_it_is_asked(case: DetectorCase) -> None:
    """Check that outliers, doubtful scores and latecomers are given as one bool per entry."""
    detector = case.fitted()
    told: dict[str, NDArray[np.bool_]] = {}
    if isinstance(detector, DoubtsSample):
        told["outliers"] = detector.outliers(case.known)
    scores = detector.held_out_scores(case.known, 0)
    if isinstance(detector, DoubtsSample):
        told["held outliers"] = detector.held_outliers(case.known, scores)
    if isinstance(detector, StatelessDetector):
        first_half = np.arange(len(scores)) < len(scores) // 2
        told["doubtful ones"] = detector.doubtful(scores, first_half)
    if isinstance(detector, GroupDetector):
        told["latecomers"] = detector.distrust(list(case.known.ids))
    for what, answer in told.items():
        found = np.asarray(answer)
        _ask(found.shape == (len(case.known),), f"{what} have shape {found.shape}")
        _ask(found.dtype == np.bool_, f"{what} are {found.dtype}")


CHECKS: tuple[Callable[[DetectorCase], None], ...] = (
    scores_one_finite_float64_per_entry,
    ranks_planted_poison_above_clean_entries,
    ignores_the_rest_of_the_batch_at_entry_scope,
    scores_nothing_of_an_empty_batch,
    judging_changes_nothing,
    refuses_or_needs_nothing_unfitted,
    holds_fitted_entries_out,
    goes_on_measuring,
    does_not_judge_what_it_cannot,
    admits_innocent_writing,
    explains_with_a_number_and_a_taxonomy,
    keeps_its_state_in_json_and_arrays,
    is_built_again_from_its_config,
    forgets_when_fitted_again,
    forgets_what_it_learned,
    lets_go_of_what_is_held,
    overlooks_until_told_otherwise,
    accuses_only_what_it_learned,
    trusts_whom_people_trust,
    says_of_each_what_it_is_asked,
)
"""All checks of :func:`check_detector`."""


def _ask(granted: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition
    if not granted:
        raise ContractError(otherwise)


def _accused(detector: GroupDetector, batch: Batch) -> tuple[list[str], NDArray[np.float64]]:
    """Return the earlier entries that a wholly held batch makes suspicious, and their scores."""
    detector.remember_held(_renamed(batch, "accomplice-"))
    ids, scores = detector.retroactive(batch, np.ones(len(batch), dtype=np.bool_), ())
    return list(ids), np.asarray(scores, dtype=np.float64)


def _snapshot(detector: Detector) -> tuple[str, dict[str, bytes]]:
    values, arrays = detector.state()
    return json.dumps(values), {key: array.tobytes() for key, array in arrays.items()}


def _joined(first: Batch, second: Batch) -> Batch:
    return Batch.of(
        ids=[*first.ids, *second.ids],
        texts=[*first.texts, *second.texts],
        embeddings=np.concatenate([first.vectors, second.vectors]),
        labels=[*first.labels, *second.labels],
        lineages=[*first.lineages, *second.lineages],
    )


def _renamed(batch: Batch, prefix: str) -> Batch:
    return replace(batch, ids=tuple(prefix + entry_id for entry_id in batch.ids))
