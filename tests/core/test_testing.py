"""The contract suite for detectors: each broken detector fails its check."""

from dataclasses import replace

import numpy as np
import pytest
from support import FindsNoGroups, scored

from ragshield_core.detectors import Detector, Evidence, Need, Scope, Traits
from ragshield_core.detectors.base import Overlooks, StatelessDetector, out_of_fold
from ragshield_core.model.errors import ContractError, NotFittedError
from ragshield_core.testing import CHECKS, DetectorCase, check_detector

KNOWN = scored([0.01 * i for i in range(40)], "k")
CLEAN = scored([0.1, 0.2, 0.3], "c")
POISON = scored([0.8, 0.9], "p")


class Honest(Detector):
    """Reads its score from the text, and counts the entries it has learned."""

    name = "honest"
    needs = frozenset({Need.TEXT})
    default_threshold = 0.5
    traits = Traits(taxonomy=("AML.T0070",))

    def __init__(self, shift=0.0):
        self.shift = shift
        self.reset()

    def reset(self):
        self.ids = []

    def learn(self, entries):
        self.ids = self.ids + list(entries.ids)

    def forget(self, entries):
        self.ids = [i for i in self.ids if i not in entries.ids]

    def unjudged(self, batch):
        return {} if self.ids else dict.fromkeys(range(len(batch)), "nothing is known")

    def score(self, batch):
        if not self.ids:
            raise NotFittedError
        said = [text.partition("score=")[2] or "0" for text in batch.texts]
        return np.array([float(score) for score in said], dtype=np.float64)

    def explain(self, batch, rows):  # noqa: ARG002
        return [Evidence(sentence=f"it says {0.5 + row}") for row in rows]

    def state(self):
        return {"ids": self.ids}, {}

    def restore(self, values, arrays):  # noqa: ARG002
        self.ids = list(values["ids"])


class Counting(Honest):
    """Its scores grow with the number of known entries."""

    def score(self, batch):
        return super().score(batch) + 0.001 * len(self.ids)


class Single(Honest):
    def score(self, batch):
        return super().score(batch).astype(np.float32)


class Blind(Honest):
    def score(self, batch):
        return np.zeros_like(super().score(batch))


class Sociable(Honest):
    def score(self, batch):
        return super().score(batch) + 0.01 * len(batch)


class Aloof(Honest):
    traits = replace(Honest.traits, scope=Scope.BATCH)


class Startled(Honest):
    def score(self, batch):
        if not len(batch):
            msg = "zero-size array"
            raise ValueError(msg)
        return super().score(batch)


class Nosy(Honest):
    def score(self, batch):
        scores = super().score(batch)
        self.learn(batch)
        return scores


class Guessing(Honest):
    def score(self, batch):
        return super().score(batch) if self.ids else np.zeros(len(batch))


class Shy(Honest):
    def held_out_scores(self, fitted, seed):
        return out_of_fold(self, fitted, seed)[:-1]


class Drifting(Honest):
    shift = 0.0

    def refresh(self, reference):  # noqa: ARG002
        self.shift += 0.1

    def score(self, batch):
        return super().score(batch) + self.shift


class Unlabelled(Honest):
    needs = frozenset({Need.TEXT, Need.LABEL})

    def unjudged(self, batch):  # noqa: ARG002
        return {}


class Xenophobic(Honest):
    def score(self, batch):
        return super().score(batch) + np.array([not text.isascii() for text in batch.texts])


class Vague(Honest):
    def explain(self, batch, rows):  # noqa: ARG002
        return [Evidence(sentence="it looks odd") for _ in rows]


class Forgetful(Honest):
    def restore(self, values, arrays):  # noqa: ARG002
        self.ids = values["ids"][:0] or ["someone"]

    def score(self, batch):
        return super().score(batch) + 0.01 * (len(self.ids) < len(KNOWN))


class Sharing(Honest):
    def learn(self, entries):
        self.ids += list(entries.ids)

    def restore(self, values, arrays):  # noqa: ARG002
        self.ids = values["ids"]


class Changeable(Honest):
    def __init__(self, shift=0.0):
        super().__init__(shift)
        self.default_threshold = 0.5

    def config(self):
        return {"shift": self.shift + 1}


class Hoarding(Counting):
    def reset(self):
        self.ids = [*getattr(self, "ids", [])]


class Clinging(Counting):
    def forget(self, entries):
        pass


class Grouping(Honest, FindsNoGroups):
    pass


class Grudging(Counting, FindsNoGroups):
    def remember_held(self, entries):
        self.learn(entries)


class Oblivious(Counting, Overlooks):
    def overlook(self, ids):
        self.ids = [i for i in self.ids if i not in ids]


class Haunted(Grouping):
    """Accuses every entry it has ever seen, even forgotten ones."""

    def reset(self):
        super().reset()
        self.met = []

    def learn(self, entries):
        super().learn(entries)
        self.met += entries.ids

    def retroactive(self, batch, condemned, unusual=()):  # noqa: ARG002
        return list(self.met), np.ones(len(self.met))


class Unforgiving(Haunted):
    def retroactive(self, batch, condemned, unusual=()):  # noqa: ARG002
        return list(self.ids), np.ones(len(self.ids))


class Mute(Unforgiving):
    def explain_retroactive(self, batch, ids):
        return self.explain(batch, range(len(ids) - 1))


class Summary(Grouping):
    def outliers(self, reference):  # noqa: ARG002
        return np.zeros(1, dtype=np.bool_)


class Wavering(StatelessDetector):
    name = "wavering"
    needs = frozenset({Need.TEXT})

    def score(self, batch):
        return np.zeros(len(batch))

    def explain(self, batch, rows):  # noqa: ARG002
        return [Evidence(sentence="0") for _ in rows]

    def doubtful(self, scores, held=None):  # noqa: ARG002
        return scores  # how doubtful, not whether


BROKEN = {
    Grudging: "lets_go_of_what_is_held",
    Oblivious: "overlooks_until_told_otherwise",
    Haunted: "accuses_only_what_it_learned",
    Mute: "accuses_only_what_it_learned",
    Unforgiving: "trusts_whom_people_trust",
    Summary: "says_of_each_what_it_is_asked",
    Wavering: "says_of_each_what_it_is_asked",
    Single: "scores_one_finite_float64_per_entry",
    Blind: "ranks_planted_poison_above_clean_entries",
    Sociable: "ignores_the_rest_of_the_batch_at_entry_scope",
    Aloof: "ignores_the_rest_of_the_batch_at_entry_scope",
    Startled: "scores_nothing_of_an_empty_batch",
    Nosy: "judging_changes_nothing",
    Guessing: "refuses_or_needs_nothing_unfitted",
    Shy: "holds_fitted_entries_out",
    Drifting: "goes_on_measuring",
    Unlabelled: "does_not_judge_what_it_cannot",
    Xenophobic: "admits_innocent_writing",
    Vague: "explains_with_a_number_and_a_taxonomy",
    Forgetful: "keeps_its_state_in_json_and_arrays",
    Sharing: "keeps_its_state_in_json_and_arrays",
    Changeable: "is_built_again_from_its_config",
    Hoarding: "forgets_when_fitted_again",
    Clinging: "forgets_what_it_learned",
}


def case(make):
    return DetectorCase(make=make, known=KNOWN, clean=CLEAN, poison=POISON)


def test_an_honest_detector_passes():
    check_detector(Honest, known=KNOWN, clean=CLEAN, poison=POISON)


@pytest.mark.parametrize(
    ("broken", "name"), BROKEN.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_broken_detector_fails_the_check_for_it(broken, name):
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises((ContractError, ValueError)):
        check(case(broken))
    with pytest.raises((ContractError, ValueError)):
        check_detector(broken, known=KNOWN, clean=CLEAN, poison=POISON)


def test_every_check_has_a_detector_that_fails_it():
    assert set(BROKEN.values()) == {check.__name__ for check in CHECKS}
