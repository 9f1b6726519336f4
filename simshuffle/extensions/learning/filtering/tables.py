"""The tables of a study of data-optimised training: filters, runs, and what is found in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.studies.training.summary import (
    Accuracies,
    Key,
    comparison_columns,
    comparison_values,
    estimate,
    fill_holm_column,
    values_by_setting,
)
from simshuffle.studies.training.tables import (
    ENDING_COLUMNS,
    INTERVAL_COLUMNS,
    number_column,
    share_column,
)
from simshuffle.study.cell import Outcome
from simshuffle.study.schema import Column, Schema, count, flag, real, share, spent, text

SUBSETS = ("full", "network", "random")
"""Trained on: all training samples; what the network's filter leaves; as many drawn at random."""
FILTER_COLUMNS = {
    "extractor": text("network that the features are of"),
    "seed": count("of its weights, of t-SNE"),
    "parameters": count("weights of the network"),
    "train_accuracy": share("share of the training samples that the network classifies rightly"),
    "test_accuracy": share("share of the test samples"),
    "features": count("values that go into its last layer"),
    "components": count("principal components that t-SNE got", 1),
    "explained_variance": share("share of the features' variance in them"),
    "kl_divergence": number_column("of t-SNE at its end, nats"),
    "num_samples": count("training samples"),
    "removed": count("of them, noise"),
    "reduction": share("share of them that is noise"),
    "smallest_class": count("samples that are left of the class of which fewest are"),
    "noise_accuracy": share_column(
        "share of the noise that the network classifies rightly; empty where there is none"
    ),
    "kept_accuracy": share_column("share of the rest"),
    "used": flag("whether networks were trained on what this filter left"),
    "seconds": spent("s, for training, features and t-SNE"),
}
"""Columns of filters.csv."""
EPS_COLUMNS = {
    "extractor": text("as in filters.csv"),
    "seed": count("as in filters.csv"),
    "eps": real("of DBSCAN, in units of t-SNE's plane"),
    "reduction": share("share of the training samples that is noise"),
}
"""Columns of eps.csv."""
POINT_COLUMNS = {
    "seed": count("as in filters.csv; the extractor is the one whose filter is used"),
    "sample": count("number of the training sample"),
    "label": count("its class"),
    "x": real("in t-SNE's plane, without unit"),
    "y": real("in t-SNE's plane, without unit"),
    "loss": number_column("of the extractor, nats"),
    "right": flag("whether the extractor classifies it rightly"),
    "noise": flag("whether the filter leaves it out"),
}
"""Columns of points.parquet."""
SETTING_COLUMNS = {
    "subset": text(
        "full, network (filtered by the network's features), random (as many left out at random)",
        *SUBSETS,
    ),
    "batch_size": count("samples of a batch", 1),
    "learning_rate": real(
        "of the study; with learning_rate_scaling, that at the reference batch size"
    ),
}
DESCRIPTION_COLUMNS = SETTING_COLUMNS | {
    "seed": count("of weights, order and filter"),
    "num_samples": count("trained on in an epoch"),
}
"""What describes a run; the study says it."""
RUN_COLUMNS = {
    "run": text("name; its folder is runs/NAME"),
    **DESCRIPTION_COLUMNS,
    **ENDING_COLUMNS,
    "train_loss": number_column("of the last epoch, nats"),
    "accuracy": share_column("share of the test samples after the last epoch"),
    "loss": number_column("mean test loss after the last epoch, nats"),
}
"""Columns of runs.csv."""


def _against(name: str) -> dict[str, Column]:
    data = {"full": "the full data", "random": "randomly filtered data"}[name]
    less = f"on {data}, batch size and learning rate being the same"
    family = f"of this subset with {data} that are as much 'chosen'"
    return comparison_columns(name, data, less, family)


AGAINST = {"network": ("full", "random"), "random": ("full",), "full": ()}
"""What a subset is compared with, in runs of the same batch size, learning rate and seed."""
SUMMARY_COLUMNS = {
    **SETTING_COLUMNS,
    "chosen": flag(
        "whether this learning rate is the best one for the full data at this batch size"
    ),
    "seeds": number_column("runs that ended as they should"),
    "accuracy": share_column("mean over seeds, share of the test samples"),
    **INTERVAL_COLUMNS,
    **_against("full"),
    **_against("random"),
}
"""Columns of summary.csv."""
STORED = {
    "filters": Schema(FILTER_COLUMNS, key=("extractor", "seed")),
    "eps": Schema(EPS_COLUMNS, key=("extractor", "seed", "eps")),
    "points": Schema(POINT_COLUMNS, ".parquet", ("seed", "sample")),
    "runs": Schema(RUN_COLUMNS, key=("run",)),
}
SUMMARY = Schema(SUMMARY_COLUMNS, key=tuple(SETTING_COLUMNS))


@dataclass(frozen=True)
class FilterTables:
    """What a study measured."""

    # filters, eps, points, runs: columns as in `STORED`
    filters: pd.DataFrame
    eps: pd.DataFrame
    points: pd.DataFrame
    runs: pd.DataFrame


def run_table(
    descriptions: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]
) -> pd.DataFrame:
    """A row for each run, columns `RUN_COLUMNS`: values of `DESCRIPTION_COLUMNS` by its name, and
    of its outcome the columns after these; none of runs that are missing."""
    rows = [{"run": name, **of, **_ending(outcomes.get(name))} for name, of in descriptions.items()]
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def _ending(outcome: Outcome | None) -> Mapping[str, Any]:
    if outcome is None:
        return {"status": "missing", "message": ""}
    return {"status": "lost", "message": outcome.lost} if outcome.lost else outcome.values


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each subset, batch size and learning rate, columns `SUMMARY_COLUMNS`; ``runs`` that
    are not done are left out."""
    done = runs[runs["status"] == "done"]
    accuracies, best = values_by_setting(done, "accuracy", SETTING_COLUMNS), best_rates(done)
    rows = [_row(key, accuracies, best) for key in accuracies]
    table = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    for against in ("full", "random"):
        for subset in SUBSETS:
            for chosen in (True, False):
                family = (table["subset"] == subset) & (table["chosen"] == chosen)
                fill_holm_column(table, against, family)
    return table


def best_rates(done: pd.DataFrame) -> dict[int, float]:
    """The learning rate best on the full data, by batch size; the lowest of equals."""
    full = done[done["subset"] == "full"]
    out: dict[int, float] = {}
    for size in sorted(set(full["batch_size"])):
        rows = full[full["batch_size"] == size]
        means = {
            rate: float(part["accuracy"].mean()) for rate, part in rows.groupby("learning_rate")
        }
        out[int(size)] = float(max(means, key=lambda rate: means[rate]))
    return out


def _row(key: Key, accuracies: Accuracies, best: Mapping[Any, float]) -> dict[str, Any]:
    (subset, size, rate), values = key, accuracies[key]
    mean = estimate(list(values.values()))
    row: dict[str, Any] = {
        **dict(zip(SETTING_COLUMNS, key, strict=True)),
        "chosen": best.get(size) == rate,
        "seeds": mean.n,
    }
    row |= {"accuracy": mean.mean, "low": mean.low, "high": mean.high}
    for name in ("full", "random"):
        other = accuracies.get((name, size, rate), {}) if name in AGAINST[str(subset)] else {}
        paired = [values[seed] - other[seed] for seed in values if seed in other]
        row |= comparison_values(name, estimate(paired))
    return row


def filter_row(
    facts: Mapping[str, Any], points: pd.DataFrame, noise: Iterable[bool], *, used: bool
) -> dict[str, Any]:
    """A row of filters.csv, of the facts of an extraction, its table of points, and which of them
    are ``noise``, (n,); ``used`` as of `FILTER_COLUMNS`."""
    out = np.asarray(list(noise), np.bool_)
    right, left = points["right"].to_numpy(np.bool_), points["label"].to_numpy()[~out]
    classes = np.unique(points["label"].to_numpy())
    counted = {
        "num_samples": len(out),
        "removed": int(out.sum()),
        "reduction": float(out.mean()),
        "smallest_class": int(min((left == label).sum() for label in classes)),
        "noise_accuracy": float(right[out].mean()) if out.any() else math.nan,
        "kept_accuracy": float(right[~out].mean()) if not out.all() else math.nan,
        "used": used,
    }
    return {name: (dict(facts) | counted)[name] for name in FILTER_COLUMNS}
