"""A comparison on a terminal: what was moved, times, what decides, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log2, log10
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from simshuffle.results import intervals
from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.tables import (
    VARIANT,
    groups,
    messages_cost,
    of_routing,
    routings,
)
from simshuffle.studies.congestion.verdict import ABLATION, FACTORS, JUDGES
from simshuffle.study.schema import Schema, text
from simshuffle.study.study import Meta, Tables

Row = Mapping[Any, Any]
_DECIDES = Schema({**ABLATION.columns, "range": text("lowest and highest of the seeds")})


def parts(tables: Tables, says: Meta) -> Iterator[str | Table]:
    """All of it, in order; ``says`` is what ``meta.json`` says."""
    yield from moved(tables)
    yield from message_lines(tables, says)
    names = routings(tables)
    for routing in names:
        own, name = of_routing(tables, routing), f", {routing}" * (len(names) > 1)
        yield _times(own, name)
        judged = own["ablation"][own["ablation"]["model"].isin(JUDGES)]
        if len(judged):
            yield _decides(judged, name)
    yield from verdict_lines(tables)
    yield from routing_lines(tables)
    yield from _sizes(tables, says)
    yield from notes(tables, says)


def moved(tables: Tables) -> Iterator[str]:
    """A line for each world size and set of bytes, which are those of every routing."""
    for row in tables["sets"].drop_duplicates(["world_size", "bytes_set"]).to_dict("records"):
        size, share = readable(row["nbytes"], Dimension.NBYTES), row["sample_share"]
        if row["bytes_set"] == "full":
            rate = f"; at the line rate of the ports {_time(row['injection_s'])}"
            yield (
                f"{row['world_size']} ranks on {row['hosts']} hosts: {row['samples']} samples a"
                f" rank, {size} in all{rate if row['injection_s'] else ''}."
            )
            continue
        yield (
            f"  For the packet model and what it is compared with: the first {row['samples']}"
            f" samples a rank{'' if share == 1 else f', {_percent(share)} of each'}, {size},"
            f" {_percent(row['byte_share'])} of the bytes; {row['seeds']} seeds."
        )


def message_lines(tables: Tables, says: Meta) -> Iterator[str]:
    """What a message costs, and where that is from."""
    said = says.get("messages")
    if said is None:
        yield "What messages cost is left out: all times are those of the wire."
        return
    if not messages_cost(tables["times"]):
        yield "Messages cost nothing here: give cluster.message_passing an overhead and a latency."
    for cost in said["costs"]:
        trips = cost["trips"]
        yield (
            f"A message of {readable(cost['nbytes'], Dimension.NBYTES, 3)} ({cost['what']}) costs"
            f" its hosts {_time(cost['host_s'])}, and {trips} trip{'s' * (trips > 1)} of"
            f" {_time(says['message_latency_s'])} and the latency of its cables."
        )
    values = (f"{of['key']} {of['value']}{_source(of)}" for of in said["values"])
    yield f"  From cluster.message_passing: {'; '.join(values)}{_source(said)}."


def _source(of: Mapping[str, Any]) -> str:
    return f" ({of['source']})" if of["source"] else ""


def _times(tables: Tables, name: str) -> Table:
    """Times of all variants at the largest world size; ``name`` of one routing of several."""
    times = tables["times"][tables["times"]["world_size"] == tables["times"]["world_size"].max()]
    model = next(name for name in (*JUDGES, "analytic") if name in set(times["model"]))
    own = times[times["model"] == model]
    own = own[own["bytes_set"] == own["bytes_set"].iloc[0]]
    # time on the wire by the packet model over that by the fluid model, on the same flows
    packet, fluid = (times[times["model"] == name] for name in ("packet", "fluid"))
    both = packet.merge(fluid, on=["bytes_set", *VARIANT, "seed"], suffixes=("", "_fluid"))
    beside = {
        variant: f"{(rows['wire_s'] / rows['wire_s_fluid']).median():.2f}"
        for variant, rows in groups(both, *VARIANT)
    }
    scale, unit = (1e3, "ms") if own["time_s"].max() < 1 else (1.0, "s")
    title = (
        f"{own['world_size'].iloc[0]} ranks{name}, {model} model, median over"
        f" {own['seed'].nunique()} seeds, times in {unit}"
    )
    counted = messages_cost(times)
    numbers = ["time", "range", *["on the wire"] * counted, "/bound", "p99"]
    numbers += ["packet/fluid"] if beside else []
    table = new_table(title, ["pattern", "a message"], numbers)
    before = ""
    for variant, rows in groups(own, *VARIANT):
        pattern, batching, barrier = variant
        spent = [float(rows["time_s"].quantile(of)) for of in (0.0, 0.5, 1.0)]
        spent += [float(rows[column].median()) for column in ("wire_s", "flow_p99_s")]
        low, middle, high, wire, p99 = (_number(scale * of) for of in spent)
        cells = [middle, f"{low}-{high}", *[wire] * counted]
        cells += [f"{rows['slowdown'].median():.2f}", p99]
        cells += [beside.get(variant, "")] if beside else []
        message = f"{batching}{', barrier' if barrier else ''}"
        table.add_row("" if pattern == before else pattern, message, *cells)
        before = pattern
    return table


def _decides(rows: pd.DataFrame, name: str) -> Table:
    """What decides, at the largest world size: every switch under each model."""
    size = rows["world_size"].max()
    rows = rows[rows["world_size"] == size]
    # switches in the order in which they come, each with all its cases
    rows = rows.iloc[pd.factorize(rows["switch"])[0].argsort(kind="stable")]
    spread = [f"{low:.2f}-{high:.2f}" for low, high in rows[["alone_min", "alone_max"]].to_numpy()]
    shown = rows.assign(
        switch=rows["switch"].mask(rows["switch"].duplicated(), ""),
        model=[_model(row) for row in rows.to_dict("records")],
        range=spread,
    )
    title = f"What decides, at {size} ranks{name}: factors on the time"
    columns = ("switch", "model", "alone", "range", "last", "mean", "wire")
    return _DECIDES.listing(shown, title, columns, names=2)


def verdict(tables: Tables) -> Iterator[str]:
    """Each question's answer on the most ranks, with what messages cost and on the wire, and for
    which routings and seeds it is."""
    judged, names = tables["routings"], routings(tables)
    if judged.empty:
        return
    size = judged["world_size"].max()
    for (a, b), ways in groups(judged[judged["world_size"] == size], "a", "b"):
        said, before = list[str](), ""
        for row in ways.to_dict("records"):
            way = "on the wire alone " * bool(said)
            differs = row["winner"] == "differs"
            answer = "that depends on the routing" if differs else _winner(row)
            same = answer == before and not differs
            said.append(way + ", ".join(["" if same else answer, *_how_much(tables, row)]))
            before = answer
        yield f"{a} or {b} on {size:,} ranks: {'; '.join(said).replace('alone , ', 'alone ')}."
    seeds = tables["times"]["seed"].nunique()
    yield (
        f"Rests on {seeds} seed{'s' * (seeds > 1)} and the routing{'s' * (len(names) > 1)}"
        f" {', '.join(names)}; accuracy is not in it, and {intervals.OVER_SEEDS}."
    )


def _how_much(tables: Tables, row: Row) -> list[str]:
    """How many times as fast the winner is, over routings, and the verdict."""
    if row["winner"] == "differs":
        return []
    cases, found = (_of(tables[name], row) for name in ("comparisons", "verdicts"))
    first = cases.sort_values(["bytes_set", "model"], kind="stable").groupby("routing").first()
    ratio = first["ratio_median"] ** (-1 if row["winner"] == "a" else 1)
    low, high = f"{ratio.min():.2f}", f"{ratio.max():.2f}"
    factor = f"{low} to {high} times " if low != high else f"{low} times "
    sure = f"({', '.join(found['verdict'].unique())})"
    return [sure if row["winner"] == "equal" else factor + sure]


def _of(table: pd.DataFrame, row: Row) -> pd.DataFrame:
    """The rows of a table for the question and the number of ranks of ``row``."""
    same = np.logical_and.reduce([table[name] == row[name] for name in _CASE])
    return table[same]


_CASE = ["world_size", "a", "b", "counted"]


def verdict_lines(tables: Tables) -> Iterator[str]:
    """For each question and world size the verdicts, and what each model says."""
    keys = [*_CASE, "routing"]
    cases = dict(groups(tables["comparisons"], *keys))
    several = tables["comparisons"]["routing"].nunique() > 1
    for (a, b), judged in groups(tables["verdicts"], "a", "b"):
        yield f"{a} or {b}?"
        for row in judged.to_dict("records"):
            routing = f", {row['routing']}" if several else ""
            wire = ", wire alone" if row["counted"] == "wire" else ""
            reason = f": {row['reason']}" if row["reason"] else ""
            yield (
                f"  {row['world_size']} ranks{routing}{wire}: {_winner(row)}."
                f" {row['verdict'].upper()}{reason}."
            )
            for case in cases[tuple(row[key] for key in keys)].to_dict("records"):
                yield f"    {_evidence(case, row['winner'])}"


def routing_lines(tables: Tables) -> Iterator[str]:
    """For which routing the verdicts hold; with several, which hold under all of them."""
    names, judged = routings(tables), tables["verdicts"]
    if judged.empty:
        return
    if len(names) == 1:
        yield f"Verdicts are for the routing {names[0]}."
        return
    yield f"Under all of {', '.join(names)}:"
    for row in tables["routings"].to_dict("records"):
        wire = ", wire alone" if row["counted"] == "wire" else ""
        question = f"  {row['world_size']} ranks{wire}, {row['a']} or {row['b']}"
        if row["holds"]:
            yield f"{question}: {_winner(row)}. HOLDS."
            continue
        yield f"{question}: DOES NOT HOLD."
        for one in _of(judged, row).to_dict("records"):
            yield f"    {one['routing']}: {_winner(one)}, {one['verdict']}"


def _winner(row: Row) -> str:
    """Which of a question's two ways is faster."""
    if row["winner"] == "equal":
        return "equal within 1 %"
    return f"{row[row['winner']]} is faster"


def _evidence(case: Row, winner: str) -> str:
    """How many times as fast the winner is, or b where they are equal."""
    low, middle, high = (case[f"ratio_{name}"] for name in ("min", "median", "max"))
    factors = {name: case[name] for name in FACTORS}
    if winner == "a":
        low, middle, high = 1 / high, 1 / middle, 1 / low
        factors = {name: 1 / value for name, value in factors.items()}
    if case["counted"] == "wire":
        del factors["messages"]
    shares = " x ".join(f"{name} {value:.2f}" for name, value in factors.items())
    seeds = f"{round(case['share'] * case['seeds'])} of {case['seeds']} seeds"
    if case["winner"] != winner:
        seeds = f"{'equal' if case['winner'] == 'equal' else 'the other way'} in {seeds}"
    return f"{_model(case)}: {middle:.2f} times ({low:.2f} to {high:.2f}; {shares}), {seeds}"


def _sizes(tables: Tables, says: Meta) -> Iterator[str]:
    """What was done against packets that go in step, or that nothing was."""
    if "packet" not in set(tables["times"]["model"]):
        return
    if jitter := says.get("jitter"):
        yield (
            f"Verdicts are on jittered sizes: each sample is up to {_percent(jitter)} larger or"
            " smaller, drawn by the seed. Packets of equal messages go in step and never meet in a"
            " queue."
        )
    elif says.get("sizes_equal"):
        yield (
            "Verdicts are on equal sizes, whose packets go in step and never meet in a queue: do"
            " not hold packet against fluid here. Use --jitter 0.1."
        )


def notes(tables: Tables, says: Meta) -> Iterator[str]:
    """What was left out; ``says`` is what ``meta.json`` says."""
    own = of_routing(tables, routings(tables)[0])
    # of what messages cost barriers have theirs
    latency = 0.0 if "messages" in says else says["message_latency_s"]
    for world_size in own["sets"]["world_size"].unique():
        times = own["times"][own["times"]["world_size"] == world_size]
        yield from (f"{world_size} ranks: {note}" for note in _notes(times, latency))


def _notes(times: pd.DataFrame, message_latency: float) -> Iterator[str]:
    """What was left out of the runs of a world size; ``message_latency`` is 0 if it is counted."""
    size, patterns = int(times["world_size"].iloc[0]), set(times["pattern"])
    packet = times[times["model"] == "packet"]
    if len(packet) and "all_to_all" in patterns - set(packet["pattern"]):
        least = f"{size * (size - 1):,}"
        yield f"all_to_all was not given to the packet model; it needs --packets {least} at least."
    if "xor" not in patterns and size & (size - 1):
        yield "no xor, which needs a power of two."
    if size % 2 and any(pattern.startswith("pairing") for pattern in patterns):
        yield "one rank has no partner in a pairing, whose bytes are missing there."
    barriers = times.loc[times["bytes_set"] == times["bytes_set"].iloc[0], "barriers"].max()
    if barriers and message_latency:
        each = ceil(log2(size)) * message_latency
        yield (
            f"barriers cost nothing here but waiting. With {_time(each)} each for their own"
            f" messages (log2 M latencies of {_time(message_latency)}), {barriers} of them take"
            f" {_time(barriers * each)} more."
        )


def _model(row: Row) -> str:
    return f"{row['model']}, short" if row["bytes_set"] == "short" else str(row["model"])


def _time(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{max(0, 2 - floor(log10(rounded)))}f}" if rounded > 0 else "0"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
