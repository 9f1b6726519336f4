"""Loaders on a terminal. Tables fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.tables import OF_STORE, STORED

Row = Mapping[Any, Any]
AGAIN = 2.0
"""So many times the companions of a random order are worth a sentence."""
MANY_TIMES = 2.0
"""Whoever fetches more than so many times the data set in an epoch is named."""
UNEQUAL = 0.5
"""Where the end of an epoch mixes fewer shards than this share of the mean, it is said; as where
places vary less than this share of what they can."""


def parts(
    loaders: pd.DataFrame, store: pd.DataFrame, says: Mapping[str, Any], recorded: bool
) -> Iterator[str | Table]:
    """All of it, in order; what a recorded order does is also said in sentences."""
    yield _shape(says)
    known = loaders[loaders["problem"] == ""]
    yield STORED["loaders"].listing(
        known,
        "What all nodes fetch from the remote storage, in the first epoch and in the last",
        (
            *("loader", "unit", "first_requests", "first_nbytes", "last_requests", "last_nbytes"),
            *("hit_rate", "held_nbytes"),
        ),
    )
    yield from _again_and_again(known, says)
    yield OF_STORE.listing(
        store,
        "The same from an object store (--store): least seconds, what limits them, and the price",
        ("loader", "first_s", "last_s", "limit", "first_usd", "last_usd"),
    )
    yield _mixing(known, says)
    if recorded:
        for row in known.to_dict("records"):
            yield from findings(row, says)
    for row in loaders[loaders["problem"] != ""].to_dict("records"):
        yield f"{row['loader']}: does not work with these shards and ranks: {row['problem']}"


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


def _shape(says: Mapping[str, Any]) -> str:
    cache = says["cache_nbytes"]
    kept = "without limit" if cache is None else "none" if cache == 0 else _bytes(cache)
    return (
        f"{says['samples']} samples in {says['shards']} shards, {_bytes(says['nbytes'])};"
        f" nodes: {says['nodes']}, ranks: {says['ranks']}, workers of each: {says['workers']},"
        f" batch: {says['batch_size']}, epochs: {says['epochs']}, cache of a node: {kept}."
    )


def _bytes(nbytes: float) -> str:
    return readable(nbytes, Dimension.NBYTES, 3)


def _mixing(loaders: pd.DataFrame, says: Mapping[str, Any]) -> Table:
    columns = ("loader", "never", "surplus", "imbalance", "batch_companions", "rank_companions")
    more = ("moves", "divergence", "position_entropy", "shards", "end_shards")
    title = "Mixing from epoch to epoch"
    table = STORED["loaders"].listing(loaders, title, (*columns, *more))
    expected = [says[name] for name in ("batch_companions", "rank_companions", "moves")]
    table.add_row("(random)", "0", "0", "", *[f"{share:.3g}" for share in expected])
    return table


def findings(row: Row, says: Mapping[str, Any]) -> Iterator[str]:
    """What a loader does that is seldom meant, a sentence for each."""
    size = says["samples"]
    if row["never"]:
        yield f"Never handed out: {row['never']:.0f} of {size} samples, in the epoch with most."
    if row["surplus"]:
        yield (
            f"Handed out more than once: {row['surplus']:.0f} rows repeat a sample of their epoch."
        )
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
    if says["ranks"] > 1 and row["rank_companions"] == 1:
        yield "Every rank has the same samples in every epoch: this is local shuffling."
    elif row["rank_companions"] > AGAIN * says["rank_companions"]:
        yield (
            f"Samples stay together on a rank: {row['rank_companions']:.3g} of the pairs, where a"
            f" random order has {says['rank_companions']:.3g}."
        )
    if row["batch_companions"] > AGAIN * says["batch_companions"]:
        yield (
            f"Samples stay together in a batch: {row['batch_companions']:.3g} of the pairs, where a"
            f" random order has {says['batch_companions']:.3g}."
        )
    if row["position_entropy"] < UNEQUAL:
        yield (
            "Samples come in the same part of every epoch: their place varies by"
            f" {row['position_entropy']:.2f} of what it can."
        )
    if row["end_shards"] < UNEQUAL * row["shards"]:
        yield (
            f"The end of an epoch mixes less: an iteration has samples of {row['end_shards']:.3g}"
            f" shards there, and of {row['shards']:.3g} on average."
        )
