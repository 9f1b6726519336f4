"""The study behind ``simshuffle plan``: its stages, tables, facts and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simshuffle.errors import Problem
from simshuffle.extensions.planning import text
from simshuffle.extensions.planning.asked import PlanRequest
from simshuffle.extensions.planning.candidates import Candidate
from simshuffle.extensions.planning.cells import (
    EXCHANGE,
    IO,
    epoch_shares,
    file_system_settings,
)
from simshuffle.extensions.planning.commands import add_settings
from simshuffle.extensions.planning.costs import HOUR, cheapest_strategy
from simshuffle.extensions.planning.figures import plan_chart
from simshuffle.extensions.planning.flips import SEARCH_TITLE
from simshuffle.extensions.planning.precision import (
    COARSE_TOLERANCE,
    MAX_SECONDS,
    TOLERANCE,
)
from simshuffle.extensions.planning.says import PlanFacts
from simshuffle.extensions.planning.stages import (
    HIDDEN_EXCHANGE,
    epoch_columns,
    failing_training_seconds,
    late_cells,
    month_values,
    partial_scenario,
    run_cells,
    search_cells,
    spares_of_month,
)
from simshuffle.extensions.planning.tables import PROBES, STORED, STRATEGIES, TURNS
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.warming import warming_sentence
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.report import WHOLE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables


def _collect(request: PlanRequest, outcomes: Outcomes) -> Tables:
    """Return the stored tables, by name; the chosen strategy is marked.

    It is the cheapest within the budget, by `cheapest_strategy`; none may be.
    Strategies without a cost are never chosen. Columns ``epochs`` and ``spares`` are
    floats, NaN where missing.
    """
    rows = [
        _strategy_row(request, candidate, outcomes) for candidate in request.candidates
    ]
    costs = {row["strategy"]: row["cost"] for row in rows if row["cost"] is not None}
    mixing = {candidate.name: candidate.mixing for candidate in request.candidates}
    chosen_name = cheapest_strategy(costs, mixing, request.tie_share, request.budget)
    for row in rows:
        row["chosen"] = row["strategy"] == chosen_name
    return {
        "strategies": STRATEGIES.framed(rows).astype(
            {"epochs": float, "spares": float}
        ),
        "probes": PROBES.framed([*_probe_rows(request, outcomes)]),
        "turns": TURNS.framed([*_turn_rows(request, outcomes)]),
    }


def _strategy_row(
    request: PlanRequest, candidate: Candidate, outcomes: Outcomes
) -> dict[str, Any]:
    """Return the row of a strategy in table ``strategies``, not yet chosen.

    Times, shares and costs are missing where it was not simulated, and ``why`` has the
    reason; the cost is also missing where it does not reach the target. Rates are
    missing where the file system was not searched or none is enough; the columns of
    months are missing without failures.
    """
    is_text = isinstance(candidate.exchange, str)
    row: dict[str, Any] = {
        "strategy": candidate.name,
        "exchange": candidate.exchange if is_text else candidate.strategy.kind,
        "exchange_fraction": candidate.strategy.fraction,
        "kept_nbytes": candidate.kept_nbytes,
        "capacity_nbytes": request.host_capacity,
        "fits": candidate.kept_nbytes <= request.host_capacity,
        "why": candidate.obstacle,
        "epochs": candidate.epochs,
        "accuracy": candidate.best_accuracy,
        "cost": None,
        "month": "",
        "command": add_settings(
            request.command,
            {
                "workload.exchange": candidate.exchange,
                **request.settings_of_run(candidate.name),
            },
        ),
    }
    if candidate.scenario is None:
        return row
    if candidate.name not in request.run_scenarios:
        bounded_seconds = bounds(candidate.scenario).epoch
        reason = (
            f"not simulated: an epoch takes {bounded_seconds:,.3g} s at"
            " least; --exact simulates it"
        )
        return {**row, "why": reason}
    row |= _last_epoch_columns(candidate, outcomes)
    search = outcomes.get(f"file system of {candidate.name}")
    if search is not None:
        row |= {name: search.values[name] for name in ("files_per_s", "bytes_per_s")}
    month = month_values(candidate, outcomes)
    row |= {name: month.get(name) for name in ("period_s", "goodput", "spares")}
    if month:
        row["month"] = _month_command(request, candidate, month)
    if candidate.epochs is not None:
        row |= _cost_columns(request, candidate, outcomes, spares_of_month(month))
    return row


def _last_epoch_columns(candidate: Candidate, outcomes: Outcomes) -> dict[str, float]:
    """Return the simulated last epoch (s) with its shares of I/O and exchange (0 to 1),
    and the staging of all epochs (s).
    """
    epochs = epoch_columns(candidate, outcomes)
    share_by_label = epoch_shares(
        outcomes[candidate.name].values["breakdown"], epochs["epoch"][-1]
    )
    return {
        "epoch_s": epochs["epoch_s"][-1],
        "io_share": share_by_label.get(IO, 0.0),
        "exchange_share": share_by_label.get(EXCHANGE, 0.0),
        "staging_s": sum(epochs["staging_s"]),
    }


def _month_command(
    request: PlanRequest, candidate: Candidate, month: Mapping[str, Any]
) -> str:
    """Return the command that simulates the month of a strategy with its failures.

    It sets the spare hosts that were found (all free hosts where none are enough), the
    policy 'spare' and the period.
    """
    settings = {
        "workload.exchange": candidate.exchange,
        "recovery.policy": "spare",
        "recovery.spares": spares_of_month(month),
    }
    command = add_settings(f"simshuffle month {request.scenario_words}", settings)
    return f"{command} --period {month['period_s']:.6g}s"


def _cost_columns(
    request: PlanRequest, candidate: Candidate, outcomes: Outcomes, spares: int
) -> dict[str, float]:
    """Return the hours of a training with its failures, and the costs of the training.

    The keys are hours, time_cost, storage_cost, and cost: the sum of both costs.

    Args:
        request: has the price of each resource.
        candidate: the strategy, simulated, whose number of epochs is known.
        outcomes: of all cells.
        spares: spare hosts that the training holds.
    """
    seconds = failing_training_seconds(candidate, outcomes)
    machine_needs = request.machine_needs(candidate, spares)
    return {
        "hours": seconds / HOUR,
        "time_cost": machine_needs.time_cost(request.prices, seconds),
        "storage_cost": machine_needs.storage_cost(request.prices),
        "cost": machine_needs.cost(request.prices, seconds),
    }


def _probe_rows(request: PlanRequest, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """Yield the rows of table ``probes``: the file systems and exchanges that the
    searches simulated.

    Runs of the search of the exchange with a mechanism removed are left out.
    """
    for candidate in request.feasible_candidates:
        search = outcomes.get(f"file system of {candidate.name}")
        for point in search.values["points"] if search else ():
            rates = point["files_per_s"], point["bytes_per_s"]
            settings = {
                "workload.exchange": candidate.exchange,
                **file_system_settings(*rates),
            }
            if not request.exact and request.base.time_tolerance < COARSE_TOLERANCE:
                settings[TOLERANCE] = COARSE_TOLERANCE
            yield {
                "question": "file system",
                "strategy": candidate.name,
                "files_per_s": rates[0],
                "bytes_per_s": rates[1],
                "epoch_s": point[WHOLE],
                "io_share": point["io"],
                "command": add_settings(request.command, settings),
            }
    partial_run = partial_scenario(request)
    if partial_run is None or HIDDEN_EXCHANGE not in outcomes:
        return
    for point in outcomes[HIDDEN_EXCHANGE].values["points"]:
        if not point["removed"]:
            yield _hidden_exchange_row(request, partial_run, point)


def _hidden_exchange_row(
    request: PlanRequest, partial: Scenario, point: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the row of table ``probes`` for one simulated exchange of the search of
    the largest hidden one.
    """
    exchange = partial.workload.exchange.model_dump(mode="json", exclude_defaults=True)
    settings: dict[str, Any] = {
        "epochs": partial.epochs,
        "workload.exchange": {
            **exchange,
            "exchange_fraction": point["exchange_fraction"],
        },
    }
    return {
        "question": "hidden exchange",
        "strategy": "partial",
        "exchange_fraction": point["exchange_fraction"],
        "epoch_s": point["epoch_s"],
        "added": point["added"],
        "command": add_settings(request.command, settings),
    }


def _flip_rows(outcomes: Outcomes, kind: str) -> list[Mapping[str, Any]]:
    """Return the rows of a kind, ``turns`` or ``doubtful``, of the searches of all
    inputs, in the order of the outcomes.
    """
    flips = [
        outcome for name, outcome in outcomes.items() if name.startswith(SEARCH_TITLE)
    ]
    return [row for outcome in flips for row in outcome.values[kind]]


def _turn_rows(request: PlanRequest, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """Yield the rows of table ``turns``: confirmed turning points, each with its
    command.

    The command plans with the values just beyond the turning point.
    """
    for row in _flip_rows(outcomes, "turns"):
        yield {**row, "command": add_settings(request.plan_words, row["values"])}


def _collect_facts(
    request: PlanRequest, outcomes: Outcomes, tables: Tables
) -> dict[str, Any]:
    """Return the facts that the texts need beside the tables: {"plan": `PlanFindings`}.

    ``hidden`` is None where the exchange was not searched. ``largest_fraction`` is
    clipped to -1 to 1; below 0 hosts have no room for a shard.
    """
    base = request.base
    limit = None
    if HIDDEN_EXCHANGE in outcomes:
        search_limit = outcomes[HIDDEN_EXCHANGE].values["limit"]
        limit = {
            name: search_limit[name]
            for name in ("samples", "exchange_fraction", "bottleneck")
        }
    share_per_host = base.cluster.ranks_per_host(base.world_size) / base.world_size
    epoch_seconds = {
        candidate.name: epoch_columns(candidate, outcomes)["epoch_s"][-1]
        for candidate in request.simulated_candidates
    }
    max_fraction = (
        request.host_capacity / (share_per_host * base.workload.dataset.nbytes) - 1.0
    )
    return {
        "plan": {
            "scenario": base.name,
            "ranks": base.world_size,
            "hosts": base.hosts,
            "samples_of_rank": base.workload.dataset.num_samples / base.world_size,
            "tier": base.workload.staging.target,
            "not_steady": warming_sentence(request.run_scenarios, epoch_seconds),
            "hidden": limit,
            "rows": {name: len(tables[name]) for name in ("probes", "turns")},
            "lacking": _list_absent_keys(request.scenario),
            "waiting": {
                candidate.name: month_values(candidate, outcomes)["waiting"]
                for candidate in request.simulated_candidates
                if request.has_failures
            },
            "doubtful": [
                {
                    name: row[name]
                    for name in ("input", "shown", "factor", "after", "why")
                }
                for row in _flip_rows(outcomes, "doubtful")
            ],
            "coarse": {
                candidate.name: request.run_scenarios[candidate.name].time_tolerance
                for candidate in request.simulated_candidates
                if request.settings_of_run(candidate.name)
            },
            "not_searched": _unsearched_phrases(request, outcomes),
            "largest_fraction": min(max(max_fraction, -1.0), 1.0),
            "io": {
                candidate.name: {
                    name: outcomes[f"file system of {candidate.name}"].values[name]
                    for name in ("io", "alone")
                }
                for candidate in request.feasible_candidates
                if f"file system of {candidate.name}" in outcomes
            },
        }
    }


def _unsearched_phrases(request: PlanRequest, outcomes: Outcomes) -> list[str]:
    """Return the runs and searches that were left out as they would take longer than a
    minute, each as a phrase.
    """
    pfs_candidates = [
        candidate
        for candidate in request.feasible_candidates
        if candidate.strategy.tier == "pfs"
    ]
    unsearched = [
        f"{candidate.name}, whose epoch takes {bounds(candidate.scenario).epoch:,.3g} s at least"
        for candidate in request.feasible_candidates
        if candidate.scenario is not None
        and candidate.name not in request.run_scenarios
    ]
    unsearched += [
        f"the smallest file system of {candidate.name}"
        for candidate in pfs_candidates
        if f"file system of {candidate.name}" not in outcomes
    ]
    if partial_scenario(request) is not None and HIDDEN_EXCHANGE not in outcomes:
        unsearched.append("the largest Q that stays hidden")
    return unsearched


def _list_absent_keys(scenario: Scenario) -> list[str]:
    """Return the keys that the scenario lacks for a plan to account for failures; []
    if it has both.
    """
    value_by_key = {
        "failures": scenario.failures,
        "workload.checkpoint": scenario.workload.checkpoint,
    }
    return [key for key, value in value_by_key.items() if value is None]


def _find_faults(result: Result) -> Iterator[Problem]:
    """Yield the faults of a stored result.

    Tables must have as many rows as ``meta.json`` says and as strategies were asked
    for, at most one strategy is chosen, and one without room has a reason.
    """
    table = result.tables["strategies"]
    num_strategies = len(result.meta["asked"]["strategies"])
    is_complete = int(table["chosen"].sum()) <= 1 and len(table) == num_strategies
    has_reasons = bool((table["fits"] | (table["why"] != "")).all())
    has_all_rows = {
        f"{name}.csv": len(result.tables[name]) == rows
        for name, rows in result.meta["plan"]["rows"].items()
    }
    return problems_of_misfits(
        {"strategies.csv": is_complete and has_reasons, **has_all_rows}
    )


def _cost_of_later_stages(request: PlanRequest, stage: int) -> float:
    """Estimate the core seconds of the stages after ``stage``.

    They are `MAX_SECONDS` after stage 0, the runs. They are 0 after a later stage, and
    for an exact plan, whose searches are unknown.
    """
    return 0.0 if request.exact or stage > 0 else MAX_SECONDS


STUDY: Study[PlanRequest] = Study(
    kind="planning",
    verb="plan",
    stages=(run_cells, search_cells, late_cells),
    later_cost=_cost_of_later_stages,
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: {
        "plan": plan_chart(result.tables["strategies"], result.meta)
    },
    one_figure=True,
    verdict=text.verdict,
    parts=text.list_parts,
    facts=_collect_facts,
    says=PlanFacts,
    faults=_find_faults,
    again="simshuffle.extensions.planning.asked:repeat",
)
