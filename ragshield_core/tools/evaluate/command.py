"""``ragshield evaluate``: evaluate the default guard on your own corpus."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragshield_core.model.errors import SourceError
from ragshield_core.model.printing import printable
from ragshield_core.tools.audit.command import (
    ReadingOptions,
    cached_embedder,
    check_fpr,
    console,
    no_crash_looks_like_a_finding,
    progress_bar,
)
from ragshield_core.tools.defaults import ATTACK_NAMES, N_TARGETS, SIZES, STREAM, STREAMS, TOP_K
from ragshield_core.tools.options import Reports, takes

if TYPE_CHECKING:
    from ragshield_core.tools.evaluate.attacks import Attack

PASSED, WORSE = 0, 1


@takes(ReadingOptions, Reports)
def evaluate_command(  # noqa: PLR0913 - options of a command line
    options: ReadingOptions,
    reports: Reports,
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of text, Markdown or HTML; JSONL(.gz) or parquet; or a folder of "
            "LangChain's FAISS or LlamaIndex. Believed to be clean."
        ),
    ],
    *,
    fpr: Annotated[
        float, typer.Option(help="Accepted share of clean entries held, in (0, 1).")
    ] = 0.01,
    attack: Annotated[
        list[str] | None,
        typer.Option(help=f"{'; '.join(ATTACK_NAMES)}; repeatable; default: all."),
    ] = None,
    attacks: Annotated[
        list[Path] | None,
        typer.Option(help="Attack texts of your own: JSONL with text, attack, target, question."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Targets of your own: JSONL with question, wrong_answer, answer."),
    ] = None,
    difficulty: Annotated[
        list[str] | None,
        typer.Option(
            help="published, as the papers have it; reworded, what gives a recipe away said in "
            "other words; blended, besides within clean texts; repeatable; default: published."
        ),
    ] = None,
    targets: Annotated[int, typer.Option(min=1, help="How many targets.")] = N_TARGETS,
    sizes: Annotated[
        str, typer.Option(help="Texts of a target that come together, of recipes with several.")
    ] = ",".join(map(str, SIZES)),
    top_k: Annotated[int, typer.Option(min=1, help="Entries that a question retrieves.")] = TOP_K,
    stream: Annotated[
        int,
        typer.Option(min=1, help="Clean entries of a stream; one in a hundred is poison."),
    ] = STREAM,
    streams: Annotated[
        int, typer.Option(min=1, help="Streams of an attack: more targets, more time.")
    ] = STREAMS,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Earlier JSON report: fail if a figure has left its interval for the worse."
        ),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            help="recall=.8, recall.poisonedrag=.9: fail if an attack's recall, in a stream or of "
            "one text alone, is below that share; fpr=.02, reached=.1, reached.corruptrag=.2, "
            "lost=.1: if a share is above; repeatable, the longest name counts."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes for streams; 0: as many as there are cores.")
    ] = 0,
) -> None:
    """Plant attacks into your corpus, and see what the default guard holds.

    Exit code 0: done; 1: worse than --baseline or --bound allow; 2: an error.
    """
    from ragshield_core.logs import quiet
    from ragshield_core.tools.audit.knowledge_base import load
    from ragshield_core.tools.case_report import markdown
    from ragshield_core.tools.evaluate.attacks import LABEL_FLIPS, read_attacks, read_targets
    from ragshield_core.tools.evaluate.figures import Evaluation
    from ragshield_core.tools.evaluate.gate import (
        check_bounds,
        check_comparable,
        read_bounds,
        worse_than,
    )
    from ragshield_core.tools.evaluate.page import (
        case_report,
        html_page,
        show,
        to_sarif,
        verdict,
    )
    from ragshield_core.tools.evaluate.targets import carriers_of
    from ragshield_core.tools.evaluate.trial import check_enough, evaluate, halves

    with no_crash_looks_like_a_finding():
        reports.check()
        check_fpr(fpr)
        bounds = read_bounds(bound or ())
        before = None if baseline is None else Evaluation.read(baseline)
        if before is not None:  # fails now, not an hour later
            check_comparable({"fpr": fpr, "top_k": top_k, "embedder": options.embedder}, before)
        own = [planted for path in attacks or () for planted in read_attacks(path)]
        recipes = _recipes(attack, difficulty)
        names = [*(each.name for each in recipes), *(each.attack for each in own), LABEL_FLIPS]
        check_bounds(bounds, names, names)
        model = cached_embedder(options.embedder, options.folder(data))
        with progress_bar(quiet=reports.quiet) as tell, quiet():
            corpus = load(
                options.source(data),
                embedder=lambda: model,
                check=lambda n: check_enough(n // 2, fpr),
                progress=tell,
            ).batch
            if LABEL_FLIPS in (attack or ()) and len({*corpus.labels} - {None}) < 2:  # noqa: PLR2004
                msg = (
                    f"{data} has fewer than two labels, so that none can be flipped; name their "
                    "column with --label-column."
                )
                raise SourceError(msg)
            asked = None
            if queries is not None:
                # With copies of new entries, detectors would object to clean ones.
                known, _ = halves(corpus, options.seed)
                asked = read_targets(queries, carriers_of(known, options.seed))
            found = evaluate(
                corpus,
                model.embed,
                attacks=recipes,
                label_flips=not attack or LABEL_FLIPS in attack,
                own=own,
                targets=asked,
                n_targets=targets,
                sizes=_sizes(sizes),
                fpr=fpr,
                top_k=top_k,
                stream=stream,
                streams=streams,
                workers=workers or os.cpu_count() or 1,
                seed=options.seed,
                progress=tell,
            )
        found = replace(found, settings={**found.settings, "embedder": options.embedder})
        worse = worse_than(found, before, bounds)
        reports.give(
            {
                "json": found.to_json,
                "sarif": partial(to_sarif, found, data.as_posix()),
                "html": partial(html_page, found, worse, data.as_posix()),
                "markdown": lambda: markdown(case_report(found, worse, data.as_posix())),
            },
            verdict(found, worse),
            partial(show, found, worse),
            console,
        )
    raise typer.Exit(WORSE if worse else PASSED)


def _recipes(names: list[str] | None, difficulties: list[str] | None) -> list[Attack]:
    from ragshield_core.tools.evaluate.attacks import ATTACKS, DIFFICULTIES

    unknown = [name for name in names or () if name not in ATTACK_NAMES]
    if unknown:
        msg = f"--attack {unknown[0]!r} is not known, expected one of: {'; '.join(ATTACK_NAMES)}."
        raise SourceError(msg)
    for difficulty in difficulties or ():
        if difficulty not in DIFFICULTIES:
            expected = "; ".join(DIFFICULTIES)
            msg = f"--difficulty {difficulty!r} is not known, expected one of: {expected}."
            raise SourceError(msg)
    steps = [each for each in DIFFICULTIES if each in (difficulties or DIFFICULTIES[:1])]
    chosen = [each for each in ATTACKS if not names or each.name in names]
    # Recipes without a harder step appear once.
    return list({at.name: at for each in chosen for at in map(each.at, steps)}.values())


def _sizes(text: str) -> list[int]:
    found = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in found):
        msg = f"--sizes is {printable(text)!r}, expected numbers from 1 on, such as 1,2,3,5."
        raise SourceError(msg)
    return sorted({int(part) for part in found})
