"""A cell that stops and resumes a loader, and counts what becomes of its samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simshuffle.errors import InputError, refuse
from simshuffle.spec.arrays import Flags, Ints64
from simshuffle.studies.loader.resume_tables import (
    MISFIT,
    REFUSES,
    Reread,
    classify_outcome,
    count_meetings,
    describe_change,
    make_row,
)
from simshuffle.studies.loader.shape import BYTES_PER_ROW, SECONDS_PER_ROW, DataSetShape
from simshuffle.studies.loader.storage import StorageCosts
from simshuffle.study.cell import SMALL_MEMORY, Outcome, PlainCell, Tell
from simshuffle.workload.orders.fetching import Caches, Pieces, divide_into_pieces
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
)


@dataclass(frozen=True)
class ResumeCell(PlainCell):
    """A resumption law on a shape; its outcome is a row of `resumes`."""

    label: str  # name of the loader, and the change
    loader: str  # name of the loader
    law: ResumptionLaw  # what the loader does with its state
    shape: DataSetShape  # the data and who reads it before the crash
    new_readers: Readers  # who reads after the crash
    epoch: int  # that is broken off, from 0
    step: int | None  # iterations of the epoch that were done; None for half of them
    storage: StorageCosts  # from which data are read again

    @property
    def key(self) -> Any:
        """Return what decides the outcome: loader, law, shape, readers, storage and
        crash.
        """
        shape, law = (
            record.model_dump(mode="json") for record in (self.shape, self.law)
        )
        crash_values = [
            asdict(self.new_readers),
            asdict(self.storage),
            self.epoch,
            self.step,
        ]
        return [self.loader, shape, law, *crash_values]

    @property
    def cost(self) -> float:
        """Return the s of counting on one core, roughly."""
        return 0.1 + 3 * SECONDS_PER_ROW * self.shape.rows

    @property
    def memory(self) -> float:
        """Return the bytes of memory of the process, roughly."""
        return SMALL_MEMORY + 2 * BYTES_PER_ROW * self.shape.rows

    def run(self, tell: Tell) -> Outcome:
        """Resume the loader, and return its row; if it does not fit the shape, or a
        rank has too few batches, with the outcome `MISFIT` and the reason.
        """
        change = describe_change(self.shape.readers, self.new_readers)
        name_columns = self.loader, self.law.library, change
        try:
            row = self._make_row(name_columns)
        except InputError as error:
            reason = "; ".join(str(problem) for problem in error.problems)
            row = make_row(*name_columns, MISFIT, self.shape.samples, reason=reason)
        return Outcome({"resumes": [row]})

    def _make_row(self, name_columns: tuple[str, str, str]) -> dict[str, Any]:
        """Return the row of `resumes`.

        A loader that refuses has no counts. Where samples are dealt to ranks anew, the
        reads that this takes stand for shards, requests, bytes and ``read_s``. At least
        one later epoch is made, for mixing; epochs beyond the run's do not count
        otherwise.

        Args:
            name_columns: loader, library and change.

        Raises:
            InputError: the loader does not fit these shards and ranks, or a rank has no
                batch left after the crash.
        """
        law = self.law
        shape = self.shape
        data = self.shape.data
        epoch = self.epoch
        readers = shape.readers
        seed = shape.seed
        earlier_epochs = [
            law.epoch(data, readers, seed, number) for number in range(epoch)
        ]
        unbroken_epoch = law.epoch(data, readers, seed, epoch)
        crash = Crash(
            readers, self.new_readers, epoch, self._choose_step(unbroken_epoch)
        )
        resumed = law.resume(data, crash, seed)
        if isinstance(resumed, Refusal):
            return make_row(
                *name_columns, REFUSES, shape.samples, reason=resumed.message
            )

        rows_before = unbroken_epoch.first_steps(crash.step)
        rows_after = resumed.remaining
        later_numbers = range(epoch + 1, max(shape.epochs, epoch + 2))
        later_epochs = [
            law.later_epoch(data, crash, seed, number) for number in later_numbers
        ]
        other_epochs = [*earlier_epochs, *later_epochs[: shape.epochs - epoch - 1]]
        expected_next_epoch = law.epoch(data, readers, seed, epoch + 1)
        reread = self._count_reread(
            [*earlier_epochs[-1:], unbroken_epoch], crash.step, resumed
        )
        redistribution = law.redistribution_cost(data, crash, seed)
        if redistribution is not None:
            files = len(np.unique(data.shard_of(redistribution.read_samples)))
            requests = redistribution.read
            nbytes = round(redistribution.read_nbytes)
            seconds = self.storage.least_seconds_evenly(
                requests, nbytes, self.new_readers
            )
            reread = replace(
                reread, files=files, requests=requests, nbytes=nbytes, read_s=seconds
            )
        return make_row(
            *name_columns,
            classify_outcome(rows_before, rows_after),
            shape.samples,
            account=account_for_epoch(
                shape.samples, unbroken_epoch, crash.step, rows_after, other_epochs
            ),
            reread=reread,
            redistribution=redistribution,
            repeated_pairs=count_meetings(
                rows_before,
                rows_after,
                later_epochs[0],
                unbroken_epoch,
                expected_next_epoch,
            ),
            reason=law.saves,
        )

    def _choose_step(self, unbroken_epoch: Batches) -> int:
        """Return the iterations of the epoch that are done before the crash.

        Without a given number they are half of the batches of the rank with the fewest.

        Raises:
            InputError: no iteration is done, or a rank has no batch after them.
        """
        min_batches = unbroken_epoch.fewest_steps(self.shape.readers.world_size)
        step = min_batches // 2 if self.step is None else self.step
        if not 0 < step < min_batches:
            rule = (
                f"must be from 1 to {min_batches - 1}, as a rank has {min_batches}"
                " batches"
            )
            remedy = "Give another --resume-at, or more samples."
            refuse("--resume-at", rule, str(self.step or "middle"), remedy, self.loader)
        return step

    def _count_reread(
        self, epochs: list[Batches], step: int, resumed: ResumedEpoch
    ) -> Reread:
        """Count what is read because the epoch was broken off.

        Hosts with cold caches read what is thrown away and what remains. From that is
        taken what the warm caches would still have missed, had the epoch gone on;
        caches hold what the shape says. Nothing is less than 0: a loader that loses
        samples reads less, and nothing again. Until a rank has its first batch, it
        reads at least the pieces of which that batch has a sample, and what is thrown
        away before it.

        Args:
            epochs: the epoch before the broken one, if there is one, and the broken
                epoch.
            step: iterations that were done of the broken epoch.
            resumed: what the loader skips and hands out after the crash.
        """
        law = self.law
        shape = self.shape
        new_readers = self.new_readers
        data = shape.data
        position_of_sample = law.order.places(data, shape.seed)
        pieces = divide_into_pieces(data, law.unit, law.order.block, position_of_sample)
        shard_of_sample = data.shard_of(position_of_sample)

        # what the warm caches would have missed of the rest of the epoch
        warm_caches = Caches(shape.readers, pieces, shape.cache_nbytes)
        for epoch in epochs:
            rows_in_time = epoch.sort_by_time()
            is_fetched = _fetches_of_rows(warm_caches, rows_in_time, shape.readers)
        is_missed = is_fetched & (rows_in_time.step >= step)
        unbroken_reads = _sum_reads(
            rows_in_time.select(np.flatnonzero(is_missed)), pieces, shard_of_sample
        )

        # what cold caches fetch of the skipped and the remaining rows
        rows = resumed.skipped.append(resumed.remaining)
        remaining_rows = rows.sort_by_time()
        cold_caches = Caches(new_readers, pieces, shape.cache_nbytes)
        is_fetched = _fetches_of_rows(cold_caches, remaining_rows, new_readers)
        fetched_rows = remaining_rows.select(np.flatnonzero(is_fetched))
        extra_reads = _sum_reads(fetched_rows, pieces, shard_of_sample) - unbroken_reads
        files, requests, nbytes = np.maximum(extra_reads, 0).tolist()

        steps_to_first_batch = resumed.skipped.steps + 1
        first_batch_s = self._seconds_to_first_batch(
            fetched_rows.first_steps(steps_to_first_batch),
            rows.first_steps(steps_to_first_batch),
            pieces,
        )
        return Reread(
            skipped=len(resumed.skipped.sample),
            files=files,
            requests=requests,
            nbytes=nbytes,
            read_s=self.storage.least_seconds_evenly(requests, nbytes, new_readers),
            first_batch_s=first_batch_s,
        )

    def _seconds_to_first_batch(
        self, fetched_rows: Batches, required_rows: Batches, pieces: Pieces
    ) -> float:
        """Return the least s until every rank has its first batch; each batch is loaded
        by one worker.

        Args:
            fetched_rows: rows for which a piece is fetched until then.
            required_rows: all rows that are needed until then.
            pieces: what is fetched at once.
        """
        ranks = self.new_readers.world_size
        nbytes_of_fetch = pieces.nbytes[pieces.piece_of_sample[fetched_rows.sample]]
        requests = np.bincount(fetched_rows.rank, minlength=ranks).astype(np.float64)
        batch_numbers = np.unique(required_rows.batch)
        # a batch's number is rank * (steps + 1) + step
        batches_of_rank = np.bincount(
            batch_numbers // (required_rows.steps + 1), minlength=ranks
        )
        workers = np.clip(batches_of_rank, 1, self.new_readers.workers)
        nbytes = np.bincount(fetched_rows.rank, nbytes_of_fetch, ranks).astype(
            np.float64
        )
        return self.storage.least_seconds(requests, nbytes, self.new_readers, workers)


def _fetches_of_rows(caches: Caches, rows: Batches, readers: Readers) -> Flags:
    """Return (n,) true where a row fetches its piece; the caches remember the pieces.

    A rank's workers take its batches in turn.
    """
    return caches.fetch_epoch(rows.rank, rows.step % readers.workers, rows.sample)[0]


def _sum_reads(rows: Batches, pieces: Pieces, shard_of_sample: Ints64) -> Ints64:
    """Return (3,) shards, requests and bytes of fetches, given a row for each request.

    Args:
        rows: the rows that fetch.
        pieces: what is fetched at once.
        shard_of_sample: (N,) shard of each sample.
    """
    nbytes_of_fetch = pieces.nbytes[pieces.piece_of_sample[rows.sample]]
    num_shards = len(np.unique(shard_of_sample[rows.sample]))
    return np.array([num_shards, len(nbytes_of_fetch), nbytes_of_fetch.sum()], np.int64)
