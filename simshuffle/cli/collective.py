"""The verb collective: an allreduce by the size of its buffer, as nccl-tests measures it."""

from __future__ import annotations

from typing import Annotated

import typer

from simshuffle.cli.common import SetOption, say, share_progress
from simshuffle.cli.help import command
from simshuffle.cli.show import To, check_format, print_json, print_parts
from simshuffle.scenario.options import any_of, assigned, assignments, machine_names, scenario_names
from simshuffle.study.options import words

app = typer.Typer()


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A scenario or a machine: a file, or a name below scenarios/ or topologies/.",
        autocompletion=any_of(scenario_names, machine_names),
    ),
]
Hosts = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Hosts. Default: the scenario's, or all of the machine."),
]
GpusPerHost = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="GPUs of each host. Default: all.")
]
Sizes = Annotated[
    str | None,
    typer.Option(metavar="SIZE,...", help="Of the buffer. Default: 8 B to 1 GiB in powers of two."),
]
Algorithm = Annotated[
    str,
    typer.Option(
        metavar="KIND[:KEY=VALUE,...]",
        help="The allreduce, in place of the scenario's. Default for a machine: nccl. What is left"
        " out is of NCCL's table, and what the links carry.",
        autocompletion=words(place="simshuffle.allreduce:Allreduce"),
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Set a key of the allreduce; may be given several times."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the rows as JSON, in SI units, and nothing else.")
]


@command(
    app,
    "Simulate",
    "simshuffle study collective abci --hosts 4 --sizes '8 B,1 MiB,256 MiB'",
    "simshuffle study collective quickstart --algorithm tree --to markdown",
)
def collective(
    name: Name,
    hosts: Hosts = None,
    gpus_per_host: GpusPerHost = None,
    sizes: Sizes = None,
    algorithm: Algorithm = "",
    allreduce: Keys = None,
    set_: SetOption = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Simulate an allreduce alone, by the size of its buffer.

    Printed as all_reduce_perf of nccl-tests does; `simshuffle machine calibrate` reads it."""
    from simshuffle.collective import SIZES, Chosen, bench, measure
    from simshuffle.collective import sizes as read_sizes

    check_format(json, to)
    wanted = SIZES if sizes is None else read_sizes(sizes)
    keys = assigned("--allreduce", "order=shuffled")(allreduce or [])
    chosen = Chosen(assignments(set_ or []), algorithm, keys, hosts, gpus_per_host)
    asked = bench(name, chosen)
    with share_progress("allreduce") as progress:
        measured = measure(asked, wanted, progress)
    for note in measured.notes:
        say(note)
    if json:
        print_json(measured.as_json())
    elif to is not None:
        print_parts([measured.table(), *measured.notes], to)
    else:
        for line in measured.lines():
            typer.echo(line)
