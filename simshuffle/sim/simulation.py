"""What all epochs of a run share."""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.allreduce import NoOverlap
from simshuffle.lowering.compute import by_rank, compute_factor
from simshuffle.lowering.division import Division
from simshuffle.lowering.gradients import Allreduces
from simshuffle.lowering.reads import read_chains
from simshuffle.plan.epochs import Reads
from simshuffle.plan.resources import Resources
from simshuffle.scenario.model import StepTimes
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.gradients import (
    GradientSum,
    Passes,
    Posting,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.sim.groups import StepInGroups, StepOfAll
from simshuffle.sim.loader import Loaders
from simshuffle.sim.recorder import Recorder
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.rng import lognormal_factor


@dataclass(frozen=True)
class Simulation:
    """What all epochs of a run share."""

    scenario: Scenario  # the whole one, without sweep
    resources: Resources
    clock: NetworkClock
    allreduces: Allreduces
    division: Division | None  # how ranks divide a step; None if each goes through it by itself
    recorder: Recorder | None = None  # notes what tables do not hold; None for nobody

    @property
    def times(self) -> StepTimes:
        """Those of the model on the accelerators."""
        return self.scenario.workload.model.accelerators[self.scenario.cluster.host.accelerator]

    def compute_jitter(self, stream: str, epoch: int, reads: Reads) -> Floats:
        """(iterations, M) factors of what the accelerators compute, from that random stream."""
        rng = self.scenario.rng(stream, epoch)
        return compute_factor(rng, self.scenario.workload.jitter.compute, reads, self.times)

    def loaders(self, reads: Reads, stream: str, epoch: int) -> Loaders:
        """Those of a pass; ``stream`` begins the names of the random streams of its reads."""
        scenario, workload, resources = self.scenario, self.scenario.workload, self.resources
        rng = scenario.rng(f"{stream}_jitter", epoch)
        jitter = lognormal_factor(rng, workload.jitter.read, reads.nbytes.shape)
        latencies = scenario.rng(f"{stream}_latency", epoch)
        spread, hosts = workload.jitter.host_decode, (resources.num_hosts,)
        decoding = lognormal_factor(scenario.rng("host_decode"), spread, hosts)[resources.host_of]
        chains = read_chains(reads, workload, resources, jitter, latencies, decoding)
        return Loaders(workload.loader, self.clock, chains, scenario.world_size)

    def gradient_sum(self, samples: Ints64, jitter: Floats) -> GradientSum:
        """How ranks go through a step and sum their gradients, given the samples of each batch and
        the factors of its computing, (iterations, M) each."""
        posting = Posting(self.clock, self.allreduces)
        if self.division is not None:
            kind = StepOfAll if self.division.together else StepInGroups
            return kind(posting, self.division, samples, jitter)
        times, workload = self.times, self.scenario.workload
        model, overlap = workload.model, workload.allreduce.overlap
        forward = by_rank(times.forward_of(samples) * jitter)
        backward = by_rank(times.backward_of(samples) * jitter)
        passes = Passes(forward, backward, times.update)
        if isinstance(overlap, NoOverlap):
            return SumAfterBackward(posting, passes, model.gradient_size)
        return SumDuringBackward(posting, passes, model.gradient_arrival, overlap)
