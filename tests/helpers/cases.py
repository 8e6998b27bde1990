"""A problem in memory that shows misuse: inputs between guards, what is expected, and how it is compared.

Nothing here runs a kernel or needs a compiler: it serves the checks of every target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, terms
from jitdnn.kernels.reference import rounded
from jitdnn.problems import (
    LRN,
    Activation,
    AddTensor,
    Attention,
    BiasGradient,
    Convolution,
    CrossEntropy,
    CtcLoss,
    DivisiveNorm,
    FusedConvolution,
    MatMul,
    Pooling,
    PRelu,
    Problem,
    Reduce,
    Softmax,
)
from jitdnn.problems.normalization import Normalization
from jitdnn.problems.problem import Operand
from jitdnn.tensor import FLOAT8_LARGEST, TensorDescriptor, numpy_dtype, packed_strides

AnyArray = np.ndarray[Any, Any]

GATED = ("swish", "gelu", "gelu_tanh", "mish", "hard_swish")  # functions x g(x)
GUARD = 1031  # elements before and after a tensor; odd, so that tensors are not aligned to vectors
CANARY = 0xA5
BEHIND = (
    1 << 16
)  # bytes of canary behind a workspace: what is cut otherwise than planned needs another input tile
SCALES = ((1.0, 0.0), (-0.7, 0.3))  # numbers that no format of these holds exactly


class Buffer:
    """The memory of one tensor: NaN wherever nothing was put, guards on both sides."""

    def __init__(self, descriptor: TensorDescriptor) -> None:
        self.descriptor = descriptor
        low, high = descriptor.span()
        dtype = numpy_dtype(descriptor.dtype)
        self.memory = np.full(GUARD + (high - low + 1) + GUARD, poison(dtype), dtype)
        self.values = _strided(self.memory, GUARD - low, descriptor)
        self.pointer = self.memory.ctypes.data + (GUARD - low) * dtype.itemsize
        outside = np.ones(self.memory.shape, bool)
        _strided(outside, GUARD - low, descriptor)[...] = False
        self._outside = outside

    def outside(self) -> AnyArray:
        """The bits of all memory that is no element of the tensor."""
        return self.bits()[self._outside]

    def bits(self) -> AnyArray:
        """The memory as integers: NaN equals itself, -0.0 is not 0.0."""
        return self.memory.view(f"u{self.memory.itemsize}").copy()


def poison(dtype: np.dtype[Any]) -> Any:
    """NaN, or an integer that is none of a sensible kernel's."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max - 3 if dtype.kind in "iu" else np.nan


def _strided(memory: AnyArray, start: int, descriptor: TensorDescriptor) -> AnyArray:
    strides = [stride * memory.itemsize for stride in descriptor.strides]
    # as integers: NumPy has no type string of some reals
    bits = memory[start:].view(f"u{memory.itemsize}")
    return np.lib.stride_tricks.as_strided(bits, descriptor.shape, strides).view(memory.dtype)


class Workspace:
    """`size` bytes at a multiple of 64, all NaN, with a canary on both sides, the longer one behind."""

    def __init__(self, size: int) -> None:
        self.memory = np.full(size + 128 + BEHIND, CANARY, np.uint8)
        self.start = 64 + -self.memory.ctypes.data % 64
        self.end = self.start + size
        self.memory[self.start : self.end] = 0xFF  # a NaN of either type
        self.pointer = self.memory.ctypes.data + self.start if size else 0

    def is_canary_alive(self) -> bool:
        return bool((self.memory[: self.start] == CANARY).all() and (self.memory[self.end :] == CANARY).all())


@dataclass
class Case:
    """A problem with its inputs in place, and what they should lead to; one entry for each output."""

    problem: Problem
    epilogue: Epilogue | None
    inputs: list[Buffer]
    operands: list[Buffer]
    previous: list[AnyArray]  # what is in the outputs where beta is not 0; states hold it always
    results: list[AnyArray]  # the reference, epilogue included
    scales: list[float]  # the norms that errors are relative to

    def expected(self, number: int, alpha: float, beta: float) -> AnyArray:
        if self.problem.outputs[number].role in ("saved", "state"):
            return self.results[number]
        scaled = alpha * self.results[number]
        return scaled if beta == 0 else scaled + beta * self.previous[number].astype(np.float64)


def make_case(
    problem: Problem,
    epilogue: Epilogue | None = None,
    seed: int = 0,
    given: Sequence[AnyArray] | None = None,
) -> Case:
    """Random inputs for a problem, or those that are given, one for each of its sources.

    Memory that several indices share has one value for them.
    """
    rng = np.random.default_rng(seed)
    inputs = [Buffer(operand.descriptor) for operand in problem.inputs]
    operands = [Buffer(descriptor) for descriptor in (epilogue.operands if epilogue else ())]
    for buffer in operands:
        buffer.values[...] = rng.standard_normal(buffer.values.shape)
    values = [random_values(rng, operand) for operand in problem.sources] if given is None else list(given)
    for buffer, array in zip(inputs, values, strict=False):
        buffer.values[...] = array
    if given is None:
        _make_consistent(problem, inputs)
    states = [
        np.asarray(array).astype(numpy_dtype(operand.descriptor.dtype))
        for operand, array in zip(problem.sources[len(inputs) :], values[len(inputs) :], strict=True)
    ]
    wide = [buffer.values.astype(np.float64) for buffer in inputs] + [s.astype(np.float64) for s in states]
    found = problem.reference(*wide)
    results = [found] if len(problem.outputs) == 1 else [np.asarray(result) for result in found]
    scales = [norm(result[np.isfinite(result)]) for result in results]
    is_sum = isinstance(problem, Reduce) and problem.op in ("add", "avg")
    if is_sum or isinstance(problem, Convolution | BiasGradient | MatMul | AddTensor):
        # what terms of random signs add up to: a sum that happens to cancel is not held against the kernel
        scales[0] = max(scales[0], float(np.sqrt(problem.reference(*(a * a for a in wide)).sum())))
        if any(operand.descriptor.is_overlapping() for operand in problem.inputs):
            # equal terms round alike: their errors add up, where those of others partly cancel
            scales[0] *= np.sqrt(terms(problem))
    if isinstance(problem, FusedConvolution):
        z = problem.prologue(wide[0], *wide[2:]) if problem.has_prologue else wide[0]
        scales[0] = max(
            scales[0], float(np.sqrt(problem.convolution.reference(z * z, wide[1] * wide[1]).sum()))
        )
        if problem.has_sums:  # what terms of random signs add up to
            scales[1] = max(scales[1], float(np.sqrt(results[2].sum())))
    if isinstance(problem, Softmax) and problem.direction == "bwd":
        # a dy that is constant along the axis cancels to nothing
        scales[0] = max(scales[0], norm(wide[0] * wide[1]))
    if isinstance(problem, Activation) and problem.direction == "bwd" and problem.function in GATED:
        # the slope of x g(x) is g(x) + x g'(x), and at one place left of 0 the two cancel: what counts is g(x)
        x = np.where(wide[1] == 0, 1.0, wide[1])
        with np.errstate(all="ignore"):
            terms_ = wide[0] * (problem.definition.forward(x) / x)
        scales[0] = max(scales[0], norm(terms_[np.isfinite(terms_)]))
    if isinstance(problem, PRelu) and problem.direction == "bwd":
        # the terms of dweight, which may cancel
        scales[1] = max(scales[1], norm(wide[0] * np.minimum(wide[1], 0.0)))
    if isinstance(problem, Attention) and problem.direction == "fwd" and problem.lse is not None:
        # a logarithm near 0 has the error of what it is taken of
        scales[1] = max(scales[1], float(np.sqrt(results[1].size)))
    if isinstance(problem, Attention) and problem.direction == "bwd":
        # dy . v and delta may cancel: their errors are those of the terms
        without = problem.reference(*wide[:4], np.zeros_like(wide[4]), *wide[5:])
        scales = [max(scale, norm(result)) for scale, result in zip(scales, without, strict=True)]
    if isinstance(problem, CrossEntropy) and problem.direction == "fwd":
        # the logarithm of the sum and x itself may cancel: of a single class nothing is left
        scales[0] = max(scales[0], norm(wide[0]) / max(1, problem.x.size // max(1, results[0].size)))
    if isinstance(problem, CrossEntropy) and problem.direction == "fwd" and problem.lse is not None:
        scales[1] = max(scales[1], float(np.sqrt(results[1].size)))
    if isinstance(problem, CrossEntropy) and problem.direction == "bwd":
        # probability and target may be equal, and all that is left are roundings: what counts is the target's term
        names = [operand.name for operand in problem.sources]
        nowhere = [np.full_like(a, np.inf) if n == "lse" else a for n, a in zip(names, wide, strict=True)]
        term = np.asarray(problem.reference(*nowhere))
        scales[0] = max(scales[0], norm(term[np.isfinite(term)]))
    if isinstance(problem, CtcLoss) and problem.direction == "bwd":
        # what is likely anyway and what is said may be equal: both are at most 1
        share = problem.x.shape[1] * problem.longest if problem.reduction == "mean" else 1
        scales[0] = max(scales[0], norm(wide[0]) / max(1, share))
    if isinstance(problem, Normalization):
        scales[0] = max(scales[0], _size_of_terms(problem, wide))
    if isinstance(problem, LRN | DivisiveNorm) and problem.direction == "bwd":
        # the two terms of the gradient may cancel: what counts is the larger one
        without = {"dmeans": None} if isinstance(problem, DivisiveNorm) else {}
        forward = replace(problem, direction="fwd", dx=None, dy=None, **without)  # type: ignore[arg-type]
        powers = forward.reference(*wide[1:]) / np.where(wide[1] == 0, 1.0, wide[1])
        scales = [max(scale, norm(wide[0] * powers)) for scale in scales]
    if epilogue is not None:
        fused = [buffer.values.astype(np.float64) for buffer in operands]
        results[0] = np.asarray(epilogue.expression.evaluate(results[0], *fused))
        scales[0] += sum(norm(array) for array in fused)
    previous, remaining = [], iter(states)
    for operand in problem.outputs:
        is_state = operand.role == "state"
        previous.append(next(remaining) if is_state else random_values(rng, operand))
    return Case(problem, epilogue, inputs, operands, previous, results, scales)


def _size_of_terms(problem: Normalization, wide: Sequence[AnyArray]) -> float:
    """The norm of the terms of y, or dx, that cancel each other where a row is constant."""
    given = {operand.name: a for operand, a in zip(problem.sources, wide, strict=True)}
    arrays = {name: a.reshape(problem.extents(name)) for name, a in given.items()}
    term = arrays["dy" if problem.direction == "bwd" else "x"] * arrays.get("weight", 1.0)
    variance = arrays.get("running_var") if problem.direction == "inference" else None
    if variance is None:
        variance = arrays["x"].var(axis=problem.rows, keepdims=True)
    return norm(term * arrays.get("rstd", 1 / np.sqrt(variance + problem.epsilon)))


def random_values(rng: np.random.Generator, operand: Operand) -> AnyArray:
    """Values for an operand: normal reals, integers from all that it may hold."""
    dtype, shape = numpy_dtype(operand.descriptor.dtype), operand.descriptor.shape
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)  # f64, in which results are expected, holds whole numbers up to 2^53
        low, high = operand.values or (max(limits.min, -(2**53)), min(limits.max, 2**53))
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    return rng.standard_normal(shape).astype(dtype)


def _make_consistent(problem: Problem, inputs: list[Buffer]) -> None:
    """A y that is an input must be the y of an x; the maximum shall meet ties."""
    if isinstance(problem, Pooling) and problem.mode == "max":
        x = inputs[0 if problem.direction == "fwd" else 1]
        x.values[...] = np.round(x.values * 2) / 2
        if problem.direction == "bwd":
            forward = Pooling(
                "fwd", "max", problem.x, TensorDescriptor.packed(problem.y.shape, problem.dtype),
                problem.window, problem.stride, problem.padding, rounding=problem.rounding, dilation=problem.dilation,
            )  # fmt: skip
            with np.errstate(over="ignore"):  # the maximum of a window that lies in the padding
                inputs[2].values[...] = forward.reference(x.values)
    elif isinstance(problem, Reduce) and problem.op.startswith("mul"):
        inputs[0].values[...] = 1 + inputs[0].values / 64  # the product of many normal numbers is 0
    elif isinstance(problem, Softmax) and problem.direction == "bwd":
        forward_ = Softmax.make("fwd", problem.y.shape, problem.axis, problem.algorithm)
        inputs[1].values[...] = forward_.reference(inputs[1].values)
    elif isinstance(problem, Activation):
        inputs[-1].values[...] *= 4
        if problem.saved == "y":
            plain = Activation.make("fwd", problem.function, problem.y.shape)
            inputs[-1].values[...] = plain.reference(inputs[-1].values)


def compare(actual: Sequence[AnyArray], case: Case, alpha: float, beta: float, bound: float) -> None:
    """The relative errors of all outputs are within `bound`, beside the rounding of the scaling itself."""
    for number, operand in enumerate(case.problem.outputs):
        try:
            _compare_one(actual[number], case, number, alpha, beta, bound)
        except AssertionError as error:
            raise AssertionError(f"{operand.name}: {error}") from error


def _compare_one(actual: AnyArray, case: Case, number: int, alpha: float, beta: float, bound: float) -> None:
    expected = case.expected(number, alpha, beta)
    whole = rounded(expected, actual.dtype)
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, whole)
        return
    most = FLOAT8_LARGEST.get(case.problem.outputs[number].descriptor.dtype)
    if most is not None:  # beyond which results are cut
        expected = np.clip(expected, -most, most)
    is_number = np.isfinite(whole.astype(np.float64))
    np.testing.assert_array_equal(actual[~is_number].astype(np.float64), whole[~is_number].astype(np.float64))
    assert np.isfinite(actual[is_number].astype(np.float64)).all(), (
        "left elements unwritten, or read what it should not"
    )
    error = norm(actual[is_number].astype(np.float64) - expected[is_number])
    allowed = bound * case.scales[number]
    dtype = case.problem.outputs[number].descriptor.dtype
    if case.problem.outputs[number].role not in ("saved", "state"):
        allowed *= abs(alpha)
        if (alpha, beta) != (1.0, 0.0):
            sizes = abs(alpha) * norm(case.results[number][is_number])
            sizes += abs(beta) * norm(case.previous[number].astype(np.float64))
            allowed += 2 * UNIT_ROUNDOFF[dtype] * sizes
    assert error <= allowed, f"error {error:.3g} exceeds {allowed:.3g} (alpha {alpha}, beta {beta})"


def norm(array: AnyArray) -> float:
    """The Euclidean norm, without the threads of a BLAS."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(array, dtype=np.float64).sum()))


def takers(
    listed: Sequence[Algorithm], problem: Problem, device: Device, epilogue: Epilogue | None = None
) -> Iterator[Algorithm]:
    """Those of the listed algorithms that take a problem; those that do not must say why."""
    for algorithm in listed:
        reason = algorithm.refuse(problem, device, epilogue)
        if reason is None:
            yield algorithm
        else:
            assert reason.strip(), f"{algorithm.name} refuses {problem} without a reason"


# orders in memory that a library meets: each makes strides for a shape; the last two only for inputs


def _gaps(shape: Sequence[int]) -> tuple[int, ...]:
    """A sub-region of a larger array."""
    return packed_strides([extent + 1 + axis % 2 for axis, extent in enumerate(shape)])


def _backwards(shape: Sequence[int]) -> tuple[int, ...]:
    """Every axis reversed."""
    return tuple(-stride for stride in packed_strides(shape))


def _turned(shape: Sequence[int]) -> tuple[int, ...]:
    """The first axis innermost, every second element of it, as a column-major array is sliced."""
    return tuple(2 * stride for stride in packed_strides(shape, tuple(range(len(shape)))[::-1]))


def _repeated(shape: Sequence[int]) -> tuple[int, ...]:
    """The same values along every second axis."""
    return tuple(stride * (axis % 2) for axis, stride in enumerate(packed_strides(shape)))


def _overlapping(shape: Sequence[int]) -> tuple[int, ...]:
    """Neighbours of one axis are neighbours of the next, as in a view of sliding windows."""
    return tuple(len(shape) - axis for axis in range(len(shape)))


ARRANGEMENTS = {
    "gaps": _gaps,
    "backwards": _backwards,
    "turned": _turned,
    "repeated": _repeated,
    "overlapping": _overlapping,
}


def arranged(problem: Problem, arrangement: str) -> Problem:
    """The problem with all its tensors in that order; outputs of an order for inputs only have gaps."""
    is_shared = arrangement in ("repeated", "overlapping")
    outputs = [operand.descriptor for operand in problem.outputs]

    def change(tensor: TensorDescriptor) -> TensorDescriptor:
        order = "gaps" if is_shared and tensor in outputs else arrangement
        return TensorDescriptor(tensor.shape, ARRANGEMENTS[order](tensor.shape), tensor.dtype)

    return _with_tensors(problem, change)


def packed(problem: Problem) -> Problem:
    """The problem with all its tensors packed."""
    return _with_tensors(problem, lambda tensor: TensorDescriptor.packed(tensor.shape, tensor.dtype))


def _with_tensors(problem: Problem, change: Callable[[TensorDescriptor], TensorDescriptor]) -> Problem:
    tensors = {field.name: getattr(problem, field.name) for field in fields(problem)}  # type: ignore[arg-type]
    changed = {name: change(value) for name, value in tensors.items() if isinstance(value, TensorDescriptor)}
    return replace(problem, **changed)  # type: ignore[type-var]
