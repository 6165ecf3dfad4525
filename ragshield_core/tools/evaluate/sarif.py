"""What an evaluation found wrong as SARIF 2.1.0: poison that was missed, clean entries held."""

from __future__ import annotations

import hashlib
from typing import Any

from ragshield_core.model.findings import printable
from ragshield_core.tools.audit.sarif import MESSAGE, document, entry_location
from ragshield_core.tools.evaluate.figures import Evaluation, Missed, WronglyHeld

MISSED, WRONGLY_HELD = "missed-poison", "clean-entry-held"
RULES = (
    (MISSED, "A planted text that the guard let in and did not take back."),
    (WRONGLY_HELD, "A clean entry that the guard held."),
)


def to_sarif(found: Evaluation, source: str) -> str:
    """Return missed poison as errors and wrongly held clean entries as warnings: ids, no texts.

    A result of an attack that is missed is a fact about the guard, not about the file: planted ids
    are not in it.

    Parameters
    ----------
    found
        Of :func:`~ragshield_core.tools.evaluate.evaluate`.
    source
        The corpus, as a path with forward slashes; results lie in it.

    Notes
    -----
    A result's fingerprint is made of attack and text, or of a clean entry's id, so that what is
    missed again in the next evaluation is the same result.
    """
    return document(
        rules=[
            {
                "id": rule,
                "shortDescription": {"text": said},
                "properties": {"tags": ["security"]},
            }
            for rule, said in RULES
        ],
        results=[
            *(_missed(each, source) for each in found.missed),
            *(_wrongly_held(each, source) for each in found.wrongly_held),
        ],
        notes=[("note", f"judged nothing here: {name}: {why}") for name, why in found.idle.items()],
        successful=True,
        properties={"entries": found.n_known + found.n_clean, "fpr": found.settings.get("fpr")},
    )


def _missed(each: Missed, source: str) -> dict[str, Any]:
    attack, name = printable(each.attack, MESSAGE), printable(each.entry_id, MESSAGE)
    how = "alone" if each.regime == "alone" else f"in a {each.regime}"
    return {
        "ruleId": MISSED,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": f"{attack}: {name}, planted {how}, was let in and stayed"},
        "locations": [entry_location(each.entry_id, source)],
        "partialFingerprints": {"attackAndText/v1": each.mark},
        "properties": {"attack": attack, "regime": each.regime},
    }


def _wrongly_held(each: WronglyHeld, source: str) -> dict[str, Any]:
    exact = each.entry_id.encode("utf-8", "surrogatepass")
    mark = hashlib.blake2b(exact, digest_size=16).hexdigest()
    who = ", ".join(each.detectors) or "no detector that acts"
    return {
        "ruleId": WRONGLY_HELD,
        "ruleIndex": 1,
        "level": "warning",
        "message": {"text": f"clean entry {printable(each.entry_id, MESSAGE)} is held, by {who}"},
        "locations": [entry_location(each.entry_id, source)],
        "partialFingerprints": {"cleanEntry/v1": mark},
        "properties": {"detectors": list(each.detectors)},
    }
