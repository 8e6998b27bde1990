"""Divisive normalization: every algorithm, its kinship with LRN, local contrast normalization, gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import DivisiveNorm, parse
from jitdnn.tensor import TensorDescriptor
from strategies import divisive_norms
from window_cases import DIRECTIONS, DIVISIVE_SHAPES, divisive_norm


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", DIVISIVE_SHAPES)
def test_awkward_shapes(words: str, direction: str) -> None:
    check(divisive_norm(words, direction))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_half_precision(layout: str, direction: str, dtype: str) -> None:
    check(divisive_norm(f"means shape2x18x7x9 size3 alpha0.5 {dtype} {layout}", direction))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str) -> None:
    problem = divisive_norm("means shape2x5x7x18 size3 alpha0.5", direction)
    if arrangement in ("repeated", "overlapping") and direction == "bwd":
        shape, packed = problem.output.shape, arranged(problem, "gaps")
        strides = ARRANGEMENTS[arrangement](shape)
        shared = TensorDescriptor(shape, strides, "f32")
        assert isinstance(packed, DivisiveNorm)
        problem = DivisiveNorm.make(
            "bwd", shared, shared, 3, 0.5, dx=packed.dx, dy=shared, dmeans=packed.dmeans
        )
        check(problem)
        return
    check(arranged(problem, arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_narrower_instruction_sets(layout: str, direction: str, cpu: str) -> None:
    check(divisive_norm(f"means shape1x9x5x5 size3 alpha0.5 {layout}", direction), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    assert unreached([divisive_norm(words, direction) for words in DIVISIVE_SHAPES]) == set()


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(divisive_norms())
def test_any_divisive_norm(problem: DivisiveNorm) -> None:
    assert parse(problem.text) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


def test_canonical_strings() -> None:
    plain = DivisiveNorm.make("fwd", (2, 3, 4, 5))
    assert plain.text == "divisive_norm_fwd shape2x3x4x5 size5 f32 nchw"
    other = DivisiveNorm.make("bwd", (2, 3, 7), True, 4, 1e-5, 0.5, 1.0, "f64", "nhwc")
    assert other.text == "divisive_norm_bwd means shape2x3x7 size4 alpha1e-05 beta0.5 k1.0 f64 nhwc"


def test_without_means_it_is_lrn_within() -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 2, 3, 8, 9))
    np.testing.assert_array_equal(
        jd.divisive_norm(x, size=3, norm_alpha=0.7), jd.lrn(x, 3, 0.7, mode="within")
    )
    np.testing.assert_array_equal(
        jd.divisive_norm_backward(dy, x, size=3, norm_alpha=0.7),
        jd.lrn_backward(dy, x, 3, 0.7, mode="within"),
    )
    zeros = np.zeros_like(x)
    np.testing.assert_allclose(
        jd.divisive_norm(x, zeros, size=3, norm_alpha=0.7), jd.lrn(x, 3, 0.7, mode="within"), rtol=1e-14
    )


def test_standard_deviations_of_the_neighbourhood() -> None:
    """beta 1/2, k 0, alpha 1: x over the root of the mean square deviation."""
    x = np.random.default_rng(1).standard_normal((1, 2, 7, 8))
    means = jd.avg_pool(x, 3, stride=1, padding=1)
    deviations = np.pad(x - means, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(deviations, (3, 3), axis=(2, 3))
    expected = x / np.sqrt((windows**2).mean(axis=(4, 5)))
    ours = jd.divisive_norm(x, means, size=3, norm_alpha=1.0, norm_beta=0.5, k=0.0)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_by_differences(size: int) -> None:
    x, means, dy, step, mean_step = np.random.default_rng(2).standard_normal((5, 2, 3, 5, 6))
    arguments = {"size": size, "norm_alpha": 0.8, "norm_beta": 0.75, "k": 1.0}
    dx, dmeans = jd.divisive_norm_backward(dy, x, means, **arguments)
    h = 1e-5
    above, below = (
        jd.divisive_norm(x + s * h * step, means + s * h * mean_step, **arguments) for s in (1, -1)
    )
    slope = ((above - below) / (2 * h) * dy).sum()
    np.testing.assert_allclose((dx * step).sum() + (dmeans * mean_step).sum(), slope, rtol=1e-6)


def test_results_are_blended_both() -> None:
    x, means, dy, old, old_means = (
        np.random.default_rng(3).standard_normal((5, 1, 2, 4, 4)).astype(np.float32)
    )
    dx, dmeans = jd.divisive_norm_backward(dy, x, means, 3)
    out = (old.copy(), old_means.copy())
    result = jd.divisive_norm_backward(dy, x, means, 3, alpha=2.0, beta=0.5, out=out)
    assert result[0] is out[0]
    np.testing.assert_allclose(out[0], 2 * dx + 0.5 * old, rtol=1e-5)
    np.testing.assert_allclose(out[1], 2 * dmeans + 0.5 * old_means, rtol=1e-5)


def test_what_cannot_be() -> None:
    x = np.zeros((1, 3, 4, 4), np.float32)
    with pytest.raises(InvalidShape, match="means"):
        jd.divisive_norm(x, x[:, :1])
    with pytest.raises(InvalidArgument, match="size is 0"):
        jd.divisive_norm(x, size=0)
    packed = TensorDescriptor.packed(x.shape, "f32")
    with pytest.raises(InvalidArgument, match="dmeans is given"):
        DivisiveNorm.make("fwd", packed, dmeans=packed)
