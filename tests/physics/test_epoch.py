"""The epoch, worked out by hand on a cluster without randomness.

8 hosts with one GPU on one switch of 10 GB/s; 10 iterations of 10 samples.

Laws and sources: docs/model.md.
"""

import math

import numpy as np
import pytest

from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.timeline import EXCLUSIVE
from tests.explicit import finish_times
from tests.small import seconds, small

# s an iteration: 10 samples at the catalog's V100 times of ResNet-50
COMPUTE = 10 * (0.9083e-3 + 1.817e-3)
UPDATE = 0.5679e-3
GRADIENTS = 102228128
LATENCY = 9.6e-6  # of one step of the ring between hosts
COPY = 10 * 602112 / 16e9  # a batch to the GPU over PCIe


def ring(world_size, bandwidth):
    return (
        2 * (world_size - 1) * LATENCY + 2 * (world_size - 1) / world_size * GRADIENTS / bandwidth
    )


def test_ring_allreduce_without_contention():
    """2 (M-1) alpha + 2 (M-1)/M n/B (Patarasuk & Yuan, JPDC 2009), B being the slowest resource on
    the way: an HCA of 10 GB/s."""
    for world_size in (2, 8, 16):
        timeline = simulate(small(world_size=world_size))
        iterations = 800 // (10 * world_size)
        for took in seconds(timeline, "allreduce").values():
            assert took == pytest.approx(iterations * ring(world_size, 10e9), rel=1e-9)


def test_the_bus_bandwidth_caps_the_ring():
    timeline = simulate(small(workload__allreduce__inter_host_bus_bandwidth="5 GB/s"))
    assert seconds(timeline, "allreduce")[0] == pytest.approx(10 * ring(8, 5e9), rel=1e-9)


def test_two_rings_use_two_hcas():
    two = {
        "workload__allreduce__rings": 2,
        "cluster__host__hcas": 2,
        "cluster__host__gpus": 2,
        "cluster__host__pcie_slots": 2,
    }
    timeline = simulate(small(cluster__topology__hcas_per_host=2, world_size=8, **two))
    # 4 hosts with 2 GPUs: 6 of the 14 steps leave a host; each ring carries half of the bytes over
    # an HCA of its own
    latency = 6 * LATENCY + 8 * 3.4e-6
    assert seconds(timeline, "allreduce")[0] == pytest.approx(
        10 * (latency + 2 * 7 / 8 * GRADIENTS / 2 / 10e9), rel=1e-9
    )


def test_one_rank_reduces_nothing():
    assert seconds(simulate(small(world_size=1)), "allreduce") == {}


def test_local_shuffle_from_the_ssd():
    """An epoch is the first batch (10 files in turn, decoded on one core, copied), then 10 times
    compute, ring, update.

    Two workers read their first batches from the SSD at the same time, so that reading takes twice
    as long.
    """
    timeline = simulate(small())
    first_read = 10 * 80e-6 + 2 * 10 * 100e3 / 3e9
    first_decode = 10 * 1e-3 + 2 * COPY  # and their copies meet on the PCIe slot
    expected = first_read + first_decode + 10 * (COMPUTE + ring(8, 10e9) + UPDATE)
    assert report.epochs(timeline)["epoch_s"].item() == pytest.approx(expected, rel=1e-9)
    assert seconds(timeline, "io")[3] == pytest.approx(first_read, rel=1e-9)
    assert seconds(timeline, "decode")[3] == pytest.approx(first_decode, rel=1e-9)


def test_a_slow_loader_binds():
    """A worker needs 100 ms to decode 10 samples; 2 workers and 10 batches: 5 in turn, then the
    last is trained on.

    Both workers start together and stay so: they read at the same time, and their copies to the GPU
    meet on the PCIe slot.
    """
    timeline = simulate(small(workload__dataset__decode="10 ms"))
    each = 10 * 80e-6 + 2 * 10 * 100e3 / 3e9 + 100e-3 + 2 * COPY
    expected = 5 * each + 2 * (COMPUTE + ring(8, 10e9) + UPDATE)
    assert report.epochs(timeline)["epoch_s"].item() == pytest.approx(expected, rel=1e-9)


def test_cores_are_shared_by_the_loaders_of_a_host():
    """4 ranks with 2 workers each on 4 cores: half a core a worker, so decoding 100 ms takes
    200."""
    values = {
        "cluster__host__gpus": 4,
        "cluster__host__cores": 4,
        "workload__dataset__decode": "10 ms",
        "cluster__ssd__latency": "0 s",
    }
    timeline = simulate(small(world_size=4, **values))
    read = 8 * 10 * 100e3 / 3e9  # eight batches at once from one SSD
    first = timeline.phases[
        (timeline.phases["phase"] == "decode") & (timeline.phases["iteration"] == 1)
    ]
    assert (first["end_s"] - first["start_s"]).to_numpy() == pytest.approx(
        200e-3 + 8 * COPY, rel=1e-9
    )
    assert first["start_s"].to_numpy() == pytest.approx(read, rel=1e-9)


def test_gpus_share_a_pcie_slot():
    values = {
        "cluster__host__gpus": 2,
        "cluster__host__pcie_slots": 1,
        "cluster__ssd__latency": "0 s",
    }
    shared = simulate(small(world_size=2, **values))
    own = simulate(small(world_size=2, **(values | {"cluster__host__pcie_slots": 2})))
    first = [
        t.phases[(t.phases["phase"] == "decode") & (t.phases["iteration"] == 1)].iloc[0]
        for t in (shared, own)
    ]
    # 2 ranks with 2 workers copy at once: four copies on one slot instead of two
    assert first[0]["end_s"] - first[1]["end_s"] == pytest.approx(2 * COPY, rel=1e-9)


@pytest.mark.parametrize(
    ("key", "values", "took", "round_s"),
    [
        # 800 files at 500 opens/s take 1.6 s, and at 250 3.2 s, whatever the ranks do
        ("open_rate", ("500 1/s", "250 1/s"), 1.6, 15e-3),
        # 80 MB at 40 MB/s take 2 s, and at 20 MB/s 4 s; rounds of opening 10 files in 10 ms
        ("read_bandwidth", ("40 MB/s", "20 MB/s"), 2.0, 25e-3),
    ],
)
def test_file_opens_and_bytes_saturate_the_pfs(key, values, took, round_s):
    """To that come the moments in which both workers of every rank decode at the same time (5
    rounds of 10 ms), and the training on the last two batches, which come together."""
    slack = 5 * round_s + 2 * (COMPUTE + ring(8, 10e9) + UPDATE)
    for times, value in enumerate(values, 1):
        changed = {f"cluster__parallel_file_system__{key}": value}
        timeline = simulate(small(workload__exchange="global_shuffle", **changed))
        assert times * took < report.epochs(timeline)["epoch_s"].item() < times * took + slack


def test_a_lone_reader_is_held_by_latency():
    """1 ms an open: a worker opens 1000 files/s at most, so a batch of 10 takes 10 ms however fast
    the servers are."""
    values = {
        "workload__exchange": "global_shuffle",
        "world_size": 1,
        "workload__dataset__decode": "0 s",
    }
    timeline = simulate(small(**values, cluster__parallel_file_system__open_rate="1000 k/s"))
    first = timeline.phases[
        (timeline.phases["phase"] == "io") & (timeline.phases["iteration"] == 1)
    ].iloc[0]
    assert first["end_s"] - first["start_s"] == pytest.approx(
        10 / 1000 + 26e-9 + 2 * 10 * 100e3 / 10e9, rel=1e-6
    )


def test_a_tapered_uplink_binds():
    """16 hosts on a tree with 2:1 taper: 4 leaf switches with 2 links up for 4 hosts. All ranks of
    a leaf send to the next leaf."""
    from simshuffle.job.plan.resources import Resources

    tree = {
        "kind": "fat_tree",
        "levels": 2,
        "arity": 4,
        "link_bandwidth": "10 GB/s",
        "cable_latency": "0 s",
        "switch_latency": "0 s",
    }
    for taper, factor in ((1, 1), (2, 2), (4, 4)):
        scenario = small(cluster__topology=tree | {"taper": taper}, world_size=16)
        resources = Resources(scenario.cluster, 16, scenario.rng("placement"))
        ranks = np.arange(16)
        routes, _ = resources.message(ranks, np.roll(ranks, -4))
        paths = [[link for link in route if link >= 0] for route in routes.tolist()]
        ends = finish_times(
            resources.links.capacity,
            np.zeros(len(resources.links.names)),
            paths,
            np.full(16, 10e6),
            np.zeros(16),
        )
        assert ends == pytest.approx(np.full(16, factor * 1e-3), rel=1e-12)


@pytest.mark.parametrize(("taper", "hosts_per_leaf"), [(1, 20), (2, 26), (3, 30)])
def test_a_tapered_uplink_binds_on_every_rail(taper, hosts_per_leaf):
    """64 hosts with 4 GPUs and 2 HCAs on 40-port switches: all GPUs of a leaf switch's hosts send
    to those of the next one. 2 GPUs share an HCA of 25 GB/s, and ``taper`` HCAs a link up."""
    from simshuffle.job.plan.resources import Resources

    values = {"cluster": "a100-fat-tree", "cluster.topology.taper": taper, "world_size": 256}
    scenario = load_scenario("quickstart", values)
    resources = Resources(scenario.cluster, 256, scenario.rng("placement"))
    ranks = np.arange(4 * hosts_per_leaf)
    routes, _ = resources.message(ranks, ranks + len(ranks))
    paths = [[link for link in route if link >= 0] for route in routes.tolist()]
    silent = np.zeros(len(resources.links.names))
    ends = finish_times(
        resources.links.capacity, silent, paths, np.full(len(ranks), 25e6), np.zeros(len(ranks))
    )
    assert ends == pytest.approx(np.full(len(ranks), 2 * taper * 1e-3), rel=1e-12)


def test_a_machine_with_rails_is_simulated():
    """The one to copy; a narrower tree makes the exchange longer, and nothing else of it."""
    strategy = "partial_local_shuffle:exchange_fraction=1"
    values = {"cluster": "a100-fat-tree", "world_size": 256, "epochs": 1, "sweep": {}}
    exchange = []
    for taper in (1, 9):
        more = {"cluster.topology.taper": taper, "workload.exchange": strategy}
        timeline = simulate(load_scenario("quickstart", values | more))
        exchange.append(np.mean(list(seconds(timeline, "exchange").values())))
    assert 0 < exchange[0] < exchange[1] < 2 * exchange[0]


def test_messages_and_gradients_share_an_hca():
    """One mechanism: a message and a ring flow that leave one host together get half of its HCA
    each."""
    from simshuffle.job.plan.resources import Resources

    scenario = small()
    resources = Resources(scenario.cluster, 8, scenario.rng("placement"))
    message, _ = resources.message(np.array([0]), np.array([2]))
    gradient = resources.gradient(
        np.array([0], np.int32), np.array([1], np.int32), np.array([0], np.int32)
    )
    pfs = resources.pfs_read()[0][:1]
    paths = [
        [link for link in route if link >= 0] for route in (*message.tolist(), *gradient.tolist())
    ]
    ends = finish_times(
        resources.links.capacity, np.zeros(len(resources.links.names)), paths, [10e6, 10e6], [0, 0]
    )
    assert ends == pytest.approx([2e-3, 2e-3], rel=1e-12)
    into_same = [
        [link for link in route if link >= 0]
        for route in (*resources.message(np.array([2]), np.array([0]))[0].tolist(), *pfs.tolist())
    ]
    ends = finish_times(
        resources.links.capacity,
        np.zeros(len(resources.links.names)),
        into_same,
        [10e6, 10e6],
        [0, 0],
    )
    assert ends == pytest.approx([2e-3, 2e-3], rel=1e-12)


def test_reads_and_writes_share_an_ssd():
    """Device time: 3 MB to read at 3 GB/s and 1 MB to write at 1 GB/s are 1 ms each; together both
    take 2 ms."""

    ssd = small().cluster.ssd
    ends = finish_times(
        [1.0], [0.0], [[0], [0]], [ssd.read_seconds(3e6), ssd.write_seconds(1e6)], [0, 0]
    )
    assert ends == pytest.approx([2e-3, 2e-3], rel=1e-12)


def test_the_page_cache_serves_the_second_epoch_when_the_share_fits():
    cached = simulate(small(epochs=2, cluster__memory__page_cache="64 GiB")).sources
    assert cached["nbytes_ssd"].tolist() == pytest.approx([80e6, 0])
    assert cached["nbytes_memory"].tolist() == pytest.approx([0, 80e6])
    bare = simulate(small(epochs=2)).sources
    assert bare["nbytes_ssd"].tolist() == pytest.approx([80e6, 80e6])


def test_phases_follow_one_another_without_a_gap_and_fill_the_epoch():
    values = {
        "workload__jitter": {"compute": 0.1, "read": 0.3},
        "workload__dataset__sample_size__std": "80 kB",
        "epochs": 3,
    }
    timeline = simulate(
        small(workload__exchange="partial_local_shuffle:exchange_fraction=0.35", **values)
    )
    epochs = report.epochs(timeline).set_index("epoch")["epoch_s"]
    rows = timeline.phases[timeline.phases["phase"].isin(EXCLUSIVE)].sort_values(
        ["rank", "start_s", "end_s"]
    )
    for _, own in rows.groupby("rank"):
        assert own["start_s"].iloc[0] == 0.0
        assert (own["start_s"].to_numpy()[1:] == own["end_s"].to_numpy()[:-1]).all()
        for epoch, part in own.groupby("epoch"):
            assert part["end_s"].max() - part["start_s"].min() == epochs[epoch]
            assert math.fsum(part["end_s"] - part["start_s"]) == pytest.approx(
                epochs[epoch], rel=1e-12
            )


def test_the_breakdown_adds_up_and_waiting_is_explained():
    values = {"workload__jitter": {"compute": 0.2, "read": 0.3}}
    timeline = simulate(
        small(workload__exchange="partial_local_shuffle:exchange_fraction=0.2", **values)
    )
    table = report.breakdown(timeline)
    epoch = report.epochs(timeline)["epoch_s"].item()
    assert list(table.loc[table["cause"] == "", "label"]) == ["I/O", "FW+BW", "GE+WU", "EXCHANGE"]
    assert table["seconds"].sum() == pytest.approx(epoch, rel=1e-12)
    for adding in (report.book_as_papers, report.by_cause):
        assert adding(table)["seconds"].sum() == pytest.approx(epoch, rel=1e-12)
    phases = report.phase_seconds(timeline)
    idle = table[table["cause"] != ""]
    for label, phase in (("GE+WU", "wait_allreduce"), ("EXCHANGE", "wait_exchange")):
        assert idle.loc[idle["label"] == label, "seconds"].sum() == pytest.approx(
            phases[phase].item(), rel=1e-9
        )


def test_who_is_waited_for_is_named():
    """Only compute varies, so that what ranks wait for at the allreduce is forward and backward."""
    timeline = simulate(small(workload__jitter={"compute": 0.2, "read": 0}))
    idle = report.breakdown(timeline).set_index(["label", "cause"])["seconds"]
    waiting = idle[idle.index.get_level_values("cause") != ""]
    assert idle["GE+WU", "FW+BW"] > 0.99 * waiting.sum() > 0


def test_readers_of_a_busy_file_system_are_what_the_others_wait_for():
    """Every rank reads from the PFS, some longer than others; computing takes all equally long."""
    timeline = simulate(
        small(workload__exchange="global_shuffle", workload__jitter={"compute": 0, "read": 1.0})
    )
    waiting = report.breakdown(timeline).query("cause != ''").groupby("cause")["seconds"].sum()
    assert waiting["I/O"] > 0.99 * waiting.sum() > 0


def test_bytes_of_links_are_the_bytes_of_messages():
    timeline = simulate(
        small(workload__exchange="partial_local_shuffle:exchange_fraction=0.3,schedule=authors")
    )
    sent = timeline.sources["nbytes_peer"].item()
    assert sent == timeline.sources["samples_moved"].item() * 500e3
    links = timeline.links
    gradients = 10 * 8 * 2 * 7 / 8 * GRADIENTS
    assert links.loc[links["tier"] == "leaf>host", "nbytes"].sum() == pytest.approx(
        sent + gradients, rel=1e-9
    )
    assert links.loc[links["tier"] == "host>leaf", "nbytes"].sum() == pytest.approx(
        sent + gradients, rel=1e-9
    )
    assert (links["mean_utilisation"] <= 1 + 1e-9).all()
    assert (links["peak_utilisation"] <= 1 + 1e-9).all()


def test_ranks_wait_for_a_straggler():
    """With jitter on compute, each iteration lasts as long as its slowest rank: mean work plus mean
    waiting is the same for all."""
    timeline = simulate(small(workload__jitter={"compute": 0.3, "read": 0}))
    work = {
        rank: seconds(timeline, "forward")[rank] + seconds(timeline, "backward")[rank]
        for rank in range(8)
    }
    waits = seconds(timeline, "wait_allreduce")
    totals = [work[rank] + waits.get(rank, 0.0) for rank in range(8)]
    assert max(totals) == pytest.approx(min(totals), rel=1e-9)
    assert max(work.values()) > min(work.values())
