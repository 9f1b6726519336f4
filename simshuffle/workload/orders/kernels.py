"""Compiled loops of orders: shuffles, a buffer, and samples sorted by rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.spec.compiling import entry

NUMBERS_AT_ONCE = 1 << 16
"""Numbers that are drawn at once; they fit the caches."""


@entry
def swap_forward(samples: Ints64, partners: Ints64) -> None:
    """Swap sample k with sample ``partners[k]`` for each k in turn, in place.

    Args:
        samples: (n,) samples.
        partners: (n - 1,) positions in ``samples``, which are not checked.
    """
    for position in range(partners.shape[0]):
        partner = partners[position]
        sample = samples[position]
        samples[position] = samples[partner]
        samples[partner] = sample


@entry
def mix(
    stream: Ints64,
    size: int,
    initial: int,
    words: NDArray[np.uint32],
    buffer: Ints64,
    out: Ints64,
) -> None:
    """Write to ``out`` the samples of ``stream`` in the order in which a buffer hands
    them out.

    Args:
        stream: (n,) samples in the order of reading.
        size: samples to which the buffer grows; 0 or 1 keeps the order.
        initial: samples that the buffer holds, if ``size`` allows, before it hands out
            the first.
        words: 32 random bits each, more than are needed, which is not checked: a draw
            rejects those beyond the buffer, as `random.Random.randint` does.
        buffer: (min(size, n) + 2,) scratch.
        out: (n,) is overwritten by all samples of ``stream``.
    """
    num_read = 0
    num_out = 0
    word = 0
    num_buffered = 0
    while num_out < out.shape[0]:
        if num_read < stream.shape[0]:
            grows = num_buffered + 1 < size and num_read + 1 < stream.shape[0]
            arrivals = 2 if grows else 1
            for _ in range(arrivals):
                buffer[num_buffered] = stream[num_read]
                num_buffered += 1
                num_read += 1
            if num_buffered < min(initial, size) and num_read < stream.shape[0]:
                continue

        # a slot below num_buffered: the highest bits of the first word whose highest bits are below
        shift = 32
        while num_buffered >> (32 - shift):
            shift -= 1
        while words[word] >> shift >= num_buffered:
            word += 1
        slot = words[word] >> shift
        word += 1

        out[num_out] = buffer[slot]
        num_out += 1
        num_buffered -= 1
        buffer[slot] = buffer[num_buffered]


@entry
def swap_items(order: Ints, last: int, numbers: Ints) -> int:
    """Swap each item, from index ``last`` down to 1, with an item at or before it.

    The lowest bits of the next of ``numbers`` (uint32), as many as ``last`` has, are
    the index of that item; a number that is too large is passed over. There are at most
    ``last`` numbers. Returns the index of the next item to swap.
    """
    mask = 1
    while mask < last:
        mask = 2 * mask + 1
    for number in numbers:
        if last <= mask >> 1:
            mask >>= 1
        index = np.int64(number) & mask
        is_passed_over = index > last
        chosen = last if is_passed_over else index  # without a branch to mispredict
        sample = order[last]
        order[last] = order[chosen]
        order[chosen] = sample
        last -= not is_passed_over
    return last


def shuffle(order: Ints, rng: np.random.Generator) -> None:
    """Shuffle an array of int32 in place as ``rng.shuffle`` does, with equal orders and
    an equal ``rng`` afterwards. numpy swaps once for each number that it draws, and each
    swap waits for memory; here many swaps wait at once.
    """
    last = len(order) - 1
    while last > 0:
        # no item takes less than one number: none is drawn in vain
        count = min(last, NUMBERS_AT_ONCE)
        numbers = rng.integers(0, 1 << 32, count, dtype=np.uint32)
        last = int(swap_items(order, last, numbers))


@entry
def sort_by_owner(
    order: Ints, owner: Ints, next_slot: Ints, sorted_order: Ints
) -> None:
    """Write the samples of ``order`` into ``sorted_order``, rank by rank, and a rank's
    samples in their order. ``next_slot`` (M,) is the first slot of each rank; it changes.
    """
    for sample in order:
        rank = owner[sample]
        sorted_order[next_slot[rank]] = sample
        next_slot[rank] += 1
