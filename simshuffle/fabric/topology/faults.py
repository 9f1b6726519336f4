"""Cables, switches and hosts of a network that are slow or cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.topology.graph import Sketch, graph_problems

KEY = "cluster.faults"
"""Where faults are named."""


def with_faults(network: Sketch, faults: Mapping[str, float]) -> Sketch:
    """A network of whose cables some carry a share of what they would, or are gone.

    Nodes that lose all their cables are gone too, as the hosts below a leaf switch that is cut.

    Args:
        network: as it is made.
        faults: by the name of a node, all of whose cables are meant, or of a cable ('from>to' or
            'from>to#k', either way round, as links are called) the share of its bandwidth that is
            left; 0 cuts it. Of several shares the least counts.

    Raises:
        TopologyError: nothing is called so, or what is left is no network.
    """
    edges = list(network.edges(data=True))
    left = _shares(edges, faults, [node for node, _ in network.nodes(data=True)])
    cut = 0.0 in left
    out = Sketch(**{key: of for key, of in network.graph.items() if not (cut and key == "height")})
    kept = [(a, b, data, share) for (a, b, data), share in zip(edges, left, strict=True) if share]
    linked = {node for a, b, *_ in kept for node in (a, b)}
    for node, data in network.nodes(data=True):
        if node in linked or not cut:
            out.add_node(node, **data)
    for a, b, data, share in kept:
        out.add_edge(a, b, **{**data, "bandwidth": share * data["bandwidth"]})
    if cut and (problems := graph_problems(out, KEY)):
        remedy = "Cut less, or slow it: a share above 0."
        raise TopologyError([replace(problem, remedy=remedy) for problem in problems], "faults")
    return out


def _shares(
    edges: list[tuple[str, str, dict[str, Any]]], faults: Mapping[str, float], nodes: list[str]
) -> list[float]:
    """What is left of each cable."""
    named: dict[str, list[int]] = {node: [] for node in nodes}
    cables: defaultdict[str, list[int]] = defaultdict(list)
    met: Counter[frozenset[str]] = Counter()
    for number, (a, b, _) in enumerate(edges):
        named[a].append(number)
        named[b].append(number)
        place = met[frozenset((a, b))]
        met[frozenset((a, b))] += 1
        for name in (f"{a}>{b}", f"{b}>{a}"):
            cables[name].append(number)
            cables[f"{name}#{place}"].append(number)
    left = [1.0] * len(edges)
    problems = []
    for name, share in faults.items():
        meant = named.get(name) or cables.get(name)
        if meant is None:
            problems.append(_unknown(name, cables if ">" in name else named))
        for number in meant or ():
            left[number] = min(left[number], share)
    if problems:
        raise TopologyError(problems, "faults")
    return left


def _unknown(name: str, known: Iterable[str]) -> Problem:
    rule = "must name a host, a switch, or a cable (FROM>TO) of the network"
    close = get_close_matches(name, known, 3)
    remedy = f"There are {', '.join(close)}. " if close else ""
    remedy += "simshuffle machine show MACHINE --route FROM TO names cables."
    return Problem(f"{KEY}.{name}", rule, "none called so", remedy)
