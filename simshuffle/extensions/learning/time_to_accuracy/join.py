"""START HERE. Join accuracy by epoch from a training with time by epoch from the
simulator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.extensions.learning.accuracy.remedies import closed_form_epoch
from simshuffle.extensions.learning.time_to_accuracy.comparison import (
    USER_TARGET,
    default_targets,
    is_on_front,
    targets_table,
)
from simshuffle.extensions.learning.time_to_accuracy.learned import (
    LearnedStudy,
    read_study,
)
from simshuffle.extensions.learning.time_to_accuracy.replay import (
    ReplayCell,
    end_of_epoch,
)
from simshuffle.extensions.learning.time_to_accuracy.simulated import (
    SIMULATED_EPOCHS,
    Setting,
    SimulatedScale,
    mean_of_replays,
    scale_scenario,
    timed_settings,
)
from simshuffle.extensions.learning.time_to_accuracy.tables import (
    CURVE_COLUMNS,
    SETTING_COLUMNS,
    JoinTables,
)
from simshuffle.job.scenario.scenario import Scenario, serialise_scenarios
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.studies.training.summary import estimate
from simshuffle.study.study import Outcomes, Request

if TYPE_CHECKING:
    from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions


VERB = "simshuffle study tta"


@dataclass(frozen=True)
class Join:
    """A join before anything is simulated: the training, the scale and the settings."""

    study: LearnedStudy  # the training
    scale: SimulatedScale  # the scale at which it is simulated
    settings: list[Setting]  # its settings with their scenarios
    targets: tuple[float, ...]  # accuracies, falling; empty for the default ones

    @cached_property
    def cells(self) -> dict[str, ReplayCell]:
        """The simulations of all settings, by name.

        Settings that cannot be simulated have none.
        """
        return {
            name: cell
            for setting in self.settings
            for name, cell in setting.cells.items()
        }

    def tables(self, outcomes: Outcomes) -> JoinTables:
        """Return the tables of accuracy joined with time.

        ``outcomes`` must have every one of the `cells`, none of them lost.
        """
        values_by_setting = {
            setting.name: [outcomes[name].values for name in setting.cells]
            for setting in self.settings
        }
        return join_tables(
            self.study, self.scale, self.settings, values_by_setting, self.targets
        )


def request(options: TtaOptions, folder: Path, scenario: Scenario) -> Request[Join]:
    """Build the request: simulate the training in ``folder`` on the cluster of
    ``scenario``.

    Model, sizes and step times are the scenario's, and so are the global and local
    shuffle of its sweep; of several swept world sizes the largest is taken. Where
    replaying the recorded exchanges would take long and ``options.exact`` is not set,
    strategies draw their exchanges anew; the rule of the scale says so.

    Raises:
        InputError: the training does not fit, or another key is swept.
    """
    study = read_study(folder, options)
    replays = options.replayed_seeds
    scenario, sizes = _largest_run(scenario)
    simulated_scale = scale_scenario(scenario, study.training_scale, options.scale)
    if len(sizes) > 1 and simulated_scale.world_size == scenario.world_size:
        other_sizes = ", ".join(map(str, sizes[:-1]))
        rule = (
            f"{simulated_scale.rule}; the other world sizes of the sweep, {other_sizes}, are left"
            " out:"
            f" --set world_size={sizes[0]} takes one of them"
        )
        simulated_scale = replace(simulated_scale, rule=rule)

    sources = tuple(dict.fromkeys(options.global_source))
    settings, drawn = timed_settings(
        study, scenario, simulated_scale, replays, sources, exact=options.exact
    )
    if drawn:
        rule = (
            f"{simulated_scale.rule}; strategies draw their exchanges anew: --exact replays the"
            " recorded exchanges"
        )
        simulated_scale = replace(simulated_scale, rule=rule)

    text, files = serialise_scenarios(
        [replay for setting in settings for replay in setting.replays]
    )
    targets = tuple(sorted({float(target) for target in options.target}, reverse=True))
    learned = study.curves.to_csv(index=False) + study.finals.to_csv(index=False)
    facts = _study_facts(study, scenario, simulated_scale) | {
        "targets": list(targets),
        "scale": options.scale,
        "replays": replays,
        "drawn": drawn,
        "learned": hashlib.sha256(learned.encode()).hexdigest(),
    }
    join = Join(study, simulated_scale, settings, targets)
    name = f"{study.name}-{scenario.name}"
    return Request(name, join, {"scenario.yaml": text}, facts, files)


def _largest_run(scenario: Scenario) -> tuple[Scenario, list[int]]:
    """Return the scenario on the most ranks of its sweep, and all its world sizes,
    rising.

    Of the sweep only the exchanges stay.
    """
    runs = runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE)).values()
    sizes = sorted({run.world_size for run in runs})
    exchanges = {
        key: values
        for key, values in scenario.sweep.items()
        if key.startswith(EXCHANGE)
    }
    largest_scenario = scenario.model_copy(
        update={"sweep": exchanges, "world_size": sizes[-1]}
    )
    return largest_scenario, sizes


def first_answer(join: Join) -> Iterator[str]:
    """Yield a line on each setting: seconds of all epochs by closed forms, and
    accuracy.

    The seconds are of the first replay: a cold epoch, and warm ones. The accuracy is
    the mean after the last epoch over the seeds that finished. Settings that cannot be
    simulated are left out.
    """
    epochs = join.study.epochs
    for setting in join.settings:
        if not setting.replays:
            continue
        warm = setting.replays[0].model_copy(
            update={"epochs": max(SIMULATED_EPOCHS, 2)}
        )
        cold = warm.model_copy(update={"epochs": 1})
        total = closed_form_epoch(cold) + (epochs - 1) * closed_form_epoch(warm)
        finals = join.study.finals
        accuracy = finals.loc[
            finals["setting"] == setting.learned.name, "accuracy"
        ].mean()
        yield f"{setting.name}: about {total:,.3g} s for {epochs} epochs, {accuracy:.1%} accuracy"


def _study_facts(
    study: LearnedStudy, scenario: Scenario, scale: SimulatedScale
) -> dict[str, Any]:
    """Return the facts on study and scenario that the report and the figures state.

    Keys: names of study, scenario and model; ``rule`` of the scale; schedules, condition
    (variant, batch norm and ranks), statistics, scale and epochs of the training; and
    how many of all its runs are missing. `request` adds those of its options.
    """
    variant, norm, world_size = study.condition
    return {
        "study": study.name,
        "scenario": scenario.name,
        "rule": scale.rule,
        "model": study.model,
        "schedules": study.schedules,
        "condition": {"variant": variant, "batch_norm": norm, "world_size": world_size},
        "statistics": study.statistics,
        "trained": asdict(study.training_scale),
        "epochs": study.epochs,
        "missing_runs": study.missing_runs,
        "all_runs": study.all_runs,
    }


# ----------------------------------------------------------------------------------------- the join


def join_tables(
    study: LearnedStudy,
    scale: SimulatedScale,
    settings: Sequence[Setting],
    values_by_setting: Mapping[str, Sequence[Mapping[str, Any]]],
    targets: Sequence[float],
) -> JoinTables:
    """Join accuracy and time to tables.

    Args:
        study, scale, settings: the training, its scale in the simulation, and its
            settings.
        values_by_setting: values of each replay, by setting; none where nothing could
            be simulated.
        targets: accuracies (shares); empty for the default ones, of which there are
            none without global shuffle.
    """
    simulated = {
        setting.name: mean_of_replays(values_by_setting[setting.name], study.epochs)
        for setting in settings
    }
    table = pd.DataFrame(
        [
            _setting_row(study, scale, setting, simulated[setting.name])
            for setting in settings
        ],
        columns=list(SETTING_COLUMNS),
    )
    table["on_front"] = is_on_front(table)
    curves = _timed_curves(study, settings, simulated)
    name_by_target = dict.fromkeys(targets, USER_TARGET) or default_targets(table)
    seeds = {
        setting.name: sorted(
            setting.learned.finished_runs | setting.learned.failed_runs
        )
        for setting in settings
    }
    return JoinTables(curves, table, targets_table(curves, seeds, name_by_target))


def _setting_row(
    study: LearnedStudy,
    scale: SimulatedScale,
    setting: Setting,
    simulated: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a row of settings.csv but its column on_front.

    ``simulated`` is of `mean_of_replays`; {} where nothing was simulated: the row then
    lacks the columns of times and costs. Accuracy and its interval are shares, over the
    seeds that finished; the interval is NaN for one seed.
    """
    learned = setting.learned
    finals = study.finals[study.finals["setting"] == learned.name]
    accuracy = estimate(finals["accuracy"].tolist())
    return {
        "setting": setting.name,
        "strategy": learned.strategy,
        "exchange_fraction": math.nan if learned.fraction is None else learned.fraction,
        "world_size": study.training_scale.world_size,
        "simulated_world_size": scale.world_size,
        "seeds": len(learned.finished_runs),
        "failed_seeds": len(learned.failed_runs),
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


def _timed_curves(
    study: LearnedStudy,
    settings: Sequence[Setting],
    simulated: Mapping[str, Mapping[str, Any]],
) -> pd.DataFrame:
    """Return the evaluations with their times, columns `CURVE_COLUMNS`.

    A time is in s from the start of the staging to the end of the epoch. Times of a
    setting that was not simulated are NaN. ``simulated`` is of
    `mean_of_replays`, by setting.
    """
    curves = []
    for setting in settings:
        means = simulated[setting.name]
        rows = study.curves[study.curves["setting"] == setting.learned.name]
        times = [
            end_of_epoch(means, epoch) if means else math.nan for epoch in rows["epoch"]
        ]
        curves.append(rows.assign(setting=setting.name, time_s=times))
    return pd.concat(curves, ignore_index=True)[list(CURVE_COLUMNS)]
