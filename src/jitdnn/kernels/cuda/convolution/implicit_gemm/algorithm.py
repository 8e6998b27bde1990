"""Convolution forward and backward to the data on the matrix units (`mma.sync`), for compute capability 8.0 and later.

The implicit product reads channels-last tensors as they lie. Others, and those whose channels no wide copy divides, go
through the workspace first, or are read element by element where no workspace is wanted. A product with too few tiles
for the machine is divided along its reduction; the parts are added in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import (
    Algorithm,
    Device,
    Epilogue,
    Kernel,
    storing_roundoff,
    summation_bound,
    terms,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    Form,
    View,
    alignments,
    form_of,
    rows_of,
)
from jitdnn.kernels.cuda.gemm.tiles import (
    FUNCTIONS,
    TILES,
    ByAlignment,
    Cut,
    Nothing,
    Pack,
    Tile,
    best_cut,
    copy_bytes,
    crossing,
    index_type,
    linear_step,
    listed,
    narrowness,
    packing_text,
    seconds,
)
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES, TensorDescriptor

_MOST_TAPS = 1024
_MOST_CLASSES = 512
_MOST_PARTS = 64
_MOST_GROUPS = 65535  # along the second axis of a grid
_EXACT_I32 = 2**31 // 2**14  # products of two i8 whose sum an i32 holds
_BLOCKWISE = 3.0  # how much longer a stage takes whose elements are copied one by one, a guess


@dataclass(frozen=True)
class Plan:
    """How a problem is computed: the form, what is packed, how it is cut, and how wide copies are."""

    form: Form
    dtype: str
    data_pack: Pack | None
    filter_pack: Pack | None
    cut: Cut
    copy_a: int
    copy_b: int
    is_across: bool
    is_vector: bool
    rows_first: bool
    filter_depth: int
    filter_columns: int
    index: str
    seconds: float

    @property
    def packs(self) -> tuple[Pack, ...]:
        return tuple(pack for pack in (self.data_pack, self.filter_pack) if pack)

    @property
    def parts_at(self) -> int:
        """Where in the workspace the sums of the parts begin."""
        return sum(pack.bytes for pack in self.packs)

    @property
    def workspace(self) -> int:
        return self.parts_at + self.cut.partial_bytes(self.form.works)

    @property
    def elementwise(self) -> Plan:
        """The same for operands at any address."""
        copy_a = self.copy_a if self.data_pack else 0
        copy_b = self.copy_b if self.filter_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, is_vector=False)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of."""
        data = 1 if self.data_pack else self.copy_a
        weights = 1 if self.filter_pack else self.copy_b
        return max(1, data), max(1, weights), 16 if self.is_vector else 1


class ImplicitGemm(Algorithm):
    """Taps outer and channels inner in the reduction, tiles by asynchronous copies, sums in f32 (i32 of i8)."""

    name: ClassVar[str] = "implicit_gemm"
    problem: ClassVar[type[Problem]] = Convolution
    deterministic: ClassVar[bool] = True
    uses_workspace: ClassVar[bool] = True

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        return refuse_units(problem.x.dtype, problem.groups, device) or _refuse_extents(problem)

    def arithmetic(self, problem: Problem) -> str:
        return arithmetic_of(problem)

    def error_bound(self, problem: Problem) -> float:
        return units_bound(problem)

    def plan(self, problem: Problem, device: Device) -> Plan:
        """How the problem is cut on this device."""
        assert isinstance(problem, Convolution)
        return plan_of(problem, device, self._tiles, self.uses_workspace)  # type: ignore[arg-type]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.plan(problem, device).workspace if problem.output.size else 0

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.plan(problem, device).seconds if problem.output.size else 1e-6

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        if not problem.output.size:
            return Nothing()
        return kernel_of(self.plan(problem, device), problem.output, device, epilogue)


class ImplicitGemmInPlace(ImplicitGemm):
    """The same without workspace: nothing is packed and the reduction is not divided."""

    name: ClassVar[str] = "implicit_gemm_in_place"
    uses_workspace: ClassVar[bool] = False


def kernel_of(
    plan: Plan,
    output: TensorDescriptor,
    device: Device,
    epilogue: Epilogue | None,
    indices: Sequence[str] | None = None,
) -> Kernel:
    """The kernels of a plan. `indices`: those of an element of the output, see `source_of`."""
    gpu: GpuDevice = device  # type: ignore[assignment]
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)

    def kernel(plan: Plan) -> Kernel:
        return gpu.kernel(source_of(plan, output, epilogue, indices), launches_of(plan), pointers)

    fast, plain = plan, plan.elementwise
    return kernel(fast) if fast == plain else ByAlignment(kernel(fast), kernel(plain), plan.alignments)


def refuse_units(dtype: str, groups: int, device: Device) -> str | None:
    """What the matrix units cannot do of any product."""
    if dtype not in FUNCTIONS:
        return f"the matrix units multiply {', '.join(FUNCTIONS)} here, and the tensors are {dtype}"
    units: GpuDevice = device  # type: ignore[assignment]
    if not units.tensor_flops(dtype):
        return f"{device.name} has no matrix units for {dtype}"
    if groups > _MOST_GROUPS:
        return f"{groups} groups are more than {_MOST_GROUPS}, which a launch can have"
    return None


def arithmetic_of(problem: Problem) -> str:
    """f32 tensors are multiplied as tf32; products of two numbers of half precision are exact."""
    return "tf32" if problem.inputs[0].descriptor.dtype == "f32" else "fp32"


def units_bound(problem: Problem) -> float:
    """The matrix units cut off as they add, so their error grows with the number of terms itself, not its root."""
    bound, dtype = summation_bound(problem), problem.inputs[0].descriptor.dtype
    if dtype == "i8":
        return bound
    bound += terms(problem) * 2.0**-26
    if dtype == "f32":
        bound += 2.0**-10  # both factors are rounded to 11 bits
    return max(bound, 2.0 * storing_roundoff(problem))


def _refuse_extents(problem: Convolution) -> str | None:
    taps = math.prod(problem.filter_spatial)
    if taps > _MOST_TAPS:
        return f"a filter of {taps} taps is larger than {_MOST_TAPS}: direct or fft take it"
    depth = (
        math.prod(problem.w.shape[1:]) if problem.direction == "fwd" else problem.k // problem.groups * taps
    )
    if max(problem.spatial + problem.output_spatial) >= 2**28:
        return f"images of more than {2**28} places along an axis are not numbered here"
    if depth >= 2**30:
        return f"a sum has {depth} terms: at most {2**30} are numbered here"
    if problem.is_integer and depth > _EXACT_I32:
        return f"a sum of {depth} products of two i8 may exceed an i32: at most {_EXACT_I32} cannot"
    if problem.direction == "bwd_data":
        classes = math.prod(problem.stride)
        if classes > _MOST_CLASSES:
            return f"strides {problem.stride} make {classes} classes of results: at most {_MOST_CLASSES} are taken"
    return None


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
    if uses_workspace and batch is None:
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
    packs_filter: bool,
) -> Plan | None:
    """The best cut of the problem with these operands packed; None if that is no choice."""
    form, dtype = form_of(problem), problem.x.dtype
    if batch:
        form = form.repeated(batch)
    is_forward = problem.direction == "fwd"
    data, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    filter_depth, filter_columns, time, at = form.depth, form.width, 0.0, 0
    data_pack = filter_pack = None
    if packs_data:
        data_pack = Pack.of(data, form.groups, 0)
        form = replace(form, depth=data_pack.wide, data=View.of(data_pack))
        at, time = data_pack.bytes, data_pack.seconds(device)
    if packs_filter:
        filter_pack = Pack.of(problem.w, 1, at)
        wide = filter_pack.wide
        row, _, space = filter_pack.strides
        column, channel = (row, 1) if is_forward else (1, row)
        group = problem.k // problem.groups * row
        form = replace(
            form, filter=replace(form.filter, group=group, column=column, channel=channel, space=space)
        )
        if is_forward:
            filter_depth = wide
        else:
            filter_columns = wide
        time += filter_pack.seconds(device)
    extents = [axis.extent for axis in form.axes]
    copy_a = copy_bytes(dtype, form.data.channel, alignments(form.data, form.depth, extents))
    is_across = form.filter.channel != 1 and form.filter.column == 1 and dtype != "i8"
    taps = [
        s for s, n in zip(form.filter.space, (axis.most_taps for axis in form.axes), strict=True) if n > 1
    ]
    if is_across:
        multiples = [filter_columns, form.filter.channel, form.filter.group, *taps]
    else:
        multiples = [form.depth, filter_depth, form.filter.column, form.filter.group, *taps]
    copy_b = copy_bytes(dtype, form.filter.column if is_across else form.filter.channel, multiples)
    if (packs_data and not copy_a) or (packs_filter and not copy_b):
        return None
    element = result.dtype
    run = 8 if DTYPES[element] in (2, 4) else 0
    multiples = [form.width, form.result.image, form.result.group, *form.result.space]
    is_vector = run > 0 and form.result.channel == 1 and all(n % run == 0 for n in multiples)
    rows_first = form.result.channel != 1
    most_parts = _MOST_PARTS if uses_workspace and len(form.classes) == 1 else 1
    moved = batch.nbytes if batch else data.nbytes + problem.w.nbytes + result.nbytes
    cut = best_cut(form.works, tiles, dtype, device, moved, most_parts, (form.most_taps + 1) * 32)
    slow = {16: 1.0, 8: 1.15, 4: 1.4, 0: _BLOCKWISE}
    crossed = crossing(dtype, form.depth, rows_of(form.data, form.images, extents))
    crossed *= narrowness(dtype, problem.groups, form.depth)
    if not is_across:
        crossed = max(crossed, crossing(dtype, form.depth, [form.filter.column]))
    time += seconds(form.works, cut, dtype, device, moved) * max(slow[copy_a], slow[copy_b]) * crossed
    tensors = batch.tensors if batch else (problem.x, problem.w, problem.y)
    packed = [pack.bytes // DTYPES[dtype] for pack in (data_pack, filter_pack) if pack]
    rows = max(work.rows for work in form.works) + 4096
    return Plan(
        form, dtype, data_pack, filter_pack, cut, copy_a, copy_b, is_across, is_vector, rows_first, filter_depth,
        filter_columns, index_type(tensors, rows, *packed), time,
    )  # fmt: skip


def source_of(
    plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None, indices: Sequence[str] | None = None
) -> Source:
    """The text of the kernel, with all that is known of the problem.

    `indices`: C expressions of the index of an element of the output by `image`, `channel` (over all groups) and its
    place `a`, `b`, `c`; those of a convolution's result if there are none.
    """
    form, cut = plan.form, plan.cut
    result = output.dtype
    code = epilogue_source(epilogue, output, "f64" if plan.dtype == "i8" else "f32", first=3)
    names = "".join(f", e{number}" for number in range(3, 3 + len(code.operands)))
    if indices is None:
        indices = ["image", "channel", *("a", "b", "c")[5 - len(output.shape) :]]
    text = read_text("cuda/gemm", "mainloop.cuh") + code.functions
    text += read_text("cuda/convolution/implicit_gemm", "fprop_dgrad.cu")
    text += packing_text(plan.data_pack, plan.filter_pack)
    step = None
    if len(form.classes) == 1:
        results = [axis.classes[0].results for axis in form.axes]
        step = linear_step((form.images, *results), (form.result.image, *form.result.space))
    extents = {tuple(axis.results for axis in one) for one in form.classes}
    same = [("SAME_RESULTS", listed(extents.pop()))] if len(extents) == 1 else []
    defines = (
        *type_defines(plan.dtype, result),
        *same,
        *cut.defines(form.works, plan.parts_at),
        ("INDEX", plan.index),
        ("DEPTH", form.depth),
        ("WIDTH", form.width),
        ("IMAGES", form.images),
        ("CLASSES", len(form.classes)),
        ("CLASS_TABLE", form.class_table),
        ("SHIFTS", listed([axis.shift for axis in form.axes])),
        ("FILTER_STEPS", listed([axis.filter_step for axis in form.axes])),
        ("MOVES", listed([axis.move for axis in form.axes])),
        ("SPREAD", listed([axis.spread for axis in form.axes])),
        ("EXTENTS", listed([axis.extent for axis in form.axes])),
        ("MASK_AXES", listed([axis.is_masked for axis in form.axes])),
        ("IS_MASKED", int(form.has_mask)),
        ("DATA_IMAGE", form.data.image),
        ("DATA_GROUP", form.data.group),
        ("DATA_CHANNEL", form.data.channel),
        ("DATA_STRIDES", listed(form.data.space)),
        ("FILTER_GROUP", form.filter.group),
        ("FILTER_COLUMN", form.filter.column),
        ("FILTER_CHANNEL", form.filter.channel),
        ("FILTER_STRIDES", listed(form.filter.space)),
        ("FILTER_DEPTH", plan.filter_depth),
        ("FILTER_COLUMNS", plan.filter_columns),
        ("FILTER_ACROSS", int(plan.is_across)),
        ("IS_RESULT_LINEAR", int(step is not None)),
        ("RESULT_STEP", step or 0),
        ("RESULT_IMAGE", form.result.image),
        ("RESULT_GROUP", form.result.group),
        ("RESULT_COLUMN", form.result.channel),
        ("RESULT_STRIDES", listed(form.result.space)),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("IS_RESULT_VECTOR", int(plan.is_vector)),
        ("ROWS_FIRST", int(plan.rows_first)),
        ("IS_DATA_PACKED", int(plan.data_pack is not None)),
        ("DATA_AT", f"{plan.data_pack.at if plan.data_pack else 0}ll"),
        ("IS_FILTER_PACKED", int(plan.filter_pack is not None)),
        ("FILTER_AT", f"{plan.filter_pack.at if plan.filter_pack else 0}ll"),
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE(sum, image, channel, a, b, c)", code.apply("(sum)", indices)),
        ("EPILOGUE_PARAMETERS", code.parameters),
        ("EPILOGUE_ARGUMENTS", names),
    )
    spills = True  # a few bytes where a tile takes all registers; tests hold the common problems to none
    return Source("implicit_gemm", text, defines, dialect="cuda", spills=spills)


def type_defines(dtype: str, result: str) -> tuple[tuple[str, object], ...]:
    """The types of a kernel over elements of `dtype`."""
    is_integer = dtype == "i8"
    return (
        ("DTYPE", dtype),
        ("DTYPE_IS_INTEGER", int(is_integer)),
        ("SUM", "i32" if is_integer else "f32"),
        ("REAL", "f64" if is_integer else "f32"),
        ("RESULT", result),
        ("PACK", "pack_f16" if result == "f16" else "pack_bf16"),
        ("MULTIPLY", FUNCTIONS[dtype]),
    )


def launches_of(plan: Plan) -> list[Launch]:
    """Packing, the product, and the sum of its parts."""
    cut, form = plan.cut, plan.form
    tile, classes = cut.tile, len(form.classes)
    launches: list[Launch] = []
    if plan.data_pack:
        launches.append(Launch("pack_data", plan.data_pack.blocks, 256))
    if plan.filter_pack:
        launches.append(Launch("pack_filter", plan.filter_pack.blocks, 256))
    tap_bytes = 16 if plan.index == "i32" and form.has_mask else 32
    stages = tile.stages * (tile.m + tile.n) * tile.k_bytes + (form.most_taps + 1) * tap_bytes
    staged = tile.m * (tile.n + 8) * 4
    grid = cut.blocks(form.works), form.groups, classes
    launches.append(Launch("implicit_gemm", grid, tile.threads, max(stages, staged)))
    if cut.parts > 1:
        pieces = tile.m * (tile.n // 8) * cut.sharers(form.works) // 256
        launches.append(Launch("add_parts", (cut.divided(form.works), form.groups, classes * pieces), 256))
    return launches
