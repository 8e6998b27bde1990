"""Running a convolution by fast Fourier transforms: SciPy's transforms, NumPy's copies, and compiled products.

The loops are drawn in plan.py, where the sizes have their names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.fft.plan import SHARED_POINTS, FftPlan
from jitdnn.kernels.cpu.convolution.fft.product import ProductShape, product_kernel, product_library
from jitdnn.kernels.formulas.overlap_save import Run, axes_of
from jitdnn.tensor import numpy_dtype, strided_view, view

AnyArray = np.ndarray[Any, Any]

_SIGNALS, _W, _X, _Y = range(4)  # the parts of the workspace: see `FftPlan.offsets`


class FftKernel:
    """The kernel: Python around SciPy's transforms and compiled products."""

    def __init__(self, plan: FftPlan, device: CpuDevice, epilogue: Epilogue | None) -> None:
        import scipy.fft

        self.plan, self.device, self.epilogue = plan, device, epilogue
        self.forward, self.inverse = scipy.fft.rfftn, scipy.fft.irfftn
        is_conjugate = plan.problem.direction != "bwd_data"
        self._library = product_library(device, plan.dtype, is_conjugate)
        self._kernels: dict[ProductShape, CpuKernel] = {}

    def product(self, shape: ProductShape) -> CpuKernel:
        """The kernel of products of a shape; a problem has few."""
        kernel = self._kernels.get(shape)
        if kernel is None:
            kernel = self._kernels[shape] = product_kernel(self._library, self.device, shape)
        return kernel

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        # overflow and NaN are results here, as in every other kernel
        with np.errstate(all="ignore"):
            _Call(self, pointers, alpha, beta, workspace).run()


class _Call:
    """One call; arrays have axes of groups, images (or results), channels, then space."""

    def __init__(
        self, kernel: FftKernel, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        self.kernel, self.plan, self.alpha, self.beta = kernel, kernel.plan, alpha, beta
        self.workspace = workspace
        self.taps = [axis.taps for axis in axes_of(self.plan.problem)]
        problem = self.plan.problem
        order = {"fwd": "xwy", "bwd_data": "ywx", "bwd_filter": "xyw"}[problem.direction]
        arrays = {
            name: self._grouped(view(pointer, operand.descriptor), name == "w")
            for name, pointer, operand in zip(order, pointers, problem.operands, strict=False)
        }
        self.x, self.w, self.y = (arrays[name] for name in "xwy")
        self.operands = []
        if kernel.epilogue is not None:
            extra = zip(pointers[3:], kernel.epilogue.operands, strict=True)
            self.operands = [self._grouped(view(*pair), order[2] == "w") for pair in extra]

    def _grouped(self, array: AnyArray, is_filter: bool) -> AnyArray:
        """The array with its groups as its first axis."""
        groups = self.plan.problem.groups
        if not is_filter:
            images, channels, *space = array.shape
            return array.reshape(images, groups, channels // groups, *space).swapaxes(0, 1)
        results, channels, *space = array.shape
        array = array.reshape(groups, results // groups, channels, *space)
        if self.plan.problem.mode == "convolution":
            array = array[(...,) + (slice(None, None, -1),) * len(space)]
        return array

    def _memory(self, part: int, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """An array in a part of the workspace."""
        start, end = self.plan.offsets[part : part + 2]
        raw = strided_view(self.workspace + start, (end - start,), (1,), "u8")
        count = math.prod(shape) * np.dtype(dtype).itemsize
        array: AnyArray = raw[:count].view(dtype).reshape(shape)
        return array

    def _spectra(self, part: int, leading: tuple[int, int, int]) -> AnyArray:
        """The spectra of w, x or y."""
        real = numpy_dtype(self.plan.dtype)
        *lengths, last = self.plan.transforms.lengths
        return self._memory(part, (*leading, *lengths, last // 2 + 1), np.result_type(real, np.complex64))

    def _workers(self, points: int) -> int:
        """Threads for transforms of so many points: a few are done before another thread has begun."""
        return self.kernel.device.threads if points >= SHARED_POINTS else 1

    def _boxes(self, leading: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """The leading axes in boxes of up to ``signals_at_once`` signals."""
        axis, inner = len(leading) - 1, 1
        while axis > 0 and inner * leading[axis] <= self.plan.signals_at_once:
            inner *= leading[axis]
            axis -= 1
        step = max(1, self.plan.signals_at_once // inner)
        for outer in np.ndindex(*leading[:axis]):
            for first in range(0, leading[axis], step):
                yield (*(slice(i, i + 1) for i in outer), slice(first, first + step))

    def _transform(self, signals: AnyArray, runs: Sequence[Run], part: int) -> AnyArray:
        """Spectra of the runs of some signals, in a part of the workspace."""
        lengths = self.plan.transforms.lengths
        rank = len(lengths)
        leading = signals.shape[:3]
        spectra = self._spectra(part, (leading[0], leading[1], leading[2]))
        for box in self._boxes(leading):
            own = signals[box]
            points = self._memory(_SIGNALS, (*own.shape[:3], *lengths), numpy_dtype(self.plan.dtype))
            points.fill(0.0)
            for pieces in itertools.product(*(r.pieces(n) for r, n in zip(runs, lengths, strict=True))):
                elements, targets = zip(*pieces, strict=True)
                points[(..., *targets)] = own[(..., *elements)]
            spectra[box] = self.kernel.forward(
                points, axes=range(-rank, 0), workers=self._workers(points.size), overwrite_x=True
            )
        return spectra

    def _inverse(
        self, spectra: AnyArray, results: AnyArray, operands: Sequence[AnyArray], runs: Sequence[Run]
    ) -> None:
        """Back from spectra, and the runs into the results."""
        lengths = self.plan.transforms.lengths
        rank = len(lengths)
        for box in self._boxes(spectra.shape[:3]):
            own = spectra[box]
            workers = self._workers(math.prod(own.shape[:3]) * math.prod(lengths))
            points = self.kernel.inverse(
                own, s=lengths, axes=range(-rank, 0), workers=workers, overwrite_x=True
            )
            for pieces in itertools.product(*(r.pieces(n) for r, n in zip(runs, lengths, strict=True))):
                elements, sources = zip(*pieces, strict=True)
                at = (..., *elements)
                value = points[(..., *sources)]
                if self.kernel.epilogue is not None:
                    fused = [operand[box][at].astype(value.dtype) for operand in operands]
                    value = self.kernel.epilogue.expression.evaluate(value, *fused)
                if self.alpha != 1.0:
                    value = value * self.alpha
                if self.beta != 0.0:
                    value = value + self.beta * results[box][at].astype(value.dtype)
                results[box][at] = value

    def _multiply(
        self, a: tuple[AnyArray, int, int], b: tuple[AnyArray, int, int], result: tuple[AnyArray, int, int],
        adds: bool = False,
    ) -> None:  # fmt: skip
        """result = a times b, summed; each is given as (spectra, axis, axis).

        Of a and b these are the axis of its own index and that of the sum, of the result those of a's and b's indices.
        """
        arrays = [one[0] for one in (a, b, result)]
        reals = 2 * self.plan.transforms.frequencies

        def strides(array: AnyArray, *axes: int) -> tuple[int, int, int]:
            steps = [math.prod(array.shape[axis + 1 : 3]) * reals for axis in range(3)]
            return steps[0], steps[axes[0]], steps[axes[1]]

        shape = ProductShape(
            groups=a[0].shape[0], rows=a[0].shape[a[1]], columns=b[0].shape[b[1]], depth=a[0].shape[a[2]],
            reals=reals, a=strides(*a), b=strides(*b), r=strides(*result),
        )  # fmt: skip
        pointers = [array.__array_interface__["data"][0] for array in arrays]
        self.kernel.product(shape)(None, pointers, 1.0, float(adds), 0)

    def run(self) -> None:
        """All groups, images and blocks."""
        problem, step = self.plan.problem, self.plan.groups_at_once
        some_groups = self._wgrad if problem.direction == "bwd_filter" else self._fprop_or_dgrad
        for first in range(0, problem.groups, step):
            some_groups(slice(first, first + step))

    def _blocks(self) -> Iterator[tuple[slice, list[Run], list[Run]]]:
        """Images with a block of x and of y."""
        images = self.plan.images_at_once
        for first in range(0, self.plan.problem.n, images):
            for blocks in itertools.product(*self.plan.transforms.blocks):
                yield slice(first, first + images), [b.x for b in blocks], [b.y for b in blocks]

    def _fprop_or_dgrad(self, groups: slice) -> None:
        w = self._transform(self.w[groups], self.taps, _W)
        is_forward = self.plan.problem.direction == "fwd"
        for images, x_runs, y_runs in self._blocks():
            operands = [operand[groups, images] for operand in self.operands]
            x, y = self.x[groups, images], self.y[groups, images]
            if is_forward:
                signals, result = self._transform(x, x_runs, _X), self._spectra(_Y, _leading(y))
                self._multiply((w, 1, 2), (signals, 1, 2), (result, 2, 1))
                self._inverse(result, y, operands, y_runs)
            else:
                signals, result = self._transform(y, y_runs, _Y), self._spectra(_X, _leading(x))
                self._multiply((w, 2, 1), (signals, 1, 2), (result, 2, 1))
                self._inverse(result, x, operands, x_runs)

    def _wgrad(self, groups: slice) -> None:
        w = self.w[groups]
        total = self._spectra(_W, _leading(w))
        adds = False
        for images, x_runs, y_runs in self._blocks():
            x = self._transform(self.x[groups, images], x_runs, _X)
            y = self._transform(self.y[groups, images], y_runs, _Y)
            self._multiply((y, 2, 1), (x, 2, 1), (total, 1, 2), adds)
            adds = True
        if not adds:
            total.fill(0.0)
        self._inverse(total, w, [operand[groups] for operand in self.operands], self.taps)


def _leading(array: AnyArray) -> tuple[int, int, int]:
    a, b, c = array.shape[:3]
    return a, b, c
