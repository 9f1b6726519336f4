"""One order on a shape as a cell: what is fetched of it, and how well it mixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError
from simshuffle.orders.fetching import Pieces, fetched, pieces
from simshuffle.orders.mixing import (
    along,
    batches,
    companions,
    coverage,
    divergence,
    moves,
    position_entropy,
    shards_of_batches,
)
from simshuffle.orders.order import EpochOrder, Order, Unit
from simshuffle.spec.arrays import Ints64
from simshuffle.studies.loader import order_file
from simshuffle.studies.loader.shape import Shape
from simshuffle.studies.loader.tables import STORED, WINDOWS
from simshuffle.study.cell import SMALL_MEMORY, Cell, Outcome, PlainCell, Tell
from simshuffle.study.study import Outcomes, Tables

SECONDS_PER_ROW = 3e-6
"""s of one core for each sample of each epoch, roughly."""
BYTES_PER_ROW = 200.0
"""Bytes of memory for each, roughly."""
BETWEEN = ("batch_companions", "rank_companions", "moves")
"""Columns of two epochs, empty in the first."""


@dataclass(frozen=True)
class DrawnOrder:
    """An order that is drawn."""

    order: Order

    @property
    def key(self) -> Any:
        """Plain values that decide the orders of all epochs."""
        return self.order.model_dump(mode="json")

    @property
    def unit(self) -> Unit:
        """What is fetched at once."""
        return self.order.unit

    @property
    def block(self) -> int:
        """Samples of a block, where blocks are fetched."""
        return self.order.block

    def places(self, shape: Shape) -> Ints64:
        """(N,) where each sample is stored."""
        return self.order.places(shape.data, shape.seed)

    def epochs(self, shape: Shape) -> list[EpochOrder]:
        """The orders of all epochs.

        Raises:
            InputError: there are none on this shape.
        """
        data, readers = shape.data, shape.readers
        return [self.order.epoch(data, readers, shape.seed, each) for each in range(shape.epochs)]


@dataclass(frozen=True)
class FileOrder:
    """An order that was recorded, with what a `DrawnOrder` says of itself."""

    path: Path  # of its file
    digest: str  # of the contents
    unit: Unit  # what is fetched at once
    block: int  # samples of a block, where blocks are fetched

    @property
    def key(self) -> Any:
        """Plain values that decide the orders of all epochs."""
        return [self.digest, self.unit, self.block]

    def places(self, shape: Shape) -> Ints64:
        """(N,) where each sample is stored: where its number says."""
        return np.arange(shape.samples)

    def epochs(self, shape: Shape) -> list[EpochOrder]:
        """The orders of all epochs."""
        return order_file.read(self.path).epochs


@dataclass(frozen=True)
class LoaderCell(PlainCell):
    """An order on a shape: the row of `loaders`, and those of `epochs` and `windows`."""

    label: str  # name of the order
    shape: Shape  # the data and who reads it
    source: DrawnOrder | FileOrder  # of the orders

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self.label, self.shape.model_dump(mode="json"), self.source.key]

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return 0.1 + SECONDS_PER_ROW * self.shape.rows

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + BYTES_PER_ROW * self.shape.rows

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        source = self.source
        about = {"loader": self.label, "problem": "", "unit": source.unit}
        try:
            orders = source.epochs(self.shape)
        except InputError as error:
            empty = dict.fromkeys(STORED["loaders"].columns, math.nan)
            problem = "; ".join(str(problem) for problem in error.problems)
            loader = {**empty, **about, "problem": problem}
            return Outcome({"loaders": [loader], "epochs": [], "windows": []})
        places, data = source.places(self.shape), self.shape.data
        of_epochs = epoch_rows(orders, self.shape, pieces(data, source.unit, source.block, places))
        windows = window_rows(orders, data.shard_of(places), self.shape)
        loader = {**about, **summary(orders, self.shape, of_epochs, windows)}
        named = [[{"loader": self.label, **row} for row in of] for of in (of_epochs, windows)]
        return Outcome({"loaders": [loader], "epochs": named[0], "windows": named[1]})


def epoch_rows(orders: Sequence[EpochOrder], shape: Shape, of: Pieces) -> list[dict[str, Any]]:
    """The rows of `epochs` without the loader, where ``of`` is fetched at once."""
    readers, rows = shape.readers, []
    before: EpochOrder | None = None
    for epoch, (order, got) in enumerate(
        zip(orders, fetched(orders, readers, of, shape.cache_nbytes), strict=True)
    ):
        seen = coverage(order, shape.samples, readers)
        row = {
            "epoch": epoch,
            **{name: getattr(got, name) for name in ("samples", "hits", "requests", "nbytes")},
            **{name: getattr(got, name) for name in ("evictions", "held_nbytes")},
            **{name: getattr(seen, name) for name in ("never", "repeated", "surplus")},
            **{name: getattr(seen, name) for name in ("least", "most")},
            "divergence": divergence(order.sample * shape.classes // shape.samples, order.rank),
            **dict.fromkeys(BETWEEN, math.nan),
        }
        if before is not None:
            groups = batches(before, readers), batches(order, readers)
            row["batch_companions"] = companions(before, groups[0], order, groups[1])
            row["rank_companions"] = companions(before, before.rank, order, order.rank)
            row["moves"] = moves(before, order, readers)
        rows.append(row)
        before = order
    return rows


def window_rows(orders: Sequence[EpochOrder], shard: Ints64, shape: Shape) -> list[dict[str, Any]]:
    """The rows of `windows` without the loader; ``shard`` is (N,) that of each sample."""
    readers = shape.readers
    found = [along(shards_of_batches(order, shard, readers), WINDOWS) for order in orders]
    return [
        {"window": window, "shards": float(mean)}
        for window, mean in enumerate(np.mean(found, axis=0))
    ]


def summary(
    orders: Sequence[EpochOrder],
    shape: Shape,
    epochs: Sequence[dict[str, Any]],
    windows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The row of `loaders` behind the unit."""
    table, readers = pd.DataFrame(epochs), shape.readers
    first, last = epochs[0], epochs[-1]
    mean = table["samples"] / readers.world_size
    shards = pd.Series([row["shards"] for row in windows])
    known = shards.dropna()
    return {
        **{f"first_{name}": first[name] for name in ("requests", "nbytes")},
        **{f"last_{name}": last[name] for name in ("requests", "nbytes")},
        "hit_rate": last["hits"] / last["samples"],
        **{name: int(table[name].max()) for name in ("held_nbytes", "never", "surplus")},
        "imbalance": float((table["most"] / mean - 1).max()),
        **{name: float(table[name].mean()) for name in (*BETWEEN, "divergence")},
        "position_entropy": position_entropy(orders, shape.samples, readers, WINDOWS),
        "shards": float(known.mean()),
        "end_shards": float(known.iloc[-1]),
    }


def cells(of: Sequence[LoaderCell], outcomes: Outcomes) -> dict[str, Cell]:
    """The orders by name."""
    return {cell.label: cell for cell in of}


def collect(of: Sequence[LoaderCell], outcomes: Outcomes) -> Tables:
    """The stored tables."""
    return {
        name: schema.framed([row for cell in of for row in outcomes[cell.label].values[name]])
        for name, schema in STORED.items()
    }
