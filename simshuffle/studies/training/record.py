"""What one training run leaves behind: three tables, its exchange plans, and how it ended; as the
outcome of a cell too. No torch: results are read without it."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import pandas as pd

from simshuffle.exchange.recording import RecordedPlans, write_plans
from simshuffle.study.cell import Outcome

ABSENT = "absent"
"""Kind of batch norm of a network that has none, whatever the training says."""
STATISTICS = ("own", "rank0", "pooled", "recalibrated")

EPOCH_COLUMNS = {
    "epoch": "from 1",
    "samples": "trained on, by all ranks",
    "learning_rate": "at the end of the epoch",
    "train_loss": "mean over the samples of the epoch, as they were trained on",
    "moved": "samples that left their rank after it",
    "label_divergence": (
        "mean over ranks of the total variation distance between the labels of a shard and those of"
        " all samples: 0 to 1"
    ),
    "importance_s": "s, the inference pass over all shards; 0 without one",
    **{
        f"{name}_accuracy": (
            f"share of test samples, evaluated with the statistics '{name}'; NaN if not evaluated"
        )
        for name in STATISTICS
    },
    **{
        f"{name}_loss": (
            f"mean test loss (cross-entropy in nats, or the loss that is trained with), with the"
            f" statistics '{name}'; NaN if not evaluated"
        )
        for name in STATISTICS
    },
}
"""Columns of a run's epochs table and their meaning."""

ITERATION_COLUMNS = {
    "epoch": "from 1",
    "iteration": "from 0 within the epoch",
    "forward_s": "s, of all ranks' batches together",
    "backward_s": "s",
    "update_s": "s, the optimiser's step (real ranks: the wait for the averaged gradients too)",
    "exchange_s": (
        "s, sending and receiving of samples that was waited for; 0 where ranks are emulated"
    ),
}
"""Columns of a run's iterations table and their meaning."""

IMPORTANCE_COLUMNS = {
    "epoch": "from 1",
    "source": "'training': losses as trained on; 'inference': a pass before the epoch",
    "mean": "nats, over all samples",
    "std": "nats",
    "min": "nats",
    "p10": "nats, tenth percentile",
    "p50": "nats, median",
    "p90": "nats",
    "max": "nats",
    "top_tenth_share": "share of the sum that the tenth of largest values has",
    "between_ranks": "variance of the ranks' means over the variance of all values",
}
"""Columns of a run's importance table and their meaning."""


@dataclass(frozen=True)
class RunRecord:
    """One training run.

    Attributes:
        description: what was run, as plain values (strategy, exchange_fraction, world_size, seed,
            ...).
        status: 'done', or 'failed' with a ``message`` that says when and why; the tables end there.
        message: '' if done.
        epochs: columns `EPOCH_COLUMNS`.
        iterations: columns `ITERATION_COLUMNS`.
        importance: columns `IMPORTANCE_COLUMNS`.
        plans: the exchange; None where nothing is exchanged.
        seconds: s that the run took.
    """

    description: dict[str, Any]
    status: Literal["done", "failed"]
    message: str
    epochs: pd.DataFrame
    iterations: pd.DataFrame
    importance: pd.DataFrame
    plans: RecordedPlans | None
    seconds: float


TABLES = ("epochs", "iterations", "importance")
PLANS = "plans.npz"
TIMELINE = "timeline"
"""Files of a run: its exchange plans; on real ranks, what each rank did when (Parquet)."""


def outcome_of(record: RunRecord) -> Outcome:
    """The record as the outcome of a cell: values description, status, message and seconds;
    `TABLES`; and the file `PLANS` where something is exchanged."""
    names = ("description", "status", "message", "seconds")
    tables = {name: getattr(record, name) for name in TABLES}
    files: dict[str, bytes] = {}
    if record.plans is not None:
        content = BytesIO()
        write_plans(content, record.plans)
        files[PLANS] = content.getvalue()
    return Outcome({name: getattr(record, name) for name in names}, tables, dict(files))
