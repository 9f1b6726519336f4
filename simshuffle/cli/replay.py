"""The verb replay: flows of a file over a network alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import OUT_FILE, file_in, say, share_progress
from simshuffle.cli.help import command
from simshuffle.cli.show import To, print_parts
from simshuffle.errors import refuse
from simshuffle.study.options import Argument, Option, words

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.network.replay import Replay

app = typer.Typer()


@command(
    app,
    "Simulate",
    "simshuffle study replay case.json --out ends.csv",
    "simshuffle study replay case.json --network packet --compare --to latex",
)
def replay(
    case: Annotated[
        Path, Argument("CASE", "A JSON file with links and flows, compressed with gzip or not.")
    ],
    network: Annotated[
        str, Option("MODEL", "The network model.", complete=words("analytic", "fluid", "packet"))
    ] = "fluid",
    tolerance: Annotated[
        str | None,
        Option("SHARE", "fluid: error allowed for less work, from 0 (exact) to below 1."),
    ] = None,
    mtu: Annotated[
        str | None, Option("SIZE", "packet: bytes of a packet, such as '4096 B'.")
    ] = None,
    port_buffer: Annotated[
        str | None, Option("SIZE", "packet: buffer of a port, such as '64 KiB'.")
    ] = None,
    out: Annotated[
        Path | None,
        Option(OUT_FILE, "CSV file (.csv or .csv.gz); the default is standard output."),
    ] = None,
    compare: Annotated[
        bool, Option("", "Put the ends that CASE expects, and the errors, beside each end.")
    ] = False,
    to: To = None,
) -> None:
    """Say when the flows of a file end.

    As a CSV table, and a summary on standard error."""
    from simshuffle.network.case import read_case
    from simshuffle.network.replay import csv_rows, facts, network_model, title
    from simshuffle.network.replay import replay as replay_case
    from simshuffle.network.whole_file import check_target, whole_file

    model = network_model(network, {"tolerance": tolerance, "mtu": mtu, "port_buffer": port_buffer})
    if (out := file_in(out, f"{case.name.partition('.')[0]}.csv")) is not None:
        check_target(out, case)
    given = read_case(case)
    if compare and given.expected is None:
        rule, remedy = "needs a case that says when its flows end", "Leave it out."
        refuse("--compare", rule, "no flows.end", remedy, str(case))
    with share_progress("replay") as progress:
        result = replay_case(given, model, progress)
    if out is not None:
        with whole_file(out) as file:
            file.writelines(csv_rows(result, compare=compare))
    elif to is None:
        sys.stdout.writelines(csv_rows(result, compare=compare))
        sys.stdout.flush()  # an error comes here, and not at the end of the process
    if to is not None:
        print_parts(_tables(result, with_ends=out is None, compare=compare), to)
    else:
        say(title(result))
        for name, text in facts(result).items():
            say(f"  {name:15} {text}")


def _tables(result: Replay, *, with_ends: bool, compare: bool) -> list[Table]:
    """The summary as a table, and below it the ends unless a file has them."""
    from simshuffle.network.replay import ends, facts, title
    from simshuffle.results.console import new_table

    summary = new_table(title(result), ["quantity", "value"])
    for name, text in facts(result).items():
        summary.add_row(name, text)
    if not with_ends:
        return [summary]
    columns = ends(result, compare=compare)
    headings = [name.replace("_s", " (s)").replace("_", " ") for name in columns]
    table = new_table("When each flow ends", numbers=["flow", *headings])
    for number, row in enumerate(zip(*(of.tolist() for of in columns.values()), strict=True)):
        table.add_row(str(number), *map(repr, row))
    return [summary, table]
