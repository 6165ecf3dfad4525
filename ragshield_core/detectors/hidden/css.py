"""Style that makes text invisible."""

# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re

CSS_COMMENT = re.compile(r"/\*[^*]{0,500}\*/|\s")


def declarations(style: str) -> dict[str, str]:
    """Return the declarations of a style, values by property."""
    pairs = (declaration.partition(":") for declaration in style.split(";")[:60])
    return {name: value.replace("!important", "") for name, _, value in pairs}


_LAST_SELECTOR = re.compile(r"[.#]?[\w-]{1,64}$")  # of "div p.note", what matters is ".note"


def background(declared: dict[str, str]) -> tuple[int, int, int] | None:
    """Return the background colour of declarations, if they name one."""
    return _colour(declared.get("background-color") or declared.get("background", ""))


def hiding_selectors(sheet: str) -> dict[str, float]:
    """Return which selectors of a style sheet hide what they select, and how surely."""
    found = {}
    for rule in sheet.split("}"):
        selectors, _, body = rule.partition("{")
        declared = declarations(CSS_COMMENT.sub("", body).lower())
        if sure := hides(declared, background(declared)):
            for selector in selectors.lower().split(",")[:20]:
                if last := _LAST_SELECTOR.search(selector.strip()):
                    found[last[0]] = sure
    return found


_LENGTH = re.compile(r"(-?[0-9]{0,6}\.?[0-9]{0,6})(px|pt|em|rem|ex|vw|vh|cm|mm|in|%|)")
_PIXELS = {"em": 16.0, "rem": 16.0, "ex": 8.0, "vw": 10.0, "vh": 10.0, "%": 0.16, "pt": 1.3}
_OFF_SCREEN = 500.0  # pixels
_OFFSETS = ("left", "right", "top", "bottom", "text-indent", "margin-left", "margin-top")
SIZES = ("width", "height", "max-width", "max-height")
_NO_ALPHA = re.compile(r"^(?:rgba|hsla)\([^)]{1,60},0?\.?0+%?\)$")


def _pixels(value: str) -> float | None:
    match = _LENGTH.fullmatch(value)
    if not match or not any(c.isdigit() for c in match[1]):
        return None
    return float(match[1]) * _PIXELS.get(match[2], 1.0)


def hides(declared: dict[str, str], behind: tuple[int, int, int] | None) -> float:
    """Return how sure it is that declarations of CSS hide the text that they apply to, [0, 1]."""
    size, opacity = _pixels(declared.get("font-size", "")), _pixels(declared.get("opacity", ""))
    boxed = declared.get("overflow") == "hidden"
    transform = declared.get("transform", "")
    if (
        declared.get("display") == "none"
        or declared.get("visibility") in ("hidden", "collapse")
        or (opacity is not None and opacity <= 0.05)
        or (size is not None and 0 <= size <= 2)
        or any((_pixels(declared.get(side, "")) or 0.0) <= -_OFF_SCREEN for side in _OFFSETS)
        or (boxed and any(_pixels(declared.get(side, "")) == 0 for side in SIZES))
        or ("scale(0" in transform and "scale(0." not in transform)
    ):
        return 1.0
    clip = declared.get("clip", "") + declared.get("clip-path", "")
    if clip.startswith(("rect(0", "rect(1px", "inset(50%", "inset(100%", "circle(0")):
        return 0.6  # for screen readers, mostly
    return _vanishes(declared, behind)


def _vanishes(declared: dict[str, str], behind: tuple[int, int, int] | None) -> float:
    """Return how sure it is that text has the colour of what is behind it, [0, 1]."""
    colour, picture = declared.get("color", ""), declared.get("background", "")
    if colour == "transparent" or _NO_ALPHA.search(colour):
        return 1.0
    front = _colour(colour)
    if front is None or "url(" in picture or "gradient" in picture:
        return 0.0
    # Without a colour behind it that we know of, the page is likely white, but not surely.
    distance = sum(abs(a - b) for a, b in zip(front, behind or (255, 255, 255), strict=True))
    return (1.0 if behind else 0.6) if distance <= 24 else 0.0


_COLOURS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "snow": (255, 250, 250),
    "ivory": (255, 255, 240),
    "ghostwhite": (248, 248, 255),
    "whitesmoke": (245, 245, 245),
    "floralwhite": (255, 250, 240),
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
}
_RGB = re.compile(r"rgba?\(([0-9]{1,3})[, ]{1,3}([0-9]{1,3})[, ]{1,3}([0-9]{1,3})")
_HEX = re.compile(r"#([0-9a-f]{3,8})")


def _colour(value: str) -> tuple[int, int, int] | None:
    if value in _COLOURS:
        return _COLOURS[value]
    if match := _HEX.match(value):
        digits = match[1]
        if len(digits) in (3, 4):
            digits = "".join(2 * c for c in digits)
        if len(digits) in (6, 8):
            return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)
    if value.startswith("hsl") and value.endswith(",100%)"):
        return _COLOURS["white"]
    if match := _RGB.match(value):
        return int(match[1]), int(match[2]), int(match[3])
    return None
