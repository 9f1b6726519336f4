"""An ablation, and a search for the largest hidden exchange fraction, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.tables import (
    ALONE,
    ENDS,
    NAMES,
    OWN_WAYS,
    REMOVALS,
    SIZES,
    STEPS,
    title_of,
)
from simshuffle.study.study import Tables
from simshuffle.study.verdict import Verdict

SHOWN = ("EXCHANGE", "GE+WU", "IMPT", "I/O")
LEAST = 5e-4  # s; a label that changes by no more has no column
LEAST_SAVED = 0.05  # ms; a removal that saves less saves nothing


def ablation_parts(tables: Tables) -> Iterator[str | Table]:
    """Yield the texts and tables of an ablation in order, from all its tables.

    The last texts name switches that cannot be switched first, or last.
    """
    contribution_rows = tables["contributions"]
    change_rows = tables["changes"]
    epochs = tables["runs"][tables["runs"]["label"] == WHOLE]
    ends = tables["ends"].set_index("place")
    means = epochs.groupby("state")["seconds"].mean()
    count = len(tables["switches"])
    seeds = epochs["seed"].nunique()
    suffix = " with all further switches" if ends["switched_more"].any() else ""
    yield (
        f"From {ends['name']['start']}, {means['0' * count]:.3f} s, to {ends['name']['end']}"
        f"{suffix}, {means['1' * count]:.3f} s an epoch: {len(means)} combinations of"
        f" {count} switches, {seeds} seed{'s' if seeds > 1 else ''}."
    )
    yield from _steps(tables["switches"], contribution_rows)
    if len(change_rows):
        yield _alone(change_rows)
    constrained = contribution_rows[
        (contribution_rows["label"] == WHOLE)
        & (contribution_rows["first_s"].isna() | contribution_rows["last_s"].isna())
    ]
    for row in constrained.to_dict("records"):
        position = "first" if pd.isna(row["first_s"]) else "last"
        yield (
            f"{row['switch']} cannot be switched {position}: means are over the possible orders"
            " only."
        )


def _steps(switches: pd.DataFrame, contribution_rows: pd.DataFrame) -> Iterator[Table]:
    """Yield two tables of switches: change of the epoch, and change of labels.

    The labels are `SHOWN` and FW+BW. A label that no switch changes by more than
    `LEAST` s is left out.
    """
    values = (switches["start"] + " → " + switches["end"]).set_axis(switches["switch"])
    by_label = contribution_rows.pivot(index="switch", columns="label", values="mean_s")
    epochs = contribution_rows[contribution_rows["label"] == WHOLE].join(
        by_label, on="switch"
    )
    epochs["values"], epochs["range"] = epochs["switch"].map(values), _range(epochs)
    columns = ("switch", "values", "first_s", "last_s", "mean_s", "range")
    yield STEPS.listing(epochs, "Change of the epoch in s", columns, names=2)
    largest_change = by_label.abs().max()
    labels = [
        label for label in (*SHOWN, "FW+BW") if largest_change.get(label, 0.0) > LEAST
    ]
    title = "Share of the epoch's change, and change of the labels in s, any order"
    yield STEPS.listing(epochs, title, ("switch", "share", WHOLE, *labels))


def _alone(change_rows: pd.DataFrame) -> Table:
    """Return the table of values set alone: change of the epoch and of three labels."""
    keys = ["key", "value", "base"]
    by_label = change_rows.pivot(index=keys, columns="label", values="change_s")
    epochs = change_rows[change_rows["label"] == WHOLE].join(by_label, on=keys)
    epochs["range"] = _range(epochs)
    title = "One value changed alone: change in s"
    return ALONE.listing(epochs, title, (*keys, WHOLE, "range", *SHOWN[:3]), names=3)


def _range(table: pd.DataFrame) -> pd.Series[str]:
    """Return (rows,) texts of the seeds' range in s, such as '-0.012 to +0.034'."""
    low, high = (table[name].map("{:+.3f}".format) for name in ("min_s", "max_s"))
    return low + " to " + high


def share(value: float) -> str:
    """Return a share of the samples in per cent: '24.2 %', '0.43 %'; 'none' for 0."""
    return f"{100 * value:.3g} %" if value else "none"


def hidden(tables: Tables, titles: Mapping[str, str]) -> Verdict:
    """Return the verdict: for each number of ranks a sentence on each own way, and one
    on others.

    A sentence says how much is hidden, and that on an own way what ends the hiding.
    ``titles`` are those of the own ways.
    """
    answer = []
    for _, rows in tables["limits"].groupby("world_size", sort=True):
        way_rows = rows.to_dict("records")
        answer += [
            _own_sentence(row, titles) for row in way_rows if row["way"] in OWN_WAYS
        ]
        other_rows = [row for row in way_rows if row["way"] not in OWN_WAYS]
        if other_rows:
            listed = ", ".join(
                f"{row['way']} {share(row['exchange_fraction'])}" for row in other_rows
            )
            ranks = f"{other_rows[0]['world_size']:,} ranks"
            answer.append(
                f"Other schedules on {ranks}, which no run of the scenario has: {listed}."
            )
    return Verdict(
        answer,
        rests_on="one seed and the routing of the scenario; accuracy is left out.",
        measure_next=f"{intervals.ERRORS_LEFT_OUT}.",
    )


def _own_sentence(row: Mapping[Any, Any], titles: Mapping[str, str]) -> str:
    """Return the sentence on how much of the scenario's own exchange is hidden."""
    end = row["bottleneck"].removeprefix("host work: ")
    ends = f"; the limit is {end}" if end else ""
    title = title_of(row["way"], titles).removeprefix("own: ")
    amount = share(row["exchange_fraction"]) if row["samples"] else "nothing"
    return (
        f"On {row['world_size']:,} ranks other work hides the exchange of {amount} of the samples"
        f" ({title}){ends}."
    )


def _interval(row: Mapping[Any, Any]) -> str:
    """Return the interval of Q in percent, at most 100 %, in parentheses.

    '' where the number is exact. ``samples`` of the row must be above 0.
    """
    if row["samples_low"] == row["samples_high"]:
        return ""
    fraction = row["exchange_fraction"] / row["samples"]
    low, high = (100 * fraction * row[f"samples_{end}"] for end in ("low", "high"))
    return f" ({low:.3g} to {min(high, 100):.3g} %)"


def hiding_parts(tables: Tables, titles: Mapping[str, str]) -> Iterator[str | Table]:
    """Yield the texts and tables of a search in order; ``titles`` has the titles of the
    scenario's exchange.
    """
    limits = tables["limits"]
    way_names = list(dict.fromkeys(limits["way"]))
    yield from (
        f"{way}: {title_of(way, titles).partition(': ')[2] or NAMES[way]}"
        for way in way_names
    )
    yield _fractions(limits, way_names)
    yield from _bottlenecks(limits, tables["points"])
    for row in limits[~limits["steady"]].to_dict("records"):
        yield (
            f"{row['way']} @{row['world_size']}: not monotone; some numbers of samples are not"
            " hidden, although a larger number is."
        )


def _fractions(limits: pd.DataFrame, way_names: list[str]) -> Table:
    """Return the table of the largest hidden Q, by world size and way."""
    rows = limits.to_dict("records")
    texts = [
        f"{share(row['exchange_fraction'])}{_interval(row)}\n{row['samples']:,} samples"
        if row["samples"]
        else "none"
        for row in rows
    ]
    wide = limits.assign(cell=texts).pivot(
        index="world_size", columns="way", values="cell"
    )
    sizes = limits.drop_duplicates("world_size").sort_values("world_size")
    size_columns = ("world_size", "iterations", "samples_of_rank", "baseline_s")
    title = "Largest hidden Q (samples of a rank and epoch)"
    return SIZES.listing(
        sizes.join(wide, on="world_size"), title, (*size_columns, *way_names), names=0
    )


def _bottlenecks(limits: pd.DataFrame, points: pd.DataFrame) -> Iterator[str | Table]:
    """Yield a table with a row for each way and size that does not hide all samples.

    It has the samples that are no longer hidden, what they add, and what each removal
    saves, in ms. A removal that saves less than `LEAST_SAVED` ms has no number. If all
    samples are hidden everywhere, a sentence is yielded in its place.
    """
    removed = points[points["removed"] != ""]
    keys = ["way", "world_size"]
    exceeding_samples = removed.groupby(keys)["samples"].max().rename("tried")
    way_order = limits["way"].map(list(NAMES).index)
    ending_rows = (
        limits.assign(place=way_order)
        .join(exceeding_samples, on=keys)
        .sort_values(["place", "world_size"])
    )
    ending_rows = ending_rows[ending_rows["over_s"].notna()]
    if not len(ending_rows):
        yield "All samples can be exchanged while the epoch takes no longer."
        return
    shares = points.pivot(index=[*keys, "samples"], columns="removed", values="added")
    ending_rows = ending_rows.join(shares, on=[*keys, "tried"])
    removals = [name for name in REMOVALS if name in set(removed["removed"])]
    for name in removals:
        saved = 1e3 * ending_rows["baseline_s"] * (ending_rows[""] - ending_rows[name])
        ending_rows[name] = saved.where(saved >= LEAST_SAVED)
    ending_rows["added"] = 1e3 * ending_rows["over_s"]
    tier = (", " + ending_rows["tier"]).where(ending_rows["tier"] != "", "")
    ending_rows["most"] = (
        ending_rows["bottleneck"].str.removeprefix("host work: ") + tier
    )
    from_closed_forms = ending_rows["saved_s"].isna() & (
        ending_rows["bottleneck"] != ""
    )
    ending_rows["most"] += from_closed_forms.map({True: " (closed forms)", False: ""})
    title = (
        "What ends the hiding: ms by which an epoch is longer, and ms that each"
        " removal saves"
    )
    table = ENDS.listing(
        ending_rows, title, ["way", "world_size", "tried", "added", *removals, "most"]
    )
    table.columns[-1].justify = "left"
    yield table
