"""``ragshield attest``: sign the result of a scan, and check signed statements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import AttestationError
from ragshield_core.model.findings import printable
from ragshield_core.tools.attest.signing import (
    bytes_of,
    key_id,
    make_keys,
    private_key,
    public_key,
    sealed,
)
from ragshield_core.tools.attest.statement import Statement, statement_of, verify
from ragshield_core.tools.options import AsListing, Listing

NOT_VERIFIED = 1
# Maximum number of shown differences, and of characters of a sentence.
MOST_SHOWN, SHOWN = 20, 2000

attest_app = typer.Typer(no_args_is_help=True, help="Sign what a scan found, for auditors.")
console = Console()


@attest_app.command()
def keys(
    private: Annotated[Path, typer.Argument(help="File for the key that signs.")] = Path(
        "ragshield.key"
    ),
    public: Annotated[
        Path | None, typer.Argument(help="File for the key that checks; default: with .pub.")
    ] = None,
) -> None:
    """Make a pair of Ed25519 keys; never overwrites a file."""
    public = public or private.with_name(f"{private.name}.pub")
    name = make_keys(private, public)
    _say(f"{private} signs: keep it to yourself. {public} checks: give it to auditors. Key {name}.")


@attest_app.command()
def sign(
    report: Annotated[Path, typer.Argument(help="What ragshield scan --output has written, JSON.")],
    *,
    key: Annotated[Path, typer.Option(help="The private key.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: REPORT.intoto.json.")
    ] = None,
) -> None:
    """Sign a statement of the scanned data, the time, the version and the result."""
    signing = private_key(key)
    statement = statement_of(bytes_of(report), str(report))
    path = output or report.with_suffix(".intoto.json")
    if path.resolve() in (report.resolve(), key.resolve()):
        msg = f"{path} is what the statement is made of; name another file with --output."
        raise AttestationError(msg)
    try:
        path.write_text(sealed(statement.to_bytes(), signing), encoding="utf-8")
    except OSError as error:
        why = error.strerror or type(error).__name__
        msg = f"{path} cannot be written ({why}); name another file with --output."
        raise AttestationError(msg) from None
    _show(statement)
    _say(f"{path} is signed by key {key_id(signing.public_key())}.")


@attest_app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(help="The signed statement.")],
    data: Annotated[
        Path | None, typer.Argument(help="What was scanned: is it still the same?")
    ] = None,
    *,
    key: Annotated[Path, typer.Option(help="The public key of the signer.")],
    form: AsListing = Listing.TABLE,
) -> None:
    """Check a statement. Exit code 1: not signed by this key, or the data is another."""
    checked = verify(file, public_key(key), data)
    if checked.statement is None:
        _say(f"NOT VERIFIED: {file} is not signed by {key}, or was changed.", "bold red")
        raise typer.Exit(NOT_VERIFIED)
    as_json = form is Listing.JSON
    if as_json:
        typer.echo(checked.statement.to_bytes().decode())
    else:
        _show(checked.statement)
        for difference in checked.differences[:MOST_SHOWN]:
            _say(f"NOT THE SAME: {difference}.", "bold red")
        if more := len(checked.differences[MOST_SHOWN:]):
            _say(f"and {more} more differences", "bold red")
    if not checked.holds:
        raise typer.Exit(NOT_VERIFIED)
    if not as_json:
        same = "." if data is None else f", and {data} is what was scanned."
        _say(f"Verified: the signature is that of {key}{same}", "bold green")


def _show(statement: Statement) -> None:
    about = statement.predicate
    _say(about.verdict)
    _say(f"Scanned at {about.scanned_at} by {' '.join(about.tool.values())}: {about.source}.")


def _say(sentence: str, style: str = "") -> None:
    console.print(Text(printable(sentence, limit=SHOWN), style=style), soft_wrap=True)
