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


@pytest.mark.slow
def test_the_overview_of_commands_imports_none_of_them():
    script = "import sys, contextlib\nfrom ragshield_core.cli import main\n"
    script += "with contextlib.suppress(SystemExit):\n    main()\nprint(*sys.modules)"
    command = [sys.executable, "-c", script, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "canary" in result.stdout
    assert "ragshield_core.tools" not in result.stdout.splitlines()[-1]
