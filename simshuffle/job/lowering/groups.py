"""Groups of ranks of one kind: what they send at once, in closed form and as flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.allreduce import AllreduceFlows, Sparse
from simshuffle.fabric.allreduce.nccl import Choice
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.job.lowering.collectives import Recipe, Recipes, as_sent, buses, transfers_of
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.arrays import Flags, Floats, Ints32
from simshuffle.workload.parallelism.step import Node

NO_BUS, INSIDE, BETWEEN = 0, 1, 2
"""What bounds a flow: a link, or the bus bandwidth inside hosts or between them."""


class ClosedForm:
    """How long flows take that begin together, of any number of bytes.

    A flow lasts its delay and then its bytes over its cap, or over the slowest link of its route;
    and no shorter than its most loaded link is busy with the flows of its step. Of flows without
    edges this is a lower bound of what they take on a fluid network, and exact where each step has
    one bottleneck. All but delays is in proportion to the bytes, so flows are laid out once.

    Args:
        flows: of one byte.
        between: (flows,) whether each is bounded by the bus bandwidth between hosts.
        bus: (flows,) its bytes over its cap, if the bus bandwidth were 1 byte/s.
        routes: (flows, hops) the links of each, padded with -1; None leaves them out.
        capacity: (links,) bytes/s.
    """

    def __init__(
        self,
        flows: AllreduceFlows,
        between: Flags,
        bus: Floats,
        routes: Ints32 | None = None,
        capacity: Floats | None = None,
    ) -> None:
        self._flows, self._between, self._bus = flows, between, bus
        delay = np.asarray(flows.delay, np.float64)
        self._slowest = np.zeros(len(flows))
        self._begin, self._busy = delay, np.zeros(len(flows))
        links: list[tuple[Floats, Floats]] = []
        if routes is not None and capacity is not None:
            self._slowest, self._begin, self._busy, used = _loads(flows, routes, capacity)
            links = [used]
        self._rows: list[tuple[float, float, int]] | None = None
        if not len(flows.edge_to):
            self._rows = [
                *_largest(delay[~between], bus[~between], INSIDE),
                *_largest(delay[between], bus[between], BETWEEN),
                *_largest(delay, self._slowest, NO_BUS),
            ]
            for begin, busy in links:
                self._rows += _largest(begin, busy, NO_BUS)

    def seconds(self, nbytes: float, inside: float, between: float) -> float:
        """Time (s) of flows of ``nbytes`` bytes for each for which they are laid out; ``inside``
        and ``between`` are bus bandwidths inside hosts and between them (bytes/s)."""
        if self._rows is not None:
            over = (1.0, inside, between)
            return max(delay + nbytes * busy / over[bus] for delay, busy, bus in self._rows)
        bus = np.where(self._between, self._bus / between, self._bus / inside)
        alone = self._flows.delay + nbytes * np.maximum(bus, self._slowest)
        np.maximum(alone, self._begin + nbytes * self._busy, out=alone)
        return replace(self._flows, nbytes=alone, delay=0.0).seconds(np.ones(len(alone)))


def _loads(
    flows: AllreduceFlows, routes: Ints32, capacity: Floats
) -> tuple[Floats, Floats, Floats, tuple[Floats, Floats]]:
    """(flows,) s that the bytes of each take over its slowest link; (flows,) the first delay of
    those on its most loaded one in its step, and s that this is busy; the last two of every link
    and step."""
    row, hop = np.nonzero(routes >= 0)
    link = routes[row, hop].astype(np.int64)
    steps = np.asarray(flows.step)
    several = bool(steps[-1] > 0)
    if several:
        used, place = np.unique(steps[row] * len(capacity) + link, return_inverse=True)
        of = capacity[used % len(capacity)]
    else:
        present = np.zeros(len(capacity), bool)
        present[link] = True
        used = np.flatnonzero(present)
        number = np.cumsum(present) - 1
        place, of = number[link], capacity[used]
    busy = np.bincount(place, flows.nbytes[row], len(used)) / of
    delay = np.asarray(flows.delay, np.float64)
    begin = np.full(len(used), delay.min())
    if begin[0] < delay.max():
        begin[:] = np.inf
        np.minimum.at(begin, place, delay[row])
    slowest = np.full(len(flows), np.inf)
    np.minimum.at(slowest, row, of[place])
    most, first = np.zeros(len(flows)), delay
    if several:
        # the links of each flow by what they are busy, the busiest last
        order = np.lexsort([busy[place], row])
        last = order[np.flatnonzero(np.diff(row[order], append=-1))]
        most, first = busy[place[last]], begin[place[last]]
    return flows.nbytes / slowest, first, most, (begin, busy)


def _largest(delay: Floats, busy: Floats, bus: int) -> list[tuple[float, float, int]]:
    """Those of ``delay + n * busy`` that are largest for some n: by falling ``busy`` each with a
    longer delay than all before."""
    order = np.lexsort([-delay, -busy])
    longest = np.maximum.accumulate(delay[order])
    kept = order[np.flatnonzero(np.diff(longest, prepend=-1.0) > 0)]
    return [(d, b, bus) for d, b in zip(delay[kept].tolist(), busy[kept].tolist(), strict=True)]


HALVES = ("allreduce", "allgather", "reduce_scatter")
"""Collectives whose flows know their HCAs; others leave by that of the rank that sends."""


@dataclass(frozen=True)
class GroupPattern:
    """Groups whose members lie on hosts in the same way."""

    host_of: Ints32  # (members,) hosts, numbered as they come
    rail: Ints32  # (members,) their HCAs
    groups: NDArray[np.intp]  # their numbers


@dataclass(frozen=True)
class GroupFlows:
    """The flows of all groups at once."""

    flows: AllreduceFlows  # between ranks; their ``delay`` holds all latency
    of: Ints32  # (flows,) the number of each one's group
    # (flows,) whether each is bounded by the bus bandwidth between hosts
    between: Flags


class Groups:
    """Groups of one kind, (groups, members) ranks, which all send at once."""

    def __init__(self, ranks: Ints32, recipes: Recipes, resources: Resources) -> None:
        self.ranks = ranks
        self._recipes, self._resources = recipes, resources
        self._patterns: dict[bool, list[GroupPattern]] = {}
        self._forms: dict[tuple[object, ...], ClosedForm | None] = {}
        self._seconds: dict[tuple[object, ...], float] = {}
        self._alone: dict[tuple[int, int], ClosedForm] = {}
        self._batches: dict[tuple[object, ...], tuple[TransferBatch, Ints32] | None] = {}

    def seconds(self, node: Node) -> float:
        """Time (s) of what a node sends, all groups of its kind at once and nothing else on the
        machine; 0 if nobody sends anything."""
        key = (*as_sent(node), node.nbytes, node.count)
        if key not in self._seconds:
            self._seconds[key] = node.count * self._of_one(node, node.nbytes / node.count)
        return self._seconds[key]

    def _of_one(self, node: Node, nbytes: float) -> float:
        recipes = self._chosen(node, nbytes)
        key = (*as_sent(node), *map(id, recipes))
        if key not in self._forms:
            fabric = self._resources.afresh()
            laid = self._lay_out(node, [_without_search(recipe) for recipe in recipes], 1.0)
            self._forms[key] = None if laid is None else _closed(laid, recipes[0], fabric)
        if (closed := self._forms[key]) is None:
            return 0.0
        sending, of = closed.seconds(nbytes, *_bandwidths(recipes[0], nbytes)), recipes[0].algorithm
        # finding what is sent grows with the bytes
        return sending + (nbytes / of.selection_bandwidth if isinstance(of, Sparse) else 0.0)

    def _chosen(self, node: Node, nbytes: float) -> list[Recipe]:
        """The recipe of each pattern."""
        patterns = enumerate(self._patterns_of(node))
        return [self._fastest(node, number, pattern, nbytes) for number, pattern in patterns]

    def _fastest(self, node: Node, number: int, pattern: GroupPattern, nbytes: float) -> Recipe:
        """The recipe that takes least for a group alone."""
        recipes = self._recipes.among(node, pattern.host_of, pattern.rail, nbytes)
        if len(recipes) == 1 or len(pattern.host_of) == 1:
            return recipes[0]

        def alone(recipe: Recipe) -> float:
            key = (number, id(recipe))
            if key not in self._alone:
                flows = recipe.flows(pattern.host_of, 1.0)
                if flows is None:
                    return 0.0
                self._alone[key] = _closed(_of_pattern(recipe, pattern, flows), recipe)
            return self._alone[key].seconds(nbytes, *_bandwidths(recipe, nbytes))

        return min(recipes, key=alone)

    # --------------------------------------------------------------------------------------- flows

    def batch(self, node: Node) -> tuple[TransferBatch, Ints32] | None:
        """The transfers of what a node sends, of all groups of its kind, laid out once, and the
        number of each one's group, (transfers,); None if nobody sends anything."""
        key = (*as_sent(node), node.nbytes, node.count)
        if key not in self._batches:
            nbytes, made = node.nbytes / node.count, None
            if laid := self._lay_out(node, self._chosen(node, nbytes), nbytes):
                made = transfers_of(laid.flows, self._resources, node.count), laid.of
            self._batches[key] = made
        return self._batches[key]

    def _lay_out(self, node: Node, recipes: Sequence[Recipe], nbytes: float) -> GroupFlows | None:
        """The flows of all groups, each pattern by its recipe."""
        ranks, parts = self.ranks, []
        for recipe, pattern in zip(recipes, self._patterns_of(node), strict=True):
            flows = recipe.flows(pattern.host_of, nbytes)
            if flows is not None:
                part = _of_pattern(recipe, pattern, flows)
                parts.append(_for_each(ranks[pattern.groups], pattern.groups, part))
        return _together(parts) if parts else None

    def _patterns_of(self, node: Node) -> list[GroupPattern]:
        own_rails = node.collective not in HALVES
        if own_rails not in self._patterns:
            self._patterns[own_rails] = _patterns(self._resources, self.ranks, own_rails)
        return self._patterns[own_rails]


def _patterns(resources: Resources, ranks: Ints32, own_rails: bool) -> list[GroupPattern]:
    """The patterns of groups, (groups, members) ranks; by their HCAs too only if ``own_rails``."""
    domain = resources.domain_of[ranks]
    host_of = np.cumsum(np.diff(domain, axis=1, prepend=domain[:, :1]) != 0, axis=1)
    rail = resources.rails[ranks] if own_rails else np.zeros_like(ranks)
    known: dict[bytes, list[int]] = {}
    rows = np.ascontiguousarray(np.concatenate([host_of, rail], axis=1).astype(np.int32))
    for number, row in enumerate(rows):
        known.setdefault(row.tobytes(), []).append(number)
    size = ranks.shape[1]
    return [
        GroupPattern(rows[groups[0], :size], rows[groups[0], size:], np.array(groups))
        for groups in known.values()
    ]


def _of_pattern(recipe: Recipe, pattern: GroupPattern, flows: AllreduceFlows) -> GroupFlows:
    """The flows among the members of one group, numbered from 0."""
    step = np.broadcast_to(np.asarray(flows.step, np.int32), len(flows))
    laid = replace(flows, latency=0.0, delay=flows.delays, step=step)
    of = np.zeros(len(flows), np.int32)
    return GroupFlows(laid, of, buses(recipe, pattern.host_of, flows))


def _for_each(ranks: Ints32, numbers: NDArray[np.intp], part: GroupFlows) -> GroupFlows:
    """The same flows for each group of ``ranks``, (groups, members), with these ``numbers``."""
    flows, count = part.flows, len(ranks)
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
    of = np.repeat(numbers, len(flows)).astype(np.int32)
    return GroupFlows(laid, of, np.tile(part.between, count))


def _together(parts: Sequence[GroupFlows]) -> GroupFlows:
    """The flows of all parts."""
    if len(parts) == 1:
        return parts[0]
    each = [part.flows for part in parts]
    size = [len(flows) for flows in each]
    first = (np.cumsum(size) - size).astype(np.int32)
    whole: dict[str, Any] = {
        name: np.concatenate([getattr(flows, name) for flows in each])
        for name in ("src", "dst", "nbytes", "rail", "cap", "delay", "step")
    }
    for name in ("edge_from", "edge_to"):  # numbers of flows, behind those of the parts before
        ends = [getattr(flows, name) + at for flows, at in zip(each, first, strict=True)]
        whole[name] = np.concatenate(ends)
    of, between = (np.concatenate([getattr(part, k) for part in parts]) for k in ("of", "between"))
    return GroupFlows(AllreduceFlows(**whole, latency=0.0), of, between)


def _closed(laid: GroupFlows, recipe: Recipe, fabric: Resources | None = None) -> ClosedForm:
    """The closed form of flows that are laid out for one byte; without ``fabric`` as if nothing but
    bus bandwidths bounded them."""
    flows = laid.flows
    inside, between = _bandwidths(recipe, 1.0)
    bus = flows.nbytes / flows.cap * np.where(laid.between, between, inside)
    if fabric is None:
        return ClosedForm(flows, laid.between, bus)
    routes = fabric.gradient(flows.src, flows.dst, flows.rail)
    return ClosedForm(flows, laid.between, bus, routes, fabric.links.capacity)


def _bandwidths(recipe: Recipe, nbytes: float) -> tuple[float, float]:
    """Bus bandwidths inside hosts and between them (bytes/s)."""
    of = recipe.algorithm
    return of.intra_host_bus_bandwidth(nbytes), of.inter_host_bus_bandwidth(nbytes)


def _without_search(recipe: Recipe) -> Recipe:
    if not (isinstance(recipe, Choice) and isinstance(recipe.algorithm, Sparse)):
        return recipe
    found_at_once = recipe.algorithm.model_copy(update={"selection_bandwidth": np.inf})
    return replace(recipe, algorithm=found_at_once)
