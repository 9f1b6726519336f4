"""The tables of a study: one row for each run, each epoch, each iteration, and each setting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.studies.training.record import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    STATISTICS,
)
from simshuffle.studies.training.stored import StoredRun, read_run

SETTING_COLUMNS = {
    "variant": "what else is varied in the study, as key=value; '' if nothing",
    "batch_norm": "'per_rank', 'sync' or 'none'",
    "world_size": "M, ranks",
    "strategy": (
        "global, local, partial, IS (importance exchange), IS-Pair, ILag, ILag-Pair (lagging"
        " importance); other parameters in ()"
    ),
    "exchange_fraction": (
        "Q, share of a shard that is exchanged in an epoch; empty where there is none"
    ),
}
"""What two runs of one setting have in common, and their strategy. Runs that differ in the strategy
alone share the first three."""
STRATEGIES = ("global", "local", "partial", "IS", "ILag", "IS-Pair", "ILag-Pair")
NORMS = {
    "per_rank": "batch norm per rank",
    "sync": "synchronised batch norm",
    "none": "no batch norm",
}
"""Strategies and kinds of batch norm, in the order of tables and figures; other strategies come
after these."""
CONDITION = ("variant", "batch_norm", "world_size")
SETTING = tuple(SETTING_COLUMNS)

DESCRIPTION_COLUMNS = SETTING_COLUMNS | {
    "seed": "of all that is drawn; runs of one seed begin with the same weights",
    "data": "data set",
    "model": "network",
    "partition": "who holds which sample before the first epoch",
    "epochs_planned": "epochs of training",
    "learning_rate": "after the warm-up",
}
"""What describes a run; the study says it."""
RUN_COLUMNS = {
    "run": "name; its folder is runs/NAME, its plans are plans/NAME.npz",
    **DESCRIPTION_COLUMNS,
    "status": (
        "'done'; 'failed': the training stopped; 'lost': its process died or raised an error;"
        " 'missing': not run yet"
    ),
    "message": "of what is not done",
    "seconds": "s that the run took, on one core",
    "samples": "trained on, in all",
    "moved": "samples that left their rank, in all",
    "train_loss": "of the last epoch",
    **{
        f"{name}_accuracy": (
            f"share of test samples after the last epoch, with the statistics '{name}'"
        )
        for name in STATISTICS
    },
    **{
        f"{name}_loss": f"mean test loss after the last epoch (nats), with the statistics '{name}'"
        for name in STATISTICS
    },
}
"""Columns of runs.csv and their meaning."""
COLUMNS = {
    "runs": RUN_COLUMNS,
    "epochs": {"run": "as in runs.csv", **EPOCH_COLUMNS},
    "iterations": {"run": "as in runs.csv", **ITERATION_COLUMNS},
    "importance": {"run": "as in runs.csv", **IMPORTANCE_COLUMNS},
}


@dataclass(frozen=True)
class Tables:
    """What a study measured.

    Attributes:
        runs, epochs, iterations, importance: columns `COLUMNS`.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    iterations: pd.DataFrame
    importance: pd.DataFrame

    def finished(self) -> pd.DataFrame:
        """The runs that ended as they should."""
        return self.runs[self.runs["status"] == "done"]


def collect(
    descriptions: Mapping[str, Mapping[str, Any]], place: Path, lost: Mapping[str, str]
) -> Tables:
    """The tables of all runs of a study.

    Args:
        descriptions: of each run by its name: values of `DESCRIPTION_COLUMNS`.
        place: the folder of the runs' folders; a run without one is missing.
        lost: why runs were lost, by name.

    Raises:
        InputError: a stored run is damaged.
    """
    rows, pieces = (
        [],
        {name: [_empty(columns)] for name, columns in COLUMNS.items() if name != "runs"},
    )
    for name, description in descriptions.items():
        stored = read_run(place / name) if (place / name).exists() else None
        rows.append({"run": name, **description, **_ending(stored, lost.get(name))})
        for table, parts in pieces.items():
            if stored is not None and len(getattr(stored, table)):
                parts.append(getattr(stored, table).assign(run=name))
    whole = {
        name: pd.concat(parts[1:] or parts, ignore_index=True)[list(COLUMNS[name])]
        for name, parts in pieces.items()
    }
    return Tables(pd.DataFrame(rows, columns=list(RUN_COLUMNS)), **whole)


def _empty(columns: Iterable[str]) -> pd.DataFrame:
    texts = {"run", "source"}
    return pd.DataFrame(
        {name: pd.Series([], dtype=object if name in texts else float) for name in columns}
    )


def _ending(stored: StoredRun | None, why: str | None) -> dict[str, Any]:
    """How a run ended: the columns of `RUN_COLUMNS` after the description."""
    if stored is None:
        return {"status": "lost" if why else "missing", "message": why or ""}
    out: dict[str, Any] = {
        "status": stored.status,
        "message": stored.message,
        "seconds": stored.seconds,
    }
    if not len(stored.epochs):
        return out
    last = stored.epochs.iloc[-1]
    out |= {
        "samples": float(stored.epochs["samples"].sum()),
        "moved": float(stored.epochs["moved"].sum()),
    }
    of_end = (
        "train_loss",
        *(f"{name}_{what}" for what in ("accuracy", "loss") for name in STATISTICS),
    )
    return out | {
        name: float(last[name]) if stored.status == "done" else math.nan for name in of_end
    }


def statistics_of(table: pd.DataFrame) -> list[str]:
    """The evaluation statistics that a table of runs, epochs or settings has numbers for; 'own'
    first if it is one of them."""
    return [
        name
        for name in STATISTICS
        if f"{name}_accuracy" in table and table[f"{name}_accuracy"].notna().any()
    ]
