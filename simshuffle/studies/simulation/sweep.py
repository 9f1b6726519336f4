"""The study behind ``simshuffle sweep``: a scenario over values of its keys and over
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired

import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem
from simshuffle.job.plan.faults import check_run
from simshuffle.job.plan.findings import batch_sizes, warn_of_partial_batches
from simshuffle.job.scenario.options import scenario_of, with_measured
from simshuffle.job.scenario.reading import locate_exchange
from simshuffle.job.scenario.scenario import (
    MOST_TRIED,
    Scenario,
    serialise_scenarios,
)
from simshuffle.job.sim.cell import RunCell, concatenate_rows
from simshuffle.job.uncertainty.report import (
    interval_facts,
    interval_request,
    ranges_of,
    repeat_options,
)
from simshuffle.report import intervals
from simshuffle.report.chart import Chart
from simshuffle.report.report import LABELS, WHOLE, rows_of_last_epoch
from simshuffle.spec.overrides import (
    add_axis_values,
    combination_name,
    grid,
    short_text,
    sort_outermost_first,
)
from simshuffle.studies.simulation.measured import (
    match_sweep,
    measured_cells,
    predict_measured,
)
from simshuffle.studies.simulation.sweep_axes import (
    SweepRequest,
    axis_names,
    check_label,
    check_names,
    is_number,
    without_seed,
)
from simshuffle.studies.simulation.sweep_figures import sweep_chart
from simshuffle.studies.simulation.sweep_text import (
    last_summary,
    sweep_details,
    sweep_parts,
    sweep_verdict,
)
from simshuffle.studies.simulation.tables import (
    SUMMARY,
    SWEEP,
    WHOLE_EPOCH,
    SweptAxis,
    axis_columns,
    check_seeds,
    epoch_lengths,
    find_measure_problems,
    keys_of_combinations,
    label_column,
    measures_of_epochs,
    samples_of,
    summarise_seeds,
)
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.standing import share_teller
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)

EXCHANGE = "workload.exchange"


def request(options: SweepOptions) -> Request[SweepRequest]:
    """Return the request of a sweep.

    The scenario's own sweep counts, too, but for keys that ``over`` names. Combinations
    themselves are checked by `_cells`.

    Raises:
        InputError: the axes make no grid, or two values have one name. Also for a
            scenario, label, range or measure that is not valid, or too many seeds.
    """
    if problems := find_measure_problems(options.measure):
        raise InputError(problems, COMMAND_LINE)
    (scenario,) = with_measured([_read_base(options)], options.measured)
    over = options.over
    own_axes = {
        key: values for key, values in scenario.sweep.items() if key not in over
    }
    axes = {key: list(values) for key, values in {**own_axes, **over}.items()}
    if EXCHANGE in axes:
        axes[EXCHANGE] = [locate_exchange(value, None) for value in axes[EXCHANGE]]
    check_names(axes)
    base = scenario.model_copy(update={"sweep": {}})
    names = axis_names([key for key in axes if key != "seed"])
    check_label(options.label, {*names.values(), "seed"})
    combinations = [sort_outermost_first(values) for values in grid(axes, options.zip)]
    check_seeds(options.seeds, len(combinations), "seed" in axes)
    if "seed" not in axes:
        seeds = range(base.seed, base.seed + options.seeds)
        combinations = [
            {**values, "seed": seed} for values in combinations for seed in seeds
        ]
    numbers = frozenset(
        name for key, name in names.items() if all(map(is_number, axes[key]))
    )
    run_values = [without_seed(values) for values in combinations]
    run_names = set(map(combination_name, run_values))
    measured = match_sweep(base, run_values)
    interval = options.interval or bool(measured)
    ranges = ranges_of(interval, options.ranges, [base], len(run_names))
    sweep = SweepRequest(
        base, combinations, names, numbers, options.label, ranges, measured
    )
    document, files = serialise_scenarios([scenario.model_copy(update={"sweep": axes})])
    axis_rows = [
        {"name": name, "key": key, "numbers": name in numbers}
        for key, name in names.items()
    ]
    stored_options = {
        name: getattr(options, name) for name in ("zip", "seeds", "label", "measure")
    }
    stored_meta = {"axes": axis_rows, **stored_options, **interval_request(ranges)}
    return Request(
        scenario.name, sweep, {"scenario.yaml": document}, stored_meta, files
    )


def _read_base(options: SweepOptions) -> Scenario:
    """Return the scenario; a required value that it lacks, or one that is not valid, is
    the first value of that key in ``over``.

    Raises:
        InputError: ``over`` has none of the wrong keys, or its first values do not help.
    """
    try:
        return scenario_of(options.scenario, options.set)
    except InputError as error:
        wrong_keys = {problem.path for problem in error.problems}
        first_values = {
            key: values[0] for key, values in options.over.items() if key in wrong_keys
        }
        if not first_values:
            raise
        return scenario_of(options.scenario, {**options.set, **first_values})


# -------------------------------------------------------------------------------- the combinations


def _cells(sweep: SweepRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return a run of each combination, by its name; partial batches give a warning.

    Thousands of scenarios take long to check. Each value is therefore checked once by
    itself, where all values are valid by themselves. A combination that is not valid
    then fails where it is simulated, and the others go on.

    Raises:
        InputError: a value is valid neither by itself nor in a combination; with the
            problems of the first `MOST_TRIED` combinations.
    """
    base = sweep.base.to_dict()
    values = _resolve_values(sweep)
    cells: dict[str, RunCell] = {}
    problems: list[Problem] = []
    for index, combination in enumerate(sweep.combinations):
        if problems and index >= MOST_TRIED:
            break
        try:
            document = _document(sweep, base, values, combination)
        except InputError as error:
            axes = _values_by_key(sweep)
            problems += [
                add_axis_values(problem, axes, combination)
                for problem in error.problems
            ]
            continue
        name = combination_name(combination)
        cells[name] = RunCell(document, name, with_tables=False)
    if problems:
        raise InputError(list(dict.fromkeys(problems)), sweep.base.name)
    warn_of_partial_batches(
        {name: batch_sizes(cell.document) for name, cell in cells.items()}
    )
    return {**cells, **measured_cells(sweep.measured)}


def _values_by_key(sweep: SweepRequest) -> dict[str, list[Any]]:
    """Return the values of each key, seeds too, in the order in which they first occur."""
    values_by_key: dict[str, dict[str, Any]] = {}
    for combination in sweep.combinations:
        for key, value in combination.items():
            values_by_key.setdefault(key, {}).setdefault(repr(value), value)
    return {key: list(values.values()) for key, values in values_by_key.items()}


def _document(
    sweep: SweepRequest,
    base: dict[str, Any],
    values: Mapping[tuple[str, str], Any] | None,
    combination: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the plain scenario of a combination, put together from resolved values
    where there are any; a combination of resolved values is not checked.

    Args:
        sweep: the request.
        base: the plain scenario without swept values.
        values: resolved values by key and text, of `_resolve_values`; None to resolve
            the combination as a whole.
        combination: values by dotted key.
    """
    if values is None:
        return sweep.base.with_values(combination).to_dict()
    document = base
    for key, value in combination.items():
        document = _replace_value(document, key.split("."), values[key, repr(value)])
    return document


def _resolve_values(sweep: SweepRequest) -> dict[tuple[str, str], Any] | None:
    """Return every value of every key as the resolved scenario has it, by key and
    ``repr`` of the value.

    Returns:
        None if a value is not valid by itself or may change other keys, as the first
        and the last combination show, or the scenario is calibrated.
    """
    if sweep.base.calibrated:
        return None
    resolved: dict[tuple[str, str], Any] = {}
    for combination in sweep.combinations:
        for key, value in combination.items():
            if (key, repr(value)) in resolved:
                continue
            if key == "seed" and type(value) is int and value >= 0:
                resolved[key, repr(value)] = value  # there may be very many
                continue
            try:
                scenario = sweep.base.with_values({key: value})
            except InputError:
                return None
            check_run(scenario)
            resolved_value: Any = scenario.to_dict()
            for part in key.split("."):
                is_mapping = isinstance(resolved_value, dict)
                resolved_value = resolved_value.get(part) if is_mapping else None
            resolved[key, repr(value)] = resolved_value

    # values are independent if the first and the last combination are as if resolved in one
    base = sweep.base.to_dict()
    end_combinations = (sweep.combinations[0], sweep.combinations[-1])
    is_separable = all(
        _document(sweep, base, resolved, combination)
        == sweep.base.with_values(combination).to_dict()
        for combination in {
            repr(values): values for values in end_combinations
        }.values()
    )
    return resolved if is_separable else None


def _replace_value(
    document: Mapping[str, Any], path: Sequence[str], value: Any
) -> dict[str, Any]:
    """Return a copy with another value at a dotted path; what is beside the path is
    shared.
    """
    first_part, *further_parts = path
    if further_parts:
        value = _replace_value(document.get(first_part) or {}, further_parts, value)
    return {**document, first_part: value}


# --------------------------------------------------------------------------------------- the tables


def _collect(sweep: SweepRequest, outcomes: Outcomes) -> Tables:
    """Return the table `sweep`: label, axes, seed, then measures.

    It has a row for each combination and epoch; combinations that were lost have none.
    """
    combinations = {combination_name(values): values for values in sweep.combinations}
    finished = {
        name: outcome
        for name, outcome in outcomes.items()
        if name in combinations and not outcome.lost
    }
    epochs, breakdown = (
        concatenate_rows(
            [({"run": name}, outcome) for name, outcome in finished.items()], table
        )
        for table in ("epochs", "breakdown")
    )
    leading_by_run = {
        name: _leading_values(sweep, combinations[name], outcome)
        for name, outcome in finished.items()
    }
    leading = pd.DataFrame([leading_by_run[name] for name in epochs["run"]])
    table = measures_of_epochs(epochs, breakdown).drop(
        columns=leading.columns, errors="ignore"
    )
    order = [*leading.columns, *(name for name in SWEEP.columns if name not in leading)]
    return {"sweep": pd.concat([leading, table], axis=1)[order]}


def _leading_values(
    sweep: SweepRequest, combination: Mapping[str, Any], outcome: Outcome
) -> dict[str, Any]:
    """Return the first columns of a combination: its label, its axes and its seed.

    The label is the user's, else the strategy with the swept words. Axes that are no
    numbers are texts.
    """
    axes = {
        name: combination[key]
        if name in sweep.numbers
        else short_text(combination[key])
        for key, name in sweep.axes.items()
    }
    seed = combination["seed"]
    # the name of a run says some of its values already
    swept_words = combination_name(
        axes, {"world_size", "exchange_fraction", "exchange"}
    )
    default_label = f"{outcome.values['label']} {swept_words}".rstrip()
    return {
        "label": sweep.label.format(**axes, seed=seed) or default_label,
        **axes,
        "seed": seed,
    }


def _collect_facts(
    sweep: SweepRequest, outcomes: Outcomes, tables: Tables
) -> dict[str, Any]:
    """Return the intervals of the last epochs by label; {} without intervals.

    An interval is around the mean over all rows of a label. Inputs are those of the first
    combination of the label that was not lost, with the scenario's own seed.
    """
    if sweep.ranges is None:
        return {}
    table = tables["sweep"]
    last_rows = rows_of_last_epoch(table, "label")
    seconds = last_rows.groupby("label", sort=False)["epoch_s"].mean()
    predicted = {}
    for values in sweep.combinations:
        outcome = outcomes[combination_name(values)]
        label = "" if outcome.lost else _leading_values(sweep, values, outcome)["label"]
        if label and label not in predicted:
            scenario = sweep.base.with_values(without_seed(values))
            predicted[label] = scenario, float(seconds[label])
    return {
        "intervals": interval_facts(
            predicted,
            sweep.ranges,
            share_teller("intervals"),
            predict_measured(sweep.measured, outcomes),
        )
    }


def _summary(result: Result) -> pd.DataFrame:
    """Return means and 95 % intervals over seeds: the derived table, a row for each
    label, values of the axes, epoch and measure.
    """
    return summarise_seeds(
        result.tables["sweep"], keys_of_combinations(result.meta["axes"])
    )


def _figures(result: Result) -> dict[str, Chart]:
    """Return the chart of the measure, by the name of its file.

    Of whole epochs it also has the 90 % intervals, if there are any.
    """
    measure = result.meta["measure"]
    samples = samples_of(result.tables["sweep"])
    rows = last_summary(result)
    if measure == WHOLE_EPOCH:
        ends = intervals.interval_ends(result.meta.get("intervals"))
        rows = intervals.add_interval_ends(
            rows[rows["measure"] == measure], ends, "label"
        )
    count = intervals.measured_count(result.meta.get("intervals"))
    axes = result.meta["axes"]
    return {
        "sweep": sweep_chart(rows, axes, measure, samples=samples, num_measured=count)
    }


def _compared_tables(result: Result) -> Tables:
    """Return the seconds of every epoch and under each label, means over the seeds, and
    the rates of `epoch_lengths`.

    A label's seconds are own work; waiting is only in the whole, 'epoch'. Each row has
    half its 95 % interval, NaN with one seed. Rows are told apart by the run's label, and
    by the axes too where that is not enough.
    """
    names = {"epoch_s": WHOLE, **{label_column(label): label for label in LABELS}}
    table = result.derived["summary"].rename(columns={"label": "run"})
    table = table[table["measure"].isin(names)].replace({"measure": names})
    keys = ["run", "epoch", "measure"]
    if table.duplicated(keys).any():
        keys[1:1] = [axis["name"] for axis in result.meta["axes"]]
    table = table.assign(half=table["high"] - table["mean"])[[*keys, "mean", "half"]]
    table = table.rename(columns={"measure": "label", "mean": "seconds"})
    rates = epoch_lengths(
        result.tables["sweep"].rename(columns={"label": "run"}), keys[:-1]
    )
    return {"rates": rates, "seconds": table.set_index([*keys[:-1], "label"])}


class SweepMeta(TypedDict):
    """Facts on a sweep in ``meta.json``."""

    axes: list[SweptAxis]
    zip: bool  # whether values are taken together, and no grid
    seeds: int
    label: str  # the user's, with axes in braces; '' for none
    measure: str  # of the figure
    lost: dict[str, str]  # why, by the name of each combination without rows
    interval: NotRequired[bool]
    ranges: NotRequired[dict[str, list[float]]]
    intervals: NotRequired[intervals.Intervals]


def repeat(folder: Path, meta: Meta) -> Request[SweepRequest]:
    """Return the request of a result, from its folder, with the options in ``meta``."""
    stored_options = {name: meta[name] for name in ("zip", "seeds", "label", "measure")}
    stored_options |= repeat_options(meta)
    return request(SweepOptions(scenario=folder / "scenario.yaml", **stored_options))


STUDY: Study[SweepRequest] = Study(
    kind="sweep",
    verb="sweep",
    stages=(_cells,),
    collect=_collect,
    stored={"sweep": SWEEP},
    documents=("scenario.yaml",),
    derived={"summary": Derived(SUMMARY, _summary)},
    leading=lambda meta: axis_columns(meta["axes"]),
    figures=_figures,
    one_figure=True,
    verdict=sweep_verdict,
    parts=sweep_parts,
    details=sweep_details,
    compared=_compared_tables,
    facts=_collect_facts,
    says=SweepMeta,
    faults=lambda result: find_measure_problems(
        result.meta["measure"], "meta.json: measure"
    ),
    again=f"{__name__}:repeat",
    partial=True,
)
