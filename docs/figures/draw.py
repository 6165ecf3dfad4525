"""Draw the pictures of the documentation: `python docs/figures/draw.py`.

The architecture is drawn from the words below, the results from what the benchmarks wrote.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).parent
INGESTION = FOLDER.parents[1] / "benchmarks" / "results" / "ingestion.md"
# Readable on white and on black pages.
INK, CLEAN, POISON, GUARD = "#5c6670", "#2a78b5", "#c0453a", "#4a8c5c"


def box(
    axes: Any, at: tuple[float, float], text: str, color: str, size: tuple[float, float]
) -> None:
    """Draw a box around its middle."""
    (x, y), (width, height) = at, size
    low = (x - width / 2, y - height / 2)
    shape = FancyBboxPatch(
        low,
        width,
        height,
        boxstyle="round,pad=0.02,rounding_size=0.08",
        fc="none",
        ec=color,
        lw=1.6,
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", color=color, fontsize=9, linespacing=1.4)


def arrow(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    color: str = INK,
) -> None:
    """Draw an arrow with a few words above it."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.4})
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    axes.text(x, y + 0.1, text, ha="center", va="bottom", color=color, fontsize=8)


def architecture() -> None:
    """Draw the way of a document: in, held or stored, out."""
    figure, axes = plt.subplots(figsize=(9.2, 3.1))
    axes.set(xlim=(0.1, 11.1), ylim=(-0.1, 3.5))
    axes.axis("off")
    box(axes, (0.9, 2.6), "documents", INK, (1.3, 0.6))
    box(
        axes,
        (3.7, 2.6),
        "Guard\ndetectors · calibration · policy",
        GUARD,
        (3.1, 0.9),
    )
    box(axes, (7.0, 2.6), "your vector store", CLEAN, (1.7, 0.7))
    box(axes, (3.7, 0.6), "quarantine\nevidence · log", POISON, (2.0, 0.8))
    box(axes, (7.0, 0.6), "canary queries\nscans", GUARD, (1.7, 0.8))
    box(axes, (9.0, 1.6), "RetrievalGuard", GUARD, (1.5, 0.6))
    box(axes, (10.3, 2.6), "your chain", INK, (1.2, 0.6))
    arrow(axes, (1.6, 2.6), (2.1, 2.6))
    arrow(axes, (5.3, 2.6), (6.1, 2.6), "clean", CLEAN)
    arrow(axes, (3.5, 2.1), (3.5, 1.05), color=POISON)
    axes.text(3.4, 1.6, "suspicious", ha="right", va="center", color=POISON, fontsize=8)
    arrow(axes, (4.75, 0.8), (6.3, 2.2), color=CLEAN)
    axes.text(5.75, 1.4, "released\nby a person", ha="left", va="center", color=CLEAN, fontsize=8)
    arrow(axes, (7.9, 2.4), (8.5, 1.95))
    arrow(axes, (9.4, 1.95), (9.9, 2.25))
    arrow(axes, (7.0, 1.05), (7.0, 2.2), color=GUARD)
    arrow(axes, (6.1, 0.6), (4.75, 0.6), "recalled", POISON)
    save(figure, "architecture")


def recalls() -> dict[tuple[str, str, str], list[float]]:
    """Return recall of five, three, two and one by knowledge base, attack and texts."""
    section = INGESTION.read_text(encoding="utf-8").partition("## The default guard")[2]
    found = {}
    for part in section.partition("\n## ")[0].split("\n### ")[1:]:
        base = part.splitlines()[0].strip()
        rows = re.findall(r"^\| (poisonedrag_\w+) \| ([^|]+) \|(.+)\|$", part, re.MULTILINE)
        for attack, kind, cells in rows:
            found[base, attack, kind] = [float(cell.split()[0]) for cell in cells.split("|")]
    return found


def results() -> None:
    """Draw recall by the number of documents for one question."""
    figure, both = plt.subplots(1, 2, figsize=(9.2, 3.0), sharey=True)
    for (base, attack, kind), values in recalls().items():
        axes = both[0 if base.startswith("wiki") else 1]
        style = {"poisonedrag_nq": "-", "poisonedrag_hotpotqa": "--"}[attack]
        color = CLEAN if kind.startswith("black-box") else POISON
        name = f"{'NQ' if attack.endswith('nq') else 'HotpotQA'}, {kind.split(',')[0]}"
        axes.plot([5, 3, 2, 1], values, style, color=color, marker="o", ms=4, label=name)
    for axes, title in zip(both, ("Wikipedia", "web pages on the very questions"), strict=True):
        axes.set_title(title, color=INK, fontsize=9)
        axes.set_xticks([1, 2, 3, 5])
        axes.set_xlabel("documents for one question", color=INK, fontsize=8)
        axes.tick_params(colors=INK, labelsize=8)
        axes.set_ylim(-0.03, 1.05)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.grid(visible=True, color=INK, alpha=0.25)
    both[0].set_ylabel("share that is held", color=INK, fontsize=8)
    both[1].legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right")
    save(figure, "results")


def save(figure: Any, name: str) -> None:
    """Write a picture that is the same whenever it is drawn."""
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw both."""
    mpl.rcParams.update({"svg.hashsalt": "ragshield", "svg.fonttype": "none"})
    mpl.rcParams["font.family"] = "sans-serif"
    architecture()
    results()


if __name__ == "__main__":
    main()
