"""Predictions of pure reads from a parallel file system, as a benchmark of storage measures them:
nobody computes, nothing is cached."""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.errors import InputError, Problem
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.validation.rows import size
from simshuffle.studies.validation.runs import load
from simshuffle.topology import Custom

QUANTITIES = ("read bandwidth", "file rate")


def predict(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """Bytes/s that hosts read from large files, or small files/s that processes open and read.

    Args:
        scenario: its name below ``scenarios/``; of its cluster, only the file system and the hosts'
            links are used.
        values: ``clients``, the hosts that read; ``tasks``, their processes in all (default: one
            each), each with one file open at a time; ``file_size`` for the file rate; all others
            are set in the scenario.
        quantity: one of `QUANTITIES`.

    Raises:
        InputError: there is no such quantity, or a count or size is missing or not valid, or a
            value of the scenario is not valid.
    """
    if quantity not in QUANTITIES:
        raise InputError(
            Problem(
                "quantity", f"must be one of {', '.join(QUANTITIES)}", repr(quantity), "Choose one."
            )
        )
    chosen = dict(values)
    clients = _count("clients", chosen.pop("clients", ""))
    tasks = _count("tasks", chosen.pop("tasks", str(clients)))
    file_size = chosen.pop("file_size", "")
    resolved = load(scenario, chosen)
    bandwidth = read_bandwidth(resolved, clients)
    if quantity == "read bandwidth":
        return bandwidth
    nbytes = size(file_size, "of a file rate must say how large a file is", "file_size=3901 B")
    return file_rate(resolved, tasks, bandwidth, nbytes)


def read_bandwidth(scenario: Scenario, clients: int) -> float:
    """Bytes/s over all servers that ``clients`` hosts reach together: the least of the servers, the
    clients' software and their links."""
    servers, host, topology = (
        scenario.cluster.parallel_file_system,
        scenario.cluster.host,
        scenario.cluster.topology,
    )
    bounds = [servers.free_bandwidth]
    if servers.client_bandwidth is not None:
        bounds.append(clients * servers.client_bandwidth(clients))
    if not isinstance(topology, Custom):
        bounds.append(clients * host.hcas * topology.link_bandwidth)
    return min(bounds)


def file_rate(scenario: Scenario, tasks: int, bandwidth: float, file_size: float) -> float:
    """Files/s of ``file_size`` bytes that ``tasks`` processes open and read one after the other.

    The least of the servers' operations, of the bandwidth, and of the processes, each of which
    waits for the latency of an open.
    """
    servers = scenario.cluster.parallel_file_system
    return min(
        servers.free_open_rate, bandwidth / file_size, servers.open_cap(1, 1, in_flight=tasks)
    )


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            Problem(
                "values",
                f"of reads must have a count of {name}",
                repr(text),
                f"Add for example {name}=10.",
            )
        )
    return int(text)
