"""The result on a terminal: two tables, and the sentences beside them."""

from __future__ import annotations

from rich.table import Table

from simshuffle.results import report
from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.result import SimulationResult as Result


def tables(result: Result) -> list[Table]:
    """Seconds under the papers' labels, and bytes by source; a row for every epoch. Both fit 80
    columns."""
    return [_seconds_table(result), _bytes_table(result)]


def _epoch(number: int) -> str:
    return "1 cold" if number == 1 else str(number)


def _seconds_table(result: Result) -> Table:
    labels = list(dict.fromkeys(result.breakdown["label"]))
    table = new_table(
        "Seconds per epoch, mean over ranks", ["run"], ["epoch", "total", *labels, "hidden"]
    )
    seconds = result.breakdown.assign(run=result.breakdown["run"].astype(str)).set_index(
        ["run", "epoch", "label"]
    )["seconds"]
    for row in result.epochs.to_dict("records"):
        run, epoch = str(row["run"]), int(row["epoch"])
        hidden = row["exchange_total_s"] - row["exchange_exposed_s"]
        parts = (f"{seconds[run, epoch, label]:.3f}" for label in labels)
        table.add_row(run, _epoch(epoch), f"{row['epoch_s']:.3f}", *parts, f"{hidden:.3f}")
    return table


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
    """Storage and staging, waiting and what it was for: two lines a run."""
    idle = report.waiting(result.timeline)
    lines = []
    for run, meta in result.meta["runs"].items():
        epoch = int(result.epochs.loc[result.epochs["run"] == run, "epoch"].max())
        waited = (
            idle[(idle["run"] == run) & (idle["epoch"] == epoch)]
            .groupby("cause", observed=True)["seconds"]
            .sum()
        )
        storage = readable(meta["storage_per_host_nbytes"], Dimension.NBYTES)
        where = "in the memory" if meta["staged_to"] == "memory" else "on the SSD"
        staging = (
            f"staged in {readable(meta['staging_s'], Dimension.SECONDS, 3)}"
            if meta["staging_s"]
            else "nothing to stage"
        )
        lines += [
            f"{run}: {storage} {where} of a host, {staging}.",
            (
                f"  Waiting for other ranks in epoch {epoch}, by what they were busy with:"
                f" {_listed(waited.to_dict())}."
            ),
            *(f"  extrapolated: {sentence}." for sentence in meta.get("extrapolated", [])),
        ]
    return lines


def _listed(seconds: dict[str, float]) -> str:
    return (
        ", ".join(f"{label} {value:.3f} s" for label, value in seconds.items() if value > 0)
        or "nothing"
    )


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES, 3) if value else "-"
