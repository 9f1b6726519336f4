"""The exchange of samples of an epoch, on the clock of the simulation."""

from __future__ import annotations

import simpy

from simshuffle.fabric.network.batch import NONE
from simshuffle.job.lowering.messages import (
    ExchangeCosts,
    MessageGraph,
    MessageLowering,
    StoreLowering,
    delivery_counts,
    exchange_costs,
    messages_of,
)
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.job.sim.clock import Barrier, succeed_after
from simshuffle.job.sim.simulation import Simulation
from simshuffle.spec.arrays import Floats


class Exchange:
    """The exchange of samples in one epoch. Ranks go through its iterations in order.

    Attributes:
        costs: bytes and seconds of the steps of the exchange.
        schedule: the schedule of messages, that of ``costs``.
        remove: (M,) s at the end of the epoch, to remove the samples that were sent.
        delivered: for each rank, the group of the messages that it sends or receives
            after the iteration started last; NONE if there are none.
    """

    def __init__(
        self, simulation: Simulation, costs: ExchangeCosts, remove: Floats
    ) -> None:
        scenario = simulation.scenario
        resources = simulation.resources
        clock = simulation.clock
        self._recorder = simulation.recorder
        self.costs = costs
        self.remove = remove
        self._resources = resources
        self._clock = clock
        self.schedule = costs.schedule
        self._reads_in_flight = scenario.workload.loader.reads_in_flight
        self._world_size = resources.world_size
        self._sending = frozenset(costs.plan.iteration.tolist())
        pairs = scenario.network.serial_pairs
        in_memory = scenario.workload.source == "memory"
        self._lowering = MessageLowering(resources, costs.schedule, serial_pairs=pairs)
        self._stores = StoreLowering(resources, costs, in_memory=in_memory)
        # of the iteration whose messages were prepared last: its groups, of each rank the one of
        # its host work and the one of its messages; and its transfers
        self._prepared = -1
        self._work_done: list[int] = []
        self.delivered: list[int] = []
        self._graph: MessageGraph
        # the ranks that begin at this instant, if no barrier lets all begin together
        self._beginning: list[int] = []
        self._opening = Barrier(clock.env, self._world_size, self._open)
        # the barrier after the receipt: its group, its event, and the ranks that are still missing
        self._closing = NONE
        self._closed = clock.env.event()
        self._closing_missing = 0

    def sends(self, iteration: int) -> bool:
        """Return whether ranks exchange samples after ``iteration`` (from 0)."""
        return iteration in self._sending

    def start(self, rank: int, iteration: int) -> int:
        """Begin the exchange of a rank after ``iteration`` (from 0).

        Call it only for an iteration that `sends`, and for all ranks before it is
        called for a later one. With barriers nothing is posted before all ranks have
        called it. The first call for an iteration replaces ``delivered``.

        Returns:
            The group that is complete when the main thread of the rank is free again;
            the caller closes the group.
        """
        self._prepare(iteration)
        if self.schedule.barriers == "none":
            if not self._beginning:
                self._clock.env.timeout(0.0).callbacks.append(self._begin)
            self._beginning.append(rank)
        else:
            self._opening.arrive()
        return self._work_done[rank]

    def store(self, rank: int, iteration: int) -> tuple[int, simpy.Event | None]:
        """Re-encode and write what the rank received after ``iteration`` (from 0), then
        meet the others if scheduled.

        With barriers every rank must call it, or none of them meets the others.

        Returns:
            The group that is complete when the rank has written, which the caller
            closes; and the event at which all ranks have written and met, None without
            barriers.
        """
        group = self._clock.open(1)
        if self.schedule.barriers == "none":
            self._clock.post(self._stores.batch(rank, iteration, group))
            return group, None
        if self._closing == NONE:
            self._create_closing_barrier()
        batch = self._stores.batch(rank, iteration, group, self._closing)
        closed = self._closed
        self._closing_missing -= 1
        if self._closing_missing == 0:
            self._closing = NONE
        self._clock.post(batch)
        return group, closed

    def _create_closing_barrier(self) -> None:
        """Create the barrier after the receipt, which ends after all ranks' writes and
        its own latency.
        """
        group = self._closing = self._clock.open(self._world_size)
        closed = self._closed = self._clock.env.event()
        self._closing_missing = self._world_size
        latency = barrier_seconds(self._resources.cluster, self._world_size)
        self._clock.call_when_complete(
            group, lambda _: succeed_after(self._clock.env, latency, closed)
        )

    def _begin(self, _: simpy.Event) -> None:
        """Post the messages of the ranks that began at this instant, in one batch: all
        ranks go on together when their gradients are summed.
        """
        self._clock.post(self._graph.select_ranks(self._beginning))
        self._beginning = []

    def _open(self, event: simpy.Event) -> None:
        """Trigger ``event``, of the opening barrier, and post the messages of all
        ranks, when all have begun.
        """
        event.succeed()
        self._clock.post(self._graph.batch)

    def _prepare(self, iteration: int) -> None:
        """Open the groups of an iteration and lay out its messages; do nothing if it is
        the one that was prepared last.
        """
        if self._prepared == iteration:
            return
        self._prepared = iteration
        messages = messages_of(
            self.costs, iteration, self._resources, self._reads_in_flight
        )
        counts = delivery_counts(messages, self._world_size).tolist()
        self._work_done = [self._clock.open(1) for _ in range(self._world_size)]
        self.delivered = [
            self._clock.open(count) if count else NONE for count in counts
        ]
        tag = (
            NONE if self._recorder is None else self._recorder.note(iteration, messages)
        )
        self._graph = self._lowering.graph(
            messages, self._work_done, self.delivered, tag
        )


def plan_exchange(
    simulation: Simulation, plan: EpochPlan, nbytes: Floats, thinning: Thinning
) -> Exchange | None:
    """Return the exchange of an epoch; None if no sample is exchanged.

    Removing what was sent takes as long as in the epoch that is not thinned.

    Args:
        simulation: the parts that all epochs of the run share.
        plan: the plan of the epoch.
        nbytes: (N,) bytes of every sample in storage.
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
        nbytes=nbytes,
        cached=plan.sent_from_cache,
        iterations=plan.iterations,
    )
    return Exchange(simulation, costs, costs.remove * thinning.factor)
