"""Convolutions of few channels without strides by warpgroups (`wgmma`) with box tiles: all taps share a box of pixels.

A wgrad of 32 by 32 channels fills half of the rows of a `wgmma`, and copies x once for each tap, or for each line of
taps. Here a thread block has the sums of all taps, and two taps next to each other in the rows of a product. In fprop
and dgrad products of 32 columns wait for the path to shared memory; with the taps along d as further columns they do
not. Floors on an H100 (bf16), 32 to 32 channels of 2 x 96^3 pixels, 3x3x3, 98 GFLOP: 99 us by products, 78 by bytes;
the products of a wgrad are ten ninths of that, for 9 lines of taps in 5 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.boxes import correlation_plan, wgrad_plan
from jitdnn.kernels.cuda.convolution.boxes.common import CHANNELS
from jitdnn.kernels.cuda.convolution.boxes.sums import moments, summing_of
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemmInPlace,
    ImplicitGemmWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.summed import Summed, refuse_elsewhere
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import TensorDescriptor

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
            kernel = device.kernel(
                correlation_source(plan), [correlation_launch(plan)], 3, tables=plan.tables
            )
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


class WarpgroupFusedInBoxes(Summed):
    """fprop without strides, with sums by channel of its results and of their squares, of each image or of all."""

    name = "implicit_gemm_wgmma_in_boxes"

    def __init__(self, separate: Algorithm, boxes: tuple[correlation_plan.Box, ...] = ()) -> None:
        """`separate`: what takes operands at any address."""
        super().__init__(separate)
        self._boxes = boxes

    def refusal(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        own = problem.convolution
        if reason := self.refuse_sums(problem):
            return reason
        if reason := WarpgroupGemmInBoxes(self._boxes).refusal(own, device, None):
            return reason
        if reason := refuse_elsewhere(self._separate, problem, device, epilogue):
            return reason
        found = correlation_plan.plan_of(own, device, self._boxes, moments(problem.is_by_image))
        return found if isinstance(found, str) else None

    def error_of(self, problem: FusedConvolution) -> float:
        return tensor_core_bound(problem.convolution)

    def plan(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        own = problem.convolution
        plan = correlation_plan.plan_of(own, device, self._boxes, moments(problem.is_by_image))
        assert isinstance(plan, correlation_plan.Plan), plan
        # another kernel takes operands that the copy engine does not, in the same workspace
        room = max(plan.workspace, self._separate.workspace(problem, device, epilogue))

        def build() -> Kernel:
            kernel = summed_kernel(plan, own, device)
            return ByAddress(
                kernel, lambda: self._separate.build(problem, device, epilogue), (16, 16, 16, 1, 1)
            )

        return PlannedKernel(room, plan.seconds, build)


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


def correlation_launch(plan: correlation_plan.Plan) -> Launch:
    return Launch("correlate_boxes", plan.thread_blocks, plan.threads, plan.shared)


def summed_kernel(plan: correlation_plan.Plan, problem: Convolution, device: GpuDevice) -> Kernel:
    """The kernel of a plan with sums by channel."""
    assert plan.summing is not None
    groups = problem.n if plan.summing.by_image else 1
    launches = [
        correlation_launch(plan), Launch("add_sums", -(-plan.layer.outer // CHANNELS) * groups, 1024)
    ]  # fmt: skip
    return device.kernel(correlation_source(plan), launches, 3 + plan.summing.pointers, tables=plan.tables)


def summed_convolution(
    problem: Convolution,
    formulas: Sequence[Expression],
    operands: Sequence[TensorDescriptor],
    place: int,
    by_image: bool,
    device: GpuDevice,
    boxes: tuple[correlation_plan.Box, ...] = (),
) -> tuple[Kernel, int] | str:
    """A forward convolution or data gradient and sums by channel of formulas of its results, and bytes of workspace; or
    why there is none.

    The formulas read `operands`, of which number `place` is the result, the others in their order. The kernel takes
    the addresses of the two operands of the convolution, its result, the sums of both formulas, (N or 1, channels) of
    f32, then those of the tensor that is read beside the result, if there is one, and of numbers of channels. All of
    tensors are multiples of 16 bytes. Formulas see results as they are stored.
    """
    data = problem.inputs[0].descriptor.dtype
    reason = _refuse(problem, device)
    if problem.direction == "bwd_filter" or problem.output.dtype != data or reason:
        return reason or "results have the type of the data here, and are no filter's gradient"
    summing = summing_of(problem, formulas, operands, place, by_image)
    if isinstance(summing, str):
        return summing
    plan = correlation_plan.plan_of(problem, device, boxes, summing)
    return plan if isinstance(plan, str) else (summed_kernel(plan, problem, device), plan.workspace)


def correlation_source(plan: correlation_plan.Plan) -> Source:
    """The text of the kernel of results."""
    layer, box, dtype = plan.layer, plan.box, plan.layer.data.dtype
    defines: tuple[tuple[str, object], ...] = (
        ("HAS_SUMS", int(plan.summing is not None)),
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
    summing, folder = plan.summing, "cuda/convolution/boxes"
    texts = [read_text(folder, "correlation.cuh", "results.cuh")]
    if summing is not None:
        defines += summing.defines
        texts += [read_text(folder, "sums.cuh"), summing.text]
    else:
        defines += (("SUM_PARAMETERS", ""),)
    return Source("boxes", "\n".join([*texts, read_text(folder, "correlation.cu")]), defines, "hopper")
