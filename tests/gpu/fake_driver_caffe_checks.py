"""A solver of Caffe's nets over the stand-in for the driver: the calls of an iteration, which becomes a graph."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from fake_driver import calls, fail, fresh  # noqa: F401
from jitdnn.caffe import load_net, load_solver
from test_caffe_nets import LENET, RESIDUAL, SOLVER, layer


def solver(text: str = LENET, **options: Any) -> Any:
    return load_solver(f"net_param {{ {text} }} {SOLVER}", device="cuda", **options)


@pytest.mark.parametrize("text", [LENET, RESIDUAL], ids=["lenet", "residual"])
def test_iterations_become_one_launch(text: str) -> None:
    made = solver(text)
    made.step(3)
    assert made._graph.is_captured
    names = (
        "cuStreamBeginCapture",
        "cuGraphLaunch",
        "cuMemcpyDtoHAsync",
        "cuStreamSynchronize",
        "cuLaunchKernelEx",
    )
    before = [calls(name) for name in names]
    made.step(5)
    after = [calls(name) for name in names]
    captures, launches, downs, waits, kernels = (b - a for a, b in zip(before, after, strict=True))
    assert (captures, launches, downs, waits) == (0, 5, 0, 0)
    assert kernels <= 5  # the loss is summed up beside the graph


def test_without_graphs_and_for_layers_on_the_host() -> None:
    for made in (solver(graph=False), solver(LENET + layer("top", "ArgMax", "ip2"))):
        before = calls("cuGraphLaunch")
        made.step(4)
        assert calls("cuGraphLaunch") == before


def test_weights_that_the_host_writes_go_up_before_a_launch() -> None:
    made = solver()
    made.step(3)
    made.net.weights["conv1"][0].data[...] = 1
    before = calls("cuMemcpyHtoDAsync_v2"), calls("cuStreamBeginCapture")
    made.step(1)
    assert calls("cuMemcpyHtoDAsync_v2") > before[0]
    assert calls("cuStreamBeginCapture") == before[1]


def test_other_shapes_are_captured_anew() -> None:
    made = solver()
    made.step(3)
    before = calls("cuStreamBeginCapture_v2")
    made.net.blobs["norm1"].reshape((1,))
    made.net.reshape()
    made.step(2)
    assert calls("cuStreamBeginCapture_v2") > before


def test_a_capture_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = solver()
    made.step(2)
    fail("cuGraphInstantiateWithFlags", 2)
    made.step(2)
    assert not made._graph.is_captured
    assert any("its capture failed" in record.getMessage() for record in caplog.records)


def test_page_locked_memory_outlives_its_blob() -> None:
    net = load_net(LENET, "TRAIN", device="cuda", seed=1)
    net.forward()
    held = net.blobs["data"].data
    assert calls("cuMemAllocHost_v2")
    before = calls("cuMemFreeHost")
    net.blobs["data"].release()
    del net
    gc.collect()
    held[...] = 1
    assert calls("cuMemFreeHost") < calls("cuMemAllocHost_v2")
    del held
    gc.collect()
    assert calls("cuMemFreeHost") > before
