"""Statements that Sigstore signs.

Nothing here reaches the network. ``recorded.sigstore.json`` is a true signature of Sigstore's
public services, of another kind of statement: PyPI's attestation of pypi-attestations 0.0.19. It is
verified with the root certificates that the package brings. Where a scan's own statement is signed,
signer and verifier are fakes: signing through the public services is not shown here.
"""

import base64
import io
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from sigstore.errors import NetworkError, VerificationError
from sigstore.models import Bundle
from test_attest import kb, payload_bytes, rows, run, scan  # noqa: F401 - fixtures

from ragshield_core.model.errors import AttestationError
from ragshield_core.tools.attest import Identity, keyless, verify

RECORDED = Path(__file__).with_name("recorded.sigstore.json")
ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = (
    "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml"
    "@refs/tags/v0.0.19"
)
SIGNER = Identity(name=WORKFLOW, issuer=ISSUER, offline=True)
ANNA = ("--identity", "anna@example.com", "--issuer", "https://accounts.example.com")

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Keep root certificates out of the caches of whoever runs this."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class FakeSigner:
    """Puts a statement into the recorded bundle, whose signature is that of another."""

    def sign_dsse(self, statement):
        values = json.loads(RECORDED.read_text())
        values["dsseEnvelope"]["payload"] = base64.b64encode(statement._contents).decode()
        return Bundle.from_json(json.dumps(values))


class FakeVerifier:
    """Believes every bundle, if it is asked for anna."""

    def verify_dsse(self, bundle, policy):
        if policy._identity != "anna@example.com":
            raise VerificationError
        envelope = json.loads(bundle.to_json())["dsseEnvelope"]
        return envelope["payloadType"], payload_bytes(envelope)


@pytest.fixture
def fakes(monkeypatch):
    @contextmanager
    def signer():
        yield FakeSigner()

    monkeypatch.setattr(keyless, "connected_signer", signer)
    monkeypatch.setattr(keyless, "connected_verifier", lambda **_: FakeVerifier())


def test_recorded_signature_holds_for_its_identity_alone():
    data = RECORDED.read_bytes()
    payload = keyless.opened_by_identity(data, SIGNER, "it")
    assert json.loads(payload)["subject"][0]["name"] == "pypi_attestations-0.0.19.tar.gz"
    for name, issuer in (("anna@example.com", ISSUER), (WORKFLOW, "https://other.example")):
        other = Identity(name=name, issuer=issuer, offline=True)
        assert keyless.opened_by_identity(data, other, "it") is None


@pytest.mark.parametrize("part", ["payload", "sig", "certificate"])
def test_changed_bundle_is_not_verified(part, tmp_path):
    values = json.loads(RECORDED.read_text())
    envelope = values["dsseEnvelope"]
    if part == "payload":
        envelope["payload"] = base64.b64encode(payload_bytes(envelope) + b" ").decode()
    elif part == "sig":
        sig = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
        sig[-1] ^= 1
        envelope["signatures"][0]["sig"] = base64.b64encode(sig).decode()
    else:
        certificate = values["verificationMaterial"]["certificate"]
        raw = bytearray(base64.b64decode(certificate["rawBytes"]))
        raw[-1] ^= 1
        certificate["rawBytes"] = base64.b64encode(raw).decode()
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(values))
    done = run("verify", path, "--identity", WORKFLOW, "--issuer", ISSUER, "--offline")
    assert (done.exit_code, "NOT VERIFIED" in done.stdout) == (1, True)
    assert verify(path, SIGNER).statement is None


def test_signed_statement_of_another_kind_is_refused():
    with pytest.raises(AttestationError, match="expected an in-toto Statement v1 with"):
        verify(RECORDED, SIGNER)


@pytest.mark.usefixtures("fakes")
@pytest.mark.slow
def test_scan_is_signed_and_verified_with_fake_services(tmp_path, kb):  # noqa: F811
    done = run("sign", scan(tmp_path, kb), "--sigstore")
    assert done.exit_code == 0, done.output
    path = tmp_path / "report.sigstore.json"
    assert str(path) in done.stdout
    good = run("verify", path, kb, *ANNA)
    assert (good.exit_code, "is what was scanned" in good.stdout) == (0, True)
    assert "anna@example.com (https://accounts.example.com)" in good.stdout
    bad = run("verify", path, kb, "--identity", "ben@example.com", "--issuer", ISSUER)
    assert (bad.exit_code, "NOT VERIFIED" in bad.stdout) == (1, True)
    kb.write_text(kb.read_text().replace("frogs", "toads"))
    changed = run("verify", path, kb, *ANNA)
    assert (changed.exit_code, "NOT THE SAME" in changed.stdout) == (1, True)


def test_real_verifier_refuses_the_signature_of_the_fake(tmp_path):
    statement = type("Statement", (), {"_contents": b"{}"})()
    path = tmp_path / "forged.json"
    path.write_text(FakeSigner().sign_dsse(statement).to_json())
    assert verify(path, SIGNER).statement is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"[" * 200_000, b'{"payload": ""}'])
def test_hostile_bundle_is_refused_in_a_sentence(content, tmp_path):
    path = tmp_path / "hostile.json"
    path.write_bytes(content)
    with pytest.raises(AttestationError, match=r"no Sigstore bundle .* use --key"):
        verify(path, SIGNER)


@pytest.mark.parametrize(
    "options", [(), ("--key", "k.pub", *ANNA), ("--identity", "anna"), ("--issuer", ISSUER)]
)
def test_one_signer_is_expected(options, tmp_path):
    for command in ("verify", "sign"):
        words = [] if command == "verify" else ["--sigstore", "--key", "k"]
        done = run(command, tmp_path / "any.json", *(words or options))
        assert "expected one signer: --key FILE, or" in str(done.exception)


def test_nobody_signed_in_is_told_before_anything_is_asked(monkeypatch):
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sigstore.models.ClientTrustConfig.production", offline)
    with pytest.raises(AttestationError, match=r"nobody is signed in.*--key"):
        keyless.sealed_by_identity(json.dumps(STATEMENT).encode())


def offline(**_):
    raise NetworkError


STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "a", "digest": {"sha256": "0" * 64}}],
    "predicateType": "urn:ragshield:scan:v1",
    "predicate": {},
}


def test_services_out_of_reach_are_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: "a.b.c")
    monkeypatch.setattr("sigstore.models.ClientTrustConfig.production", offline)
    with pytest.raises(AttestationError, match=r"did not sign \(NetworkError.*--key"):
        keyless.sealed_by_identity(json.dumps(STATEMENT).encode())
    monkeypatch.setattr("sigstore.verify.Verifier.production", offline)
    with pytest.raises(AttestationError, match=r"cannot be fetched.*--offline"):
        verify(RECORDED, Identity(name=WORKFLOW, issuer=ISSUER))


def test_missing_extra_is_told_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    for use in (lambda: keyless.sealed_by_identity(b"{}"), lambda: verify(RECORDED, SIGNER)):
        with pytest.raises(AttestationError, match=r"pip install 'ragshield\[sigstore\]'") as told:
            use()
        assert "\n" not in str(told.value)
