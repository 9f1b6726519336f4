"""What all ways to divide training have in common, and those with groups of ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simshuffle.errors import Problem
from simshuffle.spec.record import Bandwidth, Count, Fraction, NonNegative, Seconds, Sourced
from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.division import (
    Division,
    Passes,
    divided_step,
    kept_values,
    undivided,
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

    ``precision`` 'fp32' keeps 4 B of every weight, gradient and activation; 'mixed' keeps 2 B, and
    an FP32 copy of the weights with the optimiser (Rajbhandari et al., arXiv 1910.02054, 3.1).

    Attributes:
        precision: of weights, gradients and activations: 'fp32', or 'mixed' with FP32 copies of the
            weights.
        optimiser: which values are kept for each weight: none ('sgd'), one ('momentum'), two
            ('adam').
        recompute: whether activations are computed again in the backward pass, but for the inputs
            of blocks.
    """

    short_name: ClassVar[str]
    """What tables call it."""
    by_data: ClassVar[bool] = False
    """Whether every rank goes through a step by itself."""

    precision: Literal["fp32", "mixed"] = "fp32"
    optimiser: Literal["sgd", "momentum", "adam"] = "momentum"
    recompute: bool = False

    @property
    def value_nbytes(self) -> int:
        """Bytes of a weight, a gradient and an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def optimiser_nbytes(self) -> int:
        """Bytes that the optimiser keeps for a parameter."""
        return 4 * (OPTIMISER[self.optimiser] + (self.precision == "mixed"))

    @abstractmethod
    def group_size(self, world_size: int) -> int:
        """Ranks that work on the same samples together: the members of a model-parallel group."""

    @abstractmethod
    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """Why it cannot be: paths relative to ``workload``, with the nearest that would work. A
        rank has ``batch`` samples in an iteration."""

    @abstractmethod
    def step(self, job: DividedWorkload, most: int | None = None) -> Step:
        """What a group does in an iteration; layers next to one another go together in ``most``
        pieces at most, None for each by itself."""

    @abstractmethod
    def memory(self, job: DividedWorkload) -> GpuMemory:
        """What the fullest GPU keeps."""

    def divided_memory(self, job: DividedWorkload, division: Division, passes: Passes) -> GpuMemory:
        """What a member of a group keeps, each having the same."""
        parameters = division.parameters(job)
        whole = 0, len(job.layers)
        saved, working = kept_values(job.layers, division.kept, *whole, passes.recompute)
        nbytes = passes.samples * passes.value_nbytes
        return GpuMemory(
            weights=parameters * self.value_nbytes,
            gradients=parameters * self.value_nbytes,
            optimiser=parameters * self.optimiser_nbytes,
            activations=nbytes * (saved + working),
            buffers=nbytes * division.buffers,
        )


class OwnSamples(Parallelism):
    """Every rank trains on samples of its own."""

    def group_size(self, world_size: int) -> int:
        """One: nobody works on the samples of another."""
        return 1

    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """None."""
        return iter(())

    def passes(self, job: DividedWorkload, summed: Collective, update: float) -> Passes:
        """How a step is computed in which all sum gradients so, and an update takes that long."""
        each = job.batch, 1.0, self.recompute, self.value_nbytes
        return Passes(*each, summed=summed, group="all", update=update)


Several = Annotated[int, Field(ge=2, le=2**53)]
"""Members of a group, at least two."""


class GroupParallelism(Parallelism):
    """Groups of neighbouring ranks that work on the same samples together. Where there are several
    groups, each has samples of its own, and gradients are summed between them.

    Attributes:
        compute_factor: how many times as long a divided layer takes as its ideal part of the whole;
            small kernels use less of a GPU.
        bus_bandwidth: what a rank sends at most within its group; if left out it follows from the
            machine.
        step_latency: of a step of a collective within a group; if left out it follows from the
            machine.
        group_batch: samples of a group in an iteration; if left out, of each of its ranks
            'local_batch_size'.
    """

    ways_key: ClassVar[str] = "ways"
    """What the number of members is called."""

    compute_factor: NonNegative = 1.0
    bus_bandwidth: Bandwidth | None = None
    step_latency: Seconds | None = None
    group_batch: Count | None = None

    def samples(self, batch: float, ways: int) -> float:
        """Of a group in an iteration, if ``batch`` is of each of ``ways`` ranks."""
        return ways * batch if self.group_batch is None else float(self.group_batch)

    @abstractmethod
    def impossible(self, layers: LayerList, ways: int) -> str:
        """Why a network cannot be divided in as many ways, as a rule it breaks; '' if it can."""

    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """As of `Parallelism`."""
        ways, path = self.group_size(world_size), f"parallelism.{self.ways_key}"
        rules = [self.impossible(layers, ways)]
        if world_size % ways:
            rules.append(f"must divide the world size, {world_size}")
        if any(rules):
            remedy = self._nearest(layers, world_size, ways)
            yield from (Problem(path, rule, str(ways), remedy) for rule in rules if rule)
        reads = ways * batch
        if self.group_batch is not None and self.group_batch > reads * (1 + 1e-9):
            yield Problem(
                "parallelism.group_batch",
                f"must be at most the {reads:g} samples that a group reads in an iteration",
                str(self.group_batch),
                f"Use {int(reads)}." if reads >= 1 else "Leave it out.",
            )

    def _nearest(self, layers: LayerList, world_size: int, ways: int) -> str:
        """The nearest number of ways that works, as a remedy."""
        work = [number for number in divisors(world_size) if not self.impossible(layers, number)]
        if not work:
            return "Use another strategy, such as 'data'."
        return f"Use {min(work, key=lambda number: (abs(number - ways), number))}."


class DividedLayers(GroupParallelism):
    """Groups of which every member has a part of each layer.

    Attributes:
        ways: members of a group; all ranks, or a number that divides them.
        repeated: share of the work of divided layers that every member does all the same, as code
            that divides weights but not all operations.
    """

    gathered: ClassVar[Collective] = "allgather"
    """How a group gets its samples."""
    gradient_group: ClassVar[Group] = "data"
    """Who sums gradients: those with the same part of the model, or all."""

    ways: Several
    repeated: Fraction = 0.0

    def group_size(self, world_size: int) -> int:
        """As given."""
        return self.ways

    @abstractmethod
    def division(self, layers: LayerList) -> Division:
        """What of each layer a member has, for two members at least."""

    def step(self, job: DividedWorkload, most: int | None = None) -> Step:
        """As of `Parallelism`."""
        inputs = []
        if self.ways > 1:
            nbytes = self.samples(job.batch, self.ways) * job.input_nbytes
            parts = self.ways if self.gathered == "alltoall" else 1
            inputs = [Node("input", collective=self.gathered, nbytes=nbytes / parts)]
        division = self._divided(job)
        return divided_step(job, division, self._passes(job, division), inputs, most)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """As of `Parallelism`."""
        division = self._divided(job)
        return self.divided_memory(job, division, self._passes(job, division))

    def _divided(self, job: DividedWorkload) -> Division:
        if self.ways == 1:
            return undivided(len(job.layers))
        division = self.division(job.layers)
        if not self.repeated:
            return division
        work = self.repeated + (1.0 - self.repeated) * division.work
        return replace(division, work=work)

    def _passes(self, job: DividedWorkload, division: Division) -> Passes:
        alone = self.gradient_group == "data" and job.world_size <= self.ways
        return Passes(
            self.samples(job.batch, self.ways),
            self.compute_factor,
            self.recompute,
            self.value_nbytes,
            summed=None if alone else "allreduce",
            group=self.gradient_group,
            update=job.update * division.parameters(job) / (job.layers.parameters or 1),
        )


def divisors(number: int) -> list[int]:
    """All of at least 2, smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)} - {1})
