"""The verdict on a run before it is simulated, as ``simshuffle check`` prints it: what bounds its
epoch, what it needs, and which values are probably not meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simshuffle.errors import Problem
from simshuffle.plan.bounds import Bounds, allreduce_seconds, bounds
from simshuffle.plan.effort import START, effort
from simshuffle.plan.epochs import staging_seconds
from simshuffle.plan.findings import extrapolated, warnings
from simshuffle.plan.holding import held_in, most_held, offers
from simshuffle.plan.reading_bounds import DECODE, OPENS, PFS, REQUESTS, SSD, STORE
from simshuffle.plan.slow_cables import on_the_ways
from simshuffle.plan.wiring import routing
from simshuffle.results.console import new_table
from simshuffle.results.slow_cables import slow_cables_on_the_ways
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.standing import Calibration, calibrations

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
SHOWN = {OPENS: "opens", PFS: "PFS", SSD: "SSD", DECODE: "decode"}
"""The resources with a column; the others are named where they are the bottleneck."""
SHOWN_OF_STORE = {REQUESTS: "requests", STORE: "store"}
"""Those of an object store, where a run reads from one."""
COMPUTE = {
    "given": "from the step times",
    "hooks": "for hooks (overlap.hooks)",
    "jitter": "of waiting for the slowest rank (jitter.compute)",
    "slowed": "or more of slow-down while gradients travel (overlap.slowdown; not in the bounds)",
}
"""What a part of the compute of an iteration is."""
ABOUT = (
    "Each number is the least time that one resource alone needs, on average; the simulation adds"
    " contention and waiting. The last epoch is shown."
)
TIMED = (
    "as the last {count} such runs took on this machine; 9 of 10 within a factor of {within:.2g}"
)
NOT_TIMED = (
    "of a machine like an AMD EPYC; 9 of 10 runs within a factor of {within:.2g}, until"
    " some were timed on this one"
)
"""What estimates of a simulation rest on."""


def verdict(scenario: Scenario, run: str) -> Row:
    """All that is known of a run: plain values, which JSON can hold.

    Seconds of an iteration are ``compute_s``, which is the sum of ``compute`` without its
    ``slowed_s``, ``allreduce_s``, and ``exchange_s``, which is the sum of ``exchange``'s. Those of
    an epoch are ``resources_s`` by resource, and ``epoch_s``, a lower bound. ``warnings`` have key,
    rule, value and remedy. ``offers`` are strategies to compare this one with; ``holds`` is the
    kind of its own, if hosts hold samples. ``simulation_s`` is right within the factor
    ``simulation_within`` in 9 of 10 runs, as the ``simulation_timed`` ones on this machine say.
    """
    bound, work, cluster = bounds(scenario), effort(scenario), scenario.cluster
    calibration = calibrations().get(work.kind, Calibration())
    where, exchange = held_in(scenario) or "ssd", scenario.workload.exchange
    return {
        "run": run,
        "epoch": scenario.epochs,
        "iterations": bound.iterations,
        "compute_s": bound.compute / bound.iterations,
        "compute": {
            f"{name}_s": seconds / bound.iterations
            for name, seconds in dataclasses.asdict(bound.passes).items()
        },
        "allreduce_s": allreduce_seconds(scenario),
        "exchange_s": bound.exchange.seconds / bound.iterations,
        "exchange": _exchange(scenario, bound),
        "importance_s": bound.importance,
        "resources_s": dict(bound.resources),
        "epoch_s": bound.epoch,
        "bottleneck": bound.bottleneck,
        "routing": routing(cluster).describe(),
        **on_the_ways(scenario),
        "storage_nbytes": most_held(scenario),
        "storage_on": {"ssd": "SSD"}.get(where, where),
        "capacity_nbytes": cluster.capacity(where),
        "holds": exchange.kind if scenario.storage_per_host else None,
        "offers": [
            {
                "exchange": of.exchange,
                "kind": of.kind,
                "nbytes": of.nbytes,
                "capacity_nbytes": of.capacity,
                "fits": of.fits,
                "told": str(of),
            }
            for of in offers(scenario, scenario.world_size)
        ],
        "staging_s": staging_seconds(scenario),
        "simulation_s": START + work.seconds * calibration.factor,
        "simulation_within": calibration.within,
        "simulation_timed": calibration.count,
        "simulation_nbytes": work.nbytes,
        "extrapolated": extrapolated(scenario),
        "warnings": [
            {"key": w.path, "rule": w.rule, "value": w.value, "remedy": w.remedy}
            for w in warnings(scenario)
        ],
    }


def _exchange(scenario: Scenario, bound: Bounds) -> Row | None:
    """The exchange after an iteration, in the mean; None without."""
    schedule, exchange = scenario.workload.exchange.exchange_schedule, bound.exchange
    if schedule is None or not exchange.samples:
        return None
    count = bound.iterations
    return {
        "samples": exchange.samples / count,
        "messages": exchange.messages / count,
        "barriers": schedule.barriers,
        "payload": schedule.payload,
        "work_s": exchange.work / count,
        "waiting_s": exchange.waiting / count,
        "barriers_s": exchange.barriers / count,
        "wire_s": exchange.wire / count,
    }


# ----------------------------------------------------------------------------------- for a terminal


def tables(rows: Sequence[Row]) -> list[str | Table]:
    """The verdicts of runs as tables and sentences: the bounds, the exchange if there is any, what
    is needed, the warnings."""
    parts: list[str | Table] = [_bounds_table(rows), ABOUT, *compute_lines(rows)]
    if any(row["exchange"] for row in rows):
        parts.append(_exchange_table(rows))
    parts += [_needs_table(rows), *effort_lines(rows), *offer_lines(rows), *routing_lines(rows)]
    return [*parts, *slow_cable_lines(rows), *warning_lines(rows)]


def _bounds_table(rows: Sequence[Row]) -> Table:
    shown = SHOWN
    if any(REQUESTS in row["resources_s"] for row in rows):  # then those that any run uses
        used = [row["resources_s"] for row in rows]
        both = SHOWN | SHOWN_OF_STORE
        shown = {key: both[key] for key in both if any(of.get(key) for of in used)}
    numbers = ["compute", "allreduce", "exchange", *shown.values(), "epoch"]
    table = new_table(
        "At least (s): compute, allreduce and exchange of an iteration; reading of an epoch",
        ["run"],
        numbers,
    )
    table.add_column("bottleneck")
    for row in rows:
        iteration = (row["compute_s"], row["allreduce_s"], row["exchange_s"])
        reading = [row["resources_s"].get(name, 0.0) for name in shown]
        cells = [_number(value) for value in (*iteration, *reading, row["epoch_s"])]
        table.add_row(row["run"], *cells, row["bottleneck"])
    return table


def _exchange_table(rows: Sequence[Row]) -> Table:
    table = new_table("Exchange after an iteration: samples, messages, and ms", ["run"])
    for name in ("samples", "messages"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("barrier before")
    table.add_column("payload")
    for name in ("host work", "waiting", "barriers", "wire"):
        table.add_column(name, justify="right")
    for row in rows:
        if exchange := row["exchange"]:
            seconds = (exchange[f"{name}_s"] for name in ("work", "waiting", "barriers", "wire"))
            table.add_row(
                row["run"],
                f"{exchange['samples']:.3g}",
                f"{exchange['messages']:.3g}",
                exchange["barriers"],
                exchange["payload"],
                *(_number(1e3 * value) for value in seconds),
            )
    return table


def _needs_table(rows: Sequence[Row]) -> Table:
    table = new_table("Needs", ["run"])
    for name in ("storage a host", "of", "staging", "simulation", "memory"):
        table.add_column(name, justify="right")
    nbytes, seconds = Dimension.NBYTES, Dimension.SECONDS
    for row in rows:
        table.add_row(
            row["run"],
            readable(row["storage_nbytes"], nbytes, 3) if row["storage_nbytes"] else "-",
            f"{readable(row['capacity_nbytes'], nbytes, 3)} {row['storage_on']}",
            readable(row["staging_s"], seconds, 2) if row["staging_s"] else "-",
            readable(row["simulation_s"], seconds, 2),
            readable(row["simulation_nbytes"], nbytes, 2),
        )
    return table


def compute_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each way in which compute adds up, with the runs of which it is so if it is not
    so of all."""

    def split(row: Row) -> list[str]:
        known = [
            (f"{name}_s", text) for name, text in COMPUTE.items() if row["compute"][f"{name}_s"]
        ]
        if not known:
            return []
        parts = [
            f"{readable(row['compute'][key], Dimension.SECONDS, 3)} {text}" for key, text in known
        ]
        return [", ".join(parts)]

    return [f"Compute of an average iteration: {text}{of}." for text, of in _said(rows, split)]


def effort_lines(rows: Sequence[Row]) -> list[str]:
    """What the estimates of the simulation rest on, and by how much they may be off."""

    def rests(row: Row) -> list[str]:
        text = TIMED if row["simulation_timed"] else NOT_TIMED
        return [text.format(count=row["simulation_timed"], within=row["simulation_within"])]

    head = "Simulation, on one core, without compiling"
    return [f"{head}: {text}{of}." for text, of in _said(rows, rests)]


def offer_lines(rows: Sequence[Row]) -> list[str]:
    """What else the hosts have room for and none of the runs does, and what they have none for."""
    held = {row["holds"] for row in rows}

    def told(row: Row, fits: bool) -> list[str]:
        found = [of for of in row["offers"] if of["kind"] not in held and of["fits"] == fits]
        return ["; ".join(of["told"] for of in found)] if found else []

    return [
        f"{head}: {text}{of}."
        for head, fits in (("Would also fit on the hosts", True), ("Would not fit", False))
        for text, of in _said(rows, partial(told, fits=fits))
    ]


def routing_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each routing, with the runs that use it if not all do."""
    said = _said(rows, lambda row: [row["routing"]])
    return [f"Routing: {text}{of}." for text, of in said]


def slow_cable_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each way in which runs stand to slow cables, with the runs if not all do so."""

    def told(row: Row) -> list[str]:
        about = row.get("slow_cables")
        return [] if about is None else [slow_cables_on_the_ways(about)]

    return [f"{text}{of}." for text, of in _said(rows, told)]


def warning_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each warning, and each measured value that is used outside its range, with the
    runs that it is about if it is not about all."""

    def findings(row: Row) -> list[str]:
        odd = [
            str(Problem(found["key"], found["rule"], found["value"], found["remedy"]))
            for found in row["warnings"]
        ]
        return [*odd, *(f"{each}." for each in row["extrapolated"])]

    return [f"Warning: {text}{of}" for text, of in _said(rows, findings)]


def _said(rows: Sequence[Row], texts: Callable[[Row], list[str]]) -> list[tuple[str, str]]:
    """Each text that is said of a run, once; and of which runs, '' for all."""
    runs: dict[str, list[str]] = {}
    for row in rows:
        for text in texts(row):
            runs.setdefault(text, []).append(row["run"])
    return [
        (text, "" if len(of) == len(rows) else f" ({', '.join(of)})") for text, of in runs.items()
    ]


def _number(value: float) -> str:
    """Three digits; '-' for nothing."""
    return f"{value:.3g}" if value else "-"
