"""The training loops: one SimPy process for every rank, which also keeps its loader going."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.plan.epochs import EpochPlan
from simshuffle.plan.resources import Resources
from simshuffle.results.timeline import phase_rows
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.barrier import Meeting, succeed_after
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.exchange import Exchange
from simshuffle.sim.importance import gather_seconds, inference_loaders, inference_seconds
from simshuffle.sim.loader import Loaders, lognormal_factor

Steps = Generator[simpy.Event, Any, None]

# An iteration in the order of the authors' training loop: synchronise with the last exchange after
# backward, begin the next after update.
PHASES = [
    "io",
    "decode",
    "forward",
    "backward",
    "exchange",
    "wait_exchange",
    "wait_allreduce",
    "allreduce",
    "update",
    "exchange",
    "wait_exchange",
]
FINAL = ["exchange", "wait_exchange", "exchange", "wait_allreduce"]


@dataclass
class EpochRecord:
    """What one epoch left behind.

    Attributes:
        rows: phase rows (see `simshuffle.results.timeline.phase_rows`).
        end: s, when all ranks were through.
    """

    rows: list[dict[str, Any]]
    end: float


class Epoch:
    """One epoch of training by all ranks.

    Args:
        scenario, resources, clock: what is simulated, on what.
        plan: what the ranks read and exchange.
        loaders: those of the plan.
        nbytes: (N,) bytes of every sample in storage.
        progress: called after each iteration with the number of iterations done.
    """

    def __init__(
        self,
        scenario: Scenario,
        resources: Resources,
        clock: NetworkClock,
        plan: EpochPlan,
        loaders: Loaders,
        nbytes: Any,
        progress: Callable[[int], None],
    ) -> None:
        self._scenario, self._resources, self._clock, self._plan = scenario, resources, clock, plan
        self._env = clock.env
        workload, world_size = scenario.workload, scenario.world_size
        self.loaders = loaders
        self.inference = inference_loaders(scenario, resources, clock, plan)
        self._inference = inference_seconds(scenario, plan)
        self._gather_seconds = gather_seconds(scenario, resources)
        self._gathering = Meeting(self._env, world_size, self._gather)
        self._measured = np.zeros((1, world_size, 2))
        exchanges = workload.exchange.carried_out is not None and len(plan.exchange.iteration) > 0
        self.exchange = Exchange(scenario, resources, clock, plan, nbytes) if exchanges else None
        times = workload.model.accelerators[scenario.cluster.host.accelerator]
        jitter = lognormal_factor(
            scenario.rng("compute_jitter", plan.epoch),
            workload.jitter.compute,
            plan.training.samples.shape,
        )
        self._forward = (plan.training.samples * times.forward * jitter).T.tolist()
        self._backward = (plan.training.samples * times.backward * jitter).T.tolist()
        self._update = times.update
        self._flows = self._allreduce_batch()
        self._gradients = Meeting(self._env, world_size, self._allreduce)
        self._finish = Meeting(self._env, world_size, _succeed)
        self._progress = progress
        self._iterations_done = 0
        shape = (plan.iterations, world_size)
        # of every rank, its iterations one after the other
        self._bounds = [array("d") for _ in range(world_size)]
        self._final = np.zeros((1, world_size, len(FINAL) + 1))
        self._sent_until = np.zeros(shape)
        self._awaited_from = np.zeros(shape)
        self._delivered = np.zeros(shape)
        self._reduced_at = 0.0

    def run(self) -> Steps:
        """The epoch as a process: starts all ranks and ends when the last one does."""
        yield self._env.all_of(
            [self._env.process(self._rank(rank)) for rank in range(self._scenario.world_size)]
        )

    def record(self) -> EpochRecord:
        """The rows of the epoch, when it is over."""
        plan = self._plan
        ranks = np.stack([np.frombuffer(times) for times in self._bounds])
        bounds = ranks.reshape(len(ranks), plan.iterations, -1).swapaxes(0, 1)
        nbytes = np.zeros((*bounds.shape[:2], len(PHASES)))
        nbytes[..., 0] = plan.training.nbytes
        nbytes[..., 7] = (
            self._scenario.workload.model.gradient_size if self._scenario.world_size > 1 else 0.0
        )
        if self.exchange:
            nbytes[..., 9] = self.exchange.sent
        looked_at = (
            np.zeros((1, len(ranks), 1))
            if plan.inference is None
            else plan.inference.nbytes.sum(axis=0)[None, :, None]
        )
        rows = [
            phase_rows(plan.epoch, ["importance"], self._measured, looked_at, final=True),
            phase_rows(plan.epoch, PHASES, bounds, nbytes),
            phase_rows(
                plan.epoch,
                FINAL,
                self._final,
                np.zeros((1, self._scenario.world_size, len(FINAL))),
                final=True,
            ),
        ]
        if self.exchange:
            until = np.minimum(self._delivered, self._awaited_from)
            hidden = np.stack([self._sent_until, np.maximum(until, self._sent_until)], axis=-1)
            rows.append(
                phase_rows(
                    plan.epoch, ["exchange_hidden"], hidden, np.zeros((*hidden.shape[:2], 1))
                )
            )
        return EpochRecord(rows, float(self._final[0, :, -1].max()))

    # ------------------------------------------------------------------------------------- one rank

    def _rank(self, rank: int) -> Steps:
        env, exchange, loaders = self._env, self.exchange, self.loaders
        yield from self._measure_importance(rank)
        loaders.begin(rank)
        pending = -1  # iteration whose messages have not been waited for
        for iteration in range(self._plan.iterations):
            begin = env.now
            awaited = loaders.awaited(rank)
            if awaited is not None:
                yield awaited
            read_at = loaders.take(rank)
            loaded = env.now
            forward = self._forward[rank][iteration]
            yield env.timeout(forward + self._backward[rank][iteration])
            computed = env.now
            bounds = [
                begin,
                min(max(read_at, begin), loaded),
                loaded,
                min(loaded + forward, computed),
                computed,
            ]
            if exchange is not None and pending >= 0:
                yield from self._synchronise(exchange, rank, pending, bounds)
                pending = -1
            else:
                bounds += [computed, computed]
            yield self._gradients.arrive()
            bounds += [self._gradients.complete_at, self._reduced_at, env.now]
            if exchange is not None and exchange.sends(iteration):
                yield from self._communicate(exchange, rank, iteration, bounds)
                pending = iteration
                if not exchange.overlap:
                    yield from self._synchronise(exchange, rank, pending, bounds)
                    self._merge(bounds)
                    pending = -1
            else:
                bounds += [env.now, env.now]
            self._bounds[rank].extend(bounds)
            self._count(rank)
        yield from self._wind_up(rank, pending)

    def _measure_importance(self, rank: int) -> Steps:
        """The inference pass over the rank's shard, if importance is measured; the exchange of what
        pairing needs to know."""
        env, loaders = self._env, self.inference
        self._measured[0, rank] = env.now
        if loaders is not None:
            loaders.begin(rank)
            for seconds in self._inference[rank]:
                awaited = loaders.awaited(rank)
                if awaited is not None:
                    yield awaited
                loaders.take(rank)
                yield env.timeout(seconds)
        if self._gather_seconds is not None:
            yield self._gathering.arrive()
        self._measured[0, rank, 1] = env.now

    def _gather(self, event: simpy.Event) -> None:
        succeed_after(self._env, self._gather_seconds or 0.0, event)

    def _count(self, rank: int) -> None:
        if rank == 0:
            self._iterations_done += 1
            self._progress(self._iterations_done)

    def _communicate(
        self, exchange: Exchange, rank: int, iteration: int, bounds: list[float]
    ) -> Steps:
        """Host work and barriers of sending; the work is noted before the waiting, whatever their
        order was."""
        begin = self._env.now
        before = float(self._clock.network.accounts[rank])
        group = exchange.start(rank, iteration)
        free = self._clock.completion(group)
        if free is not None:
            yield free
        self._clock.close(group)
        worked = float(self._clock.network.accounts[rank]) - before
        now = self._env.now
        bounds += [min(begin + worked, now), now]
        self._sent_until[iteration, rank] = now

    def _synchronise(
        self, exchange: Exchange, rank: int, iteration: int, bounds: list[float]
    ) -> Steps:
        """Wait for the own messages, store what came, then meet the others."""
        self._awaited_from[iteration, rank] = self._env.now
        # a rank that neither sends nor receives has nothing in flight
        delivered = self._sent_until[iteration, rank]
        group = exchange.delivery(rank)
        if group >= 0:
            event = self._clock.completion(group)
            if event is not None:
                yield event
            _, delivered = self._clock.close(group)
        self._delivered[iteration, rank] = delivered
        stored, closed = exchange.store(rank, iteration)
        if closed is not None:
            yield closed
        else:
            written = self._clock.completion(stored)
            if written is not None:
                yield written
        _, written_at = self._clock.close(stored)
        bounds += [min(written_at, self._env.now), self._env.now]

    @staticmethod
    def _merge(bounds: list[float]) -> None:
        """Without overlap the two exchanges of an iteration are one: work, then waiting."""
        worked = bounds[-4] - bounds[-5] + bounds[-2] - bounds[-3]
        start, end = bounds[-5], bounds[-1]
        del bounds[-4:]
        bounds += [min(start + worked, end), end]

    def _wind_up(self, rank: int, pending: int) -> Steps:
        """After the last iteration: its messages, the removal of what was sent, and the end of the
        epoch, which all reach together."""
        bounds = [self._env.now]
        if self.exchange is not None:
            if pending >= 0:
                yield from self._synchronise(self.exchange, rank, pending, bounds)
            else:
                bounds += [self._env.now, self._env.now]
            yield self._env.timeout(float(self.exchange.remove_seconds[rank]))
        else:
            bounds += [self._env.now, self._env.now]
        bounds.append(self._env.now)
        yield self._finish.arrive()
        bounds.append(self._env.now)
        self._final[0, rank] = bounds

    # ------------------------------------------------------------------------------------ transfers

    def _allreduce_batch(self) -> TransferBatch | None:
        workload, resources = self._scenario.workload, self._resources
        flows = workload.allreduce.flows(resources.host_of, workload.model.gradient_size)
        if flows is None:
            return None
        batch = tasks(
            len(flows.src),
            work=flows.nbytes,
            nbytes=flows.nbytes,
            cap=flows.cap,
            delay=flows.latency,
        )
        return TransferBatch(batch, resources.gradient(flows.src, flows.dst, flows.rail))

    def _allreduce(self, event: simpy.Event) -> None:
        """The last rank has its gradients: post its flows. All ranks go on when the slowest has
        ended and weights are updated."""
        if self._flows is None:
            self._reduced(event)
            return
        group = self._clock.open(len(self._flows))
        self._flows.tasks["group"] = group
        self._clock.post(self._flows)
        done = self._clock.completion(group)
        if done is None:
            raise AssertionError("flows that were just posted have not ended")

        def finish(_: simpy.Event) -> None:
            self._clock.close(group)
            self._reduced(event)

        done.callbacks.append(finish)

    def _reduced(self, event: simpy.Event) -> None:
        self._reduced_at = self._env.now
        succeed_after(self._env, self._update, event)


def _succeed(event: simpy.Event) -> None:
    event.succeed()
