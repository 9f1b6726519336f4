"""START HERE. Accuracy by epoch from a training, time by epoch from the simulator."""

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
    GIVEN,
    default_targets,
    on_front,
    targets_table,
)
from simshuffle.extensions.learning.time_to_accuracy.learned import LearnedStudy, read_study
from simshuffle.extensions.learning.time_to_accuracy.replay import ReplayCell, end_of_epoch
from simshuffle.extensions.learning.time_to_accuracy.simulated import (
    EPOCHS,
    Scaled,
    Setting,
    mean_of,
    scaled,
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
    """A join before anything is simulated."""

    study: LearnedStudy  # what was trained
    scale: Scaled  # the rule
    settings: list[Setting]  # with their scenarios
    targets: tuple[float, ...]  # accuracies, in the order wanted; empty for the default ones

    @cached_property
    def cells(self) -> dict[str, ReplayCell]:
        """All simulations by name."""
        return {name: cell for setting in self.settings for name, cell in setting.cells.items()}

    def tables(self, outcomes: Outcomes) -> JoinTables:
        """Accuracy joined with time."""
        measured = {
            setting.name: [outcomes[name].values for name in setting.cells]
            for setting in self.settings
        }
        return joined(self.study, self.scale, self.settings, measured, self.targets)


def request(options: TtaOptions, folder: Path, scenario: Scenario) -> Request[Join]:
    """What will be simulated: the training in ``folder``, on the cluster of ``scenario`` with its
    model, sizes and step times, and the global and local shuffle of its sweep; of several swept
    world sizes the largest. Raises InputError where it does not fit, or another key is swept."""
    study, replays = read_study(folder, options), options.replayed_seeds
    scenario, sizes = _largest(scenario)
    scale_of = scaled(scenario, study.trained, options.scale)
    if len(sizes) > 1 and scale_of.world_size == scenario.world_size:
        others = ", ".join(map(str, sizes[:-1]))
        rule = f"{scale_of.rule}; not on the other swept {others} ranks: --set world_size="
        scale_of = replace(scale_of, rule=rule + str(sizes[0]))
    sources = tuple(dict.fromkeys(options.global_source))
    settings, drawn = timed_settings(
        study, scenario, scale_of, replays, sources, exact=options.exact
    )
    if drawn:
        rule = f"{scale_of.rule}; exchanges drawn anew by their strategies: --exact replays them"
        scale_of = replace(scale_of, rule=rule)
    text, files = serialise_scenarios(
        [replay for setting in settings for replay in setting.replays]
    )
    wanted = tuple(sorted({float(target) for target in options.target}, reverse=True))
    learned = study.curves.to_csv(index=False) + study.finals.to_csv(index=False)
    asked = _meta(study, scenario, scale_of) | {
        "targets": list(wanted),
        "scale": options.scale,
        "replays": replays,
        "drawn": drawn,
        "learned": hashlib.sha256(learned.encode()).hexdigest(),
    }
    join = Join(study, scale_of, settings, wanted)
    name = f"{study.name}-{scenario.name}"
    return Request(name, join, {"scenario.yaml": text}, asked, files)


def _largest(scenario: Scenario) -> tuple[Scenario, list[int]]:
    """The scenario on the most ranks of its sweep, and all world sizes that it is swept over."""
    runs = runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE)).values()
    sizes = sorted({single.world_size for single in runs})
    exchanges = {key: of for key, of in scenario.sweep.items() if key.startswith(EXCHANGE)}
    alone = scenario.model_copy(update={"sweep": exchanges, "world_size": sizes[-1]})
    return alone, sizes


def first_answer(join: Join) -> Iterator[str]:
    """Seconds of all epochs of each setting by closed forms, and its accuracy, in lines."""
    epochs = join.study.epochs
    for setting in join.settings:
        if not setting.replays:
            continue
        warm = setting.replays[0].model_copy(update={"epochs": max(EPOCHS, 2)})
        cold = warm.model_copy(update={"epochs": 1})
        total = closed_form_epoch(cold) + (epochs - 1) * closed_form_epoch(warm)
        finals = join.study.finals
        accuracy = finals.loc[finals["setting"] == setting.learned.name, "accuracy"].mean()
        yield f"{setting.name}: about {total:,.3g} s for {epochs} epochs, {accuracy:.1%} accuracy"


def _meta(study: LearnedStudy, scenario: Scenario, scale: Scaled) -> dict[str, Any]:
    """What the report and the figures say of study and scenario."""
    variant, norm, world_size = study.condition
    return {
        "study": study.name,
        "scenario": scenario.name,
        "rule": scale.rule,
        "model": study.model,
        "schedules": study.schedules,
        "condition": {"variant": variant, "batch_norm": norm, "world_size": world_size},
        "statistics": study.statistics,
        "trained": asdict(study.trained),
        "epochs": study.epochs,
        "missing_runs": study.missing[0],
        "all_runs": study.missing[1],
    }


# ----------------------------------------------------------------------------------------- the join


def joined(
    study: LearnedStudy,
    scale: Scaled,
    settings: Sequence[Setting],
    measured: Mapping[str, Sequence[Mapping[str, Any]]],
    targets: Sequence[float],
) -> JoinTables:
    """The tables; ``measured`` is what each replay gave, by setting, none where nothing could be
    simulated; without ``targets``, accuracies, there are the default ones."""
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
    return JoinTables(curves, table, targets_table(curves, seeds, named))


def _row(
    study: LearnedStudy, scale: Scaled, setting: Setting, simulated: Mapping[str, Any]
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
    study: LearnedStudy, settings: Sequence[Setting], simulated: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Every evaluation with its time; a setting that was not simulated has none."""
    parts = []
    for setting in settings:
        of = simulated[setting.name]
        rows = study.curves[study.curves["setting"] == setting.learned.name]
        times = [end_of_epoch(of, epoch) if of else math.nan for epoch in rows["epoch"]]
        parts.append(rows.assign(setting=setting.name, time_s=times))
    return pd.concat(parts, ignore_index=True)[list(CURVE_COLUMNS)]
