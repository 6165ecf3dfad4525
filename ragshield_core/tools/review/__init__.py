"""The page on which people judge held entries: served by itself, or mounted in an application.

It needs the extra ``review``, which is imported at the first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragshield_core.tools.review.access import Reviewer, Role
    from ragshield_core.tools.review.app import review_app

__all__ = ["Reviewer", "Role", "review_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from ragshield_core.tools.review import app  # noqa: PLC0415

    return getattr(app, name)
