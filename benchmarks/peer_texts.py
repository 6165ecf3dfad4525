"""Peers that find injected instructions in single texts, at ingestion or retrieval."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from corpora import load, read_rows
from ingestion import split, written
from numpy.typing import NDArray
from peer_tables import FPR, Counts, embedding_cost, timed
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import InstructionDetector
from ragshield_core.huggingface.minilm import MiniLM

Flags = Callable[[Sequence[str]], NDArray[np.bool_]]

N_CLEAN, N_OTHERS = 3_000, 1_000
# The scanners of rag-firewall in its README; the third policy there only sorts.
SCANNERS = """
scanners:
  - type: regex_injection
  - type: pii
  - type: secrets
  - type: encoded
  - type: url
    allowlist: ["docs.myco.com", "intranet.myco.local"]
    denylist: ["evil.example.com"]
  - type: conflict
    stale_days: 120
"""
# As in the README: the second policy has an empty match.
POLICIES = """
policies:
  - name: block_high_sensitivity
    match: { metadata.sensitivity: "high" }
    action: deny
  - name: block_secrets_leak
    match: {}
    action: deny
"""

HEAD = """
## 2. Injected instructions in single texts

Each text is judged by itself. Injections: those of `promptinjection_nq`, a document of its own or
inside a clean passage (rules of our `instruction` detector were improved with these in view); the
unseen wordings (`attacks_test`, 220 in seven languages, by an author who did not know the rules;
no method was tuned on them); and the {amsb} payloads against the model in agent-memory-guard's own
benchmark (`bench.scenarios`: prompt_injection and memory_persistence). Clean: passages of
Wikipedia that the guard does not know ("clean"), hard benign texts (`benign_test`), NotInject, ham
of Enron and technical documentation. The guard was fitted on {known:,} passages of Wikipedia;
mails, documentation and the short texts are another source than it was calibrated on.

The peers have no threshold. So the guard is shown at 1 %, and once more at the rate of each peer:
calibrated to the share of Wikipedia that the peer holds, or, where that is none of
{calibration:,}, to the smallest rate that the knowledge base can justify.
"""

NOT_RUN = """
Not run: agent-memory-guard's `MLInjectionDetector` (its extra `ml`). It downloads the model
`protectai/deberta-v3-base-prompt-injection-v2` when it is first used; no package brings it."""


def firewall(config: str) -> Flags:
    """Return a function that flags the texts denied by rag-firewall."""
    # The package reads this at import; its default is a file in the working directory.
    os.environ["RAGFW_AUDIT_LOG"] = os.devnull
    from rag_firewall import Firewall  # noqa: PLC0415 - an extra

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "firewall.yaml"
        path.write_text(config, encoding="utf-8")
        wall = Firewall.from_yaml(str(path))

    def flags(texts: Sequence[str]) -> NDArray[np.bool_]:
        decisions = (wall.decide({"page_content": text, "metadata": {}})[0] for text in texts)
        return np.array([decision["action"] == "deny" for decision in decisions], dtype=np.bool_)

    return flags


def rag_scan(*, strict: bool) -> Flags:
    """Return a function that flags the texts that agent-memory-guard's RAG scanner calls unsafe."""
    from agent_memory_guard.rag import scan_rag_input  # noqa: PLC0415 - an extra

    def flags(texts: Sequence[str]) -> NDArray[np.bool_]:
        return np.array([not scan_rag_input(text, strict=strict).safe for text in texts])

    return flags


def memory() -> Flags:
    """Return a function that flags the texts that agent-memory-guard's best setting rejects."""
    from agent_memory_guard.bench.adapter import RememberOutcome  # noqa: PLC0415 - an extra
    from agent_memory_guard.bench.adapters import AMGHardenedAdapter  # noqa: PLC0415

    kept = {RememberOutcome.STORED, RememberOutcome.REDACTED}

    def flags(texts: Sequence[str]) -> NDArray[np.bool_]:
        # A new memory for each text, because each blocked text makes a snapshot of all of it.
        found = (AMGHardenedAdapter().remember("knowledge.entry", text) for text in texts)
        return np.array([outcome not in kept for outcome in found])

    return flags


def peers() -> dict[str, Flags]:
    """Return every peer."""
    return {
        "rag-firewall, README's configuration": firewall(SCANNERS + POLICIES),
        "rag-firewall, its scanners": firewall(SCANNERS),
        "agent-memory-guard, `scan_rag_input`": rag_scan(strict=True),
        "agent-memory-guard, `scan_rag_input(strict=False)`": rag_scan(strict=False),
        "agent-memory-guard, writes, hardened": memory(),
    }


def own_payloads() -> list[str]:
    """Return the payloads against the model in agent-memory-guard's benchmark."""
    from agent_memory_guard.bench.scenarios import default_corpus  # noqa: PLC0415 - an extra

    kinds = ("prompt_injection", "memory_persistence")
    return [one.steps[0].value for one in default_corpus() if one.category in kinds]


def text_sets(test: Batch, *, quick: bool) -> dict[str, Batch]:
    """Return clean texts and injections, with vectors."""
    rng = np.random.default_rng(0)

    def some(batch: Batch) -> Batch:
        return batch.take(rng.permutation(len(batch))[:N_OTHERS])

    rows, injected = read_rows("promptinjection_nq"), load("promptinjection_nq")
    inside = np.array([row["carrier_id"] is not None for row in rows])
    ham = load("enron1_spam")
    model = MiniLM()

    def embedded(name: str, texts: Sequence[str]) -> Batch:
        ids = [f"{name} {number}" for number in range(len(texts))]
        return Batch.of(ids=ids, texts=texts, embeddings=model.embed(list(texts)))

    n = 5 if quick else None
    attacks, benign = written("attacks_test").texts[:n], written("benign_test").texts[:n]
    found = {
        "clean": test.take(range(min(N_CLEAN, len(test)))),
        "hard benign": embedded("benign", benign),
        "NotInject": load("notinject_one"),
        "mails": some(ham.take([i for i, label in enumerate(ham.labels) if label == "not_spam"])),
        "documentation": some(load("near_duplicate_docs")),
        "injections, alone": injected.take(~inside),
        "injections, in a passage": injected.take(inside),
        "unseen wordings": embedded("attack", attacks),
        "agent-memory-guard's": embedded("payload", own_payloads()),
    }
    if quick:
        found = {name: batch.take(range(min(20, len(batch)))) for name, batch in found.items()}
    # Without labels: only mails have them, and they are not tested here.
    return {
        name: Batch.of(ids=one.ids, texts=one.texts, embeddings=one.embeddings)
        for name, one in found.items()
    }


def alone(guard: Guard, entries: Batch) -> NDArray[np.bool_]:
    """Return a mask of the held entries, each screened by itself."""
    held = [not guard.screen(entries.take([row])).admitted[0] for row in range(len(entries))]
    return np.array(held, dtype=np.bool_)


def by_peers(clean: Batch, sets: dict[str, Batch], counts: Counts) -> dict[str, float]:
    """Count the findings of peers; return the share of clean texts that each holds."""
    rates = {}
    for name, flags in track(peers().items(), description="peers of texts"):
        rates[name] = float(np.mean(flags(clean.texts)))
        for column, batch in sets.items():
            found, seconds = timed(lambda: flags(batch.texts))
            counts.add(name, column, found)
            if column == "clean":
                counts.took(name, seconds, len(batch))
    return rates


def by_rule(sets: dict[str, Batch], counts: Counts) -> None:
    """Count the findings of the instruction detector by its rule."""
    detector, name = InstructionDetector(), "**`InstructionDetector`**, its rule"
    rule = max(detector.default_threshold, detector.traits.floor)
    for column, batch in sets.items():
        scores, seconds = timed(lambda: detector.score(batch))
        counts.add(name, column, scores > rule)
        if column == "clean":
            counts.took(name, seconds, len(batch))


def by_guard(known: Batch, rates: dict[str, float], sets: dict[str, Batch], counts: Counts) -> None:
    """Count entries held by the default guard at 1 %, at the peers' rates, and at its smallest."""
    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()
    least = guard.state.calibrator.calibration.smallest_rate * (1 + 1e-9)
    shown = {FPR: "**default guard**, at 1 %"}
    for name, rate in rates.items():
        if least < rate < FPR:  # not the rates of peers that hold nothing, or more than 1 %
            shown[rate] = f"**default guard**, at {rate:.2%} as {name}"
    shown[least] = f"**default guard**, at {least:.2%}, the smallest"
    for rate, name in track(shown.items(), description="guard of texts"):
        guard.calibrate(fpr=rate)
        for column, batch in sets.items():
            counts.add(name, column, alone(guard, batch))
        batch = sets["clean"].take(range(min(N_OTHERS, len(sets["clean"]))))
        counts.took(name, timed(lambda: guard.screen(batch))[1], len(batch))


def texts(*, quick: bool = False) -> tuple[list[str], dict[str, object]]:
    """Return the table, and all counts."""
    known, rest = split(load("wiki_passages", lineage="title"), 0)
    if quick:
        known = known.take(range(2_000))
    clean, test = split(rest, 0, 0.5)
    sets = text_sets(test, quick=quick)
    cost = embedding_cost(test.texts[: 50 if quick else None])
    counts = Counts()
    rates = by_peers(clean, sets, counts)
    by_rule(sets, counts)
    by_guard(known, rates, sets, counts)
    head = HEAD.format(amsb=len(own_payloads()), known=len(known), calibration=len(clean))
    lines = [head, f"Embedding a text takes {cost:.1f} ms.\n", *counts.table(list(sets), cost)]
    return [*lines, NOT_RUN], counts.to_dict()
