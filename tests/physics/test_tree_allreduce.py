"""Allreduce over double binary trees, worked out by hand.

Trees: Sanders, Speck & Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35 (2009). Latency and the choice between ring and trees: NCCL's tuning
model, v2.7.8 (docs/model-allreduce.md).
"""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simshuffle.fabric.allreduce import Nccl, Tree
from simshuffle.fabric.allreduce.nccl import TREE_BANDWIDTH, double_tree
from simshuffle.job.plan.effort import expected_packets
from simshuffle.job.sim.simulate import simulate
from simshuffle.studies.collective import bench_of_scenario
from tests import examples
from tests.allreduces import flows_of, hosts
from tests.small import seconds, small

INTRA, INTER = 28e-6, 50e-6  # s a hop, NVLink and network, Simple protocol
GRADIENTS = 102228128
WIDE = {"intra_host_bus_bandwidth": "1 TB/s", "inter_host_bus_bandwidth": "1 TB/s"}


def tree_of(channels: int = 1, **changes: Any) -> dict[str, Any]:
    made = examples.tree(channels, **WIDE | changes)
    return {"workload__allreduce": made.model_dump(mode="json", exclude={"source"})}


def tree(channels: int = 1) -> Tree:
    return examples.tree(channels, **WIDE)


def nccl(**changes: Any) -> Nccl:
    even = dict.fromkeys(WIDE, "10 GB/s")
    return examples.nccl(**even | changes)


def between_hosts(world_size: int, gpus: int, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that leave and enter every host in an allreduce of 1 byte."""
    on = hosts(world_size, gpus)
    flows = flows_of(tree(channels), on, 1.0)
    src, dst = on[flows.src], on[flows.dst]
    far = src != dst
    count = int(on[-1]) + 1
    out, into = (np.bincount(ends[far], flows.nbytes[far], count) for ends in (src, dst))
    return out, into


def test_the_trees_of_fourteen_hosts():
    """Drawn by hand: 0 over 8; 8 over 4 and 12; 4 over 2 and 6; 12 over 10 and 13; odd hosts below.
    And its mirror image."""
    first, second = double_tree(14).tolist()
    assert first == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    assert second == [parent if parent < 0 else 13 - parent for parent in first[::-1]]


@pytest.mark.parametrize("count", [*range(1, 70), 540, 1024])
def test_each_tree_reaches_all_hosts_in_the_fewest_levels(count):
    for parent in double_tree(count):
        root = np.flatnonzero(parent < 0)
        assert len(root) == 1
        assert np.bincount(parent[parent >= 0], minlength=count).max(initial=0) <= 2
        at, levels = np.arange(count), 0
        while (at != root[0]).any():
            at, levels = np.where(at == root[0], at, parent[at]), levels + 1
        assert levels == int(np.ceil(np.log2(count)))


@pytest.mark.parametrize("count", [*range(2, 70), 540, 1024])
def test_no_host_has_children_in_both_trees(count):
    """Of an even number; of an odd one there is no such pair of trees by shifting, and host 0, the
    first root, has."""
    inner = [set(parent[parent >= 0].tolist()) for parent in double_tree(count)]
    assert inner[0] & inner[1] == ({0} if count % 2 else set())


@pytest.mark.parametrize(
    ("world_size", "gpus"), [(2, 1), (8, 1), (7, 1), (64, 4), (36, 4), (256, 8), (30, 4)]
)
def test_no_host_sends_or_receives_more_than_twice_the_bytes(world_size, gpus):
    """Half of the bytes to the parent and to each of two children in one tree, and to the parent in
    the other: 2 n each way.

    All hosts together: 2 (H-1) edges of n/2 up and n/2 down, so 2 (H-1) n, as on a ring of the
    hosts.
    """
    out, into = between_hosts(world_size, gpus)
    count = len(out)
    assert out.sum() == into.sum() == pytest.approx(2 * (count - 1))
    assert max(out.max(), into.max()) <= 2
    if count >= 4:
        assert out.max() == into.max() == 2
    assert np.array_equal(out, into)


@pytest.mark.parametrize(
    ("world_size", "gpus", "chain", "levels"),
    [
        (2, 1, 0, 1),
        (8, 1, 0, 3),
        (4, 4, 3, 0),
        (64, 4, 3, 4),
        (1024, 4, 3, 8),
        (2048, 8, 7, 8),
        (12, 4, 3, 1),
        (4320, 8, 7, 9),
    ],
)
def test_latency_counts_the_chain_and_the_levels_up_and_down(world_size, gpus, chain, levels):
    """2 ((M/H - 1) intra + log2(H) inter): 0.97 ms for 256 hosts with 4 GPUs; 540 hosts count as
    512, as in the tuning model."""
    flows = flows_of(tree(), hosts(world_size, gpus), 1e6)
    assert flows.latency == pytest.approx(2 * (chain * INTRA + levels * INTER), rel=1e-12)


def test_trees_without_contention_take_twice_the_bytes_over_the_bandwidth():
    """On a star of 10 GB/s links: 2 log2(H) levels, then 2 n/B, as the busiest host sends and
    receives 2 n."""
    for world_size, levels in ((8, 3), (16, 4)):
        timeline = simulate(small(world_size=world_size, **tree_of()))
        iterations = 800 // (10 * world_size)
        expected = iterations * (2 * levels * INTER + 2 * GRADIENTS / 10e9)
        for took in seconds(timeline, "allreduce").values():
            assert took == pytest.approx(expected, rel=1e-9)


def test_two_hosts_send_half_of_what_a_ring_sends():
    """Each is the root of one tree and the leaf of the other: n/2 down and n/2 up."""
    scenario = small(world_size=2, **tree_of())
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(
        2 * INTER + 1e9 / 10e9, rel=1e-9
    )


def test_channels_use_an_hca_each():
    two = dict.fromkeys((f"cluster__host__{of}" for of in ("hcas", "gpus", "pcie_slots")), 2)
    two["cluster__topology__hcas_per_host"] = 2
    scenario = small(world_size=16, **two, **tree_of(2))
    # 8 hosts with 2 GPUs: one hop inside, three levels; each HCA carries half of 2 n
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(
        2 * (INTRA + 3 * INTER) + 2 * 1e9 / 2 / 10e9, rel=1e-9
    )


def test_the_bus_bandwidth_caps_the_trees():
    """Bus bandwidth is 2 (M-1)/M n/t for every algorithm, as nccl-tests prints it, so that a
    measured one means the same here."""
    scenario = small(world_size=8, **tree_of(inter_host_bus_bandwidth="2 GB/s"))
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(
        6 * INTER + 2 * 7 / 8 * 1e9 / 2e9, rel=1e-9
    )


def test_nvlink_carries_twice_the_bytes_inside_a_host():
    """A GPU in the middle of the chain passes n up and n down over its own NVLink, here 50 GB/s."""
    gpus = {
        "cluster__host__gpus": 4,
        "cluster__host__pcie_slots": 1,
        "cluster__host__nvlink_bandwidth": "50 GB/s",
    }
    scenario = small(world_size=4, **gpus, **tree_of())
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(
        6 * INTRA + 2 * 1e9 / 50e9, rel=1e-9
    )


def test_packets_of_trees_are_counted():
    """8 hosts: 2 trees of 7 edges, half of the bytes up and down each; 10 iterations."""
    packets = expected_packets(small(**tree_of()), 4096)["gradients"]
    assert packets == 10 * 28 * np.ceil(GRADIENTS / 2 / 4096)


def test_nccl_takes_rings_inside_a_host_and_trees_at_scale():
    """Latencies by hand, in us: 4 GPUs 20 against 168; 128 hosts 2438 against 700; 1024 hosts of 4:
    40532 against 1168."""
    for gpus, world_size, expected in (
        (4, 4, 6 * 3.4e-6),
        (1, 128, 14 * 50e-6),
        (4, 4096, (6 * 28 + 20 * 50) * 1e-6),
    ):
        flows = flows_of(nccl(), hosts(world_size, gpus), 1e6)
        assert flows.latency == pytest.approx(expected, rel=1e-12)


def test_nccl_takes_rings_for_bytes_enough():
    """128 hosts: trees save 1.9 x 2438.4 - 700 us of latency and lose (1/0.9 - 1) of 2 (M-1)/M n/B,
    so rings win above 178 MB."""
    even = (1.9 * 2438.4e-6 - 700e-6) * 10e9 / (1 / TREE_BANDWIDTH - 1) / (2 * 127 / 128)
    assert even == pytest.approx(178.4e6, rel=1e-3)
    small_one, large_one = (nccl().flows(hosts(128, 1), factor * even) for factor in (0.99, 1.01))
    assert small_one is not None and large_one is not None
    assert small_one.latency == pytest.approx(700e-6)
    assert large_one.latency == pytest.approx(1.9 * 2438.4e-6)
    assert small_one.seconds_uncontended == pytest.approx(large_one.seconds_uncontended, rel=0.02)


def test_nccl_runs_what_it_chose():
    given = {**nccl().model_dump(exclude={"source"}), **WIDE, "ring_inter_host_latency": "1 ms"}
    scenario = small(world_size=16, workload__allreduce=given)
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(
        8 * INTER + 2 * 1e9 / 10e9, rel=1e-9
    )


@pytest.mark.parametrize(
    ("world_size", "gpus", "nbytes", "expected"),
    [
        (16, 8, 65532, 114.4e-6),
        (16, 8, 65536, 1.9 * 114.4e-6),
        (16, 8, 1e9, 1.9 * 114.4e-6),
        (8, 8, 1e9, 14 * 3.4e-6),
    ],
)
def test_rings_over_several_hosts_have_a_plateau(world_size, gpus, nbytes, expected):
    """16 ranks on two hosts: 2 x 9.6 + 28 x 3.4 = 114.4 us, and 1.9 times that from 16/16 x 65536 B
    on; never inside a host."""
    flows = flows_of(nccl(), hosts(world_size, gpus), nbytes)
    assert flows.latency == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        # LL, trees: 4.4 + 2 (7 x 0.52 x 1.8 + 5.0) us; bus bandwidth x 0.9 / 3.8
        (8.0, 27.504e-6 + 15 / 8 * 8 / (100e9 * 0.9 / 3.8)),
        # LL128, trees: 4.4 + 2 (7 x 1.2 + 8.5) us; x 0.9 x 0.915
        (1e6, 38.2e-6 + 15 / 8 * 1e6 / (100e9 * 0.9 * 0.915)),
        # Simple, rings: 1.9 (2 x 9.6 + 28 x 3.4) us, as without protocols
        (1e9, 1.9 * 114.4e-6 + 15 / 8 * 1e9 / 100e9),
    ],
)
def test_nccl_takes_the_protocol_that_is_fastest(nbytes, expected):
    """16 ranks on two hosts at 100 GB/s. At 8 B rings with LL need 3.6 + 28 x 0.47 x 1.8 + 2 x 2.7
    = 32.7 us; at 1 MB rings with LL128 10 + 28 x 1.9 + 2 x 4 us + 20 us, trees with LL 107 us."""
    wide = {"inter_host_bus_bandwidth": "100 GB/s"}
    flows = flows_of(nccl(protocols="nccl_2.7", **wide), hosts(16, 8), nbytes)
    assert flows.seconds_uncontended == pytest.approx(expected, rel=1e-9)


def test_inside_a_host_ll_has_its_own_latency():
    """4 GPUs of one host: rings with LL 3.6 + 6 x 0.47 us; trees 4.4 + 6 x 0.52 us."""
    flows = flows_of(nccl(protocols="nccl_2.7"), hosts(4, 4), 8.0)
    assert flows.latency == pytest.approx(3.6e-6 + 6 * 0.47e-6, rel=1e-12)


def test_protocols_of_ones_own():
    """A protocol without latencies and half of the bandwidth; and the base latency of the first."""
    none = dict.fromkeys(
        (f"{kind}_{side}_host_latency" for kind in ("ring", "tree") for side in ("intra", "inter")),
        "0 s",
    )
    own = {"mine": {**none, "ring_bandwidth": 0.5, "tree_bandwidth": 0.5}}
    flows = flows_of(nccl(protocols=own), hosts(2, 1), 1e3)
    assert flows.seconds_uncontended == pytest.approx(1e3 / 5e9, rel=1e-12)
    flows = flows_of(nccl(ring_base_latency="8.4 us"), hosts(2, 1), 8.0)
    assert flows.latency == pytest.approx(8.4e-6 + 2 * 9.6e-6, rel=1e-12)


def test_rings_alone_are_those_of_nccl_before_trees():
    """1024 ranks on 256 hosts of 4, 102.2 MB: 1.9 (510 x 9.6 + 1536 x 3.4) us are 19.23 ms, and
    2 x 1023/1024 x 102.2 MB / 10 GB/s are 20.42 ms. Trees have 2 (3 x 28 + 8 x 50) us = 0.97 ms."""
    place, nbytes = hosts(1024, 4), 102.2e6
    rings = flows_of(nccl(algorithms=["ring"]), place, nbytes)
    assert rings.latency == pytest.approx(19.225e-3, rel=1e-4)
    assert rings.seconds_uncontended == pytest.approx(19.225e-3 + 20.420e-3, rel=1e-4)
    for trees in (nccl(algorithms=["tree"]), nccl()):
        flows = flows_of(trees, place, nbytes)
        assert flows.latency == pytest.approx(0.968e-3, rel=1e-9)
    small_one = flows_of(nccl(algorithms=["tree"]), hosts(4, 4), 1e6)
    assert small_one.latency == pytest.approx(6 * 28e-6)


def test_protocols_are_read_back_as_they_were():
    named = nccl(protocols="nccl_2.7")
    assert set(named.protocols or ()) == {"ll", "ll128"}
    assert Nccl.model_validate(named.model_dump(mode="json")) == named


@pytest.mark.parametrize(
    "protocols",
    ["nccl_2", {}, {"mine": {"ring_bandwidth": 0.5}}, {"mine": {"ring_bandwidth": 0.0}}],
)
def test_impossible_protocols_are_refused(protocols):
    with pytest.raises(ValidationError):
        nccl(protocols=protocols)
