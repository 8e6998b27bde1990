"""The gate before the clock: how far a result is from the float64 reference, on a slice where all would take
long.

A convolution separates: an element of y needs one image, the channels of one group and one filter, and the
other directions likewise. So the exact result of some images and channels costs a small share of the whole.
They are spread over the whole range, the first and the last always among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.kernels.reference import rounded
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem, Reals
from jitdnn.tensor import TensorDescriptor, numpy_dtype

FloatArray = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.intp]

#: Operations of the reference that one slice may cost; it runs at about a thousandth of a kernel's speed.
REFERENCE_FLOPS = 1 << 26


@dataclass(frozen=True, slots=True)
class _Slice:
    """A part of the inputs as a problem of its own, and where its result belongs in the whole output."""

    problem: Convolution
    inputs: tuple[tuple[Indices, Indices], ...]  # rows and columns of the first two axes of each input
    output: tuple[Indices, Indices]


class Gate:
    """The expected result of a problem on given inputs (arrays of the logical shapes), or of slices of it."""

    def __init__(self, problem: Problem, inputs: Sequence[FloatArray]) -> None:
        self._expected: list[tuple[tuple[Any, ...], Reals]] = []
        if isinstance(problem, Convolution) and problem.flops > REFERENCE_FLOPS:
            for part in _slices(problem):
                taken = (array[np.ix_(*at)] for array, at in zip(inputs, part.inputs, strict=True))
                self._expect(np.ix_(*part.output), problem, part.problem.reference(*taken))
        else:
            self._expect((...,), problem, problem.reference(*inputs))

    def _expect(self, at: tuple[Any, ...], problem: Problem, exact: Reals) -> None:
        """A part of the result; of integers as they are stored, rounded and saturated."""
        dtype = numpy_dtype(problem.output.dtype)
        self._expected.append((at, rounded(exact, dtype).astype(np.float64) if dtype.kind in "iu" else exact))

    def error(self, output: FloatArray) -> float:
        """`||output - reference|| / ||reference||` over the slices; infinite if any element is not finite,
        in the slices or not, as an element that was never written is."""
        if not np.isfinite(output).all():
            return math.inf
        difference = sum(float(np.sum((output[at] - exact) ** 2)) for at, exact in self._expected)
        norm = sum(float(np.sum(exact**2)) for _, exact in self._expected)
        if norm == 0.0:
            return 0.0 if difference == 0.0 else math.inf
        return math.sqrt(difference / norm)


def _spread(extent: int, wanted: int) -> Indices:
    """At most `wanted` (at least 1) numbers below `extent`, evenly spread, the first and the last
    included."""
    return np.unique(np.linspace(0, extent - 1, max(1, min(wanted, extent))).round().astype(np.intp))


def _slices(problem: Convolution) -> list[_Slice]:
    """One slice of the first group and one of the last, within the budget together."""
    c, k = problem.c // problem.groups, problem.k // problem.groups
    budget = REFERENCE_FLOPS // (
        2 * 2 * math.prod(problem.output_spatial) * math.prod(problem.filter_spatial)
    )
    all_images = np.arange(problem.n)
    if problem.direction == "bwd_filter":
        images = all_images
        channels = _spread(c, math.isqrt(max(1, budget // problem.n)))
        filters = _spread(k, max(1, budget // problem.n) // len(channels))
    elif problem.direction == "fwd":
        channels = np.arange(c)
        images = _spread(problem.n, 2)
        filters = _spread(k, budget // (len(images) * c))
    else:
        filters = np.arange(k)
        images = _spread(problem.n, 2)
        channels = _spread(c, budget // (len(images) * k))
    parts = []
    for group in sorted({0, problem.groups - 1}):
        x, w, y = (
            (images, group * c + channels),
            (group * k + filters, channels),
            (images, group * k + filters),
        )
        part = replace(
            problem,
            x=_packed(problem.x, x),
            w=_packed(problem.w, w),
            y=_packed(problem.y, y),
            groups=1,
        )
        taken = {"fwd": (x, w, y), "bwd_data": (y, w, x), "bwd_filter": (x, y, w)}[problem.direction]
        parts.append(_Slice(part, taken[:-1], taken[-1]))
    return parts


def _packed(tensor: TensorDescriptor, taken: tuple[Indices, Indices]) -> TensorDescriptor:
    return TensorDescriptor.packed((len(taken[0]), len(taken[1]), *tensor.shape[2:]), tensor.dtype)
