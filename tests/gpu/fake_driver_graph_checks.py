"""Graphs over the stand-in for the driver: which calls a run makes, and what becomes of those that fail."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import jitdnn as jd
import jitdnn.onnx
from fake_driver import FAKE, calls, fail, fresh  # noqa: F401
from jitdnn.devices.gpu import OutOfMemory
from jitdnn.graph.gpu_plan import _Place
from test_graph import FLOAT, helper, images, model_of, network, numpy_helper

NAMES = (
    "cuStreamBeginCapture_v2",
    "cuGraphLaunch",
    "cuLaunchKernel",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamSynchronize",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
)


def counted(run: Any) -> dict[str, int]:
    """How often a run called each of these functions."""
    before = [calls(name) for name in NAMES]
    run()
    return {name: calls(name) - b for name, b in zip(NAMES, before, strict=True) if calls(name) > b}


def prepared(**options: Any) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return jitdnn.onnx.prepare(network(random), device="cuda", **options), images(random, 2)


def test_the_third_run_is_one_launch() -> None:
    loaded, x = prepared()
    first = counted(lambda: loaded.run([x]))
    assert first["cuLaunchKernel"] >= 8
    assert "cuGraphLaunch" not in first
    second = counted(lambda: loaded.run([x]))
    assert second["cuStreamBeginCapture_v2"] == second["cuGraphLaunch"] == 1
    third = counted(lambda: loaded.run([x]))
    assert third == {
        "cuGraphLaunch": 1, "cuMemcpyHtoDAsync_v2": 1, "cuMemcpyDtoHAsync_v2": 1, "cuStreamSynchronize": 1,
    }  # fmt: skip


def test_arrays_on_the_device_are_never_on_the_host() -> None:
    loaded, x = prepared()
    given = jd.to_device(x)
    for _ in range(2):
        loaded.run([given])
    found = counted(lambda: loaded.run([given]))
    assert found.pop("cuGraphLaunch") == 1
    assert found.pop("cuMemcpyDtoDAsync_v2") == 3  # the input and two outputs
    assert set(found) <= {"cuMemAllocAsync"}  # of the outputs; nobody waits


def test_a_capture_that_fails_is_done_without() -> None:
    loaded, x = prepared()
    loaded.run([x])
    fail("cuStreamBeginCapture_v2", 901)
    for _ in range(2):
        found = counted(lambda: loaded.run([x]))
        assert found["cuLaunchKernel"] >= 8
        assert "cuGraphLaunch" not in found


@pytest.mark.parametrize("is_own", [False, True])
def test_what_is_collected_in_a_capture_does_not_end_it(is_own: bool) -> None:
    """Plans are let go of by the collector of cycles, which may begin in the middle of anything."""
    loaded, x = prepared()
    for _ in range(2):
        loaded.run([x])
    (place,) = (one for one in gc.get_objects() if isinstance(one, _Place) and one.plan.has_run)
    stream, lost, frees = place.last, FAKE.fake_captures_lost(), calls("cuMemFreeHost")
    del place
    FAKE.fake_set_capturing(stream if is_own else 0x90)
    del loaded
    gc.collect()
    assert FAKE.fake_captures_lost() == lost
    assert calls("cuMemFreeHost") - frees == (0 if is_own else 1)
    FAKE.fake_set_capturing(None)
    jd.to_device(x)
    assert calls("cuMemFreeHost") - frees == 1


def test_no_memory_is_told_and_a_later_run_works() -> None:
    loaded, x = prepared()
    loaded.prepare([x])
    fail("cuMemAllocAsync", 2)
    fail("cuMemAlloc_v2", 2)
    with pytest.raises(OutOfMemory):
        loaded.run([x])
    fail("cuMemAllocAsync", 0)
    fail("cuMemAlloc_v2", 0)
    assert counted(lambda: loaded.run([x]))["cuLaunchKernel"] >= 8


@pytest.mark.parametrize("own", [0, 1])
def test_functions_of_the_host_cut_a_graph_in_two(own: int) -> None:
    """Recurrent layers have kernels, but not with coupled gates."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("LSTM", ["a", "w", "r"], ["h", ""], hidden_size=5, input_forget=own),
        helper.make_node("Exp", ["h"], ["y"]),
    ]
    random = np.random.default_rng(3)
    constants = [
        numpy_helper.from_array(random.random(shape).astype(np.float32), name)
        for name, shape in (("w", (1, 20, 4)), ("r", (1, 20, 5)))
    ]
    model = model_of(nodes, {"x": (FLOAT, [3, 2, 4])}, {"y": (FLOAT, [3, 1, 2, 5])}, constants)
    loaded = jitdnn.onnx.prepare(model, device="cuda")
    x = random.random((3, 2, 4)).astype(np.float32)
    for _ in range(2):
        loaded.run([x])
    found = counted(lambda: loaded.run([x]))
    assert found["cuGraphLaunch"] == 1 + own
    assert "cuLaunchKernel" not in found
