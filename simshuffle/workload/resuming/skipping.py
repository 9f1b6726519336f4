"""Loops of Hugging Face that count steps, and skip as many batches of the epoch that goes on."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.orders.order import Order, ShardedSet
from simshuffle.workload.orders.samplers import Accelerate
from simshuffle.workload.resuming.law import (
    NOTHING,
    Batches,
    Crash,
    Refused,
    Resume,
    Resumed,
    batches_of,
)


class SkipFirstBatches(Resume):
    """A loader that accelerate has prepared, of which ``skip_first_batches`` leaves out as many
    batches as there were steps (accelerate 1.15.0, accelerate/data_loader.py). The sampler is
    skipped, and nothing is read. With ``dispatch_batches`` and without ``split_batches`` it is
    batches of one rank that are skipped, of which a step takes one for each rank; so most of what
    was trained on comes again.

    Attributes:
        kind: its name.
        even_batches, drop_last, dispatch: see `simshuffle.workload.orders.samplers.Accelerate`.
        sets_epoch: whether the loop calls ``set_epoch`` in each epoch. If not, a loader counts its
            own epochs, from 0 again in a new process, whatever state of a sampler was loaded: but
            with ``dispatch``, the skipped loader cannot reach its sampler.
        keeps_iteration: whether the skipped loader knows the epoch of the one it was made of. Until
            accelerate 1.14 it did not, and set its sampler back to epoch 0
            (huggingface/accelerate#4071).
    """

    kind: Literal["skip_first_batches"]
    library: ClassVar[str] = "accelerate 1.15.0"
    saves: ClassVar[str] = "the epoch and the steps of it"
    even_batches: bool = True
    drop_last: bool = False
    dispatch: Literal["no", "batches", "split"] = "no"
    sets_epoch: bool = True
    keeps_iteration: bool = True

    @property
    def order(self) -> Order:
        """That of the prepared loader."""
        return self._order

    @property
    def _order(self) -> Accelerate:
        return Accelerate(
            kind="accelerate",
            even_batches=self.even_batches,
            drop_last=self.drop_last,
            dispatch=self.dispatch,
        )

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What is left of an epoch behind the skipped batches; with ``dispatch``, an error where
        nothing is."""
        after, known = crash.after, self.sets_epoch and self.keeps_iteration
        if self.dispatch == "no":
            epoch = crash.epoch if known else 0
            return Resumed(self.epoch(data, after, seed, epoch).since(crash.step))
        ranks = after.world_size if self.dispatch == "split" else 1
        skipped = crash.step * ranks * after.batch_size
        left = self._order.after(skipped, data, after, seed, crash.epoch)
        if not len(left.sample):
            return Refused("TypeError: Unsupported types (<class 'NoneType'>)")
        return Resumed(batches_of(left, after))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """See `Resume`; loaders that count begin at 0 when the skipped one has ended."""
        past = 0 if self.sets_epoch else crash.epoch + 1
        return self.epoch(data, crash.after, seed, epoch - past)


class TransformersTrainer(Resume):
    """``Trainer.train(resume_from_checkpoint=...)`` (transformers 5.24.0, transformers/trainer.py
    ``_init_training_state`` and ``_run_epoch``). It saves the number of all steps, and divides it
    by the steps of an epoch that there are now: with other ranks it goes on in another epoch, or at
    another step. All that is trained on until the epoch ends that was broken off is the rest of it,
    earlier epochs that come again among it; nothing, where a later epoch goes on.

    Attributes:
        kind: its name.
        ignore_data_skip: whether the epoch in which it goes on begins again. The last epoch of all
            then ends as many steps early.
        keeps_epoch: whether skipped batches are of the epoch that goes on. Until transformers 4.57
            with accelerate 1.14 they were of epoch 0 (huggingface/transformers#40690, see
            `SkipFirstBatches`).
    """

    kind: Literal["transformers_trainer"]
    library: ClassVar[str] = "transformers 5.24.0, accelerate 1.15.0"
    saves: ClassVar[str] = "the steps since training began"
    ignore_data_skip: bool = False
    keeps_epoch: bool = True

    @property
    def order(self) -> Order:
        """That of accelerate, as the trainer prepares its loader."""
        return Accelerate(kind="accelerate")

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """What is trained on until the epoch ends."""
        return Resumed(self._between(data, crash, seed, 0, crash.epoch))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """See `Resume`; what is trained on in it if training goes on within it."""
        return self._between(data, crash, seed, epoch, epoch)

    def _between(self, data: ShardedSet, crash: Crash, seed: int, first: int, last: int) -> Batches:
        """What is trained on in those epochs, both ends included."""
        steps = [self.epoch(data, who, seed, 0).steps for who in (crash.before, crash.after)]
        begin, skipped = divmod(crash.epoch * steps[0] + crash.step, steps[1])
        if self.ignore_data_skip:
            skipped = 0
        found = NOTHING
        for epoch in range(max(begin, first), last + 1):
            goes_on = epoch == begin and skipped
            number = epoch if self.keeps_epoch or not goes_on else 0
            part = self.epoch(data, crash.after, seed, number)
            found = found.then(part.since(skipped) if goes_on else part)
        return found.where(np.lexsort((found.step, found.rank)))
