"""Timing of an all-to-all that has a machine to itself, by the bytes of each pair of
ranks, as osu_alltoall measures and prints it.

Steps go through the scenario's network. A table also has two bounds: the time of the messages
alone, and that of the busiest link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from simshuffle.errors import refuse
from simshuffle.fabric.network import Network, Packet
from simshuffle.job.lowering.alltoalls import ALGORITHMS, Algorithm, Alltoalls
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.console import new_table
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.rng import stream
from simshuffle.studies.collective import ALLREDUCE, refuse_many_packets
from simshuffle.studies.participants import BenchMachine, read_participants
from simshuffle.study.options import COMMAND_LINE

SIZES = tuple(2.0**k for k in range(21))
"""Default bytes of a pair of ranks: 1 B to 1 MiB, those of osu_alltoall."""
TIMES = ("seconds", "sampling", "host", "links")
"""Columns of the times of a row, s."""


@dataclass(frozen=True)
class AlltoallTable:
    """Durations of all-to-alls, by algorithm and size.

    ``rows`` have algorithm, nbytes (that each rank sends to each other), and s until
    the slowest rank has ended: seconds (in full), sampling (two standard errors of it,
    where some steps stand for all), host (if links carry everything in no time), and
    links (what the busiest link needs for its bytes).
    """

    name: str  # name of the scenario or machine
    ranks: int  # number of ranks
    hosts: int  # number of hosts
    # cost of a message, as the cluster has it: plain values with units, by key
    message_passing: Mapping[str, Any]
    rows: Sequence[dict[str, Any]]  # a row for each algorithm and size
    notes: tuple[str, ...] = ()  # notes on the values of other kinds

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table for each algorithm, as osu_alltoall prints it: B
        of a pair of ranks, and us in full.
        """
        for algorithm in dict.fromkeys(row["algorithm"] for row in self.rows):
            yield f"# simshuffle collective: {algorithm} on {self.name}, simulated"
            yield f"# {self.ranks} ranks on {self.hosts} hosts"
            yield "# OSU MPI All-to-All Personalized Exchange Latency Test v7.4"
            yield f"# {'Size':<15}{'Avg Latency(us)':>20}"
            for row in self.rows:
                if row["algorithm"] == algorithm:
                    yield f"{row['nbytes']:<17.0f}{row['seconds'] * 1e6:>20.2f}"

    def table(self) -> Table:
        """Return the rows as a table of the terminal, for export; times are in us."""
        headings = [
            *("size (B)", "time (us)", "sampling, 2 s.e. (us)"),
            *("messages alone (us)", "busiest link (us)"),
        ]
        title = f"All-to-all on {self.name}, {self.ranks} ranks on {self.hosts} hosts"
        rows = (
            [
                row["algorithm"],
                f"{row['nbytes']:.0f}",
                *(f"{row[name] * 1e6:.2f}" for name in TIMES),
            ]
            for row in self.rows
        )
        return new_table(title, ["algorithm"], headings, rows)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name as plain values; rows are in bytes and s."""
        return asdict(self)


def parse_algorithms(text: str) -> tuple[Algorithm, ...]:
    """Parse the algorithms of a list such as 'linear,pairwise', in its order.

    '' stands for Open MPI's choice, ``default``. Names that are listed twice come
    twice.

    Raises:
        InputError: there is no algorithm of a name; an empty name is none.
    """
    chosen: list[Algorithm] = []
    for word in map(str.strip, (text or "default").split(",")):
        matching_names = [name for name in ALGORITHMS if name == word]
        if not matching_names:
            rule = f"must be one of {', '.join(ALGORITHMS)} for an alltoall"
            refuse(
                "--algorithm",
                rule,
                repr(word),
                suggest_nearest(word, list(ALGORITHMS)),
                COMMAND_LINE,
            )
        chosen += matching_names
    return tuple(chosen)


def time_alltoalls(
    name: str,
    values: Mapping[str, Any],
    algorithms: Sequence[Algorithm],
    sizes: Sequence[float],
    *,
    hosts: int | None = None,
    gpus_per_host: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> AlltoallTable:
    """Time each algorithm at each size in isolation, on the ranks of a scenario or
    machine. Rows are in the order of ``algorithms``, then of ``sizes``.

    Args:
        name: a file, or the name of a shipped scenario or machine.
        values: values to set, by dotted key.
        algorithms: the algorithms to time.
        sizes: bytes that each rank sends to each other.
        hosts: hosts that take part; None for those of the scenario, or all.
        gpus_per_host: GPUs of each host that take part; None for those of the scenario,
            or all.
        progress: called after each row with the share that is done, up to 1.

    Raises:
        InputError: there is no such file, a value is not valid, or there are too few
            GPUs.
    """
    origin, cluster, world_size, notes = read_participants(
        name, values, hosts, gpus_per_host, (ALLREDUCE,)
    )
    alltoalls = _build_alltoalls(cluster, world_size, origin.seed, origin.network)
    if isinstance(origin.network, Packet):
        mtu = origin.network.mtu
        refuse_many_packets(
            sum(
                count * math.ceil(message_nbytes / mtu)
                for algorithm in algorithms
                for nbytes in sizes
                for count, message_nbytes in alltoalls.list_messages(algorithm, nbytes)
            )
        )
    rows = []
    for algorithm in algorithms:
        for nbytes in sizes:
            times = asdict(alltoalls.parts(algorithm, nbytes))
            rows.append({"algorithm": algorithm, "nbytes": nbytes, **times})
            if progress is not None:
                progress(len(rows) / (len(algorithms) * len(sizes)))
    label = cluster.name if isinstance(origin, BenchMachine) else origin.name
    costs = cluster.message_passing.model_dump(mode="json", exclude_none=True)
    return AlltoallTable(
        label, world_size, cluster.hosts_for(world_size), costs, rows, notes
    )


def alltoalls_of_scenario(scenario: Scenario) -> Alltoalls:
    """Return the all-to-alls of all ranks of a scenario."""
    return _build_alltoalls(
        scenario.cluster, scenario.world_size, scenario.seed, scenario.network
    )


def _build_alltoalls(
    cluster: Cluster, world_size: int, seed: int, network: Network
) -> Alltoalls:
    """Return the all-to-alls of the ranks of a cluster, whose hosts are drawn by
    ``seed``; ``network`` is the model that carries their steps.
    """
    resources = Resources(cluster, world_size, stream(seed, "placement"))
    return Alltoalls(resources, network)
