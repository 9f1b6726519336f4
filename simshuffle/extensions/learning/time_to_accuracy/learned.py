"""What a study's result folder says of one condition: accuracy by epoch, and recorded plans."""

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
AGAIN = "Train it again with this version: simshuffle train STUDY."
REPEAT = "Give the command of the training again; finished runs are not repeated."
_EXCHANGE: TypeAdapter[TrainedExchange] = TypeAdapter(TrainedExchange)


@dataclass(frozen=True)
class Learned:
    """One setting."""

    name: str  # strategy and Q
    strategy: str  # as in the tables of the study
    fraction: float | None  # Q; None where there is none
    finished: dict[int, str]  # names of the runs that ended as they should, by seed
    failed: dict[int, str]  # of those that failed, by seed
    exchange: TrainedExchange  # the strategy with its values
    # files of the recorded plans, of the first finished seeds; empty where nothing is exchanged
    plans: tuple[Path, ...]


@dataclass(frozen=True)
class Trained:
    """The scale of a training."""

    world_size: int  # M
    num_samples: int  # N
    local_batch_size: int  # b


@dataclass(frozen=True)
class LearnedStudy:
    """One condition of a study."""

    name: str  # of the study
    condition: tuple[str, str, int]  # variant, kind of batch norm and M
    statistics: str  # of the evaluation
    model: str  # what was trained, in words
    schedules: list[str]  # of the exchange, by name, in the order of the settings
    trained: Trained  # scale of the training
    epochs: int  # of the training
    settings: list[Learned]  # in the order of the study's tables
    # setting, seed, epoch, accuracy: a row for each evaluation, failed runs included
    curves: pd.DataFrame
    # setting, accuracy, label_divergence, between_ranks: a row for each finished run
    finals: pd.DataFrame
    # runs of the condition that are not there, and those that the study has
    missing: tuple[int, int]


def read_study(folder: Path, wanted: TtaOptions) -> LearnedStudy:
    """One condition of the study in ``folder``, or raise InputError. By default it is batch norm
    per rank if the study has it, else its first one; and of the variant and M with most settings
    the first variant and the largest M."""
    result = engine.read(STUDY, folder)
    tables = TrainingTables(**result.tables)
    runs, descriptions = tables.runs, result.meta["runs"]
    done = runs[runs["status"] == "done"]
    if not len(done):
        refuse("", "no run of this study has finished", "", REPEAT, str(folder))
    if wanted.statistics not in (names := evaluated_statistics(done)):
        rule = f"must be one that the study evaluated: {', '.join(names)}"
        refuse("--statistics", rule, repr(wanted.statistics), "Name one of them.", str(folder))
    condition = _condition(done, wanted, str(folder))
    of_condition = runs[(runs[list(CONDITION)] == list(condition)).all(axis=1)]
    settings = _settings(of_condition, folder, wanted.replayed_seeds, descriptions)
    known = [of.exchange.exchange_schedule for of in settings]
    ended = of_condition[of_condition["status"].isin(["done", "failed"])]
    return LearnedStudy(
        name=str(result.meta.get("study", folder.name)),
        condition=condition,
        statistics=wanted.statistics,
        model=describe_networks(ended),
        schedules=list(dict.fromkeys(schedule.name for schedule in known if schedule)),
        trained=_trained(condition[2], settings, descriptions, str(folder)),
        epochs=int(of_condition["epochs_planned"].max()),
        settings=settings,
        curves=_curves(tables, settings, wanted.statistics),
        finals=_finals(tables, settings, wanted.statistics),
        missing=(len(of_condition) - len(ended), len(of_condition)),
    )


# ------------------------------------------------------------------------------------ the condition


def _condition(done: pd.DataFrame, wanted: TtaOptions, source: str) -> tuple[str, str, int]:
    """Variant, batch norm and M."""
    norms = [name for name in NORMS if name in set(done["batch_norm"])]
    norm = norms[0] if wanted.batch_norm is None else wanted.batch_norm
    rows = _of(done, "batch_norm", norm, "--batch-norm", source)
    if wanted.variant is not None:
        rows = _of(rows, "variant", wanted.variant, "--variant", source)
    if wanted.world_size is not None:
        rows = _of(rows, "world_size", wanted.world_size, "--world-size", source)
    condition = ["variant", "world_size"]
    settings = rows[[*condition, "strategy", "exchange_fraction"]].drop_duplicates()
    counts = settings.groupby(condition, sort=False).size()
    most = [(str(of[0]), int(of[1])) for of in counts.index[counts == counts.max()]]
    first = most[0][0]
    return first, norm, max(size for variant, size in most if variant == first)


def _of(rows: pd.DataFrame, column: str, value: Any, option: str, source: str) -> pd.DataFrame:
    found: pd.DataFrame = rows[rows[column] == value]
    if not len(found):
        known = ", ".join(str(each) or "''" for each in dict.fromkeys(rows[column].tolist()))
        rule = f"must be one that the study has finished runs of: {known}"
        refuse(option, rule, str(value), "Name one.", source)
    return found


# ------------------------------------------------------------------------------------- the settings


def _settings(
    runs: pd.DataFrame, folder: Path, replays: int, descriptions: Descriptions
) -> list[Learned]:
    """Every setting with a finished run."""
    groups: dict[tuple[str, float | None], pd.DataFrame] = {}
    names = ["strategy", "exchange_fraction"]
    key: Any
    for key, rows in runs.sort_values("seed", kind="stable").groupby(
        names, sort=False, dropna=False
    ):
        groups[str(key[0]), None if math.isnan(key[1]) else float(key[1])] = rows
    out = []
    for (strategy, fraction), rows in sorted(
        groups.items(), key=lambda each: strategy_sort_key(*each[0])
    ):
        finished, failed = (_by_seed(rows, status) for status in ("done", "failed"))
        if not finished:
            continue
        used = list(finished.values())[:replays]
        exchange = _exchange(descriptions.get(used[0], {}), used[0], folder)
        exchanged = used if exchange.exchange_schedule is not None else []
        plans = tuple(_plans(folder, run) for run in exchanged)
        name = setting_name({"strategy": strategy, "exchange_fraction": fraction})
        out.append(Learned(name, strategy, fraction, finished, failed, exchange, plans))
    return out


def _by_seed(runs: pd.DataFrame, status: str) -> dict[int, str]:
    """Names of the runs that ended so."""
    ended = runs[runs["status"] == status]
    return {int(seed): str(run) for seed, run in zip(ended["seed"], ended["run"], strict=True)}


def _exchange(description: Mapping[str, Any], run: str, folder: Path) -> TrainedExchange:
    """The strategy of a run with its values, from what its record says."""
    try:
        return _EXCHANGE.validate_python(description["exchange"])
    except (KeyError, ValidationError):
        rule = "does not say in 'exchange' which strategy it followed"
        given = str(description.get("exchange", ""))
        refuse(f"meta.json: runs: {run}", rule, given, AGAIN, str(folder))


def _plans(folder: Path, run: str) -> Path:
    """The file of a run's plans."""
    path = folder / "plans" / f"{run}.npz"
    if path.is_file():
        return path
    rule = "is missing: without the plans there is nothing to simulate"
    refuse(f"plans/{run}.npz", rule, "", REPEAT, str(folder))


def _trained(
    world_size: int, settings: list[Learned], descriptions: Descriptions, source: str
) -> Trained:
    """The scale that all finished runs of the condition have."""
    found = {}
    for run in (run for setting in settings for run in setting.finished.values()):
        try:
            of = descriptions[run]
            found[run] = Trained(world_size, int(of["num_samples"]), int(of["local_batch_size"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            rule = "must give num_samples and local_batch_size"
            refuse(f"meta.json: runs: {run}", rule, "", AGAIN, source)
    scales = list(dict.fromkeys(found.values()))
    if len(scales) > 1:
        given = " and ".join(
            f"{of.num_samples} samples with local batch {of.local_batch_size}" for of in scales
        )
        rule, remedy = "must all have the same data and local batch", "Choose a --variant."
        refuse("runs", rule, given, remedy, source)
    return scales[0]


# --------------------------------------------------------------------------------------- the tables


def _curves(tables: TrainingTables, settings: list[Learned], statistics: str) -> pd.DataFrame:
    """Evaluations of the settings' runs, failed ones too: setting, seed, epoch, accuracy."""
    column = f"{statistics}_accuracy"
    known = [
        (run, of.name, seed)
        for of in settings
        for seed, run in sorted((of.finished | of.failed).items())
    ]
    table = pd.DataFrame(known, columns=["run", "setting", "seed"]).merge(
        tables.epochs[["run", "epoch", column]], on="run", how="left"
    )
    table = table[table[column].notna()].rename(columns={column: "accuracy"})
    return table.astype({"epoch": int})[["setting", "seed", "epoch", "accuracy"]].reset_index(
        drop=True
    )


def _finals(tables: TrainingTables, settings: list[Learned], statistics: str) -> pd.DataFrame:
    """What the finished runs reached: setting, accuracy, label_divergence, between_ranks."""
    last = tables.epochs.sort_values("epoch").drop_duplicates("run", keep="last").set_index("run")
    trained = tables.importance[tables.importance["source"] == "training"].sort_values("epoch")
    between = trained.drop_duplicates("run", keep="last").set_index("run")["between_ranks"]
    accuracy = tables.runs.set_index("run")[f"{statistics}_accuracy"]
    known = [(of.name, run) for of in settings for run in of.finished.values()]
    names, runs = zip(*known, strict=True)
    found = {"accuracy": accuracy, "label_divergence": last["label_divergence"]}
    found["between_ranks"] = between
    values = {name: of.reindex(runs).to_numpy(float) for name, of in found.items()}
    return pd.DataFrame({"setting": names, **values})
