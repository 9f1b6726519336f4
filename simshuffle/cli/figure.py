"""The verb figure."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import OUT_FILE, file_in, say
from simshuffle.cli.help import command
from simshuffle.cli.show import AsJson, To, check_format, print_found
from simshuffle.errors import refuse
from simshuffle.figures import KINDS
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

app = typer.Typer()


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
    from simshuffle.figures.draw import Wish, drawn, parts_of, rows_of, target, verdict

    out = file_in(out, f"{kind}.{format_ or 'pdf'}")
    wish = Wish(kind, results or [], style, int(columns), format_, out, force)
    place = target(wish) if out is not None or not (json or to) else None
    given = wish.read()
    if unfinished := [of.name for of in given if of.result.meta.get("state") == "unfinished"]:
        say(f"Unfinished: {', '.join(unfinished)}. The figure shows what is there.")
    if place is not None:
        drawn(wish, given, place)
    if json or to:
        print_found(lambda: rows_of(wish, given), lambda: parts_of(wish, given), json=json, to=to)
        if place is not None:
            say(f"Figure: {place}")
        return
    typer.echo(f"Figure: {place}")
    typer.echo(f"Caption: {' '.join([KINDS[kind], *verdict(given)])}")


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
