"""Readers of tables in CSV: epoch logs, and all-to-alls that PICO and CRAB have timed.

PICO (github.com/HLC-Lab/pico @413bc5d): bench/bench_utils.c writes a file
COUNT_ALGORITHM_TYPE.csv with a line for each iteration, in ns: ``highest``, of the
slowest rank, and maybe those of all ranks. plot/summarize_data.py makes a table of many
such, aggregated_results_summary.csv, whose ``buffer_size`` is what a rank sends to all
ranks, itself among them. The condensed table has seconds, and bytes for each pair.

CRAB (github.com/HLC-Lab/CRAB, docs/using/results.md): data_app_ID.csv has ``run_id``,
``msg_size`` (B, here for each pair of ranks) and a column ID_METRIC_UNIT for each
metric, of which that of the slowest rank counts.

All raise InputError, with the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber

_REMEDY = "Correct that line."

# ------------------------------------------------------------------------------------------- epochs

_EPOCH_COLUMNS = ("model", "gpus", "local_batch_size", "epoch", "iterations", "epoch_s")
"""Columns that a log must have. ``hosts`` may be there, and others are ignored."""


def read_epochs(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Yield the seconds of an iteration, the mean of an epoch, for each line of an
    epoch log.

    They are epoch_s over iterations; ``count`` has the iterations. Hosts are nan
    without a column or cell of hosts.

    Raises:
        InputError: a cell is not valid, a model has no name, or hosts exceed gpus.
    """
    for line_number, cells in source.csv_records(_EPOCH_COLUMNS):
        gpus, batch, epoch, iterations = (
            source.read_whole(line_number, cells[name], name, minimum=1)
            for name in ("gpus", "local_batch_size", "epoch", "iterations")
        )
        seconds = (
            source.read_positive(line_number, cells["epoch_s"], "epoch_s (s)")
            / iterations
        )
        model = cells["model"]
        if not model:
            raise source.error_in_line(
                line_number, "model must be a name", "nothing", _REMEDY
            )
        hosts = math.nan
        if hosts_cell := cells.get("hosts"):
            hosts = float(
                source.read_whole(line_number, hosts_cell, "hosts", minimum=1)
            )
            if hosts > gpus:
                rule = f"hosts must not exceed the {gpus} gpus"
                raise source.error_in_line(line_number, rule, hosts_cell, _REMEDY)
        yield MeasuredNumber(
            source=source.name,
            line=line_number,
            tool="epochs",
            operation="iteration",
            ranks=gpus,
            hosts=hosts,
            seconds=seconds,
            count=iterations,
            model=model,
            epoch=epoch,
            batch=batch,
        )


# --------------------------------------------------------------------------------------------- PICO

_CONDENSED_COLUMNS = (
    *(
        "system",
        "nodes",
        "ranks_per_node",
        "ranks",
        "algorithm",
        "bytes_per_pair",
        "median_s",
    ),
    "iterations",
)
_SUMMARY_COLUMNS = (
    *(
        "collective_type",
        "buffer_size",
        "algo_name",
        "median",
        "nnodes",
        "tasks_per_node",
    ),
    *("n_iter", "system"),
)


@dataclass(frozen=True)
class PicoColumns:
    """The columns that PICO's condensed table and its summary name differently."""

    hosts: str
    ranks_per_host: str
    algorithm: str
    iterations: str


_COLUMNS_OF_CONDENSED = PicoColumns(
    "nodes", "ranks_per_node", "algorithm", "iterations"
)
_COLUMNS_OF_SUMMARY = PicoColumns("nnodes", "tasks_per_node", "algo_name", "n_iter")
_NBYTES_OF_TYPE = {
    "int8": 1,
    "char": 1,
    "int16": 2,
    "int32": 4,
    "int": 4,
    "float": 4,
} | {
    "int64": 8,
    "double": 8,
}
"""Bytes of an element by PICO's name of its type."""
_RAW_NAME = re.compile(rf"(\d{{1,18}})_(.+)_({'|'.join(_NBYTES_OF_TYPE)})\.csv")
_GRID = re.compile(r"[0-9]{1,9}(?:x[0-9]{1,9})*")
WARM_UP = 0.2
"""Share of the iterations that come first and are left out, as by summarize_data.py."""


def read_pico(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Yield the all-to-alls of PICO's summary or condensed table.

    Bytes are those of a pair of ranks, and seconds the table's median. Other
    collectives of a summary are left out; a condensed table has all-to-alls alone.

    Raises:
        InputError: a cell is not valid, or the all-to-alls are of several systems.
    """
    is_condensed = "bytes_per_pair" in source.text.lstrip("\n").split("\n", 1)[0]
    systems: dict[str, None] = {}
    for line_number, cells in source.csv_records(
        _CONDENSED_COLUMNS if is_condensed else _SUMMARY_COLUMNS
    ):
        if not is_condensed and cells["collective_type"].upper() != "ALLTOALL":
            continue
        systems[cells["system"]] = None
        if len(systems) > 1:
            remedy = "Keep the lines of one system."
            raise source.error_in_line(
                line_number,
                "all lines must be of one system",
                ", ".join(systems),
                remedy,
            )
        yield read_pico_row(source, line_number, cells, is_condensed=is_condensed)


def read_pico_row(
    source: MeasurementFile,
    line_number: int,
    cells: dict[str, str],
    *,
    is_condensed: bool,
) -> MeasuredNumber:
    """Return the all-to-all of a line of PICO's summary, or of its condensed table.

    Raises:
        InputError: a cell is not valid, or there are fewer than 2 ranks.
    """
    columns = _COLUMNS_OF_CONDENSED if is_condensed else _COLUMNS_OF_SUMMARY
    hosts = _read_num_hosts(source, line_number, cells, columns.hosts)
    ranks_per_host = source.read_whole(
        line_number, cells[columns.ranks_per_host], columns.ranks_per_host, minimum=1
    )
    ranks = hosts * ranks_per_host
    if ranks < 2:
        rule = "a collective needs at least 2 ranks"
        raise source.error_in_line(line_number, rule, str(ranks), _REMEDY)

    read_size_and_time = (
        _read_condensed_size_and_time if is_condensed else _read_summary_size_and_time
    )
    nbytes, seconds = read_size_and_time(source, line_number, cells, ranks)

    if not cells[columns.algorithm]:
        rule = f"{columns.algorithm} must be a name"
        raise source.error_in_line(line_number, rule, "nothing", _REMEDY)
    iterations = source.read_whole(
        line_number, cells[columns.iterations], columns.iterations, minimum=1
    )
    return MeasuredNumber(
        source=source.name,
        line=line_number,
        tool="pico",
        operation="all_to_all",
        ranks=ranks,
        hosts=float(hosts),
        nbytes=nbytes,
        seconds=seconds,
        count=iterations,
        algorithm=cells[columns.algorithm],
    )


def _read_num_hosts(
    source: MeasurementFile, line_number: int, cells: dict[str, str], column: str
) -> int:
    """Read the number of hosts, which may be a grid like 8x8x8: the product.

    Raises:
        InputError: the cell is neither a number nor a grid, or has a side of 0.
    """
    if _GRID.fullmatch(cells[column]) is None:
        rule = f"{column} must be a number, or a grid such as 8x8x8"
        raise source.error_in_line(line_number, rule, cells[column], _REMEDY)
    return math.prod(
        source.read_whole(line_number, side, column, minimum=1)
        for side in cells[column].split("x")
    )


def _read_condensed_size_and_time(
    source: MeasurementFile, line_number: int, cells: dict[str, str], ranks: int
) -> tuple[float, float]:
    """Read the bytes of a pair of ranks and the seconds from a line of the condensed
    table.

    Raises:
        InputError: the line states another number of ranks than ``ranks``, or a size or
            a time that is not valid.
    """
    stated_ranks = source.read_whole(line_number, cells["ranks"], "ranks")
    if stated_ranks != ranks:
        rule = f"ranks must be nodes x ranks_per_node, {ranks}"
        raise source.error_in_line(line_number, rule, str(stated_ranks), _REMEDY)
    nbytes = source.read_number(
        line_number, cells["bytes_per_pair"], "bytes_per_pair (B)"
    )
    seconds = source.read_positive(line_number, cells["median_s"], "median_s (s)")
    return nbytes, seconds


def _read_summary_size_and_time(
    source: MeasurementFile, line_number: int, cells: dict[str, str], ranks: int
) -> tuple[float, float]:
    """Read the bytes of a pair of ranks and the seconds from a line of the summary,
    which states the bytes of one of the ``ranks`` and nanoseconds.

    Raises:
        InputError: a size or a time is not valid.
    """
    buffer_nbytes = source.read_number(
        line_number, cells["buffer_size"], "buffer_size (B)"
    )
    nanoseconds = source.read_positive(line_number, cells["median"], "median (ns)")
    return buffer_nbytes / ranks, nanoseconds * 1e-9


def read_pico_raw(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Yield one all-to-all: the median of PICO's iterations after those that warm up;
    none without iterations.

    Bytes (of a pair of ranks), algorithm and type are read from the file's name. The
    ranks are read from its columns, if it has one for each, else from the options.
    Seconds are those of the slowest rank, and ``count`` has the iterations after the
    first `WARM_UP`. Hosts are nan if no option gives them.

    Raises:
        InputError: the file is not called as PICO does, a time is not above 0, or
            nothing gives at least 2 ranks.
    """
    if (name_parts := _RAW_NAME.fullmatch(source.name)) is None:
        rule = "must be called COUNT_ALGORITHM_TYPE.csv, as PICO calls it"
        raise source.error_in_line(0, rule, source.name, "Give the file that name.")
    times = []
    num_rank_columns = 0
    for line_number, cells in source.csv_records(("highest",)):
        num_rank_columns = len(cells) - 1
        times.append(
            source.read_positive(line_number, cells["highest"], "highest (ns)") * 1e-9
        )
    if not times:
        return
    ranks, hosts = (
        (num_rank_columns, source.hosts)
        if num_rank_columns > 1
        else source.ranks_and_hosts()
    )
    nbytes = int(name_parts[1]) * _NBYTES_OF_TYPE[name_parts[3]] / ranks
    steady_times = times[int(len(times) * WARM_UP) :]
    yield MeasuredNumber(
        source=source.name,
        line=1,
        tool="pico",
        operation="all_to_all",
        ranks=ranks,
        hosts=hosts,
        nbytes=nbytes,
        seconds=median(steady_times),
        count=len(steady_times),
        algorithm=name_parts[2],
    )


# --------------------------------------------------------------------------------------------- CRAB

_SLOWEST_RANK = re.compile(r"\d+_Max-Duration_s")


def read_crab(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Yield an all-to-all for each sample of CRAB: the seconds of the slowest rank.

    Bytes are those of a pair of ranks. The ranks come from the options, and the hosts,
    too, which may be nan.

    Raises:
        InputError: no option gives at least 2 ranks, a cell is not valid, or there is
            not exactly one column ID_Max-Duration_s.
    """
    ranks, hosts = source.ranks_and_hosts()
    for line_number, cells in source.csv_records(("run_id", "msg_size")):
        slowest_columns = [name for name in cells if _SLOWEST_RANK.fullmatch(name)]
        if len(slowest_columns) != 1:
            rule = "must have one column ID_Max-Duration_s"
            remedy = "Collect it with a wrapper of blink."
            raise source.error_in_line(1, rule, ", ".join(cells), remedy)
        nbytes = source.read_number(line_number, cells["msg_size"], "msg_size (B)")
        seconds = source.read_positive(
            line_number, cells[slowest_columns[0]], slowest_columns[0]
        )
        yield MeasuredNumber(
            source.name,
            line_number,
            "crab",
            "all_to_all",
            ranks,
            hosts,
            nbytes,
            seconds,
        )
