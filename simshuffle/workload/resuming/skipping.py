"""Training loops of Hugging Face that count steps, and skip as many batches when they
go on.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.orders.order import Order, ShardedSet
from simshuffle.workload.orders.samplers import Accelerate
from simshuffle.workload.resuming.law import (
    NOTHING,
    Batches,
    Crash,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
    batches_from_order,
)


class SkipFirstBatches(ResumptionLaw):
    """A loader that accelerate has prepared, of which ``skip_first_batches`` leaves out
    as many batches as there were steps (accelerate 1.15.0, accelerate/data_loader.py).
    The sampler is skipped, and nothing is read. With ``dispatch_batches`` and without
    ``split_batches`` it is batches of one rank that are skipped, of which a step takes
    one for each rank; so most of what was trained on comes again.

    Attributes:
        kind: its name.
        even_batches, drop_last, dispatch: see
            `simshuffle.workload.orders.samplers.Accelerate`.
        sets_epoch: whether the loop calls ``set_epoch`` in each epoch. If not, a loader
            counts its own epochs, from 0 again in a new process, whatever state of a
            sampler was loaded: but with ``dispatch``, the skipped loader cannot reach
            its sampler.
        keeps_iteration: whether the skipped loader knows the epoch of the one it was
            made of. Until accelerate 1.14 it did not, and set its sampler back to epoch
            0 (huggingface/accelerate#4071).
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
        """The order of the prepared loader."""
        return self._order

    @property
    def _order(self) -> Accelerate:
        """The order of the prepared loader, which can leave out its first samples."""
        return Accelerate(
            kind="accelerate",
            even_batches=self.even_batches,
            drop_last=self.drop_last,
            dispatch=self.dispatch,
        )

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of an epoch behind the skipped batches.

        Without ``dispatch``, the epoch is epoch 0 unless ``sets_epoch`` and
        ``keeps_iteration``, and the rest may be empty. With ``dispatch``, the epoch is
        the broken one, and it is an error if nothing is left.

        Raises:
            InputError: as of `Accelerate.epoch`.
        """
        readers = crash.readers_after
        if self.dispatch == "no":
            epoch = crash.epoch if self.sets_epoch and self.keeps_iteration else 0
            batches = self.epoch(data, readers, seed, epoch)
            return ResumedEpoch(batches.after_steps(crash.step))
        # the sampler's batches: of all ranks if they are split, else of one rank
        batches_per_step = readers.world_size if self.dispatch == "split" else 1
        num_skipped = crash.step * batches_per_step * readers.batch_size
        order = self._order.remaining_order(
            num_skipped, data, readers, seed, crash.epoch
        )
        if not len(order.sample):
            return Refusal("TypeError: Unsupported types (<class 'NoneType'>)")
        return ResumedEpoch(batches_from_order(order, readers))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch. Without ``sets_epoch``, the epoch after the broken one
        is epoch 0 again.
        """
        epochs_forgotten = 0 if self.sets_epoch else crash.epoch + 1
        return self.epoch(data, crash.readers_after, seed, epoch - epochs_forgotten)


class TransformersTrainer(ResumptionLaw):
    """``Trainer.train(resume_from_checkpoint=...)`` (transformers 5.24.0,
    transformers/trainer.py ``_init_training_state`` and ``_run_epoch``). It saves the
    number of all steps, and divides it by the steps that an epoch has now: with other
    ranks it goes on in another epoch, or at another step. The rest of the broken epoch
    is everything that is trained on until that epoch ends, including earlier epochs
    that come again; it is empty where a later epoch goes on.

    Attributes:
        kind: its name.
        ignore_data_skip: whether the epoch in which it goes on begins again. The last
            epoch of all then ends as many steps early.
        keeps_epoch: whether skipped batches are of the epoch that goes on. Until
            transformers 4.57 with accelerate 1.14 they were of epoch 0
            (huggingface/transformers#40690, see `SkipFirstBatches`).
    """

    kind: Literal["transformers_trainer"]
    library: ClassVar[str] = "transformers 5.24.0, accelerate 1.15.0"
    saves: ClassVar[str] = "the steps since training began"
    ignore_data_skip: bool = False
    keeps_epoch: bool = True

    @property
    def order(self) -> Order:
        """The order of accelerate, as the trainer prepares its loader."""
        return Accelerate(kind="accelerate")

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the batches that are trained on until the broken epoch ends, with
        steps that count on over several epochs; none if a later epoch goes on.
        """
        return ResumedEpoch(self._batches_between(data, crash, seed, 0, crash.epoch))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return the batches that are trained on in a later epoch, its rest if training
        goes on within it; none if training goes on after it.
        """
        return self._batches_between(data, crash, seed, epoch, epoch)

    def _batches_between(
        self,
        data: ShardedSet,
        crash: Crash,
        seed: int,
        first_epoch: int,
        last_epoch: int,
    ) -> Batches:
        """Return the batches that are trained on from the first to the end of the last
        epoch, with steps that count on from epoch to epoch.

        Nothing comes before the step at which training goes on, or, with
        ``ignore_data_skip``, before the epoch of this step. Rows are sorted by rank and
        step.
        """
        steps_before = self.epoch(data, crash.readers_before, seed, 0).steps
        steps_after = self.epoch(data, crash.readers_after, seed, 0).steps
        # steps were counted by the old epochs, and are divided by the new ones
        steps_done = crash.epoch * steps_before + crash.step
        resumed_epoch, num_skipped = divmod(steps_done, steps_after)
        if self.ignore_data_skip:
            num_skipped = 0
        batches = NOTHING
        for epoch in range(max(resumed_epoch, first_epoch), last_epoch + 1):
            is_skipping = epoch == resumed_epoch and num_skipped > 0
            sampler_epoch = epoch if self.keeps_epoch or not is_skipping else 0
            epoch_batches = self.epoch(data, crash.readers_after, seed, sampler_epoch)
            if is_skipping:
                epoch_batches = epoch_batches.after_steps(num_skipped)
            batches = batches.append(epoch_batches)
        # epochs were appended one after another: by rank and step again
        return batches.select(np.lexsort((batches.step, batches.rank)))
