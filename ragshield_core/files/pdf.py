"""Passages of a PDF, with text that is hidden by its colour, size or place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ragshield_core.files import colours
from ragshield_core.files.passages import FilePassage, UnreadError, paragraphs

_Matrix = tuple[float, float, float, float, float, float]
_Box = tuple[float, float, float, float]  # left, bottom, right, top

_IDENTITY: _Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
_BLACK: colours.Colour = (0.0, 0.0, 0.0)
_SHOWS = frozenset({b"Tj", b"TJ", b"'", b'"'})
_PAINTS = frozenset({b"f", b"F", b"f*", b"B", b"B*", b"b", b"b*"})
_ENDS_PATH = _PAINTS | {b"S", b"s", b"n"}
_COLOURS = frozenset(b"g G rg RG k K sc SC scn SCN cs CS".split())
# Modes of letters that are not painted (or only clip), and of letters that are only stroked.
_INVISIBLE_MODES, _OUTLINES = frozenset({3, 7}), 1
# Opacity up to which text is invisible, and up to which a painted area does not cover others.
_TRANSPARENT, _TRANSLUCENT = 0.05, 0.5
# Points beyond the edge of the page at which text is outside of it.
_EDGE = 2.0
# Most rectangles that are compared with text, the last ones first.
_MOST_AREAS = 5_000
# Deepest nesting of forms.
_DEEPEST = 6
# Least share of the page of a scan, whose text was recognised and put behind the picture.
_SCANNED = 0.4
MOST_PAGES = 20_000

_NOT_PAINTED = "letters that are not painted"
_OUTSIDE = "text outside the page"
_LAYER = "text of a hidden layer"
_RECOGNISED = "text behind a picture of the page"


def pdf(path: Path) -> Iterator[FilePassage]:
    """Yield the visible paragraphs of each page, then its hidden texts."""
    from pypdf import PdfReader  # noqa: PLC0415 - an optional extra
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
            yield from _Page(reader, page, layers).passages(number)
        for value in (reader.metadata or {}).values():
            if isinstance(value, str) and " " in value.strip():
                said = " ".join(value.split())
                yield FilePassage(said, "page", 1, "document property", 0.0, beside=True)
    except DependencyError:
        msg = "encrypted in a way that needs pip install 'pypdf[crypto]'"
        raise UnreadError(msg) from None
    except PyPdfError as error:
        msg = f"a damaged PDF ({type(error).__name__})"
        raise UnreadError(msg) from None


def _hidden_layers(reader: Any) -> frozenset[int]:
    """Return the object numbers of the layers that are off when a file is opened."""
    properties = _resolved(reader.trailer["/Root"].get("/OCProperties")) or {}
    usual = _resolved(properties.get("/D")) or {}
    return frozenset(
        layer.idnum for layer in _resolved(usual.get("/OFF")) or () if hasattr(layer, "idnum")
    )


@dataclass(slots=True)
class _Graphics:
    """Graphics state that decides whether text is visible."""

    matrix: _Matrix = _IDENTITY
    fill: colours.Colour | None = _BLACK  # None: a pattern or an unsupported colour
    stroke: colours.Colour | None = _BLACK
    opacity: float = 1.0
    mode: int = 0
    size: float = 12.0
    leading: float = 0.0


class _Page:
    """A page while it is painted; sorts its text by the reason why it is hidden.

    The operations of the page are followed once; then the text of each kind is extracted from the
    page without the operations that show other text.
    """

    def __init__(self, reader: Any, page: Any, layers: frozenset[int]) -> None:
        box = page.cropbox
        self.sheet = (float(box.left), float(box.bottom), float(box.right), float(box.top))
        self.layers = layers
        self.areas: list[tuple[_Box, colours.Colour | None]] = []  # painted so far; None: a picture
        self._reader, self._page = reader, page
        self._open: set[int] = set()

    def passages(self, number: int) -> Iterator[FilePassage]:
        """Yield the visible paragraphs, then the hidden texts."""
        content = self._page.get_contents()
        if content is None:
            return
        texts = self._texts(self._page, content, _Graphics(), "")
        pictures = (_size(box) for box, colour in self.areas if colour is None)
        scanned = max(pictures, default=0.0) >= _SCANNED * _size(self.sheet)
        if len(texts.get(_NOT_PAINTED, "")) > len(texts.get("", "")) and scanned:
            texts[_RECOGNISED] = texts.pop(_NOT_PAINTED)
        for part in paragraphs(texts.pop("", "")):
            yield FilePassage(part.text, "page", number)
        for kind, text in texts.items():
            sure = 0.0 if kind == _RECOGNISED else 1.0
            for part in paragraphs(text):
                yield FilePassage(" ".join(part.text.split()), "page", number, kind, sure)

    def _texts(self, owner: Any, content: Any, graphics: _Graphics, around: str) -> dict[str, str]:
        """Return the texts of the page or a form by the reason why they are hidden; "" if visible.

        ``around`` is a reason that hides the whole form.
        """
        resources = _resolved(owner.get("/Resources")) or {}
        stream = _Stream(self, graphics, resources)
        forms: list[dict[str, str]] = []
        shown: list[tuple[Any, str | None]] = []  # operations, and why their text is hidden
        for operands, operator in content.operations:
            kind = stream.follow(operands, operator)
            if operator == b"Do" and operands:
                forms.append(self._drawn(resources, operands[0], stream, around))
            else:
                shown.append(((operands, operator), kind if kind is None else around or kind))
        texts = {}
        for kind in dict.fromkeys(kind for _, kind in shown if kind is not None):
            if text := self._extracted(owner, shown, kind).strip():
                texts[kind] = text
        for form in forms:
            for kind, text in form.items():
                texts[kind] = "\n\n".join(filter(None, (texts.get(kind), text)))
        return texts

    def _drawn(self, resources: Any, name: Any, stream: _Stream, around: str) -> dict[str, str]:
        """Paint a picture, or return the texts of a form."""
        from pypdf.generic import ContentStream  # noqa: PLC0415 - an optional extra

        objects = _resolved(resources.get("/XObject")) or {}
        item = _resolved(objects[name]) if name in objects else {}
        inner, kind = replace(stream.graphics), item.get("/Subtype")
        if kind == "/Image":
            self.areas.append((_box_of([0, 0, 1, 1], inner.matrix), None))
        if kind != "/Form" or id(item) in self._open or len(self._open) >= _DEEPEST:
            return {}
        matrix = tuple(float(number) for number in item.get("/Matrix", ()))
        if len(matrix) == len(_IDENTITY):
            inner.matrix = _times(cast("_Matrix", matrix), inner.matrix)
        hidden = around or stream.layer
        if _number_of(item, "/OC") in self.layers:
            hidden = hidden or _LAYER
        owner = item if "/Resources" in item else {"/Resources": resources}
        self._open.add(id(item))
        texts = self._texts(owner, ContentStream(item, self._reader), inner, hidden)
        self._open.discard(id(item))
        return texts

    def _extracted(self, owner: Any, shown: Sequence[tuple[Any, str | None]], wanted: str) -> str:
        """Return the text of one kind in a stream."""
        from pypdf import PageObject  # noqa: PLC0415 - an optional extra
        from pypdf.generic import ContentStream, DictionaryObject, NameObject  # noqa: PLC0415

        stream = ContentStream(None, self._reader)
        stream.operations = [
            operation if kind is None or kind == wanted else ([], b"T*")
            for operation, kind in shown
            if kind in (None, wanted) or operation[1] in (b"'", b'"')
        ]
        page = PageObject(self._reader)
        page[NameObject("/Resources")] = owner.get("/Resources", DictionaryObject())
        page[NameObject("/Contents")] = stream
        return str(page.extract_text())

    def hides(self, graphics: _Graphics, text: _Matrix) -> str:
        """Return why text with this matrix is hidden, or an empty text."""
        if graphics.mode in _INVISIBLE_MODES or graphics.opacity <= _TRANSPARENT:
            return _NOT_PAINTED
        place = _times(text, graphics.matrix)
        if abs(graphics.size) * math.hypot(place[2], place[3]) <= colours.TINY:
            return colours.SMALL
        x, y = place[4:]
        left, bottom, right, top = self.sheet
        if not (left - _EDGE <= x <= right + _EDGE and bottom - _EDGE <= y <= top + _EDGE):
            return _OUTSIDE
        inks = [graphics.stroke] if graphics.mode == _OUTLINES else [graphics.fill]
        if graphics.mode > _OUTLINES:  # filled and outlined
            inks.append(graphics.stroke)
        behind = self._behind(x, y)
        vanishes = behind and all(ink is not None and colours.alike(ink, behind) for ink in inks)
        return colours.SAME_COLOUR if vanishes else ""

    def _behind(self, x: float, y: float) -> colours.Colour | None:
        """Return the colour at a place; None for a picture."""
        for (left, bottom, right, top), colour in reversed(self.areas[-_MOST_AREAS:]):
            if left <= x <= right and bottom - 1 <= y <= top:
                return colour
        return colours.WHITE


class _Stream:
    """Follows the operations of a page or a form to find why their text is hidden."""

    def __init__(self, page: _Page, graphics: _Graphics, resources: Any) -> None:
        self.graphics = graphics
        self._page, self._resources = page, resources
        self._saved: list[_Graphics] = []
        self._text = self._line = _IDENTITY
        self._path: list[_Box] = []
        self._marked: list[bool] = []  # for each open marked content: in a hidden layer?

    @property
    def layer(self) -> str:
        """The hidden layer around the current operation, or an empty text."""
        return _LAYER if any(self._marked) else ""

    def follow(self, operands: Sequence[Any], operator: bytes) -> str | None:  # noqa: C901, PLR0912
        """Follow an operation; return why its text is hidden, None if it shows no text."""
        numbers = [float(one) for one in operands if isinstance(one, int | float)]
        state = self.graphics
        match operator, numbers:
            case b"q", _:
                self._saved.append(replace(state))
            case b"Q", _ if self._saved:
                self.graphics = self._saved.pop()
            case b"cm", [_, _, _, _, _, _]:
                state.matrix = _times(cast("_Matrix", tuple(numbers)), state.matrix)
            case b"BT", _:
                self._text = self._line = _IDENTITY
            case b"Tm", [_, _, _, _, _, _]:
                self._text = self._line = cast("_Matrix", tuple(numbers))
            case b"Td" | b"TD", [x, y]:
                state.leading = -y if operator == b"TD" else state.leading
                self._move(x, y)
            case b"T*" | b"'" | b'"', _:
                self._move(0.0, -state.leading)
            case b"TL", [leading, *_]:
                state.leading = leading
            case b"Tf", [*_, size]:
                state.size = size
            case b"Tr", [mode, *_]:
                state.mode = int(mode)
            case b"gs", _:
                state.opacity = self._opacity(operands, state.opacity)
            case b"re", [_, _, _, _]:
                self._path.append(_box_of(numbers, state.matrix))
            case b"INLINE IMAGE", _:
                self._page.areas.append((_box_of([0, 0, 1, 1], state.matrix), None))
            case b"BDC" | b"BMC", _:
                self._marked.append(self._in_hidden_layer(operands))
            case b"EMC", _:
                self._marked = self._marked[:-1]
            case _ if operator in _ENDS_PATH:
                if operator in _PAINTS and state.opacity > _TRANSLUCENT:
                    self._page.areas += [(box, state.fill) for box in self._path]
                self._path = []
            case _ if operator in _COLOURS:
                colour = _BLACK if operator in (b"cs", b"CS") else _colour(numbers)
                if operator.isupper():
                    state.stroke = colour
                else:
                    state.fill = colour
        if operator not in _SHOWS:
            return None
        return self.layer or self._page.hides(self.graphics, self._text)

    def _move(self, x: float, y: float) -> None:
        self._text = self._line = _times((1, 0, 0, 1, x, y), self._line)

    def _opacity(self, operands: Sequence[Any], usual: float) -> float:
        states = _resolved(self._resources.get("/ExtGState")) or {}
        name = operands[0] if operands else None
        value = _resolved(states[name]).get("/ca") if name in states else None
        return float(value) if isinstance(value, int | float) else usual

    def _in_hidden_layer(self, operands: Sequence[Any]) -> bool:
        layered = len(operands) > 1 and operands[0] == "/OC" and isinstance(operands[1], str)
        properties = _resolved(self._resources.get("/Properties")) or {}
        return layered and _number_of(properties, operands[1]) in self._page.layers


def _colour(numbers: Sequence[float]) -> colours.Colour | None:
    """Return a colour of grey, RGB or CMYK."""
    match numbers:
        case [grey]:
            return (grey, grey, grey)
        case [red, green, blue]:
            return (red, green, blue)
        case [_, _, _, _]:
            *inks, black = (min(1.0, max(0.0, ink)) for ink in numbers)
            return cast("colours.Colour", tuple((1 - ink) * (1 - black) for ink in inks))
    return None


def _number_of(values: Any, key: str) -> int | None:
    """Return the number of the object at a key."""
    raw = values.raw_get(key) if key in values and hasattr(values, "raw_get") else None
    return getattr(raw, "idnum", None)


def _resolved(value: Any) -> Any:
    """Return the object of a reference."""
    return value.get_object() if hasattr(value, "get_object") else value


def _times(m: _Matrix, n: _Matrix) -> _Matrix:
    """Return the matrix that applies ``m``, then ``n``."""
    return (
        m[0] * n[0] + m[1] * n[2],
        m[0] * n[1] + m[1] * n[3],
        m[2] * n[0] + m[3] * n[2],
        m[2] * n[1] + m[3] * n[3],
        m[4] * n[0] + m[5] * n[2] + n[4],
        m[4] * n[1] + m[5] * n[3] + n[5],
    )


def _box_of(numbers: Sequence[float], matrix: _Matrix) -> _Box:
    """Return the box on the page of a rectangle (x, y, width, height)."""
    x, y, width, height = numbers
    corners = ((x, y), (x + width, y), (x, y + height), (x + width, y + height))
    xs, ys = zip(*(_times((1, 0, 0, 1, *at), matrix)[4:] for at in corners), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _size(box: _Box) -> float:
    return max(1.0, (box[2] - box[0]) * (box[3] - box[1]))
