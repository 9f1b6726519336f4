"""The exchange of samples of an epoch, on the clock of the simulation."""

from __future__ import annotations

import numpy as np
import simpy

from simshuffle.fabric.network.batch import NONE
from simshuffle.job.lowering.messages import (
    ExchangeCosts,
    MessageLowering,
    StoreLowering,
    delivery_counts,
    exchange_costs,
    messages_of,
)
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.job.sim.iteration import Iteration, Receipt
from simshuffle.job.sim.simulation import Simulation
from simshuffle.spec.arrays import Floats, Ints32


class Exchange:
    """The exchange of samples in one epoch. Ranks go through its iterations in order.

    Attributes:
        costs: bytes and seconds of the steps of the exchange.
        schedule: the schedule of messages, that of ``costs``.
        remove: (M,) s at the end of the epoch, to remove the samples that were sent.
    """

    def __init__(
        self, simulation: Simulation, costs: ExchangeCosts, remove: Floats
    ) -> None:
        scenario = simulation.scenario
        resources = simulation.resources
        self._recorder = simulation.recorder
        self.costs = costs
        self.remove = remove
        self._resources = resources
        self._clock = simulation.clock
        self.schedule = costs.schedule
        self._has_barriers = costs.schedule.barriers != "none"
        self._reads_in_flight = scenario.workload.loader.reads_in_flight
        self._sending = frozenset(costs.plan.iteration.tolist())
        self._lowering = MessageLowering(
            resources, costs.schedule, serial_pairs=scenario.network.serial_pairs
        )
        self._stores = StoreLowering(
            resources, costs, in_memory=scenario.workload.source == "memory"
        )
        # (M,) groups of the messages that were sent last, NONE without any
        self._delivered: Ints32

    def sends(self, iteration: int) -> bool:
        """Return whether ranks exchange samples after ``iteration`` (from 0)."""
        return iteration in self._sending

    def send(self, iteration: Iteration) -> Ints32:
        """Have ranks send after an iteration that `sends`, when they are released.

        With barriers nothing is posted before all ranks are. Call it for the iterations
        in order. Returns (M,) groups: the main thread of a rank is free again.
        """
        clock = self._clock
        messages = messages_of(
            self.costs, iteration.number, self._resources, self._reads_in_flight
        )
        counts = delivery_counts(messages, self._resources.world_size)
        self._delivered = np.where(counts > 0, iteration.open(counts), NONE)
        tag = NONE
        if self._recorder is not None:
            tag = self._recorder.note(iteration.number, messages)
        worked = iteration.open()
        graph = self._lowering.graph(messages, worked, self._delivered, tag)
        if self._has_barriers:
            clock.gather(iteration.released).callbacks.append(
                lambda _: clock.post(graph.batch)
            )
        else:
            iteration.park(iteration.released, graph.by_rank)
        return worked

    def receive(
        self, sent_after: int, iteration: Iteration, awaited: Ints32
    ) -> Receipt:
        """Have ranks wait for the messages sent after ``sent_after``, from when groups
        ``awaited`` are complete on, store what they received, then meet if scheduled.

        The messages must be those of the last `send`; the groups are of ``iteration``.
        """
        clock = self._clock
        network = clock.network
        has_messages = self._delivered >= 0
        delivered = iteration.open(1 + has_messages)
        network.set_parents(awaited, delivered)
        network.set_parents(self._delivered[has_messages], delivered[has_messages])
        written = iteration.open()
        closing = network.open_group(len(written)) if self._has_barriers else NONE
        iteration.park(
            delivered, lambda: self._stores.batch(sent_after, written, closing)
        )
        receipt = Receipt(sent_after, awaited, self._delivered, written, written)
        if self._has_barriers:
            receipt.stored = iteration.open()
            latency = barrier_seconds(self._resources.cluster, len(written))

            def close(_: simpy.Event) -> None:
                """Release all ranks, sorted by the time at which each began to store."""
                order = clock.network.order(delivered)
                clock.env.timeout(latency).callbacks.append(
                    lambda _: clock.count_down(receipt.stored[order])
                )

            clock.call_when_complete(closing, close)
        return receipt


def plan_exchange(
    simulation: Simulation, plan: EpochPlan, thinning: Thinning
) -> Exchange | None:
    """Return the exchange of an epoch; None if no sample is exchanged.

    Removing what was sent takes as long as in the epoch that is not thinned.

    Args:
        simulation: the parts that all epochs of the run share.
        plan: the plan of the epoch.
        thinning: how the plan's scenario is thinned.
    """
    workload = simulation.scenario.workload
    schedule = workload.exchange.exchange_schedule
    if schedule is None or not len(plan.exchange.iteration):
        return None
    costs = exchange_costs(
        plan.exchange,
        schedule,
        workload.dataset,
        nbytes=plan.nbytes,
        cached=plan.sent_from_cache,
        iterations=plan.iterations,
    )
    return Exchange(simulation, costs, costs.remove * thinning.factor)
