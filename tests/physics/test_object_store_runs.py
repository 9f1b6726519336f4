"""Runs that read from an object store, worked out by hand.

8 hosts with one GPU; 10 iterations of 10 samples of 100 kB, without randomness. A request waits 100
ms for its first byte, and a connection has 100 MB/s: 101 ms for a sample.
Law: docs/model-storage.md.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from simshuffle.job.lowering.latencies import slowest_thread
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.holding import staging_seconds
from simshuffle.job.sim.simulate import simulate
from simshuffle.job.verdict import verdict
from simshuffle.report import report
from tests.small import small

STORE = {"latency": "100 ms", "connection_bandwidth": "100 MB/s", "request_rate": "1000 k/s"}
READS = {"workload__exchange": "global_shuffle:source=object_store"}
LONE = {"world_size": 1, "workload__dataset__decode": "0 s", "workload__dataset__num_samples": 100}
ONE = {"workers": 1, "prefetch": 1}
NO_WAIT = {"latency": "0 s"}


def scenario(store: dict[str, Any], **values: Any) -> Any:
    """A small run whose cluster has `STORE` with other values."""
    return small(**{"cluster__object_store": STORE | store, **READS, **values})


def first_reads(store: dict[str, Any], **values: Any) -> Any:
    """Seconds until the first batch of each rank has been read."""
    rows = simulate(scenario(store, **values)).phases
    rows = rows[(rows["phase"] == "io") & (rows["iteration"] == 1)].sort_values("rank")
    return (rows["end_s"] - rows["start_s"]).to_numpy()


def epoch(made: Any) -> Any:
    return report.epochs(simulate(made)).iloc[-1]


# ---------------------------------------------------------------------------------- what can bind


@pytest.mark.parametrize(("threads", "rounds"), [(1, 10), (5, 2), (40, 1)])
def test_a_batch_waits_for_first_bytes_as_often_as_its_threads_go_round(threads, rounds):
    """10 requests of 101 ms: in turn 1.01 s, five at a time 202 ms, and never less than one."""
    took = first_reads({}, **LONE, workload__loader=ONE | {"threads": threads})
    assert took == pytest.approx([rounds * 0.101], rel=1e-9)


def test_a_connection_binds_where_objects_are_large():
    """10 objects of 50 MB, two at a time over 100 MB/s each: 2.5 s, whatever the store has."""
    size = {"mean": "50 MB", "std": "0 B"}
    took = first_reads(
        NO_WAIT, **LONE, workload__dataset__sample_size=size, workload__loader=ONE | {"threads": 2}
    )
    assert took == pytest.approx([2.5], rel=1e-4)


@pytest.mark.parametrize(("more", "seconds"), [({}, 0.8), ({"prefixes": 4}, 0.2)])
def test_the_rate_of_a_prefix_is_shared_by_all_ranks(more, seconds):
    """The first batches of 8 ranks are 80 requests: 0.8 s at 100 a second, and a quarter of that
    over four prefixes. Then each has its 1 MB at 100 MB/s."""
    rate = NO_WAIT | {"request_rate": "100 1/s"} | more
    took = first_reads(rate, workload__loader=ONE, workload__dataset__decode="0 s")
    assert took == pytest.approx(np.full(8, seconds + 0.01), rel=1e-6)


def test_every_other_try_that_fails_doubles_what_the_rate_binds():
    rate = NO_WAIT | {"request_rate": "100 1/s", "retry_share": 0.5}
    took = first_reads(rate, workload__loader=ONE, workload__dataset__decode="0 s")
    assert took == pytest.approx(np.full(8, 1.6 + 0.01), rel=1e-6)


def test_the_bandwidth_of_the_store_is_shared_by_all_hosts_and_that_of_a_host_by_its_ranks():
    """8 MB of first batches at 10 MB/s are 0.8 s. On two hosts of four GPUs 4 MB each come at 2
    MB/s in 2 s."""
    values = {"workload__loader": ONE, "workload__dataset__decode": "0 s"}
    shared = first_reads(NO_WAIT | {"bandwidth": "10 MB/s"}, **values)
    assert shared == pytest.approx(np.full(8, 0.8), rel=1e-3)
    own = first_reads(
        NO_WAIT | {"bandwidth": "10 MB/s", "host_bandwidth": "2 MB/s"},
        cluster__host__gpus=4,
        **values,
    )
    assert own == pytest.approx(np.full(8, 2.0), rel=1e-3)


def test_a_shard_is_read_by_the_samples_of_a_request():
    """Files of 10 samples read whole: one request a batch, 100 ms and 1 MB at 100 MB/s."""
    shards = {"samples_per_file": 10, "samples_per_request": 10}
    values = {f"workload__dataset__{key}": count for key, count in shards.items()}
    took = first_reads({}, **LONE, **values, workload__loader=ONE)
    assert took == pytest.approx([0.11], rel=1e-9)
    assert epoch(scenario({}, **values))["read_requests_object_store"] == 80


def test_the_store_is_reached_by_no_cable_of_the_fabric():
    """All bytes cross the store and the hosts' own network, and nothing else does."""
    links = simulate(scenario({}, **LONE)).links
    carried = dict(zip(links["link"], links["nbytes"], strict=True))
    assert carried["object_store.bandwidth"] == pytest.approx(100 * 100e3)
    (host,) = (link for link in carried if link.endswith(".object_store.host"))
    assert carried[host] == pytest.approx(100 * 100e3)
    assert not any(">" in link or link.startswith("pfs") for link in carried)


# ------------------------------------------------------------------------------ what is drawn


def largest(count: int, spread: float) -> float:
    """Expected largest of log-normals of mean 1, from their distribution."""
    sigma = math.sqrt(math.log1p(spread**2))
    below = lambda x: norm.cdf((math.log(x) + sigma**2 / 2) / sigma) if x > 0 else 0.0  # noqa: E731
    return quad(lambda x: 1 - below(x) ** count, 0, 30, limit=200)[0]


def test_latencies_that_differ_let_a_batch_wait_for_its_slowest_request():
    """64 batches of 10 requests at once: the mean of the largest of 10, within 3 standard errors;
    without spread the same for all."""
    values = {"world_size": 64, "cluster__host__gpus": 4, "workload__dataset__decode": "0 s"}
    values |= {"workload__loader": ONE | {"threads": 10}, "workload__dataset__num_samples": 640}
    took = first_reads({"latency_spread": 0.5}, **values)
    error = took.std(ddof=1) / math.sqrt(len(took))
    assert took.mean() == pytest.approx(0.1 * largest(10, 0.5) + 0.001, abs=3 * error)
    assert first_reads({}, **values) == pytest.approx(np.full(64, 0.101), rel=1e-6)


def test_every_try_takes_a_time_of_its_own():
    """Of 20,000 requests in turn every other try fails, and 1 s passes before the next one: 2 x 0.1
    s and 1 s in the mean; the number of failed tries has the variance 2."""
    count = np.array([20_000])
    rng = np.random.default_rng(1)
    total = slowest_thread(
        count, 1, latency=0.1, spread=0.0, decode=0.0, rng=rng, retries=(0.5, 1.0)
    )
    assert total / count == pytest.approx([1.2], abs=3 * 1.1 * math.sqrt(2 / 20_000))


# ------------------------------------------------------------------------- what is said of a run


def test_requests_bytes_and_dollars_of_an_epoch():
    """800 requests, each sent twice in the mean, at 0.4 dollars a million, and 80 MB at 0.09
    dollars a gigabyte."""
    row = epoch(scenario({"retry_share": 0.5, "price_per_gigabyte": 0.09}))
    assert (row["read_requests_object_store"], row["nbytes_object_store"]) == (
        800,
        pytest.approx(80e6),
    )
    assert row["object_store_usd"] == pytest.approx(800 * 2 * 4e-7 + 0.08 * 0.09, rel=1e-9)
    assert row["nbytes_pfs"] == row["nbytes_ssd"] == row["nbytes_memory"] == 0


def test_a_page_cache_keeps_no_objects():
    """A client of the store opens no file: every epoch asks for all 800 samples again."""
    values = {"workload__exchange": "local_shuffle:source=object_store", "epochs": 2}
    made = scenario({"bandwidth": "4 MB/s"}, **values, cluster__memory__page_cache="1 GB")
    table = simulate(made).sources
    assert table["read_requests_object_store"].tolist() == [800, 800]
    assert table["nbytes_memory"].tolist() == [0, 0]
    assert bounds(made).resources["store bandwidth"] == pytest.approx(20.0)


def test_a_store_that_nobody_reads_changes_nothing():
    with_one, without = small(cluster__object_store=STORE), small()
    first, second = simulate(with_one), simulate(without)
    assert first.phases.equals(second.phases)
    assert first.sources.equals(second.sources)


def test_bounds_know_the_limits_of_the_store():
    """800 requests at 100 a second take 8 s, each of them sent twice 16 s; 80 MB at 4 MB/s 20 s,
    and the 10 MB of a host at 0.25 MB/s 40 s."""
    made = scenario({"request_rate": "100 1/s", "retry_share": 0.5, "bandwidth": "4 MB/s"})
    assert bounds(made).resources["store requests"] == pytest.approx(16.0)
    assert bounds(made).resources["store bandwidth"] == pytest.approx(20.0)
    assert verdict(made, "run")["bottleneck"] == "store bandwidth"
    slow = scenario({"host_bandwidth": "250 kB/s"})
    assert bounds(slow).resources["store hosts"] == pytest.approx(40.0)
    # 10 batches of 2 workers, of 10 requests each: 101 ms, decoded in 1 ms
    waiting = scenario({"latency": "100 ms"})
    assert bounds(waiting).resources["loader workers"] == pytest.approx(
        10 * 10 * 0.102 / 2, rel=1e-3
    )


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([0, 0.01, 0.2]),
    st.sampled_from([1e5, 1e7, 1e9]),
    st.sampled_from([None, 2e6, 1e9]),
    st.sampled_from([None, 3e5, 1e9]),
    st.sampled_from([200.0, 1e5]),
    st.sampled_from([1, 3, 10]),
    st.sampled_from([1, 5]),
)
def test_an_epoch_never_beats_its_bound(
    latency, connection, bandwidth, host, rate, threads, per_request
):
    store = {
        "latency": f"{latency} s",
        "connection_bandwidth": f"{connection} B/s",
        "request_rate": f"{rate} 1/s",
        **({} if bandwidth is None else {"bandwidth": f"{bandwidth} B/s"}),
        **({} if host is None else {"host_bandwidth": f"{host} B/s"}),
    }
    made = scenario(
        store,
        cluster__host__gpus=4,
        workload__dataset__num_samples=320,
        workload__dataset__samples_per_file=5,
        workload__dataset__samples_per_request=per_request,
        workload__loader=ONE | {"threads": threads},
    )
    assert epoch(made)["epoch_s"] >= bounds(made).epoch * (1 - 1e-9)


# --------------------------------------------------------------------------------------- staging


@pytest.mark.parametrize(
    ("store", "staging", "seconds"),
    [
        # 10 MB a host over one connection, or four
        ({}, {}, 0.1),
        ({}, {"copies": 4}, 0.025),
        # 100 files a host, each asked for: 101 ms
        ({}, {"format": "files"}, 10.1),
        ({}, {"format": "files", "copies": 10}, 1.01),
        # 800 requests at 40 a second
        ({"request_rate": "40 1/s"}, {"format": "files", "copies": 10}, 20.0),
        ({"bandwidth": "40 MB/s"}, {}, 2.0),
        ({"host_bandwidth": "10 MB/s"}, {}, 1.0),
    ],
)
def test_staging_from_a_store(store, staging, seconds):
    made = scenario(
        store,
        workload__exchange="local_shuffle",
        workload__staging={"source": "object_store"} | staging,
        cluster__ssd__write_bandwidth="1 GB/s",
    )
    row = simulate(made).sources.iloc[0]
    assert row["staging_s"] == pytest.approx(seconds, rel=1e-6)
    assert staging_seconds(made) == pytest.approx(seconds, rel=1e-6)
    asked = 800 if staging.get("format") == "files" else 8  # of an archive one for each HCA
    assert (row["read_requests_staged"], row["nbytes_staged"]) == (asked, pytest.approx(80e6))
    assert row["object_store_usd"] == pytest.approx(asked * 4e-7)


# ------------------------------------------------------------------------------------- bad input
