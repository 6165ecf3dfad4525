"""Ed25519 keys in files, in OpenSSL's format, and the DSSE envelopes that they sign."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragshield_core.model.errors import AttestationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

# Bytes: a statement names every file, and some 200,000 fit in; a key file holds one key.
LARGEST, LARGEST_KEY = 1 << 26, 1 << 16
# Maximum number of faults in a message.
NAMED = 3
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Maximum number of signatures that are tried; more are an attempt to waste our time.
MOST_SIGNATURES = 32

M = TypeVar("M", bound=BaseModel)

# Files from elsewhere: bounded size, no repeated names, no code executed


def bytes_of(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a file; refuse more than ``largest`` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        msg = f"{path} cannot be read ({error.strerror or type(error).__name__}); check its name."
        raise AttestationError(msg) from None
    if len(data) > largest:
        msg = f"{path} has more than {largest:,} bytes, expected no more; name the right file."
        raise AttestationError(msg)
    return data


def json_of(data: bytes, where: str, way_out: str) -> Any:
    """Return the value of JSON; refuse repeated names in an object. Messages quote nothing."""

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # readers disagree on which of them counts
            raise ValueError
        return found

    def no_number(constant: str) -> Any:
        raise ValueError(constant)

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=each_once, parse_constant=no_number)
    except (ValueError, RecursionError) as error:  # of Unicode, of JSON, of nesting
        msg = f"{where} is no JSON that can be read ({type(error).__name__}); {way_out}"
        raise AttestationError(msg) from None


def checked(values: Any, model: type[M], where: str, way_out: str) -> M:
    """Return JSON values as an instance of a model; messages do not quote them."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['type']}"
            for one in error.errors()[:NAMED]
        ]
        msg = f"{where} is not as expected ({'; '.join(faults)}); {way_out}"
        raise AttestationError(msg) from None


# Keys


def make_keys(private: Path, public: Path) -> str:
    """Write a new pair of keys, the private one readable by its owner only; return their name."""
    _need_cryptography()
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    key, pem = Ed25519PrivateKey.generate(), forms.Encoding.PEM
    secret = key.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    shown = key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo)
    for path in (private, public):
        if os.path.lexists(path):
            _refuse_to_overwrite(path)
    # The files have their mode from the first moment.
    for path, data, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(number, "wb") as file:
                file.write(data)
        except FileExistsError:
            _refuse_to_overwrite(path)
        except OSError as error:
            why = error.strerror or type(error).__name__
            msg = f"{path} cannot be written ({why}); name another."
            raise AttestationError(msg) from None
    return key_id(key.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    """Return the name of a key: the SHA-256 of its DER form."""
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - an extra

    der = key.public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def private_key(path: Path) -> Ed25519PrivateKey:
    """Return a private key; refuse one with a passphrase, or in a file that others may read."""
    data = bytes_of(path, LARGEST_KEY)
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        msg = f"others may read the private key {path}, expected mode 600; chmod 600 {path}."
        raise AttestationError(msg)
    key: Ed25519PrivateKey = _key(path, data, "private")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Return a public key."""
    key: Ed25519PublicKey = _key(path, bytes_of(path, LARGEST_KEY), "public")
    return key


def _key(path: Path, data: bytes, half: Literal["private", "public"]) -> Any:
    _need_cryptography()
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    key: Any = None
    try:
        if half == "private":
            key = forms.load_pem_private_key(data, password=None)
        else:
            key = forms.load_pem_public_key(data)
    except TypeError:
        msg = f"{path} has a passphrase, expected a key without; use one of ragshield attest keys."
        raise AttestationError(msg) from None
    except Exception:  # noqa: BLE001, S110 - a file that is no key raises any error
        pass
    kinds = {"private": ed25519.Ed25519PrivateKey, "public": ed25519.Ed25519PublicKey}
    if not isinstance(key, kinds[half]):
        msg = (
            f"{path} holds no {half} key, expected an Ed25519 key in PEM; make a pair with "
            "ragshield attest keys."
        )
        raise AttestationError(msg)
    return key


def _refuse_to_overwrite(path: Path) -> NoReturn:
    msg = f"{path} is there already, and keys are not overwritten; name another file, or remove it."
    raise AttestationError(msg) from None


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
    except ImportError:
        msg = "signatures need the package cryptography; pip install 'ragshield[attest]'."
        raise AttestationError(msg) from None


# Envelopes


class _Signature(BaseModel):
    model_config = ConfigDict(strict=True)
    sig: str
    keyid: str = ""  # an unverified hint


class _Envelope(BaseModel):
    """An envelope of DSSE 1.0; unknown names are ignored."""

    model_config = ConfigDict(strict=True)
    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: Annotated[list[_Signature], Field(min_length=1, max_length=MOST_SIGNATURES)]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, keyid: str, signature: bytes) -> dict[str, Any]:
    """Return an envelope with one signature, as values for JSON."""
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode()}],
    }


def sealed(payload: bytes, key: Ed25519PrivateKey) -> str:
    """Return an envelope with one signature, as JSON."""
    signature = key.sign(pae(PAYLOAD_TYPE, payload))
    return json.dumps(envelope(payload, key_id(key.public_key()), signature), indent=1) + "\n"


def unsealed(data: bytes, where: str, way_out: str) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the payload of an envelope, and its signatures with their unverified key ids."""
    found = checked(json_of(data, where, way_out), _Envelope, where, way_out)
    if found.payload_type != PAYLOAD_TYPE:
        msg = f"{where} holds another payloadType, expected {PAYLOAD_TYPE!r}: an in-toto statement."
        raise AttestationError(msg)
    payload = _decoded(found.payload, f"the payload of {where}")
    what = f"a signature of {where}"
    return payload, [(one.keyid, _decoded(one.sig, what)) for one in found.signatures]


def opened(data: bytes, key: Ed25519PublicKey, where: str) -> bytes | None:
    """Return the payload of an envelope if the key has signed it; else ``None``."""
    way_out = "expected a DSSE envelope as ragshield attest sign writes it."
    payload, signatures = unsealed(data, where, way_out)
    if any(signed_by(key, payload, signature) for _, signature in signatures):
        return payload
    return None


def signed_by(key: Ed25519PublicKey, payload: bytes, signature: bytes) -> bool:
    """Return whether a key has made a signature of a payload."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

    try:
        key.verify(signature, pae(PAYLOAD_TYPE, payload))
    except InvalidSignature:
        return False
    return True


def _decoded(text: str, what: str) -> bytes:
    """Decode base64 in the usual or the URL-safe alphabet: DSSE allows both."""
    try:
        return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except ValueError:
        msg = f"{what} is not base64; the file was damaged: get it anew."
        raise AttestationError(msg) from None
