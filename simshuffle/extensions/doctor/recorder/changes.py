"""Change the loaders of a training, to try what a remedy would do."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .process import Process

# arguments of DataLoader that it refuses without workers
_ONLY_WITH_WORKERS = (
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "timeout",
)


def watch_changes(process: Process) -> None:
    """Make the changes from now on, in all loaders that the process makes.

    Of ``process.changes``:

    - `loader`: arguments of DataLoader, in place of those of the script;
    - `torch_threads`: of the process of a rank; `worker_threads`: of each worker;
    - `cache`: samples stay in the memory of the process that fetched them first;
    - `replay`: that many batches are kept and played again, for as long as an epoch is;
    - `sequential`: samples come in the order of their index;
    - `paths`: files below one folder are opened below another.

    `loader`, `torch_threads` and `sequential` are made here. The modules `fetching`,
    `loops` and `files` of the recorder make the others. The facts `changed` and
    `unchanged` get a sentence on each change that was made, or was not.
    """
    loader_changes = {
        "loader",
        "torch_threads",
        "worker_threads",
        "cache",
        "replay",
        "sequential",
    }
    if loader_changes & process.changes.keys():
        process.patches.patch_on_import(
            "torch.utils.data.dataloader", functools.partial(_patch, process)
        )


def _patch(process: Process, module: Any) -> None:
    """Change the arguments of every new DataLoader, before its own __init__."""
    import inspect  # noqa: PLC0415 - it takes long to import, and torch has it

    init = module.DataLoader.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        """Make a loader with changed arguments."""
        try:
            call = signature.bind(self, *args, **kwargs)
        except TypeError:  # the original says what is wrong
            init(self, *args, **kwargs)
            return
        _change_arguments(process, module, call.arguments, signature)
        init(*call.args, **call.kwargs)

    process.patches.replace(module.DataLoader, "__init__", __init__)


def _change_arguments(
    process: Process, module: Any, arguments: dict[str, Any], signature: Any
) -> None:
    """Change the arguments of a DataLoader in place, and what else is to change with
    it: the threads of torch are set at once; each change is said.

    Left as they are: arguments that this DataLoader does not have, and pin_memory
    without an accelerator. Without workers, arguments that need these are dropped,
    those of the script, too.

    Args:
        process: with the changes.
        module: of the DataLoader.
        arguments: of the script by name, changed in place.
        signature: of DataLoader.
    """
    changes = process.changes
    is_iterable = isinstance(arguments["dataset"], module.IterableDataset)
    defaults = {
        name: parameter.default for name, parameter in signature.parameters.items()
    }
    for name, value in changes.get("loader", {}).items():
        previous = arguments.get(name, defaults.get(name))
        if name not in defaults:
            process.say("unchanged", f"{name}: this DataLoader has no such argument")
        elif name == "pin_memory" and value and not _has_accelerator(module.torch):
            process.say("unchanged", f"{name}: there is no accelerator")
        else:
            arguments[name] = value
            process.say("changed", f"{name}: {previous} to {value}")
    workers = arguments.get("num_workers", 0)
    for name in _ONLY_WITH_WORKERS:
        if (
            not workers
            and arguments.pop(name, None)
            and name in changes.get("loader", {})
        ):
            process.say("unchanged", f"{name}: there are no workers")
            _retract_change(process, name)
    if changes.get("sequential"):
        _order_by_index(process, arguments, is_iterable)
    if changes.get("cache"):
        if is_iterable:
            process.say(
                "unchanged", "cache: an IterableDataset has no samples to ask for again"
            )
        else:
            process.say(
                "changed", "cache: samples stay in memory until their process ends"
            )
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
    """Return whether torch has an accelerator."""
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def _retract_change(process: Process, name: str) -> None:
    """Remove all sentences that say that an argument was changed, of any loader."""
    sentences = process.journal.facts["changed"]
    sentences[:] = [
        sentence for sentence in sentences if not sentence.startswith(f"{name}: ")
    ]


def _order_by_index(
    process: Process, arguments: dict[str, Any], is_iterable: bool
) -> None:
    """Change the arguments of a DataLoader in place, so that samples come in the order
    of their index; say that they are unchanged if they have an order of their own.

    That is so of an IterableDataset, of a batch_sampler, and of samplers that are
    neither torch's nor have an attribute ``shuffle``, which is set to False.
    """
    sampler = arguments.get("sampler")
    if is_iterable or arguments.get("batch_sampler") is not None:
        orderer = "an IterableDataset" if is_iterable else "a batch_sampler"
        process.say("unchanged", f"sequential: {orderer} has an order of its own")
    elif sampler is None:
        process.say(
            "changed", f"sequential: shuffle {bool(arguments.get('shuffle'))} to False"
        )
        arguments["shuffle"] = False
    elif hasattr(sampler, "shuffle"):
        process.say(
            "changed", f"sequential: shuffle of {type(sampler).__name__} to False"
        )
        sampler.shuffle = False
    elif type(sampler).__name__ in {"RandomSampler", "SequentialSampler"}:
        process.say(
            "changed", f"sequential: {type(sampler).__name__} to SequentialSampler"
        )
        del arguments["sampler"]
    else:
        process.say(
            "unchanged", f"sequential: {type(sampler).__name__} has an order of its own"
        )
