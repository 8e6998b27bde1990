"""Graphs of quantized tensors: what becomes products of bytes, what does not, and that both compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn.graph.stored as stored_constants
from jitdnn.frameworks.onnx.operator import Site
from jitdnn.frameworks.onnx.quantization import dequantize_linear, quantize_linear
from jitdnn.graph import primitives as jd
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import Graph
from jitdnn.graph.lower.builder import Builder, Shared
from jitdnn.graph.passes import Memo, optimized
from jitdnn.graph.plan import Plan
from jitdnn.graph.stored import Stored, remember, stored_of
from jitdnn.graph.tracer import Tracer
from jitdnn.rtcg.expression import trace

Array = np.ndarray[Any, Any]
SITE = Site("Operator", "a node", 17, (True,))


def number(value: float) -> Array:
    return np.asarray(value, np.float32)


def real(q: Any, scale: Any = 0.05, zero: Any = 0, axis: int = 0) -> Any:
    """`scale * (q - zero)`."""
    return dequantize_linear(
        q, np.asarray(scale, np.float32), np.asarray(zero, q.dtype), axis=axis, site=SITE
    )


def stored(x: Any, scale: float, zero: int, dtype: Any = np.uint8) -> Any:
    """x as bytes."""
    return quantize_linear(x, number(scale), np.asarray(zero, dtype), site=SITE)


def graphs(function: Any, x: Array) -> tuple[Graph, Graph]:
    """The graph by reals, and by products of bytes."""
    tracer = Tracer()
    operand = tracer.input(x.shape, x.dtype)
    graph = tracer.graph([operand], [function(operand)])
    return optimized(graph, Memo()), optimized(graph, Memo(), has_dot=True)


def both(function: Any, x: Array) -> tuple[Graph, Array, Array]:
    """The graph by bytes, its result and that of the graph by reals."""
    plain, graph = graphs(function, x)
    expected, found = (Plan(g, Builder(g, Shared(), EngineHandle())).run([x])[0] for g in (plain, graph))
    return graph, found, expected


def bytes_of(seed: int, *shape: int, dtype: Any = np.uint8) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


W = bytes_of(1, 6, 5, 3, 3, dtype=np.int8)
SCALES = np.linspace(0.01, 0.03, 6, dtype=np.float32)
BIAS = np.linspace(-4, 4, 6, dtype=np.float32)


def products(graph: Graph) -> list[str]:
    """The types of the first two operands of products, and of their results."""
    return [
        " ".join(v.dtype.name for v in (*node.inputs[:2], node.output))
        for node in graph.nodes
        if node.op in ("conv", "matmul")
    ]


@pytest.mark.parametrize("zero", [0, 3, 255])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("scales", [0.02, SCALES])
def test_convolutions(zero: int, padding: int, scales: Any) -> None:
    def net(x: Any) -> Any:
        return stored(jd.conv(real(x, 0.05, zero), real(W, scales), BIAS, padding=padding), 0.3, 120)

    graph, found, expected = both(net, bytes_of(2, 2, 5, 7, 9))
    assert products(graph) == ["uint8 int8 uint8"]
    assert found.dtype == np.uint8
    apart = found.astype(int) - expected
    assert abs(apart).max() <= 1  # where a result is a tie but for rounding
    assert (apart != 0).mean() < 0.01
    assert {0, 255} <= set(expected.flat)  # the ends of the range are met


def test_results_stay_real_where_nothing_quantizes_them() -> None:
    graph, found, expected = both(
        lambda x: jd.conv(real(x), real(W, SCALES), BIAS, stride=2), bytes_of(3, 1, 5, 9, 8)
    )
    assert products(graph) == ["uint8 int8 float32"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_signed_bytes_and_filters_of_unsigned_ones() -> None:
    w = bytes_of(4, 6, 5, 1, 1)

    def net(x: Any) -> Any:
        return stored(jd.conv(real(x), real(w, 0.02, 128)), 0.2, -3, np.int8)

    graph, found, expected = both(net, bytes_of(5, 2, 5, 6, 6, dtype=np.int8))
    assert products(graph) == ["int8 int8 int8"]
    assert abs(found.astype(int) - expected).max() <= 1


def test_what_is_read_between_is_what_bytes_hold() -> None:
    """The sum reads a result of which much is beyond the range."""

    def net(x: Any) -> Any:
        y = real(stored(jd.conv(real(x), real(W, SCALES), padding=1), 0.02, 10), 0.02, 10)
        return stored(y.tracer.pointwise(trace(lambda a, b: a + b * 0.5), [y, y], y.dtype), 0.05, 0)

    graph, found, expected = both(net, bytes_of(6, 2, 5, 7, 7))
    assert len(graph.nodes) == 1
    assert abs(found.astype(int) - expected).max() <= 1
    assert (found != expected).mean() < 0.01


def test_an_activation_goes_into_the_store() -> None:
    def net(x: Any) -> Any:
        return stored(jd.swish(jd.conv(real(x, 0.05, 7), real(W, SCALES), padding=1)), 0.1, 4)

    graph, found, expected = both(net, bytes_of(7, 2, 5, 7, 7))
    assert [node.op for node in graph.nodes] == ["primitive", "conv"]
    assert abs(found.astype(int) - expected).max() <= 1


def test_views_and_maxima_are_of_bytes() -> None:
    def net(x: Any) -> Any:
        y = real(stored(jd.max_pool(real(x, 0.1, 9), 3, stride=2, padding=1), 0.1, 9), 0.1, 9)
        return jd.matmul(y.reshape(2, -1), real(bytes_of(8, 60, 4, dtype=np.int8), SCALES[:4], axis=1))

    graph, found, expected = both(net, bytes_of(9, 2, 5, 7, 6))
    assert [node.op for node in graph.nodes] == ["primitive", "view", "matmul"]
    assert products(graph) == ["uint8 int8 float32"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    "w",
    [
        real(W, SCALES, np.arange(6)),  # zeros of its own
        real(W, np.linspace(0.01, 0.02, 5), axis=1),  # scales of channels that are summed
        real(bytes_of(1, 6, 5, 3, 3), 0.1, 127),
        np.random.default_rng(0).standard_normal((6, 5, 3, 3)).astype(np.float32),
    ],
)
def test_other_filters_are_multiplied_as_reals(w: Array) -> None:
    graph, found, expected = both(lambda x: jd.conv(real(x), w), bytes_of(3, 1, 5, 6, 6))
    assert products(graph) == ["float32 float32 float32"]
    np.testing.assert_array_equal(found, expected)


def test_sums_beyond_32_bits_are_of_reals() -> None:
    w = real(np.ones((1, 1 << 16, 1, 1), np.int8), 1.0)
    assert products(graphs(lambda x: jd.conv(real(x), w), bytes_of(3, 1, 1 << 16, 1, 1))[1]) == [
        "float32 float32 float32"
    ]


def test_what_an_array_was_made_of_is_known_as_long_as_it_lives() -> None:
    made = np.arange(12, dtype=np.float32).reshape(3, 4)
    remember(made, Stored(np.arange(12, dtype=np.int8).reshape(3, 4), SCALES[:4], np.zeros((), np.int8)))
    turned = stored_of(made.T)
    assert turned is not None
    np.testing.assert_array_equal(turned.integers, np.arange(12).reshape(3, 4).T)
    np.testing.assert_array_equal(turned.scale, SCALES[:4, None])
    assert stored_of(made) is not None
    assert stored_of(made[1:]) is None
    assert stored_of(made.copy()) is None
    place = id(made)
    del made
    assert place not in stored_constants._entries
