"""The tables of a simulation, its measures and seeds, and means and intervals over
seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import Problem, refuse
from simshuffle.report import report
from simshuffle.report.intervals import Ends
from simshuffle.report.kept_phases import ITERATION_COLUMNS
from simshuffle.report.report import ALL_LABELS, EPOCH_COLUMNS, LABELS
from simshuffle.report.timeline import LINK_COLUMNS, PHASE_COLUMNS, SOURCE_COLUMNS
from simshuffle.spec.late import special
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.overrides import MOST_COMBINATIONS
from simshuffle.study.schema import Column, Schema, amount, count, real, text, unit_of

BREAKDOWN_COLUMNS = {
    "run": text("name of the run"),
    "epoch": count("from 1; the first is cold"),
    "label": text(f"one of {', '.join(ALL_LABELS)}", *ALL_LABELS),
    "cause": text(
        "empty for a rank's own work; for waiting, the label of what the other ranks did",
        *("", *ALL_LABELS),
    ),
    "seconds": amount(
        "s of the epoch, mean over ranks; the rows of an epoch add up to it"
    ),
}
STORED = {
    "timeline": Schema(PHASE_COLUMNS, ".parquet"),
    "iterations": Schema(ITERATION_COLUMNS, ".parquet"),
    "links": Schema(LINK_COLUMNS, ".parquet"),
    "sources": Schema(SOURCE_COLUMNS, key=("run", "epoch")),
    "epochs": Schema(EPOCH_COLUMNS, key=("run", "epoch")),
    "breakdown": Schema(BREAKDOWN_COLUMNS, key=("run", "epoch", "label", "cause")),
}


# ------------------------------------------------------------------------------- seeds and sweeps

_SEED = count("seed of all random draws")


def _insert_seed_column(schema: Schema) -> Schema:
    """Return a schema with the column ``seed`` after the run."""
    (run, run_column), *further_columns = schema.columns.items()
    columns = {run: run_column, "seed": _SEED, **dict(further_columns)}
    key = (run, "seed", *schema.key[1:]) if schema.key else ()
    return replace(schema, columns=columns, key=key)


STORED_OVER_SEEDS = {
    name: _insert_seed_column(schema) for name, schema in STORED.items()
}


def label_column(label: str, waiting: bool = False) -> str:
    """Return the column of a label: 'ge_wu_s' for 'GE+WU', 'wait_ge_wu_s' for waiting
    for it.
    """
    column = f"{label.lower().replace('/', '').replace('+', '_')}_s"
    return f"wait_{column}" if waiting else column


class SweptAxis(TypedDict):
    """An axis of a sweep: its column, its dotted key, and whether its values are
    numbers.
    """

    name: str
    key: str
    numbers: bool


def axis_columns(axes: Sequence[SweptAxis]) -> dict[str, Column]:
    """Return the columns that stand first in the tables of a sweep, by name: label and
    axes.
    """
    column_of_axis = {
        axis["name"]: (real if axis["numbers"] else text)(f"value of {axis['key']}")
        for axis in axes
    }
    return {"label": text("name of the run, the same for all seeds"), **column_of_axis}


_MEASURES = {
    **{name: column for name, column in EPOCH_COLUMNS.items() if name != "run"},
    **{
        label_column(label): amount(
            f"s of a rank's own {label}, mean over ranks; 0 where it has none"
        )
        for label in LABELS
    },
    **{
        label_column(label, waiting=True): amount(
            f"s of waiting for ranks in {label}, mean over ranks"
        )
        for label in LABELS
    },
}
SWEEP = Schema({"seed": _SEED, **_MEASURES}, ".parquet")
PLANNED_COLUMNS = (
    "world_size",
    "exchange_fraction",
    "epoch",
    "iterations",
    "iterations_simulated",
)
COLUMNS_WITHOUT_MEASURE = ("seed", "strategy", *PLANNED_COLUMNS)
SUMMARY = Schema(
    {
        "epoch": count("from 1; the first is cold", low=1),
        "measure": text("a column of sweep.parquet"),
        "seeds": count("number of seeds", low=1),
        "mean": real("mean over the seeds, in the unit of the measure"),
        "low": real(
            "lower end of the 95 % interval by Student's t; empty for one seed",
            empty=True,
        ),
        "high": real("upper end of the interval; empty for one seed", empty=True),
    }
)
SUMMARY_OVER_SEEDS = Schema(
    {
        "run": text("name of the run"),
        **SUMMARY.columns,
        "measure": text(
            "a column of epochs.csv, or a label of the breakdown, with wait_ before it for"
            " waiting"
        ),
    }
)


WHOLE_EPOCH = "epoch_s"
DIVISORS = {"iterations": "iteration", "world_size": "GPU"}
"""Columns that a measure may be divided by, and what each counts."""


def find_measure_problems(measure: str, path: str = "--measure") -> list[Problem]:
    """Return the problems of a measure that stands at ``path``; [] if there is such a
    measure.

    A measure is a column of sweep.parquet, or that over one of `DIVISORS`, such as
    'allreduce_exposed_s/iterations'.
    """
    name, slash, divisor = measure.partition("/")
    measures = [
        column
        for column in SWEEP.columns
        if column not in {*COLUMNS_WITHOUT_MEASURE, *DIVISORS}
    ]
    problems = []
    if name not in measures:
        rule = "must begin with a measure of sweep.parquet"
        remedy = suggest_nearest(name, measures)
        problems.append(Problem(path, rule, repr(name), remedy))
    if slash and divisor not in DIVISORS:
        rule = "may be divided only by a count"
        problems.append(
            Problem(path, rule, repr(divisor), f"Use {', '.join(DIVISORS)}.")
        )
    return problems


def measure_name(measure: str) -> str:
    """Return the name of a measure: 'allreduce exposed per iteration (s)' for
    'allreduce_exposed_s/iterations'.

    The measure must be valid (`find_measure_problems`).
    """
    name, _, divisor = measure.partition("/")
    if name == WHOLE_EPOCH:
        return f"time per {DIVISORS.get(divisor, 'epoch')} (s)"
    unit = unit_of(name)
    words = name.removesuffix("_per_s").removesuffix("_s").replace("_", " ")
    words_with_divisor = f"{words} per {DIVISORS[divisor]}" if divisor else words
    return f"{words_with_divisor} ({unit})" if unit else words_with_divisor


def check_seeds(seeds: int, num_runs: int, is_seed_swept: bool) -> None:
    """Check that each run can have so many seeds.

    Args:
        seeds: seeds of each run.
        num_runs: number of runs.
        is_seed_swept: true if the seed is swept, too.

    Raises:
        InputError: the seeds are no whole number from 1 on, are several while the seed
            is swept too, or make more than `MOST_COMBINATIONS` runs.
    """
    source = "command line"
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        refuse(
            "--seeds",
            "must be a whole number from 1 on",
            repr(seeds)[:60],
            "Try 5.",
            source,
        )
    if is_seed_swept and seeds > 1:
        refuse(
            "--seeds",
            "cannot be combined with a swept seed",
            str(seeds),
            "Leave one out.",
            source,
        )
    if seeds > 1 and seeds * num_runs > MOST_COMBINATIONS:
        rule = f"must make at most {MOST_COMBINATIONS} runs"
        max_seeds = max(1, MOST_COMBINATIONS // num_runs)
        requested = f"{seeds} for each of {num_runs}"[:60]
        refuse("--seeds", rule, requested, f"Give at most {max_seeds}.", source)


LEVEL = 0.95  # of the intervals


def keys_of_combinations(axes: Sequence[SweptAxis]) -> list[str]:
    """Return the columns that tell the combinations of a sweep apart: the label and its
    ``axes``.
    """
    return ["label", *(axis["name"] for axis in axes)]


def summarise_seeds(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the mean and 95 % interval of every measure over the seeds.

    A row is a combination of ``keys`` (label and axes of a sweep), epoch and measure;
    with one seed its ends are NaN. Columns are ``keys`` and `SUMMARY`. Measures are all
    columns of ``table`` but ``keys``, epoch and `COLUMNS_WITHOUT_MEASURE`; they must be
    numbers. The interval is mean ± t s / √n, with the sample's
    standard deviation s over n seeds and the 97.5th percentile t of Student's
    distribution of n − 1 degrees of freedom (Student, 'The probable error of a mean',
    Biometrika 6, 1908). The seeds are taken as independent draws from a normal
    distribution.
    """
    keys = [*keys, "epoch"]
    measures = [
        name for name in table.columns if name not in {*keys, *COLUMNS_WITHOUT_MEASURE}
    ]
    groups = table.groupby(keys, sort=False, dropna=False, observed=True)[measures]
    mean = groups.mean()
    seeds = groups.size().to_numpy()

    # (groups,) t / √n
    with np.errstate(invalid="ignore", divide="ignore"):
        student_factor = np.where(
            seeds > 1,
            special.stdtrit(seeds - 1, 0.5 + LEVEL / 2) / np.sqrt(seeds),
            np.nan,
        )
    # (groups, measures) centre and half of each interval: mean ± t s / √n
    half_intervals = groups.std(ddof=1).to_numpy() * student_factor[:, None]
    centre = mean.to_numpy()

    # a row for each group and measure, the measures of a group one after another
    groups_table = mean.index.to_frame(index=False)
    num_measures = len(measures)
    group_of_row = np.repeat(np.arange(len(groups_table)), num_measures)
    rows = groups_table.loc[group_of_row].reset_index(drop=True)
    rows["measure"] = np.tile(np.array(measures, object), len(groups_table))
    rows["seeds"] = np.repeat(seeds, num_measures)
    rows["mean"] = centre.ravel()
    rows["low"] = (centre - half_intervals).ravel()
    rows["high"] = (centre + half_intervals).ravel()
    return rows[[*keys[:-1], *SUMMARY.columns]]


def measures_of_epochs(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> pd.DataFrame:
    """Return ``epochs`` with a column of seconds for each label, own work and waiting.

    The columns are of `label_column` for `LABELS`; waiting counts under the label that is
    waited for. Checkpoints and lost work have no column. The seconds are 0 where an epoch
    has none. ``epochs`` and ``breakdown`` are of `simshuffle.report.report`.
    """
    keys = report.keys_of(epochs)
    parts = report.by_cause(breakdown)[[*keys, "label", "waiting", "seconds"]]
    seconds_by_row = {
        row[:-1]: row[-1] for row in parts.itertuples(index=False, name=None)
    }
    rows = list(epochs[keys].itertuples(index=False, name=None))
    seconds = {
        label_column(label, waiting): [
            seconds_by_row.get((*row, label, waiting), 0.0) for row in rows
        ]
        for waiting in (False, True)
        for label in LABELS
    }
    return epochs.assign(**seconds)


def last_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the last epoch of each run, ascending by epoch.

    Runs are texts, even if they were categories. Of several seeds one row is left: give
    means.
    """
    rows = epochs.assign(run=epochs["run"].astype(str)).sort_values(
        "epoch", kind="stable"
    )
    return rows.drop_duplicates("run", keep="last")


def epoch_lengths(epochs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return samples, iterations and samples/s of every epoch, means over seeds.

    The index are ``keys``, which begin with run.
    """
    table = epochs.assign(run=epochs["run"].astype(str), samples=samples_of(epochs))
    return table.groupby(keys, sort=False)[
        ["samples", "iterations", "samples_per_s"]
    ].mean()


def samples_of(epochs: pd.DataFrame) -> pd.Series[float]:
    """Return (rows,) the number of samples of each of ``epochs``, a whole number as
    float.
    """
    return (epochs["samples_per_s"] * epochs["epoch_s"]).round()


def describe_mean(seeds: int) -> str:
    """Return the phrase on what an interval over seeds is of."""
    return f"the mean over {seeds} seeds"


@dataclass(frozen=True)
class Means:
    """Means over seeds of runs, for tables and figures; with one seed, its own values."""

    epochs: pd.DataFrame  # columns `EPOCH_COLUMNS`
    breakdown: pd.DataFrame  # columns `BREAKDOWN_COLUMNS`
    # half the 95 % interval over seeds of each measure of ``epochs``, by run and epoch; None with
    # one seed
    half_intervals: pd.DataFrame | None = None
    seeds: int = 1  # number of seeds
    # ends of the 90 % interval of the last epoch (s), by run; of inputs, model and chance
    ends: Ends = field(default_factory=dict)
    num_measured: int = 0  # measured runs that these intervals take in

    @property
    def epoch_half(self) -> pd.Series[float] | None:
        """Return half the 95 % interval of an epoch (s), by run and epoch.

        It is over the seeds. With one seed it is for the iterations that were not
        simulated: 0 for an epoch without any, and None if all were simulated.
        """
        if self.half_intervals is not None:
            return self.half_intervals["epoch_s"]
        return half_of_window(self.epochs)

    def whole_epochs(self) -> pd.DataFrame:
        """Return the epochs with the columns ``seconds`` (their epoch_s), and ``half``
        their 95 % interval (s), 0 without one.
        """
        run_epochs = pd.MultiIndex.from_frame(
            self.epochs[["run", "epoch"]].astype({"run": str})
        )
        half_s = (
            0.0
            if self.epoch_half is None
            else self.epoch_half.loc[run_epochs].to_numpy()
        )
        return self.epochs.assign(seconds=self.epochs["epoch_s"], half=half_s)

    @property
    def interval_subject(self) -> str:
        """Return the phrase on what `epoch_half` is the interval of."""
        if self.seeds > 1:
            return describe_mean(self.seeds)
        return "the epoch, from its simulated iterations"


def half_of_window(epochs: pd.DataFrame) -> pd.Series[float] | None:
    """Return half the 95 % interval of each epoch (s), by run and epoch.

    It is 0 for an epoch that was simulated as a whole; None if all were.
    """
    half_intervals = epochs["epoch_high_s"] - epochs["epoch_s"]
    if not half_intervals.any():
        return None
    runs = epochs["run"].astype(str)
    return pd.Series(
        half_intervals.to_numpy(), pd.MultiIndex.from_arrays([runs, epochs["epoch"]])
    )


def means_over_seeds(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> Means:
    """Return the means over seeds of epochs and their breakdown.

    Without a column ``seed`` they are unchanged, and half intervals None. A label that
    a seed lacks counts as 0; causes that no seed has are left out. Ends of 90 %
    intervals are not filled in.
    """
    if "seed" not in epochs:
        return Means(epochs, breakdown)
    keys = ["run", "epoch"]
    epochs, breakdown = (
        table.assign(run=table["run"].astype(str)) for table in (epochs, breakdown)
    )
    # a label that a seed does not have counts as 0 s there
    labels = (
        breakdown[["label", "cause"]]
        .drop_duplicates()
        .merge(epochs[[*keys, "seed"]], "cross")
    )
    filled_rows = labels.merge(breakdown, "left").fillna({"seconds": 0.0})
    parts = summarise_seeds(filled_rows, ["run", "label", "cause"])
    parts = parts.rename(columns={"mean": "seconds"})
    parts = parts[(parts["seconds"] > 0) | (parts["cause"] == "")]
    parts = parts[[*keys, "label", "cause", "seconds"]].reset_index(drop=True)
    epoch_means, half_intervals, seeds = mean_epochs(epochs)
    return Means(epoch_means, parts, half_intervals, seeds)


def mean_epochs(epochs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Return the means over seeds of the columns `EPOCH_COLUMNS`, half their 95 %
    intervals, and the number of seeds, the largest of all epochs.

    The intervals are of each measure, by run and epoch; NaN with one seed. Columns
    without a measure, such as iterations, are those of the first seed.
    """
    keys = ["run", "epoch"]
    columns = list(EPOCH_COLUMNS)
    summary = summarise_seeds(epochs[[*columns, "seed"]], ["run"])
    summary["half"] = summary["high"] - summary["mean"]
    wide = summary.pivot(index=keys, columns="measure", values=["mean", "half"])
    means = epochs.drop_duplicates(keys)[columns].set_index(keys)
    means = means.assign(**{str(name): wide["mean"][name] for name in wide["mean"]})
    return (
        means.reset_index()[columns],
        pd.DataFrame(wide["half"]),
        int(summary["seeds"].max()),
    )
