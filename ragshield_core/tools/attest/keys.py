"""Ed25519 keys in files, as OpenSSL writes them too."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ragshield_core.model.errors import AttestationError
from ragshield_core.tools.attest.reading import bytes_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

# Bytes of a file that holds one key.
LARGEST_KEY = 1 << 16
OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR  # 600


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Tells whether its private half has signed something."""

    key: Ed25519PublicKey

    def has_signed(self, signature: bytes, message: bytes) -> bool:
        """Return whether this is the signature of that message."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

        try:
            self.key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """Signs."""

    key: Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return self.key.sign(message)

    def public_key(self) -> PublicKey:
        """Return the half that others may have."""
        return PublicKey(self.key.public_key())


def key_id(key: PublicKey) -> str:
    """Return the name of a key: the SHA-256 of its DER form."""
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - an extra
        Encoding,
        PublicFormat,
    )

    der = key.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def make_keys(private: Path, public: Path) -> str:
    """Write a new pair of keys, the private one for its owner alone; return their name.

    Raises
    ------
    AttestationError
        If one of the files is there already: nothing is overwritten; or cannot be written.
    """
    _needs_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an extra
        Ed25519PrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    for path in (private, public):
        if os.path.lexists(path):
            _refuse_to_overwrite(path)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_new(private, pem, OWNER_ONLY)
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(public, shown, 0o644)
    return key_id(PublicKey(key.public_key()))


def private_key(path: Path) -> PrivateKey:
    """Return a private key.

    Raises
    ------
    AttestationError
        If the file holds none without a passphrase, or others may read it.
    """
    _needs_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an extra
        Ed25519PrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    data = bytes_of(path, LARGEST_KEY)
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        msg = f"others may read the private key {path}, expected mode 600; chmod 600 {path}."
        raise AttestationError(msg)
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        msg = f"{path} has a passphrase, expected a key without; use one of ragshield attest keys."
        raise AttestationError(msg) from None
    except Exception as error:
        raise AttestationError(_no_key(path, "private")) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise AttestationError(_no_key(path, "private"))
    return PrivateKey(key)


def public_key(path: Path) -> PublicKey:
    """Return a public key.

    Raises
    ------
    AttestationError
        If the file holds none.
    """
    _needs_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an extra
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(bytes_of(path, LARGEST_KEY))
    except AttestationError:
        raise
    except Exception as error:
        raise AttestationError(_no_key(path, "public")) from error
    if not isinstance(key, Ed25519PublicKey):
        raise AttestationError(_no_key(path, "public"))
    return PublicKey(key)


def _no_key(path: Path, half: str) -> str:
    return (
        f"{path} holds no {half} key, expected an Ed25519 key in PEM; make a pair with "
        "ragshield attest keys."
    )


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that was not there, with its mode from the first moment."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except FileExistsError:
        _refuse_to_overwrite(path)
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror or type(error).__name__}); name another."
        raise AttestationError(msg) from None


def _refuse_to_overwrite(path: Path) -> None:
    msg = f"{path} is there already, and keys are not overwritten; name another file, or remove it."
    raise AttestationError(msg) from None


def _needs_cryptography() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
    except ImportError:
        msg = "signatures need the package cryptography; pip install 'ragshield[attest]'."
        raise AttestationError(msg) from None
