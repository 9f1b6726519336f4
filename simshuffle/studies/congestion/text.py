"""Print a comparison behind its answer: one table of patterns by batching, what was
sent, and what was left out.
"""

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
from simshuffle.studies.congestion.tables import (
    VARIANT,
    groups,
    routings,
    select_routing,
)
from simshuffle.study.study import Meta, Tables

HEAD_WIDTH = 13
"""Columns of a line in the head of a batching."""
WIDE_RANGE = 0.02
"""Share of the median from which on the table shows how far times differ."""


def parts(tables: Tables, meta: Meta) -> Iterator[str | Table]:
    """Yield the table of the most ranks, what was sent, and the notes; ``meta`` is the
    content of ``meta.json``.

    All are of the first routing.
    """
    names = routings(tables)
    yield pattern_table(select_routing(tables, names[0])["times"], names)
    yield from sent_lines(tables)
    yield from effort_notes(meta)
    yield from size_notes(tables, meta)
    yield from notes(tables, meta)


def pattern_table(times: pd.DataFrame, names: list[str]) -> Table:
    """Return the times of all patterns (rows) by batching (columns) at the largest
    number of ranks, by one model: medians over seeds.

    The all-to-all stands in the column of an epoch. Variants that were not run have
    empty cells.

    Args:
        times: rows of one routing in the table ``times``.
        names: names of the routings; the title says that the times are of the first.
    """
    world_size = times["world_size"].max()
    rows, model = shown_rows(times[times["world_size"] == world_size])
    durations: dict[Variant, Duration] = {}
    for values, _ in groups(rows, *VARIANT):
        variant = Variant(*values)
        durations[variant] = duration(rows, variant)
    unit, unit_name = time_unit(
        max(variant_duration.median for variant_duration in durations.values())
    )

    batchings = {
        (variant.batching, variant.barrier): variant
        for variant in durations
        if variant.pattern != "all_to_all"
    }
    batchings |= {("all", False): Variant("pairing_random")}
    heads = [
        textwrap.fill(variant.message_label, HEAD_WIDTH)
        for variant in batchings.values()
    ]
    seeds = rows["seed"].nunique()
    title = (
        f"{world_size:,} ranks, {names[0]}: {unit_name} of an exchange, {model} model, median of"
        f" {seeds} seed{'s' * (seeds > 1)}"
    )
    cells = (
        [
            PATTERNS[pattern].label,
            *(
                _cell(durations.get(Variant(pattern, *batching)), unit)
                for batching in batchings
            ),
        ]
        for pattern in rows["pattern"].unique()
    )
    return new_table(title, ["pattern"], heads, cells)


def _cell(variant_duration: Duration | None, unit: float) -> str:
    """Return a time in units of ``unit`` s, and behind it the range where that is wide;
    '' for None.
    """
    if variant_duration is None:
        return ""
    median = digits_of(variant_duration.median / unit)
    if (
        variant_duration.high - variant_duration.low
        < WIDE_RANGE * variant_duration.median
    ):
        return median
    low = variant_duration.low / unit
    high = variant_duration.high / unit
    return f"{median} {digits_of(low)}-{digits_of(high)}"


def sent_lines(tables: Tables) -> Iterator[str]:
    """Yield the bytes that the ranks send at the largest size, and the time that the
    ports take for them: one line, of the first routing and set of bytes.
    """
    sets = tables["sets"]
    largest = sets[sets["world_size"] == sets["world_size"].max()]
    yield sent_line(largest.to_dict("records")[0])


def sent_line(row: Mapping[Any, Any]) -> str:
    """Return the bytes that the ranks send of a set, a row of ``sets``, and the time of
    the ports.

    The ports are left out where no bytes leave a host.
    """
    nbytes = readable(row["nbytes"], Dimension.NBYTES)
    average = row["port_s"]
    busiest = row["injection_s"]
    sentence = (
        f"{row['world_size']:,} ranks on {row['hosts']} hosts send {row['samples']} samples each,"
        f" {nbytes} in all"
    )
    if not busiest:
        return f"{sentence}."
    # results of earlier versions have the busiest port alone
    mean = f"{seconds_text(average)} through a port on average, " * (average < busiest)
    rack = row.get("rack_s", 0.0)
    racks = f", and {seconds_text(rack)} out of the fullest rack by any schedule" * (
        rack > 0
    )
    return f"{sentence}: {mean}{seconds_text(busiest)} through the busiest port{racks}."


def effort_notes(meta: Meta) -> Iterator[str]:
    """Yield one line on the limits of what was simulated; nothing where that is all."""
    if effort := meta.get("effort"):
        seeds = f"{effort['seeds']} of {effort['seeds_asked']} seeds"
        limits = [
            f"at most {effort['most_messages']:,} messages of an exchange",
            f"{effort['packets']:,} packets",
            *([seeds] if effort["seeds"] < effort["seeds_asked"] else []),
        ]
        yield (
            f"Simulated in part, to answer within a minute: {', '.join(limits)}. Ranges cover the"
            " parts that were left out; --exact simulates all."
        )


def size_notes(tables: Tables, meta: Meta) -> Iterator[str]:
    """Yield how far sizes of samples were varied, or a warning that they were not.

    Nothing is yielded without the packet model, or where sizes differ by themselves.
    """
    if "packet" not in set(tables["times"]["model"]):
        return
    if jitter := meta.get("jitter"):
        yield (
            f"Sizes of samples vary by up to {percent(jitter)}, drawn by the seed. If all sizes"
            " were equal, packets would move in step and never meet in a queue."
        )
    elif meta.get("sizes_equal"):
        yield (
            "All samples have one size, so their packets never meet in a queue. Do not compare"
            " the packet model with the fluid model here; use --jitter 0.1."
        )


def notes(tables: Tables, meta: Meta) -> Iterator[str]:
    """Yield what was left out under the first routing, each note once, with the numbers
    of ranks that it holds for.
    """
    routing_tables = select_routing(tables, routings(tables)[0])
    # where costs of messages are counted, barriers have their own already
    latency = 0.0 if "messages" in meta else meta["message_latency_s"]
    sizes_of_note: dict[str, list[int]] = {}
    for world_size in routing_tables["sets"]["world_size"].unique():
        for note in _notes(
            routing_tables["times"][
                routing_tables["times"]["world_size"] == world_size
            ],
            latency,
        ):
            sizes_of_note.setdefault(note, []).append(int(world_size))
    for note, sizes in sizes_of_note.items():
        yield f"{', '.join(f'{size:,}' for size in sizes)} ranks: {note}"


def _notes(times: pd.DataFrame, message_latency: float) -> Iterator[str]:
    """Yield what was left out of the runs of one number of ranks; ``message_latency``
    (s) is 0 where messages cost something.
    """
    world_size = int(times["world_size"].iloc[0])
    patterns = set(times["pattern"])
    packet = times[times["model"] == "packet"]
    if len(packet) and "all_to_all" in patterns - set(packet["pattern"]):
        min_packets = f"{world_size * (world_size - 1):,}"
        yield (
            f"the packet model did not run all-to-all, which needs --packets {min_packets} or"
            " more."
        )
    if "xor" not in patterns and world_size & (world_size - 1):
        yield "xor is left out, as it needs a power of two."
    if world_size % 2 and any(pattern.startswith("pairing") for pattern in patterns):
        yield "one rank has no partner in a pairing, and its bytes are left out there."
    barriers = times.loc[
        times["bytes_set"] == times["bytes_set"].iloc[0], "barriers"
    ].max()
    if barriers and message_latency:
        barrier_s = ceil(log2(world_size)) * message_latency
        yield (
            "barriers cost nothing here but waiting. If a barrier's own messages took"
            f" {seconds_text(barrier_s)} (log2 M latencies of {seconds_text(message_latency)}),"
            f" {barriers} barriers would take {seconds_text(barriers * barrier_s)} more."
        )


def seconds_text(value: float) -> str:
    """Return a time (s) for people, in three digits, with a unit such as ms."""
    return readable(value, Dimension.SECONDS, 3)


def percent(value: float) -> str:
    """Return a share, 1 for all, as per cent in three digits: '10 %' for 0.1."""
    return f"{100 * value:.3g} %"
