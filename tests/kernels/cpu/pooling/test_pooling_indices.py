"""The indices of the maxima: every algorithm, ties and NaN, empty windows, PyTorch, the public function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, make_case, run, unreached
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Pooling, Problem, parse

SHAPES = [
    "n1 c1 h1 w1 window1",
    "n2 c17 h13 w15 window3 stride2",
    "n2 c17 h13 w15 window3 stride2 nhwc",
    "n1 c3 h5 w140 window3x2 stride1 pad1x0",
    "n1 c5 h9 w10 window3 stride1 pad2 dil2",
    "n1 c33 h9 w10 window3 stride1 pad2 dil2 nhwc",
    "n1 c2 h6 w7 window2 stride3 caffe",  # the last windows are empty
    "n1 c18 h6 w7 window2 stride4x3 caffe nhwc",
    "n2 c3 h7 w7 window7",
    "n2 c63 h7 w7 window7 nhwc",
    "n1 c3 d5 h6 w7 window2x3x2 stride2x1x3 pad1x1x0",
    "n2 c19 w37 window5 stride3 pad2:1 ceil nhwc",
    "n2 c9 h9 w10 window3 stride2 pad1 f64",
    "n2 c9 h9 w10 window3 stride2 pad1 f16 nhwc",
    "n2 c9 h9 w10 window3 stride2 pad1 bf16",
    "n2 c9 h9 w10 window3 stride2 pad1 i8 nhwc",
    "n2 c3 h9 w10 window9x10 u8",
    "n0 c3 h8 w8 window2",
]


def pooling(words: str, bits: int = 64) -> Problem:
    return parse(f"pool_fwd max indices{bits} {words}")


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, bits: int) -> None:
    check(pooling(words, bits))


@pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned"])
def test_orders_in_memory(arrangement: str) -> None:
    check(arranged(pooling("n2 c5 h9 w8 window3 stride2 pad1:0x1 ceil"), arrangement))
    assert arrangement in ARRANGEMENTS


def test_results_in_other_orders_than_x() -> None:
    for words in ("nhwc indices=nchw", "indices=nhwc", "nhwc y=nchw", "nhwc x=nchw"):
        check(pooling(f"n2 c19 h9 w10 window3 stride2 {words}"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_narrower_instruction_sets(layout: str, cpu: str) -> None:
    check(pooling(f"n2 c19 h9 w20 window3 stride2 pad1 {layout}", 32), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    without_indices = {"reduction", "separable"}  # they refuse every problem that asks for them
    assert unreached([pooling(words) for words in SHAPES]) == without_indices


def indices_of(problem: Problem, x: np.ndarray[Any, Any]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """What each algorithm gives: y and indices."""
    case, device = make_case(problem, given=[x]), host(1)
    return {
        a.name: run(a.build(problem, device), case, a.workspace(problem, device))
        for a in algorithms(problem, "cpu")
        if a.refuse(problem, device) is None
    }


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_first_maximum_nan_and_empty_windows(layout: str) -> None:
    row = np.array([7.0, 7, 1, np.nan, 9, np.nan, -np.inf, -np.inf, -np.inf, 0, np.inf, np.inf], np.float32)
    x = np.broadcast_to(row, (1, 17, 12))
    problem = parse(f"pool_fwd max indices32 n1 c17 w12 window3 {layout}")
    for name, (_, indices) in indices_of(problem, x).items():
        np.testing.assert_array_equal(indices, np.broadcast_to([0, 3, 6, 10], (1, 17, 4)), err_msg=name)
    problem = parse(f"pool_fwd max indices32 n1 c17 w12 window2 stride6 caffe {layout}")
    assert problem.output.shape == (1, 17, 3)  # the last one starts behind the end
    for name, (y, indices) in indices_of(problem, x).items():
        np.testing.assert_array_equal(indices, np.broadcast_to([0, 6, -1], (1, 17, 3)), err_msg=name)
        assert (y[:, :, 2] == np.finfo(np.float32).min).all(), name


@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation"), [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2)]
)
def test_as_pytorch(window: int, stride: int, padding: int, dilation: int, layout: str | None) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).integers(-4, 4, (2, 5, 14, 19)).astype(np.float32)  # many ties
    expected = torch.nn.functional.max_pool2d(
        torch.tensor(x), window, stride, padding, dilation, return_indices=True
    )
    order, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout else ((0, 1, 2, 3),) * 2
    ours = jd.max_pool(
        np.ascontiguousarray(x.transpose(order)), window, stride, padding, dilation=dilation, layout=layout,
        return_indices=True,
    )  # fmt: skip
    for array, theirs in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(array.transpose(back), theirs)
        assert array.dtype == theirs.numpy().dtype


def test_canonical_strings() -> None:
    problem = Pooling.make("fwd", "max", (2, 3, 8, 8), 3, 2, 1, dilation=(2, 1), indices="i32")
    assert problem.text == "pool_fwd max n2 c3 h8 w8 window3 stride2 pad1 dil2x1 indices32 f32 nchw"
    assert parse(problem.text) == problem
    adaptive = Pooling.adaptive("fwd", "avg", (2, 3, 8, 9), 3, "i8", "nhwc")
    assert adaptive.text == "pool_fwd avg n2 c3 h8 w9 adaptive3 i8 nhwc"
    assert parse(adaptive.text) == adaptive


def test_arrays_that_are_given() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    y, indices = jd.max_pool(x, 2, return_indices="i32")
    assert indices.dtype == np.int32
    old = np.full_like(y, 3.0)
    given = np.full(y.shape, -7, np.int64)
    result = jd.max_pool(x, 2, out=(old, given), alpha=2.0, beta=0.5, return_indices=True)
    assert result[0] is old
    assert result[1] is given
    np.testing.assert_allclose(old, 2 * y + 1.5, rtol=1e-6)  # indices are not scaled
    np.testing.assert_array_equal(given, indices)
    # only one of the two
    none_given = jd.max_pool(x, 2, out=(None, given), return_indices=True)
    np.testing.assert_array_equal(none_given[0], y)


def test_what_cannot_be() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(InvalidArgument, match="return_indices is 'u8': it must be one of 'i32', 'i64'"):
        jd.max_pool(x, 2, return_indices="u8")
    with pytest.raises(InvalidShape, match="indices"):
        jd.max_pool(x, 2, out=(None, np.zeros((1, 1, 2, 3), np.int64)), return_indices=True)
    with pytest.raises(InvalidType, match="indices is f32: it must be i32 or i64"):
        jd.max_pool(x, 2, out=(None, np.zeros((1, 1, 2, 2), np.float32)), return_indices=True)
    with pytest.raises(InvalidArgument, match="only the forward maximum has indices, not fwd avg"):
        Pooling.make("fwd", "avg", (1, 1, 4, 4), 2, indices="i64")
