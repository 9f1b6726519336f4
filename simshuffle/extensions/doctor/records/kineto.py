"""Traces of PyTorch's profiler (Kineto): a file of a rank, or a folder with one for each.

A batch is what is between two calls of a DataLoader, within the steps of the profiler if there are
any; where no DataLoader was called, a step of the profiler is one. What a batch takes is told by

- `enumerate(DataLoader)#...__next__`: the wait;
- operations of autograd (`autograd::engine::evaluate_function: ...`) on whichever thread, or the
  annotation `## backward ##`: the backward pass. With DDP it ends when the sums are in the
  gradients (`torch.distributed.ddp.reducer::copy_bucket_to_grad`);
- the annotation `## forward ##`, else the operations whose backward is seen (arrows `fwdbwd`),
  until the backward pass begins, else `DistributedDataParallel.forward`: the forward pass;
- `Optimizer.step#...`: the optimizer;
- `Memcpy HtoD ...` of the device: the copy;
- kernels of NCCL, or where there are none annotations such as `gloo:all_reduce`: collectives. The
  process waits for what of them no computation hides: no other kernel on any stream, or where the
  processor computes, no operation and no pass.

Where a device computes, passes are timed by the kernels that were launched in them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.chrome import ChromeTrace, is_chrome, read_chrome
from simshuffle.extensions.doctor.records.files import LARGEST, mapping, text, unpacked, whole
from simshuffle.extensions.doctor.records.record import Record, joined
from simshuffle.extensions.doctor.records.spans import Span, covered

_WAIT = r"enumerate\(DataLoader\)#.*__next__$"
_STEP = r"ProfilerStep#?\d+$"
_AUTOGRAD = "autograd::engine::evaluate_function"
_SUMMED = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_COLLECTIVE = r"(?:gloo|nccl|mpi|ucc|xccl|hccl):"
_KERNEL = r"(?i)(?:nccl|rccl)"  # of a collective
_ALLREDUCE = r"(?i)all_?reduce"
_ASKING = r"c10d::|record_param_comms"  # operations that ask for a collective
_DRAWING = (
    r"aten::(?:empty|random_|item|_local_scalar_dense|randperm|scalar_tensor|resize_|resolve_\w+)$"
)
"""Operations that draw the order and the seed of an epoch: all that follows a call of a DataLoader
that had no batch left."""
_SIZES = {
    **{"double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2},
    **{"byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1},
}
"""Bytes of a number, by the names that Kineto gives to types."""
SUFFIXES = (".json", ".json.gz")
"""Of the files of a folder that may be traces."""


def traces_in(folder: Path) -> list[Path]:
    """The traces of a folder, by their names."""
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    return [path for path in files if is_chrome(unpacked(path, 1 << 16)[0])]


def read_kineto(path: Path) -> Record:
    """The record of a trace, or of a folder of traces, one for each rank or several. Raises an
    InputError if one is none, has no steps, or is of several processes."""
    files = traces_in(path) if path.is_dir() else [path]
    parts, notes, sizes = list[pd.DataFrame](), list[str](), list[list[int]]()
    traces = sorted(((read_chrome(file), file) for file in files), key=_first)
    ended: dict[int, tuple[int, int]] = {}  # epoch of each rank, and batches of it so far
    for trace, file in traces:
        rank, batches = _rank(trace, file), _batches(trace, str(file))
        rows, buckets = _rows(trace, batches)
        epoch, count = ended.get(rank, (0, 0))
        rows.loc[rows["epoch"] == 0, "batch"] += count
        rows["epoch"] += epoch
        ended[rank] = (int(rows["epoch"].iloc[-1]), int(rows["batch"].iloc[-1]) + 1)
        parts.append(rows.assign(rank=rank))
        sizes.append(buckets)
        notes += [f"{file.name}: {note}" for note in trace.notes]
    rows = pd.concat(parts, ignore_index=True)
    rows["start_s"] = (rows["start"] - rows["start"].min()) / 1e9
    if len(hosts := {text(trace.about["host_name"]) for trace, _ in traces if _host(trace)}) > 1:
        notes.append(f"Clocks of {len(hosts)} hosts were not compared.")
    first = traces[0][0].about
    notes.append(
        "Batches are counted from the first that was profiled; the workers of loaders"
        " and what they read are not in a trace."
    )
    about = {
        "made_by": "kineto",
        "ranks": max(whole(mapping(first.get("distributedInfo")).get("world_size")), len(ended)),
        **({"host": {"name": text(first["host_name"])}} if _host(traces[0][0]) else {}),
        **_device(first),
        **_model(sizes[0]),
        "notes": notes,
    }
    return Record(joined([rows]), about, str(path))


def _first(found: tuple[ChromeTrace, Path]) -> int:
    return int(found[0].events["start"].iloc[0])


def _host(trace: ChromeTrace) -> bool:
    return isinstance(trace.about.get("host_name"), str)


def _device(about: Any) -> dict[str, str]:
    """Of the record's keys that on the device, if it is told."""
    devices = about.get("deviceProperties")
    if devices == []:
        return {"device": "cpu"}
    name = mapping(devices[0]).get("name") if isinstance(devices, list) else None
    return {"device": text(name)} if isinstance(name, str) else {}


def _model(buckets: Sequence[int]) -> dict[str, Any]:
    """Of the record's keys that on the model, from the bytes of an iteration's allreduces."""
    if not buckets or not all(buckets):
        return {}
    return {"model": {"gradient_nbytes": sum(buckets), "buckets": list(buckets)}}


def _rank(trace: ChromeTrace, file: Path) -> int:
    """The rank of a trace: as it says, else as its name does, else 0."""
    rank = whole(mapping(trace.about.get("distributedInfo")).get("rank"))
    if rank < 0 and (named := re.search(r"rank[-_]?(\d{1,6})", file.name)):
        rank = int(named[1])
    return rank if 0 <= rank < 2**31 else 0


# ----------------------------------------------------------------------------------------- batches


class _Batch(NamedTuple):
    """A batch of a trace; times are ns."""

    asked: int  # when the loader was called; ``start`` if none was
    start: int
    end: int
    epoch: int  # from 0 in the trace


def _batches(trace: ChromeTrace, source: str) -> list[_Batch]:
    """The batches of a trace that are whole, in order, at least one."""
    events = trace.events[trace.events["kind"].isin(["user_annotation", "cpu_op"])]
    steps = events[events["name"].str.match(_STEP)]
    waits = events[events["name"].str.match(_WAIT)]
    if (of := pd.concat([steps, waits])["process"].unique()).size > 1:
        rule, value = "must be of one process", f"steps of processes {', '.join(of[:4])}"
        refuse("traceEvents", rule, value, "Give the trace of each rank as a file.", source)
    begins, ends = steps["start"].tolist(), steps["end"].tolist()
    if any(
        after < (start + end) // 2
        for after, start, end in zip(begins[1:], begins, ends, strict=False)
    ):
        rule, value = "must have steps one after another", "steps that overlap"
        remedy = "Give the trace of one process, in microseconds, as the profiler wrote it."
        refuse("traceEvents", rule, value, remedy, source)
    if len(waits):
        found = list(_between(trace, begins, ends, waits))
    else:
        trace.notes.append("No DataLoader of torch was called: waits are not in it.")
        found = [_Batch(start, start, end, 0) for start, end in zip(begins, ends, strict=True)]
        # the profiler begins a last step when it is stopped, in which nothing is done
        starts = trace.events.loc[~trace.events["name"].str.match(_STEP), "start"].to_numpy()
        done = [((starts >= one.start) & (starts < one.end)).any() for one in found]
        if any(done) and not done[-1]:
            found.pop()
    if not (found := [batch for batch in found if batch.end <= trace.horizon]):
        rule, value = "must have a whole step", f"{len(steps) + len(waits)} begun"
        remedy = "Profile a loop over a DataLoader, or call the profiler's step() after each batch."
        refuse("traceEvents", rule, value, remedy, source)
    return found


def _between(
    trace: ChromeTrace, begins: list[int], ends: list[int], waits: pd.DataFrame
) -> Iterator[_Batch]:
    """Batches as calls of a loader divide them, within steps of the profiler, if there are any."""
    operations = trace.events[trace.events["name"].str.contains("::", regex=False)]
    at = operations["start"].to_numpy()
    drawn = operations["name"].str.match(_DRAWING).to_numpy()
    calls = list(zip(waits["start"].tolist(), waits["end"].tolist(), strict=True))
    bounds = [asked for asked, _ in calls[1:]] + [int(trace.events["end"].max())]
    epoch, begun, over = 0, False, False
    for (asked, start), bound in zip(calls, bounds, strict=True):
        end = bound
        if begins:
            step = bisect_right(begins, asked) - 1
            if step < 0 or ends[step] <= asked:
                continue
            end = min(end, ends[step])
        first, last = np.searchsorted(at, [start, bound])
        if len(at) and drawn[first:last].all():  # no batch was left
            over = begun
            continue
        epoch += over
        begun, over = True, False
        yield _Batch(asked, start, max(end, start), epoch)


# -------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the record, before it has a rank."""

    of: int  # number of the batch in the trace
    operation: str
    start: int  # ns
    seconds: float
    count: int = 0
    nbytes: int = 0


def _rows(trace: ChromeTrace, batches: list[_Batch]) -> tuple[pd.DataFrame, list[int]]:
    """Rows of all batches, with start as ns, and the bytes of the last one's allreduces in their
    order, 0 for those that are not told."""
    groups = _of_batches(trace.events, batches)
    passes = [_passes(group) for group in groups]
    collected, buckets = _collectives(groups, passes, batches)
    rows = collected
    for of, (batch, group) in enumerate(zip(batches, groups, strict=True)):
        if batch.start > batch.asked:
            rows.append(_Row(of, "wait", batch.asked, (batch.start - batch.asked) / 1e9))
        rows.append(_Row(of, "step", batch.start, (batch.end - batch.start) / 1e9))
        rows += _computed(of, group, passes[of])
        copies = group[(group["kind"] == "gpu_memcpy") & group["name"].str.contains("HtoD")]
        if len(copies):
            nbytes = sum(max(whole(args.get("bytes")), 0) for args in copies["args"])
            seconds = float((copies["end"] - copies["start"]).sum()) / 1e9
            start = int(copies["start"].min())
            rows.append(_Row(of, "copy", start, seconds, len(copies), min(nbytes, LARGEST)))
    table = pd.DataFrame(rows)
    epochs = np.array([batch.epoch for batch in batches])
    table["epoch"] = epochs[table["of"]]
    table["batch"] = table["of"] - np.searchsorted(epochs, table["epoch"])
    return table.drop(columns="of"), buckets


def _of_batches(events: pd.DataFrame, batches: list[_Batch]) -> list[pd.DataFrame]:
    """The events of each batch: those that begin in it, or on a device, that it launched. There is
    one more column: at, when the processor did so."""
    launches = events[events["kind"] == "launch"]
    ids = launches["args"].map(lambda args: whole(args.get("correlation")))
    times = dict(zip(ids, launches["start"], strict=True))
    device = events["kind"].isin(["kernel", "gpu_memcpy"])
    asked = events["args"].map(lambda args: times.get(whole(args.get("correlation")), 0))
    at = events["start"].where(~device | (asked == 0), asked)
    of = np.searchsorted([batch.start for batch in batches], at.to_numpy(), "right") - 1
    over = ~device & (at.to_numpy() >= np.array([batch.end for batch in batches])[of])
    placed = events.assign(at=at, of=np.where(over, -1, of))
    return [placed[placed["of"] == number] for number in range(len(batches))]


def _passes(group: pd.DataFrame) -> dict[str, list[Span]]:
    """When the processor was in which pass of a batch; autograd is the backward pass without what
    it waits for afterwards."""
    names = group["name"]

    def within(found: pd.DataFrame) -> list[Span]:
        return [(int(found["start"].min()), int(found["end"].max()))] if len(found) else []

    autograd = within(group[names.str.startswith(_AUTOGRAD)])
    backward = within(group[names == "## backward ##"]) or autograd
    if backward and len(summed := group[names == _SUMMED]):
        backward = [(backward[0][0], max(backward[0][1], int(summed["end"].max())))]
    forward = within(group[names == "## forward ##"])
    flows = group[group["kind"] == "flow"]["start"]
    if not forward and backward and len(flows) and flows.min() < backward[0][0]:
        forward = [(int(flows.min()), backward[0][0])]
        # what clears the gradients stands between the passes, or before them
        for start, end in within(group[names.str.startswith("Optimizer.zero_grad")]):
            if forward[0][0] < start and end <= forward[0][1]:
                forward = [(forward[0][0], start)]
    forward = forward or within(group[names == "DistributedDataParallel.forward"])
    steps = group[names.str.startswith("Optimizer.step")]
    optimizer = list(zip(steps["start"], steps["end"], strict=True))
    return {"forward": forward, "backward": backward, "optimizer": optimizer, "autograd": autograd}


def _computed(of: int, group: pd.DataFrame, passes: dict[str, list[Span]]) -> Iterator[_Row]:
    """Rows of the passes: by the processor's time, or the kernels' where there are any."""
    kernels = group[group["kind"] == "kernel"]
    for name in ("forward", "backward", "optimizer"):
        for start, end in passes[name]:
            if len(kernels):
                mine = kernels[(kernels["at"] >= start) & (kernels["at"] < end)]
                if mine.empty:
                    continue
                begin, done = int(mine["start"].min()), int(mine["end"].max())
                yield _Row(of, name, begin, (done - begin) / 1e9)
            else:
                yield _Row(of, name, start, (end - start) / 1e9)


def _collectives(
    groups: Sequence[pd.DataFrame], passes: Sequence[dict[str, list[Span]]], batches: list[_Batch]
) -> tuple[list[_Row], list[int]]:
    """Rows of the collectives, each with what nothing hides, of it and of those before it; and the
    bytes of the last batch's allreduces."""
    events = pd.concat([group.assign(of=of) for of, group in enumerate(groups)])
    kernels = events["kind"] == "kernel"
    summing = kernels & events["name"].str.contains(_KERNEL)
    asking = events["name"].str.match(_ASKING)
    if kernels.any():
        computing = events[kernels & ~summing]
        busy = [*zip(computing["start"], computing["end"], strict=True)]
        idle = list[Span]()
    else:
        summing = (events["kind"] == "user_annotation") & events["name"].str.match(_COLLECTIVE)
        operations = events[events["name"].str.contains("::", regex=False) & ~asking]
        busy = [*zip(operations["start"], operations["end"], strict=True)]
        busy += [
            span
            for of in passes
            for name, spans in of.items()
            if name != "backward"
            for span in spans
        ]
        idle = [*zip(events["start"][asking], events["end"][asking], strict=True)]
    # what only asks for a collective computes nothing, in whichever pass it is
    all_of, apart = covered([*busy, *idle]), covered(idle)
    rows, buckets, until = list[_Row](), list[int](), 0
    found = events[summing].sort_values("start", kind="stable")
    columns = (found[name].tolist() for name in ("of", "name", "start", "end", "args"))
    for of, name, begin, stop, args in zip(*columns, strict=True):
        # of one that is not finished, the end is that of the trace
        end = min(stop, batches[of].end) if args.get("finished") is False else stop
        start, until = max(begin, until), max(until, end)
        hidden = all_of(start, end) - apart(start, end) if start < end else 0.0
        seconds = max(end - start - hidden, 0.0) / 1e9
        nbytes = _nbytes(args)
        rows.append(_Row(of, "allreduce", begin, seconds, 1, nbytes))
        if of == len(groups) - 1 and re.search(_ALLREDUCE, f"{name} {args.get('Collective name')}"):
            buckets.append(nbytes)
    return rows, buckets


def _nbytes(args: Mapping[str, Any]) -> int:
    """The bytes that a collective takes from a rank; 0 if they are not told."""
    count, kind = whole(args.get("In msg nelems")), str(args.get("dtype"))
    if count < 0:
        kinds, shapes = args.get("Input type"), args.get("Input Dims")
        if not (isinstance(kinds, list) and isinstance(shapes, list) and kinds and shapes):
            return 0
        shape = shapes[0] if isinstance(shapes[0], list) else []
        sizes = [whole(size) for size in shape]
        kind, count = str(kinds[0]), -1 if min(sizes, default=-1) < 0 else math.prod(sizes)
    size = _SIZES.get(kind.lower().removeprefix("c10::"), 0)
    return count * size if 0 <= count < LARGEST // 8 else 0
