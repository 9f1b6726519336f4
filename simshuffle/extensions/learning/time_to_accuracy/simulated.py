"""Turn each setting of a study into scenarios, and average their simulations.

The scale of a scenario follows from that of the training by a rule of one sentence.
Learning is never scaled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.learning.time_to_accuracy.learned import (
    LearnedSetting,
    LearnedStudy,
    TrainingScale,
)
from simshuffle.extensions.learning.time_to_accuracy.replay import (
    MAX_EPOCHS,
    ReplayCell,
    end_of_epoch,
    epochs_to_simulate,
    read_steps,
    requests_after_epoch,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.workload.exchange import (
    GlobalShuffle,
    LoaderShuffle,
    LocalShuffle,
    Strategy,
    TrainedExchange,
)

StrategyT = TypeVar("StrategyT", bound=Strategy)
SIMULATED_EPOCHS = 2
"""Epochs of a simulation without exchange: the cold one, and one like all others."""


@dataclass(frozen=True)
class SimulatedScale:
    """The scale at which a training is simulated, and its rule."""

    world_size: int  # M of the simulation
    num_samples: int  # N of the simulation
    local_batch_size: int  # b of the simulation
    samples_each: int  # samples that each trained sample stands for
    ranks_each: int  # ranks that each trained rank stands for
    rule: str  # the scale as one sentence

    @property
    def values(self) -> dict[str, Any]:
        """The values of the scenario, by dotted key."""
        return {
            "world_size": self.world_size,
            "workload.dataset.num_samples": self.num_samples,
            "workload.local_batch_size": self.local_batch_size,
        }


def scale_scenario(
    scenario: Scenario, training_scale: TrainingScale, scale: str | None
) -> SimulatedScale:
    """Return the scale at which a training is simulated on ``scenario``.

    ``scale`` 'trained' takes the training's M, N and b; 'samples' the training's M and
    the scenario's N and b; 'ranks' the scenario's. None takes the scenario's, too, but
    refuses an M or N that is not the training's; b may differ.

    M must be a multiple of the trained M; N need not be one of the trained N, and
    ``samples_each`` is rounded down.

    Raises:
        InputError: the scales differ without ``scale``, M is no multiple, or a trained
            sample stands for less than one.
    """
    trained_ranks = training_scale.world_size
    trained_samples = training_scale.num_samples
    ranks = scenario.world_size
    samples = scenario.workload.dataset.num_samples
    batch = scenario.workload.local_batch_size

    if scale is None and (ranks, samples) != (trained_ranks, trained_samples):
        difference = (
            f"{ranks} ranks and {samples} samples in the scenario, {trained_ranks} and"
            f" {trained_samples} in the training"
        )
        remedy = (
            "Give --scale trained, samples or ranks, or set world_size and"
            " workload.dataset.num_samples."
        )
        refuse(
            "--scale",
            "is needed where the scales differ",
            difference,
            remedy,
            scenario.name,
        )
    if scale == "trained":
        ranks = trained_ranks
        samples = trained_samples
        batch = training_scale.local_batch_size
    elif scale == "samples":
        ranks = trained_ranks

    ranks_each = ranks // trained_ranks
    if ranks % trained_ranks:
        remedy = (
            f"Set world_size to a multiple of {trained_ranks}, or give --scale samples."
        )
        rule = f"must be a multiple of the {trained_ranks} trained ranks"
        refuse("world_size", rule, str(ranks), remedy, scenario.name)
    # a trained sample stands for as many on each of the ranks that a trained rank stands for
    samples_each = samples // (trained_samples * ranks_each)
    if samples_each < 1:
        rule = (
            f"must be at least {ranks_each * trained_samples}: {ranks_each} times the"
            f" {trained_samples} trained samples"
        )
        remedy = "Give --scale trained, or train on fewer samples."
        refuse(
            "workload.dataset.num_samples", rule, str(samples), remedy, scenario.name
        )

    simulated_scale = SimulatedScale(
        ranks, samples, batch, samples_each, ranks_each, ""
    )
    return replace(
        simulated_scale, rule=_state_rule(scenario, training_scale, simulated_scale)
    )


def _state_rule(
    scenario: Scenario, training_scale: TrainingScale, simulated_scale: SimulatedScale
) -> str:
    """State in one sentence how the simulated scale follows from the trained one."""
    dataset = scenario.workload.dataset.name
    ranks = simulated_scale.world_size
    samples = simulated_scale.num_samples
    batch = simulated_scale.local_batch_size

    if simulated_scale.ranks_each == 1:
        samples_clause = f" and {samples} samples" * (
            samples == training_scale.num_samples
        )
        parts = [f"{ranks} ranks{samples_clause} as trained"]
    else:
        parts = [
            f"each of the {training_scale.world_size} trained ranks stands for"
            f" {simulated_scale.ranks_each} of {ranks}"
        ]
    if samples != training_scale.num_samples:
        parts.append(
            f"each trained sample stands for {simulated_scale.samples_each} of {dataset}"
        )
    if batch != training_scale.local_batch_size:
        parts.append(
            f"local batch {batch} (trained: {training_scale.local_batch_size})"
        )
    parts.append(
        f"sizes of {dataset} and step times of {scenario.workload.model.name} on"
        f" {scenario.cluster.name}"
    )
    return "; ".join(parts)


# ------------------------------------------------------------------------------------- the settings


@dataclass(frozen=True)
class Setting:
    """A setting of the training with its simulations."""

    name: str  # names the setting in tables
    learned: LearnedSetting  # the setting of the training
    # a scenario without sweep for each replay; none where it cannot be simulated
    replays: tuple[Scenario, ...] = field(repr=False)
    message: str = ""  # says why the setting cannot be simulated; '' if it can
    epochs: int = 1  # epochs of the training

    @property
    def cells(self) -> dict[str, ReplayCell]:
        """The simulations of the setting, by name."""
        labels = [f"{self.name} #{index}" for index, _ in enumerate(self.replays, 1)]
        return {
            label: ReplayCell(
                replay.to_dict(),
                label,
                trained_epochs=self.epochs if replay.workload.exchange.fetches else 1,
            )
            for label, replay in zip(labels, self.replays, strict=True)
        }


MAX_REPLAY_SECONDS = 60.0
"""Most s of one core, by the costs of runs, that replays of recorded exchanges take
unless they are asked for: less than a minute on two cores.
"""
DRAWN_TOLERANCE = 0.01
"""The time_tolerance of a scenario that has none, where exchanges are drawn anew."""


def timed_settings(
    study: LearnedStudy,
    scenario: Scenario,
    scale: SimulatedScale,
    replays: int,
    sources: Sequence[str],
    *,
    exact: bool,
) -> tuple[list[Setting], bool]:
    """Return the settings of `build_settings`, and whether exchanges are drawn anew.

    The strategies that were trained draw them anew where replaying the recorded ones
    takes longer than `MAX_REPLAY_SECONDS`, and the times need not be ``exact``. A
    strategy sends as many samples as were recorded, at the same pace, and of its epochs
    a window may stand for the rest.
    """
    settings = build_settings(study, scenario, scale, replays, sources)
    cost = sum(cell.cost for setting in settings for cell in setting.cells.values())
    if exact or cost <= MAX_REPLAY_SECONDS:
        return settings, False
    tolerance = {"time_tolerance": scenario.time_tolerance or DRAWN_TOLERANCE}
    windowed_scenario = scenario.model_copy(update=tolerance)
    return build_settings(
        study, windowed_scenario, scale, replays, sources, are_drawn=True
    ), True


def build_settings(
    study: LearnedStudy,
    scenario: Scenario,
    scale: SimulatedScale,
    replays: int,
    sources: Sequence[str],
    *,
    are_drawn: bool = False,
) -> list[Setting]:
    """Return every setting of the study as scenarios.

    A setting that cannot be simulated has no scenario, but a message.

    Args:
        study, scenario, scale: the training, the scenario and its scale.
        replays: simulations of each setting without recorded plans; one with plans has
            one for each. The k-th, from 0, has the scenario's seed + k and, of recorded
            plans, those of the k-th finished seed.
        sources: tiers that global shuffle reads from, one setting each; empty for the
            scenario's own.
        are_drawn: the strategies draw their exchanges anew, and no plans are replayed.

    Raises:
        InputError: no setting can be simulated.
    """
    base = scenario.model_copy(update={"sweep": {}})
    settings = []
    for learned in study.settings:
        global_sources = sources if isinstance(learned.exchange, GlobalShuffle) else ()
        for source in global_sources or (None,):
            exchanges = _exchange_values(learned, scenario, scale, replays, source)
            if are_drawn and learned.plans:
                values = learned.exchange.model_dump(mode="json", exclude_none=True)
                exchanges = [values] * len(exchanges)
            name = learned.name
            if isinstance(learned.exchange, GlobalShuffle):
                name += f" ({exchanges[0]['source'].upper()})"
            setting = _setting_with_scenarios(
                learned, base, exchanges, name=name, scale=scale, epochs=study.epochs
            )
            settings.append(setting)
    if not any(setting.replays for setting in settings):
        problems = [Problem(setting.name, setting.message) for setting in settings]
        raise InputError(problems, scenario.name)
    return settings


def _setting_with_scenarios(
    learned: LearnedSetting,
    base: Scenario,
    exchanges: Sequence[dict[str, Any]],
    *,
    name: str,
    scale: SimulatedScale,
    epochs: int,
) -> Setting:
    """Return the setting with a scenario for each of ``exchanges``.

    If one of them is not valid it has none, but a message. The k-th, from 0, has the
    seed of ``base`` + k. ``epochs`` are those of the training; fewer are simulated: of
    a recorded exchange as many as `epochs_to_simulate` says, of a loader at most
    `MAX_EPOCHS`, of all others at most `SIMULATED_EPOCHS`.
    """
    scenarios = []
    for index, exchange in enumerate(exchanges):
        num_epochs = min(SIMULATED_EPOCHS, epochs)
        if exchange["kind"] == "recorded":
            num_epochs = epochs_to_simulate(read_steps(exchange["path"])[:epochs])
        elif isinstance(learned.exchange, LoaderShuffle):
            num_epochs = min(MAX_EPOCHS, epochs)
        values = {
            **scale.values,
            "workload.exchange": exchange,
            "epochs": num_epochs,
            "seed": base.seed + index,
        }
        label = f"{base.name} {name}" + (f" #{index + 1}" if len(exchanges) > 1 else "")
        try:
            scenarios.append(base.with_values({**values, "name": label}))
        except ScenarioError as error:
            reason = "; ".join(
                f"{problem.path} {problem.rule}" for problem in error.problems
            )
            return Setting(name, learned, (), reason)
    return Setting(name, learned, tuple(scenarios), epochs=epochs)


def _exchange_values(
    learned: LearnedSetting,
    scenario: Scenario,
    scale: SimulatedScale,
    replays: int,
    source: str | None,
) -> list[dict[str, Any]]:
    """Return the values of ``workload.exchange``, one for each replay.

    Of a recorded exchange there is one for each recorded plan, whatever ``replays`` is;
    of all others ``replays`` equal ones. Loaders, global and local shuffle are the
    scenario's if it has such a strategy. Loaders have the trained order of samples;
    global and local shuffle have ``source`` if it is not None.
    """
    exchange = learned.exchange
    if isinstance(exchange, LoaderShuffle):
        loader = _scenario_strategy(scenario, exchange)
        if loader is exchange:
            loader = _scale_shards(exchange, scale)
        loader = loader.model_copy(update={"order": exchange.order})
        return [loader.model_dump(mode="json", exclude_none=True)] * replays
    if isinstance(exchange, GlobalShuffle | LocalShuffle):
        scenario_strategy = _scenario_strategy(scenario, exchange)
        overrides = {"source": source} if source else {}
        values = scenario_strategy.model_copy(update=overrides).model_dump(mode="json")
        return [values] * replays
    return [_recorded_values(exchange, path, scale) for path in learned.plans]


def _scale_shards(exchange: LoaderShuffle, scale: SimulatedScale) -> LoaderShuffle:
    """Return a loader's shuffle with shards that stand for the trained ones.

    Where a trained sample or rank stands for several, ``ranks_per_node``, ``workers``
    and ``sample_size`` are None, which leaves them to the scenario.
    """
    if scale.ranks_each == scale.samples_each == 1:
        return exchange
    samples = exchange.samples_per_shard
    machine_values = dict.fromkeys(("ranks_per_node", "workers", "sample_size"))
    shard_samples = None if samples is None else samples * scale.samples_each
    return exchange.model_copy(
        update={**machine_values, "samples_per_shard": shard_samples}
    )


def _scenario_strategy(scenario: Scenario, exchange: StrategyT) -> StrategyT:
    """Return the scenario's strategy of the kind that was trained.

    It is the scenario's own, else the first such one of its sweep, else the trained
    strategy itself. Loaders must agree in the kind of order too.
    """
    candidate = scenario.workload.exchange
    if _is_same_kind(candidate, exchange):
        return candidate
    for values in scenario.sweep.get("workload.exchange", []):
        unswept_scenario = scenario.model_copy(update={"sweep": {}})
        candidate = unswept_scenario.with_values(
            {"workload.exchange": values}
        ).workload.exchange
        if _is_same_kind(candidate, exchange):
            return candidate
    return exchange


def _is_same_kind(candidate: Strategy, exchange: StrategyT) -> TypeGuard[StrategyT]:
    """Return whether two strategies are of one kind; of loaders, with one kind of
    order.
    """
    if not isinstance(candidate, type(exchange)):
        return False
    if isinstance(candidate, LoaderShuffle) and isinstance(exchange, LoaderShuffle):
        return candidate.order.kind == exchange.order.kind
    return True


def _recorded_values(
    exchange: TrainedExchange, plans: Path, scale: SimulatedScale
) -> dict[str, Any]:
    """Return the values of a recorded exchange, which replays the file ``plans``.

    The file is read: its SHA-256 is among the values, so that other plans in its place
    are noticed.
    """
    schedule = exchange.exchange_schedule
    return {
        "kind": "recorded",
        "path": str(plans.resolve()),
        "sha256": hashlib.sha256(plans.read_bytes()).hexdigest(),
        "exchange_fraction": exchange.fraction,
        "schedule": {} if schedule is None else schedule.model_dump(mode="json"),
        "measures_importance": exchange.inference_pass,
        "samples_each": scale.samples_each,
        "ranks_each": scale.ranks_each,
    }


def mean_of_replays(
    replays: Sequence[Mapping[str, Any]], epochs: int
) -> dict[str, Any]:
    """Return the means over the replays of a setting; {} without replays.

    Keys are those of `SIMULATED_COLUMNS` and storage_nbytes. The busiest cable's tier
    (cable_tier) is the most frequent one, the first if several are. Further keys are
    replays (their number), total_s (s) and total_requests of ``epochs`` epochs, and
    replay_spread_s (s), from the shortest to the longest total.
    """
    if not replays:
        return {}
    total_seconds = [float(end_of_epoch(replay, epochs)) for replay in replays]
    tiers = [str(replay["cable_tier"]) for replay in replays]
    numeric_names = [name for name in replays[0] if name != "cable_tier"]
    means = {
        name: sum(float(replay[name]) for replay in replays) / len(replays)
        for name in numeric_names
    }
    totals_by_name = {
        "replays": len(replays),
        "replay_spread_s": max(total_seconds) - min(total_seconds),
        "total_s": sum(total_seconds) / len(total_seconds),
        "total_requests": requests_after_epoch(means, epochs),
    }
    return {**means, "cable_tier": max(tiers, key=tiers.count), **totals_by_name}
