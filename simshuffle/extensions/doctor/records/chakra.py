"""Execution traces of Chakra (MLCommons), from whoever wrote them, as a record.

A batch is waited for while its node of the kind BATCH runs, as far as nothing is computed or summed
then. Nodes that are computed are told apart by their names: forward, backward, optimizer or update.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path

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
from simshuffle.extensions.doctor.records.files import unpacked
from simshuffle.extensions.doctor.records.record import Record, joined
from simshuffle.extensions.doctor.records.spans import covered


def ranks_in(folder: Path) -> list[Path]:
    """The traces of a folder, in the order of the ranks that their names end with."""
    files = sorted(folder.glob("*.et"), key=lambda path: (_rank(path), path.name))
    return [path for path in files if is_chakra(unpacked(path, 64)[0])]


def _rank(path: Path) -> int:
    """The rank that a name says, as in `trace.12.et`; 0 if it says none."""
    found = re.search(r"\.(\d{1,9})\.et$", path.name)
    return int(found[1]) if found else 0


def read_chakra(path: Path) -> Record:
    """The record of a trace, or of a folder with one for each rank. Raises an InputError if one is
    not whole, of another schema, or holds nothing that takes time."""
    files = ranks_in(path) if path.is_dir() else [path]
    parts, left, saved = list[pd.DataFrame](), Counter[str](), 0.0
    versions = list[str]()
    for file in files:
        nodes, version = read_nodes(file)
        versions += [version] * bool(version)
        parts.append(pd.DataFrame(_rows(nodes)).assign(rank=_rank(file)))
        for node in nodes:
            if node.kind == CHECKPOINT:
                saved = max(saved, node.seconds)
            elif _operation(node) is None and node.kind != BATCH:
                left[_KINDS.get(node.kind, "others")] += 1
    rows: pd.DataFrame = pd.concat(parts, ignore_index=True)
    if rows.empty or not (rows["seconds"] > 0).any():
        rule, remedy = "must have nodes that take time", "Give traces with durations."
        refuse("RECORD", rule, f"{len(rows)} nodes", remedy, str(path))
    notes = [f"{count} nodes are no part of a record: {what}." for what, count in left.items()]
    notes += dict.fromkeys(versions)
    notes += ["Times are those of a plan, in whole microseconds: what waits for what decides them."]
    if saved:
        notes.append(f"The longest checkpoint took {saved:.3g} s.")
    if not (rows["operation"] == "wait").any():
        notes.append("The trace has no batches: waits for them are not in it.")
    sums = rows[(rows["operation"] == "allreduce") & (rows["rank"] == rows["rank"].min())]
    of_last = sums["nbytes"][sums["batch"] == sums["batch"].max()]
    buckets = [int(nbytes) for nbytes in of_last if nbytes > 1]  # one byte: a barrier
    model = {"model": {"gradient_nbytes": sum(buckets), "buckets": buckets}} if buckets else {}
    about = {"made_by": "chakra", "ranks": len(files), **model, "notes": notes}
    return Record(joined(parts), about, str(path))


_KINDS = {SEND: "messages", RECV: "messages", STORAGE: "other operations of storage"}


def _operation(node: ChakraNode) -> str | None:
    """What a node is in a record; None if it is nothing there."""
    if node.kind == COLL:
        return "allreduce"
    if node.kind == STORAGE and node.storage:
        return {**dict.fromkeys(READS, "read"), **dict.fromkeys(OPENS, "open")}.get(node.storage.op)
    if node.kind != COMP:
        return None
    name = node.name.lower()
    for word, operation in _WORDS.items():
        if word in name:
            return operation
    return "transform" if node.attributes.get("is_cpu_op") else None


_WORDS = {"backward": "backward", "forward": "forward", "optimizer": "optimizer"}
_WORDS |= {"update": "optimizer"}


def _rows(nodes: list[ChakraNode]) -> list[dict[str, float | int | str]]:
    """Rows of a rank's nodes. A batch is waited for as long as nothing is computed or summed while
    it is fetched; without nodes of batches, all is one step."""
    times = _times(nodes)
    first = min((start for start, _ in times.values()), default=0.0)
    last = max((end for _, end in times.values()), default=0.0)
    fetched = sorted(times[node.id] for node in nodes if node.kind == BATCH)
    busy = [times[node.id] for node in nodes if node.kind in {COMP, COLL}]
    hidden = covered([(round(start * 1e9), round(end * 1e9)) for start, end in busy])
    waits = [
        max(end - start - hidden(round(start * 1e9), round(end * 1e9)) / 1e9, 0.0)
        for start, end in fetched
    ]
    begins = [end for _, end in fetched] or [first]
    asked = [end - wait for (_, end), wait in zip(fetched, waits, strict=True)]
    until = [*asked[1:], last]
    rows = list[dict[str, float | int | str]]()
    for batch, ((start, _), wait) in enumerate(zip(fetched, waits, strict=True)):
        rows.append({"operation": "wait", "batch": batch, "start_s": start, "seconds": wait})
    for batch, (start, end) in enumerate(zip(begins, until, strict=True)):
        seconds = max(end - start, 0.0)
        rows.append({"operation": "step", "batch": batch, "start_s": start, "seconds": seconds})
    for node in nodes:
        if (operation := _operation(node)) is not None:
            start, end = times[node.id]
            batch = max(bisect_right(begins, start) - 1, 0)
            nbytes = node.storage.nbytes if node.storage else node.attributes.get("comm_size", 0)
            known = {"start_s": start, "seconds": end - start, "nbytes": nbytes}
            rows.append({"operation": operation, "batch": batch, "count": 1, **known})
    return rows


def _times(nodes: list[ChakraNode]) -> dict[int, tuple[float, float]]:
    """When each node begins and ends (s): as it is told, else when all before it have ended."""
    told = any(node.start_s for node in nodes)
    out = dict[int, tuple[float, float]]()
    for node in nodes:
        ends = (out[one][1] for one in node.after if one in out)
        start = node.start_s if told else max(ends, default=0.0)
        out[node.id] = (start, start + node.seconds)
    return out
