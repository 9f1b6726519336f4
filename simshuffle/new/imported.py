"""A machine's file from a fabric that was imported: the network as it is, the rest estimates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from simshuffle.errors import InputError, Problem
from simshuffle.fabrics.imported import CABLE_LATENCY, SWITCH_LATENCY, ImportedFabric
from simshuffle.new.machine import links_of, scalar
from simshuffle.new.questions import BY_NAME
from simshuffle.scenario.scenario import load_scenario, machine_of
from simshuffle.spec.units import Dimension, readable

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


def fabric_file(stem: str) -> str:
    """The name of the file of the network beside the machine's."""
    return f"{stem}-fabric.json"


def tables_file(stem: str) -> str:
    """The name of the file of the forwarding tables beside the machine's."""
    return f"{stem}-tables.json"


def machine_files(
    file: str,
    name: str,
    fabric: ImportedFabric,
    tables: tuple[str, str] = ("", ""),
    *,
    gpus: int | None = None,
    accelerator: str | None = None,
) -> dict[str, str]:
    """The texts of a machine's files by their names: ``file``, its network, and its forwarding
    tables if there are any.

    Args:
        file: the name of the machine's file.
        name: of the machine.
        fabric: its network.
        tables: the text of its forwarding tables, and what they were read from; empty if there are
            none.
        gpus: of a host; as many as adapter ports if None.
        accelerator: the key of step times; `ACCELERATOR` if None.

    Raises:
        InputError: GPUs do not share the adapters of a host evenly.
    """
    stem, hcas = Path(file).stem, fabric.hcas
    count = hcas if gpus is None else gpus
    if count < 1 or count % hcas:
        rule = f"must be a multiple of the {hcas} adapter ports of a host"
        raise InputError(
            Problem("--gpus", rule, str(count), f"For example {hcas}."), "command line"
        )
    hosts = len(fabric.of_kind("host"))
    head = HEAD.format(
        name=scalar(name),
        file=Path(fabric.source).name,
        description=scalar(f"{hosts} hosts with {hcas} adapter ports each, imported"),
        fabric=fabric_file(stem),
        cable=readable(CABLE_LATENCY, Dimension.SECONDS),
        switch=readable(SWITCH_LATENCY, Dimension.SECONDS),
    )
    files = {fabric_file(stem): fabric.to_json()}
    text, dump = tables
    if text:
        head += ROUTING.format(tables=tables_file(stem), dump=dump)
        files[tables_file(stem)] = text
    elif fabric.ports:  # of InfiniBand
        head += DEFAULT_ROUTING
    given = "given" if gpus is not None else "estimate: one for each adapter port"
    return {**files, file: head + _host(hcas, count, given, accelerator or ACCELERATOR)}


def first_run(machine: Path) -> tuple[str, str]:
    """The command of a first run on a machine's file, which is tried up to the check of its
    scenario; and what to know of it, '' if nothing.

    Raises:
        InputError: there is no run on it.
    """
    cluster = machine_of(str(machine))
    values: dict[str, object] = {
        "cluster": str(machine),
        "world_size": min(load_scenario(EXAMPLE).world_size, cluster.num_gpus),
    }
    told = ""
    if cluster.host.accelerator not in load_scenario(EXAMPLE).workload.model.accelerators:
        values["cluster.host.accelerator"] = ACCELERATOR
        told = f"{EXAMPLE} has no step times of {cluster.host.accelerator}: those of {ACCELERATOR}."
    load_scenario(EXAMPLE, values).runs()
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return shlex.join(["simshuffle", "run", EXAMPLE, *words]), told


def _host(hcas: int, gpus: int, given: str, accelerator: str) -> str:
    """What stands in and around the hosts, which no fabric shows."""
    links = links_of(accelerator)
    sections: Mapping[str, Mapping[str, tuple[str, str]]] = {
        "host": {
            "gpus": (str(gpus), f"{given}; nvidia-smi -L"),
            "accelerator": (scalar(accelerator), "estimate; the key of step times in a scenario"),
            "cores": _asked("cores"),
            "hcas": (str(hcas), "read"),
            "pcie_slots": (str(hcas), "estimate: one for each adapter port"),
            "pcie_bandwidth": (links["pcie"], f"estimate: {links['pcie_why']}"),
            "nvlink_bandwidth": (links["nvlink"], f"estimate: {links['nvlink_why']}"),
        },
        "ssd": {
            "capacity": _asked("ssd"),
            "read_bandwidth": _asked("ssd_read"),
            "write_bandwidth": _asked("ssd_write"),
        },
        "memory": {
            "capacity": _asked("memory"),
            "bandwidth": ("200 GB/s", "estimate: 8 x DDR4-3200 have 204.8 GB/s"),
        },
        "parallel_file_system": {
            "read_bandwidth": _asked("pfs_bandwidth"),
            "open_rate": _asked("pfs_opens"),
        },
    }
    return "".join(
        f"{section}:\n"
        + "".join(f"  {key}: {value}  # {why}\n" for key, (value, why) in of.items())
        for section, of in sections.items()
    )


def _asked(name: str) -> tuple[str, str]:
    """The default of a question of `simshuffle new`, and where it is from."""
    question = BY_NAME[name]
    return question.default, f"estimate: {question.why}. Measure: {question.measure}"
