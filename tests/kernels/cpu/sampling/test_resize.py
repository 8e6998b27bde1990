"""Resizing, forward and backward: every algorithm, and PyTorch's word for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Resize, parse
from jitdnn.problems.resize import DIRECTIONS, MODES
from window_cases import RESIZE_SHAPES, resizes


def test_canonical_strings() -> None:
    known = {
        "resize_fwd linear half_pixel shape2x3x5x7 out10x14 f32 nchw": Resize.make(
            "fwd", "linear", (2, 3, 5, 7), (10, 14)
        ),
        "resize_bwd nearest asymmetric floor shape2x3x5 out9 scale_w1.9 f16 nchw": Resize.make(
            "bwd", "nearest", (2, 3, 5), (9,), "asymmetric", "floor", (1.9,), dtype="f16"
        ),
        "resize_fwd cubic align_corners shape2x3x5x7 out10x14 cubic_a-0.5 f32 nhwc": Resize.make(
            "fwd", "cubic", (2, 3, 5, 7), (10, 14), "align_corners", cubic=-0.5, layout="nhwc"
        ),
    }
    for text, problem in known.items():
        assert str(problem) == text
        assert parse(text) == problem


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", RESIZE_SHAPES)
def test_awkward_shapes(words: str, direction: str) -> None:
    check(parse(f"resize_{direction} linear {words}"))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, direction: str) -> None:
    for words in RESIZE_SHAPES[::3]:
        check(parse(f"resize_{direction} {mode} {words}"))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_dtypes(dtype: str, direction: str) -> None:
    check(parse(f"resize_{direction} linear shape2x3x5x7 out10x14 {dtype}"))
    check(parse(f"resize_{direction} linear shape2x19x5x7 out6x9 {dtype} nhwc"))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, direction: str) -> None:
    check(arranged(parse(f"resize_{direction} linear shape2x3x4x18 out8x27"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrower_instruction_sets(direction: str, cpu: str) -> None:
    for words in ("shape1x3x5x37 out10x74", "shape1x19x5x4 out7x9 nhwc"):
        check(parse(f"resize_{direction} linear {words}"), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    problems = [
        f"resize_{direction} {mode} {words}" for words in RESIZE_SHAPES for mode in ("linear", "nearest")
    ]
    assert unreached([parse(words) for words in problems]) == set()


@pytest.mark.parametrize("how", ["asymmetric floor", "half_pixel round_prefer_ceil"])
@pytest.mark.parametrize(
    "words",
    [
        "shape1x3x5x13 out10x26",
        "shape2x2x4x40 out8x80",
        "shape1x2x3x100 out9x300",
        "shape1x2x6x130 out6x195",  # 3 for 2
        "shape1x2x6x37 out3x18",
        "shape1x2x3x4x21 out6x4x42 bf16",
        "shape1x2x7x16 out7x16 f64",
        "shape1x2x2x1 out4x33",
    ],
)
def test_nearest(words: str, how: str) -> None:
    check(parse(f"resize_fwd nearest {how} {words}"))


@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(resizes())
def test_any_resize(problem: Resize) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


# ours, and what PyTorch calls it
MODES_OF_TORCH: list[tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = [
    ({"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}, {"mode": "nearest"}, (1, 2, 3)),
    ({"mode": "nearest", "rounding": "round_prefer_ceil"}, {"mode": "nearest-exact"}, (1, 2, 3)),
    ({"mode": "linear"}, {"mode": "linear", "align_corners": False}, (1,)),
    ({"mode": "linear"}, {"mode": "bilinear", "align_corners": False}, (2,)),
    ({"mode": "linear"}, {"mode": "trilinear", "align_corners": False}, (3,)),
    ({"mode": "linear", "coordinates": "align_corners"}, {"mode": "bilinear", "align_corners": True}, (2,)),
    ({"mode": "linear", "coordinates": "align_corners"}, {"mode": "trilinear", "align_corners": True}, (3,)),
    ({"mode": "cubic"}, {"mode": "bicubic", "align_corners": False}, (2,)),
    ({"mode": "cubic", "coordinates": "align_corners"}, {"mode": "bicubic", "align_corners": True}, (2,)),
]


@pytest.mark.parametrize(("ours", "theirs", "ranks"), MODES_OF_TORCH)
def test_against_torch(ours: dict[str, Any], theirs: dict[str, Any], ranks: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for rank in ranks:
        for size in ((9, 14, 4), (3, 7, 12), (7, 22, 5)):
            x = torch.randn(
                2, 3, *(7, 11, 5)[:rank], generator=generator, dtype=torch.float64
            ).requires_grad_()
            expected = F.interpolate(x, size=size[:rank], **theirs)
            dy = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
            expected.backward(dy)
            y = jd.resize(x.detach(), size[:rank], **ours)
            torch.testing.assert_close(y, expected.detach(), rtol=1e-12, atol=1e-12)
            dx = jd.resize_backward(dy, x.shape, **ours)
            torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)
            last = (0, *range(2, rank + 2), 1)
            y = jd.resize(x.detach().permute(last), size[:rank], layout="NHWC", **ours)
            torch.testing.assert_close(y, expected.detach().permute(last), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [(1.3, 2.2), (0.4, 3.0), (0.7, 0.6)])
def test_scales_against_torch(scale: tuple[float, float]) -> None:
    x = torch.randn(1, 2, 10, 13, dtype=torch.float64, requires_grad=True)
    expected = F.interpolate(x, scale_factor=scale, mode="bilinear", recompute_scale_factor=False)
    dy = torch.randn(expected.shape, dtype=torch.float64)
    expected.backward(dy)
    torch.testing.assert_close(jd.resize(x.detach(), scale=scale), expected.detach(), rtol=1e-12, atol=1e-12)
    dx = jd.resize_backward(dy, x.shape, scale=scale)
    torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)


def test_roundings_at_halves() -> None:
    """Places 0.5 and 1.5 of 0, 1, 2, by ONNX's four rules."""
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    expected = {
        "round_prefer_floor": [0, 2],
        "round_prefer_ceil": [1, 3],
        "floor": [0, 2],
        "ceil": [1, 3],
    }
    for rounding, places in expected.items():
        y = jd.resize(x, 2, mode="nearest", rounding=rounding)
        assert y.ravel().tolist() == places, rounding


def test_pytorch_half_pixel_takes_the_first_of_one() -> None:
    x = np.arange(5, dtype=np.float64).reshape(1, 1, 5)
    assert jd.resize(x, 1, coordinates="pytorch_half_pixel").item() == 0
    assert jd.resize(x, 1).item() == 2


def test_memory_past_the_caches() -> None:
    """Large results are written another way; from a multiple of the vectors' width, and not."""
    for start in (0, 1):
        x = np.random.default_rng(0).standard_normal((4, 16, 240, 480)).astype(np.float32)
        flat = np.empty(x.size * 2 + 1, np.float32)[start : start + x.size * 2]
        y = jd.resize(x, (480, 480), mode="nearest", out=flat.reshape(4, 16, 480, 480))
        np.testing.assert_array_equal(y, np.repeat(x, 2, axis=2))
        out = flat.reshape(4, 480, 480, 16)
        y = jd.resize(x.transpose(0, 2, 3, 1).copy(), (480, 480), mode="nearest", layout="NHWC", out=out)
        np.testing.assert_array_equal(y, np.repeat(x, 2, axis=2).transpose(0, 2, 3, 1))


def test_errors() -> None:
    x = np.ones((1, 2, 4, 4), np.float32)
    with pytest.raises(InvalidArgument, match="neither size nor scale"):
        jd.resize(x)
    with pytest.raises(InvalidArgument, match="mode is 'area'"):
        jd.resize(x, 8, mode="area")
    with pytest.raises(InvalidArgument, match="scale is"):
        jd.resize(x, scale=-1)
    with pytest.raises(InvalidArgument, match=r"size (is|has)"):
        jd.resize(x, (8, 8, 8))
    with pytest.raises(InvalidShape, match="h is 0"):
        jd.resize(x, (0, 8))
    with pytest.raises(InvalidType, match="x is i32"):
        jd.resize(x.astype(np.int32), 8)
    with pytest.raises(InvalidShape, match="N and C"):
        jd.resize_backward(x, (1, 3, 2, 2))
