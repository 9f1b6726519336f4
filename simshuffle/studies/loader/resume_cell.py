"""A loader that is broken off and goes on, as a cell: what becomes of its samples, by counting."""

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
    change_of,
    meetings,
    outcome_of,
    row_of,
)
from simshuffle.studies.loader.shape import BYTES_PER_ROW, SECONDS_PER_ROW, DataSetShape
from simshuffle.studies.loader.storage import StorageCosts
from simshuffle.study.cell import SMALL_MEMORY, Outcome, PlainCell, Tell
from simshuffle.workload.orders.fetching import Caches, Pieces, divide_into_pieces
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import Batches, Crash, Refusal, ResumedEpoch, ResumptionLaw


@dataclass(frozen=True)
class ResumeCell(PlainCell):
    """A law on a shape: a row of `resumes`."""

    label: str  # name of the loader, and the change
    loader: str  # its name
    law: ResumptionLaw
    shape: DataSetShape  # the data and who reads it at first
    after: Readers  # who reads then
    epoch: int  # that is broken off, from 0
    step: int | None  # iterations of it that were done; None for half of them
    storage: StorageCosts  # that is read again

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        shape, law = (of.model_dump(mode="json") for of in (self.shape, self.law))
        rest = [asdict(self.after), asdict(self.storage), self.epoch, self.step]
        return [self.loader, shape, law, *rest]

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return 0.1 + 3 * SECONDS_PER_ROW * self.shape.rows

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + 2 * BYTES_PER_ROW * self.shape.rows

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        about = self.loader, self.law.library, change_of(self.shape.readers, self.after)
        try:
            row = self._row(about)
        except InputError as error:
            why = "; ".join(str(problem) for problem in error.problems)
            row = row_of(*about, MISFIT, self.shape.samples, why=why)
        return Outcome({"resumes": [row]})

    def _row(self, about: tuple[str, str, str]) -> dict[str, Any]:
        law, shape, data, epoch = self.law, self.shape, self.shape.data, self.epoch
        readers, seed = shape.readers, shape.seed
        earlier = [law.epoch(data, readers, seed, each) for each in range(epoch)]
        whole = law.epoch(data, readers, seed, epoch)
        crash = Crash(readers, self.after, epoch, self._step(whole))
        resumed = law.resume(data, crash, seed)
        if isinstance(resumed, Refusal):
            return row_of(*about, REFUSES, shape.samples, why=resumed.message)
        before, rest = whole.first_steps(crash.step), resumed.remaining
        following = range(epoch + 1, max(shape.epochs, epoch + 2))
        later = [law.later_epoch(data, crash, seed, each) for each in following]
        of_run = [*earlier, *later[: shape.epochs - epoch - 1]]
        due = law.epoch(data, readers, seed, epoch + 1)
        reread = self._reread([*earlier[-1:], whole], crash.step, resumed)
        moved = law.redistribution_cost(data, crash, seed)
        if moved is not None:
            requests, nbytes = moved.read, round(moved.read_nbytes)
            seconds = self.storage.evenly(requests, nbytes, self.after)
            reread = replace(reread, requests=requests, nbytes=nbytes, read_s=seconds)
        return row_of(
            *about,
            outcome_of(before, rest),
            shape.samples,
            account=account_for_epoch(shape.samples, whole, crash.step, rest, of_run),
            reread=reread,
            moved=moved,
            mixing=meetings(before, rest, later[0], whole, due),
            why=law.saves,
        )

    def _step(self, whole: Batches) -> int:
        """Iterations that were done of the epoch."""
        first = np.diff(whole.batch, prepend=-1) != 0
        batches = np.bincount(whole.rank[first], minlength=self.shape.readers.world_size)
        fewest = int(batches.min())
        step = fewest // 2 if self.step is None else self.step
        if not 0 < step < fewest:
            rule = f"must be from 1 to {fewest - 1}, for a rank has {fewest} batches"
            given, remedy = str(self.step or "middle"), "Give another --resume-at, or more samples."
            refuse("--resume-at", rule, given, remedy, self.loader)
        return step

    def _reread(self, epochs: list[Batches], step: int, resumed: ResumedEpoch) -> Reread:
        """What hosts with cold caches read for what is thrown away and for the rest, less what the
        caches that there were would still have missed of the ``epochs``, of whose last ``step``
        iterations were done; caches hold what the shape says. None of it is less than 0: a loader
        that loses samples reads less, and nothing again.

        All is read at least of which a first batch has a sample, and what is thrown away before it.
        """
        law, shape, after = self.law, self.shape, self.after
        data = shape.data
        places = law.order.places(data, shape.seed)
        of, shard = (
            divide_into_pieces(data, law.unit, law.order.block, places),
            data.shard_of(places),
        )
        warm = Caches(shape.readers, of, shape.cache_nbytes)
        for each in epochs:
            had = each.sort_by_time()
            missed = _missed(warm, had, shape.readers)
        still = had.select(np.flatnonzero(missed & (had.step >= step)))
        rows = resumed.skipped.append(resumed.remaining)
        due = rows.sort_by_time()
        asked = due.select(
            np.flatnonzero(_missed(Caches(after, of, shape.cache_nbytes), due, after))
        )
        more = _read(asked, of, shard) - _read(still, of, shard)
        files, requests, nbytes = np.maximum(more, 0).tolist()
        begun = resumed.skipped.steps + 1
        first = rows.first_steps(begun)
        return Reread(
            len(resumed.skipped.sample),
            files,
            requests,
            nbytes,
            self.storage.evenly(requests, nbytes, after),
            self._first(asked.first_steps(begun), first, of),
        )

    def _first(self, asked: Batches, wanted: Batches, of: Pieces) -> float:
        """s until every rank has its first batch: of what is ``asked`` for of all that is
        ``wanted`` until then. A batch is one worker's."""
        ranks = self.after.world_size
        sizes = of.nbytes[of.piece_of_sample[asked.sample]]
        requests = np.bincount(asked.rank, minlength=ranks).astype(np.float64)
        batches = np.unique(wanted.batch)
        of_rank = np.bincount(batches // (wanted.steps + 1), minlength=ranks)
        workers = np.clip(of_rank, 1, self.after.workers)
        nbytes = np.bincount(asked.rank, sizes, ranks).astype(np.float64)
        return self.storage.seconds(requests, nbytes, self.after, workers)


def _missed(caches: Caches, rows: Batches, readers: Readers) -> Flags:
    """(n,) for which rows their piece is fetched; batches are of a rank's workers in turn."""
    return caches.fetch_epoch(rows.rank, rows.step % readers.workers, rows.sample)[0]


def _read(rows: Batches, of: Pieces, shard: Ints64) -> Ints64:
    """(3,) shards, requests and bytes of what is fetched, a row for each request."""
    sizes = of.nbytes[of.piece_of_sample[rows.sample]]
    return np.array([len(np.unique(shard[rows.sample])), len(sizes), sizes.sum()], np.int64)
