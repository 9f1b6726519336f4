"""Collect one record from the rows and facts that the processes of a training wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import (
    CODES,
    FIELDS,
    OPERATIONS,
    ROW,
    SUFFIX,
)
from simshuffle.extensions.doctor.records.record import Record, make_rows

_LAYOUT = np.dtype(
    [
        (name, "<" + {"i": "i4", "h": "i2", "q": "i8"}[code])
        for name, code in zip(FIELDS, ROW.format[1:], strict=True)
    ]
)
_FACTS_OF_A_RANK = (
    *("loaders", "host", "threads", "threads_set_at", "torch", "device", "model"),
)
"""Facts that are taken from the process of the first rank that has them."""
PLACE_FIELDS = ("operation", "file", "function", "line", "calls", "transforms")
"""Fields of a place in the code, beside how often it was seen
(`simshuffle.extensions.doctor.recorder.places.Key`)."""
CALL_FIELDS = ("function", "kind", "file", "caller", "line")
"""Fields of a line that makes a known call, beside its sums
(`simshuffle.extensions.doctor.recorder.known_calls.CallLog.lines`)."""
CALL_SUMS = ("calls", "seconds", "anew", "anew_s")
"""Sums of such a line."""
_REMEDIES = {
    "python": "Run the script by the interpreter itself, without -S, -I or -E, and pass PYTHONPATH "
    "and SIMSHUFFLE_RECORD on to it.",
    "torch": "Check that the command starts the training and not only other processes.",
    "loop": "Check that the training iterates over a torch DataLoader.",
}


@dataclass(eq=False)
class _RecordedProcess:
    """The rows and facts that one process wrote."""

    facts: Mapping[str, Any]  # of its JSON file; {} if it was killed too early
    rows: np.ndarray[Any, np.dtype[Any]]  # of `_LAYOUT`
    is_cut: bool  # whether its last row is incomplete

    @property
    def host(self) -> object:
        """Name of its host; None if not known."""
        return self.facts.get("host", {}).get("name")


def collect_record(folder: Path, about: Mapping[str, Any]) -> Record:
    """Collect the record from a folder of rows and facts of processes, as
    `simshuffle.extensions.doctor.recorder` writes them.

    A process counts by its `PID.json`. Rows of workers get the rank, loader and epoch
    of the process that started them. Rows of hosts whose clock is known are put on the
    clock of the first such host. ``start_s`` counts from the first row. What was not
    measured is NaN.
    Ranks that the training does not name are numbered in the order in which they took
    their first batch. Fact ``ranks`` is the largest rank plus 1 where it is not known.

    Args:
        folder: with `PID.rows` and `PID.json`.
        about: further facts, as in `Record.about`, which replace those of the
            processes; `command` is named if nothing was recorded.

    Raises:
        InputError: no process wrote a row.
    """
    processes = [_read_process(path) for path in sorted(folder.glob("*.json"))]
    if not any(len(process.rows) for process in processes):
        _refuse_empty(processes, about, str(folder))
    _align_clocks(processes)
    rank_of_process = _number_ranks(processes)
    for process in processes:
        _fill_in_rank(process, rank_of_process)
    rows = np.concatenate([process.rows for process in processes])
    columns: dict[str, Any] = {name: rows[name] for name in FIELDS}
    columns["operation"] = np.array(list(OPERATIONS), dtype=object)[rows["operation"]]
    columns["start_s"] = (rows["start"] - rows["start"].min()) / 1e9
    columns["seconds"] = rows["duration"] / 1e9
    columns["cpu_s"] = np.where(rows["cpu"] < 0, np.nan, rows["cpu"] / 1e9)
    columns["queued_s"] = np.where(rows["queued"] < 0, np.nan, rows["queued"] / 1e9)
    columns["disk_nbytes"] = np.where(
        rows["disk"] < 0, np.nan, rows["disk"].astype(float)
    )
    ranks = sorted(rank_of_process, key=lambda process: rank_of_process[process])
    facts = {"made_by": "simshuffle", **_merge_facts(processes, ranks), **about}
    facts.setdefault("ranks", max(rank_of_process.values(), default=0) + 1)
    return Record(make_rows(columns), facts, str(folder))


def _read_process(path: Path) -> _RecordedProcess:
    """Read the facts of a process from a JSON file ({} if it is not readable), and its
    complete rows from the file beside it (none if there is no file).
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # killed while it began
        facts = {}
    rows_path = path.with_suffix(SUFFIX)
    packed = rows_path.read_bytes() if rows_path.exists() else b""
    complete_nbytes = len(packed) // ROW.size * ROW.size
    rows = np.frombuffer(packed[:complete_nbytes], _LAYOUT).copy()
    return _RecordedProcess(facts, rows, is_cut=complete_nbytes < len(packed))


def _refuse_empty(
    processes: Sequence[_RecordedProcess], about: Mapping[str, Any], source: str
) -> None:
    """Raise an InputError on a folder without rows, with what was missing in the
    processes: the recorder, torch or a batch.
    """
    command = " ".join(map(str, about.get("command", []))) or "the training"
    if not processes:
        value = "no Python process that loaded the recorder"
        remedy = _REMEDIES["python"]
    elif not any("torch" in process.facts for process in processes):
        value = f"{len(processes)} without torch"
        remedy = _REMEDIES["torch"]
    else:
        value = f"{len(processes)} without a batch"
        remedy = _REMEDIES["loop"]
    rule = "must hold rows of at least one process"
    refuse("RECORD", rule, f"{value} in `{command}`", remedy, source)


def _align_clocks(processes: Sequence[_RecordedProcess]) -> None:
    """Put the rows of all hosts on the clock of the first host that has one, in place.

    All processes of a host have one clock. Rows of a host without one stay as they are.
    """
    clocks: dict[object, int] = {}
    for process in processes:
        if "clock" in process.facts:
            clocks.setdefault(process.host, process.facts["clock"])
    for process in processes:
        if process.host in clocks:
            process.rows["start"] += clocks[process.host] - next(iter(clocks.values()))


def _number_ranks(processes: Sequence[_RecordedProcess]) -> dict[_RecordedProcess, int]:
    """Return the rank of each process that waited for a batch: the one that it wrote,
    else the lowest free number, in the order of their first rows.
    """
    wait = CODES["wait"]
    takers = [
        process for process in processes if (process.rows["operation"] == wait).any()
    ]
    takers.sort(key=lambda process: process.rows["start"].min())
    ranks = {
        process: process.facts["rank"] for process in takers if "rank" in process.facts
    }
    free_ranks = iter(set(range(len(takers) + len(ranks))) - set(ranks.values()))
    for process in takers:
        if process not in ranks:
            ranks[process] = next(free_ranks)
    return ranks


def _fill_in_rank(
    process: _RecordedProcess, rank_of_process: Mapping[_RecordedProcess, int]
) -> None:
    """Fill in the rank of a process's rows, and the loader and epoch of a worker's; in
    place.

    Workers and other children of a rank's process, on its host or one not known, get
    its rank. The epoch at which a worker was started is added to its rows, so this runs
    once. A process of which no rank is known counts for rank 0.
    """
    pid = process.facts.get("pid")
    parent_pid = process.facts.get("parent")
    for rank_process, rank in rank_of_process.items():
        if rank_process is process:
            process.rows["rank"] = rank
        elif (
            process.host in {None, rank_process.host} and process not in rank_of_process
        ):
            loader_and_epoch = rank_process.facts.get("workers", {}).get(str(pid))
            if loader_and_epoch is not None:
                process.rows["loader"] = loader_and_epoch[0]
                process.rows["epoch"] += loader_and_epoch[1]
            if (
                loader_and_epoch is not None
                or rank_process.facts.get("pid") == parent_pid
            ):
                process.rows["rank"] = rank
    process.rows["rank"] = np.maximum(process.rows["rank"], 0)


def _merge_facts(
    processes: Sequence[_RecordedProcess], ranks: Sequence[_RecordedProcess]
) -> dict[str, Any]:
    """Return the facts of the training, as in `Record.about`: of the first rank that
    has them, or joined over all; sentences on changes and what was not seen come once
    each.

    ``ranks`` is the largest number, if all ranks have one. ``stopped`` is True if any
    process has it, and left out otherwise. A note says how many processes have a last
    row that is cut. Facts of other names are left out.

    Args:
        processes: all that wrote something.
        ranks: those of ranks, in the order of the ranks.
    """
    facts: dict[str, Any] = {}
    for name in _FACTS_OF_A_RANK:
        for process in ranks:
            if name in process.facts:
                facts.setdefault(name, process.facts[name])
    for name in ("changed", "unchanged", "notes"):
        sentences = [
            sentence
            for process in processes
            for sentence in process.facts.get(name, [])
        ]
        if sentences:
            facts[name] = list(dict.fromkeys(sentences))
    if ranks and all("ranks" in process.facts for process in ranks):
        facts["ranks"] = max(process.facts["ranks"] for process in ranks)
    if any(process.facts.get("stopped") for process in processes):
        facts["stopped"] = True
    if any("places" in process.facts for process in processes):
        facts["places"] = _merge_places(processes)
    if any("calls" in process.facts for process in processes):
        facts["calls"] = _merge_calls(processes)
    if "host" in facts:
        if (own_cores := _own_cores(ranks)) is not None:
            facts["host"] = {**facts["host"], "own": own_cores}
        cores_of_others = _cores_of_others(processes, ranks)
        if cores_of_others is not None:
            facts["host"] = {**facts["host"], "others": cores_of_others}
    if num_cut := sum(process.is_cut for process in processes):
        note = f"The last row of {num_cut} of {len(processes)} processes is cut and left out."
        facts["notes"] = [*facts.get("notes", []), note]
    return facts | _count_files(processes)


def _merge_places(processes: Sequence[_RecordedProcess]) -> list[dict[str, Any]]:
    """Return where in the code all processes saw fetches and steps, most often first:
    each with `PLACE_FIELDS` and ``count``.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    for process in processes:
        for *place, count in process.facts.get("places", []):
            counts[tuple(place)] += count
    return [
        {**dict(zip(PLACE_FIELDS, place, strict=True)), "count": count}
        for place, count in counts.most_common()
    ]


def _merge_calls(processes: Sequence[_RecordedProcess]) -> list[dict[str, Any]]:
    """Return the lines of all processes that make known calls, the longest first: each
    with `CALL_FIELDS` and `CALL_SUMS`.
    """
    sums: dict[tuple[Any, ...], list[float]] = {}
    for process in processes:
        for *line, calls, total_ns, anew, anew_ns in process.facts.get("calls", []):
            totals = sums.setdefault(tuple(line), [0, 0.0, 0, 0.0])
            for index, value in enumerate((calls, total_ns / 1e9, anew, anew_ns / 1e9)):
                totals[index] += value
    lines = [
        {
            **dict(zip(CALL_FIELDS, line, strict=True)),
            **dict(zip(CALL_SUMS, totals, strict=True)),
        }
        for line, totals in sums.items()
    ]
    return sorted(lines, key=lambda line: -line["seconds"])


def _own_cores(ranks: Sequence[_RecordedProcess]) -> float | None:
    """Return the mean number of cores that the process of the first rank computed on,
    with all of its threads, from its first batch on; None if that is not known.
    """
    use = ranks[0].facts.get("use") if ranks else None
    if use is None or not use[0][0] or use[1][0] <= use[0][0]:
        return None
    return float((use[1][2] - use[0][2]) / (use[1][0] - use[0][0]))


def _cores_of_others(
    processes: Sequence[_RecordedProcess], ranks: Sequence[_RecordedProcess]
) -> float | None:
    """Return the mean number of the first rank's cores that other programs had, from
    its first batch on (at least 0); None if that is not known.

    Processes of the record on the host of the first rank are no other programs.
    """
    # at the first batch and at the end: moment, time of all programs on the cores, own time (ns)
    use = ranks[0].facts.get("use") if ranks else None
    if use is None or min(use[0][1], use[1][1]) < 0 or use[1][0] <= use[0][0]:
        return None
    begin, end = use
    own_ns = sum(
        process_use[1][2] - process_use[0][2]
        for process in processes
        if process.host in {None, ranks[0].host}
        and (process_use := process.facts.get("use"))
    )
    return float(max(end[1] - begin[1] - own_ns, 0) / (end[0] - begin[0]))


def _count_files(processes: Sequence[_RecordedProcess]) -> dict[str, int]:
    """Return ``files``, the number of different ones that were opened, and their bytes,
    ``files_nbytes``; {} if none was. Both are estimates where a bound was halved.

    A process keeps the files whose path hashes to a number below its bound, which it
    halves whenever there are too many. Below the smallest bound, all processes have
    kept the same files.
    """
    samples = [
        process.facts["files"] for process in processes if "files" in process.facts
    ]
    if not samples:
        return {}
    bound = min(sample["bound"] for sample in samples)
    nbytes_of_file = {
        key: nbytes
        for sample in samples
        for key, nbytes in sample["sizes"].items()
        if int(key) < bound
    }
    share = bound / 2**32
    return {
        "files": round(len(nbytes_of_file) / share),
        "files_nbytes": round(sum(nbytes_of_file.values()) / share),
    }
