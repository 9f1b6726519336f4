"""A search for the largest hidden exchange fraction on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.studies.hidden_fraction.tables import NAMES
from simshuffle.study.study import Tables

REMOVALS = ("barriers", "host work", "storage writes", "storage reads", "no overlap", "wire")


def parts(tables: Tables) -> Iterator[str | Table]:
    """All of it, in order."""
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
