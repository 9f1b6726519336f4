"""An ablation, and a search for the largest hidden exchange fraction, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from rich.table import Table

from simshuffle.results import intervals
from simshuffle.results.report import WHOLE
from simshuffle.studies.mechanisms.tables import ALONE, ENDS, NAMES, REMOVALS, SIZES, STEPS
from simshuffle.study.study import Tables

SHOWN = ("EXCHANGE", "GE+WU", "IMPT", "I/O")
LEAST = 5e-4  # changes in s that are printed as 0


def of_ablation(tables: Tables) -> Iterator[str | Table]:
    """All of it, in order; ``tables`` are all those of an ablation."""
    found, of_value = tables["contributions"], tables["changes"]
    epochs = tables["runs"][tables["runs"]["label"] == WHOLE]
    ends = tables["ends"].set_index("place")
    means = epochs.groupby("state")["seconds"].mean()
    count, seeds = len(tables["switches"]), epochs["seed"].nunique()
    more = " and all that is switched besides" if ends["switched_more"].any() else ""
    yield (
        f"From {ends['name']['start']}, {means['0' * count]:.3f} s, to {ends['name']['end']}{more},"
        f" {means['1' * count]:.3f} s an epoch: {len(means)} combinations of {count} switches,"
        f" {seeds} seed{'s' if seeds > 1 else ''}."
    )
    yield from _steps(tables["switches"], found)
    if len(of_value):
        yield _alone(of_value)
    bound = found[(found["label"] == WHOLE) & (found["first_s"].isna() | found["last_s"].isna())]
    for row in bound.to_dict("records"):
        where = "first" if pd.isna(row["first_s"]) else "last"
        yield (
            f"{row['switch']} cannot be switched {where}: the means are over those orders only that"
            " there can be."
        )


def _steps(switches: pd.DataFrame, found: pd.DataFrame) -> Iterator[Table]:
    values = (switches["start"] + " → " + switches["end"]).set_axis(switches["switch"])
    by_label = found.pivot(index="switch", columns="label", values="mean_s")
    epochs = found[found["label"] == WHOLE].join(by_label, on="switch")
    epochs["values"], epochs["range"] = epochs["switch"].map(values), _range(epochs)
    columns = ("switch", "values", "first_s", "last_s", "mean_s", "range")
    yield STEPS.listing(epochs, "Change of the epoch in s", columns, names=2)
    most = by_label.abs().max()
    labels = [label for label in (*SHOWN, "FW+BW") if most.get(label, 0.0) > LEAST]
    title = "Share of the epoch's change, and change of the labels in s, any order"
    yield STEPS.listing(epochs, title, ("switch", "share", WHOLE, *labels))


def _alone(of_value: pd.DataFrame) -> Table:
    keys = ["key", "value", "base"]
    by_label = of_value.pivot(index=keys, columns="label", values="change_s")
    epochs = of_value[of_value["label"] == WHOLE].join(by_label, on=keys)
    epochs["range"] = _range(epochs)
    title = "One value alone, in place of what it is: change in s"
    return ALONE.listing(epochs, title, (*keys, WHOLE, "range", *SHOWN[:3]), names=3)


def _range(table: pd.DataFrame) -> pd.Series[str]:
    low, high = (table[name].map("{:+.3f}".format) for name in ("min_s", "max_s"))
    return low + " to " + high


def hidden(tables: Tables) -> Iterator[str]:
    """How much of the exchange is hidden on the most ranks, what ends it, what it rests on."""
    limits = tables["limits"]
    for row in limits[limits["world_size"] == limits["world_size"].max()].to_dict("records"):
        share = f"{100 * row['exchange_fraction']:.3g} %"
        end = row["bottleneck"].removeprefix("host work: ")
        ends = f"; what ends it is {end}" if end else ""
        yield (
            f"On {row['world_size']:,} ranks other work hides the exchange of {share} of the"
            f" samples ({row['way']}){ends}."
        )
    yield (
        "Rests on one seed and the routing of the scenario; accuracy is not in it."
        f" {intervals.NONE_OF_TIMES}"
    )


def of_hiding(tables: Tables) -> Iterator[str | Table]:
    """All of a search, in order."""
    limits = tables["limits"]
    variants = list(dict.fromkeys(limits["way"]))
    yield from (f"{name}: {NAMES[name]}" for name in variants)
    yield _fractions(limits, variants)
    yield _bottlenecks(limits, tables["points"])
    for row in limits[~limits["steady"]].to_dict("records"):
        yield (
            f"{row['way']} @{row['world_size']}: not monotone; more samples were found hidden again"
            " above some that are not."
        )


def _fractions(limits: pd.DataFrame, variants: list[str]) -> Table:
    shares = (100 * limits["exchange_fraction"]).map("{:.3g} % (".format)
    cells = limits.assign(cell=shares + limits["samples"].astype(str) + ")")
    wide = cells.pivot(index="world_size", columns="way", values="cell")
    sizes = limits.drop_duplicates("world_size").sort_values("world_size")
    about = ("world_size", "iterations", "samples_of_rank", "baseline_s")
    title = "Largest hidden Q (samples of a rank and epoch)"
    return SIZES.listing(sizes.join(wide, on="world_size"), title, (*about, *variants), names=0)


def _bottlenecks(limits: pd.DataFrame, points: pd.DataFrame) -> Table:
    """For each variant and size: what one sample more adds, and what each removal saves."""
    removals = [name for name in REMOVALS if name in set(points["removed"])]
    keys = ["way", "world_size", "samples"]
    shares = points.pivot(index=keys, columns="removed", values="added")
    place = limits["way"].map(list(NAMES).index)
    more = limits.assign(samples=limits["samples"] + 1, place=place).join(shares, on=keys)
    shown = more.sort_values(["place", "world_size"])
    base, ends = shown["baseline_s"], shown["over_s"].notna()
    for name in removals:
        shown[name] = 1e3 * (base * shown[""] - base * shown[name])
    shown["added"] = 1e3 * shown["over_s"]
    tier = (", " + shown["tier"]).where(shown["tier"] != "", "")
    most = shown["bottleneck"].str.removeprefix("host work: ") + tier
    shown["most"] = most.where(ends, "all can be exchanged")
    title = "What ends the hiding: ms that one sample more adds, and that each removal saves"
    columns = ["way", "world_size", "added", *removals, "most"]
    table = ENDS.listing(shown, title, columns)
    table.columns[-1].justify = "left"
    return table
