"""Every allreduce algorithm moves the bytes that its steps move, over the hosts that its ranks are
on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.fabric.allreduce.base import AllreduceFlows, Ddp, Horovod
from simshuffle.fabric.allreduce.dependent import Sharp, Sparse
from simshuffle.fabric.allreduce.layout import PACE_FIELDS
from simshuffle.fabric.allreduce.nccl import Nccl, Ring, Tree, double_tree
from simshuffle.fabric.allreduce.nvls import Nvls
from simshuffle.fabric.allreduce.steps import Dependent
from tests.allreduces import flows_of, hosts
from tests.examples import ALGORITHMS, ALPHA_INTER, ALPHA_INTRA, ring, sharp, tree
from tests.strategies import world_sizes


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request: pytest.FixtureRequest) -> Any:
    return ALGORITHMS[request.param]


def ring_allreduce(vectors: list[np.ndarray]) -> tuple[list[np.ndarray], list[int], int]:
    """Reduce-scatter and all-gather around a ring, step by step: the results, elements that each
    rank sent, and steps.

    Rank r passes a chunk to rank r + 1 in every step: the one it has just added to, then the one it
    has just received whole.
    """
    world_size = len(vectors)
    parts = [list(np.array_split(vector.copy(), world_size)) for vector in vectors]
    sent = [0] * world_size
    steps = 0
    for gather in (False, True):
        for step in range(world_size - 1):
            chunks = [(rank + gather - step) % world_size for rank in range(world_size)]
            passed = [parts[rank][chunk].copy() for rank, chunk in enumerate(chunks)]
            for rank, data in enumerate(passed):
                successor = (rank + 1) % world_size
                here = parts[successor][chunks[rank]]
                parts[successor][chunks[rank]] = data if gather else here + data
                sent[rank] += len(data)
            steps += 1
    return [np.concatenate(part) for part in parts], sent, steps


@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 16])
def test_bytes_and_latency_are_those_of_the_steps(world_size):
    """The ring carried out: all ranks end with the sum, each has sent 2 (M-1)/M n, in 2 (M-1) steps
    of n/M."""
    count = 5 * world_size
    vectors = [np.random.default_rng(rank).integers(0, 100, count) for rank in range(world_size)]
    results, sent, steps = ring_allreduce(vectors)
    assert all(np.array_equal(result, sum(vectors)) for result in results)
    nbytes = 4.0 * count
    flows = flows_of(ring(), hosts(world_size, 1), nbytes)
    assert flows.nbytes.tolist() == pytest.approx([4.0 * elements for elements in sent], rel=1e-12)
    assert flows.latency == pytest.approx(steps * ALPHA_INTER, rel=1e-12)


def tree_allreduce(
    parent: list[int], vectors: list[np.ndarray]
) -> tuple[list[np.ndarray], list[int], int]:
    """Reduce to the root of a tree, then broadcast from it: the results, elements that each sent,
    and steps, level by level."""
    depth = {parent.index(-1): 0}
    while len(depth) < len(parent):
        depth |= {
            child: depth[up] + 1
            for child, up in enumerate(parent)
            if child not in depth and up in depth
        }
    values, sent = [vector.copy() for vector in vectors], [0] * len(parent)
    for level in range(max(depth.values()), 0, -1):
        for child in (c for c, d in depth.items() if d == level):
            values[parent[child]] += values[child]
            sent[child] += len(values[child])
    for level in range(1, max(depth.values()) + 1):
        for child in (c for c, d in depth.items() if d == level):
            values[child] = values[parent[child]].copy()
            sent[parent[child]] += len(values[child])
    return values, sent, 2 * max(depth.values())


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 13, 16])
def test_trees_carried_out_give_every_host_the_sum(count):
    """Half of the vector over each tree: all hosts end with the sum, and each has sent what its
    flows say.

    The steps, all in turn, are the levels up and down that the latency counts, or two more if the
    number of hosts is no power of two: NCCL's tuning model rounds log2(H) down.
    """
    half = 6
    vectors = [np.random.default_rng(host).integers(0, 100, 2 * half) for host in range(count)]
    halves = [
        tree_allreduce(parent.tolist(), [v[k * half : (k + 1) * half] for v in vectors])
        for k, parent in enumerate(double_tree(count))
    ]
    results = [
        np.concatenate(parts) for parts in zip(*(values for values, _, _ in halves), strict=True)
    ]
    assert all(np.array_equal(result, sum(vectors)) for result in results)
    flows = flows_of(tree(), hosts(count, 1), 4.0 * 2 * half)
    sent = np.sum([sent for _, sent, _ in halves], axis=0)
    assert np.bincount(flows.src, flows.nbytes, count) == pytest.approx(4.0 * sent, rel=1e-12)
    steps = {steps for _, _, steps in halves}
    assert steps == {2 * (count - 1).bit_length()}
    assert flows.latency == pytest.approx(
        50e-6 * (max(steps) - (0 if count.bit_count() == 1 else 2)), rel=1e-12
    )


def bytes_with_switches(world_size: int, gpus: int) -> int:
    """Buffers that ranks send where switches sum in a host: G + 1 in a host with several of them, n
    of each rank and n/G back from each; and one each way of every host but one, in the trees."""
    sizes = [min(gpus, world_size - first) for first in range(0, world_size, gpus)]
    return sum(size + 1 for size in sizes if size > 1) + 2 * (len(sizes) - 1)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(list(ALGORITHMS)), world_sizes(64), st.integers(1, 8), st.floats(1, 1e10))
def test_every_gradient_reaches_every_rank_with_the_fewest_bytes(name, world_size, gpus, nbytes):
    """All ranks together send 2 (M-1) n bytes, so some rank at least 2 (M-1)/M n, and along the
    flows everybody reaches everybody. Recursive doubling sends more, and what switches sum or what
    is left out is less."""
    flows = ALGORITHMS[name].flows(hosts(world_size, gpus), nbytes)
    if world_size == 1:
        assert flows is None
        return
    assert (
        flows.src.shape
        == flows.dst.shape
        == flows.nbytes.shape
        == flows.rail.shape
        == flows.cap.shape
    )
    assert (flows.src != flows.dst).all()
    fewest, kind = 2 * (world_size - 1) * nbytes, ALGORITHMS[name].kind
    if kind == "recursive_doubling":
        assert flows.nbytes.sum() >= fewest * (1 - 1e-9)
    elif kind == "nvls":
        assert flows.nbytes.sum() == pytest.approx(bytes_with_switches(world_size, gpus) * nbytes)
    elif kind == "sharp":
        assert flows.nbytes.sum() <= fewest * (1 + 1e-9)
    elif kind != "sparse":
        assert flows.nbytes.sum() == pytest.approx(fewest, rel=1e-9)
    for ends in (flows.src, flows.dst) if kind not in {"sharp", "sparse", "nvls"} else ():
        assert np.bincount(ends, flows.nbytes, world_size).max() >= 2 * (
            world_size - 1
        ) / world_size * nbytes * (1 - 1e-9)
    has = np.eye(world_size, dtype=bool)  # of which ranks a rank has the gradients
    for _ in range(world_size):
        before = has.copy()
        np.logical_or.at(has, flows.dst, before[flows.src])
        if (has == before).all():
            break
    assert has.all()


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([1, 2, 4]), world_sizes(64), st.integers(1, 8), st.floats(1, 1e10))
def test_every_rank_of_a_ring_sends_and_receives_its_share(rings, world_size, gpus, nbytes):
    flows = ring(rings).flows(hosts(world_size, gpus), nbytes)
    if flows is None:
        return
    share = 2 * (world_size - 1) / world_size * nbytes
    for ends in (flows.src, flows.dst):
        assert np.bincount(ends, flows.nbytes, world_size) == pytest.approx(
            np.full(world_size, share), rel=1e-9
        )


@pytest.mark.parametrize("world_size", [1, 2, 5, 8, 24])
@pytest.mark.parametrize("gpus", [1, 3, 8])
def test_only_rails_that_exist_are_used(algorithm, world_size, gpus):
    flows = algorithm.flows(hosts(world_size, gpus), 1e6)
    if flows is not None:
        assert set(flows.rail.tolist()) <= set(
            range(getattr(algorithm, algorithm.one_for_each_hca))
        )


def test_one_rank_does_nothing(algorithm):
    assert algorithm.flows(hosts(1, 1), 1e9) is None


def test_bytes_are_linear_and_latency_does_not_depend_on_them(algorithm):
    small, large = (algorithm.flows(hosts(16, 4), nbytes) for nbytes in (1e6, 3e6))
    assert large.nbytes == pytest.approx(3 * small.nbytes)
    if algorithm.kind != "sparse":  # whose selection of gradients comes first
        assert large.latency == small.latency


@pytest.mark.parametrize(("rings", "world_size"), [(1, 2), (1, 7), (2, 8), (4, 5)])
def test_each_ring_is_one_cycle_through_all_ranks(rings, world_size):
    flows = flows_of(ring(rings), hosts(world_size, 1), 1e6)
    assert sorted(set(flows.rail.tolist())) == list(range(rings))
    for rail in range(rings):
        of_ring = flows.rail == rail
        successor = dict(zip(flows.src[of_ring].tolist(), flows.dst[of_ring].tolist(), strict=True))
        seen = [0]
        while (following := successor[seen[-1]]) != 0:
            seen.append(following)
        assert sorted(seen) == list(range(world_size))
        assert flows.nbytes[of_ring].sum() == pytest.approx(2 * (world_size - 1) * 1e6 / rings)


@pytest.mark.parametrize(("world_size", "gpus"), [(8, 4), (10, 4), (4, 4), (12, 3)])
def test_ring_enters_and_leaves_each_host_once(world_size, gpus):
    on = hosts(world_size, gpus)
    flows = flows_of(ring(), on, 1e6)
    count = len(set(on.tolist()))
    assert np.count_nonzero(on[flows.src] != on[flows.dst]) == (count if count > 1 else 0)


@pytest.mark.parametrize(
    ("world_size", "gpus", "inter", "intra"),
    [(8, 1, 14, 0), (2, 1, 2, 0), (4, 4, 0, 6), (8, 4, 2, 12), (64, 4, 30, 96), (10, 4, 4, 14)],
)
def test_latency_counts_steps_between_and_inside_hosts(world_size, gpus, inter, intra):
    """2 (M-1) steps, of which 2 (hosts - 1) between hosts, as in NCCL's tuning model."""
    flows = flows_of(ring(), hosts(world_size, gpus), 1e6)
    assert inter + intra == 2 * (world_size - 1)
    assert flows.latency == pytest.approx(inter * ALPHA_INTER + intra * ALPHA_INTRA, rel=1e-12)


@pytest.mark.parametrize("rings", [1, 2, 4])
@pytest.mark.parametrize(
    ("world_size", "gpus", "bus"), [(4, 4, 21e9), (3, 4, 21e9), (8, 4, 6e9), (2, 1, 6e9)]
)
def test_rings_share_the_bus_bandwidth(rings, world_size, gpus, bus):
    """With nothing else in the way all rings together take 2 (M-1)/M n / bus, which is how bus
    bandwidth is defined."""
    flows = flows_of(ring(rings), hosts(world_size, gpus), 1e9)
    assert set(flows.cap.tolist()) == {bus / rings}
    assert flows.nbytes / flows.cap == pytest.approx(
        np.full(len(flows.src), 2 * (world_size - 1) / world_size * 1e9 / bus)
    )


def test_scattered_hosts_count_as_well():
    flows = flows_of(ring(), np.array([7, 7, 3, 3, 9], np.int32), 1e6)
    assert flows.latency == pytest.approx(4 * ALPHA_INTER + 4 * ALPHA_INTRA)


def test_trees_follow_the_hosts_whatever_their_numbers():
    """Hosts 3, 7 and 9 with ranks 2 and 3, 0 and 1, 4: their first ranks 2, 0 and 4 stand in the
    trees."""
    flows = flows_of(tree(), np.array([7, 7, 3, 3, 9], np.int32), 1e6)
    up = set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))
    inside = {(1, 0), (3, 2)}
    # 7 below 9 below 3, and 3 below 7, 9 below 3
    first, second = {(0, 4), (4, 2)}, {(2, 0), (4, 2)}
    edges = inside | first | second
    assert up == edges | {(b, a) for a, b in edges}


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(
    ("world_size", "gpus", "bus"),
    [(4, 4, 21e9), (3, 4, 21e9), (8, 4, 6e9), (2, 1, 6e9), (28, 4, 6e9)],
)
def test_trees_share_the_bus_bandwidth(channels, world_size, gpus, bus):
    """As for rings: with nothing else in the way every flow ends after 2 (M-1)/M n / bus."""
    flows = flows_of(tree(channels), hosts(world_size, gpus), 1e9)
    assert flows.nbytes / flows.cap == pytest.approx(
        np.full(len(flows.src), 2 * (world_size - 1) / world_size * 1e9 / bus)
    )
    assert flows.seconds_uncontended == pytest.approx(
        flows.latency + 2 * (world_size - 1) / world_size * 1e9 / bus
    )


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (ring, {"rings": 0}),
        (ring, {"intra_host_latency": 1e-6}),
        (ring, {"inter_host_bus_bandwidth": "0 B/s"}),
        (ring, {"kind": "tree"}),
        (tree, {"channels": 0}),
        (tree, {"inter_host_latency": 1e-6}),
        (tree, {"rings": 1}),
        (tree, {"kind": "ring"}),
        (sharp, {"radix": 1}),
        (sharp, {"rails": 0}),
        (sharp, {"density": 0.1}),
    ],
)
def test_what_cannot_be_is_refused(make, change):
    with pytest.raises(ValidationError):
        make(**change)


def test_a_curve_of_bus_bandwidth_is_read_at_the_bytes_of_the_allreduce():
    curve = {"points": {"1 MB": "2 GB/s", "100 MB": "8 GB/s"}}
    measured = ring(2, inter_host_bus_bandwidth=curve)
    for nbytes, bus in ((1e6, 2e9), (1e7, 4e9), (1e8, 8e9), (1e9, 8e9)):
        flows = flows_of(measured, np.arange(8, dtype=np.int32), nbytes)
        assert flows.cap.reshape(2, -1).sum(axis=0) == pytest.approx(np.full(8, bus))


# ------------------------------------------------------------------------------- flows and overlaps


def four_flows() -> AllreduceFlows:
    """Flow 2 waits for flow 0, and flow 3 for 1 and 2; edges come in no order."""
    return AllreduceFlows(
        src=np.array([0, 1, 2, 0], np.int32),
        dst=np.array([1, 2, 0, 2], np.int32),
        nbytes=np.array([10.0, 20.0, 30.0, 7.0]),
        rail=np.zeros(4, np.int32),
        cap=np.array([10.0, 10.0, 5.0, 7.0]),
        latency=0.25,
        delay=np.array([1.0, 2.0, 3.0, 0.5]),
        step=np.array([0, 0, 1, 2], np.int32),
        edge_from=np.array([1, 2, 0], np.int32),
        edge_to=np.array([3, 3, 2], np.int32),
    )


def test_an_allreduce_lasts_as_long_as_its_longest_chain():
    """Flows take 1 + 1, 2 + 2, 3 + 6 and 0.5 + 1 s; the chain 0, 2, 3 takes 12.5."""
    flows = four_flows()
    assert flows.seconds_uncontended == pytest.approx(0.25 + 2 + 9 + 1.5)
    # with 40 bytes/s for flow 1 alone its 2.5 s do not matter; with 1 byte/s its 22 s do
    rates = np.array([10.0, 1.0, 5.0, 7.0])
    assert flows.seconds(rates) == pytest.approx(0.25 + 22 + 1.5)
    none = np.zeros(0, np.int32)
    at_once = replace(flows, edge_from=none, edge_to=none)
    assert at_once.seconds_uncontended == pytest.approx(0.25 + 9)
    # flows without predecessor wait for the latency, too
    assert flows.delays.tolist() == [1.25, 2.25, 3.0, 0.5]
    assert at_once.delays.tolist() == [1.25, 2.25, 3.25, 0.75]
    assert replace(flows, delay=2.0).delays.tolist() == [2.25, 2.25, 2.0, 2.0]


def test_packets_are_those_between_domains():
    """Ranks 0 and 1 share one: 20, 30 and 7 bytes leave, in 3, 4 and 1 packets of 8."""
    assert four_flows().packets(np.array([5, 5, 9]), 8.0) == 3 + 4 + 1
    assert four_flows().packets(np.array([5, 5, 9]), 10.0) == 2 + 3 + 1


@pytest.mark.parametrize(
    ("layers", "buckets"),
    [
        # a bucket is full with its size or more, the first one with 5 bytes, others with 25
        ([[10, 0.1], [20, 0.3], [30, 0.6], [40, 1.0]], [[10, 0.1], [50, 0.6], [40, 1.0]]),
        ([[5, 0.1], [24, 0.2], [1, 0.3], [7, 0.4]], [[5, 0.1], [25, 0.3], [7, 0.4]]),
        ([[3, 0.1], [1, 0.2]], [[4, 0.2]]),
    ],
)
def test_layers_fill_the_buckets_of_ddp(layers, buckets):
    ddp = Ddp(kind="ddp", bucket="25 B", first_bucket="5 B")
    assert ddp.messages(np.array(layers, float), 1.0, 4).tolist() == buckets


@pytest.mark.parametrize(
    ("layers", "backward", "world_size", "messages"),
    [
        # 1 + 4 x 0.25 ms of negotiation after each cycle of 5 ms. Layers are ready at 2, 4 and 5
        # ms: 30 and 40 bytes do not fit together, 40 and 20 do. At 6 ms: 70 alone. The last one at
        # 20 ms is not later than the end of the pass.
        (
            [[30, 0.1], [40, 0.2], [20, 0.25], [70, 0.3], [10, 1.0]],
            20e-3,
            4,
            [[30, 7 / 20], [60, 7 / 20], [70, 12 / 20], [10, 1.0]],
        ),
        # 40 ranks agree in 11 ms, which is then the cycle: 10 ms are in the first, 30 in the third
        ([[30, 0.1], [40, 0.3]], 100e-3, 40, [[30, 22 / 100], [40, 44 / 100]]),
    ],
)
def test_layers_of_a_cycle_of_horovod_are_fused(layers, backward, world_size, messages):
    keys = {"cycle": "5 ms", "negotiation": "1 ms", "negotiation_per_rank": "0.25 ms"}
    horovod = Horovod.model_validate({"kind": "horovod", "fusion": "60 B", **keys})
    found = horovod.messages(np.array(layers, float), backward, world_size)
    np.testing.assert_allclose(found, messages, rtol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bytes_are_spread_over_the_hcas_of_a_host_unless_a_number_is_given(name):
    made = ALGORITHMS[name]
    key = made.one_for_each_hca
    given = made.model_copy(update={key: 2})
    assert getattr(given.over_hcas(5), key) == 2
    left_out = made.model_copy(update={key: None})
    assert getattr(left_out.over_hcas(5), key) == 5


LAID_OUT = (Ring, Tree, Nvls, Dependent, Sparse, Sharp)


def test_flows_of_a_kept_layout_are_those_of_a_new_one(algorithm, monkeypatch):
    """Whatever was laid out before: other hosts of as many ranks, or more rings, rails or rows."""
    algorithm = algorithm.over_hcas(2)
    variants = [algorithm] + [
        algorithm.model_copy(update={name: value + 1})
        for name, value in algorithm
        if name not in PACE_FIELDS and isinstance(value, int)
    ]
    host_of_ranks = [hosts(12, 3), hosts(12, 4), hosts(11, 4), hosts(12, 3)[::-1].copy()]
    cases = [(made, host_of) for made in variants for host_of in host_of_ranks]
    cases += [(made, host_of) for host_of in host_of_ranks for made in variants]
    kept = [flows_of(*case) for case in cases]
    for kind in LAID_OUT:
        monkeypatch.setattr(kind, "lay_out", kind.lay_out.__wrapped__)
    for case, flows in zip(cases, kept, strict=True):
        for name, values in vars(flows_of(*case)).items():
            np.testing.assert_array_equal(getattr(flows, name), values, strict=True)


def test_draws_of_latencies_and_bandwidths_share_a_layout(algorithm):
    if isinstance(algorithm, Nccl):  # rings and trees are laid out
        algorithm = next(algorithm.choices(has_several_hosts=True, is_large=True)).algorithm
    drawn = algorithm.model_copy(
        update={"inter_host_latency": 1.0, "intra_host_bus_bandwidth": lambda nbytes: 1.0}
    )
    assert drawn.lay_out(hosts(12, 3)) is algorithm.lay_out(hosts(12, 3))
    assert drawn.lay_out(hosts(12, 4)) is not algorithm.lay_out(hosts(12, 3))
