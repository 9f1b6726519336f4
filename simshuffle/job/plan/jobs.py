"""Where the jobs of a scenario run, and what others on the machine send from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simshuffle.errors import Problem, ScenarioError, list_first
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import names_of, placed, wiring
from simshuffle.job.scenario.background import PeriodicWrites
from simshuffle.job.scenario.faults import needs_every_cable
from simshuffle.job.scenario.scenario import Scenario


def settled(scenario: Scenario) -> Scenario:
    """The same where every job, and every record of background traffic, names its hosts: jobs one
    after the other fill the next free ones, in the order of the cluster's placement.

    Raises:
        ScenarioError: a job or a record names hosts that there are not, or more than one sends
            needs hosts and none are left.
        TopologyError: as `simshuffle.job.plan.wiring.wiring`.
    """
    if scenario.jobs is None and scenario.background is None:
        return scenario
    taken = _hosts(scenario)
    update: dict[str, object] = {}
    if scenario.jobs is not None:
        update["jobs"] = {
            name: job.model_copy(update={"placement": taken[name]})
            for name, job in scenario.jobs.items()
        }
    if scenario.background is not None:
        update["background"] = list(_sending(scenario, taken))
    return scenario.model_copy(update=update)


def _hosts(scenario: Scenario) -> dict[str, list[str]]:
    """The hosts of every job; of a scenario without jobs those of its own, under ''."""
    fabric, rng = wiring(scenario.cluster).fabric, scenario.rng("placement")
    if scenario.jobs is None:
        return {"": placed(scenario.cluster, fabric, scenario.hosts, rng)}
    known, alone = set(names_of(fabric, "host")), scenario.of_jobs()
    problems, out = list[Problem](), dict[str, list[str]]()
    for name, job in scenario.jobs.items():
        if job.hosts is not None:
            out[name] = job.hosts[: alone[name].hosts]
            problems += _unknown(f"jobs.{name}.placement", out[name], known)
    if problems:
        raise ScenarioError(problems, scenario.name)
    taken = {host for hosts in out.values() for host in hosts}
    for name, of in alone.items():
        if name not in out:
            out[name] = placed(of.cluster, fabric, of.hosts, rng, taken)
            taken.update(out[name])
            if (have := len(out[name])) < of.hosts:
                rule = f"must leave {of.hosts} free hosts to this job"
                remedy = "Name hosts of its own, or use fewer ranks."
                problem = Problem(f"jobs.{name}.placement", rule, str(have), remedy)
                raise ScenarioError(problem, scenario.name)
    return {name: out[name] for name in scenario.jobs}


def _unknown(path: str, named: Iterable[str], known: set[str]) -> Iterator[Problem]:
    if unknown := [name for name in named if name not in known]:
        ends = f"Its {len(known)} hosts are called {min(known)} to {max(known)}."
        yield Problem(path, "must name hosts of the topology", list_first(unknown), ends)


def _sending(scenario: Scenario, taken: Mapping[str, list[str]]) -> Iterator[object]:
    """The records of background traffic, with the hosts of each."""
    names = names_of(wiring(scenario.cluster).fabric, "host")
    busy, known = {host for hosts in taken.values() for host in hosts}, set(names)
    free, problems = [name for name in names if name not in busy], list[Problem]()
    for number, record in enumerate(scenario.background or []):
        path, named = f"background.{number}.hosts", record.named
        problems += _unknown(path, named or (), known)
        least = 1 if isinstance(record, PeriodicWrites) else 2
        if named is None and len(free) < least:
            rule = f"needs at least {least} of the hosts on which no job runs"
            remedy = "Name hosts, use fewer ranks or a larger topology."
            problems.append(Problem(path, rule, str(len(free)), remedy))
        yield record.model_copy(update={"hosts": free if named is None else named})
    if problems:
        raise ScenarioError(problems, scenario.name)


def alone(scenario: Scenario, name: str) -> Scenario:
    """A `settled` scenario with one of its jobs alone, on the same hosts."""
    assert scenario.jobs is not None  # noqa: S101 - whoever has a name of a job has jobs
    return scenario.model_copy(update={"jobs": {name: scenario.jobs[name]}})


def each_alone(runs: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """The same runs by name, each with jobs as its jobs, which then stand alone on their hosts.
    Raises as `settled`."""
    out = dict[str, Scenario]()
    for label, scenario in runs.items():
        placed = settled(scenario)
        behind = f" {label}" if len(runs) > 1 else ""
        jobs = {f"{job}{behind}": one for job, one in placed.of_jobs().items()}
        out |= {label: scenario} if scenario.jobs is None else jobs
    return out


@dataclass(frozen=True)
class Shared:
    """What the jobs of a `settled` scenario share."""

    jobs: dict[str, Scenario]  # each by itself
    starts: dict[str, float]  # s, when each begins
    whole: Resources  # of all hosts
    of: dict[str, Resources]  # what each has of it


def shared(scenario: Scenario) -> Shared:
    """The hosts and links of all jobs, each job a part of them."""
    jobs = scenario.of_jobs()
    hosts = [host for one in jobs.values() for host in one.cluster.named_hosts or ()]
    ranks, gpus = [one.world_size for one in jobs.values()], scenario.cluster.host.gpus
    cluster = scenario.cluster.model_copy(update={"placement": hosts})
    beside = hosts_beside(scenario)
    on = cluster, len(hosts) * gpus, scenario.rng("placement"), beside
    cables, writes = needs_every_cable(scenario.faults), writes_to_pfs([scenario, *jobs.values()])
    whole = Resources(*on, every_cable=cables, writes=writes)
    whole.all_ranks = sum(ranks)
    first_host = np.cumsum([0, *(one.hosts for one in jobs.values())]).tolist()
    first_rank = np.cumsum([0, *ranks]).tolist()
    of = {
        name: whole.part(host, one.world_size, rank)
        for (name, one), host, rank in zip(jobs.items(), first_host, first_rank, strict=False)
    }
    starts = {name: job.start for name, job in (scenario.jobs or {}).items()}
    return Shared(jobs, starts, whole, of)


def writes_to_pfs(jobs: Iterable[Scenario]) -> bool:
    """Whether any of them, or the traffic of others beside it, writes to the parallel file
    system."""
    for one in jobs:
        saved, others = one.workload.checkpoint, one.background or ()
        if saved is not None and saved.writes_to_pfs:
            return True
        if any(isinstance(record, PeriodicWrites) for record in others):
            return True
    return False


def hosts_beside(scenario: Scenario) -> list[str]:
    """The hosts that send the background traffic of a `settled` scenario, each once."""
    named = (host for record in scenario.background or [] for host in record.named or ())
    return list(dict.fromkeys(named))
