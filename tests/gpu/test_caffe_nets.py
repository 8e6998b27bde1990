"""Caffe's nets with their blobs on a GPU: the results are the processor's, and nothing moves that need not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from caffe_cases import HOSTED, LENET, RECURRENT, RESIDUAL, SOLVER, assert_equal, close, layer, pair
from jitdnn.caffe import Solver, load_net, load_solver
from jitdnn.caffe.events import Iterated
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.tensor import DeviceArray
from lone_group import LoneGroup


@pytest.mark.parametrize(
    "text", [LENET, RESIDUAL, HOSTED, RECURRENT], ids=["lenet", "residual", "hosted", "recurrent"]
)
def test_passes_are_those_of_the_processor(text: str, name: str) -> None:
    cpu, gpu = pair(text, name)
    for _ in range(2):
        for net in (cpu, gpu):
            net.clear_gradients()
            net.forward()
            net.backward()
        assert gpu.loss == pytest.approx(cpu.loss, rel=1e-5)
        assert_equal(cpu, gpu)
    for one, two in zip(cpu.layers, gpu.layers, strict=True):  # statistics of BatchNorm
        for weight, other in zip(one.weights, two.weights, strict=True):
            close(other.read(), weight.read(), one.name)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (LENET, ""),
        (RESIDUAL, "iter_size: 2 clip_gradients: 0.5"),
        (LENET, 'type: "Adam" momentum2: 0.9'),
        (RECURRENT, ""),
    ],
    ids=["lenet", "residual, several batches", "adam", "recurrent"],
)
def test_training_is_that_of_the_processor(text: str, more: str, name: str) -> None:
    solvers = [
        load_solver(f"net_param {{ {text} }} {SOLVER} {more}", device=where) for where in ("cpu", name)
    ]
    for solver in solvers:
        solver.step(3)
    for one, two in zip(solvers[0].net.parameters, solvers[1].net.parameters, strict=True):
        largest = np.abs(one.blob.data).max()
        np.testing.assert_allclose(
            two.blob.data, one.blob.data, rtol=0, atol=1e-4 * largest, err_msg=one.name
        )
    for key, history in solvers[0].method.history.items():
        largest = np.abs(history).max(initial=1e-3)
        np.testing.assert_allclose(solvers[1].method.history[key], history, rtol=0, atol=1e-3 * largest)


@pytest.mark.parametrize("text", [LENET, RESIDUAL, HOSTED], ids=["lenet", "residual", "hosted"])
def test_blobs_that_share_memory_give_the_same(text: str, name: str) -> None:
    solvers = [
        load_solver(f"net_param {{ {text} }} {SOLVER}", device=name, keep_blobs=keep)
        for keep in (True, False)
    ]
    for solver in solvers:
        solver.step(4)
    for one, two in zip(*(solver.net.parameters for solver in solvers), strict=True):
        np.testing.assert_array_equal(two.blob.data, one.blob.data, err_msg=one.name)
    shared = solvers[1].net.shared
    assert shared is not None
    assert shared.bytes > 0
    assert shared.refusal is None


def test_launches_for_all_weights_give_the_same(name: str, request: pytest.FixtureRequest) -> None:
    """Updates, gradients that are cleared and statistics of BatchNorm, one by one and many in a launch."""
    if name.startswith("cuda"):
        pytest.skip("there is no other way on CUDA")
    found = []
    for is_at_once in (False, True):
        if is_at_once:
            request.getfixturevalue("at_once")
        solver = load_solver(f"net_param {{ {RESIDUAL} }} {SOLVER} clip_gradients: 0.5", device=name)
        solver.step(3)
        assert bool(solver.net.fusion.statistics._layers) == is_at_once
        found.append([weight.read() for weights in solver.net.weights.values() for weight in weights])
        found[-1] += list(solver.method.history.values())
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_blobs_stay_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = load_solver(f"net_param {{ {LENET} }} {SOLVER}", device=name, keep_blobs=True)
    solver.step(2)
    copied: list[int] = []
    device = solver.net.device
    assert device is not None
    download = type(device).download

    def counted(self: Any, array: DeviceArray, values: Any) -> None:
        copied.append(values.nbytes)
        download(self, array, values)

    monkeypatch.setattr(type(device), "download", counted)
    solver.step(3)
    assert copied == []
    assert isinstance(solver.net.blobs["conv1"].values, DeviceArray)
    assert solver.net.blobs["conv1"].read().shape == (4, 8, 12, 11)
    assert copied == [4 * 4 * 8 * 12 * 11]


def test_what_the_host_writes_goes_up(name: str) -> None:
    cpu, gpu = pair(LENET, name)
    for net in (cpu, gpu):
        net.forward()
        net.weights["conv1"][0].data[0] = 1
        net.weights["ip2"][1].data[...] = [1, 2, 3, 4, 5]
        net.clear_gradients()
        net.forward()
        net.blobs["ip2"].data[...] *= 2
        net.backward()
    assert_equal(cpu, gpu)


def test_a_layer_on_the_host_is_told_and_computes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    text = LENET + layer("top", "ArgMax", "ip2", rest="argmax_param { top_k: 2 }")
    cpu, gpu = pair(text, name)
    with jd.settings(log="warning"):
        for net in (cpu, gpu):
            net.clear_gradients()
            net.forward()
            net.backward()
    assert_equal(cpu, gpu)
    assert any("'top' (ArgMax) has no kernels for GPUs" in one.getMessage() for one in caplog.records)


def test_states_of_sequences_are_exchanged(name: str) -> None:
    cpu, gpu = pair(RECURRENT, name)
    for net in (cpu, gpu):
        net.forward()
    place = [one.name for one in cpu.layers].index("lstm")
    gpu.layers[place].restore(cpu.layers[place].state())
    assert gpu.layers[place].state()["carry"] == cpu.layers[place].state()["carry"]
    for net in (cpu, gpu):
        net.forward()
    close(gpu.blobs["lstm"].read(), cpu.blobs["lstm"].data)


def test_weights_and_snapshots_are_exchanged(name: str, tmp_path: Path) -> None:
    text = f"net_param {{ {LENET} }} {SOLVER} snapshot_prefix: '{tmp_path / 's'}'"
    gpu: Solver = load_solver(text, device=name)
    gpu.step(2)
    path = gpu.snapshot()
    gpu.step(2)
    for where in ("cpu", name):
        other = load_solver(text, device=where)
        other.restore(path)
        other.step(2)
        for one, two in zip(gpu.net.parameters, other.net.parameters, strict=True):
            largest = np.abs(one.blob.data).max()
            np.testing.assert_allclose(two.blob.data, one.blob.data, rtol=0, atol=1e-4 * largest)


def test_test_nets_share_the_weights(name: str) -> None:
    text = f"net_param {{ {LENET} }} {SOLVER} test_iter: 1 test_interval: 5 test_initialization: false"
    solver = load_solver(text, device=name)
    solver.step(2)
    loss = solver.test(0).outputs
    weight = solver.net.weights["conv1"][0]
    assert solver.test_nets[0].weights["conv1"][0].values.pointer == weight.values.pointer
    assert all(np.isfinite(output.value) for output in loss)


@pytest.mark.parametrize("text", [LENET, RECURRENT], ids=["lenet", "recurrent"])
def test_graphs_and_single_calls_give_the_same(text: str, name: str) -> None:
    """Dropout and the rate of learning change from one launch to the next."""
    if not name.startswith("cuda"):
        pytest.skip("graphs are there for CUDA")
    found = []
    for graph in (True, False):
        solver = load_solver(f"net_param {{ {text} }} {SOLVER}", device=name, graph=graph)
        solver.step(6)
        found.append([parameter.blob.data.copy() for parameter in solver.net.parameters])
        assert np.isfinite(float(solver._losses[-1]))
        assert (solver._graph is not None and solver._graph.is_captured) == graph
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_limit_on_memory_is_for_the_processor(name: str) -> None:
    with pytest.raises(NotSupported, match="a limit on memory for a net on"):
        load_net(LENET, "TRAIN", device=name).limit_memory("1 GiB")


def test_labels_are_checked_where_the_host_has_them(name: str) -> None:
    net = load_net(LENET.replace("value: 2 }", "value: 7 }"), "TRAIN", device=name)
    with pytest.raises(InvalidArgument, match="label 7 is outside of 0"):
        net.forward()


@pytest.mark.parametrize(
    ("text", "shards_state"), [(LENET, True), (RESIDUAL, False)], ids=["lenet", "residual"]
)
def test_a_group_of_one_process_changes_nothing(text: str, shards_state: bool, name: str) -> None:
    def train(**options: Any) -> tuple[Solver, list[float]]:
        losses: list[float] = []
        made = load_solver(
            f"net_param {{ {text} }} {SOLVER} clip_gradients: 5",
            device=name,
            listener=lambda event: losses.append(float(event.loss)) if isinstance(event, Iterated) else None,
            **options,
        )
        made.step(3)
        return made, losses

    alone, expected = train()
    together, found = train(group=LoneGroup(), shards_state=shards_state)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for one, other in zip(alone.net.parameters, together.net.parameters, strict=True):
        close(other.blob.data, one.blob.data, one.name)
