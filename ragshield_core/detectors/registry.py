"""Registry of detector classes by name: the built-in ones and installed plug-ins.

The modules and packages of this folder export the built-in ones: a new detector is a new file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, learns
from ragshield_core.detectors.base.retrieved import RetrievalDetector
from ragshield_core.model.errors import StateError
from ragshield_core.model.findings import Skipped, printable
from ragshield_core.state import part_of

AnyDetector = Detector | RetrievalDetector
D = TypeVar("D", Detector, AnyDetector)

# A package that brings a detector names its class in this group of entry points.
ENTRY_POINT_GROUP = "ragshield.detectors"
SHOWN = 120  # characters of a name
BUILT_IN: dict[str, type[Detector]] = {}
# Found by kind for saved guards, but not part of the default guard.
ON_REQUEST: dict[str, type[Detector]] = {}
# Detectors of a retrieved set and its query.
FOR_RETRIEVAL: dict[str, type[RetrievalDetector]] = {}


def _register() -> None:
    """Register the detectors that the modules of this folder define."""
    found: list[type[AnyDetector]] = []
    for module in iter_modules(import_module(__package__).__path__):
        if (name := f"{__package__}.{module.name}") != __name__:
            for one in vars(import_module(name)).values():
                mine = isinstance(one, type) and one.__module__.startswith(name)
                if mine and issubclass(one, AnyDetector) and "name" in vars(one):
                    found.append(one)
    for one in sorted(found, key=lambda one: one.name):
        if issubclass(one, RetrievalDetector):
            FOR_RETRIEVAL[one.name] = one
        else:
            (ON_REQUEST if one.traits.on_request else BUILT_IN)[one.name] = one


_register()


class Takes(NamedTuple):
    """Detectors that a kind of guard accepts."""

    owner: str
    """The name of the guard's class, for errors."""
    bases: tuple[type[AnyDetector], ...]
    """Base classes of the detectors."""


OF_GUARD = Takes("Guard", (Detector,))
OF_RETRIEVAL_GUARD = Takes("RetrievalGuard", (RetrievalDetector, Detector))


def detector_class(kind: str, takes: Takes = OF_GUARD) -> Any:
    """Return the detector class of that kind.

    Raises
    ------
    StateError
        If no built-in detector and no installed plug-in is of that kind.
    """
    ours = {**FOR_RETRIEVAL, **BUILT_IN, **ON_REQUEST}
    known = {name: one for name, one in ours.items() if issubclass(one, takes.bases)}
    if kind in known:
        return known[kind]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        found = point.load()
        if isinstance(found, type) and issubclass(found, takes.bases):
            return found
    msg = (
        f"no detector of kind {kind!r} is known, expected one of {sorted(known)} or the name of "
        f"an entry point in the group {ENTRY_POINT_GROUP!r}; install the package that brings it."
    )
    raise StateError(msg)


def kind_of(detector: AnyDetector | type[AnyDetector]) -> str:
    """Return the name under which the class of a detector is registered."""
    return (detector if isinstance(detector, type) else type(detector)).name


def check_loadable(
    detectors: Sequence[D], given: Sequence[D | type[D]] = (), takes: Takes = OF_GUARD
) -> None:
    """Refuse to save detectors that could not be built again.

    Raises
    ------
    StateError
        If a detector's class is not registered under its kind, or the detector has an unsaved
        part, and it is not among the detectors ``given`` for loading.
    """
    check_detectors(given, takes, classes=True)
    for detector in detectors:
        cls, kind = type(detector), kind_of(detector)
        if any(
            one is detector or (isinstance(one, cls) and _fits(one, saved_form(detector)))
            for one in given
        ):
            continue
        if detector.traits.unsaved is not None:
            msg = (
                f"the {detector.traits.unsaved} of detector {detector.name!r} cannot be saved; "
                "give that detector to save and to load: guard.save(folder, detectors=[detector]), "
                f"{takes.owner}.load(folder, detectors=[detector])."
            )
            raise StateError(msg)
        try:
            known = cls in given or detector_class(kind, takes) is cls
        except StateError:
            known = False
        if not known:
            msg = (
                f"detector {detector.name!r} could not be loaded again: {cls.__name__} is not "
                f"registered under the kind {kind!r}. Name it in the entry points of the group "
                f"{ENTRY_POINT_GROUP!r}, or give the class to save and to load: "
                f"guard.save(folder, detectors=[{cls.__name__}]), "
                f"{takes.owner}.load(folder, detectors=[{cls.__name__}])."
            )
            raise StateError(msg)


def saved_form(detector: AnyDetector) -> dict[str, Any]:
    """Return the saved form of a detector, without its learned state."""
    form: dict[str, Any] = {"kind": kind_of(detector), "config": detector.config()}
    if detector.traits.unsaved is not None:
        form["unsaved"] = detector.traits.unsaved
        if detector.traits.unsaved_name is not None:
            form["unsaved_name"] = detector.traits.unsaved_name
    return form


def saved_detectors(
    detectors: Sequence[AnyDetector],
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Return the saved forms of detectors with their learned values, and the arrays."""
    forms: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for number, detector in enumerate(detectors):
        learned, columns = detector.state() if isinstance(detector, Detector) else ({}, {})
        forms.append(saved_form(detector) | {"learned": learned})
        arrays |= {f"detector.{number}.{key}": array for key, array in columns.items()}
    return forms, arrays


def learned_of(number: int, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of one detector of a saved guard, by its number."""
    return part_of(arrays, f"detector.{number}.")


def detectors_from(
    saved: Sequence[Mapping[str, Any]],
    given: Sequence[D | type[D]] = (),
    takes: Takes = OF_GUARD,
) -> list[D]:
    """Build the detectors of a saved guard, without their learned state.

    Parameters
    ----------
    saved
        Forms as :func:`saved_form` returns them.
    given
        Classes for kinds that are not registered, and instances, which are used as they are.

    Raises
    ------
    StateError
        If a kind is not known, if the given detector for an unsaved part is missing or another
        one, or if a given instance matches no saved form.
    """
    left: list[Any] = [one for one in given if not isinstance(one, type)]
    classes: dict[str, Any] = {kind_of(one): one for one in given if isinstance(one, type)}
    detectors: list[D] = []
    for form in saved:
        kind, config = form["kind"], form["config"]
        same = next((one for one in left if _plain(saved_form(one)) == (kind, config)), None)
        if same is None and "unsaved" in form:
            msg = (
                f"the {form['unsaved']} of a detector of kind {kind!r} was not saved with the "
                "guard; pass a detector with it and with the same options: "
                f"{takes.owner}.load(folder, detectors=[...])."
            )
            raise StateError(msg)
        if same is None:
            cls = classes[kind] if kind in classes else detector_class(kind, takes)
            detectors.append(cls(**config))
            continue
        if not _fits(same, form):
            msg = (
                f"the guard was saved with {_held(form)} in its detector of kind {kind!r}, and the "
                f"one given has {_held(saved_form(same))}; thresholds that were calibrated with "
                "one hold for no other. Give the detector with the same, as in "
                f"{takes.owner}.load(folder, detectors=[...]), or build and calibrate a guard anew."
            )
            raise StateError(msg)
        left.remove(same)
        if isinstance(same, Detector):
            same.reset()
        detectors.append(same)
    if left:
        msg = (
            f"detectors has one of kind {kind_of(left[0])!r}, and the saved guard has none with "
            "the same options; build it as it was when the guard was saved."
        )
        raise StateError(msg)
    return detectors


def copied_for(
    saved: Sequence[Mapping[str, Any]], detectors: Sequence[Detector]
) -> list[Detector | type[Detector]]:
    """Return classes and instances from which the detectors of another saved guard are built.

    The given detectors stay in use and must not learn the other guard's entries. Only those with
    an unsaved part that learn nothing are used themselves.
    """
    wanted = {form["kind"] for form in saved if "unsaved" in form}
    made: list[Detector | type[Detector]] = []
    for one in detectors:
        if kind_of(one) in wanted and not learns(one):
            made.append(one)
        elif type(one) not in made:
            made.append(type(one))
    return made


def check_detectors(
    detectors: Sequence[object], takes: Takes = OF_GUARD, *, classes: bool = False
) -> None:
    """Refuse all but detectors and (with ``classes``) detector classes; errors say what to pass."""
    if isinstance(detectors, (*takes.bases, type, str, Mapping)):
        msg = f"detectors is a {type(detectors).__name__}, expected a list of detectors."
        raise TypeError(msg)
    for row, one in enumerate(detectors):
        is_class = isinstance(one, type) and issubclass(one, takes.bases)
        if isinstance(one, takes.bases) or (is_class and classes):
            continue
        if is_class:
            given = f"the class {one.__name__}, expected an instance: {one.__name__}()"  # type: ignore[attr-defined]
        else:
            given = f"a {type(one).__name__}, expected a detector such as LabelCentroidDetector()"
        msg = f"detectors[{row}] is {given}."
        raise TypeError(msg)


def _plain(form: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind and the options of a form, as a file returns them."""
    return form["kind"], json.loads(json.dumps(form["config"]))


def _fits(detector: AnyDetector, form: Mapping[str, Any]) -> bool:
    """Return whether a detector matches a form and has the part that was not saved."""
    mine = saved_form(detector)
    if _plain(mine) != _plain(form) or mine.get("unsaved") != form.get("unsaved"):
        return False
    return form.get("unsaved_name") in (None, mine.get("unsaved_name"))


def _held(form: Mapping[str, Any]) -> str:
    """Return a description of the unsaved part of a form."""
    if "unsaved" not in form:
        return "none"
    named = form.get("unsaved_name")
    name = "without a name" if named is None else repr(printable(named, SHOWN))
    return f"the {form['unsaved']} {name}"


def built_in_detectors() -> tuple[list[Detector], list[Skipped]]:
    """Return each built-in detector with its defaults, and the reason for each that is missing."""
    detectors: list[Detector] = []
    missing = []
    for kind, cls in BUILT_IN.items():
        try:
            detectors.append(cls())
        except ImportError as error:  # the message names the extra to install
            missing.append(Skipped(detector=kind, reason=str(error)))
    return detectors, missing
