"""Passages of a Word file, with text that Word does not show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ragshield_core.files.colours import TINY, WHITE, Colour, alike, from_hex
from ragshield_core.files.packed import Package
from ragshield_core.files.passages import Passage, UnreadError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_PICTURE = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_BODY = "word/document.xml"
_PARTS = re.compile(r"word/(?:header|footer|footnotes|endnotes)\d*\.xml")
_STYLES = "word/styles.xml"
_COMMENTS = "word/comments.xml"
_PROPERTIES = "docProps/core.xml"
_DELETED = frozenset({W + "del", W + "moveFrom", _FALLBACK})
# The colour behind a box or a table of a style may be any.
_UNKNOWN_BEHIND = 0.3
# How deep styles are based on others.
_DEEPEST = 10
_OFF = frozenset({"0", "false", "off", "none"})


def word(path: Path) -> Iterator[Passage]:
    """Yield the paragraphs of a Word file, of its headers and notes, and what stands beside."""
    with Package(path) as package:
        styles = _Styles(package.xml(_STYLES) if _STYLES in package.names else None)
        if _BODY not in package.names:
            msg = "no Word document"
            raise UnreadError(msg)
        number = 0
        for name in [_BODY, *sorted(filter(_PARTS.fullmatch, package.names))]:
            root = package.xml(name)
            behind = _Behind(root)
            for paragraph in behind.paragraphs():
                number += 1
                yield from _passages(paragraph, number, styles, behind)
            for picture in root.iter(_PICTURE):
                said = (picture.get("title"), picture.get("descr"))
                yield from _beside(" ".join(filter(None, said)), number, "alternative text")
        yield from _notes(package, number)


def _notes(package: Package, number: int) -> Iterator[Passage]:
    """Yield what stands in the margin, and the properties of the file."""
    if _COMMENTS in package.names:
        for comment in package.xml(_COMMENTS).iter(W + "comment"):
            said = " ".join(_text(run) for p in comment.iter(W + "p") for run in _runs(p))
            yield from _beside(said, number, "comment")
    if _PROPERTIES in package.names:
        for element in package.xml(_PROPERTIES):
            if " " in (element.text or "").strip():
                yield from _beside(element.text or "", 1, "document property")


def _beside(said: str, number: int, kind: str) -> Iterator[Passage]:
    if said := " ".join(said.split()):
        yield Passage(said, "paragraph", max(1, number), kind, 0.0, beside=True)


def _passages(
    paragraph: Element, number: int, styles: _Styles, behind: _Behind
) -> Iterator[Passage]:
    """Yield what is seen of a paragraph, then what is not."""
    runs = [
        (styles.hidden(paragraph, run, behind), text)
        for run in _runs(paragraph)
        if (text := _text(run))
    ]
    seen = "".join(text for (kind, _), text in runs if not kind)
    if seen.strip():
        yield Passage(seen.strip(), "paragraph", number)
    for (kind, sure), group in groupby(runs, key=lambda run: run[0]):
        said = "".join(text for _, text in group).strip()
        if kind and said:
            yield Passage(said, "paragraph", number, kind, sure)


def _runs(paragraph: Element) -> Iterator[Element]:
    """Yield the runs of a paragraph, not those of paragraphs within it, in order."""
    waiting = list(reversed(paragraph))
    while waiting:
        element = waiting.pop()
        if element.tag == W + "r":
            yield element
        elif element.tag != W + "p" and element.tag not in _DELETED:
            waiting += reversed(element)


def _text(run: Element) -> str:
    parts = []
    for element in run:
        if element.tag == W + "t":
            parts.append(element.text or "")
        elif element.tag in (W + "tab", W + "br", W + "cr"):
            parts.append(" ")
    return "".join(parts)


class _Behind:
    """The colours behind the paragraphs of a part."""

    def __init__(self, root: Element) -> None:
        self._root = root
        page = root.find(W + "background")
        colour = None if page is None else from_hex(page.get(W + "color"))
        self.page = colour or WHITE
        self._cells: dict[Element, Colour] = {}
        self._unknown: set[Element] = set()
        for table in root.iter(W + "tbl"):
            if table.find(f"{W}tblPr/{W}tblStyle") is not None:
                self._unknown.update(table.iter(W + "p"))
            for cell in table.iter(W + "tc"):
                shade = cell.find(f"{W}tcPr/{W}shd")
                fill = None if shade is None else from_hex(shade.get(W + "fill"))
                if fill:
                    self._cells.update(dict.fromkeys(cell.iter(W + "p"), fill))
        for box in root.iter(W + "txbxContent"):
            self._unknown.update(box.iter(W + "p"))

    def paragraphs(self) -> Iterator[Element]:
        """Yield the paragraphs, those in boxes as well, each once."""
        twice = {p for part in self._root.iter(_FALLBACK) for p in part.iter(W + "p")}
        return (p for p in self._root.iter(W + "p") if p not in twice)

    def of(self, paragraph: Element, shades: list[Element]) -> tuple[Colour, float]:
        """Return the colour behind some text, and how sure it is."""
        for shade in shades:
            if fill := from_hex(shade.get(W + "fill")):
                return fill, 1.0
        if paragraph in self._cells:
            return self._cells[paragraph], 1.0
        return self.page, _UNKNOWN_BEHIND if paragraph in self._unknown else 1.0


class _Styles:
    """The properties of runs, from themselves, their style and that of the paragraph."""

    def __init__(self, root: Element | None) -> None:
        self._styles: dict[str, Element] = {}
        self._default: list[Element] = []
        if root is not None:
            self._styles = {s.get(W + "styleId", ""): s for s in root.iter(W + "style")}
            self._default = root.findall(f"{W}docDefaults/{W}rPrDefault/{W}rPr")
            self._default += [
                properties
                for style in self._styles.values()
                if style.get(W + "type") == "paragraph" and style.get(W + "default") == "1"
                for properties in style.findall(W + "rPr")
            ][::-1]

    def hidden(self, paragraph: Element, run: Element, behind: _Behind) -> tuple[str, float]:
        """Return what hides a run, and how surely; an empty text for what is seen."""
        own = run.findall(W + "rPr")
        of_paragraph = paragraph.findall(W + "pPr")
        chain = [*own, *self._based(own, "rStyle"), *self._based(of_paragraph, "pStyle")]
        chain += self._default
        vanish = _first(chain, "vanish")
        if vanish is not None and vanish.get(W + "val", "1") not in _OFF:
            return "hidden text of Word", 1.0
        size = _first(chain, "sz")
        if size is not None and _number(size.get(W + "val")) <= 2 * TINY:  # half points
            return "letters too small to read", 1.0
        colour = _first(chain, "color")
        front = None if colour is None else from_hex(colour.get(W + "val"))
        if front is None or _first(chain, "highlight") is not None:
            return "", 0.0
        shades = [s for p in (*own, *of_paragraph) for s in p.findall(W + "shd")]
        fill, sure = behind.of(paragraph, shades)
        return ("letters of the colour behind them", sure) if alike(front, fill) else ("", 0.0)

    def _based(self, properties: list[Element], kind: str) -> Iterator[Element]:
        """Yield the run properties of a style and of those that it is based on."""
        named = next((s for p in properties for s in p.findall(W + kind)), None)
        for _ in range(_DEEPEST):
            style = None if named is None else self._styles.get(named.get(W + "val", ""))
            if style is None:
                return
            yield from style.findall(W + "rPr")
            named = style.find(W + "basedOn")


def _first(chain: list[Element], name: str) -> Element | None:
    """Return a property where it is set first."""
    return next((e for properties in chain for e in properties.findall(W + name)), None)


def _number(value: str | None) -> float:
    try:
        return float(value or "inf")
    except ValueError:
        return float("inf")
