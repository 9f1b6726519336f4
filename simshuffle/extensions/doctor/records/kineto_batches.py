"""Find the batches in a trace of PyTorch's profiler, between calls of a DataLoader or
steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.chrome import ChromeTrace

_WAIT = r"enumerate\(DataLoader\)#.*__next__$"
_STEP = r"ProfilerStep#?\d+$"
_DRAWING = (
    r"aten::(?:empty|random_|item|_local_scalar_dense|randperm|scalar_tensor|resize_"
    r"|resolve_\w+)$"
)
"""Operations that draw the order and the seed of an epoch: all that follows a call of a
DataLoader that had no batch left.
"""


class ProfiledBatch(NamedTuple):
    """A batch of a trace; times are ns."""

    requested: int  # when the loader was called; ``start`` if none was
    start: int  # of the step
    end: int  # of the step
    epoch: int  # from 0 in the trace


def find_batches(trace: ChromeTrace, source: str) -> list[ProfiledBatch]:
    """Return the complete batches of a trace, in order; a note is added to the trace
    where no DataLoader was called.

    Batches that end after the trace's horizon are left out.

    Raises:
        InputError: there is no complete batch, or steps overlap (one begins before the
            middle of the previous one) or are of several processes.
    """
    events = trace.events[trace.events["kind"].isin(["user_annotation", "cpu_op"])]
    steps = events[events["name"].str.match(_STEP)]
    waits = events[events["name"].str.match(_WAIT)]
    processes = pd.concat([steps, waits])["process"].unique()
    if processes.size > 1:
        rule = "must be of one process"
        value = f"steps of processes {', '.join(processes[:4])}"
        refuse(
            "traceEvents", rule, value, "Give the trace of each rank as a file.", source
        )
    step_starts = steps["start"].tolist()
    step_ends = steps["end"].tolist()
    if any(
        next_start < (start + end) // 2
        for next_start, start, end in zip(
            step_starts[1:], step_starts, step_ends, strict=False
        )
    ):
        rule = "must have steps one after another"
        remedy = (
            "Give the trace of one process, in microseconds, as the profiler wrote it."
        )
        refuse("traceEvents", rule, "steps that overlap", remedy, source)
    if len(waits):
        batches = list(_batches_of_loader(trace, step_starts, step_ends, waits))
    else:
        trace.notes.append(
            "No DataLoader of torch was called: the trace does not show waits."
        )
        batches = _batches_of_profiler(trace, step_starts, step_ends)
    batches = [batch for batch in batches if batch.end <= trace.horizon]
    if not batches:
        rule = "must have a complete step"
        value = f"{len(steps) + len(waits)} begun"
        remedy = "Profile a loop over a DataLoader, or call the profiler's step() after each batch."
        refuse("traceEvents", rule, value, remedy, source)
    return batches


def _batches_of_profiler(
    trace: ChromeTrace, step_starts: list[int], step_ends: list[int]
) -> list[ProfiledBatch]:
    """Return a batch for each step of the profiler, which are from ``step_starts`` to
    ``step_ends`` (ns), without waits, all of epoch 0; a last one without events is left
    out if others have some.
    """
    batches = [
        ProfiledBatch(start, start, end, 0)
        for start, end in zip(step_starts, step_ends, strict=True)
    ]
    # the profiler begins a last step when it is stopped, in which nothing is done
    is_step = trace.events["name"].str.match(_STEP)
    event_starts = trace.events.loc[~is_step, "start"].to_numpy()
    has_events = [
        ((event_starts >= batch.start) & (event_starts < batch.end)).any()
        for batch in batches
    ]
    if any(has_events) and not has_events[-1]:
        batches.pop()
    return batches


def _batches_of_loader(
    trace: ChromeTrace,
    step_starts: list[int],
    step_ends: list[int],
    waits: pd.DataFrame,
) -> Iterator[ProfiledBatch]:
    """Yield the batches that calls of a loader divide, within steps of the profiler if
    there are any.

    A batch ends with the next call, or with its step of the profiler if that is
    earlier. Calls outside of these steps are left out. A call that no operation
    follows, but to draw an order, had no batch: the next one begins an epoch.

    Args:
        trace: of the loop.
        step_starts, step_ends: ns of the steps of the profiler.
        waits: events of the calls.
    """
    operations = trace.events[trace.events["name"].str.contains("::", regex=False)]
    operation_starts = operations["start"].to_numpy()
    draws_order = operations["name"].str.match(_DRAWING).to_numpy()
    calls = list(zip(waits["start"].tolist(), waits["end"].tolist(), strict=True))
    next_calls = [requested for requested, _ in calls[1:]] + [
        int(trace.events["end"].max())
    ]
    epoch = 0
    has_begun = False
    epoch_is_over = False
    for (requested, start), next_call in zip(calls, next_calls, strict=True):
        end = next_call
        if step_starts:
            step = bisect_right(step_starts, requested) - 1
            if step < 0 or step_ends[step] <= requested:
                continue
            end = min(end, step_ends[step])
        first, last = np.searchsorted(operation_starts, [start, next_call])
        if len(operation_starts) and draws_order[first:last].all():  # no batch was left
            epoch_is_over = has_begun
            continue
        epoch += epoch_is_over
        has_begun = True
        epoch_is_over = False
        yield ProfiledBatch(requested, start, max(end, start), epoch)
