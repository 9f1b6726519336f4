"""The figures of a comparison, from its tables alone. Sized for one column of a two-column
paper."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from simshuffle.results.style import STYLE, legend_above, line_handle, new_figure
from simshuffle.studies.congestion.tables import VARIANT, groups, of_routing, routings, utilisation
from simshuffle.study.study import Tables

COLOURS = {
    "all_to_all": "#000000",
    "random_permutations": "#EE6677",
    "linear_shift": "#228833",
    "xor": "#CCBB44",
    "pairing_random": "#4477AA",
    "pairing_importance": "#66CCEE",
    "pairing_topology": "#AA3377",
}
SHAPES = dict(zip(COLOURS, "sov^DPX", strict=True))
GREY = "#888888"
PANELS = {"sample": "1 sample", "iteration": "1 iteration", "all": "all samples"}
"""What a message carries, as title of a panel."""
MARKERS = {"fluid": "o", "packet": "D", "analytic": "v"}
PREFERRED = ("fluid", "packet", "analytic")


def times_figure(tables: Tables) -> Figure:
    """Time against world size, or where there is only one, the times of all variants side by side;
    of every routing."""
    several = tables["sets"]["world_size"].nunique() > 1
    with matplotlib.rc_context(STYLE):
        return _scaling(tables) if several else _side_by_side(tables)


def shown(tables: Tables) -> tuple[str, str]:
    """The set of bytes and the model that the figures of one model show: all bytes if any model had
    them, and fluid before packet."""
    full = "full" if "full" in set(tables["times"]["bytes_set"]) else "short"
    models = set(tables["times"].loc[tables["times"]["bytes_set"] == full, "model"])
    return full, next(model for model in PREFERRED if model in models)


def _variants(times: pd.DataFrame) -> list[tuple[str, str, bool]]:
    """Pattern, batching and barrier of all variants, in the order of the table."""
    return [
        (str(p), str(b), bool(gate))
        for p, b, gate in times[VARIANT].drop_duplicates().itertuples(index=False)
    ]


# ------------------------------------------------------------------------------ several world sizes


def _scaling(tables: Tables) -> Figure:
    bytes_set, model = shown(tables)
    times = tables["times"][
        (tables["times"]["bytes_set"] == bytes_set) & (tables["times"]["model"] == model)
    ]
    batchings = [batching for batching in PANELS if (times["batching"] == batching).any()]
    names = routings(tables)
    figure = new_figure(2.8 + 2.2 * (len(names) - 1))
    sets = tables["sets"][tables["sets"]["bytes_set"] == bytes_set]
    rows = figure.subplots(len(names), len(batchings), sharex=True, sharey=True, squeeze=False)
    for axes, routing in zip(rows, names, strict=True):
        own = times[times["routing"] == routing]
        for ax, batching in zip(axes, batchings, strict=True):
            scaling(own[(own["batching"] == batching) | (own["pattern"] == "all_to_all")], ax)
            _bounds(ax, own, sets[sets["routing"] == routing])
        beside = f"\n{routing}" if len(names) > 1 else ""
        axes[0].set_ylabel(f"time of an exchange (s), {model}{beside}")
    for ax, batching in zip(rows[0], batchings, strict=True):
        ax.set_title(PANELS[batching], fontsize=7)
    figure.supxlabel("ranks (above: what a message carries)", fontsize=7.5)
    _legend(
        figure,
        [pattern for pattern in COLOURS if (times["pattern"] == pattern).any()],
        bool(times["barrier"].any()),
    )
    return figure


def scaling(times: pd.DataFrame, ax: Axes) -> Axes:
    """Time against world size, both logarithmic: medians over seeds, and a band from the lowest to
    the highest.

    Args:
        times: rows of the table `times` of one model, set of bytes and batching.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    for (pattern, barrier), rows in groups(times, "pattern", "barrier"):
        by_size = rows.groupby("world_size")["time_s"]
        middle, low, high = by_size.median(), by_size.min(), by_size.max()
        style = "--" if barrier else "-"
        ax.plot(
            middle.index,
            middle,
            style,
            color=COLOURS[pattern],
            linewidth=0.9,
            marker=SHAPES[pattern],
            markersize=2.4,
            label=pattern,
        )
        ax.fill_between(middle.index, low, high, color=COLOURS[pattern], alpha=0.15, linewidth=0)
    sizes = sorted(times["world_size"].unique())
    ax.set(xscale="log", yscale="log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _bounds(ax: Axes, times: pd.DataFrame, sets: pd.DataFrame) -> None:
    ax.plot(
        sets["world_size"],
        sets["injection_s"],
        "-",
        color=GREY,
        linewidth=2.4,
        alpha=0.6,
        zorder=1,
        label="ports at line rate",
    )
    uniform = times[times["pattern"] == "all_to_all"].groupby("world_size")["bound_s"].median()
    ax.plot(
        uniform.index,
        uniform,
        ":",
        color=GREY,
        linewidth=2.4,
        alpha=0.6,
        zorder=1,
        label="bound of all to all",
    )


def _legend(figure: Figure, patterns: list[str], barriers: bool) -> None:
    handles = [
        line_handle(
            pattern.replace("_", " "), {"color": COLOURS[pattern], "marker": SHAPES[pattern]}
        )
        for pattern in patterns
    ]
    if barriers:
        handles += [
            Line2D([], [], color=GREY, linestyle="--", linewidth=0.9, label="with barriers")
        ]
    handles.append(
        Line2D([], [], color=GREY, linewidth=2.4, alpha=0.6, label="bound: ports at line rate")
    )
    if "all_to_all" in patterns:
        handles.append(
            Line2D(
                [],
                [],
                color=GREY,
                linewidth=2.4,
                alpha=0.6,
                linestyle=":",
                label="bound: all to all",
            )
        )
    legend_above(figure, handles)


# ----------------------------------------------------------------------------------- one world size


def _side_by_side(tables: Tables) -> Figure:
    cases = _variants(tables["times"])
    figure = new_figure(0.6 + 0.115 * (len(cases) + len({pattern for pattern, _, _ in cases})))
    names = routings(tables)
    axes = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    for ax, routing in zip(axes, names, strict=True):
        side_by_side(of_routing(tables, routing), ax, named=ax is axes[0])
        if len(names) > 1:
            ax.set_title(routing, fontsize=6)
    world_size = int(tables["sets"]["world_size"].iloc[0])
    # the first set of bytes is the full one, if there is one
    line_rate = float(_unit(of_routing(tables, names[0])).iloc[0])
    axes[0].set_xlabel(
        f"time / time at the ports' line rate\n({world_size} ranks: {1e3 * line_rate:.3g} ms)"
    )
    handles = []
    for (bytes_set, model), _ in groups(tables["times"], "bytes_set", "model"):
        label = model if bytes_set == "full" else f"{model}, short"
        handles.append(Line2D([], [], linestyle="", label=label, **_marker(bytes_set, model, GREY)))
    legend_above(figure, handles)
    return figure


def _marker(bytes_set: str, model: str, colour: str) -> dict[str, Any]:
    """Full for all bytes, hollow for the shortened ones; a shape for each model."""
    filled = colour if bytes_set == "full" else "white"
    return {
        "marker": MARKERS[model],
        "markersize": 3,
        "markeredgecolor": colour,
        "markerfacecolor": filled,
        "markeredgewidth": 0.7,
    }


def _unit(tables: Tables) -> pd.Series:
    """Time (s) that stands for 1, by set of bytes: at the line rate of the ports; on a single host
    the longest bound."""
    sets = tables["sets"].set_index("bytes_set")["injection_s"]
    return sets.where(sets > 0, tables["times"].groupby("bytes_set")["bound_s"].max())


def side_by_side(tables: Tables, ax: Axes, *, named: bool = True) -> Axes:
    """A row for each variant: for each model the median over seeds, and a line from the lowest to
    the highest; in units of `_unit`. ``named``: whether patterns are named."""
    unit, y = _unit(tables), 0.0
    ticks: list[tuple[float, str]] = []
    for (pattern,), of_pattern in groups(tables["times"], "pattern"):
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        across = ax.get_yaxis_transform()
        ax.text(
            0.015,
            y,
            pattern.replace("_", " ") if named else "",
            color=COLOURS[pattern],
            transform=across,
            va="center",
            ha="left",
            bbox=behind,
        )
        for (batching, barrier), rows in groups(of_pattern, "batching", "barrier"):
            y += 1.0
            ticks.append((y, f"{batching}{', barrier' if barrier else ''}"))
            ax.axhline(y, color="#dddddd", linewidth=0.4, zorder=0)
            kinds = list(groups(rows, "bytes_set", "model"))
            for number, ((bytes_set, model), of_model) in enumerate(kinds):
                values = of_model["time_s"] / unit[bytes_set]
                place = y + 0.3 * (number - (len(kinds) - 1) / 2)
                ax.plot(
                    [values.min(), values.max()],
                    [place, place],
                    color=COLOURS[pattern],
                    linewidth=0.8,
                )
                ax.plot(
                    [values.median()],
                    [place],
                    linestyle="",
                    **_marker(bytes_set, model, COLOURS[pattern]),
                )
        y += 1.0
    ax.axvline(1.0, color=GREY, linewidth=0.8, zorder=0)
    ax.set_yticks([place for place, _ in ticks], [label for _, label in ticks], fontsize=6)
    ax.set_ylim(y - 0.4, -0.7)
    ax.set_xlim(0.0, None)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


# ----------------------------------------------------------------------------------------- heat map


def largest(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """Those of ``rows`` that are of the largest world size, and of the bytes and the model that
    `shown` names."""
    bytes_set, model = shown(tables)
    most = tables["times"]["world_size"].max()
    chosen = (rows["world_size"] == most) & (rows["bytes_set"] == bytes_set)
    out: pd.DataFrame = rows[chosen & (rows["model"] == model)]
    return out


def heat_figure(tables: Tables) -> Figure:
    """Utilisation of the links by tier, at the largest world size, by the model that `shown`
    names."""
    bytes_set, model = shown(tables)
    used, most = largest(tables, utilisation(tables)), tables["times"]["world_size"].max()
    tiers = tables["tiers"]
    tiers = tiers[(tiers["world_size"] == most) & (tiers["bytes_set"] == bytes_set)]
    counts = tiers.groupby("tier", sort=False)["links"].max()
    names = upwards(list(counts.index))
    several = routings(tables)
    of_each = _variants(tables["times"].merge(used[VARIANT].drop_duplicates(), on=VARIANT))
    rows = [(routing, *variant) for routing in several for variant in of_each]
    labels = [_label(*row[1:]) for row in rows]
    if len(several) > 1:  # of each the first row says which it is
        for number, routing in enumerate(several):
            labels[number * len(of_each)] += f" ({routing})"
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.2 + 0.115 * len(rows))
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for ax, tier in zip(axes, names, strict=True):
            image = heat(used[used["tier"] == tier], rows, int(counts[tier]), ax)
            ax.set_title(f"{tier} ({counts[tier]})", fontsize=6, rotation=90)
        axes[0].set_yticks(range(len(rows)), labels, fontsize=6)
        bar = figure.colorbar(image, ax=list(axes), location="bottom", aspect=40, pad=0.01)
        bar.set_label("utilisation: bytes / (capacity × time)", fontsize=7, loc="right")
        figure.supxlabel(
            f"Columns: links of a tier, the hottest first (number of links). {model}, {most} ranks",
            fontsize=6,
        )
        return figure


def heat(
    used: pd.DataFrame, rows: list[tuple[str, str, str, bool]], count: int, ax: Axes
) -> AxesImage:
    """One tier: a row for each routing and variant, its ``count`` links sorted from the hottest on;
    colours from 0 (idle) to 1."""
    values = np.zeros((len(rows), count))
    by_variant = {
        key: of["utilisation"].to_numpy() for key, of in used.groupby(["routing", *VARIANT])
    }
    for row, variant in enumerate(rows):
        found = np.sort(by_variant.get(variant, np.empty(0)))[::-1]
        values[row, : len(found)] = found
    image = ax.imshow(
        values, aspect="auto", interpolation="nearest", cmap="magma_r", vmin=0.0, vmax=1.0
    )
    ax.set_xticks([])
    ax.tick_params(length=0)
    return image


def upwards(tiers: list[str]) -> list[str]:
    """Tiers of cables in the order in which a message crosses them, up and then down; then all
    others."""
    up: list[str] = []
    at = "host"
    while following := [
        t
        for t in tiers
        if t.startswith(f"{at}>")
        and t not in up
        and "host" not in t[len(at) :]
        and _back(t) not in up
    ]:
        up.append(following[0])
        at = following[0].split(">")[1]
    down = [_back(tier) for tier in reversed(up) if _back(tier) in tiers]
    return [*up, *down, *(tier for tier in tiers if tier not in up and tier not in down)]


def _back(tier: str) -> str:
    return ">".join(reversed(tier.split(">")))


def _label(pattern: str, batching: str, barrier: bool) -> str:
    name = pattern.replace("_", " ")
    return (
        name if pattern == "all_to_all" else f"{name}, {batching}{', barrier' if barrier else ''}"
    )
