"""Make the program of one iteration's exchange: plain arrays of what every rank does.

Formats that describe messages are written from it. The code that the simulator runs
makes it: the plan of the epoch, its costs, its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.lowering.messages import RankMessages, exchange_costs, messages_of
from simshuffle.job.lowering.reads import compute_factor
from simshuffle.job.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32

Tell = Callable[[float], None]
"""Receives the share of an export that is done, from 0 to 1."""


@dataclass(frozen=True)
class ProgramStep:
    """A step of the exchange, in which every rank sends at most one message.

    A rank ends a step when its work has ended; it does not wait for the message.
    """

    # (M,) rank that the message goes to; its own if the rank keeps its samples and sends nothing.
    # Every rank stands in it once: a rank that sends nothing receives nothing.
    target: Ints
    nbytes: Floats  # (M,) bytes on the wire; 0 where nothing is sent
    # (M,) s and bytes that the sender reads from its device before it sends, which take what they
    # take alone: in the simulator they share the host's devices
    read_s: Floats
    read_nbytes: Floats
    work_s: (
        Floats  # (M,) s that it then works on the samples, and takes them from memory
    )
    # (M,) s between the end of that and the first byte on the route: of the cables and of message
    # passing; 0 where nothing is sent
    latency_s: Floats
    # (M, width) int32, the links that the bytes cross, as numbers in `Resources.links`, -1 at the
    # end and where nothing is sent. Routes that a routing chooses by what it carried before are as
    # if nothing had been.
    route: Ints32

    @property
    def before_s(self) -> Floats:
        """(M,) s that the sender reads and works before it sends."""
        return self.read_s + self.work_s

    @property
    def sends(self) -> Flags:
        """(M,) whether each rank sends a message to another."""
        return np.asarray(self.target != np.arange(len(self.target)))

    @cached_property
    def source(self) -> Ints:
        """(M,) rank that each rank receives from; the rank itself if it receives
        nothing.
        """
        source = np.empty_like(self.target)
        source[self.target] = np.arange(len(source))
        return source


@dataclass(frozen=True)
class Gradients:
    """The forward and backward passes, sum of gradients and update around the exchange."""

    nbytes: float  # bytes of gradients that each rank sums; 0 for one rank
    algorithm: str  # kind of the allreduce: 'ring', ...
    forward_s: Floats  # (M,) s of the forward pass in this iteration, with its jitter
    backward_s: Floats  # (M,) s of the backward pass in this iteration, with its jitter
    update_s: float  # s of the optimiser, of every rank


@dataclass(frozen=True)
class Program:
    """The exchange of one iteration.

    In each step a rank meets the others if there is a barrier, works, and sends. When
    all messages that it sends and receives have arrived, it stores what came, and meets
    the others again if there is a barrier.
    """

    name: str  # label of the scenario
    epoch: int  # number of the epoch, from 1
    iteration: int  # number of the iteration, from 1
    world_size: int  # M
    resources: (
        Resources  # hosts of the ranks, and the links that `ProgramStep.route` crosses
    )
    steps: list[ProgramStep]  # what each rank sends, in order, at least one
    # 'message': all ranks meet before the work of every step and after storing; 'iteration': before
    # that of the first and after storing; 'none'
    barriers: Literal["message", "iteration", "none"]
    barrier_s: float  # s that a barrier takes when the last rank has come to it
    unpack_s: Floats  # (M,) s of each rank after the receipt: re-encodes what came
    # (M,) s and bytes that it then writes, alone on its device; in memory these are no bytes
    write_s: Floats
    write_nbytes: Floats
    # whether the messages are waited for only after the next iteration's backward pass, and then
    # stored; else at once
    overlap: bool
    serial_pairs: (
        bool  # whether the messages of an ordered pair of ranks go one after the other
    )
    # s of a message in the software of message passing, which `ProgramStep.latency_s` has in it
    latency_s: float
    stream_bandwidth: float  # bytes/s of a message at most; inf for no limit of its own
    gradients: Gradients  # what is computed and summed before the exchange

    @property
    def store_s(self) -> Floats:
        """(M,) s of each rank after the receipt: re-encoding and writing."""
        return self.unpack_s + self.write_s

    @property
    def barrier_before(self) -> list[bool]:
        """(steps,) True where all ranks meet before the step."""
        num_barriers = {"message": len(self.steps), "iteration": 1, "none": 0}[
            self.barriers
        ]
        return [index < num_barriers for index in range(len(self.steps))]

    @property
    def barrier_after(self) -> bool:
        """True if all ranks meet after they have stored what came."""
        return self.barriers != "none"


def make_program(
    scenario: Scenario, epoch: int, iteration: int | None = None
) -> Program:
    """Return the exchange after an iteration of an epoch.

    Args:
        scenario: the scenario, without a sweep.
        epoch: number of the epoch, from 1; at most those of the scenario.
        iteration: number of the iteration, from 1; None for the first after which
            anything is sent.

    Raises:
        InputError: the strategy exchanges nothing, nothing is sent after this
            iteration, or the parallelism is not data.
        StopIteration: the scenario has fewer epochs.
    """
    workload = scenario.workload
    cluster = scenario.cluster
    if (parallelism := workload.parallelism.kind) != "data":
        rule = "must be data to export the messages of an iteration"
        remedy = "Set workload.parallelism=data, or choose --to perfetto."
        raise InputError(Problem("workload.parallelism", rule, parallelism, remedy))
    exchange_kind = workload.exchange.kind
    schedule = workload.exchange.exchange_schedule
    if schedule is None:
        rule = f"{exchange_kind} exchanges nothing, so there are no messages to write"
        remedy = "Use for example partial_local_shuffle:exchange_fraction=0.1."
        refuse("workload.exchange", rule, exchange_kind, remedy, scenario.name)
    nbytes = sample_nbytes(scenario)
    plan = next(islice(plan_epochs(scenario, nbytes), epoch - 1, None))
    costs = exchange_costs(
        plan.exchange,
        schedule,
        workload.dataset,
        nbytes=nbytes,
        cached=plan.sent_from_cache,
        iterations=plan.iterations,
    )
    iteration = _choose_iteration(scenario, plan, iteration)
    resources = Resources(cluster, scenario.world_size, scenario.rng("placement"))
    messages = messages_of(
        costs, iteration - 1, resources, workload.loader.reads_in_flight
    )
    received_nbytes = costs.received[iteration - 1]
    in_memory = workload.source == "memory"
    if in_memory:
        write_s = received_nbytes / cluster.memory.bandwidth
    else:
        write_s = cluster.ssd.write_seconds(received_nbytes)
    return Program(
        name=scenario.label(),
        epoch=epoch,
        iteration=iteration,
        world_size=scenario.world_size,
        resources=resources,
        steps=[_make_step(message, resources) for message in messages],
        barriers=schedule.barriers,
        barrier_s=barrier_seconds(cluster, resources.world_size),
        unpack_s=costs.received_work[iteration - 1],
        write_s=write_s,
        write_nbytes=np.zeros_like(received_nbytes) if in_memory else received_nbytes,
        overlap=schedule.overlap,
        serial_pairs=scenario.network.serial_pairs,
        latency_s=cluster.message_passing.latency,
        stream_bandwidth=cluster.message_passing.stream_bandwidth or np.inf,
        gradients=_make_gradients(scenario, plan, iteration - 1),
    )


def _choose_iteration(
    scenario: Scenario, plan: EpochPlan, iteration: int | None
) -> int:
    """Return an iteration, from 1, after which samples leave their rank.

    Args:
        scenario: the scenario.
        plan: the plan of the epoch.
        iteration: the requested iteration; None for the first possible one.

    Raises:
        InputError: there is no such iteration in the epoch, or no samples leave their
            rank after the requested one.
    """
    sending_iterations = (
        np.unique(plan.exchange.iteration[plan.exchange.moving.any(axis=1)]) + 1
    )
    if not len(sending_iterations):
        rule = f"nothing is sent in epoch {plan.epoch}"
        remedy = "Exchange a larger fraction, or use more ranks or samples."
        refuse("workload.exchange", rule, scenario.label(), remedy, scenario.name)
    if iteration is None:
        return int(sending_iterations[0])
    if iteration not in sending_iterations:
        nearest = sending_iterations[np.abs(sending_iterations - iteration).argmin()]
        share = f"{len(sending_iterations)} of {plan.iterations}"
        rule = f"must be an iteration that sends samples; {share} iterations send"
        remedy = f"The nearest such iteration is {nearest}."
        raise InputError(Problem("--iteration", rule, str(iteration), remedy))
    return iteration


def _make_step(message: RankMessages, resources: Resources) -> ProgramStep:
    """Return the step in which every rank sends its part of a message; reads take what
    they take alone, files outside the cache with the latency of the SSD.
    """
    cluster = resources.cluster
    ranks = np.arange(resources.world_size)
    sends = message.target != ranks
    route, latency = resources.message(ranks, message.target)
    route[~sends] = -1
    return ProgramStep(
        target=message.target,
        nbytes=np.where(sends, message.nbytes, 0.0),
        read_s=message.read + message.missed_files * cluster.ssd.latency,
        read_nbytes=message.missed_nbytes,
        work_s=message.cached_nbytes / cluster.memory.bandwidth + message.work,
        latency_s=np.where(sends, latency + cluster.message_passing.latency, 0.0),
        route=route,
    )


def _make_gradients(scenario: Scenario, plan: EpochPlan, iteration: int) -> Gradients:
    """Return the computing around the exchange, with the jitter of the epoch.

    Args:
        scenario: the scenario.
        plan: the plan of the epoch.
        iteration: index of the iteration, from 0.
    """
    workload = scenario.workload
    step_times = workload.model.accelerators[scenario.cluster.host.accelerator]
    samples_per_batch = plan.training.samples
    rng = scenario.rng("compute_jitter", plan.epoch)
    jitter = compute_factor(rng, workload.jitter.compute, plan.training, step_times)
    return Gradients(
        nbytes=workload.model.gradient_size if scenario.world_size > 1 else 0.0,
        algorithm=workload.allreduce.kind,
        forward_s=(step_times.forward_of(samples_per_batch) * jitter)[iteration],
        backward_s=(step_times.backward_of(samples_per_batch) * jitter)[iteration],
        update_s=step_times.update,
    )
