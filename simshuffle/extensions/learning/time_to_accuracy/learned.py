"""Read one condition of a training study from its folder: accuracy by epoch, and
recorded plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from simshuffle.errors import refuse
from simshuffle.studies.training.study import STUDY
from simshuffle.studies.training.summary import strategy_sort_key
from simshuffle.studies.training.tables import (
    CONDITION,
    NORMS,
    TrainingTables,
    describe_networks,
    evaluated_statistics,
)
from simshuffle.studies.training.wording import setting_label as setting_name
from simshuffle.study import engine
from simshuffle.workload.exchange import TrainedExchange

if TYPE_CHECKING:
    from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions

Descriptions = Mapping[str, Mapping[str, Any]]
"""What ``meta.json`` of the study says of each run."""
RETRAIN_REMEDY = "Train the study again with this version: simshuffle train STUDY."
RESUME_REMEDY = (
    "Give the command of the training again; finished runs are not repeated."
)
_EXCHANGE_ADAPTER: TypeAdapter[TrainedExchange] = TypeAdapter(TrainedExchange)


@dataclass(frozen=True)
class LearnedSetting:
    """A setting of the study: a strategy with its runs."""

    name: str  # strategy and Q
    strategy: str  # the strategy's name in the tables of the study
    fraction: float | None  # Q; None where there is none
    # names of the runs that ended as they should, by seed
    finished_runs: dict[int, str]
    failed_runs: dict[int, str]  # names of the runs that failed, by seed
    exchange: TrainedExchange  # the strategy with its values
    # files of the recorded plans, of the first finished seeds; empty where nothing is exchanged
    plans: tuple[Path, ...]


@dataclass(frozen=True)
class TrainingScale:
    """The scale of a training: ranks, samples and local batch."""

    world_size: int  # M
    num_samples: int  # N
    local_batch_size: int  # b


@dataclass(frozen=True)
class LearnedStudy:
    """A condition of a study: its settings, curves and final values."""

    name: str  # name of the study
    condition: tuple[str, str, int]  # variant, kind of batch norm and M
    statistics: str  # statistics of the evaluation
    model: str  # networks and data that were trained, in words
    # names of the exchange schedules, in the order of the settings
    schedules: list[str]
    training_scale: TrainingScale  # M, N and b of the training
    epochs: int  # epochs of the training
    settings: list[LearnedSetting]  # settings in the order of the study's tables
    # setting, seed, epoch, accuracy: a row for each evaluation, failed runs included
    curves: pd.DataFrame
    # setting, accuracy, label_divergence, between_ranks: a row for each finished run
    finals: pd.DataFrame
    missing_runs: int  # runs of the condition that are missing or lost
    all_runs: int  # runs of the condition


def read_study(folder: Path, options: TtaOptions) -> LearnedStudy:
    """Read one condition of the study in ``folder``.

    By default it is batch norm per rank if the study has it, else the first kind in the
    order of `NORMS`; and of the variant and M with most settings the first variant and
    the largest M. Only finished runs count for that.

    Raises:
        InputError: the study has no finished run, or none of the condition or
            statistics asked for; its runs lack a strategy, a scale or plans, or differ
            in scale.
    """
    result = engine.read(STUDY, folder)
    tables = TrainingTables(**result.tables)
    runs = tables.runs
    descriptions = result.meta["runs"]
    finished_runs = runs[runs["status"] == "done"]
    if not len(finished_runs):
        refuse("", "no run of this study has finished", "", RESUME_REMEDY, str(folder))
    if options.statistics not in (names := evaluated_statistics(finished_runs)):
        rule = f"must be statistics that the study evaluated: {', '.join(names)}"
        refuse(
            "--statistics",
            rule,
            repr(options.statistics),
            "Name one of these.",
            str(folder),
        )
    condition = _choose_condition(finished_runs, options, str(folder))
    condition_runs = runs[(runs[list(CONDITION)] == list(condition)).all(axis=1)]
    settings = _read_settings(
        condition_runs, folder, options.replayed_seeds, descriptions
    )
    schedules = [setting.exchange.exchange_schedule for setting in settings]
    ended_runs = condition_runs[condition_runs["status"].isin(["done", "failed"])]
    return LearnedStudy(
        name=str(result.meta.get("study", folder.name)),
        condition=condition,
        statistics=options.statistics,
        model=describe_networks(ended_runs),
        schedules=list(
            dict.fromkeys(schedule.name for schedule in schedules if schedule)
        ),
        training_scale=_common_scale(condition[2], settings, descriptions, str(folder)),
        epochs=int(condition_runs["epochs_planned"].max()),
        settings=settings,
        curves=_accuracy_curves(tables, settings, options.statistics),
        finals=_final_values(tables, settings, options.statistics),
        missing_runs=len(condition_runs) - len(ended_runs),
        all_runs=len(condition_runs),
    )


# ------------------------------------------------------------------------------------ the condition


def _choose_condition(
    finished_runs: pd.DataFrame, options: TtaOptions, source: str
) -> tuple[str, str, int]:
    """Choose the condition that is read: variant, kind of batch norm and M.

    Options decide, and else the defaults of `read_study`.

    Raises:
        InputError: no finished run is of the options.
    """
    norms = [name for name in NORMS if name in set(finished_runs["batch_norm"])]
    norm = norms[0] if options.batch_norm is None else options.batch_norm
    rows = _filter_rows(finished_runs, "batch_norm", norm, "--batch-norm", source)
    if options.variant is not None:
        rows = _filter_rows(rows, "variant", options.variant, "--variant", source)
    if options.world_size is not None:
        rows = _filter_rows(
            rows, "world_size", options.world_size, "--world-size", source
        )
    condition = ["variant", "world_size"]
    settings = rows[[*condition, "strategy", "exchange_fraction"]].drop_duplicates()
    counts = settings.groupby(condition, sort=False).size()
    # (variant, M) with most settings
    largest_conditions = list(counts.index[counts == counts.max()])
    first_variant = largest_conditions[0][0]
    sizes = [
        int(size) for variant, size in largest_conditions if variant == first_variant
    ]
    return str(first_variant), norm, max(sizes)


def _filter_rows(
    rows: pd.DataFrame, column: str, value: Any, option: str, source: str
) -> pd.DataFrame:
    """Return the rows with a value in a column, which an option asks for.

    ``option`` and ``source`` name the option and the study in errors.

    Raises:
        InputError: there are none.
    """
    matching_rows: pd.DataFrame = rows[rows[column] == value]
    if not len(matching_rows):
        present_values = [
            str(name) or "''" for name in dict.fromkeys(rows[column].tolist())
        ]
        rule = f"must be a value with finished runs in the study: {', '.join(present_values)}"
        refuse(option, rule, str(value), "Name one.", source)
    return matching_rows


# ------------------------------------------------------------------------------------- the settings


def _read_settings(
    runs: pd.DataFrame, folder: Path, replays: int, descriptions: Descriptions
) -> list[LearnedSetting]:
    """Read the settings with a finished run, in the order of the study's tables.

    A setting's exchange is that of its first finished seed.

    Args:
        runs: of the condition.
        folder: of the study.
        replays: how many of the first finished seeds of a setting have their plans
            replayed.
        descriptions: what ``meta.json`` says of each run.

    Raises:
        InputError: a run does not say its strategy, or its plans are missing.
    """
    runs = runs.sort_values("seed", kind="stable")
    rows_of_setting: dict[tuple[str, float | None], pd.DataFrame] = {}
    key: Any
    for key, rows in runs.groupby(
        ["strategy", "exchange_fraction"], sort=False, dropna=False
    ):
        fraction = None if math.isnan(key[1]) else float(key[1])
        rows_of_setting[str(key[0]), fraction] = rows

    settings = []
    for strategy, fraction in sorted(
        rows_of_setting, key=lambda key: strategy_sort_key(*key)
    ):
        rows = rows_of_setting[strategy, fraction]
        finished, failed = (_run_names(rows, status) for status in ("done", "failed"))
        if not finished:
            continue
        replayed_runs = list(finished.values())[:replays]
        exchange = _read_exchange(
            descriptions.get(replayed_runs[0], {}), replayed_runs[0], str(folder)
        )
        recorded_runs = replayed_runs if exchange.exchange_schedule is not None else []
        plans = tuple(_plans_file(folder, run) for run in recorded_runs)
        name = setting_name({"strategy": strategy, "exchange_fraction": fraction})
        settings.append(
            LearnedSetting(name, strategy, fraction, finished, failed, exchange, plans)
        )
    return settings


def _run_names(runs: pd.DataFrame, status: str) -> dict[int, str]:
    """Return the names of the runs with a status, by seed, in the order of ``runs``."""
    status_runs = runs[runs["status"] == status]
    return {
        int(seed): str(run)
        for seed, run in zip(status_runs["seed"], status_runs["run"], strict=True)
    }


def _read_exchange(
    description: Mapping[str, Any], run: str, source: str
) -> TrainedExchange:
    """Return the strategy, with its values, that the record of a run in ``meta.json``
    gives.

    Args:
        description: the record of the run.
        run: its name in errors.
        source: name of the study in errors.

    Raises:
        InputError: the record does not say the strategy.
    """
    try:
        return _EXCHANGE_ADAPTER.validate_python(description["exchange"])
    except (KeyError, ValidationError):
        rule = "does not say in 'exchange' which strategy it followed"
        exchange_text = str(description.get("exchange", ""))
        refuse(f"meta.json: runs: {run}", rule, exchange_text, RETRAIN_REMEDY, source)


def _plans_file(folder: Path, run: str) -> Path:
    """Return the existing file of a run's plans.

    Raises:
        InputError: it is missing.
    """
    path = folder / "plans" / f"{run}.npz"
    if path.is_file():
        return path
    rule = "is missing: without the plans there is nothing to simulate"
    refuse(f"plans/{run}.npz", rule, "", RESUME_REMEDY, str(folder))


def _common_scale(
    world_size: int,
    settings: list[LearnedSetting],
    descriptions: Descriptions,
    source: str,
) -> TrainingScale:
    """Return the scale that all finished runs of the condition have.

    Raises:
        InputError: a run does not give its samples or local batch, or runs differ.
    """
    scale_of_run = {}
    for run in (run for setting in settings for run in setting.finished_runs.values()):
        try:
            description = descriptions[run]
            scale_of_run[run] = TrainingScale(
                world_size,
                int(description["num_samples"]),
                int(description["local_batch_size"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            rule = "must give num_samples and local_batch_size"
            refuse(f"meta.json: runs: {run}", rule, "", RETRAIN_REMEDY, source)
    scales = list(dict.fromkeys(scale_of_run.values()))
    if len(scales) > 1:
        differences = " and ".join(
            f"{scale.num_samples} samples with local batch {scale.local_batch_size}"
            for scale in scales
        )
        rule = "must all have the same data and local batch"
        remedy = "Choose a --variant."
        refuse("runs", rule, differences, remedy, source)
    return scales[0]


# --------------------------------------------------------------------------------------- the tables


def _accuracy_curves(
    tables: TrainingTables, settings: list[LearnedSetting], statistics: str
) -> pd.DataFrame:
    """Return the evaluations of all runs, failed ones too: setting, seed, epoch,
    accuracy (share).

    Epochs after which nothing was evaluated are left out.
    """
    column = f"{statistics}_accuracy"
    runs = [
        (run, setting.name, seed)
        for setting in settings
        for seed, run in sorted((setting.finished_runs | setting.failed_runs).items())
    ]
    table = pd.DataFrame(runs, columns=["run", "setting", "seed"]).merge(
        tables.epochs[["run", "epoch", column]], on="run", how="left"
    )
    table = table[table[column].notna()].rename(columns={column: "accuracy"})
    return table.astype({"epoch": int})[
        ["setting", "seed", "epoch", "accuracy"]
    ].reset_index(drop=True)


def _final_values(
    tables: TrainingTables, settings: list[LearnedSetting], statistics: str
) -> pd.DataFrame:
    """Return a row for each finished run: setting, accuracy, label_divergence of the
    last epoch, between_ranks of the last training losses; NaN where there is none.
    """
    last_epochs = (
        tables.epochs.sort_values("epoch")
        .drop_duplicates("run", keep="last")
        .set_index("run")
    )
    importance = tables.importance
    training_losses = importance[importance["source"] == "training"].sort_values(
        "epoch"
    )
    last_losses = training_losses.drop_duplicates("run", keep="last").set_index("run")
    # each column by run
    columns = {
        "accuracy": tables.runs.set_index("run")[f"{statistics}_accuracy"],
        "label_divergence": last_epochs["label_divergence"],
        "between_ranks": last_losses["between_ranks"],
    }
    setting_and_run = [
        (setting.name, run)
        for setting in settings
        for run in setting.finished_runs.values()
    ]
    names, runs = zip(*setting_and_run, strict=True)
    values = {
        name: column.reindex(runs).to_numpy(float) for name, column in columns.items()
    }
    return pd.DataFrame({"setting": names, **values})
