"""What the process of a rank does with a batch: copy, forward, backward, optimizer, allreduce.

Of what goes on inside another only the outermost is seen, on the thread that took the batch. On an
accelerator it is the time of that thread, which mostly only asks for the work.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .loops import LoopStep
from .meter import Task, clock, nbytes
from .process import Process
from .rows import CODES

_COPY, _FORWARD, _BACKWARD = CODES["copy"], CODES["forward"], CODES["backward"]
_OPTIMIZER, _ALLREDUCE = CODES["optimizer"], CODES["allreduce"]
_COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "broadcast", "barrier", "all_to_all"),
    *("all_to_all_single", "broadcast_object_list", "gather", "scatter", "monitored_barrier"),
)


_HOST_ONLY = "On an accelerator, a phase is the time of the thread that asks for it."
_INSIDE_BACKWARD = (
    "The allreduce of DistributedDataParallel is a part of backward: what computing does not hide, "
    "in the first batches and every tenth."
)
_OFTEN = 12
"""Backward passes after which torch is always asked what the allreduce took; then it measures, and
is asked, at every tenth. That takes 50 us."""


class StepTimer:
    """Timing what a process does with its batches."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.compiling: Callable[[], bool] = lambda: False
        self.optimizing: tuple[LoopStep, int] | None = None
        self.models: dict[int, int] = {}  # parameters, by id
        self.ddp: weakref.ref[Any] | None = None
        self.passes = 0  # forward, of that
        self.measured = 0  # ns of the clock of the wall at which the last that is known began
        self.backward: Task | None = None  # task of the last

    def begin(self) -> tuple[LoopStep, int] | None:
        """Begin an operation; None if it is not timed."""
        step: LoopStep | None = self.process.taking
        if step is None or step.thread != threading.get_ident():
            return None
        self.process.taking = None
        return step, clock()

    def end(self, begun: tuple[LoopStep, int], operation: int, size: int) -> None:
        """End it."""
        step, start = begun
        step.add(operation, start, clock() - start, size)
        self.process.taking = step

    def tell(self, after: Callable[[LoopStep, Any], None], step: LoopStep, first: Any) -> None:
        """Call what wants to know, which must not end the training."""
        try:
            after(step, first)
        except Exception as error:  # noqa: BLE001
            self.process.say("notes", f"What is done with batches is not all known: {error!r}")

    def replace(
        self,
        owner: Any,
        name: str,
        operation: int,
        size: Callable[..., int],
        after: Callable[[LoopStep, Any], None] | None = None,
    ) -> None:
        """Time a function where it stands.

        Args:
            size: bytes of an operation, from what it was given.
            after: called with the step and the first of what it was given, once it is over.
        """
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            # first of all: what is compiled must not depend on what we have in hand
            if self.compiling() or (begun := self.begin()) is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(begun, operation, size(*args, **kwargs))
                if after is not None:
                    self.tell(after, begun[0], args[0] if args else None)

        self.process.patches.replace(owner, name, timed)


def watch_steps(process: Process) -> None:
    """Time them all from now on."""
    watch = StepTimer(process)
    for module, patch in {
        "torch.compiler": _compiler,
        "torch.nn.modules.module": _modules,
        "torch._tensor": _tensors,
        "torch.autograd": _autograd,
        "torch.optim.optimizer": _optimizers,
        "torch.distributed.distributed_c10d": _collectives,
        "torch.nn.parallel.distributed": _data_parallel,
    }.items():
        process.patches.when_imported(module, functools.partial(patch, watch))


def _nothing(*_: Any, **__: Any) -> int:
    return 0


def _of_first(first: Any = None, *_: Any, **__: Any) -> int:
    return nbytes(first)


def _compiler(watch: StepTimer, module: Any) -> None:
    watch.compiling = module.is_compiling


def _modules(watch: StepTimer, module: Any) -> None:
    def after(_: LoopStep, model: Any) -> None:
        if id(model) not in watch.models:
            _know_model(watch, model)
        if watch.ddp is not None and watch.ddp() is model:
            _ask_ddp(watch, model)

    watch.replace(module.Module, "__call__", _FORWARD, _nothing, after)


def _know_model(watch: StepTimer, model: Any) -> None:
    """The model is the largest of the modules that are called."""
    parameters = list(model.parameters())
    count = sum(each.numel() for each in parameters)
    if count > max(watch.models.values(), default=0):
        gradients = sum(each.nbytes for each in parameters if each.requires_grad)
        facts = watch.process.journal.facts
        facts["model"] = {"parameters": count, "gradient_nbytes": gradients}
        device = parameters[0].device
        facts["device"] = str(device)
        if device.type == "cuda":
            facts["device"] = sys.modules["torch"].cuda.get_device_name(device)
        if device.type != "cpu":
            watch.process.say("notes", _HOST_ONLY)
    watch.models[id(model)] = count


def _tensors(watch: StepTimer, module: Any) -> None:
    def copying(plain: Any) -> Any:
        @functools.wraps(plain)
        def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
            if watch.compiling() or (begun := watch.begin()) is None:
                return plain(self, *args, **kwargs)
            step, start = begun
            try:
                given = plain(self, *args, **kwargs)
            finally:
                watch.process.taking = step
            # another type alone is no copy of the batch
            if given is not self and (given.device != self.device or given.dtype == self.dtype):
                step.add(_COPY, start, clock() - start, nbytes(self))
            return given

        return copied

    for name in ("to", "cuda"):
        new = copying(getattr(module.Tensor, name))
        watch.process.patches.replace(module.Tensor, name, new)


def _autograd(watch: StepTimer, module: Any) -> None:
    def after(step: LoopStep, _: Any) -> None:
        watch.backward = step.task

    for name in ("backward", "grad"):
        watch.replace(module, name, _BACKWARD, _nothing, after)


def _optimizers(watch: StepTimer, module: Any) -> None:
    def before(*_: Any) -> None:
        watch.optimizing = None if watch.compiling() else watch.begin()

    def after(*_: Any) -> None:
        if watch.optimizing is not None:
            watch.end(watch.optimizing, _OPTIMIZER, 0)
            watch.optimizing = None

    undo = watch.process.patches.undo
    undo.append(module.register_optimizer_step_pre_hook(before).remove)
    undo.append(module.register_optimizer_step_post_hook(after).remove)


def _collectives(watch: StepTimer, module: Any) -> None:
    for name in _COLLECTIVES:
        watch.replace(module, name, _ALLREDUCE, _of_first)
    watch.replace(module.Work, "wait", _ALLREDUCE, _nothing)


def _data_parallel(watch: StepTimer, module: Any) -> None:
    begin = module.DistributedDataParallel.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._set_ddp_runtime_logging_sample_rate(10)
        watch.ddp, watch.passes = weakref.ref(self), 0

    watch.process.patches.replace(module.DistributedDataParallel, "__init__", __init__)


def _ask_ddp(watch: StepTimer, model: Any) -> None:
    """What torch measured of the last backward pass: the part of the allreduce that computing did
    not hide, and once the buckets."""
    watch.passes += 1
    if watch.backward is None or (watch.passes > _OFTEN and watch.passes % 10 > 1):
        return
    data = model._get_ddp_logging_data()
    facts = watch.process.journal.facts
    if data.get("has_rebuilt_buckets") and "buckets" not in facts.get("model", ()):
        sizes = data["rebuilt_bucket_sizes"].split(", ")
        facts.setdefault("model", {})["buckets"] = [int(size) for size in sizes]
        watch.process.say("notes", _INSIDE_BACKWARD)
    began = data.get("backward_compute_time_start", 0)
    if began > watch.measured:
        watch.measured = began
        end = data["backward_comm_time_end"]
        exposed = max(end - data["backward_compute_time_end"], 0)
        start = end - exposed - time.time_ns() + clock()
        size = sum(facts.get("model", {}).get("buckets", ()))
        row = watch.process.row(watch.backward, _ALLREDUCE, start, exposed, -1, -1, 1, size, -1, -1)
        watch.process.journal.write([row])
