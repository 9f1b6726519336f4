"""The time of measuring importance, worked out by hand: 8 hosts of one GPU on one switch, no
randomness in sizes or compute.

How it is done: github.com/TruongThaoNguyen/kakurenbo (6cb9f88),
ImageNet/utils/importance_scheduler.py; the poster's IMPT.
"""

import numpy as np
import pytest

from simshuffle.api import run
from simshuffle.job.lowering.collectives import gather_seconds
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from tests.small import seconds, small

LATENCY = 1.3e-6
HCA = 10e9


def pair(lagging=False, fraction=0.2, schedule=None, kind="importance_pair", **values):
    """Every rank has 100 samples in 10 batches."""
    exchange = {
        "kind": kind,
        "exchange_fraction": fraction,
        "lagging": lagging,
        "schedule": schedule or {},
    }
    return small(workload__exchange=exchange, **values)


def times(scenario):
    return scenario.workload.model.accelerators[scenario.cluster.host.accelerator]


def all_gather(scenario, each=8.0):
    """Recursive doubling among 8 ranks, each contributing ``each`` bytes."""
    assert scenario.world_size == 8
    return 3 * LATENCY + 7 * each / HCA


def test_a_pass_bound_by_the_accelerator_is_its_first_batch_and_100_inferences():
    """Samples of a byte cost a request of 1/400000 s and the copy to the GPU. Then come 100 forward
    passes and the all-gather."""
    dataset = {
        "workload__dataset__decode": "0 s",
        "workload__dataset__sample_size__mean": "1 B",
        "cluster__ssd__latency": "0 s",
    }
    scenario = pair(**dataset)
    took = seconds(simulate(scenario), "importance")
    copy = 10 * scenario.workload.model.input_size / 16e9
    # the two workers' first batches share the SSD and the slot
    expected = 2 * 10 / 400e3 + 2 * copy + 100 * times(scenario).forward + all_gather(scenario)
    assert took == pytest.approx(dict.fromkeys(range(8), expected), rel=1e-5)


def test_the_inference_rate_is_that_of_the_profile():
    given = {"forward": "1 ms", "backward": "2 ms", "update": "1 ms"}
    profiles = [given | {"inference": "3 ms"}, given | {"inference": "4 ms"}, given]
    took = [
        seconds(
            simulate(pair(workload__model__accelerators={"v100-sxm2-16gb": times})), "importance"
        )[0]
        for times in profiles
    ]
    assert took[1] - took[0] == pytest.approx(100e-3, rel=0.02)
    # without a rate of its own, that of the forward pass
    assert took[0] - took[2] == pytest.approx(200e-3, rel=0.02)


def test_a_pass_bound_by_loading_takes_what_two_workers_load():
    """100 samples of 20 ms on two workers: 1 s of decoding, five rounds of reading and copying, and
    the last two forward passes.

    The two workers go in step: they share an SSD of 3 GB/s and a slot of 16 GB/s, and their last
    batches come at the same time.
    """
    scenario = pair(workload__dataset__decode="20 ms")
    took = seconds(simulate(scenario), "importance")[0]
    reading = 5 * (10 * 80e-6 + 2 * 10 * 100e3 / 3e9)
    copying = 5 * 2 * 10 * scenario.workload.model.input_size / 16e9
    assert took == pytest.approx(
        1.0 + reading + copying + 2 * 10 * times(scenario).forward + all_gather(scenario), rel=1e-6
    )


def test_lagging_leaves_only_the_all_gather_of_one_double_a_rank():
    scenario = pair(lagging=True)
    timeline = simulate(scenario)
    assert seconds(timeline, "importance") == pytest.approx(
        dict.fromkeys(range(8), all_gather(scenario)), rel=1e-9
    )
    assert plan(scenario).inference is None


def test_lagging_without_pairing_costs_nothing():
    timeline = simulate(pair(lagging=True, kind="importance_exchange"))
    assert seconds(timeline, "importance") == {}
    assert not (report.breakdown(timeline)["label"] == "IMPT").any()


def test_partners_for_less_than_an_epoch_need_the_importances_of_all_samples():
    schedule = {"partner_lifetime": "iteration"}
    scenario = pair(lagging=True, schedule=schedule)
    assert seconds(simulate(scenario), "importance")[0] == pytest.approx(
        all_gather(scenario, each=100 * 8.0), rel=1e-9
    )


def test_the_pass_reads_every_shard_once_more():
    """Without a page cache every epoch reads its samples twice, and those that are sent once more;
    with one, from memory."""
    timeline = simulate(pair(epochs=2))
    trained, moved = 2 * 800 * 100e3, timeline.sources["samples_moved"].sum() * 100e3
    assert timeline.sources["nbytes_ssd"].sum() == pytest.approx(2 * trained + moved)
    cached = simulate(pair(epochs=2, cluster__memory__page_cache="1 GB")).sources
    # the first pass fills the cache
    assert cached["nbytes_ssd"].tolist() == pytest.approx([800 * 100e3, 0.0])
    assert cached["nbytes_memory"].sum() == pytest.approx(2 * trained + moved - 800 * 100e3)


def test_phases_follow_one_another_without_a_gap_from_the_pass_on():
    rows = simulate(pair(epochs=2)).phases
    rows = rows[rows["phase"] != "exchange_hidden"]
    for _, part in rows.sort_values(["start_s", "end_s"]).groupby(["epoch", "rank"]):
        assert part["phase"].iloc[0] == "importance"
        assert part["start_s"].iloc[1:].to_numpy() == pytest.approx(
            part["end_s"].iloc[:-1].to_numpy(), abs=1e-12
        )


def test_the_epoch_of_a_pair_is_the_pass_and_the_lagging_epoch():
    """What is exchanged costs the same: the fresh and the lagging strategy differ by the pass
    alone."""
    fresh, lagging = simulate(pair()), simulate(pair(lagging=True))
    epochs = [report.epochs(t)["epoch_s"].item() for t in (fresh, lagging)]
    measured = [max(seconds(t, "importance").values()) for t in (fresh, lagging)]
    assert epochs[0] - epochs[1] == pytest.approx(measured[0] - measured[1], rel=0.01)


def plan(scenario):
    return next(plan_epochs(scenario, sample_nbytes(scenario)))


def test_selected_samples_are_sent_and_pairs_are_fixed():
    scenario = pair()
    moved = plan(scenario).exchange
    assert (moved.target == moved.target[0]).all()
    assert np.array_equal(moved.target[0][moved.target[0]], np.arange(8))
    assert len(np.unique(moved.sample)) == moved.sample.size == 20 * 8


def test_the_tables_of_several_runs_are_those_of_their_joined_timeline():
    """Each run reports by itself; IMPT stands in the rows of all of them if one of them has it."""
    importance = "importance_exchange:exchange_fraction=0.2"
    for ways in (["local_shuffle", importance], ["local_shuffle", "global_shuffle"]):
        scenario = small(epochs=2).with_values({"sweep": {"workload.exchange": ways}})
        result = run(scenario)
        for found, expected in (
            (result.epochs, report.epochs(result.timeline)),
            (result.breakdown, report.breakdown(result.timeline)),
        ):
            assert found.to_csv() == expected.to_csv()
        labels = result.breakdown.groupby("run")["label"].agg(set)
        assert [("IMPT" in each) for each in labels] == [importance in ways] * 2


@pytest.mark.parametrize(("gpus", "shared_by"), [(2, 1.0), (4, 2.0)])
def test_ranks_share_the_hcas_of_their_host_in_an_all_gather(gpus, shared_by):
    """2 hosts with 2 HCAs of 10 GB/s each: four ranks of a host share them in pairs. Recursive
    doubling, 1,000 numbers of each rank."""
    ranks = 2 * gpus
    host = {"cluster__host__gpus": gpus, "cluster__host__hcas": 2, "cluster__host__pcie_slots": 2}
    scenario = small(world_size=ranks, cluster__topology__hcas_per_host=2, **host)
    resources = Resources(scenario.cluster, ranks, scenario.rng("placement"))
    expected = np.log2(ranks) * LATENCY + (ranks - 1) * 8e3 * shared_by / HCA
    assert gather_seconds(1000.0, resources) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lifetime", "nbytes"), [("epoch", 8.0), ("iteration", 800.0)])
def test_ranks_gather_the_importances_that_training_has_left(lifetime, nbytes):
    """With lagging importances there is no pass: one number of each of 8 ranks is gathered before
    every epoch, or 100 where partners change."""
    scenario = pair(lagging=True, schedule={"partner_lifetime": lifetime}, epochs=2)
    timeline = simulate(scenario)
    for epoch in (1, 2):
        spent = seconds(timeline, "importance", epoch)
        assert list(spent.values()) == pytest.approx([all_gather(scenario, nbytes)] * 8, rel=1e-9)
