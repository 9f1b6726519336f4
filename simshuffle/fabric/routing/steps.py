"""Distances in steps from every switch to goal switches: over selected arcs, or from
group to group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.topology.cabling import FAR, SwitchGraph, connected_components
from simshuffle.spec.arrays import Flags, Ints, Ints32, Ints64

GROUP_HOP = 256
"""Steps that a hop between groups counts: more than any route within a group."""
_STEPS_AT_ONCE = 4 << 20  # pairs of an arc and a goal: some 8 MB


def direct_steps(switches: SwitchGraph, goals: Ints32, cost: Ints) -> NDArray[np.int16]:
    """(switches, goals) int16 steps with at most one hop between groups, which counts
    `GROUP_HOP` more; `FAR` if one hop is not enough.

    A route within the group is preferred, however long. No route leads through the
    switch of a storage system.

    Args:
        switches: the switches of the network and their arcs.
        goals: (goals,) the switches to reach.
        cost: (arcs,) 1, and `GROUP_HOP` more for an arc between groups.
    """
    local_arcs = np.flatnonzero(cost == 1)
    global_arcs = np.flatnonzero(cost > 1)
    steps = np.full((len(switches.nodes), len(goals)), FAR, np.int16)
    steps[goals, np.arange(len(goals))] = 0
    relax(steps, switches, goals, local_arcs, 1)
    steps_after_hop = np.full_like(steps, FAR)
    relax(steps_after_hop, switches, goals, global_arcs, GROUP_HOP + 1, end_steps=steps)
    _spread_in_groups(steps_after_hop, switches, local_arcs)
    # routes begin at the switch of a storage system, and lead through none
    transit_arcs = local_arcs[~switches.is_transit[switches.arc_src[local_arcs]]]
    relax(steps_after_hop, switches, goals, transit_arcs, 1, end_steps=steps_after_hop)
    np.copyto(steps_after_hop, steps, where=steps < FAR)
    return steps_after_hop


def _spread_in_groups(
    steps: NDArray[np.int16], switches: SwitchGraph, local_arcs: Ints64
) -> None:
    """Shorten ``steps`` (switches, goals), in place, along paths of any length inside
    groups.

    Each gateway of a group leads to few goals: so the goals of each gateway are spread
    at once.
    """
    ends = np.stack(
        [switches.arc_src[local_arcs], switches.arc_dst[local_arcs]], axis=1
    )
    ends = ends[switches.is_transit[ends].all(axis=1)]
    if not len(ends):
        return
    component = connected_components(len(switches.nodes), ends)
    ends = ends[np.argsort(component[ends[:, 0]], kind="stable")]
    component_labels, first_end = np.unique(component[ends[:, 0]], return_index=True)
    index_in_group = np.zeros(len(component), np.int64)
    ends_by_group = np.split(ends, first_end[1:])
    for group, group_links in zip(
        component_labels.tolist(), ends_by_group, strict=True
    ):
        members = np.flatnonzero(component == group)
        index_in_group[members] = np.arange(len(members))
        is_linked = np.zeros((len(members), len(members)), bool)
        is_linked[
            index_in_group[group_links[:, 0]], index_in_group[group_links[:, 1]]
        ] = True
        # shortest[a, g] = min over gateways w with known steps of distance[a, w] + steps[w, g]
        distance = line_steps(is_linked).astype(np.int16)
        group_steps = steps[members]
        shortest = group_steps.copy()
        for gateway, is_known in enumerate(group_steps < FAR):
            known_goals = np.flatnonzero(is_known)
            if len(known_goals):
                steps_by_gateway = (
                    distance[:, gateway, None] + group_steps[gateway, known_goals]
                )
                shortest[:, known_goals] = np.minimum(
                    shortest[:, known_goals], steps_by_gateway
                )
        steps[members] = shortest


def line_steps(is_linked: Flags) -> Ints32:
    """(size, size) fewest steps from each switch to each other, 0 to itself; -1 where
    no path leads.

    Args:
        is_linked: (size, size) True between linked switches.
    """
    steps = np.where(np.eye(len(is_linked), dtype=bool), 0, -1).astype(np.int32)
    reached = np.eye(len(is_linked), dtype=bool)
    for distance in range(1, len(is_linked)):
        is_new = (is_linked.astype(np.float32) @ reached > 0) & ~reached
        if not is_new.any():
            break
        steps[is_new] = distance
        reached |= is_new
    return steps


def relax(
    steps: Ints,
    switches: SwitchGraph,
    goals: Ints32,
    arcs: Ints,
    cost: int,
    *,
    open_to: Flags | None = None,
    end_steps: Ints | None = None,
) -> None:
    """Shorten ``steps`` (switches, goals) along ``arcs`` until none gets shorter.

    Args:
        steps: changed in place; `FAR` where no route is known yet.
        switches: the switches of the network and their arcs. No route leads through the
            switch of a storage system.
        goals: (goals,) the switches that steps lead to.
        arcs: indices of the arcs to go along, ascending.
        cost: steps that each of these arcs counts.
        open_to: (switches, goals) True where these arcs may be taken; None for
            everywhere.
        end_steps: (switches, goals) the steps that remain where an arc ends, if these
            are not ``steps``; then each arc is taken once.
    """
    if not len(arcs):
        return
    arc_src = switches.arc_src[arcs]
    arc_dst = switches.arc_dst[arcs]
    steps_at_end = steps if end_steps is None else end_steps
    width = max(1, _STEPS_AT_ONCE // len(arcs))
    for begin in range(0, len(goals), width):
        goal_slice = slice(begin, begin + width)
        is_changed: Flags = np.any(steps_at_end[:, goal_slice] < FAR, axis=1)
        while True:
            # an arc may shorten steps only if the steps from its end got shorter
            is_useful = is_changed[arc_dst]
            useful_ends = arc_src[is_useful], arc_dst[is_useful]
            shortened_switches = _relax_once(
                steps,
                switches,
                goals,
                useful_ends,
                cost,
                goal_slice=goal_slice,
                open_to=open_to,
                steps_at_end=steps_at_end,
            )
            if end_steps is not None or not len(shortened_switches):
                break
            is_changed = np.zeros(len(steps), bool)
            is_changed[shortened_switches] = True


def _relax_once(
    steps: Ints,
    switches: SwitchGraph,
    goals: Ints32,
    ends: tuple[Ints32, Ints32],
    cost: int,
    *,
    goal_slice: slice,
    open_to: Flags | None,
    steps_at_end: Ints,
) -> Ints:
    """Shorten ``steps`` of the goals ``goal_slice`` along arcs, once and in place.

    ``ends`` holds the source and the destination of each arc, ascending by source. The
    other arguments are those of `relax`.

    Returns:
        The switches from which the steps to some goal got shorter.
    """
    src, dst = ends
    if not len(src):
        return src
    is_transit = switches.is_transit[dst]
    # (arcs, goals) steps by way of each arc; the arcs of one switch are a run of rows
    first_arc = np.flatnonzero(np.diff(src, prepend=-1))
    src_switches = src[first_arc]
    steps_through: Ints = np.minimum(steps_at_end[dst, goal_slice], FAR - cost)
    steps_through += steps.dtype.type(cost)
    # no route leads through the switch of a storage system
    final_arcs = np.flatnonzero(~is_transit)
    steps_through[final_arcs] = np.where(
        dst[final_arcs, None] == goals[goal_slice], steps_through[final_arcs], FAR
    )
    shortest = np.minimum.reduceat(steps_through, first_arc)
    if open_to is not None:
        shortest[~open_to[src_switches, goal_slice]] = FAR
    previous = steps[src_switches, goal_slice]
    steps[src_switches, goal_slice] = np.minimum(previous, shortest)
    return src_switches[(shortest < previous).any(axis=1)]
