"""Megatron-Energon, whose workers each save how far they have read their own part of
the set.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise, starmap, zip_longest
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.samplers import torch_permutation
from simshuffle.workload.orders.streams import check_inputs, order_from_streams
from simshuffle.workload.resuming.law import (
    OTHER_WORKERS,
    Batches,
    Crash,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
    batches_from_order,
)

Slices = list[int]
"""The runs of samples of a worker: the first sample of each run, ascending, and the end
of the last run; one number more than runs.
"""


class EnergonOrder(Order):
    """Energon's order of a WebDataset that is not repeated, bit by bit.

    Samples are cut into parts of equal size, one for each worker of each rank, whatever
    the shards; a part into runs at the ends of shards, and into ones of about
    ``max_samples_per_sequence``. A worker permutes its runs in each epoch, opens some,
    and takes the next sample of one of them, drawn by their sizes. Then comes a shuffle
    buffer. Worker g of all is seeded with g and the seed of the run, and draws on from
    epoch to epoch.

    Attributes:
        kind: its name.
        max_samples_per_sequence: samples of a run; None for what the shards have.
        parallel_shard_iters: runs that are open at once.
        shuffle_buffer_size: samples of the buffer; None for none.
    """

    kind: Literal["energon"] = "energon"
    unit: ClassVar[Unit] = "sample"
    max_samples_per_sequence: int | None = Field(default=None, ge=1)
    parallel_shard_iters: int = Field(default=16, ge=1)
    shuffle_buffer_size: int | None = Field(default=None, ge=1)

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0, after drawing all epochs before it.

        Raises:
            InputError: for fewer samples than workers, of which some then have none; for
                no samples or readers, or a negative seed.
        """
        check_inputs(data, readers, seed, 0, 2**63)
        num_workers = readers.world_size * readers.workers
        if data.size < num_workers:
            rule = f"must hold a sample for each of {num_workers} workers"
            refuse(
                "data.samples", rule, f"{data.size} samples", "Read with fewer", "order"
            )

        def read(worker: EnergonWorker) -> Ints64:
            """Return the samples of a worker in the epoch; the worker moves on."""
            return [worker.read_epoch() for _ in range(epoch + 1)][-1]

        return order_from_workers(map(read, self.workers(data, readers, seed)), readers)

    def workers(
        self, data: ShardedSet, readers: Readers, seed: int
    ) -> Iterator[EnergonWorker]:
        """Yield all workers, rank by rank, as they are before the first epoch."""
        for index, slices in enumerate(self.slices(data, readers)):
            # a worker's index and the seed; both generators of a worker are seeded alike
            digest = hashlib.sha1(
                f"{index},{seed}".encode(), usedforsecurity=False
            ).digest()
            twister = np.random.RandomState(int.from_bytes(digest, "big") & 0xFFFFFFFF)
            yield EnergonWorker(
                slices=slices,
                num_open=self.parallel_shard_iters,
                buffer_size=self.shuffle_buffer_size or 1,
                twister=twister,
                buffer_twister=copy.deepcopy(twister),
            )

    def slices(self, data: ShardedSet, readers: Readers) -> Iterator[Slices]:
        """Yield the runs of each worker, rank by rank (`Sharder`)."""
        num_workers = readers.world_size * readers.workers
        min_size, num_larger = divmod(data.size, num_workers)
        sizes = np.full(num_workers, min_size)
        sizes[_interleave_halves(list(range(num_workers)))[:num_larger]] += 1
        # worker g has the samples from ends[g] to ends[g + 1]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        for begin, end in pairwise(ends.tolist()):
            shard_ends = data.begin[(data.begin > begin) & (data.begin < end)].tolist()
            cuts = [self._cut_run(*run) for run in pairwise([begin, *shard_ends, end])]
            yield [*(cut for run_cuts in cuts for cut in run_cuts), end]

    def _cut_run(self, begin: int, end: int) -> list[int]:
        """Return where the runs begin into which a run of samples is cut.

        A run of up to 1.5 times ``max_samples_per_sequence`` stays whole. ``end`` is
        not among the numbers.
        """
        max_size = self.max_samples_per_sequence
        size = end - begin
        if max_size is None or size <= max_size * 1.5:
            return [begin]
        num_runs = max(round(size / max_size), 1)
        return [begin + int(index * (size / num_runs)) for index in range(num_runs)]


def _interleave_halves(workers: list[int]) -> list[int]:
    """Return the order in which workers get a sample more: from each half in turn.

    Each half is put in order in the same way first. ``workers`` are indices.
    """
    if len(workers) <= 2:
        return workers
    middle = len(workers) // 2
    lower = _interleave_halves(workers[:middle])
    upper = _interleave_halves(workers[middle:])
    pairs = zip_longest(lower, upper)
    return [worker for pair in pairs for worker in pair if worker is not None]


def order_from_workers(
    samples_of_workers: Iterator[Ints64], readers: Readers
) -> EpochOrder:
    """Return the order of an epoch, from the samples (n,) of each worker of all ranks,
    rank by rank.
    """
    return order_from_streams(
        (*divmod(index, readers.workers), samples)
        for index, samples in enumerate(samples_of_workers)
    )


@dataclass
class EnergonWorker:
    """The position of a worker (`WebdatasetSampleLoaderDataset` and
    `ShuffleBufferDataset`).
    """

    slices: Slices  # its runs
    num_open: int  # runs that are open at once
    buffer_size: int  # samples with which the buffer hands out; 1 for no buffer
    twister: np.random.RandomState  # that draws runs
    buffer_twister: np.random.RandomState  # that draws samples of the buffer
    waiting_runs: list[int] | None = (
        None  # runs that are not yet open, the next one last; None between epochs
    )
    # of each slot, the index of its run and the run's next sample; None for an empty slot
    open_runs: list[tuple[int, int] | None] = field(default_factory=list)
    buffer: list[int] = field(default_factory=list)  # samples

    def read_epoch(self) -> Ints64:
        """Read the rest of the worker's epoch, or its next one if none is under way.

        Returns:
            (n,) samples; none if all runs are read, and the worker has yet to notice.
        """
        return np.fromiter(self.read_samples(), np.int64)

    def read_samples(self) -> Iterator[int]:
        """Yield the samples of `read_epoch` one by one.

        The worker remembers its position: another call goes on where this one stopped.

        Raises:
            IndexError: if the state names a run that ``slices`` does not have.
        """
        if self.buffer_size == 1:
            yield from self._read_runs()
            return
        for sample in self._read_runs():
            self.buffer.append(sample)
            while len(self.buffer) >= self.buffer_size:
                yield self._pop_sample()
        while self.buffer:
            yield self._pop_sample()

    def _pop_sample(self) -> int:
        """Remove a sample of the buffer at random, and return it."""
        return self.buffer.pop(_draw_word(self.buffer_twister) % len(self.buffer))

    def _read_runs(self) -> Iterator[int]:
        """Yield the samples of open runs as they are drawn, and open others as these
        end.

        If no epoch is under way, the runs are permuted for the next one first.
        """
        if len(self.slices) < 2:
            return
        if self.waiting_runs is None:
            permutation = torch_permutation(len(self.slices) - 1, self.twister)
            self.waiting_runs = permutation.tolist()[::-1]
            self.open_runs = [self._open_next() for _ in range(self.num_open)]
        while any(self.open_runs):
            slot = self._draw_slot()
            run, sample = self.open_runs[slot] or (0, 0)
            # a run of another part may lie elsewhere; then it ends at once
            is_last = sample + 1 >= self.slices[run + 1]
            self.open_runs[slot] = self._open_next() if is_last else (run, sample + 1)
            yield sample
        self.waiting_runs = None

    def _open_next(self) -> tuple[int, int] | None:
        """Take the next run off those that wait; None if none is waiting.

        Returns:
            The index of the run, and its first sample.
        """
        if not self.waiting_runs:
            return None
        run = self.waiting_runs.pop()
        self._run_size(
            (run, 0)
        )  # it is looked at, and fails, as soon as the run is opened
        return run, self.slices[run]

    def _run_size(self, run: tuple[int, int] | None) -> int:
        """Return the number of samples of an open run, those read included; 0 for None.

        Raises:
            IndexError: if ``slices`` has no such run.
        """
        return self.slices[run[0] + 1] - self.slices[run[0]] if run else 0

    def _draw_slot(self) -> int:
        """Draw an index of ``open_runs``, by the sizes of the runs
        (`WorkerRng.choice_idx`). Nothing is drawn where there is one slot.
        """
        if len(self.open_runs) == 1:
            return 0
        ends = np.cumsum(
            [self._run_size(run) for run in self.open_runs], dtype=np.float32
        )
        share = np.float32((_draw_word(self.twister) & 0xFFFFFF) / 2**24)
        return int(np.searchsorted(ends, share * ends[-1], side="right"))


def _draw_word(twister: np.random.RandomState) -> int:
    """Draw a number of 32 bits."""
    return int(twister.randint(0, 2**32, dtype=np.uint32))


class EnergonResume(ResumptionLaw):
    """Megatron-Energon 7.4.1: `get_savable_loader` of
    `get_train_dataset(repeat=False)`, with worker processes and checkpoints of every
    batch (savable_loader.py, rng.py and flavors/webdataset/sample_loader.py, sharder.py
    of megatron/energon).

    A state is that of each worker of each rank: runs that are open, as numbers of
    samples of the whole set; runs that are not, as numbers of its own part; its random
    numbers; its buffer. With the same ranks and workers all goes on as it would have,
    but for workers that had handed out their last batch: they begin their next epoch.
    The worker whose turn it was is the first of its rank from then on. (A worker that
    has not begun to read when the state is saved may lose its first batch: asked before
    its first checkpoint, it answers with none, and one batch to skip,
    `SavableDatasetWrapper.get_checkpoint`. Here all have begun.) Restored

    - `global`, by `restore_state_global`, other numbers of ranks or workers are refused;
    - `rank`, by `restore_state_rank` of the state of the same rank, ranks without one are refused.
      With fewer ranks the states of the others are dropped, and those that are restored go on in
      another part: what Megatron-Bridge did until it counted the states
      (NVIDIA-NeMo/Megatron-Bridge pull request 5637);
    - `redist`, after ``energon checkpoint redist``, workers keep their parts, whichever rank they
      belong to, if there are as many as before in all; the first of each rank begins. It takes the
      numbers of ranks from names of files, and fails if there is one file.

    Attributes:
        kind: its name.
        restores: which of the three.
        max_samples_per_sequence: as of `EnergonOrder`.
        parallel_shard_iters: as of `EnergonOrder`.
        shuffle_buffer_size: as of `EnergonOrder`.
    """

    kind: Literal["energon"]
    library: ClassVar[str] = "megatron-energon 7.4.1"
    saves: ClassVar[str] = (
        "of each worker of each rank, its runs, random numbers and buffer"
    )
    restores: Literal["global", "rank", "redist"] = "global"
    max_samples_per_sequence: int | None = Field(default=None, ge=1)
    parallel_shard_iters: int = Field(default=16, ge=1)
    shuffle_buffer_size: int | None = Field(default=None, ge=1)

    @property
    def short_name(self) -> str:
        """'energon', and how it is restored."""
        return f"energon, {self.restores}"

    @property
    def order(self) -> EnergonOrder:
        """The order of Energon."""
        return EnergonOrder(
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
            shuffle_buffer_size=self.shuffle_buffer_size,
        )

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the parts of those who read now, or the library's error:
        for other ranks or workers, or for runs that a new part does not have.

        A worker that had handed out its last batch reads its next epoch here. At least
        one iteration must be done: with step 0 an error is returned without a reason.
        """
        refusal = self._refuse_readers(crash.readers_before, crash.readers_after)
        if refusal is not None:
            return refusal
        try:
            return ResumedEpoch(self._resumed_batches(data, crash, seed, 0))
        except IndexError:
            return Refusal("IndexError: Caught IndexError in DataLoader worker process")

    def _refuse_readers(
        self, readers_before: Readers, readers_after: Readers
    ) -> Refusal | None:
        """Return the error for other ranks or workers, as of `restores`; None if there
        is none.

        'redist' fails wherever one rank read before.
        """
        num_workers = readers_before.world_size * readers_before.workers
        if self.restores == "redist":
            if readers_before.world_size == 1:
                return Refusal(
                    "Exception: No numeric portion found that differs among files."
                )
            if num_workers % readers_after.world_size:
                message = (
                    "New DP world size must be a multiple of the current DP world size"
                )
                return Refusal(f"AssertionError: {message}")
            is_same = num_workers == readers_after.world_size * readers_after.workers
            return (
                None
                if is_same
                else Refusal("AssertionError:", "ranks x workers are others")
            )
        if (
            self.restores == "global"
            and readers_before.world_size != readers_after.world_size
        ):
            return Refusal("AssertionError: State must be a list of size world_size")
        if readers_before.world_size < readers_after.world_size:
            return Refusal("FileNotFoundError:", "ranks that are new have no state")
        is_same = readers_before.workers == readers_after.workers
        return None if is_same else Refusal("AssertionError:", OTHER_WORKERS)

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch, in which workers go on from where they are.

        The first worker of a rank stays first; workers that were an epoch ahead stay so.
        The state must be one that `resume` does not refuse.
        """
        return self._resumed_batches(data, crash, seed, epoch - crash.epoch)

    def _resumed_batches(
        self, data: ShardedSet, crash: Crash, seed: int, epochs_later: int
    ) -> Batches:
        """Return the batches of an epoch after the crash; ``epochs_later`` 0 is the
        rest of the broken epoch.

        Raises:
            IndexError: if a part has no run that a state names, or no step was done.
        """
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        workers = list(self.order.workers(data, readers_before, seed))
        # the worker of each rank whose turn is next
        next_worker = [
            _replay_rank(
                workers[first : first + readers_before.workers],
                readers_before.batch_size,
                crash,
            )
            for first in _first_workers(readers_before)
        ]
        if self.restores == "redist":
            next_worker = [0] * readers_after.world_size
        slices = list(self.order.slices(data, readers_after))

        def read(first: int, turn: int) -> Ints64:
            """Return the epoch of the worker that is number ``turn`` of a rank, counted
            from the worker whose turn is next; ``first`` is the rank's first worker.
            """
            rank = first // readers_after.workers
            index = first + (turn + next_worker[rank]) % readers_after.workers
            workers[index].slices = slices[index]
            return [workers[index].read_epoch() for _ in range(epochs_later + 1)][-1]

        turns = (
            (first, turn)
            for first in _first_workers(readers_after)
            for turn in range(readers_after.workers)
        )
        return batches_from_order(
            order_from_workers(starmap(read, turns), readers_after), readers_after
        )


def _first_workers(readers: Readers) -> range:
    """Return the index, among all workers, of the first worker of each rank."""
    return range(0, readers.world_size * readers.workers, readers.workers)


def _replay_rank(workers: list[EnergonWorker], batch_size: int, crash: Crash) -> int:
    """Read the samples that a rank trains on until the state is saved.

    ``workers`` are those of the rank, and move on. Workers that are through go on to
    the end of their epoch.

    Returns:
        The index in the rank of the worker whose turn is next.

    Raises:
        IndexError: if no step was done.
    """
    sizes = [worker.slices[-1] - worker.slices[0] for worker in workers]
    num_batches = [-(-size // batch_size) for size in sizes]
    turns = sorted(
        (turn, index)
        for index, batches in enumerate(num_batches)
        for turn in range(batches)
    )
    workers_done = [index for _, index in turns[: crash.step]]
    for index, worker in enumerate(workers):
        for _ in range(crash.epoch):
            worker.read_epoch()
        batches_done = workers_done.count(index)
        if batches_done == num_batches[index]:
            worker.read_epoch()
        else:
            deque(islice(worker.read_samples(), batches_done * batch_size), maxlen=0)
    return (workers_done[-1] + 1) % len(workers)
