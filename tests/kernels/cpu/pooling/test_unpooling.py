"""Unpooling, forward and backward: every algorithm, indices that repeat or name nothing, PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Problem, Unpooling, parse
from strategies import unpoolings

DIRECTIONS = ("fwd", "bwd")
SHAPES = [
    "shape1x1x1 to1",
    "shape2x3x4x5 to9x11",
    "shape2x19x4x5 to9x11 nhwc indices32",
    "shape2x3x4x40 to8x80 indices32",
    "shape1x2x2x3x4 to5x6x7",
    "shape1x17x2x3x4 to5x6x7 nhwc",
    "shape3x2x7 to20",
    "shape2x3x9 to2",  # more values than places
    "shape0x2x7 to20",
]


def unpool(words: str, direction: str) -> Problem:
    return parse(f"unpool_{direction} {words}")


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, direction: str, dtype: str) -> None:
    check(unpool(f"{words} {dtype}", direction))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str) -> None:
    check(arranged(unpool("shape2x5x4x5 to9x7", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_narrower_instruction_sets(layout: str, direction: str, cpu: str) -> None:
    check(unpool(f"shape2x9x4x5 to9x7 {layout}", direction), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    assert unreached([unpool(words, direction) for words in SHAPES]) == set()


@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(unpoolings())
def test_any_unpooling(problem: Unpooling) -> None:
    assert parse(problem.text) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_last_of_several_values_stays_and_indices_outside_are_left_out(layout: str) -> None:
    x = np.broadcast_to(np.array([1.0, 2, 3, 4, 5], np.float32), (1, 19, 5))
    indices = np.broadcast_to(np.array([2, -1, 2, 4, 2**40]), (1, 19, 5))
    expected = np.broadcast_to(np.array([0.0, 0, 3, 0]), (1, 19, 4))
    for name, y in results_of(parse(f"unpool_fwd shape1x19x5 to4 {layout}"), x, indices).items():
        np.testing.assert_array_equal(y, expected, err_msg=name)
    dy = np.broadcast_to(np.array([10.0, 20, 30, 40], np.float32), (1, 19, 4))
    gradient = np.broadcast_to(np.array([30.0, 0, 30, 0, 0]), (1, 19, 5))
    for name, dx in results_of(parse(f"unpool_bwd shape1x19x5 to4 {layout}"), dy, indices).items():
        np.testing.assert_array_equal(dx, gradient, err_msg=name)


@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_as_pytorch(kind: Any, layout: str | None) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 5, 12, 15)).astype(np.float32)
    pooled, places = torch.nn.functional.max_pool2d(torch.tensor(x), 3, 2, 1, return_indices=True)
    leaf = pooled.clone().requires_grad_()
    expected = torch.nn.functional.max_unpool2d(leaf, places, 3, 2, 1, output_size=(12, 15))
    dy = random.standard_normal(x.shape).astype(np.float32)
    expected.backward(torch.tensor(dy))
    order, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout else ((0, 1, 2, 3),) * 2
    values, indices, gradient = (
        np.ascontiguousarray(array.transpose(order))
        for array in (pooled.numpy(), places.numpy().astype(kind), dy)
    )
    y = jd.max_unpool(values, indices, (12, 15), layout=layout)
    np.testing.assert_array_equal(y.transpose(back), expected.detach())
    dx = jd.max_unpool_backward(gradient, indices, layout=layout)
    np.testing.assert_array_equal(dx.transpose(back), leaf.grad)


def test_canonical_strings() -> None:
    plain = Unpooling.make("fwd", (2, 3, 4, 5), (2, 3, 8, 10))
    assert plain.text == "unpool_fwd shape2x3x4x5 to8x10 indices64 f32 nchw"
    assert parse("unpool_fwd shape2x3x4x5 to8x10") == plain
    other = Unpooling.make("bwd", (2, 3, 5), (2, 3, 9), "i32", "f64", "nhwc")
    assert other.text == "unpool_bwd shape2x3x5 to9 indices32 f64 nhwc"


def test_what_was_pooled_comes_back() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 6))
    y, indices = jd.max_pool(x, 2, return_indices=True)
    image = jd.max_unpool(y, indices, (8, 6))
    np.testing.assert_array_equal(jd.max_pool(np.where(image == 0, -9, image), 2), y)
    np.testing.assert_array_equal(image[image != 0], x[image != 0])
    np.testing.assert_array_equal(jd.max_unpool_backward(image, indices), y)


def test_what_cannot_be() -> None:
    x = np.zeros((1, 2, 3, 3), np.float32)
    indices = np.zeros((1, 2, 3, 3), np.int64)
    with pytest.raises(InvalidShape, match=r"indices has shape \(1, 2, 3, 2\) and x has \(1, 2, 3, 3\)"):
        jd.max_unpool(x, indices[..., :2], 6)
    with pytest.raises(InvalidType, match="indices is u8: it must be i32 or i64"):
        jd.max_unpool(x, indices.astype(np.uint8), 6)
    with pytest.raises(InvalidShape, match="N, C and the number of axes must be equal"):
        jd.max_unpool_backward(np.zeros((1, 3, 6, 6), np.float32), indices)
    with pytest.raises(InvalidArgument, match="space is 0: it must be at least 1"):
        jd.max_unpool(x, indices, (6, 0))
