"""Cables, switches and hosts of a network that are slow or cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.topology.graph import Sketch, graph_problems

FAULTS_KEY = "cluster.faults"
"""Key of a scenario that names faults."""


def apply_faults(network: Sketch, faults: Mapping[str, float]) -> Sketch:
    """Return a network whose faulty cables have less bandwidth or are gone.

    Nodes that lose all their cables are gone too, as the hosts below a leaf switch that
    is cut. If a cable is gone, the network is no longer said to be a tree, and the
    parallel cables that remain are numbered anew. ``network`` is not changed.

    Args:
        network: the network without faults.
        faults: share of the bandwidth that is left, by the name of a node (then all its
            cables are meant) or of a cable ('from>to' or 'from>to#k', either direction,
            as links are called); 0 cuts the cable. Without '#k' all parallel cables are
            meant. Of several shares the lowest counts.

    Raises:
        TopologyError: no node or cable has that name, or the remaining cables are no
            network.
    """
    edges = list(network.edges(data=True))
    remaining_shares = _remaining_shares(
        edges, faults, [node for node, _ in network.nodes(data=True)]
    )
    is_cut = 0.0 in remaining_shares
    faulty = Sketch(
        **{
            key: attribute
            for key, attribute in network.graph.items()
            if not (is_cut and key == "height")
        }
    )
    remaining_cables = [
        (a, b, data, share)
        for (a, b, data), share in zip(edges, remaining_shares, strict=True)
        if share
    ]
    linked_nodes = {node for a, b, *_ in remaining_cables for node in (a, b)}
    for node, data in network.nodes(data=True):
        if node in linked_nodes or not is_cut:
            faulty.add_node(node, **data)
    for a, b, data, share in remaining_cables:
        faulty.add_edge(a, b, **{**data, "bandwidth": share * data["bandwidth"]})
    if is_cut and (problems := graph_problems(faulty, FAULTS_KEY)):
        remedy = "Cut less, or slow it: a share above 0."
        raise TopologyError(
            [replace(problem, remedy=remedy) for problem in problems], "faults"
        )
    return faulty


def _remaining_shares(
    edges: list[tuple[str, str, dict[str, Any]]],
    faults: Mapping[str, float],
    nodes: list[str],
) -> list[float]:
    """Return the share of its bandwidth that each cable keeps, in the order of
    ``edges``: 1 without a fault. A name that a node and a cable share means the node.

    Raises:
        TopologyError: no node or cable has the name of a fault.
    """
    cables_of_node: dict[str, list[int]] = {node: [] for node in nodes}
    cables_by_name: defaultdict[str, list[int]] = defaultdict(list)
    parallel_count: Counter[frozenset[str]] = Counter()
    for cable, (a, b, _) in enumerate(edges):
        cables_of_node[a].append(cable)
        cables_of_node[b].append(cable)
        # cables are counted as links are called: '#k' is the k-th between two nodes
        parallel_index = parallel_count[frozenset((a, b))]
        parallel_count[frozenset((a, b))] += 1
        for name in (f"{a}>{b}", f"{b}>{a}"):
            cables_by_name[name].append(cable)
            cables_by_name[f"{name}#{parallel_index}"].append(cable)
    shares = [1.0] * len(edges)
    problems = []
    for name, share in faults.items():
        faulty_cables = cables_of_node.get(name) or cables_by_name.get(name)
        if faulty_cables is None:
            problems.append(
                _unknown_name_problem(
                    name, cables_by_name if ">" in name else cables_of_node
                )
            )
        for cable in faulty_cables or ():
            shares[cable] = min(shares[cable], share)
    if problems:
        raise TopologyError(problems, "faults")
    return shares


def _unknown_name_problem(name: str, known_names: Iterable[str]) -> Problem:
    """Return the problem of a fault that names no node or cable; its remedy has up to 3
    similar names of ``known_names``.
    """
    rule = "must name a host, a switch, or a cable (FROM>TO) of the network"
    similar_names = get_close_matches(name, known_names, 3)
    remedy = f"There are {', '.join(similar_names)}. " if similar_names else ""
    remedy += "simshuffle machine show MACHINE --route FROM TO names cables."
    return Problem(f"{FAULTS_KEY}.{name}", rule, "none called so", remedy)
