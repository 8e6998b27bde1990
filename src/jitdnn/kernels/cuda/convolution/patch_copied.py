"""Convolutions whose filter is as large as its stride, with patches that are copied to the rows of a matrix first.

Each element of x is in one patch, so the copy is as large as x, and runs at the speed of memory. A convolution of one
tap, a matrix product, follows, whose channels are all elements of a patch in the order of the filter: by any algorithm,
also f32 by products of halves. `patch`, in contrast, needs a layout of x in which the channels follow the taps of an
axis.

Floors on an H200, f32: 64x3x224x224 -> 768 in 16x16 patches, 14.8 GFLOP: 18 us by bytes, 18 more for the copy, and 44
to 60 us of products of halves.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, PlannedKernel
from jitdnn.kernels.cuda.convolution.by_others import ByOthers
from jitdnn.kernels.cuda.convolution.half_precision.copied import SAME, Copied, room_of
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides

_MOST_AXES = 8


class _Steps(NamedTuple):
    """`patches` and `rows` are the same elements, of x and of the copy; `product` reads or writes the copy."""

    patches: TensorDescriptor
    rows: TensorDescriptor
    product: Convolution


class PatchCopied(ByOthers):
    """Patches without overlap in all directions: copied to the rows of a matrix, and a convolution of one tap."""

    name = "patch_copied"
    has_exact_products = False

    def __init__(self, elementwise: ElementwiseGenerator, *others: Algorithm) -> None:
        """`others`: what may run the product."""
        super().__init__(*others)
        self._elementwise = elementwise

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer or problem.dtype == "f64":
            return f"it multiplies reals of 16 and 32 bits, not {problem.x.dtype}: direct takes every type"
        if epilogue is not None and problem.direction != "fwd":
            return "a gradient takes no epilogue here: apply it to the result"
        steps = _steps(problem)
        if isinstance(steps, str):
            return steps
        if self._inner(steps.product, device, epilogue) is None:
            return f"no algorithm takes {steps.product}"
        return None

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        steps = _steps(problem)
        assert not isinstance(steps, str)
        inner = self._inner(steps.product, device, epilogue)
        assert inner is not None
        is_data = problem.direction == "bwd_data"
        tensors = [steps.rows, steps.patches] if is_data else [steps.patches, steps.rows]
        room = room_of(steps.rows)
        seconds = inner.estimate(steps.product, device, epilogue)
        seconds += self._elementwise.estimate(SAME, tensors, device)

        def build() -> Kernel:
            copy = self._elementwise.build(SAME, tensors, device, computing=compute_dtype(problem.dtype))
            product = inner.build(steps.product, device, epilogue)
            if is_data:
                return Copied(None, product, copy, (0, room))
            return Copied(copy, product, None, (room, 0))

        return PlannedKernel(room + inner.workspace(steps.product, device, epilogue), seconds, build)

    def error_of(self, problem: Convolution) -> float:
        steps = _steps(problem)
        assert not isinstance(steps, str)
        return max(other.error_bound(steps.product) for other in self._of_math(steps.product))


@lru_cache(1024)
def _steps(problem: Convolution) -> _Steps | str:
    """Copy and product, or why there are none."""
    if problem.groups != 1 or 0 in problem.x.shape or 0 in problem.y.shape:
        return (
            "it takes one group of channels, and tensors that are not empty: grouped or direct takes others"
        )
    taps, rank = problem.filter_spatial, len(problem.spatial)
    if problem.mode != "cross_correlation" or prod(taps) == 1:
        return "it takes filters of several taps that are not flipped: direct takes any"
    is_patch = taps == problem.stride and all(pair == (0, 0) for pair in problem.padding)
    if not is_patch or max(problem.dilation) > 1:
        return "filter and stride must be equal, without padding or dilation: implicit_gemm takes any"
    if problem.direction == "bwd_data" and any(n % t for n, t in zip(problem.spatial, taps, strict=True)):
        return "what no patch holds must become zero: direct takes such images"
    if 2 + 2 * rank > _MOST_AXES:
        return f"it takes up to {_MOST_AXES} axes of patches"
    x, w, out = problem.x, problem.w, problem.output_spatial
    # channels and taps as the filter has them: (extent, step in w, step in x), the innermost last
    inner = zip(w.shape[1:], w.strides[1:], (x.strides[1], *x.strides[2:]), strict=True)
    held = sorted((one for one in inner if one[0] > 1), key=lambda one: -one[1])
    step, length = held[-1][1], 1
    for extent, own, _ in reversed(held):
        if own != step * length:
            return "channels and taps of the filter must be one run of memory: pack it"
        length *= extent
    outer = [(x.shape[0], x.strides[0])]
    outer += [(o, t * s) for o, t, s in zip(out, taps, x.strides[2:], strict=True)]
    shape = (*(n for n, _ in outer), *(n for n, _, _ in held))
    patches = TensorDescriptor(shape, (*(s for _, s in outer), *(s for _, _, s in held)), x.dtype, x.offset)
    rows = TensorDescriptor(shape, packed_strides(shape), x.dtype)
    image = (x.shape[0], *out, length)
    n_step, *space, one = packed_strides(image)
    product = replace(
        problem,
        x=TensorDescriptor((image[0], length, *out), (n_step, one, *space), x.dtype),
        w=TensorDescriptor(
            (w.shape[0], length, *(1,) * rank), (w.strides[0], step, *(1,) * rank), w.dtype, w.offset
        ),
        stride=(1,) * rank,
    )
    return _Steps(patches, rows, product)
