"""LSTM, RNN and LSTMUnit: against PyTorch, gradients by differences, resets, states, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caffe_nets import Array, backward, check_every_gradient, forward, one_layer, shape_text
from jitdnn.caffe import Net, load_net
from jitdnn.caffe.graph import Node
from jitdnn.errors import InvalidArgument

T, N, D = 4, 3, 5
X = (T, N, 2, 3)
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" }'
TOPS = {"LSTM": 'top: "y" top: "h" top: "c"', "RNN": 'top: "y" top: "h"'}


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(29)


def layer(kind: str, fields: str = "") -> str:
    return f'type: "{kind}" recurrent_param {{ num_output: {D} {FILLERS} {fields} }}'


def starting(random: np.random.Generator) -> Array:
    """`cont` with sequences that begin in the middle."""
    cont = np.ones((T, N))
    cont[0] = 0
    cont[2, 1] = 0
    return cont


def exposed(kind: str, *shapes: tuple[int, ...]) -> tuple[Net, Node]:
    states = ((1, N, D),) * (2 if kind == "LSTM" else 1)
    return one_layer(f"{layer(kind, 'expose_hidden: true')} {TOPS[kind]}", *shapes, *states)


def in_torch(kind: str, weights: list[Array], x: Array, cont: Array, static: Array | None = None) -> Any:
    """The top and the leaves (weights, x, x_static) in PyTorch, cell by cell."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(w, requires_grad=True) for w in weights]
    x = torch.tensor(x.reshape(T, N, -1), requires_grad=True)
    others = [x]
    w_x, b, *w_static, w_h = leaves[: 3 if static is None else 4]
    given = x @ w_x.T + b
    if static is not None:
        others.append(torch.tensor(static.reshape(N, -1), requires_grad=True))
        given = given + others[1] @ w_static[0].T
    h = c = torch.zeros(N, D, dtype=torch.float64)
    tops = []
    for t in range(T):
        k = torch.tensor(cont[t])[:, None]
        z = given[t] + (k * h) @ w_h.T
        if kind == "LSTM":
            i, f, o = (torch.sigmoid(part) for part in z[:, : 3 * D].split(D, 1))
            c = f * k * c + i * torch.tanh(z[:, 3 * D :])
            h = o * torch.tanh(c)
            tops.append(h)
        else:
            h = torch.tanh(z)
            tops.append(torch.tanh(h @ leaves[-2].T + leaves[-1]))
    return torch.stack(tops), leaves, others


@pytest.mark.parametrize("has_static", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_as_in_pytorch(kind: str, has_static: bool, random: np.random.Generator) -> None:
    x, cont, static = random.standard_normal(X), starting(random), random.standard_normal((N, 2))
    shapes = [X, (T, N), *([static.shape] if has_static else [])]
    net, node = one_layer(layer(kind), *shapes)
    weights = [blob.data.copy() for blob in node.layer.weights]
    gates = 4 * D if kind == "LSTM" else D
    expected = [(gates, 6), (gates,), *([(gates, 2)] if has_static else []), (gates, D)]
    assert [w.shape for w in weights] == expected + ([] if kind == "LSTM" else [(D, D), (D,)])
    y, leaves, others = in_torch(kind, weights, x, cont, static if has_static else None)
    inputs = {"x0": x, "x1": cont} | ({"x2": static} if has_static else {})
    np.testing.assert_allclose(forward(net, **inputs), y.detach().numpy(), rtol=1e-10)
    dy = random.standard_normal(y.shape)
    y.backward(y.new_tensor(dy))
    dx, _, *rest = backward(node, dy, [True, False, True][: len(shapes)])
    np.testing.assert_allclose(dx.reshape(T, N, -1), others[0].grad, rtol=1e-8, atol=1e-10)
    if has_static:
        np.testing.assert_allclose(rest[0], others[1].grad, rtol=1e-8, atol=1e-10)
    for blob, leaf in zip(node.layer.weights, leaves, strict=True):
        np.testing.assert_allclose(blob.diff, leaf.grad, rtol=1e-8, atol=1e-10)


def test_lstm_has_the_weights_of_pytorchs(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, cont = random.standard_normal((T, N, 6)), np.ones((T, N))
    net, node = one_layer(layer("LSTM"), x.shape, (T, N))
    cont[0] = 0
    order = [0, 1, 3, 2]  # PyTorch's are i, f, g, o

    def turned(w: Array) -> Any:
        return torch.tensor(w.reshape(4, D, -1)[order].reshape(w.shape))

    peer = torch.nn.LSTM(6, D).double()
    w_x, b, w_h = (blob.data for blob in node.layer.weights)
    with torch.no_grad():
        for ours, theirs in ((w_x, peer.weight_ih_l0), (b, peer.bias_ih_l0), (w_h, peer.weight_hh_l0)):
            theirs.copy_(turned(ours))
        peer.bias_hh_l0.zero_()
        expected, _ = peer(torch.tensor(x))
    np.testing.assert_allclose(forward(net, x0=x, x1=cont), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_states_as_bottoms_and_tops(kind: str, random: np.random.Generator) -> None:
    x, cont = random.standard_normal(X), random.uniform(size=(T, N))
    cont[1, 0] = 0
    static = random.standard_normal((N, 2))
    net, node = exposed(kind, X, (T, N), (N, 2))
    states = [random.standard_normal((1, N, D)) for _ in node.top[1:]]
    inputs = [x, cont, static, *states]
    check_every_gradient(net, node, inputs, random, [True, False] + [True] * (len(inputs) - 2))
    if kind == "LSTM":
        np.testing.assert_array_equal(node.top[1].data[0], node.top[0].data[-1])


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_a_loss_on_the_last_state_alone(kind: str, random: np.random.Generator) -> None:
    net, node = exposed(kind, X, (T, N))
    inputs = {
        "x0": random.standard_normal(X),
        "x1": starting(random),
        **{f"x{i}": random.standard_normal((1, N, D)) for i in range(2, len(node.bottom))},
    }
    net.forward(**inputs)
    gradients = [random.standard_normal((1, N, D)) for _ in node.top[1:]]
    for blob, gradient in zip(node.top[1:], gradients, strict=True):
        blob.diff[...] = gradient
    node.layer.backward(node.top, [True, False, *[True] * (len(node.bottom) - 2)], node.bottom)

    def loss() -> float:
        net.forward(**inputs)
        return sum(float((b.data * g).sum()) for b, g in zip(node.top[1:], gradients, strict=True))

    step = 1e-6
    for name, index in (("x0", (1, 2, 0, 1)), ("x0", (3, 1, 1, 2)), ("x2", (0, 0, 1))):
        inputs[name][index] += step
        above = loss()
        inputs[name][index] -= 2 * step
        slope = (above - loss()) / (2 * step)
        inputs[name][index] += step
        assert net.blobs[name].diff[index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_a_sequence_goes_on_in_the_next_pass(kind: str, random: np.random.Generator) -> None:
    x, cont = random.standard_normal((2 * T, N, 2)), np.ones((2 * T, N))
    cont[0] = cont[T, 1] = 0
    whole, _ = one_layer(layer(kind), x.shape, cont.shape)
    expected = forward(whole, x0=x, x1=cont)
    halves, node = one_layer(layer(kind), (T, N, 2), (T, N))
    first = forward(halves, x0=x[:T], x1=cont[:T])
    state = node.layer.state()
    second = forward(halves, x0=x[T:], x1=cont[T:])
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=1e-12)
    node.layer.restore(state)
    np.testing.assert_array_equal(forward(halves, x0=x[T:], x1=cont[T:]), second)
    with pytest.raises(ValueError, match="has no state 'z'"):
        node.layer.restore(state | {"carry": {"z": state["carry"]["h"]}})
    halves.reshape(x0=(T, 2, 2), x1=(T, 2))  # other streams start from nothing
    fresh = forward(halves, x0=x[:T, :2], x1=np.ones((T, 2)))
    np.testing.assert_allclose(fresh, expected[:T, :2], rtol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_within_a_limit_on_memory(kind: str, random: np.random.Generator) -> None:
    text = f"""
        layer {{ name: "x" type: "Input" top: "x" top: "cont" input_param {{
          {shape_text((T, N, 4))} {shape_text((T, N))} }} }}
        layer {{ name: "t" type: "InnerProduct" bottom: "x" top: "t" inner_product_param {{
          num_output: 6 axis: 2 weight_filler {{ type: "gaussian" }} }} }}
        layer {{ name: "a" bottom: "t" bottom: "cont" top: "a" {layer(kind)} }}
        layer {{ name: "s" type: "Sigmoid" bottom: "a" top: "a" }}
        layer {{ name: "b" bottom: "a" bottom: "cont" top: "b" {layer(kind)} }}
        layer {{ name: "l" type: "Reduction" bottom: "b" top: "l" loss_weight: 1
          reduction_param {{ operation: SUMSQ }} }}
    """
    nets = [load_net(text, "TRAIN", seed=3) for _ in range(2)]
    nets[1].limit_memory("least")
    for _ in range(2):
        x = random.standard_normal((T, N, 4)).astype(np.float32)
        for net in nets:
            net.clear_gradients()
            net.forward(x=x, cont=starting(random))
            net.backward()
        assert nets[0].loss == nets[1].loss
        for one, other in zip(*(net.parameters for net in nets), strict=True):
            assert one.blob.diff.any()
            np.testing.assert_array_equal(one.blob.diff, other.blob.diff)


def test_the_step_alone(random: np.random.Generator) -> None:
    net, node = one_layer('type: "LSTMUnit" top: "c" top: "h"', (1, N, D), (1, N, 4 * D), (1, N))
    inputs = [
        random.standard_normal((1, N, D)),
        random.standard_normal((1, N, 4 * D)),
        np.array([[1.0, 0, 1]]),
    ]
    i, f, o = (1 / (1 + np.exp(-inputs[1][..., q * D : (q + 1) * D])) for q in range(3))
    cell = inputs[2][..., None] * f * inputs[0] + i * np.tanh(inputs[1][..., 3 * D :])
    np.testing.assert_allclose(forward(net, x0=inputs[0], x1=inputs[1], x2=inputs[2]), cell, rtol=1e-12)
    np.testing.assert_allclose(node.top[1].data, o * np.tanh(cell), rtol=1e-12)
    check_every_gradient(net, node, inputs, random, [True, True, False])


def test_what_recurrent_layers_refuse() -> None:
    with pytest.raises(InvalidArgument, match=r"'l' \(LSTM\).*x has shape \(4, 3, 2\) and cont \(3, 4\)"):
        one_layer(layer("LSTM"), (4, 3, 2), (3, 4))
    with pytest.raises(InvalidArgument, match="num_output is missing or 0"):
        one_layer('type: "RNN"', (4, 3, 2), (4, 3))
    with pytest.raises(InvalidArgument, match="4 bottoms and 1 tops: there must be x, cont, with x_static"):
        one_layer(layer("LSTM"), X, (T, N), (1, N, D), (1, N, D))
    text = f"{layer('LSTM', 'expose_hidden: true')} {TOPS['LSTM']}"
    with pytest.raises(InvalidArgument, match=r"bottom 'x3' has shape \(1, 2, 5\): a state has \(1, 3, 5\)"):
        one_layer(text, X, (T, N), (1, N, D), (1, 2, D))
    with pytest.raises(InvalidArgument, match=r"x_static has shape \(4, 2\): \(3, ...\) with 2"):
        one_layer(layer("RNN"), X, (T, N), (4, 2))
    net, node = one_layer(layer("LSTM"), X, (T, N))
    with pytest.raises(InvalidArgument, match="18 numbers each; the weights are for 6"):
        net.reshape(x0=(T, N, 3, 6))
    with pytest.raises(InvalidArgument, match="cont has no gradient"):
        node.layer.backward(node.top, [True, True], node.bottom)
    with pytest.raises(InvalidArgument, match=r"\(1, N, 4 D\) and \(1, N\) are needed"):
        one_layer('type: "LSTMUnit" top: "c" top: "h"', (1, N, D), (1, N, D), (1, N))
