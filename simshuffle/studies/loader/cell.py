"""A cell that counts what one order fetches on a shape, and how well it mixes."""

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
from simshuffle.workload.orders.fetching import (
    Pieces,
    count_fetches,
    divide_into_pieces,
)
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

COLUMNS_OF_PAIRS = ("batch_companions", "rank_companions", "moves")
"""Columns of two epochs, empty in the first."""


@dataclass(frozen=True)
class FileOrder:
    """An order that a loader's users recorded in a file."""

    path: Path  # of the file
    digest: str  # of the file's contents
    unit: Unit  # what is fetched at once
    block: int  # samples of a block, where blocks are fetched


@dataclass(frozen=True)
class LoaderCell(PlainCell):
    """An order on a shape; its outcome has rows of `loaders`, `epochs` and `windows`."""

    label: str  # name of the order
    shape: DataSetShape  # the data and who reads it
    order: Order | FileOrder  # that is drawn, or that was recorded

    @property
    def key(self) -> Any:
        """Return what decides the outcome: label, shape, and the order or its file's
        digest.
        """
        order = self.order
        order_key: Any
        if isinstance(order, FileOrder):
            order_key = [order.digest, order.unit, order.block]
        else:
            order_key = order.model_dump(mode="json")
        return [self.label, self.shape.model_dump(mode="json"), order_key]

    @property
    def cost(self) -> float:
        """Return the s of counting on one core, roughly."""
        return 0.1 + SECONDS_PER_ROW * self.shape.rows

    @property
    def memory(self) -> float:
        """Return the bytes of memory of the process, roughly."""
        return SMALL_MEMORY + BYTES_PER_ROW * self.shape.rows

    def run(self, tell: Tell) -> Outcome:
        """Draw or read the order, and count what it fetches and how it mixes.

        The outcome has the rows ``loaders`` (one), ``epochs`` and ``windows``, and
        ``sources`` of a mixture (fields of `SourceCount`, in its first epoch). If the
        order cannot be drawn on the shape, or its file not be read, there is only the
        loader's row: the problem, and NaN.
        """
        order = self.order
        shape = self.shape
        data = shape.data
        readers = shape.readers
        label_columns = {"loader": self.label, "problem": "", "unit": order.unit}
        epoch_numbers = range(shape.epochs)
        try:
            if isinstance(order, FileOrder):
                orders = order_file.read_order(order.path).epochs
                # a file does not say where samples are stored: by their numbers
                position_of_sample = np.arange(shape.samples)
            else:
                orders = [
                    order.epoch(data, readers, shape.seed, epoch)
                    for epoch in epoch_numbers
                ]
                position_of_sample = order.places(data, shape.seed)
        except InputError as error:
            empty = dict.fromkeys(STORED["loaders"].columns, math.nan)
            problem = "; ".join(str(problem) for problem in error.problems)
            loader = {**empty, **label_columns, "problem": problem}
            return Outcome({"loaders": [loader], "epochs": [], "windows": []})

        pieces = divide_into_pieces(data, order.unit, order.block, position_of_sample)
        rows_of_epochs = epoch_rows(orders, shape, pieces)
        shard_of_sample = data.shard_of(position_of_sample)
        window_means = [
            mean_in_windows(
                shards_per_iteration(epoch_order, shard_of_sample, readers), WINDOWS
            )
            for epoch_order in orders
        ]
        shards = np.mean(window_means, axis=0)

        loader = {
            **label_columns,
            **summarize_order(orders, shape, rows_of_epochs, shards),
        }
        windows = [
            {"loader": self.label, "window": window, "shards": float(mean)}
            for window, mean in enumerate(shards)
        ]
        epochs = [{"loader": self.label, **row} for row in rows_of_epochs]
        tables = {"loaders": [loader], "epochs": epochs, "windows": windows}
        if isinstance(order, Mixture):
            counts = count_sources(order, data, orders[0].sample, shape.seed)
            return Outcome(tables | {"sources": [asdict(count) for count in counts]})
        return Outcome(tables)


def epoch_rows(
    orders: Sequence[EpochOrder], shape: DataSetShape, pieces: Pieces
) -> list[dict[str, Any]]:
    """Return the rows of `epochs`, without the loader; caches stay warm between them.

    The caches are empty at first. `COLUMNS_OF_PAIRS` compare an epoch with the one
    before, and are NaN in the first.

    Args:
        orders: the order of each epoch.
        shape: the data set, and who reads it.
        pieces: what is fetched at once.
    """
    readers = shape.readers
    rows = []
    fetches_of_epochs = count_fetches(orders, readers, pieces, shape.cache_nbytes)
    previous_order: EpochOrder | None = None
    for epoch, (order, fetches) in enumerate(
        zip(orders, fetches_of_epochs, strict=True)
    ):
        coverage = count_coverage(order, shape.samples, readers)
        # samples are sorted by label: (rows,) classes of equal size
        labels = order.sample * shape.classes // shape.samples
        row = {
            "epoch": epoch,
            **asdict(fetches),
            **asdict(coverage),
            "divergence": label_divergence(labels, order.rank),
            **dict.fromkeys(COLUMNS_OF_PAIRS, math.nan),
        }
        if previous_order is not None:
            previous_batches = batch_of_rows(previous_order, readers)
            batches = batch_of_rows(order, readers)
            row["batch_companions"] = companion_share(
                previous_order, previous_batches, order, batches
            )
            row["rank_companions"] = companion_share(
                previous_order, previous_order.rank, order, order.rank
            )
            row["moves"] = moved_share(previous_order, order, readers)
        rows.append(row)
        previous_order = order
    return rows


def summarize_order(
    orders: Sequence[EpochOrder],
    shape: DataSetShape,
    epochs: Sequence[dict[str, Any]],
    shards: Floats,
) -> dict[str, Any]:
    """Return the columns of `loaders` behind the unit.

    Fetches are of the first and the last epoch. Losses, bytes held by a node and
    imbalance (most samples of a rank over the mean, minus 1) are the largest of all
    epochs. Mixing is the mean over epochs; `COLUMNS_OF_PAIRS` are NaN for one epoch.
    ``end_shards`` are those of the last window that has an iteration.

    Args:
        orders: the order of each epoch.
        shape: the data set, and who reads it.
        epochs: rows of `epochs`, without the loader.
        shards: (windows,) mean shards in an iteration, NaN where a window has no
            iteration.
    """
    table = pd.DataFrame(epochs)
    readers = shape.readers
    first_epoch = epochs[0]
    last_epoch = epochs[-1]
    mean_samples = table["samples"] / readers.world_size
    window_shards = pd.Series(shards).dropna()
    return {
        **{f"first_{name}": first_epoch[name] for name in ("requests", "nbytes")},
        **{f"last_{name}": last_epoch[name] for name in ("requests", "nbytes")},
        "hit_rate": last_epoch["hits"] / last_epoch["samples"],
        **{
            name: int(table[name].max()) for name in ("held_nbytes", "never", "surplus")
        },
        "imbalance": float((table["most"] / mean_samples - 1).max()),
        **{
            name: float(table[name].mean())
            for name in (*COLUMNS_OF_PAIRS, "divergence")
        },
        "position_entropy": position_entropy(orders, shape.samples, readers, WINDOWS),
        "shards": float(window_shards.mean()),
        "end_shards": float(window_shards.iloc[-1]),
    }


def cells_by_label(cells: Sequence[Cell], outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells by their labels; ``outcomes`` are not used."""
    return {cell.label: cell for cell in cells}


def collect_mixtures(cells: Sequence[LoaderCell], outcomes: Outcomes) -> dict[str, Any]:
    """Return under 'mixtures' what the first epoch of each mixture has of its sources.

    Each mixture has, by its label, a list of the fields of `SourceCount`. The mapping
    is empty if no order is a mixture.
    """
    sources_of_loader = {
        cell.label: outcomes[cell.label].values.get("sources") for cell in cells
    }
    retained_sources = {
        label: counts for label, counts in sources_of_loader.items() if counts
    }
    return {"mixtures": retained_sources} if retained_sources else {}


def collect(cells: Sequence[LoaderCell], outcomes: Outcomes) -> Tables:
    """Return the stored tables of all cells: `STORED`.

    A cell with a problem has a row of ``loaders`` alone.
    """
    return {
        name: schema.framed(
            [row for cell in cells for row in outcomes[cell.label].values[name]]
        )
        for name, schema in STORED.items()
    }
