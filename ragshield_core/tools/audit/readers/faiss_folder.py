"""A folder that LangChain's ``FAISS.save_local`` wrote, read without running its pickle.

The index comes with a pickle of the docstore, and a pickle can call any function with any
arguments. A writer of a knowledge base must not be able to run code in its audit. So stand-ins that
only store their state replace the few classes that LangChain writes, and any other name is refused.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ragshield_core.model.errors import SourceError
from ragshield_core.neighbors.search import load_faiss
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Rows, Source, Vectors, reading

T = TypeVar("T")


class _StandIn:
    """Keeps the state of an object without building the object."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        object.__setattr__(self, "state", state)


class _Docstore(_StandIn):
    """Stand-in for InMemoryDocstore."""


class _Document(_StandIn):
    """Stand-in for Document."""


# Modules have moved between releases of LangChain. The other classes occur in metadata or, as sets,
# in the state of a pydantic model; their constructors have no side effects.
KNOWN_CLASSES: Mapping[tuple[str, str], type] = {
    **{
        (module, "InMemoryDocstore"): _Docstore
        for module in ("langchain_community.docstore.in_memory", "langchain.docstore.in_memory")
    },
    **{
        (module, "Document"): _Document
        for module in (
            *("langchain_core.documents.base", "langchain_core.documents"),
            *("langchain.schema", "langchain.schema.document", "langchain.docstore.document"),
        )
    },
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    **{
        ("datetime", kind.__name__): kind
        for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone)
    },
}
# Errors from unpickling and unpacking a damaged or hostile file.
_MALFORMED = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError),
    *(OverflowError, RecursionError, MemoryError),
)


class _RefusedError(pickle.UnpicklingError):
    pass


class _Unpickler(pickle.Unpickler):
    """Unpickler that builds :data:`KNOWN_CLASSES` only."""

    def find_class(self, module_name: str, global_name: str, /) -> type:
        found = KNOWN_CLASSES.get((module_name, global_name))
        if found is None:
            msg = (
                f"names {module_name}.{global_name}, which LangChain does not write by itself: "
                "refused, and nothing of it was run. If that is a value in your documents' "
                "metadata, export the store as JSON Lines; if not, the file was tampered with"
            )
            raise _RefusedError(msg)
        return found


def faiss_folder(source: Source) -> Iterator[Rows]:
    """Yield the entries of ``index.faiss`` and ``index.pkl``, in the order of the index.

    The path is the folder, or one ``.faiss`` file in it if the index has another name. Labels
    and lineages come from the metadata.
    """
    folder = source.path.is_dir()
    stored, path = (
        source.path / f"index{ending}" if folder else source.path.with_suffix(ending)
        for ending in (".pkl", ".faiss")
    )
    ids, documents = _docstore(stored)
    if not path.is_file():
        msg = f"{path} does not exist, expected it in a folder that FAISS.save_local wrote."
        raise SourceError(msg)
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        msg = f"{path} is not a FAISS index; save the store again."
        raise SourceError(msg) from error
    if index.ntotal != len(ids):
        msg = (
            f"{path} holds {index.ntotal} vectors and {stored} {len(ids)} documents, expected as "
            "many; save the store again."
        )
        raise SourceError(msg)
    for start in range(0, len(ids), CHUNK_ROWS):
        part = documents[start : start + CHUNK_ROWS]
        try:
            if not isinstance(index, faiss.IndexIVF):  # its single rows need a map
                # If rows cannot be read back, this raises, but reconstruct_n ends the process.
                index.reconstruct(start)
            matrix = np.asarray(index.reconstruct_n(start, len(part)), dtype=np.float32)
        except RuntimeError as error:
            msg = (
                f"{path} keeps no vectors that could be read back ({type(index).__name__}), "
                "expected an index such as IndexFlatL2; export the texts as JSON Lines, to be "
                "embedded again."
            )
            raise SourceError(msg) from error
        found = [(meta, f"{source.path}, row {row}") for row, (_, meta) in enumerate(part, start)]
        yield Rows(
            ids=ids[start : start + CHUNK_ROWS],
            texts=[text for text, _ in part],
            labels=[source.columns.claim("label", *each) for each in found],
            lineages=[source.columns.claim("lineage", *each) for each in found],
            metadatas=[metadata for _, metadata in part] if source.metadata else [],
            vectors=Vectors(np.arange(len(part)), matrix),
        )


def _docstore(path: Path) -> tuple[list[str], list[tuple[str, Mapping[str, Any]]]]:
    """Return ids, and texts with their metadata, in the order of the index."""
    try:
        with reading(path), path.open("rb") as file:
            docstore, mapping = _Unpickler(file).load()  # not pickle.load: see the classes above
            stored = docstore.state["_dict"]
            ids = [_typed(mapping[number], str) for number in range(len(mapping))]
            states = [_typed(_typed(stored[one], _Document).state, dict) for one in ids]
            fields = [state["__dict__"] for state in states]
            return ids, [
                (_typed(one["page_content"], str), _typed(one["metadata"], dict)) for one in fields
            ]
    except _MALFORMED as error:
        reason = str(error) if isinstance(error, _RefusedError) else type(error).__name__
        msg = f"{path} is not a docstore as LangChain writes it ({reason})."
        raise SourceError(msg) from None


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError
    return value
