"""The hosts of jobs and of traffic beside them, and the part of the machine that each has."""

from typing import Any

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.plan.jobs import (
    hosts_beside,
    isolate_job,
    place_jobs,
    separate_jobs,
    share_machine,
    writes_to_pfs,
)
from simshuffle.job.scenario.scenario import Scenario
from tests.small import small

WRITES = {"kind": "periodic_writes", "period": "1 s", "nbytes": "1 GB"}
UNIFORM = {"kind": "uniform", "load": 0.1}


def jobs(background: Any = None, hosts: int = 9, **ranks: Any) -> Scenario:
    """Two GPUs a host on one switch."""
    star = {"kind": "star", "hosts": hosts, "link_bandwidth": "10 GB/s"}
    records = {} if background is None else {"background": background}
    return small(
        cluster__topology=star | {"cable_latency": "0 s", "switch_latency": "0 s"},
        cluster__host__gpus=2,
        world_size=2,
        jobs={
            name: of if isinstance(of, dict) else {"world_size": of} for name, of in ranks.items()
        },
        **records,
    )


def names(*numbers: int) -> list[str]:
    return [f"h{number:04d}" for number in numbers]


def placements(scenario: Scenario) -> dict[str, Any]:
    return {name: job.placement for name, job in (place_jobs(scenario).jobs or {}).items()}


def test_jobs_fill_hosts_one_after_the_other():
    """Three ranks fill a host and a half; hosts that are named are nobody else's."""
    named = {"world_size": 3, "placement": names(1, 5, 6)}
    found = placements(jobs(a=3, b=named, c=3))
    assert found == {"a": names(0, 2), "b": names(1, 5), "c": names(3, 4)}
    assert list(found) == ["a", "b", "c"]


def test_unknown_hosts_are_refused_together():
    away = [{"world_size": 2, "placement": [name]} for name in ("nowhere", "elsewhere")]
    with pytest.raises(ScenarioError) as refused:
        place_jobs(jobs(a=away[0], b=away[1], c=2))
    paths = [problem.path for problem in refused.value.problems]
    assert paths == ["jobs.a.placement", "jobs.b.placement"]
    with pytest.raises(ScenarioError) as refused:
        place_jobs(jobs([UNIFORM | {"hosts": ["h0000", "nowhere"]}], a=2))
    assert [problem.path for problem in refused.value.problems] == ["background.0.hosts"]


def test_traffic_comes_from_hosts_without_jobs():
    """All records share them, and do not reserve any."""
    records = [UNIFORM, UNIFORM | {"hosts": names(2, 0)}, WRITES]
    placed = place_jobs(jobs(records, hosts=5, a=3))
    found = [record.named_hosts for record in placed.background or []]
    assert found == [names(2, 3, 4), names(2, 0), names(2, 3, 4)]
    assert hosts_beside(placed) == names(2, 3, 4, 0)
    assert hosts_beside(jobs(a=3)) == []


@pytest.mark.parametrize(("record", "free", "needed"), [(UNIFORM, 1, 2), (WRITES, 0, 1)])
def test_traffic_without_free_hosts_is_refused(record, free, needed):
    """Who sends needs another to send to, who writes does not."""
    with pytest.raises(ScenarioError) as refused:
        place_jobs(jobs([record], hosts=2 + free, a=3))
    (problem,) = refused.value.problems
    assert (problem.path, problem.value) == ("background.0.hosts", str(free))
    assert f"at least {needed}" in problem.rule
    place_jobs(jobs([record], hosts=2 + needed, a=3))


def test_a_machine_is_shared_host_by_host_and_rank_by_rank():
    """Of the second job two ranks of 5 are on its last but one host."""
    scenario = place_jobs(jobs([WRITES], a=3, b=5, c={"world_size": 2, "start": "2 s"}))
    machine = share_machine(scenario)
    hosts = {name: part.hosts for name, part in machine.parts.items()}
    assert hosts == {"a": names(0, 1), "b": names(2, 3, 4), "c": names(5)}
    first = {name: part.first_rank for name, part in machine.parts.items()}
    assert first == {"a": 0, "b": 3, "c": 8}
    sizes = {name: part.world_size for name, part in machine.parts.items()}
    assert sizes == {"a": 3, "b": 5, "c": 2}
    assert machine.starts == {"a": 0.0, "b": 0.0, "c": 2.0}
    assert machine.resources.all_ranks == 10
    assert machine.resources.hosts == names(*range(6))
    assert {part.all_ranks for part in machine.parts.values()} == {10}
    # devices are those of its hosts, and everything else of another job is foreign
    links = machine.resources.links.names
    part = machine.parts["b"]
    assert [links[link] for link in part.ssd] == [f"{host}.ssd" for host in names(2, 3, 4)]
    assert [links[link] for link in part.nvlink[2]] == ["h0004.nvlink0", "h0004.nvlink1"]
    foreign = part.foreign_links(machine.resources)
    of_others = [links[link] for link in np.flatnonzero(foreign)]
    assert {name.split(".")[0] for name in of_others} == set(names(0, 1, 5))
    devices = [name for name in links if name.split(".")[0] in names(0, 1, 5)]
    assert len(of_others) == len([name for name in devices if ">" not in name])
    # ranks, GPUs and places of a job count from its own first one
    assert part.host_of.tolist() == [0, 0, 1, 1, 2]
    assert part.gpu_of.tolist() == [0, 1, 0, 1, 0]
    assert part.places.host.tolist() == [0, 0, 1, 1, 2]
    assert part.ranks_per_host == 2
    assert machine.parts["c"].num_hosts == 1


def test_one_job_alone_keeps_its_hosts_and_the_traffic():
    alone = isolate_job(place_jobs(jobs([UNIFORM], a=3, b=4)), "b")
    assert placements(alone) == {"b": names(2, 3)}
    assert alone.background is not None


def test_jobs_of_several_runs_are_called_by_both():
    several = separate_jobs({"x": jobs(a=2, b=2), "y": small()})
    assert list(several) == ["a x", "b x", "y"]
    assert list(separate_jobs({"x": jobs(a=2, b=2)})) == ["a", "b"]
    assert several["b x"].cluster.named_hosts == names(1)


@pytest.mark.parametrize(
    ("values", "writes"),
    [
        ({}, False),
        ({"workload__checkpoint": {"every": 3}}, True),
        ({"workload__checkpoint": {"every": 3, "to": "ssd"}}, False),
        ({"workload__checkpoint": {"every": 3, "to": "ssd", "drain": "pfs"}}, True),
        ({"background": [UNIFORM]}, False),
        ({"background": [UNIFORM, WRITES]}, True),
    ],
)
def test_who_writes_to_the_file_system(values, writes):
    assert writes_to_pfs([small(), small(**values)]) == writes
