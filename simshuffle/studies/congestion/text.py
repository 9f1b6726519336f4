"""A comparison on a terminal: what was moved, times, what decides, and the verdict. Tables fit 80
columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log2, log10
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.ablation import ablation
from simshuffle.studies.congestion.tables import VARIANT, groups, of_routing, routings
from simshuffle.studies.congestion.verdict import JUDGES, comparisons, over_routings, verdicts
from simshuffle.study.study import Tables

Row = Mapping[Any, Any]


def parts(
    tables: Tables, message_latency: float, *, jitter: float = 0.0, sizes_equal: bool = False
) -> Iterator[str | Table]:
    """All of it, in order.

    Args:
        tables: of the study.
        message_latency: s, of the cluster's message passing.
        jitter: of the sizes of samples.
        sizes_equal: whether all samples have one size.
    """
    yield from moved(tables)
    for routing in routings(tables):
        own = of_routing(tables, routing)
        name = f", {routing}" if len(routings(tables)) > 1 else ""
        yield times_table(own, name)
        decides = ablation_table(own, name)
        if decides is not None:
            yield decides
    yield from verdict_lines(tables)
    yield from routing_lines(tables)
    yield from sizes(tables, jitter, sizes_equal)
    yield from notes(tables, message_latency)


def moved(tables: Tables) -> Iterator[str]:
    """A line for each world size and set of bytes, which are those of every routing."""
    for row in tables["sets"].drop_duplicates(["world_size", "bytes_set"]).to_dict("records"):
        parts = "" if row["sample_share"] == 1 else f", {_percent(row['sample_share'])} of each"
        size = readable(row["nbytes"], Dimension.NBYTES)
        if row["bytes_set"] == "full":
            rate = (
                f"; at the line rate of the ports {_time(row['injection_s'])}"
                if row["injection_s"]
                else ""
            )
            yield (
                f"{row['world_size']} ranks on {row['hosts']} hosts: {row['samples']} samples a"
                f" rank, {size} in all{rate}."
            )
        else:
            yield (
                f"  For the packet model and what it is compared with: the first {row['samples']}"
                f" samples a rank{parts}, {size}, {_percent(row['byte_share'])} of the bytes;"
                f" {row['seeds']} seeds."
            )


def times_table(tables: Tables, name: str = "") -> Table:
    """Times of all variants at the largest world size; ``name`` is of the routing, if there are
    several."""
    times = tables["times"][tables["times"]["world_size"] == tables["times"]["world_size"].max()]
    model = next(name for name in (*JUDGES, "analytic") if name in set(times["model"]))
    own = times[times["model"] == model]
    own = own[own["bytes_set"] == own["bytes_set"].iloc[0]]
    beside = _packet_over_fluid(times)
    scale, unit = (1e3, "ms") if own["time_s"].max() < 1 else (1.0, "s")
    title = (
        f"{own['world_size'].iloc[0]} ranks{name}, {model} model, median over"
        f" {own['seed'].nunique()} seeds, times in {unit}"
    )
    numbers = ["time", "range", "/bound", "p99", *(["packet/fluid"] if beside else [])]
    table = new_table(title, ["pattern", "a message"], numbers)
    before = ""
    for (pattern, batching, barrier), rows in groups(own, *VARIANT):
        low, middle, high = (scale * float(rows["time_s"].quantile(q)) for q in (0.0, 0.5, 1.0))
        cells = [
            _number(middle),
            f"{_number(low)}-{_number(high)}",
            f"{rows['slowdown'].median():.2f}",
        ]
        cells.append(_number(scale * rows["flow_p99_s"].median()))
        cells += [beside.get((pattern, batching, barrier), "")] if beside else []
        table.add_row(
            "" if pattern == before else pattern,
            f"{batching}{', barrier' if barrier else ''}",
            *cells,
        )
        before = pattern
    return table


def _packet_over_fluid(times: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    """Time by the packet model over that by the fluid model, on the same flows: median over seeds,
    by variant."""
    keys = ["bytes_set", *VARIANT, "seed"]
    both = times[times["model"] == "packet"].merge(
        times[times["model"] == "fluid"], on=keys, suffixes=("", "_fluid")
    )
    return {
        key: f"{(rows['time_s'] / rows['time_s_fluid']).median():.2f}"
        for key, rows in groups(both, *VARIANT)
    }


def ablation_table(tables: Tables, name: str = "") -> Table | None:
    """What decides, at the largest world size; None if a pattern that it needs is missing."""
    rows = ablation(tables["times"])
    rows = rows[rows["model"].isin(JUDGES)]
    if rows.empty:
        return None
    rows = rows[rows["world_size"] == rows["world_size"].max()]
    cases = list(groups(rows, "bytes_set", "model"))
    title = f"What decides, at {rows['world_size'].iloc[0]} ranks{name}: factors on the time"
    table = new_table(title, ["switched", "model"], ["alone", "range", "last", "any order"])
    for (switch,), of_switch in groups(rows, "switch"):
        first = True
        for (bytes_set, model), _ in cases:
            for row in of_switch[
                (of_switch["bytes_set"] == bytes_set) & (of_switch["model"] == model)
            ].to_dict("records"):
                spread = f"{row['alone_min']:.2f}-{row['alone_max']:.2f}"
                factors = [
                    f"{row['alone']:.2f}",
                    spread,
                    _factor(row["last"]),
                    _factor(row["mean"]),
                ]
                table.add_row(switch if first else "", _model(row), *factors)
                first = False
    return table


def verdict_lines(tables: Tables) -> Iterator[str]:
    """For each question a line; for each world size the verdict, and below it what each model
    says."""
    compared = comparisons(tables["times"])
    several = compared["routing"].nunique() > 1
    for (a, b), judged in groups(verdicts(compared), "a", "b"):
        yield f"{a} or {b}?"
        for row in judged.to_dict("records"):
            of_size = compared[
                (compared["a"] == a)
                & (compared["b"] == b)
                & (compared["world_size"] == row["world_size"])
                & (compared["routing"] == row["routing"])
            ]
            routing = f", {row['routing']}" if several else ""
            reason = f": {row['reason']}" if row["reason"] else ""
            yield (
                f"  {row['world_size']} ranks{routing}: {_named(row, a, b)}."
                f" {row['verdict'].upper()}{reason}."
            )
            yield from (
                f"    {_evidence(case, row['winner'])}" for case in of_size.to_dict("records")
            )


def routing_lines(tables: Tables) -> Iterator[str]:
    """For which routing the verdicts hold; with several, which hold under all of them."""
    names = routings(tables)
    judged = verdicts(comparisons(tables["times"]))
    if judged.empty:
        return
    if len(names) == 1:
        yield f"Verdicts are for the routing {names[0]}."
        return
    yield f"Under all of {', '.join(names)}:"
    for row in over_routings(judged).to_dict("records"):
        size, a, b = row["world_size"], row["a"], row["b"]
        question = f"  {size} ranks, {a} or {b}"
        if row["holds"]:
            yield f"{question}: {_named(row, a, b)}. HOLDS."
            continue
        yield f"{question}: DOES NOT HOLD."
        of_pair = judged[(judged["world_size"] == size) & (judged["a"] == a) & (judged["b"] == b)]
        for one in of_pair.to_dict("records"):
            yield f"    {one['routing']}: {_named(one, a, b)}, {one['verdict']}"


def _named(row: Row, a: str, b: str) -> str:
    return {"a": f"{a} is faster", "b": f"{b} is faster", "equal": "equal within 1 %"}[
        row["winner"]
    ]


def _evidence(case: Row, winner: str) -> str:
    """How many times as fast the winner is, or b where they are equal."""
    low, middle, high = (case[f"ratio_{name}"] for name in ("min", "median", "max"))
    if winner == "a":
        low, middle, high = 1 / high, 1 / middle, 1 / low
    same = f"{round(case['share'] * case['seeds'])} of {case['seeds']} seeds"
    held = (
        same
        if case["winner"] == winner
        else f"the other way in {same}"
        if case["winner"] != "equal"
        else f"equal in {same}"
    )
    return f"{_model(case)}: {middle:.2f} times ({low:.2f} to {high:.2f}), {held}"


def sizes(tables: Tables, jitter: float, sizes_equal: bool) -> Iterator[str]:
    """What was done against packets that go in step, or that nothing was."""
    if "packet" not in set(tables["times"]["model"]):
        return
    if jitter:
        yield (
            f"Verdicts are on jittered sizes: each sample is up to {_percent(jitter)} larger or"
            " smaller, drawn by the seed. Packets of equal messages go in step and never meet in a"
            " queue."
        )
    elif sizes_equal:
        yield (
            "Verdicts are on equal sizes, whose packets go in step and never meet in a queue: do"
            " not hold packet against fluid here. Use --jitter 0.1."
        )


def notes(tables: Tables, message_latency: float) -> Iterator[str]:
    """What was left out; ``message_latency`` in s is the cluster's."""
    tables = of_routing(tables, routings(tables)[0])
    for world_size in tables["sets"]["world_size"].unique():
        times = tables["times"][tables["times"]["world_size"] == world_size]
        packet = times[times["model"] == "packet"]
        if len(packet) and "all_to_all" in set(times["pattern"]) - set(packet["pattern"]):
            least = f"{world_size * (world_size - 1):,}"
            yield (
                f"{world_size} ranks: all_to_all was not given to the packet model; it needs"
                f" --packets {least} at least."
            )
        if "xor" not in set(times["pattern"]) and world_size & (world_size - 1):
            yield f"{world_size} ranks: no xor, which needs a power of two."
        alone = times[times["pattern"].str.startswith("pairing")]
        if world_size % 2 and len(alone):
            yield (
                f"{world_size} ranks: one rank has no partner in a pairing, whose bytes are missing"
                " there."
            )
        barriers = times.loc[times["bytes_set"] == times["bytes_set"].iloc[0], "barriers"].max()
        if barriers:
            each = ceil(log2(world_size)) * message_latency
            yield (
                f"{world_size} ranks: barriers cost nothing here but waiting. With {_time(each)}"
                f" each for their own messages (log2 M latencies of {_time(message_latency)}),"
                f" {barriers} of them take {_time(barriers * each)} more."
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


def _factor(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"
