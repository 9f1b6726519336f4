"""What is known of a run before it is simulated, as ``simshuffle check`` says it: what bounds its
epoch, what it needs, which values are probably not meant, and what else follows from a scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simshuffle.errors import Problem
from simshuffle.job.plan.bounds import Bounds, allreduce_seconds, allreduce_seconds_alone, bounds
from simshuffle.job.plan.checkpoint_findings import checkpoint_facts, checkpoint_sentence
from simshuffle.job.plan.effort import START, effort
from simshuffle.job.plan.findings import (
    exchange_nbytes,
    exchange_samples,
    extrapolated,
    on_the_ways,
    warnings,
)
from simshuffle.job.plan.holding import held_in, most_held, offers, staging_seconds
from simshuffle.job.plan.reading_bounds import DECODE, OPENS, PFS, REQUESTS, SSD, STORE
from simshuffle.job.plan.tier_gain import tier_gain, tier_warnings, told
from simshuffle.job.plan.wiring import routing
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.tokens import repeated
from simshuffle.job.scenario.workload import Dataset, Workload
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
Style = Mapping[str, Any]
NUMBER: Style = {"justify": "right", "no_wrap": True}
RIGHT: Style = {"justify": "right"}
WORD: Style = {}
"""Columns of tables."""


def verdict(scenario: Scenario, run: str) -> Row:
    """All that is known of a run: plain values, which JSON can hold. Seconds of an iteration are
    ``compute_s``, which is the sum of ``compute`` without its ``slowed_s``, ``allreduce_s`` of what
    the allreduces show beside the backward pass, ``allreduce_alone_s`` of all of them, and
    ``exchange_s``, which is the sum of ``exchange``'s. Those of an epoch are ``resources_s`` by
    resource, and ``epoch_s``, a lower bound. ``warnings`` have key, rule, value and remedy.
    ``offers`` are strategies to compare this one with; ``holds`` is the kind of its own, if hosts
    hold samples. ``simulation_s`` is right within the factor ``simulation_within`` in 9 of 10 runs,
    as the ``simulation_timed`` ones on this machine say. With checkpoints ``checkpoint`` are the
    `simshuffle.job.plan.checkpoint_findings.checkpoint_facts`."""
    bound, work, cluster = bounds(scenario), effort(scenario), scenario.cluster
    calibration = calibrations().get(work.kind, CellTimes())
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
        "epoch_s": bound.epoch,
        "bottleneck": bound.bottleneck,
        "routing": routing(cluster).describe(),
        **({"faults": [of.describe() for of in scenario.faults]} if scenario.faults else {}),
        **on_the_ways(scenario),
        **tier_gain(scenario),
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
            for w in [*warnings(scenario), *tier_warnings(scenario)]
        ],
    }


def _exchange(scenario: Scenario, bound: Bounds) -> Row | None:
    """The exchange after an iteration, in the mean; None without."""
    schedule = scenario.workload.exchange.exchange_schedule
    exchange, count = bound.exchange, bound.iterations
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
    """The verdicts of runs as tables and sentences: the bounds, the exchange if there is any, what
    is needed, the warnings."""
    names = without_schedule([row["run"] for row in rows])
    rows = [{**row, "run": name} for row, name in zip(rows, names, strict=True)]
    parts: list[str | Table] = [_bounds_table(rows), ABOUT]
    parts += _sentences(rows, "Compute of an average iteration: ", _compute)
    exchanging = [row for row in rows if row["exchange"]]
    if exchanging:
        parts.append(_exchange_table(exchanging))
    parts += _sentences(rows, "Checkpoints: ", _checkpoints)
    parts.append(_needs_table(rows))
    held = {row["holds"] for row in rows}

    def offered(row: Row, fits: bool) -> list[str]:
        """What else the hosts have room for and none of the runs does; or have no room for."""
        found = [of for of in row["offers"] if of["kind"] not in held and of["fits"] == fits]
        return ["; ".join(of["told"] for of in found)] if found else []

    head = "Simulation, on one core, without compiling: "
    parts += _sentences(rows, head, _rests_on)
    parts += _sentences(rows, "Would also fit on the hosts: ", lambda row: offered(row, True))
    parts += _sentences(rows, "Would not fit: ", lambda row: offered(row, False))
    parts += _sentences(rows, "Routing: ", lambda row: [row["routing"]])
    parts += _sentences(rows, "", _slow_cables)
    parts += _sentences(rows, "Fault, of which the bounds know nothing: ", _faults)
    parts += _sentences(rows, "", _tier)
    return parts + _sentences(rows, "Warning: ", _warnings, end="")


def _table(
    title: str, columns: Mapping[str, Style], rows: Sequence[Row], cells: Callable[[Row], list[str]]
) -> Table:
    """A row for each run."""
    table = new_table(title, ["run"])
    for head, style in columns.items():
        table.add_column(head, **style)
    for row in rows:
        table.add_row(row["run"], *cells(row))
    return table


def _bounds_table(rows: Sequence[Row]) -> Table:
    shown = SHOWN
    if any(REQUESTS in row["resources_s"] for row in rows):  # then those that any run uses
        used = [row["resources_s"] for row in rows]
        both = SHOWN | SHOWN_OF_STORE
        shown = {key: both[key] for key in both if any(of.get(key) for of in used)}

    def cells(row: Row) -> list[str]:
        iteration = [
            row[name] for name in ("compute_s", "allreduce_alone_s", "allreduce_s", "exchange_s")
        ]
        reading = [row["resources_s"].get(name, 0.0) for name in shown]
        return [*map(_number, (*iteration, *reading, row["epoch_s"])), row["bottleneck"]]

    title = (
        "At least (s): compute, allreduce (all, and what is seen beside the backward pass) and"
        " exchange of an iteration; reading of an epoch"
    )
    heads = ["compute", "allreduce", "seen", "exchange", *shown.values(), "epoch"]
    return _table(title, dict.fromkeys(heads, NUMBER) | {"bottleneck": WORD}, rows, cells)


def _exchange_table(rows: Sequence[Row]) -> Table:
    def cells(row: Row) -> list[str]:
        of = row["exchange"]
        seconds = (of["work_s"], of["waiting_s"], of["barriers_s"], of["wire_s"])
        counts = f"{of['samples']:.3g}", f"{of['messages']:.3g}"
        return [*counts, of["barriers"], of["payload"], *(_number(1e3 * each) for each in seconds)]

    columns = dict.fromkeys(("samples", "messages"), NUMBER)
    columns |= dict.fromkeys(("barrier before", "payload"), WORD)
    columns |= dict.fromkeys(("host work", "waiting", "barriers", "wire"), RIGHT)
    return _table("Exchange after an iteration: samples, messages, and ms", columns, rows, cells)


def _needs_table(rows: Sequence[Row]) -> Table:
    nbytes, seconds = Dimension.NBYTES, Dimension.SECONDS

    def cells(row: Row) -> list[str]:
        return [
            readable(row["storage_nbytes"], nbytes, 3) if row["storage_nbytes"] else "-",
            f"{readable(row['capacity_nbytes'], nbytes, 3)} {row['storage_on']}",
            readable(row["staging_s"], seconds, 2) if row["staging_s"] else "-",
            readable(row["simulation_s"], seconds, 2),
            readable(row["simulation_nbytes"], nbytes, 2),
        ]

    heads = ("storage a host", "of", "staging", "simulation", "memory")
    return _table("Needs", dict.fromkeys(heads, RIGHT), rows, cells)


def _compute(row: Row) -> list[str]:
    """How compute adds up."""
    parts = [
        f"{readable(seconds, Dimension.SECONDS, 3)} {text}"
        for name, text in COMPUTE.items()
        if (seconds := row["compute"][f"{name}_s"])
    ]
    return [", ".join(parts)] if parts else []


def _checkpoints(row: Row) -> list[str]:
    return [checkpoint_sentence(row["checkpoint"])] if "checkpoint" in row else []


def _rests_on(row: Row) -> list[str]:
    """What the estimates of the simulation rest on, and by how much they may be off."""
    text = TIMED if row["simulation_timed"] else NOT_TIMED
    return [text.format(count=row["simulation_timed"], within=row["simulation_within"])]


def _faults(row: Row) -> list[str]:
    return list(row.get("faults", []))


def _slow_cables(row: Row) -> list[str]:
    about = row.get("slow_cables")
    return [] if about is None else [describe_slow_cables_on_routes(about)]


def _tier(row: Row) -> list[str]:
    about = row.get("cache_tier")
    return [] if about is None else [told(about)]


def _warnings(row: Row) -> list[str]:
    """And measured values that are used outside their range."""
    odd = [
        str(Problem(found["key"], found["rule"], found["value"], found["remedy"]))
        for found in row["warnings"]
    ]
    return [*odd, *(f"{each}." for each in row["extrapolated"])]


def _sentences(
    rows: Sequence[Row], head: str, texts: Callable[[Row], list[str]], end: str = "."
) -> list[str | Table]:
    """Each text that is said of a run, once; with the runs that it is said of, if not of all."""
    runs: dict[str, list[str]] = {}
    for row in rows:
        for text in texts(row):
            runs.setdefault(text, []).append(row["run"])
    names = [row["run"] for row in rows]
    where = {text: name_subset(of, names) for text, of in runs.items()}
    whose = {text: f" ({of})" if of else "" for text, of in where.items()}
    return [f"{head}{text}{of}{end}" for text, of in whose.items()]


def _number(value: float) -> str:
    """Three digits; '-' for nothing."""
    return f"{value:.3g}" if value else "-"


# ------------------------------------------------------------------------ what else follows from it


def derived(scenario: Scenario) -> dict[str, str]:
    """Derived values by name, as text with units; samples and bytes are expected values per
    rank."""
    workload, dataset = scenario.workload, scenario.workload.dataset
    exchange = workload.exchange
    where = held_in(scenario) or "ssd"
    room = scenario.cluster.capacity(where)
    out = {
        "hosts": str(scenario.hosts),
        "iterations per epoch": str(workload.iterations(scenario.world_size)),
        "global batch size": str(workload.local_batch_size * scenario.world_size),
        "samples per rank": f"{dataset.num_samples / scenario.world_size:.1f}",
        "data set": _bytes(dataset.nbytes),
        "storage per host": (
            f"{_bytes(most_held(scenario))} of"
            f" {_bytes(room)}{' of memory' if where == 'memory' else ''}"
        ),
        "staging before the first epoch": readable(staging_seconds(scenario), Dimension.SECONDS),
        "gradients per rank and iteration": _bytes(workload.model.gradient_size),
    }
    if sample := _sample(dataset):
        out["sample"] = sample
    out |= _tokens(workload)
    out["routing"] = routing(scenario.cluster).describe()
    if structure := scenario.cluster.topology.structure():
        out["network"] = structure
    schedule = exchange.exchange_schedule
    if schedule is not None and exchange.fraction is not None:
        count = exchange_samples(scenario)
        out["samples exchanged per rank and epoch"] = f"{count:.1f}"
        out["samples exchanged per rank and iteration"] = (
            f"{exchange.fraction * workload.local_batch_size:.4g}"
        )
        out["bytes exchanged per rank and epoch"] = _bytes(exchange_nbytes(scenario))
    if sentences := extrapolated(scenario):
        out["extrapolated"] = ". ".join(sentences)
    return out


def _sample(dataset: Dataset) -> str:
    """What follows from the mean size of a sample, because the data set does not say it; '' if it
    does."""
    size, decode, encode = dataset.decoded_size, dataset.decode, dataset.encode
    parts = [
        text
        for given, text in (
            (
                dataset.sample_size is None or dataset.sample_size.std,
                f"{_bytes(dataset.stored.spread)} of standard deviation",
            ),
            (size, f"{_bytes(dataset.decoded_nbytes)} decoded"),
            (decode, f"decoded in {readable(dataset.decode_seconds, Dimension.SECONDS)}"),
            (encode, f"encoded in {readable(dataset.encode_seconds, Dimension.SECONDS)}"),
        )
        if given is None
    ]
    return f"{', '.join(parts)}: {dataset.stored_as.source}" if parts else ""


def _tokens(workload: Workload) -> dict[str, str]:
    """How sequences of tokens are packed, and what an epoch reads of each source; {} without."""
    tokens, samples = workload.dataset.tokens, workload.dataset.num_samples
    if tokens is None:
        return {}
    parts = [
        f"{tokens.ranges:.4g} ranges of a file",
        f"{1.0 - tokens.useful:.3g} of it padding" if tokens.useful < 1.0 else "no padding",
        f"{workload.mean_work:.4g} of the computing that the model's step times say",
    ]
    out = {"sequence of tokens, in the mean": ", ".join(parts)}
    for source in tokens.blended if tokens.sources else []:
        epochs = source.epochs(samples)
        again, never = repeated(epochs)
        told = f"{never:.3g} of it never read" if never else f"{again:.3g} of it read before"
        ranges = 1.0 if tokens.shuffled == "sequences" else source.pieces
        out[f"source {source.name}"] = (
            f"{source.share:.3g} of all sequences, {epochs:.4g} times through it, {told},"
            f" {ranges:.4g} ranges a sequence"
        )
    return out


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES)
