"""Affine grids and sampled images, forward and backward: every algorithm, PyTorch's word, and places that are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import AffineGrid, GridSample, parse
from jitdnn.problems.spatial_transformer import MODES, PADDINGS, SAMPLE_DIRECTIONS
from jitdnn.tensor import COMMON_DTYPES
from spatial_cases import affine_grids, grid_samples

GRIDS = [
    "shape2x5x7",
    "shape3x1x40 align_corners",
    "shape2x3x4x5",
    "shape1x4x1x37 align_corners",
    "shape0x4x5",
    "shape3x90x80",
]
SAMPLES = [
    "shape2x3x5x7 out4x6",
    "shape1x5x6x33 out9x40 nhwc",
    "shape2x19x4x5x3 out2x3x5",
    "shape1x70x4x5x3 out2x3x5 nhwc",
    "shape1x1x1x1 out3x3",
    "shape2x33x6x5 out7x3 nhwc",
    "shape0x2x6x5 out7x3",
    "shape2x5x30x31 out40x41",  # several tasks
]
WAYS = [
    f"{mode} {padding}{align}" for mode in MODES for padding in PADDINGS for align in ("", " align_corners")
]


def test_canonical_strings() -> None:
    known = {
        "affine_grid_fwd shape2x5x7 f32 nchw": AffineGrid.make("fwd", (2, 5, 7)),
        "affine_grid_bwd shape2x3x5x7 align_corners bf16 nchw": AffineGrid.make(
            "bwd", (2, 3, 5, 7), True, "bf16"
        ),
        "grid_sample_fwd linear zeros shape2x3x5x7 out4x6 f32 nchw": GridSample.make(
            "fwd", (2, 3, 5, 7), (4, 6)
        ),
        "grid_sample_bwd_data nearest border align_corners shape2x3x5x7 out4x6 f64 nchw": GridSample.make(
            "bwd_data", (2, 3, 5, 7), (4, 6), "nearest", "border", True, "f64"
        ),
        "grid_sample_bwd_grid linear reflection shape2x3x5x7 out4x6 f32 nchw": GridSample.make(
            "bwd_grid", (2, 3, 5, 7), (4, 6), padding="reflection"
        ),
    }
    for text, problem in known.items():
        assert str(problem) == text
        assert parse(text) == problem


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_affine_grids(dtype: str, direction: str) -> None:
    for words in GRIDS:
        check(parse(f"affine_grid_{direction} {words} {dtype}"))


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_sampling(way: str, direction: str) -> None:
    check(parse(f"grid_sample_{direction} {way} shape2x3x5x7 out4x6"))
    if WAYS.index(way) % 4 == 1:
        check(parse(f"grid_sample_{direction} {way} shape1x19x3x4x5 out2x3x2 nhwc"))


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
@pytest.mark.parametrize("words", SAMPLES)
def test_awkward_shapes(words: str, direction: str) -> None:
    check(parse(f"grid_sample_{direction} linear {words}"))


@pytest.mark.parametrize("direction", SAMPLE_DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_dtypes(dtype: str, direction: str) -> None:
    for layout in ("nchw", "nhwc"):
        check(parse(f"grid_sample_{direction} linear border shape2x9x5x7 out4x6 {dtype} {layout}"))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str) -> None:
    for direction in SAMPLE_DIRECTIONS:
        check(arranged(parse(f"grid_sample_{direction} linear shape2x3x5x6 out4x19"), arrangement))
    for direction in ("fwd", "bwd"):
        check(arranged(parse(f"affine_grid_{direction} shape2x3x19"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
def test_narrower_instruction_sets(cpu: str) -> None:
    for way in ("linear reflection", "nearest zeros"):
        for direction in SAMPLE_DIRECTIONS:
            check(parse(f"grid_sample_{direction} {way} shape1x3x5x6 out4x9"), cpu=cpu)
            check(parse(f"grid_sample_{direction} {way} shape1x19x5x6 out4x9 nhwc"), cpu=cpu)
    for direction in ("fwd", "bwd"):
        check(parse(f"affine_grid_{direction} shape2x3x19"), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    for direction in SAMPLE_DIRECTIONS:
        assert unreached([parse(f"grid_sample_{direction} linear {words}") for words in SAMPLES]) == set()
    for direction in ("fwd", "bwd"):
        assert unreached([parse(f"affine_grid_{direction} {words}") for words in GRIDS]) == set()


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(grid_samples())
def test_any_sample(problem: GridSample) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(affine_grids())
def test_any_affine_grid(problem: AffineGrid) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (3, 4, 5)])
def test_affine_grid_against_torch(size: tuple[int, ...], align: bool) -> None:
    generator, rank = torch.Generator().manual_seed(0), len(size)
    theta = torch.randn(3, rank, rank + 1, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = F.affine_grid(theta, [3, 2, *size], align_corners=align)
    dgrid = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    expected.backward(dgrid)
    grid = jd.affine_grid(theta.detach(), size, align)
    torch.testing.assert_close(grid, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jd.affine_grid_backward(dgrid, align), theta.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_grid_sample_against_torch(way: str) -> None:
    mode, padding, *align = way.split()
    generator = torch.Generator().manual_seed(0)
    for shape, size in (((2, 3, 6, 7), (5, 9)), ((2, 3, 4, 6, 5), (3, 2, 7))):
        rank = len(size)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if mode == "linear":
            x = x.contiguous(memory_format=(torch.channels_last, torch.channels_last_3d)[rank - 2])
        x.requires_grad_()
        grid = torch.rand(2, *size, rank, generator=generator, dtype=torch.float64) * 6 - 3
        grid.requires_grad_()
        name = "bilinear" if mode == "linear" else mode
        expected = F.grid_sample(x, grid, name, padding, align_corners=bool(align))
        dy = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
        expected.backward(dy)
        images, places = x.detach(), grid.detach()
        y = jd.grid_sample(images, places, name, padding, bool(align))
        torch.testing.assert_close(y, expected.detach(), rtol=1e-11, atol=1e-11)
        dx, dgrid = jd.grid_sample_backward(dy, images, places, name, padding, bool(align))
        torch.testing.assert_close(dx, x.grad, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(dgrid, grid.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("way", WAYS)
def test_places_that_are_none(way: str, layout: str) -> None:
    """NaN is outside or 0, infinity is outside or an end; neither leads out of the image."""
    for dtype in ("f32", "f64")[: 1 + (way == WAYS[0])]:
        problem = parse(f"grid_sample_fwd {way} shape1x17x3x4 out2x9 {dtype} {layout}")
        x = np.arange(1.0, 17 * 12 + 1).reshape(1, 17, 3, 4)
        grid = np.zeros((1, 2, 9, 2))
        grid[0, :, :5, 0] = [np.nan, np.inf, -np.inf, 1e30, -1e30]
        grid[0, 1, 5:, 1] = [np.nan, np.inf, -np.inf, 3e9]
        for name, y in results_of(problem, x, grid).items():
            far = np.concatenate([y[..., 0, :5].ravel(), y[..., 1, :].ravel()])
            if "zeros" in way:
                assert (far == 0).all(), name
            else:
                assert ((far >= 1) & (far <= x.max())).all(), name


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nothing_outside_is_read(layout: str) -> None:
    """What is outside of the image counts nothing, even where the image's own edge is infinite."""
    x = np.full((1, 17, 2, 2), np.inf, np.float32)
    problem = parse(f"grid_sample_fwd linear zeros align_corners shape1x17x2x2 out1x3 {layout}")
    grid = np.array([[[[-9.0, 0], [0, 9], [9, -9]]]], np.float32)
    for name, y in results_of(problem, x, grid).items():
        assert (y == 0).all(), name


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_images_read_backwards(order: tuple[int, ...]) -> None:
    """Strides below zero, with the channels last too."""
    rng = np.random.default_rng(0)
    shape = [(2, 19, 5, 6)[axis] for axis in np.argsort(order)]
    x, dy = (rng.standard_normal(shape).transpose(order)[:, :, ::-1, ::-1] for _ in range(2))
    grid = rng.uniform(-1.2, 1.2, (2, 5, 6, 2))
    found = [jd.grid_sample(x, grid), *jd.grid_sample_backward(dy, x, grid)]
    straight, gradient = x.copy(), dy.copy()
    expected = [jd.grid_sample(straight, grid), *jd.grid_sample_backward(gradient, straight, grid)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2)):
        x = rng.standard_normal([(2, 40, 30, 50)[axis] for axis in np.argsort(order)]).astype(np.float32)
        x = x.transpose(order)
        dy = rng.standard_normal(x.shape).astype(np.float32)
        grid = rng.uniform(-1, 1, (2, *x.shape[2:], 2)).astype(np.float32)
        found = []
        for threads in (1, 2):
            with jd.settings(threads=threads):
                found.append(jd.grid_sample_backward(dy, x, grid))
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_identity() -> None:
    """The grid of the identity samples every element at its own place."""
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 9)).astype(np.float32)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    for align in (False, True):
        grid = jd.affine_grid(theta, (6, 9), align)
        np.testing.assert_allclose(jd.grid_sample(x, grid, align_corners=align), x, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(jd.grid_sample(x, grid, "nearest", align_corners=align), x)


def test_scaled_into_what_is_there() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4))
    grid = np.random.default_rng(1).uniform(-1, 1, (1, 3, 3, 2))
    dy = np.random.default_rng(2).standard_normal((1, 2, 3, 3))
    dx, dgrid = jd.grid_sample_backward(dy, x, grid)
    out = (np.ones_like(dx), np.ones_like(dgrid))
    same = jd.grid_sample_backward(dy, x, grid, alpha=2.0, beta=0.5, out=out)
    assert same[0] is out[0]
    assert same[1] is out[1]
    np.testing.assert_allclose(out[0], 2 * dx + 0.5)
    np.testing.assert_allclose(out[1], 2 * dgrid + 0.5)


@pytest.mark.parametrize(
    ("other", "beta", "error"),
    [(None, 1.0, InvalidArgument), (np.ones((1, 3, 2, 2)), 1.0, InvalidShape),
     (np.ones((1, 3, 3, 2), np.float32), 0.0, InvalidType)],
)  # fmt: skip
def test_neither_gradient_is_written_where_the_other_is_refused(
    other: np.ndarray | None, beta: float, error: type[Exception]
) -> None:
    x, grid, dy = np.ones((1, 2, 4, 4)), np.zeros((1, 3, 3, 2)), np.ones((1, 2, 3, 3))
    out = np.full_like(x, 7)
    with pytest.raises(error):
        jd.grid_sample_backward(dy, x, grid, beta=beta, out=(out, other))
    np.testing.assert_array_equal(out, 7)


def test_errors() -> None:
    x, grid = np.ones((2, 3, 4, 5), np.float32), np.zeros((2, 6, 7, 2), np.float32)
    with pytest.raises(InvalidArgument, match="mode is 'bicubic'"):
        jd.grid_sample(x, grid, "bicubic")
    with pytest.raises(InvalidArgument, match="padding is 'wrap'"):
        jd.grid_sample(x, grid, padding="wrap")
    with pytest.raises(InvalidShape, match="grid has shape"):
        jd.grid_sample(x, grid[..., :1])
    with pytest.raises(InvalidShape, match="with the N of the grid"):
        jd.grid_sample(x[:1], grid)
    with pytest.raises(InvalidType, match="one dtype"):
        jd.grid_sample(x, grid.astype(np.float64))
    with pytest.raises(InvalidShape, match="y has shape"):
        jd.grid_sample_backward(x, x, grid)
    with pytest.raises(InvalidArgument, match="tuple"):
        jd.grid_sample_backward(np.ones((2, 3, 6, 7), np.float32), x, grid, out=x)
    with pytest.raises(InvalidShape, match="theta has shape"):
        jd.affine_grid(np.ones((2, 2, 2), np.float32), (4, 5))
    with pytest.raises(InvalidArgument, match="size is"):
        jd.affine_grid(np.ones((2, 2, 3), np.float32), "ab")
    with pytest.raises(InvalidShape, match="grid has shape"):
        jd.affine_grid_backward(np.ones((2, 2, 3), np.float32))
