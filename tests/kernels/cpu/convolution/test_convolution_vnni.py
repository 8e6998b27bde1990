"""8-bit convolution with dot products of four channels: exact, whatever the values and the shape."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn as jd
from conformance import AnyArray, arranged, check, make_case, run
from convolution_cases import convolution
from examples import examples
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.algorithm import Vnni
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.cost import make_vnni_plan
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import BYTE_INTEGERS, INTEGER_RESULTS
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import assembly
from jitdnn.rtcg.expression import trace as trace_expression
from jitdnn.rtcg.isa import Isa, isa
from jitdnn.tensor import TensorDescriptor, numpy_dtype
from strategies import convolutions

needs_dot = pytest.mark.skipif(not isa().has_dot, reason="this processor has no vpdpbusd")
VNNI = Vnni()

SHAPES = [
    "n2 c64 h14 w15 k64 r3 s3 pad1",
    "n1 c70 h9 w11 k37 r3 s3 pad1:0x2:1 stride2 nhwc",
    "n3 c18 h9 w11 k50 r1 s1",
    "n3 c17 h9 w11 k50 r1 s1 stride2",
    "n1 c3 h21 w23 k20 r7 s7 stride2 pad3 nhwc",
    "n2 c24 h9 w7 k12 r3 s3 dil2 pad2 g4 flip",
    "n2 c16 h9 w7 k16 r3 s3 pad1 g16 nhwc",
    "n1 c130 w37 k5 s5 pad2 stride3",
    "n1 c6 d4 h5 w6 k9 t2 r3 s2 pad1 nhwc",
    "n0 c6 h5 w6 k9 r3 s3",
    "n1 c5 h1 w1 k3 r1 s1",
    "n2 c64 h9 w7 k70 r1 s1 nhwc",
    "n1 c12 h5 w5 k9 r1 s1 g3 nhwc",
    "n2 c36 h9 w7 k5 r3 s3 stride2 pad1 nhwc",
    "n3 c24 h6 w5 k40 r1 s1 g2 nhwc",
    "n3 c4096 h2 w9 k5 r1 s1 nhwc",
]


def bytes_of(rng: np.random.Generator, shape: tuple[int, ...], kind: str, dtype: str = "i8") -> AnyArray:
    """All of one extreme, extremes only, or anything."""
    limits = np.iinfo(numpy_dtype(dtype))
    if kind in ("least", "most"):
        return np.full(shape, limits.min if kind == "least" else limits.max, limits.dtype)
    if kind == "extreme":
        return np.where(rng.random(shape) < 0.5, limits.min, limits.max).astype(limits.dtype)
    return rng.integers(limits.min, limits.max, shape, limits.dtype, endpoint=True)


KINDS = ("least", "most", "extreme", "any")


def result_of(problem: Convolution, x: AnyArray, w: AnyArray, processor: Isa | None = None) -> AnyArray:
    """y of the kernel, with x, w and y among memory that must not be touched."""
    device = host(1) if processor is None else CpuDevice(processor, 1)
    case = make_case(problem, given=(x, w))
    return run(VNNI.build(problem, device), case, VNNI.workspace(problem, device))[0]


@st.composite
def integer_convolutions(draw: st.DrawFn) -> Convolution:
    real = draw(convolutions(("fwd",)))
    types = draw(st.sampled_from(BYTE_INTEGERS)), "i8", draw(st.sampled_from(INTEGER_RESULTS))
    tensors = {
        name: replace(getattr(real, name), dtype=dtype) for name, dtype in zip("xwy", types, strict=True)
    }
    return replace(real, **tensors)


@needs_dot
@settings(max_examples=examples(20))
@given(st.data())
def test_any_convolution_is_exact(data: st.DataObject) -> None:
    problem = data.draw(integer_convolutions())
    x, w = (
        bytes_of(
            np.random.default_rng(seed),
            operand.descriptor.shape,
            data.draw(st.sampled_from(KINDS)),
            operand.descriptor.dtype,
        )
        for seed, operand in enumerate(problem.inputs)
    )
    x, w = _like(x, problem.x), _like(w, problem.w)
    exact = problem.reference(x.astype(np.float64), w.astype(np.float64))
    if problem.y.dtype in BYTE_INTEGERS:
        limits = np.iinfo(numpy_dtype(problem.y.dtype))
        exact = np.clip(exact, limits.min, limits.max)
    np.testing.assert_array_equal(result_of(problem, x, w), exact)


def _like(values: AnyArray, descriptor: TensorDescriptor) -> AnyArray:
    """The values as a tensor holds them whose elements may share memory: one value for each address."""
    if not descriptor.is_overlapping():
        return values
    index = np.zeros(descriptor.shape, np.int64)
    for axis, stride in enumerate(descriptor.strides):
        index += np.expand_dims(
            np.arange(descriptor.shape[axis]) * stride,
            tuple(other for other in range(index.ndim) if other != axis),
        )
    return values.reshape(-1)[(index - index.min()) % max(1, values.size)] if values.size else values


@needs_dot
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_contract(number: int) -> None:
    first, result = BYTE_INTEGERS[number // 2 % 2], INTEGER_RESULTS[number % 4]
    problem = convolution(f"conv_fwd {SHAPES[number]} {first} by_i8 to_{result}")
    rng = np.random.default_rng(0)
    inputs = [
        bytes_of(rng, operand.descriptor.shape, "any", operand.descriptor.dtype) for operand in problem.inputs
    ]
    assert "vnni" in check(problem, inputs=inputs, scales=((2.0**-7, 0.0), (-(2.0**-8), 0.5)))


@needs_dot
@pytest.mark.parametrize("order", ["gaps", "backwards", "turned"])
@pytest.mark.parametrize(
    "text", ["n2 c9 h7 w9 k20 r3 s3 pad1", "n2 c70 h5 w6 k7 r1 s1", "n1 c35 w19 k5 s3 g5"]
)
def test_any_order_in_memory(text: str, order: str) -> None:
    assert "vnni" in check(arranged(parse(f"conv_fwd {text} i8 to_i32"), order), threads=(2,))


@needs_dot
@pytest.mark.parametrize(("first", "most"), [("i8", 131071), ("u8", 65793)])
@pytest.mark.parametrize("x", ["least", "most"])
@pytest.mark.parametrize("w", ["least", "most"])
def test_the_largest_sums(x: str, w: str, first: str, most: int) -> None:
    """As many products as are taken, all of them as large as can be: the sum just fits into 32 bits."""
    problem = convolution(f"conv_fwd n1 c{most} h1 w1 k2 r1 s1 {first} to_i32")
    assert VNNI.refuse(problem, host(1)) is None
    rng = np.random.default_rng(0)
    image, filters = bytes_of(rng, problem.x.shape, x, first), bytes_of(rng, problem.w.shape, w)
    value = most * int(image.flat[0]) * int(filters.flat[0])
    np.testing.assert_array_equal(result_of(problem, image, filters), np.full((1, 2, 1, 1), value))
    more = parse(f"conv_fwd n1 c{most + 1} h1 w1 k2 r1 s1 {first} to_i32")
    assert f"{most + 1} products" in (VNNI.refuse(more, host(1)) or "")


def test_refuses_by_name() -> None:
    integers = parse("conv_fwd n1 c8 h5 w5 k8 r3 s3 i8")
    reals = parse("conv_bwd_data n1 c8 h5 w5 k8 r3 s3 f32")
    assert "vpdpbusd" in (VNNI.refuse(integers, CpuDevice(replace(isa(), has_dot=False), 1)) or "")
    assert "x is f32" in (VNNI.refuse(reals, CpuDevice(replace(isa(), has_dot=True), 1)) or "")
    with pytest.raises(jd.NotSupported, match="vnni"):
        jd.conv(np.zeros((1, 4, 3, 3), np.float32), np.zeros((1, 4, 3, 3), np.float32), algorithm="vnni")


@pytest.mark.parametrize(
    "text",
    [
        "n2 c64 h56 w56 k64 r3 s3 pad1 i8 to_i8",
        "n2 c64 h56 w56 k64 r3 s3 pad1 nhwc i8 to_i8",
        "n1 c256 h14 w14 k3 r1 s1 i8 to_i8",
        "n1 c64 h28 w28 k256 r1 s1 nhwc u8 to_u8",
    ],
)
def test_code_for_a_processor_that_has_it(text: str) -> None:
    """Compiles anywhere; no sum is spilled, and four products are one instruction, with pixels as with channels in
    the lanes."""
    plain = isa("avx512")
    processor = replace(plain, features=plain.features + ",+avx512vnni", has_dot=True)
    problem = convolution(f"conv_fwd {text}")
    (whole,) = lower_convolution(problem)
    module = Module("dots", processor)
    trace(make_vnni_plan(whole.merged(), processor), module, 3, None)
    code = assembly(module)
    found = re.search(r"^microkernel\d*:(.*?)^\s+retq?$", code, re.MULTILINE | re.DOTALL)
    assert found
    body = found[1]
    assert body.count("vpdpbusd") >= 8
    assert "vpmull" not in body
    assert [line for line in body.splitlines() if "(%rsp)" in line and "mm" in line] == []
    stored = re.search(r"^store:(.*?)^\s+retq?$", code, re.MULTILINE | re.DOTALL)
    assert stored
    assert "vcvttss2si" not in stored[1]  # rounded as vectors


def quantized(
    x: AnyArray, w: AnyArray, scale: AnyArray, bias: AnyArray, padding: int, dtype: str = "i8"
) -> tuple[AnyArray, AnyArray]:
    """The float64 truth before it is rounded, and rounded and saturated."""
    problem = Convolution.make("fwd", x.shape, w.shape, padding=padding, dtype="f64")
    total = problem.reference(x.astype(np.float64), w.astype(np.float64))
    wide = (1, -1, *(1,) * (x.ndim - 2))
    truth = total * scale.astype(np.float64).reshape(wide) + bias.astype(np.float64).reshape(wide)
    limits = np.iinfo(numpy_dtype(dtype))
    return truth, np.clip(np.rint(truth), limits.min, limits.max)


@pytest.mark.parametrize(("first", "result"), [("i8", "i8"), ("u8", "u8"), ("u8", "i8"), ("i8", "u8")])
@pytest.mark.parametrize("channels", [6, 64, 130])
@pytest.mark.parametrize("layout", [None, "NHWC"])
def test_quantized_with_a_scale_for_each_channel(
    channels: int, layout: str | None, first: str, result: str
) -> None:
    """One fused pass: scaled, shifted, rounded and saturated; only what is next to a tie may go either way."""
    rng = np.random.default_rng(channels)
    limits = np.iinfo(numpy_dtype(result))
    x, w = bytes_of(rng, (2, channels, 9, 8), "any", first), bytes_of(rng, (20, channels, 3, 3), "any")
    spread = 5500 * (2 if first == "u8" else 1)
    scale = (rng.uniform(0.5, 2.0, 20) * 60 / (spread * 3 * np.sqrt(channels))).astype(np.float32)
    bias = (rng.uniform(-20, 20, 20) + (limits.min + limits.max + 1) / 2).astype(np.float32)
    truth, rounded = quantized(x, w, scale, bias, 1, result)
    out: AnyArray = np.zeros(truth.shape, limits.dtype)
    given: list[Any] = [x, w]
    if layout:
        out = np.zeros((2, 9, 8, 20), limits.dtype)
        given = [np.ascontiguousarray(np.moveaxis(x, 1, -1)), np.ascontiguousarray(np.moveaxis(w, 1, -1))]
    found = jd.conv(
        *given, scale, bias, epilogue=lambda a, s, b: a * s + b, padding=1, layout=layout, out=out
    )
    assert found is out
    found = np.moveaxis(found, -1, 1) if layout else found
    is_tie = np.abs(truth - np.floor(truth) - 0.5) < 1e-4
    assert is_tie.mean() < 0.01
    np.testing.assert_array_equal(found[~is_tie], rounded[~is_tie])
    assert (np.abs(found.astype(int) - rounded) <= 1).all()
    assert {limits.min, limits.max} < set(found.ravel().tolist())


def test_quantized_ties_go_to_the_even_number() -> None:
    """Powers of two scale without rounding: every fourth result is a tie."""
    rng = np.random.default_rng(1)
    x, w = rng.integers(-9, 10, (1, 8, 30, 30), np.int8), rng.integers(-3, 4, (32, 8, 1, 1), np.int8)
    scale = 2.0 ** -rng.integers(1, 4, 32).astype(np.float32)
    bias = rng.integers(-8, 9, 32).astype(np.float32) * np.float32(0.5)
    truth, rounded = quantized(x, w, scale, bias, 0)
    assert (np.abs(truth % 1) == 0.5).mean() > 0.1
    found = jd.conv(x, w, scale, bias, epilogue=lambda a, s, b: a * s + b, out=np.zeros(truth.shape, np.int8))
    np.testing.assert_array_equal(found, rounded)


@needs_dot
def test_images_without_a_sign_are_read_where_they_lie() -> None:
    """Words of adjacent channels are, where every pixel has whole ones; others are packed."""
    unpacked = {}
    for text in (
        "n2 c64 h9 w7 k70 r1 s1 nhwc u8", "n1 c24 h6 w5 k40 r1 s1 g2 nhwc u8", "n2 c64 h9 w7 k70 r1 s1 nhwc i8",
        "n2 c66 h9 w7 k70 r1 s1 nhwc u8", "n2 c64 h9 w7 k70 r1 s1 u8", "n2 c64 h9 w7 k70 r1 s1 pad1 nhwc u8",
        "n1 c4096 h2 w9 k5 r1 s1 nhwc u8",
    ):  # fmt: skip
        (whole,) = lower_convolution(convolution(f"conv_fwd {text}"))
        unpacked[text] = make_vnni_plan(whole.merged(), isa()).is_input_unpacked
    assert list(unpacked.values()) == [True, True, False, False, False, False, False], unpacked


@needs_dot
@settings(max_examples=examples(12))
@given(st.data())
def test_epilogues_of_any_convolution(data: st.DataObject) -> None:
    """Scaled by channel, shifted, rounded, saturated; next to a tie either way, and NaN becomes 0."""
    problem = data.draw(integer_convolutions())
    problem = replace(problem, y=replace(problem.y, dtype=data.draw(st.sampled_from(BYTE_INTEGERS))))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, w = (bytes_of(rng, o.descriptor.shape, "any", o.descriptor.dtype) for o in problem.inputs)
    x, w = _like(x, problem.x), _like(w, problem.w)
    rank = len(problem.spatial)
    scale = (rng.uniform(-1, 1, problem.k) / np.sqrt(w[0].size) / 50).astype(np.float32)
    shift = rng.uniform(-60, 200, problem.k).astype(np.float32)
    scale[0] = np.nan
    bias = TensorDescriptor(problem.y.shape, (0, 1, *(0,) * rank), "f32")
    epilogue = Epilogue(trace_expression(lambda a, s, b: a * s + b), (bias, bias))
    wide = (1, -1, *(1,) * rank)
    truth = problem.reference(x, w) * scale.reshape(wide).astype(float) + shift.reshape(wide)
    case = make_case(problem, epilogue, given=(x, w))
    for buffer, values in zip(case.operands, (scale, shift), strict=True):
        buffer.values[...] = np.broadcast_to(values.reshape(wide), problem.y.shape)
    device = host(1)
    kernel = VNNI.build(problem, device, epilogue)
    (found,) = run(kernel, case, VNNI.workspace(problem, device, epilogue))
    limits = np.iinfo(found.dtype)
    with np.errstate(invalid="ignore"):
        near = [np.clip(np.rint(truth + e), limits.min, limits.max) for e in (-1e-2, 1e-2)]
    assert ((found >= near[0]) & (found <= near[1]))[:, 1:].all()
    assert (found[:, 0] == 0).all()


@needs_dot
def test_it_is_the_default() -> None:
    for text in ("n8 c64 h56 w56 k64 r3 s3 pad1", "n1 c256 h14 w14 k256 r1 s1 nhwc"):
        problem = parse(f"conv_fwd {text} i8 to_i8")
        assert jd.plan(problem).algorithm == "vnni"
