"""Read execution traces of Chakra (MLCommons), from any program, as a record.

A loop waits for a batch while the batch's node of the kind BATCH runs and no node of
computing or of a collective does. Nodes of computing are told apart by their names:
forward, backward, optimizer or update.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.chakra_schema import (
    BATCH,
    CHECKPOINT,
    COLL,
    COMP,
    OPENS,
    READS,
    RECV,
    SEND,
    STORAGE,
    ChakraNode,
    is_chakra,
    read_nodes,
)
from simshuffle.extensions.doctor.records.files import read_unpacked
from simshuffle.extensions.doctor.records.record import Record, join_rows
from simshuffle.extensions.doctor.records.spans import coverage_of


def list_chakra_traces(folder: Path) -> list[Path]:
    """Return the traces of a folder, `NAME.RANK.et`, in the order of the ranks in their
    names; files that do not begin as a trace are left out.
    """
    files = sorted(
        folder.glob("*.et"), key=lambda path: (_rank_of_name(path), path.name)
    )
    return [path for path in files if is_chakra(read_unpacked(path, 64)[0])]


def _rank_of_name(path: Path) -> int:
    """Return the rank in a file's name, as in `trace.12.et`; 0 if there is none."""
    match = re.search(r"\.(\d{1,9})\.et$", path.name)
    return int(match[1]) if match else 0


def read_chakra(path: Path) -> Record:
    """Read the record of a trace, or of a folder with one for each rank.

    The rank stands in a file's name; 0 without one. Checkpoints, messages and other
    nodes that are no operation of a record are left out, with a note on them.

    Raises:
        InputError: a trace is not complete or of another schema, or all of them hold
            nothing that takes time.
    """
    files = list_chakra_traces(path) if path.is_dir() else [path]
    parts = list[pd.DataFrame]()
    versions = list[str]()
    num_ignored = Counter[str]()  # nodes that are no part of a record, by kind
    checkpoint_s = 0.0
    for file in files:
        nodes, version_note = read_nodes(file)
        if version_note:
            versions.append(version_note)
        parts.append(
            pd.DataFrame(_rows_of_nodes(nodes)).assign(rank=_rank_of_name(file))
        )
        for node in nodes:
            if node.kind == CHECKPOINT:
                checkpoint_s = max(checkpoint_s, node.seconds)
            elif _operation_of(node) is None and node.kind != BATCH:
                num_ignored[_IGNORED_KINDS.get(node.kind, "others")] += 1
    rows: pd.DataFrame = pd.concat(parts, ignore_index=True)
    if rows.empty or not (rows["seconds"] > 0).any():
        rule = "must have nodes that take time"
        refuse(
            "RECORD",
            rule,
            f"{len(rows)} nodes",
            "Give traces with durations.",
            str(path),
        )

    notes = [
        f"{count} nodes are left out of the record: {kind}."
        for kind, count in num_ignored.items()
    ]
    notes += dict.fromkeys(versions)
    notes += [
        "Times are those of a plan, in whole microseconds: they follow from the dependencies."
    ]
    if checkpoint_s:
        notes.append(f"The longest checkpoint took {checkpoint_s:.3g} s.")
    if not (rows["operation"] == "wait").any():
        notes.append("The trace has no batches: it does not show waits for batches.")
    about = {
        "made_by": "chakra",
        "ranks": len(files),
        **_model_of(rows),
        "notes": notes,
    }
    return Record(join_rows(parts), about, str(path))


def _model_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the fact on the model, from the collectives of the first rank's last batch
    that has any: gradient_nbytes, and buckets (bytes of each); {} without any.
    """
    is_first_rank = rows["rank"] == rows["rank"].min()
    collectives = rows[(rows["operation"] == "allreduce") & is_first_rank]
    last_nbytes = collectives["nbytes"][
        collectives["batch"] == collectives["batch"].max()
    ]
    buckets = [
        int(nbytes) for nbytes in last_nbytes if nbytes > 1
    ]  # one byte: a barrier
    return (
        {"model": {"gradient_nbytes": sum(buckets), "buckets": buckets}}
        if buckets
        else {}
    )


_IGNORED_KINDS = {
    SEND: "messages",
    RECV: "messages",
    STORAGE: "other operations of storage",
}


def _operation_of(node: ChakraNode) -> str | None:
    """Return the operation of a record that a node is; None if it is no part of a
    record, as messages and batches are.

    Computing whose name has no word of `_OPERATION_OF_WORD` is a transform on a CPU, and
    None elsewhere. Of storage, only reading and opening of files are operations.
    """
    if node.kind == COLL:
        return "allreduce"
    if node.kind == STORAGE and node.storage:
        operations = {**dict.fromkeys(READS, "read"), **dict.fromkeys(OPENS, "open")}
        return operations.get(node.storage.op)
    if node.kind != COMP:
        return None
    name = node.name.lower()
    for word, operation in _OPERATION_OF_WORD.items():
        if word in name:
            return operation
    return "transform" if node.attributes.get("is_cpu_op") else None


_OPERATION_OF_WORD = {
    "backward": "backward",
    "forward": "forward",
    "optimizer": "optimizer",
    "update": "optimizer",
}


def _rows_of_nodes(nodes: list[ChakraNode]) -> list[dict[str, float | int | str]]:
    """Return the rows of a rank's nodes, without the rank: waits, steps, then the nodes
    that are operations.

    The loop waits for a batch as long as nothing is computed or summed while the batch
    is fetched. A trace without nodes of batches is one step. The row of a wait ends
    with the fetch, where its step starts. An operation belongs to the batch whose step
    began last before the operation, or else to the first.
    """
    times = _times_of_nodes(nodes)
    trace_start = min((start for start, _ in times.values()), default=0.0)
    trace_end = max((end for _, end in times.values()), default=0.0)
    fetches = sorted(times[node.id] for node in nodes if node.kind == BATCH)
    busy = [times[node.id] for node in nodes if node.kind in {COMP, COLL}]
    busy_ns_between = coverage_of(
        [(round(start * 1e9), round(end * 1e9)) for start, end in busy]
    )
    waits_s = [
        max(
            end - start - busy_ns_between(round(start * 1e9), round(end * 1e9)) / 1e9,
            0.0,
        )
        for start, end in fetches
    ]
    # a step lasts from the end of its fetch until the loop waits for the next batch
    step_starts = [end for _, end in fetches] or [trace_start]
    wait_starts = [
        end - wait_s for (_, end), wait_s in zip(fetches, waits_s, strict=True)
    ]
    step_ends = [*wait_starts[1:], trace_end]
    rows = list[dict[str, float | int | str]]()
    for batch, (start, seconds) in enumerate(zip(wait_starts, waits_s, strict=True)):
        rows.append(
            {"operation": "wait", "batch": batch, "start_s": start, "seconds": seconds}
        )
    for batch, (start, end) in enumerate(zip(step_starts, step_ends, strict=True)):
        seconds = max(end - start, 0.0)
        rows.append(
            {"operation": "step", "batch": batch, "start_s": start, "seconds": seconds}
        )
    for node in nodes:
        if (operation := _operation_of(node)) is not None:
            start, end = times[node.id]
            row: dict[str, float | int | str] = {
                "operation": operation,
                "batch": max(bisect_right(step_starts, start) - 1, 0),
                "count": 1,
                "start_s": start,
                "seconds": end - start,
                "nbytes": node.attributes.get("comm_size", 0),
            }
            if node.storage:
                row["nbytes"] = node.storage.nbytes
            rows.append(row)
    return rows


def _times_of_nodes(nodes: list[ChakraNode]) -> dict[int, tuple[float, float]]:
    """Return the start and end of each node, s, by its id.

    They are the recorded ones. If no node has a recorded start, a node starts when its
    dependencies have ended; dependencies that come later in the list do not count.
    """
    has_starts = any(node.start_s for node in nodes)
    times = dict[int, tuple[float, float]]()
    for node in nodes:
        ends = (
            times[dependency][1]
            for dependency in node.dependencies
            if dependency in times
        )
        start = node.start_s if has_starts else max(ends, default=0.0)
        times[node.id] = (start, start + node.seconds)
    return times
