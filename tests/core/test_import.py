"""Importing the core is quick and drags in none of the heavy packages."""

import json
import subprocess
import sys

HEAVY = [
    *("torch", "transformers", "sentence_transformers", "langchain_core", "langchain_community"),
    *("llama_index", "sqlalchemy", "faiss", "ragshield_langchain", "ragshield_llamaindex"),
]
SCRIPT = """
import json, sys, time
start = time.process_time()  # not of the neighbours
import ragshield_core
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def import_afresh():
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_the_core_imports_in_under_half_a_second_and_without_anything_heavy():
    runs = [import_afresh() for _ in range(5)]
    modules = set(runs[0]["modules"])
    assert "ragshield_core.guard" in modules
    assert modules.isdisjoint(HEAVY)
    assert min(run["seconds"] for run in runs) < 0.5
