"""Fetching batches, in workers or in the process of the rank, and handing them over."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from typing import Any

from . import gil
from .meter import OWN, Meter, Task, between, clock, marks, nbytes
from .process import Process
from .rows import CODES

SAMPLE_ROWS = 20_000
"""Rows of samples that a process writes; after them, only the slowest of each batch has one."""
_NOT_ALL = "Where timing the parts of a fetch costs more than 1 %, only some batches have them."
_COLLATE, _SEND, _PIN = CODES["collate"], CODES["send"], CODES["pin"]


class _Samples:
    """In place of a data set, or of its iterator: says when each sample is there."""

    def __init__(self, dataset: Any, cache: dict[Any, Any] | None) -> None:
        self._dataset = dataset
        self._cache = cache

    def __getitem__(self, index: Any) -> Any:
        cache = self._cache
        if cache is None:
            sample = self._dataset[index]
        elif index in cache:
            sample = cache[index]
        else:
            sample = cache[index] = self._dataset[index]
        meter = OWN.fetch
        if meter is not None:
            meter.sample(index, 1)
        return sample

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        sample = next(self._dataset)
        meter = OWN.fetch
        if meter is not None:
            meter.sample(None, 1)
        return sample

    def _several(self, indices: Any) -> Any:
        """All samples of a batch at once."""
        if self._cache is None:
            samples = self._dataset.__getitems__(indices)
        else:
            missing = [index for index in indices if index not in self._cache]
            if missing:
                self._cache.update(zip(missing, self._dataset.__getitems__(missing)))  # noqa: B905
            samples = [self._cache[index] for index in indices]
        meter = OWN.fetch
        if meter is not None:
            meter.sample(None, len(indices))
        return samples

    def __getattr__(self, name: str) -> Any:
        if name != "__getitems__":
            return getattr(self._dataset, name)
        # a Subset hands each index on, so that its samples can be told apart
        inner = self._dataset
        while type(inner).__name__ == "Subset" and type(inner).__module__.startswith("torch."):
            inner = inner.dataset
        if callable(getattr(inner, "__getitems__", None)):
            return self._several
        raise AttributeError(name)


class _Collate:
    """In place of what puts samples together."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, samples: Any) -> Any:
        meter = OWN.fetch
        if meter is not None:
            meter.collate()
        return self._function(samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _Tasks:
    """In place of the queue of a worker's tasks: knows which is in hand."""

    def __init__(self, queue: Any, process: Process, worker: int) -> None:
        self._queue = queue
        self._process = process
        self._worker = worker
        self._epoch = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, tuple):
            self._process.task = (-1, self._epoch, task[0], self._worker)
        elif task is not None:  # it goes on with the next epoch
            self._epoch += 1
            self._process.save()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Results:
    """In place of the queue that a worker puts batches in, which a thread of it sends."""

    def __init__(self, queue: Any, process: Process) -> None:
        self._queue = queue
        self._process = process
        self._waiting: deque[Any] = deque()
        self._send = queue._send_bytes
        queue._send_bytes = self._sent

    def put(self, result: Any, *args: Any, **kwargs: Any) -> None:
        task = self._process.task if isinstance(result[0], int) else None
        self._process.task = None
        self._waiting.append((task, clock(), nbytes(result[1])))
        self._queue.put(result, *args, **kwargs)

    def _sent(self, *args: Any, **kwargs: Any) -> None:
        self._send(*args, **kwargs)
        if self._waiting:
            task, start, size = self._waiting.popleft()
            if task is not None:
                took = (clock() - start, -1, -1, 1, size, -1, -1)
                self._process.journal.write([self._process.row(task, _SEND, start, *took)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def watch_fetching(process: Process) -> None:
    """Record every fetch from now on."""
    data = "torch.utils.data._utils"
    patches = process.patches
    patches.when_imported(f"{data}.fetch", functools.partial(_fetchers, process))
    patches.when_imported(f"{data}.worker", functools.partial(_workers, process))
    patches.when_imported(f"{data}.pin_memory", functools.partial(_pinning, process))


def _fetchers(process: Process, module: Any) -> None:
    def watched(fetcher: Any) -> None:
        fetcher._recorded = True
        fetcher.collate_fn = _Collate(fetcher.collate_fn)
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = _Samples(fetcher.dataset_iter, None)
        else:
            caches = process.caches
            kept = None if caches is None else caches.setdefault(id(fetcher.dataset), {})
            fetcher.dataset = _Samples(fetcher.dataset, kept)

    def watching(fetch: Any) -> Any:
        @functools.wraps(fetch)
        def fetched(self: Any, index: Any) -> Any:
            task = process.task
            if task is None or OWN.fetch is not None or not process.active:
                return fetch(self, index)
            if not hasattr(self, "_recorded"):
                watched(self)
            budget = process.budget
            parts = budget.allows()
            meter = OWN.fetch = Meter()
            if parts:
                OWN.meter = meter
            process.fetching = (threading.get_ident(), meter if parts else None)
            if task[3] >= 0:  # in a worker
                gil.watch(process.look)
            batch = None
            try:
                batch = fetch(self, index)
                return batch
            finally:
                OWN.meter = OWN.fetch = process.fetching = None
                if meter.samples:
                    _write(process, task, meter, batch, parts)

        return fetched

    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        process.patches.replace(kind, "fetch", watching(kind.fetch))


def _write(process: Process, task: Task, meter: Meter, batch: Any, parts: bool) -> None:
    rows = meter.rows(samples=parts and process.samples < SAMPLE_ROWS, parts=parts)
    collate = [row[0] for row in rows].index(_COLLATE) if meter.now == _COLLATE else 0
    if collate:
        rows[collate] = (*rows[collate][:6], nbytes(batch), *rows[collate][7:])
    process.journal.write(process.rows(task, rows))
    if parts:
        process.budget.spend(sum(meter.counts))
    else:
        process.say("notes", _NOT_ALL)
    if process.samples < SAMPLE_ROWS <= process.samples + len(meter.samples):
        said = f"After {SAMPLE_ROWS} samples of a worker, only the slowest of a batch has a row."
        process.say("notes", said)
    process.samples += len(meter.samples)
    process.save_now_and_then()


def _workers(process: Process, module: Any) -> None:
    import inspect  # noqa: PLC0415 - it takes long to import, and torch has it

    loop = module._worker_loop
    signature = inspect.signature(loop)

    @functools.wraps(loop)
    def _worker_loop(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        worker = given.arguments["worker_id"]
        given.arguments["index_queue"] = _Tasks(given.arguments["index_queue"], process, worker)
        if hasattr(given.arguments["data_queue"], "_send_bytes"):
            given.arguments["data_queue"] = _Results(given.arguments["data_queue"], process)
        init, threads = given.arguments["init_fn"], process.changes.get("worker_threads")
        if threads:
            given.arguments["init_fn"] = functools.partial(_with_threads, init, threads)
        process.save()  # it may be killed at its end
        try:
            loop(*given.args, **given.kwargs)
        finally:
            process.save()

    process.patches.replace(module, "_worker_loop", _worker_loop)


def _with_threads(init: Any, threads: int, worker: int) -> None:
    if init is not None:
        init(worker)
    sys.modules["torch"].set_num_threads(threads)


class _Batches:
    """In place of the queue of batches to pin: knows which is in hand."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def get(self, *args: Any, **kwargs: Any) -> Any:
        result = self._queue.get(*args, **kwargs)
        loop = getattr(self._queue, "_recorded", None)
        OWN.pinning = ()
        if loop is not None and isinstance(result[0], int):
            OWN.pinning = (loop.number, loop.epoch, result[0], -1)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _pinning(process: Process, module: Any) -> None:
    loop, pin = module._pin_memory_loop, module.pin_memory

    @functools.wraps(loop)
    def _pin_memory_loop(in_queue: Any, *args: Any, **kwargs: Any) -> None:
        loop(_Batches(in_queue), *args, **kwargs)

    @functools.wraps(pin)
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        task, own = process.task, OWN.pinning
        if own is not None:
            task = own
        if not task or not process.active:
            return pin(data, *args, **kwargs)
        OWN.pinning = ()  # it calls itself for parts
        begin = marks()
        try:
            return pin(data, *args, **kwargs)
        finally:
            OWN.pinning = own
            took = (*between(begin), 1, nbytes(data), -1, -1)
            process.journal.write([process.row(task, _PIN, *took)])

    process.patches.replace(module, "_pin_memory_loop", _pin_memory_loop)
    process.patches.replace(module, "pin_memory", pin_memory)
