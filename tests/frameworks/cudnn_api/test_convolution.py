"""Convolutions in cuDNN's names, against the float64 reference: every algorithm, layout, blending, workspace."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import cudnn_programs as programs
import jitdnn.cudnn as c
from cudnn_programs import Program
from jitdnn.frameworks.cudnn_api import convolution_algorithms
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import borrow

rng = np.random.default_rng(7)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


def channels_last(x: Any) -> Any:
    """The same numbers, channels last in memory."""
    order = (0, *range(2, x.ndim), 1)
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    return np.ascontiguousarray(x.transpose(order)).transpose(back)


def reference(direction: str, x: Any, w: Any, y: Any, *inputs: Any, **form: Any) -> Any:
    mode = "convolution" if form.get("flips") else "cross_correlation"
    problem = Convolution.make(
        direction, borrow(x).descriptor, borrow(w).descriptor, form["strides"], form["pads"], form["dilations"],
        form.get("groups", 1), mode, y=borrow(y).descriptor,
    )  # fmt: skip
    return problem.reference(*inputs)


def error(found: Any, expected: Any) -> float:
    return float(np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-6))


PLAIN = {"pads": (1, 2), "strides": (2, 1), "dilations": (1, 2)}
CASES = {
    "2-d": ((2, 6, 9, 11), (4, 6, 3, 2), PLAIN),
    "groups, flipped": ((2, 6, 9, 8), (4, 3, 3, 3), {**PLAIN, "groups": 2, "flips": True}),
    "1-d": ((3, 4, 17), (5, 4, 4), {"pads": (2,), "strides": (3,), "dilations": (1,)}),
    "3-d": (
        (1, 3, 5, 6, 7),
        (4, 3, 2, 3, 2),
        {"pads": (0, 1, 1), "strides": (1, 2, 1), "dilations": (2, 1, 1)},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_all_directions_with_blending(p: Program, name: str, layout: str) -> None:
    x_shape, w_shape, form = CASES[name]
    x, w = normal(*x_shape), normal(*w_shape)
    if layout == "nhwc":
        x = channels_last(x)
    y_shape = Convolution.make(
        "fwd", x_shape, w_shape, form["strides"], form["pads"], form["dilations"], form.get("groups", 1)
    ).y.shape
    y, dy = normal(*y_shape), normal(*y_shape)
    alpha, beta = 1.5, -0.5
    found = programs.convolution(p, x, w, y, dy, alpha, beta, **form)
    expected = (
        alpha * reference("fwd", x, w, y, x, w, **form) + beta * y,
        alpha * reference("bwd_data", x, w, y, dy, w, **form) + beta * x,
        alpha * reference("bwd_filter", x, w, y, x, dy, **form) + beta * w,
    )
    for one, other in zip(found, expected, strict=False):
        assert error(one, other) < 1e-5
    axes = (0, *range(2, x.ndim))
    assert error(found[3].ravel(), alpha * dy.astype(np.float64).sum(axes)) < 1e-5


def described(p: Program) -> tuple[Any, ...]:
    x, w, y = normal(2, 8, 12, 13), normal(8, 8, 3, 3), np.full((2, 8, 12, 13), np.nan, np.float32)
    form = {"pads": (1, 1), "strides": (1, 1), "dilations": (1, 1)}
    return x, w, y, form, p.tensor(x), p.filter(w), p.convolution(**form), p.tensor(y)  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", list(c.cudnnConvolutionFwdAlgo_t)[:8])
def test_every_algorithm_forward(p: Program, algo: Any) -> None:
    x, w, y, form, x_desc, w_desc, conv, y_desc = described(p)
    listed = {
        one.algo: one
        for one in c.cudnnGetConvolutionForwardAlgorithm_v7(p.handle, x_desc, w_desc, conv, y_desc, 8)
    }
    assert len(listed) == c.cudnnGetConvolutionForwardAlgorithmMaxCount(p.handle) == 8
    if listed[algo].status != c.CUDNN_STATUS_SUCCESS:
        with pytest.raises(c.CudnnNotSupported) as caught:
            c.cudnnGetConvolutionForwardWorkspaceSize(p.handle, x_desc, w_desc, conv, y_desc, algo)
        assert caught.value.status == c.CUDNN_STATUS_NOT_SUPPORTED
        return
    size = c.cudnnGetConvolutionForwardWorkspaceSize(p.handle, x_desc, w_desc, conv, y_desc, algo)
    assert size == listed[algo].memory
    if algo == c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM:
        assert size == 0
    # a workspace that begins anywhere, with sentinels around it
    whole = np.full(size + 40, 77, np.uint8)
    work = whole[13 : 13 + size]
    c.cudnnConvolutionForward(p.handle, 1.0, x_desc, x, w_desc, w, conv, algo, work, size, 0.0, y_desc, y)
    assert error(y, reference("fwd", x, w, y, x, w, **form)) < 1e-5
    assert (whole[:13] == 77).all()
    assert (whole[13 + size :] == 77).all()
    if size:
        for lent in ((None, size), (work, size - 1), (work[:-1], size), (None, 0)):
            with pytest.raises(c.CudnnBadParam) as caught:
                c.cudnnConvolutionForward(
                    p.handle, 1.0, x_desc, x, w_desc, w, conv, algo, *lent, 0.0, y_desc, y
                )
            assert caught.value.status == c.CUDNN_STATUS_BAD_PARAM


def test_find_measures_and_keeps_to_the_workspace(p: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_algorithms, "find", partial(convolution_algorithms.find, seconds=0.05))
    x, w, y, _, x_desc, w_desc, conv, y_desc = described(p)
    y[...] = 3
    found = c.cudnnFindConvolutionForwardAlgorithm(p.handle, x_desc, w_desc, conv, y_desc, 3)
    assert len(found) == 3
    times = [one.time for one in found if one.status == c.CUDNN_STATUS_SUCCESS]
    assert times == sorted(times)
    assert min(times) > 0
    within = c.cudnnFindConvolutionForwardAlgorithmEx(
        p.handle, x_desc, x, w_desc, w, conv, y_desc, y, 8, None, 0
    )
    assert all(one.memory == 0 for one in within)
    assert within[0].status == c.CUDNN_STATUS_SUCCESS
    assert (y == 3).all()
    dx, dw, work = np.zeros_like(x), np.zeros_like(w), np.zeros(1 << 20, np.uint8)
    data = c.cudnnFindConvolutionBackwardDataAlgorithmEx(
        p.handle, w_desc, w, y_desc, y, conv, x_desc, dx, 2, work, work.nbytes
    )
    taps = c.cudnnFindConvolutionBackwardFilterAlgorithmEx(
        p.handle, x_desc, x, y_desc, y, conv, w_desc, dw, 2, work, work.nbytes
    )
    for perf in (*data, *taps):
        assert perf.status == c.CUDNN_STATUS_SUCCESS
        assert perf.memory <= work.nbytes
    assert (
        c.cudnnFindConvolutionBackwardDataAlgorithm(p.handle, w_desc, y_desc, conv, x_desc, 1)[0].status == 0
    )
    assert (
        c.cudnnFindConvolutionBackwardFilterAlgorithm(p.handle, x_desc, y_desc, conv, w_desc, 1)[0].status
        == 0
    )


@pytest.mark.parametrize("name", ["RELU", "IDENTITY", "TANH"])
def test_bias_and_activation(p: Program, name: str) -> None:
    x, w, bias = normal(2, 4, 7, 8), normal(6, 4, 3, 3), normal(1, 6, 1, 1)
    form = {"pads": (1, 1), "strides": (1, 1), "dilations": (1, 1)}
    z = normal(2, 6, 7, 8)
    found = programs.bias_activation(p, x, w, z, bias, (0.5, 2.0), name, **form)
    total = 0.5 * reference("fwd", x, w, z, x, w, **form) + 2.0 * z + bias
    expected = {"RELU": np.maximum(total, 0), "IDENTITY": total, "TANH": np.tanh(total)}[name]
    assert error(found, expected) < 1e-5


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2), (1, 3)])
@pytest.mark.parametrize("taps", [(1, 1), (1, 3)])
def test_bias_and_activation_in_the_workspace_of_the_query(
    p: Program, taps: tuple[int, int], strides: tuple[int, int]
) -> None:
    """The query knows of no bias and no z: what it says is enough with them all the same."""
    x, w, bias = normal(3, 2, 8, 7), normal(5, 2, *taps), normal(1, 5, 1, 1)
    form = {"pads": (1, 1), "strides": strides, "dilations": (1, 1)}
    extents = [(n + 2 - tap) // step + 1 for n, tap, step in zip(x.shape[2:], taps, strides, strict=True)]
    z = normal(3, 5, *extents)
    found = programs.bias_activation(p, x, w, z, bias, (0.5, 2.0), "RELU", **form)
    total = 0.5 * reference("fwd", x, w, z, x, w, **form) + 2.0 * z + bias
    assert error(found, np.maximum(total, 0)) < 1e-5


def test_z_may_be_y_and_may_be_absent(p: Program) -> None:
    x, w, y, form, x_desc, w_desc, conv, y_desc = described(p)
    bias = normal(1, 8, 1, 1)
    b_desc, act, algo = p.tensor(bias), p.activation("RELU"), c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    plain = reference("fwd", x, w, y, x, w, **form) + bias
    c.cudnnConvolutionBiasActivationForward(
        p.handle,
        1.0,
        x_desc,
        x,
        w_desc,
        w,
        conv,
        algo,
        None,
        0,
        0.0,
        y_desc,
        None,
        b_desc,
        bias,
        act,
        y_desc,
        y,
    )
    assert error(y, np.maximum(plain, 0)) < 1e-5
    before = y.copy()
    c.cudnnConvolutionBiasActivationForward(
        p.handle, 1.0, x_desc, x, w_desc, w, conv, algo, None, 0, 1.0, y_desc, y, b_desc, bias, act, y_desc, y
    )
    assert error(y, np.maximum(plain + before, 0)) < 1e-5


def test_half_precision_double_and_bytes(p: Program) -> None:
    form = {"pads": (1, 1), "strides": (1, 1), "dilations": (1, 1)}
    for dtype, computed, limit in (("float16", "FLOAT", 2e-3), ("float64", "DOUBLE", 1e-12)):
        x, w = normal(1, 4, 6, 6, dtype=dtype), normal(4, 4, 3, 3, dtype=dtype)
        y = np.zeros((1, 4, 6, 6), dtype)
        found = programs.convolution(
            p, x, w, y, normal(1, 4, 6, 6, dtype=dtype), 1.0, 0.0, **form, computed=computed
        )
        assert error(found[0], reference("fwd", x, w, y, x, w, **form)) < limit
    x, w = (rng.integers(-5, 5, s, dtype=np.int8) for s in ((1, 4, 6, 6), (4, 4, 3, 3)))
    y = np.full((1, 4, 6, 6), np.nan, np.float32)
    conv = p.convolution(**form, computed="INT32")
    algo = c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    c.cudnnConvolutionForward(
        p.handle, 1.0, p.tensor(x), x, p.filter(w), w, conv, algo, None, 0, 0.0, p.tensor(y), y
    )
    np.testing.assert_array_equal(y, reference("fwd", x, w, y, x, w, **form))


@pytest.mark.parametrize("flips", [False, True])
def test_windows(p: Program, flips: bool) -> None:
    x, taps = normal(2, 3, 7, 6), (4, 3, 3, 2)
    form = {"pads": (1, 0), "strides": (2, 1), "dilations": (1, 2), "flips": flips}
    w = normal(*taps)
    space = Convolution.make("fwd", x.shape, taps, (2, 1), (1, 0), (1, 2)).y.shape
    columns = np.full((3 * 3 * 2, 2 * space[2] * space[3]), np.nan, np.float32)
    c.cudnnIm2Col(p.handle, p.tensor(x), x, p.filter(w), p.convolution(**form), columns)  # type: ignore[arg-type]
    product = w.reshape(4, -1).astype(np.float64) @ columns
    expected = reference("fwd", x, w, np.zeros(space, np.float32), x, w, **form)
    assert error(product.reshape(4, 2, *space[2:]).transpose(1, 0, 2, 3), expected) < 1e-6


def test_sub_regions_are_described_by_strides(p: Program) -> None:
    """The middle of larger buffers: given as flat memory that begins there, and what lies around is not touched."""
    big = normal(2, 8, 12, 12)
    inside = np.full((2, 6, 14, 14), np.nan, np.float32)
    x_view, y_view = big[:, 2:6, 1:9, 3:10], inside[:, 1:5, 2:10, 4:11]
    w = normal(4, 4, 3, 3)
    form = {"pads": (1, 1), "strides": (1, 1), "dilations": (1, 1)}
    x_desc, y_desc = p.tensor(x_view), p.tensor(y_view)
    flat_x = big.ravel()[(2 * 144 + 12 + 3) :]
    args = (p.filter(w), w, p.convolution(**form), c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, None, 0)  # type: ignore[arg-type]
    c.cudnnConvolutionForward(p.handle, 1.0, x_desc, flat_x, *args, 0.0, y_desc, y_view)
    expected = reference("fwd", x_view, w, y_view, x_view, w, **form)
    assert error(y_view, expected) < 1e-5
    outside = np.ones_like(inside, bool)
    outside[:, 1:5, 2:10, 4:11] = False
    assert np.isnan(inside[outside]).all()
    with pytest.raises(c.CudnnBadParam, match="reaches"):
        c.cudnnConvolutionForward(p.handle, 1.0, x_desc, flat_x[: -(7 * 144)], *args, 0.0, y_desc, y_view)
