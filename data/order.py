"""Sample order and every random draw of the loader, as pure functions.

Nothing is drawn from a running generator: each number is computed from a key (seed, epoch, place),
so any sample can be found at once, in any process, after any resume. A permutation of n samples is
a Feistel network over the next power of four, walked until it lands below n.
"""

import hashlib
import struct

import numpy as np

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def draw_bits(purpose: str, *place: int) -> int:
    """Return 64 random bits that depend on the purpose and the integers of the place alone."""
    packed = struct.pack(f"<{len(place)}q", *place)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose.encode("ascii")).digest()
    return int.from_bytes(digest, "little")


def draw_below(limit: int, purpose: str, *place: int) -> int:
    """Return a random integer in [0, limit)."""
    return (draw_bits(purpose, *place) * limit) >> 64


def draw_coin(probability: float, purpose: str, *place: int) -> bool:
    """Return True with the given probability."""
    return draw_bits(purpose, *place) < probability * 2.0**64


def permute(index: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """Return where a random permutation of [0, size) sends each index.

    Args:
        index: integers in [0, size), any shape.
        size: how many there are in all.
        key: integers that name the permutation, such as (seed, epoch).

    Returns:
        int64, the shape of ``index``; memory and time per index do not depend on ``size``.
    """
    values = np.asarray(index, dtype=np.int64)
    if values.size and not 0 <= values.min() <= values.max() < size:
        raise ValueError(f"index must lie in [0, {size})")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [np.uint64(draw_bits("permute", *key, number)) for number in range(_ROUNDS)]
    result = _feistel(values.ravel().astype(np.uint64), half, keys)
    outside = np.flatnonzero(result >= size)
    # At most three quarters of the domain lie outside, so this ends after a few rounds.
    while outside.size:
        result[outside] = _feistel(result[outside], half, keys)
        outside = outside[result[outside] >= size]
    return result.astype(np.int64).reshape(values.shape)


def _feistel(values: np.ndarray, half: int, keys: list[np.uint64]) -> np.ndarray:
    shift = np.uint64(half)
    mask = np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """Spread every bit of a uint64 over all others (the finaliser of SplitMix64)."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
