"""Log levels for the duration of a command or a trial."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler

_logger = logging.getLogger("ragshield")


@contextmanager
def quiet() -> Iterator[None]:
    """Log only errors, while a temporary guard is used."""
    with _at_level(logging.ERROR):
        yield


@contextmanager
def told(console: Console) -> Iterator[None]:
    """Show messages of level INFO and above on a console."""
    handler = RichHandler(console=console, show_path=False, markup=False)
    _logger.addHandler(handler)
    try:
        with _at_level(logging.INFO):
            yield
    finally:
        _logger.removeHandler(handler)


@contextmanager
def _at_level(level: int) -> Iterator[None]:
    before = _logger.level
    _logger.setLevel(level)
    try:
        yield
    finally:
        _logger.setLevel(before)
