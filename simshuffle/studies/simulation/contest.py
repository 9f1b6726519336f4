"""Warm epochs of runs, side by side at an equal number of ranks and with equal swept
inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simshuffle.errors import SimshuffleError
from simshuffle.report.names import without_schedule
from simshuffle.spec.library import parse_documents
from simshuffle.spec.overrides import short_text
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.studies.simulation.tables import last_epochs
from simshuffle.study.study import Result

KEYS_IN_NAME = ("world_size", "workload.exchange", "seed")
"""Swept keys that the name of a run says in words of its own."""
FRACTION = "exchange_fraction"
"""The swept key that names of runs say as in 'partial-0.1'."""
TIE_SHARE = 0.005
"""Share of an epoch by which runs without an interval may differ and still tie (chosen:
half of the time tolerance of 1 % that ``new`` writes).
"""
WIDE_INTERVALS = 0.05
"""Share of an epoch that the intervals of two runs may span for the runs to tie
(chosen). Runs within wider intervals are not told apart.
"""
CLOSE_SHARE = 0.01
"""Share of the fastest epoch by which another is longer at most, to be called close to
it.
"""

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class SweptInput:
    """A swept key other than ranks, exchange and seed, with its values."""

    name: str  # last part of the key, as in the names of runs
    # number of each value (SI units), by its text in the names of runs; None if it is none
    number_of: Mapping[str, float | None]

    @property
    def is_number(self) -> bool:
        """Return true if all values are different numbers, and there are two or more."""
        numbers = set(self.number_of.values())
        return None not in numbers and len(numbers) == len(self.number_of) > 1


@dataclass(frozen=True)
class Scale:
    """Runs at one number of ranks, and one value of each swept number but ``across``."""

    title: str  # such as '160 ranks', or '160 ranks, local batch size 32'
    # a row for each run, in the order of ``across``, then of the result: run, epoch, name (which
    # tells competitors of a scale apart, and is the same at all values of ``across``), epoch_s and
    # half (s for as many samples as the longest epoch has; half its interval, 0 for none),
    # samples_per_s, strategy, exchange_fraction, and with ``across`` x and x_text, its values: the
    # number, which every run has, and the text
    rows: pd.DataFrame
    across: str = ""  # the swept number within the scale, in words; '' for none
    same_samples: bool = True  # true if all epochs have as many samples

    @property
    def names(self) -> list[str]:
        """Return the names of the competitors, each once, in the order of the rows."""
        return list(dict.fromkeys(self.rows["name"]))


def read_quantity(text: str) -> float | None:
    """Return the number of a value of a sweep, in SI units; None if it is none.

    The first of `Dimension` counts whose units the text has, else a plain number.
    """
    for dimension in Dimension:
        try:
            return parse_quantity(text, dimension)
        except UnitError:
            continue
    try:
        return float(text)
    except ValueError:
        return None


def inputs_of_run(result: Result) -> list[SweptInput]:
    """Return the swept inputs of a result of ``run``, from its stored scenarios.

    Ranks, exchange and seed are left out; [] if the scenarios cannot be read. Keys with
    the same last part are one input with the values of all.
    """
    try:
        documents = parse_documents(
            result.documents.get("scenario.yaml", "{}"), "scenario.yaml"
        )
    except SimshuffleError:
        return []
    numbers_by_name: dict[str, dict[str, float | None]] = {}
    for document in documents:
        sweep = document.get("sweep") if isinstance(document, dict) else None
        for key, values in (sweep or {}).items():
            if key not in KEYS_IN_NAME:
                name = str(key).rsplit(".", 1)[-1]
                number_of_text = numbers_by_name.setdefault(name, {})
                number_of_text |= {
                    short_text(value): read_quantity(short_text(value))
                    for value in values
                }
    return [
        SweptInput(name, number_of_text)
        for name, number_of_text in numbers_by_name.items()
    ]


def inputs_of_sweep(result: Result) -> list[SweptInput]:
    """Return the swept inputs of a result of ``sweep``, from its axes and table.

    Ranks and exchange are left out; seeds are no axis.
    """
    table = result.tables["sweep"]
    inputs = []
    for axis in result.meta["axes"]:
        if axis["key"] not in KEYS_IN_NAME:
            name = str(axis["name"]).rsplit(".", 1)[-1]
            values = [*dict.fromkeys(table[axis["name"]])]
            if axis["numbers"]:
                texts = [_number_text(value, name, table["label"]) for value in values]
                number_of: dict[str, float | None] = dict(
                    zip(texts, map(float, values), strict=True)
                )
            else:
                number_of = {str(value): read_quantity(str(value)) for value in values}
            inputs.append(SweptInput(name, number_of))
    return inputs


def _number_text(value: float, name: str, labels: Iterable[str]) -> str:
    """Return a number as the labels of a sweep have it: 25000 or 25000.0; the shorter
    one if no label has it.
    """
    texts = (f"{value:.15g}", str(float(value)))
    label_texts = (
        text for text in texts if any(_has_value(label, name, text) for label in labels)
    )
    return next(label_texts, texts[0])


def _has_value(run: str, name: str, text: str) -> bool:
    """Return true if the name of a run gives the input ``name`` the value ``text``."""
    return f" {name}={text} " in f" {run} "


def table_by_run(result: Result) -> pd.DataFrame:
    """Return the table of a result of ``sweep`` with the name of each run in the column
    ``run``, in place of ``label``.

    A label of the user's own need not say the swept values. Then the name is made of
    the exchange or strategy, the swept values, and the ranks.
    """
    table = result.tables["sweep"]
    axes = result.meta["axes"]
    if not result.meta["label"]:
        return table.rename(columns={"label": "run"})
    names = []
    for row in table.to_dict("records"):
        words = [
            str(row[axis["name"]]) for axis in axes if axis["key"] == KEYS_IN_NAME[1]
        ]
        words = words or [str(row["strategy"])]
        for axis in axes:
            if axis["key"] not in KEYS_IN_NAME:
                value = row[axis["name"]]
                text = f"{value:.15g}" if axis["numbers"] else str(value)
                words.append(f"{str(axis['name']).rsplit('.', 1)[-1]}={text}")
        names.append(f"{' '.join(words)} @{row['world_size']}")
    return table.drop(columns="label").assign(run=names)


def warm_epochs(
    epochs: pd.DataFrame, half_intervals: pd.Series[float] | None
) -> pd.DataFrame:
    """Return the last epoch of each run, with half its interval (s) as column ``half``.

    Runs are texts; rows are in the order in which runs first occur in ``epochs``.
    ``half`` is 0 where unknown.

    Args:
        epochs: columns `EPOCH_COLUMNS`, means over seeds.
        half_intervals: half the interval of an epoch (s), by run and epoch; None
            without intervals.
    """
    runs = dict.fromkeys(epochs["run"].astype(str))
    index_of_run = {run: index for index, run in enumerate(runs)}
    rows = last_epochs(epochs)
    rows = rows.sort_values("run", key=lambda run: run.map(index_of_run), kind="stable")
    run_epochs = pd.MultiIndex.from_frame(rows[["run", "epoch"]])
    if half_intervals is None:
        return rows.assign(half=0.0).reset_index(drop=True)
    half_of_runs = half_intervals.reindex(run_epochs).fillna(0.0).to_numpy()
    return rows.assign(half=half_of_runs).reset_index(drop=True)


def scales_of(rows: pd.DataFrame, inputs: Sequence[SweptInput]) -> list[Scale]:
    """Group runs that are compared with each other, smallest scale first.

    Numbers are conditions, words tell competitors apart. The swept number with the most
    values is ``across``: its values are compared within a scale. Where no group has two
    of its values, there is no ``across``, and its values are conditions, too. A number
    with one value in ``rows`` is no condition. Runs whose name does not say a number
    form groups of their own; those without a value of ``across`` follow those with one.

    Args:
        rows: of `warm_epochs`.
        inputs: inputs that are swept beside ranks and exchange.
    """
    numbers = [swept for swept in inputs if swept.is_number]
    rows = rows.assign(name=_competitor_names(rows, numbers))
    for swept in numbers:
        texts = _value_texts(rows, swept)
        rows[f"text {swept.name}"] = texts
        rows[f"value {swept.name}"] = [
            swept.number_of.get(text, float("nan")) for text in texts
        ]
    numbers = [swept for swept in numbers if rows[f"value {swept.name}"].nunique() > 1]

    across = max(numbers, key=lambda swept: len(swept.number_of), default=None)
    keys = [
        "world_size",
        *(f"value {swept.name}" for swept in numbers if swept is not across),
    ]
    groups = [group for _, group in rows.groupby(keys, sort=True, dropna=False)]
    if across and all(group[f"value {across.name}"].nunique() < 2 for group in groups):
        keys, across = (
            [*keys, f"value {across.name}"],
            None,
        )  # values that are taken together
    scales = []
    for _, group in rows.groupby(keys, sort=True, dropna=False):
        if across is None:
            scales.append(_build_scale(group, keys[1:], None))
            continue
        has_value = group[f"value {across.name}"].notna()
        parts = ((group[has_value], across), (group[~has_value], None))
        scales += [
            _build_scale(part, keys[1:], swept)
            for part, swept in parts
            if not part.empty
        ]
    return scales


def _build_scale(
    group: pd.DataFrame, keys: Sequence[str], across: SweptInput | None
) -> Scale:
    """Build the scale of a group of runs.

    Epochs are lengthened to as many samples as the longest one has. With ``across``,
    rows have its number ``x`` and text ``x_text``, and are in its order.

    Args:
        group: the runs of the group, rows of `warm_epochs` with the columns 'text NAME'
            and 'value NAME' of each swept number.
        keys: the columns 'value NAME' of the swept numbers that are equal in the group.
        across: the swept number whose values are compared within the group; None for
            none.
    """
    first_row = group.iloc[0]
    ranks = int(first_row["world_size"])
    texts = [key.removeprefix("value ") for key in keys]
    value_texts = [
        f"{_speak_name(name)} {first_row[f'text {name}']}"
        for name in texts
        if first_row[f"text {name}"]
    ]
    title = ", ".join([f"{ranks:,} rank{'s' * (ranks != 1)}", *value_texts])

    # seconds for as many samples as the longest epoch has
    samples = (group["samples_per_s"] * group["epoch_s"]).round()
    factors = samples.max() / samples
    group = group.assign(
        epoch_s=group["epoch_s"] * factors, half=group["half"] * factors
    )
    if across:
        x = group[f"value {across.name}"]
        x_text = group[f"text {across.name}"]
        group = group.assign(x=x, x_text=x_text).sort_values("x", kind="stable")
    group = group.reset_index(drop=True)
    across_name = _speak_name(across.name) if across else ""
    return Scale(title, group, across_name, samples.nunique() == 1)


def _speak_name(name: str) -> str:
    """Return the name of a swept input in words: 'open rate' of 'open_rate'."""
    return name.replace("_", " ")


def _value_texts(rows: pd.DataFrame, swept: SweptInput) -> list[str]:
    """Return (rows,) the value of an input in each run, as text.

    It is '' where the name of the run has none. The exchanged fraction is read from its
    column, not from the name.
    """
    if swept.name == FRACTION:
        text_of = {number: text for text, number in swept.number_of.items()}
        return [text_of.get(fraction, "") for fraction in rows[FRACTION]]
    return [_text_in_name(run, swept) for run in rows["run"]]


def _text_in_name(run: str, swept: SweptInput) -> str:
    """Return the value of an input in the name of a run, as text.

    It is '' where the name has none, and the longest of several.
    """
    texts = [text for text in swept.number_of if _has_value(run, swept.name, text)]
    return max(texts, key=len, default="")


def _competitor_names(rows: pd.DataFrame, numbers: Sequence[SweptInput]) -> list[str]:
    """Return (rows,) the names that tell the runs of a scale apart: without ranks,
    swept numbers, and a schedule that all share.

    A name without any other words stays the run's. With a swept exchange_fraction
    'partial-0.1' becomes 'partial'.
    """
    names = []
    for run, ranks in zip(rows["run"], rows["world_size"], strict=True):
        name = f" {run} ".replace(f" @{ranks} ", " ")
        for swept in numbers:
            text = _text_in_name(run, swept)
            name = name.replace(f" {swept.name}={text} ", " ") if text else name
        names.append(" ".join(name.split()) or run)
    if any(swept.name == FRACTION for swept in numbers):
        names = [re.sub(r"^([a-z_-]+?)-[\d.]+(?= |$)", r"\1", name) for name in names]
    return without_schedule(names)


# --------------------------------------------------------------------------------- ties and losses


def overlaps_widely(row: Row, fastest: Row) -> bool:
    """Return true if the intervals of two runs overlap, but are too wide for a tie.

    Their half intervals add up to more than `WIDE_INTERVALS` of the fastest epoch.
    False if both rows are of one run.
    """
    if row["run"] == fastest["run"]:
        return False
    half_sum = row["half"] + fastest["half"]
    return bool(
        row["epoch_s"] - fastest["epoch_s"] <= half_sum
        and half_sum > WIDE_INTERVALS * fastest["epoch_s"]
    )


def ties(row: Row, fastest: Row) -> bool:
    """Return true if a run takes as long as the fastest.

    A tie is a gap of at most the sum of half intervals, or of `TIE_SHARE` of the fastest
    epoch, unless the intervals are too wide (`overlaps_widely`). The fastest run ties
    with itself.
    """
    gap = row["epoch_s"] - fastest["epoch_s"]
    half_sum = row["half"] + fastest["half"]
    is_within = bool(gap <= max(half_sum, TIE_SHARE * fastest["epoch_s"]))
    return is_within and not overlaps_widely(row, fastest)


def is_close(row: Row, fastest: Row) -> bool:
    """Return true if a run ties with the fastest, or is at most `CLOSE_SHARE` longer."""
    return ties(row, fastest) or bool(
        row["epoch_s"] <= (1 + CLOSE_SHARE) * fastest["epoch_s"]
    )
