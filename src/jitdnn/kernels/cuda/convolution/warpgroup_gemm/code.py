"""Source text, launches and kernels of implicit products by warpgroups.

The blocking, the types and the epilogue are compiled in; extents, strides and the layout of packed operands are in the
kernel's tables, so one compiled kernel serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import FusionCode, fusion_code
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import MAXIMA
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan, phases_of_code
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wide import WideEpilogue, wide_epilogue
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.cuda.warpgroup.cost import begins_early
from jitdnn.kernels.gpu.prelude.epilogue import EpilogueCode, epilogue_source
from jitdnn.tensor import DTYPES, FLOAT8_DTYPES, TensorDescriptor

WGMMA_FUNCTIONS = {"bf16": "wgmma_bf16", "f16": "wgmma_f16", "f32": "wgmma_tf32", "i8": "wgmma_s8"}
"""The instruction that multiplies elements of each type; 8-bit reals of two types have one each."""
_POINTERS = 3
_ALONE = 114 << 10
"""Bytes of shared memory of which no two thread blocks have room on a multiprocessor."""
_SUMMED_COLUMNS = 8
"""Of sums by channel, that a thread block of the last reduction adds up."""


def kernel_of(
    plan: Plan, output: TensorDescriptor, device: Device, epilogue: Epilogue | None,
    other: Callable[[], Kernel], indices: Sequence[str] | None = None,
) -> Kernel:  # fmt: skip
    """The kernel of a plan, with that of `other` for operands at addresses that the copy engine does not take.

    `indices`: for the epilogue, C expressions of a result's index along every axis, in terms of `pixel.image`,
    `channel` (over all groups) and the coordinates `pixel.a`, `pixel.b`, `pixel.c`; those of a convolution's result
    without them.
    """

    def kernel(plan: Plan) -> Kernel:
        return plain_kernel(plan, output, device, epilogue, indices)

    if max(plan.alignments) == 1:
        return kernel(plan)
    if all(plan.packs):  # whatever the operands' addresses are
        return ByAddress(kernel(plan), lambda: kernel(plan.with_any_result), plan.alignments)
    return ByAddress(kernel(plan), other, plan.alignments)


def plain_kernel(
    plan: Plan, output: TensorDescriptor, device: Device, epilogue: Epilogue | None,
    indices: Sequence[str] | None = None,
) -> Kernel:  # fmt: skip
    """The kernel of a plan, for pointers that are multiples of its alignments; those of the epilogue's operands may be
    any."""
    wide = _wide_epilogue(plan, output, epilogue, indices)
    if wide is None or max(wide.alignments, default=1) == 1:
        return _kernel(plan, output, device, epilogue, indices)
    narrow = replace(plan, is_wide=False)
    return ByAddress(
        _kernel(plan, output, device, epilogue, indices),
        lambda: _kernel(narrow, output, device, epilogue, indices),
        (1, 1, 1, *wide.alignments),
    )


def _kernel(
    plan: Plan,
    output: TensorDescriptor,
    device: Device,
    epilogue: Epilogue | None,
    indices: Sequence[str] | None,
) -> GpuKernel:
    gpu: GpuDevice = device  # type: ignore[assignment]
    pointers = _POINTERS + (len(epilogue.operands) if epilogue else 0) + plan.fusion.pointers
    source = source_of(plan, output, epilogue, indices)
    wide = _wide_epilogue(plan, output, epilogue, indices)
    tables = plan.tables
    if wide and wide.brought:
        tables = replace(tables, maps=(*tables.maps, wide.brought))
    return gpu.kernel(source, launches_of(plan, gpu.multiprocessors), pointers, tables=tables)


def _wide_epilogue(
    plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None, indices: Sequence[str] | None
) -> WideEpilogue | None:
    return wide_epilogue(plan, epilogue_of(plan, output, epilogue), output, indices or _indices(output))


def epilogue_of(plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None) -> EpilogueCode:
    """The text of the epilogue."""
    real = "f64" if plan.is_integer else "f32"
    return epilogue_source(epilogue, output, real, _POINTERS, is_rough=plan.result in ("f16", "bf16"))


def _indices(output: TensorDescriptor) -> list[str]:
    """Of a convolution's result."""
    return ["pixel.image", "channel_", *("pixel.a", "pixel.b", "pixel.c")[5 - len(output.shape) :]]


def source_of(
    plan: Plan, output: TensorDescriptor, epilogue: Epilogue | None, indices: Sequence[str] | None = None
) -> Source:
    """The text of the kernels."""
    if indices is None:
        indices = _indices(output)
    code = epilogue_of(plan, output, epilogue)
    wide = wide_epilogue(plan, code, output, indices)
    fused = fusion_code(plan.fusion, plan.is_wgrad, plan.dtypes[0])
    name = "warpgroup_wgrad" if plan.is_wgrad else "warpgroup_gemm"
    defines = *_defines(plan), *_defines_of_epilogue(plan, epilogue, code, wide, fused, indices)
    return Source(name, _text(plan, code, wide, fused), defines, "hopper", _spills(plan, epilogue))


def _text(plan: Plan, code: EpilogueCode, wide: WideEpilogue | None, fused: FusionCode) -> str:
    blocking, parts = plan.blocking, plan.blocking.parts
    body = "wgrad.cuh" if plan.is_wgrad else "correlation.cuh"
    has_brought = wide is not None and wide.brought is not None
    return "\n".join(
        (
            "#define METHOD __device__ __forceinline__",
            code.functions + fused.functions,
            read_text("cuda/gemm", "divisor.cuh"),
            read_text("cuda/convolution/warpgroup_gemm", "tables.cuh"),
            read_text(
                "cuda/warpgroup", "sizes.cuh", *(("halves.cuh",) if plan.is_scaled or plan.is_divided else ())
            ),
            read_text("cuda/warpgroup", "stream_k.cuh") if blocking.sharers else "",
            read_text("cuda/convolution/warpgroup_gemm", body),
            read_text("cuda/warpgroup", "brought.cuh") if has_brought else "",
            read_text("cuda/warpgroup", "mainloop.cuh", "epilogue.cuh", *fused.files),
            read_text(
                "cuda/warpgroup", "load_two.cuh", "finish_brought.cuh" if has_brought else "finish_wide.cuh"
            )
            if wide
            else "",
            read_text("cuda/convolution/warpgroup_gemm", "exact.cuh")
            if parts > 1 and plan.is_scaled and not plan.is_blockwise
            else "",
            read_text("cuda/warpgroup", "exact_sums.cuh")
            if parts == 2 and (plan.divides_rows or plan.is_blockwise)
            else "",
            read_text("cuda/warpgroup", "divide_rows.cuh") if plan.divides_rows else "",
            read_text("cuda/warpgroup", "swapped.cuh") if blocking.tile.swaps else "",
            read_text("cuda/warpgroup", "blockwise.cuh") if plan.is_blockwise else "",
            read_text("cuda/warpgroup", "divide.cuh") if plan.is_divided else "",
            read_text("cuda/warpgroup", "cluster.cuh") if blocking.tile.cluster > 1 else "",
            read_text("cuda/warpgroup", "stream_k_sums.cuh") if blocking.sharers else "",
            read_text("cuda/warpgroup", "kernel.cuh", *_packing(plan)),
        )
    )


def _defines(plan: Plan) -> tuple[tuple[str, object], ...]:
    """What the plan alone decides."""
    blocking, tile, parts = plan.blocking, plan.blocking.tile, plan.blocking.parts
    return (
        ("DTYPE", "u8" if plan.dtypes[0] in FLOAT8_DTYPES else plan.dtypes[0]),
        ("IS_WGRAD", int(plan.is_wgrad)),
        ("IS_WIDENED", int(plan.is_widened)),
        *((("FIRST", plan.dtypes[0]), ("SECOND", plan.dtypes[1])) if plan.is_widened else ()),
        ("RESULT", plan.result),
        ("IS_SCALED", int(plan.is_scaled and not plan.is_blockwise)),
        ("IS_BLOCKWISE", int(plan.is_blockwise)),
        ("IS_DIVIDED", int(plan.is_divided)),
        ("DIVIDES_ROWS", int(plan.divides_rows)),
        ("DIVIDERS", tile.dividers),
        ("SWAPS_OPERANDS", int(tile.swaps)),
        ("LEAVES_AT_ONCE", int(plan.divides_rows or blocking.leaves_at_once)),
        *((("MULTIPLY_A", "wgmma_a_f16"), ("USED_STEPS", plan.used_steps)) if plan.divides_rows else ()),
        ("IS_ROUGH", int(plan.blocking.is_rough)),
        ("SEGMENT", plan.segment),
        ("LINE_TAPS", blocking.lines.taps),
        ("LINE_STEP", blocking.lines.step),
        ("LINE_CLASSES", blocking.lines.classes),
        ("LINE_LONG", blocking.lines.long),
        ("LINE_PIXELS", blocking.lines.pixels),
        ("LINE_FIRST", blocking.lines.first),
        ("PACKED", "u16" if plan.is_scaled or plan.is_widened else "DTYPE"),
        ("ELEMENT_BYTES", DTYPES[plan.multiplied[0]]),
        ("SUM", "i32" if plan.is_integer else "f32"),
        ("REAL", "f64" if plan.is_integer else "f32"),
        ("IS_PROMOTED", int(plan.is_promoted)),
        ("RESULT_BYTES", DTYPES[plan.result]),
        ("PACK", f"pack_{plan.result}" if plan.result in ("f16", *FLOAT8_DTYPES) else "pack_bf16"),
        ("MULTIPLY", _multiply(*plan.multiplied)),
        ("WARPGROUPS_M", tile.down),
        ("WARPGROUPS_N", tile.across),
        ("ROWS", tile.rows),
        ("ROW_BYTES", plan.row_bytes),
        ("SUBS", blocking.row // plan.row_bytes),
        ("CHUNK_BYTES", tile.chunk_bytes(DTYPES[plan.result])),
        ("RESULT_BUFFERS", tile.buffers(DTYPES[plan.result])),
        ("IS_RESULT_BOXES", int(plan.is_in_boxes)),
        ("WN", tile.wn),
        ("TAKES_RING", int(plan.takes_ring)),
        *(() if plan.takes_ring else (("STAGES", blocking.stages),)),
        ("PARTS", blocking.parts),
        ("IS_SPLIT", int(blocking.is_split)),
        ("IS_CLUSTERED", int(tile.cluster > 1)),
        ("IS_STREAMED", int(blocking.sharers > 0)),
        *((("REDUCERS", reducers(plan)),) if blocking.is_split else ()),
        ("A_MN_MAJOR", int(plan.is_wgrad or plan.is_a_mn_major)),
        ("B_MN_MAJOR", int(plan.is_b_mn_major)),
        ("PHASES", phases_of_code(plan.phases)),
        ("A_MAPS", phases_of_code(plan.phases) * parts),
        ("B_MAPS", blocking.parts),
        ("IS_RESULT_VECTOR", int(plan.is_vector)),
        ("ROWS_FIRST", int(plan.rows_first)),
        ("PAIRED", int(plan.is_paired)),
        ("PIXELS_ARE_COLUMNS", int(plan.pixels_are_columns)),
    )


def _defines_of_epilogue(
    plan: Plan,
    epilogue: Epilogue | None,
    code: EpilogueCode,
    wide: WideEpilogue | None,
    fused: FusionCode,
    indices: Sequence[str],
) -> tuple[tuple[str, object], ...]:
    arguments = "".join(f", e{number}" for number in range(_POINTERS, _POINTERS + len(code.operands)))
    return (
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE_PARAMETERS", code.parameters + fused.parameters),
        ("EPILOGUE_ARGUMENTS", arguments + fused.arguments),
        # with strides of operands, which a kernel that does not read by them is not to know
        (
            "FINISH(sum, pixel, channel_)",
            "(sum)" if wide and plan.blocking.parts == 1 else f"({code.apply('(sum)', indices)})",
        ),
        ("IS_WIDE", int(wide is not None)),
        *(wide.defines if wide else (("HAS_BROUGHT", 0),)),
        *fused.defines,
    )


def _spills(plan: Plan, epilogue: Epilogue | None) -> bool:
    """Whether some registers may be spilled."""
    blocking, tile = plan.blocking, plan.blocking.tile
    # an epilogue takes registers between two tiles, as what becomes of integers does, a prologue everywhere: where sums
    # leave few, some are spilled, and so they may be beside the exact products of what is not finite
    spills = epilogue is not None or plan.fusion.has_prologue or plan.is_integer or blocking.parts > 1
    # where the chunks of a wgrad's results go, of which 3 consumers with 160 registers keep 4 bytes in memory, and what
    # their producer with 32 knows of columns that end inside of a block
    spills = spills or (plan.is_wgrad and tile.warpgroups == 3 and (plan.is_in_boxes or tile.n % 64 > 0))
    # around the loop over K, where sums of other thread blocks are added
    spills = spills or blocking.sharers > 0
    # what a thread knows that copies three rows a stage, as many stages as it is told
    return spills or (plan.takes_ring and blocking.row > 2 * plan.row_bytes)


def _packing(plan: Plan) -> tuple[str, ...]:
    """The files of what packs operands."""
    if not any(plan.packs):
        return ()
    return "packs.cuh", "pack_blocks.cu" if plan.is_blockwise else "pack.cu"


def reduction_sharing(splits: int, has_sums: bool = False) -> int:
    """How many warps of the reduction share the splits of the sums that each of them has; as in kernel.cuh.

    `has_sums`: by channel, too, for which warpgroups do.
    """
    if splits >= 32 and not has_sums:
        return 16
    return 4 if splits >= 16 else 2 if splits >= 8 else 1


def reducers(plan: Plan) -> int:
    """Threads of a thread block of the reduction: few, so that all multiprocessors ask memory, where few share sums."""
    has_sums = plan.fusion.has_sums
    return 512 if has_sums or reduction_sharing(plan.blocking.splits, has_sums) > 4 else 128


def _multiply(first: str, second: str) -> str:
    """The function of the instruction that multiplies such elements."""
    if first in FLOAT8_DTYPES:
        return f"wgmma_{first.removeprefix('f8')}_{second.removeprefix('f8')}"
    return WGMMA_FUNCTIONS[first]


def launches_of(plan: Plan, multiprocessors: int) -> list[Launch]:
    """Packing, the product, and the sum of the splits."""
    tile, packs = plan.blocking.tile, [pack for pack in plan.packs if pack]
    launches = []
    if plan.is_scaled and not plan.is_blockwise:
        launches.append(Launch("find_maxima", (MAXIMA, 1 if plan.divides_rows else 2), 512, is_early=True))
    if packs:
        launches.append(Launch("pack_operands", sum(pack.blocks for pack in packs), 256, is_early=True))
    groups = plan.blocking.thread_blocks(plan.works, multiprocessors)
    if plan.blocking.sharers:
        launches.append(Launch("clear_signals", 1, 512, is_early=True))
    is_early = begins_early(plan.blocking, plan.is_wgrad, plan.is_divided or plan.is_blockwise)
    launches.append(
        Launch(
            "multiply",
            groups,
            tile.threads,
            max(plan.shared, _ALONE) if is_early else plan.shared,
            cluster=tile.cluster,
            sets_cluster=tile.cluster > 1,
            is_early=is_early,
        )
    )
    if plan.blocking.is_split:
        sums = plan.works // plan.blocking.splits * tile.m * tile.n
        sharing = reduction_sharing(plan.blocking.splits, plan.fusion.has_sums)
        threads = reducers(plan)
        launches.append(Launch("reduce_partials", -(-sums * sharing // (8 * threads)), threads))
    if plan.fusion.has_sums:
        launches.append(Launch("reduce_sums", -(-2 * plan.channels // _SUMMED_COLUMNS), 256, is_early=True))
    return launches
