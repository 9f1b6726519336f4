"""Verbs below ``simshuffle study`` that make no result folder.

collective times an allreduce by the size of its buffer, replay the flows of a file over
a network alone, and schema prints the schemas of files, for editors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    Set,
    To,
    check_paths,
    output_file,
    print_json,
    print_parts,
    say,
    share_progress,
    write_files,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import (
    any_of,
    machine_names,
    read_assignments,
    scenario_names,
)
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words
from simshuffle.study.registry import merge_extensions, verbs

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.fabric.network.replay import Replay
    from simshuffle.studies.alltoall import AlltoallTable
    from simshuffle.studies.collective import BenchMeasurement

app = typer.Typer()
SCHEMA_KINDS = (
    "scenario",
    *merge_extensions().schemas,
    "topology",
    *(verb.word for verb in verbs().values()),
)
"""Kinds of files, and verbs that make a result: all that `schema` takes."""
ALGORITHM = Option(
    "KIND[:KEY=VALUE,...]",
    "The allreduce, in place of the scenario's; for a machine the default is nccl. Missing keys"
    " have the latencies of NCCL's table and the bandwidths of the links. For an alltoall: one or"
    " more of default (Open MPI's choice), linear, linear_sync, pairwise, bruck.",
    complete=words(place="simshuffle.fabric.allreduce:Allreduce"),
)
ALLREDUCE = Option(
    "KEY=VALUE",
    "Set a key of the allreduce.",
    read=read_assignments("--allreduce", "order=shuffled"),
    many=True,
)


# The docstring of a command is its help. Besides: --allreduce is refused with --kind alltoall,
# --json goes before --to, and notes go to standard error.
@command(
    app,
    "Simulate",
    "simshuffle study collective abci --hosts 4 --sizes '8 B,1 MiB,256 MiB'",
    "simshuffle study collective quickstart --algorithm tree --to markdown",
    "simshuffle study collective abci --kind alltoall --algorithm pairwise",
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
    *,
    kind: Annotated[
        str, Option("KIND", "allreduce or alltoall.", choices=("allreduce", "alltoall"))
    ] = "allreduce",
    hosts: Annotated[
        int | None,
        Option("N", "Hosts. Default: the scenario's, or all of the machine.", low=1),
    ] = None,
    gpus_per_host: Annotated[
        int | None, Option("N", "GPUs of each host. Default: all.", low=1)
    ] = None,
    sizes: Annotated[
        str | None,
        Option(
            "SIZE,...",
            "Sizes of the allreduce's buffer, or of what each rank sends to each other rank in an"
            " alltoall. Default: powers of two, 8 B to 1 GiB or 1 B to 1 MiB.",
            read=",".join,
            many=True,
        ),
    ] = None,
    algorithm: Annotated[str, ALGORITHM] = "",
    allreduce: Annotated[Mapping[str, Any] | None, ALLREDUCE] = None,
    set_: Set = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Simulate an allreduce or all-to-all alone, by the size of its buffer.

    Printed as all_reduce_perf of nccl-tests or osu_alltoall does; `simshuffle machine
    calibrate` reads it.
    """
    if kind == "alltoall" and allreduce:
        rule = "sets keys of an allreduce"
        remedy = "Leave it out, or --kind alltoall."
        refuse("--allreduce", rule, "--kind alltoall", remedy, COMMAND_LINE)
    machine = CollectiveMachine(name, set_ or {}, hosts, gpus_per_host)
    with share_progress(kind) as progress:
        if kind == "alltoall":
            measurement = measure_alltoall(machine, algorithm, sizes, progress)
        else:
            measurement = measure_allreduce(
                machine, algorithm, allreduce, sizes, progress
            )
    for note in measurement.notes:
        say(note)
    if json:
        print_json(measurement.as_json())
    elif to:
        print_parts([measurement.table(), *measurement.notes], to)
    else:
        typer.echo("\n".join(measurement.lines()))


@dataclass(frozen=True)
class CollectiveMachine:
    """The machine or scenario whose ranks take part in a collective."""

    name: str  # a file, or the name of a shipped one
    values: Mapping[str, Any]  # to set, by dotted key
    hosts: int | None  # None for the scenario's, or all of the machine
    gpus_per_host: int | None  # None for all


def measure_allreduce(
    machine: CollectiveMachine,
    algorithm: str,
    keys: Mapping[str, Any] | None,
    sizes: str | None,
    progress: Any,
) -> AlltoallTable | BenchMeasurement:
    """Simulate an allreduce for each size of its buffer.

    Args:
        machine: whose ranks take part.
        algorithm: the allreduce as ``kind:key=value,...``; '' for the scenario's, or
            nccl for a machine.
        keys: values of the allreduce to set, by key; None for none.
        sizes: sizes with units between commas; None for 8 B to 1 GiB, each twice the
            last.
        progress: called with the finished share, 0 to 1; None for nobody.

    Returns:
        A BenchMeasurement: a row for each size, in the order of the sizes.

    Raises:
        InputError: the machine, a value or a size is not valid.
    """
    from simshuffle.studies import collective as study

    nbytes = study.SIZES if sizes is None else study.parse_sizes(sizes)
    bench = study.read_bench(
        machine.name,
        machine.values,
        algorithm,
        keys,
        hosts=machine.hosts,
        gpus_per_host=machine.gpus_per_host,
    )
    return study.measure_bench(bench, nbytes, progress)


def measure_alltoall(
    machine: CollectiveMachine, algorithm: str, sizes: str | None, progress: Any
) -> AlltoallTable | BenchMeasurement:
    """Simulate an all-to-all for each size of its messages.

    Arguments are those of `measure_allreduce`; ``algorithm`` may name several between
    commas, and is Open MPI's choice if ''. Sizes are bytes that a rank sends to each
    other rank; None for 1 B to 1 MiB, each twice the last.

    Returns:
        An AlltoallTable: a row for each algorithm and size.

    Raises:
        InputError: the machine, a value, a size or an algorithm is not valid.
    """
    from simshuffle.studies import alltoall as study
    from simshuffle.studies import collective

    nbytes = study.SIZES if sizes is None else collective.parse_sizes(sizes, 1)
    return study.time_alltoalls(
        machine.name,
        machine.values,
        study.parse_algorithms(algorithm),
        nbytes,
        hosts=machine.hosts,
        gpus_per_host=machine.gpus_per_host,
        progress=progress,
    )


# With --to, the summary is a table on standard output, and the ends follow it as a table unless
# --out is given; nothing goes to standard error. --compare is refused if the case has no ends.
@command(
    app,
    "Simulate",
    "simshuffle study replay case.json --out ends.csv",
    "simshuffle study replay case.json --network packet --compare --to latex",
)
def replay(
    case: Annotated[
        Path,
        Argument(
            "CASE", "A JSON file with links and flows, compressed with gzip or not."
        ),
    ],
    *,
    network: Annotated[
        str,
        Option(
            "MODEL", "The network model.", complete=words("analytic", "fluid", "packet")
        ),
    ] = "fluid",
    tolerance: Annotated[
        str | None,
        Option(
            "SHARE", "fluid: error allowed for less work, from 0 (exact) to below 1."
        ),
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
        bool,
        Option("", "Put the ends that CASE expects, and the errors, beside each end."),
    ] = False,
    to: To = None,
) -> None:
    """Say when the flows of a file end.

    As a CSV table, and a summary on standard error."""
    from simshuffle.fabric.network.case import read_case
    from simshuffle.fabric.network.replay import csv_rows, facts, network_model, title
    from simshuffle.fabric.network.replay import replay as replay_case
    from simshuffle.spec.whole_file import check_target, whole_file

    model = network_model(
        network, {"tolerance": tolerance, "mtu": mtu, "port_buffer": port_buffer}
    )
    if (out := output_file(out, f"{case.name.partition('.')[0]}.csv")) is not None:
        check_target(out, case)
    replayed_case = read_case(case)
    if compare and replayed_case.expected is None:
        rule = "needs a case that says when its flows end"
        remedy = "Leave it out."
        refuse("--compare", rule, "no flows.end", remedy, str(case))
    with share_progress("replay") as progress:
        result = replay_case(replayed_case, model, progress)
    if out is not None:
        with whole_file(out) as file:
            file.writelines(csv_rows(result, compare=compare))
    elif to is None:
        sys.stdout.writelines(csv_rows(result, compare=compare))
        sys.stdout.flush()  # an error comes here, and not at the end of the process
    if to is not None:
        print_parts(replay_tables(result, with_ends=out is None, compare=compare), to)
    else:
        say(title(result))
        for name, text in facts(result).items():
            say(f"  {name:15} {text}")


def replay_tables(result: Replay, *, with_ends: bool, compare: bool) -> list[Table]:
    """Return the summary as a table, and below it when each flow ends, if wanted.

    Args:
        result: of a replay.
        with_ends: whether there is a table of ends (s), a row for each flow.
        compare: whether the table of ends has the expected ends and the relative
            errors, too, if the case expects any.
    """
    from simshuffle.fabric.network.replay import end_columns, facts, title
    from simshuffle.report.console import new_table

    summary = new_table(title(result), ["quantity", "value"])
    for name, text in facts(result).items():
        summary.add_row(name, text)
    if not with_ends:
        return [summary]
    columns = end_columns(result, compare=compare)
    headings = [name.replace("_s", " (s)").replace("_", " ") for name in columns]
    table = new_table("When each flow ends", numbers=["flow", *headings])
    for flow, row in enumerate(
        zip(*(column.tolist() for column in columns.values()), strict=True)
    ):
        table.add_row(str(flow), *map(repr, row))
    return [summary, table]


@command(
    app,
    "Describe",
    "simshuffle study schema scenario --out scenario.schema.json",
    "simshuffle study schema topology > topology.schema.json",
    "simshuffle study schema sweep",
)
def schema(
    what: Annotated[
        str,
        Argument(
            "[scenario|study|topology|VERB]",
            "What the schema describes: scenarios, studies of training, machines, or the options"
            " of a verb as its function in Python takes them.",
            complete=words(*SCHEMA_KINDS),
        ),
    ] = "scenario",
    out: Annotated[
        Path | None,
        Option(OUT_FILE, "The file to write; the default is standard output."),
    ] = None,
    force: Annotated[bool, Option("", "Replace an existing file.")] = False,
) -> None:
    """Print the JSON Schema of a kind of file, for editors.

    Keys, units, defaults and ranges, in draft 2020-12. An editor completes and checks a file that
    names the schema in its first line:
    # yaml-language-server: $schema=scenario.schema.json
    """
    import json

    if what not in SCHEMA_KINDS:
        rule = f"must be one of {', '.join(SCHEMA_KINDS)}"
        remedy = "Write one of them."
        refuse("schema", rule, repr(what), remedy, COMMAND_LINE)
    if (out := output_file(out, f"{what}.schema.json")) is not None:
        check_paths(out, replace=force)
    from simshuffle.cli.schema_files import schema as schema_of

    text = json.dumps(schema_of(what), indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
        return
    (path,) = write_files(out.parent, {out.name: f"{text}\n"})
    typer.echo(f"Written: {path}")
    say(f"In the first line of a {what} file: # yaml-language-server: $schema={path}")
