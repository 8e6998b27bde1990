"""The gradient of a convolution's filter on the matrix units (`mma.sync`), for compute capability 8.0 and later.

The product sums over pixels, which are many, for results that are few: so the pixels are divided among blocks, and the
parts added in a fixed order. Channels-last tensors are read as they lie; others go through the workspace first, or are
read element by element where no workspace is wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    arithmetic_of,
    refuse_units,
    type_defines,
    units_bound,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    MASK_BITS,
    Batch,
    View,
    alignments,
    form_of,
    view_of,
)
from jitdnn.kernels.cuda.gemm.tiles import (
    TILES,
    ByAlignment,
    Cut,
    Pack,
    Tile,
    Work,
    best_cut,
    copy_bytes,
    index_type,
    linear_step,
    listed,
    narrowness,
    packing_text,
    seconds,
    three,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES, TensorDescriptor

_MOST_PARTS = 512
_PIXEL_BYTES = 32  # at most, of what is known of a pixel; two blocks of them lie in shared memory
_ROOM = 2 * 64 * _PIXEL_BYTES  # at most
_SLOW = {16: 1.0, 8: 1.15, 4: 1.4, 0: 4.0}  # how much longer stages take by the width of copies, a guess


@dataclass(frozen=True)
class Plan:
    """How a problem is computed. `depth` and `height` are the channels of x and dy in a group, packed ones extended."""

    problem: Convolution
    batch: Batch | None
    data: View
    outer: View
    depth: int
    height: int
    data_pack: Pack | None
    outer_pack: Pack | None
    cut: Cut
    copy_a: int
    copy_b: int
    is_vector: bool
    index: str
    seconds: float

    @property
    def parts_at(self) -> int:
        """Where in the workspace the sums of the parts begin."""
        return sum(pack.bytes for pack in (self.data_pack, self.outer_pack) if pack)

    @property
    def work(self) -> Work:
        return _work(self.problem, self.depth, self.groups)

    @property
    def groups(self) -> int:
        return self.batch.count if self.batch else self.problem.groups

    @property
    def workspace(self) -> int:
        return self.parts_at + self.cut.partial_bytes([self.work])

    @property
    def elementwise(self) -> Plan:
        """The same for operands at any address."""
        copy_a = self.copy_a if self.outer_pack else 0
        copy_b = self.copy_b if self.data_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, is_vector=False)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of x, dy and dw must be multiples of."""
        data = 1 if self.data_pack else self.copy_b
        outer = 1 if self.outer_pack else self.copy_a
        return max(1, data), max(1, outer), 16 if self.is_vector else 1


class ImplicitGemmFilter(Algorithm):
    """Channels of dy by taps and channels of x, summed over pixels in f32."""

    name: ClassVar[str] = "implicit_gemm"
    problem: ClassVar[type[Problem]] = Convolution
    deterministic: ClassVar[bool] = True
    uses_workspace: ClassVar[bool] = True

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if epilogue is not None:
            return "a filter's gradient takes no epilogue here"
        columns = math.prod(problem.w.shape[1:])
        if columns >= 2**30:
            return f"{columns} numbers of a filter are more than the {2**30} that are numbered here"
        return refuse_units(problem.x.dtype, problem.groups, device)

    def arithmetic(self, problem: Problem) -> str:
        return arithmetic_of(problem)

    def error_bound(self, problem: Problem) -> float:
        return units_bound(problem)

    def plan(self, problem: Problem, device: Device) -> Plan:
        """How the problem is cut on this device."""
        assert isinstance(problem, Convolution)
        return plan_of(problem, device, self._tiles, self.uses_workspace)  # type: ignore[arg-type]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.plan(problem, device).workspace

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.plan(problem, device).seconds

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return kernel_of(self.plan(problem, device), device)


class ImplicitGemmFilterInPlace(ImplicitGemmFilter):
    """The same without workspace: nothing is packed and the pixels are not divided."""

    name: ClassVar[str] = "implicit_gemm_in_place"
    uses_workspace: ClassVar[bool] = False


def kernel_of(plan: Plan, device: Device) -> Kernel:
    """The kernels of a plan."""
    gpu: GpuDevice = device  # type: ignore[assignment]

    def kernel(plan: Plan) -> Kernel:
        return gpu.kernel(source_of(plan), launches_of(plan), 3)

    fast, plain = plan, plan.elementwise
    return kernel(fast) if fast == plain else ByAlignment(kernel(fast), kernel(plain), plan.alignments)


def _work(problem: Convolution, depth: int, groups: int) -> Work:
    pixels = problem.n * math.prod(problem.output_spatial)
    taps = math.prod(problem.filter_spatial)
    return Work(problem.k // problem.groups, taps * depth, pixels, groups)


@lru_cache(512)
def plan_of(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None = None,
) -> Plan:
    """The plan that is expected to be fastest, of the problem or of a batch of such."""
    choices = [(False, False)]
    if uses_workspace and problem.n and batch is None:
        choices += [(True, False), (False, True), (True, True)]
    plans = [_candidate(problem, device, tiles, uses_workspace, batch, *choice) for choice in choices]
    return min((plan for plan in plans if plan), key=lambda plan: plan.seconds)


def _candidate(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None,
    packs_data: bool,
    packs_outer: bool,
) -> Plan | None:
    """The best cut of the problem with these operands packed; None if that is no choice."""
    dtype, groups = problem.x.dtype, problem.groups
    data, outer = view_of(problem.x, groups), view_of(problem.y, groups)
    if batch:
        data, outer = replace(data, group=batch.data), replace(outer, group=batch.filter)
    depth, height = problem.c // groups, problem.k // groups
    data_pack = outer_pack = None
    time, at = 0.0, 0
    if packs_data:
        data_pack = Pack.of(problem.x, groups, at)
        data, depth = View.of(data_pack), data_pack.wide
        time, at = data_pack.seconds(device), data_pack.bytes
    if packs_outer:
        outer_pack = Pack.of(problem.y, groups, at)
        outer, height = View.of(outer_pack), outer_pack.wide
        time += outer_pack.seconds(device)
    copy_a = copy_bytes(dtype, outer.channel, alignments(outer, height, three(problem.output_spatial, 1)))
    copy_b = copy_bytes(dtype, data.channel, alignments(data, depth, three(problem.spatial, 1)))
    if (packs_outer and not copy_a) or (packs_data and not copy_b):
        return None
    dw, taps = problem.w, math.prod(problem.filter_spatial)
    columns = taps * depth
    run = 8
    is_vector = (
        depth == problem.c // groups
        and dw.shape[0] * columns == dw.size
        and _is_run(dw.strides[2:], dw.shape[2:], dw.strides[1], depth)
        and columns % run == 0
        and dw.strides[0] % run == 0
        and (batch is None or batch.result % run == 0)
    )
    work = _work(problem, depth, batch.count if batch else groups)
    tensors = batch.tensors if batch else (problem.x, problem.y, dw)
    moved = sum(tensor.nbytes for tensor in tensors)
    cut = best_cut([work], tiles, dtype, device, moved, _MOST_PARTS if uses_workspace else 1, _ROOM, True)
    narrow = narrowness(dtype, groups, depth)
    time += seconds([work], cut, dtype, device, moved, True) * max(_SLOW[copy_a], _SLOW[copy_b]) * narrow
    packed = [pack.bytes // DTYPES[dtype] for pack in (data_pack, outer_pack) if pack]
    index = index_type(tensors, work.k + 4096, *packed)
    return Plan(
        problem,
        batch,
        data,
        outer,
        depth,
        height,
        data_pack,
        outer_pack,
        cut,
        copy_a,
        copy_b,
        is_vector,
        index,
        time,
    )


def _is_run(strides: tuple[int, ...], extents: tuple[int, ...], channel: int, channels: int) -> bool:
    """True if taps, with channels inside, are one run of memory."""
    step = channels
    for stride, extent in zip(reversed(strides), reversed(extents), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return channel == 1 or channels == 1


def source_of(plan: Plan) -> Source:
    """The text of the kernel, with all that is known of the problem."""
    problem, cut = plan.problem, plan.cut
    dw, groups = problem.w, problem.groups
    sign, taps = (-1 if problem.mode == "convolution" else 1), problem.filter_spatial
    # tap t of the flipped filter meets what tap taps - 1 - t of the other does: dw is walked backwards
    space = tuple(sign * s for s in dw.strides[2:])
    base = sum((n - 1) * s for n, s in zip(taps, dw.strides[2:], strict=True)) if sign < 0 else 0
    text = (
        read_text("cuda/gemm", "mainloop.cuh")
        + "\n"
        + read_text("cuda/convolution/implicit_gemm", "wgrad.cu")
    )
    text += packing_text(plan.data_pack, plan.outer_pack)
    a, b, c = three(taps, 1)
    leaves = _leaves(problem)
    step = linear_step((problem.n, *three(problem.output_spatial, 1)), (plan.outer.image, *plan.outer.space))
    data_step = None
    if max(taps) == 1 and max(problem.stride) == 1 and not any(leaves):
        data_step = linear_step((problem.n, *three(problem.spatial, 1)), (plan.data.image, *plan.data.space))
    defines = (
        *type_defines(problem.x.dtype, dw.dtype),
        *cut.defines([plan.work], plan.parts_at),
        ("INDEX", plan.index),
        ("DEPTH", plan.depth),
        ("CHANNELS", problem.c // groups),
        ("HEIGHT", problem.k // groups),
        ("OUTER_CHANNELS", plan.height),
        ("IMAGES", problem.n),
        ("PLACES", math.prod(problem.output_spatial)),
        ("TAPS_0", a),
        ("TAPS_1", b),
        ("TAPS_2", c),
        ("RESULTS", listed(three(problem.output_spatial, 1))),
        ("EXTENTS", listed(three(problem.spatial, 1))),
        ("MOVES", listed(three(problem.stride, 1))),
        ("SHIFTS", listed(three(problem.dilation, 1))),
        ("OFFSETS", listed(three([-before for before, _ in problem.padding], 0))),
        ("MASK_AXES", listed(three([int(outside) for outside in leaves], 0))),
        ("IS_MASKED", int(_is_masked(problem))),
        ("DATA_IMAGE", plan.data.image),
        ("DATA_GROUP", plan.data.group),
        ("DATA_CHANNEL", plan.data.channel),
        ("DATA_STRIDES", listed(plan.data.space)),
        ("OUTER_IMAGE", plan.outer.image),
        ("OUTER_GROUP", plan.outer.group),
        ("OUTER_CHANNEL", plan.outer.channel),
        ("OUTER_STRIDES", listed(plan.outer.space)),
        ("IS_OUTER_LINEAR", int(step is not None)),
        ("OUTER_STEP", step or 0),
        ("IS_DATA_LINEAR", int(data_step is not None)),
        ("DATA_STEP", data_step or 0),
        ("RESULT_BASE", base),
        ("RESULT_GROUP", plan.batch.result if plan.batch else problem.k // groups * dw.strides[0]),
        ("RESULT_ROW", dw.strides[0]),
        ("RESULT_CHANNEL", dw.strides[1]),
        ("RESULT_STRIDES", listed(three(space, 0))),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("IS_RESULT_VECTOR", int(plan.is_vector and sign > 0)),
        ("IS_DATA_PACKED", int(plan.data_pack is not None)),
        ("DATA_AT", f"{plan.data_pack.at if plan.data_pack else 0}ll"),
        ("IS_FILTER_PACKED", int(plan.outer_pack is not None)),
        ("FILTER_AT", f"{plan.outer_pack.at if plan.outer_pack else 0}ll"),
        ("EPILOGUE_PARAMETERS", ""),
    )
    # a few bytes spill where a tile takes all registers; tests hold the common problems to none
    return Source("implicit_gemm_filter", text, defines, dialect="cuda", spills=True)


def _leaves(problem: Convolution) -> list[bool]:
    """For each axis of space, whether some tap of some pixel of dy meets no pixel of x."""
    # dy is an input here, which may overlap itself, as no result may
    y = TensorDescriptor.packed(problem.y.shape, problem.y.dtype)
    forward = form_of(replace(problem, direction="fwd", y=y))
    return [axis.is_masked for axis in forward.axes[3 - len(problem.spatial) :]]


def _is_masked(problem: Convolution) -> bool:
    """True if the taps that may lie outside of x fit into the bits of a mask."""
    taps = [n for n, outside in zip(problem.filter_spatial, _leaves(problem), strict=True) if outside]
    return sum(taps) <= MASK_BITS


def launches_of(plan: Plan) -> list[Launch]:
    """Packing, the product, and the sum of its parts."""
    cut, groups, tile = plan.cut, plan.groups, plan.cut.tile
    launches: list[Launch] = []
    if plan.data_pack:
        launches.append(Launch("pack_data", plan.data_pack.blocks, 256))
    if plan.outer_pack:
        launches.append(Launch("pack_filter", plan.outer_pack.blocks, 256))
    stages = tile.stages * (tile.m + tile.n) * tile.k_bytes
    pixel = 16 if plan.index == "i32" and _is_masked(plan.problem) else _PIXEL_BYTES
    stages += 2 * (tile.k_bytes // DTYPES[plan.problem.x.dtype]) * pixel
    staged = tile.m * (tile.n + 8) * 4
    grid = cut.blocks([plan.work]), groups
    launches.append(Launch("implicit_gemm_filter", grid, tile.threads, max(stages, staged)))
    if cut.parts > 1:
        pieces = tile.m * (tile.n // 8) * cut.sharers([plan.work]) // 256
        launches.append(Launch("add_parts", (cut.divided([plan.work]), groups, pieces), 256))
    return launches
