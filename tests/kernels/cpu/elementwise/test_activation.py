"""Activations, forward and backward: every algorithm on the sizes that hurt and on numbers near the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import Phase, given, settings

import jitdnn as jd
from cases import takers
from conformance import (
    ARRANGEMENTS,
    INSTRUCTION_SETS,
    arranged,
    check,
    compare,
    make_case,
    results_of,
    run,
    unreached,
)
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem, parse
from jitdnn.problems.activation import FUNCTIONS, Activation
from strategies import activations

KINDS = [
    *(f"activation_fwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name} saved_y" for name, f in FUNCTIONS.items() if f.derivative_from_y),
]
# all functions go through the same loops: these have the few forms of expressions that there are
FEW = ["activation_fwd relu", "activation_fwd tanh", "activation_bwd sigmoid", "activation_bwd elu saved_y"]

SHAPES = [
    "shape1",
    "shape17",
    "shape65 f64",
    "shape3x5x7",
    "shape2x3x4x5 nhwc",
    "shape2x19x6x5 f64 nhwc",
    "shape1x1x63x1",
    "shape100003",  # several tasks
    "shape0x5",
    "shape2x2x3x1x2x2x2x3",
]
COEFS = [
    *("clipped_relu coef1.5", "leaky_relu coef0.3", "leaky_relu coef-0.5", "leaky_relu coef0"),
    *("elu coef0.25", "elu coef-2.0", "swish coef1.702", "swish coef0.01", "softplus coef3.5"),
]


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, kind: str) -> None:
    check(parse(f"{kind} {words}"))


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_every_function(number: int) -> None:
    """In f32, and by turns in one of the other types."""
    for dtype in ("f32", ("f64", "f16", "bf16")[number % 3]):
        check(parse(f"{KINDS[number]} shape3x67 {dtype}"), scales=((-0.75, 0.5),))


@pytest.mark.parametrize("words", COEFS)
def test_coefficients(words: str) -> None:
    for direction in ("fwd", "bwd"):
        check(parse(f"activation_{direction} {words} shape3x37"), scales=((1.0, 0.0),))
        check(parse(f"activation_{direction} {words} shape37 f64 nan_as_zero"), scales=((1.0, 0.0),))
    if "-" not in words and "swish" not in words:
        check(parse(f"activation_bwd {words} saved_y shape41"), scales=((1.0, 0.0),))


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check(arranged(parse(f"{kind} shape2x5x3x18"), arrangement))


@pytest.mark.parametrize("kind", FEW)
def test_between_layouts(kind: str) -> None:
    output = "y" if "fwd" in kind else "dx"
    check(parse(f"{kind} shape2x19x5x6 nchw {output}=nhwc"))
    check(parse(f"{kind} shape2x19x5x6 nhwc {output}=nchw"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_narrower_instruction_sets(number: int, cpu: str) -> None:
    dtype = ("f32", "f64")[number % 2]
    check(parse(f"{KINDS[number]} shape3x37 {dtype}"), cpu=cpu, threads=(1,), scales=((1.0, 0.0),))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_algorithm_is_reached(direction: str) -> None:
    kinds = [kind for kind in FEW if direction in kind]
    assert unreached([parse(f"{kind} {words}") for kind in kinds for words in SHAPES]) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(activations())
def test_any_activation(problem: Problem) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


# infinities, NaN, numbers whose exponentials overflow or vanish, and the kinks
LARGE = (14.0, 88.8, 104.5, 3e38, np.inf)
ENDS = np.array(
    [*(-v for v in LARGE), *LARGE, -3.0, -1e-30, -0.0, 0.0, 1e-45, 1e-30, 3.0, 6.0, 17.5, 41.0, np.nan]
)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_ends_of_the_range(function: str, dtype: str, cpu: str) -> None:
    x = ENDS.astype(np.float32 if dtype == "f32" else np.float64)
    smallest = float(np.finfo(x.dtype).tiny)
    for words in ("", "nan_as_zero") if cpu == INSTRUCTION_SETS[0] else ("",):
        problem = parse(f"activation_fwd {function} {words} shape{len(x)} {dtype}")
        expected = problem.reference(x)
        for name, ours in results_of(problem, x, cpu=cpu).items():
            rtol = 1e-4 if function == "gelu_tanh" else 1e-6
            np.testing.assert_allclose(ours, expected, rtol=rtol, atol=smallest, err_msg=name)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_slopes_at_the_ends_of_the_range(function: str, dtype: str) -> None:
    """Infinity times zero is the limit; NaN may be anything."""
    x = ENDS[:-1].astype(np.float32 if dtype == "f32" else np.float64)
    problem = parse(f"activation_bwd {function} shape{len(x)} {dtype}")
    dy = np.full_like(x, 0.5)
    expected = problem.reference(dy, x)
    assert np.isfinite(expected).all()
    for name, ours in results_of(problem, dy, x).items():
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-30, err_msg=name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_passes_or_counts_as_zero(function: str) -> None:
    x = np.array([np.nan, 0.0, 1.0, -1.0], np.float32)
    forward = getattr(jd, function.removesuffix("_tanh"))
    options = {"approximate": "tanh"} if function == "gelu_tanh" else {}
    kept = forward(x, **options)
    assert np.isnan(kept[0])
    assert not np.isnan(kept[1:]).any()
    dropped = forward(x, propagate_nan=False, **options)
    assert dropped[0] == dropped[1] == kept[1]
    np.testing.assert_array_equal(dropped[1:], kept[1:])
    backward = getattr(jd, f"{function.removesuffix('_tanh')}_backward")
    dx = backward(np.ones_like(x), x, propagate_nan=False, **options)
    assert dx[0] == dx[1]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_small_numbers_keep_their_digits(function: str) -> None:
    """The norm of a tensor hides errors of its small elements: here each is held to its own size."""
    problem = parse(f"activation_fwd {function} shape4000")
    x = (np.random.default_rng(0).choice([-1, 1], 4000) * np.logspace(-20, 1.9, 4000)).astype(np.float32)
    # the argument of its tanh is rounded, and grows as the cube of x
    rtol = 2e-5 if function == "gelu_tanh" else 2e-6
    for name, ours in results_of(problem, x).items():
        expected = problem.reference(x)
        is_large = np.abs(expected) > 1e-30
        np.testing.assert_allclose(ours[is_large], expected[is_large], rtol=rtol, err_msg=name)


TORCH: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "relu": (F.relu, {}),
    "sigmoid": (torch.sigmoid, {}),
    "tanh": (torch.tanh, {}),
    "clipped_relu": (lambda x: F.hardtanh(x, 0.0, 1.25), {"coef": 1.25}),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), {"coef": 0.2}),
    "elu": (lambda x: F.elu(x, 0.7), {"coef": 0.7}),
    "selu": (F.selu, {}),
    "swish": (F.silu, {}),
    "gelu": (F.gelu, {}),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "softplus": (lambda x: F.softplus(x, beta=2.0), {"coef": 2.0}),
    "mish": (F.mish, {}),
    "hard_sigmoid": (F.hardsigmoid, {}),
    "hard_swish": (F.hardswish, {}),
    "identity": (lambda x: x * 1.0, {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", TORCH)
def test_public_functions_are_torchs(name: str, dtype: torch.dtype) -> None:
    theirs, options = TORCH[name]
    function = name.split()[0]
    x = torch.linspace(-12, 12, 2001, dtype=torch.float64).to(dtype).requires_grad_(True)
    y = theirs(x)
    dy = torch.cos(3 * x.detach())
    (dx,) = torch.autograd.grad(y, x, dy)
    ours = getattr(jd, function)(x.detach(), **options)
    eps = float(torch.finfo(dtype).eps)
    # softplus is x to PyTorch where that is off by 1e-9 only; a sixth is rounded to single precision
    atol = 8 * eps + 4e-9 * (name in ("softplus", "hard_sigmoid"))
    np.testing.assert_allclose(ours.double(), y.detach().double(), rtol=4 * eps, atol=atol)
    gradient = getattr(jd, f"{function}_backward")(dy, x.detach(), **options)
    atol = 32 * eps + 3e-8 * (name in ("softplus", "hard_sigmoid"))
    np.testing.assert_allclose(gradient.double(), dx.double(), rtol=4 * eps, atol=atol)


def test_traced_functions_are_the_same() -> None:
    """What a fused function computes is what the function of that name does."""
    x = np.linspace(-5, 5, 101)
    for name, (_, options) in TORCH.items():
        function = getattr(jd, name.split()[0])
        expression = jd.trace(lambda v, f=function, o=options: f(v, **o))
        np.testing.assert_allclose(expression.evaluate(x), function(x, **options), rtol=1e-14, atol=1e-15)
    silent = jd.trace(lambda v: jd.relu(v, propagate_nan=False))
    np.testing.assert_array_equal(silent.evaluate(np.array([np.nan, -1.0, 2.0])), [0.0, 0.0, 2.0])


def test_fused_into_a_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 9, 9)), rng.standard_normal((4, 3, 3, 3))
    b = rng.standard_normal(4)
    for fused in (jd.gelu, jd.mish, lambda v: jd.leaky_relu(v, coef=0.2), lambda v: jd.gelu(v, "tanh")):
        y = jd.conv(x, w, b, epilogue=lambda acc, bias, f=fused: f(acc + bias))
        np.testing.assert_allclose(y, fused(jd.conv(x, w, b)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda x: jd.clipped_relu(x, coef=0.0), "positive finite number"),
        (lambda x: jd.swish(x, coef=-1.0), "positive finite number"),
        (lambda x: jd.elu(x, coef=np.nan), "a finite number"),
        (lambda x: jd.softplus(x, coef="much"), "must be a number"),
        (lambda x: jd.gelu(x, approximate="erf"), "'none', 'tanh'"),
        (lambda x: jd.leaky_relu_backward(x, y=x, coef=-0.1), "does not follow from y: save x"),
        (lambda x: jd.relu_backward(x), "needs x or y"),
        (lambda x: jd.elu_backward(x, x, y=x), "needs x or y"),
        (lambda x: parse("activation_bwd gelu saved_y shape3"), "does not follow from y"),
        (lambda x: Activation.make("fwd", "relu", (3,), coef=1.0), "relu has none"),
        (lambda x: jd.trace(lambda v: jd.swish(v, coef=0.0)), "positive finite number"),
    ],
)
def test_what_does_not_fit_is_said(call: Callable[..., Any], advice: str) -> None:
    with pytest.raises(jd.InvalidArgument, match=advice):
        call(np.ones(3, np.float32))


def test_coefficients_are_words_of_the_problem() -> None:
    for text in (
        "activation_fwd leaky_relu coef0.2 shape3x4 f32 nchw",
        "activation_bwd elu saved_y coef1e-05 nan_as_zero shape3x4 bf16 nchw",
        "activation_bwd leaky_relu coef-0.5 shape3 f64 nchw",
        "activation_fwd gelu_tanh nan_as_zero shape3 f32 nchw",
    ):
        assert str(parse(text)) == text
        assert parse(text) == parse(str(parse(text)))
    assert str(parse("activation_fwd elu coef1 shape3")) == "activation_fwd elu shape3 f32 nchw"


def test_help_of_the_public_functions() -> None:
    for name in ("leaky_relu", "gelu", "mish_backward", "elu_backward"):
        function = getattr(jd, name)
        assert function.__name__ == name
        assert "Return" in function.__doc__
        assert "Raises" in function.__doc__


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("function", "x"),
    [("swish", -1.2784645), ("gelu", -0.7517916), ("mish", -1.1924681), ("hard_swish", -1.4999)],
)
def test_gradients_where_their_terms_cancel(function: str, x: float, dtype: str) -> None:
    """Beside the place where the slope of x g(x) is 0, its error is that of g(x)."""
    problem = Activation.make("bwd", function, (1, 1, 5), dtype=dtype)
    case = make_case(problem, given=[np.full((1, 1, 5), 0.7), x + np.arange(5).reshape(1, 1, 5) / 64000])
    for algorithm in takers(algorithms(problem, "cpu"), problem, host(1)):
        (found,) = run(algorithm.build(problem, host(1)), case, algorithm.workspace(problem, host(1)))
        compare([found], case, 1.0, 0.0, algorithm.error_bound(problem))
