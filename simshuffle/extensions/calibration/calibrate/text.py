"""A calibration as text: its tables on a terminal, and the YAML fragments that
scenarios include.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from simshuffle.extensions.calibration.calibrate.findings import Parameter
from simshuffle.job.scenario.calibrated import QUANTITIES, Calibrated
from simshuffle.job.scenario.calibrated import format_quantity as format_span_end
from simshuffle.report.console import new_table
from simshuffle.spec.library import write_yaml
from simshuffle.spec.units import format_quantity, readable
from simshuffle.version import __version__

FRAGMENT = "calibration.yaml"
MODELS_FOLDER = "models"
"""Folder of the fragments that hold for one model each, where several were measured."""


def fragments(parameters: Sequence[Parameter]) -> dict[str, str]:
    """Return the text of every fragment by its path in the folder.

    `FRAGMENT` holds all parameters. Where several models have parameters of their own,
    these are left out of `FRAGMENT` and stand in MODELS_FOLDER/MODEL.yaml.
    """
    models = sorted(
        {
            parameter.model
            for parameter in parameters
            if parameter.usable and parameter.model
        }
    )
    if len(models) < 2:
        return {FRAGMENT: fragment_text(parameters)}
    text_of_path = {
        FRAGMENT: fragment_text(
            [
                parameter
                for parameter in parameters
                if not (parameter.usable and parameter.model)
            ]
        )
    }
    for model in models:
        model_parameters = [
            parameter
            for parameter in parameters
            if parameter.usable and parameter.model == model
        ]
        text_of_path[f"{MODELS_FOLDER}/{model}.yaml"] = fragment_text(model_parameters)
    return text_of_path


def fragment_text(parameters: Sequence[Parameter]) -> str:
    """Return a fragment as YAML: ``values`` by dotted key, and facts about each in
    ``calibrated``.

    Values have five significant digits. Parameters that no scenario has a key for are
    comments.
    """
    usable = [parameter for parameter in parameters if parameter.usable]
    document = {
        "values": {
            parameter.key: parameter.value_in_scenario(parameter.value)
            for parameter in usable
        },
        "calibrated": [
            record(parameter).model_dump(
                mode="json", exclude_none=True, exclude_defaults=True
            )
            | {"confidence": 0.95}
            for parameter in usable
        ],
    }
    comments = [
        f"#   {parameter.key}: {readable_value(parameter, parameter.value)}"
        + (f" ({parameter.note})" if parameter.note else "")
        for parameter in parameters
        if not parameter.usable
    ]
    if comments:
        comments.insert(0, "# Measured too, but a scenario has no key for it:")
    title = (
        f"# Written by simshuffle {__version__} calibrate. Name it under 'include:' in a scenario"
        " (docs/calibrate.md)."
    )
    body = write_yaml(document)
    return "\n".join([title, *comments, body])


def record(parameter: Parameter) -> Calibrated:
    """Return the entry of ``calibrated`` in a scenario for a parameter.

    The residual has three digits; None if it is nan.
    """
    return Calibrated(
        key=parameter.key,
        value=parameter.value_in_scenario(parameter.value),
        low=parameter.value_in_scenario(parameter.low),
        high=parameter.value_in_scenario(parameter.high),
        over={
            name: [span_end_in_scenario(name, end) for end in span]
            for name, span in parameter.over.items()
        },
        residual=None
        if math.isnan(parameter.residual)
        else float(f"{parameter.residual:.3g}"),
        source=parameter.source,
        model=parameter.model,
        note=parameter.note,
    )


def span_end_in_scenario(name: str, value: float) -> Any:
    """Return an end of a span that a parameter was measured over, as a scenario writes
    it: text with a unit, or a number, as int if it is whole.

    Args:
        name: key of `QUANTITIES`.
        value: SI value of the end.
    """
    if dimension := QUANTITIES[name]:
        return format_quantity(value, dimension)
    return int(value) if value.is_integer() else value


def readable_value(parameter: Parameter, value: Any) -> str:
    """Return a value for people, with its unit and four digits; of a curve the values
    of its first and last point. ``value`` must not be None.
    """
    if isinstance(value, tuple):
        return " … ".join(
            readable_value(parameter, point_value)
            for point_value in (value[0][1], value[-1][1])
        )
    return (
        readable(value, parameter.dimension, 4)
        if parameter.dimension
        else f"{value:.4g}"
    )


def parts(
    parameters: Sequence[Parameter], notes: Sequence[str]
) -> Iterator[Table | str]:
    """Yield the tables of parameters for a scenario, and then a line on how many notes
    -v adds, if any.
    """
    yield from scenario_tables(parameters, with_spans=False)
    if displayed_notes := list_notes(parameters, notes):
        yield f"{len(displayed_notes)} notes on what was left out or assumed: -v prints them."


def details(
    parameters: Sequence[Parameter], notes: Sequence[str]
) -> Iterator[Table | str]:
    """Yield all tables with the spans that parameters were measured over, and all
    notes.

    They include parameters that no scenario has a key for.
    """
    yield from scenario_tables(parameters, with_spans=True)
    if other_parameters := [
        parameter for parameter in parameters if not parameter.usable
    ]:
        yield parameters_table(
            "Measured too; a scenario has no key for it", other_parameters
        )
    yield from list_notes(parameters, notes)


def list_notes(parameters: Sequence[Parameter], notes: Sequence[str]) -> list[str]:
    """Return the notes on parameters of a scenario and then ``notes``, each once, with
    '- ' before it. Notes on parameters without a key are left out.
    """
    parameter_notes = [
        f"{parameter.key}: {parameter.note}"
        for parameter in parameters
        if parameter.usable and parameter.note
    ]
    return [f"- {note}" for note in dict.fromkeys([*parameter_notes, *notes])]


def scenario_tables(
    parameters: Sequence[Parameter], *, with_spans: bool
) -> Iterator[Table]:
    """Yield a table for each model of the parameters for a scenario, by the model's
    name; the first is that of parameters for all models. Without parameters there is no
    table.
    """
    usable = [parameter for parameter in parameters if parameter.usable]
    for model in sorted({parameter.model for parameter in usable}):
        title = f"Parameters for a scenario{f' with {model}' if model else ''}"
        yield parameters_table(
            title,
            [parameter for parameter in usable if parameter.model == model],
            with_spans=with_spans,
        )


def parameters_table(
    title: str, parameters: list[Parameter], *, with_spans: bool = True
) -> Table:
    """Return a table with a row for each parameter: value, interval of 95 %, and mean
    relative error in percent ('-' if not known). ``with_spans`` adds what it was
    measured over.

    The interval of a curve reads 'see the file'. Without an interval it reads 'too few
    points', or '-' for a value that no row was fitted to.
    """
    table = new_table(title)
    table.add_column(
        "parameter", no_wrap=all(" " not in parameter.key for parameter in parameters)
    )
    for name in ("value", "95 % interval"):
        table.add_column(name, justify="right")
    if with_spans:
        table.add_column("measured over")
    table.add_column("error", justify="right", no_wrap=True)
    for parameter in parameters:
        if parameter.low is None:
            interval = "too few points" if parameter.rows else "-"
        elif isinstance(parameter.value, tuple):
            interval = "see the file"
        else:
            low = readable_value(parameter, parameter.low)
            interval = f"{low} to {readable_value(parameter, parameter.high)}"
        spans = ", ".join(
            format_span(name, *span) for name, span in parameter.over.items()
        )
        error = "-" if math.isnan(parameter.residual) else f"{parameter.residual:.1%}"
        table.add_row(
            parameter.key,
            readable_value(parameter, parameter.value),
            interval,
            *([spans] if with_spans else []),
            error,
        )
    return table


def format_span(name: str, low: float, high: float) -> str:
    """Return a quantity and the span that it had in the measurements, for people, such
    as 'world size 2 to 64'; one value if both ends have equal texts.
    """
    end_texts = dict.fromkeys(format_span_end(name, end) for end in (low, high))
    return f"{name.replace('_', ' ')} {' to '.join(end_texts)}"
