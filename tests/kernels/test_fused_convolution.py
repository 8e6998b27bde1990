"""Convolutions with a prologue on x and sums by channel of y: problems, kernels of the processor, and `jd.conv`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional

import jitdnn as jd
from conformance import ARRANGEMENTS, check
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, JitdnnError, NotSupported, ParseError
from jitdnn.problems import Convolution, FusedConvolution, parse
from jitdnn.tensor import TensorDescriptor
from strategies import fused_convolutions

SHAPES = [
    "fwd n2 c8 h5 w6 k6 r3 s3 pad1 nhwc prologue=relu sums",
    "fwd n2 c5 h5 w6 k6 r3 s3 pad1:0x2 stride2 prologue=sigmoid",
    "fwd n2 c20 h9 w9 k18 r3 s3 pad1 nhwc prologue=relu sums",
    "fwd n2 c6 w11 k8 s3 dil2 pad2 g2 sums f64",
    "fwd n1 c3 d3 h4 w5 k6 t2 r3 s3 stride2 pad1 f16 prologue=leaky_relu coef0.2 sums squares=s-2 shift=s3",
    "bwd_filter n2 c8 h5 w5 k6 r3 s3 pad1 bf16 nhwc prologue=swish coef2.0 scale=s2",
    "bwd_filter n3 c5 w9 k7 s2 pad1 prologue=tanh",
    "fwd n0 c5 w9 k7 s2 pad1 prologue=tanh sums",
    "fwd n3 c4 h5 w6 k5 r3 s3 pad1 nhwc image_sums",
    "fwd n2 c3 d3 h4 w5 k6 t2 r3 s3 pad1 f16 prologue=relu image_sums squares=s-6,1",
    "fwd n0 c5 w9 k7 s2 pad1 image_sums",
    "bwd_filter n0 c5 w9 k7 s2 pad1 prologue=tanh",
]


@pytest.mark.parametrize("words", SHAPES)
def test_kernels(words: str) -> None:
    assert "separate_kernels" in check(parse(f"fused_conv_{words}"))


@settings(max_examples=examples(25), deadline=None)
@given(fused_convolutions())
def test_any_problem(problem: FusedConvolution) -> None:
    check(problem)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_memory_orders(arrangement: str) -> None:
    own = parse("conv_fwd n2 c4 h5 w4 k3 r2 s2 pad1")
    assert isinstance(own, Convolution)
    shared = arrangement in ("repeated", "overlapping")

    def arranged(tensor: TensorDescriptor, order: str) -> TensorDescriptor:
        return TensorDescriptor(tensor.shape, ARRANGEMENTS[order](tensor.shape), tensor.dtype)

    y = arranged(own.y, "gaps" if shared else arrangement)
    convolution = Convolution.make(
        "fwd", arranged(own.x, arrangement), arranged(own.w, arrangement), 1, 1, y=y
    )
    assert "separate_kernels" in check(FusedConvolution.of(convolution, "relu", sums=True))


# ---- Problem strings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", SHAPES)
def test_strings_print_and_parse(words: str) -> None:
    problem = parse(f"fused_conv_{words}")
    again = parse(str(problem))
    assert again == problem
    assert again.operands == problem.operands


def test_names_of_operands() -> None:
    forward = parse("fused_conv_fwd n1 c2 w4 k3 s1 prologue=relu sums")
    assert [one.name for one in forward.operands] == ["x", "w", "scale", "shift", "y", "sums", "squares"]
    assert [one.name for one in forward.outputs] == ["y", "sums", "squares"]
    gradient = parse("fused_conv_bwd_filter n1 c2 w4 k3 s1 prologue=relu")
    assert [one.name for one in gradient.operands] == ["x", "dy", "scale", "shift", "dw"]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("fused_conv_fwd n1 c2 w4 k3 s1 prologue=rely", ParseError, "must be one of"),
        ("fused_conv_fwd n1 c2 w4 k3 s1", InvalidArgument, "neither a prologue nor sums"),
        ("fused_conv_bwd_filter n1 c2 w4 k3 s1 prologue=relu sums", InvalidArgument, "forward convolution"),
        ("fused_conv_fwd n1 c2 w4 k3 s1 i8 sums", InvalidType, "x is i8"),
        ("fused_conv_fwd n1 c2 w4 k3 s1 sums scale=s2", ParseError, "does not belong"),
        ("fused_conv_fwd n1 c2 w4 k3 s1 prologue=relu coef2", ParseError, "does not belong"),
    ],
)
def test_strings_that_are_wrong(words: str, error: type[JitdnnError], message: str) -> None:
    with pytest.raises(error, match=message):
        parse(words)


def test_problems_that_are_wrong() -> None:
    own = Convolution.make("fwd", (1, 2, 4), (3, 2, 1))
    two, three = (TensorDescriptor.packed((n,), "f32") for n in (2, 3))
    half = TensorDescriptor.packed((2,), "f16")
    with pytest.raises(InvalidArgument, match="scale and shift: give both or none"):
        FusedConvolution(own, scale=two)
    with pytest.raises(InvalidArgument, match="sums and squares: give both or none"):
        FusedConvolution(own, sums=three)
    with pytest.raises(InvalidShape, match=r"squares has shape \(2,\): it must be \(3,\)"):
        FusedConvolution(own, sums=three, squares=two)
    with pytest.raises(InvalidType, match="shift is f16"):
        FusedConvolution(own, scale=two, shift=half)
    with pytest.raises(InvalidArgument, match="belongs to a prologue"):
        FusedConvolution(own, activation="relu", sums=three, squares=three)
    with pytest.raises(InvalidArgument, match="direction"):
        FusedConvolution.of(Convolution.make("bwd_data", (1, 2, 4), (3, 2, 1)), "relu")


# ---- jd.conv ------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(4)
X, W = RNG.standard_normal((2, 6, 7, 8)), RNG.standard_normal((4, 3, 3, 2))
DY = RNG.standard_normal((2, 4, 4, 5))
SCALE, SHIFT, BIAS = RNG.standard_normal(6), RNG.standard_normal(6), RNG.standard_normal(4)
OPTIONS: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}


def torch_block(x: Any, w: Any, scale: Any, shift: Any) -> Any:
    z = torch.relu(scale[:, None, None] * x + shift[:, None, None])
    return functional.conv2d(z, w, **OPTIONS)


def expected() -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = torch_block(*map(torch.tensor, (X, W, SCALE, SHIFT))).numpy()
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_prologue_and_sums(dtype: str) -> None:
    x, w = X.astype(dtype), W.astype(dtype)
    wide = "float64" if dtype == "float64" else "float32"
    prologue = jd.Prologue(SCALE.astype(wide), SHIFT.astype(wide), "relu")
    y, sums, squares = jd.conv(x, w, prologue=prologue, sums=True, **OPTIONS)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2}[dtype]
    assert y.dtype == dtype
    assert sums.dtype == squares.dtype == wide
    np.testing.assert_allclose(y, expected(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(sums, expected().sum((0, 2, 3)), rtol=tolerance, atol=10 * tolerance)
    np.testing.assert_allclose(squares, (expected() ** 2).sum((0, 2, 3)), rtol=tolerance)


def test_layouts_outs_and_epilogues() -> None:
    prologue = jd.Prologue(SCALE, SHIFT, "relu")
    x, w = X.transpose(0, 2, 3, 1), W.transpose(0, 2, 3, 1)
    out = np.full((2, 4, 5, 4), np.nan), None, np.full(4, np.nan)
    y, sums, squares = jd.conv(x, w, prologue=prologue, sums=True, out=out, layout="NHWC", **OPTIONS)
    assert y is out[0]
    assert squares is out[2]
    np.testing.assert_allclose(y.transpose(0, 3, 1, 2), expected(), atol=1e-12)
    np.testing.assert_allclose(sums, expected().sum((0, 2, 3)), atol=1e-10)
    before = RNG.standard_normal(DY.shape)
    fused = jd.conv(
        X, W, BIAS, prologue=prologue, epilogue=lambda a, b: jd.relu(a + b), alpha=2.0, beta=-1.0, out=before.copy(),
        **OPTIONS,
    )  # fmt: skip
    np.testing.assert_allclose(
        fused, 2 * np.maximum(expected() + BIAS[:, None, None], 0) - before, atol=1e-12
    )
    kept = jd.conv(X, jd.KeptFilter(W), prologue=prologue, **OPTIONS)
    np.testing.assert_allclose(kept, expected(), atol=1e-12)


def test_gradients_as_documented() -> None:
    """Of y, sums and squares by everything, in float64."""
    given = [torch.tensor(a, requires_grad=True) for a in (X, W, SCALE, SHIFT)]
    y = torch_block(*given)
    dsums, dsquares = RNG.standard_normal(4), RNG.standard_normal(4)
    whole = (y * torch.tensor(DY)).sum() + (y.sum((0, 2, 3)) * torch.tensor(dsums)).sum()
    whole += ((y**2).sum((0, 2, 3)) * torch.tensor(dsquares)).sum()
    whole.backward()

    prologue = jd.Prologue(SCALE, SHIFT, "relu")
    found = jd.conv(X, W, prologue=prologue, sums=True, **OPTIONS)[0]
    dy = DY + dsums[:, None, None] + 2 * dsquares[:, None, None] * found
    dw = jd.conv_backward_filter(X, dy, W.shape, prologue=prologue, **OPTIONS)
    dz = jd.conv_backward_data(dy, W, X.shape, **OPTIONS)
    inner = jd.relu_backward(dz, SCALE[:, None, None] * X + SHIFT[:, None, None])
    gradients = SCALE[:, None, None] * inner, dw, (inner * X).sum((0, 2, 3)), inner.sum((0, 2, 3))
    for one, other in zip(gradients, given, strict=True):
        assert other.grad is not None
        np.testing.assert_allclose(one, other.grad.numpy(), atol=1e-10)


def test_a_plan_says_what_runs() -> None:
    text = jd.plan("fused_conv_fwd n2 c5 h7 w6 k4 r3 s3 pad1 prologue=relu sums").explain()
    assert "separate_kernels" in text
    assert "prologue=relu sums" in text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sums": True, "bias": BIAS}, InvalidArgument, "leave out bias"),
        ({"sums": True, "epilogue": lambda a: jd.relu(a)}, InvalidArgument, "leave out bias"),
        ({"sums": True, "alpha": 2.0}, InvalidArgument, "must be 1 and 0"),
        ({"sums": True, "beta": 1.0}, InvalidArgument, "must be 1 and 0"),
        ({"sums": "yes"}, InvalidArgument, "sums"),
        ({"prologue": (SCALE, SHIFT)}, InvalidType, "it must be a jd.Prologue"),
        ({"prologue": jd.Prologue(SCALE[:4], SHIFT)}, InvalidShape, r"scale has shape \(4,\)"),
        ({"prologue": jd.Prologue(SCALE.astype("f4"), SHIFT)}, InvalidType, "scale is f32"),
        (
            {"prologue": jd.Prologue(SCALE, SHIFT), "algorithm": "winograd_2"},
            NotSupported,
            "separate_kernels",
        ),
    ],
)
def test_refusals(options: dict[str, Any], error: type[JitdnnError], message: str) -> None:
    with pytest.raises(error, match=message):
        jd.conv(X, W, **OPTIONS, **options)


def test_prologues_that_are_wrong() -> None:
    with pytest.raises(InvalidArgument, match="must be one of"):
        jd.Prologue(SCALE, SHIFT, "rely")
    with pytest.raises(InvalidArgument, match="relu has none"):
        jd.Prologue(SCALE, SHIFT, "relu", 2.0)
    with pytest.raises(InvalidType, match="scale"):
        jd.Prologue(1.0, SHIFT)


@pytest.mark.parametrize("layout", [None, "NHWC"])
def test_sums_of_each_image(layout: str | None) -> None:
    """Those of all are their sums, and `out` may give memory for them."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((3, 6, 7, 5)), rng.standard_normal((4, 6, 3, 3))
    if layout:
        x, w = (np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in (x, w))
    y, sums, squares = jd.conv(x, w, sums="image", layout=layout)
    _, *totals = jd.conv(x, w, sums=True, layout=layout)
    axes = (1, 2) if layout else (2, 3)
    for found, total, wide in zip((sums, squares), totals, (y, y * y), strict=True):
        np.testing.assert_allclose(found, wide.sum(axes), rtol=1e-10)
        np.testing.assert_allclose(found.sum(0), total, rtol=1e-10)
    out = np.empty_like(y), np.empty((3, 4)), np.empty((8, 3)).T[:, ::2]
    again = jd.conv(x, w, sums="image", layout=layout, out=out)
    assert all(one is other for one, other in zip(again, out, strict=True))
    np.testing.assert_allclose(out[2], squares, rtol=1e-10)
    with pytest.raises(InvalidArgument, match="'image'"):
        jd.conv(x, w, sums="images", layout=layout)
    with pytest.raises(InvalidShape, match=r"\(3, 4\)"):
        jd.conv(x, w, sums="image", layout=layout, out=(out[0], np.empty(4), np.empty(4)))
