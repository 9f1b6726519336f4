"""The copying of the samples to the hosts before the first epoch, as flows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.fabric.network import Flows, Links
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.plan.holding import file_bandwidths, write_bandwidth
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.arrays import Flags, Floats, Ints32, Ints64


@dataclass(frozen=True)
class StagingTraffic:
    """What staging moves."""

    # those of the run, and behind them the devices and the opening of files of the hosts
    links: Links
    batch: TransferBatch  # all flows, which start together; the tag of each is its number
    nbytes: float  # read from the PFS or the object store
    # for that: the files that are copied; of an archive one for each flow from the servers
    read_requests: float


def staging_traffic(
    workload: Workload, resources: Resources, shard_nbytes: Floats, only: Flags | None = None
) -> StagingTraffic | None:
    """The copying of the shards, or of the whole set, from the PFS or the object store to the SSDs
    or the memories of the hosts; None if nothing is staged.

    One flow for each HCA of a host that its ranks use, from the servers through the network into
    the device: the slowest resource on the way sets the rate. At the mean size of files, the opens
    that servers and hosts can do are bandwidths too, as are requests and connections of an object
    store. ``shard_nbytes`` are (M,) bytes of every rank's shard.
    """
    exchange, world_size, hosts = workload.exchange, resources.world_size, resources.num_hosts
    if exchange.stored_share(world_size, resources.ranks_per_host) == 0.0:
        return None
    total = float(shard_nbytes.sum())
    ring = exchange.redraws and workload.staging.broadcast and hosts > 1 and only is None
    read = shard_nbytes
    if exchange.redraws:  # every host gets the whole set, or with a ring an equal part of it
        ranks_on_host = np.bincount(resources.host_of)[resources.host_of]
        read = np.full(world_size, total) / ranks_on_host / (hosts if ring else 1)
    if only is not None:
        read = read * only
    flows = _Flows(workload, resources, total)
    flows.read(read)
    if ring:
        flows.pass_on(total * (1.0 - 1.0 / hosts))
    nbytes = float(read.sum())
    return StagingTraffic(flows.links, flows.batch(), nbytes, flows.read_requests(nbytes))


class _Flows:
    """The links of a run, those of staging behind them, and the flows."""

    def __init__(self, workload: Workload, resources: Resources, total: float) -> None:
        self._resources, self._staging = resources, workload.staging
        cluster, hosts = resources.cluster, resources.num_hosts
        count = len(resources.links.capacity)
        # mean bytes
        self.file = total / workload.dataset.num_samples * workload.dataset.samples_per_file
        # new links, in this order: a device of each host; of files their opening by the servers, or
        # the requests for them; and their latencies, or connections, on each host
        self._device = count + np.arange(hosts, dtype=np.int32)
        more = [np.full(hosts, write_bandwidth(cluster, workload))]
        shared, own = file_bandwidths(cluster, workload.staging, self.file)
        # links, for every host, of the opening of its files
        self._files: list[Ints32] = []
        if shared < np.inf:
            more.append(np.full(1, shared))
            self._files.append(np.full(hosts, count + hosts, np.int32))
        if own < np.inf:
            self._files.append(sum(map(len, more)) + count + np.arange(hosts, dtype=np.int32))
            more.append(np.full(hosts, own))
        new = sum(len(part) for part in more)
        capacity = np.concatenate([resources.links.capacity, *more])
        self.links = Links(capacity, np.concatenate([resources.links.latency, np.zeros(new)]))
        self._routes: list[Ints32] = []
        self._nbytes: list[Floats] = []

    def read(self, nbytes: Floats) -> None:
        """Flows of (M,) bytes from the source to the ranks, those through one HCA in one."""
        resources = self._resources
        first, hca = self._hcas()
        from_pfs = self._staging.source == "pfs"
        routes = resources.pfs_read()[0] if from_pfs else resources.store_read()
        host = resources.host_of[first]
        more = [links[host] for links in (*self._files, self._device)]
        self._add(routes[first], more, np.bincount(hca, nbytes).astype(np.float64))

    def read_requests(self, nbytes: float) -> float:
        """Requests for so many bytes of the set."""
        if self._staging.format == "files":
            return nbytes / self.file
        return float(len(self._hcas()[0]))

    def pass_on(self, nbytes: float) -> None:
        """Flows of ``nbytes`` bytes from every host to the next, the last one's to the first, over
        as many HCAs as all hosts use; in a scale-up domain from the GPUs of as many ranks."""
        resources = self._resources
        first, _ = self._hcas()
        rails = np.bincount(resources.host_of[first]).min()
        of, hosts = resources.host_of[first], range(resources.num_hosts)
        by_host = np.array([first[of == host][:rails] for host in hosts])
        src, dst = by_host.ravel(), np.roll(by_host, -1, axis=0).ravel()
        routes, _ = resources.message(src, dst)
        self._add(routes, [self._device[resources.host_of[dst]]], np.full(len(src), nbytes / rails))

    def _hcas(self) -> tuple[Ints64, Ints64]:
        """The first rank of every HCA in use, and which of them each rank has, (M,)."""
        resources = self._resources
        key = resources.host_of.astype(np.int64) * resources.cluster.host.hcas + resources.rail_of
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        return first, number

    def _add(self, routes: Ints32, more: list[Ints32], nbytes: Floats) -> None:
        """Flows over ``routes``, then over one link each of ``more``: three at most."""
        columns = np.full((len(routes), self._resources.width + 3), -1, np.int32)
        columns[:, : routes.shape[1]] = routes
        ends = (routes >= 0).sum(axis=1)
        for k, link in enumerate(more):
            columns[np.arange(len(routes)), ends + k] = link
        self._routes.append(columns)
        self._nbytes.append(nbytes)

    def batch(self) -> TransferBatch:
        """All flows."""
        flows = Flows.of(np.concatenate(self._routes), np.concatenate(self._nbytes))
        records = tasks(
            len(flows),
            work=flows.nbytes,
            nbytes=flows.nbytes,
            delay=flows.latencies(self.links),
            tag=np.arange(len(flows)),
        )
        return TransferBatch(records, flows.routes)
