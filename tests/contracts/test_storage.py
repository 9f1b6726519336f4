"""Storage tiers, sizes of samples and iterations of an epoch."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.scenario.workload import SampleSize, Workload
from tests.examples import TIERS, memory, ssd

QUICKSTART = load_scenario("quickstart").workload


# ---------------------------------------------------------------------------------------------- SSD


def test_ssd_times_by_hand():
    assert ssd().read_seconds(3e9) == pytest.approx(1.5)
    assert ssd().write_seconds(3e9) == pytest.approx(3.0)


@given(st.floats(0, 1e12), st.floats(1.5, 100))
def test_ssd_times_are_linear_in_bytes_and_inverse_in_bandwidth(nbytes, factor):
    fast = ssd(read=f"{2 * factor} GB/s", write=f"{factor} GB/s")
    for seconds, faster in (
        (ssd().read_seconds, fast.read_seconds),
        (ssd().write_seconds, fast.write_seconds),
    ):
        assert seconds(0) == 0
        assert seconds(nbytes * factor) == pytest.approx(factor * seconds(nbytes))
        assert faster(nbytes) == pytest.approx(seconds(nbytes) / factor)


# --------------------------------------------------------------------------------------- page cache


def lru_hits(count: int, room: int, passes: int, rng: np.random.Generator) -> float:
    """Share of hits of an LRU cache with ``room`` places, reading all of ``count`` items in a new
    order each pass, warm passes only."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number in range(passes + 2):
        for item in rng.permutation(count).tolist():
            if item in cache:
                cache.move_to_end(item)
                hits += number >= 2
            elif room:
                if len(cache) == room:
                    cache.popitem(last=False)
                cache[item] = None
    return hits / (passes * count)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_repeated_reads_hit_as_in_a_simulated_cache(share):
    count = 2000
    simulated = lru_hits(count, round(share * count), 8, np.random.default_rng(1))
    assert memory(share * 1e9).repeat_hits(1e9) == pytest.approx(simulated, abs=0.02)


@pytest.mark.parametrize(
    ("cache", "nbytes", "hits"),
    [
        (5e8, 1e9, 0.5 + 0.5 * math.log(0.5)),  # half of the set in the cache: 15 %
        *((1e9, nbytes, 1.0) for nbytes in (1.0, 5e8, 1e9)),  # a set that fits
        (0.0, 1e9, 0.0),
    ],
)
def test_repeated_reads_by_hand(cache, nbytes, hits):
    assert memory(cache).repeat_hits(nbytes) == pytest.approx(hits)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1, 1e10))
def test_hits_grow_with_the_cache_and_shrink_with_the_set(a, b, nbytes):
    small, large = sorted((a, b))
    hits = [memory(cache).repeat_hits(nbytes) for cache in (small, large)]
    assert 0 <= hits[0] <= hits[1] + 1e-12 <= 1 + 2e-12
    assert memory(large).repeat_hits(nbytes * 1.5) <= hits[1] + 1e-12
    assert hits[1] <= min(large / nbytes, 1.0) + 1e-12


def test_a_new_random_part_hits_by_hand():
    """The whole set fits: after 1, 2, 3 epochs that read a half each, 1/2, 3/4, 7/8 of it were
    seen."""
    assert [memory(1e9).redrawn_hits(1e9, 0.5, epochs) for epochs in (0, 1, 2, 3)] == pytest.approx(
        [0, 1 / 2, 3 / 4, 7 / 8]
    )
    assert memory(0.0).redrawn_hits(1e9, 0.5, 3) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("cache", [0.1, 0.5, 0.9])
def test_a_part_of_one_is_the_whole_set_again(cache):
    """One host reads everything in every epoch, which is the case of a shard that is read again."""
    assert memory(cache * 1e9).redrawn_hits(1e9, 1.0, 4) == pytest.approx(
        memory(cache * 1e9).repeat_hits(1e9), abs=0.01
    )


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("cache", [0.05, 0.3, 0.8])
def test_a_new_random_part_hits_as_in_a_simulated_cache(share, cache):
    count, epochs, rng = 4000, 12, np.random.default_rng(2)
    lru: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for _ in range(epochs + 1):
        hits = 0
        for item in rng.permutation(count)[: round(share * count)].tolist():
            hits += item in lru
            lru[item] = None
            lru.move_to_end(item)
            if len(lru) > cache * count:
                lru.popitem(last=False)
    assert memory(cache * 1e9).redrawn_hits(1e9, share, epochs) == pytest.approx(
        hits / (share * count), abs=0.04
    )


def test_cache_is_part_of_the_memory():
    assert memory(1e12).page_cache == 1e12
    with pytest.raises(ValidationError, match="page_cache"):
        memory(1.1e12)


# -------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("ratio", [0.05, 0.23, 0.9, 1.2])
def test_drawn_sizes_have_the_stated_mean_and_deviation(ratio):
    """Within 3 standard errors: std / sqrt(n) for the mean; std / 2 sqrt((k - 1) / n) for the
    deviation.

    The kurtosis k of a log-normal is w^4 + 2 w^3 + 3 w^2 - 3 with w = 1 + ratio^2.
    """
    count, mean = 200_000, 1e5
    sizes = SampleSize(mean="100 kB", std=f"{ratio * 100!r} kB").draw(
        np.random.default_rng(11), count
    )
    assert sizes.shape == (count,)
    assert (sizes > 0).all()
    std = ratio * mean
    w = 1 + ratio**2
    kurtosis = w**4 + 2 * w**3 + 3 * w**2 - 3
    assert sizes.mean() == pytest.approx(mean, abs=3 * std / math.sqrt(count))
    assert sizes.std() == pytest.approx(std, abs=1.5 * std * math.sqrt((kurtosis - 1) / count))


def test_drawn_sizes_are_lognormal():
    """The logarithms have the skewness and kurtosis of a normal distribution, within 4 standard
    errors."""
    count = 100_000
    logs = np.log(SampleSize(mean="100 kB", std="90 kB").draw(np.random.default_rng(3), count))
    z = (logs - logs.mean()) / logs.std()
    assert abs((z**3).mean()) < 4 * math.sqrt(6 / count)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(24 / count)
    assert logs.std() == pytest.approx(math.sqrt(math.log(1.81)), rel=0.01)


def test_sizes_without_deviation_are_constant():
    sizes = SampleSize(mean="3 kB", std="0 B").draw(np.random.default_rng(0), 50)
    assert sizes.tolist() == [3000.0] * 50


def test_sizes_are_the_same_for_the_same_stream():
    size = SampleSize(mean="3 kB", std="1 kB")
    assert np.array_equal(
        size.draw(np.random.default_rng(5), 9), size.draw(np.random.default_rng(5), 9)
    )


# --------------------------------------------------------------------------------------- iterations


def workload(num_samples: int, batch: int, last_batch: Any) -> Workload:
    dataset = QUICKSTART.dataset.model_copy(update={"num_samples": num_samples})
    return QUICKSTART.model_copy(
        update={"dataset": dataset, "local_batch_size": batch, "last_batch": last_batch}
    )


@pytest.mark.parametrize(
    ("num_samples", "batch", "world_size", "nearest", "keep", "drop"),
    [
        (800, 10, 8, 10, 10, 10),
        (840, 10, 8, 11, 11, 10),
        (839, 10, 8, 10, 11, 10),
        (801, 10, 8, 10, 11, 10),
        (1281167, 32, 1024, 39, 40, 39),
        (1281167, 32, 2048, 20, 20, 19),
        (20, 10, 8, 1, 1, 1),
        (3, 3, 2, 1, 1, 1),
    ],
)
def test_iterations_by_hand(num_samples, batch, world_size, nearest, keep, drop):
    """ImageNet-1K at 2048 ranks with 32 samples each: 19.55, hence the 20 that the authors
    print."""
    got = [
        workload(num_samples, batch, rule).iterations(world_size)
        for rule in ("nearest", "keep", "drop")
    ]
    assert got == [nearest, keep, drop]


@settings(max_examples=100)
@given(st.integers(1, 10**7), st.integers(1, 512), st.integers(1, 4096))
def test_iterations_cover_the_shards(num_samples, batch, world_size):
    rules = {
        rule: workload(num_samples, batch, rule).iterations(world_size)
        for rule in ("nearest", "keep", "drop")
    }
    smallest, largest = num_samples // world_size, -(-num_samples // world_size)
    assert rules["keep"] == max(-(-largest // batch), 1)
    assert rules["drop"] == max(smallest // batch, 1)
    assert rules["nearest"] in {rules["keep"], rules["drop"]}
    rest = num_samples - world_size * batch * (num_samples // (world_size * batch))
    if num_samples >= world_size * batch:
        assert rules["nearest"] == (
            rules["keep"] if rest and 2 * rest >= world_size * batch else rules["drop"]
        )


# ---------------------------------------------------------------------------------------- all tiers


@pytest.mark.parametrize("tier", list(TIERS))
def test_a_tier_reads_back_and_refuses_what_it_does_not_know(tier):
    record = TIERS[tier]
    values = record.model_dump(mode="json", exclude_none=True)
    assert type(record).model_validate(values) == record
    with pytest.raises(ValidationError):
        type(record).model_validate({**values, "colour": "red"})


@pytest.mark.parametrize("tier", list(TIERS))
def test_a_tier_is_a_resource_of_every_host_or_of_all(tier):
    machine = load_scenario("quickstart").cluster.model_copy(update={tier: TIERS[tier]})
    links = Resources(machine, 8, np.random.default_rng(0)).links
    shared = {"parallel_file_system": "pfs.bandwidth", "object_store": "object_store.bandwidth"}
    of_tier = shared.get(tier, tier)
    numbers = [i for i, name in enumerate(links.tiers) if name == of_tier]
    assert len(numbers) == (1 if tier in shared else 2)
    assert (links.capacity[numbers] > 0).all()
