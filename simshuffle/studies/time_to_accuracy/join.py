"""START HERE. time_to_accuracy(folder, scenario): accuracy by epoch from a training, time by epoch
from the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results import code as results
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.ablation.pool import Progress
from simshuffle.studies.time_to_accuracy.folder import TimeToAccuracy
from simshuffle.studies.time_to_accuracy.front import on_front
from simshuffle.studies.time_to_accuracy.learned import Study, Wanted, read_study
from simshuffle.studies.time_to_accuracy.scale import Scaled, scaled
from simshuffle.studies.time_to_accuracy.simulated import (
    Setting,
    end_of_epoch,
    mean_of,
    settings_of,
    simulate_all,
)
from simshuffle.studies.time_to_accuracy.tables import CURVE_COLUMNS, KIND, SETTING_COLUMNS, Tables
from simshuffle.studies.time_to_accuracy.targets import GIVEN, default_targets, targets_table
from simshuffle.studies.training.intervals import estimate


@dataclass(frozen=True)
class Prepared:
    """A join before anything is simulated.

    Attributes:
        study: what was trained.
        scale: the rule.
        settings: with their scenarios.
        targets: accuracies, in the order wanted; empty for the default ones.
        meta: kind, fingerprint, versions, and what the report says of study and scenario.
        scenario_yaml: of all simulations, one document each.
    """

    study: Study
    scale: Scaled
    settings: list[Setting]
    targets: tuple[float, ...]
    meta: dict[str, Any]
    scenario_yaml: str

    @property
    def simulations(self) -> int:
        """How many simulations that is."""
        return sum(len(setting.replays) for setting in self.settings)


def time_to_accuracy(
    folder: str | Path,
    scenario: Scenario,
    *,
    scale: str | None = None,
    targets: Sequence[float] = (),
    processes: int | None = 1,
    progress: Progress | None = None,
    **options: Any,
) -> TimeToAccuracy:
    """Join a training with the simulated time of its epochs.

    Args:
        folder: result folder of `simshuffle train`.
        scenario: cluster, model, sizes and step times; its sweep is not followed.
        scale: 'trained', 'samples', 'ranks', or None where M and N are those of the training; see
            `simshuffle.studies.time_to_accuracy.scale.scaled`.
        targets: accuracies, shares of the test samples; none for global's mean final accuracy less
            1 and less 3 points.
        processes: simulations at once; None for one on each core. More than one starts Python anew
            in each: a script that asks for it keeps its calls below ``if __name__ == "__main__":``.
        progress: called with the share of the simulations that is done, if given.
        **options: as of `prepare`: world_size, batch_norm, variant, statistics, replays,
            global_sources.

    Raises:
        InputError: the folder is no study, or does not fit; nothing of it can be simulated; an
            option is not valid.
    """
    return carry_out(
        prepare(folder, scenario, scale=scale, targets=targets, **options), processes, progress
    )


def prepare(
    folder: str | Path,
    scenario: Scenario,
    *,
    scale: str | None = None,
    targets: Sequence[float] = (),
    world_size: int | None = None,
    batch_norm: str | None = None,
    variant: str | None = None,
    statistics: str = "own",
    replays: int = 1,
    global_sources: Sequence[str] = (),
) -> Prepared:
    """What will be simulated.

    Args:
        folder, scenario, scale, targets: as of `time_to_accuracy`.
        world_size, batch_norm, variant, statistics: which part of the study, as of
            `simshuffle.studies.time_to_accuracy.learned.read_study`.
        replays: seeds of each setting whose plans are simulated.
        global_sources: 'pfs', 'ssd' or both: where global shuffle reads from. Default: as the
            scenario's own global shuffle, else 'pfs'.

    Raises:
        InputError: as of `time_to_accuracy`.
    """
    _check(targets, replays, global_sources)
    study = read_study(Path(folder), Wanted(world_size, batch_norm, variant, statistics, replays))
    scale_of = scaled(scenario, study.trained, scale)
    settings = settings_of(study, scenario, scale_of, replays, tuple(dict.fromkeys(global_sources)))
    text = "---\n".join(replay.to_yaml() for setting in settings for replay in setting.replays)
    wanted = tuple(sorted({float(target) for target in targets}, reverse=True))
    meta = _meta(study, scenario, scale_of) | {
        "targets": list(wanted),
        "scale": scale,
        "replays": replays,
    }
    learned = study.curves.to_csv(index=False) + study.finals.to_csv(index=False)
    mark = results.fingerprint(f"{text}{meta}{learned}")
    return Prepared(
        study,
        scale_of,
        settings,
        wanted,
        meta | {"fingerprint": mark, "versions": results.versions()},
        text,
    )


def carry_out(
    prepared: Prepared, processes: int | None = 1, progress: Progress | None = None
) -> TimeToAccuracy:
    """Simulate, and join. Arguments and errors as of `time_to_accuracy`."""
    measured = simulate_all(prepared.settings, processes, progress)
    tables = joined(prepared.study, prepared.scale, prepared.settings, measured, prepared.targets)
    return TimeToAccuracy(tables, prepared.meta, prepared.scenario_yaml)


def _check(targets: Sequence[float], replays: int, sources: Sequence[str]) -> None:
    problems = [
        Problem(
            "--target",
            "must be an accuracy above 0 and at most 1",
            str(target),
            "For example --target 0.9.",
        )
        for target in targets
        if not 0 < target <= 1
    ]
    if replays < 1:
        problems.append(
            Problem("--replayed-seeds", "must be at least 1", str(replays), "Leave it out for 1.")
        )
    problems += [
        Problem("--global-source", "must be pfs or ssd", repr(source), "Name one.")
        for source in sources
        if source not in {"pfs", "ssd"}
    ]
    if problems:
        raise InputError(problems, "command line")


def _meta(study: Study, scenario: Scenario, scale: Scaled) -> dict[str, Any]:
    """What the report and the figures say of study and scenario."""
    variant, norm, world_size = study.condition
    return {
        "kind": KIND,
        "study": study.name,
        "scenario": scenario.name,
        "rule": scale.rule,
        "condition": {"variant": variant, "batch_norm": norm, "world_size": world_size},
        "statistics": study.statistics,
        "trained": asdict(study.trained),
        "epochs": study.epochs,
        "missing_runs": study.missing[0],
        "all_runs": study.missing[1],
    }


# ----------------------------------------------------------------------------------------- the join


def joined(
    study: Study,
    scale: Scaled,
    settings: Sequence[Setting],
    measured: Mapping[str, Sequence[Mapping[str, Any]]],
    targets: Sequence[float],
) -> Tables:
    """The tables.

    Args:
        study, scale: what was trained, and the rule.
        settings: from `simshuffle.studies.time_to_accuracy.simulated.settings_of`.
        measured: what each replay gave, by setting; none where nothing could be simulated.
        targets: accuracies; empty for the default ones.
    """
    simulated = {
        setting.name: mean_of(measured[setting.name], study.epochs) for setting in settings
    }
    table = pd.DataFrame(
        [_row(study, scale, setting, simulated[setting.name]) for setting in settings],
        columns=list(SETTING_COLUMNS),
    )
    table["on_front"] = on_front(table)
    curves = _curves(study, settings, simulated)
    named = dict.fromkeys(targets, GIVEN) or default_targets(table)
    seeds = {
        setting.name: sorted(setting.learned.finished | setting.learned.failed)
        for setting in settings
    }
    return Tables(curves, table, targets_table(curves, seeds, named))


def _row(
    study: Study, scale: Scaled, setting: Setting, simulated: Mapping[str, Any]
) -> dict[str, Any]:
    """One row of settings.csv."""
    learned = setting.learned
    finals = study.finals[study.finals["setting"] == learned.name]
    accuracy = estimate(finals["accuracy"].tolist())
    return {
        "setting": setting.name,
        "strategy": learned.strategy,
        "exchange_fraction": math.nan if learned.fraction is None else learned.fraction,
        "world_size": study.trained.world_size,
        "simulated_world_size": scale.world_size,
        "seeds": len(learned.finished),
        "failed_seeds": len(learned.failed),
        "replays": 0,
        "epochs": study.epochs,
        "cable_tier": "",
        **simulated,
        "accuracy": accuracy.mean,
        "low": accuracy.low,
        "high": accuracy.high,
        "label_divergence": finals["label_divergence"].mean(),
        "between_ranks": finals["between_ranks"].mean(),
        "message": setting.message,
    }


def _curves(
    study: Study, settings: Sequence[Setting], simulated: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Every evaluation with its time; a setting that was not simulated has none."""
    parts = []
    for setting in settings:
        of = simulated[setting.name]
        rows = study.curves[study.curves["setting"] == setting.learned.name]
        times = [end_of_epoch(of, epoch) if of else math.nan for epoch in rows["epoch"]]
        parts.append(rows.assign(setting=setting.name, time_s=times))
    return pd.concat(parts, ignore_index=True)[list(CURVE_COLUMNS)]
