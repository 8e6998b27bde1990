"""Local response normalization: every algorithm on the sizes that hurt, PyTorch, extremes and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import LRN, parse
from strategies import lrns
from window_cases import DIRECTIONS, LRN_SHAPES, lrn, lrn_of_halves


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", LRN_SHAPES)
def test_awkward_shapes(words: str, direction: str) -> None:
    check(lrn(words, direction))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_half_precision(layout: str, direction: str, dtype: str) -> None:
    for problem in lrn_of_halves(layout, direction, dtype):
        check(problem)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["across", "within"])
def test_orders_in_memory(mode: str, direction: str, arrangement: str) -> None:
    check(arranged(lrn(f"{mode} shape2x5x7x18 size3 alpha0.5", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words", ["across shape2x9x5x5", "within shape1x9x5x5 size3", "across shape2x9x5x5 beta0.4"]
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_narrower_instruction_sets(layout: str, words: str, direction: str, cpu: str) -> None:
    check(lrn(f"{words} alpha0.5 {layout}", direction), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    assert unreached([lrn(words, direction) for words in LRN_SHAPES]) == set()


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(lrns())
def test_any_lrn(problem: LRN) -> None:
    assert parse(problem.text) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


def test_canonical_strings() -> None:
    plain = LRN.make("fwd", "across", (2, 3, 4, 5))
    assert plain.text == "lrn_fwd across shape2x3x4x5 size5 f32 nchw"
    assert parse("lrn_fwd shape2x3x4x5") == plain
    other = LRN.make("bwd", "within", (2, 3, 7), 4, 1e-5, 0.5, 1.0, "bf16", "nhwc")
    assert other.text == "lrn_bwd within shape2x3x7 size4 alpha1e-05 beta0.5 k1.0 bf16 nhwc"


@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_as_pytorch(size: int, layout: str | None) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(size)
    x, dy = random.standard_normal((2, 3, 11, 6, 9)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.local_response_norm(leaf, size, alpha=0.3, beta=0.75, k=1.25)
    expected.backward(torch.tensor(dy))
    order, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout else ((0, 1, 2, 3),) * 2
    ours = [np.ascontiguousarray(array.transpose(order)) for array in (x, dy)]
    y = jd.lrn(ours[0], size, 0.3, 0.75, 1.25, layout=layout)
    dx = jd.lrn_backward(ours[1], ours[0], size, 0.3, 0.75, 1.25, layout=layout)
    np.testing.assert_allclose(y.transpose(back), expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx.transpose(back), leaf.grad, rtol=1e-5, atol=1e-6)


def test_the_window_of_an_even_size() -> None:
    """(size - 1) // 2 before, the rest behind: cuDNN's and ONNX's rule, where PyTorch's is the other way round."""
    x = np.array([1.0, 2, 3, 4]).reshape(1, 4, 1)
    expected = x[0, :, 0] / np.array([1 + 4, 4 + 9, 9 + 16, 16])
    np.testing.assert_allclose(jd.lrn(x, 2, lrn_alpha=2.0, lrn_beta=1.0, k=0.0)[0, :, 0], expected)


@pytest.mark.parametrize("mode", ["across", "within"])
@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.9])
def test_gradient_by_differences(mode: str, beta: float) -> None:
    random = np.random.default_rng(1)
    x, dy, step = random.standard_normal((3, 2, 6, 4, 5))
    arguments = {"size": 4, "lrn_alpha": 0.8, "lrn_beta": beta, "k": 1.0, "mode": mode}
    h = 1e-5
    difference = (jd.lrn(x + h * step, **arguments) - jd.lrn(x - h * step, **arguments)) / (2 * h)
    dx = jd.lrn_backward(dy, x, **arguments)
    np.testing.assert_allclose((dx * step).sum(), (difference * dy).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    "words", ["across shape1x5x40", "across shape1x40x3 nhwc", "within shape1x3x40 nchw"]
)
def test_large_numbers_and_nan_stay_in_their_windows(words: str) -> None:
    """Nothing is carried along: sums are made anew for every window."""
    problem = lrn(f"{words} size3 alpha3.0 k1.0 beta0.75", "fwd")
    shape, axis = problem.output.shape, 1 if "across" in words else 2
    x = np.full(shape, 0.5, np.float32)
    place: list[int | slice] = [slice(None)] * 3
    place[axis] = 1
    x[tuple(place)] = 1e18
    clean = [slice(None)] * 3
    clean[axis] = slice(3, None)
    with np.errstate(over="ignore"):
        expected = problem.reference(x)
    for name, ours in results_of(problem, x).items():
        np.testing.assert_allclose(ours[tuple(clean)], expected[tuple(clean)], rtol=1e-5, err_msg=name)
    x[tuple(place)] = np.nan
    for name, ours in results_of(problem, x).items():
        assert np.isfinite(ours[tuple(clean)]).all(), name
        assert np.isnan(np.delete(ours, np.s_[3:], axis)).all(), name


def test_what_cannot_be() -> None:
    x = np.zeros((1, 3, 4, 4), np.float32)
    with pytest.raises(InvalidArgument, match="size is 0: it must be at least 1"):
        jd.lrn(x, 0)
    with pytest.raises(InvalidArgument, match=r"size is 2\.5: only integers"):
        jd.lrn(x, 2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="mode is 'around': it must be one of 'across', 'within'"):
        jd.lrn(x, mode="around")
    with pytest.raises(InvalidArgument, match="k is nan: it must be a finite number"):
        jd.lrn(x, k=float("nan"))
    with pytest.raises(InvalidShape, match="3 to 5 dims"):
        jd.lrn(x[0, 0])
    with pytest.raises(InvalidShape, match="they must be equal"):
        jd.lrn_backward(x[:, :2], x)
    with pytest.raises(InvalidType, match="x is i32"):
        jd.lrn(x.astype(np.int32))
