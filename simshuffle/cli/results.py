"""Verbs on results: compare, report, figure."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    To,
    check_format,
    output_file,
    print_answer,
    print_json,
    print_parts,
    say,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import any_of, result_folders, scenario_names
from simshuffle.studies.presentation import KINDS
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

app = typer.Typer()


complete_sides = any_of(result_folders, scenario_names)


@command(
    app,
    "Results",
    "simshuffle compare results/before results/after",
    "simshuffle compare quickstart abci-imagenet1k --to markdown",
)
def compare(
    a: Annotated[
        str, Argument("A", "A result folder, or a scenario.", complete=complete_sides)
    ],
    b: Annotated[str, Argument("B", "Another one.", complete=complete_sides)],
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say what differs between two results or two scenarios.

    First in what was asked, then in what came out. Simulates nothing."""
    from simshuffle.studies.comparison import compare as compared
    from simshuffle.studies.comparison import read_side

    comparison = compared(read_side(a), read_side(b))
    print_answer(comparison.as_json, comparison.parts, json=json, table_format=to)


@command(
    app,
    "Results",
    "simshuffle report results/quickstart --out quickstart.html",
    "simshuffle report results/before results/after --out both.html",
)
def report(
    folders: Annotated[
        list[Path], Argument("RESULT", "Result folders, one or more.", many=True)
    ],
    out: Annotated[
        Path | None,
        Option(
            OUT_FILE, "The page. Default: NAME-report.html in the working directory."
        ),
    ] = None,
    force: Annotated[
        bool, Option("", "Replace a file that is not the page of the same results.")
    ] = False,
) -> None:
    """Write results as one HTML page.

    A browser shows it without a network."""
    from simshuffle.studies.presentation.page import default_name, write_page

    place = output_file(out, default_name(folders))
    typer.echo(f"Page: {write_page(folders, place, force)}")


# ---------------------------------------------------------------------------------------- figures


def figure(
    kind: Annotated[
        str | None, Argument("KIND", "What to draw.", complete=words(*KINDS))
    ] = None,
    results: Annotated[
        list[Path] | None, Argument("RESULT", "Result folders.", many=True)
    ] = None,
    *,
    style: Annotated[
        str, Option("STYLE", "ieee, acm or slides.", choices=("ieee", "acm", "slides"))
    ] = "ieee",
    columns: Annotated[
        str,
        Option("1|2", "Columns of a paper that the figure spans.", choices=("1", "2")),
    ] = "1",
    format_: Annotated[
        str | None,
        Option(
            "FORMAT",
            "pdf (the default), svg, png, or pgf for LaTeX.",
            choices=("pdf", "svg", "png", "pgf"),
        ),
    ] = None,
    out: Annotated[Path | None, Option(OUT_FILE, "Default: KIND.FORMAT, here.")] = None,
    latex: Annotated[bool, Option("", "The same as --to latex.")] = False,
    to: To = None,
    json: AsJson = False,
    force: Annotated[
        bool, Option("", "Replace a file that is no figure of simshuffle.")
    ] = False,
) -> None:
    """Draw a figure, or list the kinds there are."""
    if kind is None:
        typer.echo(list_kinds())
        return
    if latex and to not in {None, "latex"}:
        refuse(
            "--latex",
            "cannot be combined with --to",
            str(to),
            "Leave one out.",
            COMMAND_LINE,
        )
    to = "latex" if latex else to
    check_format({"json": json, "to": to})
    from simshuffle.studies.presentation.draw import (
        FigureRequest,
        describe_figure,
        draw_figure,
        find_target,
        plain_rows_of_figure,
    )

    out = output_file(out, f"{kind}.{format_ or 'pdf'}")
    figure_request = FigureRequest(
        kind, results or [], style, int(columns), format_, out, force
    )
    target_file = (
        find_target(figure_request) if out is not None or not (json or to) else None
    )
    figure_results = figure_request.read()
    states = [
        (result.name, result.result.meta.get("state")) for result in figure_results
    ]
    if unfinished_names := [name for name, state in states if state == "unfinished"]:
        say(
            f"Unfinished: {', '.join(unfinished_names)}. The figure shows what is there."
        )
    caption = (
        draw_figure(figure_request, figure_results, target_file) if target_file else ""
    )
    if json:
        print_json(plain_rows_of_figure(figure_request, figure_results))
    elif to:
        print_parts(describe_figure(figure_request, figure_results), to)
    else:
        typer.echo(f"Figure: {target_file}")
        typer.echo(f"Caption: {caption}")
        return
    if target_file is not None:
        say(f"Figure: {target_file}")


def list_kinds() -> str:
    """Return the kinds of figures as text: name and sentence of each, and a hint."""
    width = max(map(len, KINDS))
    lines = ["Kinds of figures:"]
    for name, sentence in KINDS.items():
        first_line, *other_lines = textwrap.wrap(sentence, 76 - width)
        lines.append(f"  {name:<{width}}  {first_line}")
        lines += [" " * (width + 4) + line for line in other_lines]
    return "\n".join([*lines, "", "simshuffle figure --help says how to draw one."])


command(
    app,
    "Results",
    "simshuffle figure",
    "simshuffle figure breakdown results/quickstart --style ieee",
    "simshuffle figure scaling results/a results/b --columns 2 --latex",
    "simshuffle figure storage --style slides --format png",
    text="\n\n".join(
        [
            "Draw a figure for a paper or for slides.",
            "From the tables of result folders alone.",
            "To draw a result's own figures again: simshuffle results plot. Kinds:",
            *(f"{name}: {sentence}" for name, sentence in KINDS.items()),
        ]
    ),
)(figure)
