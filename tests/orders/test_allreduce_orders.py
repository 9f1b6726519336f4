"""Orders that papers report of how gradients are summed; docs/allreduce.md tells what they rest on.
None of them is put in."""

import pytest

from simshuffle import load_scenario, run
from simshuffle.studies.collective import read_bench

GRADIENTS = 102228128.0
ALGORITHMS = {
    each["kind"]: each for each in load_scenario("paper/allreduce").sweep["workload.allreduce"]
}


def iteration(world_size, overlap, **values):
    """Seconds of an iteration of the last epoch on Summit."""
    set_ = {
        "world_size": world_size,
        "workload.allreduce.overlap": overlap,
        "workload.dataset.num_samples": 64 * 8 * world_size,
    }
    scenario = load_scenario("paper/ddp-horovod", {**set_, **values})
    last = run(scenario).epochs.iloc[-1]
    return last["epoch_s"] / last["iterations"]


def allreduce(kind, hosts):
    """Seconds of an allreduce of ResNet-50's gradients on ABCI."""
    keys = {key: value for key, value in ALGORITHMS[kind].items() if key not in ("kind", "source")}
    return read_bench("paper/allreduce", {}, kind, keys, hosts=hosts).seconds(GRADIENTS)


@pytest.fixture(scope="module")
def few_and_many():
    """Seconds of an iteration by ranks and overlap."""
    ways = ("none", "ddp", "horovod")
    return {(ranks, way): iteration(ranks, way) for ranks in (96, 1536) for way in ways}


def test_ddp_is_ahead_of_horovod_on_1536_gpus_and_not_on_96(few_and_many):
    assert few_and_many[1536, "horovod"] > 1.01 * few_and_many[1536, "ddp"]
    assert few_and_many[96, "horovod"] < 1.005 * few_and_many[96, "ddp"]


def test_ddp_always_gains_on_no_overlap_and_horovod_not_on_1536_gpus(few_and_many):
    for ranks in (96, 1536):
        assert few_and_many[ranks, "ddp"] < few_and_many[ranks, "none"]
    assert few_and_many[1536, "horovod"] > 0.99 * few_and_many[1536, "none"]


def test_horovod_does_not_fall_behind_where_asking_a_rank_costs_nothing(few_and_many):
    free = iteration(1536, "horovod:negotiation_per_rank=0 s")
    assert free < 1.005 * few_and_many[1536, "ddp"]


def test_algorithms_that_follow_the_machine_beat_rings_and_trees_on_abci():
    for hosts in (16, 128):
        for kind in ("torus", "hierarchical"):
            assert allreduce(kind, hosts) < min(allreduce("ring", hosts), allreduce("tree", hosts))


def test_few_gradients_win_on_64_gpus_and_lose_on_512():
    others = [kind for kind in ALGORITHMS if kind != "sparse"]
    assert allreduce("sparse", 16) < 0.4 * min(allreduce(kind, 16) for kind in others)
    assert allreduce("sparse", 128) > max(allreduce(kind, 128) for kind in others)
