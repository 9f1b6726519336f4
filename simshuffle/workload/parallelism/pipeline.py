"""Pipeline parallelism: every member of a group has some of the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import Problem
from simshuffle.spec.record import Count
from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.base import GroupParallelism, Several, divisors
from simshuffle.workload.parallelism.division import (
    crossings,
    kept_values,
    layer_seconds,
    stage_starts,
)
from simshuffle.workload.parallelism.step import Collective, DividedWorkload, GpuMemory, Node, Step

MICROBATCHES = 4
"""For each stage: with as many, a pipeline stands still for little (Huang et al., arXiv 1811.06965,
section 2.3)."""


@dataclass(frozen=True)
class _Stages:
    """What each stage does with a microbatch."""

    starts: list[int]  # numbers of their first layers
    # forward, backward: s
    forward: list[float]
    backward: list[float]
    parameters: list[float]  # of each
    crossing: list[float]  # values of a sample that each gives to the next


class Pipeline(GroupParallelism):
    """Every member of a group has some layers next to each other, and passes on what it computed of
    one microbatch while it computes the next.

    Stages take about equally long. A stage computes in the order of its schedule: 'gpipe' all
    forward passes, then all backward passes (Huang et al., arXiv 1811.06965), '1f1b' in turn as
    soon as the pipeline is full (Narayanan et al., arXiv 2104.04473, section 2.2). With p stages of
    equal time and m microbatches either stands still for (p - 1) / (m + p - 1) of the step, but
    stage s keeps activations of m microbatches, or of p - s + 1 at most. Every microbatch starts
    all kernels of its stage again. ParaDL's layer parallelism (arXiv 2104.09075) is 'gpipe' where
    sending does not overlap.

    Attributes:
        stages: members of a group; all ranks, or a number that divides them.
        microbatches: parts of a group's samples that follow each other; if left out, as many as
            divide them, up to 4 for each stage.
        schedule: the order of passes: all forward passes first ('gpipe'), or one forward, one
            backward in turn ('1f1b').
    """

    short_name: ClassVar[str] = "pipeline"
    ways_key: ClassVar[str] = "stages"
    kind: Literal["pipeline"] = "pipeline"
    stages: Several
    microbatches: Count | None = None
    schedule: Literal["gpipe", "1f1b"] = "1f1b"

    def group_size(self, world_size: int) -> int:
        """A rank for each stage."""
        return self.stages

    def impossible(self, layers: LayerList, ways: int) -> str:
        """There must be a layer for each stage."""
        return "" if ways <= len(layers) else f"must be at most the layers, {len(layers)}"

    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """As of `Parallelism`."""
        yield from super().problems(layers, world_size, batch)
        samples, given = self.samples(batch, self.stages), self.microbatches
        if given is not None and samples % given:
            rule = f"must divide the samples of a group in an iteration, {samples:g}"
            work = [1, *divisors(int(samples))] if samples >= 1 and samples % 1 == 0 else []
            nearest = min(work, key=lambda n: (abs(n - given), n), default=None)
            remedy = f"Use {nearest}." if nearest else "Leave it out."
            yield Problem("parallelism.microbatches", rule, str(given), remedy)

    def step(self, job: DividedWorkload, most: int | None = None) -> Step:
        """Layers of a stage always go together. With ``most``, GPipe's microbatches between the
        first and the last go together too, which takes as long."""
        samples, count = self._microbatches(job)
        stages = self._stages(job, samples / count)
        together = most is not None and count > 3 and self.schedule == "gpipe"
        order = _Graph(stages, self.schedule, [1, count - 2, 1] if together else [1] * count)
        inputs = samples / self.stages * job.input_nbytes
        order.compute(samples / count * self.value_nbytes, inputs)
        for number, parameters in enumerate(stages.parameters):
            last = order.last(number)
            if job.world_size > self.stages:
                size = parameters * job.gradient_nbytes
                order.nodes.append(Node("gradients", last, 0.0, number, "allreduce", "data", size))
                last = (len(order.nodes) - 1,)
            share = parameters / (job.layers.parameters or 1)
            order.nodes.append(Node("update", last, share * job.update, number))
        return Step(order.nodes)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Of the fullest stage; it keeps what it takes and gives of a microbatch beside."""
        samples, count = self._microbatches(job)
        stages = self._stages(job, samples / count)
        nbytes = samples / count * self.value_nbytes
        ones = np.ones(len(job.layers))
        found = []
        for number, parameters in enumerate(stages.parameters):
            first, last = [*stages.starts, len(job.layers)][number : number + 2]
            stored, working = kept_values(job.layers, ones, first, last, self.recompute)
            waiting = count if self.schedule == "gpipe" else min(count, self.stages - number)
            beside = stages.crossing[number] + (stages.crossing[number - 1] if number else 0.0)
            found.append(
                GpuMemory(
                    weights=parameters * self.value_nbytes,
                    gradients=parameters * self.value_nbytes,
                    optimiser=parameters * self.optimiser_nbytes,
                    activations=nbytes * (waiting * stored + working),
                    buffers=nbytes * beside,
                )
            )
        return max(found, key=lambda memory: memory.total)

    def _microbatches(self, job: DividedWorkload) -> tuple[float, int]:
        """Samples of a group, and their microbatches."""
        samples = self.samples(job.batch, self.stages)
        if self.microbatches is not None:
            return samples, self.microbatches
        most = MICROBATCHES * self.stages
        return samples, max((n for n in range(1, most + 1) if samples % n == 0), default=1)

    def _stages(self, job: DividedWorkload, samples: float) -> _Stages:
        """Layers cut into stages, for microbatches of that many samples."""
        ones = np.ones(len(job.layers))
        forward, backward = layer_seconds(job, ones, samples, 1.0, self.recompute)
        launch = layer_seconds(job, ones, 0.0, 1.0, self.recompute)
        forward, backward = (
            start + self.compute_factor * (each - start)
            for each, start in zip((forward, backward), launch, strict=True)
        )
        starts = stage_starts(forward + backward, self.stages)
        parameters = np.array([float(each.parameters) for each in job.layers.layers])
        values = np.append(crossings(job.layers)[0], 0)
        crossing = [float(values[start]) for start in [*starts[1:], -1]]
        parts = forward, backward, parameters
        one, other, held = (np.add.reduceat(of, starts).tolist() for of in parts)
        return _Stages(starts, one, other, held, crossing)


class _Graph:
    """Passes of stages in the order of a schedule, and what they send each other.

    ``groups`` are microbatches that go together, such as [1, m - 2, 1]. All of them take equally
    long, so the last one of a stage waits either for the last one of the stage before, or for all
    its own after the first; nothing is lost if those between wait for their first alone.
    """

    def __init__(self, stages: _Stages, schedule: str, groups: list[int]) -> None:
        self.nodes: list[Node] = []
        self._stages, self._groups = stages, groups
        self._count = len(stages.forward)
        self._orders = [_order(schedule, s, self._count, len(groups)) for s in range(self._count)]
        self._ends: list[tuple[int, ...]] = [()] * self._count
        # the node that brings it, of (whether backward, stage, group of microbatches)
        self._brought: dict[tuple[bool, int, int], int] = {}
        self._link_ends: dict[tuple[bool, int], int] = {}

    def last(self, stage: int) -> tuple[int, ...]:
        """What a stage computed last."""
        return self._ends[stage]

    def compute(self, nbytes: float, input_nbytes: float) -> None:
        """All passes; one value of each sample of a microbatch takes ``nbytes``."""
        if self._count > 1:
            self.nodes.append(Node("input", collective="gather", nbytes=input_nbytes))
            self._ends[0] = (0,)
        at = [0] * self._count
        waiting = list(range(self._count))
        while waiting:
            waiting = [stage for stage in waiting if self._advance(stage, at, nbytes)]

    def _advance(self, stage: int, at: list[int], nbytes: float) -> bool:
        """Compute what can be computed; whether there is more."""
        order = self._orders[stage]
        while at[stage] < len(order):
            backward, number = order[at[stage]]
            after = self._ends[stage]
            first = stage == (self._count - 1 if backward else 0)
            if not first and self._groups[number] == 1:
                brought = self._brought.get((backward, stage, number))
                if brought is None:
                    return True
                after = (*after, brought)
            self._pass(backward, stage, number, after)
            if stage != (0 if backward else self._count - 1):
                self._send(backward, stage, number, nbytes)
            at[stage] += 1
        return False

    def _pass(self, backward: bool, stage: int, number: int, after: tuple[int, ...]) -> None:
        label = "backward" if backward else "forward"
        each = (self._stages.backward if backward else self._stages.forward)[stage]
        self.nodes.append(Node(label, after, each * self._groups[number], stage))
        self._ends[stage] = (len(self.nodes) - 1,)

    def _send(self, backward: bool, stage: int, number: int, nbytes: float) -> None:
        """To the next stage, or back to the one before; one after the other."""
        count = self._groups[number]
        before = self._link_ends.get((backward, stage))
        after = self._ends[stage] if count == 1 else ()
        after = after if before is None else (*after, before)
        collective: Collective = "send_back" if backward else "send"
        label = "activation_gradients" if backward else "activations"
        to = stage - 1 if backward else stage + 1
        size = count * nbytes * self._stages.crossing[min(stage, to)]
        self.nodes.append(Node(label, after, 0.0, stage, collective, "model", size, count))
        self._link_ends[backward, stage] = len(self.nodes) - 1
        self._brought[backward, to, number] = len(self.nodes) - 1


def _order(schedule: str, stage: int, stages: int, count: int) -> list[tuple[bool, int]]:
    """The passes of a stage, each with whether it is backward, and which microbatch it is of."""
    ahead = count if schedule == "gpipe" else min(stages - stage - 1, count)
    order = [(False, number) for number in range(ahead)]
    for number in range(count - ahead):
        order += [(False, ahead + number), (True, number)]
    return order + [(True, number) for number in range(count - ahead, count)]
