"""What hosts keep and how long copying it to them takes at least, by hand.

10 ranks on 3 hosts of 4 GPUs, and 80 MB in samples of 100 kB, 6 to a file: the fullest host trains
on 32 MB.
"""

from math import inf
from typing import Any

import pytest

from simshuffle.job.plan.holding import (
    file_bandwidths,
    held_in,
    list_alternatives,
    max_held_nbytes,
    reread_seconds,
    staging_seconds,
)
from simshuffle.job.scenario.scenario import Scenario
from tests.small import small

FILE = 6e5
MACHINE: dict[str, Any] = {
    "cluster__host__gpus": 4,
    "cluster__memory__bandwidth": "80 GB/s",
    # 8 GB/s and 16,000 files a second are left
    "cluster__parallel_file_system__background_load": 0.2,
    "cluster__parallel_file_system__client_bandwidth": {"points": {1: "1 GB/s", 3: "3 GB/s"}},
    # 3 prefixes with 1,000 tries a second, 1.25 of which are one request of 52.5 ms
    "cluster__object_store": {
        "latency": "40 ms",
        "retry_share": 0.2,
        "retry_delay": "10 ms",
        "connection_bandwidth": "100 MB/s",
        "bandwidth": "5 GB/s",
        "host_bandwidth": "2 GB/s",
        "request_rate": "1 k/s",
        "prefixes": 3,
    },
    "world_size": 10,
    "workload__dataset__samples_per_file": 6,
}
EVERYTHING = "global_shuffle:source=ssd"


def staged(exchange: str = "local_shuffle", staging: Any = None, **values: Any) -> Scenario:
    copied = {} if staging is None else {"workload__staging": staging}
    return small(**MACHINE | {"workload__exchange": exchange} | copied | values)


@pytest.mark.parametrize(
    ("staging", "values", "bandwidths"),
    [
        ({}, {}, (inf, inf)),
        # three files at once, each opened in 1 ms
        ({"format": "files", "copies": 3}, {}, (16e3 * FILE, 3 * FILE / 1e-3)),
        (
            {"format": "files"},
            {"cluster__parallel_file_system__latency": "0 s"},
            (16e3 * FILE, inf),
        ),
        ({"source": "object_store", "copies": 3}, {}, (inf, 3 * 100e6)),
        # a file takes 52.5 ms and 6 ms of its connection
        (
            {"source": "object_store", "format": "files", "copies": 3},
            {},
            (2400 * FILE, 3 * FILE / 58.5e-3),
        ),
    ],
)
def test_files_are_opened_and_sent_by_all_and_to_one_host(staging, values, bandwidths):
    scenario = staged(staging=staging, **values)
    found = file_bandwidths(scenario.cluster, scenario.workload.staging, FILE)
    assert found == pytest.approx(bandwidths)


@pytest.mark.parametrize(
    ("exchange", "staging", "values", "seconds", "again"),
    [
        # 80 MB from servers of 8 GB/s, 32 MB to a host over 3 GB/s (1 GB/s alone), to 1 GB/s
        ("local_shuffle", {}, {}, 32e6 / 1e9, 32e6 / 1e9),
        ("local_shuffle", {"target": "memory"}, {}, 32e6 / 3e9, 32e6 / 1e9),
        (
            "local_shuffle",
            {"target": "memory"},
            {"cluster__parallel_file_system__client_bandwidth": None},
            80e6 / 8e9,
            32e6 / 8e9,
        ),
        # one file in 1 ms after the other
        ("local_shuffle", {"format": "files"}, {}, 32e6 / 6e8, 32e6 / 6e8),
        # all of it to each of the hosts: three times, unless they pass it on
        (EVERYTHING, {}, {}, 80e6 / 1e9, 80e6 / 1e9),
        (EVERYTHING, {"target": "memory"}, {}, 240e6 / 8e9, 80e6 / 1e9),
        (EVERYTHING, {"target": "memory", "broadcast": True}, {}, 80e6 / 8e9, 80e6 / 1e9),
        (
            EVERYTHING,
            {"target": "memory", "broadcast": True},
            {"cluster__parallel_file_system__client_bandwidth": "1 GB/s"},
            80e6 / 3 / 1e9,
            80e6 / 1e9,
        ),
        # a connection of 100 MB/s; or 50 of them, and the 2 GB/s of a host, or the store's 5 GB/s
        ("local_shuffle", {"source": "object_store"}, {}, 0.32, 0.32),
        (
            "local_shuffle",
            {"source": "object_store", "copies": 50, "target": "memory"},
            {},
            80e6 / 5e9,
            32e6 / 2e9,
        ),
        ("global_shuffle", {}, {}, 0.0, 0.0),
    ],
)
def test_staging_takes_as_long_as_its_slowest_part(exchange, staging, values, seconds, again):
    """For all hosts, and once more for one of them."""
    scenario = staged(exchange, staging, **values)
    assert staging_seconds(scenario) == pytest.approx(seconds)
    assert reread_seconds(scenario) == pytest.approx(again)


@pytest.mark.parametrize("target", ["ssd", "memory"])
def test_strategies_that_hosts_may_have_room_for(target):
    """All, a shard of 32 MB, and a tenth more where that is exchanged, in 33 MB."""
    capacity = {
        "cluster__ssd__capacity": "33 MB" if target == "ssd" else "1 TB",
        "cluster__memory__capacity": "33 MB" if target == "memory" else "1 TB",
    }
    scenario = staged("global_shuffle", {"target": target}, **capacity)
    found = list_alternatives(scenario, 10)
    kinds = ["global_shuffle", "local_shuffle", "partial_local_shuffle"]
    assert [each.kind for each in found] == kinds
    assert [each.nbytes for each in found] == pytest.approx([80e6, 32e6, 1.1 * 32e6])
    assert [each.fits for each in found] == [False, True, False]
    assert {each.capacity for each in found} == {33e6}
    assert "2.2 MB too much" in str(found[2])
    assert "too much" not in str(found[1])
    # two ranks have a shard of half the set each, on one host
    assert list_alternatives(scenario, 2)[1].nbytes == 80e6
    full = small(**MACHINE, cluster__ssd__capacity="32 MB", workload__exchange="local_shuffle")
    assert list_alternatives(full, 10)[1].fits


def test_no_strategies_beside_those_of_other_kinds():
    for exchange in (
        "importance_exchange:exchange_fraction=0",
        "global_shuffle:source=object_store",
    ):
        assert list_alternatives(staged(exchange), 10) == []


@pytest.mark.parametrize(
    ("exchange", "staging", "tier", "nbytes"),
    [
        ("local_shuffle", {}, "ssd", 32e6),
        ("local_shuffle", {"target": "memory"}, "memory", 32e6),
        ("partial_local_shuffle:exchange_fraction=0.5", {}, "ssd", 48e6),
        ("global_shuffle", {"target": "memory"}, None, 0.0),
    ],
)
def test_what_a_host_keeps_and_where(exchange, staging, tier, nbytes):
    scenario = staged(exchange, staging)
    assert held_in(scenario) == tier
    assert max_held_nbytes(scenario) == pytest.approx(nbytes)


def test_loaders_keep_what_their_cache_holds():
    """Of more than two epochs with a cache that still fills nobody has counted the last: all of the
    set, or as much as there is room for."""

    def keeping(epochs: int, batch: int = 10, **exchange: Any) -> float:
        loader = {"kind": "loader_shuffle", "order": "distributed_sampler", **exchange}
        scenario = small(
            **MACHINE | {"world_size": 8, "workload__exchange": loader, "epochs": epochs},
            workload__local_batch_size=batch,
        )
        return max_held_nbytes(scenario)

    # one host has half of the set after the first epoch, and the rest by chance
    assert keeping(1) == pytest.approx(40e6)
    assert 40e6 < keeping(2) < 80e6
    assert keeping(3) == keeping(5) == pytest.approx(80e6)
    # though many a batch of one sample fetches nothing
    assert keeping(5, batch=1) == pytest.approx(80e6)
    assert keeping(5, cache_limit="30 MB") == pytest.approx(30e6)
    # without a cache each epoch is like the others
    assert keeping(5, cache_limit="0 B") == keeping(2, cache_limit="0 B") < 40e6
    scenario = small(
        world_size=8,
        workload__exchange={
            "kind": "loader_shuffle",
            "order": "distributed_sampler",
            "cache_limit": "0 B",
        },
    )
    assert held_in(scenario) == "memory"
