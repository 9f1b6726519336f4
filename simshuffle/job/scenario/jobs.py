"""Several jobs on one machine: what each says that differs from the scenario, as values
of a scenario of its own, and what keeps them from running beside one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from simshuffle.errors import Problem, list_first
from simshuffle.job.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.spec.hostlist import expand_node_list
from simshuffle.spec.record import Count, NBytes, Seconds, Spec

WHOLE = frozenset({"kind", "name"})
"""A mapping with one of these keys is a record of its own, which replaces the
scenario's.
"""
PAGE_CACHE = "cluster.memory.page_cache"
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Job(Spec):
    """A job among several on a machine; each begins to train at its own time. A key
    that the job leaves out has the value of the scenario.

    Attributes:
        workload: what differs from the scenario's, as a mapping of changes; a record
            with a kind or a name is replaced whole, others key by key.
        world_size: its ranks.
        placement: its hosts, by name or by a rule as for 'cluster.placement'; the next
            free ones if left out. Jobs share no host.
        start: when its first epoch begins.
        epochs: how many are simulated.
        seed: of all that it draws.
        page_cache: what the hosts of this job keep of files: what it leaves of their
            memory.
    """

    workload: dict[str, Any] | None = None
    world_size: Count | None = None
    placement: str | list[str] | None = None
    start: Seconds = 0.0
    epochs: Count | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    page_cache: NBytes | None = None

    def values(self) -> dict[str, Any]:
        """Return the values that the job changes of its scenario, by dotted key.

        ``start`` is not among them, nor what the job leaves out.
        """
        values: dict[str, Any] = {
            "world_size": self.world_size,
            "cluster.placement": self.placement,
            "epochs": self.epochs,
            "seed": self.seed,
        }
        if self.page_cache is not None:
            values[PAGE_CACHE] = f"{self.page_cache!r} B"
        return {
            **{key: value for key, value in values.items() if value is not None},
            **dict(_changes("workload", self.workload or {})),
        }

    @property
    def hosts(self) -> list[str] | None:
        """The hosts that it names; None if it names a rule or none. Raises an
        InputError if they are no node list.
        """
        if self.placement is None or self.placement in PLACEMENTS:
            return None
        return (
            expand_node_list(self.placement)
            if isinstance(self.placement, str)
            else self.placement
        )


def _changes(key: str, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys below ``key`` that a mapping of changes sets, and their
    values. A mapping with a kind or a name is one value; an empty one sets nothing.
    """
    for name, value in changes.items():
        below = f"{key}.{name}"
        if isinstance(value, dict) and not WHOLE & set(value):
            yield from _changes(below, value)
        else:
            yield below, value


def problem_of(name: str, problem: Problem) -> Problem:
    """Return a problem of the scenario of job ``name`` with the path where the job says
    it; other problems of the cluster come back as they are.
    """
    for path, key in (("cluster.placement", "placement"), (PAGE_CACHE, "page_cache")):
        if problem.path == path:
            return Problem(
                f"jobs.{name}.{key}", problem.rule, problem.value, problem.remedy
            )
    if problem.path.split(".")[0] == "cluster":
        return problem
    return problem.below(f"jobs.{name}")


def together_problems(
    jobs: Mapping[str, Job], cluster: Cluster, hosts: Mapping[str, int]
) -> Iterator[Problem]:
    """Yield the problems that keep jobs, which are fine one by one, from running on a
    machine together; ``hosts`` is the number of hosts that each fills, by its name.

    Of the hosts that a job names only those that it fills count. Raises an InputError
    if they are no node list.
    """
    if not jobs:
        yield Problem(
            "jobs",
            "must name at least one job",
            "none",
            "Write a: {}, or leave it out.",
        )
    for name in jobs:
        if not NAMES.fullmatch(name):
            rule = "the name of a job must be of letters, digits, - and _"
            yield Problem("jobs", rule, repr(name)[:60], "Call it for example vgg-16.")
    job_of_host: dict[str, str] = {}
    for name, job in jobs.items():
        named_hosts = (job.hosts or [])[: hosts[name]]
        if shared_hosts := [host for host in named_hosts if host in job_of_host]:
            other_job = job_of_host[shared_hosts[0]]
            rule = (
                f"must name hosts that no other job has; they are those of {other_job}"
            )
            remedy = (
                "Name other hosts, or leave the key out: the job then gets"
                " the next free hosts."
            )
            yield Problem(
                f"jobs.{name}.placement", rule, list_first(shared_hosts), remedy
            )
        job_of_host |= dict.fromkeys(named_hosts, name)
    if (num_needed := sum(hosts.values())) > (num_hosts := cluster.num_hosts):
        rule = f"must fit side by side on the {num_hosts} hosts of {cluster.name}"
        hosts_of_jobs = ", ".join(f"{name}: {count}" for name, count in hosts.items())
        remedy = "Use fewer ranks, fewer jobs or a larger topology."
        yield Problem(
            "jobs", rule, f"{num_needed} hosts ({hosts_of_jobs})"[:120], remedy
        )
