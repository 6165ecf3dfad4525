"""Corroboration by origins: several keys that state the same count for more than one alone."""

from __future__ import annotations

from collections.abc import Sequence

from ragshield_core.origin.origins import Origin, Tier
from ragshield_core.text.normalized import sentences


def corroborated(texts: Sequence[str], origins: Sequence[Origin]) -> list[Tier]:
    """Return the tier of each text, (n_texts,), with regard to the others.

    A text of the tier ``known`` counts as ``trusted`` if all its sentences stand, word for word, in
    a text of other keys that is known or trusted. Keys count, not texts: an attacker with one key,
    or with none, gains nothing by many copies. Sentences are compared as a whole, so that a copy
    with one changed fact, or one that denies it, corroborates nothing.

    Examples
    --------
    >>> from ragshield_core.origin import Origin, Tier
    >>> wiki, shop = (Origin(tier=Tier.KNOWN, key=key) for key in ("wiki", "shop"))
    >>> texts = ["Refunds take five days.", "Hello. Refunds take five days.", "We are closed."]
    >>> [str(tier) for tier in corroborated(texts, [wiki, shop, shop])]
    ['trusted', 'known', 'known']
    """
    proven = [
        (frozenset(origin.keys), _sentences(text))
        for text, origin in zip(texts, origins, strict=True)
        if origin.tier > Tier.UNKNOWN
    ]

    def tier(text: str, origin: Origin) -> Tier:
        said = _sentences(text) if origin.tier is Tier.KNOWN else None
        others = (other for keys, other in proven if keys.isdisjoint(origin.keys))
        return Tier.TRUSTED if said and any(said <= one for one in others) else origin.tier

    return [tier(text, origin) for text, origin in zip(texts, origins, strict=True)]


def _sentences(text: str) -> set[str]:
    """Return the sentences of a text, without regard to case, spaces and full stops."""
    found = (" ".join(text[start:end].casefold().split()) for start, end in sentences(text))
    return {one.rstrip(".。") for one in found} - {""}
