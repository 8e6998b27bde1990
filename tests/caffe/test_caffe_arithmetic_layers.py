"""Eltwise, Scale, Bias, Reduction, ArgMax, MVN and Embed: values, gradients by differences, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import Array, backward, check_every_gradient, check_gradients, distinct, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(13)


# ---- Eltwise


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_eltwise(operation: str, count: int, random: np.random.Generator) -> None:
    shape = (2, 3, 5)
    inputs = list(distinct((count, *shape), random))
    net, node = one_layer(f'type: "Eltwise" eltwise_param {{ operation: {operation} }}', *[shape] * count)
    function = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum}[operation]
    found = forward(net, **{f"x{index}": x for index, x in enumerate(inputs)})
    np.testing.assert_allclose(found, function.reduce(inputs), rtol=1e-12)
    check_every_gradient(net, node, inputs, random)


def test_eltwise_with_coefficients(random: np.random.Generator) -> None:
    inputs = list(random.standard_normal((3, 7, 2)))
    layer = 'type: "Eltwise" eltwise_param { coeff: 1 coeff: -2.5 coeff: 0 }'
    net, node = one_layer(layer, *[(7, 2)] * 3)
    np.testing.assert_allclose(
        forward(net, x0=inputs[0], x1=inputs[1], x2=inputs[2]), inputs[0] - 2.5 * inputs[1], rtol=1e-12
    )
    check_every_gradient(net, node, inputs, random, [True, True, False])


def test_of_equal_maxima_one_has_the_gradient() -> None:
    """The second of the first two bottoms, else the first: Caffe compares with > each time."""
    layer = 'type: "Eltwise" eltwise_param { operation: MAX }'
    net, node = one_layer(layer, *[(3,)] * 3)
    net.forward(x0=np.array([1.0, 2, 0]), x1=np.array([1.0, 1, 0]), x2=np.array([1.0, 2, 3]))
    found = backward(node, np.ones(3))
    np.testing.assert_array_equal(found, [[0, 1, 0], [1, 0, 0], [0, 0, 1]])


def test_products_with_a_factor_of_0() -> None:
    for fields in ("", "stable_prod_grad: false"):
        net, node = one_layer(f'type: "Eltwise" eltwise_param {{ operation: PROD {fields} }}', (1,), (1,))
        net.forward(x0=np.zeros(1), x1=np.full(1, 3.0))
        np.testing.assert_array_equal(backward(node, np.ones(1)), [[3], [0]])


def test_what_eltwise_refuses() -> None:
    with pytest.raises(InvalidArgument, match=r"'l' \(Eltwise\) \(line 3\): bottom 'x1' has shape \(3, 2\)"):
        one_layer('type: "Eltwise"', (2, 3), (3, 2))
    with pytest.raises(InvalidArgument, match="1 coeff for 2 bottoms"):
        one_layer('type: "Eltwise" eltwise_param { coeff: 1 }', (2,), (2,))
    with pytest.raises(InvalidArgument, match="a product takes none"):
        one_layer('type: "Eltwise" eltwise_param { operation: PROD coeff: 1 coeff: 1 }', (2,), (2,))
    with pytest.raises(InvalidArgument, match="1 bottoms and needs at least 2"):
        one_layer('type: "Eltwise"', (2,))


# ---- Scale, Bias

AXES = [
    ("", (2, 3, 4, 1), (3,)),
    ("axis: 0", (2, 3), (2,)),
    ("axis: -1", (2, 3, 5), (5,)),
    ("axis: 1 num_axes: 2", (2, 3, 4, 1), (3, 4)),
    ("axis: 0 num_axes: -1", (2, 3), (2, 3)),
    ("num_axes: 0", (2, 3), ()),
]


def _operand(x: Array, operand: Array, fields: str) -> Array:
    """The operand with ones behind its axes, so that NumPy broadcasts it against x as Caffe does."""
    axis = int(fields.split("axis: ")[1].split()[0]) % x.ndim if fields.startswith("axis") else 1
    return operand.reshape(*operand.shape, *(1,) * (x.ndim - axis - operand.ndim))


GAUSSIAN = 'filler { type: "gaussian" } bias_filler { type: "gaussian" }'


@pytest.mark.parametrize(("fields", "shape", "operand"), AXES)
@pytest.mark.parametrize("bias", ["", "bias_term: true"])
@pytest.mark.parametrize("top", ["y", "x0"])
def test_scale(
    fields: str,
    shape: tuple[int, ...],
    operand: tuple[int, ...],
    bias: str,
    top: str,
    random: np.random.Generator,
) -> None:
    layer = f'type: "Scale" scale_param {{ {fields} {bias} {GAUSSIAN} }}'
    x, dy = random.standard_normal((2, *shape))
    net, node = one_layer(f'{layer} top: "{top}"', shape)
    weights = [blob.data for blob in node.layer.weights]
    assert [w.shape for w in weights] == [operand] * (2 if bias else 1)
    expected = x * _operand(x, weights[0], fields) + (_operand(x, weights[1], fields) if bias else 0)
    np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-12)
    if top == "y":
        check_gradients(net, node, x, random)
        return
    other, apart = one_layer(layer, shape)
    forward(other, x0=x)
    (dx,) = backward(apart, dy)
    net.forward(x0=x)
    for blob in node.layer.weights:
        blob.diff.fill(0)
    node.top[0].diff[...] = dy
    node.layer.backward(node.top, [True], node.bottom)
    np.testing.assert_array_equal(node.bottom[0].diff, dx)
    for blob, twin in zip(node.layer.weights, apart.layer.weights, strict=True):
        np.testing.assert_array_equal(blob.diff, twin.diff)


@pytest.mark.parametrize(("fields", "shape", "operand"), AXES)
@pytest.mark.parametrize("bias", ["", "bias_term: true"])
def test_scale_by_a_bottom(
    fields: str, shape: tuple[int, ...], operand: tuple[int, ...], bias: str, random: np.random.Generator
) -> None:
    net, node = one_layer(f'type: "Scale" scale_param {{ {fields} {bias} {GAUSSIAN} }}', shape, operand)
    x, factor = random.standard_normal(shape), np.array(random.standard_normal(operand))
    assert [blob.shape for blob in node.layer.weights] == ([operand] if bias else [])
    expected = x * _operand(x, factor, fields)
    if bias:
        expected = expected + _operand(x, node.layer.weights[0].data, fields)
    np.testing.assert_allclose(forward(net, x0=x, x1=factor), expected, rtol=1e-12)
    check_every_gradient(net, node, [x, factor], random)


@pytest.mark.parametrize(("fields", "shape", "operand"), AXES)
def test_bias(
    fields: str, shape: tuple[int, ...], operand: tuple[int, ...], random: np.random.Generator
) -> None:
    layer = f'type: "Bias" bias_param {{ {fields} filler {{ type: "gaussian" }} }}'
    x, summand = random.standard_normal(shape), np.array(random.standard_normal(operand))
    net, node = one_layer(layer, shape)
    (weight,) = (blob.data for blob in node.layer.weights)
    np.testing.assert_allclose(forward(net, x0=x), x + _operand(x, weight, fields), rtol=1e-12)
    check_gradients(net, node, x, random)
    net, node = one_layer(layer, shape, operand)
    np.testing.assert_allclose(forward(net, x0=x, x1=summand), x + _operand(x, summand, fields), rtol=1e-12)
    check_every_gradient(net, node, [x, summand], random)
    net, node = one_layer(f'{layer} top: "x0"', shape)
    net.forward(x0=x)
    np.testing.assert_allclose(node.top[0].data, x + _operand(x, weight, fields), rtol=1e-12)


def test_where_scale_and_bias_start(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3))
    for layer in ('type: "Scale" scale_param { bias_term: true }', 'type: "Bias"'):
        net, _ = one_layer(layer, (2, 3))
        np.testing.assert_array_equal(forward(net, x0=x), x)


@pytest.mark.parametrize("kind", ["Scale", "Bias"])
def test_what_scale_and_bias_refuse(kind: str) -> None:
    message = f"{kind.lower()}_param"
    with pytest.raises(InvalidArgument, match=rf"'l' \({kind}\) \(line 2\): num_axes 2 from axis 1 on"):
        one_layer(f'type: "{kind}" {message} {{ num_axes: 2 }}', (2, 3))
    with pytest.raises(
        InvalidArgument, match=r"'x1' has shape \(4,\), and a bottom of shape \(2, 3\) has \(3,\)"
    ):
        one_layer(f'type: "{kind}"', (2, 3), (4,))
    net, _ = one_layer(f'type: "{kind}"', (2, 3))
    with pytest.raises(InvalidArgument, match=r"the weights have shape \(3,\)"):
        net.reshape(x0=(2, 4))


def test_frozen_and_shared_factors(random: np.random.Generator) -> None:
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "a" type: "Scale" bottom: "x" top: "a" scale_param { filler { value: 2 } bias_term: true }
                param { name: "w" } param { lr_mult: 0 decay_mult: 0 } }
        layer { name: "b" type: "Scale" bottom: "a" top: "b" param { name: "w" } loss_weight: 1 }
    """
    net = load_net(text, dtype="f64")
    assert [(p.name, p.lr_mult, p.decay_mult) for p in net.parameters] == [("a/0", 1, 1), ("a/1", 0, 0)]
    x = random.standard_normal((2, 3))
    net.forward(x=x)
    net.backward()
    np.testing.assert_allclose(net.weights["b"][0].diff, 4 * x.sum(0), rtol=1e-12)
    np.testing.assert_array_equal(net.weights["a"][1].diff, 0)


# ---- Reduction

REDUCTIONS = {
    "SUM": lambda x: x.sum(1),
    "ASUM": lambda x: np.abs(x).sum(1),
    "SUMSQ": lambda x: (x * x).sum(1),
    "MEAN": lambda x: x.mean(1),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reduction(operation: str, axis: int, random: np.random.Generator) -> None:
    x = distinct((2, 3, 5), random) + 0.25
    fields = f"operation: {operation} axis: {axis} coeff: -1.5"
    net, node = one_layer(f'type: "Reduction" reduction_param {{ {fields} }}', x.shape)
    kept = x.shape[: axis % 3]
    expected = -1.5 * REDUCTIONS[operation](x.reshape(int(np.prod(kept)), -1)).reshape(kept)
    found = forward(net, x0=x)
    assert found.shape == kept
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    check_gradients(net, node, x, random)


def test_reduction_along_no_axis() -> None:
    with pytest.raises(InvalidArgument, match=r"line \d+\): axis 2 does not exist in a blob of 2 axes"):
        one_layer('type: "Reduction" reduction_param { axis: 2 }', (2, 3))


# ---- ArgMax


def test_positions_of_maxima() -> None:
    x = np.array([[[1, 5], [4, 5]], [[7, 1], [2, 3]]], float)

    def positions(fields: str) -> list[float]:
        net, _ = one_layer(f'type: "ArgMax" argmax_param {{ {fields} }}', x.shape)
        found: list[float] = forward(net, x0=x).tolist()
        return found

    assert positions("") == [[[3]], [[0]]]
    assert positions("top_k: 3") == [[[3, 1, 2]], [[0, 3, 2]]]
    assert positions("top_k: 2 out_max_val: true") == [[[3, 1], [5, 5]], [[0, 3], [7, 3]]]
    assert positions("axis: 1") == [[[1, 1]], [[0, 1]]]
    assert positions("axis: 0 out_max_val: true") == [[[7, 5], [4, 5]]]
    assert positions("axis: -1 top_k: 2") == [[[1, 0], [1, 0]], [[0, 1], [1, 0]]]


def test_shapes_of_positions() -> None:
    for shape, expected in (
        ((4, 3), (4, 1, 2)),
        ((4, 3, 2, 2), (4, 1, 2, 1)),
        ((4, 3, 1, 1, 1), (4, 1, 2, 1, 1)),
    ):
        _, node = one_layer('type: "ArgMax" argmax_param { top_k: 2 }', shape)
        assert node.top[0].shape == expected
    with pytest.raises(InvalidArgument, match=r"top_k is 4: it must be in 1 .. 3"):
        one_layer('type: "ArgMax" argmax_param { top_k: 4 }', (2, 3))
    with pytest.raises(InvalidArgument, match="positions have no gradient"):
        backward(node, np.zeros(node.top[0].shape))


# ---- MVN


def _mvn(x: Array, across: bool, divides: bool, epsilon: float) -> Array:
    axes = tuple(range(1 if across else 2, x.ndim))
    y = x - x.mean(axes, keepdims=True)
    return y / (np.sqrt((y * y).mean(axes, keepdims=True)) + epsilon) if divides else y


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("top", ["y", "x0"])
def test_mvn(across: bool, divides: bool, top: str, random: np.random.Generator) -> None:
    fields = f"across_channels: {across} normalize_variance: {divides}".lower()
    for shape in ((2, 3, 5, 1), (3, 2, 7)):
        x, dy = 3 + random.standard_normal((2, *shape))
        net, node = one_layer(f'type: "MVN" mvn_param {{ {fields} }} top: "{top}"', shape)
        np.testing.assert_allclose(forward(net, x0=x), _mvn(x, across, divides, 1e-9), rtol=1e-9, atol=1e-12)
        if top == "y":
            check_gradients(net, node, x, random)
            continue
        other, apart = one_layer(f'type: "MVN" mvn_param {{ {fields} }}', shape)
        forward(other, x0=x)
        node.top[0].diff[...] = dy
        node.layer.backward(node.top, [True], node.bottom)
        np.testing.assert_array_equal(node.bottom[0].diff, backward(apart, dy)[0])


def test_mvn_adds_eps_to_the_deviation(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 5))
    net, _ = one_layer('type: "MVN" mvn_param { eps: 0.5 }', x.shape)
    np.testing.assert_allclose(forward(net, x0=x), _mvn(x, False, True, 0.5), rtol=1e-9)
    with pytest.raises(InvalidArgument, match="needs a batch and channels"):
        one_layer('type: "MVN"', (2,))


# ---- Embed


@pytest.mark.parametrize("shape", [(5,), (3, 2), (2, 1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_embed(shape: tuple[int, ...], bias: bool, random: np.random.Generator) -> None:
    fillers = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
    fields = f"input_dim: 4 num_output: 3 bias_term: {str(bias).lower()} {fillers}"
    net, node = one_layer(f'type: "Embed" embed_param {{ {fields} }}', shape)
    rows = random.integers(0, 3, shape)  # the last row is never named
    weights = [blob.data for blob in node.layer.weights]
    expected = weights[0][rows] + (weights[1] if bias else 0)
    np.testing.assert_allclose(forward(net, x0=rows.astype(float)), expected, rtol=1e-12)
    dy = random.standard_normal((*shape, 3))
    backward(node, dy, [False])
    dw = np.zeros((4, 3))
    np.add.at(dw, rows, dy)
    np.testing.assert_allclose(node.layer.weights[0].diff, dw, rtol=1e-12, atol=1e-15)
    if bias:
        np.testing.assert_allclose(node.layer.weights[1].diff, dy.reshape(-1, 3).sum(0), rtol=1e-12)


def test_what_embed_refuses() -> None:
    for fields, name in (("input_dim: 2", "num_output"), ("num_output: 2", "input_dim")):
        with pytest.raises(InvalidArgument, match=f"{name} is missing or 0"):
            one_layer(f'type: "Embed" embed_param {{ {fields} }}', (2,))
    net, node = one_layer('type: "Embed" embed_param { input_dim: 2 num_output: 2 }', (2,))
    for row in (-1, 2, np.nan):
        with pytest.raises(InvalidArgument, match=r"is outside of 0 .. 1"):
            net.forward(x0=np.array([0, row]))
    with pytest.raises(InvalidArgument, match="numbers of rows have no gradient"):
        backward(node, np.zeros((2, 2)))
