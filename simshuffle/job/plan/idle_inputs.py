"""Inputs of a machine that change nothing, whatever their value: what each would act on
is not used by any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simshuffle.job.plan.holding import held_in
from simshuffle.job.plan.wiring import names_of, wiring
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario

PFS, SSD = "cluster.parallel_file_system", "cluster.ssd"
UNEVEN = 2.0
"""Times what the file system reads that links up must carry, since they are used
unevenly.
"""
TAPER, LINK = "cluster.topology.taper", "cluster.topology.link_bandwidth"


@dataclass(frozen=True)
class IdleInput:
    """An input, and why it changes nothing."""

    key: str  # dotted
    reason: str  # a clause without a full stop

    def describe(self, name: str = "") -> str:
        """Return the input in words, called by its key or by ``name``."""
        return f"{name or self.key} ({self.reason})"


def idle_inputs(runs: Mapping[str, Scenario]) -> list[IdleInput]:
    """Return the inputs that change none of ``runs``; [] with jobs or background
    traffic.

    Reasons, and the order, are those of the run on the most ranks. Only some inputs of
    storage, network and allreduces are looked at.
    """
    if not runs or any(run.jobs or run.background for run in runs.values()):
        return []
    largest_first = sorted(runs.values(), key=lambda run: -run.world_size)
    idle_by_run = [dict(_idle(scenario)) for scenario in largest_first]
    first = idle_by_run[0]
    return [
        IdleInput(key, reason)
        for key, reason in first.items()
        if all(key in idle for idle in idle_by_run)
    ]


def _idle(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of inputs that change nothing of a run, and why."""
    workload = scenario.workload
    cluster = scenario.cluster
    staging = workload.staging
    saved = workload.checkpoint
    is_staged = scenario.storage_per_host > 0.0
    from_pfs = workload.source == "pfs" or (is_staged and staging.source == "pfs")
    opens = workload.source == "pfs" or (from_pfs and staging.format == "files")
    to_pfs = saved is not None and saved.writes_to_pfs
    on_ssd = held_in(scenario) == "ssd" or (
        saved is not None and "ssd" in {saved.to, saved.drain}
    )
    if not opens:
        copied = "staged as an archive" if from_pfs else "read from elsewhere"
        yield f"{PFS}.open_rate", f"no file is opened there: samples are {copied}"
        yield f"{PFS}.latency", f"no file is opened there: samples are {copied}"
    if not from_pfs:
        yield f"{PFS}.read_bandwidth", "nothing is read from the file system"
    if not on_ssd:
        yield f"{SSD}.read_bandwidth", "nothing is read from the SSD"
        yield f"{SSD}.write_bandwidth", "nothing is written to the SSD"
    if scenario.epochs == 1 or workload.source not in {"pfs", "ssd"}:
        why = (
            "nothing is read twice in 1 epoch"
            if scenario.epochs == 1
            else "no file is read"
        )
        if workload.source != "memory":
            yield "cluster.memory.page_cache", why
    if scenario.world_size == 1:
        yield "workload.model.gradient_size", "one rank sums no gradients"
        yield "workload.allreduce.overlap", "one rank sums no gradients"
    if (
        cluster.ranks_per_host(scenario.world_size) == 1
        and cluster.topology.domains is None
    ):
        yield "cluster.host.nvlink_bandwidth", "each host has one rank"
    if (
        scenario.hosts == 1
        and not from_pfs
        and not to_pfs
        and workload.source != "object_store"
    ):
        yield LINK, "one host is used, and nothing is read over the network"
    if (reason := _idle_taper(scenario, from_pfs or to_pfs)) is not None:
        yield TAPER, reason


def _idle_taper(scenario: Scenario, over_uplinks: bool) -> str | None:
    """Return why the taper changes nothing; None if it may.

    Messages of hosts that share their leaf switches never go up. What comes from the
    file system, or goes to it (``over_uplinks``), does, and is bound by its servers
    where the links up carry `UNEVEN` times what these read or write. None without a
    taper, and where the network has faults.
    """
    cluster = scenario.cluster
    taper = getattr(cluster.topology, "taper", None)
    if taper is None or cluster.faults or scenario.faults:
        return None
    if scenario.hosts == 1 and not over_uplinks:
        return "one host is used, and nothing is read over the network"
    leaves, uplinks, bandwidth = _leaf_switches(cluster, scenario.hosts)
    if leaves is None:
        return None
    head = f"the {scenario.hosts} hosts share their leaf switches"
    if not uplinks:
        return f"{head}, which have no links up"
    if not over_uplinks:
        return f"{head}, and nothing goes up"
    servers = cluster.parallel_file_system
    server_bandwidth = max(
        servers.read_bandwidth, servers.write_bandwidth or servers.read_bandwidth
    )
    if bandwidth < UNEVEN * server_bandwidth:
        return None
    return f"{head}, whose links up carry more than the file system"


def _leaf_switches(cluster: Cluster, hosts: int) -> tuple[set[int] | None, int, float]:
    """Return the leaf switches that the used hosts share, and what goes up from them.

    Every host of the machine counts as used unless placement is compact.

    Returns:
        the switches, by number, None if they differ from host to host; the number of
        their cables to other switches than those of the storage; and the bytes/s of
        these cables together, in one direction. Both are 0 beside None.
    """
    fabric = wiring(cluster).fabric
    cabling = fabric.cabling
    names = names_of(fabric, "host")
    used = set(names if cluster.placement != "compact" else names[:hosts])
    kinds = np.array(cabling.kinds)
    leaves_of: dict[str, set[int]] = {name: set() for name in used}
    for first_node, second_node in cabling.ends.tolist():
        for host, switch in ((first_node, second_node), (second_node, first_node)):
            if cabling.names[host] in leaves_of and kinds[switch] == "switch":
                leaves_of[cabling.names[host]].add(switch)
    groups = {frozenset(leaves) for leaves in leaves_of.values()}
    if len(groups) != 1:
        return None, 0, 0.0
    leaves = set(groups.pop())
    is_switch = [
        kind == "switch" and tier != "storage"
        for kind, tier in zip(cabling.kinds, cabling.tiers, strict=True)
    ]
    goes_up = np.array(
        [
            (first_node in leaves) != (second_node in leaves)
            and is_switch[first_node]
            and is_switch[second_node]
            for first_node, second_node in cabling.ends.tolist()
        ],
        bool,
    )
    return leaves, int(goes_up.sum()), float(cabling.bandwidth[goes_up].sum())
