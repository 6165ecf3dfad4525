"""DSSE envelopes: bytes, their type, and signatures over both."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ragshield_core.model.errors import AttestationError
from ragshield_core.tools.attest.keys import PrivateKey, PublicKey, key_id
from ragshield_core.tools.attest.reading import parsed

PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Signatures that are tried; more are an attempt to keep us busy.
MOST_SIGNATURES = 32


class Signature(BaseModel):
    """One signature; the id of the key is a hint that nothing vouches for."""

    model_config = ConfigDict(frozen=True, strict=True)
    sig: str
    keyid: str = ""


class Envelope(BaseModel):
    """As DSSE 1.0 has it; names that it does not know are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)
    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: Annotated[list[Signature], Field(min_length=1, max_length=MOST_SIGNATURES)]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sealed(payload: bytes, key: PrivateKey) -> str:
    """Return an envelope with one signature, as JSON."""
    signature = key.sign(pae(PAYLOAD_TYPE, payload))
    values = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()}
        ],
    }
    return json.dumps(values, indent=1) + "\n"


def opened(data: bytes, key: PublicKey, where: str) -> bytes | None:
    """Return the payload if the key has signed it; else ``None``.

    Raises
    ------
    AttestationError
        If it is no envelope of an in-toto statement.
    """
    envelope = parsed(
        data,
        Envelope,
        where=where,
        way_out="expected a DSSE envelope as ragshield attest sign writes it.",
    )
    if envelope.payload_type != PAYLOAD_TYPE:
        msg = f"{where} holds another payloadType, expected {PAYLOAD_TYPE!r}: an in-toto statement."
        raise AttestationError(msg)
    payload = _decoded(envelope.payload, f"the payload of {where}")
    message = pae(envelope.payload_type, payload)
    signed = any(
        key.has_signed(_decoded(one.sig, f"a signature of {where}"), message)
        for one in envelope.signatures
    )
    return payload if signed else None


def _decoded(text: str, what: str) -> bytes:
    """Decode base64, of the usual or of the URL-safe alphabet: DSSE allows both."""
    try:
        return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except (ValueError, binascii.Error):
        msg = f"{what} is not base64; the file was damaged: get it anew."
        raise AttestationError(msg) from None
