"""Unpooling on GPUs: indices that repeat or name nothing, any order in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Unpooling, parse
from strategies import unpoolings

DIRECTIONS = ("fwd", "bwd")
SHAPES = [
    "shape1x1x1 to1",
    "shape2x3x4x5 to9x11",
    "shape2x19x4x5 to9x11 nhwc indices32",
    "shape2x3x4x40 to8x80 indices32",
    "shape1x2x2x3x4 to5x6x7",
    "shape1x17x2x3x4 to5x6x7 nhwc",
    "shape2x3x9 to2",  # more values than places
    "shape0x2x7 to20",
]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, direction: str, dtype: str, device: Any) -> None:
    assert check(parse(f"unpool_{direction} {words} {dtype}"), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str, device: Any) -> None:
    check(arranged(parse(f"unpool_{direction} shape2x5x4x5 to9x7"), arrangement), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_offsets(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    monkeypatch.setattr("jitdnn.kernels.gpu.pooling.unpooling.offset_type", lambda tensors: "i64")
    check(parse(f"unpool_{direction} shape2x3x4x5 to9x11"), device)


@settings(
    max_examples=examples(25),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=unpoolings())
def test_any_unpooling(problem: Unpooling, device: Any) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_last_of_several_values_stays_and_indices_outside_are_left_out(layout: str, device: Any) -> None:
    x = np.broadcast_to(np.array([1.0, 2, 3, 4, 5], np.float32), (1, 19, 5))
    indices = np.broadcast_to(np.array([2, -1, 2, 4, 2**40]), (1, 19, 5))
    check(parse(f"unpool_fwd shape1x19x5 to4 {layout}"), device, inputs=[x, indices])
    dy = np.broadcast_to(np.array([10.0, 20, 30, 40], np.float32), (1, 19, 4))
    check(parse(f"unpool_bwd shape1x19x5 to4 {layout}"), device, inputs=[dy, indices])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    problem = parse(f"unpool_{direction} shape2x16x8x8 to16x16 bf16")
    for algorithm in algorithms(problem, "cuda"):
        algorithm.build(problem, architecture)
