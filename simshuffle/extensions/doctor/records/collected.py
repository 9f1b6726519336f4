"""One record from what the processes of a training wrote down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import CODES, FIELDS, OPERATIONS, ROW, SUFFIX
from simshuffle.extensions.doctor.records.record import Record, framed

_LAYOUT = np.dtype(
    [
        (name, "<" + {"i": "i4", "h": "i2", "q": "i8"}[code])
        for name, code in zip(FIELDS, ROW.format[1:], strict=True)
    ]
)
_OF_A_RANK = ("loaders", "host", "threads", "torch", "device", "model")
"""What is taken from the process of the first rank that knows it."""
PLACE = ("operation", "file", "function", "line", "calls", "transforms")
"""What a place says of itself, beside how often it was seen
(`simshuffle.extensions.doctor.recorder.places.Key`)."""
_NOTHING_SEEN = {
    "python": "Run it by the interpreter itself, without -S, -I or -E, and hand PYTHONPATH and "
    "SIMSHUFFLE_RECORD on to it.",
    "torch": "Check that the command starts the training and not only other processes.",
    "loop": "Check that it goes through a torch DataLoader at all.",
}


@dataclass(eq=False)
class _Process:
    """What one process wrote down."""

    facts: Mapping[str, Any]
    rows: np.ndarray[Any, np.dtype[Any]]  # of `_LAYOUT`
    cut: bool  # whether its last row is

    @property
    def host(self) -> object:
        return self.facts.get("host", {}).get("name")


def collected(folder: Path, about: Mapping[str, Any]) -> Record:
    """The record from a folder of rows and facts of processes, as
    `simshuffle.extensions.doctor.recorder` writes them.

    Rows of workers get the rank, loader and epoch of the process that started them. Ranks that the
    training does not name are numbered in the order in which they took their first batch.

    Args:
        folder: with `PID.rows` and `PID.json`.
        about: what is known besides, as in `Record.about`; `command` is named if nothing was seen.

    Raises:
        InputError: no process wrote a row.
    """
    processes = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not any(len(process.rows) for process in processes):
        _refuse_empty(processes, about, str(folder))
    _on_one_clock(processes)
    ranks = _ranks(processes)
    for process in processes:
        _place(process, processes, ranks)
    rows = np.concatenate([process.rows for process in processes])
    columns: dict[str, Any] = {name: rows[name] for name in FIELDS}
    columns["operation"] = np.array(list(OPERATIONS), dtype=object)[rows["operation"]]
    columns["start_s"] = (rows["start"] - rows["start"].min()) / 1e9
    columns["seconds"] = rows["duration"] / 1e9
    for column, name, unit in (("cpu_s", "cpu", 1e9), ("queued_s", "queued", 1e9)):
        columns[column] = np.where(rows[name] < 0, np.nan, rows[name] / unit)
    columns["disk_nbytes"] = np.where(rows["disk"] < 0, np.nan, rows["disk"].astype(float))
    first = sorted(ranks, key=lambda process: ranks[process])
    known = {"made_by": "simshuffle", **_known(processes, first), **about}
    known.setdefault("ranks", max(ranks.values(), default=0) + 1)
    return Record(framed(columns), known, str(folder))


def _read(path: Path) -> _Process:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # killed while it began
        facts = {}
    beside = path.with_suffix(SUFFIX)
    packed = beside.read_bytes() if beside.exists() else b""
    whole = len(packed) // ROW.size * ROW.size
    return _Process(facts, np.frombuffer(packed[:whole], _LAYOUT).copy(), whole < len(packed))


def _refuse_empty(processes: Sequence[_Process], about: Mapping[str, Any], source: str) -> None:
    ran = " ".join(map(str, about.get("command", []))) or "the training"
    if not processes:
        seen, remedy = "no Python process that loaded the recorder", _NOTHING_SEEN["python"]
    elif not any("torch" in process.facts for process in processes):
        seen, remedy = f"{len(processes)} without torch", _NOTHING_SEEN["torch"]
    else:
        seen, remedy = f"{len(processes)} without a batch", _NOTHING_SEEN["loop"]
    rule = "must hold a row of one process or more"
    refuse("RECORD", rule, f"{seen} in `{ran}`", remedy, source)


def _on_one_clock(processes: Sequence[_Process]) -> None:
    """Put the rows of all hosts on the clock of the first; that of a host is the same for all its
    processes."""
    clocks: dict[object, int] = {}
    for process in processes:
        if "clock" in process.facts:
            clocks.setdefault(process.host, process.facts["clock"])
    for process in processes:
        if process.host in clocks:
            process.rows["start"] += clocks[process.host] - next(iter(clocks.values()))


def _ranks(processes: Sequence[_Process]) -> dict[_Process, int]:
    """The processes of ranks, with their numbers."""
    wait = CODES["wait"]
    taking = [process for process in processes if (process.rows["operation"] == wait).any()]
    taking.sort(key=lambda process: process.rows["start"].min())
    ranks = {process: process.facts["rank"] for process in taking if "rank" in process.facts}
    free = iter(set(range(len(taking) + len(ranks))) - set(ranks.values()))
    for process in taking:
        if process not in ranks:
            ranks[process] = next(free)
    return ranks


def _place(process: _Process, processes: Sequence[_Process], ranks: Mapping[_Process, int]) -> None:
    """Fill in the rank of a process's rows, and of a worker's the loader and epoch."""
    pid, parent = process.facts.get("pid"), process.facts.get("parent")
    for other, rank in ranks.items():
        if other is process:
            process.rows["rank"] = rank
        elif process.host in {None, other.host} and process not in ranks:
            place = other.facts.get("workers", {}).get(str(pid))
            if place is not None:
                process.rows["loader"] = place[0]
                process.rows["epoch"] += place[1]
            if place is not None or other.facts.get("pid") == parent:
                process.rows["rank"] = rank
    process.rows["rank"] = np.maximum(process.rows["rank"], 0)


def _known(processes: Sequence[_Process], ranks: Sequence[_Process]) -> dict[str, Any]:
    """What is known of the training: of the first rank that says it, and summed over all."""
    known: dict[str, Any] = {}
    for name in _OF_A_RANK:
        for process in ranks:
            if name in process.facts:
                known.setdefault(name, process.facts[name])
    for name in ("changed", "unchanged", "notes"):
        said = [each for process in processes for each in process.facts.get(name, [])]
        if said:
            known[name] = list(dict.fromkeys(said))
    if ranks and all("ranks" in process.facts for process in ranks):
        known["ranks"] = max(process.facts["ranks"] for process in ranks)
    if any(process.facts.get("stopped") for process in processes):
        known["stopped"] = True
    if any("places" in process.facts for process in processes):
        known["places"] = _places(processes)
    if "host" in known and (others := _others(processes, ranks)) is not None:
        known["host"] = {**known["host"], "others": others}
    if cut := sum(process.cut for process in processes):
        note = f"The last row of {cut} of {len(processes)} processes is cut and left out."
        known["notes"] = [*known.get("notes", []), note]
    return known | _files(processes)


def _places(processes: Sequence[_Process]) -> list[dict[str, Any]]:
    """Where the time of fetches and steps was seen to go, by all processes, most often first."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for process in processes:
        for *place, count in process.facts.get("places", []):
            counts[tuple(place)] += count
    return [
        {**dict(zip(PLACE, place, strict=True)), "count": count}
        for place, count in counts.most_common()
    ]


def _others(processes: Sequence[_Process], ranks: Sequence[_Process]) -> float | None:
    """How many of the first rank's cores other programs had in the mean, from its first batch on;
    None if that is not known."""
    known = ranks[0].facts.get("use") if ranks else None
    if known is None or min(known[0][1], known[1][1]) < 0 or known[1][0] <= known[0][0]:
        return None
    begin, end = known
    own = sum(
        use[1][2] - use[0][2]
        for process in processes
        if process.host in {None, ranks[0].host} and (use := process.facts.get("use"))
    )
    return float(max(end[1] - begin[1] - own, 0) / (end[0] - begin[0]))


def _files(processes: Sequence[_Process]) -> dict[str, int]:
    """How many different files were opened, and their bytes.

    Each process keeps those of which a number made of the path is at most its bound, which it
    halves whenever there are too many; below the smallest bound, all have kept the same.
    """
    kept = [process.facts["files"] for process in processes if "files" in process.facts]
    if not kept:
        return {}
    bound = min(each["bound"] for each in kept)
    sizes = {key: size for each in kept for key, size in each["sizes"].items() if int(key) < bound}
    share = bound / 2**32
    return {"files": round(len(sizes) / share), "files_nbytes": round(sum(sizes.values()) / share)}
