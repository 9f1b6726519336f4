"""The result on a terminal: one table, and the sentences beside it."""

from __future__ import annotations

from rich.table import Table

from simshuffle import report
from simshuffle.results import Result
from simshuffle.units import Dimension, readable


def epoch_table(result: Result) -> Table:
    """A row for every epoch: its duration, the papers' labels, hidden exchange, throughput and bytes by source."""
    table = Table(title="Seconds per epoch, mean over ranks")
    labels = list(dict.fromkeys(result.breakdown["label"]))
    table.add_column("run", no_wrap=True)
    for name in ("epoch", "total", *labels, "hidden\nexchange", "samples/s", "PFS", "SSD", "memory", "peers"):
        table.add_column(name, justify="right")
    seconds = result.breakdown.assign(run=result.breakdown["run"].astype(str)).set_index(["run", "epoch", "label"])["seconds"]
    for row in result.epochs.to_dict("records"):
        run, epoch = str(row["run"]), int(row["epoch"])
        rate = result.meta["runs"][run]["samples_per_s"][epoch - 1]
        hidden = row["exchange_total_s"] - row["exchange_exposed_s"]
        table.add_row(
            run,
            f"{epoch} (cold)" if epoch == 1 else str(epoch),
            f"{row['epoch_s']:.3f}",
            *(f"{seconds[run, epoch, label]:.3f}" for label in labels),
            f"{hidden:.3f}",
            f"{rate:,.0f}",
            *(_bytes(row[f"nbytes_{source}"]) for source in ("pfs", "ssd", "memory", "peer")),
        )
    return table


def notes(result: Result) -> list[str]:
    """Waiting and what it was for, staging and storage: one line a run."""
    idle = report.waiting(result.timeline)
    critical = report.critical_path(result.timeline)
    lines = []
    for run, meta in result.meta["runs"].items():
        epoch = int(result.epochs.loc[result.epochs["run"] == run, "epoch"].max())
        waited = idle[(idle["run"] == run) & (idle["epoch"] == epoch)].groupby("label", observed=True)["seconds"].sum()
        parts = ", ".join(f"{seconds:.3f} s of {label}" for label, seconds in waited.items() if seconds > 0)
        own = critical[(critical["run"] == run) & (critical["epoch"] == epoch)].set_index("label")["seconds"]
        last = ", ".join(f"{label} {seconds:.3f} s" for label, seconds in own.items() if seconds > 0)
        storage = readable(meta["storage_per_host_nbytes"], Dimension.NBYTES)
        staging = f"staging takes at least {readable(meta['staging_s'], Dimension.SECONDS)}" if meta["staging_s"] else "nothing to stage"
        lines.append(f"{run}: {storage} per host on SSD, {staging}. Waiting for other ranks in epoch {epoch}: {parts or 'none'};")
        lines.append(f"  the ranks that were waited for at the allreduce spent {last}.")
    return lines


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES, 3) if value else "-"
