"""The tables of a comparison: their columns, and the tables that follow from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

VARIANT = ["pattern", "batching", "barrier"]
_CASE = {
    "world_size": "ranks, M",
    "bytes_set": (
        "'full': what an epoch exchanges; 'short': the part of it that the packet model is given"
        " (see sets)"
    ),
    "pattern": "exchange pattern",
    "batching": "samples in a message: one 'sample', those of an 'iteration', or 'all'",
    "barrier": "whether all ranks wait for each other between two messages",
}
_RUN = {**_CASE, "model": "network model: 'analytic', 'fluid' or 'packet'", "seed": "from 1"}

SET_COLUMNS = {
    "world_size": "ranks, M",
    "bytes_set": _CASE["bytes_set"],
    "hosts": "hosts that the ranks fill",
    "samples": "samples that each rank sends",
    "sample_share": "share of each sample's bytes that is sent; 1 for whole samples",
    "nbytes": "bytes sent by all ranks, mean over seeds",
    "byte_share": "their share of the bytes of an epoch",
    "seeds": "seeds run",
    "injection_s": (
        "s that the bytes need through the busiest port of a host, mean over seeds, if none stays"
        " inside a host"
    ),
}
TIME_COLUMNS = {
    **_RUN,
    "time_s": "s until the last message has ended; for the analytic model a lower bound",
    "bound_s": (
        "s: bytes over capacity of the link for which that is longest, and the latency until the"
        " first byte reaches it"
    ),
    "slowdown": "time_s / bound_s",
    "flow_p50_s": "s from the post of a message to its end: median over messages",
    "flow_p99_s": "s: 99th percentile",
    "flow_max_s": "s: longest",
    "messages": "messages, over all ranks",
    "barriers": "barriers",
    "nbytes": "bytes sent by all ranks",
}
TIER_COLUMNS = {
    **_RUN,
    "tier": "kind of link; 'a>b' for cables from a to b",
    "links": "links of the tier that some pair of the ranks uses",
    "mean_utilisation": "bytes / capacity / time_s, mean over those links",
    "max_utilisation": "the same of the busiest link",
}
LINK_COLUMNS = {
    "world_size": "ranks, M",
    "bytes_set": _CASE["bytes_set"],
    "pattern": "exchange pattern",
    "batching": _CASE["batching"],
    "link": "unique name; 'a>b' for a cable from a to b",
    "tier": "kind of link",
    "capacity": "bytes/s",
    "nbytes": "bytes that cross it, with or without barriers, in the first seed",
}
HOTTEST_COLUMNS = {
    **_CASE,
    "model": _RUN["model"],
    "place": "from 1, the hottest",
    "link": "unique name",
    "tier": "kind of link",
    "nbytes": "bytes that cross it in the first seed",
    "utilisation": "bytes / capacity / time_s of the first seed",
}


@dataclass(frozen=True)
class Tables:
    """What a comparison leaves behind; with the columns of the dictionaries above.

    Attributes:
        sets: the bytes that were moved: a row for each world size and set.
        times: a row for each variant, model and seed.
        tiers: utilisation by tier of links: a row for each variant, model, seed and tier.
        links: bytes on each link that carries any, first seed: a row for each pattern, batching and
            link.
    """

    sets: pd.DataFrame
    times: pd.DataFrame
    tiers: pd.DataFrame
    links: pd.DataFrame

    def items(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Names and tables."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))


COLUMNS: dict[str, dict[str, str]] = {
    "sets": SET_COLUMNS,
    "times": TIME_COLUMNS,
    "tiers": TIER_COLUMNS,
    "links": LINK_COLUMNS,
}
"""Columns and their meaning by name of the table."""


def groups(table: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of a table by the values in ``columns``, in the order in which these first occur."""
    for key, rows in table.groupby(list(columns), sort=False):
        yield key if isinstance(key, tuple) else (key,), rows


def utilisation(tables: Tables) -> pd.DataFrame:
    """Utilisation of the links in the first seed: the columns of `links` with barrier, model,
    time_s and utilisation."""
    times = tables.times
    first = times[times["seed"] == times["seed"].min()]
    keys = ["world_size", "bytes_set", "pattern", "batching"]
    joined = tables.links.merge(first[[*keys, "barrier", "model", "time_s"]], on=keys)
    return joined.assign(utilisation=joined["nbytes"] / joined["capacity"] / joined["time_s"])


def hottest(tables: Tables, count: int = 10) -> pd.DataFrame:
    """The ``count`` links with the highest utilisation of each variant and model, first seed:
    columns `HOTTEST_COLUMNS`."""
    used = utilisation(tables)
    keys = ["world_size", "bytes_set", *VARIANT, "model"]
    ordered = used.sort_values(["utilisation", "link"], ascending=[False, True], kind="stable")
    top = ordered.groupby(keys, sort=False).head(count)
    top = top.assign(place=top.groupby(keys, sort=False).cumcount() + 1)
    return top.sort_values([*keys, "place"], ignore_index=True)[list(HOTTEST_COLUMNS)]
