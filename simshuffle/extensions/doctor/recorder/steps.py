"""Time the operations of a step in the process of a rank: copy, forward, backward,
optimizer, allreduce.

Of nested operations only the outermost is timed, on the thread that took the batch. On
an accelerator that is the time of that thread, which mostly only starts the work.
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

_COPY = CODES["copy"]
_FORWARD = CODES["forward"]
_BACKWARD = CODES["backward"]
_OPTIMIZER = CODES["optimizer"]
_ALLREDUCE = CODES["allreduce"]
_COLLECTIVES = (
    *(
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "reduce",
    ),
    *("reduce_scatter", "reduce_scatter_tensor", "broadcast", "barrier", "all_to_all"),
    *(
        "all_to_all_single",
        "broadcast_object_list",
        "gather",
        "scatter",
        "monitored_barrier",
    ),
)


_HOST_ONLY = (
    "On an accelerator, the time of a phase is that of the thread that launches it."
)
_INSIDE_BACKWARD = (
    "The allreduce of DistributedDataParallel is a part of backward: its rows have the time that "
    "computing does not hide, in the first batches and every tenth."
)
_FIRST_PASSES = 12
"""Passes in which torch is always asked what the allreduce took; then torch measures,
and is asked, at every tenth. A request takes 50 us.
"""


class StepTimer:
    """Times the operations of a process on its batches.

    Attributes:
        process: of the operations.
        compiling: whether torch compiles now; then nothing is timed.
        optimizer: id of the optimizer that is timed; of nested ones the outermost.
        optimizer_start: step and start of that optimizer, as of `begin`; None if none
            is timed. They stay if its step fails, until an optimizer is timed again.
        models: by the id of a module that was called, its number of parameters.
        ddp: the last DistributedDataParallel that was made.
        ddp_passes: forward passes of `ddp`.
        last_backward_ns: clock of the wall when the last known backward pass began.
        backward_task: task of the last backward pass.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.compiling: Callable[[], bool] = lambda: False
        self.optimizer = 0
        self.optimizer_start: tuple[LoopStep, int] | None = None  # as of `begin`
        self.models: dict[int, int] = {}  # number of parameters of each module, by id
        self.ddp: weakref.ref[Any] | None = None  # the last DistributedDataParallel
        self.ddp_passes = 0  # forward passes of that
        self.last_backward_ns = (
            0  # clock of the wall when the last known backward pass began
        )
        self.backward_task: Task | None = None  # task of the last backward pass

    def begin(self) -> tuple[LoopStep, int] | None:
        """Begin an operation, and return its step and start (ns); None if it is not
        timed: outside a step, inside another operation, or on another thread.

        Until `end`, no other operation of the process is timed.
        """
        step: LoopStep | None = self.process.current_step
        if step is None or step.thread != threading.get_ident():
            return None
        self.process.current_step = None
        return step, clock()

    def end(
        self, step_and_start: tuple[LoopStep, int], operation: int, size: int
    ) -> None:
        """End an operation: add it to its step, in which further ones are timed again.

        Args:
            step_and_start: as `begin` returned them.
            operation: its code.
            size: bytes that it copied or summed; 0 if not known.
        """
        step, start = step_and_start
        step.add(operation, start, clock() - start, size)
        self.process.current_step = step

    def call_after(
        self, callback: Callable[[LoopStep, Any], None], step: LoopStep, argument: Any
    ) -> None:
        """Call a function after an operation; its failure becomes a note, and must not
        end the training.

        Args:
            callback: the function.
            step: of the operation.
            argument: the first one of the operation; None if it had none.
        """
        try:
            callback(step, argument)
        except Exception as error:  # noqa: BLE001
            self.process.say("notes", f"Not all work on batches is recorded: {error!r}")

    def replace(
        self,
        owner: Any,
        name: str,
        operation: int,
        size: Callable[..., int],
        callback: Callable[[LoopStep, Any], None] | None = None,
    ) -> None:
        """Replace a function by one that times it.

        Args:
            owner: module or class of the function.
            name: of the function; where the owner has none of it, nothing is done.
            operation: its code.
            size: gives the bytes of a call, from its arguments.
            callback: called with the step and the first argument (None without
                positional ones) after each call that is timed, even a failed one.
        """
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # first of all: compiled code must not depend on the present step
            if self.compiling() or (step_and_start := self.begin()) is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(step_and_start, operation, size(*args, **kwargs))
                if callback is not None:
                    self.call_after(
                        callback, step_and_start[0], args[0] if args else None
                    )

        self.process.patches.replace(owner, name, wrapper)


def watch_steps(process: Process) -> None:
    """Time all operations of steps from now on, by patching modules of torch, at once
    or when they are imported.
    """
    timer = StepTimer(process)
    for module, patch in {
        "torch.compiler": _patch_compiler,
        "torch.nn.modules.module": _patch_modules,
        "torch._tensor": _patch_tensors,
        "torch.autograd": _patch_autograd,
        "torch.optim.optimizer": _patch_optimizers,
        "torch.distributed.distributed_c10d": _patch_collectives,
        "torch.nn.parallel.distributed": _patch_data_parallel,
    }.items():
        process.patches.patch_on_import(module, functools.partial(patch, timer))


def _no_nbytes(*_: Any, **__: Any) -> int:
    """Return 0, for operations whose bytes are not known."""
    return 0


def _first_nbytes(argument: Any = None, *_: Any, **__: Any) -> int:
    """Return the bytes of the first argument of a call; 0 if that is passed by name or
    tells no size.
    """
    return nbytes(argument)


def _patch_compiler(timer: StepTimer, module: Any) -> None:
    """Have the timer ask torch whether it compiles; then no operation is timed."""
    timer.compiling = module.is_compiling


def _patch_modules(timer: StepTimer, module: Any) -> None:
    """Time forward passes, of the outermost module alone."""

    def after(_: LoopStep, model: Any) -> None:
        """Note the facts of a module once, and the allreduce of `StepTimer.ddp`."""
        if id(model) not in timer.models:
            _note_model(timer, model)
        if timer.ddp is not None and timer.ddp() is model:
            _read_ddp_times(timer, model)

    timer.replace(module.Module, "__call__", _FORWARD, _no_nbytes, after)


def _note_model(timer: StepTimer, model: Any) -> None:
    """Note the facts of a module if it has the most parameters of those called so far,
    and is thus the model: parameters, bytes of gradients, and the device of its first.

    A module without parameters is no model.
    """
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    if count > max(timer.models.values(), default=0):
        gradient_nbytes = sum(
            parameter.nbytes for parameter in parameters if parameter.requires_grad
        )
        facts = timer.process.journal.facts
        facts["model"] = {"parameters": count, "gradient_nbytes": gradient_nbytes}
        device = parameters[0].device
        facts["device"] = str(device)
        if device.type == "cuda":
            facts["device"] = sys.modules["torch"].cuda.get_device_name(device)
        if device.type != "cpu":
            timer.process.say("notes", _HOST_ONLY)
    timer.models[id(model)] = count


def _patch_tensors(timer: StepTimer, module: Any) -> None:
    """Time copies of tensors by `to` and `cuda`, with the bytes of the source.

    A call that returns the tensor itself, changes its type alone, or fails is no copy.
    """

    def time_copy(function: Any) -> Any:
        @functools.wraps(function)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if timer.compiling() or (step_and_start := timer.begin()) is None:
                return function(self, *args, **kwargs)
            step, start = step_and_start
            try:
                result = function(self, *args, **kwargs)
            finally:
                timer.process.current_step = step
            # another type alone is no copy of the batch
            if result is not self and (
                result.device != self.device or result.dtype == self.dtype
            ):
                step.add(_COPY, start, clock() - start, nbytes(self))
            return result

        return copy

    for name in ("to", "cuda"):
        timed = time_copy(getattr(module.Tensor, name))
        timer.process.patches.replace(module.Tensor, name, timed)


def _patch_autograd(timer: StepTimer, module: Any) -> None:
    """Time backward passes, and keep the task of the last one."""

    def after(step: LoopStep, _: Any) -> None:
        timer.backward_task = step.task

    for name in ("backward", "grad"):
        timer.replace(module, name, _BACKWARD, _no_nbytes, after)


def _patch_optimizers(timer: StepTimer, module: Any) -> None:
    """Time steps of optimizers, by torch's hooks.

    Torch calls no hook after a step that fails: the rest of its batch is then timed
    only from the end of the next step of that optimizer on.
    """

    def before(optimizer: Any, *_: Any) -> None:
        """Begin to time an optimizer that no other one calls."""
        if not timer.compiling() and (step_and_start := timer.begin()) is not None:
            timer.optimizer = id(optimizer)
            timer.optimizer_start = step_and_start

    def after(optimizer: Any, *_: Any) -> None:
        """End the time of the optimizer that is timed, not of those inside it."""
        if timer.optimizer_start is None or id(optimizer) != timer.optimizer:
            return
        # with another batch, what has begun was of a step that failed
        if timer.process.current_step is None:
            timer.end(timer.optimizer_start, _OPTIMIZER, 0)
        timer.optimizer_start = None

    undo = timer.process.patches.undo
    undo.append(module.register_optimizer_step_pre_hook(before).remove)
    undo.append(module.register_optimizer_step_post_hook(after).remove)


def _patch_collectives(timer: StepTimer, module: Any) -> None:
    """Time collectives, and waits for collectives that go on beside the thread; both
    count as allreduce.
    """
    for name in _COLLECTIVES:
        timer.replace(module, name, _ALLREDUCE, _first_nbytes)
    timer.replace(module.Work, "wait", _ALLREDUCE, _no_nbytes)


def _patch_data_parallel(timer: StepTimer, module: Any) -> None:
    """Have DistributedDataParallel measure its allreduce, in every tenth pass after the
    first ones; only the last one that was made is read.
    """
    init = module.DistributedDataParallel.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._set_ddp_runtime_logging_sample_rate(10)
        timer.ddp = weakref.ref(self)
        timer.ddp_passes = 0

    timer.process.patches.replace(module.DistributedDataParallel, "__init__", __init__)


def _read_ddp_times(timer: StepTimer, model: Any) -> None:
    """Write what torch measured of the last backward pass: the part of the allreduce
    that computing did not hide; and note the bytes of the buckets once.

    Called after each forward pass. Does something only in the first `_FIRST_PASSES`, in
    every tenth and the one after. A backward pass that was written is not again.
    """
    timer.ddp_passes += 1
    is_measured = timer.ddp_passes <= _FIRST_PASSES or timer.ddp_passes % 10 <= 1
    if timer.backward_task is None or not is_measured:
        return
    measurements = model._get_ddp_logging_data()
    facts = timer.process.journal.facts
    if measurements.get("has_rebuilt_buckets") and "buckets" not in facts.get(
        "model", ()
    ):
        sizes = measurements["rebuilt_bucket_sizes"].split(", ")
        facts.setdefault("model", {})["buckets"] = [int(size) for size in sizes]
        timer.process.say("notes", _INSIDE_BACKWARD)
    backward_start = measurements.get("backward_compute_time_start", 0)
    if backward_start > timer.last_backward_ns:
        timer.last_backward_ns = backward_start
        end = measurements["backward_comm_time_end"]
        exposed_ns = max(end - measurements["backward_compute_time_end"], 0)
        # torch measures with the clock of the wall, rows have the other one
        start = end - exposed_ns - time.time_ns() + clock()
        size = sum(facts.get("model", {}).get("buckets", ()))
        row = timer.process.pack_row(
            timer.backward_task, _ALLREDUCE, start, exposed_ns, -1, -1, 1, size, -1, -1
        )
        timer.process.journal.write([row])
