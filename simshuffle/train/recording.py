"""Turn a training into its record: the tables of a run, and its description."""

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
    count_remembered_epochs,
    effective_number,
    share_after_epoch,
)
from simshuffle.studies.training.tables import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    RunRecord,
)
from simshuffle.train.batch_norm import norm_mode, statistics_momentum
from simshuffle.train.emulation import EpochOutcome
from simshuffle.train.evaluate import Score
from simshuffle.train.iterations import TrainingEpochs
from simshuffle.train.partition import label_divergence
from simshuffle.train.training import STATISTICS, Statistics, Training
from simshuffle.workload.exchange import ExchangePlan, Strategy
from simshuffle.workload.exchange.recording import RecordedPlans

NAN = float("nan")


def strategy_label(strategy: Strategy) -> str:
    """Return kind, Q, and values other than the default, as
    'importance_pair-0.1-lagging'.

    Q is left out where it is 0 or there is none. Of values, ``source`` is left out, and
    of a schedule all but who sends which sample to whom.
    """
    parts = [strategy.kind]
    if strategy.fraction:
        parts.append(f"{strategy.fraction:g}")
    parts += _unusual(strategy) if isinstance(strategy, BaseModel) else []
    return "-".join(parts)


def _unusual(record: BaseModel) -> list[str]:
    """Return the parts of a label that tell a record from the default one.

    They are the values that are not the default, True by the name of its key; the
    order always; and of a schedule only what says who sends which sample to whom. Kind,
    Q and ``source`` are never among them.
    """
    texts = []
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if name == "order":
            texts += [value.short_name, *_unusual(value)]
        elif name == "schedule":
            default = field.get_default(call_default_factory=True)
            texts += [
                str(getattr(value, key))
                for key in ("partner_rule", "partner_lifetime", "rank_importance")
                if getattr(value, key) != getattr(default, key)
            ]
        elif name not in {
            "kind",
            "exchange_fraction",
            "source",
        } and value != field.get_default(call_default_factory=True):
            texts.append(name if value is True else str(value))
    return texts


def description(
    strategy: Strategy, training: Training, network: nn.Module, **run_values: Any
) -> dict[str, Any]:
    """Describe a run as plain values, by name: `RunRecord.description` as it begins.

    ``lagging`` is False, and ``selection``, ``partner_rule`` and ``importance_pass``
    are '', for strategies without them. ``learning_rate`` is that after the warm-up,
    and ``exchange`` holds all values of the strategy.

    Args:
        strategy, training, network: of the run.
        **run_values: what none of these has, among them ``world_size``, which is
            needed. A value that these have replaces one of the same name.
    """
    return {
        **run_values,
        "strategy": strategy.kind,
        "label": strategy_label(strategy),
        "exchange_fraction": strategy.fraction,
        "lagging": getattr(strategy, "lagging", False),
        "selection": getattr(strategy, "selection", ""),
        "partner_rule": getattr(strategy.exchange_schedule, "partner_rule", ""),
        "local_batch_size": training.local_batch_size,
        "batch_norm": norm_mode(network, training.batch_norm),
        "sync_ranks": training.sync_ranks,
        "statistics_momentum": statistics_momentum(network),
        "importance_pass": training.importance_pass if strategy.inference_pass else "",
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "learning_rate": training.peak_learning_rate(run_values["world_size"]),
        "epochs": training.epochs,
        "exchange": strategy.model_dump(mode="json"),
    }


class OwnStatistics:
    """Counts on how many samples the running statistics of ranks rest.

    They are those of a rank's own batch norm, or those that a group of ranks shares.
    Nothing is counted unless all layers of ``network`` have one momentum above 0.
    """

    def __init__(
        self, strategy: Strategy, training: Training, network: nn.Module
    ) -> None:
        self._training = training
        self._momentum = statistics_momentum(network) or None
        # an importance pass that refreshes them shows them the shard once more
        self._passes = (
            2 if strategy.inference_pass and training.refreshes_statistics else 1
        )
        self._owners: list[
            Ints
        ] = []  # (N,) the group of each sample, of the last epochs
        self._groups = 0
        self._kept_share = 0.0  # weight that remains of a statistic after an epoch

    def add(self, owner: Ints, world_size: int, iterations: int) -> None:
        """Add an epoch, and forget those whose weight has become negligible.

        Nothing is kept where ranks have no statistics of their own. The weight follows
        from the ``iterations`` of the epoch that was added last.

        Args:
            owner: (N,) the rank that had each sample, -1 for none.
            world_size: M.
            iterations: of the epoch.
        """
        mode, ranks_per_group = self._training.norm_groups(world_size)
        if mode == "per_rank" and self._momentum is not None:
            self._kept_share = share_after_epoch(
                self._momentum, self._passes * iterations
            )
            self._owners.append((owner // ranks_per_group).astype(np.int32))  # -1 stays
            del self._owners[: -count_remembered_epochs(self._kept_share)]
            self._groups = world_size // ranks_per_group

    def effective_samples(self) -> float | None:
        """Return `effective_number` after the last epoch: samples, the mean over ranks
        or groups.

        None before the first epoch, where ranks have no statistics of their own, and
        where layers differ in their momentum or have none.
        """
        if not self._owners:
            return None
        return effective_number(self._owners, self._groups, self._kept_share)


class TrainingRecorder:
    """Collects the tables of a run. The clock of the run starts when it is made.

    Args:
        epochs: before the first epoch, with ``owner`` set.
        network: that is trained.
        targets: (N,) the label of each sample.
        **run_values: what else describes the run.
    """

    def __init__(
        self,
        epochs: TrainingEpochs,
        network: nn.Module,
        targets: Ints,
        **run_values: Any,
    ) -> None:
        self._strategy = epochs.strategy
        self._owner = epochs.owner
        self._targets = targets
        self._description = description(
            epochs.strategy,
            epochs.training,
            network,
            world_size=epochs.world_size,
            seed=epochs.seed,
            num_samples=epochs.num_samples,
            **run_values,
        )
        self._statistics = OwnStatistics(epochs.strategy, epochs.training, network)
        self._epochs: list[dict[str, Any]] = []
        self._iterations: list[dict[str, Any]] = []
        self._importance: list[dict[str, Any]] = []
        self._plans: list[ExchangePlan] = []
        self._begin = time.perf_counter()
        self._samples = 0
        self._seconds = 0.0

    def add(
        self, outcome: EpochOutcome, losses: Floats, scores: Mapping[Statistics, Score]
    ) -> None:
        """Add an epoch: its plan, and rows of the tables of epochs, iterations and
        importance.

        Args:
            outcome: of the epoch.
            losses: (N,) of samples as they were last trained on, nats. Those of samples
                that nobody trained on in this epoch are left out of the table.
            scores: after the epoch, by the statistics that were used; NaN stands for
                those that are not there, as in an epoch without evaluation.
        """
        epoch = outcome.epoch
        shards = outcome.shards
        world_size = len(shards.sizes)
        rank_of_row = np.repeat(np.arange(world_size), shards.sizes)
        # (N,) the last rank of those that trained on a sample; -1 where none did
        owner = np.full(len(self._targets), -1, np.int64)
        owner[shards.order] = rank_of_row
        losses = np.where(owner < 0, NAN, losses)
        if outcome.importance is not None and self._strategy.inference_pass:
            self._importance.append(
                importance_row(epoch, "inference", outcome.importance, owner)
            )
        self._importance.append(importance_row(epoch, "training", losses, owner))
        self._iterations += [
            {"exchange_s": 0.0, **row, "epoch": epoch, "iteration": iteration}
            for iteration, row in enumerate(outcome.iterations)
        ]
        self._statistics.add(owner, world_size, len(outcome.iterations))
        self._plans.append(outcome.plan)
        self._samples += outcome.samples
        self._seconds += outcome.seconds
        divergence = label_divergence(
            rank_of_row, self._targets, world_size, shards.order
        )
        self._epochs.append(
            {
                "epoch": epoch,
                "samples": outcome.samples,
                "learning_rate": outcome.learning_rate,
                "train_loss": outcome.train_loss,
                "moved": outcome.plan.samples_moved,
                "label_divergence": divergence,
                "importance_s": outcome.importance_s,
                **{
                    f"{name}_{measure}": getattr(scores[name], measure)
                    if name in scores
                    else NAN
                    for measure in ("accuracy", "loss")
                    for name in STATISTICS
                },
            }
        )

    def record(self, message: str = "") -> RunRecord:
        """Return the record of the epochs added, of a run that failed if there is a
        ``message``.

        ``plans`` is None for strategies that exchange nothing; the description's
        ``samples_per_s`` is NaN before the first epoch.
        """
        measured_values = {
            "samples_per_s": self._samples / self._seconds if self._seconds else NAN,
            "effective_samples": self._statistics.effective_samples(),
        }
        return RunRecord(
            description=self._description | measured_values,
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


def importance_row(
    epoch: int, source: str, losses: Floats, owner: Ints
) -> dict[str, Any]:
    """Return a row of the importance table, over the samples that have a loss.

    Its columns: epoch, source; mean, std, min, p10, p50, p90 and max in nats;
    top_tenth_share, the share of all loss that the highest tenth of the samples has
    (about 0.1 if all losses are 0); and between_ranks, as of `variance_between_ranks`.

    Args:
        epoch: from 1.
        source: 'inference' or 'training'.
        losses: (N,) nats; NaN where there is none yet; at least one is there.
        owner: (N,) the rank of each sample that has a loss.
    """
    has_loss = ~np.isnan(losses)
    values = losses[has_loss]
    ranks = owner[has_loss]
    low, middle, high = np.percentile(values, [10, 50, 90])
    tenth = -(-len(values) // 10)
    total = values.sum()
    top_tenth_share = tenth / len(values)
    if total > 0:
        top_tenth_share = np.partition(values, -tenth)[-tenth:].sum() / total
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
        "top_tenth_share": top_tenth_share,
        "between_ranks": variance_between_ranks(values, ranks),
    }


def variance_between_ranks(values: Floats, ranks: Ints) -> float:
    """Return the variance of the ranks' means over that of ``values``: 0 to 1.

    Means are weighted with their samples. 0 if all ``values`` (n,) are equal; ``ranks``
    is (n,), the rank of each.
    """
    samples_of_rank = np.bincount(ranks)
    mean_of_rank = np.bincount(ranks, values) / np.maximum(samples_of_rank, 1)
    variance = values.var()
    squares = samples_of_rank * (mean_of_rank - values.mean()) ** 2
    variance_between = float(squares.sum() / len(values))
    return variance_between / variance if variance > 0 else 0.0
