"""The links that messages may take, by whatever routing."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.routing import (
    Adaptive,
    DModK,
    Ecmp,
    Fabric,
    MinHop,
    Minimal,
    RandomStatic,
    RoutingRule,
    UpDown,
    Valiant,
)
from simshuffle.fabric.routing.router import reachable_links
from simshuffle.fabric.topology.cabling import FAR
from tests.contracts.test_routing import ring_of_switches
from tests.contracts.test_routings import dragonfly
from tests.strategies import switch_tree

RULES: dict[str, RoutingRule] = {
    "d_mod_k": DModK(),
    "min_hop": MinHop(),
    "random_static": RandomStatic(),
    "ecmp": Ecmp(),
    "ecmp of four queue pairs": Ecmp(queue_pairs=4),
    "adaptive": Adaptive(),
}


def tree() -> Fabric:
    """32 hosts below switches of 8 ports, in three levels."""
    return Fabric(switch_tree(8, 32, levels=3).sketch())


def pairs(ports: Any) -> tuple[Any, Any]:
    src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
    return src[src != dst].astype(np.int32), dst[src != dst].astype(np.int32)


@pytest.mark.parametrize("name", RULES)
def test_every_route_stays_within_reach(name):
    fabric = tree()
    ports = np.array([0, 1, 5, 9, 30], np.int32)
    router = RULES[name].router(fabric, 7)
    within = np.append(reachable_links(router, ports), True)  # the last for the padding
    src, dst = pairs(ports)
    for _ in range(5):
        routes = router.routes(np.tile(src, 8), np.tile(dst, 8))
        assert within[routes].all()


def test_what_is_in_reach_lies_on_a_shortest_way():
    """A link from a to b does if d(x, a) + 1 + d(b, y) = d(x, y) for two ports at x and
    y."""
    fabric = tree()
    ports = np.array([0, 1, 5, 9], np.int32)
    found = reachable_links(Adaptive().router(fabric, 0), ports)
    steps = fabric.switches.steps(np.arange(len(fabric.switches.nodes), dtype=np.int32))
    assert (steps < FAR).all()
    leaves = fabric.switch_of_node[fabric.cabling.ends.ravel()]
    at = fabric.switch_of_port[ports]
    wanted = np.zeros(len(found), bool)
    wanted[fabric.inject_link[ports]] = wanted[fabric.eject_link[ports]] = True
    for link in fabric.switch_links:
        a, b = leaves[link], fabric.entered_switch[link]
        wanted[link] = any(steps[x, a] + 1 + steps[b, y] == steps[x, y] for x in at for y in at)
    assert np.array_equal(found, wanted)
    assert 0 < found.sum() < len(found)


def test_routers_say_whether_their_routes_are_constant():
    fabric = tree()
    src, dst = (np.tile(of, 3) for of in pairs(np.arange(12, dtype=np.int32)))
    count, changing = len(src) // 3, set()
    for name, rule in RULES.items():
        router = rule.router(fabric, 7)
        routes = router.routes(src, dst)
        alike = all(np.array_equal(routes[:count], routes[k * count :][:count]) for k in (1, 2))
        assert alike or not router.constant, name
        if not router.constant:
            changing.add(name)
        assert np.array_equal(router.without_history().routes(src, dst), routes), name
    assert changing == {"ecmp of four queue pairs", "adaptive"}


def names_in_reach(graph: Any, rule: RoutingRule, ports: list[int]) -> set[str]:
    fabric = Fabric(graph)
    found = reachable_links(rule.router(fabric, 0), np.array(ports, np.int32))
    return {fabric.links.names[link] for link in np.flatnonzero(found)}


def test_routes_that_are_longer_than_needed_may_take_any_link_between_switches():
    """On a ring of 7 with a root, a route has up to 5 links in place of 3; those of two hosts."""
    ring = ring_of_switches(7)
    between = {f"s{a}>s{(a + 1) % 7}" for a in range(7)} | {
        f"s{(a + 1) % 7}>s{a}" for a in range(7)
    }
    hosts = {"h1>s1", "s1>h1", "h3>s3", "s3>h3"}
    assert names_in_reach(ring, UpDown(roots=["s0"]), [1, 3]) == between | hosts
    straight = {"s1>s2", "s2>s1", "s2>s3", "s3>s2"}
    assert names_in_reach(ring, MinHop(), [1, 3]) == straight | hosts


def test_among_groups_routes_have_one_hop_between_them_unless_messages_go_round():
    """Of 5 groups of 2 switches, 0 and 4 are linked by the second and the first. Three links join
    s0.0 and s4.1; to s0.1 in its own group there is one."""
    graph = dragonfly(5, 2, 1)
    chain = ["h0.0.0", "s0.0", "s0.1", "s4.0", "s4.1", "h4.1.0"]
    straight = {f"{a}>{b}" for a, b in pairwise(chain)} | {f"{b}>{a}" for a, b in pairwise(chain)}
    for rule in (Minimal(), Adaptive()):
        assert names_in_reach(graph, rule, [0, 9]) == straight
        own = {"h0.0.0>s0.0", "s0.0>h0.0.0", "s0.0>s0.1", "s0.1>s0.0", "h0.1.0>s0.1", "s0.1>h0.1.0"}
        assert names_in_reach(graph, rule, [0, 1]) == own
    fabric = Fabric(graph)
    everywhere = {fabric.links.names[link] for link in fabric.switch_links}
    for rule in (Valiant(), Adaptive(detours=True)):
        assert names_in_reach(graph, rule, [0, 9]) == straight | everywhere
