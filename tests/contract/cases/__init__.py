"""For each built-in detector a file of its kind: configurations, and entries to try them on."""

from importlib import import_module
from pkgutil import iter_modules

from ragshield_core.testing import DetectorCase


def all_cases() -> dict[str, DetectorCase]:
    """Return every case, by the kind of its detector and its own name."""
    found = {}
    for module in iter_modules(__path__):
        if module.name != "entries":
            cases = import_module(f"{__name__}.{module.name}").CASES
            found |= {f"{module.name}{name and '.'}{name}": case for name, case in cases.items()}
    return found
