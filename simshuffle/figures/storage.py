"""Node-local storage of machines against sizes of data sets, as figure 1 of the study of partial
local shuffle (doi:10.1109/IPDPS53621.2022.00109) has it; from two files of `validation/data`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simshuffle.figures.kinds import Given, Kind
from simshuffle.results.style import STYLE, legend_above, new_figure
from simshuffle.results.table_io import read_csv
from simshuffle.spec.library import shipped
from simshuffle.spec.units import Dimension, parse_quantity, readable

Q = 0.1
"""Exchanged fraction: a host has room for its shard and Q of it."""
WHOLE, WITH_Q, SHARDS = "#4477AA", "#99BBDD", "#EE6677"
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
MACHINE_COLUMNS = ["machine", "hosts", "capacity", "year", "source"]
DATA_SET_COLUMNS = ["data_set", "samples", "size", "year", "source"]


def machines() -> pd.DataFrame:
    """Machines with node-local storage, the largest together first: `MACHINE_COLUMNS`, and
    storage_nbytes of a host. ``year`` is that of the source; of a page that is kept up to date,
    when it was read."""
    table = _read("machine_storage", "capacity", "storage_nbytes")
    whole = table["hosts"] * table["storage_nbytes"]
    return table.loc[whole.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def data_sets() -> pd.DataFrame:
    """Data sets, the smallest first: `DATA_SET_COLUMNS`, and size_nbytes."""
    return _read("dataset_sizes", "size", "size_nbytes").sort_values(
        "size_nbytes", ignore_index=True
    )


def _read(name: str, text: str, number: str) -> pd.DataFrame:
    table = read_csv(shipped("validation") / "data" / f"{name}.csv")
    return table.assign(**{number: [parse_quantity(of, Dimension.NBYTES) for of in table[text]]})


@dataclass(frozen=True)
class Fit:
    """How a data set fits on a machine ('whole', '(1+Q) shards', 'shards' or 'no'), and the hosts
    that shards and (1+Q) shards need at least."""

    fits: str
    shard_hosts: int
    exchange_hosts: int


def fit(size: float, hosts: int, storage: float, q: float = Q) -> Fit:
    """How ``size`` bytes fit on ``hosts`` hosts of ``storage`` bytes each: whole on every host, as
    1/N shards, or with room for the samples that arrive before those sent are removed."""
    plain, more = (max(1, math.ceil(of / storage)) for of in (size, (1 + q) * size))
    if size <= storage:
        return Fit("whole", plain, more)
    if more <= hosts:
        return Fit("(1+Q) shards", plain, more)
    return Fit("shards" if plain <= hosts else "no", plain, more)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Every machine with every data set."""
    sets = data_sets().to_dict("records")
    rows = []
    for machine in machines().to_dict("records"):
        for of in sets:
            found = fit(of["size_nbytes"], machine["hosts"], machine["storage_nbytes"])
            rows.append(
                {
                    "machine": machine["machine"],
                    "hosts": machine["hosts"],
                    "storage_nbytes": machine["storage_nbytes"],
                    "data_set": of["data_set"],
                    "size_nbytes": of["size_nbytes"],
                    "fits": found.fits,
                    "hosts_for_shards": found.shard_hosts,
                    "hosts_with_exchange": found.exchange_hosts,
                }
            )
    return pd.DataFrame(rows)


def draw(given: Sequence[Given]) -> Figure:
    """A bar for each machine, from one host's storage to that of all together; data sets as lines
    across."""
    rows, sets = machines(), data_sets()
    with matplotlib.rc_context(STYLE):
        figure = new_figure(0.17 * len(rows) + 1.55)
        ax = figure.subplots()
        smallest = 0.5 * min(sets["size_nbytes"].min(), rows["storage_nbytes"].min())
        ends = (smallest, 3.0 * float((rows["hosts"] * rows["storage_nbytes"]).max()))
        ax.set_xscale("log")
        ax.set_xlim(*ends)
        for y, row in enumerate(rows.to_dict("records")):
            _bar(ax, y, smallest, row["storage_nbytes"], row["hosts"])
        ax.set_yticks(range(len(rows)), rows["machine"])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ticks = [v for p in range(8, 19, 2) if ends[0] <= (v := 10.0**p) <= ends[1]]
        ax.set_xticks(ticks, [readable(v, Dimension.NBYTES, 3) for v in ticks])
        ax.minorticks_off()
        ax.set_xlabel(f"bytes; exchanged fraction Q = {Q:g}")
        ax.spines[["top", "right", "left"]].set_visible(False)
        legend_above(figure, _handles())
        _name(figure, ax, sets)
        return figure


def _bar(ax: Axes, y: int, left: float, storage: float, hosts: int) -> None:
    together = hosts * storage
    for low, high, colour in (
        (left, storage, WHOLE),
        (storage, together / (1 + Q), WITH_Q),
        (together / (1 + Q), together, SHARDS),
    ):
        ax.barh(y, high - low, 0.66, low, color=colour, linewidth=0)


def _handles() -> list[Patch | Line2D]:
    return [
        Patch(facecolor=WHOLE, label="fits whole on every host"),
        Patch(facecolor=WITH_Q, label="fits as shards with room for Q"),
        Patch(facecolor=SHARDS, label="fits as shards alone"),
        Line2D([], [], color="black", linewidth=0.6, linestyle=(0, (3, 2)), label="data set"),
    ]


def _name(figure: Figure, ax: Axes, sets: pd.DataFrame) -> None:
    """Lines of the data sets, and above them their names, upright and apart from each other."""
    sizes = sets["size_nbytes"].to_numpy(float)
    line: dict[str, Any] = {"color": "black", "linewidth": 0.6, "linestyle": (0, (3, 2))}
    for size in sizes:
        ax.axvline(size, **line)
    figure.draw_without_rendering()  # so that pixels are where they will be
    box, points = ax.get_window_extent(), 72 / figure.dpi
    at = np.log10(sizes / ax.get_xlim()[0]) / np.log10(ax.get_xlim()[1] / ax.get_xlim()[0])
    for share, place, row in zip(
        at, apart(at, 10.0 / (box.width * points)), sets.to_dict("records"), strict=True
    ):
        size = readable(row["size_nbytes"], Dimension.NBYTES, 3)
        over: dict[str, Any] = {
            "xy": (share, 1.0),
            "xytext": ((place - share) * box.width * points, 9.0),
            "xycoords": "axes fraction",
            "textcoords": "offset points",
        }
        ax.annotate("", **over, arrowprops=LEADER)
        name = f"{row['data_set']}, {size}"
        ax.annotate(name, **over, rotation=90, ha="center", va="bottom", fontsize=6)


def apart(places: Sequence[float] | Any, least: float) -> list[float]:
    """``places`` in their order, moved as little as need be so that neighbours are ``least``
    apart: those that would touch stand evenly around their middle."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([float(place)])
        while (
            len(groups) > 1
            and _spread(groups[-2], least)[-1] + least > _spread(groups[-1], least)[0]
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
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


KIND = Kind((), draw, table, notes=notes)
