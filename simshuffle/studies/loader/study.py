"""Study what loaders fetch, how well orders mix, and the price from an object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.studies.loader.cell import (
    COLUMNS_OF_PAIRS,
    LoaderCell,
    cells_by_label,
    collect,
    collect_mixtures,
)
from simshuffle.studies.loader.figures import loader_chart
from simshuffle.studies.loader.shape import facts_of
from simshuffle.studies.loader.storage import S3, parse_store
from simshuffle.studies.loader.tables import STORE, STORED, WINDOWS
from simshuffle.studies.loader.text import loader_parts
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Result, Study

NaturalNumber = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class SourceFacts(TypedDict):
    """Counts of one source in an epoch of a mixture: shares of the epoch's rows, and
    samples.
    """

    asked: Share  # share of the epoch's rows that was requested
    had: Share  # share of the epoch's rows that are of this source
    again: NaturalNumber  # rows beyond the first of each sample
    cut_off: NaturalNumber  # samples of the source that the epoch does not have


class LoaderFacts(TypedDict):
    """The shape, and the shares that a random order has on it."""

    samples: PositiveNumber  # of the data set
    shards: PositiveNumber  # of the data set
    nbytes: NaturalNumber  # of the data set
    nodes: PositiveNumber  # hosts
    ranks: PositiveNumber  # of all nodes
    workers: PositiveNumber  # of a rank
    batch_size: PositiveNumber  # samples of a rank's batch
    epochs: PositiveNumber  # that are counted
    cache_nbytes: NaturalNumber | None  # of a node; 0 for no cache, None for no limit
    classes: PositiveNumber  # labels
    # shares of pairs of a batch, and of a rank, that a random order joins again
    batch_companions: Annotated[float, Field(ge=0)]
    rank_companions: Share
    moves: Share  # share of the samples that a random order moves to another node
    # by name of the loader, what the first epoch of a mixture has of each source
    mixtures: NotRequired[dict[str, list[SourceFacts]]]


class StoredRequest(TypedDict):
    """The request as ``meta.json`` stores it."""

    orders: list[str]  # as they were named; empty for the default ones
    order_file: str | None  # recorded order among the inputs; None for named orders
    shape: dict[str, Any]  # options of the shape


class LoaderMeta(TypedDict):
    """Contents of ``meta.json`` for loaders."""

    says: LoaderFacts
    asked: StoredRequest


def _make_store_table(result: Result) -> pd.DataFrame:
    """Return the table `STORE`: every worker has a connection with one request at a
    time.

    Loaders with a problem have no row.
    """
    loaders = result.tables["loaders"]
    facts = result.meta["says"]
    store = parse_store(result.meta["asked"]["shape"].get("store", S3))
    connections = facts["ranks"] * facts["workers"]
    rows = []
    for row in loaders[loaders["problem"] == ""].to_dict("records"):
        store_row: dict[str, Any] = {"loader": row["loader"]}
        # the first epoch comes second: the limit is read from its seconds below
        for epoch in ("last", "first"):
            requests = row[f"{epoch}_requests"]
            nbytes = row[f"{epoch}_nbytes"]
            seconds_of_limit = store.least_seconds(requests, nbytes, connections)
            store_row[f"{epoch}_s"] = max(seconds_of_limit.values())
            store_row[f"{epoch}_usd"] = store.charge(requests, nbytes)
        rows.append(
            {
                **store_row,
                "limit": max(
                    seconds_of_limit, key=lambda limit: seconds_of_limit[limit]
                ),
            }
        )
    return STORE.framed(rows)


def _find_faults(result: Result) -> Iterator[Problem]:
    """Yield problems of tables that lack rows or numbers which other tables require."""
    loaders = result.tables["loaders"]
    facts = result.meta["says"]
    if not len(loaders):
        yield Problem("loaders.csv", "must have a row for each loader", "none", REMEDY)
    counted_loaders = loaders[loaders["problem"] == ""]
    if counted_loaders.drop(columns=[*COLUMNS_OF_PAIRS]).isna().any(axis=None):
        rule = "must have numbers for every loader without a problem"
        yield Problem("loaders.csv", rule, f"{len(counted_loaders)} rows", REMEDY)
    for name, rows in (("epochs", facts["epochs"]), ("windows", WINDOWS)):
        table = result.tables[name]
        counts = (
            table.groupby("loader").size().reindex(counted_loaders["loader"]).fillna(0)
        )
        if len(table) != rows * len(counted_loaders) or (counts != rows).any():
            rule = f"must have {rows} rows for every loader without a problem"
            yield Problem(f"{name}.csv", rule, f"{len(table)} rows", REMEDY)


STUDY: Study[list[LoaderCell]] = Study(
    kind="loader",
    verb="loader",
    stages=(cells_by_label,),
    collect=collect,
    stored=STORED,
    derived={"store": Derived(STORE, _make_store_table)},
    figures=lambda result: {
        "loader": loader_chart(result.tables["loaders"], result.meta["says"])
    },
    parts=lambda result: loader_parts(
        result.tables["loaders"],
        result.derived["store"],
        result.meta["says"],
        result.meta["asked"]["order_file"] is not None,
    ),
    facts=lambda cells, outcomes, tables: {
        "says": {**facts_of(cells[0].shape), **collect_mixtures(cells, outcomes)}
    },
    says=LoaderMeta,
    faults=_find_faults,
    again="simshuffle.studies.loader.request:repeat",
)
