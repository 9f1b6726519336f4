"""Record the fetches of batches, in workers or in the process of the rank, and their
handover.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from typing import Any

from . import gil
from .meter import OWN, Meter, Task, clock, marks, measure_since, nbytes
from .process import Process
from .rows import CODES

SAMPLE_ROWS = 20_000
"""Rows of samples that a process writes; after these, only the slowest of each batch
has one.
"""
_PARTS_OF_SOME = (
    "Only some batches have times of the parts of a fetch:"
    " timing all would cost more than 1 %."
)
_COLLATE = CODES["collate"]
_SEND = CODES["send"]
_PIN = CODES["pin"]


class _TimedDataset:
    """Stand-in for a data set, or its iterator, that notes when each sample is there.

    With ``cache``, a data set keeps its samples and serves repeats from memory: the
    same objects again, by index. Other attributes are those of the data set.
    """

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
            meter.end_samples(index, 1)
        return sample

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        sample = next(self._dataset)
        meter = OWN.fetch
        if meter is not None:
            meter.end_samples(None, 1)
        return sample

    def _get_samples(self, indices: Any) -> Any:
        """Return all samples of a batch at once, and note that they are there, as one
        entry without an index.
        """
        if self._cache is None:
            samples = self._dataset.__getitems__(indices)
        else:
            missing = [index for index in indices if index not in self._cache]
            if missing:
                self._cache.update(zip(missing, self._dataset.__getitems__(missing)))  # noqa: B905
            samples = [self._cache[index] for index in indices]
        meter = OWN.fetch
        if meter is not None:
            meter.end_samples(None, len(indices))
        return samples

    def __getattr__(self, name: str) -> Any:
        if name != "__getitems__":
            return getattr(self._dataset, name)
        # a Subset hands each index on, so that its samples are timed one by one
        inner = self._dataset
        while type(inner).__name__ == "Subset" and type(inner).__module__.startswith(
            "torch."
        ):
            inner = inner.dataset
        if callable(getattr(inner, "__getitems__", None)):
            return self._get_samples
        raise AttributeError(name)


class _TimedCollate:
    """Stand-in for the function that collates samples, which notes when it begins."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, samples: Any) -> Any:
        meter = OWN.fetch
        if meter is not None:
            meter.begin_collate()
        return self._function(samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _TaskQueue:
    """Stand-in for the queue of a worker's tasks, which notes the task that the worker
    has, and counts epochs.
    """

    def __init__(self, queue: Any, process: Process, worker: int) -> None:
        self._queue = queue
        self._process = process
        self._worker = worker
        self._epoch = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next task, and note it as the process's own; save the record
        before the next epoch.
        """
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, tuple):
            self._process.task = (-1, self._epoch, task[0], self._worker)
        elif task is not None:  # the worker goes on with the next epoch
            self._epoch += 1
            self._process.save()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _ResultQueue:
    """Stand-in for the queue of a worker's finished batches, which times their sends.

    It replaces ``_send_bytes`` of the queue as it is made.
    """

    def __init__(self, queue: Any, process: Process) -> None:
        self._queue = queue
        self._process = process
        self._unsent: deque[Any] = deque()
        self._send_bytes = queue._send_bytes
        queue._send_bytes = self._time_send

    def put(self, result: Any, *args: Any, **kwargs: Any) -> None:
        """Put a finished batch; its task ends, and its send is timed from now. A result
        without a number, as a resumed worker puts it, gets no row.
        """
        task = self._process.task if isinstance(result[0], int) else None
        self._process.task = None
        self._unsent.append((task, clock(), nbytes(result[1])))
        self._queue.put(result, *args, **kwargs)

    def _time_send(self, *args: Any, **kwargs: Any) -> None:
        """Send a batch, and write its row: ns since its `put`, with the wait for
        earlier sends, and bytes of its tensors.
        """
        self._send_bytes(*args, **kwargs)
        if self._unsent:
            task, start, size = self._unsent.popleft()
            if task is not None:
                process = self._process
                duration = clock() - start
                row = process.pack_row(
                    task, _SEND, start, duration, -1, -1, 1, size, -1, -1
                )
                process.journal.write([row])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def watch_fetching(process: Process) -> None:
    """Record every fetch, send and pinning of a batch, by patching modules of torch."""
    data = "torch.utils.data._utils"
    patches = process.patches
    patches.patch_on_import(
        f"{data}.fetch", functools.partial(_patch_fetchers, process)
    )
    patches.patch_on_import(
        f"{data}.worker", functools.partial(_patch_workers, process)
    )
    patches.patch_on_import(
        f"{data}.pin_memory", functools.partial(_patch_pinning, process)
    )


def _patch_fetchers(process: Process, module: Any) -> None:
    """Time the fetches of both kinds of fetchers of torch, and their parts as the
    budget allows.

    A fetch is not recorded without a task, inside another fetch, after `Process.end`,
    and where no sample came.
    """

    def wrap_parts(fetcher: Any) -> None:
        """Put stand-ins in place of a fetcher's data set and collating, once."""
        fetcher._recorded = True
        fetcher.collate_fn = _TimedCollate(fetcher.collate_fn)
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = _TimedDataset(fetcher.dataset_iter, None)
        else:
            caches = process.caches
            cache = (
                None if caches is None else caches.setdefault(id(fetcher.dataset), {})
            )
            fetcher.dataset = _TimedDataset(fetcher.dataset, cache)

    def time_fetch(fetch: Any) -> Any:
        """Return a method ``fetch`` that records its batches."""

        @functools.wraps(fetch)
        def fetch_batch(
            self: Any, index: Any
        ) -> Any:  # `places.FETCH_FUNCTION` has its name
            """Return a batch, and record its fetch if it is one to be recorded."""
            task = process.task
            if task is None or OWN.fetch is not None or not process.active:
                return fetch(self, index)
            if not hasattr(self, "_recorded"):
                wrap_parts(self)
            times_parts = process.budget.allows()
            meter = OWN.fetch = Meter()
            if times_parts:
                OWN.meter = meter
            process.fetching = (threading.get_ident(), meter if times_parts else None)
            process.call_log.samples = process.fetched_samples
            process.call_log.epoch = task[1]
            if task[3] >= 0:  # in a worker
                gil.watch(process.look)
            batch = None
            try:
                batch = fetch(self, index)
                return batch
            finally:
                OWN.meter = OWN.fetch = process.fetching = None
                if meter.samples:
                    _write_fetch(process, task, meter, batch, times_parts)

        return fetch_batch

    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        process.patches.replace(kind, "fetch", time_fetch(kind.fetch))


def _write_fetch(
    process: Process, task: Task, meter: Meter, batch: Any, times_parts: bool
) -> None:
    """Write the rows of a fetch, spend what timing cost, and save now and then.

    Only the slowest sample has a row if parts are not timed, and after `SAMPLE_ROWS`
    samples of the process; both are said in notes.

    Args:
        process: that fetched.
        task: loader, epoch, batch and worker.
        meter: of the fetch, which has at least one sample.
        batch: its result; None if it failed.
        times_parts: whether the parts of the fetch were timed.
    """
    writes_samples = times_parts and process.samples < SAMPLE_ROWS
    rows = meter.rows(samples=writes_samples, parts=times_parts)
    if meter.current_operation == _COLLATE:
        # the bytes of the batch stand in the row of collating
        index = [row[0] for row in rows].index(_COLLATE)
        rows[index] = (*rows[index][:6], nbytes(batch), *rows[index][7:])
    process.journal.write(process.pack_rows(task, rows))
    process.fetched_samples += len(meter.samples)
    if times_parts:
        process.budget.spend(sum(meter.counts) + meter.noted_calls)
    else:
        process.say("notes", _PARTS_OF_SOME)
    if process.samples < SAMPLE_ROWS <= process.samples + len(meter.samples):
        note = f"After {SAMPLE_ROWS} samples of a worker, only a batch's slowest sample has a row."
        process.say("notes", note)
    process.samples += len(meter.samples)
    process.save_now_and_then()


def _patch_workers(process: Process, module: Any) -> None:
    """Have workers note their tasks, time their sends, save their facts at the start
    and end, and use the changed number of threads if one is set.
    """
    import inspect  # noqa: PLC0415 - it takes long to import, and torch has it

    loop = module._worker_loop
    signature = inspect.signature(loop)

    @functools.wraps(loop)
    def _worker_loop(*args: Any, **kwargs: Any) -> None:
        """Run a worker with stand-ins for its queues."""
        call = signature.bind(*args, **kwargs)
        arguments = call.arguments
        worker = arguments["worker_id"]
        arguments["index_queue"] = _TaskQueue(arguments["index_queue"], process, worker)
        if hasattr(arguments["data_queue"], "_send_bytes"):
            arguments["data_queue"] = _ResultQueue(arguments["data_queue"], process)
        threads = process.changes.get("worker_threads")
        if threads:
            init = arguments["init_fn"]
            arguments["init_fn"] = functools.partial(_init_worker, init, threads)
        process.save()  # the worker may be killed at its end
        try:
            loop(*call.args, **call.kwargs)
        finally:
            process.save()

    process.patches.replace(module, "_worker_loop", _worker_loop)


def _init_worker(init: Any, threads: int, worker: int) -> None:
    """Run the script's function for a new worker, if it has one, and set the threads of
    torch.
    """
    if init is not None:
        init(worker)
    sys.modules["torch"].set_num_threads(threads)


class _BatchQueue:
    """Stand-in for the queue of batches to pin, which notes the task of the batch that
    the thread has.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next result, and note its task as that of the thread; () for a
        result that is no batch, or of a loop that is not recorded.
        """
        result = self._queue.get(*args, **kwargs)
        loop = getattr(self._queue, "_recorded", None)
        OWN.pinning = ()
        if loop is not None and isinstance(result[0], int):
            OWN.pinning = (loop.loader_index, loop.epoch, result[0], -1)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _patch_pinning(process: Process, module: Any) -> None:
    """Time the pinning of batches, in one row each with all parts; without a task, or
    after `Process.end`, batches are pinned untimed.
    """
    loop = module._pin_memory_loop
    pin = module.pin_memory

    @functools.wraps(loop)
    def _pin_memory_loop(in_queue: Any, *args: Any, **kwargs: Any) -> None:
        """Pin batches from a stand-in for their queue."""
        loop(_BatchQueue(in_queue), *args, **kwargs)

    @functools.wraps(pin)
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a batch in pinned memory, and write its row."""
        pinned_task = OWN.pinning
        task = process.task if pinned_task is None else pinned_task
        if not task or not process.active:
            return pin(data, *args, **kwargs)
        OWN.pinning = ()  # the function calls itself for parts
        begin = marks()
        try:
            return pin(data, *args, **kwargs)
        finally:
            OWN.pinning = pinned_task
            times = measure_since(begin)
            row = process.pack_row(task, _PIN, *times, 1, nbytes(data), -1, -1)
            process.journal.write([row])

    process.patches.replace(module, "_pin_memory_loop", _pin_memory_loop)
    process.patches.replace(module, "pin_memory", pin_memory)
