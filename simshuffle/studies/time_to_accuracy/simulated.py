"""Each setting of a study as a scenario, and what is measured of its simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.exchange import GlobalShuffle, LocalShuffle, Recorded, TrainedExchange
from simshuffle.exchange.recording import read_plans
from simshuffle.results import report
from simshuffle.results.timeline import Timeline
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.simulate import simulate
from simshuffle.studies.ablation.pool import Progress, outcomes
from simshuffle.studies.time_to_accuracy.learned import Learned, Study
from simshuffle.studies.time_to_accuracy.scale import Scaled
from simshuffle.studies.time_to_accuracy.tables import LABELS, SIMULATED_COLUMNS

EPOCHS = 2
"""Epochs of a simulation without exchange: the cold one, and one like all others."""
MOST_EPOCHS = 8
"""With exchange there may be more: until a warm epoch has come with every number of samples that
the training exchanged."""


@dataclass(frozen=True)
class Setting:
    """A setting with its simulations.

    Attributes:
        name: in the tables.
        learned: what was trained.
        replays: scenarios without sweep; none if they are not possible, and then ``message`` says
            why.
        message: '' if they are.
    """

    name: str
    learned: Learned
    replays: tuple[Scenario, ...] = field(repr=False)
    message: str = ""


def settings_of(
    study: Study, scenario: Scenario, scale: Scaled, replays: int, sources: Sequence[str]
) -> list[Setting]:
    """Every setting of the study as scenarios.

    Args:
        study: what was trained.
        scenario: whose cluster, model and data set are simulated.
        scale: the rule.
        replays: of each setting; the k-th has the plans of its k-th finished seed, and the
            scenario's seed + k.
        sources: where global shuffle reads from, one setting each; none for what the scenario says
            of global shuffle, else its default.

    Raises:
        InputError: not one of them can be simulated.
    """
    base = scenario.model_copy(update={"sweep": {}})
    out = []
    for learned in study.settings:
        given = sources if isinstance(learned.exchange, GlobalShuffle) else ()
        for source in given or (None,):
            exchanges = _exchanges(learned, scenario, scale, replays, source)
            name = (
                f"{learned.name} ({exchanges[0]['source'].upper()})"
                if isinstance(learned.exchange, GlobalShuffle)
                else learned.name
            )
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
        simulated = (
            min(EPOCHS, epochs)
            if exchange["kind"] != "recorded"
            else epochs_to_simulate(steps_of(exchange["path"])[:epochs])
        )
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
            return Setting(
                name, learned, (), "; ".join(f"{p.path} {p.rule}" for p in error.problems)
            )
    return Setting(name, learned, tuple(made))


def _exchanges(
    learned: Learned, scenario: Scenario, scale: Scaled, replays: int, source: str | None
) -> list[dict[str, Any]]:
    """The values of ``workload.exchange``, one for each replay."""
    exchange = learned.exchange
    if isinstance(exchange, GlobalShuffle | LocalShuffle):
        own = _own(scenario, exchange)
        return [
            own.model_copy(update={"source": source} if source else {}).model_dump(mode="json")
        ] * replays
    return [_recorded(exchange, path, scale) for path in learned.plans]


def _own(
    scenario: Scenario, exchange: GlobalShuffle | LocalShuffle
) -> GlobalShuffle | LocalShuffle:
    """The scenario's strategy of that kind, its own or the first that it sweeps over; else the one
    that was trained."""
    given = scenario.workload.exchange
    if isinstance(given, type(exchange)):
        return given
    for values in scenario.sweep.get("workload.exchange", []):
        swept = (
            scenario.model_copy(update={"sweep": {}})
            .with_values({"workload.exchange": values})
            .workload.exchange
        )
        if isinstance(swept, type(exchange)):
            return swept
    return exchange


def _recorded(exchange: TrainedExchange, plans: Path, scale: Scaled) -> dict[str, Any]:
    schedule = exchange.exchange_schedule
    return {
        "kind": "recorded",
        "path": str(plans.resolve()),
        "exchange_fraction": exchange.fraction,
        "schedule": {} if schedule is None else schedule.model_dump(mode="json"),
        "measures_importance": exchange.inference_pass,
        "samples_each": scale.samples_each,
        "ranks_each": scale.ranks_each,
    }


# ---------------------------------------------------------------------------------------- measuring


def simulate_all(
    settings: Sequence[Setting], processes: int | None, progress: Progress | None
) -> dict[str, list[dict[str, Any]]]:
    """What is measured of every replay, by setting: values of `SIMULATED_COLUMNS`, and
    ``storage_nbytes``.

    Args:
        settings: from `settings_of`.
        processes: at once; None for one on each usable core.
        progress: told of the progress, if given.
    """
    jobs = [(setting.name, replay) for setting in settings for replay in setting.replays]
    # the costly ones first
    order = sorted(
        range(len(jobs)), key=lambda job: -(jobs[job][1].workload.exchange.fraction or 0.0)
    )
    measured = outcomes(measure, [jobs[job][1] for job in order], processes, progress)
    of_job = dict(zip(order, measured, strict=True))
    out: dict[str, list[dict[str, Any]]] = {setting.name: [] for setting in settings}
    for number, (name, _) in enumerate(jobs):
        out[name].append(of_job[number])
    return out


def steps_of(plans: str) -> list[int]:
    """Samples that a rank sent in each epoch of a recorded training.

    Raises:
        InputError: the file cannot be read.
    """
    return [len(plan.iteration) for plan in read_plans(Path(plans)).plans]


def epochs_to_simulate(steps: Sequence[int]) -> int:
    """Epochs until every number in ``steps`` (epochs,) has come in a warm epoch; at most
    `MOST_EPOCHS`, and not more than there are.

    Q N/M need not be whole; then epochs differ by one sample, and the second one is not like all
    others.
    """
    wanted, seen = set(steps[1:]), set()
    for epoch, number in enumerate(steps[1:MOST_EPOCHS], 2):
        seen.add(number)
        if seen == wanted:
            return epoch
    return min(len(steps), MOST_EPOCHS)


def weights(steps: Sequence[int], simulated: int) -> dict[int, float]:
    """The share that each warm epoch of a simulation, from 2 to ``simulated``, stands for among
    those of a training; they add up to 1.

    Each epoch of the training is like the simulated ones that exchange as many samples, or else the
    nearest number.
    """
    known = {epoch: steps[epoch - 1] for epoch in range(2, simulated + 1)}
    out = dict.fromkeys(known, 0.0)
    for number in steps[1:]:
        near = min(known.values(), key=lambda other: (abs(other - number), other))
        alike = [epoch for epoch, other in known.items() if other == near]
        for epoch in alike:
            out[epoch] += 1.0 / len(alike) / (len(steps) - 1)
    return out


def measure(scenario: Scenario) -> dict[str, Any]:
    """Simulate one scenario: its values of `SIMULATED_COLUMNS`, and ``storage_nbytes``."""
    exchange = scenario.workload.exchange
    steps = [0] * scenario.epochs if not isinstance(exchange, Recorded) else steps_of(exchange.path)
    return {
        **measured(simulate(scenario), weights(steps, scenario.epochs)),
        "storage_nbytes": scenario.storage_per_host,
    }


def measured(timeline: Timeline, shares: Mapping[int, float]) -> dict[str, Any]:
    """The values of `SIMULATED_COLUMNS` of one run.

    Args:
        timeline: of the run.
        shares: of its warm epochs in the mean that stands for every epoch but the first; see
            `weights`. Empty if there is none.
    """
    epochs = report.epochs(timeline).set_index("epoch")
    of = dict(shares) or {1: 1.0}  # of a single epoch, the labels are all there is
    parts = report.breakdown(timeline)
    seconds = {
        str(label): part.set_index("epoch")["seconds"] for label, part in parts.groupby("label")
    }

    def mean(values: pd.Series[float]) -> float:
        return sum(share * float(values[epoch]) for epoch, share in of.items())

    values = {
        "cold_epoch_s": float(epochs["epoch_s"][1]),
        "epoch_s": mean(epochs["epoch_s"]) if shares else math.nan,
        "staging_s": float(epochs["staging_s"][1]),
        **{
            column: mean(seconds[label]) if label in seconds else 0.0
            for label, column in LABELS.items()
        },
        **{name: mean(epochs[name]) for name in ("exchange_total_s", "exchange_exposed_s")},
        "peer_nbytes": mean(epochs["nbytes_peer"]),
        **busiest_cable(timeline.links, of),
    }
    return {name: values[name] for name in SIMULATED_COLUMNS}


def busiest_cable(links: pd.DataFrame, shares: Mapping[int, float]) -> dict[str, Any]:
    """Tier and mean utilisation of the cable that is used most in the mean of some epochs:
    ``cable_tier``, ``cable_utilisation``.

    Args:
        links: columns `simshuffle.results.timeline.LINK_COLUMNS`; a cable's name is 'a>b'.
        shares: of each epoch (from 1) in the mean.
    """
    cables = links[
        links["link"].astype(str).str.contains(">", regex=False) & links["epoch"].isin(list(shares))
    ]
    if not len(cables):
        return {"cable_tier": "", "cable_utilisation": 0.0}
    used = cables["mean_utilisation"] * cables["epoch"].astype(int).map(shares)
    total = used.groupby(cables["link"].astype(str)).sum()
    most = str(total.idxmax())
    return {
        "cable_tier": str(cables.loc[cables["link"] == most, "tier"].iloc[0]),
        "cable_utilisation": float(total[most]),
    }


def mean_of(replays: Sequence[Mapping[str, Any]], epochs: int) -> dict[str, Any]:
    """What the replays of a setting have in common: means, total_s of ``epochs`` epochs, and
    replay_spread_s of the totals.

    The cable is the one that most replays name, the first of these.
    """
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
    }
    return {**means, "cable_tier": max(tiers, key=tiers.count), **spread}


def end_of_epoch(simulated: Mapping[str, Any], epoch: int) -> float:
    """s from the start of the staging to the end of an epoch (from 1): staging, the cold epoch, and
    the steady ones after it."""
    after = (epoch - 1) * float(simulated["epoch_s"]) if epoch > 1 else 0.0
    return float(simulated["staging_s"]) + float(simulated["cold_epoch_s"]) + after
