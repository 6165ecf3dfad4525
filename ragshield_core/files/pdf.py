"""Passages of a PDF, with text that a page does not show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ragshield_core.files.passages import Passage, UnreadError, paragraphs
from ragshield_core.files.pdf_graphics import (
    IDENTITY,
    LAYER,
    NOT_PAINTED,
    Area,
    Box,
    Canvas,
    Graphics,
    Stream,
    box_of,
    matrix_of,
    number_of,
    resolved,
    times,
)

# Forms within forms.
_DEEPEST = 6
# A picture of that share of the page is one of paper: the text behind it was recognised in it.
_SCANNED = 0.4
MOST_PAGES = 20_000
RECOGNISED = "text behind a picture of the page"


def pdf(path: Path) -> Iterator[Passage]:
    """Yield the paragraphs of each page that are seen, then what is not."""
    from pypdf import PdfReader  # noqa: PLC0415 - of an extra
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415

    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            msg = "encrypted: it needs a password"
            raise UnreadError(msg)
        layers = _hidden_layers(reader)
        for number, page in enumerate(reader.pages, 1):
            if number > MOST_PAGES:
                msg = f"more than {MOST_PAGES:,} pages"
                raise UnreadError(msg)
            yield from _page(page, number, reader, layers)
        for value in (reader.metadata or {}).values():
            if isinstance(value, str) and " " in value.strip():
                said = " ".join(value.split())
                yield Passage(said, "page", 1, "document property", 0.0, beside=True)
    except DependencyError:
        msg = "encrypted in a way that needs pip install 'pypdf[crypto]'"
        raise UnreadError(msg) from None
    except PyPdfError as error:
        msg = f"a damaged PDF ({type(error).__name__})"
        raise UnreadError(msg) from None


def _page(page: Any, number: int, reader: Any, layers: frozenset[int]) -> Iterator[Passage]:
    box = page.cropbox
    sheet = (float(box.left), float(box.bottom), float(box.right), float(box.top))
    texts = _Sorter(reader, Canvas(sheet, layers)).texts_of(page)
    for part in paragraphs(texts.pop("", "")):
        yield Passage(part.text, "page", number)
    for kind, text in texts.items():
        sure = 0.0 if kind == RECOGNISED else 1.0
        for part in paragraphs(text):
            yield Passage(" ".join(part.text.split()), "page", number, kind, sure)


@dataclass(slots=True)
class _Sorted:
    """The operations of one stream, and what hides the text that each shows."""

    operations: list[tuple[list[Any], bytes]] = field(default_factory=list)
    kinds: list[str | None] = field(default_factory=list)  # None: it shows no text
    forms: list[dict[str, str]] = field(default_factory=list)


class _Sorter:
    """Sorts the text of a page by what hides it.

    The operations of the page are followed once; text is then taken from the page with only those
    that show text of one kind.
    """

    def __init__(self, reader: Any, canvas: Canvas) -> None:
        self._reader, self._canvas = reader, canvas
        self._open: set[int] = set()

    def texts_of(self, page: Any) -> dict[str, str]:
        """Return the text of each kind; that which is seen under an empty text."""
        content = page.get_contents()
        if content is None:
            return {}
        texts = self._texts(page, content, Graphics(), "")
        if len(texts.get(NOT_PAINTED, "")) > len(texts.get("", "")) and self._scanned():
            texts[RECOGNISED] = texts.pop(NOT_PAINTED)
        return texts

    def _scanned(self) -> bool:
        paper = _size(self._canvas.sheet)
        pictures = (area for area in self._canvas.areas if area.colour is None)
        return any(_size(picture.box) >= _SCANNED * paper for picture in pictures)

    def _texts(self, owner: Any, content: Any, graphics: Graphics, around: str) -> dict[str, str]:
        """Return the texts of a page, or of a form and what hides all of it."""
        found = self._sorted(owner, content, graphics, around)
        texts: dict[str, str] = {}
        for kind in dict.fromkeys(kind for kind in found.kinds if kind is not None):
            if text := self._extracted(owner, found, kind).strip():
                texts[kind] = text
        for form in found.forms:
            for kind, text in form.items():
                texts[kind] = "\n\n".join(filter(None, (texts.get(kind), text)))
        return texts

    def _sorted(self, owner: Any, content: Any, graphics: Graphics, around: str) -> _Sorted:
        found = _Sorted()
        resources = resolved(owner.get("/Resources")) or {}
        stream = Stream(self._canvas, graphics, resources)
        for operands, operator in content.operations:
            kind = stream.follow(operands, operator)
            if operator == b"Do" and operands:
                covered = around or stream.layer
                self._do(resources, operands[0], stream.graphics, covered, found)
            found.operations.append((operands, operator))
            found.kinds.append(kind if kind is None else around or kind)
        return found

    def _do(
        self, resources: Any, name: Any, graphics: Graphics, around: str, found: _Sorted
    ) -> None:
        """Read a picture or a form."""
        from pypdf.generic import ContentStream  # noqa: PLC0415 - of an extra

        objects = resolved(resources.get("/XObject")) or {}
        item = resolved(objects[name]) if name in objects else {}
        kind = item.get("/Subtype")
        if kind == "/Image":
            self._canvas.areas.append(Area(box_of([0, 0, 1, 1], graphics.matrix), None))
        if kind != "/Form" or id(item) in self._open or len(self._open) >= _DEEPEST:
            return
        inner = replace(graphics)
        matrix = [float(number) for number in item.get("/Matrix", ())]
        if len(matrix) == len(IDENTITY):
            inner.matrix = times(matrix_of(matrix), graphics.matrix)
        if number_of(item, "/OC") in self._canvas.layers:
            around = around or LAYER
        owner = item if "/Resources" in item else {"/Resources": resources}
        self._open.add(id(item))
        found.forms.append(self._texts(owner, ContentStream(item, self._reader), inner, around))
        self._open.discard(id(item))

    def _extracted(self, owner: Any, found: _Sorted, wanted: str) -> str:
        """Return the text of a stream that is of one kind."""
        from pypdf import PageObject  # noqa: PLC0415 - of an extra
        from pypdf.generic import ContentStream, DictionaryObject, NameObject  # noqa: PLC0415

        stream = ContentStream(None, self._reader)
        stream.operations = [
            operation if kind is None or kind == wanted else ([], b"T*")
            for operation, kind in zip(found.operations, found.kinds, strict=True)
            if operation[1] != b"Do" and (kind in (None, wanted) or operation[1] in (b"'", b'"'))
        ]
        page = PageObject(self._reader)
        page[NameObject("/Resources")] = owner.get("/Resources", DictionaryObject())
        page[NameObject("/Contents")] = stream
        return str(page.extract_text())


def _size(box: Box) -> float:
    return max(1.0, (box[2] - box[0]) * (box[3] - box[1]))


def _hidden_layers(reader: Any) -> frozenset[int]:
    """Return the numbers of the objects of layers that are off when a file is opened."""
    properties = resolved(reader.trailer["/Root"].get("/OCProperties")) or {}
    usual = resolved(properties.get("/D")) or {}
    return frozenset(
        layer.idnum for layer in resolved(usual.get("/OFF")) or () if hasattr(layer, "idnum")
    )
