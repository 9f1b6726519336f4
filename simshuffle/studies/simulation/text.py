"""The result on a terminal: two tables, and the sentences beside them."""

from __future__ import annotations

from rich.table import Table

from simshuffle.results import report
from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.result import SimulationResult as Result


def tables(result: Result, labels: report.Booking = "cause") -> list[Table]:
    """Seconds by label, and bytes by source; a row for every epoch. Both fit 100 columns."""
    return [_seconds_table(result, labels), _bytes_table(result)]


def _epoch(number: int) -> str:
    return "1 cold" if number == 1 else str(number)


def _seconds_table(result: Result, labels: report.Booking) -> Table:
    if labels == "cause":
        title = "Seconds per epoch, mean over ranks: own work, and waiting for ranks that do it"
    else:
        title = "Seconds per epoch, mean over ranks, waiting booked as in the authors' timers"
    parts = report.shown(result.breakdown, labels)
    kinds = parts[["waiting", "label"]].drop_duplicates()
    columns = [
        (waits, label)
        for waits in (False, True)
        for label in report.LABELS
        if ((kinds["waiting"] == waits) & (kinds["label"] == label)).any()
    ]
    heads = [f"wait for\n{label}" if waits else label for waits, label in columns]
    table = new_table(title, ["run"], ["epoch", "total", *heads, "exchange\nhidden"])
    keys = zip(
        parts["run"].astype(str), parts["epoch"], parts["waiting"], parts["label"], strict=True
    )
    seconds = dict(zip(keys, parts["seconds"], strict=True))
    for row in result.epochs.to_dict("records"):
        run, epoch = str(row["run"]), int(row["epoch"])
        hidden = row["exchange_total_s"] - row["exchange_exposed_s"]
        values = (seconds.get((run, epoch, *column), 0.0) for column in columns)
        table.add_row(
            run, _epoch(epoch), *(number(value) for value in (row["epoch_s"], *values, hidden))
        )
    return table


def number(seconds: float) -> str:
    """Seconds with at least three digits, and no more than 1 ms where there are that many."""
    return "-" if seconds == 0 else f"{seconds:,.{max(0, min(3, 4 - len(f'{seconds:.0f}')))}f}"


def _bytes_table(result: Result) -> Table:
    table = new_table(
        "Throughput, accelerator utilisation (AU), and bytes read by source",
        ["run"],
        ["epoch", "samples/s", "AU", "PFS", "SSD", "memory", "peers"],
    )
    for row in result.epochs.to_dict("records"):
        run, epoch = str(row["run"]), int(row["epoch"])
        sources = (_bytes(row[f"nbytes_{source}"]) for source in ("pfs", "ssd", "memory", "peer"))
        table.add_row(
            run,
            _epoch(epoch),
            f"{row['samples_per_s']:,.0f}",
            f"{row['accelerator_utilisation']:.0%}",
            *sources,
        )
    return table


def notes(result: Result) -> list[str]:
    """Storage, staging and what is extrapolated: a line a run at least."""
    lines = []
    for run, meta in result.meta["runs"].items():
        storage = readable(meta["storage_per_host_nbytes"], Dimension.NBYTES)
        where = "in the memory" if meta["staged_to"] == "memory" else "on the SSD"
        staging = (
            f"staged in {readable(meta['staging_s'], Dimension.SECONDS, 3)}"
            if meta["staging_s"]
            else "nothing to stage"
        )
        lines += [
            f"{run}: {storage} {where} of a host, {staging}.",
            *(f"  extrapolated: {sentence}." for sentence in meta.get("extrapolated", [])),
        ]
    return lines


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES, 3) if value else "-"
