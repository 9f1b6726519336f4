"""The study behind ``simshuffle machine calibrate``: files are read, and every law is
fitted.

What an epoch log does not say of its models is taken from the catalog.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from simshuffle.extensions.calibration.calibrate.files import (
    MeasurementFile,
    read_files,
)
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    Parameter,
    parameters_table,
    read_parameters,
)
from simshuffle.extensions.calibration.calibrate.nccl_table import OPERATION_OF_PROGRAM
from simshuffle.extensions.calibration.calibrate.networks import find_networks
from simshuffle.extensions.calibration.calibrate.readers import READERS, read_rows
from simshuffle.extensions.calibration.calibrate.tables import (
    RESIDUALS,
    STORED,
    measurements_table,
)
from simshuffle.extensions.calibration.calibrate.text import (
    FRAGMENT,
    MODELS_FOLDER,
    fragments,
    record,
)
from simshuffle.job.scenario.calibrated import QUANTITIES
from simshuffle.job.scenario.cluster import MessagePassing
from simshuffle.spec.library import suggest_nearest
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE, own_values
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Files, Meta, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions

_CELL = "calibration"
PROGRAM_OF_OPERATION = {
    operation: program for program, operation in OPERATION_OF_PROGRAM.items()
}
"""The program of nccl-tests by its collective."""


def check_options(options: CalibrationOptions) -> None:
    """Check that the values of options are known and fit together.

    An option that is None is not checked.

    Raises:
        InputError: with all options that are not known, and --hosts above --ranks.
    """
    problems = [
        Problem(
            name,
            "is not known",
            repr(value),
            suggest_nearest(value, list(known_values)),
        )
        for name, value, known_values in (
            ("--as", options.kind, READERS),
            ("--epochs", options.epochs, ("steady", "all")),
            ("--storage", options.storage, storage.KEY_OF_STORAGE),
            ("--collective", options.collective, PROGRAM_OF_OPERATION),
        )
        if value is not None and value not in known_values
    ]
    ranks = options.ranks
    hosts = options.hosts
    if hosts is not None and ranks is not None and hosts > ranks:
        rule = f"must not exceed the {ranks} ranks"
        problems.append(Problem("--hosts", rule, str(hosts), "Correct one of the two."))
    if problems:
        raise InputError(problems, COMMAND_LINE)


@dataclass(frozen=True)
class CalibrationCell(PlainCell):
    """Measurement files, and the options of how they are read and fitted."""

    sources: tuple[MeasurementFile, ...]
    options: CalibrationOptions

    @property
    def settings(self) -> dict[str, Any]:
        """The options of reading and fitting, as ``meta.json`` keeps them.

        ``files`` is left out; ``model`` is stored as 'models', ``storage`` as 'store'.
        """
        stored_names = {"model": "models", "storage": "store"}
        return {
            stored_names.get(name, name): value
            for name, value in own_values(self.options).items()
            if name != "files"
        }

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the text of each file by its name, in hexadecimal.

        The text is decoded and cleaned, so a digest may differ from that of the bytes.
        """
        return {
            source.name: hashlib.sha256(source.text.encode()).hexdigest()
            for source in self.sources
        }

    @property
    def key(self) -> Any:
        """The value that the result depends on: digests of the files, and the options."""
        return [list(self.digests.items()), self.settings]

    @property
    def label(self) -> str:
        """The names of the files, separated by commas."""
        return ", ".join(source.name for source in self.sources)

    @property
    def parts(self) -> frozenset[str]:
        """The names of the files that a cell stores, such as parameters.parquet."""
        return frozenset(f"{name}.parquet" for name in STORED)

    def run(self, tell: Tell) -> Outcome:
        """Read the files and fit the laws; return the tables `STORED`, and the value
        'notes', a list of sentences in which the readers' notes come first.

        Raises:
            InputError: a file is wrong, nothing could be fitted, or several files
                measured one parameter.
        """
        readings = [read_rows(source, self.options.kind) for source in self.sources]
        rows = [row for reading in readings for row in reading.rows]
        measurements = measurements_table(rows)
        findings = fit_laws(measurements, self.options)
        findings.notes[:0] = [
            str(note) for reading in readings for note in reading.notes
        ]
        check_findings(findings, len(rows))
        residuals = [
            residual_rows for residual_rows in findings.residuals if len(residual_rows)
        ] or [RESIDUALS.empty()]
        tables = {
            "parameters": parameters_table(findings.parameters),
            "measurements": measurements,
            "residuals": pd.concat(residuals, ignore_index=True),
        }
        return Outcome({"notes": findings.notes}, tables)


def fit_laws(table: pd.DataFrame, options: CalibrationOptions) -> Findings:
    """Fit every law that the measurements ``table`` have rows of.

    Rows with more ranks than ``fit_up_to`` are predicted, not fitted; latency and
    bandwidth of a pair of ranks are always fitted. The latency of a message is the
    fitted one, else the default of a scenario. Iterations of models that --model does
    not name are left out.

    Raises:
        InputError: a law cannot take its rows, or `find_networks` refuses a model.
    """
    limit = options.fit_up_to
    used = (
        pd.Series(True, index=table.index) if limit is None else table["ranks"] <= limit
    )
    findings = Findings()

    def select_rows(*operations: str) -> tuple[pd.DataFrame, pd.Series]:
        """Return the measurements with ``operations``, and (rows,) whether to fit each."""
        rows = table[table["operation"].isin(operations)]
        return rows, used[rows.index]

    findings.merge(laws.fit_allreduce(*select_rows("all_reduce")))
    findings.merge(exchange.fit_all_to_all(*select_rows("all_to_all")))
    pair_findings = laws.fit_point_to_point(
        select_rows("latency")[0], select_rows("bandwidth")[0]
    )
    findings.merge(pair_findings)
    latency = MessagePassing().latency
    for parameter in pair_findings.parameters:
        if parameter.key == laws.LATENCY and isinstance(parameter.value, float):
            latency = parameter.value
    findings.merge(exchange.fit_message_cost(*select_rows("all_to_all"), latency))
    findings.merge(
        storage.fit_transfers(*select_rows("read", "write"), options.storage)
    )
    findings.merge(
        storage.fit_opens(*select_rows("file_read", "file_stat"), options.storage)
    )
    alike.note_disagreement(findings, table)
    rows, _ = select_rows("iteration")
    if len(rows):
        logged = sorted(set(rows["model"]))
        networks_by_name = find_networks(logged, options.model, options.accelerator)
        rows = rows[rows["model"].isin(list(networks_by_name))]
        findings.merge(
            training.fit_epoch_log(
                rows,
                used[rows.index],
                networks_by_name,
                options.gpus_per_host,
                options.epochs,
            )
        )
    return findings


def check_findings(findings: Findings, count: int) -> None:
    """Check that something was fitted, and no key of a scenario twice.

    Parameters of a single model may repeat.

    Raises:
        InputError: nothing was fitted to the ``count`` rows, or a key twice.
    """
    keys = [
        parameter.key
        for parameter in findings.parameters
        if parameter.usable and not parameter.model
    ]
    if repeated_keys := sorted({key for key in keys if keys.count(key) > 1}):
        rule = "several files measured the same parameter"
        remedy = "Calibrate the files one by one."
        refuse("", rule, ", ".join(repeated_keys), remedy, "calibrate")
    if not findings.parameters:
        rule = "; ".join(["nothing could be fitted", *findings.notes])
        remedy = "Give more files."
        refuse("", rule, f"{count} rows", remedy, "calibrate")


class Calibration(Result):
    """The result of a calibration: measurements, fitted parameters and residuals.

    Its tables are those of `simshuffle.extensions.calibration.calibrate.tables`.
    """

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The fitted parameters, with intervals."""
        return parameters_of_result(self)

    @property
    def measurements(self) -> pd.DataFrame:
        """The measurements that were read: columns of `MEASUREMENTS`."""
        return self.tables["measurements"]

    @property
    def residuals(self) -> pd.DataFrame:
        """Measured and fitted values: columns of `RESIDUALS`."""
        return self.tables["residuals"]

    @property
    def notes(self) -> list[str]:
        """Notes for people on what was left out or assumed."""
        return list(self.meta["notes"])

    def fragments(self) -> dict[str, str]:
        """Return the YAML text of the fragments that scenarios include, by their path
        in the folder.

        Of several models, the step times of each are a fragment in `MODELS_FOLDER`.
        """
        return fragments(self.parameters)

    def to_yaml(self) -> str:
        """Return the fragment for a scenario as YAML. Of several models, the step times
        are left out: `fragments` has them.
        """
        return self.fragments()[FRAGMENT]


def request(options: CalibrationOptions) -> Request[CalibrationCell]:
    """Return the request to fit one measurement file or several, which are read now.

    The request is named after the first file. Its facts are 'measured', the digests of
    the files, and 'settings'.

    Raises:
        InputError: a file cannot be read, two have the same name, there is none, or an
            option is not valid.
    """
    check_options(options)
    program = PROGRAM_OF_OPERATION.get(options.collective or "", "")
    files = read_files(options.files, options.ranks, options.hosts, program)
    cell = CalibrationCell(tuple(files), options)
    facts = {"measured": cell.digests, "settings": cell.settings}
    return Request(Path(cell.sources[0].name).stem, cell, {}, facts)


class CalibrationFacts(TypedDict):
    """Facts in ``meta.json`` that the printed text is built from."""

    notes: list[str]  # on what was left out or assumed
    measured: dict[str, str]  # SHA-256 of each file's text by its name


def parameters_of_result(result: Result | Outcome) -> list[Parameter]:
    """Return the fitted parameters of a result, or of the outcome of its cell."""
    return read_parameters(result.tables["parameters"])


def model_fragments(cell: CalibrationCell, outcomes: Outcomes) -> Files:
    """Return the fragments of single models, as bytes by the names of files in
    `MODELS_FOLDER`; {} unless several models were measured.
    """
    yaml_by_path = fragments(parameters_of_result(outcomes[_CELL]))
    return {
        Path(name).name: yaml_text.encode()
        for name, yaml_text in yaml_by_path.items()
        if name != FRAGMENT
    }


def as_json(result: Result) -> dict[str, Any]:
    """Return parameters and notes for JSON; quantities are text with units.

    Each of 'parameters' has the keys of `Calibrated`, 'rows' and 'in_scenario'.
    """
    parameters = [
        {
            **record(parameter).model_dump(mode="json"),
            "rows": parameter.rows,
            "in_scenario": parameter.usable,
        }
        for parameter in parameters_of_result(result)
    ]
    return {"parameters": parameters, "notes": result.meta["notes"]}


def find_faults(result: Result) -> Iterator[Problem]:
    """Yield what is wrong with a table of parameters that was read from a folder: at
    most one problem, of the first wrong row.

    Every point of a curve needs a place; intervals and ranges need both ends, or none.
    The lower end of a range must not exceed the upper end.
    """
    table = result.tables["parameters"]
    parameter_number = table["number"]
    num_points = parameter_number.map(parameter_number.value_counts())
    num_missing_ends = table[["low", "high"]].isna().sum(axis=1)
    is_wrong = table["place"].isna() & (num_points > 1)
    is_wrong |= num_missing_ends.eq(1) | (
        num_missing_ends.groupby(parameter_number).transform("nunique") > 1
    )
    for name in QUANTITIES:
        low = table[f"{name}_low"]
        high = table[f"{name}_high"]
        is_wrong |= (low > high) | (low.isna() != high.isna())
    if is_wrong.any():
        rule = "must have a place for every point of a curve, and both ends of an interval or none"
        yield Problem(
            "parameters.csv", rule, f"row {int(is_wrong.argmax()) + 1}", REMEDY
        )


def comparison_tables(result: Result) -> Tables:
    """Return the table to compare with another calibration: values, intervals and
    residuals.

    Its index is key, model and place; the place is text, '' for a single value.
    """
    parameters = result.tables["parameters"]
    place = parameters["place"].map(
        lambda number: "" if pd.isna(number) else f"{number:g}"
    )
    rows = parameters.assign(place=place).set_index(["key", "model", "place"])
    return {"parameters": rows[["value", "low", "high", "residual"]]}


def repeat(folder: Path, meta: Meta) -> Request[CalibrationCell]:
    """Refuse to repeat a calibration: its folder has digests of the files, and not the
    files.

    Raises:
        InputError: always; it names the files.
    """
    rule = (
        "must hold the measurement files, but a calibration stores only their digests"
    )
    remedy = (
        f"Calibrate {', '.join(meta['measured'])} again, and compare the two folders."
    )
    refuse("", rule, "calibration", remedy, str(folder))


STUDY: Study[CalibrationCell] = Study(
    kind="calibration",
    verb="machine calibrate",
    stages=(lambda cell, outcomes: {_CELL: cell},),
    collect=lambda cell, outcomes: outcomes[_CELL].tables,
    stored=STORED,
    texts={FRAGMENT: lambda result: fragments(parameters_of_result(result))[FRAGMENT]},
    files_in={MODELS_FOLDER: model_fragments},
    figures=lambda result: {"residuals": residuals_chart(result.tables["residuals"])},
    compared=comparison_tables,
    one_figure=True,
    parts=lambda result: text.parts(parameters_of_result(result), result.meta["notes"]),
    details=lambda result: text.details(
        parameters_of_result(result), result.meta["notes"]
    ),
    exported=lambda result: text.details(
        parameters_of_result(result), result.meta["notes"]
    ),
    as_json=as_json,
    facts=lambda cell, outcomes, tables: {"notes": outcomes[_CELL].values["notes"]},
    says=CalibrationFacts,
    faults=find_faults,
    again=f"{__name__}:repeat",
    versions=("numpy", "scipy", "pandas"),
    result=Calibration,
)
