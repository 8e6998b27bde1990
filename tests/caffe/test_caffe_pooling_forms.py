"""STOCHASTIC pooling, the mask of maxima and `ceil_mode`; Upsample and Im2col: values by loops, gradients, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from caffe_nets import Array, backward, check_every_gradient, check_gradients, distinct, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument

STOCHASTIC = 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }'


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(31)


def windows(x: Array, k: int, s: int) -> list[list[Array]]:
    """The windows (N, C, elements) of a map, cut off where it ends."""
    rows, columns = (-(-(extent - k) // s) + 1 for extent in x.shape[2:])
    return [
        [x[:, :, i * s : i * s + k, j * s : j * s + k].reshape(*x.shape[:2], -1) for j in range(columns)]
        for i in range(rows)
    ]


# ---- STOCHASTIC


@pytest.mark.parametrize("extents", [(5, 7), (6, 6), (8, 3)])
def test_stochastic_pooling_in_testing(extents: tuple[int, int], random: np.random.Generator) -> None:
    x = random.uniform(size=(2, 3, *extents)) + 0.1
    net, node = one_layer(STOCHASTIC, x.shape)
    expected = [[(part * part).sum(-1) / part.sum(-1) for part in row] for row in windows(x, 3, 2)]
    np.testing.assert_allclose(
        forward(net, x0=x), np.moveaxis(np.array(expected), (0, 1), (2, 3)), rtol=1e-12
    )
    check_gradients(net, node, x, random)
    assert not forward(net, x0=np.zeros_like(x)).any()


def test_stochastic_pooling_in_training_gives_the_gradient_to_what_it_chose(
    random: np.random.Generator,
) -> None:
    x = distinct((2, 3, 6, 7), random)
    x -= x.min() - 1
    net, node = one_layer(STOCHASTIC, x.shape, phase="TRAIN")
    y = forward(net, x0=x)
    dy = random.standard_normal(y.shape)
    (dx,) = backward(node, dy)
    expected = np.zeros_like(x)
    for n, c, i, j in itertools.product(*map(range, y.shape)):
        place = x[n, c, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] == y[n, c, i, j]
        assert place.sum() == 1
        expected[n, c, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += place * dy[n, c, i, j]
    np.testing.assert_allclose(dx, expected, rtol=1e-12, atol=1e-12)
    assert (forward(net, x0=x) != y).any()


def test_stochastic_pooling_draws_by_share() -> None:
    x = np.tile([[1.0, 2], [0, 5]], (400, 10))[None, None]
    net, _ = one_layer('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }', x.shape,
                       phase="TRAIN")  # fmt: skip
    y = forward(net, x0=x)
    values, counts = np.unique(y, return_counts=True)
    np.testing.assert_array_equal(values, [1, 2, 5])  # never the 0
    # the standard deviation of such a part is below 0.008
    np.testing.assert_allclose(counts / y.size, [1 / 8, 2 / 8, 5 / 8], atol=0.04)


def test_stochastic_pooling_within_a_limit_on_memory(random: np.random.Generator) -> None:
    text = f"""
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 2 dim: 9 dim: 9 }} }} }}
        layer {{ name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {{
          num_output: 8 kernel_size: 3 weight_filler {{ type: "gaussian" }} }} }}
        layer {{ name: "r" type: "ReLU" bottom: "c" top: "c" }}
        layer {{ name: "p" bottom: "c" top: "p" {STOCHASTIC} }}
        layer {{ name: "s" type: "Sigmoid" bottom: "p" top: "p" }}
        layer {{ name: "l" type: "Reduction" bottom: "p" top: "l" loss_weight: 1
          reduction_param {{ operation: SUMSQ }} }}
    """
    x = random.standard_normal((2, 2, 9, 9)).astype(np.float32)
    gradients = []
    for limit in (None, "least"):
        net = load_net(text, "TRAIN", seed=3)
        net.limit_memory(limit)
        for _ in range(2):
            net.clear_gradients()
            net.forward(x=x)
            net.backward()
        gradients.append(net.parameters[0].blob.diff.copy())
    assert gradients[0].any()
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


# ---- the mask, and what is done with it


def test_the_mask_of_maxima(random: np.random.Generator) -> None:
    x = distinct((2, 3, 5, 6), random)
    net, node = one_layer(
        'type: "Pooling" top: "y" top: "m" pooling_param { kernel_size: 2 stride: 2 }', x.shape
    )
    y, mask = forward(net, x0=x), node.top[1].data
    assert mask.shape == y.shape == (2, 3, 3, 3)
    found = np.take_along_axis(x.reshape(2, 3, 30), mask.reshape(2, 3, 9).astype(int), -1)
    np.testing.assert_array_equal(found.reshape(y.shape), y)
    check_gradients(net, node, x, random)


def test_ceil_mode() -> None:
    for fields, extent in (
        ("", 3),
        ("ceil_mode: true", 3),
        ("ceil_mode: false", 2),
        ("round_mode: FLOOR", 2),
    ):
        _, node = one_layer(
            f'type: "Pooling" pooling_param {{ kernel_size: 2 stride: 2 {fields} }}', (1, 1, 5, 5)
        )
        assert node.top[0].shape == (1, 1, extent, extent)


@pytest.mark.parametrize("fields", ["scale: 2 pad_out_h: true", "upsample_h: 5 upsample_w: 6"])
def test_upsample_by_a_mask(fields: str, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 3, 3))
    places = np.array([random.permutation(30)[:9] for _ in range(6)]).reshape(x.shape)
    net, node = one_layer(f'type: "Upsample" upsample_param {{ {fields} }}', x.shape, x.shape)
    expected = np.zeros((2, 3, 30))
    np.put_along_axis(expected, places.reshape(2, 3, 9), x.reshape(2, 3, 9), -1)
    np.testing.assert_array_equal(forward(net, x0=x, x1=places), expected.reshape(2, 3, 5, 6))
    check_every_gradient(net, node, [x, places.astype(float)], random, [True, False])
    _, dmask = backward(node, np.ones((2, 3, 5, 6)))
    assert not dmask.any()
    for wrong in (30, np.nan):
        with pytest.raises(InvalidArgument, match="an image of 5 x 6: give the extents"):
            net.forward(x1=np.full(x.shape, wrong))


def test_a_pooling_undone(random: np.random.Generator) -> None:
    x = distinct((1, 2, 5, 4), random)
    net = load_net("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 5 dim: 4 } } }
        layer { name: "p" type: "Pooling" bottom: "x" top: "p" top: "mask" pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: "u" type: "Upsample" bottom: "p" bottom: "mask" top: "u"
                upsample_param { upsample_h: 5 upsample_w: 4 } }
    """)
    u = net.forward(x=x)["u"]
    is_kept = u != 0
    assert is_kept.sum() == 12
    np.testing.assert_array_equal(u[is_kept], x[is_kept].astype(np.float32))


@pytest.mark.parametrize(
    ("fields", "tall", "wide"), [("", 2, 2), ("scale: 3", 3, 3), ("scale_h: 1 scale_w: 2", 1, 2)]
)
def test_upsample_by_a_scale(fields: str, tall: int, wide: int, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 3, 4))
    net, node = one_layer(f'type: "Upsample" upsample_param {{ {fields} }}', x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), x.repeat(tall, 2).repeat(wide, 3))
    check_gradients(net, node, x, random)


def test_what_upsample_refuses() -> None:
    shape = (1, 1, 2, 2)
    for fields, match, shapes in (
        ("scale: 0", "must be positive", [shape]),
        ("upsample_h: 3", "both upsample_h and upsample_w", [shape]),
        ("upsample_h: 3 upsample_w: 3", "are for a mask as second bottom", [shape]),
        ("", r"the mask has shape \(1, 1, 2, 3\)", [shape, (1, 1, 2, 3)]),
        ("scale: 1 pad_out_h: true", r"extents \(0, 1\)", [(1, 1, 1, 1)] * 2),
        ("", "4 axes", [(2, 2)]),
    ):
        with pytest.raises(InvalidArgument, match=match):
            one_layer(f'type: "Upsample" upsample_param {{ {fields} }}', *shapes)


# ---- Im2col


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("kernel_size: 3", (2, 3, 5, 6)),
        ("kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0", (1, 2, 4, 8)),
        ("kernel_size: 2 stride: 2 pad: 1 dilation: 2", (2, 1, 7, 5)),
        ("kernel_size: 2 kernel_size: 1 kernel_size: 2 pad: 1", (1, 2, 2, 3, 2)),
        ("kernel_size: 2 axis: 2", (2, 2, 2, 3, 4)),
    ],
)
def test_im2col(fields: str, shape: tuple[int, ...], random: np.random.Generator) -> None:
    x = random.standard_normal(shape)
    net, node = one_layer(f'type: "Im2col" convolution_param {{ {fields} }}', shape)
    columns = forward(net, x0=x)
    axis = 2 if "axis" in fields else 1
    # the product with a filter's weights is its convolution
    convolved, other = one_layer(
        f'type: "Convolution" convolution_param {{ num_output: 2 {fields} weight_filler {{ type: "gaussian" }} }}',
        shape,
    )
    w = other.layer.weights[0].data.reshape(2, -1)
    flat = columns.reshape(*shape[:axis], w.shape[1], -1)
    y = forward(convolved, x0=x)
    np.testing.assert_allclose((w @ flat).reshape(y.shape), y, rtol=1e-10, atol=1e-12)
    check_gradients(net, node, x, random)


def test_what_im2col_refuses() -> None:
    with pytest.raises(InvalidArgument, match="smaller than the kernel"):
        one_layer('type: "Im2col" convolution_param { kernel_size: 5 }', (1, 1, 4, 4))
    with pytest.raises(InvalidArgument, match="kernel_size has 0 values"):
        one_layer('type: "Im2col"', (1, 1, 4, 4))
