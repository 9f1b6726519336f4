"""Verbs on results: compare, report, export, figure."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    Set,
    To,
    check_format,
    file_in,
    loaded,
    print_json,
    print_parts,
    say,
    share_progress,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.presentation import KINDS
from simshuffle.scenario.options import any_of, result_folders, scenario_names
from simshuffle.spec.library import is_folder
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

if TYPE_CHECKING:
    pass

app = typer.Typer()


COMPARED = any_of(result_folders, scenario_names)


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


# ---------------------------------------------------------------------------------------- export

Source = Annotated[
    str,
    Argument(
        "SOURCE",
        "A result folder of run, a scenario file, or a name below scenarios/.",
        complete=scenario_names,
    ),
]
ToOption = Annotated[
    str,
    Option(
        "FORMAT",
        "perfetto (a timeline for ui.perfetto.dev), chakra (traces for ASTRA-sim),"
        " chakra-storage (with nodes of storage, which it refuses), htsim (its messages),"
        " goal (LogGOPSim, ATLAHS), simgrid (an MPI program and its platform);"
        " infragraph, ibsim, graphml or json (the network, as machine export).",
        complete=words(place="simshuffle.exports.export:FORMATS"),
    ),
]
Ranks = Annotated[
    str | None,
    Option(
        "RANK,...",
        "perfetto: numbers, 4-7, slowest, fastest, sample, all. Default: all of up to 16"
        " ranks, else slowest,fastest,sample.",
    ),
]
Messages = Annotated[
    str | None,
    Option(
        "WHICH",
        "perfetto: chosen (of the ranks shown, the default), or none (no simulation: the"
        " tables of the result alone).",
        complete=words("chosen", "none"),
    ),
]


@command(
    app,
    "Results",
    "simshuffle export results/quickstart --to perfetto --out trace.json.gz",
    "simshuffle export quickstart --to perfetto --ranks slowest,0-3 --epoch 2",
)
def export(
    source: Source,
    to: ToOption,
    out: Annotated[
        Path | None, Option(OUT_FILE, "What to write. Default: RUN-FORMAT, here.")
    ] = None,
    run: Annotated[
        str | None, Option("NAME", "Of several runs. Default: the first that has what is written.")
    ] = None,
    epoch: Annotated[
        str | None, Option("N", "From 1; perfetto takes 2-4 too.", "--epoch --epochs")
    ] = None,
    iteration: Annotated[
        int | None, Option("N", "From 1, of the epoch. Default: the first that sends.")
    ] = None,
    ranks: Ranks = None,
    messages: Messages = None,
    set_: Set = None,
    force: Annotated[bool, Option("", "Replace what is there.")] = False,
) -> None:
    """Write a run of SOURCE for another tool."""
    from simshuffle.exports.export import check_out, default_out, format_of
    from simshuffle.exports.export import export as write
    from simshuffle.exports.source import read_source

    kind = format_of(to)
    given = {
        "epoch": epoch,
        "epochs": epoch if epoch is not None and not epoch.strip().isdecimal() else None,
        "iteration": iteration,
        "ranks": ranks,
        "messages": messages,
    }
    for name, value in given.items():
        if value is not None and name not in kind.options:
            rule = "must be one epoch" if name == "epochs" else "is no option of this format"
            refuse(f"--{name}", f"{rule} (--to {to})", str(value), "Leave it out.", COMMAND_LINE)
    folder = out if kind.suffix and out is not None and is_folder(out) else None
    if out is not None and folder is None:  # before anything is read
        check_out(out, folder=not kind.suffix, replace=force)
    sends = "iteration" in kind.options
    found = read_source(source, set_ or {}, run, epoch, iteration, sends=sends)
    if run is None and len(found.runs) > 1:
        say(f"Of {len(found.runs)} runs this is '{found.run}'; --run NAME names another.")
    path = (folder or Path()) / default_out(found, to) if folder or out is None else out
    loaded()
    with share_progress("export") as tell:
        said = write(found, to, path, tell, ranks=ranks, messages=messages, replace=force)
    for line in said:
        say(line)
    typer.echo(f"Written: {path}")


# ---------------------------------------------------------------------------------------- figures


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
