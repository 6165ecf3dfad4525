"""Verification of stamps, and the trust in those who made them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.model.errors import AttestationError, ConfigurationError
from ragshield_core.model.findings import printable
from ragshield_core.origin.stamps import MOST_KEYS, covered, digest_of, keys_in, mac_of
from ragshield_core.signing import checked, json_of, public_key, signed_by, unsealed

if TYPE_CHECKING:
    from ragshield_core.model.entries import Batch, Entry

# Characters of a stamp: metadata with a thousand keys fits in.
LARGEST = 65_536
WHERE, WAY_OUT = "the stamp", "expected one that OriginKey.stamp made."


class Tier(IntEnum):
    """How far an origin is trusted; without a proof, not at all."""

    UNKNOWN = 0
    KNOWN = 1
    TRUSTED = 2

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def named(cls, name: str | Tier) -> Tier:
        """Return the tier of a name, such as ``"trusted"``; refuse others."""
        if isinstance(name, cls):
            return name
        try:
            return cls[str(name).upper()]
        except KeyError:
            names = ", ".join(map(str, cls))
            msg = f"{printable(str(name), 40)!r} is no tier, expected one of {names}."
            raise ConfigurationError(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Voucher:
    """Trust in one key, under its name in :class:`Origins`.

    Parameters
    ----------
    tier
        Trust in the entries that it vouches for.
    secrets
        Secrets of HMAC keys. More than one while a key is rotated: any of them verifies.
    public_keys
        Files of Ed25519 public keys, likewise.
    revoked
        Whether its stamps prove nothing any more, whenever they were made: a stolen key can write
        any time into a stamp.
    """

    tier: Tier | str = Tier.KNOWN
    secrets: tuple[bytes, ...] = ()
    public_keys: tuple[str | Path, ...] = ()
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The one who vouches for an entry, and how the guard knows that.

    Attributes
    ----------
    tier
        :attr:`Tier.UNKNOWN` without a proof.
    key
        Name of the key that made the stamp, once the stamp was verified, even if it is revoked.
    source, at
        The place that the key names, and the time of the stamp.
    why
        How the origin is known, or why it is not, for people.
    broken
        Whether there is a stamp that does not fit the entry: it was changed after it was stamped,
        or somebody copied or made up the stamp.
    inputs
        Names of the keys that vouch for the texts that this one was made from; ``None`` among them
        stands for texts without a proof.
    """

    tier: Tier = Tier.UNKNOWN
    key: str | None = None
    source: str | None = None
    at: datetime | None = None
    why: str = "no stamp"
    broken: bool = False
    inputs: tuple[str | None, ...] = ()

    @property
    def keys(self) -> tuple[str | None, ...]:
        """Names of all keys that this origin rests on; ``None`` for what nothing proves."""
        return (self.key, *self.inputs)

    def __str__(self) -> str:
        return str(self.tier) if self.key is None else f"{self.tier}:{self.key}"


class _Digest(BaseModel):
    sha256: str


class _Subject(BaseModel):
    name: str
    digest: _Digest


class _Metadata(BaseModel):
    keys: list[str]
    sha256: str


class _Predicate(BaseModel):
    source: str
    at: AwareDatetime
    metadata: _Metadata
    derived_from: Annotated[
        list[str | None] | None, Field(alias="derivedFrom", max_length=MOST_KEYS + 1)
    ] = None


class _Statement(BaseModel):
    model_config = ConfigDict(extra="ignore")
    subject: Annotated[list[_Subject], Field(min_length=1, max_length=1)]
    predicate_type: Literal["urn:ragshield:origin:v1"] = Field(alias="predicateType")
    predicate: _Predicate


class Origins:
    """The keys that are known here, and the entries that they vouch for.

    Nothing is stored: a stamp travels with its entry and is verified whenever it matters, so that a
    revoked key loses its effect at once.

    Parameters
    ----------
    vouchers
        Trust by name of the key; empty by default: then no origin is known, and nothing changes.
    least_tier
        New entries of a lower tier are held, also if no detector objects. This suits a knowledge
        base or a memory whose writers all have keys. The default, ``unknown``, holds none.

    Raises
    ------
    ConfigurationError
        If a voucher has neither a secret nor a public key, or an unknown tier; if there is a
        ``least_tier`` and no voucher.
    AttestationError
        If a file holds no public key.
    """

    def __init__(
        self,
        vouchers: Mapping[str, Voucher] | None = None,
        *,
        least_tier: Tier | str = Tier.UNKNOWN,
    ) -> None:
        self._vouchers = dict(vouchers or {})
        self.least_tier = Tier.named(least_tier)
        if self.least_tier and not self._vouchers:
            msg = f"least_tier is {self.least_tier}, and no key can vouch; name keys in vouchers."
            raise ConfigurationError(msg)
        self._tiers: dict[str, Tier] = {}
        self._public: dict[str, list[Any]] = {}
        for name, one in self._vouchers.items():
            if not one.secrets and not one.public_keys:
                msg = f"origin {name!r} has no key, expected a secret or the file of a public key."
                raise ConfigurationError(msg)
            self._tiers[name] = Tier.UNKNOWN if one.revoked else Tier.named(one.tier)
            self._public[name] = [public_key(Path(file)) for file in one.public_keys]

    def __bool__(self) -> bool:
        return bool(self._vouchers)

    def __repr__(self) -> str:  # without secrets
        return f"<Origins {', '.join(f'{n}: {t}' for n, t in self._tiers.items()) or 'none'}>"

    def of(
        self,
        text: str,
        metadata: Mapping[str, Any],
        entry_id: str | None = None,
        *,
        arriving: bool = False,
    ) -> Origin:
        """Return the origin of an entry; never raises, for any metadata.

        Parameters
        ----------
        text, metadata, entry_id
            Of the entry.
        arriving
            Whether the entry is about to be stored: then the stamp has to cover all metadata, to
            which stores may add some of their own.
        """
        stamp = metadata.get(STAMP_KEY)
        if stamp is None:
            return Origin()
        if not isinstance(stamp, str) or len(stamp) > LARGEST:
            return _broken("its stamp is not a text of the usual size")
        try:
            payload, signatures = unsealed(stamp.encode("utf-8", "replace"), WHERE, WAY_OUT)
        except AttestationError as error:
            return _broken(str(error))
        named = [name for name, _ in signatures if name in self._vouchers]
        if not named:
            return Origin(why="it has a stamp, but of no key that is known here")
        for name, signature in signatures:
            if name in self._vouchers and self._signed(name, payload, signature):
                return self._read(name, payload, text, metadata, entry_id, arriving=arriving)
        return _broken(f"its stamp names the key {named[0]!r}, which did not make it")

    def of_entry(self, entry: Entry, *, arriving: bool = False) -> Origin:
        """Return the origin of an entry, see :meth:`of`."""
        return self.of(entry.text, entry.metadata, entry.id, arriving=arriving)

    def of_batch(self, batch: Batch, *, arriving: bool = False) -> list[Origin]:
        """Return the origin of each entry, see :meth:`of`."""
        columns = zip(batch.texts, batch.metadatas, batch.ids, strict=True)
        return [self.of(*one, arriving=arriving) for one in columns]

    def _signed(self, name: str, payload: bytes, signature: bytes) -> bool:
        secrets = self._vouchers[name].secrets
        return any(hmac.compare_digest(mac_of(one, payload), signature) for one in secrets) or any(
            signed_by(one, payload, signature) for one in self._public[name]
        )

    def _read(
        self,
        name: str,
        payload: bytes,
        text: str,
        metadata: Mapping[str, Any],
        entry_id: str | None,
        *,
        arriving: bool,
    ) -> Origin:
        """Return the origin by a signed statement, if it fits the entry."""
        try:
            said = checked(json_of(payload, WHERE, WAY_OUT), _Statement, WHERE, WAY_OUT)
            subject, predicate = said.subject[0], said.predicate
            keys = predicate.metadata.keys
            same = covered(metadata, keys)[1] == predicate.metadata.sha256
        except (AttestationError, ConfigurationError) as error:
            return _broken(str(error))
        by = f"stamped by {name!r}"
        if subject.digest.sha256 != digest_of(text):
            return _broken(f"{by}, for another text")
        if not same or (arriving and not set(keys_in(metadata)) <= set(keys)):
            return _broken(f"{by}, with other metadata")
        if subject.name and entry_id is not None and subject.name != entry_id:
            return _broken(f"{by}, under another id")
        inputs = tuple(predicate.derived_from or ())
        tiers = [self._tier(one) for one in (name, *inputs)]
        when = predicate.at.date().isoformat()
        why = f"{by} on {when}" + ", and made from other texts" * (
            predicate.derived_from is not None
        )
        if self._vouchers[name].revoked:
            why += "; the key is revoked"
        return Origin(
            tier=min(tiers),
            key=name,
            source=predicate.source,
            at=predicate.at,
            why=why,
            inputs=inputs,
        )

    def _tier(self, name: str | None) -> Tier:
        return Tier.UNKNOWN if name is None else self._tiers.get(name, Tier.UNKNOWN)


def _broken(why: str) -> Origin:
    return Origin(why=why, broken=True)
