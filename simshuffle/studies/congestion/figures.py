"""The figures of a comparison, from its tables alone."""

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
    of_routing,
    routings,
    utilisation,
)
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
SHAPES: dict[str, Marker] = {
    "all_to_all": "s",
    "random_permutations": "o",
    "linear_shift": "v",
    "xor": "^",
    "pairing_random": "D",
    "pairing_importance": "P",
    "pairing_topology": "X",
}
MARKERS: dict[str, Marker] = {"fluid": "o", "packet": "D", "analytic": "v"}
PREFERRED = ("fluid", "packet", "analytic")
MOST_CELLS = 500
"""Places of a tier in the heat map; of more links evenly many are shown."""
BOUNDS = {
    "rate": Look("all bytes through the busiest port", GREY, width=2.4, alpha=0.6),
    "uniform": Look("bound: all-to-all", GREY, dash=DASHES[2], width=2.4, alpha=0.6),
}


def times_chart(tables: Tables) -> Chart:
    """Time against world size; where there is one, all variants side by side."""
    several = tables["sets"]["world_size"].nunique() > 1
    return _scaling(tables) if several else _side_by_side(tables)


def shown(tables: Tables) -> tuple[str, str]:
    """The bytes and the model that figures of one model show: full and fluid where there are
    any."""
    full = "full" if "full" in set(tables["times"]["bytes_set"]) else "short"
    models = set(tables["times"].loc[tables["times"]["bytes_set"] == full, "model"])
    return full, next(model for model in PREFERRED if model in models)


def _variants(times: pd.DataFrame) -> list[tuple[str, Any, bool]]:
    """Return pattern, batching and barrier of all variants, in the order of the table."""
    return [
        (str(pattern), str(batching), bool(barrier))
        for pattern, batching, barrier in times[VARIANT].drop_duplicates().itertuples(index=False)
    ]


# ------------------------------------------------------------------------------ several world sizes


def _scaling(tables: Tables) -> Chart:
    """Medians over seeds against world size, both logarithmic, and a band from the lowest to the
    highest; a panel for what a message carries."""
    bytes_set, model = shown(tables)
    chosen = tables["times"]["bytes_set"] == bytes_set
    times = tables["times"][chosen & (tables["times"]["model"] == model)]
    sets = tables["sets"][tables["sets"]["bytes_set"] == bytes_set]
    batchings = [batching for batching in BATCHINGS if (times["batching"] == batching).any()]
    names, sizes = routings(tables), sorted(times["world_size"].unique())
    lowest = min(times["time_s"].min(), times["bound_s"].min(), sets["injection_s"].min())
    cost = " with messages" * messages_cost(times)
    panels = []
    for routing in names:
        own, bounds = times[times["routing"] == routing], sets[sets["routing"] == routing]
        beside = f"\n{routing}" if len(names) > 1 else ""
        for batching in batchings:
            here = own[(own["batching"] == batching) | (own["pattern"] == "all_to_all")]
            first = f"time of an exchange (s){cost}, {model}{beside}" * (batching == batchings[0])
            y = log_axis(first, 0.8 * (lowest or 1e-9), 1.25 * times["time_s"].max())
            x = Axis(log=True, ticks=ticks(sizes, str), turned=45)
            title = BATCHINGS[batching] if routing == names[0] else ""
            panels.append(Panel([*_bounds(own, bounds), *_medians(here)], x, y, title))
    looks: dict[Any, Look] = {}
    for pattern, colour in COLOURS.items():
        if (times["pattern"] == pattern).any():
            plain = Look(PATTERNS[pattern].label, colour, SHAPES[pattern], size=2.4)
            looks[pattern, False] = plain
            looks[pattern, True] = Look("", plain.colour, plain.marker, "--", plain.size)
    return Chart(
        panels,
        2.8 + 2.2 * (len(names) - 1),
        {**looks, "barrier": Look("with barriers", GREY, dash="--"), **BOUNDS},
        "Time of an exchange by ranks, for every pattern and what a message carries.",
        across=len(batchings),
        share="xy",
        x="ranks (above: what a message carries)",
    )


def _medians(times: pd.DataFrame) -> list[Mark]:
    by = times.groupby(["pattern", "barrier", "world_size"], sort=False)["time_s"]
    rows = by.agg(["median", "min", "max"]).reset_index().sort_values("world_size", kind="stable")
    looks = pd.Series(list(zip(rows["pattern"], rows["barrier"], strict=True)), rows.index)
    rows = rows.assign(x=rows["world_size"], look=looks)
    bands = [
        Mark("band", of, y="min", y2="max", look=Look(colour=COLOURS[pattern], alpha=0.15))
        for (pattern, _), of in groups(rows, "pattern", "barrier")
    ]
    keys = [key("barrier")] if times["barrier"].any() else []
    return [*bands, Mark("line", rows, y="median"), *keys]


def _bounds(times: pd.DataFrame, sets: pd.DataFrame) -> list[Mark]:
    whole = times[times["pattern"] == "all_to_all"]
    uniform = whole.groupby("world_size")["bound_s"].median().reset_index()
    return [
        Mark("line", sets.assign(look="rate"), x="world_size", y="injection_s"),
        Mark("line", uniform.assign(look="uniform"), x="world_size", y="bound_s"),
    ]


# ----------------------------------------------------------------------------------- one world size


def _side_by_side(tables: Tables) -> Chart:
    cases = _variants(tables["times"])
    names, world_size = routings(tables), int(tables["sets"]["world_size"].iloc[0])
    # the first set of bytes is the full one, if there is one
    port_seconds = float(_unit(of_routing(tables, names[0])).iloc[0])
    cost = " with messages" * messages_cost(tables["times"])
    panels = [
        _variants_of(of_routing(tables, name), name if len(names) > 1 else "") for name in names
    ]
    looks = {}
    for bytes_set, model in tables["times"][["bytes_set", "model"]].drop_duplicates().to_numpy():
        label = model if bytes_set == "full" else f"{model}, short"
        for pattern, colour in {"": GREY, **COLOURS}.items():
            fill: Any = "plain" if bytes_set == "full" else "none"
            of = Look(label * (not pattern), colour, MARKERS[model], size=3, fill=fill)
            looks[f"{bytes_set} {model} {pattern}"] = of
    keys = [key(name, "point") for name, look in looks.items() if look.label]
    panels[0] = Panel([*panels[0].marks, *keys], panels[0].x, panels[0].y, panels[0].title)
    return Chart(
        panels,
        0.6 + 0.115 * (len(cases) + len({pattern for pattern, _, _ in cases})),
        {**looks, **{pattern: Look("", colour, width=0.8) for pattern, colour in COLOURS.items()}},
        "Time of an exchange over that of all its bytes through the busiest port of a host, for"
        " every variant.",
        across=len(names),
        share="xy",
        x=f"time{cost} / time of all bytes through the busiest port\n"
        f"({world_size:,} ranks: {1e3 * port_seconds:.3g} ms; rows: what a message carries)",
    )


def _unit(tables: Tables) -> pd.Series:
    """Return the s that stand for 1, by set of bytes: all bytes through the busiest port; on one
    host the longest bound."""
    sets = tables["sets"].set_index("bytes_set")["injection_s"]
    return sets.where(sets > 0, tables["times"].groupby("bytes_set")["bound_s"].max())


def _variants_of(tables: Tables, title: str) -> Panel:
    """A row for each variant: median, lowest and highest of each model, in units of `_unit`."""
    times = tables["times"].assign(ratio=tables["times"]["time_s"])
    times["ratio"] /= times["bytes_set"].map(_unit(tables))
    names, parts, heads = list[str](), [], []
    for (pattern,), of_pattern in groups(times, "pattern"):
        head = PATTERNS[pattern].label
        heads.append({"x": 0.0, "y": len(names), "look": pattern, "text": head})
        names.append("")
        for (batching, barrier), rows in groups(of_pattern, "batching", "barrier"):
            found = rows.groupby(["bytes_set", "model"], sort=False)["ratio"]
            of = found.agg(["median", "min", "max"]).reset_index()
            aside = 0.3 * (of.index - (len(of) - 1) / 2)
            parts.append(of.assign(y=len(names) + aside, pattern=pattern))
            names.append(Variant(pattern, batching, barrier).row_label)
    rows = pd.concat(parts, ignore_index=True)
    rows["look"] = rows["bytes_set"] + " " + rows["model"] + " " + rows["pattern"]
    texts = pd.DataFrame(heads)
    lines = pd.DataFrame({"y": [float(place) for place, name in enumerate(names) if name]})
    marks = [
        Mark("rule", lines, look=Look(colour="#DDDDDD", width=0.4)),
        rule(Look(width=0.8), x=1.0),
        Mark("rule", rows, x="min", x2="max", look="pattern"),
        Mark("point", rows, x="median"),
        Mark("text", texts, aside=(3, 0), backed=True, small=False),
    ]
    most = 1.05 * max(float(rows["max"].max()), 1.0)
    return Panel(marks, Axis(low=0.0, high=most), in_rows(names, small=True), title)


# ----------------------------------------------------------------------------------------- heat map


def largest(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """Those of ``rows`` of the largest world size, and of what `shown` names."""
    bytes_set, model = shown(tables)
    most = tables["times"]["world_size"].max()
    chosen = (rows["world_size"] == most) & (rows["bytes_set"] == bytes_set)
    out: pd.DataFrame = rows[chosen & (rows["model"] == model)]
    return out


def heat_chart(tables: Tables) -> Chart:
    """Utilisation of the links by tier, at the largest world size, by the model that `shown`
    names: a row for each routing and variant, links sorted from the hottest on."""
    bytes_set, model = shown(tables)
    used, most = largest(tables, utilisation(tables)), tables["times"]["world_size"].max()
    tiers = tables["tiers"]
    tiers = tiers[(tiers["world_size"] == most) & (tiers["bytes_set"] == bytes_set)]
    counts = tiers.groupby("tier", sort=False)["links"].max()
    several = routings(tables)
    of_each = _variants(tables["times"].merge(used[VARIANT].drop_duplicates(), on=VARIANT))
    rows = [(routing, *variant) for routing in several for variant in of_each]
    labels = [row_name(Variant(*row[1:])) for row in rows]
    if len(several) > 1:  # of each the first row says which it is
        for number, routing in enumerate(several):
            labels[number * len(of_each)] += f" ({routing})"
    panels = []
    for tier in upwards([str(name) for name in counts.index]):
        cells = _cells(used[used["tier"] == tier], rows, int(counts[tier]))
        x = Axis(ticks={}, low=0.0, high=float(counts[tier]), names=True)
        title = f"{tier} ({counts[tier]})"
        y = in_rows(labels, small=True)
        panels.append(Panel([Mark("cell", cells, value="value")], x, y, title, turned=True))
    return Chart(
        panels,
        1.2 + 0.115 * len(rows),
        caption=f"Utilisation of links by tier on {most:,} ranks, {model} model.",
        across=len(panels),
        share="y",
        ramp=Ramp("utilisation: bytes\n/ (capacity × time)"),
        note=f"Columns: links of a tier, hottest first (number of links). {model}, {most} ranks",
    )


def _cells(used: pd.DataFrame, rows: list[tuple[str, str, Any, bool]], count: int) -> pd.DataFrame:
    """One tier: a cell for each of its ``count`` links and each row, 0 where nothing crossed it."""
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_CELLS)).astype(int))
    by_variant = {
        key: of["utilisation"].to_numpy() for key, of in used.groupby(["routing", *VARIANT])
    }
    values = np.zeros((len(rows), count))
    for row, variant in enumerate(rows):
        found = np.sort(by_variant.get(variant, np.empty(0)))[::-1]
        values[row, : len(found)] = found
    y, at = np.mgrid[: len(rows), : len(shown)]
    ends = np.append(shown, count)
    places = {"x": ends[at], "x2": ends[at + 1], "y": y - 0.5, "y2": y + 0.5}
    flat = {name: of.ravel().astype(float) for name, of in places.items()}
    return pd.DataFrame({**flat, "value": values[:, shown].ravel()})


def upwards(tiers: list[str]) -> list[str]:
    """Tiers of cables as a message crosses them, up and then down; then all others."""
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


def row_name(variant: Variant) -> str:
    """Return pattern and messages of a variant, short enough for a row."""
    label = PATTERNS[variant.pattern].label
    return label if variant.pattern == "all_to_all" else f"{label}, {variant.row_label}"
