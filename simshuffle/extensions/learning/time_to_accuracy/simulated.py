"""Each setting of a study as scenarios, at a scale that follows from that of the training by a rule
of one sentence; and what their simulations have in common. Learning is never scaled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.learning.time_to_accuracy.learned import Learned, LearnedStudy, Trained
from simshuffle.extensions.learning.time_to_accuracy.replay import (
    MOST_EPOCHS,
    ReplayCell,
    end_of_epoch,
    epochs_to_simulate,
    requests_until,
    steps_of,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.workload.exchange import (
    GlobalShuffle,
    LoaderShuffle,
    LocalShuffle,
    Strategy,
    TrainedExchange,
)

Own = TypeVar("Own", bound=Strategy)
EPOCHS = 2
"""Epochs of a simulation without exchange: the cold one, and one like all others."""


@dataclass(frozen=True)
class Scaled:
    """What is simulated for a training."""

    # world_size, num_samples, local_batch_size: of the simulation
    world_size: int
    num_samples: int
    local_batch_size: int
    # samples_each, ranks_each: how many samples and ranks each trained one stands for
    samples_each: int
    ranks_each: int
    rule: str  # all of it as one sentence

    @property
    def values(self) -> dict[str, Any]:
        """The values of the scenario, by dotted key."""
        return {
            "world_size": self.world_size,
            "workload.dataset.num_samples": self.num_samples,
            "workload.local_batch_size": self.local_batch_size,
        }


def scaled(scenario: Scenario, trained: Trained, scale: str | None) -> Scaled:
    """What is simulated of ``scenario`` by ``scale``: None if the two scales agree; 'trained' takes
    the training's M, N and b; 'samples' the training's M and the scenario's N and b; 'ranks' the
    scenario's. Raises InputError if scales differ or do not go together so."""
    ranks, batch = scenario.world_size, scenario.workload.local_batch_size
    samples = scenario.workload.dataset.num_samples
    if scale is None and (ranks, samples) != (trained.world_size, trained.num_samples):
        given = (
            f"{ranks} ranks and {samples} samples in the scenario, {trained.world_size} and"
            f" {trained.num_samples} in the training"
        )
        remedy = (
            "Give --scale trained, samples or ranks, or set world_size and"
            " workload.dataset.num_samples."
        )
        refuse("--scale", "is needed where the scales differ", given, remedy, scenario.name)
    if scale == "trained":
        ranks, samples, batch = trained.world_size, trained.num_samples, trained.local_batch_size
    elif scale == "samples":
        ranks = trained.world_size
    copies = ranks // trained.world_size
    if ranks % trained.world_size:
        remedy = f"Set world_size to a multiple of {trained.world_size}, or give --scale samples."
        rule = f"must be a multiple of the {trained.world_size} trained ranks"
        refuse("world_size", rule, str(ranks), remedy, scenario.name)
    each = samples // (trained.num_samples * copies)
    if each < 1:
        rule = (
            f"must be at least {copies * trained.num_samples}: {copies} times the"
            f" {trained.num_samples} trained samples"
        )
        remedy = "Give --scale trained, or train on fewer samples."
        refuse("workload.dataset.num_samples", rule, str(samples), remedy, scenario.name)
    sentence = _rule(scenario, trained, (ranks, samples, batch), each, copies)
    return Scaled(ranks, samples, batch, each, copies, sentence)


def _rule(
    scenario: Scenario, trained: Trained, simulated: tuple[int, int, int], each: int, copies: int
) -> str:
    ranks, samples, batch = simulated
    dataset = scenario.workload.dataset.name
    if copies == 1:
        parts = [
            f"{ranks} ranks{f' and {samples} samples' if samples == trained.num_samples else ''} as"
            " trained"
        ]
    else:
        parts = [f"each of the {trained.world_size} trained ranks stands for {copies} of {ranks}"]
    if samples != trained.num_samples:
        parts.append(f"each trained sample stands for {each} of {dataset}")
    if batch != trained.local_batch_size:
        parts.append(f"local batch {batch} (trained: {trained.local_batch_size})")
    parts.append(
        f"sizes of {dataset} and step times of {scenario.workload.model.name} on"
        f" {scenario.cluster.name}"
    )
    return "; ".join(parts)


# ------------------------------------------------------------------------------------- the settings


@dataclass(frozen=True)
class Setting:
    """A setting with its simulations."""

    name: str  # in the tables
    learned: Learned  # what was trained
    # scenarios without sweep; none if they are not possible, and then ``message`` says why
    replays: tuple[Scenario, ...] = field(repr=False)
    message: str = ""  # '' if they are
    epochs: int = 1  # of the training

    @property
    def cells(self) -> dict[str, ReplayCell]:
        """The simulations by name."""
        labels = [f"{self.name} #{number}" for number, _ in enumerate(self.replays, 1)]
        return {
            label: ReplayCell(
                replay.to_dict(),
                label,
                trained_epochs=self.epochs if replay.workload.exchange.fetches else 1,
            )
            for label, replay in zip(labels, self.replays, strict=True)
        }


LIMIT = 60.0
"""s of one core, by the costs of runs, that replays of recorded exchanges may take unless they are
asked for: less than a minute on two cores."""
TOLERANCE = 0.01
"""The time_tolerance of a scenario that has none, where exchanges are drawn anew."""


def timed_settings(
    study: LearnedStudy,
    scenario: Scenario,
    scale: Scaled,
    replays: int,
    sources: Sequence[str],
    *,
    exact: bool,
) -> tuple[list[Setting], bool]:
    """The settings as `settings_of` gives them, and whether their exchanges are drawn anew by the
    strategies that were trained: where replaying the recorded ones takes longer than `LIMIT`, and
    it need not be ``exact``. A strategy sends as many samples as were recorded, at the same pace,
    and of its epochs a window may stand for the rest."""
    settings = settings_of(study, scenario, scale, replays, sources)
    cost = sum(cell.cost for setting in settings for cell in setting.cells.values())
    if exact or cost <= LIMIT:
        return settings, False
    tolerance = {"time_tolerance": scenario.time_tolerance or TOLERANCE}
    windows = scenario.model_copy(update=tolerance)
    return settings_of(study, windows, scale, replays, sources, drawn=True), True


def settings_of(
    study: LearnedStudy,
    scenario: Scenario,
    scale: Scaled,
    replays: int,
    sources: Sequence[str],
    *,
    drawn: bool = False,
) -> list[Setting]:
    """Every setting of the study as scenarios, or raise InputError if none can be simulated.

    Args:
        study, scenario, scale: what was trained, where it is simulated, and at which scale.
        replays: simulations of each setting. The k-th has the plans of its k-th finished seed, and
            the scenario's seed + k.
        sources: where global shuffle reads from, one setting each; none for what the scenario says.
        drawn: the strategies draw their exchanges anew, and no plans are replayed.
    """
    base = scenario.model_copy(update={"sweep": {}})
    out = []
    for learned in study.settings:
        given = sources if isinstance(learned.exchange, GlobalShuffle) else ()
        for source in given or (None,):
            exchanges = _exchanges(learned, scenario, scale, replays, source)
            if drawn and learned.plans:
                values = learned.exchange.model_dump(mode="json", exclude_none=True)
                exchanges = [values] * len(exchanges)
            name = learned.name
            if isinstance(learned.exchange, GlobalShuffle):
                name += f" ({exchanges[0]['source'].upper()})"
            out.append(_setting(name, learned, base, scale, study.epochs, exchanges))
    if not any(setting.replays for setting in out):
        raise InputError([Problem(setting.name, setting.message) for setting in out], scenario.name)
    return out


def _setting(
    name: str,
    learned: Learned,
    base: Scenario,
    scale: Scaled,
    epochs: int,
    exchanges: Sequence[dict[str, Any]],
) -> Setting:
    """The setting with a scenario for each of ``exchanges``; ``epochs`` of the training."""
    made = []
    for number, exchange in enumerate(exchanges):
        simulated = min(EPOCHS, epochs)
        if exchange["kind"] == "recorded":
            simulated = epochs_to_simulate(steps_of(exchange["path"])[:epochs])
        elif isinstance(learned.exchange, LoaderShuffle):
            simulated = min(MOST_EPOCHS, epochs)
        values = {
            **scale.values,
            "workload.exchange": exchange,
            "epochs": simulated,
            "seed": base.seed + number,
        }
        label = f"{base.name} {name}" + (f" #{number + 1}" if len(exchanges) > 1 else "")
        try:
            made.append(base.with_values({**values, "name": label}))
        except ScenarioError as error:
            why = "; ".join(f"{p.path} {p.rule}" for p in error.problems)
            return Setting(name, learned, (), why)
    return Setting(name, learned, tuple(made), epochs=epochs)


def _exchanges(
    learned: Learned, scenario: Scenario, scale: Scaled, replays: int, source: str | None
) -> list[dict[str, Any]]:
    """The values of ``workload.exchange``, one for each replay."""
    exchange = learned.exchange
    if isinstance(exchange, LoaderShuffle):
        loader = _own(scenario, exchange)
        if loader is exchange:
            loader = _scaled(exchange, scale)
        values = loader.model_copy(update={"order": exchange.order})
        return [values.model_dump(mode="json", exclude_none=True)] * replays
    if isinstance(exchange, GlobalShuffle | LocalShuffle):
        own = _own(scenario, exchange).model_copy(update={"source": source} if source else {})
        return [own.model_dump(mode="json")] * replays
    return [_recorded(exchange, path, scale) for path in learned.plans]


def _scaled(exchange: LoaderShuffle, scale: Scaled) -> LoaderShuffle:
    """Shards of as many samples as stand for those of a trained one; where not all is as trained,
    nodes and workers are the scenario's."""
    if scale.ranks_each == scale.samples_each == 1:
        return exchange
    samples = exchange.samples_per_shard
    machine = dict.fromkeys(("ranks_per_node", "workers", "sample_size"))
    each = None if samples is None else samples * scale.samples_each
    return exchange.model_copy(update={**machine, "samples_per_shard": each})


def _own(scenario: Scenario, exchange: Own) -> Own:
    """The scenario's strategy of that kind, its own or the first that it sweeps over; else the one
    that was trained. Of loaders the order is of that kind too."""
    given = scenario.workload.exchange
    if _alike(given, exchange):
        return given
    for values in scenario.sweep.get("workload.exchange", []):
        swept = scenario.model_copy(update={"sweep": {}})
        given = swept.with_values({"workload.exchange": values}).workload.exchange
        if _alike(given, exchange):
            return given
    return exchange


def _alike(given: Strategy, exchange: Own) -> TypeGuard[Own]:
    if not isinstance(given, type(exchange)):
        return False
    if isinstance(given, LoaderShuffle) and isinstance(exchange, LoaderShuffle):
        return given.order.kind == exchange.order.kind
    return True


def _recorded(exchange: TrainedExchange, plans: Path, scale: Scaled) -> dict[str, Any]:
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


def mean_of(replays: Sequence[Mapping[str, Any]], epochs: int) -> dict[str, Any]:
    """What the replays of a setting have in common: means, the first of the most frequent cables,
    total_s and total_requests of ``epochs`` epochs, and replay_spread_s of the totals of time."""
    if not replays:
        return {}
    totals = [float(end_of_epoch(replay, epochs)) for replay in replays]
    tiers = [str(replay["cable_tier"]) for replay in replays]
    numbers = [name for name in replays[0] if name != "cable_tier"]
    means = {
        name: sum(float(replay[name]) for replay in replays) / len(replays) for name in numbers
    }
    spread = {
        "replays": len(replays),
        "replay_spread_s": max(totals) - min(totals),
        "total_s": sum(totals) / len(totals),
        "total_requests": requests_until(means, epochs),
    }
    return {**means, "cable_tier": max(tiers, key=tiers.count), **spread}
