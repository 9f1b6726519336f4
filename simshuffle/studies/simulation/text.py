"""The result on a terminal: two tables, and the sentences beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import report
from simshuffle.report.console import new_table
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.names import name_subset
from simshuffle.report.slow_cables import describe_slow_cables_in_use
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.mishaps import lines as lines_of
from simshuffle.studies.simulation.tables import STORED, Means
from simshuffle.study.study import Result, Tables

MOST_CAUTIONS = 4
"""Cautions that a terminal shows without -v."""
READING = 0.2
"""Share of an epoch that waiting for I/O takes where it is said how well it is known."""
SOURCES = ("nbytes_pfs", "nbytes_ssd", "nbytes_memory", "nbytes_peer")
BEHIND = {"EXCHANGE": "exchange", "GE+WU": "allreduce"}
"""What may be hidden behind other work, by its label."""
WORK = {
    "own work": [
        *((False, label) for label in report.ALL_LABELS if label != "EXCHANGE"),
        (True, report.SLOWING),
    ],
    "exchange": [(False, "EXCHANGE")],
    "waiting": [(True, label) for label in report.ALL_LABELS if label != report.SLOWING],
}
"""What an epoch adds up to, as whether it is waiting, and the label."""


def bytes_tables(of: Means) -> list[Table]:
    """Bytes by source, and what an object store is asked, if one is."""
    over = f", mean over {of.seeds} seeds" if of.seeds > 1 else ""
    shown = of.epochs.assign(epoch=of.epochs["epoch"].map(_epoch))
    if of.half is not None:
        half = of.half["samples_per_s"]
        rates = zip(*(of.epochs[name] for name in ("run", "epoch", "samples_per_s")), strict=True)
        shown["samples_per_s"] = [spread(rate, half[str(run), epoch]) for run, epoch, rate in rates]
    listing = STORED["epochs"].listing
    title = f"Throughput, accelerator utilisation (AU), and bytes read by source{over}"
    read = [name for name in SOURCES if of.epochs[name].any()]
    columns = ("run", "epoch", "samples_per_s", "accelerator_utilisation", *read)
    found = [listing(shown, title, columns)]
    if of.epochs[["nbytes_object_store", "object_store_usd"]].any(axis=None):
        title = "What the object store is asked in an epoch; dollars with those of staging before"
        asked = ("read_requests_object_store", "nbytes_object_store", "object_store_usd")
        found.append(listing(shown, f"{title} it{over}", ("run", "epoch", *asked)))
    return found


def _epoch(number: int) -> str:
    return "1 cold" if number == 1 else str(number)


def seconds_table(of: Means, labels: report.Booking | None = None) -> Table:
    """Seconds of every epoch: by label, booked as ``labels`` says, which fits 100 columns of one
    seed; of None in sums alone, which fit a page."""
    over = f"ranks and {of.seeds} seeds" if of.seeds > 1 else "ranks"
    parts = report.arrange_labels(of.breakdown, labels or "cause")
    seconds = _seconds(parts)
    kinds = {(waits, label) for *_, waits, label in seconds}
    columns: Mapping[str, Sequence[tuple[bool, str]]] = WORK
    behind: list[str] = []
    if labels is None:
        slowed = " (slowed by allreduce)" * ((True, report.SLOWING) in kinds)
        about = f": own work{slowed}, exchange, and waiting for other ranks"
    else:
        about = ": own work, and waiting for ranks that do it"
        if labels == "paper":
            about = ", waiting booked as in the authors' timers"
        both = [(waits, label) for waits in (False, True) for label in report.ALL_LABELS]
        heads = ["\n".join(report.part_name(of, waits).rsplit(" ", 1)) for waits, of in both]
        columns = {head: [kind] for head, kind in zip(heads, both, strict=True)}
        behind = list(BEHIND.values())
    keys = list(zip(of.epochs["run"].astype(str), of.epochs["epoch"].tolist(), strict=True))
    values: dict[str, Sequence[float]] = {
        head: [sum(seconds.get((*key, *kind), 0.0) for kind in own) for key in keys]
        for head, own in columns.items()
    }
    values |= {
        f"{name}\nhidden": report.hidden_seconds(of.epochs, name).tolist() for name in behind
    }
    totals = []
    for key, whole in zip(keys, of.epochs["epoch_s"].tolist(), strict=True):
        reach = None if of.epoch_half is None else float(of.epoch_half[key])
        exact = reach is None or (reach == 0 and of.seeds == 1)
        totals.append(number(whole) if exact else spread(whole, reach or 0.0))
    title = f"Seconds per epoch, mean over {over}{about}"
    lead = {"run": [run for run, _ in keys], "epoch": [_epoch(epoch) for _, epoch in keys]}
    return _table(title, {**lead, "total": totals}, values)


def labels_table(of: Means) -> Table:
    """Seconds of every epoch by label and cause, a row for each label."""
    seconds = _seconds(report.by_cause(of.breakdown))
    title = "The same by label: own work, waiting for ranks that do it, and what is hidden"
    rows = []
    for row in of.epochs.to_dict("records"):
        run, epoch = str(row["run"]), int(row["epoch"])
        for label in report.ALL_LABELS:
            own, caused = (seconds.get((run, epoch, waits, label), 0.0) for waits in (False, True))
            split = (0.0, caused) if label == report.SLOWING else (caused, 0.0)
            hidden = report.hidden_seconds(row, BEHIND[label]) if label in BEHIND else 0.0
            if any(values := (own, *split, hidden)):
                rows.append((run, label, _epoch(epoch), *values))
    lead, heads = ("run", "label", "epoch"), ("own work", "waiting", "slowed by it", "hidden")
    columns: Any = dict(zip((*lead, *heads), zip(*rows, strict=True), strict=True))
    return _table(title, {name: columns.pop(name) for name in lead}, columns)


def _table(
    title: str, lead: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[float]]
) -> Table:
    """Texts up to the epoch, which say what a row is; and seconds, where there are any."""
    shown = {**lead, **{head: [*map(number, of)] for head, of in values.items() if any(of)}}
    names = [*lead][: [*lead].index("epoch")]
    numbers = [head for head in shown if head not in names]
    return new_table(title, names, numbers, zip(*shown.values(), strict=True))


def _seconds(parts: pd.DataFrame) -> dict[Any, float]:
    """Of the breakdown as it is shown, by run, epoch, whether it is waiting, and label."""
    table = parts.astype({"run": str}).set_index(["run", "epoch", "waiting", "label"])
    seconds: dict[Any, float] = table["seconds"].to_dict()
    return seconds


def spread(mean: float, half: float) -> str:
    """A mean and half its interval, with as many digits; the mean alone where there is none."""
    digits = 0 if abs(mean) >= 1000 else 3
    text = f"{mean:,.{digits}f}"
    return text if pd.isna(half) else f"{text} ± {half:,.{digits}f}"


def about_interval(about: str) -> str:
    """What stands below a table with intervals; ``about`` is what they are of."""
    return f"± is half the 95 % interval, by Student's t, of {about}."


def number(seconds: float) -> str:
    """Seconds with at least three digits, and no more than 1 ms where there are that many."""
    return "-" if seconds == 0 else f"{seconds:,.{decimals(seconds)}f}"


def decimals(seconds: float) -> int:
    """Return the decimals of seconds with four digits, at most three."""
    return max(0, min(3, 4 - len(f"{seconds:.0f}")))


def notes(result: Result, *, extrapolated: bool = True) -> list[str]:
    """Storage, staging, routing and, if wanted, what is extrapolated: a line a run at least."""
    lines = []
    for run, meta in result.meta["runs"].items():
        held, seconds = meta["storage_per_host_nbytes"], meta["staging_s"]
        where = "in memory" if meta["staged_to"] == "memory" else "on its SSD"
        storage = f"a host holds {readable(held, Dimension.NBYTES)} {where}"
        if seconds:
            took = readable(seconds, Dimension.SECONDS, 3)
            storage += f", copied there in {took}"
        routing = f", routing {meta['routing']}" if "routing" in meta else ""
        lines += [
            f"{run}: {storage if held else 'hosts hold no samples'}{routing}.",
            *(f"  {line}" for line in lines_of(meta)),
            *(f"  {sentence}" for sentence in _in_groups(meta.get("in_groups"))),
            *(f"  {describe_slow_cables_in_use(of)}." for of in [meta.get("slow_cables")] if of),
            *(f"  extrapolated: {each}." for each in extrapolated * meta.get("extrapolated", [])),
        ]
    return [*lines, *windows(result.tables["sources"]), *_undivided(result.tables)]


def cautions(result: Result) -> list[str]:
    """What makes numbers differ or doubtful: slow cables and values used outside their range, each
    once with its runs, the first `MOST_CAUTIONS`."""
    runs: dict[str, list[str]] = {}
    for run, meta in result.meta["runs"].items():
        slow = [describe_slow_cables_in_use(about) for about in [meta.get("slow_cables")] if about]
        beyond = [f"Extrapolated: {each}" for each in meta.get("extrapolated", [])]
        for said in [*slow, *beyond]:
            runs.setdefault(said, []).append(run)
    where = {said: name_subset(own, [*result.meta["runs"]]) for said, own in runs.items()}
    lines = [f"{f'{names}: ' if names else ''}{said}." for said, names in where.items()]
    more = len(lines) - MOST_CAUTIONS
    return [*lines[:MOST_CAUTIONS], *[f"{more} more cautions with -v."] * (more > 0)]


def _undivided(tables: Tables) -> Iterator[str]:
    """Runs of which a part was simulated while ranks wait for storage: their beginning says little
    of whose reading the others wait for later."""
    epochs, parts = tables["epochs"], report.by_cause(tables["breakdown"])
    waits = parts[parts["waiting"] & (parts["label"] == "I/O")]
    keys = report.keys_of(epochs)
    rows = epochs.astype({"run": str}).merge(waits.astype({"run": str}), on=keys)
    part = rows["iterations_simulated"] < rows["iterations"]
    for run in rows.loc[part & (rows["seconds"] > READING * rows["epoch_s"]), "run"].unique():
        yield (
            f"{run}: I/O and waiting for it are known together; how they divide is that of the part"
            " that was simulated."
        )


def _in_groups(about: Mapping[str, Any] | None) -> Iterator[str]:
    """What a rank that divides its steps with others does in FW+BW beside computing."""
    if about is None:
        return
    if about["ranks"] == 1:
        yield f"{about['strategy']}: all ranks take each step together."
        return
    seconds = ", ".join(
        f"{number(about[name])} s {does}"
        for name, does in (
            ("sent_s", "of sending within the group"),
            ("bubble_s", "idle in the pipeline's bubble"),
            ("wait_s", "of waiting for its batch"),
        )
        if about[name]
    )
    yield (
        f"{about['strategy']}, {about['ranks']} ranks a group: FW+BW of the last epoch contains"
        f" {seconds}."
    )


def windows(sources: pd.DataFrame) -> list[str]:
    """How many iterations were simulated where a time tolerance was given: a line a run."""
    lines = []
    given = (sources["steady_last"] > 0) | (sources["whole_because"] != "")
    for name, table in sources[given].groupby("run", observed=True, sort=False):
        run, left_out = str(name), table[table["steady_last"] > 0]
        if len(left_out):
            counts = left_out["iterations_simulated"]
            low, high, whole = counts.min(), counts.max(), left_out["iterations"].max()
            some = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            lines.append(
                f"{run}: {some} of {whole:,} iterations of an epoch were simulated; their mean"
                " stands for the others."
            )
        for reason, epochs in table.groupby("whole_because", observed=True, sort=False):
            if why := str(reason):
                *most, last = (str(epoch) for epoch in sorted(set(epochs["epoch"])))
                which = f"epochs {', '.join(most)} and {last}" if most else f"epoch {last}"
                lines.append(f"{run}: all iterations of {which} were simulated, because {why}.")
    return lines


def about_timeline(kept: KeptRanks) -> list[str]:
    """Of which ranks the timeline is, and how to get the others; nothing where it is of all."""
    if kept == "full":
        return []
    what = "has a sample of the ranks only" if kept == "ranks" else "is empty"
    return [
        f"timeline.parquet {what}; --timeline full keeps every rank. iterations.parquet has the"
        " means of all ranks."
    ]
