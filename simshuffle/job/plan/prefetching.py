"""The seconds that loops wait for loaders that hand out batches in order: the law, and
the demand of a scenario on its loader. Laws and sources: docs/model-input.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.holding import count_fetches
from simshuffle.job.plan.reading_bounds import (
    LOADERS,
    MOST_EPOCHS,
    ReadingBounds,
    reads_elsewhere,
    worker_seconds,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats
from simshuffle.workload.exchange.loader_shuffle import MAX_CHECKED_SAMPLES


class LoopMoments(NamedTuple):
    """The moments of B batches in the loops of M ranks, in s from the request for the
    first batch; (B, ..., M) unless another shape is given.
    """

    batch_made: Floats  # when a worker has made the batch
    batch_taken: Floats  # when the rank has the batch in hand
    step_ended: Floats  # (B, ...) when the last rank has ended its step with the batch


def play_loops(
    load: Floats,
    step: Floats,
    workers: int,
    prefetch: int,
    *,
    begin: Floats | float = 0.0,
    sending: Floats | float = 0.0,
    handover: Floats | float = 0.0,
) -> LoopMoments:
    """Play the loops of ranks and their workers, batch by batch.

    Worker w makes the batches w, w + W, ... of its rank, and a rank requests up to K
    batches ahead:

        start(b) = max(end(b - W), taken(b - K)),   end(b) = start(b) + load(b)
        sent(b)  = max(end(b), sent(b - W)) + sending(b)
        taken(b) = max(sent(b), over(b - 1)) + handover(b)
        over(b)  = taken(b) + step(b), of the rank that is last

    For batches that are all alike a step takes max(step, load / min(W, K)) in the mean.
    Without workers start(b) = over(b - 1), and it takes step + load.

    Args:
        load: (B, ..., M) s that a worker takes for each batch of every rank.
        step: as ``load``: s from a batch that is taken until the next is wanted; ranks
            meet then.
        workers: W, of a rank; 0 for the rank itself: ``prefetch`` and ``begin`` then
            do not count.
        prefetch: K, batches that a rank has asked for ahead; at least 1 with workers.
        begin: (W, ..., M), or one for all: s at which each worker is there.
        sending: as ``load``, or one for all: s in which a batch that is made is sent,
            beside the next one's making.
        handover: as ``load``, or one for all: s that a rank takes to have in hand what
            was sent.
    """
    sendings, handovers = (
        np.broadcast_to(seconds, load.shape) for seconds in (sending, handover)
    )
    sends = bool(sendings.any())
    hands = bool(handovers.any())
    # moments (s): the first axis is the batch, the last one the rank
    end, sent, taken = np.empty((3, *load.shape))
    step_end = np.empty(load.shape[:-1])
    previous_end = np.zeros(load.shape[1:-1])
    worker_begin = np.broadcast_to(begin, (max(workers, 1), *load.shape[1:]))
    for batch, batch_load in enumerate(load):
        if not workers:
            start = previous_end[..., None]
        else:
            start = end[batch - workers] if batch >= workers else worker_begin[batch]
            if batch >= prefetch:
                start = np.maximum(start, taken[batch - prefetch])
        ready = end[batch] = start + batch_load
        if sends:
            if workers and batch >= workers:
                ready = np.maximum(ready, sent[batch - workers])
            ready = sent[batch] = ready + sendings[batch]
        ready = np.maximum(ready, previous_end[..., None])
        taken[batch] = ready + handovers[batch] if hands else ready
        previous_end = step_end[batch] = (taken[batch] + step[batch]).max(axis=-1)
    return LoopMoments(end, taken, step_end)


def wait_seconds(load: Floats, step: float, workers: int, prefetch: int) -> Floats:
    """Return the seconds that the loops of all ranks wait before each of their batches,
    (B,): until the last rank has its batch. The first is the time to the first batch.

    Arguments as of `play_loops`, ``load`` of (B, M), one step for all.
    """
    _, taken, step_ended = play_loops(
        load, np.full(load.shape, step), workers, prefetch
    )
    waited: Floats = taken.max(axis=-1) - np.concatenate([[0.0], step_ended[:-1]])
    return waited


@dataclass(frozen=True)
class LoaderDemand:
    """The step time of a scenario, and the seconds that its loader and its resources
    need for a batch.
    """

    step: float  # s of an iteration that never waits for data
    # s of a worker alone: reading each batch, (B, M) under a loader's order and else (1, 1);
    # decoding and copying a mean one
    read: Floats
    decode: float
    copy: float
    # s of each resource for a mean batch of all ranks, by its name; without loader workers
    shared: dict[str, float]
    at_once: int  # batches that a rank loads at once
    threads: int  # of a worker

    @property
    def binding(self) -> tuple[str, float]:
        """The shared resource that takes longest for a batch, and s."""
        name = max(self.shared, key=lambda name: self.shared[name])
        return name, self.shared[name]

    def load(
        self, reading: Floats | float = 1.0, decoding: Floats | float = 1.0
    ) -> Floats:
        """Return the seconds of a worker for each batch, shaped as ``read``, with
        factors on reading and decoding, of shapes that broadcast with it.

        Where a shared resource binds, workers at work at once take as long as it needs
        for all of them, in the mean. Below that, nobody waits for it.
        """
        decode = self.decode * np.asarray(decoding)
        load = worker_seconds(self.read * reading, decode, self.copy, self.threads)
        slowest = self.binding[1]
        if slowest <= max(self.step, self.isolated_seconds / self.at_once):
            return load
        return load * (slowest * self.at_once / self.isolated_seconds)

    @property
    def isolated_seconds(self) -> float:
        """Seconds of a worker alone for a mean batch: reading, decoding and copying."""
        read = float(self.read.mean())
        return float(worker_seconds(read, self.decode, self.copy, self.threads))


def loader_demand(scenario: Scenario) -> LoaderDemand:
    """Return the demand of a scenario on its loader in the last epoch; under a loader's
    order in the second, or the first if there is no other.

    A batch that is larger than a shard counts as the shard.

    Raises:
        InputError: a loader's order of too many samples to count.
    """
    workload = scenario.workload
    reading = ReadingBounds(scenario)
    epoch_bounds = bounds(scenario)
    batch = workload.local_batch_size
    samples = min(float(batch), workload.dataset.num_samples / scenario.world_size)
    if workload.exchange.fetches:
        if workload.dataset.num_samples > MAX_CHECKED_SAMPLES:
            rule = (
                f"must be at most {MAX_CHECKED_SAMPLES} to count what the order fetches"
            )
            num_samples = str(workload.dataset.num_samples)
            problem = Problem(
                "workload.dataset.num_samples", rule, num_samples, "Use fewer samples."
            )
            raise InputError(problem, scenario.name)
        *_, reads = count_fetches(scenario, min(scenario.epochs, 2))
        fetches = reads.fetches
        count = len(reads.fetches.requests)
        read = reading.piece_seconds(
            fetches.requests, fetches.nbytes
        ) + reading.hit_seconds(reads)
        epoch_seconds = reading.fetch_seconds(reads, count)
        shared = {name: seconds / count for name, seconds in epoch_seconds.items()}
    else:
        shares = reads_elsewhere(scenario, min(scenario.epochs, MOST_EPOCHS))
        read = np.full((1, 1), reading.read_seconds(samples, *shares))
        shared = reading.seconds(samples, *shares)
    return LoaderDemand(
        step=epoch_bounds.steps / epoch_bounds.iterations,
        read=read,
        decode=reading.decode_seconds(samples),
        copy=reading.copy_seconds(samples),
        shared={name: seconds for name, seconds in shared.items() if name != LOADERS},
        at_once=workload.loader.at_once,
        threads=workload.loader.threads,
    )
