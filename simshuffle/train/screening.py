"""Screening: estimate in minutes what shuffling strategies cost a trained network,
without training it again.

Ranks differ by the running statistics of their batch norm, and these follow from the
weights and from the samples that a rank has read of late. So the weights stay as they
are, the last iterations of each strategy are read once more in training mode, and every
rank is evaluated with the statistics that result. The loss of weights that were trained
so is not included: that takes a study (`simshuffle.train.train_study`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.record import Count, Spec
from simshuffle.studies.training.running_statistics import (
    count_remembered_epochs,
    number_by_iteration,
    share_after_epoch,
)
from simshuffle.study.standing import show_share, study_progress
from simshuffle.train.batch_norm import batch_norm_layers, statistics_momentum
from simshuffle.train.emulate import find_device, plain_values, read_records
from simshuffle.train.emulation import Progress
from simshuffle.train.evaluate import own_pairs, own_score
from simshuffle.train.iterations import TrainingEpochs
from simshuffle.train.network import inference_losses, ranked_network
from simshuffle.train.partition import Partition, check_ranks, label_divergence
from simshuffle.train.recording import strategy_label
from simshuffle.train.screening_result import GLOBAL, Screening
from simshuffle.train.sources import DatasetSource, Source
from simshuffle.train.training import Training
from simshuffle.workload.exchange import Shards, Strategy, TrainedExchange

LEVEL = 0.90
"""Probability of every interval."""
OWN_RANKS = 4
"""Ranks that evaluate each test sample."""


def _no_progress(_share: float) -> None:
    """Ignore the share that is done."""


class _Settings(Spec):
    """Arguments of `screen` that are records."""

    strategies: list[TrainedExchange]
    world_size: list[Count]
    partition: Partition
    training: Training

    @property
    def momentum(self) -> float:
        """The momentum of the running statistics."""
        return self.training.statistics_momentum or 0.0


def screen(
    model: nn.Module,
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    strategies: Sequence[str | Strategy] = ("local_shuffle",),
    world_size: int | Sequence[int],
    local_batch_size: int = 8,
    momentum: float | None = None,
    epochs: int = 30,
    partition: str | Partition = "random",
    seeds: int = 3,
    ranks: int = 64,
    device: str = "auto",
    progress: bool | Progress = True,
) -> Screening:
    """Estimate what strategies cost a trained ``model`` through its batch-norm
    statistics; the model does not change.

    The loss depends on the samples that a rank has and on its batches, hardly on the
    number of ranks: of a large data set a part is enough, on as many ranks as give each
    as many samples.

    Ranks begin with the model's running statistics. Importance is the loss under the
    trained model, the same in every epoch.

    Args:
        model: trained, in any way; gives logits.
        train, test: map-style datasets of pairs (input, target), targets whole numbers
            from 0.
        strategies: as of `simshuffle.train.train_study`; they are compared with global
            shuffle.
        world_size: M, or several.
        local_batch_size: b.
        momentum: of the running statistics; that of the layers if None.
        epochs: of each strategy, before ranks are evaluated; exchanges mix shards over
            them.
        partition: who holds which sample before the first epoch.
        seeds: how many draws of shards and exchange, of seeds 0, 1, ...; two or more
            make intervals.
        ranks: the most that are emulated of the M: the first ones.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        progress: whether standard error shows how far it is and how long it takes; or a
            function of the share that is done.

    Raises:
        InputError: an argument is not valid; the model has no batch norm, or layers
            that differ in their momentum; there are fewer samples than ranks; or a
            strategy has partners of the same host, leaf switch or rack.
    """
    torch_device = find_device(device)
    train_source = DatasetSource(train, device=torch_device, name="train")
    test_source = DatasetSource(test, device=torch_device, name="test")
    display = show_share("screening", study_progress)
    with display if progress is True else nullcontext(progress or None) as tell:
        screening = screen_sources(
            model,
            train_source,
            test_source,
            strategies=[strategies] if isinstance(strategies, str) else strategies,
            world_size=[world_size] if isinstance(world_size, int) else world_size,
            local_batch_size=local_batch_size,
            momentum=momentum,
            epochs=epochs,
            partition=partition,
            seeds=seeds,
            ranks=ranks,
            device=torch_device,
            tell=tell or _no_progress,
        )
    return replace(screening, data=type(train).__name__)


def screen_sources(
    model: nn.Module,
    train: Source,
    test: Source,
    *,
    strategies: Sequence[str | Strategy],
    world_size: Sequence[int],
    local_batch_size: int,
    momentum: float | None = None,
    epochs: int,
    partition: str | Partition,
    seeds: int,
    ranks: int,
    device: torch.device | None = None,
    tell: Progress = _no_progress,
) -> Screening:
    """Screen as `screen`, with samples that are sources already; ``tell`` gets the
    share that is done, 0 to 1.

    Inputs must be float32, and on ``device``, the CPU if None. The result's ``data`` is
    the class of ``train``, a source.
    """
    for name, count in (("seeds", seeds), ("ranks", ranks)):
        if count < 1:
            refuse(name, "must be at least 1", str(count), "Give 1 or more.", "screen")
    training: dict[str, Any] = {"local_batch_size": local_batch_size, "epochs": epochs}
    settings = read_records(
        _Settings,
        "screen",
        strategies=[
            plain_values(strategy, "strategies", "screen") for strategy in strategies
        ],
        world_size=list(world_size),
        partition=partition,
        training=training | {"statistics_momentum": _momentum(model, momentum)},
    )
    for count in settings.world_size:
        check_ranks(len(train), count)
    replay = _Replay(model, train, test, settings, ranks, device or torch.device("cpu"))
    rows = list(_rows(replay, settings.world_size, seeds, tell))
    return _summarise(rows, type(model).__name__, type(train).__name__, settings, seeds)


def _momentum(model: nn.Module, argument: float | None) -> float:
    """Return the momentum of the running statistics: the ``argument``, or that of the
    layers.

    Raises:
        InputError: there is no batch norm with running statistics; layers differ, or
            have none, and no argument is given; or the argument is 0.
    """
    if not batch_norm_layers(model):
        remedy = "No screening is needed: ranks of this model are equal under every strategy."
        rule = "must have batch norm with running statistics, since only these differ between ranks"
        refuse("model", rule, type(model).__name__, remedy, "screen")
    momentum = statistics_momentum(model) if argument is None else argument
    if not momentum:
        rule = "must have one momentum in all layers of batch norm"
        refuse(
            "momentum", rule, "several, or none", "Give one: momentum=0.1.", "screen"
        )
    return momentum


# ------------------------------------------------------------------------------------- one strategy


@dataclass(frozen=True)
class _Replay:
    """Reads the last iterations of strategies with the weights of a model."""

    model: nn.Module
    train: Source
    test: Source
    settings: _Settings
    max_ranks: int  # the most that are emulated
    device: torch.device

    def row(self, strategy: Strategy, world_size: int, seed: int) -> dict[str, Any]:
        """Return the effective samples n, label divergence and accuracy of a strategy
        on ``world_size`` ranks, of which the first `max_ranks` are emulated.

        Keys: strategy, world_size, samples_per_rank, effective_samples (a mean over the
        emulated ranks), label_divergence (over all ranks) and accuracy (shares of 1;
        each test sample is evaluated by `OWN_RANKS` emulated ranks at most).
        """
        training = self.settings.training
        num_ranks = min(self.max_ranks, world_size)
        # checked as a network of all ranks; then only the first ranks are emulated
        network_of_all = ranked_network(
            self.model, self.train, world_size, training, self.device
        )
        network = replace(network_of_all, world_size=num_ranks)
        losses = self._losses if strategy.needs_importance else None
        run, trained, divergence = self._replay_epochs(
            strategy, world_size, seed, losses
        )
        trained = [samples[:, :num_ranks] for samples in trained]
        with torch.no_grad():
            for samples in trained:
                for batch in np.split(samples, np.cumsum(run.batch_sizes)[:-1]):
                    for first, part in network.parts(batch):
                        network.outputs(self.train, first, part)
        effective_samples = number_by_iteration(
            trained, run.batch_size, self.settings.momentum
        )
        tested, counted = own_pairs(
            len(self.test), num_ranks, OWN_RANKS, run.rng("evaluate")
        )
        return {
            "strategy": strategy_label(strategy),
            "world_size": world_size,
            "samples_per_rank": len(self.train) / world_size,
            "effective_samples": float(effective_samples.mean()),
            "label_divergence": divergence,
            "accuracy": own_score(network, self.test, tested, counted).accuracy,
        }

    def _replay_epochs(
        self, strategy: Strategy, world_size: int, seed: int, losses: Floats | None
    ) -> tuple[TrainingEpochs, list[Ints], float]:
        """Plan all epochs, without training.

        ``losses`` (N,) are the importance in every epoch; None if the strategy needs
        none.

        Returns:
            The run; the samples, each (n, M), that ranks train on in the last epochs,
            which statistics remember; and how much the ranks' labels differ from the
            set's in the last epoch, 0 to 1.
        """
        training = self.settings.training
        targets = self.train.targets
        run = TrainingEpochs(
            strategy, training, len(targets), world_size, seed=seed, places=None
        )
        run.owner = self.settings.partition.owner(
            targets, world_size, run.rng("partition")
        )
        momentum = self.settings.momentum
        num_remembered = count_remembered_epochs(
            share_after_epoch(momentum, len(run.batch_sizes))
        )
        trained: list[Ints] = []
        divergence = 0.0
        for epoch in range(training.epochs):
            shards = run.next_shards()
            if epoch >= training.epochs - num_remembered:
                trained.append(run.training_rows(shards))
                rank = np.repeat(np.arange(world_size), shards.sizes)
                divergence = label_divergence(rank, targets, world_size, shards.order)
            run.finish_epoch(run.next_plan(shards, losses))
        return run, trained, divergence

    @cached_property
    def _losses(self) -> Floats:
        """The loss of every training sample, (N,), with the statistics of the trained
        model.
        """
        network = ranked_network(
            self.model, self.train, 1, self.settings.training, self.device
        )
        count = len(self.train)
        one_shard = Shards(np.arange(count), np.array([0, count]))
        return inference_losses(network, self.train, one_shard)


# ---------------------------------------------------------------------------------------- all of it


def _rows(
    replay: _Replay, world_sizes: Sequence[int], seeds: int, tell: Progress
) -> Iterator[dict[str, Any]]:
    """Yield a row for each M, seed and strategy, as of `_Replay.row`, with seed, x and
    loss_points.

    ``loss_points`` is the accuracy lost against global shuffle of the same M and seed,
    in points. Global shuffle comes first, also if no strategy names it. ``x`` is 1/n -
    1/n of global shuffle, with n the effective samples. ``tell`` gets the share that is
    done.
    """
    strategies = [
        strategy
        for strategy in replay.settings.strategies
        if strategy.kind != GLOBAL.kind
    ]
    total = (len(strategies) + 1) * len(world_sizes) * seeds
    num_done = 0
    for world_size in world_sizes:
        for seed in range(seeds):
            reference = replay.row(GLOBAL, world_size, seed)
            for strategy in [None, *strategies]:
                row = (
                    reference
                    if strategy is None
                    else replay.row(strategy, world_size, seed)
                )
                num_done += 1
                tell(num_done / total)
                x = (
                    1.0 / row["effective_samples"]
                    - 1.0 / reference["effective_samples"]
                )
                loss = 100.0 * (reference["accuracy"] - row["accuracy"])
                yield {**row, "seed": seed, "x": x, "loss_points": loss}


def _summarise(
    rows: list[dict[str, Any]], model: str, data: str, settings: _Settings, seeds: int
) -> Screening:
    """Return means over seeds with 90 % intervals, and the law that they follow.

    The law is fitted only to a random partition; intervals of one seed are NaN.

    Args:
        rows: of `_rows`.
        model, data: names of the classes of network and training samples.
        settings: arguments of `screen`.
        seeds: number of seeds.
    """
    table = pd.DataFrame(rows)
    by_setting = table.groupby(["strategy", "world_size"], sort=False)
    means = by_setting.mean(numeric_only=True).drop(columns=["seed", "x"])
    half_width = by_setting["loss_points"].std(ddof=1) / math.sqrt(seeds)
    half_width *= float(stats.t.ppf(0.5 + LEVEL / 2, max(seeds - 1, 1)))
    means["low"] = means["loss_points"] - half_width
    means["high"] = means["loss_points"] + half_width
    law = _fit_law(table) if settings.partition.kind == "random" else (math.nan,) * 4
    return Screening(
        model,
        data,
        settings.momentum,
        settings.training.local_batch_size,
        settings.partition.kind,
        means.reset_index(),
        *law,
        seeds,
    )


def _fit_law(table: pd.DataFrame) -> tuple[float, float, float, float]:
    """Fit loss = c x to the settings of a ``table`` of `_rows`, by least squares.

    Returns:
        c, the lower and upper end of its 90 % interval, and the scatter of the settings
        about it, all in points; NaN of fewer than two settings that differ in n from
        global shuffle.
    """
    means = table.groupby(["strategy", "world_size"], sort=False)[
        ["x", "loss_points"]
    ].mean()
    x = means["x"].to_numpy()
    loss = means["loss_points"].to_numpy()
    differs = np.abs(x) > 1e-12
    count = int(differs.sum())
    if count < 2:
        return (math.nan,) * 4
    x = x[differs]
    loss = loss[differs]
    # least squares through the origin: one parameter is fitted, so count - 1 are free
    c = float(x @ loss / (x @ x))
    rms = float(np.sqrt(((loss - c * x) ** 2).sum() / (count - 1)))
    half_width = (
        float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * rms / float(np.sqrt(x @ x))
    )
    return c, c - half_width, c + half_width, rms
