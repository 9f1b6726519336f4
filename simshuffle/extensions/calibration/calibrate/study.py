"""The study behind ``simshuffle machine calibrate``: files are parsed, and every law is fitted to
what it tells of. What an epoch log does not say of its models is taken from the catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.calibration.calibrate import (
    alike,
    exchange,
    laws,
    storage,
    text,
    training,
)
from simshuffle.extensions.calibration.calibrate.figures import residuals_chart
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile, sources
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    Parameter,
    parameters_of,
    parameters_table,
)
from simshuffle.extensions.calibration.calibrate.nccl_table import OPERATIONS
from simshuffle.extensions.calibration.calibrate.readers import READERS, read_rows
from simshuffle.extensions.calibration.calibrate.tables import RESIDUALS, STORED, as_table
from simshuffle.extensions.calibration.calibrate.text import FRAGMENT, MODELS, fragments, record
from simshuffle.job.scenario.calibrated import QUANTITIES
from simshuffle.job.scenario.cluster import MessagePassing
from simshuffle.spec.library import CATALOG, catalog_entry, read_yaml, suggest_nearest
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE, own_values
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Files, Meta, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions

_CELL = "calibration"
PROGRAMS = {operation: program for program, operation in OPERATIONS.items()}
"""The program of nccl-tests by its collective."""


def check(options: CalibrationOptions) -> None:
    """See that the values are known and fit together.

    Raises:
        InputError: with all that do not.
    """
    problems = [
        Problem(name, "is not known", repr(value), suggest_nearest(value, list(known)))
        for name, value, known in (
            ("--as", options.kind, READERS),
            ("--epochs", options.epochs, ("steady", "all")),
            ("--storage", options.storage, storage.STORAGES),
            ("--collective", options.collective, PROGRAMS),
        )
        if value is not None and value not in known
    ]
    ranks, hosts = options.ranks, options.hosts
    if hosts is not None and ranks is not None and hosts > ranks:
        rule = f"must not exceed the {ranks} ranks"
        problems.append(Problem("--hosts", rule, str(hosts), "Correct one of them."))
    if problems:
        raise InputError(problems, COMMAND_LINE)


@dataclass(frozen=True)
class CalibrationCell(PlainCell):
    """Files and how they are read and fitted."""

    sources: tuple[MeasurementFile, ...]
    options: CalibrationOptions

    @property
    def settings(self) -> dict[str, Any]:
        """How they are read and fitted, as ``meta.json`` keeps it."""
        names = {"model": "models", "storage": "store"}
        kept = {k: v for k, v in own_values(self.options).items() if k != "files"}
        return {names.get(name, name): value for name, value in kept.items()}

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the text of each file by its name."""
        return {of.name: hashlib.sha256(of.text.encode()).hexdigest() for of in self.sources}

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [list(self.digests.items()), self.settings]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return ", ".join(source.name for source in self.sources)

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset(f"{name}.parquet" for name in STORED)

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the tables `STORED`, and notes on what was left out or assumed.

        Raises:
            InputError: a file is wrong, or there is nothing to fit.
        """
        readings = [read_rows(source, self.options.kind) for source in self.sources]
        rows = [row for reading in readings for row in reading.rows]
        measurements = as_table(rows)
        found = fitted(measurements, self.options)
        found.notes[:0] = [str(note) for reading in readings for note in reading.notes]
        _check(found, len(rows))
        residuals = [of for of in found.residuals if len(of)] or [RESIDUALS.empty()]
        tables = {
            "parameters": parameters_table(found.parameters),
            "measurements": measurements,
            "residuals": pd.concat(residuals, ignore_index=True),
        }
        return Outcome({"notes": found.notes}, tables)


def fitted(table: pd.DataFrame, options: CalibrationOptions) -> Findings:
    """What the laws find in the measurements ``table``.

    Raises:
        InputError: a law cannot take its rows.
    """
    limit = options.fit_up_to
    used = pd.Series(True, index=table.index) if limit is None else table["ranks"] <= limit
    out = Findings()

    def of(*operations: str) -> tuple[pd.DataFrame, pd.Series]:
        rows = table[table["operation"].isin(operations)]
        return rows, used[rows.index]

    out.take(laws.allreduce(*of("all_reduce")))
    out.take(exchange.all_to_all(*of("all_to_all")))
    pairs = laws.point_to_point(of("latency")[0], of("bandwidth")[0])
    own = [p.value for p in pairs.parameters if p.key == laws.LATENCY]
    known = own[0] if own and isinstance(own[0], float) else MessagePassing().latency
    out.take(pairs)
    out.take(exchange.message_cost(*of("all_to_all"), known))
    out.take(storage.transfers(*of("read", "write"), options.storage))
    out.take(storage.opens(*of("file_read", "file_stat"), options.storage))
    alike.note_disagreement(out, table)
    rows, _ = of("iteration")
    if len(rows):
        logged = sorted(set(rows["model"]))
        nets = networks(logged, options.model, options.accelerator)
        rows = rows[rows["model"].isin(list(nets))]
        how = options.gpus_per_host, options.epochs
        out.take(training.training(rows, used[rows.index], nets, *how))
    return out


def _check(found: Findings, count: int) -> None:
    """See that something was fitted, and nothing twice."""
    keys = [p.key for p in found.parameters if p.usable and not p.model]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        rule, remedy = "several files measured the same parameter", "Calibrate them one by one."
        refuse("", rule, ", ".join(twice), remedy, "calibrate")
    if not found.parameters:
        rule, remedy = "; ".join(["nothing could be fitted", *found.notes]), "Give more files."
        refuse("", rule, f"{count} rows", remedy, "calibrate")


def networks(
    logged: Sequence[str], models: Sequence[str], accelerator: str | None
) -> dict[str, training.Network]:
    """The network of each model of the log that is to be fitted.

    Args:
        logged: names of the models in the log.
        models: the catalog's entries, as 'LOGGED=ENTRY' or 'ENTRY', of which the latter is for the
            model of that name, or whose name it begins with (vgg16 for vgg16_chainer), or for the
            only one. Models that are not named are left out; if none is named, all are taken.
        accelerator: key of the step times; None where an entry has one only.

    Raises:
        InputError: a model is not in the log or not in the catalog, or has no such accelerator.
    """
    wanted = _pairs(logged, models) or {name: name for name in logged}
    entries = sorted(read_yaml(CATALOG / "models.yaml")[0])
    problems = []
    for name in wanted:
        if name not in logged:
            rule, remedy = "must name a model of the log", suggest_nearest(name, list(logged))
            problems.append(Problem("--model", rule, repr(name), remedy))
    for name, entry in wanted.items():
        if entry not in entries:
            rule = f"the catalog of models has no entry for '{name}' of the log"
            remedy = f"Write --model {name}=ENTRY. {suggest_nearest(entry, entries)}"
            problems.append(Problem("--model", rule, repr(entry), remedy))
    if problems:
        raise InputError(problems, "epoch log")
    return {name: _network(entry, accelerator) for name, entry in wanted.items()}


def _pairs(logged: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for given in models:
        name, equals, entry = map(str.strip, given.partition("="))
        if not equals:
            begun = [of for of in logged if given.startswith(f"{of}_")] or logged
            name = begun[0] if len(begun) == 1 and given not in logged else given
            entry = given
        out[name] = entry
    return out


def _network(entry: str, accelerator: str | None) -> training.Network:
    model = catalog_entry("models", entry)
    known = sorted(model["accelerators"])
    if accelerator is None and len(known) > 1:
        rule = f"{entry} has step times on several accelerators"
        refuse("--accelerator", rule, ", ".join(known), "Name yours.", "epoch log")
    chosen = accelerator or known[0]
    # an accelerator that the catalog lacks is what a calibration is for; its update is then inside
    # the forward and backward pass
    times = model["accelerators"].get(chosen)
    update = parse_quantity(times["update"], Dimension.SECONDS) if times else 0.0
    gradients = parse_quantity(model["gradient_size"], Dimension.NBYTES)
    return training.Network(entry, gradients, chosen, update)


class Calibration(Result):
    """What was read and fitted; tables as in
    `simshuffle.extensions.calibration.calibrate.tables`."""

    @cached_property
    def parameters(self) -> list[Parameter]:
        """What was fitted, with intervals."""
        return _parameters(self)

    @property
    def measurements(self) -> pd.DataFrame:
        """What was read: columns of `MEASUREMENTS`."""
        return self.tables["measurements"]

    @property
    def residuals(self) -> pd.DataFrame:
        """Measured and fitted values: columns of `RESIDUALS`."""
        return self.tables["residuals"]

    @property
    def notes(self) -> list[str]:
        """What was left out or assumed, for people."""
        return list(self.meta["notes"])

    def fragments(self) -> dict[str, str]:
        """What scenarios include, by the path in the folder; see
        `simshuffle.extensions.calibration.calibrate.text.fragments`."""
        return fragments(self.parameters)

    def to_yaml(self) -> str:
        """The fragment for a scenario. Of several models, the step times are left out; see
        `fragments`."""
        return self.fragments()[FRAGMENT]


def request(options: CalibrationOptions) -> Request[CalibrationCell]:
    """What is asked: the fit of one measurement file or several.

    Raises:
        InputError: a file cannot be read, or an option is not valid.
    """
    check(options)
    program = PROGRAMS.get(options.collective or "", "")
    files = sources(options.files, options.ranks, options.hosts, program)
    cell = CalibrationCell(tuple(files), options)
    asked = {"measured": cell.digests, "settings": cell.settings}
    return Request(Path(cell.sources[0].name).stem, cell, {}, asked)


class CalibrationFacts(TypedDict):
    """What ``meta.json`` holds for texts."""

    notes: list[str]
    measured: dict[str, str]


def _parameters(of: Result | Outcome) -> list[Parameter]:
    return parameters_of(of.tables["parameters"])


def _of_models(cell: CalibrationCell, outcomes: Outcomes) -> Files:
    """The fragments of single models."""
    found = fragments(_parameters(outcomes[_CELL]))
    return {Path(name).name: of.encode() for name, of in found.items() if name != FRAGMENT}


def _json(result: Result) -> dict[str, Any]:
    """Parameters and notes; quantities as text with units."""
    found = [
        {**record(p).model_dump(mode="json"), "rows": p.rows, "in_scenario": p.usable}
        for p in _parameters(result)
    ]
    return {"parameters": found, "notes": result.meta["notes"]}


def _faults(result: Result) -> Iterator[Problem]:
    """Points without a place, and intervals and ranges with one end."""
    table = result.tables["parameters"]
    number = table["number"]
    points = number.map(number.value_counts())
    ends = table[["low", "high"]].isna().sum(axis=1)
    wrong = table["place"].isna() & (points > 1)
    wrong |= ends.eq(1) | (ends.groupby(number).transform("nunique") > 1)
    for name in QUANTITIES:
        low, high = table[f"{name}_low"], table[f"{name}_high"]
        wrong |= (low > high) | (low.isna() != high.isna())
    if wrong.any():
        rule = "must have a place for every point, and both ends of intervals and ranges or none"
        yield Problem("parameters.csv", rule, f"row {int(wrong.argmax()) + 1}", REMEDY)


def _compared(result: Result) -> Tables:
    """Every parameter with its interval, and its residual."""
    found = result.tables["parameters"]
    place = found["place"].map(lambda at: "" if pd.isna(at) else f"{at:g}")
    rows = found.assign(place=place).set_index(["key", "model", "place"])
    return {"parameters": rows[["value", "low", "high", "residual"]]}


def repeat(folder: Path, meta: Meta) -> Request[CalibrationCell]:
    """No request: the folder has digests of the files that were read, not the files.

    Raises:
        InputError: always; it names them.
    """
    rule = "must hold the files that were read, and a calibration has their digests alone"
    remedy = f"Calibrate {', '.join(meta['measured'])} again, and compare the two folders."
    refuse("", rule, "calibration", remedy, str(folder))


STUDY: Study[CalibrationCell] = Study(
    kind="calibration",
    verb="machine calibrate",
    stages=(lambda cell, outcomes: {_CELL: cell},),
    collect=lambda cell, outcomes: outcomes[_CELL].tables,
    stored=STORED,
    texts={FRAGMENT: lambda result: fragments(_parameters(result))[FRAGMENT]},
    files_in={MODELS: _of_models},
    figures=lambda result: {"residuals": residuals_chart(result.tables["residuals"])},
    compared=_compared,
    one_figure=True,
    parts=lambda result: text.parts(_parameters(result), result.meta["notes"]),
    details=lambda result: text.details(_parameters(result), result.meta["notes"]),
    exported=lambda result: text.details(_parameters(result), result.meta["notes"]),
    as_json=_json,
    facts=lambda cell, outcomes, tables: {"notes": outcomes[_CELL].values["notes"]},
    says=CalibrationFacts,
    faults=_faults,
    again=f"{__name__}:repeat",
    versions=("numpy", "scipy", "pandas"),
    result=Calibration,
)
