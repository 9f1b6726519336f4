"""Allreduces that send other bytes than ranks alone must: switches sum (sharp, nvls), or few
gradients are sent (sparse). Carried out step by step, and worked out by hand."""

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.fabric.allreduce.dependent import count_contributions
from simshuffle.fabric.allreduce.steps import Steps
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.plan.resources import Resources
from simshuffle.studies.collective import bench_of_scenario
from tests.allreduces import carried_out, flows_of, hosts, steps_of
from tests.examples import (
    ALPHA_INTER,
    ALPHA_INTRA,
    PACE,
    cluster,
    nvls,
    recursive_doubling,
    sharp,
    sparse,
)
from tests.small import small
from tests.strategies import abci, fat_tree

A, X = ALPHA_INTRA, ALPHA_INTER
B_INTRA, B_INTER = 21e9, 6e9
N = 84e6
SIZES = [2, 3, 5, 8, 12, 64]


# ------------------------------------------------------------------------------------------- sharp


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize("gpus", [1, 3, 4])
@pytest.mark.parametrize("world_size", SIZES)
def test_switches_sum_every_contribution_and_a_host_sends_and_receives_each_byte_once(
    world_size, gpus, rails
):
    """As its steps with the switches do; ranks inside pass on what those steps do."""
    on = hosts(world_size, gpus)
    flows, steps = flows_of(sharp(rails), on, N), steps_of(sharp(rails), on)
    has = carried_out(steps, world_size)
    assert (has == 1).all()  # the switches too
    assert len(has) == world_size + (world_size > gpus)
    count = int(on[-1]) + 1
    far = on[flows.src] != on[flows.dst]
    for ends in (flows.src, flows.dst):
        sums = np.bincount(on[ends[far]], flows.nbytes[far], count)
        assert sums == pytest.approx(np.full(count, N if count > 1 else 0.0))
    with_switches = np.append(on, count)
    stays = with_switches[steps.src] == with_switches[steps.dst]
    inside = np.bincount(steps.src[stays], steps.share[stays] * N, world_size)
    assert np.bincount(flows.src[~far], flows.nbytes[~far], world_size) == pytest.approx(inside)
    assert len(flows.edge_from) == 0


@pytest.mark.parametrize(
    ("machine", "world_size"),
    [
        (cluster(fat_tree(2, 4)), 11),
        (cluster(fat_tree(2, 4)), 4),
        (cluster(fat_tree(3, 2)), 7),
        (cluster(abci(racks=2, hosts_per_rack=6), gpus=4), 41),
    ],
    ids=["11 hosts", "one leaf switch", "three levels", "abci"],
)
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_every_link_is_loaded_as_by_a_reduction_over_the_tree_of_switches(
    machine, world_size, order
):
    """Up from the hosts below a group of switches, and down to them, go n bytes, if there are hosts
    elsewhere: one sum and one result. In an order that scatters hosts it is more."""
    resources = Resources(machine, world_size, np.random.default_rng(0))
    allreduce = sharp(machine.host.hcas, order=order)
    flows = Allreduces(allreduce, resources, np.random.default_rng(3)).flows(N)
    assert flows is not None
    leaf = resources.places.leaf
    rack = resources.places.rack
    loads = []
    for groups in (leaf, rack):
        src, dst = groups[flows.src], groups[flows.dst]
        for group in np.unique(groups):
            leaves = flows.nbytes[(src == group) & (dst != group)].sum()
            enters = flows.nbytes[(src != group) & (dst == group)].sum()
            loads += [leaves, enters] if len(np.unique(groups)) > 1 else []
            assert leaves == pytest.approx(enters)
    once = [load == pytest.approx(N) for load in loads]
    assert all(once) if order == "sorted" or not loads else not all(once)


@pytest.mark.parametrize(
    ("algorithm", "world_size", "gpus", "seconds"),
    [
        # 8 hosts below one switch: up and down; every host sends n
        (sharp(), 8, 1, 2 * X + N / B_INTER),
        (sharp(radix=2), 8, 1, 6 * X + N / B_INTER),
        (sharp(), 19, 1, 4 * X + N / B_INTER),
        # a chain of four inside, along which a rank passes n up and n down
        (sharp(), 16, 4, 6 * A + 2 * X + max(N / B_INTER, 2 * N / B_INTRA)),
        (sharp(), 4, 4, 6 * A + 2 * N / B_INTRA),
    ],
)
def test_latency_and_bandwidth_of_switches_by_hand(algorithm, world_size, gpus, seconds):
    flows = flows_of(algorithm, hosts(world_size, gpus), N)
    assert flows.seconds_uncontended == pytest.approx(seconds, rel=1e-9)


# -------------------------------------------------------------------------------------------- nvls


@pytest.mark.parametrize("size", [2, 3, 4, 7, 72])
def test_every_gpu_of_a_domain_sends_its_buffer_and_its_part_of_the_sum(size):
    """Carried out: the switch adds all buffers and gives each GPU its part; each GPU gives the part
    back, and the switch copies it to all. So a GPU sends and receives n + n/G."""
    vectors = [np.random.default_rng(gpu).integers(0, 100, 5 * size) for gpu in range(size)]
    sent = np.array([len(vector) for vector in vectors], float)
    in_switch = sum(vectors)
    parts = np.split(in_switch, size)
    sent += [len(part) for part in parts]
    copied = np.concatenate(parts)
    assert np.array_equal(copied, sum(vectors))
    flows = flows_of(nvls(), hosts(size, size), 8.0 * 5 * size)
    for ends in (flows.src, flows.dst):
        assert np.bincount(ends, flows.nbytes, size) == pytest.approx(8.0 * sent)
    assert (flows.rail == 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 8, 20])
def test_a_domain_sends_over_each_hca_what_trees_send(count):
    """Half of the bytes over each of two trees: all together a buffer up and one down for every
    domain but one, and none more than twice its share of a buffer. Two domains send n/2 up in one
    tree and n/2 down in the other."""
    on = hosts(4 * count, 4)
    flows = flows_of(nvls(2), on, N)
    far = on[flows.src] != on[flows.dst]
    for rail in range(2):
        chosen = far & (flows.rail == rail)
        sent = np.bincount(on[flows.src[chosen]], flows.nbytes[chosen], count)
        assert sent.sum() == pytest.approx(2 * (count - 1) * N / 2)
        assert sent.max() <= 2 * N / 2
        if count == 2:
            assert sent == pytest.approx([N / 2, N / 2])


@pytest.mark.parametrize(
    ("world_size", "gpus", "seconds"),
    [
        (4, 4, A + 2 * 3 / 4 * N / B_INTRA),
        (8, 4, A + 2 * X + 2 * 7 / 8 * N / B_INTER),
        # 20 domains: four levels, rounded down as NCCL's tuning model does
        (80, 4, A + 8 * X + 2 * 79 / 80 * N / B_INTER),
        (8, 1, 6 * X + 2 * 7 / 8 * N / B_INTER),
    ],
)
def test_latency_and_bandwidth_of_nvlink_switches_by_hand(world_size, gpus, seconds):
    flows = flows_of(nvls(), hosts(world_size, gpus), N)
    assert flows.seconds_uncontended == pytest.approx(seconds, rel=1e-9)


def test_levels_grow_with_the_hosts():
    assert [sharp().levels(count) for count in (1, 2, 18, 19, 324, 325)] == [0, 1, 1, 2, 2, 3]


def test_switches_halve_the_bytes_of_a_ring_on_the_links():
    """16 hosts on a star of 10 GB/s: n/B after up and down."""
    wide = {"intra_host_bus_bandwidth": "1 TB/s", "inter_host_bus_bandwidth": "1 TB/s"}
    given = {"kind": "sharp", "rails": 1, **PACE, **wide}
    scenario = small(world_size=16, workload__allreduce=given)
    assert bench_of_scenario(scenario).seconds(1e9) == pytest.approx(2 * X + 1e9 / 10e9, rel=1e-9)


# ------------------------------------------------------------------------------------------ sparse


@pytest.mark.parametrize("world_size", SIZES)
def test_the_sum_of_so_many_ranks_is_sent(world_size):
    """As many contributions as the steps carried out bring together."""
    steps = steps_of(sparse(), hosts(world_size, 4))
    assert (carried_out(steps, world_size) == 1).all()
    sent = count_contributions(steps, world_size)
    for k in range(len(steps)):
        before = steps.step < steps.step[k]
        so_far = Steps(
            1,
            *(
                column[before]
                for column in (steps.step, steps.src, steps.dst, steps.first, steps.end, steps.adds)
            ),
        )
        held = carried_out(so_far, world_size)[steps.src[k]].sum() if before.any() else 1
        assert sent[k] == held


def test_the_union_grows_as_that_of_random_positions():
    """16 ranks choose 2 % of 200,000 positions each, and send them by recursive doubling."""
    rng, positions = np.random.default_rng(5), 200_000
    steps = steps_of(sparse(), hosts(16, 1))
    chosen = rng.random((16, positions)) < 0.02
    share = np.zeros(len(steps))
    for step in range(steps.count):
        before = chosen.copy()
        for k in np.flatnonzero(steps.step == step):
            share[k] = 2 * before[steps.src[k]].mean()
            chosen[steps.dst[k]] |= before[steps.src[k]]
    law = sparse(density=0.02).share(count_contributions(steps, 16))
    assert law == pytest.approx(share, rel=0.05)
    assert law.max() == pytest.approx(2 * (1 - 0.98**8))


def test_what_would_be_larger_is_sent_dense():
    """A quarter of the values, each with an index: 0.5, then 2 (1 - 0.75^2) = 0.875, then all."""
    share = sparse(density=0.25).share(np.array([1, 2, 3, 4]))
    assert share == pytest.approx([0.5, 0.875, 1.0, 1.0], rel=1e-12)
    small_index = sparse(density=0.25, index_size="2 B").share(np.array([1, 4]))
    assert small_index == pytest.approx([0.375, 1.0], rel=1e-12)


def test_selection_and_doubling_take_their_time():
    """8 hosts: n / 20 GB/s, then three steps of 0.5, 0.875 and 1 n."""
    flows = flows_of(sparse(density=0.25), hosts(8, 1), N)
    seconds = N / 20e9 + 3 * X + (0.5 + 0.875 + 1.0) * N / B_INTER
    assert flows.seconds_uncontended == pytest.approx(seconds, rel=1e-9)
    assert flows.latency == pytest.approx(N / 20e9)


def test_a_thousandth_is_the_default():
    """64 ranks on 16 hosts: 2 steps inside and 4 between; 2 (1 - 0.999^(2^s)) of n each."""
    flows = flows_of(sparse(), hosts(64, 4), N)
    share = [2 * (1 - 0.999 ** (1 << step)) for step in range(6)]
    seconds = N / 20e9 + 2 * A + sum(share[:2]) * N / B_INTRA + 4 * X + sum(share[2:]) * N / B_INTER
    assert flows.seconds_uncontended == pytest.approx(seconds, rel=1e-9)


def test_who_folds_adds_to_what_is_sent():
    """Three ranks: 0 to 1; 1 with two contributions to 2, 2 with one to 1; 1 with three to 0."""
    flows = flows_of(sparse(density=0.01), hosts(3, 1), 1e6)
    ends = list(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))
    assert ends == [(0, 1), (1, 2), (2, 1), (1, 0)]
    expected = [2e6 * (1 - 0.99**count) for count in (1, 2, 1, 3)]
    assert flows.nbytes == pytest.approx(expected)


def test_a_density_of_1_is_recursive_doubling_after_selection():
    dense, all_sent = flows_of(recursive_doubling(), hosts(12, 4), N), sparse(density=1)
    flows = flows_of(all_sent, hosts(12, 4), N)
    assert flows.nbytes.tolist() == dense.nbytes.tolist()
    assert flows.seconds_uncontended == pytest.approx(dense.seconds_uncontended + N / 20e9)


@pytest.mark.parametrize("density", [0, -0.1, 1.5, 2])
def test_a_density_that_is_no_share_is_told_with_its_place(density):
    given = {"kind": "sparse", "rails": 1, "selection_bandwidth": "20 GB/s", **PACE}
    with pytest.raises(ScenarioError) as error:
        small(workload__allreduce={**given, "density": density})
    (problem,) = error.value.problems
    assert problem.path == "workload.allreduce.density"
    assert problem.rule.startswith("must be above 0 and at most 1")
    assert problem.value == f"{density:g}"
    assert "0.001" in problem.remedy


def test_what_takes_the_place_of_a_buffer_is_what_is_sent_on():
    """Rank 1 adds one gradient and has two, which take the place of rank 2's own; rank 3 adds those
    to its own, and rank 0 is sent three."""
    sends = [(0, 1, True), (1, 2, False), (2, 3, True), (3, 0, False)]
    steps = Steps.join(
        1, [(step, [src], [dst], 0, 1, adds) for step, (src, dst, adds) in enumerate(sends)]
    )
    assert count_contributions(steps, 4).tolist() == [1, 2, 2, 3]


def test_the_longest_chain_of_unequal_hosts_counts():
    """Hosts of 1, 3 and 2 ranks below one switch: two hops to an HCA and two back, one level up and
    one down."""
    flows = sharp(1).flows(np.array([0, 1, 1, 1, 2, 2], np.int32), N)
    assert flows is not None
    assert flows.latency == pytest.approx(2 * (2 * A + X))
