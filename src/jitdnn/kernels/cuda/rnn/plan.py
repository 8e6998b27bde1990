"""The division of a layer's recurrent part: units of a thread block, groups of sequences, weights kept on chip.

grid      (slices, groups, directions), all thread blocks resident
slice     `units` units of all gates, `outputs` of a projection's; a slab is 64 bytes along K
group     `group_rows` sequences, 16 * `tiles` of them at a time; groups and directions never wait for each other
resident  slabs of the thread block's weights that stay in shared memory; the others are read at each step
parts     backward, slices that share their units, each for a part of K: fewer gradients of the gates are read
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
# How much longer than by these numbers steps take on an H200, by whether numbers are halves, and rows 16 at a time.
_OFF_BY = {(True, True): 1.15, (True, False): 2.0, (False, True): 1.6, (False, False): 2.1}

# Of warpgroups, by measurements on an H200.
_LOAD_CYCLES = 1500.0  # from the request of states to the product of the last
_PAIR_CYCLES = 1000.0  # until two blocks of a cluster have what they find for each other
_READ_BYTES = 26.0  # a cycle
_ITEM_CYCLES, _BACKWARD_ITEM_CYCLES = (
    700.0,
    900.0,
)  # of a unit of a sequence, of those of a thread one behind the other
_WARPGROUP_COLUMNS = (32, 64, 96, 128)
_CLUSTERS = (1, 2, 4, 8, 16)
_LARGE_CLUSTER = 16  # which fits where most groups of multiprocessors are whole
_MULTIPROCESSORS_OF_LARGE = 128
_CLUSTER_CYCLES = 2300.0  # of a step: a barrier of a cluster, and what waits for each other
_MEMBER_CYCLES = 60.0  # for each block that is written to
_CHAIN_CYCLES = 125.0  # of products that wait for each other
_MOST_WARPS, _MOST_UNIT_TILES = 16, 2
_MOST_COLUMNS = {  # that registers hold sums of: (is backward, threads)
    (False, 256): 128, (False, 512): 64, (True, 256): 128, (True, 512): 64,
}  # fmt: skip

# By the rates of an H100. Steps take 1.5 to 3 times as long on an H200, most where much is multiplied; choices among
# plans were measured as these numbers make them.
_STEP_CYCLES = 3500.0  # a barrier, the way through L2 and the gates
_L2_BYTES = 32.0  # a cycle, of one multiprocessor where all read
_MMA_CYCLES = 1.6  # of m16n8k8 in tf32
_FMA_CYCLES = 16 * 8 / 128  # of a column of K of a tile, one product a lane


@dataclass(frozen=True)
class Product:
    """Slabs along K, tiles of 8 columns of a slice, and the slabs that stay.

    `packed`: slabs of the weights, some of them zeros behind the last; 0 for as many as there are.
    """

    slabs: int
    tiles: int
    resident: int = 0
    packed: int = 0

    @property
    def lines(self) -> int:
        """Slabs as they are packed."""
        return self.packed or self.slabs

    @property
    def slice_bytes(self) -> int:
        return self.lines * self.tiles * _TILE_BYTES


@dataclass(frozen=True)
class Warpgroups:
    """By which warpgroups a product is shared (warpgroup.cuh): rows of 64, and slabs along K."""

    rows: int
    slabs: int

    @property
    def threads(self) -> int:
        return 128 * self.rows * self.slabs

    @property
    def together(self) -> int:
        """Slabs that a warpgroup multiplies between two waits, half of those in flight: registers hold no more."""
        return 4 if self.threads <= 256 else 2


_WARPGROUPS = tuple(Warpgroups(*each) for each in ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1)))


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
    warpgroups: Warpgroups | None = None  # None: warps multiply
    cluster: int = (
        0  # thread blocks of a cluster (cluster_forward.cu), which are the slices; 0: there are none
    )

    @property
    def is_paired(self) -> bool:
        """Whether two parts are a cluster, of which as many are resident as there are pairs of multiprocessors."""
        return self.warpgroups is not None and self.parts == 2

    @property
    def order(self) -> int:
        """Of packed weights (`pack_weights`)."""
        return 1 if self.warpgroups else 2 if self.cluster else 0

    @property
    def unit_tiles(self) -> int:
        """Tiles of a warp of a cluster."""
        return -(-self.first.tiles // _MOST_WARPS)

    @property
    def items(self) -> int:
        """Units of sequences, of a thread, whose operands are fetched ahead."""
        each = -(-16 * self.tiles * self.units // self.threads)
        return each if self.cluster else min(_MOST_ITEMS, each)

    @property
    def threads(self) -> int:
        """Of a thread block (BLOCK)."""
        if self.cluster:
            return 32 * -(-self.first.tiles // self.unit_tiles)
        return self.warpgroups.threads if self.warpgroups else 32 * _warps(self.tiles)


def _warps(tiles: int) -> int:
    """Sums of few rows need few registers, so that more warps hide each other's latency."""
    return 16 if tiles == 1 else 8


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def state_type(p: Recurrent, has_tensor_cores: bool) -> str:
    """The type of what is exchanged between steps and of recurrent weights: on tensor cores halves are halves.

    Gradients of gates are kept in what is computed with, and in f16 exchanged times a power of two (`rows.cu`).
    """
    is_half = has_tensor_cores and p.element in ("f16", "bf16")
    if p.direction != "fwd":  # gradients of a projection are read where they are kept, and slabs are whole
        is_half = is_half and not p.projection and p.gates * p.padded % (SLAB_BYTES // 2) == 0
    return p.element if is_half else compute_dtype(p.element)


def step_plan(p: Recurrent, device: GpuDevice, has_tensor_cores: bool, passes: int) -> StepPlan | None:
    """The plan that is expected to be fastest; None if the sums alone do not fit shared memory."""
    return min(step_plans(p, device, has_tensor_cores, passes), key=lambda one: one.cycles, default=None)


def step_plans(p: Recurrent, device: GpuDevice, has_tensor_cores: bool, passes: int) -> list[StepPlan]:
    """All plans: products by warps, by warpgroups, and by clusters."""
    by_warpgroups = has_tensor_cores and passes == 1 and device.arch == "sm_90a" and not p.projection
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
                is_half = ITEM_BYTES[state_type(p, has_tensor_cores)] == 2
                factor = _OFF_BY[is_half, plan.tiles == 1 or not has_tensor_cores]
                found.append(replace(plan, cycles=plan.cycles * factor))
            for warpgroups in _WARPGROUPS if by_warpgroups else ():
                plan = _by_warpgroups(p, device, warpgroups, slices, *cut)
                if plan is not None:
                    found.append(plan)
        units = max(units + least, _up(units * 5 // 4, least))
    if has_tensor_cores and device.arch == "sm_90a" and p.cell in ("lstm", "gru") and not p.projection:
        found += _by_clusters(p, device, passes)
    return found


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


def _by_warpgroups(
    p: Recurrent, device: GpuDevice, warpgroups: Warpgroups, slices: int, units: int, groups: int,
    group_rows: int, together: int, parts: int,
) -> StepPlan | None:  # fmt: skip
    """The same where warpgroups multiply and all weights stay; None if they do not fit."""
    is_backward = p.direction != "fwd"
    slab = SLAB_BYTES // ITEM_BYTES[state_type(p, True)]
    if is_backward:
        slabs, columns = p.gates * p.padded // slab, units * parts
        if p.gates * p.padded % slab or slabs % parts:
            return None
        slabs //= parts
    else:
        slabs, columns = -(-p.padded_size // slab), p.gates * units
    columns = _up(columns, 32)
    if columns not in _WARPGROUP_COLUMNS or columns > _MOST_COLUMNS[is_backward, warpgroups.threads]:
        return None
    rows = 64 * warpgroups.rows
    if group_rows <= rows - 64:
        return None
    packed = _up(slabs, warpgroups.together * warpgroups.slabs)
    product = Product(slabs, columns // 8, packed, packed)
    sums = 4 * (warpgroups.slabs * rows * (columns + 8) + _up(4 * units, 4))
    shared = product.slice_bytes + sums + (4 * parts * group_rows * units if parts == 2 else 0)
    if shared > device.shared_bytes:
        return None
    chunks = -(-group_rows // rows)
    loads = -(-slabs // (warpgroups.together * warpgroups.slabs))  # one behind the other
    multiplying = max(slabs * columns * warpgroups.rows, _LOAD_CYCLES * (1 + loads / 2))
    reading = rows * slabs * SLAB_BYTES / _READ_BYTES
    writing = rows * columns * warpgroups.slabs / 16 + 600.0
    items = rows * units / warpgroups.threads * (_BACKWARD_ITEM_CYCLES if is_backward else _ITEM_CYCLES)
    cycles = chunks * (max(multiplying, reading) + writing + items) + _STEP_CYCLES
    if parts > 1:
        found = 6 * group_rows * units * parts * 4 / _READ_BYTES  # written, read, and waited for
        cycles += group_rows * units * parts / warpgroups.threads * 100.0
        cycles += _PAIR_CYCLES if parts == 2 else _STEP_CYCLES + found
    return StepPlan(
        rows // 16, slices, units, 0, groups, group_rows, together, product, None, shared, cycles, parts, warpgroups
    )  # fmt: skip


def _by_clusters(p: Recurrent, device: GpuDevice, passes: int) -> list[StepPlan]:
    """Plans for clusters of thread blocks, which have all units for 16 sequences."""
    is_backward, found = p.direction != "fwd", []
    item = ITEM_BYTES[compute_dtype(p.element) if is_backward else state_type(p, True)]
    groups = -(-p.batch // 16)
    for cluster in _CLUSTERS if device.cooperates else (1,):
        if cluster == _LARGE_CLUSTER and device.multiprocessors < _MULTIPROCESSORS_OF_LARGE:
            continue
        units = _up(-(-p.padded // cluster), 2)
        if is_backward:  # of all units a part from the block's own gates
            tiles, slabs = p.padded // 8, -(-p.gates * units * item // SLAB_BYTES)
            exchanged = 16 * (slabs | 1) * SLAB_BYTES + 2 * cluster * 16 * units * item
        else:
            tiles, slabs = units // 2, -(-p.padded_size * item // SLAB_BYTES)
            exchanged = 2 * 16 * (slabs | 1) * SLAB_BYTES
        product = Product(slabs, tiles, slabs)
        shared = product.slice_bytes + exchanged
        if shared > device.shared_bytes or tiles > _MOST_WARPS * _MOST_UNIT_TILES:
            continue
        plan = StepPlan(
            1, cluster, units, 0, groups, 16, p.directions, product, None, shared, 0.0, cluster=cluster
        )  # fmt: skip
        warps = plan.threads // 32
        busy = 2 * passes * _MMA_CYCLES * slabs * tiles + slabs * (4 * tiles + 8 * warps) + 50.0 * units
        alone = _CLUSTER_CYCLES + _MEMBER_CYCLES * cluster + _CHAIN_CYCLES * slabs * passes + 50.0 * units
        blocks = -(-cluster * groups * p.directions // device.multiprocessors)  # of a multiprocessor
        together = min(device.shared_bytes // shared, 2048 // plan.threads, blocks) or 1
        cycles = -(-blocks // together) * max(alone, together * busy)
        found.append(replace(plan, cycles=cycles))
    return found


def _kept(product: Product, room: int) -> tuple[Product, int]:
    """As many slabs as there is room for, and the room that is left."""
    resident = min(product.slabs, room // (product.tiles * _TILE_BYTES))
    kept = Product(product.slabs, product.tiles, resident)
    return kept, room - resident * product.tiles * _TILE_BYTES
