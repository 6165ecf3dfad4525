"""Stamps: signed statements on an entry's text and metadata, kept in its metadata."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragshield_core import signing
from ragshield_core.model.claims import FLAG_KEY, NODE_KEY, ORIGIN_KEY, STAMP_KEY
from ragshield_core.model.errors import ConfigurationError

if TYPE_CHECKING:
    from ragshield_core.origin.origins import Origin

PREDICATE_TYPE = "urn:ragshield:origin:v1"
# Keys that RAGShield adds after an entry was stamped.
ADDED = frozenset({STAMP_KEY, ORIGIN_KEY, FLAG_KEY, NODE_KEY})
# Shortest secret: as strong as the digest is truncated to in common use (RFC 2104, section 5).
FEWEST_BYTES = 16
# A derived text names at most so many keys of its inputs.
MOST_KEYS = 64


class OriginKey:
    """A key that vouches for entries: a connector's or a job's, held where nobody else can read it.

    Parameters
    ----------
    name
        The name under which the settings of guards know the key, such as ``"wiki-connector"``.
    secret
        Shared with the guards: at least 16 bytes, for HMAC-SHA256. Guards could stamp with it, too.
    private_key
        An Ed25519 key in a PEM file that only its owner can read, as ``ragshield attest keys``
        makes; guards need the public half only. Needs ``pip install 'ragshield[attest]'``.

    Raises
    ------
    ConfigurationError
        Unless there is a name, and either a secret that is long enough or a private key.
    AttestationError
        If the file holds no such key, or others may read it.

    Examples
    --------
    >>> from ragshield_core.origin import Origins, Voucher
    >>> key = OriginKey("wiki", secret=b"sixteen bytes or more")
    >>> stamp = key.stamp("Refunds take five days.", {"page": "refunds"})
    >>> voucher = Voucher(tier="trusted", secrets=(b"sixteen bytes or more",))
    >>> origin = Origins({"wiki": voucher}).of(
    ...     "Refunds take five days.", {"page": "refunds", "ragshield_stamp": stamp})
    >>> str(origin)
    'trusted:wiki'
    """

    def __init__(
        self, name: str, *, secret: bytes | None = None, private_key: str | Path | None = None
    ) -> None:
        if not name or (secret is None) == (private_key is None):
            msg = "a key of origin needs a name, and either a secret or the file of a private key."
            raise ConfigurationError(msg)
        if secret is not None and len(secret) < FEWEST_BYTES:
            msg = (
                f"the secret of {name!r} has {len(secret)} bytes, expected {FEWEST_BYTES} or more."
            )
            raise ConfigurationError(msg)
        self.name = name
        self._secret = secret
        self._private = None if private_key is None else signing.private_key(Path(private_key))

    def __repr__(self) -> str:  # without the secret
        return f"<OriginKey {self.name!r}>"

    def stamp(
        self,
        text: str,
        metadata: Mapping[str, Any],
        *,
        entry_id: str | None = None,
        source: str | None = None,
        at: datetime | None = None,
        derived_from: Sequence[Origin] | None = None,
    ) -> str:
        """Return a stamp for an entry, to be kept under ``metadata["ragshield_stamp"]``.

        It is an in-toto statement in a DSSE envelope. Stamp last, after texts are split and
        metadata is complete: text and all metadata are signed, and a guard holds entries that were
        changed since.

        Parameters
        ----------
        text, metadata
            Of the entry, as the guard will get it.
        entry_id
            Binds the stamp to this id, so that nobody can put the entry in another's place;
            ``None`` binds it to none.
        source
            Where the text comes from, for people; default: the name of the key.
        at
            Time of the statement; default: now. An entry does not replace one with a later time.
        derived_from
            For a text that was made from others, such as a summary: the verified origin of each. It
            then has the least tier of all of these and of this key. ``None`` for an original text.

        Raises
        ------
        ConfigurationError
            If the metadata cannot be written as JSON.
        """
        predicate: dict[str, Any] = {
            "source": source or self.name,
            "at": (at or datetime.now(UTC)).astimezone(UTC).isoformat(),
            "metadata": dict(zip(("keys", "sha256"), covered(metadata), strict=True)),
        }
        if derived_from is not None:
            inputs = {key for one in derived_from for key in one.keys} or {None}
            # Without a proof there is nothing to name; too many inputs count as unproven.
            known = sorted(key for key in inputs if key is not None)[:MOST_KEYS]
            unproven = None in inputs or len(inputs) > MOST_KEYS
            predicate["derivedFrom"] = [*known, *([None] if unproven else [])]
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": entry_id or "", "digest": {"sha256": digest_of(text)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
        signed = signing.envelope(payload, self.name, self._signature(payload))
        # Without spaces, so that no detector takes it for a text.
        return json.dumps(signed, separators=(",", ":"))

    def _signature(self, payload: bytes) -> bytes:
        if self._private is None:
            return mac_of(self._secret or b"", payload)
        return self._private.sign(signing.pae(signing.PAYLOAD_TYPE, payload))


def mac_of(secret: bytes, payload: bytes) -> bytes:
    """Return the HMAC-SHA256 of an envelope's payload."""
    return hmac.new(secret, signing.pae(signing.PAYLOAD_TYPE, payload), hashlib.sha256).digest()


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def keys_in(metadata: Mapping[str, Any]) -> list[str]:
    """Return the keys that a stamp covers, ascending; stores do not keep keys without a value."""
    return sorted(k for k, v in metadata.items() if k not in ADDED and v is not None)


def covered(
    metadata: Mapping[str, Any], keys: Collection[str] | None = None
) -> tuple[list[str], str]:
    """Return the covered keys of metadata, and the digest of their values.

    Raises
    ------
    ConfigurationError
        If the values cannot be written as JSON.
    """
    names = keys_in(metadata) if keys is None else sorted(keys)
    values = {name: metadata.get(name) for name in names}
    try:
        written = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        msg = (
            f"metadata cannot be stamped ({type(error).__name__}), expected keys and values that "
            "JSON can hold: texts, finite numbers, booleans, lists and mappings of these."
        )
        raise ConfigurationError(msg) from None
    return names, digest_of(written)
