"""A table of nccl-tests: which collective it is of, and how many ranks took part.

Versions before '# Collective test starting' (2.13) do not name the collective; published logs lack
parts of the list of devices. The bus bandwidth over the bandwidth tells both: 2 (p-1)/p for an
allreduce, (p-1)/p for an all-to-all, an all-gather and a reduce-scatter, 1 for sendrecv and for
collectives with a root (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile

OPERATIONS = {"all_reduce_perf": "all_reduce", "alltoall_perf": "all_to_all"}
TOLERANCE = 0.03
"""Relative difference of a ratio of bandwidths from that of a number of ranks that is no matter."""
LEAST_BANDWIDTH = 1.0
"""GB/s from which on two digits behind the point tell a ratio."""
_TIMES = ("time", "cputime")
_NO_REDUCTION = {"", "none"}
_NOT_CHECKED = "N/A"


@dataclass(frozen=True)
class Timing:
    """One half of a line: out of place or in place."""

    line: int
    size: str
    time: str
    second: float  # seconds of the unit of time
    wrong: str  # wrong values that the check counted, or N/A
    algbw: float  # GB/s; 0 where it is not known
    busbw: float


@dataclass
class NcclTable:
    """What has been read of one table."""

    test: str = ""
    hosts: dict[int, str] = field(default_factory=dict)  # of each rank
    num_alone: int = 0  # devices of rank 0 in the list
    columns: list[str] = field(default_factory=list)
    is_open: bool = False  # whether rows follow
    rows: dict[int, list[str]] = field(default_factory=dict)  # cells by line

    def complete(self, source: MeasurementFile, number: int, line: str) -> list[str]:
        """Return the cells of a row; a collective that reduces nothing may leave its column empty.

        Raises:
            InputError: there are more or fewer cells than columns.
        """
        cells = line.split()
        is_stamped = self.columns[-1] == "timestamp"  # which has a blank in it
        if len(cells) == len(self.columns) - 1 and not is_stamped:
            place = next((n for n, name in enumerate(self.columns) if name in {"redop", "op"}), 0)
            if place and cells[place].replace(".", "").isdigit():
                cells.insert(place, "none")
        return source.cells(number, " ".join(cells), self.columns, more=is_stamped)

    def timings(self) -> Iterator[Timing]:
        """Return the halves of all rows."""
        starts = [place for place, name in enumerate(self.columns) if name in _TIMES]
        second = 1e-3 if self.columns[0] == "bytes" else 1e-6
        for line, cells in self.rows.items():
            for start, end in zip(starts, [*starts[1:], len(self.columns)], strict=True):
                values = dict(zip(self.columns[start:end], cells[start:end], strict=True))
                time, wrong = values[self.columns[start]], values.get("#wrong", "0")
                rates = (rate_of(values.get(name, "")) for name in ("algbw", "busbw"))
                yield Timing(line, cells[0], time, second, wrong, *rates)

    def cell(self, column: str, default: str) -> str:
        """Return a cell of the first row."""
        cells = next(iter(self.rows.values()))
        return cells[self.columns.index(column)] if column in self.columns else default

    @property
    def ratio(self) -> float | None:
        """The bus bandwidth over the bandwidth of the fastest half; None where both are low."""
        fastest = max(self.timings(), key=lambda timing: min(timing.algbw, timing.busbw))
        if min(fastest.algbw, fastest.busbw) < LEAST_BANDWIDTH:
            return None
        return fastest.busbw / fastest.algbw

    @property
    def is_checked_out_of_place_alone(self) -> bool:
        """Whether the results were checked out of place and not in place, where an all-to-all and
        a sendrecv cannot be checked."""
        marks = [timing.wrong for timing in self.timings() if "#wrong" in self.columns]
        outside, inside = set(marks[::2]), set(marks[1::2])
        return bool(marks) and inside == {_NOT_CHECKED} and _NOT_CHECKED not in outside

    # ----------------------------------------------------------------------------- which collective

    def name(self, source: MeasurementFile) -> str:
        """Return the program that printed the table, by the file, the option or the numbers.

        Raises:
            InputError: nothing tells it.
        """
        if self.test:
            return self.test.rsplit("/", 1)[-1]
        if source.collective:
            return source.collective
        ratio, ranks = self.ratio, self.likely_ranks(source)
        reduces = self.cell("redop", self.cell("op", "none")) not in _NO_REDUCTION
        has_root = self.cell("root", "-1") != "-1"
        may_be_allreduce = reduces and not has_root and not self.is_checked_out_of_place_alone
        if ratio is not None:  # above 1 of an allreduce alone; of two ranks it is 1
            may_be_allreduce &= ratio > 1 + TOLERANCE or (ranks == 2 and is_near(ratio, 1))
        if may_be_allreduce:
            return "all_reduce_perf"
        looks_like_all_to_all = ratio is not None and (
            not ranks or is_near(ratio, (ranks - 1) / ranks)
        )
        is_named = "alltoall" in source.name.lower().replace("_", "").replace("-", "")
        is_told = self.is_checked_out_of_place_alone or is_named
        if not reduces and not has_root and looks_like_all_to_all and is_told:
            return "alltoall_perf"
        raise self.unnamed(source, reduces=reduces)

    def unnamed(self, source: MeasurementFile, *, reduces: bool) -> InputError:
        """Return the error of a table whose collective nothing tells."""
        line, cells = next(iter(self.rows.items()))
        rule = "the file does not name its collective, and several could print this row"
        remedy = "Add --collective all_reduce if it was all_reduce_perf, or leave the file out."
        if not reduces:
            remedy = "Add --collective all_to_all if it was alltoall_perf, or leave the file out."
        return source.bad(line, rule, " ".join(cells), remedy)

    # ------------------------------------------------------------------------------- how many ranks

    @property
    def is_listed(self) -> bool:
        """Whether the list of devices has every rank up to the last that it names."""
        return bool(self.hosts) and sorted(self.hosts) == list(range(len(self.hosts)))

    def likely_ranks(self, source: MeasurementFile) -> int:
        """Return the number of ranks as the list or the option says it; 0 if neither does."""
        if self.is_listed and len(self.hosts) > 1:
            return len(self.hosts)
        return source.ranks or (max(self.hosts) + 1 if len(self.hosts) > 1 else 0)

    def layout(self, source: MeasurementFile, name: str) -> tuple[int, float]:
        """Return the number of ranks and of hosts, from the list of devices if it is whole, or else
        as the caller gave them.

        Raises:
            InputError: the list is cut and no number was given; or the bandwidths are those of
                another number of ranks.
        """
        factor = 2 if name == "all_reduce_perf" else 1
        ratio = self.ratio

        def fits(ranks: int) -> bool:
            return ratio is None or is_near(ratio, factor * (ranks - 1) / ranks)

        if len(self.hosts) == 1 and 0 in self.hosts and self.num_alone > 1:
            rule = "the list of devices names rank 0 more than once: each process ran alone"
            remedy = "Build nccl-tests with MPI=1, and run it again."
            raise source.bad(0, rule, f"{self.num_alone} times", remedy)
        if self.is_listed and len(self.hosts) > 1 and fits(len(self.hosts)):
            return len(self.hosts), len(set(self.hosts.values()))
        if not self.hosts and not source.ranks:
            return source.layout()
        guess = "N" if ratio is None or ratio >= factor else f"{factor / (factor - ratio):.0f}"
        if not source.ranks:
            raise source.bad(0, self.describe_list(), remedy=f"Add --ranks {guess}, and --hosts H.")
        if self.hosts and source.ranks <= max(self.hosts):
            rule = f"the list of devices names rank {max(self.hosts)}"
            raise source.bad(0, rule, f"--ranks {source.ranks}", "Correct --ranks.")
        if not fits(source.ranks):
            rule = f"the bus bandwidth is {ratio:.4g} times the bandwidth, as for {guess} ranks"
            raise source.bad(0, rule, f"--ranks {source.ranks}", "Correct --ranks.")
        return source.ranks, source.hosts

    def describe_list(self) -> str:
        """Say what the list of devices has and misses."""
        listed = sorted(self.hosts)
        missing = [rank for rank in range(listed[-1]) if rank not in self.hosts]
        if missing:
            ends = dict.fromkeys((missing[0], missing[-1]))
            return (
                f"the list of devices names rank {listed[-1]} and misses"
                f" {' to '.join(map(str, ends))}"
            )
        if len(listed) == 1:
            return "the list of devices has rank 0 alone: it is cut, or the run had no MPI (MPI=1)"
        return f"the list of devices ends with rank {listed[-1]}, and the bandwidths are of others"


def rate_of(text: str) -> float:
    """Return a bandwidth in GB/s; 0 where it is none."""
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0


def is_near(value: float, expected: float) -> bool:
    """Whether two ratios agree."""
    return abs(value - expected) <= TOLERANCE * expected
