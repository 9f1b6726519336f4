"""Node-local storage of machines against sizes of data sets, as figure 1 of the study
of partial local shuffle (doi:10.1109/IPDPS53621.2022.00109) has it; from two files of
`validation/data`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    ticks,
)
from simshuffle.report.style import width
from simshuffle.report.table_io import read_csv
from simshuffle.spec.library import shipped_folder
from simshuffle.spec.units import Dimension, parse_quantity, readable
from simshuffle.studies.presentation.named_results import NamedResult

Q = 0.1
"""Exchanged fraction: a host has room for its shard and Q of it."""
LOOKS = {
    "whole": Look("fits whole on every host", "#4477AA"),
    "exchange": Look("fits as shards with room for Q", "#99BBDD"),
    "shards": Look("fits as shards alone", "#EE6677"),
    "set": Look("data set", "#000000", dash=DASHES[1], width=0.6),
}
"""Looks of the three parts of a machine's bar, and of the line of a data set."""
LEADER = 1.35
"""Distance of the names of data sets above the first row, in rows."""
NAME_POINTS = 10.0
"""Points between names of data sets."""


def read_machines() -> pd.DataFrame:
    """Return machines with node-local storage, largest total of all hosts first.

    Columns are those of `machine_storage.csv` and storage_nbytes (bytes of one host).
    ``year`` is that of the source; of a page that is kept up to date, the year in which
    it was read.
    """
    table = _read_sizes("machine_storage", "capacity", "storage_nbytes")
    total_nbytes = table["hosts"] * table["storage_nbytes"]
    order = total_nbytes.sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def read_data_sets() -> pd.DataFrame:
    """Return data sets, the smallest first: columns of `dataset_sizes.csv`, and
    size_nbytes (bytes).
    """
    sizes = _read_sizes("dataset_sizes", "size", "size_nbytes")
    return sizes.sort_values("size_nbytes", ignore_index=True)


def _read_sizes(name: str, text_column: str, nbytes_column: str) -> pd.DataFrame:
    """Return the table ``name`` of validation/data with a further column of bytes.

    ``nbytes_column`` has the quantities of ``text_column`` ('1.6 TB') in bytes.
    """
    table = read_csv(shipped_folder("validation") / "data" / f"{name}.csv")
    nbytes = [
        parse_quantity(quantity, Dimension.NBYTES) for quantity in table[text_column]
    ]
    return table.assign(**{nbytes_column: nbytes})


class DataSetFit(NamedTuple):
    """Fit of a data set on a machine's hosts, and the numbers of hosts that its shards
    need.
    """

    fits: str  # 'whole', '(1+Q) shards', 'shards' or 'no'
    # fewest hosts on which shards fit, and (1+Q) shards; at least 1, and maybe more than
    # the machine has
    hosts_for_shards: int
    hosts_with_exchange: int


def fit_data_set(size: float, hosts: int, storage: float) -> DataSetFit:
    """Return how ``size`` bytes fit on ``hosts`` hosts of ``storage`` bytes each.

    A data set fits 'whole' on every host, as '(1+Q) shards' with room for the samples
    that arrive before sent samples are removed, as 'shards' alone, or 'no'. The first of
    these that is true counts; the share Q is `Q`.
    """
    hosts_for_shards = max(1, math.ceil(size / storage))
    hosts_with_exchange = max(1, math.ceil((1 + Q) * size / storage))
    if size <= storage:
        fits = "whole"
    elif hosts_with_exchange <= hosts:
        fits = "(1+Q) shards"
    else:
        fits = "shards" if hosts_for_shards <= hosts else "no"
    return DataSetFit(fits, hosts_for_shards, hosts_with_exchange)


def table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return a row for every machine with every data set; ``results`` are not read.

    Columns: machine, hosts, storage_nbytes (of a host), data_set, size_nbytes, and the
    fields of `DataSetFit`. Largest machine first, and for each the smallest data set.
    """
    rows = read_machines()[["machine", "hosts", "storage_nbytes"]]
    rows = rows.merge(read_data_sets()[["data_set", "size_nbytes"]], how="cross")
    sizes = rows[["size_nbytes", "hosts", "storage_nbytes"]].itertuples(
        index=False, name=None
    )
    return rows.join(pd.DataFrame([fit_data_set(*row) for row in sizes]))


def chart(results: Sequence[NamedResult]) -> Chart:
    """Draw a bar for each machine, up to the storage of all its hosts, and data sets as
    lines; ``results`` are not read.

    A bar has three parts, on a logarithmic axis of bytes: up to the storage of one host,
    up to that of all hosts over 1 + Q, and up to that of all. The names of data sets
    stand above the lines, upright and apart from each other.
    """
    rows = read_machines()
    sets = read_data_sets()
    total_nbytes = rows["hosts"] * rows["storage_nbytes"]
    low = 0.5 * min(sets["size_nbytes"].min(), rows["storage_nbytes"].min())
    high = 3.0 * float(total_nbytes.max())
    bar_ends = (rows["storage_nbytes"], total_nbytes / (1 + Q), total_nbytes)
    bar_starts = (low, *bar_ends[:2])
    bars = [
        pd.DataFrame({"y": rows.index, "x": start, "x2": end, "look": look})
        for start, end, look in zip(bar_starts, bar_ends, LOOKS, strict=False)
    ]
    sizes = sets["size_nbytes"]
    shares = np.log(sizes / low) / np.log(high / low)
    name_positions = low * (high / low) ** np.array(
        spread_apart(shares, NAME_POINTS / (72 * 0.75 * width()))
    )
    size_texts = sizes.map(lambda size: readable(size, Dimension.NBYTES, 3))
    names = pd.DataFrame(
        {
            "x": name_positions,
            "y": -LEADER,
            "text": sets["data_set"] + ", " + size_texts,
        }
    )
    leaders = pd.DataFrame({"x": sizes, "x2": name_positions, "y": -0.6, "y2": -LEADER})
    lines = pd.DataFrame({"x": sizes, "look": "set"})
    marks = [
        Mark("bar", pd.concat(bars)),
        Mark("rule", lines),
        Mark("rule", leaders, look=Look(colour="#000000", width=0.5)),
        Mark("text", names, align=("center", "bottom"), turned=90),
    ]
    powers = [10.0**p for p in range(8, 19, 2) if low <= 10.0**p <= high]
    tick_labels = ticks(powers, lambda value: readable(value, Dimension.NBYTES, 3))
    x = Axis(f"bytes; exchanged fraction Q = {Q:g}", True, low, high, tick_labels)
    return Chart(
        [Panel(marks, x, in_rows(list(rows["machine"])))],
        0.17 * len(rows) + 1.55,
        LOOKS,
        "Node-local storage of machines against sizes of data sets.",
    )


def spread_apart(positions: Sequence[float] | Any, distance: float) -> list[float]:
    """Return ascending ``positions``, moved until neighbours are ``distance`` apart.

    Positions that would touch are spread evenly around their mean; the order stays.
    """
    groups: list[list[float]] = []
    for position in positions:
        touching = [float(position)]
        while (
            groups
            and _spread_evenly(groups[-1], distance)[-1] + distance
            > _spread_evenly(touching, distance)[0]
        ):
            touching = groups.pop() + touching
        groups.append(touching)
    return [
        position for group in groups for position in _spread_evenly(group, distance)
    ]


def _spread_evenly(positions: list[float], distance: float) -> list[float]:
    """Return as many positions, ``distance`` apart, around the mean of ``positions``."""
    middle = sum(positions) / len(positions)
    return [
        middle + distance * (index - (len(positions) - 1) / 2)
        for index in range(len(positions))
    ]


def notes(results: Sequence[NamedResult]) -> list[str]:
    """Say what the table assumes, and where the numbers are from, a sentence each;
    ``results`` are not read.
    """
    return [
        (
            f"Q = {Q:g}. Hosts: the fewest on which shards fit, and the fewest on which shards"
            " fit with room for Q of them."
        ),
        "Sources: validation/data/machine_storage.csv and dataset_sizes.csv.",
    ]
