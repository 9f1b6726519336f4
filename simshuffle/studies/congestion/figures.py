"""Draw the figures of a comparison, from its tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    GREY,
    Axis,
    Chart,
    Look,
    Mark,
    Marker,
    Panel,
    Ramp,
    in_rows,
    key,
    log_axis,
    rule,
    ticks,
)
from simshuffle.studies.congestion.patterns import BATCHINGS, PATTERNS, Variant
from simshuffle.studies.congestion.tables import (
    VARIANT,
    groups,
    messages_cost,
    routings,
    select_routing,
    utilisation,
)
from simshuffle.study.study import Tables

COLOURS = {
    "all_to_all": "#000000",
    "random_permutations": "#EE6677",
    "linear_shift": "#228833",
    "balanced_shift": "#EE7733",
    "xor": "#CCBB44",
    "pairing_random": "#4477AA",
    "pairing_importance": "#66CCEE",
    "pairing_topology": "#AA3377",
}
SHAPES: dict[str, Marker] = {
    "all_to_all": "s",
    "random_permutations": "o",
    "linear_shift": "v",
    "balanced_shift": "<",
    "xor": "^",
    "pairing_random": "D",
    "pairing_importance": "P",
    "pairing_topology": "X",
}
MARKERS: dict[str, Marker] = {"fluid": "o", "packet": "D", "analytic": "v"}
PREFERRED = ("fluid", "packet", "analytic")
MOST_CELLS = 500
"""Most links of a tier in the heat map; of more links, evenly spaced ones are drawn."""
BOUNDS = {
    "rate": Look("all bytes through the busiest port", GREY, width=2.4, alpha=0.6),
    "uniform": Look("bound: all-to-all", GREY, dash=DASHES[2], width=2.4, alpha=0.6),
}


def times_chart(tables: Tables) -> Chart:
    """Return the chart of time against world size; where there is one world size, of
    all variants side by side.
    """
    several_sizes = tables["sets"]["world_size"].nunique() > 1
    return _scaling_chart(tables) if several_sizes else _side_by_side_chart(tables)


def displayed_set(tables: Tables) -> tuple[str, str]:
    """Return the set of bytes and the model that figures of one model show.

    They are 'full', else 'short', and of the models with these bytes the first of
    `PREFERRED`.
    """
    full = "full" if "full" in set(tables["times"]["bytes_set"]) else "short"
    models = set(tables["times"].loc[tables["times"]["bytes_set"] == full, "model"])
    return full, next(model for model in PREFERRED if model in models)


def _variants(times: pd.DataFrame) -> list[tuple[str, Any, bool]]:
    """Return pattern, batching and barrier of each variant once, in order of rows."""
    return [
        (str(pattern), str(batching), bool(barrier))
        for pattern, batching, barrier in times[VARIANT]
        .drop_duplicates()
        .itertuples(index=False)
    ]


# ------------------------------------------------------------------------------ several world sizes


def _scaling_chart(tables: Tables) -> Chart:
    """Return the chart of medians over seeds against world size, both logarithmic, with
    a band from the lowest seed to the highest; one panel for each batching and routing.

    It shows the bytes and the model of `displayed_set` alone. The all-to-all is drawn
    in every panel.
    """
    bytes_set, model = displayed_set(tables)
    in_bytes_set = tables["times"]["bytes_set"] == bytes_set
    times = tables["times"][in_bytes_set & (tables["times"]["model"] == model)]
    sets = tables["sets"][tables["sets"]["bytes_set"] == bytes_set]
    batchings = [
        batching for batching in BATCHINGS if (times["batching"] == batching).any()
    ]
    names = routings(tables)
    sizes = sorted(times["world_size"].unique())
    lowest = min(
        times["time_s"].min(), times["bound_s"].min(), sets["injection_s"].min()
    )
    cost = " with messages" * messages_cost(times)
    panels = []
    for routing in names:
        routing_times = times[times["routing"] == routing]
        bounds = sets[sets["routing"] == routing]
        for batching in batchings:
            batching_times = routing_times[
                (routing_times["batching"] == batching)
                | (routing_times["pattern"] == "all_to_all")
            ]
            y = log_axis("", 0.8 * (lowest or 1e-9), 1.25 * times["time_s"].max())
            x = Axis(log=True, ticks=ticks(sizes, str), turned=45)
            title = BATCHINGS[batching] + f"\n{routing}" * (len(names) > 1)
            panels.append(
                Panel(
                    [
                        *_bound_marks(routing_times, bounds),
                        *_median_marks(batching_times),
                    ],
                    x,
                    y,
                    title,
                )
            )
    looks: dict[Any, Look] = {}
    for pattern, colour in COLOURS.items():
        if (times["pattern"] == pattern).any():
            pattern_look = Look(
                PATTERNS[pattern].label, colour, SHAPES[pattern], size=2.4
            )
            looks[pattern, False] = pattern_look
            looks[pattern, True] = Look(
                "", pattern_look.colour, pattern_look.marker, "--", pattern_look.size
            )
    return Chart(
        panels,
        2.8 + 2.2 * (len(names) - 1),
        {**looks, "barrier": Look("with barriers", GREY, dash="--"), **BOUNDS},
        "Time of an exchange by ranks, for every pattern and content of a message.",
        across=len(batchings),
        share="xy",
        x="ranks (above: content of a message)",
        y=f"time of an exchange (s){cost}, {model}",
    )


def _median_marks(times: pd.DataFrame) -> list[Mark]:
    """Return a line of median times (s) over ranks for each variant, with a band of the
    seeds.

    The key of barriers is among them if a variant has barriers.

    Args:
        times: rows of one routing, model and set of bytes, and of one batching beside
            the all-to-all.
    """
    times_by_variant = times.groupby(["pattern", "barrier", "world_size"], sort=False)[
        "time_s"
    ]
    rows = (
        times_by_variant.agg(["median", "min", "max"])
        .reset_index()
        .sort_values("world_size", kind="stable")
    )
    looks = pd.Series(
        list(zip(rows["pattern"], rows["barrier"], strict=True)), rows.index
    )
    rows = rows.assign(x=rows["world_size"], look=looks)
    bands = [
        Mark(
            "band",
            pattern_rows,
            y="min",
            y2="max",
            look=Look(colour=COLOURS[pattern], alpha=0.15),
        )
        for (pattern, _), pattern_rows in groups(rows, "pattern", "barrier")
    ]
    keys = [key("barrier")] if times["barrier"].any() else []
    return [*bands, Mark("line", rows, y="median"), *keys]


def _bound_marks(times: pd.DataFrame, sets: pd.DataFrame) -> list[Mark]:
    """Return the lines of two bounds (s) over ranks: busiest port, and all-to-all.

    The bound of the all-to-all is the median of its ``bound_s`` over seeds; its line
    has no points if no all-to-all was run.
    """
    all_to_all_times = times[times["pattern"] == "all_to_all"]
    uniform = all_to_all_times.groupby("world_size")["bound_s"].median().reset_index()
    return [
        Mark("line", sets.assign(look="rate"), x="world_size", y="injection_s"),
        Mark("line", uniform.assign(look="uniform"), x="world_size", y="bound_s"),
    ]


# ----------------------------------------------------------------------------------- one world size


def _side_by_side_chart(tables: Tables) -> Chart:
    """Return the chart of all variants at one number of ranks, a panel for each
    routing.

    Times of each set of bytes are over the time of all its bytes through the busiest
    port. All models are drawn, those on shortened bytes as hollow points.
    """
    cases = _variants(tables["times"])
    names = routings(tables)
    world_size = int(tables["sets"]["world_size"].iloc[0])
    # the first set of bytes is the full one, if there is one
    port_seconds = float(_unit_seconds(select_routing(tables, names[0])).iloc[0])
    cost = " with messages" * messages_cost(tables["times"])
    panels = [
        _variants_panel(select_routing(tables, name), name if len(names) > 1 else "")
        for name in names
    ]
    looks = {}
    for bytes_set, model in (
        tables["times"][["bytes_set", "model"]].drop_duplicates().to_numpy()
    ):
        label = model if bytes_set == "full" else f"{model}, short"
        for pattern, colour in {"": GREY, **COLOURS}.items():
            fill: Any = "plain" if bytes_set == "full" else "none"
            look = Look(
                label * (not pattern), colour, MARKERS[model], size=3, fill=fill
            )
            looks[f"{bytes_set} {model} {pattern}"] = look
    keys = [key(name, "point") for name, look in looks.items() if look.label]
    panels[0] = Panel(
        [*panels[0].marks, *keys], panels[0].x, panels[0].y, panels[0].title
    )
    return Chart(
        panels,
        0.6 + 0.115 * (len(cases) + len({pattern for pattern, _, _ in cases})),
        {
            **looks,
            **{
                pattern: Look("", colour, width=0.8)
                for pattern, colour in COLOURS.items()
            },
        },
        "Time of an exchange divided by the time of all its bytes through the busiest port of a"
        " host, for every variant.",
        across=len(names),
        share="xy",
        x=f"time{cost} / time of all bytes through the busiest port\n"
        f"({world_size:,} ranks: {1e3 * port_seconds:.3g} ms; rows: what a message carries)",
    )


def _unit_seconds(tables: Tables) -> pd.Series:
    """Return the s that stand for 1, by set of bytes: all bytes through the busiest
    port; where no bytes leave a host, the largest ``bound_s`` of the times.

    ``tables`` hold one number of ranks and one routing.
    """
    sets = tables["sets"].set_index("bytes_set")["injection_s"]
    return sets.where(sets > 0, tables["times"].groupby("bytes_set")["bound_s"].max())


def _variants_panel(tables: Tables, title: str) -> Panel:
    """Return a panel with a row for each variant: median, lowest and highest time over
    seeds by each model, in units of `_unit_seconds`.

    Above the rows of a pattern is a row with its label. ``tables`` hold one number of
    ranks and one routing.
    """
    times = tables["times"].assign(ratio=tables["times"]["time_s"])
    times["ratio"] /= times["bytes_set"].map(_unit_seconds(tables))
    names = list[str]()
    row_tables = []
    heads = []
    for (pattern,), pattern_times in groups(times, "pattern"):
        head = PATTERNS[pattern].label
        heads.append({"x": 0.0, "y": len(names), "look": pattern, "text": head})
        names.append("")
        for (batching, barrier), rows in groups(pattern_times, "batching", "barrier"):
            model_ratios = rows.groupby(["bytes_set", "model"], sort=False)["ratio"]
            model_rows = model_ratios.agg(["median", "min", "max"]).reset_index()
            offsets = 0.3 * (model_rows.index - (len(model_rows) - 1) / 2)
            row_tables.append(
                model_rows.assign(y=len(names) + offsets, pattern=pattern)
            )
            names.append(Variant(pattern, batching, barrier).row_label)
    rows = pd.concat(row_tables, ignore_index=True)
    rows["look"] = rows["bytes_set"] + " " + rows["model"] + " " + rows["pattern"]
    texts = pd.DataFrame(heads)
    lines = pd.DataFrame(
        {"y": [float(row_index) for row_index, name in enumerate(names) if name]}
    )
    marks = [
        Mark("rule", lines, look=Look(colour="#DDDDDD", width=0.4)),
        rule(Look(width=0.8), x=1.0),
        Mark("rule", rows, x="min", x2="max", look="pattern"),
        Mark("point", rows, x="median"),
        Mark("text", texts, aside=(3, 0), backed=True, small=False),
    ]
    x_limit = 1.05 * max(float(rows["max"].max()), 1.0)
    return Panel(marks, Axis(low=0.0, high=x_limit), in_rows(names, small=True), title)


# ----------------------------------------------------------------------------------------- heat map


def rows_of_largest(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at the largest world size that have the bytes and the model of
    `displayed_set`.
    """
    bytes_set, model = displayed_set(tables)
    world_size = tables["times"]["world_size"].max()
    in_set = (rows["world_size"] == world_size) & (rows["bytes_set"] == bytes_set)
    chosen_rows: pd.DataFrame = rows[in_set & (rows["model"] == model)]
    return chosen_rows


def heat_chart(tables: Tables) -> Chart:
    """Return the heat map of utilisation by tier, at the largest world size, by the
    model of `displayed_set`: a row for each routing and variant, links sorted by
    falling utilisation.

    Each row sorts its own links, so that a column is not one link. Utilisation is that
    of the lowest seed. Variants that no link was measured for have no row.
    """
    bytes_set, model = displayed_set(tables)
    link_rows = rows_of_largest(tables, utilisation(tables))
    world_size = tables["times"]["world_size"].max()
    tiers = tables["tiers"]
    tiers = tiers[
        (tiers["world_size"] == world_size) & (tiers["bytes_set"] == bytes_set)
    ]
    counts = tiers.groupby("tier", sort=False)["links"].max()
    routing_names = routings(tables)
    variants = _variants(
        tables["times"].merge(link_rows[VARIANT].drop_duplicates(), on=VARIANT)
    )
    rows = [(routing, *variant) for routing in routing_names for variant in variants]
    labels = [row_name(Variant(*row[1:])) for row in rows]
    if len(routing_names) > 1:  # of each the first row says which it is
        for routing_index, routing in enumerate(routing_names):
            labels[routing_index * len(variants)] += f" ({routing})"
    panels = []
    for tier in sort_tiers_upwards([str(name) for name in counts.index]):
        cells = _heat_cells(
            link_rows[link_rows["tier"] == tier], rows, int(counts[tier])
        )
        x = Axis(ticks={}, low=0.0, high=float(counts[tier]), names=True)
        title = f"{tier} ({counts[tier]})"
        y = in_rows(labels, small=True)
        panels.append(
            Panel([Mark("cell", cells, value="value")], x, y, title, turned=True)
        )
    return Chart(
        panels,
        1.2 + 0.115 * len(rows),
        caption=f"Utilisation of links by tier on {world_size:,} ranks, {model} model.",
        across=len(panels),
        share="y",
        ramp=Ramp("utilisation: bytes\n/ (capacity × time)"),
        note="Columns: links of a tier, hottest first (number of links)."
        f" {model}, {world_size} ranks",
    )


def _heat_cells(
    link_rows: pd.DataFrame, rows: list[tuple[str, str, Any, bool]], count: int
) -> pd.DataFrame:
    """Return the heat map's cells of one tier: one for each row and each of its
    ``count`` links, of which at most `MOST_CELLS` are drawn; 0 where no bytes crossed a
    link.

    Columns: x, x2, y and y2 (edges of the cell; x in links, y in rows), and value
    (utilisation).

    Args:
        link_rows: links of the tier that bytes crossed, as `utilisation` returns them.
        rows: routing, pattern, batching and barrier of each row.
        count: links of the tier.
    """
    link_index = np.unique(
        np.linspace(0, count - 1, min(count, MOST_CELLS)).astype(int)
    )
    by_variant = {
        key: variant_rows["utilisation"].to_numpy()
        for key, variant_rows in link_rows.groupby(["routing", *VARIANT])
    }
    # (rows, count) utilisation, each row in falling order
    values = np.zeros((len(rows), count))
    for row, variant in enumerate(rows):
        utilisations = np.sort(by_variant.get(variant, np.empty(0)))[::-1]
        values[row, : len(utilisations)] = utilisations
    # a cell for each row and shown link, which is as wide as all links up to the next one
    y, column_index = np.mgrid[: len(rows), : len(link_index)]
    link_edges = np.append(link_index, count)
    edges = {
        "x": link_edges[column_index],
        "x2": link_edges[column_index + 1],
        "y": y - 0.5,
        "y2": y + 0.5,
    }
    flat_edges = {name: edge.ravel().astype(float) for name, edge in edges.items()}
    return pd.DataFrame({**flat_edges, "value": values[:, link_index].ravel()})


def sort_tiers_upwards(tiers: list[str]) -> list[str]:
    """Return the tiers of cables as a message crosses them, up and then down, other
    tiers last.

    Tiers that are no 'a>b', and second tiers that leave one level, are other tiers.
    """
    up: list[str] = []
    level = "host"
    while following := [
        t
        for t in tiers
        if t.startswith(f"{level}>")
        and t not in up
        and "host" not in t[len(level) :]
        and _reverse_tier(t) not in up
    ]:
        up.append(following[0])
        level = following[0].split(">")[1]
    down = [
        _reverse_tier(tier) for tier in reversed(up) if _reverse_tier(tier) in tiers
    ]
    return [
        *up,
        *down,
        *(tier for tier in tiers if tier not in up and tier not in down),
    ]


def _reverse_tier(tier: str) -> str:
    """Return the tier of the cables in the other direction: 'a>b' for 'b>a'."""
    return ">".join(reversed(tier.split(">")))


def row_name(variant: Variant) -> str:
    """Return pattern and messages of a variant, short enough for a row."""
    label = PATTERNS[variant.pattern].label
    return label if variant.pattern == "all_to_all" else f"{label}, {variant.row_label}"
