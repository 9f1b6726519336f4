"""Screening: what shuffling strategies cost a trained network, in minutes and without training it
again.

What tells ranks apart are the running statistics of their batch norm, and these follow from the
weights and from what a rank has read of late. So the weights stay as they are, the last iterations
of each strategy are read once more in training mode, and every rank is evaluated with what its
statistics have become. What the weights lose because they were trained so is not in it: that takes
a study (`simshuffle.train.train_study`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import refuse
from simshuffle.fabric.network.whole_file import whole_file
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.record import Count, Spec
from simshuffle.studies.training.running_statistics import (
    epoch_kept,
    epochs_remembered,
    number_by_iteration,
)
from simshuffle.study.standing import share_shown, study_progress
from simshuffle.train.batch_norm import batch_norm_layers, statistics_momentum
from simshuffle.train.emulate import device_named, plain_record, records_of
from simshuffle.train.emulation import Progress
from simshuffle.train.evaluate import own_pairs, own_score
from simshuffle.train.iterations import Shuffled
from simshuffle.train.network import inference_losses, ranked_network
from simshuffle.train.partition import Partition, check_ranks, label_divergence
from simshuffle.train.recording import strategy_label
from simshuffle.train.samples import DatasetSource, Source
from simshuffle.train.training import Training
from simshuffle.workload.exchange import GlobalShuffle, Shards, Strategy, TrainedExchange

LEVEL = 0.90
"""Of every interval."""
SHIFTED = 0.1
"""Label divergence beyond that of global shuffle from which on ranks have other labels."""
OWN_RANKS = 4
"""Ranks that evaluate each test sample."""
GLOBAL = GlobalShuffle(kind="global_shuffle")


@dataclass(frozen=True)
class Screening:
    """What `screen` found."""

    model: str  # class of the network
    data: str  # class of the training samples
    momentum: float  # of the running statistics
    local_batch: int  # b, samples
    partition: str  # kind of the partition
    # for each strategy and M: strategy, world_size, samples_per_rank, effective_samples (n),
    # label_divergence (total variation, 0 to 1), accuracy (share), loss_points (accuracy lost
    # against global shuffle on as many ranks, points), low, high (90 % of loss_points, over seeds;
    # empty of one seed)
    settings: pd.DataFrame
    # of loss = c (1/n - 1/n of global shuffle), points: least squares, and 90 % by Student's t;
    # NaN where shards are not random or there are too few settings
    c_points: float
    c_low: float
    c_high: float
    rms: float  # points, scatter of the settings about it
    seeds: int  # draws of shards and exchange

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which ``simshuffle accuracy --screening`` reads."""
        told = {key: value for key, value in self.__dict__.items() if key != "settings"}
        unknown = {key for key, value in told.items() if isinstance(value, float) and isnan(value)}
        numbers = {key: None if key in unknown else value for key, value in told.items()}
        rows = json.loads(self.settings.to_json(orient="records", double_precision=10))
        keys = {
            "n": "effective_samples",
            "loss_points": "loss_points",
            "low": "low",
            "high": "high",
        }
        curve = [{key: row[of] for key, of in keys.items()} for row in rows]
        with whole_file(Path(path)) as file:
            json.dump(
                {**numbers, "norm": "batch", "curve": curve, "settings": rows}, file, indent=1
            )

    def verdict(self, tolerance: float = 0.5) -> str:
        """Whether a full study is needed to lose at most ``tolerance`` points, and why."""
        others = self.settings[self.settings["strategy"] != GLOBAL.kind]
        if not len(others):
            return "Nothing is compared with global shuffle."
        worst = others.sort_values("loss_points").iloc[-1]
        most = f"{worst['strategy']} on {worst['world_size']} ranks, {worst['loss_points']:.2f}"
        above = int((others[["loss_points", "high"]].max(axis=1) > tolerance).sum())
        limits = "What weights lose because they were trained so is not in it."
        usual = self.settings[self.settings["strategy"] == GLOBAL.kind].set_index("world_size")
        more = others["label_divergence"] - others["world_size"].map(usual["label_divergence"])
        if more.max() > SHIFTED:
            row = others.assign(more=more).sort_values("more").iloc[-1]
            limits += (
                f" Under {row['strategy']} on {row['world_size']} ranks these have other labels"
                f" than the set ({row['label_divergence']:.2f} of 1 apart): trainings lost up to"
                " fifty times what a screening of such shards said."
            )
        if not above:
            found = f"No setting loses more than {tolerance:g} points through its statistics"
            return f"{found} (most: {most}). {limits}"
        return (
            f"{above} of {len(others)} settings may lose more than {tolerance:g} points through"
            f" their statistics (most: {most}). Train these in a study before you rely on them."
            f" {limits}"
        )


def _nobody(_share: float) -> None:
    """Nobody looks."""


class _Chosen(Spec):
    """The arguments of `screen` that are records."""

    strategies: list[TrainedExchange]
    world_size: list[Count]
    partition: Partition
    training: Training

    @property
    def momentum(self) -> float:
        """Of the running statistics."""
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
    """What strategies cost a trained ``model`` through its batch-norm statistics. It stays as it
    is.

    The loss depends on the samples that a rank has and on its batches, hardly on how many ranks
    there are: of a large data set a part is enough, on as many ranks as give each as many samples.

    Args:
        model: trained, in any way; gives logits.
        train, test: map-style datasets of pairs (input, target), targets whole numbers from 0.
        strategies: as of `simshuffle.train.train_study`; global shuffle is what they are compared
            with.
        world_size: M, or several.
        local_batch_size: b.
        momentum: of the running statistics; that of the layers if None.
        epochs: that are gone through before; exchanges mix shards over them.
        partition: who holds which sample before the first epoch.
        seeds: draws of shards and exchange; two or more make intervals.
        ranks: that are emulated of the M, at most.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        progress: whether standard error shows how far it is and how long it takes; or a function
            of the share that is done.

    Raises:
        InputError: an argument is not valid; the model has no batch norm, or layers that differ in
            their momentum; there are fewer samples than ranks.
    """
    where = device_named(device)
    sources = [
        DatasetSource(data, device=where, name=name)
        for data, name in ((train, "train"), (test, "test"))
    ]
    shown = share_shown("screening", study_progress)
    with shown if progress is True else nullcontext(progress or None) as tell:
        found = screen_sources(
            model,
            *sources,
            strategies=[strategies] if isinstance(strategies, str) else strategies,
            world_size=[world_size] if isinstance(world_size, int) else world_size,
            local_batch_size=local_batch_size,
            momentum=momentum,
            epochs=epochs,
            partition=partition,
            seeds=seeds,
            ranks=ranks,
            device=where,
            tell=tell or _nobody,
        )
    return replace(found, data=type(train).__name__)


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
    tell: Progress = _nobody,
) -> Screening:
    """As `screen`, of samples that are sources already."""
    training: dict[str, Any] = {"local_batch_size": local_batch_size, "epochs": epochs}
    chosen = records_of(
        _Chosen,
        "screen",
        strategies=[plain_record(each, "strategies", "screen") for each in strategies],
        world_size=list(world_size),
        partition=partition,
        training=training | {"statistics_momentum": _momentum(model, momentum)},
    )
    for count in chosen.world_size:
        check_ranks(len(train), count)
    replay = _Replay(model, train, test, chosen, ranks, device or torch.device("cpu"))
    rows = list(_rows(replay, chosen.world_size, seeds, tell))
    return _screening(rows, type(model).__name__, type(train).__name__, chosen, seeds)


def _momentum(model: nn.Module, given: float | None) -> float:
    """That of the running statistics, or raise InputError."""
    if not batch_norm_layers(model):
        remedy = "Nothing is to be screened: its ranks are alike, whatever the strategy."
        rule = "must keep running statistics of batch norm, which alone differ from rank to rank"
        refuse("model", rule, type(model).__name__, remedy, "screen")
    found = statistics_momentum(model) if given is None else given
    if not found:
        rule = "must have one momentum in all layers of batch norm"
        refuse("momentum", rule, "several, or none", "Give one: momentum=0.1.", "screen")
    return found


# ------------------------------------------------------------------------------------- one strategy


@dataclass(frozen=True)
class _Replay:
    """Reads the last iterations of strategies under the weights of a model."""

    model: nn.Module
    train: Source
    test: Source
    chosen: _Chosen
    ranks: int  # that are emulated, at most
    device: torch.device

    def row(self, strategy: Strategy, world_size: int, seed: int) -> dict[str, Any]:
        """n, label divergence and accuracy of a strategy on so many ranks."""
        training, some = self.chosen.training, min(self.ranks, world_size)
        # checked as one of all ranks; then only the first are asked
        whole = ranked_network(self.model, self.train, world_size, training, self.device)
        network = replace(whole, world_size=some)
        losses = self._losses if strategy.needs_importance else None
        run, trained, divergence = self._gone_through(strategy, world_size, seed, losses)
        trained = [samples[:, :some] for samples in trained]
        with torch.no_grad():
            for rows in trained:
                for batch in np.split(rows, np.cumsum(run.batch_sizes)[:-1]):
                    for first, part in network.parts(batch):
                        network.outputs(self.train, first, part)
        numbers = number_by_iteration(trained, run.batch_size, self.chosen.momentum)
        samples, counted = own_pairs(len(self.test), some, OWN_RANKS, run.rng("evaluate"))
        return {
            "strategy": strategy_label(strategy),
            "world_size": world_size,
            "samples_per_rank": len(self.train) / world_size,
            "effective_samples": float(numbers.mean()),
            "label_divergence": divergence,
            "accuracy": own_score(network, self.test, samples, counted).accuracy,
        }

    def _gone_through(
        self, strategy: Strategy, world_size: int, seed: int, losses: Floats | None
    ) -> tuple[Shuffled, list[Ints], float]:
        """All epochs, without training: the run, what ranks trained on in the last ones that
        statistics remember, each (n, M), and how much their labels differ from the set's."""
        training, targets = self.chosen.training, self.train.targets
        run = Shuffled(strategy, training, len(targets), world_size, seed, None)
        run.owner = self.chosen.partition.owner(targets, world_size, run.rng("partition"))
        last = epochs_remembered(epoch_kept(self.chosen.momentum, len(run.batch_sizes)))
        trained: list[Ints] = []
        divergence = 0.0
        for epoch in range(training.epochs):
            shards = run.next_shards()
            if epoch >= training.epochs - last:
                trained.append(run.training_rows(shards))
                ranks = np.repeat(np.arange(world_size), shards.sizes)
                divergence = label_divergence(ranks, targets, world_size, shards.order)
            run.finish_epoch(run.next_plan(shards, losses))
        return run, trained, divergence

    @cached_property
    def _losses(self) -> Floats:
        """The loss of every sample, (N,)."""
        alone = ranked_network(self.model, self.train, 1, self.chosen.training, self.device)
        count = len(self.train)
        return inference_losses(alone, self.train, Shards(np.arange(count), np.array([0, count])))


# ---------------------------------------------------------------------------------------- all of it


def _rows(
    replay: _Replay, world_sizes: Sequence[int], seeds: int, tell: Progress
) -> Iterator[dict[str, Any]]:
    """A row for each strategy, M and seed, with what it loses against global shuffle."""
    strategies = [each for each in replay.chosen.strategies if each.kind != GLOBAL.kind]
    total, done = (len(strategies) + 1) * len(world_sizes) * seeds, 0
    for world_size in world_sizes:
        for seed in range(seeds):
            reference = replay.row(GLOBAL, world_size, seed)
            for strategy in [None, *strategies]:
                row = reference if strategy is None else replay.row(strategy, world_size, seed)
                done += 1
                tell(done / total)
                x = 1.0 / row["effective_samples"] - 1.0 / reference["effective_samples"]
                loss = 100.0 * (reference["accuracy"] - row["accuracy"])
                yield {**row, "seed": seed, "x": x, "loss_points": loss}


def _screening(
    rows: list[dict[str, Any]], model: str, data: str, chosen: _Chosen, seeds: int
) -> Screening:
    """The settings, and the law that they follow."""
    table = pd.DataFrame(rows)
    by = table.groupby(["strategy", "world_size"], sort=False)
    settings = by.mean(numeric_only=True).drop(columns=["seed", "x"])
    reach = by["loss_points"].std(ddof=1) / math.sqrt(seeds)
    reach *= float(stats.t.ppf(0.5 + LEVEL / 2, max(seeds - 1, 1)))
    settings["low"] = settings["loss_points"] - reach
    settings["high"] = settings["loss_points"] + reach
    law = _law(table) if chosen.partition.kind == "random" else (math.nan,) * 4
    return Screening(
        model,
        data,
        chosen.momentum,
        chosen.training.local_batch_size,
        chosen.partition.kind,
        settings.reset_index(),
        *law,
        seeds,
    )


def _law(table: pd.DataFrame) -> tuple[float, float, float, float]:
    """c, its 90 % interval and the scatter about it, of loss = c x; NaN of fewer than two settings
    that differ in n."""
    means = table.groupby(["strategy", "world_size"], sort=False)[["x", "loss_points"]].mean()
    x, loss = means["x"].to_numpy(), means["loss_points"].to_numpy()
    told = np.abs(x) > 1e-12
    count = int(told.sum())
    if count < 2:
        return (math.nan,) * 4
    x, loss = x[told], loss[told]
    c = float(x @ loss / (x @ x))
    rms = float(np.sqrt(((loss - c * x) ** 2).sum() / (count - 1)))
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * rms / float(np.sqrt(x @ x))
    return c, c - reach, c + reach, rms
