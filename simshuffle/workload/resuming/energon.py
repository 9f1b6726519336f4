"""Megatron-Energon: loaders whose workers each save where they are in their own part of the set."""

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
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.samplers import permuted
from simshuffle.workload.orders.streams import check, handed_out
from simshuffle.workload.resuming.law import (
    OTHER_WORKERS,
    Batches,
    Crash,
    Refused,
    Resume,
    Resumed,
    batches_of,
)

Slices = list[int]
"""Where each run of samples of a worker begins, and where the last of them ends."""


class EnergonOrder(Order):
    """Energon's order of a WebDataset that is not repeated, bit by bit.

    Samples are cut into parts of equal size, one for each worker of each rank, whatever the shards;
    a part into runs at the ends of shards, and into ones of about ``max_samples_per_sequence``. A
    worker permutes its runs in each epoch, opens some, and takes the next sample of one of them,
    drawn by their sizes. Then comes a shuffle buffer. Worker g of all is seeded with g and the seed
    of the run, and draws on from epoch to epoch.

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

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer samples than workers, of whom some then have
        none."""
        check(data, readers, seed, 0, 2**63)
        workers = readers.world_size * readers.workers
        if data.size < workers:
            rule = f"must hold a sample for each of {workers} workers"
            refuse("data.samples", rule, f"{data.size} samples", "Read with fewer", "order")

        def read(worker: Worker) -> Ints64:
            return [worker.epoch() for _ in range(epoch + 1)][-1]

        return of_workers(map(read, self.workers(data, readers, seed)), readers)

    def workers(self, data: ShardedSet, readers: Readers, seed: int) -> Iterator[Worker]:
        """All workers, rank by rank, before the first epoch."""
        for number, slices in enumerate(self.slices(data, readers)):
            # a worker's number and the seed; with both generators of a worker seeded alike
            digest = hashlib.sha1(f"{number},{seed}".encode(), usedforsecurity=False).digest()
            twister = np.random.RandomState(int.from_bytes(digest, "big") & 0xFFFFFFFF)
            buffer = self.shuffle_buffer_size or 1
            yield Worker(slices, self.parallel_shard_iters, buffer, twister, copy.deepcopy(twister))

    def slices(self, data: ShardedSet, readers: Readers) -> Iterator[Slices]:
        """Of each worker, rank by rank, its runs (`Sharder`)."""
        workers = readers.world_size * readers.workers
        share, more = divmod(data.size, workers)
        sizes = np.full(workers, share)
        sizes[_interleaved(list(range(workers)))[:more]] += 1
        ends = np.concatenate([[0], np.cumsum(sizes)])
        for begin, end in pairwise(ends.tolist()):
            inner = data.begin[(data.begin > begin) & (data.begin < end)].tolist()
            cuts = [self._cut(*run) for run in pairwise([begin, *inner, end])]
            yield [*(cut for run in cuts for cut in run), end]

    def _cut(self, begin: int, end: int) -> list[int]:
        most, size = self.max_samples_per_sequence, end - begin
        if most is None or size <= most * 1.5:
            return [begin]
        count = max(round(size / most), 1)
        return [begin + int(part * (size / count)) for part in range(count)]


def _interleaved(workers: list[int]) -> list[int]:
    """In which order workers get a sample more: halves of them in turn, and so on in each half."""
    if len(workers) <= 2:
        return workers
    middle = len(workers) // 2
    halves = [_interleaved(half) for half in (workers[:middle], workers[middle:])]
    return [one for pair in zip_longest(*halves) for one in pair if one is not None]


def of_workers(parts: Iterator[Ints64], readers: Readers) -> EpochOrder:
    """The order of an epoch, by what each worker hands out, rank by rank."""
    return handed_out((*divmod(number, readers.workers), part) for number, part in enumerate(parts))


@dataclass
class Worker:
    """Where a worker is (`WebdatasetSampleLoaderDataset` and `ShuffleBufferDataset`)."""

    slices: Slices
    parallel: int
    size: int  # of the buffer
    twister: np.random.RandomState
    of_buffer: np.random.RandomState
    waiting: list[int] | None = None  # runs that are not yet open, the next one last
    open: list[tuple[int, int] | None] = field(default_factory=list)  # a run, its next sample
    buffer: list[int] = field(default_factory=list)

    def epoch(self) -> Ints64:
        """All that is left of its epoch, or its next one."""
        return np.fromiter(self.samples(), np.int64)

    def samples(self) -> Iterator[int]:
        """The same one by one; what it remembers is where it is."""
        if self.size == 1:
            yield from self._read()
            return
        for sample in self._read():
            self.buffer.append(sample)
            while len(self.buffer) >= self.size:
                yield self._popped()
        while self.buffer:
            yield self._popped()

    def _popped(self) -> int:
        return self.buffer.pop(_word(self.of_buffer) % len(self.buffer))

    def _read(self) -> Iterator[int]:
        if len(self.slices) < 2:
            return
        if self.waiting is None:
            self.waiting = permuted(len(self.slices) - 1, self.twister).tolist()[::-1]
            self.open = [self._opened() for _ in range(self.parallel)]
        while any(self.open):
            place = self._drawn()
            run, sample = self.open[place] or (0, 0)
            # a run of another part may lie elsewhere; then it ends at once
            ended = sample + 1 >= self.slices[run + 1]
            self.open[place] = self._opened() if ended else (run, sample + 1)
            yield sample
        self.waiting = None

    def _opened(self) -> tuple[int, int] | None:
        if not self.waiting:
            return None
        run = self.waiting.pop()
        self._size((run, 0))  # it is looked at, and fails, as soon as the run is opened
        return run, self.slices[run]

    def _size(self, run: tuple[int, int] | None) -> int:
        return self.slices[run[0] + 1] - self.slices[run[0]] if run else 0

    def _drawn(self) -> int:
        """A place among the open runs, by their sizes (`WorkerRng.choice_idx`)."""
        if len(self.open) == 1:
            return 0
        ends = np.cumsum([self._size(run) for run in self.open], dtype=np.float32)
        share = np.float32((_word(self.twister) & 0xFFFFFF) / 2**24)
        return int(np.searchsorted(ends, share * ends[-1], side="right"))


def _word(twister: np.random.RandomState) -> int:
    return int(twister.randint(0, 2**32, dtype=np.uint32))


class Energon(Resume):
    """Megatron-Energon 7.4.1: `get_savable_loader` of `get_train_dataset(repeat=False)`, with
    worker processes and checkpoints of every batch (savable_loader.py, rng.py and
    flavors/webdataset/sample_loader.py, sharder.py of megatron/energon).

    A state is that of each worker of each rank: runs that are open, as numbers of samples of the
    whole set; runs that are not, as numbers of its own part; its random numbers; its buffer. With
    the same ranks and workers all goes on as it would have, but for workers that had handed out
    their last batch: they begin their next epoch. The worker whose turn it was is the first of its
    rank from then on. (A worker that has not begun to read when the state is saved may lose its
    first batch: asked before its first checkpoint, it answers with none, and one batch to skip,
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
    saves: ClassVar[str] = "of each worker of each rank, its runs, random numbers and buffer"
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
        """Its order."""
        return EnergonOrder(
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
            shuffle_buffer_size=self.shuffle_buffer_size,
        )

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """The rest, of the parts of those who read now, or the error of the first rank that has
        one."""
        refused = self._refused(crash.before, crash.after)
        if refused is not None:
            return refused
        try:
            return Resumed(self._passed(data, crash, seed, 0))
        except IndexError:
            return Refused("IndexError: Caught IndexError in DataLoader worker process")

    def _refused(self, before: Readers, after: Readers) -> Refused | None:
        workers = before.world_size * before.workers
        if self.restores == "redist":
            if before.world_size == 1:
                return Refused("Exception: No numeric portion found that differs among files.")
            if workers % after.world_size:
                says = "New DP world size must be a multiple of the current DP world size"
                return Refused(f"AssertionError: {says}")
            same = workers == after.world_size * after.workers
            return None if same else Refused("AssertionError:", "ranks x workers are others")
        if self.restores == "global" and before.world_size != after.world_size:
            return Refused("AssertionError: State must be a list of size world_size")
        if before.world_size < after.world_size:
            return Refused("FileNotFoundError:", "ranks that are new have no state")
        same = before.workers == after.workers
        return None if same else Refused("AssertionError:", OTHER_WORKERS)

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """Workers go on from where they are; the first of a rank stays the first."""
        return self._passed(data, crash, seed, epoch - crash.epoch)

    def _passed(self, data: ShardedSet, crash: Crash, seed: int, later: int) -> Batches:
        before, after = crash.before, crash.after
        workers = list(self.order.workers(data, before, seed))
        ranks = (workers[own : own + before.workers] for own in _firsts(before))
        turn = [_run_to(own, before.batch_size, crash) for own in ranks]
        if self.restores == "redist":
            turn = [0] * after.world_size
        slices = list(self.order.slices(data, after))

        def read(own: int, place: int) -> Ints64:
            number = own + (place + turn[own // after.workers]) % after.workers
            workers[number].slices = slices[number]
            return [workers[number].epoch() for _ in range(later + 1)][-1]

        places = ((own, place) for own in _firsts(after) for place in range(after.workers))
        return batches_of(of_workers(starmap(read, places), after), after)


def _firsts(readers: Readers) -> range:
    """The first worker of each rank."""
    return range(0, readers.world_size * readers.workers, readers.workers)


def _run_to(workers: list[Worker], batch_size: int, crash: Crash) -> int:
    """Let the workers of a rank hand out what it trains on until the state is saved, those that are
    through to the end of their epoch. Returns the worker whose turn is next."""
    batches = [-(-(one.slices[-1] - one.slices[0]) // batch_size) for one in workers]
    turns = sorted((turn, who) for who, many in enumerate(batches) for turn in range(many))
    done = [who for _, who in turns[: crash.step]]
    for who, worker in enumerate(workers):
        for _ in range(crash.epoch):
            worker.epoch()
        if (count := done.count(who)) == batches[who]:
            worker.epoch()
        else:
            deque(islice(worker.samples(), count * batch_size), maxlen=0)
    return (done[-1] + 1) % len(workers)
