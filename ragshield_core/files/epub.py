"""Passages of an EPUB."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from ragshield_core.files.encodings import decoded
from ragshield_core.files.packed import Package
from ragshield_core.files.pages import page
from ragshield_core.files.passages import Passage, UnreadError

_CONTAINER = "META-INF/container.xml"
_ROOTFILE = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_RIGHTS = "META-INF/encryption.xml"


def epub(path: Path) -> Iterator[Passage]:
    """Yield the passages of the pages of a book, in its order."""
    with Package(path) as package:
        rootfile = next(package.xml(_CONTAINER).iter(_ROOTFILE), None)
        main = "" if rootfile is None else rootfile.get("full-path", "")
        book = package.xml(main)
        items = {item.get("id"): item.get("href", "") for item in book.iter(_OPF + "item")}
        pages = [items.get(ref.get("idref"), "") for ref in book.iter(_OPF + "itemref")]
        if not pages:
            msg = "a book without pages"
            raise UnreadError(msg)
        for number, href in enumerate(pages, 1):
            # Names that lead out of the archive are those of no part.
            name = posixpath.normpath(posixpath.join(posixpath.dirname(main), unquote(href)))
            if name not in package.names and _RIGHTS in package.names:
                msg = "encrypted"
                raise UnreadError(msg)
            text, _ = decoded(package.read(name))
            yield from page(text, f"part {number}, line")
