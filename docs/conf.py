"""How the documentation is built: from the root, `sphinx-build -W -c docs . site`.

The sources are the Markdown files where they stand, so that a link works in the repository and on
the site alike.
"""

import shutil
from importlib.metadata import version as version_of
from pathlib import Path

# Pages of what is no longer public would stay.
shutil.rmtree(Path(__file__).parent / "reference" / "generated", ignore_errors=True)

project = "RAGShield"
author = "The RAGShield authors"
release = version_of("ragshield")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "benchmarks/results/*.md",
    "benchmarks/wordings/README.md",
    "CHANGELOG.md",
]
exclude_patterns = ["docs/_templates", "docs/submit"]  # submit: for the sites of others
templates_path = [str(Path(__file__).parent / "_templates")]

html_theme = "furo"
html_title = "RAGShield"
html_static_path: list[str] = []
html_extra_path = ["_extra"]  # sends who opens the site's root to the index

myst_heading_anchors = 3
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
numpydoc_show_class_members = False  # autodoc shows them
