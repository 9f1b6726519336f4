"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.studies.ablation.changes import changes
from simshuffle.studies.ablation.figures import NAMES
from simshuffle.studies.ablation.shapley import contributions

REMOVALS = ("barriers", "host work", "storage writes", "storage reads", "no overlap", "wire")
SHOWN = ("EXCHANGE", "GE+WU", "IMPT", "I/O")
Tables = Mapping[str, pd.DataFrame]


def parts(kind: str, tables: Tables) -> Iterator[str | Table]:
    """All of it, in order."""
    return _ablation(tables) if kind == "ablation" else _hiding(tables)


# ----------------------------------------------------------------------------------------- ablation


def _ablation(tables: Tables) -> Iterator[str | Table]:
    found = contributions(tables["switches"], tables["runs"])
    epochs = tables["runs"][tables["runs"]["label"] == "epoch"]
    ends = tables["ends"].set_index("place")
    means = epochs.groupby("state")["seconds"].mean()
    count, seeds = len(tables["switches"]), epochs["seed"].nunique()
    more = " and all that is switched besides" if ends["switched_more"].any() else ""
    yield (
        f"From {ends['name']['start']}, {means['0' * count]:.3f} s, to {ends['name']['end']}{more},"
        f" {means['1' * count]:.3f} s an epoch: {len(means)} combinations of {count} switches,"
        f" {seeds} seed{'s' if seeds > 1 else ''}."
    )
    yield _steps(tables, found)
    yield _by_label(found)
    of_value = changes(tables)
    if len(of_value):
        yield _alone(of_value)
    bound = found[(found["label"] == "epoch") & (found["first_s"].isna() | found["last_s"].isna())]
    for row in bound.to_dict("records"):
        where = "first" if pd.isna(row["first_s"]) else "last"
        yield (
            f"{row['switch']} cannot be switched {where}: the means are over those orders only that"
            " there can be."
        )


def _steps(tables: Tables, found: pd.DataFrame) -> Table:
    table = new_table(
        "Change of the epoch in s",
        ["switch", "from, to"],
        ["first", "last", "any order", "range over seeds"],
    )
    values = {
        row["switch"]: f"{row['start']} → {row['end']}"
        for row in tables["switches"].to_dict("records")
    }
    for row in found[found["label"] == "epoch"].to_dict("records"):
        changed = (_signed(row[name]) for name in ("first_s", "last_s", "mean_s"))
        table.add_row(
            row["switch"],
            values.get(row["switch"], ""),
            *changed,
            f"{row['min_s']:+.3f} to {row['max_s']:+.3f}",
        )
    return table


def _by_label(found: pd.DataFrame) -> Table:
    wide = found.pivot(index="switch", columns="label", values="mean_s")
    labels = [
        label for label in (*SHOWN, "FW+BW") if label in wide and wide[label].abs().max() > 5e-4
    ]
    shares = found[found["label"] == "epoch"].set_index("switch")["share"]
    table = new_table(
        "Share of the epoch's change, and change of the labels in s, any order",
        ["switch"],
        ["share", "epoch", *labels],
    )
    for switch in shares.index.astype(str):
        cells = (_signed(wide[label][switch]) for label in ("epoch", *labels))
        table.add_row(switch, "" if pd.isna(shares[switch]) else f"{shares[switch]:.1%}", *cells)
    return table


def _alone(of_value: pd.DataFrame) -> Table:
    table = new_table(
        "One value alone, in place of what it is: change in s",
        ["key", "value", "in the"],
        ["epoch", "range", *SHOWN[:3]],
    )
    for _, rows in of_value.groupby(["key", "value", "base"], sort=False):
        first = rows.iloc[0]
        by_label = rows.set_index("label")
        spread = f"{by_label['min_s']['epoch']:+.3f} to {by_label['max_s']['epoch']:+.3f}"
        cells = [_signed(by_label["change_s"][label]) for label in ("epoch", *SHOWN[:3])]
        table.add_row(first["key"], first["value"], first["base"], cells[0], spread, *cells[1:])
    return table


def _signed(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:+.3f}"


# ------------------------------------------------------------------------------------------- hiding


def _hiding(tables: Tables) -> Iterator[str | Table]:
    limits = tables["limits"]
    ways = list(dict.fromkeys(limits["way"]))
    yield from (f"{way}: {NAMES[way]}" for way in ways)
    yield _fractions(limits, ways)
    yield _bottlenecks(limits, tables["points"])
    for row in limits[~limits["steady"]].to_dict("records"):
        yield (
            f"{row['way']} @{row['world_size']}: not monotone; more samples were found hidden again"
            " above some that are not."
        )


def _fractions(limits: pd.DataFrame, ways: list[str]) -> Table:
    title = "Largest hidden Q (samples of a rank and epoch)"
    table = new_table(title, [], ["ranks", "iterations", "N/M", "epoch s", *ways])
    for _, rows in limits.groupby("world_size"):
        first = rows.iloc[0]
        by_way = rows.set_index("way")
        cells = [
            f"{100 * by_way['exchange_fraction'][way]:.3g} % ({by_way['samples'][way]})"
            for way in ways
        ]
        about = (str(first[name]) for name in ("world_size", "iterations", "samples_of_rank"))
        table.add_row(*about, f"{first['baseline_s']:.3f}", *cells)
    return table


def _bottlenecks(limits: pd.DataFrame, points: pd.DataFrame) -> Table:
    """A row for each way and world size: what one sample more adds, and how much less each removal
    makes it."""
    removals = [name for name in REMOVALS if name in set(points["removed"])]
    names = [name.replace(" ", "\n") for name in removals]
    table = new_table(
        "What ends the hiding: ms that one sample more adds, and that each removal saves",
        ["way"],
        ["ranks", "added", *names],
    )
    table.add_column("most", no_wrap=True)
    for row in limits.sort_values(
        ["way", "world_size"], key=lambda c: c.map(list(NAMES).index) if c.name == "way" else c
    ).to_dict("records"):
        if pd.isna(row["over_s"]):
            table.add_row(
                row["way"],
                str(row["world_size"]),
                *[""] * (1 + len(removals)),
                "all can be exchanged",
            )
            continue
        of = points[
            (points["way"] == row["way"])
            & (points["world_size"] == row["world_size"])
            & (points["samples"] == row["samples"] + 1)
        ]
        added = of.set_index("removed")["added"] * row["baseline_s"]
        saved = [
            f"{1e3 * (added[''] - added[name]):.1f}" if name in added.index else ""
            for name in removals
        ]
        tier = f", {row['tier']}" if row["tier"] else ""
        most = row["bottleneck"].removeprefix("host work: ") + tier
        table.add_row(
            row["way"], str(row["world_size"]), f"{1e3 * row['over_s']:.1f}", *saved, most
        )
    return table
