"""Elementwise loops on GPUs: how tensors are found, vectors and single elements, squares, types, several outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import cases
import harness
from cases import Buffer
from examples import examples
from harness import _Mirror
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.kernels.gpu.elementwise import generator as elementwise
from jitdnn.kernels.gpu.elementwise.generator import build_elementwise, found
from jitdnn.kernels.gpu.elementwise.transposing import estimate_tiles
from jitdnn.kernels.reference import rounded
from jitdnn.kernels.tables import elementwise_kernel
from jitdnn.problems import parse
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.functions import arccosh
from jitdnn.tensor import DTYPES, TensorDescriptor, packed_strides

SUM = trace(lambda a, b: 2 * a + b)
COPY = trace(lambda a: a)
MANY = 5000


@pytest.fixture(params=[1031, 1024], ids=["odd", "aligned"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Elements before each tensor: pointers at odd elements, or at multiples of 16 bytes."""
    monkeypatch.setattr(cases, "GUARD", request.param)
    return int(request.param)


def descriptor(shape: Sequence[int], strides: Sequence[int], dtype: str = "f32") -> TensorDescriptor:
    return TensorDescriptor(tuple(shape), tuple(strides), dtype)


def packed(shape: Sequence[int], dtype: str = "f32", layout: str = "nchw") -> TensorDescriptor:
    return TensorDescriptor.packed(tuple(shape), dtype, layout)


def run(device: Any, kernel: Any, buffers: Sequence[Buffer], alpha: float, beta: float) -> None:
    mirrors = [_Mirror(device, buffer.memory, buffer.pointer) for buffer in buffers]
    kernel(None, [mirror.pointer for mirror in mirrors], alpha, beta, 0)
    device.synchronize()
    for mirror in mirrors:
        mirror.fetch()


def check(device: Any, expression: Expression, tensors: Sequence[TensorDescriptor]) -> None:
    """The kernel against NumPy on small whole numbers, whose sums are exact, in memory that is NaN elsewhere."""
    rng = np.random.default_rng(3)
    buffers = [Buffer(tensor) for tensor in tensors]
    for buffer in buffers[:-1]:
        low = 0 if buffer.values.dtype.kind in "ub" else -8
        buffer.values[...] = rng.integers(low, 8, buffer.values.shape)
    kernel = build_elementwise(expression, tensors, device)
    result = expression.evaluate(*(buffer.values.astype(np.float64) for buffer in buffers[:-1]))
    outside = buffers[-1].outside()
    target = buffers[-1].values
    run(device, kernel, buffers, 2.0, 0.0)
    np.testing.assert_array_equal(target, rounded(2 * result, target.dtype))
    previous = target.astype(np.float64)
    run(device, kernel, buffers, -1.0, 0.5)
    np.testing.assert_array_equal(target, rounded(-result + 0.5 * previous, target.dtype))
    run(device, kernel, buffers, 1.0, 0.0)
    np.testing.assert_array_equal(target, rounded(result, target.dtype))
    assert (buffers[-1].outside() == outside).all()


@st.composite
def operands(draw: st.DrawFn) -> list[TensorDescriptor]:
    """Two inputs and an output of one shape: permuted, reversed, with gaps, of any types; inputs may be broadcast."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 9, 12, 40]), min_size=1, max_size=4)))
    while np.prod(shape) > 20_000:
        shape = shape[1:]
    result: list[TensorDescriptor] = []
    for _ in range(3):
        order = draw(st.permutations(range(len(shape))))
        gaps = [extent + draw(st.sampled_from([0, 0, 1, 8])) for extent in shape]
        strides = [s * draw(st.sampled_from([1, 1, -1])) for s in packed_strides(gaps, order)]
        if len(result) < 2:
            strides = [s * draw(st.sampled_from([1, 1, 0])) for s in strides]
        result.append(
            descriptor(shape, strides, draw(st.sampled_from(["f32", "f32", "f16", "bf16", "u8", "f64"])))
        )
    return result


@settings(
    max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operands())
def test_any_tensors(device: Any, guard: int, tensors: list[TensorDescriptor]) -> None:
    check(device, SUM, tensors)


DENSE, UNIT, REPEATED, STRIDED, SCATTERED = "dense", "unit", "repeated", "strided", "scattered"
FORMS: list[tuple[list[TensorDescriptor], tuple[str, ...]]] = [
    ([packed((MANY,)), packed((MANY,)), packed((MANY,))], (DENSE, DENSE, DENSE)),
    ([packed((9, 40)), descriptor((9, 40), (48, 1)), packed((9, 40))], (DENSE, UNIT, DENSE)),
    ([packed((9, 40)), descriptor((9, 40), (1, 0)), packed((9, 40))], (DENSE, REPEATED, DENSE)),
    ([packed((9, 40)), descriptor((9, 40), (120, 3)), packed((9, 40))], (DENSE, STRIDED, DENSE)),
    ([packed((4, 9, 7)), descriptor((4, 9, 7), (0, 1, 0)), packed((4, 9, 7))], (DENSE, SCATTERED, DENSE)),
    (
        [packed((2, 40)), descriptor((2, 40), (40, 1)), descriptor((2, 40), (-48, -1))],
        (STRIDED, STRIDED, UNIT),
    ),
    ([packed((300,)), descriptor((300,), (0,)), descriptor((300,), (3,))], (DENSE, REPEATED, STRIDED)),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "i64"])
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_how_tensors_are_found(device: Any, guard: int, number: int, dtype: str) -> None:
    tensors, moves = FORMS[number]
    tensors = [descriptor(t.shape, t.strides, dtype) for t in tensors]
    if dtype == "f32":
        assert found(Nest.of(tensors), [dtype] * 3, dtype).moves == moves
    check(device, SUM, tensors)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_squares(device: Any, guard: int, dtype: str) -> None:
    for rows, columns in ((8, 8), (64, 128), (8, 300), (65, 130)):
        shape = (2, rows, columns)
        turned = descriptor(shape, (rows * columns, 1, rows), dtype)
        straight = packed(shape, dtype)
        assert estimate_tiles(Nest.of([turned, straight]), [dtype] * 2) == {0}
        check(device, COPY, [turned, straight])
        if columns not in (128, 130):
            continue
        apart = descriptor(shape, [2 * s for s in straight.strides], dtype)
        for b in (turned, straight, apart, descriptor(shape, (1, 0, 0), dtype)):
            check(device, SUM, [turned, b, straight])


def test_many_inputs_in_squares(device: Any) -> None:
    shape, count = (40, 24), 9
    turned = [descriptor(shape, (1, 40), "f64")] * count
    total = trace(lambda a, b, c, d, e, f, g, h, i: a + b + c + d + e + f + g + h - i)
    check(device, total, [*turned, packed(shape, "f64")])


def test_many_threads_and_vectors(device: Any, guard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several vectors a thread, as large tensors have them."""
    monkeypatch.setattr(elementwise, "_BLOCKS_TO_FILL", 0)
    for shape in ((100_003,), (3, 20_000)):
        for dtype in ("f32", "bf16"):
            bias = descriptor(shape, (1, *(0,) * (len(shape) - 1)), dtype)
            check(device, SUM, [packed(shape, dtype), bias, packed(shape, dtype)])
            check(device, COPY, [packed(shape, dtype)] * 2)


def test_nothing_to_do(device: Any) -> None:
    check(device, COPY, [packed((0, 4))] * 2)
    check(device, COPY, [descriptor((0, 9, 9), (81, 1, 9)), packed((0, 9, 9))])


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", ["f32", "f64", "i64", "u8", "bool"])
def test_types(device: Any, source: str, target: str) -> None:
    edges = [0, 0.5, 1.5, -2.5, 127.5, 300, -300, 70_000, 1e12, -1e12, 3e38, np.inf, -np.inf, np.nan]
    x = Buffer(packed((len(edges),), source))
    with np.errstate(all="ignore"):
        x.values[...] = np.array(edges).astype(x.values.dtype)
    y = Buffer(packed((len(edges),), target))
    computing = "f64" if source in ("f64", "i64") else "f32"
    run(
        device,
        build_elementwise(COPY, [x.descriptor, y.descriptor], device, computing=computing),
        [x, y],
        1,
        0,
    )
    with np.errstate(all="ignore"):
        wide = x.values.astype(np.float64)
        expected = wide != 0 if target == "bool" else rounded(wide, y.values.dtype)
    np.testing.assert_array_equal(y.values.astype(np.float64), expected.astype(np.float64))


def test_whole_numbers_wrap_and_scale(device: Any, guard: int) -> None:
    values = np.array([2**62, -(2**63), 2**63 - 1, 3, -5, 0, 7, 9] * 40)
    buffers = [Buffer(packed(values.shape, "i64")) for _ in range(2)]
    buffers[0].values[...] = values
    kernel = build_elementwise(trace(lambda a: a * 3 + 1), [b.descriptor for b in buffers], device)
    run(device, kernel, buffers, 1.0, 0.0)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(buffers[1].values, values * 3 + 1)
    buffers[0].values[...] = values % 100
    buffers[1].values[...] = 10
    run(device, kernel, buffers, 2.0, -1.0)
    np.testing.assert_array_equal(buffers[1].values, 2 * (values % 100 * 3 + 1) - 10)


def test_several_outputs_and_plain_ones(device: Any, guard: int) -> None:
    shape = (6, 40)
    tensors = [
        packed(shape), descriptor(shape, (1, 0)), packed(shape), descriptor(shape, (48, 1), "u8"),
        descriptor(shape, (1, 6), "f64"),
    ]  # fmt: skip
    expressions = [trace(lambda a, b: a * b), trace(lambda a, b: abs(a)), trace(lambda a, b: a - b)]
    buffers = [Buffer(tensor) for tensor in tensors]
    rng = np.random.default_rng(0)
    for buffer in buffers[:2]:
        buffer.values[...] = rng.integers(-9, 9, shape)
    a, b = (buffer.values.astype(np.float64).copy() for buffer in buffers[:2])
    kernel = build_elementwise(expressions, tensors, device, plain=(1,))
    for buffer in (buffers[2], buffers[4]):
        buffer.values[...] = 1
    run(device, kernel, buffers, 3.0, 2.0)
    np.testing.assert_array_equal(buffers[2].values, 3 * a * b + 2)
    np.testing.assert_array_equal(buffers[3].values, np.abs(a))
    np.testing.assert_array_equal(buffers[4].values, 3 * (a - b) + 2)


def test_the_output_may_be_an_input(device: Any, guard: int) -> None:
    x = Buffer(packed((MANY,)))
    x.values[...] = np.arange(MANY)
    kernel = build_elementwise(COPY, [x.descriptor] * 2, device)
    mirror = _Mirror(device, x.memory, x.pointer)
    kernel(None, [mirror.pointer] * 2, 3.0, 1.0, 0)
    device.synchronize()
    mirror.fetch()
    np.testing.assert_array_equal(x.values, 4.0 * np.arange(MANY))


def test_more_numbers_than_arguments(device: Any) -> None:
    """Many tensors of many axes: extents and strides are in the text."""
    shape = (2, 3, 2, 3, 2, 3)
    orders = list(itertools.permutations(range(6)))[:: 720 // 14][:14]
    inputs = [descriptor(shape, packed_strides(shape, order)) for order in orders]

    def add(a, b, c, d, e, f, g, h, i, j, k, m, n, o):  # type: ignore[no-untyped-def]
        return a + b + c + d + e + f + g + h + i + j + k + m + n + o

    check(device, trace(add), [*inputs, packed(shape)])


def test_kernels_of_ones_own(device: Any) -> None:
    x = Buffer(packed((100,)))
    x.values[...] = np.arange(100)
    y = Buffer(packed((100,)))
    kernel = elementwise_kernel([trace(lambda a: a * a)], [x.descriptor, y.descriptor], device, "f32")
    run(device, kernel, [x, y], 1.0, 0.0)
    np.testing.assert_array_equal(y.values, np.arange(100.0) ** 2)


@pytest.mark.parametrize(
    "text",
    [
        "activation_bwd gelu shape70 bf16", "add shape3x4x7 b=s0,1,0", "transform shape1x16x4x8 pad0 f16 y=nhwc",
        "dropout p0.3 shape16x9", "random normal mean0.5 std2.0 shape8x4", "embedding_bwd rows9 columns6 shape20",
        "concat shape4x9 axis1 parts2x7 i64",
    ],
)  # fmt: skip
def test_emulated(cuda_device: Any, guard: int, text: str) -> None:
    """Plain kernels as CUDA code, with every barrier and every access to shared memory checked."""
    assert harness.check(parse(text), cuda_device, scales=((-0.75, 0.5),))


def test_places_beyond_32_bits(architecture: Any) -> None:
    """What is far apart is compiled with indices of 64 bits, for all architectures."""
    far = descriptor((3, 2**31, 5), (5 * 2**31, 5, 1), "u8")
    build_elementwise(COPY, [far, far], architecture)
    build_elementwise(COPY, [descriptor((9, 2**31), (1, 9), "u8"), packed((9, 2**31), "u8")], architecture)


def test_compiles_for_every_architecture(any_architecture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of these forms spills registers."""
    monkeypatch.setattr(elementwise, "_SPILLS", False)
    for dtype in ("f32", "bf16"):
        for tensors, _ in FORMS[1::2]:
            build_elementwise(SUM, [descriptor(t.shape, t.strides, dtype) for t in tensors], any_architecture)
        large = packed((1 << 28,), dtype)
        build_elementwise(SUM, [large] * 3, any_architecture)
        layouts = [packed((8, 64, 56, 56), dtype, layout) for layout in ("nchw", "nhwc", "nhwc")]
        build_elementwise(SUM, layouts, any_architecture)


def test_devices_without_doubles() -> None:
    class Single:
        name, has_f64 = "a device", False

    reason = elementwise.refuse_elementwise([packed((3,), "i32"), packed((3,))], Single())  # type: ignore[arg-type]
    assert reason is not None
    assert "no double precision" in reason
    assert elementwise.refuse_elementwise([packed((3,))] * 2, Single()) is None  # type: ignore[arg-type]


def test_functions_beyond_their_domains(device: Any) -> None:
    x = np.array([-np.inf, -1e10, -2.0, 0.5, np.nan, 1.0, 2.0, np.inf])
    y = Buffer(packed(x.shape, "f64"))
    kernel = elementwise_kernel([trace(arccosh)], [packed(x.shape, "f64")] * 2, device, "f64")
    source = Buffer(packed(x.shape, "f64"))
    source.values[...] = x
    run(device, kernel, [source, y], 1.0, 0.0)
    found = y.values
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, np.arccosh(x), rtol=1e-15)
