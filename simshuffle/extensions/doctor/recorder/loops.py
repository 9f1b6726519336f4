"""Record the loops over loaders: their waits and steps."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import gil
from .cores import read_use
from .meter import Marks, Task, clock, marks, measure_since
from .process import Process
from .rows import CODES
from .settings import MADE_AT

_WAIT = CODES["wait"]
_ORDER = CODES["order"]
_BETWEEN = CODES["between"]
_LEAST_ORDER_NS = 100_000
"""Time of a sampler for a batch from which it has a row."""
_STEP = CODES["step"]
# settings of a loader that are its facts
_FACTS = (
    *(
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "persistent_workers",
    ),
    *("in_order", "drop_last"),
)


_MAX_LOADERS = 1000
"""Loaders that are told apart; all further ones count as the last of them."""


class LoopStep:
    """The step of a batch that the loop has, and its operations.

    Attributes:
        task: loader, epoch and batch of the step, and the worker -1.
        start: marks at its start.
        thread: that made this object: the one that steps.
        phases: by the code of each operation, the start of the first run (clock), the
            sum of durations (ns), the number of runs, and the sum of bytes.
    """

    def __init__(self, task: Task, start: Marks) -> None:
        self.task = task
        self.start = start
        self.thread = threading.get_ident()
        self.phases: dict[
            int, list[int]
        ] = {}  # start, duration, count, bytes of each operation

    def add(self, operation: int, start: int, duration: int, nbytes: int) -> None:
        """Add one run of an operation: its start and duration (ns), and its bytes."""
        phase = self.phases.setdefault(operation, [start, 0, 0, 0])
        phase[1] += duration
        phase[2] += 1
        phase[3] += nbytes


class LoaderLoop:
    """A pass of a loop through a loader, which is counted as it is made.

    Attributes:
        loader_index: of the loader in the process.
        epoch: how many passes through the loader there were before.
        pid: of the process that loops.
        count: batches that were taken.
        iter_times: start, duration, computing and queued time of iter() (ns), until its
            first batch; else None.
        step: of the last batch; None if it is finished.
        outer_step: the step of a loop around this one; None if there is none.
        between: start and duration (ns) of what came between the previous pass through
            the loader and this, until its first batch; None if that is not known.
        cached_batches: batches that are played again, which all passes through the
            loader share; None if none are.
        num_cached: number of them that are wanted; 0 without the change ``replay``.
        length: batches of an epoch; 0 if not known.
    """

    def __init__(self, process: Process, loader: Any) -> None:
        self.process = process
        self.loader_index, self.epoch = _count_pass(process, loader)
        self.pid = process.journal.pid
        self.count = 0
        self.iter_times: tuple[int, int, int, int] | None = None
        self.step: LoopStep | None = None
        self.outer_step: LoopStep | None = process.current_step
        self.between: tuple[int, int] | None = None
        previous_end = process.pass_ends.pop(self.loader_index, None)
        if previous_end is not None and self.outer_step is None:
            self.between = (previous_end, clock() - previous_end)
        process.order_ns = 0
        self.cached_batches: list[Any] | None = None
        self.num_cached = process.changes.get("replay", 0)
        self.length = _length(loader) or 0
        if self.num_cached and self.length:
            self.cached_batches = process.cached_batches.setdefault(
                self.loader_index, []
            )
            process.say(
                "changed", f"replay: {self.num_cached} batches are played again"
            )
        elif self.num_cached:
            process.say("unchanged", "replay: the loader has no length")

    def take(self, get: Callable[[], Any], iterator: Any) -> Any:
        """Take the next batch and return it; write rows of the wait for it and of the
        step before it.

        The step of the batch begins at the end. A wait that ends with an error, as at
        the end of an epoch, is of batch -1. While it waits, ``process.task`` is the
        batch.

        Args:
            get: gets the batch from torch.
            iterator: of torch.

        Raises:
            StopIteration: the epoch is over.
            SystemExit: the time of the training is over.
        """
        process = self.process
        begin = marks()
        rows = self.finish(begin)
        process.current_step = None
        if process.limit is not None:
            process.journal.write(rows)
            rows = []
            process.stop_if_over()
        requested_before = self._requested_batches(iterator)
        process.task = (self.loader_index, self.epoch, self.count, -1)
        try:
            batch = self._get_batch(get)
        except BaseException:
            process.journal.write([*rows, self._pack_wait(begin, -1)])
            process.current_step = self.outer_step
            self.end_pass()
            raise
        finally:
            process.task = None
        batch_number = self._batch_number(iterator, requested_before)
        rows.append(self._pack_wait(begin, batch_number))
        rows += self._pack_start(begin, batch_number)
        process.journal.write(rows)
        self.count += 1
        process.batches += 1
        if not process.first_batch_ns:
            process.first_batch_ns = clock()
            process.first_use = read_use()
        gil.watch(process.look, process.write_interpreter_wait)
        process.save_now_and_then()
        task = (self.loader_index, self.epoch, batch_number, -1)
        self.step = process.current_step = LoopStep(task, marks())
        process.loop = self
        process.loop_thread = self.step.thread
        return batch

    def _get_batch(self, get: Callable[[], Any]) -> Any:
        """Return the next batch; one of the first ones again, in turn, once all of
        these that are wanted are there.

        Raises:
            StopIteration: the epoch is over.
        """
        if self.cached_batches is None:
            return get()
        if len(self.cached_batches) < self.num_cached:
            self.cached_batches.append(get())
            return self.cached_batches[-1]
        if self.count >= self.length:
            raise StopIteration
        return self.cached_batches[self.count % self.num_cached]

    def finish(self, end: Marks) -> list[bytes]:
        """End the present step, and return its packed rows, which are not yet written;
        [] without a step.
        """
        if self.step is None:
            return []
        pack_row = functools.partial(self.process.pack_row, self.step.task)
        times = measure_since(self.step.start, end)
        self.process.typical_step.follow(times[1])
        rows = [pack_row(_STEP, *times, 0, 0, -1, -1)]
        for operation, (start, duration, count, nbytes) in self.step.phases.items():
            rows.append(
                pack_row(operation, start, duration, -1, -1, count, nbytes, -1, -1)
            )
        self.step = None
        return rows

    def end_pass(self) -> None:
        """Note that the pass is over: what comes until the next is between epochs, if
        no loop around this one goes on.
        """
        process = self.process
        if self.outer_step is None:
            now = clock()
            process.pass_ends[self.loader_index] = now
            process.loop_phase = (threading.get_ident(), "between", now)

    def _pack_start(self, begin: Marks, batch: int) -> list[bytes]:
        """Return the packed rows of the sampler's time since the previous batch, and,
        with the first batch, of what came between the previous epoch and this.

        Args:
            begin: marks at the start of the wait for the batch.
            batch: its number.
        """
        process = self.process
        task = (self.loader_index, self.epoch, batch, -1)
        rows = []
        if process.order_ns >= _LEAST_ORDER_NS:
            times = (begin[0], process.order_ns, -1, -1, 1, 0, -1, -1)
            rows.append(process.pack_row(task, _ORDER, *times))
        process.order_ns = 0
        if self.between is not None:
            rows.append(
                process.pack_row(task, _BETWEEN, *self.between, -1, -1, 1, 0, -1, -1)
            )
            self.between = None
        return rows

    def _pack_wait(self, begin: Marks, batch: int) -> bytes:
        """Return the packed row of a wait, which ends now.

        The wait for the first batch includes iter(), in which workers are started: it
        begins earlier by the duration of iter(). Times that either does not know are
        -1.

        Args:
            begin: marks at the start of the wait.
            batch: that was waited for; -1 if none came.
        """
        start, *durations = measure_since(begin)
        if self.iter_times is not None:
            start -= self.iter_times[1]
            durations = [
                -1 if min(pair) < 0 else sum(pair)
                for pair in zip(durations, self.iter_times[1:])  # noqa: B905 - Python 3.9
            ]
            self.iter_times = None
        task = (self.loader_index, self.epoch, batch, -1)
        return self.process.pack_row(task, _WAIT, start, *durations, 0, 0, -1, -1)

    def _requested_batches(self, iterator: Any) -> Any:
        """Return the numbers of the batches that are requested of workers which hand
        them out in any order; None for workers that do in order.
        """
        in_order = getattr(iterator, "_in_order", True)
        return None if in_order else set(iterator._task_info)

    def _batch_number(self, iterator: Any, requested_before: Any) -> int:
        """Return the number of the batch that came.

        Numbers for which a worker found no samples are skipped, so the number is not
        always the count; it is where batches are played again.

        Args:
            iterator: of torch.
            requested_before: as `_requested_batches` returned it before the batch came.
        """
        if self.cached_batches is not None:
            return self.count
        if requested_before is not None:
            return max(requested_before - set(iterator._task_info), default=self.count)
        return int(getattr(iterator, "_rcvd_idx", self.count + 1)) - 1

    def __del__(self) -> None:
        """End the step of a loop that was left, and write it: nobody has its iterator
        any more. Nothing is written after `Process.end`, or in a forked process.
        """
        process = self.process
        is_watched = process.active and process.journal.pid == self.pid
        if self.step is not None and is_watched:
            process.journal.write(self.finish(marks()))
            self.end_pass()


class _CachedIterator:
    """Stand-in for an iterator of torch where all batches are played again."""

    def __init__(self, loop: LoaderLoop) -> None:
        self._recorded = loop

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._recorded.take(lambda: None, self)

    def __len__(self) -> int:
        return self._recorded.length


def watch_loops(process: Process) -> None:
    """Record every loop over a DataLoader that begins from now on; if the process has
    an ``only``, those over this loader.
    """
    process.patches.patch_on_import(
        "torch.utils.data.dataloader", functools.partial(_patch, process)
    )


def _patch(process: Process, module: Any) -> None:
    """Record the iterators of every DataLoader, and keep the pids of their workers as
    facts: by pid, the loader and its first epoch.

    If a loader's workers persist and its loop was left before the end, the last step
    of that loop gets no row.
    """
    process.save()
    _patch_sampler(process, module)
    iterate = module.DataLoader.__iter__
    next_batch = module._BaseDataLoaderIter.__next__
    reset = module._MultiProcessingDataLoaderIter._reset

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        """Return an iterator that is recorded, or one that plays batches again."""
        if process.only not in (None, self):
            return iterate(self)
        begin = marks()
        if self._iterator is not None and hasattr(self._iterator, "_recorded"):
            self._iterator._recorded.step = (
                None  # left before its end, nobody knows when
            )
        loop = LoaderLoop(process, self)
        if (
            loop.cached_batches is not None
            and len(loop.cached_batches) >= loop.num_cached
        ):
            return _CachedIterator(loop)
        process.current_step = None
        process.starting_loop = loop
        process.loop_phase = None
        try:
            iterator = iterate(self)
        finally:
            process.current_step = loop.outer_step
        iterator._recorded = loop
        workers = process.journal.facts.setdefault("workers", {})
        for worker in getattr(iterator, "_workers", ()):
            workers.setdefault(str(worker.pid), [loop.loader_index, loop.epoch])
        process.save()
        loop.iter_times = measure_since(begin)
        return iterator

    @functools.wraps(next_batch)
    def __next__(self: Any) -> Any:
        """Return the next batch, recorded if the iterator is."""
        loop = getattr(self, "_recorded", None)
        if loop is None or not process.active:
            return next_batch(self)
        return loop.take(functools.partial(next_batch, self), self)

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        """Begin an iterator anew; pinned batches are of the loop that starts."""
        self._worker_result_queue._recorded = process.starting_loop
        reset(self, *args, **kwargs)

    process.patches.replace(module.DataLoader, "__iter__", __iter__)
    process.patches.replace(module._BaseDataLoaderIter, "__next__", __next__)
    process.patches.replace(module._MultiProcessingDataLoaderIter, "_reset", _reset)


def _patch_sampler(process: Process, module: Any) -> None:
    """Add up the time that samplers take for indices of batches."""
    next_index = module._BaseDataLoaderIter._next_index

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        """Return the indices of the next batch, and add what that takes."""
        begin = clock()
        process.loop_phase = (threading.get_ident(), "order", begin)
        try:
            return next_index(self)
        finally:
            process.loop_phase = None
            process.order_ns += clock() - begin

    process.patches.replace(module._BaseDataLoaderIter, "_next_index", _next_index)


def _length(sized: Any) -> int | None:
    """Return the length of a loader or data set; None if it has none."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001 - it has none, and may say so as it likes
        return None


def _reference(dataset: Any) -> Any:
    """Return a weak reference to a data set; a function that returns the data set, if
    it has none.
    """
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def _index_of_loader(
    known_loaders: list[tuple[Any, dict[str, Any]]],
    dataset: Any,
    facts: dict[str, Any],
) -> int:
    """Return the index of the known loader with this data set, or with one that is gone,
    and with equal facts; their number if there is none.
    """
    candidates = [
        (index, reference())
        for index, (reference, known_facts) in enumerate(known_loaders)
        if known_facts == facts
    ]
    for target in (dataset, None):
        for index, known_dataset in candidates:
            if known_dataset is target:
                return index
    return len(known_loaders)


def _count_pass(process: Process, loader: Any) -> tuple[int, int]:
    """Count a pass through a loader, and return the index of the loader and the number
    of its earlier passes.

    A loader that is made anew over the same data set with equal settings is the same,
    and over another data set of its size, if nobody has the previous one any more.
    Its settings that are known are kept as facts; from `_MAX_LOADERS` on all count as
    the last.
    """
    facts = {name: getattr(loader, name, None) for name in _FACTS}
    facts["batch_size"] = facts["batch_size"] or getattr(
        loader.batch_sampler, "batch_size", None
    )
    facts["dataset"] = type(loader.dataset).__name__
    facts["sampler"] = type(loader.sampler).__name__
    facts["samples"] = _length(loader.dataset)
    facts["made_at"] = getattr(loader, MADE_AT, None)
    facts = {name: value for name, value in facts.items() if value is not None}
    known_loaders = process.known_loaders
    index = _index_of_loader(known_loaders, loader.dataset, facts)
    if index == len(known_loaders) < _MAX_LOADERS:
        known_loaders.append((_reference(loader.dataset), facts))
        process.loaders.append(facts)
        process.epochs.append(0)
    index = min(index, _MAX_LOADERS - 1)
    if index < len(known_loaders):
        known_loaders[index] = (_reference(loader.dataset), facts)
    process.epochs[index] += 1
    return index, process.epochs[index] - 1
