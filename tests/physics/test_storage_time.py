"""Storage, worked out by hand: the parallel file system, the SSD, memory, and what reading from
them costs an epoch.

8 hosts with one GPU on one switch of 10 GB/s; 10 iterations of 10 samples of 100 kB, without
randomness. Laws and sources: docs/model-storage.md.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.job.plan.holding import staging_seconds
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.spec.rng import lognormal_factor
from tests.explicit import finish_times
from tests.small import small

CABLE = 26e-9
PFS: dict[str, Any] = {"workload__exchange": "global_shuffle"}
LONE: dict[str, Any] = {
    "world_size": 1,
    "workload__dataset__decode": "0 s",
    "workload__dataset__num_samples": 100,
}
FAST_OPENS: dict[str, Any] = {"cluster__parallel_file_system__open_rate": "1000 k/s"}


def first_read(**values: Any) -> float:
    """Seconds until the first batch of rank 0 has been read."""
    rows = simulate(small(**values)).phases
    row = rows[(rows["phase"] == "io") & (rows["iteration"] == 1) & (rows["rank"] == 0)].iloc[0]
    return float(row["end_s"] - row["start_s"])


def epoch_s(**values: Any) -> float:
    return float(report.epochs(simulate(small(**values)))["epoch_s"].iloc[-1])


def pfs_times(clients: int, nbytes: float, **values: Any) -> Any:
    """When reads of ``nbytes`` end that ``clients`` hosts begin at once."""
    scenario = small(
        world_size=clients,
        **{f"cluster__parallel_file_system__{key}": value for key, value in values.items()},
    )
    return read_times(scenario, clients, nbytes)


def read_times(scenario: Any, ranks: int, nbytes: float) -> Any:
    """When reads of ``nbytes`` end that all ranks begin at once."""
    resources = Resources(scenario.cluster, ranks, scenario.rng("placement"))
    routes = [[link for link in route if link >= 0] for route in resources.pfs_read()[0].tolist()]
    capacity, reads = resources.links.capacity, np.full(ranks, nbytes)
    return finish_times(capacity, 0.0 * capacity, routes, reads, np.zeros(ranks))


# ----------------------------------------------------------------------------- parallel file system


@pytest.mark.parametrize(
    ("clients", "each"), [(1, 1.0e9), (2, 1.0e9), (4, 0.75e9), (8, 0.5e9), (16, 0.25e9)]
)
def test_the_curve_of_the_clients_binds_until_the_servers_do(clients, each):
    """1 GB/s for each of 1 and 2 hosts, 0.75 of 4, 0.6 of 8 and 0.5 of 16, while all servers
    together send 4 GB/s: 0.5 and 0.25 to each."""
    curve = {"points": {1: "1 GB/s", 2: "1 GB/s", 4: "750 MB/s", 8: "600 MB/s", 16: "500 MB/s"}}
    ends = pfs_times(clients, 3e9, client_bandwidth=curve, read_bandwidth="4 GB/s")
    assert ends == pytest.approx(np.full(clients, 3e9 / each), rel=1e-12)


def test_a_client_gets_its_bandwidth_however_many_ranks_it_has():
    """4 ranks on each of two hosts, 1 GB/s for a host: 250 MB/s for a rank."""
    values: dict[str, Any] = {
        "cluster__host__gpus": 4,
        "cluster__parallel_file_system__client_bandwidth": "1 GB/s",
    }
    assert read_times(small(**values), 8, 1e9) == pytest.approx(np.full(8, 4.0), rel=1e-12)


def test_a_background_load_of_a_half_doubles_what_is_bound():
    """800 opens at 500 a second take 1.6 s; with half of the servers' operations taken, 3.2 s.
    Bytes the same: 80 MB at 40 MB/s."""
    for bound, whole in (({"open_rate": "500 1/s"}, 1.6), ({"read_bandwidth": "40 MB/s"}, 2.0)):
        given_ = PFS | {
            f"cluster__parallel_file_system__{key}": value for key, value in bound.items()
        }
        alone, loaded = (
            epoch_s(**given_, cluster__parallel_file_system__background_load=load)
            for load in (0, 0.5)
        )
        assert whole < alone < whole + 0.35
        assert 2 * whole < loaded < 2 * whole + 0.35
    assert pfs_times(4, 1e9, read_bandwidth="2 GB/s", background_load=0.5) == pytest.approx(
        np.full(4, 4.0), rel=1e-12
    )


@pytest.mark.parametrize(("threads", "rounds"), [(1, 10), (2, 5), (5, 2), (10, 1), (40, 1)])
def test_the_latency_of_files_overlaps_over_the_threads_of_a_worker(threads, rounds):
    """10 files of a batch, 1 ms each: in turn 10 ms, two at a time 5 ms, and never less than the 1
    ms of one."""
    took = first_read(
        **PFS,
        **LONE,
        **FAST_OPENS,
        workload__loader={"workers": 1, "prefetch": 1, "threads": threads},
    )
    assert took == pytest.approx(rounds * 1e-3 + CABLE + 10 * 100e3 / 10e9, rel=1e-6)


@pytest.mark.parametrize(("threads", "rounds"), [(1, 10), (2, 5), (5, 2), (10, 1), (40, 1)])
def test_the_latency_of_an_ssd_overlaps_over_the_threads_of_a_worker(threads, rounds):
    took = first_read(**LONE, workload__loader={"workers": 1, "prefetch": 1, "threads": threads})
    assert took == pytest.approx(rounds * 80e-6 + 10 * 100e3 / 3e9, rel=1e-9)


def test_threads_open_faster_only_as_far_as_the_servers_allow():
    """8 ranks with one worker of 5 threads could open 40 000 files a second; the servers open 4000:
    the first batches take 80 / 4000 s."""
    values = PFS | {
        "cluster__parallel_file_system__open_rate": "4 k/s",
        "workload__dataset__decode": "0 s",
    }
    took = first_read(**values, workload__loader={"workers": 1, "prefetch": 1, "threads": 5})
    assert took == pytest.approx(80 / 4000 + CABLE + 8 * 10 * 100e3 / 10e9, rel=1e-3)


def test_opens_bind_for_small_files_and_bandwidth_for_large_ones():
    """At 20 k opens/s and 10 GB/s they meet at 500 kB: opening a file of 110 kB takes 4.5 times as
    long as its bytes, of 60 MB 1/120.

    Each of 8 ranks reads 8 batches of one sample at once: all 64 files are opened together, then
    all are read.
    """
    values = PFS | {
        "workload__dataset__decode": "0 s",
        "workload__local_batch_size": 1,
        "workload__loader": {"workers": 8, "prefetch": 8},
    }
    values |= {
        "cluster__parallel_file_system__latency": "0 s",
        "cluster__topology__link_bandwidth": "100 GB/s",
    }
    values |= {
        "cluster__parallel_file_system__link_bandwidth": "100 GB/s",
        "workload__dataset__num_samples": 64,
    }
    for size, nbytes, per_file in (
        ("110 kB", 110e3, 1),
        ("60 MB", 60e6, 1),
        ("110 kB", 110e3, 1000),
    ):
        sample = {
            "workload__dataset__sample_size": {"mean": size, "std": "0 B"},
            "workload__dataset__samples_per_file": per_file,
        }
        opening, reading = 64 / per_file / 20e3, 64 * nbytes / 10e9
        assert (opening > 4 * reading) == (nbytes == 110e3 and per_file == 1)
        # in shards, small samples are bound by bandwidth too
        assert (reading > 100 * opening) == (nbytes == 60e6 or per_file == 1000)
        assert first_read(**values, **sample) == pytest.approx(opening + CABLE + reading, rel=1e-9)


def test_samples_of_a_shard_share_its_opening_but_not_the_latency():
    """10 samples of 1 ms each are 10 ms, whatever files they are in; read 5 at a request, 2 ms.
    Opens of shards are a tenth."""
    values = PFS | LONE | FAST_OPENS | {"workload__loader": {"workers": 1, "prefetch": 1}}
    for per_file, per_request, rounds in ((1, 1, 10), (10, 1, 10), (10, 5, 2)):
        dataset = {
            "workload__dataset__samples_per_file": per_file,
            "workload__dataset__samples_per_request": per_request,
        }
        assert first_read(**values, **dataset) == pytest.approx(
            rounds * 1e-3 + CABLE + 10 * 100e3 / 10e9, rel=1e-6
        )
        links = simulate(small(**values, **dataset)).links
        opens = links[links["tier"] == "pfs.open"]
        assert (opens["mean_utilisation"] * opens["capacity"]).item() * epoch_s(
            **values, **dataset
        ) == pytest.approx(100 / per_file)


# ---------------------------------------------------------------------------------------------- SSD


def test_requests_bind_an_ssd_where_files_are_small():
    """At 3 GB/s and 30 k requests/s they meet at 100 kB: 10 files of 4 kB take 10 / 30 000 s, 10 of
    1 MB take 10 MB / (3 GB/s)."""
    values = LONE | {
        "cluster__ssd__iops": "30 k/s",
        "cluster__ssd__latency": "0 s",
        "workload__loader": {"workers": 1, "prefetch": 1},
    }
    for size, expected in (("4 kB", 10 / 30e3), ("100 kB", 10 / 30e3), ("1 MB", 10e6 / 3e9)):
        took = first_read(**values, workload__dataset__sample_size={"mean": size, "std": "0 B"})
        assert took == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("workers", "threads", "iops"), [(1, 1, 12e3), (2, 1, 24e3), (1, 4, 48e3), (2, 8, 100e3)]
)
def test_an_ssd_serves_more_requests_when_more_are_in_flight(workers, threads, iops):
    """4 kB files, read by ``workers`` workers of ``threads`` threads: all their first batches
    together are 10 files for each worker."""
    curve = {"points": {1: "12 k/s", 2: "24 k/s", 4: "48 k/s", 16: "100 k/s"}}
    values = LONE | {"cluster__ssd__iops": curve, "cluster__ssd__latency": "0 s"}
    values |= {"workload__dataset__sample_size": {"mean": "4 kB", "std": "0 B"}}
    took = first_read(
        **values, workload__loader={"workers": workers, "prefetch": workers, "threads": threads}
    )
    assert took == pytest.approx(workers * 10 / iops, rel=1e-9)


def test_the_queue_of_an_ssd_is_that_of_all_ranks_of_its_host():
    """4 ranks with one worker each: 4 in flight."""
    curve = {"points": {1: "12 k/s", 4: "48 k/s"}, "interpolation": "linear"}
    values: dict[str, Any] = {
        "cluster__ssd__iops": curve,
        "cluster__ssd__latency": "0 s",
        "cluster__host__gpus": 4,
        "world_size": 4,
    }
    values |= {
        "workload__dataset__sample_size": {"mean": "4 kB", "std": "0 B"},
        "workload__loader": {"workers": 1, "prefetch": 1},
    }
    assert first_read(**values) == pytest.approx(40 / 48e3, rel=1e-9)


def test_reads_by_requests_and_writes_share_the_device():
    """500 requests at 100 k/s are 5 ms of the device, whatever their bytes; a write of 5 MB at 1
    GB/s is 5 ms: together both take 10 ms."""
    ssd = small(cluster__ssd__iops="100 k/s").cluster.ssd
    work = [ssd.read_seconds(500 * 4e3, 500.0, 8), ssd.write_seconds(5e6)]
    assert finish_times([1.0], [0.0], [[0], [0]], work, [0, 0]) == pytest.approx(
        [10e-3, 10e-3], rel=1e-12
    )


def test_received_samples_and_reads_share_one_ssd():
    """Device seconds of an epoch: bytes read over 3 GB/s plus bytes written over 1 GB/s."""
    timeline = simulate(small(workload__exchange="partial_local_shuffle:exchange_fraction=0.5"))
    row = timeline.sources.iloc[0]
    ssd = timeline.links[timeline.links["tier"] == "ssd"]
    seconds = (ssd["mean_utilisation"] * report.epochs(timeline)["epoch_s"].item()).sum()
    assert row["nbytes_ssd_written"] == row["samples_moved"] * 100e3 > 0
    assert seconds == pytest.approx(
        row["nbytes_ssd"] / 3e9 + row["nbytes_ssd_written"] / 1e9, rel=1e-9
    )


# --------------------------------------------------------------------------------------- page cache


def test_a_batch_of_both_reads_each_part_from_its_own_device():
    """Half a cache: bytes on the SSDs and in memory add up to those of the batches, and each
    crosses its own links."""
    timeline = simulate(small(epochs=2, cluster__memory__page_cache="5 MB"))
    row = timeline.sources.iloc[1]
    assert row["nbytes_ssd"] + row["nbytes_memory"] == pytest.approx(80e6)
    assert 0.05 < row["nbytes_memory"] / 80e6 < 0.3
    links = (
        timeline.links[timeline.links["epoch"] == 2].groupby("tier", observed=True)["nbytes"].sum()
    )
    assert links["ssd"] == pytest.approx(row["nbytes_ssd"])
    assert links["memory"] == pytest.approx(row["nbytes_memory"])


def test_a_message_of_both_reads_each_part_from_its_own_device():
    """All samples of an iteration in one message, in part still in the cache."""
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 1}
    exchange |= {"schedule": {"samples_per_message": "iteration", "partner_lifetime": "iteration"}}
    timeline = simulate(
        small(epochs=3, cluster__memory__page_cache="940 kB", workload__exchange=exchange)
    )
    for epoch in (2, 3):
        row = timeline.sources[timeline.sources["epoch"] == epoch].iloc[0]
        assert row["nbytes_ssd"] + row["nbytes_memory"] == pytest.approx(
            80e6 + row["samples_moved"] * 100e3
        )
        links = (
            timeline.links[timeline.links["epoch"] == epoch]
            .groupby("tier", observed=True)["nbytes"]
            .sum()
        )
        assert links["ssd"] == pytest.approx(row["nbytes_ssd"] + row["nbytes_ssd_written"])
        assert links["memory"] == pytest.approx(row["nbytes_memory"])
    assert row["nbytes_memory"] > 0


# ------------------------------------------------------------------------------------------ staging

STAGED: dict[str, Any] = {"workload__exchange": "local_shuffle"}  # 10 MB for each of 8 hosts
COPIED: dict[str, Any] = {"workload__exchange": "global_shuffle:source=ssd"}  # 80 MB


def staging(**values: Any) -> float:
    return float(report.epochs(simulate(small(**values)))["staging_s"].iloc[0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 10e6 / 1e9),  # the SSD writes 1 GB/s
        ({"cluster__parallel_file_system__read_bandwidth": "2 GB/s"}, 80e6 / 2e9),
        (
            {
                "cluster__parallel_file_system__read_bandwidth": "2 GB/s",
                "cluster__parallel_file_system__background_load": 0.5,
            },
            80e6 / 1e9,
        ),
        ({"cluster__parallel_file_system__client_bandwidth": "500 MB/s"}, 10e6 / 500e6),
        ({"cluster__topology__link_bandwidth": "400 MB/s"}, 10e6 / 400e6),  # the HCA
        # the cable of the servers
        ({"cluster__parallel_file_system__link_bandwidth": "1600 MB/s"}, 80e6 / 1.6e9),
        # 100 GB/s into each memory; the servers send 10 GB/s
        ({"workload__staging": {"target": "memory"}}, 80e6 / 10e9),
        # hosts of 5 and 3 ranks, whose SSDs write 100 MB/s
        (
            {"cluster__host__gpus": 5, "cluster__ssd__write_bandwidth": "100 MB/s"},
            5 * 10e6 / 100e6,
        ),
        (
            {"workload__staging": {"target": "memory"}, "cluster__memory__bandwidth": "500 MB/s"},
            10e6 / 500e6,
        ),
    ],
)
def test_the_slowest_resource_on_the_way_sets_the_rate_of_staging(values, expected):
    assert staging(**STAGED, **values) == pytest.approx(expected + CABLE, rel=1e-9)


@pytest.mark.parametrize(
    ("copies", "per_file", "expected"),
    [(1, 1, 100e-3), (2, 1, 50e-3), (4, 1, 40e-3), (4, 10, 10e-3)],
)
def test_staging_of_files_opens_them(copies, per_file, expected):
    """100 files a host at 1 ms are 100 ms one by one; 800 at 20 k opens/s are 40 ms; a tenth as
    many leave the SSD's 10 ms."""
    values = {
        "workload__staging": {"format": "files", "copies": copies},
        "workload__dataset__samples_per_file": per_file,
    }
    assert staging(**STAGED, **values) == pytest.approx(expected + CABLE, rel=1e-9)
    archive = values | {"workload__staging": {"format": "archive"}}
    assert staging(**STAGED, **archive) == pytest.approx(10e-3 + CABLE, rel=1e-9)


def test_copies_of_the_whole_set_are_read_once_each_or_broadcast():
    """8 x 80 MB at 2 GB/s take 320 ms; read once, the servers need 40 ms, and each SSD 80 ms, which
    binds. 700 MB/s of HCA: 114 ms."""
    slow = COPIED | {"cluster__parallel_file_system__read_bandwidth": "2 GB/s"}
    broadcast = {"workload__staging": {"broadcast": True}}
    assert staging(**COPIED) == pytest.approx(80e-3 + CABLE, rel=1e-9)
    assert staging(**slow) == pytest.approx(320e-3 + CABLE, rel=1e-9)
    assert staging(**slow, **broadcast) == pytest.approx(80e-3, rel=1e-5)
    assert staging(
        **slow, **broadcast, cluster__topology__link_bandwidth="700 MB/s"
    ) == pytest.approx(80e6 / 700e6, rel=1e-5)
    slower = slow | {"cluster__parallel_file_system__read_bandwidth": "400 MB/s"}
    assert staging(**slower, **broadcast) == pytest.approx(80e6 / 400e6, rel=1e-5)
    read = [
        simulate(small(**slow, **more)).sources["nbytes_staged"].item() for more in ({}, broadcast)
    ]
    assert read == pytest.approx([8 * 80e6, 80e6])


def test_ranks_of_a_host_stage_through_all_its_hcas():
    """4 hosts with 2 HCAs of 300 MB/s, 20 MB each."""
    host = {
        "cluster__host__gpus": 2,
        "cluster__host__hcas": 2,
        "cluster__host__pcie_slots": 2,
        "cluster__topology__hcas_per_host": 2,
    }
    assert staging(**STAGED, **host, cluster__topology__link_bandwidth="300 MB/s") == pytest.approx(
        20e6 / 600e6 + CABLE, rel=1e-9
    )


def test_staging_changes_no_epoch_and_is_listed_before_the_first():
    tables = [
        report.epochs(simulate(small(**STAGED, epochs=2, workload__staging=how)))
        for how in ({}, {"format": "files"}, {"format": "files", "copies": 7})
    ]
    assert (
        tables[0]["epoch_s"].tolist()
        == tables[1]["epoch_s"].tolist()
        == tables[2]["epoch_s"].tolist()
    )
    assert len({table["staging_s"][0] for table in tables}) == 3
    assert [table["staging_s"][1] for table in tables] == [0, 0, 0]
    for exchange in ("global_shuffle:source=pfs", "local_shuffle:source=pfs"):
        assert staging(workload__exchange=exchange) == 0


def test_what_is_staged_to_memory_is_read_and_written_there():
    """No byte touches an SSD, whatever the page cache; 8 x 80 MB are 100 GB/s of memory for the
    first batches of a host."""
    values = {"workload__staging": {"target": "memory"}, "epochs": 2}
    for exchange, more in (
        ("local_shuffle", 0),
        ("partial_local_shuffle:exchange_fraction=0.5", 1),
    ):
        timeline = simulate(small(workload__exchange=exchange, **values))
        sources = timeline.sources
        assert sources["nbytes_ssd"].tolist() == sources["nbytes_ssd_written"].tolist() == [0, 0]
        assert sources["nbytes_memory"].tolist() == pytest.approx(
            (80e6 + more * sources["samples_moved"] * 100e3).tolist()
        )
        assert "ssd" not in set(timeline.links["tier"])
    took = first_read(**STAGED, **values)
    assert took == pytest.approx(2 * 10 * 100e3 / 100e9, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([STAGED, COPIED]),
    st.floats(0.05, 20),
    st.floats(0.05, 20),
    st.floats(0.05, 20),
    st.fixed_dictionaries(
        {
            "format": st.sampled_from(["archive", "files"]),
            "target": st.sampled_from(["ssd", "memory"]),
            "copies": st.integers(1, 8),
            "broadcast": st.booleans(),
        }
    ),
    st.integers(1, 3),
)
def test_staging_takes_at_least_its_bound(exchange, servers, client, ssd, how, gpus):
    """The bound takes each resource alone, but for HCAs and cables."""
    values = exchange | {"workload__staging": how, "cluster__host__gpus": gpus}
    values |= {
        f"cluster__parallel_file_system__{key}": f"{x!r} GB/s"
        for key, x in (("read_bandwidth", servers), ("client_bandwidth", client))
    }
    scenario = small(**values, cluster__ssd__write_bandwidth=f"{ssd!r} GB/s")
    took, bound = report.epochs(simulate(scenario))["staging_s"].item(), staging_seconds(scenario)
    assert took >= bound * (1 - 1e-9)
    hosts = scenario.hosts
    most = 8 * 80e6 / 10e9 + 8 * 80e6 / 12.5e9  # HCAs and the cable of the servers
    assert took <= 2 * bound + most + hosts * CABLE + 1e-6


# -------------------------------------------------------------------------- accelerator utilisation


def test_accelerator_utilisation_of_an_epoch():
    """10 iterations of forward 9.083 ms, backward 18.17 ms, update 0.5679 ms over the epoch; the
    ring and the first batch are the rest."""
    table = report.epochs(simulate(small())).iloc[0]
    computing = 10 * (10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3)
    ring = 10 * (2 * 7 * 9.6e-6 + 2 * 7 / 8 * 102228128 / 10e9)
    first = 10 * 80e-6 + 2 * 10 * 100e3 / 3e9 + 10e-3 + 2 * 10 * 602112 / 16e9
    assert table["accelerator_utilisation"] == pytest.approx(
        computing / (computing + ring + first), rel=1e-9
    )
    assert table["samples_per_s"] == pytest.approx(800 / (computing + ring + first), rel=1e-9)


def test_accelerators_idle_while_the_servers_open_files():
    """800 files at 500 a second are 1.6 s, in which each accelerator computes 278 ms."""
    bound = epoch_s(**PFS, cluster__parallel_file_system__open_rate="500 1/s")
    timeline = simulate(small(**PFS, cluster__parallel_file_system__open_rate="500 1/s"))
    expected = 10 * (10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3) / bound
    assert report.epochs(timeline)["accelerator_utilisation"].item() == pytest.approx(
        expected, rel=1e-9
    )
    assert expected < 0.18


# --------------------------------------------------------------------------------------- properties


@settings(max_examples=15, deadline=None)
@given(st.floats(10, 2000), st.floats(1.1, 20), st.sampled_from(["pfs", "ssd"]))
def test_reading_takes_longer_for_more_bytes_and_less_time_with_more_bandwidth(
    kilobytes, factor, source
):
    tier = "parallel_file_system" if source == "pfs" else "ssd"

    def took(size: float, bandwidth: float) -> float:
        values = LONE | {
            "workload__exchange": f"local_shuffle:source={source}",
            f"cluster__{tier}__read_bandwidth": f"{bandwidth!r} MB/s",
        }
        values |= {
            "workload__dataset__sample_size": {"mean": f"{size!r} kB", "std": "0 B"},
            f"cluster__{tier}__latency": "0 s",
        }
        return first_read(**values, **FAST_OPENS, workload__loader={"workers": 1, "prefetch": 1})

    slow = took(kilobytes, 100.0)
    assert took(kilobytes * factor, 100.0) > slow
    assert took(kilobytes, 100.0 * factor) < slow
    if source == "ssd":
        assert took(kilobytes, 100.0 * factor) == pytest.approx(slow / factor, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 16), st.floats(0.1, 10), st.floats(0, 0.9), st.floats(0.05, 5))
def test_the_servers_never_send_more_than_their_bandwidth(clients, servers, load, client):
    values = {
        "read_bandwidth": f"{servers!r} GB/s",
        "background_load": load,
        "client_bandwidth": f"{client!r} GB/s",
    }
    ends = pfs_times(clients, 1e9, **values)
    free = servers * (1 - load)
    assert ends == pytest.approx(
        np.full(clients, max(clients / free, 1 / client, clients / 12.5, 0.1)), rel=1e-9
    )


def first_batch(threads: int, **values: Any) -> float:
    """Seconds until the first batch of a lone rank is loaded and copied: 10 samples, of 1 ms to
    decode, on a host of 8 cores."""
    timeline = simulate(
        small(
            world_size=1,
            workload__loader={"workers": 1, "prefetch": 1, "threads": threads},
            **values,
        )
    )
    phases = timeline.phases[(timeline.phases["rank"] == 0) & (timeline.phases["iteration"] == 1)]
    return float(phases.loc[phases["phase"] == "forward", "start_s"].iloc[0])


@pytest.mark.parametrize(("threads", "cores"), [(1, 1), (4, 4), (10, 8), (20, 8)])
def test_the_threads_of_a_worker_decode_on_as_many_cores_as_the_host_has(threads, cores):
    # reading takes next to nothing; with 10 samples no more than 10 threads have work
    fast = {
        "cluster__ssd__read_bandwidth": "1 TB/s",
        "cluster__ssd__latency": "0 s",
        "workload__model__input_size": "1 B",
    }
    fast |= {"cluster__ssd__iops": "1000 M/s"}
    assert first_batch(threads, **fast) == pytest.approx(10e-3 / cores, rel=1e-3)


def test_several_threads_read_and_decode_at_the_same_time():
    # 10 samples of 100 kB at 100 MB/s are read in 10 ms; one thread decodes them after that in 10
    # ms, two in 5 ms beside it
    slow = {
        "cluster__ssd__read_bandwidth": "100 MB/s",
        "cluster__ssd__latency": "0 s",
        "workload__model__input_size": "1 B",
    }
    assert first_batch(1, **slow) == pytest.approx(20e-3, rel=1e-3)
    assert first_batch(2, **slow) == pytest.approx(10e-3, rel=1e-3)


def test_the_slowest_host_decides_where_decoding_binds():
    """Of two hosts whose decoding binds the slower one makes the epoch longer by its factor, in
    every epoch alike."""
    bound: dict[str, Any] = {
        "world_size": 2,
        "epochs": 2,
        "cluster__memory__page_cache": "100 GB",
        "workload__dataset__decode": "100 ms",
        "workload__loader": {"workers": 1, "prefetch": 1},
    }
    spread = {"compute": 0, "read": 0, "host_decode": 0.5}
    plain, scenario = small(**bound), small(**bound, workload__jitter=spread)
    factors = lognormal_factor(scenario.rng("host_decode"), 0.5, (2,))
    assert abs(factors - factors.mean()).max() > 0.05
    once, varied = (report.epochs(simulate(each))["epoch_s"] for each in (plain, scenario))
    assert (varied / once).tolist() == pytest.approx([factors.max()] * 2, rel=0.02)
