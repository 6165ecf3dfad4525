"""The figures of a canary as people see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragshield_core.findings import printable

if TYPE_CHECKING:
    from ragshield_core.tools.canary.drift import CanaryDrift

# Characters of an id that are shown.
SHOWN_ID = 60


def figures(drift: CanaryDrift) -> list[tuple[str, str]]:
    """Return names and values of a canary's figures, as they are shown; those that are there."""
    rows: list[tuple[str, str]] = [
        ("flagged", "yes" if drift.flagged else "no"),
        ("anomaly", f"{drift.score:.3f}"),
    ]
    for name in (
        *("answer_drift", "answer_cosine", "jaccard", "overlap_at_k", "rank_biased_overlap"),
        *("takeover", "takeover_p", "resemblance_p", "suspicion_ratio", "suspicion_delta"),
        *("poison_ratio", "poison_delta"),
    ):
        value = getattr(drift, name)
        if value is not None:
            shown = f"{value:+.3f}" if name.endswith("_delta") else f"{value:.3g}"
            if not name.endswith(("_p", "_delta")):
                shown = f"{value:.3f}"
            rows.append((name.replace("_", " ").replace("overlap at k", "overlap@k"), shown))
    new = set(drift.newcomers)
    # Each shortened: a long id must not hide the others.
    ids = (("+" if i in new else "") + printable(i, SHOWN_ID) for i in drift.ids)
    rows.append(("retrieved", ", ".join(ids)))
    if drift.reasons:
        rows.append(("why", "; ".join(drift.reasons)))
    return rows
