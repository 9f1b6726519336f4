"""An all-to-all that has a machine to itself, by the bytes that each rank sends to each other, as
osu_alltoall measures and prints it, and how much of it is messages and how much links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from simshuffle.errors import refuse
from simshuffle.job.lowering.alltoalls import ALGORITHMS, Algorithm, Alltoalls
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.console import new_table
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.rng import stream
from simshuffle.studies.collective import ALLREDUCE, BenchMachine, ranks_of
from simshuffle.study.options import COMMAND_LINE

SIZES = tuple(2.0**k for k in range(21))
"""Bytes a pair if nobody says it: 1 B to 1 MiB, those of osu_alltoall."""


@dataclass(frozen=True)
class AlltoallTable:
    """All-to-alls by algorithm and size: ``rows`` have algorithm, nbytes (a pair), seconds, and the
    seconds of `simshuffle.job.lowering.alltoalls.AlltoallTimes`."""

    name: str
    ranks: int
    hosts: int
    message_passing: Mapping[str, Any]  # what a message costs
    rows: Sequence[dict[str, Any]]
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """A table an algorithm, as osu_alltoall prints it."""
        for algorithm in dict.fromkeys(row["algorithm"] for row in self.rows):
            yield f"# simshuffle collective: {algorithm} on {self.name}, simulated"
            yield f"# {self.ranks} ranks on {self.hosts} hosts"
            yield "# OSU MPI All-to-All Personalized Exchange Latency Test v7.4"
            yield f"# {'Size':<15}{'Avg Latency(us)':>20}"
            for row in self.rows:
                if row["algorithm"] == algorithm:
                    yield f"{row['nbytes']:<17.0f}{row['seconds'] * 1e6:>20.2f}"

    def table(self) -> Table:
        """The same as a table of the terminal, to be exported."""
        heads = ["size (B)", "time (us)", "messages alone (us)", "links alone (us)"]
        title = f"All-to-all on {self.name}, {self.ranks} ranks on {self.hosts} hosts"
        rows = (
            [
                row["algorithm"],
                f"{row['nbytes']:.0f}",
                *(f"{row[name] * 1e6:.2f}" for name in ("seconds", "host", "links")),
            ]
            for row in self.rows
        )
        return new_table(title, ["algorithm"], heads, rows)

    def as_json(self) -> dict[str, Any]:
        """Plain values, in SI units."""
        return asdict(self)


def algorithms(text: str) -> tuple[Algorithm, ...]:
    """Those of a list such as 'linear,pairwise', or '' for Open MPI's choice; an InputError if
    there is none of that name."""
    found: list[Algorithm] = []
    for word in map(str.strip, (text or "default").split(",")):
        known = [name for name in ALGORITHMS if name == word]
        if not known:
            rule = f"of an alltoall must be of {', '.join(ALGORITHMS)}"
            refuse(
                "--algorithm",
                rule,
                repr(word),
                suggest_nearest(word, list(ALGORITHMS)),
                COMMAND_LINE,
            )
        found += known
    return tuple(found)


def alltoall(
    name: str,
    values: Mapping[str, Any],
    chosen: Sequence[Algorithm],
    sizes: Sequence[float],
    *,
    hosts: int | None = None,
    gpus_per_host: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> AlltoallTable:
    """Each algorithm at each size (bytes a pair) alone on a scenario's or machine's ranks, as for
    `simshuffle.studies.collective.bench`, whose errors it raises; ``progress`` is told the share
    done."""
    of, cluster, world_size, notes = ranks_of(name, values, hosts, gpus_per_host, (ALLREDUCE,))
    law, rows = _law(cluster, world_size, of.seed), []
    for algorithm in chosen:
        for nbytes in sizes:
            parts = asdict(law.parts(algorithm, nbytes))
            rows.append({"algorithm": algorithm, "nbytes": nbytes, **parts})
            if progress is not None:
                progress(len(rows) / (len(chosen) * len(sizes)))
    label = cluster.name if isinstance(of, BenchMachine) else of.name
    costs = cluster.message_passing.model_dump(mode="json", exclude_none=True)
    return AlltoallTable(label, world_size, cluster.hosts_for(world_size), costs, rows, notes)


def law_of(scenario: Scenario) -> Alltoalls:
    """The all-to-alls of all ranks of a scenario."""
    return _law(scenario.cluster, scenario.world_size, scenario.seed)


def _law(cluster: Cluster, world_size: int, seed: int) -> Alltoalls:
    return Alltoalls(Resources(cluster, world_size, stream(seed, "placement")))
