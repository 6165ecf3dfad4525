"""Hook that compares the entries of a knowledge base with each other, for an audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragshield_core.hooks import hookimpl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ragshield_core.model.entries import Batch
    from ragshield_core.tools.alerts import Checked


@hookimpl
def contradictions(
    batch: Batch,
    clean_rows: NDArray[np.intp] | None,
    neighbors: NDArray[Any] | None,
    model: Any,
) -> Checked:
    """Return alerts about entries of a knowledge base that contradict others of it.

    Parameters
    ----------
    batch, clean_rows, neighbors
        As of :meth:`ContradictionChecker.check_all`.
    model
        A :class:`ContradictionModel`; ``None`` for the default.
    """
    from ragshield_core.model.errors import CalibrationError  # noqa: PLC0415 - only when asked
    from ragshield_core.tools.contradictions import Checked, ContradictionChecker  # noqa: PLC0415

    try:
        return ContradictionChecker(batch, model).check_all(batch, clean_rows, neighbors)
    except CalibrationError as error:  # it costs no finding of the audit
        return Checked(n_entries=len(batch), unchecked=dict.fromkeys(batch.ids, str(error)))
