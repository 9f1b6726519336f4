"""Levanter: full, era and block shuffle, from permutations that need no table."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import handed_out_by_ranks, joined, need_smaller

Key = tuple[int, int]
"""Two words of 32 bits."""

_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Levanter(Order):
    """Levanter, a component of a mixture, bit by bit: `full` and `block` as in marin-levanter
    0.2.20 (June 2026), `era` as in levanter 1.2.dev1644, before it was removed.

    `full` permutes all samples; `era` permutes each run of ``era_length`` by itself; `block`
    permutes blocks of ``io_block_size``, and then the samples of every ``window_blocks`` of them. A
    last block that is not full stays last. The permutation is the same in every epoch. A batch is a
    run of M b places, of which each rank takes its b; it reads by itself, so worker 0 hands out
    everything.

    What is fetched at once is a block: TensorStore reads chunks of 256 Ki tokens, 256 samples of
    1024, for a single sample too. The index of the Zarr shard in which a chunk lies (8196 bytes for
    512 chunks) is one more read, unless it is still in memory.

    What the three read was measured in marin-community/marin issue 2917; not all of the reads of
    `era` and `block` are explained (`tests/physics/test_shuffle_buffers.py`).

    Attributes:
        shuffle: which of the three.
        era_length: samples of an era.
        io_block_size: samples of a block.
        window_blocks: blocks among which samples are mixed.
    """

    kind: Literal["levanter"]
    unit: ClassVar[Unit] = "block"  # the chunk of the store in which a sample lies
    shuffle: Literal["full", "era", "block"] = "block"
    era_length: int = Field(default=1024, ge=1)
    io_block_size: int = Field(default=256, ge=1)
    window_blocks: int = Field(default=512, ge=1)

    default_sources: ClassVar[dict[str, str]] = {
        "era_length": "marin-community/marin, experiments/exp2917_shuffle_block.py",
        "io_block_size": "marin-community/marin pull request 5246",
        "window_blocks": "marin-community/marin pull request 5246",
    }

    @property
    def short_name(self) -> str:
        """'levanter' and how it shuffles."""
        return f"levanter {self.shuffle}"

    @property
    def block(self) -> int:
        """``io_block_size``."""
        return self.io_block_size

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError if an era or a window is larger than the set."""
        if self.shuffle == "era":
            need_smaller("era_length", self.era_length, data)
        if self.shuffle == "block":
            need_smaller("window_blocks", self.window_blocks * self.io_block_size, data)
        order = {"full": permutation, "era": self._eras, "block": self._windows}[self.shuffle](
            data.size, key_of(seed)
        )
        place = np.arange(data.size)
        rank = place // readers.batch_size % readers.world_size
        ends = np.cumsum(np.bincount(rank, minlength=readers.world_size))
        parts = np.split(order[np.argsort(rank, kind="stable")], ends[:-1])
        return handed_out_by_ranks(parts)

    def _eras(self, size: int, key: Key) -> Ints64:
        starts = range(0, size, self.era_length)
        return joined(
            [
                start + permutation(min(self.era_length, size - start), fold_in(key, era))
                for era, start in enumerate(starts)
            ]
        )

    def _windows(self, size: int, key: Key) -> Ints64:
        of_blocks, of_windows, of_tail = split(key, 3)
        full, tail = divmod(size, self.io_block_size)
        blocks = permutation(full, of_blocks)
        within = np.arange(self.io_block_size)
        order = []
        for window, first in enumerate(range(0, full, self.window_blocks)):
            members = blocks[first : first + self.window_blocks]
            samples = (members[:, None] * self.io_block_size + within).ravel()
            order.append(samples[permutation(len(samples), fold_in(of_windows, window))])
        # the last window holds the tail, alone if the full blocks fill whole windows
        tail_key = fold_in(of_tail, full // self.window_blocks)
        return joined([*order, size - tail + permutation(tail, tail_key)])


def permutation(length: int, key: Key) -> Ints64:
    """The numbers below ``length`` in the order of Levanter's Feistel network of five rounds. What
    falls outside is sent through again until it does not."""
    if length < 2:
        return np.arange(length)
    bits = (length - 1).bit_length()
    right_bits = np.uint64(bits - bits // 2)
    mask = np.uint64((1 << int(right_bits)) - 1)
    rng = np.random.default_rng(randint(key, 30))
    keys = rng.integers(0, 1 << int(right_bits), size=5, dtype=np.uint64)
    out = _rounds(np.arange(length, dtype=np.uint64), keys, right_bits, mask)
    while (outside := np.flatnonzero(out >= length)).size:
        out[outside] = _rounds(out[outside], keys, right_bits, mask)
    return out.astype(np.int64)


def _rounds(
    numbers: NDArray[np.uint64], keys: NDArray[np.uint64], right_bits: np.uint64, mask: np.uint64
) -> NDArray[np.uint64]:
    """Those numbers after all rounds of the network."""
    left, right = numbers >> right_bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (((right & mask) * np.uint64(2654435761) + key) & mask)
    return (left << right_bits) | right


# The keys of JAX's random numbers: Threefry-2x32 with 20 rounds (Salmon et al., SC 2011), keys
# split and folded as in JAX 0.5 and later.


def key_of(seed: int) -> Key:
    """The key of a seed (`jax.random.PRNGKey`, with 32-bit integers)."""
    return 0, seed & _MASK


def split(key: Key, count: int) -> list[Key]:
    """That many keys from one (`jax.random.split`)."""
    return [_threefry(key, (0, number)) for number in range(count)]


def fold_in(key: Key, number: int) -> Key:
    """The key of that number (`jax.random.fold_in`)."""
    return _threefry(key, (0, number))


def randint(key: Key, bits: int) -> int:
    """A number below 2^bits, bits at most 31 (`jax.random.randint(key, (), 0, 2**bits)`)."""
    # the library draws a high and a low word; for a power of two only the low word counts
    low = _threefry(split(key, 2)[1], (0, 0))
    return (low[0] ^ low[1]) & ((1 << bits) - 1)


def _threefry(key: Key, counter: tuple[int, int]) -> Key:
    """The counter after 20 rounds under the key."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    first, second = (counter[0] + keys[0]) & _MASK, (counter[1] + keys[1]) & _MASK
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = (first + second) & _MASK
            second = ((second << rotation | second >> (32 - rotation)) & _MASK) ^ first
        first = (first + keys[(group + 1) % 3]) & _MASK
        second = (second + keys[(group + 2) % 3] + group + 1) & _MASK
    return first, second
