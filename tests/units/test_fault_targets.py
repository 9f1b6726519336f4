"""The links and ranks that faults hit by name, among which they are drawn, and when they end."""

from math import inf
from typing import Any

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.plan.faults import Hit, RunFaults, Targets, check_faults
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from tests.small import small

TREE = {"kind": "fat_tree", "levels": 2, "arity": 2, "link_bandwidth": "10 GB/s"}
"""h0000 and h0001 on leaf.0, h0002 and h0003 on leaf.1, two spines."""


def tree(world_size: int = 5, **values: Any) -> Scenario:
    """Two GPUs a host: ranks 0 and 1 on h0000, and rank 4 alone on h0002."""
    return small(
        **{
            "cluster__topology": TREE,
            "cluster__host__gpus": 2,
            "world_size": world_size,
            "workload__dataset__num_samples": 80,
            **values,
        }
    )


def resources_of(scenario: Scenario) -> Resources:
    return Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))


RUN = resources_of(tree())
TARGETS = Targets(RUN)


def names(hit: Hit | None, run: Resources = RUN) -> tuple[set[str], list[int], set[str]]:
    """Names of the links, ranks, and names of the cables of a hit."""
    assert hit is not None
    cables = run.forwarding.fabric.links.names
    links = {run.links.names[link] for link in hit.links}
    return links, hit.ranks.tolist(), {cables[cable] for cable in hit.cables}


def both_ways(*cables: str) -> set[str]:
    return {link for cable in cables for link in (cable, ">".join(cable.split(">")[::-1]))}


DEVICES = ("pcie_out", "pcie_in", "memory", "ssd", "cores")
NVLINKS = ("nvlink0", "nvlink1")


def devices(host: str) -> set[str]:
    return {f"{host}.{part}" for part in (*DEVICES, *NVLINKS)}


@pytest.mark.parametrize(
    ("what", "own", "ranks", "cables"),
    [
        ("leaf.0>spine.0", set(), [], ["leaf.0>spine.0"]),  # the first cable of all
        ("spine.1>leaf.0", set(), [], ["leaf.0>spine.1"]),
        (
            "leaf.1",
            set(),
            [],
            ["leaf.1>spine.0", "leaf.1>spine.1", "leaf.1>h0002", "leaf.1>h0003"],
        ),
        ("h0001", devices("h0001"), [2, 3], ["leaf.0>h0001"]),
        ("h0002", devices("h0002"), [4], ["leaf.1>h0002"]),
        ("h0003", set(), [], ["leaf.1>h0003"]),  # without ranks
        ("h0001.ssd", {"h0001.ssd"}, [], []),
        ("h0001.nvlink1", {"h0001.nvlink1"}, [], []),
        ("h0001.gpu0", set(), [2], []),
        ("h0001.gpu1", set(), [3], []),
        ("h0001.gpus", set(), [2, 3], []),
        ("h0002.gpu0", set(), [4], []),
        ("h0002.gpu1", set(), [], []),  # without a rank
        ("h0003.gpus", set(), [], []),
        ("h0003.ssd", set(), [], []),
        ("pfs", {"pfs.bandwidth", "pfs.open"}, [], []),
        ("pfs.open", {"pfs.open"}, [], []),
    ],
)
def test_a_fault_hits_what_its_name_says(what, own, ranks, cables):
    hit = TARGETS.find_hit(what)
    found_links, found_ranks, found_cables = names(hit)
    assert found_cables == both_ways(*cables)
    assert found_links == own | both_ways(*cables)
    assert found_ranks == ranks
    assert len(hit.links) == len(set(hit.links.tolist()))


@pytest.mark.parametrize(
    "what", ["h0009", "h0009.ssd", "h0001.disk", "h0003.disk", "leaf.0.ssd", "h0001.gpu2", ""]
)
def test_what_is_not_there_is_not_hit(what):
    assert TARGETS.find_hit(what) is None


def test_parallel_cables_are_hit_together_or_by_number():
    star = {"kind": "star", "hosts": 3, "hcas_per_host": 2, "link_bandwidth": "10 GB/s"}
    scenario = tree(
        4,
        cluster__topology=star | {"cable_latency": "0 s", "switch_latency": "0 s"},
        cluster__host__hcas=2,
    )
    run = resources_of(scenario)
    targets = Targets(run)
    second = names(targets.find_hit("switch>h0001#1"), run)[2]
    assert len(second) == 2
    assert all("#1" in name for name in second)
    both = names(targets.find_hit("h0001>switch"), run)[2]
    assert len(both) == 4
    assert both > second


def test_cables_that_a_run_does_not_use_are_cables_without_links():
    """The 4 ranks on two hosts of one leaf send nothing to the other leaf."""
    run = resources_of(tree(4))
    hit = Targets(run).find_hit("h0003")
    links, ranks, cables = names(hit, run)
    assert cables == both_ways("leaf.1>h0003")
    assert links <= cables
    assert not ranks


def test_names_alike_are_of_cables_or_of_anything_else():
    assert "leaf.0>spine.0" in TARGETS.similar_names("leaf0>spine0")
    assert all(">" in name for name in TARGETS.similar_names("leaf0>spine0"))
    found = TARGETS.similar_names("h001")
    assert "h0001" in found
    assert len(found) == 3
    assert TARGETS.similar_names("h0001.gpu")[0] == "h0001.gpus"
    assert TARGETS.similar_names("psf") == ["pfs"]


def test_faults_are_drawn_from_what_the_run_has():
    assert TARGETS.drawn_from("hosts") == ["h0000", "h0001", "h0002"]
    assert TARGETS.drawn_from("ssds") == ["h0000.ssd", "h0001.ssd", "h0002.ssd"]
    gpus = ["h0000.gpu0", "h0000.gpu1", "h0001.gpu0", "h0001.gpu1", "h0002.gpu0"]
    assert TARGETS.drawn_from("gpus") == gpus
    # of two hosts on one leaf: not the cables of the other one's hosts
    cables = Targets(resources_of(tree(4))).drawn_from("cables")
    assert len(cables) == len(set(cables))
    ends = {frozenset(cable.split(">")) for cable in cables}
    assert len(ends) == len(cables)
    assert {frozenset({"leaf.0", host}) for host in ("h0000", "h0001")} <= ends
    assert not {frozenset({"leaf.1", host}) for host in ("h0002", "h0003")} & ends


# ------------------------------------------------------------------------------------- their times


def faulty(*faults: dict[str, Any], **values: Any) -> Scenario:
    return tree(faults=[{"rate": 0, **fault} for fault in faults], **values)


def run_faults(scenario: Scenario) -> RunFaults:
    return RunFaults(scenario, resources_of(scenario))


CABLE = {"what": "leaf.0>spine.0", "at": "1 s"}


@pytest.mark.parametrize(
    ("fault", "end", "reroutes_at"),
    [
        ({"for": "10 s", "reroute_after": "2 s"}, 11.0, 3.0),
        ({}, inf, 2.0),  # a second by default
        # it is back when routes would be known
        ({"for": "10 s", "reroute_after": "10 s"}, 11.0, inf),
        ({"for": "10 s", "on_failure": "stall"}, 11.0, inf),
        ({"for": "10 s", "rate": 0.5}, 11.0, inf),
        ({"for": "10 s", "what": "h0001.ssd"}, 11.0, inf),
    ],
)
def test_new_routes_are_made_for_failed_cables_before_they_are_back(fault, end, reroutes_at):
    (planned,) = run_faults(faulty(CABLE | fault)).planned
    assert (planned.begin, planned.end, planned.reroutes_at) == (1.0, end, reroutes_at)
    assert planned.rate == fault.get("rate", 0.0)


def test_drawn_faults_come_at_exponential_intervals_and_begin_again():
    """From the stream of their entry: an interval, then what, then how long."""
    entry = {"what": "ssds", "at": None, "every": "10 s", "for": "3 s", "rate": 0.5}
    scenario = faulty(CABLE, entry)
    faults = run_faults(scenario)
    assert [fault.what for fault in faults.planned] == ["leaf.0>spine.0"]
    for _ in range(2):
        (drawn,) = faults.draw_faults()
        rng, begin = scenario.rng("faults", 1), 0.0
        for fault in (next(drawn) for _ in range(5)):
            begin += rng.exponential(10.0)
            what = f"h000{rng.integers(3)}.ssd"
            lasts = rng.exponential(3.0)
            assert (fault.what, fault.begin, fault.end) == (what, begin, begin + lasts)
            assert names(fault.hit)[0] == {what}


@pytest.mark.parametrize(
    ("faults", "path"),
    [
        ([{"what": "h0001.sdd", "at": "1 s", "for": "1 s"}], "faults.0.what"),
        ([CABLE, {"what": "h0001.ssd", "at": "1 s"}], "faults.1.for"),
        # a host without another way; a leaf without a spine
        ([{"what": "leaf.0>h0000", "at": "1 s"}], "faults"),
        ([CABLE, CABLE | {"what": "leaf.0>spine.1"}], "faults"),
    ],
)
def test_what_cannot_go_on_is_refused(faults, path):
    with pytest.raises(ScenarioError) as refused:
        check_faults(faulty(*faults))
    assert [problem.path for problem in refused.value.problems] == [path]


@pytest.mark.parametrize(
    "faults",
    [
        [CABLE],
        [CABLE, CABLE | {"what": "leaf.0>spine.1", "for": "1 s"}],
        [CABLE, CABLE | {"what": "leaf.0>spine.1", "rate": 0.1}],
        [{"what": "leaf.1>h0003", "at": "1 s"}],  # no rank is there
        [{"what": "h0001.ssd", "at": "1 s", "rate": 0.5}],
    ],
)
def test_what_leaves_a_way_is_not_refused(faults):
    check_faults(faulty(*faults))


def test_who_is_cut_off_is_named_and_by_which_of_the_faults():
    """By the first three of four."""
    cables = ["leaf.0>h0001", "leaf.1>spine.0", "leaf.1>spine.1", "leaf.0>spine.0"]
    with pytest.raises(ScenarioError) as refused:
        check_faults(faulty(*({"what": cable, "at": "1 s"} for cable in cables)))
    assert f"{', '.join(cables[:3])} cut off h000" in refused.value.problems[0].value
    with pytest.raises(ScenarioError) as refused:
        check_faults(faulty({"what": "h0001.sdd", "at": "1 s", "for": "1 s"}))
    assert "There are h0001.ssd" in (refused.value.problems[0].remedy or "")


def test_faults_need_a_fluid_network_and_are_not_looked_at_without_any():
    with pytest.raises(ScenarioError, match="fluid"):
        check_faults(faulty(CABLE, network={"kind": "packet"}))
    check_faults(tree(network={"kind": "packet"}))


def test_a_job_of_several_loses_no_host():
    jobs = {"jobs": {"a": {"world_size": 2}, "b": {"world_size": 2}}}
    check_faults(faulty({"what": "h0000", "at": "1 s", "rate": 0.5}, **jobs))
    with pytest.raises(ScenarioError) as refused:
        check_faults(faulty({"what": "h0000", "at": "1 s"}, **jobs))
    assert [problem.value for problem in refused.value.problems] == ["h0000"]


def test_ranks_of_a_hit_are_numbers_of_the_run():
    hit = TARGETS.find_hit("h0001")
    assert hit is not None
    assert np.array_equal(hit.cables, np.sort(hit.cables))
