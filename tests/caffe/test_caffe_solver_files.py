"""Caffe's pair of files beside a snapshot, and training that goes on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffe_protobuf
from command_line import call
from jitdnn.caffe import Solver, load_solver, pycaffe
from jitdnn.caffe.events import Event, WaitedForData
from jitdnn.caffe.solver_state import read_solverstate, write_solverstate
from jitdnn.errors import NotSupported, SnapshotError
from jitdnn.settings import settings

# dummy data that are the same in each pass, so that what differs after a resume is the solver's fault
TEXT = """
  net_param {
    layer { name: "d" type: "DummyData" top: "x" top: "label"
            dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 }
                               data_filler { value: 0.5 } data_filler { value: 1 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
            inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" }
  }
  lr_policy: "multistep" base_lr: 0.05 gamma: 0.5 stepvalue: 3 stepvalue: 5 momentum: 0.9 weight_decay: 0.01
  max_iter: 8 snapshot: 4 snapshot_after_train: false
"""


def solver(prefix: Path, form: str = "", seed: int = 1, **options: Any) -> Solver:
    field = f"snapshot_format: {form}" if form else ""
    return load_solver(f'{TEXT} {field} snapshot_prefix: "{prefix}"', seed=seed, **options)


def weights(net: Any) -> list[Any]:
    return [parameter.blob.data.copy() for parameter in net.parameters]


@pytest.mark.parametrize(("form", "twin"), [("BINARYPROTO", ""), ("HDF5", ".h5")])
def test_training_goes_on_from_caffes_pair(tmp_path: Path, form: str, twin: str) -> None:
    lines: list[str] = []

    def listener(event: Event) -> None:
        lines.extend(event.lines())

    whole = solver(tmp_path / "run", form, listener=listener)
    whole.solve()
    names = [
        f"run_iter_{n}{suffix}"
        for n in (4, 8)
        for suffix in (".jdsnap", f".caffemodel{twin}", f".solverstate{twin}")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert [line.rpartition("/")[2] for line in lines if line.startswith("Snapshotting")] == names
    state = tmp_path / f"run_iter_4.solverstate{twin}"
    resumed = solver(tmp_path / "again", form, seed=2)
    resumed.solve(state)
    assert resumed.iteration == 8
    for mine, theirs in zip(weights(resumed.net), weights(whole.net), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    exact = solver(tmp_path / "third", seed=3)
    exact.solve(tmp_path / "run_iter_4.jdsnap")
    for mine, theirs in zip(weights(exact.net), weights(whole.net), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_caffes_binary_files_by_default_where_caffe_writes_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By `jitdnn train` and by pycaffe's solvers, unless the weights are too many for them."""
    text = f'{TEXT} snapshot_prefix: "{tmp_path}/run"'
    file = tmp_path / "solver.prototxt"
    file.write_text(text)
    assert call(capsys, "train", file)[0] == 0
    names = {f"run_iter_{n}.{suffix}" for n in (4, 8) for suffix in ("jdsnap", "caffemodel", "solverstate")}
    assert {path.name for path in tmp_path.glob("run*")} == names
    again = pycaffe.get_solver(text)
    again.restore(tmp_path / "run_iter_4.solverstate")
    again.solve()
    fresh = load_solver(text)
    fresh.net.load_weights(tmp_path / "run_iter_8.caffemodel")
    for mine, theirs in zip(weights(again.core.net), weights(fresh.net), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    monkeypatch.setattr("jitdnn.caffe.solver_files.MOST_BYTES", 10)
    large = load_solver(text, caffe_files=True, snapshot_prefix=str(tmp_path / "large"))
    with settings(log="warning"):
        large.snapshot()
    assert [path.name for path in tmp_path.glob("large*")] == ["large_iter_0.jdsnap"]
    assert any("too many for Caffe's binary files" in record.getMessage() for record in caplog.records)


def test_waiting_for_data_is_a_line_where_it_matters() -> None:
    assert WaitedForData(10, 0.25, 2.0).lines() == ["    Waited 0.25 s of 2 s for data (12%)"]
    assert WaitedForData(10, 0.01, 2.0).lines() == []
    assert WaitedForData(10, 0.0, 0.0).share == 0


def test_the_state_is_what_protobuf_reads(tmp_path: Path) -> None:
    one = solver(tmp_path / "run", "BINARYPROTO")
    one.step(4)
    theirs = caffe_protobuf.classes()["SolverState"].FromString(
        (tmp_path / "run_iter_4.solverstate").read_bytes()
    )
    assert (theirs.iter, theirs.current_step) == (4, 1)
    assert theirs.learned_net == str(tmp_path / "run_iter_4.caffemodel")
    for blob, history in zip(theirs.history, one.method.history.values(), strict=True):
        np.testing.assert_array_equal(np.array(blob.data, np.float32).reshape(history.shape), history)


def test_weights_are_found_beside_a_state_that_was_moved(tmp_path: Path) -> None:
    one = solver(tmp_path / "run", "BINARYPROTO")
    one.step(4)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in tmp_path.glob("run_iter_4.*"):
        path.rename(moved / path.name)
    other = solver(tmp_path / "other", seed=2)
    other.restore(moved / "run_iter_4.solverstate")
    for mine, theirs in zip(weights(other.net), weights(one.net), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_state_of_another_net_changes_nothing(tmp_path: Path) -> None:
    one = solver(tmp_path / "run", "BINARYPROTO")
    one.step(4)
    before = weights(one.net)
    good = read_solverstate(tmp_path / "run_iter_4.solverstate")
    bad = tmp_path / "bad.solverstate"
    cases = [
        (good.learned_net, good.history[:1], "has 1 histories, and this solver 2"),
        (good.learned_net, [good.history[0].T, good.history[1]], r"ip/0 has shape \(3, 2\), here \(2, 3\)"),
        ("nowhere.caffemodel", good.history, "does not exist"),
    ]
    for learned_net, history, message in cases:
        write_solverstate(bad, 7, learned_net, history)
        with pytest.raises(SnapshotError, match=message):
            one.restore(bad)
        assert one.iteration == 4
        for mine, theirs in zip(weights(one.net), before, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    bad.write_bytes(b"\x08")
    with pytest.raises(SnapshotError, match=r"bad\.solverstate"):
        one.restore(bad)


def test_hdf5_without_h5py_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(NotSupported, match="h5py"):
        solver(tmp_path / "run", "HDF5")
