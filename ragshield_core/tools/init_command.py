"""``ragshield init``: the command that writes a file of all settings."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.settings.file import FILE, SECRETS
from ragshield_core.tools.docstrings import parameters

if TYPE_CHECKING:
    from pydantic import BaseModel

HEAD = f"""Settings of RAGShield, each with its default. Take the "# " from those that you change.
RAGSHIELD_NAME is stronger than this file, RAGSHIELD_POLICY__NAME than its policy.
A setting without a default stays unset while its line is commented out.
Secrets stand in variables only: {", ".join(SECRETS)}."""
# Example values of settings without a default.
EXAMPLES: dict[str, Any] = {
    "store": "handbook",
    "detectors": ["clique", "instruction"],
    "calibration_of": "default",
    "lease": 60.0,
    "into": "shop.stores:guarded",
    "webhook": "https://hooks.example/ragshield",
    "review_url": "https://review.example",
    "longest_queue": 500,
    "flag_at": 0.02,
    "recall_at": 0.003,
}


def init_command(
    path: Annotated[Path, typer.Argument(help="Of the file; none is overwritten.")] = Path(FILE),
) -> None:
    """Write a file of all settings with their defaults, commented out."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(settings_file())
    except OSError as error:
        why = "is there already" if isinstance(error, FileExistsError) else str(error.strerror)
        msg = f"{path} was not written: it {why}; name another file."
        raise ConfigurationError(msg) from None
    typer.echo(f"{path}: all settings with their defaults; ragshield config show has those in use")


def settings_file() -> str:
    """Return the text of the file of settings."""
    from ragshield_core.settings.reading import Settings

    lines = [_comment(HEAD), "", *_settings(Settings)]
    for name, field in Settings.model_fields.items():
        kind: Any = field.annotation
        if _is_table(kind):
            lines += [f"[{name}]", "", *_settings(kind)]
    return "\n".join(lines)


def _settings(model: type[BaseModel]) -> Iterator[str]:
    said = parameters(model)
    for name, field in model.model_fields.items():
        if _is_table(field.annotation):
            continue
        value, example = field.default, ""
        if value is None:
            value, example = EXAMPLES[name], "  # for example; there is none by default"
        yield _comment(_brief(said[name]))
        yield f"# {name} = {json.dumps(value)}{example}"
        yield ""


def _brief(text: str) -> str:
    """Return the first sentence, without its reference to a class."""
    first = re.split(r"(?<!e\.g)\. (?=[A-Z`\"])", text)[0].rstrip(".")
    return re.sub(r"; see [\w.]+$", "", first) + "."


def _comment(text: str) -> str:
    wrapped = (textwrap.wrap(line, 96) for line in text.splitlines())
    return "\n".join(f"# {line}" for lines in wrapped for line in lines)


def _is_table(kind: Any) -> bool:
    from pydantic import BaseModel

    return isinstance(kind, type) and issubclass(kind, BaseModel)
