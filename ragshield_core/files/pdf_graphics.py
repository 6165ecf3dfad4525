"""What of a PDF page is seen: colours, sizes and places of its letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ragshield_core.files.colours import TINY, WHITE, Colour, alike

Matrix = tuple[float, float, float, float, float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top

IDENTITY: Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
BLACK: Colour = (0.0, 0.0, 0.0)
SHOWS = frozenset({b"Tj", b"TJ", b"'", b'"'})
_PAINTS = frozenset({b"f", b"F", b"f*", b"B", b"B*", b"b", b"b*"})
_ENDS_PATH = _PAINTS | {b"S", b"s", b"n"}
# Letters that are neither filled nor stroked, or only clip; and those that are stroked only.
_INVISIBLE_MODES, _OUTLINES = frozenset({3, 7}), 1
# Less is not seen; half of it lets what is behind it through.
_TRANSPARENT, _TRANSLUCENT = 0.05, 0.5
# What stands so far outside the page, in points, is not its edge.
_EDGE = 2.0
# Rectangles that may lie behind text: the last ones count.
_MOST_AREAS = 5_000
# Numbers of a matrix or a point, a rectangle, and of colours: grey, RGB and CMYK.
_MATRIX, _POINT, _RECTANGLE, _GREY, _RGB, _CMYK = 6, 2, 4, 1, 3, 4

NOT_PAINTED = "letters that are not painted"
SAME_COLOUR = "letters of the colour behind them"
SMALL = "letters too small to read"
OUTSIDE = "text outside the page"
LAYER = "text of a hidden layer"


@dataclass(slots=True)
class Area:
    """A rectangle that was painted; a colour of None is a picture."""

    box: Box
    colour: Colour | None


@dataclass(slots=True)
class Graphics:
    """What of the state of a page decides whether text is seen."""

    matrix: Matrix = IDENTITY
    fill: Colour | None = BLACK  # None: a pattern, or colours that are not read
    stroke: Colour | None = BLACK
    opacity: float = 1.0
    mode: int = 0
    size: float = 12.0
    leading: float = 0.0


@dataclass(slots=True)
class Canvas:
    """A page while it is painted.

    Attributes
    ----------
    sheet
        What is shown of it.
    layers
        Numbers of the objects of layers that are off.
    areas
        What was painted so far.
    """

    sheet: Box
    layers: frozenset[int]
    areas: list[Area] = field(default_factory=list)

    def behind(self, x: float, y: float) -> Colour | None:
        """Return the colour at a place; None for a picture."""
        for area in reversed(self.areas[-_MOST_AREAS:]):
            left, bottom, right, top = area.box
            if left <= x <= right and bottom - 1 <= y <= top:
                return area.colour
        return WHITE

    def hides(self, graphics: Graphics, text: Matrix) -> str:
        """Return what hides text that starts at a place, or an empty text."""
        if graphics.mode in _INVISIBLE_MODES or graphics.opacity <= _TRANSPARENT:
            return NOT_PAINTED
        place = times(text, graphics.matrix)
        if abs(graphics.size) * math.hypot(place[2], place[3]) <= TINY:
            return SMALL
        x, y = place[4:]
        left, bottom, right, top = self.sheet
        if not (left - _EDGE <= x <= right + _EDGE and bottom - _EDGE <= y <= top + _EDGE):
            return OUTSIDE
        inks = [graphics.stroke] if graphics.mode == _OUTLINES else [graphics.fill]
        if graphics.mode > _OUTLINES:  # filled and outlined
            inks.append(graphics.stroke)
        behind = self.behind(x, y)
        vanishes = behind and all(ink is not None and alike(ink, behind) for ink in inks)
        return SAME_COLOUR if vanishes else ""


class Stream:
    """Follows the operations of a page or a form, to say what hides the text that they show.

    Parameters
    ----------
    canvas
        Of the page.
    graphics
        The state at the beginning.
    resources
        What names in the stream stand for.
    """

    def __init__(self, canvas: Canvas, graphics: Graphics, resources: Any) -> None:
        self.graphics = graphics
        self._canvas, self._resources = canvas, resources
        self._saved: list[Graphics] = []
        self._text = self._line = IDENTITY
        self._path: list[Box] = []
        self._marked: list[bool] = []  # whether each open marked content is of a hidden layer
        self._handlers: dict[bytes, Callable[[Sequence[Any], list[float]], None]] = {
            b"q": self._save,
            b"Q": self._restore,
            b"cm": self._transform,
            b"BT": self._begin,
            b"Tm": self._place,
            b"Td": self._move,
            b"TD": self._move_leading,
            b"T*": self._next_line,
            b"'": self._next_line,
            b'"': self._next_line,
            b"TL": self._leading,
            b"Tf": self._font,
            b"Tr": self._mode,
            b"gs": self._state,
            b"re": self._rectangle,
            b"INLINE IMAGE": self._picture,
            b"BDC": self._mark,
            b"BMC": self._mark,
            b"EMC": self._unmark,
        }

    def follow(self, operands: Sequence[Any], operator: bytes) -> str | None:
        """Take an operation; return what hides the text that it shows, None if it shows none."""
        numbers = [float(one) for one in operands if isinstance(one, int | float)]
        if handle := self._handlers.get(operator):
            handle(operands, numbers)
        elif operator in _ENDS_PATH:
            if operator in _PAINTS and self.graphics.opacity > _TRANSLUCENT:
                self._canvas.areas += [Area(box, self.graphics.fill) for box in self._path]
            self._path = []
        elif operator in _COLOURS:
            self._colour(operator, numbers)
        if operator not in SHOWS:
            return None
        return self.layer or self._canvas.hides(self.graphics, self._text)

    @property
    def layer(self) -> str:
        """What hides all that is shown now, or an empty text."""
        return LAYER if any(self._marked) else ""

    def _save(self, _: Sequence[Any], __: list[float]) -> None:
        self._saved.append(replace(self.graphics))

    def _restore(self, _: Sequence[Any], __: list[float]) -> None:
        self.graphics = self._saved.pop() if self._saved else self.graphics

    def _transform(self, _: Sequence[Any], numbers: list[float]) -> None:
        if len(numbers) == _MATRIX:
            self.graphics.matrix = times(matrix_of(numbers), self.graphics.matrix)

    def _begin(self, _: Sequence[Any], __: list[float]) -> None:
        self._text = self._line = IDENTITY

    def _place(self, _: Sequence[Any], numbers: list[float]) -> None:
        if len(numbers) == _MATRIX:
            self._text = self._line = matrix_of(numbers)

    def _move(self, _: Sequence[Any], numbers: list[float]) -> None:
        if len(numbers) == _POINT:
            self._text = self._line = times((1, 0, 0, 1, numbers[0], numbers[1]), self._line)

    def _move_leading(self, operands: Sequence[Any], numbers: list[float]) -> None:
        if len(numbers) == _POINT:
            self.graphics.leading = -numbers[1]
        self._move(operands, numbers)

    def _next_line(self, operands: Sequence[Any], _: list[float]) -> None:
        self._move(operands, [0.0, -self.graphics.leading])

    def _leading(self, _: Sequence[Any], numbers: list[float]) -> None:
        self.graphics.leading = numbers[0] if numbers else self.graphics.leading

    def _font(self, _: Sequence[Any], numbers: list[float]) -> None:
        self.graphics.size = numbers[-1] if numbers else self.graphics.size

    def _mode(self, _: Sequence[Any], numbers: list[float]) -> None:
        self.graphics.mode = int(numbers[0]) if numbers else self.graphics.mode

    def _state(self, operands: Sequence[Any], _: list[float]) -> None:
        states = resolved(self._resources.get("/ExtGState")) or {}
        name = operands[0] if operands else None
        value = resolved(states[name]).get("/ca") if name in states else None
        if isinstance(value, int | float):
            self.graphics.opacity = float(value)

    def _rectangle(self, _: Sequence[Any], numbers: list[float]) -> None:
        if len(numbers) == _RECTANGLE:
            self._path.append(box_of(numbers, self.graphics.matrix))

    def _picture(self, _: Sequence[Any], __: list[float]) -> None:
        self._canvas.areas.append(Area(box_of([0, 0, 1, 1], self.graphics.matrix), None))

    def _mark(self, operands: Sequence[Any], _: list[float]) -> None:
        layered = len(operands) > 1 and operands[0] == "/OC" and isinstance(operands[1], str)
        properties = resolved(self._resources.get("/Properties")) or {}
        self._marked.append(layered and number_of(properties, operands[1]) in self._canvas.layers)

    def _unmark(self, _: Sequence[Any], __: list[float]) -> None:
        self._marked = self._marked[:-1]

    def _colour(self, operator: bytes, numbers: Sequence[float]) -> None:
        colour: Colour | None = None
        if operator in (b"cs", b"CS"):
            colour = BLACK
        elif len(numbers) == _GREY:
            colour = (numbers[0],) * 3
        elif len(numbers) == _RGB:
            colour = (numbers[0], numbers[1], numbers[2])
        elif len(numbers) == _CMYK:
            *inks, black = (min(1.0, max(0.0, ink)) for ink in numbers)
            colour = cast("Colour", tuple((1 - ink) * (1 - black) for ink in inks))
        if operator.isupper():
            self.graphics.stroke = colour
        else:
            self.graphics.fill = colour


_COLOURS = frozenset(b"g G rg RG k K sc SC scn SCN cs CS".split())


def number_of(values: Any, key: str) -> int | None:
    """Return the number of the object that a key refers to."""
    raw = values.raw_get(key) if key in values and hasattr(values, "raw_get") else None
    return getattr(raw, "idnum", None)


def resolved(value: Any) -> Any:
    """Return the object that a reference stands for."""
    return value.get_object() if hasattr(value, "get_object") else value


def matrix_of(numbers: Sequence[float]) -> Matrix:
    """Return six numbers as a matrix."""
    a, b, c, d, e, f = numbers
    return a, b, c, d, e, f


def times(m: Matrix, n: Matrix) -> Matrix:
    """Return the matrix that applies the one and then the other."""
    return (
        m[0] * n[0] + m[1] * n[2],
        m[0] * n[1] + m[1] * n[3],
        m[2] * n[0] + m[3] * n[2],
        m[2] * n[1] + m[3] * n[3],
        m[4] * n[0] + m[5] * n[2] + n[4],
        m[4] * n[1] + m[5] * n[3] + n[5],
    )


def box_of(numbers: Sequence[float], matrix: Matrix) -> Box:
    """Return a rectangle (x, y, width, height) as it lies on the page."""
    x, y, width, height = numbers
    corners = [
        times((1, 0, 0, 1, *corner), matrix)[4:]
        for corner in ((x, y), (x + width, y), (x, y + height), (x + width, y + height))
    ]
    xs, ys = zip(*corners, strict=True)
    return min(xs), min(ys), max(xs), max(ys)
