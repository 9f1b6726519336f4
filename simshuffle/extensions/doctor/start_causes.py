"""Find what the starts of epochs cost, and evaluation inside the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.places import describe_main_place
from simshuffle.extensions.doctor.without_cause import SPECIAL, LoopWithoutCause
from simshuffle.extensions.doctor.workers import shorten
from simshuffle.spec.arrays import Floats

STARTS = "epoch starts"
EVALUATION = "evaluation"


def start_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop whose later epochs begin at once, if it has several: without the
    time between two epochs, without the sampler's time for their first batches, and
    with first loads that take the median.

    Where the sampler and the time between epochs take less than half of that, new
    workers are the likelier cause.
    """
    times = loop.times
    firsts = np.array(times.epoch_bounds[1:-1], dtype=int)
    if not len(firsts):
        return
    # (E - 1, M) s of each later epoch
    between_s = np.broadcast_to(loop.between_s, times.load_s.shape)[firsts]
    order_s = loop.sum_of("order")[firsts]
    step_s = times.step_s.copy()
    step_s[firsts - 1] = np.maximum(step_s[firsts - 1] - between_s, 0.0)

    load_s = times.load_s.copy()
    first_loads_s = np.zeros(order_s.shape)
    median_s = np.median(load_s, axis=0)
    for offset in range(max(times.workers, 1)):
        index = firsts + offset
        rows = np.flatnonzero(index < len(load_s))
        excess_s = np.maximum(load_s[index[rows]] - median_s, 0.0)
        load_s[index[rows]] -= excess_s
        first_loads_s[rows] = np.maximum(first_loads_s[rows], excess_s)

    worker_start_s = times.worker_start_s.copy()
    handover_s = np.broadcast_to(times.handover_s, load_s.shape).copy()
    if times.workers:
        begins_s = worker_start_s[1:]
        worker_start_s[1:] = np.where(
            begins_s > 0, np.maximum(begins_s - order_s[:, None], 0.0), begins_s
        )
    else:
        handover_s[firsts] = np.maximum(handover_s[firsts] - order_s, 0.0)
    without = replace(
        times,
        load_s=load_s,
        step_s=step_s,
        worker_start_s=worker_start_s,
        handover_s=handover_s,
    )
    own_s = between_s.sum() + order_s.sum()
    is_own = own_s >= first_loads_s.sum()
    weight = SPECIAL * (1.3 if is_own else 0.6)
    sentence = _start_sentence(loop, between_s, order_s, first_loads_s)
    yield LoopWithoutCause(STARTS, without, sentence, weight)


def _start_sentence(
    loop: RecordedLoop, between_s: Floats, order_s: Floats, first_loads_s: Floats
) -> str:
    """Return the sentence on the longest part of the starts, with its place; (E - 1, M)
    s of each.
    """
    parts = {
        "between": (between_s, "Between two epochs the script takes {:.2g} s."),
        "order": (order_s, "The sampler takes {:.2g} s before an epoch's first batch."),
        "fetch": (first_loads_s, "The first batches of an epoch take {:.2g} s longer."),
    }
    name, (seconds, template) = max(parts.items(), key=lambda part: part[1][0].sum())
    sentence = template.format(float(seconds.mean()))
    return sentence + ("" if name == "fetch" else describe_main_place(loop, name))


def evaluation_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop in whose steps no loops over other loaders go on, if any do."""
    evaluation_s = np.broadcast_to(loop.evaluation_s, loop.times.step_s.shape)
    count = int((evaluation_s > 0).any(axis=1).sum())
    if not count:
        return
    interval = len(evaluation_s) / count
    mean_s = float(evaluation_s[evaluation_s > 0].mean())
    sentence = (
        f"After every {interval:.3g} steps a loop over another loader goes on inside the"
        f" step, for {mean_s:.2g} s."
    )
    without = shorten(loop.times, step_s=evaluation_s)
    yield LoopWithoutCause(
        EVALUATION,
        without,
        sentence + describe_main_place(loop, "step"),
        1.2 * SPECIAL,
    )
