"""Each pass alone: what it makes of a graph, and that the graph computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitdnn.graph import primitives as jd
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import Graph
from jitdnn.graph.lower.builder import Builder, Shared
from jitdnn.graph.lower.nodes import factor_of
from jitdnn.graph.lower.schedule import lower
from jitdnn.graph.passes import Memo, optimized
from jitdnn.graph.passes.affine import folded_affine
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.epilogues import with_epilogues
from jitdnn.graph.passes.normalizations import with_normalizations
from jitdnn.graph.passes.pointwise import fused_pointwise
from jitdnn.graph.passes.recurrent import single_steps
from jitdnn.graph.passes.scalars import with_numbers
from jitdnn.graph.passes.views import joined_views, with_padding
from jitdnn.graph.plan import Plan
from jitdnn.graph.tracer import Tracer
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import rint

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(3)


def filled(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def traced(function: Callable[..., Any], *arrays: Array) -> Graph:
    tracer = Tracer()
    operands = [tracer.input(a.shape, a.dtype) for a in arrays]
    results = function(*operands)
    return tracer.graph(operands, results if isinstance(results, tuple) else (results,))


def run(graph: Graph, *arrays: Array) -> list[Array]:
    return Plan(graph, Builder(graph, Shared(), EngineHandle())).run(arrays)


def added(x: Any, y: Any) -> Any:
    return x.tracer.pointwise(trace(lambda a, b: a + b), [x, y], x.dtype)


W, BIAS = filled(5, 3, 3, 3), filled(5)
STATISTICS = [filled(5), filled(5), filled(5), np.abs(filled(5)) + 0.5]


def normalized(y: Any) -> Any:
    return jd.batch_norm_inference(y, *STATISTICS, mode="spatial", epsilon=1e-3)


def block(x: Any) -> Any:
    y = jd.relu(normalized(jd.conv(x, W, BIAS, padding=1)))
    return added(jd.conv(y, filled_once, padding=1), x)


filled_once = filled(3, 5, 3, 3)


def memoless(transform: Callable[[Graph], Graph]) -> Callable[[Graph, Memo], Graph]:
    return lambda graph, memo: transform(graph)


PASSES = {
    "dead": memoless(without_dead), "affine": folded_affine, "pointwise": memoless(fused_pointwise),
    "scalars": memoless(with_numbers), "epilogues": memoless(with_epilogues), "views": memoless(joined_views),
    "padding": memoless(with_padding), "normalizations": with_normalizations, "all": optimized,
}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_changes_no_result(name: str) -> None:
    def net(x: Any) -> Any:
        y = block(x)
        half = x.tracer.pointwise(trace(lambda v, c: v * c), [y, np.float32([0.5])], y.dtype)
        padded = jd.conv(jd.transform(half, pad=[(0, 0), (0, 0), (1, 2), (0, 1)]), W)
        turned = padded.transpose(0, 2, 3, 1).reshape(2, -1, 5).reshape(-1, 5).transpose().transpose()
        jd.relu(padded)
        return turned, np.concatenate([y, half], 1), jd.softmax(padded, 1)

    x = filled(2, 3, 7, 9)
    graph = traced(net, x)
    for one, other in zip(run(graph, x), run(PASSES[name](graph, Memo()), x), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_unread_nodes_are_dropped() -> None:
    def net(x: Any) -> Any:
        jd.relu(x)
        return jd.sigmoid(x)

    graph = traced(net, filled(2, 3))
    assert (len(graph.nodes), len(without_dead(graph).nodes)) == (2, 1)


def test_normalizations_go_into_filters() -> None:
    graph = folded_affine(traced(lambda x: normalized(jd.conv(x, W)), filled(1, 3, 5, 5)), Memo())
    assert ops(graph) == ["conv"]


def test_a_normalization_stays_where_the_convolution_is_read_besides() -> None:
    def net(x: Any) -> Any:
        y = jd.conv(x, W)
        return normalized(y), jd.relu(y)

    assert ops(folded_affine(traced(net, filled(1, 3, 5, 5)), Memo())) == ["conv", "pointwise", "pointwise"]


def test_folded_filters_are_made_once() -> None:
    memo = Memo()
    made = [folded_affine(traced(_normalized_conv, filled(n, 3, 5, 5)), memo) for n in (1, 2)]
    assert made[0].nodes[0].inputs[1].array is not None
    # parameters of one shape are the same for both kinds of inputs only where tracing remembers them, too
    assert all(ops(graph) == ["conv"] for graph in made)


def _normalized_conv(x: Any) -> Any:
    return normalized(jd.conv(x, W))


def test_chains_become_one_formula() -> None:
    graph = fused_pointwise(traced(lambda x: jd.tanh(jd.relu(added(x, jd.sigmoid(x)))), filled(4, 5)))
    graph = without_dead(graph)
    assert ops(graph) == ["pointwise"]
    assert len(graph.nodes[0].inputs) == 1


def test_a_formula_of_fewer_elements_stays_alone() -> None:
    def net(x: Any, row: Any) -> Any:
        return added(x, jd.tanh(row))

    assert ops(fused_pointwise(traced(net, filled(4, 5), filled(1, 5)))) == ["pointwise", "pointwise"]


def test_integers_are_not_mixed_with_reals() -> None:
    def net(x: Any) -> Any:
        doubled = x.tracer.pointwise(trace(lambda v: v + v), [x], x.dtype)
        return doubled.astype(np.float32)

    x = np.arange(6).reshape(2, 3)
    graph = traced(net, x)
    assert len(fused_pointwise(graph).nodes) == 2


def test_residual_and_activation_are_epilogues() -> None:
    def net(x: Any, r: Any) -> Any:
        return jd.relu(added(jd.conv(x, W, BIAS), r))

    x, r = filled(1, 3, 5, 5), filled(1, 5, 3, 3)
    graph = with_epilogues(fused_pointwise(traced(net, x, r)))
    assert ops(graph) == ["conv"]
    assert len(graph.nodes[0].inputs) == 4


def test_an_operand_that_widens_the_result_is_no_epilogue() -> None:
    def net(x: Any, r: Any) -> Any:
        return added(jd.conv(x, W), r)

    x, r = filled(1, 3, 5, 5), filled(2, 5, 3, 3)
    assert ops(with_epilogues(traced(net, x, r))) == ["conv", "pointwise"]


def test_constants_of_one_element_become_numbers() -> None:
    half = np.float32([[0.5]])
    graph = with_numbers(traced(lambda x: added(x, half), filled(3, 4)))
    assert len(graph.nodes[0].inputs) == 1


def test_a_constant_that_adds_an_axis_stays() -> None:
    graph = with_numbers(traced(lambda x: added(x, np.ones((1, 1, 1), np.float32)), filled(3, 4)))
    assert len(graph.nodes[0].inputs) == 2


def test_transposes_cancel() -> None:
    graph = without_dead(
        joined_views(traced(lambda x: jd.relu(x.transpose(1, 2, 0).transpose(2, 0, 1)), filled(2, 3, 4)))
    )
    assert ops(graph) == ["pointwise"]


def test_a_border_of_zeros_is_padding() -> None:
    def net(x: Any) -> Any:
        return jd.conv(jd.transform(x, pad=[(0, 0), (0, 0), (1, 0), (2, 3)]), W, padding=1)

    graph = with_padding(traced(net, filled(1, 3, 5, 5)))
    assert ops(graph) == ["conv"]
    assert graph.nodes[0].attributes["padding"] == ((2, 1), (3, 4))


def test_a_border_of_ones_is_not() -> None:
    def net(x: Any) -> Any:
        return jd.conv(jd.transform(x, pad=[(0, 0), (0, 0), (1, 0), (2, 3)], value=1.0), W)

    assert len(with_padding(traced(net, filled(1, 3, 5, 5))).nodes) == 2


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("length", [1, 2])
def test_an_lstm_over_one_step_is_a_product(has_bias: bool, has_state: bool, length: int) -> None:
    weights = [filled(20, 3), filled(20, 5)] + ([filled(20), filled(20)] if has_bias else [])
    arrays = [filled(length, 2, 3), *([filled(1, 2, 5), filled(1, 2, 5)] if has_state else [])]

    def net(x: Any, *states: Any) -> Any:
        return jd.lstm(x, weights, *(states or (None, None)), bidirectional=False, lengths=None)

    before = traced(net, *arrays)
    after = single_steps(before, Memo())
    assert ("matmul" in ops(after)) == (length == 1)
    for one, other in zip(run(before, *arrays), run(after, *arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


SCALES = {
    "times": (lambda v: v * 0.3, 0.3), "over a power of two": (lambda v: v / 8.0, 0.125),
    "over another": (lambda v: v / 3.0, None), "under": (lambda v: 8.0 / v, None),
    "more": (lambda v: v * 0.3 + 1.0, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_of_a_product_is_its_alpha(name: str) -> None:
    function, factor = SCALES[name]
    assert factor_of(trace(function)) == factor
    a, b = filled(2, 3, 4, 5), filled(2, 1, 5, 6)

    def net(a: Any, b: Any) -> Any:
        y = jd.matmul(a, b)
        return y.tracer.pointwise(trace(function), [y], y.dtype)

    graph = traced(net, a, b)
    made = with_epilogues(graph)
    assert ops(made) == ["matmul"]
    for one, other in zip(run(made, a, b), run(graph, a, b), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_bytes_that_convolutions_read_have_their_channels_last() -> None:
    """Whatever the order of what they were quantized from: they are transposed once, by the formula that makes them."""
    tracer = Tracer()
    x = tracer.input((1, 8, 5, 6), np.float32)
    quantized = tracer.pointwise(trace(lambda v: rint(v * 10.0)), [x], np.uint8)
    other = tracer.pointwise(trace(lambda v: rint(v * 5.0)), [x], np.uint8)
    kinds = [((1, 4, 5, 6), np.dtype(np.int32))]
    how = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "epilogue": None}
    y = tracer.add("conv", [quantized, np.ones((4, 8, 1, 1), np.int8)], kinds, **how)[0]
    graph = tracer.graph([x], [y, other])
    b = Builder(graph, Shared(), EngineHandle(threads=1))
    lower(b)
    assert b.arrays[quantized.value].strides == (240, 1, 48, 8)
    assert b.arrays[other.value].strides == (240, 30, 6, 1)


def test_a_chain_whose_links_read_the_one_before_twice_does_not_double() -> None:
    """As each x + x, or x * sigmoid(x), does: what stands for n links has n of them, not 2 to the power of n."""
    x = filled(2, 3)

    def chain(y: Any) -> Any:
        for _ in range(60):
            y = y.tracer.pointwise(trace(lambda a, b: (a + b) * 0.5), [y, y], y.dtype)
        return y

    graph = fused_pointwise(traced(chain, x))
    assert len(graph.nodes) <= 6
    assert sum(len(node.origin) for node in graph.nodes) <= 60
    np.testing.assert_allclose(run(graph, x)[0], x, rtol=1e-5)


def test_plans_of_several_shapes_take_turns_with_one_block_of_memory() -> None:
    shared = Shared()
    plans = []
    for size in (40, 9, 23):
        x = filled(1, 3, size, size)
        plans.append((Plan(traced(block, x), Builder(traced(block, x), shared, EngineHandle())), x))
    for plan, x in (*plans, *reversed(plans)):
        expected = run(traced(block, x), x)[0]
        np.testing.assert_allclose(plan.run([x])[0], expected, rtol=1e-4, atol=1e-5)
    (kept,) = shared.arenas.idle
    assert kept.bytes == max(plan.nbytes for plan, _ in plans)


def test_a_scale_and_a_residual_between_a_transpose_and_the_next_layer() -> None:
    """As between the products and the depthwise convolutions of ConvNeXt."""
    first, second, scale = filled(8, 16), filled(16, 8), filled(8, 1, 1)

    def net(x: Any) -> Any:
        for _ in range(2):
            y = jd.matmul(jd.relu(jd.matmul(x.transpose(0, 2, 3, 1), first)), second)
            x = x.tracer.pointwise(
                trace(lambda v, s, r: v * s + r), [y.transpose(0, 3, 1, 2), scale, x], x.dtype
            )
        return x

    x = filled(2, 8, 3, 5)
    graph = traced(net, x)
    done = optimized(graph, Memo())
    assert "pointwise" not in ops(done)
    for one, other in zip(run(graph, x), run(done, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_a_product_that_is_read_besides_stays_alone() -> None:
    matrix = filled(8, 6)

    def net(x: Any, residual: Any) -> Any:
        y = jd.matmul(x, matrix).transpose(0, 2, 1)
        return added(y, residual), jd.relu(y)

    x, residual = filled(2, 4, 8), filled(2, 6, 4)
    graph = traced(net, x, residual)
    done = optimized(graph, Memo())
    assert "pointwise" in ops(done)
    for one, other in zip(run(graph, x, residual), run(done, x, residual), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
