"""What is fetched, from an object store: how long it takes at least, and what it costs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simshuffle.errors import InputError, refuse
from simshuffle.scenario.storage import ObjectStore
from simshuffle.spec.library import by_kind
from simshuffle.spec.validation import validated
from simshuffle.studies.loader.tables import OF_STORE

S3 = "s3"
"""A store of which nothing else is said."""


def store_of(written: str) -> ObjectStore:
    """The store that is written as 's3', with other values as in 's3:latency=50 ms,prefixes=10'.

    Raises:
        InputError: it is not, or a value is not valid.
    """
    try:
        values = dict(by_kind(written))
    except InputError as error:
        raise InputError([of.below("--store") for of in error.problems], "command line") from None
    if (kind := values.pop("kind")) != S3:
        refuse("--store", "no such store", repr(kind), f"Write {S3}:KEY=VALUE,....", "command line")
    store, problems = validated(values, ObjectStore)
    if store is None or problems:
        raise InputError([of.below("--store") for of in problems], "command line")
    return store


def of_store(loaders: pd.DataFrame, says: dict[str, Any], written: str) -> pd.DataFrame:
    """The table `OF_STORE`: every worker has a connection with one request at a time.

    Args:
        loaders: the table of that name.
        says: the shape, see `simshuffle.studies.loader.shape.said`.
        written: the store, see `store_of`.
    """
    store, connections = store_of(written), says["ranks"] * says["workers"]
    rows = []
    for row in loaders[loaders["problem"] == ""].to_dict("records"):
        about: dict[str, Any] = {"loader": row["loader"]}
        for epoch in ("first", "last"):
            requests, nbytes = row[f"{epoch}_requests"], row[f"{epoch}_nbytes"]
            least = store.least_seconds(requests, nbytes, connections)
            about[f"{epoch}_s"] = max(least.values())
            about[f"{epoch}_usd"] = store.charge(requests, nbytes)
            if epoch == "first":
                about["limit"] = max(least, key=lambda name: least[name])
        rows.append(about)
    return OF_STORE.framed(rows)
