"""Reference pages of fictional software on five templates, like those of documentation generators.

A knowledge base may have thousands of such pages, which are largely the same and differ only in
names, types and defaults. The texts are our own and unpublished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from ragshield_core import Batch
from ragshield_langchain.minilm import MiniLMEmbeddings

N_PAGES = 5_000
SERVICE_NAMES = (
    "Anchor Atlas Beacon Cinder Cobalt Comet Delta Drift Ember Fathom Gantry Granite Harbor "
    "Juniper Kestrel Lantern Mantle Meridian Nimbus Orchard Pylon Quarry Relay Sable Tandem Umber"
)
RESOURCE_NAMES = (
    "account alarm archive backup batch bucket budget cache certificate channel cluster connector "
    "credential dashboard dataset deployment device domain endpoint event export filter firewall "
    "folder forecast function gateway group image import index instance invoice job key label "
    "layer lease license listener log metric migration mirror model monitor network node "
    "notebook partition password permission pipeline plan policy pool portal profile project proxy "
    "queue quota record region registry replica report role route rule schedule schema secret "
    "segment sensor session shard snapshot stage stream subscription table tag target task "
    "template tenant token topic trigger tunnel user vault version volume workflow workspace zone"
)
SERVICES, RESOURCES = SERVICE_NAMES.split(), RESOURCE_NAMES.split()
# Verb of a call -> its description.
VERBS = {
    "create": "Makes a new {r} and returns it in the state PENDING.",
    "delete": "Removes the {r}. What refers to it is left as it is.",
    "describe": "Returns all that is known of one {r}.",
    "list": "Returns the {r}s of the caller, a page at a time, newest first.",
    "update": "Changes the fields that are given; all others keep their values.",
    "enable": "Lets the {r} take work again after it was disabled.",
    "disable": "Stops the {r} from taking new work; what runs is finished.",
    "copy": "Makes another {r} with the same settings in a region of your choice.",
    "tag": "Adds key-value pairs to the {r}, by which costs are told apart.",
    "restore": "Brings a deleted {r} back within its retention period.",
}
FIELDS = {
    "Name": ("String", "The name of the {r}, unique within the {s} account."),
    "Description": ("String", "What the {r} is for, in at most {n} characters."),
    "RetentionInDays": ("Integer", "How long versions of the {r} are kept before they expire."),
    "Encrypted": ("Boolean", "Whether the {r} is encrypted at rest with a key of {s}."),
    "KeyId": ("String", "The key that the {r} is encrypted with. It has to be of the region."),
    "MaxConcurrency": ("Integer", "How many requests the {r} serves at the same time."),
    "TimeoutSeconds": ("Integer", "After how many seconds a call to the {r} is given up."),
    "Tags": ("List of Tag", "Key-value pairs that the {r} carries, up to {n} of them."),
    "Region": ("String", "Where the {r} is. It cannot be moved afterwards."),
    "Role": ("String", "The role that {s} takes on while it works on the {r}."),
    "Schedule": ("String", "When the {r} is run, as a cron expression in UTC."),
    "Priority": ("Integer", "Which {r} comes first where two would match; lower wins."),
    "Owner": ("String", "The account that pays for the {r}."),
    "Protected": ("Boolean", "Whether deleting the {r} is refused until this is off."),
    "Endpoint": ("String", "The address under which the {r} can be reached."),
    "BatchSize": ("Integer", "How many records the {r} takes from its source at once."),
    "Compression": ("GZIP | LZ4 | NONE", "How the content of the {r} is stored."),
    "LogLevel": ("ERROR | WARN | INFO", "From which level on {s} writes messages of the {r}."),
}
CAUSES = {
    "Conflict": (409, "Another change of the {r} is under way.", "Wait for it, and call again."),
    "NotFound": (404, "There is no {r} of that name in the region.", "Check name and region."),
    "LimitExceeded": (429, "More than {n} {r}s were asked for.", "Delete some, or ask for more."),
    "AccessDenied": (403, "The role may not act on this {r}.", "Attach the policy of {s}."),
    "InvalidState": (400, "The {r} is not ready for that.", "Wait until its state is ACTIVE."),
    "Expired": (410, "The {r} is past its retention period.", "Make it anew."),
}
ADVICE = (
    "Changes take effect within {n} seconds.",
    "Calls are counted against the quota of the {s} account.",
    "It may be called again with the same token without a second effect.",
    "Tags of the {r} are copied to the bill of the month.",
    "In the console it stands under {s}, Settings.",
    "Available in all regions but two, where {s} follows in spring.",
    "Deprecated fields of the {r} are ignored, and a warning is logged.",
    "For many of them at once, use the batch interface of {s}.",
)
UPDATES = ("No interruption", "Some interruptions", "Replacement")


def type_page(service: str, resource: str, rng: np.random.Generator) -> str:
    """Return a page on the settings of a resource."""
    kind = f"{service}::{resource.capitalize()}"
    names = _some(list(FIELDS), 3, 7, rng)
    syntax = ",\n".join(f'    "{name}" : {FIELDS[name][0]}' for name in names)
    fields = "\n\n".join(
        f"`{name}`\n{FIELDS[name][1]}\n*Required*: {rng.choice(['Yes', 'No'])}\n"
        f"*Type*: {FIELDS[name][0]}\n*Update requires*: {rng.choice(UPDATES)}"
        for name in names
    )
    return (
        f"# {kind}\n\nThe `{kind}` resource declares a {resource} of {service}.\n\n## Syntax\n\n"
        f'```\n{{\n  "Type" : "{kind}",\n  "Properties" : {{\n{syntax}\n  }}\n}}\n```\n\n'
        f"## Properties\n\n{fields}"
    )


def method_page(service: str, resource: str, rng: np.random.Generator) -> str:
    """Return a page on a method."""
    verb = str(rng.choice(list(VERBS)))
    client, names = service.lower(), _some(list(FIELDS), 2, 4, rng)
    parameters = "\n".join(f"- **{name}** ({FIELDS[name][0]}): {FIELDS[name][1]}" for name in names)
    errors = ", ".join(f"`{each}Error`" for each in _some(list(CAUSES), 1, 3, rng))
    return (
        f"## {client}.{verb}_{resource}()\n\n{VERBS[verb]} {rng.choice(ADVICE)}\n\n"
        f"**Parameters**\n\n{parameters}\n\n**Returns**\n\nThe {resource}, as a mapping.\n\n"
        f"**Raises**\n\n{errors}"
    )


def command_page(service: str, resource: str, rng: np.random.Generator) -> str:
    """Return a page on a command."""
    verb, tool = str(rng.choice(list(VERBS))), f"{service.lower()}ctl"
    options = [f"--{name.lower()}" for name in _some(list(FIELDS), 2, 4, rng)]
    lines = "\n\n".join(
        f"- {VERBS[verb]}\n\n`{tool} {resource} {verb} {{{{name}}}} {option} {{{{value}}}}`"
        for option in options
    )
    return f"# {tool} {resource} {verb}\n\n> Part of the tools for {service}.\n\n{lines}"


def error_page(service: str, resource: str, rng: np.random.Generator) -> str:
    """Return a page on an error."""
    cause = str(rng.choice(list(CAUSES)))
    status, why, remedy = CAUSES[cause]
    return (
        f"### {service}{resource.capitalize()}{cause}\n\nHTTP status: {status}\n\n"
        f"**Cause.** {why} {rng.choice(ADVICE)}\n\n**Remedy.** {remedy}"
    )


def field_page(service: str, resource: str, rng: np.random.Generator) -> str:
    """Return a page on one setting."""
    name = str(rng.choice(list(FIELDS)))
    kind, text = FIELDS[name]
    return (
        f"# {service} {resource.capitalize()} {name}\n\n{text} {rng.choice(ADVICE)}\n\n"
        f"| | |\n|---|---|\n| Type | {kind} |\n| Default | {int(rng.integers(1, 400))} |\n"
        f"| Since | {int(rng.integers(1, 5))}.{int(rng.integers(0, 20))} |\n"
        f"| Update requires | {rng.choice(UPDATES)} |"
    )


# Share of pages per template, roughly as in a real reference.
TEMPLATES: dict[Callable[[str, str, np.random.Generator], str], float] = {
    type_page: 0.3,
    method_page: 0.3,
    command_page: 0.15,
    error_page: 0.1,
    field_page: 0.15,
}


def pages(n: int = N_PAGES, seed: int = 0) -> list[str]:
    """Return n different pages."""
    found: dict[str, None] = {}
    for page in _pages(seed):
        found[page] = None
        if len(found) == n:
            return list(found)
    raise AssertionError


def templated(n: int = N_PAGES) -> Batch:
    """Return n pages with their vectors."""
    texts = pages(n)
    vectors = MiniLMEmbeddings().embed_documents(texts)
    return Batch.of(ids=[f"page-{row}" for row in range(n)], texts=texts, embeddings=vectors)


def _pages(seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    kinds, shares = list(TEMPLATES), list(TEMPLATES.values())
    for _ in count():
        service, resource = str(rng.choice(SERVICES)), str(rng.choice(RESOURCES))
        page = kinds[rng.choice(len(kinds), p=shares)](service, resource, rng)
        for mark, value in (("{r}", resource), ("{s}", service)):
            page = page.replace(mark, value)
        while "{n}" in page:
            page = page.replace("{n}", str(int(rng.integers(2, 500))), 1)
        yield page


def _some(values: list[str], least: int, most: int, rng: np.random.Generator) -> list[str]:
    """Return some of the values, in their order."""
    n = int(rng.integers(least, most + 1))
    return [values[row] for row in np.sort(rng.permutation(len(values))[:n]).tolist()]
