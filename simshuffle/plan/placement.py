"""Which hosts the ranks fill, and in which order."""

from __future__ import annotations

import numpy as np

from simshuffle.errors import Problem, TopologyError, first_of
from simshuffle.routing import Fabric
from simshuffle.scenario.cluster import PLACEMENTS, Cluster


def placed(cluster: Cluster, fabric: Fabric, count: int, rng: np.random.Generator) -> list[str]:
    """The names of ``count`` hosts in the order in which ranks fill them, as the cluster's
    ``placement`` says; ``rng`` draws those of a scattered one.

    Raises:
        TopologyError: the placement names a host that the network does not have.
    """
    cabling = fabric.cabling
    names = [cabling.names[node] for node in cabling.of_kind("host").tolist()]
    named = cluster.named_hosts
    if named is not None:
        _check_known(named, names)
        return named[:count]
    if cluster.placement == "scattered":
        return [names[i] for i in np.sort(rng.permutation(len(names))[:count])]
    names = names[:count]
    return _in_turn(names, fabric) if cluster.placement == "round_robin" else names


def _in_turn(names: list[str], fabric: Fabric) -> list[str]:
    """The hosts in another order: the first one on each leaf switch, then the second one, and so
    on, of hosts with several HCAs that of the first."""
    on: dict[int, int] = {}
    turn = []
    for name in names:
        leaf = int(fabric.at[fabric.endpoints(name)[0]])
        turn.append(on.get(leaf, 0))
        on[leaf] = turn[-1] + 1
    return [names[i] for i in np.argsort(turn, kind="stable")]


def _check_known(named: list[str], names: list[str]) -> None:
    known = set(names)
    unknown = [name for name in named if name not in known]
    if unknown:
        ends = dict.fromkeys((names[0], names[-1]))
        rule = f"must be {', '.join(PLACEMENTS)}, or name hosts of the topology"
        remedy = f"Its {len(names)} hosts are called {' to '.join(ends)}."
        raise TopologyError(
            Problem("cluster.placement", rule, first_of(unknown), remedy), "placement"
        )
