"""Images of one to three axes as arguments of plain C kernels: always three axes, offsets that fit their integers."""

from __future__ import annotations

from math import prod

from jitdnn.tensor import TensorDescriptor

AXES = 3
MOST_BLOCKS_OF_IMAGES = 65535


def spatial(numbers: tuple[int, ...], missing: int) -> list[int]:
    """The numbers behind those of N and C, for three axes."""
    return [missing] * (AXES + 2 - len(numbers)) + list(numbers[2:])


def offset_type(tensors: list[TensorDescriptor]) -> str:
    """The integers that hold the offset of any element within its image, and the number of elements in one."""
    farthest = 0
    for tensor in tensors:
        reach = sum(e * abs(s) for e, s in zip(tensor.shape[1:], tensor.strides[1:], strict=True))
        farthest = max(farthest, reach, prod(tensor.shape[1:]))
    return "i32" if farthest < 2**30 else "i64"
