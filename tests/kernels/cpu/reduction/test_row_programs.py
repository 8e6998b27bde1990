"""Programs over rows: every reduction, layout and type against NumPy, in memory that shows misuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from conformance import INSTRUCTION_SETS, Buffer, Workspace
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidShape
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.reduction.generator import RowKernel
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor, compute_dtype
from strategies import descriptors

ALL = ("add", "multiply", "max", "min", "first")
PLAIN = trace(lambda x: x)
FOLDS: dict[str, Any] = {
    "add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def loop_reductions(name: str) -> Program:
    return Program((Pass(((name, PLAIN),)),), ((0, 0),))


# deviations from the mean, scaled: a first pass with a pivot, two row values, all of it written
STANDARDIZE = Program(
    (
        Pass(reductions=(("first", PLAIN),)),
        Pass(
            reductions=(
                ("add", trace(lambda x, g, n, eps, p: x - p)),
                ("add", trace(lambda x, g, n, eps, p: (x - p) * (x - p))),
            ),
            scalars=(
                trace(lambda n, eps, p, s, q: p + s * n),
                trace(lambda n, eps, p, s, q, m: 1.0 / apply("sqrt", q * n - (s * n) * (s * n) + eps)),
            ),
        ),
        Pass(writes=((0, trace(lambda x, g, n, eps, p, s, q, m, r: (x - m) * r * g)),)),
    ),
    row_outputs=((1, 5), (2, 6)),
    parameters=(0.0, 1e-3),
)
SOFTMAX = Program(
    (
        Pass((("max", PLAIN),)),
        Pass(
            (("add", trace(lambda x, e, m: e)),),
            (trace(lambda m, s: 1.0 / s),),
            keeps=(trace(lambda x, m: apply("exp", x - m)),),
        ),
        Pass(writes=((0, trace(lambda x, e, m, s, r: e * r)),)),
    )
)


def run(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    inputs: Sequence[Any],
    axes: Sequence[int],
    threads: int = 1,
    cpu: str = "host",
    alpha: float = 1.0,
    beta: float = 0.0,
    old: float = 0.0,
    **options: Any,
) -> list[np.ndarray[Any, Any]]:
    """The outputs; asserts that nothing else is written and that what is not read may be NaN."""
    device = host(threads, cpu)
    pointers = options.pop("pointers", None)
    planned = RowKernel(Step(program, tuple(tensors), tuple(axes), **options), device, pointers)
    kernel = planned.build()
    assert 0 < planned.estimate() < 10
    workspace = Workspace(planned.workspace())
    buffers = [Buffer(tensor) for tensor in tensors]
    for buffer, values in zip(buffers, inputs, strict=False):
        buffer.values[...] = values
    outputs = buffers[len(inputs) :]
    for buffer in outputs:
        if beta != 0:
            buffer.values[...] = old
    outside = [buffer.outside() for buffer in buffers]
    bits = [buffer.bits() for buffer in buffers[: len(inputs)]]
    kernel(None, [buffer.pointer for buffer in buffers], alpha, beta, workspace.pointer)
    assert workspace.is_canary_alive()
    assert all((b.outside() == o).all() for b, o in zip(buffers, outside, strict=True)), (
        "wrote beside an output"
    )
    assert all((b.bits() == o).all() for b, o in zip(buffers, bits, strict=False)), "wrote to an input"
    return [buffer.values.copy() for buffer in outputs]


def row_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def near(actual: Any, expected: Any, dtype: str, terms: int, sizes: Any = 0.0) -> None:
    """Equal but for the rounding of a sum of so many terms, whose sizes add up to `sizes`."""
    unit, own = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype]
    allowed = 8 * unit * (np.abs(sizes) + np.sqrt(terms) * np.abs(expected)) + 2 * own * np.abs(expected)
    error = np.abs(np.asarray(actual, np.float64) - expected)
    smallest = 6e-8 if dtype == "f16" else 1e-37  # subnormal numbers have few digits
    assert (error <= allowed + smallest).all(), f"error {error.max()}, allowed {allowed.min()}"


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TensorDescriptor], tuple[int, ...], str | None]:
    shape = draw(st.lists(st.sampled_from((1, 2, 3, 5, 8, 16, 17, 33)), min_size=1, max_size=4).map(tuple))
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    dtype = draw(st.sampled_from(("f32", "f32", "f64", "f16", "bf16")))
    return (
        [
            draw(descriptors(shape, dtype)),
            draw(descriptors(shape, dtype, is_output=True)),
            draw(descriptors(row_shape(shape, axes), dtype, is_output=True)),
        ],
        axes,
        draw(st.sampled_from((None, "elements", "rows"))),
    )


@settings(max_examples=examples(40), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(cases(), st.sampled_from(ALL))
def test_any_layout(case: Any, name: str) -> None:
    (x, y, row), axes, vectors_over = case
    buffer = Buffer(x)
    buffer.values[...] = np.random.default_rng(1).uniform(0.5, 1.5, x.shape)
    values = buffer.values.astype(np.float64)
    (actual,) = run(loop_reductions(name), [x, row], [values], axes, vectors_over=vectors_over)
    if name == "first":
        expected = values[tuple(slice(0, 1) if a in axes else slice(None) for a in range(len(x.shape)))]
    else:
        expected = FOLDS[name].reduce(values, axis=axes, keepdims=True)
    with np.errstate(over="ignore"):
        is_number = np.isfinite(expected.astype(actual.dtype))
    near(actual[is_number], expected[is_number], x.dtype, 4 * x.size // max(1, row.size))

    (soft,) = run(SOFTMAX, [x, y], [values], axes, vectors_over=vectors_over, alpha=2.0, beta=-1.0, old=0.5)
    powers = np.exp(values - values.max(axis=axes, keepdims=True))
    wanted = 2 * powers / powers.sum(axis=axes, keepdims=True) - 0.5
    error = np.abs(soft.astype(np.float64) - wanted).max()
    assert error <= 4 * UNIT_ROUNDOFF[x.dtype] + 60 * UNIT_ROUNDOFF[compute_dtype(x.dtype)]


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 70001), (1,)),
    ((70001, 2), (0,)),
    ((7, 40, 333), (0, 2)),
    ((40, 7, 30, 33), (0, 2, 3)),
    ((3, 400, 500), (1,)),
    ((1, 300000), (1,)),
    ((50, 60, 70), (0, 1)),
    ((5000, 3), (1,)),
    ((700, 129), (1,)),
]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_long_rows(shape: tuple[int, ...], axes: tuple[int, ...], order: str) -> None:
    """Rows in parts, and steps of long sums, give the same bits for any number of threads."""
    rng = np.random.default_rng(2)
    values = np.asarray(rng.standard_normal(shape) + 10.0, np.float32)
    gamma = np.asarray(rng.standard_normal(row_shape(shape, range(1, len(shape)))), np.float32)
    strides = np.empty(shape, np.int8, order="F" if order == "F" else "C").strides
    full = TensorDescriptor(shape, tuple(strides), "f32")
    row = TensorDescriptor.packed(row_shape(shape, axes), "f32")
    scale = TensorDescriptor.packed(gamma.shape, "f32")
    count = values.size // row.size
    program = Program(STANDARDIZE.passes, STANDARDIZE.row_outputs, (1.0 / count, 1e-3))
    wide = values.astype(np.float64)
    mean = wide.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(axis=axes, keepdims=True) + 1e-3)
    results = []
    for threads in (1, 2):
        results.append(run(program, [full, scale, full, row, row], [values, gamma], axes, threads))
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()
    y, m, r = results[0]
    np.testing.assert_allclose(m, mean, rtol=1e-6)
    np.testing.assert_allclose(r, inverse, rtol=1e-5)
    np.testing.assert_allclose(y, (wide - mean) * inverse * gamma, atol=1e-4)


@pytest.mark.parametrize("vectors_over", ["elements", "rows"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("shape", [(3, 5), (40, 50), (2, 20011), (4, 1, 3)])
def test_positions(shape: tuple[int, ...], dtype: str, vectors_over: str) -> None:
    """The first of equals, NaN before all, over several axes and from the end."""
    rng = np.random.default_rng(3)
    values = rng.integers(-4, 4, shape).astype(np.float64)
    values.flat[values.size // 2] = np.nan
    axes = tuple(range(1, len(shape)))
    x = TensorDescriptor.packed(shape, dtype)
    backwards = TensorDescriptor(shape, tuple(-s for s in x.strides), dtype)
    row = row_shape(shape, axes)
    for name, numpy in (("argmax", np.argmax), ("argmin", np.argmin)):
        program = Program((Pass(((name, PLAIN),)),), ((0, 0), (1, 1)))
        outputs = [TensorDescriptor.packed(row, dtype), TensorDescriptor.packed(row, "u32")]
        expected = numpy(values.reshape(shape[0], -1), axis=1)
        for source in (x, backwards):
            for threads in (1, 2):
                best, at = run(
                    program,
                    [source, *outputs],
                    [values],
                    axes,
                    threads,
                    vectors_over=vectors_over,
                    plain=(1,),
                )
                np.testing.assert_array_equal(at.ravel(), expected)
                wanted = values.reshape(shape[0], -1)[range(shape[0]), expected]
                np.testing.assert_array_equal(best.ravel().astype(np.float64), wanted)


@pytest.mark.parametrize("vectors_over", ["elements", "rows"])
def test_position_as_a_number(vectors_over: str) -> None:
    """Picking one element of each row, as a label does."""
    rng = np.random.default_rng(4)
    values, labels = rng.standard_normal((37, 21)), rng.integers(0, 21, (37, 1))
    pick = trace(lambda x, label, place: apply("where", place == label, x, 0.0))
    program = Program((Pass((("add", pick),)),), ((0, 0),), position=True)
    tensors = [
        TensorDescriptor.packed(s, d) for s, d in (((37, 21), "f32"), ((37, 1), "i64"), ((37, 1), "f32"))
    ]
    (actual,) = run(program, tensors, [values, labels], (1,), vectors_over=vectors_over, compute="f32")
    np.testing.assert_array_equal(actual, np.take_along_axis(values.astype(np.float32), labels, 1))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(5, 12), (64, 3000)])
def test_states(shape: tuple[int, ...], threads: int) -> None:
    """A running mean is read and updated in one place; alpha and beta leave it alone."""
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    running = np.arange(shape[0], dtype=np.float32)[:, None]
    program = Program(
        (
            Pass((("first", trace(lambda x, r: r)), ("add", trace(lambda x, r, n: x * n)))),
            Pass(scalars=(trace(lambda n, old, mean: 0.9 * old + 0.1 * mean),)),
        ),
        row_outputs=((0, 3),),
        parameters=(1.0 / shape[1],),
    )
    full, row = TensorDescriptor.packed(shape, "f32"), TensorDescriptor.packed(running.shape, "f32")
    device = host(threads)
    step = Step(program, (full, row, row), (1,), plain=(0,), operands=(0, 1, 1))
    planned = RowKernel(step, device, pointers=2)
    kernel, workspace = planned.build(), Workspace(planned.workspace())
    expected = 0.9 * running + 0.1 * x.mean(axis=1, keepdims=True)
    kernel(None, [x.ctypes.data, running.ctypes.data], 3.0, 2.0, workspace.pointer)
    np.testing.assert_allclose(running, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2)])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_narrower_instruction_sets(axes: tuple[int, ...], dtype: str, cpu: str) -> None:
    x = TensorDescriptor.packed((9, 35, 7), dtype)
    values = np.random.default_rng(6).standard_normal(x.shape).astype(np.float16).astype(np.float64)
    powers = np.exp(values - values.max(axis=axes, keepdims=True))
    expected = powers / powers.sum(axis=axes, keepdims=True)
    (actual,) = run(SOFTMAX, [x, x], [values], axes, cpu=cpu)
    np.testing.assert_allclose(actual, expected, rtol=20 * UNIT_ROUNDOFF[dtype], atol=1e-7)


def test_what_is_kept_in_steps() -> None:
    """A row of several steps whose last vectors are cut short: neither keep nor input may lose the next step's."""
    x = TensorDescriptor((2, 33, 2), (396, -12, 3), "f32")
    y = TensorDescriptor((2, 33, 2), (-408, -12, -3), "f32")
    values = np.random.default_rng(8).standard_normal(x.shape).astype(np.float32)
    powers = np.exp(values.astype(np.float64))
    (actual,) = run(SOFTMAX, [x, y], [values], (0, 1, 2), vectors_over="elements")
    np.testing.assert_allclose(actual, powers / powers.sum(), rtol=1e-5)


def test_empty_rows_have_the_identity() -> None:
    x, row = TensorDescriptor.packed((3, 0), "f32"), TensorDescriptor.packed((3, 1), "f32")
    empty = np.zeros((3, 0))
    for name, value in (("add", 0.0), ("multiply", 1.0), ("max", -np.inf), ("min", np.inf), ("first", 0.0)):
        (actual,) = run(loop_reductions(name), [x, row], [empty], (1,))
        np.testing.assert_array_equal(actual, np.full((3, 1), value))


def test_accuracy_of_long_sums() -> None:
    """Equal terms round alike: one accumulator would lose half of the digits."""
    x, row = TensorDescriptor.packed((1, 3_000_000), "f32"), TensorDescriptor.packed((1, 1), "f32")
    (actual,) = run(loop_reductions("add"), [x, row], [np.full(x.shape, 0.1)], (1,))
    np.testing.assert_allclose(actual, 3_000_000 * np.float64(np.float32(0.1)), rtol=1e-6)


def test_shapes_must_agree() -> None:
    x, row = TensorDescriptor.packed((3, 4), "f32"), TensorDescriptor.packed((3, 2), "f32")
    with pytest.raises(InvalidShape, match=r"\(4, 2\)"):
        RowKernel(Step(loop_reductions("add"), (x, row), (1,)), host(1)).build()


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize(
    ("shape", "axes", "strides"),
    [
        ((9, 48), (1,), (48, 1)),  # short rows
        ((3, 1100), (1,), (1105, 1)),  # rows with a head
        ((3, 7, 80), (1,), (560, 80, 1)),  # over rows, whole units
        ((2, 7, 90), (1,), (672, 96, 1)),  # over rows, with a masked one
        ((2, 96, 40), (1, 2), (3840, 1, 96)),
    ],
)
def test_streaming(shape: Any, axes: Any, strides: Any, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large outputs get, with outputs that begin at a vector, and not."""
    monkeypatch.setattr(cost, "REDUCTION_STREAM", 0.0)
    x = TensorDescriptor.packed(shape, "f32")
    y = TensorDescriptor(shape, strides, "f32")
    values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    powers = np.exp(values.astype(np.float64) - values.max(axis=axes, keepdims=True))
    expected = powers / powers.sum(axis=axes, keepdims=True)
    memory = np.full(4096 * 4, np.nan, np.float32)
    start = -memory.ctypes.data % 64 // 4 + 16 + shift
    out = np.lib.stride_tricks.as_strided(memory[start:], shape, [4 * s for s in strides])
    kernel = RowKernel(Step(SOFTMAX, (x, y), axes), host(1)).build()
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        kernel(None, [values.ctypes.data, out.ctypes.data], alpha, beta, 0)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)
    out[...] = np.nan
    assert np.isnan(memory).all(), "wrote beside its output"


def test_streaming_beside_a_smaller_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether rows have a head is settled for all outputs alike."""
    monkeypatch.setattr(cost, "REDUCTION_STREAM", 0.0)
    program = Program(
        (
            Pass((("max", PLAIN),)),
            Pass(writes=((0, trace(lambda x, m: x - m)), (1, trace(lambda x, m: m - x)))),
        ),
        row_outputs=((2, 0),),
    )
    values = np.random.default_rng(9).integers(-9, 9, (5, 1101)).astype(np.float64)
    x, half = (TensorDescriptor.packed((5, 1101), dtype) for dtype in ("f32", "f16"))
    above, below, most = run(program, [x, x, half, TensorDescriptor.packed((5, 1), "bf16")], [values], (1,))
    greatest = values.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(above, values - greatest)
    np.testing.assert_array_equal(below, greatest - values)
    np.testing.assert_array_equal(most.astype(np.float64), greatest)
