"""The words of the report: sections, numbers, and the front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.time_to_accuracy.claims import paired, points
from simshuffle.studies.time_to_accuracy.front import CRITERIA, Beaten, beaten
from simshuffle.studies.time_to_accuracy.tables import Tables
from simshuffle.studies.training.wording import wrapped

Row = Mapping[Any, Any]


def section(title: str, lines: Sequence[str]) -> str:
    """A title and indented paragraphs below it; nothing where there are none."""
    return "\n".join([title, *(folded(line) for line in lines)]) if lines else ""


def folded(line: str) -> str:
    """An indented paragraph; percent signs stay with their numbers."""
    return wrapped(line.replace(" %", "\u00a0%"))


def seconds(value: float) -> str:
    """Three digits, two below 0.1 s, whole seconds from 100 s on."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 0.1 else f"{value:.3g}"


def accuracy(row: Row) -> str:
    """Mean final accuracy (%) with half its interval."""
    spread = "" if math.isnan(row["low"]) else f" ± {50 * (row['high'] - row['low']):.1f}"
    return f"{100 * row['accuracy']:.1f}{spread}"


def front_section(tables: Tables) -> str:
    """Which settings no other one beats, and what beats each of the others."""
    settings = tables.settings
    front = settings[settings["on_front"]].sort_values("total_s").to_dict("records")
    if not front:
        return ""
    lines = [
        "No other setting is at least as good in storage per host, time of all epochs, requests to"
        " the file system and mean final accuracy, and better in one of them. Means alone decide;"
        " neighbours whose intervals overlap may change places with other seeds."
    ]
    for row in front:
        storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
        lines.append(
            f"{row['setting']}: {storage} a host, {seconds(row['total_s'])} s,"
            f" {readable_count(row['total_requests'])} requests, {accuracy(row)} %."
        )
    others = [_beaten(tables, each) for each in beaten(settings)]
    if others:
        others.insert(0, "In brackets: accuracy of the one that beats it less its own, paired.")
    sections = [section("Pareto front", lines), section("Beaten", others)]
    return "\n\n".join(section for section in sections if section)


def _beaten(tables: Tables, found: Beaten) -> str:
    """What beats a setting, and in what."""
    if len(found.better) == len(CRITERIA):
        in_what = "in all four"
    else:
        alike = [name for name in CRITERIA if name not in found.better]
        in_what = f"in {_and(found.better)}; alike in {_and(alike)}"
    difference = points(paired(tables, found.by, found.setting))
    return f"{found.setting}: beaten by {found.by} {in_what} ({difference} points)."


def _and(words: Sequence[str]) -> str:
    """Such as 'storage, time and accuracy'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
