"""Convolution with long filters by fast Fourier transforms: products of spectra in place of sums over the taps.

    fwd         Y = sum over channels  conj(W) X
    bwd_data    X = sum over results   W Y
    bwd_filter  W = sum over images    conj(Y) X        each on circles of positions (overlap_save.py)

With taps T and a circle of L positions an output costs about log2 L operations in place of T: it pays from some
hundred taps on, soonest for depthwise filters. Long signals are cut into overlapping blocks, so that memory stays
bounded. A stride leaves out results that were computed; a dilation puts zeros between the taps.

The transforms are SciPy's, large ones on as many threads as the device has; the arrays that they return, of some
MiB, are NumPy's own and not part of the workspace. The products of spectra are compiled (product.py). What is
rounded in one place of a block is felt in all of it: an infinity or a NaN spreads over its whole block.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Device,
    Epilogue,
    Kernel,
    storing_roundoff,
)
from jitdnn.kernels.cpu.convolution.fft.overlap_save import (
    Block,
    CircleAxis,
    Circles,
    Run,
    butterflies,
    smooth_length,
)
from jitdnn.kernels.cpu.convolution.fft.product import ProductShape, product_kernel, product_library
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype, numpy_dtype, strided_view, view

AnyArray = np.ndarray[Any, Any]

FEWEST_TAPS = 32  # with fewer a sum is always faster
_SIGNALS_BYTES = 512 << 10  # signals that are transformed at once
_FEWEST_SIGNALS = 16  # at least, for they are in the lanes
_SPECTRA_BYTES = 4 << 20  # that are kept at once, if one group of one image needs no more
_MULTIPLES = (2, 3, 4, 6, 8, 12, 16)  # of the filter's reach that circles may be long
_LONG_BYTES = 512 << 10  # a longer signal is transformed from beyond the second cache
_SHARED = 1 << 18  # elements of a transform that is shared out among threads

# Seen of SciPy on one core: operations of a transform by those of multiply-adds in registers (a short one takes as
# long for each position as one of so many), bytes a second of NumPy's copies, and the Python around a block.
_ROW_EFFICIENCY, _PLANE_EFFICIENCY = 1 / 6.5, 1 / 13  # along one axis, and along several
_SHORT = 1 << 12
_PRODUCT_EFFICIENCY = 0.35
_COPY_BYTES_A_SECOND = 2e10
# spectra that products read: from the second cache they cost nothing, from the third or from memory bytes a second
_SECOND_CACHE, _THIRD_CACHE = 768 << 10, 16 << 20
_THIRD_BYTES_A_SECOND, _MEMORY_BYTES_A_SECOND = 8e10, 3.6e10
_SECONDS_A_SCATTERED = 1.2e-9  # an element of a row whose neighbours are apart
_SECONDS_A_CALL = 1.5e-5


@dataclass(frozen=True)
class FftPlan:
    """Circles, how many groups and images are done at once, and the memory that they take."""

    problem: Convolution

    @property
    def dtype(self) -> str:
        return compute_dtype(self.problem.dtype)

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.dtype]

    @cached_property
    def axes(self) -> tuple[CircleAxis, ...]:
        p = self.problem
        extents = zip(p.x.shape[2:], p.y.shape[2:], p.w.shape[2:], strict=True)
        attributes = zip(p.stride, p.padding, p.dilation, strict=True)
        return tuple(
            CircleAxis(x, y, w, stride, padding[0], dilation)
            for (x, y, w), (stride, padding, dilation) in zip(extents, attributes, strict=True)
        )

    @property
    def cuts_x(self) -> bool:
        """True if blocks are of x and not of y."""
        return self.problem.direction == "bwd_data"

    @cached_property
    def circles(self) -> Circles:
        lengths, blocks = zip(*map(self._circle, self.axes), strict=True)
        return Circles(lengths, blocks)

    def _circle(self, axis: CircleAxis) -> tuple[int, tuple[Block, ...]]:
        whole = axis.shortest(self.cuts_x)
        choices: list[tuple[int, int | None]] = [(smooth_length(whole), None)]
        for multiple in _MULTIPLES:
            if multiple * (axis.reach + 1) < whole:
                length = smooth_length(multiple * (axis.reach + 1))
                choices.append((length, length))

        def cost(choice: tuple[int, int | None]) -> float:
            far = 1.5 if choice[0] * self.item > _LONG_BYTES else 1.0
            return len(axis.blocks(choice[1], self.cuts_x)) * butterflies(choice[0]) * far

        length, cut = min(choices, key=cost)
        return length, tuple(axis.blocks(cut, self.cuts_x))

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of x and of y in a group."""
        return self.problem.c // self.problem.groups, self.problem.k // self.problem.groups

    @cached_property
    def at_once(self) -> tuple[int, int]:
        """Groups and images whose spectra are there at the same time."""
        (c, k), spectrum = self.channels, 2 * self.item * self.circles.frequencies
        most = max(1, _SPECTRA_BYTES // spectrum)
        images = max(1, min(self.problem.n, (most - c * k) // (c + k)))
        groups = max(1, min(self.problem.groups, most // (c * k + images * (c + k))))
        return groups, images

    @property
    def signals(self) -> int:
        """Signals that are transformed at once."""
        return max(_FEWEST_SIGNALS, _SIGNALS_BYTES // (self.item * self.circles.positions))

    @cached_property
    def places(self) -> list[int]:
        """Bytes from the start of the workspace to the signals, and to the spectra of w, x and y; their end."""
        (c, k), (groups, images) = self.channels, self.at_once
        spectrum = 2 * self.item * self.circles.frequencies
        sizes = [self.signals * self.item * self.circles.positions]
        sizes += [spectrum * groups * many for many in (c * k, images * c, images * k)]
        return list(itertools.accumulate((ceil_div(size, 64) * 64 for size in sizes), initial=0))

    def estimate(self, device: Device) -> float:
        p, (c, k), circles = self.problem, self.channels, self.circles
        blocks = circles.count
        rows = p.groups * c * k + blocks * p.n * (p.c + p.k)
        rate = device.peak_flops(self.dtype)
        one = butterflies(circles.positions) * max(1.0, math.log(_SHORT, max(2, circles.positions)))
        is_row = sum(length > 1 for length in circles.lengths) < 2
        alone = (
            1 if self.signals * circles.positions >= _SHARED else device.threads
        )  # small ones run on one thread
        seconds = alone * rows * one / (rate * (_ROW_EFFICIENCY if is_row else _PLANE_EFFICIENCY))
        products = blocks * p.n * p.groups * c * k * circles.frequencies
        seconds += 8.0 * products / (rate * _PRODUCT_EFFICIENCY)
        seconds += self._spectra_seconds()
        # a signal is cleared, filled, and copied as a spectrum
        seconds += 4.0 * rows * circles.positions * self.item / _COPY_BYTES_A_SECOND
        scattered = sum(t.size for t in (p.x, p.w, p.y) if abs(t.strides[-1]) != 1)
        seconds += scattered * _SECONDS_A_SCATTERED
        groups, images = self.at_once
        calls = ceil_div(p.groups, groups) * (1 + 3 * ceil_div(p.n, images) * blocks)
        calls += rows // self.signals
        return seconds + calls * _SECONDS_A_CALL

    def _spectra_seconds(self) -> float:
        """Seconds in which the products' spectra come from where they are: a filter's once for every few images."""
        p, (c, k), (groups, images) = self.problem, self.channels, self.at_once
        spectrum = 2 * self.item * self.circles.frequencies
        held = groups * (c * k + images * (c + k)) * spectrum
        if held <= _SECOND_CACHE:
            return 0.0
        turns = ceil_div(p.n, images) * self.circles.count
        # a filter's gradient is read and written
        moved = (
            p.groups
            * spectrum
            * (turns * c * k * (2 if p.direction == "bwd_filter" else 1) + self.circles.count * p.n * (c + k))
        )
        return moved / (_THIRD_BYTES_A_SECOND if held <= _THIRD_CACHE else _MEMORY_BYTES_A_SECOND)


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

    def _memory(self, number: int, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """An array in part ``number`` of the workspace."""
        start, end = self.plan.places[number : number + 2]
        raw = strided_view(self.workspace + start, (end - start,), (1,), "u8")
        count = math.prod(shape) * np.dtype(dtype).itemsize
        array: AnyArray = raw[:count].view(dtype).reshape(shape)
        return array

    def _spectra(self, number: int, leading: tuple[int, int, int]) -> AnyArray:
        """The spectra of w (1), x (2) or y (3)."""
        real = numpy_dtype(self.plan.dtype)
        *lengths, last = self.plan.circles.lengths
        return self._memory(number, (*leading, *lengths, last // 2 + 1), np.result_type(real, np.complex64))

    def _workers(self, elements: int) -> int:
        """Threads of a transform: a small one is done before another thread, which may still be waiting for a product,
        has begun."""
        return self.kernel.device.threads if elements >= _SHARED else 1

    def _boxes(self, leading: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """The leading axes in boxes of as many signals as are transformed at once."""
        axis, inner = len(leading) - 1, 1
        while axis > 0 and inner * leading[axis] <= self.plan.signals:
            inner *= leading[axis]
            axis -= 1
        step = max(1, self.plan.signals // inner)
        for outer in np.ndindex(*leading[:axis]):
            for first in range(0, leading[axis], step):
                yield (*(slice(i, i + 1) for i in outer), slice(first, first + step))

    def _transform(self, signals: AnyArray, runs: Sequence[Run], number: int) -> AnyArray:
        """Spectra of the runs of some signals, each put onto its circle."""
        lengths = self.plan.circles.lengths
        rank = len(lengths)
        leading = signals.shape[:3]
        spectra = self._spectra(number, (leading[0], leading[1], leading[2]))
        for box in self._boxes(leading):
            part = signals[box]
            circle = self._memory(0, (*part.shape[:3], *lengths), numpy_dtype(self.plan.dtype))
            circle.fill(0.0)
            for pieces in itertools.product(*(r.pieces(n) for r, n in zip(runs, lengths, strict=True))):
                elements, places = zip(*pieces, strict=True)
                circle[(..., *places)] = part[(..., *elements)]
            spectra[box] = self.kernel.forward(
                circle, axes=range(-rank, 0), workers=self._workers(circle.size), overwrite_x=True
            )
        return spectra

    def _finish(
        self, spectra: AnyArray, results: AnyArray, operands: Sequence[AnyArray], runs: Sequence[Run]
    ) -> None:
        """Back from spectra, and the runs to their places in the results."""
        lengths = self.plan.circles.lengths
        rank = len(lengths)
        for box in self._boxes(spectra.shape[:3]):
            part = spectra[box]
            workers = self._workers(math.prod(part.shape[:3]) * math.prod(lengths))
            circle = self.kernel.inverse(
                part, s=lengths, axes=range(-rank, 0), workers=workers, overwrite_x=True
            )
            for pieces in itertools.product(*(r.pieces(n) for r, n in zip(runs, lengths, strict=True))):
                elements, places = zip(*pieces, strict=True)
                at = (..., *elements)
                value = circle[(..., *places)]
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
        """result = a times b: spectra with the axis of a's own index and of the sum, of b's, and of both own ones."""
        arrays = [one[0] for one in (a, b, result)]
        reals = 2 * self.plan.circles.frequencies

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
        problem, (groups, _) = self.plan.problem, self.plan.at_once
        one = self._filter if problem.direction == "bwd_filter" else self._data
        for first in range(0, problem.groups, groups):
            one(slice(first, first + groups))

    def _pieces(self) -> Iterator[tuple[slice, list[Run], list[Run]]]:
        """Images with a block of x and of y."""
        _, images = self.plan.at_once
        for first in range(0, self.plan.problem.n, images):
            for blocks in itertools.product(*self.plan.circles.blocks):
                yield slice(first, first + images), [b.x for b in blocks], [b.y for b in blocks]

    def _data(self, groups: slice) -> None:
        """Forward, or backward to the data."""
        w = self._transform(self.w[groups], [axis.taps for axis in self.plan.axes], 1)
        is_forward = not self.plan.cuts_x
        for images, x_runs, y_runs in self._pieces():
            operands = [operand[groups, images] for operand in self.operands]
            x, y = self.x[groups, images], self.y[groups, images]
            if is_forward:
                signals, result = self._transform(x, x_runs, 2), self._spectra(3, _leading(y))
                self._multiply((w, 1, 2), (signals, 1, 2), (result, 2, 1))
                self._finish(result, y, operands, y_runs)
            else:
                signals, result = self._transform(y, y_runs, 3), self._spectra(2, _leading(x))
                self._multiply((w, 2, 1), (signals, 1, 2), (result, 2, 1))
                self._finish(result, x, operands, x_runs)

    def _filter(self, groups: slice) -> None:
        """The gradient of the filter."""
        w = self.w[groups]
        total = self._spectra(1, _leading(w))
        adds = False
        for images, x_runs, y_runs in self._pieces():
            x = self._transform(self.x[groups, images], x_runs, 2)
            y = self._transform(self.y[groups, images], y_runs, 3)
            self._multiply((y, 2, 1), (x, 2, 1), (total, 1, 2), adds)
            adds = True
        if not adds:
            total.fill(0.0)
        self._finish(
            total, w, [operand[groups] for operand in self.operands], [axis.taps for axis in self.plan.axes]
        )


def _leading(array: AnyArray) -> tuple[int, int, int]:
    a, b, c = array.shape[:3]
    return a, b, c


class Fft(Algorithm):
    """All directions; see the module's text."""

    name = "fft"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.is_integer:
            return "sums of integers are exact: transforms round"
        taps = math.prod(problem.w.shape[2:])
        if taps < FEWEST_TAPS:
            return f"a filter has {taps} taps: with fewer than {FEWEST_TAPS} a transform is never faster"
        if importlib.util.find_spec("scipy") is None:
            return "its transforms are SciPy's, which is not installed: pip install scipy"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(problem, Convolution)
        return FftPlan(problem).places[-1]

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(problem, Convolution)
        return FftPlan(problem).estimate(device)

    def error_bound(self, problem: Problem) -> float:
        """Transforms of length L round like sums of log2 L terms, whatever the number of taps."""
        assert isinstance(problem, Convolution)
        stored, computing = storing_roundoff(problem), UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        depth = math.log2(max(2, FftPlan(problem).circles.positions))
        return (2.0 * stored if stored > computing else 0.0) + computing * (8.0 + 2.0 * depth)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "all results of the transforms that it enters, whole blocks of the image"

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return FftKernel(FftPlan(problem), device, epilogue)
