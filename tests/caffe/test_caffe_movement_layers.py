"""Concat, Slice, Crop, Tile, Reshape and Silence: values, gradients by differences, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import backward, check_every_gradient, check_gradients, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(12)


# ---- Concat


@pytest.mark.parametrize(
    ("fields", "axis", "shapes"),
    [
        ("", 1, [(2, 3, 2), (2, 1, 2), (2, 2, 2)]),
        ("axis: 0", 0, [(1, 3), (4, 3)]),
        ("axis: -1", 2, [(2, 3, 5), (2, 3, 1)]),
        ("concat_dim: 2", 2, [(2, 3, 5, 1), (2, 3, 1, 1)]),
        ("", 1, [(3, 2)]),
    ],
)
def test_concat(fields: str, axis: int, shapes: list[tuple[int, ...]], random: np.random.Generator) -> None:
    inputs = [random.standard_normal(shape) for shape in shapes]
    net, node = one_layer(f'type: "Concat" concat_param {{ {fields} }}', *shapes)
    found = forward(net, **{f"x{index}": x for index, x in enumerate(inputs)})
    np.testing.assert_array_equal(found, np.concatenate(inputs, axis))
    check_every_gradient(net, node, inputs, random)


def test_concat_leaves_other_gradients_alone(random: np.random.Generator) -> None:
    _, node = one_layer('type: "Concat"', (2, 1), (2, 2))
    first, second = backward(node, random.standard_normal((2, 3)), [False, True])
    assert np.isnan(first).all()
    assert not np.isnan(second).any()


def test_what_concat_refuses() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'l' \(Concat\) \(line 3\): bottom 'x1' has shape \(3, 2\).*in axis 1"
    ):
        one_layer('type: "Concat"', (2, 2), (3, 2))
    with pytest.raises(InvalidArgument, match=r"axis 1 and concat_dim 1: keep axis"):
        one_layer('type: "Concat" concat_param { axis: 1 concat_dim: 1 }', (2, 2))
    with pytest.raises(InvalidArgument, match=r"axis 2 does not exist"):
        one_layer('type: "Concat" concat_param { axis: 2 }', (2, 2))


# ---- Slice


@pytest.mark.parametrize(
    ("fields", "axis", "points"),
    [
        ("", 1, [2, 4]),
        ("axis: -1", 3, [1, 2]),
        ("slice_dim: 0", 0, [1, 2]),
        ("slice_point: 1 slice_point: 5", 1, [1, 5]),
    ],
)
def test_slice(fields: str, axis: int, points: list[int], random: np.random.Generator) -> None:
    x = random.standard_normal((3, 6, 1, 3))
    tops = 'top: "a" top: "b" top: "c"'
    net, node = one_layer(f'type: "Slice" slice_param {{ {fields} }} {tops}', x.shape)
    for blob in node.top:
        blob.data.fill(np.nan)
    net.forward(x0=x)
    for blob, part in zip(node.top, np.split(x, points, axis), strict=True):
        np.testing.assert_array_equal(blob.data, part)
        blob.diff[...] = random.standard_normal(blob.shape)
    node.bottom[0].diff.fill(np.nan)
    node.layer.backward(node.top, [True], node.bottom)
    np.testing.assert_array_equal(node.bottom[0].diff, np.concatenate([blob.diff for blob in node.top], axis))


def test_a_part_without_a_loss_has_gradient_0(random: np.random.Generator) -> None:
    text = """
        layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 4 } } }
        layer { name: "l" type: "Slice" bottom: "x0" top: "a" top: "b" }
        layer { name: "s" type: "Silence" bottom: "a" }
        layer { name: "p" type: "Power" bottom: "b" top: "p" power_param { scale: 3 } loss_weight: 1 }
        force_backward: true
    """
    net = load_net(text, dtype="f64")
    assert net.outputs == ["p"]
    for _ in range(2):
        net.forward(x0=random.standard_normal((2, 4)))
        net.backward()
        np.testing.assert_array_equal(net.blobs["x0"].diff, [[0, 0, 3, 3]] * 2)


def test_what_slice_refuses() -> None:
    two = 'top: "a" top: "b"'
    with pytest.raises(InvalidArgument, match="3 elements in axis 1 cannot be cut into 2"):
        one_layer(f'type: "Slice" {two}', (2, 3))
    with pytest.raises(InvalidArgument, match="2 slice_point for 2 tops: give 1"):
        one_layer(f'type: "Slice" slice_param {{ slice_point: 1 slice_point: 2 }} {two}', (2, 3))
    for point in (0, 3):
        with pytest.raises(InvalidArgument, match=rf"slice_point \[{point}\] must rise"):
            one_layer(f'type: "Slice" slice_param {{ slice_point: {point} }} {two}', (2, 3))


# ---- Crop, Tile


@pytest.mark.parametrize(
    ("fields", "shape", "part"),
    [
        ("", (9, 9, 2, 4), np.s_[:, :, :2, :4]),
        ("offset: 1", (9, 9, 2, 4), np.s_[:, :, 1:3, 1:5]),
        ("offset: 2 offset: 0", (9, 9, 1, 1), np.s_[:, :, 2:3, :1]),
        ("axis: 1 offset: 1 offset: 0 offset: 2", (7, 2, 3, 3), np.s_[:, 1:3, :3, 2:5]),
        ("axis: -1", (7, 7, 7, 5), np.s_[:]),
    ],
)
def test_crop(
    fields: str, shape: tuple[int, ...], part: tuple[slice, ...], random: np.random.Generator
) -> None:
    x = random.standard_normal((2, 3, 3, 5))
    net, node = one_layer(f'type: "Crop" crop_param {{ {fields} }}', x.shape, shape)
    y = forward(net, x0=x)
    np.testing.assert_array_equal(y, x[part])
    dy = random.standard_normal(y.shape)
    expected = np.zeros_like(x)
    expected[part] = dy
    dx, other = backward(node, dy)
    np.testing.assert_array_equal(dx, expected)
    np.testing.assert_array_equal(other, 0)


def test_what_crop_refuses() -> None:
    with pytest.raises(InvalidArgument, match="offset 2 and extent 2 of 'x1' exceed the 3 of 'x0' in axis 2"):
        one_layer('type: "Crop" crop_param { offset: 2 }', (1, 1, 3, 3), (1, 1, 2, 2))
    with pytest.raises(InvalidArgument, match="3 offset for the 2 axes from 2 on"):
        one_layer('type: "Crop" crop_param { offset: 0 offset: 0 offset: 0 }', (1, 1, 3, 3), (1, 1, 2, 2))
    with pytest.raises(InvalidArgument, match="must have as many axes"):
        one_layer('type: "Crop"', (1, 1, 3, 3), (1, 3, 3))


@pytest.mark.parametrize(("fields", "axis"), [("", 1), ("axis: 0", 0), ("axis: -1", 2)])
@pytest.mark.parametrize("tiles", [1, 3])
def test_tile(fields: str, axis: int, tiles: int, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 5))
    net, node = one_layer(f'type: "Tile" tile_param {{ tiles: {tiles} {fields} }}', x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), np.concatenate([x] * tiles, axis))
    check_gradients(net, node, x, random)


def test_tiles_are_given() -> None:
    with pytest.raises(InvalidArgument, match="tiles is 0: it must be positive"):
        one_layer('type: "Tile"', (2, 3))


# ---- Reshape, Silence


@pytest.mark.parametrize(
    ("fields", "dims", "expected"),
    [
        ("", (0, -1), (2, 60)),
        ("", (0, 0, 0, 0), (2, 3, 4, 5)),
        ("", (), None),
        ("", (-1,), (120,)),
        ("axis: 1", (-1,), (2, 60)),
        ("axis: 1 num_axes: 2", (6, 2), (2, 6, 2, 5)),
        ("axis: 1 num_axes: 0", (1,), (2, 1, 3, 4, 5)),
        ("axis: -1", (1,), (2, 3, 4, 5, 1)),
        ("axis: -3 num_axes: 1", (2, -1), (2, 3, 2, 2, 5)),
        ("axis: 1", (0, 20, 1), (2, 3, 20, 1)),
    ],
)
def test_reshape(
    fields: str, dims: tuple[int, ...], expected: tuple[int, ...] | None, random: np.random.Generator
) -> None:
    x = random.standard_normal((2, 3, 4, 5))
    layer = (
        f'type: "Reshape" reshape_param {{ {fields} shape {{ {" ".join(f"dim: {dim}" for dim in dims)} }} }}'
    )
    if expected is None:
        with pytest.raises(InvalidArgument, match=r"shape \(\) cannot hold the 120 elements"):
            one_layer(layer, x.shape)
        return
    net, node = one_layer(layer, x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), x.reshape(expected))
    dy = random.standard_normal(expected)
    node.top[0].diff[...] = dy
    node.layer.backward(node.top, [True], node.bottom)
    np.testing.assert_array_equal(node.bottom[0].diff, dy.reshape(x.shape))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("shape { dim: -1 dim: -1 }", "one -1 at most"),
        ("shape { dim: 7 }", r"shape \(7,\) cannot hold the 6 elements"),
        ("shape { dim: 4 dim: -1 }", r"shape \(4, -1\) cannot hold"),
        ("shape { dim: 3 dim: 2 dim: 0 }", "0 copies an axis that the bottom does not have"),
        ("shape { dim: -2 }", "extents are -1 or more"),
        ("axis: 3 shape { dim: 1 }", "axis 3 does not exist"),
        ("axis: -4 shape { dim: 1 }", "axis -4 does not exist"),
        ("axis: 1 num_axes: 2 shape { dim: 3 }", r"num_axes 2 from axis 1 on: .* has 1"),
    ],
)
def test_what_reshape_refuses(fields: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"'l' \(Reshape\) \(line 2\): .*{message}"):
        one_layer(f'type: "Reshape" reshape_param {{ {fields} }}', (2, 3))


def test_reshape_before_a_layer_in_place(random: np.random.Generator) -> None:
    text = """
        layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "r" type: "Reshape" bottom: "x0" top: "r" reshape_param { shape { dim: -1 } } }
        layer { name: "p" type: "Power" bottom: "r" top: "r" power_param { power: 2 } loss_weight: 1 }
        layer { name: "s" type: "Silence" bottom: "x0" }
        force_backward: true
    """
    net = load_net(text, dtype="f64")
    x = random.standard_normal((2, 3))
    net.forward(x0=x)
    np.testing.assert_allclose(net.loss, (x * x).sum(), rtol=1e-12)
    net.backward()
    np.testing.assert_allclose(net.blobs["x0"].diff, 2 * x, rtol=1e-12)
