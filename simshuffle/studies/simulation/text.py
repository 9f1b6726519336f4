"""The texts of a simulation on a terminal: two tables, and the sentences beside them."""

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
from simshuffle.studies.simulation.mishaps import list_notes as lines_of
from simshuffle.studies.simulation.tables import STORED, Means
from simshuffle.study.study import Result, Tables

MAX_CAUTIONS = 4
"""Largest number of cautions that a terminal shows without -v."""
NOTABLE_READING = 0.2
"""Share of an epoch of waiting for I/O from which on a note says how well it is known."""
SOURCES = ("nbytes_pfs", "nbytes_ssd", "nbytes_memory", "nbytes_peer")
HIDDEN_COLUMNS = {"EXCHANGE": "exchange", "GE+WU": "allreduce"}
"""Name of the work that may be hidden behind other work, by its label."""
SUMMARY_PARTS = {
    "own work": [
        *((False, label) for label in report.ALL_LABELS if label != "EXCHANGE"),
        (True, report.SLOWING),
    ],
    "exchange": [(False, "EXCHANGE")],
    "waiting": [
        (True, label) for label in report.ALL_LABELS if label != report.SLOWING
    ],
}
"""Parts of an epoch by heading: pairs of waiting (true or false) and label, which add
up to it.
"""


def bytes_tables(run_means: Means) -> list[Table]:
    """Return the tables of bytes by source, and of the requests to an object store, if
    any epoch has some.

    Rows are epochs of runs. A source of which nothing was read has no column. With
    several seeds samples/s have ± half their 95 % interval.
    """
    seeds_text = f", mean over {run_means.seeds} seeds" if run_means.seeds > 1 else ""
    displayed_epochs = run_means.epochs.assign(
        epoch=run_means.epochs["epoch"].map(_epoch_text)
    )
    if run_means.half_intervals is not None:
        half_rates = run_means.half_intervals["samples_per_s"]
        rates = run_means.epochs[["run", "epoch", "samples_per_s"]]
        displayed_epochs["samples_per_s"] = [
            format_with_half(rate, half_rates[str(run), epoch])
            for run, epoch, rate in rates.itertuples(index=False, name=None)
        ]
    listing = STORED["epochs"].listing
    title = f"Throughput, accelerator utilisation (AU), and bytes read by source{seeds_text}"
    source_columns = [name for name in SOURCES if run_means.epochs[name].any()]
    columns = (
        "run",
        "epoch",
        "samples_per_s",
        "accelerator_utilisation",
        *source_columns,
    )
    tables = [listing(displayed_epochs, title, columns)]
    if run_means.epochs[["nbytes_object_store", "object_store_usd"]].any(axis=None):
        title = (
            "Requests to the object store in an epoch; dollars include the staging"
            " before"
        )
        request_columns = (
            "read_requests_object_store",
            "nbytes_object_store",
            "object_store_usd",
        )
        tables.append(
            listing(
                displayed_epochs,
                f"{title} it{seeds_text}",
                ("run", "epoch", *request_columns),
            )
        )
    return tables


def _epoch_text(epoch: int) -> str:
    """Return the text of an epoch in a table; the first one is cold."""
    return "1 cold" if epoch == 1 else str(epoch)


def seconds_table(run_means: Means, booking: report.Booking | None = None) -> Table:
    """Return the table of the seconds of every epoch.

    Args:
        run_means: means over seeds.
        booking: the booking of waiting, for a column for each label, which fits 100
            columns of one seed; None for the sums of `SUMMARY_PARTS` alone, which fit a
            page.

    Returns:
        The table: the whole epoch ± half its 95 % interval, if any, and its parts. A
        column without any seconds is left out. With a booking hidden work has columns,
        too, which are no part of the epoch.
    """
    averaged_over = (
        f"ranks and {run_means.seeds} seeds" if run_means.seeds > 1 else "ranks"
    )
    arranged_breakdown = report.arrange_labels(run_means.breakdown, booking or "cause")
    seconds = _seconds_by_part(arranged_breakdown)
    kinds = {(is_waiting, label) for *_, is_waiting, label in seconds}
    columns: Mapping[str, Sequence[tuple[bool, str]]] = SUMMARY_PARTS
    hidden_names: list[str] = []
    if booking is None:
        slowed = " (slowed by allreduce)" * ((True, report.SLOWING) in kinds)
        title_end = f": own work{slowed}, exchange, and waiting for other ranks"
    else:
        title_end = ": own work, and waiting for ranks that do it"
        if booking == "paper":
            title_end = ", waiting booked as in the authors' timers"
        all_kinds = [
            (is_waiting, label)
            for is_waiting in (False, True)
            for label in report.ALL_LABELS
        ]
        headings = [
            "\n".join(report.part_name(label, is_waiting).rsplit(" ", 1))
            for is_waiting, label in all_kinds
        ]
        columns = {head: [kind] for head, kind in zip(headings, all_kinds, strict=True)}
        hidden_names = list(HIDDEN_COLUMNS.values())

    # (run, epoch) of the rows, and the seconds of each column in them
    runs = run_means.epochs["run"].astype(str)
    keys = list(zip(runs, run_means.epochs["epoch"].tolist(), strict=True))
    values: dict[str, Sequence[float]] = {
        head: [
            sum(seconds.get((*key, *kind), 0.0) for kind in kinds_of_column)
            for key in keys
        ]
        for head, kinds_of_column in columns.items()
    }
    values |= {
        f"{name}\nhidden": report.hidden_seconds(run_means.epochs, name).tolist()
        for name in hidden_names
    }
    totals = []
    for key, epoch_s in zip(keys, run_means.epochs["epoch_s"].tolist(), strict=True):
        half_interval = (
            None if run_means.epoch_half is None else float(run_means.epoch_half[key])
        )
        if half_interval is None or (half_interval == 0 and run_means.seeds == 1):
            totals.append(format_seconds(epoch_s))
        else:
            totals.append(format_with_half(epoch_s, half_interval))
    title = f"Seconds per epoch, mean over {averaged_over}{title_end}"
    leading_columns = {
        "run": [run for run, _ in keys],
        "epoch": [_epoch_text(epoch) for _, epoch in keys],
    }
    return _build_table(title, {**leading_columns, "total": totals}, values)


def labels_table(run_means: Means) -> Table:
    """Return the seconds of every epoch by label and cause, a row for each label.

    A label without any seconds, shown or hidden, has no row in that epoch.
    """
    seconds = _seconds_by_part(report.by_cause(run_means.breakdown))
    title = "Seconds per epoch by label: own work, waiting for ranks that do it, and hidden work"
    rows = []
    for row in run_means.epochs.to_dict("records"):
        run = str(row["run"])
        epoch = int(row["epoch"])
        for label in report.ALL_LABELS:
            own_work, waiting = (
                seconds.get((run, epoch, is_waiting, label), 0.0)
                for is_waiting in (False, True)
            )
            waiting_and_slowed = (
                (0.0, waiting) if label == report.SLOWING else (waiting, 0.0)
            )
            hidden = 0.0
            if label in HIDDEN_COLUMNS:
                hidden = report.hidden_seconds(row, HIDDEN_COLUMNS[label])
            if any(values := (own_work, *waiting_and_slowed, hidden)):
                rows.append((run, label, _epoch_text(epoch), *values))
    leading_names = ("run", "label", "epoch")
    headings = ("own work", "waiting", "slowed by it", "hidden")
    columns: Any = dict(
        zip((*leading_names, *headings), zip(*rows, strict=True), strict=True)
    )
    return _build_table(
        title, {name: columns.pop(name) for name in leading_names}, columns
    )


def _build_table(
    title: str,
    leading_columns: Mapping[str, Sequence[str]],
    seconds_by_heading: Mapping[str, Sequence[float]],
) -> Table:
    """Build a table with texts up to the epoch, which tell rows apart, and the columns
    of seconds that are not all 0.

    ``leading_columns`` must have 'epoch'; all columns have one value for each row.
    """
    displayed_columns = dict(leading_columns)
    for heading, seconds in seconds_by_heading.items():
        if any(seconds):
            displayed_columns[heading] = [*map(format_seconds, seconds)]
    names = [*leading_columns][: [*leading_columns].index("epoch")]
    numbers = [head for head in displayed_columns if head not in names]
    return new_table(
        title, names, numbers, zip(*displayed_columns.values(), strict=True)
    )


def _seconds_by_part(parts: pd.DataFrame) -> dict[Any, float]:
    """Return the seconds of a breakdown by (run, epoch, waiting (true or false), label).

    ``parts`` are of `report.arrange_labels` or `report.by_cause`, without seeds.
    """
    table = parts.astype({"run": str}).set_index(["run", "epoch", "waiting", "label"])
    seconds: dict[Any, float] = table["seconds"].to_dict()
    return seconds


def format_with_half(mean: float, half_interval: float) -> str:
    """Format a mean ± half its interval, with three decimals, none from 1,000 on.

    Where the interval is NaN, it is the mean alone.
    """
    digits = 0 if abs(mean) >= 1000 else 3
    text = f"{mean:,.{digits}f}"
    return text if pd.isna(half_interval) else f"{text} ± {half_interval:,.{digits}f}"


def describe_interval(subject: str) -> str:
    """Return the line below a table with 95 % intervals of ``subject``, a phrase such as
    'the mean over 3 seeds'.
    """
    return f"± is half the 95 % interval, by Student's t, of {subject}."


def format_seconds(seconds: float) -> str:
    """Format seconds with four digits, and at most three decimals; '-' for 0; no unit."""
    return "-" if seconds == 0 else f"{seconds:,.{count_decimals(seconds)}f}"


def count_decimals(seconds: float) -> int:
    """Return the decimals that give seconds four digits, from 0 to 3."""
    return max(0, min(3, 4 - len(f"{seconds:.0f}")))


def list_notes(result: Result, *, extrapolated: bool = True) -> list[str]:
    """Return the lines on storage, staging, routing and extrapolated values, one or
    more for each run.

    Indented lines say more of a run: mishaps, groups of ranks, and slow cables. Last are
    lines on runs of which a part was simulated.

    Args:
        result: the result.
        extrapolated: false to leave out the values that were extrapolated.
    """
    lines = []
    for run, meta in result.meta["runs"].items():
        stored_nbytes = meta["storage_per_host_nbytes"]
        seconds = meta["staging_s"]
        tier_text = "in memory" if meta["staged_to"] == "memory" else "on its SSD"
        storage = (
            f"a host holds {readable(stored_nbytes, Dimension.NBYTES)} {tier_text}"
        )
        if seconds:
            duration = readable(seconds, Dimension.SECONDS, 3)
            storage += f", copied there in {duration}"
        routing = f", routing {meta['routing']}" if "routing" in meta else ""
        lines += [
            f"{run}: {storage if stored_nbytes else 'hosts hold no samples'}{routing}.",
            *(f"  {line}" for line in lines_of(meta)),
            *(f"  {sentence}" for sentence in _describe_groups(meta.get("in_groups"))),
            *(
                f"  {describe_slow_cables_in_use(slow_cables)}."
                for slow_cables in [meta.get("slow_cables")]
                if slow_cables
            ),
            *(
                f"  extrapolated: {value}."
                for value in extrapolated * meta.get("extrapolated", [])
            ),
        ]
    return [
        *lines,
        *describe_windows(result.tables["sources"]),
        *_describe_unknown_division(result.tables),
    ]


def list_cautions(result: Result) -> list[str]:
    """Return the lines on what makes numbers differ or doubtful, each once with its
    runs.

    They are slow cables, and values that are used outside their range; at most
    `MAX_CAUTIONS`, then a line on how many more there are.
    """
    runs: dict[str, list[str]] = {}
    for run, meta in result.meta["runs"].items():
        slow_phrases = [
            describe_slow_cables_in_use(slow_cables)
            for slow_cables in [meta.get("slow_cables")]
            if slow_cables
        ]
        extrapolated = [
            f"Extrapolated: {value}" for value in meta.get("extrapolated", [])
        ]
        for caution in [*slow_phrases, *extrapolated]:
            runs.setdefault(caution, []).append(run)
    names_by_caution = {
        caution: name_subset(cautioned_runs, [*result.meta["runs"]])
        for caution, cautioned_runs in runs.items()
    }
    lines = [
        f"{f'{names}: ' if names else ''}{caution}."
        for caution, names in names_by_caution.items()
    ]
    num_hidden = len(lines) - MAX_CAUTIONS
    return [
        *lines[:MAX_CAUTIONS],
        *[f"{num_hidden} more cautions with -v."] * (num_hidden > 0),
    ]


def _describe_unknown_division(tables: Tables) -> Iterator[str]:
    """Yield a line on each partly simulated run whose ranks wait for storage.

    Waiting counts from `NOTABLE_READING` of an epoch on. The beginning of such a run
    says little of whose reading the others wait for later.
    """
    epochs = tables["epochs"]
    parts = report.by_cause(tables["breakdown"])
    reading_waits = parts[parts["waiting"] & (parts["label"] == "I/O")]
    keys = report.keys_of(epochs)
    rows = epochs.astype({"run": str}).merge(
        reading_waits.astype({"run": str}), on=keys
    )
    is_partial = rows["iterations_simulated"] < rows["iterations"]
    is_notable = rows["seconds"] > NOTABLE_READING * rows["epoch_s"]
    for run in rows.loc[is_partial & is_notable, "run"].unique():
        yield (
            f"{run}: the sum of I/O and of waiting for I/O is known; its division is taken from"
            " the simulated part."
        )


def _describe_groups(group: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the sentence on a rank's FW+BW beside computing, in a group of ranks.

    ``group`` has strategy, ranks, sent_s, bubble_s and wait_s (s of the last epoch).
    Nothing is yielded for None.
    """
    if group is None:
        return
    if group["ranks"] == 1:
        yield f"{group['strategy']}: all ranks take each step together."
        return
    seconds = ", ".join(
        f"{format_seconds(group[name])} s {purpose}"
        for name, purpose in (
            ("sent_s", "of sending within the group"),
            ("bubble_s", "idle in the pipeline's bubble"),
            ("wait_s", "of waiting for its batch"),
        )
        if group[name]
    )
    yield (
        f"{group['strategy']}, {group['ranks']} ranks a group: FW+BW of the last epoch contains"
        f" {seconds}."
    )


def describe_windows(sources: pd.DataFrame) -> list[str]:
    """Return the lines on how many iterations were simulated under a time tolerance,
    one or more for each run; [] without one.

    Epochs of which all iterations were simulated in spite of a tolerance are named, with
    the reason.
    """
    lines = []
    has_tolerance = (sources["steady_last"] > 0) | (sources["whole_because"] != "")
    for name, table in sources[has_tolerance].groupby("run", observed=True, sort=False):
        run = str(name)
        windowed = table[table["steady_last"] > 0]
        if len(windowed):
            min_simulated = windowed["iterations_simulated"].min()
            max_simulated = windowed["iterations_simulated"].max()
            num_iterations = windowed["iterations"].max()
            count_text = f"{min_simulated:,}"
            if min_simulated != max_simulated:
                count_text += f" to {max_simulated:,}"
            lines.append(
                f"{run}: {count_text} of {num_iterations:,} iterations of an epoch were"
                " simulated; their mean stands for the other iterations."
            )
        for reason, epochs in table.groupby("whole_because", observed=True, sort=False):
            if reason_text := str(reason):
                *first_epochs, last = (
                    str(epoch) for epoch in sorted(set(epochs["epoch"]))
                )
                epochs_text = f"epoch {last}"
                if first_epochs:
                    epochs_text = f"epochs {', '.join(first_epochs)} and {last}"
                lines.append(
                    f"{run}: all iterations of {epochs_text} were simulated, because {reason_text}."
                )
    return lines


def describe_timeline(timeline: KeptRanks) -> list[str]:
    """Return the line on the ranks of the timeline, and on how to get the others; []
    where it has all.
    """
    if timeline == "full":
        return []
    content = "has only a sample of the ranks" if timeline == "ranks" else "is empty"
    return [
        f"timeline.parquet {content}; --timeline full keeps every rank. iterations.parquet has"
        " the means of all ranks."
    ]
