"""The public functions of recurrent layers: scales, outputs, gradients that accumulate, dropout, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Recurrent, parse
from jitdnn.tensor import TensorDescriptor

SLOWLY: dict[str, Any] = {"algorithm": "reference"}  # nothing to compile: the other algorithm is tested above


def simple(cell: str = "lstm", layers: int = 1) -> tuple[Any, list[Any]]:
    """x of 4 steps, 3 sequences, 5 numbers, and weights for 6 units."""
    rng = np.random.default_rng(0)
    gates = {"lstm": 4, "gru": 3, "tanh": 1}[cell]
    weights: list[Any] = []
    for layer in range(layers):
        shapes = [(gates * 6, 5 if layer == 0 else 6), (gates * 6, 6), (gates * 6,), (gates * 6,)]
        weights += [rng.uniform(-0.5, 0.5, shape).astype(np.float32) for shape in shapes]
    return rng.standard_normal((4, 3, 5)).astype(np.float32), weights


def test_scales_and_outputs() -> None:
    x, weights = simple()
    y, hn, cn = jd.lstm(x, weights)
    out = np.ones_like(y)
    given, last, cells = jd.lstm(x, weights, out=out, alpha=2.0, beta=-1.0)
    assert given is out
    np.testing.assert_allclose(given, 2.0 * y - 1.0, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, hn)
    np.testing.assert_array_equal(cells, cn)
    np.testing.assert_array_equal(y[-1], hn[0])


def test_gradients_of_weights_accumulate() -> None:
    x, weights = simple("gru", layers=2)
    y, _, saved = jd.gru(x, weights, training=True, **SLOWLY)
    dx, dhx, dweights = jd.gru_backward(y, x, weights, saved, **SLOWLY)
    assert dhx is None
    held = [np.full_like(weight, 0.5) for weight in weights]
    again, _, total = jd.gru_backward(
        y, x, weights, saved, out=np.empty_like(x), out_weights=held, beta=1.0, **SLOWLY
    )
    np.testing.assert_array_equal(again, dx)
    for mine, place, gradient in zip(total, held, dweights, strict=True):
        assert mine is place
        np.testing.assert_allclose(mine, gradient + 0.5, rtol=1e-5, atol=1e-5)
    assert jd.gru_backward(y, x, weights, saved, need_weights=False, **SLOWLY)[2] is None


def test_single_biases_of_gru_differ() -> None:
    """In n = tanh(W x + b + r * (U h' + c)) it matters whether b or c is there."""
    x, weights = simple("gru")
    both, zero = list(weights), np.zeros_like(weights[2])
    for kind, place in (("input", 2), ("recurrent", 3)):
        single = [*weights[:2], weights[place]]
        other = [*both[:2], both[2] if place == 2 else zero, both[3] if place == 3 else zero]
        y, _ = jd.gru(x, single, bias=kind, **SLOWLY)
        expected, _ = jd.gru(x, other, **SLOWLY)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


def test_clipped_cells() -> None:
    x, weights = simple()
    _, _, cn = jd.lstm(4.0 * x, weights, clip=(-0.25, 0.125), **SLOWLY)
    assert cn.min() == -0.25
    assert cn.max() == 0.125


def test_dropout_between_layers() -> None:
    """With the numbers of one state everything is one function, whose gradient is the slope of its values."""
    rng = np.random.default_rng(0)
    shapes = [(18, 5), (18, 6), (18,), (18,), (18, 6), (18, 6), (18,), (18,)]
    weights = [rng.uniform(-0.5, 0.5, shape) for shape in shapes]
    x, dy, step = (
        rng.standard_normal((4, 3, 5)),
        rng.standard_normal((4, 3, 6)),
        rng.standard_normal((4, 3, 5)),
    )
    steps = [rng.standard_normal(weight.shape) for weight in weights]
    state = jd.DropoutState(5)
    before = state.copy()
    y, _, saved = jd.gru(x, weights, training=True, dropout=0.5, state=state, **SLOWLY)
    assert state.offset == before.offset + 1
    dx, _, dweights = jd.gru_backward(dy, x, weights, saved, dropout=0.5, state=before, **SLOWLY)
    assert before == jd.DropoutState(5)

    def loss(t: float) -> float:
        moved = [weight + t * change for weight, change in zip(weights, steps, strict=True)]
        return float((jd.gru(x + t * step, moved, dropout=0.5, state=before.copy(), **SLOWLY)[0] * dy).sum())

    slope = (dx * step).sum() + sum((d * s).sum() for d, s in zip(dweights, steps, strict=True))
    np.testing.assert_allclose((loss(1e-5) - loss(-1e-5)) / 2e-5, slope, rtol=1e-6)
    assert np.abs(y - jd.gru(x, weights, **SLOWLY)[0]).max() > 1e-3
    with pytest.raises(InvalidArgument, match="DropoutState"):
        jd.gru(x, weights, dropout=0.5)


def test_everything_dropped_is_a_layer_of_zeros() -> None:
    x, weights = simple("tanh", layers=2)
    y, _ = jd.rnn(x, weights, dropout=1.0, state=jd.DropoutState(1))
    expected, _ = jd.rnn(np.zeros((4, 3, 6), np.float32), weights[4:])
    np.testing.assert_array_equal(y, expected)


def test_lengths_may_be_a_list_and_outputs_beyond_are_zero() -> None:
    x, weights = simple()
    y, hn, _ = jd.lstm(x, weights, lengths=[2, 0, 4], **SLOWLY)
    whole, _, _ = jd.lstm(x, weights, **SLOWLY)
    assert (y[2:, 0] == 0).all()
    assert (y[:, 1] == 0).all()
    np.testing.assert_array_equal(y[:2, 0], whole[:2, 0])
    np.testing.assert_array_equal(hn[0], [whole[1, 0], np.zeros(6), whole[3, 2]])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dropout": 1.5}, InvalidArgument, "dropout is 1.5"),
        ({"lengths": [5, 1, 1]}, InvalidArgument, "0 to 4"),
        ({"lengths": [1, -1, 1]}, InvalidArgument, "0 to 4"),
        ({"lengths": [1, 1]}, InvalidShape, "lengths"),
        ({"lengths": np.ones(3)}, InvalidType, "int32 or int64"),
        ({"lengths": [1, 1, 1], "batch_sizes": [3]}, InvalidArgument, "not both"),
        ({"batch_sizes": [3, 3, 3]}, InvalidArgument, "add up"),
        ({"hx": np.zeros((1, 3, 6), np.float32)}, InvalidArgument, "both or none"),
        ({"bidirectional": True}, InvalidArgument, "4 weights"),
        ({"bias": "none"}, InvalidArgument, "recurrent"),
        ({"clip": (1.0, 2.0)}, InvalidArgument, "clip"),
        ({"beta": 1.0}, InvalidArgument, "beta"),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], error: type[Exception], says: str) -> None:
    x, weights = simple()
    with pytest.raises(error, match=says):
        jd.lstm(x, weights, **change)


def test_weights_that_do_not_fit() -> None:
    x, weights = simple()
    with pytest.raises(InvalidArgument, match="empty"):
        jd.lstm(x, [])
    with pytest.raises(InvalidShape, match="weight_ih"):
        jd.lstm(x, [weights[0][:-1], weights[1][:-1]])
    with pytest.raises(InvalidShape, match="weight_ih_l0"):
        jd.lstm(x[..., :4], weights)
    with pytest.raises(InvalidType, match="one dtype"):
        jd.lstm(x, [*weights[:3], weights[3].astype(np.float64)])
    with pytest.raises(InvalidShape, match="x has shape"):
        jd.lstm(x[0], weights)
    with pytest.raises(InvalidArgument, match="nonlinearity"):
        jd.rnn(x, weights, nonlinearity="gelu")


def test_packed_orders_are_settled() -> None:
    """An operand that is packed needs no word, however it was described."""
    p = parse("rnn_fwd tanh t2 n3 inputs4 hidden5 f32")
    assert isinstance(p, Recurrent)
    assert p.arranged([("x", TensorDescriptor.packed((2, 3, 4), "f32"))]) == p
    with pytest.raises(InvalidArgument, match="no operand dy"):
        p.arranged([("dy", TensorDescriptor.packed((2, 3, 5), "f32"))])
