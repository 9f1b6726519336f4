"""Check before the first cell begins that the cells fit this machine, by their
estimates.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import InputError, Problem
from simshuffle.study.cell import Cell
from simshuffle.study.cell_times import CellTimes, calibrations
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.standing import duration

LONGEST_S = 24 * 3600.0
"""s that cells may take in all by estimate (chosen: who means more says so)."""
MAX_SLOWNESS = 3.0
"""Times by which this machine may seem slower than estimates say: it is learned from
short cells for the most part, beside other work (chosen).
"""
REMEDY = (
    "Ask for fewer {of}ranks, epochs or samples, or give a run a time_tolerance. With"
    " --force-size, simshuffle tries in spite of the estimate."
)
CONTROL_GROUPS = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, of version 2 and 1: its limit, what is in use, and in
memory.stat that part of it which the system gives up for others.
"""


class Resources(NamedTuple):
    """Memory and processes that cells may use where they run."""

    memory: float  # bytes that are free; infinite where that is not known
    at_once: int  # cells


def check_size(cells: Collection[Cell], resources: Resources) -> None:
    """Check that each of the cells has enough memory, and all end within `LONGEST_S`.

    Without cells nothing is checked. Memory is checked for the largest cell alone, not
    for cells that run at once.

    Times are the costs, times what such cells took on this machine over their costs, at
    most `MAX_SLOWNESS`. Cells share ``resources.at_once`` processes.

    Raises:
        InputError: the largest cell needs more memory, or all together take longer.
    """
    if not cells:
        return
    problems = []
    largest = max(cells, key=lambda cell: cell.memory)
    if largest.memory > resources.memory:
        rule = f"must fit into the free memory, {_gb(resources.memory)}"
        value = f"{_gb(largest.memory)} by estimate, {largest.label}"
        problems.append(Problem("memory", rule, value, REMEDY.format(of="")))
    times_of_kind = calibrations()
    slowness_of_kind = {
        kind: min(times.factor, MAX_SLOWNESS) for kind, times in times_of_kind.items()
    }
    costs = [
        cell.cost * slowness_of_kind.get(cell.timed_as, CellTimes().factor)
        for cell in cells
    ]
    # the longest cell by itself, or all of them shared among the processes
    seconds = max(*costs, sum(costs) / min(resources.at_once, len(costs)), 0.0)
    if seconds > LONGEST_S:
        rule = f"must end within {duration(LONGEST_S)} on this machine"
        value = f"{duration(seconds)} by estimate, {len(costs)} to do, {resources.at_once} at once"
        remedy = REMEDY.format(of="values, seeds, " if len(costs) > 1 else "")
        problems.append(Problem("time", rule, value, remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _gb(nbytes: float) -> str:
    """Format bytes as GB with three digits."""
    return f"{nbytes / 1e9:.3g} GB"


def available_memory() -> float:
    """Return the bytes that new processes can take; infinite where none are known, and
    negative where a limit is exceeded.

    It is the memory that the system calls available, or what a limit of the control
    group or its parents leaves, if that is less.
    """
    limits = [float("inf")]
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(":") for line in lines)
        limits.append(1024 * float(values["MemAvailable"].split()[0]))
    for group in _find_control_groups():
        for limit, current, given_up in LIMITS:
            with suppress(OSError, ValueError):  # 'max' where there is no limit
                limit_nbytes = float((group / limit).read_text(encoding="utf-8"))
                used_nbytes = float((group / current).read_text(encoding="utf-8"))
                limits.append(
                    limit_nbytes - used_nbytes + _read_memory_stat(group, given_up)
                )
    return min(limits)


def _read_memory_stat(group: Path, name: str) -> float:
    """Return the number ``name`` (bytes) of a control group's memory.stat; 0 if it has
    none.
    """
    with suppress(OSError, ValueError, KeyError):
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
        return float(dict(line.split() for line in lines)[name])
    return 0.0


def _find_control_groups() -> list[Path]:
    """Return the folders of the control groups of this process that may limit its
    memory, its own group and all around it.

    Some may not exist.
    """
    folders = [CONTROL_GROUPS, CONTROL_GROUPS / "memory"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                top = CONTROL_GROUPS / controllers
                inner = top / path.strip("/")
                folders += [
                    folder
                    for folder in (inner, *inner.parents)
                    if folder.is_relative_to(top)
                ]
    return list(dict.fromkeys(folders))
