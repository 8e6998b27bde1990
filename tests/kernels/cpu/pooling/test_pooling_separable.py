"""Pooling by one axis after the other: passes, blocks of rows, clipped windows, strides, and refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import INSTRUCTION_SETS, check, results_of
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.algorithm import _launch as launches
from jitdnn.kernels.cpu.pooling.algorithm import PoolingSeparable
from jitdnn.kernels.cpu.pooling.separable_plan import passes_of
from jitdnn.problems import parse

SHAPES = [
    "n1 c3 h13 w13 window13 stride1 pad6",
    "n1 c3 h20 w13 window9x5 stride1 pad4x2",
    "n2 c3 h21 w35 window5x4 stride2x3 pad2x1 ceil",
    "n1 c2 h40 w18 window12x3 stride5x1 pad3x0",
    "n1 c3 h13 w40 window3 stride1 pad2 dil2",
    "n1 c2 h30 w33 window7x5 stride1x6 pad3x2",
    "n2 c3 w37 window5 stride3 pad2",
    "n1 c2 h9 w10 window3 stride2 pad1 f64",
]


@pytest.mark.parametrize("mode", ["max", "avg", "avg exclude_pad"])
@pytest.mark.parametrize("words", SHAPES)
def test_shapes(words: str, mode: str) -> None:
    problem = parse(f"pool_fwd {mode} {words}")
    assert PoolingSeparable().refuse(problem, host(1)) is None
    check(problem)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("mode", ["max", "avg exclude_pad bf16"])
def test_narrower_vectors(mode: str, cpu: str) -> None:
    check(parse(f"pool_fwd {mode} n1 c2 h15 w21 window7x3 stride1x2 pad3x1"), cpu=cpu)


@pytest.mark.parametrize(
    ("words", "rows"), [("h40 w18 window12x3 stride5x1 pad3x0", 33), ("h40 w18 window3 stride2 pad1", 9)]
)
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_blocks_of_rows(mode: str, words: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of planes that no cache holds."""
    monkeypatch.setattr(cost, "POOLING_PLANE_L2", rows * 21 * 4 / host(1).isa.processor.l2_bytes)
    launches.cache_clear()
    problem = parse(f"pool_fwd {mode} n1 c2 {words}")
    plan = PoolingSeparable().plan(problem, host(1), None).key
    assert plan.blocks > 1
    check(problem)
    launches.cache_clear()


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    h, w = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 40))
    r, s = data.draw(st.integers(1, min(h, 11))), data.draw(st.integers(1, min(w, 11)))
    strides = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    pads = data.draw(st.integers(0, r // 2)), data.draw(st.integers(0, s // 2))
    mode = data.draw(st.sampled_from(["max", "avg", "avg exclude_pad"]))
    words = f"n1 c2 h{h} w{w} window{r}x{s} stride{strides[0]}x{strides[1]} pad{pads[0]}x{pads[1]}"
    check(parse(f"pool_fwd {mode} {words}"), scales=((1.0, 0.0), (1.5, 0.5)))


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("window", range(1, 40))
def test_passes_cover_the_window(mode: str, window: int) -> None:
    """Each element once in a sum, at least once in a maximum."""
    passes = passes_of(window, mode)
    if passes is None:
        assert mode == "avg"
        assert window in (17, 19, 23, 29, 31, 37, 34, 38)
        return
    counts = [sum(at) for at in itertools.product(*[(0, *offsets) for offsets in passes])]
    assert sorted(set(counts)) == list(range(window))
    assert mode == "max" or len(counts) == window


def test_nan_and_infinity() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 13, 13)).astype(np.float32)
    x[0, 0, 6, 6], x[0, 1, 0, 0], x[0, 1, 12, 12] = np.nan, np.inf, -np.inf
    for name, y in results_of(parse("pool_fwd max n1 c2 h13 w13 window5 stride1 pad2"), x).items():
        is_nan = np.isnan(y)
        assert is_nan[0, 0, 4:9, 4:9].all(), name
        assert is_nan.sum() == 25, name
        assert (y[0, 1, :3, :3] == np.inf).all(), name
        assert np.isfinite(y[0, 1, 3:]).all(), name


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("avg n1 c2 h40 w40 window17 stride1 pad8", "factor"),
        ("max n1 c2 d5 h6 w7 window2 stride1", "three axes"),
        ("max n1 c17 h9 w9 window3 nhwc", "adjacent"),
        ("max n1 c2 h6 w7 window2 stride3 caffe", "no element"),
    ],
)
def test_refusals(words: str, why: str) -> None:
    reason = PoolingSeparable().refuse(parse(f"pool_fwd {words}"), host(1))
    assert reason is not None
    assert why in reason


# ---- global pooling as a reduction


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize(
    "words",
    [
        "n2 c19 h7 w5 window7x5",
        "n1 c33 h9 w10 window9x10 nhwc",
        "n3 c5 w37 window37 bf16",
        "n1 c3 d4 h5 w6 window4x5x6 f64",
    ],
)
def test_global(words: str, mode: str) -> None:
    problem = parse(f"pool_fwd {mode} {words}")
    assert "reduction" in check(problem)


def test_what_is_not_global() -> None:
    for words in ("n1 c3 h7 w7 window7 pad1", "n1 c3 h7 w7 window6", "n1 c3 h7 w7 window7x5"):
        assert "reduction" not in check(parse(f"pool_fwd avg {words}"))
