"""The ways to divide training that are tried when the user names none."""

from __future__ import annotations

from typing import Any

from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.base import GroupParallelism, Parallelism
from simshuffle.workload.parallelism.data import Data, ShardedData
from simshuffle.workload.parallelism.divided import Channel, Filter, Spatial, Tensor
from simshuffle.workload.parallelism.pipeline import (
    MICROBATCHES,
    Pipeline,
    largest_divisor,
)

MAX_PASSES = 4096
"""The most stages times microbatches of a pipeline that is tried; with more, estimating
its step would take long.
"""


SHARED_KEYS = (
    ("precision", "optimiser", "recompute"),
    ("compute_factor", "bus_bandwidth", "step_latency", "group_batch"),
)
"""The keys that all candidates share, and the keys that those with groups share."""


def parallelism_name(parallelism: Parallelism, world_size: int) -> str:
    """Return the name in tables.

    'spatial' if all ranks are one group, 'data+spatial (4)' if groups have 4 members
    each, 'ZeRO-3'.
    """
    if isinstance(parallelism, ShardedData):
        return f"{parallelism.short_name}-{parallelism.stage}"
    num_members = parallelism.group_size(world_size)
    if not isinstance(parallelism, GroupParallelism) or num_members == world_size:
        return parallelism.short_name
    return f"data+{parallelism.short_name} ({num_members})"


def list_candidates(
    layers: LayerList,
    world_size: int,
    batch: float,
    gpus_per_host: int,
    template: Parallelism | None = None,
) -> dict[str, Parallelism]:
    """Return the ways that may be worth trying, by `parallelism_name`, in a fixed
    order.

    Groups have all ranks; or 2, 4, 8 ... members up to the GPUs of a host, or a divisor
    of these GPUs, if the group size divides ``world_size``. Groups of all ranks are
    there even if the network cannot be divided so, and `Parallelism.problems` says why;
    smaller ones only if it can. For one rank there is data parallelism alone.

    Args:
        layers: of the network.
        world_size: M.
        batch: samples of a rank in an iteration.
        gpus_per_host: GPUs of a host.
        template: from which all candidates take precision, optimiser, recomputing and,
            if it has some, factors of groups.
    """
    template_keys = {} if template is None else template.model_dump(mode="json")
    shared, shared_by_groups = (
        {key: template_keys[key] for key in keys if key in template_keys}
        for keys in SHARED_KEYS
    )
    candidates: list[Parallelism] = [Data(**shared)]
    if world_size > 1:
        candidates += [ShardedData(stage=stage, **shared) for stage in (1, 2, 3)]
        sizes = {2**power for power in range(1, gpus_per_host.bit_length())}
        sizes |= {
            size for size in range(2, gpus_per_host + 1) if gpus_per_host % size == 0
        }
        group_sizes = [
            n for n in sorted(sizes) if n < world_size and world_size % n == 0
        ]
        for num_members in (world_size, *group_sizes):
            candidates += [
                candidate
                for candidate in _group_candidates(
                    layers, num_members, batch, {**shared, **shared_by_groups}
                )
                if num_members == world_size
                or not list(candidate.problems(layers, world_size, batch))
            ]
    return {
        parallelism_name(candidate, world_size): candidate for candidate in candidates
    }


def _group_candidates(
    layers: LayerList, num_members: int, batch: float, shared: dict[str, Any]
) -> list[GroupParallelism]:
    """Return the ways with groups of ``num_members`` that suit the network.

    Tensor and pipeline for a network with layers that tensor parallelism divides;
    spatial, filter, channel and pipeline for others. Whether training can be divided so
    is not checked.

    Args:
        layers: of the network.
        num_members: of a group.
        batch: samples of a rank in an iteration.
        shared: keys and values that all ways have.
    """
    # first without microbatches, to ask how many samples a group has
    pipeline = Pipeline(stages=num_members, **shared)
    samples = pipeline.samples(batch, num_members)
    max_microbatches = min(
        MICROBATCHES * num_members, max(MAX_PASSES // num_members, 1)
    )
    microbatches = largest_divisor(samples, max_microbatches)
    pipeline = Pipeline(stages=num_members, microbatches=microbatches, **shared)
    if any(layer.tensor for layer in layers.layers):
        return [Tensor(ways=num_members, **shared), pipeline]
    grid = even_grid(layers.input[1:], num_members)
    return [
        Spatial(ways=num_members, grid=grid, **shared),
        Filter(ways=num_members, **shared),
        Channel(ways=num_members, **shared),
        pipeline,
    ]


def even_grid(extents: tuple[int, ...], num_members: int) -> list[int] | None:
    """Return members along each extent so that parts are about as long as they are
    wide: the prime factors of ``num_members``, each along the longest side then.

    None if all members are along the longest extent, or there are no extents.
    """
    grid = [1] * len(extents)
    remaining = num_members
    factor = 2
    while remaining > 1 and grid:
        if remaining % factor:
            factor += 1
            continue
        remaining //= factor
        # parts are longest along this axis; the first of equals
        longest = max(
            range(len(grid)), key=lambda axis: (extents[axis] / grid[axis], -axis)
        )
        grid[longest] *= factor
    return grid if sum(members > 1 for members in grid) > 1 else None
