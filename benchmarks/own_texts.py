"""Our own clean texts: tickets and release notes of a fictional product."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

PRODUCT = "Quillbase"
AREAS = (
    "import wizard", "calendar sync", "invoice export", "search bar", "mobile app", "login page",
    "user roles", "audit trail", "mail templates", "dashboard", "webhooks", "file uploads",
    "tax settings", "print view", "archive", "reminders", "contact merge", "time sheets",
    "bulk editor", "API tokens", "currency table", "report builder", "comment threads", "backups",
)  # fmt: skip
PEOPLE = (
    "Maren", "Tobias", "Ifeoma", "Yusuf", "Lin", "Carla", "Piotr", "Anjali", "Sven", "Noor",
    "Beatriz", "Owen", "Hana", "Matteo", "Greta", "Kofi",
)  # fmt: skip
PLACES = (
    "Chrome 121 on Windows", "Firefox on Ubuntu", "Safari on an older iPad", "the Android app",
    "Edge in our terminal server", "the desktop client", "two of our branch offices",
)  # fmt: skip
COMPLAINTS = (
    "The {area} stays blank for {n} seconds and then shows an error with the code {code}.",
    "Since this morning the {area} forgets what I typed whenever I switch the tab.",
    "We exported {n} rows from the {area} and only {m} of them arrived.",
    "A colleague of mine can open the {area}, I get a page that says I lack permission.",
    "The numbers in the {area} differ from those in the {other}, by {m} in our case.",
    "After the update the {area} sorts dates as if they were words.",
    "Every time I save, the {area} adds another copy of the same line.",
    "The {area} prints half a page and cuts the rest, with {place}.",
    "Umlauts in names turn into question marks once they pass the {area}.",
    "Is there a way to turn off the {area} for {n} of our people without touching the {other}?",
    "My trial ends on Friday and the {area} already says that it is read only.",
    "The link in the confirmation mail leads to the {other} instead of the {area}.",
)
DETAILS = (
    "It happens with {place}, but not at home.",
    "I tried a private window and another account, no change.",
    "Our administrator {person} saw the same on {n} machines.",
    "There is nothing about it in the {other}, I looked.",
    "Before, on version {v}, it worked without trouble.",
    "I attach a screenshot and the log, {n} lines.",
    "It is not urgent, though {person} needs the figures by the end of the month.",
    "We pay for {n} seats, so a workaround would already help.",
    "When I wait about {m} minutes, it recovers by itself.",
    "The file has {n} columns and comes from our old system.",
)
ANSWERS = (
    "Thanks for the report, {person}. We could reproduce this and a fix is planned for {v}.",
    "Please clear the cache of the {area} once; the option is under Settings, Advanced.",
    "This looks like a limit of {n} entries per request. I raised it for your account.",
    "I passed this on to the people who look after the {area}; you will hear from us.",
    "Could you tell us the time zone of the account? The {other} rounds to whole hours.",
    "Closed, as {person} confirmed that it works since the restart.",
)
CHANGES = (
    "The {area} loads up to {m} times faster with more than {n} entries",
    "Filters of the {area} are kept when you come back from the {other}",
    "The {area} shows who changed an entry last",
    "Keyboard shortcuts for the {area} and the {other}",
    "The {area} accepts files of up to {n} MB",
    "New columns in the {area}: owner, due date and state",
    "The {area} can be restricted to a role",
)
FIXES = (
    "The {area} no longer crashes when an entry has no date",
    "Totals in the {area} now include entries from the {other}",
    "Wrong plural in the {area} for languages with more than two forms",
    "The {area} sent two mails where one was due",
    "Scrolling in the {area} jumped to the top, with {place}",
    "A race between the {area} and the {other} that lost about one in {n} edits",
    "The {area} kept showing a deleted user",
)
FOOTER = f"© 2026 {PRODUCT} contributors. Edit this page, or report an issue with it."
BOX = (
    "> **Warning**\n> These pages describe version 3, which is no longer maintained. "
    "See the pages of version 4 for the current state."
)


def _filled(rng: np.random.Generator, wordings: tuple[str, ...]) -> str:
    area, other = rng.choice(AREAS, 2, replace=False)
    return str(rng.choice(wordings)).format(
        area=area,
        other=other,
        person=rng.choice(PEOPLE),
        place=rng.choice(PLACES),
        n=int(rng.integers(3, 400)),
        m=int(rng.integers(2, 30)),
        v=f"{rng.integers(2, 5)}.{rng.integers(0, 20)}",
        code=f"E-{rng.integers(100, 999)}",
    )


def _issue(rng: np.random.Generator) -> str:
    return f"(#{rng.integers(100, 9000)})"


def tickets(n: int) -> list[str]:
    """Return tickets of a help desk."""
    rng = np.random.default_rng(33)
    texts = []
    for number in range(n):
        area = rng.choice(AREAS)
        lines = [f"Ticket {4000 + number}: {PRODUCT}, {area}", ""]
        lines += [_filled(rng, COMPLAINTS)]
        lines += [_filled(rng, DETAILS) for _ in range(rng.integers(1, 4))]
        lines += [f"Regards, {rng.choice(PEOPLE)}"]
        if rng.random() < 0.6:  # noqa: PLR2004 - the other tickets have no answer yet
            lines += ["", f"Answer: {_filled(rng, ANSWERS)}"]
        texts.append("\n".join(lines))
    return texts


def release_notes(n: int) -> list[str]:
    """Return the notes of consecutive releases, on one template."""
    rng, day = np.random.default_rng(34), date(2019, 1, 15)
    texts = []
    for minor in range(n):
        day += timedelta(days=int(rng.integers(4, 20)))
        lines = [f"## {PRODUCT} {1 + minor // 60}.{minor % 60}.{rng.integers(0, 4)} ({day})", ""]
        lines += ["### Added"] + [f"- {_filled(rng, CHANGES)} {_issue(rng)}" for _ in range(2)]
        lines += ["", "### Fixed"]
        lines += [f"- {_filled(rng, FIXES)} {_issue(rng)}" for _ in range(rng.integers(1, 4))]
        lines += ["", f"Upgrade with `{PRODUCT.lower()} upgrade`. Back up your data first."]
        texts.append("\n".join(lines))
    return texts
