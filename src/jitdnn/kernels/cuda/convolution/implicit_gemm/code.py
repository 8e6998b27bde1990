"""Source text, launches and kernels of the implicit products: fprop_dgrad.cu and wgrad.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Form
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import (
    PIXEL_BYTES,
    Plan,
    WgradPlan,
    is_masked,
    leaves_input,
)
from jitdnn.kernels.cuda.gemm.code import (
    FUNCTIONS,
    GEMM_TEXTS,
    ByAlignment,
    blocking_defines,
    listed,
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
    """The kernels of a plan. `indices`: those of an element of the output, see `source_of`."""
    gpu: GpuDevice = device  # type: ignore[assignment]
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)

    def kernel(plan: Plan) -> Kernel:
        return gpu.kernel(source_of(plan, output, epilogue, indices), launches_of(plan), pointers)

    fast, plain = plan, plan.elementwise
    return kernel(fast) if fast == plain else ByAlignment(kernel(fast), kernel(plain), plan.alignments)


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
    text = read_text("cuda/gemm", *GEMM_TEXTS) + code.functions
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
        *blocking_defines(cut, form.works, plan.parts_at),
        ("INDEX", plan.index),
        ("DEPTH", form.depth),
        ("WIDTH", form.width),
        ("IMAGES", form.images),
        ("CLASSES", len(form.classes)),
        ("CLASS_TABLE", _class_table(form)),
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


def _class_table(form: Form) -> str:
    """The initializers of `Class` in the kernel's text."""
    fields = ("results", "residue", "taps", "offset", "start")
    rows = [
        "{"
        + ",".join("{" + ",".join(str(getattr(axis, name)) for axis in one) + "}" for name in fields)
        + "}"
        for one in form.classes
    ]
    return ",".join(rows)


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


def wgrad_kernel_of(plan: WgradPlan, device: Device) -> Kernel:
    """The kernels of a plan."""
    gpu: GpuDevice = device  # type: ignore[assignment]

    def kernel(plan: WgradPlan) -> Kernel:
        return gpu.kernel(wgrad_source_of(plan), wgrad_launches_of(plan), 3)

    fast, plain = plan, plan.elementwise
    return kernel(fast) if fast == plain else ByAlignment(kernel(fast), kernel(plain), plan.alignments)


def wgrad_source_of(plan: WgradPlan) -> Source:
    """The text of the kernel, with all that is known of the problem."""
    problem, cut = plan.problem, plan.cut
    dw, groups = problem.w, problem.groups
    sign, taps = (-1 if problem.mode == "convolution" else 1), problem.filter_spatial
    # tap t of the flipped filter meets what tap taps - 1 - t of the other does: dw is walked backwards
    space = tuple(sign * s for s in dw.strides[2:])
    base = sum((n - 1) * s for n, s in zip(taps, dw.strides[2:], strict=True)) if sign < 0 else 0
    text = (
        read_text("cuda/gemm", *GEMM_TEXTS) + "\n" + read_text("cuda/convolution/implicit_gemm", "wgrad.cu")
    )
    text += packing_text(plan.data_pack, plan.outer_pack)
    a, b, c = three(taps, 1)
    leaves = leaves_input(problem)
    step = linear_step((problem.n, *three(problem.output_spatial, 1)), (plan.outer.image, *plan.outer.space))
    data_step = None
    if max(taps) == 1 and max(problem.stride) == 1 and not any(leaves):
        data_step = linear_step((problem.n, *three(problem.spatial, 1)), (plan.data.image, *plan.data.space))
    defines = (
        *type_defines(problem.x.dtype, dw.dtype),
        *blocking_defines(cut, [plan.work], plan.parts_at),
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
        ("IS_MASKED", int(is_masked(problem))),
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


def wgrad_launches_of(plan: WgradPlan) -> list[Launch]:
    """Packing, the product, and the sum of its parts."""
    cut, groups, tile = plan.cut, plan.groups, plan.cut.tile
    launches: list[Launch] = []
    if plan.data_pack:
        launches.append(Launch("pack_data", plan.data_pack.blocks, 256))
    if plan.outer_pack:
        launches.append(Launch("pack_filter", plan.outer_pack.blocks, 256))
    stages = tile.stages * (tile.m + tile.n) * tile.k_bytes
    pixel = 16 if plan.index == "i32" and is_masked(plan.problem) else PIXEL_BYTES
    stages += 2 * (tile.k_bytes // DTYPES[plan.problem.x.dtype]) * pixel
    staged = tile.m * (tile.n + 8) * 4
    grid = cut.blocks([plan.work]), groups
    launches.append(Launch("implicit_gemm_filter", grid, tile.threads, max(stages, staged)))
    if cut.parts > 1:
        pieces = tile.m * (tile.n // 8) * cut.sharers([plan.work]) // 256
        launches.append(Launch("add_parts", (cut.divided([plan.work]), groups, pieces), 256))
    return launches
