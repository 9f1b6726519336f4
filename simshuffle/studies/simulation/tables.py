"""The tables of a simulation; how many seeds it may have, and means and intervals over them."""

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
        "empty for a rank's own work; of waiting for other ranks, the label of what they did",
        *("", *ALL_LABELS),
    ),
    "seconds": amount("s of the epoch, mean over ranks; the rows of an epoch add up to it"),
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

_SEED = count("of all that is drawn")


def _seeded(schema: Schema) -> Schema:
    (run, of_run), *others = schema.columns.items()
    key = (run, "seed", *schema.key[1:]) if schema.key else ()
    return replace(schema, columns={run: of_run, "seed": _SEED, **dict(others)}, key=key)


STORED_OVER_SEEDS = {name: _seeded(schema) for name, schema in STORED.items()}


def label_column(label: str, waiting: bool = False) -> str:
    """The column of a label: 'GE+WU' becomes 'ge_wu_s', and waiting for it 'wait_ge_wu_s'."""
    plain = f"{label.lower().replace('/', '').replace('+', '_')}_s"
    return f"wait_{plain}" if waiting else plain


class SweptAxis(TypedDict):
    """An axis of a sweep: its column, its dotted key, and whether its values are numbers."""

    name: str
    key: str
    numbers: bool


def axis_columns(axes: Sequence[SweptAxis]) -> dict[str, Column]:
    """The columns that stand first in the tables of a sweep: label and axes."""
    about = {
        axis["name"]: (real if axis["numbers"] else text)(f"value of {axis['key']}")
        for axis in axes
    }
    return {"label": text("name of the run, the same for all seeds"), **about}


_MEASURES = {
    **{name: column for name, column in EPOCH_COLUMNS.items() if name != "run"},
    **{
        label_column(of): amount(f"s of a rank's own {of}, mean over ranks; 0 where it has none")
        for of in LABELS
    },
    **{
        label_column(of, waiting=True): amount(f"s of waiting for ranks in {of}, mean over ranks")
        for of in LABELS
    },
}
SWEEP = Schema({"seed": _SEED, **_MEASURES}, ".parquet")
AS_PLANNED = ("world_size", "exchange_fraction", "epoch", "iterations", "iterations_simulated")
NOT_MEASURED = ("seed", "strategy", *AS_PLANNED)
SUMMARY = Schema(
    {
        "epoch": count("from 1; the first is cold", low=1),
        "measure": text("a column of sweep.parquet"),
        "seeds": count("how many there are", low=1),
        "mean": real("over the seeds, in the unit of the measure"),
        "low": real("lower end of the 95 % interval by Student's t; empty of one", empty=True),
        "high": real("upper end of it; empty of one", empty=True),
    }
)
SUMMARY_OVER_SEEDS = Schema(
    {
        "run": text("name of the run"),
        **SUMMARY.columns,
        "measure": text("a column of epochs.csv, or a label of the breakdown: wait_ for waiting"),
    }
)


WHOLE_EPOCH = "epoch_s"
PER = {"iterations": "iteration", "world_size": "GPU"}
"""Columns that a measure may be divided by, and what each counts."""


def measure_problems(measure: str, where: str = "--measure") -> list[Problem]:
    """What is wrong with a measure that stands ``where``; nothing if there is such a one."""
    name, slash, per = measure.partition("/")
    known = [column for column in SWEEP.columns if column not in {*NOT_MEASURED, *PER}]
    problems = []
    if name not in known:
        rule, remedy = "must begin with a measure of sweep.parquet", suggest_nearest(name, known)
        problems.append(Problem(where, rule, repr(name), remedy))
    if slash and per not in PER:
        rule = "may be divided only by a number of something"
        problems.append(Problem(where, rule, repr(per), f"Use {', '.join(PER)}."))
    return problems


def measure_name(measure: str) -> str:
    """'allreduce_exposed_s/iterations' becomes 'allreduce exposed per iteration (s)'."""
    name, _, per = measure.partition("/")
    if name == WHOLE_EPOCH:
        return f"time per {PER.get(per, 'epoch')} (s)"
    unit = unit_of(name)
    words = name.removesuffix("_per_s").removesuffix("_s").replace("_", " ")
    whole = f"{words} per {PER[per]}" if per else words
    return f"{whole} ({unit})" if unit else whole


def check_seeds(seeds: int, runs: int, swept: bool) -> None:
    """See that each of ``runs`` can have so many seeds; an InputError if that is no whole number
    from 1 on, the seed is ``swept`` too, or it makes too many runs."""
    source = "command line"
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        refuse("--seeds", "must be a whole number from 1 on", repr(seeds)[:60], "Try 5.", source)
    if swept and seeds > 1:
        refuse("--seeds", "is not needed where seed is swept", str(seeds), "Drop one.", source)
    if seeds > 1 and seeds * runs > MOST_COMBINATIONS:
        rule = f"must make at most {MOST_COMBINATIONS} runs"
        most = max(1, MOST_COMBINATIONS // runs)
        given = f"{seeds} for each of {runs}"[:60]
        refuse("--seeds", rule, given, f"Give at most {most}.", source)


LEVEL = 0.95  # of the intervals


def summary(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and 95 % interval of every measure over the seeds: a row for each combination of
    ``keys`` (label and axes of a sweep), epoch and measure. mean ± t s / √n, with the sample's
    standard deviation s over n seeds and the 97.5th percentile t of Student's distribution of n − 1
    degrees of freedom (Student, 'The probable error of a mean', Biometrika 6, 1908). The seeds are
    taken as independent draws from a normal distribution."""
    keys = [*keys, "epoch"]
    measures = [name for name in table.columns if name not in {*keys, *NOT_MEASURED}]
    groups = table.groupby(keys, sort=False, dropna=False, observed=True)[measures]
    mean, spread, seeds = groups.mean(), groups.std(ddof=1), groups.size().to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.where(
            seeds > 1, special.stdtrit(seeds - 1, 0.5 + LEVEL / 2) / np.sqrt(seeds), np.nan
        )
    half = spread.to_numpy() * reach[:, None]
    centre = mean.to_numpy()
    index = mean.index.to_frame(index=False)
    count = len(measures)
    rows = index.loc[np.repeat(np.arange(len(index)), count)].reset_index(drop=True)
    rows["measure"] = np.tile(np.array(measures, object), len(index))
    rows["seeds"] = np.repeat(seeds, count)
    rows["mean"] = centre.ravel()
    rows["low"] = (centre - half).ravel()
    rows["high"] = (centre + half).ravel()
    return rows[[*keys[:-1], *SUMMARY.columns]]


def measures(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``epochs``, and beside them their seconds of own work and of waiting by label, a
    column each; 0 where an epoch has none. Both are of `simshuffle.report.report`."""
    keys = report.keys_of(epochs)
    parts = report.by_cause(breakdown)[[*keys, "label", "waiting", "seconds"]]
    found = {row[:-1]: row[-1] for row in parts.itertuples(index=False, name=None)}
    rows = list(epochs[keys].itertuples(index=False, name=None))
    seconds = {
        label_column(label, waiting): [found.get((*row, label, waiting), 0.0) for row in rows]
        for waiting in (False, True)
        for label in LABELS
    }
    return epochs.assign(**seconds)


def last_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the last epoch of each run, in the order of the epochs."""
    rows = epochs.assign(run=epochs["run"].astype(str)).sort_values("epoch", kind="stable")
    return rows.drop_duplicates("run", keep="last")


def lengths(epochs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Samples, iterations and samples/s of every epoch, means over seeds; ``keys`` tell rows
    apart."""
    table = epochs.assign(run=epochs["run"].astype(str), samples=samples_of(epochs))
    return table.groupby(keys, sort=False)[["samples", "iterations", "samples_per_s"]].mean()


def samples_of(epochs: pd.DataFrame) -> pd.Series[float]:
    """(rows of ``epochs``,) how many samples each of them has."""
    return (epochs["samples_per_s"] * epochs["epoch_s"]).round()


def over_seeds(seeds: int) -> str:
    """What an interval is of, in words."""
    return f"the mean over {seeds} seeds"


@dataclass(frozen=True)
class Means:
    """What tables and figures show of runs: means over seeds. Of one seed, what that gives."""

    # epochs, breakdown: as `simshuffle.report.report` makes them, without seed
    epochs: pd.DataFrame
    breakdown: pd.DataFrame
    # half the 95 % interval of each measure of ``epochs``, by run and epoch; None of one seed
    half: pd.DataFrame | None = None
    seeds: int = 1  # how many there are
    # ends of the 90 % interval of the last epoch (s), by run; of inputs, model and chance
    ends: Ends = field(default_factory=dict)

    @property
    def epoch_half(self) -> pd.Series[float] | None:
        """Half the 95 % interval of an epoch (s), by run and epoch: over the seeds, or of one seed
        what was left out of the epoch; None if all was simulated."""
        if self.half is not None:
            return self.half["epoch_s"]
        return half_of_window(self.epochs)

    def whole_epochs(self) -> pd.DataFrame:
        """Return the epochs with the columns seconds, and half their interval, 0 without one."""
        places = pd.MultiIndex.from_frame(self.epochs[["run", "epoch"]].astype({"run": str}))
        half = 0.0 if self.epoch_half is None else self.epoch_half.loc[places].to_numpy()
        return self.epochs.assign(seconds=self.epochs["epoch_s"], half=half)

    @property
    def about(self) -> str:
        """What that is the interval of."""
        return (
            over_seeds(self.seeds) if self.seeds > 1 else "the epoch, from its simulated iterations"
        )


def half_of_window(epochs: pd.DataFrame) -> pd.Series[float] | None:
    """Return half the interval of each epoch (s) of which a part was simulated, by run and epoch;
    None if all was simulated."""
    half = epochs["epoch_high_s"] - epochs["epoch_s"]
    if not half.any():
        return None
    runs = epochs["run"].astype(str)
    return pd.Series(half.to_numpy(), pd.MultiIndex.from_arrays([runs, epochs["epoch"]]))


def means(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> Means:
    """Means over seeds of what `simshuffle.report.report` makes, which may have the seed."""
    if "seed" not in epochs:
        return Means(epochs, breakdown)
    keys = ["run", "epoch"]
    epochs, breakdown = (of.assign(run=of["run"].astype(str)) for of in (epochs, breakdown))
    # a label that a seed does not have counts as 0 s there
    labels = breakdown[["label", "cause"]].drop_duplicates().merge(epochs[[*keys, "seed"]], "cross")
    whole = labels.merge(breakdown, "left").fillna({"seconds": 0.0})
    parts = summary(whole, ["run", "label", "cause"]).rename(columns={"mean": "seconds"})
    parts = parts[(parts["seconds"] > 0) | (parts["cause"] == "")]
    of_epochs, half, seeds = mean_epochs(epochs)
    parts = parts[[*keys, "label", "cause", "seconds"]].reset_index(drop=True)
    return Means(of_epochs, parts, half, seeds)


def mean_epochs(epochs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Means over seeds of the columns `EPOCH_COLUMNS`; half the 95 % interval of each measure, by
    run and epoch; and how many seeds there are."""
    keys, columns = ["run", "epoch"], list(EPOCH_COLUMNS)
    found = summary(epochs[[*columns, "seed"]], ["run"])
    found["half"] = found["high"] - found["mean"]
    wide = found.pivot(index=keys, columns="measure", values=["mean", "half"])
    first = epochs.drop_duplicates(keys)[columns].set_index(keys)
    first = first.assign(**{str(name): wide["mean"][name] for name in wide["mean"]})
    return first.reset_index()[columns], pd.DataFrame(wide["half"]), int(found["seeds"].max())
