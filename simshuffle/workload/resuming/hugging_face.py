"""Hugging Face's datasets, which save how far shards are read and not what is in the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import HuggingFace, halves, in_turn
from simshuffle.workload.orders.fetching import iteration
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import handed_out, joined, samples_of
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refused,
    Resumed,
    ResumeOf,
    batches_of,
    other_workers,
)


class HuggingFaceState(ResumeOf):
    """`datasets` 5.2.0 (iterable_dataset.py): `IterableDataset.state_dict` and `load_state_dict`,
    through torchdata 0.11.0's `StatefulDataLoader` or without it.

    The state says how far each run of shards was read into the buffer (`ExamplesIterable`,
    `CyclingMultiSourcesExamplesIterable`), and not what the buffer holds
    (`BufferShuffledExamplesIterable`): that is lost, and the buffer is filled again from there,
    with a generator that begins anew. Of tables (`formatted`) the state is that before the last
    time that the buffer handed out, and how many samples it handed out then
    (`RebatchedArrowExamplesIterable`): as many of the new ones are thrown away, which are others.

    A state is loaded by number of run, shard and sample, whoever reads them now. It fails if runs
    are fewer in it (IndexError), and if ranks shared shards before and do not now, or the other way
    round (KeyError). A worker loads the state of its own runs into those of its whole rank first
    (`_iter_pytorch`), so it fails wherever it has fewer runs than the rank would have.

    Attributes:
        kind: its name.
        of: the order of the loader.
        through: what saves: StatefulDataLoader, which is stopped by another number of workers; the
            set itself, which with workers saves that nothing was read, and whose state every worker
            loads; or torchtitan 0.3.0's `ParallelAwareDataloader` (components/dataloader.py), which
            is stopped by another number of ranks, too.
        states: whether each rank loads its own state, and those that had none begin the epoch; or
            all load that of the first.
        set_epoch: whether epochs are set. If not, all are alike, and a set that has loaded a state
            begins every later epoch where it says, too.
    """

    kind: Literal["hugging_face"]
    library: ClassVar[str] = "datasets 5.2.0, torchdata 0.11.0"
    saves: ClassVar[str] = "how far shards are read, not what is in the buffer"
    of: HuggingFace
    through: Literal["stateful_dataloader", "dataset", "torchtitan"] = "stateful_dataloader"
    states: Literal["own", "first"] = "own"
    set_epoch: bool = True

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> Batches:
        """See `Resume`."""
        return super().epoch(data, readers, seed, epoch if self.set_epoch else 0)

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """See `Resume`."""
        self.epoch(data, crash.after, seed, crash.epoch)  # may be refused
        stopped = self._stopped(crash.before, crash.after)
        if stopped is not None:
            return stopped
        try:
            return Resumed(self._rest(data, crash, seed))
        except _FailsError as error:
            return Refused(str(error), "the state is of other runs of shards")

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """See `Resume`."""
        if self.set_epoch or (self.through != "dataset" and crash.after.workers > 1):
            return self.epoch(data, crash.after, seed, epoch)
        return self._rest(data, crash, seed)

    def _stopped(self, before: Readers, after: Readers) -> Refused | None:
        if self.through == "torchtitan" and before.world_size != after.world_size:
            return Refused("AssertionError: dp_degree is inconsistent before and after checkpoint")
        return None if self.through == "dataset" else other_workers(before, after)

    def _rest(self, data: ShardedSet, crash: Crash, seed: int) -> Batches:
        """What follows the state. Raises a _FailsError."""
        epoch, after = crash.epoch if self.set_epoch else 0, crash.after
        order = self.of.epoch(data, crash.before, seed, epoch)
        streams = []
        for rank in range(after.world_size):
            of_rank = 0 if self.states == "first" else rank
            states: list[_State | None] = [None] * after.workers
            first = 0
            if of_rank < crash.before.world_size:
                states, first = self._saved(data, crash, order, seed, epoch, of_rank)
            for turn in range(after.workers):
                number = (first + turn) % after.workers
                worker = _Worker(self.of, data, after, seed, epoch, rank, number)
                streams.append((rank, turn, worker.resumed(states[number])))
        return batches_of(handed_out(streams), after)

    def _saved(
        self, data: ShardedSet, crash: Crash, order: EpochOrder, seed: int, epoch: int, rank: int
    ) -> tuple[list[_State | None], int]:
        """What each worker loads of the state of a rank, and whose turn it is."""
        before, own = crash.before, order.rank == rank
        turn, of_worker = iteration(order, before)[own], order.worker[own]
        turns = np.unique(turn)[: crash.step]
        done = int(turns[-1]) if len(turns) else -1
        states: list[_State | None] = []
        for number in range(before.workers):
            worker = _Worker(self.of, data, before, seed, epoch, rank, number)
            count = int((of_worker == number).sum())
            handed = int(((of_worker == number) & (turn <= done)).sum())
            if handed == 0 or (self.through == "dataset" and before.workers > 1):
                # what it has when it is made, which is the state of epoch 0
                states.append(worker.unread() if epoch == 0 else None)
                continue
            next_turn = -(-count // before.batch_size) * before.workers + number
            ended = handed == count and bool(count % before.batch_size or next_turn < done)
            states.append(worker.state(handed, ended))
        if self.through == "dataset":
            return states[:1] * crash.after.workers, 0
        return states, (done + 1) % before.workers


class _FailsError(Exception):
    """The library fails with this error."""


_Place = tuple[int, int, int, int]
"""How far a run of shards is read: its shard, and the samples of it; of tables, where that table
ends which was read last before the samples came together that the buffer got last, and of these
the chunks that it got since, and how much of the last one."""


@dataclass(frozen=True)
class _State:
    """What the state of a worker says."""

    places: list[_Place]  # of each run
    ended: list[bool]  # whether a run is read to its end; of runs in turn
    turn: int  # the run whose turn it is
    stepped: int | None  # samples of the turn that ranks take in a shared shard; None if none is
    skipped: int  # samples of the buffer that are thrown away


class _Worker:
    """A worker of a rank, or the rank itself."""

    def __init__(
        self,
        of: HuggingFace,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        rank: int,
        number: int,
    ) -> None:
        self._of, self._data, self._number = of, data, number
        self._caught = f"Caught {{}} in DataLoader worker process {number}."
        self._caught = self._caught if readers.workers > 1 else ""
        of_rank = of.shards(data, readers, seed, epoch, rank)
        self._runs = of.runs(of_rank[number :: readers.workers])
        self._runs_of_rank = len(of.runs(of_rank))
        self._shared = len(data.samples) % readers.world_size != 0
        self._offset, self._ranks = (rank, readers.world_size) if self._shared else (0, 1)
        self._rng = partial(of.generator, readers, seed, epoch, number)

    @cached_property
    def _read(self) -> tuple[list[Ints64], Ints64, Ints64]:
        """What comes out of the buffer at once; (P,) the turn of each piece that goes into it, and
        (P,) the samples up to its end."""
        runs = [samples_of(self._data, run) for run in self._runs]
        samples, turn = in_turn(runs, self._of.piece)
        pieces, counts = np.unique(turn, return_counts=True)
        ends = np.cumsum(counts)
        return halves(samples, ends, self._of.buffer_size, self._rng()), pieces, ends

    def unread(self) -> _State:
        """The state before it has read."""
        stepped, count = 0 if self._shared else None, self._runs_of_rank
        return _State([(0, 0, 0, 0)] * count, [False] * count, 0, stepped, 0)

    def state(self, handed: int, ended: bool) -> _State:
        """The state when so many samples were handed out, and it may have been found out that there
        are no more."""
        out, _, _ = self._read
        past = np.cumsum([len(part) for part in out])
        if not self._of.formatted:
            seen = handed * self._ranks
            part = int(np.searchsorted(past, min(seen, past[-1])))
            ended = ended or part == len(out) - 1 or seen > past[-1]
            return self._at(part + 1, ended, self._offset if self._shared else None, 0)
        own = (past - self._offset + self._ranks - 1) // self._ranks
        own = np.diff(own, prepend=0)
        part = int(np.searchsorted(np.cumsum(own), handed))
        skipped = int(handed - own[:part].sum())
        if skipped == 1 and not ended:
            earlier = np.flatnonzero(own[:part])
            part = int(earlier[-1]) if len(earlier) else 0
            skipped = int(own[part]) + 1 if len(earlier) else 1
        stepped = int(past[part - 1]) % self._ranks if part else 0
        return self._at(part, False, stepped if self._shared else None, skipped)

    def _at(self, parts: int, ended: bool, stepped: int | None, skipped: int) -> _State:
        """The state when so many times the buffer has handed out."""
        out, turn, ends = self._read
        count = len(self._runs)
        taken = sum(map(len, out[:parts])) + self._of.buffer_size // 2
        pieces = int(np.searchsorted(ends, taken)) + 1 if parts else 0
        pieces = len(ends) if ended else min(pieces, len(ends))
        got = np.bincount(turn[:pieces] % count, minlength=count)
        whole = np.bincount(turn % count, minlength=count)
        places = [
            self._place(run, int(number)) for run, number in zip(self._runs, got, strict=True)
        ]
        if ended and self._of.max_buffer_input_shards == 1:
            places = [(len(self._runs[0]), 0, 0, 0)]
        following = (int(turn[pieces - 1]) + 1) % count if pieces else 0
        return _State(places, (got == whole).tolist(), following, stepped, skipped)

    def _place(self, run: list[int], pieces: int) -> _Place:
        """How far a run is read when so many pieces of it are."""
        sizes = self._data.samples[run].tolist()
        if pieces == 0:
            return (0, 0, 0, 0)
        if self._of.formatted:
            return _places(sizes, self._of.piece)[pieces - 1]
        past = list(accumulate(sizes, initial=0))
        shard = int(np.searchsorted(past, pieces)) - 1
        return (shard, pieces - past[shard], 0, 0)

    def resumed(self, state: _State | None) -> Ints64:
        """What it hands out from that state on; from the beginning without one. Raises a
        _FailsError."""
        state = state or self.unread()
        self._load(state)
        count = len(self._runs)
        alone = self._of.max_buffer_input_shards == 1
        rests = [
            joined([]) if ended and not alone else self._rest_of(run, place)
            for run, place, ended in zip(self._runs, state.places, state.ended, strict=False)
        ]
        if not alone and state.turn >= count and not all(state.ended[:count]):
            bounds = f"index {state.turn} is out of bounds for axis 0 with size {count}"
            self._fail("IndexError", bounds)
        samples, turn = in_turn(rests, self._of.piece, state.turn)
        ends = np.cumsum(np.unique(turn, return_counts=True)[1])
        out = joined(halves(samples, ends, self._of.buffer_size, self._rng()))
        stepped = (state.stepped or 0) if self._of.formatted else 0
        return out[(self._offset - stepped) % self._ranks :: self._ranks][state.skipped :]

    def _load(self, state: _State) -> None:
        alone = self._of.max_buffer_input_shards == 1
        if self._shared and state.stepped is None:
            self._fail("KeyError", "'shard_idx'" if alone else "'ex_iterable_idx'")
        if not self._shared and state.stepped is not None:
            self._fail("KeyError", "'examples_iterable'")
        if len(state.places) < self._runs_of_rank:
            self._fail("IndexError", "list index out of range")

    def _fail(self, kind: str, says: str) -> None:
        raise _FailsError(f"{kind}: {self._caught.format(kind) or says}")

    def _rest_of(self, run: list[int], place: _Place) -> Ints64:
        """The samples of a run that come after a place."""
        shard, sample, chunks, cropped = place
        rest = run[shard:]
        if not self._of.formatted:
            gone = min(sample, int(self._data.samples[rest[0]])) if rest else 0
            return samples_of(self._data, rest)[gone:]
        parts = []
        for number, each in enumerate(rest):
            samples = samples_of(self._data, [each])
            if number == 0 and len(samples) <= sample:
                continue
            for first in range(0, len(samples), self._of.piece):
                begin = first
                if chunks > 0:
                    chunks -= 1
                    if chunks or not cropped:
                        continue
                    begin = first + cropped
                    if begin > len(samples):
                        self._fail("SystemError", "")  # a slice of a negative length
                parts.append(samples[begin : first + self._of.piece])
        return joined(parts)


def _places(sizes: list[int], piece: int) -> list[_Place]:
    """The place of a run of tables of those sizes after each piece, which is made of chunks."""
    found = []
    before = after = (0, 0)
    chunks = held = 0
    for shard, size in enumerate(sizes):
        for number, first in enumerate(range(0, size, piece)):
            chunks += 1
            held += min(piece, size - first)
            if held >= piece:
                over = held - piece
                cropped = min(piece, size - first) - over if over else 0
                found.append((*before, chunks, cropped))
                before, chunks, held = after, number + 1, over
        after = (shard, size)
    return [*found, (*after, 0, 0)] if held else found
