"""``ragshield detectors``: the command that lists detectors, and their explanations."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ragshield_core.tools.docstrings import plain, sections
from ragshield_core.tools.options import AsListing, Listing

if TYPE_CHECKING:
    from ragshield_core.detectors.registry import AnyDetector

WHEN = {
    "built-in": "in every guard and audit",
    "on request": "only where it is asked for",
    "retrieval": "when passages are retrieved",
}

detectors_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Say what detectors look for."
)
console = Console()


@detectors_app.callback()
def _options() -> None:
    """Say what detectors look for; `ragshield explain NAME` has more."""


@detectors_app.command("list")
def list_detectors(*, form: AsListing = Listing.TABLE) -> None:
    """List detectors with their targets, needs, times of judging and taxonomy."""
    from ragshield_core.detectors.registry import BUILT_IN, FOR_RETRIEVAL, ON_REQUEST

    found = [_summary(one) for one in (BUILT_IN | ON_REQUEST | FOR_RETRIEVAL).values()]
    if form is Listing.JSON:
        typer.echo(json.dumps(found, indent=2))
        return
    for one in found:
        console.print(Text(one["name"], style="bold"))
        needs, taxonomy = (", ".join(one[what]) for what in ("needs", "taxonomy"))
        for line in (one["looks_for"], f"needs {needs}; judges {WHEN[one['kind']]}", taxonomy):
            console.print(Padding(Text(line), (0, 0, 0, 4)))


def explained(detector: type[AnyDetector]) -> list[str]:
    """Return paragraphs about a detector: how it judges, its limits, its threshold."""
    one, parts = _summary(detector), sections(detector)
    told = [f"{detector.name}: {one['looks_for']}"]
    told += _paragraphs(parts[""])[1:]
    if "Notes" in parts:
        told += ["Limits and notes", *_paragraphs(parts["Notes"])]
    return [
        *told,
        f"Needs: {', '.join(one['needs'])}. Judges {WHEN[one['kind']]}.",
        (
            f"Threshold without a calibration: {one['threshold']}; a calibration sets it by the "
            "accepted share of clean entries."
        ),
        f"Taxonomy: {', '.join(one['taxonomy'])}",
    ]


def _summary(detector: type[AnyDetector]) -> dict[str, Any]:
    """Return a detector's values in the list, JSON-ready."""
    from ragshield_core.detectors.registry import BUILT_IN, FOR_RETRIEVAL

    name = detector.name
    kind = "retrieval" if name in FOR_RETRIEVAL else "on request"
    threshold = getattr(detector, "default_threshold", None)
    known = isinstance(threshold, float) and math.isfinite(threshold)
    return {
        "name": name,
        "looks_for": _paragraphs(sections(detector)[""])[0],
        "needs": sorted(getattr(detector, "needs", ())),
        "kind": "built-in" if name in BUILT_IN else kind,
        "threshold": threshold if known else None,
        "taxonomy": list(detector.traits.taxonomy),
    }


def _paragraphs(text: str) -> list[str]:
    return [plain(" ".join(part.split())) for part in text.split("\n\n")]
