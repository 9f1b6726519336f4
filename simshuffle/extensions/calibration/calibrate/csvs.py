"""Readers of tables in CSV: epoch logs, and all-to-alls that PICO and CRAB have timed.

PICO (github.com/HLC-Lab/pico @413bc5d): bench/bench_utils.c writes a file COUNT_ALGORITHM_TYPE.csv
with a line for each iteration, in ns: ``highest``, of the slowest rank, and maybe those of all
ranks. plot/summarize_data.py makes a table of many such, aggregated_results_summary.csv, whose
``buffer_size`` is what a rank sends to all ranks, itself among them. The condensed table has
seconds, and bytes for each pair.

CRAB (github.com/HLC-Lab/CRAB, docs/using/results.md): data_app_ID.csv has ``run_id``, ``msg_size``
(B, here for each pair of ranks) and a column ID_METRIC_UNIT for each metric, of which that of the
slowest rank counts.

All raise InputError, with the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from statistics import median

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber

_REMEDY = "Correct that line."

# ------------------------------------------------------------------------------------------- epochs

_EPOCHS = ("model", "gpus", "local_batch_size", "epoch", "iterations", "epoch_s")
"""Columns that a log must have. ``hosts`` may be there, and others are ignored."""


def epochs(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Seconds of an iteration, a row for each line of the log."""
    for number, cells in source.records(_EPOCHS):
        gpus, batch, epoch, iterations = (
            source.whole(number, cells[name], name, least=1)
            for name in ("gpus", "local_batch_size", "epoch", "iterations")
        )
        seconds = source.positive(number, cells["epoch_s"], "epoch_s (s)") / iterations
        model, given = cells["model"], cells.get("hosts")
        if not model:
            raise source.bad(number, "model must be a name", "nothing", _REMEDY)
        hosts = float(source.whole(number, given, "hosts", least=1)) if given else math.nan
        if given and hosts > gpus:
            raise source.bad(number, f"hosts must not exceed the {gpus} gpus", given, _REMEDY)
        where = (source.name, number, "epochs", "iteration", gpus, hosts)
        yield MeasuredNumber(
            *where, seconds=seconds, count=iterations, model=model, epoch=epoch, batch=batch
        )


# --------------------------------------------------------------------------------------------- PICO

_CONDENSED = (
    *("system", "nodes", "ranks_per_node", "ranks", "algorithm", "bytes_per_pair", "median_s"),
    "iterations",
)
_SUMMARY = (
    *("collective_type", "buffer_size", "algo_name", "median", "nnodes", "tasks_per_node"),
    *("n_iter", "system"),
)
_SIZES = {"int8": 1, "char": 1, "int16": 2, "int32": 4, "int": 4, "float": 4} | {
    "int64": 8,
    "double": 8,
}
"""Bytes of an element by PICO's name of its type."""
_RAW_NAME = re.compile(rf"(\d{{1,18}})_(.+)_({'|'.join(_SIZES)})\.csv")
_GRID = re.compile(r"[0-9]{1,9}(?:x[0-9]{1,9})*")
WARM_UP = 0.2
"""Share of the iterations that come first and are left out, as by summarize_data.py."""


def pico(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """The all-to-alls of a summary, or of the condensed table; other collectives are left out."""
    condensed = "bytes_per_pair" in source.text.lstrip("\n").split("\n", 1)[0]
    systems: dict[str, None] = {}
    for number, cells in source.records(_CONDENSED if condensed else _SUMMARY):
        if not condensed and cells["collective_type"].upper() != "ALLTOALL":
            continue
        systems[cells["system"]] = None
        if len(systems) > 1:
            remedy = "Keep the lines of one of them."
            raise source.bad(number, "must be of one system", ", ".join(systems), remedy)
        yield _of_pico(source, number, cells, condensed=condensed)


def _of_pico(
    source: MeasurementFile, number: int, cells: dict[str, str], *, condensed: bool
) -> MeasuredNumber:
    grid, each, algorithm, value, count = (
        ("nodes", "ranks_per_node", "algorithm", "median_s", "iterations")
        if condensed
        else ("nnodes", "tasks_per_node", "algo_name", "median", "n_iter")
    )
    if _GRID.fullmatch(cells[grid]) is None:
        raise source.bad(number, f"{grid} must be a number, or like 8x8x8", cells[grid], _REMEDY)
    hosts = math.prod(source.whole(number, of, grid, least=1) for of in cells[grid].split("x"))
    ranks = hosts * source.whole(number, cells[each], each, least=1)
    if ranks < 2:
        raise source.bad(number, "a collective needs at least 2 ranks", str(ranks), _REMEDY)
    if condensed:
        if (told := source.whole(number, cells["ranks"], "ranks")) != ranks:
            rule = f"ranks must be nodes x ranks_per_node, {ranks}"
            raise source.bad(number, rule, str(told), _REMEDY)
        nbytes = source.number(number, cells["bytes_per_pair"], "bytes_per_pair (B)")
        seconds = source.positive(number, cells[value], "median_s (s)")
    else:
        nbytes = source.number(number, cells["buffer_size"], "buffer_size (B)") / ranks
        seconds = source.positive(number, cells[value], "median (ns)") * 1e-9
    if not cells[algorithm]:
        raise source.bad(number, f"{algorithm} must be a name", "nothing", _REMEDY)
    where = (source.name, number, "pico", "all_to_all", ranks, float(hosts), nbytes, seconds)
    iterations = source.whole(number, cells[count], count, least=1)
    return MeasuredNumber(*where, count=iterations, algorithm=cells[algorithm])


def pico_raw(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """One row: the median of the iterations after those that warm up."""
    if (named := _RAW_NAME.fullmatch(source.name)) is None:
        rule = "must be called COUNT_ALGORITHM_TYPE.csv, as PICO does"
        raise source.bad(0, rule, source.name, "Give it that name.")
    times, listed = [], 0
    for number, cells in source.records(("highest",)):
        listed = len(cells) - 1
        times.append(source.positive(number, cells["highest"], "highest (ns)") * 1e-9)
    if not times:
        return
    ranks, hosts = (listed, source.hosts) if listed > 1 else source.layout()
    nbytes = int(named[1]) * _SIZES[named[3]] / ranks
    kept = times[int(len(times) * WARM_UP) :]
    where = (source.name, 1, "pico", "all_to_all", ranks, hosts, nbytes, median(kept))
    yield MeasuredNumber(*where, count=len(kept), algorithm=named[2])


# --------------------------------------------------------------------------------------------- CRAB

_SLOWEST = re.compile(r"\d+_Max-Duration_s")


def crab(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """A row for each sample: seconds of the slowest rank."""
    ranks, hosts = source.layout()
    for number, cells in source.records(("run_id", "msg_size")):
        columns = [name for name in cells if _SLOWEST.fullmatch(name)]
        if len(columns) != 1:
            rule = "must have one column ID_Max-Duration_s"
            raise source.bad(1, rule, ", ".join(cells), "Collect it with a wrapper of blink.")
        nbytes = source.number(number, cells["msg_size"], "msg_size (B)")
        seconds = source.positive(number, cells[columns[0]], columns[0])
        yield MeasuredNumber(
            source.name, number, "crab", "all_to_all", ranks, hosts, nbytes, seconds
        )
