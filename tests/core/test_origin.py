"""Stamps of origin: proofs, broken stamps and hostile ones."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core import signing
from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.model.errors import AttestationError, ConfigurationError
from ragshield_core.origin import Origin, OriginKey, Origins, Tier, Voucher
from ragshield_core.settings import Settings

TEXT, METADATA = "Refunds take five days.", {"page": "refunds", "section": 3}
SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"
WIKI = OriginKey("wiki", secret=SECRET)
MAIL = OriginKey("mail", secret=OTHER)


def origins(**changed):
    """Return origins that trust the wiki and know the mail."""
    vouchers = {
        "wiki": Voucher(tier="trusted", secrets=(SECRET,)),
        "mail": Voucher(tier="known", secrets=(OTHER,)),
    }
    return Origins(vouchers | changed)


def stamped(key=WIKI, text=TEXT, metadata=METADATA, **how):
    return metadata | {STAMP_KEY: key.stamp(text, metadata, **how)}


def test_a_stamp_proves_key_source_and_time():
    at = datetime(2026, 3, 1, 9, tzinfo=UTC)
    found = origins().of(TEXT, stamped(source="handbook", at=at), arriving=True)
    assert (found.tier, found.key, found.source, found.at) == (Tier.TRUSTED, "wiki", "handbook", at)
    assert (str(found), found.broken) == ("trusted:wiki", False)
    assert found.why == "stamped by 'wiki' on 2026-03-01"


def test_an_entry_without_a_stamp_has_no_proof():
    assert origins().of(TEXT, METADATA) == Origin()
    assert not Origins()


def test_a_least_tier_without_keys_is_refused():
    with pytest.raises(ConfigurationError, match="name keys in vouchers"):
        Origins(least_tier="known")


def test_a_claim_is_no_proof():
    claimed = METADATA | {"ragshield_origin": "trusted:wiki", "ragshield_source": "wiki"}
    assert origins().of(TEXT, claimed).tier is Tier.UNKNOWN


@pytest.mark.parametrize(
    ("text", "changed", "entry_id", "why"),
    [
        (TEXT + " Or years.", {}, "a", "for another text"),
        (TEXT, {"page": "fees"}, "a", "with other metadata"),
        (TEXT, {"page": None}, "a", "with other metadata"),
        (TEXT, {"note": "pay twice"}, "a", "with other metadata"),
        (TEXT, {"section": 3.5}, "a", "with other metadata"),
        (TEXT, {}, "b", "under another id"),
    ],
)
def test_a_stamp_that_was_taken_to_something_else_is_broken(text, changed, entry_id, why):
    metadata = stamped(entry_id="a") | changed
    found = origins().of(text, metadata, entry_id, arriving=True)
    assert (found.tier, found.broken, found.key) == (Tier.UNKNOWN, True, None)
    assert why in found.why


def test_a_store_may_add_metadata_after_the_write():
    metadata = stamped() | {"_collection": "pages", "page_copy": "refunds"}
    assert origins().of(TEXT, metadata).tier is Tier.TRUSTED
    assert origins().of(TEXT, metadata, arriving=True).broken


def test_marks_of_the_guard_and_missing_values_do_not_break_a_stamp():
    metadata = stamped(metadata=METADATA | {"author": None})
    added = {"ragshield_flag": "clique", "ragshield_origin": "x", "_ragshield_node": "{}"}
    assert origins().of(TEXT, metadata | added, arriving=True).tier is Tier.TRUSTED
    del metadata["author"]  # Chroma does not keep it
    assert origins().of(TEXT, metadata, arriving=True).tier is Tier.TRUSTED


def test_a_stamp_of_another_key_under_a_known_name_is_broken():
    forged = OriginKey("wiki", secret=OTHER)
    found = origins().of(TEXT, stamped(forged))
    assert (found.tier, found.broken) == (Tier.UNKNOWN, True)
    assert "did not make it" in found.why


def test_a_stamp_of_an_unknown_key_stays_a_claim():
    found = origins().of(TEXT, stamped(OriginKey("rumour", secret=SECRET)))
    assert (found.tier, found.broken) == (Tier.UNKNOWN, False)
    assert "no key that is known here" in found.why


def test_both_keys_verify_while_a_key_is_rotated():
    both = origins(wiki=Voucher(tier="trusted", secrets=(OTHER, SECRET)))
    for secret in (SECRET, OTHER):
        assert both.of(TEXT, stamped(OriginKey("wiki", secret=secret))).tier is Tier.TRUSTED


def test_a_revoked_key_proves_nothing_and_is_still_named():
    revoked = origins(wiki=Voucher(tier="trusted", secrets=(SECRET,), revoked=True))
    found = revoked.of(TEXT, stamped())
    assert (found.tier, found.key, found.broken) == (Tier.UNKNOWN, "wiki", False)
    assert found.why.endswith("the key is revoked")


def test_a_derived_text_has_the_least_tier_of_its_inputs():
    known = origins()
    page, letter = known.of(TEXT, stamped()), known.of(TEXT, stamped(MAIL))
    for inputs, tier in (
        ([page], Tier.TRUSTED),
        ([page, letter], Tier.KNOWN),
        ([page, Origin()], Tier.UNKNOWN),
        ([page, known.of("Another text.", stamped())], Tier.UNKNOWN),  # a broken stamp
        ([], Tier.UNKNOWN),
    ):
        summary = known.of(TEXT, stamped(derived_from=inputs))
        assert summary.tier is tier
        assert summary.why.endswith("and made from other texts")
    second = known.of(TEXT, stamped(derived_from=[known.of(TEXT, stamped(derived_from=[letter]))]))
    assert second.tier is Tier.KNOWN
    assert "mail" in second.keys


def test_a_text_made_from_many_unproven_ones_is_unproven():
    many = [Origin(tier=Tier.TRUSTED, key=f"k{number}") for number in range(80)]
    assert origins().of(TEXT, stamped(derived_from=many)).tier is Tier.UNKNOWN


def test_a_text_made_from_one_of_a_revoked_key_loses_its_tier():
    letter = origins().of(TEXT, stamped(MAIL))
    summary = stamped(derived_from=[letter])
    assert origins().of(TEXT, summary).tier is Tier.KNOWN
    revoked = origins(mail=Voucher(secrets=(OTHER,), revoked=True))
    assert revoked.of(TEXT, summary).tier is Tier.UNKNOWN


def test_ed25519_keys_in_files(tmp_path):
    private, public = tmp_path / "wiki.pem", tmp_path / "wiki.pub"
    signing.make_keys(private, public)
    metadata = stamped(OriginKey("wiki", private_key=private))
    voucher = Voucher(tier="trusted", public_keys=(public,))
    assert Origins({"wiki": voucher}).of(TEXT, metadata).tier is Tier.TRUSTED
    signing.make_keys(tmp_path / "b.pem", tmp_path / "b.pub")
    other = Origins({"wiki": Voucher(tier="trusted", public_keys=(tmp_path / "b.pub",))})
    assert other.of(TEXT, metadata).broken


@pytest.mark.parametrize(
    "stamp",
    [
        *(3, b"x", ["a"], {}, "", "{", "[]", "null", "{}", "[" * 50_000, "x" * 70_000, "\ud800"),
        '{"payload": "e30=", "payloadType": "text/plain", "signatures": [{"sig": "AA=="}]}',
        json.dumps(signing.envelope(b"?", "wiki", b"?")).replace('"Pw=="', '"?"'),
    ],
)
def test_a_stamp_that_is_none_is_broken(stamp):
    found = origins().of(TEXT, METADATA | {STAMP_KEY: stamp})
    assert (found.tier, found.broken) == (Tier.UNKNOWN, True)


@pytest.mark.parametrize(
    "statement",
    [
        b"[]",
        b"{}",
        b'{"predicateType": "urn:ragshield:scan:v1"}',
        b"\xff",
        b'{"subject": [], "predicateType": "urn:ragshield:origin:v1", "predicate": {}}',
    ],
)
def test_a_key_that_signs_something_else_vouches_for_nothing(statement):
    # As if the key had signed a statement of another kind.
    signature = signing.envelope(statement, "wiki", WIKI._signature(statement))
    found = origins().of(TEXT, METADATA | {STAMP_KEY: json.dumps(signature)})
    assert (found.tier, found.broken) == (Tier.UNKNOWN, True)


@given(st.integers(0, 600), st.integers(0, 255))
def test_no_changed_stamp_proves_anything(place, value):
    whole = json.loads(stamped()[STAMP_KEY])
    payload = bytearray(base64.b64decode(whole["payload"]))
    place %= len(payload)
    if payload[place] == value:
        value ^= 1
    payload[place] = value
    whole["payload"] = base64.b64encode(payload).decode()
    found = origins().of(TEXT, METADATA | {STAMP_KEY: json.dumps(whole)})
    assert found.tier is Tier.UNKNOWN


def test_metadata_that_json_cannot_hold_is_refused_when_it_is_stamped():
    with pytest.raises(ConfigurationError, match="JSON can hold"):
        WIKI.stamp(TEXT, {"page": object()})
    with pytest.raises(ConfigurationError, match="JSON can hold"):
        WIKI.stamp(TEXT, {"share": float("nan")})


def test_metadata_that_json_cannot_hold_breaks_a_stamp():
    nested = []
    nested.append(nested)
    for value in (object(), nested, float("inf")):
        metadata = stamped() | {"page": value}
        assert origins().of(TEXT, metadata).broken


def test_keys_are_checked(tmp_path):
    for wrong in ({"name": "wiki"}, {"name": "", "secret": SECRET}, {"name": "w", "secret": b"x"}):
        with pytest.raises(ConfigurationError):
            OriginKey(**wrong)
    with pytest.raises(ConfigurationError, match="has no key"):
        Origins({"wiki": Voucher()})
    with pytest.raises(ConfigurationError, match="is no tier"):
        Origins({"wiki": Voucher(tier="holy", secrets=(SECRET,))})
    with pytest.raises(AttestationError):
        Origins({"wiki": Voucher(public_keys=(tmp_path / "none.pub",))})


def test_secrets_are_not_shown():
    shown = repr(WIKI) + repr(origins()) + stamped()[STAMP_KEY]
    assert SECRET.decode() not in shown


def test_a_stamp_reads_like_no_text():
    assert " " not in stamped()[STAMP_KEY]


def test_a_time_without_a_zone_is_local():
    now = datetime.now()  # noqa: DTZ005
    found = origins().of(TEXT, stamped(at=now))
    assert abs(found.at - datetime.now(UTC)) < timedelta(minutes=1)


def test_settings_name_keys(tmp_path, monkeypatch):
    file = tmp_path / "ragshield.toml"
    file.write_text('[origins.wiki]\ntier = "trusted"\nsecret_variables = ["WIKI_SECRET"]\n')
    settings = Settings.read(file)
    with pytest.raises(ConfigurationError, match="WIKI_SECRET"):
        settings.known_origins()
    monkeypatch.setenv("WIKI_SECRET", SECRET.decode())
    assert settings.known_origins().of(TEXT, stamped()).tier is Tier.TRUSTED
    assert settings.known_origins().least_tier is Tier.UNKNOWN
    file.write_text('least_tier = "known"\n' + file.read_text())
    assert Settings.read(file).known_origins().least_tier is Tier.KNOWN
    file.write_text('[origins.wiki]\ntier = "holy"\n')
    with pytest.raises(ConfigurationError, match="origins"):
        Settings.read(file)
