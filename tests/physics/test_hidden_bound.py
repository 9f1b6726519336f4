"""The largest exchange that closed forms hide, by hand."""

import pytest

from simshuffle.job.plan import hidden
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.hidden import (
    PARTIAL,
    added_seconds,
    bounds_without_exchange,
    fraction_of,
    hidden_samples,
    largest_hidden_fraction,
    most_samples,
    unexchanged_seconds,
)
from tests.small import small


def test_a_fraction_is_hidden_until_its_host_work_is_the_tolerance():
    """Nothing runs beside the exchange: a rank that sends q of its 100 samples works q times what
    one costs. At 1 % of the epoch that is Q = 0.01 t / (100 w)."""
    scenario = small(workload__exchange="partial_local_shuffle:exchange_fraction=0.5")
    alone, exchanging = bounds(small()), bounds(scenario)
    work = exchanging.exchange.work / exchanging.exchange.samples
    by_hand = 0.01 * alone.epoch / (100 * work)
    assert 0.1 < by_hand < 0.9
    assert 0.95 * by_hand <= largest_hidden_fraction(scenario, 0.01) <= by_hand


def test_an_allreduce_hides_what_a_rank_stores_meanwhile():
    """With gradients summed beside the backward pass, an iteration's allreduce hides that a rank
    stores what it received, for all iterations but the last: 100 Q (w - 0.9 s) = 0.01 t."""
    values = {"workload__allreduce__overlap": "ddp"}
    scenario = small(workload__exchange="partial_local_shuffle:exchange_fraction=0.5", **values)
    alone, exchanging = bounds(small(**values)), bounds(scenario)
    work = exchanging.exchange.work / exchanging.exchange.samples
    stored = 7 / 8 * scenario.cluster.ssd.write_seconds(100e3)  # one of 8 keeps its sample
    assert 10 * stored < alone.allreduce / 10
    by_hand = 0.01 * (alone.epoch + alone.passes.slowed) / (100 * (work - 0.9 * stored))
    assert 0.1 < by_hand < 1
    assert 0.95 * by_hand <= largest_hidden_fraction(scenario, 0.01) <= by_hand


def test_all_or_nothing_may_be_hidden():
    scenario = small(workload__exchange=PARTIAL)
    assert largest_hidden_fraction(scenario, 1.0) == 1.0
    slow = small(workload__exchange=PARTIAL, workload__exchange__schedule__read="1 s")
    assert largest_hidden_fraction(slow, 0.01) == 0.0


def test_a_number_of_samples_is_a_share_of_the_mean_shard():
    """805 samples of 8 ranks: 100 or 101 each."""
    scenario = small(workload__dataset__num_samples=805)
    assert fraction_of(scenario, 50) == pytest.approx(50 / 100.625)
    assert fraction_of(scenario, 100) == 1.0


@pytest.mark.parametrize(
    ("capacity", "samples"),
    [
        # shards of 10 MB, and as much for what is sent
        ("20 MB", 100),
        ("19.95 MB", 99),
        ("13 MB", 30),
        ("10.2 MB", 2),
        ("10.1 MB", 1),
        ("10.05 MB", 1),  # one is tried even without room
    ],
)
def test_a_rank_exchanges_as_many_samples_as_its_host_has_room_for(capacity, samples):
    exchange = "partial_local_shuffle:exchange_fraction=0"
    scenario = small(workload__exchange=exchange, cluster__ssd__capacity=capacity)
    assert most_samples(scenario) == samples


def test_storing_counts_as_use_of_the_ssd_that_samples_are_read_from():
    """4 ranks of a host read 100 samples of 100 kB each at 20 MB/s, which binds: 2 s. Each stores
    another 50 at 10 MB/s: 2 s more."""
    half = {
        "kind": "partial_local_shuffle",
        "exchange_fraction": 0.5,
        "schedule": {"partner_rule": "random_pairs"},
    }
    values = {
        "cluster__host__gpus": 4,
        "cluster__ssd__read_bandwidth": "20 MB/s",
        "cluster__ssd__write_bandwidth": "10 MB/s",
        "epochs": 5,
    }
    scenario = small(workload__exchange=half, **values)
    alone = bounds_without_exchange(scenario)
    assert alone.bottleneck == "SSD"
    assert added_seconds(alone, scenario) == pytest.approx(4 * 50 * 1e5 / 10e6)
    # staged in memory nothing but the loop takes longer
    memory = small(workload__exchange=half, workload__staging={"target": "memory"}, **values)
    alone = bounds_without_exchange(memory)
    found = bounds(memory.with_values({"epochs": 2})).exchange.seconds
    assert added_seconds(alone, memory) == pytest.approx(found)


def test_samples_that_are_hidden_are_known_to_a_percent():
    """A sample adds 10 ms for its reading, and 0.1 ms or so: in 0.5 s there are 49."""
    slow = small(workload__exchange=PARTIAL, workload__exchange__schedule__read="10 ms")
    alone = bounds_without_exchange(slow)
    each = added_seconds(alone, slow) / 10  # a tenth of 100 samples
    assert 8.75e-3 < each < 9e-3  # one of eight stays with its rank
    assert hidden_samples(alone, slow, 49.5 * each, 100) == 49
    assert hidden_samples(alone, slow, 49.5 * each, 30) == 30
    assert hidden_samples(alone, slow, 0.5 * each, 100) == 0
    assert hidden_samples(alone, slow, 1000.0, 100) == 100
    many = slow.with_values({"workload.dataset.num_samples": 80_000})
    alone = bounds_without_exchange(many)
    found = hidden_samples(alone, many, 5000.5 * each, 10_000)
    assert 4950 < found <= 5000
    assert unexchanged_seconds(alone) == alone.epoch + alone.passes.slowed


@pytest.mark.parametrize(("allowed", "samples"), [(0.0, 0), (6.0, 3), (7.0, 3), (200.0, 100)])
def test_what_adds_just_as_much_as_is_allowed_is_hidden(monkeypatch, allowed, samples):
    """2 s for each of 100 samples of a rank."""
    monkeypatch.setattr(
        hidden,
        "added_seconds",
        lambda _, scenario: 2.0 * round(100 * scenario.workload.exchange.fraction),
    )
    scenario = small(workload__exchange=PARTIAL)
    assert hidden_samples(bounds_without_exchange(scenario), scenario, allowed, 100) == samples
