"""Loaders and their settings on a terminal. Tables fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.tables import (
    ANSWERS,
    DECODING,
    LOOP,
    LOST,
    OF_STORE,
    READING,
    SETTING,
    SETTINGS,
    STORED,
    UNEVEN,
)

Row = Mapping[Any, Any]
_COLUMNS = [name for name in STORED["loaders"].columns if name != "problem"]
FETCHED, MIXING = _COLUMNS[:8], ["loader", *_COLUMNS[8:]]
"""Columns of what is fetched, and of how it mixes."""
AGAIN = 2.0
"""So many times the companions of a random order are worth a sentence."""
MANY_TIMES = 2.0
"""Whoever fetches more than so many times the data set in an epoch is named."""
UNEQUAL = 0.5
"""Where the end of an epoch mixes fewer shards than this share of the mean, it is said; as where
places vary less than this share of what they can."""


def loader_parts(
    loaders: pd.DataFrame, store: pd.DataFrame, says: Mapping[str, Any], recorded: bool
) -> Iterator[str | Table]:
    """All of it, in order; what a recorded order does is also said in sentences."""
    cache = says["cache_nbytes"]
    kept = "without limit" if cache is None else "none" if cache == 0 else _bytes(cache)
    yield (
        f"{says['samples']} samples in {says['shards']} shards, {_bytes(says['nbytes'])};"
        f" nodes: {says['nodes']}, ranks: {says['ranks']}, workers of each: {says['workers']},"
        f" batch: {says['batch_size']}, epochs: {says['epochs']}, cache of a node: {kept}."
    )
    known = loaders[loaders["problem"] == ""]
    yield STORED["loaders"].listing(
        known,
        "What all nodes fetch from the remote storage, in the first epoch and in the last",
        FETCHED,
    )
    yield from _again_and_again(known, says)
    yield OF_STORE.listing(
        store,
        "The same from an object store (--store): least seconds, what limits them, and the price",
        ("loader", "first_s", "last_s", "limit", "first_usd", "last_usd"),
    )
    mixing = STORED["loaders"].listing(known, "Mixing from epoch to epoch", MIXING)
    expected = [says[name] for name in ("batch_companions", "rank_companions", "moves")]
    mixing.add_row("(random)", "0", "0", "", *[f"{share:.3g}" for share in expected])
    yield mixing
    for name, sources in says.get("mixtures", {}).items():
        yield f"{name}, first epoch: {'; '.join(map(_source, sources))}."
    if recorded:
        for row in known.to_dict("records"):
            yield from findings(row, says)
    for row in loaders[loaders["problem"] != ""].to_dict("records"):
        yield f"{row['loader']}: does not work with these shards and ranks: {row['problem']}"


def _source(of: Row) -> str:
    """What an epoch has of a source."""
    had = f"{of['had']:.1%} of a source asked for {of['asked']:.1%}"
    rows = {"rows again": of["again"], "samples cut off": of["cut_off"]}
    return ", ".join([had, *(f"{count:,} {what}" for what, count in rows.items() if count)])


def _again_and_again(loaders: pd.DataFrame, says: Mapping[str, Any]) -> Iterator[str]:
    """Which loaders fetch far more bytes than there are, and what becomes of them."""
    times = loaders[["first_nbytes", "last_nbytes"]].max(axis=1) / max(says["nbytes"], 1)
    many = loaders.assign(times=times)[times > MANY_TIMES]
    if len(many):
        named = ", ".join(f"{row['loader']} {row['times']:.3g}" for row in many.to_dict("records"))
        unit = " or ".join(many["unit"].unique())
        yield (
            f"Fetched in an epoch, in sizes of the data set: {named}. A node fetches a whole {unit}"
            " for a few samples and drops it before it needs the others. A larger --cache, or an"
            " order that fetches sample by sample, fetches less."
        )


def _bytes(nbytes: float) -> str:
    return readable(nbytes, Dimension.NBYTES, 3)


def findings(row: Row, says: Mapping[str, Any]) -> Iterator[str]:
    """What a loader does that is seldom meant, a sentence for each."""
    size = says["samples"]
    if row["never"]:
        yield f"Never handed out: {row['never']:.0f} of {size} samples, in the epoch with most."
    if row["surplus"]:
        yield f"Handed out twice: {row['surplus']:.0f} rows repeat a sample of their epoch."
    if row["imbalance"] > 0:
        share = 100 * row["imbalance"]
        yield f"Ranks are not equal: one has {share:.2g} % more samples than the mean."
    if pd.isna(row["moves"]):
        yield "A single epoch: who meets whom again cannot be said. Record two or more."
        return
    if row["batch_companions"] == 1 and row["position_entropy"] == 0:
        yield "Every epoch is the same, batch by batch. A sampler of PyTorch needs set_epoch."
        return
    if says["nodes"] > 1 and row["moves"] == 0:
        yield "No sample ever comes to another node: this is local shuffling among nodes."
    together = {"on a rank": "rank_companions", "in a batch": "batch_companions"}
    if says["ranks"] > 1 and row["rank_companions"] == 1:
        yield "Every rank has the same samples in every epoch: this is local shuffling."
        del together["on a rank"]
    for where, name in together.items():
        if row[name] > AGAIN * says[name]:
            pairs = f"{row[name]:.3g} of the pairs, where a random order has {says[name]:.3g}"
            yield f"Samples stay together {where}: {pairs}."
    if row["position_entropy"] < UNEQUAL:
        varies = f"their place varies by {row['position_entropy']:.2f} of what it can"
        yield f"Samples come in the same part of every epoch: {varies}."
    if row["end_shards"] < UNEQUAL * row["shards"]:
        there = f"an iteration has samples of {row['end_shards']:.3g} shards there"
        yield f"The end of an epoch mixes less: {there}, and of {row['shards']:.3g} on average."


SCARCE = 0.5
"""Batches that take more than this share of a host's memory are worth a sentence."""
REMEDIES = {
    UNEVEN: "Batches that take long come late: a longer prefetch hides them.",
    READING: "Workers wait for storage: more of them, or threads, would help.",
    DECODING: "Workers decode: more of them would help.",
}
"""What helps where workers bind; a resource that all share binds whatever the loader."""


def tuning_parts(settings: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str | Table]:
    """All of it but the verdict, in order."""
    yield from map(_keys, answers.to_dict("records"))
    threads = ("threads",) * bool((settings["threads"] > 1).any())
    setting = ("workers", *threads, "prefetch", "samples_per_s", "waiting")
    more = ("stall_s", "first_s", "memory_nbytes", "binds")
    title = "Smallest settings with which loops never wait longer than they must"
    yield ANSWERS.listing(answers, title, ("run", "needed_per_s", *setting, *more[2:]))
    if len(answers) == 1:
        yield SETTINGS.listing(settings, "All settings", (*setting, "stall_every", *more), names=0)
    else:
        yield "settings.csv and the figure have all settings; for one run alone, --set sweep={}."
    yield (
        "Times vary as the scenario's jitter and sample sizes say. Queues are left out but at the"
        " bottleneck. Memory is that of batches, without the worker processes."
    )


def tuning_verdict(settings: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str]:
    """What each run needs, and what that rests on."""
    for row in answers.to_dict("records"):
        yield from _answer(row, settings[settings["run"] == row["run"]])
    yield (
        "Rests on one seed, and on decode and step times as the scenario gives them."
        f" {intervals.NONE_OF_TIMES}"
    )


def _answer(row: Row, of: pd.DataFrame) -> Iterator[str]:
    """What one run needs, in sentences."""
    run, needed, found = row["run"], row["needed_per_s"], row["samples_per_s"]
    memory = _bytes(row["memory_nbytes"])
    best = of.set_index([*SETTING]).loc[tuple(row[name] for name in SETTING)]
    if row["binds"] == LOOP:
        busy = 100 * best["resource_s"] / best["step_s"]
        yield (
            f"{run}: {_setting(row)}: nothing stalls, at {found:.4g} samples/s. The batches of"
            f" a host take {memory}. The busiest shared resource is {best['resource']}, in use"
            f" {busy:.2g} % of the time."
        )
    else:
        yield (
            f"{run}: {_setting(row)}: {found:.4g} of the {needed:.4g} samples/s that the loops"
            f" could take; no setting that was tried gives more. The bottleneck: {row['binds']}."
            f" {REMEDIES.get(row['binds'], 'No setting of the loader changes that.')}"
        )
    for own in of[of["own"]].to_dict("records"):
        if own["samples_per_s"] >= (1 - LOST) * found:
            continue
        every = own["stall_every"]
        stalls = "" if pd.isna(every) else f", a stall every {every:.3g} steps"
        yield (
            f"{run}: as the scenario has it, {_setting(own)}: {own['samples_per_s']:.4g} samples/s;"
            f" loops wait {100 * own['waiting']:.2g} % of the time{stalls}. The bottleneck:"
            f" {own['binds']}."
        )
    if row["memory_nbytes"] > SCARCE * best["host_nbytes"]:
        host = _bytes(best["host_nbytes"])
        yield f"{run}: these batches take {memory} of a host's {host} of memory."


def _keys(row: Row) -> str:
    """How to ask for a setting."""
    keys = " ".join(f"--set workload.loader.{name}={row[name]}" for name in SETTING)
    ahead, rest = divmod(row["prefetch"], row["workers"])
    torch = f"in PyTorch num_workers={row['workers']}, prefetch_factor={ahead}; here "
    return f"{row['run']}: {torch if row['threads'] == 1 and not rest else ''}{keys}"


def _setting(row: Row) -> str:
    """A setting in words."""
    workers, ahead = row["workers"], row["prefetch"]
    threads = f" of {row['threads']} threads" if row["threads"] > 1 else ""
    several = "s" * (workers > 1), "es" * (ahead > 1)
    return f"{workers} worker{several[0]}{threads}, {ahead} batch{several[1]} ahead"
