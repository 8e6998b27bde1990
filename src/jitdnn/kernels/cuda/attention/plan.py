"""Tile sizes of attention on the tensor cores, and the macros that the kernels' source texts take from them.

forward    a thread block has warps * tiles * 16 queries of one head, and loops over its keys in tiles of `keys`; with
           few queries the heads of a group are rows of one tile, and the keys are split among thread blocks
backward   two kernels: warps * 16 queries and all keys for dq, warps * 16 keys and all queries for dk and dv
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.attention.algorithm import integers_of as integers_of_problem
from jitdnn.problems.attention import Attention
from jitdnn.tensor import DTYPES, TensorDescriptor

SIZES = (16, 32, 64, 96, 128, 192, 256)
"""Columns that tiles are compiled for: those of a head are filled up with zeros to the next."""
_COPIES = (16, 8, 4)  # bytes of an asynchronous copy
_PADDING = 16  # bytes between rows in shared memory
_FEW_ROWS = 16  # as many as a tile has at least: warps share them, and the keys are split
_MANY_BLOCKS = 4  # of each multiprocessor: with fewer, blocks of half the rows are over sooner
_FEWEST_TILES = 4  # of keys, for one part of a split
_MOST_SPLITS = 128
_RATE = 0.5  # of what mma reaches on products alone
_BANDWIDTH_SHARE = 0.7
_BLOCK_SECONDS = 2e-6  # until a block's first products begin, and until its results are stored


def padded(size: int) -> int:
    """The columns of a tile for heads of this size."""
    return next(columns for columns in SIZES if columns >= size)


@dataclass(frozen=True)
class Tile:
    """`warps`, tiles of 16 rows that each has, and the rows that pass at a time. Where warps `share` their rows each
    takes a part of those that pass: for few queries.
    """

    warps: int
    tiles: int
    passing: int
    share: bool = False

    @property
    def rows(self) -> int:
        return (1 if self.share else self.warps) * self.tiles * 16


@dataclass(frozen=True)
class Plan:
    """A tile and what follows from it; of the backward pass, where `pack` and `splits` are 1, both kernels have it."""

    problem: Attention
    tile: Tile
    d_size: int
    e_size: int
    pack: int
    splits: int
    shared: int
    seconds: float
    has_three_products: bool = False

    @property
    def is_backward(self) -> bool:
        return self.problem.direction == "bwd"

    @property
    def rows_of_all(self) -> int:
        return math.prod(self.problem.q.shape[:3])

    @property
    def blocks(self) -> int:
        """Tiles of queries of a unit: a head, or the heads that are packed."""
        return max(1, -(-self.problem.q.shape[2] * self.pack // self.tile.rows))

    @property
    def units(self) -> int:
        n, h = self.problem.q.shape[:2]
        return n * (h // self.pack)

    @property
    def is_joint(self) -> bool:
        """Whether the sums of dk and dv fit into registers side by side."""
        return self.d_size + self.e_size <= 256

    @property
    def workspace(self) -> int:
        if self.is_backward:
            return 2 * 4 * self.rows_of_all
        return 4 * self.splits * self.rows_of_all * (self.problem.v.shape[3] + 2) if self.splits > 1 else 0


def copy_bytes(tensors: Iterable[TensorDescriptor], copies: tuple[int, ...] = _COPIES) -> int:
    """The widest copy that moves whole rows of all tensors, if their first elements are aligned to it; 0 for none."""
    tensors = tuple(tensors)
    for copy in copies:
        if all(_is_copied(tensor, copy) for tensor in tensors):
            return copy
    return 0


def _is_copied(tensor: TensorDescriptor, copy: int) -> bool:
    item, width = DTYPES[tensor.dtype], tensor.shape[-1]
    steps = [
        stride for extent, stride in zip(tensor.shape[:-1], tensor.strides[:-1], strict=True) if extent > 1
    ]
    is_dense = tensor.strides[-1] == 1 or width == 1
    return is_dense and not any(step * item % copy for step in (*steps, width))


def read_of(problem: Attention) -> list[TensorDescriptor]:
    """What tiles are loaded of."""
    tensors = [problem.q, problem.k, problem.v]
    return tensors if problem.dy is None else [*tensors, problem.dy]


def written_of(problem: Attention) -> list[TensorDescriptor]:
    """What rows of sums are stored to."""
    found = [problem.dq, problem.dk, problem.dv] if problem.direction == "bwd" else [problem.y]
    return [tensor for tensor in found if tensor is not None]


def shared_bytes(problem: Attention, tile: Tile, d_size: int, e_size: int) -> int:
    """Of a thread block."""
    item = DTYPES[problem.dtype]
    d_pitch, e_pitch = d_size * item + _PADDING, e_size * item + _PADDING
    stages = 2 * tile.passing * (d_pitch + e_pitch)
    kept = d_pitch + e_pitch if problem.direction == "bwd" else max(d_pitch, e_pitch)
    return tile.rows * kept + stages


def forward_tiles(problem: Attention, size: int, multiprocessors: int) -> tuple[Tile, ...]:
    """Tiles for heads of up to `size` columns, the best first: of 16 queries where no more share a key head."""
    n, h, t, _ = problem.q.shape
    is_wide = DTYPES[problem.dtype] == 4
    if t * (h // problem.k.shape[1]) <= _FEW_ROWS:
        least = Tile(2, 1, 32, share=True)
        return (least,) if is_wide or size > 128 else (Tile(4, 1, 64, share=True), least)
    if is_wide:
        return (Tile(4, 1, 16 if size > 128 else 32),)
    if size > 128:
        return (Tile(4, 1, 32),)
    many = Tile(4, 2, 64) if size <= 64 else Tile(4, 2, 32)
    few = Tile(4, 1, 64), Tile(4, 1, 32)
    return (many, *few) if n * h * -(-t // many.rows) >= _MANY_BLOCKS * multiprocessors else few


def backward_tiles(problem: Attention, size: int, multiprocessors: int) -> tuple[Tile, ...]:
    """Tiles of both kernels of the backward pass, the best first."""
    if DTYPES[problem.dtype] == 4:
        return (Tile(4, 1, 32) if size <= 64 else Tile(4, 1, 16),)
    n, h, t, _ = problem.q.shape
    few = Tile(4, 1, 64), Tile(4, 1, 32)
    many = Tile(4, 2, 64)
    is_much = size <= 64 and n * h * -(-t // many.rows) >= _MANY_BLOCKS * multiprocessors
    return (many, *few) if is_much else few


def plan_of(
    problem: Attention, device: GpuDevice, has_three_products: bool = False, tile: Tile | None = None
) -> Plan:
    """The plan, also that of another tile."""
    d_size, e_size = padded(problem.q.shape[3]), padded(problem.v.shape[3])
    size = max(d_size, e_size)
    if tile is None:
        choose = backward_tiles if problem.direction == "bwd" else forward_tiles
        tiles = choose(problem, size, device.multiprocessors)
        fitting = (t for t in tiles if shared_bytes(problem, t, d_size, e_size) <= device.shared_bytes)
        tile = next(fitting, tiles[-1])
    return _plan(problem, device, tile, d_size, e_size, has_three_products)


def _plan(
    problem: Attention, device: GpuDevice, tile: Tile, d_size: int, e_size: int, has_three_products: bool
) -> Plan:
    n, h, t, _d = problem.q.shape
    g, s, e = problem.k.shape[1], problem.k.shape[2], problem.v.shape[3]
    shared = shared_bytes(problem, tile, d_size, e_size)
    is_forward = problem.direction == "fwd"
    group = h // g
    pack = group if is_forward and t < tile.rows and t * group < 1 << 24 else 1
    works = n * (h // pack) * max(1, -(-t * pack // tile.rows))
    side_by_side = max(1, min(device.shared_bytes // shared, 12 // tile.warps)) * device.multiprocessors
    splits = 1
    if is_forward and works < side_by_side:
        tiles = -(-s // tile.passing)
        wanted = -(-side_by_side // max(1, works)) if tile.share else side_by_side // max(1, works)
        splits = max(1, min(_MOST_SPLITS, wanted, tiles // _FEWEST_TILES))
    # ---- time: products of whole tiles on the multiprocessors that have work, and bytes
    per_pair = 2 * (d_size + e_size) if is_forward else 2 * (4 * d_size + 3 * e_size)
    seen = problem.pairs / max(1, n * h * t * s)
    pairs = works * tile.rows * max(tile.passing, s * seen)
    if not is_forward:
        pairs = n * h * -(-t // tile.rows) * tile.rows * max(tile.passing, s * seen)
    rate = device.tensor_flops(problem.dtype) * _RATE / (3 if has_three_products else 1)
    share = min(1.0, works * splits / device.multiprocessors)
    share *= min(1.0, 0.25 + 0.1875 * tile.warps * max(1, side_by_side // device.multiprocessors))
    waves = max(1, -(-works * splits // side_by_side))
    moved = problem.bytes + (8.0 * splits * n * h * t * (e + 2) if splits > 1 else 0.0)
    launches = (2 if splits > 1 else 1) if is_forward else 3
    seconds = launches * LAUNCH_SECONDS + max(
        pairs * per_pair / (rate * share) + waves * _BLOCK_SECONDS / 2,
        moved / (_BANDWIDTH_SHARE * device.bandwidth),
    )
    return Plan(problem, tile, d_size, e_size, pack, splits, shared, seconds, has_three_products)


def integers_of(plan: Plan) -> dict[str, int]:
    """The integers that the kernels take, by name."""
    return {
        **integers_of_problem(plan.problem),
        "pack": plan.pack,
        "blocks": plan.blocks,
        "splits": plan.splits,
    }
