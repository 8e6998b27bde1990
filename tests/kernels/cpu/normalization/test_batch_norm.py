"""Batch normalization: every algorithm against the definition, the definition and the functions against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, unreached
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.normalization.plan import plan_of
from jitdnn.problems import BatchNorm
from jitdnn.problems.normalization import Normalization
from normalization_cases import check_it, everything, inputs_of, normalization, rearranged
from strategies import normalizations

torch = pytest.importorskip("torch")

KINDS = [
    "batch_norm_fwd spatial",
    "batch_norm_fwd spatial relu add",
    "batch_norm_fwd per_activation",
    "batch_norm_inference spatial",
    "batch_norm_inference per_activation tanh add",
    "batch_norm_bwd spatial",
    "batch_norm_bwd spatial relu add",
    "batch_norm_bwd per_activation sigmoid",
    "batch_norm_fwd spatial clipped_relu",
    "batch_norm_bwd spatial swish from_x",
    "batch_norm_bwd spatial clipped_relu from_x",
]

SHAPES = [
    "shape1x1",
    "shape1x3",
    "shape7x1",
    "shape33x17",
    "shape2x3x5",
    "shape4x19x5x7",
    "shape4x19x5x7 nhwc",
    "shape3x2x33x31",
    "shape2x65x3x4 nhwc",
    "shape2x3x4x5x6",
    "shape4x3x3x3 f64",
    "shape4x9x3x3 f64 nhwc",
    "shape4x5x3x7 f16",
    "shape4x5x3x7 bf16 narrow nhwc",
]

# every shape with some kinds, every kind with some shapes: each pair costs a compilation
TEXTS = [
    f"{kind} {words}" for i, words in enumerate(SHAPES) for j, kind in enumerate(KINDS) if (i + j) % 3 == 0
]

PARTS = [
    "batch_norm_fwd spatial no_weight no_bias no_running no_save",
    "batch_norm_fwd spatial no_weight",
    "batch_norm_fwd spatial no_bias no_running",
    "batch_norm_fwd per_activation no_save factor0.25 epsilon0.5",
    "batch_norm_inference spatial no_weight no_bias relu",
    "batch_norm_inference per_activation no_bias",
    "batch_norm_bwd spatial no_weight",
    "batch_norm_bwd spatial no_bias add",
    "batch_norm_bwd per_activation no_weight no_bias",
    "batch_norm_bwd per_activation relu from_x no_bias",
]

DEVICE = host(1)
LEAST = DEVICE.isa.processor.l2(cost.NORMALIZATION_TENSOR_L2) // 4
"""Elements of x from which on the order of memory matters."""
CHANNEL = DEVICE.isa.processor.l2(cost.NORMALIZATION_CHANNEL_L2) // 4
"""Elements of a channel that stay in the cache."""


def pixels_in_runs(text: str) -> int:
    """How many pixels the runs have that the plan of a problem takes in place of images; 0 for none."""
    problem = normalization(text)
    found = plan_of(problem, DEVICE).problem
    return found.x.shape[2] if found.x.shape != problem.x.shape else 0


IN_RUNS = [
    f"shape{LEAST // (40 * 112) + 1}x40x14x8 nhwc",  # the last vector of channels is not whole
    f"shape1x70x4x{LEAST // 280 // 8 * 8 + 8} nhwc",  # one image
    f"shape{LEAST // 130 // 50 * 50 + 50}x130",  # no space
]
NOT_IN_RUNS = [
    f"shape13x{LEAST // 13117 + 2}x1009x1 nhwc",  # 13 and 1009 are prime: no run divides 13 x 1009 pixels
    f"shape5x{5 * LEAST // CHANNEL + 1}x{CHANNEL // 5 // 31}x31",  # a channel stays in the cache
    f"shape2x2x{LEAST // 4 // 200 + 1}x201",  # few long rows: they are split
]
LARGE = IN_RUNS + NOT_IN_RUNS


def test_large_problems_take_the_orders_that_they_are_there_for() -> None:
    assert all(pixels_in_runs(f"batch_norm_bwd spatial relu add {words}") > 1 for words in IN_RUNS)
    others = [f"{words}" for words in NOT_IN_RUNS] + [f"{IN_RUNS[0]} y=nchw", f"{IN_RUNS[0]} dy=nchw"]
    assert not any(pixels_in_runs(f"batch_norm_bwd spatial relu {words}") for words in others)
    assert not pixels_in_runs(f"batch_norm_fwd spatial shape{LEAST // (40 * 112) - 1}x40x14x8 nhwc")


@pytest.mark.parametrize("text", TEXTS)
def test_awkward_shapes(text: str) -> None:
    check_it(normalization(text))


@pytest.mark.parametrize("kind", PARTS)
def test_parts_may_be_absent(kind: str) -> None:
    check_it(normalization(f"{kind} shape3x5x4x4"))


@pytest.mark.parametrize(
    "kind",
    [
        "batch_norm_fwd spatial",
        "batch_norm_bwd spatial",
        "batch_norm_fwd spatial relu add no_running no_save",
        "batch_norm_bwd spatial swish from_x",
        "batch_norm_bwd spatial relu add",
    ],
)
@pytest.mark.parametrize("words", LARGE)
def test_large(words: str, kind: str) -> None:
    check_it(normalization(f"{kind} {words}"), scales=((1.0, 0.0),))


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[2], KINDS[4], KINDS[6]])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check_it(rearranged(normalization(f"{kind} shape3x18x5"), arrangement))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[6]])
def test_between_layouts(kind: str) -> None:
    output = "y" if "fwd" in kind else "dx"
    check_it(normalization(f"{kind} shape2x19x5x6 nchw {output}=nhwc"))
    check_it(normalization(f"{kind} shape2x19x5x6 nhwc {output}=nchw"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS[1::2])
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check_it(normalization(f"{kind} shape3x7x5"), cpu=cpu, scales=((1.0, 0.0),))


def test_every_algorithm_is_reached() -> None:
    assert unreached([normalization(text) for text in TEXTS]) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(normalizations(kinds=("batch",)))
def test_any_batch_norm(problem: Normalization) -> None:
    check_it(problem, scales=((1.5, 0.0), (1.0, 1.0)))


# numbers that hurt


@pytest.mark.parametrize("outlier", [None, 0.0, 1e4])
@pytest.mark.parametrize(
    "words", ["shape8x3x9x9", "shape8x3x9x9 nhwc", "shape2x2x300x301", "shape4x40x90x31 nhwc"]
)
def test_a_mean_far_from_zero_costs_no_digits(words: str, outlier: float | None) -> None:
    """The variance of numbers around 1000 is as exact as that of numbers around 0, whatever comes first."""
    problem = normalization(f"batch_norm_fwd spatial {words}")
    arrays = inputs_of(problem, mean=1000.0)
    if outlier is not None:
        arrays[0][0, :, 0, 0] = outlier
    found = everything(problem, arrays)
    expected = found.pop("reference")
    for name, results in found.items():
        for operand, actual, wanted in zip(problem.outputs, results, expected, strict=True):
            tolerance = (
                3e-4 if operand.name == "y" else 3e-6
            )  # y is as exact as mean is: 1000 has its last digit at 6e-5
            np.testing.assert_allclose(
                actual, wanted, rtol=3e-6, atol=tolerance, err_msg=f"{name} {operand.name}"
            )


@pytest.mark.parametrize("words", ["shape1x3", "shape1x3x1x1"])
def test_one_element_has_variance_zero(words: str) -> None:
    """Its unbiased variance counts as the biased one."""
    problem = normalization(f"batch_norm_fwd spatial {words} factor1.0")
    arrays = inputs_of(problem)
    x, bias = arrays[0], arrays[2]
    for name, (y, mean, rstd, running_mean, running_var) in everything(problem, arrays).items():
        np.testing.assert_allclose(np.ravel(y), bias, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(mean, np.ravel(x), rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(rstd, 1e-5**-0.5, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(running_mean, mean, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(running_var, 0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("words", ["shape4x3x5x5", "shape4x3x5x5 nhwc"])
def test_nan_spoils_its_own_channel_only(words: str) -> None:
    problem = normalization(f"batch_norm_fwd spatial {words}")
    arrays = inputs_of(problem)
    arrays[0][1, 2, 3, 4] = np.nan
    for name, results in everything(problem, arrays).items():
        for result in results:
            axis = tuple(a for a in range(result.ndim) if a != (1 if result.ndim > 1 else 0))
            assert np.isnan(result).any(axis=axis).tolist() == [False, False, True], name


# the definition against PyTorch's


def channels(array: Any) -> Any:
    """Per activation, as PyTorch would: every element of (C, space) a channel."""
    return array.reshape(array.shape[0], -1)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "clipped_relu"])
def test_definition_is_torchs(mode: str, activation: str) -> None:
    shape = (4, 3, 5, 2)
    forward = BatchNorm.make("fwd", shape, mode, activation, adds=True, factor=0.3, dtype="f64")
    x, z, weight, bias, running_mean, running_var = arrays = inputs_of(forward)
    tx, tz, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, z, weight, bias))
    tmean, tvar = torch.tensor(running_mean.ravel()), torch.tensor(running_var.ravel())
    flat = tx if mode == "spatial" else channels(tx)
    ty = torch.nn.functional.batch_norm(flat, tmean, tvar, tw.ravel(), tb.ravel(), True, 0.3, 1e-5)
    ty = ty.reshape(shape) + tz
    ty = TORCHS[activation](ty)
    y, mean, rstd, new_mean, new_var = forward.reference(*arrays)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new_mean.ravel(), tmean.numpy(), rtol=1e-12)
    np.testing.assert_allclose(new_var.ravel(), tvar.numpy(), rtol=1e-12)

    dy = np.random.default_rng(1).standard_normal(shape)
    expected = torch.autograd.grad(ty, (tx, tw, tb, tz), torch.tensor(dy))
    backward = BatchNorm.make("bwd", shape, mode, activation, adds=True, dtype="f64")
    saved = [] if activation == "identity" else [y]
    for ours, theirs in zip(backward.reference(dy, x, *saved, weight, mean, rstd), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-11)

    inference = BatchNorm.make("inference", shape, mode, activation, adds=True, dtype="f64")
    ty = torch.nn.functional.batch_norm(
        flat,
        torch.tensor(running_mean.ravel()),
        torch.tensor(running_var.ravel()),
        tw.ravel(),
        tb.ravel(),
        False,
    )
    ty = ty.reshape(shape) + tz
    ty = TORCHS[activation](ty)
    np.testing.assert_allclose(inference.reference(*arrays), ty.detach().numpy(), rtol=1e-10, atol=1e-12)


TORCHS = {
    "identity": lambda t: t, "relu": torch.relu, "tanh": torch.tanh, "clipped_relu": torch.nn.functional.relu6,
    "swish": torch.nn.functional.silu,
}  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "clipped_relu", "swish"])
def test_gradients_that_compute_y_anew_are_torchs(activation: str) -> None:
    shape = (4, 3, 5, 2)
    backward = BatchNorm.make("bwd", shape, activation=activation, saved="x", dtype="f64")
    forward = BatchNorm.make(
        "fwd", shape, activation=activation, dtype="f64", absent=("running_mean", "running_var")
    )
    x, weight, bias = inputs_of(forward)
    x, weight = 3 * x, 3 * weight  # also beyond 6
    tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, weight, bias))
    ty = TORCHS[activation](torch.nn.functional.batch_norm(tx, None, None, tw, tb, True))
    y, mean, rstd = forward.reference(x, weight, bias)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-10, atol=1e-12)
    dy = np.random.default_rng(1).standard_normal(shape)
    expected = torch.autograd.grad(ty, (tx, tw, tb), torch.tensor(dy))
    for made in (
        backward.reference(dy, x, weight, bias, mean, rstd),
        jd.batch_norm_backward(dy, x, weight, mean, rstd, bias=bias, activation=activation),
    ):
        for ours, theirs in zip(made, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-11)


# the public functions


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("is_last", [False, True])
def test_functions_are_torchs(is_last: bool, dtype: str) -> None:
    """A training step and inference of PyTorch's arrays, channels first and last, parameters in float32."""
    kind, wide = getattr(torch, dtype), torch.float64 if dtype == "float64" else torch.float32
    exact = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(6, 5, 7, 3, generator=generator).to(kind) for _ in range(2))
    if is_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    weight, bias, running_mean = (torch.randn(5, generator=generator).to(wide) for _ in range(3))
    running_var = torch.rand(5, generator=generator).to(wide) + 0.5
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    their_mean, their_var = running_mean.double(), running_var.double()
    theirs = torch.nn.functional.batch_norm(leaves[0], their_mean, their_var, *leaves[1:], True, 0.2, 1e-3)

    y, mean, rstd = jd.batch_norm(
        x, weight, bias, running_mean, running_var, factor=0.2, epsilon=1e-3, save=True
    )
    assert y.dtype == kind
    assert y.stride() == x.stride()
    torch.testing.assert_close(y.double(), theirs.detach(), rtol=exact, atol=exact)
    torch.testing.assert_close(running_mean.double(), their_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(running_var.double(), their_var, rtol=1e-5, atol=1e-6)
    expected = torch.autograd.grad(theirs, leaves, dy.double())
    gradients = jd.batch_norm_backward(dy, x, weight, mean, rstd)
    assert [g.dtype for g in gradients] == [kind, wide, wide]
    for ours, gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours.double(), gradient, rtol=20 * exact, atol=20 * exact)

    y = jd.batch_norm_inference(x, weight, bias, running_mean, running_var)
    theirs = torch.nn.functional.batch_norm(leaves[0], their_mean, their_var, *leaves[1:], False)
    torch.testing.assert_close(y.double(), theirs.detach(), rtol=exact, atol=exact)


def test_fused_with_addition_and_activation() -> None:
    rng = np.random.default_rng(0)
    x, z, dy = (rng.standard_normal((4, 3, 5, 5)).astype(np.float32) for _ in range(3))
    weight, bias = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    plain, mean, rstd = jd.batch_norm(x, weight, bias, save=True)
    y = jd.batch_norm(x, weight, bias, z=z, activation="relu")
    np.testing.assert_allclose(y, np.maximum(plain + z, 0), atol=1e-5)
    dx, dweight, dbias, dz = jd.batch_norm_backward(
        dy, x, weight, mean, rstd, y=y, activation="relu", wants_z=True
    )
    np.testing.assert_array_equal(dz, np.where(y > 0, dy, 0))
    for ours, theirs in zip(
        (dx, dweight, dbias), jd.batch_norm_backward(dz, x, weight, mean, rstd), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_layout_puts_the_channels_last() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 6, 3)).astype(np.float32)
    expected = jd.batch_norm(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    y, mean, _ = jd.batch_norm(x, layout="NHWC", save=True)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert y.flags.c_contiguous
    assert mean.shape == (3,)


def test_in_place_and_into_given_arrays() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 3, 6, 6)).astype(np.float32)
    expected = jd.batch_norm(x)
    mean = np.full(3, np.nan, np.float32)
    y, saved, rstd = jd.batch_norm(x, save=True, out=(x, mean, None))
    assert y is x
    assert saved is mean
    np.testing.assert_allclose(x, expected, atol=1e-6)
    assert np.isfinite(rstd).all()


def test_running_average_of_all_calls() -> None:
    """factor = 1 / (1 + i) keeps the mean over the calls, and one kernel serves all factors."""
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((4, 16, 3)).astype(np.float32)
    running_mean, running_var = np.zeros(3, np.float32), np.ones(3, np.float32)
    for i, batch in enumerate(batches):
        jd.batch_norm(batch, None, None, running_mean, running_var, factor=1 / (1 + i))
    np.testing.assert_allclose(running_mean, batches.mean(axis=(0, 1)), atol=1e-6)
    np.testing.assert_allclose(running_var, batches.var(axis=1, ddof=1).mean(axis=0), rtol=1e-5)


X, C = np.ones((2, 3, 4), np.float32), np.ones(3, np.float32)
REFUSED = [
    (lambda: jd.batch_norm(X, C[:2]), InvalidShape, "weight has shape (2,)"),
    (lambda: jd.batch_norm(C), InvalidShape, "at least N and C"),
    (lambda: jd.batch_norm(X[:0]), InvalidShape, "at least 1"),
    (lambda: jd.batch_norm(X, C.astype(np.float64)), InvalidType, "weight is f64"),
    (lambda: jd.batch_norm(X, C, C.astype(np.float16)), InvalidType, "bias is f16"),
    (lambda: jd.batch_norm(X, None, None, C), InvalidArgument, "give both or none"),
    (lambda: jd.batch_norm(X, epsilon=-1.0), InvalidArgument, "epsilon is -1.0"),
    (
        lambda: jd.batch_norm(X, None, None, C, C.copy(), factor=float("nan")),
        InvalidArgument,
        "factor is nan",
    ),
    (lambda: jd.batch_norm(X, mode="instance"), InvalidArgument, "'spatial', 'per_activation'"),
    (lambda: jd.batch_norm(X, activation="gelu"), InvalidArgument, "activation is 'gelu'"),
    (lambda: jd.batch_norm(X, z=X[:1]), InvalidShape, "z has shape (1, 3, 4)"),
    (lambda: jd.batch_norm_inference(X), InvalidArgument, "needs running_mean and running_var"),
    (lambda: jd.batch_norm_backward(X, X, C, C, C, activation="relu"), InvalidArgument, "y is needed"),
    (lambda: jd.batch_norm_backward(X, X, C, C, C, y=X), InvalidArgument, "y is of no use"),
    (lambda: jd.batch_norm_backward(X, X, C, C, C, bias=C), InvalidArgument, "bias is of no use"),
    (
        lambda: jd.batch_norm_backward(X, X, C, C, C, y=X, bias=C, activation="relu"),
        InvalidArgument,
        "one of them is needed",
    ),
    (
        lambda: jd.batch_norm_backward(X, X, None, C, C, bias=C, activation="swish"),
        InvalidArgument,
        "needs weight and bias",
    ),
    (
        lambda: jd.batch_norm_backward(X, X, C, C, C, bias=C, activation="swish", wants_z=True),
        InvalidArgument,
        "dz needs y",
    ),
    (
        lambda: jd.batch_norm_backward(X, X, C, C, C, y=X, activation="swish"),
        InvalidArgument,
        "does not follow from y",
    ),
    (lambda: jd.batch_norm_backward(X, X, C, C, C, out=X), InvalidArgument, "tuple of 3"),
    (lambda: jd.batch_norm_backward(X, X, C, C[:1], C), InvalidShape, "mean has shape (1,)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_backward_needs_the_statistics() -> None:
    problem = normalization("batch_norm_bwd spatial shape2x3")
    with pytest.raises(InvalidArgument, match="mean and rstd"):
        replace(problem, rstd=None)
    with pytest.raises(InvalidArgument, match="no gradients"):
        replace(normalization("batch_norm_fwd spatial shape2x3"), dx=problem.dx)


@pytest.mark.parametrize("shape", [(4, 5, 6, 7), (64, 3, 90, 91)], ids=["cached", "in passes"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_with_factor_1_old_statistics_are_not_read(shape: tuple[int, ...], layout: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 2
    channels = 1 if layout == "NCHW" else 3
    others = tuple(axis for axis in range(4) if axis != channels)
    mean, variance = (np.full(shape[channels], np.nan, np.float32) for _ in range(2))
    jd.batch_norm(x, None, None, mean, variance, factor=1, layout=layout)
    np.testing.assert_allclose(mean, x.mean(others, np.float64), rtol=1e-5)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(others, ddof=1), rtol=1e-5)
