"""The next end of a flow: minima over the ends of all links, kept up to date."""

from __future__ import annotations

import numpy as np

from simshuffle.network.compiling import compiled, reducing
from simshuffle.network.fluid.records import FAN, PER_GROUP, Floats, State


@reducing
def smallest(values: Floats, first: int, last: int) -> float:
    """The smallest of ``values`` from ``first`` to before ``last``, inf if there are none."""
    out = np.inf
    # an unsigned index cannot mean one counted from the end
    for i in range(np.uint64(first), np.uint64(last)):
        out = min(out, values[i])
    return out


@compiled
def set_end(ends: Floats, link: int, when: float) -> None:
    """Note the next end of a link, and keep the minima above it."""
    before = ends[link]
    if when == before:
        return
    groups = ends.shape[0] // PER_GROUP
    block = link // FAN
    blocks = groups * FAN * FAN
    supers = blocks + groups * FAN
    ends[link] = when
    if when < ends[blocks + block]:
        ends[blocks + block] = when
        ends[supers + block // FAN] = min(ends[supers + block // FAN], when)
    elif before == ends[blocks + block]:
        ends[blocks + block] = smallest(ends, block * FAN, (block + 1) * FAN)
        group = block // FAN
        ends[supers + group] = smallest(ends, blocks + group * FAN, blocks + (group + 1) * FAN)


@compiled
def next_end(ends: Floats) -> float:
    """Time of the next end of a flow (s), inf if there is none."""
    groups = ends.shape[0] // PER_GROUP
    return smallest(ends, groups * (PER_GROUP - 1), groups * PER_GROUP)


@compiled
def next_link(ends: Floats) -> int:
    """The link of the next end; the lowest number of several."""
    groups = ends.shape[0] // PER_GROUP
    when = next_end(ends)
    at = groups * (PER_GROUP - 1)
    while ends[at] != when:
        at += 1
    at = groups * FAN * FAN + (at - groups * (PER_GROUP - 1)) * FAN
    while ends[at] != when:
        at += 1
    at = (at - groups * FAN * FAN) * FAN
    while ends[at] != when:
        at += 1
    return int(at)


@compiled
def refresh_minima(ends: Floats, n_links: int) -> None:
    """Make the minima over the ends of the links anew."""
    groups = ends.shape[0] // PER_GROUP
    to = groups * FAN * FAN
    used = -(-n_links // FAN)
    for block in range(used):
        ends[to + block] = smallest(ends, block * FAN, (block + 1) * FAN)
    for group in range(-(-used // FAN)):
        ends[to + groups * FAN + group] = smallest(ends, to + group * FAN, to + (group + 1) * FAN)


@compiled
def upcoming_end(s: State, ident: int) -> float:
    """When the next flow of a link ends (s); its service must be up to date."""
    link = s.links[ident]
    if link.n == 0 or link.level <= 0.0:
        return np.inf
    return float(link.t_last + max(s.entries[link.offset].key - link.served, 0.0) / link.level)
