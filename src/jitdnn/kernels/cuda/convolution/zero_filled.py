"""Data gradients with one tap along strided axes, whose results are zero between those that it meets.

Of n results along such an axis n / stride are sums, the others zero. Zeros are stored first, all of the result as it
lies in memory, at the speed of memory; behind that stands the gradient of stride 1 whose result is every so manyth
position, by any algorithm. A product that stores the zeros itself does it as tiles of a matrix, pixel by pixel, each a
place of its own.

Floor on an H200, bf16, for 16x64x16x56x56 from 128 channels, stride 2 along three axes: 24 us for the zeros and 7 for
operands and results of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

_ZERO = trace(lambda _: 0.0)


class ZeroFilled(KernelAlgorithm[Convolution, GpuDevice]):
    """Data gradients with one tap along strided axes: zeros first, then the product of what the tap meets."""

    name = "zero_filled"
    problem = Convolution
    takes_float8 = False
    has_exact_products = False
    takes_no_epilogue = "the epilogue of a gradient of the data has another shape than the result it computes"

    def __init__(self, elementwise: ElementwiseGenerator, *others: Algorithm) -> None:
        """`others`: what may run the product."""
        self._elementwise, self._others = elementwise, others
        self._inner = lru_cache(512)(self._fastest)

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer or problem.dtype == "f64":
            return f"it multiplies reals of 16 and 32 bits, not {problem.x.dtype}: direct takes every type"
        dense = without_strides(problem)
        if dense is None:
            return (
                "it is for gradients of the data that have one tap, a stride and no padding along an axis: "
                "implicit_gemm takes others"
            )
        if self._inner(dense, device) is None:
            return f"no algorithm takes {dense}"
        return None

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        dense = without_strides(problem)
        assert dense is not None
        inner = self._inner(dense, device)
        assert inner is not None
        seconds = inner.estimate(dense, device) + self._elementwise.estimate(
            _ZERO, _operands(problem.x), device
        )

        def fill(result: TensorDescriptor) -> Kernel:
            computing = compute_dtype(problem.dtype)
            return self._elementwise.build(_ZERO, _operands(result), device, computing=computing)

        def build() -> Kernel:
            return _Filled(fill(problem.x), inner.build(dense, device), problem, fill)

        return PlannedKernel(inner.workspace(dense, device), seconds, build)

    def error_of(self, problem: Convolution) -> float:
        dense = without_strides(problem)
        assert dense is not None
        return max(other.error_bound(dense) for other in self._of_type(dense))

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        dense = without_strides(problem)
        assert dense is not None
        inner = self._inner(dense, device)
        assert inner is not None
        return inner.spreads(dense, device)

    def _of_type(self, dense: Convolution) -> list[Algorithm]:
        """Those that do not round the factors."""
        return [other for other in self._others if other.arithmetic(dense) != "tf32"]

    def _fastest(self, dense: Convolution, device: GpuDevice) -> Algorithm | None:
        takers = [one for one in self._of_type(dense) if one.refuse(dense, device) is None]
        return min(takers, key=lambda one: one.estimate(dense, device), default=None)


class _Filled:
    """Zeros, and a product behind them. With beta the results between those of the product are scaled alone, so that
    each is rounded once."""

    def __init__(
        self, zeros: Kernel, inner: Kernel, problem: Convolution, fill: Callable[[TensorDescriptor], Kernel]
    ) -> None:
        self.zeros, self.inner = zeros, inner
        self._problem, self._fill = problem, fill
        self._scaled: list[tuple[int, Kernel]] | None = None

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        data, result = pointers[0], pointers[2]
        if beta == 0.0:
            self.zeros(stream, (data, result), 1.0, 0.0, 0)
        else:
            if self._scaled is None:
                self._scaled = [(offset, self._fill(one)) for offset, one in _between(self._problem)]
            for offset, kernel in self._scaled:
                kernel(stream, (data, result + offset), 1.0, beta, 0)
        self.inner(stream, pointers, alpha, beta, workspace)


def _is_narrowed(problem: Convolution, axis: int) -> bool:
    return problem.filter_spatial[axis] == 1 and problem.stride[axis] > 1 and problem.padding[axis] == (0, 0)


def without_strides(problem: Convolution) -> Convolution | None:
    """The gradient of stride 1 along axes with one tap, whose result is every so manyth position; None without any."""
    axes = [axis for axis in range(len(problem.spatial)) if _is_narrowed(problem, axis)]
    if problem.direction != "bwd_data" or not axes or 0 in problem.x.shape or 0 in problem.y.shape:
        return None
    x, stride = problem.x, list(problem.stride)
    for axis in axes:
        x, stride[axis] = _every(x, 2 + axis, 0, stride[axis]), 1
    return replace(problem, x=x, stride=tuple(stride))


def _between(problem: Convolution) -> Iterator[tuple[int, TensorDescriptor]]:
    """What that gradient leaves out of the result: byte offsets and tensors."""
    x = problem.x
    for axis, step in enumerate(problem.stride):
        if not _is_narrowed(problem, axis):
            continue
        for first in range(1, min(step, x.shape[2 + axis])):
            yield x.strides[2 + axis] * first * DTYPES[x.dtype], _every(x, 2 + axis, first, step)
        x = _every(x, 2 + axis, 0, step)


def _every(tensor: TensorDescriptor, at: int, first: int, step: int) -> TensorDescriptor:
    """The positions `first`, `first + step`, ... of an axis."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[at] = -(-(shape[at] - first) // step)
    strides[at] *= step
    return TensorDescriptor(tuple(shape), tuple(strides), tensor.dtype)


def _operands(result: TensorDescriptor) -> list[TensorDescriptor]:
    """Those of the zeros: one element, which is not looked at, and the result."""
    return [TensorDescriptor(result.shape, (0,) * len(result.shape), result.dtype), result]
