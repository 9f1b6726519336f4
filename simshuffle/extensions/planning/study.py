"""The study behind ``simshuffle plan``: its tables and what it says of itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from simshuffle.errors import Problem
from simshuffle.extensions.planning import text
from simshuffle.extensions.planning.asked import Candidate, PlanRequest
from simshuffle.extensions.planning.cells import EXCHANGE, IO, file_system, shares
from simshuffle.extensions.planning.commands import with_settings
from simshuffle.extensions.planning.costs import HOUR, cheapest
from simshuffle.extensions.planning.figures import plan_chart
from simshuffle.extensions.planning.flips import CHANGES
from simshuffle.extensions.planning.precision import COARSE, MOST_SECONDS, TOLERANCE
from simshuffle.extensions.planning.says import PlanFacts
from simshuffle.extensions.planning.stages import (
    HIDDEN,
    epochs_of,
    late_cells,
    month_of,
    partial_scenario,
    run_cells,
    search_cells,
    spares_in,
    training_seconds_of,
)
from simshuffle.extensions.planning.tables import PROBES, STORED, STRATEGIES, TURNS
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.warming import warming_sentence
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.report import WHOLE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables


def _collect(asked: PlanRequest, outcomes: Outcomes) -> Tables:
    rows = [_row(asked, of, outcomes) for of in asked.candidates]
    most = math.inf if asked.budget is None else asked.budget
    costs = {row["strategy"]: row["cost"] for row in rows if row["cost"] is not None}
    able = {name: cost for name, cost in costs.items() if cost <= most}
    best = cheapest(able, {of.name: of.mixing for of in asked.candidates}, asked.close)
    for row in rows:
        row["chosen"] = row["strategy"] == best
    return {
        "strategies": STRATEGIES.framed(rows).astype({"epochs": float, "spares": float}),
        "probes": PROBES.framed([*_probes(asked, outcomes)]),
        "turns": TURNS.framed([*_turns(asked, outcomes)]),
    }


def _row(asked: PlanRequest, of: Candidate, outcomes: Outcomes) -> dict[str, Any]:
    """The row of a strategy."""
    row: dict[str, Any] = {
        "strategy": of.name,
        "exchange": of.exchange if isinstance(of.exchange, str) else of.record.kind,
        "exchange_fraction": of.record.fraction,
        "kept_nbytes": of.kept_nbytes,
        "capacity_nbytes": asked.capacity,
        "fits": of.kept_nbytes <= asked.capacity,
        "why": of.why,
        "epochs": of.epochs,
        "accuracy": of.best,
        "cost": None,
        "month": "",
        "command": with_settings(
            asked.command, {"workload.exchange": of.exchange, **asked.values_of_run(of.name)}
        ),
    }
    if of.scenario is None:
        return row
    if of.name not in asked.runs:
        least = bounds(of.scenario).epoch
        why = f"not simulated: an epoch takes {least:,.3g} s at least; --exact simulates it"
        return {**row, "why": why}
    epochs = epochs_of(of, outcomes)
    of_label = shares(outcomes[of.name].values["breakdown"], epochs["epoch"][-1])
    row |= {
        "epoch_s": epochs["epoch_s"][-1],
        "io_share": of_label.get(IO, 0.0),
        "exchange_share": of_label.get(EXCHANGE, 0.0),
        "staging_s": sum(epochs["staging_s"]),
    }
    searched = outcomes.get(f"file system of {of.name}")
    if searched is not None:
        row |= {name: searched.values[name] for name in ("files_per_s", "bytes_per_s")}
    month = month_of(of, outcomes)
    row |= {name: month.get(name) for name in ("period_s", "goodput", "spares")}
    if month:
        values = {
            "workload.exchange": of.exchange,
            "recovery.policy": "spare",
            "recovery.spares": spares_in(month),
        }
        followed = with_settings(f"simshuffle month {asked.whole_words}", values)
        row["month"] = f"{followed} --period {month['period_s']:.6g}s"
    if of.epochs is not None:
        seconds = training_seconds_of(of, outcomes)
        needs = asked.needs(of, spares_in(month))
        row |= {
            "hours": seconds / HOUR,
            "time_cost": needs.time_cost(asked.prices, seconds),
            "storage_cost": needs.storage_cost(asked.prices),
            "cost": needs.cost(asked.prices, seconds),
        }
    return row


def _probes(asked: PlanRequest, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """All that the searches simulated."""
    for of in asked.fitting:
        searched = outcomes.get(f"file system of {of.name}")
        for point in searched.values["points"] if searched else ():
            at = point["files_per_s"], point["bytes_per_s"]
            values = {"workload.exchange": of.exchange, **file_system(*at)}
            if not asked.exact and asked.base.time_tolerance < COARSE:
                values[TOLERANCE] = COARSE
            yield {
                "question": "file system",
                "strategy": of.name,
                "files_per_s": at[0],
                "bytes_per_s": at[1],
                "epoch_s": point[WHOLE],
                "io_share": point["io"],
                "command": with_settings(asked.command, values),
            }
    partial = partial_scenario(asked)
    if partial is None or HIDDEN not in outcomes:
        return
    for point in outcomes[HIDDEN].values["points"]:
        if not point["removed"]:
            yield _hidden_probe(asked, partial, point)


def _hidden_probe(
    asked: PlanRequest, partial: Scenario, point: Mapping[str, Any]
) -> dict[str, Any]:
    exchange = partial.workload.exchange.model_dump(mode="json", exclude_defaults=True)
    values: dict[str, Any] = {
        "epochs": partial.epochs,
        "workload.exchange": {**exchange, "exchange_fraction": point["exchange_fraction"]},
    }
    return {
        "question": "hidden exchange",
        "strategy": "partial",
        "exchange_fraction": point["exchange_fraction"],
        "epoch_s": point["epoch_s"],
        "added": point["added"],
        "command": with_settings(asked.command, values),
    }


def _flips_of(outcomes: Outcomes, kind: str) -> list[Mapping[str, Any]]:
    """Return the rows of a kind, ``turns`` or ``doubtful``, of all inputs."""
    flips = [outcome for name, outcome in outcomes.items() if name.startswith(CHANGES)]
    return [row for outcome in flips for row in outcome.values[kind]]


def _turns(asked: PlanRequest, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    for row in _flips_of(outcomes, "turns"):
        yield {**row, "command": with_settings(asked.plan_words, row["values"])}


def _facts(asked: PlanRequest, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """What texts say beside tables."""
    base, limit = asked.base, None
    if HIDDEN in outcomes:
        found = outcomes[HIDDEN].values["limit"]
        limit = {name: found[name] for name in ("samples", "exchange_fraction", "bottleneck")}
    per_host = base.cluster.ranks_per_host(base.world_size) / base.world_size
    seconds = {of.name: epochs_of(of, outcomes)["epoch_s"][-1] for of in asked.simulated}
    room = asked.capacity / (per_host * base.workload.dataset.nbytes) - 1.0
    return {
        "plan": {
            "scenario": base.name,
            "ranks": base.world_size,
            "hosts": base.hosts,
            "samples_of_rank": base.workload.dataset.num_samples / base.world_size,
            "tier": base.workload.staging.target,
            "not_steady": warming_sentence(asked.runs, seconds),
            "hidden": limit,
            "rows": {name: len(tables[name]) for name in ("probes", "turns")},
            "lacking": _lacking(asked.whole),
            "waiting": {
                of.name: month_of(of, outcomes)["waiting"] for of in asked.simulated if asked.fails
            },
            "doubtful": [
                {name: row[name] for name in ("input", "shown", "factor", "after", "why")}
                for row in _flips_of(outcomes, "doubtful")
            ],
            "coarse": {
                of.name: asked.runs[of.name].time_tolerance
                for of in asked.simulated
                if asked.values_of_run(of.name)
            },
            "not_searched": _not_searched(asked, outcomes),
            "largest_fraction": min(max(room, -1.0), 1.0),
            "io": {
                of.name: {
                    k: outcomes[f"file system of {of.name}"].values[k] for k in ("io", "alone")
                }
                for of in asked.fitting
                if f"file system of {of.name}" in outcomes
            },
        }
    }


def _not_searched(asked: PlanRequest, outcomes: Outcomes) -> list[str]:
    """Return what would have taken longer than a minute, and was not searched."""
    pfs = [each for each in asked.fitting if each.record.tier == "pfs"]
    lacking = [
        f"{each.name}, of which an epoch takes {bounds(each.scenario).epoch:,.3g} s at least"
        for each in asked.fitting
        if each.scenario is not None and each.name not in asked.runs
    ]
    lacking += [
        f"the smallest file system of {candidate.name}"
        for candidate in pfs
        if f"file system of {candidate.name}" not in outcomes
    ]
    if partial_scenario(asked) is not None and HIDDEN not in outcomes:
        lacking.append("the largest Q that stays hidden")
    return lacking


def _lacking(scenario: Scenario) -> list[str]:
    """Keys without which nothing is said of failures."""
    there = {"failures": scenario.failures, "workload.checkpoint": scenario.workload.checkpoint}
    return [key for key, value in there.items() if value is None]


def _faults(result: Result) -> Iterator[Problem]:
    table = result.tables["strategies"]
    alone = int(table["chosen"].sum()) <= 1 and len(table) == len(
        result.meta["asked"]["strategies"]
    )
    said = bool((table["fits"] | (table["why"] != "")).all())
    counts = {
        f"{name}.csv": len(result.tables[name]) == rows
        for name, rows in result.meta["plan"]["rows"].items()
    }
    return problems_of_misfits({"strategies.csv": alone and said, **counts})


def _later_cost(asked: PlanRequest, stage: int) -> float:
    """Return s of one core that the searches take; how many an exact plan needs is not known."""
    return 0.0 if asked.exact or stage > 0 else MOST_SECONDS


STUDY: Study[PlanRequest] = Study(
    kind="planning",
    verb="plan",
    stages=(run_cells, search_cells, late_cells),
    later_cost=_later_cost,
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: {"plan": plan_chart(result.tables["strategies"], result.meta)},
    one_figure=True,
    verdict=text.verdict,
    parts=text.parts,
    facts=_facts,
    says=PlanFacts,
    faults=_faults,
    again="simshuffle.extensions.planning.asked:repeat",
)
