"""A keyed pseudo-random permutation of range(n): any part of an epoch's order without the memory of the whole.

Source of the algorithm: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002): a Feistel network over the
smallest power of two that holds n, walked along its cycle until the value is below n. For small n, where a Feistel
network reaches few of the n! orders, the order is the rank of n keyed hashes. Only exact uint64 arithmetic is used, so
that the order is the same on every machine and with every numpy version.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

SMALL = 4096  # up to here an epoch's order is kept whole: 32 KiB
ROUNDS = 8  # 4 are the proven minimum for a good hash; the rest costs 0.1 ms a batch
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def permute(ranks: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """Maps places in the order of an epoch to source positions.

    Args:
        ranks: int64 array of any shape, values in [0, n).
        n: size of the permutation, 1 to 2**62.
        seed: any integer (modulo 2**64).
        epoch: from 0.

    Returns:
        int64 array of the shape of `ranks`; over all of range(n) each value of range(n) comes once.
    """
    if n <= SMALL:
        return _small_order(n, seed & _MASK, epoch)[ranks]
    return _feistel_walk(ranks.astype(np.uint64), n, _round_keys(seed & _MASK, epoch)).astype(np.int64)


@lru_cache(maxsize=8)
def _small_order(n: int, seed: int, epoch: int) -> np.ndarray:
    keys = _round_keys(seed, epoch)
    hashes = mix(mix(np.arange(n, dtype=np.uint64) + keys[0]) ^ keys[1])
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    order.setflags(write=False)  # it is cached
    return order


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> np.ndarray:
    """uint64 [ROUNDS], for each (seed, epoch) others: hashed twice, or seed 1, epoch 0 would be seed 0, epoch 1."""
    with np.errstate(over="ignore"):
        base = mix(mix(np.array([seed], dtype=np.uint64)) + np.uint64(epoch & _MASK))
        return mix(base + np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele and others 2014): each input bit changes each output bit half the time."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _feistel_walk(values: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    bits = (n - 1).bit_length()  # the domain is less than twice n, so a walk takes less than two rounds on average
    values = _feistel(values, bits, keys)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        # A cycle that starts below n comes back below n: this ends.
        values.flat[outside] = _feistel(values.flat[outside], bits, keys)
        outside = outside[values.flat[outside] >= n]
    return values


def _feistel(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """One pass over [0, 2**bits): the halves, one bit apart in size if `bits` is odd, are hashed into each other."""
    low_bits = bits // 2
    low_mask = np.uint64((1 << low_bits) - 1)
    high_mask = np.uint64((1 << (bits - low_bits)) - 1)
    high, low = values >> np.uint64(low_bits), values & low_mask
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (mix(high ^ key) & low_mask)
        else:
            high = high ^ (mix(low ^ key) & high_mask)
    return (high << np.uint64(low_bits)) | low
