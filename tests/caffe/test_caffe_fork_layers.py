"""Axpy, Permute, BatchReindex, Normalize, Interp, Parameter and DummyData: values, gradients, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import backward, check_every_gradient, check_gradients, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(17)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2), (2, 1, 7)])
@pytest.mark.parametrize("ones", [0, 2])
def test_axpy(shape: tuple[int, ...], ones: int, random: np.random.Generator) -> None:
    a = random.standard_normal((*shape[:2], *(1,) * ones))
    x, y = random.standard_normal((2, *shape))
    net, node = one_layer('type: "Axpy"', a.shape, shape, shape)
    wide = a.reshape(*shape[:2], *(1,) * (len(shape) - 2))
    np.testing.assert_allclose(forward(net, x0=a, x1=x, x2=y), wide * x + y, rtol=1e-12)
    check_every_gradient(net, node, [a, x, y], random)
    with pytest.raises(InvalidArgument, match=r"'l' \(Axpy\) \(line 4\): bottoms have shapes"):
        one_layer('type: "Axpy"', (9, 9), shape, shape)


@pytest.mark.parametrize(
    ("order", "whole"),
    [((0, 2, 3, 1), (0, 2, 3, 1)), ((2,), (2, 0, 1, 3)), ((), (0, 1, 2, 3)), ((3, 1), (3, 1, 0, 2))],
)
def test_permute(order: tuple[int, ...], whole: tuple[int, ...], random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 5))
    fields = " ".join(f"order: {axis}" for axis in order)
    net, node = one_layer(f'type: "Permute" permute_param {{ {fields} }}', x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), x.transpose(whole))
    check_gradients(net, node, x, random)


def test_what_permute_refuses() -> None:
    for fields in ("order: 1 order: 1", "order: 2"):
        with pytest.raises(InvalidArgument, match="must name each of the 2 axes of the bottom once at most"):
            one_layer(f'type: "Permute" permute_param {{ {fields} }}', (2, 3))


@pytest.mark.parametrize("shape", [(2, 6, 3, 2), (3, 12), (1, 6, 5)])
def test_shuffle_channel(shape: tuple[int, ...], random: np.random.Generator) -> None:
    x = random.standard_normal(shape)
    net, node = one_layer('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', shape)
    size = shape[1] // 3
    order = [group * size + index for index in range(size) for group in range(3)]
    np.testing.assert_array_equal(forward(net, x0=x), x[:, order])
    check_gradients(net, node, x, random)
    with pytest.raises(InvalidArgument, match=r"group 3 must divide the channels .* shape \(2, 4\)"):
        one_layer('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', (2, 4))


def test_batch_reindex(random: np.random.Generator) -> None:
    x, numbers = random.standard_normal((4, 3, 2)), np.array([2.0, 0, 2, 3, 2])
    net, node = one_layer('type: "BatchReindex"', x.shape, (5,))
    np.testing.assert_array_equal(forward(net, x0=x, x1=numbers), x[[2, 0, 2, 3, 2]])
    check_every_gradient(net, node, [x, numbers], random, [True, False])
    with pytest.raises(InvalidArgument, match=r"label 4 is outside of 0 .. 3"):
        net.forward(x0=x, x1=np.array([0, 4.0, 0, 0, 0]))
    with pytest.raises(InvalidArgument, match=r"\(2, 2\): \(N, ...\) and \(M\) are needed"):
        one_layer('type: "BatchReindex"', (4, 3), (2, 2))


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4, 1), (3, 5)])
def test_normalize(across: bool, shared: bool, shape: tuple[int, ...], random: np.random.Generator) -> None:
    fields = f"across_spatial: {across} channel_shared: {shared} eps: 0.01".lower()
    layer = f'type: "Normalize" norm_param {{ {fields} scale_filler {{ type: "gaussian" }} }}'
    x = random.standard_normal(shape)
    net, node = one_layer(layer, shape)
    w = node.layer.weights[0].data
    assert w.shape == (() if shared else (shape[1],))
    axes = tuple(range(1, x.ndim)) if across else (1,)
    norm = np.sqrt((x * x).sum(axes, keepdims=True) + 0.01)
    wide = w.reshape(-1, *(1,) * (x.ndim - 2))
    np.testing.assert_allclose(forward(net, x0=x), wide * x / norm, rtol=1e-12)
    check_gradients(net, node, x, random)


def test_what_normalize_refuses() -> None:
    net, _ = one_layer('type: "Normalize" norm_param { channel_shared: false }', (2, 3))
    with pytest.raises(InvalidArgument, match="4 channels; the weights are for 3"):
        net.reshape(x0=(2, 4))
    with pytest.raises(InvalidArgument, match="needs a batch and channels"):
        one_layer('type: "Normalize"', (2,))


# ---- Interp


@pytest.mark.parametrize(
    ("fields", "size", "cut"),
    [
        ("height: 7 width: 3", (7, 3), (0, 0)),
        ("zoom_factor: 3", (10, 13), (0, 0)),
        ("shrink_factor: 2", (2, 3), (0, 0)),
        ("shrink_factor: 2 zoom_factor: 2", (3, 5), (0, 0)),
        ("height: 5 width: 5 pad_beg: -1 pad_end: -2", (5, 5), (1, 2)),
        ("zoom_factor: 2 pad_end: -1", (5, 7), (0, 1)),
        ("height: 1 width: 1", (1, 1), (0, 0)),
    ],
)
def test_interp(
    fields: str, size: tuple[int, int], cut: tuple[int, int], random: np.random.Generator
) -> None:
    x = random.standard_normal((2, 3, 4, 5))
    inner = x[:, :, cut[0] : 4 - cut[1], cut[0] : 5 - cut[1]]

    def along(extent: int, result: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """The matrix that interpolates one axis."""
        places = np.arange(result) * ((extent - 1) / (result - 1) if result > 1 else 0.0)
        return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(extent)))

    expected = np.einsum(
        "ih,jw,nchw->ncij", along(inner.shape[2], size[0]), along(inner.shape[3], size[1]), inner
    )
    net, node = one_layer(f'type: "Interp" interp_param {{ {fields} }}', x.shape)
    np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-9, atol=1e-12)
    check_gradients(net, node, x, random)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "give height and width, or zoom_factor"),
        ("height: 3", "give height and width"),
        ("height: 3 width: 3 zoom_factor: 2", "give height and width"),
        ("height: 0 width: 3", "they must be positive"),
        ("zoom_factor: 2 pad_beg: 1", "they must be 0 or less"),
        ("zoom_factor: 2 pad_beg: -4", "leave nothing of a bottom"),
    ],
)
def test_what_interp_refuses(fields: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"'l' \(Interp\) \(line 2\): .*{message}"):
        one_layer(f'type: "Interp" interp_param {{ {fields} }}', (1, 1, 4, 4))


# ---- Parameter, DummyData


def test_a_weight_as_a_blob(random: np.random.Generator) -> None:
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "p" type: "Parameter" top: "w" parameter_param { shape { dim: 2 dim: 3 } } param { lr_mult: 2 } }
        layer { name: "m" type: "Eltwise" bottom: "x" bottom: "w" top: "y" eltwise_param { operation: PROD }
                loss_weight: 1 }
    """
    net = load_net(text, dtype="f64")
    assert [(p.name, p.lr_mult) for p in net.parameters] == [("p/0", 2)]
    x, w = random.standard_normal((2, 2, 3))
    net.weights["p"][0].data[...] = w
    np.testing.assert_allclose(net.forward(x=x)["y"], x * w, rtol=1e-12)
    for times in (1, 2):  # gradients of weights add up
        net.backward()
        np.testing.assert_allclose(net.weights["p"][0].diff, times * x, rtol=1e-12)
    with pytest.raises(InvalidArgument, match="negative extent"):
        load_net('layer { name: "p" type: "Parameter" top: "w" parameter_param { shape { dim: -1 } } }')


def dummy(fields: str, tops: str = 'top: "a" top: "b"') -> str:
    return f'layer {{ name: "d" type: "DummyData" {tops} dummy_data_param {{ {fields} }} }}'


def test_dummy_data() -> None:
    net = load_net(
        dummy('shape { dim: 2 dim: 3 } data_filler { value: 5 } data_filler { type: "gaussian" }'), seed=1
    )
    first = net.forward()["b"].copy()
    assert (first != net.forward()["b"]).all()
    np.testing.assert_array_equal(net.blobs["a"].data, np.full((2, 3), 5))
    net = load_net(dummy("num: 2 num: 4 channels: 3 channels: 1 height: 1 height: 1 width: 5 width: 2"))
    assert [net.blobs[name].shape for name in "ab"] == [(2, 3, 1, 5), (4, 1, 1, 2)]
    np.testing.assert_array_equal(net.forward()["a"], 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "0 shapes for 2 tops"),
        ("shape { } shape { } shape { }", "3 shapes for 2 tops"),
        ("shape { } " + "data_filler { } " * 3, "3 data_filler for 2 tops"),
        ("shape { } num: 1", "keep shape"),
        ("num: 1 channels: 1 height: 1", "give as many of each"),
        ("shape { dim: -1 }", "negative extent"),
    ],
)
def test_what_dummy_data_refuses(fields: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"'d' \(DummyData\) \(line 1\): .*{message}"):
        load_net(dummy(fields))


def test_labels_of_images_have_no_gradient(random: np.random.Generator) -> None:
    net, node = one_layer('type: "BatchReindex"', (2, 3), (2,))
    net.forward(x0=np.zeros((2, 3)), x1=np.zeros(2))
    with pytest.raises(InvalidArgument, match="the numbers of images have no gradient"):
        backward(node, np.zeros((2, 3)))
