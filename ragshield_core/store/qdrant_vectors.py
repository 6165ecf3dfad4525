"""Vector search by Qdrant in the collections of either framework's stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.stored import FoundEntries, VectorTable

# Points fetched by one request.
AT_ONCE = 256
# Least number of candidates that a search keeps.
HNSW_EF = 128


class NamedVectors(NamedTuple):
    """Client, collection and name of vectors."""

    client: Any  # synchronous
    collection: str
    vector: str  # name of the dense vectors; empty if they have none
    payload: tuple[str, ...] = ()  # keys of the entry's id, if the point's id is another


class QdrantVectors(VectorTable):
    """The dense vectors of a collection, searched by Qdrant; its local mode compares all of them.

    A search uses the collection's own distance. If that is not the cosine and vectors differ in
    length, it may return other points than the nearest by cosine.

    ``place`` returns where the vectors are, ``None`` if there is no collection yet; ``point_ids``
    and ``entry_id`` translate ids, some of which may have no point; ``reading`` blocks writes.
    """

    def __init__(
        self,
        name: str,
        place: Callable[[], NamedVectors | None],
        point_ids: Callable[[Sequence[str]], Sequence[Any]],
        entry_id: Callable[[Any], str],
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._name, self._place, self._reading = name, place, reading
        self._point_ids, self._entry_id = point_ids, entry_id

    @property
    def name(self) -> str:
        """Name of the store."""
        return self._name

    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return the nearest points of each query, in one request."""
        from qdrant_client import models  # noqa: PLC0415 - only if Qdrant is used

        rows = np.full((len(embeddings), k), -1, dtype=np.int64)
        dim = embeddings.shape[1]
        with self._reading():
            place = self._place()
            if place is None:
                return FoundEntries(*self._named([], "", dim), rows)
            # The local mode compares all points, and warns if it gets a number of candidates.
            local = type(getattr(place.client, "_client", None)).__name__ == "QdrantLocal"
            requests = [
                models.QueryRequest(
                    query=query,
                    using=place.vector or None,
                    limit=k,
                    with_vector=[place.vector] if place.vector else True,
                    with_payload=list(place.payload) or False,
                    params=None if local else models.SearchParams(hnsw_ef=max(HNSW_EF, k)),
                )
                for query in embeddings.tolist()
            ]
            answers = place.client.query_batch_points(place.collection, requests=requests)
        number_of: dict[Any, int] = {}
        points: list[Any] = []
        for query, answer in enumerate(answers):
            for column, point in enumerate(answer.points):
                number = number_of.setdefault(point.id, len(points))
                if number == len(points):
                    points.append(point)
                rows[query, column] = number
        return FoundEntries(*self._named(points, place.vector, dim), rows)

    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return the ids that the collection holds, with their vectors."""
        wanted = list(self._point_ids(list(dict.fromkeys(ids))))
        with self._reading():
            place = self._place()
            if place is None:
                return self._named([], "", 0)
            points = [
                point
                for start in range(0, len(wanted), AT_ONCE)
                for point in place.client.retrieve(
                    place.collection,
                    wanted[start : start + AT_ONCE],
                    with_payload=list(place.payload) or False,
                    with_vectors=[place.vector] if place.vector else True,
                )
            ]
        return self._named(points, place.vector, 0)

    def _named(
        self, points: Sequence[Any], vector: str, dim: int
    ) -> tuple[list[str], NDArray[np.float32]]:
        """Return the ids and dense vectors of points; ``dim`` is the width if there are none."""
        if not points:
            return [], np.empty((0, dim), dtype=np.float32)
        rows = [dense_of(point.vector, vector) for point in points]
        return [self._entry_id(point) for point in points], np.array(rows, dtype=np.float32)


def dense_of(vector: Any, name: str) -> Any:
    """Return the dense vector of a point, which may have several named ones."""
    return vector[name] if isinstance(vector, dict) else vector
