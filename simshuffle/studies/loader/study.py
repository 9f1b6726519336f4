"""The study behind ``simshuffle loader``: what loaders fetch, and how well they mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.results.chart import Chart
from simshuffle.studies.loader import text
from simshuffle.studies.loader.cell import LoaderCell, cells, collect
from simshuffle.studies.loader.figures import loader_chart
from simshuffle.studies.loader.shape import said
from simshuffle.studies.loader.store import S3, of_store
from simshuffle.studies.loader.tables import OF_STORE, STORED, WINDOWS
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Result, Study

_Count = Annotated[int, Field(ge=0)]
_One = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, le=1)]


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


class _Asked(TypedDict):
    """What was asked."""

    orders: list[str]
    order_file: str | None
    shape: dict[str, Any]


class _Says(TypedDict):
    """What ``meta.json`` holds of loaders."""

    says: _Shape
    asked: _Asked


def _figures(result: Result) -> dict[str, Chart]:
    return {"loader": loader_chart(result.tables["loaders"], result.meta["says"])}


def _parts(result: Result) -> Iterator[Any]:
    recorded = result.meta["asked"]["order_file"] is not None
    return text.parts(result.tables["loaders"], _of_store(result), result.meta["says"], recorded)


def _of_store(result: Result) -> pd.DataFrame:
    written = result.meta["asked"]["shape"].get("store", S3)
    return of_store(result.tables["loaders"], result.meta["says"], written)


def _facts(of: Sequence[LoaderCell], outcomes: Any, tables: Any) -> dict[str, Any]:
    return {"says": said(of[0].shape)}


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of."""
    loaders, says = result.tables["loaders"], result.meta["says"]
    if not len(loaders):
        yield Problem("loaders.csv", "must have a row for each loader", "none", REMEDY)
    known = loaders[loaders["problem"] == ""]
    between = ["batch_companions", "rank_companions", "moves"]
    if known.drop(columns=between).isna().any(axis=None):
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
    stages=(cells,),
    collect=collect,
    stored=STORED,
    derived={"store": Derived(OF_STORE, _of_store)},
    figures=_figures,
    parts=_parts,
    facts=_facts,
    says=_Says,
    faults=_faults,
    again="simshuffle.studies.loader.verb:again",
)
