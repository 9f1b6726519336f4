"""Whether cells are too much for this machine, by their estimates, before the first one begins."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import InputError, Problem
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.standing import CellTimes, calibrations, duration

LONGEST_S = 24 * 3600.0
"""s that cells may take in all by estimate (chosen: who means more says so)."""
MOST_SLOWER = 3.0
"""Times by which this machine may seem slower than estimates say: it is learned from short cells
for the most part, beside other work (chosen)."""
REMEDY = (
    "Ask for fewer {of}ranks, epochs or samples, or of a run for a time_tolerance; --force-size"
    " tries it all the same."
)
GROUPS = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, of version 2 and 1: its limit, what is in use, and in memory.stat that
part of it which the system gives up for others."""


class Room(NamedTuple):
    """What cells may take where they are done."""

    memory: float  # bytes that are free; infinite where that is not known
    at_once: int  # cells


def check_size(cells: Collection[Cell], room: Room) -> None:
    """See that each of the cells has enough memory, and that all end within `LONGEST_S`: by their
    costs, as such cells took on this machine.

    Raises:
        InputError: one needs more, or all take longer.
    """
    if not cells:
        return
    problems = []
    largest = max(cells, key=lambda cell: cell.memory)
    if largest.memory > room.memory:
        rule = f"must fit the memory that is free, {_gb(room.memory)}"
        value = f"{_gb(largest.memory)} by estimate, {largest.label}"
        problems.append(Problem("memory", rule, value, REMEDY.format(of="")))
    known = calibrations()
    slower = {kind: min(of.factor, MOST_SLOWER) for kind, of in known.items()}
    costs = [cell.cost * slower.get(cell.timed_as, CellTimes().factor) for cell in cells]
    seconds = max(*costs, sum(costs) / min(room.at_once, len(costs)), 0.0)
    if seconds > LONGEST_S:
        rule = f"must end within {duration(LONGEST_S)} on this machine"
        value = f"{duration(seconds)} by estimate, {len(costs)} to do, {room.at_once} at once"
        remedy = REMEDY.format(of="values, seeds, " if len(costs) > 1 else "")
        problems.append(Problem("time", rule, value, remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB"


def available_memory() -> float:
    """Bytes that new processes can take: what the system calls available, within the limit of the
    control group and of those that it is in; infinite where none is told."""
    found = [float("inf")]
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(":") for line in lines)
        found.append(1024 * float(values["MemAvailable"].split()[0]))
    for group in _groups():
        for limit, current, given_up in LIMITS:
            with suppress(OSError, ValueError):  # 'max' where there is no limit
                most = float((group / limit).read_text(encoding="utf-8"))
                used = float((group / current).read_text(encoding="utf-8"))
                found.append(most - used + _of_stat(group, given_up))
    return min(found)


def _of_stat(group: Path, name: str) -> float:
    with suppress(OSError, ValueError, KeyError):
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
        return float(dict(line.split() for line in lines)[name])
    return 0.0


def _groups() -> list[Path]:
    """The folders of the control groups of this process that may limit its memory."""
    found = [GROUPS, GROUPS / "memory"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                top = GROUPS / controllers
                inner = top / path.strip("/")
                found += [of for of in (inner, *inner.parents) if of.is_relative_to(top)]
    return list(dict.fromkeys(found))
