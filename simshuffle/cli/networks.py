"""Verbs on the network alone: replay, congestion."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import ScenarioName, SetOption, say, share_progress, values
from simshuffle.cli.help import command
from simshuffle.cli.verb import (
    AsJson,
    Force,
    Options,
    Out,
    ProcessCount,
    Scheduler,
    To,
    carry_out,
    print_parts,
)
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.network.replay import Replay

app = typer.Typer()

Routings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A routing, such as ecmp:queue_pairs=4; may be given several times. Default: the"
        " scenario's.",
    ),
]


@command(
    app,
    "Simulate",
    "simshuffle replay case.json --out ends.csv",
    "simshuffle replay case.json --network packet --compare --to latex",
)
def replay(
    case: Annotated[
        Path,
        typer.Argument(
            metavar="CASE", help="A JSON file with links and flows, compressed with gzip or not."
        ),
    ],
    network: Annotated[
        str, typer.Option(metavar="MODEL", help="The network model: analytic, fluid or packet.")
    ] = "fluid",
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="fluid: error allowed for less work, from 0 (exact) to below 1."
        ),
    ] = None,
    mtu: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="packet: bytes of a packet, such as '4096 B'."),
    ] = None,
    port_buffer: Annotated[
        str | None, typer.Option(metavar="SIZE", help="packet: buffer of a port, such as '64 KiB'.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CSV file (.csv or .csv.gz); the default is standard output."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Put the ends that CASE expects, and the errors, beside each end."
        ),
    ] = False,
    to: To = None,
) -> None:
    """Say when the flows of CASE end: a CSV table, and a summary on standard error."""
    from simshuffle.network.case import read_case
    from simshuffle.network.replay import csv_rows, facts, network_model, title
    from simshuffle.network.replay import replay as replay_case
    from simshuffle.network.whole_file import check_target, whole_file

    model = network_model(network, {"tolerance": tolerance, "mtu": mtu, "port_buffer": port_buffer})
    if out is not None:
        check_target(out, case)
    given = read_case(case)
    if compare and given.expected is None:
        raise InputError(
            Problem(
                "--compare",
                "needs a case that says when its flows end",
                "no flows.end",
                "Leave it out.",
            ),
            str(case),
        )
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
        return
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


@command(
    app,
    "Simulate",
    "simshuffle congestion quickstart --world-size 32",
    "simshuffle congestion quickstart --network fluid --seeds 10 --out pairs",
)
def congestion(
    scenario: ScenarioName,
    pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A pattern; may be given several times. Default: all."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="analytic, fluid or packet; several times for several. Default: fluid, packet.",
        ),
    ] = None,
    routing: Routings = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds for analytic and fluid.")
    ] = 5,
    packet_seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds for packet, of those for the others.")
    ] = 3,
    packets: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Packets in one run of packet; what is more is left out."
        ),
    ] = 2_000_000,
    jitter: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Where packet is run and sizes are alike, they differ by up to this share.",
        ),
    ] = 0.1,
    world_size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="M",
            help="Ranks; may be given several times. Default: the sweep's, or the scenario's.",
        ),
    ] = None,
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Compare all-to-all with pairwise exchange on the bytes of SCENARIO: times, what decides, and
    a verdict."""
    from simshuffle.studies.congestion.compare import Settings, chosen, request, scenarios
    from simshuffle.studies.congestion.study import STUDY

    counts = Settings(seeds=seeds, packet_seeds=packet_seeds, packets=packets, jitter=jitter)
    settings = chosen(counts, pattern or [], network or [], routing or [])
    sized = scenarios(scenario, values(set_ or []), world_size or [])
    carry_out(
        STUDY, request(sized, settings), Options(out, json, force, processes, scheduler, to=to)
    )
