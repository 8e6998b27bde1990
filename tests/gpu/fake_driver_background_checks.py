"""Compiling in the background with NVRTC itself, over a stand-in for NVIDIA's driver.

`test_runtime.py` runs this file in a process of its own, as `fake_driver_checks.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from fake_driver import FAKE, calls, fresh, on_gpu
from jitdnn.devices import cuda_compile
from jitdnn.planner.plan import Plan

__all__ = ["fresh"]  # a fixture of every test

SECONDS = 60.0


@pytest.fixture(autouse=True)
def in_background(tmp_path: Path) -> Iterator[None]:
    """With a cache on disk that no other test has."""
    with jd.settings(compile="background", cache=True, cache_dir=tmp_path):
        yield


@pytest.fixture
def handle() -> jd.Handle:
    return jd.Handle("cuda")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set nothing but generic code is compiled."""
    opened, compiled = threading.Event(), cuda_compile._compile

    def gated(source: Any, text: str, arch: str) -> bytes:
        if source.dialect != "plain":
            assert opened.wait(SECONDS)
        return compiled(source, text, arch)

    monkeypatch.setattr(cuda_compile, "_compile", gated)
    return opened


def operands() -> tuple[Any, Any]:
    w = jd.to_device(np.ones((128, 1, 3, 3), np.float32), "cuda:0")
    return on_gpu((8, 128, 28, 28)), w


def plan_of(handle: jd.Handle) -> Plan:
    (known,) = [known for known in handle.calls.young.values() if known.plan.problem.kind.startswith("conv")]
    plan: Plan = known.plan
    return plan


def test_a_call_runs_direct_until_its_kernel_is_there(handle: jd.Handle, gate: threading.Event) -> None:
    x, w = operands()
    jd.conv(x, w, padding=1, groups=128, handle=handle)
    plan = plan_of(handle)
    assert plan.algorithm == "direct"
    assert plan.pending is not None
    launches = calls("cuLaunchKernel")
    jd.conv(x, w, padding=1, groups=128, handle=handle)  # by the cached fast path
    assert (plan_of(handle).algorithm, calls("cuLaunchKernel") > launches) == ("direct", True)
    gate.set()
    plan.wait()
    assert plan.algorithm != "direct"
    launches = calls("cuLaunchKernel")
    jd.conv(x, w, padding=1, groups=128, handle=handle)
    assert calls("cuLaunchKernel") > launches
    assert plan_of(handle) is plan
    # another process finds both on the disk
    again = jd.Handle("cuda")
    jd.conv(x, w, padding=1, groups=128, handle=again)
    assert plan_of(again).algorithm == plan.algorithm


def test_a_capture_waits_for_the_chosen_kernel(handle: jd.Handle, gate: threading.Event) -> None:
    x, w = operands()
    y = jd.conv(x, w, padding=1, groups=128, handle=handle)
    plan = plan_of(handle)
    assert plan.pending is not None
    threading.Timer(0.05, gate.set).start()
    with handle.capture() as graph:
        jd.conv(x, w, padding=1, groups=128, out=y, handle=handle)
    assert plan.pending is None
    assert plan.algorithm != "direct"
    graph.replay()


def test_another_librarys_capture_waits_too(gate: threading.Event) -> None:
    x, w = operands()
    streamed = jd.Handle("cuda", 0x50)
    jd.conv(x, w, padding=1, groups=128, handle=streamed)
    plan = plan_of(streamed)
    assert plan.pending is not None
    threading.Timer(0.05, gate.set).start()
    FAKE.fake_set_capturing(0x50)
    jd.conv(x, w, padding=1, groups=128, handle=streamed)
    FAKE.fake_set_capturing(None)
    assert plan.pending is None
