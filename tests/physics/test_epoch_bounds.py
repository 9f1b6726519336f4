"""Lower bounds of an epoch: each worked out by hand, and none above what the simulation gives."""

import math

import numpy as np
import pytest

from simshuffle.job.plan.bounds import _samples, bounds
from simshuffle.job.plan.exchange_bound import expected_largest
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.simulate import simulate
from tests.scenarios import random_values, with_values
from tests.small import small

# 8 ranks on 8 hosts, 100 samples of 100 kB each in 10 batches; see tests.small and small-fat-tree
STEP, UPDATE = 0.9083e-3 + 1.817e-3, 0.5679e-3
ALLREDUCE = 14 * 9.6e-6 + 2 * 7 / 8 * 102228128 / 10e9  # the cable binds, not the bus bandwidth
COPY = 602112 / 16e9
exactly = pytest.approx
LUCK = 0.02
"""How far drawn sizes and jitter take an epoch from the mean."""


def epochs(scenario):
    """s of each epoch."""
    ends = simulate(scenario).phases.groupby("epoch", observed=True)["end_s"].max().to_numpy()
    return np.diff(ends, prepend=0.0)


# ----------------------------------------------------------------------------------------- by hand


def test_the_loop_of_local_shuffle():
    found = bounds(small())
    assert found.iterations == 10
    assert found.compute == exactly(100 * STEP + 10 * UPDATE)
    assert found.allreduce == exactly(10 * ALLREDUCE)
    # ten requests one after the other, 1 MB at 3 GB/s, ten decodes of 1 ms, ten copies
    assert found.first_batch == exactly(10 * 80e-6 + 1e6 / 3e9 + 10e-3 + 10 * COPY)
    assert found.epoch == exactly(found.first_batch + 100 * STEP + 10 * (UPDATE + ALLREDUCE))
    assert found.bottleneck == "compute"


def test_the_resources_of_reading_from_the_file_system():
    found = bounds(small(workload__exchange="global_shuffle")).resources
    assert found["file opens"] == exactly(800 / 20e3)
    assert found["PFS bandwidth"] == exactly(800 * 1e5 / 10e9)
    assert found["HCAs"] == exactly(100 * 1e5 / 10e9)
    assert found["decode"] == exactly(100 * 1e-3 / 8)
    assert found["PCIe"] == exactly(100 * COPY)
    # two workers, whose files come after 1 ms each and whose bytes take what the cable carries
    assert found["loader workers"] == exactly(100 * (1e-3 + 1e5 / 10e9 + 1e-3 + COPY) / 2)
    assert found["SSD"] == found["memory"] == found["PFS client"] == 0.0


def test_several_threads_read_and_decode_beside_each_other():
    loader = {"workers": 1, "prefetch": 2, "threads": 5}
    found = bounds(small(workload__exchange="global_shuffle", workload__loader=loader))
    assert found.resources["loader workers"] == exactly(10 * (10e-3 / 5 + 1e-3 / 10 + 10 * COPY))


def test_the_resources_of_reading_from_the_ssd_and_its_requests():
    found = bounds(small()).resources
    assert found["SSD"] == exactly(100 * 1e5 / 3e9)  # the bandwidth binds
    assert found["file opens"] == found["PFS bandwidth"] == 0.0
    few = bounds(small(cluster__ssd__iops="1 k/s")).resources
    assert few["SSD"] == exactly(100 / 1e3)  # the requests


def test_what_the_memory_holds_is_not_read_from_the_ssd():
    found = bounds(small(cluster__memory__page_cache="1 GB", epochs=2)).resources
    assert found["SSD"] == 0.0
    assert found["memory"] == exactly(100 * 1e5 / 100e9)


def test_the_slowest_resource_is_the_bottleneck_and_the_last_batch_follows():
    slow = small(
        workload__exchange="global_shuffle", cluster__parallel_file_system__open_rate="1 k/s"
    )
    found = bounds(slow)
    assert found.bottleneck == "file opens"
    assert found.epoch == exactly(0.8 + 10 * STEP + ALLREDUCE + UPDATE)


def test_the_exchange_of_alike_samples():
    schedule = {"kind": "authors", "partner_rule": "random_pairs", "pickle": "0.4 ms"}
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.5, "schedule": schedule}
    found = bounds(small(workload__exchange=exchange)).exchange
    assert (found.samples, found.messages, found.sending) == (50, 50, 10)
    # read, zero the buffer, decode, pickle, draw 8 ranks; encode, store; remove
    sent = 19e-6 + 86e-6 + 1e-3 + 0.4e-3 + 8 * 15e-9
    assert found.work == exactly(50 * (sent + 0.5e-3 + 1e5 / 1e9 + 17e-6))
    # before 50 messages and after 10 receipts, three message latencies each
    assert found.barriers == exactly(60 * 3 * 1.3e-6)
    assert found.waiting == found.wire == 0.0
    assert found.seconds == exactly(found.work + found.barriers)


def test_ranks_wait_for_the_largest_sample_once_a_message_or_once_an_iteration():
    def waiting(**schedule):
        exchange = {
            "kind": "partial_local_shuffle",
            "exchange_fraction": 0.5,
            "schedule": {
                "kind": "authors",
                "partner_rule": "random_pairs",
                "pickle": "0 s",
                **schedule,
            },
        }
        return bounds(
            small(workload__exchange=exchange, workload__dataset__sample_size__std="100 kB")
        ).exchange.waiting

    excess = (expected_largest(8, 1.0) - 1.0) * 1e-3  # of decoding
    assert waiting() == exactly(50 * excess)
    assert waiting(barriers="iteration") == exactly(10 * excess)
    assert waiting(barriers="none") == exactly(10 * excess)


def test_ranks_of_a_host_store_one_after_the_other():
    exchange = {
        "kind": "partial_local_shuffle",
        "exchange_fraction": 0.5,
        "schedule": {"kind": "authors", "partner_rule": "random_pairs"},
    }
    host = {"cluster.host.gpus": 4, "cluster.host.hcas": 1, "cluster.host.pcie_slots": 1}
    values = {key.replace(".", "__"): value for key, value in host.items()}
    found = bounds(small(workload__exchange=exchange, **values)).exchange
    assert found.waiting == exactly(10 * 3 * 5 * 1e5 / 1e9)  # three others, five samples each


def test_a_message_that_nothing_hides_takes_its_latency_and_its_bytes():
    schedule = {"kind": "authors", "partner_rule": "random_pairs", "overlap": False}
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.1, "schedule": schedule}
    passing = {"latency": "5 us", "stream_bandwidth": "1 GB/s"}
    found = bounds(small(workload__exchange=exchange, cluster__message_passing=passing)).exchange
    assert found.wire == exactly(10 * (5e-6 + 500e3 / 1e9))


def test_the_inference_pass_reads_and_infers_every_shard_once_more():
    exchange = "importance_exchange:exchange_fraction=0,schedule.partner_rule=random_pairs"
    found, local = bounds(small(workload__exchange=exchange)), bounds(small())
    assert found.importance == exactly(100 * 0.9083e-3)
    assert found.resources["decode"] == exactly(2 * local.resources["decode"])


@pytest.mark.parametrize(("ranks", "levels"), [(2, 1), (3, 2), (8, 3)])
def test_a_barrier_takes_the_levels_of_its_tree(ranks, levels):
    assert barrier_seconds(small().cluster, ranks) == exactly(levels * 1.3e-6)


@pytest.mark.parametrize(("count", "spread"), [(2, 0.02), (64, 0.23), (2048, 0.91)])
def test_the_expected_largest_is_that_of_draws(count, spread):
    variance = math.log1p(spread**2)
    draws = np.random.default_rng(1).lognormal(-variance / 2, math.sqrt(variance), (4000, count))
    largest = draws.max(axis=1)
    error = largest.std() / math.sqrt(len(largest))
    assert expected_largest(count, spread) == pytest.approx(largest.mean(), abs=4 * error)
    assert expected_largest(1, spread) == expected_largest(count, 0.0) == 1.0


def test_jitter_makes_all_wait_for_the_slowest_of_each_iteration():
    jitter = bounds(small(workload__jitter={"compute": 0.1, "read": 0})).compute
    # the last batch may be small, so that it is taken at its mean
    waited = 9 * 10 * STEP * (expected_largest(8, 0.1) - 1.0)
    assert jitter == exactly(100 * STEP + 10 * UPDATE + waited)


# ------------------------------------------------------------------------------ against simulations

SCENARIOS = [(number, extreme) for extreme in (False, True) for number in range(20)]


def test_the_scenarios_have_all_overlaps():
    drawn = [random_values(*one)["workload.allreduce"]["overlap"]["kind"] for one in SCENARIOS]
    assert min(drawn.count(kind) for kind in ("none", "ddp", "horovod")) >= 5


@pytest.mark.parametrize(("number", "extreme"), [*SCENARIOS, (66, True)])
def test_no_bound_is_above_the_simulation(number, extreme):
    """Of random scenarios without luck: all samples and latencies alike, partners for all, all in
    memory or nothing."""
    values = random_values(number, extreme)
    values["cluster.parallel_file_system"]["latency_spread"] = 0
    values["workload.jitter"] = {"compute": 0, "read": 0}
    values["workload.dataset"]["sample_size"]["std"] = "0 B"
    if values["cluster.memory"]["page_cache"] != "1e15 B":
        values["cluster.memory"]["page_cache"] = "0 B"
    if "schedule" in values["workload.exchange"]:
        values["world_size"] = 2 * max(values["world_size"] // 2, 1)
        pairs = {"partner_rule": "random_pairs", "partner_scope": "all"}
        values["workload.exchange"]["schedule"] |= pairs
    scenario = with_values(values)
    found, simulated = bounds(scenario), epochs(scenario)[-1]
    assert found.loop <= found.epoch <= simulated * (1 + 1e-9)
    assert max(found.resources.values()) <= simulated


SHIPPED = {
    # name: values that cut it down, and how much of the epoch the bound explains
    "quickstart": ({}, 0.95),
    "paper/scaling": ({"world_size": 128, "workload.dataset.num_samples": 100_000}, 0.85),
    "paper/importance": ({"world_size": 64, "workload.dataset.num_samples": 50_000}, 0.93),
    "paper/congestion-deepcam": ({"world_size": 64, "workload.dataset.num_samples": 2048}, 0.95),
    "validation/cosmoflow-abci": ({"world_size": 64, "workload.dataset.num_samples": 2048}, 0.97),
    "validation/abci-chainer-2020": (
        {"world_size": 16, "workload.dataset.num_samples": 20_000},
        0.97,
    ),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_bound_of_a_shipped_scenario_is_near_and_not_above(name):
    values, least = SHIPPED[name]
    for run, scenario in load_scenario(name, values).runs().items():
        share = bounds(scenario).epoch / epochs(scenario)[-1]
        assert least < share < 1 + LUCK, run


@pytest.mark.parametrize(
    ("samples", "last_batch", "iterations", "expected"),
    [
        # 101 each, of which ten batches of 10 are trained on; the last one is full
        (808, "drop", 10, (100.0, 10)),
        # 100.5 in the mean, in 11 batches; the last one of half the ranks is empty
        (804, "keep", 11, (100.5, 0)),
        (812, "keep", 11, (101.5, 1)),
        # filled from the next epoch
        (804, "carry", 11, (110.0, 10)),
    ],
)
def test_the_samples_of_a_rank_and_of_its_last_batch(samples, last_batch, iterations, expected):
    """Of 8 ranks in batches of 10."""
    values = {"workload__dataset__num_samples": samples, "workload__last_batch": last_batch}
    assert _samples(small(**values), iterations) == pytest.approx(expected)
