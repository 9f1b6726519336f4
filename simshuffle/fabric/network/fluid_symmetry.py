"""Max-min fair flows through their symmetry: one flow stands for all that are alike. Exact.

In an all-to-all on a regular network millions of flows do the same thing on links that look the
same. `finish_times` finds out which, and simulates one flow and one link of each kind.

*Equitable partition.* Flows and links are put into classes such that

1. all flows of a class have the same bytes and start, and cross equally many links of every link
  class;
2. all links of a class have the same capacity and latency, and each carries equally many flows of
  every flow class.

*Why one of each is enough.* Let all flows of a class have the same bytes left at some moment, as
they do when they start. Progressive filling raises the rates of all flows together until a link is
full, and keeps the rates of the flows on it; the max-min fair rates are unique, and this finds them
(Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2). Suppose that the flows whose rates
are kept so far are whole classes, each with one rate, as at first, when there are none. A link then
is full when the common rate reaches

    level = (capacity - sum of w * rate over the classes kept) / (sum of w over the other classes
    under way),

where w, the number of flows of a class on the link, is the same on all links of its class by (2):
whole classes of links get full. The flows that cross them are whole classes of flows by (1), and
all get this level. So by induction the rates are equal within each class, until the next flow
starts or ends; and so are the bytes left. Flows of one class start together, since their latencies
are equal by (1) and (2), and end together; at the next start or end the argument begins anew.
Filling therefore needs one flow of each class, one link of each class, and the numbers w. Nothing
needs to be a symmetry in the strict sense, an automorphism. (For linear programs the same reduction
is in Grohe, Kersting, Mladenov & Selman, Dimension Reduction via Colour Refinement, ESA 2014.)

*Finding it.* Colour refinement: a link's next colour is made of its colour and those of its flows,
a flow's of its bytes, its start and the colours of its links, until no class of links falls apart
any more. That gives the coarsest such partition. Colours are 64-bit hashes: the sum over a
collection of well-mixed values stands for the collection. So that a collision cannot falsify the
result, `quotient` then checks (1) and (2) by comparing and counting, without hashes.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network.flows import Flows, Links
from simshuffle.spec.arrays import Floats, Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry

Words = NDArray[np.uint64]

# A problem counts as small with at most so many classes of flows, and at least so many flows a
# class.
MOST_CLASSES = 1 << 14
FEWEST_ALIKE = 8
# Solving it takes at most so many looks at a class of flows on a class of links for each hop of
# each flow. Flow by flow takes longer than that unless nearly all classes end at different times
# and have few flows each: then it is faster, and little time is lost until here.
MOST_EFFORT = 32
# Refinement takes 2 to 6 rounds on the usual networks, but up to one for each link on a long
# irregular chain.
MOST_ROUNDS = 32
# Ends closer than this, relative to the time passed, are taken together: they differ by rounding
# only.
TIE = 1e-14

# splitmix64 (Steele, Lea & Flood, Fast splittable pseudorandom number generators, OOPSLA 2014):
# increment, multipliers, shifts
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


def _mix(word: Any) -> Any:
    """A 64-bit word, or an array of them, each replaced by what looks random; no two words by the
    same."""
    word = (word ^ (word >> _S30)) * _FIRST
    word = (word ^ (word >> _S27)) * _SECOND
    return word ^ (word >> _S31)


_mixed: Any = compiled(_mix)


@dataclass(frozen=True)
class Partition:
    """Flows and links in classes."""

    flow: NDArray[np.int16]  # (flows,) int16, class of each flow
    example: Ints64  # (flow classes,) int64, a flow of each class
    link: Ints32  # (links,) int32, class of each link
    first: Ints64  # (link classes,) int64, a link of each class


# One flow of each class over one link of each class. By flow class: `nbytes`, `begin` (s, when it
# starts to move them), and from `by_flow[class]` to `by_flow[class + 1]` the classes of links that
# it uses, `link`, each with `weight`, the flows of the class on each link of that class. By link
# class: `capacity` (bytes/s), and from `by_link[class]` to `by_link[class + 1]` the classes of
# flows, `flow`.
Quotient = namedtuple("Quotient", "nbytes begin capacity by_flow link weight by_link flow")


def finish_times(links: Links, flows: Flows) -> Floats | None:
    """When ``flows`` end, each draining its bytes at its max-min fair rate.

    Returns:
        (flows,) s; None if flows wait for others, if a route crosses a link twice, or if symmetry
        does not make the problem easy.
    """
    partition = refine(links, flows)
    reduced = None if partition is None else quotient(links, flows, partition)
    if partition is None or reduced is None:
        return None
    # right already for the classes without bytes or without links
    ends: Floats = reduced.begin.copy()
    rate, state = np.zeros(len(ends)), np.zeros(len(ends), np.int8)
    room, heap = np.empty((3, len(reduced.capacity))), np.empty(len(reduced.capacity), np.int64)
    done = _drain(
        reduced,
        reduced.nbytes.copy(),
        rate,
        state,
        room,
        heap,
        MOST_EFFORT * flows.routes.size,
        ends,
    )
    return ends[partition.flow] if done else None


# --------------------------------------------------------------------------------------- refinement


def refine(links: Links, flows: Flows) -> Partition | None:
    """The coarsest equitable partition, but for collisions of hashes; see `quotient`.

    Returns:
        None if flows wait for others or there are too many classes; with many that takes a small
        part of the flows to see.
    """
    most = min(MOST_CLASSES, len(flows) // FEWEST_ALIKE)
    if (
        not most
        or len(flows.after_to)
        or flows.routes.min(initial=-1) < -1
        or flows.routes.max(initial=-1) >= len(links)
    ):
        return None
    colours: Words = _mix(_mix(links.capacity.view(np.uint64)) + links.latency.view(np.uint64))
    of_flow, example = np.empty(len(flows), np.int16), np.empty(most, np.int64)
    # a power of two, so that a few bits of a colour say where to look; never a quarter full
    space = 1 << (4 * most).bit_length()
    keys, numbers = np.empty(space, np.uint64), np.empty(space, np.int16)
    n_flow = n_link = -1
    for _ in range(MOST_ROUNDS):
        shades, first, of_link = np.unique(colours, return_index=True, return_inverse=True)
        if len(shades) == n_link:
            return Partition(of_flow, example[:n_flow].copy(), of_link.astype(np.int32), first)
        n_link = len(shades)
        numbers.fill(-1)
        sums = np.zeros(len(links), np.uint64)
        words = flows.nbytes.view(np.uint64), flows.start.view(np.uint64)
        n_flow = _colour(flows.routes, *words, colours, keys, numbers, of_flow, example, sums)
        if n_flow < 0:
            return None
        colours = _mix(colours + _mix(sums))
    return None


@entry
def _colour(
    routes: Any,
    nbytes: Any,
    start: Any,
    colours: Any,
    keys: Any,
    numbers: Any,
    of_flow: Any,
    example: Any,
    sums: Any,
) -> int:
    """Colour the flows by the ``colours`` of their links, and add up for each link in ``sums`` the
    colours of its flows with bytes.

    ``keys`` and ``numbers`` are a hash table from colour to class; ``numbers`` must be -1. Sets the
    class of each flow in ``of_flow`` and the first flow of each class in ``example``. Returns the
    number of classes; -1 as soon as there are more than ``example`` has room for.
    """
    count, mask, width = 0, np.uint64(len(keys) - 1), routes.shape[1]
    for flow in range(routes.shape[0]):
        colour = _mixed(nbytes[flow]) + _mixed(start[flow] ^ _STEP)
        for hop in range(width):
            if routes[flow, hop] >= 0:
                colour += colours[routes[flow, hop]]
        colour = _mixed(colour)
        at = colour & mask
        while numbers[at] >= 0 and keys[at] != colour:
            at = (at + _ONE) & mask
        if numbers[at] < 0:
            if count == len(example):
                return -1
            keys[at], numbers[at], example[count] = colour, count, flow
            count += 1
        of_flow[flow] = numbers[at]
        if nbytes[flow] << _ONE:  # neither 0.0 nor -0.0
            for hop in range(width):
                if routes[flow, hop] >= 0:
                    sums[routes[flow, hop]] += colour
    return count


# ------------------------------------------------------------------------------------- verification


def quotient(links: Links, flows: Flows, partition: Partition) -> Quotient | None:
    """One flow and one link of each class, after a check that nothing else is needed.

    Returns:
        None if the partition is not equitable, or if a route crosses a link twice.
    """
    of_link, first, example = partition.link, partition.first, partition.example
    if any(
        not np.array_equal(values, values[first][of_link])
        for values in (links.capacity, links.latency)
    ):
        return None
    few = Flows(flows.routes[example], flows.nbytes[example], flows.start[example])
    # the last entry is what a route is padded with: -1
    lists = np.append(of_link, np.int32(-1))[few.routes]
    used = (lists >= 0) & (few.nbytes > 0)[:, None]
    codes, where = np.unique(
        (lists * np.int64(len(example)) + np.arange(len(example))[:, None])[used],
        return_inverse=True,
    )
    pair = np.full(lists.shape, -1, np.int32)
    pair[used] = where
    pair_link, pair_flow = np.divmod(codes, len(example))
    by_link = np.searchsorted(pair_link, np.arange(len(first) + 1))
    sizes = np.diff(by_link)[of_link]
    offsets = np.cumsum(sizes) - sizes
    if sizes.sum() > flows.routes.size:  # some link lacks a flow of a class that it should have
        return None
    counts = np.zeros(sizes.sum(), np.int32)
    # from the number of a pair to its place in the counts of a link
    shift = offsets - by_link[of_link]
    if not _equivalent(
        flows.routes,
        flows.nbytes,
        flows.start,
        partition.flow,
        example,
        of_link,
        lists,
        pair,
        shift,
        counts,
    ):
        return None
    weight = counts[shift[first[pair_link]] + np.arange(len(codes))]
    if not _even(of_link, by_link, offsets, weight, counts):
        return None
    order = np.argsort(pair_flow, kind="stable")
    by_flow = np.searchsorted(pair_flow[order], np.arange(len(example) + 1))
    begin = few.start + few.latencies(links)
    return Quotient(
        few.nbytes,
        begin,
        links.capacity[first],
        by_flow,
        pair_link[order],
        weight[order].astype(float),
        by_link,
        pair_flow,
    )


@entry
def _equivalent(
    routes: Any,
    nbytes: Any,
    start: Any,
    of_flow: Any,
    example: Any,
    of_link: Any,
    lists: Any,
    pair: Any,
    shift: Any,
    counts: Any,
) -> bool:
    """Whether every flow has the bytes, the start and the link classes of its example, and no link
    twice; counts the flows.

    ``lists`` and ``pair`` say by flow class and hop which class the link has and which pair that
    is, -1 for none. Adds to ``counts`` at ``shift`` of a link + pair for each flow on it.
    """
    width = routes.shape[1]
    for flow in range(routes.shape[0]):
        kind = of_flow[flow]
        like = example[kind]
        if nbytes[flow] != nbytes[like] or start[flow] != start[like]:
            return False
        for hop in range(width):
            link = routes[flow, hop]
            for before in range(hop):
                if link >= 0 and routes[flow, before] == link:
                    return False
            at = hop
            if lists[kind, hop] != (of_link[link] if link >= 0 else -1):
                at = _elsewhere(routes, of_link, lists, flow, kind, hop)
                if at < 0:
                    return False
            if pair[kind, at] >= 0:
                counts[shift[link] + pair[kind, at]] += 1
    return True


@compiled
def _elsewhere(routes: Any, of_link: Any, lists: Any, flow: int, kind: int, hop: int) -> int:
    """Where the example has the link class that a flow has at ``hop``; -1 if not as often.

    If two lists of one length differ as multisets, some class is in the flow's more often, and at
    one of its places not in the example's. So it is enough to ask at the places where the lists
    differ.
    """
    link = routes[flow, hop]
    wanted = of_link[link] if link >= 0 else -1
    at, surplus = -1, 0
    for other in range(routes.shape[1]):
        link = routes[flow, other]
        surplus += (of_link[link] if link >= 0 else -1) == wanted
        if lists[kind, other] == wanted:
            surplus -= 1
            at = other
    return at if surplus == 0 else -1


@entry
def _even(of_link: Any, by_link: Any, offsets: Any, weight: Any, counts: Any) -> bool:
    """Whether every link has as many flows of each class as the others of its own class."""
    for link in range(of_link.shape[0]):
        first = by_link[of_link[link]]
        for pair in range(first, by_link[of_link[link] + 1]):
            if counts[offsets[link] + pair - first] != weight[pair]:
                return False
    return True


# --------------------------------------------------------------------------------------- simulation


@entry
def _drain(
    q: Any, left: Any, rate: Any, state: Any, room: Any, heap: Any, effort: int, ends: Any
) -> bool:
    """Run the classes of flows that have bytes and links to their ends (s); returns whether
    ``effort`` looks were enough.

    ``left``: bytes left of each class, at first all. ``state``: 0 to come, 1 under way, 2 ended.
    ``room``, ``heap``: see `_fill`.
    """
    upcoming, n_left = np.inf, 0
    for flow in range(len(state)):
        if q.by_flow[flow] == q.by_flow[flow + 1]:
            state[flow] = 2
        else:
            n_left += 1
            upcoming = min(upcoming, q.begin[flow])
    now = upcoming
    while n_left > 0 and effort > 0:
        effort -= len(heap)
        upcoming = np.inf
        for flow in range(len(state)):
            if state[flow] == 0:
                if q.begin[flow] <= now:
                    state[flow] = 1
                else:
                    upcoming = min(upcoming, q.begin[flow])
        _fill(q, state, rate, room, heap)
        step = np.inf
        for flow in range(len(state)):
            if state[flow] == 1:
                step = min(step, left[flow] / rate[flow])
                effort -= q.by_flow[flow + 1] - q.by_flow[flow]
        before, now = now, min(now + step, upcoming)
        step = min(step, now - before)
        for flow in range(len(state)):
            if state[flow] == 1:
                if left[flow] / rate[flow] <= step + TIE * now:
                    state[flow] = 2
                    ends[flow] = now
                    n_left -= 1
                left[flow] -= rate[flow] * step
    return n_left == 0


@compiled
def _fill(q: Any, state: Any, rate: Any, room: Any, heap: Any) -> None:
    """The max-min fair ``rate`` (bytes/s) of each class of flows under way, by progressive filling.

    ``room``, ``heap``: (3, link classes) and (link classes,) that it may use. The classes of links
    are kept in a heap by level. Levels only rise while flows below them are kept, so each is
    brought up to date no sooner than it is the lowest.
    """
    rest, open_, keys = room[0], room[1], room[2]
    for link in range(len(heap)):
        rest[link], open_[link] = q.capacity[link], 0.0
    for flow in range(len(state)):
        if state[flow] == 1:
            rate[flow] = -1.0
            for i in range(q.by_flow[flow], q.by_flow[flow + 1]):
                open_[q.link[i]] += q.weight[i]
    count, reached = 0, 0.0
    for link in range(len(heap)):
        if open_[link] > 0:
            heap[count], keys[count] = link, rest[link] / open_[link]
            count += 1
    for at in range(count // 2 - 1, -1, -1):
        _sink(heap, keys, count, at)
    while count > 0:
        link = heap[0]
        if open_[link] > 0 and rest[link] / open_[link] > keys[0]:
            keys[0] = rest[link] / open_[link]
        else:
            reached = max(reached, keys[0])  # never falls, but for rounding
            _keep(q, state, rate, rest, open_, link, reached)
            count -= 1
            heap[0], keys[0] = heap[count], keys[count]
        _sink(heap, keys, count, 0)


@compiled
def _keep(q: Any, state: Any, rate: Any, rest: Any, open_: Any, link: int, level: float) -> None:
    """Keep the flows on ``link`` that still rise at ``level`` (bytes/s)."""
    for pair in range(q.by_link[link], q.by_link[link + 1]):
        flow = q.flow[pair]
        if state[flow] == 1 and rate[flow] < 0:
            rate[flow] = level
            for i in range(q.by_flow[flow], q.by_flow[flow + 1]):
                rest[q.link[i]] -= q.weight[i] * level
                open_[q.link[i]] -= q.weight[i]


@compiled
def _sink(heap: Any, keys: Any, count: int, at: int) -> None:
    """Restore the order of a heap of ``count`` entries, smallest key first, of which the one at
    ``at`` may be too large."""
    link, key = heap[at], keys[at]
    child = 2 * at + 1
    while child < count:
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        heap[at], keys[at] = heap[child], keys[child]
        at, child = child, 2 * child + 1
    heap[at], keys[at] = link, key
