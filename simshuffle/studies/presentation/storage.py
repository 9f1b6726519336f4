"""Node-local storage of machines against sizes of data sets, as figure 1 of the study of partial
local shuffle (doi:10.1109/IPDPS53621.2022.00109) has it; from two files of `validation/data`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.report.chart import DASHES, Axis, Chart, Look, Mark, Panel, in_rows, ticks
from simshuffle.report.style import width
from simshuffle.report.table_io import read_csv
from simshuffle.spec.library import shipped_folder
from simshuffle.spec.units import Dimension, parse_quantity, readable
from simshuffle.studies.presentation.of_runs import Given

Q = 0.1
"""Exchanged fraction: a host has room for its shard and Q of it."""
LOOKS = {
    "whole": Look("fits whole on every host", "#4477AA"),
    "exchange": Look("fits as shards with room for Q", "#99BBDD"),
    "shards": Look("fits as shards alone", "#EE6677"),
    "set": Look("data set", "#000000", dash=DASHES[1], width=0.6),
}
LEADER = 1.35
"""How far above the first row the name of a data set begins, in rows."""
NAME_POINTS = 10.0
"""Between names of data sets."""


def machines() -> pd.DataFrame:
    """Machines with node-local storage, the largest together first, with storage_nbytes of a
    host. ``year`` is that of the source; of a page that is kept up to date, when it was read."""
    table = _read("machine_storage", "capacity", "storage_nbytes")
    whole = table["hosts"] * table["storage_nbytes"]
    return table.loc[whole.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def data_sets() -> pd.DataFrame:
    """Data sets, the smallest first, with size_nbytes."""
    found = _read("dataset_sizes", "size", "size_nbytes")
    return found.sort_values("size_nbytes", ignore_index=True)


def _read(name: str, text: str, number: str) -> pd.DataFrame:
    table = read_csv(shipped_folder("validation") / "data" / f"{name}.csv")
    return table.assign(**{number: [parse_quantity(of, Dimension.NBYTES) for of in table[text]]})


class DataSetFit(NamedTuple):
    """How a data set fits on a machine."""

    fits: str  # 'whole', '(1+Q) shards', 'shards' or 'no'
    # that shards and (1+Q) shards need at least
    hosts_for_shards: int
    hosts_with_exchange: int


def fit(size: float, hosts: int, storage: float) -> DataSetFit:
    """How ``size`` bytes fit on ``hosts`` hosts of ``storage`` bytes each: whole on every host, as
    1/N shards, or with room for the samples that arrive before those sent are removed."""
    plain, more = (max(1, math.ceil(of / storage)) for of in (size, (1 + Q) * size))
    if size <= storage:
        return DataSetFit("whole", plain, more)
    if more <= hosts:
        return DataSetFit("(1+Q) shards", plain, more)
    return DataSetFit("shards" if plain <= hosts else "no", plain, more)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Every machine with every data set."""
    rows = machines()[["machine", "hosts", "storage_nbytes"]]
    rows = rows.merge(data_sets()[["data_set", "size_nbytes"]], how="cross")
    sizes = rows[["size_nbytes", "hosts", "storage_nbytes"]].itertuples(index=False, name=None)
    return rows.join(pd.DataFrame([fit(*of) for of in sizes]))


def chart(given: Sequence[Given]) -> Chart:
    """A bar for each machine, from one host's storage to that of all together; data sets as lines
    across, and above them their names, upright and apart from each other."""
    rows, sets = machines(), data_sets()
    together = rows["hosts"] * rows["storage_nbytes"]
    low = 0.5 * min(sets["size_nbytes"].min(), rows["storage_nbytes"].min())
    high = 3.0 * float(together.max())
    ends = (rows["storage_nbytes"], together / (1 + Q), together)
    starts = (low, *ends[:2])
    bars = [
        pd.DataFrame({"y": rows.index, "x": start, "x2": end, "look": look})
        for start, end, look in zip(starts, ends, LOOKS, strict=False)
    ]
    sizes = sets["size_nbytes"]
    shares = np.log(sizes / low) / np.log(high / low)
    moved = low * (high / low) ** np.array(apart(shares, NAME_POINTS / (72 * 0.75 * width())))
    sized = sizes.map(lambda size: readable(size, Dimension.NBYTES, 3))
    names = pd.DataFrame({"x": moved, "y": -LEADER, "text": sets["data_set"] + ", " + sized})
    leaders = pd.DataFrame({"x": sizes, "x2": moved, "y": -0.6, "y2": -LEADER})
    lines = pd.DataFrame({"x": sizes, "look": "set"})
    marks = [
        Mark("bar", pd.concat(bars)),
        Mark("rule", lines),
        Mark("rule", leaders, look=Look(colour="#000000", width=0.5)),
        Mark("text", names, align=("center", "bottom"), turned=90),
    ]
    powers = [10.0**p for p in range(8, 19, 2) if low <= 10.0**p <= high]
    shown = ticks(powers, lambda value: readable(value, Dimension.NBYTES, 3))
    x = Axis(f"bytes; exchanged fraction Q = {Q:g}", True, low, high, shown)
    return Chart(
        [Panel(marks, x, in_rows(list(rows["machine"])))],
        0.17 * len(rows) + 1.55,
        LOOKS,
        "Node-local storage of machines against sizes of data sets.",
    )


def apart(places: Sequence[float] | Any, least: float) -> list[float]:
    """``places`` in their order, moved as little as need be so that neighbours are ``least``
    apart: those that would touch stand evenly around their middle."""
    groups: list[list[float]] = []
    for place in places:
        last = [float(place)]
        while groups and _spread(groups[-1], least)[-1] + least > _spread(last, least)[0]:
            last = groups.pop() + last
        groups.append(last)
    return [place for group in groups for place in _spread(group, least)]


def _spread(group: list[float], least: float) -> list[float]:
    middle = sum(group) / len(group)
    return [middle + least * (number - (len(group) - 1) / 2) for number in range(len(group))]


def notes(given: Sequence[Given]) -> list[str]:
    """What the table takes for granted, and where the numbers are from."""
    return [
        f"Q = {Q:g}. Hosts: the fewest on which shards fit, and shards with room for Q of them.",
        "Sources: validation/data/machine_storage.csv and dataset_sizes.csv.",
    ]
