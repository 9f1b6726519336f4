"""Verbs on one result folder, below ``results``: plot, show, verify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    ResultFolder,
    To,
    print_answer,
    say,
    study_progress,
)
from simshuffle.cli.common import show as show_result
from simshuffle.cli.help import command
from simshuffle.spec.library import is_folder
from simshuffle.study.options import Option, between_commas

if TYPE_CHECKING:
    from simshuffle.study.study import Result

app = typer.Typer()
LabelsOption = Annotated[
    str | None,
    Option(
        "BOOKING",
        "Book waiting for other ranks under its cause (cause, the default), or where the authors'"
        " timers book it (paper).",
        choices=("cause", "paper"),
    ),
]


def with_labels(result: Result, labels: str | None) -> Result:
    """Return the result with waiting booked by ``labels``; unchanged if it is None.

    ``labels`` are 'cause' or 'paper'. Stored tables stay as they are.
    """
    return (
        result
        if labels is None
        else replace(result, meta={**result.meta, "labels": labels})
    )


@command(
    app,
    "Results",
    "simshuffle results plot results/quickstart",
    "simshuffle results plot results/quickstart --out figures/mine --labels paper",
)
def plot(
    folder: ResultFolder,
    out: Annotated[
        Path | None,
        Option(
            OUT_FILE,
            "A folder, or the path of one figure without suffix. Default: those of the result.",
        ),
    ] = None,
    labels: LabelsOption = None,
) -> None:
    """Draw the figures of a result folder again, from its tables.

    For a paper or slides, also of several results: simshuffle figure."""
    from simshuffle.study.registry import read_folder

    result = with_labels(read_folder(folder), labels)
    if result.meta.get("state") == "unfinished":
        say(
            f"{folder} is unfinished: the figures show what is there. Run its command again"
            " to continue."
        )
    if out is None:
        paths = result.draw(folder)
    elif result.study.one_figure and not is_folder(out):
        paths = result.draw(out.parent, out.name)
    else:
        paths = result.draw(out)
    for path in paths:
        typer.echo(f"Figure: {path}")


@command(
    app,
    "Results",
    "simshuffle results show results/quickstart",
    "simshuffle results show results/quickstart --to latex --labels cause",
    "simshuffle results show results/a --to latex --runs 'local*'",
)
def show(
    folder: ResultFolder,
    *,
    labels: LabelsOption = None,
    runs: Annotated[
        str | None,
        Option("RUN,...", "Rows of these runs; 'local*' is a pattern. Default: all."),
    ] = None,
    columns: Annotated[
        str | None,
        Option("HEADING,...", "Columns in this order; 'wait*' is a pattern."),
    ] = None,
    caption: Annotated[str | None, Option("TEXT", "Title of the first table.")] = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Print the tables of a result folder again. Simulates nothing.

    LaTeX and Markdown have the warm epochs, with three significant digits."""
    from simshuffle.report.excerpt import Excerpt
    from simshuffle.study.registry import read_folder

    excerpt = Excerpt(split_words(runs), split_words(columns), caption)
    result = with_labels(read_folder(folder), labels)
    show_result(result, folder, json=json, table_format=to, excerpt=excerpt)


def split_words(text: str | None) -> list[str]:
    """Return the words between the commas of a text, each once; [] for None."""
    return between_commas([text or ""])


@command(
    app,
    "Results",
    "simshuffle results verify results/quickstart",
    "simshuffle results verify results/quickstart --tolerance 1e-6 --processes 4",
)
def verify(
    folder: ResultFolder,
    tolerance: Annotated[
        float | None,
        Option(
            "SHARE",
            "By how much numbers may differ, as a share. The default is 0, or 1e-9 where another"
            " version made the result.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        Option("N", "Processes at once; the default is one on each core.", low=1),
    ] = None,
    json: AsJson = False,
) -> None:
    """Do again what is in a result folder, and say what differs.

    To the last bit, or within a tolerance if another version made it."""
    from simshuffle.report.folders import meta_of
    from simshuffle.studies.verify import verify as verified
    from simshuffle.study.executors import LocalExecutor

    on_gpu = str(meta_of(folder).get("device", "cpu")).startswith("cuda")
    num_processes = processes or (1 if on_gpu else None)
    with study_progress("run") as progress:
        verification = verified(
            folder, LocalExecutor(num_processes), progress, tolerance
        )
    print_answer(verification.as_json, verification.parts, json=json)
    if not verification.is_identical:
        raise typer.Exit(1)
