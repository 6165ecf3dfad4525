"""Importing the core loads few packages, none of them heavy, and no tool."""

import json
import subprocess
import sys

import pytest

HEAVY = [
    *("torch", "transformers", "sentence_transformers", "langchain_core", "langchain_community"),
    *("llama_index", "sqlalchemy", "faiss", "ragshield_langchain", "ragshield_llamaindex"),
    *("ray", "pyarrow"),
]
# Third-party packages that the guard may load, with their dependencies.
LIGHT = ["annotated_types", "numpy", "pluggy", "pydantic", "pydantic_core", "re2"]
LIGHT += ["typing_extensions", "typing_inspection"]
SCRIPT = """
import json, sys
import ragshield_core
alone = sorted(sys.modules)
ragshield_core.Guard
guard = sorted(sys.modules)
import ragshield_core.cli, ragshield_core.tools.audit
print(json.dumps({"alone": alone, "modules": guard, "audit": sorted(sys.modules)}))
"""


def import_afresh():
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def packages(modules):
    """Return the top-level packages of modules that come from neither Python nor its start."""
    started = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    found = subprocess.run(started, capture_output=True, text=True, check=True).stdout.split()
    top = {name.partition(".")[0] for name in {*modules} - {*found}}
    return {name for name in top - sys.stdlib_module_names if not name.startswith("_")}


@pytest.mark.slow
def test_core_imports_nothing_heavy():
    run = import_afresh()
    alone = [one for one in run["alone"] if one.startswith("ragshield")]
    assert sorted(alone) == ["ragshield_core", "ragshield_core.lazy"]
    assert "ragshield_core.guard" in run["modules"]
    assert set(run["modules"]).isdisjoint(HEAVY)
    assert packages(run["modules"]) <= {"ragshield_core", *LIGHT}
    assert not [one for one in run["modules"] if one.startswith("ragshield_core.tools")]
    assert "ray" not in run["audit"]  # only where it is asked for


@pytest.mark.slow
def test_a_guard_asks_tools_without_importing_the_audit_or_the_evaluation():
    script = "import sys\nfrom ragshield_core import hooks\nhooks.tools()\nprint(*sys.modules)"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ragshield_core.tools.audit.hooks" in result.stdout.split()
    tools = ("audit.audit", "evaluate.trial", "review.app")
    assert not {f"ragshield_core.tools.{name}" for name in tools}.intersection(
        result.stdout.split()
    )


# Packages that typer loads for a help of its own.
OF_HELP = ["annotated_doc", "annotated_types", "pydantic", "pydantic_core", "rich", "shellingham"]
OF_HELP += ["typer", "typing_extensions", "typing_inspection"]
HELPS = """
import contextlib, io, json, sys, typer
from ragshield_core.cli import app

def walk(group, path):
    yield path
    for name in group.list_commands(None) if hasattr(group, "list_commands") else ():
        yield from walk(group.get_command(None, name), (*path, name))

seen, found = set(), []
for path in walk(typer.main.get_command(app), ()):
    with contextlib.redirect_stdout(io.StringIO()):
        app([*path, "--help"], standalone_mode=False)
    found.append([" ".join(path), sorted({*sys.modules} - seen)])
    seen.update(sys.modules)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", 'by = "anna"\ndatabase = "held.db"\n'])
def test_no_help_of_a_command_imports_its_work(tmp_path, settings):
    (tmp_path / "ragshield.toml").write_text(settings)
    command = [sys.executable, "-c", HELPS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    names = [name for name, _ in found]
    assert names[0] == ""
    assert {"scan", "guard ingest", "quarantine confirm", "canary check", "demo"} <= {*names}
    ours = {"ragshield_core", "ragshield_langchain"}
    for name, modules in found:
        assert packages(modules) <= {*ours, *OF_HELP}, f"{name} --help imports its work"
    overview = [one for one in found[0][1] if one.startswith("ragshield_core.tools")]
    assert overview == []
