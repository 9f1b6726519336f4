"""From the scale of a training to that of a scenario, by a rule that is stated in one sentence.
Learning is never scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from simshuffle.errors import InputError, Problem
from simshuffle.scenario.scenario import Scenario

Scale = Literal["trained", "samples", "ranks"]
SCALES: tuple[str, ...] = get_args(Scale)


@dataclass(frozen=True)
class Trained:
    """The scale of a training.

    Attributes:
        world_size: M.
        num_samples: N.
        local_batch_size: b.
    """

    world_size: int
    num_samples: int
    local_batch_size: int


@dataclass(frozen=True)
class Scaled:
    """What is simulated for a training.

    Attributes:
        world_size, num_samples, local_batch_size: of the simulation.
        samples_each, ranks_each: how many samples and ranks each trained one stands for.
        rule: all of it as one sentence.
    """

    world_size: int
    num_samples: int
    local_batch_size: int
    samples_each: int
    ranks_each: int
    rule: str

    @property
    def values(self) -> dict[str, Any]:
        """The values of the scenario, by dotted key."""
        return {
            "world_size": self.world_size,
            "workload.dataset.num_samples": self.num_samples,
            "workload.local_batch_size": self.local_batch_size,
        }


def scaled(scenario: Scenario, trained: Trained, scale: str | None) -> Scaled:
    """What is simulated.

    Args:
        scenario: whose cluster, model and sizes of samples are taken.
        trained: the training's scale.
        scale: None if the two scales agree; 'trained' takes the training's M, N and b; 'samples'
            the training's M and the scenario's N and b; 'ranks' the scenario's M, N and b.

    Raises:
        InputError: there is no ``scale`` and the scales differ, or they do not go together as it
            says.
    """
    ranks, samples, batch = (
        scenario.world_size,
        scenario.workload.dataset.num_samples,
        scenario.workload.local_batch_size,
    )
    _check_scale(scale, scenario, trained)
    if scale == "trained":
        ranks, samples, batch = trained.world_size, trained.num_samples, trained.local_batch_size
    elif scale == "samples":
        ranks = trained.world_size
    copies = ranks // trained.world_size
    if ranks % trained.world_size:
        remedy = f"Set world_size to a multiple of {trained.world_size}, or give --scale samples."
        raise InputError(
            Problem(
                "world_size",
                f"must be a multiple of the {trained.world_size} trained ranks",
                str(ranks),
                remedy,
            ),
            scenario.name,
        )
    each = samples // (trained.num_samples * copies)
    if each < 1:
        rule = (
            f"must be at least {copies * trained.num_samples}: {copies} times the"
            f" {trained.num_samples} trained samples"
        )
        problem = Problem(
            "workload.dataset.num_samples",
            rule,
            str(samples),
            "Give --scale trained, or train on fewer samples.",
        )
        raise InputError(problem, scenario.name)
    return Scaled(
        ranks,
        samples,
        batch,
        each,
        copies,
        _rule(scenario, trained, (ranks, samples, batch), each, copies),
    )


def _check_scale(scale: str | None, scenario: Scenario, trained: Trained) -> None:
    """See that ``scale`` is one of `SCALES`, or None where the scales agree."""
    ranks, samples = scenario.world_size, scenario.workload.dataset.num_samples
    if scale is None and (ranks, samples) != (trained.world_size, trained.num_samples):
        given = (
            f"{ranks} ranks and {samples} samples in the scenario, {trained.world_size} and"
            f" {trained.num_samples} in the training"
        )
        remedy = (
            "Give --scale trained, samples or ranks, or set world_size and"
            " workload.dataset.num_samples."
        )
        raise InputError(
            Problem("--scale", "is needed where the scales differ", given, remedy), scenario.name
        )
    if scale is not None and scale not in SCALES:
        raise InputError(
            Problem(
                "--scale", f"must be one of {', '.join(SCALES)}", repr(scale), "Name one of them."
            ),
            "command line",
        )


def _rule(
    scenario: Scenario, trained: Trained, simulated: tuple[int, int, int], each: int, copies: int
) -> str:
    ranks, samples, batch = simulated
    dataset = scenario.workload.dataset.name
    if copies == 1:
        parts = [
            f"{ranks} ranks{f' and {samples} samples' if samples == trained.num_samples else ''} as"
            " trained"
        ]
    else:
        parts = [f"each of the {trained.world_size} trained ranks stands for {copies} of {ranks}"]
    if samples != trained.num_samples:
        parts.append(f"each trained sample stands for {each} of {dataset}")
    if batch != trained.local_batch_size:
        parts.append(f"local batch {batch} (trained: {trained.local_batch_size})")
    parts.append(
        f"sizes of {dataset} and step times of {scenario.workload.model.name} on"
        f" {scenario.cluster.name}"
    )
    return "; ".join(parts)
