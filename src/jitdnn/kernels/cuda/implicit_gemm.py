"""What matrix products on the matrix units of NVIDIA's GPUs have in common: tiles, their cost, copies, and packing.

The kernels are `implicit_gemm.cuh` (a tile of sums), `implicit_gemm.cu` (convolution forward and backward to the data),
`implicit_gemm_filter.cu` (the gradient of a filter) and `implicit_gemm_pack.cu` (an operand into the workspace,
channels innermost).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.devices.gpu import GpuDevice, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.tensor import DTYPES, TensorDescriptor

FUNCTIONS = {"bf16": "mma_bf16", "f16": "mma_f16", "f32": "mma_tf32", "i8": "mma_s8"}
"""The instruction that multiplies elements of each type."""

COPY_BYTES = (16, 8, 4)
"""What one asynchronous copy can move."""

LAUNCH = 2.5e-6
"""Seconds from the end of a launch to the end of an empty one behind it."""

_START = 1.8e-6  # seconds until a block's first products: its addresses, and the first stages on their way
_L2 = 40.0  # bytes that a multiprocessor gets from L2 in a cycle, as copies of tiles reach it
_CLOCK = 1.7e9  # Hz; cancels where both rates are given in cycles
_LEAST_INDEX64 = 2**31 - 2**26  # elements from which offsets need 64 bits: room for taps that lie outside


@dataclass(frozen=True)
class Tile:
    """How a block cuts the product: `m` rows x `n` columns of sums, `wm` x `wn` a warp.

    `k_bytes`: bytes of the reduction in a stage; `stages` of them; `buffers`: 2 where fragments of the next step are
    read ahead, 1 to save the registers; `resident`: blocks that a multiprocessor is to run side by side; `share`: of
    the peak rate of the matrix units, where nothing else holds it up.
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

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k_bytes}b warps {self.wm}x{self.wn} stages {self.stages}"

    @property
    def threads(self) -> int:
        return self.m // self.wm * (self.n // self.wn) * 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the stages, or the sums on their way out."""
        return max(self.stages * (self.m + self.n) * self.k_bytes, self.m * (self.n + 8) * 4)

    @property
    def defines(self) -> tuple[tuple[str, object], ...]:
        return (
            ("BM", self.m), ("BN", self.n), ("BK_BYTES", self.k_bytes), ("WM", self.wm), ("WN", self.wn),
            ("STAGES", self.stages), ("BUFFERS", self.buffers), ("RESIDENT", self.resident),
        )  # fmt: skip


TILES = (
    Tile(256, 128, 128, 64, 64, 3, 2, 1, 1.0),
    Tile(128, 256, 128, 64, 64, 3, 2, 1, 1.0),
    Tile(128, 128, 128, 64, 32, 3, 1, 2, 0.95),
    Tile(128, 128, 64, 64, 32, 4, 1, 2, 0.9),
    Tile(256, 64, 64, 64, 32, 4, 1, 2, 0.85),
    Tile(64, 128, 128, 32, 32, 3, 2, 2, 0.8),
    Tile(128, 64, 128, 32, 32, 3, 2, 2, 0.8),
    Tile(128, 64, 64, 32, 32, 4, 2, 2, 0.75),
    Tile(64, 64, 128, 32, 32, 4, 2, 3, 0.7),
    Tile(64, 64, 64, 32, 32, 4, 2, 3, 0.65),
    Tile(128, 32, 64, 32, 32, 4, 2, 3, 0.6),
    Tile(128, 16, 64, 32, 16, 4, 2, 4, 0.4),
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
    """A tile and the parts that the reduction is divided into, each with sums of its own."""

    tile: Tile
    parts: int

    def tiles(self, work: Work) -> int:
        return -(-work.rows // self.tile.m) * -(-work.columns // self.tile.n) * work.groups

    def partial_bytes(self, works: Sequence[Work]) -> int:
        """Bytes of the sums of parts; every product has the tiles of the largest."""
        if self.parts == 1:
            return 0
        most = max(self.tiles(work) for work in works)
        return len(works) * most * self.parts * self.tile.m * self.tile.n * 4


def seconds(works: Sequence[Work], cut: Cut, dtype: str, device: GpuDevice, bytes_moved: int) -> float:
    """Expected time of a launch that computes all the products.

    A multiprocessor runs `resident` blocks side by side; they share its matrix units and its way to L2. The last wave
    costs as much as a full one does, and no launch is faster than its operands come from memory.
    """
    tile, size = cut.tile, DTYPES[dtype]
    bk = tile.k_bytes // size
    resident = max(1, min(tile.resident, device.shared_bytes // (tile.shared + 2048), 2048 // tile.threads))
    rate = device.tensor_flops(dtype) / device.multiprocessors * tile.share
    stage = (tile.m + tile.n) * tile.k_bytes
    products = 2.0 * tile.m * tile.n * bk / rate
    copies = stage / (_L2 * _CLOCK)
    out = tile.m * tile.n * (8 if cut.parts > 1 else 4) / (_L2 * _CLOCK)
    # alone on a multiprocessor, a block waits for every stage in turn and cannot hide its beginning and end
    total, blocks = 0.0, 0
    for work in works:
        count = cut.tiles(work) * cut.parts
        steps = -(-work.k // (bk * cut.parts))
        total += count * (steps * max(products, copies) + out)
        blocks += count
    slots = device.multiprocessors * resident
    waves = -(-blocks // slots)
    per_block = total / max(1, blocks)
    # a wave that is not full: its blocks have the multiprocessor to fewer, but are no faster than one alone can be
    full, rest = divmod(blocks, slots)
    alone = max(1.0, math.ceil(rest / device.multiprocessors)) if rest else 0.0
    busy = full * resident * per_block + alone * per_block * (1.25 if alone == 1 and resident > 1 else 1.0)
    time = busy + waves * _START * (1.0 if resident == 1 else 0.6)
    if cut.parts > 1:
        moved = cut.partial_bytes(works)
        time += LAUNCH + 2 * moved / (2.5 * device.bandwidth if moved < 30e6 else device.bandwidth)
    return max(time, bytes_moved / device.bandwidth) + LAUNCH


def best_cut(
    works: Sequence[Work],
    tiles: Sequence[Tile],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    most_parts: int,
) -> Cut:
    """The cut that is expected to be fastest; the first of equals."""
    size = DTYPES[dtype]
    best, least = None, math.inf
    for tile in tiles:
        if tile.shared + 16 * 1024 > device.shared_bytes and tile.shared > 96 * 1024:
            continue
        steps = max(-(-work.k // (tile.k_bytes // size)) for work in works)
        one = sum(Cut(tile, 1).tiles(work) for work in works)
        slots = device.multiprocessors * tile.resident
        counts = {1}
        for waves in (1, 2, 3, 4):
            counts |= {min(waves * slots // max(1, one), steps // 4)}
        for parts in sorted(counts):
            if not 1 <= parts <= most_parts:
                continue
            time = seconds(works, Cut(tile, parts), dtype, device, bytes_moved)
            if time < least:
                best, least = Cut(tile, parts), time
    assert best is not None
    return best


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
    chunk = 16 // DTYPES[dtype]
    least = max(1, 4 // DTYPES[dtype])
    while least < min(count, chunk):
        least *= 2
    return -(-count // least) * least


def three(numbers: Sequence[int], fill: int) -> tuple[int, int, int]:
    """Numbers of the axes of space, outermost first, for axes that are not there filled up in front."""
    a, b, c = (fill,) * (3 - len(numbers)) + tuple(numbers)
    return a, b, c


def listed(numbers: Sequence[object]) -> str:
    """Numbers as the inside of a C initializer."""
    return ", ".join(str(number).lower() if isinstance(number, bool) else str(number) for number in numbers)


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
        space = math.prod(self.tensor.shape[2:])
        return self.tensor.shape[0] * -(-packed // lanes) * -(-space // (4096 // lanes))

    def seconds(self, device: GpuDevice) -> float:
        return LAUNCH + 1.3 * (self.tensor.nbytes + self.bytes) / device.bandwidth

    def text(self, function: str, operand: str) -> str:
        """The kernel of that name, which packs the `first` or the `second` operand; behind implicit_gemm_pack.cu."""
        n, c, *space = self.tensor.strides
        along = abs(c) == 1 or self.channels == self.wide == 1
        return f"""
struct {function}_form {{
    static constexpr i64 image = {n}, channel = {c}, at = {self.at};
    static constexpr int groups = {self.groups}, channels = {self.channels}, group_channels = {self.wide};
    static constexpr i64 strides[3] = {{{listed(three(space, 0))}}};
    static constexpr int extents[3] = {{{listed(three(self.tensor.shape[2:], 1))}}};
    static constexpr bool is_along_channels = {str(along).lower()};
}};

KERNEL(256)
void {function}(const DTYPE *first, const DTYPE *second, RESULT * EPILOGUE_PARAMETERS, u8 *workspace, SCALE, SCALE) {{
    pack<{function}_form>({operand}, workspace);
}}
"""


def packing_text(data: Pack | None, other: Pack | None) -> str:
    """The kernels `pack_data` and `pack_filter`, for those operands that are packed."""
    texts = [data.text("pack_data", "first")] if data else []
    texts += [other.text("pack_filter", "second")] if other else []
    return "".join([read_text("jitdnn.kernels.cuda", "implicit_gemm_pack.cu"), *texts]) if texts else ""


def index_type(tensors: Sequence[TensorDescriptor], *counts: int) -> str:
    """The type of offsets into all the tensors, and of numbers up to the counts."""
    reach = max((max(abs(n) for n in tensor.span()) for tensor in tensors), default=0)
    return "i64" if max(reach, *counts) >= _LEAST_INDEX64 else "i32"


@dataclass(frozen=True)
class ByAlignment:
    """A kernel for pointers that are multiples of `alignments`, and a slower one for all others."""

    kernel: GpuKernel
    plain: GpuKernel
    alignments: tuple[int, ...]

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        is_aligned = not any(p % a for p, a in zip(pointers, self.alignments, strict=False))
        (self.kernel if is_aligned else self.plain)(stream, pointers, alpha, beta, workspace)


class Nothing:
    """The kernel of a result without elements."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        return
