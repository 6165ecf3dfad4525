"""Comparison with peers in one run, each peer in its own role.

    python benchmarks/peers.py                  # everything, writes benchmarks/results/peers.md
    python benchmarks/peers.py --only labels    # these roles, the others stay
    python benchmarks/peers.py --quick          # small, writes nothing

Needs the extras ``peers``, ``minilm`` and ``labels``. No peer downloads anything here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import warnings
from collections.abc import Callable
from importlib.metadata import version

import faiss
from peer_canaries import canaries
from peer_groups import groups
from peer_labels import labels
from peer_lists import lists
from peer_texts import texts
from results_files import RESULTS, write

STORED = RESULTS / "peers.json"
PACKAGES = (
    *("rag-firewall", "ragdefender", "agent-memory-guard", "cleanlab", "datasketch"),
    *("scikit-learn", "sentence-transformers", "torch"),
)
# Role -> function that returns the lines of its tables, and all counts.
ROLES: dict[str, Callable[..., tuple[list[str], dict[str, object]]]] = {
    "groups": groups,
    "texts": texts,
    "lists": lists,
    "labels": labels,
    "canaries": canaries,
}

HEAD = """# Peers side by side

Written by `benchmarks/peers.py`: {versions}; Python {python}, {threads} thread(s). Vectors:
all-MiniLM-L6-v2, the same for all. Peers come from PyPI, or are rules as published: the label
strategies of Dynatrace unguard, CleanBase (without three quirks of its repository, see
`detectors/groups/cleanbase.py`), and the canary notebook. Cells are shares with exact 95 %
intervals (Clopper-Pearson): of clean entries, those that are held, dropped or flagged; of poisoned
ones, those that are found. "As it comes": the peer's own default. "At 1 %": its threshold is the
one that 1 % of clean calibration data exceeds. Time is per new entry, vectors given; of embedding:
as a share of embedding the same texts with MiniLM on the same threads, in the same run.

Load average of the machine while a role ran, on {cores} cores: {loads}. Where it is above their
number, other work ran beside, and times are longer than need be and no more than a hint.

**Who was tuned on what.** No peer was tuned on any text below by us, but for its threshold, on
clean calibration data. Our detectors were made with PoisonedRAG's NQ and HotpotQA texts,
`promptinjection_nq` and these clean corpora in view, and have been measured before on the texts of
RAGDefender's authors (docs/limits.md), but not on agent-memory-guard's payloads; of the unseen
wordings, docs/peers.md says who had seen what. What follows from the figures, losses first:
[docs/peers.md](../../docs/peers.md).
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--only", nargs="+", choices=list(ROLES), help="roles to run")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # warnings of peers
    done: dict[str, dict[str, object]] = {}
    if STORED.exists():  # keep the roles that are not run
        done = json.loads(STORED.read_text(encoding="utf-8"))
    for name in arguments.only or ROLES:
        lines, counts = ROLES[name](quick=arguments.quick)
        # Load of the last five minutes: times on a busy machine are only a hint.
        load = round(os.getloadavg()[1], 1)
        done[name] = {"lines": lines, "counts": counts, "load": load}
        print("\n".join(lines), flush=True)
        if not arguments.quick:
            write_page(done, partly=bool(arguments.only) or name != list(ROLES)[-1])


def write_page(done: dict[str, dict[str, object]], *, partly: bool) -> None:
    """Write the results."""
    head = HEAD.format(
        versions=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        python=platform.python_version(),
        threads=faiss.omp_get_max_threads(),
        cores=os.cpu_count(),
        loads=", ".join(f"{name} {done[name]['load']}" for name in ROLES if name in done),
    )
    lines = [head, *(line for name in ROLES if name in done for line in done[name]["lines"])]
    STORED.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write("peers", "\n".join(lines), partly=partly)


if __name__ == "__main__":
    main()
