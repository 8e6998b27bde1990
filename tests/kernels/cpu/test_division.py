"""How the work of products is divided: threads end together, and every sum is the same."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.convolution.direct.algorithm import Direct
from jitdnn.kernels.cpu.convolution.implicit_gemm.algorithm import ImplicitGemm, make_plans
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import makespan, split_units, task_count
from jitdnn.problems import Convolution, parse


def plan_of(words: str, threads: int) -> ImplicitGemmPlan:
    problem = parse(words)
    assert isinstance(problem, Convolution)
    (plan,) = make_plans(problem, host(threads, "avx512"), None, True)
    return plan


def lengths(plan: ImplicitGemmPlan) -> list[int]:
    """Register tiles of each task."""
    blocks = itertools.product(
        *(
            [min(each, of - at) for at in range(0, of, each)]
            for each, of in zip(plan.block, plan.results, strict=True)
        )
    )
    tiles = [math.prod(map(ceil_div, block, plan.box)) for block in blocks]
    each, count = plan.panels_per_task, plan.panels.count
    return [t * min(each, count - at) for t in tiles for at in range(0, count, each)]


def test_a_makespan_is_that_of_tasks_taken_in_turn() -> None:
    assert makespan([3, 3, 3, 1], 2) == 6
    assert makespan([1, 3, 3, 3], 2) == 6
    assert makespan([5], 4) == 5
    assert makespan([], 3) == 0


@given(st.integers(1, 400), st.integers(2, 8))
def test_units_leave_no_thread_idle_for_long(units: int, threads: int) -> None:
    """Never longer than by as few tasks as are wanted, and no more than twice as many."""
    device, seconds = host(threads, "avx2"), 1e-2
    tasks, each = split_units(units, device, seconds)
    wanted = task_count(device, seconds)
    largest = ceil_div(units, wanted)

    def end(size: int) -> float:
        return makespan(
            [min(size, units - at) for at in range(units - units % size, -1, -size) if at < units], threads
        )

    assert end(each) <= 1.01 * end(largest)
    assert tasks <= max(1, 2 * wanted)


def test_seven_sevens_and_one_become_ten_fives() -> None:
    assert split_units(50, host(2, "avx2"), 1e-2) == (10, 5)


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c1024 h7 w7 k2048 r1 s1 stride1 pad0 f32 nhwc",  # one block, 43 panels
        "conv_fwd n1 c256 h56 w56 k128 r1 s1 stride1 pad0 f32 nhwc",  # a short block behind seven
        "conv_fwd n8 c1024 h14 w14 k512 r1 s1 stride1 pad0 f32 nhwc",  # thirteen blocks
        "conv_fwd n1 c64 h56 w56 k64 r3 s3 stride1 pad1 f32 nhwc",
        "conv_fwd n1 c256 h28 w28 k512 r1 s1 stride1 pad0 f32 nchw",
    ],
)
def test_two_threads_end_together(words: str) -> None:
    plan = plan_of(words, 2)
    each = lengths(plan)
    assert plan.tasks >= 2
    assert makespan(each, 2) <= 1.05 * sum(each) / 2
    assert plan.blocking.imbalance <= 1.05
    assert max(plan.blocks) == 1 or all(b <= r for b, r in zip(plan.block, plan.results, strict=True))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_results_are_the_same_with_any_threads(layout: str) -> None:
    problem: Any = parse(f"conv_fwd n2 c96 h13 w11 k80 r1 s1 stride1 pad0 f32 {layout}")
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(t.size, np.float32) for t in (problem.x, problem.w))
    results = []
    for threads in (1, 2, 3, 5):
        device = host(threads)
        kernel, room = ImplicitGemm().build(problem, device), ImplicitGemm().workspace(problem, device)
        y, workspace = np.full(problem.y.size, np.nan, np.float32), np.empty(room + 64, np.uint8)
        at = workspace.ctypes.data + -workspace.ctypes.data % 64
        kernel(None, (x.ctypes.data, w.ctypes.data, y.ctypes.data), 1.0, 0.0, at)
        results.append(y)
    assert np.isfinite(results[0]).all()
    assert all((y == results[0]).all() for y in results)


@pytest.mark.parametrize("threads", [1, 2])
def test_images_that_are_read_again_for_each_block_of_a_filter_are_counted(threads: int) -> None:
    """Direct convolution reads 6 MiB of pixels for every few results' channels; a product's blocks stay in a cache."""
    problem: Any = parse("conv_fwd n8 c1024 h14 w14 k512 r1 s1 stride1 pad0 f32 nhwc")
    device = host(threads, "avx512")
    assert Direct().estimate(problem, device) > 1.5 * ImplicitGemm().estimate(problem, device)
