"""Groups of ranks that communicate at once: what that takes by hand, on the fluid network, and in
a whole step."""

from typing import Any

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network.models import Analytic, Fluid
from simshuffle.job.lowering import collectives
from simshuffle.job.lowering.collectives import Allreduces, Pairs, pair_up_by_shifts
from simshuffle.job.lowering.division import communicators_of, job_of, split_joint_part
from simshuffle.job.lowering.step_transfers import (
    Communicators,
    StepTransfers,
    step_seconds,
    step_transfers,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.workload.parallelism.divided import Spatial
from simshuffle.workload.parallelism.step import Node, Step
from tests.examples import ALGORITHMS, cluster, halving_doubling, nccl, ring, torus, tree
from tests.strategies import abci, rail_optimised, star

A, X = 3.4e-6, 9.6e-6  # s of a step inside a host and between hosts
NVLINK, HCA = 21e9, 12.5e9  # bytes/s of a bus inside hosts, and of a cable
N = 48e6


def hosts_of_four(count: int = 3, **link: Any) -> Cluster:
    """Hosts of 4 GPUs with 2 HCAs and PCIe slots, on one switch."""
    return cluster(star(count, hcas_per_host=2, **link), gpus=4, hcas=2, slots=2)


def groups(
    ways: int,
    allreduce: Allreduce | None = None,
    machine: Cluster | None = None,
    world_size: int = 12,
    **measured: float,
) -> Communicators:
    on = Resources(machine or hosts_of_four(), world_size, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    return Communicators(allreduce or ring(2), on, group_size=ways, rng=rng, **measured)


def sends(collective: Any, nbytes: float = N, group: Any = "model", **more: Any) -> Node:
    return Node("sent", collective=collective, nbytes=nbytes, group=group, **more)


def on_fluid(node: Node, among: Communicators) -> float:
    return step_seconds(Step([node]), among, Fluid())


# ------------------------------------------------------------------------------------------- groups


def test_a_model_group_is_consecutive_and_a_data_group_has_one_rank_of_each():
    among = groups(4)
    assert among.ranks("model").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert among.ranks("data").tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert among.ranks("all").tolist() == [list(range(12))]


def test_groups_follow_the_order_of_the_hosts():
    # hosts alternate between two racks, and the allreduce goes through one rack after the other
    machine = cluster(
        abci(racks=2, hosts_per_rack=4), gpus=4, hcas=2, slots=2, placement="round_robin"
    )
    ranks = groups(8, machine=machine, world_size=32).ranks("model")
    assert ranks[0].tolist() != list(range(8))
    assert all(len({rank // 4 for rank in row}) == 2 for row in ranks.tolist())
    assert sorted(ranks.ravel().tolist()) == list(range(32))


def test_groups_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ValueError, match="5 ranks of a group do not divide 12 ranks"):
        groups(5)


def test_another_division_of_the_same_ranks_gives_what_one_made_afresh_gives():
    first = groups(2)
    for ways in (1, 3, 4, 12):
        again = first.regroup(ways, step_latency=1e-6)
        afresh = groups(ways, step_latency=1e-6)
        for group in ("model", "data", "all"):
            for collective in ("allreduce", "halo"):
                node = sends(collective, group=group)
                assert again.seconds(node) == afresh.seconds(node)
    assert first.ways == 2 and first.seconds(sends("send")) == pytest.approx(A + N / NVLINK)


# --------------------------------------------------------------------------------------- allreduces

PIPELINES = [
    name
    for name in ALGORITHMS
    if any(word in name for word in ("ring", "trees", "nccl", "sharp")) and "four" not in name
]


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("nbytes", [2e4, 1e8])
def test_an_allreduce_over_all_takes_what_it_takes_alone(name, nbytes):
    among = groups(1, ALGORITHMS[name])
    alone = Allreduces(ALGORITHMS[name], among.resources, np.random.default_rng(2))
    node = sends("allreduce", nbytes, "all")
    assert among.seconds(node) == pytest.approx(alone.seconds(nbytes, Fluid()), rel=1e-9)
    assert on_fluid(node, among) == pytest.approx(alone.seconds(nbytes, Fluid()), rel=1e-12)


@pytest.mark.parametrize("name", ["halving and doubling", "torus", "one leader", "sparse"])
def test_step_by_step_algorithms_take_as_long_where_every_step_has_one_bottleneck(name):
    among = groups(1, ALGORITHMS[name], hosts_of_four(4), 16)
    alone = Allreduces(ALGORITHMS[name], among.resources, np.random.default_rng(2))
    for nbytes in (2e4, 1e8):
        expected = alone.seconds(nbytes, Fluid())
        assert among.seconds(sends("allreduce", nbytes, "all")) == pytest.approx(expected, rel=1e-9)


def test_every_size_takes_the_protocol_and_the_shape_that_nccl_takes():
    algorithm = nccl(2, protocols="nccl_2.7")
    among = groups(1, algorithm)
    alone = Allreduces(algorithm, among.resources, np.random.default_rng(2))
    taken = set()
    for nbytes in 8.0 * 4.0 ** np.arange(14):
        flows = alone.flows(nbytes)
        assert flows is not None
        taken.add((len(flows), flows.latency))
        expected = alone.seconds(nbytes, Analytic())
        node = sends("allreduce", nbytes, "all")
        assert among.seconds(node) == pytest.approx(expected, rel=1e-9)
    assert len(taken) > 2


def test_bus_bandwidths_over_sizes_are_those_of_the_size():
    curve = {"points": {"1 MB": "2 GB/s", "100 MB": "8 GB/s"}}
    among = groups(1, ring(2, inter_host_bus_bandwidth=curve))
    alone = Allreduces(
        ring(2, inter_host_bus_bandwidth=curve), among.resources, np.random.default_rng(2)
    )
    for nbytes in (1e5, 3e6, 1e8):
        expected = alone.seconds(nbytes, Fluid())
        assert among.seconds(sends("allreduce", nbytes, "all")) == pytest.approx(expected, rel=1e-9)


def test_four_groups_of_a_host_share_its_two_hcas():
    # each group has a rank of each host; of its 4/3 n bytes a ring sends half over each HCA
    among = groups(4, ring(2, inter_host_bus_bandwidth="12 GB/s"))
    expected = 4 * X + 4 * (4 / 3 * N / 2) / HCA
    node = sends("allreduce", group="data")
    assert among.seconds(node) == pytest.approx(expected, rel=1e-9)
    assert on_fluid(node, among) == pytest.approx(expected, rel=1e-9)


def test_steps_of_groups_that_wait_share_links_one_by_one():
    # two hosts, four groups on one HCA: each exchanges one half, and then gives the sum
    among = groups(4, halving_doubling(1), hosts_of_four(2), 8)
    node = sends("allreduce", group="data")
    expected = 2 * (X + 4 * (N / 2) / HCA)
    assert among.seconds(node) == pytest.approx(expected, rel=1e-9)
    assert on_fluid(node, among) == pytest.approx(expected, rel=1e-9)


def test_the_data_group_of_one_member_has_the_hcas_for_itself():
    among = groups(4, ring(2, inter_host_bus_bandwidth="12 GB/s"))
    node = sends("allreduce", group="data", member=2)
    assert among.seconds(node) == pytest.approx(4 * X + 4 / 3 * N / 12e9, rel=1e-9)
    laid = among.batch(node)
    assert laid is not None and len(laid[0]) == 3 * 2
    assert on_fluid(node, among) == pytest.approx(among.seconds(node), rel=1e-9)


def test_groups_inside_hosts_do_not_see_the_network():
    slow = groups(4, machine=hosts_of_four(link_bandwidth="1 MB/s"))
    for collective, expected in {
        "allreduce": 6 * A + 2 * 3 / 4 * N / NVLINK,
        "allgather": 3 * A + 3 / 4 * N / NVLINK,
        "alltoall": 3 * A + 3 / 4 * N / NVLINK,
        "gather": A + N / NVLINK,
        "halo": A + 2 * N / NVLINK,
    }.items():
        assert slow.seconds(sends(collective)) == pytest.approx(expected, rel=1e-9), collective


def test_allgather_and_reduce_scatter_are_half_of_an_allreduce_around_rings():
    for algorithm in (ring(2), torus(2), halving_doubling(2)):
        among = groups(6, algorithm)
        whole = groups(6, ring(2)).seconds(sends("allreduce"))
        assert among.seconds(sends("allgather")) == pytest.approx(whole / 2, rel=1e-9)
        assert among.seconds(sends("reduce_scatter")) == among.seconds(sends("allgather"))


def test_half_of_ncclss_rings_begins_as_the_whole_does_and_knows_no_trees():
    based = nccl(2, ring_base_latency="20 us", tree_inter_host_latency="0 s", plateau=1)
    among = groups(4, based)
    expected = 20e-6 + 2 * X + 2 / 3 * N / 6e9
    node = sends("allgather", group="data")
    assert among.seconds(node) == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------- from member to member


def test_a_halo_takes_as_long_as_the_slowest_pair_of_neighbours():
    # of six members four are on one host; the pair between hosts has an HCA to itself
    among = groups(6)
    assert among.seconds(sends("halo")) == pytest.approx(X + N / 6e9, rel=1e-9)
    assert among.seconds(sends("halo", count=3)) == pytest.approx(3 * X + N / 6e9, rel=1e-9)
    for count in (1, 3):
        node = sends("halo", count=count)
        assert on_fluid(node, among) == pytest.approx(count * X + N / 6e9, rel=1e-9)
    # small ones: the latency between hosts; none for a single member
    assert among.seconds(sends("halo", 8.0)) == pytest.approx(X + 8 / 6e9, rel=1e-9)
    assert groups(1).seconds(sends("halo")) == 0.0


def test_a_halo_goes_along_rows_of_a_group():
    among = groups(4)
    both = A + 2 * N / NVLINK
    assert among.seconds(sends("halo", row=4)) == pytest.approx(both, rel=1e-9)
    # two rows of two: each has one neighbour, beside it or below
    for stride in (1, 2):
        node = sends("halo", row=2, stride=stride)
        assert among.seconds(node) == pytest.approx(A + N / NVLINK, rel=1e-9)
        laid = among.batch(node)
        assert laid is not None and len(laid[0]) == 3 * 4


def test_the_slowest_of_groups_that_lie_differently_counts():
    """Of six members the first group has four on its first host and two on the next one; the second
    group two and four. So two share an HCA of the host on which the second one gathers."""
    among = groups(6, ring(2, inter_host_bus_bandwidth="12 GB/s"))
    expected = X + 2 * N / HCA
    assert among.seconds(sends("gather")) == pytest.approx(expected, rel=1e-9)
    assert on_fluid(sends("gather"), among) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("host", [0, 1, 2])
def test_a_slow_cable_is_the_bottleneck_wherever_it_is(host):
    """Every member sends to the next one: from the first host to the second, and on to the third.
    At a tenth a cable carries 1.25 GB/s."""
    machine = cluster(
        star(3, hcas_per_host=2), gpus=4, hcas=2, slots=2, faults={f"h{host:04d}": 0.1}
    )
    among = groups(12, machine=machine)
    expected = X + N / 1.25e9
    assert among.seconds(sends("send")) == pytest.approx(expected, rel=1e-9)
    assert on_fluid(sends("send"), among) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"collective": "halo"}, "01 12 23 34 45 10 21 32 43 54"),
        ({"collective": "halo", "row": 3}, "01 12 34 45 10 21 43 54"),  # two rows
        ({"collective": "halo", "row": 2, "stride": 3}, "03 14 25 30 41 52"),  # and columns
        ({"collective": "gather"}, "10 20 30 40 50"),
        ({"collective": "send"}, "01 12 23 34 45"),
        ({"collective": "send_back"}, "10 21 32 43 54"),
        ({"collective": "send", "member": 2}, "23"),
        ({"collective": "send_back", "member": 2}, "21"),
    ],
)
def test_messages_lead_from_member_to_member(node, expected):
    """Of six."""
    src, dst, share = Pairs(sends(**node), ring(2), 0.0, np.zeros(6, np.int32))._ends(6)
    assert [f"{a}{b}" for a, b in zip(src, dst, strict=True)] == expected.split()
    assert share.tolist() == [1.0] * len(src)


@pytest.mark.parametrize(
    ("members", "most", "shifts"),
    [
        (9, 200, [1, 2, 3, 4, 5, 6, 7, 8]),
        (9, 18, [1, 3, 6, 8]),  # two shifts would do, but four are taken, evenly spread
        (9, 45, [1, 3, 4, 6, 8]),
        (3, 0, [1, 2]),
    ],
)
def test_some_shifts_stand_for_all(monkeypatch, members, most, shifts):
    """Each has its share of the bytes that a member sends to all others."""
    monkeypatch.setattr(collectives, "MAX_ALLTOALL_MESSAGES", most)
    src, dst, share = pair_up_by_shifts(np.arange(members, dtype=np.int32))
    assert src.tolist() == [*range(members)] * len(shifts)
    assert ((dst - src) % members).tolist() == np.repeat(shifts, members).tolist()
    assert share == pytest.approx((members - 1) / members / len(shifts))


def test_what_is_gathered_comes_in_over_the_hcas_of_one_host():
    # 8 ranks of other hosts, 4 of them on each HCA
    among = groups(12)
    expected = X + 4 * N / HCA
    assert among.seconds(sends("gather")) == pytest.approx(expected, rel=1e-9)
    assert on_fluid(sends("gather"), among) == pytest.approx(expected, rel=1e-9)


def test_a_member_sends_to_the_next_or_to_the_one_before():
    among = groups(12)
    near, far = A + N / NVLINK, X + N / 6e9
    assert among.seconds(sends("send", member=2)) == pytest.approx(near, rel=1e-9)
    assert among.seconds(sends("send", member=3)) == pytest.approx(far, rel=1e-9)
    assert among.seconds(sends("send_back", member=4)) == pytest.approx(far, rel=1e-9)
    assert among.seconds(sends("send_back", member=5)) == pytest.approx(near, rel=1e-9)
    assert among.seconds(sends("send")) == pytest.approx(far, rel=1e-9)
    assert among.seconds(sends("send", member=11)) == 0.0


def test_an_alltoall_of_many_sends_all_bytes():
    machine = hosts_of_four(40)
    among = groups(160, machine=machine, world_size=160)
    laid = among.batch(sends("alltoall"))
    assert laid is not None
    # each sends all but its own part
    assert laid[0].tasks["work"].sum() == pytest.approx(159 * N, rel=1e-9)


def test_messages_of_scale_up_domains_leave_by_the_hca_of_their_host():
    scale_up = {"hosts": 3, "bandwidth": "40 GB/s", "latency": "1 us"}
    machine = cluster(rail_optimised(hosts=12, scale_up=scale_up), gpus=4, hcas=2, slots=2)
    among = groups(24, machine=machine, world_size=24)  # 2 domains of 12 ranks
    names = among.resources.links.names
    laid = among.batch(sends("send", member=11))
    assert laid is not None
    route = [names[link] for link in laid[0].routes[0] if link >= 0]
    hosts = among.resources.hosts
    assert route[0] == f"{hosts[2]}.pcie_out1"  # of the third host, its last GPU
    assert among.seconds(sends("send", member=10)) == pytest.approx(A + N / NVLINK, rel=1e-9)


def test_measured_values_count_inside_model_groups_alone():
    plain, other = groups(4), groups(4, bus_bandwidth=1e9, step_latency=1e-3)
    assert other.seconds(sends("allreduce")) == pytest.approx(6e-3 + 1.5 * N / 1e9, rel=1e-9)
    assert other.seconds(sends("send")) == pytest.approx(1e-3 + N / 1e9, rel=1e-9)
    for group in ("data", "all"):
        node = sends("allreduce", group=group)
        assert other.seconds(node) == plain.seconds(node)
    # protocols differ by values that were not measured: only one is left
    protocols = nccl(2, protocols="nccl_2.7")
    for measured in ({"step_latency": 1e-3}, {"bus_bandwidth": 1e9}):
        for nbytes in (8.0, N):
            node = sends("allreduce", nbytes)
            plain_seconds = groups(4, nccl(2), **measured).seconds(node)
            assert groups(4, protocols, **measured).seconds(node) == plain_seconds
    for algorithm in (protocols, tree(2)):
        among = groups(4, algorithm, step_latency=1e-3)
        assert among.seconds(sends("halo", 8.0)) == pytest.approx(1e-3, rel=1e-3)


def test_gradients_and_inputs_of_a_group_have_values_of_their_own():
    """Halos go by MPI at 1 GB/s, samples from member to member at 2 GB/s; the sum takes NVLink."""
    among = groups(4, bus_bandwidth=1e9, input_bandwidth=2e9)
    sums, inputs = sends("allreduce", group="members"), sends("send", group="input")
    assert among.seconds(sums) == pytest.approx(6 * A + 1.5 * N / NVLINK, rel=1e-9)
    assert among.seconds(inputs) == pytest.approx(A + N / 2e9, rel=1e-9)
    for node in (sums, inputs):
        assert on_fluid(node, among) == pytest.approx(among.seconds(node), rel=1e-9)
    # groups do not wait for one another in either
    local, joint = split_joint_part(Step([inputs, sums, sends("allreduce", group="all")]))
    assert [node.group for node in local.nodes] == ["input", "members"]
    assert [node.group for node in joint.nodes] == ["all"]
    assert groups(1).regroup(4, 1e9, None, 2e9).seconds(inputs) == among.seconds(inputs)


TAPERED = cluster(
    abci(racks=2, hosts_per_rack=6, leaf_fbb_links=1, fbb_spine_links=1), gpus=4, hcas=2, slots=2
)


@pytest.mark.parametrize("algorithm", [ring(2), nccl(2)], ids=["ring", "nccl"])
@pytest.mark.parametrize("ways", [2, 3, 8, 24])
def test_no_network_is_faster_than_the_closed_form(algorithm, ways):
    """It misses at most 6 %: where a flow's bottleneck is another's whose own is elsewhere."""
    among = groups(ways, algorithm, TAPERED, 48)
    for collective in ("allreduce", "allgather", "alltoall", "gather", "halo", "send"):
        for group in ("model", "data"):
            for nbytes in (1e4, 1e8):
                node = sends(collective, nbytes, group)
                least, taken = among.seconds(node), on_fluid(node, among)
                assert least * (1 - 1e-9) <= taken <= 1.06 * least, node


# -------------------------------------------------------------------------------------- whole steps


def divided_step() -> Step:
    """Two pieces forward and back with halos, and their gradients beside."""
    return Step(
        [
            Node("forward", (), 2e-3),
            Node("halo", (0,), collective="halo", nbytes=N, count=2),
            Node("forward", (1,), 3e-3),
            Node("backward", (2,), 4e-3),
            Node("gradients", (3,), collective="allreduce", group="all", nbytes=N),
            Node("halo", (3,), collective="halo", nbytes=N),
            Node("backward", (5,), 4e-3),
            Node("gradients", (6, 4), collective="allreduce", group="all", nbytes=N),
            Node("update", (7,), 1e-3),
        ]
    )


def ends(made: StepTransfers, among: Communicators, factor: Any) -> list[float]:
    """When each group has done all."""
    batch = made.with_computing_scaled(np.asarray(factor, float))
    batch.tasks["tag"][made.ends] = np.arange(len(made.ends))
    network = among.resources.network(Fluid())
    network.reserve_tags(len(made.ends))
    network.post(0.0, batch)
    network.advance(np.inf)
    finish: list[float] = network.finish[: len(made.ends)].tolist()
    return finish


def test_a_step_takes_the_longest_chain_of_its_nodes():
    for ways in (2, 4, 6):
        among = groups(ways)
        expected = divided_step().costs(among.seconds).seconds
        for model in (Fluid(), Analytic()):
            taken = step_seconds(divided_step(), among, model)
            # the first sum hides behind a halo, which it may slow down on shared links
            assert expected * (1 - 1e-9) <= taken <= expected * 1.02


def test_a_step_of_one_rank_has_nothing_to_send():
    among = groups(1, world_size=1)
    assert step_seconds(divided_step(), among, Fluid()) == pytest.approx(14e-3, rel=1e-12)


def test_groups_wait_for_one_another_only_where_they_sum():
    among = groups(4)
    inside = Step([node for node in divided_step().nodes if node.group == "model"][:4])
    alone = ends(step_transfers(inside, among), among, [1, 1, 1])
    slow = ends(step_transfers(inside, among), among, [1, 3, 1])
    assert slow[0] == alone[0] and slow[2] == alone[2]
    assert slow[1] == pytest.approx(alone[1] + 2 * 9e-3, rel=1e-9)
    whole = ends(step_transfers(divided_step(), among), among, [1, 3, 1])
    # the others wait twice, and go on at once
    assert whole[0] == whole[2] and whole[1] - whole[0] == pytest.approx(2e-3, rel=1e-9)


def test_no_transfer_of_a_group_waits_for_one_of_another():
    among = groups(4, halving_doubling(2))
    inside = Node("sums", (3,), collective="allreduce", nbytes=N)
    made = step_transfers(Step([*divided_step().nodes[:4], inside]), among)
    batch = made.batch
    label = np.arange(len(batch))
    for _ in range(len(batch)):  # connected parts
        before = label.copy()
        np.minimum.at(label, batch.edge_to, label[batch.edge_from])
        np.minimum.at(label, batch.edge_from, label[batch.edge_to])
        if (label == before).all():
            break
    assert len(np.unique(label)) == 3
    assert label[made.begins].tolist() == label[made.ends].tolist()
    assert (label[made.computes] == label[made.begins][made.group_of]).all()


def test_one_group_takes_what_it_takes_among_all_where_they_share_nothing():
    among = groups(4)
    first = Step(divided_step().nodes[:4])
    every = ends(step_transfers(first, among), among, [1, 1, 1])
    single = ends(step_transfers(first, among, [2]), among, [1])
    assert single == pytest.approx(every[2:], rel=1e-12)
    with pytest.raises(ValueError, match="'gradients' joins all groups"):
        step_transfers(divided_step(), among, [0])


# ------------------------------------------------------------------------------------ of a scenario


@pytest.fixture(scope="module")
def scenario() -> Any:
    return load_scenario("quickstart", {"world_size": 8, "workload.model": "resnet50"})


@pytest.mark.parametrize("overlap", ["none", "ddp", "horovod"])
def test_a_job_has_the_times_and_the_gradients_of_its_scenario(overlap, scenario):
    values = {"workload.allreduce.overlap": overlap}
    scenario = scenario.with_values(values)
    job, workload = job_of(scenario), scenario.workload
    times = workload.model.accelerators[scenario.cluster.host.accelerator]
    batch = np.asarray(workload.local_batch_size)
    hooks = getattr(workload.allreduce.overlap, "hooks", 0.0)
    whole = float(times.forward_of(batch) + times.backward_of(batch)) + hooks
    computed = job.fixed + job.batch * float(job.forward.sum() + job.backward.sum())
    assert computed == pytest.approx(whole, rel=1e-9)
    assert job.layers.parameters * job.gradient_nbytes == pytest.approx(
        workload.model.gradient_size
    )
    assert (job.buckets is None) == (overlap == "none")
    if job.buckets is not None:
        assert job.buckets[:, 0].sum() == pytest.approx(workload.model.gradient_size)
        assert (np.diff(job.buckets[:, 1]) >= 0).all() and job.buckets[-1, 1] == 1.0
    assert job_of(scenario, 4).world_size == 4


def test_data_parallelism_takes_what_an_allreduce_after_the_backward_pass_takes(scenario):
    resources = Resources(scenario.cluster, 8, scenario.rng("placement"))
    among = communicators_of(scenario, resources)
    alone = Allreduces(
        scenario.workload.allreduce_on(scenario.cluster), resources, scenario.rng("host_order")
    )
    step = scenario.workload.parallelism.step(job_of(scenario))
    costs = step.costs(among.seconds)
    gradient = alone.seconds(scenario.workload.model.gradient_size, Fluid())
    assert costs.exposed == pytest.approx(gradient, rel=1e-9)
    assert step_seconds(step, among, Fluid()) == pytest.approx(costs.seconds, rel=1e-9)


def test_only_data_parallelism_does_without_a_list_of_layers(scenario):
    model = scenario.workload.model.model_copy(update={"layers": None})
    bare = scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update={"model": model})}
    )
    assert len(job_of(bare).layers) == 1
    assert job_of(bare).forward.sum() == pytest.approx(job_of(scenario).forward.sum())
    workload = bare.workload.model_copy(update={"parallelism": Spatial(ways=2)})
    with pytest.raises(ScenarioError) as raised:
        job_of(bare.model_copy(update={"workload": workload}))
    text = str(raised.value)
    assert "workload.model.layers" in text and "'spatial'" in text and "resnet50" in text


@pytest.mark.parametrize(("ranks", "shifts"), [(1, 0), (2, 1), (5, 4), (200, 81), (8000, 4)])
def test_some_shifts_stand_for_an_all_to_all_of_many(ranks, shifts):
    """About 2^14 sends do, of four shifts at least: from the next rank to the one before."""
    src, dst, share = pair_up_by_shifts(np.arange(ranks, dtype=np.int32))
    distances = np.unique((dst - src) % ranks)
    assert len(src) == ranks * len(distances) == ranks * shifts
    assert share.sum() == pytest.approx(ranks - 1)
    assert not shifts or (distances[0], distances[-1]) == (1, ranks - 1)
