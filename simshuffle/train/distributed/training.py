"""A run of a study on real ranks, with the same tables as an emulated run."""

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
    epoch_seconds,
    iteration_seconds,
    marks,
    timeline_rows,
)
from simshuffle.train.distributed.network import data_parallel, gathered, with_batch_norm
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
"""Told after every epoch (from 1), on every rank."""


@dataclass(frozen=True)
class MeasuredRun(RunRecord):
    """The record of a run on real ranks, and"""

    # columns `simshuffle.report.timeline.PHASE_COLUMNS`, as a simulation has them: what each rank
    # did when, in s since all began. Waiting for the others' gradients is in ``allreduce``, and for
    # their samples in ``exchange``; bytes are 0.
    timeline: pd.DataFrame


class RankTraining:
    """One rank's part in the training of ``run``, as `train_distributed` makes it."""

    def __init__(
        self,
        run: Run,
        materials: Materials,
        *,
        transport: TransportName,
        storage: str | Path | None,
        device: torch.device,
    ) -> None:
        self.run, self.device = run, device
        self._loss, self._collate = materials.loss, materials.train.collate
        training = run.training
        shuffled = run.shuffled(len(materials.train))
        self._contrast = contrast_of(shuffled, materials.augmentation, materials.loss)
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
        self.scheduler.training = training  # the rest of it, of which a learning rate is made
        model = copy.deepcopy(materials.model).to(device, torch_dtype(training))
        set_statistics_momentum(model, training.statistics_momentum)
        mode, together = training.by_group(run.world_size)
        # of the ranks that this one normalises with, where they are some and not all
        self._group: dist.ProcessGroup | None = None
        if mode == "per_rank" and together > 1:
            mode, self._group = "sync", dist.new_subgroups(together)[0]  # type: ignore[no-untyped-call]
        self.model = with_batch_norm(model, mode, self._group)
        self.network = data_parallel(self.model)
        self.optimizer = optimizer_of(self.model, training, materials.optimizer)
        self._ready = 0.0
        for weight in self.model.parameters():
            weight.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
        self._loader = DataLoader(
            dataset,
            training.local_batch_size,
            drop_last=training.drop_last,
            sampler=self.scheduler.sampler,
            collate_fn=self._collate,
        )

    def end(self) -> None:
        """Give up what the training alone needed."""
        self.scheduler.dataset.unstage()
        if self._group is not None:
            dist.destroy_process_group(self._group)

    def epoch(self, epoch: int) -> tuple[Floats, Floats]:
        """Train for one epoch (from 1): the losses (n,) of this rank's samples, nats; and its
        `marks`."""
        begin, scheduler = self._now(), self.scheduler
        if scheduler.strategy.inference_pass:
            scheduler.measure_importance(
                self.model,
                loss=self._loss,
                collate_fn=self._collate,
                refresh_statistics=self.run.training.refreshes_statistics,
            )
        measured = self._now()
        scheduler.scheduling(epoch)
        losses, bounds = [], []
        pending: Pair = ([], [])
        at = self._now()
        for iteration, batch in enumerate(self._loader):
            found, pending, passed = self._step(epoch, iteration, batch, pending)
            losses.append(found)
            bounds.append([at, *passed])
            at = passed[-1]
        scheduler.synchronize(*pending)
        return np.concatenate(losses), marks(begin, measured, bounds, self._now())

    def _step(
        self, epoch: int, iteration: int, batch: Batch, pending: Pair
    ) -> tuple[Floats, Pair, list[float]]:
        """An iteration, in the order of the authors' training loop: samples are waited for after
        the backward pass. Returns losses, what is under way, and when each of `PHASES` ended."""
        scheduler, schedule = self.scheduler, self.scheduler.strategy.exchange_schedule
        passed = [self._now()]
        losses = self._losses(epoch, iteration, batch)
        found = losses.detach().double().cpu().numpy()
        passed.append(self._now())
        self.optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        end = self._now()
        passed += [self._ready, end]
        scheduler.synchronize(*pending)
        passed.append(self._now())
        set_rate(self.optimizer, scheduler.learning_rate(epoch, iteration))
        self.optimizer.step()
        passed.append(self._now())
        pending = scheduler.communicate()
        if schedule is not None and not schedule.overlap:
            scheduler.synchronize(*pending)
            pending = ([], [])
        scheduler.record_losses(torch.from_numpy(found))
        passed.append(self._now())
        return found, pending, passed

    def _losses(self, epoch: int, iteration: int, batch: Batch) -> torch.Tensor:
        """The losses (n,) of a local batch, to be trained on."""
        inputs, targets = batch
        if self._contrast is None:
            return self._loss(self.network(inputs), targets)
        begin = iteration * self.run.training.local_batch_size
        samples = self.scheduler.sampler.order[begin : begin + len(inputs)]
        embeddings = self.network(self._contrast.views.pair(inputs, samples, epoch))
        if not self._contrast.gathered:
            return self._contrast.losses(embeddings, 1)
        everyone = gathered(embeddings, self.ranks.world_size)
        losses = self._contrast.losses(everyone, self.ranks.world_size)
        return losses[self.ranks.rank :: self.ranks.world_size]

    def _note(self, weight: torch.Tensor) -> None:
        """A gradient is there; the wait for those of the other ranks follows the last one."""
        self._ready = self._now()

    def _now(self) -> float:
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
    """Train ``run`` on the ranks of the process group, which must be as many as its ``world_size``.
    Every rank calls it.

    Weights and shards are those of `simshuffle.train.train_run` to rounding, except where layers
    such as dropout draw at random. The seconds of the iterations table are means over ranks.

    Args:
        run: what to train.
        data: that of ``run``, if it is loaded already; or all that it is trained with.
        transport: 'isend' or 'all_to_all'; see `Scheduler`.
        storage: folder on the local storage for the shards, which are removed at the end; None for
            memory.
        device: that trains, of this rank.
        watcher: called after every epoch.

    Returns:
        The record on rank 0, None on the others. Its status is 'failed', with the epochs before,
        where the loss was no longer finite.

    Raises:
        InputError: the run cannot be trained so.
        ExchangeError: samples could not be exchanged; none is lost.
    """
    where = torch.device(device)
    materials = data if isinstance(data, Materials) else materials_of(run, where, data)
    rank = RankTraining(run, materials, transport=transport, storage=storage, device=where)
    scheduler, training = rank.scheduler, run.training
    recorder = TrainingRecorder(
        scheduler,
        rank.model,
        materials.train.targets,
        device=where.type,
        data=materials.data_name,
        model=materials.model_name,
        partition=run.partition.kind,
    )
    scorer = Scorer(run, materials, scheduler.ranks, where)
    timeline: list[dict[str, NDArray[Any]]] = []
    message = ""
    scheduler.ranks.barrier()
    start = time.perf_counter()  # of this rank's clock; all ranks are here
    for epoch in range(1, training.epochs + 1):
        losses, of_rank = rank.epoch(epoch)
        every = np.array(
            [np.asarray(part, np.float64) for part in scheduler.ranks.gather(of_rank - start)]
        )
        try:
            outcome = _outcome(rank, epoch, losses, every)
        except Diverged as error:
            scheduler.clean_local_storage()
            message = str(error)
            break
        scheduler.losses.share(scheduler.ranks)
        scheduler.clean_local_storage()
        scores = scorer.scores(rank.model) if training.evaluates(epoch) else {}
        timeline += timeline_rows(epoch, every)
        recorder.add(outcome, scheduler.losses.table, scores)
        if watcher is not None:
            watcher(rank, epoch)
    rank.end()
    if scheduler.ranks.rank != 0:
        return None
    record = recorder.record(message)
    timed = phase_table(record.description["label"], timeline)
    return MeasuredRun(**record.__dict__, timeline=timed)


def _outcome(rank: RankTraining, epoch: int, losses: Floats, every: Floats) -> EpochOutcome:
    """What all ranks together did in an epoch; ``every`` has the marks (M, n) of all. Raises
    Diverged, on all ranks, if a loss or weight is not finite."""
    scheduler, ranks = rank.scheduler, rank.ranks
    shards, plan, sizes = scheduler.shards, scheduler.plan, scheduler.batch_sizes
    if shards is None or plan is None:
        raise RuntimeError("no epoch was scheduled")
    everyone = np.array([np.asarray(part, np.float64) for part in ranks.gather(losses)])
    _check_finite(rank, epoch, everyone)
    importance_s, total_s = epoch_seconds(every)
    inference = scheduler.strategy.inference_pass
    return EpochOutcome(
        epoch=epoch,
        shards=shards,
        plan=plan,
        importance=scheduler.importance,
        train_loss=float(everyone.mean()),
        samples=sum(sizes) * ranks.world_size,
        learning_rate=rank.scheduler.learning_rate(epoch, len(sizes) - 1),
        iterations=iteration_seconds(every),
        importance_s=importance_s if inference else 0.0,
        seconds=total_s,
    )


def _check_finite(rank: RankTraining, epoch: int, losses: Floats) -> None:
    """See that all ``losses`` (M, n) and weights are finite."""
    bad, size = ~np.isfinite(losses), rank.run.training.local_batch_size
    last = len(rank.scheduler.batch_sizes) - 1
    if bad.any():
        iteration = int(np.argmax(bad.any(axis=0))) // size
        of_iteration = bad[:, iteration * size : (iteration + 1) * size]
        first = int(np.argmax(of_iteration.any(axis=1)))
        raise Diverged(epoch, iteration, first, rank.scheduler.learning_rate(epoch, iteration))
    check_weights(rank.model, epoch, last, rank.scheduler.learning_rate(epoch, last))


def check_world(wanted: int, world_size: int) -> None:
    """See that there are as many processes as ranks are ``wanted``, or raise InputError."""
    if wanted != world_size:
        remedy = f"Use torchrun with {wanted} processes, or set world_size to {world_size}."
        rule = f"must be the number of processes, {world_size}"
        refuse("world_size", rule, str(wanted), remedy, "run")
