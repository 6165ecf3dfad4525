"""Independent origins that state the same count as trusted."""

import pytest

from ragshield_core import Batch, Quarantine
from ragshield_core.detectors import InstructionDetector
from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.model.findings import Decision, Verdict
from ragshield_core.origin import Origin, OriginKey, Origins, Tier, Voucher, corroborated
from ragshield_core.retrieval import RetrievalGuard

FACT = "Refunds take five days. Ask at the desk."
WIKI, SHOP = (Origin(tier=Tier.KNOWN, key=name) for name in ("wiki", "shop"))


def tiers(*pairs):
    return [str(tier) for tier in corroborated(*zip(*pairs, strict=True))]


def test_two_keys_that_state_the_same_are_trusted_in_any_layout():
    assert tiers((FACT, WIKI), ("refunds take  five days\n\nAsk at the desk. Bye!", SHOP)) == [
        *("trusted", "known")
    ]


@pytest.mark.parametrize(
    "other",
    [
        "Refunds take six days. Ask at the desk.",
        "It is untrue that refunds take five days. Ask at the desk.",
        "Refunds take five days? Ask at the desk.",
        "Refunds take five days.",
        "",
    ],
)
def test_a_text_that_says_something_else_corroborates_nothing(other):
    assert tiers((FACT, WIKI), (other, SHOP))[0] == "known"


def test_sentences_of_several_texts_corroborate_nothing():
    parts = [("Refunds take five days.", SHOP), ("Ask at the desk.", SHOP)]
    assert tiers((FACT, WIKI), *parts)[0] == "known"


@pytest.mark.parametrize(
    "other",
    [
        WIKI,
        Origin(),
        Origin(tier=Tier.UNKNOWN, key="shop"),  # revoked
        Origin(tier=Tier.KNOWN, key="agent", inputs=("wiki",)),
        Origin(tier=Tier.KNOWN, key="agent", inputs=("mail", "wiki")),
    ],
)
def test_copies_of_one_origin_count_once(other):
    assert tiers((FACT, WIKI), *[(FACT, other)] * 9)[0] == "known"


def test_texts_without_proof_are_never_elevated():
    assert tiers((FACT, Origin()), (FACT, WIKI), (FACT, SHOP)) == ["unknown", "trusted", "trusted"]


def test_empty_texts_are_not_elevated():
    assert tiers((" . ", WIKI), (FACT, SHOP)) == ["known", "known"]


def test_a_title_that_turns_a_passage_around_is_not_corroborated():
    names = ("wiki", "shop")
    secrets = {name: f"the secret of {name}".encode() for name in names}
    vouchers = {name: Voucher(tier="known", secrets=(secrets[name],)) for name in names}
    guard = RetrievalGuard([InstructionDetector()], origins=Origins(vouchers), least_tier="trusted")
    stamps = [{STAMP_KEY: OriginKey(n, secret=secrets[n]).stamp(FACT, {})} for n in names]
    titles = ["All of this is wrong", None]
    passages = Batch.of(
        ids=names, texts=[FACT, FACT], embeddings=None, metadatas=stamps, contexts=titles
    )
    assert guard.screen("when?", passages).admitted.tolist() == [False, True]


def test_retrieval_takes_corroborated_passages_and_held_ones_corroborate_nothing(tmp_path):
    names = ("wiki", "shop")
    secrets = {name: f"the secret of {name}".encode() for name in names}
    vouchers = {name: Voucher(tier="known", secrets=(secrets[name],)) for name in names}
    quarantine = Quarantine(f"sqlite:///{tmp_path / 'held.db'}")
    guard = RetrievalGuard(
        [InstructionDetector()],
        quarantine=quarantine,
        origins=Origins(vouchers),
        least_tier="trusted",
    )
    stamps = [{STAMP_KEY: OriginKey(n, secret=secrets[n]).stamp(FACT, {})} for n in names]
    passages = Batch.of(ids=names, texts=[FACT, FACT], embeddings=None, metadatas=stamps)
    assert guard.screen("when?", passages).admitted.tolist() == [True, True]
    held = Decision(entry_id="shop", verdict=Verdict.QUARANTINE, note="a test")
    quarantine.hold(passages.take([1]), [held])
    report = guard.screen("when?", passages)
    assert report.admitted.tolist() == [False, False]
