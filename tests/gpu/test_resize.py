"""Resizing on GPUs, forward and backward, in any order in memory; coordinates of awkward scales."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import cases
from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.gpu.sampling.resize_coordinates import Coordinates, coordinates_of
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Resize, parse
from jitdnn.problems.resize import COORDINATES, DIRECTIONS, MODES, ROUNDINGS
from window_cases import RESIZE_SHAPES, resizes


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", RESIZE_SHAPES)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    assert check(parse(f"resize_{direction} linear {words}"), device)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, direction: str, coordinates: str, device: Any) -> None:
    for words in RESIZE_SHAPES[::3]:
        check(parse(f"resize_{direction} {mode} {coordinates} {words}"), device, scales=((1.5, 1.0),))


@pytest.mark.parametrize("guard", [1031, 1024])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_dtypes(dtype: str, direction: str, guard: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", guard)  # 1024: channels are read as vectors
    check(parse(f"resize_{direction} linear shape2x3x5x7 out10x14 {dtype}"), device)
    check(parse(f"resize_{direction} cubic shape2x19x5x7 out6x9 {dtype} nhwc"), device)
    check(parse(f"resize_{direction} linear shape2x24x5x7 out6x9 {dtype} nhwc"), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, direction: str, device: Any) -> None:
    check(arranged(parse(f"resize_{direction} linear shape2x3x4x18 out8x27"), arrangement), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_offsets(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    monkeypatch.setattr("jitdnn.kernels.gpu.sampling.resize.offset_type", lambda tensors: "i64")
    check(parse(f"resize_{direction} linear shape2x3x5x7 out10x9"), device)


@settings(
    max_examples=examples(25),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=resizes())
def test_any_resize(problem: Resize, device: Any) -> None:
    assert check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@given(
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 300),
    scale=st.one_of(st.none(), st.floats(0.01, 100), st.sampled_from((0.6, 0.6000000000000001, 1 / 3, 2.0))),
    coordinates=st.sampled_from(COORDINATES),
    rounding=st.sampled_from(ROUNDINGS),
)
@settings(max_examples=300, deadline=None)
def test_places_of_nearest_elements(
    inputs: int, outputs: int, scale: float | None, coordinates: str, rounding: str
) -> None:
    """Whatever the digits of a scale: the elements are those of exact fractions."""
    scales = None if scale is None else (scale,)
    problem = Resize.make("fwd", "nearest", (1, 1, inputs), (outputs,), coordinates, rounding, scales)
    places = coordinates_of(problem, 0)
    assert places is not None
    elements = [min(max(places.element(o), 0), inputs - 1) for o in range(outputs)]
    assert elements == list(problem.taps[0].start)


def test_places_between_elements() -> None:
    problem = Resize.make("fwd", "linear", (1, 1, 50), (30,), scales=(0.6000000000000001,), dtype="f64")
    places = coordinates_of(problem, 0)
    assert places is not None
    step = 1 / Fraction(0.6000000000000001)
    for output in range(30):
        exact = (output + Fraction(1, 2)) * step - Fraction(1, 2)
        assert abs(Fraction(places.a * output + places.b, places.q) - exact) < Fraction(1, 2**50)
    assert coordinates_of(Resize.make("fwd", "cubic", (1, 1, 5), (5,)), 0) == Coordinates(1, 0, 1, 1)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    for words in ("linear shape2x16x8x8 out16x16 bf16 nhwc", "cubic shape2x16x8x8 out16x16"):
        problem = parse(f"resize_{direction} {words}")
        for algorithm in algorithms(problem, "cuda"):
            algorithm.build(problem, architecture)
