"""A comparison on a terminal: what was moved, times, what decides, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log2, log10
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results import intervals
from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.tables import VARIANT, groups, of_routing, routings
from simshuffle.studies.congestion.verdict import ABLATION, JUDGES
from simshuffle.study.schema import Schema, text
from simshuffle.study.study import Meta, Tables

Row = Mapping[Any, Any]
_DECIDES = Schema({**ABLATION.columns, "range": text("lowest and highest of the seeds")})


def parts(tables: Tables, says: Meta) -> Iterator[str | Table]:
    """All of it, in order; ``says`` is what ``meta.json`` says."""
    yield from moved(tables)
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
    yield from notes(tables, says["message_latency_s"])


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


def _times(tables: Tables, name: str) -> Table:
    """Times of all variants at the largest world size; ``name`` of one routing of several."""
    times = tables["times"][tables["times"]["world_size"] == tables["times"]["world_size"].max()]
    model = next(name for name in (*JUDGES, "analytic") if name in set(times["model"]))
    own = times[times["model"] == model]
    own = own[own["bytes_set"] == own["bytes_set"].iloc[0]]
    # time by the packet model over that by the fluid model, on the same flows
    packet, fluid = (times[times["model"] == name] for name in ("packet", "fluid"))
    both = packet.merge(fluid, on=["bytes_set", *VARIANT, "seed"], suffixes=("", "_fluid"))
    beside = {
        variant: f"{(rows['time_s'] / rows['time_s_fluid']).median():.2f}"
        for variant, rows in groups(both, *VARIANT)
    }
    scale, unit = (1e3, "ms") if own["time_s"].max() < 1 else (1.0, "s")
    title = (
        f"{own['world_size'].iloc[0]} ranks{name}, {model} model, median over"
        f" {own['seed'].nunique()} seeds, times in {unit}"
    )
    numbers = ["time", "range", "/bound", "p99", *(["packet/fluid"] if beside else [])]
    table = new_table(title, ["pattern", "a message"], numbers)
    before = ""
    for variant, rows in groups(own, *VARIANT):
        pattern, batching, barrier = variant
        spent = [float(rows["time_s"].quantile(of)) for of in (0.0, 0.5, 1.0)]
        spent.append(float(rows["flow_p99_s"].median()))
        low, middle, high, p99 = (_number(scale * of) for of in spent)
        cells = [middle, f"{low}-{high}", f"{rows['slowdown'].median():.2f}", p99]
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
    columns = ("switch", "model", "alone", "range", "last", "mean")
    return _DECIDES.listing(shown, title, columns, names=2)


def verdict(tables: Tables) -> Iterator[str]:
    """Each question's answer on the most ranks, and for which routings and seeds it is."""
    judged, names = tables["routings"], routings(tables)
    if judged.empty:
        return
    of_routing = dict(groups(tables["verdicts"], "world_size", "a", "b"))
    size = judged["world_size"].max()
    for row in judged[judged["world_size"] == size].to_dict("records"):
        question = f"{row['a']} or {row['b']} on {size:,} ranks"
        if row["winner"] == "differs":
            yield f"{question}: that depends on the routing."
            continue
        found = of_routing[row["world_size"], row["a"], row["b"]]["verdict"].unique()
        yield f"{question}: {_winner(row)} ({', '.join(found)})."
    seeds = tables["times"]["seed"].nunique()
    yield (
        f"Rests on {seeds} seed{'s' * (seeds > 1)} and the routing{'s' * (len(names) > 1)}"
        f" {', '.join(names)}; accuracy is not in it, and {intervals.OVER_SEEDS}."
    )


def verdict_lines(tables: Tables) -> Iterator[str]:
    """For each question and world size the verdict, and what each model says."""
    keys = ["a", "b", "world_size", "routing"]
    cases = dict(groups(tables["comparisons"], *keys))
    several = tables["comparisons"]["routing"].nunique() > 1
    for (a, b), judged in groups(tables["verdicts"], "a", "b"):
        yield f"{a} or {b}?"
        for row in judged.to_dict("records"):
            routing = f", {row['routing']}" if several else ""
            reason = f": {row['reason']}" if row["reason"] else ""
            yield (
                f"  {row['world_size']} ranks{routing}: {_winner(row)}."
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
    keys = ["world_size", "a", "b"]
    of_pair = dict(groups(judged, *keys))
    for row in tables["routings"].to_dict("records"):
        question = f"  {row['world_size']} ranks, {row['a']} or {row['b']}"
        if row["holds"]:
            yield f"{question}: {_winner(row)}. HOLDS."
            continue
        yield f"{question}: DOES NOT HOLD."
        for one in of_pair[tuple(row[key] for key in keys)].to_dict("records"):
            yield f"    {one['routing']}: {_winner(one)}, {one['verdict']}"


def _winner(row: Row) -> str:
    """Which of a question's two ways is faster."""
    if row["winner"] == "equal":
        return "equal within 1 %"
    return f"{row[row['winner']]} is faster"


def _evidence(case: Row, winner: str) -> str:
    """How many times as fast the winner is, or b where they are equal."""
    low, middle, high = (case[f"ratio_{name}"] for name in ("min", "median", "max"))
    if winner == "a":
        low, middle, high = 1 / high, 1 / middle, 1 / low
    seeds = f"{round(case['share'] * case['seeds'])} of {case['seeds']} seeds"
    if case["winner"] != winner:
        seeds = f"{'equal' if case['winner'] == 'equal' else 'the other way'} in {seeds}"
    return f"{_model(case)}: {middle:.2f} times ({low:.2f} to {high:.2f}), {seeds}"


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


def notes(tables: Tables, message_latency: float) -> Iterator[str]:
    """What was left out; ``message_latency`` in s is the cluster's."""
    own = of_routing(tables, routings(tables)[0])
    for world_size in own["sets"]["world_size"].unique():
        times = own["times"][own["times"]["world_size"] == world_size]
        yield from (f"{world_size} ranks: {note}" for note in _notes(times, message_latency))


def _notes(times: pd.DataFrame, message_latency: float) -> Iterator[str]:
    """What was left out of the runs of a world size."""
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
    if barriers:
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
