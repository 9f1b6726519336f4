"""The inference pass that measures importance, on the clock of the simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simshuffle.fabric.network.batch import delays
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.job.sim.iteration import Iteration
from simshuffle.job.sim.served import OmittedBatches
from simshuffle.job.sim.simulation import Loaders, Simulation
from simshuffle.spec.arrays import Floats, Ints32


@dataclass(frozen=True)
class Measuring:
    """The inference pass, in which ranks do not wait for one another."""

    loaders: Loaders  # of the pass
    seconds: Floats  # (batches, M) s that the GPU of a rank computes on each batch
    slower: Floats  # see `Simulation`
    omitted_batches: OmittedBatches  # the batches that are left out
    _batches: list[Iteration] = field(default_factory=list)

    def run(self, clock: NetworkClock, measured: Ints32) -> None:
        """Begin the pass of all ranks, which counts ``measured``, (M,) groups, down."""
        begun = clock.network.open_groups(1, len(measured))
        self.loaders.begin(begun)
        self._lay_out(Iteration(clock, 0, begun, self.loaders.taken[0]), measured)
        clock.count_down(begun)

    def _lay_out(self, batch: Iteration, measured: Ints32) -> None:
        """Lay out a batch, and the next one as soon as the first rank takes this one."""
        self._batches.append(batch)
        clock = batch.clock
        self.loaders.take(
            batch.number,
            batch.computed,
            lambda: batch.seconds(self.slower, self.seconds),
        )
        number = batch.number + 1
        if number < self.loaders.chains.iterations:
            next_taken = self.loaders.taken[number]
            clock.network.set_parents(batch.computed, next_taken)
            first = batch.released[:1]  # nobody is released in this pass
            clock.network.set_parents(batch.taken, first)
            clock.watch(
                first,
                lambda _: self._lay_out(
                    Iteration(clock, number, batch.computed, next_taken), measured
                ),
            )
        elif self.omitted_batches.iterations:
            clock.gather(batch.computed).callbacks.append(
                lambda _: self._add_omitted_batches(batch, measured)
            )
        else:
            clock.network.set_parents(batch.computed, measured)

    def _add_omitted_batches(self, last: Iteration, measured: Ints32) -> None:
        """Delay each rank by its omitted batches; all have ended the ``last`` batch."""
        clock = last.clock
        order = clock.network.order(last.computed)
        done_at = np.stack(
            [
                clock.network.ends(self._batches[batch].computed)
                for batch in self.omitted_batches.bounds
            ]
        )
        arrived_at = clock.network.ends(last.computed)[order]
        waits = self.omitted_batches.waits(order, arrived_at, done_at, clock.env.now)
        clock.post(delays(waits, measured[order]))

    def close(self) -> None:
        """Give back all groups of the pass, which is over on all ranks."""
        for batch in self._batches:
            self.loaders.close()
            batch.close()
        self._batches.clear()


def plan_inference_pass(
    simulation: Simulation, plan: EpochPlan, thinning: Thinning
) -> Measuring | None:
    """Return the inference pass of an epoch; None if importance is not measured."""
    reads = plan.inference
    workload = simulation.scenario.workload
    if reads is None:
        return None
    jitter = simulation.compute_jitter("inference_compute_jitter", plan.epoch, reads)
    # one group of all ranks where hosts decode alike
    groups = simulation.resources.host_of * (workload.jitter.host_decode > 0)
    seconds = simulation.scenario.step_times.inference_of(reads.samples) * jitter
    return Measuring(
        simulation.loaders(reads, "inference_read", plan.epoch),
        seconds,
        simulation.slower,
        OmittedBatches(thinning.left_out, len(jitter), groups, workload.loader.at_once),
    )
