"""Max-min fair flows through their symmetry: one flow stands for all that are alike.
Exact.

In an all-to-all on a regular network millions of flows do the same thing on links that
look the same. `finish_times` finds out which, and simulates one flow and one link of
each kind.

*Equitable partition.* Flows and links are put into classes such that

1. all flows of a class have the same bytes and start, and cross equally many links of every link
  class;
2. all links of a class have the same capacity and latency, and each carries equally many flows of
  every flow class.

*Why one of each is enough.* Let all flows of a class have the same bytes left at some
moment, as they do when they start. Progressive filling raises the rates of all flows
together until a link is full, and keeps the rates of the flows on it; the max-min fair
rates are unique, and this finds them (Bertsekas & Gallager, Data Networks, 2nd ed.,
section 6.5.2). Suppose that the flows whose rates are kept so far are whole classes,
each with one rate, as at first, when there are none. A link then is full when the
common rate reaches

    level = (capacity - sum of w * rate over the classes kept) / (sum of w over the other classes
    under way),

where w, the number of flows of a class on the link, is the same on all links of its
class by (2): whole classes of links get full. The flows that cross them are whole
classes of flows by (1), and all get this level. So by induction the rates are equal
within each class, until the next flow starts or ends; and so are the bytes left. Flows
of one class start together, since their latencies are equal by (1) and (2), and end
together; at the next start or end the argument begins anew. Filling therefore needs one
flow of each class, one link of each class, and the numbers w. Nothing needs to be a
symmetry in the strict sense, an automorphism. (For linear programs the same reduction
is in Grohe, Kersting, Mladenov & Selman, Dimension Reduction via Colour Refinement, ESA
2014.)

*Finding it.* Colour refinement: a link's next colour is made of its colour and those of
its flows, a flow's of its bytes, its start and the colours of its links, until no class
of links falls apart any more. That gives the coarsest such partition. Colours are
64-bit hashes: the sum over a collection of well-mixed values stands for the collection.
So that a collision cannot falsify the result, `quotient` then checks (1) and (2) by
comparing and counting, without hashes.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network.flows import Flows, Links
from simshuffle.fabric.network.fluid_classes import Progress, Quotient, drain_classes
from simshuffle.spec.arrays import Floats, Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry

Words = NDArray[np.uint64]

# A problem counts as small with at most so many classes of flows, and at least so many flows a
# class.
MAX_CLASSES = 1 << 14
MIN_CLASS_SIZE = 8
# Solving it takes at most so many looks at a class of flows on a class of links for each hop of
# each flow. Flow by flow takes longer than that unless nearly all classes end at different times
# and have few flows each: then it is faster, and little time is lost until here.
MAX_EFFORT = 32
# Refinement takes 2 to 6 rounds on the usual networks, but up to one for each link on a long
# irregular chain.
MAX_ROUNDS = 32
# splitmix64 (Steele, Lea & Flood, Fast splittable pseudorandom number generators, OOPSLA 2014):
# increment, multipliers, shifts
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_ONE = np.uint64(1)


def _mix(word: Any) -> Any:
    """Hash a 64-bit word, or an array of words: no two words give equal results."""
    word = (word ^ (word >> _S30)) * _FIRST
    word = (word ^ (word >> _S27)) * _SECOND
    return word ^ (word >> _S31)


_mixed: Any = compiled(_mix)

# Flows as the kernels see them: `routes` (flows, hops) links, padded with -1; `nbytes` and `start`
# (flows,), bytes and s, or the same 64 bits as whole numbers.
_FlowArrays = namedtuple("_FlowArrays", "routes nbytes start")
# A hash table from a colour to the number of its class: `keys` (table size,) colours, `classes`
# (table size,) numbers, -1 where there is none.
_ClassTable = namedtuple("_ClassTable", "keys classes")
# `flow` (flows,) class of each flow, `example` (classes,) the first flow of each class.
_FlowClasses = namedtuple("_FlowClasses", "flow example")
# `_FlowClasses`, and `link` (links,) class of each link; by flow class and hop of its example,
# (flow classes, hops) each: `link_of_hop`, the class of the link, and `pair_of_hop`, the index of
# the pair of a link class and a flow class; -1 for none.
_QuotientClasses = namedtuple(
    "_QuotientClasses", "flow example link link_of_hop pair_of_hop"
)


@dataclass(frozen=True)
class Partition:
    """Flows and links in classes, numbered from 0."""

    flow: NDArray[np.int16]  # (flows,) int16, class of each flow
    example: Ints64  # (flow classes,) int64, the first flow of each class
    link: Ints32  # (links,) int32, class of each link
    first: Ints64  # (link classes,) int64, the first link of each class


def finish_times(links: Links, flows: Flows) -> Floats | None:
    """Compute when ``flows`` end, each draining its bytes at its max-min fair rate.

    Returns:
        (flows,) s; None if flows wait for others, if a route crosses a link twice or
        has a link that does not exist, or if symmetry does not make the problem easy
        (fewer than `MIN_CLASS_SIZE` flows a class, or more than `MAX_EFFORT`).
    """
    partition = refine(links, flows)
    problem = None if partition is None else quotient(links, flows, partition)
    if partition is None or problem is None:
        return None
    # right already for the classes without bytes or without links
    ends: Floats = problem.begin.copy()
    progress = Progress(
        remaining=problem.nbytes.copy(),
        rate=np.zeros(len(ends)),
        state=np.zeros(len(ends), np.int8),
        ends=ends,
    )
    scratch = np.empty((3, len(problem.capacity)))
    heap = np.empty(len(problem.capacity), np.int64)
    effort = MAX_EFFORT * flows.routes.size
    is_finished = drain_classes(problem, progress, scratch, heap, effort)
    return ends[partition.flow] if is_finished else None


# --------------------------------------------------------------------------------------- refinement


def refine(links: Links, flows: Flows) -> Partition | None:
    """Find the coarsest equitable partition, but for collisions of hashes; see
    `quotient`.

    Returns:
        The partition; None if flows wait for others, if a route has a link that does
        not exist, or if there are too many classes: more than `MAX_CLASSES`, or fewer
        than `MIN_CLASS_SIZE` flows a class. Too many classes are seen early. None, too,
        if classes still fall apart after `MAX_ROUNDS`.
    """
    max_classes = min(MAX_CLASSES, len(flows) // MIN_CLASS_SIZE)
    if (
        not max_classes
        or len(flows.after_to)
        or flows.routes.min(initial=-1) < -1
        or flows.routes.max(initial=-1) >= len(links)
    ):
        return None
    colours: Words = _mix(
        _mix(links.capacity.view(np.uint64)) + links.latency.view(np.uint64)
    )
    classes = _FlowClasses(
        flow=np.empty(len(flows), np.int16), example=np.empty(max_classes, np.int64)
    )
    # a power of two, so that a few bits of a colour say where to look; never a quarter full
    table_size = 1 << (4 * max_classes).bit_length()
    table = _ClassTable(
        keys=np.empty(table_size, np.uint64), classes=np.empty(table_size, np.int16)
    )
    flow_words = _FlowArrays(
        flows.routes, flows.nbytes.view(np.uint64), flows.start.view(np.uint64)
    )
    num_flow_classes = num_link_classes = -1
    for _ in range(MAX_ROUNDS):
        distinct_colours, first_link, class_of_link = np.unique(
            colours, return_index=True, return_inverse=True
        )
        if len(distinct_colours) == num_link_classes:
            return Partition(
                classes.flow,
                classes.example[:num_flow_classes].copy(),
                class_of_link.astype(np.int32),
                first_link,
            )
        num_link_classes = len(distinct_colours)
        table.classes.fill(-1)
        sums = np.zeros(len(links), np.uint64)
        num_flow_classes = _colour_flows(flow_words, colours, table, classes, sums)
        if num_flow_classes < 0:
            return None
        colours = _mix(colours + _mix(sums))
    return None


@entry
def _colour_flows(flows: Any, colours: Any, table: Any, classes: Any, sums: Any) -> int:
    """Colour the flows by the ``colours`` of their links, and add up for each link in
    ``sums`` the colours of its flows with bytes.

    Args:
        flows: the `_FlowArrays`, bytes and starts as words of 64 bits.
        colours: (links,) words of 64 bits.
        table: a `_ClassTable` without classes.
        classes: the `_FlowClasses` that are written.
        sums: (links,) added to.

    Returns:
        The number of classes; -1 as soon as there are more than ``classes.example`` has
        room for.
    """
    routes = flows.routes
    keys = table.keys
    class_of_slot = table.classes
    count = 0
    mask = np.uint64(len(keys) - 1)
    width = routes.shape[1]
    for flow in range(routes.shape[0]):
        colour = _mixed(flows.nbytes[flow]) + _mixed(flows.start[flow] ^ _STEP)
        for hop in range(width):
            if routes[flow, hop] >= 0:
                colour += colours[routes[flow, hop]]
        colour = _mixed(colour)
        slot = colour & mask
        while class_of_slot[slot] >= 0 and keys[slot] != colour:
            slot = (slot + _ONE) & mask
        if class_of_slot[slot] < 0:
            if count == len(classes.example):
                return -1
            keys[slot] = colour
            class_of_slot[slot] = count
            classes.example[count] = flow
            count += 1
        classes.flow[flow] = class_of_slot[slot]
        if flows.nbytes[flow] << _ONE:  # neither 0.0 nor -0.0
            for hop in range(width):
                if routes[flow, hop] >= 0:
                    sums[routes[flow, hop]] += colour
    return count


# ------------------------------------------------------------------------------------- verification


def _links_match_classes(links: Links, partition: Partition) -> bool:
    """Return True if each link has the capacity and the latency of the first link of
    its class.
    """
    example = partition.first[partition.link]
    has_capacity = np.array_equal(links.capacity, links.capacity[example])
    return has_capacity and np.array_equal(links.latency, links.latency[example])


def quotient(links: Links, flows: Flows, partition: Partition) -> Quotient | None:
    """Reduce the problem to one flow and one link of each class, after a check that
    nothing else is needed.

    Returns:
        The `Quotient`, in which classes of flows without bytes use no links; None if
        the partition is not equitable, or if a route crosses a link twice.
    """
    if not _links_match_classes(links, partition):
        return None
    class_of_link = partition.link
    first_link = partition.first
    example = partition.example
    example_flows = Flows(
        flows.routes[example], flows.nbytes[example], flows.start[example]
    )

    # (flow classes, hops) the class of each link; the last entry is for the padding of routes, -1
    link_class_of_hop = np.append(class_of_link, np.int32(-1))[example_flows.routes]
    is_used = (link_class_of_hop >= 0) & (example_flows.nbytes > 0)[:, None]
    # a pair is a link class and a flow class that meet: link class * flow classes + flow class
    flow_class = np.arange(len(example))[:, None]
    codes_of_hops = link_class_of_hop * np.int64(len(example)) + flow_class
    pair_codes, pair_index = np.unique(codes_of_hops[is_used], return_inverse=True)
    pair_of_hop = np.full(link_class_of_hop.shape, -1, np.int32)
    pair_of_hop[is_used] = pair_index
    pair_link, pair_flow = np.divmod(pair_codes, len(example))
    first_pair = np.searchsorted(pair_link, np.arange(len(first_link) + 1))
    sizes = np.diff(first_pair)[class_of_link]
    offsets = np.cumsum(sizes) - sizes
    if (
        sizes.sum() > flows.routes.size
    ):  # some link lacks a flow of a class that it should have
        return None
    # for each link a run of counts, one for each pair of its class: pair p stands at shift + p
    counts = np.zeros(sizes.sum(), np.int32)
    shift = offsets - first_pair[class_of_link]
    flow_arrays = _FlowArrays(flows.routes, flows.nbytes, flows.start)
    classes = _QuotientClasses(
        flow=partition.flow,
        example=example,
        link=class_of_link,
        link_of_hop=link_class_of_hop,
        pair_of_hop=pair_of_hop,
    )
    if not _matches_examples(flow_arrays, classes, shift, counts):
        return None
    weight = counts[shift[first_link[pair_link]] + np.arange(len(pair_codes))]
    if not _has_equal_counts(class_of_link, first_pair, offsets, weight, counts):
        return None
    flow_order = np.argsort(pair_flow, kind="stable")
    first_of_flow = np.searchsorted(pair_flow[flow_order], np.arange(len(example) + 1))
    begin = example_flows.start + example_flows.latencies(links)
    return Quotient(
        example_flows.nbytes,
        begin,
        links.capacity[first_link],
        first_of_flow,
        pair_link[flow_order],
        weight[flow_order].astype(float),
        first_pair,
        pair_flow,
    )


@entry
def _matches_examples(flows: Any, classes: Any, shift: Any, counts: Any) -> bool:
    """Return True if every flow has the bytes, the start and the link classes of its
    example, and no link twice; count the flows of each class on each link.

    Args:
        flows: the `_FlowArrays`, bytes and starts as numbers.
        classes: the `_QuotientClasses`.
        shift: (links,) from the index of a pair to its place in ``counts``.
        counts: (any,) incremented at shift[link] + pair for each flow with bytes on a
            link; only a part of the flows is counted if the answer is False.
    """
    routes = flows.routes
    nbytes = flows.nbytes
    start = flows.start
    width = routes.shape[1]
    for flow in range(routes.shape[0]):
        flow_class = classes.flow[flow]
        example_flow = classes.example[flow_class]
        if nbytes[flow] != nbytes[example_flow] or start[flow] != start[example_flow]:
            return False
        for hop in range(width):
            link = routes[flow, hop]
            for earlier_hop in range(hop):
                if link >= 0 and routes[flow, earlier_hop] == link:
                    return False
            example_hop = hop
            link_class = classes.link[link] if link >= 0 else -1
            if classes.link_of_hop[flow_class, hop] != link_class:
                example_hop = _find_matching_hop(
                    routes[flow], link_class, classes, flow_class
                )
                if example_hop < 0:
                    return False
            pair = classes.pair_of_hop[flow_class, example_hop]
            if pair >= 0:
                counts[shift[link] + pair] += 1
    return True


@compiled
def _find_matching_hop(
    route: Any, link_class: int, classes: Any, flow_class: int
) -> int:
    """Find the last hop at which the example of ``flow_class`` has a link of
    ``link_class``; -1 if ``route``, of a flow of that class, has such links more or
    less often.

    If two lists of one length differ as multisets, some class is in the flow's more
    often, and at one of its places not in the example's. So it is enough to ask at the
    places where the lists differ.
    """
    example_hop = -1
    surplus = 0
    for candidate in range(len(route)):
        link = route[candidate]
        surplus += (classes.link[link] if link >= 0 else -1) == link_class
        if classes.link_of_hop[flow_class, candidate] == link_class:
            surplus -= 1
            example_hop = candidate
    return example_hop if surplus == 0 else -1


@entry
def _has_equal_counts(
    class_of_link: Any, first_pair: Any, offsets: Any, weight: Any, counts: Any
) -> bool:
    """Return True if every link has as many flows of each class as the other links of
    its class.

    Args:
        class_of_link: (links,) class of each link.
        first_pair: (link classes + 1,) where the pairs of each link class begin.
        offsets: (links,) where the counts of each link begin in ``counts``.
        weight: (pairs,) flows of each pair on the first link of its class.
        counts: (any,) flows on each link, one entry for each pair of its class.
    """
    for link in range(class_of_link.shape[0]):
        first = first_pair[class_of_link[link]]
        for pair in range(first, first_pair[class_of_link[link] + 1]):
            if counts[offsets[link] + pair - first] != weight[pair]:
                return False
    return True
