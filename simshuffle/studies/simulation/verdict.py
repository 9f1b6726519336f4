"""The verdict on runs, from their tables: which is fastest and by how much, what makes the
difference, which resource is busy then, and what all that rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simshuffle.results import intervals, report
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation import mishaps
from simshuffle.studies.simulation.tables import means
from simshuffle.study.long_table import long
from simshuffle.study.study import Result

Row = Mapping[Any, Any]
MOST_NAMED = 5  # runs of a comparison that are named; of more, the fastest and the slowest
ALIKE = 0.0005  # times that differ by less than this share are called equal
NOTABLE = 0.02  # from this share on it is said what makes the difference
TIMES = 1.5  # from here on a run takes so many times as long; below, so many percent longer
COLD = 0.2  # a cold epoch, or a staging, that takes this share of an epoch more is told
BINDS = 0.8  # a resource that is busy for this share of an epoch binds it
DOES = {
    "I/O": "reading",
    "FW+BW": "the forward and backward pass",
    "IMPT": "measuring importance",
    "GE+WU": "summing gradients and updating weights",
    "EXCHANGE": "exchanging samples",
    "CHECKPOINT": "saving checkpoints",
    "LOST": "doing lost work again, and restarting",
}
"""What a rank does under each label."""
RESOURCES = {
    "pfs.open": "file opens of the file system",
    "pfs.bandwidth": "the bandwidth of the file system",
    "pfs.write": "the bandwidth of the file system for writes",
    "pfs.client": "the file system's client of a host",
    "cache_tier.open": "file opens of the cache tier",
    "cache_tier.bandwidth": "the bandwidth of the cache tier",
    "cache_tier.host": "what a host gets from the cache tier",
    "ssd": "the SSD",
    "cores": "the cores of a host",
    "memory": "the memory of a host",
    "nvlink": "NVLink",
    "pcie_in": "PCIe to the GPUs",
    "pcie_out": "PCIe from the GPUs",
    "scale_up_in": "the scale-up network",
    "scale_up_out": "the scale-up network",
}
"""Kinds of links in words; cables are called by their ends."""
FOR_READING = ("pfs.", "object_store.", "cache_tier.", "ssd", "cores", "memory", "storage>")
"""How kinds of links begin that only reading uses, or reading most of all."""


@dataclass(frozen=True)
class Compared:
    """The last epochs of runs on as many ranks, the fastest first."""

    ranks: int  # of each
    # run, short (its name without the ranks), samples_per_s, and epoch_s with half its interval,
    # both for as many samples as the longest epoch has
    rows: pd.DataFrame
    alike: bool  # whether all have as many samples


def verdict(result: Result) -> list[str]:
    """One to three sentences on the runs of a result, and what they rest on."""
    of = means(result.tables["epochs"], result.tables["breakdown"])
    groups = compared(of.epochs, of.epoch_half)
    if not groups:
        return []
    said = list(ranking(groups, of.epochs))
    largest = groups[-1]
    if reason := _reason(largest, of.breakdown, _busiest(result)):
        said.append(reason)
    said += _before(largest, of.epochs)
    said += mishaps.sentences(result)
    found = result.meta.get("intervals")
    said += [] if found is None else intervals.sentences(found)
    facts = result.meta["runs"].values()
    routings = list(dict.fromkeys(of["routing"] for of in facts if "routing" in of))
    return [*said, rests_on(of.epochs, of.seeds, routings, with_interval=found is not None)]


def compared(epochs: pd.DataFrame, half: pd.Series[float] | None) -> list[Compared]:
    """The last epoch of every run, like with like, by number of ranks: means over seeds, and half
    the interval of an epoch (s) by run and epoch, if there is one."""
    last = epochs.assign(run=epochs["run"].astype(str)).sort_values("epoch", kind="stable")
    last = last.drop_duplicates("run", keep="last")
    places = pd.MultiIndex.from_frame(last[["run", "epoch"]])
    of_run = [0.0] * len(last) if half is None else half.reindex(places).fillna(0.0).to_numpy()
    pairs = zip(last["run"], last["world_size"], strict=True)
    last = last.assign(half=of_run, short=[run.replace(f" @{ranks}", "") for run, ranks in pairs])
    groups = []
    for ranks, of_ranks in last.groupby("world_size", sort=True):
        samples = (of_ranks["samples_per_s"] * of_ranks["epoch_s"]).round()
        longest = {name: of_ranks[name] * (samples.max() / samples) for name in ("epoch_s", "half")}
        rows = of_ranks.assign(**longest).sort_values("epoch_s", kind="stable", ignore_index=True)
        groups.append(Compared(int(str(ranks)), rows, samples.nunique() == 1))
    return groups


# ------------------------------------------------------------------------------------- the fastest


def ranking(groups: Sequence[Compared], epochs: pd.DataFrame) -> Iterator[str]:
    """Which run is fastest: on the most ranks in full, on fewer by name; and how runs scale."""
    several = [of for of in groups if len(of.rows) > 1]
    if several:
        largest = several[-1]
        yield _order(largest)
        for of in several[:-1][-MOST_NAMED:]:
            first, then = of.rows.iloc[0].to_dict(), of.rows.iloc[-1].to_dict()
            how = _beside(then, first).format("s")
            yield f"On {of.ranks:,} ranks {first['short']} is fastest; {then['short']} {how}."
    elif len(groups) == 1:
        row = groups[0].rows.iloc[0]
        yield (
            f"{row['short']} on {groups[0].ranks:,} ranks: {_seconds(row.to_dict())} an epoch,"
            f" {row['samples_per_s']:,.0f} samples/s."
        )
    yield from _scaling(groups)


def _order(of: Compared) -> str:
    first, *others = of.rows.to_dict("records")
    named = others if len(others) < MOST_NAMED else [others[0], others[-1]]
    said: dict[str, list[str]] = {}
    for row in named:
        said.setdefault(_beside(row, first), []).append(row["short"])
    parts = [f"{_and(names)} {how.format('s' * (len(names) == 1))}" for how, names in said.items()]
    more = f" ({len(others) - len(named)} more lie between)" if len(others) > len(named) else ""
    head = f"On {of.ranks:,} ranks {first['short']} is fastest, {_seconds(first)} an epoch"
    as_many = "" if of.alike else ", for as many samples as the longest epoch has"
    return f"{head}{as_many}; {', '.join(parts)}{more}."


def _beside(row: Row, first: Row) -> str:
    """How a run stands beside the fastest, with a place for the ending of its verb."""
    gap, reach = row["epoch_s"] - first["epoch_s"], row["half"] + first["half"]
    if reach and gap <= reach:
        return "cannot be told apart from it"
    ratio = row["epoch_s"] / first["epoch_s"]
    return "take{} as long" if ratio - 1 < ALIKE else f"take{{}} {longer(ratio)}"


def longer(ratio: float) -> str:
    """A ratio of 1 or more in words: '2.3 % longer', '4.4 times as long'."""
    if ratio >= TIMES:
        return f"{ratio:.2g} times as long" if ratio < 100 else f"{ratio:,.0f} times as long"
    return f"{100 * (ratio - 1):.2g} % longer"


def _scaling(groups: Sequence[Compared]) -> Iterator[str]:
    """What more ranks give, where runs differ in them alone; the extremes of several."""
    rows = pd.concat([of.rows.assign(ranks=of.ranks) for of in groups])
    gains = []
    for name, own in rows.groupby(rows["short"].astype(str), sort=False):
        low, high = own.iloc[0], own.iloc[-1]
        if high["ranks"] > low["ranks"]:
            gain = high["samples_per_s"] / low["samples_per_s"]
            gains.append((high["ranks"] / low["ranks"], gain, name, low["ranks"], high["ranks"]))
    if not gains:
        return
    best, worst = (choose(gains, key=lambda of: of[1] / of[0]) for choose in (max, min))
    times, gain, name, low, high = best
    said = (
        f"On {high:,} ranks in place of {low:,} ({times:.3g} times) {name} trains on"
        f" {gain:.3g} times as many samples/s"
    )
    yield f"{said}." if best is worst else f"{said}, {worst[2]} on {worst[1]:.3g} times."


# ---------------------------------------------------------------------------------------- the cause


def _reason(of: Compared, table: pd.DataFrame, busiest: pd.DataFrame) -> str:
    """What makes the slowest run slower than the fastest, or where the time of one run goes; and
    how busy the resource is that it needs most."""
    first, last = of.rows.iloc[0], of.rows.iloc[-1]
    slow = _labels(table, last)
    apart = len(of.rows) > 1 and last["epoch_s"] > (1 + NOTABLE) * first["epoch_s"]
    if apart:
        gaps = slow.sub(_labels(table, first), fill_value=0.0)
        label = str(gaps.idxmax())
        share = gaps[label] / (last["epoch_s"] - first["epoch_s"])
        part = "" if share > 0.99 else f"for {_percent(share)} "
        said = f"What {last['short']} takes longer is {part}{DOES[label]}"
    else:
        label = str(slow.idxmax())
        whose = "an epoch" if len(of.rows) == 1 else f"the epoch of {last['short']}"
        said = f"{_percent(slow[label] / slow.sum())} of {whose} is {DOES[label]}"
    used = busiest[busiest["run"] == last["run"]]
    reads = used["tier"].str.startswith(FOR_READING)
    used = used[reads if label == "I/O" else ~reads]
    if label == "FW+BW" or used.empty:
        return f"{said}."
    most = used.loc[used["mean"].idxmax()]
    name = RESOURCES.get(most["tier"], most["tier"].replace("_", " ").replace(".", ": "))
    if ">" in most["tier"]:
        name = "the busiest cable from {} to {}".format(*most["tier"].split(">"))
    if most["mean"] >= BINDS:
        return f"{said}, bound by {name}, in use for {_percent(most['mean'])} of the epoch."
    return f"{said}. The busiest resource of it, {name}, is in use for {_percent(most['mean'])}."


def _labels(table: pd.DataFrame, row: pd.Series[Any]) -> pd.Series[float]:
    """Seconds of an epoch by label, with the waiting for ranks that do it; mean over ranks."""
    parts = report.by_cause(table[table["epoch"] == row["epoch"]])
    own = parts[parts["run"].astype(str) == row["run"]]
    sums: pd.Series[float] = own.groupby(own["label"].astype(str), sort=False)["seconds"].sum()
    return sums


def _busiest(result: Result) -> pd.DataFrame:
    """Of the last epoch of each run, how busy the busiest link of each kind is: run, tier, and
    mean (share of its capacity), which is the largest over seeds."""
    wanted = ["run", "epoch", "tier", "mean_utilisation"]
    pieces = [
        piece.groupby(wanted[:3], sort=False, observed=True)["mean_utilisation"].max().reset_index()
        for piece in long(result.tables, "links").pieces(wanted)
    ]
    links = pd.concat(pieces, ignore_index=True).astype({"run": str, "tier": str})
    links = links[links["epoch"] == links.groupby("run")["epoch"].transform("max")]
    most = links.groupby(["run", "tier"], sort=False)["mean_utilisation"].max()
    return most.rename("mean").reset_index()


def _before(of: Compared, epochs: pd.DataFrame) -> Iterator[str]:
    """Staging and a cold epoch, where they are long beside the last epoch."""
    rows = epochs.assign(run=epochs["run"].astype(str)).sort_values("epoch", kind="stable")
    first = rows.drop_duplicates("run").set_index("run")
    names = {row["run"]: row["short"] for row in of.rows.to_dict("records")}
    last = of.rows.set_index("run")["epoch_s"]
    first = first.loc[list(names)]
    staged = first["staging_s"][first["staging_s"] > COLD * last]
    if len(staged):
        each = [f"{names[run]} {_readable(seconds)}" for run, seconds in staged.items()]
        yield f"Copying samples to the hosts comes before the first epoch: {_and(each)}."
    cold = (first["epoch_s"] / last)[first["epoch_s"] > (1 + COLD) * last]
    if len(cold):
        each = [f"{names[run]} {longer(ratio)}" for run, ratio in cold.items()]
        yield f"The first epoch takes longer than this one: {_and(each)}."


# -------------------------------------------------------------------------------- what it rests on


def rests_on(
    epochs: pd.DataFrame, seeds: int, routings: Sequence[str], *, with_interval: bool = False
) -> str:
    """What the numbers rest on, and what is not in them."""
    last = epochs.groupby(epochs["run"].astype(str), sort=False)["epoch"].max()
    parts = [f"the last of {last.max()} epochs" if last.max() > 1 else "one epoch"]
    parts.append("one seed (--seeds gives intervals)" if seeds == 1 else f"{seeds} seeds")
    parts += [f"routing {_and(routings)}"] if routings else []
    if (epochs["iterations_simulated"] < epochs["iterations"]).any():
        parts.append("iterations that stand for those left out")
    said = f"Rests on {_and(parts)}" + ("." if with_interval else f"; {intervals.NONE}.")
    fractions = epochs["exchange_fraction"]
    if (fractions < 1).any():
        rows = epochs[fractions < 1]
        shard = (rows["samples_per_s"] * rows["epoch_s"] / rows["world_size"]).min()
        said += (
            f" What it costs in accuracy that a rank has a shard of {shard:,.0f} samples is not in"
            " it: simshuffle tta sets measured accuracy beside these seconds."
        )
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(row: Row) -> str:
    """Of an epoch, with half its interval if it has one."""
    if not row["half"]:
        return _readable(row["epoch_s"])
    digits = max(0, 1 - math.floor(math.log10(row["half"])))  # two of the half
    return f"{row['epoch_s']:,.{digits}f} ± {row['half']:,.{digits}f} s"


def _readable(seconds: float) -> str:
    return readable(seconds, Dimension.SECONDS, 3)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def of_sweep(
    epochs: pd.DataFrame,
    half: pd.Series[float] | None,
    seeds: int,
    found: Mapping[str, Any] | None = None,
) -> list[str]:
    """The same of runs of which nothing but epochs is kept: columns as for `compared`, and their
    intervals, if there are any."""
    groups = compared(epochs, half)
    if not groups:
        return []
    more = [] if found is None else list(intervals.sentences(found))
    rests = rests_on(epochs, seeds, (), with_interval=found is not None)
    return [*ranking(groups, epochs), *more, rests]
