"""Tables for people, from the timeline alone: epochs, the papers' breakdown, waiting, and who
decided."""

from __future__ import annotations

import pandas as pd

from simshuffle.results.timeline import EXCLUSIVE, Timeline

LABELS = {
    "I/O": ("io", "decode"),
    "FW+BW": ("forward", "backward"),
    "IMPT": ("importance",),
    "GE+WU": ("allreduce", "update", "wait_allreduce"),
    "EXCHANGE": ("exchange", "wait_exchange"),
}
"""The papers' labels and the phases in each. As in the authors' timers, waiting for other ranks
counts where it happens."""

WHOLE = "epoch"
"""Beside the labels: the whole epoch, to which they add up."""

COMPUTING = ("forward", "backward", "update")
"""Phases in which the accelerator computes."""

ARRIVAL = ("backward", "exchange", "wait_exchange")
"""Phases after which a rank may reach the allreduce."""

EPOCH_COLUMNS = {
    "run": "name of the run",
    "strategy": "exchange strategy",
    "world_size": "ranks",
    "exchange_fraction": "Q; empty under global shuffle",
    "epoch": "from 1; the first is cold",
    "epoch_s": "s from its start to its end, which all ranks share",
    "staging_s": "s of the copying of samples to the hosts before the epoch; part of no epoch",
    "samples_per_s": "samples trained on over its duration",
    "accelerator_utilisation": (
        "AU: share of its duration in which an accelerator computes (forward, backward, update),"
        " mean over ranks"
    ),
    "exchange_total_s": (
        "s of exchange of a rank, on average: what it shows and what other phases hide"
    ),
    "exchange_exposed_s": "s of exchange that a rank does nothing else in, on average",
    "samples_moved": "samples that changed their rank",
    "nbytes_peer": "bytes received from other ranks by sample exchange",
    "nbytes_pfs": "bytes read from the parallel file system",
    "nbytes_ssd": "bytes read from SSDs",
    "nbytes_memory": "bytes read from memory: page caches, or what is staged there",
}


def phase_seconds(timeline: Timeline) -> pd.DataFrame:
    """Mean over ranks of the seconds in each phase: columns run, epoch, and one for every phase."""
    phases = timeline.phases
    lasting = phases[["run", "epoch", "phase"]].assign(seconds=phases["end_s"] - phases["start_s"])
    totals = (
        lasting.groupby(["run", "epoch", "phase"], observed=False)["seconds"].sum().unstack("phase")
    )
    ranks = phases.groupby(["run", "epoch"], observed=True)["rank"].max() + 1
    table = totals.loc[ranks.index].div(ranks, axis=0)
    table.columns = table.columns.astype(str)
    return table.reset_index()


def epochs(timeline: Timeline) -> pd.DataFrame:
    """One row for each epoch of each run: columns `EPOCH_COLUMNS`."""
    seconds = phase_seconds(timeline).set_index(["run", "epoch"])
    phases = timeline.phases[["run", "epoch", "start_s", "end_s"]]
    exclusive = phases[timeline.phases["phase"] != "exchange_hidden"]
    spans = exclusive.groupby(["run", "epoch"], observed=True)
    table = timeline.sources.set_index(["run", "epoch"])
    table["epoch_s"] = spans["end_s"].max() - spans["start_s"].min()
    table["samples_per_s"] = table["samples"] / table["epoch_s"]
    table["accelerator_utilisation"] = seconds[list(COMPUTING)].sum(axis=1) / table["epoch_s"]
    table["exchange_exposed_s"] = seconds["exchange"] + seconds["wait_exchange"]
    table["exchange_total_s"] = table["exchange_exposed_s"] + seconds["exchange_hidden"]
    return table.reset_index()[list(EPOCH_COLUMNS)]


def breakdown(timeline: Timeline) -> pd.DataFrame:
    """Seconds of an epoch under each of the papers' labels, mean over ranks: columns run, epoch,
    label, seconds.

    The labels of an epoch add up to its duration. IMPT is listed only where it occurs.
    """
    seconds = phase_seconds(timeline)
    rows = []
    for label, phases in LABELS.items():
        values = seconds[list(phases)].sum(axis=1)
        if label == "IMPT" and not values.any():
            continue
        rows.append(seconds[["run", "epoch"]].assign(label=label, seconds=values))
    table = pd.concat(rows)
    order = {label: i for i, label in enumerate(LABELS)}
    table["order"] = table["label"].map(order)
    runs = {run: i for i, run in enumerate(timeline.sources["run"].unique())}
    table["run_order"] = table["run"].astype(str).map(runs)
    return table.sort_values(["run_order", "epoch", "order"], ignore_index=True)[
        ["run", "epoch", "label", "seconds"]
    ]


def waiting(timeline: Timeline) -> pd.DataFrame:
    """The part of the breakdown that is waiting for other ranks, and for what: columns run, epoch,
    label, cause, seconds.

    All ranks leave an allreduce together, so what one waits at the next is what the last rank there
    spent more than it did, phase by phase. Mean over ranks: the critical path less the breakdown;
    that is the cause of the waiting in GE+WU, by label. Waiting at the barriers of the exchange
    counts as caused by the exchange.
    """
    seconds = phase_seconds(timeline)
    keys = ["run", "epoch"]
    own = breakdown(timeline)
    gathered = seconds[keys].assign(total=seconds["wait_allreduce"])
    table = own.merge(
        critical_path(timeline), on=[*keys, "label"], how="left", suffixes=("", "_last")
    ).merge(gathered, on=keys)
    table = table[table["label"] != "GE+WU"]
    excess = (table["seconds_last"].fillna(0.0) - table["seconds"]).clip(lower=0.0)
    share = (
        excess / excess.groupby([table["run"], table["epoch"]], observed=True).transform("sum")
    ).fillna(0.0)
    reduced = table[keys].assign(
        label="GE+WU", cause=table["label"], seconds=share * table["total"]
    )
    exchanged = seconds[keys].assign(
        label="EXCHANGE", cause="EXCHANGE", seconds=seconds["wait_exchange"]
    )
    return pd.concat([reduced, exchanged], ignore_index=True)


def critical_path(timeline: Timeline) -> pd.DataFrame:
    """The breakdown of the rank that was last at each allreduce, summed over an epoch's iterations:
    run, epoch, label, seconds.

    Where ranks wait for one another, this says what for: the last rank does not wait, and its own
    phases are what took so long.
    """
    phases = timeline.phases[["run", "epoch", "iteration", "rank", "phase", "start_s", "end_s"]]
    inside = phases[(phases["iteration"] > 0) & (phases["phase"] != "exchange_hidden")]
    step = ["run", "epoch", "iteration"]
    reached = inside.loc[inside["phase"] == "allreduce", [*step, "rank", "start_s"]].rename(
        columns={"start_s": "reached"}
    )
    computed = inside.loc[inside["phase"].isin(ARRIVAL), [*step, "rank", "end_s"]]
    arrivals = computed.merge(reached, on=[*step, "rank"])
    arrivals = arrivals[arrivals["end_s"] <= arrivals["reached"]].sort_values(
        "end_s", kind="stable"
    )
    last = arrivals.drop_duplicates(step, keep="last")[[*step, "rank"]]
    own = inside.merge(last, on=[*step, "rank"])
    own = own.assign(
        seconds=own["end_s"] - own["start_s"], label=own["phase"].astype(str).map(_label_of())
    )
    table = own.groupby(["run", "epoch", "label"], observed=True)["seconds"].sum().reset_index()
    return table.assign(run=table["run"].astype(str))


def _label_of() -> dict[str, str]:
    return {
        phase: label for label, phases in LABELS.items() for phase in phases if phase in EXCLUSIVE
    }
