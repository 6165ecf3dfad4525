"""Cost of `ragshield evaluate` beyond embedding the corpus, which it has to do anyway.

    python benchmarks/evaluate_cost.py            # writes benchmarks/results/evaluate_cost.md
    python benchmarks/evaluate_cost.py --quick    # the help desk; writes nothing

5,000 Wikipedia passages as a folder of Markdown files. Embedding alone is timed first, then the
whole command in a new process without caches.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from corpora import load

from ragshield_core.tools.audit import open_source
from ragshield_core.tools.audit.embedding_cache import by_length
from ragshield_core.tools.evaluate import Evaluation
from ragshield_core.tools.evaluate.help_desk import help_desk
from ragshield_langchain.minilm import MiniLMEmbeddings

RESULTS = Path(__file__).parent / "results"
N_FILES = 5_000
COMMAND = "from ragshield_core.cli import main; main()"


def main() -> None:
    """Run, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    if quick:
        texts, fpr = [row["text"] for row in help_desk()], "0.1"
    else:
        passages = load("wiki_passages").texts
        drawn = np.random.default_rng(0).permutation(len(passages))[:N_FILES]
        texts, fpr = [passages[row] for row in np.sort(drawn).tolist()], "0.01"
    with tempfile.TemporaryDirectory(prefix="ragshield") as folder:
        corpus, report = Path(folder) / "docs", Path(folder) / "report.json"
        corpus.mkdir()
        for number, text in enumerate(texts):
            (corpus / f"p{number}.md").write_text(text, encoding="utf-8")
        chunks = [text for rows in open_source(corpus).chunks() for text in rows.texts]
        model = MiniLMEmbeddings()
        model.embed_documents(chunks[:64])  # warm-up: loads the model
        begin = time.perf_counter()
        model.embed_documents(chunks)
        embedding = time.perf_counter() - begin
        begin = time.perf_counter()
        model.embed_documents([chunks[row] for row in by_length(chunks).tolist()])
        like_length = time.perf_counter() - begin
        command = [sys.executable, "-W", "ignore", "-c", COMMAND, "evaluate", str(corpus)]
        command += ["--fpr", fpr, "--output", str(report), "--work-dir", f"{folder}/vectors"]
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
        whole = time.perf_counter() - begin
        found = Evaluation.read(report)
    n_attacks = len({recall.attack for recall in found.recalls})
    setting = (
        f"{len(texts):,} files of Markdown, {len(chunks):,} chunks; {n_attacks} attacks, "
        f"{found.settings['n_targets']} targets, streams of {found.settings['stream']:,} clean "
        "entries."
    )
    text = f"""# What an evaluation costs

Written by `benchmarks/evaluate_cost.py`. {setting}
The command begins with nothing: it loads the model, embeds corpus and attacks, texts of like length
together, fits, and screens.
Python {platform.python_version()}, the cores that there are.

| | seconds | of embedding alone |
|---|---|---|
| embedding the corpus, in its order | {embedding:.0f} | 1.00 |
| the same, texts of like length together | {like_length:.0f} | {like_length / embedding:.2f} |
| `ragshield evaluate` | {whole:.0f} | {whole / embedding:.2f} |
"""
    print(text)
    if not quick:
        (RESULTS / "evaluate_cost.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
