"""Claims about an entry, read from its metadata: label, document and source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import numpy as np

from ragshield_core.model.errors import InvalidBatchError


def claim_of(key: str, entry_id: str, value: object) -> str | None:
    """Return a label or lineage as a str; None for None, and for NaN.

    Raises
    ------
    InvalidBatchError
        If the value is not a str, number, boolean or path; names the key and the entry.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None  # data frames write NaN for a missing value
    if isinstance(value, bool | int | float | np.generic | PurePath):
        with suppress(ValueError):  # a number with more digits than Python writes
            return str(value)
    msg = (
        f"metadata[{key!r}] of entry {entry_id!r} is of type {type(value).__name__}, expected "
        "a str, a number or nothing; store one scalar under that key, or name another key."
    )
    raise InvalidBatchError(msg)


_NAME = re.compile(r"[^\s\d]")  # a name has at least one such character
# Keys under which readers name the file or document of an entry, the surest first: LlamaIndex's
# file readers, LangChain's loaders, splitters into parents and children.
LINEAGE_KEYS = ("file_path", "source", "url", "file_name", "filename", "parent_id", "doc_id")


def lineage_of(metadata: Mapping[str, Any], entry_id: str, key: str | None = None) -> str | None:
    """Return the document that an entry was cut from, as its metadata claims.

    Readers that make a document of each page name the file as well; pages of one file resemble each
    other, so the file is their lineage. ``key`` is the only key to read. ``None`` takes the first
    of :data:`LINEAGE_KEYS` whose value is a name; a page number, which some readers put under
    ``source``, is not.

    Raises
    ------
    InvalidBatchError
        If ``key`` is given and its value is not a scalar; names the entry.
    """
    if key is not None:
        return claim_of(key, entry_id, metadata.get(key))
    for value in map(metadata.get, LINEAGE_KEYS):
        if isinstance(value, str | PurePath) and _NAME.search(str(value)):
            return str(value)
    return None


# URL of a host or bucket; the host may carry a user or a port.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://([^/?#\s]{0,255})")
MAX_SOURCE = 255  # characters in the name of a source


def source_of(document: str | None) -> str | None:
    """Return the source of a document, taken from its name: a host, a bucket or a folder.

    A URL gives its host or bucket; a relative path gives its top folder; an absolute path gives its
    first two folders, which two collections rarely share. Other names give ``None``: they belong to
    the one source without a name.

    Examples
    --------
    >>> source_of("https://docs.example.org/guide/start.html")
    'docs.example.org'
    >>> source_of("handbook/leave/parents.md"), source_of("/srv/wiki/a.md"), source_of("Chicago")
    ('handbook', '/srv/wiki', None)
    """
    if not isinstance(document, str):  # Batch refuses it, with the name of the column
        return None
    if found := _URL.match(document):
        if host := found[1].rpartition("@")[2].lower():
            return host[:MAX_SOURCE]
        document = document[found.end() :]  # file:///srv/wiki/a.md
    folders = document[: 4 * MAX_SOURCE].replace("\\", "/").split("/")[:-1]
    if not folders:
        return None
    named = [folder for folder in folders if folder not in ("", ".", "..")]
    if not named:
        return None
    absolute = folders[0] == "" or folders[0].endswith(":")
    source = "/".join(named[:2] if absolute else named[:1])
    return (f"/{source}" if folders[0] == "" else source)[:MAX_SOURCE]


# Metadata key, in the quarantine only, for a LlamaIndex node's fields except text and metadata.
NODE_KEY = "_ragshield_node"
# Key for the parts of a document that people do not see, as readers of files report them: one mark
# a line, see :mod:`ragshield_core.detectors.hidden.payload`.
HIDDEN_KEY = "ragshield_hidden"
# Key under which an integration names the source itself: a feed, a connector, an uploader.
SOURCE_KEY = "ragshield_source"
# Key of a stamp, which proves who vouches for an entry, and key under which retrieval shows what
# the stamp proves; see :mod:`ragshield_core.origin`.
STAMP_KEY, ORIGIN_KEY = "ragshield_stamp", "ragshield_origin"
# The one scalar metadata key that a flagged entry gains: the detectors that flagged it.
FLAG_KEY = "ragshield_flag"


def named_source(metadata: Mapping[str, Any], document: str | None) -> str | None:
    """Return the source of an entry: the one that its metadata names, else that of its document.

    The value of ``"ragshield_source"`` counts if it is a text that databases can keep. It is cut
    after 255 characters.

    Examples
    --------
    >>> named_source({"ragshield_source": "helpdesk-export"}, "https://docs.example/a.md")
    'helpdesk-export'
    """
    named = metadata.get(SOURCE_KEY)
    if isinstance(named, str) and named and "\0" not in named:
        with suppress(UnicodeEncodeError):  # halves of surrogate pairs
            named[:MAX_SOURCE].encode()
            return named[:MAX_SOURCE]
    return source_of(document)
