"""A table of nccl-tests: the collective that it times, and how many ranks took part.

Versions before '# Collective test starting' (2.13) do not name the collective;
published logs lack parts of the list of devices. The bus bandwidth over the bandwidth
tells both: 2 (p-1)/p for an allreduce, (p-1)/p for an all-to-all, an all-gather and a
reduce-scatter, 1 for sendrecv and for collectives with a root (doc/PERFORMANCE.md of
github.com/NVIDIA/nccl-tests).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile

OPERATION_OF_PROGRAM = {"all_reduce_perf": "all_reduce", "alltoall_perf": "all_to_all"}
"""Operation by the program of nccl-tests; tables of other programs are not read."""
TOLERANCE = 0.03
"""Largest relative difference at which two ratios of bandwidths count as equal."""
MIN_BANDWIDTH = 1.0
"""GB/s from which on two digits behind the point tell a ratio."""
_TIME_COLUMNS = ("time", "cputime")
_NO_REDUCTION = {"", "none"}
_NOT_CHECKED = "N/A"


@dataclass(frozen=True)
class Timing:
    """The times and bandwidths of a row, either out of place or in place."""

    line: int  # of the file, from 1
    size: str  # bytes of the buffer, as the file writes them
    time: str  # of a collective, as the file writes it
    seconds_per_unit: float  # seconds of the unit of ``time``
    # wrong values that the check counted, or N/A; '0' if the table has no such column
    wrong: str
    algbw: float  # GB/s; 0 where it is not known
    busbw: float  # GB/s; 0 where it is not known


@dataclass
class NcclTable:
    """A table of an output: its rows, the collective, and the list of devices above it."""

    test: str = ""  # program of nccl-tests; '' while it is not known
    hosts: dict[int, str] = field(default_factory=dict)  # name of the host by rank
    num_rank_zero_lines: int = 0  # devices of rank 0 in the list
    columns: list[str] = field(default_factory=list)  # names, from left to right
    is_open: bool = False  # whether rows follow
    rows: dict[int, list[str]] = field(default_factory=dict)  # cells by line

    def complete_cells(
        self, source: MeasurementFile, line_number: int, line: str
    ) -> list[str]:
        """Split a row into one cell for each column; an absent redop is 'none'.

        A row ends with one more cell if the last column is 'timestamp', which has a
        blank in it; its redop must not be absent.

        Raises:
            InputError: there are more or fewer cells than columns.
        """
        cells = line.split()
        has_timestamp = self.columns[-1] == "timestamp"  # which has a blank in it
        if len(cells) == len(self.columns) - 1 and not has_timestamp:
            reduction_column = next(
                (
                    index
                    for index, name in enumerate(self.columns)
                    if name in {"redop", "op"}
                ),
                0,
            )
            if reduction_column and cells[reduction_column].replace(".", "").isdigit():
                cells.insert(reduction_column, "none")
        return source.split_cells(
            line_number, " ".join(cells), self.columns, num_unnamed=has_timestamp
        )

    def timings(self) -> Iterator[Timing]:
        """Yield the times of all rows, of each first out of place, then in place."""
        first_columns = [
            column_index
            for column_index, name in enumerate(self.columns)
            if name in _TIME_COLUMNS
        ]
        seconds_per_unit = 1e-3 if self.columns[0] == "bytes" else 1e-6
        for line, cells in self.rows.items():
            for start, end in zip(
                first_columns, [*first_columns[1:], len(self.columns)], strict=True
            ):
                values = dict(
                    zip(self.columns[start:end], cells[start:end], strict=True)
                )
                yield Timing(
                    line=line,
                    size=cells[0],
                    time=values[self.columns[start]],
                    seconds_per_unit=seconds_per_unit,
                    wrong=values.get("#wrong", "0"),
                    algbw=parse_bandwidth(values.get("algbw", "")),
                    busbw=parse_bandwidth(values.get("busbw", "")),
                )

    def first_cell(self, column: str, default: str) -> str:
        """Return a cell of the first row; ``default`` if the table lacks the column.

        The table must have a row.
        """
        cells = next(iter(self.rows.values()))
        return cells[self.columns.index(column)] if column in self.columns else default

    @property
    def ratio(self) -> float | None:
        """busbw / algbw of the time with most bandwidth; None if either is below
        `MIN_BANDWIDTH` or not known.
        """
        fastest = max(
            self.timings(), key=lambda timing: min(timing.algbw, timing.busbw)
        )
        if min(fastest.algbw, fastest.busbw) < MIN_BANDWIDTH:
            return None
        return fastest.busbw / fastest.algbw

    @property
    def checks_only_out_of_place(self) -> bool:
        """True if all results were checked out of place and none in place.

        An all-to-all and a sendrecv cannot be checked in place. False if the table has
        no column '#wrong'.
        """
        wrong_marks = [
            timing.wrong for timing in self.timings() if "#wrong" in self.columns
        ]
        out_of_place_marks = set(wrong_marks[::2])
        in_place_marks = set(wrong_marks[1::2])
        return (
            bool(wrong_marks)
            and in_place_marks == {_NOT_CHECKED}
            and _NOT_CHECKED not in out_of_place_marks
        )

    # ----------------------------------------------------------------------------- which collective

    def program_name(self, source: MeasurementFile) -> str:
        """Return the program of nccl-tests that printed the table, without its folder.

        The table names it, or else the option --collective, or else the numbers tell an
        all-reduce or an all-to-all. The bandwidths alone do not tell an all-to-all: the
        marks of the check or the file's name must, too. A name may lie outside
        `OPERATION_OF_PROGRAM`.

        Raises:
            InputError: nothing tells the program.
        """
        if self.test:
            return self.test.rsplit("/", 1)[-1]
        if source.collective:
            return source.collective
        ratio = self.ratio
        ranks = self.likely_ranks(source)
        reduces = (
            self.first_cell("redop", self.first_cell("op", "none")) not in _NO_REDUCTION
        )
        has_root = self.first_cell("root", "-1") != "-1"
        may_be_allreduce = (
            reduces and not has_root and not self.checks_only_out_of_place
        )
        if ratio is not None:  # above 1 of an allreduce alone; of two ranks it is 1
            may_be_allreduce &= ratio > 1 + TOLERANCE or (
                ranks == 2 and is_near(ratio, 1)
            )
        if may_be_allreduce:
            return "all_reduce_perf"
        looks_like_all_to_all = ratio is not None and (
            not ranks or is_near(ratio, (ranks - 1) / ranks)
        )
        is_in_file_name = "alltoall" in source.name.lower().replace("_", "").replace(
            "-", ""
        )
        is_evident = self.checks_only_out_of_place or is_in_file_name
        if not reduces and not has_root and looks_like_all_to_all and is_evident:
            return "alltoall_perf"
        raise self.unnamed_table_error(source, reduces=reduces)

    def unnamed_table_error(
        self, source: MeasurementFile, *, reduces: bool
    ) -> InputError:
        """Return the error of a table whose collective nothing tells.

        Its remedy names all_reduce if the rows name a reduction (``reduces``), else
        all_to_all.
        """
        line, cells = next(iter(self.rows.items()))
        rule = "the file does not name its collective, and several collectives print such rows"
        remedy = "Add --collective all_reduce if it was all_reduce_perf, or leave the file out."
        if not reduces:
            remedy = "Add --collective all_to_all if it was alltoall_perf, or leave the file out."
        return source.error_in_line(line, rule, " ".join(cells), remedy)

    # ------------------------------------------------------------------------------- how many ranks

    @property
    def lists_every_rank(self) -> bool:
        """True if the list of devices has every rank from 0 up to the last that it
        names; False for an empty list.
        """
        return bool(self.hosts) and sorted(self.hosts) == list(range(len(self.hosts)))

    def likely_ranks(self, source: MeasurementFile) -> int:
        """Return the number of ranks: of the complete list of devices, else of the
        option --ranks, else the highest listed rank + 1; 0 if fewer than two are
        listed.
        """
        if self.lists_every_rank and len(self.hosts) > 1:
            return len(self.hosts)
        return source.ranks or (max(self.hosts) + 1 if len(self.hosts) > 1 else 0)

    def ranks_and_hosts(
        self, source: MeasurementFile, program: str
    ) -> tuple[int, float]:
        """Return the number of ranks and of hosts; hosts are nan if not known.

        Both come from the list of devices if it is complete, names at least two ranks
        and agrees with the bandwidths; else from the options --ranks and --hosts.

        Raises:
            InputError: the list names rank 0 more than once and no other; it is cut or
                absent and --ranks was not given; --ranks is not above the highest
                listed rank; or the bandwidths are those of another number of ranks.
        """
        factor = 2 if program == "all_reduce_perf" else 1
        ratio = self.ratio

        def fits(ranks: int) -> bool:
            """Return whether the bandwidths agree with so many ranks."""
            return ratio is None or is_near(ratio, factor * (ranks - 1) / ranks)

        if len(self.hosts) == 1 and 0 in self.hosts and self.num_rank_zero_lines > 1:
            rule = "the list of devices names rank 0 more than once: each process ran alone"
            remedy = "Build nccl-tests with MPI=1, and run it again."
            raise source.error_in_line(
                0, rule, f"{self.num_rank_zero_lines} times", remedy
            )
        if self.lists_every_rank and len(self.hosts) > 1 and fits(len(self.hosts)):
            return len(self.hosts), len(set(self.hosts.values()))
        if not self.hosts and not source.ranks:
            return source.ranks_and_hosts()
        guess = (
            "N"
            if ratio is None or ratio >= factor
            else f"{factor / (factor - ratio):.0f}"
        )
        if not source.ranks:
            raise source.error_in_line(
                0, self.describe_list(), remedy=f"Add --ranks {guess}, and --hosts H."
            )
        if self.hosts and source.ranks <= max(self.hosts):
            rule = f"the list of devices names rank {max(self.hosts)}"
            raise source.error_in_line(
                0, rule, f"--ranks {source.ranks}", "Correct --ranks."
            )
        if not fits(source.ranks):
            rule = f"the bus bandwidth is {ratio:.4g} times the bandwidth, as for {guess} ranks"
            raise source.error_in_line(
                0, rule, f"--ranks {source.ranks}", "Correct --ranks."
            )
        return source.ranks, source.hosts

    def describe_list(self) -> str:
        """Return the text of the error on a list of devices: which ranks it has and
        misses. The list must not be empty.
        """
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
        return (
            f"the list of devices ends with rank {listed[-1]}, but the bandwidths are of another"
            " number"
        )


def parse_bandwidth(text: str) -> float:
    """Return the bandwidth in a text, in GB/s; 0 if it is no finite number, or
    negative.
    """
    try:
        bandwidth = float(text)
    except ValueError:
        return 0.0
    return max(bandwidth, 0.0) if math.isfinite(bandwidth) else 0.0


def is_near(value: float, expected: float) -> bool:
    """Return whether ``value`` is within the share `TOLERANCE` of ``expected``."""
    return abs(value - expected) <= TOLERANCE * expected
