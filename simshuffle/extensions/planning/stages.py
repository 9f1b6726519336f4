"""The cells of a plan, stage by stage: runs of the strategies; what is searched for; and, where
hosts fail, what would change the choice once the months are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.planning.asked import Candidate, PlanRequest
from simshuffle.extensions.planning.cells import FileSystemCell, HiddenExchangeCell
from simshuffle.extensions.planning.costs import training_seconds
from simshuffle.extensions.planning.flips import FlipCell
from simshuffle.extensions.planning.month.study import check_saved
from simshuffle.extensions.planning.months import MonthsCell
from simshuffle.extensions.planning.moved import keys_of_inputs
from simshuffle.extensions.planning.precision import MOST_SECONDS
from simshuffle.job.plan.hidden import without_exchange
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.variants import OWN, WarmCell, prepare_scenario, with_variant
from simshuffle.study.cell import Cell
from simshuffle.study.study import Outcomes
from simshuffle.workload.exchange import PartialLocalShuffle

STILL, HIDDEN = "no exchange", "hidden exchange"
LEAST = 1e-6
"""Share of the time that is useful, at least: a training that never ends has a large cost."""
NOTHING_ADDED = 0.01
"""Share of an epoch that the exchange may add and counts as hidden, as of ``study hiding``."""


def run_cells(asked: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return a run of each strategy, and of one epoch without exchange."""
    cells: dict[str, Cell] = {
        name: RunCell(scenario.to_dict(), name, with_tables=False)
        for name, scenario in asked.runs.items()
    }
    if (partial := partial_scenario(asked)) is not None:
        cells[STILL] = WarmCell(without_exchange(partial).to_dict(), STILL)
    return cells


def partial_scenario(asked: PlanRequest) -> Scenario | None:
    """The scenario with a partial shuffle, of which Q is searched; None if there is none that fits,
    or no room for a single sample more."""
    for of in asked.candidates:
        if not isinstance(of.record, PartialLocalShuffle):
            continue
        scenario = _with_room(asked, of)
        if scenario is not None:
            return scenario
    return None


def _with_room(asked: PlanRequest, of: Candidate) -> Scenario | None:
    try:
        values = of.record.model_dump(mode="json", exclude_none=True) | {"exchange_fraction": 0.0}
        none = prepare_scenario(asked.base.with_values({"workload.exchange": values}))
        return with_variant(none, OWN, 1, {})
    except InputError:
        return None


def search_cells(asked: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the searches that need the runs alone, and the months of each strategy."""
    cells = _file_systems(asked)
    if (partial := partial_scenario(asked)) is not None:
        baseline = outcomes[STILL].values[WHOLE]
        document = partial.to_dict()
        hidden: Cell = HiddenExchangeCell(document, NOTHING_ADDED, baseline)
        if asked.exact:
            hidden = SearchCell(document, OWN, NOTHING_ADDED, baseline)
        if asked.exact or hidden.cost <= MOST_SECONDS:
            cells[HIDDEN] = hidden
    if asked.fails:
        for candidate in asked.simulated:
            cells[f"months of {candidate.name}"] = _months(asked, candidate, outcomes)
        return cells
    return cells | _flips(asked, outcomes)  # they wait for no months


def _file_systems(asked: PlanRequest) -> dict[str, Cell]:
    """Return the searches of the smallest file system; within a minute, those that fit in it."""
    cells: dict[str, Cell] = {}
    for candidate in asked.fitting:
        if candidate.record.tier != "pfs" or candidate.scenario is None:
            continue
        document = candidate.scenario.to_dict()
        cell = FileSystemCell(document, candidate.name, asked.io_share, asked.exact)
        if asked.exact or cell.cost <= MOST_SECONDS:
            cells[cell.label] = cell
    return cells


def _months(asked: PlanRequest, of: Candidate, outcomes: Outcomes) -> MonthsCell:
    whole = asked.whole.with_values({"workload.exchange": of.exchange})
    check_saved(whole)
    epochs = epochs_of(of, outcomes)
    epoch = {
        "first_s": epochs["epoch_s"][0],
        "staging_s": sum(epochs["staging_s"]),
        "steady_s": epochs["epoch_s"][-1],
        "iterations": epochs["iterations"][-1],
        "reads_s": 0.0,
        "epochs": len(epochs["epoch_s"]),
    }
    return MonthsCell(whole.to_dict(), epoch, of.name)


def late_cells(asked: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the searches that need the months."""
    return _flips(asked, outcomes) if asked.fails else {}


def _flips(asked: PlanRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the searches of turning points, one for each input."""
    offers = _offers(asked, outcomes)
    document, decision = asked.base.to_dict(), (offers, asked.prices, asked.close, asked.budget)
    cells = [
        FlipCell(document, *decision, name, asked.units.get(keys[0], ""), asked.exact)
        for name, keys in keys_of_inputs(asked.base).items()
    ]
    return {cell.label: cell for cell in cells}


def _offers(asked: PlanRequest, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return the strategies that reach the target, in plain values. Hosts fail beside a strategy
    that was not simulated too: its months are those of the simulated one of median goodput."""
    known = [month_of(candidate, outcomes) for candidate in asked.simulated if asked.fails]
    known.sort(key=lambda month: float(month["goodput"]))
    typical: Mapping[str, Any] = known[(len(known) - 1) // 2] if known else {}
    months = {each.name: month_of(each, outcomes) or typical for each in asked.candidates}
    return [
        {
            "name": candidate.name,
            "exchange": candidate.exchange,
            "kept_nbytes": candidate.kept_nbytes,
            "epochs": candidate.epochs,
            "mixing": candidate.mixing,
            "hosts": asked.base.hosts + spares_in(months[candidate.name]),
            "goodput": months[candidate.name].get("goodput", 1.0),
            "reads_pfs": candidate.record.tier == "pfs",
            "seconds": training_seconds_of(candidate, outcomes)
            if candidate.name in asked.runs
            else None,
            "epoch_s": (
                epochs_of(candidate, outcomes)["epoch_s"][-1]
                if candidate.name in asked.runs
                else None
            ),
        }
        for candidate in asked.candidates
        if candidate.epochs is not None
    ]


def epochs_of(candidate: Candidate, outcomes: Outcomes) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the epochs that were simulated of a strategy."""
    epochs: Mapping[str, Sequence[Any]] = outcomes[candidate.name].values["epochs"]
    return epochs


def training_seconds_of(candidate: Candidate, outcomes: Outcomes) -> float:
    """s of the training, with what failures and saves cost."""
    epochs = epochs_of(candidate, outcomes)
    assert candidate.epochs is not None  # noqa: S101 - of those that reach the target
    useful = training_seconds(sum(epochs["staging_s"]), epochs["epoch_s"], candidate.epochs)
    return useful / max(float(month_of(candidate, outcomes).get("goodput", 1.0)), LEAST)


def month_of(candidate: Candidate, outcomes: Outcomes) -> Mapping[str, Any]:
    """What was found of the months of a strategy; nothing without failures."""
    found = outcomes.get(f"months of {candidate.name}")
    return {} if found is None else found.values


def spares_in(month: Mapping[str, Any]) -> int:
    """Return the hosts beside those of the ranks, of `month_of`; all that there are, if these are
    not enough."""
    spares = month.get("spares")
    return int(month.get("hosts_free", 0) if spares is None else spares)
