"""How ops read their arguments: layouts, numbers and sequences, what is refused and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import jitdnn as jd

AnyArray = np.ndarray[Any, Any]


def zeros(*shape: int) -> AnyArray:
    return np.zeros(shape, np.float32)


def normal(*shape: int) -> AnyArray:
    return np.random.default_rng(11).standard_normal(shape).astype(np.float32)


def last(array: AnyArray) -> AnyArray:
    """(N, space, C) of (N, C, space), dense."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def close(got: Any, expected: Any) -> bool:
    return np.allclose(np.asarray(got), np.asarray(expected), rtol=2e-5, atol=2e-5)


X, W, DY = normal(2, 4, 7, 6), normal(6, 2, 3, 3), normal(2, 6, 4, 3)
CONV: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}


@pytest.mark.parametrize(
    ("channels_first", "channels_last"),
    [
        (lambda: jd.conv(X, W, **CONV), lambda: jd.conv(last(X), last(W), layout="NHWC", **CONV)),
        (
            lambda: jd.conv_backward_data(DY, W, (2, 4, 7, 6), **CONV),
            lambda: jd.conv_backward_data(last(DY), last(W), (2, 7, 6, 4), layout="NHWC", **CONV),
        ),
        (
            lambda: jd.conv_backward_filter(X, DY, W.shape, **CONV),
            lambda: jd.conv_backward_filter(last(X), last(DY), (6, 3, 3, 2), layout="NHWC", **CONV),
        ),
        (
            lambda: jd.conv_transpose(DY, W, output_padding=1, **CONV),
            lambda: jd.conv_transpose(last(DY), last(W), output_padding=1, layout="NHWC", **CONV),
        ),
        (lambda: jd.max_pool(X, 3, 2, 1), lambda: jd.max_pool(last(X), 3, 2, 1, layout="NHWC")),
        (lambda: jd.avg_pool(X, (2, 3)), lambda: jd.avg_pool(last(X), (2, 3), layout="NHWC")),
        (
            lambda: jd.max_pool_backward(jd.max_pool(X, 3, 2), X, jd.max_pool(X, 3, 2), 3, 2),
            lambda: jd.max_pool_backward(
                last(jd.max_pool(X, 3, 2)), last(X), last(jd.max_pool(X, 3, 2)), 3, 2, layout="NHWC"
            ),
        ),
        (
            lambda: jd.avg_pool_backward(DY, (2, 6, 9, 7), 3, 2),
            lambda: jd.avg_pool_backward(last(DY), (2, 9, 7, 6), 3, 2, layout="NHWC"),
        ),
        (lambda: jd.global_avg_pool(X), lambda: jd.global_avg_pool(last(X), layout="nhwc")),
        (lambda: jd.global_max_pool(X), lambda: jd.global_max_pool(last(X), layout="nhwc")),
    ],
)
def test_layout_nhwc_takes_and_gives_channels_last(
    channels_first: Callable[[], Any], channels_last: Callable[[], Any]
) -> None:
    expected, got = channels_first(), channels_last()
    assert got.shape == last(expected).shape
    assert got.flags.c_contiguous
    assert close(got, last(expected))


def test_layout_of_one_and_three_axes_of_space() -> None:
    x, w = normal(2, 3, 9), normal(4, 3, 3)
    assert close(jd.conv(last(x), last(w), layout="NWC"), last(jd.conv(x, w)))
    x, w = normal(1, 3, 4, 5, 6), normal(4, 3, 2, 2, 2)
    assert close(jd.conv(last(x), last(w), layout="NDHWC"), last(jd.conv(x, w)))
    assert close(jd.conv(x, w, layout="NCDHW"), jd.conv(x, w))
    assert close(jd.conv_backward_bias(last(DY), layout="NHWC"), DY.sum((0, 2, 3)))


def test_out_is_in_the_callers_order_too() -> None:
    out = np.full((2, 4, 3, 6), np.nan, np.float32)
    assert jd.conv(last(X), last(W), layout="NHWC", out=out, **CONV) is out
    assert close(out, last(jd.conv(X, W, **CONV)))
    with pytest.raises(jd.InvalidShape, match=r"out has shape \(2, 6, 4, 3\): the result has \(2, 4, 3, 6\)"):
        jd.conv(last(X), last(W), layout="NHWC", out=zeros(2, 6, 4, 3), **CONV)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": [2, 2], "padding": [[1, 1], [1, 1]]},
        {"stride": (2, 2), "padding": (1, 1)},
        {"stride": np.array([2, 2]), "padding": np.array([[1, 1], [1, 1]])},
        {"stride": np.int64(2), "padding": np.int32(1)},
        {"stride": torch.Size([2, 2]), "padding": torch.Size([1, 1])},
    ],
)
def test_numbers_may_come_as_any_sequence(options: dict[str, Any]) -> None:
    assert close(jd.conv(X, W, groups=2, **options), jd.conv(X, W, **CONV))


@pytest.mark.parametrize(
    "shape", [(2, 4, 7, 6), [2, 4, 7, 6], torch.Size([2, 4, 7, 6]), np.array([2, 4, 7, 6])]
)
def test_shapes_may_come_as_any_sequence(shape: Any) -> None:
    assert jd.conv_backward_data(DY, W, shape, **CONV).shape == (2, 4, 7, 6)
    dy = zeros(2, 4, 3, 3)
    assert jd.avg_pool_backward(dy, shape, 2).shape == (2, 4, 7, 6)


def test_true_convolution_turns_the_filter() -> None:
    x, w = normal(1, 2, 8, 8), normal(3, 2, 3, 2)
    turned = np.ascontiguousarray(w[:, :, ::-1, ::-1])
    assert close(jd.conv(x, w, mode="convolution"), jd.conv(x, turned))


@pytest.mark.parametrize("extra", [(0, 0), (1, 0), (1, 2)])
def test_output_padding_picks_the_extent(extra: tuple[int, int]) -> None:
    x, w = normal(2, 4, 5, 3), normal(4, 3, 3, 3)
    got = jd.conv_transpose(x, w, stride=(2, 3), padding=1, output_padding=extra)
    expected = F.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), stride=(2, 3), padding=1, output_padding=extra
    )
    assert close(got, expected)


@pytest.mark.parametrize(
    ("axis", "dimensions"),
    [(1, 1), (-1, 3), ("channel", 1), ("instance", (1, 2, 3)), ((0, 2), (0, 2)), ([1], 1)],
)
@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
def test_softmax_axes_and_algorithms(axis: Any, dimensions: Any, algorithm: str) -> None:
    x = normal(3, 4, 5, 2)
    exponentials = np.exp(x)
    expected = exponentials / exponentials.sum(axis=dimensions, keepdims=True)
    if algorithm == "log":
        expected = np.log(expected)
    y = jd.softmax(x, axis, algorithm)
    assert close(y, expected)
    dy = normal(3, 4, 5, 2)[::-1]
    total = (dy if algorithm == "log" else dy * expected).sum(axis=dimensions, keepdims=True)
    slope = dy - np.exp(expected) * total if algorithm == "log" else expected * (dy - total)
    assert close(jd.softmax_backward(dy, y, axis, algorithm), slope)


def test_elementwise_results_keep_the_order_of_axes_whatever_it_is() -> None:
    x = normal(3, 4, 5, 2).transpose(3, 1, 0, 2)
    for y in (jd.relu(x), jd.softmax(x), jd.add(x, x), jd.relu_backward(x, x)):
        assert y.strides == x.strides
        assert y.shape == x.shape


def test_add_is_broadcast_to_out() -> None:
    bias, y = normal(6, 1, 1), normal(2, 6, 4, 3)
    out = y.copy()
    assert jd.add(bias, out=out, beta=1.0) is out
    assert close(out, y + bias)
    assert close(jd.add(bias, bias, out=out, alpha=0.5), np.broadcast_to(bias, y.shape))
    assert close(jd.add(y), y)
    assert jd.add(y) is not y


def test_matmul_of_transposed_and_broadcast_matrices() -> None:
    a, b = normal(5, 4), normal(3, 5, 6)
    assert close(jd.matmul(a.T, b), a.T @ b)
    assert jd.matmul(zeros(3, 0), zeros(0, 4)).tolist() == zeros(3, 4).tolist()


def empty_batches() -> list[Any]:
    x, w, dy = zeros(0, 4, 7, 6), W, zeros(0, 6, 4, 3)
    return [
        (lambda: jd.conv(x, w, **CONV), (0, 6, 4, 3)),
        (lambda: jd.conv_backward_data(dy, w, x.shape, **CONV), x.shape),
        (lambda: jd.conv_transpose(dy, w, output_padding=1, **CONV), (0, 4, 8, 6)),
        (lambda: jd.max_pool(x, 2), (0, 4, 3, 3)),
        (lambda: jd.avg_pool(x, 2), (0, 4, 3, 3)),
        (lambda: jd.max_pool_backward(zeros(0, 4, 3, 3), x, zeros(0, 4, 3, 3), 2), x.shape),
        (lambda: jd.avg_pool_backward(zeros(0, 4, 3, 3), x.shape, 2), x.shape),
        (lambda: jd.global_avg_pool(x), (0, 4, 1, 1)),
        (lambda: jd.softmax(x), x.shape),
        (lambda: jd.softmax_backward(x, x), x.shape),
        (lambda: jd.relu(x), x.shape),
        (lambda: jd.relu_backward(x, x), x.shape),
        (lambda: jd.add(x, x), x.shape),
        (lambda: jd.matmul(zeros(0, 3), zeros(3, 4)), (0, 4)),
    ]


@pytest.mark.parametrize(("run", "shape"), empty_batches())
def test_an_empty_batch_gives_an_empty_result(run: Callable[[], AnyArray], shape: tuple[int, ...]) -> None:
    assert run().shape == shape


def test_gradients_summed_over_an_empty_batch_are_zero() -> None:
    x, dy = zeros(0, 4, 7, 6), zeros(0, 6, 4, 3)
    assert not jd.conv_backward_filter(x, dy, W.shape, **CONV).any()
    assert not jd.conv_backward_bias(dy).any()
    out = np.ones(W.shape, np.float32)
    jd.conv_backward_filter(x, dy, W.shape, beta=0.5, out=out, **CONV)
    assert (out == 0.5).all()


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            lambda: jd.conv(zeros(1, 64, 8, 8), zeros(8, 48, 3, 3)),
            jd.InvalidShape,
            "w has 48 input channels, x has 64 and groups=1: they must be equal",
        ),
        (
            lambda: jd.conv(zeros(1, 64, 8, 8), zeros(9, 32, 3, 3), groups=2),
            jd.InvalidShape,
            "w has k=9, which groups=2 does not divide",
        ),
        (lambda: jd.conv(zeros(1, 64, 8, 8), zeros(8, 64, 3)), jd.InvalidShape, "they need as many dims"),
        (lambda: jd.conv(zeros(64, 8), zeros(8, 64)), jd.InvalidShape, "1 to 3 spatial extents are needed"),
        (
            lambda: jd.conv(zeros(1, 4, 3, 3), zeros(8, 4, 5, 5)),
            jd.InvalidShape,
            "the filter covers 5 elements of axis h",
        ),
        (lambda: jd.conv(X, W, groups=2, stride=0), jd.InvalidArgument, "stride is 0: it must be at least 1"),
        (
            lambda: jd.conv(X, W, groups=2, stride=(1, 2, 3)),
            jd.InvalidArgument,
            "stride has 3 numbers for 2 spatial axes: give one, or 2",
        ),
        (lambda: jd.conv(X, W, groups=2, padding=-1), jd.InvalidArgument, "padding is -1"),
        (lambda: jd.conv(X, W, groups=2, stride=1.5), jd.InvalidArgument, "integers"),
        (
            lambda: jd.conv(X, W, groups=2, stride={2}),
            jd.InvalidArgument,
            r"stride is \{2\}: only integers",
        ),
        (
            lambda: jd.conv(X, W, groups=2, mode="valid"),
            jd.InvalidArgument,
            "'cross_correlation', 'convolution'",
        ),
        (lambda: jd.conv(X, W, groups=2, layout="NHCW"), jd.InvalidArgument, "use nchw or nhwc"),
        (lambda: jd.conv(X, W, groups=2, workspace_limit="64 MBit"), jd.ParseError, "'MBit' is no unit"),
        (
            lambda: jd.conv(X, W, groups=2, algorithm="magic"),
            jd.NotSupported,
            "there is no algorithm 'magic' for conv_fwd on cpu: there are .*reference",
        ),
        (
            lambda: jd.conv_backward_data(DY, W, (2, 4, 9, 9), **CONV),
            jd.InvalidShape,
            r"dy has shape \(2, 6, 4, 3\): .* give \(2, 6, 5, 5\)",
        ),
        (
            lambda: jd.conv_backward_data(DY, W, 7, **CONV),
            jd.InvalidShape,
            "x_shape is 7: it must be a sequence",
        ),
        (
            lambda: jd.conv_backward_filter(X, DY, (6, 2, 5, 5), **CONV),
            jd.InvalidShape,
            r"dy has shape",
        ),
        (
            lambda: jd.conv_transpose(zeros(1, 3, 4, 4), zeros(4, 2, 3, 3)),
            jd.InvalidShape,
            "w has 4 input channels, x has 3: they must be equal",
        ),
        (
            lambda: jd.conv_transpose(zeros(1, 4, 4, 4), zeros(4, 2, 3, 3), stride=2, output_padding=2),
            jd.InvalidShape,
            "output_padding 2 of axis h must be less than its stride 2",
        ),
        (lambda: jd.max_pool(X, 9), jd.InvalidShape, "the window 9 is larger than axis h"),
        (lambda: jd.max_pool(X, 2, padding=2), jd.InvalidArgument, "must be less than its window 2"),
        (lambda: jd.max_pool(X, 2, rounding="up"), jd.InvalidArgument, "'floor', 'ceil', 'caffe'"),
        (
            lambda: jd.max_pool_backward(zeros(2, 4, 3, 2), X, zeros(2, 4, 3, 3), 2),
            jd.InvalidShape,
            "dy has shape",
        ),
        (lambda: jd.global_avg_pool(zeros(2, 3)), jd.InvalidShape, "spatial extents are needed"),
        (
            lambda: jd.softmax(X, axis=4),
            jd.InvalidArgument,
            "axis 4 of a tensor of 4 dims: it must be -4 to 3",
        ),
        (lambda: jd.softmax(X, axis=(1, 1)), jd.InvalidArgument, "none twice"),
        (lambda: jd.softmax(X, algorithm="exact"), jd.InvalidArgument, "'fast', 'accurate', 'log'"),
        (lambda: jd.softmax_backward(X, zeros(2, 4)), jd.InvalidShape, r"\(2, 4\)"),
        (lambda: jd.relu_backward(X), jd.InvalidArgument, "relu_backward needs x or y, and not both"),
        (lambda: jd.tanh_backward(X, X, y=X), jd.InvalidArgument, "tanh_backward needs x or y, and not both"),
        (lambda: jd.relu_backward(X, zeros(2, 4)), jd.InvalidShape, r"\(2, 4\)"),
        (
            lambda: jd.matmul(zeros(3, 4), zeros(5, 6)),
            jd.InvalidShape,
            r"columns \(4\) must be as many as b's rows",
        ),
        (lambda: jd.matmul(zeros(4), zeros(4, 6)), jd.InvalidShape, "a matrix needs at least 2 dims"),
        (lambda: jd.add(zeros(3, 4), zeros(2, 4)), jd.InvalidShape, "do not broadcast"),
        (lambda: jd.add(zeros(3, 4), out=zeros(4)), jd.InvalidShape, "cannot be broadcast"),
        (lambda: jd.conv(np.float32(1), W), jd.InvalidShape, "x: a NumPy scalar"),
        (lambda: jd.conv(X, None), jd.InvalidType, "w: NoneType cannot be borrowed"),
        (lambda: jd.conv(torch.zeros(1, 4, 7, 6, device="meta"), W), jd.DeviceError, "x: a tensor on meta"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    run: Callable[[], Any], error: type[Exception], message: str
) -> None:
    for _ in range(2):  # an error must not leave anything behind that lets the second call pass
        with pytest.raises(error, match=message):
            run()
