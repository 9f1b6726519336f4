"""Allreduces on the fluid network: what they take where only their caps limit, and where links do;
and what the order of the hosts costs."""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network.flows import Links
from simshuffle.fabric.network.models import Fluid, shared_network
from simshuffle.job.lowering.collectives import Allreduces, ranks_in_order
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from tests.examples import (
    ALGORITHMS,
    ALPHA_INTER,
    ALPHA_INTRA,
    cluster,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    ring,
    torus,
)
from tests.strategies import abci, fat_tree, star

A, X = ALPHA_INTRA, ALPHA_INTER


class Shuffled:
    """A generator that shuffles into a given order."""

    def __init__(self, *order: int) -> None:
        self._order = np.array(order)

    def permutation(self, hosts: Any) -> Any:
        assert sorted(self._order) == hosts.tolist()
        return self._order


def resources(machine: Cluster, world_size: int) -> Resources:
    return Resources(machine, world_size, np.random.default_rng(1))


def seconds(allreduce: Allreduce, on: Resources, nbytes: float, rng: Any = None) -> float:
    """Of one allreduce with nothing else on the machine."""
    batch = Allreduces(allreduce, on, rng).batch(nbytes)
    assert batch is not None
    table = on.links
    network = shared_network(
        Fluid(), Links(table.capacity, table.latency), table.cable, width=on.width
    )
    batch.tasks["group"] = group = network.open_group(len(batch))
    network.post(0.0, batch)
    network.watch(group)
    _, done = network.advance(np.inf)
    assert done == [group]
    return network.now


# --------------------------------------------------------------------------------- nothing but caps


ON_ONE_HCA = [
    name for name, each in ALGORITHMS.items() if getattr(each, each.one_for_each_hca) == 1
]
CASES = [(name, size, 1) for name in ON_ONE_HCA for size in (2, 5)] + [
    (name, size, 4) for name in ALGORITHMS for size in (3, 8, 12, 13)
]


@pytest.mark.parametrize(("name", "world_size", "gpus"), CASES)
def test_with_wide_links_the_network_takes_what_the_flows_say(name, world_size, gpus):
    """A star of hosts with an HCA for every GPU and links of 100 GB/s, where a GPU sends 6 GB/s."""
    wide = star(5, hcas_per_host=gpus).model_copy(update={"link_bandwidth": 100e9})
    machine = cluster(wide, gpus=gpus, hcas=gpus, slots=gpus)
    host = machine.host.model_copy(update={"pcie_bandwidth": 100e9})
    on = resources(machine.model_copy(update={"host": host}), world_size)
    algorithm = ALGORITHMS[name]
    flows = algorithm.flows(on.host_of, 50e6)
    assert seconds(algorithm, on, 50e6) == pytest.approx(flows.seconds_uncontended, rel=1e-9)


# ------------------------------------------------------------------------------------- narrow links


def narrow(gpus: int, bandwidth: float, hosts: int = 4) -> Cluster:
    topology = star(hosts).model_copy(update={"link_bandwidth": bandwidth})
    return cluster(topology, gpus=gpus)


def tapered(world_size: int = 4) -> Resources:
    """Hosts 0 and 1 on one leaf, 2 and 3 on the other, one uplink each; 4 GB/s all."""
    topology = fat_tree(2, 2, taper=2).model_copy(update={"link_bandwidth": 4e9})
    return resources(cluster(topology), world_size)


def test_what_an_hca_carries_limits_the_sum_of_its_ranks():
    """4 hosts of 2 that share an HCA of 8 GB/s: both send at 4 GB/s where 6 are allowed.

    Halving: half and back in the host at 21 GB/s; then quarters and eighths of both ranks.
    """
    n, on = 84e6, resources(narrow(2, 8e9), 8)
    inside = 2 * (A + n / 2 / 21e9)
    assert seconds(halving_doubling(), on, n) == pytest.approx(
        inside + 4 * X + 2 * (n / 4 + n / 8) * 2 / 8e9, rel=1e-9
    )
    assert seconds(recursive_doubling(), on, n) == pytest.approx(
        A + n / 21e9 + 2 * (X + 2 * n / 8e9), rel=1e-9
    )
    assert seconds(torus(), on, n) == pytest.approx(
        inside + 6 * X + 2 * (3 / 4 * n) / 8e9, rel=1e-9
    )
    # one leader is alone on it
    assert seconds(hierarchical(), on, n) == pytest.approx(
        2 * (A + n / 21e9) + 6 * X + 3 / 2 * n / 6e9, rel=1e-9
    )


def test_a_slow_uplink_holds_up_the_steps_that_cross_it():
    """Ranks 0 and 1 exchange below a leaf, then 0 and 2, 1 and 3 meet on the uplinks, two flows on
    each."""
    on, n = tapered(4), 8e6
    assert on.places.leaf.tolist() == [0, 0, 1, 1]
    assert seconds(recursive_doubling(), on, n) == pytest.approx(X + 2e-3 + X + 2 * 2e-3, rel=1e-9)
    # half of it below the leaf, then a quarter of it at half the speed, and back
    assert seconds(halving_doubling(), on, n) == pytest.approx(
        4 * X + 2 * (1e-3 + 2 * 0.5e-3), rel=1e-9
    )


def test_a_rank_that_is_held_up_holds_up_its_partners_alone():
    """As above with 3 ranks: 0 folds into 1 below the leaf, 1 and 2 exchange over uplinks of their
    own, 1 tells 0: nothing is shared."""
    on, n = tapered(3), 8e6
    assert seconds(recursive_doubling(), on, n) == pytest.approx(3 * (X + 2e-3), rel=1e-9)


# ----------------------------------------------------------------------------------- order of hosts


@pytest.mark.parametrize(("order", "ranks"), [("sorted", [0, 1, 2, 3]), ("as_given", [0, 1, 2, 3])])
def test_compact_ranks_are_sorted_as_they_are_given(order, ranks):
    assert ranks_in_order(order, tapered(), np.random.default_rng(1)).tolist() == ranks


def test_hosts_of_a_leaf_go_together_and_their_ranks_stay_in_order():
    """Hosts of an ABCI rack stand on leaf switches 0 and 1, then 2 and 3, then 0 and 1 again."""
    on = resources(cluster(abci(), gpus=2, hcas=2, slots=2), 8)
    rng = np.random.default_rng(1)
    assert ranks_in_order("sorted", on, rng).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert ranks_in_order("as_given", on, rng).tolist() == list(range(8))
    shuffled: Any = Shuffled(3, 0, 2, 1)
    assert ranks_in_order("shuffled", on, shuffled).tolist() == [6, 7, 0, 1, 4, 5, 2, 3]


def test_an_unsorted_ring_crosses_the_uplinks_more_often():
    """Around 0, 1, 2, 3 one flow leaves each leaf; around 0, 2, 1, 3 two do, so they take twice as
    long. Each rank sends 2 (3/4) n: 12 MB at 4 GB/s are 3 ms."""
    on, n = tapered(), 8e6
    latency = 6 * X
    assert seconds(ring(), on, n) == pytest.approx(latency + 3e-3, rel=1e-9)
    unsorted = ring(order="shuffled")
    assert seconds(unsorted, on, n, Shuffled(0, 2, 1, 3)) == pytest.approx(latency + 6e-3, rel=1e-9)
    assert seconds(unsorted, on, n, Shuffled(2, 3, 0, 1)) == pytest.approx(latency + 3e-3, rel=1e-9)


def test_on_abci_the_order_of_128_hosts_counts():
    """Racks of 34 hosts that can send 850 GB/s and have uplinks of 300: sorted, each of two rings
    leaves a rack once; shuffled, with 34, 34, 34 and 26 hosts in the racks, three hops of four do,
    12.5 GB/s each and more than one on many an uplink."""
    on = resources(cluster(abci(), gpus=4, hcas=2, slots=2), 512)
    fast = ring(2, inter_host_bus_bandwidth="25 GB/s", intra_host_bus_bandwidth="25 GB/s")
    rack, crossing, transfer = on.places.rack, {}, {}
    for order in ("sorted", "shuffled"):
        algorithm = fast.model_copy(update={"order": order})
        flows = Allreduces(algorithm, on, np.random.default_rng(1)).flows(100e6)
        assert flows is not None
        crossing[order] = np.count_nonzero(rack[flows.src] != rack[flows.dst])
        took = seconds(algorithm, on, 100e6, np.random.default_rng(1))
        transfer[order] = took - flows.latency
    assert crossing["sorted"] == 2 * 4
    # the mean of 2 * 128 (1 - the chance that two hosts are of one rack), within four deviations
    within = (3 * 34 * 33 + 26 * 25) / (128 * 127)
    assert crossing["shuffled"] == pytest.approx(2 * 128 * (1 - within), abs=2 * 4 * 5)
    assert transfer["sorted"] == pytest.approx(2 * 511 / 512 * 100e6 / 25e9, rel=1e-9)
    assert transfer["shuffled"] > 2 * transfer["sorted"]
