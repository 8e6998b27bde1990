"""Sizes of a matrix product on the tensor cores: tiles, their blocking of the product, and packed operands.

The loops, with the names of the sizes (`Tile`, `Blocking`):

    for each thread block              m x n of the product, or one of `splits` of its K       (grid)
        for each stage                 k_bytes of K, `stages` of them in shared memory, filled by asynchronous copies
            for each mma step          32 bytes of K, `fragment_buffers` of them in registers
                for each warp          wm x wn of the tile, sums in registers
                    for each mma       16 x 8
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from jitdnn.kernels.cuda.cost import LINE_BYTES
from jitdnn.tensor import DTYPES, TensorDescriptor

COPY_BYTES = (16, 8, 4)
"""What one asynchronous copy can move."""
LONG_ROW_BYTES = 512
"""A packed row of so many bytes or more is padded to whole lines of memory."""

_REDUCING_THREADS = 2**16  # wanted for the reduction of partial sums, so that all multiprocessors read
_MAX_REDUCTION_THREADS = 64  # of them for one run
_LEAST_INDEX64 = 2**31 - 2**26  # elements from which offsets need 64 bits: taps may lie outside of the tensor


@dataclass(frozen=True)
class Tile:
    """The tile of a thread block: `m` x `n` sums, of which each warp has `wm` x `wn`. See the drawing in mainloop.cuh.

    `k_bytes`: bytes along K in a stage, of which there are `stages`. `fragment_buffers`: 2 where the fragments of the
    next step are read while this one's are multiplied, 1 to save the registers. `resident`: thread blocks that a
    multiprocessor is to run at a time. `efficiency`: the share of the tensor cores' peak rate that is reached where
    nothing else is the limit; where both operands are MN-major, `mn_major_efficiency` of that. `is_fma`: products are
    multiply-adds of f32 on the ordinary units, whose rate takes the place of that of the tensor cores.
    """

    m: int
    n: int
    k_bytes: int
    wm: int
    wn: int
    stages: int
    fragment_buffers: int
    resident: int
    efficiency: float
    mn_major_efficiency: float = 1.0
    is_fma: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property  # tiles are few, and part of what is asked of caches again and again
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k_bytes}b warps {self.wm}x{self.wn} stages {self.stages}"

    @cached_property
    def threads(self) -> int:
        return self.m // self.wm * (self.n // self.wn) * 32

    @cached_property
    def shared(self) -> int:
        """Bytes of shared memory: the stages, or later the sums of the epilogue, whichever is larger."""
        return max(self.stages * (self.m + self.n) * self.k_bytes, self.m * (self.n + 8) * 4)


TILES = (
    Tile(256, 128, 128, 64, 64, 3, 2, 1, 1.0, 0.84),
    Tile(128, 256, 128, 64, 64, 3, 2, 1, 0.97, 0.82),
    Tile(128, 128, 128, 64, 64, 3, 2, 2, 1.0, 0.87),
    Tile(128, 96, 128, 32, 96, 3, 2, 2, 0.92, 0.87),
    Tile(256, 64, 64, 64, 64, 5, 2, 2, 0.87),
    Tile(64, 256, 64, 64, 64, 5, 2, 2, 0.87, 0.92),
    Tile(128, 128, 128, 64, 32, 3, 1, 2, 0.9, 0.88),
    Tile(128, 64, 128, 64, 32, 3, 2, 3, 1.0, 0.75),
    Tile(64, 128, 128, 32, 64, 3, 2, 3, 1.0, 0.75),
    Tile(64, 64, 128, 32, 32, 4, 2, 3, 1.0),
    Tile(64, 64, 64, 32, 32, 4, 2, 4, 1.0),
    Tile(128, 32, 64, 32, 32, 4, 2, 4, 1.0),
    Tile(32, 128, 64, 32, 32, 4, 2, 4, 1.0),
    Tile(128, 16, 64, 32, 16, 4, 2, 4, 1.0),
)
"""Tiles worth trying. To time them all on a device: build each with `ImplicitGemm(tiles=(tile,))`."""


FMA_TILES = (
    Tile(256, 128, 64, 64, 64, 4, 2, 1, 0.78, 0.935, is_fma=True),
    Tile(128, 128, 64, 64, 64, 4, 2, 2, 0.775, 0.93, is_fma=True),
    Tile(128, 128, 64, 64, 32, 4, 2, 1, 0.745, 0.975, is_fma=True),
    Tile(128, 64, 64, 64, 32, 4, 1, 3, 0.757, 0.99, is_fma=True),
    Tile(64, 128, 64, 64, 32, 4, 1, 3, 0.755, 0.965, is_fma=True),
    Tile(64, 64, 64, 32, 32, 4, 2, 4, 0.72, 0.91, is_fma=True),
    Tile(128, 32, 64, 32, 32, 4, 2, 3, 0.68, 0.91, is_fma=True),
)
"""Those of multiply-adds. A lane of a warp of 64 x 64 has 8 x 16 sums, one of a warp of 64 x 32 has 8 x 8."""


@dataclass(frozen=True)
class GemmSize:
    """A matrix product: `m` x `n` sums of `k` terms, `groups` times."""

    m: int
    n: int
    k: int
    groups: int = 1


@dataclass(frozen=True)
class Blocking:
    """How a product is divided into thread blocks: tiles, of which those behind the first `unsplit` are split along K.

    A tile that is split has `splits` thread blocks; their partial sums meet in the workspace, where the reduction adds
    them. With `splits` 1 no tile is split, whatever `unsplit` says.

    A launch computes several products of the same `groups` (the stride phases of a dgrad), each on the grid of the
    largest.
    """

    tile: Tile
    splits: int = 1
    unsplit: int = 0

    @property
    def has_whole_tiles(self) -> bool:
        """Whether some tiles are not split, so that their thread blocks store results."""
        return self.splits == 1 or self.unsplit > 0

    def tiles(self, gemm: GemmSize) -> int:
        """Tiles of one group."""
        return -(-gemm.m // self.tile.m) * -(-gemm.n // self.tile.n)

    def split_tiles(self, gemms: Sequence[GemmSize]) -> int:
        """Tiles of a group that are split."""
        return max(self.tiles(gemm) for gemm in gemms) - self.unsplit if self.splits > 1 else 0

    def blocks(self, gemms: Sequence[GemmSize]) -> int:
        """Thread blocks along the first axis of the grid."""
        tiles, split = max(self.tiles(gemm) for gemm in gemms), self.split_tiles(gemms)
        return tiles - split + split * self.splits

    def partial_bytes(self, gemms: Sequence[GemmSize]) -> int:
        """Bytes of all partial sums."""
        tiles = len(gemms) * gemms[0].groups * self.split_tiles(gemms)
        return tiles * self.splits * self.tile.m * self.tile.n * 4

    def reduction_threads(self, gemms: Sequence[GemmSize]) -> int:
        """Threads that add the partial sums of a run of eight: enough to keep all multiprocessors reading."""
        runs = len(gemms) * gemms[0].groups * self.split_tiles(gemms) * self.tile.m * self.tile.n // 8
        most = min(_MAX_REDUCTION_THREADS, -(-_REDUCING_THREADS // max(1, runs)), -(-self.splits // 4))
        threads = 1
        while threads < most:
            threads *= 2
        return threads


@dataclass(frozen=True)
class Pack:
    """A tensor that pack.cu copies into the workspace, to byte `offset`, with its channels innermost.

    The `channels` of each of its `groups` are extended by zeros to `padded_channels`.
    """

    tensor: TensorDescriptor
    groups: int
    channels: int
    padded_channels: int
    offset: int

    @staticmethod
    def of(tensor: TensorDescriptor, groups: int, offset: int) -> Pack:
        """An (N, C, space) tensor whose channels fall into groups."""
        channels = tensor.shape[1] // groups
        return Pack(tensor, groups, channels, padded(channels, tensor.dtype), offset)

    @property
    def strides(self) -> tuple[int, int, tuple[int, int, int]]:
        """Of the packed tensor: from image to image, from group to group, along the axes of space."""
        pixel = self.groups * self.padded_channels
        _, b, c = three(self.tensor.shape[2:], 1)
        return (
            pixel * math.prod(self.tensor.shape[2:]),
            self.padded_channels,
            (pixel * b * c, pixel * c, pixel),
        )

    @property
    def bytes(self) -> int:
        """Of the workspace, up to a multiple of 256."""
        size = self.tensor.shape[0] * self.strides[0] * DTYPES[self.tensor.dtype]
        return -(-size // 256) * 256

    @property
    def blocks(self) -> int:
        """Thread blocks of 256 threads that copy it, 4096 elements each."""
        pixels = self.tensor.shape[0] * math.prod(self.tensor.shape[2:])
        return -(-self.groups * self.padded_channels // self.lanes) * -(-pixels // (4096 // self.lanes))

    @property
    def lanes(self) -> int:
        """Packed channels that a thread block copies."""
        return 64 if self.groups * self.padded_channels >= 64 else 16


def copy_bytes(dtype: str, step: int, multiples: Sequence[int]) -> int:
    """The widest asynchronous copy of neighbours `step` elements apart, at offsets that are sums of `multiples`.

    0 if there is none: elements are copied one by one.
    """
    if step != 1:
        return 0
    for size in COPY_BYTES:
        count, rest = divmod(size, DTYPES[dtype])
        if rest == 0 and all(number % count == 0 for number in multiples):
            return size
    return 0


def padded(count: int, dtype: str) -> int:
    """The channels that a group of `count` is extended to when it is packed, for wide copies."""
    size = DTYPES[dtype]
    chunk = 16 // size
    least = max(1, 4 // size)
    while least < min(count, chunk):
        least *= 2
    if count * size >= LONG_ROW_BYTES:
        least = LINE_BYTES // size
    return -(-count // least) * least


def three(numbers: Sequence[int], fill: int) -> tuple[int, int, int]:
    """The numbers of up to three axes of space, with `fill` in front for axes that a problem does not have."""
    a, b, c = (fill,) * (3 - len(numbers)) + tuple(numbers)
    return a, b, c


def linear_step(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """The distance between neighbours on nested axes, outermost first, if it is the same everywhere; else None."""
    step, run = 0, 1
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        if extent <= 1:
            continue
        if run == 1:
            step = stride
        elif stride != step * run:
            return None
        run *= extent
    return step


def index_type(tensors: Sequence[TensorDescriptor], *counts: int) -> str:
    """The type of offsets into all the tensors, and of numbers up to the counts."""
    reach = max((max(abs(n) for n in tensor.span()) for tensor in tensors), default=0)
    return "i64" if max(reach, *counts) >= _LEAST_INDEX64 else "i32"
