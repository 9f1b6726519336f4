"""Checkpoints in closed form: how large they are, and the seconds of saving, waiting
and restoring.

A save goes through its resources in pieces, so it takes as long as the slowest of them
needs for all of it: the copy from the GPU over PCIe, cores that serialise, and the
device or the route to the servers. Opening its file comes before its bytes. The laws
are in docs/failures.md; capacities are those of `simshuffle.job.plan.resources`. Cables
between switches are left out, as is what else uses a resource meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.reading_bounds import cable_bandwidth
from simshuffle.job.scenario.checkpoint import Checkpoint, Place
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.storage import ObjectStore
from simshuffle.job.scenario.workload import Workload
from simshuffle.workload.parallelism import ShardedData

Seconds = dict[str, float]
"""Seconds by the name of the resource that takes them, each by itself."""
PCIE, CORES, SSD, MEMORY = "PCIe", "cores that serialise", "SSD", "memory"
SERVERS, CLIENT, HCAS = "PFS bandwidth", "PFS client", "HCAs"
STORE, FRONT_END, CONNECTIONS = "store bandwidth", "store hosts", "store connections"
REQUESTS = "store requests"
PUT_PART = 8 * 2**20
"""Bytes of a part of an upload: boto3's TransferConfig, multipart_chunksize."""
PUT_CONNECTIONS = 10
"""Parts of a file that are sent at once: max_concurrency of that page."""


def state_nbytes(workload: Workload) -> float:
    """Return the bytes of one copy of a model's parameters and of its optimiser's
    state.

    A weight has the precision of its gradient. The optimiser keeps 4 B for each of its
    values, and an FP32 copy of weights that have less than 4 B (Rajbhandari et al.,
    arXiv 1910.02054, 3.1): 8 B a parameter in all for momentum and FP32, 14 B for Adam
    and weights of 2 B. The checkpoint's ``state``, else its ``bytes_per_parameter``,
    takes precedence. A model without a number of parameters has as many as its gradient
    has values.
    """
    checkpoint = workload.checkpoint
    model = workload.model
    strategy = workload.parallelism
    if checkpoint is not None and checkpoint.state is not None:
        return checkpoint.state
    layers = model.layer_list
    count = float(model.num_parameters or (0 if layers is None else layers.parameters))
    count = count or model.gradient_size / strategy.value_nbytes
    if checkpoint is not None and checkpoint.bytes_per_parameter is not None:
        return count * checkpoint.bytes_per_parameter
    weight = model.gradient_size / count
    optimiser_nbytes = strategy.optimiser_nbytes - 4 * (strategy.precision == "mixed")
    return count * (weight + optimiser_nbytes + 4 * (weight < 4 * (1 - 1e-3)))


def held_nbytes(scenario: Scenario) -> float:
    """Bytes of the state that a rank holds: all under data parallelism; with ZeRO 1/M
    of what the optimiser keeps, and at stage 3 of the weights; an even part in a
    model-parallel group.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    total_nbytes = state_nbytes(workload)
    strategy = workload.parallelism
    if isinstance(strategy, ShardedData):
        weights = (
            0.0
            if strategy.stage == 3
            else min(workload.model.gradient_size, total_nbytes)
        )
        return weights + (total_nbytes - weights) / world_size
    return total_nbytes / strategy.group_size(world_size)


@dataclass(frozen=True)
class SaveSize:
    """The bytes that a save writes, and the number of ranks that write them."""

    nbytes: float  # of every rank that writes
    ranks: int  # that write: the first ones

    @property
    def total(self) -> float:
        """Bytes of all ranks together."""
        return self.nbytes * self.ranks


def save_size(scenario: Scenario) -> SaveSize:
    """Return the size of a save: with the layout 'whole' the first rank writes the
    state; with 'sharded' each rank writes what it holds; with 'deduplicated' each
    writes 1/M of the state.
    """
    checkpoint = checkpoint_of(scenario)
    world_size = scenario.world_size
    total_nbytes = state_nbytes(scenario.workload)
    if checkpoint.layout == "whole":
        return SaveSize(total_nbytes, 1)
    if checkpoint.layout == "sharded":
        return SaveSize(held_nbytes(scenario), world_size)
    return SaveSize(total_nbytes / world_size, world_size)


def checkpoint_of(scenario: Scenario) -> Checkpoint:
    """Return the checkpoint record of a scenario that saves its state.

    Raises:
        AssertionError: the scenario saves nothing.
    """
    checkpoint = scenario.workload.checkpoint
    assert checkpoint is not None, "whoever asks has seen that there is one"  # noqa: S101
    return checkpoint


def put_requests(nbytes: float) -> int:
    """Requests that put a file of so many bytes into an object store: one for each
    part, and one before and after them if they are several.
    """
    parts = max(1, math.ceil(nbytes / PUT_PART))
    return parts if parts == 1 else parts + 2


def put_wait_seconds(store: ObjectStore, nbytes: float) -> float:
    """Return the seconds in which the connections of one file wait for answers, each as
    long as a request to read, failed tries included. `PUT_CONNECTIONS` wait at once.
    """
    requests = put_requests(nbytes)
    return requests / min(requests, PUT_CONNECTIONS) * store.waiting_seconds


class SavePath:
    """The resources of the fullest host and the servers that move ``nbytes`` bytes for
    each of ``ranks`` ranks at once; the first host has as many of these ranks as it
    can.

    Each method returns what its resources need for all these bytes, by themselves.
    """

    def __init__(self, scenario: Scenario, nbytes: float, ranks: int) -> None:
        self._scenario = scenario
        self._cluster = scenario.cluster
        self._nbytes = nbytes
        self._total = nbytes * ranks
        self._ranks = ranks
        self._ranks_on_host = min(
            ranks, scenario.cluster.ranks_per_host(scenario.world_size)
        )

    def device(self) -> Seconds:
        """Seconds of the PCIe slot that most ranks share, from or to the GPUs."""
        host = self._cluster.host
        return {
            PCIE: self._max_sharing(host.pcie_slots)
            * self._nbytes
            / host.pcie_bandwidth
        }

    def cores(self) -> Seconds:
        """Seconds of the cores that turn the state into files or back, one core for
        each rank.
        """
        rank_seconds = self._nbytes / checkpoint_of(self._scenario).serialise
        return {
            CORES: max(1.0, self._ranks_on_host / self._cluster.host.cores)
            * rank_seconds
        }

    def place(self, place: Place, *, writes: bool) -> Seconds:
        """Seconds of the resources that write to a place, or read from it."""
        host_nbytes = self._ranks_on_host * self._nbytes
        if place == "memory":
            return {MEMORY: host_nbytes / self._cluster.memory.bandwidth}
        if place == "ssd":
            ssd = self._cluster.ssd
            return {
                SSD: ssd.write_seconds(host_nbytes)
                if writes
                else ssd.read_seconds(host_nbytes)
            }
        return self._store() if place == "object_store" else self._pfs(writes)

    def cables(self) -> float:
        """Seconds over the HCA that most ranks share; 0 if the topology has no single
        cable bandwidth.
        """
        return (
            self._max_sharing(self._cluster.host.hcas)
            * self._nbytes
            / cable_bandwidth(self._scenario)
        )

    def _max_sharing(self, parts: int) -> int:
        """Return how many ranks of a host share one of ``parts`` slots or HCAs at most."""
        gpus = self._cluster.host.gpus
        used = [rank * parts // gpus for rank in range(self._ranks_on_host)]
        return max(used.count(part) for part in set(used))

    def _pfs(self, writes: bool) -> Seconds:
        """Seconds of the parallel file system and the cables to it: each rank opens one
        file, then moves its bytes. The opening of all files is in every entry.
        """
        pfs = self._cluster.parallel_file_system
        opening = max(self._ranks / pfs.free_open_rate, pfs.latency)
        servers = pfs.free_bandwidth
        if writes:
            servers = pfs.free_write_bandwidth
        seconds_by_resource = {SERVERS: self._total / servers, HCAS: self.cables()}
        if pfs.client_bandwidth is not None:
            client = pfs.client_bandwidth(self._scenario.hosts)
            seconds_by_resource[CLIENT] = self._ranks_on_host * self._nbytes / client
        return {
            name: opening + seconds for name, seconds in seconds_by_resource.items()
        }

    def _store(self) -> Seconds:
        """Seconds of the object store: each rank moves one object in parts, by
        requests, then bytes. Reading takes as long as writing. Requests are in every
        entry.
        """
        store = self._cluster.store
        waiting = put_wait_seconds(store, self._nbytes)
        store_bandwidth, host_bandwidth = store.bandwidths
        requests = put_requests(self._nbytes)
        connections = min(requests, PUT_CONNECTIONS) * store.connection_bandwidth
        request_seconds = (
            self._ranks * requests * store.tries / (store.prefixes * store.request_rate)
        )
        request_seconds = max(request_seconds, waiting)
        return {
            REQUESTS: request_seconds,
            STORE: request_seconds + self._total / store_bandwidth,
            FRONT_END: request_seconds
            + self._ranks_on_host * self._nbytes / host_bandwidth,
            CONNECTIONS: request_seconds + self._nbytes / connections,
        }


def _slowest(*parts: Seconds) -> float:
    """Return the most seconds of any resource in ``parts``."""
    return max(seconds for part in parts for seconds in part.values())


def _save_path(scenario: Scenario) -> SavePath:
    """Return the path of the bytes that a save writes, of the ranks that write them."""
    size = save_size(scenario)
    return SavePath(scenario, size.nbytes, size.ranks)


def save_resources(scenario: Scenario) -> Seconds:
    """Return the seconds that each resource alone needs for a save to ``to``, by its
    name. No core serialises what stays in memory.
    """
    path = _save_path(scenario)
    destination = checkpoint_of(scenario).to
    files = {} if destination == "memory" else path.cores()
    return {**path.device(), **files, **path.place(destination, writes=True)}


def copy_seconds(scenario: Scenario) -> float:
    """Return the seconds to copy the state from the GPUs to the memory of the hosts."""
    return _slowest(_save_path(scenario).device())


def save_seconds(scenario: Scenario) -> float:
    """Return the seconds from the begin of a save until it is in ``to``. A synchronous
    save moves all at once; an asynchronous one copies its state first.
    """
    resource_seconds = save_resources(scenario)
    if checkpoint_of(scenario).mode == "synchronous":
        return _slowest(resource_seconds)
    copy = resource_seconds.pop(PCIE)
    return copy + _slowest(resource_seconds)


def drain_seconds(scenario: Scenario) -> float:
    """Return the seconds in which a save is copied from ``to`` to where it is drained;
    0 if it is not. A save in memory is serialised then.
    """
    checkpoint = checkpoint_of(scenario)
    path = _save_path(scenario)
    if checkpoint.drain == "none":
        return 0.0
    files = path.cores() if checkpoint.to == "memory" else {}
    source = path.place(checkpoint.to, writes=False)
    return _slowest(source, files, path.place(checkpoint.drain, writes=True))


def training_seconds(scenario: Scenario) -> float:
    """Return the seconds of training between two saves: the period, or the iterations
    between them, each at its lower bound in the last epoch.
    """
    checkpoint = checkpoint_of(scenario)
    if checkpoint.period is not None:
        return checkpoint.period
    epoch_bounds = bounds(scenario)
    return (checkpoint.every or 1) * epoch_bounds.epoch / epoch_bounds.iterations


def stall_seconds(scenario: Scenario) -> float:
    """Return the seconds that the training loop waits at each save but the first: for
    the rest of the previous save, since a rank has one under way at most; then for all
    of a synchronous save, or the copy of an asynchronous one.
    """
    save = save_seconds(scenario)
    background_seconds = drain_seconds(scenario)
    if checkpoint_of(scenario).mode == "asynchronous":
        copy = copy_seconds(scenario)
        save, background_seconds = copy, background_seconds + save - copy
    return save + max(0.0, background_seconds - training_seconds(scenario))


def restore_seconds(scenario: Scenario) -> float:
    """Return the seconds in which all ranks read a checkpoint back after a restart,
    from its last place.

    From the file system or the object store every rank reads what it holds, by itself:
    a file that is read by M ranks leaves the servers M times; of a 'whole' file every
    rank reads all. From memories and SSDs a rank reads what it wrote; what it holds of
    others' goes round a ring of the hosts once, one HCA each. All goes on at once: the
    slowest resource counts.
    """
    checkpoint = checkpoint_of(scenario)
    world_size = scenario.world_size
    read = read_back_nbytes(scenario)
    read_path = SavePath(scenario, read, world_size)
    place = checkpoint.kept_in
    files = {} if place == "memory" else read_path.cores()
    if place in {"pfs", "object_store"}:
        return _slowest(read_path.device(), files, read_path.place(place, writes=False))
    ring = ring_nbytes(scenario) / cable_bandwidth(scenario)
    local = _save_path(scenario).place(place, writes=False)
    return _slowest(read_path.device(), files, local, {HCAS: ring})


def read_back_nbytes(scenario: Scenario) -> float:
    """Bytes that every rank turns back into its state: all of a 'whole' file, else what
    it holds.
    """
    if checkpoint_of(scenario).layout == "whole":
        return state_nbytes(scenario.workload)
    return held_nbytes(scenario)


def ring_nbytes(scenario: Scenario) -> float:
    """Bytes that every host passes on in a restore from memories or SSDs: of a 'whole'
    save all, of a 'deduplicated' one what the other hosts have; 0 if each rank wrote
    what it holds.
    """
    layout = checkpoint_of(scenario).layout
    hosts = scenario.hosts
    if hosts == 1 or layout == "sharded":
        return 0.0
    total_nbytes = state_nbytes(scenario.workload)
    return total_nbytes if layout == "whole" else total_nbytes * (1.0 - 1.0 / hosts)


def watchdog_waits(scenario: Scenario) -> float:
    """Return the longest wait of a rank for other ranks in a synchronous save, in s.

    A rank that writes nothing waits for the whole save. The wait is 0 where all ranks
    write, since they write equal bytes, and for an asynchronous save.
    """
    checkpoint = checkpoint_of(scenario)
    nobody_waits = (
        checkpoint.mode == "asynchronous"
        or save_size(scenario).ranks == scenario.world_size
    )
    return 0.0 if nobody_waits else save_seconds(scenario)
