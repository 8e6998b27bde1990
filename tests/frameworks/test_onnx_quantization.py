"""Numbers of few bits: quantized, dequantized and multiplied as onnxruntime does, to the last bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidShape, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import helper  # noqa: E402

from jitdnn.frameworks import onnx as backend  # noqa: E402
from onnx_models import by_onnxruntime, feeds, one_node, with_constants  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
BYTES = [np.int8, np.uint8]


def run(operator: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Any:
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"out{n}" for n in range(outputs)], **attributes)
    results = backend.run_node(node, [value for value in inputs if value is not None], opset_version=21)
    return results[0] if outputs == 1 else results


def agrees(operator: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    expected = by_onnxruntime(one_node(operator, inputs, outputs, **attributes), feeds(inputs))
    actual = run(operator, inputs, outputs, **attributes)
    for one, other in zip(actual if outputs > 1 else [actual], expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def draw(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape), dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quotients_with_ties_and_beyond_the_range(dtype: Any) -> None:
    x = np.concatenate([np.arange(-40, 40) * 0.125, RNG.standard_normal(100) * 1e4]).astype(np.float32)
    scales = np.array([0.25, 0.1, 3.0], np.float32)
    zeros = draw(dtype, 3)
    for scale, zero in zip(scales, zeros, strict=True):
        agrees("QuantizeLinear", [x, np.asarray(scale), np.asarray(zero)])
        agrees("DequantizeLinear", [draw(dtype, 5, 7), np.asarray(scale), np.asarray(zero)])
    many = (RNG.standard_normal((2, 3, 5)) * 50).astype(np.float32)
    agrees("QuantizeLinear", [many, scales, zeros], axis=1)
    agrees("DequantizeLinear", [draw(dtype, 2, 3, 5), scales, zeros], axis=-2)


@pytest.mark.parametrize("extent", [8, 7])
def test_blocks(extent: int) -> None:
    """Also blocks that do not divide the axis."""
    x = (RNG.standard_normal((3, extent, 2)) * 20).astype(np.float32)
    scale, zero = RNG.uniform(0.1, 1, (3, 2, 2)).astype(np.float32), draw(np.int8, 3, 2, 2)
    spread = [np.repeat(values, 4, 1)[:, :extent] for values in (scale, zero)]
    y = run("QuantizeLinear", [x, scale, zero], axis=1, block_size=4)
    expected = np.clip(np.rint(x / spread[0]) + spread[1], -128, 127).astype(np.int8)
    np.testing.assert_array_equal(y, expected)
    back = run("DequantizeLinear", [y, scale, zero], axis=1, block_size=4)
    np.testing.assert_array_equal(back, (y.astype(np.float32) - spread[1]) * spread[0])
    with pytest.raises(InvalidShape, match="do not fit blocks of 3"):
        run("QuantizeLinear", [x, scale, zero], axis=1, block_size=3)
    with pytest.raises(InvalidShape, match="do not fit axis 1"):
        run("QuantizeLinear", [x, np.ones(5, np.float32)], axis=1)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_less_than_a_byte(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.linspace(-20, 20, 81, dtype=np.float32)
    low, high = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}[name]
    zero = np.array(1).astype(dtype)
    y = run("QuantizeLinear", [x, np.array(0.5, np.float32), zero])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(int), np.clip(np.rint(x / 0.5) + 1, low, high))
    back = run("DequantizeLinear", [y, np.array(0.5, np.float32), zero])
    np.testing.assert_array_equal(back, (y.astype(np.float32) - 1) * 0.5)


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]
)
def test_few_bits_that_are_real(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = (RNG.standard_normal(200) * 3).astype(np.float32)
    number = helper.np_dtype_to_tensor_dtype(dtype)
    y = run("QuantizeLinear", [x, np.array(2.0, np.float32)], output_dtype=number)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), (x / 2).astype(dtype).astype(np.float32))
    back = run("DequantizeLinear", [y, np.array(2.0, np.float32)])
    np.testing.assert_array_equal(back, y.astype(np.float32) * 2)


def test_halves_are_divided_in_their_own_precision() -> None:
    x, scale = (RNG.standard_normal(500) * 30).astype(np.float16), np.array(0.3, np.float16)
    y = run("QuantizeLinear", [x, scale, np.array(3, np.uint8)])
    np.testing.assert_array_equal(y, np.clip(np.rint(x / scale) + 3, 0, 255).astype(np.uint8))
    wide = run("QuantizeLinear", [x, scale, np.array(3, np.uint8)], precision=1)
    quotient = x.astype(np.float32) / scale.astype(np.float32)
    np.testing.assert_array_equal(wide, np.clip(np.rint(quotient) + 3, 0, 255).astype(np.uint8))


@given(st.integers(0, 2**32 - 1), st.sampled_from([(7,), (3, 5), (), (2, 0)]))
@settings(max_examples=10)
def test_ranges_of_data_are_those_of_onnxruntime(seed: int, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(seed).standard_normal(shape) * 10, np.float32)
    if x.size:
        agrees("DynamicQuantizeLinear", [x], 3)
        agrees("DynamicQuantizeLinear", [abs(x)], 3)
    y, scale, zero = run("DynamicQuantizeLinear", [np.zeros(shape, np.float32)], 3)
    assert not y.any()
    assert scale == np.float32(1) / np.float32(255)
    assert zero == 0


def quantized_scale(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.01, 0.05, shape), np.float32)


@pytest.mark.parametrize("x_type", BYTES)
@pytest.mark.parametrize("w_type", BYTES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_of_bytes_are_those_of_onnxruntime(x_type: Any, w_type: Any, groups: int) -> None:
    if x_type is np.int8 and w_type is np.uint8:
        pytest.skip("onnxruntime has no such convolution")
    w = draw(w_type, 8, 4 // groups, 3, 2)
    w_zero = np.array(0 if w_type is np.int8 else 119, w_type)
    inputs = [
        draw(x_type, 2, 4, 9, 7), quantized_scale(), draw(x_type), w, quantized_scale(8),
        np.broadcast_to(w_zero, 8).copy(), quantized_scale() * 30, draw(x_type),
        RNG.integers(-1000, 1000, 8).astype(np.int32),
    ]  # fmt: skip
    agrees("QLinearConv", inputs, pads=[1, 0, 2, 1], strides=[2, 1], group=groups)
    single = [*inputs[:4], np.asarray(inputs[4][0]), w_zero, *inputs[6:8]]
    agrees("QLinearConv", single, auto_pad="SAME_UPPER", strides=[1, 2], group=groups)


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
def test_products_of_bytes_are_those_of_onnxruntime(a_type: Any, b_type: Any) -> None:
    if a_type is np.int8 and b_type is np.uint8:
        pytest.skip("onnxruntime has no such product")
    for left, right in (((5, 33), (33, 7)), ((3, 5, 16), (3, 16, 4)), ((2, 4, 8), (8, 3))):
        inputs = [
            draw(a_type, *left), quantized_scale(), draw(a_type), draw(b_type, *right), quantized_scale(),
            draw(b_type), quantized_scale() * 20, draw(a_type),
        ]  # fmt: skip
        agrees("QLinearMatMul", inputs)
    a, b = draw(a_type, 5, 33), draw(b_type, 33, 7)
    columns = [
        a,
        quantized_scale(),
        draw(a_type),
        b,
        quantized_scale(7),
        draw(b_type, 7),
        quantized_scale() * 20,
        draw(a_type),
    ]
    agrees("QLinearMatMul", columns)


def test_zeros_that_their_type_cannot_mean() -> None:
    x, scale = np.ones(3, np.float32), np.array(1.0, np.float32)
    with pytest.raises(NotSupported, match="output_dtype int8 with a zero of type uint8"):
        run("QuantizeLinear", [x, scale, np.array(1, np.uint8)], output_dtype=3)
    with pytest.raises(NotSupported, match="a zero other than 0"):
        run("QuantizeLinear", [x, scale, np.array(1).astype(ml_dtypes.float8_e5m2)])


@pytest.mark.parametrize("zero", [0, 131, 128])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_sums_with_constant_filters_are_exact(groups: int, zero: int) -> None:
    """Filters whose zero is any byte, around which they are not of int8; borders count for nothing."""
    x, w = draw(np.uint8, 2, 6, 9, 8), draw(np.uint8, 12, 6 // groups, 3, 3)
    for x_zero in ([np.asarray(77, np.uint8)], [None]):
        inputs = [x, w, *x_zero, np.asarray(zero, np.uint8)]
        model = one_node(
            "ConvInteger", inputs, group=groups, pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]
        )
        same(model, inputs)
    inputs = [x, w, np.asarray(77, np.uint8), np.asarray(zero, np.uint8)]
    same(one_node("ConvInteger", inputs, group=groups), inputs)
    many = [draw(np.uint8, 2, 8, 16, 12), draw(np.uint8, 8, 8, 3, 3), np.asarray(9, np.uint8)]
    same(one_node("ConvInteger", many, pads=[1] * 4), many)


@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize("a_zero", [None, 77])
def test_products_with_constant_matrices_are_exact(a_zero: int | None, b_type: Any) -> None:
    left = None if a_zero is None else np.asarray(a_zero, np.uint8)
    for shape in ((5, 48), (2, 3, 48)):
        inputs = [draw(np.uint8, *shape), draw(b_type, 48, 33), left, draw(b_type, 33)]
        same(one_node("MatMulInteger", inputs), inputs)


def same(model: Any, inputs: list[Any]) -> None:
    """The result of the first input alone, all others being constants, to the last bit, and with all of them given."""
    given = feeds(inputs)
    (expected,) = by_onnxruntime(model, given)
    constants = {name: value for name, value in given.items() if name != "in0"}
    for one in (with_constants(model, constants), model):
        (y,) = backend.prepare(one).run({k: v for k, v in given.items() if one is model or k == "in0"})
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)
