"""Files of a folder that are as in a git revision."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable

# Git starts nothing that a repository's own settings name: no other program, no transport.
ALONE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}


def unchanged_since(revision: str, folder: Path) -> set[str]:
    """Return the names of files whose bytes are those of the revision, relative to the folder.

    Git only lists hashes, which are compared here: comparing by git can run filters that the
    repository names.
    """
    name = printable(revision, 100)
    words = ["git", "ls-tree", "-r", "-z", "--end-of-options", f"{revision}^{{commit}}"]
    try:
        done = subprocess.run(  # noqa: S603 - a revision is no option
            words, cwd=folder, env={**os.environ, **ALONE}, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"") or str(error).encode()
        msg = (
            f"git does not list revision {name!r} of {folder} "
            f"({printable(why.decode(errors='replace').strip(), 200)}); name a commit of a "
            "repository that holds this folder, or trust files by --trust."
        )
        raise SourceError(msg) from None
    found = set()
    for line in done.stdout.split(b"\0")[:-1]:
        about, _, raw = line.partition(b"\t")
        _, kind, blob = about.decode().split()
        path = folder / os.fsdecode(raw)
        if kind == "blob" and path.is_file() and not path.is_symlink() and blob in _hashes(path):
            found.add(os.fsdecode(raw))
    return found


def _hashes(path: Path) -> set[str]:
    """Return git's two hashes of a file; repositories use one of them."""
    data = path.read_bytes()
    whole = b"blob %d\0" % len(data) + data
    old = hashlib.sha1(whole, usedforsecurity=False)  # as git names objects
    return {old.hexdigest(), hashlib.sha256(whole).hexdigest()}
