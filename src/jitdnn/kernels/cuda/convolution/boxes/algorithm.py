"""Convolutions of few channels without strides by warpgroups (`wgmma`): all taps share what is copied of a box.

A filter's gradient of 32 by 32 channels fills half of the rows of the tensor cores, and brings x once for each tap, or
for each line of them. Here a thread block has the sums of all taps, and two taps side by side in the rows of a product.
Forward and for the data 32 columns wait for the path to shared memory; with the taps along d as columns, too, they do
not. Floors on an H100 (bf16), 32 to 32 channels of 2 x 96^3 pixels, 3x3x3, 98 GFLOP: 99 us by products, 78 by bytes;
the products of a gradient are ten ninths of that, of 9 lines of taps in 5 pairs.
"""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.boxes import correlation_plan, wgrad_plan
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemmInPlace,
    ImplicitGemmWgradInPlace,
)
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution

MAX_EXTENT = 2**30
_ALIGNMENTS = (16, 16, 1)
_QUADS = 32
"""Of four sums, that a thread block adds up."""


def _refuse(problem: Convolution, device: GpuDevice) -> str | None:
    """What no kernel of boxes takes; None if they may."""
    if device.arch != "sm_90a":
        return f"wgmma is an instruction of sm_90a, and {device.name} is not one"
    dtypes = {operand.descriptor.dtype for operand in problem.inputs}
    if not dtypes <= {*HALVES} or len(dtypes) > 1:
        return f"it multiplies {' or '.join(HALVES)}, not {' and '.join(sorted(dtypes))}"
    if not all(operand.descriptor.size for operand in (*problem.inputs, *problem.outputs)):
        return "a tensor is empty: direct takes those"
    if max(*problem.spatial, *problem.output_spatial, problem.n, problem.c, problem.k) >= MAX_EXTENT:
        return f"at most {MAX_EXTENT} pixels or channels fit the kernel's indices"
    return None


class WarpgroupGemmInBoxes(KernelAlgorithm[Convolution, GpuDevice]):
    """fprop and dgrad without strides: the filter stays, and all taps along d are columns of a product."""

    name = "implicit_gemm_wgmma_in_boxes"
    problem = Convolution
    takes_no_epilogue = "results leave as the tensor cores have them: apply it to the result"

    def __init__(self, boxes: tuple[correlation_plan.Box, ...] = ()) -> None:
        self._boxes = boxes

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        data = problem.inputs[0].descriptor.dtype
        if problem.output.dtype != data:
            return f"results have the type of the data here, {data}, not {problem.output.dtype}"
        if reason := _refuse(problem, device):
            return reason
        found = correlation_plan.plan_of(problem, device, self._boxes)
        return found if isinstance(found, str) else None

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = correlation_plan.plan_of(problem, device, self._boxes)
        assert isinstance(plan, correlation_plan.Plan), plan

        def build() -> Kernel:
            launch = Launch("correlate_boxes", plan.thread_blocks, plan.threads, plan.shared)
            kernel = device.kernel(correlation_source(plan), [launch], 3, tables=plan.tables)
            return ByAddress(kernel, lambda: ImplicitGemmInPlace().build(problem, device), (16, 16, 16))

        return PlannedKernel(0, plan.seconds, build)


class WarpgroupWgradInBoxes(KernelAlgorithm[Convolution, GpuDevice]):
    """Sums of all taps of 32 by 32 channels in the registers of a thread block; K runs over boxes of pixels."""

    name = "implicit_gemm_wgmma_in_boxes"
    problem = Convolution
    takes_no_epilogue = "a filter's gradient takes no epilogue here"

    def __init__(self, boxes: tuple[wgrad_plan.Box, ...] = ()) -> None:
        self._boxes = boxes

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.w.dtype not in (*HALVES, "f32"):
            return f"results are {', '.join(HALVES)} or f32 here, not {problem.w.dtype}"
        if reason := _refuse(problem, device):
            return reason
        found = wgrad_plan.plan_of(problem, device, self._boxes)
        return found if isinstance(found, str) else None

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = wgrad_plan.plan_of(problem, device, self._boxes)
        assert isinstance(plan, wgrad_plan.Plan), plan

        def build() -> Kernel:
            kernel = device.kernel(wgrad_source(plan, problem), wgrad_launches(plan), 3, tables=plan.tables)
            return ByAddress(kernel, lambda: ImplicitGemmWgradInPlace().build(problem, device), _ALIGNMENTS)

        return PlannedKernel(plan.workspace, plan.seconds, build)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return "other taps, where boxes of dy end beyond it and are filled with zeros"


def wgrad_source(plan: wgrad_plan.Plan, problem: Convolution) -> Source:
    """The text of the kernels."""
    result = problem.w.dtype
    defines: tuple[tuple[str, object], ...] = (
        *zip(("TAPS_T", "TAPS_R", "TAPS_S"), plan.taps, strict=True),
        *zip(("DILATION_D", "DILATION_H", "DILATION_W"), plan.dilation, strict=True),
        *zip(("BOX_D", "BOX_H", "BOX_W"), (plan.box.d, plan.box.h, plan.box.w), strict=True),
        ("STAGES", plan.box.stages),
        ("CONSUMERS", plan.consumers),
        ("MULTIPLY", f"wgmma_{problem.x.dtype}"),
        ("RESULT", "f32" if result == "f32" else "u16"),
        ("LOAD_RESULT", f"load_{result}"),
        ("STORE_RESULT", f"store_{result}"),
    )
    return Source("wgrad_in_boxes", read_text("cuda/convolution/boxes", "wgrad.cu"), defines, "hopper")


def wgrad_launches(plan: wgrad_plan.Plan) -> list[Launch]:
    """The products, and the sums of their parts."""
    quads = plan.pairs * plan.part_sums // 4
    return [
        Launch("multiply_boxes", plan.pairs * plan.parts, plan.threads, plan.shared),
        Launch("add_parts", quads // _QUADS, 512),
    ]


def correlation_source(plan: correlation_plan.Plan) -> Source:
    """The text of the kernel of results."""
    layer, box, dtype = plan.layer, plan.box, plan.layer.data.dtype
    defines: tuple[tuple[str, object], ...] = (
        *zip(("TAPS_T", "TAPS_R", "TAPS_S"), layer.taps, strict=True),
        *zip(("DILATION_D", "DILATION_H", "DILATION_W"), layer.dilation, strict=True),
        ("PATCH_H", box.patch_h),
        ("PATCHES", box.patches),
        ("CONSUMERS", box.consumers),
        ("STAGES", box.stages),
        ("COLUMNS", box.columns),
        ("IS_ACROSS", int(layer.is_across)),
        ("MULTIPLY", f"wgmma_{dtype}"),
        ("PACK", f"pack_{dtype}"),
        ("LOW", f"{dtype}_low"),
        ("HIGH", f"{dtype}_high"),
    )
    return Source("boxes", read_text("cuda/convolution/boxes", "correlation.cu"), defines, "hopper")
