"""Compiled loops of orders whose every step depends on the step before."""

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
