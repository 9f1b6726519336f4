"""Print a comparison with -v: what was sent in each set of bytes, what a message costs,
times of every variant, what decides, and every verdict with its factors (links, steps,
messages).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.answer import digits_of, shown_rows, time_unit
from simshuffle.studies.congestion.patterns import PATTERNS, Variant, variants
from simshuffle.studies.congestion.tables import (
    VARIANT,
    groups,
    messages_cost,
    routings,
    select_routing,
)
from simshuffle.studies.congestion.text import percent, seconds_text, sent_line
from simshuffle.studies.congestion.verdict import ABLATION, FACTORS, JUDGES
from simshuffle.study.schema import Schema, text
from simshuffle.study.study import Meta, Tables

Row = Mapping[Any, Any]
LABELS = {str(variant): variant.label for variant in variants(PATTERNS)}
"""Names of the variants in sentences, by their keys in tables."""
_DECIDES = Schema(
    {**ABLATION.columns, "range": text("lowest and highest value over the seeds")}
)
_CASE = ["world_size", "a", "b", "counted"]


def details(tables: Tables, meta: Meta) -> Iterator[str | Table]:
    """Yield all texts and tables, in order; ``meta`` is the content of ``meta.json``.

    Tables of a routing have the largest number of ranks only, and its table of factors
    is there if `JUDGES` were run.
    """
    yield from set_lines(tables)
    yield from message_lines(tables, meta)
    names = routings(tables)
    for routing in names:
        routing_tables = select_routing(tables, routing)
        routing_suffix = f", {routing}" * (len(names) > 1)
        yield _times_table(routing_tables, routing_suffix)
        ablation_rows = routing_tables["ablation"][
            routing_tables["ablation"]["model"].isin(JUDGES)
        ]
        if len(ablation_rows):
            yield _ablation_table(ablation_rows, routing_suffix)
    yield from verdict_lines(tables)
    yield from routing_lines(tables)


def set_lines(tables: Tables) -> Iterator[str]:
    """Yield what is sent: a line for each number of ranks and set of bytes.

    Of the full set it has the bytes and the time of the ports, of the shortened one the
    samples and the share of the bytes that are kept. Routings share these sets.
    """
    for row in (
        tables["sets"].drop_duplicates(["world_size", "bytes_set"]).to_dict("records")
    ):
        if row["bytes_set"] == "full":
            yield sent_line(row)
            continue
        size = readable(row["nbytes"], Dimension.NBYTES)
        share = row["sample_share"]
        yield (
            f"  The packet model, and runs compared with it, send only the first {row['samples']}"
            f" samples of a rank{'' if share == 1 else f', {percent(share)} of each'}: {size},"
            f" {percent(row['byte_share'])} of the bytes; {row['seeds']} seeds."
        )


def message_lines(tables: Tables, meta: Meta) -> Iterator[str]:
    """Yield what a message costs, and the sources of these costs; or that messages cost
    nothing, or that their costs are left out.
    """
    messages_meta = meta.get("messages")
    if messages_meta is None:
        yield "The cost of messages is left out: all times are times on the wire."
        return
    if not messages_cost(tables["times"]):
        yield (
            "Messages cost nothing here. To count their cost, set overhead and latency of"
            " cluster.message_passing."
        )
    for cost in messages_meta["costs"]:
        trips = cost["trips"]
        yield (
            f"A message of {readable(cost['nbytes'], Dimension.NBYTES, 3)} ({cost['what']}) costs"
            f" its hosts {seconds_text(cost['host_s'])}. It takes {trips} trip{'s' * (trips > 1)}"
            f" of {seconds_text(meta['message_latency_s'])} plus the latency of its cables."
        )
    values = (
        f"{stated['key']} {stated['value']}{_source(stated)}"
        for stated in messages_meta["values"]
    )
    yield f"  From cluster.message_passing: {'; '.join(values)}{_source(messages_meta)}."


def _source(stated: Mapping[str, Any]) -> str:
    """Return the source of a stated value in parentheses, or ''."""
    return f" ({stated['source']})" if stated["source"] else ""


def _times_table(tables: Tables, routing_suffix: str) -> Table:
    """Return the table of the median times of all variants at the largest number of
    ranks.

    Times are those of the model that `shown_rows` chooses, and their range is over
    seeds. '/bound' is the time on the wire over its lower bound, 'p99' the 99th
    percentile of messages' times, and 'packet/fluid' the ratio of the two models' times
    on the wire; each is a median over seeds. ``routing_suffix`` names the routing in
    the title where several are compared, else it is ''.
    """
    times = tables["times"][
        tables["times"]["world_size"] == tables["times"]["world_size"].max()
    ]
    displayed_rows, model = shown_rows(times)
    # time on the wire by the packet model over that by the fluid model, on the same flows
    packet, fluid = (
        times[times["model"] == model_name] for model_name in ("packet", "fluid")
    )
    paired_rows = packet.merge(
        fluid, on=["bytes_set", *VARIANT, "seed"], suffixes=("", "_fluid")
    )
    packet_over_fluid = {
        values: f"{(rows['wire_s'] / rows['wire_s_fluid']).median():.2f}"
        for values, rows in groups(paired_rows, *VARIANT)
    }
    unit, unit_name = time_unit(float(displayed_rows["time_s"].max()))
    title = (
        f"{displayed_rows['world_size'].iloc[0]} ranks{routing_suffix}, {model} model, median over"
        f" {displayed_rows['seed'].nunique()} seeds, times in {unit_name}"
    )
    costs_counted = messages_cost(times)
    number_heads = ["time", "range", *["on the wire"] * costs_counted, "/bound", "p99"]
    number_heads += ["packet/fluid"] if packet_over_fluid else []
    table = new_table(title, ["pattern", "a message"], number_heads)
    previous_label = ""
    for values, rows in groups(displayed_rows, *VARIANT):
        variant = Variant(*values)
        low, middle, high = (
            float(rows["time_s"].quantile(share)) for share in (0.0, 0.5, 1.0)
        )
        wire = float(rows["wire_s"].median())
        p99 = float(rows["flow_p99_s"].median())
        cells = [
            digits_of(middle / unit),
            f"{digits_of(low / unit)}-{digits_of(high / unit)}",
        ]
        cells += [digits_of(wire / unit)] * costs_counted
        cells += [f"{rows['slowdown'].median():.2f}", digits_of(p99 / unit)]
        cells += [packet_over_fluid.get(values, "")] if packet_over_fluid else []
        label = PATTERNS[variant.pattern].label
        table.add_row(
            "" if label == previous_label else label, variant.message_label, *cells
        )
        previous_label = label
    return table


def _ablation_table(rows: pd.DataFrame, routing_suffix: str) -> Table:
    """Return the table of factors on the time, at the largest number of ranks: every
    switch under each model. Other numbers of ranks are left out.

    ``routing_suffix`` names the routing in the title, or is ''.
    """
    world_size = rows["world_size"].max()
    rows = rows[rows["world_size"] == world_size]
    # switches in the order in which they come, each with all its cases
    rows = rows.iloc[pd.factorize(rows["switch"])[0].argsort(kind="stable")]
    ranges = [
        f"{low:.2f}-{high:.2f}"
        for low, high in rows[["alone_min", "alone_max"]].to_numpy()
    ]
    labelled_rows = rows.assign(
        switch=rows["switch"].map(_switch_label).mask(rows["switch"].duplicated(), ""),
        model=[_model(row) for row in rows.to_dict("records")],
        range=ranges,
    )
    title = (
        f"What decides at {world_size} ranks{routing_suffix}: factor of each switch"
        " on the time"
    )
    columns = ("switch", "model", "alone", "range", "last", "mean", "wire")
    return _DECIDES.listing(labelled_rows, title, columns, names=2)


def _switch_label(switch: str) -> str:
    """Return the label of a switch in the table of factors; a switch may be another
    pattern.
    """
    pattern, _, suffix = switch.partition(" ")
    return f"{PATTERNS[pattern].label} {suffix}" if pattern in PATTERNS else switch


def verdict_lines(tables: Tables) -> Iterator[str]:
    """Yield for each question and number of ranks the verdicts, and the evidence of
    each model.
    """
    keys = [*_CASE, "routing"]
    cases = dict(groups(tables["comparisons"], *keys))
    several_routings = tables["comparisons"]["routing"].nunique() > 1
    for (a, b), judged in groups(tables["verdicts"], "a", "b"):
        yield f"{LABELS[a]} or {LABELS[b]}?"
        for row in judged.to_dict("records"):
            routing = f", {row['routing']}" if several_routings else ""
            wire = ", wire alone" if row["counted"] == "wire" else ""
            reason = f": {row['reason']}" if row["reason"] else ""
            yield (
                f"  {row['world_size']} ranks{routing}{wire}: {_winner(row)}."
                f" {row['verdict'].upper()}{reason}."
            )
            for case in cases[tuple(row[key] for key in keys)].to_dict("records"):
                yield f"    {_evidence(case, row['winner'])}"


def routing_lines(tables: Tables) -> Iterator[str]:
    """Yield whether each verdict holds under all routings; where not, the verdict under
    each.

    With one routing alone its name is yielded, and nothing if there are no verdicts.
    """
    names = routings(tables)
    judged = tables["verdicts"]
    if judged.empty:
        return
    if len(names) == 1:
        yield f"Verdicts are for the routing {names[0]}."
        return
    yield f"Under all routings ({', '.join(names)}):"
    for row in tables["routings"].to_dict("records"):
        wire = ", wire alone" if row["counted"] == "wire" else ""
        question = f"  {row['world_size']} ranks{wire}, {LABELS[row['a']]} or {LABELS[row['b']]}"
        if row["holds"]:
            yield f"{question}: {_winner(row)}. HOLDS."
            continue
        yield f"{question}: DOES NOT HOLD."
        same_case = np.logical_and.reduce([judged[name] == row[name] for name in _CASE])
        for verdict in judged[same_case].to_dict("records"):
            yield f"    {verdict['routing']}: {_winner(verdict)}, {verdict['verdict']}"


def _winner(row: Row) -> str:
    """Return '<variant> is faster' for the winner in a row, or 'equal within 1 %'."""
    if row["winner"] == "equal":
        return "equal within 1 %"
    return f"{LABELS[row[row['winner']]]} is faster"


def _evidence(case: Row, winner: str) -> str:
    """Return the line of one model's evidence for a winner.

    It has how many times as fast the winner is (b where both are equal) as the other,
    the lowest and highest of the seeds, the factors, and in how many seeds this model's
    own winner wins: 'equal' or 'the other way' marks a model with another winner.
    """
    low, middle, high = (case[f"ratio_{name}"] for name in ("min", "median", "max"))
    factors = {name: case[name] for name in FACTORS}
    if winner == "a":
        low, middle, high = 1 / high, 1 / middle, 1 / low
        factors = {name: 1 / value for name, value in factors.items()}
    if case["counted"] == "wire":
        del factors["messages"]
    factors_text = " x ".join(f"{name} {value:.2f}" for name, value in factors.items())
    seeds = f"{round(case['share'] * case['seeds'])} of {case['seeds']} seeds"
    if case["winner"] != winner:
        seeds = (
            f"{'equal' if case['winner'] == 'equal' else 'the other way'} in {seeds}"
        )
    return f"{_model(case)}: {middle:.2f} times ({low:.2f} to {high:.2f}; {factors_text}), {seeds}"


def _model(row: Row) -> str:
    """Return the name of a row's model, with ', short' on shortened bytes."""
    return (
        f"{row['model']}, short" if row["bytes_set"] == "short" else str(row["model"])
    )
