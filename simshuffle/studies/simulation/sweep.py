"""The study behind ``simshuffle sweep``: a scenario over values of its keys and over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.plan.faults import check_run
from simshuffle.job.plan.findings import batch_sizes, warn_of_partial_batches
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.reading import locate_exchange
from simshuffle.job.scenario.scenario import MOST_TRIED, Scenario, serialise_scenarios
from simshuffle.job.sim.cell import RunCell, concatenate_rows
from simshuffle.job.uncertainty.report import (
    interval_facts,
    interval_request,
    ranges_of,
    repeat_options,
)
from simshuffle.report import intervals
from simshuffle.report.chart import Chart
from simshuffle.report.report import LABELS, WHOLE
from simshuffle.spec.overrides import (
    add_axis_values,
    combination_name,
    grid,
    short_text,
    sort_outermost_first,
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
    label_column,
    lengths,
    measure_problems,
    measures,
    samples_of,
    summary,
)
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.standing import share_teller
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Result, Study, Tables

EXCHANGE = "workload.exchange"


@dataclass(frozen=True)
class Sweep:
    """What is swept."""

    base: Scenario  # without sweep of its own
    combinations: Sequence[Mapping[str, Any]]  # values by dotted key, the seed among them
    axes: Mapping[str, str]  # names of the axes' columns by key; without the seed
    numbers: frozenset[str]  # those of them that hold numbers; the others hold texts
    label: str  # names a combination, with columns in braces; '' for the name that runs have
    # as of `simshuffle.studies.simulation.study.Runs`
    ranges: Mapping[str, tuple[float, float]] | None = None


def request(options: SweepOptions) -> Request[Sweep]:
    """What is asked. The scenario's own sweep is followed too, but for keys that ``over`` names. An
    InputError if the axes make no grid, a value or a combination is not valid, those are too many
    seeds, or there is no such measure."""
    if problems := measure_problems(options.measure):
        raise InputError(problems, COMMAND_LINE)
    scenario, over = _base(options), options.over
    followed = {key: values for key, values in scenario.sweep.items() if key not in over}
    axes = {key: list(values) for key, values in {**followed, **over}.items()}
    if EXCHANGE in axes:
        axes[EXCHANGE] = [locate_exchange(value, None) for value in axes[EXCHANGE]]
    _check_names(axes)
    base = scenario.model_copy(update={"sweep": {}})
    names = _names([key for key in axes if key != "seed"])
    _check_label(options.label, {*names.values(), "seed"})
    combinations = [sort_outermost_first(values) for values in grid(axes, options.zip)]
    check_seeds(options.seeds, len(combinations), "seed" in axes)
    if "seed" not in axes:
        drawn = range(base.seed, base.seed + options.seeds)
        combinations = [{**values, "seed": n} for values in combinations for n in drawn]
    numbers = frozenset(
        name
        for key, name in names.items()
        if all(isinstance(of, int | float) and not isinstance(of, bool) for of in axes[key])
    )
    several = {combination_name(_without_seed(values)) for values in combinations}
    ranges = ranges_of(options.interval, options.ranges, [base], len(several))
    sweep = Sweep(base, combinations, names, numbers, options.label, ranges)
    document, files = serialise_scenarios([scenario.model_copy(update={"sweep": axes})])
    about = [{"name": n, "key": key, "numbers": n in numbers} for key, n in names.items()]
    given = {name: getattr(options, name) for name in ("zip", "seeds", "label", "measure")}
    asked = {"axes": about, **given, **interval_request(ranges)}
    return Request(scenario.name, sweep, {"scenario.yaml": document}, asked, files)


def _base(options: SweepOptions) -> Scenario:
    """The scenario; what it lacks for itself are the first values of keys of ``over``."""
    try:
        return scenario_of(options.scenario, options.set)
    except InputError as error:
        wrong = {problem.path for problem in error.problems}
        missing = {key: values[0] for key, values in options.over.items() if key in wrong}
        if not missing:
            raise
        return scenario_of(options.scenario, {**options.set, **missing})


def _names(keys: Sequence[str]) -> dict[str, str]:
    """The column of each key: its last part, or all of it where two share that."""
    last = [key.rsplit(".", 1)[-1] for key in keys]
    return {
        key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)
    }


def _check_names(axes: Mapping[str, Sequence[Any]]) -> None:
    """See that different values have different names, so that no row is lost to another."""
    problems = []
    for key, values in axes.items():
        named: dict[str, Any] = {}
        for number, value in enumerate(values, 1):
            name = combination_name({key: value})
            if named.setdefault(name, value) != value:
                rule = f"value {number} has the name of another one, '{name}'"
                remedy = "Write records as text, such as importance_pair:exchange_fraction=0.1."
                problems.append(Problem(key, rule, str(value), remedy))
    if problems:
        raise InputError(problems, "sweep")


def _check_label(label: str, known: set[str]) -> None:
    try:
        label.format(**dict.fromkeys(known, 0))
    except (KeyError, ValueError, IndexError, AttributeError):
        rule = f"may name only {', '.join(sorted(known))} in braces"
        refuse("--label", rule, repr(label), "For example 'M={world_size}'.", COMMAND_LINE)


# -------------------------------------------------------------------------------- the combinations


def _cells(sweep: Sweep, outcomes: Outcomes) -> dict[str, Cell]:
    """A run of each combination, by its name. Thousands of scenarios take long to check, so each
    value is checked once, by itself, where all of them are valid by themselves. A combination that
    is not valid then fails where it is simulated, and the others go on. An InputError if a value is
    valid neither by itself nor in a combination."""
    base = sweep.base.to_dict()
    values = _resolved(sweep)
    cells: dict[str, RunCell] = {}
    problems: list[Problem] = []
    for number, combination in enumerate(sweep.combinations):
        if problems and number >= MOST_TRIED:
            break
        try:
            document = _document(sweep, base, values, combination)
        except InputError as error:
            axes = _axes(sweep)
            problems += [add_axis_values(problem, axes, combination) for problem in error.problems]
            continue
        name = combination_name(combination)
        cells[name] = RunCell(document, name, with_tables=False)
    if problems:
        raise InputError(list(dict.fromkeys(problems)), sweep.base.name)
    warn_of_partial_batches({name: batch_sizes(cell.document) for name, cell in cells.items()})
    return {**cells}


def _axes(sweep: Sweep) -> dict[str, list[Any]]:
    """The values of each key, seeds too, in the order in which they first occur."""
    out: dict[str, dict[str, Any]] = {}
    for combination in sweep.combinations:
        for key, value in combination.items():
            out.setdefault(key, {}).setdefault(repr(value), value)
    return {key: list(values.values()) for key, values in out.items()}


def _document(
    sweep: Sweep,
    base: dict[str, Any],
    values: Mapping[tuple[str, str], Any] | None,
    combination: Mapping[str, Any],
) -> dict[str, Any]:
    if values is None:
        return sweep.base.with_values(combination).to_dict()
    document = base
    for key, value in combination.items():
        document = _with(document, key.split("."), values[key, repr(value)])
    return document


def _resolved(sweep: Sweep) -> dict[tuple[str, str], Any] | None:
    """Every value of every key as the resolved scenario has it; None if one is not valid by itself,
    or if what a value changes elsewhere is not known."""
    if sweep.base.calibrated:
        return None
    out: dict[tuple[str, str], Any] = {}
    for combination in sweep.combinations:
        for key, value in combination.items():
            if (key, repr(value)) in out:
                continue
            if key == "seed" and type(value) is int and value >= 0:
                out[key, repr(value)] = value  # there may be very many
                continue
            try:
                alone = sweep.base.with_values({key: value})
            except InputError:
                return None
            check_run(alone)
            found: Any = alone.to_dict()
            for part in key.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            out[key, repr(value)] = found
    ends = {repr(c): c for c in (sweep.combinations[0], sweep.combinations[-1])}.values()
    base = sweep.base.to_dict()
    whole = all(_document(sweep, base, out, c) == sweep.base.with_values(c).to_dict() for c in ends)
    return out if whole else None


def _with(document: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy with another value; what is not on the way to it is shared."""
    first, *rest = path
    return {**document, first: _with(document.get(first) or {}, rest, value) if rest else value}


# --------------------------------------------------------------------------------------- the tables


def _collect(sweep: Sweep, outcomes: Outcomes) -> Tables:
    combinations = {combination_name(values): values for values in sweep.combinations}
    done = {name: outcome for name, outcome in outcomes.items() if not outcome.lost}
    epochs, breakdown = (
        concatenate_rows([({"run": name}, of) for name, of in done.items()], table)
        for table in ("epochs", "breakdown")
    )
    first = {name: _first(sweep, combinations[name], of) for name, of in done.items()}
    leading = pd.DataFrame([first[name] for name in epochs["run"]])
    table = measures(epochs, breakdown).drop(columns=leading.columns, errors="ignore")
    order = [*leading.columns, *(name for name in SWEEP.columns if name not in leading)]
    return {"sweep": pd.concat([leading, table], axis=1)[order]}


def _first(sweep: Sweep, combination: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    axes = {
        name: combination[key] if name in sweep.numbers else short_text(combination[key])
        for key, name in sweep.axes.items()
    }
    seed = combination["seed"]
    # the name of a run says some of its values already
    others = combination_name(axes, {"world_size", "exchange_fraction", "exchange"})
    own = f"{outcome.values['label']} {others}".rstrip()
    return {"label": sweep.label.format(**axes, seed=seed) or own, **axes, "seed": seed}


def _without_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seed"}


def _facts(sweep: Sweep, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """The intervals, if there are any, of the last epochs by label: means over seeds."""
    if sweep.ranges is None:
        return {}
    table = tables["sweep"]
    last = table[table["epoch"] == table.groupby("label")["epoch"].transform("max")]
    seconds = last.groupby("label", sort=False)["epoch_s"].mean()
    predicted = {}
    for values in sweep.combinations:
        outcome = outcomes[combination_name(values)]
        label = "" if outcome.lost else _first(sweep, values, outcome)["label"]
        if label and label not in predicted:
            single = sweep.base.with_values(_without_seed(values))
            predicted[label] = single, float(seconds[label])
    return {"intervals": interval_facts(predicted, sweep.ranges, share_teller("intervals"))}


def _summary(result: Result) -> pd.DataFrame:
    return summary(result.tables["sweep"], ["label", *(of["name"] for of in result.meta["axes"])])


def _figures(result: Result) -> dict[str, Chart]:
    axes, measure = result.meta["axes"], result.meta["measure"]
    samples = samples_of(result.tables["sweep"])
    rows, known = last_summary(result), intervals.interval_ends(result.meta.get("intervals"))
    if measure == WHOLE_EPOCH:
        rows = intervals.add_interval_ends(rows[rows["measure"] == measure], known, "label")
    return {"sweep": sweep_chart(rows, axes, measure, samples=samples)}


def _compared(result: Result) -> Tables:
    """Seconds of every epoch and under each label, means over the seeds; by label where that tells
    the rows apart, and by the axes too where it does not."""
    names = {"epoch_s": WHOLE, **{label_column(label): label for label in LABELS}}
    table = result.derived["summary"].rename(columns={"label": "run"})
    table = table[table["measure"].isin(names)].replace({"measure": names})
    keys = ["run", "epoch", "measure"]
    if table.duplicated(keys).any():
        keys[1:1] = [axis["name"] for axis in result.meta["axes"]]
    table = table.assign(half=table["high"] - table["mean"])[[*keys, "mean", "half"]]
    table = table.rename(columns={"measure": "label", "mean": "seconds"})
    rates = lengths(result.tables["sweep"].rename(columns={"label": "run"}), keys[:-1])
    return {"rates": rates, "seconds": table.set_index([*keys[:-1], "label"])}


class SweepMeta(TypedDict):
    """Facts on a sweep in ``meta.json``."""

    axes: list[SweptAxis]
    zip: bool
    seeds: int
    label: str
    measure: str
    lost: dict[str, str]
    interval: NotRequired[bool]
    ranges: NotRequired[dict[str, list[float]]]
    intervals: NotRequired[intervals.Intervals]


def repeat(folder: Path, meta: Meta) -> Request[Sweep]:
    """Return the request of a result, from its folder."""
    asked = {name: meta[name] for name in ("zip", "seeds", "label", "measure")}
    asked |= repeat_options(meta)
    return request(SweepOptions(scenario=folder / "scenario.yaml", **asked))


STUDY: Study[Sweep] = Study(
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
    compared=_compared,
    facts=_facts,
    says=SweepMeta,
    faults=lambda result: measure_problems(result.meta["measure"], "meta.json: measure"),
    again=f"{__name__}:repeat",
    partial=True,
)
