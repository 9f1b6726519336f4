"""The steps of every allreduce algorithm, carried out: every rank ends with every contribution
once, and the flows move the bytes that the steps move."""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.allreduce.base import AllreduceFlows
from tests.allreduces import carried_out, flows_of, hosts, steps_of
from tests.examples import (
    ALGORITHMS,
    ALPHA_INTER,
    ALPHA_INTRA,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    ring,
    torus,
    tree,
)

# nccl is the one or the other; switches sum under sharp and nvls, and sparse has other bytes: see
# test_allreduce_reduced
OTHERS = {"nccl", "sharp", "nvls", "sparse"}
WITH_STEPS = {name: each for name, each in ALGORITHMS.items() if each.kind not in OTHERS}
SIZES = [2, 3, 5, 8, 12, 64]
B_INTRA, B_INTER = 21e9, 6e9


@pytest.fixture(params=list(WITH_STEPS))
def algorithm(request: pytest.FixtureRequest) -> Any:
    return WITH_STEPS[request.param]


def by_hosts(src: Any, dst: Any, nbytes: Any, on: Any) -> np.ndarray:
    """(hosts, hosts) bytes from one to the other, also to itself."""
    out = np.zeros((on.max() + 1, on.max() + 1))
    np.add.at(out, (on[src], on[dst]), nbytes)
    return out


@pytest.mark.parametrize("gpus", [1, 3, 4])
@pytest.mark.parametrize("world_size", SIZES)
def test_every_rank_ends_with_every_contribution_once(algorithm, world_size, gpus):
    """Flows move the bytes of the steps between any two hosts, and wait for flows of earlier steps
    that touch their ranks."""
    on = hosts(world_size, gpus)
    steps = steps_of(algorithm, on)
    assert (np.diff(steps.step) >= 0).all()
    assert (steps.src != steps.dst).all()
    assert ((steps.first >= 0) & (steps.first < steps.end) & (steps.end <= steps.parts)).all()
    assert (carried_out(steps, world_size) == 1).all()
    flows = flows_of(algorithm, on)
    assert by_hosts(flows.src, flows.dst, flows.nbytes, on) == pytest.approx(
        by_hosts(steps.src, steps.dst, steps.share * 1e6, on), rel=1e-9
    )
    step = np.broadcast_to(flows.step, len(flows))
    assert (np.diff(step) >= 0).all()
    assert (step[flows.edge_from] < step[flows.edge_to]).all()
    row = on // getattr(algorithm, "hosts_per_row", 1)
    for before, after in zip(flows.edge_from, flows.edge_to, strict=True):
        # merged flows and pipelines wait for ranks of their host, or of their row of hosts
        here = {row[flows.src[after]], row[flows.dst[after]]}
        assert here & {row[flows.src[before]], row[flows.dst[before]]}


def test_hosts_may_have_any_numbers_and_any_ranks(algorithm):
    on = np.array([7, 3, 7, 9, 3, 3], np.int32)
    assert (carried_out(steps_of(algorithm, on), 6) == 1).all()
    assert flows_of(algorithm, on).nbytes.min() > 0


def test_one_rank_sends_nothing(algorithm):
    steps = steps_of(algorithm, hosts(1, 1))
    assert (len(steps), steps.count) == (0, 0)


@pytest.mark.parametrize(
    ("world_size", "sent"), [(2, 1.0), (8, 7 / 4), (64, 63 / 32)], ids=["2", "8", "64"]
)
def test_halving_and_doubling_sends_the_least_from_every_rank(world_size, sent):
    """2 (M-1)/M n each, if M is a power of two."""
    steps = steps_of(halving_doubling(), hosts(world_size, 4))
    for ends in (steps.src, steps.dst):
        assert np.bincount(ends, steps.share) == pytest.approx(np.full(world_size, sent))


def test_recursive_doubling_sends_the_whole_buffer_in_every_step():
    """64 ranks: 6 n from each; 5 ranks are 4 of which each sends 2 n, and one fold and unfold."""
    assert np.bincount(steps_of(recursive_doubling(), hosts(64, 4)).src).tolist() == [6] * 64
    steps = steps_of(recursive_doubling(), hosts(5, 1))
    assert np.bincount(steps.src).tolist() == [1, 3, 2, 2, 2]
    assert steps.count == 4


@pytest.mark.parametrize(
    ("algorithm", "world_size", "gpus", "inside", "between"),
    [
        (halving_doubling(), 8, 1, 0, 6),
        (halving_doubling(), 12, 1, 0, 8),  # 8 and 4: two more, to fold and unfold
        (halving_doubling(), 64, 4, 4, 8),
        # 0 folds into 1; then 3 and 4, 2 and 4 meet, and again: four times between hosts, while
        # 0, 1, 2 and 3 are done with their steps inside
        (halving_doubling(), 5, 4, 0, 4),
        (recursive_doubling(), 8, 1, 0, 3),
        (recursive_doubling(), 12, 1, 0, 5),
        (recursive_doubling(), 64, 4, 2, 4),
        (torus(), 64, 4, 6, 30),
        (torus(), 8, 1, 0, 14),
        (torus(), 4, 4, 6, 0),
        # 8 rows of 8: 7 hops, each as if it left a host, before and after 2 (8 - 1) steps
        (torus(hosts_per_row=2), 64, 4, 0, 28),
        (hierarchical(), 64, 4, 6, 30),
        (hierarchical(2), 64, 4, 6, 30),
        (hierarchical(1, "halving_doubling"), 64, 4, 6, 8),
        # 3 hosts: one folds, two exchange and back, one unfolds
        (hierarchical(1, "halving_doubling"), 12, 4, 6, 4),
    ],
)
def test_latency_counts_steps_inside_and_between_hosts(
    algorithm, world_size, gpus, inside, between
):
    """Of hardly any bytes the time is that of the steps of the longest chain."""
    flows = flows_of(algorithm, hosts(world_size, gpus), 1e-9)
    expected = inside * ALPHA_INTRA + between * ALPHA_INTER
    assert flows.seconds_uncontended == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------------- steps that wait


def edges(flows: AllreduceFlows) -> set[tuple[int, int]]:
    return set(zip(flows.edge_from.tolist(), flows.edge_to.tolist(), strict=True))


def ends(flows: AllreduceFlows) -> list[tuple[int, int]]:
    return list(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))


def test_a_step_begins_when_all_transfers_of_both_ranks_have_ended():
    """Four ranks: 0 and 1, 2 and 3 exchange, then 0 and 2, 1 and 3."""
    flows = flows_of(recursive_doubling(), hosts(4, 1), 6e6)
    assert ends(flows) == [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (1, 3), (2, 0), (3, 1)]
    assert edges(flows) == {(k, m) for k in (0, 1, 2, 3) for m in (4, 5, 6, 7)}
    assert set(flows.nbytes) == {6e6}
    assert flows.seconds_uncontended == pytest.approx(2 * (ALPHA_INTER + 1e-3))


def test_who_folds_waits_for_the_end():
    """Three ranks: 0 folds into 1, then 1 and 2 exchange, then 1 tells 0."""
    flows = flows_of(recursive_doubling(), hosts(3, 1))
    assert ends(flows) == [(0, 1), (1, 2), (2, 1), (1, 0)]
    assert edges(flows) == {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}


def test_flows_between_the_same_two_hosts_on_a_rail_are_one():
    """Two hosts of two ranks: halves inside, then both send a quarter to the other host at once."""
    flows = flows_of(halving_doubling(), hosts(4, 2), 8e6)
    middle = flows.step == 1
    assert flows.nbytes[middle].tolist() == [4e6, 4e6]
    assert flows.cap[middle].tolist() == [2 * B_INTER] * 2
    first = np.flatnonzero(middle)[0]
    assert {k for k, m in edges(flows) if m == first} == {0, 1, 2, 3}
    apart = flows_of(halving_doubling(2), hosts(4, 2), 8e6)
    middle = apart.step == 1
    assert apart.nbytes[middle].tolist() == [2e6] * 4
    assert apart.cap[middle].tolist() == [B_INTER] * 4
    assert sorted(apart.rail[middle].tolist()) == [0, 0, 1, 1]


def test_a_broadcast_waits_for_its_leader():
    """Two hosts of three: the chain 1, 2, 0 ends at the leader, which exchanges with the other;
    then all hops of the chain 0, 1, 2 wait for that."""
    flows = flows_of(hierarchical(), hosts(6, 3))
    inside = [(1, 2), (2, 0), (4, 5), (5, 3)]
    assert ends(flows) == [*inside, (0, 3), (3, 0), (0, 1), (1, 2), (3, 4), (4, 5)]
    exchange = {(k, m) for k in (1, 3) for m in (4, 5)}
    broadcast = {(k, m) for k in (4, 5) for m in (6, 7, 8, 9)}
    # who gets it from the leader has sent before
    assert edges(flows) == exchange | broadcast | {(0, 6), (2, 8)}


def test_rails_are_shared_by_the_ranks_of_a_host():
    """The place in the host times rails over ranks: 4 ranks on 2 rails are 0, 0, 1, 1."""
    flows = flows_of(recursive_doubling(2), hosts(8, 4))
    assert set(zip(flows.src[flows.step == 2], flows.rail[flows.step == 2], strict=True)) == {
        (0, 0),
        (2, 1),
        (4, 0),
        (6, 1),
    }
    # from 1 to 2, where the ring 0, 1, 2, 3 of a row leaves its first host, goes what is for column
    # 0 on rail 0, and for columns 2 and 3 on rail 1: a quarter of 1 MB each
    flows = flows_of(torus(2, hosts_per_row=2), hosts(8, 2))
    leaving = (flows.step == 0) & (flows.src == 1)
    assert flows.rail[leaving].tolist() == [0, 1]
    assert flows.nbytes[leaving].tolist() == [250e3, 500e3]


def test_each_leader_has_an_hca_of_its_own():
    """Two hosts of four: ranks 0 and 2 lead in the first, on HCAs 0 and 1."""
    flows = flows_of(hierarchical(2), hosts(8, 4))
    between = flows.step == 1
    used = zip(flows.src[between], flows.dst[between], flows.rail[between], strict=True)
    assert set(used) == {(0, 4, 0), (2, 6, 1), (4, 0, 0), (6, 2, 1)}


# --------------------------------------------------------------------------- alpha and beta by hand

A, X = ALPHA_INTRA, ALPHA_INTER
N = 84e6
LAWS = {
    # Thakur, Rabenseifner & Gropp (2005): 2 log2 M alpha + 2 (M-1)/M n/B
    "halving, 8": (halving_doubling(), 8, 1, 6 * X + 7 / 4 * N / B_INTER),
    # and folding and unfolding of whole buffers
    "halving, 12": (halving_doubling(), 12, 1, 8 * X + (2 + 7 / 4) * N / B_INTER),
    # the halves and quarters stay in the hosts: 2 (3/4) n, and 2 (1/8 + 1/16) n between four hosts
    "halving, 4 hosts of 4": (
        halving_doubling(),
        16,
        4,
        4 * A + 4 * X + 3 / 2 * N / B_INTRA + 3 / 8 * N / B_INTER,
    ),
    # Thakur et al.: log2 M (alpha + n/B)
    "doubling, 8": (recursive_doubling(), 8, 1, 3 * (X + N / B_INTER)),
    "doubling, 12": (recursive_doubling(), 12, 1, 5 * (X + N / B_INTER)),
    "doubling, 2 hosts of 4": (recursive_doubling(), 8, 4, 2 * (A + N / B_INTRA) + X + N / B_INTER),
    # Patarasuk & Yuan (2009) in each direction: 2 (G-1)/G n inside, 2 (H-1)/H n/G between
    "torus, 3 hosts of 4": (
        torus(),
        12,
        4,
        6 * A + 3 / 2 * N / B_INTRA + 4 * X + 4 / 3 * N / 4 / B_INTER,
    ),
    "torus, one host": (torus(), 4, 4, 6 * A + 3 / 2 * N / B_INTRA),
    # the last host has one rank, which sends n/4 in each of four rings, n together
    "torus, 4 and 1": (torus(), 5, 4, 6 * A + 3 / 2 * N / B_INTRA + 2 * X + N / B_INTER),
    # chains of 4: n each way; leaders as a ring of three
    "one leader": (hierarchical(), 12, 4, 6 * A + 2 * N / B_INTRA + 4 * X + 4 / 3 * N / B_INTER),
    # places 0 and 2 lead: who leads neither passes on both halves
    "two leaders": (hierarchical(2), 12, 4, 6 * A + 2 * N / B_INTRA + 4 * X + 2 / 3 * N / B_INTER),
    "as many leaders as ranks are a torus": (
        hierarchical(4),
        12,
        4,
        6 * A + 3 / 2 * N / B_INTRA + 4 * X + 1 / 3 * N / B_INTER,
    ),
    "one leader, halving": (
        hierarchical(1, "halving_doubling"),
        16,
        4,
        6 * A + 2 * N / B_INTRA + 4 * X + 3 / 2 * N / B_INTER,
    ),
    "ring": (ring(), 12, 4, 4 * X + 18 * A + 11 / 6 * N / B_INTER),
    "tree": (tree(), 16, 4, 6 * 28e-6 + 4 * 50e-6 + 15 / 8 * N / B_INTER),
}


@pytest.mark.parametrize("name", list(LAWS))
def test_latency_and_bandwidth_by_hand(name):
    algorithm, world_size, gpus, seconds = LAWS[name]
    flows = flows_of(algorithm, hosts(world_size, gpus), N)
    assert flows.seconds_uncontended == pytest.approx(seconds, rel=1e-9)


def test_pipelines_of_a_host_end_with_its_busiest_rank():
    """Three leaders of four: the last rank passes all three thirds on, the leaders two each; all
    take n/B, for every third passes the last rank."""
    flows = flows_of(hierarchical(3), hosts(4, 4), 21e9)
    assert sorted(flows.nbytes.tolist()) == pytest.approx([14e9] * 6 + [21e9] * 2)
    assert flows.nbytes / flows.cap == pytest.approx(np.ones(8))
