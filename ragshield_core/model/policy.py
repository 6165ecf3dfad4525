"""The policy, the only place that knows thresholds and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ragshield_core.model.findings import Decision, Finding, Unjudged, Verdict
from ragshield_core.model.p_values import TIE, JointCalibration

# Number of entries that share one time budget.
PART = 1000

Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


class Thresholds(NamedTuple):
    """Scores of one detector above which the policy acts."""

    flag: float
    quarantine: float
    recall: float = math.inf  # the same for entries that were admitted earlier

    def at_least(self, others: Thresholds) -> Thresholds:
        """Return the higher of each threshold and its counterpart."""
        return Thresholds(*map(max, self, others))


class Policy(BaseModel):
    """Expected share of *clean* entries we accept to flag and to quarantine, and the actions.

    Parameters
    ----------
    quarantine_at
        Accepted false-positive rate of quarantine, for all detectors of a guard together; see
        :class:`~ragshield_core.model.p_values.JointCalibration`.
    flag_at
        The same for flagging, at least ``quarantine_at``; ``None`` (the default) flags nothing,
        because a flag changes an entry's metadata.
    recall_at
        Accepted share of clean entries that are ever recalled after admission, over all the times
        that they are judged again as the knowledge base grows, at most ``quarantine_at``; see
        :meth:`~ragshield_core.model.p_values.JointCalibration.recall_thresholds`. ``None`` (the
        default) takes the part of ``quarantine_at`` that ``confidence`` leaves over, about a third,
        so that both together stay within it.
    confidence
        Probability of keeping the rate, over the draw of the clean sample: with about 0.5,
        thresholds keep it in expectation; higher values make them a little stricter. The default
        0.9 avoids a coin toss; a sample too small for this confidence but large enough in
        expectation is used as it is. Source: Vovk, "Conditional validity of inductive conformal
        predictors", Machine Learning 92, 2013.
    on_detect
        ``"quarantine"`` holds suspicious entries and writes the others; ``"raise"`` raises
        :class:`~ragshield_core.model.errors.PoisonedEntryError` before anything is written.
    fail_open
        Whether to admit entries on which a detector fails: it raises, or exceeds its time budget.
        By default they are held with a note that says so, since a failure is not a pass. ``True``
        admits them if the other detectors do; an event and the report name them
        (:attr:`Report.unscreened <ragshield_core.Report.unscreened>`), and they are screened again
        once the detector works. While the database is away, reads of an opened guard do not raise
        but leave out the entries last known to be held. Writes raise then: no entry is admitted
        without a record.
    time_budget
        Seconds that a detector may take for a batch of up to 1,000 entries, in proportion for a
        larger one. A detector that takes longer has failed on the batch, unless it judges each
        entry by itself: then it is asked about one entry after the other, and has failed only on
        those that take a quarter of that time. The slow call is abandoned, and later batches are
        judged. The default is hundreds of times the time of a built-in detector, so that it stops
        only a detector that hangs. ``None`` waits for ever.
    on_shift
        The action on suspicious entries of a source with an open question, see
        ``guard.sources.questions()``: far more of its entries are held than of clean ones, so that
        it is a new source or a mass attack. ``"hold"`` goes on holding them until a person decides.
        ``"flag"`` writes them with a flag, unless a detector objects that needs no comparison with
        the knowledge base, such as one of instructions; an attacker can open the question about his
        own source, so that ``"flag"`` lets his groups in. ``"raise"`` raises
        :class:`~ragshield_core.model.errors.PoisonedEntryError` before anything is written.
    metadata_values, metadata_characters
        Most metadata that an entry may have, counting all values in lists and mappings. An entry
        with more is held, with the keys that fit: one of 6,000 values stops a Chroma collection for
        good. The fields of a LlamaIndex node beside its metadata count as one value.
    unjudged
        Verdict for entries that no detector could judge, e.g. because they have no label. The
        default admits them, so that a guard without labels or with an empty knowledge base does
        not stop its chain; where every entry must carry a known label, use
        ``Verdict.QUARANTINE``.

    Examples
    --------
    >>> Policy(quarantine_at=0.001).quarantine_at
    0.001
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    quarantine_at: Probability = 0.01
    flag_at: Probability | None = None
    recall_at: Probability | None = None
    confidence: Probability = 0.9
    on_detect: Literal["quarantine", "raise"] = "quarantine"
    fail_open: bool = False
    time_budget: Annotated[float, Field(gt=0.0)] | None = 300.0
    on_shift: Literal["hold", "flag", "raise"] = "hold"
    metadata_values: Annotated[int, Field(ge=1)] = 2_000
    metadata_characters: Annotated[int, Field(ge=1)] = 4_000_000
    unjudged: Verdict = Verdict.ADMIT

    @model_validator(mode="after")
    def _flag_before_quarantine(self) -> Self:
        if self.flag_at is not None and self.flag_at < self.quarantine_at:
            msg = (
                f"flag_at is {self.flag_at:g}, expected at least quarantine_at "
                f"({self.quarantine_at:g}): whatever is quarantined is suspicious enough to flag. "
                "Raise flag_at, or leave it None to flag nothing."
            )
            raise ValueError(msg)
        if self.recall_at is not None and self.recall_at > self.quarantine_at:
            msg = (
                f"recall_at is {self.recall_at:g}, expected at most quarantine_at "
                f"({self.quarantine_at:g}): nothing is recalled that would be let in if it came "
                "now. Lower recall_at, or leave it None."
            )
            raise ValueError(msg)
        return self

    def accepting(self, fpr: float) -> Policy:
        """Return this policy with another accepted false-positive rate of quarantine."""
        values = self.model_dump() | {"quarantine_at": fpr}
        if self.flag_at is not None:
            values["flag_at"] = max(self.flag_at, fpr)
        if self.recall_at is not None:
            values["recall_at"] = min(self.recall_at, fpr)
        return Policy.model_validate(values)

    def thresholds(
        self, rules: Mapping[str, float], calibration: JointCalibration | None = None
    ) -> dict[str, Thresholds]:
        """Return, per detector, the scores above which entries are flagged and quarantined.

        ``rules`` are the default thresholds, in force for detectors without a calibration.

        Raises
        ------
        CalibrationError
            If the clean sample is too small for the accepted rate.
        """
        thresholds = {name: Thresholds(*(rule + TIE,) * 3) for name, rule in rules.items()}
        if calibration is None:
            return thresholds
        quarantine = calibration.thresholds(self.quarantine_at, self.confidence)
        flag = quarantine
        if self.flag_at is not None:
            flag = calibration.thresholds(self.flag_at, self.confidence)
        recall = calibration.recall_thresholds(self.quarantine_at, self.confidence, self.recall_at)
        return thresholds | {
            name: Thresholds(flag[name], threshold, max(threshold, recall.get(name, math.inf)))
            for name, threshold in quarantine.items()
        }

    def decide(
        self,
        entry_id: str,
        findings: Sequence[Finding],
        unjudged: Sequence[Unjudged] = (),
        *,
        judged: bool = True,
    ) -> Decision:
        """Return what becomes of one entry; pure.

        Each finding is above the threshold for flagging; ``judged`` says whether any detector had
        an opinion.
        """
        note = None
        failed = [item.detector for item in unjudged if item.failed]
        if any(finding.score > finding.threshold for finding in findings):
            verdict = Verdict.QUARANTINE
        elif failed and not self.fail_open:
            verdict, note = Verdict.QUARANTINE, f"not judged: {', '.join(failed)} failed on it"
        elif findings:
            verdict = Verdict.FLAG
        elif not judged and self.unjudged is not Verdict.ADMIT:
            verdict, note = self.unjudged, "no detector could judge it (Policy.unjudged)"
        else:
            verdict = Verdict.ADMIT
        return Decision(
            entry_id=entry_id,
            verdict=verdict,
            findings=tuple(findings),
            unjudged=tuple(unjudged),
            note=note,
        )

    def time_for(self, n_entries: int) -> float | None:
        """Return the seconds that a detector may take for a batch; ``None`` without a limit."""
        return None if self.time_budget is None else self.time_budget * max(1.0, n_entries / PART)
