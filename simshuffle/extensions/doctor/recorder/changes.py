"""Trainings with another loader than the script asks for: what a remedy would do, tried."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .process import Process

_ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def watch_changes(process: Process) -> None:
    """Make the changes from now on, in all loaders of the process.

    Of ``process.changes``:

    - `loader`: arguments of DataLoader, in place of the script's;
    - `torch_threads`: of the process of a rank; `worker_threads`: of each worker;
    - `cache`: samples stay in the memory of the process that fetched them first;
    - `replay`: that many batches are kept and played again, for as long as an epoch is;
    - `sequential`: samples come in the order of their index;
    - `paths`: files below one folder are opened below another.

    What was changed is said in the facts `changed`, what could not be in `unchanged`.
    """
    wanted = {"loader", "torch_threads", "worker_threads", "cache", "replay", "sequential"}
    if wanted & process.changes.keys():
        process.patches.when_imported(
            "torch.utils.data.dataloader", functools.partial(_patch, process)
        )


def _patch(process: Process, module: Any) -> None:
    import inspect  # noqa: PLC0415 - it takes long to import, and torch has it

    begin = module.DataLoader.__init__
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:  # the original says what is wrong
            begin(self, *args, **kwargs)
            return
        _change(process, module, given.arguments, signature)
        begin(*given.args, **given.kwargs)

    process.patches.replace(module.DataLoader, "__init__", __init__)


def _change(process: Process, module: Any, given: dict[str, Any], signature: Any) -> None:
    changes = process.changes
    iterable = isinstance(given["dataset"], module.IterableDataset)
    defaults = {name: each.default for name, each in signature.parameters.items()}
    for name, value in changes.get("loader", {}).items():
        before = given.get(name, defaults.get(name))
        if name not in defaults:
            process.say("unchanged", f"{name}: this DataLoader does not know it")
        elif name == "pin_memory" and value and not _has_accelerator(module.torch):
            process.say("unchanged", f"{name}: there is no accelerator")
        else:
            given[name] = value
            process.say("changed", f"{name}: {before} to {value}")
    workers = given.get("num_workers", 0)
    for name in _ONLY_WITH_WORKERS:
        if not workers and given.pop(name, None) and name in changes.get("loader", {}):
            process.say("unchanged", f"{name}: there are no workers")
            _take_back(process, name)
    if changes.get("sequential"):
        _in_order_of_the_index(process, given, iterable)
    if changes.get("cache"):
        if iterable:
            process.say("unchanged", "cache: an IterableDataset has no samples to ask for again")
        else:
            process.say("changed", "cache: samples stay in memory until their process ends")
    if (threads := changes.get("torch_threads")) is not None:
        torch = sys.modules["torch"]
        process.say("changed", f"torch_threads: {torch.get_num_threads()} to {threads}")
        torch.set_num_threads(threads)
    if (threads := changes.get("worker_threads")) is not None:
        if workers:
            process.say("changed", f"worker_threads: 1 to {threads}")
        else:
            process.say("unchanged", "worker_threads: there are no workers")


def _has_accelerator(torch: Any) -> bool:
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def _take_back(process: Process, name: str) -> None:
    changed = process.journal.facts["changed"]
    changed[:] = [each for each in changed if not each.startswith(f"{name}: ")]


def _in_order_of_the_index(process: Process, given: dict[str, Any], iterable: bool) -> None:
    sampler = given.get("sampler")
    if iterable or given.get("batch_sampler") is not None:
        what = "an IterableDataset" if iterable else "a batch_sampler"
        process.say("unchanged", f"sequential: {what} has an order of its own")
    elif sampler is None:
        process.say("changed", f"sequential: shuffle {bool(given.get('shuffle'))} to False")
        given["shuffle"] = False
    elif hasattr(sampler, "shuffle"):
        process.say("changed", f"sequential: shuffle of {type(sampler).__name__} to False")
        sampler.shuffle = False
    elif type(sampler).__name__ in {"RandomSampler", "SequentialSampler"}:
        process.say("changed", f"sequential: {type(sampler).__name__} to SequentialSampler")
        del given["sampler"]
    else:
        process.say("unchanged", f"sequential: {type(sampler).__name__} has an order of its own")
