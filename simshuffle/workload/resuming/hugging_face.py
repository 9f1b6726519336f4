"""Hugging Face's datasets, which save how far shards are read, and not the buffer's
samples.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.orders.buffers import HuggingFace
from simshuffle.workload.orders.fetching import iteration_of_rows
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import order_from_streams
from simshuffle.workload.resuming.hugging_face_worker import (
    FailsError,
    StatefulWorker,
    WorkerState,
)
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    OrderResumptionLaw,
    Refusal,
    ResumedEpoch,
    batches_from_order,
    refuse_other_workers,
)


class HuggingFaceState(OrderResumptionLaw):
    """`datasets` 5.2.0 (iterable_dataset.py): `IterableDataset.state_dict` and
    `load_state_dict`, through torchdata 0.11.0's `StatefulDataLoader` or without it.

    The state says how far each run of shards was read into the buffer
    (`ExamplesIterable`, `CyclingMultiSourcesExamplesIterable`), and not what the buffer
    holds (`BufferShuffledExamplesIterable`): that is lost, and the buffer is filled
    again from there, with a generator that begins anew. Of tables (`formatted`) the
    state is that before the last time that the buffer handed out, and how many samples
    it handed out then (`RebatchedArrowExamplesIterable`): as many of the new ones are
    thrown away, which are others.

    A state is loaded by number of run, shard and sample, whoever reads them now. It
    fails if runs are fewer in it (IndexError), and if ranks shared shards before and do
    not now, or the other way round (KeyError). A worker loads the state of its own runs
    into those of its whole rank first (`_iter_pytorch`), so it fails wherever it has
    fewer runs than the rank would have.

    Attributes:
        kind: its name.
        of: the order of the loader.
        through: what saves: StatefulDataLoader, which is stopped by another number of
            workers; the set itself, which with workers saves that nothing was read, and
            whose state every worker loads; or torchtitan 0.3.0's
            `ParallelAwareDataloader` (components/dataloader.py), which is stopped by
            another number of ranks, too.
        states: whether each rank loads its own state, and those that had none begin the
            epoch; or all load that of the first.
        set_epoch: whether epochs are set. If not, all are alike, and a set that has
            loaded a state begins every later epoch where it says, too.
    """

    kind: Literal["hugging_face"]
    library: ClassVar[str] = "datasets 5.2.0, torchdata 0.11.0"
    saves: ClassVar[str] = "how far shards are read, not what is in the buffer"
    of: HuggingFace
    through: Literal["stateful_dataloader", "dataset", "torchtitan"] = (
        "stateful_dataloader"
    )
    states: Literal["own", "first"] = "own"
    set_epoch: bool = True

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> Batches:
        """Return the batches of an epoch that is not broken off; epoch 0 if epochs are
        not set.
        """
        return super().epoch(data, readers, seed, epoch if self.set_epoch else 0)

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch after the state, or the library's error.

        Ranks without a state begin the epoch. Nothing counts as skipped.

        Raises:
            InputError: if the order cannot deal with those who read before or now.
        """
        self.epoch(data, crash.readers_after, seed, crash.epoch)  # may be refused
        refusal = self._refuse_readers(crash.readers_before, crash.readers_after)
        if refusal is not None:
            return refusal
        try:
            return ResumedEpoch(self._remaining_batches(data, crash, seed))
        except FailsError as error:
            return Refusal(str(error), "the state is of other runs of shards")

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return an epoch after the one that broke off: whole, or from the state on.

        The epoch begins where the state says if epochs are not set and the set that
        loaded the state is used again: through 'dataset', or by one worker a rank.
        Then, the state must be one that `resume` does not refuse.
        """
        if self.set_epoch or (
            self.through != "dataset" and crash.readers_after.workers > 1
        ):
            return self.epoch(data, crash.readers_after, seed, epoch)
        return self._remaining_batches(data, crash, seed)

    def _refuse_readers(
        self, readers_before: Readers, readers_after: Readers
    ) -> Refusal | None:
        """Return the error for another number of workers, or with 'torchtitan' of
        ranks; None if there is none.

        Through 'dataset' there is none.
        """
        if (
            self.through == "torchtitan"
            and readers_before.world_size != readers_after.world_size
        ):
            return Refusal(
                "AssertionError: dp_degree is inconsistent before and after checkpoint"
            )
        if self.through == "dataset":
            return None
        return refuse_other_workers(readers_before, readers_after)

    def _remaining_batches(self, data: ShardedSet, crash: Crash, seed: int) -> Batches:
        """Return the batches that follow the state, with steps from 0.

        In a rank that loads a state, the worker whose turn it was comes first.

        Raises:
            FailsError: if the library fails with a state.
        """
        epoch = crash.epoch if self.set_epoch else 0
        readers_after = crash.readers_after
        order = self.of.epoch(data, crash.readers_before, seed, epoch)
        streams = []
        for rank in range(readers_after.world_size):
            state_rank = 0 if self.states == "first" else rank
            states: list[WorkerState | None] = [None] * readers_after.workers
            first_worker = 0
            if state_rank < crash.readers_before.world_size:
                states, first_worker = self._load_states(
                    data, crash, order, seed=seed, epoch=epoch, rank=state_rank
                )
            for turn in range(readers_after.workers):
                index = (first_worker + turn) % readers_after.workers
                worker = StatefulWorker(
                    self.of,
                    data,
                    readers_after,
                    seed=seed,
                    epoch=epoch,
                    rank=rank,
                    index=index,
                )
                streams.append((rank, turn, worker.remaining_samples(states[index])))
        return batches_from_order(order_from_streams(streams), readers_after)

    def _load_states(
        self,
        data: ShardedSet,
        crash: Crash,
        order: EpochOrder,
        *,
        seed: int,
        epoch: int,
        rank: int,
    ) -> tuple[list[WorkerState | None], int]:
        """Return the states that the workers of a rank load, from the states that one
        rank saved.

        Args:
            data: the set in shards.
            crash: the point at which training broke off.
            order: of the epoch, by those who read before.
            seed: of the run.
            epoch: from 0.
            rank: whose state is loaded.

        Returns:
            The state of each worker, or None for one that begins the epoch; and the
            worker whose turn it is. Through 'dataset' all workers load the state of
            worker 0, whose turn it is.
        """
        readers_before = crash.readers_before
        is_rank = order.rank == rank
        iteration = iteration_of_rows(order, readers_before)[is_rank]
        worker_of_row = order.worker[is_rank]
        # iterations in which this rank has a batch; empty turns of workers are none
        iterations_done = np.unique(iteration)[: crash.step]
        last_iteration = int(iterations_done[-1]) if len(iterations_done) else -1
        states: list[WorkerState | None] = []
        for index in range(readers_before.workers):
            worker = StatefulWorker(
                self.of,
                data,
                readers_before,
                seed=seed,
                epoch=epoch,
                rank=rank,
                index=index,
            )
            is_worker = worker_of_row == index
            num_samples = int(is_worker.sum())
            num_out = int((is_worker & (iteration <= last_iteration)).sum())
            if num_out == 0 or (
                self.through == "dataset" and readers_before.workers > 1
            ):
                # the state with which a worker is made is of epoch 0: later epochs ignore it
                states.append(worker.initial_state() if epoch == 0 else None)
                continue
            num_batches = -(-num_samples // readers_before.batch_size)
            next_turn = num_batches * readers_before.workers + index
            has_partial_batch = bool(num_samples % readers_before.batch_size)
            knows_end = num_out == num_samples and (
                has_partial_batch or next_turn < last_iteration
            )
            states.append(worker.state_after(num_out, knows_end=knows_end))
        if self.through == "dataset":
            return states[:1] * crash.readers_after.workers, 0
        return states, (last_iteration + 1) % readers_before.workers
