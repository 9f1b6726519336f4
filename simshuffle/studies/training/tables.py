"""The record of a training run, the outcome of its cell, and the tables of a study.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import pandas as pd

from simshuffle.study.cell import Outcome
from simshuffle.study.schema import (
    LARGEST,
    Column,
    Schema,
    amount,
    count,
    real,
    share,
    spent,
    text,
)
from simshuffle.workload.exchange import STYLES
from simshuffle.workload.exchange.recording import RecordedPlans, write_plans

ABSENT = "absent"
"""Kind of batch norm of a network that has none, whatever the training says."""
STATISTICS = ("own", "rank0", "pooled", "recalibrated")
"""Batch-norm statistics to evaluate with: of every rank (mean over ranks), of rank 0,
of all ranks pooled, and computed anew over the training set.
"""


def columns_by_statistics(
    name: str, column: Callable[[str], Column], meaning: str
) -> dict[str, Column]:
    """Return a column KIND_NAME for each kind of `STATISTICS`; its meaning names the
    kind where it has {}.
    """
    return {f"{kind}_{name}": column(meaning.format(kind)) for kind in STATISTICS}


def number_column(meaning: str) -> Column:
    """Return a column of numbers, empty where nothing was measured."""
    return real(meaning, empty=True)


def share_column(meaning: str) -> Column:
    """Return a column of shares from 0 to 1, empty where nothing was measured."""
    return share(meaning, empty=True)


EPOCH_COLUMNS = {
    "epoch": count("from 1", 1),
    "samples": count("samples that all ranks trained on", empty=True),
    "learning_rate": number_column("learning rate at the end of the epoch"),
    "train_loss": number_column(
        "mean loss of the samples of the epoch while the ranks trained on them"
    ),
    "moved": count("samples that left their rank after the epoch", empty=True),
    "label_divergence": share_column(
        "mean over ranks of the total variation distance between the labels of a shard and those of"
        " all samples: 0 to 1"
    ),
    "importance_s": spent(
        "s of the inference pass over all shards; 0 without such a pass"
    ),
    **columns_by_statistics(
        "accuracy",
        share_column,
        "share of test samples classified correctly with the statistics '{}'; NaN if not"
        " evaluated",
    ),
    **columns_by_statistics(
        "loss",
        number_column,
        "mean test loss (cross-entropy in nats, or the loss of the training) with the statistics"
        " '{}'; NaN if not evaluated",
    ),
}
"""Columns of a run's epochs table."""
ITERATION_COLUMNS = {
    "epoch": count("from 1", 1),
    "iteration": count("from 0 within the epoch"),
    "forward_s": spent("s of the forward pass, of all ranks' batches together"),
    "backward_s": spent("s"),
    "update_s": spent(
        "s of the optimiser's step; on real ranks also the wait for the averaged gradients"
    ),
    "exchange_s": spent(
        "s of waiting until samples are sent and received; 0 where ranks are emulated"
    ),
}
"""Columns of a run's iterations table."""
IMPORTANCE_COLUMNS = {
    "epoch": count("from 1", 1),
    "source": text(
        "'training': losses of the training itself; 'inference': losses of a pass before the"
        " epoch",
        "training",
        "inference",
    ),
    "mean": number_column("nats, over all samples"),
    "std": number_column("nats"),
    "min": number_column("nats"),
    "p10": number_column("nats, tenth percentile"),
    "p50": number_column("nats, median"),
    "p90": number_column("nats"),
    "max": number_column("nats"),
    "top_tenth_share": number_column(
        "share of the sum in the largest tenth of the values"
    ),
    "between_ranks": number_column(
        "variance of the ranks' means over the variance of all values"
    ),
}
"""Columns of a run's importance table."""


@dataclass(frozen=True)
class RunRecord:
    """The record of a training run: its description, its ending and its tables."""

    # what was run, as plain values (strategy, exchange_fraction, world_size, seed, ...)
    description: dict[str, Any]
    # 'done', or 'failed' with a ``message`` that says when and why; the tables end there
    status: Literal["done", "failed"]
    message: str  # '' if done
    epochs: pd.DataFrame  # columns `EPOCH_COLUMNS`
    iterations: pd.DataFrame  # columns `ITERATION_COLUMNS`
    importance: pd.DataFrame  # columns `IMPORTANCE_COLUMNS`
    plans: RecordedPlans | None  # the exchange; None where nothing is exchanged
    seconds: float  # s that the run took


TABLES = ("epochs", "iterations", "importance")
PLANS = "plans.npz"
TIMELINE = "timeline"
"""Files of a run: its exchange plans; on real ranks, what each rank did when (Parquet)."""


def run_outcome(record: RunRecord) -> Outcome:
    """Return the record of a run as the outcome of a cell.

    Its values are description, status, message and seconds; its tables are `TABLES`. It
    has the file `PLANS` where something is exchanged.
    """
    names = ("description", "status", "message", "seconds")
    tables = {name: getattr(record, name) for name in TABLES}
    files: dict[str, bytes] = {}
    if record.plans is not None:
        content = BytesIO()
        write_plans(content, record.plans)
        files[PLANS] = content.getvalue()
    return Outcome({name: getattr(record, name) for name in names}, tables, dict(files))


# ---------------------------------------------------------------------------- the tables of a study


STRATEGIES = tuple(STYLES)
NORMS = {
    "per_rank": "batch norm per rank",
    "sync": "synchronised batch norm",
    "none": "no batch norm",
    ABSENT: "",
}
"""Known strategies and, in words, kinds of batch norm, in the order of tables."""
SETTING_COLUMNS = {
    "variant": text("what else is varied in the study, as key=value; '' if nothing"),
    "batch_norm": text(
        "'per_rank', 'sync' or 'none'; 'absent' where the network has no such layers",
        *NORMS,
    ),
    "world_size": count("M, ranks", 1),
    "strategy": text(
        "global, local, partial, IS (importance exchange), IS-Pair, ILag, ILag-Pair (lagging"
        " importance); other parameters in ()"
    ),
    "exchange_fraction": share_column(
        "Q, share of a shard that is exchanged in an epoch; empty where nothing is exchanged"
    ),
}
"""Columns that runs of one setting share: the condition and the strategy."""
CONDITION = ("variant", "batch_norm", "world_size")
SETTING = tuple(SETTING_COLUMNS)
EFFECTIVE_SAMPLES = (
    "n, effective number of samples on which the running statistics of a rank's batch norm rest"
    " after the last epoch, mean over ranks; empty where ranks have no statistics of their own"
)
DESCRIPTION_COLUMNS = SETTING_COLUMNS | {
    "seed": count(
        "seed of all random draws; runs of one seed begin with the same weights"
    ),
    "data": text("data set, in words"),
    "model": text("network, in words"),
    "partition": text("who holds which sample before the first epoch"),
    "epochs_planned": count("epochs of training", 1),
    "learning_rate": number_column("after the warm-up"),
}
"""Columns that describe a run; their values come from the study."""
STATUS = ("done", "failed", "lost", "missing")
ENDING_COLUMNS = {
    "status": text(
        "'done'; 'failed': the training stopped; 'lost': its process died or raised an error;"
        " 'missing': not run yet",
        *STATUS,
    ),
    "message": text("why a run is not done"),
    "seconds": spent("s that the run took, on one core"),
}
"""Columns that say how a run ended."""
INTERVAL_COLUMNS = {
    "low": number_column(
        "lower end of the 95 % interval of the mean by Student's t; empty for one seed"
    ),
    "high": number_column("upper end of this interval"),
}
"""Columns of the interval of a mean over seeds."""
RUN_COLUMNS = {
    "run": text("name; its folder is runs/NAME, its plans are plans/NAME.npz"),
    **DESCRIPTION_COLUMNS,
    **ENDING_COLUMNS,
    "samples": count("samples that all ranks trained on, in all epochs", empty=True),
    "moved": count("samples that left their rank, in all epochs", empty=True),
    "effective_samples": amount(EFFECTIVE_SAMPLES, empty=True),
    "train_loss": number_column("train_loss of the last epoch"),
    **columns_by_statistics(
        "accuracy",
        share_column,
        "share of test samples classified correctly after the last epoch, with the statistics"
        " '{}'",
    ),
    **columns_by_statistics(
        "best_accuracy",
        share_column,
        "highest accuracy after any evaluated epoch, with the statistics '{}'; the test samples"
        " themselves choose the epoch, so it flatters",
    ),
    **columns_by_statistics(
        "best_epoch",
        lambda m: count(m, empty=True),
        "first epoch with the best accuracy, from 1",
    ),
    **columns_by_statistics(
        "loss",
        number_column,
        "mean test loss after the last epoch (nats), with the statistics '{}'",
    ),
}
"""Columns of runs.csv."""
_RUN = {"run": text("as in runs.csv")}
STORED = {
    "runs": Schema(RUN_COLUMNS, key=("run",)),
    "epochs": Schema(_RUN | EPOCH_COLUMNS, ".parquet", ("run", "epoch")),
    "iterations": Schema(_RUN | ITERATION_COLUMNS, ".parquet"),
    "importance": Schema(_RUN | IMPORTANCE_COLUMNS),
}


@dataclass(frozen=True)
class TrainingTables:
    """The four tables that a study of trainings measured."""

    # runs, epochs, iterations, importance: columns as in `STORED`
    runs: pd.DataFrame
    epochs: pd.DataFrame
    iterations: pd.DataFrame
    importance: pd.DataFrame

    def finished_runs(self) -> pd.DataFrame:
        """Return the runs with status 'done': not failed, lost or missing."""
        return self.runs[self.runs["status"] == "done"]


def collect_tables(
    descriptions: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]
) -> TrainingTables:
    """Collect the tables of all runs of a study.

    The table of runs has a row for every description, in their order, also for lost and
    missing runs. The other tables hold what done and failed runs recorded. Numbers
    whose magnitude exceeds `LARGEST` become NaN.

    Args:
        descriptions: values of `DESCRIPTION_COLUMNS`, by the name of the run.
        outcomes: the outcome of each run as `run_outcome` gives it; of a lost run its
            reason; missing runs have none.
    """
    rows = []
    pieces: dict[str, list[pd.DataFrame]] = {
        name: [_empty_table(STORED[name])] for name in TABLES
    }
    for run, description in descriptions.items():
        outcome = outcomes.get(run)
        rows.append({"run": run, **description, **_ending_values(outcome)})
        for name, table in outcome.tables.items() if outcome else ():
            if len(table):
                pieces[name].append(table.assign(run=run))
    tables = {
        name: _drop_infinite_losses(
            pd.concat(parts[1:] or parts, ignore_index=True)[list(STORED[name].columns)]
        )
        for name, parts in pieces.items()
    }
    return TrainingTables(
        _drop_infinite_losses(pd.DataFrame(rows, columns=list(RUN_COLUMNS))), **tables
    )


def _empty_table(schema: Schema) -> pd.DataFrame:
    """Return a table without rows: texts as objects, numbers as floats."""
    kinds = {
        name: object if column.kind == "text" else float
        for name, column in schema.columns.items()
    }
    return pd.DataFrame(
        {name: pd.Series([], dtype=kind) for name, kind in kinds.items()}
    )


def _drop_infinite_losses(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with NaN for floats whose magnitude exceeds `LARGEST`.

    Networks may evaluate to infinity. No row is dropped. The table itself is returned
    where there are none.
    """
    floats = table.select_dtypes("float")
    is_infinite = floats.abs() > LARGEST
    return (
        table.assign(**floats.mask(is_infinite))
        if is_infinite.any(axis=None)
        else table
    )


def _ending_values(outcome: Outcome | None) -> dict[str, Any]:
    """Return how a run ended: the columns of `RUN_COLUMNS` after the description.

    Only a run that is done has accuracies; sums of samples are also those of a failed
    run that finished an epoch. Columns without a value have no key. None is the outcome
    of a missing run.
    """
    if outcome is None or outcome.lost:
        reason = "" if outcome is None else outcome.lost
        return {"status": "lost" if reason else "missing", "message": reason}
    values: dict[str, Any] = {
        name: outcome.values[name] for name in ("status", "message", "seconds")
    }
    epochs = outcome.tables["epochs"]
    if not len(epochs):
        return values
    values |= {name: float(epochs[name].sum()) for name in ("samples", "moved")}
    if values["status"] != "done":
        return values
    values["effective_samples"] = outcome.values["description"].get("effective_samples")
    scores = [
        f"{name}_{score}" for score in ("accuracy", "loss") for name in STATISTICS
    ]
    last = {name: float(epochs[name].iloc[-1]) for name in ("train_loss", *scores)}
    return values | last | _best_accuracies(epochs)


def _best_accuracies(epochs: pd.DataFrame) -> dict[str, float]:
    """Return the best accuracy with each evaluated kind of statistics, and its epoch.

    The first of equally good epochs counts. Kinds that were never evaluated have no
    key.
    """
    values: dict[str, float] = {}
    for name in STATISTICS:
        evaluated = epochs[epochs[f"{name}_accuracy"].notna()]
        if len(evaluated):
            best_row = int(evaluated[f"{name}_accuracy"].argmax())
            values[f"{name}_best_accuracy"] = float(
                evaluated[f"{name}_accuracy"].iloc[best_row]
            )
            values[f"{name}_best_epoch"] = float(evaluated["epoch"].iloc[best_row])
    return values


def describe_networks(runs: pd.DataFrame) -> str:
    """Describe networks and data of runs.csv, such as 'two-layer network on synthetic
    images'.

    Each pair is named once, in the order of the runs, with ', ' between them.
    """
    return ", ".join(dict.fromkeys(runs["model"] + " on " + runs["data"]))


def evaluated_statistics(table: pd.DataFrame) -> list[str]:
    """Return the statistics that a table has accuracies for, in the order of
    `STATISTICS`.

    The table is of runs or epochs; summary.csv has no such columns, so it gives [].
    """
    return [
        name
        for name in STATISTICS
        if f"{name}_accuracy" in table and table[f"{name}_accuracy"].notna().any()
    ]
