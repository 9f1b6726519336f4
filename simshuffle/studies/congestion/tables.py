"""The tables of a comparison: those that are stored, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from simshuffle.errors import Problem
from simshuffle.studies.congestion.patterns import BATCHINGS, PATTERNS
from simshuffle.study.schema import (
    LARGEST,
    Column,
    Schema,
    amount,
    count,
    flag,
    problems_of_misfits,
    real,
    share,
    text,
)
from simshuffle.study.study import Result, Tables

VARIANT = ["pattern", "batching", "barrier"]
MODELS = ("analytic", "fluid", "packet")
MOST_LINKS = 1_000_000
"""Links of a tier at most, for the figure has a place for each."""


def positive(meaning: str) -> Column:
    """Return a column of numbers above 0, by which other numbers are divided."""
    return real(meaning, 1 / LARGEST)


WORLD_SIZE = count("ranks, M", 2)
MODEL = text("network model", *MODELS)
BYTES_SET = text("'full' or 'short' (see table sets)", "full", "short")
ROUTING = text(
    "routing of the network, as `cluster.routing` names it: its kind, and the keys that differ"
    " from the defaults"
)
_SIZE = {
    "world_size": WORLD_SIZE,
    "routing": ROUTING,
    "bytes_set": text(
        "'full': all bytes that an epoch exchanges; 'short': the part of them that the packet"
        " model simulates (see table sets)",
        *BYTES_SET.choices,
    ),
}
SIZE = [*_SIZE]
"""Columns of the sent bytes and of the network."""
_SENT = {
    **_SIZE,
    "pattern": text("exchange pattern", *PATTERNS),
    "batching": text(
        "samples in a message: one ('sample'), all of an iteration ('iteration'), or all of the"
        " epoch ('all')",
        *BATCHINGS,
    ),
}
_CASE = {
    **_SENT,
    "barrier": flag("whether all ranks wait for each other between two messages"),
}
_RUN = {
    **_CASE,
    "model": text("network model: 'analytic', 'fluid' or 'packet'", *MODELS),
    "seed": count("from 1", 1),
}
_TIER = text("kind of link")

STORED = {
    "sets": Schema(
        {
            **_SIZE,
            "hosts": count("hosts that the ranks fill"),
            "samples": count("samples that each rank sends"),
            "sample_share": share(
                "share of each sample's bytes that is sent; 1 for whole samples"
            ),
            "nbytes": amount("bytes sent by all ranks, mean over seeds"),
            "byte_share": share(
                "nbytes as a share of the bytes that an epoch exchanges"
            ),
            "seeds": count("seeds run"),
            "port_s": amount(
                "s for the bytes to pass the ports of the hosts, if all ports send equally many"
                " bytes and no byte stays inside a host; mean over seeds. Results of earlier"
                " versions have injection_s here"
            ),
            "injection_s": amount(
                "s for the bytes to pass the port that sends most, if no byte stays inside a"
                " host; mean over seeds"
            ),
            "rack_s": amount(
                "s for an all-to-all's bytes to leave the rack that sends most, over all its"
                " cables: no routing and no schedule is faster; 0 with one rack, and in results"
                " of earlier versions; mean over seeds"
            ),
        },
        key=tuple(SIZE),
        newer={"port_s": "injection_s"},
        absent={"rack_s": 0.0},
    ),
    "times": Schema(
        {
            **_RUN,
            "time_s": positive(
                "s until the last message has ended, including the cost of messages if it is"
                " counted; a lower bound for the analytic model"
            ),
            "low_s": positive(
                "s: the shortest time that is possible where only some steps were simulated; else"
                " time_s"
            ),
            "high_s": positive(
                "s: the longest time that is possible where only some steps were simulated; else"
                " time_s"
            ),
            "wire_s": positive(
                "s until the last message has ended if messages cost nothing but their time on"
                " the wire"
            ),
            "bound_s": positive(
                "s: bytes / capacity of the link where this is largest, plus the latency until"
                " the first byte reaches that link"
            ),
            "slowdown": amount("wire_s / bound_s"),
            "alone_s": positive(
                "s until the last message ends if messages never share a link: each has the full"
                " capacity of its slowest link"
            ),
            "self_contention": amount(
                "wire_s / alone_s: ParaDL's self-contention coefficient"
            ),
            "first_contention": amount(
                "how many times slower than alone the slowest message is, while all messages that"
                " wait for no other are under way and share every link equally"
            ),
            "flow_p50_s": amount(
                "s on the wire from the post of a message to its end: median over messages"
            ),
            "flow_p99_s": amount("s: 99th percentile"),
            "flow_max_s": amount("s: longest"),
            "messages": count("messages, over all ranks"),
            "barriers": count("barriers"),
            "nbytes": amount("bytes sent by all ranks"),
        },
        key=tuple(_RUN),
        newer={"low_s": "time_s", "high_s": "time_s", "wire_s": "time_s"},
    ),
    "tiers": Schema(
        {
            **_RUN,
            "tier": text("kind of link; 'a>b' for cables from a to b"),
            "links": Column(
                "links of the tier that the routing may use between the ranks",
                "count",
                False,
                1,
                MOST_LINKS,
            ),
            "mean_utilisation": amount(
                "bytes / capacity / wire_s, mean over the links of the tier"
            ),
            "max_utilisation": amount(
                "bytes / capacity / wire_s of the busiest link of the tier"
            ),
        },
        ".parquet",
        (*_RUN, "tier"),
    ),
    "links": Schema(
        {
            **_SENT,
            "link": text("unique name; 'a>b' for a cable from a to b"),
            "tier": _TIER,
            "capacity": positive("bytes/s"),
            "nbytes": amount(
                "bytes that cross it, with or without barriers, in the first seed"
            ),
        },
        ".parquet",
        (*_SENT, "link"),
    ),
}
HOTTEST = Schema(
    {
        **_CASE,
        "model": _RUN["model"],
        "place": count("position by utilisation, from 1 (the busiest link)", 1),
        "link": text("unique name"),
        "tier": _TIER,
        "nbytes": amount("bytes that cross it in the first seed"),
        "utilisation": amount("bytes / capacity / wire_s of the first seed"),
    }
)


def select_routing(tables: Tables, routing: str) -> Tables:
    """Return the rows of one routing, of every table that has a column ``routing``;
    tables without routings are left out.
    """
    return {
        name: table[table["routing"] == routing]
        for name, table in tables.items()
        if "routing" in table.columns
    }


def routings(tables: Tables) -> list[str]:
    """Return the names of the compared routings, in the order of table `sets`, which is
    that of the request.
    """
    return [str(name) for name in tables["sets"]["routing"].unique()]


def groups(
    table: pd.DataFrame, *columns: str
) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the rows of a table by the values in ``columns``, in the order in which
    these first occur.

    Each pair is the tuple of values, also of one column, and its rows. Rows with NaN in
    one of the columns are left out.
    """
    yield from table.groupby(list(columns), sort=False)


def messages_cost(times: pd.DataFrame) -> bool:
    """Return whether messages cost anything in these times: ``time_s`` is not
    ``wire_s`` in some row.
    """
    return bool((times["time_s"] != times["wire_s"]).any())


def utilisation(tables: Tables) -> pd.DataFrame:
    """Return table `links` of the lowest seed, one row for each barrier and model, with
    wire_s and utilisation: bytes / capacity / wire_s.

    Links that no bytes crossed have no row.
    """
    times = tables["times"]
    first_seed_times = times[times["seed"] == times["seed"].min()]
    keys = [*SIZE, "pattern", "batching"]
    joined = tables["links"].merge(
        first_seed_times[[*keys, "barrier", "model", "wire_s"]], on=keys
    )
    return joined.assign(
        utilisation=joined["nbytes"] / joined["capacity"] / joined["wire_s"]
    )


def hottest(tables: Tables, count: int = 10) -> pd.DataFrame:
    """Return the ``count`` busiest links of each size (`SIZE`), variant and model in
    the lowest seed, the busiest first: columns `HOTTEST`.

    Rows are sorted by size, variant and model, then by place. Links of equal
    utilisation are by name. There are fewer where bytes crossed fewer links.
    """
    link_rows = utilisation(tables)
    keys = [*SIZE, *VARIANT, "model"]
    ordered = link_rows.sort_values(
        ["utilisation", "link"], ascending=[False, True], kind="stable"
    )
    top = ordered.groupby(keys, sort=False).head(count)
    top = top.assign(place=top.groupby(keys, sort=False).cumcount() + 1)
    return top.sort_values([*keys, "place"], ignore_index=True)[list(HOTTEST.columns)]


def find_faults(result: Result) -> Iterator[Problem]:
    """Yield the problems of files whose tables lack rows that other tables refer to;
    ``times`` needs the lowest seed of each run, and at least one row.

    No tier may have more rows in ``links`` than ``tiers`` says that it has links.
    """
    tables = result.tables
    times = tables["times"]
    first_seed_times = times[times["seed"] == times["seed"].min()]
    size_columns = SIZE
    run_columns = [*VARIANT, "model"]
    links = tables["links"].groupby([*size_columns, *VARIANT[:2], "tier"]).size()
    tiers = tables["tiers"]
    tier_links = tiers.groupby([*size_columns, *VARIANT[:2], "tier"])["links"].min()
    return problems_of_misfits(
        {
            "times.csv": len(times) > 0
            and _same_values(times, first_seed_times, [*size_columns, *run_columns]),
            "sets.csv": _same_values(tables["sets"], times, size_columns),
            "tiers.parquet": _same_values(
                tiers, times, [*size_columns, *run_columns, "seed"]
            ),
            "links.parquet": _same_values(
                tables["links"], times, [*size_columns, *VARIANT[:2]]
            )
            and bool((links <= tier_links.reindex(links.index)).all()),
        }
    )


def _same_values(
    table: pd.DataFrame, reference: pd.DataFrame, columns: list[str]
) -> bool:
    """Return whether both tables have equal sets of distinct rows of ``columns``, in
    any order and number.
    """
    table_values, other_values = (
        set(compared_table[columns].itertuples(index=False, name=None))
        for compared_table in (table, reference)
    )
    return table_values == other_values
