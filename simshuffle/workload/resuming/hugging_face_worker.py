"""A worker of Hugging Face's datasets: the state that it saves, and its samples after a
state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple, NoReturn

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import HuggingFace
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.orders.shuffle_buffers import (
    interleave_runs,
    shuffle_by_halves,
    worker_generator,
)
from simshuffle.workload.orders.streams import concatenate_or_empty, samples_of_shards


class FailsError(Exception):
    """The library fails with this error; its text begins with a kind of Python's
    errors.
    """


class _RunPosition(NamedTuple):
    """The position up to which a run of shards is read.

    Of tables, ``shard`` and ``sample`` say where the table ends that was read last
    before the samples came together that the buffer got last. ``chunks`` and
    ``cropped`` say how much of these samples the buffer got.
    """

    shard: int  # index in the run
    sample: int  # samples of the shard that are read
    chunks: int = 0  # of tables: chunks that the buffer got
    cropped: int = 0  # of tables: samples of the last of these chunks that it got


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker, as it is saved."""

    positions: list[_RunPosition]  # of each run
    # whether each run is read to its end; ignored if ``max_buffer_input_shards`` is 1
    ended: list[bool]
    turn: int  # index of the run whose turn it is
    # where all ranks read all shards, and keep a sample each in turn: the rank that keeps the next
    # one, which only tables use; None where each rank has its own shards
    stepped: int | None
    # samples of the rank that are thrown away as they come out of the new buffer; 0 but for tables
    skipped: int


class _Reading(NamedTuple):
    """The samples of a worker as they pass its buffer in an epoch."""

    # samples that come out of the buffer at once; the last array may be empty
    parts: list[Ints64]
    pieces: Ints64  # (P,) index of each piece that goes into it, as `interleave_runs` counts them
    piece_ends: Ints64  # (P,) samples up to the end of each piece


class StatefulWorker:
    """A worker of a rank, or the rank itself.

    Args:
        order: of the loader.
        data: the set in shards.
        readers: the processes that read.
        seed: of the run.
        epoch: from 0.
        rank: of the worker.
        index: of the worker, in its rank.
    """

    def __init__(
        self,
        order: HuggingFace,
        data: ShardedSet,
        readers: Readers,
        *,
        seed: int,
        epoch: int,
        rank: int,
        index: int,
    ) -> None:
        self._order = order
        self._data = data
        self._error_prefix = ""
        if readers.workers > 1:
            self._error_prefix = f"Caught {{}} in DataLoader worker process {index}."
        rank_shards = order.shards(data, readers, seed, epoch, rank)
        self._runs = order.runs(rank_shards[index :: readers.workers])
        self._runs_of_rank = len(order.runs(rank_shards))
        # whether all ranks read all shards, and each keeps every ``stride``-th sample
        self._is_shared = len(data.samples) % readers.world_size != 0
        self._offset = rank if self._is_shared else 0
        self._stride = readers.world_size if self._is_shared else 1
        self._new_rng = partial(worker_generator, seed, epoch, index, readers.workers)

    @cached_property
    def _reading(self) -> _Reading:
        """The samples of an unbroken epoch as they pass the buffer."""
        runs = [samples_of_shards(self._data, run) for run in self._runs]
        samples, piece_of_sample = interleave_runs(runs, self._order.piece_size)
        pieces, sizes = np.unique(piece_of_sample, return_counts=True)
        piece_ends = np.cumsum(sizes)
        buffer_size = self._order.buffer_size
        parts = shuffle_by_halves(samples, piece_ends, buffer_size, self._new_rng())
        return _Reading(parts, pieces, piece_ends)

    def initial_state(self) -> WorkerState:
        """Return the state before the worker has read: it has a position for each run
        of the whole rank, not of the worker alone.
        """
        return WorkerState(
            positions=[_RunPosition(0, 0)] * self._runs_of_rank,
            ended=[False] * self._runs_of_rank,
            turn=0,
            stepped=0 if self._is_shared else None,
            skipped=0,
        )

    def state_after(self, num_out: int, *, knows_end: bool) -> WorkerState:
        """Return the state that is saved when the worker has handed out ``num_out``
        samples.

        Args:
            num_out: samples handed out.
            knows_end: whether the worker has found out that there are no more.
        """
        parts = self._reading.parts
        part_ends = np.cumsum([len(part) for part in parts])
        if not self._order.formatted:
            num_read = num_out * self._stride
            part = int(np.searchsorted(part_ends, min(num_read, part_ends[-1])))
            ended = knows_end or part == len(parts) - 1 or num_read > part_ends[-1]
            stepped = self._offset if self._is_shared else None
            return self._state_after_parts(
                part + 1, ended=ended, stepped=stepped, skipped=0
            )

        # samples of each part that this rank keeps
        kept_ends = (part_ends - self._offset + self._stride - 1) // self._stride
        kept_sizes = np.diff(kept_ends, prepend=0)
        part = int(np.searchsorted(np.cumsum(kept_sizes), num_out))
        skipped = int(num_out - kept_sizes[:part].sum())
        if skipped == 1 and not knows_end:
            earlier_parts = np.flatnonzero(kept_sizes[:part])
            part = int(earlier_parts[-1]) if len(earlier_parts) else 0
            skipped = int(kept_sizes[part]) + 1 if len(earlier_parts) else 1
        stepped = int(part_ends[part - 1]) % self._stride if part else 0
        return self._state_after_parts(
            part,
            ended=False,
            stepped=stepped if self._is_shared else None,
            skipped=skipped,
        )

    def _state_after_parts(
        self, num_parts: int, *, ended: bool, stepped: int | None, skipped: int
    ) -> WorkerState:
        """Return the state when the buffer has handed out samples ``num_parts`` times.

        With ``ended``, all runs are read to their end, whatever ``num_parts``.
        ``stepped`` and ``skipped`` are those of the state.
        """
        parts, pieces, piece_ends = self._reading
        num_runs = len(self._runs)
        num_buffered = sum(map(len, parts[:num_parts])) + self._order.buffer_size // 2
        num_pieces = (
            int(np.searchsorted(piece_ends, num_buffered)) + 1 if num_parts else 0
        )
        num_pieces = len(piece_ends) if ended else min(num_pieces, len(piece_ends))
        # (runs,) pieces of each run that are read, and all pieces of each run
        pieces_read = np.bincount(pieces[:num_pieces] % num_runs, minlength=num_runs)
        pieces_of_run = np.bincount(pieces % num_runs, minlength=num_runs)
        positions = [
            self._position(run, int(count))
            for run, count in zip(self._runs, pieces_read, strict=True)
        ]
        if ended and self._order.max_buffer_input_shards == 1:
            positions = [_RunPosition(len(self._runs[0]), 0)]
        return WorkerState(
            positions=positions,
            ended=(pieces_read == pieces_of_run).tolist(),
            turn=(int(pieces[num_pieces - 1]) + 1) % num_runs if num_pieces else 0,
            stepped=stepped,
            skipped=skipped,
        )

    def _position(self, run: list[int], num_pieces: int) -> _RunPosition:
        """Return the position in a run, a list of shards, after its first
        ``num_pieces`` pieces.
        """
        sizes = self._data.samples[run].tolist()
        if num_pieces == 0:
            return _RunPosition(0, 0)
        if self._order.formatted:
            return _positions_in_tables(sizes, self._order.piece_size)[num_pieces - 1]
        shard_ends = list(accumulate(sizes, initial=0))
        shard = int(np.searchsorted(shard_ends, num_pieces)) - 1
        return _RunPosition(shard, num_pieces - shard_ends[shard])

    def remaining_samples(self, state: WorkerState | None) -> Ints64:
        """Return the samples that the worker hands out from ``state`` on, perhaps none.

        The buffer is filled anew. Positions and ends of more runs than the worker has
        are ignored.

        Args:
            state: of any worker; None is the beginning of the epoch.

        Raises:
            FailsError: if the library fails with this state.
        """
        state = state or self.initial_state()
        self._check_state(state)
        num_runs = len(self._runs)
        has_one_run = self._order.max_buffer_input_shards == 1
        runs = [
            concatenate_or_empty([])
            if ended and not has_one_run
            else self._remaining_run(run, position)
            for run, position, ended in zip(
                self._runs, state.positions, state.ended, strict=False
            )
        ]
        if (
            not has_one_run
            and state.turn >= num_runs
            and not all(state.ended[:num_runs])
        ):
            bounds = (
                f"index {state.turn} is out of bounds for axis 0 with size {num_runs}"
            )
            self._fail("IndexError", bounds)
        samples, piece = interleave_runs(runs, self._order.piece_size, state.turn)
        piece_ends = np.cumsum(np.unique(piece, return_counts=True)[1])
        buffer_size = self._order.buffer_size
        shuffled = concatenate_or_empty(
            shuffle_by_halves(samples, piece_ends, buffer_size, self._new_rng())
        )
        stepped = (state.stepped or 0) if self._order.formatted else 0
        rank_samples = shuffled[(self._offset - stepped) % self._stride :: self._stride]
        return rank_samples[state.skipped :]

    def _check_state(self, state: WorkerState) -> None:
        """Raise a FailsError for a state that the worker cannot load.

        It is a KeyError if ranks share shards in the state or now, but not both; an
        IndexError if the state has fewer runs than the whole rank.
        """
        if self._is_shared and state.stepped is None:
            has_one_run = self._order.max_buffer_input_shards == 1
            self._fail(
                "KeyError", "'shard_idx'" if has_one_run else "'ex_iterable_idx'"
            )
        if not self._is_shared and state.stepped is not None:
            self._fail("KeyError", "'examples_iterable'")
        if len(state.positions) < self._runs_of_rank:
            self._fail("IndexError", "list index out of range")

    def _fail(self, kind: str, message: str) -> NoReturn:
        """Raise a FailsError with a kind of Python's errors.

        With more than one worker in a rank, PyTorch's words replace ``message``.
        """
        raise FailsError(f"{kind}: {self._error_prefix.format(kind) or message}")

    def _remaining_run(self, run: list[int], position: _RunPosition) -> Ints64:
        """Return the samples of a run, a list of shards, that come after a position.

        Raises:
            FailsError: if a chunk is smaller than what the buffer got of it.
        """
        shards = run[position.shard :]
        if not self._order.formatted:
            num_read = 0
            if shards:
                num_read = min(position.sample, int(self._data.samples[shards[0]]))
            return samples_of_shards(self._data, shards)[num_read:]
        chunks = position.chunks
        parts = []
        for index, shard in enumerate(shards):
            samples = samples_of_shards(self._data, [shard])
            if index == 0 and len(samples) <= position.sample:
                continue
            for first in range(0, len(samples), self._order.piece_size):
                begin = first
                if chunks > 0:
                    chunks -= 1
                    if chunks or not position.cropped:
                        continue
                    begin = first + position.cropped
                    if begin > len(samples):
                        self._fail("SystemError", "")  # a slice of a negative length
                parts.append(samples[begin : first + self._order.piece_size])
        return concatenate_or_empty(parts)


def _positions_in_tables(sizes: list[int], piece_size: int) -> list[_RunPosition]:
    """Return how far a run of tables is read after each piece, which is made of chunks.

    A last piece that is not full has the position where the last table ends.

    Args:
        sizes: samples of each shard of the run.
        piece_size: samples of a piece; a chunk of a table has at most as many.
    """
    positions = []
    # (shard, samples of it) where the table ends that was read last before the current piece, and
    # the table that is read now
    table_before_piece = current_table = (0, 0)
    chunks = num_collected = 0
    for shard, size in enumerate(sizes):
        for index, first in enumerate(range(0, size, piece_size)):
            chunk_size = min(piece_size, size - first)
            chunks += 1
            num_collected += chunk_size
            if num_collected >= piece_size:
                surplus = num_collected - piece_size
                cropped = chunk_size - surplus if surplus else 0
                positions.append(_RunPosition(*table_before_piece, chunks, cropped))
                table_before_piece = current_table
                chunks = index + 1
                num_collected = surplus
        current_table = (shard, size)
    if num_collected:
        positions.append(_RunPosition(*current_table))
    return positions
