"""Time the steps of scripts as they are: a process that has loaded torch forks a child a run.

The child counts the optimizer's steps, and ends the script after a number of them, or of
seconds from the first step on.
Standard input has one JSON object a line, ``{"script", "steps", "seconds", "replay"}``; standard
output answers with the times of the steps.
"""

from __future__ import annotations

import gc
import importlib
import io
import itertools
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

REPLAYED = 8  # batches that are played again and again
CHILD_LIMIT_S = 120  # a script that hangs is killed
PRELOADED = ("numpy", "pandas", "PIL.Image", "sqlite3", "zipfile")


def replay_batches(loader_class: type[DataLoader]) -> None:
    """Replace iteration over loaders: their first batches come again and again, without waits."""
    iterate = loader_class.__iter__

    def iterate_again(loader):
        batches = vars(loader).get("replayed")
        if batches is None:
            batches = list(itertools.islice(iterate(loader), REPLAYED))
            vars(loader)["replayed"] = batches
            vars(loader)["_iterator"] = None
            gc.collect()
        try:
            length = len(loader)
        except TypeError:
            length = sys.maxsize
        return itertools.islice(itertools.cycle(batches), length)

    loader_class.__iter__ = iterate_again


def time_steps(script: str, steps: int, seconds: float, replay: bool) -> list[float]:
    """Run a script until it has done some steps or taken some seconds; return times of steps."""
    times: list[float] = []

    def count_step(*_: object) -> None:
        times.append(time.perf_counter())
        if len(times) >= steps or times[-1] - times[0] > seconds:
            raise SystemExit

    register_optimizer_step_post_hook(count_step)
    if replay:
        replay_batches(DataLoader)
    os.chdir(Path(script).parent)
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script]
    with suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    return times


def answer_in_child(request: dict[str, object]) -> dict[str, object]:
    """Fork a child that runs a script, and return its times or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_LIMIT_S)
        silence = io.StringIO()
        try:
            with redirect_stdout(silence), redirect_stderr(silence):
                answer: dict[str, object] = {"times": time_steps(**request)}
        except BaseException:  # noqa: BLE001
            answer = {"times": [], "error": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        gc.collect()
        for worker in multiprocessing.active_children():
            worker.terminate()
            worker.join()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"times": [], "error": "the script died"}


def preload_modules() -> None:
    """Import what scripts import, and what a first step of an optimizer imports."""
    for module in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(module)
    torch.set_num_threads(1)
    for name in ("SGD", "Adam", "AdamW"):
        parameter = torch.zeros(1, requires_grad=True)
        parameter.grad = torch.ones(1)
        optimizer = getattr(torch.optim, name)([parameter], lr=0.1)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Answer requests line by line."""
    preload_modules()
    for line in sys.stdin:
        print(json.dumps(answer_in_child(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
