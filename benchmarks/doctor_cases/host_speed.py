"""Time steps and Python on this host, beside the costs that the causes are drawn from."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import geometric_mean, median

import torch
from torch import nn

from benchmarks.doctor_cases.causes import STEP_COSTS, step_us
from benchmarks.doctor_cases.recipe import HostSpeed, Setting, model_text

PASS_US = 22.0  # of 256 numbers, as `causes.python_transform` counts them
TURNS = 40


def seconds_of(action: Callable[[], object]) -> float:
    """Return the median s of an action, called `TURNS` times after a tenth as many."""
    seconds = []
    for turn in range(TURNS + TURNS // 10):
        begin = time.perf_counter()
        action()
        if turn >= TURNS // 10:
            seconds.append(time.perf_counter() - begin)
    return median(seconds)


def smooth() -> None:
    """Do ten passes of `causes.python_transform` over 256 numbers."""
    values = [1.0] * 256
    for _ in range(10):
        pairs = zip(values, values[1:] + values[:1], strict=True)
        values = [(a + b) / 2 for a, b in pairs]


def measure_host() -> HostSpeed:
    """Time a step of each model on one thread, and passes of Python."""
    torch.set_num_threads(1)
    factors = []
    for model, cost in STEP_COSTS.items():
        setting = Setting(
            kind="memory",
            model=model,
            width=cost.width,
            optimizer="Adam",
            shape="loop",
            batch=64,
            epoch_batches=24,
            accumulate=1,
            workers=0,
            prefetch=2,
            dataset_name="Samples",
        )
        names: dict[str, object] = {"torch": torch, "nn": nn}
        exec(model_text(setting), names)
        network = names["build"]()
        optimizer = torch.optim.Adam(network.parameters())
        samples, labels = torch.rand(64, 256), torch.randint(0, 10, (64,))

        def step(network=network, optimizer=optimizer, x=samples, y=labels) -> None:
            loss = nn.functional.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        factors.append(1e6 * seconds_of(step) / step_us(setting))
    work_factor = 1e6 * seconds_of(smooth) / (10 * PASS_US)
    return HostSpeed(round(geometric_mean(factors), 2), round(work_factor, 2))
