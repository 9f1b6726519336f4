"""What every epoch reads and sends, worked out without the simulator."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from simshuffle.job.plan.cache_tier import TierReads
from simshuffle.job.plan.epochs import (
    EpochPlan,
    Reads,
    _fill_last_batch,
    cached_share,
    plan_epochs,
    sample_nbytes,
)
from simshuffle.job.plan.findings import exchange_nbytes, exchange_samples
from simshuffle.job.plan.holding import staging_seconds
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.spec.rng import stream
from simshuffle.workload.exchange import initial_owner
from simshuffle.workload.exchange.plan import shuffled_shards

STRATEGIES = [
    "global_shuffle:source=pfs",
    "global_shuffle:source=ssd",
    "local_shuffle",
    "local_shuffle:source=pfs",
    "partial_local_shuffle:exchange_fraction=0.3",
    "partial_local_shuffle:exchange_fraction=1",
]


def scenario(exchange: str = STRATEGIES[4], **values: Any) -> Scenario:
    """1003 samples of 1 MB in the mean on 6 ranks of two hosts, 7 samples a batch."""
    given = {
        "world_size": 6,
        "epochs": 3,
        "workload.exchange": exchange,
        "workload.local_batch_size": 7,
        "workload.last_batch": "keep",
        "workload.dataset.num_samples": 1003,
        "workload.dataset.sample_size": {"mean": "1 MB", "std": "600 kB"},
    }
    return load_scenario(
        "quickstart", given | {key.replace("__", "."): value for key, value in values.items()}
    )


def plans(run: Scenario) -> tuple[Any, list[EpochPlan]]:
    nbytes = sample_nbytes(run)
    return nbytes, list(plan_epochs(run, nbytes))


@pytest.fixture(params=STRATEGIES)
def exchange(request: pytest.FixtureRequest) -> str:
    return request.param


# -------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("count", [1, 2, 3, 1003, 200_001])
def test_many_samples_are_shuffled_as_few(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code and numpy: equal owners, equal shards, equal numbers afterwards."""

    def draw(many_samples: int) -> list[Any]:
        limit = "simshuffle.workload.exchange.plan.MANY_SAMPLES"
        monkeypatch.setattr(limit, many_samples)
        rng = stream(1, "partition")
        owner = initial_owner(count, 6, rng)
        shards = shuffled_shards(owner, 6, rng)
        return [owner.tolist(), shards.order.tolist(), shards.start.tolist(), rng.random()]

    assert draw(1) == draw(1 << 40)


def test_moves_are_computed_once() -> None:
    """Every message asks for them: computed anew, they took hours of many samples."""
    _, epochs = plans(scenario())
    exchange = epochs[0].exchange
    assert exchange.moving is exchange.moving


@pytest.mark.parametrize("cached", [0.2, 0.7, 9.0])
@pytest.mark.parametrize("part", [1, 400, 1003])
def test_plans_are_the_same_whatever_is_made_at_once(exchange, cached, part, monkeypatch):
    """Arrays of all samples are made a few ranks at a time: one, two and all six of them."""
    run = scenario(exchange, cluster__memory__page_cache=f"{cached * 500} MB", epochs=4)
    _, expected = plans(run)
    monkeypatch.setattr("simshuffle.workload.exchange.plan.SAMPLES_AT_ONCE", part)
    shards = expected[0].shards
    assert len(list(shards.rank_slices())) == {1: 6, 400: 3, 1003: 1}[part]
    _, found = plans(run)
    for plan, other in zip(found, expected, strict=True):
        for name in ("samples", "nbytes", "hit_samples", "hit_nbytes"):
            assert np.array_equal(getattr(plan.training, name), getattr(other.training, name))
        assert np.array_equal(plan.sent_from_cache, other.sent_from_cache)


def test_sums_of_shards():
    nbytes, (plan, *_) = plans(scenario())
    each = np.split(nbytes[plan.shards.order], plan.shards.start[1:-1])
    assert plan.shards.sums(nbytes) == pytest.approx([part.sum() for part in each], rel=1e-12)


@pytest.mark.parametrize("cache", ["0 B", "20 GB", "300 GB"])
def test_a_sample_of_the_set_takes_few_bytes(cache):
    """Under global shuffle its size, 8 B, its place, 4 B, and the host that read it and how much
    after it, 6 B, are kept; little more is made at once."""
    run = scenario(
        STRATEGIES[0],
        epochs=2,
        cluster__memory__page_cache=cache,
        workload__dataset__num_samples=1_000_000,
        workload__dataset__sample_size={"mean": "100 kB", "std": "60 kB"},
        workload__local_batch_size=64,
    )
    tracemalloc.start()
    try:
        nbytes = sample_nbytes(run)
        for _ in plan_epochs(run, nbytes):
            pass
        assert tracemalloc.get_traced_memory()[1] < 45 * len(nbytes)
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------ batches


def test_every_sample_is_in_a_batch(exchange):
    """1003 samples on 6 ranks: shards of 167 and 168, which are 24 batches of 7, the last one short
    in most of them."""
    _, epochs = plans(scenario(exchange))
    assert [plan.epoch for plan in epochs] == [1, 2, 3]
    for plan in epochs:
        assert plan.iterations == 24
        assert plan.training.samples.shape == plan.training.nbytes.shape == (24, 6)
        assert plan.training.samples.sum(axis=0).tolist() == plan.shards.sizes.tolist()
        assert sorted(plan.shards.sizes.tolist()) == [167] * 5 + [168]
        assert (plan.training.samples[:-1] == 7).all()
        assert sorted(plan.training.samples[-1].tolist()) == [6] * 5 + [7]


@pytest.mark.parametrize("rule", ["keep", "nearest", "drop"])
def test_bytes_of_a_batch_are_those_of_its_samples(exchange, rule):
    nbytes, epochs = plans(
        scenario(exchange, workload__last_batch=rule, workload__local_batch_size=20)
    )
    for plan in epochs:
        for rank in range(6):
            mine = plan.shards.order[plan.shards.start[rank] : plan.shards.start[rank + 1]]
            for iteration in range(plan.iterations):
                batch = mine[20 * iteration : 20 * (iteration + 1)]
                assert plan.training.samples[iteration, rank] == len(batch)
                assert plan.training.nbytes[iteration, rank] == pytest.approx(
                    nbytes[batch].sum(), rel=1e-9
                )


def test_remainder_of_a_shard_is_dropped_on_request():
    """167 or 168 samples are 8.4 batches of 20: 9 with the remainder, 8 without; nearest is 8."""
    counts = {
        rule: plans(scenario(workload__last_batch=rule, workload__local_batch_size=20))[1][0]
        for rule in ("keep", "nearest", "drop")
    }
    assert {rule: plan.iterations for rule, plan in counts.items()} == {
        "keep": 9,
        "nearest": 8,
        "drop": 8,
    }
    assert set(counts["drop"].training.samples.sum(axis=0).tolist()) == {160}


def test_sizes_are_drawn_once(exchange):
    run = scenario(exchange)
    nbytes = sample_nbytes(run)
    assert nbytes.shape == (1003,)
    assert np.array_equal(nbytes, sample_nbytes(scenario("local_shuffle", epochs=9)))
    assert not np.array_equal(nbytes, sample_nbytes(scenario(exchange, seed=99)))
    assert nbytes.mean() == pytest.approx(1e6, abs=4 * 6e5 / math.sqrt(1003))


# ------------------------------------------------------------------------------------------- epochs


def test_owners_go_from_epoch_to_epoch(exchange):
    """A rank trains on what it owns after the exchanges before; under global shuffle on any 1/M."""
    run = scenario(exchange)
    owner = initial_owner(1003, 6, run.rng("partition"))
    for plan in plans(run)[1]:
        holders = np.empty(1003, int)
        holders[plan.shards.order] = np.repeat(np.arange(6), plan.shards.sizes)
        if exchange.startswith("global"):
            assert np.mean(holders == owner) < 0.5
        else:
            assert np.array_equal(holders, owner)
        owner = plan.exchange.apply(owner)


def test_orders_differ_between_epochs(exchange):
    orders = [plan.shards.order for plan in plans(scenario(exchange))[1]]
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[1], orders[2])


def test_plans_are_the_same_every_time_and_for_more_epochs(exchange):
    short, long = plans(scenario(exchange))[1], plans(scenario(exchange, epochs=5))[1]
    assert len(long) == 5
    for a, b in zip(short, long, strict=False):
        assert np.array_equal(a.shards.order, b.shards.order)
        assert np.array_equal(a.exchange.target, b.exchange.target)
        assert np.array_equal(a.training.nbytes, b.training.nbytes)


def test_strategies_start_from_the_same_partition():
    """So that their runs can be compared: the same order in the first epoch of all strategies that
    keep shards."""
    local, partial = (
        plans(scenario(exchange))[1][0].shards for exchange in ("local_shuffle", STRATEGIES[4])
    )
    assert np.array_equal(local.order, partial.order)


def test_exchange_of_an_epoch():
    """Q N/M = 0.3 x 1003 / 6 = 50.15 samples: 50, 50 and 50, at 2.1 an iteration."""
    run = scenario()
    assert exchange_samples(run) == pytest.approx(50.15)
    for plan in plans(run)[1]:
        assert plan.exchange.sample.shape == (50, 6)
        sent = np.bincount(plan.exchange.iteration, minlength=24)
        assert np.cumsum(sent).tolist() == [min(21 * (i + 1) // 10, 50) for i in range(24)]
        assert np.array_equal(plan.exchange.sample, plan.shards.first(50))


@pytest.mark.parametrize(("payload", "each"), [("decoded", 196608), ("encoded", 1e6)])
def test_bytes_sent_in_an_epoch(payload, each):
    run = scenario(f"partial_local_shuffle:exchange_fraction=0.3,schedule.payload={payload}")
    assert exchange_nbytes(run) == pytest.approx(50.15 * each)
    assert exchange_nbytes(scenario("local_shuffle")) == 0


# -------------------------------------------------------------------------------------- page caches


def hit_share(plan: EpochPlan) -> float:
    """Share of the bytes read that is in memory."""
    return float(plan.training.hit_nbytes.sum() / plan.training.nbytes.sum())


def test_first_epoch_is_cold(exchange):
    first = plans(scenario(exchange, cluster__memory__page_cache="300 GB"))[1][0]
    assert not first.training.hit_samples.any()
    assert not first.training.hit_nbytes.any()
    assert not first.sent_from_cache.any()


@pytest.mark.parametrize("strategy", STRATEGIES[:4])
def test_the_estimate_of_a_run_is_near_its_plans(strategy):
    run = scenario(strategy, world_size=8, cluster__memory__page_cache="300 MB")
    expected = [cached_share(run, epoch) for epoch in (1, 2, 3)]
    assert [hit_share(plan) for plan in plans(run)[1]] == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("strategy", ["local_shuffle", "local_shuffle:source=pfs", *STRATEGIES[4:]])
def test_expected_share_of_shards(strategy):
    """4 of 6 ranks on the fuller host: 668.7 MB read again and again, through a cache of 400 MB."""
    run = scenario(strategy, cluster__memory__page_cache="400 MB")
    share = 400 / (1003 * 4 / 6)
    expected = share + (1 - share) * math.log(1 - share)
    assert [cached_share(run, epoch) for epoch in (1, 2, 3)] == pytest.approx(
        [0, expected, expected]
    )


@pytest.mark.parametrize("strategy", ["local_shuffle", "local_shuffle:source=pfs", *STRATEGIES[4:]])
def test_a_shard_that_fits_is_read_once(strategy):
    """Received samples come on top of it, until those sent are removed: up to twice its size."""
    large = scenario(strategy, cluster__memory__page_cache="1500 MB")
    assert [hit_share(plan) for plan in plans(large)[1]] == [0, 1, 1]


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_cached_share_under_global_shuffle(strategy):
    """Two hosts, of 4 and 2 ranks: one has seen 2/3, 8/9 ... of the set, the other 1/3, 5/9 ...; a
    cache of 0.6 keeps less than that."""
    run = scenario(strategy, epochs=5, cluster__memory__page_cache="300 GB")
    seen = [2 / 3 * (1 - (1 / 3) ** e) + 1 / 3 * (1 - (2 / 3) ** e) for e in range(5)]
    assert [hit_share(plan) for plan in plans(run)[1]] == pytest.approx(seen, abs=0.05)
    staged = scenario(workload__staging={"target": "memory"})
    assert [cached_share(staged, epoch) for epoch in (1, 2)] == [1.0, 1.0]
    small = scenario(strategy, epochs=5, cluster__memory__page_cache="601.8 MB")
    for plan, most in zip(plans(small)[1], seen, strict=True):
        assert hit_share(plan) <= most + 0.05


def test_global_shuffle_hits_what_was_seen():
    """The plan against counted samples: two hosts, each reading a random half in every epoch."""
    run = scenario(
        "global_shuffle:source=pfs", world_size=8, epochs=6, cluster__memory__page_cache="300 GB"
    )
    seen = [set[int](), set[int]()]
    for plan in plans(run)[1]:
        for host in range(2):
            read = set(
                plan.shards.order[
                    plan.shards.start[4 * host] : plan.shards.start[4 * host + 4]
                ].tolist()
            )
            assert plan.training.hit_samples[:, 4 * host : 4 * host + 4].sum() == len(
                read & seen[host]
            )
            seen[host] |= read
        assert hit_share(plan) == pytest.approx(cached_share(run, plan.epoch), abs=0.08)


# ------------------------------------------------------------------------------------------ staging


SLOW = {"cluster__parallel_file_system__read_bandwidth": "1 GB/s"}


@pytest.mark.parametrize(
    ("exchange", "values", "seconds"),
    [
        # 4 of 6 ranks are on the first host: 668.7 MB at the 1.325 GB/s of its SSD; the file system
        # sends all of it at 77 GB/s, which is faster
        *((exchange, {}, 1003e6 * 4 / 6 / 1.325e9) for exchange in STRATEGIES[2:6:3]),
        (STRATEGIES[4], {}, 1003e6 * 4 / 6 / 1.325e9),
        # 8 ranks on two hosts: half of the set each
        ("local_shuffle", {"world_size": 8}, 1003e6 / 2 / 1.325e9),
        # every host reads the whole set, which the file system sends twice
        ("global_shuffle:source=ssd", {}, 1003e6 / 1.325e9),
        ("global_shuffle:source=ssd", SLOW, 2 * 1003e6 / 1e9),
        ("local_shuffle", SLOW, 1003e6 / 1e9),
        # nothing is staged for the file system
        ("global_shuffle:source=pfs", {}, 0.0),
        ("local_shuffle:source=pfs", {}, 0.0),
    ],
)
def test_staging_is_bound_by_the_ssd_of_the_fullest_host_or_the_file_system(
    exchange, values, seconds
):
    assert staging_seconds(scenario(exchange, **values)) == pytest.approx(seconds)


def test_batches_that_are_filled_up_are_like_their_own_samples():
    """Batches of 4: rank 0 lacks 2 of its second, rank 1 half of its first and all of its second,
    which are like its 2 samples; rank 2 has none, and is like the mean of all 8."""
    samples = np.array([[4, 2, 0], [2, 0, 0]])
    hits = np.array([[3, 1, 0], [0, 0, 0]])
    reads = Reads(
        samples,
        np.array([[40.0, 30.0, 0.0], [10.0, 0.0, 0.0]]),
        hits,
        np.array([[30.0, 10.0, 0.0], [0.0, 0.0, 0.0]]),
        work=np.array([[1.0, 2.0, 1.0], [3.0, 1.0, 1.0]]),
        tier=TierReads(hits, 5.0 * hits, samples - hits, 7.0 * samples),
    )
    filled = _fill_last_batch(reads, 4, 2)
    assert filled.samples.tolist() == [[4] * 3] * 2
    assert filled.nbytes.tolist() == [[40.0, 60.0, 40.0], [20.0, 60.0, 40.0]]
    assert filled.hit_samples.tolist() == [[3, 2, 2], [0, 2, 2]]
    assert filled.hit_nbytes.tolist() == [[30.0, 20.0, 20.0], [0.0, 20.0, 20.0]]
    assert filled.work is reads.work or np.array_equal(filled.work, reads.work)  # type: ignore[arg-type]
    assert filled.tier is not None
    # twice as much of half a batch, nothing of an empty one
    assert filled.tier.hit_samples.tolist() == [[3, 2, 0], [0, 0, 0]]
    assert filled.tier.stored_nbytes.tolist() == [[28.0, 28.0, 0.0], [28.0, 0.0, 0.0]]
    # of the first batches alone, with the means of all
    first = _fill_last_batch(reads, 4, 1)
    assert first.nbytes.tolist() == [[40.0, 60.0, 40.0]]
    assert first.work is not None
    assert first.work.tolist() == [[1.0, 2.0, 1.0]]
    # no more hits than samples, however the counts are rounded
    full = Reads(samples, 10.0 * samples, samples, 10.0 * samples)
    assert _fill_last_batch(full, 4, 2).hit_samples.max() == 4
