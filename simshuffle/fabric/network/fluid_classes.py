"""Max-min fair flows by class: the simulation of one flow and one link of each class.

`simshuffle.fabric.network.fluid_symmetry` finds the classes, and proves that one of
each is enough.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from simshuffle.spec.compiling import compiled, entry

# Ends closer than this, relative to the time passed, are taken together: they differ by rounding
# only.
TIE = 1e-14


# One flow of each class over one link of each class. By flow class: `nbytes`, `begin` (s, when it
# starts to move them), and from `by_flow[class]` to `by_flow[class + 1]` the classes of links that
# it uses, `link`, each with `weight`, the flows of the class on each link of that class. By link
# class: `capacity` (bytes/s), and from `by_link[class]` to `by_link[class + 1]` the classes of
# flows, `flow`.
Quotient = namedtuple(
    "Quotient", "nbytes begin capacity by_flow link weight by_link flow"
)


# How far the flow classes are, each an array of (flow classes,): `remaining` (bytes, at first all),
# `rate` (bytes/s, scratch), `state` (0 to come, as all are at first, 1 under way, 2 ended), and
# `ends` (s, written when a class ends).
Progress = namedtuple("Progress", "remaining rate state ends")


@entry
def drain_classes(q: Any, progress: Any, scratch: Any, heap: Any, effort: int) -> bool:
    """Run the classes of flows to their ends. Classes without pairs (no links, or no
    bytes) count as ended, and their entry of ``progress.ends`` is not written.

    Args:
        q: the `Quotient`.
        progress: the `Progress`; its arrays are changed in place, ``ends`` in s.
        scratch, heap: see `_fill_classes`.
        effort: looks at a class of flows on a class of links that may be spent.

    Returns:
        False if ``effort`` was not enough: then some ends are missing.
    """
    remaining = progress.remaining
    rate = progress.rate
    state = progress.state
    next_begin = np.inf
    num_left = 0
    for flow in range(len(state)):
        if q.by_flow[flow] == q.by_flow[flow + 1]:
            state[flow] = 2
        else:
            num_left += 1
            next_begin = min(next_begin, q.begin[flow])
    now = next_begin
    while num_left > 0 and effort > 0:
        effort -= len(heap)
        next_begin = np.inf
        for flow in range(len(state)):
            if state[flow] == 0:
                if q.begin[flow] <= now:
                    state[flow] = 1
                else:
                    next_begin = min(next_begin, q.begin[flow])
        _fill_classes(q, progress, scratch, heap)
        step = np.inf
        for flow in range(len(state)):
            if state[flow] == 1:
                step = min(step, remaining[flow] / rate[flow])
                effort -= q.by_flow[flow + 1] - q.by_flow[flow]
        previous_time = now
        now = min(now + step, next_begin)
        step = min(step, now - previous_time)
        for flow in range(len(state)):
            if state[flow] == 1:
                if remaining[flow] / rate[flow] <= step + TIE * now:
                    state[flow] = 2
                    progress.ends[flow] = now
                    num_left -= 1
                remaining[flow] -= rate[flow] * step
    return num_left == 0


@compiled
def _fill_classes(q: Any, progress: Any, scratch: Any, heap: Any) -> None:
    """Write the max-min fair rate (bytes/s) of each class of flows under way to
    ``progress.rate``, by progressive filling.

    Rates of other classes stay as they are. The classes of links are kept in a heap by
    level. Levels only rise while flows below them are frozen, so each level is brought
    up to date no sooner than it is the lowest.

    Args:
        q: the `Quotient`.
        progress: the `Progress`, of which only ``state`` is read.
        scratch: (3, link classes): by link, the bytes/s that are not given away yet,
            the flows that still rise, and by place in ``heap`` the level (bytes/s).
        heap: (link classes,) scratch.
    """
    state = progress.state
    rate = progress.rate
    spare = scratch[0]
    num_open = scratch[1]
    keys = scratch[2]
    for link in range(len(heap)):
        spare[link] = q.capacity[link]
        num_open[link] = 0.0
    for flow in range(len(state)):
        if state[flow] == 1:
            rate[flow] = -1.0
            for i in range(q.by_flow[flow], q.by_flow[flow + 1]):
                num_open[q.link[i]] += q.weight[i]
    count = 0
    highest_level = 0.0
    for link in range(len(heap)):
        if num_open[link] > 0:
            heap[count] = link
            keys[count] = spare[link] / num_open[link]
            count += 1
    for place in range(count // 2 - 1, -1, -1):
        _sift_down(heap, keys, count, place)
    while count > 0:
        link = heap[0]
        if num_open[link] > 0 and spare[link] / num_open[link] > keys[0]:
            keys[0] = spare[link] / num_open[link]
        else:
            highest_level = max(highest_level, keys[0])  # never falls, but for rounding
            _freeze_classes(q, progress, scratch, link, highest_level)
            count -= 1
            heap[0] = heap[count]
            keys[0] = keys[count]
        _sift_down(heap, keys, count, 0)


@compiled
def _freeze_classes(
    q: Any, progress: Any, scratch: Any, link: int, level: float
) -> None:
    """Freeze the flows on ``link`` that still rise at ``level`` (bytes/s), and take
    them off the first two rows of ``scratch`` (see `_fill_classes`) on all their links.
    """
    spare = scratch[0]
    num_open = scratch[1]
    rate = progress.rate
    for pair in range(q.by_link[link], q.by_link[link + 1]):
        flow = q.flow[pair]
        if progress.state[flow] == 1 and rate[flow] < 0:
            rate[flow] = level
            for i in range(q.by_flow[flow], q.by_flow[flow + 1]):
                spare[q.link[i]] -= q.weight[i] * level
                num_open[q.link[i]] -= q.weight[i]


@compiled
def _sift_down(heap: Any, keys: Any, count: int, place: int) -> None:
    """Restore the order of a heap of ``count`` entries, smallest key first, of which
    the one at ``place`` may be too large.
    """
    link = heap[place]
    key = keys[place]
    child = 2 * place + 1
    while child < count:
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        heap[place] = heap[child]
        keys[place] = keys[child]
        place = child
        child = 2 * child + 1
    heap[place] = link
    keys[place] = key
