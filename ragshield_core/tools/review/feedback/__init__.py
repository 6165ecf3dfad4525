"""Feedback: error rates of detectors by reviewers' decisions, and thresholds by them."""

from ragshield_core.tools.review.feedback.judged import Feedback, Judged, reviewed
from ragshield_core.tools.review.feedback.preview import MovedThreshold, Preview, apply, preview

__all__ = ["Feedback", "Judged", "MovedThreshold", "Preview", "apply", "preview", "reviewed"]
