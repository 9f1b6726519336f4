"""Turn the copying of the samples to the hosts, before the first epoch, into flows."""

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
    """Links, flows and bytes of staging."""

    # those of the run, and behind them the devices and the opening of files of the hosts
    links: Links
    batch: (
        TransferBatch  # all flows, which start together; the tag of each is its number
    )
    nbytes: float  # read from the PFS or the object store
    # for that: the files that are copied; of an archive one for each flow from the servers
    read_requests: float


def staging_traffic(
    workload: Workload,
    resources: Resources,
    shard_nbytes: Floats,
    copying_ranks: Flags | None = None,
) -> StagingTraffic | None:
    """Return the copying of shards or the whole set to the hosts; None if none is
    staged.

    Samples come from the PFS or the object store and go to the SSDs or memories of the
    hosts. Each HCA that the ranks of a host use has one flow, from the servers through
    the network into the device: the slowest resource on the way sets the rate. Under
    global shuffle each host copies the whole set; with ``broadcast`` an even part, and
    passes it on round a ring (not with ``copying_ranks``). At the mean size of files,
    the opens that servers and hosts can do are bandwidths too, as are requests and
    connections of an object store.

    Args:
        shard_nbytes: (M,) bytes of every rank's shard.
        copying_ranks: (M,) ranks that copy; None for all.
    """
    exchange = workload.exchange
    world_size = resources.world_size
    hosts = resources.num_hosts
    if exchange.stored_share(world_size, resources.ranks_per_host) == 0.0:
        return None
    total = float(shard_nbytes.sum())
    is_ring = (
        exchange.redraws
        and workload.staging.broadcast
        and hosts > 1
        and copying_ranks is None
    )
    read_nbytes = shard_nbytes
    if (
        exchange.redraws
    ):  # every host gets the whole set, or with a ring an equal part of it
        ranks_on_host = np.bincount(resources.host_of)[resources.host_of]
        read_nbytes = (
            np.full(world_size, total) / ranks_on_host / (hosts if is_ring else 1)
        )
    if copying_ranks is not None:
        read_nbytes = read_nbytes * copying_ranks
    flows = _StagingBuilder(workload, resources, total)
    flows.read(read_nbytes)
    if is_ring:
        flows.pass_on(total * (1.0 - 1.0 / hosts))
    nbytes = float(read_nbytes.sum())
    return StagingTraffic(
        flows.links, flows.batch(), nbytes, flows.read_requests(nbytes)
    )


class _StagingBuilder:
    """Builds the flows of staging, on the links of a run and on links of their own
    behind them.

    Args:
        workload: whose samples are copied.
        resources: of the run.
        total: bytes of all samples, from which the mean size of files follows.
    """

    def __init__(self, workload: Workload, resources: Resources, total: float) -> None:
        self._resources = resources
        self._staging = workload.staging
        cluster = resources.cluster
        hosts = resources.num_hosts
        num_run_links = len(resources.links.capacity)
        # mean bytes
        self.file_nbytes = (
            total / workload.dataset.num_samples * workload.dataset.samples_per_file
        )
        # new links, in this order: a device of each host; of files their opening by the servers, or
        # the requests for them; and their latencies, or connections, on each host
        self._device = num_run_links + np.arange(hosts, dtype=np.int32)
        new_capacities = [np.full(hosts, write_bandwidth(cluster, workload))]
        server_rate, host_rate = file_bandwidths(
            cluster, workload.staging, self.file_nbytes
        )
        # links, for every host, of the opening of its files
        self._files: list[Ints32] = []
        if server_rate < np.inf:
            new_capacities.append(np.full(1, server_rate))
            self._files.append(np.full(hosts, num_run_links + hosts, np.int32))
        if host_rate < np.inf:
            self._files.append(
                sum(map(len, new_capacities))
                + num_run_links
                + np.arange(hosts, dtype=np.int32)
            )
            new_capacities.append(np.full(hosts, host_rate))
        num_new_links = sum(len(part) for part in new_capacities)
        capacity = np.concatenate([resources.links.capacity, *new_capacities])
        self.links = Links(
            capacity, np.concatenate([resources.links.latency, np.zeros(num_new_links)])
        )
        self._routes: list[Ints32] = []
        self._nbytes: list[Floats] = []

    def read(self, nbytes: Floats) -> None:
        """Append flows of (M,) bytes from the source to the ranks, one flow for each
        HCA.
        """
        resources = self._resources
        first_ranks, hca = self._hcas()
        from_pfs = self._staging.source == "pfs"
        routes = resources.pfs_read()[0] if from_pfs else resources.store_read()
        host = resources.host_of[first_ranks]
        device_links = [links[host] for links in (*self._files, self._device)]
        self._add(
            routes[first_ranks],
            device_links,
            np.bincount(hca, nbytes).astype(np.float64),
        )

    def read_requests(self, nbytes: float) -> float:
        """Return the requests for ``nbytes`` bytes: files, or of an archive the HCAs in
        use.
        """
        if self._staging.format == "files":
            return nbytes / self.file_nbytes
        return float(len(self._hcas()[0]))

    def pass_on(self, nbytes: float) -> None:
        """Append flows of ``nbytes`` bytes from every host to the next; the last host
        sends to the first.

        A host sends over as many HCAs as all hosts use; in a scale-up domain from the
        GPUs of as many ranks.
        """
        resources = self._resources
        first_ranks, _ = self._hcas()
        rails = np.bincount(resources.host_of[first_ranks]).min()
        host_of_hca = resources.host_of[first_ranks]
        hosts = range(resources.num_hosts)
        senders = np.array([first_ranks[host_of_hca == host][:rails] for host in hosts])
        src = senders.ravel()
        dst = np.roll(senders, -1, axis=0).ravel()
        routes, _ = resources.message(src, dst)
        self._add(
            routes,
            [self._device[resources.host_of[dst]]],
            np.full(len(src), nbytes / rails),
        )

    def _hcas(self) -> tuple[Ints64, Ints64]:
        """Return the first rank of every HCA in use, and each rank's HCA, (M,), among
        these.

        HCAs are ordered by host and number.
        """
        resources = self._resources
        key = (
            resources.host_of.astype(np.int64) * resources.cluster.host.hcas
            + resources.rail_of
        )
        _, first_ranks, hca_of_rank = np.unique(
            key, return_index=True, return_inverse=True
        )
        return first_ranks, hca_of_rank

    def _add(self, routes: Ints32, last_links: list[Ints32], nbytes: Floats) -> None:
        """Append flows over ``routes``, then over one link of each of ``last_links``,
        at most 3.
        """
        padded_routes = np.full((len(routes), self._resources.width + 3), -1, np.int32)
        padded_routes[:, : routes.shape[1]] = routes
        ends = (routes >= 0).sum(axis=1)
        for extra_hop, link in enumerate(last_links):
            padded_routes[np.arange(len(routes)), ends + extra_hop] = link
        self._routes.append(padded_routes)
        self._nbytes.append(nbytes)

    def batch(self) -> TransferBatch:
        """Return all flows as one batch; the tag of each is its number."""
        flows = Flows.from_lists(
            np.concatenate(self._routes), np.concatenate(self._nbytes)
        )
        records = tasks(
            len(flows),
            work=flows.nbytes,
            nbytes=flows.nbytes,
            delay=flows.latencies(self.links),
            tag=np.arange(len(flows)),
        )
        return TransferBatch(records, flows.routes)
