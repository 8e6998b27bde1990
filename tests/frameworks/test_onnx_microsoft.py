"""Operators of the domain com.microsoft, each against onnxruntime, whose own they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import helper  # noqa: E402

from jitdnn.frameworks import onnx as backend  # noqa: E402
from onnx_models import by_onnxruntime, feeds, one_node  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
DOMAIN = "com.microsoft"


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def draw(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape), dtype)


def real(value: float) -> Array:
    return np.array(value, np.float32)


def run(
    operator: str, inputs: list[Any], outputs: int = 1, omitted: tuple[int, ...] = (), **attributes: Any
) -> Any:
    """The outputs of a node that are not left out."""
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    results = ["" if n in omitted else f"out{n}" for n in range(outputs)]
    node = helper.make_node(operator, names, results, domain=DOMAIN, **attributes)
    return backend.run_node(node, [value for value in inputs if value is not None], opset_version=21)


def agrees(
    operator: str,
    inputs: list[Any],
    outputs: int = 1,
    tolerance: float = 2e-5,
    compared: tuple[int, ...] = (0,),
    **attributes: Any,
) -> None:
    """Real results within the tolerance of the largest; integers within one, and few of them."""
    model = one_node(operator, inputs, outputs, 21, DOMAIN, **attributes)
    expected = by_onnxruntime(model, feeds(inputs))
    actual = run(operator, inputs, outputs, **attributes)
    for number in compared:
        one, other = actual[number], expected[number]
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if other.dtype.kind in "iu":
            apart = np.abs(one.astype(int) - other.astype(int))
            assert apart.max() <= 1
            assert (apart > 0).mean() <= 0.02
        else:
            atol = tolerance * max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=atol)


def test_convolutions_with_what_is_fused() -> None:
    x, w, bias = normal(2, 4, 9, 8), normal(6, 2, 3, 3), normal(6)
    attributes: dict[str, Any] = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": 2}
    kinds: list[tuple[str, list[float]]] = [
        ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.7]), ("HardSigmoid",
    [0.3, 0.4]) ]  # fmt: skip
    for name, parameters in kinds:
        more = {"activation_params": parameters} if parameters else {}
        agrees("FusedConv", [x, w, bias], activation=name, **more, **attributes)
    y = run("FusedConv", [x, w, bias], **attributes)[0]
    agrees("FusedConv", [x, w, bias, normal(*y.shape)], activation="Relu", **attributes)
    with pytest.raises(NotSupported, match="activation 'Sideways'"):
        run("FusedConv", [x, w, bias], activation="Sideways", **attributes)


def test_channels_last_convolution_is_the_plain_one() -> None:
    """onnxruntime has it for other processors only."""
    x, w, bias = normal(2, 9, 8, 4), normal(6, 4, 3, 3), normal(6)
    (expected,) = run("FusedConv", [x.transpose(0, 3, 1, 2), w, bias], pads=[1] * 4)
    (y,) = run("NhwcConv", [x, w, bias], pads=[1] * 4)
    np.testing.assert_allclose(y.transpose(0, 3, 1, 2), expected, rtol=1e-5, atol=1e-5)


def test_products_with_what_is_fused() -> None:
    a, b = normal(2, 3, 4, 5), normal(2, 3, 5, 6)
    agrees("FusedMatMul", [a, b], alpha=0.5)
    agrees("FusedMatMul", [a.swapaxes(2, 3).copy(), b], transA=1)
    agrees("FusedMatMul", [a, b.swapaxes(2, 3).copy()], transB=1, alpha=2.0)
    agrees("FusedMatMul", [np.ascontiguousarray(np.moveaxis(a, 2, 0)), b], transBatchA=1)
    agrees("FusedMatMul", [a[0, 0], b[0, 0]])
    for name in ("Relu", "LeakyRelu"):
        more = {"activation_alpha": 0.3} if name == "LeakyRelu" else {}
        agrees("FusedGemm", [a[0, 0], b[0, 0], normal(6)], activation=name, beta=0.5, **more)


def test_activations() -> None:
    x, bias = 3 * normal(2, 3, 8), normal(8)
    agrees("Gelu", [x])
    agrees("FastGelu", [x])
    agrees("FastGelu", [x, bias])
    agrees("BiasGelu", [x, bias])
    agrees("QuickGelu", [x], alpha=1.5)
    added = normal(1, 3, 8)  # on CUDA only in onnxruntime
    (y,) = run("BiasSoftmax", [x, added], axis=2, is_inner_broadcast=0)
    grown = np.exp((x + added).astype(np.float64))
    np.testing.assert_allclose(y, grown / grown.sum(2, keepdims=True), rtol=1e-5)
    y = run("BiasSplitGelu", [x, bias])[0]
    half = run("Gelu", [(x + bias)[..., 4:]])[0]
    np.testing.assert_allclose(y, (x + bias)[..., :4] * half, rtol=1e-5, atol=1e-5)
    agrees("Pad", [x, np.array([0, 1, 0, 0, 0, 2]), real(1.5)])
    agrees(
        "GridSample",
        [normal(1, 2, 5, 6), RNG.uniform(-1, 1, (1, 3, 4, 2)).astype(np.float32)],
        mode="bilinear",
    )


def test_normalizations_of_sums() -> None:
    x, skip, scale, offset, bias = normal(2, 5, 16), normal(2, 5, 16), normal(16), normal(16), normal(16)
    agrees(
        "SkipLayerNormalization",
        [x, skip, scale, offset, bias],
        4,
        compared=(0, 1),
        omitted=(1, 2),
        epsilon=1e-5,
    )
    agrees("SkipLayerNormalization", [x, skip[:1], scale], 1, epsilon=1e-5)
    agrees(
        "SkipSimplifiedLayerNormalization",
        [x, skip, scale, bias],
        4,
        compared=(0, 1),
        omitted=(1, 2),
        epsilon=1e-5,
    )
    with pytest.raises(InvalidShape, match="must be"):
        run("SkipLayerNormalization", [x, skip[:, :3], scale])


def test_simplified_normalization_stands_in_the_own_domain() -> None:
    x, scale = normal(2, 5, 16), normal(16)
    model = one_node("SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-5)
    (expected,) = by_onnxruntime(model, feeds([x, scale]))
    (y,) = backend.prepare(model).run([x, scale])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_embeddings() -> None:
    words, places, kinds = normal(30, 16), normal(10, 16), normal(2, 16)
    ids, segments = RNG.integers(0, 30, (2, 6)).astype(np.int32), RNG.integers(0, 2, (2, 6)).astype(np.int32)
    mask = np.array([[1, 1, 1, 1, 0, 0], [1] * 6], np.int32)
    inputs = [ids, segments, words, places, kinds, normal(16), normal(16), mask]
    agrees("EmbedLayerNormalization", inputs, 3, compared=(0, 1, 2), epsilon=1e-5)
    agrees(
        "EmbedLayerNormalization", [ids, None, words, places, None, normal(16), normal(16)], 2, epsilon=1e-5
    )
    with pytest.raises(InvalidArgument, match="outside of an extent of 30"):
        run("EmbedLayerNormalization", [ids + 30, *inputs[1:]])


# ---- attention

N, T, HEADS, WIDTH = 2, 5, 2, 16
HIDDEN = HEADS * WIDTH


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_encoders(causal: int) -> None:
    x, weights, bias = normal(N, T, 12), normal(12, 3 * HIDDEN) / 3, normal(3 * HIDDEN)
    attributes = {"num_heads": HEADS, "unidirectional": causal}
    agrees("Attention", [x, weights, bias], **attributes)
    masks = [
        np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32), np.array([3, 5], np.int32),
        RNG.integers(0, 2, (N, T, T)).astype(np.int32) | np.eye(T, dtype=np.int32),
        np.array([3, 5, 1, 0], np.int32),
    ]  # fmt: skip
    for mask in masks:
        if not (causal and mask.ndim == 1 and len(mask) == 2 * N):  # where the first query sees nothing
            agrees("Attention", [x, weights, bias, mask], **attributes)
    agrees("Attention", [x, weights, bias, None, None, normal(N, HEADS, T, T)], **attributes)
    past = normal(2, N, HEADS, 3, WIDTH)
    agrees("Attention", [x, weights, bias, None, past], 2, compared=(0, 1), **attributes)
    with pytest.raises(InvalidShape, match="do not have"):
        run("Attention", [x, weights, bias], num_heads=3)


def test_attention_of_many_heads() -> None:
    q, k, v, bias = normal(N, T, HIDDEN), normal(N, 7, HIDDEN), normal(N, 7, HIDDEN), normal(3 * HIDDEN)
    attributes = {"num_heads": HEADS}
    agrees("MultiHeadAttention", [q, k, v], **attributes)
    agrees("MultiHeadAttention", [q, k, v, bias], scale=0.2, **attributes)
    padding = np.array([[1, 1, 1, 1, 0, 0, 0], [1] * 7], np.int32)
    agrees("MultiHeadAttention", [q, k, v, bias, padding], **attributes)
    agrees("MultiHeadAttention", [q, k, v, None, None, normal(1, HEADS, T, 7)], **attributes)
    past = [normal(N, HEADS, 3, WIDTH) for _ in range(2)]
    inputs = [q, normal(N, T, HIDDEN), normal(N, T, HIDDEN), None, None, None, *past]
    agrees("MultiHeadAttention", inputs, 3, compared=(0, 1, 2), unidirectional=1, **attributes)
    both = [normal(N, T, HEADS, 3, WIDTH), normal(N, 7, HEADS, 2, WIDTH)]
    parts = [both[0][..., number, :].reshape(N, T, HIDDEN) for number in range(3)]
    (packed,), (plain,) = (
        run("MultiHeadAttention", both[:1], **attributes),
        run("MultiHeadAttention", parts, **attributes),
    )
    np.testing.assert_allclose(packed, plain, rtol=1e-5, atol=1e-6)
    pairs = [both[1][..., number, :].reshape(N, 7, HIDDEN) for number in range(2)]
    (packed,), (plain,) = (
        run("MultiHeadAttention", [q, both[1]], **attributes),
        run("MultiHeadAttention", [q, *pairs], **attributes),
    )
    np.testing.assert_allclose(packed, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embeddings(interleaved: int) -> None:
    angles = RNG.uniform(0, 6, (20, WIDTH // 2))
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    x = normal(N, T, HIDDEN)
    places = RNG.integers(0, 20, (N, T))
    agrees("RotaryEmbedding", [x, places, *caches], interleaved=interleaved)
    agrees("RotaryEmbedding", [x, np.array([3]), *caches], interleaved=interleaved)
    agrees("RotaryEmbedding", [normal(N, HEADS, T, WIDTH), places, *caches], interleaved=interleaved)
    with pytest.raises(InvalidArgument, match="outside of an extent of 20"):
        run("RotaryEmbedding", [x, places + 20, *caches])


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("window", [-1, 3])
def test_a_decoder_with_a_cache(rotary: int, window: int) -> None:
    """A prompt, then a step with sequences of different lengths."""
    heads, groups = 4, 2
    angles = RNG.uniform(0, 6, (30, WIDTH // 2))
    caches = (
        [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)] if rotary else [None, None]
    )
    attributes = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "do_rotary": rotary,
        "local_window_size": window,
    }

    def operands(steps: int) -> list[Array]:
        return [normal(N, steps, count * WIDTH) for count in (heads, groups, groups)]

    empty = [np.zeros((N, groups, 0, WIDTH), np.float32)] * 2
    prompt = [*operands(6), *empty, np.array([5, 5], np.int32), np.array(6, np.int32), *caches]
    agrees("GroupQueryAttention", prompt, 3, compared=(0, 1, 2), **attributes)
    past = [normal(N, groups, 9, WIDTH) for _ in range(2)]
    step = [*operands(1), *past, np.array([9, 9], np.int32), np.array(10, np.int32), *caches]
    agrees("GroupQueryAttention", step, 3, compared=(0, 1, 2), **attributes)
    shared = [*operands(1), *past, np.array([4, 8], np.int32), np.array(9, np.int32), *caches]
    agrees("GroupQueryAttention", shared, 3, compared=(0,), **attributes)
    with pytest.raises(InvalidArgument, match="do not fit a cache"):
        run("GroupQueryAttention", [*step[:5], np.array([20, 3], np.int32), *step[6:]], 3, **attributes)


# ---- 8-bit integers


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_sums_and_activations_of_bytes(dtype: Any) -> None:
    a, b = draw(dtype, 2, 3, 7, 5), draw(dtype, 2, 3, 7, 5)
    one, two = [real(0.0213), draw(dtype)], [real(0.0317), draw(dtype)]
    result = [real(0.0407), draw(dtype)]
    agrees("QLinearAdd", [a, *one, b, *two, *result])
    agrees("QLinearMul", [a, *one, b[:, :1, :1], *two, *result])
    agrees("QLinearSigmoid", [a, *one, real(1 / 256), np.array(0, dtype)])
    agrees("QLinearLeakyRelu", [a, *one, *result], alpha=0.2)
    agrees("QLinearGlobalAveragePool", [a, *one, *result])
    agrees("QLinearGlobalAveragePool", [a, *one, *result], channels_last=1)
    agrees("QLinearAveragePool", [a, *one, *result], kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])
    agrees("QLinearSoftmax", [a, *one, real(1 / 256), np.array(0, dtype)], axis=-1, opset=13)
    agrees("QLinearConcat", [*result, a, *one, b, *two], axis=1)
    agrees("QLinearWhere", [a > 3, a, *one, b, *two, *result])
    agrees("QuantizeLinear", [normal(3, 4), real(0.1), draw(dtype)])
    agrees("DequantizeLinear", [a, *one])


@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
def test_products_of_bytes(b_type: Any) -> None:
    a, b = draw(np.uint8, 5, 33), draw(b_type, 33, 7)
    scales = RNG.uniform(0.01, 0.05, 7).astype(np.float32)
    zero, columns = draw(np.uint8), draw(b_type, 7)
    agrees("MatMulIntegerToFloat", [a, b, real(0.02), real(0.03), zero, columns[0:1].reshape(()), normal(7)])
    agrees("MatMulIntegerToFloat", [a, b, real(0.02), scales, zero, columns])
    agrees("DynamicQuantizeMatMul", [normal(5, 33), b, scales, columns, normal(7)], tolerance=1e-3)
    agrees("DynamicQuantizeMatMul", [normal(2, 5, 33), b, real(0.02)], tolerance=1e-3)
    offset = RNG.integers(-999, 999, 7).astype(np.int32)
    inputs = [a, real(0.02), zero, b, real(0.03), columns[0:1].reshape(())]
    agrees("QGemm", [*inputs, offset, real(0.5), draw(np.uint8)])
    agrees("QGemm", [*inputs, offset])
    agrees(
        "QGemm",
        [a, real(0.02), zero, b.T.copy(), real(0.03), inputs[-1], offset, real(0.5), draw(np.uint8)],
        transB=1,
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(bits: int) -> None:
    rows, depth, block = 6, 64, 16
    b = draw(np.uint8, rows, depth // block, block * bits // 8)
    scales = RNG.uniform(0.01, 0.1, (rows, depth // block)).astype(np.float32)
    attributes = {"K": depth, "N": rows, "bits": bits, "block_size": block}
    a = normal(3, depth)
    agrees("MatMulNBits", [a, b, scales.reshape(-1)], tolerance=1e-4, **attributes)
    zeros = draw(np.uint8, rows * depth // block * bits // 8)
    agrees("MatMulNBits", [a, b, scales.reshape(-1), zeros], tolerance=1e-4, **attributes)
    with pytest.raises(InvalidShape, match="must be"):
        run("MatMulNBits", [a, b[:, :1], scales], **attributes)
