"""What simshuffle says about a testbed: when each flow ends in the fluid network, and the only two
numbers that are fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.network import Flows, Fluid, Links
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.studies.testbed.network import LeafSpine, Shape, checked
from simshuffle.studies.testbed.patterns import PATTERNS, Pattern

HEADERS = 1448 / 1514
"""Payload of a full packet over its bytes on Ethernet: IPv4 20, TCP 20, its time stamps 12,
Ethernet 14."""


@dataclass(frozen=True)
class Overhead:
    """What TCP costs."""

    efficiency: float = HEADERS  # payload bytes for each byte of the shaped rate
    startup: float = 0.0  # s that a flow needs beyond its bytes at that rate; at least 0


def fitted(sizes: tuple[int, int], times: tuple[float, float], rate: float) -> Overhead:
    """The line through two single flows.

    Args:
        sizes: bytes of each.
        times: s until each ended.
        rate: bytes/s that the links are shaped to.
    """
    efficiency = (sizes[1] - sizes[0]) / (times[1] - times[0]) / rate
    return Overhead(efficiency, max(times[0] - sizes[0] / (efficiency * rate), 0.0))


def finish_times(testbed: LeafSpine, pattern: Pattern, overhead: Overhead) -> NDArray[np.float64]:
    """(flows,) s: when each flow of ``pattern`` ends in the fluid network."""
    capacity = np.full(len(testbed.links), testbed.shape.rate * overhead.efficiency)
    # every route leaves exactly one host, so the start-up is counted once
    latency = np.array(
        [overhead.startup * (near in testbed.host_names) for near, _ in testbed.ends]
    )
    links = Links(capacity, latency, testbed.links)
    routes = testbed.routes(
        np.array(pattern.src, np.int32), np.array(pattern.dst, np.int32)
    ).tolist()
    after = [list(before) for before in pattern.after]
    sizes = [float(nbytes) for nbytes in pattern.nbytes]
    if pattern.barrier:
        first = len(pattern)
        for step in range(max(pattern.step)):
            routes.append([-1] * len(routes[0]))
            sizes.append(0.0)
            after.append([flow for flow in range(first) if pattern.step[flow] == step])
            if step:
                # a step in which nobody sends still waits for the one before
                after[-1].append(len(routes) - 2)
        for flow in range(first):
            if pattern.step[flow]:
                after[flow] = [first + pattern.step[flow] - 1]
    else:
        _follow_own(pattern, after)
    flows = Flows.of(np.array(routes, np.int32), sizes, after=after)
    return Fluid().finish_times(links, flows).finish[: len(pattern)]


def _follow_own(pattern: Pattern, after: list[list[int]]) -> None:
    """Flows of one pair of hosts share a connection, so one goes after the other."""
    last: dict[tuple[int, int], int] = {}
    for flow, pair in enumerate(zip(pattern.src, pattern.dst, strict=True)):
        if pair in last:
            after[flow].append(last[pair])
        last[pair] = flow


def values(
    shape: Shape, pattern: str, nbytes: int, seed: int, overhead: Overhead
) -> dict[str, str]:
    """All that `predicted` needs, as text with units."""
    return {
        "leaves": str(shape.leaves),
        "hosts_per_leaf": str(shape.hosts_per_leaf),
        "spines": str(shape.spines),
        "rate": f"{shape.rate * 8 / 1e6:.15g} Mbit/s",
        "pattern": pattern,
        "nbytes": f"{nbytes} B",
        "seed": str(seed),
        "efficiency": f"{overhead.efficiency:.6f}",
        "startup": f"{overhead.startup:.6f} s",
    }


def predicted(values: Mapping[str, str]) -> float:
    """The predicted makespan (s) of a measured row, from the texts that `values` made; needs no
    root.

    Raises:
        InputError: a key is missing or its text is no such value.
    """
    remedy = "Write it as 'simshuffle machine testbed --keep-as' does."
    problems: list[Problem] = []
    read: dict[str, Any] = {}
    for key, value_of in _READ.items():
        path, text = f"values.{key}", values.get(key)
        if text is None:
            problems.append(Problem(path, "is missing", "", remedy))
            continue
        try:
            read[key] = value_of(text)
        except ValueError as error:
            problems.append(Problem(path, f"cannot be read: {error}", repr(text), remedy))
    if problems:
        raise InputError(problems, "testbed")
    testbed = LeafSpine(
        checked(Shape(read["leaves"], read["hosts_per_leaf"], read["spines"], read["rate"]))
    )
    pattern = PATTERNS[read["pattern"]](testbed, read["nbytes"], read["seed"])
    return makespan(testbed, pattern, Overhead(read["efficiency"], read["startup"]))


def _pattern(text: str) -> str:
    if text not in PATTERNS:
        raise ValueError(f"no such pattern; known: {', '.join(PATTERNS)}")
    return text


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError("must be greater than 0")
    return value


_READ: dict[str, Callable[[str], Any]] = {
    "leaves": int,
    "hosts_per_leaf": int,
    "spines": int,
    "rate": lambda text: parse_quantity(text, Dimension.BANDWIDTH),
    "pattern": _pattern,
    "nbytes": lambda text: int(parse_quantity(text, Dimension.NBYTES)),
    "seed": int,
    "efficiency": _positive,
    "startup": lambda text: parse_quantity(text, Dimension.SECONDS),
}
"""What `predicted` must know, and how each is read."""


def makespan(testbed: LeafSpine, pattern: Pattern, overhead: Overhead) -> float:
    """When the last flow of ``pattern`` ends (s)."""
    return float(finish_times(testbed, pattern, overhead).max())
