"""The tables of a data-optimised study: filters, runs, and their summary."""

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
    group_values,
)
from simshuffle.studies.training.tables import (
    ENDING_COLUMNS,
    INTERVAL_COLUMNS,
    number_column,
    share_column,
)
from simshuffle.study.cell import Outcome
from simshuffle.study.schema import (
    Column,
    Schema,
    count,
    flag,
    real,
    share,
    spent,
    text,
)

SUBSETS = ("full", "network", "random")
"""Trained on: all training samples; what the network's filter leaves; as many drawn at
random.
"""
FILTER_COLUMNS = {
    "extractor": text("network whose features are used"),
    "seed": count("seed of its weights and of t-SNE"),
    "parameters": count("weights of the network"),
    "train_accuracy": share(
        "share of the training samples that the network classifies rightly"
    ),
    "test_accuracy": share(
        "share of the test samples that the network classifies rightly"
    ),
    "features": count("values that go into its last layer"),
    "components": count("principal components that t-SNE got", 1),
    "explained_variance": share("share of the features' variance in these components"),
    "kl_divergence": number_column("KL divergence of t-SNE at its end, nats"),
    "num_samples": count("training samples"),
    "removed": count("training samples that are noise"),
    "reduction": share("share of the training samples that is noise"),
    "smallest_class": count("samples left of the class with the fewest left"),
    "noise_accuracy": share_column(
        "share of the noise that the network classifies rightly; empty where there is none"
    ),
    "kept_accuracy": share_column(
        "share of the other samples that the network classifies rightly"
    ),
    "used": flag("whether networks were trained on the samples that this filter left"),
    "seconds": spent("s, for training, features and t-SNE"),
}
"""Columns of filters.csv."""
EPS_COLUMNS = {
    "extractor": text("as in filters.csv"),
    "seed": count("as in filters.csv"),
    "eps": real("eps of DBSCAN, in units of t-SNE's plane"),
    "reduction": share("share of the training samples that is noise"),
}
"""Columns of eps.csv."""
POINT_COLUMNS = {
    "seed": count("as in filters.csv; the extractor is the one whose filter is used"),
    "sample": count("number of the training sample"),
    "label": count("class of the sample"),
    "x": real("first coordinate in t-SNE's plane, without unit"),
    "y": real("second coordinate in t-SNE's plane, without unit"),
    "loss": number_column("loss of the extractor, nats"),
    "right": flag("whether the extractor classifies the sample rightly"),
    "noise": flag("whether the filter leaves the sample out"),
}
"""Columns of points.parquet."""
SETTING_COLUMNS = {
    "subset": text(
        "full, network (filtered by the network's features), random (as many left out at random)",
        *SUBSETS,
    ),
    "batch_size": count("samples of a batch", 1),
    "learning_rate": real(
        "learning rate of the study; with learning_rate_scaling, at the reference batch size"
    ),
}
DESCRIPTION_COLUMNS = SETTING_COLUMNS | {
    "seed": count("seed of weights, order and filter"),
    "num_samples": count("samples trained on in an epoch"),
}
"""Columns of runs.csv that describe a run; their values follow from the study."""
RUN_COLUMNS = {
    "run": text("name of the run; its folder is runs/NAME"),
    **DESCRIPTION_COLUMNS,
    **ENDING_COLUMNS,
    "train_loss": number_column("training loss of the last epoch, nats"),
    "accuracy": share_column(
        "share of test samples classified rightly after the last epoch"
    ),
    "loss": number_column("mean test loss after the last epoch, nats"),
}
"""Columns of runs.csv."""


def _reference_columns(reference: str) -> dict[str, Column]:
    """Return the columns of the comparison with a subset of `REFERENCES`."""
    data = {"full": "the full data", "random": "randomly filtered data"}[reference]
    subtrahend = f"on {data}, batch size and learning rate being the same"
    family = f"of this subset with {data} that are as much 'chosen'"
    return comparison_columns(reference, data, subtrahend, family)


REFERENCES = {"network": ("full", "random"), "random": ("full",), "full": ()}
"""Subsets that a subset is compared with, in runs of equal batch size, learning rate
and seed.
"""
SUMMARY_COLUMNS = {
    **SETTING_COLUMNS,
    "chosen": flag(
        "whether this learning rate is the best one for the full data at this batch size"
    ),
    "seeds": number_column("runs that ended as they should"),
    "accuracy": share_column(
        "share of test samples classified rightly, mean over seeds"
    ),
    **INTERVAL_COLUMNS,
    **_reference_columns("full"),
    **_reference_columns("random"),
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
    """The four tables that a data-optimised study measured."""

    # filters, eps, points, runs: columns as in `STORED`
    filters: pd.DataFrame
    eps: pd.DataFrame
    points: pd.DataFrame
    runs: pd.DataFrame


def run_table(
    descriptions: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]
) -> pd.DataFrame:
    """Return a row for each run, columns `RUN_COLUMNS`.

    Args:
        descriptions: the values of `DESCRIPTION_COLUMNS`, by the run's name.
        outcomes: outcomes of runs, by the run's name. Runs without one have status
            'missing'. Missing and lost runs have NaN in place of results.
    """
    rows = [
        {"run": name, **description, **_ending_values(outcomes.get(name))}
        for name, description in descriptions.items()
    ]
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def _ending_values(outcome: Outcome | None) -> Mapping[str, Any]:
    """Return status and message of a run, and the values of its outcome if it has one.

    Status is 'missing' without an outcome, and 'lost' where the outcome is lost; both
    have no values.
    """
    if outcome is None:
        return {"status": "missing", "message": ""}
    return (
        {"status": "lost", "message": outcome.lost} if outcome.lost else outcome.values
    )


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each subset, batch size and learning rate.

    Columns are `SUMMARY_COLUMNS`. ``runs`` whose status is not 'done' are left out, and
    settings without finished runs have no row; without any the table is empty. Holm's
    correction is within a subset, apart for chosen and other rates.
    """
    finished_runs = runs[runs["status"] == "done"]
    accuracies = group_values(finished_runs, "accuracy", SETTING_COLUMNS)
    best = best_rates(finished_runs)
    rows = [_summary_row(key, accuracies, best) for key in accuracies]
    table = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    for reference in ("full", "random"):
        for subset in SUBSETS:
            for chosen in (True, False):
                family = (table["subset"] == subset) & (table["chosen"] == chosen)
                fill_holm_column(table, reference, family)
    return table


def best_rates(finished_runs: pd.DataFrame) -> dict[int, float]:
    """Return the learning rate of the highest mean accuracy on full data, by batch
    size.

    Of rates that are equally good it is the lowest. Batch sizes without runs on full
    data are left out.
    """
    full_data_runs = finished_runs[finished_runs["subset"] == "full"]
    rates: dict[int, float] = {}
    for size in sorted(set(full_data_runs["batch_size"])):
        rows = full_data_runs[full_data_runs["batch_size"] == size]
        means = {
            rate: float(rate_rows["accuracy"].mean())
            for rate, rate_rows in rows.groupby("learning_rate")
        }
        rates[int(size)] = float(max(means, key=lambda rate: means[rate]))
    return rates


def _summary_row(
    key: Key, accuracies: Accuracies, best: Mapping[Any, float]
) -> dict[str, Any]:
    """Return the summary of a setting: its accuracy, and its differences to references.

    Differences are paired by seed. They are NaN, of 0 pairs, where `REFERENCES` names
    none or no seed is common. Intervals and p-values are NaN with fewer than two seeds,
    and p-values after Holm's correction are not yet filled in.
    """
    (subset, size, rate), values = key, accuracies[key]
    mean = estimate(list(values.values()))
    row: dict[str, Any] = {
        **dict(zip(SETTING_COLUMNS, key, strict=True)),
        "chosen": best.get(size) == rate,
        "seeds": mean.n,
    }
    row |= {"accuracy": mean.mean, "low": mean.low, "high": mean.high}
    for reference in ("full", "random"):
        reference_values = (
            accuracies.get((reference, size, rate), {})
            if reference in REFERENCES[str(subset)]
            else {}
        )
        differences = [
            values[seed] - reference_values[seed]
            for seed in values
            if seed in reference_values
        ]
        row |= comparison_values(reference, estimate(differences))
    return row


def filter_row(
    facts: Mapping[str, Any], points: pd.DataFrame, noise: Iterable[bool], *, used: bool
) -> dict[str, Any]:
    """Return the row of filters.csv of an extraction, with all `FILTER_COLUMNS`.

    'noise_accuracy' is NaN where nothing is left out, 'kept_accuracy' where all is.

    Args:
        facts: values of the extraction's outcome.
        points: the extraction's table, a row for each sample.
        noise: whether each sample is left out, (n,).
        used: whether networks are trained on the samples that this filter leaves.
    """
    is_noise = np.asarray(list(noise), np.bool_)
    is_right = points["right"].to_numpy(np.bool_)
    # a class of which nothing is left counts too, as 0
    labels_left = points["label"].to_numpy()[~is_noise]
    classes = np.unique(points["label"].to_numpy())
    counts = {
        "num_samples": len(is_noise),
        "removed": int(is_noise.sum()),
        "reduction": float(is_noise.mean()),
        "smallest_class": int(min((labels_left == label).sum() for label in classes)),
        "noise_accuracy": float(is_right[is_noise].mean())
        if is_noise.any()
        else math.nan,
        "kept_accuracy": float(is_right[~is_noise].mean())
        if not is_noise.all()
        else math.nan,
        "used": used,
    }
    return {name: (dict(facts) | counts)[name] for name in FILTER_COLUMNS}
