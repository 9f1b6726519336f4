"""The words of the reports on trainings: paragraphs, tables, settings, and means with intervals."""

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
RISK = 0.05
"""p-values below it, after Holm's correction, are called a difference."""
Row = Mapping[Any, Any]


def paragraph(title: str, lines: Sequence[str]) -> str:
    """A title and indented paragraphs below it; nothing where there are none."""
    if not lines:
        return ""
    return "\n".join([title, *(wrapped(line) for line in lines)])


def wrapped(line: str) -> str:
    """An indented paragraph; a number keeps its sign and its unit beside it."""
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


def as_report(parts: Iterable[str | Table]) -> str:
    """Texts and tables as one text, a blank line between them."""
    shown = (part if isinstance(part, str) else _as_lines(part) for part in parts)
    return "\n\n".join(part for part in shown if part) + "\n"


def reported(
    parts: Callable[[Result], Iterable[str | Table]],
    details: Callable[[Result], Iterable[str | Table]] = lambda result: (),
) -> dict[str, Any]:
    """Return the fields of a study whose ``parts`` and ``details`` are kept as one text,
    ``report.txt``, and whose tables stand apart in documents."""

    def report(result: Result) -> list[str | Table]:
        return [*parts(result), *details(result)]

    return {
        "texts": {"report.txt": lambda result: as_report(report(result))},
        "parts": lambda result: [as_report(parts(result))],
        "details": lambda result: [as_report(rest)] if (rest := [*details(result)]) else [],
        "exported": report,
    }


def _as_lines(table: Table) -> str:
    lines = terminal_text([table], WIDTH).splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def run_counts(runs: pd.DataFrame) -> str:
    """How many runs ended how, and their seeds."""
    counts = runs["status"].value_counts().to_dict()
    ended = ", ".join(f"{counts[status]} {status}" for status in STATUS if status in counts)
    seeds = ", ".join(str(seed) for seed in sorted(set(runs["seed"])))
    return f"{len(runs)} runs: {ended}. Seeds: {seeds}."


def groups(main: pd.DataFrame) -> list[list[dict[Any, Any]]]:
    """The rows of each condition, in the order of the table."""
    return [rows.to_dict("records") for _, rows in main.groupby(list(CONDITION), sort=False)]


def condition(row: Row) -> str:
    """Such as 'Batch norm per rank, M = 1024'."""
    return ", ".join(filter(None, (where(row), f"M = {row['world_size']}")))


def where(row: Row) -> str:
    """Such as 'Batch norm per rank'; '' where there is none and nothing else is varied."""
    norm = NORMS[row["batch_norm"]]
    return ", ".join(filter(None, (norm[:1].upper() + norm[1:], row["variant"])))


def setting(row: Row) -> str:
    """The strategy, with its Q where it has one: 'IS-Pair 0.1'."""
    fraction = row["exchange_fraction"]
    strategy = str(row["strategy"])
    return (
        strategy
        if strategy in {"global", "local"} or pd.isna(fraction)
        else f"{strategy} {fraction:g}"
    )


def percent(value: float, low: float, high: float, sign: str = "") -> str:
    """A share in %, or with the ``sign`` '+' a difference in points, and half its interval."""
    spread = "" if math.isnan(low) else f" ± {50 * (high - low):.1f}"
    return f"{100 * value:{sign}.1f}{spread}"


def mean(row: Row, of: str = "") -> str:
    """Accuracy in %, with half its interval."""
    return percent(row[f"{of}accuracy"], row[f"{of}low"], row[f"{of}high"])


def rests_on(row: Row) -> str:
    """On how many samples the running statistics of a rank rest; '' where it has none."""
    n = row["effective_samples"]
    return "" if math.isnan(n) else f"{n:.1f}" if n < 99.95 else f"{n:.0f}"


def starred(row: Row, against: str) -> str:
    """A difference, with a star if it is one after Holm's correction."""
    star = " *" if found(row, against) else ""
    return difference(row, against) + star if row[f"{against}_pairs"] else ""


def difference(row: Row, against: str) -> str:
    """Points above what it is compared with, with half their interval."""
    ends = (row[f"{against}_low"], row[f"{against}_high"])
    return percent(row[f"{against}_difference"], *ends, "+")


def found(row: Row, against: str) -> bool:
    """Whether a difference is found, after Holm's correction."""
    return bool(row[f"{against}_p_holm"] < RISK)
