"""Levanter: full, era and block shuffle, from permutations that need no table."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import (
    concatenate_or_empty,
    order_from_ranks,
    require_buffer_below_set,
)

Key = tuple[int, int]
"""A key of JAX's random numbers: two words of 32 bits."""

_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Levanter(Order):
    """Levanter, a component of a mixture, bit by bit: `full` and `block` as in
    marin-levanter 0.2.20 (June 2026), `era` as in levanter 1.2.dev1644, before it was
    removed.

    `full` permutes all samples; `era` permutes each run of ``era_length`` by itself;
    `block` permutes blocks of ``io_block_size``, and then the samples of every
    ``window_blocks`` of them. A last block that is not full stays last. The permutation
    is the same in every epoch. A batch is a run of M b places, of which each rank takes
    its b; it reads by itself, so worker 0 hands out everything.

    What is fetched at once is a block: TensorStore reads chunks of 256 Ki tokens, 256
    samples of 1024, for a single sample too. The index of the Zarr shard in which a
    chunk lies (8196 bytes for 512 chunks) is one more read, unless it is still in
    memory.

    What the three read was measured in marin-community/marin issue 2917; not all of the
    reads of `era` and `block` are explained (`tests/physics/test_shuffle_buffers.py`).

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

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch; no epoch differs from another.

        Raises:
            InputError: if an era or a window is larger than the set.
        """
        if self.shuffle == "era":
            require_buffer_below_set("era_length", self.era_length, data)
        if self.shuffle == "block":
            window_size = self.window_blocks * self.io_block_size
            require_buffer_below_set("window_blocks", window_size, data)
        shuffles = {
            "full": feistel_permutation,
            "era": self._shuffle_eras,
            "block": self._shuffle_windows,
        }
        order = shuffles[self.shuffle](data.size, seed_key(seed))
        # (N,) the rank of each position: runs of b positions go to the ranks in turn
        rank = np.arange(data.size) // readers.batch_size % readers.world_size
        ends = np.cumsum(np.bincount(rank, minlength=readers.world_size))
        samples_of_ranks = np.split(order[np.argsort(rank, kind="stable")], ends[:-1])
        return order_from_ranks(samples_of_ranks)

    def _shuffle_eras(self, size: int, key: Key) -> Ints64:
        """Permute each era of the numbers below ``size`` by itself."""
        eras = []
        for era, start in enumerate(range(0, size, self.era_length)):
            length = min(self.era_length, size - start)
            eras.append(start + feistel_permutation(length, fold_in(key, era)))
        return concatenate_or_empty(eras)

    def _shuffle_windows(self, size: int, key: Key) -> Ints64:
        """Permute blocks of the numbers below ``size``, then the numbers of every
        window of blocks.

        The numbers of a last block that is not full are permuted among themselves, and
        stay last.
        """
        block_key, window_key, tail_key = split_key(key, 3)
        num_blocks, tail_size = divmod(size, self.io_block_size)
        blocks = feistel_permutation(num_blocks, block_key)
        index_in_block = np.arange(self.io_block_size)
        order = []
        for window, first in enumerate(range(0, num_blocks, self.window_blocks)):
            window_blocks = blocks[first : first + self.window_blocks]
            samples = (
                window_blocks[:, None] * self.io_block_size + index_in_block
            ).ravel()
            order.append(
                samples[feistel_permutation(len(samples), fold_in(window_key, window))]
            )
        # the last window holds the tail, alone if the full blocks fill whole windows
        tail_key = fold_in(tail_key, num_blocks // self.window_blocks)
        tail = size - tail_size + feistel_permutation(tail_size, tail_key)
        return concatenate_or_empty([*order, tail])


def feistel_permutation(length: int, key: Key) -> Ints64:
    """Permute the numbers below ``length`` by Levanter's Feistel network of five
    rounds.

    The network permutes the numbers below the next power of two. A number that comes
    out too large is sent through again until it does not.
    """
    if length < 2:
        return np.arange(length)
    bits = (length - 1).bit_length()
    right_bits = np.uint64(bits - bits // 2)
    mask = np.uint64((1 << int(right_bits)) - 1)
    rng = np.random.default_rng(randint(key, 30))
    round_keys = rng.integers(0, 1 << int(right_bits), size=5, dtype=np.uint64)
    numbers = np.arange(length, dtype=np.uint64)
    permuted = _feistel_rounds(numbers, round_keys, right_bits, mask)
    while (outside := np.flatnonzero(permuted >= length)).size:
        permuted[outside] = _feistel_rounds(
            permuted[outside], round_keys, right_bits, mask
        )
    return permuted.astype(np.int64)


def _feistel_rounds(
    numbers: NDArray[np.uint64],
    round_keys: NDArray[np.uint64],
    right_bits: np.uint64,
    mask: np.uint64,
) -> NDArray[np.uint64]:
    """Return (n,) what ``numbers`` become in all rounds of the network.

    Args:
        numbers: (n,)
        round_keys: (rounds,)
        right_bits: bits of the right half of a number.
        mask: ones in these bits.
    """
    # the halves change places in each round; the left one may be a bit shorter
    upper = numbers >> right_bits
    lower = numbers & mask
    for round_key in round_keys:
        scrambled = ((lower & mask) * np.uint64(2654435761) + round_key) & mask
        upper, lower = lower, upper ^ scrambled
    return (upper << right_bits) | lower


# The keys of JAX's random numbers: Threefry-2x32 with 20 rounds (Salmon et al., SC 2011), keys
# split and folded as in JAX 0.5 and later.


def seed_key(seed: int) -> Key:
    """Return the key of a seed (`jax.random.PRNGKey`, with 32-bit integers)."""
    return 0, seed & _MASK


def split_key(key: Key, count: int) -> list[Key]:
    """Derive ``count`` keys from a key (`jax.random.split`)."""
    return [_threefry(key, (0, index)) for index in range(count)]


def fold_in(key: Key, number: int) -> Key:
    """Derive the key with index ``number`` from a key (`jax.random.fold_in`)."""
    return _threefry(key, (0, number))


def randint(key: Key, bits: int) -> int:
    """Draw a number below 2^bits, bits at most 31 (`jax.random.randint(key, (), 0,
    2**bits)`).
    """
    # the library draws a high and a low word; for a power of two only the low word counts
    low_key = split_key(key, 2)[1]
    first, second = _threefry(low_key, (0, 0))
    return (first ^ second) & ((1 << bits) - 1)


def _threefry(key: Key, counter: tuple[int, int]) -> Key:
    """Encrypt a counter by 20 rounds of Threefry-2x32 under ``key``."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    first = (counter[0] + keys[0]) & _MASK
    second = (counter[1] + keys[1]) & _MASK
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = (first + second) & _MASK
            second = ((second << rotation | second >> (32 - rotation)) & _MASK) ^ first
        first = (first + keys[(group + 1) % 3]) & _MASK
        second = (second + keys[(group + 2) % 3] + group + 1) & _MASK
    return first, second
