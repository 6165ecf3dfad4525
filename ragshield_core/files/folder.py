"""Chunks of files and folders, with the outcome of each file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from ragshield_core.files.documents import LARGEST, ending_of, read_document
from ragshield_core.files.passages import Chunk, UnreadError, chunks_of
from ragshield_core.files.worker import SECONDS, Worker
from ragshield_core.model.entries import unfit

Outcome = Literal["read", "skipped", "unread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    """The outcome of a file, or of a folder whose files were not read."""

    name: str  # the path within the folder
    outcome: Outcome  # read, skipped on purpose, or unreadable
    why: str = ""  # reason if it was not read, else empty
    entries: int = 0  # number of chunks
    encoding: str = ""  # encoding if it is a text
    # Number of places with text that people do not see, such as comments
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """The outcome of each file of a folder, by name."""

    files: tuple[FileOutcome, ...] = ()

    def of(self, outcome: str) -> tuple[FileOutcome, ...]:
        """Return the files with an outcome: ``"read"``, ``"skipped"`` or ``"unread"``."""
        return tuple(file for file in self.files if file.outcome == outcome)

    @property
    def complete(self) -> bool:
        """Whether every file was read, except those left out on purpose."""
        return not self.of("unread")

    def summary(self) -> str:
        """Return the counts in a sentence.

        Examples
        --------
        >>> done = FileOutcome(name="a.md", outcome="read", entries=3)
        >>> Coverage((done, FileOutcome(name="b.png", outcome="skipped", why="unknown"))).summary()
        '2 files: 1 read (3 entries), 1 skipped, 0 could not be read.'
        """
        read, skipped, unread = map(self.of, ("read", "skipped", "unread"))
        entries = sum(file.entries for file in read)
        return (
            f"{len(self.files)} files: {len(read)} read ({entries} entries), {len(skipped)} "
            f"skipped, {len(unread)} could not be read."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Documents in files.

    Parameters
    ----------
    path
        A folder, or one file.
    include, exclude
        Globs of paths within the folder, such as ``"*.md"`` or ``"drafts/*"``; ``*`` matches
        folders as well. Without ``include``, all files count.
    largest, seconds
        Limits of a file: its bytes, and seconds if a library reads it. Beyond them it is unread.
    """

    path: Path
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    largest: int = LARGEST
    seconds: float = SECONDS

    def read(self) -> Iterator[tuple[FileOutcome, list[Chunk]]]:
        """Yield the outcome and chunks of each file, by name; unreadable files do not raise."""
        with closing(Worker(self.seconds)) as worker:
            for path, name, outcome, why in self._files():
                shown = shown_name(name)
                if outcome != "read":
                    yield FileOutcome(name=shown, outcome=outcome, why=why), []
                    continue
                try:
                    passages, encoding = read_document(path, worker, self.largest)
                except UnreadError as error:
                    yield FileOutcome(name=shown, outcome="unread", why=str(error)), []
                    continue
                chunks = chunks_of(passages, shown)
                hidden = sum(bool(passage.hidden) for passage in passages)
                became = FileOutcome(
                    name=shown,
                    outcome="read" if chunks else "skipped",
                    why="" if chunks else "it holds no text",
                    entries=len(chunks),
                    encoding=encoding,
                    hidden=hidden,
                )
                yield became, chunks

    def _files(self) -> Iterator[tuple[Path, str, Outcome, str]]:
        """Yield path, name and planned outcome of each file, with a reason if it is not read."""
        found: list[tuple[Path, str, Outcome, str]] = []

        def add(path: Path, outcome: Outcome = "skipped", why: str = "") -> None:
            name = path.relative_to(self.path).as_posix() if self.path.is_dir() else path.name
            why = why or self._skipped(path, name)
            found.append((path, name, outcome if why else "read", why))

        def closed(error: OSError) -> None:
            why = f"a folder that cannot be opened ({type(error).__name__})"
            add(Path(str(error.filename)), "unread", why)

        if not self.path.is_dir():
            add(self.path)
        for folder, folders, files in os.walk(self.path, onerror=closed):  # follows no links
            at = Path(folder)
            for name in list(folders):
                if why := "a link to a folder" if (at / name).is_symlink() else _dotted(name):
                    folders.remove(name)
                    add(at / name, why=why)
            for path in map(at.joinpath, files):
                add(path)
        yield from sorted(found, key=lambda one: Path(one[1]).parts)

    def _skipped(self, path: Path, name: str) -> str:
        """Return why a file is left out, or an empty text."""
        if why := _dotted(path.name):
            return why
        if (self.include and not matches(name, self.include)) or matches(name, self.exclude):
            return "left out by include or exclude"
        if ending_of(name) is None:
            return f"{path.suffix[:20] or 'a name without an ending'} is not read"
        try:
            if path.is_symlink() and not self._within(path):
                return "a link that leads out of the folder"
            if not path.is_file():
                return "no regular file"
            if not path.stat().st_size:
                return "empty"
        except (OSError, RuntimeError) as error:  # a link to itself
            return f"it cannot be followed ({type(error).__name__})"
        return ""

    def _within(self, path: Path) -> bool:
        return path.resolve(strict=True).is_relative_to(self.path.resolve())


def _dotted(name: str) -> str:
    return "its name begins with a dot" if name.startswith(".") else ""


def matches(name: str, globs: Sequence[str]) -> bool:
    """Return whether one of the globs matches a path within a folder, or its last part."""
    base = name.rpartition("/")[2]
    return any(fnmatchcase(name, glob) or fnmatchcase(base, glob) for glob in globs)


def shown_name(name: str) -> str:
    """Return a file name as text that can be stored; undecodable bytes are escaped."""
    if not unfit(name):
        return name
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
