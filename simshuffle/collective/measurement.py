"""How long an allreduce takes by the size of its buffer, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from simshuffle.collective.bench import ELEMENT, Bench
from simshuffle.errors import InputError, Problem
from simshuffle.network import Packet
from simshuffle.plan.packets import MOST_PACKETS, allreduce_packets
from simshuffle.results.console import new_table
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.units import Dimension, readable

WIDTHS = (11, 14, 10, 8, 9, 8, 8)
"""Characters of the columns."""


@dataclass(frozen=True)
class Row:
    """The allreduce of one buffer: its bytes, and its time (s)."""

    nbytes: float
    seconds: float
    world_size: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """2 (M-1)/M times that."""
        return 2 * (self.world_size - 1) / self.world_size * self.algorithm_bandwidth


@dataclass(frozen=True)
class Measurement:
    """The rows of a bench, by size, and what is to be known of them."""

    bench: Bench
    rows: Sequence[Row]

    @property
    def notes(self) -> list[str]:
        """Which sizes a measured curve does not cover."""
        bench, out = self.bench, []
        unused = "inter_" if bench.resources.num_domains == 1 else "intra_"
        for key, curve in bench.allreduce:
            if not isinstance(curve, Curve) or key.startswith(unused):
                continue
            outside = [row.nbytes for row in self.rows if not curve.covers(row.nbytes)]
            if outside:
                span = " to ".join(_bytes(x) for x in (curve.x[0], curve.x[-1]))
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
        mean = sum(row.bus_bandwidth for row in self.rows) / len(self.rows)
        yield f"# Avg bus bandwidth    : {mean / 1e9:g}"

    def table(self) -> Table:
        """The same as a table of the terminal, to be exported."""
        bench = self.bench
        title = f"{bench.allreduce.kind} on {bench.name}, {bench.world_size} ranks"
        numbers = [
            "size (B)",
            "count",
            "type",
            "redop",
            "time (us)",
            "algbw (GB/s)",
            "busbw (GB/s)",
        ]
        table = new_table(f"{title} on {bench.resources.num_hosts} hosts", numbers=numbers)
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def as_json(self) -> dict[str, Any]:
        """Plain values, in SI units."""
        bench = self.bench
        return {
            "name": bench.name,
            "ranks": bench.world_size,
            "hosts": bench.resources.num_hosts,
            "allreduce": bench.allreduce.model_dump(mode="json", exclude_none=True),
            "rows": [
                {
                    "nbytes": row.nbytes,
                    "seconds": row.seconds,
                    "algorithm_bandwidth": row.algorithm_bandwidth,
                    "bus_bandwidth": row.bus_bandwidth,
                }
                for row in self.rows
            ],
            "notes": self.notes,
        }


def measure(
    bench: Bench, sizes: Sequence[float], progress: Callable[[float], None] | None = None
) -> Measurement:
    """Each allreduce of ``sizes`` bytes alone; ``progress`` is told the share of them done.

    Raises:
        InputError: the network is simulated packet by packet, and there are too many of them.
    """
    _check_packets(bench, sizes)
    rows = []
    for done, nbytes in enumerate(sizes, 1):
        rows.append(Row(nbytes, bench.seconds(nbytes), bench.world_size))
        if progress is not None:
            progress(done / len(sizes))
    return Measurement(bench, rows)


def _check_packets(bench: Bench, sizes: Sequence[float]) -> None:
    if not isinstance(bench.network, Packet):
        return
    domain_of, mtu = bench.resources.domain_of, bench.network.mtu
    total = sum(allreduce_packets(bench.allreduce, domain_of, nbytes, mtu) for nbytes in sizes)
    if total > MOST_PACKETS:
        rule = f"all sizes together must have at most {MOST_PACKETS:.0e} packets"
        remedy = "Leave out the largest, or use network.kind: fluid."
        raise InputError(Problem("--sizes", rule, f"{total:.1e}", remedy), "command line")


def _cells(row: Row) -> tuple[str, ...]:
    time = row.seconds * 1e6
    digits = 0 if time >= 1e4 else 1 if time >= 100 else 2  # as nccl-tests print it
    return (
        f"{row.nbytes:.0f}",
        f"{row.nbytes / ELEMENT:.0f}",
        "float",
        "sum",
        f"{time:.{digits}f}",
        f"{row.algorithm_bandwidth / 1e9:.2f}",
        f"{row.bus_bandwidth / 1e9:.2f}",
    )


def _bytes(nbytes: float) -> str:
    return readable(nbytes, Dimension.NBYTES)
