"""Training a run of a study on real ranks, with tables as of an emulated run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from simshuffle.errors import refuse
from simshuffle.report.timeline import phase_table
from simshuffle.spec.arrays import Floats
from simshuffle.studies.training.tables import RunRecord
from simshuffle.train.batch_norm import set_statistics_momentum
from simshuffle.train.distributed.dataset import ShardDataset
from simshuffle.train.distributed.measuring import (
    Scorer,
    clock_marks,
    epoch_seconds,
    iteration_seconds,
    timeline_rows,
)
from simshuffle.train.distributed.network import (
    data_parallel,
    gather_rows,
    with_batch_norm,
)
from simshuffle.train.distributed.scheduler import Scheduler
from simshuffle.train.distributed.transport import Pair, TransportName
from simshuffle.train.emulate import Materials, materials_of
from simshuffle.train.emulation import Diverged, EpochOutcome, check_weights, now
from simshuffle.train.loss import contrast_of
from simshuffle.train.network import torch_dtype
from simshuffle.train.recording import TrainingRecorder
from simshuffle.train.run import Run
from simshuffle.train.samples import TrainingSet
from simshuffle.train.training import optimizer_of, set_rate

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (n, *shape) and targets (n,) of a rank."""
Watcher = Callable[["RankTraining", int], None]
"""Called with the training and the epoch (from 1) after every epoch, on every rank."""


@dataclass(frozen=True)
class MeasuredRun(RunRecord):
    """The record of a run on real ranks, with the times of all phases."""

    # columns `simshuffle.report.timeline.PHASE_COLUMNS`, as a simulation has them: when each rank
    # was in which phase, in s since all began. Waiting for the others' gradients is in
    # ``allreduce``, and for their samples in ``exchange``; bytes are 0.
    timeline: pd.DataFrame


class RankTraining:
    """The training of a run on one rank of a process group.

    Args:
        run: what to train.
        materials: network and samples.
        transport: of the samples.
        storage: folder on the local storage for the shards; None for memory.
        device: that trains, of this rank.

    Making one is collective: it stages the samples.

    Raises:
        InputError: the run cannot be trained so, or needs another number of processes.
        ExchangeError: a rank could not read or store a sample.
    """

    def __init__(
        self,
        run: Run,
        materials: Materials,
        *,
        transport: TransportName,
        storage: str | Path | None,
        device: torch.device,
    ) -> None:
        self.run = run
        self.device = device
        self._loss = materials.loss
        self._collate = materials.train.collate
        training = run.training
        epochs = run.new_epochs(len(materials.train))
        self._contrast = contrast_of(epochs, materials.augmentation, materials.loss)
        dataset = ShardDataset(
            materials.train.items,
            storage,
            partition=run.partition,
            seed=run.seed,
            targets=materials.train.targets,
        )
        self.ranks = dataset.ranks
        check_world(run.world_size, self.ranks.world_size)
        self.scheduler = Scheduler(
            dataset,
            training.local_batch_size,
            strategy=run.exchange,
            drop_last=training.drop_last,
            transport=transport,
            places=run.places(),
        )
        self.scheduler.training = training  # with the settings of the learning rate too
        model = copy.deepcopy(materials.model).to(device, torch_dtype(training))
        set_statistics_momentum(model, training.statistics_momentum)
        mode, ranks_per_group = training.norm_groups(run.world_size)
        # the ranks that this one normalises with; None for itself alone or all
        self._group: dist.ProcessGroup | None = None
        if mode == "per_rank" and ranks_per_group > 1:
            mode = "sync"
            self._group = dist.new_subgroups(ranks_per_group)[0]  # type: ignore[no-untyped-call]
        self.model = with_batch_norm(model, mode, self._group)
        self.network = data_parallel(self.model)
        self.optimizer = optimizer_of(self.model, training, materials.optimizer)
        self._gradients_ready = 0.0  # s of the clock, when the last gradient was there
        for weight in self.model.parameters():
            weight.register_post_accumulate_grad_hook(self._mark_gradient)  # type: ignore[no-untyped-call]
        self._loader = DataLoader(
            dataset,
            training.local_batch_size,
            drop_last=training.drop_last,
            sampler=self.scheduler.sampler,
            collate_fn=self._collate,
        )

    def end(self) -> None:
        """Remove the shard from local storage, and the process group of the batch norm."""
        self.scheduler.dataset.unstage()
        if self._group is not None:
            dist.destroy_process_group(self._group)

    def epoch(self, epoch: int) -> tuple[Floats, Floats]:
        """Train for one epoch, counted from 1, and exchange samples. Collective.

        Losses that are not finite do not stop it. The scheduler's epoch stays under
        way: `Scheduler.clean_local_storage` ends it.

        Returns:
            Losses (n,) of this rank's samples, in nats and in the order in which they
            were trained on; and its `clock_marks`.
        """
        begin = self._now()
        scheduler = self.scheduler
        if scheduler.strategy.inference_pass:
            scheduler.measure_importance(
                self.model,
                loss=self._loss,
                collate_fn=self._collate,
                refresh_statistics=self.run.training.refreshes_statistics,
            )
        measured = self._now()
        scheduler.scheduling(epoch)
        losses = []
        bounds = []
        pending: Pair = ([], [])
        iteration_begin = self._now()
        for iteration, batch in enumerate(self._loader):
            batch_losses, pending, phase_ends = self._step(
                epoch, iteration, batch, pending
            )
            losses.append(batch_losses)
            bounds.append([iteration_begin, *phase_ends])
            iteration_begin = phase_ends[-1]
        scheduler.synchronize(*pending)
        return np.concatenate(losses), clock_marks(begin, measured, bounds, self._now())

    def _step(
        self, epoch: int, iteration: int, batch: Batch, pending: Pair
    ) -> tuple[Floats, Pair, list[float]]:
        """Train on one batch, in the order of the authors' training loop: samples are
        waited for after the backward pass. The scheduler records the losses.

        Args:
            epoch: counted from 1.
            iteration: of the epoch, counted from 0.
            batch: of this rank.
            pending: requests of the iteration before.

        Returns:
            Losses (n,) of the batch in nats, the requests that are under way (none
            without overlap), and when each of `PHASES` ended, in s of this rank's
            clock.
        """
        scheduler = self.scheduler
        schedule = scheduler.strategy.exchange_schedule
        phase_ends = [self._now()]
        losses = self._losses(epoch, iteration, batch)
        loss_values = losses.detach().double().cpu().numpy()
        phase_ends.append(self._now())
        self.optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        allreduce_end = self._now()
        phase_ends += [self._gradients_ready, allreduce_end]
        scheduler.synchronize(*pending)
        phase_ends.append(self._now())
        set_rate(self.optimizer, scheduler.learning_rate(epoch, iteration))
        self.optimizer.step()
        phase_ends.append(self._now())
        pending = scheduler.communicate()
        if schedule is not None and not schedule.overlap:
            scheduler.synchronize(*pending)
            pending = ([], [])
        scheduler.record_losses(torch.from_numpy(loss_values))
        phase_ends.append(self._now())
        return loss_values, pending, phase_ends

    def _losses(self, epoch: int, iteration: int, batch: Batch) -> torch.Tensor:
        """Return the losses (n,) of a local batch, to be trained on. Collective where a
        contrastive loss gathers the batches of all ranks.
        """
        inputs, targets = batch
        if self._contrast is None:
            return self._loss(self.network(inputs), targets)
        begin = iteration * self.run.training.local_batch_size
        samples = self.scheduler.sampler.order[begin : begin + len(inputs)]
        embeddings = self.network(self._contrast.views.pair(inputs, samples, epoch))
        if not self._contrast.gathered:
            return self._contrast.losses(embeddings, 1)
        all_embeddings = gather_rows(embeddings, self.ranks.world_size)
        losses = self._contrast.losses(all_embeddings, self.ranks.world_size)
        # the rank is the fastest index
        return losses[self.ranks.rank :: self.ranks.world_size]

    def _mark_gradient(self, weight: torch.Tensor) -> None:
        """Note when the gradient of a weight is there, in s of this rank's clock; that
        of the last weight stays. The wait for the other ranks follows.
        """
        self._gradients_ready = self._now()

    def _now(self) -> float:
        """Return this rank's clock in s, once a GPU has done its work."""
        return now(self.device)


def train_distributed(
    run: Run,
    *,
    data: TrainingSet | Materials | None = None,
    transport: TransportName = "isend",
    storage: str | Path | None = None,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> MeasuredRun | None:
    """Train ``run`` on the ranks of the process group, which must be as many as its
    ``world_size``. Every rank calls it.

    Weights and shards are those of `simshuffle.train.train_run` to rounding, except
    where layers such as dropout draw at random. The seconds of the iterations table are
    means over ranks, without the reading of samples. A loss that is not finite is
    noticed at the end of its epoch.

    Args:
        run: what to train.
        data: that of ``run``, if it is loaded already; or all that it is trained with.
        transport: 'isend' or 'all_to_all'; see `Scheduler`.
        storage: folder on the local storage for the shards, which are removed at the
            end, though not after an error; None for memory.
        device: that trains, of this rank.
        watcher: called on every rank after every epoch that did not fail.

    Returns:
        The record on rank 0, None on the others. Its status is 'failed', with the
        epochs before, where a loss or a weight was no longer finite.

    Raises:
        InputError: the run cannot be trained so.
        ExchangeError: samples could not be exchanged; none is lost.
    """
    torch_device = torch.device(device)
    materials = (
        data if isinstance(data, Materials) else materials_of(run, torch_device, data)
    )
    rank = RankTraining(
        run, materials, transport=transport, storage=storage, device=torch_device
    )
    scheduler = rank.scheduler
    training = run.training
    recorder = TrainingRecorder(
        scheduler,
        rank.model,
        materials.train.targets,
        device=torch_device.type,
        data=materials.data_name,
        model=materials.model_name,
        partition=run.partition.kind,
    )
    scorer = Scorer(run, materials, scheduler.ranks, torch_device)
    timeline: list[dict[str, NDArray[Any]]] = []
    message = ""
    scheduler.ranks.barrier()
    start = time.perf_counter()  # of this rank's clock; all ranks are here
    for epoch in range(1, training.epochs + 1):
        losses, rank_marks = rank.epoch(epoch)
        parts = scheduler.ranks.gather(rank_marks - start)
        marks = np.array([np.asarray(part, np.float64) for part in parts])  # (M, n)
        try:
            outcome = _epoch_outcome(rank, epoch, losses, marks)
        except Diverged as error:
            scheduler.clean_local_storage()
            message = str(error)
            break
        scheduler.losses.share(scheduler.ranks)
        scheduler.clean_local_storage()
        scores = scorer.scores(rank.model) if training.evaluates(epoch) else {}
        timeline += timeline_rows(epoch, marks)
        recorder.add(outcome, scheduler.losses.table, scores)
        if watcher is not None:
            watcher(rank, epoch)
    rank.end()
    if scheduler.ranks.rank != 0:
        return None
    record = recorder.record(message)
    phases = phase_table(record.description["label"], timeline)
    return MeasuredRun(**record.__dict__, timeline=phases)


def _epoch_outcome(
    rank: RankTraining, epoch: int, losses: Floats, marks: Floats
) -> EpochOutcome:
    """Return the outcome of an epoch over all ranks. Collective.

    Times are means over ranks; ``seconds`` is the whole epoch, with the measuring of
    importance.

    Args:
        rank: this rank's training.
        epoch: counted from 1.
        losses: (n,) of this rank's samples.
        marks: (M, n) `clock_marks` of all ranks.

    Raises:
        Diverged: on all ranks, if a loss or weight is not finite.
    """
    scheduler = rank.scheduler
    ranks = rank.ranks
    shards = scheduler.shards
    plan = scheduler.plan
    sizes = scheduler.batch_sizes
    if shards is None or plan is None:
        raise RuntimeError("no epoch was scheduled")
    all_losses = np.array(
        [np.asarray(part, np.float64) for part in ranks.gather(losses)]
    )
    _check_finite(rank, epoch, all_losses)
    importance_s, total_s = epoch_seconds(marks)
    has_pass = scheduler.strategy.inference_pass
    return EpochOutcome(
        epoch=epoch,
        shards=shards,
        plan=plan,
        importance=scheduler.importance,
        train_loss=float(all_losses.mean()),
        samples=sum(sizes) * ranks.world_size,
        learning_rate=rank.scheduler.learning_rate(epoch, len(sizes) - 1),
        iterations=iteration_seconds(marks),
        importance_s=importance_s if has_pass else 0.0,
        seconds=total_s,
    )


def _check_finite(rank: RankTraining, epoch: int, losses: Floats) -> None:
    """Raise Diverged if one of the ``losses`` (M, n) of an epoch, or a weight, is not
    finite.

    It names the first iteration, and the first rank in it; for a weight the last
    iteration and rank 0.
    """
    is_bad = ~np.isfinite(losses)
    batch_size = rank.run.training.local_batch_size
    last = len(rank.scheduler.batch_sizes) - 1
    if is_bad.any():
        iteration = int(np.argmax(is_bad.any(axis=0))) // batch_size
        bad_in_iteration = is_bad[
            :, iteration * batch_size : (iteration + 1) * batch_size
        ]
        first_rank = int(np.argmax(bad_in_iteration.any(axis=1)))
        rate = rank.scheduler.learning_rate(epoch, iteration)
        raise Diverged(epoch, iteration, first_rank, rate)
    check_weights(rank.model, epoch, last, rank.scheduler.learning_rate(epoch, last))


def check_world(run_size: int, world_size: int) -> None:
    """Raise InputError unless the ``world_size`` of the process group is that of the
    run.
    """
    if run_size != world_size:
        remedy = f"Use torchrun with {run_size} processes, or set world_size to {world_size}."
        rule = f"must be the number of processes, {world_size}"
        refuse("world_size", rule, str(run_size), remedy, "run")
