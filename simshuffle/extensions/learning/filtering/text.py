"""The report of a study of data-optimised training: what was filtered, and what that did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.filtering.tables import SUBSETS, FilterTables, summary
from simshuffle.report.console import new_table
from simshuffle.studies.training.summary import estimate
from simshuffle.studies.training.wording import (
    RISK,
    Row,
    count_runs,
    format_accuracy,
    format_percent,
    is_significant,
    paragraph,
    star_difference,
    wrap_paragraph,
)

PAIRS = (("network", "random"), ("network", "full"), ("random", "full"))
NAMES = {
    "full": "the full data",
    "network": "network-filtered data",
    "random": "randomly filtered data",
}


def parts(tables: FilterTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """The whole report, in order; ``meta`` has 'study' and 'description' of the study."""
    lines = [str(meta.get("description", "")), count_runs(tables.runs)]
    yield paragraph(f"Study {meta.get('study', '')}", [line for line in lines if line.strip()])
    yield _troubles(tables.runs)
    if len(tables.filters):
        yield from _reduction(tables.filters)
    if len(tables.eps):
        yield _eps(tables.eps)
    settings = summary(tables.runs)
    if len(settings):
        chosen = settings[settings["chosen"]].sort_values("batch_size")
        yield new_table(
            "Test accuracy in %, at the learning rate that is best for the full data at each batch"
            " size (mean, 95 % interval)",
            [],
            ["batch", "rate", *SUBSETS],
            _accuracy_rows(chosen),
        )
        yield new_table(
            "Differences in points (paired by seed; 95 % interval; * p < 0.05 after Holm's"
            " correction over the batch sizes)",
            [],
            ["batch", *(f"{a} - {b}" for a, b in PAIRS)],
            [[size, *(_gap(of, *pair) for pair in PAIRS)] for size, of in _by_size(chosen)],
        )
        yield "\n".join(wrap_paragraph(_sentence(chosen, *pair)) for pair in PAIRS)
        yield _all_rates(settings)


def _troubles(runs: pd.DataFrame) -> str:
    rows = runs[runs["status"].isin(["failed", "lost"])].to_dict("records")
    return paragraph(
        "Runs without a result; they are left out of every mean and comparison below:",
        [f"{row['run']} ({row['status']}): {row['message']}" for row in rows],
    )


def _reduction(filters: pd.DataFrame) -> Iterator[str | Table]:
    """What each extractor takes for noise, as Table I of Gahlot et al."""
    used = filters[filters["used"]]
    rows: list[list[str]] = []
    for name, of_name in filters.groupby("extractor", sort=False):
        columns = (of_name["test_accuracy"], of_name["reduction"])
        means = (estimate(column.tolist()) for column in columns)
        cells = (format_percent(of.mean, of.low, of.high) for of in means)
        star = " *" if name in set(used["extractor"]) else ""
        rows.append([f"{name}{star}", *cells])
    title = (
        "Amount of data reduction (mean over seeds, 95 % interval); * what it leaves is trained on"
    )
    yield new_table(title, ["extractor"], ["test accuracy in %", "samples left out in %"], rows)
    noise, kept = (used[name].dropna().mean() for name in ("noise_accuracy", "kept_accuracy"))
    if not math.isnan(noise):
        yield wrap_paragraph(
            f"* classifies {100 * noise:.1f} % of what it leaves out rightly, and"
            f" {100 * kept:.1f} % of the rest."
        )


def _eps(eps: pd.DataFrame) -> Table:
    """The share of noise against DBSCAN's eps."""
    means = eps.pivot_table("reduction", "eps", "extractor", sort=False).sort_index()
    names = list(dict.fromkeys(eps["extractor"]))
    rows = [
        [f"{of:g}", *(f"{100 * row[name]:.1f} %" for name in names)] for of, row in means.iterrows()
    ]
    title = "Share left out against eps of DBSCAN (scikit-learn's default is 0.5)"
    return new_table(title, [], ["eps", *names], rows)


def _of_subset(rows: pd.DataFrame, subset: str) -> Row | None:
    return next(iter(rows[rows["subset"] == subset].to_dict("records")), None)


def _by_size(chosen: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for size in dict.fromkeys(chosen["batch_size"]):
        yield str(size), chosen[chosen["batch_size"] == size]


def _accuracy_rows(chosen: pd.DataFrame) -> list[list[str]]:
    """Batch size, learning rate, and the accuracy with each of `SUBSETS`."""
    out = []
    for size, rows in _by_size(chosen):
        cells = (
            format_accuracy(row) if (row := _of_subset(rows, name)) else "-" for name in SUBSETS
        )
        out.append([size, f"{rows['learning_rate'].iloc[0]:g}", *cells])
    return out


def _gap(rows: pd.DataFrame, subset: str, against: str) -> str:
    row = _of_subset(rows, subset)
    return star_difference(row, against) if row and row[f"{against}_pairs"] else "-"


def _compared(settings: pd.DataFrame, subset: str, against: str) -> pd.DataFrame:
    """Return the rows of a data set that were compared with another over several seeds."""
    return settings[(settings["subset"] == subset) & (settings[f"{against}_pairs"] > 1)]


def _sentence(chosen: pd.DataFrame, subset: str, against: str) -> str:
    """At which batch sizes one data set is better than another."""
    rows = _compared(chosen, subset, against).to_dict("records")
    what = f"{NAMES[subset].capitalize()} against {NAMES[against]}"
    if not rows:
        return f"{what}: too few seeds to tell."
    sure = [row for row in rows if is_significant(row, against)]
    parts = []
    for word, sign in (("better", 1), ("worse", -1)):
        sizes = [r["batch_size"] for r in sure if sign * r[f"{against}_difference"] > 0]
        if sizes:
            parts.append(f"{word} at batch size {', '.join(map(str, sizes))}")
    if rest := len(rows) - len(sure):
        where = "the other" if sure else "all"
        parts.append(f"no difference found at {where} {rest} of {len(rows)}")
    return f"{what}: {'; '.join(parts)}."


def _all_rates(settings: pd.DataFrame) -> str:
    """The same over every learning rate, those not chosen included."""
    if settings["learning_rate"].nunique() < 2:
        return ""
    lines = []
    for subset, against in PAIRS:
        rows = _compared(settings, subset, against)
        sure = rows.loc[rows[f"{against}_p"].astype(float) < RISK, f"{against}_difference"]
        lines.append(
            f"{NAMES[subset]} against {NAMES[against]}: better in {(sure > 0).sum()}, worse in"
            f" {(sure < 0).sum()} of {len(rows)}."
        )
    return paragraph(
        "Over all batch sizes and learning rates: settings in which one is better with p < 0.05,"
        " uncorrected",
        lines,
    )
