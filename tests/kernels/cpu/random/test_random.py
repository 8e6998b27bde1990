"""Random fills: every algorithm against the definition, and the numbers against their distributions."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument
from jitdnn.problems import Random, parse
from jitdnn.tensor import COMMON_DTYPES
from strategies import descriptors, shapes

KINDS = ["bernoulli p0.3", "uniform low-1.5 high2.25", "normal mean0.5 std2.0"]
SHAPES = ["shape1", "shape17", "shape8x5x7", "shape5x9x7", "shape3x16x4x5 nhwc", "shape100003", "shape0x5"]


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_shapes(kind: str, dtype: str) -> None:
    for words in SHAPES:
        check(parse(f"random {kind} {words} {dtype}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned"])
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check(arranged(parse(f"random {kind} shape2x5x3x18"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    for dtype in COMMON_DTYPES:
        check(parse(f"random {kind} shape3x37 {dtype}"), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    assert unreached([parse(f"random {kind} shape4") for kind in KINDS]) == set()


@st.composite
def randoms(draw: st.DrawFn) -> Random:
    distribution = draw(st.sampled_from(("bernoulli", "uniform", "normal")))
    a, b = draw(st.floats(0, 1)), draw(st.floats(1, 100))
    y = draw(descriptors(draw(shapes()), draw(st.sampled_from(COMMON_DTYPES)), is_output=True))
    return Random(distribution, a, 0.0 if distribution == "bernoulli" else b, y)


@settings(max_examples=examples(20), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(randoms())
def test_any_fill(problem: Random) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_distributions(dtype: str) -> None:
    """The share of numbers below each of some bounds, within five standard deviations and a step of the dtype."""
    size = 1 << 17
    step = {"f16": 1e-3, "bf16": 1e-2}.get(dtype, 0)
    bounds = np.linspace(-2.4, 2.4, 13)
    normal = np.asarray(jd.normal(size, 0.0, 1.0, jd.DropoutState(1), dtype), np.float64)
    uniform = np.asarray(jd.uniform(size, -3.0, 3.0, jd.DropoutState(1), dtype), np.float64)
    for numbers, share in (
        (normal, [0.5 * math.erfc(-b / math.sqrt(2)) for b in bounds]),
        (uniform, [(b + 3) / 6 for b in bounds]),
    ):
        for bound, expected in zip(bounds, share, strict=True):
            deviation = math.sqrt(expected * (1 - expected) / size)
            assert abs((numbers < bound).mean() - expected) < 5 * deviation + step
    assert uniform.min() >= -3
    assert uniform.max() <= 3
    ones = np.asarray(jd.bernoulli(size, 0.2, jd.DropoutState(2), dtype), np.float64)
    assert set(np.unique(ones)) == {0.0, 1.0}
    assert abs(ones.mean() - 0.2) < 5 * math.sqrt(0.16 / size)


def test_pairs_of_normal_numbers_are_independent() -> None:
    size = 1 << 16
    for dtype in ("f32", "f64"):
        numbers = np.asarray(jd.normal(size, 0.0, 1.0, jd.DropoutState(4), dtype), np.float64)
        for distance in (1, size // 4, size // 2):
            assert abs((numbers * np.roll(numbers, distance)).mean()) < 6 / math.sqrt(size)


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_fractions_never_reach_one(dtype: str) -> None:
    for name, y in results_of(Random.make("uniform", (40000,), 0, 1, dtype), np.arange(4)).items():
        assert (y >= 0).all(), name
        assert (y < 1).all(), name


def test_same_numbers_everywhere() -> None:
    """Uniform numbers agree bit by bit over orders in memory, threads and instruction sets."""
    shape, state = (6, 24, 10, 11), np.array([7, 0, 9, 0], np.uint32)
    expected = Random.make("uniform", shape, 0, 1).reference(state)
    for layout in ("nchw", "nhwc"):
        for cpu in INSTRUCTION_SETS:
            for name, y in results_of(
                Random.make("uniform", shape, 0, 1, "f32", layout), state, cpu=cpu
            ).items():
                np.testing.assert_array_equal(y, expected, err_msg=f"{name} {layout} {cpu}")
    for threads in (1, 2):
        with jd.settings(threads=threads):
            y = jd.uniform(shape, 0, 1, jd.DropoutState(7, 9), layout="nhwc")
        assert y.strides != np.empty(shape, np.float32).strides
        np.testing.assert_array_equal(y, expected)


def test_fill_of_an_array() -> None:
    state = jd.DropoutState(5)
    out = torch.empty(4, 6, dtype=torch.bfloat16)
    assert jd.uniform(None, 0, 1, state, out=out) is out
    again = jd.uniform((4, 6), 0, 1, jd.DropoutState(5), "bf16")
    np.testing.assert_array_equal(out.float().numpy(), again.astype(np.float32))
    assert state.offset == 1


def test_errors() -> None:
    state = jd.DropoutState(0)
    with pytest.raises(InvalidArgument, match="high must be at least low"):
        jd.uniform(3, 1, 0, state)
    with pytest.raises(InvalidArgument, match="std -1"):
        jd.normal(3, 0, -1, state)
    with pytest.raises(InvalidArgument, match="p is 2"):
        jd.bernoulli(3, 2, state)
    with pytest.raises(InvalidArgument, match="finite"):
        jd.normal(3, math.inf, 1, state)
    with pytest.raises(InvalidArgument, match="shape or out"):
        jd.uniform(None, 0, 1, state)
    with pytest.raises(InvalidArgument, match="DropoutState"):
        jd.uniform(3, 0, 1, 5)
    assert state.offset == 0
