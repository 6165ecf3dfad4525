"""``ragshield attest``: sign the result of a scan, and check signed statements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import AttestationError
from ragshield_core.model.printing import printable
from ragshield_core.tools.options import AsListing, Listing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from ragshield_core.tools.attest.keyless import Identity
    from ragshield_core.tools.attest.statement import Statement

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
    from ragshield_core.signing import make_keys

    public = public or private.with_name(f"{private.name}.pub")
    name = make_keys(private, public)
    _say(f"{private} signs: keep it to yourself. {public} checks: give it to auditors. Key {name}.")


@attest_app.command()
def sign(
    report: Annotated[Path, typer.Argument(help="What ragshield scan --output has written, JSON.")],
    *,
    key: Annotated[Path | None, typer.Option(help="The private key.")] = None,
    sigstore: Annotated[
        bool, typer.Option("--sigstore", help="Sign as who you are, by Sigstore, without a key.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: REPORT.intoto.json or .sigstore.json."),
    ] = None,
) -> None:
    """Sign a statement of the scanned data, the time, the version and the result."""
    from ragshield_core.signing import bytes_of, key_id, private_key, sealed
    from ragshield_core.tools.attest.keyless import sealed_by_identity
    from ragshield_core.tools.attest.statement import statement_of

    if (key is None) is not sigstore:
        msg = "expected one signer: --key FILE, or --sigstore."
        raise AttestationError(msg)
    signing = None if key is None else private_key(key)
    statement = statement_of(bytes_of(report), str(report))
    path = output or report.with_suffix(".sigstore.json" if signing is None else ".intoto.json")
    if path.resolve() in {made_of.resolve() for made_of in (report, key) if made_of}:
        msg = f"{path} is what the statement is made of; name another file with --output."
        raise AttestationError(msg)
    payload = statement.to_bytes()
    signed = sealed_by_identity(payload) if signing is None else sealed(payload, signing)
    try:
        path.write_text(signed, encoding="utf-8")
    except OSError as error:
        why = error.strerror or type(error).__name__
        msg = f"{path} cannot be written ({why}); name another file with --output."
        raise AttestationError(msg) from None
    _show(statement)
    signer = "you" if signing is None else f"key {key_id(signing.public_key())}"
    _say(f"{path} is signed by {signer}.")


@attest_app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(help="The signed statement.")],
    data: Annotated[
        Path | None, typer.Argument(help="What was scanned: is it still the same?")
    ] = None,
    *,
    key: Annotated[Path | None, typer.Option(help="The public key of the signer.")] = None,
    identity: Annotated[
        str | None, typer.Option(help="With Sigstore: the e-mail address or workflow that signed.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="With Sigstore: URL of where the signer signed in.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="With Sigstore: fetch nothing.")
    ] = False,
    form: AsListing = Listing.TABLE,
) -> None:
    """Check a statement. Exit code 1: not signed by this signer, or the data is another."""
    from ragshield_core.tools.attest.statement import verify

    name, signer = _expected(key, identity, issuer, offline=offline)
    checked = verify(file, signer, data)
    if checked.statement is None:
        _say(f"NOT VERIFIED: {file} is not signed by {name}, or was changed.", "bold red")
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
        _say(f"Verified: the signature is that of {name}{same}", "bold green")


def _expected(
    key: Path | None, identity: str | None, issuer: str | None, *, offline: bool
) -> tuple[str, Ed25519PublicKey | Identity]:
    """Return the signer that the options name, and how to call it."""
    from ragshield_core.signing import public_key
    from ragshield_core.tools.attest.keyless import Identity

    if key is not None and identity is None and issuer is None:
        return str(key), public_key(key)
    if key is None and identity and issuer:
        someone = Identity(name=identity, issuer=issuer, offline=offline)
        return str(someone), someone
    msg = "expected one signer: --key FILE, or --identity with --issuer."
    raise AttestationError(msg)


def _show(statement: Statement) -> None:
    about = statement.predicate
    _say(about.verdict)
    _say(f"Scanned at {about.scanned_at} by {' '.join(about.tool.values())}: {about.source}.")


def _say(sentence: str, style: str = "") -> None:
    console.print(Text(printable(sentence, limit=SHOWN), style=style), soft_wrap=True)
