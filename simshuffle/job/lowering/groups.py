"""Time what groups of ranks of one kind send at once, in closed form, and lay it out as
flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.allreduce import AllreduceFlows, Sparse
from simshuffle.fabric.allreduce.nccl import Choice
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.job.lowering.collectives import (
    Recipe,
    Recipes,
    as_sent,
    buses,
    transfers_of,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.arrays import Flags, Floats, Ints32
from simshuffle.workload.parallelism.step import Node

NO_BUS, INSIDE, BETWEEN = 0, 1, 2
"""Bound of a flow: a link, or the bus bandwidth inside hosts or between them."""


class ClosedForm:
    """Closed form of the time of flows that begin together, for any number of bytes.

    A flow lasts its delay and then its bytes over its cap, or over the slowest link of
    its route. No flow is shorter than its most loaded link is busy with the flows of
    its step. Of flows without edges this is a lower bound of their time on a fluid
    network, and exact where each step has one bottleneck. All but delays is in
    proportion to the bytes, so flows are laid out once.

    Args:
        flows: of one byte.
        is_between: (flows,) whether the bus bandwidth between hosts bounds each flow.
        bus: (flows,) bytes of each flow over its cap, if the bus bandwidth were 1
            byte/s.
        routes: (flows, hops) the links of each flow, padded with -1; None leaves links
            out.
        capacity: (links,) bytes/s.
    """

    def __init__(
        self,
        flows: AllreduceFlows,
        is_between: Flags,
        bus: Floats,
        routes: Ints32 | None = None,
        capacity: Floats | None = None,
    ) -> None:
        self._flows = flows
        self._between = is_between
        self._bus = bus
        delay = np.asarray(flows.delay, np.float64)
        self._slowest = np.zeros(len(flows))
        self._begin, self._busy = delay, np.zeros(len(flows))
        loads: _LinkLoads | None = None
        if routes is not None and capacity is not None:
            loads = load_links(flows, routes, capacity)
            self._slowest = loads.slowest
            self._begin = loads.busiest_delay
            self._busy = loads.busiest_seconds
        self._rows: list[tuple[float, float, int]] | None = None
        if not len(flows.edge_to):
            self._rows = [
                *upper_envelope(delay[~is_between], bus[~is_between], INSIDE),
                *upper_envelope(delay[is_between], bus[is_between], BETWEEN),
                *upper_envelope(delay, self._slowest, NO_BUS),
            ]
            if loads is not None:
                self._rows += upper_envelope(
                    loads.delay_of_link, loads.busy_of_link, NO_BUS
                )

    def seconds(
        self, nbytes: float, bandwidth_inside: float, bandwidth_between: float
    ) -> float:
        """Return the seconds until the last of the flows has ended.

        Args:
            nbytes: bytes in place of each byte for which the flows were laid out.
            bandwidth_inside: bus bandwidth inside hosts, bytes/s.
            bandwidth_between: bus bandwidth between hosts, bytes/s.
        """
        if self._rows is not None:
            bandwidths = (1.0, bandwidth_inside, bandwidth_between)
            return max(
                delay + nbytes * busy / bandwidths[bus]
                for delay, busy, bus in self._rows
            )
        bus = np.where(
            self._between, self._bus / bandwidth_between, self._bus / bandwidth_inside
        )
        isolated_seconds = self._flows.delay + nbytes * np.maximum(bus, self._slowest)
        np.maximum(
            isolated_seconds, self._begin + nbytes * self._busy, out=isolated_seconds
        )
        return replace(self._flows, nbytes=isolated_seconds, delay=0.0).seconds(
            np.ones(len(isolated_seconds))
        )


@dataclass(frozen=True)
class _LinkLoads:
    """Delays and busy times of flows of one byte, by flow and by link."""

    slowest: Floats  # (flows,) s that a flow's bytes take over its slowest link
    busiest_delay: (
        Floats  # (flows,) s, the first delay on a flow's most loaded link in its step
    )
    busiest_seconds: Floats  # (flows,) s that this link is busy in the step
    delay_of_link: Floats  # (used links,) s, the first delay on each link in each step
    busy_of_link: Floats  # (used links,) s that each link is busy in each step


def load_links(flows: AllreduceFlows, routes: Ints32, capacity: Floats) -> _LinkLoads:
    """Add up what flows load on their links, (flows, hops) ``routes`` padded with -1.

    Each step counts by itself if the last flow has a step above 0. Else no link is
    busiest: ``busiest_seconds`` is then 0 and ``busiest_delay`` each flow's own.
    """
    # one row for each hop of each flow
    flow_index, hop = np.nonzero(routes >= 0)
    link = routes[flow_index, hop].astype(np.int64)
    steps = np.asarray(flows.step)
    has_steps = bool(steps[-1] > 0)

    # a slot for each link, in each step, that any flow uses
    if has_steps:
        used_links, slot = np.unique(
            steps[flow_index] * len(capacity) + link, return_inverse=True
        )
        capacity_of_slot = capacity[used_links % len(capacity)]
    else:
        present = np.zeros(len(capacity), bool)
        present[link] = True
        used_links = np.flatnonzero(present)
        slot_of_link = np.cumsum(present) - 1
        slot = slot_of_link[link]
        capacity_of_slot = capacity[used_links]
    busy = (
        np.bincount(slot, flows.nbytes[flow_index], len(used_links)) / capacity_of_slot
    )

    delay = np.asarray(flows.delay, np.float64)
    first_delay = np.full(len(used_links), delay.min())
    if first_delay[0] < delay.max():
        first_delay[:] = np.inf
        np.minimum.at(first_delay, slot, delay[flow_index])
    lowest_capacity = np.full(len(flows), np.inf)
    np.minimum.at(lowest_capacity, flow_index, capacity_of_slot[slot])

    busiest_seconds = np.zeros(len(flows))
    busiest_delay = delay
    if has_steps:
        # the hops of each flow by how long their links are busy, the busiest last
        order = np.lexsort([busy[slot], flow_index])
        busiest_hop = order[np.flatnonzero(np.diff(flow_index[order], append=-1))]
        busiest_seconds = busy[slot[busiest_hop]]
        busiest_delay = first_delay[slot[busiest_hop]]
    return _LinkLoads(
        slowest=flows.nbytes / lowest_capacity,
        busiest_delay=busiest_delay,
        busiest_seconds=busiest_seconds,
        delay_of_link=first_delay,
        busy_of_link=busy,
    )


def upper_envelope(
    delay: Floats, busy: Floats, bus: int
) -> list[tuple[float, float, int]]:
    """Return the lines ``delay + n * busy`` that are largest for some n >= 0.

    They are (delay, busy, bus), by falling ``busy``, each with a longer delay than all
    before.
    """
    order = np.lexsort([-delay, -busy])
    longest = np.maximum.accumulate(delay[order])
    on_envelope = order[np.flatnonzero(np.diff(longest, prepend=-1.0) > 0)]
    lines = zip(delay[on_envelope].tolist(), busy[on_envelope].tolist(), strict=True)
    return [(line_delay, line_busy, bus) for line_delay, line_busy in lines]


RAIL_AWARE = ("allreduce", "allgather", "reduce_scatter")
"""Collectives whose flows know their HCAs; others leave by that of the rank that sends."""


@dataclass(frozen=True)
class GroupPattern:
    """Groups of ranks whose members are distributed over hosts alike."""

    host_of: Ints32  # (members,) hosts, numbered as they come
    rail: Ints32  # (members,) their HCAs
    groups: NDArray[np.intp]  # (groups,) indices of the groups


@dataclass(frozen=True)
class GroupFlows:
    """The flows of all groups at once."""

    flows: AllreduceFlows  # between ranks; their ``delay`` holds all latency
    group_of: Ints32  # (flows,) the index of the group of each flow
    # (flows,) whether each is bounded by the bus bandwidth between hosts
    is_between: Flags


class Groups:
    """Groups of one kind, (groups, members) ranks, which all send at once.

    Closed forms, seconds and batches are kept by node.
    """

    def __init__(self, ranks: Ints32, recipes: Recipes, resources: Resources) -> None:
        self.ranks = ranks
        self._recipes = recipes
        self._resources = resources
        self._patterns: dict[bool, list[GroupPattern]] = {}
        self._forms: dict[tuple[object, ...], ClosedForm | None] = {}
        self._seconds: dict[tuple[object, ...], float] = {}
        self._isolated_forms: dict[tuple[int, int], ClosedForm] = {}
        self._batches: dict[
            tuple[object, ...], tuple[TransferBatch, Ints32] | None
        ] = {}

    def seconds(self, node: Node) -> float:
        """Return the seconds that a node sends, its ``count`` messages one after the
        other: until the slowest group has ended.

        All groups send at once on an idle machine. 0 if nobody sends anything.
        """
        key = (*as_sent(node), node.nbytes, node.count)
        if key not in self._seconds:
            self._seconds[key] = node.count * self._message_seconds(
                node, node.nbytes / node.count
            )
        return self._seconds[key]

    def _message_seconds(self, node: Node, nbytes: float) -> float:
        """Return the seconds of one message of ``nbytes`` bytes, in all groups at once.

        Bandwidths, and a sparse allreduce's selection, are those of the first pattern.
        """
        recipes = self._choose_recipes(node, nbytes)
        key = (*as_sent(node), *map(id, recipes))
        if key not in self._forms:
            fabric = self._resources.with_fresh_routes()
            laid = self._lay_out(node, [drop_search(recipe) for recipe in recipes], 1.0)
            self._forms[key] = (
                None if laid is None else closed_form_of(laid, recipes[0], fabric)
            )
        if (closed_form := self._forms[key]) is None:
            return 0.0
        seconds = closed_form.seconds(nbytes, *_bandwidths(recipes[0], nbytes))
        algorithm = recipes[0].algorithm
        if isinstance(
            algorithm, Sparse
        ):  # selecting the values takes time by the bytes
            seconds += nbytes / algorithm.selection_bandwidth
        return seconds

    def _choose_recipes(self, node: Node, nbytes: float) -> list[Recipe]:
        """Return the fastest recipe of each pattern, in their order, for one message."""
        patterns = enumerate(self._patterns_of(node))
        return [
            self._fastest(node, number, pattern, nbytes) for number, pattern in patterns
        ]

    def _fastest(
        self, node: Node, pattern_index: int, pattern: GroupPattern, nbytes: float
    ) -> Recipe:
        """Return the recipe that takes least for a group alone, by its bus bandwidths.

        Links are left out. For one member it is the first recipe.
        """
        recipes = self._recipes.among(node, pattern.host_of, pattern.rail, nbytes)
        if len(recipes) == 1 or len(pattern.host_of) == 1:
            return recipes[0]

        def isolated_seconds(recipe: Recipe) -> float:
            """Return the seconds of one group alone; 0 if nobody sends."""
            key = (pattern_index, id(recipe))
            if key not in self._isolated_forms:
                flows = recipe.flows(pattern.host_of, 1.0)
                if flows is None:
                    return 0.0
                self._isolated_forms[key] = closed_form_of(
                    lay_out_pattern(recipe, pattern, flows), recipe
                )
            return self._isolated_forms[key].seconds(
                nbytes, *_bandwidths(recipe, nbytes)
            )

        return min(recipes, key=isolated_seconds)

    # --------------------------------------------------------------------------------------- flows

    def batch(self, node: Node) -> tuple[TransferBatch, Ints32] | None:
        """Return the transfers of all groups of a node's kind, laid out once; None if
        nobody sends.

        The second array, (transfers,), is the number of each transfer's group.
        """
        key = (*as_sent(node), node.nbytes, node.count)
        if key not in self._batches:
            nbytes = node.nbytes / node.count
            batch = None
            if laid := self._lay_out(node, self._choose_recipes(node, nbytes), nbytes):
                batch = (
                    transfers_of(laid.flows, self._resources, node.count),
                    laid.group_of,
                )
            self._batches[key] = batch
        return self._batches[key]

    def _lay_out(
        self, node: Node, recipes: Sequence[Recipe], nbytes: float
    ) -> GroupFlows | None:
        """Lay out the flows of all groups, each pattern by its recipe; None if nobody
        sends.
        """
        ranks = self.ranks
        parts = []
        for recipe, pattern in zip(recipes, self._patterns_of(node), strict=True):
            flows = recipe.flows(pattern.host_of, nbytes)
            if flows is not None:
                part = lay_out_pattern(recipe, pattern, flows)
                parts.append(
                    repeat_for_groups(ranks[pattern.groups], pattern.groups, part)
                )
        return concatenate_flows(parts) if parts else None

    def _patterns_of(self, node: Node) -> list[GroupPattern]:
        """Return the patterns of the groups; HCAs tell them apart unless flows know
        theirs.
        """
        own_rails = node.collective not in RAIL_AWARE
        if own_rails not in self._patterns:
            self._patterns[own_rails] = group_by_pattern(
                self._resources, self.ranks, own_rails
            )
        return self._patterns[own_rails]


def group_by_pattern(
    resources: Resources, ranks: Ints32, own_rails: bool
) -> list[GroupPattern]:
    """Return the patterns of groups, (groups, members) ``ranks``, by their first group.

    HCAs tell patterns apart only with ``own_rails``, else all are 0. A scale-up domain
    counts as one host; its ranks must follow one another in a group.
    """
    domain = resources.domain_of[ranks]
    host_of = np.cumsum(np.diff(domain, axis=1, prepend=domain[:, :1]) != 0, axis=1)
    rail = resources.rails[ranks] if own_rails else np.zeros_like(ranks)
    groups_by_row: dict[bytes, list[int]] = {}
    placements = np.ascontiguousarray(
        np.concatenate([host_of, rail], axis=1).astype(np.int32)
    )
    for group, placement in enumerate(placements):
        groups_by_row.setdefault(placement.tobytes(), []).append(group)
    size = ranks.shape[1]
    return [
        GroupPattern(
            placements[groups[0], :size], placements[groups[0], size:], np.array(groups)
        )
        for groups in groups_by_row.values()
    ]


def lay_out_pattern(
    recipe: Recipe, pattern: GroupPattern, flows: AllreduceFlows
) -> GroupFlows:
    """Lay out the flows among the members of one group, numbered from 0.

    Their whole latency is in ``delay``, and each has a step.
    """
    step = np.broadcast_to(np.asarray(flows.step, np.int32), len(flows))
    laid = replace(flows, latency=0.0, delay=flows.delays, step=step)
    group_of = np.zeros(len(flows), np.int32)
    return GroupFlows(laid, group_of, buses(recipe, pattern.host_of, flows))


def repeat_for_groups(
    ranks: Ints32, groups: NDArray[np.intp], part: GroupFlows
) -> GroupFlows:
    """Repeat the flows of one group for each group of ``ranks``, (groups, members)."""
    flows = part.flows
    count = len(ranks)
    shift = (np.arange(count, dtype=np.int32) * np.int32(len(flows)))[:, None]
    laid = AllreduceFlows(
        ranks[:, flows.src].ravel(),
        ranks[:, flows.dst].ravel(),
        np.tile(flows.nbytes, count),
        np.tile(flows.rail, count),
        np.tile(flows.cap, count),
        0.0,
        np.tile(flows.delay, count),
        np.tile(flows.step, count),
        (flows.edge_from + shift).ravel(),
        (flows.edge_to + shift).ravel(),
    )
    group_of = np.repeat(groups, len(flows)).astype(np.int32)
    return GroupFlows(laid, group_of, np.tile(part.is_between, count))


def concatenate_flows(parts: Sequence[GroupFlows]) -> GroupFlows:
    """Concatenate the flows of all parts (at least one); numbers in edges are shifted
    by the flows of earlier parts.
    """
    if len(parts) == 1:
        return parts[0]
    flows_of_part = [part.flows for part in parts]
    num_flows = [len(flows) for flows in flows_of_part]
    first_flow = (np.cumsum(num_flows) - num_flows).astype(np.int32)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(flows, name) for flows in flows_of_part])
        for name in ("src", "dst", "nbytes", "rail", "cap", "delay", "step")
    }
    for name in (
        "edge_from",
        "edge_to",
    ):  # numbers of flows, behind those of the parts before
        shifted_edges = [
            getattr(flows, name) + offset
            for flows, offset in zip(flows_of_part, first_flow, strict=True)
        ]
        columns[name] = np.concatenate(shifted_edges)
    group_of = np.concatenate([part.group_of for part in parts])
    is_between = np.concatenate([part.is_between for part in parts])
    return GroupFlows(AllreduceFlows(**columns, latency=0.0), group_of, is_between)


def closed_form_of(
    laid: GroupFlows, recipe: Recipe, fabric: Resources | None = None
) -> ClosedForm:
    """Return the closed form of flows that are laid out for one byte.

    Without ``fabric``, nothing but bus bandwidths bounds the flows.
    """
    flows = laid.flows
    bandwidth_inside, bandwidth_between = _bandwidths(recipe, 1.0)
    bus = (
        flows.nbytes
        / flows.cap
        * np.where(laid.is_between, bandwidth_between, bandwidth_inside)
    )
    if fabric is None:
        return ClosedForm(flows, laid.is_between, bus)
    routes = fabric.gradient(flows.src, flows.dst, flows.rail)
    return ClosedForm(flows, laid.is_between, bus, routes, fabric.links.capacity)


def _bandwidths(recipe: Recipe, nbytes: float) -> tuple[float, float]:
    """Return the bus bandwidths inside hosts and between them, bytes/s, at ``nbytes``."""
    algorithm = recipe.algorithm
    return algorithm.intra_host_bus_bandwidth(
        nbytes
    ), algorithm.inter_host_bus_bandwidth(nbytes)


def drop_search(recipe: Recipe) -> Recipe:
    """Return a recipe whose sparse allreduce selects its values in no time; other
    recipes as they are.
    """
    if not (isinstance(recipe, Choice) and isinstance(recipe.algorithm, Sparse)):
        return recipe
    without_search = recipe.algorithm.model_copy(update={"selection_bandwidth": np.inf})
    return replace(recipe, algorithm=without_search)
