"""Into how many tasks work is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.convolution.direct.algorithm import Depthwise, Direct
from jitdnn.kernels.cpu.schedule.parallel import TASK_SECONDS, split_units, task_count
from jitdnn.problems import parse


@given(st.integers(1, 64), st.floats(0.0, 1e-2))
def test_every_thread_gets_as_many_tasks(threads: int, seconds: float) -> None:
    tasks = task_count(host(threads, "avx2"), seconds)
    assert 1 <= tasks <= max(1, seconds / TASK_SECONDS)
    assert tasks <= threads or tasks % threads == 0
    if threads == 1:
        assert tasks == 1


@given(st.integers(1, 500), st.integers(1, 16), st.floats(0.0, 1e-2))
def test_all_units_are_in_tasks_and_no_task_is_empty(units: int, threads: int, seconds: float) -> None:
    tasks, per_task = split_units(units, host(threads, "avx2"), seconds)
    assert (tasks - 1) * per_task < units <= tasks * per_task


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Depthwise(), "conv_fwd n1 c16 h112 w112 k16 r3 s3 stride1 pad1 g16 f32 nhwc"),
        (Direct(), "conv_fwd n1 c512 h1 w1 k1280 r1 s1 stride1 pad0 f32 nhwc"),
    ],
)
def test_what_waits_for_its_operands_is_divided(algorithm: Direct, words: str) -> None:
    """One vector of channels over a large image, and a filter that is read once: few cycles, many bytes."""
    problem = parse(words)
    tasks = [sum(n for _, n in algorithm.launch(problem, host(t), None).phases) for t in (1, 2)]  # type: ignore[arg-type]
    assert tasks[0] < tasks[1]
    assert tasks[1] % 2 == 0
