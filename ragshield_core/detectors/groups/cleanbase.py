"""CleanBase's reference rule: maximal cliques in a thresholded graph of nearest neighbours.

Source: Jin et al., arXiv:2605.00460, and the paper's repository (github.com/WeifeiJin/CleanBase).
Three of the repository's choices are left out on purpose: it keeps cliques of at most 11, drops
cliques of average similarity 1, and takes the first hit for the entry itself, which is wrong among
duplicates. A group of 50, or of exact clones, is an attack too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups.graph import Lists, Overlay
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.usual import Judgement

# The repository's settings.
K = 10
ALPHA = 2.5
UNREACHABLE = (
    "no similarity can exceed mean + {:g} * std of the edges; the 99 % quantile of their "
    "similarities is used instead"
)
# Most neighbours among which cliques are enumerated; larger groups are reported as such.
CLIQUE_CAP = 60
# An edge above this quantile of all edge similarities is unusual in any graph: used if mean +
# alpha * std is above 1, which no similarity can exceed.
FALLBACK_QUANTILE = 0.99
# Similarities of identical float32 vectors differ from 1 by about 1e-7.
SAME = 1e-6


def undirected(
    numbers: NDArray[np.int64], lists: Lists
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the distinct edges of the neighbour lists of n entries, and their similarities.

    Edges have shape (n_edges, 2), the smaller number first.
    """
    row, column = np.nonzero(lists.slots >= 0)
    pairs = np.sort(np.stack([numbers[row], lists.slots[row, column]], axis=1), axis=1)
    edges, first = np.unique(pairs, axis=0, return_index=True)
    return edges, lists.similarities[row, column][first]


def edge_threshold(similarities: NDArray[np.float32], alpha: float = ALPHA) -> tuple[float, bool]:
    """Return the similarity above which an edge stays, and whether it is the paper's threshold.

    mean + alpha * std of all edges, each pair once; if no similarity could exceed that, the
    :data:`FALLBACK_QUANTILE` of the similarities instead.
    """
    values = similarities.astype(np.float64)
    threshold = float(values.mean() + alpha * values.std())
    if threshold < 1.0 - SAME:
        return threshold, True
    # Below the maximum, so that exact clones stay connected.
    fallback = min(float(np.quantile(values, FALLBACK_QUANTILE)), float(values.max()) - SAME)
    return fallback, False


def clique_members(n: int, edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of n entries are in a maximal clique of three or more; each pair is one edge.

    This is equivalent to being in a triangle, so no clique is enumerated: the cost is bounded by
    n_edges ** 1.5 even if thousands of clones are all connected.

    Examples
    --------
    >>> clique_members(5, np.array([[0, 1], [1, 2], [0, 2], [2, 3]])).tolist()
    [True, True, True, False, False]
    """
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    members = np.zeros(n, dtype=np.bool_)
    if len(edges) == 0:
        return members
    # Edges lead to the entry with more edges: then none has more than sqrt(2 n_edges) out.
    degree = np.bincount(edges.ravel(), minlength=n)
    rank = np.lexsort((np.arange(n), degree)).argsort()
    swap = rank[edges[:, 0]] > rank[edges[:, 1]]
    low, high = np.where(swap, edges[:, 1], edges[:, 0]), np.where(swap, edges[:, 0], edges[:, 1])
    out = csr_array((np.ones(len(edges), dtype=np.int32), (low, high)), shape=(n, n))
    # Triangle i -> j -> k and i -> k: i and k are the ends of closing edges, j their middle.
    closing = (out @ out).multiply(out).tocoo()
    members[closing.row] = members[closing.col] = True
    middle = (out.T @ out).multiply(out).tocoo()
    members[middle.row] = True
    return members


def judge(known: Known, overlay: Overlay) -> Judgement:
    """Score the entries of an overlay by the reference rule."""
    numbers, lists = overlay.numbers, overlay.lists
    beyond = np.setdiff1d(lists.slots[lists.slots >= 0], numbers)
    # Include the lists of neighbours that the overlay does not change.
    kept = [
        pairs[similarities > known.edge_threshold[0]]
        for pairs, similarities in (
            undirected(numbers, lists),
            undirected(beyond, known.graph.lists.take(beyond)),
        )
    ]
    edges = np.unique(np.concatenate(kept), axis=0)
    names, compact = np.unique(edges, return_inverse=True)
    members = clique_members(len(names), compact.reshape(edges.shape))
    scores = np.isin(numbers, names[members]).astype(np.float64)
    nothing = known.evidence(overlay, channels=())
    return Judgement(scores, np.zeros(len(scores), dtype=np.int64), nothing, {}, edges)


def explained(
    known: Known,
    edges: NDArray[np.int64],
    own: int,
    names: Callable[[Sequence[int]], tuple[str, ...]],
) -> Evidence:
    """Return the largest clique of an entry, by the reference rule."""
    import networkx as nx  # noqa: PLC0415 - slow to import, used only for this sentence

    around = np.unique(edges[(edges == own).any(axis=1)])
    around = around[around != own]
    threshold, reachable = known.edge_threshold
    if len(around) > CLIQUE_CAP:
        size = f"three or more (it has {len(around)} neighbours, too many to enumerate)"
        group = around.tolist()
    else:
        near = np.isin(edges[:, 0], around)
        near[near] = np.isin(edges[near, 1], around)
        graph = nx.Graph(edges[near].tolist())
        cliques: list[list[int]] = [sorted(clique) for clique in nx.find_cliques(graph)]
        group = max(cliques, key=len)
        size = str(len(group) + 1)
    sentence = (
        f"it is one of {size} entries that are all very similar to each other (each two more than "
        f"{threshold:.3f}: the mean of the knowledge base, and {known.rule.alpha:g} deviations)"
    )
    if not reachable:
        sentence += f"; {UNREACHABLE.format(known.rule.alpha)}"
    return Evidence(sentence=sentence, related_ids=names(group))
