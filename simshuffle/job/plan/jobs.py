"""The hosts on which the jobs of a scenario run, and from which background traffic is
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simshuffle.errors import Problem, ScenarioError, list_first
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import choose_hosts, names_of, wiring
from simshuffle.job.scenario.background import PeriodicWrites
from simshuffle.job.scenario.faults import needs_every_cable
from simshuffle.job.scenario.scenario import Scenario


def place_jobs(scenario: Scenario) -> Scenario:
    """Return the scenario with hosts named by every job and every record of background
    traffic: jobs one after the other fill the next free ones, in the order of the
    cluster's placement.

    A job that names more hosts than it needs gets the first ones. Records without hosts
    all get the same ones, those on which no job runs. A scenario without jobs and
    background traffic is returned as it is.

    Raises:
        ScenarioError: a job or a record names hosts that do not exist, or too few are
            free: for a job all of its own, for a record 1 if it writes, else 2.
        TopologyError: as `simshuffle.job.plan.wiring.wiring`.
    """
    if scenario.jobs is None and scenario.background is None:
        return scenario
    hosts_of_job = _hosts(scenario)
    update: dict[str, object] = {}
    if scenario.jobs is not None:
        update["jobs"] = {
            name: job.model_copy(update={"placement": hosts_of_job[name]})
            for name, job in scenario.jobs.items()
        }
    if scenario.background is not None:
        update["background"] = list(_place_background(scenario, hosts_of_job))
    return scenario.model_copy(update=update)


def _hosts(scenario: Scenario) -> dict[str, list[str]]:
    """Return the hosts of every job; of a scenario without jobs its hosts, under ''.

    Raises:
        ScenarioError: a job names unknown hosts, or too few are free for it.
    """
    fabric = wiring(scenario.cluster).fabric
    rng = scenario.rng("placement")
    if scenario.jobs is None:
        return {"": choose_hosts(scenario.cluster, fabric, scenario.hosts, rng)}
    known_hosts = set(names_of(fabric, "host"))
    jobs = scenario.of_jobs()
    problems = list[Problem]()
    hosts_of_job = dict[str, list[str]]()
    for name, job in scenario.jobs.items():
        if job.hosts is not None:
            hosts_of_job[name] = job.hosts[: jobs[name].hosts]
            problems += _unknown_host_problems(
                f"jobs.{name}.placement", hosts_of_job[name], known_hosts
            )
    if problems:
        raise ScenarioError(problems, scenario.name)
    used_hosts = {host for hosts in hosts_of_job.values() for host in hosts}
    for name, job_scenario in jobs.items():
        if name not in hosts_of_job:
            hosts_of_job[name] = choose_hosts(
                job_scenario.cluster, fabric, job_scenario.hosts, rng, used_hosts
            )
            used_hosts.update(hosts_of_job[name])
            if (num_free := len(hosts_of_job[name])) < job_scenario.hosts:
                rule = f"must leave {job_scenario.hosts} free hosts to this job"
                remedy = "Name hosts of its own, or use fewer ranks."
                problem = Problem(f"jobs.{name}.placement", rule, str(num_free), remedy)
                raise ScenarioError(problem, scenario.name)
    return {name: hosts_of_job[name] for name in scenario.jobs}


def _unknown_host_problems(
    path: str, hosts: Iterable[str], known_hosts: set[str]
) -> Iterator[Problem]:
    """Yield one problem that names all unknown hosts at ``path``, or none if all are
    known.
    """
    if unknown := [name for name in hosts if name not in known_hosts]:
        ends = f"Its {len(known_hosts)} hosts are called {min(known_hosts)} to {max(known_hosts)}."
        yield Problem(
            path, "must name hosts of the topology", list_first(unknown), ends
        )


def _place_background(
    scenario: Scenario, hosts_of_job: Mapping[str, list[str]]
) -> Iterator[object]:
    """Yield the records of background traffic with their hosts: those that a record
    names, else all on which no job runs.

    The latter are the same for all records: they do not reserve hosts.

    Raises:
        ScenarioError: after the last one, if any names unknown hosts or lacks free
            ones.
    """
    names = names_of(wiring(scenario.cluster).fabric, "host")
    busy = {host for hosts in hosts_of_job.values() for host in hosts}
    known_hosts = set(names)
    free = [name for name in names if name not in busy]
    problems = list[Problem]()
    for index, record in enumerate(scenario.background or []):
        path = f"background.{index}.hosts"
        named_hosts = record.named_hosts
        problems += _unknown_host_problems(path, named_hosts or (), known_hosts)
        min_hosts = 1 if isinstance(record, PeriodicWrites) else 2
        if named_hosts is None and len(free) < min_hosts:
            rule = f"needs at least {min_hosts} of the hosts on which no job runs"
            remedy = "Name hosts, use fewer ranks or a larger topology."
            problems.append(Problem(path, rule, str(len(free)), remedy))
        yield record.model_copy(
            update={"hosts": free if named_hosts is None else named_hosts}
        )
    if problems:
        raise ScenarioError(problems, scenario.name)


def isolate_job(scenario: Scenario, name: str) -> Scenario:
    """Return a scenario from `place_jobs` without its jobs other than ``name``.

    The job keeps its hosts, and the background traffic stays. The scenario must have
    jobs.
    """
    assert scenario.jobs is not None  # noqa: S101 - whoever has a name of a job has jobs
    return scenario.model_copy(update={"jobs": {name: scenario.jobs[name]}})


def separate_jobs(runs: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Return each job of the runs as a scenario of its own, on its hosts and without
    background traffic.

    Its name is that of the job, or 'job run' if there are several runs. A run without
    jobs is returned as it is, under its own name. Raises as `place_jobs`.
    """
    scenarios = dict[str, Scenario]()
    for label, scenario in runs.items():
        placed = place_jobs(scenario)
        suffix = f" {label}" if len(runs) > 1 else ""
        jobs = {
            f"{job}{suffix}": job_scenario
            for job, job_scenario in placed.of_jobs().items()
        }
        scenarios |= {label: scenario} if scenario.jobs is None else jobs
    return scenarios


@dataclass(frozen=True)
class SharedMachine:
    """The machine that the jobs of a placed scenario share."""

    jobs: dict[str, Scenario]  # each by itself, by its name
    starts: dict[str, float]  # s, when each begins
    resources: Resources  # of all hosts of all jobs, job by job
    parts: dict[str, Resources]  # what each has of it; links keep their numbers


def share_machine(scenario: Scenario) -> SharedMachine:
    """Return the hosts and links of all jobs of a `place_jobs` scenario, and the part
    of each job.
    """
    jobs = scenario.of_jobs()
    hosts = [
        host for record in jobs.values() for host in record.cluster.named_hosts or ()
    ]
    ranks = [record.world_size for record in jobs.values()]
    gpus = scenario.cluster.host.gpus
    cluster = scenario.cluster.model_copy(update={"placement": hosts})
    beside = hosts_beside(scenario)
    arguments = cluster, len(hosts) * gpus, scenario.rng("placement"), beside
    cables = needs_every_cable(scenario.faults)
    writes = writes_to_pfs([scenario, *jobs.values()])
    resources = Resources(*arguments, every_cable=cables, writes=writes)
    resources.all_ranks = sum(ranks)
    first_host = np.cumsum([0, *(record.hosts for record in jobs.values())]).tolist()
    first_rank = np.cumsum([0, *ranks]).tolist()
    parts = {
        name: resources.part_of_job(host, record.world_size, rank)
        for (name, record), host, rank in zip(
            jobs.items(), first_host, first_rank, strict=False
        )
    }
    starts = {name: record.start for name, record in (scenario.jobs or {}).items()}
    return SharedMachine(jobs, starts, resources, parts)


def writes_to_pfs(jobs: Iterable[Scenario]) -> bool:
    """Return whether any job, or the background traffic beside it, writes to the
    parallel file system.
    """
    for job in jobs:
        saved = job.workload.checkpoint
        background = job.background or ()
        if saved is not None and saved.writes_to_pfs:
            return True
        if any(isinstance(record, PeriodicWrites) for record in background):
            return True
    return False


def hosts_beside(scenario: Scenario) -> list[str]:
    """The hosts that send the background traffic of a `place_jobs` scenario, each once,
    in the order of its records; [] without any.
    """
    hosts = (
        host
        for record in scenario.background or []
        for host in record.named_hosts or ()
    )
    return list(dict.fromkeys(hosts))
