"""The links of devices and servers, and the routes that reads and writes take over them, by name.

3 ranks on two of four hosts with two GPUs and two HCAs each, on one switch: the third rank is on
the first HCA of h0001.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.job.plan.devices import UNBOUND
from simshuffle.job.plan.resources import DETOUR, Resources
from tests.small import small

STAR = {
    "kind": "star",
    "hosts": 4,
    "hcas_per_host": 2,
    "link_bandwidth": "10 GB/s",
    "cable_latency": "40 ns",
    "switch_latency": "100 ns",
}
PFS = {
    "read_bandwidth": "10 GB/s",
    "write_bandwidth": "4 GB/s",
    "open_rate": "20 k/s",
    "background_load": 0.2,
    "client_bandwidth": {"points": {1: "9 GB/s", 2: "3 GB/s"}},
    "link_latency": "30 ns",
}
STORE = {"latency": "10 ms", "host_bandwidth": "2 GB/s", "request_rate": "1 k/s", "prefixes": 3}
TIER = {
    "capacity": "1 GB",
    "bandwidth": "8 GB/s",
    "host_bandwidth": {"points": {1: "7 GB/s", 2: "5 GB/s"}},
    "open_rate": "6 k/s",
}


def machine(writes: bool = True, beside: Any = (), every: bool = False, **values: Any) -> Resources:
    cluster = small(
        **{
            "cluster__topology": STAR,
            "cluster__host__gpus": 2,
            "cluster__host__hcas": 2,
            "cluster__host__pcie_slots": 1,
            "cluster__parallel_file_system": PFS,
            "cluster__object_store": STORE,
            "cluster__cache_tier": TIER,
            "world_size": 3,
            "workload__exchange": "global_shuffle",
            **values,
        }
    ).cluster
    rng = np.random.default_rng(0)
    return Resources(cluster, 3, rng, beside, every_cable=every, writes=writes)


def named(run: Resources, routes: Any) -> list[list[str]]:
    return [[run.links.names[link] for link in route if link >= 0] for route in routes]


def devices(run: Resources) -> dict[str, tuple[float, str, str]]:
    """Capacity, unit and kind of each device that is no cable."""
    table = run.links
    assert not table.latency[~table.cable].any()
    columns = zip(table.names, table.capacity, table.units, table.tiers, table.cable, strict=True)
    return {
        name: (float(capacity), unit, tier)
        for name, capacity, unit, tier, is_cable in columns
        if not is_cable
    }


def test_each_device_has_its_capacity_unit_and_kind():
    found = devices(machine())
    of_hosts = {
        "pcie_out": (16e9, "B"),
        "pcie_in": (16e9, "B"),
        "nvlink0": (50e9, "B"),
        "nvlink1": (50e9, "B"),
        "memory": (100e9, "B"),
        "ssd": (1.0, "s"),
        "cores": (8.0, "s"),
        "pfs.client": (3e9, "B"),
        "object_store.host": (2e9, "B"),
        "cache_tier.host": (5e9, "B"),
    }
    expected = {
        f"{host}.{part}": (*values, part.rstrip("01"))
        for host in ("h0000", "h0001")
        for part, values in of_hosts.items()
    }
    servers = {
        "pfs.bandwidth": (8e9, "B"),
        "pfs.open": (16e3, "ops"),
        "pfs.write": (3.2e9, "B"),
        "object_store.bandwidth": (UNBOUND, "B"),
        "object_store.requests": (3e3, "ops"),
        "cache_tier.bandwidth": (8e9, "B"),
        "cache_tier.open": (6e3, "ops"),
    }
    assert found == expected | {name: (*values, name) for name, values in servers.items()}


def test_what_has_no_limit_is_so_wide_that_it_does_not_bind():
    tier = {key: value for key, value in TIER.items() if key in ("capacity", "bandwidth")}
    store = {"latency": "10 ms", "bandwidth": "7 GB/s"}
    found = devices(machine(cluster__cache_tier=tier, cluster__object_store=store))
    assert found["cache_tier.open"][0] == found["h0001.cache_tier.host"][0] == UNBOUND
    assert found["h0001.object_store.host"][0] == UNBOUND
    assert found["object_store.bandwidth"][0] == 7e9


@pytest.mark.parametrize(
    ("writes", "bandwidth", "first"),
    [
        (True, "4 GB/s", ["pfs.write", "pfs.bandwidth"]),  # writing takes of reading
        (True, "40 GB/s", ["pfs.write"]),
        (True, "10 GB/s", ["pfs.bandwidth"]),
        (True, None, ["pfs.bandwidth"]),
        (False, "4 GB/s", ["pfs.bandwidth"]),
    ],
)
def test_writes_cross_the_servers_by_what_they_write(writes, bandwidth, first):
    pfs = {key: value for key, value in PFS.items() if key != "write_bandwidth"}
    pfs |= {} if bandwidth is None else {"write_bandwidth": bandwidth}
    run = machine(writes, cluster__parallel_file_system=pfs)
    routes, latency = run.pfs_write_routes()
    up = ["switch>pfs.switch", "pfs.switch>pfs"]
    assert named(run, routes) == [
        [*first, "h0000.pfs.client", "h0000>switch#0", *up],
        [*first, "h0000.pfs.client", "h0000>switch#1", *up],
        [*first, "h0001.pfs.client", "h0001>switch#0", *up],
    ]
    # a cable with its switch, and two cables of the file system
    assert latency == pytest.approx([latency[0]] * 3)
    assert latency[0] == pytest.approx(run.pfs_read()[1][0])


def test_reads_cross_what_they_come_from_and_the_tier_that_stores_them():
    run = machine(writes=False)
    down = [
        ["pfs>pfs.switch", "pfs.switch>switch", cable]
        for cable in ("switch>h0000#0", "switch>h0000#1", "switch>h0001#0")
    ]
    hosts = ["h0000", "h0000", "h0001"]
    client = [["pfs.bandwidth", f"{host}.pfs.client"] for host in hosts]
    tier = [["cache_tier.bandwidth", f"{host}.cache_tier.host"] for host in hosts]
    store = [["object_store.bandwidth", f"{host}.object_store.host"] for host in hosts]
    routes, latency = run.pfs_read()
    assert routes.shape == (3, run.width)
    assert named(run, routes) == [a + b for a, b in zip(client, down, strict=True)]
    assert latency.min() > 0
    stored, same = run.pfs_read(stored=True)
    through = [[*a, "cache_tier.bandwidth", *b] for a, b in zip(client, down, strict=True)]
    assert named(run, stored) == through
    assert same.tolist() == latency.tolist()
    hits, same = run.tier_read(cables=True)
    assert named(run, hits) == [a + b for a, b in zip(tier, down, strict=True)]
    assert same.tolist() == latency.tolist()
    apart, none = run.tier_read(cables=False)
    assert (named(run, apart), none.tolist()) == (tier, [0.0] * 3)
    assert apart.shape == (3, 2)
    assert named(run, run.store_read()) == store
    assert named(run, run.store_read(stored=True)) == [[*a, "cache_tier.bandwidth"] for a in store]
    names = ["pfs.bandwidth", "pfs.open", "object_store.bandwidth", "object_store.requests"]
    names += ["cache_tier.bandwidth", "cache_tier.open"]
    assert [run.links.names[link] for link in run.servers] == names
    bare = machine(cluster__object_store=None, cluster__cache_tier=None)
    assert [bare.links.names[link] for link in bare.servers] == names[:2]


def test_hosts_beside_the_run_write_over_their_cables_with_a_share_of_a_client():
    """From each of their two HCAs, half of the 3 GB/s that a host has: those of the run cross it as
    a link."""
    run = machine(beside=["h0003"])
    routes, latency, share = run.write_routes(["h0003", "h0001"])
    up = ["switch>pfs.switch", "pfs.switch>pfs"]
    first = ["pfs.write", "pfs.bandwidth"]
    assert named(run, routes) == [
        [*first, "h0003>switch#0", *up],
        [*first, "h0003>switch#1", *up],
        [*first, "h0001>switch#0", *up, "h0001.pfs.client"],
        [*first, "h0001>switch#1", *up, "h0001.pfs.client"],
    ]
    assert share.tolist() == [1.5e9, 1.5e9, np.inf, np.inf]
    assert latency == pytest.approx([run.pfs_read()[1][0]] * 4)
    plain = {key: value for key, value in PFS.items() if key != "client_bandwidth"}
    unbound = machine(beside=["h0003"], cluster__parallel_file_system=plain)
    routes, _, share = unbound.write_routes(["h0003", "h0001"])
    assert share.tolist() == [np.inf] * 4
    assert named(unbound, routes)[2] == [*first, "h0001>switch#0", *up]


@pytest.mark.parametrize(
    ("values", "writes", "every", "more"),
    [
        ({"cluster__cache_tier": None}, False, False, 2),
        ({"cluster__cache_tier": None}, True, False, 3),
        ({}, False, False, 3),
        ({}, True, False, 3),
        ({}, True, True, 3 + DETOUR),
    ],
)
def test_a_route_has_room_for_its_devices_and_detours(values, writes, every, more):
    """Three cables to the file system, and the devices before them."""
    assert machine(writes, every=every, **values).width == 3 + more


def test_ports_are_those_of_ranks_of_their_hosts_or_of_all_that_is_used():
    run = machine()
    of_hosts = run.ports_of(["h0000", "h0001", "h0003"])
    assert of_hosts.shape == (3, 2)
    assert run.host_ports.tolist() == sorted(of_hosts[:2].ravel().tolist())
    # no rank is on the second HCA of h0001
    assert run.ports.tolist() == sorted([*of_hosts[0].tolist(), int(of_hosts[1, 0])])
    assert set(run.every_port.tolist()) > set(run.host_ports.tolist())
    assert len(run.every_port) == len(run.host_ports) + 1
    assert run.rail_of.tolist() == [0, 1, 0]
    assert run.slot_of.tolist() == [0, 0, 0]
    assert run.rails.tolist() == [0, 1, 0]


def test_the_client_comes_last_after_the_first_link_of_all_too():
    """On a tree the first link leads up from the leaf switch of h0000."""
    tree = {"kind": "fat_tree", "levels": 2, "arity": 2, "link_bandwidth": "10 GB/s"}
    run = machine(cluster__topology=tree, cluster__host__gpus=1, cluster__host__hcas=1)
    assert run.links.names[0] == "leaf.0>spine.0"
    hosts = ["h0000", "h0001", "h0002"]
    routes = named(run, run.write_routes(hosts)[0])
    assert "leaf.0>spine.0" in routes[0] + routes[1]
    assert [route[-1] for route in routes] == [f"{host}.pfs.client" for host in hosts]
    assert all(route[-2] == "pfs.switch>pfs" for route in routes)
