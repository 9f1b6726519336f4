"""Read traces of PyTorch's profiler (Kineto): a file of a rank, or a folder with one
for each.

A batch lies between two calls of a DataLoader, within the steps of the profiler if
there are any; where no DataLoader was called, a step of the profiler is a batch. These
events show its operations:

- `enumerate(DataLoader)#...__next__`: the wait;
- operations of autograd (`autograd::engine::evaluate_function: ...`) on whichever thread, or the
  annotation `## backward ##`: the backward pass. With DDP it ends when the sums are in the
  gradients (`torch.distributed.ddp.reducer::copy_bucket_to_grad`);
- the annotation `## forward ##`, else the operations whose backward is seen (arrows `fwdbwd`),
  until the backward pass begins, else `DistributedDataParallel.forward`: the forward pass;
- `Optimizer.step#...`: the optimizer;
- `Memcpy HtoD ...` of the device: the copy;
- kernels of NCCL, or where there are none annotations such as `gloo:all_reduce`: collectives. The
  process waits for the part of a collective that no computation hides: no other kernel on any
  stream, or where the processor computes, no operation and no pass.

Where a device computes, passes are timed by the kernels that were launched in them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.doctor.records.chrome import (
    ChromeTrace,
    is_chrome,
    read_chrome,
)
from simshuffle.extensions.doctor.records.files import (
    LARGEST,
    printable,
    read_unpacked,
    to_count,
    to_mapping,
)
from simshuffle.extensions.doctor.records.kineto_batches import (
    ProfiledBatch,
    find_batches,
)
from simshuffle.extensions.doctor.records.record import Record, join_rows
from simshuffle.extensions.doctor.records.spans import Span, coverage_of

_AUTOGRAD = "autograd::engine::evaluate_function"
_GRADIENTS_SUMMED = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_COLLECTIVE = r"(?:gloo|nccl|mpi|ucc|xccl|hccl):"
_KERNEL = r"(?i)(?:nccl|rccl)"  # of a collective
_ALLREDUCE = r"(?i)all_?reduce"
_COLLECTIVE_CALL = r"c10d::|record_param_comms"  # operations that start a collective
_SIZES = {
    **{
        "double": 8,
        "long": 8,
        "long int": 8,
        "float": 4,
        "int": 4,
        "half": 2,
        "bfloat16": 2,
    },
    **{"byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1},
}
"""Bytes of a number, by the names that Kineto gives to types."""
SUFFIXES = (".json", ".json.gz")
"""Suffixes of the files of a folder that may be traces."""


def list_kineto_traces(folder: Path) -> list[Path]:
    """Return the traces of a folder, ordered by name; other JSON files are left out."""
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    return [path for path in files if is_chrome(read_unpacked(path, 1 << 16)[0])]


def read_kineto(path: Path) -> Record:
    """Read the record of a trace, or of a folder of traces, one or several for each
    rank; batches of a rank's further traces are counted on, by their starts.

    The host, device, model and number of ranks are those that the earliest trace names.
    The clocks of hosts are not compared.

    Raises:
        InputError: a file is no trace, has no complete steps, or is of several
            processes.
    """
    files = list_kineto_traces(path) if path.is_dir() else [path]
    traces = sorted(((read_chrome(file), file) for file in files), key=_trace_start)
    parts = list[pd.DataFrame]()
    buckets_of_traces = list[list[int]]()
    notes = list[str]()
    last_batches: dict[
        int, tuple[int, int]
    ] = {}  # epoch of each rank, and its batches so far
    for trace, file in traces:
        rank = _rank_of_trace(trace, file)
        rows, buckets = _rows_of_trace(trace, find_batches(trace, str(file)))
        epoch, num_batches = last_batches.get(rank, (0, 0))
        rows.loc[rows["epoch"] == 0, "batch"] += num_batches
        rows["epoch"] += epoch
        last_batches[rank] = (
            int(rows["epoch"].iloc[-1]),
            int(rows["batch"].iloc[-1]) + 1,
        )
        parts.append(rows.assign(rank=rank))
        buckets_of_traces.append(buckets)
        notes += [f"{file.name}: {note}" for note in trace.notes]
    rows = pd.concat(parts, ignore_index=True)
    rows["start_s"] = (rows["start"] - rows["start"].min()) / 1e9

    hosts = {
        printable(trace.about["host_name"]) for trace, _ in traces if _names_host(trace)
    }
    if len(hosts) > 1:
        notes.append(f"Clocks of {len(hosts)} hosts were not compared.")
    notes.append(
        "Batches are counted from the first that was profiled; the workers of loaders"
        " and what they read are not in a trace."
    )
    first_trace = traces[0][0]
    first_about = first_trace.about
    world_size = to_count(
        to_mapping(first_about.get("distributedInfo")).get("world_size")
    )
    host = (
        {"host": {"name": printable(first_about["host_name"])}}
        if _names_host(first_trace)
        else {}
    )
    about = {
        "made_by": "kineto",
        "ranks": max(world_size, len(last_batches)),
        **host,
        **_device_of(first_about),
        **_model_of(buckets_of_traces[0]),
        "notes": notes,
    }
    return Record(join_rows([rows]), about, str(path))


def _trace_start(trace_and_file: tuple[ChromeTrace, Path]) -> int:
    """Return the start of the first event of a trace, ns."""
    return int(trace_and_file[0].events["start"].iloc[0])


def _names_host(trace: ChromeTrace) -> bool:
    """Return whether a trace names its host."""
    return isinstance(trace.about.get("host_name"), str)


def _device_of(about: Any) -> dict[str, str]:
    """Return the record's fact on the device, the first one's name, if the keys of a
    trace have it; 'cpu' if they name no device; {} if they are silent.
    """
    devices = about.get("deviceProperties")
    if devices == []:
        return {"device": "cpu"}
    name = to_mapping(devices[0]).get("name") if isinstance(devices, list) else None
    return {"device": printable(name)} if isinstance(name, str) else {}


def _model_of(buckets: Sequence[int]) -> dict[str, Any]:
    """Return the record's fact on the model, from the bytes of an iteration's
    allreduces; {} if there are none, or the bytes of one are not known (0).
    """
    if not buckets or not all(buckets):
        return {}
    return {"model": {"gradient_nbytes": sum(buckets), "buckets": list(buckets)}}


def _rank_of_trace(trace: ChromeTrace, file: Path) -> int:
    """Return the rank that a trace names, or else its file's name (`rank3`, `rank-3`,
    `rank_3`); 0 if neither does.
    """
    rank = to_count(to_mapping(trace.about.get("distributedInfo")).get("rank"))
    if rank < 0 and (match := re.search(r"rank[-_]?(\d{1,6})", file.name)):
        rank = int(match[1])
    return rank if 0 <= rank < 2**31 else 0


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the record, before it has a rank."""

    batch_index: int  # of the batch in the trace
    operation: str
    start: int  # ns
    seconds: float  # duration
    count: int = 0  # copies or collectives
    nbytes: int = 0  # copied or summed


def _rows_of_trace(
    trace: ChromeTrace, batches: list[ProfiledBatch]
) -> tuple[pd.DataFrame, list[int]]:
    """Return the rows of all batches, with start in ns, and the bytes of the last
    batch's allreduces in their order, 0 where these are not known.

    Rows have the fields of `_Row`, with epoch and batch (from 0 in its epoch) in place
    of the index. Copies of a batch are one row, with their sums. A batch that was not
    waited for has no row of a wait. Collectives stand first, then all else by batches.
    """
    groups = _events_of_batches(trace.events, batches)
    passes = [_find_passes(group) for group in groups]
    rows, buckets = _rows_of_collectives(groups, passes, batches)
    for index, (batch, group) in enumerate(zip(batches, groups, strict=True)):
        if batch.start > batch.requested:
            wait_s = (batch.start - batch.requested) / 1e9
            rows.append(_Row(index, "wait", batch.requested, wait_s))
        rows.append(_Row(index, "step", batch.start, (batch.end - batch.start) / 1e9))
        rows += _rows_of_passes(index, group, passes[index])
        copies = group[
            (group["kind"] == "gpu_memcpy") & group["name"].str.contains("HtoD")
        ]
        if len(copies):
            nbytes = sum(max(to_count(args.get("bytes")), 0) for args in copies["args"])
            seconds = float((copies["end"] - copies["start"]).sum()) / 1e9
            start = int(copies["start"].min())
            rows.append(
                _Row(index, "copy", start, seconds, len(copies), min(nbytes, LARGEST))
            )
    table = pd.DataFrame(rows)
    epochs = np.array([batch.epoch for batch in batches])
    table["epoch"] = epochs[table["batch_index"]]
    # batches are counted from the first of their epoch
    table["batch"] = table["batch_index"] - np.searchsorted(epochs, table["epoch"])
    return table.drop(columns="batch_index"), buckets


def _events_of_batches(
    events: pd.DataFrame, batches: list[ProfiledBatch]
) -> list[pd.DataFrame]:
    """Return the events of each batch: its own, and the ones of a device that it
    launched.

    A column ``launched`` has the ns at which the processor began or launched each; of a
    device's event without a known launch, its start. ``batch_index`` is the batch.
    Events of the processor between two batches are left out; those of a device there
    belong to the batch before. Events before the first batch are left out.
    """
    launches = events[events["kind"] == "launch"]
    ids = launches["args"].map(lambda args: to_count(args.get("correlation")))
    launch_times = dict(zip(ids, launches["start"], strict=True))
    on_device = events["kind"].isin(["kernel", "gpu_memcpy"])
    launch_time = events["args"].map(
        lambda args: launch_times.get(to_count(args.get("correlation")), 0)
    )
    launched = events["start"].where(~on_device | (launch_time == 0), launch_time)
    starts = [batch.start for batch in batches]
    ends = np.array([batch.end for batch in batches])
    # (events,) the last batch that had begun; -1 before the first, or between batches
    batch_index = np.searchsorted(starts, launched.to_numpy(), "right") - 1
    is_after_batch = ~on_device & (launched.to_numpy() >= ends[batch_index])
    batch_index = np.where(is_after_batch, -1, batch_index)
    events = events.assign(launched=launched, batch_index=batch_index)
    return [events[events["batch_index"] == index] for index in range(len(batches))]


def _find_passes(group: pd.DataFrame) -> dict[str, list[Span]]:
    """Return the spans (ns) in which the processor was in each pass of a batch, by
    "forward", "backward", "optimizer", and in "autograd"; [] where none was seen.

    Autograd is the backward pass without the waits that follow it. The optimizer has a
    span for each of its steps, all others at most one.
    """
    names = group["name"]

    def span_of(events: pd.DataFrame) -> list[Span]:
        return (
            [(int(events["start"].min()), int(events["end"].max()))]
            if len(events)
            else []
        )

    autograd = span_of(group[names.str.startswith(_AUTOGRAD)])
    backward = span_of(group[names == "## backward ##"]) or autograd
    summed = group[names == _GRADIENTS_SUMMED]
    if backward and len(summed):
        backward = [(backward[0][0], max(backward[0][1], int(summed["end"].max())))]
    forward = span_of(group[names == "## forward ##"])
    flows = group[group["kind"] == "flow"]["start"]
    if not forward and backward and len(flows) and flows.min() < backward[0][0]:
        forward = [(int(flows.min()), backward[0][0])]
        # what clears the gradients stands between the passes, or before them
        for start, end in span_of(group[names.str.startswith("Optimizer.zero_grad")]):
            if forward[0][0] < start and end <= forward[0][1]:
                forward = [(forward[0][0], start)]
    forward = forward or span_of(group[names == "DistributedDataParallel.forward"])
    steps = group[names.str.startswith("Optimizer.step")]
    optimizer = list(zip(steps["start"], steps["end"], strict=True))
    return {
        "forward": forward,
        "backward": backward,
        "optimizer": optimizer,
        "autograd": autograd,
    }


def _rows_of_passes(
    batch_index: int, group: pd.DataFrame, passes: dict[str, list[Span]]
) -> Iterator[_Row]:
    """Yield the rows of a batch's passes: by the processor's time, or the kernels' if
    the batch has any; then a pass that launched no kernel has no row.

    Args:
        batch_index: of the rows.
        group: events of the batch.
        passes: spans of the processor.
    """
    kernels = group[group["kind"] == "kernel"]
    for name in ("forward", "backward", "optimizer"):
        for start, end in passes[name]:
            if not len(kernels):
                yield _Row(batch_index, name, start, (end - start) / 1e9)
                continue
            launched = kernels[
                (kernels["launched"] >= start) & (kernels["launched"] < end)
            ]
            if len(launched):
                first_start = int(launched["start"].min())
                last_end = int(launched["end"].max())
                yield _Row(
                    batch_index, name, first_start, (last_end - first_start) / 1e9
                )


def _spans_of(events: pd.DataFrame) -> list[Span]:
    """Return the start and end of each event, ns."""
    return [*zip(events["start"], events["end"], strict=True)]


def _rows_of_collectives(
    groups: Sequence[pd.DataFrame],
    passes: Sequence[dict[str, list[Span]]],
    batches: list[ProfiledBatch],
) -> tuple[list[_Row], list[int]]:
    """Return the rows of the collectives by their starts, and the bytes of the last
    batch's allreduces (0 where not known).

    The seconds of a row are the part of the collective that neither computation nor
    earlier collectives hide, and may be 0. All kinds of collectives are "allreduce". A
    collective that did not finish ends with its batch.

    Args:
        groups: events of each batch.
        passes: spans of the passes of each batch.
        batches: of the trace.
    """
    events = pd.concat(groups)
    is_kernel = events["kind"] == "kernel"
    is_collective = is_kernel & events["name"].str.contains(_KERNEL)
    is_call = events["name"].str.match(_COLLECTIVE_CALL)
    if is_kernel.any():
        computing = _spans_of(events[is_kernel & ~is_collective])
        calls = list[Span]()
    else:
        is_annotation = events["kind"] == "user_annotation"
        is_collective = is_annotation & events["name"].str.match(_COLLECTIVE)
        is_operation = events["name"].str.contains("::", regex=False)
        computing = _spans_of(events[is_operation & ~is_call])
        for spans_of_pass in passes:
            for name, spans in spans_of_pass.items():
                if name != "backward":
                    computing += spans
        calls = _spans_of(events[is_call])

    # what only starts a collective computes nothing, in whichever pass it is
    busy_ns_between = coverage_of([*computing, *calls])
    call_ns_between = coverage_of(calls)
    rows = list[_Row]()
    buckets = list[int]()
    covered_until = 0
    collectives = events[is_collective].sort_values("start", kind="stable")
    columns = [
        collectives[name].tolist()
        for name in ("batch_index", "name", "start", "end", "args")
    ]
    for batch_index, name, begin, event_end, args in zip(*columns, strict=True):
        # the event of a collective that is not finished ends with the trace
        is_unfinished = args.get("finished") is False
        end = min(event_end, batches[batch_index].end) if is_unfinished else event_end
        start = max(begin, covered_until)
        covered_until = max(covered_until, end)
        hidden = (
            busy_ns_between(start, end) - call_ns_between(start, end)
            if start < end
            else 0.0
        )
        seconds = max(end - start - hidden, 0.0) / 1e9
        nbytes = _nbytes_of_collective(args)
        rows.append(_Row(batch_index, "allreduce", begin, seconds, 1, nbytes))
        if batch_index == len(groups) - 1 and re.search(
            _ALLREDUCE, f"{name} {args.get('Collective name')}"
        ):
            buckets.append(nbytes)
    return rows, buckets


def _nbytes_of_collective(args: Mapping[str, Any]) -> int:
    """Return the bytes that a collective takes from a rank; 0 if they are not known."""
    count = to_count(args.get("In msg nelems"))
    dtype = str(args.get("dtype"))
    if count < 0:
        dtypes = args.get("Input type")
        shapes = args.get("Input Dims")
        if not (
            isinstance(dtypes, list) and isinstance(shapes, list) and dtypes and shapes
        ):
            return 0
        shape = shapes[0] if isinstance(shapes[0], list) else []
        sizes = [to_count(size) for size in shape]
        dtype = str(dtypes[0])
        count = -1 if min(sizes, default=-1) < 0 else math.prod(sizes)
    itemsize = _SIZES.get(dtype.lower().removeprefix("c10::"), 0)
    return count * itemsize if 0 <= count < LARGEST // 8 else 0
