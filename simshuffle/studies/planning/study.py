"""The study behind ``simshuffle plan``: every strategy that fits is simulated, then the smallest
file system, the largest hidden Q and what the choice hangs on are searched for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.exchange import PartialLocalShuffle
from simshuffle.results.report import WHOLE
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.cell import RunCell
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.variants import OWN, WarmCell, exchanging, prepared, without
from simshuffle.studies.month.study import check_saved
from simshuffle.studies.planning import text
from simshuffle.studies.planning.asked import Asked, Candidate, with_settings
from simshuffle.studies.planning.cells import EXCHANGE, IO, FileSystemCell, file_system, shares
from simshuffle.studies.planning.costs import HOUR, cheapest, training_seconds
from simshuffle.studies.planning.figures import plan_chart
from simshuffle.studies.planning.months import MonthsCell
from simshuffle.studies.planning.says import Says
from simshuffle.studies.planning.tables import PROBES, STORED, STRATEGIES, TURNS
from simshuffle.studies.planning.turns import TurnsCell
from simshuffle.study.cell import Cell
from simshuffle.study.schema import misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables

STILL, HIDDEN, HANGS = "no exchange", "hidden exchange", "what the choice hangs on"
LEAST = 1e-6
"""Share of the time that is useful, at least: a training that never ends has a large cost."""
NOTHING_ADDED = 0.01
"""Share of an epoch that the exchange may add and counts as hidden, as of ``study hiding``."""


def _runs(asked: Asked, outcomes: Outcomes) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        of.name: RunCell(of.scenario.to_dict(), of.name, with_tables=False)
        for of in asked.fitting
        if of.scenario is not None
    }
    if (partial := _partial(asked)) is not None:
        cells[STILL] = WarmCell(without(partial).to_dict(), STILL)
    return cells


def _partial(asked: Asked) -> Scenario | None:
    """The scenario with a partial shuffle, of which Q is searched; None if there is none that fits,
    or no room for a single sample more."""
    for of in asked.candidates:
        if not isinstance(of.record, PartialLocalShuffle):
            continue
        scenario = _with_room(asked, of)
        if scenario is not None:
            return scenario
    return None


def _with_room(asked: Asked, of: Candidate) -> Scenario | None:
    try:
        values = of.record.model_dump(mode="json", exclude_none=True) | {"exchange_fraction": 0.0}
        none = prepared(asked.base.with_values({"workload.exchange": values}))
        return exchanging(none, OWN, 1, {})
    except InputError:
        return None


def _searches(asked: Asked, outcomes: Outcomes) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for of in asked.fitting:
        if of.record.tier == "pfs" and of.scenario is not None:
            cell = FileSystemCell(of.scenario.to_dict(), of.name, asked.io_share)
            cells[cell.label] = cell
    if (partial := _partial(asked)) is not None:
        baseline = outcomes[STILL].values[WHOLE]
        cells[HIDDEN] = SearchCell(partial.to_dict(), OWN, NOTHING_ADDED, baseline)
    if asked.fails:
        for of in asked.fitting:
            cells[f"months of {of.name}"] = _months(asked, of, outcomes)
    return cells


def _months(asked: Asked, of: Candidate, outcomes: Outcomes) -> MonthsCell:
    whole = asked.whole.with_values({"workload.exchange": of.exchange})
    check_saved(whole)
    epochs = _epochs(of, outcomes)
    epoch = {
        "first_s": epochs["epoch_s"][0],
        "staging_s": sum(epochs["staging_s"]),
        "steady_s": epochs["epoch_s"][-1],
        "iterations": epochs["iterations"][-1],
        "reads_s": 0.0,
        "epochs": len(epochs["epoch_s"]),
    }
    return MonthsCell(whole.to_dict(), epoch, of.name)


def _last(asked: Asked, outcomes: Outcomes) -> dict[str, Cell]:
    offers = [
        {
            "name": of.name,
            "exchange": of.exchange,
            "kept_nbytes": of.kept_nbytes,
            "epochs": of.epochs,
            "mixing": of.mixing,
            "hosts": asked.base.hosts + _spares(of, outcomes),
            "goodput": _month(of, outcomes).get("goodput", 1.0),
            "reads_pfs": of.record.tier == "pfs",
            "seconds": None if of.scenario is None else _seconds(of, outcomes),
            "epoch_s": None if of.scenario is None else _epochs(of, outcomes)["epoch_s"][-1],
        }
        for of in asked.candidates
        if of.epochs is not None
    ]
    return {HANGS: TurnsCell(asked.base.to_dict(), offers, asked.prices, asked.close)}


def _epochs(of: Candidate, outcomes: Outcomes) -> Mapping[str, Sequence[Any]]:
    found: Mapping[str, Sequence[Any]] = outcomes[of.name].values["epochs"]
    return found


def _seconds(of: Candidate, outcomes: Outcomes) -> float:
    """s of the training, with what failures and saves cost."""
    epochs = _epochs(of, outcomes)
    assert of.epochs is not None  # noqa: S101 - of those that reach the target
    useful = training_seconds(sum(epochs["staging_s"]), epochs["epoch_s"], of.epochs)
    return useful / max(float(_month(of, outcomes).get("goodput", 1.0)), LEAST)


def _month(of: Candidate, outcomes: Outcomes) -> Mapping[str, Any]:
    """What was found of the months of a strategy; nothing without failures."""
    found = outcomes.get(f"months of {of.name}")
    return {} if found is None else found.values


def _spares(of: Candidate, outcomes: Outcomes) -> int:
    """Hosts beside those of the ranks; all that there are, if these are not enough."""
    found = _month(of, outcomes)
    spares = found.get("spares")
    return int(found.get("hosts_free", 0) if spares is None else spares)


# ------------------------------------------------------------------------------------- the tables


def _collect(asked: Asked, outcomes: Outcomes) -> Tables:
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


def _row(asked: Asked, of: Candidate, outcomes: Outcomes) -> dict[str, Any]:
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
        "command": with_settings(asked.command, {"workload.exchange": of.exchange}),
    }
    if of.scenario is None:
        return row
    epochs = _epochs(of, outcomes)
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
    month = _month(of, outcomes)
    row |= {name: month.get(name) for name in ("period_s", "goodput", "spares")}
    if month:
        values = {
            "workload.exchange": of.exchange,
            "recovery.policy": "spare",
            "recovery.spares": _spares(of, outcomes),
        }
        followed = with_settings(f"simshuffle month {asked.whole_words}", values)
        row["month"] = f"{followed} --period {month['period_s']:.6g}s"
    if of.epochs is not None:
        seconds = _seconds(of, outcomes)
        needs = asked.needs(of, _spares(of, outcomes))
        row |= {
            "hours": seconds / HOUR,
            "time_cost": needs.time_cost(asked.prices, seconds),
            "storage_cost": needs.storage_cost(asked.prices),
            "cost": needs.cost(asked.prices, seconds),
        }
    return row


def _probes(asked: Asked, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """All that the searches simulated."""
    for of in asked.fitting:
        searched = outcomes.get(f"file system of {of.name}")
        for point in searched.values["points"] if searched else ():
            at = point["files_per_s"], point["bytes_per_s"]
            values = {"workload.exchange": of.exchange, **file_system(*at)}
            yield {
                "question": "file system",
                "strategy": of.name,
                "files_per_s": at[0],
                "bytes_per_s": at[1],
                "epoch_s": point[WHOLE],
                "io_share": point["io"],
                "command": with_settings(asked.command, values),
            }
    partial = _partial(asked)
    if partial is None:
        return
    for point in outcomes[HIDDEN].values["points"]:
        if not point["removed"]:
            yield _hidden_probe(asked, partial, point)


def _hidden_probe(asked: Asked, partial: Scenario, point: Mapping[str, Any]) -> dict[str, Any]:
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


def _turns(asked: Asked, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    plan = f"simshuffle plan {asked.whole_words}"
    for row in outcomes[HANGS].values["turns"]:
        yield {**row, "command": with_settings(plan, row["values"])}


def _facts(asked: Asked, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """What texts say beside tables."""
    base, limit = asked.base, None
    if HIDDEN in outcomes:
        found = outcomes[HIDDEN].values["limit"]
        limit = {name: found[name] for name in ("samples", "exchange_fraction", "bottleneck")}
    per_host = base.cluster.ranks_per_host(base.world_size) / base.world_size
    room = asked.capacity / (per_host * base.workload.dataset.nbytes) - 1.0
    return {
        "plan": {
            "scenario": base.name,
            "ranks": base.world_size,
            "hosts": base.hosts,
            "samples_of_rank": base.workload.dataset.num_samples / base.world_size,
            "tier": base.workload.staging.target,
            "hidden": limit,
            "rows": {name: len(tables[name]) for name in ("probes", "turns")},
            "lacking": _lacking(asked.whole),
            "waiting": {
                of.name: _month(of, outcomes)["waiting"] for of in asked.fitting if asked.fails
            },
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
    return misfits({"strategies.csv": alone and said, **counts})


STUDY: Study[Asked] = Study(
    kind="planning",
    verb="plan",
    stages=(_runs, _searches, _last),
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: {"plan": plan_chart(result.tables["strategies"], result.meta)},
    one_figure=True,
    verdict=text.verdict,
    parts=text.parts,
    facts=_facts,
    says=Says,
    faults=_faults,
    again="simshuffle.studies.planning.asked:again",
)
