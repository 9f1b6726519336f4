"""The study behind ``study loader``: what loaders fetch, how well they mix, and what an object
store makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.studies.loader.cell import (
    BETWEEN,
    LoaderCell,
    by_label,
    collect,
    mixtures,
)
from simshuffle.studies.loader.figures import loader_chart
from simshuffle.studies.loader.shape import facts_of
from simshuffle.studies.loader.storage import S3, parse_store
from simshuffle.studies.loader.tables import OF_STORE, STORED, WINDOWS
from simshuffle.studies.loader.text import loader_parts
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Result, Study

_Count = Annotated[int, Field(ge=0)]
_One = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, le=1)]


class _Source(TypedDict):
    """What an epoch has of a source: shares of its rows, and samples."""

    asked: _Share
    had: _Share
    again: _Count
    cut_off: _Count


class _Shape(TypedDict):
    """The shape, and what a random order gives on it."""

    samples: _One
    shards: _One
    nbytes: _Count
    nodes: _One
    ranks: _One
    workers: _One
    batch_size: _One
    epochs: _One
    cache_nbytes: _Count | None
    classes: _One
    batch_companions: Annotated[float, Field(ge=0)]
    rank_companions: _Share
    moves: _Share
    mixtures: NotRequired[dict[str, list[_Source]]]  # what their first epoch has of each source


class _Request(TypedDict):
    """What was asked for."""

    orders: list[str]
    order_file: str | None
    shape: dict[str, Any]


class _Says(TypedDict):
    """What ``meta.json`` holds of loaders."""

    says: _Shape
    asked: _Request


def _of_store(result: Result) -> pd.DataFrame:
    """The table `OF_STORE`: every worker has a connection with one request at a time."""
    loaders, says = result.tables["loaders"], result.meta["says"]
    store = parse_store(result.meta["asked"]["shape"].get("store", S3))
    connections = says["ranks"] * says["workers"]
    rows = []
    for row in loaders[loaders["problem"] == ""].to_dict("records"):
        about: dict[str, Any] = {"loader": row["loader"]}
        for epoch in ("last", "first"):
            requests, nbytes = row[f"{epoch}_requests"], row[f"{epoch}_nbytes"]
            least = store.least_seconds(requests, nbytes, connections)
            about[f"{epoch}_s"] = max(least.values())
            about[f"{epoch}_usd"] = store.charge(requests, nbytes)
        rows.append({**about, "limit": max(least, key=lambda name: least[name])})
    return OF_STORE.framed(rows)


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of."""
    loaders, says = result.tables["loaders"], result.meta["says"]
    if not len(loaders):
        yield Problem("loaders.csv", "must have a row for each loader", "none", REMEDY)
    known = loaders[loaders["problem"] == ""]
    if known.drop(columns=[*BETWEEN]).isna().any(axis=None):
        rule = "must have numbers for every loader without a problem"
        yield Problem("loaders.csv", rule, f"{len(known)} rows", REMEDY)
    for name, rows in (("epochs", says["epochs"]), ("windows", WINDOWS)):
        table = result.tables[name]
        counts = table.groupby("loader").size().reindex(known["loader"]).fillna(0)
        if len(table) != rows * len(known) or (counts != rows).any():
            rule = f"must have {rows} rows for every loader without a problem"
            yield Problem(f"{name}.csv", rule, f"{len(table)} rows", REMEDY)


STUDY: Study[list[LoaderCell]] = Study(
    kind="loader",
    verb="loader",
    stages=(by_label,),
    collect=collect,
    stored=STORED,
    derived={"store": Derived(OF_STORE, _of_store)},
    figures=lambda result: {"loader": loader_chart(result.tables["loaders"], result.meta["says"])},
    parts=lambda result: loader_parts(
        result.tables["loaders"],
        result.derived["store"],
        result.meta["says"],
        result.meta["asked"]["order_file"] is not None,
    ),
    facts=lambda cells, outcomes, tables: {
        "says": {**facts_of(cells[0].shape), **mixtures(cells, outcomes)}
    },
    says=_Says,
    faults=_faults,
    again="simshuffle.studies.loader.request:again",
)
