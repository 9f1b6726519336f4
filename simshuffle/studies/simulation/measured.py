"""Predict the runs that were measured: a cell for each, and the seconds of its last epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.job.scenario.measured import MeasuredScenario
from simshuffle.job.scenario.scenario import KEYS_IN_LABEL, Scenario
from simshuffle.job.sim.cell import RunCell, concatenate_rows
from simshuffle.job.uncertainty.measured_facts import MeasuredPrediction, measured_runs
from simshuffle.report import report
from simshuffle.spec.overrides import combination_name
from simshuffle.study.cell import Cell
from simshuffle.study.study import Outcomes


def match_sweep(
    base: Scenario, combinations: Sequence[Mapping[str, Any]]
) -> list[MeasuredScenario]:
    """Return the measured runs of a scenario, matched with the runs of a sweep.

    Args:
        base: the scenario without swept values.
        combinations: swept values by dotted key, without the seed.

    Raises:
        InputError: as of `measured_runs`.
    """
    if not base.measured:
        return []
    runs = {}
    for values in combinations:
        scenario = base.with_values(values)
        words = combination_name(values, KEYS_IN_LABEL)
        runs[f"{scenario.label()} {words}".rstrip()] = scenario
    return measured_runs(runs)


def name_cells(measured: Sequence[MeasuredScenario]) -> list[str]:
    """Return the name of the cell of each measured run: 'measured 1: local @64'."""
    return [f"measured {index}: {run.name}" for index, run in enumerate(measured, 1)]


def measured_cells(measured: Sequence[MeasuredScenario]) -> dict[str, Cell]:
    """Return the cell of each measured run, by its name; its tables are not kept."""
    return {
        name: RunCell(run.scenario.to_dict(), name, with_tables=False)
        for name, run in zip(name_cells(measured), measured, strict=True)
    }


def predict_measured(
    measured: Sequence[MeasuredScenario], outcomes: Outcomes
) -> list[MeasuredPrediction]:
    """Return the measured runs with the seconds and parts of their last epoch.

    Waiting for other ranks counts under the label that is waited for. Runs whose cell
    was lost are left out.
    """
    predictions = []
    for name, run in zip(name_cells(measured), measured, strict=True):
        outcome = outcomes[name]
        if outcome.lost:
            continue
        epochs, breakdown = (
            concatenate_rows([({"run": name}, outcome)], table)
            for table in ("epochs", "breakdown")
        )
        last = epochs["epoch"].max()
        seconds = float(epochs.loc[epochs["epoch"] == last, "epoch_s"].iloc[0])
        parts = report.by_cause(breakdown[breakdown["epoch"] == last])
        sums = parts.groupby("label", observed=True)["seconds"].sum()
        by_label = {str(label): float(value) for label, value in sums.items()}
        predictions.append(MeasuredPrediction(run, seconds, by_label))
    return predictions
