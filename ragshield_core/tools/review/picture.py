"""A hostile page as a browser draws it: its text, layout and colours, and nothing that acts.

Two walls. What is drawn holds only elements and attributes of which it is known that they draw
text, and names no address; and it is drawn in a frame of its own, without scripts, forms and links,
whose policy lets nothing be loaded from anywhere. (The policy by itself would not do: browsers
connect ahead to hosts that are named, before they ask it.) Styles are kept: what they hide from a
reader is what a reviewer wants to see missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser

# Characters of a text that are drawn.
DRAWN = 200_000

# Of the frame's document: nothing is loaded, nothing is sent, nothing runs; styles are its own.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; sandbox"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "SAMEORIGIN",
    "x-dns-prefetch-control": "off",
}

TEXT = frozenset(
    (  # noqa: SIM905 - read more easily than sixty literals
        "a abbr address article aside b bdi bdo big blockquote br caption center cite code col "
        "colgroup dd del details dfn div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 "
        "header hgroup hr i ins kbd label legend li main mark nav ol p pre q rp rt ruby s samp "
        "section small span strike strong style sub summary sup table tbody td tfoot th thead time "
        "tr tt u ul var wbr"
    ).split()
)
# They name no address, and run nothing.
LOOKS = frozenset(
    (  # noqa: SIM905
        "align bgcolor class color cols colspan dir face height hidden id lang open reversed rows "
        "rowspan size span start style valign width"
    ).split()
)
VOID = frozenset(("br", "col", "hr", "wbr"))
# What is within these is no text of the page.
SILENT = frozenset(
    (  # noqa: SIM905
        "applet audio canvas frameset iframe math noembed noframes object script select svg "
        "template textarea title video xmp"
    ).split()
)


TAG = re.compile("<[a-zA-Z]")
# What a style loads by, once what disguises it is away. Names without an address stay.
LOADING = re.compile(r"@import|(?:url|src|image|image-set|cross-fade|element)\(", re.IGNORECASE)


def is_page(text: str) -> bool:
    """Return whether a browser takes something in a text for an element."""
    return TAG.search(text, 0, DRAWN) is not None


def picture(text: str) -> str:
    """Return a document that draws what a text draws as a page, to be served with ``HEADERS``.

    Parameters
    ----------
    text
        Of any kind; of long ones the beginning.

    Examples
    --------
    >>> page = picture("<p style='color: white' onclick='x()'>See <img src='//evil'>us</p>")
    >>> page.partition("<body>")[2]
    '<p style="color: white">See us</p></body></html>'
    """
    painter = _Painter()
    painter.feed(text[:DRAWN])
    painter.close()
    head = "<!doctype html><html><head><title>Picture</title></head><body>"
    return f"{head}{''.join(painter.drawn)}</body></html>"


class _Painter(HTMLParser):
    """Keeps of a page what draws text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.drawn: list[str] = []
        self._silent: list[str] = []  # elements around, of which nothing is drawn

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in SILENT:
            self._silent.append(tag)
        if tag not in TEXT or self._silent:
            return
        looks = "".join(
            f' {name}="{escape(_unloading(value or "") if name == "style" else value or "")}"'
            for name, value in attrs
            if name in LOOKS
        )
        self.drawn.append(f"<{tag}{looks}>")

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag not in ("svg", "math"):  # HTML knows no others that end at once
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag in self._silent:
                del self._silent[self._silent.index(tag) :]
        elif tag in TEXT and tag not in VOID:
            self.drawn.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        # Of a style as it is, for its end is what ends it here as well.
        within_style = self.cdata_elem == "style"
        self.drawn.append(_unloading(data) if within_style else escape(data))


def _unloading(style: str) -> str:
    """Return a style that asks for nothing; what is left in place of an address is no value."""
    return LOADING.sub("none(", style.replace("\\", ""))
