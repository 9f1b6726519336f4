"""An ablation on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.study.study import Tables

SHOWN = ("EXCHANGE", "GE+WU", "IMPT", "I/O")


def parts(tables: Tables) -> Iterator[str | Table]:
    """All of it, in order; ``tables`` are all those of an ablation."""
    found, of_value = tables["contributions"], tables["changes"]
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
