"""A solver of Caffe's nets over the stand-in for the driver: the calls of an iteration, which becomes a graph."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from caffe_cases import LENET, RESIDUAL, SMALL, SOLVER, SOURCES, layer
from fake_driver import calls, fail, fresh  # noqa: F401
from jitdnn.caffe import load_net, load_solver
from jitdnn.handle import Handle
from jitdnn.rtcg.use import noting
from lone_group import LoneGroup


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


def test_all_weights_are_updated_by_few_launches() -> None:
    """And cleared by none, and all statistics of BatchNorm take one."""
    made = solver(RESIDUAL)
    launched: list[Any] = []
    launch = Handle.launch

    def noted(self: Handle, stream: Any, kernel: Any, pointers: Any, *more: Any) -> None:
        launched.append(tuple(pointers))
        launch(self, stream, kernel, pointers, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "launch", noted)
        made.step(4)
    assert made._graph.is_captured
    for step in (made.method._step, made.net.fusion.statistics._step):
        (table,) = step._tables.young.values()
        # in each of two iterations, and in the one that is captured
        assert launched.count((table.pointer,)) == 3
    assert not len(made.net.gradients._zero._tables)
    groups = made._steps._early._ready
    assert [len(group) for group in groups.values()] == [len(made.net.parameters)]


def test_large_weights_are_updated_as_they_are_whole() -> None:
    made = solver(RESIDUAL.replace("num_output: 5", "num_output: 300000"))
    (first, *_), (*_, last) = made._steps._early._ready.values()
    assert [parameter.name.partition("/")[0] for parameter in (first, last)] == ["ip", "conv1"]
    made.step(3)
    assert made._graph.is_captured


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


@pytest.mark.parametrize("source", ["arrays.npz", "mapped"])
def test_images_of_a_source_go_up_as_bytes(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration has as many copies as on the host's way, waits for no stream, and takes no memory."""
    images = {"data": np.zeros((7, 3, 12, 11), np.uint8), "label": np.arange(7) % 3}
    np.savez(tmp_path / "arrays.npz", **images)
    (tmp_path / "mapped").mkdir()
    for name, values in images.items():
        np.save(tmp_path / "mapped" / f"{name}.npy", values)
    data = (
        'layer { name: "in" type: "Data" top: "data" top: "label" '
        f'data_param {{ source: "{tmp_path / source}" batch_size: 4 }} transform_param {{ mirror: true }} }}\n'
    )
    names = ("cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuStreamSynchronize", "cuMemAllocHost_v2")
    found = []
    for is_raw in (True, False):
        if not is_raw:
            monkeypatch.setattr("jitdnn.caffe.layers.data.refusal", lambda *_: "of the test")
        made = solver(SMALL.replace(SOURCES, data))
        made.step(9)
        assert made._graph.is_captured
        assert (made.net.layers[0]._upload is not None) == is_raw
        before = [calls(name) for name in names]
        made.step(5)
        found.append([calls(name) - was for name, was in zip(names, before, strict=True)])
    raw, host = found
    assert raw[:3] == [host[0], 5, 0]
    # there are two batches by then, and never more than six: four made ahead, one taken, one on its way up
    assert raw[3] <= 4


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


def test_all_code_is_compiled_before_the_first_iteration(tmp_path: Path) -> None:
    with jd.settings(cache=True, cache_dir=tmp_path):
        made = solver(SMALL)
        made.method.prepare(0.1, 0)
        before = {name: blob.memory for name, blob in made.net.blobs.items()}
        with noting() as ahead:
            made.net.prepare_code(backward=True, more=made.method.apply)
        assert {name: blob.memory for name, blob in made.net.blobs.items()} == before
        with noting() as later:
            made.step(3)
        assert len(ahead.compiled) > 5
        assert len(later.compiled) <= 1  # the sum of losses, which is read beside the passes


def test_layers_that_cannot_be_planned_ahead_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = solver()
    monkeypatch.setattr(type(made.net.layers[1]), "forward", lambda *_: 1 / 0)
    with noting() as ahead:
        made.net.prepare_code(backward=True)
    assert len(ahead.keys) > 5
    monkeypatch.undo()
    made.step(1)


@pytest.mark.parametrize("values", [{"choice": "find"}, {"compile": "background"}], ids=str)
def test_nothing_is_compiled_ahead_where_algorithms_are_measured_or_stand_in(values: Any) -> None:
    made = solver()
    with jd.settings(**values), noting() as ahead:
        made.net.prepare_code(backward=True)
    assert not ahead.keys


def test_a_net_that_is_compiled_already_is_not_planned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.ops.ahead.ENOUGH", 3)
    solver().step(1)
    made = solver()
    planned: list[Any] = []
    plan = Handle.plan

    def noted(self: Handle, *given: Any) -> Any:
        if not self.launches:
            planned.append(given)
        return plan(self, *given)

    monkeypatch.setattr(Handle, "plan", noted)
    made.net.prepare_code(backward=True)
    assert len(planned) == 3


@pytest.mark.parametrize("shards_state", [False, True])
def test_what_processes_exchange_stands_between_graphs(shards_state: bool) -> None:
    group = LoneGroup()
    made = solver(RESIDUAL, group=group, shards_state=shards_state)
    made.step(3)
    assert made._graph.is_captured
    kinds = ("sum", "gather_parts", "start_scatter" if shards_state else "start_sum")
    counted = [group.calls[kind] for kind in kinds]
    before = calls("cuGraphLaunch"), calls("cuStreamBeginCapture"), calls("cuStreamSynchronize")
    made.step(4)
    sums, gathers, buckets = (group.calls[kind] - was for kind, was in zip(kinds, counted, strict=True))
    # of each iteration: two normalizations forward and backward, labels that count, the loss; the weights
    assert (sums, gathers) == (
        4 * (2 + 1 + 1),
        4 * (2 + (len(made._parallel.buckets.buckets) if shards_state else 0)),
    )
    agreed = 0 if shards_state else 4
    assert buckets == 4 * len(made._parallel.buckets.buckets) + agreed
    launches = calls("cuGraphLaunch") - before[0]
    assert launches >= 4 * 6
    assert calls("cuStreamBeginCapture") == before[1]
    assert calls("cuStreamSynchronize") == before[2]


@pytest.mark.parametrize("text", [LENET, RESIDUAL], ids=["lenet", "residual"])
def test_blobs_share_a_block_that_stays(text: str) -> None:
    made, kept = solver(text), solver(text, keep_blobs=True)
    for each in (made, kept):
        each.step(3)
        assert each._graph.is_captured
    shared = made.net.shared
    lent = shared._lent
    (memory,) = {id(synced.device().memory) for _, synced in lent}
    assert id(made.net.parameters[0].blob.values.memory) != memory
    captures = calls("cuStreamBeginCapture_v2")
    made.step(3)
    assert shared._lent is lent
    assert calls("cuStreamBeginCapture_v2") == captures
    assert shared.bytes < 0.8 * sum(tenant.need.bytes for tenant, _ in lent)
    with pytest.raises(jd.InvalidArgument, match="keep_blobs=True"):
        made.net.blobs["conv1"].read()
    made.step(3)  # with memory of their own, by a graph that is captured anew
    assert calls("cuStreamBeginCapture_v2") > captures
    assert made.net.blobs["conv1"].read().shape == kept.net.blobs["conv1"].shape
    assert made._graph.is_captured


def test_nets_that_test_lie_in_the_same_block() -> None:
    more = "test_iter: 1 test_interval: 4 test_initialization: false"
    made = load_solver(f"net_param {{ {LENET} }} {SOLVER} {more}", device="cuda")
    made.step(4)
    captures = calls("cuStreamBeginCapture_v2")
    tested = made.test_nets[0].shared
    made.step(6)  # with tests in between
    assert 0 < tested.bytes < made.net.shared.bytes == tested._block.bytes
    assert calls("cuStreamBeginCapture_v2") == captures
    (one,), (other,) = (
        {synced.device().memory for _, synced in shared._lent} for shared in (made.net.shared, tested)
    )
    assert one is other
