"""f32 layers with fewer pixels than channels of the result, bound by reading their filter: sm_90a.

Products of halves pack both operands, and move the filter four times. Here the filter is A of a product that splits it
in registers, and is read once. In fprop the windows of x are copied to the rows of a matrix (im2col), which is B. In
dgrad the filter's taps are rows of the product, all pixels of dy meet each of them, and a second kernel adds what
belongs to a pixel of dx, in a fixed order (col2im).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel, version_over
from jitdnn.kernels.cuda.convolution.half_precision.copied import room_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupGemmDivided, WarpgroupWgradRows
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

_THREADS = 256
_LANES = 4
"""Channels of a thread that copies."""
_MOST_UNITS = 2**31
_SCATTERED = 1.45
"""Of the time of a data gradient, whose products threads store column by column, beside what its parts are held to."""


class _Steps(NamedTuple):
    """`matrix`: of the windows, or of the products of pixels and taps; `product`: which has the filter first."""

    matrix: TensorDescriptor
    product: Convolution


class FewPixels(KernelAlgorithm[Convolution, GpuDevice]):
    """fprop and dgrad of f32 with fewer pixels than channels, whose filter is divided where it is multiplied."""

    name = "few_pixels_3xf16"
    version: ClassVar[int] = version_over(1, (WarpgroupGemmDivided(), WarpgroupWgradRows()))
    rounded = ("implicit_gemm_wgmma_swapped", "implicit_gemm_wgmma")
    problem = Convolution
    takes_float8 = False
    has_exact_products = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if epilogue is not None:
            return "it takes no epilogue: apply it to the result"
        steps = _steps(problem)
        if isinstance(steps, str):
            return steps
        return _inner(problem).refuse(steps.product, device)

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: Convolution) -> float:
        return _inner(problem).error_bound(problem)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        steps = _steps(problem)
        assert isinstance(steps, _Steps)
        inner, room = _inner(problem), room_of(steps.matrix)
        moved = steps.matrix.nbytes + problem.x.nbytes
        seconds = inner.estimate(steps.product, device) + moved / device.bandwidth + LAUNCH_SECONDS
        if problem.direction == "bwd_data":
            seconds *= _SCATTERED

        def build() -> Kernel:
            product = inner.build(steps.product, device)
            return _Composite(problem.direction == "fwd", _windows(problem, device), product, room)

        return PlannedKernel(room + inner.workspace(steps.product, device), seconds, build)


def _inner(problem: Convolution) -> WarpgroupGemm:
    return WarpgroupGemmDivided() if problem.direction == "fwd" else WarpgroupWgradRows()


class _Composite:
    """Windows and a product, in the order of the direction; the workspace begins with the matrix between them."""

    def __init__(self, is_forward: bool, windows: GpuKernel, product: Kernel, room: int) -> None:
        self._is_forward, self._windows, self._product, self._room = is_forward, windows, product, room

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first, second, result = pointers
        rest = workspace + self._room
        if self._is_forward:
            self._windows(stream, (first, workspace), 1.0, 0.0, 0)
            self._product(stream, (second, workspace, result), alpha, beta, rest)
        else:
            self._product(stream, (first, second, workspace), 1.0, 0.0, rest)
            self._windows(stream, (workspace, result), alpha, beta, 0)


def _windows(problem: Convolution, device: GpuDevice) -> GpuKernel:
    """What copies windows, or adds products."""
    x, is_forward = problem.x, problem.direction == "fwd"
    channels = problem.c
    pixels = problem.n * prod(problem.output_spatial) * prod(problem.filter_spatial)
    if not is_forward:
        pixels = problem.n * prod(problem.spatial)
    axes = zip(
        three(problem.spatial, 1), three(problem.output_spatial, 1), three(problem.filter_spatial, 1),
        three(problem.stride, 1), three(problem.dilation, 1), three([n for n, _ in problem.padding], 0),
        three(x.strides[2:], 0), strict=True,
    )  # fmt: skip
    numbers = [problem.n, channels, x.strides[0], *(number for axis in axes for number in axis)]
    source = Source("few_pixels", read_text("cuda/convolution/few_pixels", "windows.cu"), (), "cuda")
    blocks = -(-pixels * (channels // _LANES) // _THREADS)
    launch = Launch("copy_windows" if is_forward else "add_windows", blocks, _THREADS, is_early=True)
    kernel: GpuKernel = device.kernel(source, [launch], 2, numbers)
    return kernel


@lru_cache(1024)
def _steps(problem: Convolution) -> _Steps | str:
    """The matrix and the product, or why there are none."""
    x, w, y = problem.x, problem.w, problem.y
    if problem.direction == "bwd_filter":
        return "a filter's gradient writes the filter: other algorithms do not pack it"
    if (x.dtype, w.dtype, y.dtype) != ("f32",) * 3:
        return f"it reads filters of f32 as they are, not {w.dtype}, which others do not pack"
    if problem.groups != 1 or 0 in x.shape or 0 in y.shape or 0 in w.shape:
        return "it takes one group of channels, and tensors that are not empty"
    if problem.mode != "cross_correlation":
        return "it takes filters that are not flipped"
    pixels, taps = problem.n * prod(problem.output_spatial), prod(problem.filter_spatial)
    if pixels >= problem.k:
        return f"{pixels} results of each of {problem.k} channels: others read the filter once for many"
    row = problem.c * taps
    if w.strides[:2] != (row, 1) or linear_step(w.shape[2:], w.strides[2:]) not in (problem.c, 0):
        return "the filter's channels must be innermost, and all of it one run of memory"
    if (
        x.strides[1] != 1
        or problem.c % _LANES
        or any(stride % _LANES for stride in (x.strides[0], *x.strides[2:]))
    ):
        return f"channels of the data must be innermost, and a multiple of {_LANES}"
    step = linear_step((y.shape[0], *y.shape[2:]), (y.strides[0], *y.strides[2:]))
    if step is None or y.strides[1] != 1:
        return "pixels of y must lie at equal distances, with channels innermost"
    if max(pixels * taps, problem.n * prod(problem.spatial)) * problem.c // _LANES >= _MOST_UNITS:
        return f"a matrix of {pixels} x {row} numbers: at most 2^31 pieces are copied"
    matrix = TensorDescriptor((pixels, row), (row, 1), "f32")
    plain: Any = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,)}
    if problem.direction == "fwd":
        product = Convolution(
            "fwd",
            TensorDescriptor((1, row, problem.k), (0, 1, row), "f32", w.offset),
            TensorDescriptor((pixels, row, 1), (row, 1, 1), "f32"),
            TensorDescriptor((1, pixels, problem.k), (0, step, 1), "f32", y.offset),
            **plain,
        )
    else:  # the filter in place of dy, whose pixels are the channels that are summed
        product = Convolution(
            "bwd_filter",
            TensorDescriptor((1, pixels, problem.k), (0, step, 1), "f32", y.offset),
            TensorDescriptor((row, pixels, 1), (1, row, 1), "f32"),
            TensorDescriptor((1, row, problem.k), (0, 1, row), "f32", w.offset),
            **plain,
        )
    return _Steps(matrix, product)
