"""A run of a study on real ranks: DistributedDataParallel, and samples that really travel. Leaves
the same tables as an emulated run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset

from simshuffle.errors import InputError, Problem
from simshuffle.results.timeline import phase_table
from simshuffle.studies.training.record import RunRecord
from simshuffle.train.data import Samples, TrainingSet
from simshuffle.train.distributed.dataset import ShardDataset
from simshuffle.train.distributed.marks import (
    Marks,
    epoch_seconds,
    iteration_seconds,
    timeline_rows,
)
from simshuffle.train.distributed.network import data_parallel, with_batch_norm
from simshuffle.train.distributed.scheduler import Scheduler
from simshuffle.train.distributed.scoring import Scorer
from simshuffle.train.distributed.transport import Pair, TransportName
from simshuffle.train.emulate import initial_model
from simshuffle.train.emulation import Diverged, EpochOutcome
from simshuffle.train.iterations import learning_rate
from simshuffle.train.network import torch_dtype
from simshuffle.train.optimizer import sgd
from simshuffle.train.recording import Recorder, description
from simshuffle.train.run import Run
from simshuffle.train.source import ArraySource

Floats = NDArray[np.float64]
Watcher = Callable[["RankTraining", int], None]
"""Told after every epoch (from 1), on every rank."""


@dataclass(frozen=True)
class MeasuredRun(RunRecord):
    """The record of a run on real ranks, and

    Attributes:
        timeline: columns `simshuffle.results.timeline.PHASE_COLUMNS`, as a simulation has them:
            what each rank did when, in s since all began. Waiting for the others' gradients is in
            ``allreduce``, and for their samples in ``exchange``; bytes are 0.
    """

    timeline: pd.DataFrame


class _Rows(Dataset[tuple[NDArray[Any], int]]):
    """The training samples of a run as (input, label)."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.targets = samples, samples.targets

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, sample: int) -> tuple[NDArray[Any], int]:
        return self.samples.inputs[sample], int(self.samples.targets[sample])


class RankTraining:
    """One rank's part in the training of ``run``, as `train_distributed` makes it.

    Attributes:
        run: what is trained.
        scheduler: of its samples.
        network: in DistributedDataParallel.
        optimizer: of its weights.
    """

    def __init__(
        self,
        run: Run,
        data: TrainingSet,
        *,
        transport: TransportName,
        storage: str | Path | None,
        device: torch.device,
    ) -> None:
        self.run, self.data, self.device, self.dtype = run, data, device, torch_dtype(run.training)
        dataset = ShardDataset(_Rows(data.train), storage, partition=run.partition, seed=run.seed)
        self.ranks = dataset.ranks
        _check_world(run, self.ranks.world_size)
        training = run.training
        self.scheduler = Scheduler(
            dataset,
            training.local_batch_size,
            strategy=run.exchange,
            drop_last=training.drop_last,
            transport=transport,
            places=run.places(),
        )
        self.model = with_batch_norm(
            initial_model(run, data).to(device, self.dtype), training.batch_norm
        )
        self.network = data_parallel(self.model)
        self.optimizer = sgd(self.network, training)
        self._ready = 0.0
        for weight in self.model.parameters():
            weight.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
        size, drop = training.local_batch_size, training.drop_last
        self._loader = DataLoader(
            dataset,
            batch_size=size,
            drop_last=drop,
            sampler=self.scheduler.sampler,
            collate_fn=_arrays,
        )

    def epoch(self, epoch: int) -> tuple[Floats, Marks]:
        """Train for one epoch (from 1).

        Returns:
            The losses (n,) of this rank's samples in order, nats; and when it did what.
        """
        begin, scheduler = self._now(), self.scheduler
        if scheduler.strategy.inference_pass:
            scheduler.measure_importance(_Prepared(self.model, self._prepared))
        measured = self._now()
        scheduler.scheduling(epoch)
        losses, bounds = [], []
        pending: Pair = ([], [])
        at = self._now()
        for iteration, (inputs, targets) in enumerate(self._loader):
            found, pending, passed = self._step(epoch, iteration, inputs, targets, pending)
            losses.append(found)
            bounds.append([at, *passed])
            at = passed[-1]
        scheduler.synchronize(*pending)
        return np.concatenate(losses), Marks(begin, measured, np.array(bounds), self._now())

    def _step(
        self, epoch: int, iteration: int, inputs: NDArray[Any], targets: NDArray[Any], pending: Pair
    ) -> tuple[Floats, Pair, list[float]]:
        """An iteration, in the order of the authors' training loop: the samples of the last one are
        waited for after the backward pass.

        Returns the losses, what is under way, and when each of `PHASES` ended.
        """
        scheduler, schedule = self.scheduler, self.scheduler.strategy.exchange_schedule
        batch, labels = self._prepared(inputs, targets)
        passed = [self._now()]
        losses = F.cross_entropy(self.network(batch), labels, reduction="none")
        found = losses.detach().double().cpu().numpy()
        passed.append(self._now())
        self.optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        end = self._now()
        passed += [self._ready, end]
        scheduler.synchronize(*pending)
        passed.append(self._now())
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(epoch, iteration)
        self.optimizer.step()
        passed.append(self._now())
        pending = scheduler.communicate()
        if schedule is not None and not schedule.overlap:
            scheduler.synchronize(*pending)
            pending = ([], [])
        scheduler.record_losses(torch.from_numpy(found))
        passed.append(self._now())
        return found, pending, passed

    def learning_rate(self, epoch: int, iteration: int) -> float:
        """That of an iteration (from 0) of an epoch (from 1), the same as on emulated ranks."""
        return learning_rate(
            self.run.training,
            self.ranks.world_size,
            epoch,
            iteration,
            len(self.scheduler.batch_sizes),
        )

    def _prepared(
        self, inputs: NDArray[Any], targets: NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source = ArraySource(
            Samples(inputs, targets),
            self.data.mean,
            self.data.std,
            dtype=self.dtype,
            device=self.device,
        )
        return source.batch(np.arange(len(targets)))

    def _note(self, weight: torch.Tensor) -> None:
        """A gradient is there; what follows the last one in the backward pass is the wait for those
        of the other ranks."""
        self._ready = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class _Prepared(nn.Module):
    """A network that takes samples as they are stored."""

    def __init__(
        self,
        network: nn.Module,
        prepare: Callable[[NDArray[Any], NDArray[Any]], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        super().__init__()
        self.network, self._prepare = network, prepare

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        batch, _ = self._prepare(inputs.cpu().numpy(), np.zeros(len(inputs), np.int64))
        logits: torch.Tensor = self.network(batch)
        return logits


def train_distributed(
    run: Run,
    *,
    data: TrainingSet | None = None,
    transport: TransportName = "isend",
    storage: str | Path | None = None,
    device: torch.device | str = "cpu",
    evaluate: bool = True,
    watcher: Watcher | None = None,
) -> MeasuredRun | None:
    """Train ``run`` on the ranks of the process group, which must be as many as its ``world_size``.
    Every rank calls it.

    Weights and shards are those of `simshuffle.train.train_run` to rounding, except where layers
    such as dropout draw at random. The seconds of the iterations table are means over ranks.

    Args:
        run: what to train.
        data: that of ``run``, if it is loaded already.
        transport: 'isend' or 'all_to_all'; see `Scheduler`.
        storage: folder on the local storage for the shards, which are removed at the end; None for
            memory.
        device: that trains, of this rank.
        evaluate: whether rank 0 evaluates; the columns are NaN otherwise.
        watcher: called after every epoch.

    Returns:
        The record on rank 0, None on the others. Its status is 'failed', with the epochs before,
        where the loss was no longer finite.

    Raises:
        InputError: the run cannot be trained so.
        ExchangeError: samples could not be exchanged; none is lost.
    """
    data = run.data.load() if data is None else data
    rank = RankTraining(
        run, data, transport=transport, storage=storage, device=torch.device(device)
    )
    scheduler, training = rank.scheduler, run.training
    recorder = Recorder(run.exchange, scheduler.owner, data.train.targets)
    scorer = Scorer(run, data, scheduler.ranks, torch.device(device)) if evaluate else None
    timeline: list[dict[str, NDArray[Any]]] = []
    message = ""
    scheduler.ranks.barrier()
    start = time.perf_counter()  # of this rank's clock; all ranks are here
    for epoch in range(1, training.epochs + 1):
        losses, marks = rank.epoch(epoch)
        every = np.array(
            [np.asarray(part, np.float64) for part in scheduler.ranks.gather(marks.flat() - start)]
        )
        try:
            outcome = _outcome(rank, epoch, losses, every)
        except Diverged as error:
            scheduler.clean_local_storage()
            message = str(error)
            break
        scheduler.losses.share(scheduler.ranks)
        scheduler.clean_local_storage()
        wanted = scorer is not None and (
            epoch % training.evaluate_every == 0 or epoch == training.epochs
        )
        scores = scorer.scores(rank.model) if scorer is not None and wanted else {}
        timeline += timeline_rows(epoch, every)
        recorder.add(outcome, scheduler.losses.table, scores)
        if watcher is not None:
            watcher(rank, epoch)
    scheduler.dataset.unstage()
    if scheduler.ranks.rank != 0:
        return None
    described = _described(run, data, rank)
    record = recorder.record(described, "done" if not message else "failed", message)
    return MeasuredRun(**record.__dict__, timeline=phase_table(described["label"], timeline))


def _described(run: Run, data: TrainingSet, rank: RankTraining) -> dict[str, Any]:
    """What a record says about its run."""
    names: dict[str, Any] = {
        "data": data.name,
        "model": run.model.kind,
        "partition": run.partition.kind,
        "device": rank.device.type,
        "world_size": run.world_size,
        "seed": run.seed,
        "num_samples": len(data.train),
        "parameters": sum(weight.numel() for weight in rank.model.parameters()),
    }
    return description(run.exchange, run.training, **names)


def _outcome(rank: RankTraining, epoch: int, losses: Floats, every: Floats) -> EpochOutcome:
    """What all ranks together did in an epoch; ``every`` has the marks (M, n) of all.

    Raises:
        Diverged: on all ranks: a loss or weight is not finite.
    """
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
        learning_rate=rank.learning_rate(epoch, len(sizes) - 1),
        iterations=iteration_seconds(every),
        importance_s=importance_s if inference else 0.0,
        seconds=total_s,
    )


def _check_finite(rank: RankTraining, epoch: int, losses: Floats) -> None:
    """See that all ``losses`` (M, n) and weights are finite."""
    bad = ~np.isfinite(losses)
    last = len(rank.scheduler.batch_sizes) - 1
    if bad.any():
        iteration = int(np.argmax(bad.any(axis=0))) // rank.run.training.local_batch_size
        begin = iteration * rank.run.training.local_batch_size
        first = int(
            np.argmax(bad[:, begin : begin + rank.run.training.local_batch_size].any(axis=1))
        )
        raise Diverged(epoch, iteration, first, rank.learning_rate(epoch, iteration))
    if not all(bool(torch.isfinite(weight).all()) for weight in rank.model.parameters()):
        raise Diverged(
            epoch,
            last,
            0,
            rank.learning_rate(epoch, last),
            "a weight, which all ranks share, after the update",
        )


def _check_world(run: Run, world_size: int) -> None:
    if run.world_size != world_size:
        remedy = f"Use torchrun with {run.world_size} processes, or set world_size to {world_size}."
        raise InputError(
            Problem(
                "world_size",
                f"must be the number of processes, {world_size}",
                str(run.world_size),
                remedy,
            ),
            "run",
        )


def _arrays(items: list[tuple[NDArray[Any], int]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return np.stack([given for given, _ in items]), np.array(
        [target for _, target in items], np.int64
    )
