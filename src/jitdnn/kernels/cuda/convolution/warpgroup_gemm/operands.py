"""Operands as TMA reads them: in place, or a copy of them with channels innermost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.tensor_map import ALIGNMENT, WORKSPACE, TensorMap
from jitdnn.kernels.cuda.cost import LINE_BYTES
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.tensor import DTYPES, TensorDescriptor

_Three = tuple[int, int, int]
MAXIMA = 256
"""Thread blocks that look for the largest number of an operand; as in halves.cuh."""
HEADER_BYTES = 256 * -(-(16 + 2 * MAXIMA * 4) // 256)
"""Of what they find."""
_RESULT = 2
"""The result among the pointers."""
_PACK_TILE = 64
"""Pixels, and channels, that a thread block of pack.cu copies."""
MAX_STEP = 8
"""Elements from one pixel to the next that an im2col map can take."""
BLOCK = 64
"""Channels of a wgrad's operands that lie side by side in shared memory."""
_MOST_BLOCKS = 4
"""That one copy brings."""
ROWS = (128, 64, 32)
"""Bytes of a row of shared memory that copies can fill."""
_LIMITS = {3: (-(2**15), 2**15 - 1, 2**16 - 1), 4: (-128, 127, 255), 5: (-16, 15, 31)}
"""By rank: the corners of an im2col map, and the largest offset of a tap."""


@dataclass(frozen=True)
class Operand:
    """A tensor of `images` by `channels` by pixels of three axes, in elements from `offset` bytes behind a pointer.

    `number`: of the pointer, or `WORKSPACE`. A filter is one whose images are the channels of the result.
    """

    number: int
    offset: int
    dtype: str
    images: int
    channels: int
    extents: _Three
    image: int
    channel: int
    space: _Three

    @staticmethod
    def of(tensor: TensorDescriptor, number: int) -> Operand:
        """An (N, C, space) tensor or an (K, C, taps) filter."""
        n, c, *space = tensor.strides
        extents = three(tensor.shape[2:], 1)
        return Operand(
            number, 0, tensor.dtype, tensor.shape[0], tensor.shape[1], extents, n, c, three(space, 0)
        )

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype]

    @property
    def pixels(self) -> int:
        return self.images * math.prod(self.extents)

    @property
    def is_dense(self) -> bool:
        """Whether its elements fill the memory from the first to the last."""
        axes = [(self.images, self.image), (self.channels, self.channel)]
        axes += zip(self.extents, self.space, strict=True)
        step = 1
        for stride, extent in sorted((stride, extent) for extent, stride in axes if extent > 1):
            if stride != step:
                return False
            step *= extent
        return True

    @property
    def is_direct(self) -> bool:
        """Whether the copy engine reads it where it is."""
        steps = [(self.images, self.image), *zip(self.extents, self.space, strict=True)]
        return (self.channel == 1 or self.channels == 1) and all(
            stride > 0 and stride * self.size % ALIGNMENT == 0 for extent, stride in steps if extent > 1
        )

    @property
    def is_uneven(self) -> bool:
        """Whether pixels begin inside of lines of L2."""
        return any(stride % LINE_BYTES for stride in self.byte_strides())

    def every(self, steps: _Three, counts: _Three) -> Operand:
        """`counts` of its pixels along the axes of space, from the first on, `steps` apart."""
        a, b, c = (stride * step for stride, step in zip(self.space, steps, strict=True))
        return replace(self, extents=counts, space=(a, b, c))

    def byte_strides(self) -> list[int]:
        """Of the axes of space, innermost first, and of the images; where there is one element, any that will do."""
        nearest = -(-self.channels * self.size // ALIGNMENT) * ALIGNMENT
        axes = [*zip(reversed(self.extents), reversed(self.space), strict=True), (self.images, self.image)]
        return [stride * self.size if extent > 1 else nearest for extent, stride in axes]


@dataclass(frozen=True)
class Pack:
    """A copy of an operand in the workspace, from byte `at` on, or its parts: two halves or three of bf16. See pack.cu.

    `is_widened`: 8-bit reals are copied as f16, which holds them. `is_scaled`: f32 numbers are copied as f16, times a
    power of two, as halves always are. `shifts`: of blocks of 64 pixels by 64 channels, each times a power of two of
    its own, the byte of the workspace where the exponents begin, by blocks of channels, then of pixels; -1 without.
    """

    source: Operand
    at: int
    parts: int = 1
    is_widened: bool = False
    is_scaled: bool = False
    shifts: int = -1

    @property
    def dtype(self) -> str:
        if self.parts == 3:
            return "bf16"
        return "f16" if self.is_scaled or self.is_widened else self.source.dtype

    @property
    def channels(self) -> int:
        """Those of the copy: whole pieces of 16 bytes."""
        run = ALIGNMENT // DTYPES[self.dtype]
        return -(-self.source.channels // run) * run

    def operand(self, part: int = 0) -> Operand:
        """A copy. Its channels are those of the source: what is behind them is never read."""
        one, pixel = self.source, self.channels
        _, b, c = one.extents
        return replace(
            one, number=WORKSPACE, offset=self.at + part * self.bytes_of_part, dtype=self.dtype,
            image=pixel * math.prod(one.extents), channel=1, space=(pixel * b * c, pixel * c, pixel),
        )  # fmt: skip

    @property
    def bytes_of_part(self) -> int:
        """Up to a multiple of 256."""
        return -(-self.source.pixels * self.channels * DTYPES[self.dtype] // 256) * 256

    @property
    def bytes(self) -> int:
        return self.parts * self.bytes_of_part

    @property
    def is_flat(self) -> bool:
        """Whether the copy has the same elements in the same order."""
        one, copy = self.source, self.operand()
        own = [(1, one.channels), *zip(one.space, one.extents, strict=True), (one.image, one.images)]
        copied = [(1, one.channels), *zip(copy.space, one.extents, strict=True), (copy.image, one.images)]
        is_same = all(a[0] == b[0] for a, b in zip(own, copied, strict=True) if a[1] > 1)
        return is_same and one.channel == 1 and self.channels == one.channels

    @property
    def blocks(self) -> int:
        """Thread blocks that copy it."""
        return -(-self.source.pixels // _PACK_TILE) * -(-self.channels // _PACK_TILE)

    @property
    def numbers(self) -> tuple[int, ...]:
        """`Pack` of tables.cuh."""
        one = self.source
        return (
            self.at, self.bytes_of_part // DTYPES[self.dtype], one.is_dense, self.is_flat, one.images, one.channels,
            self.channels, *one.extents, one.image, one.channel, *one.space,
        )  # fmt: skip


NO_PACK = (0,) * 15
"""The numbers of an operand that is not packed."""


def pixel_map(
    operand: Operand, rank: int, base: _Three, results: _Three, steps: _Three, row_bytes: int, pixels: int,
    is_rounded: bool = True,
) -> TensorMap | None:  # fmt: skip
    """Runs of `pixels` windows by `row_bytes` of channels; None beyond what such a map can say.

    Windows begin at `base`, every `steps` positions, as many as `results` along each axis. `is_rounded`: f32 to tf32.
    """
    axes = slice(0, rank - 2)
    extents = tuple(reversed(operand.extents))[axes]
    lower = tuple(reversed(base))[axes]
    last = tuple(b + (n - 1) * s for b, n, s in zip(base, results, steps, strict=True))
    upper = tuple(n - e + 1 for n, e in zip(tuple(reversed(last))[axes], extents, strict=True))
    least, most, _ = _LIMITS[rank]
    if not all(least <= corner <= most for corner in (*lower, *upper)):
        return None
    strides = operand.byte_strides()
    return TensorMap(
        operand.number, operand.offset, operand.dtype,
        (operand.channels, *extents, operand.images),
        (*strides[axes], strides[3]),
        (row_bytes // operand.size, pixels),
        (1, *tuple(reversed(steps))[axes], 1),
        (lower, upper), is_rounded and operand.dtype == "f32",
    )  # fmt: skip


def rows_map(
    operand: Operand, row_bytes: int, pixels: int, is_batch: bool, is_rounded: bool = True
) -> TensorMap | None:
    """Runs of `pixels` pixels, counted through all images or (`is_batch`) in each, by `row_bytes` of channels.

    None where pixels do not lie at equal distances.
    """
    axes = [(operand.extents[n], operand.space[n]) for n in range(3)]
    if not is_batch:
        axes.insert(0, (operand.images, operand.image))
    step = linear_step([extent for extent, _ in axes], [stride for _, stride in axes])
    if step is None:
        return None
    count, images = math.prod(extent for extent, _ in axes), operand.images if is_batch else 1
    nearest = -(-operand.channels * operand.size // ALIGNMENT) * ALIGNMENT
    strides = tuple(
        stride * operand.size if extent > 1 else nearest
        for extent, stride in ((count, step), (images, operand.image))
    )
    return TensorMap(
        operand.number, operand.offset, operand.dtype, (operand.channels, count, images), strides,
        (row_bytes // operand.size, pixels, 1), (1, 1, 1), None, is_rounded and operand.dtype == "f32",
    )  # fmt: skip


def whole_map(
    operand: Operand, row_bytes: int, pixels: int, blocks: int, is_batch: bool, is_rounded: bool = True
) -> TensorMap | None:
    """The same for `blocks` blocks of 64 channels at once, one behind the other; None where channels are no blocks."""
    one = rows_map(operand, row_bytes, pixels, is_batch, is_rounded)
    if one is None or operand.channels % BLOCK or blocks > _MOST_BLOCKS:
        return None
    channels, count, images = one.extents
    inner, *_ = one.box
    return replace(
        one, extents=(BLOCK, count, channels // BLOCK, images),
        strides=(one.strides[0], BLOCK * operand.size, one.strides[1]), box=(inner, pixels, blocks, 1), steps=(1,) * 4,
    )  # fmt: skip


def line_map(operand: Operand, channels: int, pixels: int) -> TensorMap:
    """Boxes of `channels` channels of `pixels` neighbours along the last axis of space."""
    return TensorMap(
        operand.number, operand.offset, operand.dtype,
        (operand.channels, *reversed(operand.extents), operand.images), tuple(operand.byte_strides()),
        (channels, pixels, 1, 1, 1), (1,) * 5,
    )  # fmt: skip


def fits_offsets(rank: int, offsets: Sequence[int]) -> bool:
    """Whether taps so far from their windows' beginnings can be said in a load."""
    return max(offsets) <= _LIMITS[rank][2] and min(offsets) >= 0


def filter_map(operand: Operand, box_channels: int, box_rows: int) -> TensorMap:
    """Boxes of one tap: `box_channels` channels of `box_rows` of the result's."""
    strides = operand.byte_strides()
    return TensorMap(
        operand.number, operand.offset, operand.dtype,
        (operand.channels, *reversed(operand.extents), operand.images), tuple(strides),
        (box_channels, 1, 1, 1, box_rows), (1,) * 5, None, operand.dtype == "f32",
    )  # fmt: skip


def whole_filter_map(operand: Operand, box_rows: int, blocks: int, block: int) -> TensorMap | None:
    """`blocks` blocks of `block` channels at once, of one tap and `box_rows` of the result's; taps are counted through.

    None where channels are no blocks, or taps do not lie at equal distances.
    """
    step = linear_step(operand.extents, operand.space)
    if step is None or operand.channels % block or blocks > _MOST_BLOCKS:
        return None
    taps, size = math.prod(operand.extents), operand.size
    line = block * size
    strides = (step * size if taps > 1 else line, operand.image * size if operand.images > 1 else line, line)
    return TensorMap(
        operand.number, operand.offset, operand.dtype, (block, taps, operand.images, operand.channels // block),
        strides, (block, 1, box_rows, blocks), (1,) * 4, None, operand.dtype == "f32",
    )  # fmt: skip


def filter_maps_across(
    parts: Sequence[Operand], box_rows: int, block: int, columns: int, may_be_whole: bool
) -> tuple[list[TensorMap], bool]:
    """Maps of a filter that lies across, and whether one copy brings all `columns` of a tile, in blocks of `block`."""
    if may_be_whole and columns > block:
        whole = [whole_filter_map(part, box_rows, -(-columns // block), block) for part in parts]
        found = [one for one in whole if one]
        if len(found) == len(parts):
            return found, True
    return [filter_map(part, block, box_rows) for part in parts], False


def result_map(
    dtype: str, columns: int, groups: int, group_step: int, rows: int, row_step: int | None, box_columns: int
) -> TensorMap | None:
    """The result as boxes of `box_columns` columns of 64 rows; None where rows are not linear. Steps: elements."""
    size = DTYPES[dtype]
    nearest = -(-columns * size // ALIGNMENT) * ALIGNMENT
    strides = group_step * size if groups > 1 else nearest, (row_step or 0) * size if rows > 1 else nearest
    if row_step is None or any(stride <= 0 or stride % ALIGNMENT for stride in strides):
        return None
    return TensorMap(_RESULT, 0, dtype, (columns, groups, rows), strides, (box_columns, 1, 64), (1,) * 3)
