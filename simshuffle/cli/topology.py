"""Verbs below ``simshuffle machine``: networks of machines, from and to files of other tools."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import OUT_FILE, NetworkName, file_in, say
from simshuffle.cli.help import command
from simshuffle.cli.topology_show import fabric_in, show
from simshuffle.errors import InputError, Problem
from simshuffle.study.options import words

if TYPE_CHECKING:
    from simshuffle.fabrics.imported import ImportedFabric
    from simshuffle.fabrics.reading import Dumps

app = typer.Typer()

SHOWN = 10
"""Cables slower than others that are named; the rest are counted."""


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="What ibnetdiscover printed, topology.conf or topology.yaml of Slurm, InfraGraph,"
        " networkx node-link JSON, or GraphML; or a folder with such a file and those of --routes,"
        " --names and --slurm.",
    ),
]
Routes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Forwarding tables: opensm-lfts.dump, or what dump_lfts or ibroute printed.",
    ),
]
Names = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help='Node-name map of opensm or infiniband-diags: 0xGUID "name" a line.'
    ),
]
Slurm = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="topology.conf or topology.yaml of Slurm: its nodes are the hosts that take part.",
    ),
]
LinkBandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="What links carry of which the file does not say it: '25 GB/s'."
    ),
]
LinksUp = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Slurm: links from a switch up. Default: hosts below."),
]
Replace = Annotated[bool, typer.Option("--force", help="Replace the files that are there.")]


@command(
    app,
    "Describe",
    "simshuffle machine import ibnet.txt --out mine.yaml",
    "simshuffle machine import ibnet.txt --routes lfts.txt --gpus 8 --out mine.yaml",
    "simshuffle machine import topology.conf --link-bandwidth 25GB/s --out m.yaml",
    name="import",
)
def import_(
    file: File,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="A machine (.yaml), or its network alone (.json)."),
    ],
    routes: Routes = None,
    names: Names = None,
    slurm: Slurm = None,
    link_bandwidth: LinkBandwidth = None,
    links_up: LinksUp = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the machine. Default: that of --out.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of a host. Default: as adapter ports.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="NAME", help="The key of step times in a scenario.")
    ] = None,
    mended: Annotated[
        bool,
        typer.Option(
            "--mended",
            help="Give slow cables, and those of older adapters, what their neighbours carry.",
        ),
    ] = False,
    force: Replace = False,
) -> None:
    """Write the machine, or the network, that FILE shows: counts, what is left out, slow cables."""
    from simshuffle.fabrics.lfts import check_ways, read_tables
    from simshuffle.fabrics.reading import Dumps
    from simshuffle.new.files import check_place, write_together
    from simshuffle.new.imported import fabric_file, machine_files, tables_file

    of = _dumps(file, Dumps(None, routes, names, slurm), alone=out.suffix == ".json")
    stem, alone = _stem(out, of.routes), out.suffix == ".json"
    beside = [] if alone else [fabric_file(stem), *([tables_file(stem)] if of.routes else [])]
    ends = [name.removeprefix(stem) for name in (out.name, *beside)]
    check_place(out.with_name(stem), replace=force, option="--out", ends=ends)
    _check_name(name)
    fabric = _fabric_of(of, _bandwidth(link_bandwidth), links_up)
    fabric = fabric.mended() if mended else fabric
    tables = "", ""
    if of.routes is not None:
        found = read_tables(of.routes, fabric)
        check_ways(of.routes, fabric, found)
        tables = found.to_json(), found.source
    texts = {out.name: fabric.to_json()}
    if not alone:
        texts = machine_files(
            out.name, name or stem, fabric, tables, gpus=gpus, accelerator=accelerator
        )
    written = write_together(out.parent, texts)
    _tell(fabric)
    if of.routes is not None:
        say(f"  {'tables':10} {of.routes.name}: every host port is reached, without circles")
    for path in written:
        typer.echo(f"Written: {path}")
    _say_what_next(out, alone)


def _fabric_of(of: Dumps, bandwidth: float | None, links_up: int | None) -> ImportedFabric:
    """The fabric of files; the others are for what they do not say."""
    from simshuffle.fabrics.imported import Missing
    from simshuffle.fabrics.infiniband import read_names
    from simshuffle.fabrics.reading import read_fabric
    from simshuffle.fabrics.slurm import read_hosts

    known = read_names(of.names) if of.names else {}
    hosts = read_hosts(of.slurm) if of.slurm else frozenset()
    assert of.network is not None  # noqa: S101 - see `_dumps`
    return read_fabric(of.network, Missing(bandwidth, links_up, known, hosts))


def _dumps(file: Path, given: Dumps, *, alone: bool) -> Dumps:
    """The files to read: those that are given, and the others of the folder ``file``, if it is one;
    no tables where the network is written ``alone``."""
    from simshuffle.fabrics.reading import dumps_in

    if not file.is_dir():
        return replace(given, network=file)
    there = dumps_in(file)
    for kind, path in there.files.items():
        say(f"  {kind:10} {path}")
    if there.others:
        say(f"  {'not read':10} {', '.join(there.others)}")
    routes = given.routes or (None if alone else there.routes)
    return replace(
        there, routes=routes, names=given.names or there.names, slurm=given.slurm or there.slurm
    )


def _say_what_next(out: Path, alone: bool) -> None:
    """Print a command that goes on from the file that was written."""
    from simshuffle.new.imported import first_run

    if alone:
        command, told = shlex.join(["simshuffle", "machine", "show", str(out)]), ""
    else:
        command, told = first_run(out)
    if told:
        say(told)
    typer.echo(f"Next: {command}")


def _stem(out: Path, routes: Path | None) -> str:
    """What the names of the files begin with."""
    if out.suffix not in {".yaml", ".yml", ".json"}:
        rule, remedy = "must end in .yaml or .json", "For example --out mine.yaml."
        raise InputError(Problem("--out", rule, repr(str(out)), remedy), "command line")
    if out.suffix == ".json" and routes is not None:
        rule, remedy = "needs the file of a machine", "Write --out with .yaml."
        raise InputError(Problem("--routes", rule, repr(str(out)), remedy), "command line")
    return out.stem


def _check_name(name: str | None) -> None:
    from simshuffle.new.questions import NAME_RULE, is_name

    if name is not None and not is_name(name):
        problem = Problem("--name", NAME_RULE, repr(name), "For example mine.")
        raise InputError(problem, "command line")


def _bandwidth(text: str | None) -> float | None:
    from simshuffle.spec.units import Dimension, UnitError, parse_quantity

    if text is None:
        return None
    try:
        found = parse_quantity(text, Dimension.BANDWIDTH)
    except UnitError as error:
        rule = str(error)
    else:
        if found > 0:
            return found
        rule = "must be greater than 0"
    problem = Problem("--link-bandwidth", rule, repr(text), "For example '25 GB/s'.")
    raise InputError(problem, "command line")


def _tell(fabric: ImportedFabric) -> None:
    """Say on standard error what there is, what is left out, and what is unusual."""
    say(fabric.source)
    for name, text in fabric.counts().items():
        say(f"  {name:10} {text}")
    for text in fabric.left_out:
        say(f"  {'left out':10} {text}")
    for text in fabric.warnings:
        say(f"  {'note':10} {text}")
    for older, called in ((False, "slow cable"), (True, "older adapter")):
        slow = [cable for cable in fabric.slow_cables if cable.is_of_older_adapter == older]
        for cable in slow[:SHOWN]:
            say(f"  {called:10} {cable}")
        if len(slow) > SHOWN:
            say(f"  {'':10} and {len(slow) - SHOWN} other {called}s")
    if fabric.slow_cables:
        say("What they cost an epoch: import once more with --mended, run both, and compare.")


@command(
    app,
    "Describe",
    "simshuffle machine export abci --to json --out abci.json",
    "simshuffle machine export mine.yaml --to ibsim --out mine.net",
    name="export",
)
def export(
    source: NetworkName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="ibsim, infragraph, graphml, or json (node-link, for kind: custom).",
            autocompletion=words("ibsim", "infragraph", "graphml", "json"),
        ),
    ],
    out: Annotated[Path, typer.Option(metavar=OUT_FILE, help="What to write.")],
    force: Replace = False,
) -> None:
    """Write the network of NAME for another tool."""
    from simshuffle.exports.export import format_of
    from simshuffle.exports.networks import WRITERS
    from simshuffle.new.files import check_place, write_together

    kind = format_of(to)
    if to not in WRITERS:
        rule, remedy = "needs the messages of a run", f"simshuffle export SCENARIO --to {to}."
        raise InputError(Problem("--to", rule, repr(to), remedy), "command line")
    out = file_in(out, Path(source).stem + kind.suffix) or out
    check_place(out, replace=force, option="--out", ends=[""])
    fabric = _fabric(source)
    (path,) = write_together(out.parent, {out.name: WRITERS[to](fabric)})
    _tell(fabric)
    typer.echo(f"Written: {path}")


def _fabric(source: str) -> ImportedFabric:
    """The network of a machine, or of a network's file."""
    from simshuffle.fabrics.network import of_network
    from simshuffle.scenario.scenario import machine_of

    found = fabric_in(source)
    if found is not None:
        return found
    return of_network(machine_of(source).sketch(), source)


command(
    app,
    "Describe",
    "simshuffle machine show abci --route h0000 h0700",
    "simshuffle machine show abci --pattern random_pairs --out abci.png",
    name="show",
)(show)
