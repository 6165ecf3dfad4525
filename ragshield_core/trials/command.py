"""``ragshield evaluate``: how the guard does on a corpus of one's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from ragshield_core.attacks import ATTACKS, LABEL_FLIPS, Attack, read_attacks, read_targets
from ragshield_core.errors import SourceError
from ragshield_core.findings import printable
from ragshield_core.scan.command import (
    Bar,
    Column,
    cached_embedder,
    check_parent,
    console,
    no_crash_looks_like_a_finding,
)
from ragshield_core.scan.knowledge_base import load
from ragshield_core.scan.readers.kinds import open_source
from ragshield_core.scan.readers.source import Columns
from ragshield_core.trials.figures import REGIMES, Evaluation, Rate
from ragshield_core.trials.gate import check_comparable, worse_than
from ragshield_core.trials.page import html_page
from ragshield_core.trials.targets import carriers_of
from ragshield_core.trials.trial import N_TARGETS, STREAM, TOP_K, evaluate, halves, quiet

PASSED, WORSE = 0, 1
NAMES = (*(attack.name for attack in ATTACKS), LABEL_FLIPS)


def evaluate_command(  # noqa: PLR0913 - options of a command line
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of text, Markdown or HTML; JSONL(.gz), parquet or npz; or a folder of "
            "LangChain's FAISS or LlamaIndex. Believed to be clean."
        ),
    ],
    *,
    fpr: Annotated[
        float, typer.Option(help="Accepted share of clean entries held, in (0, 1).")
    ] = 0.01,
    attack: Annotated[
        list[str] | None,
        typer.Option(help=f"{'; '.join(NAMES)}; repeatable; default: all."),
    ] = None,
    attacks: Annotated[
        list[Path] | None,
        typer.Option(help="Attack texts of your own: JSONL with text, attack, target, question."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Targets of your own: JSONL with question, wrong_answer, answer."),
    ] = None,
    targets: Annotated[int, typer.Option(min=1, help="How many targets.")] = N_TARGETS,
    top_k: Annotated[int, typer.Option(min=1, help="Entries that a question retrieves.")] = TOP_K,
    stream: Annotated[int, typer.Option(min=1, help="Clean entries of a stream.")] = STREAM,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there, for programs.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots there.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="An earlier --json: fail if a figure has left its interval for the worse."
        ),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option(help="Fail if a recall, alone or in a stream, is below this share."),
    ] = None,
    fail_above: Annotated[
        float | None, typer.Option(help="Fail if a false-positive rate is above this share.")
    ] = None,
    embedder: Annotated[
        str, typer.Option(help="Model for entries without a vector, and attacks.")
    ] = ("minilm"),
    work_dir: Annotated[
        Path | None,
        typer.Option(help="Keeps vectors, so that it can go on. Default: NAME.ragshield here."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes for streams; 0: as many as there are cores.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    id_column: Column = None,
    text_column: Column = None,
    label_column: Column = None,
    lineage_column: Annotated[
        str | None,
        typer.Option(help='Names the document a chunk was cut from; "" for none.'),
    ] = None,
    embedding_column: Column = None,
) -> None:
    """Plant attacks into your corpus, and see what the default guard holds.

    Exit code 0: done; 1: worse than --baseline, --fail-below or --fail-above allow; 2: an error.
    """
    with no_crash_looks_like_a_finding():
        for path in (json_file, html_file):
            check_parent(path)
        if not 0.0 < fpr < 1.0:
            msg = f"--fpr is {fpr:g}, expected a share in (0, 1), such as 0.01."
            raise SourceError(msg)
        before = None if baseline is None else Evaluation.read(baseline)
        if before is not None:  # now: an hour later would be too late to find out
            check_comparable({"fpr": fpr, "top_k": top_k, "embedder": embedder}, before)
        own = [planted for path in attacks or () for planted in read_attacks(path)]
        recipes = _recipes(attack)
        folder = Path(f"{data.name}.ragshield") if work_dir is None else work_dir
        model = cached_embedder(embedder, folder)
        columns = Columns(
            id=id_column,
            text=text_column,
            label=label_column,
            lineage=lineage_column,
            embedding=embedding_column,
        )
        with Bar() as bar, quiet():
            source = open_source(data, columns)
            corpus = load(source, embedder=lambda: model, progress=bar.tell).batch
            if LABEL_FLIPS in (attack or ()) and len({*corpus.labels} - {None}) < 2:  # noqa: PLR2004
                msg = (
                    f"{data} has fewer than two labels, so that none can be flipped; name their "
                    "column with --label-column."
                )
                raise SourceError(msg)
            asked = None
            if queries is not None:
                # Copies of what comes would get clean entries accused.
                asked = read_targets(queries, carriers_of(halves(corpus, seed)[0], seed))
            found = evaluate(
                corpus,
                lambda texts: np.concatenate(list(model.chunks(texts))),
                attacks=recipes,
                label_flips=not attack or LABEL_FLIPS in attack,
                own=own,
                targets=asked,
                n_targets=targets,
                fpr=fpr,
                top_k=top_k,
                stream=stream,
                workers=workers or os.cpu_count() or 1,
                seed=seed,
                progress=bar.tell,
            )
        found = replace(found, settings={**found.settings, "embedder": embedder})
        worse = worse_than(found, before, recall=fail_below, fpr=fail_above)
        if json_file is not None:
            json_file.write_text(found.to_json(), encoding="utf-8")
        if html_file is not None:
            html_file.write_text(html_page(found, worse), encoding="utf-8")
        _show(found, worse)
    raise typer.Exit(WORSE if worse else PASSED)


def _recipes(names: list[str] | None) -> list[Attack]:
    unknown = [name for name in names or () if name not in NAMES]
    if unknown:
        msg = f"--attack {unknown[0]!r} is not known, expected one of: {'; '.join(NAMES)}."
        raise SourceError(msg)
    return [each for each in ATTACKS if not names or each.name in names]


def _show(found: Evaluation, worse: list[str]) -> None:
    table = Table(title="Poison that is held, by texts of a target and how they come")
    for column in ("attack", "texts", *REGIMES):
        table.add_column(column, justify="left" if column == "attack" else "right")
    rates = {(r.attack, r.regime): _brief(r.held) for r in found.recalls}
    for name, size in {r.attack: r.size for r in found.recalls}.items():
        cells = [rates.get((name, regime), "–") for regime in REGIMES]
        table.add_row(Text(printable(name)), str(size), *cells)
    table.add_section()
    false = [_brief(found.false_positives.get(regime, Rate(0, 0))) for regime in REGIMES]
    table.add_row(Text("clean entries", style="bold"), "1", *false)
    console.print(table)
    reached = Table(title="Questions that poison reaches")
    for column in ("attack", "without a guard", "with it"):
        reached.add_column(column, justify="left" if column == "attack" else "right")
    for each in found.reached:
        reached.add_row(Text(printable(each.attack)), _brief(each.before), _brief(each.after))
    console.print(reached)
    console.print(
        Text(
            f"Of {found.lost.n} questions about clean entries, {found.lost.hits} miss one that was "
            f"wrongly held. Screening takes {found.milliseconds:.2f} ms an entry, fitting "
            f"{found.fit_seconds:.1f} s. Batches flatter: all of an attack comes at once there."
        )
    )
    for name, why in found.idle.items():
        console.print(Text(printable(f"judged nothing here: {name}: {why}"), style="yellow"))
    for line in worse:
        console.print(Text(printable(f"worse: {line}"), style="red"))


def _brief(rate: Rate) -> str:
    """Return a share with its interval, short enough for three in a line of a terminal."""
    return f"{rate.share:.2f} [{rate.low:.2f}, {rate.high:.2f}]" if rate.n else "–"
