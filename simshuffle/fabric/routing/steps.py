"""How many steps it is from every switch to goals: over given ways, or from group to group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.topology.cabling import FAR, SwitchGraph, connected_components
from simshuffle.spec.arrays import Flags, Ints, Ints32, Ints64

GROUP_HOP = 256
"""What a hop between groups counts, in steps: more than any way within a group."""


def direct_steps(switches: SwitchGraph, goals: Ints32, cost: Ints) -> NDArray[np.int16]:
    """(switches, goals) steps with at most one hop between groups, which counts `GROUP_HOP` more;
    FAR if one is not enough.

    Args:
        switches: of the network.
        goals: (goals,) some of them.
        cost: (ways,) 1, and `GROUP_HOP` more for a way between groups.
    """
    inside, across = np.flatnonzero(cost == 1), np.flatnonzero(cost > 1)
    steps = np.full((len(switches.nodes), len(goals)), FAR, np.int16)
    steps[goals, np.arange(len(goals))] = 0
    relax(steps, switches, goals, inside, 1)
    begun = np.full_like(steps, FAR)
    relax(begun, switches, goals, across, GROUP_HOP + 1, of_steps=steps)
    _spread(begun, switches, inside)
    # routes begin at the switch of a storage system, and lead through none
    out = inside[~switches.is_transit[switches.arc_src[inside]]]
    relax(begun, switches, goals, out, 1, of_steps=begun)
    np.copyto(begun, steps, where=steps < FAR)
    return begun


def _spread(steps: NDArray[np.int16], switches: SwitchGraph, inside: Ints64) -> None:
    """Shorten ``steps``, (switches, goals), along the ways ``inside`` groups, over as many of them
    as it takes. Each gateway of a group leads to few goals: so those of each are spread at once."""
    ends = np.stack([switches.arc_src[inside], switches.arc_dst[inside]], axis=1)
    ends = ends[switches.is_transit[ends].all(axis=1)]
    if not len(ends):
        return
    part = connected_components(len(switches.nodes), ends)
    ends = ends[np.argsort(part[ends[:, 0]], kind="stable")]
    which, first = np.unique(part[ends[:, 0]], return_index=True)
    number = np.zeros(len(part), np.int64)
    for group, links in zip(which.tolist(), np.split(ends, first[1:]), strict=True):
        members = np.flatnonzero(part == group)
        number[members] = np.arange(len(members))
        line = np.zeros((len(members), len(members)), bool)
        line[number[links[:, 0]], number[links[:, 1]]] = True
        apart = line_steps(line).astype(np.int16)
        own = steps[members]
        least = own.copy()
        for place, known in enumerate(own < FAR):
            to = np.flatnonzero(known)
            if len(to):
                least[:, to] = np.minimum(least[:, to], apart[:, place, None] + own[place, to])
        steps[members] = least


def line_steps(line: Flags) -> Ints32:
    """(size, size) steps from each of some switches to each, over links, (size, size), between
    them; -1 where there is no way."""
    steps = np.where(np.eye(len(line), dtype=bool), 0, -1).astype(np.int32)
    reached = np.eye(len(line), dtype=bool)
    for number in range(1, len(line)):
        new = (line.astype(np.float32) @ reached > 0) & ~reached
        if not new.any():
            break
        steps[new] = number
        reached |= new
    return steps


def relax(
    steps: Ints,
    switches: SwitchGraph,
    goals: Ints32,
    ways: Ints,
    cost: int,
    *,
    open_to: Flags | None = None,
    of_steps: Ints | None = None,
) -> None:
    """Shorten ``steps``, (switches, goals), along ``ways`` until none gets shorter.

    Args:
        steps: changed in place; FAR where there is no way yet.
        switches: of the network.
        goals: (goals,) those that steps lead to.
        ways: numbers of pairs of linked switches, ascending.
        cost: of each of them.
        open_to: (switches, goals) where these ways may be taken; None for everywhere.
        of_steps: what is left to go where a way ends, if it is not ``steps``; then each way is
            taken once.
    """
    if not len(ways):
        return
    here, there = switches.arc_src[ways], switches.arc_dst[ways]
    after = steps if of_steps is None else of_steps
    width = max(1, (4 << 20) // len(ways))
    for begin in range(0, len(goals), width):
        part = slice(begin, begin + width)
        changed: Flags = np.any(after[:, part] < FAR, axis=1)
        while True:
            # a way may shorten others only if what it leads to got shorter
            taken = changed[there]
            ends = here[taken], there[taken]
            rows = _relaxed(steps, switches, goals, ends, cost, part, open_to=open_to, after=after)
            if of_steps is not None or not len(rows):
                break
            changed = np.zeros(len(steps), bool)
            changed[rows] = True


def _relaxed(
    steps: Ints,
    switches: SwitchGraph,
    goals: Ints32,
    ends: tuple[Ints32, Ints32],
    cost: int,
    part: slice,
    *,
    open_to: Flags | None,
    after: Ints,
) -> Ints:
    """Shorten ``steps`` of the goals ``part`` along ways, once; returns the switches from which
    something got shorter. See `relax`."""
    here, there = ends
    if not len(here):
        return here
    transit = switches.is_transit[there]
    first = np.flatnonzero(np.diff(here, prepend=-1))
    rows = here[first]
    through: Ints = np.minimum(after[there, part], FAR - cost)
    through += steps.dtype.type(cost)
    # no way leads through the switch of a storage system
    last = np.flatnonzero(~transit)
    through[last] = np.where(there[last, None] == goals[part], through[last], FAR)
    least = np.minimum.reduceat(through, first)
    if open_to is not None:
        least[~open_to[rows, part]] = FAR
    found = steps[rows, part]
    steps[rows, part] = np.minimum(found, least)
    return rows[(least < found).any(axis=1)]
