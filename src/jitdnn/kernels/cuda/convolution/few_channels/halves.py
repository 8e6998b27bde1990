"""First layers of f32 by products of halves.

The tensor cores multiply halves at twice the rate of tf32, a step has twice as many, and fragments are read as they
are, where each warp splits those of f32 that it reads. In fprop x is copied before, each channel as three of half
precision, which is small beside y: 64x3x224x224 -> 64, 3x3: 38 MB of x are read twice and 58 MB written, 45 us at
3 TB/s, where y has 822 MB, 274 us. Gradients split what they have staged, as dgrad.cu and wgrad.cu describe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import (
    LEAST,
    MAX_CHANNELS,
    FewChannelsF32,
    with_few_inputs,
)
from jitdnn.kernels.cuda.convolution.few_channels.code import arguments, launches, source
from jitdnn.kernels.cuda.convolution.few_channels.cost import fprop_plan, least_fprop_seconds
from jitdnn.kernels.cuda.convolution.few_channels.dgrad_cost import dgrad_plan
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan
from jitdnn.kernels.cuda.convolution.few_channels.wgrad_cost import wgrad_plan
from jitdnn.kernels.cuda.convolution.half_precision.code import by_alignment
from jitdnn.kernels.cuda.convolution.half_precision.products import HALVES, HEADER_BYTES
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, farthest
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS
from jitdnn.kernels.cuda.gemm.plan import three
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

_MAX_CHANNELS_FORWARD = 5
_PARTS = 3
_THREADS = 256
_MAXIMA = 256 + 8  # as in halves.cu
_SLOWNESS = 1.25
"""How much longer it takes than the models, which were fitted to other products, say: data gradients on an H100."""
_BOUND = 2.0**-20
"""The error of three products of halves for one of f32, relative to the largest numbers."""


class _Copies(NamedTuple):
    """The convolution of the copies, said to be f32 though x and w are halves, and elements of their rows."""

    problem: Convolution
    x_pitch: int
    w_pitch: int

    @property
    def rooms(self) -> tuple[int, int]:
        """Bytes of the workspace for x and w."""
        p = self.problem
        rows = (p.n * prod(p.spatial[:-1]) * self.x_pitch, p.k * prod(p.filter_spatial[:-1]) * self.w_pitch)
        x, w = (-(-2 * count // 256) * 256 for count in rows)
        return x, w


class FewChannelsHalves(KernelAlgorithm[Convolution, GpuDevice]):
    """First and last layers of f32, by three products of halves for one."""

    name = "stem_3xf16"
    rounded: ClassVar[tuple[str, ...]] = ("stem_tf32",)
    problem = Convolution
    has_exact_products = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if reason := self._refuse_shape(problem, epilogue):
            return reason
        few = with_few_inputs(problem)
        if few.direction != "fwd" and (reason := FewChannelsF32().refuse(few, device)):
            return reason
        if self.sizes(few, device) is None:
            return (
                f"filter and rows of the image do not fit together into {device.shared_bytes} bytes of shared memory: "
                "implicit_gemm takes large filters"
            )
        return None

    def _refuse_shape(self, problem: Convolution, epilogue: Epilogue | None) -> str | None:
        """What has nothing to do with sizes."""
        if problem.is_integer or any(one.dtype != "f32" for one in (problem.x, problem.w, problem.y)):
            return f"it divides f32 into halves, not {problem.x.dtype}: stem takes halves"
        few = with_few_inputs(problem)
        most = _MAX_CHANNELS_FORWARD if few.direction == "fwd" else MAX_CHANNELS
        if few.groups != 1 or few.c > most:
            return (
                f"it takes one group of up to {_MAX_CHANNELS_FORWARD} input channels forward, {MAX_CHANNELS} of "
                f"gradients, or so few output channels in the other direction: there are {problem.c}, {problem.k} and "
                f"{problem.groups} groups, which implicit_gemm or grouped_3xtf32 takes"
            )
        if 0 in few.x.shape or 0 in few.y.shape:
            return "a tensor is empty: direct takes those"
        if few.direction != "fwd":
            if epilogue is not None:
                return "a gradient takes no epilogue here: apply it to the result"
            reason = FewChannelsF32().refuse_shape(few, None)
            if reason is not None:
                return reason
        elif Shape(few).dilation[2] != 1:
            return (
                f"taps must be neighbours along w, the dilation there is {few.dilation[-1]}: direct takes any"
            )
        if max(farthest(few.x), farthest(few.w), 2 * _PARTS * few.x.size, 2 * _PARTS * few.w.size) >= 1 << 30:
            return "a tensor spans more than 2^30 elements of memory: stem_3xtf32 takes any"
        return None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        """That of products and results; copies of x and w, or what is computed again, take a few launches more."""
        if self._refuse_shape(problem, epilogue):
            return 0.0
        few, facts = with_few_inputs(problem), device.facts
        if few.direction == "fwd":
            copied = _copies(few).problem
            return _SLOWNESS * least_fprop_seconds(copied, facts, 1, True) + 2 * LAUNCH_SECONDS * ROUNDED
        return _SLOWNESS * LEAST[few.direction](few, facts, HALVES) + 3 * LAUNCH_SECONDS * ROUNDED

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: Convolution) -> float:
        return _BOUND

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return FewChannelsF32().spreads_to(problem, device, epilogue)

    def sizes(self, few: Convolution, device: GpuDevice) -> Plan | None:
        """The cheapest plan on this device for a problem with few input channels; None if nothing fits."""
        if few.direction == "fwd":
            return fprop_plan(_copies(few).problem, device, 1, True)
        return (dgrad_plan if few.direction == "bwd_data" else wgrad_plan)(few, device, HALVES)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        few = with_few_inputs(problem)
        plan = self.sizes(few, device)
        assert plan is not None
        if few.direction == "fwd":
            return _forward(few, plan, device, epilogue)
        return _gradient(few, plan, device, few is not problem)


def _forward(few: Convolution, plan: Plan, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
    copies = _copies(few)
    rooms = copies.rooms
    seconds = _SLOWNESS * plan.seconds + (8 * few.x.size + sum(rooms)) / device.bandwidth + 2 * LAUNCH_SECONDS

    def build() -> Kernel:
        product = by_alignment(
            copies.problem, device, epilogue, plan, plan.unaligned, source, launches, arguments(plan)
        )
        return _Divided(_dividing(few, copies, device), product, rooms)

    return PlannedKernel(sum(rooms) + HEADER_BYTES + plan.workspace, seconds, build)


def _gradient(few: Convolution, plan: Plan, device: GpuDevice, is_swapped: bool) -> PlannedKernel:
    exact = FewChannelsF32().sizes(few, device)
    assert exact is not None
    is_filter = few.direction == "bwd_filter"
    if is_filter and is_swapped:
        plan, exact = plan.with_x_second, exact.with_x_second

    def kernel(plan: Plan) -> Kernel:
        return by_alignment(few, device, None, plan, plan.unaligned, source, launches, arguments(plan))

    def build() -> Kernel:
        behind = replace(exact, defines=(*exact.defines, ("BYTES_FROM_HEADER", HEADER_BYTES)))
        # it hardly ever runs: a launch less
        if exact.pack is not None and not dict(exact.defines)["IS_STREAMED"]:
            own = tuple((name, 0 if name == "IS_PACKED" else value) for name, value in behind.defines)
            behind = replace(behind, defines=own, pack=None)
        make_exact = None if is_filter else lambda: kernel(exact)
        return _Replaced(kernel(plan), kernel(behind), make_exact, plan.workspace)

    return PlannedKernel(
        plan.workspace + exact.workspace, _SLOWNESS * plan.seconds + 3 * LAUNCH_SECONDS, build
    )


class _Divided:
    """Copies of x and w, and the product of these."""

    def __init__(self, dividing: GpuKernel, product: Kernel, rooms: tuple[int, int]) -> None:
        self._dividing, self._product, (self._x_room, self._w_room) = dividing, product, rooms

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        x, w, *others = pointers
        self._dividing(stream, (x, w), 1.0, 0.0, workspace)
        second = workspace + self._x_room
        self._product(stream, (workspace, second, *others), alpha, beta, second + self._w_room + HEADER_BYTES)


class _Replaced:
    """A kernel of halves, and one of f32 behind it, which computes all of it where a number was not finite.

    A data gradient has been stored by then, and is not to be added twice to what was there: with beta it is computed by
    `exact` alone, which is made when it is first needed.
    """

    def __init__(
        self, first: Kernel, behind: Kernel, make_exact: Callable[[], Kernel] | None, room: int
    ) -> None:
        self._first, self._behind, self._make_exact, self._room = first, behind, make_exact, room
        self._exact: Kernel | None = None

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        if beta != 0 and self._make_exact is not None:
            self._exact = self._exact or self._make_exact()
            self._exact(stream, pointers, alpha, beta, workspace)
            return
        self._first(stream, pointers, alpha, beta, workspace)
        self._behind(stream, pointers, alpha, beta, workspace + self._room)


@lru_cache(1024)
def _copies(problem: Convolution) -> _Copies:
    """Of a problem with few input channels."""
    x, x_pitch = _copy(problem.x)
    w, w_pitch = _copy(problem.w)
    return _Copies(replace(problem, x=x, w=w), x_pitch, w_pitch)


def _copy(tensor: TensorDescriptor) -> tuple[TensorDescriptor, int]:
    """A copy with three channels for one, innermost, and rows of whole 16 bytes; and elements of a row."""
    images, channels, *space = tensor.shape
    channels *= _PARTS
    pitch = -(-space[-1] * channels // 8) * 8
    strides, step = [channels], pitch
    for extent in reversed(space[:-1]):
        strides.insert(0, step)
        step *= extent
    return TensorDescriptor((images, channels, *space), (step, 1, *strides), "f32"), pitch


def _dividing(problem: Convolution, copies: _Copies, device: GpuDevice) -> GpuKernel:
    """What makes the copies."""
    text = read_text("cuda/convolution/few_channels", "halves.cuh", "halves.cu")
    numbers: list[int] = []
    blocks = 0
    for tensor, pitch in ((problem.x, copies.x_pitch), (problem.w, copies.w_pitch)):
        space = three(tensor.shape[2:], 1)
        low, high = tensor.span()
        run = high - low + 1 if high - low + 1 == tensor.size else 0
        numbers += [
            *tensor.shape[:2],
            *space,
            *tensor.strides[:2],
            *three(tensor.strides[2:], 0),
            pitch,
            run,
            low,
        ]
        blocks += -(-tensor.shape[0] * space[0] * space[1] * (pitch // 8) // _THREADS)
    x_room, w_room = copies.rooms
    numbers += [x_room, x_room + w_room]
    steps = [
        Launch("find_maxima", _MAXIMA, _THREADS, is_early=True),
        Launch("divide_numbers", blocks, _THREADS, is_early=True),
    ]
    kernel: GpuKernel = device.kernel(
        Source("few_channels_halves", text, (("BLOCK_THREADS", _THREADS),), "cuda"), steps, 2, numbers
    )
    return kernel
