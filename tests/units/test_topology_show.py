"""What topology show says of a network: against counts by hand, and on bad input."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.interop.fabrics import survey as surveying
from simshuffle.extensions.interop.fabrics.figure import fabric_figure, save_figure
from simshuffle.extensions.interop.fabrics.survey import (
    PATTERNS,
    Survey,
    check_effort,
    describe_network,
    host_ports,
    pattern_loads,
)
from simshuffle.fabric.routing import DModK, Fabric, MinHop
from simshuffle.fabric.routing.router import link_loads, uniform_loads
from simshuffle.spec.library import shipped_names
from tests.examples import ROUTINGS, TOPOLOGIES
from tests.strategies import abci, fat_tree, star


def survey(topology: Any) -> Survey:
    return Survey(Fabric(topology.sketch()))


def test_a_full_tree_of_two_levels():
    """n leaf switches with n hosts and n links up: n shortest ways between two of them; the half of
    the hosts can send at full rate."""
    found = survey(fat_tree(2, 4))
    rate = fat_tree(2, 4).link_bandwidth
    assert found.nodes_per_tier == {"host": 16, "leaf": 4, "spine": 4}
    assert {tiers: rates.total() for tiers, rates in found.cables_per_tiers.items()} == {
        ("host", "leaf"): 16,
        ("leaf", "spine"): 16,
    }
    assert found.shortest_routes == (4, 4.0, 4)
    assert found.diameter == 4
    # 15 others: 3 of them behind the same switch, over 2 links, 12 over 4
    assert found.mean_distance == pytest.approx((3 * 2 + 12 * 4) / 15)
    assert found.bisection == pytest.approx(8 * rate, rel=1e-3)


def test_a_taper_narrows_the_bisection():
    one = survey(star(5))
    assert (one.diameter, one.mean_distance, one.shortest_routes) == (2, 2.0, (1, 1.0, 1))
    tapered = fat_tree(2, 4, taper=2)
    assert survey(tapered).bisection == pytest.approx(4 * tapered.link_bandwidth, rel=1e-3)


def test_abci_has_a_bisection_of_half_its_spine_links():
    """16 racks of each half, each with 3 switches of 2 x 4 links to the spine. From rack to rack a
    way has 6 links from the leaf to each of 3, 8 from there to a spine, and as many choices down,
    where the spine is given: 4 links to each of 3, and 6 to the leaf. Within a rack 3 x 6 x 6."""
    found = survey(abci())
    assert found.bisection == pytest.approx(16 * 3 * 8 * abci().link_bandwidth, rel=1e-3)
    least, mean, most = found.shortest_routes
    assert (least, most) == (3 * 6 * 6, (3 * 6 * 8) * (3 * 4 * 6))
    racks, leaves = abci().racks, abci().leaf_switches_per_rack
    inside, outside = leaves - 1, leaves * (racks - 1)
    assert mean == pytest.approx((inside * least + outside * most) / (inside + outside))


def test_a_sample_of_leaf_switches_is_named_and_near_the_whole(monkeypatch):
    """Every leaf of a fat tree sees the same: from half of them all numbers are the same."""
    whole = survey(fat_tree(2, 4))
    assert len(whole.sampled_leaves) == 4
    monkeypatch.setattr(surveying, "_MAX_COUNTED_LINKS", 2 * len(whole.fabric.switches.arc_src))
    monkeypatch.setattr(surveying, "_MIN_SAMPLED_LEAVES", 1)
    some = survey(fat_tree(2, 4))
    assert len(some.sampled_leaves) == 2
    assert some.shortest_routes == whole.shortest_routes
    assert some.diameter == whole.diameter
    assert some.mean_distance == pytest.approx(whole.mean_distance)
    assert "(from all leaf switches to 2 of 4)" in describe_network(some)["longest way"]
    assert "from all" not in describe_network(whole)["longest way"]


def machines() -> list[str]:
    """All but the largest, which has a test of its own."""
    return [name for name in shipped_names("topologies") if name != "fugaku"]


@pytest.mark.parametrize("name", machines())
def test_every_shipped_machine_is_shown(name, capsys):
    assert main(["machine", "show", name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    large = int(shown["facts"]["adapters"].split()[0]) > surveying.MAX_ADAPTERS_ALL_TO_ALL
    assert shown["pattern"] == ("random_permutation" if large else "all_to_all")


def test_the_largest_machine_is_shown_within_two_gigabytes(tmp_path):
    """158,976 switches: all their distances to one another would be 47 GiB."""
    code = (
        "import resource, sys; from simshuffle.cli import main;"
        "assert main(['machine', 'show', 'fugaku', '--json']) == 0;"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    how = {"capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, **how)
    assert int(done.stderr.split()[-1]) < 2_000_000  # kB
    facts_of = json.loads(done.stdout)["facts"]
    assert "of 158,976)" in facts_of["longest way"]


def test_a_pattern_that_takes_too_long_is_refused_with_its_estimate(monkeypatch, capsys):
    adapters = survey(fat_tree(2, 4)).num_adapters
    check_effort(survey(fat_tree(2, 4)), "all_to_all")
    monkeypatch.setattr(surveying, "_PAIRS_PER_S", adapters**2 / 7200)  # two hours for all pairs
    with pytest.raises(InputError, match=rf"of {adapters**2} pairs of adapters take 2.0 hours"):
        check_effort(survey(fat_tree(2, 4)), "all_to_all")
    check_effort(survey(fat_tree(2, 4)), "random_permutation")
    assert main(["machine", "show", "abci", "--pattern", "all_to_all"]) == 2
    assert "Use random_permutation" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(ROUTINGS))
def test_uniform_traffic_is_every_port_to_every_other(name, tmp_path):
    rule = ROUTINGS[name]
    grouped = rule.kind in {"dimension_order", "minimal", "valiant", "adaptive"}
    topology = TOPOLOGIES["dragonfly"](tmp_path) if grouped else fat_tree(3, 2, rails=2, hosts=6)
    fabric = Fabric(topology.sketch())
    router, again = rule.router(fabric, 3), rule.router(fabric, 3)
    ports = host_ports(fabric).ravel()
    src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
    apart = src != dst
    found = uniform_loads(router, ports)
    np.testing.assert_array_equal(found, link_loads(again, src[apart], dst[apart]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_port_sends_and_receives_alike(pattern):
    fabric = Fabric(abci(racks=2, hosts_per_rack=4).sketch())
    router = DModK().router(fabric, 0)
    found = pattern_loads(router, pattern, np.random.default_rng(2))
    ports = host_ports(fabric).ravel()
    each = len(ports) - 1 if pattern == "all_to_all" else 1
    out, into = found[fabric.inject_link[ports]], found[fabric.eject_link[ports]]
    assert out.sum() == into.sum()
    assert set(out.tolist()) <= {0, each} and set(into.tolist()) <= {0, each}
    if pattern not in {"random_permutation", "random_pairs"}:
        assert set(out.tolist()) == {each}
    fabric = Fabric(star(6).sketch())
    found = pattern_loads(MinHop().router(fabric, 0), "random_pairs", np.random.default_rng(0))
    assert found[fabric.inject_link[host_ports(fabric)[:, 0]]].tolist() == [1] * 6


def test_show_prints_one_story_in_both_forms(capsys):
    words = ["machine", "show", "small-fat-tree", "--route", "h0000", "h0003"]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["facts"]["hosts"] in table and told["facts"]["routing"] in table
    assert all(link in table for _, link, *_ in told["route"])
    assert told["route"][0][1].startswith("h0000>") and told["route"][-1][1].endswith(">h0003")


@pytest.mark.parametrize("end", ["png", "pdf"])
def test_the_figure_is_the_same_bytes_and_nothing_else_is_left(end, tmp_path):
    fabric = Fabric(fat_tree(2, 3).sketch())
    found = pattern_loads(DModK().router(fabric, 0), "next", np.random.default_rng(0))
    for name in ("a", "b"):
        save_figure(fabric_figure(fabric, found, "next"), tmp_path / f"{name}.{end}")
    assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_figure_is_not_replaced_unless_asked(tmp_path, capsys):
    out = tmp_path / "here.png"
    out.write_text("mine")
    assert main(["machine", "show", "small-fat-tree", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err and out.read_text() == "mine"
    assert main(["machine", "show", "small-fat-tree", "--out", str(out), "--force"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
