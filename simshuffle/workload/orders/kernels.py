"""Compiled loops of orders whose every step depends on the one before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.compiling import entry


@entry
def swap_forward(samples: Ints64, partners: Ints64) -> None:
    """Swap sample k with sample ``partners[k]`` for each k in turn, in place.

    Args:
        samples: (n,) samples.
        partners: (n - 1,) places in ``samples``.
    """
    for place in range(partners.shape[0]):
        partner = partners[place]
        sample = samples[place]
        samples[place] = samples[partner]
        samples[partner] = sample


@entry
def mix(
    stream: Ints64, size: int, initial: int, words: NDArray[np.uint32], buffer: Ints64, out: Ints64
) -> None:
    """Write to ``out`` the samples of ``stream`` in the order in which a buffer hands them out.

    Args:
        stream: (n,) samples in the order of reading.
        size, initial: see `simshuffle.workload.orders.buffers.buffered`.
        words: 32 random bits each; `random.Random.randint` takes as many as it needs.
        buffer: (min(size, n) + 2,) scratch.
        out: (n,) samples.
    """
    read, number, word, count = 0, 0, 0, 0
    while number < out.shape[0]:
        if read < stream.shape[0]:
            arrivals = 2 if count + 1 < size and read + 1 < stream.shape[0] else 1
            for _ in range(arrivals):
                buffer[count] = stream[read]
                count += 1
                read += 1
            if count < min(initial, size) and read < stream.shape[0]:
                continue

        # a place below count: the highest bits of the first word whose highest bits are below it
        shift = 32
        while count >> (32 - shift):
            shift -= 1
        while words[word] >> shift >= count:
            word += 1
        place = words[word] >> shift
        word += 1

        out[number] = buffer[place]
        number += 1
        count -= 1
        buffer[place] = buffer[count]
