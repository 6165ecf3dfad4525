"""Run the benchmarks whose results are stale, one after the other.

    python benchmarks/run_all.py            # stale results; resumes an interrupted run
    python benchmarks/run_all.py --list     # prints the stale results, runs nothing
    python benchmarks/run_all.py --only growth sources   # the stale ones of these
    python benchmarks/run_all.py --note     # writes the code of each result into docs/results.md

A result is stale when other code than this tree measured it (`results_files.py`). Results of speed
and of faults are not included: they depend on the machine, and show no decision of a guard.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from results_files import current, is_current, measured_by

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "results.md"
NOTE, END = "<!-- measured by -->", "<!-- end -->"
# Name of the result -> script; slow ones last.
SCRIPTS = {
    "sources": "sources.py",
    "adversary": "adversary.py",
    "label_flipping": "label_flipping.py",
    "singles": "singles.py",
    "one_by_one": "one_by_one.py",
    "length": "length.py",
    "models": "models.py",
    "joint_fpr": "joint_fpr.py",
    "stream": "stream.py",
    "cliques": "cliques.py",
    "ingestion": "ingestion.py",
    "growth": "growth.py",
    "poisoned_samples": "poisoned_samples.py",
    "retrieval": "retrieval.py",
    "canaries": "canaries.py",
    "hotflip": "hotflip.py",
    "hubs": "hubs.py",
    "refusals": "refusals.py",
    "langchain_end_to_end": "langchain_end_to_end.py",
    "llamaindex_end_to_end": "llamaindex_end_to_end.py",
    "review_queue": "review_queue.py",
    "instruction_model": "fit_instruction_model.py",
    "orders": "orders.py",
    "scan": "scan.py",
    "origin": "origin.py",
    "memory": "memory.py",
    "peers": "peers.py",
}


def stale(names: list[str]) -> list[str]:
    """Return the names of stale or missing results."""
    return [name for name in names if not is_current(name)]


def shown(name: str) -> str:
    """Return a line about the status of a result."""
    return f"{name:24} {'up to date' if is_current(name) else f'stale: {measured_by(name)}'}"


def note() -> str:
    """Return the table for docs/results.md of results and the code that measured them."""
    lines = ["| result | version | code |", "|---|---|---|"]
    for name in sorted(SCRIPTS):
        by = measured_by(name)
        lines.append(f"| {name} | {by.version} | {', '.join(by.codes)} |")
    return "\n".join(lines)


def with_note(page: str) -> str:
    """Return a page with the table between its markers."""
    before, _, rest = page.partition(NOTE)
    _, _, after = rest.partition(END)
    return f"{before}{NOTE}\n{note()}\n{END}{after}"


def run(name: str) -> bool:
    """Run a benchmark, and return whether its result is now up to date."""
    begin = time.monotonic()
    print(f"{name}: {SCRIPTS[name]}", flush=True)
    done = subprocess.run([sys.executable, str(FOLDER / SCRIPTS[name])], check=False)  # noqa: S603
    minutes = (time.monotonic() - begin) / 60
    met = done.returncode == 0 and is_current(name)
    print(f"{name}: {'done' if met else 'FAILED'} after {minutes:.0f} minutes", flush=True)
    return met


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what is stale, and run nothing")
    parser.add_argument("--note", action="store_true", help="write it into docs/results.md")
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), help="results to look at")
    arguments = parser.parse_args()
    names = arguments.only or list(SCRIPTS)
    if arguments.note:
        PAGE.write_text(with_note(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if arguments.list:
        print(f"code of this tree: {current()}")
        print("\n".join(map(shown, names)))
        return
    if failed := [name for name in stale(names) if not run(name)]:
        msg = f"no result by this code: {', '.join(failed)}"
        raise SystemExit(msg)


if __name__ == "__main__":
    main()
