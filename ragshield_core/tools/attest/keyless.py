"""Sigstore: signatures bound to an identity, by certificates that last minutes, in place of keys.

The two functions at the end talk to Sigstore's public services; all else works offline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragshield_core.model.errors import AttestationError
from ragshield_core.signing import PAYLOAD_TYPE

if TYPE_CHECKING:
    from sigstore.sign import Signer
    from sigstore.verify import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The expected signer.

    Parameters
    ----------
    name
        E-mail address of a person, or the address of a workflow.
    issuer
        URL of the service that the signer signed in to; another may give out the same name.
    offline
        Whether to trust the copy of Sigstore's root certificates on this machine, without
        asking for newer ones.
    """

    name: str
    issuer: str
    offline: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.issuer})"


def sealed_by_identity(payload: bytes) -> str:
    """Return a Sigstore bundle of a statement, as JSON; the signed-in person or workflow signs."""
    _need_sigstore()
    from sigstore.dsse import Statement  # noqa: PLC0415 - an extra

    try:
        with connected_signer() as signer:
            return signer.sign_dsse(Statement(payload)).to_json()
    except AttestationError:
        raise
    except Exception as error:  # of Sigstore, of its services, of the network
        msg = (
            f"Sigstore did not sign ({type(error).__name__}: {error}); check the network and your "
            "identity, or sign with --key."
        )
        raise AttestationError(msg) from error


def opened_by_identity(data: bytes, identity: Identity, where: str) -> bytes | None:
    """Return the payload of a bundle if the identity has signed it; else ``None``."""
    _need_sigstore()
    from sigstore.models import Bundle  # noqa: PLC0415 - an extra
    from sigstore.verify.policy import Identity as Policy  # noqa: PLC0415

    try:
        bundle = Bundle.from_json(data)
    except Exception as error:  # noqa: BLE001 - a file that is no bundle raises any error
        msg = (
            f"{where} is no Sigstore bundle ({type(error).__name__}), expected a file as ragshield "
            "attest sign --sigstore writes it; for one that a key has signed, use --key."
        )
        raise AttestationError(msg) from None
    try:
        verifier = connected_verifier(offline=identity.offline)
    except Exception as error:
        msg = (
            f"Sigstore's root certificates cannot be fetched ({type(error).__name__}: {error}); "
            "--offline uses the copy on this machine."
        )
        raise AttestationError(msg) from error
    policy = Policy(identity=identity.name, issuer=identity.issuer)
    try:
        kind, payload = verifier.verify_dsse(bundle, policy)
    except Exception:  # noqa: BLE001 - a hostile bundle may raise any error, and none of them vouches
        return None
    if kind != PAYLOAD_TYPE:
        msg = f"{where} holds another payloadType, expected {PAYLOAD_TYPE!r}: an in-toto statement."
        raise AttestationError(msg)
    return payload


def _need_sigstore() -> None:
    try:
        import sigstore  # noqa: F401, PLC0415 - an extra
    except ImportError:
        msg = "Sigstore needs the package sigstore; pip install 'ragshield[sigstore]'."
        raise AttestationError(msg) from None


@contextmanager
def connected_signer() -> Iterator[Signer]:
    """Yield a signer for the workflow that runs this, or for a person who signs in by browser."""
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415 - an extra
    from sigstore.oidc import IdentityToken, Issuer, detect_credential  # noqa: PLC0415
    from sigstore.sign import SigningContext  # noqa: PLC0415

    token = detect_credential()
    if token is None and not sys.stdin.isatty():
        msg = (
            "nobody is signed in: expected a terminal, or a workflow with an identity (GitHub: "
            "permissions: id-token: write); or sign with --key."
        )
        raise AttestationError(msg)
    services = ClientTrustConfig.production()
    if token is None:
        identity = Issuer(services.signing_config.get_oidc_url()).identity_token()
    else:
        identity = IdentityToken(token)
    with SigningContext.from_trust_config(services).signer(identity) as signer:
        yield signer


def connected_verifier(*, offline: bool) -> Verifier:
    """Return a verifier that trusts Sigstore's public services."""
    from sigstore.verify import Verifier  # noqa: PLC0415 - an extra

    return Verifier.production(offline=offline)
