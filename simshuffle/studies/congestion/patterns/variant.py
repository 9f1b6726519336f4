"""Variants of an exchange: a pattern, how many samples travel together, and whether all ranks wait
for each other. Names only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Batching = Literal["sample", "iteration", "all"]

PATTERNS = {
    "all_to_all": "every rank's bytes cut equally over all other ranks, all messages at once",
    "random_permutations": (
        "for every message a fresh random permutation of the ranks in which none keeps its own"
    ),
    "linear_shift": (
        "message k goes to rank (r + s_k) mod M, the distances s_k spread evenly over 1 to M - 1"
    ),
    "xor": (
        "message k goes to rank r xor s_k, the masks s_k spread evenly over 1 to M - 1; M must be a"
        " power of two"
    ),
    "pairing_random": "one partner for the epoch: a random matching of the ranks",
    "pairing_importance": (
        "one partner for the epoch: the rank of i-th lowest importance with that of i-th highest"
    ),
    "pairing_topology": (
        "one partner for the epoch: at random on the same leaf switch; those left over with the"
        " nearest"
    ),
}
"""Name and meaning of every pattern; r is the sender, M the number of ranks."""

REPEATED = frozenset({"all_to_all", "linear_shift", "xor"})
"""Patterns without chance: only the sizes of the samples differ from seed to seed."""

BATCHINGS: tuple[Batching, ...] = ("sample", "iteration", "all")


@dataclass(frozen=True, order=True)
class Variant:
    """One way of carrying out an exchange.

    Attributes:
        pattern: one of `PATTERNS`.
        batching: samples in a message: one 'sample', those of one 'iteration', or 'all'.
        barrier: whether a message waits until the messages before it have ended on all ranks, and
            not on its sender alone.
    """

    pattern: str
    batching: Batching = "all"
    barrier: bool = False

    def __str__(self) -> str:
        if self.pattern == "all_to_all":
            return self.pattern
        return f"{self.pattern} {self.batching}{' barrier' if self.barrier else ''}"


def variants(patterns: Iterable[str]) -> list[Variant]:
    """The variants of ``patterns`` that make sense: barriers only between messages, all-to-all only
    at once."""
    out = []
    for pattern in patterns:
        if pattern == "all_to_all":
            out.append(Variant(pattern))
        else:
            out += [
                Variant(pattern, batching, barrier)
                for batching in BATCHINGS[:2]
                for barrier in (True, False)
            ]
            out.append(Variant(pattern))
    return out


def needs_power_of_two(pattern: str, world_size: int) -> bool:
    """Whether ``pattern`` cannot be made for that many ranks."""
    return pattern == "xor" and world_size & (world_size - 1) != 0
