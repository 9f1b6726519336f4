"""From a training to its record: the tables of a run, and its description."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel
from torch import nn

from simshuffle.spec.arrays import Floats, Ints
from simshuffle.studies.training.running_statistics import (
    effective_number,
    epoch_kept,
    epochs_remembered,
)
from simshuffle.studies.training.tables import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    RunRecord,
)
from simshuffle.train.batch_norm import mode_of, statistics_momentum
from simshuffle.train.emulation import EpochOutcome
from simshuffle.train.evaluate import Score
from simshuffle.train.iterations import Shuffled
from simshuffle.train.partition import label_divergence
from simshuffle.train.training import STATISTICS, Statistics, Training
from simshuffle.workload.exchange import ExchangePlan, Strategy
from simshuffle.workload.exchange.recording import RecordedPlans

NAN = float("nan")


def strategy_label(strategy: Strategy) -> str:
    """Kind, Q, and the values that are not the default ones, as 'importance_pair-0.1-lagging'."""
    parts = [strategy.kind]
    if strategy.fraction:
        parts.append(f"{strategy.fraction:g}")
    parts += _unusual(strategy) if isinstance(strategy, BaseModel) else []
    return "-".join(parts)


def _unusual(record: BaseModel) -> list[str]:
    """The values of ``record`` that are not the default ones, as text; those of the schedule only
    if they say who sends what to whom."""
    found = []
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if name == "order":
            found += [value.short_name, *_unusual(value)]
        elif name == "schedule":
            usual = field.get_default(call_default_factory=True)
            found += [
                str(getattr(value, key))
                for key in ("partner_rule", "partner_lifetime", "rank_importance")
                if getattr(value, key) != getattr(usual, key)
            ]
        elif name not in {"kind", "exchange_fraction", "source"} and value != field.get_default(
            call_default_factory=True
        ):
            found.append(name if value is True else str(value))
    return found


def description(
    strategy: Strategy, training: Training, network: nn.Module, **others: Any
) -> dict[str, Any]:
    """What was run, as plain values; ``others`` are the values that none of strategy, training and
    network has, among them ``world_size``."""
    return {
        **others,
        "strategy": strategy.kind,
        "label": strategy_label(strategy),
        "exchange_fraction": strategy.fraction,
        "lagging": getattr(strategy, "lagging", False),
        "selection": getattr(strategy, "selection", ""),
        "partner_rule": getattr(strategy.exchange_schedule, "partner_rule", ""),
        "local_batch_size": training.local_batch_size,
        "batch_norm": mode_of(network, training.batch_norm),
        "sync_ranks": training.sync_ranks,
        "statistics_momentum": statistics_momentum(network),
        "importance_pass": training.importance_pass if strategy.inference_pass else "",
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "learning_rate": training.peak_learning_rate(others["world_size"]),
        "epochs": training.epochs,
        "exchange": strategy.model_dump(mode="json"),
    }


class OwnStatistics:
    """The running statistics of a rank's own batch norm, or those that a group of ranks shares,
    told of every epoch: on how many samples do they rest?"""

    def __init__(self, strategy: Strategy, training: Training, network: nn.Module) -> None:
        self._training, self._momentum = training, statistics_momentum(network) or None
        # an importance pass that refreshes them shows them the shard once more
        self._passes = 2 if strategy.inference_pass and training.refreshes_statistics else 1
        self._owners: list[Ints] = []
        self._groups, self._kept = 0, 0.0

    def add(self, owner: Ints, world_size: int, iterations: int) -> None:
        """Add an epoch of so many ``iterations``, in which ``owner`` (N,) says which of
        ``world_size`` ranks had each sample."""
        mode, ranks = self._training.by_group(world_size)
        if mode == "per_rank" and self._momentum is not None:
            self._kept = epoch_kept(self._momentum, self._passes * iterations)
            self._owners.append((owner // ranks).astype(np.int32))  # -1 stays
            del self._owners[: -epochs_remembered(self._kept)]
            self._groups = world_size // ranks

    def effective_samples(self) -> float | None:
        """`effective_number` after the last epoch; None where
        ranks have no statistics of their own, or layers differ in their momentum."""
        if not self._owners:
            return None
        return effective_number(self._owners, self._groups, self._kept)


class TrainingRecorder:
    """Collects what becomes the record of a run: of who has which sample before the first epoch,
    the network, the label of each sample, (N,), and what else describes it."""

    def __init__(self, run: Shuffled, network: nn.Module, targets: Ints, **others: Any) -> None:
        self._strategy, self._owner, self._targets = run.strategy, run.owner, targets
        sizes = {"world_size": run.world_size, "seed": run.seed, "num_samples": run.num_samples}
        self._described = description(run.strategy, run.training, network, **sizes, **others)
        self._statistics = OwnStatistics(run.strategy, run.training, network)
        self._epochs: list[dict[str, Any]] = []
        self._iterations: list[dict[str, Any]] = []
        self._importance: list[dict[str, Any]] = []
        self._plans: list[ExchangePlan] = []
        self._begin = time.perf_counter()
        self._samples, self._seconds = 0, 0.0

    def add(
        self, outcome: EpochOutcome, losses: Floats, scores: Mapping[Statistics, Score]
    ) -> None:
        """Add an epoch: its outcome, the losses (N,) of samples as they were last trained on, and
        the scores after it."""
        epoch, shards = outcome.epoch, outcome.shards
        of_row = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
        # the last rank of those that trained on a sample; -1 where none did
        owner = np.full(len(self._targets), -1, np.int64)
        owner[shards.order] = of_row
        losses = np.where(owner < 0, NAN, losses)
        if outcome.importance is not None and self._strategy.inference_pass:
            self._importance.append(importance_row(epoch, "inference", outcome.importance, owner))
        self._importance.append(importance_row(epoch, "training", losses, owner))
        self._iterations += [
            {"exchange_s": 0.0, **row, "epoch": epoch, "iteration": number}
            for number, row in enumerate(outcome.iterations)
        ]
        self._statistics.add(owner, len(shards.sizes), len(outcome.iterations))
        self._plans.append(outcome.plan)
        self._samples += outcome.samples
        self._seconds += outcome.seconds
        self._epochs.append(
            {
                "epoch": epoch,
                "samples": outcome.samples,
                "learning_rate": outcome.learning_rate,
                "train_loss": outcome.train_loss,
                "moved": outcome.plan.samples_moved,
                "label_divergence": label_divergence(
                    of_row, self._targets, len(shards.sizes), shards.order
                ),
                "importance_s": outcome.importance_s,
                **{
                    f"{name}_{of}": getattr(scores[name], of) if name in scores else NAN
                    for of in ("accuracy", "loss")
                    for name in STATISTICS
                },
            }
        )

    def record(self, message: str = "") -> RunRecord:
        """The record, of a run that failed if there is a ``message``."""
        measured = {
            "samples_per_s": self._samples / self._seconds if self._seconds else NAN,
            "effective_samples": self._statistics.effective_samples(),
        }
        return RunRecord(
            description=self._described | measured,
            status="failed" if message else "done",
            message=message,
            epochs=pd.DataFrame(self._epochs, columns=list(EPOCH_COLUMNS)),
            iterations=pd.DataFrame(self._iterations, columns=list(ITERATION_COLUMNS)),
            importance=pd.DataFrame(self._importance, columns=list(IMPORTANCE_COLUMNS)),
            plans=None
            if self._strategy.exchange_schedule is None
            else RecordedPlans(self._owner, self._plans),
            seconds=time.perf_counter() - self._begin,
        )


def importance_row(epoch: int, source: str, losses: Floats, owner: Ints) -> dict[str, Any]:
    """A row of the importance table: of ``losses`` (N,), NaN of none yet, and the rank (N,) of
    each."""
    known = ~np.isnan(losses)
    values, ranks = losses[known], owner[known]
    low, middle, high = np.percentile(values, [10, 50, 90])
    tenth = -(-len(values) // 10)
    total = values.sum()
    return {
        "epoch": epoch,
        "source": source,
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        "p10": low,
        "p50": middle,
        "p90": high,
        "max": values.max(),
        "top_tenth_share": np.partition(values, -tenth)[-tenth:].sum() / total
        if total > 0
        else tenth / len(values),
        "between_ranks": between_ranks(values, ranks),
    }


def between_ranks(values: Floats, ranks: Ints) -> float:
    """Variance of the ranks' means, weighted with their samples, over that of ``values``: 0 to
    1."""
    count = np.bincount(ranks)
    mean = np.bincount(ranks, values) / np.maximum(count, 1)
    variance = values.var()
    between = float((count * (mean - values.mean()) ** 2).sum() / len(values))
    return between / variance if variance > 0 else 0.0
