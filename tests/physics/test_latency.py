"""Latencies of files that differ: what a batch waits for, worked out by hand from the latencies
that are drawn, and what an iteration of many ranks waits for."""

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simshuffle.job.lowering import latencies as latency
from simshuffle.job.lowering.latencies import slowest_thread
from simshuffle.job.plan.exchange_bound import expected_largest
from simshuffle.spec.rng import lognormal_factor
from tests.physics.test_storage_time import CABLE, FAST_OPENS, LONE, PFS, epoch_s, first_read
from tests.small import small

MEAN, SPREAD = 0.069, 0.53


def batches(
    requests: int, threads: int, count: int = 2000, seed: int = 7, decode: float = 0.0
) -> NDArray[np.float64]:
    """Seconds of ``count`` batches."""
    rng = np.random.default_rng(seed)
    return slowest_thread(
        np.full(count, requests), threads, latency=MEAN, spread=SPREAD, decode=decode, rng=rng
    )


def drawn(requests: int, count: int = 2000, seed: int = 7) -> NDArray[np.float64]:
    """(requests, count) the latencies of the same batches."""
    return MEAN * lognormal_factor(np.random.default_rng(seed), SPREAD, (requests, count))


def test_two_reads_on_one_thread_add():
    first, second = drawn(2)
    assert batches(2, 1) == pytest.approx(first + second, rel=1e-12)


def test_of_two_reads_on_two_threads_the_later_counts():
    first, second = drawn(2)
    assert batches(2, 2) == pytest.approx(np.maximum(first, second), rel=1e-12)


def test_a_thread_decodes_what_it_has_read_before_it_reads_on():
    first, second, third = drawn(3)
    decode = 0.04
    one_thread = first + second + 2 * decode
    assert batches(2, 1, decode=decode) == pytest.approx(one_thread, rel=1e-12)
    two_threads = np.maximum(np.minimum(first, second) + decode + third, np.maximum(first, second))
    assert batches(3, 2, decode=decode) == pytest.approx(two_threads + decode, rel=1e-12)


def test_the_third_of_two_threads_follows_the_shorter_of_the_first():
    first, second, third = drawn(3)
    expected = np.maximum(np.minimum(first, second) + third, np.maximum(first, second))
    assert batches(3, 2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("requests", [1, 2, 20])
def test_as_many_threads_as_reads_wait_for_the_largest(requests):
    expected = MEAN * expected_largest(requests, SPREAD)
    assert batches(requests, 20, count=40000).mean() == pytest.approx(expected, rel=0.01)


def test_many_reads_take_their_mean_over_the_threads():
    assert batches(2000, 4, count=200).mean() == pytest.approx(2000 / 4 * MEAN, rel=0.01)


@pytest.mark.parametrize(("requests", "threads"), [(1, 1), (3, 20), (20, 20), (32, 20), (64, 3)])
def test_the_bound_without_spread_holds_in_the_mean(requests, threads):
    least = MEAN * max(requests / threads, 1.0)
    assert batches(requests, threads, count=20000).mean() > 0.99 * least


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    threads=st.integers(1, 6),
    at_once=st.integers(1, 40),
)
def test_every_batch_is_scheduled_by_itself(requests, threads, at_once):
    """Against a queue of threads; some batches have fewer requests than others, or none, and not
    all are in memory at once."""
    most = max(requests)
    step = max(at_once // max(most, 1), 1)
    rng, parts = np.random.default_rng(3), []
    for start in range(0, len(requests), step):
        size = len(requests[start : start + step])
        parts.append(MEAN * lognormal_factor(rng, SPREAD, (most, size)))
    seconds = np.concatenate(parts, axis=1)
    expected = []
    for batch, count in enumerate(requests):
        free = [0.0] * threads
        for request in range(count):
            heapq.heappush(free, heapq.heappop(free) + seconds[request, batch])
        expected.append(max(free))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "MAX_DRAWS", at_once)
        found = slowest_thread(
            np.array(requests),
            threads,
            latency=MEAN,
            spread=SPREAD,
            decode=0.0,
            rng=np.random.default_rng(3),
        )
    assert found == pytest.approx(np.array(expected), rel=1e-12)


def read(spread: float, threads: int, **values: Any) -> float:
    return first_read(
        **PFS
        | LONE
        | FAST_OPENS
        | {
            "cluster__parallel_file_system__latency_spread": spread,
            "workload__loader": {"workers": 1, "prefetch": 1, "threads": threads},
        }
        | values
    )


def test_a_batch_is_read_when_its_slowest_thread_is_done():
    """10 iterations of 10 files of 1 ms, 4 threads; the latencies of the first are every tenth of
    those drawn, since they are drawn request by request."""
    rng = small(**PFS, **LONE).rng("read_latency", 1)
    seconds = slowest_thread(
        np.full((10, 1), 10), 4, latency=1e-3, spread=0.5, decode=0.0, rng=rng
    )[0, 0]
    assert read(0.5, 4) == pytest.approx(seconds + CABLE + 10 * 100e3 / 10e9, rel=1e-6)
    # a small spread: three whole rounds, where equal shares of the threads would take 2.5
    assert read(1e-9, 4) == pytest.approx(3e-3 + CABLE + 10 * 100e3 / 10e9, rel=1e-6)


def test_several_threads_decode_between_their_reads():
    """10 files of 1 ms and of 2 ms to decode: 4 threads take three rounds of both; one thread reads
    all and decodes then, which no read waits for."""
    decode = {"workload__dataset__decode": "2 ms"}
    rest = CABLE + 10 * 100e3 / 10e9
    assert read(1e-9, 4, **decode) == pytest.approx(3 * (1e-3 + 2e-3) + rest, rel=1e-6)
    assert read(1e-9, 1, **decode) == pytest.approx(10 * 1e-3 + rest, rel=1e-6)


def test_the_servers_still_bound_what_latency_leaves():
    """10 files at 100 a second, whatever their latencies."""
    took = first_read(
        **PFS,
        **LONE,
        cluster__parallel_file_system__open_rate="100 /s",
        cluster__parallel_file_system__latency_spread=0.5,
        workload__loader={"workers": 1, "prefetch": 1, "threads": 10},
    )
    assert took == pytest.approx(10 / 100 + CABLE + 10 * 100e3 / 10e9, rel=1e-6)


def test_nothing_that_has_no_latency_is_late():
    took = read(0.5, 4, cluster__parallel_file_system__latency="0 s")
    assert took == pytest.approx(10 / 1e6 + CABLE + 10 * 100e3 / 10e9, rel=1e-6)


def test_an_iteration_waits_for_the_slowest_batch():
    """Every rank begins to read when it has taken a batch, and takes one when it is there and the
    gradients of all have been summed; what is not reading takes a hundredth of it."""
    values = (
        PFS
        | FAST_OPENS
        | {
            "workload__loader": {"workers": 1, "prefetch": 1, "threads": 10},
            "workload__dataset__decode": "0 s",
            "cluster__parallel_file_system__latency": "10 s",
            "cluster__parallel_file_system__latency_spread": 0.5,
        }
    )
    took = {}
    for ranks in (1, 8):
        given_ = values | {"world_size": ranks, "workload__dataset__num_samples": 100 * ranks}
        rng = small(**given_).rng("read_latency", 1)
        seconds = slowest_thread(
            np.full((10, ranks), 10), 10, latency=10.0, spread=0.5, decode=0.0, rng=rng
        )
        begun, summed = np.zeros(ranks), 0.0
        for batch in seconds:
            begun = np.maximum(begun + batch, summed)
            summed = float(begun.max())
        took[ranks] = epoch_s(**given_)
        assert took[ranks] == pytest.approx(summed, rel=0.01)
    assert took[8] > 1.1 * took[1]
