"""A sequence-classification model of ``transformers`` as the classifier of a detector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

# Names that models give to the label of an injection, in lower case with spaces.
INJECTION = frozenset({"injection", "prompt injection", "jailbreak", "malicious"})
# Two labels without names: the second is the class that the model was trained to find.
UNNAMED = ("label 0", "label 1")
# Tokens of a window, even if a model takes more: attention costs their square.
MAX_WINDOW = 512
DIGEST_LENGTH = 12


class LoadedClassifier:
    """A model of ``transformers`` for one label; parameters as of :class:`SequenceClassifier`."""

    MEANT: ClassVar[frozenset[str]]  # names of the label that is meant

    def __init__(
        self,
        model: str | Path,
        *,
        label: str | int | None = None,
        device: str = "cpu",
        batch_size: int = 32,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> None:
        try:
            import torch  # noqa: PLC0415 - an extra
            from transformers import (  # noqa: PLC0415
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )
        except ImportError as error:
            msg = f"{error.name} is not installed; pip install 'ragshield[classifier]'."
            raise ImportError(msg) from error
        if batch_size < 1:
            msg = f"batch_size is {batch_size}, expected at least 1."
            raise ValueError(msg)
        found: dict[str, Any] = {
            "local_files_only": local_files_only,
            "trust_remote_code": False,
            **({} if revision is None else {"revision": revision}),
        }
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            str(model), use_safetensors=True, output_loading_info=True, **found
        )
        if missing := sorted(report["missing_keys"]):
            msg = (
                f"{str(model)!r} has no weights for {', '.join(missing[:3])}; expected a model "
                "that was trained for sequence classification."
            )
            raise ValueError(msg)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(model), **found)
        if not tokenizer.is_fast or tokenizer.pad_token is None:
            msg = f"the tokenizer of {str(model)!r} is not a fast one with a token for padding."
            raise ValueError(msg)
        self._torch: Any = torch
        self._model: Any = loaded.float().eval().to(device)
        self._tokenizer = tokenizer
        self._lock = Lock()  # a fast tokenizer serves one thread at a time
        config = self._model.config
        self._called = Path(model).name
        self._sigmoid = _is_sigmoid(config, self._called)
        self._column = _column_of(config.id2label, label, self._called, self.MEANT)
        self.label = str(config.id2label[self._column])
        self.device = device
        self.batch_size = batch_size
        taken = min(
            tokenizer.model_max_length,
            getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length,
        )
        # Tokens of a window, including special ones, and the tokens shared with the one before.
        self.window = min(MAX_WINDOW, taken)
        self.overlap = (self.window - tokenizer.num_special_tokens_to_add(pair=False)) // 4

    @cached_property
    def name(self) -> str:
        """The last part of the model's name, a digest of its weights, and the label.

        The weights count, not their place: in another folder of the same name, the name is equal.
        """
        weights = sorted(
            hashlib.sha256(one.detach().cpu().contiguous().numpy().data).digest()
            for one in self._model.parameters()
        )
        digest = hashlib.sha256(b"".join(weights)).hexdigest()[:DIGEST_LENGTH]
        return f"{self._called}@{digest}: {self.label}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._called!r}, {self.label!r} on {self.device}>"

    def _highest(self, columns: Sequence[list[str]], n: int, **how: Any) -> list[float]:
        """Return the highest probability among the windows of each of n inputs."""
        if not n:
            return []
        with self._lock:
            encoded = self._tokenizer(
                *columns,
                max_length=self.window,
                split_special_tokens=True,
                verbose=False,
                **how,
            )
        owners: Sequence[int] = encoded.get("overflow_to_sample_mapping", range(n))
        inputs = {key: encoded[key] for key in self._tokenizer.model_input_names if key in encoded}
        lengths = [len(ids) for ids in inputs["input_ids"]]
        highest = [0.0] * n
        # Windows of similar length form a batch, so that little is padded.
        order = sorted((at for at, n in enumerate(lengths) if n), key=lengths.__getitem__)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            part = {key: [column[row] for row in rows] for key, column in inputs.items()}
            for row, probability in zip(rows, self._probabilities(part), strict=True):
                highest[owners[row]] = max(highest[owners[row]], probability)
        return highest

    def _probabilities(self, part: Mapping[str, list[list[int]]]) -> list[float]:
        with self._lock:
            padded = self._tokenizer.pad(part, return_tensors="pt")
        with self._torch.inference_mode():
            logits = self._model(**padded.to(self.device)).logits
            every = logits.sigmoid() if self._sigmoid else logits.softmax(dim=-1)
            probabilities: list[float] = every[:, self._column].clamp(0, 1).tolist()
        return probabilities


class SequenceClassifier(LoadedClassifier):
    """A model that gives each text the probability of an injection; pass it as ``classifier=``.

    A text longer than the model's input is read in overlapping windows of tokens, and gets their
    highest probability: its end counts as much as its start. The tokenizer reads the model's
    special tokens in a text, such as ``[SEP]``, as plain letters.

    Parameters
    ----------
    model
        Name on the Hugging Face hub, such as ``"meta-llama/Llama-Prompt-Guard-2-86M"``, or a
        folder. Only weights in safetensors are read, and the model's own code is never run.
    label
        Name or number of the label that means an injection. Optional if exactly one label is
        called injection, jailbreak or malicious, or if the labels are ``LABEL_0`` and ``LABEL_1``.
    device
        Name of the device in PyTorch.
    batch_size
        Windows that the model reads at once.
    local_files_only
        Whether to read only files on disk.
    revision
        Commit of a model on the hub, so that nobody can exchange the weights.

    Raises
    ------
    ImportError
        If the extra ``classifier`` is not installed.
    OSError
        If the model is not found, or has no weights in safetensors.
    ValueError
        If the model does not classify, or the label that means an injection is unclear.

    Notes
    -----
    Computed in float32; the grouping of texts into batches changes a probability by no more than
    rounding. Probabilities come from a sigmoid if the model has one label or labels that do not
    exclude each other, otherwise from a softmax.

    A saved guard does not contain the model. It contains :attr:`name`, and cannot be loaded with
    other weights or another label.

    Examples
    --------
    ::

        classifier = SequenceClassifier("meta-llama/Llama-Prompt-Guard-2-86M")
        guard = Guard([InstructionDetector(classifier=classifier, classify="all")])
    """

    MEANT: ClassVar = INJECTION

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return the probability of an injection for each text, in [0, 1]."""
        return self._highest(
            [list(texts)],
            len(texts),
            truncation=True,
            stride=self.overlap,
            return_overflowing_tokens=True,
        )


def _is_sigmoid(config: Any, called: str) -> bool:
    """Return whether labels do not exclude each other."""
    if config.problem_type == "regression":
        msg = f"{called!r} is a model for regression, expected one that classifies."
        raise ValueError(msg)
    return bool(config.num_labels == 1 or config.problem_type == "multi_label_classification")


def _column_of(
    labels: Mapping[int, str], wanted: str | int | None, called: str, meant: frozenset[str]
) -> int:
    """Return the number of the label that is wanted, or has one of the names that are meant."""
    plain = {number: _plain(name) for number, name in labels.items()}
    if wanted is None:
        found = [number for number, name in plain.items() if name in meant]
        if (
            not found
            and meant is INJECTION
            and tuple(plain[number] for number in sorted(plain)) == UNNAMED
        ):
            found = [max(plain)]
        what = f"it cannot be told which label means {' or '.join(sorted(meant))}"
    else:
        exact = [n for n, name in labels.items() if str(wanted) in (name, str(n))]
        found = exact or [n for n, name in plain.items() if name == _plain(wanted)]
        what = f"label {wanted!r} is none of its labels"
    if len(found) != 1:
        has = ", ".join(f"{number}: {name!r}" for number, name in sorted(labels.items()))
        msg = f"{called!r} has the labels {{{has}}}, and {what}; name one, as in label=" + repr(
            labels[max(labels)]
        )
        raise ValueError(msg + ".")
    return found[0]


def _plain(name: object) -> str:
    return str(name).lower().replace("_", " ").replace("-", " ").strip()
