"""dgrads of patches that touch without overlap, and so transposed convolutions with as large a stride, on sm_90a.

No element of the result gets products from two pixels then: each pixel of dy is multiplied by all taps. Such a product
is also run by patch (patch.py), where the pixels of a patch are contiguous in memory. Here results are scattered to
their places, also into some channels of a wider tensor, and a bias by channel is added to them.

Floors on an H100 (bf16), 64 channels of 2 x 48^3 pixels to 32 of 2 x 96^3: 47 us by bytes at 3 TB/s, 9 by products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.boxes.common import BARRIER_BYTES, CHANNELS, NOT_DIRECT, ROW
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemmInPlace
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand, filter_map
from jitdnn.kernels.cuda.cost import gemm_clock
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import trace

_MOST_GROUPS = 64
_LEAST_STAGES, _MAX_STAGES = 3, 8
_MOST_PIXELS = 2**30
_MEMORY_SHARE = 0.86  # of the bandwidth of copies
_LAUNCH = 2.5e-6
_STORED_BYTES = 24.0  # of results, of a multiprocessor in a cycle
_START_CYCLES = 4000.0
_MEASURED = 2.2
"""Of these cycles (1.7 to 2.6 in five layers on an H200, of which memory was the limit in none)."""
_BIAS = trace(lambda acc, bias: acc + bias)


@dataclass(frozen=True)
class Tile:
    """`consumers` of 64 pixels, `own` groups of a thread block in `passes` products, `stages` of the ring."""

    consumers: int
    own: int
    width: int
    stages: int


@dataclass(frozen=True)
class Plan:
    tile: Tile
    thread_blocks: int
    shared: int
    seconds: float
    tables: Tables


class WarpgroupPatches(KernelAlgorithm[Convolution, GpuDevice]):
    """dgrad whose filter is as large as its stride: all taps of a pixel are columns of one product."""

    name = "patch_wgmma"
    problem = Convolution

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if device.arch != "sm_90a":
            return f"wgmma is an instruction of sm_90a, and {device.name} is not one"
        dtypes = {operand.descriptor.dtype for operand in (*problem.inputs, *problem.outputs)}
        if not dtypes <= {*HALVES} or len(dtypes) > 1:
            return f"operands and result are all {' or '.join(HALVES)}, not {' and '.join(sorted(dtypes))}"
        if problem.direction != "bwd_data":
            return "results lie side by side in data gradients alone, or in transposed convolutions"
        if epilogue is not None and not _is_bias(epilogue, problem.dtype):
            return "it adds a bias of the result's channels, and nothing else: apply it to the result"
        found = plan_of(problem, device)
        return found if isinstance(found, str) else None

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = plan_of(problem, device)
        assert isinstance(plan, Plan), plan
        has_bias = epilogue is not None

        def build() -> Kernel:
            launch = Launch(
                "scatter_patches", plan.thread_blocks, 128 * (plan.tile.consumers + 1), plan.shared
            )
            kernel = device.kernel(
                _source(plan, problem.dtype, has_bias), [launch], 3 + has_bias, tables=plan.tables
            )
            alignments = (16, 16, 16, *((4,) if has_bias else ()))
            return ByAddress(
                kernel, lambda: ImplicitGemmInPlace().build(problem, device, epilogue), alignments
            )

        return PlannedKernel(0, plan.seconds, build)


def _is_bias(epilogue: Epilogue, dtype: str) -> bool:
    """Whether it adds one number of each channel, in the type of the result."""
    if epilogue.expression.key != _BIAS.key or len(epilogue.operands) != 1:
        return False
    (one,) = epilogue.operands
    wide = [
        stride
        for axis, (stride, extent) in enumerate(zip(one.strides, one.shape, strict=True))
        if axis != 1 and extent > 1
    ]
    return not any(wide) and one.strides[1] == 1 and one.dtype == dtype


def _source(plan: Plan, dtype: str, has_bias: bool) -> Source:
    defines = (
        ("CONSUMERS", plan.tile.consumers), ("PASS", plan.tile.width), ("MOST_GROUPS", _MOST_GROUPS),
        ("HAS_BIAS", int(has_bias)), ("BIAS_PARAMETER", "const u16 *bias, " if has_bias else ""),
        ("MULTIPLY", f"wgmma_{dtype}"), ("PACK", f"pack_{dtype}"), ("LOW", f"{dtype}_low"), ("HIGH", f"{dtype}_high"),
    )  # fmt: skip
    text = read_text("cuda/convolution/boxes", "results.cuh") + read_text(
        "cuda/convolution/patches", "dgrad.cu"
    )
    return Source("patches", text, defines, "hopper")


def _tiles(groups: int, blocks: int, shared_bytes: int) -> Iterator[Tile]:
    """Those that have room."""
    for consumers, own, width in itertools.product((2, 3), range(1, groups + 1), (4, 2, 1)):
        if groups % own or own % width:
            continue
        room = shared_bytes - own * blocks * 32 * ROW - BARRIER_BYTES
        stages = min(_MAX_STAGES, room // (blocks * consumers * 64 * ROW + BARRIER_BYTES))
        if stages >= _LEAST_STAGES:
            yield Tile(consumers, own, width, stages)


@lru_cache(256)
def plan_of(problem: Convolution, device: GpuDevice) -> Plan | str:
    """The plan of a data gradient, or why there is none."""
    taps, stride = three(problem.filter_spatial, 1), three(problem.stride, 1)
    dy, weights, x = Operand.of(problem.y, 0), Operand.of(problem.w, 1), Operand.of(problem.x, 2)
    whole = [n * step for n, step in zip(dy.extents, stride, strict=True)]
    if taps != stride or whole != list(x.extents) or any(side for pair in problem.padding for side in pair):
        sizes = f"{problem.filter_spatial} by strides of {problem.stride}"
        return f"patches of {sizes}: they fill x where both are the same"
    if problem.groups > 1 or max(problem.dilation) > 1:
        return "groups and dilated filters are no patches"
    if not (dy.size and problem.x.size and problem.w.size and problem.y.size):
        return "a tensor is empty: direct takes those"
    if max(dy.pixels, problem.n * math.prod(x.extents)) >= _MOST_PIXELS:
        return f"at most {_MOST_PIXELS} pixels fit the kernel's indices"
    step = linear_step((dy.images, *dy.extents), (dy.image, *dy.space))
    if step is None or not (dy.is_direct and weights.is_direct):
        return NOT_DIRECT.format("dy, whose pixels are evenly apart, and filter")
    steps = [x.image, *x.space]
    if x.channel != 1 or any(n * x.size % ALIGNMENT for n in (x.channels, *steps)):
        return "results leave by 16 bytes of channels, which are to be innermost and multiples of 8"
    parts, blocks = -(-x.channels // CHANNELS), -(-dy.channels // CHANNELS)
    groups = parts * math.prod(taps)
    if groups > _MOST_GROUPS:
        return f"{groups} times {CHANNELS} channels of all taps: at most {_MOST_GROUPS}"
    facts = device.facts
    best: tuple[float, Tile] | None = None
    for tile in _tiles(groups, blocks, facts.shared_bytes):
        cycles = _cycles(tile, groups, blocks, dy.pixels, device)
        if best is None or cycles < best[0]:
            best = cycles, tile
    if best is None:
        return f"filter and {_LEAST_STAGES} stages of pixels do not fit into shared memory"
    cycles, tile = best
    moved = sum(operand.descriptor.nbytes for operand in (*problem.inputs, *problem.outputs))
    seconds = (
        max(_MEASURED * cycles / gemm_clock(facts), moved / (_MEMORY_SHARE * device.bandwidth)) + _LAUNCH
    )
    turned = problem.mode == "convolution"
    order = list(itertools.product(range(parts), *map(range, taps)))
    group_step = [
        part * CHANNELS + sum(t * s for t, s in zip(tap, x.space, strict=True)) for part, *tap in order
    ]
    group_tap = [
        _packed(part, [n - 1 - t if turned else t for t, n in zip(tap, taps, strict=True)])
        for part, *tap in order
    ]
    more = (0,) * (_MOST_GROUPS - groups)
    tiles = groups // tile.own
    rows = -(-dy.pixels // (64 * tile.consumers))
    numbers = (
        dy.pixels, blocks, tile.stages, tiles, tile.own, x.channels, *dy.extents, x.image,
        *(s * n for s, n in zip(x.space, stride, strict=True)), *group_step, *more, *group_tap, *more,
    )  # fmt: skip
    nearest = -(-dy.channels * 2 // ALIGNMENT) * ALIGNMENT
    pitch = step * 2 if dy.pixels > 1 else nearest
    maps = (
        TensorMap(
            0,
            0,
            dy.dtype,
            (dy.channels, dy.pixels, 1),
            (pitch, pitch),
            (CHANNELS, 64 * tile.consumers, 1),
            (1, 1, 1),
        ),
        filter_map(weights, CHANNELS, CHANNELS),
    )
    shared = (
        tile.own * blocks * 32 * ROW
        + tile.stages * (blocks * tile.consumers * 64 * ROW + BARRIER_BYTES)
        + BARRIER_BYTES
    )
    thread_blocks = tiles * min(rows, max(1, device.multiprocessors // tiles))
    return Plan(tile, thread_blocks, shared, seconds, Tables(maps, numbers))


def _packed(part: int, tap: list[int]) -> int:
    d, h, w = tap
    return part | d << 16 | h << 32 | w << 48


def _cycles(tile: Tile, groups: int, blocks: int, pixels: int, device: GpuDevice) -> float:
    """Cycles of the launch: products, or results on their way out, whichever takes longer."""
    rows = -(-pixels // (64 * tile.consumers))
    tiles = groups // tile.own
    turns = -(-rows // min(rows, max(1, device.multiprocessors // tiles)))
    columns = tile.own * CHANNELS
    multiplied = tile.consumers * blocks * 2 * max(columns / 2, (64 + columns) / 4)
    stored = tile.consumers * 64 * columns * 2 / _STORED_BYTES
    alone = (2 * columns * blocks + 64 * columns * 2 / 16 / tile.width) / max(1, tile.consumers - 1)
    return _START_CYCLES + turns * (max(multiplied, stored) + alone)
