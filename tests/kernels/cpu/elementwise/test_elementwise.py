"""The generator of elementwise loops: its index spaces, and each way of moving through memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import INSTRUCTION_SETS, Buffer
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.elementwise import generator as elementwise
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise
from jitdnn.kernels.cpu.elementwise.key import ElementwiseCode
from jitdnn.kernels.cpu.elementwise.transposing import trace_tiles
from jitdnn.kernels.formulas.loop_nest import CROSSED, REPEATED, STRIDED, UNIT, Nest
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import assembly
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.isa import isa
from jitdnn.tensor import TensorDescriptor, packed_strides

SUM = trace(lambda a, b: 2 * a + b)
COPY = trace(lambda a: a)


def descriptor(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "f32") -> TensorDescriptor:
    return TensorDescriptor(shape, strides, dtype)


@st.composite
def tensors(draw: st.DrawFn) -> list[TensorDescriptor]:
    """Two inputs and an output of one shape: permuted, reversed, with gaps; inputs may be broadcast."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    result = []
    for _ in range(3):
        order = draw(st.permutations(range(len(shape))))
        gaps = [extent + draw(st.integers(0, 1)) for extent in shape]
        strides = [s * draw(st.sampled_from([1, -1])) for s in packed_strides(gaps, order)]
        if len(result) < 2:
            strides = [s * draw(st.sampled_from([1, 1, 0])) for s in strides]
        result.append(descriptor(shape, tuple(strides)))
    return result


def places(nest: Nest) -> set[tuple[int, ...]]:
    """Where each tensor stands at every point of a nest."""
    return {
        tuple(
            base + sum(i * s for i, s in zip(index, steps, strict=True))
            for base, steps in zip(nest.bases, nest.strides, strict=True)
        )
        for index in itertools.product(*(range(extent) for extent in nest.extents))
    }


@given(tensors(), st.sampled_from([2, 4, 16]))
def test_a_nest_visits_every_element_once(operands: list[TensorDescriptor], lanes: int) -> None:
    expected = {
        tuple(sum(i * s for i, s in zip(index, t.strides, strict=True)) for t in operands)
        for index in itertools.product(*(range(extent) for extent in operands[0].shape))
    }
    nest = Nest.of(operands)
    assert places(nest) == expected
    assert nest.size == len(expected)
    assert all(step > 0 for step in nest.strides[-1])
    turned, moves = nest.crossed(lanes)
    assert places(turned) == expected
    assert len(moves) == 3
    if CROSSED in moves:
        assert moves[-1] == UNIT
        assert all(
            steps[-2] == 1 for steps, move in zip(turned.strides, moves, strict=True) if move == CROSSED
        )


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_dense_tensors_are_one_run(layout: str) -> None:
    dense = TensorDescriptor.packed((3, 4, 5, 6), "f32", layout)
    assert Nest.of([dense, dense]) == Nest((360,), ((1,), (1,)), (0, 0), inputs=1)
    backwards = descriptor(dense.shape, tuple(-s for s in dense.strides))
    assert Nest.of([backwards, backwards]).extents == (360,)


def test_a_bias_keeps_only_the_axes_that_it_needs() -> None:
    for layout, extents, moves in (("nchw", (2, 19, 30), REPEATED), ("nhwc", (60, 19), UNIT)):
        x = TensorDescriptor.packed((2, 19, 5, 6), "f32", layout)
        bias = TensorDescriptor.packed((19, 1, 1), "f32").broadcast_to(x.shape)
        nest = Nest.of([x, bias, x])
        assert nest.extents == extents
        assert nest.moves() == (UNIT, moves, UNIT)


class Recorder:
    """Notes what is compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[ElementwiseCode] = []
        load = elementwise.load

        def note(name: str, code: Any, *rest: Any) -> Any:
            self.codes.append(code)
            return load(name, code, *rest)

        monkeypatch.setattr(elementwise, "load", note)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def check(
    expression: Expression, operands: list[TensorDescriptor], threads: int = 1, cpu: str = "host"
) -> None:
    """The kernel against NumPy, in memory that is NaN beside the tensors; with and without beta."""
    rng = np.random.default_rng(3)
    buffers = [Buffer(operand) for operand in operands]
    for buffer in buffers[:-1]:
        buffer.values[...] = rng.integers(-8, 8, buffer.values.shape)  # sums of these are exact
    kernel = build_elementwise(expression, operands, host(threads, cpu))
    result = expression.evaluate(*(buffer.values for buffer in buffers[:-1]))
    outside = buffers[-1].outside()
    pointers = [buffer.pointer for buffer in buffers]
    kernel(None, pointers, 2.0, 0.0, 0)
    np.testing.assert_array_equal(buffers[-1].values, 2 * result)
    kernel(None, pointers, -1.0, 0.5, 0)
    np.testing.assert_array_equal(buffers[-1].values, 0 * result)
    assert (buffers[-1].outside() == outside).all()


def test_one_kernel_serves_every_size(recorder: Recorder) -> None:
    for shape in ((1, 1), (3, 5), (63, 65), (0, 4), (2, 1000)):
        wide = tuple(extent + 3 for extent in shape)
        check(COPY, [descriptor(shape, packed_strides(wide))] * 2)
    assert {repr(code) for code in recorder.codes[1:3]} == {repr(recorder.codes[-1])}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_squares(recorder: Recorder, dtype: str, cpu: str) -> None:
    for rows, columns in ((16, 16), (17, 40), (40, 17), (65, 3), (16, 1), (65, 130)):
        shape = (2, rows, columns)
        turned = descriptor(shape, (rows * columns, 1, rows), dtype)
        straight = descriptor(shape, packed_strides(shape), dtype)
        every_second = descriptor(shape, tuple(2 * s for s in packed_strides(shape)), dtype)
        for b in (turned, straight, every_second, descriptor(shape, (1, 0, 0), dtype)):
            check(SUM, [turned, b, straight], cpu=cpu)
    assert {move for code in recorder.codes for move in code.moves} == {UNIT, REPEATED, STRIDED, CROSSED}


def test_gathers_and_scatters(recorder: Recorder) -> None:
    shape = (5, 37)
    every_third = descriptor(shape, (120, 3))
    check(SUM, [every_third, descriptor(shape, (-37, -1)), descriptor(shape, (37, 1))])
    check(SUM, [descriptor(shape, (37, 1)), descriptor(shape, (0, 1)), every_third])
    assert [code.moves for code in recorder.codes] == [(STRIDED, STRIDED, UNIT), (UNIT, UNIT, STRIDED)]


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_streams_past_the_caches(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, cpu: str) -> None:
    monkeypatch.setattr(cost, "ELEMENTWISE_STREAM", 0.0)
    for count in (1024, 1025, 5000, 100_003):  # buffers start at odd elements
        check(SUM, [descriptor((count,), (1,))] * 3, cpu=cpu)
    rows = descriptor((3, 2001), (2005, 1))
    check(SUM, [rows] * 3, threads=2, cpu=cpu)
    assert all(code.streams for code in recorder.codes)
    module = Module("elementwise", isa(cpu))
    elementwise._trace(module, recorder.codes[0])
    if cpu in ("avx512", "avx2", "plain"):
        assert "movntp" in assembly(module)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_squares_are_streamed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, dtype: str, cpu: str
) -> None:
    monkeypatch.setattr(cost, "ELEMENTWISE_STREAM", 0.0)
    for rows, columns in ((65, 130), (64, 128), (20, 33)):
        shape = (2, rows, columns)
        turned = descriptor(shape, (rows * columns, 1, rows), dtype)
        straight = descriptor(shape, packed_strides(shape), dtype)
        check(SUM, [turned, straight, straight], cpu=cpu)
    assert all(code.streams for code in recorder.codes)
    module = Module("elementwise", isa(cpu))
    trace_tiles(module, recorder.codes[0])
    if dtype == "f32" and cpu in ("avx512", "avx2", "plain"):
        assert "movntp" in assembly(module)


def test_short_rows_do_not_stream(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ELEMENTWISE_STREAM", 0.0)
    check(COPY, [descriptor((40, 9), (10, 1))] * 2)
    assert not recorder.codes[0].streams


def test_few_long_rows_are_cut_into_blocks() -> None:
    long = descriptor((2, 600_011), (600_020, 1))
    check(SUM, [long, descriptor((2, 600_011), (0, 1)), long], threads=2)


def test_the_output_may_be_an_input() -> None:
    x = np.arange(1003, dtype=np.float32)
    operand = descriptor(x.shape, (1,))
    build_elementwise(COPY, [operand, operand], host(1))(None, [x.ctypes.data] * 2, 3.0, 1.0, 0)
    np.testing.assert_array_equal(x, 4 * np.arange(1003, dtype=np.float32))


def test_tiles_use_no_gather() -> None:
    module = Module("elementwise", isa("avx2"))
    trace_tiles(module, ElementwiseCode("f32", ("f32", "f32"), (COPY,), 2, (CROSSED, UNIT), False))
    text = assembly(module)
    assert "gather" not in text
    assert "vunpck" in text or "vshuf" in text or "vperm" in text
