"""What a terminal shows of a comparison behind its answer: one table of patterns by batching, what
was sent, and what was left out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from math import ceil, log2
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.answer import (
    Duration,
    digits_of,
    duration,
    shown_rows,
    time_unit,
)
from simshuffle.studies.congestion.patterns import PATTERNS, Variant
from simshuffle.studies.congestion.tables import VARIANT, groups, of_routing, routings
from simshuffle.study.study import Meta, Tables

HEAD_WIDTH = 13
"""Columns of a line in the head of a batching."""
WIDE_RANGE = 0.02
"""Share of the median from which on the table shows how far times differ."""


def parts(tables: Tables, says: Meta) -> Iterator[str | Table]:
    """Yield the table of the most ranks, what was sent, and the notes; ``says`` is what
    ``meta.json`` says."""
    names = routings(tables)
    yield pattern_table(of_routing(tables, names[0])["times"], names)
    yield from sent_lines(tables)
    yield from effort_notes(says)
    yield from size_notes(tables, says)
    yield from notes(tables, says)


def pattern_table(times: pd.DataFrame, names: list[str]) -> Table:
    """Return the times of all patterns (rows) by batching (columns) at the largest number of ranks,
    under the first of the routings ``names``."""
    world_size = times["world_size"].max()
    rows, model = shown_rows(times[times["world_size"] == world_size])
    spent: dict[Variant, Duration] = {}
    for values, _ in groups(rows, *VARIANT):
        variant = Variant(*values)
        spent[variant] = duration(rows, variant)
    unit, unit_name = time_unit(max(of.median for of in spent.values()))

    batchings = {(v.batching, v.barrier): v for v in spent if v.pattern != "all_to_all"}
    batchings |= {("all", False): Variant("pairing_random")}
    heads = [textwrap.fill(v.message_label, HEAD_WIDTH) for v in batchings.values()]
    seeds = rows["seed"].nunique()
    title = (
        f"{world_size:,} ranks, {names[0]}: {unit_name} of an exchange, {model} model, median of"
        f" {seeds} seed{'s' * (seeds > 1)}"
    )
    cells = (
        [
            PATTERNS[pattern].label,
            *(_cell(spent.get(Variant(pattern, *batching)), unit) for batching in batchings),
        ]
        for pattern in rows["pattern"].unique()
    )
    return new_table(title, ["pattern"], heads, cells)


def _cell(spent: Duration | None, unit: float) -> str:
    """Return a time, and below it the range where that is wide."""
    if spent is None:
        return ""
    median = digits_of(spent.median / unit)
    if spent.high - spent.low < WIDE_RANGE * spent.median:
        return median
    return f"{median} {digits_of(spent.low / unit)}-{digits_of(spent.high / unit)}"


def sent_lines(tables: Tables) -> Iterator[str]:
    """Yield what the ranks send at the largest size, and how long the ports take for it."""
    sets = tables["sets"]
    largest = sets[sets["world_size"] == sets["world_size"].max()]
    yield sent_line(largest.to_dict("records")[0])


def sent_line(row: Mapping[Any, Any]) -> str:
    """Return what the ranks send of a full set, a row of ``sets``, and the time of the ports."""
    nbytes = readable(row["nbytes"], Dimension.NBYTES)
    average, busiest = row["port_s"], row["injection_s"]
    said = (
        f"{row['world_size']:,} ranks on {row['hosts']} hosts send {row['samples']} samples each,"
        f" {nbytes} in all"
    )
    if not busiest:
        return f"{said}."
    # results of earlier versions have the busiest port alone
    mean = f"{seconds_text(average)} through a port on average, " * (average < busiest)
    return f"{said}: {mean}{seconds_text(busiest)} through the busiest port."


def effort_notes(says: Meta) -> Iterator[str]:
    """Yield how much was simulated, where that is not all."""
    if effort := says.get("effort"):
        seeds = f"{effort['seeds']} of {effort['seeds_asked']} seeds"
        limits = [
            f"at most {effort['most_messages']:,} messages of an exchange",
            f"{effort['packets']:,} packets",
            *([seeds] if effort["seeds"] < effort["seeds_asked"] else []),
        ]
        yield (
            f"Simulated in part, to answer within a minute: {', '.join(limits)}. Ranges hold what"
            " was left out; --exact simulates all."
        )


def size_notes(tables: Tables, says: Meta) -> Iterator[str]:
    """Yield what was done against packets that go in step, or that nothing was."""
    if "packet" not in set(tables["times"]["model"]):
        return
    if jitter := says.get("jitter"):
        yield (
            f"Each sample is up to {percent(jitter)} larger or smaller, drawn by the seed: packets"
            " of equal messages go in step and never meet in a queue."
        )
    elif says.get("sizes_equal"):
        yield (
            "All samples have one size, and their packets never meet in a queue: do not hold packet"
            " against fluid here. Use --jitter 0.1."
        )


def notes(tables: Tables, says: Meta) -> Iterator[str]:
    """Yield what was left out, each note once with the numbers of ranks that the note is for."""
    own = of_routing(tables, routings(tables)[0])
    # of what messages cost barriers have theirs
    latency = 0.0 if "messages" in says else says["message_latency_s"]
    sizes_of_note: dict[str, list[int]] = {}
    for world_size in own["sets"]["world_size"].unique():
        for note in _notes(own["times"][own["times"]["world_size"] == world_size], latency):
            sizes_of_note.setdefault(note, []).append(int(world_size))
    for note, sizes in sizes_of_note.items():
        yield f"{', '.join(f'{size:,}' for size in sizes)} ranks: {note}"


def _notes(times: pd.DataFrame, message_latency: float) -> Iterator[str]:
    """Yield what was left out of the runs of one number of ranks; ``message_latency`` (s) is 0
    where messages cost something."""
    size, patterns = int(times["world_size"].iloc[0]), set(times["pattern"])
    packet = times[times["model"] == "packet"]
    if len(packet) and "all_to_all" in patterns - set(packet["pattern"]):
        least = f"{size * (size - 1):,}"
        yield f"all-to-all was not given to the packet model; it needs --packets {least} at least."
    if "xor" not in patterns and size & (size - 1):
        yield "no xor, which needs a power of two."
    if size % 2 and any(pattern.startswith("pairing") for pattern in patterns):
        yield "one rank has no partner in a pairing, whose bytes are missing there."
    barriers = times.loc[times["bytes_set"] == times["bytes_set"].iloc[0], "barriers"].max()
    if barriers and message_latency:
        each = ceil(log2(size)) * message_latency
        yield (
            f"barriers cost nothing here but waiting. With {seconds_text(each)} each for their own"
            f" messages (log2 M latencies of {seconds_text(message_latency)}), {barriers} of them"
            f" take {seconds_text(barriers * each)} more."
        )


def seconds_text(value: float) -> str:
    """Return a time (s) for people, in three digits."""
    return readable(value, Dimension.SECONDS, 3)


def percent(value: float) -> str:
    """Return a share as per cent, in three digits."""
    return f"{100 * value:.3g} %"
