"""Compiled max-min fair sharing of links, kept up to date from event to event.

A rate vector is max-min fair exactly if it is feasible and every flow has a bottleneck: a saturated
link on which no other flow is faster (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2).
So all flows that have their bottleneck on one link have one rate, the *level* of that link, and the
state of the network is one level for each saturated link and one bottleneck for each flow. For
every link ``ext`` is what the flows with a bottleneck elsewhere take of it, so that ``level =
(capacity - ext) / flows of its own``.

Three things follow, and the code is made of them:

*Virtual time.* The flows of a link drain at one level, so they end in the order of ``served + bytes
left``, where ``served`` integrates the level. A new level moves the next end of the link, but no
flow: a link holds its flows in a heap by that key, and only the links have a place in time.
(Processor sharing in virtual time, as in fair queueing: Demers, Keshav & Shenker, SIGCOMM 1989.)

*Influence runs upwards.* A level depends on lower levels only (the bottleneck structure of
Ros-Giralt et al., SIGMETRICS 2020). After an arrival or a departure the links are visited from the
lowest changed one upwards; a link whose level changes passes the difference on to the links that
its flows cross. A flow changes its bottleneck when a visit finds a lower level on its route.

*Two ways to visit.* While few links change, those that do are kept in a heap by level (`_repair`).
When an event moves most levels, as in a dense all-to-all, the links are visited in the order of
their levels before the event, which is nearly right; one that comes out below its predecessor is
moved forward (`_sweep`). An order that does not decrease proves the bottleneck condition. When much
of the network starts at one instant, all is filled anew (`fill`: progressive filling).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from simshuffle.network.compiling import compiled, int64, reducing

Records = Any  # a record array; its fields are those of the dtypes below
State = namedtuple("State", "width nodes links hops clock load ends entries others room")
State.__doc__ = """All arrays of the shared links.

width: hops kept for each flow. nodes, links, hops, clock: records of kernel.py and this file.
load: (3, links) units/s, the rows `EXT`, `CAPACITY` and `TOP`. ends: (padded links,) s, the next
end of each, then the smallest of each 64 of them, then of each 64 of those. entries: records of
`ENTRY`, the heaps of the links, and beside each heap the list of its flows that share other links;
others: those ``width`` - 1 links for each place of that list. room: records of `ROOM`, lists of
links and of flows.
"""
# Rows of `load`: what flows with a bottleneck elsewhere take of a link; its capacity; the largest
# load seen.
EXT, CAPACITY, TOP = 0, 1, 2

# Two levels closer than this (relative) count as equal. It bounds the relative error of a rate.
LEVEL_TOLERANCE = 1e-12
# A difference below this (relative) is not passed on.
SMALLEST_STEP = 1e-12
# Minima over the ends of links are kept for each 64, and for each 64 of those: so many places for
# each such group.
FAN = 64
PER_GROUP = FAN * FAN + FAN + 1
# A repair that visits more links than a sweep costs becomes one: a visit costs about as much as
# sweeping over so many saturated links, and over so many links whose load alone has to be looked
# at.
MOST_VISITS = 24
PER_SATURATED = 8
PER_LINK = 128
# So many sweeps in a row must have changed little before a repair is tried again, since a repair
# that gives up costs most.
PATIENCE = 32
# Typed zero: numba compiles a function once more for each literal that it is called with.
FIRST: Any = int64(0)
# The sums in `ext` are made anew after so many repairs, lest rounding adds up.
REFRESH = 1 << 14

LINK = np.dtype(
    [
        ("level", "f8"),  # units/s of each flow that has its bottleneck here
        ("served", "f8"),  # units drained by a flow of its own since `served` was 0
        ("t_last", "f8"),  # s, up to when `served` is complete
        # units drained by the transfers that ended, and what `book` added for those under way
        ("work", "f8"),
        ("nbytes", "f8"),  # bytes of the transfers that ended
        ("busy", "f8"),  # s with any flow, up to `t_busy`
        ("t_busy", "f8"),
        ("peak", "f8"),  # highest load / capacity
        # units/s, at most the lowest rate limit of its own flows; inf if none has one
        ("floor", "f8"),
        ("offset", "i8"),  # first entry of its heap
        ("n", "i4"),  # flows that have their bottleneck here
        ("n_rows", "i4"),  # those of them that share other links
        ("room", "i4"),  # entries reserved
        ("n_alive", "i4"),  # transfers posted and not ended whose route has it
        ("n_active", "i4"),
        ("n_alone", "i4"),  # active flows that share no other link
        # first hop in the list of its active flows that share other links, -1 if none
        ("head", "i4"),
        ("alone", "i4"),  # the same for those that share no other
        ("queued", "i4"),
        ("rank", "i4"),  # place in order, -1 if not ordered
        ("fixed", "i4"),  # 1: stands for a rate limit of flows; its level never changes
        ("n_open", "i4"),
        ("stamp", "i4"),
    ],
    align=True,
)
ENTRY = np.dtype(
    [
        ("key", "f8"),  # what `served` of the link will be when the flow ends
        ("flow", "i4"),
        ("member", "i4"),  # not of the heap: the flow whose other links are here in `others`
    ],
    align=True,
)
ROOM = np.dtype(
    [
        ("key", "f8"),  # heap of links to visit: their levels, and which they are
        ("ident", "i4"),
        ("dirty", "i4"),  # links that have changed since rates were fair
        ("order", "i4"),  # saturated links by level
        ("flow", "i4"),
    ],
    align=True,
)
HOP = np.dtype([("link", "i4"), ("next", "i4"), ("prev", "i4")], align=True)


@reducing
def _smallest(values: Any, first: int, last: int) -> float:
    out = np.inf
    # an unsigned index cannot mean one counted from the end
    for i in range(np.uint64(first), np.uint64(last)):
        out = min(out, values[i])
    return out


@compiled
def _set_end(s: Any, link: int, when: float) -> None:
    """Note the next end of a link, and keep the minima above it."""
    groups = s.ends.shape[0] // PER_GROUP
    block = link // FAN
    blocks = groups * FAN * FAN
    supers = blocks + groups * FAN
    before = s.ends[link]
    s.ends[link] = when
    if when < s.ends[blocks + block]:
        s.ends[blocks + block] = when
        s.ends[supers + block // FAN] = min(s.ends[supers + block // FAN], when)
    elif before == s.ends[blocks + block]:
        s.ends[blocks + block] = _smallest(s.ends, block * FAN, (block + 1) * FAN)
        group = block // FAN
        s.ends[supers + group] = _smallest(s.ends, blocks + group * FAN, blocks + (group + 1) * FAN)


@compiled
def next_end(s: Any) -> float:
    """Time of the next end of a flow (s), inf if there is none."""
    groups = s.ends.shape[0] // PER_GROUP
    return _smallest(s.ends, groups * (PER_GROUP - 1), groups * PER_GROUP)


@compiled
def next_link(s: Any) -> int:
    """The link of the next end; the lowest number of several."""
    groups = s.ends.shape[0] // PER_GROUP
    when = next_end(s)
    at = groups * (PER_GROUP - 1)
    while s.ends[at] != when:
        at += 1
    at = groups * FAN * FAN + (at - groups * (PER_GROUP - 1)) * FAN
    while s.ends[at] != when:
        at += 1
    at = (at - groups * FAN * FAN) * FAN
    while s.ends[at] != when:
        at += 1
    return int(at)


@compiled
def all_minima(s: Any) -> None:
    """Make the minima over the ends of the links anew."""
    groups = s.ends.shape[0] // PER_GROUP
    to = groups * FAN * FAN
    used = -(-s.links.shape[0] // FAN)
    for block in range(used):
        s.ends[to + block] = _smallest(s.ends, block * FAN, (block + 1) * FAN)
    for group in range(-(-used // FAN)):
        s.ends[to + groups * FAN + group] = _smallest(
            s.ends, to + group * FAN, to + (group + 1) * FAN
        )


# ----------------------------------------------------------------------------------- heap of a link


@compiled
def _write(s: Any, at: int, key: float, flow: int) -> None:
    """Write an entry of a heap."""
    s.entries[at].key = key
    s.entries[at].flow = flow
    s.nodes[flow].place = at


@compiled
def _rise(s: Any, base: int, k: int, key: float) -> int:
    """Where an entry with ``key`` belongs at or above ``k``, having made room for it."""
    while k > 0:
        parent = (k - 1) >> 1
        if s.entries[base + parent].key <= key:
            break
        _write(s, base + k, s.entries[base + parent].key, int64(s.entries[base + parent].flow))
        k = parent
    return k


@compiled
def _sink(s: Any, base: int, n: int, k: int, key: float) -> int:
    """Where an entry with ``key`` belongs at or below ``k``, having made room for it."""
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n and s.entries[base + child + 1].key < s.entries[base + child].key:
            child += 1
        if s.entries[base + child].key >= key:
            break
        _write(s, base + k, s.entries[base + child].key, int64(s.entries[base + child].flow))
        k = child
    return k


@compiled
def _enlist(s: Any, ident: int, flow: int) -> None:
    """Note what matters of ``flow`` when the level of its bottleneck changes: which links it shares
    besides, and its rate limit.

    Thousands of flows that share one link alone, like requests to one server, so cost no more than
    two at a change of its level.
    """
    link = s.links[ident]
    nowhere = s.clock[0].nowhere
    first, last = flow * s.width, flow * s.width + s.nodes[flow].n_hops
    if s.hops[last - 1].link > nowhere:
        link.floor = min(link.floor, s.links[s.hops[last - 1].link].level)
    s.nodes[flow].row = -1
    if s.nodes[flow].alone or link.fixed:
        return
    row = link.offset + link.n_rows
    link.n_rows += 1
    s.entries[row].member = flow
    s.nodes[flow].row = row
    j = row * (s.width - 1)
    for k in range(first, last):
        if s.hops[k].link != ident and s.hops[k].link < nowhere:
            s.others[j] = s.hops[k].link
            j += 1
    while j < (row + 1) * (s.width - 1):
        s.others[j] = nowhere
        j += 1


@compiled
def _strike(s: Any, ident: int, row: int) -> None:
    """Undo `_enlist`: the last of the list takes the place."""
    link = s.links[ident]
    link.n_rows -= 1
    last = link.offset + link.n_rows
    if row != last:
        s.entries[row].member = s.entries[last].member
        s.nodes[s.entries[row].member].row = row
        n = s.width - 1
        for j in range(n):
            s.others[row * n + j] = s.others[last * n + j]


@compiled
def _insert(s: Any, ident: int, flow: int, left: float) -> None:
    """Give ``flow``, with ``left`` units to drain, its bottleneck on a link."""
    link = s.links[ident]
    now = s.clock[0].now
    if link.n == 0:
        link.served = 0.0
        link.floor = np.inf
        s.clock[0].n_saturated += 1
    else:
        link.served += link.level * (now - link.t_last)
    link.t_last = now
    k = int64(link.n)
    link.n = k + 1
    key = link.served + left
    _write(s, link.offset + _rise(s, link.offset, k, key), key, flow)
    _enlist(s, ident, flow)
    s.nodes[flow].bottleneck = ident


@compiled
def _take(s: Any, flow: int) -> float:
    """Take ``flow`` from its bottleneck; returns what it has left to drain."""
    node = s.nodes[flow]
    ident = int64(node.bottleneck)
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    at = int64(node.place)
    left = s.entries[at].key - link.served
    base = int64(link.offset)
    n = link.n - 1
    link.n = n
    if n == 0:
        s.clock[0].n_saturated -= 1
    if node.row >= 0:
        _strike(s, ident, int64(node.row))
    last = base + n
    if at != last:
        key = s.entries[last].key
        mover = int64(s.entries[last].flow)
        k = _rise(s, base, at - base, key)
        if k == at - base:
            k = _sink(s, base, n, k, key)
        _write(s, base + k, key, mover)
    return float(max(left, 0.0))


@compiled
def _touch(s: Any, ident: int) -> None:
    if s.links[ident].queued == 0:
        s.links[ident].queued = 1
        s.room[s.clock[0].n_dirty].dirty = ident
        s.clock[0].n_dirty += 1


@compiled
def _link_in(s: Any, flow: int) -> None:
    """Enter ``flow`` into the lists of its links."""
    width = s.width
    now = s.clock[0].now
    alone = s.nodes[flow].alone
    for at in range(flow * width, flow * width + s.nodes[flow].n_hops):
        link = s.links[s.hops[at].link]
        head = link.alone if alone else link.head
        s.hops[at].prev = -1
        s.hops[at].next = head
        if head >= 0:
            s.hops[head].prev = at
        if alone:
            link.alone = at
            link.n_alone += 1
        else:
            link.head = at
        if link.n_active == 0:
            link.t_busy = now
        link.n_active += 1
    s.clock[0].n_active += 1


@compiled
def start(s: Any, flow: int) -> None:
    """Let ``flow`` drain, with a first guess of its bottleneck: the lowest level on its route, else
    the link with the least to spare."""
    width = s.width
    _link_in(s, flow)
    best, best_level, best_rank = int64(-1), np.inf, s.clock[0].n_order
    spare, least = int64(-1), np.inf
    first, last = flow * width, flow * width + s.nodes[flow].n_hops
    for at in range(first, last):
        ident = int64(s.hops[at].link)
        link = s.links[ident]
        if link.n == 0 and not link.fixed:
            if s.load[CAPACITY, ident] - s.load[EXT, ident] < least:
                spare, least = ident, s.load[CAPACITY, ident] - s.load[EXT, ident]
        elif s.clock[0].in_order and link.rank >= 0:  # equal levels are told apart by their order
            if link.rank < best_rank:
                best, best_level, best_rank = ident, -np.inf, link.rank
        elif link.level < best_level:
            best, best_level = ident, link.level
    if best < 0:
        best = spare
        s.links[best].level = max(least, 0.0)
    level = s.links[best].level
    for at in range(first, last):
        ident = int64(s.hops[at].link)
        if ident != best:
            s.load[EXT, ident] += level
        _touch(s, ident)
    _insert(s, best, flow, s.nodes[flow].work)


@compiled
def stop(s: Any, flow: int) -> None:
    """Take ``flow``, which has ended, from its links."""
    width = s.width
    node = s.nodes[flow]
    bottleneck = int64(node.bottleneck)
    level = s.links[bottleneck].level
    now = s.clock[0].now
    _take(s, flow)
    for at in range(flow * width, flow * width + node.n_hops):
        ident = int64(s.hops[at].link)
        link = s.links[ident]
        if s.hops[at].prev >= 0:
            s.hops[s.hops[at].prev].next = s.hops[at].next
        elif node.alone:
            link.alone = s.hops[at].next
        else:
            link.head = s.hops[at].next
        if s.hops[at].next >= 0:
            s.hops[s.hops[at].next].prev = s.hops[at].prev
        link.n_active -= 1
        link.n_alone -= node.alone
        link.n_alive -= 1
        link.nbytes += node.nbytes
        link.work += node.work - node.booked
        if ident != bottleneck:
            s.load[EXT, ident] -= level
        if link.n_active == 0:
            s.load[EXT, ident] = 0.0
            link.busy += now - link.t_busy
        _touch(s, ident)
    s.clock[0].n_active -= 1


# ----------------------------------------------------------------------------------------- one link


@compiled
def _schedule(s: Any, ident: int) -> float:
    """When the next flow of a link ends (s); its service must be up to date."""
    link = s.links[ident]
    if link.n == 0 or link.level <= 0.0:
        return np.inf
    return float(link.t_last + max(s.entries[link.offset].key - link.served, 0.0) / link.level)


@compiled
def _move(s: Any, flow: int, to: int) -> None:
    """Give ``flow`` another bottleneck; its rate becomes the present level of that one."""
    width = s.width
    origin = int64(s.nodes[flow].bottleneck)
    old, new = s.links[origin].level, s.links[to].level
    left = _take(s, flow)
    for at in range(flow * width, flow * width + s.nodes[flow].n_hops):
        ident = int64(s.hops[at].link)
        if ident == origin:
            s.load[EXT, ident] += new
        elif ident == to:
            s.load[EXT, ident] -= old
        else:
            s.load[EXT, ident] += new - old
    _insert(s, to, flow, left)


@compiled
def _faster(s: Any, ident: int, level: float, at: int, n: int) -> int:
    """List the flows of a list of hops that are faster than ``level`` elsewhere, after ``n``
    others; returns how many there are."""
    while at >= 0:
        flow = at // s.width
        other = int64(s.nodes[flow].bottleneck)
        if other != ident and s.links[other].level > level * (1.0 + LEVEL_TOLERANCE):
            s.room[n].flow = flow
            n += 1
        at = int64(s.hops[at].next)
    return n


@compiled
def _pull(s: Any, ident: int) -> float:
    """Move flows to this link that are faster elsewhere than its level allows, the fastest first;
    returns its level (units/s)."""
    width = s.width
    link = s.links[ident]
    level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n if link.n > 0 else -1.0
    if link.n == 0:
        link.level = 0.0
    n = FIRST
    if link.n_rows < link.n_active - link.n_alone:
        n = _faster(s, ident, level, int64(link.head), n)
    if link.n - link.n_rows < link.n_alone:
        n = _faster(s, ident, level, int64(link.alone), n)
    top = np.inf
    while n > 0:
        best, highest = FIRST, -1.0
        for i in range(n):
            other = s.links[s.nodes[s.room[i].flow].bottleneck].level
            if other > highest:
                best, highest = i, other
                if other == top:  # many tie, and none is faster than the last
                    break
        top = highest
        if top <= level * (1.0 + LEVEL_TOLERANCE):
            break
        flow = int64(s.room[best].flow)
        n -= 1
        s.room[best].flow = s.room[n].flow
        for k in range(flow * width, flow * width + s.nodes[flow].n_hops):
            _touch(s, int64(s.hops[k].link))
        _move(s, flow, ident)
        level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n
    return float(level)


@compiled
def _send(s: Any, ident: int, flow: int, to: int) -> float:
    """Move a flow of this link to another; returns the level of this one without it (units/s)."""
    for hop in range(flow * s.width, flow * s.width + s.nodes[flow].n_hops):
        _touch(s, int64(s.hops[hop].link))
    _move(s, flow, to)
    link = s.links[ident]
    return float((s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n) if link.n > 0 else np.inf


@compiled
def _push(s: Any, ident: int, level: float) -> float:
    """Move the flows of this link that meet a lower level elsewhere on their route; returns its
    level without them (units/s)."""
    link = s.links[ident]
    width = s.width
    row = int64(link.offset)
    quiet = 0  # rows in a row that stay
    while quiet < link.n_rows:
        if row >= link.offset + link.n_rows:
            row = int64(link.offset)
        best, lowest = int64(-1), level * (1.0 - LEVEL_TOLERANCE)
        for j in range(row * (width - 1), (row + 1) * (width - 1)):
            other = s.links[s.others[j]]
            if other.n > 0 and other.queued == 0 and other.level < lowest:
                best, lowest = int64(s.others[j]), other.level
        quiet += 1
        if best < 0:
            row += 1
        else:  # the last row has taken its place, and a higher level may send more away
            level = _send(s, ident, int64(s.entries[row].member), best)
            quiet = 0
    return level


@compiled
def _release(s: Any, ident: int, level: float) -> float:
    """Move the flows of this link that have a rate limit below its level to the link of that limit;
    returns its level without them."""
    link = s.links[ident]
    while level * (1.0 - LEVEL_TOLERANCE) > link.floor:
        n, floor = 0, np.inf
        for at in range(link.offset, link.offset + link.n):
            flow = int64(s.entries[at].flow)
            last = s.hops[flow * s.width + s.nodes[flow].n_hops - 1].link
            if s.links[last].fixed:
                if s.links[last].level < level * (1.0 - LEVEL_TOLERANCE):
                    s.room[n].flow = flow
                    n += 1
                else:
                    floor = min(floor, s.links[last].level)
        link.floor = floor
        for i in range(n):
            flow = int64(s.room[i].flow)
            level = _send(
                s, ident, flow, int64(s.hops[flow * s.width + s.nodes[flow].n_hops - 1].link)
            )
    return level


# --------------------------------------------------------------------------------- few links change


@compiled
def _down(room: Records, n: int, pos: int) -> None:
    key = room[pos].key
    ident = room[pos].ident
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        other = child + 1
        if other < n and (
            room[other].key < room[child].key
            or (room[other].key == room[child].key and room[other].ident < room[child].ident)
        ):
            child = other
        if room[child].key > key or (room[child].key == key and room[child].ident >= ident):
            break
        room[pos].key = room[child].key
        room[pos].ident = room[child].ident
        pos = child
    room[pos].key = key
    room[pos].ident = ident


@compiled
def _queue_dirty(s: Any, n: int) -> int:
    """Put the links listed in ``dirty`` into the heap of links to visit; returns its new size."""
    for i in range(s.clock[0].n_dirty):
        ident = int64(s.room[i].dirty)
        link = s.links[ident]
        key = 0.0
        if link.fixed:
            key = link.level
        elif link.n > 0:
            key = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n
        pos = n
        while pos > 0:
            parent = (pos - 1) >> 1
            if s.room[parent].key < key or (
                s.room[parent].key == key and s.room[parent].ident <= ident
            ):
                break
            s.room[pos].key = s.room[parent].key
            s.room[pos].ident = s.room[parent].ident
            pos = parent
        s.room[pos].key = key
        s.room[pos].ident = ident
        n += 1
    s.clock[0].n_dirty = 0
    return n


@compiled
def _visit(s: Any, ident: int) -> None:
    """Bring one link up to date: its flows, its level, its next end; lists the links that this
    changes as dirty."""
    link = s.links[ident]
    now = s.clock[0].now
    if link.n == 0 and (
        link.fixed or s.load[EXT, ident] <= s.load[CAPACITY, ident] * (1.0 + LEVEL_TOLERANCE)
    ):
        _set_end(s, ident, np.inf)
        return
    if not link.fixed:
        level = _pull(s, ident)
        # No flow of a link that does not rise meets a lower level: the links that have fallen have
        # pulled theirs.
        if level > link.level:
            level = _push(s, ident, level)
        while level * (1.0 - LEVEL_TOLERANCE) > link.floor and link.n > 0:
            level = _push(s, ident, _release(s, ident, level))
        step = level - link.level
        if link.n > 0 and abs(step) > SMALLEST_STEP * abs(level):
            link.served += link.level * (now - link.t_last)
            link.t_last = now
            link.level = level
            for row in range(link.offset, link.offset + link.n_rows):
                for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
                    other = int64(s.others[j])
                    if other == s.clock[0].nowhere:
                        break
                    s.load[EXT, other] += step
                    _touch(s, other)
    _set_end(s, ident, _schedule(s, ident))


@compiled
def _worth_a_sweep(s: Any) -> int:
    """Number of visits that cost as much as a sweep."""
    return int(
        max(MOST_VISITS, s.clock[0].n_saturated // PER_SATURATED + s.links.shape[0] // PER_LINK)
    )


@compiled
def _repair(s: Any) -> bool:
    """Visit what has changed, lowest level first. False if it came to be too much: then all that is
    left is listed as dirty."""
    clock = s.clock[0]
    most = _worth_a_sweep(s)
    visited = 0
    n_seen = 0
    n = _queue_dirty(s, FIRST)
    while n > 0:
        ident = int64(s.room[0].ident)
        key = s.room[0].key
        link = s.links[ident]
        if link.n > 0 and not link.fixed:
            level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n
            # it has risen since it was queued: others may come first
            if level > key * (1.0 + LEVEL_TOLERANCE) and n > 1:
                s.room[0].key = level
                _down(s.room, n, FIRST)
                if s.room[0].ident != ident:
                    continue
        if visited >= most and clock.n_fixed == 0:
            for i in range(n):
                s.room[i].dirty = s.room[i].ident
            clock.n_dirty = n
            return False
        n -= 1
        s.room[0].key = s.room[n].key
        s.room[0].ident = s.room[n].ident
        if n > 0:
            _down(s.room, n, FIRST)
        visited += 1
        _visit(s, ident)
        link.queued = 0
        n = _queue_dirty(s, n)
        s.room[n_seen % s.room.shape[0]].order = ident
        n_seen += 1
    for i in range(min(n_seen, s.room.shape[0])):
        ident = int64(s.room[i].order)
        s.load[TOP, ident] = max(
            s.load[TOP, ident],
            s.load[CAPACITY, ident] if s.links[ident].n > 0 else s.load[EXT, ident],
        )
    clock.n_visits += visited
    return True


# -------------------------------------------------------------------------------- most links change


@compiled
def _earliest(s: Any, row: int) -> int:
    """Lowest place in order among the links of a row of `others`."""
    out = s.clock[0].n_order
    for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
        other = s.links[s.others[j]]
        if other.n > 0 and other.rank >= 0:
            out = min(out, other.rank)
    return int(out)


@compiled
def _sort(s: Any) -> None:
    """List the saturated links by level, and give every flow the first of its route as its
    bottleneck."""
    clock = s.clock[0]
    n = FIRST
    for ident in range(s.links.shape[0]):
        s.links[ident].rank = -1
        if s.links[ident].n > 0:
            s.room[n].key = s.links[ident].level
            s.room[n].ident = ident
            n += 1
    for pos in range((n >> 1) - 1, -1, -1):
        _down(s.room, n, pos)
    for i in range(n):
        s.room[i].order = s.room[0].ident
        s.links[s.room[i].order].rank = i
        s.room[0].key = s.room[n - 1 - i].key
        s.room[0].ident = s.room[n - 1 - i].ident
        _down(s.room, n - 1 - i, FIRST)
    clock.n_order = n
    clock.in_order = 1
    for i in range(n):
        link = s.links[s.room[i].order]
        n_moving = 0
        for row in range(link.offset, link.offset + link.n_rows):
            if _earliest(s, row) < i:
                s.room[n_moving].flow = s.entries[row].member
                n_moving += 1
        for k in range(n_moving):
            flow = int64(s.room[k].flow)
            _move(s, flow, int64(s.room[_earliest(s, s.nodes[flow].row)].order))


@compiled
def _publish(s: Any, ident: int, level: float) -> bool:
    """Set the level of a link and pass the difference on; returns whether there was any."""
    link = s.links[ident]
    now = s.clock[0].now
    step = level - link.level
    changed = abs(step) > SMALLEST_STEP * abs(level)
    if changed:
        link.served += link.level * (now - link.t_last)
        link.t_last = now
        link.level = level
        for k in range(
            np.uint64(link.offset * (s.width - 1)),
            np.uint64((link.offset + link.n_rows) * (s.width - 1)),
        ):
            s.load[EXT, s.others[k]] += step
    s.ends[ident] = _schedule(s, ident)
    return bool(changed)


@reducing
def _count(values: Any, first: int, last: int, wanted: int) -> int:
    out = 0
    for i in range(np.uint64(first), np.uint64(last)):
        out += values[i] == wanted
    return out


@compiled
def _take_over(s: Any, ident: int, passed: int) -> None:
    """Give a link the flows on it that have their bottleneck on another."""
    link = s.links[passed]
    n = 0
    for row in range(link.offset, link.offset + link.n_rows):
        for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
            if s.others[j] == ident:
                s.room[n].flow = s.entries[row].member
                n += 1
    for i in range(n):
        _move(s, int64(s.room[i].flow), ident)


@compiled
def _place(s: Any, ident: int, end: int) -> int:
    """Move a link forward to where its level belongs among the first ``end`` in order;
    ``order[end]`` is free for it.

    It takes the flows on it from each link that it passes. Returns the place after it.
    """
    link = s.links[ident]
    link.rank = -1
    if link.n == 0:
        link.level = 0.0
    level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n if link.n > 0 else -1.0
    width = s.width - 1
    at = end
    while at > 0 and s.links[s.room[at - 1].order].level > level * (1.0 + LEVEL_TOLERANCE):
        at -= 1
        passed = int64(s.room[at].order)
        first = s.links[passed].offset * width
        if _count(s.others, first, first + s.links[passed].n_rows * width, ident):
            _take_over(s, ident, passed)
            level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n
        s.room[at + 1].order = passed
        s.links[passed].rank = at + 1
    s.room[at].order = ident
    link.rank = at
    _publish(s, ident, level)
    return at + 1


@compiled
def _claim(s: Any, ident: int) -> None:
    """Give a link the flows on it that have their bottleneck on one which has no place in order
    yet, and will come after it."""
    n = 0
    at = int64(s.links[ident].head)
    while at >= 0:
        bottleneck = int64(s.nodes[at // s.width].bottleneck)
        if bottleneck != ident and s.links[bottleneck].rank < 0:
            s.room[n].flow = at // s.width
            n += 1
        at = int64(s.hops[at].next)
    for i in range(n):
        _move(s, int64(s.room[i].flow), ident)


@compiled
def _open_place(s: Any) -> int:
    """Make room for one more link in order; returns its place."""
    s.clock[0].n_order += 1
    return int(s.clock[0].n_order) - 1


@compiled
def _drop(s: Any, place: int) -> None:
    """Take a link out of the order."""
    s.links[s.room[place].order].rank = -1
    s.clock[0].n_order -= 1
    for k in range(place, s.clock[0].n_order):
        s.room[k].order = s.room[k + 1].order
        s.links[s.room[k].order].rank = k


@compiled
def _upwards(s: Any, i: int) -> int:
    """Visit the links in order from place ``i`` on; returns how many levels changed."""
    clock = s.clock[0]
    changed = 0
    while i < clock.n_order:
        ident = int64(s.room[i].order)
        link = s.links[ident]
        if link.n == 0:
            _drop(s, i)
            s.ends[ident] = np.inf
            continue
        level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n
        if i > 0 and level < s.links[s.room[i - 1].order].level * (1.0 - LEVEL_TOLERANCE):
            i = _place(s, ident, i)
            changed += 1
            continue
        if _publish(s, ident, level):
            changed += 1
        i += 1
    return changed


@reducing
def _overloads(load: Any) -> int:
    out = 0
    for i in range(load.shape[1]):
        out += load[EXT, i] > load[CAPACITY, i] * (1.0 + LEVEL_TOLERANCE)
    return out


@compiled
def _overloaded(s: Any) -> int:
    """A link that carries more than it can, -1 if none does."""
    if _overloads(s.load) == 0:
        return -1
    ident = 0
    while s.load[EXT, ident] <= s.load[CAPACITY, ident] * (1.0 + LEVEL_TOLERANCE):
        ident += 1
    return ident


@reducing
def _raise(load: Any) -> None:
    for i in range(load.shape[1]):
        load[TOP, i] = max(load[TOP, i], load[EXT, i])


@compiled
def _sweep(s: Any) -> None:
    """Visit the saturated links in order, from the lowest that changed upwards, until every one
    fits and none is overloaded."""
    clock = s.clock[0]
    first = clock.n_order
    if clock.in_order == 0:
        _sort(s)
        first = 0
    for i in range(clock.n_dirty):
        link = s.links[s.room[i].dirty]
        link.queued = 0
        if link.rank >= 0:
            first = min(first, link.rank)
    for i in range(clock.n_dirty):
        ident = int64(s.room[i].dirty)
        if s.links[ident].n > 0 and s.links[ident].rank < 0:
            _claim(s, ident)
            first = min(first, _place(s, ident, _open_place(s)))
        elif s.links[ident].n == 0:
            s.ends[ident] = np.inf
    clock.n_dirty = 0
    changed = _upwards(s, first)
    ident = _overloaded(s)
    while ident >= 0:
        changed += _upwards(s, _place(s, ident, _open_place(s)))
        ident = _overloaded(s)
    _raise(s.load)
    for i in range(clock.n_order):
        s.load[TOP, s.room[i].order] = s.load[CAPACITY, s.room[i].order]
    all_minima(s)
    clock.n_visits += clock.n_order - first
    clock.sweeping = PATIENCE if 2 * changed > _worth_a_sweep(s) else clock.sweeping - 1


# -------------------------------------------------------------------------------------- all at once


@compiled
def _gather(s: Any, flows: Any, n: int) -> int:
    """Add the flows that have a bottleneck to ``flows``, noting what they have left; returns how
    many there are."""
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        if link.n == 0:
            continue
        link.served += link.level * (s.clock[0].now - link.t_last)
        for at in range(link.offset, link.offset + link.n):
            flows[n] = s.entries[at].flow
            s.nodes[flows[n]].left = max(s.entries[at].key - link.served, 0.0)
            n += 1
    return n


@compiled
def _freeze(s: Any, flow: int, bottleneck: int, level: float) -> None:
    width = s.width
    node = s.nodes[flow]
    node.bottleneck = bottleneck
    for k in range(flow * width, flow * width + node.n_hops):
        ident = int64(s.hops[k].link)
        link = s.links[ident]
        link.n_open -= 1
        if ident == bottleneck:
            s.entries[link.offset + link.n].flow = flow
            s.entries[link.offset + link.n].key = node.left
            link.n += 1
        else:
            s.load[EXT, ident] += level


@compiled
def _open_links(s: Any, flows: Any, n_flows: int) -> int:
    """Empty the links of ``flows`` and queue them by the level at which they would saturate;
    returns how many there are."""
    width = s.width
    clock = s.clock[0]
    clock.stamp += 1
    n = FIRST
    for i in range(n_flows):
        flow = flows[i]
        s.nodes[flow].bottleneck = -1
        for k in range(flow * width, flow * width + s.nodes[flow].n_hops):
            ident = int64(s.hops[k].link)
            link = s.links[ident]
            if link.stamp != clock.stamp:
                link.stamp = clock.stamp
                link.n_open = link.n_active
                link.n = link.n_rows = 0
                link.floor = np.inf
                s.load[EXT, ident] = 0.0
                s.ends[ident] = np.inf
                s.room[n].key = link.level if link.fixed else s.load[CAPACITY, ident] / link.n_open
                s.room[n].ident = ident
                n += 1
    for pos in range((n >> 1) - 1, -1, -1):
        _down(s.room, n, pos)
    return int(n)


@compiled
def _close_link(s: Any, ident: int, level: float) -> None:
    """Put the flows of a link that has saturated at ``level`` in the order of their ends."""
    link = s.links[ident]
    link.level = level
    link.served = 0.0
    link.t_last = s.clock[0].now
    base = int64(link.offset)
    for at in range(base, base + link.n):
        flow = int64(s.entries[at].flow)
        s.nodes[flow].place = at
        _enlist(s, ident, flow)
    for k in range((link.n >> 1) - 1, -1, -1):
        key, flow = s.entries[base + k].key, int64(s.entries[base + k].flow)
        _write(s, base + _sink(s, base, int64(link.n), k, key), key, flow)
    s.ends[ident] = _schedule(s, ident)
    s.load[TOP, ident] = s.load[CAPACITY, ident]
    s.clock[0].n_saturated += 1


@compiled
def fill(s: Any, flows: Any, n_new: int) -> None:
    """Progressive filling of the whole network: raise all rates together, and freeze the flows of
    each link that saturates.

    ``flows`` lists the ``n_new`` flows that start now; it has room for all active ones.
    """
    width = s.width
    clock = s.clock[0]
    for i in range(n_new):
        _link_in(s, int64(flows[i]))
        s.nodes[flows[i]].left = s.nodes[flows[i]].work
    n_flows = _gather(s, flows, n_new)
    for i in range(clock.n_dirty):
        s.links[s.room[i].dirty].queued = 0
        s.ends[s.room[i].dirty] = np.inf
    clock.n_dirty = 0
    clock.n_saturated = 0
    n = _open_links(s, flows, n_flows)
    n_left = n_flows
    while n_left > 0:
        key = s.room[0].key
        ident = int64(s.room[0].ident)
        link = s.links[ident]
        level = link.level
        if link.n_open > 0 and not link.fixed:
            level = (s.load[CAPACITY, ident] - s.load[EXT, ident]) / link.n_open
            if level > key:  # others froze below it meanwhile: its turn comes later
                s.room[0].key = level
                _down(s.room, n, FIRST)
                if s.room[0].key < level or s.room[0].ident != ident:
                    continue
        if link.n_open > 0:
            for head in (link.head, link.alone):
                at = int64(head)
                while at >= 0:
                    if s.nodes[at // width].bottleneck < 0:
                        _freeze(s, at // width, ident, level)
                        n_left -= 1
                    at = int64(s.hops[at].next)
            _close_link(s, ident, level)
        elif not link.fixed:
            s.load[TOP, ident] = max(s.load[TOP, ident], s.load[EXT, ident])
        n -= 1
        s.room[0].key = s.room[n].key
        s.room[0].ident = s.room[n].ident
        if n > 0:
            _down(s.room, n, FIRST)
    for i in range(n):
        s.load[TOP, s.room[i].ident] = max(
            s.load[TOP, s.room[i].ident], s.load[EXT, s.room[i].ident]
        )
    clock.in_order = 0
    clock.sweeping = 0
    clock.n_repairs = 0
    clock.n_visits += n_flows
    all_minima(s)


@compiled
def share(s: Any, starting: Any, n_starting: int) -> None:
    """Make the rates max-min fair again after the flows in ``starting`` have come and those that
    `stop` took have gone."""
    clock = s.clock[0]
    if n_starting == 0 and clock.n_dirty == 0:
        return
    clock.n_repairs += 1
    if (n_starting > 32 and n_starting * 8 > clock.n_active) or clock.n_repairs > REFRESH:
        fill(s, starting, n_starting)
        return
    # a link that has lost its flows may get new ones, which belong elsewhere in the order
    if clock.in_order and n_starting > 0:
        for i in range(clock.n_dirty):
            link = s.links[s.room[i].dirty]
            if link.n == 0 and link.rank >= 0:
                _drop(s, int64(link.rank))
    for i in range(n_starting):
        start(s, int64(starting[i]))
    if clock.sweeping == 0 or clock.n_fixed > 0:
        clock.in_order = 0
        if _repair(s):
            return
        clock.sweeping = PATIENCE
    _sweep(s)


@compiled
def end_due(s: Any, ident: int, limit: float, queue: Any, tail: int) -> int:
    """Stop the flows of a link that end by ``limit`` (s) and list them in ``queue``; returns its
    new end."""
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    while link.n > 0 and now + (s.entries[link.offset].key - link.served) / link.level <= limit:
        flow = int64(s.entries[link.offset].flow)
        stop(s, flow)
        queue[tail] = flow
        tail += 1
    _set_end(s, ident, _schedule(s, ident))
    return tail


@compiled
def end_early(s: Any, tolerance: float, queue: Any, tail: int) -> int:
    """Stop the flows that have at most a share ``tolerance`` of their units left; returns the new
    end of ``queue``."""
    clock = s.clock[0]
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        if link.n == 0:
            continue
        link.served += link.level * (clock.now - link.t_last)
        link.t_last = clock.now
        stopped = False
        while link.n > 0:
            flow = int64(s.entries[link.offset].flow)
            left = (s.entries[link.offset].key - link.served) / s.nodes[flow].work
            if left > tolerance:
                break
            clock.spared = max(clock.spared, left)
            stop(s, flow)
            queue[tail] = flow
            tail += 1
            stopped = True
        if stopped:
            _set_end(s, ident, _schedule(s, ident))
    return tail


@compiled
def book(s: Any) -> None:
    """Add to the statistics of every link what the flows under way have drained, and the time it
    has been busy."""
    clock = s.clock[0]
    width = s.width
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        link.peak = s.load[TOP, ident] / s.load[CAPACITY, ident]
        if link.n_active > 0:
            link.busy += clock.now - link.t_busy
            link.t_busy = clock.now
        served = link.served + link.level * (clock.now - link.t_last)
        for at in range(link.offset, link.offset + link.n):
            node = s.nodes[s.entries[at].flow]
            drained = node.work - max(s.entries[at].key - served, 0.0)
            for k in range(s.entries[at].flow * width, s.entries[at].flow * width + node.n_hops):
                s.links[s.hops[k].link].work += drained - node.booked
            node.booked = drained
