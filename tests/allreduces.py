"""What tests of allreduces share: ranks on hosts, and steps carried out."""

from typing import Any

import numpy as np

from simshuffle.fabric.allreduce import AllreduceFlows, Hierarchical, Ring, Sharp, Torus, Tree
from simshuffle.fabric.allreduce.dependent import ColumnGrid, halving_doubling_steps
from simshuffle.fabric.allreduce.nccl import double_tree
from simshuffle.fabric.allreduce.steps import Steps


def hosts(world_size: int, gpus: int) -> Any:
    """(M,) the host of each rank, ``gpus`` on each."""
    return (np.arange(world_size) // gpus).astype(np.int32)


def flows_of(algorithm: Any, on: Any, nbytes: float = 1e6) -> AllreduceFlows:
    """The flows of an algorithm that has some, among ranks on hosts ``on``."""
    flows = algorithm.flows(on, nbytes)
    assert flows is not None
    return flows


def carried_out(steps: Steps, contributors: int) -> np.ndarray:
    """(ranks, parts, contributors) how often each has the contribution of a rank in each part;
    ranks from ``contributors`` on have none of their own."""
    last = max(int(ends.max(initial=0)) for ends in (steps.src, steps.dst))
    has = np.zeros((max(last + 1, contributors), steps.parts, contributors), np.int64)
    has[np.arange(contributors), :, np.arange(contributors)] = 1
    for step in range(steps.count):
        before = has.copy()
        for k in np.flatnonzero(steps.step == step):
            part = slice(steps.first[k], steps.end[k])
            sent = before[steps.src[k], part]
            has[steps.dst[k], part] = sent + (has[steps.dst[k], part] if steps.adds[k] else 0)
    return has


# ------------------------------------------------------------------------------- what ranks send


def steps_of(algorithm: Any, on: np.ndarray) -> Steps:
    """What ranks on hosts ``on``, (M,), send, step by step. Under sharp rank M stands for all
    switches, which have nothing to add."""
    if isinstance(algorithm, Ring):
        return ring_steps(len(on))
    if isinstance(algorithm, Tree):
        return tree_steps(on)
    if isinstance(algorithm, Torus):  # 2 (G-1) + 2 steps in R rows of up to G ranks
        grid = algorithm.grid(on)
        return grid_steps(grid, ring_steps(grid.hosts))
    if isinstance(algorithm, Hierarchical):
        grid = ColumnGrid(on, algorithm.leaders)
        ring = algorithm.among_hosts == "ring"
        return grid_steps(grid, (ring_steps if ring else halving_doubling_steps)(grid.hosts))
    if isinstance(algorithm, Sharp):
        return sharp_steps(on, algorithm.rails)
    return algorithm.steps(on)


def ring_steps(count: int) -> Steps:
    """A part goes around the ring and is added to until it is whole at the rank before the one
    where it began, and around once more: 2 (M-1) steps."""
    rank = np.arange(count)
    steps = range(2 * count - 2)
    return Steps.join(
        count,
        (
            (step, rank, (rank + 1) % count, part, part + 1, step < count - 1)
            for step, part in ((step, (rank - step) % count) for step in steps)
        ),
    )


def tree_steps(on: np.ndarray) -> Steps:
    """Of all channels together: a level of the trees, or a hop of the chains, a step."""
    order = np.argsort(on, kind="stable").astype(np.int32)
    is_head = np.diff(on[order], prepend=on[order[0]] - 1) != 0
    host = np.cumsum(is_head) - 1
    heads = order[is_head]
    hop = np.arange(len(order)) - np.flatnonzero(is_head)[host]
    stages = []
    for half, up in enumerate(double_tree(len(heads))):
        below = (hop > 0) | (up[host] >= 0)
        depth = (depths(up)[host] + hop)[below]
        child = order[below]
        parent = np.where(is_head, heads[up[host]], np.roll(order, 1))[below]
        deepest = int(depth.max(initial=0))
        stages.append((deepest - depth, child, parent, half, half + 1, True))
        stages.append((deepest + depth - 1, parent, child, half, half + 1, False))
    return Steps.join(2, stages)


def depths(parent: np.ndarray) -> np.ndarray:
    """(count,) levels below the root, in the tree of these parents."""
    depth, above = np.zeros(len(parent), np.int64), parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def grid_steps(grid: ColumnGrid, among: Steps) -> Steps:
    """All steps, where ``among`` are those of the hosts of a column: 2 (G-1) inside hosts of up to
    G ranks, and those."""
    parts, hops = among.parts, int(grid.size.max()) - 1
    stages = []
    for first, begin, adds in ((1, 0, True), (0, hops + among.count, False)):
        _, column, hop, src, dst = grid.chains(first)
        stages.append((begin + hop, src, dst, column * parts, column * parts + parts, adds))
    for number, leader in enumerate(grid.leader.T):
        before = number * parts
        ends = leader[among.src], leader[among.dst]
        cut = among.first + before, among.end + before
        stages.append((hops + among.step, *ends, *cut, among.adds))
    return Steps.join(grid.columns * parts, stages)


def sharp_steps(on: np.ndarray, rails: int) -> Steps:
    """Up to the switches, and down again."""
    hosts = len(np.unique(on))
    if hosts == 1:
        return grid_steps(ColumnGrid(on, rails), Steps.join(1, ()))
    host, switches = np.arange(hosts), hosts
    among = Steps.join(1, [(0, host, switches, 0, 1, True), (1, switches, host, 0, 1, False)])
    with_switches = np.append(on, on.max() + 1).astype(np.int32)
    return grid_steps(ColumnGrid(with_switches, rails), among)
