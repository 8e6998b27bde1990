"""Grouped convolutions with few channels a group, by `mma` on several neighbouring groups at a time.

Sixteen neighbouring channels are one operand of the tensor cores whatever groups they belong to: the filter is
block-diagonal, with zeros between groups. That wastes three quarters of the products of groups of four, and still
leaves them cheaper than the memory: 64x128x56x56 of 32 groups, 3x3, bf16 on an H100 moves 103 MB, 34 us at 3.0 TB/s,
while its products take 10 to 13 us.

Channels-last pixels of multiples of 16 bytes go through shared memory (shared_memory.cu): 41 to 47 us for that layer.
All others go from global memory straight into registers, two rows ahead of the products where registers allow: 58 us,
because registers hold too few bytes in flight. An infinity in one group makes NaN of the others in its sixteen
channels. See wgrad_cost.py for wgrad.

f32 is multiplied as numbers of tf32, eight channels at a time, fprop and dgrad, in channels last: the bytes of the same
layer, 206 MB, take 68 us, its products, three for one, 37.
"""

from __future__ import annotations

import math
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.grouped.code import arguments, launches, source
from jitdnn.kernels.cuda.convolution.grouped.cost import MAX_CHANNELS, least_seconds, plan_of, register_plan
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan
from jitdnn.kernels.cuda.convolution.half_precision.code import by_alignment
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES, Shape, farthest
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem


class Grouped(KernelAlgorithm[Convolution, GpuDevice]):
    """Few channels per group by `mma` on several neighbouring groups at a time: all directions."""

    name = "grouped"
    version: ClassVar[int] = 2
    problem = Convolution
    dtypes: ClassVar[tuple[str, ...]] = HALVES
    products: ClassVar[int] = 1
    """Of the tensor cores, for one of the problem."""

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if reason := self._refuse_shape(problem, epilogue):
            return reason
        if self.sizes(problem, device) is None:
            c, k = problem.w.shape[1], problem.k // problem.groups
            return (
                f"a filter of {problem.filter_spatial} taps, {c} channels in and {k} out does not fit into registers, "
                f"or the channels that it reads are no whole 16 bytes of a pixel: implicit_gemm takes large filters"
            )
        return None

    def _refuse_shape(self, problem: Convolution, epilogue: Epilogue | None) -> str | None:
        """What has nothing to do with sizes."""
        if problem.is_integer or problem.dtype not in self.dtypes:
            return (
                f"it multiplies {' and '.join(self.dtypes)}, not {problem.x.dtype}: direct takes every type"
            )
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if 0 in problem.x.shape or 0 in problem.y.shape:
            return "a tensor is empty: direct takes those"
        c, k = problem.w.shape[1], problem.k // problem.groups
        if max(c, k) > MAX_CHANNELS:
            return (
                f"a group has {c} channels in and {k} out, and more than {MAX_CHANNELS} are better off without their "
                "neighbours: implicit_gemm takes large groups"
            )
        if problem.direction == "bwd_filter" and (epilogue is not None or self.dtypes != HALVES):
            return "a filter's gradient is taken in bf16 and f16, and takes no epilogue here"
        shape = Shape(problem)
        if shape.taps[0] != 1 or shape.stride[0] != 1 or shape.before[0] or shape.spatial[0] != shape.out[0]:
            return "along d it takes one tap, stride 1 and no padding: direct takes any"
        if problem.direction == "bwd_data" and max(shape.dilation) != 1:
            return f"backward data must have dilation 1, it is {problem.dilation}: direct takes any"
        if farthest(problem.w) >= 1 << 30:
            return "the filter spans more than 2^30 elements of memory: pack it"
        return None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if problem.direction == "bwd_filter" or self._refuse_shape(problem, epilogue):
            return 0.0
        return least_seconds(problem, device, self.products)

    def sizes(self, problem: Convolution, device: GpuDevice) -> Plan | None:
        """The cheapest plan on this device; None if the filter does not fit into registers."""
        return plan_of(problem, device, self.products)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.sizes(problem, device)
        assert plan is not None

        def build() -> Kernel:
            plain = self.unaligned_plan(problem, device, plan)
            return by_alignment(problem, device, epilogue, plan, plain, source, launches, arguments(problem))

        workspace = 0
        if problem.direction == "bwd_filter":
            workers = max(plan.workers, self.unaligned_plan(problem, device, plan).workers)
            workspace = 4 * math.prod(problem.w.shape) * workers
        return PlannedKernel(workspace, plan.seconds, build)

    def unaligned_plan(self, problem: Convolution, device: GpuDevice, plan: Plan) -> Plan:
        """The plan for operands at any address."""
        if not plan.shared or self.dtypes != HALVES:
            return plan.unaligned
        return register_plan(problem, device.facts).unaligned

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        return "the other groups of its sixteen channels"


class GroupedF32(Grouped):
    """f32 as two numbers of tf32 each, three products of which are added: as exact as stem_3xtf32 is.

    Forward and backward to the data, of channels last.
    """

    name = "grouped_3xtf32"
    rounded: ClassVar[tuple[str, ...]] = ("grouped_tf32",)
    dtypes = ("f32",)
    products = 3
    has_exact_products = False

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        source = problem.x if problem.direction == "fwd" else problem.y
        if source.shape[1] // problem.groups % 8 == 0:
            return None
        return "the other groups of its eight channels"


class GroupedTf32(GroupedF32):
    """`grouped` for f32 that is rounded to tf32."""

    name = "grouped_tf32"
    rounded = ()
    products = 1

    def arithmetic(self, problem: Problem) -> str:
        return "tf32"

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)
