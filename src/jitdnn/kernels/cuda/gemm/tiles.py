"""What matrix products on the matrix units of NVIDIA's GPUs have in common: tiles, their cost, copies, and packing.

The kernels: `mainloop.cuh` (the tile of sums), `pack.cu` (an operand into the workspace, channels innermost), and in
`convolution/implicit_gemm/` `fprop_dgrad.cu` and `wgrad.cu`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

# Of a Hopper multiprocessor, at the clock that long products run at; where they differ elsewhere, so do all alike.
_CLOCK = 1.6e9  # Hz
_L2 = 40.0  # bytes a cycle from L2, as copies of tiles reach it
_SHARED = 145.0  # bytes a cycle from and to shared memory, whose clock is higher where it is what limits
_START = 2500.0  # cycles until a block's first products: its addresses, and the first stages on their way
_END = 1200.0  # cycles of a block's end beside what it moves
_STEP = 110.0  # cycles of a step of one warp that waits for its own results
_LATENCY = 1200.0  # cycles until what is asked for is there, where blocks are too few to ask for more
_FINISH = 2.2e-6  # seconds of the launch that adds parts, beside reading them

_SECTOR, _LINE = 32, 128  # bytes that memory and L2 move and number together
_LONG = 512  # bytes of a row that is packed to whole lines
_CROSSING = 1.55  # how much longer stages take whose rows begin inside sectors
_NARROW = 1.35  # and those whose rows are a line or less of a group

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

    @property
    def defines(self) -> tuple[tuple[str, object], ...]:
        return (
            ("BM", self.m), ("BN", self.n), ("BK_BYTES", self.k_bytes), ("WM", self.wm), ("WN", self.wn),
            ("STAGES", self.stages), ("BUFFERS", self.buffers), ("RESIDENT", self.resident),
        )  # fmt: skip


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

    def defines(self, works: Sequence[Work], parts_at: int) -> tuple[tuple[str, object], ...]:
        return (
            *self.tile.defines,
            ("TILES", f"{max(self.tiles(work) for work in works)}u"),
            ("WHOLE", f"{self.whole}u"),
            ("PARTS", self.parts),
            ("PARTS_AT", f"{parts_at}ll"),
            ("SHARERS", self.sharers(works)),
        )


def seconds(
    works: Sequence[Work], cut: Cut, dtype: str, device: GpuDevice, bytes_moved: int, is_across: bool = False
) -> float:
    """Expected time of a launch that computes all the products.

    A multiprocessor runs `resident` blocks side by side; they share its matrix units, its shared memory and its way to
    L2, and hide each other's beginnings and ends. The last wave costs as much as its blocks have to do one by one. No
    launch is faster than its operands come from memory.
    """
    tile, size = cut.tile, DTYPES[dtype]
    share = tile.share * (tile.across if is_across else 1.0)
    bk, warps = tile.k_bytes // size, tile.threads // 32
    resident = resident_blocks(tile, device)
    stage = (tile.m + tile.n) * tile.k_bytes
    fragments = warps * (tile.wm + tile.wn) * tile.k_bytes
    busy = max(
        2.0 * tile.m * tile.n * bk * device.multiprocessors / (device.tensor_flops(dtype) * share),
        (stage + fragments) / (_SHARED * _CLOCK),
        stage / (_L2 * _CLOCK),
    )
    alone = max(tile.k_bytes / 32 * _STEP * max(1.0, warps / 8), _LATENCY / (tile.stages - 1))
    lonely = max(busy, alone / _CLOCK)
    sums = tile.m * tile.n * 4
    out = (_END + 2 * sums / _SHARED + sums / (_L2 if cut.parts > 1 else 1.5 * _L2)) / _CLOCK
    start = _START / _CLOCK
    whole = divided = steps = 0
    for work in works:
        count, length = cut.tiles(work) * work.groups, -(-work.k // bk)
        undivided = count if cut.parts == 1 else cut.whole
        whole, divided = whole + undivided, divided + (count - undivided) * cut.parts
        steps += count * length
    mean = steps / max(1, whole + divided / cut.parts)
    hidden = 0.35 + 0.65 / resident**1.5

    def wave(count: int, length: float) -> float:
        """Of so many blocks on a multiprocessor."""
        own = length * max(busy, lonely / count)
        return count * own + (start + out * count) * (1.0 if count == 1 else hidden)

    def waves(blocks: int, length: float) -> float:
        full, rest = divmod(blocks, device.multiprocessors * resident)
        return full * wave(resident, length) + (
            wave(-(-rest // device.multiprocessors), length) if rest else 0.0
        )

    time = waves(whole, mean) + waves(divided, math.ceil(mean / cut.parts))
    if whole + divided > device.multiprocessors and resident > 1:
        time += start + out  # of the first and the last blocks, which nothing hides
    time = max(time, bytes_moved / device.bandwidth)
    if cut.parts > 1:
        rate = min(0.75 * _L2 * _CLOCK * device.multiprocessors, 2.1 * device.bandwidth)
        time += _FINISH + cut.partial_bytes(works) / rate  # what was just written is read from L2
    return time + LAUNCH


def resident_blocks(tile: Tile, device: GpuDevice) -> int:
    """Blocks that a multiprocessor runs side by side."""
    return max(1, min(tile.resident, (device.shared_bytes + 1024) // (tile.shared + 2048)))


def best_cut(
    works: Sequence[Work],
    tiles: Sequence[Tile],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    most_parts: int,
    room: int = 0,
    is_across: bool = False,
) -> Cut:
    """The cut that is expected to be fastest; the first of equals.

    `room`: bytes of shared memory that are needed beside a tile's own.
    """
    size = DTYPES[dtype]
    best, least = None, math.inf
    for tile in tiles:
        if tile.shared + room > device.shared_bytes:
            continue
        for cut in _cuts(works, tile, tile.k_bytes // size, device, most_parts):
            time = seconds(works, cut, dtype, device, bytes_moved, is_across)
            if time < least:
                best, least = cut, time
    return best or Cut(min(tiles, key=lambda tile: tile.shared))


def _cuts(works: Sequence[Work], tile: Tile, bk: int, device: GpuDevice, most_parts: int) -> Iterator[Cut]:
    """Cuts by a tile: all tiles whole, all divided, or those divided that do not fill the machine any more."""
    yield Cut(tile)
    if most_parts == 1:
        return
    longest = max(-(-work.k // bk) for work in works) // 3  # parts of at least three stages
    one = sum(Cut(tile).tiles(work) * work.groups for work in works)
    slots = device.multiprocessors * resident_blocks(tile, device)
    if not one:
        return
    few = range(
        device.multiprocessors, slots, device.multiprocessors
    )  # fewer side by side, but fewer parts to add
    blocks = {*few, *(slots * waves for waves in (1, 2, 3, 4, 6))}
    for parts in sorted({min(count // one, longest, most_parts) for count in blocks}):
        if parts > 1:
            yield Cut(tile, parts)
    rest = one % slots
    parts = min(slots // rest, longest, most_parts) if rest else 1
    if len(works) == works[0].groups == 1 and one > slots and parts > 1:
        yield Cut(tile, parts, one - rest)


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
    if count * size >= _LONG:
        least = _LINE // size
    return -(-count // least) * least


def crossing(dtype: str, channels: int, strides: Sequence[int]) -> float:
    """How much longer a stage takes whose rows, `strides` elements apart, begin anywhere in a sector of memory.

    Short rows share their sectors with their neighbours.
    """
    size = DTYPES[dtype]
    is_crossed = channels * size >= _LONG and any(stride * size % _SECTOR for stride in strides)
    return _CROSSING if is_crossed else 1.0


def narrowness(dtype: str, groups: int, channels: int) -> float:
    """How much longer a stage takes of which each group has only a piece of every place."""
    return _NARROW if groups > 1 and channels * DTYPES[dtype] <= _LINE else 1.0


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
        places = self.tensor.shape[0] * math.prod(self.tensor.shape[2:])
        return -(-packed // lanes) * -(-places // (4096 // lanes))

    def seconds(self, device: GpuDevice) -> float:
        return LAUNCH + 1.3 * (self.tensor.nbytes + self.bytes) / device.bandwidth

    def text(self, function: str, operand: str) -> str:
        """The kernel of that name, which packs the `first` or the `second` operand; behind pack.cu."""
        n, c, *space = self.tensor.strides
        along = abs(c) == 1 or self.channels == self.wide == 1
        return f"""
struct {function}_form {{
    static constexpr i64 image = {n}, channel = {c}, at = {self.at};
    static constexpr int images = {self.tensor.shape[0]}, groups = {self.groups};
    static constexpr int channels = {self.channels}, group_channels = {self.wide};
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
    return "".join([read_text("cuda/gemm", "pack.cu"), *texts]) if texts else ""


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


@dataclass(frozen=True)
class Reordered:
    """A kernel that takes its first pointers in another order: its i-th is number `order[i]` of the problem's."""

    kernel: GpuKernel
    order: tuple[int, ...]

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first = [pointers[number] for number in self.order]
        self.kernel(stream, [*first, *pointers[len(first) :]], alpha, beta, workspace)


class Nothing:
    """The kernel of a result without elements."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        return
