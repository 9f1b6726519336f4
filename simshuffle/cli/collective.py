"""The verb collective: an allreduce by the size of its buffer, as nccl-tests measures it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from simshuffle.cli.common import Set, say, share_progress
from simshuffle.cli.help import command
from simshuffle.cli.show import To, check_format, print_found
from simshuffle.studies.fields import any_of, assigned, machine_names, scenario_names
from simshuffle.study.options import Argument, Option, words

app = typer.Typer()


@command(
    app,
    "Simulate",
    "simshuffle study collective abci --hosts 4 --sizes '8 B,1 MiB,256 MiB'",
    "simshuffle study collective quickstart --algorithm tree --to markdown",
)
def collective(
    name: Annotated[
        str,
        Argument(
            "NAME",
            "A scenario or a machine: a file, or a name below scenarios/ or topologies/.",
            complete=any_of(scenario_names, machine_names),
        ),
    ],
    hosts: Annotated[
        int | None, Option("N", "Hosts. Default: the scenario's, or all of the machine.", low=1)
    ] = None,
    gpus_per_host: Annotated[
        int | None, Option("N", "GPUs of each host. Default: all.", low=1)
    ] = None,
    sizes: Annotated[
        str | None, Option("SIZE,...", "Of the buffer. Default: 8 B to 1 GiB in powers of two.")
    ] = None,
    algorithm: Annotated[
        str,
        Option(
            "KIND[:KEY=VALUE,...]",
            "The allreduce, in place of the scenario's. Default for a machine: nccl. What is left"
            " out is of NCCL's table, and what the links carry.",
            complete=words(place="simshuffle.allreduce:Allreduce"),
        ),
    ] = "",
    allreduce: Annotated[
        Mapping[str, Any] | None,
        Option(
            "KEY=VALUE",
            "Set a key of the allreduce.",
            read=assigned("--allreduce", "order=shuffled"),
            many=True,
        ),
    ] = None,
    set_: Set = None,
    json: Annotated[
        bool, Option("", "Print the rows as JSON, in SI units, and nothing else.")
    ] = False,
    to: To = None,
) -> None:
    """Simulate an allreduce alone, by the size of its buffer.

    Printed as all_reduce_perf of nccl-tests does; `simshuffle machine calibrate` reads it."""
    from simshuffle.collective import SIZES, bench, measure
    from simshuffle.collective import sizes as read_sizes

    check_format(json, to)
    wanted = SIZES if sizes is None else read_sizes(sizes)
    chosen = (set_ or {}, algorithm, allreduce)
    made = bench(name, *chosen, hosts=hosts, gpus_per_host=gpus_per_host)
    with share_progress("allreduce") as progress:
        measured = measure(made, wanted, progress)
    for note in measured.notes:
        say(note)
    if json or to:
        print_found(measured.as_json, lambda: [measured.table(), *measured.notes], json=json, to=to)
    else:
        for line in measured.lines():
            typer.echo(line)
