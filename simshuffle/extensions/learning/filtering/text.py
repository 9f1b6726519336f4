"""Write the report of a data-optimised study: the filters, and their effect on
accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.filtering.tables import (
    SUBSETS,
    FilterTables,
    summary,
)
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
    """Yield the report, in order; ``meta`` has 'study' and 'description' of the study.

    Without finished runs the report ends after the filters. Parts may be ''.
    """
    lines = [str(meta.get("description", "")), count_runs(tables.runs)]
    yield paragraph(
        f"Study {meta.get('study', '')}", [line for line in lines if line.strip()]
    )
    yield _list_unusable_runs(tables.runs)
    if len(tables.filters):
        yield from _state_reduction(tables.filters)
    if len(tables.eps):
        yield _eps_table(tables.eps)
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
            [
                [size, *(_format_gap(size_rows, *pair) for pair in PAIRS)]
                for size, size_rows in _rows_by_size(chosen)
            ],
        )
        yield "\n".join(
            wrap_paragraph(_state_comparison(chosen, *pair)) for pair in PAIRS
        )
        yield _state_all_rates(settings)


def _list_unusable_runs(runs: pd.DataFrame) -> str:
    """List the runs that failed or were lost; '' if there are none."""
    rows = runs[runs["status"].isin(["failed", "lost"])].to_dict("records")
    return paragraph(
        "Runs without a result; they are left out of every mean and comparison below:",
        [f"{row['run']} ({row['status']}): {row['message']}" for row in rows],
    )


def _state_reduction(filters: pd.DataFrame) -> Iterator[str | Table]:
    """Yield the share that each extractor takes for noise, as Table I of Gahlot et al.

    A sentence follows on how much of the noise and of the rest the used extractor
    classifies rightly, unless it leaves nothing out.
    """
    used_rows = filters[filters["used"]]
    rows: list[list[str]] = []
    for name, extractor_rows in filters.groupby("extractor", sort=False):
        columns = (extractor_rows["test_accuracy"], extractor_rows["reduction"])
        means = (estimate(column.tolist()) for column in columns)
        cells = (format_percent(mean.mean, mean.low, mean.high) for mean in means)
        star = " *" if name in set(used_rows["extractor"]) else ""
        rows.append([f"{name}{star}", *cells])
    title = (
        "Amount of data reduction (mean over seeds, 95 % interval); *"
        " networks are trained on what this filter leaves"
    )
    yield new_table(
        title, ["extractor"], ["test accuracy in %", "samples left out in %"], rows
    )
    noise_accuracy, kept_accuracy = (
        used_rows[name].dropna().mean() for name in ("noise_accuracy", "kept_accuracy")
    )
    if not math.isnan(noise_accuracy):
        yield wrap_paragraph(
            f"The network marked * classifies {100 * noise_accuracy:.1f} % of the samples that it"
            f" leaves out rightly, and {100 * kept_accuracy:.1f} % of the others."
        )


def _eps_table(eps: pd.DataFrame) -> Table:
    """Return the table of the share of noise by eps and extractor, mean over seeds."""
    means = eps.pivot_table("reduction", "eps", "extractor", sort=False).sort_index()
    names = list(dict.fromkeys(eps["extractor"]))
    rows = [
        [f"{value:g}", *(f"{100 * row[name]:.1f} %" for name in names)]
        for value, row in means.iterrows()
    ]
    title = "Share left out against eps of DBSCAN (scikit-learn's default is 0.5)"
    return new_table(title, [], ["eps", *names], rows)


def _subset_row(rows: pd.DataFrame, subset: str) -> Row | None:
    """Return the first row of a subset; None if there is none."""
    return next(iter(rows[rows["subset"] == subset].to_dict("records")), None)


def _rows_by_size(chosen: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each batch size as text, such as '256', with its rows, in the order of the
    table.
    """
    for size in dict.fromkeys(chosen["batch_size"]):
        yield str(size), chosen[chosen["batch_size"] == size]


def _accuracy_rows(chosen: pd.DataFrame) -> list[list[str]]:
    """Return rows of batch size, learning rate, and the accuracy with each of
    `SUBSETS`.
    """
    rows_shown = []
    for size, rows in _rows_by_size(chosen):
        cells = (
            format_accuracy(row) if (row := _subset_row(rows, name)) else "-"
            for name in SUBSETS
        )
        rows_shown.append([size, f"{rows['learning_rate'].iloc[0]:g}", *cells])
    return rows_shown


def _format_gap(rows: pd.DataFrame, subset: str, reference: str) -> str:
    """Format the difference of a subset to another one; '-' where there are no pairs of
    seeds.
    """
    row = _subset_row(rows, subset)
    return star_difference(row, reference) if row and row[f"{reference}_pairs"] else "-"


def _comparable_rows(
    settings: pd.DataFrame, subset: str, reference: str
) -> pd.DataFrame:
    """Return the rows of a data set that were compared with another over several seeds.

    Rows with fewer than two common seeds are left out.
    """
    return settings[
        (settings["subset"] == subset) & (settings[f"{reference}_pairs"] > 1)
    ]


def _state_comparison(chosen: pd.DataFrame, subset: str, reference: str) -> str:
    """State at which batch sizes one data set is better or worse than another.

    Better and worse are significant after Holm's correction. Sizes with fewer than two
    common seeds do not count.
    """
    rows = _comparable_rows(chosen, subset, reference).to_dict("records")
    subject = f"{NAMES[subset].capitalize()} against {NAMES[reference]}"
    if not rows:
        return f"{subject}: too few seeds to tell."
    significant = [row for row in rows if is_significant(row, reference)]
    parts = []
    for word, sign in (("better", 1), ("worse", -1)):
        sizes = [
            row["batch_size"]
            for row in significant
            if sign * row[f"{reference}_difference"] > 0
        ]
        if sizes:
            parts.append(f"{word} at batch size {', '.join(map(str, sizes))}")
    if num_undecided := len(rows) - len(significant):
        sizes_clause = "the other" if significant else "all"
        parts.append(
            f"no difference found at {sizes_clause} {num_undecided} of {len(rows)}"
        )
    return f"{subject}: {'; '.join(parts)}."


def _state_all_rates(settings: pd.DataFrame) -> str:
    """Count the settings in which one data set is better, over every learning rate.

    '' where there is one learning rate. Significant is p below `RISK`, uncorrected.
    Settings with fewer than two common seeds do not count.
    """
    if settings["learning_rate"].nunique() < 2:
        return ""
    lines = []
    for subset, reference in PAIRS:
        rows = _comparable_rows(settings, subset, reference)
        significant = rows.loc[
            rows[f"{reference}_p"].astype(float) < RISK, f"{reference}_difference"
        ]
        lines.append(
            f"{NAMES[subset]} against {NAMES[reference]}: better in {(significant > 0).sum()},"
            f" worse in {(significant < 0).sum()} of {len(rows)}."
        )
    return paragraph(
        "Over all batch sizes and learning rates: settings in which one data set is better with p"
        " < 0.05,"
        " uncorrected",
        lines,
    )
