"""Loops over loaders: waits and steps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from . import gil
from .cores import use
from .meter import Marks, Task, between, clock, marks
from .process import Process
from .rows import CODES

_WAIT, _STEP = CODES["wait"], CODES["step"]
_FACTS = (
    *("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers"),
    *("in_order", "drop_last"),
)


_LOADERS = 1000
"""That are told apart; all others are the last of them."""


class LoopStep:
    """What a batch in hand takes, by operation."""

    def __init__(self, task: Task, since: Marks) -> None:
        self.task = task
        self.since = since
        self.thread = threading.get_ident()
        self.phases: dict[int, list[int]] = {}  # start, duration, count, bytes

    def add(self, operation: int, start: int, duration: int, nbytes: int) -> None:
        """Some of it."""
        phase = self.phases.setdefault(operation, [start, 0, 0, 0])
        phase[1] += duration
        phase[2] += 1
        phase[3] += nbytes


class LoaderLoop:
    """One time through a loader."""

    def __init__(self, process: Process, loader: Any) -> None:
        self.process = process
        self.number, self.epoch = _place(process, loader)
        self.pid = process.journal.pid
        self.count = 0
        self.asked: tuple[int, int, int, int] | None = None  # what iter() took
        self.step: LoopStep | None = None
        self.outer: LoopStep | None = process.taking
        self.again: list[Any] | None = None
        self.wanted = process.changes.get("replay", 0)
        self.length = _length(loader) or 0
        if self.wanted and self.length:
            self.again = process.kept.setdefault(self.number, [])
            process.say("changed", f"replay: {self.wanted} batches are played again")
        elif self.wanted:
            process.say("unchanged", "replay: the loader has no length")

    def take(self, get: Callable[[], Any], iterator: Any) -> Any:
        """The next batch, and rows of how long it took and of the step before it."""
        process = self.process
        begin = marks()
        rows = self.finish(begin)
        process.taking = None
        if process.limit is not None:
            process.journal.write(rows)
            rows = []
            process.stop_if_over()
        before = self._outstanding(iterator)
        process.task = (self.number, self.epoch, self.count, -1)
        try:
            batch = self._played(get)
        except BaseException:
            process.journal.write([*rows, self._waited(begin, -1)])
            process.taking = self.outer
            raise
        finally:
            process.task = None
        number = self._which(iterator, before)
        rows.append(self._waited(begin, number))
        process.journal.write(rows)
        self.count += 1
        process.batches += 1
        if not process.first:
            process.first, process.used = clock(), use()
        gil.watch(process.look, process.waited_for_the_interpreter)
        process.save_now_and_then()
        task = (self.number, self.epoch, number, -1)
        self.step = process.taking = LoopStep(task, marks())
        return batch

    def _played(self, get: Callable[[], Any]) -> Any:
        """The batch; one of the first ones again if that is wanted."""
        if self.again is None:
            return get()
        if len(self.again) < self.wanted:
            self.again.append(get())
            return self.again[-1]
        if self.count >= self.length:
            raise StopIteration
        return self.again[self.count % self.wanted]

    def finish(self, end: Marks) -> list[bytes]:
        """The rows of the step that is in hand, which ends."""
        if self.step is None:
            return []
        row = functools.partial(self.process.row, self.step.task)
        rows = [row(_STEP, *between(self.step.since, end), 0, 0, -1, -1)]
        for operation, (start, duration, count, nbytes) in self.step.phases.items():
            rows.append(row(operation, start, duration, -1, -1, count, nbytes, -1, -1))
        self.step = None
        return rows

    def _waited(self, begin: Marks, batch: int) -> bytes:
        """Of the first batch, with what it took to begin: workers are started there."""
        start, *took = between(begin)
        if self.asked is not None:
            start -= self.asked[1]
            took = [
                -1 if min(both) < 0 else sum(both)
                for both in zip(took, self.asked[1:])  # noqa: B905 - Python 3.9
            ]
            self.asked = None
        task = (self.number, self.epoch, batch, -1)
        return self.process.row(task, _WAIT, start, *took, 0, 0, -1, -1)

    def _outstanding(self, iterator: Any) -> Any:
        """Where workers' batches come in any order: which are asked for."""
        in_order = getattr(iterator, "_in_order", True)
        return None if in_order else set(iterator._task_info)

    def _which(self, iterator: Any, before: Any) -> int:
        """The number of the batch that came. Numbers that a worker found no samples for are
        skipped, so it is not always the count; it is where batches are played again."""
        if self.again is not None:
            return self.count
        if before is not None:
            return max(before - set(iterator._task_info), default=self.count)
        return int(getattr(iterator, "_rcvd_idx", self.count + 1)) - 1

    def __del__(self) -> None:
        """Nobody has the iterator any more: the loop was left."""
        process = self.process
        here = process.active and process.journal.pid == self.pid
        if self.step is not None and here:
            process.journal.write(self.finish(marks()))


class _Replay:
    """In place of an iterator, where every batch was there before."""

    def __init__(self, loop: LoaderLoop) -> None:
        self._recorded = loop

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._recorded.take(lambda: None, self)

    def __len__(self) -> int:
        return self._recorded.length


def watch_loops(process: Process) -> None:
    """Record every loop from now on."""
    process.patches.when_imported("torch.utils.data.dataloader", functools.partial(_patch, process))


def _patch(process: Process, module: Any) -> None:
    process.save()
    iterate = module.DataLoader.__iter__
    following = module._BaseDataLoaderIter.__next__
    reset = module._MultiProcessingDataLoaderIter._reset

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        if process.only not in (None, self):
            return iterate(self)
        begin = marks()
        if self._iterator is not None and hasattr(self._iterator, "_recorded"):
            self._iterator._recorded.step = None  # left before its end, nobody knows when
        loop = LoaderLoop(process, self)
        if loop.again is not None and len(loop.again) >= loop.wanted:
            return _Replay(loop)
        process.taking, process.beginning = None, loop
        try:
            iterator = iterate(self)
        finally:
            process.taking = loop.outer
        iterator._recorded = loop
        workers = process.journal.facts.setdefault("workers", {})
        for worker in getattr(iterator, "_workers", ()):
            workers.setdefault(str(worker.pid), [loop.number, loop.epoch])
        process.save()
        loop.asked = between(begin)
        return iterator

    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        loop = getattr(self, "_recorded", None)
        if loop is None or not process.active:
            return following(self)
        return loop.take(functools.partial(following, self), self)

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        self._worker_result_queue._recorded = process.beginning
        reset(self, *args, **kwargs)

    process.patches.replace(module.DataLoader, "__iter__", __iter__)
    process.patches.replace(module._BaseDataLoaderIter, "__next__", __next__)
    process.patches.replace(module._MultiProcessingDataLoaderIter, "_reset", _reset)


def _length(of: Any) -> int | None:
    try:
        return len(of)
    except Exception:  # noqa: BLE001 - it has none, and may say so as it likes
        return None


def _place(process: Process, loader: Any) -> tuple[int, int]:
    """The number of a loader, and how often it was gone through. One that is made anew over the
    same data set with the same settings is the same."""
    facts = {name: getattr(loader, name, None) for name in _FACTS}
    facts["batch_size"] = facts["batch_size"] or getattr(loader.batch_sampler, "batch_size", None)
    facts["dataset"] = type(loader.dataset).__name__
    facts["sampler"] = type(loader.sampler).__name__
    facts["samples"] = _length(loader.dataset)
    facts = {name: value for name, value in facts.items() if value is not None}
    this = (id(loader.dataset), facts)
    if this not in process.known and len(process.known) < _LOADERS:
        process.known.append(this)
        process.loaders.append(facts)
        process.epochs.append(0)
    number = process.known.index(this) if this in process.known else _LOADERS - 1
    process.epochs[number] += 1
    return number, process.epochs[number] - 1
