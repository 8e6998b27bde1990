"""How the recurrent part of a layer is cut: units of a thread block, groups of sequences, weights that stay.

grid      (slices, groups, directions), all thread blocks resident
slice     `units` units of all gates, `outputs` of a projection's; a slab is 64 bytes along K
group     `group_rows` sequences, 16 * `tiles` of them at a time; groups and directions never wait for each other
resident  slabs of the block's weights that stay in shared memory, the others are read at each step
parts     backward, slices that share their units, each for a part of K: less is read of the gates' gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.devices.gpu import GpuDevice
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_PITCH = 40  # numbers of a row of sums (product.cuh)
_TILE_BYTES = 512
SLAB_BYTES = 64
_MOST_ITEMS = 4
_PARTS = (1, 2, 4, 8)
_MOST_TILES = {True: 4, False: 2}  # rows of 16, by whether tensor cores multiply

# By the rates of an H100. Steps take 1.5 to 3 times as long on an H200, most where much is multiplied; choices among
# plans were measured as these numbers make them.
_STEP_CYCLES = 3500.0  # a barrier, the way through L2 and the gates
_L2_BYTES = 32.0  # a cycle, of one multiprocessor where all read
_MMA_CYCLES = 1.6  # of m16n8k8 in tf32
_FMA_CYCLES = 16 * 8 / 128  # of a column of K of a tile, one product a lane


@dataclass(frozen=True)
class Product:
    """Slabs along K, tiles of 8 columns of a slice, and the slabs that stay."""

    slabs: int
    tiles: int
    resident: int = 0

    @property
    def slice_bytes(self) -> int:
        return self.slabs * self.tiles * _TILE_BYTES


@dataclass(frozen=True)
class StepPlan:
    """The sizes of one launch; `cycles` are those of a step."""

    tiles: int
    slices: int
    units: int
    outputs: int
    groups: int
    group_rows: int
    directions: int  # of a launch
    first: Product
    second: Product | None
    shared: int
    cycles: float
    parts: int = 1

    @property
    def items(self) -> int:
        """Units of sequences, of a thread, whose operands are fetched ahead."""
        return min(_MOST_ITEMS, -(-16 * self.tiles * self.units // self.threads))

    @property
    def threads(self) -> int:
        """Of a thread block (BLOCK)."""
        return 32 * _warps(self.tiles)


def _warps(tiles: int) -> int:
    """Sums of few rows need few registers, so that more warps hide each other's latency."""
    return 16 if tiles == 1 else 8


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def state_type(p: Recurrent, has_tensor_cores: bool) -> str:
    """What states and recurrent weights are held in: on tensor cores halves forward, else what is computed with.

    Gradients of gates may be smaller than what f16 holds.
    """
    is_half = has_tensor_cores and p.direction == "fwd" and p.element in ("f16", "bf16")
    return p.element if is_half else compute_dtype(p.element)


def step_plan(p: Recurrent, device: GpuDevice, has_tensor_cores: bool, passes: int) -> StepPlan | None:
    """The plan that is expected to be fastest; None if the sums alone do not fit shared memory."""
    available = device.multiprocessors if device.cooperates else p.directions
    together = p.directions if available >= p.directions else 1
    each = available // together
    is_backward = p.direction != "fwd"
    least = 4 if p.cell == "lstm" and not is_backward else 8
    found = []
    most = _up(p.padded, least)
    units = _up(-(-p.padded // each), least)
    while units <= most:
        slices = -(-p.padded // units)
        groups = min(max(1, each // slices), -(-p.batch // 16)) if device.cooperates else -(-p.batch // 32)
        group_rows = _up(-(-p.batch // groups), 16)
        groups = -(-p.batch // group_rows)
        for parts in _PARTS if is_backward and not p.projection else (1,):
            if slices % parts or (parts > 1 and not device.cooperates):
                continue
            cut = units, groups, group_rows, together, parts
            plan = _sized(p, device, has_tensor_cores, passes, slices, *cut)
            if plan is not None:
                found.append(plan)
        units = max(units + least, _up(units * 5 // 4, least))
    return min(found, key=lambda one: one.cycles, default=None)


def _sized(
    p: Recurrent, device: GpuDevice, has_tensor_cores: bool, passes: int, slices: int, units: int, groups: int,
    group_rows: int, together: int, parts: int,
) -> StepPlan | None:  # fmt: skip
    item, is_backward = ITEM_BYTES[compute_dtype(p.element)], p.direction != "fwd"
    slab = SLAB_BYTES // ITEM_BYTES[state_type(p, has_tensor_cores)]
    outputs = _up(-(-p.padded_size // slices), 8) if p.projection else 0
    if is_backward:
        if p.gates * p.padded // slab % parts:
            return None
        first = Product(p.gates * p.padded // slab // parts, (outputs or units) * parts // 8)
        second = Product(p.padded_size // slab, units // 8) if p.projection else None
    else:
        first = Product(-(-p.padded_size // slab), p.gates * units // 8)
        second = Product(-(-p.padded // slab), outputs // 8) if p.projection else None
    tiles = 1 if item == 8 else _MOST_TILES[has_tensor_cores]
    while tiles > 1 and 8 * tiles >= group_rows:
        tiles //= 2
    widest = max(product.tiles for product in (first, second) if product)
    while True:
        sums = (_warps(tiles) * _PITCH + 8 * widest) * 16 * tiles * item + _up(
            4 * units, 4
        ) * item  # and biases
        if sums <= device.shared_bytes or tiles == 1:
            break
        tiles //= 2
    room = device.shared_bytes - sums
    if room < 0:
        return None
    first, room = _kept(first, room)
    if second:
        second, room = _kept(second, room)
    cycles = 0.0
    for product in (first, second):
        if product is None:
            continue
        chunks = -(-group_rows // (16 * tiles))
        row_tiles = min(chunks * tiles, -(-group_rows // 16))
        multiplying = 2 * passes * _MMA_CYCLES if has_tensor_cores else SLAB_BYTES / item * _FMA_CYCLES * 2
        multiplying *= product.slabs * product.tiles * row_tiles
        kept = product.resident * product.tiles * _TILE_BYTES
        read = chunks * kept / device.facts.shared_bytes_per_cycle
        streamed = chunks * (product.slice_bytes - kept) + group_rows * product.slabs * SLAB_BYTES
        cycles += max(multiplying, read) + streamed / _L2_BYTES + _STEP_CYCLES
        cycles += chunks * 600.0 + 12.0 * 16 * tiles * chunks * 8 * product.tiles * _warps(tiles) / (
            32 * _warps(tiles)
        )
    if parts > 1:
        cycles += _STEP_CYCLES + 2 * group_rows * units * parts * item / _L2_BYTES
    return StepPlan(
        tiles, slices, units, outputs, groups, group_rows, together, first, second, device.shared_bytes - room, cycles,
        parts,
    )  # fmt: skip


def _kept(product: Product, room: int) -> tuple[Product, int]:
    """As many slabs as there is room for, and the room that is left."""
    resident = min(product.slabs, room // (product.tiles * _TILE_BYTES))
    kept = Product(product.slabs, product.tiles, resident)
    return kept, room - resident * product.tiles * _TILE_BYTES
