"""Lower bounds of an epoch, resource by resource, before anything is simulated: no clock, no draws.

Every bound holds in the mean: drawn sizes and jitter are taken at their expected values. Where all
ranks wait for the slowest, that is the expected largest of as many draws (`expected_largest`). What
is left out makes a bound smaller: contention on cables, waiting for one another at shared devices.

N samples, M ranks, b samples a batch, Q the exchange fraction, I iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simshuffle.exchange.schedule import (
    MessageSchedule,
    Pairing,
    epoch_quota,
    spread_over_iterations,
)
from simshuffle.plan.epochs import cached_share
from simshuffle.plan.host_work import host_work, payload_nbytes
from simshuffle.scenario.scenario import Scenario


@dataclass(frozen=True)
class ExchangeBound:
    """What the exchange of an epoch takes of the training loop of every rank, in s.

    Attributes:
        samples: that a rank sends.
        messages: in which they travel.
        sending: iterations after which samples are sent.
        work: of the loop's thread, as the schedule says (`simshuffle.plan.host_work`), and of the
            device that stores what is received.
        waiting: where all ranks meet, for the one with the largest sample, or for those of the
            fullest host, which share the device that stores what they receive.
        barriers: latencies of the barriers.
        wire: of messages that nothing hides.
    """

    samples: int
    messages: int
    sending: int
    work: float
    waiting: float
    barriers: float
    wire: float

    @property
    def seconds(self) -> float:
        """All of it (s)."""
        return self.work + self.waiting + self.barriers + self.wire


NO_EXCHANGE = ExchangeBound(0, 0, 0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the last epoch of a run, which is the most like a steady one.

    Attributes:
        iterations: of the epoch.
        compute: s of all forward and backward passes and updates.
        allreduce: s of all allreduces.
        exchange: of samples.
        importance: s of the pass that measures importance; 0 without.
        first_batch: s until every rank has its first batch.
        last_batch: s from the last byte of the epoch to its end.
        resources: s of each resource through which the samples come, by its name.
    """

    iterations: int
    compute: float
    allreduce: float
    exchange: ExchangeBound
    importance: float
    first_batch: float
    last_batch: float
    resources: dict[str, float]

    @property
    def loop(self) -> float:
        """s of the training loop of a rank that never waits for data after its first batch."""
        parts = (self.compute, self.allreduce, self.exchange.seconds, self.importance)
        return self.first_batch + sum(parts)

    @property
    def epoch(self) -> float:
        """s of the epoch, at least: the loop; or the slowest resource, and what follows the last
        byte."""
        return max(self.loop, max(self.resources.values()) + self.last_batch)

    @property
    def bottleneck(self) -> str:
        """What takes longest: the slowest resource if it takes longer than the loop, else the
        largest part of the loop."""
        slowest = max(self.resources, key=lambda name: self.resources[name])
        if self.resources[slowest] + self.last_batch > self.loop:
            return slowest
        parts = {
            "compute": self.compute,
            "allreduce": self.allreduce,
            "exchange": self.exchange.seconds,
            "importance pass": self.importance,
            "first batch": self.first_batch,
        }
        return max(parts, key=lambda name: parts[name])


def bounds(scenario: Scenario) -> Bounds:
    """The bounds of a scenario's last epoch."""
    workload, world_size = scenario.workload, scenario.world_size
    epoch, batch_size = scenario.epochs, workload.local_batch_size
    iterations = workload.iterations(world_size, epoch)
    samples, last = _samples(scenario, iterations)
    times = workload.model.accelerators[scenario.cluster.host.accelerator]
    per_sample = times.forward + times.backward
    waiting = _step(scenario) * (expected_largest(world_size, workload.jitter.compute) - 1.0)
    reduced = allreduce_seconds(scenario)
    passed, shard, cached = 0.0, 0.0, cached_share(scenario, epoch)
    resources = reading_seconds(scenario, samples, cached)
    if workload.exchange.inference_pass:
        shard = workload.dataset.num_samples / world_size
        passed = shard * (times.forward if times.inference is None else times.inference)
        # it leaves the shard in the page cache, also in the first epoch
        training = reading_seconds(scenario, samples, cached_share(scenario, max(epoch, 2)))
        measuring = reading_seconds(scenario, shard, cached)
        resources = {name: training[name] + measuring[name] for name in training}
    first = max(
        batch_seconds(scenario, min(samples, batch_size), cached),
        *(
            seconds
            for name, seconds in reading_seconds(scenario, min(samples, batch_size), cached).items()
            if name != LOADERS
        ),
    )
    if workload.loader.across_epochs and epoch > 1:  # the epochs before have loaded that much
        first = 0.0
        ahead = min(1.0, workload.loader.prefetch / iterations)
        resources = {name: seconds * (1.0 - ahead) for name, seconds in resources.items()}
    exchange = exchange_bound(scenario, iterations)
    if workload.source == "ssd":
        stored = exchange.samples * _moving(scenario) * workload.dataset.sample_size.mean
        ranks = scenario.cluster.ranks_per_host(world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(stored)
    return Bounds(
        iterations=iterations,
        compute=samples * per_sample + (iterations - 1) * waiting + iterations * times.update,
        allreduce=iterations * reduced,
        exchange=exchange,
        importance=passed,
        first_batch=first,
        last_batch=last * per_sample + reduced + times.update,
        resources=resources,
    )


def _samples(scenario: Scenario, iterations: int) -> tuple[float, int]:
    """Samples that a rank trains on in the epoch, in the mean; and in its last batch, at least."""
    workload, world_size = scenario.workload, scenario.world_size
    whole = iterations * workload.local_batch_size
    if workload.last_batch == "carry":
        return float(whole), workload.local_batch_size
    smallest, larger = divmod(workload.dataset.num_samples, world_size)
    trained = min(smallest, whole)
    mean = trained + (min(smallest + 1, whole) - trained) * larger / world_size
    return mean, max(trained - whole + workload.local_batch_size, 0)


# --------------------------------------------------------------------------------------- allreduce


def allreduce_seconds(scenario: Scenario) -> float:
    """Least time (s) of one allreduce: its latency, then the slowest of its flows as if it were
    alone. 0 for one rank.

    A flow has at most its share of the bus bandwidth (`simshuffle.allreduce`), NVLink inside a
    host, and between hosts what an HCA's cable and a PCIe slot carry.
    """
    cluster = scenario.cluster
    host_of = cluster.host_of(scenario.world_size)
    flows = scenario.workload.allreduce.flows(host_of, scenario.workload.model.gradient_size)
    if flows is None:
        return 0.0
    between = min(cable_bandwidth(scenario), cluster.host.pcie_bandwidth)
    inside = host_of[flows.src] == host_of[flows.dst]
    carried = np.minimum(flows.cap, np.where(inside, cluster.host.nvlink_bandwidth, between))
    return flows.latency + float((flows.nbytes / carried).max())


def cable_bandwidth(scenario: Scenario) -> float:
    """Bytes/s of the cable of an HCA; inf for a topology that does not say it in one number."""
    return float(getattr(scenario.cluster.topology, "link_bandwidth", math.inf))


# ----------------------------------------------------------------------------------------- reading

OPENS, PFS, CLIENT, HCAS, SSD = "file opens", "PFS bandwidth", "PFS client", "HCAs", "SSD"
MEMORY, DECODE, PCIE, LOADERS = "memory", "decode", "PCIe", "loader workers"


def reading_seconds(scenario: Scenario, samples: float, cached: float) -> dict[str, float]:
    """Least time (s) of each resource to bring ``samples`` samples to every rank, by its name.

    ``cached`` is the share that is read from memory; the others come from the PFS or the SSD. For a
    host with r ranks (the fullest), s bytes a sample and n = (1 - cached) ``samples``:

        file opens      M n / samples_per_file / (open_rate (1 - background_load))
        PFS bandwidth   M n s / (read_bandwidth (1 - background_load))
        PFS client      r n s / client_bandwidth(H)
        HCAs            r n s / (hcas link_bandwidth)
        SSD             r max(n s / read_bandwidth, n / samples_per_request / iops)
        memory          r cached ``samples`` s / memory.bandwidth
        decode          r ``samples`` decode / cores
        PCIe            r ``samples`` input_size / (pcie_slots pcie_bandwidth)
        loader workers  the batches one after the other (`batch_seconds`), shared by
                        min(workers, prefetch) workers

    These are the capacities of `simshuffle.plan.resources`; the laws are in docs/model.md.
    """
    workload, cluster, dataset = scenario.workload, scenario.cluster, scenario.workload.dataset
    ranks = cluster.ranks_per_host(scenario.world_size)
    out = dict.fromkeys((OPENS, PFS, CLIENT, HCAS, SSD), 0.0)
    missed = samples * (1.0 - cached)
    nbytes = missed * dataset.sample_size.mean
    if workload.source == "pfs":
        pfs, hcas = cluster.parallel_file_system, cluster.host.hcas
        out[OPENS] = scenario.world_size * missed / dataset.samples_per_file / pfs.free_open_rate
        out[PFS] = scenario.world_size * nbytes / pfs.free_bandwidth
        out[CLIENT] = ranks * nbytes / _client_bandwidth(scenario)
        out[HCAS] = ranks * nbytes / (hcas * cable_bandwidth(scenario))
    elif workload.source == "ssd":
        out[SSD] = ranks * _ssd_seconds(scenario, missed)
    out[MEMORY] = ranks * samples * cached * dataset.sample_size.mean / cluster.memory.bandwidth
    out[DECODE] = ranks * samples * dataset.decode / cluster.host.cores
    slots = min(cluster.host.pcie_slots, ranks)
    out[PCIE] = ranks * samples * workload.model.input_size / (slots * cluster.host.pcie_bandwidth)
    at_once = min(workload.loader.workers, workload.loader.prefetch)
    batch = min(samples, workload.local_batch_size)
    out[LOADERS] = samples / batch * batch_seconds(scenario, batch, cached) / at_once
    return out


def batch_seconds(scenario: Scenario, samples: float, cached: float) -> float:
    """Least time (s) in which a worker loads a batch of ``samples`` samples if it is alone.

    With one thread it opens and reads, then decodes; with t of them t requests are in flight, t
    cores decode, and reading and decoding go on beside each other. The copy to the GPU follows.
    """
    workload, cluster, dataset = scenario.workload, scenario.cluster, scenario.workload.dataset
    missed = samples * (1.0 - cached)
    nbytes = missed * dataset.sample_size.mean
    requests = samples / dataset.samples_per_request
    in_flight = min(workload.loader.threads, max(requests, 1.0))
    read = samples * cached * dataset.sample_size.mean / cluster.memory.bandwidth
    if workload.source == "pfs":
        pfs = cluster.parallel_file_system
        cap = pfs.open_cap(dataset.samples_per_file, dataset.samples_per_request, in_flight)
        read += missed / dataset.samples_per_file / min(cap, pfs.free_open_rate)
        read += nbytes / min(
            pfs.free_bandwidth, _client_bandwidth(scenario), cable_bandwidth(scenario)
        )
    elif workload.source == "ssd":
        waiting = (1.0 - cached) * requests / in_flight * cluster.ssd.latency
        read += _ssd_seconds(scenario, missed) + waiting
    threads = min(workload.loader.threads, workload.local_batch_size, cluster.host.cores)
    decode = samples * dataset.decode / threads
    copy = samples * workload.model.input_size / cluster.host.pcie_bandwidth
    return (read + decode if workload.loader.threads == 1 else max(read, decode)) + copy


def _client_bandwidth(scenario: Scenario) -> float:
    """Bytes/s of the PFS that one host gets; inf without a limit."""
    curve = scenario.cluster.parallel_file_system.client_bandwidth
    return math.inf if curve is None else curve(scenario.hosts)


def _ssd_seconds(scenario: Scenario, samples: float) -> float:
    """Device time (s) to read so many samples."""
    cluster, workload = scenario.cluster, scenario.workload
    depth = cluster.ranks_per_host(scenario.world_size) * workload.loader.reads_in_flight
    return float(
        cluster.ssd.read_seconds(
            samples * workload.dataset.sample_size.mean,
            samples / workload.dataset.samples_per_request,
            depth,
        )
    )


# ---------------------------------------------------------------------------------------- exchange


def exchange_bound(scenario: Scenario, iterations: int) -> ExchangeBound:
    """Least time that the exchange of the last epoch takes of the training loops.

    A rank sends Q N/M samples, Q b after an iteration (docs/model.md, Exchange). Of each it reads,
    zeroes, decodes, pickles, draws; of each that it receives it encodes and stores. In an iteration
    that sends, ranks meet at the next allreduce at the latest, so the largest sample of all ranks
    counts once (or, if that is longer, storing by the r ranks of a host one after the other); with
    a barrier before every message, once a message. A barrier takes ceil(log2 M)
    message latencies. The wire counts only without ``overlap``: then the last message's. Reading
    what is sent from the device is left out.

    ``iterations`` are those of the epoch.
    """
    exchange, world_size = scenario.workload.exchange, scenario.world_size
    schedule, fraction = exchange.exchange_schedule, exchange.fraction
    dataset, moving = scenario.workload.dataset, _moving(scenario)
    if schedule is None or not fraction:
        return NO_EXCHANGE
    quota = epoch_quota(fraction, dataset.num_samples, world_size, scenario.epochs)
    when = spread_over_iterations(quota, fraction * scenario.workload.local_batch_size, iterations)
    if not len(when):
        return NO_EXCHANGE
    sending, messages = len(np.unique(when)), len(np.unique(schedule.messages(when)))
    work = host_work(schedule, dataset)
    draws = len(np.unique(schedule.pairing_of(when))) if isinstance(schedule, Pairing) else 0
    sized = work.decode + work.pickle  # in proportion to the sample, as is storing it
    stored = work.write + _store_seconds(scenario)
    each = work.read + work.zero_buffer + sized + stored + work.remove
    spread = dataset.sample_size.std / dataset.sample_size.mean
    excess = expected_largest(max(1, round(moving * world_size)), spread) - 1.0
    met = messages - sending if schedule.barriers == "message" else 0
    once = max(max(sized, stored) * excess, _crowding(scenario, sized, quota / sending))
    # in an iteration that sends they wait for the slowest compute anyway
    jitter = expected_largest(world_size, scenario.workload.jitter.compute) - 1.0
    once = max(once - _step(scenario) * jitter, 0.0)
    # and once for those whose last batch has a sample more
    unequal = min(once, _sample_seconds(scenario)) * (dataset.num_samples % world_size > 0)
    return ExchangeBound(
        samples=quota,
        messages=messages,
        sending=sending,
        work=moving * quota * each + draws * work.draw * world_size,
        waiting=met * sized * excess + sending * once - unequal,
        barriers=_barriers(schedule, messages, sending) * barrier_seconds(scenario),
        wire=0.0 if schedule.overlap else sending * _message_seconds(scenario, schedule),
    )


def _crowding(scenario: Scenario, sized: float, samples: float) -> float:
    """Least time (s) that ranks wait for one another at the device of their host, when each stores
    ``samples`` samples.

    r of them take r times as long as one, from the moment when the first has sent and computed. The
    first is earlier than the mean by no more than the last is later, as log-normal times lean to
    the right.
    """
    workload, size = scenario.workload, scenario.workload.dataset.sample_size
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    early = _step(scenario) * (expected_largest(ranks, workload.jitter.compute) - 1.0)
    early += samples * sized * min(1.0, expected_largest(ranks, size.std / size.mean) - 1.0)
    stored = _moving(scenario) * samples * _store_seconds(scenario)
    return max((ranks - 1) * stored - early, 0.0)


def _step(scenario: Scenario) -> float:
    """s of the forward and backward pass of a batch, or of a shard that is smaller."""
    workload = scenario.workload
    shard = workload.dataset.num_samples / scenario.world_size
    return min(shard, workload.local_batch_size) * _sample_seconds(scenario)


def _sample_seconds(scenario: Scenario) -> float:
    """s of the forward and backward pass of a sample."""
    times = scenario.workload.model.accelerators[scenario.cluster.host.accelerator]
    return times.forward + times.backward


def barrier_seconds(scenario: Scenario) -> float:
    """Seconds of a barrier: ceil(log2 M) message latencies (dissemination: Hensgen, Finkel and
    Manber 1988)."""
    return math.ceil(math.log2(scenario.world_size)) * scenario.cluster.message_passing.latency


def _barriers(schedule: MessageSchedule, messages: int, sending: int) -> int:
    """Barriers of an epoch: before every message or the first of an iteration, and after the
    receipt."""
    return {"message": messages + sending, "iteration": 2 * sending, "none": 0}[schedule.barriers]


def _message_seconds(scenario: Scenario, schedule: MessageSchedule) -> float:
    """Least time (s) on the wire of a message of one sample that some rank sends."""
    if _moving(scenario) == 0.0:
        return 0.0
    passing = scenario.cluster.message_passing
    nbytes = payload_nbytes(schedule, scenario.workload.dataset)
    return passing.latency + nbytes / (passing.stream_bandwidth or math.inf)


def _store_seconds(scenario: Scenario) -> float:
    """Seconds in which the device stores a sample of mean size."""
    nbytes = scenario.workload.dataset.sample_size.mean
    if scenario.workload.source == "memory":
        return nbytes / scenario.cluster.memory.bandwidth
    return scenario.cluster.ssd.write_seconds(nbytes)


def _moving(scenario: Scenario) -> float:
    """Share of the samples to be sent that surely leave their rank, in the mean.

    A random permutation of a group of ranks leaves one of them in place on average, a matching of
    an odd number one. At most every host is a group of its own. Pairs that exchange nothing where
    importances are alike (``least_difference``) are not foreseen: then none is sure to.
    """
    schedule, world_size = scenario.workload.exchange.exchange_schedule, scenario.world_size
    if schedule is None or world_size == 1:
        return 0.0
    groups = 1
    if isinstance(schedule, Pairing):
        if schedule.least_difference > 0.0:
            return 0.0
        groups = 1 if schedule.partner_scope == "all" else scenario.hosts
        if schedule.partner_rule != "random":
            return 1.0 - world_size % 2 / world_size
    return max(0.0, 1.0 - groups / world_size)


# ---------------------------------------------------------------------------------------- the mean


@lru_cache(maxsize=256)
def expected_largest(count: int, spread: float) -> float:
    """Expected largest of ``count`` log-normal numbers of mean 1 and standard deviation ``spread``.

    The integral of x over the distribution F(x)^count of the largest, on a grid of the underlying
    normal variable; within 1e-4 for a spread up to 1.
    """
    if spread == 0.0 or count == 1:
        return 1.0
    variance = math.log1p(spread**2)
    edges = np.linspace(-9.0, 9.0, 3601)
    below = np.array([0.5 * math.erfc(-edge / math.sqrt(2.0)) for edge in edges.tolist()]) ** count
    middle = (edges[1:] + edges[:-1]) / 2.0
    values = np.exp(math.sqrt(variance) * middle - variance / 2.0)
    return float((np.diff(below) * values).sum())
