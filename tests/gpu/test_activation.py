"""Activations on GPUs, forward and backward, of all functions and types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import cases
from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.formulas.activation import ElementwiseActivation
from jitdnn.kernels.gpu.elementwise.generator import ElementwiseLoops
from jitdnn.problems import parse
from jitdnn.problems.activation import FUNCTIONS, Activation
from jitdnn.rtcg.expression import trace
from strategies import activations

KINDS = [
    *(f"activation_fwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name} saved_y" for name, f in FUNCTIONS.items() if f.derivative_from_y),
]
FEW = ["activation_fwd relu", "activation_bwd sigmoid"]
SHAPES = [
    "shape1", "shape65 f64", "shape3x5x7 bf16", "shape2x19x6x5 f64 nhwc", "shape100003", "shape0x5",
    "shape2x2x3x1x2x2x2x3",
]  # fmt: skip


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(device: Any, words: str, kind: str) -> None:
    assert check(parse(f"{kind} {words}"), device) == {"elementwise"}


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_every_function(device: Any, number: int) -> None:
    """In f32 or one of the other types, by turns."""
    dtype = ("f32", "f64", "f16", "bf16")[number % 4]
    check(parse(f"{KINDS[number]} shape3x67 {dtype}"), device, scales=((-0.75, 0.5),))


@pytest.mark.parametrize(
    "words", ["elu coef0.25", "swish coef1.702", "softplus coef3.5", "clipped_relu coef1.5"]
)
def test_coefficients(device: Any, words: str) -> None:
    check(parse(f"activation_fwd {words} shape67"), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(device: Any, arrangement: str) -> None:
    check(arranged(parse("activation_bwd tanh shape2x5x3x18"), arrangement), device)


def test_aligned_memory(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors, which the odd places of the other tests do not meet."""
    monkeypatch.setattr(cases, "GUARD", 1024)
    for dtype in ("f32", "bf16", "f16", "f64"):
        check(parse(f"activation_bwd gelu shape5003 {dtype}"), device)


@settings(
    max_examples=examples(10), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(problem=activations())
def test_any_activation(device: Any, problem: Activation) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


def test_refusals(device: Any) -> None:
    algorithm, problem = ElementwiseActivation(ElementwiseLoops()), parse("activation_fwd relu shape3")
    assert "no epilogue" in str(algorithm.refuse(problem, device, Epilogue(trace(lambda a: a))))


def test_compiles_for_every_architecture(architecture: Any) -> None:
    for kind in KINDS[::8]:
        for dtype in ("bf16", "f64"):
            ElementwiseActivation(ElementwiseLoops()).build(
                parse(f"{kind} shape64x1000000 {dtype}"), architecture
            )
