"""Shuffle buffers of loaders: the order in which each kind hands out the samples that
it takes.
"""

from __future__ import annotations

import random

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.streams import concatenate_or_empty


def shuffle_by_replacement(
    samples: Ints64, size: int, rng: np.random.Generator
) -> Ints64:
    """Return ``samples`` in the order in which a buffer of ``size`` samples hands them
    out.

    The buffer is filled first. Then it hands out one sample at random for each that it
    takes, and at the end all that remain, in random order. ``samples`` (n,) does not
    change; ``size`` is at least 1.
    """
    buffer = samples[:size].copy()
    arriving = samples[size:]
    # all slots in one draw: the buffer stays full as long as samples arrive
    slots = rng.integers(0, max(1, len(buffer)), size=len(arriving))
    handed_out = np.empty(len(arriving), dtype=np.int64)
    for index, slot in enumerate(slots):
        handed_out[index] = buffer[slot]
        buffer[slot] = arriving[index]
    return np.concatenate([handed_out, rng.permutation(buffer)])


def shuffle_in_buffer(
    stream: Ints64 | list[int], size: int, initial: int, rng: random.Random
) -> Ints64:
    """Return the samples of ``stream`` in the order in which a buffer hands them out.

    The buffer hands out samples as soon as it holds ``initial``, or ``size`` if that is
    less. Meanwhile it grows to ``size`` by one sample for each that it hands out. A
    ``size`` of 0 or 1 keeps the order. More is taken from ``rng`` than the library
    takes, so it is of no use afterwards.
    """
    from simshuffle.workload.orders.kernels import mix  # noqa: PLC0415 - numba

    samples = np.asarray(stream, np.int64)
    # a draw takes fewer than two words on average: n draws need more than this once in 2^700
    words = np.frombuffer(rng.randbytes(4 * (4 * len(samples) + 1024)), np.dtype("<u4"))
    out = np.empty_like(samples)
    mix(
        samples,
        size,
        initial,
        words,
        np.empty(min(size, len(samples)) + 2, np.int64),
        out,
    )
    return out


def interleave_runs(
    runs: list[Ints64], piece_size: int, first: int = 0
) -> tuple[Ints64, Ints64]:
    """Return the samples of R runs, a piece of each in turn from run ``first`` on.

    Args:
        runs: samples (n,) of each; a run that has ended is passed over.
        piece_size: samples of a piece; the last piece of a run may be smaller.
        first: the run of the first piece.

    Returns:
        (n,) the samples; and (n,) the piece of each, not decreasing: piece k of run r
        is k R + (r - first) mod R.
    """
    num_runs = len(runs)
    piece = concatenate_or_empty(
        [
            np.arange(len(run)) // piece_size * num_runs + (index - first) % num_runs
            for index, run in enumerate(runs)
        ]
    )
    order = np.argsort(piece, kind="stable")
    return concatenate_or_empty(runs)[order], piece[order]


def shuffle_by_halves(
    samples: Ints64, piece_ends: Ints64, size: int, rng: np.random.Generator
) -> list[Ints64]:
    """Return ``samples`` in the order in which a buffer hands them out that then keeps
    one half.

    The buffer takes piece after piece. Once it has ``size`` samples or more it is
    shuffled, and hands out all but ``size`` // 2 samples.

    Args:
        samples: (n,) in the order in which they come.
        piece_ends: (pieces,) the position after the last sample of each piece.
        size: samples with which the buffer is full.
        rng: that shuffles.

    Returns:
        An array for each time that it hands out samples; the last is what remained,
        shuffled too, perhaps nothing.
    """
    buffer = samples[:0]
    num_read = 0
    handed_out = []
    while True:
        # the first piece with which the buffer has ``size`` samples or more
        piece = np.searchsorted(piece_ends, num_read + size - len(buffer))
        if piece == len(piece_ends):
            break
        buffer = rng.permutation(
            concatenate_or_empty([buffer, samples[num_read : piece_ends[piece]]])
        )
        num_read = piece_ends[piece]
        num_out = len(buffer) - size // 2
        handed_out.append(buffer[:num_out])
        buffer = buffer[num_out:]
    return [
        *handed_out,
        rng.permutation(concatenate_or_empty([buffer, samples[num_read:]])),
    ]


def shuffle_in_batches(
    blocks: list[Ints64], batch_size: int, buffer_size: int, rng: np.random.Generator
) -> Ints64:
    """Return the samples of ``blocks`` in the order in which the buffer of a rank hands
    them out.

    Blocks wait until there are 1.5 times ``buffer_size`` samples and a batch. Then all
    are permuted, and batches are handed out while half of ``buffer_size`` is left. The
    last batch may be smaller.

    Args:
        blocks: samples (n,) of each, in the order of reading.
        batch_size: samples that are handed out at once.
        buffer_size: samples that the buffer has at least; ``batch_size`` if that is
            larger.
        rng: from which a permutation is drawn each time.

    Returns:
        (n,) all batches joined.
    """
    buffer_size = max(buffer_size, batch_size)
    min_shuffled = max(1, buffer_size // 2)
    full_size = int(buffer_size * 1.5)
    # what is left of the last permutation, and blocks that came since
    shuffled = concatenate_or_empty([])
    waiting_blocks: list[Ints64] = []
    batches = []
    for block in (*blocks, None):  # None: no block comes any more
        if block is not None and len(block):
            waiting_blocks.append(block)
        while num_samples := len(shuffled) + sum(map(len, waiting_blocks)):
            has_batch = num_samples >= batch_size
            is_full = num_samples - batch_size >= full_size
            if block is not None and not (
                has_batch and (len(shuffled) >= min_shuffled or is_full)
            ):
                break
            if waiting_blocks and (block is None or len(shuffled) <= min_shuffled):
                shuffled = rng.permutation(
                    concatenate_or_empty([*waiting_blocks, shuffled])
                )
                waiting_blocks = []
            batches.append(shuffled[:batch_size])
            shuffled = shuffled[batch_size:]
    return concatenate_or_empty(batches)


def worker_generator(
    seed: int, epoch: int, worker: int, workers: int
) -> np.random.Generator:
    """Return a new generator from which a worker of Hugging Face `datasets` draws, on
    any rank.

    The worker counts only where a rank has several ``workers``.
    """
    rng = np.random.default_rng(seed)
    # the library makes a new generator of the first number of the old one for each of these
    if epoch:
        rng = np.random.default_rng(rng.integers(0, 1 << 63) - epoch)
    if workers > 1:
        rng = np.random.default_rng(rng.integers(0, 1 << 63) - worker)
    return rng
