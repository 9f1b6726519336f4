"""Requests to storage, counted by hand: 800 samples, 20 to a file, 5 to a request."""

from typing import Any

import numpy as np
import pytest

from simshuffle.job.lowering.latencies import slowest_thread
from simshuffle.job.lowering.read_requests import ReadRequests, sum_reads
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.plan.reading_bounds import ReadingBounds
from simshuffle.job.sim.simulate import simulate
from tests.small import small

FILES = {"workload__dataset__samples_per_file": 20, "workload__dataset__samples_per_request": 5}
COLUMNS = ["read_requests", "read_requests_ssd", "file_opens", "read_requests_staged"]


def counted(epoch: int = 1, **values: Any) -> list[float]:
    sources = simulate(small(**FILES | values)).sources
    return [float(sources.set_index("epoch")[name][epoch]) for name in COLUMNS]


def staged(**values: Any) -> float:
    return counted(workload__staging={"format": "files", **values.pop("staging", {})}, **values)[3]


def test_an_epoch_from_the_file_system_and_one_from_ssds():
    """800 / 5 requests; 800 / 20 opens, of the file system alone. An archive is read by the one HCA
    of each of the eight hosts."""
    assert counted(workload__exchange="global_shuffle") == [160, 0, 40, 0]
    assert counted(workload__exchange="local_shuffle") == [0, 160, 0, 8]


def test_a_batch_asks_for_whole_requests():
    """Batches of 10 samples, 4 to a request: three requests each."""
    assert counted(workload__dataset__samples_per_request=4)[1] == 240


def test_staging_counts_files_and_copies():
    """40 files once; or on each of the eight hosts; or an equal part on each, passed on."""
    assert staged() == 40
    replicated = {"kind": "global_shuffle", "source": "ssd"}
    assert staged(workload__exchange=replicated) == 320
    assert staged(workload__exchange=replicated, staging={"broadcast": True}) == 40


def test_every_sample_that_a_sender_reads_is_a_request():
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.1}
    sent = simulate(small(workload__exchange=exchange)).sources["samples_moved"].item()
    assert 60 < sent <= 80  # one in eight stays with its rank, by chance
    assert counted(workload__exchange=exchange) == [0, 160 + sent, 0, 8]


def test_the_inference_pass_reads_too():
    exchange = {"kind": "importance_pair", "exchange_fraction": 0.0}
    assert counted(workload__exchange=exchange) == [0, 320, 0, 8]


def test_what_is_in_memory_asks_for_nothing():
    """Half a cache; all samples are of 100 kB."""
    timeline = simulate(small(epochs=2, cluster__memory__page_cache="5 MB", **FILES))
    row = timeline.sources.iloc[1]
    assert 0 < row["read_requests_ssd"] < 160
    assert row["nbytes_ssd"] / 100e3 / 5 <= row["read_requests_ssd"] <= 160
    assert counted(2, epochs=2, cluster__memory__page_cache="1 GB") == [0, 0, 0, 0]
    assert counted(workload__staging={"target": "memory"})[:3] == [0, 0, 0]


def test_iterations_that_are_left_out_are_counted():
    """4000 iterations of 8 ranks and 10 samples, of which few are simulated."""
    many = {"workload__dataset__num_samples": 320_000, "time_tolerance": "5 %"}
    timeline = simulate(small(**FILES, **many))
    assert timeline.sources["iterations_simulated"].item() < 4000
    assert timeline.sources["read_requests_ssd"].item() == pytest.approx(64_000)


def test_the_last_request_of_a_batch_is_a_whole_one():
    """Of 10 and of 3 samples, 4 to a request: 3 requests and 1; an empty batch has none."""
    missed = ReadRequests(np.array([[10.0, 3.0], [0.0, 4.0]]), np.ones((2, 2)), 1, 4.0)
    whole = np.zeros((2, 2), np.int64)
    reads = Reads(whole, whole.astype(float), whole, whole.astype(float))
    assert sum_reads(missed, "pfs", reads, "memory").requests["pfs"] == 3 + 1 + 0 + 1


def test_the_bound_of_an_ssd_waits_for_requests_and_not_for_samples():
    """16 samples in requests of 4, two at once: two latencies of 1 ms. Bytes take no time here."""
    scenario = small(
        workload__dataset__samples_per_file=8,
        workload__dataset__samples_per_request=4,
        workload__loader={"workers": 1, "prefetch": 1, "threads": 2},
        workload__dataset__sample_size__mean="1 B",
        cluster__ssd__latency="1 ms",
    )
    seconds = ReadingBounds(scenario).read_seconds(16.0, 0.0)
    assert seconds == pytest.approx(2e-3, rel=0.05)


def test_drawn_latencies_are_those_of_whole_requests(monkeypatch):
    """Batches of 10 samples, 4 to a request: three latencies are drawn for each, not two."""
    drawn = []

    def slowest(requests, *arguments, **more):
        drawn.append(requests)
        return slowest_thread(requests, *arguments, **more)

    monkeypatch.setattr("simshuffle.job.lowering.reads.slowest_thread", slowest)
    store = {"bandwidth": "1 GB/s", "latency": "10 ms", "latency_spread": 1.0}
    store |= {"connection_bandwidth": "100 MB/s", "request_rate": "1000 k/s"}
    scenario = small(
        workload__exchange="global_shuffle:source=object_store",
        workload__dataset__samples_per_file=8,
        workload__dataset__samples_per_request=4,
        cluster__object_store=store,
        epochs=1,
    )
    simulate(scenario)
    assert drawn
    assert {int(count) for requests in drawn for count in np.unique(requests)} == {3}
