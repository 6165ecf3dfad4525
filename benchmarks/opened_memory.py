"""Memory of a saved guard in a process that opens it, by table; run it in a new process.

python benchmarks/opened_memory.py guard    # prints JSON: bytes of packages, growth, tables
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import faiss  # noqa: F401 - imported before the measurement
import numpy as np
import psutil
import scipy.sparse  # noqa: F401

import ragshield_core.neighbors.stored  # noqa: F401
from ragshield_core import Guard, Quarantine
from ragshield_core.detectors.groups.graph import SimilarityGraph


def parts(value: Any) -> list[Any]:
    """Return the objects that an object of ours, or a container, refers to."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    found = list(vars(value).values()) if hasattr(value, "__dict__") else []
    found += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return found if type(value).__module__.startswith(("ragshield", "collections")) else []


def size(value: Any, seen: set[int]) -> int:
    """Return the bytes of an object and of all objects that it refers to, except those in ``seen``.

    Arrays count in full, although the system allocates no memory for unwritten zeros.
    """
    total, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, np.ndarray) and isinstance(one.base, np.ndarray):
            total += sys.getsizeof(one) if id(one) not in seen else 0
            seen.add(id(one))
            one = one.base
        if id(one) in seen or isinstance(one, type | type(sys)):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        left += parts(one)
    return total


def tables(guard: Guard) -> Iterator[tuple[str, Any]]:
    """Yield the tables of a guard by name."""
    for name, value in vars(guard.state.knowledge).items():
        if name not in ("detectors", "learners"):
            yield f"known: {name}", value
    for detector in guard.detectors:
        for name, value in vars(detector).items():
            if isinstance(value, SimilarityGraph):
                yield from ((f"{detector.name}: graph {key}", v) for key, v in vars(value).items())
            elif name != "_neighbors":
                yield f"{detector.name}: {name}", value
    yield "calibration", [guard.state.calibrator, guard.state.recalibration]


def main() -> None:
    """Open a guard, and print its memory."""
    process = psutil.Process()
    before = process.memory_info().rss
    guard = Guard.load(sys.argv[1], quarantine=Quarantine("sqlite://"))
    gc.collect()
    grown = process.memory_info().rss - before
    seen: set[int] = {id(guard.quarantine), id(guard)}
    found: Counter[str] = Counter()
    for name, value in tables(guard):
        found[name] += size(value, seen)
    print(json.dumps({"packages": before, "grown": grown, "tables": dict(found.most_common())}))


if __name__ == "__main__":
    main()
