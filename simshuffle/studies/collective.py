"""An allreduce that has a machine to itself, by the size of its buffer, as all_reduce_perf of
nccl-tests measures and prints it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field
from rich.table import Table

from simshuffle.errors import InputError, Problem, ScenarioError, SimshuffleWarning, refuse
from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network import Fluid, Network, Packet
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.plan.effort import MOST_PACKETS
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.checks import allreduce_problems, cluster_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.other_kinds import complete_allreduce, fill
from simshuffle.job.scenario.reading import resolve
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, single_run
from simshuffle.report.console import new_table
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.library import find_file, parse_kind, read_yaml, shipped_names, suggest_nearest
from simshuffle.spec.record import Spec
from simshuffle.spec.rng import stream
from simshuffle.spec.switching import PendingSwitches, list_notes
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.study.options import COMMAND_LINE, between_commas

VERB = "a collective"
ALLREDUCE = "workload.allreduce"
ELEMENT = 4
"""Bytes of an element, a float32."""
SIZES = tuple(8.0 * 2**k for k in range(28))
"""Bytes of the buffers if nobody says it: 8 B to 1 GiB (nccl-tests -b 8 -e 1G -f 2)."""


class _Reduced(Spec):
    allreduce: Allreduce


class BenchMachine(Spec):
    """What a bench is made of, where there is no scenario."""

    cluster: Cluster
    network: Network = Fluid()
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class Bench:
    """What is measured: an allreduce over ``world_size`` ranks of a machine. ``seed`` is that of
    the scenario, from which hosts and their order are drawn where they are random."""

    name: str
    cluster: Cluster
    allreduce: Allreduce
    network: Network
    seed: int
    world_size: int
    # what became of values that belong to other kinds than are set
    notes: tuple[str, ...] = ()

    @cached_property
    def resources(self) -> Resources:
        """The links that the ranks use."""
        return Resources(self.cluster, self.world_size, stream(self.seed, "placement"))

    @cached_property
    def _allreduces(self) -> Allreduces:
        return Allreduces(self.allreduce, self.resources, stream(self.seed, "host_order"))

    def seconds(self, nbytes: float) -> float:
        """Time (s) of an allreduce of ``nbytes`` bytes; 0 for one rank."""
        return self._allreduces.seconds(nbytes, self.network)


def bench_of(scenario: Scenario) -> Bench:
    """The allreduce of a scenario over all of its ranks."""
    return Bench(
        scenario.name,
        scenario.cluster,
        scenario.workload.allreduce_on(scenario.cluster),
        scenario.network,
        scenario.seed,
        scenario.world_size,
    )


def bench(
    name: str,
    values: Mapping[str, Any],
    algorithm: str = "",
    allreduce: Mapping[str, Any] | None = None,
    *,
    hosts: int | None = None,
    gpus_per_host: int | None = None,
) -> Bench:
    """The bench of a scenario or machine, a file or the name of a shipped one, with ``values`` set
    by dotted key. ``algorithm`` is the allreduce as ``kind:key=value,...``, of which `completed`
    gives what is left out, or '' for the scenario's; then ``allreduce`` sets keys of it. Hosts and
    GPUs are those of the scenario, or all, if None. Raises an InputError if there is no such file,
    or a value is not valid, or there are too few GPUs."""
    chosen_elsewhere = (ALLREDUCE,) if algorithm else ()
    ranks = ranks_of(name, values, hosts, gpus_per_host, chosen_elsewhere)
    of, cluster = ranks.of, ranks.cluster
    if isinstance(of, BenchMachine):
        plain, label = parse_kind("nccl"), of.cluster.name
    else:
        plain = of.workload.allreduce.model_dump(mode="json", exclude_none=True)
        label = of.name
    if algorithm:
        plain = _named(algorithm)
    chosen, found = _allreduce(complete_allreduce(plain, cluster), allreduce or {}, cluster)
    chosen = chosen.over_hcas(cluster.hcas_per_domain)
    notes = (*ranks.notes, *found)
    made = Bench(label, cluster, chosen, of.network, of.seed, ranks.world_size, notes)
    if problems := allreduce_problems(cluster, made.allreduce):
        raise ScenarioError(problems, name)
    return made


class Participants(NamedTuple):
    """Who takes part in a collective."""

    of: BenchMachine | Scenario
    cluster: Cluster  # with so many GPUs on every host as take part
    world_size: int
    notes: tuple[str, ...]  # what became of values that belong to other kinds than are set


def ranks_of(
    name: str,
    values: Mapping[str, Any],
    hosts: int | None,
    gpus_per_host: int | None,
    irrelevant: tuple[str, ...] = (),
) -> Participants:
    """The scenario or machine of that name with ``values`` set; raises as `bench`. Keys that are
    ``irrelevant`` may be swept."""
    path, is_machine = _found(name)
    of: BenchMachine | Scenario
    if is_machine:
        of, notes = _machine(path, values)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimshuffleWarning)  # which are among the notes
            of = load_scenario(path, values)
            sizes_given = () if hosts is None else (WORLD_SIZE,)
            of = single_run(of, VERB, (EXCHANGE, *sizes_given, *irrelevant))
        notes = [*map(str, of.notes)]
    cluster = of.cluster
    world_size = cluster.num_gpus if isinstance(of, BenchMachine) else of.world_size
    if hosts is not None or gpus_per_host is not None:
        hosts = cluster.hosts_for(world_size) if hosts is None else hosts
        cluster = cluster if gpus_per_host is None else _with_gpus(cluster, gpus_per_host)
        world_size = hosts * cluster.host.gpus
    if world_size < 2:
        rule = "a collective needs 2 ranks or more"
        raise ScenarioError(Problem("--hosts", rule, f"{world_size} rank", "Use more hosts."), name)
    if problems := cluster_problems(cluster, world_size):
        raise ScenarioError(problems, name)
    return Participants(of, cluster, world_size, tuple(notes))


def sizes(text: str, element: int = ELEMENT) -> tuple[float, ...]:
    """Bytes of buffers, from a list such as '8 B,1 MiB'. Raises an InputError if one of them is no
    size, or holds no whole number of elements of ``element`` bytes."""
    found, problems = [], []
    for part in between_commas([text]) or [""]:
        try:
            nbytes = parse_quantity(part, Dimension.NBYTES)
        except UnitError as error:
            problems.append(Problem("--sizes", f"a size {error}", repr(part)))
            continue
        if nbytes <= 0 or nbytes % element:
            what = f"floats of {ELEMENT} B" if element == ELEMENT else "bytes"
            rule = f"a buffer holds one or more {what}"
            problems.append(Problem("--sizes", rule, repr(part), "Write for example 8 B."))
        found.append(nbytes)
    if problems:
        raise InputError(problems, COMMAND_LINE)
    return tuple(found)


def _found(name: str) -> tuple[Path, bool]:
    """The file of a scenario or machine, and whether it is a machine."""
    try:
        path = find_file(name, "scenarios")
    except ScenarioError as error:
        if name in shipped_names("topologies"):
            return find_file(name, "topologies"), True
        known = [n for folder in ("scenarios", "topologies") for n in shipped_names(folder)]
        remedy = error.problems[0].remedy if Path(name).suffix else suggest_nearest(name, known)
        problem = Problem("", "no such scenario or machine, file or name", repr(name), remedy)
        raise ScenarioError(problem) from None
    first = next(iter(read_yaml(path)), None)
    return path, isinstance(first, dict) and "topology" in first


def _machine(path: Path, values: Mapping[str, Any]) -> tuple[BenchMachine, list[str]]:
    """The machine with ``values``, and what became of others if kinds are among them."""
    resolved = resolve({"cluster": str(path.resolve())}, values, path.parent, BenchMachine)
    resolved.document.pop("sweep", None)  # which `resolve` adds
    machine, found = validate_record(resolved.document, BenchMachine)
    problems = [*resolved.problems, *drop_reported_problems(found, resolved.problems)]
    if problems or machine is None:
        raise ScenarioError(problems, str(path))
    return machine, [*map(str, list_notes(resolved.switches))]


def _with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster with so many GPUs in use on every host."""
    if gpus > cluster.host.gpus:
        rule = f"must not exceed the {cluster.host.gpus} GPUs of a host of {cluster.name}"
        refuse("--gpus-per-host", rule, str(gpus), "Use fewer.", COMMAND_LINE)
    plain = cluster.model_dump(mode="json", exclude_none=True)
    plain["host"]["gpus"] = gpus
    changed, found = validate_record(plain, Cluster)
    if changed is None or found:
        remedy = "Add for example --set cluster.host.hcas=1 --set cluster.host.pcie_slots=1."
        refuse("--gpus-per-host", found[0].rule, str(gpus), remedy, COMMAND_LINE)
    return changed


def _named(algorithm: str) -> dict[str, Any]:
    try:
        return parse_kind(algorithm)
    except InputError as error:
        problems = [problem.below("--algorithm") for problem in error.problems]
        raise InputError(problems, COMMAND_LINE) from None


def _allreduce(
    plain: dict[str, Any], values: Mapping[str, Any], cluster: Cluster
) -> tuple[Allreduce, list[str]]:
    """The allreduce with ``values``, and what became of others if one is its kind."""
    problems: list[Problem] = []
    raw, left = {"allreduce": plain}, PendingSwitches(_Reduced)
    own = {f"allreduce.{key}": value for key, value in values.items()}
    for key, value in own.items():
        left.set_key(raw, key, value, problems)
    switches = left.settle(raw, own)
    for switch in switches:
        if switch.key == "allreduce":
            fill(raw["allreduce"], cluster, switch)
    made, found = validate_record(raw, _Reduced)
    problems += drop_reported_problems(found, problems)
    if problems or made is None:
        raise InputError([problem.below("workload") for problem in problems], COMMAND_LINE)
    return made.allreduce, [f"workload.{note}" for note in list_notes(switches)]


HEADINGS = ["size (B)", "count", "type", "redop", "time (us)", "algbw (GB/s)", "busbw (GB/s)"]
WIDTHS = (11, 14, 10, 8, 9, 8, 8)
"""Characters of the columns."""


@dataclass(frozen=True)
class Measurement:
    """The rows of a bench, by size, and what is to be known of them."""

    bench: Bench
    # bytes of the buffer, seconds, bytes of it a second, and 2 (M-1)/M times that: the bandwidth of
    # the bus
    rows: Sequence[dict[str, float]]

    @property
    def notes(self) -> list[str]:
        """What became of values of other kinds, and which sizes a measured curve does not
        cover."""
        bench, out = self.bench, [*self.bench.notes]
        unused = "inter_" if bench.resources.num_domains == 1 else "intra_"
        for key, curve in bench.allreduce:
            if not isinstance(curve, Curve) or key.startswith(unused):
                continue
            if outside := [row["nbytes"] for row in self.rows if not curve.covers(row["nbytes"])]:
                span = f"{_bytes(curve.x[0])} to {_bytes(curve.x[-1])}"
                places = ", ".join(map(_bytes, outside))
                out.append(
                    f"workload.allreduce.{key} was measured from {span}; of {places} it is taken"
                    " to be that of the nearest."
                )
        return out

    def lines(self) -> Iterator[str]:
        """The table as all_reduce_perf prints it."""
        bench = self.bench
        yield f"# simshuffle collective: {bench.allreduce.kind} on {bench.name}, simulated"
        yield "# Collective test starting: all_reduce_perf"
        yield "#\n# Using devices"
        resources, device = bench.resources, bench.cluster.host.accelerator
        for rank, (host, gpu) in enumerate(zip(resources.host_of, resources.gpu_of, strict=True)):
            yield f"#  Rank {rank:>2} on {resources.hosts[host]:>10} device {gpu:>2} {device}"
        yield "#"
        names = ("size", "count", "type", "redop", "time", "algbw", "busbw")
        units = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)")
        for mark, cells in (("#", names), ("#", units), *((" ", _cells(row)) for row in self.rows)):
            yield mark + "".join(f"{c:>{w}}" for c, w in zip(cells, WIDTHS, strict=True))
        mean = sum(row["bus_bandwidth"] for row in self.rows) / len(self.rows)
        yield f"# Avg bus bandwidth    : {mean / 1e9:g}"

    def table(self) -> Table:
        """The same as a table of the terminal, to be exported."""
        bench = self.bench
        title = f"{bench.allreduce.kind} on {bench.name}, {bench.world_size} ranks"
        title += f" on {bench.resources.num_hosts} hosts"
        return new_table(title, numbers=HEADINGS, rows=map(_cells, self.rows))

    def as_json(self) -> dict[str, Any]:
        """Plain values, in SI units."""
        bench = self.bench
        return {
            "name": bench.name,
            "ranks": bench.world_size,
            "hosts": bench.resources.num_hosts,
            "allreduce": bench.allreduce.model_dump(mode="json", exclude_none=True),
            "rows": self.rows,
            "notes": self.notes,
        }


def measure(
    bench: Bench, sizes: Sequence[float], progress: Callable[[float], None] | None = None
) -> Measurement:
    """Each allreduce of ``sizes`` bytes alone; ``progress`` is told the share of them done. Raises
    an InputError if the network is simulated packet by packet, and there are too many of them."""
    if isinstance(bench.network, Packet):
        domain_of, mtu = bench.resources.domain_of, bench.network.mtu
        flows = (bench.allreduce.flows(domain_of, nbytes) for nbytes in sizes)
        total = sum(each.packets(domain_of, mtu) for each in flows if each is not None)
        if total > MOST_PACKETS:
            rule = f"all sizes together must have at most {MOST_PACKETS:.0e} packets"
            remedy = "Leave out the largest, or use network.kind: fluid."
            refuse("--sizes", rule, f"{total:.1e}", remedy, COMMAND_LINE)
    rows = []
    for done, nbytes in enumerate(sizes, 1):
        seconds = bench.seconds(nbytes)
        rate = nbytes / seconds if seconds else 0.0
        bus = 2 * (bench.world_size - 1) / bench.world_size * rate
        of = {"nbytes": nbytes, "seconds": seconds}
        rows.append({**of, "algorithm_bandwidth": rate, "bus_bandwidth": bus})
        if progress is not None:
            progress(done / len(sizes))
    return Measurement(bench, rows)


def _cells(row: Mapping[str, float]) -> tuple[str, ...]:
    time = row["seconds"] * 1e6
    digits = 0 if time >= 1e4 else 1 if time >= 100 else 2  # as nccl-tests print it
    return (
        f"{row['nbytes']:.0f}",
        f"{row['nbytes'] / ELEMENT:.0f}",
        "float",
        "sum",
        f"{time:.{digits}f}",
        f"{row['algorithm_bandwidth'] / 1e9:.2f}",
        f"{row['bus_bandwidth'] / 1e9:.2f}",
    )


def _bytes(nbytes: float) -> str:
    return readable(nbytes, Dimension.NBYTES)
