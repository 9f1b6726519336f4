"""Ranks that take part in a collective, on a scenario or on a machine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from simshuffle.errors import Problem, ScenarioError, SimshuffleWarning, refuse
from simshuffle.fabric.network import Fluid, Network
from simshuffle.job.scenario.checks import cluster_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.reading import resolve
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, single_run
from simshuffle.spec.library import find_file, read_yaml, shipped_names, suggest_nearest
from simshuffle.spec.record import Spec
from simshuffle.spec.switching import list_notes
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.study.options import COMMAND_LINE

VERB = "a collective"


class BenchMachine(Spec):
    """The machine of a bench that is not read from a scenario."""

    cluster: Cluster
    network: Network = Fluid()
    seed: int = Field(default=0, ge=0)


class Participants(NamedTuple):
    """The machine or scenario, and its ranks, that take part in a collective."""

    origin: BenchMachine | Scenario  # machine or scenario that was read
    cluster: Cluster  # its hosts have only the GPUs that take part
    world_size: int  # number of ranks
    notes: tuple[str, ...]  # notes on values that belong to other kinds than are set


def read_participants(
    name: str,
    values: Mapping[str, Any],
    hosts: int | None,
    gpus_per_host: int | None,
    irrelevant: tuple[str, ...] = (),
) -> Participants:
    """Read the machine or scenario of a name with ``values`` set, and its ranks.

    Warnings of the scenario become notes alone. Ranks are all GPUs of a machine, or
    those of the scenario. If hosts or GPUs are given, ranks fill all GPUs that take
    part.

    Args:
        name: a file, or the name of a shipped scenario or machine.
        values: values to set, by dotted key.
        hosts: hosts that take part; None for those of the scenario, or all.
        gpus_per_host: GPUs of each host that take part; None for all GPUs of the hosts.
        irrelevant: keys that may be swept, as they do not matter. The exchange always
            may, and the world size if ``hosts`` is given.

    Raises:
        InputError: there is no such scenario or machine, it is not valid, other keys
            are swept, a host has fewer GPUs, or fewer than two ranks take part or more
            than the machine has.
    """
    path, is_machine = _find_file(name)
    origin: BenchMachine | Scenario
    if is_machine:
        origin, notes = _read_machine(path, values)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", SimshuffleWarning
            )  # which are among the notes
            origin = load_scenario(path, values)
            size_keys = () if hosts is None else (WORLD_SIZE,)
            origin = single_run(origin, VERB, (EXCHANGE, *size_keys, *irrelevant))
        notes = [*map(str, origin.notes)]
    cluster = origin.cluster
    world_size = (
        cluster.num_gpus if isinstance(origin, BenchMachine) else origin.world_size
    )
    if hosts is not None or gpus_per_host is not None:
        hosts = cluster.hosts_for(world_size) if hosts is None else hosts
        cluster = (
            cluster if gpus_per_host is None else _limit_gpus(cluster, gpus_per_host)
        )
        world_size = hosts * cluster.host.gpus
    if world_size < 2:
        rule = "a collective needs 2 ranks or more"
        raise ScenarioError(
            Problem("--hosts", rule, f"{world_size} rank", "Use more hosts."), name
        )
    if problems := cluster_problems(cluster, world_size):
        raise ScenarioError(problems, name)
    return Participants(origin, cluster, world_size, tuple(notes))


def _find_file(name: str) -> tuple[Path, bool]:
    """Return the file of a scenario or machine, and true if it is a machine.

    A scenario comes before a machine of equal name; a file is a machine if its first
    document has a topology.

    Raises:
        ScenarioError: there is neither.
    """
    try:
        path = find_file(name, "scenarios")
    except ScenarioError as error:
        if name in shipped_names("topologies"):
            return find_file(name, "topologies"), True
        names = [
            shipped_name
            for folder in ("scenarios", "topologies")
            for shipped_name in shipped_names(folder)
        ]
        remedy = (
            error.problems[0].remedy
            if Path(name).suffix
            else suggest_nearest(name, names)
        )
        problem = Problem(
            "", "no such scenario or machine, file or name", repr(name), remedy
        )
        raise ScenarioError(problem) from None
    first_document = next(iter(read_yaml(path)), None)
    return path, isinstance(first_document, dict) and "topology" in first_document


def _read_machine(
    path: Path, values: Mapping[str, Any]
) -> tuple[BenchMachine, list[str]]:
    """Read the machine with ``values``; also return notes on the values of other kinds.

    A sweep is dropped.

    Raises:
        ScenarioError: it is not valid.
    """
    resolved = resolve(
        {"cluster": str(path.resolve())}, values, path.parent, BenchMachine
    )
    resolved.document.pop("sweep", None)  # which `resolve` adds
    machine, record_problems = validate_record(resolved.document, BenchMachine)
    problems = [
        *resolved.problems,
        *drop_reported_problems(record_problems, resolved.problems),
    ]
    if problems or machine is None:
        raise ScenarioError(problems, str(path))
    return machine, [*map(str, list_notes(resolved.switches))]


def _limit_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """Return the cluster with ``gpus`` GPUs on every host; nothing else changes.

    Raises:
        InputError: a host has fewer, or its HCAs and PCIe slots do not fit so many
            GPUs.
    """
    if gpus > cluster.host.gpus:
        rule = (
            f"must not exceed the {cluster.host.gpus} GPUs of a host of {cluster.name}"
        )
        refuse("--gpus-per-host", rule, str(gpus), "Use fewer.", COMMAND_LINE)
    cluster_values = cluster.model_dump(mode="json", exclude_none=True)
    cluster_values["host"]["gpus"] = gpus
    changed, problems = validate_record(cluster_values, Cluster)
    if changed is None or problems:
        remedy = (
            "Add for example --set cluster.host.hcas=1 --set cluster.host.pcie_slots=1."
        )
        refuse("--gpus-per-host", problems[0].rule, str(gpus), remedy, COMMAND_LINE)
    return changed
