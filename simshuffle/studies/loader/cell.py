"""One order on a shape as a cell: what is fetched of it, and how well it mixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError
from simshuffle.spec.arrays import Floats
from simshuffle.studies.loader import order_file
from simshuffle.studies.loader.shape import BYTES_PER_ROW, SECONDS_PER_ROW, DataSetShape
from simshuffle.studies.loader.tables import STORED, WINDOWS
from simshuffle.study.cell import SMALL_MEMORY, Cell, Outcome, PlainCell, Tell
from simshuffle.study.study import Outcomes, Tables
from simshuffle.workload.orders.fetching import Pieces, count_fetches, divide_into_pieces
from simshuffle.workload.orders.mixing import (
    batch_of_rows,
    companion_share,
    count_coverage,
    label_divergence,
    mean_in_windows,
    moved_share,
    position_entropy,
    shards_per_iteration,
)
from simshuffle.workload.orders.mixture import Mixture, count_sources
from simshuffle.workload.orders.order import EpochOrder, Order, Unit

BETWEEN = ("batch_companions", "rank_companions", "moves")
"""Columns of two epochs, empty in the first."""


@dataclass(frozen=True)
class FileOrder:
    """An order that was recorded."""

    path: Path  # of its file
    digest: str  # of the contents
    unit: Unit  # what is fetched at once
    block: int  # samples of a block, where blocks are fetched


@dataclass(frozen=True)
class LoaderCell(PlainCell):
    """An order on a shape: the row of `loaders`, and those of `epochs` and `windows`."""

    label: str  # name of the order
    shape: DataSetShape  # the data and who reads it
    order: Order | FileOrder  # that is drawn, or that was recorded

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        order = self.order
        own: Any = (
            [order.digest, order.unit, order.block]
            if isinstance(order, FileOrder)
            else order.model_dump(mode="json")
        )
        return [self.label, self.shape.model_dump(mode="json"), own]

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
        order, shape = self.order, self.shape
        data, readers = shape.data, shape.readers
        about = {"loader": self.label, "problem": "", "unit": order.unit}
        numbers = range(shape.epochs)
        try:
            if isinstance(order, FileOrder):
                orders, places = order_file.read(order.path).epochs, np.arange(shape.samples)
            else:
                orders = [order.epoch(data, readers, shape.seed, each) for each in numbers]
                places = order.places(data, shape.seed)
        except InputError as error:
            empty = dict.fromkeys(STORED["loaders"].columns, math.nan)
            problem = "; ".join(str(problem) for problem in error.problems)
            loader = {**empty, **about, "problem": problem}
            return Outcome({"loaders": [loader], "epochs": [], "windows": []})
        of_epochs = epoch_rows(
            orders, shape, divide_into_pieces(data, order.unit, order.block, places)
        )
        shard = data.shard_of(places)
        found = [
            mean_in_windows(shards_per_iteration(each, shard, readers), WINDOWS) for each in orders
        ]
        shards = np.mean(found, axis=0)
        loader = {**about, **summary(orders, shape, of_epochs, shards)}
        windows = [
            {"loader": self.label, "window": window, "shards": float(mean)}
            for window, mean in enumerate(shards)
        ]
        epochs = [{"loader": self.label, **row} for row in of_epochs]
        of = {"loaders": [loader], "epochs": epochs, "windows": windows}
        if isinstance(order, Mixture):
            counts = count_sources(order, data, orders[0].sample, shape.seed)
            return Outcome(of | {"sources": [asdict(count) for count in counts]})
        return Outcome(of)


def epoch_rows(
    orders: Sequence[EpochOrder], shape: DataSetShape, of: Pieces
) -> list[dict[str, Any]]:
    """The rows of `epochs` without the loader, where ``of`` is fetched at once."""
    readers, rows = shape.readers, []
    before: EpochOrder | None = None
    for epoch, (order, got) in enumerate(
        zip(orders, count_fetches(orders, readers, of, shape.cache_nbytes), strict=True)
    ):
        seen = count_coverage(order, shape.samples, readers)
        row = {
            "epoch": epoch,
            **asdict(got),
            **asdict(seen),
            "divergence": label_divergence(
                order.sample * shape.classes // shape.samples, order.rank
            ),
            **dict.fromkeys(BETWEEN, math.nan),
        }
        if before is not None:
            groups = batch_of_rows(before, readers), batch_of_rows(order, readers)
            row["batch_companions"] = companion_share(before, groups[0], order, groups[1])
            row["rank_companions"] = companion_share(before, before.rank, order, order.rank)
            row["moves"] = moved_share(before, order, readers)
        rows.append(row)
        before = order
    return rows


def summary(
    orders: Sequence[EpochOrder],
    shape: DataSetShape,
    epochs: Sequence[dict[str, Any]],
    shards: Floats,
) -> dict[str, Any]:
    """The row of `loaders` behind the unit; ``shards`` are those of `windows`."""
    table, readers = pd.DataFrame(epochs), shape.readers
    first, last = epochs[0], epochs[-1]
    mean = table["samples"] / readers.world_size
    known = pd.Series(shards).dropna()
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


def by_label(of: Sequence[Cell], outcomes: Outcomes) -> dict[str, Cell]:
    """All cells by name."""
    return {cell.label: cell for cell in of}


def mixtures(of: Sequence[LoaderCell], outcomes: Outcomes) -> dict[str, Any]:
    """As ``mixtures``, of each mixture of sources what its first epoch has of each; nothing where
    there is none."""
    found = {cell.label: outcomes[cell.label].values.get("sources") for cell in of}
    counted = {label: counts for label, counts in found.items() if counts}
    return {"mixtures": counted} if counted else {}


def collect(of: Sequence[LoaderCell], outcomes: Outcomes) -> Tables:
    """The stored tables."""
    return {
        name: schema.framed([row for cell in of for row in outcomes[cell.label].values[name]])
        for name, schema in STORED.items()
    }
