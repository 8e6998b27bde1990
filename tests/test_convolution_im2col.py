"""im2col and the reference through raw pointers: poisoned outputs, guarded workspaces, odd strides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.kernels.algorithm import Algorithm, Epilogue
from jitdnn.kernels.cpu.convolution_im2col import FILTER_DEPTH, Im2col
from jitdnn.kernels.reference import Reference
from jitdnn.kernels.tables import algorithms
from jitdnn.problems.convolution import BiasGradient, Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor, numpy_dtype

CANARY = 173


@dataclass(frozen=True)
class Machine:
    """A device of round numbers: 100 GFLOP/s and 10 GB/s."""

    target: str = "cpu"
    name: str = "test machine"
    threads: int = 2
    bandwidth: float = 1e10

    def peak_flops(self, dtype: str) -> float:
        return 1e11 if dtype == "f32" else 5e10


DEVICE = Machine()


class Buffer:
    """Memory for a descriptor, NaN everywhere: what is not written and what must not be read both show."""

    def __init__(self, descriptor: TensorDescriptor) -> None:
        self.descriptor = descriptor
        low, high = descriptor.span() if descriptor.size else (0, 0)
        self.memory = np.full(high - low + 1, np.nan, numpy_dtype(descriptor.dtype))
        itemsize = self.memory.itemsize
        self.pointer = self.memory.ctypes.data - low * itemsize
        self.array = np.lib.stride_tricks.as_strided(
            self.memory[-low:] if low else self.memory,
            descriptor.shape,
            [stride * itemsize for stride in descriptor.strides],
        )

    def is_poison_kept(self) -> bool:
        """Whether nothing was written between the elements of the descriptor."""
        outside = np.ones(len(self.memory), bool)
        inside = np.lib.stride_tricks.as_strided(
            outside[-self.descriptor.span()[0] :] if self.descriptor.size else outside[:0],
            self.descriptor.shape,
            self.descriptor.strides,
        )
        inside[...] = False
        return bool(np.isnan(self.memory[outside]).all())


def run(
    algorithm: Algorithm,
    problem: Problem,
    alpha: float = 1.0,
    beta: float = 0.0,
    epilogue: Epilogue | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Run on random data; return the output, the float64 result, and the size of what was summed."""
    random = np.random.default_rng(seed)
    operands = [operand.descriptor for operand in problem.operands]
    buffers = [Buffer(d) for d in (*operands, *(epilogue.operands if epilogue else ()))]
    output = buffers[len(operands) - 1]
    for buffer in buffers:
        if buffer is not output or beta != 0.0:
            buffer.array[...] = random.standard_normal(buffer.array.shape)
    inputs = [buffer.array.astype(np.float64) for buffer in buffers[: len(operands) - 1]]
    expected = problem.reference(*inputs)
    size = float(np.linalg.norm(problem.reference(*map(np.abs, inputs))))
    if epilogue is not None:
        fused = [buffer.array.astype(np.float64) for buffer in buffers[len(operands) :]]
        expected = epilogue.expression.evaluate(expected, *fused)
    expected = alpha * expected
    if beta != 0.0:
        expected = expected + beta * output.array.astype(np.float64)

    room = algorithm.workspace(problem, DEVICE)
    workspace = np.full(room + 192, CANARY, np.uint8)
    start = -workspace.ctypes.data % 64
    workspace[start : start + room].view(np.float32)[...] = np.nan
    kernel = algorithm.build(problem, DEVICE, epilogue)
    pointer = workspace.ctypes.data + start if room else 0
    kernel(None, [buffer.pointer for buffer in buffers], alpha, beta, pointer)
    assert (workspace[:start] == CANARY).all()
    assert (workspace[start + room :] == CANARY).all()
    assert output.is_poison_kept()
    return output.array, expected, abs(alpha) * size + float(np.linalg.norm(expected))


def check(algorithm: Algorithm, problem: Problem, **options: object) -> None:
    actual, expected, size = run(algorithm, problem, **options)
    assert np.isfinite(actual).all()
    assert np.linalg.norm(actual.astype(np.float64) - expected) <= algorithm.error_bound(problem) * size


@st.composite
def descriptors(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, is_output: bool) -> TensorDescriptor:
    """Any permutation of the axes in memory, with gaps, reversed axes, and for inputs repeated ones."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        sign = draw(st.sampled_from((1, 1, 1, -1)))
        repeated = not is_output and draw(st.integers(0, 11)) == 0
        strides[axis] = 0 if repeated else sign * step
        step *= max(1, shape[axis]) + draw(st.sampled_from((0, 0, 0, 1, 3)))
    return TensorDescriptor(shape, tuple(strides), dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    direction = draw(st.sampled_from(("fwd", "bwd_data", "bwd_filter")))
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    c, k = (groups * draw(st.integers(1, 4)) for _ in range(2))
    n = draw(st.sampled_from((0, 1, 2, 5)))
    taps = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank))
    spatial = tuple(
        max(1, d * (t - 1) + 1 - sum(p)) + draw(st.integers(0, 6))
        for d, t, p in zip(dilation, taps, padding, strict=True)
    )
    dtype = draw(st.sampled_from(("f32", "f64")))
    mode = draw(st.sampled_from(("cross_correlation", "convolution")))
    plain = Convolution.make(
        direction, (n, c, *spatial), (k, c // groups, *taps), stride, padding, dilation, groups, mode, dtype,
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )  # fmt: skip
    if draw(st.booleans()):
        return plain
    tensors = {}
    for field in "xwy":
        shape = getattr(plain, field).shape
        tensors[field] = draw(descriptors(shape, dtype, getattr(plain, field) == plain.output))
    return Convolution(
        direction,
        tensors["x"],
        tensors["w"],
        tensors["y"],
        plain.stride,
        plain.padding,
        plain.dilation,
        groups,
        mode,
    )


SCALES = st.sampled_from(((1.0, 0.0), (2.5, 0.0), (1.0, 1.0), (-0.5, 0.25), (0.0, 1.0)))


@settings(max_examples=150, deadline=None)
@given(convolutions(), SCALES, st.booleans())
def test_im2col_is_the_definition(problem: Convolution, scales: tuple[float, float], is_fused: bool) -> None:
    epilogue = None
    if is_fused:
        shape = problem.output.shape
        bias = TensorDescriptor(shape, (0, 1) + (0,) * (len(shape) - 2), problem.dtype)
        residual = TensorDescriptor.packed(shape, problem.dtype)
        epilogue = Epilogue(trace(lambda a, b, r: apply("maximum", a + b, 0.0) + r), (bias, residual))
    check(Im2col(), problem, alpha=scales[0], beta=scales[1], epilogue=epilogue)


@settings(max_examples=40, deadline=None)
@given(convolutions(), SCALES, st.booleans())
def test_reference_algorithm_is_the_definition(
    problem: Convolution, scales: tuple[float, float], is_fused: bool
) -> None:
    epilogue = Epilogue(trace(lambda a: apply("maximum", a, -0.5))) if is_fused else None
    check(Reference(), problem, alpha=scales[0], beta=scales[1], epilogue=epilogue)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("n", [1, 3, 21, 22, 43])
def test_filter_gradient_sums_over_parts_of_the_batch(n: int, layout: str) -> None:
    problem = Convolution.make("bwd_filter", (n, 6, 7, 7), (4, 6, 3, 3), padding=1, layout=layout)
    assert (n * 49 > FILTER_DEPTH) == (n >= 21), "the batch is on the intended side of the limit"
    check(Im2col(), problem, alpha=0.5, beta=2.0)
    check(Im2col(), problem)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_depthwise(direction: str) -> None:
    check(Im2col(), Convolution.make(direction, (2, 65, 9, 8), (65, 1, 3, 3), padding=1, groups=65))


def test_pointwise_needs_no_columns() -> None:
    pointwise = Convolution.make("fwd", (2, 64, 30, 30), (8, 64, 1, 1))
    same_work = Convolution.make("fwd", (2, 64, 30, 30), (8, 64, 1, 1), padding=1)
    columns = 64 * 30 * 30 * 4
    assert Im2col().workspace(pointwise, DEVICE) < columns < Im2col().workspace(same_work, DEVICE)
    check(Im2col(), pointwise)


def test_workspace_is_that_of_one_image() -> None:
    sizes = {
        n: Im2col().workspace(Convolution.make("fwd", (n, 8, 20, 20), (4, 8, 3, 3)), DEVICE)
        for n in (1, 2, 64)
    }
    assert sizes[1] == sizes[2] == sizes[64]
    assert sizes[1] >= 8 * 9 * 18 * 18 * 4


def test_every_problem_has_the_reference_last() -> None:
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        found = algorithms(Convolution.make(direction, (1, 1, 3, 3), (1, 1, 2, 2)), "cpu")
        assert found[-1].name == "reference"
        assert len({algorithm.name for algorithm in found}) == len(found)
    bias = BiasGradient.make((2, 3, 4, 4))
    assert algorithms(bias, "a target nobody wrote for")[-1].name == "reference"
    check(Reference(), bias, beta=1.0)


def test_estimates_grow_with_the_work() -> None:
    small = Convolution.make("fwd", (1, 16, 20, 20), (16, 16, 3, 3))
    large = Convolution.make("fwd", (8, 16, 20, 20), (16, 16, 3, 3))
    for algorithm in (Im2col(), Reference()):
        assert 0 < algorithm.estimate(small, DEVICE) < algorithm.estimate(large, DEVICE)
    assert Im2col().estimate(small, DEVICE) < Reference().estimate(small, DEVICE)
