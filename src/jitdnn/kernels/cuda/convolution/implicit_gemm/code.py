"""Source text, launches and kernels of the implicit products: fprop_dgrad.cu and wgrad.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Geometry
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import (
    PIXEL_BYTES,
    Plan,
    WgradPlan,
    is_masked,
    leaves_input,
)
from jitdnn.kernels.cuda.gemm.code import (
    GEMM_TEXTS,
    MMA_FUNCTIONS,
    ByAddress,
    blocking_defines,
    initializer,
    packing_text,
)
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.tensor import DTYPES, TensorDescriptor


def kernel_of(
    plan: Plan,
    output: TensorDescriptor,
    device: Device,
    epilogue: Epilogue | None,
    indices: Sequence[str] | None = None,
) -> Kernel:
    """The kernel that runs a plan's launches. `indices`: see `source_of`."""
    gpu: GpuDevice = device  # type: ignore[assignment]
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)

    def kernel(plan: Plan) -> GpuKernel:
        return gpu.kernel(source_of(plan, output, epilogue, indices), launches_of(plan), pointers)

    unaligned = plan.unaligned
    if plan == unaligned:
        return kernel(plan)
    return ByAddress(kernel(plan), lambda: kernel(unaligned), plan.alignments)


def source_of(
    plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None, indices: Sequence[str] | None = None
) -> Source:
    """The text of the kernels, with the problem compiled in.

    `indices`: for the epilogue, C expressions of an output element's index along every axis, in terms of `image`,
    `channel` (over all groups) and the coordinates `a`, `b`, `c`; without them, those of a convolution's result.
    """
    geometry, blocking = plan.geometry, plan.blocking
    result = output.dtype
    code = epilogue_source(epilogue, output, "f64" if plan.dtype == "i8" else "f32", first=3)
    names = "".join(f", e{number}" for number in range(3, 3 + len(code.operands)))
    if indices is None:
        indices = ["image", "channel", *("a", "b", "c")[5 - len(output.shape) :]]
    text = read_text("cuda/gemm", *GEMM_TEXTS) + code.functions
    text += read_text("cuda/convolution/implicit_gemm", "fprop_dgrad.cu")
    text += packing_text(plan.data_pack, plan.filter_pack, "pack_filter")
    step = None
    if len(geometry.phases) == 1:
        results = [axis.phases[0].results for axis in geometry.axes]
        step = linear_step((geometry.images, *results), (geometry.result.image, *geometry.result.space))
    extents = {tuple(axis.results for axis in one) for one in geometry.phases}
    same = [("SAME_RESULTS", initializer(extents.pop()))] if len(extents) == 1 else []
    defines = (
        *type_defines(plan.dtype, result),
        *same,
        *blocking_defines(blocking, geometry.gemms, plan.partials_offset),
        ("INDEX", plan.index),
        ("IN_CHANNELS", geometry.in_channels),
        ("OUT_CHANNELS", geometry.out_channels),
        ("IMAGES", geometry.images),
        ("PHASES", len(geometry.phases)),
        ("PHASE_TABLE", _phase_table(geometry)),
        ("DILATION", initializer([axis.dilation for axis in geometry.axes])),
        ("FILTER_STEPS", initializer([axis.filter_step for axis in geometry.axes])),
        ("INPUT_STRIDE", initializer([axis.input_stride for axis in geometry.axes])),
        ("OUTPUT_STRIDE", initializer([axis.output_stride for axis in geometry.axes])),
        ("EXTENTS", initializer([axis.extent for axis in geometry.axes])),
        ("MASK_AXES", initializer([axis.is_masked for axis in geometry.axes])),
        ("IS_MASKED", int(geometry.has_mask)),
        ("GROUPS_INNER", geometry.inner or geometry.groups),
        *zip(("DATA_OUTER", "FILTER_OUTER", "RESULT_OUTER"), geometry.outer, strict=True),
        ("DATA_IMAGE", geometry.data.image),
        ("DATA_GROUP", geometry.data.group),
        ("DATA_CHANNEL", geometry.data.channel),
        ("DATA_STRIDES", initializer(geometry.data.space)),
        ("FILTER_GROUP", geometry.filter.group),
        ("FILTER_COLUMN", geometry.filter.column),
        ("FILTER_CHANNEL", geometry.filter.channel),
        ("FILTER_STRIDES", initializer(geometry.filter.space)),
        ("FILTER_IN_CHANNELS", plan.filter_in_channels),
        ("FILTER_OUT_CHANNELS", plan.filter_out_channels),
        ("FILTER_MN_MAJOR", int(plan.is_mn_major)),
        ("IS_RESULT_LINEAR", int(step is not None)),
        ("RESULT_STEP", step or 0),
        ("RESULT_IMAGE", geometry.result.image),
        ("RESULT_GROUP", geometry.result.group),
        ("RESULT_COLUMN", geometry.result.channel),
        ("RESULT_STRIDES", initializer(geometry.result.space)),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("RESULT_WIDTH", plan.width),
        ("ROWS_FIRST", int(plan.rows_first)),
        ("IS_DATA_PACKED", int(plan.data_pack is not None)),
        ("DATA_AT", f"{plan.data_pack.offset if plan.data_pack else 0}ll"),
        ("IS_FILTER_PACKED", int(plan.filter_pack is not None)),
        ("FILTER_AT", f"{plan.filter_pack.offset if plan.filter_pack else 0}ll"),
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE(sum, image, channel, a, b, c)", code.apply("(sum)", indices)),
        ("EPILOGUE_PARAMETERS", code.parameters),
        ("EPILOGUE_ARGUMENTS", names),
    )
    spills = True  # a few bytes where a tile takes all registers; tests hold the common problems to none
    return Source("implicit_gemm", text, defines, dialect="cuda", spills=spills)


def _phase_table(geometry: Geometry) -> str:
    """The initializers of `Phase` in the kernel's text."""
    fields = ("results", "first_result", "taps", "data_offset", "first_tap")
    rows = [
        "{"
        + ",".join("{" + ",".join(str(getattr(axis, name)) for axis in one) + "}" for name in fields)
        + "}"
        for one in geometry.phases
    ]
    return ",".join(rows)


def type_defines(dtype: str, result: str) -> tuple[tuple[str, object], ...]:
    """Macros of types: of elements, sums and results."""
    is_integer = dtype == "i8"
    return (
        ("DTYPE", dtype),
        ("DTYPE_IS_INTEGER", int(is_integer)),
        ("SUM", "i32" if is_integer else "f32"),
        ("REAL", "f64" if is_integer else "f32"),
        ("RESULT", result),
        ("PACK", "pack_f16" if result == "f16" else "pack_bf16"),
        ("MULTIPLY", MMA_FUNCTIONS[dtype]),
    )


def launches_of(plan: Plan) -> list[Launch]:
    """Packing, the product, and the reduction of its partial sums."""
    blocking, geometry = plan.blocking, plan.geometry
    tile, phases = blocking.tile, len(geometry.phases)
    launches: list[Launch] = []
    if plan.data_pack:
        launches.append(Launch("pack_data", plan.data_pack.blocks, 256, is_early=True))
    if plan.filter_pack:
        launches.append(Launch("pack_filter", plan.filter_pack.blocks, 256, is_early=True))
    tap_bytes = 16 if plan.index == "i32" and geometry.has_mask else 32
    stages = tile.stages * (tile.m + tile.n) * tile.k_bytes + (geometry.max_taps + 1) * tap_bytes
    staged = tile.m * (tile.n + 8) * 4
    grid = blocking.blocks(geometry.gemms), geometry.groups, phases
    launches.append(Launch("implicit_gemm", grid, tile.threads, max(stages, staged), is_early=True))
    if blocking.splits > 1:
        pieces = tile.m * (tile.n // 8) * blocking.reduction_threads(geometry.gemms) // 256
        launches.append(
            Launch(
                "reduce_partials",
                (blocking.split_tiles(geometry.gemms), geometry.groups, phases * pieces),
                256,
                is_early=True,
            )
        )
    return launches


def wgrad_kernel_of(plan: WgradPlan, device: Device) -> Kernel:
    """The kernels of a plan."""
    gpu: GpuDevice = device  # type: ignore[assignment]

    def kernel(plan: WgradPlan) -> GpuKernel:
        return gpu.kernel(wgrad_source_of(plan), wgrad_launches_of(plan), 3)

    unaligned = plan.unaligned
    if plan == unaligned:
        return kernel(plan)
    return ByAddress(kernel(plan), lambda: kernel(unaligned), plan.alignments)


def wgrad_source_of(plan: WgradPlan) -> Source:
    """The text of the kernels, with the problem compiled in."""
    problem, blocking = plan.problem, plan.blocking
    dw, groups = problem.w, problem.groups
    sign, taps = (-1 if problem.mode == "convolution" else 1), problem.filter_spatial
    # tap t of a flipped filter meets what tap taps - 1 - t of an unflipped one does: strides of dw are negated
    space = tuple(sign * s for s in dw.strides[2:])
    base = sum((n - 1) * s for n, s in zip(taps, dw.strides[2:], strict=True)) if sign < 0 else 0
    text = (
        read_text("cuda/gemm", *GEMM_TEXTS) + "\n" + read_text("cuda/convolution/implicit_gemm", "wgrad.cu")
    )
    text += packing_text(plan.x_pack, plan.dy_pack, "pack_outer")
    a, b, c = three(taps, 1)
    leaves = leaves_input(problem)
    step = linear_step((problem.n, *three(problem.output_spatial, 1)), (plan.dy.image, *plan.dy.space))
    data_step = None
    if max(taps) == 1 and max(problem.stride) == 1 and not any(leaves):
        data_step = linear_step((problem.n, *three(problem.spatial, 1)), (plan.x.image, *plan.x.space))
    defines = (
        *type_defines(problem.x.dtype, dw.dtype),
        *blocking_defines(blocking, [plan.gemm], plan.partials_offset),
        ("INDEX", plan.index),
        ("PACKED_IN_CHANNELS", plan.in_channels),
        ("IN_CHANNELS", problem.c // groups),
        ("OUT_CHANNELS", problem.k // groups),
        ("PACKED_OUT_CHANNELS", plan.out_channels),
        ("IMAGES", problem.n),
        ("PIXELS_PER_IMAGE", math.prod(problem.output_spatial)),
        ("TAPS_0", a),
        ("TAPS_1", b),
        ("TAPS_2", c),
        ("RESULTS", initializer(three(problem.output_spatial, 1))),
        ("EXTENTS", initializer(three(problem.spatial, 1))),
        ("INPUT_STRIDE", initializer(three(problem.stride, 1))),
        ("DILATION", initializer(three(problem.dilation, 1))),
        ("OFFSETS", initializer(three([-before for before, _ in problem.padding], 0))),
        ("MASK_AXES", initializer(three([int(outside) for outside in leaves], 0))),
        ("IS_MASKED", int(is_masked(problem))),
        ("DATA_IMAGE", plan.x.image),
        ("DATA_GROUP", plan.x.group),
        ("DATA_CHANNEL", plan.x.channel),
        ("DATA_STRIDES", initializer(plan.x.space)),
        ("OUTER_IMAGE", plan.dy.image),
        ("OUTER_GROUP", plan.dy.group),
        ("OUTER_CHANNEL", plan.dy.channel),
        ("OUTER_STRIDES", initializer(plan.dy.space)),
        ("IS_OUTER_LINEAR", int(step is not None)),
        ("OUTER_STEP", step or 0),
        ("IS_DATA_LINEAR", int(data_step is not None)),
        ("DATA_STEP", data_step or 0),
        ("RESULT_BASE", base),
        ("RESULT_GROUP", plan.batch.result if plan.batch else problem.k // groups * dw.strides[0]),
        ("RESULT_ROW", dw.strides[0]),
        ("RESULT_CHANNEL", dw.strides[1]),
        ("RESULT_STRIDES", initializer(three(space, 0))),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("IS_RESULT_VECTOR", int(plan.is_vector and sign > 0)),
        ("IS_DATA_PACKED", int(plan.x_pack is not None)),
        ("DATA_AT", f"{plan.x_pack.offset if plan.x_pack else 0}ll"),
        ("IS_OUTER_PACKED", int(plan.dy_pack is not None)),
        ("OUTER_AT", f"{plan.dy_pack.offset if plan.dy_pack else 0}ll"),
        ("EPILOGUE_PARAMETERS", ""),
    )
    # a few bytes spill where a tile takes all registers; tests hold the common problems to none
    return Source("implicit_gemm_wgrad", text, defines, dialect="cuda", spills=True)


def wgrad_launches_of(plan: WgradPlan) -> list[Launch]:
    """Packing, the product, and the reduction of its partial sums."""
    blocking, groups, tile = plan.blocking, plan.groups, plan.blocking.tile
    launches: list[Launch] = []
    if plan.x_pack:
        launches.append(Launch("pack_data", plan.x_pack.blocks, 256))
    if plan.dy_pack:
        launches.append(Launch("pack_outer", plan.dy_pack.blocks, 256))
    stages = tile.stages * (tile.m + tile.n) * tile.k_bytes
    pixel = 16 if plan.index == "i32" and is_masked(plan.problem) else PIXEL_BYTES
    stages += 2 * (tile.k_bytes // DTYPES[plan.problem.x.dtype]) * pixel
    staged = tile.m * (tile.n + 8) * 4
    grid = blocking.blocks([plan.gemm]), groups
    launches.append(Launch("implicit_gemm_wgrad", grid, tile.threads, max(stages, staged)))
    if blocking.splits > 1:
        pieces = tile.m * (tile.n // 8) * blocking.reduction_threads([plan.gemm]) // 256
        launches.append(Launch("reduce_partials", (blocking.split_tiles([plan.gemm]), groups, pieces), 256))
    return launches
