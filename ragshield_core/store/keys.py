"""Settings of a guarded store: its guard, and the metadata keys of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ragshield_core.guard import Guard
from ragshield_core.model.arguments import kind_of
from ragshield_core.model.claims import claim_of, lineage_of
from ragshield_core.model.entries import unfit
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.store.malformed import UNSTORABLE


def expect(name: str, value: object, kind: type[Any], way_out: str) -> None:
    """Refuse a value of another type, also None; name the argument, the types and the way out."""
    if value is None or not isinstance(value, kind):
        msg = f"{name} is {kind_of(value)}, expected a {kind.__name__}: {way_out}."
        raise TypeError(msg)


def expect_guard(guard: object) -> None:
    """Refuse anything but a guard of entries."""
    way_out = "make one by Guard.default(), or Guard.load(folder) where one was saved"
    expect("guard", guard, Guard, way_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataKeys:
    """Metadata keys that hold the claims of a document.

    A ``lineage`` of ``None`` means the keys that readers use, see
    :func:`ragshield_core.model.claims.lineage_of`.
    """

    label: str = "label"
    lineage: str | None = None
    prompt: tuple[str, ...] | None = None  # keys that prompts print; None: all values like text

    @classmethod
    def of(cls, label: str, lineage: str | None, prompt: Sequence[str] | None = None) -> Self:
        """Return the keys that a user gives; refuse a key of another type by name."""
        for which, key in (
            ("label_key", label),
            ("lineage_key", "" if lineage is None else lineage),
        ):
            if not isinstance(key, str):
                msg = f"{which} is {kind_of(key)}, expected a str: the name of a metadata key."
                raise TypeError(msg)
        if isinstance(prompt, str):
            msg = f"prompt_keys is the str {prompt!r}, expected a list of metadata keys."
            raise TypeError(msg)
        return cls(label=label, lineage=lineage, prompt=None if prompt is None else tuple(prompt))

    def claims(
        self,
        metadata: Mapping[str, Any],
        entry_id: str,
        document: str | None = None,
        reasons: list[str] | None = None,
    ) -> tuple[str | None, str | None]:
        """Return the label and lineage of a document, None for an unusable claim.

        ``document`` is the lineage if metadata names none; ``reasons`` collects the reason for each
        claim that cannot be read or kept.
        """
        found: list[str | None] = []
        for what in ("label", "lineage"):
            try:
                if what == "label":
                    claim = claim_of(self.label, entry_id, metadata.get(self.label))
                else:
                    claim = lineage_of(metadata, entry_id, self.lineage)
                    claim = document if claim is None else claim
            except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
                claim = None
                if reasons is not None:
                    own = isinstance(error, InvalidBatchError)  # others may quote values
                    why = f"its {what} cannot be read ({type(error).__name__})"
                    reasons.append(str(error) if own else why)
            if claim is not None and unfit(claim):
                claim = None
                if reasons is not None:
                    reasons.append(f"its {what} {UNSTORABLE}")
            found.append(claim)
        return found[0], found[1]
