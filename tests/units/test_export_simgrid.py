"""What is written for SMPI, read back without it: links, routes, and what each rank does."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from simshuffle.extensions.interop.exports.export import export
from simshuffle.extensions.interop.exports.program import make_program
from simshuffle.extensions.interop.exports.simgrid import WIDTH, routes_of, smpi_options
from simshuffle.extensions.interop.exports.source import ExportedRun
from tests.units.test_export_formats import exchanging

SCHEDULE = {"kind": "authors", "overlap": False}


@pytest.fixture(scope="module")
def scenario():
    """Two ranks on each host, so that some messages stay inside."""
    rate = {"cluster__message_passing__stream_bandwidth": "3 GB/s"}
    return exchanging(SCHEDULE, cluster__host__gpus=2, **rate)


@pytest.fixture(scope="module")
def made(scenario):
    return make_program(scenario, 1, 1)


@pytest.fixture(scope="module")
def folder(scenario, tmp_path_factory):
    out = tmp_path_factory.mktemp("exports") / "smpi"
    export(ExportedRun("", scenario, "run", ("run",)), "simgrid", out)
    return out


@pytest.fixture(scope="module")
def zone(folder):
    root = ET.parse(folder / "platform.xml").getroot()
    assert root.get("version") == "4.1"
    return root.find("zone")


def pair(route):
    return tuple(int(route.get(end).removeprefix("rank-")) for end in ("src", "dst"))


def test_each_message_has_the_route_of_the_simulator(made, zone):
    links = {link.get("id"): link for link in zone.iter("link")}
    routes = {pair(route): [c.get("id") for c in route] for route in zone.iter("route")}
    assert len(routes) == len(list(zone.iter("route")))
    assert all(route.get("symmetrical") == "NO" for route in zone.iter("route"))
    names, inside = made.resources.links.names, 0
    for step in made.steps:
        for rank in np.flatnonzero(step.sends):
            wanted = [link for link in step.route[rank] if link >= 0]
            first, *rest = routes[rank, step.target[rank]]
            assert first == "message passing"
            assert rest == [names[link] for link in wanted]
            inside += names[wanted[0]].endswith(".memory")
            for link in wanted:
                written = links[names[link]]
                assert float(written.get("bandwidth")[:-3]) == made.resources.links.capacity[link]
                assert written.get("latency") == "0s"
                assert written.get("sharing_policy") is None
    assert inside > 0
    shared_by_none = links["message passing"]
    assert shared_by_none.get("sharing_policy") == "FATPIPE"
    assert float(shared_by_none.get("latency")[:-1]) == made.latency_s
    assert float(shared_by_none.get("bandwidth")[:-3]) == 3e9
    for turn in (1, 2, 4):  # rounds of a barrier of eight ranks
        assert all((rank, (rank + turn) % 8) in routes for rank in range(8))


def test_each_rank_finds_its_messages_by_the_length_of_a_line(made, folder):
    text = (folder / "exchange.txt").read_text(encoding="ascii")
    assert f"#define WIDTH {WIDTH}" in (folder / "exchange.c").read_text(encoding="ascii")
    lines = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    steps = len(made.steps)
    assert [int(word) for word in lines[0].split()] == [made.world_size, steps, steps, 1]
    for rank in range(made.world_size):
        mine = lines[1 + rank * (steps + 1) :][: steps + 1]
        assert float(mine[-1]) == pytest.approx(made.store_s[rank], rel=1e-9)
        for line, step in zip(mine, made.steps, strict=False):
            target, source, sent, received, before, late = map(float, line.split())
            assert (target, source) == (step.target[rank], step.source[rank])
            assert sent == pytest.approx(step.nbytes[rank], abs=0.5)
            assert received == pytest.approx(step.nbytes[int(source)], abs=0.5)
            assert before == pytest.approx(step.before_s[rank], rel=1e-9)
            assert late == pytest.approx(
                step.latency_s[rank] - made.latency_s if step.sends[rank] else 0.0, abs=1e-15
            )


def test_hosts_and_commands_are_whole(made, folder, zone):
    hosts = (folder / "hostfile").read_text(encoding="ascii").split()
    assert hosts == [f"rank-{rank}" for rank in range(made.world_size)]
    assert [host.get("id") for host in zone.iter("host")] == hosts
    readme = (folder / "README.txt").read_text()
    assert all(option in readme for option in smpi_options())


def test_a_pair_whose_route_changes_is_counted(made):
    """SimGrid has one route for a pair: the first."""
    step = made.steps[0]
    rank = int(np.flatnonzero(step.sends)[0])
    other = step.route.copy()
    other[rank, 0] += 1
    changed = replace(made, steps=[step, replace(step, route=other)])
    routes, different = routes_of(changed)
    assert different == 1
    assert routes[rank, int(step.target[rank])] == [x for x in step.route[rank] if x >= 0]
