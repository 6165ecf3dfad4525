"""Importing the core is quick and drags in none of the heavy packages."""

import json
import subprocess
import sys

HEAVY = [
    *("torch", "transformers", "sentence_transformers", "langchain_core", "langchain_community"),
    *("llama_index", "sqlalchemy", "faiss", "ragshield_langchain", "ragshield_llamaindex"),
    *("ray", "pyarrow"),
]
SCRIPT = """
import json, sys, time
start = time.process_time()  # not of the neighbours
import numpy, pydantic
middle = time.process_time()
import ragshield_core
alone = sorted(sys.modules)
ragshield_core.Guard
seconds = {"needed": middle - start, "own": time.process_time() - middle}
print(json.dumps({"seconds": seconds, "alone": alone, "modules": sorted(sys.modules)}))
"""


def import_afresh():
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_the_core_imports_in_proportion_to_what_it_needs_and_without_anything_heavy():
    runs = [import_afresh() for _ in range(2)]
    assert [one for one in runs[0]["alone"] if one.startswith("ragshield")] == ["ragshield_core"]
    modules = set(runs[0]["modules"])
    assert "ragshield_core.guard" in modules
    assert modules.isdisjoint(HEAVY)
    least = {what: min(run["seconds"][what] for run in runs) for what in ("needed", "own")}
    assert least["own"] < 6 * least["needed"]


def test_the_overview_of_commands_imports_none_of_them():
    script = "import sys, contextlib\nfrom ragshield_core.cli import main\n"
    script += "with contextlib.suppress(SystemExit):\n    main()\nprint(*sys.modules)"
    command = [sys.executable, "-c", script, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "canary" in result.stdout
    assert "ragshield_core.tools" not in result.stdout.splitlines()[-1]
