"""The order in which a DataLoader of torch hands out samples, for ``study loader --check``."""

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
Numbers = Callable[[Any], Any]


def recorded_order(
    loaders: Loader | Sequence[Loader],
    epochs: int,
    path: str | Path,
    *,
    set_epoch: Callable[[int], object] | None = None,
    number: Numbers | None = None,
    rank: int = 0,
) -> pd.DataFrame:
    """Record in what order loaders hand out samples, and write that to a file for ``simshuffle
    loader --check``.

    The loader goes through its epochs with its own sampler, workers and random numbers. Of a data
    set that is asked for samples by index no sample is read; an IterableDataset is read as always.

    Args:
        loaders: of a rank, or of several ranks, one after the other.
        epochs: how many.
        path: of the file, which must not exist; it ends in .csv or .parquet.
        set_epoch: called with the number of each epoch before it begins, as the training does it.
        number: of an IterableDataset, gives the number of a sample, or the numbers of a batch that
            the data set itself has made; a whole number that an item is stands for itself if it is
            left out. Where processes are spawned it must be a function of a module.
        rank: of the first loader.

    Returns:
        The table: a row for each sample, with the columns epoch, rank, worker, position (among all
        that the worker hands out in the epoch) and sample.

    Raises:
        InputError: the file is there already or cannot be of that kind, there is no epoch, or what
            a loader hands out has no number.
    """
    file = Path(path)
    _check(file, epochs)
    several = [loaders] if isinstance(loaders, DataLoader) else list(loaders)
    parts = []
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        for place, loader in enumerate(several):
            worker, sample = _of_epoch(loader, number)
            own = {"epoch": epoch, "rank": rank + place, "worker": worker, "sample": sample}
            part = pd.DataFrame(own)
            part["position"] = part.groupby("worker").cumcount()
            parts.append(part[["epoch", "rank", "worker", "position", "sample"]])
    table = pd.concat(parts, ignore_index=True)
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
    problems, rule, remedy = [], "", ""
    if path.suffix not in {".csv", ".parquet"}:
        rule, remedy = "must end in .csv or .parquet", "Name such a file."
    elif path.exists():
        rule, remedy = "must not exist", "Name another file, or remove it."
    elif not path.parent.is_dir():
        rule, remedy = "must be in a folder that exists", "Make it."
    if rule:
        problems.append(Problem("path", rule, repr(str(path)), remedy))
    if epochs < 1:
        problems.append(Problem("epochs", "must be 1 or more", str(epochs), "Record two or more."))
    if problems:
        raise InputError(problems, "recorded order")


class _Indices(Dataset[Any]):
    """A data set whose samples are their indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


class _Note:
    """In place of the collation: the worker, and the numbers of a batch."""

    def __init__(self, number: Numbers | None) -> None:
        self.number = number

    def __call__(self, batch: Any) -> tuple[int, list[Any]]:
        info = get_worker_info()
        items = batch if isinstance(batch, list) else [batch]
        found = [item if self.number is None else self.number(item) for item in items]
        numbers = [each for of in found for each in np.ravel(np.asarray(of)).tolist()]
        return 0 if info is None else info.id, numbers


def _of_epoch(loader: Loader, number: Numbers | None) -> tuple[list[int], list[int]]:
    """Worker and number of each sample that a loader hands out in an epoch."""
    workers: list[int] = []
    samples: list[int] = []
    with _noting(loader, number):
        for worker, numbers in loader:
            if not all(type(each) is int for each in numbers):
                given = next(each for each in numbers if type(each) is not int)
                rule = "every item must have a whole number that stands for the sample"
                remedy = "Give number=, a function that says it of an item."
                refuse("number", rule, repr(given)[:60], remedy, "loader")
            workers += [worker] * len(numbers)
            samples += numbers
    return workers, samples


@contextmanager
def _noting(loader: Loader, number: Numbers | None) -> Iterator[None]:
    """The loader gives worker and numbers in place of batches, and is itself again afterwards."""
    own = {name: getattr(loader, name) for name in ("dataset", "collate_fn", "_iterator")}
    changed: dict[str, Any] = {"collate_fn": _Note(number), "_iterator": None}
    if not isinstance(loader.dataset, IterableDataset):
        changed |= {"dataset": _Indices(), "collate_fn": _Note(None)}
    try:
        for name, value in changed.items():
            object.__setattr__(loader, name, value)  # its own refuses another data set
        yield
    finally:
        for name, value in own.items():
            object.__setattr__(loader, name, value)
