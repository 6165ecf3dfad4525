"""Passages of zipped XML files (Word, OpenDocument and EPUB), with their hidden text."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ragshield_core.files import colours
from ragshield_core.files.documents import decoded
from ragshield_core.files.pages import page
from ragshield_core.files.passages import FilePassage, UnreadError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Most bytes of all parts together, unpacked; books with pictures have fewer.
MOST_UNPACKED = 1 << 28
# Most bytes of one part that is read.
MOST_OF_A_PART = 1 << 26
MOST_PARTS = 20_000
# First bytes of old Word files, and of new ones that are encrypted.
_COMPOUND = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = 1
# Most styles in a chain of styles that are based on others.
_DEEPEST = 10


class _Package:
    """A zip archive; its parts are read in memory and never written to disk."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) == _COMPOUND:
                msg = "encrypted, or of an old version of Office"
                raise UnreadError(msg)
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError) as error:
            msg = f"not a whole zip archive ({type(error).__name__})"
            raise UnreadError(msg) from None
        self.close = self._zip.close
        infos = self._zip.infolist()
        if len(infos) > MOST_PARTS or sum(info.file_size for info in infos) > MOST_UNPACKED:
            msg = f"a zip archive of more than {MOST_UNPACKED:,} bytes or {MOST_PARTS:,} parts"
            raise UnreadError(msg)
        self.names = set(self._zip.namelist())

    def read(self, name: str) -> bytes:
        """Return a part; raises if it is missing, damaged, encrypted or too large."""
        if name not in self.names:
            msg = f"the part {name[:80]!r} is missing"
            raise UnreadError(msg)
        if self._zip.getinfo(name).flag_bits & _ENCRYPTED:
            msg = "encrypted"
            raise UnreadError(msg)
        try:
            with self._zip.open(name) as part:
                data = part.read(MOST_OF_A_PART + 1)  # limited, because headers lie
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            msg = f"a damaged zip archive ({type(error).__name__})"
            raise UnreadError(msg) from None
        if len(data) > MOST_OF_A_PART:
            msg = f"a part of more than {MOST_OF_A_PART:,} bytes"
            raise UnreadError(msg)
        return data

    def xml(self, name: str) -> Element:
        """Return a part as a tree; raises if it is not XML or declares entities."""
        from defusedxml.common import DefusedXmlException  # noqa: PLC0415 - an optional extra
        from defusedxml.ElementTree import ParseError, fromstring  # noqa: PLC0415

        try:
            root: Element = fromstring(self.read(name))
        except DefusedXmlException as error:
            msg = f"XML that declares entities ({type(error).__name__})"
            raise UnreadError(msg) from None
        except (ParseError, ValueError, LookupError) as error:
            msg = f"damaged XML ({type(error).__name__})"
            raise UnreadError(msg) from None
        return root


def _beside(said: str, number: int, kind: str) -> Iterator[FilePassage]:
    if said := " ".join(said.split()):
        yield FilePassage(said, "paragraph", max(1, number), kind, 0.0, beside=True)


def _passages(parts: Iterable[tuple[tuple[str, float], str]], number: int) -> Iterator[FilePassage]:
    """Yield the visible text of a paragraph, then its hidden texts.

    Each part has the reason why it is hidden (empty if it is visible), and how sure that is.
    """
    parts = list(parts)
    if seen := " ".join("".join(text for (kind, _), text in parts if not kind).split()):
        yield FilePassage(seen, "paragraph", number)
    for (kind, sure), group in groupby(parts, key=itemgetter(0)):
        said = " ".join("".join(text for _, text in group).split())
        if kind and said:
            yield FilePassage(said, "paragraph", number, kind, sure)


# Word

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_PICTURE = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_BODY, _STYLES = "word/document.xml", "word/styles.xml"
_PARTS = re.compile(r"word/(?:header|footer|footnotes|endnotes)\d*\.xml")
_COMMENTS, _PROPERTIES = "word/comments.xml", "docProps/core.xml"
_DELETED = frozenset({_W + "del", _W + "moveFrom", _FALLBACK})
# How sure white is behind a text box or a styled table, which may have any colour.
_UNKNOWN_BEHIND = 0.3
_OFF = frozenset({"0", "false", "off", "none"})


def word(path: Path) -> Iterator[FilePassage]:
    """Yield the paragraphs of a Word file, its headers and notes, and the texts beside them."""
    with closing(_Package(path)) as package:
        styles = _Styles(package.xml(_STYLES) if _STYLES in package.names else None)
        if _BODY not in package.names:
            msg = "no Word document"
            raise UnreadError(msg)
        number = 0
        for name in [_BODY, *sorted(filter(_PARTS.fullmatch, package.names))]:
            root = package.xml(name)
            behind = _behind(root)
            twice = {p for part in root.iter(_FALLBACK) for p in part.iter(_W + "p")}
            for paragraph in root.iter(_W + "p"):
                if paragraph not in twice:
                    number += 1
                    runs = list(_runs(paragraph))
                    looks = (styles.hidden(paragraph, run, behind) for run in runs)
                    yield from _passages(zip(looks, map(_text, runs), strict=True), number)
            for picture in root.iter(_PICTURE):
                said = (picture.get("title"), picture.get("descr"))
                yield from _beside(" ".join(filter(None, said)), number, "alternative text")
        comments = package.xml(_COMMENTS).iter(_W + "comment") if _COMMENTS in package.names else ()
        for comment in comments:
            text = " ".join(_text(run) for p in comment.iter(_W + "p") for run in _runs(p))
            yield from _beside(text, number, "comment")
        for element in package.xml(_PROPERTIES) if _PROPERTIES in package.names else ():
            if " " in (element.text or "").strip():
                yield from _beside(element.text or "", 1, "document property")


def _runs(paragraph: Element) -> Iterator[Element]:
    """Yield the runs with text of a paragraph in order, without those of inner paragraphs."""
    waiting = list(reversed(paragraph))
    while waiting:
        element = waiting.pop()
        if element.tag == _W + "r":
            if _text(element):
                yield element
        elif element.tag != _W + "p" and element.tag not in _DELETED:
            waiting += reversed(element)


def _text(run: Element) -> str:
    blanks = (_W + "tab", _W + "br", _W + "cr")
    return "".join(
        (element.text or "") if element.tag == _W + "t" else " " * (element.tag in blanks)
        for element in run
    )


def _behind(root: Element) -> dict[Element | None, tuple[colours.Colour, float]]:
    """Return the colour behind each paragraph and how sure it is; the default is under None."""
    sheet = root.find(_W + "background")
    white = (None if sheet is None else colours.from_hex(sheet.get(_W + "color"))) or colours.WHITE
    found: dict[Element | None, tuple[colours.Colour, float]] = {None: (white, 1.0)}
    tables = list(root.iter(_W + "tbl"))
    styled = (table for table in tables if table.find(f"{_W}tblPr/{_W}tblStyle") is not None)
    for part in (*styled, *root.iter(_W + "txbxContent")):
        found.update(dict.fromkeys(part.iter(_W + "p"), (white, _UNKNOWN_BEHIND)))
    for cell in (cell for table in tables for cell in table.iter(_W + "tc")):
        shade = cell.find(f"{_W}tcPr/{_W}shd")
        if shade is not None and (fill := colours.from_hex(shade.get(_W + "fill"))):
            found.update(dict.fromkeys(cell.iter(_W + "p"), (fill, 1.0)))
    return found


class _Styles:
    """Properties of runs, from the runs, their styles and the styles of their paragraphs."""

    def __init__(self, root: Element | None) -> None:
        self._styles: dict[str, Element] = {}
        self._default: list[Element] = []
        if root is not None:
            self._styles = {s.get(_W + "styleId", ""): s for s in root.iter(_W + "style")}
            self._default = root.findall(f"{_W}docDefaults/{_W}rPrDefault/{_W}rPr")
            self._default += [
                properties
                for style in self._styles.values()
                if style.get(_W + "type") == "paragraph" and style.get(_W + "default") == "1"
                for properties in style.findall(_W + "rPr")
            ][::-1]

    def hidden(
        self,
        paragraph: Element,
        run: Element,
        behind: dict[Element | None, tuple[colours.Colour, float]],
    ) -> tuple[str, float]:
        """Return the reason why a run is hidden (empty if visible), and how sure it is."""
        own, of_paragraph = run.findall(_W + "rPr"), paragraph.findall(_W + "pPr")
        chain = [*own, *self._based(own, "rStyle"), *self._based(of_paragraph, "pStyle")]
        chain += self._default
        vanish = _first(chain, "vanish")
        if vanish is not None and vanish.get(_W + "val", "1") not in _OFF:
            return "hidden text of Word", 1.0
        size = _first(chain, "sz")
        if size is not None and _number(size.get(_W + "val")) <= 2 * colours.TINY:  # half points
            return colours.SMALL, 1.0
        colour = _first(chain, "color")
        front = None if colour is None else colours.from_hex(colour.get(_W + "val"))
        if front is None or _first(chain, "highlight") is not None:
            return "", 0.0
        shades = (s.get(_W + "fill") for p in (*own, *of_paragraph) for s in p.findall(_W + "shd"))
        fill, sure = behind.get(paragraph, behind[None])
        if shaded := next(filter(None, map(colours.from_hex, shades)), None):
            fill, sure = shaded, 1.0
        return (colours.SAME_COLOUR, sure) if colours.alike(front, fill) else ("", 0.0)

    def _based(self, properties: list[Element], kind: str) -> Iterator[Element]:
        """Yield the run properties of a style and of its base styles."""
        named = next((s for p in properties for s in p.findall(_W + kind)), None)
        for _ in range(_DEEPEST):
            style = None if named is None else self._styles.get(named.get(_W + "val", ""))
            if style is None:
                return
            yield from style.findall(_W + "rPr")
            named = style.find(_W + "basedOn")


def _first(chain: list[Element], name: str) -> Element | None:
    """Return the first element that sets a property."""
    return next((e for properties in chain for e in properties.findall(_W + name)), None)


def _number(value: str | None) -> float:
    try:
        return float(value or "inf")
    except ValueError:
        return float("inf")


# OpenDocument

_NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
_TEXT, _STYLE, _OFFICE = (_NAMES % name for name in ("text", "style", "office"))
_FO, _TABLE, _SVG = (_NAMES % name for name in ("xsl-fo-compatible", "table", "svg-compatible"))
_PARAGRAPHS = frozenset({_TEXT + "p", _TEXT + "h"})
_HIDDEN_FIELDS = frozenset({_TEXT + "hidden-text", _TEXT + "hidden-paragraph"})
_NOT_TEXT = frozenset({_OFFICE + "annotation", _TEXT + "tracked-changes"})
_POINTS = {"pt": 1.0, "cm": 28.35, "mm": 2.835, "in": 72.0, "px": 0.75}


def open_document(path: Path) -> Iterator[FilePassage]:
    """Yield the paragraphs of an OpenDocument text, and the texts beside them."""
    with closing(_Package(path)) as package:
        names = ["content.xml", *({"styles.xml"} & package.names)]
        roots = [package.xml(name) for name in names]
        looks = _Looks(roots)
        number = 0
        for root in roots:
            for paragraph, behind in _paragraphs(root, looks):
                number += 1
                styles = (paragraph.get(_TEXT + "style-name"),)
                parts = _parts(paragraph, styles, looks, behind)
                yield from _passages((((hidden, 1.0), text) for hidden, text in parts), number)
        for root in roots:
            for note in root.iter(_OFFICE + "annotation"):
                said = " ".join("".join(p.itertext()) for p in note.iter(_TEXT + "p"))
                yield from _beside(said, number, "comment")
            for kind in ("title", "desc"):
                for element in root.iter(_SVG + kind):
                    yield from _beside(element.text or "", number, "alternative text")


def _paragraphs(root: Element, looks: _Looks) -> Iterator[tuple[Element, colours.Colour]]:
    """Yield paragraphs in order, with the colour of the cell or section around each."""
    waiting = [(root, colours.WHITE)]
    while waiting:
        element, behind = waiting.pop()
        if element.tag in _NOT_TEXT:
            continue
        if element.tag in _PARAGRAPHS:
            yield element, behind
        style = element.get(_TABLE + "style-name")
        inner = looks.colour((style,), "background-color") or behind
        waiting += [(child, inner) for child in reversed(element)]


def _parts(
    element: Element, styles: Sequence[str | None], looks: _Looks, behind: colours.Colour
) -> Iterator[tuple[str, str]]:
    """Yield each text of an element after the reason why it is hidden; skip inner paragraphs."""
    hidden = looks.hidden(styles, behind)
    if element.tag in _HIDDEN_FIELDS:
        hidden = "hidden field"
        yield hidden, element.get(_TEXT + "string-value", "")
    yield hidden, element.text or ""
    for child in element:
        if child.tag in (_TEXT + "s", _TEXT + "tab", _TEXT + "line-break"):
            yield hidden, " "
        elif child.tag not in _PARAGRAPHS and child.tag not in _NOT_TEXT:
            yield from _parts(child, (child.get(_TEXT + "style-name"), *styles), looks, behind)
        yield hidden, child.tail or ""


class _Looks:
    """Properties of letters from styles; the first style that sets a property decides."""

    def __init__(self, roots: list[Element]) -> None:
        self._styles = {
            style.get(_STYLE + "name", ""): style
            for root in reversed(roots)
            for style in root.iter(_STYLE + "style")
        }

    def hidden(self, styles: Sequence[str | None], behind: colours.Colour) -> str:
        """Return why text in these styles (innermost first) is hidden; empty if it is visible."""
        if self._property(styles, _TEXT + "display") == "none":
            return "hidden text"
        size = self._property(styles, _FO + "font-size") or ""
        # A size in per cent, or no size, counts as large.
        if _number(size[:-2]) * _POINTS.get(size[-2:], float("inf")) <= colours.TINY:
            return colours.SMALL
        front = self.colour(styles, "color")
        fill = self.colour(styles, "background-color") or behind
        return colours.SAME_COLOUR if front and colours.alike(front, fill) else ""

    def colour(self, styles: Sequence[str | None], name: str) -> colours.Colour | None:
        """Return a colour from the styles."""
        return colours.from_hex(self._property(styles, _FO + name))

    def _property(self, styles: Sequence[str | None], name: str) -> str | None:
        for named in styles:
            at: str | None = named
            for _ in range(_DEEPEST):
                style = self._styles.get(at or "")
                if style is None:
                    break
                for properties in style:
                    if (value := properties.get(name)) is not None and value != "transparent":
                        return value
                at = style.get(_STYLE + "parent-style-name")
        return None


# EPUB

_CONTAINER = "META-INF/container.xml"
_ROOTFILE = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_RIGHTS = "META-INF/encryption.xml"


def epub(path: Path) -> Iterator[FilePassage]:
    """Yield the passages of the pages of a book, in its order."""
    with closing(_Package(path)) as package:
        rootfile = next(package.xml(_CONTAINER).iter(_ROOTFILE), None)
        main = "" if rootfile is None else rootfile.get("full-path", "")
        book = package.xml(main)
        items = {item.get("id"): item.get("href", "") for item in book.iter(_OPF + "item")}
        pages = [items.get(ref.get("idref"), "") for ref in book.iter(_OPF + "itemref")]
        if not pages:
            msg = "a book without pages"
            raise UnreadError(msg)
        for number, href in enumerate(pages, 1):
            # A name outside the archive matches no part.
            name = posixpath.normpath(posixpath.join(posixpath.dirname(main), unquote(href)))
            if name not in package.names and _RIGHTS in package.names:
                msg = "encrypted"
                raise UnreadError(msg)
            text, _ = decoded(package.read(name))
            yield from page(text, f"part {number}, line")
