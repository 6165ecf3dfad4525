"""A process that reads files with libraries, so that a hostile file cannot stop an audit.

It reads one path per line, and answers with one passage per line and a last line. The caller is
:class:`Worker`; ``python -m ragshield_core.files.worker`` answers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import IO, Any

from ragshield_core.files.passages import FilePassage, UnreadError

# Formats that need a library: module and function of the reader, and the library.
BINARIES = {
    ".pdf": ("pdf", "pdf", "pypdf"),
    ".docx": ("office", "word", "defusedxml"),
    ".odt": ("office", "open_document", "defusedxml"),
    ".epub": ("office", "epub", "defusedxml"),
}
# Most seconds for one file, and most bytes of memory for the process.
SECONDS = 60.0
MEMORY = 3 << 30
# Most characters of all passages of one file.
MOST_TEXT = 1 << 28


class Worker:
    """Reads files in a process that starts on demand and ends with the worker.

    Parameters
    ----------
    seconds
        Limit for one file; a slower one is not read.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def read(self, path: Path) -> list[FilePassage]:
        """Return the passages of a file, if it takes neither too long nor too much memory."""
        *_, package = BINARIES[path.suffix.lower()]
        if importlib.util.find_spec(package) is None:
            msg = f"needs {package}: pip install 'ragshield[files]'"
            raise UnreadError(msg)
        process = self._running()
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._seconds, end)
        timer.daemon = True  # an interrupted audit does not wait for it
        timer.start()
        try:
            return self._answer(process, path)
        except (EOFError, OSError, ValueError):  # the process has ended
            self.close()
            why = f"it took more than {self._seconds:g} seconds" if late.is_set() else "it crashed"
            msg = f"its reader was ended: {why}"
            raise UnreadError(msg) from None
        finally:
            timer.cancel()

    def _answer(self, process: subprocess.Popen[str], path: Path) -> list[FilePassage]:
        asking, answering = _pipes(process)
        asking.write(json.dumps(str(path.absolute())) + "\n")
        asking.flush()
        passages = []
        while line := answering.readline():
            value = json.loads(line)
            if isinstance(value, list):
                passages.append(FilePassage(*value))
            elif value is None:
                return passages
            else:
                raise UnreadError(value)
        raise EOFError

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # -m needs -P: modules in the working directory must not be imported.
            command = [sys.executable, "-P", "-m", "ragshield_core.files.worker"]
            root = str(Path(__file__).parents[2])
            paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
            )
            _pipes(self._process)[1].readline()  # ready: its start does not count for the file
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in _pipes(self._process):
                with suppress(OSError):
                    pipe.close()
            self._process = None


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None  # noqa: S101 - both are opened above
    assert process.stdout is not None  # noqa: S101
    return process.stdin, process.stdout


def main() -> None:
    """Answer until the input ends."""
    _limit_memory()
    answering, sys.stdout = sys.stdout, sys.stderr  # output of libraries is no answer
    answering.write("\n")
    answering.flush()
    for line in sys.stdin:
        for value in _values(Path(json.loads(line))):
            answering.write(json.dumps(value) + "\n")
        answering.flush()


def _values(path: Path) -> Iterator[Any]:
    """Yield passages as lists and then None, or a sentence on why there are none."""
    size = 0
    try:
        module, reader, _ = BINARIES[path.suffix.lower()]
        read = getattr(importlib.import_module(f"ragshield_core.files.{module}"), reader)
        for passage in read(path):
            size += len(passage.text)
            if size > MOST_TEXT:
                yield f"more than {MOST_TEXT:,} characters of text"
                return
            yield list(astuple(passage))
    except UnreadError as error:
        yield str(error)
    except Exception as error:  # noqa: BLE001 - any library's; its message may hold hostile text
        yield f"damaged ({type(error).__name__})"
    else:
        yield None


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    main()
