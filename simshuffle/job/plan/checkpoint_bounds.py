"""Checkpoints in closed form: how large they are, and what saving, waiting and restoring takes.

A save goes through its resources in pieces, so it takes as long as the slowest of them needs for
all of it: the copy from the GPU over PCIe, cores that serialise, and the device or the way to the
servers. Opening its file comes before its bytes. The laws are in docs/failures.md; capacities
are those of `simshuffle.job.plan.resources`. Cables between switches are left out, as is what else
uses a resource meanwhile.
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
PCIE, CORES, SSD, MEMORY = "PCIe", "cores that serialise", "SSD", "memory"
SERVERS, CLIENT, HCAS = "PFS bandwidth", "PFS client", "HCAs"
STORE, FRONT_END, CONNECTIONS = "store bandwidth", "store hosts", "store connections"
REQUESTS = "store requests"
PUT_PART = 8 * 2**20
"""Bytes of a part of an upload: boto3's TransferConfig, multipart_chunksize."""
PUT_CONNECTIONS = 10
"""Parts of a file that are sent at once: the same, max_concurrency."""


def state_nbytes(workload: Workload) -> float:
    """Bytes of the parameters of a model and what its optimiser keeps, all of it once.

    A weight has the precision of its gradient. The optimiser keeps 4 B for each of its values, and
    an FP32 copy of weights that have less than 4 B (Rajbhandari et al., arXiv 1910.02054, 3.1): 8 B
    a parameter in all for momentum and FP32, 14 B for Adam and weights of 2 B.
    """
    checkpoint, model, strategy = workload.checkpoint, workload.model, workload.parallelism
    if checkpoint is not None and checkpoint.state is not None:
        return checkpoint.state
    layers = model.layer_list
    count = float(model.num_parameters or (0 if layers is None else layers.parameters))
    count = count or model.gradient_size / strategy.value_nbytes
    if checkpoint is not None and checkpoint.bytes_per_parameter is not None:
        return count * checkpoint.bytes_per_parameter
    weight = model.gradient_size / count
    kept = strategy.optimiser_nbytes - 4 * (strategy.precision == "mixed")
    return count * (weight + kept + 4 * (weight < 4 * (1 - 1e-3)))


def held_nbytes(scenario: Scenario) -> float:
    """Bytes of the state that a rank holds: all under data parallelism; with ZeRO 1/M of what the
    optimiser keeps, and at stage 3 of the weights; an even part in a model-parallel group."""
    workload, world_size = scenario.workload, scenario.world_size
    whole, strategy = state_nbytes(workload), workload.parallelism
    if isinstance(strategy, ShardedData):
        weights = 0.0 if strategy.stage == 3 else min(workload.model.gradient_size, whole)
        return weights + (whole - weights) / world_size
    return whole / strategy.group_size(world_size)


@dataclass(frozen=True)
class Written:
    """What a save writes."""

    nbytes: float  # of every rank that writes
    ranks: int  # that write: the first ones

    @property
    def total(self) -> float:
        """Bytes of all ranks together."""
        return self.nbytes * self.ranks


def written(scenario: Scenario) -> Written:
    """What a save of a scenario writes: with the layout 'whole' the state by the first rank; with
    'sharded' what each holds; with 'deduplicated' 1/M of the state by each."""
    checkpoint, world_size = checkpoint_of(scenario), scenario.world_size
    whole = state_nbytes(scenario.workload)
    if checkpoint.layout == "whole":
        return Written(whole, 1)
    if checkpoint.layout == "sharded":
        return Written(held_nbytes(scenario), world_size)
    return Written(whole / world_size, world_size)


def checkpoint_of(scenario: Scenario) -> Checkpoint:
    """The record of a scenario that saves its state."""
    checkpoint = scenario.workload.checkpoint
    assert checkpoint is not None, "whoever asks has seen that there is one"  # noqa: S101
    return checkpoint


def put_requests(nbytes: float) -> int:
    """Requests that put a file of so many bytes into an object store: one for each part, and one
    before and after them if they are several."""
    parts = max(1, math.ceil(nbytes / PUT_PART))
    return parts if parts == 1 else parts + 2


def put_waiting(store: ObjectStore, nbytes: float) -> float:
    """s in which the connections of one file wait for answers, as of a request to read."""
    requests = put_requests(nbytes)
    return requests / min(requests, PUT_CONNECTIONS) * store.waiting_seconds


class _Way:
    """What the fullest host and the servers need to move ``nbytes`` bytes for each of so many ranks
    at once, ``ranks`` in all, of which the first host has as many as it can."""

    def __init__(self, scenario: Scenario, nbytes: float, ranks: int) -> None:
        self._scenario, self._cluster, self._nbytes = scenario, scenario.cluster, nbytes
        self._total, self._ranks = nbytes * ranks, ranks
        self._here = min(ranks, scenario.cluster.ranks_per_host(scenario.world_size))

    def device(self) -> Seconds:
        """From or to the GPUs: their PCIe slots."""
        host = self._cluster.host
        return {PCIE: self._most(host.pcie_slots) * self._nbytes / host.pcie_bandwidth}

    def cores(self) -> Seconds:
        """Turning it into files or back, one core for each rank."""
        each = self._nbytes / checkpoint_of(self._scenario).serialise
        return {CORES: max(1.0, self._here / self._cluster.host.cores) * each}

    def place(self, place: Place, *, writes: bool) -> Seconds:
        """Writing to a place, or reading from it."""
        here = self._here * self._nbytes
        if place == "memory":
            return {MEMORY: here / self._cluster.memory.bandwidth}
        if place == "ssd":
            ssd = self._cluster.ssd
            return {SSD: ssd.write_seconds(here) if writes else ssd.read_seconds(here)}
        return self._store() if place == "object_store" else self._pfs(writes)

    def cables(self) -> float:
        """s over the HCA of most ranks."""
        return self._most(self._cluster.host.hcas) * self._nbytes / cable_bandwidth(self._scenario)

    def _most(self, parts: int) -> int:
        """Ranks of a host that share one of so many slots or HCAs, at most."""
        gpus = self._cluster.host.gpus
        used = [rank * parts // gpus for rank in range(self._here)]
        return max(used.count(part) for part in set(used))

    def _pfs(self, writes: bool) -> Seconds:
        """One file for each rank: its opening, then its bytes."""
        pfs = self._cluster.parallel_file_system
        opening = max(self._ranks / pfs.free_open_rate, pfs.latency)
        servers = pfs.free_bandwidth
        if writes:
            servers = pfs.free_write_bandwidth
        out = {SERVERS: self._total / servers, HCAS: self.cables()}
        if pfs.client_bandwidth is not None:
            client = pfs.client_bandwidth(self._scenario.hosts)
            out[CLIENT] = self._here * self._nbytes / client
        return {name: opening + seconds for name, seconds in out.items()}

    def _store(self) -> Seconds:
        """One object for each rank, in parts: requests, then bytes; read as it is written."""
        store = self._cluster.store
        waiting = put_waiting(store, self._nbytes)
        shared, own = store.bandwidths
        requests = put_requests(self._nbytes)
        connections = min(requests, PUT_CONNECTIONS) * store.connection_bandwidth
        asked = self._ranks * requests * store.tries / (store.prefixes * store.request_rate)
        asked = max(asked, waiting)
        return {
            REQUESTS: asked,
            STORE: asked + self._total / shared,
            FRONT_END: asked + self._here * self._nbytes / own,
            CONNECTIONS: asked + self._nbytes / connections,
        }


def _slowest(*parts: Seconds) -> float:
    return max(seconds for part in parts for seconds in part.values())


def _way(scenario: Scenario) -> _Way:
    of = written(scenario)
    return _Way(scenario, of.nbytes, of.ranks)


def save_resources(scenario: Scenario) -> Seconds:
    """s that each resource alone needs for a save to ``to``, by its name. No core serialises what
    stays in memory."""
    way, to = _way(scenario), checkpoint_of(scenario).to
    files = {} if to == "memory" else way.cores()
    return {**way.device(), **files, **way.place(to, writes=True)}


def copy_seconds(scenario: Scenario) -> float:
    """s to copy the state from the GPUs to the memory of the hosts."""
    return _slowest(_way(scenario).device())


def save_seconds(scenario: Scenario) -> float:
    """s from the begin of a save until it is in ``to``. A synchronous one moves all at once; an
    asynchronous one copies its state first."""
    found = save_resources(scenario)
    if checkpoint_of(scenario).mode == "synchronous":
        return _slowest(found)
    copy = found.pop(PCIE)
    return copy + _slowest(found)


def drain_seconds(scenario: Scenario) -> float:
    """s in which a save is copied from ``to`` to where it is drained; 0 if it is not."""
    checkpoint, way = checkpoint_of(scenario), _way(scenario)
    if checkpoint.drain == "none":
        return 0.0
    files = way.cores() if checkpoint.to == "memory" else {}
    source = way.place(checkpoint.to, writes=False)
    return _slowest(source, files, way.place(checkpoint.drain, writes=True))


def training_seconds(scenario: Scenario) -> float:
    """s of training between two saves: the period, or as many iterations as there are between them,
    each at its lower bound."""
    checkpoint = checkpoint_of(scenario)
    if checkpoint.period is not None:
        return checkpoint.period
    found = bounds(scenario)
    return (checkpoint.every or 1) * max(found.steps, found.epoch) / found.iterations


def stall_seconds(scenario: Scenario) -> float:
    """s that the training loop waits at each save but the first: for what is left of the previous
    one, since a rank has one under way at most; then all of a synchronous save, or the copy of an
    asynchronous one."""
    save, behind = save_seconds(scenario), drain_seconds(scenario)
    if checkpoint_of(scenario).mode == "asynchronous":
        copy = copy_seconds(scenario)
        save, behind = copy, behind + save - copy
    return save + max(0.0, behind - training_seconds(scenario))


def restore_seconds(scenario: Scenario) -> float:
    """s in which all ranks read a checkpoint back after a restart, from where it is in the end.

    From the file system or the object store every rank reads what it holds, by itself: a file that
    is read by M ranks leaves the servers M times; of a 'whole' file every rank reads all. From
    memories and SSDs a rank reads what it wrote; what it holds of others' goes round a ring of the
    hosts once, one HCA each.
    """
    checkpoint, world_size = checkpoint_of(scenario), scenario.world_size
    read = read_back_nbytes(scenario)
    own = _Way(scenario, read, world_size)
    place = checkpoint.kept_in
    files = {} if place == "memory" else own.cores()
    if place in {"pfs", "object_store"}:
        return _slowest(own.device(), files, own.place(place, writes=False))
    ring = ring_nbytes(scenario) / cable_bandwidth(scenario)
    local = _way(scenario).place(place, writes=False)
    return _slowest(own.device(), files, local, {HCAS: ring})


def read_back_nbytes(scenario: Scenario) -> float:
    """Bytes that every rank turns back into its state: all of a 'whole' file, else what it
    holds."""
    if checkpoint_of(scenario).layout == "whole":
        return state_nbytes(scenario.workload)
    return held_nbytes(scenario)


def ring_nbytes(scenario: Scenario) -> float:
    """Bytes that every host passes on in a restore from memories or SSDs: of a 'whole' save all, of
    a 'deduplicated' one what the other hosts have; 0 if each rank wrote what it holds."""
    layout, hosts = checkpoint_of(scenario).layout, scenario.hosts
    if hosts == 1 or layout == "sharded":
        return 0.0
    whole = state_nbytes(scenario.workload)
    return whole if layout == "whole" else whole * (1.0 - 1.0 / hosts)


def watchdog_waits(scenario: Scenario) -> float:
    """s that a rank waits for others in a synchronous save, at most: those that write nothing wait
    for all of it; 0 where all write as much, and for an asynchronous save."""
    checkpoint = checkpoint_of(scenario)
    alone = checkpoint.mode == "asynchronous" or written(scenario).ranks == scenario.world_size
    return 0.0 if alone else save_seconds(scenario)
