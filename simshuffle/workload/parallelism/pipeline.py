"""Pipeline parallelism: every member of a group has some of the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simshuffle.errors import Problem
from simshuffle.spec.record import Count
from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.base import (
    GroupParallelism,
    MemberCount,
    find_divisors,
)
from simshuffle.workload.parallelism.cutting import (
    crossings,
    saved_values,
    stage_starts,
)
from simshuffle.workload.parallelism.division import layer_seconds
from simshuffle.workload.parallelism.step import DividedWorkload, GpuMemory, Node, Step

MICROBATCHES = 4
"""Microbatches for each stage with which a pipeline stands still for little (Huang et
al., arXiv 1811.06965, section 2.3).
"""


def largest_divisor(samples: float, limit: int) -> int:
    """Return the largest number up to ``limit`` that divides ``samples``; 1 if none
    does.
    """
    return max((n for n in range(1, limit + 1) if samples % n == 0), default=1)


@dataclass(frozen=True)
class _Stages:
    """The work of each stage on a microbatch."""

    starts: list[int]  # index of the first layer of each
    forward: list[float]  # s of the forward pass of each
    backward: list[float]  # s of the backward pass of each
    parameters: list[float]  # trained parameters of each
    crossing: list[float]  # values of a sample that each sends to the next


class Pipeline(GroupParallelism):
    """Pipeline parallelism: a member of a group has some layers next to each other, and
    sends the outputs of one microbatch while it computes the next.

    Stages take about equally long. A stage computes in the order of its schedule:
    'gpipe' all forward passes, then all backward passes (Huang et al., arXiv
    1811.06965), '1f1b' in turn as soon as the pipeline is full (Narayanan et al., arXiv
    2104.04473, section 2.2). With p stages of equal time and m microbatches either
    stands still for (p - 1) / (m + p - 1) of the step, but stage s keeps activations of
    m microbatches, or of p - s + 1 at most. Every microbatch starts all kernels of its
    stage again. ParaDL's layer parallelism (arXiv 2104.09075) is 'gpipe' where sending
    does not overlap.

    Attributes:
        stages: members of a group; all ranks, or a number that divides them.
        microbatches: parts of a group's samples that follow each other; if left out, as
            many as divide them, up to 4 for each stage.
        schedule: the order of passes: all forward passes first ('gpipe'), or one
            forward, one backward in turn ('1f1b').
    """

    short_name: ClassVar[str] = "pipeline"
    members_key: ClassVar[str] = "stages"
    kind: Literal["pipeline"] = "pipeline"
    stages: MemberCount
    microbatches: Count | None = None
    schedule: Literal["gpipe", "1f1b"] = "1f1b"

    def group_size(self, world_size: int) -> int:
        """Return ``stages``, a rank for each, whatever ``world_size`` is."""
        return self.stages

    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that is broken; '' if there is a layer for each stage."""
        if num_members <= len(layers):
            return ""
        return f"must be at most the layers, {len(layers)}"

    def problems(
        self, layers: LayerList, world_size: int, batch: float
    ) -> Iterator[Problem]:
        """Yield the reasons why training cannot be divided so; see
        `Parallelism.problems`.
        """
        yield from super().problems(layers, world_size, batch)
        samples = self.samples(batch, self.stages)
        microbatches = self.microbatches
        if microbatches is not None and samples % microbatches:
            rule = f"must divide the samples of a group in an iteration, {samples:g}"
            is_whole = samples >= 1 and samples % 1 == 0
            possible = [1, *find_divisors(int(samples))] if is_whole else []
            nearest = min(
                possible, key=lambda n: (abs(n - microbatches), n), default=None
            )
            remedy = f"Use {nearest}." if nearest else "Leave it out."
            yield Problem("parallelism.microbatches", rule, str(microbatches), remedy)

    def step(self, job: DividedWorkload, max_pieces: int | None = None) -> Step:
        """Return the step of a group: the passes of its stages, the messages between
        them, and the update of each stage, after an allreduce if there are more groups.

        The layers of a stage always go together. With ``max_pieces``, whatever number,
        GPipe's microbatches between the first and the last go together too, which takes
        as long.
        """
        samples, num_microbatches = self._microbatches(job)
        stages = self._stages(job, samples / num_microbatches)
        groups = [1] * num_microbatches
        if max_pieces is not None and num_microbatches > 3 and self.schedule == "gpipe":
            groups = [1, num_microbatches - 2, 1]
        graph = _PipelineGraph(stages, self.schedule, groups)
        input_nbytes = samples / self.stages * job.input_nbytes
        graph.compute(samples / num_microbatches * self.value_nbytes, input_nbytes)
        for stage, parameters in enumerate(stages.parameters):
            last = graph.last(stage)
            if job.world_size > self.stages:
                graph.nodes.append(
                    Node(
                        "gradients",
                        last,
                        member=stage,
                        collective="allreduce",
                        group="data",
                        nbytes=parameters * job.gradient_nbytes,
                    )
                )
                last = (len(graph.nodes) - 1,)
            share = parameters / (job.layers.parameters or 1)
            graph.nodes.append(Node("update", last, share * job.update, stage))
        return Step(graph.nodes)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Return the bytes of the fullest stage, with buffers for a microbatch's inputs
        and outputs.
        """
        samples, num_microbatches = self._microbatches(job)
        stages = self._stages(job, samples / num_microbatches)
        nbytes = samples / num_microbatches * self.value_nbytes
        full_share = np.ones(len(job.layers))
        starts = [*stages.starts, len(job.layers)]
        stage_memories = []
        for stage, parameters in enumerate(stages.parameters):
            saved, working = saved_values(
                job.layers,
                full_share,
                (starts[stage], starts[stage + 1]),
                recompute=self.recompute,
            )
            waiting = num_microbatches
            if self.schedule != "gpipe":
                waiting = min(num_microbatches, self.stages - stage)
            crossing_input = stages.crossing[stage - 1] if stage else 0.0
            stage_memories.append(
                GpuMemory(
                    weights=parameters * self.value_nbytes,
                    gradients=parameters * self.value_nbytes,
                    optimiser=parameters * self.optimiser_nbytes,
                    activations=nbytes * (waiting * saved + working),
                    buffers=nbytes * (stages.crossing[stage] + crossing_input),
                )
            )
        return max(stage_memories, key=lambda memory: memory.total)

    def _microbatches(self, job: DividedWorkload) -> tuple[float, int]:
        """Return the samples of a group in an iteration, and the number of their
        microbatches.

        The number is ``microbatches``, or else the largest that divides the samples, up
        to `MICROBATCHES` for each stage.
        """
        samples = self.samples(job.batch, self.stages)
        if self.microbatches is not None:
            return samples, self.microbatches
        return samples, largest_divisor(samples, MICROBATCHES * self.stages)

    def _stages(self, job: DividedWorkload, samples: float) -> _Stages:
        """Cut the layers into stages, for microbatches of ``samples`` samples."""
        full_share = np.ones(len(job.layers))
        seconds = layer_seconds(job, full_share, samples, 1.0, recompute=self.recompute)
        launch = layer_seconds(job, full_share, 0.0, 1.0, recompute=self.recompute)
        forward, backward = (
            pass_launch + self.compute_factor * (pass_seconds - pass_launch)
            for pass_seconds, pass_launch in zip(seconds, launch, strict=True)
        )
        # only what grows with the samples is stretched, not the start of kernels
        starts = stage_starts(forward + backward, self.stages)
        parameters = np.array([float(layer.parameters) for layer in job.layers.layers])
        values = np.append(crossings(job.layers)[0], 0)
        return _Stages(
            starts=starts,
            forward=np.add.reduceat(forward, starts).tolist(),
            backward=np.add.reduceat(backward, starts).tolist(),
            parameters=np.add.reduceat(parameters, starts).tolist(),
            crossing=[float(values[start]) for start in [*starts[1:], -1]],
        )


class _Pass(NamedTuple):
    """A pass of a stage over a group of microbatches."""

    is_backward: bool
    group: int  # index of the group of microbatches


class _PipelineGraph:
    """The passes of stages in the order of a schedule, and the messages between stages.

    ``groups`` are the sizes of groups of microbatches that go together, such as [1, m -
    2, 1]. All microbatches take equally long, so the last one of a stage waits either
    for the last one of the stage before, or for all its own after the first; nothing is
    lost if those between wait for their first alone.
    """

    def __init__(self, stages: _Stages, schedule: str, groups: list[int]) -> None:
        self.nodes: list[Node] = []
        self._stages = stages
        self._groups = groups
        self._num_stages = len(stages.forward)
        self._orders = [
            _stage_order(schedule, stage, self._num_stages, len(groups))
            for stage in range(self._num_stages)
        ]
        self._ends: list[tuple[int, ...]] = [()] * self._num_stages
        # the node of the message that a pass of a stage waits for
        self._received: dict[tuple[_Pass, int], int] = {}
        # the last message of each stage, by whether it went backwards
        self._last_sent: dict[tuple[bool, int], int] = {}

    def last(self, stage: int) -> tuple[int, ...]:
        """Return the node of the last pass of a stage so far, as predecessors."""
        return self._ends[stage]

    def compute(self, nbytes: float, input_nbytes: float) -> None:
        """Add all passes, and the messages between stages.

        If there are several stages, the first one gathers the inputs before.

        Args:
            nbytes: bytes of one value of each sample of a microbatch.
            input_nbytes: bytes that each member but the first sends to the first.
        """
        if self._num_stages > 1:
            self.nodes.append(Node("input", collective="gather", nbytes=input_nbytes))
            self._ends[0] = (0,)
        num_done = [0] * self._num_stages  # passes of each stage
        waiting = list(range(self._num_stages))
        while waiting:
            waiting = [
                stage for stage in waiting if self._advance(stage, num_done, nbytes)
            ]

    def _advance(self, stage: int, num_done: list[int], nbytes: float) -> bool:
        """Add the passes of a stage whose messages are in the graph; return whether
        more remain.

        ``num_done`` has the passes added for each stage; changed in place.
        """
        order = self._orders[stage]
        while num_done[stage] < len(order):
            stage_pass = order[num_done[stage]]
            predecessors = self._ends[stage]
            first_stage = self._num_stages - 1 if stage_pass.is_backward else 0
            if stage != first_stage and self._groups[stage_pass.group] == 1:
                message = self._received.get((stage_pass, stage))
                if message is None:
                    return True
                predecessors = (*predecessors, message)
            self._add_pass(stage_pass, stage, predecessors)
            last_stage = 0 if stage_pass.is_backward else self._num_stages - 1
            if stage != last_stage:
                self._send(stage_pass, stage, nbytes)
            num_done[stage] += 1
        return False

    def _add_pass(
        self, stage_pass: _Pass, stage: int, predecessors: tuple[int, ...]
    ) -> None:
        """Add the node of a pass."""
        if stage_pass.is_backward:
            label = "backward"
            seconds = self._stages.backward[stage]
        else:
            label = "forward"
            seconds = self._stages.forward[stage]
        group_seconds = seconds * self._groups[stage_pass.group]
        self.nodes.append(Node(label, predecessors, group_seconds, stage))
        self._ends[stage] = (len(self.nodes) - 1,)

    def _send(self, stage_pass: _Pass, stage: int, nbytes: float) -> None:
        """Add the message of a forward pass to the next stage, or of a backward pass to
        the stage before; messages of a stage in one direction follow each other.

        ``nbytes`` are the bytes of one value of each sample of a microbatch.
        """
        num_microbatches = self._groups[stage_pass.group]
        predecessors = self._ends[stage] if num_microbatches == 1 else ()
        last_sent = self._last_sent.get((stage_pass.is_backward, stage))
        if last_sent is not None:
            predecessors = (*predecessors, last_sent)
        receiver = stage - 1 if stage_pass.is_backward else stage + 1
        crossing = self._stages.crossing[min(stage, receiver)]
        self.nodes.append(
            Node(
                "activation_gradients" if stage_pass.is_backward else "activations",
                predecessors,
                member=stage,
                collective="send_back" if stage_pass.is_backward else "send",
                nbytes=num_microbatches * nbytes * crossing,
                count=num_microbatches,
            )
        )
        self._last_sent[stage_pass.is_backward, stage] = len(self.nodes) - 1
        self._received[stage_pass, receiver] = len(self.nodes) - 1


def _stage_order(
    schedule: str, stage: int, num_stages: int, num_groups: int
) -> list[_Pass]:
    """Return the passes of a stage over all groups of microbatches, in their order."""
    num_ahead = (
        num_groups if schedule == "gpipe" else min(num_stages - stage - 1, num_groups)
    )
    order = [_Pass(False, group) for group in range(num_ahead)]
    for group in range(num_groups - num_ahead):
        order += [_Pass(False, num_ahead + group), _Pass(True, group)]
    return order + [
        _Pass(True, group) for group in range(num_groups - num_ahead, num_groups)
    ]
