"""What simulating a run takes, roughly: seconds of one core and bytes of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.allreduce import Ddp, Horovod, NoOverlap
from simshuffle.network import Packet
from simshuffle.plan.bounds import MOST_RANKS
from simshuffle.plan.packets import expected_packets
from simshuffle.plan.thinning import expected_iterations
from simshuffle.scenario.scenario import Scenario

# measured with benchmarks/effort.py on one core of an AMD EPYC
START = 0.7
"""s to import what simulates and to load the compiled network; compiling it, once, takes 6 s."""
PER_ITERATION = 1.1e-5
"""s for an iteration of a rank: its reads and its compute; or for a batch of a pass that measures
importance."""
PER_SENDING = 6e-6
"""s more if samples are sent after it."""
PER_SAMPLE = 6e-6
"""s for a sample that is sent."""
CACHED_RANKS, GROWTH = 2048, 0.45
"""Ranks up to which that holds; beyond, the network no longer fits the caches, and a sample takes
as many times longer as there are times more ranks, to this power: that of the network alone
(docs/network.md), held against one run of 16,384 ranks."""
PER_STORED = 1e-7
"""s for a sample of the data set in an epoch, to plan it."""
PER_RANK = 4e-5
"""s for a rank: its links and routes."""
PER_PACKET = 0.6e-6
"""s for a packet, over four to six cables."""
PER_ALLREDUCE = 1e-4
"""s to post an allreduce and to hear of its end."""
PER_FLOW, PER_EDGE = 0.15e-6, 0.12e-6
"""s for a flow of an allreduce, and for what a flow waits for."""
LAYING_OUT = 2.0
"""How many times that an allreduce takes when it is laid out, as each size of one is once."""
PER_OVERLAP = 8e-6
"""s for an iteration of a rank whose backward pass is slowed down by allreduces."""
MOST_SIZES = 64
"""Sizes of allreduces where layers are fused as they come: about so many come up in a run."""
BASE_NBYTES = 265e6
"""Bytes of a process that has loaded all that, and writes a small outcome."""
SHARED_NBYTES = 205e6
"""Bytes of these that a process forked from one that has loaded it shares, or never loads."""
ITERATION_NBYTES = 1.0e3
"""Bytes for an iteration of a rank: its rows of the timeline."""
SAMPLE_NBYTES = 200.0
"""Bytes for a sample that is sent, in one epoch; plans are made epoch by epoch."""
STORED_NBYTES = 27.0
"""Bytes for a sample of the data set."""
FLOW_NBYTES, EDGE_NBYTES = 800.0, 32.0
"""Bytes for a flow of an allreduce under way, and for what it waits for."""
LAID_OUT_FLOW_NBYTES, LAID_OUT_EDGE_NBYTES = 140.0, 8.0
"""Bytes for the same of every size of an allreduce, which are kept."""


@dataclass(frozen=True)
class AllreduceEffort:
    """The allreduces of a run."""

    count: float = 0.0  # how many, each of the whole gradient or of a part of it
    sizes: float = 0.0  # how many different ones
    flows: int = 0  # of each
    edges: int = 0  # of each, what flows wait for
    slowed: float = 0.0  # iterations of a rank in which they run beside the backward pass

    @property
    def seconds(self) -> float:
        """s of one core."""
        each = PER_FLOW * self.flows + PER_EDGE * self.edges
        return (
            (PER_ALLREDUCE + each) * self.count
            + LAYING_OUT * each * self.sizes
            + PER_OVERLAP * self.slowed
        )

    @property
    def nbytes(self) -> float:
        """Bytes of memory."""
        under_way = FLOW_NBYTES * self.flows + EDGE_NBYTES * self.edges
        kept = LAID_OUT_FLOW_NBYTES * self.flows + LAID_OUT_EDGE_NBYTES * self.edges
        return under_way + kept * self.sizes


@dataclass(frozen=True)
class Effort:
    """What decides how long a simulation takes, and how much memory."""

    # of all ranks, in all epochs, with those of the passes that measure importance
    iterations: float
    samples: float  # that all ranks send, in all epochs
    stored: float  # samples of the data set
    epochs: int  # of the run
    ranks: int  # M
    packets: float = 0.0  # that cross cables, where the network is simulated packet by packet
    allreduces: AllreduceEffort = AllreduceEffort()  # of the gradients

    @property
    def seconds(self) -> float:
        """s of one core, without `START`."""
        crowding: float = max(1.0, self.ranks / CACHED_RANKS) ** GROWTH
        return (
            0.1
            + PER_ITERATION * self.iterations
            + PER_SENDING * min(self.iterations, self.samples)
            + PER_SAMPLE * crowding * self.samples
            + PER_STORED * self.stored * self.epochs
            + PER_RANK * self.ranks
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
            + self.allreduces.nbytes
        )

    @property
    def own_nbytes(self) -> float:
        """Bytes of memory of a process that was forked from one that has loaded all that."""
        return self.nbytes - SHARED_NBYTES


def effort(scenario: Scenario) -> Effort:
    """The effort of a run."""
    workload, epochs, dataset = scenario.workload, scenario.epochs, scenario.workload.dataset
    packets = 0.0
    if isinstance(scenario.network, Packet):
        packets = sum(expected_packets(scenario, scenario.network.mtu).values())
    passes = 2 if workload.exchange.inference_pass else 1
    simulated = expected_iterations(scenario)
    share = simulated / workload.iterations(scenario.world_size)
    stored = share * dataset.num_samples
    return Effort(
        iterations=scenario.world_size * simulated * epochs * passes,
        samples=(workload.exchange.fraction or 0.0) * stored * epochs,
        stored=stored,
        epochs=epochs,
        ranks=scenario.world_size,
        packets=packets,
        allreduces=_allreduces(scenario),
    )


def _allreduces(scenario: Scenario) -> AllreduceEffort:
    """Those of the gradients; none for one rank, or for more than are looked at (`MOST_RANKS`)."""
    workload, ranks = scenario.workload, scenario.world_size
    if ranks > MOST_RANKS:
        return AllreduceEffort()
    algorithm = workload.allreduce_on(scenario.cluster)
    flows = algorithm.flows(scenario.cluster.domain_of(ranks), workload.model.gradient_size)
    if flows is None:
        return AllreduceEffort()
    iterations = expected_iterations(scenario) * scenario.epochs
    if isinstance(algorithm.overlap, NoOverlap):
        count, sizes = 1, 1
    elif isinstance(algorithm.overlap, Ddp):
        count = sizes = len(algorithm.overlap.parts(workload.model.gradient_arrival))
    else:
        count = _messages(scenario, algorithm.overlap)
        sizes = min(count * iterations, MOST_SIZES)
    overlaps = not isinstance(algorithm.overlap, NoOverlap)
    return AllreduceEffort(
        count=count * iterations,
        sizes=sizes,
        flows=len(flows),
        edges=len(flows.edge_to),
        slowed=ranks * iterations if overlaps else 0.0,
    )


def _messages(scenario: Scenario, rule: Horovod) -> int:
    """Messages of an iteration, where the backward pass begins with a cycle of the coordinator."""
    workload = scenario.workload
    times = workload.model.accelerators[scenario.cluster.host.accelerator]
    batch = np.asarray(float(workload.local_batch_size))
    backward = (float(times.backward_of(batch)) + rule.hooks) / (1.0 - rule.slowdown)
    period = max(rule.cycle, rule.negotiation_seconds(scenario.world_size))
    nbytes, share = workload.model.gradient_arrival.T
    cycle = np.ceil(share * backward / period)
    return sum(len(rule.fused(nbytes[cycle == each].tolist())) for each in np.unique(cycle))
