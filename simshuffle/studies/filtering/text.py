"""The report of a study of data-optimised training: what was filtered, and what that did to
accuracy."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.studies.filtering.tables import SUBSETS, FilterTables, reductions, summary
from simshuffle.studies.training.intervals import estimate

WIDTH = 110
RISK = 0.05
"""p-values below it, after Holm's correction, are called a difference."""
PAIRS = (("network", "random"), ("network", "full"), ("random", "full"))
NAMES = {
    "full": "the full data",
    "network": "network-filtered data",
    "random": "randomly filtered data",
}
Row = Mapping[Any, Any]


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
        sections += [_accuracy(chosen), _verdict(chosen), _all_rates(settings)]
    return "\n\n".join(section for section in sections if section) + "\n"


def parts(tables: FilterTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """The tables of the report as such, and the texts without which they cannot be read; arguments
    as of `report`."""
    yield _head(tables, meta)
    yield _troubles(tables.runs)
    if len(tables.filters):
        yield _reduction_table(tables.filters)
    settings = summary(tables.runs)
    if len(settings):
        yield from _accuracy_tables(settings[settings["chosen"]].sort_values("batch_size"))


def _reduction_table(filters: pd.DataFrame) -> Table:
    table = new_table(
        "Amount of data reduction (mean over seeds, 95 % interval); * what it leaves is trained on",
        ["extractor"],
        ["test accuracy in %", "samples left out in %"],
    )
    for name, (share, accuracy) in reductions(filters).items():
        used = bool(filters.loc[filters["extractor"] == name, "used"].any())
        cells = (_percent(of.mean, of.half) for of in (accuracy, share))
        table.add_row(f"{name}{' *' if used else ''}", *cells)
    return table


def _accuracy_tables(chosen: pd.DataFrame) -> Iterator[Table]:
    accuracy = new_table(
        "Test accuracy in %, at the learning rate that is best for the full data at each batch size"
        " (mean, 95 % interval)",
        [],
        ["batch", "rate", *SUBSETS],
    )
    gaps = new_table(
        "Differences in points (paired by seed; 95 % interval; * p < 0.05 after Holm's correction)",
        [],
        ["batch", *(f"{a} - {b}" for a, b in PAIRS)],
    )
    for size in dict.fromkeys(chosen["batch_size"]):
        rows = chosen[chosen["batch_size"] == size]
        rate = f"{rows['learning_rate'].iloc[0]:g}"
        accuracy.add_row(str(size), rate, *(_cell(rows, subset) for subset in SUBSETS))
        gaps.add_row(str(size), *(_gap(rows, *pair).rstrip() for pair in PAIRS))
    yield from (accuracy, gaps)


def _filled(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def _head(tables: FilterTables, meta: Mapping[str, Any]) -> str:
    counts = tables.runs["status"].value_counts().to_dict()
    ended = ", ".join(
        f"{counts[status]} {status}"
        for status in ("done", "failed", "lost", "missing")
        if status in counts
    )
    seeds = sorted(set(tables.runs["seed"]))
    lines = [
        str(meta.get("description", "")),
        f"{len(tables.runs)} runs: {ended}. Seeds: {', '.join(str(seed) for seed in seeds)}.",
    ]
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


def _reduction(filters: pd.DataFrame) -> str:
    """What each extractor takes for noise, as Table I of Gahlot et al."""
    if not len(filters):
        return ""
    lines = [
        "Amount of data reduction (mean over seeds, 95 % interval)",
        f"  {'extractor':<16}{'test accuracy':>18}{'samples left out':>22}",
    ]
    for name, (share, accuracy) in reductions(filters).items():
        mark = " *" if bool(filters.loc[filters["extractor"] == name, "used"].any()) else ""
        lines.append(
            f"  {name:<16}{_percent(accuracy.mean, accuracy.half):>18}"
            f"{_percent(share.mean, share.half):>22}{mark}"
        )
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
    lines = [
        "Share left out against eps of DBSCAN (scikit-learn's default is 0.5)",
        "  " + f"{'eps':>6}" + "".join(f"{n:>16}" for n in names),
    ]
    for eps, row in means.iterrows():
        lines.append(f"  {eps:>6g}" + "".join(f"{100 * row[name]:>14.1f} %" for name in names))
    return "\n".join(lines)


def _accuracy(chosen: pd.DataFrame) -> str:
    lines = [
        "Test accuracy in percent, at the learning rate that is best for the full data at each"
        " batch size (mean, 95 % interval)"
    ]
    lines.append(f"  {'batch':>7}{'rate':>8}" + "".join(f"{name:>18}" for name in SUBSETS))
    for size in dict.fromkeys(chosen["batch_size"]):
        rows = chosen[chosen["batch_size"] == size]
        cells = [_cell(rows, subset) for subset in SUBSETS]
        lines.append(
            f"  {size:>7}{rows['learning_rate'].iloc[0]:>8g}"
            + "".join(f"{cell:>18}" for cell in cells)
        )
    return "\n".join(lines)


def _cell(rows: pd.DataFrame, subset: str) -> str:
    found = rows[rows["subset"] == subset].to_dict("records")
    return (
        _percent(found[0]["accuracy"], (found[0]["high"] - found[0]["low"]) / 2) if found else "-"
    )


def _verdict(chosen: pd.DataFrame) -> str:
    lines = [
        "Differences in points (paired by seed; 95 % interval; * p < 0.05 after Holm's correction"
        " over the batch sizes)"
    ]
    lines.append(f"  {'batch':>7}" + "".join(f"{f'{a} - {b}':>22}" for a, b in PAIRS))
    for size in dict.fromkeys(chosen["batch_size"]):
        rows = chosen[chosen["batch_size"] == size]
        lines.append(f"  {size:>7}" + "".join(f"{_gap(rows, *pair):>22}" for pair in PAIRS))
    lines += [_filled(_sentence(chosen, *pair)) for pair in PAIRS]
    return "\n".join(lines)


def _gap(rows: pd.DataFrame, subset: str, against: str) -> str:
    found = rows[rows["subset"] == subset].to_dict("records")
    if not found or not found[0][f"{against}_pairs"]:
        return "-"
    row = found[0]
    mark = " *" if row[f"{against}_p_holm"] < RISK else "  "
    return (
        _percent(
            row[f"{against}_difference"], (row[f"{against}_high"] - row[f"{against}_low"]) / 2, "+"
        )
        + mark
    )


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
        if row[f"{against}_p_holm"] < RISK:
            sizes["better" if row[f"{against}_difference"] > 0 else "worse"].append(
                str(row["batch_size"])
            )
    parts = [f"{word} at batch size {', '.join(found)}" for word, found in sizes.items() if found]
    rest = len(rows) - sum(len(found) for found in sizes.values())
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


def _percent(mean: float, half: float, sign: str = "") -> str:
    """A share and half the width of its interval, in percent."""
    return f"{100 * mean:{sign}.1f}" + ("" if math.isnan(half) else f" ± {100 * half:.1f}")
