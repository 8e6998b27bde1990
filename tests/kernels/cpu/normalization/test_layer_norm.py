"""Layer and RMS normalization: every algorithm against the definition, that and the functions against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import LayerNorm
from jitdnn.problems.normalization import Normalization
from normalization_cases import check_it, everything, inputs_of, normalization, rearranged
from strategies import normalizations

torch = pytest.importorskip("torch")

KINDS = ["layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd"]

SHAPES = [
    "shape1 axis0",
    "shape1x1",
    "shape5x1",
    "shape1x19 axis0",
    "shape33x17",
    "shape5x63",
    "shape3x100",
    "shape3x7x5 axis1",
    "shape2x3x4x5 axis2",
    "shape2x3x4x5 axis1 nhwc",
    "shape2x19x5x7 axis1 nhwc",
    "shape70x16",
    "shape9x33 f64",
    "shape9x33 f16",
    "shape9x33 bf16 narrow",
    "shape4x5x7 axis1 f16 narrow",
]

# every shape with some kinds, every kind with some shapes: each pair costs a compilation
TEXTS = [
    f"{kind} {words}"
    for i, words in enumerate(SHAPES)
    for j, kind in enumerate(KINDS)
    if (i + j) % 2 == 0 or i < 4
]

PARTS = [
    "layer_norm_fwd no_weight no_bias no_save",
    "layer_norm_fwd no_weight",
    "layer_norm_fwd no_bias epsilon0.5",
    "layer_norm_bwd no_weight no_bias",
    "layer_norm_bwd no_weight",
    "layer_norm_bwd no_bias",
    "rms_norm_fwd no_weight",
    "rms_norm_fwd no_save epsilon0.0",
    "rms_norm_bwd no_weight",
]

LARGE = ["shape2x70001", "shape300x768", "shape5000x24", "shape8x33x65x40 axis1 nhwc"]


@pytest.mark.parametrize("text", TEXTS)
def test_awkward_shapes(text: str) -> None:
    check_it(normalization(text))


@pytest.mark.parametrize("kind", PARTS)
def test_parts_may_be_absent(kind: str) -> None:
    check_it(normalization(f"{kind} shape5x37"))
    check_it(normalization(f"{kind} shape5x3x7 axis1"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", LARGE)
def test_large(words: str, kind: str) -> None:
    check_it(normalization(f"{kind} {words}"), scales=((1.0, 0.0),))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check_it(rearranged(normalization(f"{kind} shape3x5x18 axis1"), arrangement))


@pytest.mark.parametrize("kind", KINDS)
def test_between_layouts(kind: str) -> None:
    output = "y" if "fwd" in kind else "dx"
    check_it(normalization(f"{kind} shape2x19x5x6 axis1 nchw {output}=nhwc"))
    check_it(normalization(f"{kind} shape2x19x5x6 axis2 nhwc {output}=nchw"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check_it(normalization(f"{kind} shape4x37"), cpu=cpu, scales=((1.0, 0.0),))


def test_every_algorithm_is_reached() -> None:
    assert unreached([normalization(text) for text in TEXTS]) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(normalizations(kinds=("layer",)))
def test_any_layer_norm(problem: Normalization) -> None:
    check_it(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("outlier", [None, 0.0, 1e4])
@pytest.mark.parametrize("words", ["shape9x50", "shape3x768", "shape2x70001", "shape3x5x7x9 axis1 nhwc"])
def test_a_mean_far_from_zero_costs_no_digits(words: str, outlier: float | None) -> None:
    problem = normalization(f"layer_norm_fwd {words}")
    arrays = inputs_of(problem, mean=1000.0)
    if outlier is not None:
        arrays[0].reshape(len(arrays[0]), -1)[:, 0] = outlier
    found = everything(problem, arrays)
    expected = found.pop("reference")
    for name, results in found.items():
        for operand, actual, wanted in zip(problem.outputs, results, expected, strict=True):
            # a mean of 1000 in f32 has its last digit at 6e-5, and y is no more exact than that
            tolerance = 3e-4 if operand.name == "y" else 3e-6
            np.testing.assert_allclose(
                actual, wanted, rtol=3e-6, atol=tolerance, err_msg=f"{name} {operand.name}"
            )


@pytest.mark.parametrize("kind", ["layer_norm_fwd", "rms_norm_fwd"])
def test_nan_spoils_its_own_row_only(kind: str) -> None:
    problem = normalization(f"{kind} shape3x37")
    arrays = inputs_of(problem)
    arrays[0][1, 2] = np.nan
    for name, results in everything(problem, arrays).items():
        for result in results:
            assert np.isnan(result).any(axis=1).tolist() == [False, True, False], name


# the definition against PyTorch's


def torchs(form: str, x: Any, weight: Any, bias: Any, axis: int, epsilon: float) -> Any:
    shape = x.shape[axis:]
    if form == "rms":
        return torch.nn.functional.rms_norm(x, shape, weight, epsilon)
    return torch.nn.functional.layer_norm(x, shape, weight, bias, epsilon)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("form", ["layer", "rms"])
def test_definition_is_torchs(form: str, axis: int) -> None:
    shape = (4, 3, 7)
    forward = LayerNorm.make("fwd", shape, axis, form, epsilon=1e-3, dtype="f64")
    x, weight, *bias = inputs_of(forward)
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight, *bias)]
    theirs = torchs(form, leaves[0], leaves[1], leaves[-1], axis, 1e-3)
    y, *saved = forward.reference(x, weight, *bias)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    dy = np.random.default_rng(1).standard_normal(shape)
    expected = torch.autograd.grad(theirs, leaves, torch.tensor(dy))
    backward = LayerNorm.make("bwd", shape, axis, form, dtype="f64")
    for ours, gradient in zip(backward.reference(dy, x, weight, *saved), expected, strict=True):
        np.testing.assert_allclose(ours, gradient.numpy(), rtol=1e-9, atol=1e-11)


# the public functions


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("form", ["layer", "rms"])
def test_functions_are_torchs(form: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    exact = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(6, 5, 37, generator=generator).to(kind) for _ in range(2))
    parameters = [torch.randn(37, generator=generator).to(kind) for _ in range(2 if form == "layer" else 1)]
    leaves = [t.double().requires_grad_() for t in (x, *parameters)]
    theirs = torchs(form, leaves[0], leaves[1], leaves[-1], -1, 1e-3)
    function, gradient = getattr(jd, f"{form}_norm"), getattr(jd, f"{form}_norm_backward")
    y, *saved = function(x, *parameters, epsilon=1e-3, save=True)
    assert y.dtype == kind
    assert all(s.shape == (6, 5, 1) for s in saved)
    torch.testing.assert_close(y.double(), theirs.detach(), rtol=exact, atol=exact)
    gradients = gradient(dy, x, parameters[0], *saved)
    assert [g.dtype for g in gradients] == [kind] * len(leaves)
    for ours, wanted in zip(gradients, torch.autograd.grad(theirs, leaves, dy.double()), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=20 * exact, atol=20 * exact)


def test_one_result_unless_the_statistics_are_saved() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32)
    y, mean, rstd = jd.layer_norm(x, axis=1, save=True)
    np.testing.assert_array_equal(jd.layer_norm(x, axis=-2), y)
    np.testing.assert_allclose(mean.ravel(), x.mean(axis=(1, 2)), atol=1e-6)
    assert mean.shape == rstd.shape == (4, 1, 1)


def test_in_place() -> None:
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((40, 33)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(33).astype(np.float32)
    y, mean, rstd = jd.layer_norm(x, weight, save=True)
    expected = jd.layer_norm_backward(dy, x, weight, mean, rstd)
    # dweight and dbias need dy, which dx overwrites
    gradients = jd.layer_norm_backward(dy, x, weight, mean, rstd, out=(dy, None, None))
    assert gradients[0] is dy
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert jd.layer_norm(x, weight, out=x) is x
    np.testing.assert_array_equal(x, y)


def test_gradients_that_are_not_wanted_are_none() -> None:
    x = np.ones((2, 3), np.float32)
    _, mean, rstd = jd.layer_norm(x, save=True)
    dx, dweight, dbias = jd.layer_norm_backward(x, x, None, mean, rstd)
    assert dx.shape == x.shape
    assert dweight is None
    assert dbias is None
    assert jd.layer_norm_backward(x, x, None, mean, rstd, wants_bias=True)[2].tolist() == [2, 2, 2]


X, C = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)
REFUSED = [
    (lambda: jd.layer_norm(X, C[:2]), InvalidShape, "weight has shape (2,)"),
    (lambda: jd.layer_norm(X, axis=3), InvalidArgument, "axis 3"),
    (lambda: jd.layer_norm(X, axis=1.5), InvalidArgument, "axis is 1.5: only integers"),
    (lambda: jd.layer_norm(X[:, :, :0]), InvalidShape, "at least 1"),
    (lambda: jd.layer_norm(X, C, C.astype(np.float16)), InvalidType, "bias is f16"),
    (lambda: jd.rms_norm(X, epsilon=float("inf")), InvalidArgument, "epsilon is inf"),
    (lambda: jd.rms_norm_backward(X, X, C, C), InvalidShape, "rstd has shape (4,)"),
    (lambda: jd.rms_norm_backward(X, X[:1], C, C), InvalidShape, "has shape (2, 3, 4)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
