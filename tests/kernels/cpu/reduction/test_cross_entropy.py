"""Cross-entropy and its gradient: classes and probabilities, weights, smoothing, every type and order in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from cases import AnyArray
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from cross_entropy_cases import cross_entropy, inputs_for
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Problem
from strategies import cross_entropies

torch = pytest.importorskip("torch")
DIRECTIONS = ("fwd", "bwd")

SHAPES = [
    "shape1x1 classes64",
    "shape7x10 classes64",
    "shape5x33 classes32",
    "shape3x1000 classes8",
    "shape2x70001 classes64",
    "shape3x5x7 classes64",
    "shape2x19x5x7 classes64",
    "shape2x19x5x7 classes64 nhwc",
    "shape2x3x4x3x5 classes64 nhwc",
    "shape0x4 classes64",
    "shape2x4x0 classes64",
]
# lanes along rows, along classes, and along rows that are transposed first; whole vectors and rests of them
LOOKED_UP = [
    "shape3x5x70 classes64 weighted",
    "shape70x3 classes64 weighted",
    "shape2x18x77 classes64 weighted nhwc",
    "shape3x200x7 classes64 weighted nhwc",
    "shape2000x40 classes32",
]
KINDS = [
    "classes64 ignore3",
    "classes64 weighted",
    "classes64 smoothing0.3",
    "classes32 weighted smoothing0.25 ignore0",
    "",
    "weighted smoothing0.5",
]


def check_loss(problem: Problem, **options: Any) -> set[str]:
    return check(problem, inputs=inputs_for(problem), **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, direction: str) -> None:
    for reduction in ("none",) if "0" in words.split()[0].split("x") else ("none", "mean"):
        check_loss(cross_entropy(f"{reduction} {words}", direction))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("words", LOOKED_UP)
def test_looked_up(words: str, dtype: str) -> None:
    for reduction in ("mean", "none"):
        assert "rows" in check_loss(cross_entropy(f"{reduction} {words} {dtype}", "fwd"))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("words", KINDS)
def test_kinds(words: str, reduction: str, direction: str) -> None:
    check_loss(cross_entropy(f"{reduction} shape4x7x3 {words}", direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("words", ["classes64 smoothing0.1", "weighted nhwc"])
def test_types(words: str, dtype: str, direction: str) -> None:
    check_loss(cross_entropy(f"shape3x18x5 {words} {dtype}", direction))


@pytest.mark.parametrize(
    "arrangement", [name for name in ARRANGEMENTS if name not in ("repeated", "overlapping")]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str) -> None:
    check_loss(arranged(cross_entropy("none shape3x18x5 classes64 weighted", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrower_instruction_sets(direction: str, cpu: str) -> None:
    check_loss(cross_entropy("shape3x18x5 classes64 weighted smoothing0.1", direction), cpu=cpu)
    for words in ("shape3x18x37 classes64", "shape37x18 classes64", "shape2x300 classes64"):
        if direction == "fwd":
            check_loss(cross_entropy(words, direction), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    problems = [cross_entropy(words, direction) for words in SHAPES for direction in DIRECTIONS]
    assert unreached(problems) == set()


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(cross_entropies())
def test_any_cross_entropy(problem: Problem) -> None:
    check_loss(problem, threads=(2,))


@pytest.mark.parametrize("kind", ["classes", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_torch_agrees(is_weighted: bool, smoothing: float, reduction: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((7, 10), (3, 5, 4, 6)):
        x = torch.randn(shape, generator=generator, requires_grad=True)
        if kind == "classes":
            target = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
            target.view(-1)[3] = -100
        else:
            target = torch.randn(shape, generator=generator).softmax(1)
        weight = torch.rand(shape[1], generator=generator) if is_weighted else None
        options: dict[str, Any] = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
        expected = torch.nn.functional.cross_entropy(x, target, **options)
        slope = torch.rand(expected.shape, generator=generator)
        (gradient,) = torch.autograd.grad(expected, x, slope)
        loss, *saved = jd.cross_entropy(x, target, return_saved=True, **options)
        torch.testing.assert_close(loss.reshape(expected.shape), expected.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(jd.cross_entropy(x, target, **options), loss, rtol=0, atol=0)
        dx = jd.cross_entropy_backward(slope.reshape(loss.shape), x, target, *saved, **options)
        torch.testing.assert_close(dx, gradient, rtol=1e-5, atol=1e-6)


def test_ignored_rows() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    target = np.array([255, 2, 255], np.int32)
    loss, lse, total = jd.cross_entropy(x, target, ignore_index=255, return_saved=True)
    assert total.tolist() == [1.0]
    np.testing.assert_allclose(loss, lse[1] - x[1, 2], rtol=1e-6)
    dx = jd.cross_entropy_backward(np.ones(1, np.float32), x, target, lse, total, ignore_index=255)
    np.testing.assert_array_equal(dx[[0, 2]], 0)
    np.testing.assert_allclose(dx[1].sum(), 0, atol=1e-6)
    target[:] = 255
    assert np.isnan(jd.cross_entropy(x, target, ignore_index=255)).all()  # the mean of nothing
    np.testing.assert_array_equal(jd.cross_entropy(x, target, ignore_index=255, reduction="none"), 0)


@pytest.mark.parametrize("label", [4, -1, 2**40, -(2**63)])
def test_wrong_classes(label: int) -> None:
    """The public function refuses them; a kernel that meets one reads nothing and says NaN, in that row only."""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    target = np.array([1, label, 3], np.int64)
    with pytest.raises(InvalidArgument, match=f"class {label} "):
        jd.cross_entropy(x, target)
    with pytest.raises(InvalidArgument, match=f"class {label} "):
        jd.cross_entropy_backward(np.ones(3, np.float32), x, target, x[:, 0], reduction="none")
    for direction in DIRECTIONS:
        problem = cross_entropy("none shape3x4 classes64", direction)
        inputs: list[AnyArray] = [x, target]
        if direction == "bwd":
            inputs = [np.ones(3, np.float32), *inputs, x[:, 0]]
        expected = problem.reference(*inputs)
        expected = expected[0] if direction == "fwd" else expected
        assert (np.isnan(expected.reshape(3, -1)).all(axis=1) == [False, True, False]).all()
        check(problem, inputs=inputs, scales=((1.0, 0.0),))


def test_extremes() -> None:
    x = np.array([[1e4, -1e4, 0], [3e38, -3e38, 0], [-np.inf, 0, 0], [0, np.nan, 0]], np.float32)
    target = np.array([0, 0, 1, 0])
    loss = jd.cross_entropy(x, target, reduction="none")
    np.testing.assert_allclose(loss, [0, 0, np.log(2), np.nan], rtol=1e-6)


def test_out_and_scales() -> None:
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((5, 6)).astype(np.float32), rng.integers(0, 6, 5)
    loss, lse = jd.cross_entropy(x, target, reduction="none", return_saved=True)
    out = np.full(5, 2.0, np.float32)
    result = jd.cross_entropy(
        x, target, reduction="none", alpha=3.0, beta=0.5, out=(out, None), return_saved=True
    )
    assert result[0] is out
    np.testing.assert_allclose(out, 3 * loss + 1, rtol=1e-6)
    np.testing.assert_array_equal(result[1], lse)
    dx = jd.cross_entropy_backward(np.ones(5, np.float32), x, target, lse, reduction="none")
    in_place = x.copy()
    jd.cross_entropy_backward(np.ones(5, np.float32), in_place, target, lse, reduction="none", out=in_place)
    np.testing.assert_array_equal(in_place, dx)


def test_errors() -> None:
    x, target = np.zeros((3, 4), np.float32), np.zeros(3, np.int64)
    with pytest.raises(InvalidShape, match="target has shape"):
        jd.cross_entropy(x, target[:2])
    with pytest.raises(InvalidShape, match=r"\(N, C\)"):
        jd.cross_entropy(x[0], target)
    with pytest.raises(InvalidType, match="target is i16"):
        jd.cross_entropy(x, target.astype(np.int16))
    with pytest.raises(InvalidArgument, match="label_smoothing is 2"):
        jd.cross_entropy(x, target, label_smoothing=2.0)
    with pytest.raises(InvalidArgument, match="reduction"):
        jd.cross_entropy(x, target, reduction="max")
    with pytest.raises(InvalidArgument, match="total is missing"):
        jd.cross_entropy_backward(np.ones(1, np.float32), x, target, x[:, 0])
    with pytest.raises(InvalidArgument, match="total is given"):
        jd.cross_entropy_backward(np.ones(3, np.float32), x, target, x[:, 0], x[0, :1], reduction="none")
