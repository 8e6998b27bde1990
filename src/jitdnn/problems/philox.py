"""Random numbers by counting: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
1, 2, 3", 2011), and which number belongs to which element of a tensor.

The generator has no memory: 64 bits of key and 128 bits of counter go in, four words of 32 bits come out. Here

    key      the seed
    counter  low half: the number of a block of four words; high half: the offset, one for each use of a state

The elements of a tensor are numbered by their logical indices, so that neither the order in memory nor the
number of threads nor the width of vectors has a say. So that one block serves several elements whatever that
order is, the tensor is cut into as many parts, along the first axis whose extent is a multiple of their number,
or else along the longest. Block b belongs to the elements number b (row-major) of all parts:

    8 parts    part 2 j has the low half of word j, part 2 j + 1 its high half
    4 parts    part j has word j
    2 parts    part j has the words 2 j and 2 j + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from jitdnn.tensor import TensorDescriptor

_Element = TypeVar("_Element", bound=np.generic)
Words32 = npt.NDArray[np.uint32]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

STATE_WORDS = 4
STATE = TensorDescriptor((STATE_WORDS,), (1,), "u32")
"""A state in memory: seed low, seed high, offset low, offset high, each 32 bits."""


def philox(counter: Sequence[npt.ArrayLike], key: Sequence[int]) -> tuple[Words32, ...]:
    """The four output words for counters of four words (arrays of one shape) and a key of two words."""
    x = [np.asarray(word, np.uint64) for word in counter]
    k0, k1 = key
    for _round in range(ROUNDS):
        first, second = x[0] * np.uint64(MULTIPLIERS[0]), x[2] * np.uint64(MULTIPLIERS[1])
        x = [
            (second >> np.uint64(32)) ^ x[1] ^ np.uint64(k0),
            second & np.uint64(0xFFFFFFFF),
            (first >> np.uint64(32)) ^ x[3] ^ np.uint64(k1),
            first & np.uint64(0xFFFFFFFF),
        ]
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return tuple(word.astype(np.uint32) for word in x)


def split_axis(shape: Sequence[int], parts: int) -> int:
    """The axis along which a tensor is cut into parts."""
    for axis, extent in enumerate(shape):
        if extent > 0 and extent % parts == 0:
            return axis
    return max(range(len(shape)), key=lambda axis: (shape[axis], -axis))


def part_extent(shape: Sequence[int], parts: int) -> int:
    """Elements of one part along `split_axis`; the last parts may have fewer, or none."""
    return -(-shape[split_axis(shape, parts)] // parts)


def part_words(shape: Sequence[int], state: npt.ArrayLike, parts: int) -> tuple[Words32, ...]:
    """The four random words of every block: arrays of the shape of one part.

    `state`: `STATE_WORDS` integers.
    """
    seed_low, seed_high, offset_low, offset_high = (int(word) for word in np.asarray(state))
    axis = split_axis(shape, parts)
    box = [*shape[:axis], part_extent(shape, parts), *shape[axis + 1 :]]
    blocks = np.arange(prod(box), dtype=np.uint64).reshape(box)
    counter = (blocks & np.uint64(0xFFFFFFFF), blocks >> np.uint64(32), offset_low, offset_high)
    return philox(np.broadcast_arrays(*counter), (seed_low, seed_high))


def joined(parts: Sequence[npt.NDArray[_Element]], shape: Sequence[int]) -> npt.NDArray[_Element]:
    """The parts of a tensor of `shape` put together; what is beyond its end is cut off."""
    axis = split_axis(shape, len(parts))
    return np.concatenate(parts, axis=axis).take(range(shape[axis]), axis=axis)
