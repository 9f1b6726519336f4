"""The report of a study of data-optimised training: what was filtered, and what that did to
accuracy."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.studies.filtering.tables import SUBSETS, FilterTables, reductions, summary
from simshuffle.studies.training.intervals import estimate
from simshuffle.studies.training.wording import (
    RISK,
    WIDTH,
    Row,
    as_lines,
    as_table,
    found,
    mean,
    percent,
    run_counts,
    starred,
)

PAIRS = (("network", "random"), ("network", "full"), ("random", "full"))
GAP_NAMES = ["batch", *(f"{a} - {b}" for a, b in PAIRS)]
REDUCTION = "Amount of data reduction (mean over seeds, 95 % interval)"
ACCURACY = "Test accuracy"
BEST = (
    "at the learning rate that is best for the full data at each batch size (mean, 95 % interval)"
)
GAPS = "Differences in points (paired by seed; 95 % interval; * p < 0.05 after Holm's correction"
NAMES = {
    "full": "the full data",
    "network": "network-filtered data",
    "random": "randomly filtered data",
}


def report(tables: FilterTables, meta: Mapping[str, Any]) -> str:
    """The whole report.

    Args:
        tables: of the study.
        meta: 'study' and 'description' of it.
    """
    settings = summary(tables.runs)
    sections = [
        _head(tables, meta),
        _troubles(tables.runs),
        _reduction(tables.filters),
        _eps(tables),
    ]
    if len(settings):
        chosen = settings[settings["chosen"]].sort_values("batch_size")
        title = f"{ACCURACY} in percent, {BEST}"
        names = ["batch", "rate", *SUBSETS]
        sections.append(as_lines(title, names, _accuracy_rows(chosen), 7, 8, 18, 18, 18))
        sections += [_verdict(chosen), _all_rates(settings)]
    return "\n\n".join(section for section in sections if section) + "\n"


def parts(tables: FilterTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """The tables of the report as such, and the texts without which they cannot be read; arguments
    as of `report`."""
    yield _head(tables, meta)
    yield _troubles(tables.runs)
    if len(tables.filters):
        title = f"{REDUCTION}; * what it leaves is trained on"
        names = ["test accuracy in %", "samples left out in %"]
        rows = [[f"{name}{mark}", *cells] for name, *cells, mark in _reduction_rows(tables.filters)]
        yield as_table(title, ["extractor"], names, rows)
    settings = summary(tables.runs)
    if len(settings):
        chosen = settings[settings["chosen"]].sort_values("batch_size")
        names = ["batch", "rate", *SUBSETS]
        yield as_table(f"{ACCURACY} in %, {BEST}", [], names, _accuracy_rows(chosen))
        yield as_table(f"{GAPS})", [], GAP_NAMES, _gap_rows(chosen))


def _filled(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def _head(tables: FilterTables, meta: Mapping[str, Any]) -> str:
    lines = [str(meta.get("description", "")), run_counts(tables.runs)]
    return "\n".join(
        [f"Study {meta.get('study', '')}", *(_filled(line) for line in lines if line.strip())]
    )


def _troubles(runs: pd.DataFrame) -> str:
    rows = runs[runs["status"].isin(["failed", "lost"])].to_dict("records")
    if not rows:
        return ""
    head = "Runs without a result; they are left out of every mean and comparison below:"
    return "\n".join(
        [head, *(_filled(f"{row['run']} ({row['status']}): {row['message']}") for row in rows)]
    )


def _reduction_rows(filters: pd.DataFrame) -> list[list[str]]:
    """What each extractor takes for noise, as Table I of Gahlot et al.: its name, test accuracy,
    samples left out, and ' *' if it is used."""
    rows = []
    for name, (share, accuracy) in reductions(filters).items():
        used = bool(filters.loc[filters["extractor"] == name, "used"].any())
        cells = (percent(of.mean, of.low, of.high) for of in (accuracy, share))
        rows.append([name, *cells, " *" if used else ""])
    return rows


def _reduction(filters: pd.DataFrame) -> str:
    if not len(filters):
        return ""
    names = ["extractor", "test accuracy", "samples left out", ""]
    lines = [as_lines(REDUCTION, names, _reduction_rows(filters), -16, 18, 22, 0)]
    used = filters[filters["used"]]
    right = [
        estimate(used[name].dropna().tolist()).mean for name in ("noise_accuracy", "kept_accuracy")
    ]
    lines.append("  * networks below are trained on what this one leaves.")
    if not math.isnan(right[0]):
        lines.append(
            _filled(
                f"It classifies {100 * right[0]:.1f} % of what it leaves out rightly, and"
                f" {100 * right[1]:.1f} % of the rest."
            )
        )
    return "\n".join(lines)


def _eps(tables: FilterTables) -> str:
    """The share of noise against DBSCAN's eps."""
    if not len(tables.eps):
        return ""
    means = (
        tables.eps.groupby(["eps", "extractor"], sort=False)["reduction"]
        .mean()
        .unstack("extractor")
        .sort_index()
    )
    names = [name for name in dict.fromkeys(tables.eps["extractor"]) if name in means]
    rows = [
        [f"{eps:g}", *(f"{100 * row[name]:.1f} %" for name in names)]
        for eps, row in means.iterrows()
    ]
    title = "Share left out against eps of DBSCAN (scikit-learn's default is 0.5)"
    return as_lines(title, ["eps", *names], rows, 6, *[16] * len(names))


def _of_subset(rows: pd.DataFrame, subset: str) -> Row | None:
    return next(iter(rows[rows["subset"] == subset].to_dict("records")), None)


def _by_size(chosen: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for size in dict.fromkeys(chosen["batch_size"]):
        yield str(size), chosen[chosen["batch_size"] == size]


def _accuracy_rows(chosen: pd.DataFrame) -> list[list[str]]:
    """Batch size, learning rate, and the accuracy with each of `SUBSETS`."""
    out = []
    for size, rows in _by_size(chosen):
        cells = (mean(row) if (row := _of_subset(rows, name)) else "-" for name in SUBSETS)
        out.append([size, f"{rows['learning_rate'].iloc[0]:g}", *cells])
    return out


def _gap_rows(chosen: pd.DataFrame) -> list[list[str]]:
    """Batch size, and the difference of each of `PAIRS`."""
    return [[size, *(_gap(rows, *pair) for pair in PAIRS)] for size, rows in _by_size(chosen)]


def _gap(rows: pd.DataFrame, subset: str, against: str) -> str:
    row = _of_subset(rows, subset)
    return starred(row, against) if row and row[f"{against}_pairs"] else "-"


def _verdict(chosen: pd.DataFrame) -> str:
    title = f"{GAPS} over the batch sizes)"
    lines = [as_lines(title, GAP_NAMES, _gap_rows(chosen), 7, 22, 22, 22)]
    return "\n".join([*lines, *(_filled(_sentence(chosen, *pair)) for pair in PAIRS)])


def _sentence(chosen: pd.DataFrame, subset: str, against: str) -> str:
    """At which batch sizes one data set is better than another."""
    rows = chosen[(chosen["subset"] == subset) & (chosen[f"{against}_pairs"] > 1)].to_dict(
        "records"
    )
    what = f"{NAMES[subset].capitalize()} against {NAMES[against]}"
    if not rows:
        return f"{what}: too few seeds to tell."
    sizes: dict[str, list[str]] = {"better": [], "worse": []}
    for row in rows:
        if found(row, against):
            sizes["better" if row[f"{against}_difference"] > 0 else "worse"].append(
                str(row["batch_size"])
            )
    parts = [f"{word} at batch size {', '.join(those)}" for word, those in sizes.items() if those]
    rest = len(rows) - sum(len(those) for those in sizes.values())
    parts += (
        [
            f"no difference found at {'all' if rest == len(rows) else 'the other'} {rest} of"
            f" {len(rows)}"
        ]
        if rest
        else []
    )
    return f"{what}: {'; '.join(parts)}."


def _all_rates(settings: pd.DataFrame) -> str:
    """The same over every learning rate, those not chosen included."""
    if settings["learning_rate"].nunique() < 2:
        return ""
    lines = [
        "Over all batch sizes and learning rates: settings in which one is better with p < 0.05,"
        " uncorrected"
    ]
    for subset, against in PAIRS:
        rows = settings[(settings["subset"] == subset) & (settings[f"{against}_pairs"] > 1)]
        sure = rows[f"{against}_p"].astype(float) < RISK
        better, worse = (
            (sure & (sign * rows[f"{against}_difference"] > 0)).sum() for sign in (1, -1)
        )
        lines.append(
            _filled(
                f"{NAMES[subset]} against {NAMES[against]}: better in {better}, worse in {worse} of"
                f" {len(rows)}."
            )
        )
    return "\n".join(lines)
