"""The order in which torch DataLoaders hand out samples, for ``study loader --check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from simshuffle.errors import InputError, Problem, refuse

Loader = DataLoader[Any]
NumberOf = Callable[[Any], Any]
"""Gives the number of a sample, or the numbers of a batch."""


def recorded_order(
    loaders: Loader | Sequence[Loader],
    epochs: int,
    path: str | Path,
    *,
    set_epoch: Callable[[int], object] | None = None,
    number: NumberOf | None = None,
    rank: int = 0,
) -> pd.DataFrame:
    """Record in what order loaders hand out samples, and write it to a file for
    ``simshuffle loader --check``.

    Each loader runs its epochs with its own sampler, workers and random numbers. Of a
    data set that gives samples by index no sample is read, and ``number`` is not used:
    the index is the sample's number. An IterableDataset is read as always. The file is
    written at the end, complete.

    Args:
        loaders: one of a rank, or one of each of several ranks, rank after rank.
        epochs: how many epochs to record.
        path: of the file, which must not exist, in a folder that does; it ends in .csv
            or .parquet.
        set_epoch: called with the number of each epoch, from 0, before any loader
            begins it, as the training does it.
        number: of an IterableDataset, gives the number of a sample, or the numbers of a
            batch that the data set itself has made; if left out, items must be whole
            numbers, which stand for themselves. Where processes are spawned it must be
            a function of a module.
        rank: of the first loader; the next one is of the next rank, and so on.

    Returns:
        The table: a row for each sample, with the columns epoch (from 0), rank, worker
        (from 0; 0 if the loader has none), position (from 0, of the sample among all
        that the worker hands out in the epoch) and sample (its number). Rows are by
        epoch, then by rank, and then as the loader hands samples out.

    Raises:
        InputError: the file exists, has no folder or cannot be of that kind, there is
            no epoch, or a loader hands out something that has no whole number.
    """
    file = Path(path)
    _check(file, epochs)
    rank_loaders = [loaders] if isinstance(loaders, DataLoader) else list(loaders)
    parts = []
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        for offset, loader in enumerate(rank_loaders):
            workers, samples = _record_epoch(loader, number)
            columns = {
                "epoch": epoch,
                "rank": rank + offset,
                "worker": workers,
                "sample": samples,
            }
            part = pd.DataFrame(columns)
            part["position"] = part.groupby("worker").cumcount()
            parts.append(part[["epoch", "rank", "worker", "position", "sample"]])
    table = pd.concat(parts, ignore_index=True)
    # written beside and renamed, so that a file with this name is whole
    draft = file.with_name(f".{file.name}.part")
    try:
        if file.suffix == ".csv":
            table.to_csv(draft, index=False)
        else:
            table.to_parquet(draft, index=False)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)
    return table


def _check(path: Path, epochs: int) -> None:
    """Raise InputError if ``path`` exists, is no .csv or .parquet or has no folder, or
    if there is no epoch to record.
    """
    rule = ""
    if path.suffix not in {".csv", ".parquet"}:
        rule = "must end in .csv or .parquet"
        remedy = "Name a file with that ending."
    elif path.exists():
        rule = "must not exist"
        remedy = "Name another file, or remove it."
    elif not path.parent.is_dir():
        rule = "must be in a folder that exists"
        remedy = "Make the folder."
    problems = []
    if rule:
        problems.append(Problem("path", rule, repr(str(path)), remedy))
    if epochs < 1:
        problems.append(
            Problem("epochs", "must be 1 or more", str(epochs), "Record two or more.")
        )
    if problems:
        raise InputError(problems, "recorded order")


class _IndexDataset(Dataset[Any]):
    """A data set whose samples are their own indices."""

    def __getitem__(self, index: Any) -> Any:
        """Return ``index`` itself."""
        return index


class _NumberCollation:
    """A ``collate_fn`` that returns the worker's id and the samples' numbers instead of
    a batch.
    """

    def __init__(self, number: NumberOf | None) -> None:
        self.number = number

    def __call__(self, batch: Any) -> tuple[int, list[Any]]:
        """Return the worker's id, 0 without workers, and the numbers of all samples.

        ``batch`` is a list of items, or one item. Items, or what ``number`` returns for
        them, may be arrays of numbers. What is no number is returned as it is.
        """
        info = get_worker_info()
        items = batch if isinstance(batch, list) else [batch]
        numbers = (
            items if self.number is None else [self.number(item) for item in items]
        )
        flat = [
            number
            for numbers_of_item in numbers
            for number in np.ravel(np.asarray(numbers_of_item)).tolist()
        ]
        return 0 if info is None else info.id, flat


def _record_epoch(
    loader: Loader, number: NumberOf | None
) -> tuple[list[int], list[int]]:
    """Return the worker and the number of each sample that a loader hands out in an
    epoch, in that order.

    Raises:
        InputError: an item has no whole number.
    """
    workers: list[int] = []
    samples: list[int] = []
    with _numbers_as_batches(loader, number):
        for worker, numbers in loader:
            unnumbered = [item for item in numbers if type(item) is not int]
            if unnumbered:
                rule = "every item must have a whole number, the number of its sample"
                remedy = "Pass number=, a function that returns the number of an item."
                refuse("number", rule, repr(unnumbered[0])[:60], remedy, "loader")
            workers += [worker] * len(numbers)
            samples += numbers
    return workers, samples


@contextmanager
def _numbers_as_batches(loader: Loader, number: NumberOf | None) -> Iterator[None]:
    """Within the context ``loader`` gives worker and numbers instead of batches; its
    attributes are restored afterwards.
    """
    original = {
        name: getattr(loader, name) for name in ("dataset", "collate_fn", "_iterator")
    }
    replacement: dict[str, Any] = {
        "collate_fn": _NumberCollation(number),
        "_iterator": None,
    }
    # samples that are asked for by index need not be read to know which they are
    if not isinstance(loader.dataset, IterableDataset):
        replacement |= {
            "dataset": _IndexDataset(),
            "collate_fn": _NumberCollation(None),
        }
    try:
        for name, value in replacement.items():
            # DataLoader.__setattr__ refuses another data set
            object.__setattr__(loader, name, value)
        yield
    finally:
        for name, value in original.items():
            object.__setattr__(loader, name, value)
