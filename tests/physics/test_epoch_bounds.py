"""Lower bounds of an epoch: each worked out by hand, and none above what the simulation gives."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simshuffle.job.plan.bounds import (
    Bounds,
    Compute,
    _samples,
    allreduce_seconds,
    allreduce_seconds_alone,
    bounds,
)
from simshuffle.job.plan.exchange_bound import (
    MOST_STEPS,
    ExchangeBound,
    exchange_bound,
    expected_largest,
    moving_share,
    step_seconds,
)
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


def test_the_expected_larger_of_two_has_a_closed_form():
    """2 Phi(s / sqrt 2) for normal variables of standard deviation s, here s^2 = ln 2."""
    assert expected_largest(2, 1.0) == pytest.approx(1 + math.erf(math.sqrt(math.log(2)) / 2), 1e-5)


def test_a_step_of_a_shard_that_is_smaller_than_a_batch():
    assert step_seconds(small(workload__dataset__num_samples=24)) == exactly(3 * STEP)


def test_jitter_makes_all_wait_for_the_slowest_of_each_iteration():
    jitter = bounds(small(workload__jitter={"compute": 0.1, "read": 0})).compute
    # the last batch may be small, so that it is taken at its mean
    waited = 9 * 10 * STEP * (expected_largest(8, 0.1) - 1.0)
    assert jitter == exactly(100 * STEP + 10 * UPDATE + waited)


# ------------------------------------------------------------------ parts that are seldom all there

PARTS = Bounds(
    iterations=10,
    passes=Compute(given=10.0, hooks=2.0, jitter=1.0, slowed=5.0),
    allreduce=3.0,
    exchange=ExchangeBound(work=4.0, waiting=1.0, barriers=0.5, wire=0.25, hidden=2.0),
    importance=6.0,
    first_batch=7.0,
    last_batch=1.5,
    resources={"memory": 3.0, "SSD": 20.0, "HCAs": 2.0},
)


def test_an_epoch_is_its_loop_or_its_slowest_resource():
    """13 s of compute, 5.75 of the exchange, of which 2 are hidden."""
    assert PARTS.steps == 13.0 + 3.0 + 5.75 - 2.0
    assert PARTS.loop == PARTS.epoch == 7.0 + 19.75 + 6.0
    assert PARTS.bottleneck == "compute"
    as_long = replace(PARTS, resources={"memory": 3.0, "SSD": 31.25})
    assert (as_long.epoch, as_long.bottleneck) == (32.75, "compute")
    longer = replace(PARTS, resources={"memory": 3.0, "SSD": 31.5, "HCAs": 2.0})
    assert (longer.epoch, longer.bottleneck) == (33.0, "SSD")


@pytest.mark.parametrize(
    ("part", "bottleneck"),
    [
        ({"allreduce": 13.5}, "allreduce"),
        ({"importance": 13.5}, "importance pass"),
        ({"first_batch": 13.5}, "first batch"),
        ({"exchange": ExchangeBound(work=13.5, hidden=13.0)}, "exchange"),
        ({"exchange": ExchangeBound(work=12.5)}, "compute"),
    ],
)
def test_the_longest_part_of_the_loop_is_the_bottleneck(part, bottleneck):
    assert replace(PARTS, **part).bottleneck == bottleneck


LAYERS = {"parameters": [40_000_000, 30_000_000, 20_000_000, 10_000_000], "backward": [8, 6, 4, 2]}
"""Gradients of 40, 80, 120 and 160 MB, ready after 0.1, 0.3, 0.6 and 1 of the backward pass."""
DDP = {"kind": "ddp", "bucket": "100 MB", "first_bucket": "20 MB"}


def four_layers(overlap: dict[str, Any], **values: Any) -> Any:
    """Two ranks and four iterations; backward passes of 20 ms, and a hook that takes 4 ms."""
    return small(
        **{
            "world_size": 2,
            "workload__dataset__num_samples": 80,
            "workload__model": {
                "name": "four layers",
                "gradient_size": "400 MB",
                "layers": LAYERS,
                "accelerators": {
                    "v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms", "update": "0.5 ms"}
                },
            },
            "workload__allreduce__overlap": {"slowdown": 0.25, "hooks": "4 ms", **overlap},
            **values,
        }
    )


def of_ring(megabytes: float, bandwidth: float = 10e9) -> float:
    """s of a ring of two hosts: two steps, in which each sends all bytes once."""
    return 2 * 9.6e-6 + megabytes * 1e6 / bandwidth


def test_gradients_beside_the_backward_pass_add_hooks_and_slow_it():
    """Buckets of 40, 200 and 160 MB take 4.0192, 20.0192 and 16.0192 ms alone. The pass of 24 ms
    has done 2.4 ms when the first is posted, and does three quarters of what the clock says while
    it travels. The second is posted after 14.4 ms of the pass, which lasts 9.6 / 0.75 more; the
    last one after the pass."""
    found = bounds(four_layers(DDP))
    travelling = of_ring(40) + 9.6e-3 / 0.75
    assert found.passes.slowed == exactly(4 * 0.25 * travelling)
    assert found.passes.given == exactly(40 * 3e-3 + 4 * 0.5e-3)
    assert found.passes.hooks == exactly(4 * 4e-3)
    assert found.compute == exactly(found.passes.given + found.passes.hooks)
    # all but what fits into the pass without hooks shows
    shown = of_ring(40) + of_ring(200) + of_ring(160) - 20e-3
    assert found.allreduce == exactly(4 * shown)
    assert found.last_batch == exactly(10 * 3e-3 + shown + 0.5e-3)


def test_the_first_of_two_buckets_that_are_ready_late_slows_all_that_is_left():
    """Buckets of 120 MB at 0.3 of the pass, and of 280 at its end: 7.2 of 24 ms, then the first
    takes 12.0192 ms, in which the pass does three quarters of that."""
    found = bounds(four_layers(DDP | {"first_bucket": "50 MB", "bucket": "250 MB"}))
    assert found.passes.slowed == exactly(4 * 0.25 * of_ring(120))


@pytest.mark.parametrize("overlap", [{"kind": "none"}, DDP | {"slowdown": 0}])
def test_nothing_slows_a_pass_without_overlap_or_slowdown(overlap):
    keys = overlap if "slowdown" in overlap else {"slowdown": None, "hooks": None, **overlap}
    given = {key: value for key, value in keys.items() if value is not None}
    scenario = four_layers(DDP, workload__allreduce__overlap=given)
    assert bounds(scenario).passes.slowed == 0.0


@pytest.mark.parametrize(
    ("overlap", "bandwidth", "shown", "alone"),
    [
        # 40 ms of buckets are longer than the pass; of faster ones (as PCIe is) one shows
        (DDP, "10 GB/s", 3 * of_ring(0) + 40e-3 - 20e-3, 3 * of_ring(0) + 40e-3),
        (DDP, "40 GB/s", of_ring(160, 16e9), 3 * of_ring(0) + 400e6 / 16e9),
        # Horovod may fuse all but the last layer
        ({"kind": "horovod"}, "10 GB/s", of_ring(160), of_ring(400)),
    ],
)
def test_the_allreduces_that_show(overlap, bandwidth, shown, alone):
    scenario = four_layers(overlap, cluster__topology__link_bandwidth=bandwidth)
    assert allreduce_seconds(scenario) == exactly(shown)
    assert allreduce_seconds_alone(scenario) == exactly(alone)


def test_without_overlap_one_allreduce_shows_whole():
    scenario = four_layers(DDP, workload__allreduce__overlap="none")
    assert allreduce_seconds(scenario) == allreduce_seconds_alone(scenario) == exactly(of_ring(400))


def test_a_shard_smaller_than_a_batch_makes_a_shorter_backward_pass():
    """Five samples each: a pass of 10 ms."""
    scenario = four_layers(DDP, workload__dataset__num_samples=10)
    shown = of_ring(40) + of_ring(200) + of_ring(160) - 10e-3
    assert allreduce_seconds(scenario) == exactly(shown)


@pytest.mark.parametrize(
    "values", [{"workload__allreduce__order": "shuffled"}, {"cluster__placement": "scattered"}]
)
def test_an_allreduce_of_drawn_hosts_is_bounded_without_domains(values):
    """On one switch all hosts are alike."""
    assert bounds(small(**values)).allreduce == exactly(10 * ALLREDUCE)


def test_one_rank_sums_nothing():
    found = bounds(four_layers(DDP, world_size=1))
    assert (found.allreduce, found.passes.slowed) == (0.0, 0.0)
    assert allreduce_seconds_alone(four_layers(DDP, world_size=1)) == 0.0


@pytest.mark.parametrize(("factor", "passes"), [(0.5, 0.5), (2.0, 1.0)])
def test_of_training_that_is_divided_only_the_passes_are_bounded(factor, passes):
    """And these by no more than they take undivided; nobody updates or sums in the bound."""
    divided = f"channel:ways=2,compute_factor={factor}"
    jitter = {"compute": 0.1, "read": 0}
    scenario = small(workload__parallelism=divided, workload__jitter=jitter)
    found = bounds(scenario)
    assert found.passes.given == exactly(passes * 100 * STEP)
    assert found.passes.jitter == exactly(passes * 9 * 10 * STEP * (expected_largest(8, 0.1) - 1))
    assert found.passes.hooks == found.allreduce == allreduce_seconds_alone(scenario) == 0.0
    assert found.last_batch == exactly(passes * 10 * STEP)


def test_what_an_iteration_takes_whatever_its_batch_counts_once_for_each():
    found = bounds(
        small(
            workload__jitter={"compute": 0.1, "read": 0},
            **{"workload__model__accelerators__v100-sxm2-16gb__fixed": "3 ms"},
        )
    )
    assert found.passes.given == exactly(100 * STEP + 10 * (UPDATE + 3e-3))
    waited = 9 * (10 * STEP + 3e-3) * (expected_largest(8, 0.1) - 1.0)
    assert found.passes.jitter == exactly(waited)
    assert found.last_batch == exactly(10 * STEP + ALLREDUCE + UPDATE)


def test_sequences_of_several_documents_take_less_computing():
    """Of four: a quarter of all pairs of tokens, half of the computing, so 5/8."""
    tokens = {
        "sequence_length": 1000,
        "document_length": {"mean": 250, "std": 0},
        "attention": "documents",
        "attention_share": 0.5,
    }
    scenario = small(
        workload__dataset={"name": "tokens", "num_samples": 800, "tokens": tokens},
        workload__exchange="importance_exchange:exchange_fraction=0",
        workload__jitter={"compute": 0.1, "read": 0},
    )
    found = bounds(scenario)
    work = 5 / 8
    assert found.passes.given == exactly(work * 100 * STEP + 10 * UPDATE)
    assert found.importance == exactly(work * 100 * 0.9083e-3)
    assert found.passes.jitter == exactly(9 * work * 10 * STEP * (expected_largest(8, 0.1) - 1))
    # two buckets of 1 kB and the rest: the pass hides as much of them as it lasts
    overlap = {"kind": "ddp", "slowdown": 0, "hooks": "0 s"}
    slow = {"workload.allreduce.inter_host_bus_bandwidth": "1 GB/s"}
    beside = scenario.with_values({"workload.allreduce.overlap": overlap, **slow})
    hidden = allreduce_seconds_alone(beside) - allreduce_seconds(beside)
    assert hidden == exactly(work * 10 * 1.817e-3)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"epochs": 1}, 1.0),
        ({"epochs": 2}, 0.6),  # four of ten batches were loaded in the epoch before
        ({"epochs": 2, "workload__loader__prefetch": 20}, 0.0),
    ],
)
def test_a_loader_across_epochs_has_loaded_the_first_batches(values, share):
    alone = {"workload__exchange": "global_shuffle", "epochs": values["epochs"]}
    across = bounds(small(**alone | values, workload__loader__across_epochs=True))
    plain = bounds(small(**alone | values))
    assert across.resources == exactly({k: share * s for k, s in plain.resources.items()})
    assert across.first_batch == (plain.first_batch if share == 1.0 else 0.0)


def test_what_is_received_is_written_to_the_ssd_from_which_samples_are_read():
    """By 4 ranks of a host 100 samples each, and 50 more, of which one in eight stays."""
    values = {"cluster__host__gpus": 4}
    half = {"kind": "partial_local_shuffle", "exchange_fraction": 0.5}
    on_ssd = bounds(small(workload__exchange=half, **values)).resources
    assert on_ssd["SSD"] == exactly(4 * (100 * 1e5 / 3e9 + 50 * 7 / 8 * 1e5 / 1e9))
    in_memory = bounds(
        small(workload__exchange=half, workload__staging={"target": "memory"}, **values)
    ).resources
    assert in_memory["SSD"] == 0.0


# --------------------------------------------------------------------------- the exchange, unevenly


def uneven_exchange(schedule: dict[str, Any], **values: Any) -> Any:
    """6 ranks on 3 hosts with 127 samples: 21 or 22 a rank, of which 11 are sent in two iterations:
    five in the first, and six."""
    return small(
        **{
            "cluster__host__gpus": 2,
            "world_size": 6,
            "workload__dataset__num_samples": 127,
            "workload__dataset__sample_size": {"mean": "100 kB", "std": "50 kB"},
            "workload__exchange": {
                "kind": "partial_local_shuffle",
                "exchange_fraction": 0.5,
                "schedule": {"kind": "authors", "pickle": "0.4 ms", "write": "2 ms", **schedule},
            },
            **values,
        }
    )


# read, zero the buffer, decode, pickle; write beside the device, store; remove
SIZED = 1e-3 + 0.4e-3
STORE = 1e5 / 1e9
SAMPLE = 19e-6 + 86e-6 + SIZED + 2e-3 + STORE + 17e-6
DRAW = 6 * 15e-9
BARRIER = 3 * 1.3e-6  # three levels for 6 ranks


@pytest.mark.parametrize(
    ("schedule", "messages", "draws", "share", "barriers"),
    [
        # each sample a message and a draw: barriers before 11 and after 2
        ({}, 11, 11, 5 / 6, 13),
        # two to a message: three messages in each iteration
        ({"samples_per_message": 2, "partner_lifetime": "iteration"}, 6, 2, 5 / 6, 8),
        ({"barriers": "iteration", "partner_lifetime": "epoch"}, 11, 1, 5 / 6, 4),
        ({"barriers": "none", "partner_rule": "random_pairs"}, 11, 11, 1.0, 0),
        # of a permutation of each host's ranks one of two stays in the mean
        ({"partner_scope": "host"}, 11, 11, 1 / 2, 13),
    ],
)
def test_the_parts_of_an_uneven_exchange(schedule, messages, draws, share, barriers):
    scenario = uneven_exchange(schedule)
    found = exchange_bound(scenario, 2, 0.0)
    assert (found.samples, found.messages, found.sending) == (11, messages, 2)
    assert moving_share(scenario) == exactly(share)
    assert found.work == exactly(share * 11 * SAMPLE + draws * DRAW)
    assert found.barriers == exactly(barriers * BARRIER)
    # in each iteration for the largest of what moves: storing lasts longer than decoding; ranks of
    # a host store 5.5 samples one after the other, which decoding hides
    excess = expected_largest(round(share * 6), 0.5) - 1.0
    meeting = (2e-3 + STORE) * excess
    extra = messages - 2 if scenario.workload.exchange.schedule.barriers == "message" else 0
    # once less, as a shard of 22 samples has one more to compute
    unequal = min(meeting, STEP)
    assert found.waiting == exactly(extra * SIZED * excess + 2 * meeting - unequal)
    assert found.hidden == 0.0


def test_a_wait_for_the_slowest_computing_hides_that_for_the_largest_sample():
    jitter = expected_largest(6, 0.01) - 1.0
    meeting = (2e-3 + STORE) * (expected_largest(5, 0.5) - 1.0) - 10 * STEP * jitter
    assert 0 < meeting < STEP
    found = exchange_bound(
        uneven_exchange({"barriers": "none"}, workload__jitter={"compute": 0.01, "read": 0}),
        2,
        0.0,
    )
    assert found.waiting == exactly(2 * meeting - meeting)
    longer = uneven_exchange({"barriers": "none"}, workload__jitter={"compute": 0.5, "read": 0})
    assert exchange_bound(longer, 2, 0.0).waiting == 0.0


@pytest.mark.parametrize(("std", "in_turn"), [("0 B", 3), ("50 kB", 2)])
def test_ranks_of_a_host_wait_for_their_device_beyond_their_head_start(std, in_turn):
    """4 ranks of a host with 10 samples to store each, on an SSD of 20 MB/s: three of them before
    the last. The first to have decoded its samples is ahead by what the largest of 4 lasts longer,
    at most once, and so is the first to have computed."""
    scenario = small(
        cluster__host__gpus=4,
        cluster__ssd__write_bandwidth="20 MB/s",
        workload__jitter={"compute": 0.01, "read": 0},
        workload__dataset__sample_size={"mean": "100 kB", "std": std},
        workload__exchange={
            "kind": "partial_local_shuffle",
            "exchange_fraction": 1.0,
            "schedule": {
                "kind": "authors",
                "partner_rule": "random_pairs",
                "barriers": "iteration",
                "pickle": "0 s",
            },
        },
    )
    spread = 0.0 if std == "0 B" else 0.5
    ahead = 10 * STEP * (expected_largest(4, 0.01) - 1.0)
    ahead += 10 * 1e-3 * min(1.0, expected_largest(4, spread) - 1.0)
    device = 3 * 10 * 5e-3 - ahead
    meeting = device - 10 * STEP * (expected_largest(8, 0.01) - 1.0)
    assert exchange_bound(scenario, 10, 0.0).waiting == exactly(10 * meeting)


def test_samples_that_are_staged_in_memory_are_stored_there():
    memory = 1e5 / 100e9
    scenario = uneven_exchange({}, workload__staging={"target": "memory"})
    work = 5 / 6 * 11 * (SAMPLE - STORE + memory) + 11 * DRAW
    assert exchange_bound(scenario, 2, 0.0).work == exactly(work)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"world_size": 1}, 0.0),
        ({"world_size": 5, "schedule": {"partner_rule": "random_pairs"}}, 4 / 5),
        ({"world_size": 5}, 4 / 5),
        ({"world_size": 6, "schedule": {"partner_rule": "random_pairs"}}, 1.0),
        (
            {
                "world_size": 6,
                "schedule": {"partner_rule": "random_pairs", "partner_scope": "host"},
            },
            1.0,
        ),
        ({"world_size": 2, "schedule": {"partner_scope": "host"}}, 1 / 2),
    ],
)
def test_the_share_that_surely_moves(values, share):
    values = {"schedule": {}, **values}
    assert moving_share(uneven_exchange(**values)) == exactly(share)


def test_nothing_surely_moves_where_pairs_may_exchange_nothing():
    schedule = {"partner_rule": "importance_sorted", "least_difference": 0.1}
    exchange = {"kind": "importance_exchange", "exchange_fraction": 0.5, "schedule": schedule}
    assert moving_share(small(workload__exchange=exchange)) == 0.0
    assert moving_share(small()) == 0.0  # which exchanges nothing


@pytest.mark.parametrize(("barriers", "latencies"), [("message", 1), ("none", 0)])
@pytest.mark.parametrize("reduced", [1e-3, 0.1])
def test_an_allreduce_beside_the_backward_pass_hides_what_is_received(barriers, latencies, reduced):
    """Of 5.5 samples of 2.1 ms each iteration, and a barrier; as long as the allreduce lasts, in
    all iterations that send but one."""
    scenario = uneven_exchange({"barriers": barriers}, workload__allreduce__overlap="ddp")
    received = 5 / 6 * 5.5 * (2e-3 + STORE) + latencies * BARRIER
    found = exchange_bound(scenario, 2, reduced)
    assert found.hidden == exactly(min(received, reduced))


def test_waits_for_slower_ranks_hide_what_is_received_where_none_meet(monkeypatch):
    """A step takes 27.25 ms times 1 or 2, and storing 10 ms after an allreduce that hides 1 ms. The
    rank that computes longest is 9 ms late to the second iteration, and all wait for that."""
    times = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 1.0]])

    def drawn(ranks: int, spread: float) -> Any:
        assert (ranks, spread) == (2, 0.3)
        return times

    monkeypatch.setattr("simshuffle.job.plan.exchange_bound._compute_times", drawn)
    scenario = small(
        world_size=2,
        workload__jitter={"compute": 0.3, "read": 0},
        workload__dataset__num_samples=60,
        workload__allreduce__overlap="ddp",
        workload__exchange={
            "kind": "partial_local_shuffle",
            "exchange_fraction": 1.0,
            "schedule": {"partner_rule": "random_pairs", "write": "0.9 ms"},
        },
    )
    # 10 samples of 0.9 + 0.1 ms: the first rank has waited for its, the second is late by 9 ms,
    # then again; in the third the first rank is the slowest, and not late
    late = 10e-3 - 1e-3
    assert exchange_bound(scenario, 3, 1e-3).hidden == exactly(2 * (10e-3 - late / 3))


def test_the_bound_of_another_exchange_is_not_that_of_the_last():
    """The counts of the last schedule are kept: with another quota, rate or number of iterations
    they are counted again."""
    scenario = uneven_exchange({})
    assert exchange_bound(scenario, 2, 0.0).sending == 2
    assert exchange_bound(scenario, 1, 0.0).sending == 1
    few = scenario.with_values({"workload.exchange.exchange_fraction": 0.05})
    found = exchange_bound(few, 2, 0.0)  # one sample, with the last iteration
    assert (found.samples, found.messages, found.sending) == (1, 1, 1)
    none = scenario.with_values({"workload.exchange.exchange_fraction": 0.01})
    assert exchange_bound(none, 2, 0.0) == ExchangeBound()
    assert exchange_bound(small(), 10, 0.0) == ExchangeBound()


def test_of_very_many_steps_no_more_messages_than_iterations_are_counted():
    scenario = uneven_exchange({})
    found = exchange_bound(scenario, MOST_STEPS + 1, 0.0)
    assert (found.messages, found.sending) == (11, 11)
    assert found.work == exactly(5 / 6 * 11 * SAMPLE)  # draws are not counted


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
