"""What all ways to divide training have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from simshuffle.errors import Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism.division import Division, Passes, divided_memory
from simshuffle.parallelism.step import Collective, Job, Memory, Step
from simshuffle.spec.record import Sourced

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
    def step(self, job: Job, most: int | None = None) -> Step:
        """What a group does in an iteration; layers next to one another go together in ``most``
        pieces at most, None for each by itself."""

    @abstractmethod
    def memory(self, job: Job) -> Memory:
        """What the fullest GPU keeps."""

    def divided_memory(self, job: Job, division: Division, passes: Passes) -> Memory:
        """What a member of a group keeps, each having the same."""
        return divided_memory(job, division, passes, self.optimiser_nbytes, self.value_nbytes)


class OwnSamples(Parallelism):
    """Every rank trains on samples of its own."""

    def group_size(self, world_size: int) -> int:
        """One: nobody works on the samples of another."""
        return 1

    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """None."""
        return iter(())

    def passes(self, job: Job, summed: Collective, update: float) -> Passes:
        """How a step is computed in which all sum gradients so, and an update takes that long."""
        return Passes(
            samples=job.batch,
            factor=1.0,
            recompute=self.recompute,
            value_nbytes=self.value_nbytes,
            summed=summed,
            group="all",
            update=update,
        )
