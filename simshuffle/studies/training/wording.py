"""Word the reports on trainings: paragraphs, tables, settings, and means with
intervals.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table

from simshuffle.report.console import terminal_text
from simshuffle.studies.training.tables import CONDITION, NORMS, STATUS

if TYPE_CHECKING:
    from simshuffle.study.study import Result

WIDTH = 110
"""Columns of a report."""
RISK = 0.05
"""p-values below it, after Holm's correction, are called a difference."""
Row = Mapping[Any, Any]
"""A row of summary.csv by column, if nothing else is said."""


def paragraph(title: str, lines: Sequence[str]) -> str:
    """Return a title and indented paragraphs below it; '' where there are none."""
    if not lines:
        return ""
    return "\n".join([title, *(wrap_paragraph(line) for line in lines)])


def wrap_paragraph(line: str) -> str:
    """Wrap a paragraph to `WIDTH` and indent it; further lines are indented more.

    Between '±' or '=' and the words beside it no line breaks.
    """
    for sign in ("±", "="):
        line = line.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    folded = textwrap.wrap(
        line,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join(folded).replace("\u00a0", " ")


def join_report(parts: Iterable[str | Table]) -> str:
    """Join texts and tables to one text, with a blank line between them.

    Empty texts are left out, and the text ends with a line break.
    """
    texts = (part if isinstance(part, str) else _as_lines(part) for part in parts)
    return "\n\n".join(part for part in texts if part) + "\n"


def report_fields(
    parts: Callable[[Result], Iterable[str | Table]],
    details: Callable[[Result], Iterable[str | Table]] = lambda result: (),
) -> dict[str, Any]:
    """Return the fields of a study whose report is stored as one text, ``report.txt``.

    The fields are functions of a result. ``texts`` has that of ``report.txt``: all of
    ``parts`` and ``details`` as text. The fields ``parts`` and ``details`` each return
    a list of one joined text; ``details`` returns [] where there are none. The field
    ``exported`` returns both, with tables as tables.
    """

    def report(result: Result) -> list[str | Table]:
        """Return the texts and tables of parts, then of details."""
        return [*parts(result), *details(result)]

    return {
        "texts": {"report.txt": lambda result: join_report(report(result))},
        "parts": lambda result: [join_report(parts(result))],
        "details": lambda result: (
            [join_report(detail_parts)] if (detail_parts := [*details(result)]) else []
        ),
        "exported": report,
    }


def _as_lines(table: Table) -> str:
    """Return a table as text up to `WIDTH` columns, without spaces at ends of lines."""
    lines = terminal_text([table], WIDTH).splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def count_runs(runs: pd.DataFrame) -> str:
    """Count runs by how they ended, and list their seeds, in a sentence."""
    counts = runs["status"].value_counts().to_dict()
    ended = ", ".join(
        f"{counts[status]} {status}" for status in STATUS if status in counts
    )
    seeds = ", ".join(str(seed) for seed in sorted(set(runs["seed"])))
    return f"{len(runs)} runs: {ended}. Seeds: {seeds}."


def rows_by_condition(main: pd.DataFrame) -> list[list[dict[Any, Any]]]:
    """Return the rows of a summary table in a list for each `CONDITION`, in its order.

    Rows that have NaN in a column of `CONDITION` are left out.
    """
    return [
        rows.to_dict("records") for _, rows in main.groupby(list(CONDITION), sort=False)
    ]


def condition_label(row: Row) -> str:
    """Name the condition of a row, such as 'Batch norm per rank, M = 1024'."""
    return ", ".join(filter(None, (norm_label(row), f"M = {row['world_size']}")))


def norm_label(row: Row) -> str:
    """Name the norm and variant of a row, such as 'Batch norm per rank'.

    Returns '' where there is no norm and nothing else is varied.
    """
    norm = NORMS[row["batch_norm"]]
    return ", ".join(filter(None, (norm[:1].upper() + norm[1:], row["variant"])))


def setting_label(row: Row) -> str:
    """Return the strategy of a row, with its Q where it has one: 'IS-Pair 0.1'.

    Global and local shuffle are named without a Q.
    """
    fraction = row["exchange_fraction"]
    strategy = str(row["strategy"])
    return (
        strategy
        if strategy in {"global", "local"} or pd.isna(fraction)
        else f"{strategy} {fraction:g}"
    )


def format_percent(value: float, low: float, high: float, sign: str = "") -> str:
    """Format a share in %, with half its interval: '71.2 ± 0.4'.

    The interval is left out where ``low`` is NaN. The sign '%' is not written. With the
    ``sign`` '+' it is a difference in points.
    """
    spread = "" if math.isnan(low) else f" ± {50 * (high - low):.1f}"
    return f"{100 * value:{sign}.1f}{spread}"


def format_accuracy(row: Row, prefix: str = "") -> str:
    """Format accuracy in %, with half its interval; ``prefix`` begins the names of the
    columns ('' for the last epoch, 'best_' for the best one).
    """
    return format_percent(
        row[f"{prefix}accuracy"], row[f"{prefix}low"], row[f"{prefix}high"]
    )


def format_effective_samples(row: Row) -> str:
    """Format the samples that a rank's running statistics rest on; '' for NaN.

    They have one decimal below 100, else none. Of ``row`` only ``effective_samples``
    is read.
    """
    n = row["effective_samples"]
    return "" if math.isnan(n) else f"{n:.1f}" if n < 99.95 else f"{n:.0f}"


def star_difference(row: Row, reference: str) -> str:
    """Format a difference, with ' *' if it is significant after Holm's correction.

    '' where no seeds are common.
    """
    star = " *" if is_significant(row, reference) else ""
    return format_difference(row, reference) + star if row[f"{reference}_pairs"] else ""


def format_difference(row: Row, reference: str) -> str:
    """Format the points above the ``reference``, with half their interval.

    Without common seeds it is '+nan': look at REFERENCE_pairs first.
    """
    interval = (row[f"{reference}_low"], row[f"{reference}_high"])
    return format_percent(row[f"{reference}_difference"], *interval, "+")


def is_significant(row: Row, reference: str) -> bool:
    """Return whether a row differs from the ``reference`` after Holm's correction.

    False where there is no p-value (NaN): fewer than two common seeds.
    """
    return bool(row[f"{reference}_p_holm"] < RISK)
