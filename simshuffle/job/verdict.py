"""The verdict on a run before it is simulated, as ``simshuffle check`` prints it: what
bounds its epoch, what it needs, which values are probably not meant, and what else
follows from a scenario.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simshuffle.errors import Problem
from simshuffle.job.input_sentences import describe_slower_input
from simshuffle.job.plan.bounds import (
    Bounds,
    allreduce_seconds,
    allreduce_seconds_alone,
    bounds,
)
from simshuffle.job.plan.checkpoint_findings import (
    checkpoint_facts,
    checkpoint_sentence,
)
from simshuffle.job.plan.effort import START, effort
from simshuffle.job.plan.findings import (
    extrapolation_sentences,
    slow_cable_facts,
    warnings,
)
from simshuffle.job.plan.holding import (
    held_in,
    list_alternatives,
    max_held_nbytes,
    staging_seconds,
    staging_seconds_of_files,
)
from simshuffle.job.plan.reading_bounds import (
    DECODE,
    OPENS,
    PFS,
    REQUESTS,
    SSD,
    STORE,
    worker_decode_seconds,
)
from simshuffle.job.plan.tier_gain import tier_gain, tier_sentence, tier_warnings
from simshuffle.job.plan.wiring import routing_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.console import new_table
from simshuffle.report.names import name_subset, without_schedule
from simshuffle.report.slow_cables import describe_slow_cables_on_routes
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.cell_times import CellTimes, calibrations

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
SHOWN = {OPENS: "opens", PFS: "PFS", SSD: "SSD", DECODE: "decode"}
"""The resources with a column; the others are named where they are the bottleneck."""
SHOWN_OF_STORE = {REQUESTS: "requests", STORE: "store"}
"""Bounds of an object store that are shown where a run reads from one."""
COMPUTE = {
    "given": "from the step times",
    "hooks": "for hooks (overlap.hooks)",
    "jitter": "of waiting for the slowest rank (jitter.compute)",
    "slowed": "of slow-down while gradients travel, if all ranks begin together (overlap.slowdown;"
    " not in the bounds)",
}
"""Words for the sources of the compute of an iteration."""
ABOUT = (
    "Each number is the least time that one resource alone needs, on average; the simulation adds"
    " contention and waiting. The last epoch is shown."
)
TIMED = (
    "as the last {count} such runs took on this machine; 9 of 10"
    " within a factor of {within:.2g}"
)
NOT_TIMED = (
    "of a machine like an AMD EPYC; 9 of 10 runs within a factor of {within:.2g}, until"
    " some were timed on this one"
)
"""The measurement behind estimates of a simulation's time."""
Style = Mapping[str, Any]
NUMBER: Style = {"justify": "right", "no_wrap": True}
RIGHT: Style = {"justify": "right"}
WORD: Style = {}
"""Columns of tables."""


def verdict(scenario: Scenario, run: str) -> Row:
    """Return the verdict on a run as plain values, which JSON can hold.

    All bounds are of the last epoch, number ``epoch``, of ``iterations`` iterations. A
    key that depends on the scenario is left out where nothing is said below.

    Seconds of an average iteration: ``compute_s``, which is the sum of ``compute``
    without its ``slowed_s``; ``allreduce_s`` of what the allreduces show beside the
    backward pass; ``allreduce_alone_s`` of all of them; and ``exchange_s``, which is
    the sum of the seconds in ``exchange`` (None if no sample is exchanged).

    Seconds of the epoch: ``resources_s`` by resource, ``decode_by_workers_s`` in which
    the loader workers of a rank decode, at most on all cores, ``importance_s``, and
    ``epoch_s``, a lower bound; ``bottleneck`` is the name of what takes longest.

    Needs: ``storage_nbytes`` is the most that a host keeps on ``storage_on`` of
    ``capacity_nbytes``; ``staging_s`` is least seconds before the first epoch, 0
    without. ``offers`` are strategies to compare this one with; ``holds`` is the kind
    of its own, None if hosts hold no samples. ``staging_files_s`` is least seconds
    of staging whose files are opened one by one.

    ``simulation_s`` is expected seconds of simulating all epochs on one core, with
    ``simulation_nbytes`` of memory. It is right within the factor
    ``simulation_within`` in 9 of 10 runs, as the ``simulation_timed`` ones on this
    machine say, which are read from a file; 0 of them if none are known.

    ``routing`` and ``extrapolated`` are sentences; ``warnings`` have key, rule, value
    and remedy. Only with faults there is ``faults``, in words, with slow cables
    ``slow_cables``, with a cache tier ``cache_tier``, and with checkpoints
    ``checkpoint``, the `simshuffle.job.plan.checkpoint_findings.checkpoint_facts`.
    """
    bound = bounds(scenario)
    work = effort(scenario)
    cluster = scenario.cluster
    calibration = calibrations().get(work.kind, CellTimes())
    storage_tier = held_in(scenario) or "ssd"
    exchange = scenario.workload.exchange
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
        "allreduce_alone_s": allreduce_seconds_alone(scenario),
        "exchange_s": bound.exchange.seconds / bound.iterations,
        "exchange": _exchange(scenario, bound),
        "importance_s": bound.importance,
        **(
            {}
            if scenario.workload.checkpoint is None
            else {"checkpoint": checkpoint_facts(scenario)}
        ),
        "resources_s": dict(bound.resources),
        "decode_by_workers_s": worker_decode_seconds(scenario, bound.resources[DECODE]),
        "epoch_s": bound.epoch,
        "bottleneck": bound.bottleneck,
        "routing": routing_of(cluster).describe(),
        **(
            {"faults": [fault.describe() for fault in scenario.faults]}
            if scenario.faults
            else {}
        ),
        **slow_cable_facts(scenario),
        **tier_gain(scenario),
        "storage_nbytes": max_held_nbytes(scenario),
        "storage_on": {"ssd": "SSD"}.get(storage_tier, storage_tier),
        "capacity_nbytes": cluster.capacity(storage_tier),
        "holds": exchange.kind if scenario.storage_per_host else None,
        "offers": _offers(scenario),
        "staging_s": staging_seconds(scenario),
        "staging_files_s": staging_seconds_of_files(scenario),
        "simulation_s": START + work.seconds * calibration.factor,
        "simulation_within": calibration.within,
        "simulation_timed": calibration.count,
        "simulation_nbytes": work.nbytes,
        "extrapolated": extrapolation_sentences(scenario),
        "warnings": _warning_facts(scenario),
    }


def _offers(scenario: Scenario) -> list[Row]:
    """Return the strategies to compare the scenario's own with, whether they fit or
    not; ``nbytes`` and ``capacity_nbytes`` are of a host, and ``told`` is a text.
    """
    return [
        {
            "exchange": alternative.exchange,
            "kind": alternative.kind,
            "nbytes": alternative.nbytes,
            "capacity_nbytes": alternative.capacity,
            "fits": alternative.fits,
            "told": str(alternative),
        }
        for alternative in list_alternatives(scenario, scenario.world_size)
    ]


def _warning_facts(scenario: Scenario) -> list[Row]:
    """Return key, rule, value and remedy of every warning."""
    return [
        {
            "key": warning.path,
            "rule": warning.rule,
            "value": warning.value,
            "remedy": warning.remedy,
        }
        for warning in [*warnings(scenario), *tier_warnings(scenario)]
    ]


def _exchange(scenario: Scenario, bound: Bounds) -> Row | None:
    """Return the exchange of a rank after an iteration, in the mean over iterations;
    None if no sample is exchanged.
    """
    schedule = scenario.workload.exchange.exchange_schedule
    exchange = bound.exchange
    count = bound.iterations
    if schedule is None or not exchange.samples:
        return None
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
    """Return the verdicts of runs as tables and sentences, in the order of printing.

    The bounds, the exchange if there is any, what is needed, and the warnings. ``rows``
    are from `verdict`. Names of runs lose their schedule if all have the same.
    """
    names = without_schedule([row["run"] for row in rows])
    rows = [{**row, "run": name} for row, name in zip(rows, names, strict=True)]
    parts: list[str | Table] = [_bounds_table(rows), ABOUT]
    parts += _sentences(rows, "Compute of an average iteration: ", _compute)
    exchanging = [row for row in rows if row["exchange"]]
    if exchanging:
        parts.append(_exchange_table(exchanging))
    parts += _sentences(rows, "Checkpoints: ", _checkpoints)
    parts.append(_needs_table(rows))
    parts += _sentences(rows, "", describe_slower_input)
    kinds_held = {row["holds"] for row in rows}

    def describe_alternatives(row: Row, fits: bool) -> list[str]:
        """Return a sentence on the strategies that none of the runs has, and for which
        hosts have room, or have not.
        """
        alternatives = [
            alternative
            for alternative in row["offers"]
            if alternative["kind"] not in kinds_held and alternative["fits"] == fits
        ]
        return (
            ["; ".join(alternative["told"] for alternative in alternatives)]
            if alternatives
            else []
        )

    head = "Simulation, on one core, without compiling: "
    parts += _sentences(rows, head, _estimate_basis)
    parts += _sentences(
        rows,
        "Would also fit on the hosts: ",
        lambda row: describe_alternatives(row, True),
    )
    parts += _sentences(
        rows, "Would not fit: ", lambda row: describe_alternatives(row, False)
    )
    parts += _sentences(rows, "Routing: ", lambda row: [row["routing"]])
    parts += _sentences(rows, "", _slow_cables)
    parts += _sentences(rows, "Fault, of which the bounds know nothing: ", _faults)
    parts += _sentences(rows, "", _tier)
    return parts + _sentences(rows, "Warning: ", _warnings, end="")


def _table(
    title: str,
    columns: Mapping[str, Style],
    rows: Sequence[Row],
    cells: Callable[[Row], list[str]],
) -> Table:
    """Return a table with a row for each run: its name, then ``cells`` of the row, one
    for each of ``columns``, which are styles by heading.
    """
    table = new_table(title, ["run"])
    for head, style in columns.items():
        table.add_column(head, **style)
    for row in rows:
        table.add_row(row["run"], *cells(row))
    return table


def _bounds_table(rows: Sequence[Row]) -> Table:
    """Return the table of the least seconds of runs: their steps, resources and epoch.

    Its resources are those of `SHOWN`; where a run reads from an object store, those
    also of `SHOWN_OF_STORE` that any run uses.
    """
    columns = SHOWN
    if any(
        REQUESTS in row["resources_s"] for row in rows
    ):  # then those that any run uses
        resources_of_runs = [row["resources_s"] for row in rows]
        columns_with_store = SHOWN | SHOWN_OF_STORE
        columns = {
            key: columns_with_store[key]
            for key in columns_with_store
            if any(seconds.get(key) for seconds in resources_of_runs)
        }

    def cells(row: Row) -> list[str]:
        """Return the seconds and the bottleneck of a run; '-' for 0 s."""
        iteration = [
            row[name]
            for name in ("compute_s", "allreduce_alone_s", "allreduce_s", "exchange_s")
        ]
        reading = [row["resources_s"].get(name, 0.0) for name in columns]
        return [
            *map(_number, (*iteration, *reading, row["epoch_s"])),
            row["bottleneck"],
        ]

    title = (
        "At least (s): compute, allreduce (all, and what is seen beside the backward pass) and"
        " exchange of an iteration; reading of an epoch"
    )
    heads = ["compute", "allreduce", "seen", "exchange", *columns.values(), "epoch"]
    return _table(
        title, dict.fromkeys(heads, NUMBER) | {"bottleneck": WORD}, rows, cells
    )


def _exchange_table(rows: Sequence[Row]) -> Table:
    """Return the table of what runs exchange after an average iteration."""

    def cells(row: Row) -> list[str]:
        """Return the counts, kinds and milliseconds of a run's exchange."""
        exchange = row["exchange"]
        seconds = (
            exchange["work_s"],
            exchange["waiting_s"],
            exchange["barriers_s"],
            exchange["wire_s"],
        )
        counts = f"{exchange['samples']:.3g}", f"{exchange['messages']:.3g}"
        return [
            *counts,
            exchange["barriers"],
            exchange["payload"],
            *(_number(1e3 * value) for value in seconds),
        ]

    columns = dict.fromkeys(("samples", "messages"), NUMBER)
    columns |= dict.fromkeys(("barrier before", "payload"), WORD)
    columns |= dict.fromkeys(("host work", "waiting", "barriers", "wire"), RIGHT)
    return _table(
        "Exchange after an iteration: samples, messages, and ms", columns, rows, cells
    )


def _needs_table(rows: Sequence[Row]) -> Table:
    """Return the table of what runs need: bytes on hosts, staging, time and memory."""
    nbytes = Dimension.NBYTES
    seconds = Dimension.SECONDS

    def cells(row: Row) -> list[str]:
        """Return what a run needs, with units; '-' where it needs no storage or no
        staging.
        """
        return [
            readable(row["storage_nbytes"], nbytes, 3)
            if row["storage_nbytes"]
            else "-",
            f"{readable(row['capacity_nbytes'], nbytes, 3)} {row['storage_on']}",
            readable(row["staging_s"], seconds, 2) if row["staging_s"] else "-",
            readable(row["simulation_s"], seconds, 2),
            readable(row["simulation_nbytes"], nbytes, 2),
        ]

    heads = ("storage a host", "of", "staging", "simulation", "memory")
    return _table("Needs", dict.fromkeys(heads, RIGHT), rows, cells)


def _compute(row: Row) -> list[str]:
    """Return a sentence on the parts of compute that take time; [] if none do."""
    parts = [
        f"{readable(seconds, Dimension.SECONDS, 3)} {text}"
        for name, text in COMPUTE.items()
        if (seconds := row["compute"][f"{name}_s"])
    ]
    return [", ".join(parts)] if parts else []


def _checkpoints(row: Row) -> list[str]:
    """Return a sentence on checkpoints; [] if the run writes none."""
    return [checkpoint_sentence(row["checkpoint"])] if "checkpoint" in row else []


def _estimate_basis(row: Row) -> list[str]:
    """Return a sentence on the timings behind the simulation's estimates, and on their
    error.
    """
    text = TIMED if row["simulation_timed"] else NOT_TIMED
    return [text.format(count=row["simulation_timed"], within=row["simulation_within"])]


def _faults(row: Row) -> list[str]:
    """Return each fault in words; [] if the run has none."""
    return list(row.get("faults", []))


def _slow_cables(row: Row) -> list[str]:
    """Return a sentence on slow cables; [] if the cluster has none."""
    facts = row.get("slow_cables")
    return [] if facts is None else [describe_slow_cables_on_routes(facts)]


def _tier(row: Row) -> list[str]:
    """Return a sentence on the cache tier; [] if the run reads through none."""
    facts = row.get("cache_tier")
    return [] if facts is None else [tier_sentence(facts)]


def _warnings(row: Row) -> list[str]:
    """Return the warnings, and sentences on measured values that are used outside their
    range.
    """
    odd = [
        str(
            Problem(
                warning["key"], warning["rule"], warning["value"], warning["remedy"]
            )
        )
        for warning in row["warnings"]
    ]
    return [*odd, *(f"{sentence}." for sentence in row["extrapolated"])]


def _sentences(
    rows: Sequence[Row], head: str, texts: Callable[[Row], list[str]], end: str = "."
) -> list[str | Table]:
    """Return each text on a run once, with the names of its runs, if these are not all.

    ``head`` stands before each text, and ``end`` after the names. [] without texts.
    """
    runs: dict[str, list[str]] = {}
    for row in rows:
        for text in texts(row):
            runs.setdefault(text, []).append(row["run"])
    names = [row["run"] for row in rows]
    place_of_text = {
        text: name_subset(named_runs, names) for text, named_runs in runs.items()
    }
    suffix_of_text = {
        text: f" ({run_names})" if run_names else ""
        for text, run_names in place_of_text.items()
    }
    return [
        f"{head}{text}{run_names}{end}" for text, run_names in suffix_of_text.items()
    ]


def _number(value: float) -> str:
    """Return a number with three significant digits; '-' for 0."""
    return f"{value:.3g}" if value else "-"
