"""PReLU, forward and backward: every algorithm against the definition, and PyTorch's gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from examples import examples
from jitdnn.problems import PRelu, parse
from strategies import descriptors, shapes

KINDS = ("prelu_fwd", "prelu_bwd")
SHAPES = [
    "shape1",
    "shape17 single",
    "shape3x5",
    "shape2x3x4x5 nhwc",
    "shape2x19x6x5 f64 nhwc",
    "shape2x3x7x9 single bf16",
    "shape4x33x5 f16",
    "shape3x5x7 axis2",
    "shape2x3x40x41",
    "shape100003 single",  # several tasks
    "shape0x5",
    "shape2x2x3x1x2x2x2x3 axis6",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, kind: str) -> None:
    check(parse(f"{kind} {words}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    if arrangement == "repeated" and kind == "prelu_bwd":  # all gradients of the weights would be one
        pytest.skip("an output does not overlap itself")
    check(arranged(parse(f"{kind} shape2x5x3x18"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check(parse(f"{kind} shape3x37x5"), cpu=cpu)
    check(parse(f"{kind} shape3x37x5 f64 nhwc"), cpu=cpu)


@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_is_reached(kind: str) -> None:
    assert unreached([parse(f"{kind} {words}") for words in SHAPES]) == set()


@st.composite
def prelus(draw: st.DrawFn) -> PRelu:
    shape, dtype = draw(shapes()), draw(st.sampled_from(["f32", "f64"]))
    axis = draw(st.integers(0, len(shape) - 1))
    size = draw(st.sampled_from([(1,), (shape[axis],)]))
    direction = draw(st.sampled_from(["fwd", "bwd"]))
    names = ("x", "weight", "y") if direction == "fwd" else ("dy", "x", "weight", "dx", "dweight")
    tensors = {
        name: draw(
            descriptors(size if "weight" in name else shape, dtype, is_output=name in ("y", "dx", "dweight"))
        )
        for name in names
    }
    return PRelu.make(direction, tensors.pop("x"), axis=axis, **tensors)


@settings(
    max_examples=examples(20),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(prelus())
def test_any_prelu(problem: PRelu) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_torchs(size: int, layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, 5, 7, generator=generator).to(memory_format=layout)
    x[0, 0, 0, :3] = torch.tensor([0.0, -0.0, 1e-30])
    weight = torch.rand(size, generator=generator) - 0.3
    dy = torch.randn(3, 6, 5, 7, generator=generator)
    x.requires_grad_(True)
    weight.requires_grad_(True)
    y = torch.nn.functional.prelu(x, weight)
    y.backward(dy)
    ours = jd.prelu(x.detach(), weight.detach())
    assert ours.is_contiguous(memory_format=layout)
    torch.testing.assert_close(ours, y.detach())
    dx, dweight = jd.prelu_backward(dy, x.detach(), weight.detach())
    torch.testing.assert_close(dx, x.grad)
    torch.testing.assert_close(dweight, weight.grad, rtol=1e-5, atol=1e-5)


def test_in_place_and_accumulated() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 3, 4)), rng.standard_normal(4)
    expected = np.where(x > 0, x, weight * x)
    np.testing.assert_array_equal(jd.prelu(x, weight, axis=-1), expected)
    kept = x.copy()
    assert jd.prelu(kept, weight, axis=2, out=kept) is kept
    np.testing.assert_array_equal(kept, expected)
    dy, sums = rng.standard_normal(x.shape), np.ones(4)
    dx, dweight = jd.prelu_backward(dy, x, weight, axis=2)
    both = jd.prelu_backward(dy, x, weight, axis=2, out=(dx.copy(), sums), beta=1.0)
    np.testing.assert_allclose(both[0], 2 * dx, rtol=1e-14)
    np.testing.assert_allclose(sums, 1 + dweight, rtol=1e-14)


def test_fused_into_a_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 9, 9)), rng.standard_normal((4, 3, 3, 3))
    slope = rng.standard_normal(4)
    y = jd.conv(x, w, slope, epilogue=lambda acc, a: jd.prelu(acc, a))
    np.testing.assert_allclose(y, jd.prelu(jd.conv(x, w), slope), rtol=1e-12, atol=1e-14)


def test_what_does_not_fit_is_said() -> None:
    x = np.ones((2, 3, 4), np.float32)
    with pytest.raises(jd.InvalidShape, match=r"must be \(3,\)"):
        jd.prelu(x, np.ones(4, np.float32))
    with pytest.raises(jd.InvalidArgument, match="axis 3"):
        jd.prelu(x, np.ones(3, np.float32), axis=3)
    with pytest.raises(jd.InvalidType, match="one dtype"):
        jd.prelu(x, np.ones(3))
