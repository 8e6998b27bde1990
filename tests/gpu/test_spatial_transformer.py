"""Affine grids and sampled images on GPUs, both ways: every mode, type and order, crowded cells, no places."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import cases
from cases import ARRANGEMENTS, arranged, make_case
from examples import examples
from harness import check, run
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.sampling.affine_grid import PlainAffineGrid
from jitdnn.kernels.gpu.sampling.grid_sample import PlainGridSample
from jitdnn.problems import parse
from jitdnn.problems.spatial_transformer import GRID_DIRECTIONS, MODES, PADDINGS, SAMPLE_DIRECTIONS
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import COMMON_DTYPES
from spatial_cases import affine_grids, grid_samples

GRIDS = [
    "shape2x5x7",
    "shape3x1x40 align_corners",
    "shape2x3x4x5",
    "shape1x4x1x37 align_corners",
    "shape0x4x5",
]
SAMPLES = [
    "shape2x3x5x7 out4x6",
    "shape1x8x6x33 out9x40 nhwc",
    "shape2x19x4x5x3 out2x3x5",
    "shape1x72x4x5x3 out2x3x5 nhwc",
    "shape1x1x1x1 out3x3",
    "shape2x33x6x5 out7x3 nhwc",
    "shape0x2x6x5 out7x3",
    "shape2x5x30x31 out40x41",
]
WAYS = [
    f"{mode} {padding}{align}" for mode in MODES for padding in PADDINGS for align in ("", " align_corners")
]

#: the gradient of the image finds places by the lines of the others
EACH = [
    (way, direction)
    for number, way in enumerate(WAYS)
    for direction in SAMPLE_DIRECTIONS
    if direction != "bwd_data" or number % 3 == 0
]


@pytest.mark.parametrize("direction", GRID_DIRECTIONS)
@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_affine_grids(dtype: str, direction: str, device: Any) -> None:
    for words in GRIDS:
        assert check(parse(f"affine_grid_{direction} {words} {dtype}"), device) == {"places"}


def test_parts_of_an_affine_grid(device: Any) -> None:
    check(parse("affine_grid_bwd shape2x90x140"), device)


@pytest.mark.parametrize(("way", "direction"), EACH)
def test_ways_of_sampling(way: str, direction: str, device: Any) -> None:
    assert check(parse(f"grid_sample_{direction} {way} shape2x3x5x7 out4x6"), device) == {"places"}
    if WAYS.index(way) % 4 == 1:
        check(parse(f"grid_sample_{direction} {way} shape1x19x3x4x5 out2x3x2 nhwc"), device)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
def test_awkward_shapes(direction: str, aligned: bool, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if aligned:
        monkeypatch.setattr(cases, "GUARD", 1024)  # channels are read as vectors
    for words in SAMPLES[1::2] if aligned else SAMPLES:
        check(parse(f"grid_sample_{direction} linear {words}"), device)


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_dtypes(dtype: str, direction: str, device: Any) -> None:
    for words in ("shape2x9x5x7 out4x6", "shape2x16x5x7 out4x6 nhwc"):
        kind, *layout = words.rsplit(" nhwc", 1)
        end = "nhwc" if layout else "nchw"
        check(parse(f"grid_sample_{direction} linear border {kind} {dtype} {end}"), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, device: Any) -> None:
    for direction in SAMPLE_DIRECTIONS:
        check(arranged(parse(f"grid_sample_{direction} linear shape2x3x5x6 out4x19"), arrangement), device)
    for direction in GRID_DIRECTIONS:
        check(arranged(parse(f"affine_grid_{direction} shape2x3x19"), arrangement), device)


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
def test_wide_offsets(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    monkeypatch.setattr("jitdnn.kernels.gpu.sampling.grid_sample.offset_type", lambda tensors: "i64")
    check(parse(f"grid_sample_{direction} linear shape2x3x5x7 out10x9"), device)


@pytest.mark.parametrize(
    "words", ["shape2x3x4x5 out30x40", "shape1x8x4x5 out30x40 nhwc", "shape1x5x2x3x2 out7x9x8 bf16"]
)
@pytest.mark.parametrize("mode", MODES)
def test_crowded_cells(mode: str, words: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most places of the first image are in one corner, and those of all cells are many."""
    monkeypatch.setattr("jitdnn.kernels.gpu.sampling.grid_sample.LONG", 300)
    problem = parse(f"grid_sample_bwd_data {mode} border {words}")
    rng = np.random.default_rng(0)
    dy, grid = (rng.uniform(-1, 1, operand.descriptor.shape) for operand in problem.inputs)
    grid[0] = np.where(rng.random((*grid.shape[1:-1], 1)) < 0.6, 3.0 + rng.random(grid.shape[1:]), grid[0])
    check(problem, device, inputs=[dy, grid])


@pytest.mark.parametrize("way", WAYS)
def test_places_that_are_none(way: str, device: Any) -> None:
    """NaN is outside or 0, infinity is outside or an end; neither leads out of the image."""
    problem = parse(f"grid_sample_fwd {way} shape1x17x3x4 out2x9")
    x = np.arange(1.0, 17 * 12 + 1).reshape(1, 17, 3, 4)
    grid = np.zeros((1, 2, 9, 2))
    grid[0, :, :5, 0] = [np.nan, np.inf, -np.inf, 1e30, -1e30]
    grid[0, 1, 5:, 1] = [np.nan, np.inf, -np.inf, 3e9]
    case = make_case(problem, None, 0, [x, grid])
    algorithm = PlainGridSample()
    (y,) = run(device, algorithm.build(problem, device), case, 0)
    far = np.concatenate([y[..., 0, :5].ravel(), y[..., 1, :].ravel()])
    if "zeros" in way:
        assert (far == 0).all()
    else:
        assert ((far >= 1) & (far <= x.max())).all()
    backward = parse(f"grid_sample_bwd_data {way} shape1x17x3x4 out2x9")
    case = make_case(backward, None, 0, [np.ones(y.shape), grid])
    (dx,) = run(device, algorithm.build(backward, device), case, algorithm.workspace(backward, device))
    inside = 4 if "zeros" in way else 18  # places in the middle of the image
    assert abs(dx.sum() - 17 * inside) < 1e-3


@settings(
    max_examples=examples(15),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=st.one_of(grid_samples(), affine_grids()))
def test_any_problem(problem: Any, device: Any) -> None:
    assert check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


def test_refusals(device: Any) -> None:
    sampling = parse("grid_sample_bwd_data linear shape40000x1x200x300 out2x2")
    assert "fewer than 2^31" in str(PlainGridSample().refuse(sampling, device))
    assert "no epilogue" in str(PlainGridSample().refuse(sampling, device, Epilogue(trace(lambda a: a))))
    affine = parse("affine_grid_fwd shape1000x20000x20000")
    assert "fewer than 2^38" in str(PlainAffineGrid().refuse(affine, device))


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
def test_sampling_compiles(direction: str, architecture: Any) -> None:
    for words in ("linear shape8x64x56x56 out56x56", "linear reflection shape2x32x8x8x8 out9x9x9 bf16 nhwc"):
        PlainGridSample().build(parse(f"grid_sample_{direction} {words}"), architecture)


@pytest.mark.parametrize("direction", GRID_DIRECTIONS)
def test_affine_grids_compile(direction: str, architecture: Any) -> None:
    PlainAffineGrid().build(parse(f"affine_grid_{direction} shape8x56x56"), architecture)
