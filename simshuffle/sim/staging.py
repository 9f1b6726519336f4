"""The copying of the samples to the hosts before the first epoch, as flows of the fluid network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.network import Flows, Fluid, Links
from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.network.shared import shared_network
from simshuffle.plan.resources import Resources
from simshuffle.plan.staging import write_bandwidth
from simshuffle.scenario.scenario import Scenario

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Staged:
    """What staging took: ``seconds``, and ``nbytes`` read from the PFS."""

    seconds: float
    nbytes: float


NOTHING = Staged(0.0, 0.0)


def stage(scenario: Scenario, resources: Resources, shard_nbytes: Floats) -> Staged:
    """Copy the shards, or the whole set, from the PFS to the SSDs or the memories of the hosts.

    One flow for each HCA of a host that its ranks use, from the servers through the network into
    the device: what is read is written at the same time, so that the slowest resource on the way
    sets the rate. Files are opened on the way, which limits the bytes: at their mean size, the
    servers' operations and the latencies of the files that the host copies at once are bandwidths
    too.

    Args:
        scenario, resources: what is simulated, on what.
        shard_nbytes: (M,) bytes of every rank's shard.
    """
    workload, world_size = scenario.workload, scenario.world_size
    if workload.exchange.stored_share(world_size, resources.ranks_per_host) == 0.0:
        return NOTHING
    total = float(shard_nbytes.sum())
    ranks_on_host = np.bincount(resources.host_of)[resources.host_of]
    ring = (
        workload.exchange.kind == "global_shuffle"
        and workload.staging.broadcast
        and resources.num_hosts > 1
    )
    if workload.exchange.kind == "global_shuffle":
        from_pfs = np.full(world_size, total) / ranks_on_host / (resources.num_hosts if ring else 1)
    else:
        from_pfs = shard_nbytes
    network = _Network(scenario, resources, total)
    network.read(from_pfs)
    if ring:
        network.pass_on(total * (1.0 - 1.0 / resources.num_hosts))
    return Staged(network.seconds(), float(from_pfs.sum()))


class _Network:
    """The links of a run, those of staging behind them, and the flows."""

    def __init__(self, scenario: Scenario, resources: Resources, total: float) -> None:
        self._resources = resources
        cluster, workload, hosts = scenario.cluster, scenario.workload, resources.num_hosts
        pfs, count = cluster.parallel_file_system, len(resources.links.capacity)
        self._device = count + np.arange(hosts, dtype=np.int32)
        more = [np.full(hosts, write_bandwidth(cluster, workload))]
        # links, for every host, of the opening of its files
        self._files: list[NDArray[np.int32]] = []
        if workload.staging.format == "files":
            file = total / workload.dataset.num_samples * workload.dataset.samples_per_file
            more.append(np.full(1, pfs.free_open_rate * file))
            self._files.append(np.full(hosts, count + hosts, np.int32))
            if pfs.latency > 0:
                more.append(np.full(hosts, workload.staging.copies * file / pfs.latency))
                self._files.append(count + hosts + 1 + np.arange(hosts, dtype=np.int32))
        new = sum(len(part) for part in more)
        self._links = Links(
            np.concatenate([resources.links.capacity, *more]),
            np.concatenate([resources.links.latency, np.zeros(new)]),
        )
        self._routes: list[NDArray[np.int32]] = []
        self._nbytes: list[Floats] = []

    def read(self, nbytes: Floats) -> None:
        """Flows of (M,) bytes from the PFS to the ranks, those through one HCA in one."""
        resources = self._resources
        first, hca = self._hcas()
        routes, _ = resources.pfs_read()
        host = resources.host_of[first]
        self._add(
            routes[first],
            [*(links[host] for links in self._files), self._device[host]],
            np.bincount(hca, nbytes).astype(np.float64),
        )

    def pass_on(self, nbytes: float) -> None:
        """Flows of ``nbytes`` bytes from every host to the next, the last one's to the first, over
        as many HCAs as all hosts use."""
        resources = self._resources
        first, _ = self._hcas()
        rails = np.unique(np.bincount(resources.host_of[first]))[0]
        by_host = np.array(
            [first[resources.host_of[first] == host][:rails] for host in range(resources.num_hosts)]
        )
        src, dst = by_host.ravel(), np.roll(by_host, -1, axis=0).ravel()
        routes, _ = resources.message(src, dst)
        self._add(routes, [self._device[resources.host_of[dst]]], np.full(len(src), nbytes / rails))

    def _hcas(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first rank of every HCA in use, and the number of each rank's HCA among them,
        (M,)."""
        resources = self._resources
        key = resources.host_of.astype(np.int64) * resources.cluster.host.hcas + resources.rail_of
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        return first, number

    def _add(
        self, routes: NDArray[np.int32], more: list[NDArray[np.int32]], nbytes: Floats
    ) -> None:
        width = self._resources.width + 3
        columns = np.full((len(routes), width), -1, np.int32)
        columns[:, : routes.shape[1]] = routes
        ends = (routes >= 0).sum(axis=1)
        for k, link in enumerate(more):
            columns[np.arange(len(routes)), ends + k] = link
        self._routes.append(columns)
        self._nbytes.append(nbytes)

    def seconds(self) -> float:
        """When the last flow ends (s)."""
        flows = Flows.of(np.concatenate(self._routes), np.concatenate(self._nbytes))
        count = len(flows)
        # the kernel that the run needs as well, and not `Fluid.finish_times`, whose own would have
        # to be compiled
        no_cables = np.zeros(len(self._links), bool)
        network = shared_network(
            Fluid(), self._links, no_cables, width=flows.routes.shape[1], tags=count
        )
        posted = tasks(
            count,
            work=flows.nbytes,
            nbytes=flows.nbytes,
            delay=flows.latencies(self._links),
            tag=np.arange(count),
        )
        network.post(0.0, TransferBatch(posted, flows.routes))
        network.advance(np.inf)
        return float(network.finish[:count].max())
