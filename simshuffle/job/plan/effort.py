"""The rough effort of simulating a run: seconds of one core, bytes of memory, and
packets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simshuffle.errors import Problem, ScenarioError
from simshuffle.fabric.network import Fluid, Packet
from simshuffle.job.plan.bounds import MOST_RANKS, bounds
from simshuffle.job.plan.checkpoint_bounds import save_size, training_seconds
from simshuffle.job.plan.epochs import cached_share
from simshuffle.job.plan.reading_bounds import (
    OPENS,
    PFS,
    REQUESTS,
    SSD,
    STORE,
    ReadingBounds,
)
from simshuffle.job.scenario.host_work import payload_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Loader
from simshuffle.spec.units import Dimension, readable
from simshuffle.workload.exchange.schedule import epoch_quota

MIN_WINDOW = 12
"""Iterations of the first window."""
MIN_SENDINGS = 2.5
"""Iterations of the first window after which samples are sent."""
TRANSIENT = 2
"""Times that workers load a batch each until those of different ranks are no longer in
step.
"""
BEGIN = 2
"""Iterations at the beginning of an epoch that are not like the others, where loaders
keep up.
"""
FEWEST_BATCHES = 6
"""Means that an interval rests on at least: fewer say little of their own variance."""
BINDS = 2.0
"""Ratio of the wait for a server to a batch's compute, above which the server bounds an
epoch.
"""
WORTH_LEAVING_OUT = 0.75
"""Share of the iterations of an epoch from which on all of them are simulated."""


def first_window(scenario: Scenario) -> int:
    """Return the iterations of the first window of an epoch, at least `MIN_WINDOW`.

    More if few iterations send samples, where importance is measured, or if all ranks
    wait for a server. It may be more than the epoch has.
    """
    workload = scenario.workload
    samples_sent = (workload.exchange.fraction or 0.0) * workload.local_batch_size
    sending = math.ceil(MIN_SENDINGS / min(samples_sent, 1.0)) if samples_sent else 0
    measuring = 0
    if workload.exchange.inference_pass:
        # the transient, two parts of the rest that are compared, and the last, which may be smaller
        measuring = (TRANSIENT + 2) * workload.loader.at_once + 2
    min_iterations = max(MIN_WINDOW, sending, measuring)
    if measuring or not waits_for_server(scenario):
        return min_iterations
    return max(
        min_iterations,
        served_window(workload.loader, workload.iterations(scenario.world_size)),
    )


def served_window(loader: Loader, iterations: int, min_iterations: int = 0) -> int:
    """Iterations of a window of an epoch of so many, in which all ranks wait for one
    server: at least two turns of the workers between filling the loaders and running
    them empty, and at least ``min_iterations``. It ends at the same turn as the epoch,
    so that the last batches come alike. It may be longer than the epoch.
    """
    turns = max(2 * loader.at_once, FEWEST_BATCHES)
    window = max(max(loader.prefetch, BEGIN) + turns + loader.prefetch, min_iterations)
    return window + (iterations - window) % loader.at_once


def waits_for_server(scenario: Scenario) -> bool:
    """Return whether an epoch waits for a server of all ranks, where nothing is cached.

    It does if opens, requests or bytes of a batch of every rank take the PFS or the
    object store more than `BINDS` times as long as a rank computes for its batch.
    """
    resource_seconds = ReadingBounds(scenario).seconds(
        scenario.workload.local_batch_size, 0.0
    )
    slowest = max(
        resource_seconds.get(name, 0.0) for name in (OPENS, PFS, REQUESTS, STORE)
    )
    return slowest > BINDS * compute_seconds(scenario)


def compute_seconds(scenario: Scenario) -> float:
    """Return the seconds that a rank computes for a full batch of mean work: forward
    and backward pass and update, without jitter.
    """
    workload = scenario.workload
    times = scenario.step_times
    batch = np.asarray(workload.local_batch_size * workload.mean_work)
    return float(times.forward_of(batch) + times.backward_of(batch)) + times.update


MOST_PACKETS = 1e9
"""Packets of a run beyond which it is refused: one core moves 1 to 2 million a second
over 4 to 6 cables each.
"""


def expected_packets(scenario: Scenario, mtu: float) -> dict[str, float]:
    """Estimate the packets of ``mtu`` bytes that cross cables in all epochs of a run.

    Iterations that windows leave out count, too.

    Returns:
        Packets by what they carry: 'gradients', 'exchange' and 'reads' from the PFS,
        each 0 if there are none; 'checkpoints' only if they go to the PFS.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    cluster = scenario.cluster
    dataset = workload.dataset
    epochs = range(1, scenario.epochs + 1)
    packets = dict.fromkeys(("gradients", "exchange", "reads"), 0.0)
    domain_of = cluster.domain_of(world_size)
    domains = cluster.domains_for(world_size)
    flows = workload.allreduce_on(cluster).flows(
        domain_of, workload.model.gradient_size
    )
    packets_of_allreduce = 0.0 if flows is None else flows.packets(domain_of, mtu)
    packets["gradients"] = (
        packets_of_allreduce * workload.iterations(world_size) * scenario.epochs
    )
    schedule = workload.exchange.exchange_schedule
    fraction = workload.exchange.fraction
    if schedule is not None and fraction is not None:
        size = payload_nbytes(schedule, dataset)
        quotas = (
            epoch_quota(fraction, dataset.num_samples, world_size, epoch)
            for epoch in epochs
        )
        samples = world_size * sum(quotas)
        packets["exchange"] = samples * (1 - 1 / domains) * math.ceil(size / mtu)
    if workload.exchange.tier == "pfs":
        missed = sum(1 - cached_share(scenario, epoch) for epoch in epochs)
        packets["reads"] = missed * dataset.nbytes / mtu
    checkpoint = workload.checkpoint
    if checkpoint is not None and checkpoint.writes_to_pfs:
        saves = scenario.epochs * bounds(scenario).epoch / training_seconds(scenario)
        packets["checkpoints"] = saves * save_size(scenario).total / mtu
    return packets


def check_size(scenario: Scenario) -> None:
    """See that a run that is to be simulated packet by packet has at most
    `MOST_PACKETS`; other networks pass.

    Raises:
        ScenarioError: it has more.
    """
    if not isinstance(scenario.network, Packet):
        return
    mtu = scenario.network.mtu
    packets = expected_packets(scenario, mtu)
    total = sum(packets.values())
    if total > MOST_PACKETS:
        parts = ", ".join(
            f"{count:.1e} of {name}" for name, count in packets.items() if count
        )
        rule = f"must have at most {MOST_PACKETS:.0e} packets; it has about {total:.1e} ({parts})"
        network = f"'packet' with network.mtu = {readable(mtu, Dimension.NBYTES)}"
        remedy = (
            "Use fewer epochs, a larger local_batch_size or network.mtu,"
            " or network.kind: fluid."
        )
        raise ScenarioError(
            Problem("network.kind", rule, network, remedy), scenario.name
        )


# seconds are fitted to docs/data/effort.csv (robust least squares of the logarithms), which
# benchmarks/effort_shipped.py measured: CPU seconds on an AMD EPYC whose two cores were
# shared; bytes are from benchmarks/effort.py
START = 0.7
"""s to import what simulates and to load the compiled network; compiling it, once,
takes 6 s.
"""
PER_ITERATION = 7.7e-6
"""s for an iteration of a rank: its reads and its compute; or for a batch of a pass
that measures importance.
"""
PER_WAITING = 2.5e-5
"""s more where all ranks wait for the file system, whose transfers are then never
alike.
"""
TOLERATED = 5.6
"""Factor of a network's tolerance on the time of a simulation; it prevents use of
symmetry.
"""
BESIDE = 0.05
"""Share of a batch's compute that an exchange takes, from which on iterations differ
much.
"""
BUSY = 0.5
"""The same of the SSD, while page caches fill, from which on iterations do not become
alike.
"""
IN_VAIN = 1.5
"""Ratio of simulated iterations to those of an epoch where no window is long enough."""
MOST, MOST_AT = 150, 0.01
"""Iterations of windows that do in the end, where an exchange makes them differ, at
that tolerance: a mean is known to a tolerance by as many as its square is smaller.
"""
PER_SAMPLE = 4.8e-6
"""s for a sample that is sent."""
CACHED_RANKS, GROWTH = 2048, 0.45
"""Ranks up to which that holds; beyond, the network no longer fits the caches, and a
sample or rank takes as many times longer as there are times more ranks, to this power:
that of the network alone (docs/network.md), held against two runs of 16,384 ranks.
"""
PER_STORED = 1.3e-7
"""s for a sample of the data set in an epoch, to plan it."""
PER_RANK = 3.1e-5
"""s for a rank: its links and routes."""
PER_HOST = 3.7e-5
"""s for a host of the machine, with ranks or without: its cables and its name."""
PER_PACKET = 0.6e-6
"""s for a packet, over four to six cables."""
PER_ALLREDUCE = 6.5e-5
"""s to post an allreduce and to hear of its end, and for what an iteration takes
whatever the number of ranks.
"""
PER_FLOW, PER_EDGE = 0.42e-6, 0.18e-6
"""s for a flow of an allreduce, and for what a flow waits for."""
LAYING_OUT = 2.0
"""Ratio of the time to lay an allreduce out, once for each size, to the time to
simulate it.
"""
PER_OVERLAP = 2e-6
"""s for an iteration of a rank whose backward pass is slowed down by allreduces."""
MOST_SIZES = 64
"""Sizes of allreduces where layers are fused as they come: about so many come up in a
run.
"""
BASE_NBYTES = 265e6
"""Bytes of a process that has loaded all that, and writes a small outcome."""
SHARED_NBYTES = 205e6
"""Bytes of these that a process forked from one that has loaded it shares, or never
loads.
"""
ITERATION_NBYTES = 500.0
"""Bytes for an iteration of a rank: its rows of the timeline."""
RANK_NBYTES, HOST_NBYTES = 6.0e3, 4.5e3
"""Bytes for a rank: its links and routes; and for a host of the machine, with ranks or
without. Measured of 1,024 to 131,072 ranks on fat trees of 8,192 and 200,000 hosts.
"""
SAMPLE_NBYTES = 200.0
"""Bytes for a sample that is sent, in one epoch; plans are made epoch by epoch."""
STORED_NBYTES = 27.0
"""Bytes for a sample of the data set."""
FLOW_NBYTES, EDGE_NBYTES = 800.0, 32.0
"""Bytes for a flow of an allreduce under way, and for what it waits for."""
LAID_OUT_FLOW_NBYTES, LAID_OUT_EDGE_NBYTES = 140.0, 8.0
"""Bytes of memory for a flow and for an edge of a laid out allreduce; every size is
kept.
"""


@dataclass(frozen=True)
class AllreduceEffort:
    """The allreduces of a run."""

    count: float = 0.0  # how many, each of the whole gradient or of a part of it
    sizes: float = 0.0  # how many different ones
    flows: int = 0  # of each
    edges: int = 0  # of each, what flows wait for
    slowed: float = (
        0.0  # iterations of a rank in which they run beside the backward pass
    )

    @property
    def seconds(self) -> float:
        """Seconds of one core."""
        flow_seconds = PER_FLOW * self.flows + PER_EDGE * self.edges
        posted = (PER_ALLREDUCE + flow_seconds) * self.count
        laid_out = LAYING_OUT * flow_seconds * self.sizes
        return posted + laid_out + PER_OVERLAP * self.slowed

    @property
    def nbytes(self) -> float:
        """Bytes of memory."""
        under_way = FLOW_NBYTES * self.flows + EDGE_NBYTES * self.edges
        laid_out = LAID_OUT_FLOW_NBYTES * self.flows + LAID_OUT_EDGE_NBYTES * self.edges
        return under_way + laid_out * self.sizes


@dataclass(frozen=True)
class Effort:
    """The counts that decide how long a simulation takes, and how much memory."""

    # simulated, of all ranks, in all epochs, with those of the passes that measure importance
    iterations: float
    samples: float  # that all ranks send in simulated iterations, in all epochs
    # samples of the data set, times the simulated share of an epoch's iterations
    stored: float
    epochs: int  # of the run
    ranks: int  # M
    packets: float = (
        0.0  # that cross cables, where the network is simulated packet by packet
    )
    allreduces: AllreduceEffort = AllreduceEffort()  # of the gradients
    waiting: float = (
        0.0  # of the iterations those in which all ranks wait for the file system
    )
    exact: bool = True  # whether the network has no tolerance
    hosts: int = 0  # of the machine, with ranks or without
    kind: str = "run"  # runs of a kind are about as many times as slow as this says

    @property
    def seconds(self) -> float:
        """Seconds of one core, without `START` and without compiling."""
        crowding: float = max(1.0, self.ranks / CACHED_RANKS) ** GROWTH
        return (1.0 if self.exact else TOLERATED) * (
            0.1
            + PER_ITERATION * self.iterations
            + PER_WAITING * self.waiting
            + PER_SAMPLE * crowding * self.samples
            + PER_STORED * self.stored * self.epochs
            + PER_RANK * crowding * self.ranks
            + PER_HOST * self.hosts
            + PER_PACKET * self.packets
            + self.allreduces.seconds
        )

    @property
    def nbytes(self) -> float:
        """Bytes of memory of the process."""
        return (
            BASE_NBYTES
            + ITERATION_NBYTES * self.iterations
            + SAMPLE_NBYTES * self.samples / self.epochs
            + STORED_NBYTES * self.stored
            + RANK_NBYTES * self.ranks
            + HOST_NBYTES * self.hosts
            + self.allreduces.nbytes
        )


def effort(scenario: Scenario) -> Effort:
    """Return the effort of a run, by closed forms: nothing is laid out but one
    allreduce.
    """
    workload = scenario.workload
    epochs = scenario.epochs
    dataset = scenario.workload.dataset
    packets = 0.0
    if isinstance(scenario.network, Packet):
        packets = sum(expected_packets(scenario, scenario.network.mtu).values())
    passes = 2 if workload.exchange.inference_pass else 1
    simulated = expected_iterations(scenario)
    iterations = scenario.world_size * simulated * epochs * passes
    share = simulated / workload.iterations(scenario.world_size)
    stored = share * dataset.num_samples
    return Effort(
        iterations=iterations,
        samples=(workload.exchange.fraction or 0.0) * stored * epochs,
        stored=stored,
        epochs=epochs,
        ranks=scenario.world_size,
        packets=packets,
        allreduces=_allreduces(scenario),
        waiting=iterations if waits_for_server(scenario) else 0.0,
        exact=not isinstance(scenario.network, Fluid)
        or scenario.network.tolerance == 0,
        hosts=scenario.cluster.topology.num_hosts,
        kind=f"{workload.exchange.kind}, {scenario.network.kind}"
        + (", windows" if scenario.time_tolerance else ""),
    )


def expected_iterations(scenario: Scenario) -> float:
    """Return the mean number of iterations that are simulated for an epoch.

    Without a tolerance of time these are all, and so they are where windows cannot be
    used (a loader across epochs, checkpoints, some strategies) or the first window has
    `WORTH_LEAVING_OUT` of an epoch's iterations. With a tolerance they are those of
    the first window, if it is likely to be long enough. Else they are those of longer
    windows: up to `IN_VAIN` times all, as windows in vain are simulated, too.
    """
    workload = scenario.workload
    epochs = scenario.epochs
    all_iterations = workload.iterations(scenario.world_size)
    first = first_window(scenario)
    needs_all = workload.loader.across_epochs or workload.checkpoint is not None
    needs_all = needs_all or bool(workload.exchange.whole_because)
    if (
        scenario.time_tolerance == 0
        or needs_all
        or first >= WORTH_LEAVING_OUT * all_iterations
    ):
        return all_iterations
    computing = compute_seconds(scenario)
    if bounds(scenario).exchange.seconds > BESIDE * computing * all_iterations:
        needed = MOST * (MOST_AT / scenario.time_tolerance) ** 2
        return min(IN_VAIN * all_iterations, max(needed, first))
    busy = ReadingBounds(scenario).seconds(workload.local_batch_size, 0.0)[SSD]
    if busy > BUSY * computing:  # in the first epoch
        return (IN_VAIN * all_iterations + (epochs - 1) * first) / epochs
    return first


def _allreduces(scenario: Scenario) -> AllreduceEffort:
    """Return the effort of the allreduces of gradients; none for one rank, or for more
    than `MOST_RANKS`.
    """
    workload = scenario.workload
    ranks = scenario.world_size
    if ranks > MOST_RANKS:
        return AllreduceEffort()
    algorithm = workload.allreduce_on(scenario.cluster)
    flows = algorithm.flows(
        scenario.cluster.domain_of(ranks), workload.model.gradient_size
    )
    if flows is None:
        return AllreduceEffort()
    iterations = expected_iterations(scenario) * scenario.epochs
    overlap = algorithm.overlap
    count = 1
    sizes = 1.0
    slowed = 0.0
    if overlap.kind != "none":
        # a backward pass that begins with a cycle of Horovod's coordinator
        batch = np.asarray(float(workload.local_batch_size))
        backward = float(scenario.step_times.backward_of(batch)) + overlap.hooks
        backward /= 1.0 - overlap.slowdown
        count = len(overlap.messages(workload.model.gradient_arrival, backward, ranks))
        sizes = count if overlap.kind == "ddp" else min(count * iterations, MOST_SIZES)
        slowed = ranks * iterations
    edges = len(flows.edge_to)
    return AllreduceEffort(count * iterations, sizes, len(flows), edges, slowed)
