"""Verbs on results: compare, report, figure; below ``simshuffle results`` plot, show, verify."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    ResultFolder,
    To,
    check_format,
    file_in,
    is_folder,
    print_json,
    print_parts,
    say,
    study_progress,
    warnings_said,
)
from simshuffle.cli.common import show as show_result
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.presentation import KINDS
from simshuffle.scenario.options import any_of, result_folders, scenario_names
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

if TYPE_CHECKING:
    from simshuffle.study.study import Result

app = typer.Typer()
verbs = typer.Typer()
"""Those below ``results``."""

COMPARED = any_of(result_folders, scenario_names)
LabelsOption = Annotated[
    str | None,
    Option(
        "BOOKING",
        "Waiting for other ranks by what it is for (cause, the default), or booked where the"
        " authors' timers do (paper).",
        choices=("cause", "paper"),
    ),
]


@command(
    app,
    "Results",
    "simshuffle compare results/before results/after",
    "simshuffle compare quickstart abci-imagenet1k --to markdown",
)
def compare(
    a: Annotated[str, Argument("A", "A result folder, or a scenario.", complete=COMPARED)],
    b: Annotated[str, Argument("B", "Another one.", complete=COMPARED)],
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say what differs between two results or two scenarios.

    First in what was asked, then in what came out. Simulates nothing."""
    from simshuffle.comparison import compare as compared
    from simshuffle.comparison import side

    check_format(json, to)
    found = compared(side(a), side(b))
    if json:
        print_json(found.as_json())
    else:
        print_parts(found.parts(), to)


@command(
    app,
    "Results",
    "simshuffle report results/quickstart --out quickstart.html",
    "simshuffle report results/before results/after --out both.html",
)
def report(
    folders: Annotated[list[Path], Argument("RESULT", "Result folders, one or more.", many=True)],
    out: Annotated[
        Path | None,
        Option(OUT_FILE, "The page. Default: NAME-report.html here, after the results."),
    ] = None,
    force: Annotated[
        bool, Option("", "Replace a file that is not the page of the same results.")
    ] = False,
) -> None:
    """Write results as one HTML page.

    A browser shows it without a network."""
    from simshuffle.presentation.page import default_name, write_page

    place = file_in(out, default_name(folders))
    typer.echo(f"Page: {write_page(folders, place, force)}")


def figure(
    kind: Annotated[str | None, Argument("KIND", "What to draw.", complete=words(*KINDS))] = None,
    results: Annotated[list[Path] | None, Argument("RESULT", "Result folders.", many=True)] = None,
    style: Annotated[
        str, Option("STYLE", "ieee, acm or slides.", choices=("ieee", "acm", "slides"))
    ] = "ieee",
    columns: Annotated[
        str, Option("1|2", "Columns of a paper that it spans.", choices=("1", "2"))
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
    force: Annotated[bool, Option("", "Replace a file that is no figure of simshuffle.")] = False,
) -> None:
    """Draw a figure, or list the kinds there are."""
    if kind is None:
        typer.echo(_listed())
        return
    if latex and to not in {None, "latex"}:
        refuse("--latex", "cannot be combined with --to", str(to), "Leave one out.", COMMAND_LINE)
    to = "latex" if latex else to
    check_format(json, to)
    from simshuffle.presentation.draw import Wish, drawn, parts_of, rows_of, target, verdict

    out = file_in(out, f"{kind}.{format_ or 'pdf'}")
    wish = Wish(kind, results or [], style, int(columns), format_, out, force)
    place = target(wish) if out is not None or not (json or to) else None
    given = wish.read()
    if unfinished := [of.name for of in given if of.result.meta.get("state") == "unfinished"]:
        say(f"Unfinished: {', '.join(unfinished)}. The figure shows what is there.")
    if place is not None:
        drawn(wish, given, place)
    if json:
        print_json(rows_of(wish, given))
    elif to:
        print_parts(parts_of(wish, given), to)
    else:
        typer.echo(f"Figure: {place}")
        typer.echo(f"Caption: {' '.join([KINDS[kind], *verdict(given)])}")
        return
    if place is not None:
        say(f"Figure: {place}")


def _listed() -> str:
    width = max(map(len, KINDS))
    lines = ["Kinds of figures:"]
    for name, sentence in KINDS.items():
        first, *rest = textwrap.wrap(sentence, 76 - width)
        lines.append(f"  {name:<{width}}  {first}")
        lines += [" " * (width + 4) + line for line in rest]
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


def _booked(result: Result, labels: str | None) -> Result:
    """The result with waiting booked so; as it was asked for of None."""
    return result if labels is None else replace(result, meta={**result.meta, "labels": labels})


@command(
    verbs,
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
            "A folder, or the path of one figure without suffix. Default: the result's own.",
        ),
    ] = None,
    labels: LabelsOption = None,
) -> None:
    """Draw the figures of a result folder again, from its tables.

    For a paper or slides, also of several results: simshuffle figure."""
    from simshuffle.study.registry import read_folder

    result = _booked(read_folder(folder), labels)
    if result.meta.get("state") == "unfinished":
        say(f"{folder} is unfinished: the figures show what is there. Its command goes on with it.")
    if out is None:
        paths = result.draw(folder)
    elif result.study.one_figure and not is_folder(out):
        paths = result.draw(out.parent, out.name)
    else:
        paths = result.draw(out)
    for path in paths:
        typer.echo(f"Figure: {path}")


@command(
    verbs,
    "Results",
    "simshuffle results show results/quickstart",
    "simshuffle results show results/quickstart --to latex --labels cause",
)
def show(
    folder: ResultFolder,
    labels: LabelsOption = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Print the tables of a result folder again. Simulates nothing.

    Seconds of runs are sums alone in LaTeX and Markdown; by label with --labels."""
    from simshuffle.study.registry import read_folder

    check_format(json, to)
    show_result(_booked(read_folder(folder), labels), folder, json=json, to=to)


@command(
    verbs,
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
        int | None, Option("N", "Processes at once; the default is one on each core.", low=1)
    ] = None,
    json: AsJson = False,
) -> None:
    """Do again what is in a result folder, and say what differs.

    To the last bit, or within a tolerance if another version made it."""
    from simshuffle.results.folders import meta_of
    from simshuffle.study.executors import Local
    from simshuffle.verify import verify as verified

    on_gpu = str(meta_of(folder).get("device", "cpu")).startswith("cuda")
    at_once = processes or (1 if on_gpu else None)
    with study_progress("run") as progress, warnings_said():
        found = verified(folder, Local(at_once), progress, tolerance)
    if json:
        print_json(found.as_json())
    else:
        typer.echo("\n".join(found.parts()))
    if not found.same:
        raise typer.Exit(1)
