"""The keys of JAX's random numbers, as far as Levanter's permutations need them: Threefry-2x32 with
20 rounds (Salmon et al., SC 2011), keys split and folded as in JAX 0.5 and later."""

from __future__ import annotations

Key = tuple[int, int]
"""Two words of 32 bits."""

_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


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
