"""The verb machine import: the machine, or the network, that files of other tools show; what no
fabric shows are estimates."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import NAME_RULE, Force, check_place, is_name, say, write_together
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.extensions.interop.command import tell
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from simshuffle.extensions.interop.fabrics.host_inside import HostInside
    from simshuffle.extensions.interop.fabrics.imported import ImportedFabric
    from simshuffle.extensions.interop.fabrics.reading import Dumps
    from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile

app = typer.Typer()

ACCELERATOR = "a100-sxm4-80gb-amp"
"""Has step times for most models of the catalog."""
EXAMPLE = "quickstart"
"""The scenario of a first run on a machine."""

HEAD = """\
# {name}, written by `simshuffle machine import`.
# Read from {file}: hosts, adapters, switches, cables and what they carry.
# All that is marked as an estimate is not in it: it is yours to change.
name: {name}
description: {description}
topology:
  kind: custom
  path: {fabric}  # estimates in it: {cable} for a cable, {switch} for a switch that does not say
"""
ROUTING = """\
routing:
  kind: forwarding_tables
  path: {tables}  # read from {dump}
"""
DEFAULT_ROUTING = """\
routing:
  kind: min_hop  # estimate: what OpenSM does by default; --routes takes the tables that it made
"""
HOSTS = """\
host:
  gpus: {gpus}  # {given}; nvidia-smi -L
  accelerator: {device}  # estimate; the key of step times in a scenario
  cores: {cores}
  hcas: {hcas}  # read
  pcie_slots: {hcas}  # estimate: one for each adapter port
  pcie_bandwidth: {pcie}  # estimate: {pcie_why}
  nvlink_bandwidth: {nvlink}  # estimate: {nvlink_why}
ssd:
  capacity: {ssd}
  read_bandwidth: {ssd_read}
  write_bandwidth: {ssd_write}
memory:
  capacity: {memory}
  bandwidth: 200 GB/s  # estimate: 8 x DDR4-3200 have 204.8 GB/s
parallel_file_system:
  read_bandwidth: {pfs_bandwidth}
  open_rate: {pfs_opens}
"""
"""What stands in and around the hosts, which no fabric shows."""
FABRIC, TABLES = "-fabric.json", "-tables.json"
"""What the names of the files of a network and of its forwarding tables end with."""


File = Annotated[
    Path,
    Argument(
        "FILE",
        "What ibnetdiscover printed, topology.conf or topology.yaml of Slurm, InfraGraph,"
        " networkx node-link JSON, or GraphML; or a folder with such a file and those of"
        " --routes, --names and --slurm. Of a host: topology XML of NCCL, or what nvidia-smi"
        " topo -m printed.",
    ),
]
Out = Annotated[
    Path,
    Option(
        "FILE",
        "A machine (.yaml), or its network alone (.json); of a host a fragment (.yaml), which a"
        " scenario includes.",
    ),
]
Routes = Annotated[
    Path | None,
    Option("FILE", "Forwarding tables: opensm-lfts.dump, or what dump_lfts or ibroute printed."),
]
Names = Annotated[
    Path | None,
    Option("FILE", 'Node-name map of opensm or infiniband-diags: 0xGUID "name" a line.'),
]
Slurm = Annotated[
    Path | None,
    Option(
        "FILE", "topology.conf or topology.yaml of Slurm: its nodes are the hosts that take part."
    ),
]
LinkBandwidth = Annotated[
    str | None, Option("RATE", "What links carry of which the file does not say it: '25 GB/s'.")
]


@command(
    app,
    "Describe",
    "simshuffle machine import ibnet.txt --out mine.yaml",
    "simshuffle machine import ibnet.txt --routes lfts.txt --gpus 8 --out mine.yaml",
    "simshuffle machine import topology.conf --link-bandwidth 25GB/s --out m.yaml",
    "simshuffle machine import nccl-topology.xml --out host.yaml",
    name="import",
)
def import_(
    file: File,
    out: Out,
    routes: Routes = None,
    names: Names = None,
    slurm: Slurm = None,
    link_bandwidth: LinkBandwidth = None,
    links_up: Annotated[
        int | None, Option("N", "Slurm: links from a switch up. Default: hosts below.", low=1)
    ] = None,
    name: Annotated[str | None, Option("NAME", "Of the machine. Default: that of --out.")] = None,
    gpus: Annotated[int | None, Option("N", "Of a host. Default: as adapter ports.", low=1)] = None,
    accelerator: Annotated[
        str | None, Option("NAME", "The key of step times in a scenario.")
    ] = None,
    mended: Annotated[
        bool,
        Option("", "Give slow cables, and those of older adapters, what their neighbours carry."),
    ] = False,
    force: Force = False,
) -> None:
    """Write the machine, the network or the inside of a host that FILE shows: counts, what is left
    out, slow cables."""
    from simshuffle.extensions.interop.fabrics.lfts import check_ways, read_tables
    from simshuffle.extensions.interop.fabrics.reading import Dumps, read_host

    if not file.is_dir() and (host := read_host(file)) is not None:
        of_networks = (routes, names, slurm, link_bandwidth, links_up, name, gpus, accelerator)
        alone = not mended and all(given is None for given in of_networks)
        return _write_host(host, file, out, force=force, alone=alone)
    alone = out.suffix == ".json"
    of = _dumps(file, Dumps(None, routes, names, slurm), alone=alone)
    if out.suffix not in {".yaml", ".yml", ".json"}:
        remedy = "For example --out mine.yaml."
        refuse("--out", "must end in .yaml or .json", repr(str(out)), remedy, COMMAND_LINE)
    if alone and of.routes is not None:
        rule, remedy = "needs the file of a machine", "Write --out with .yaml."
        refuse("--routes", rule, repr(str(out)), remedy, COMMAND_LINE)
    beside = [] if alone else [FABRIC, *([TABLES] if of.routes else [])]
    check_place(out.with_name(out.stem), replace=force, ends=[out.suffix, *beside])
    if name is not None and not is_name(name):
        refuse("--name", NAME_RULE, repr(name), "For example mine.", COMMAND_LINE)
    fabric = _fabric_of(of, link_bandwidth, links_up)
    fabric = fabric.mended() if mended else fabric
    tables = None
    if of.routes is not None:
        tables = read_tables(of.routes, fabric)
        check_ways(of.routes, fabric, tables)
    texts = {out.name: fabric.to_json()}
    if not alone:
        texts = machine_files(
            out.name, name or out.stem, fabric, tables, gpus=gpus, accelerator=accelerator
        )
    written = write_together(out.parent, texts)
    _tell_written(fabric, of, written)
    words = ["simshuffle", "machine", "show", str(out)] if alone else _first_run(out)
    typer.echo(f"Next: {shlex.join(words)}")


def _tell_written(fabric: ImportedFabric, of: Dumps, written: Iterable[Path]) -> None:
    """Say what there is in a network, and where it is written."""
    tell(fabric)
    if of.routes is not None:
        say(f"  {'tables':10} {of.routes.name}: every host port is reached, without circles")
    for path in written:
        typer.echo(f"Written: {path}")


def _write_host(host: HostInside, file: Path, out: Path, *, force: bool, alone: bool) -> None:
    """Write the fragment of the inside of a host that ``file`` shows, and say what there is;
    ``alone`` says whether no option was given that is of networks."""
    if not alone:
        rule = "shows the inside of a host, to which only --out and --force apply"
        refuse("FILE", rule, str(file), "Leave the other options out.", COMMAND_LINE)
    if out.suffix not in {".yaml", ".yml"}:
        remedy = "For example --out host.yaml."
        refuse("--out", "must end in .yaml", repr(str(out)), remedy, COMMAND_LINE)
    check_place(out, replace=force)
    (path,) = write_together(out.parent, {out.name: host.to_yaml()})
    say(host.source)
    for line in host.lines():
        say(f"  {line}")
    typer.echo(f"Written: {path}")
    typer.echo(f"Next: simshuffle check SCENARIO --set {shlex.quote(f'include={path}')}")


def _dumps(file: Path, given: Dumps, *, alone: bool) -> Dumps:
    """The files to read: those that are given, and the others of the folder ``file``, if it is one;
    no tables where the network is written ``alone``."""
    from simshuffle.extensions.interop.fabrics.reading import dumps_in

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


def _fabric_of(of: Dumps, bandwidth: str | None, links_up: int | None) -> ImportedFabric:
    """The fabric of files; ``bandwidth`` and ``links_up`` are for what they do not say."""
    from simshuffle.cli.new_questions import quantity_rule
    from simshuffle.extensions.interop.fabrics.imported import Missing
    from simshuffle.extensions.interop.fabrics.infiniband import read_names
    from simshuffle.extensions.interop.fabrics.reading import read_fabric
    from simshuffle.extensions.interop.fabrics.slurm import read_hosts
    from simshuffle.spec.units import Dimension, parse_quantity

    rate = None
    if bandwidth is not None:
        if rule := quantity_rule(bandwidth, Dimension.BANDWIDTH):
            remedy = "For example '25 GB/s'."
            refuse("--link-bandwidth", rule, repr(bandwidth), remedy, COMMAND_LINE)
        rate = parse_quantity(bandwidth, Dimension.BANDWIDTH)
    known = read_names(of.names) if of.names else {}
    hosts = read_hosts(of.slurm) if of.slurm else frozenset()
    assert of.network is not None  # noqa: S101 - see `_dumps`
    return read_fabric(of.network, Missing(rate, links_up, known, hosts))


def _first_run(machine: Path) -> list[str]:
    """The command of a first run on a machine's file, tried up to the check of its scenario. Raises
    an InputError if there is no run on it."""
    from simshuffle.job.scenario.scenario import load_scenario, machine_of

    cluster, example = machine_of(str(machine)), load_scenario(EXAMPLE)
    values: dict[str, object] = {
        "cluster": str(machine),
        "world_size": min(example.world_size, cluster.num_gpus),
    }
    own = cluster.host.accelerator
    if own not in example.workload.model.accelerators:
        values["cluster.host.accelerator"] = ACCELERATOR
    load_scenario(EXAMPLE, values).runs()
    if "cluster.host.accelerator" in values:
        say(f"{EXAMPLE} has no step times of {own}: those of {ACCELERATOR}.")
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ["simshuffle", "run", EXAMPLE, *words]


# ------------------------------------------------------------------------------ the machine's files


def machine_files(
    file: str,
    name: str,
    fabric: ImportedFabric,
    tables: ForwardingTableFile | None = None,
    *,
    gpus: int | None = None,
    accelerator: str | None = None,
) -> dict[str, str]:
    """The texts of a machine's files by their names: ``file``, its network, and its forwarding
    tables if there are any. A host has ``gpus``, by default as many as adapter ports, and
    ``accelerator`` is the key of their step times, by default `ACCELERATOR`. Raises an InputError
    if GPUs do not share the adapters of a host evenly."""
    from simshuffle.cli.new_machine import links_of, scalar
    from simshuffle.cli.new_questions import QUESTIONS
    from simshuffle.extensions.interop.fabrics.imported import CABLE_LATENCY, SWITCH_LATENCY
    from simshuffle.spec.units import Dimension, readable

    stem, hcas = Path(file).stem, fabric.hcas
    count = hcas if gpus is None else gpus
    if count % hcas:
        rule = f"must be a multiple of the {hcas} adapter ports of a host"
        refuse("--gpus", rule, str(count), f"For example {hcas}.", COMMAND_LINE)
    hosts = len(fabric.of_kind("host"))
    text = HEAD.format(
        name=scalar(name),
        file=Path(fabric.source).name,
        description=scalar(f"{hosts} hosts with {hcas} adapter ports each, imported"),
        fabric=stem + FABRIC,
        cable=readable(CABLE_LATENCY, Dimension.SECONDS),
        switch=readable(SWITCH_LATENCY, Dimension.SECONDS),
    )
    files = {stem + FABRIC: fabric.to_json()}
    if tables is not None:
        text += ROUTING.format(tables=stem + TABLES, dump=tables.source)
        files[stem + TABLES] = tables.to_json()
    elif fabric.ports:  # of InfiniBand
        text += DEFAULT_ROUTING
    kind = accelerator or ACCELERATOR
    values = {
        of.name: f"{of.default}  # estimate: {of.why}. Measure: {of.measure}" for of in QUESTIONS
    }
    values |= {"gpus": str(count), "hcas": str(hcas), "device": scalar(kind), **links_of(kind)}
    given = "given" if gpus is not None else "estimate: one for each adapter port"
    return {**files, file: text + HOSTS.format(**values, given=given)}
