"""Files in which XML is packed: Word, OpenDocument and EPUB."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ragshield_core.files.passages import UnreadError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Bytes of all parts together, unpacked: books with their pictures have less.
MOST_UNPACKED = 1 << 28
# Of one part that is read.
MOST_OF_A_PART = 1 << 26
MOST_PARTS = 20_000
# How old Word files begin, and new ones that are encrypted.
_COMPOUND = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = 1


class Package:
    """A zip archive of which parts are read in memory, never written anywhere.

    Raises
    ------
    UnreadError
        If it is none, or unpacks to too much.
    """

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
        infos = self._zip.infolist()
        if len(infos) > MOST_PARTS or sum(info.file_size for info in infos) > MOST_UNPACKED:
            msg = f"a zip archive of more than {MOST_UNPACKED:,} bytes or {MOST_PARTS:,} parts"
            raise UnreadError(msg)
        self.names = set(self._zip.namelist())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """Return a part.

        Raises
        ------
        UnreadError
            If it is missing, damaged, encrypted or too large, whatever its header says.
        """
        if name not in self.names:
            msg = f"the part {name[:80]!r} is missing"
            raise UnreadError(msg)
        if self._zip.getinfo(name).flag_bits & _ENCRYPTED:
            msg = "encrypted"
            raise UnreadError(msg)
        try:
            with self._zip.open(name) as part:
                data = part.read(MOST_OF_A_PART + 1)
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            msg = f"a damaged zip archive ({type(error).__name__})"
            raise UnreadError(msg) from None
        if len(data) > MOST_OF_A_PART:
            msg = f"a part of more than {MOST_OF_A_PART:,} bytes"
            raise UnreadError(msg)
        return data

    def xml(self, name: str) -> Element:
        """Return a part as a tree; entities are refused.

        Raises
        ------
        UnreadError
            As of :meth:`read`, and if it is not XML or declares entities.
        """
        from defusedxml.common import DefusedXmlException  # noqa: PLC0415 - of an extra
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
