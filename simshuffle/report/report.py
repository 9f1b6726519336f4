"""Tables for people, from the timeline alone: epochs, the breakdown, and causes of
waiting.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd

from simshuffle.moved import describe_new_name
from simshuffle.report.columns import Column, amount, count, share, text
from simshuffle.report.timeline import (
    EXCLUSIVE,
    PHASES,
    SOURCE_COLUMNS,
    Timeline,
    epoch_lengths,
    find_rows,
    locate_epochs,
    phase_numbers,
)
from simshuffle.report.waiting import (
    WAITED_FOR,
    LabelRow,
    hosts_waited_for,
    list_waits,
    list_work,
    name_hosts,
    waits_by_host,
)
from simshuffle.spec.arrays import Floats, Ints

SLOWDOWN, SLOWING = "slowdown", "GE+WU"
"""The phase of what gradients in flight add to the backward pass, and the label that
causes it.
"""

LABELS = {
    "I/O": ("io", "decode"),
    "FW+BW": (
        "forward",
        "backward",
        SLOWDOWN,
        "wait_group",
        "bubble",
        "group_communication",
    ),
    "IMPT": ("importance",),
    "GE+WU": ("allreduce", "update", "wait_allreduce"),
    "EXCHANGE": ("exchange", "wait_exchange"),
}
"""The papers' labels and the phases in each. The authors' timers book waiting for other
ranks where it happens; `breakdown` says what for.
"""
SAVING, LOST = "CHECKPOINT", "LOST"
ALL_LABELS = {**LABELS, SAVING: ("checkpoint",), LOST: ("lost", "restart")}
"""And what the papers do not have: with it, what a rank does adds up to the epoch.
Sweeps, ablations and times to an accuracy have columns for the papers' alone.
"""
OPTIONAL_LABELS = ("IMPT", SAVING, LOST)
"""Labels that are listed only where they occur."""

UNSHARED_LABELS = ("FW+BW", "IMPT", LOST)
"""Labels in which ranks share no resource."""

MEANINGS = {
    "I/O": "waiting for the rank's own batch",
    "FW+BW": "forward and backward pass",
    "IMPT": "measuring importance",
    "GE+WU": "gradient exchange (allreduce) and weight update",
    "EXCHANGE": "exchange of samples",
    SAVING: "saving the state of the training, or waiting for it",
    LOST: "work lost since the last checkpoint, and the time until training goes on",
}
"""What a label stands for."""

WHOLE = "epoch"  # beside the labels: the whole epoch, to which they add up

COMPUTING = (
    "forward",
    "backward",
    "update",
)  # phases in which the accelerator computes

COUNT_COLUMNS = (
    "samples_moved",
    "nbytes_peer",
    "nbytes_pfs",
    "nbytes_ssd",
    "nbytes_memory",
    "nbytes_object_store",
    "read_requests",
    "read_requests_ssd",
    "read_requests_object_store",
    "file_opens",
    "object_store_usd",
)
"""Columns of `SOURCE_COLUMNS` that are those of an epoch too."""

EPOCH_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "strategy": text("exchange strategy"),
    "world_size": count("ranks"),
    "exchange_fraction": share("Q; empty under global shuffle", empty=True),
    "epoch": count("from 1; the first is cold"),
    "iterations": count("iterations of a rank"),
    "iterations_simulated": count(
        "iterations that were simulated; without a time tolerance, all"
    ),
    "epoch_s": amount(
        "s from the start of the epoch to its end, which all ranks share"
    ),
    "epoch_low_s": amount(
        "s, lower end of its 95 % interval; epoch_s if no iterations were left out"
    ),
    "epoch_high_s": amount(
        "s, upper end of the interval; epoch_s if no iterations were left out"
    ),
    "staging_s": amount(
        "s of copying samples to the hosts before the epoch; not part of an epoch"
    ),
    "samples_per_s": amount(
        "samples trained on over the epoch's duration", head="samples/s", look=",.0f"
    ),
    "accelerator_utilisation": share(
        "AU: share of the epoch in which an accelerator computes (forward, backward, update),"
        " mean over ranks",
        head="AU",
        look=".0%",
    ),
    "exchange_total_s": amount(
        "s of exchange of a rank, on average: exposed, and hidden by other phases"
    ),
    "exchange_exposed_s": amount(
        "s of exchange in which a rank does nothing else, on average"
    ),
    "allreduce_exposed_s": amount(
        "s of allreduce after the backward pass of all ranks, in which a rank does nothing else, on"
        " average"
    ),
    "allreduce_hidden_s": amount("s of allreduce beside the backward pass, on average"),
    "slowdown_s": amount(
        "s by which the hidden allreduce lengthens the backward pass of a rank, on average"
    ),
    **{name: SOURCE_COLUMNS[name] for name in COUNT_COLUMNS},
}


def keys_of(table: pd.DataFrame) -> list[str]:
    """Return the columns that tell epochs apart: run, seed where ``table`` has it,
    epoch.
    """
    return [name for name in ("run", "seed", "epoch") if name in table]


def rows_of_last_epoch(
    table: pd.DataFrame, keys: str | list[str] | pd.Series[str] = "run"
) -> pd.DataFrame:
    """Return the rows of the last epoch of each group of rows.

    ``keys`` tells groups apart, as of `pd.DataFrame.groupby`; by default the run.
    """
    return table[
        table["epoch"] == table.groupby(keys, observed=True)["epoch"].transform("max")
    ]


def row_weights(timeline: Timeline) -> Floats | None:
    """Return (rows of the phases,) how many times each row counts in sums over an
    epoch.

    More than 1 in the iterations that stand for those left out, and 1 in all others.
    None if no epoch left any out, and for recordings of real ranks.
    """
    sources = timeline.sources
    phases = timeline.phases
    if "steady_last" not in sources or not sources["steady_last"].any():
        return None  # of real ranks it says nothing of windows
    keys = keys_of(phases)
    columns = ["iterations", "iterations_simulated", "steady_first", "steady_last"]
    windows = sources.set_index(keys)[columns]
    epochs = pd.MultiIndex.from_frame(phases[keys])
    window_of_row = windows.iloc[windows.index.get_indexer(epochs)]
    total, simulated, first, last = window_of_row.to_numpy().T
    iteration = phases["iteration"].to_numpy()
    is_steady = (iteration >= first) & (iteration <= last) & (last > 0)
    num_steady = np.maximum(last - first + 1, 1)
    return np.where(is_steady, 1.0 + (total - simulated) / num_steady, 1.0)


def seconds_of_rows(timeline: Timeline) -> pd.Series[float]:
    """Return (rows of the phases,) the seconds of each row in sums over an epoch: its
    length times its `row_weights`.
    """
    seconds = timeline.phases["end_s"] - timeline.phases["start_s"]
    weight = row_weights(timeline)
    return seconds if weight is None else seconds * weight


def phase_seconds(timeline: Timeline) -> pd.DataFrame:
    """Return the mean over ranks of the seconds in each phase of each epoch.

    Columns `keys_of`, and one for every phase of `PHASES`; 0 for phases that do not
    occur. A rank without a phase counts as 0 s; there are as many ranks as the highest
    number says. Iterations left out are counted by `row_weights`.
    """
    phases = timeline.phases
    keys = keys_of(phases)
    first_rows, epoch_of_row = locate_epochs(phases, keys)

    # (epochs, phases) sums over ranks, with the rounding of pandas (Kahan)
    index = epoch_of_row * len(PHASES) + phase_numbers(phases)
    sums = pd.Series(seconds_of_rows(timeline).array).groupby(index).sum()
    seconds = np.zeros((len(first_rows), len(PHASES)))
    seconds.flat[sums.index] = sums
    ranks = np.zeros(len(first_rows), np.int64)  # `at` is slow with two types
    np.maximum.at(ranks, epoch_of_row, phases["rank"].to_numpy(np.int64) + 1)

    columns = {key: phases[key].array.take(first_rows) for key in keys}
    means = dict(zip(PHASES, (seconds / ranks[:, None]).T, strict=True))
    return pd.DataFrame({**columns, **means})


def epochs(timeline: Timeline, in_phases: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row for each epoch of each run: columns `EPOCH_COLUMNS`.

    The seed follows the run where the timeline has it. An epoch of which iterations
    were left out lasts as long as its exclusive phases together, mean over ranks; any
    other from the first start to the last end of all ranks. Other seconds are means
    over ranks.

    Args:
        timeline: of one or more runs.
        in_phases: its `phase_seconds`, where they are known.
    """
    phases = timeline.phases
    sources = timeline.sources.reset_index(drop=True)
    keys = keys_of(phases)
    means = phase_seconds(timeline) if in_phases is None else in_phases
    row_of_source = find_rows(means[keys], sources[keys])
    rows = means.iloc[row_of_source]
    seconds = {name: rows[name].to_numpy() for name in PHASES}
    # (epochs, phases), the phases of an epoch side by side: how sums are rounded hangs on it
    by_phase = np.stack([seconds[name] for name in EXCLUSIVE], axis=1)
    epoch_s = np.where(
        sources["steady_last"] > 0,
        np.ascontiguousarray(by_phase).sum(axis=1),
        epoch_lengths(phases, keys)[row_of_source],
    )

    half_width = sources["half_width_s"].to_numpy()
    exposed = seconds["exchange"] + seconds["wait_exchange"]
    computing = sum(seconds[name] for name in COMPUTING)
    with np.errstate(divide="ignore", invalid="ignore"):
        computed = {
            "epoch_s": epoch_s,
            "epoch_low_s": epoch_s - half_width,
            "epoch_high_s": epoch_s + half_width,
            "samples_per_s": sources["samples"].to_numpy() / epoch_s,
            "accelerator_utilisation": computing / epoch_s,
            "exchange_exposed_s": exposed,
            "exchange_total_s": exposed + seconds["exchange_hidden"],
            "allreduce_exposed_s": seconds["allreduce"],
            "allreduce_hidden_s": seconds["allreduce_hidden"],
            "slowdown_s": seconds[SLOWDOWN],
        }
    run, *other_columns = EPOCH_COLUMNS
    values = {**sources, **computed}
    return pd.DataFrame(
        {name: values[name] for name in [run, *keys[1:-1], *other_columns]}
    )


def breakdown(timeline: Timeline) -> pd.DataFrame:
    """Return `all_labels`, with `OPTIONAL_LABELS` only where they occur
    (`drop_absent_labels`).
    """
    return drop_absent_labels(all_labels(timeline))


def drop_absent_labels(table: pd.DataFrame) -> pd.DataFrame:
    """Return breakdowns from `all_labels`, below one another, without those
    `OPTIONAL_LABELS` that have 0 s in all runs.
    """
    for label in OPTIONAL_LABELS:
        has_label = table["label"] == label
        if has_label.any() and not table.loc[has_label, "seconds"].any():
            table = table[~has_label].reset_index(drop=True)
    return table


def all_labels(
    timeline: Timeline, in_phases: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the seconds of an epoch by label, mean over ranks: columns `keys_of`,
    label, cause, seconds.

    With an empty cause they are a rank's own work. With a cause they are waiting for
    ranks that were busy with it, at the label where it is booked (see
    `simshuffle.report.waiting.waiting_by_cause`). The time that gradients in flight add
    to the backward pass is booked at FW+BW and caused by GE+WU. All rows of an epoch
    add up to its duration, and the rows of a label to the time that the authors' timers
    book there (`book_as_papers`). Each label has a row of own work, even of 0 s. Rows
    are ordered by run (as in the sources), seed, epoch, label and cause.

    Args:
        in_phases: the timeline's `phase_seconds`, where they are known.
    """
    keys = keys_of(timeline.phases)
    means = phase_seconds(timeline) if in_phases is None else in_phases
    waits = list_waits(timeline.phases, ALL_LABELS, keys, row_weights(timeline))
    labels_of_work = {
        label: [phase for phase in phases if phase != SLOWDOWN]
        for label, phases in ALL_LABELS.items()
    }
    slowed = [
        LabelRow(epoch, "FW+BW", SLOWING, value)
        for epoch, value in enumerate(means[SLOWDOWN].tolist())
        if value > 0
    ]
    rows = [*list_work(means, labels_of_work), *slowed, *waits]

    # runs as in the sources, seeds and epochs ascending
    run_order = [str(run) for run in timeline.sources["run"].array]
    place_of_run = {run: place for place, run in enumerate(dict.fromkeys(run_order))}
    places = [place_of_run[str(run)] for run in means["run"].array]
    place_of_epoch = list(zip(places, *(means[key] for key in keys[1:]), strict=True))
    place = ["", *ALL_LABELS].index
    rows.sort(
        key=lambda row: (place_of_epoch[row.epoch], place(row.label), place(row.cause))
    )
    epoch_of_row = np.array([row.epoch for row in rows], np.intp)
    return pd.DataFrame(
        {
            **{key: means[key].array.take(epoch_of_row) for key in keys},
            "label": [row.label for row in rows],
            "cause": [row.cause for row in rows],
            "seconds": [row.seconds for row in rows],
        }
    )


def waited_for(
    timeline: Timeline, parts: pd.DataFrame, host_of_rank: Ints, faulty: Collection[str]
) -> list[dict[str, Any]]:
    """Return the hosts that the ranks of an epoch wait for, worst first.

    An item has 'host' (its name), 'label' (what costs most there) and 'seconds' (the
    mean wait for it beyond the median of the other hosts). [] if ranks wait for less
    than `WAITED_FOR` of the epoch in all.

    Args:
        timeline: of one epoch, with the phases of all ranks.
        parts: its `all_labels`.
        host_of_rank: (M,) number of the host of each rank, from 0 on.
        faulty: names of the hosts that have a fault.
    """
    epoch_s = float(parts["seconds"].sum())
    is_slowed = (parts["label"] == "FW+BW") & (parts["cause"] == SLOWING)
    if (
        parts.loc[(parts["cause"] != "") & ~is_slowed, "seconds"].sum()
        < WAITED_FOR * epoch_s
    ):
        return []
    waits_of_hosts = waits_by_host(
        timeline.phases, ALL_LABELS, host_of_rank, row_weights(timeline)
    )
    names = name_hosts(timeline.links, int(host_of_rank.max()) + 1)
    labels = list(ALL_LABELS)
    unshared_labels = [labels.index(label) for label in UNSHARED_LABELS]
    hosts = hosts_waited_for(
        *waits_of_hosts, epoch_s, names, faulty, unshared_labels=unshared_labels
    )
    return [{**host, "label": labels[host["label"]]} for host in hosts]


def hidden_seconds(epochs: Any, name: str) -> Any:
    """Return the seconds of 'exchange' or 'allreduce' behind other work, mean over
    ranks.

    They are of one row (a number), or of all rows (a series), of a table from `epochs`.
    """
    if name == "exchange":
        return epochs["exchange_total_s"] - epochs["exchange_exposed_s"]
    return epochs[f"{name}_hidden_s"]


Booking = Literal["cause", "paper"]
"""How waiting for other ranks is shown: by what it is for, or where the authors' timers
book it.
"""


def arrange_labels(table: pd.DataFrame, labels: Booking) -> pd.DataFrame:
    """Return the breakdown as it is shown: columns `keys_of`, label, waiting, seconds.

    With 'cause' waiting is a row of its own, under the label that is waited for. With
    'paper' it is part of the label where it happens, and ``waiting`` is False.
    """
    return (
        by_cause(table)
        if labels == "cause"
        else book_as_papers(table).assign(waiting=False)
    )


def part_name(label: str, waits: bool) -> str:
    """Return the name of a column of a table or a piece of a bar: a label, or waiting
    for it.
    """
    if not waits:
        return label
    return f"slowed by {label}" if label == SLOWING else f"wait for {label}"


def legend(table: pd.DataFrame, labels: Booking = "cause") -> str:
    """Return the meanings of the labels of a breakdown that have any time; '' without
    any.
    """
    parts = arrange_labels(table, labels)
    kinds = parts.loc[parts["seconds"] > 0, ["label", "waiting"]].drop_duplicates()
    return explain_labels(map(part_name, kinds["label"], kinds["waiting"]))


def explain_labels(names: Iterable[str]) -> str:
    """Return a sentence on the meanings of labels in ``names``; '' if none has any.

    ``names`` are from `part_name`: labels, or waiting for them, which is explained in a
    further sentence.
    """
    text = "\n".join(names)
    meanings = [
        f"{label}: {meaning}" for label, meaning in MEANINGS.items() if label in text
    ]
    sentences = f"{'; '.join(meanings)}." if meanings else ""
    if "wait for" in text:
        sentences += (
            " Wait for a label: waiting for other ranks that still do this work."
        )
    if "slowed" in text:
        sentences += f" Slowed by {SLOWING}: the backward pass, while gradients travel."
    return sentences


def book_as_papers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the breakdown as the authors' timers book it: waiting where it happens.

    Columns `keys_of`, label, seconds. The labels of an epoch add up to its duration.
    """
    keys = [*keys_of(table), "label"]
    return table.groupby(keys, observed=True, sort=False)["seconds"].sum().reset_index()


def booked(table: pd.DataFrame) -> pd.DataFrame:
    """Return `book_as_papers`, by its name in version 0.2, with a warning."""
    message = describe_new_name("booked", "book_as_papers")
    warnings.warn(message, FutureWarning, stacklevel=2)
    return book_as_papers(table)


def by_cause(table: pd.DataFrame) -> pd.DataFrame:
    """Return the breakdown with waiting under the label that was waited for: columns
    `keys_of`, label, waiting, seconds. `waiting` is False for a rank's own work.
    """
    is_waiting = table["cause"] != ""
    table = table.assign(
        label=table["label"].where(~is_waiting, table["cause"]), waiting=is_waiting
    )
    keys = [*keys_of(table), "label", "waiting"]
    return table.groupby(keys, observed=True, sort=False)["seconds"].sum().reset_index()


DLIO_PAUSES = "measured by definition: DLIO sleeps so long"
"""Source of the times of a scenario that was a workload of DLIO, whose users ask for AU
first.
"""
