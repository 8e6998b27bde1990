"""Pooling, forward and backward: every algorithm on the sizes that hurt, ties, NaN and empty windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem, parse
from strategies import poolings

MODES = ("max", "avg", "avg exclude_pad")
DIRECTIONS = ("fwd", "bwd")

SHAPES = [
    "n1 c1 h1 w1 window1",
    "n2 c3 h8 w8 window2",
    "n2 c3 h7 w9 window2",  # what is left over is dropped
    "n2 c17 h13 w15 window3 stride2",
    "n2 c17 h13 w15 window3 stride2 nhwc",
    "n1 c64 h14 w12 window3 stride2 ceil nhwc",
    "n1 c5 h14 w12 window3 stride2 caffe",
    "n1 c5 h9 w10 window3 stride1 pad1",
    "n1 c33 h9 w10 window3 stride1 pad1 nhwc",
    "n1 c3 h9 w11 window3x2 stride2x3 pad2:0x0:1 ceil",
    "n1 c16 h9 w11 window3x2 stride2x3 pad2:0x0:1 caffe nhwc",
    "n2 c3 h7 w7 window7",  # global
    "n2 c63 h7 w7 window7 nhwc",
    "n3 c65 h1 w1 window1 nhwc",
    "n1 c5 h60 w61 window60x61",
    "n1 c17 h60 w61 window60x61 nhwc",
    "n1 c2 h6 w7 window2 stride3 caffe",  # the last windows are empty
    "n1 c18 h6 w7 window2 stride4x3 caffe nhwc",
    "n1 c4 h5 w5 window1 stride3 caffe",
    "n1 c2 h3 w4 window5 stride2 pad2",  # window larger than the image
    "n1 c2 h3 w70 window2x65 stride1x3 pad0x4",
    "n2 c5 w37 window5 stride3 pad2",
    "n2 c19 w37 window5 stride3 pad2:1 ceil nhwc",
    "n1 c3 d5 h6 w7 window2x3x2 stride2x1x3 pad1x1x0",
    "n1 c17 d4 h5 w4 window3 stride2 pad1 ceil nhwc",
    "n2 c9 h9 w10 window3 stride2 pad1 f64",
    "n2 c9 h9 w10 window3 stride2 pad1 f64 nhwc",
    "n0 c3 h8 w8 window2",
    "n2 c3 h13 w40 window3 stride1 pad2 dil2",
    "n1 c2 h19 w41 window3x2 stride2x3 pad2:3x1:0 dil2x4 ceil",
    "n1 c17 h12 w11 window3 stride2 pad2 dil3x2 nhwc",
    "n1 c2 h1 w2 window2 stride1 pad3 dil4",  # windows of nothing but padding, between others
    "n1 c19 h2 w1 window2 stride1 pad3 dil4 nhwc",
    "n1 c2 d5 h6 w7 window2 stride1 dil3x2x1",
]
HALVES = ["f16", "bf16"]


def pooling(words: str, mode: str, direction: str) -> Problem:
    return parse(f"pool_{direction} {mode} {words}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, mode: str, direction: str) -> None:
    check(pooling(words, mode, direction))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_orders_in_memory(mode: str, direction: str, arrangement: str) -> None:
    check(arranged(pooling("n2 c5 h9 w8 window3 stride2 pad1:0x1 ceil", mode, direction), arrangement))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", ["y=nhwc", "nhwc y=nchw"])
def test_forward_between_layouts(words: str, mode: str) -> None:
    check(pooling(f"n2 c19 h9 w10 window3 stride2 {words}", mode, "fwd"))


@pytest.mark.parametrize("words", ["dx=nhwc", "nhwc dx=nchw"])
def test_backward_between_layouts(words: str) -> None:
    check(pooling(f"n2 c19 h9 w10 window3 stride2 {words}", "avg", "bwd"))
    check(pooling(f"n2 c19 h9 w10 window3 stride2 {words} y=s1,100,8,2", "max", "bwd"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_narrower_instruction_sets(layout: str, mode: str, direction: str, cpu: str) -> None:
    check(pooling(f"n2 c19 h9 w20 window3 stride2 pad1 {layout}", mode, direction), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    assert unreached([pooling(words, mode, direction) for words in SHAPES for mode in MODES]) == set()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", ["n2 c19 h9 w10 window3 stride2 pad1", "n1 c3 h6 w40 window6x8 stride1x4"])
def test_half_precision(words: str, mode: str, direction: str, dtype: str) -> None:
    for layout in ("nchw", "nhwc"):
        check(pooling(f"{words} {dtype} {layout}", mode, direction))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_half_precision_sums_are_rounded_once(mode: str, layout: str) -> None:
    """32 windows reach an element: 1024 + 1/2 + ... + 1/2 is 1039.5, whose neighbour in half precision is 1040;
    rounded after every step it would stay 1024."""
    dy = np.full((1, 17, 32), 0.5, np.float16)
    dy[:, :, 0] = 1024
    x, y = np.full((1, 17, 63), -1.0, np.float16), np.zeros((1, 17, 32), np.float16)
    x[:, :, 31] = 0
    problem = parse(f"pool_bwd {mode} n1 c17 w63 window32 stride1 f16 {layout}")
    inputs = (dy, x, y) if mode == "max" else (dy * 32,)
    for name, dx in results_of(problem, *inputs).items():
        np.testing.assert_array_equal(dx[:, :, 31], 1040, err_msg=name)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", ["n2 c19 h9 w10 window3 stride2 pad1", "n1 c3 h6 w40 window6x40"])
def test_integers_of_8_bits(words: str, mode: str, dtype: str) -> None:
    for layout in ("nchw", "nhwc"):
        check(pooling(f"{words} {dtype} {layout}", mode, "fwd"))


def test_averages_of_integers_are_rounded_to_the_nearest_even() -> None:
    x = np.array([[[1, 2, 3, 4, -1, -2, 127, 127, -128, -127]]], np.int8)
    expected = [[[2, 4, -2, 127, -128]]]  # of 1.5, 3.5, -1.5, 127, -127.5
    for name, y in results_of(parse("pool_fwd avg n1 c1 w10 window2 i8"), x).items():
        np.testing.assert_array_equal(y, expected, err_msg=name)
    for name, y in results_of(parse("pool_fwd max n1 c1 w6 window2 stride3 caffe i8"), x[:, :, :6]).items():
        np.testing.assert_array_equal(y, [[[2, 4, -128]]], err_msg=name)


@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_as_pytorch(mode: str, layout: str | None) -> None:
    torch = pytest.importorskip("torch")
    functional, random = torch.nn.functional, np.random.default_rng(3)
    order, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout else ((0, 1, 2, 3),) * 2
    x = random.standard_normal((2, 5, 14, 19)).astype(np.float32)
    ours, leaf = np.ascontiguousarray(x.transpose(order)), torch.tensor(x, requires_grad=True)
    for window, stride, padding, dilation, ceil in (
        (3, 2, 1, 1, False),
        (3, 1, 1, 2, False),
        (2, 3, 0, 1, True),
    ):
        keywords = {"rounding": "ceil" if ceil else "floor", "layout": layout}
        if mode == "max":
            expected = functional.max_pool2d(leaf, window, stride, padding, dilation, ceil)
            keywords["dilation"] = dilation
            y = jd.max_pool(ours, window, stride, padding, **keywords)
        else:
            expected = functional.avg_pool2d(leaf, window, stride, padding, ceil)
            y = jd.avg_pool(ours, window, stride, padding, **keywords)
        np.testing.assert_allclose(y.transpose(back), expected.detach(), rtol=1e-6, atol=1e-6)
        dy = random.standard_normal(expected.shape).astype(np.float32)
        (gradient,) = torch.autograd.grad(expected, leaf, torch.tensor(dy))
        dy = np.ascontiguousarray(dy.transpose(order))
        if mode == "max":
            dx = jd.max_pool_backward(dy, ours, y, window, stride, padding, **keywords)
        else:
            dx = jd.avg_pool_backward(dy, ours.shape, window, stride, padding, **keywords)
        np.testing.assert_allclose(dx.transpose(back), gradient, rtol=1e-6, atol=1e-6)


def test_x_and_y_are_of_one_type() -> None:
    x = np.zeros((1, 1, 4, 4), np.int8)
    with pytest.raises(InvalidType, match="x is i8 and y is u8: they must be of one dtype"):
        jd.max_pool(x, 2, out=np.zeros((1, 1, 2, 2), np.uint8))
    with pytest.raises(InvalidType):
        jd.max_pool(x, 2, out=np.zeros((1, 1, 2, 2), np.float32))
    with pytest.raises(InvalidType):
        jd.max_pool(x.astype(np.float32), 2, out=np.zeros((1, 1, 2, 2)), return_indices=False)
    with pytest.raises(InvalidType):
        jd.max_pool(x.astype(np.float32), 2, out=(np.zeros((1, 1, 2, 2)), None), return_indices=True)


def test_padding_must_be_less_than_what_a_window_spans() -> None:
    x = np.zeros((1, 1, 9, 9), np.float32)
    assert jd.max_pool(x, 2, 1, padding=3, dilation=3).shape == (1, 1, 12, 12)
    with pytest.raises(InvalidArgument, match=r"must be less than its window 4 \(2 taps 3 apart\)"):
        jd.max_pool(x, 2, 1, padding=4, dilation=3)
    with pytest.raises(InvalidArgument, match="dilation is 0: it must be at least 1"):
        jd.max_pool(x, 2, 1, dilation=0)
    with pytest.raises(InvalidType, match="dy is i8"):
        parse("pool_bwd avg n1 c1 w4 window2 i8")


@settings(
    max_examples=examples(30),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example costs a compilation: no shrinking
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(poolings())
def test_any_pooling(problem: Problem) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


SPECIAL = np.array([7.0, 7, 1, np.nan, 9, np.nan, -np.inf, -np.inf, -np.inf, np.inf, np.inf, 3], np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_first_maximum_wins_and_nan_is_the_largest(layout: str) -> None:
    shape = "n2 c37 w12 window3"
    x = np.broadcast_to(SPECIAL, (2, 37, 12))
    y = np.broadcast_to(np.array([7, np.nan, -np.inf, np.inf], np.float32), (2, 37, 4))
    for name, ours in results_of(parse(f"pool_fwd max {shape} {layout}"), x).items():
        np.testing.assert_array_equal(ours, y, err_msg=name)
    dy = np.broadcast_to(np.array([1, 2, 3, 4], np.float32), (2, 37, 4))
    dx = np.broadcast_to(np.array([1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0], np.float32), (2, 37, 12))
    for name, ours in results_of(parse(f"pool_bwd max {shape} {layout}"), dy, x, y).items():
        np.testing.assert_array_equal(ours, dx, err_msg=name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_numbers_below_the_empty_windows(layout: str) -> None:
    """The maximum of numbers near -FLT_MAX is one of them; padding is never taken for one."""
    x = np.full((1, 17, 6), -3e38, np.float32)
    x[:, :, 2] = -np.inf
    expected = np.full((1, 17, 3), -3e38, np.float32)
    padded = parse(f"pool_fwd max n1 c17 w6 window2 pad1:0 stride3 ceil {layout}")
    for name, ours in results_of(padded, x).items():
        np.testing.assert_array_equal(ours, expected, err_msg=name)
    wide = np.full((1, 17, 2), -1e300)
    for name, ours in results_of(parse(f"pool_fwd max n1 c17 w2 window2 f64 {layout}"), wide).items():
        np.testing.assert_array_equal(ours, wide[:, :, :1], err_msg=name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_empty_windows(layout: str) -> None:
    x = np.broadcast_to(np.arange(1, 7, dtype=np.float32), (1, 33, 6))
    shape = f"n1 c33 w6 window2 stride3 caffe {layout}"
    for name, ours in results_of(parse(f"pool_fwd max {shape}"), x).items():
        np.testing.assert_array_equal(ours[0, 5], np.array([2, 5, -3.4028234663852886e38]), err_msg=name)
    for mode in ("avg", "avg exclude_pad"):
        for name, ours in results_of(parse(f"pool_fwd {mode} {shape}"), x).items():
            np.testing.assert_array_equal(ours[0, 5], [1.5, 4.5, 0], err_msg=name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_average_carries_nan_and_infinity_to_their_windows_only(layout: str) -> None:
    x = np.ones((1, 33, 9), np.float32)
    x[0, :, 1], x[0, :, 7] = np.nan, np.inf
    for name, ours in results_of(parse(f"pool_fwd avg n1 c33 w9 window3 {layout}"), x).items():
        np.testing.assert_array_equal(ours[0], np.tile(np.array([np.nan, 1, np.inf]), (33, 1)), err_msg=name)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "caffe"])
@pytest.mark.parametrize(
    ("extent", "window", "stride", "padding", "dilation"),
    [
        (3, 5, 4, 0, 1),
        (1, 2, 2, 0, 1),
        (3, 6, 5, 1, 1),
        (2, 3, 7, 1, 3),
        (4, 3, 9, 0, 2),
    ],
)
def test_a_window_larger_than_the_padded_image_is_refused(
    extent: int, window: int, stride: int, padding: int, dilation: int, rounding: str
) -> None:
    x = np.ones((1, 1, extent, 8 * extent), np.float32)
    options = {"padding": padding, "rounding": rounding, "dilation": dilation}
    if rounding == "caffe" and dilation == 1:
        assert jd.max_pool(x, (window, 1), (stride, 1), ((padding, padding), (0, 0)), rounding).shape[2] == 1
        return
    for run in (
        lambda: jd.max_pool(x, window, stride, **options),
        lambda: jd.avg_pool(x, window, stride, **options),
        lambda: jd.max_pool(x, window, stride, return_indices=True, **options),
        lambda: jd.max_pool_backward(x, x, x, window, stride, **options),
        lambda: jd.avg_pool_backward(x, x.shape, window, stride, **options),
    ):
        with pytest.raises(jd.InvalidShape, match="is larger than axis h of the padded image"):
            run()


def test_caffe_takes_a_window_that_overhangs_by_less_than_a_stride() -> None:
    """Of ⌈(3 − 5) / 4⌉ + 1 = 1 outputs, from the elements that there are; Caffe divides by their number."""
    x = np.arange(1.0, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    assert jd.max_pool(x, 5, 4, rounding="caffe").tolist() == [[[[9.0]]]]
    assert jd.avg_pool(x, 5, 4, rounding="caffe").tolist() == [[[[5.0]]]]
    assert jd.avg_pool_backward(np.ones((1, 1, 1, 1)), (1, 1, 3, 3), 5, 4, rounding="caffe").sum() == 1.0


def test_windows_have_no_more_elements_than_can_be_planned() -> None:
    """Plans look at every place of a window, whether it is in the image or not."""
    x = np.ones((1, 1, 5), np.float32)
    with pytest.raises(
        InvalidArgument, match=r"window is 1000000000: along axis w of extent 5 it must be at most"
    ):
        jd.max_pool(x, 10**9, padding=10**9 - 1)
    assert jd.max_pool(x, 10**5, padding=10**5 - 1).tolist() == [[[1.0, 1.0]]]


@pytest.mark.parametrize("words", ["fwd max", "fwd avg", "bwd avg"])
@pytest.mark.parametrize(
    "shape", ["n1 c3 h224 w224 window224", "n64 c3 h224 w224 window224", "n2 c5 w60000 window6000"]
)
def test_large_windows_are_not_left_to_the_definition(words: str, shape: str) -> None:
    """It goes around a loop in Python for each of their elements."""
    problem, device = parse(f"pool_{words} {shape}"), host(1)
    takers = [a for a in algorithms(problem, "cpu") if a.refuse(problem, device) is None]
    seconds = {a.name: a.estimate(problem, device) for a in takers}
    definition = seconds.pop("reference")
    assert definition > 5 * min(seconds.values()), seconds
