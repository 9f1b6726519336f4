"""Timing of an allreduce that has a machine to itself, by the size of its buffer, as
all_reduce_perf of nccl-tests measures and prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.table import Table

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network import Network, Packet
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.plan.effort import MOST_PACKETS
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.checks import allreduce_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.other_kinds import complete_allreduce, fill
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.console import new_table
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import Spec
from simshuffle.spec.rng import stream
from simshuffle.spec.switching import PendingSwitches, list_notes
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.studies.participants import BenchMachine, read_participants
from simshuffle.study.options import COMMAND_LINE, between_commas

ALLREDUCE = "workload.allreduce"
ELEMENT_NBYTES = 4
"""Bytes of an element, a float32."""
SIZES = tuple(8.0 * 2**k for k in range(28))
"""Default bytes of the buffers: 8 B to 1 GiB (nccl-tests -b 8 -e 1G -f 2)."""


class AllreduceDocument(Spec):
    """Document of an allreduce alone, for values that are set by key."""

    allreduce: Allreduce


@dataclass(frozen=True)
class Bench:
    """An allreduce over the ``world_size`` ranks of a machine, which can be timed.

    ``seed`` is that of the scenario: hosts and their order are drawn from it where they
    are random.
    """

    name: str  # name of the scenario or machine
    cluster: Cluster
    allreduce: Allreduce
    network: Network
    seed: int
    world_size: int  # number of ranks
    # notes on values that belong to other kinds than are set
    notes: tuple[str, ...] = ()

    @cached_property
    def resources(self) -> Resources:
        """Return the ranks on hosts and GPUs, and the links that they use."""
        return Resources(self.cluster, self.world_size, stream(self.seed, "placement"))

    @cached_property
    def _allreduces(self) -> Allreduces:
        """Return the timing of the allreduce on the links of the ranks."""
        return Allreduces(
            self.allreduce, self.resources, stream(self.seed, "host_order")
        )

    def seconds(self, nbytes: float) -> float:
        """Return the duration (s) of an allreduce of ``nbytes`` bytes; 0 for one rank."""
        return self._allreduces.seconds(nbytes, self.network)


def bench_of_scenario(scenario: Scenario) -> Bench:
    """Return the bench of a scenario's allreduce over all of its ranks."""
    return Bench(
        scenario.name,
        scenario.cluster,
        scenario.workload.allreduce_on(scenario.cluster),
        scenario.network,
        scenario.seed,
        scenario.world_size,
    )


def read_bench(
    name: str,
    values: Mapping[str, Any],
    algorithm: str = "",
    allreduce: Mapping[str, Any] | None = None,
    *,
    hosts: int | None = None,
    gpus_per_host: int | None = None,
) -> Bench:
    """Read the bench of a scenario or machine, with values and an algorithm.

    Args:
        name: a file, or the name of a shipped scenario or machine.
        values: values to set, by dotted key.
        algorithm: the allreduce as ``kind:key=value,...``, completed by
            `complete_allreduce`; '' for the scenario's, or NCCL on a machine.
        allreduce: values to set in the allreduce, by key.
        hosts: hosts that take part; None for those of the scenario, or all.
        gpus_per_host: GPUs of each host that take part; None for those of the scenario,
            or all.

    Raises:
        InputError: there is no such file, a value is not valid, or there are too few
            GPUs.
    """
    irrelevant = (ALLREDUCE,) if algorithm else ()
    participants = read_participants(name, values, hosts, gpus_per_host, irrelevant)
    origin = participants.origin
    cluster = participants.cluster
    if isinstance(origin, BenchMachine):
        allreduce_values = parse_kind("nccl")
        label = origin.cluster.name
    else:
        allreduce_values = origin.workload.allreduce.model_dump(
            mode="json", exclude_none=True
        )
        label = origin.name
    if algorithm:
        allreduce_values = _parse_algorithm(algorithm)
    allreduce_record, switch_notes = _set_allreduce_keys(
        complete_allreduce(allreduce_values, cluster), allreduce or {}, cluster
    )
    allreduce_record = allreduce_record.over_hcas(cluster.hcas_per_domain)
    notes = (*participants.notes, *switch_notes)
    built_bench = Bench(
        label,
        cluster,
        allreduce_record,
        origin.network,
        origin.seed,
        participants.world_size,
        notes,
    )
    if problems := allreduce_problems(cluster, built_bench.allreduce):
        raise ScenarioError(problems, name)
    return built_bench


def parse_sizes(text: str, element_nbytes: int = ELEMENT_NBYTES) -> tuple[float, ...]:
    """Parse the bytes of buffers from a list such as '8 B,1 MiB', in its order.

    Raises:
        InputError: a part is no size, is 0, or holds no whole number of elements of
            ``element_nbytes`` bytes, or there is none; with all such parts.
    """
    nbytes_of_buffers = []
    problems = []
    for size_text in between_commas([text]) or [""]:
        try:
            nbytes = parse_quantity(size_text, Dimension.NBYTES)
        except UnitError as error:
            problems.append(Problem("--sizes", f"a size {error}", repr(size_text)))
            continue
        if nbytes <= 0 or nbytes % element_nbytes:
            element_text = (
                f"floats of {ELEMENT_NBYTES} B"
                if element_nbytes == ELEMENT_NBYTES
                else "bytes"
            )
            rule = f"a buffer holds one or more {element_text}"
            problems.append(
                Problem("--sizes", rule, repr(size_text), "Write for example 8 B.")
            )
        nbytes_of_buffers.append(nbytes)
    if problems:
        raise InputError(problems, COMMAND_LINE)
    return tuple(nbytes_of_buffers)


def _parse_algorithm(algorithm: str) -> dict[str, Any]:
    """Parse the value of ``--algorithm``, as ``kind:key=value,...``; raises an
    InputError if a parameter is not written so.
    """
    try:
        return parse_kind(algorithm)
    except InputError as error:
        problems = [problem.below("--algorithm") for problem in error.problems]
        raise InputError(problems, COMMAND_LINE) from None


def _set_allreduce_keys(
    allreduce_values: dict[str, Any], values: Mapping[str, Any], cluster: Cluster
) -> tuple[Allreduce, list[str]]:
    """Return the allreduce with ``values`` set, and notes on the values of other kinds.

    A ``kind`` among ``values`` switches the allreduce to that kind, which is completed
    for the cluster. ``allreduce_values`` are changed in place.

    Raises:
        InputError: a key or a value is not valid.
    """
    problems: list[Problem] = []
    document = {"allreduce": allreduce_values}
    pending = PendingSwitches(AllreduceDocument)
    values_by_key = {f"allreduce.{key}": value for key, value in values.items()}
    for key, value in values_by_key.items():
        pending.set_key(document, key, value, problems)
    switches = pending.settle(document, values_by_key)
    for switch in switches:
        if switch.key == "allreduce":
            fill(document["allreduce"], cluster, switch)
    allreduce_document, record_problems = validate_record(document, AllreduceDocument)
    problems += drop_reported_problems(record_problems, problems)
    if problems or allreduce_document is None:
        raise InputError(
            [problem.below("workload") for problem in problems], COMMAND_LINE
        )
    return allreduce_document.allreduce, [
        f"workload.{note}" for note in list_notes(switches)
    ]


HEADINGS = [
    "size (B)",
    "count",
    "type",
    "redop",
    "time (us)",
    "algbw (GB/s)",
    "busbw (GB/s)",
]
WIDTHS = (11, 14, 10, 8, 9, 8, 8)
"""Widths of the columns in characters."""


@dataclass(frozen=True)
class BenchMeasurement:
    """The rows of a bench, by size, and notes on them."""

    bench: Bench
    # a row for each size: nbytes (of the buffer), seconds, algorithm_bandwidth (bytes of the buffer
    # a second), and bus_bandwidth, 2 (M - 1) / M times that for M ranks
    rows: Sequence[dict[str, float]]

    @property
    def notes(self) -> list[str]:
        """Return notes on the values of other kinds, and on sizes that a measured curve
        does not cover.
        """
        bench = self.bench
        notes = [*self.bench.notes]
        unused = "inter_" if bench.resources.num_domains == 1 else "intra_"
        for key, curve in bench.allreduce:
            if not isinstance(curve, Curve) or key.startswith(unused):
                continue
            if outside_nbytes := [
                row["nbytes"] for row in self.rows if not curve.covers(row["nbytes"])
            ]:
                span = f"{_format_nbytes(curve.x[0])} to {_format_nbytes(curve.x[-1])}"
                outside_text = ", ".join(map(_format_nbytes, outside_nbytes))
                notes.append(
                    f"workload.allreduce.{key} was measured from {span}. For {outside_text},"
                    " simshuffle takes the value at the nearest measured size."
                )
        return notes

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table as all_reduce_perf prints it: us and GB/s, and
        at last the mean of the bus bandwidths. There must be a row.
        """
        bench = self.bench
        yield f"# simshuffle collective: {bench.allreduce.kind} on {bench.name}, simulated"
        yield "# Collective test starting: all_reduce_perf"
        yield "#\n# Using devices"
        resources = bench.resources
        device = bench.cluster.host.accelerator
        for rank, (host, gpu) in enumerate(
            zip(resources.host_of, resources.gpu_of, strict=True)
        ):
            yield f"#  Rank {rank:>2} on {resources.hosts[host]:>10} device {gpu:>2} {device}"
        yield "#"
        names = ("size", "count", "type", "redop", "time", "algbw", "busbw")
        units = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)")
        for mark, cells in (
            ("#", names),
            ("#", units),
            *((" ", _format_cells(row)) for row in self.rows),
        ):
            yield mark + "".join(
                f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)
            )
        mean = sum(row["bus_bandwidth"] for row in self.rows) / len(self.rows)
        yield f"# Avg bus bandwidth    : {mean / 1e9:g}"

    def table(self) -> Table:
        """Return the rows as a table of the terminal, for export."""
        bench = self.bench
        title = f"{bench.allreduce.kind} on {bench.name}, {bench.world_size} ranks"
        title += f" on {bench.resources.num_hosts} hosts"
        return new_table(title, numbers=HEADINGS, rows=map(_format_cells, self.rows))

    def as_json(self) -> dict[str, Any]:
        """Return the measurement as plain values, rows in bytes, s and bytes/s: name,
        ranks, hosts, allreduce (with units), rows and notes.
        """
        bench = self.bench
        return {
            "name": bench.name,
            "ranks": bench.world_size,
            "hosts": bench.resources.num_hosts,
            "allreduce": bench.allreduce.model_dump(mode="json", exclude_none=True),
            "rows": self.rows,
            "notes": self.notes,
        }


def measure_bench(
    bench: Bench,
    sizes: Sequence[float],
    progress: Callable[[float], None] | None = None,
) -> BenchMeasurement:
    """Time the allreduce of each of ``sizes`` bytes in isolation.

    Rows have nbytes, seconds, algorithm_bandwidth and bus_bandwidth (bytes/s, 0 where
    it takes no time), in the order of ``sizes``.

    Args:
        bench: the allreduce and its machine.
        sizes: bytes of the buffers.
        progress: called after each size with the share of them that is done, up to 1.

    Raises:
        InputError: the network is simulated packet by packet, and there are too many
            packets.
    """
    if isinstance(bench.network, Packet):
        domain_of = bench.resources.domain_of
        mtu = bench.network.mtu
        flows = (bench.allreduce.flows(domain_of, nbytes) for nbytes in sizes)
        num_packets = sum(
            flow_set.packets(domain_of, mtu)
            for flow_set in flows
            if flow_set is not None
        )
        refuse_many_packets(num_packets)
    rows = []
    for num_done, nbytes in enumerate(sizes, 1):
        seconds = bench.seconds(nbytes)
        rate = nbytes / seconds if seconds else 0.0
        bus_bandwidth = 2 * (bench.world_size - 1) / bench.world_size * rate
        rows.append(
            {
                "nbytes": nbytes,
                "seconds": seconds,
                "algorithm_bandwidth": rate,
                "bus_bandwidth": bus_bandwidth,
            }
        )
        if progress is not None:
            progress(num_done / len(sizes))
    return BenchMeasurement(bench, rows)


def refuse_many_packets(num_packets: float) -> None:
    """Raise an InputError if all sizes of a collective together have more packets than
    `MOST_PACKETS`.
    """
    if num_packets > MOST_PACKETS:
        rule = f"all sizes together must have at most {MOST_PACKETS:.0e} packets"
        remedy = "Leave out the largest, or use network.kind: fluid."
        refuse("--sizes", rule, f"{num_packets:.1e}", remedy, COMMAND_LINE)


def _format_cells(row: Mapping[str, float]) -> tuple[str, ...]:
    """Return the cells of a row as all_reduce_perf of nccl-tests formats them.

    They are bytes, elements, type, operation, us, and both bandwidths in GB/s.
    """
    time = row["seconds"] * 1e6
    digits = 0 if time >= 1e4 else 1 if time >= 100 else 2  # as nccl-tests print it
    return (
        f"{row['nbytes']:.0f}",
        f"{row['nbytes'] / ELEMENT_NBYTES:.0f}",
        "float",
        "sum",
        f"{time:.{digits}f}",
        f"{row['algorithm_bandwidth'] / 1e9:.2f}",
        f"{row['bus_bandwidth'] / 1e9:.2f}",
    )


def _format_nbytes(nbytes: float) -> str:
    """Format bytes for people, rounded to four digits: '1.5 MB'."""
    return readable(nbytes, Dimension.NBYTES)
