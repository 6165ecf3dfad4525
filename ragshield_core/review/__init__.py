"""The page on which people judge held entries: served by itself, or mounted in an application."""

from ragshield_core.review.access import Reviewer, Role
from ragshield_core.review.app import review_app

__all__ = ["Reviewer", "Role", "review_app"]
