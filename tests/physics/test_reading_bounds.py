"""The least seconds of each resource that samples come through, by hand.

10 ranks on 3 hosts of 4 GPUs, 2 HCAs and 2 PCIe slots; 6 samples of 100 kB to a file, 3 to a
request; workers of 2 threads, of which 2 load at once. A quarter of the reads is in memory.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.job.plan.epochs import Fetches, NodeReads
from simshuffle.job.plan.reading_bounds import ReadingBounds, reading_bounds, worker_seconds
from simshuffle.job.scenario.scenario import Scenario
from tests.small import small

INPUT = 602112
"""Bytes of a sample that is copied to a GPU."""
CABLE = 10e9
MACHINE: dict[str, Any] = {
    "cluster__topology__hosts": 5,
    "cluster__topology__hcas_per_host": 2,
    "cluster__host__gpus": 4,
    "cluster__host__hcas": 2,
    "cluster__host__pcie_slots": 2,
    "cluster__host__cores": 6,
    "cluster__memory__bandwidth": "80 GB/s",
    "cluster__ssd__iops": {"points": {1: "2 k/s", 16: "12 k/s", 64: "40 k/s"}},
    "cluster__parallel_file_system__background_load": 0.2,
    "cluster__parallel_file_system__client_bandwidth": {
        "points": {1: "9 GB/s", 2: "5 GB/s", 3: "3 GB/s"}
    },
    "world_size": 10,
    "workload__loader": {"workers": 3, "prefetch": 2, "threads": 2},
    "workload__dataset__samples_per_file": 6,
    "workload__dataset__samples_per_request": 3,
}
TIER = {
    "capacity": "1 GB",
    "bandwidth": "8 GB/s",
    "host_bandwidth": {"points": {1: "7 GB/s", 3: "2 GB/s", 10: "1 GB/s"}},
    "open_rate": "5 k/s",
    "latency": "0.5 ms",
    "eviction": "lru",
}
# a request is tried 1.25 times: 1.25 x 40 ms, and 0.25 x 10 ms between them
STORE = {
    "latency": "40 ms",
    "connection_bandwidth": "100 MB/s",
    "bandwidth": "5 GB/s",
    "host_bandwidth": "2 GB/s",
    "request_rate": "1 k/s",
    "prefixes": 3,
    "retry_share": 0.2,
    "retry_delay": "10 ms",
}
FROM_PFS = {"workload__exchange": "global_shuffle"}
FROM_STORE = {
    "workload__exchange": "global_shuffle:source=object_store",
    "cluster__object_store": STORE,
}


def machine(**values: Any) -> Scenario:
    return small(**MACHINE | values)


def seconds_of(scenario: Scenario, tiered: float = 0.0) -> dict[str, float]:
    """Of 12 samples of each rank, without resources that are not used."""
    seconds = ReadingBounds(scenario).seconds(12, 0.25, tiered)
    return {name: value for name, value in seconds.items() if value}


def read_alone(scenario: Scenario, tiered: float = 0.0) -> float:
    """Seconds in which a worker alone reads ten samples."""
    return ReadingBounds(scenario).read_seconds(10, 0.25, tiered)


# what all sources have: 4 ranks of a host, 12 samples each; of a batch of ten samples five
# milliseconds of decoding last longer than reading, and a copy follows
HOST = {
    "memory": 4 * 3 * 1e5 / 80e9,
    "decode": 4 * 12 * 1e-3 / 6,
    "PCIe": 4 * 12 * INPUT / (2 * 16e9),
}
BATCH = 10e-3 / 2 + 10 * INPUT / 16e9
IN_MEMORY = 2.5e5 / 80e9


def test_seconds_of_the_file_system():
    """9 samples of each rank; servers have 80 % for the job. A file of two requests takes a worker
    with two in flight one latency; the host's client has less than a cable."""
    assert seconds_of(machine(**FROM_PFS)) == pytest.approx(
        HOST
        | {
            "file opens": 10 * 9 / 6 / 16e3,
            "PFS bandwidth": 10 * 9e5 / 8e9,
            "PFS client": 4 * 9e5 / 3e9,
            "HCAs": 4 * 9e5 / (2 * CABLE),
            "loader workers": 12 / 10 * BATCH / 2,
        }
    )
    assert read_alone(machine(**FROM_PFS)) == pytest.approx(
        IN_MEMORY + 7.5 / 6 * 1e-3 + 7.5e5 / 3e9
    )


@pytest.mark.parametrize(
    ("values", "opening", "bandwidth"),
    [
        # servers open fewer than the worker asks for, send less than the client takes, or neither
        ({"open_rate": "500 /s"}, 400, 3e9),
        ({"read_bandwidth": "2 GB/s"}, 1000, 1.6e9),
        ({"client_bandwidth": "50 GB/s", "read_bandwidth": "90 GB/s"}, 1000, CABLE),
        ({"client_bandwidth": None}, 1000, 8e9),
    ],
)
def test_a_worker_alone_reads_as_fast_as_the_slowest_on_its_way(values, opening, bandwidth):
    keys = {f"cluster__parallel_file_system__{key}": value for key, value in values.items()}
    assert read_alone(machine(**FROM_PFS, **keys)) == pytest.approx(
        IN_MEMORY + 7.5 / 6 / opening + 7.5e5 / bandwidth
    )


@pytest.mark.parametrize(("eviction", "moved"), [("lru", 9), ("none", 3.6)])
def test_seconds_of_a_cache_tier_before_the_file_system(eviction, moved):
    """Of the 9 samples that are not in memory, 3.6 are in the tier; it stores the others, too,
    unless nothing is evicted. Its bytes cross the cables."""
    scenario = machine(**FROM_PFS, cluster__cache_tier=TIER | {"eviction": eviction})
    assert seconds_of(scenario, 0.4) == pytest.approx(
        HOST
        | {
            "file opens": 10 * 5.4 / 6 / 16e3,
            "PFS bandwidth": 10 * 5.4e5 / 8e9,
            "PFS client": 4 * 5.4e5 / 3e9,
            "HCAs": 4 * 9e5 / (2 * CABLE),
            "cache tier": 10 * moved * 1e5 / 8e9,
            "cache tier opens": 10 * 3.6 / 6 / 5e3,
            "cache tier hosts": 4 * 3.6e5 / 2e9,
            "loader workers": 12 / 10 * BATCH / 2,
        }
    )
    # of 7.5 samples 3 from the tier, two requests of a file at once in 0.5 ms
    assert read_alone(scenario, 0.4) == pytest.approx(
        IN_MEMORY + 3 / 6 * 0.5e-3 + 3e5 / 2e9 + 4.5 / 6 * 1e-3 + 4.5e5 / 3e9
    )


@pytest.mark.parametrize(
    ("values", "opening", "bandwidth"),
    [
        ({"open_rate": "1 k/s"}, 1e3, 2e9),
        ({"open_rate": None, "latency": "5 ms"}, 200, 2e9),
        ({"bandwidth": "1 GB/s"}, 2e3, 1e9),
        ({"bandwidth": "90 GB/s", "host_bandwidth": "50 GB/s"}, 2e3, CABLE),
    ],
)
def test_a_tier_sends_as_fast_as_the_slowest_on_its_way(values, opening, bandwidth):
    scenario = machine(**FROM_PFS, cluster__cache_tier=TIER | values)
    assert ("cache tier opens" in seconds_of(scenario, 0.4)) == (opening != 200)
    rest = IN_MEMORY + 4.5 / 6 * 1e-3 + 4.5e5 / 3e9
    assert read_alone(scenario, 0.4) == pytest.approx(rest + 3 / 6 / opening + 3e5 / bandwidth)


def test_a_tier_before_an_object_store_crosses_no_cable_of_the_topology():
    fast = TIER | {"bandwidth": "90 GB/s", "host_bandwidth": "50 GB/s"}
    scenario = machine(**FROM_STORE, cluster__cache_tier=fast)
    assert "HCAs" not in seconds_of(scenario, 0.4)
    # 4.5 samples in 1.5 requests, two at once
    rest = IN_MEMORY + 1.5 / 2 * 52.5e-3 + 4.5e5 / 200e6
    assert read_alone(scenario, 0.4) == pytest.approx(rest + 3 / 6 / 2e3 + 3e5 / 50e9)


def test_seconds_of_an_object_store():
    """9 samples in 3 requests of each rank; 3 prefixes answer 1,000 tries a second each."""
    seconds = seconds_of(machine(**FROM_STORE))
    # reading lasts longer than decoding: 2.5 requests, two at once, over connections of 100 MB/s
    reading = IN_MEMORY + 2.5 / 2 * 52.5e-3 + 7.5e5 / 200e6
    assert seconds == pytest.approx(
        HOST
        | {
            "store requests": 10 * 3 / 2400,
            "store bandwidth": 10 * 9e5 / 5e9,
            "store hosts": 4 * 9e5 / 2e9,
            "loader workers": 12 / 10 * (reading + 10 * INPUT / 16e9) / 2,
        }
    )
    assert read_alone(machine(**FROM_STORE)) == pytest.approx(reading)


@pytest.mark.parametrize(
    ("store", "answering", "bandwidth"),
    [
        ({"latency": "0 s", "retry_delay": "0 s", "request_rate": "10 /s"}, 2.5 / 24, 200e6),
        ({"connection_bandwidth": "40 GB/s"}, 2.5 / 2 * 52.5e-3, 2e9),
        ({"connection_bandwidth": "40 GB/s", "bandwidth": "1 GB/s"}, 2.5 / 2 * 52.5e-3, 1e9),
    ],
)
def test_a_worker_alone_reads_from_a_store_as_its_slowest_part(store, answering, bandwidth):
    scenario = machine(**FROM_STORE | {"cluster__object_store": STORE | store})
    assert read_alone(scenario) == pytest.approx(IN_MEMORY + answering + 7.5e5 / bandwidth)


@pytest.mark.parametrize(
    ("size", "of_nine", "of_seven"),
    [
        ("100 kB", 9e5 / 3e9, 7.5e5 / 3e9),  # bytes bind
        ("1 kB", 3 / 12e3, 2.5 / 12e3),  # requests do: 4 ranks have 16 of them in flight
    ],
)
def test_seconds_of_an_ssd(size, of_nine, of_seven):
    scenario = machine(workload__dataset__sample_size={"mean": size, "std": "0 B"})
    memory = 2.5 * scenario.workload.dataset.stored.mean / 80e9
    assert seconds_of(scenario)["SSD"] == pytest.approx(4 * of_nine)
    # 10 / 3 requests, of which three quarters wait, two at once
    waiting = 0.75 * (10 / 3) / 2 * 80e-6
    assert read_alone(scenario) == pytest.approx(memory + of_seven + waiting)


def test_a_small_read_has_no_more_requests_in_flight_than_it_has():
    """One sample is a third of a request, which is one in flight, not two."""
    reading = ReadingBounds(machine(**FROM_PFS, workload__dataset__decode="0 s"))
    alone = 1 / 6 / 500 + 1e5 / 3e9
    assert reading.read_seconds(1, 0.0) == pytest.approx(alone)
    assert reading.seconds(1, 0.0)["loader workers"] == pytest.approx((alone + INPUT / 16e9) / 2)


@pytest.mark.parametrize(
    ("values", "at_once"),
    [
        ({}, 2),  # threads
        ({"workload__loader__threads": 8}, 6),  # cores
        ({"workload__loader__threads": 8, "workload__local_batch_size": 4}, 4),  # samples
    ],
)
def test_cores_threads_and_samples_bound_decoding(values, at_once):
    assert ReadingBounds(machine(**values)).decode_seconds(12) == pytest.approx(12e-3 / at_once)


def test_one_thread_reads_and_then_decodes():
    assert worker_seconds(3.0, 2.0, 1.0, 1) == 6.0
    assert worker_seconds(3.0, 2.0, 1.0, 2) == 4.0


def test_a_host_with_fewer_ranks_than_slots_uses_as_many():
    """One rank: one of the two slots."""
    seconds = ReadingBounds(machine(world_size=1)).seconds(12, 0.25)
    assert seconds["PCIe"] == pytest.approx(12 * INPUT / 16e9)


# ------------------------------------------------------------------------- under a loader's order


def loading(cache_in: str = "ssd", **values: Any) -> Scenario:
    """8 ranks on 2 hosts, whose loaders fetch pieces."""
    exchange = {"kind": "loader_shuffle", "order": "distributed_sampler", "cache_in": cache_in}
    return machine(
        **{"world_size": 8, "workload__exchange": exchange, "workload__dataset__decode": "0.1 ms"}
        | values,
    )


def node_reads(cached_in: str) -> NodeReads:
    """Two batches of 8 ranks, 4 to a host: of rank r, r + 1 requests for 10 kB each in the first
    batch and 2 in the second; 8 - r hits of 1 kB and 1."""
    ranks = np.arange(8)
    requests = np.array([ranks + 1, np.full(8, 2)])
    hits = np.array([8 - ranks, np.full(8, 1)])
    return NodeReads(
        Fetches(requests, 10_000 * requests, 0, cached_in),  # type: ignore[arg-type]
        hits,
        1000.0 * hits,
    )


def test_seconds_of_pieces_and_of_what_is_cached():
    """Of the first batch: 36 requests, 26 of them for the second host, at most 8 of a rank; 26 hits
    on the first. Of both: 52 requests, 34 and 10, and 30 hits."""
    reading = ReadingBounds(loading())
    for batches, requests, of_host, of_rank, hits in ((1, 36, 26, 8, 26), (2, 52, 34, 10, 30)):
        seconds = reading.fetch_seconds(node_reads("ssd"), batches)
        samples = 10 * batches
        reads = of_rank * 1e-3 / 2 + of_rank * 1e4 / CABLE
        copy = samples * INPUT / 16e9
        expected = {
            "file opens": requests / 16e3,
            "PFS bandwidth": requests * 1e4 / 8e9,
            "PFS client": of_host * 1e4 / 5e9,
            "HCAs": of_host * 1e4 / (2 * CABLE),
            "SSD": max(hits * 1e3 / 3e9, hits / 12e3),
            "memory": 0.0,
            "decode": 4 * samples * 1e-4 / 6,
            "PCIe": 4 * samples * INPUT / 32e9,
            "loader workers": (max(reads, samples * 1e-4 / 2) + copy) / 2,
        }
        assert seconds == pytest.approx(expected)


def test_pieces_of_a_memory_cache_are_read_from_memory():
    seconds = ReadingBounds(loading("memory")).fetch_seconds(node_reads("memory"), 2)
    assert seconds["memory"] == pytest.approx(30 * 1e3 / 80e9)
    assert seconds["SSD"] == 0.0


def test_workers_fetch_pieces_by_requests_then_bytes():
    reading = ReadingBounds(loading())
    requests, nbytes = np.array([4, 1]), np.array([10**8, 0])
    assert reading.piece_seconds(requests, nbytes) == pytest.approx(
        [4e-3 / 2 + 1e8 / CABLE, 1e-3 / 2]
    )
    of_store = ReadingBounds(
        loading(
            cluster__object_store=STORE,
            workload__exchange={
                "kind": "loader_shuffle",
                "order": "distributed_sampler",
                "source": "object_store",
            },
        )
    )
    # two threads, each with a connection of 100 MB/s
    assert of_store.piece_seconds(requests, nbytes) == pytest.approx(
        [4 * 52.5e-3 / 2 + 1e8 / 200e6, 52.5e-3 / 2]
    )


def test_seconds_of_hits():
    """Of rank r in the first batch 8 - r of 1 kB, and 1 in the second."""
    hits = np.array([8 - np.arange(8), np.full(8, 1)])
    in_memory = ReadingBounds(loading("memory")).hit_seconds(node_reads("memory"))
    assert in_memory == pytest.approx(hits * 1e3 / 80e9)
    on_ssd = ReadingBounds(loading()).hit_seconds(node_reads("ssd"))
    assert on_ssd == pytest.approx(hits / 12e3 + hits * 80e-6 / 2)


def test_pieces_that_are_not_counted_leave_decoding_and_copying():
    """A shard of 100 samples is decoded by two threads; 20 batches of 10 are more than that."""
    seconds = ReadingBounds(loading()).fetch_seconds(None, 20)
    copy = 100 * INPUT / 16e9
    assert seconds["loader workers"] == pytest.approx((10e-3 / 2 + copy) / 2)
    assert seconds["file opens"] == seconds["memory"] == 0.0


# --------------------------------------------------------------------------------- of a whole epoch


def test_the_first_batch_waits_for_the_servers_of_all():
    """8 ranks open 10 files each at 100 a second: longer than a worker alone, which asks for 1,000
    a second and gets 100."""
    scenario = small(**FROM_PFS, cluster__parallel_file_system__open_rate="100 /s")
    first, _ = reading_bounds(scenario, 100, 10)
    assert first == pytest.approx(80 / 100)
    # of a shard of 3 samples no more are read
    few = small(
        **FROM_PFS,
        cluster__parallel_file_system__open_rate="100 /s",
        workload__dataset__num_samples=24,
    )
    assert reading_bounds(few, 3, 1)[0] == pytest.approx(24 / 100)
    # of a loader's order each sample is a piece
    pieces = loading(cluster__parallel_file_system__open_rate="100 /s")
    first, whole = reading_bounds(pieces, 100, 10)
    assert first == pytest.approx(80 / 80)  # a fifth of the rate is not the job's
    assert whole["file opens"] == pytest.approx(800 / 80)


@pytest.mark.parametrize(("epochs", "passes"), [(1, 1), (2, 0)])
def test_a_pass_that_measures_importance_fills_the_cache_for_training(epochs, passes):
    """100 samples of each rank are read from its SSD in the first pass of all, else from memory."""
    scenario = small(
        workload__exchange="importance_exchange:exchange_fraction=0",
        cluster__memory__page_cache="1 GB",
        epochs=epochs,
    )
    _, seconds = reading_bounds(scenario, 100, 10)
    assert seconds["SSD"] == pytest.approx(passes * 1e7 / 3e9)
    assert seconds["memory"] == pytest.approx((2 - passes) * 1e7 / 100e9)
