"""The cells of a plan, stage by stage.

First the strategies run, then the searches, and where hosts fail the turning points
follow once the months are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.planning.asked import PlanRequest
from simshuffle.extensions.planning.candidates import Candidate
from simshuffle.extensions.planning.cells import FileSystemCell
from simshuffle.extensions.planning.costs import training_seconds
from simshuffle.extensions.planning.flips import FlipCell
from simshuffle.extensions.planning.hidden import HiddenExchangeCell
from simshuffle.extensions.planning.month.study import check_checkpoint
from simshuffle.extensions.planning.months import MonthsCell
from simshuffle.extensions.planning.moved import keys_of_inputs
from simshuffle.extensions.planning.precision import MAX_SECONDS
from simshuffle.job.plan.hidden import without_exchange
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.variants import (
    OWN,
    WarmCell,
    prepare_scenario,
    with_variant,
)
from simshuffle.study.cell import Cell
from simshuffle.study.study import Outcomes
from simshuffle.workload.exchange import PartialLocalShuffle

NO_EXCHANGE, HIDDEN_EXCHANGE = "no exchange", "hidden exchange"
MIN_GOODPUT = 1e-6
"""Least share of the time that counts as useful: a training that never ends has a
large cost.
"""
HIDDEN_TOLERANCE = 0.01
"""Share of an epoch that the exchange may add and counts as hidden, as of ``study
hiding``.
"""


def run_cells(request: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells of the first stage, by name: a run of each strategy that is
    simulated.

    Where a candidate is a partial shuffle with room (`partial_scenario`),
    `NO_EXCHANGE` is a warm epoch without its exchange. ``outcomes`` are not used.
    """
    cells: dict[str, Cell] = {
        name: RunCell(scenario.to_dict(), name, with_tables=False)
        for name, scenario in request.run_scenarios.items()
    }
    if (partial := partial_scenario(request)) is not None:
        cells[NO_EXCHANGE] = WarmCell(without_exchange(partial).to_dict(), NO_EXCHANGE)
    return cells


def partial_scenario(request: PlanRequest) -> Scenario | None:
    """Return the scenario of the first partial shuffle for which hosts have room,
    exchanging one sample of a rank.

    The scenario has no failures and no checkpoints, and two epochs.

    Returns:
        None if no candidate is a partial shuffle, or hosts have no room for a single
        further sample of any.
    """
    for candidate in request.candidates:
        if not isinstance(candidate.strategy, PartialLocalShuffle):
            continue
        scenario = _scenario_with_sample(request, candidate)
        if scenario is not None:
            return scenario
    return None


def _scenario_with_sample(
    request: PlanRequest, candidate: Candidate
) -> Scenario | None:
    """Return the scenario of a partial shuffle that exchanges one sample; None where
    hosts lack room or the scenario is not valid otherwise.
    """
    try:
        exchange = candidate.strategy.model_dump(mode="json", exclude_none=True)
        exchange["exchange_fraction"] = 0.0
        scenario = prepare_scenario(
            request.base.with_values({"workload.exchange": exchange})
        )
        return with_variant(scenario, OWN, 1, {})
    except InputError:
        return None


def search_cells(request: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells of the second stage, by name: the searches that need only the
    runs.

    They are the smallest file systems and the largest hidden exchange. Without
    ``exact`` a search that takes more than `MAX_SECONDS` by estimate is left out. Where
    hosts fail the months of each simulated strategy follow, else the turning points.

    Raises:
        ScenarioError: hosts fail, and checkpoints do not outlive a host.
    """
    cells = _file_system_cells(request)
    if (partial := partial_scenario(request)) is not None:
        baseline_s = outcomes[NO_EXCHANGE].values[WHOLE]
        document = partial.to_dict()
        hidden_cell: Cell = HiddenExchangeCell(document, HIDDEN_TOLERANCE, baseline_s)
        if request.exact:
            hidden_cell = SearchCell(document, OWN, HIDDEN_TOLERANCE, baseline_s)
        if request.exact or hidden_cell.cost <= MAX_SECONDS:
            cells[HIDDEN_EXCHANGE] = hidden_cell
    if request.has_failures:
        for candidate in request.simulated_candidates:
            cells[f"months of {candidate.name}"] = _months_cell(
                request, candidate, outcomes
            )
        return cells
    return cells | _flip_cells(request, outcomes)  # they wait for no months


def _file_system_cells(request: PlanRequest) -> dict[str, Cell]:
    """Return the searches of the smallest file system, by label.

    They are of the feasible strategies that read the file system in every epoch;
    without ``exact``, those of at most `MAX_SECONDS` each.
    """
    cells: dict[str, Cell] = {}
    for candidate in request.feasible_candidates:
        if candidate.strategy.tier != "pfs" or candidate.scenario is None:
            continue
        document = candidate.scenario.to_dict()
        cell = FileSystemCell(document, candidate.name, request.io_share, request.exact)
        if request.exact or cell.cost <= MAX_SECONDS:
            cells[cell.label] = cell
    return cells


def _months_cell(
    request: PlanRequest, candidate: Candidate, outcomes: Outcomes
) -> MonthsCell:
    """Return the cell that draws the months of a simulated candidate.

    The steady epoch is the last simulated one; its time for reads is set to 0.

    Raises:
        ScenarioError: there are no checkpoints, or they do not outlive a host.
    """
    scenario = request.scenario.with_values({"workload.exchange": candidate.exchange})
    check_checkpoint(scenario)
    epochs = epoch_columns(candidate, outcomes)
    epoch = {
        "first_s": epochs["epoch_s"][0],
        "staging_s": sum(epochs["staging_s"]),
        "steady_s": epochs["epoch_s"][-1],
        "iterations": epochs["iterations"][-1],
        "reads_s": 0.0,
        "epochs": len(epochs["epoch_s"]),
    }
    return MonthsCell(scenario.to_dict(), epoch, candidate.name)


def late_cells(request: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells of the third stage: the turning points where hosts fail, as they
    need the months; else {}.
    """
    return _flip_cells(request, outcomes) if request.has_failures else {}


def _flip_cells(request: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the searches of turning points, by label, one for each input that is
    moved.
    """
    offers = _describe_offers(request, outcomes)
    document = request.base.to_dict()
    cells = [
        FlipCell(
            document=document,
            offers=offers,
            prices=request.prices,
            tie_share=request.tie_share,
            budget=request.budget,
            input_name=name,
            unit=request.units.get(keys[0], ""),
            exact=request.exact,
        )
        for name, keys in keys_of_inputs(request.base).items()
    ]
    return {cell.label: cell for cell in cells}


def _describe_offers(request: PlanRequest, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return the strategies that reach the target, in the plain values of `read_offer`.

    Strategies without room on the hosts are among them. A strategy that was not
    simulated has None as its seconds, and takes the months of the simulated strategy
    of median goodput: its hosts fail, too. Without failures goodput is 1 and there are
    no spares. The goodput is at least `MIN_GOODPUT`.
    """
    simulated_months = [
        month_values(candidate, outcomes)
        for candidate in request.simulated_candidates
        if request.has_failures
    ]
    simulated_months.sort(key=lambda month: float(month["goodput"]))
    typical_month: Mapping[str, Any] = (
        simulated_months[(len(simulated_months) - 1) // 2] if simulated_months else {}
    )
    month_by_strategy = {
        candidate.name: month_values(candidate, outcomes) or typical_month
        for candidate in request.candidates
    }
    offers = []
    for candidate in request.candidates:
        if candidate.epochs is None:
            continue
        month = month_by_strategy[candidate.name]
        is_simulated = candidate.name in request.run_scenarios
        seconds = (
            failing_training_seconds(candidate, outcomes) if is_simulated else None
        )
        epoch_s = (
            epoch_columns(candidate, outcomes)["epoch_s"][-1] if is_simulated else None
        )
        offers.append(
            {
                "name": candidate.name,
                "exchange": candidate.exchange,
                "kept_nbytes": candidate.kept_nbytes,
                "epochs": candidate.epochs,
                "mixing": candidate.mixing,
                "hosts": request.base.hosts + spares_of_month(month),
                "goodput": max(month.get("goodput", 1.0), MIN_GOODPUT),
                "reads_pfs": candidate.strategy.tier == "pfs",
                "seconds": seconds,
                "epoch_s": epoch_s,
            }
        )
    return offers


def epoch_columns(
    candidate: Candidate, outcomes: Outcomes
) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the simulated epochs of a strategy, such as ``epoch_s``.

    Each column has a value for every epoch, the cold one first. The strategy must have
    been simulated.
    """
    epochs: Mapping[str, Sequence[Any]] = outcomes[candidate.name].values["epochs"]
    return epochs


def failing_training_seconds(candidate: Candidate, outcomes: Outcomes) -> float:
    """Return the duration of the training (s), with the time that failures and saves
    cost.

    It is staging and epochs without failures, divided by the goodput or by
    `MIN_GOODPUT`, whichever is larger; the goodput is 1 where no months were drawn. The
    strategy must have been simulated and reach the target.
    """
    epochs = epoch_columns(candidate, outcomes)
    assert candidate.epochs is not None  # noqa: S101 - of those that reach the target
    useful_seconds = training_seconds(
        sum(epochs["staging_s"]), epochs["epoch_s"], candidate.epochs
    )
    goodput = float(month_values(candidate, outcomes).get("goodput", 1.0))
    return useful_seconds / max(goodput, MIN_GOODPUT)


def month_values(candidate: Candidate, outcomes: Outcomes) -> Mapping[str, Any]:
    """Return the outcome of `MonthsCell` for a strategy; {} without failures, or where
    the strategy was not simulated.
    """
    outcome = outcomes.get(f"months of {candidate.name}")
    return {} if outcome is None else outcome.values


def spares_of_month(month: Mapping[str, Any]) -> int:
    """Return the spare hosts of a month: those that are enough, else all free hosts.

    They are 0 for {}, where no month was drawn.
    """
    spares = month.get("spares")
    return int(month.get("hosts_free", 0) if spares is None else spares)
