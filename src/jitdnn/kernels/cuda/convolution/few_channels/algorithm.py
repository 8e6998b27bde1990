"""Convolutions of images with few channels, the first layers of networks, by `mma` on contiguous rows of the image.

With three channels an ordinary product over channels would be mostly padding. But a row of a filter covers
taps * channels contiguous numbers of an interleaved row of the image: read as 32-bit words they are an operand of the
tensor cores without im2col. Rows are staged in shared memory, whatever the layout of x. Layers with few output channels
and no stride run as layers with few input channels (`swapped.py`).

Floors on an H100 (3.0 TB/s; products at 400 to 500 TFLOP/s), bf16, fprop: 256x3x224x224 -> 64, 7x7/2: 163 us by
bytes, 66 GFLOP with the padded words 130 to 165 us; 128x3x224x224 -> 64, 11x11/4: 30 us by bytes, 36 to 45 us by
products; 64x3x224x224 -> 64, 3x3: 143 us by bytes; 2x1x128^3 -> 32, 3x3x3: 92 us by bytes. The gradients move the same
bytes; a dgrad has products of 105, 23, 20 and 24 GFLOP, so bytes are the floor except for 7x7/2 (210 to 260 us).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.few_channels.code import arguments, launches, source
from jitdnn.kernels.cuda.convolution.few_channels.cost import fprop_plan, least_fprop_seconds
from jitdnn.kernels.cuda.convolution.few_channels.dgrad_cost import dgrad_plan, least_seconds
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan
from jitdnn.kernels.cuda.convolution.few_channels.swapped import swapped
from jitdnn.kernels.cuda.convolution.few_channels.wgrad_cost import least_wgrad_seconds, wgrad_plan
from jitdnn.kernels.cuda.convolution.half_precision.code import by_alignment
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES, Shape, farthest
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

MAX_CHANNELS = 8
MAX_NEIGHBOURS = 16
"""Channels of half precision that are neighbours in memory."""
_OF_NEIGHBOURS = {"fwd": 1.0, "bwd_data": 1.05, "bwd_filter": 1.15}
"""How much longer more than `MAX_CHANNELS` take than the models, which were fitted to few, say."""
_PLANS = {"fwd": fprop_plan, "bwd_data": dgrad_plan, "bwd_filter": wgrad_plan}
LEAST = {"fwd": least_fprop_seconds, "bwd_data": least_seconds, "bwd_filter": least_wgrad_seconds}
"""What these do not come below."""


def most_channels(problem: Convolution) -> int:
    """Of x that the kernels take."""
    return MAX_NEIGHBOURS if problem.dtype in HALVES and problem.x.strides[1] == 1 else MAX_CHANNELS


def with_few_inputs(problem: Convolution) -> Convolution:
    """The problem, or where its output channels are the few ones the same with x and y swapped."""
    if problem.c <= max(MAX_CHANNELS, min(problem.k, MAX_NEIGHBOURS)) or problem.k > MAX_NEIGHBOURS:
        return problem
    other = swapped(problem)
    return problem if other is None or other.c > most_channels(other) else other


class FewChannels(KernelAlgorithm[Convolution, GpuDevice]):
    """First and last layers of networks, of up to 16 channels of half precision, by `mma` on rows as they lie."""

    name = "stem"
    version: ClassVar[int] = 3
    problem = Convolution
    dtypes: ClassVar[tuple[str, ...]] = HALVES
    products: ClassVar[int] = 1
    """Of the tensor cores, for one of the problem."""

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if reason := self.refuse_shape(problem, epilogue):
            return reason
        if self.sizes(with_few_inputs(problem), device) is None:
            return (
                f"filter and rows of the image do not fit together into {device.shared_bytes} bytes of shared memory: "
                "implicit_gemm takes large filters"
            )
        return None

    def refuse_shape(self, problem: Convolution, epilogue: Epilogue | None) -> str | None:
        """What has nothing to do with sizes."""
        if problem.is_integer or problem.dtype not in self.dtypes:
            return (
                f"it multiplies {' and '.join(self.dtypes)}, not {problem.x.dtype}: direct takes every type"
            )
        if problem.groups != 1:
            return f"it takes one group of channels, there are {problem.groups}: grouped or depthwise takes several"
        own = problem
        problem = with_few_inputs(problem)
        most = most_channels(problem)
        if problem.c > most:
            return (
                f"it is for at most {most} input channels, or output channels where a layer has no stride and its "
                f"filter reaches over the padding, there are {own.c} and {own.k}: implicit_gemm takes more"
            )
        if 0 in problem.x.shape or 0 in problem.y.shape:
            return "a tensor is empty: direct takes those"
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue here"
        if problem.direction != "bwd_data" and Shape(problem).dilation[2] != 1:
            return f"taps must be neighbours along w, the dilation there is {problem.dilation[-1]}: direct takes any"
        if problem.direction == "bwd_data" and max(Shape(problem).dilation) != 1:
            return f"the dilation must be 1, it is {problem.dilation}: direct takes any"
        if farthest(problem.w) >= 1 << 30:
            return "the filter spans more than 2^30 elements of memory: pack it"
        return None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if self.refuse_shape(problem, epilogue):
            return 0.0
        few = with_few_inputs(problem)
        return LEAST[few.direction](few, device.facts, self.products)

    def sizes(self, problem: Convolution, device: GpuDevice) -> Plan | None:
        """The cheapest plan on this device for a problem with few input channels; None if nothing fits."""
        return _PLANS[problem.direction](problem, device, self.products)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        own, problem = problem, with_few_inputs(problem)
        plan = self.sizes(problem, device)
        assert plan is not None
        if problem is not own and problem.direction == "bwd_filter":
            plan = plan.with_x_second
        build = partial(
            by_alignment, problem, device, epilogue, plan, plan.unaligned, source, launches, arguments(plan)
        )
        slowness = _OF_NEIGHBOURS[problem.direction] if problem.c > MAX_CHANNELS else 1.0
        return PlannedKernel(plan.workspace, slowness * plan.seconds, build)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        problem = with_few_inputs(problem)
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        if problem.direction == "bwd_data":
            plan = self.sizes(problem, device)
            assert plan is not None
            if any(dict(plan.defines)[f"UNIT_{axis}"] != 1 for axis in "DHW"):
                return "neighbouring results, which are multiplied together and have fewer taps, filled up with zeros"
        return None


class FewChannelsF32(FewChannels):
    """`stem` for f32, as two numbers of tf32 and three products: nearly as exact as f32 products.

    Numbers of any size are multiplied so, and what is not finite stays what it is. Results below 2^-126 are right to
    2^-138, since each step of a sum is rounded to 2^-149.
    """

    name = "stem_3xtf32"
    rounded = ("stem_tf32",)
    dtypes = ("f32",)
    products = 3
    has_exact_products = False


class FewChannelsTf32(FewChannels):
    """`stem` for f32 that is rounded to tf32."""

    name = "stem_tf32"
    dtypes = ("f32",)
    has_exact_products = False

    def arithmetic(self, problem: Problem) -> str:
        return "tf32"

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)
