"""Turn what a scenario trains, and how ranks divide each step, into transfers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simshuffle.errors import Problem, ScenarioError
from simshuffle.fabric.allreduce import NoOverlap
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.job.lowering.step_transfers import (
    Communicators,
    StepTransfers,
    step_transfers,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.workload.parallelism import DividedWorkload, Step


def job_of(scenario: Scenario, world_size: int | None = None) -> DividedWorkload:
    """Return the work of one iteration, not yet divided among ranks.

    Passes are (layers,) s for one more sample on one GPU: the accelerator's seconds for
    a sample, divided by `LayerList.shares`. Fixed seconds hold what does not depend on
    the batch, the overlap's hooks included. Under data parallelism a model that does
    not list its layers is one layer. That the backward pass is slower while gradients
    travel is left out.

    Args:
        scenario: says what is trained, and with which batch on each rank.
        world_size: M; None or 0 stands for the scenario's.

    Raises:
        ScenarioError: training is divided by layers, and the model does not list them.
    """
    workload = scenario.workload
    times = scenario.step_times
    model = workload.model
    overlap = workload.allreduce.overlap
    layers = model.layer_list
    world_size = world_size or scenario.world_size
    if layers is None and not workload.parallelism.is_data_parallel:
        kind = workload.parallelism.kind
        rule = f"must list the layers, with their shapes, if training is divided as '{kind}'"
        remedy = "Name a shipped network, such as resnet50, list layers, or use parallelism: data."
        problem = Problem(
            "workload.model.layers", rule, f"'{model.name}' without a list", remedy
        )
        raise ScenarioError(problem, scenario.name)
    layers = layers or model.one_layer
    buckets: Floats | None = None
    if not isinstance(
        overlap, NoOverlap
    ):  # messages of a backward pass on one GPU alone
        backward = (
            float(times.backward_of(np.asarray(workload.local_batch_size)))
            + overlap.hooks
        )
        buckets = overlap.messages(model.gradient_arrival, backward, world_size)
    seconds_per_share = times.per_sample / (times.forward + times.backward_seconds)
    return DividedWorkload(
        layers=layers,
        forward=layers.seconds(seconds_per_share * times.forward),
        backward=layers.seconds(seconds_per_share * times.backward_seconds),
        fixed=times.fixed_seconds + overlap.hooks,
        update=times.update,
        batch=workload.local_batch_size,
        world_size=world_size,
        gradient_nbytes=model.gradient_size / layers.parameters,
        input_nbytes=model.input_size,
        buckets=buckets,
    )


def communicators_of(scenario: Scenario, resources: Resources) -> Communicators:
    """Return the groups in which ranks communicate, as the scenario divides training.

    Raises:
        ValueError: the group size does not divide the number of ranks.
    """
    parallelism = scenario.workload.parallelism
    return Communicators(
        scenario.workload.allreduce_on(scenario.cluster),
        resources,
        group_size=parallelism.group_size(resources.world_size),
        rng=scenario.rng("host_order"),
        bus_bandwidth=getattr(parallelism, "bus_bandwidth", None),
        step_latency=getattr(parallelism, "step_latency", None),
        input_bandwidth=getattr(parallelism, "input_bandwidth", None),
    )


MAX_PIECES = 16
"""Pieces into which layers are joined with their neighbours. Bytes and operations stay;
finer pieces would change the time of a step only where sending and computing overlap.
"""


@dataclass(frozen=True)
class StepPart:
    """Part of a step as transfers, and the seconds of its computing if sending took no
    time.
    """

    # forward, backward: s of the passes, of the member that computes longest
    forward: float
    backward: float
    bubble: float  # s in which this member is idle though nothing is sent
    update: float  # s of updating weights, of the member that takes longest
    transfers: StepTransfers | None  # of the part; None if it is empty

    def scaled_batch(self, factor: float) -> TransferBatch | None:
        """Return the transfers to post if passes take ``factor`` times as long; None
        for an empty part. The part itself stays as it is.
        """
        if self.transfers is None:
            return None
        return self.transfers.with_computing_scaled(
            np.full(len(self.transfers.begins), factor)
        )


class StepDivision:
    """The division of every step of a run among ranks. Parts of a step are computed
    once for each batch and group, and shared.

    Attributes:
        members: (groups, ways) ranks of each model group.
        groups: number of model groups.
        ways: ranks of a model group.
        group_of: (M,) the group of each rank.

    Raises:
        ScenarioError: a group has another batch than its ranks read, or training is
            divided by layers, which the model does not list.
    """

    def __init__(self, scenario: Scenario, resources: Resources) -> None:
        check_group_batch(scenario)
        self._strategy = scenario.workload.parallelism
        self._job = job_of(scenario)
        self._communicators = communicators_of(scenario, resources)
        self.members = self._communicators.ranks("model")
        self.groups, self.ways = self.members.shape
        self.group_of = np.empty(scenario.world_size, np.int64)
        self.group_of[self.members] = np.arange(self.groups)[:, None]
        self._steps: dict[float, tuple[Step, Step]] = {}
        self._parts: dict[tuple[int | None, float], StepPart] = {}

    @cached_property
    def is_joint(self) -> bool:
        """True if no group computes a forward pass by itself: all ranks go through the
        step together.
        """
        local, _ = self._step(self._job.batch)
        return not any(node.label == "forward" for node in local.nodes)

    def local(self, group: int, samples: Ints64) -> StepPart:
        """Return what a group does by itself, computed with the mean of ``samples``.

        Args:
            group: index of the model group.
            samples: (ways,) samples of each member.
        """
        return self._part(float(samples.sum()) / self.ways, group)

    def joint(self, samples: Ints64) -> StepPart:
        """Return what all ranks do together after their groups, computed with the
        largest of ``samples``.

        Args:
            samples: (M,) samples of each rank.
        """
        return self._part(float(samples.max()), None)

    def _part(self, batch: float, group: int | None) -> StepPart:
        """Return a part of the step of ``batch`` samples a rank; ``group`` is None for
        the joint part.
        """
        if (group, batch) not in self._parts:
            local, joint = self._step(batch)
            self._parts[group, batch] = self._lower_part(
                joint if group is None else local, group
            )
        return self._parts[group, batch]

    def _step(self, batch: float) -> tuple[Step, Step]:
        """Return the step of ``batch`` samples a rank in two: what groups do, and what
        all ranks do after that. Layers are joined into at most `MAX_PIECES`.
        """
        if batch not in self._steps:
            step = self._strategy.step(
                replace(self._job, batch=batch), max_pieces=MAX_PIECES
            )
            self._steps[batch] = split_joint_part(step)
        return self._steps[batch]

    def _lower_part(self, step: Step, group: int | None) -> StepPart:
        """Turn a part of the step into transfers of group ``group``, or of all groups
        if None.
        """
        costs = step.costs(lambda _: 0.0)
        seconds = {"forward": 0.0, "backward": 0.0}
        updates: dict[int, float] = {}
        for node in step.nodes:
            if node.label == "update":
                updates[node.member] = updates.get(node.member, 0.0) + node.seconds
            elif node.label in seconds:
                seconds[node.label] += node.seconds
        update = max(updates.values(), default=0.0)  # of the member that takes longest
        busy_seconds = costs.compute - update
        pass_seconds = sum(seconds.values())
        groups = None if group is None else [group]
        forward = (
            busy_seconds * seconds["forward"] / pass_seconds if pass_seconds else 0.0
        )
        return StepPart(
            forward,
            busy_seconds - forward,
            costs.bubble,
            update,
            step_transfers(step, self._communicators, groups) if step.nodes else None,
        )


def check_group_batch(scenario: Scenario) -> None:
    """Raise a ScenarioError if ``parallelism.group_batch`` is set and is not group size
    x ``local_batch_size``.
    """
    workload = scenario.workload
    batch = getattr(workload.parallelism, "group_batch", None)
    batch_read = (
        workload.parallelism.group_size(scenario.world_size) * workload.local_batch_size
    )
    if batch is not None and batch != batch_read:
        rule = f"must be what the ranks of a group read where epochs are simulated: {batch_read}"
        remedy = "Leave it out, or ask simshuffle study oracle, which takes any."
        problem = Problem("workload.parallelism.group_batch", rule, str(batch), remedy)
        raise ScenarioError(problem, scenario.name)


def split_joint_part(step: Step) -> tuple[Step, Step]:
    """Split a step in two: what each model group does by itself, and what waits for
    several groups, with every weight update.

    Args:
        step: its nodes come after those that they wait for.

    Returns:
        The local step and the joint step. A joint node no longer waits for local nodes.
    """
    joint: set[int] = set()
    for index, node in enumerate(step.nodes):
        if (
            node.joins_groups
            or node.label == "update"
            or joint.intersection(node.predecessors)
        ):
            joint.add(index)
    local = [index for index in range(len(step.nodes)) if index not in joint]
    return select_nodes(step, local), select_nodes(step, sorted(joint))


def select_nodes(step: Step, chosen: Iterable[int]) -> Step:
    """Return a step of the nodes numbered ``chosen``, in that order. Waits for other
    nodes are dropped, also those through other nodes.
    """
    new_index = {number: position for position, number in enumerate(chosen)}
    nodes = map(step.nodes.__getitem__, new_index)
    return Step(
        [
            replace(
                n,
                predecessors=tuple(
                    new_index[k] for k in n.predecessors if k in new_index
                ),
            )
            for n in nodes
        ]
    )
