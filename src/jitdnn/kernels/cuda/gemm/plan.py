"""Sizes of a matrix product on the tensor cores: tiles, their blocking of the product, and packed operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.kernels.cuda.cost import LINE_BYTES
from jitdnn.tensor import DTYPES, TensorDescriptor

COPY_BYTES = (16, 8, 4)
"""What one asynchronous copy can move."""
LONG_ROW = 512  # bytes of a row that is packed to whole lines
_ADDING = 2**16  # threads that add parts, at least, where there is enough to add
_MOST_SHARERS = 64  # of them share a run
_LEAST_INDEX64 = 2**31 - 2**26  # elements from which offsets need 64 bits: room for taps that lie outside


@dataclass(frozen=True)
class Tile:
    """How a block cuts the product: `m` rows x `n` columns of sums, `wm` x `wn` a warp.

    `k_bytes`: bytes of the reduction in a stage; `stages` of them; `buffers`: 2 where fragments of the next step are
    read ahead, 1 to save the registers; `resident`: blocks that a multiprocessor is to run side by side; `share`: of
    the peak rate of the matrix units, where nothing else holds it up; `across`: of that, where both operands lie
    across the reduction.
    """

    m: int
    n: int
    k_bytes: int
    wm: int
    wn: int
    stages: int
    buffers: int
    resident: int
    share: float
    across: float = 1.0

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k_bytes}b warps {self.wm}x{self.wn} stages {self.stages}"

    @property
    def threads(self) -> int:
        return self.m // self.wm * (self.n // self.wn) * 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the stages, or the sums on their way out."""
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


@dataclass(frozen=True)
class Work:
    """A product for the cost model: sums of `k` elements in `rows` x `columns`, `groups` times."""

    rows: int
    columns: int
    k: int
    groups: int = 1


@dataclass(frozen=True)
class Cut:
    """A tile, and how many tiles of a product have one block for the whole reduction: `whole` of them.

    The reduction of the others is divided into `parts`, each with a block and sums of its own.
    """

    tile: Tile
    parts: int = 1
    whole: int = 0

    def tiles(self, work: Work) -> int:
        """Of one group."""
        return -(-work.rows // self.tile.m) * -(-work.columns // self.tile.n)

    def divided(self, works: Sequence[Work]) -> int:
        """Tiles of a group that are divided; every product has the tiles of the largest."""
        return max(self.tiles(work) for work in works) - self.whole if self.parts > 1 else 0

    def blocks(self, works: Sequence[Work]) -> int:
        """Along the first axis of the grid."""
        tiles, divided = max(self.tiles(work) for work in works), self.divided(works)
        return tiles - divided + divided * self.parts

    def partial_bytes(self, works: Sequence[Work]) -> int:
        """Bytes of the sums of parts."""
        return len(works) * works[0].groups * self.divided(works) * self.parts * self.tile.m * self.tile.n * 4

    def sharers(self, works: Sequence[Work]) -> int:
        """Threads that share the parts of a run of eight sums: so many as keep all multiprocessors reading."""
        runs = len(works) * works[0].groups * self.divided(works) * self.tile.m * self.tile.n // 8
        sharers = 1
        while sharers < _MOST_SHARERS and sharers * runs < _ADDING and sharers * 4 < self.parts:
            sharers *= 2
        return sharers


@dataclass(frozen=True)
class Pack:
    """A tensor's way into the workspace: its channels, `groups` times `channels`, each group extended to `wide`.

    It begins at byte `at` of the workspace.
    """

    tensor: TensorDescriptor
    groups: int
    channels: int
    wide: int
    at: int

    @staticmethod
    def of(tensor: TensorDescriptor, groups: int, at: int) -> Pack:
        """An (N, C, space) tensor whose channels fall into groups."""
        channels = tensor.shape[1] // groups
        return Pack(tensor, groups, channels, padded(channels, tensor.dtype), at)

    @property
    def strides(self) -> tuple[int, int, tuple[int, int, int]]:
        """Of the packed tensor: from image to image, from group to group, along the axes of space."""
        place = self.groups * self.wide
        _, b, c = three(self.tensor.shape[2:], 1)
        return place * math.prod(self.tensor.shape[2:]), self.wide, (place * b * c, place * c, place)

    @property
    def bytes(self) -> int:
        """Of the workspace, up to a multiple of 256."""
        size = self.tensor.shape[0] * self.strides[0] * DTYPES[self.tensor.dtype]
        return -(-size // 256) * 256

    @property
    def blocks(self) -> int:
        """Groups of 256 threads that do it."""
        packed = self.groups * self.wide
        lanes = 64 if packed >= 64 else 16
        places = self.tensor.shape[0] * math.prod(self.tensor.shape[2:])
        return -(-packed // lanes) * -(-places // (4096 // lanes))


def copy_bytes(dtype: str, step: int, multiples: Sequence[int]) -> int:
    """The widest asynchronous copy of neighbours `step` elements apart, at offsets that are sums of `multiples`.

    0 if there is none: then they are copied one by one.
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
    if count * size >= LONG_ROW:
        least = LINE_BYTES // size
    return -(-count // least) * least


def three(numbers: Sequence[int], fill: int) -> tuple[int, int, int]:
    """Numbers of the axes of space, outermost first, for axes that are not there filled up in front."""
    a, b, c = (fill,) * (3 - len(numbers)) + tuple(numbers)
    return a, b, c


def linear_step(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """The distance from element to element of nested axes, outermost first, if it is always the same."""
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
