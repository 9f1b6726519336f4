"""Who sends to whom, by the hosts of a network: patterns with which its links are loaded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.loads import loads, uniform_loads
from simshuffle.routing.router import Router

Longs = NDArray[np.int64]


def host_ports(fabric: Fabric) -> Ints:
    """(hosts, rails) the ports of every host, as many as the host with the fewest has."""
    cabling = fabric.cabling
    each = [fabric.endpoints(cabling.names[host]) for host in cabling.of_kind("host").tolist()]
    rails = min(map(len, each))
    return np.array([ports[:rails] for ports in each], np.int32)


def _permutation(hosts: int, rng: np.random.Generator) -> Longs:
    return rng.permutation(hosts)


def _pairs(hosts: int, rng: np.random.Generator) -> Longs:
    order = rng.permutation(hosts)
    even = hosts - hosts % 2
    out = np.arange(hosts)
    out[order[0:even:2]], out[order[1:even:2]] = order[1:even:2], order[0:even:2]
    return out


def _half(hosts: int, _: np.random.Generator) -> Longs:
    return (np.arange(hosts) + hosts // 2) % hosts


def _next(hosts: int, _: np.random.Generator) -> Longs:
    return (np.arange(hosts) + 1) % hosts


PARTNERS: dict[str, Callable[[int, np.random.Generator], Longs]] = {
    "random_permutation": _permutation,
    "random_pairs": _pairs,
    "half_shift": _half,
    "next": _next,
}
"""To which host each one sends: another for everyone, in pairs, the one half-way around the list of
hosts, the next one."""
ALL_TO_ALL = "all_to_all"
PATTERNS = (ALL_TO_ALL, *PARTNERS)


def pattern_loads(router: Router, pattern: str, rng: np.random.Generator) -> Longs:
    """(links,) messages of a pattern on each link: every port of every host sends one to the port
    of the same rail of its partner; in ``all_to_all`` one to every other port."""
    ports = host_ports(router.fabric)
    if pattern == ALL_TO_ALL:
        return uniform_loads(router, ports.ravel())
    partner = PARTNERS[pattern](len(ports), rng)
    away = np.flatnonzero(partner != np.arange(len(ports)))
    return loads(router, ports[away].ravel(), ports[partner[away]].ravel())
