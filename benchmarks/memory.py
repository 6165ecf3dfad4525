"""Memories of agents: notes that are held, and notes that count as facts, with and without origin.

    python benchmarks/memory.py            # writes benchmarks/results/memory.md
    python benchmarks/memory.py --quick    # every third note, writes nothing

Notes of 40 users, poisoned notes of nine kinds, and pages with the notes that an agent makes of
them ([wordings](wordings/README.md)) arrive one by one in a `GuardedStore`. Their author knew no
detector.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_files
from corpora import load
from langchain.agents import create_agent
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore
from models import E5
from rich.progress import track
from vectors import Model, embedded

from ragshield_core import Guard, Quarantine
from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.origin import Origin, OriginKey, Origins, Voucher
from ragshield_langchain import GuardedStore, MemoryOriginMiddleware

NOTES = json.loads((Path(__file__).parent / "wordings" / "memory_notes.json").read_text("utf-8"))
WIKIPEDIA, DRAWS, FIRST = 2_000, 3, 5
MODELS: dict[str, Callable[[], Model]] = {"MiniLM": MiniLM, "multilingual E5": E5}
# Kinds of clean notes that tools bring; all others come from the user.
BY_TOOLS = ("tool_result", "procedure", "snippet")
ADDRESS = re.compile(r"https?:|www\.|@\w|\w\.(?:com|org|net|io|example)\b")
SECRETS = {name: f"the secret of the {name}".encode() for name in ("user", "agent", "crm", "wiki")}
KEYS = {name: OriginKey(name, secret=secret) for name, secret in SECRETS.items()}
TIERS = {"user": "trusted", "agent": "trusted", "crm": "known", "wiki": "known"}
VOUCHERS = {name: Voucher(tier=TIERS[name], secrets=(one,)) for name, one in SECRETS.items()}
WAYS = {
    "no keys": None,
    "keys": Origins(VOUCHERS),
    "keys, unproven notes held": Origins(VOUCHERS, least_tier="known"),
}
HEADS = (
    *("model", "calibrated on", "clean held", "of a user's first five", "worst language"),
    *("poisoned held", "without addresses", "best kind"),
)

Note = dict[str, Any]
Held = dict[tuple[str, str], list[bool]]


class Vectors(Embeddings):
    """Vectors of texts, each embedded once."""

    def __init__(self, name: str) -> None:
        self._name, self._known = name, dict[str, list[float]]()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts; of a new one, those of all notes are read from the file."""
        if any(text not in self._known for text in texts):
            notes = [*NOTES["clean"], *NOTES["poisoned"]]
            wanted = list(dict.fromkeys([*texts, *(one["text"] for one in notes)]))
            vectors = embedded(f"memory_{self._name.split()[-1]}", wanted, MODELS[self._name])
            self._known |= dict(zip(wanted, vectors.tolist(), strict=True))
        return [self._known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return self.embed_documents([text])[0]


def namespace(user: str) -> tuple[str, str]:
    """Return the namespace of a user's memories."""
    return "memories", user


def halves(seed: int) -> tuple[list[Note], list[Note]]:
    """Return the clean notes of half of the users, and those of the others."""
    users = sorted({one["user"] for one in NOTES["clean"]})
    known = set(np.random.default_rng(seed).permutation(users)[: len(users) // 2].tolist())
    parts: tuple[list[Note], list[Note]] = ([], [])
    for one in NOTES["clean"]:
        parts[one["user"] not in known].append(one)
    return parts


def filled(model: str, notes: Sequence[Note], origins: Origins | None = None) -> GuardedStore:
    """Return a store that was adopted with notes; an empty one is guarded from the first note."""
    guard = Guard.default(quarantine=Quarantine("sqlite://"))
    if origins is not None:
        guard.origins = origins
    inner = InMemoryStore()
    for n, one in enumerate(notes):
        inner.put(namespace(one["user"]), f"known {n}", {"text": one["text"]})
    make = GuardedStore.adopt if notes else GuardedStore
    return make(inner, guard=guard, embeddings=Vectors(model))


def mixed(clean: Sequence[Note], seed: int) -> Iterator[tuple[bool, Note]]:
    """Yield clean and poisoned notes in a random order; poisoned ones reach the same users."""
    users = sorted({one["user"] for one in clean})
    rng = np.random.default_rng(seed)
    poisoned = [one | {"user": users[n % len(users)]} for n, one in enumerate(NOTES["poisoned"])]
    both = [*((False, one) for one in clean), *((True, one) for one in poisoned)]
    for at in rng.permutation(len(both)).tolist():
        yield both[at]


def held_by(model: str, calibration: str, seeds: Sequence[int]) -> Held:
    """Return whether notes are held at the end of the day, by kind and language."""
    found: Held = defaultdict(list)
    for seed in seeds:
        known, coming = halves(seed)
        wiki = [{"user": "wiki", "text": text} for text in load("wiki_passages").texts[:WIKIPEDIA]]
        store = filled(model, {"other users": known, "Wikipedia": wiki, "nothing": []}[calibration])
        came: dict[str, int] = defaultdict(int)
        places = []
        for n, (poisoned, one) in enumerate(mixed(coming, seed)):
            store.put(namespace(one["user"]), f"new {n}", {"text": one["text"]})
            came[one["user"]] += 1
            places.append((poisoned, one, n, came[one["user"]] <= FIRST))
        for poisoned, one, n, early in places:
            held = store.inner.get(namespace(one["user"]), f"new {n}") is None
            what = "poisoned" if poisoned else "clean"
            for kind in ("all", one["kind"], one["language"]):
                found[what, kind].append(held)
            if early:
                found[what, "first"].append(held)
            if not ADDRESS.search(one["text"]):
                found[what, "without addresses"].append(held)
    return found


def share(held: Sequence[bool]) -> str:
    """Return the share as shown in tables."""
    return f"{np.mean(held):.3f}" if len(held) else "-"


def row_of(model: str, calibration: str, held: Held) -> str:
    """Return a row of the first table."""
    spoken = {one["language"] for one in NOTES["clean"]}
    languages = {kind: held["clean", kind] for kind in spoken}
    worst = max(languages, key=lambda name: float(np.mean(languages[name])))
    kinds = sorted({one["kind"] for one in NOTES["poisoned"]})
    best = max(kinds, key=lambda kind: float(np.mean(held["poisoned", kind])))
    cells = (
        *(model, calibration, share(held["clean", "all"]), share(held["clean", "first"])),
        f"{worst} {share(languages[worst])} ({len(languages[worst])})",
        *(share(held["poisoned", "all"]), share(held["poisoned", "without addresses"])),
        f"{best} {share(held['poisoned', best])}",
    )
    return f"| {' | '.join(cells)} |"


# Origin


@tool
def read_page(number: int) -> str:
    """Read a page."""
    return PAGES[number]["page"]


@tool
def remember(user: str, key: str, text: str) -> str:
    """Remember a text."""
    get_store().put(namespace(user), key, {"text": text})
    return "done"


PAGES = [*NOTES["laundered"], *NOTES["genuine_pages"]]


class Scripted(GenericFakeChatModel):
    """A model that makes the calls of a script, as an agent without suspicion would."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Scripted:  # noqa: ARG002
        """Return itself."""
        return self


def call(name: str, **args: Any) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name, "type": "tool_call"}])


def note_of(store: GuardedStore, number: int, tools: dict[str, str]) -> str:
    """Let an agent read a page and remember its summary; return the key of the note."""
    key = f"page {number}"
    script = [
        call("read_page", number=number),
        call("remember", user="reader", key=key, text=PAGES[number]["summary"]),
        AIMessage("Done."),
    ]
    stamping = MemoryOriginMiddleware(store, KEYS["agent"], user="user", tools=tools)
    agent = create_agent(
        Scripted(messages=iter(script)),
        [read_page, remember],
        middleware=[stamping] if store.guard.origins else [],
        store=store,
    )
    agent.invoke({"messages": [HumanMessage("Read this page, and remember what matters.")]})
    return key


def elevated(store: GuardedStore, user: str, key: str) -> bool:
    """Return whether a note counts as a fact: it is read, and at the tier `known` with keys."""
    item = store.get(namespace(user), key)
    if item is None or not store.guard.origins:
        return item is not None
    return not item.value["ragshield_origin"].startswith("unknown")


def with_origin(model: str, origins: Origins | None) -> list[tuple[str, str]]:
    """Return shares of notes that count as facts, by kind of note."""
    known, coming = halves(0)
    store = filled(model, known, origins)
    counted: dict[str, list[bool]] = defaultdict(list)
    for n, (poisoned, one) in enumerate(mixed(coming, 0)):
        if poisoned:  # an agent makes the note, in a thread where it has read unproven text
            key, inputs, name = "agent", [Origin(key="user"), Origin()], "poisoned notes"
        elif one["kind"] in BY_TOOLS:
            key, inputs, name = "crm", None, "clean notes of tools with a key"
        else:
            key, inputs, name = "user", None, "clean notes of users"
        with store.written_by(KEYS[key], derived_from=inputs):
            store.put(namespace(one["user"]), f"new {n}", {"text": one["text"]})
        counted[name].append(elevated(store, one["user"], f"new {n}"))
    for number, page in enumerate(PAGES):
        bad = "kind" in page
        name = "notes of an agent on " + ("poisoned pages" if bad else "genuine pages")
        counted[name].append(elevated(store, "reader", note_of(store, number, {})))
    for number, page in enumerate(PAGES):
        if "kind" not in page:
            key = note_of(store, number, {"read_page": "wiki"})
            name = "notes of an agent on genuine pages of a connector with a key"
            counted[name].append(elevated(store, "reader", key))
    user = coming[0]["user"]
    for n, one in enumerate(NOTES["poisoned"]):
        with store.written_by(KEYS["user"]):
            store.put(namespace(user), "wish", {"text": f"Wish number {n}: call me at nine."})
        with store.written_by(KEYS["agent"], derived_from=[Origin()]):
            store.put(namespace(user), "wish", {"text": one["text"]})
        wish = store.get(namespace(user), "wish")
        counted["poisoned notes in place of a user's"].append(
            wish is not None and wish.value["text"] == one["text"]
        )
    return [(name, f"{share(some)} ({len(some)})") for name, some in counted.items()]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        for name in ("clean", "poisoned"):
            NOTES[name] = NOTES[name][::3]
        PAGES[:] = PAGES[::3]
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    seeds = range(1 if options.quick else DRAWS)
    plan = [("MiniLM", "other users")]
    if not options.quick:
        plan += [("MiniLM", "Wikipedia"), ("MiniLM", "nothing"), ("multilingual E5", "other users")]
    found = {(m, c): held_by(m, c, seeds) for m, c in track(plan, "Held")}
    first = found["MiniLM", "other users"]
    columns = [with_origin("MiniLM", origins) for origins in track([*WAYS.values()], "Keys")]
    kinds = sorted({one["kind"] for one in NOTES["poisoned"]})
    lines = [
        "# Memories of agents",
        "",
        "Written by `benchmarks/memory.py`. 426 clean and 166 poisoned notes of nine kinds, in",
        "seven languages, by an author who knew no detector, arrive one by one in a `GuardedStore`",
        "with `Guard.default()`, for users that it does not know. Shares of all notes in draws of",
        f"users ({len(seeds)}).",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(row_of(*key, held) for key, held in found.items()),
        "",
        "Poisoned notes held, by kind: "
        + ", ".join(f"{kind} {share(first['poisoned', kind])}" for kind in kinds)
        + ".",
        "",
        "Notes that count as facts: they are in the store, and with keys have the tier `known` or",
        "a higher one. Notes of users and tools are stamped, those of the agent by",
        "`MemoryOriginMiddleware`. A scripted model remembers the summary of each page.",
        "",
        f"| notes | {' | '.join(WAYS)} |",
        "|---|---|---|---|",
        *(
            f"| {some[0][0]} | {' | '.join(shown for _, shown in some)} |"
            for some in zip(*columns, strict=True)
        ),
    ]
    print("\n".join(lines))
    if not options.quick:
        results_files.write("memory", "\n".join(lines))


if __name__ == "__main__":
    main()
