"""The common part of all ways to divide training, and of those with groups of ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simshuffle.errors import Problem
from simshuffle.spec.record import (
    Bandwidth,
    Count,
    Fraction,
    NonNegative,
    Seconds,
    Sourced,
)
from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.cutting import saved_values
from simshuffle.workload.parallelism.division import (
    Division,
    PassSettings,
    divided_step,
    no_division,
)
from simshuffle.workload.parallelism.step import (
    Collective,
    DividedWorkload,
    GpuMemory,
    Group,
    Node,
    Step,
)

OPTIMISER = {"sgd": 0, "momentum": 1, "adam": 2}
"""FP32 values that an optimiser keeps for each parameter."""


class Parallelism(Sourced):
    """A way to divide training.

    ``precision`` 'fp32' keeps 4 B of every weight, gradient and activation; 'mixed'
    keeps 2 B, and an FP32 copy of the weights with the optimiser (Rajbhandari et al.,
    arXiv 1910.02054, 3.1).

    Attributes:
        precision: of weights, gradients and activations: 'fp32', or 'mixed' with FP32
            copies of the weights.
        optimiser: which values are kept for each weight: none ('sgd'), one
            ('momentum'), two ('adam').
        recompute: whether activations are computed again in the backward pass, but for
            the inputs of blocks.
    """

    short_name: ClassVar[str]
    """The name in tables."""
    is_data_parallel: ClassVar[bool] = False
    """True if every rank goes through a step by itself."""

    precision: Literal["fp32", "mixed"] = "fp32"
    optimiser: Literal["sgd", "momentum", "adam"] = "momentum"
    recompute: bool = False

    @property
    def value_nbytes(self) -> int:
        """The bytes of a weight, a gradient and an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def optimiser_nbytes(self) -> int:
        """The bytes that the optimiser keeps for a parameter."""
        return 4 * (OPTIMISER[self.optimiser] + (self.precision == "mixed"))

    @abstractmethod
    def group_size(self, world_size: int) -> int:
        """Return the size of a model-parallel group, whose ranks work on equal samples
        together.
        """

    @abstractmethod
    def problems(
        self, layers: LayerList, world_size: int, batch: float
    ) -> Iterator[Problem]:
        """Yield the reasons why training cannot be divided so, with the nearest values
        that would work.

        Paths are relative to ``workload``.

        Args:
            layers: of the network.
            world_size: M.
            batch: samples of a rank in an iteration.
        """

    @abstractmethod
    def step(self, job: DividedWorkload, max_pieces: int | None = None) -> Step:
        """Return the step of a group in an iteration.

        Args:
            job: that is divided.
            max_pieces: the most pieces into which neighbouring layers are put together;
                None for each layer by itself.
        """

    @abstractmethod
    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Return the bytes that the fullest GPU keeps."""

    def divided_memory(
        self, job: DividedWorkload, division: Division, settings: PassSettings
    ) -> GpuMemory:
        """Return the bytes that each member of a group keeps, where all keep equally
        many.

        With ``recompute``, activations are the inputs of blocks, and what else the
        largest block keeps.

        Args:
            job: that is divided.
            division: the part of each layer that a member has.
            settings: says how many samples a group has, and what is recomputed.
        """
        parameters = division.parameters(job)
        saved, working = saved_values(
            job.layers,
            division.saved_share,
            (0, len(job.layers)),
            recompute=settings.recompute,
        )
        nbytes = settings.samples * settings.value_nbytes
        return GpuMemory(
            weights=parameters * self.value_nbytes,
            gradients=parameters * self.value_nbytes,
            optimiser=parameters * self.optimiser_nbytes,
            activations=nbytes * (saved + working),
            buffers=nbytes * division.buffers,
        )


class SampleParallelism(Parallelism):
    """Parallelism in which every rank trains on samples of its own."""

    def group_size(self, world_size: int) -> int:
        """Return 1: no rank works on the samples of another."""
        return 1

    def problems(
        self, layers: LayerList, world_size: int, batch: float
    ) -> Iterator[Problem]:
        """Yield no problem: training can always be divided so."""
        return iter(())

    def pass_settings(
        self,
        job: DividedWorkload,
        gradient_collective: Collective,
        update_seconds: float,
    ) -> PassSettings:
        """Return how a step is computed in which all ranks sum gradients.

        Args:
            job: that is divided.
            gradient_collective: by which gradients are summed.
            update_seconds: s of updating the weights that a rank holds.
        """
        return PassSettings(
            samples=job.batch,
            compute_factor=1.0,
            recompute=self.recompute,
            value_nbytes=self.value_nbytes,
            gradient_collective=gradient_collective,
            gradient_group="all",
            update_seconds=update_seconds,
        )


MemberCount = Annotated[int, Field(ge=2, le=2**53)]
"""Members of a group, at least two."""


class GroupParallelism(Parallelism):
    """Parallelism in groups of neighbouring ranks, which work on each sample together.

    Where there are several groups, each has samples of its own, and gradients are
    summed between the groups.

    Attributes:
        compute_factor: how many times as long a divided layer takes as its ideal part
            of the whole; small kernels use less of a GPU.
        bus_bandwidth: what a rank sends at most within its group; if left out it
            follows from the machine.
        step_latency: of a step of a collective within a group; if left out it follows
            from the machine.
        group_batch: samples of a group in an iteration; if left out, of each of its
            ranks 'local_batch_size'.
    """

    members_key: ClassVar[str] = "ways"
    """The key that says how many members a group has."""

    compute_factor: NonNegative = 1.0
    bus_bandwidth: Bandwidth | None = None
    step_latency: Seconds | None = None
    group_batch: Count | None = None

    def samples(self, batch: float, num_members: int) -> float:
        """Return the samples of a group in an iteration: ``group_batch`` if given, else
        ``batch`` for each member.
        """
        return (
            num_members * batch if self.group_batch is None else float(self.group_batch)
        )

    @abstractmethod
    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that dividing a network among so many members breaks, as text
        of a problem; '' if none.
        """

    def problems(
        self, layers: LayerList, world_size: int, batch: float
    ) -> Iterator[Problem]:
        """Yield the reasons why training cannot be divided so, with the nearest values
        that would work.

        The members must keep to `broken_rule` and divide the world size;
        ``group_batch`` must not exceed what the members read together.

        Args:
            layers: of the network.
            world_size: M.
            batch: samples of a rank in an iteration.
        """
        num_members = self.group_size(world_size)
        path = f"parallelism.{self.members_key}"
        rules = [self.broken_rule(layers, num_members)]
        if world_size % num_members:
            rules.append(f"must divide the world size, {world_size}")
        if any(rules):
            remedy = self._suggest_members(layers, world_size, num_members)
            yield from (
                Problem(path, rule, str(num_members), remedy) for rule in rules if rule
            )
        samples_read = num_members * batch
        if self.group_batch is not None and self.group_batch > samples_read * (
            1 + 1e-9
        ):
            yield Problem(
                "parallelism.group_batch",
                f"must be at most the {samples_read:g} samples that a group reads in an iteration",
                str(self.group_batch),
                f"Use {int(samples_read)}." if samples_read >= 1 else "Leave it out.",
            )

    def _suggest_members(
        self, layers: LayerList, world_size: int, num_members: int
    ) -> str:
        """Return a remedy as text: the nearest number of members that works, or another
        strategy if none does.

        Numbers that divide the world size are tried; of two equally near, the smaller.
        """
        possible = [
            divisor
            for divisor in find_divisors(world_size)
            if not self.broken_rule(layers, divisor)
        ]
        if not possible:
            return "Use another strategy, such as 'data'."
        nearest = min(
            possible, key=lambda divisor: (abs(divisor - num_members), divisor)
        )
        return f"Use {nearest}."


class DividedLayers(GroupParallelism):
    """Groups of which every member has a part of each layer.

    Attributes:
        ways: members of a group; all ranks, or a number that divides them.
        repeated: share of the work of divided layers that every member does all the
            same, as code that divides weights but not all operations.
        input_bandwidth: at which all samples of a group come to each member, if the
            first one loads them and hands them on; if left out, every member loads a
            part, and they exchange parts as they communicate for layers.
    """

    input_collective: ClassVar[Collective] = "allgather"
    """The collective by which the members of a group get its samples."""
    gradient_group: ClassVar[Group] = "data"
    """The ranks that sum gradients: those with the same part of the model, or all."""

    ways: MemberCount
    repeated: Fraction = 0.0
    input_bandwidth: Bandwidth | None = None

    def group_size(self, world_size: int) -> int:
        """Return ``ways``."""
        return self.ways

    @abstractmethod
    def division(self, layers: LayerList) -> Division:
        """Return the part of each layer that a member has, for two members at least."""

    def step(self, job: DividedWorkload, max_pieces: int | None = None) -> Step:
        """Return the step of a group, which begins with getting its samples.

        A group of one member gets none from others.

        Args:
            job: that is divided.
            max_pieces: the most pieces into which neighbouring layers are put together;
                None for each layer by itself.
        """
        inputs = [self._input_node(job)] if self.ways > 1 else []
        division = self._job_division(job)
        settings = self._pass_settings(job, division)
        return divided_step(job, division, settings, inputs, max_pieces)

    def _input_node(self, job: DividedWorkload) -> Node:
        """Return the node by which the members of a group get its samples.

        With ``input_bandwidth`` it is a broadcast along a chain, in which every member
        but the last sends all bytes to the next one while it receives them.
        """
        nbytes = self.samples(job.batch, self.ways) * job.input_nbytes
        if self.input_bandwidth is not None:
            return Node("input", collective="send", group="input", nbytes=nbytes)
        # an allgather counts the whole buffer, an alltoall what one member has
        parts = self.ways if self.input_collective == "alltoall" else 1
        return Node("input", collective=self.input_collective, nbytes=nbytes / parts)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Return the bytes that each member keeps."""
        division = self._job_division(job)
        return self.divided_memory(job, division, self._pass_settings(job, division))

    def _job_division(self, job: DividedWorkload) -> Division:
        """Return the part of each layer that a member has, with the work that all
        repeat.

        Work shares rise from s to r + (1 - r) s, with r ``repeated``; a group of one
        member has all of each layer.
        """
        if self.ways == 1:
            return no_division(len(job.layers))
        division = self.division(job.layers)
        if not self.repeated:
            return division
        work_share = self.repeated + (1.0 - self.repeated) * division.work_share
        return replace(division, work_share=work_share)

    def _pass_settings(self, job: DividedWorkload, division: Division) -> PassSettings:
        """Return how the step of a group is computed.

        Gradients are not summed where no other rank has the same part of the model. A
        member updates the parameters that it holds.
        """
        is_only_group = self.gradient_group == "data" and job.world_size <= self.ways
        return PassSettings(
            samples=self.samples(job.batch, self.ways),
            compute_factor=self.compute_factor,
            recompute=self.recompute,
            value_nbytes=self.value_nbytes,
            gradient_collective=None if is_only_group else "allreduce",
            gradient_group=self.gradient_group,
            update_seconds=job.update
            * division.parameters(job)
            / (job.layers.parameters or 1),
        )


def find_divisors(number: int) -> list[int]:
    """Return the divisors of ``number`` from 2 on, itself too, smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)} - {1})
