"""Settings of a guard and of the command line: from a file, the environment, or both.

The file is ``ragshield.toml`` in the working directory, or the one in ``RAGSHIELD_CONFIG``.
Variables that begin with ``RAGSHIELD_`` override the file; arguments in code and options of the
command line override both. Unknown keys are refused, since a mistyped key would leave the default
in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy.exc import ArgumentError

from ragshield_core.database import DEFAULT_URL, database_url
from ragshield_core.database.connecting import shown
from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.errors import ConfigurationError
from ragshield_core.model.findings import printable
from ragshield_core.model.policy import Policy
from ragshield_core.origin import Origins, Voucher
from ragshield_core.settings.file import (
    BELOW,
    OTHERS,
    PREFIX,
    SECRETS,
    file_of,
    named,
    parsed,
)


class Vouching(BaseModel):
    """Trust in one key of origin, as it stands in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tier: Literal["known", "trusted"] = "known"
    public_keys: tuple[Path, ...] = ()
    secret_variables: tuple[str, ...] = ()
    revoked: bool = False

    def voucher(self, name: str) -> Voucher:
        """Return the trust, with the secrets of the environment; refuse a variable without one."""
        secrets = []
        for variable in self.secret_variables:
            secret = os.environ.get(variable)
            if not secret:
                msg = (
                    f"origin {named(name)} takes its secret from {named(variable)}, which is not "
                    "set; set it, or name another variable."
                )
                raise ConfigurationError(msg)
            secrets.append(secret.encode())
        return Voucher(
            tier=self.tier,
            secrets=tuple(secrets),
            public_keys=self.public_keys,
            revoked=self.revoked,
        )


class Settings(BaseSettings):
    """Settings of a guard and of the command line.

    Parameters
    ----------
    database
        SQLAlchemy URL of knowledge, quarantine and log, or the path of an SQLite file; the default
        is ``sqlite:///ragshield.db``, in the working directory.
    namespace
        Name of the tenant.
    store
        Name of the store whose held entries commands show; ``None``, the default, for all.
    detectors
        Names of the built-in detectors of a new guard, with commas between them in a variable;
        ``None``, the default, for all.
    policy
        Of a new guard, see :class:`~ragshield_core.Policy`.
    calibration_of
        Namespace whose calibration a new guard copies; ``None``, the default, for none.
    lease
        Seconds without a sign of life after which a process counts as crashed; ``None``, the
        default, for the lease of :meth:`Guard.open <ragshield_core.Guard.open>`.
    by
        Default name of the person who decides, for the log.
    webhook
        Address for notices of held groups, long queues and failing detectors, signed with the
        secret in ``RAGSHIELD_WEBHOOK_SECRET``; ``None``, the default, for none. See
        :class:`~ragshield_core.tools.review.notifications.Webhook`.
    webhook_format
        ``"slack"`` or ``"teams"`` if the address is an incoming webhook of that chat, which takes
        messages for people and no signature; ``"signed"`` by default.
    review_url
        Address of ``ragshield review``, for links in messages of a chat; ``None``, the default, for
        no link.
    group, longest_queue
        Number of waiting entries of a group, or of the queue, that causes a notice; see
        :class:`~ragshield_core.tools.review.notifications.Notifier`.
    origins
        Keys that may vouch for entries, by name, each with its ``tier``, ``public_keys`` (files),
        ``secret_variables`` (names of variables that hold HMAC secrets) and ``revoked``; see
        :mod:`ragshield_core.origin`.
    least_tier
        New entries whose origin has a lower tier are held; ``"unknown"``, the default, holds none.
    into
        The guarded store into which ``ragshield quarantine release`` writes entries, as
        ``module:object``; ``None``, the default, for none.

    Examples
    --------
    >>> Settings(policy={"quarantine_at": 0.001}).policy.quarantine_at
    0.001
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=BELOW, extra="forbid", frozen=True
    )

    database: str = DEFAULT_URL
    namespace: str = "default"
    store: str | None = None
    detectors: Annotated[tuple[str, ...] | None, NoDecode] = None
    policy: Policy = Policy()
    calibration_of: str | None = None
    lease: Annotated[float, Field(gt=0.0)] | None = None
    by: str = "cli"
    into: str | None = None
    origins: dict[str, Vouching] = {}
    least_tier: Literal["unknown", "known", "trusted"] = "unknown"
    webhook: str | None = None
    webhook_format: Literal["signed", "slack", "teams"] = "signed"
    review_url: str | None = None
    group: Annotated[int, Field(ge=1)] | None = 5
    longest_queue: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def read(cls, path: str | Path | None = None) -> Self:
        """Return the settings of a file and of the environment.

        Parameters
        ----------
        path
            Of the file; ``None``, the default, for the one in ``RAGSHIELD_CONFIG``, or else
            ``ragshield.toml`` in the working directory, if it exists.

        Raises
        ------
        ConfigurationError
            If a named file is missing or no TOML, a key is unknown, or a value is invalid; the
            message has the key, its place, and the nearest known key.
        """
        file = file_of(path)
        _check_variables()
        of_file: Mapping[str, Any] = {} if file is None else parsed(file)

        class OfFile(cls):  # type: ignore[valid-type, misc]
            model_config = SettingsConfigDict(toml_file=file)

        try:
            found = OfFile()
        except SettingsError as error:  # such as invalid JSON
            msg = f"the environment cannot be read: {error}."
            raise ConfigurationError(msg) from None
        except ValidationError as error:
            raise ConfigurationError(_said(error, file, of_file)) from None
        return found

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no such files
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, strongest first: code, environment, file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def known_origins(self) -> Origins:
        """Return the keys that may vouch for entries, read from their files and variables."""
        vouchers = {name: one.voucher(name) for name, one in self.origins.items()}
        return Origins(vouchers, least_tier=self.least_tier)

    @field_validator("database")
    @classmethod
    def _is_url(cls, given: str) -> str:
        url = database_url(given)
        try:
            shown(url)
        except ArgumentError:  # its message would quote the URL with its password
            msg = "is no SQLAlchemy URL, such as sqlite:///ragshield.db"
            raise ValueError(msg) from None
        return url

    @field_validator("detectors", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        return tuple(name.strip() for name in given.split(",") if name.strip())

    @field_validator("detectors")
    @classmethod
    def _are_built_in(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in BUILT_IN:
                msg = f"{named(name)} is no built-in detector; {_nearest(name, BUILT_IN)}"
                raise ValueError(msg)
        if names is not None and len(set(names)) < max(1, len(names)):
            msg = "expected at least one detector, and none twice"
            raise ValueError(msg)
        return names


def listed(settings: Settings, path: str | Path | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of every setting that :meth:`Settings.read` returned.

    Values are for display, without secrets.
    """
    file = file_of(path)
    of_file = {} if file is None else dict(_flat(parsed(file)))
    for name, value in _flat(settings.model_dump(mode="json")):
        variable, origin = _variable(name), "default"
        if any(key.upper() == variable for key in os.environ):
            origin = variable
        elif name in of_file:
            origin = str(file)
        yield name, _value(name, value), origin
    for variable in SECRETS:
        name, there = variable.removeprefix(PREFIX).lower(), bool(os.environ.get(variable))
        yield name, "(set, hidden)" if there else "(not set)", variable if there else "default"


def _known() -> dict[str, list[str]]:
    """Return the names of all settings, each with the names below it."""
    known: dict[str, list[str]] = {}
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            known[name] = list(kind.model_fields)
        else:
            known[name] = []
    return known


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting by its full name, such as ``policy.quarantine_at``."""
    below = _known()
    for name, value in values.items():
        if below.get(name) and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _variable(name: str) -> str:
    return PREFIX + name.replace(".", BELOW).upper()


def _check_variables() -> None:
    """Refuse unknown variables that look like settings."""
    known = {*SECRETS, *OTHERS}
    for name, below in _known().items():
        known |= {_variable(name), *(_variable(f"{name}.{inner}") for inner in below)}
    for variable in os.environ:
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            msg = (
                f"the environment variable {named(variable)} is no setting; "
                f"{_nearest(variable.upper(), known)}"
            )
            raise ConfigurationError(msg)


def _said(error: ValidationError, file: Path | None, of_file: Mapping[str, Any]) -> str:
    """Return a message about all errors, without the given values, which may be secrets."""
    known = _known()
    problems = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        path = [str(part) for part in one["loc"]]
        name = ".".join(path[:2] if known.get(path[0]) else path[:1])
        written = any(f"{key}.".startswith(f"{name}.") for key, _ in _flat(of_file))
        in_file = written and _variable(name) not in os.environ
        where = f"{file}: " if in_file else f"{_variable(name)}: "
        if one["type"] == "extra_forbidden":
            secret = _variable(path[0]) in SECRETS
            problem = (
                f"{named(path[0])} belongs in no file; set {_variable(path[0])} instead"
                if secret
                else f"{named(name)} is no setting; "
                + _nearest(path[-1], known.get(path[0], known))
            )
        else:
            problem = f"{named(name)}: {one['msg'].removeprefix('Value error, ')}"
        problems.append(where + problem)
    return "; ".join(problems)


def _nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}."


def _value(name: str, value: Any) -> str:
    if name == "database":
        return shown(value).strip("'")
    if name == "webhook" and value is not None:  # addresses of webhooks hold secrets
        return f"(an address of {printable(urlsplit(value).hostname or 'no host', 100)})"
    if value is None:
        return ""
    return printable(", ".join(value) if isinstance(value, list) else str(value), 200)
