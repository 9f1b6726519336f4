"""The verb figure."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import OUT_FILE, choice, file_in, say
from simshuffle.cli.help import command
from simshuffle.cli.show import AsJson, To, check_format, print_json, print_parts
from simshuffle.errors import InputError, Problem
from simshuffle.presentation import KINDS
from simshuffle.study.options import words

app = typer.Typer()


KindName = Annotated[
    str | None, typer.Argument(metavar="KIND", help="What to draw.", autocompletion=words(*KINDS))
]
Folders = Annotated[list[Path] | None, typer.Argument(metavar="RESULT", help="Result folders.")]
Style = Annotated[
    str, choice("--style", "ieee", "acm", "slides", metavar="STYLE", text="ieee, acm or slides.")
]
Columns = Annotated[
    str, choice("--columns", "1", "2", metavar="1|2", text="Columns of a paper that it spans.")
]
Format = Annotated[
    str | None,
    choice(
        "--format",
        "pdf",
        "svg",
        "png",
        "pgf",
        metavar="FORMAT",
        text="pdf (the default), svg, png, or pgf for LaTeX.",
    ),
]
File = Annotated[Path | None, typer.Option(metavar=OUT_FILE, help="Default: KIND.FORMAT, here.")]
Latex = Annotated[bool, typer.Option("--latex", help="The same as --to latex.")]
Replace = Annotated[
    bool, typer.Option("--force", help="Replace a file that is no figure of simshuffle.")
]


def figure(
    kind: KindName = None,
    results: Folders = None,
    style: Style = "ieee",
    columns: Columns = "1",
    format_: Format = None,
    out: File = None,
    latex: Latex = False,
    to: To = None,
    json: AsJson = False,
    force: Replace = False,
) -> None:
    """Draw a figure, or list the kinds there are."""
    if kind is None:
        typer.echo(_listed())
        return
    if latex and to not in {None, "latex"}:
        rule, remedy = "cannot be combined with --to", "Leave one out."
        raise InputError(Problem("--latex", rule, str(to), remedy), "command line")
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
        typer.echo(f"Caption: {' '.join([KINDS[str(kind)], *verdict(given)])}")
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
