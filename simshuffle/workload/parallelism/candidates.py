"""The ways to divide training that are tried when nobody says which."""

from __future__ import annotations

from typing import Any

from simshuffle.workload.layers import LayerList
from simshuffle.workload.parallelism.base import GroupParallelism, Parallelism
from simshuffle.workload.parallelism.data import Data, ShardedData
from simshuffle.workload.parallelism.divided import Channel, Filter, Spatial, Tensor
from simshuffle.workload.parallelism.pipeline import Pipeline

MOST_PASSES = 4096
"""Stages times microbatches of a pipeline that is tried; with more, it would take long to say how
long it takes."""


SHARED = (
    ("precision", "optimiser", "recompute"),
    ("compute_factor", "bus_bandwidth", "step_latency", "group_batch"),
)
"""What all candidates have alike, and what those with groups."""


def name_of(way: Parallelism, world_size: int) -> str:
    """What tables call it: 'spatial' if all ranks are one group, 'data+spatial (4)' if groups have
    4 members each, 'ZeRO-3'."""
    if isinstance(way, ShardedData):
        return f"{way.short_name}-{way.stage}"
    ways = way.group_size(world_size)
    if not isinstance(way, GroupParallelism) or ways == world_size:
        return way.short_name
    return f"data+{way.short_name} ({ways})"


def candidates(
    layers: LayerList,
    world_size: int,
    batch: float,
    gpus_per_host: int,
    like: Parallelism | None = None,
) -> dict[str, Parallelism]:
    """What may be worth trying, by its name (`name_of`), always in the same order; a rank has
    ``batch`` samples in an iteration. All get precision, optimiser, recomputing and, if it has
    some, factors of groups as ``like`` has them.

    Groups of all ranks, of 2, 4, 8 ... as far as a host has GPUs, and of each divisor of these.
    Those of all ranks are there even if the network cannot be divided so: `Parallelism.problems`
    says why.
    """
    known = {} if like is None else like.model_dump(mode="json")
    shared, of_groups = ({key: known[key] for key in keys if key in known} for keys in SHARED)
    found: list[Parallelism] = [Data(**shared)]
    if world_size > 1:
        found += [ShardedData(stage=stage, **shared) for stage in (1, 2, 3)]
        sizes = [2**n for n in range(1, gpus_per_host.bit_length())]
        sizes += [n for n in range(2, gpus_per_host + 1) if gpus_per_host % n == 0]
        sizes = sorted(set(sizes))
        groups = [n for n in sizes if n < world_size and world_size % n == 0]
        for ways in (world_size, *groups):
            of_ways = _of_ways(layers, ways, batch, {**shared, **of_groups})
            found += [
                way
                for way in of_ways
                if ways == world_size or not list(way.problems(layers, world_size, batch))
            ]
    return {name_of(way, world_size): way for way in found}


def _of_ways(
    layers: LayerList, ways: int, batch: float, shared: dict[str, Any]
) -> list[GroupParallelism]:
    """The ways with so many members of a group that suit a transformer, or a network of pixels."""
    pipeline = Pipeline(stages=ways, **shared)
    samples = pipeline.samples(batch, ways)
    most = max(MOST_PASSES // ways, 1)
    parts = [n for n in range(1, min(4 * ways, most) + 1) if samples % n == 0]
    pipeline = Pipeline(stages=ways, microbatches=max(parts, default=1), **shared)
    if any(each.tensor for each in layers.layers):
        return [Tensor(ways=ways, **shared), pipeline]
    return [
        Spatial(ways=ways, grid=even_grid(layers.input[1:], ways), **shared),
        Filter(ways=ways, **shared),
        Channel(ways=ways, **shared),
        pipeline,
    ]


def even_grid(extents: tuple[int, ...], ways: int) -> list[int] | None:
    """As many members along each extent as make parts about as long as they are wide; None if all
    are along the longest."""
    grid = [1] * len(extents)
    left, factor = ways, 2
    while left > 1 and grid:
        if left % factor:
            factor += 1
            continue
        left //= factor
        longest = max(range(len(grid)), key=lambda axis: (extents[axis] / grid[axis], -axis))
        grid[longest] *= factor
    return grid if sum(n > 1 for n in grid) > 1 else None
