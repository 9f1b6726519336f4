"""What holds between the arrays of the fluid network after every event, in plain Python.

Nothing in the package calls it: the tests do, after every event. A change of the compiled code that
leaves one of these out of step is found at the event that did it, not at a wrong end much later.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from simshuffle.fabric.network.fluid_records import (
    ACTIVE,
    CAPACITY,
    FAN,
    OTHER,
    PEAK,
    PER_GROUP,
    UNUSED,
    FluidState,
)
from simshuffle.spec.arrays import Floats

TOLERANCE = 1e-9
"""Relative error of a level or a load: sums of many small steps, see `REFRESH`."""


class _View:
    """A state in Python's own types: ``routes`` of all transfers, ``rates`` (units/s) of the flows
    under way, and ``crossing``, those flows on each link. Rounding is of the size of ``healthy``,
    (links,) units/s, what each link could carry before it was slow."""

    def __init__(self, s: FluidState, healthy: Floats | None = None) -> None:
        self.s = s
        self.scale = s.load[:, CAPACITY].copy()
        if healthy is not None:
            self.scale[: len(healthy)] = healthy
        self.links = s.links
        hops, counts = s.hops["link"].reshape(-1, s.width), s.nodes["n_hops"]
        used = np.flatnonzero(s.nodes["state"] != UNUSED).tolist()
        self.routes = {flow: hops[flow, : counts[flow]].tolist() for flow in used}
        levels = s.links["level"][s.nodes["bottleneck"]]
        drains = (s.nodes["state"] == ACTIVE) & (s.nodes["outside"] == 0)
        self.rates = {flow: float(levels[flow]) for flow in np.flatnonzero(drains).tolist()}
        self.crossing: defaultdict[int, list[int]] = defaultdict(list)
        for flow in self.rates:
            for link in self.routes[flow]:
                self.crossing[link].append(flow)
        self.saturated = np.flatnonzero(s.links["n"] > 0).tolist()

    def members(self, link: int) -> list[int]:
        """The flows in the heap of a link, in its order."""
        first = int(self.links["offset"][link])
        return list(self.s.entries["flow"][first : first + self.links["n"][link]].tolist())


def _close(found: float, expected: float, scale: float) -> bool:
    return abs(found - expected) <= TOLERANCE * scale


def _lists(v: _View) -> Iterator[str]:
    """Each link lists the flows that cross it, apart those that share no other link."""
    for link, record in enumerate(v.links):
        alone = {flow for flow in v.crossing[link] if v.s.nodes["alone"][flow]}
        for head, flows in (("alone", alone), ("head", set(v.crossing[link]) - alone)):
            found: list[int] = []
            at, before = int(record[head]), -1
            while at >= 0 and len(found) <= len(flows):
                if v.s.hops["prev"][at] != before or v.s.hops["link"][at] != link:
                    yield f"link {link}: hop {at} of the list '{head}' is not linked to {before}"
                found.append(at // v.s.width)
                before, at = at, int(v.s.hops["next"][at])
            if sorted(found) != sorted(flows):
                yield f"link {link}: the list '{head}' has {found}, not {sorted(flows)}"


def _counts(v: _View) -> Iterator[str]:
    """Every count is that of what it counts."""
    alive = np.zeros(len(v.links), int)
    np.add.at(alive, [link for route in v.routes.values() for link in route], 1)
    for link, record in enumerate(v.links):
        flows = v.crossing[link]
        counts = {
            "n_alive": alive[link],
            "n_active": len(flows),
            "n_alone": sum(v.s.nodes["alone"][flow] for flow in flows),
            "n": sum(v.s.nodes["bottleneck"][flow] == link for flow in flows),
            "queued": 0,
            "n_open": 0,
        }
        for name, count in counts.items():
            if record[name] != count:
                yield f"link {link}: {name} is {record[name]}, not {count}"
    clock = v.s.clock[0]
    totals = {"n_alive": len(v.routes), "n_active": len(v.rates), "n_dirty": 0}
    for name, count in {**totals, "n_saturated": len(v.saturated)}.items():
        if clock[name] != count:
            yield f"{name} is {clock[name]}, not {count}"


def _arena(v: _View) -> Iterator[str]:
    """The heaps of the links do not overlap, and each has places for all that may come."""
    used = np.flatnonzero(v.links["places"])
    ends = v.links["offset"] + v.links["places"]
    end = 0
    for link in used[np.argsort(v.links["offset"][used])].tolist():
        if v.links["offset"][link] < end:
            yield f"link {link}: its heap begins at {v.links['offset'][link]}, before {end}"
        end = int(ends[link])
    if end > v.s.clock["heap_top"][0]:
        yield f"heaps reach to {end}, beyond {v.s.clock['heap_top'][0]}"
    for link in np.flatnonzero(v.links["n_active"] > v.links["places"]).tolist():
        yield f"link {link}: {v.links['n_active'][link]} flows do not fit its heap"
    for link in np.flatnonzero(v.links["n_alive"] > v.links["reserved"]).tolist():
        yield f"link {link}: {v.links['n_alive'][link]} transfers may not fit its heap"
    room = v.links["reserved"].sum(dtype=int), len(v.s.entries)
    if not max(room[0], v.s.clock["heap_top"][0]) <= v.s.clock["promised"][0] <= room[1]:
        yield f"{v.s.clock['promised'][0]} places are promised, of {room}"


def _heaps(v: _View) -> Iterator[str]:
    """Each flow has one place, in the heap of its bottleneck, the next end first."""
    for link in v.saturated:
        first = int(v.links["offset"][link])
        keys = v.s.entries["key"][first : first + v.links["n"][link]]
        for k, flow in enumerate(v.members(link)):
            if (v.s.nodes["place"][flow], v.s.nodes["bottleneck"][flow]) != (k, link):
                yield f"link {link}: flow {flow} is at place {k} and does not say so"
            if keys[(k - 1) // 2 if k else 0] > keys[k]:
                yield f"link {link}: the entry at place {k} comes before the one above it"


def _rows(v: _View) -> Iterator[str]:
    """Beside its heap a link has the other links of each of its flows that share any."""
    width, null_link = v.s.width - 1, int(v.s.clock["null_link"][0])
    for link in v.saturated:
        first, record = int(v.links["offset"][link]), v.links[link]
        rows = {}
        for row in range(record["n_rows"]):
            rows[int(v.s.members[first + row])] = row
        listed = [flow for flow in v.members(link) if not v.s.nodes["alone"][flow]]
        if sorted(rows) != (sorted(listed) if not record["fixed"] else []):
            yield f"link {link}: rows of the flows {sorted(rows)}, not of {sorted(listed)}"
        for flow, row in rows.items():
            others = [other for other in v.routes[flow] if other != link and other < null_link]
            padded = others + [null_link] * (width - len(others))
            if v.s.nodes["row"][flow] != row:
                yield f"link {link}: flow {flow} does not know its row {row}"
            at = (first + row) * width
            if v.s.other_links[at : at + width].tolist() != padded:
                yield f"link {link}: the row of flow {flow} is not {padded}"


def _other_loads(v: _View) -> Iterator[str]:
    """The other load is what flows with a bottleneck elsewhere take; no link is overloaded. (Nobody
    asks for the other load of a rate limit.)"""
    for link in np.flatnonzero(v.links["fixed"] == 0).tolist():
        record = v.links[link]
        capacity, other = float(v.s.load[link, CAPACITY]), float(v.s.load[link, OTHER])
        flows = [flow for flow in v.crossing[link] if v.s.nodes["bottleneck"][flow] != link]
        expected = sum(v.rates[flow] for flow in flows)
        if not _close(other, expected, v.scale[link]):
            yield f"link {link}: other load {other}, not {expected}"
        total = expected + record["n"] * record["level"]
        if total > capacity + TOLERANCE * v.scale[link]:
            yield f"link {link}: carries {total}, more than its capacity {capacity}"
        if v.s.load[link, PEAK] < min(other, capacity) - TOLERANCE * v.scale[link]:
            yield f"link {link}: highest load {v.s.load[link, PEAK]}, below the present {other}"


def _levels(v: _View) -> Iterator[str]:
    """level = (capacity - other load) / flows of its own."""
    for link in v.saturated:
        record, capacity = v.links[link], float(v.s.load[link, CAPACITY])
        expected = (capacity - v.s.load[link, OTHER]) / record["n"]
        if not record["fixed"] and not _close(record["level"], expected, v.scale[link]):
            yield f"link {link}: level {record['level']}, not {expected}"


def _bottlenecks(v: _View) -> Iterator[str]:
    """No flow is faster than the level of any saturated link on its route, or than its limit."""
    for flow, rate in v.rates.items():
        for link in v.routes[flow]:
            record = v.links[link]
            if (record["n"] or record["fixed"]) and rate > record["level"] * (1 + TOLERANCE):
                yield f"flow {flow}: rate {rate}, above the level {record['level']} of link {link}"
    for link in v.saturated:
        record = v.links[link]
        limits = [
            float(v.links["level"][v.routes[flow][-1]])
            for flow in v.members(link)
            if v.links["fixed"][v.routes[flow][-1]]
        ]
        if limits and not record["fixed"] and record["floor"] > min(limits):
            yield f"link {link}: floor {record['floor']}, above the lowest limit {min(limits)}"


def _order(v: _View) -> Iterator[str]:
    """While links are in order it has all saturated ones, and levels do not decrease."""
    if not v.s.clock["in_order"][0]:
        return
    order = v.s.order[: v.s.clock["n_order"][0]].tolist()
    if sorted(order) != v.saturated:
        yield f"in order are {sorted(order)}, not {v.saturated}"
    if v.links["rank"][order].tolist() != list(range(len(order))):
        yield f"ranks {v.links['rank'][order].tolist()} of {order}"
    levels = v.links["level"][order]
    for i in np.flatnonzero(levels[1:] < levels[:-1] * (1 - TOLERANCE)).tolist():
        yield f"link {order[i + 1]} comes after link {order[i]} and has a lower level"


def _ends(v: _View) -> Iterator[str]:
    """The next end of each link is that of the first flow of its heap; all minima hold."""
    now = float(v.s.clock["now"][0])
    for link, record in enumerate(v.links):
        expected = np.inf
        if record["n"] and record["level"] > 0:
            left = v.s.entries["key"][record["offset"]] - record["served"]
            expected = record["t_last"] + max(left, 0.0) / record["level"]
        found = float(v.s.ends[link])
        if found != expected and not _close(found, expected, max(now, abs(expected))):
            yield f"link {link}: next end {found} s, not {expected} s"
    groups = len(v.s.ends) // PER_GROUP
    blocks = groups * FAN * FAN
    for first, last, above in ((0, blocks, blocks), (blocks, len(v.s.ends) - groups, -groups)):
        smallest = v.s.ends[first:last].reshape(-1, FAN).min(axis=1)
        if not np.array_equal(smallest, v.s.ends[above:][: len(smallest)]):
            yield f"minima over the ends from {first} to {last} are not theirs"


INVARIANTS: tuple[Callable[[_View], Iterator[str]], ...] = (
    _lists,
    _counts,
    _arena,
    _heaps,
    _rows,
    _other_loads,
    _levels,
    _bottlenecks,
    _order,
    _ends,
)


def violations(s: FluidState, healthy: Floats | None = None) -> list[str]:
    """What is wrong with a state between two events; empty if all invariants hold. ``healthy`` as
    of `_View`."""
    view = _View(s, healthy)
    return [message for invariant in INVARIANTS for message in invariant(view)]
