"""Numbers of a shape as arguments of kernels: the fields of the structures of shape.cuh, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitdnn.devices.tensor_map import Tables
from jitdnn.kernels.cuda.gemm.plan import Blocking, GemmSize
from jitdnn.kernels.gpu.reduction.plan import magic_of

_MOST_DIVISOR = 2**31
"""What `magic_of` is good for; larger ones divide numbers of 64 bits, which need none."""


def divisor(number: int) -> tuple[int, int, int]:
    """A `Divisor`. Of 0, which nothing is divided by, there is no other."""
    return (number, *(magic_of(number) if 0 < number < _MOST_DIVISOR else (0, 0)))


def packed_divisor(number: int) -> int:
    """A `PackedDivisor` of tables.cuh."""
    _, magic, shift = divisor(number)
    return shift << 32 | magic


def divisors(numbers: Iterable[int]) -> tuple[int, ...]:
    """An array of `Divisor`s."""
    return tuple(field for number in numbers for field in divisor(number))


def work(blocking: Blocking, gemms: Sequence[GemmSize], partials_offset: int) -> tuple[int, ...]:
    """A `Work`. `partials_offset`: where the partial sums begin in the workspace, in bytes."""
    return (
        max(blocking.tiles(gemm) for gemm in gemms),
        blocking.unsplit,
        *divisor(blocking.splits),
        partials_offset,
        blocking.reduction_threads(gemms).bit_length() - 1,
        *divisor(-(-gemms[0].n // blocking.tile.n)),
        *divisor(blocking.split_tiles(gemms)),
    )


def tables(*fields: int | Sequence[int]) -> Tables:
    """The structure of these fields, arrays among them."""
    numbers: list[int] = []
    for field in fields:
        numbers += [int(field)] if isinstance(field, int) else [int(number) for number in field]
    return Tables((), tuple(numbers))
