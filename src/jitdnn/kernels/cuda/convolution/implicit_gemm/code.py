"""Source text, launches and kernels of the implicit products: fprop_dgrad.cu and wgrad.cu."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import (
    PIXEL_BYTES,
    Plan,
    WgradPlan,
    is_masked,
    leaves_input,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.tables import (
    axis_phase_defines,
    axis_phases,
    data_step,
    fprop_data_step,
    known_shape,
    outer_step,
    result_form,
    tables_of,
    wgrad_tables_of,
)
from jitdnn.kernels.cuda.gemm.code import (
    MMA_FUNCTIONS,
    ByAddress,
    blocking_defines,
    gemm_text,
    initializer,
)
from jitdnn.kernels.cuda.gemm.packing import with_packs
from jitdnn.kernels.cuda.gemm.plan import three
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
        shape = None if knows_shape(plan, epilogue) else tables_of(plan, False)
        product = gpu.kernel(
            source_of(plan, output, epilogue, indices), launches_of(plan), pointers, tables=shape
        )
        return with_packs(product, (plan.data_pack, plan.filter_pack), gpu, plan.index)

    unaligned = plan.unaligned
    if plan == unaligned:
        return kernel(plan)
    return ByAddress(kernel(plan), lambda: kernel(unaligned), plan.alignments)


def knows_shape(plan: Plan | WgradPlan, epilogue: Epilogue | None) -> bool:
    """Whether a shape is compiled in: where it would cost more than 3 % as an argument (docs/gotchas_gpu.md).

    A filter read across its rows is that of a data gradient. An epilogue has its operands' strides in its text anyway.
    """
    if isinstance(plan, WgradPlan):
        if DTYPES[plan.problem.x.dtype] == 4:
            return max(plan.problem.stride) > 1
        return plan.x_pack is None or plan.dy_pack is None  # packing takes its share of the time
    if epilogue is not None:
        return True
    return plan.is_mn_major or len(plan.geometry.phases) > 1


def source_of(
    plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None, indices: Sequence[str] | None = None
) -> Source:
    """The text of the kernels, which is the same for all shapes whose plans differ in nothing that it tests.

    `indices`: for the epilogue, C expressions of an output element's index along every axis, in terms of `image`,
    `channel` (over all groups) and the coordinates `a`, `b`, `c`; without them, those of a convolution's result.
    """
    geometry, block = plan.geometry, plan.blocking.tile.k_bytes // DTYPES[plan.dtype]
    code = epilogue_source(epilogue, output, "f64" if plan.dtype == "i8" else "f32", first=3)
    names = "".join(f", e{number}" for number in range(3, 3 + len(code.operands)))
    if indices is None:
        indices = ["image", "channel", *("a", "b", "c")[5 - len(output.shape) :]]
    text = gemm_text(plan.blocking.tile) + code.functions
    text += read_text("cuda/convolution/implicit_gemm", "phases.cuh", "taps.cuh", "fprop_dgrad.cu")
    is_known = knows_shape(plan, epilogue)
    (_, room), result = axis_phases(geometry, is_known), geometry.result
    axes = [] if room else axis_phase_defines(geometry, is_known)
    lines = (result.image, result.group, geometry.outer[2], *result.space)
    has_sectors = (
        plan.width == 8 and plan.blocking.has_whole_tiles
    )  # the reduction stores those that are split
    defines = (
        *type_defines(plan.dtype, output.dtype),
        *blocking_defines(plan.blocking),
        ("INDEX", plan.index),
        ("IS_STRIDED", int(len(geometry.phases) > 1)),
        ("AXIS_PHASES", room),
        *axes,
        ("IS_MASKED", int(geometry.has_mask)),
        ("IS_OF_ONE_TAP", int(geometry.in_channels % block == 0)),
        ("HAS_FULL_COLUMNS", int(plan.filter_out_channels % plan.blocking.tile.n == 0)),
        ("HAS_ALL_CHANNELS", int(plan.filter_in_channels >= geometry.in_channels)),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("A_MN_MAJOR", 0),
        ("B_MN_MAJOR", int(plan.is_mn_major)),
        ("IS_DATA_LINEAR", int(fprop_data_step(geometry) is not None)),
        ("RESULT_WIDTH", plan.width),
        ("RESULT_FORM", 0 if epilogue else result_form(geometry)[0]),
        ("HAS_WHOLE_RUNS", int(geometry.out_channels % 8 == 0)),
        ("HAS_SECTORS", int(has_sectors and all(number % 32 == 0 for number in lines))),
        ("ROWS_FIRST", int(plan.rows_first)),
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE(sum, image, channel, a, b, c)", code.apply("(sum)", indices)),
        ("EPILOGUE_PARAMETERS", code.parameters),
        ("EPILOGUE_ARGUMENTS", names),
        *([known_shape(tables_of(plan, is_known))] if is_known else []),
    )
    spills = True  # a few bytes where a tile takes all registers; tests hold the common problems to none
    keeps_order = plan.blocking.tile.is_fma and plan.is_mn_major
    return Source("implicit_gemm", text, defines, dialect="cuda", spills=spills, keeps_order=keeps_order)


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
    """The product, and the reduction of its partial sums."""
    blocking, geometry = plan.blocking, plan.geometry
    tile, phases = blocking.tile, len(geometry.phases)
    launches: list[Launch] = []
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
        shape = None if knows_shape(plan, None) else wgrad_tables_of(plan)
        product = gpu.kernel(wgrad_source_of(plan), wgrad_launches_of(plan), 3, tables=shape)
        return with_packs(product, (plan.x_pack, plan.dy_pack), gpu, plan.index)

    unaligned = plan.unaligned
    if plan == unaligned:
        return kernel(plan)
    return ByAddress(kernel(plan), lambda: kernel(unaligned), plan.alignments)


def wgrad_source_of(plan: WgradPlan) -> Source:
    """The text of the kernels, with the filter compiled in, and nothing else of the shape but what is tested here."""
    problem = plan.problem
    block = plan.blocking.tile.k_bytes // DTYPES[problem.x.dtype]
    leaves = three(leaves_input(problem), 0)
    a, b, c = three(problem.filter_spatial, 1)
    text = gemm_text(plan.blocking.tile) + read_text("cuda/convolution/implicit_gemm", "wgrad.cu")
    moving = [n > 1 or outside for n, outside in zip(three(problem.output_spatial, 1), leaves, strict=True)]
    is_vector = plan.is_vector and problem.mode != "convolution"
    defines = (
        *type_defines(problem.x.dtype, problem.w.dtype),
        *blocking_defines(plan.blocking),
        ("INDEX", plan.index),
        ("TAPS_0", a),
        ("TAPS_1", b),
        ("TAPS_2", c),
        ("AXES", 3 - moving.index(True) if any(moving) else 0),
        ("INPUT_STRIDE", initializer(three(problem.stride, 1))),
        ("DILATION", initializer(three(problem.dilation, 1))),
        ("OFFSETS", initializer(three([-before for before, _ in problem.padding], 0))),
        ("MASK_AXES", initializer([int(outside) for outside in leaves])),
        ("IS_MASKED", int(is_masked(problem))),
        ("IS_OUTER_LINEAR", int(outer_step(plan) is not None)),
        ("IS_DATA_LINEAR", int(data_step(plan) is not None)),
        ("HAS_WHOLE_BLOCKS", int(plan.gemm.k % block == 0)),
        ("COPY_A", plan.copy_a),
        ("COPY_B", plan.copy_b),
        ("A_MN_MAJOR", 1),
        ("B_MN_MAJOR", 1),
        ("IS_RESULT_VECTOR", int(is_vector)),
        ("HAS_RUNS_OF_ONE_TAP", int(plan.in_channels % 8 == 0)),
        ("HAS_SECTORS", int(is_vector and plan.blocking.has_whole_tiles and problem.w.strides[0] % 32 == 0)),
        ("EPILOGUE_PARAMETERS", ""),
        *([known_shape(wgrad_tables_of(plan))] if knows_shape(plan, None) else []),
    )
    # a few bytes spill where a tile takes all registers; tests hold the common problems to none
    keeps_order = plan.blocking.tile.is_fma
    return Source("implicit_gemm_wgrad", text, defines, dialect="cuda", spills=True, keeps_order=keeps_order)


def wgrad_launches_of(plan: WgradPlan) -> list[Launch]:
    """The product, and the reduction of its partial sums."""
    blocking, groups, tile = plan.blocking, plan.groups, plan.blocking.tile
    launches: list[Launch] = []
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
