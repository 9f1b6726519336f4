"""Scheduler: the samples that this rank trains on in every epoch, and their exchange."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.utils.data import DataLoader

from simshuffle.errors import SimshuffleWarning
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import stream
from simshuffle.train.distributed import calls
from simshuffle.train.distributed.carrying import (
    EpochExchange,
    check_shards,
    stage_shard,
)
from simshuffle.train.distributed.dataset import (
    ShardDataset,
    ShardSampler,
    checksum,
    draw_by_weight,
    require_shard_dataset,
)
from simshuffle.train.distributed.group import check_equal
from simshuffle.train.distributed.measuring import (
    TrainedLosses,
    inference_losses,
    shared_importance,
)
from simshuffle.train.distributed.transport import (
    Pair,
    Transfer,
    TransportName,
    make_transport,
)
from simshuffle.train.iterations import (
    TrainingEpochs,
    large_batch_message,
    pass_batches,
)
from simshuffle.train.loss import Loss, check_losses, cross_entropy
from simshuffle.workload.exchange import (
    ExchangePlan,
    MessageSchedule,
    RankPlaces,
    Shards,
    Strategy,
)
from simshuffle.workload.exchange.states import pack_state, unpack_state


class Scheduler(TrainingEpochs):
    """Shuffles the samples of a `ShardDataset` between ranks.

    Every rank calls its methods in the same order: they are collective, except
    ``record_losses``, ``measure_importance`` and ``state_dict``. The samples are staged
    when it is made. Rank 0 issues the first SimshuffleWarning only.

    Args:
        dataset: the samples that are shuffled.
        batch_size: b, samples of a rank in an iteration; also that of the DataLoader.
        fraction: Q of partial local shuffle, by the default schedule.
        strategy: instead of ``fraction``: any strategy, as a record or text, such as
            ``"importance_pair:exchange_fraction=0.1"``.
        drop_last: also that of the DataLoader; see `simshuffle.train.Training`.
        transport: 'isend' (every message of the plan by itself) or 'all_to_all' (all
            messages of an iteration together).
        places: where the ranks are, for strategies with partners of the same host, leaf
            switch or rack.
        weights: (N,) by which each rank draws its epoch from its shard, with
            replacement, the same on all ranks; None for each sample once.

    Attributes:
        batch_size, drop_last: as given.
        sampler: of the DataLoader.
        batch_sizes, owner, epochs_held, epochs_done, remaining, steps_done: as of
            `Epochs`.
        shards, plan: of the epoch that was scheduled last; None before.
        importance: (N,) nats that the plan was made with; None without.

    Raises:
        InputError: an argument is not valid, or not the same on all ranks; the shards
            do not fit into the local storage.
        ExchangeError: a rank could not read or store a sample.
    """

    def __init__(
        self,
        dataset: ShardDataset,
        batch_size: int,
        fraction: float | None = None,
        *,
        strategy: str | Strategy | None = None,
        drop_last: bool = False,
        transport: TransportName = "isend",
        places: RankPlaces | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        require_shard_dataset(dataset)
        arguments = calls.read_arguments(
            fraction, strategy, batch_size, drop_last, transport
        )
        self.dataset = dataset
        self.ranks = dataset.ranks
        calls.check_arguments_equal(dataset, arguments, transport, weights)
        count = len(dataset)
        world_size = self.ranks.world_size
        super().__init__(
            arguments.strategy,
            arguments.training,
            count,
            world_size,
            seed=dataset.seed,
            places=places,
        )
        self._transport_name = transport
        self._has_warned = False
        self._warn(large_batch_message(count, world_size, arguments.training))
        self.owner = dataset.owner()
        check_equal(self.ranks, {"partition": checksum(self.owner)}, calls.REMEDIES)
        self.sampler = ShardSampler(
            sum(self.batch_sizes) if drop_last else -(-count // world_size)
        )
        self.shards: Shards | None = None
        self.plan: ExchangePlan | None = None
        self.importance: Floats | None = None
        self._weights = None if weights is None else calls.read_weights(weights, count)
        self.losses = TrainedLosses(count, world_size)
        self._measured: Floats | None = None  # importance of this rank's samples
        self._exchange: EpochExchange | None = None
        self._under_way = False  # whether an epoch is
        self._batches_yielded = 0  # by `epoch`, in this epoch
        self._communicate_calls = 0  # in this epoch
        self._stage()

    # ------------------------------------------------------------------------------------- an epoch

    def epoch(self, epoch: int, loader: DataLoader[Any] | None = None) -> Iterator[Any]:
        """Return the local batches of an epoch (from 1), with the exchange around them:
        one loop in place of `scheduling`, `synchronize`, `communicate` and
        `clean_local_storage`.

        After each batch it waits for the samples of the iteration before and begins to
        exchange those of this one, or without overlap waits at once; with the last
        batch the epoch ends. Nothing is scheduled before the first batch is taken.
        After a ``break`` it is still under way: call `clean_local_storage`, on all
        ranks. Of an epoch that was broken off before a checkpoint, it gives the rest.

        Args:
            epoch: the one after the last.
            loader: with this scheduler's sampler, batch_size and drop_last; by default
                one without workers.

        Raises:
            InputError: ``loader`` has another sampler; and as of `scheduling`.
            ExchangeError: as of `clean_local_storage`.
        """
        if loader is None:
            loader = DataLoader(
                self.dataset,
                self.batch_size,
                sampler=self.sampler,
                drop_last=self.drop_last,
            )
        self._warn(
            calls.loader_difference(
                loader, self.sampler, self.batch_size, self.drop_last
            )
        )
        return self._batches(epoch, loader)

    def _batches(self, epoch: int, loader: DataLoader[Any]) -> Iterator[Any]:
        """Schedule the epoch, yield its batches, and exchange, as `epoch` says."""
        schedule = self.strategy.exchange_schedule
        overlap = schedule is not None and schedule.overlap
        self.scheduling(epoch)
        pending: Pair = ([], [])
        for batch_number, batch in enumerate(loader, 1):
            self._batches_yielded = batch_number
            yield batch
            self.synchronize(*pending)
            pending = self.communicate()
            if not overlap:
                self.synchronize(*pending)
                pending = ([], [])
        self.synchronize(*pending)
        self.clean_local_storage()

    def scheduling(self, epoch: int) -> None:
        """Plan the epoch (from 1), or its rest: which samples this rank trains on,
        sends and receives.

        ``sampler`` then yields the samples to train on.

        Raises:
            InputError: it is not the epoch after the last one; or the strategy needs an
                importance that was not measured or recorded.
            ExchangeError: the ranks have planned differently.
        """
        calls.check_epoch(epoch, self.epochs_done, under_way=self._under_way)
        if self.steps_done or self.remaining is not None:  # it was saved with the plan
            self._measured = None
        else:
            self.importance = self._shared_importance(epoch)
        self.shards = self.next_shards()
        self.plan = self.next_plan(self.shards, self.importance)
        mark = checksum(self.shards.order, self.plan.sample, self.plan.target)
        check_equal(self.ranks, {"plan": mark}, calls.REMEDIES)
        samples = self.training_rows(self.shards)  # (n, M)
        if self._weights is not None:
            rng = stream(self.dataset.seed, "weights", epoch)
            samples = draw_by_weight(self.shards, len(samples), self._weights, rng)
        begin = self.steps_done * self.batch_size
        # -1 of ranks with a sample less: the sampler drops them, the losses skip them
        rank_samples = samples[:, self.ranks.rank]
        self.sampler.start(rank_samples[rank_samples >= 0], begin)
        self.losses.begin(samples[begin:])
        if self._manifest is not None:
            self._exchange = EpochExchange(
                self.dataset,
                self._manifest,
                self.plan,
                schedule=self._schedule,
                transport=self._transport,
                iterations=len(self.batch_sizes),
                first=self.steps_done,
            )
        self._under_way = True
        self._batches_yielded = 0
        self._communicate_calls = 0

    def communicate(self) -> Pair:
        """Begin to exchange the samples of the next iteration, without waiting; return
        (requests of sends, requests of receives); none after the last iteration of the
        epoch, or where nothing is exchanged.

        Raises:
            InputError: no epoch is scheduled.
            ExchangeError: a peer is gone.
        """
        calls.check_epoch_state(
            "communicate", needs_epoch=True, under_way=self._under_way
        )
        self._communicate_calls += 1
        return ([], []) if self._exchange is None else self._exchange.begin()

    def synchronize(
        self,
        send_req: list[Transfer] | None = None,
        recv_req: list[Transfer] | None = None,
    ) -> None:
        """Wait until the samples that `communicate` began to exchange have arrived, and
        store them beside those that are trained on.

        If one of them is None, wait for all that is under way, if anything is. A sample
        that cannot be stored is reported by `clean_local_storage`, so that no other
        rank waits in vain.

        Raises:
            InputError: no epoch is scheduled, or these are not requests of it.
            ExchangeError: a peer is gone.
        """
        calls.check_epoch_state(
            "synchronize", needs_epoch=True, under_way=self._under_way
        )
        if self._exchange is None:
            return
        if send_req is None or recv_req is None:
            self._exchange.finish_under_way()
        else:
            self._exchange.finish(send_req, recv_req)

    def clean_local_storage(self) -> None:
        """End the epoch: carry out the rest of the plan, wait for it, and, if
        everything has arrived on all ranks, remove the sent samples.

        Raises:
            InputError: no epoch is scheduled.
            ExchangeError: on all ranks: a sample did not arrive. No sent sample is
                removed, and the epoch can be scheduled again.
        """
        calls.check_epoch_state(
            "clean_local_storage", needs_epoch=True, under_way=self._under_way
        )
        warning = ""
        if self._exchange is not None:
            exchange = self._exchange
            self._exchange = None
            self._under_way = False
            iterations = -(-len(self.sampler) // self.batch_size)
            warning = calls.exchange_count_message(
                exchange.num_begun, iterations, self.batch_size
            )
            exchange.finish_all()
            exchange.settle()
        self._under_way = False
        if self.plan is not None:
            self.finish_epoch(self.plan)
        self._warn(warning)

    # ----------------------------------------------------------------------------------- importance

    def record_losses(self, losses: torch.Tensor) -> None:
        """Record the losses (n,) of this rank's next local batch as it was trained on,
        for a strategy with lagging importance.

        Raises:
            InputError: they are not (n,) numbers, but for example their mean, or too
                many; or no epoch is scheduled.
        """
        calls.check_epoch_state(
            "record_losses", needs_epoch=True, under_way=self._under_way
        )
        check_losses(losses, source="scheduler")
        self.losses.record(losses.detach().double().cpu().numpy().ravel())

    def measure_importance(
        self,
        model: nn.Module,
        batch_size: int = 256,
        loss: Loss = cross_entropy,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        refresh_statistics: bool = False,
    ) -> None:
        """Measure the loss of each of this rank's samples, for a strategy with
        importance of its own; before `scheduling`. Not collective, unless layers of the
        model are.

        The next `scheduling` uses the losses up. The model, or the one in
        DistributedDataParallel, is used in eval mode, so with this rank's running
        statistics, which do not change; unless they are to be refreshed.

        Args:
            model: takes inputs as the DataLoader of ``dataset`` gives them, on the
                device of its weights.
            batch_size: samples at once, where statistics are not refreshed.
            loss: the loss of each sample, (n,); by default cross-entropy.
            collate_fn: that of the DataLoader, if it has one of its own.
            refresh_statistics: True for training mode, in the local batches of the
                coming epoch, each of which moves the running statistics.

        Raises:
            InputError: ``loss`` gives no loss for each sample.
        """
        rank = self.ranks.rank
        if refresh_statistics:
            batches = [
                rows[:, rank]
                for rows in pass_batches(self.next_shards(), self.batch_sizes)
            ]
        else:
            samples = np.flatnonzero(self.owner == rank)
            batches = np.split(samples, range(batch_size, len(samples), batch_size))
        self._measured = inference_losses(
            self.dataset, batches, model, loss, collate_fn, training=refresh_statistics
        )

    def _shared_importance(self, epoch: int) -> Floats | None:
        """Return the importance (N,) for the plan of ``epoch``; None if the strategy
        needs none. Collective.

        What was measured is used up. Errors as of `shared_importance` and
        `TrainedLosses.importance`.
        """
        if not self.strategy.needs_importance:
            return None
        if not self.strategy.inference_pass:
            return self.losses.importance(self.ranks, epoch)
        measured = self._measured
        self._measured = None
        return shared_importance(measured, self.owner, self.ranks, epoch)

    # ----------------------------------------------------------------------- checks and checkpoints

    def verify(self) -> None:
        """Check that every sample is on just one rank, on the one that the plans say,
        and as it was when it was staged. Reads all samples.

        Nothing is checked where ranks keep no shards of their own (`stage_shard`).

        Raises:
            InputError: an epoch is under way.
            ExchangeError: on all ranks, with the samples that are missing, twice there,
                misplaced or damaged, and their ranks.
        """
        calls.check_epoch_state("verify", needs_epoch=False, under_way=self._under_way)
        if self._manifest is not None:
            check_shards(
                self.dataset, self.owner, self._manifest, self._schedule.payload
            )

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Return a checkpoint's state to go on from here, between epochs or in the
        middle of one, with any number of ranks; equal on all ranks, for torch.save,
        with arrays as tensors. Not collective.

        Args:
            steps: iterations of this epoch that are done since it was scheduled. By
                default the batches that `epoch` handed out, with the one in hand, or
                else the calls of `communicate`.

        Raises:
            InputError: neither was counted, though samples were taken.
        """
        trained_steps = self.steps_done
        if self._under_way:
            counted = max(self._batches_yielded, self._communicate_calls)
            trained_steps = self.sampler.begin // self.batch_size
            trained_steps += calls.steps_done(steps, counted, self.sampler)
        importance = self.importance if trained_steps else None
        state = pack_state(self.state(trained_steps, importance), self)
        state["losses"] = self.losses.table
        return {
            name: torch.from_numpy(value.copy())
            if isinstance(value, np.ndarray)
            else value
            for name, value in state.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of any number of ranks, of any rank: every rank
        stages its samples from the source.

        The rest of an epoch that was under way comes with ``scheduling(epochs_done +
        1)``: the same batches with as many ranks; with another number each remaining
        sample once, and few change their rank (`Epochs.resume`). Losses that were
        recorded in that epoch before the checkpoint are not in it.

        Raises:
            InputError: it is of another number of samples, another version, or, in the
                middle of an epoch, another strategy or seed, or other ranks where
                samples are drawn by weights.
            ExchangeError: a rank could not read or store a sample.
        """
        saved = unpack_state(state, self)
        calls.check_remaining_weights(saved, self, weighted=self._weights is not None)
        self.resume(saved)
        self.importance = saved.importance
        self.losses = TrainedLosses(len(self.owner), self.ranks.world_size)
        self.losses.table[:] = np.asarray(state["losses"])
        self._exchange = None
        self._under_way = False
        self._stage()

    def _warn(self, warning: str) -> None:
        """Warn on rank 0, unless ``warning`` is '' or any has been issued before."""
        if warning and self.ranks.rank == 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(warning, SimshuffleWarning, stacklevel=3)

    def _stage(self) -> None:
        """Stage the samples, and make manifest and transport for the exchange.
        Collective.
        """
        payload = self._schedule.payload
        self._manifest = stage_shard(self.dataset, self.strategy, self.owner, payload)
        sizes = (
            np.zeros(0, np.int64) if self._manifest is None else self._manifest.sizes
        )
        self._transport = make_transport(
            self._transport_name, self.ranks, sizes, self._schedule
        )

    @property
    def _schedule(self) -> MessageSchedule:
        """The strategy's schedule of messages; the default one if it exchanges nothing."""
        return self.strategy.exchange_schedule or MessageSchedule()
