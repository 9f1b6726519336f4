"""The verb ``machine import``: write the machine, network or host that files of other
tools show.

Values that no fabric shows are estimates.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    NAME_RULE,
    Force,
    check_paths,
    is_name,
    say,
    write_files,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.extensions.interop.command import print_fabric
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from simshuffle.extensions.interop.fabrics.host_inside import HostInventory
    from simshuffle.extensions.interop.fabrics.imported import ImportedFabric
    from simshuffle.extensions.interop.fabrics.reading import DumpFiles
    from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile

app = typer.Typer()

ACCELERATOR = "a100-sxm4-80gb-amp"
"""Has step times for most models of the catalog."""
EXAMPLE = "quickstart"
"""The scenario of a first run on a machine."""

MACHINE_HEAD = """\
# {name}, written by `simshuffle machine import`.
# Read from {file}: hosts, adapters, switches, cables and their bandwidths.
# The file does not give the values that are marked as estimates: change them as you know better.
name: {name}
description: {description}
topology:
  kind: custom
  path: {fabric}  # estimates of latency: {cable} for a cable, {switch} for a switch that names none
"""
TABLES_ROUTING = """\
routing:
  kind: forwarding_tables
  path: {tables}  # read from {dump}
"""
DEFAULT_ROUTING = """\
routing:
  kind: min_hop  # estimate: the default of OpenSM; --routes takes its tables
"""
HOST_SECTIONS = """\
host:
  gpus: {gpus}  # {gpus_note}; nvidia-smi -L
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
"""The sections of a machine's file on hosts and storage, which no fabric shows."""
FABRIC_SUFFIX = "-fabric.json"
"""End of the name of a network's file."""
TABLES_SUFFIX = "-tables.json"
"""End of the name of a file of forwarding tables."""


File = Annotated[
    Path,
    Argument(
        "FILE",
        "Output of ibnetdiscover, topology.conf or topology.yaml of Slurm, InfraGraph,"
        " networkx node-link JSON, or GraphML; or a folder with such a file and those of"
        " --routes, --names and --slurm. For a host: topology XML of NCCL, or the output of"
        " nvidia-smi topo -m.",
    ),
]
Out = Annotated[
    Path,
    Option(
        "FILE",
        "A machine (.yaml), or only its network (.json); for a host, a fragment (.yaml) that a"
        " scenario includes.",
    ),
]
Routes = Annotated[
    Path | None,
    Option(
        "FILE",
        "Forwarding tables: opensm-lfts.dump, or output of dump_lfts or ibroute.",
    ),
]
Names = Annotated[
    Path | None,
    Option(
        "FILE", 'Node-name map of opensm or infiniband-diags: 0xGUID "name" a line.'
    ),
]
Slurm = Annotated[
    Path | None,
    Option(
        "FILE",
        "topology.conf or topology.yaml of Slurm; its nodes are the hosts of the machine.",
    ),
]
LinkBandwidth = Annotated[
    str | None,
    Option("RATE", "Bandwidth of links that have none in the file, such as '25 GB/s'."),
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
    *,
    out: Out,
    routes: Routes = None,
    names: Names = None,
    slurm: Slurm = None,
    link_bandwidth: LinkBandwidth = None,
    links_up: Annotated[
        int | None,
        Option(
            "N",
            "Slurm: links from a switch to the one above. Default: its hosts.",
            low=1,
        ),
    ] = None,
    name: Annotated[
        str | None, Option("NAME", "Name of the machine. Default: the name of --out.")
    ] = None,
    gpus: Annotated[
        int | None,
        Option("N", "GPUs of a host. Default: one for each adapter port.", low=1),
    ] = None,
    accelerator: Annotated[
        str | None, Option("NAME", "The key of step times in a scenario.")
    ] = None,
    mended: Annotated[
        bool,
        Option(
            "",
            "Give slow cables, and cables of older adapters, the bandwidth of their neighbours.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Write the machine, the network or the inside of a host that FILE shows: counts,
    what is left out, slow cables.
    """
    from simshuffle.extensions.interop.fabrics.lfts import check_routes, read_tables
    from simshuffle.extensions.interop.fabrics.reading import DumpFiles, read_host

    if not file.is_dir() and (host := read_host(file)) is not None:
        network_options = (
            routes,
            names,
            slurm,
            link_bandwidth,
            links_up,
            name,
            gpus,
            accelerator,
        )
        has_options = mended or any(option is not None for option in network_options)
        return _write_host(
            host, file, out, force=force, has_network_options=has_options
        )
    is_alone = out.suffix == ".json"
    dumps = _choose_dumps(
        file, DumpFiles(None, routes, names, slurm), is_alone=is_alone
    )
    if out.suffix not in {".yaml", ".yml", ".json"}:
        remedy = "For example --out mine.yaml."
        refuse(
            "--out", "must end in .yaml or .json", repr(str(out)), remedy, COMMAND_LINE
        )
    if is_alone and dumps.routes is not None:
        rule = "needs --out to be a machine (.yaml)"
        remedy = "Write --out with .yaml."
        refuse("--routes", rule, repr(str(out)), remedy, COMMAND_LINE)
    suffixes = [out.suffix]
    if not is_alone:
        suffixes += [FABRIC_SUFFIX, TABLES_SUFFIX] if dumps.routes else [FABRIC_SUFFIX]
    check_paths(out.with_name(out.stem), replace=force, suffixes=suffixes)
    if name is not None and not is_name(name):
        refuse("--name", NAME_RULE, repr(name), "For example mine.", COMMAND_LINE)
    fabric = _read_fabric(dumps, link_bandwidth, links_up)
    if mended:
        fabric = fabric.with_usual_bandwidths()
    tables = None
    if dumps.routes is not None:
        tables = read_tables(dumps.routes, fabric)
        check_routes(dumps.routes, fabric, tables)
    texts = {out.name: fabric.to_json()}
    if not is_alone:
        texts = format_machine_files(
            out.name,
            name or out.stem,
            fabric,
            tables,
            gpus=gpus,
            accelerator=accelerator,
        )
    written = write_files(out.parent, texts)
    _print_written(fabric, dumps, written)
    show_words = ["simshuffle", "machine", "show", str(out)]
    command_words = show_words if is_alone else _first_run_command(out)
    typer.echo(f"Next: {shlex.join(command_words)}")


def _print_written(
    fabric: ImportedFabric, dumps: DumpFiles, written: Iterable[Path]
) -> None:
    """Print what a network has, and the files to which it was written."""
    print_fabric(fabric)
    if dumps.routes is not None:
        say(
            f"  {'tables':10} {dumps.routes.name}: every host port is reached without loops"
        )
    for path in written:
        typer.echo(f"Written: {path}")


def _write_host(
    host: HostInventory,
    file: Path,
    out: Path,
    *,
    force: bool,
    has_network_options: bool,
) -> None:
    """Write the fragment of the host that ``file`` shows, and print what it has.

    Args:
        host: the inside of the host.
        file: the file that was read.
        out: the file to write.
        force: replace ``out`` if it is there.
        has_network_options: whether an option was given that applies to networks only.

    Raises:
        InputError: such an option was given, or ``out`` cannot be written.
    """
    if has_network_options:
        rule = "shows the inside of a host, to which only --out and --force apply"
        refuse("FILE", rule, str(file), "Leave the other options out.", COMMAND_LINE)
    if out.suffix not in {".yaml", ".yml"}:
        remedy = "For example --out host.yaml."
        refuse("--out", "must end in .yaml", repr(str(out)), remedy, COMMAND_LINE)
    check_paths(out, replace=force)
    (path,) = write_files(out.parent, {out.name: host.to_yaml()})
    say(host.source)
    for line in host.summary_lines():
        say(f"  {line}")
    typer.echo(f"Written: {path}")
    typer.echo(
        f"Next: simshuffle check SCENARIO --set {shlex.quote(f'include={path}')}"
    )


def _choose_dumps(file: Path, chosen: DumpFiles, *, is_alone: bool) -> DumpFiles:
    """Return the files to read: those that options name, and for the others those in a
    folder of dumps.

    Files that the folder holds, read or not, are printed. Tables in the folder are left
    out without a machine.

    Args:
        file: the file of a network, or a folder of dumps.
        chosen: the files that options name.
        is_alone: whether the network is written without its machine, and so without
            tables.
    """
    from simshuffle.extensions.interop.fabrics.reading import find_dumps

    if not file.is_dir():
        return replace(chosen, network=file)
    folder_dumps = find_dumps(file)
    for kind, path in folder_dumps.files.items():
        say(f"  {kind:10} {path}")
    if folder_dumps.unread:
        say(f"  {'not read':10} {', '.join(folder_dumps.unread)}")
    routes = chosen.routes or (None if is_alone else folder_dumps.routes)
    return replace(
        folder_dumps,
        routes=routes,
        names=chosen.names or folder_dumps.names,
        slurm=chosen.slurm or folder_dumps.slurm,
    )


def _read_fabric(
    dumps: DumpFiles, bandwidth: str | None, links_up: int | None
) -> ImportedFabric:
    """Read the fabric of the dumps, with the options for what they do not say.

    Args:
        dumps: the files to read.
        bandwidth: what links carry whose rate no file says, such as '25 GB/s'.
        links_up: links from each switch up, for Slurm.

    Raises:
        InputError: the bandwidth is none, or a reader refuses its file.
    """
    from simshuffle.cli.new_questions import quantity_rule
    from simshuffle.extensions.interop.fabrics.imported import FabricSupplement
    from simshuffle.extensions.interop.fabrics.infiniband import read_names
    from simshuffle.extensions.interop.fabrics.reading import read_fabric
    from simshuffle.extensions.interop.fabrics.slurm import read_hosts
    from simshuffle.spec.units import Dimension, parse_quantity

    bytes_per_s = None
    if bandwidth is not None:
        if rule := quantity_rule(bandwidth, Dimension.BANDWIDTH):
            remedy = "For example '25 GB/s'."
            refuse("--link-bandwidth", rule, repr(bandwidth), remedy, COMMAND_LINE)
        bytes_per_s = parse_quantity(bandwidth, Dimension.BANDWIDTH)
    node_names = read_names(dumps.names) if dumps.names else {}
    hosts = read_hosts(dumps.slurm) if dumps.slurm else frozenset()
    assert dumps.network is not None  # noqa: S101 - see `_choose_dumps`
    supplement = FabricSupplement(bytes_per_s, links_up, node_names, hosts)
    return read_fabric(dumps.network, supplement)


def _first_run_command(machine: Path) -> list[str]:
    """Return the words of the command for a first run on a machine's file, once its
    scenario is checked.

    The run has the ranks of `EXAMPLE`, at most the GPUs of the machine. Prints a line
    if step times of `ACCELERATOR` stand in for those of the machine's accelerator.

    Raises:
        InputError: the example scenario cannot run on the machine.
    """
    from simshuffle.job.scenario.scenario import load_scenario, machine_of

    machine_cluster = machine_of(str(machine))
    example = load_scenario(EXAMPLE)
    values: dict[str, object] = {
        "cluster": str(machine),
        "world_size": min(example.world_size, machine_cluster.num_gpus),
    }
    accelerator = machine_cluster.host.accelerator
    if accelerator not in example.workload.model.accelerators:
        values["cluster.host.accelerator"] = ACCELERATOR
    load_scenario(EXAMPLE, values).runs()
    if "cluster.host.accelerator" in values:
        say(
            f"{EXAMPLE} has no step times of {accelerator}; the run takes those of {ACCELERATOR}."
        )
    options = [
        option
        for key, value in values.items()
        for option in ("--set", f"{key}={value}")
    ]
    return ["simshuffle", "run", EXAMPLE, *options]


# ------------------------------------------------------------------------------ the machine's files


def format_machine_files(
    file: str,
    name: str,
    fabric: ImportedFabric,
    tables: ForwardingTableFile | None = None,
    *,
    gpus: int | None = None,
    accelerator: str | None = None,
) -> dict[str, str]:
    """Return the texts of a machine's files by their names: its network, its tables if
    there are any, and the machine last.

    Values that ``fabric`` does not show are estimates, and comments in the file say
    so. Adapter ports of a host are those of the host with the fewest.

    Args:
        file: name of the machine's file.
        name: name of the machine.
        fabric: its network.
        tables: its forwarding tables. With None an InfiniBand network is routed by
            ``min_hop``, and another one has no routing section.
        gpus: GPUs of a host; by default as many as adapter ports.
        accelerator: key of the step times; by default `ACCELERATOR`.

    Raises:
        InputError: the GPUs do not share the adapters of a host evenly.
    """
    from simshuffle.cli.new_machine import links_of_accelerator, yaml_scalar
    from simshuffle.cli.new_questions import QUESTIONS
    from simshuffle.extensions.interop.fabrics.imported import (
        CABLE_LATENCY,
        SWITCH_LATENCY,
    )
    from simshuffle.spec.units import Dimension, readable

    stem = Path(file).stem
    hcas = fabric.hcas
    num_gpus = hcas if gpus is None else gpus
    if num_gpus % hcas:
        rule = f"must be a multiple of the {hcas} adapter ports of a host"
        refuse("--gpus", rule, str(num_gpus), f"For example {hcas}.", COMMAND_LINE)
    num_hosts = len(fabric.nodes_of_kind("host"))
    machine_text = MACHINE_HEAD.format(
        name=yaml_scalar(name),
        file=Path(fabric.source).name,
        description=yaml_scalar(
            f"{num_hosts} hosts with {hcas} adapter ports each, imported"
        ),
        fabric=stem + FABRIC_SUFFIX,
        cable=readable(CABLE_LATENCY, Dimension.SECONDS),
        switch=readable(SWITCH_LATENCY, Dimension.SECONDS),
    )
    files = {stem + FABRIC_SUFFIX: fabric.to_json()}
    if tables is not None:
        machine_text += TABLES_ROUTING.format(
            tables=stem + TABLES_SUFFIX, dump=tables.source
        )
        files[stem + TABLES_SUFFIX] = tables.to_json()
    elif fabric.ports:  # of InfiniBand
        machine_text += DEFAULT_ROUTING
    accelerator_key = accelerator or ACCELERATOR
    values = {
        question.name: f"{question.default}  # estimate: {question.default_source}."
        f" Measure: {question.measure}"
        for question in QUESTIONS
    }
    values |= {
        "gpus": str(num_gpus),
        "hcas": str(hcas),
        "device": yaml_scalar(accelerator_key),
        **links_of_accelerator(accelerator_key),
    }
    gpus_note = "given" if gpus is not None else "estimate: one for each adapter port"
    return {
        **files,
        file: machine_text + HOST_SECTIONS.format(**values, gpus_note=gpus_note),
    }
