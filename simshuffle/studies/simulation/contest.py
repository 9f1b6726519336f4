"""Warm epochs of runs, side by side at the same number of ranks and the same swept inputs."""

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

IN_NAME = ("world_size", "workload.exchange", "seed")
"""Swept keys that the name of a run says in words of its own."""
FRACTION = "exchange_fraction"
"""The swept key that names of runs say as in 'partial-0.1'."""
ALIKE = 0.005
"""Share of an epoch by which runs without an interval may differ and still tie (chosen: half of
the time tolerance of 1 % that ``new`` writes)."""
WIDE = 0.05
"""Share of an epoch that the intervals of two runs may span for the runs to tie (chosen). Runs
within wider intervals are not told apart."""
CLOSE = 0.01
"""Share of the fastest epoch by which another is longer at most, to be called close to it."""

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class SweptInput:
    """A swept key other than ranks, exchange and seed."""

    name: str  # last part of the key, as in the names of runs
    number_of: Mapping[str, float | None]  # by the text of each value; None for what is no number

    @property
    def is_number(self) -> bool:
        """Whether all its values are different numbers, and there are several."""
        numbers = set(self.number_of.values())
        return None not in numbers and len(numbers) == len(self.number_of) > 1


@dataclass(frozen=True)
class Scale:
    """Runs at one number of ranks, and one value of each swept number but ``across``."""

    title: str  # such as '160 ranks', or '160 ranks, local_batch_size 32'
    # one row each, in the order of the result: run, epoch, name (what tells runs of a scale apart),
    # epoch_s and half (s, of as many samples as the longest epoch has; half its interval),
    # samples_per_s, strategy, exchange_fraction, and of ``across`` x and x_text
    rows: pd.DataFrame
    across: str = ""  # the swept number within the scale; '' for none
    same_samples: bool = True  # whether all epochs have as many samples

    @property
    def names(self) -> list[str]:
        """The names of its runs, in the order of the result."""
        return list(dict.fromkeys(self.rows["name"]))


def read_quantity(text: str) -> float | None:
    """Return the number that a value of a sweep stands for, in SI units; None if it is none."""
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
    """Return the swept inputs of a result of ``run``, from its stored scenarios."""
    try:
        stored = parse_documents(result.documents.get("scenario.yaml", "{}"), "scenario.yaml")
    except SimshuffleError:
        return []
    texts: dict[str, dict[str, float | None]] = {}
    for document in stored:
        sweep = document.get("sweep") if isinstance(document, dict) else None
        for key, values in (sweep or {}).items():
            if key not in IN_NAME:
                name = str(key).rsplit(".", 1)[-1]
                known = texts.setdefault(name, {})
                known |= {short_text(value): read_quantity(short_text(value)) for value in values}
    return [SweptInput(name, number_of) for name, number_of in texts.items()]


def inputs_of_sweep(result: Result) -> list[SweptInput]:
    """Return the swept inputs of a result of ``sweep``, from its axes and table."""
    table, inputs = result.tables["sweep"], []
    for axis in result.meta["axes"]:
        if axis["key"] not in IN_NAME:
            name = str(axis["name"]).rsplit(".", 1)[-1]
            values = [*dict.fromkeys(table[axis["name"]])]
            if axis["numbers"]:
                texts = [_written(value, name, table["label"]) for value in values]
                number_of: dict[str, float | None] = dict(
                    zip(texts, map(float, values), strict=True)
                )
            else:
                number_of = {str(value): read_quantity(str(value)) for value in values}
            inputs.append(SweptInput(name, number_of))
    return inputs


def _written(value: float, name: str, labels: Iterable[str]) -> str:
    """A number as the labels of a sweep have it: 25000 or 25000.0."""
    texts = (f"{value:.15g}", str(float(value)))
    return next((text for text in texts if any(_says(of, name, text) for of in labels)), texts[0])


def _says(run: str, name: str, text: str) -> bool:
    """Whether the name of a run says that an input has a value."""
    return f" {name}={text} " in f" {run} "


def named_runs(result: Result) -> pd.DataFrame:
    """Return the table of a result of ``sweep`` with the name of each run in the column ``run``.

    A label of the user's own need not say the swept values: then the name is made of them.
    """
    table, axes = result.tables["sweep"], result.meta["axes"]
    if not result.meta["label"]:
        return table.rename(columns={"label": "run"})
    names = []
    for row in table.to_dict("records"):
        words = [str(row[axis["name"]]) for axis in axes if axis["key"] == IN_NAME[1]]
        words = words or [str(row["strategy"])]
        for axis in axes:
            if axis["key"] not in IN_NAME:
                value = row[axis["name"]]
                text = f"{value:.15g}" if axis["numbers"] else str(value)
                words.append(f"{str(axis['name']).rsplit('.', 1)[-1]}={text}")
        names.append(f"{' '.join(words)} @{row['world_size']}")
    return table.drop(columns="label").assign(run=names)


def warm_epochs(epochs: pd.DataFrame, half: pd.Series[float] | None) -> pd.DataFrame:
    """Return the last epoch of each run, with half its interval (s).

    Args:
        epochs: columns `EPOCH_COLUMNS`, means over seeds.
        half: half the interval of an epoch (s), by run and epoch; None without intervals.
    """
    order = {run: place for place, run in enumerate(dict.fromkeys(epochs["run"].astype(str)))}
    rows = last_epochs(epochs).sort_values("run", key=lambda run: run.map(order), kind="stable")
    places = pd.MultiIndex.from_frame(rows[["run", "epoch"]])
    halves = 0.0 if half is None else half.reindex(places).fillna(0.0).to_numpy()
    return rows.assign(half=halves).reset_index(drop=True)


def scales_of(rows: pd.DataFrame, inputs: Sequence[SweptInput]) -> list[Scale]:
    """Group runs that are compared with each other, smallest scale first.

    Numbers are conditions, words tell competitors apart. The swept number with the most values is
    ``across``: its values are compared within a scale.

    Args:
        rows: of `warm_epochs`.
        inputs: that are swept beside ranks and exchange.
    """
    numbers = [each for each in inputs if each.is_number]
    rows = rows.assign(name=_names(rows, numbers))
    for each in numbers:
        texts = _texts(rows, each)
        rows[f"text {each.name}"] = texts
        rows[f"value {each.name}"] = [each.number_of.get(text, float("nan")) for text in texts]
    numbers = [each for each in numbers if rows[f"value {each.name}"].nunique() > 1]

    across = max(numbers, key=lambda each: len(each.number_of), default=None)
    keys = ["world_size", *(f"value {each.name}" for each in numbers if each is not across)]
    groups = [group for _, group in rows.groupby(keys, sort=True, dropna=False)]
    if across and all(group[f"value {across.name}"].nunique() < 2 for group in groups):
        keys, across = [*keys, f"value {across.name}"], None  # values that are taken together
    return [
        _scale(group, keys[1:], across) for _, group in rows.groupby(keys, sort=True, dropna=False)
    ]


def _scale(group: pd.DataFrame, keys: Sequence[str], across: SweptInput | None) -> Scale:
    first = group.iloc[0]
    ranks = int(first["world_size"])
    texts = [key.removeprefix("value ") for key in keys]
    more = [f"{name} {first[f'text {name}']}" for name in texts if first[f"text {name}"]]
    title = ", ".join([f"{ranks:,} rank{'s' * (ranks != 1)}", *more])

    # seconds for as many samples as the longest epoch has
    samples = (group["samples_per_s"] * group["epoch_s"]).round()
    times = samples.max() / samples
    group = group.assign(epoch_s=group["epoch_s"] * times, half=group["half"] * times)
    if across:
        x, text = group[f"value {across.name}"], group[f"text {across.name}"]
        group = group.assign(x=x, x_text=text).sort_values("x", kind="stable")
    group = group.reset_index(drop=True)
    return Scale(title, group, across.name if across else "", samples.nunique() == 1)


def _texts(rows: pd.DataFrame, swept: SweptInput) -> list[str]:
    """(rows,) the value of an input in each run, as text; '' where its name has none."""
    if swept.name == FRACTION:
        text_of = {number: text for text, number in swept.number_of.items()}
        return [text_of.get(fraction, "") for fraction in rows[FRACTION]]
    return [_text_in_name(run, swept) for run in rows["run"]]


def _text_in_name(run: str, swept: SweptInput) -> str:
    texts = [text for text in swept.number_of if _says(run, swept.name, text)]
    return max(texts, key=len, default="")


def _names(rows: pd.DataFrame, numbers: Sequence[SweptInput]) -> list[str]:
    """What tells the runs of a scale apart: their names without ranks and swept numbers."""
    names = []
    for run, ranks in zip(rows["run"], rows["world_size"], strict=True):
        name = f" {run} ".replace(f" @{ranks} ", " ")
        for each in numbers:
            text = _text_in_name(run, each)
            name = name.replace(f" {each.name}={text} ", " ") if text else name
        names.append(" ".join(name.split()) or run)
    if any(each.name == FRACTION for each in numbers):
        names = [re.sub(r"^([a-z_-]+?)-[\d.]+(?= |$)", r"\1", name) for name in names]
    return without_schedule(names)


# --------------------------------------------------------------------------------- ties and losses


def is_undecided(row: Row, first: Row) -> bool:
    """Whether the intervals of two runs overlap, and are too wide to call the runs equal."""
    if row["run"] == first["run"]:
        return False
    reach = row["half"] + first["half"]
    return bool(row["epoch_s"] - first["epoch_s"] <= reach and reach > WIDE * first["epoch_s"])


def ties(row: Row, first: Row) -> bool:
    """Whether a run takes as long as the fastest: within both intervals, or within `ALIKE`."""
    gap, reach = row["epoch_s"] - first["epoch_s"], row["half"] + first["half"]
    return bool(gap <= max(reach, ALIKE * first["epoch_s"])) and not is_undecided(row, first)


def is_close(row: Row, first: Row) -> bool:
    """Whether a run ties with the fastest, or is at most `CLOSE` longer."""
    return ties(row, first) or bool(row["epoch_s"] <= (1 + CLOSE) * first["epoch_s"])
