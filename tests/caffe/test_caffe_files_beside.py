"""Snapshots and weights that a thread writes while training goes on: the same files, in order, and no error is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import Solver, load_solver, snapshot
from jitdnn.caffe.events import Finished, Iterated, Snapshotted
from jitdnn.caffe.files_beside import FilesBeside
from jitdnn.errors import SnapshotError
from jitdnn.files import write_whole

NET = """
layer { name: "d" type: "DummyData" top: "data" top: "wanted" dummy_data_param {
  shape { dim: 5 dim: 3 } shape { dim: 5 dim: 2 } data_filler { type: "gaussian" } data_filler { type: "uniform" } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "wanted" top: "loss" }
"""


def solver_of(folder: Path, listener: Any = None, fields: str = "", **options: Any) -> Solver:
    folder.mkdir(exist_ok=True)
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 12 snapshot: 4 random_seed: 3 '
        + fields
    )
    return load_solver(
        folder / "solver.prototxt", listener=listener, snapshot_prefix=str(folder / "s"), **options
    )


@pytest.mark.parametrize("fields", ["", "ema_decay: 0.9", "snapshot_diff: true", 'type: "Adam"'])
def test_files_are_those_of_a_training_that_waits_for_them(tmp_path: Path, fields: str) -> None:
    found = []
    for name, is_beside in (("waits", False), ("beside", True)):
        solver_of(tmp_path / name, fields=fields, writes_beside=is_beside).solve()
        found.append([(tmp_path / name / f"s_iter_{at}.jdsnap").read_bytes() for at in (4, 8, 12)])
    assert found[0] == found[1]
    resumed = solver_of(tmp_path / "beside", fields=fields, writes_beside=True)
    (tmp_path / "beside" / "s_iter_12.jdsnap").unlink()
    resumed.solve(tmp_path / "beside" / "s_iter_8.jdsnap")
    assert (tmp_path / "beside" / "s_iter_12.jdsnap").read_bytes() == found[0][2]


def hold(monkeypatch: pytest.MonkeyPatch, name: str) -> Event:
    """Have files of that name wait until the event is set before they are written."""
    let = Event()

    def write(path: Path, fill: Callable[[Any], object]) -> None:
        if path.name == name:
            let.wait()
        write_whole(path, fill)

    for module in ("snapshot", "weights"):
        monkeypatch.setattr(f"jitdnn.caffe.{module}.write_whole", write)
    return let


def test_training_goes_on_meanwhile_and_each_is_whole_before_the_next_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = hold(monkeypatch, "s_iter_4.jdsnap")
    told: list[Any] = []

    def listen(event: Any) -> None:
        if isinstance(event, Iterated | Finished):
            told.append(event.iteration if isinstance(event, Iterated) else "end")
        if isinstance(event, Snapshotted):
            assert snapshot.read(event.path).meta["iteration"] == event.iteration
            told.append(("snapshot", event.iteration))
        if isinstance(event, Iterated) and event.iteration == 7:
            assert list(tmp_path.glob("folder/*.jdsnap")) == []
            let.set()
        if isinstance(event, Iterated) and event.iteration == 8:
            assert ("snapshot", 4) in told
            assert not (tmp_path / "folder" / "s_iter_8.jdsnap").exists()

    solver_of(tmp_path / "folder", listen, writes_beside=True).solve()
    assert told[-2:] == [("snapshot", 12), "end"]
    assert [each for each in told if isinstance(each, tuple)] == [("snapshot", at) for at in (4, 8, 12)]


def test_weights_are_those_of_when_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = hold(monkeypatch, "best.npz")
    weights: list[Any] = []
    done: list[int] = []

    def listen(event: Any) -> None:
        if isinstance(event, Iterated) and event.iteration == 2:
            weights.append(solver.net.weights["ip"][0].data.copy())
            solver.save_weights_beside(tmp_path / "best.npz", lambda: done.append(solver.iteration))
        if isinstance(event, Iterated) and event.iteration == 3:
            assert not done
            let.set()

    solver = solver_of(tmp_path, listen, writes_beside=True)
    solver.step(4)
    assert done in ([3], [4])
    np.testing.assert_array_equal(np.load(tmp_path / "best.npz")["ip/0"], weights[0])
    assert not np.array_equal(solver.net.weights["ip"][0].data, weights[0])


def test_an_error_ends_training_before_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def write(path: Path, fill: Callable[[Any], object]) -> None:
        tried.append(path.name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jitdnn.caffe.snapshot.write_whole", write)
    told: list[Any] = []
    solver = solver_of(tmp_path, told.append, writes_beside=True)
    with pytest.raises(SnapshotError, match=r"s_iter_4\.jdsnap: .*No space left") as caught:
        solver.solve()
    assert isinstance(caught.value.__cause__, OSError)
    assert tried == ["s_iter_4.jdsnap"]
    assert 4 <= solver.iteration <= 8
    assert not any(isinstance(event, Snapshotted | Finished) for event in told)
    monkeypatch.undo()
    solver.solve()  # once there is room it goes on
    assert snapshot.read(tmp_path / "s_iter_12.jdsnap").meta["iteration"] == 12


def test_an_error_at_the_end_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = solver_of(tmp_path, writes_beside=True)
    (tmp_path / "s_iter_4.jdsnap").mkdir()  # which no file can be renamed over
    with pytest.raises(SnapshotError, match="s_iter_4"):
        solver.step(4)


def test_what_is_begun_becomes_whole_where_training_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = hold(monkeypatch, "s_iter_4.jdsnap")

    def listen(event: Any) -> None:
        if isinstance(event, Iterated) and event.iteration == 5:
            let.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solver_of(tmp_path, listen, writes_beside=True).solve()
    assert snapshot.read(tmp_path / "s_iter_4.jdsnap").meta["iteration"] == 4


@pytest.mark.parametrize("options", [{"memory_limit": "1 MiB"}, {"caffe_files": True}, {}])
def test_others_wait_for_their_snapshots(tmp_path: Path, options: dict[str, Any]) -> None:
    def listen(event: Any) -> None:
        if isinstance(event, Iterated) and event.iteration == 5:
            assert (tmp_path / "s_iter_4.jdsnap").exists()

    solver_of(tmp_path, listen, writes_beside=bool(options), **options).solve()
    beside = [
        name for name in ("s_iter_12.caffemodel", "s_iter_12.solverstate") if (tmp_path / name).exists()
    ]
    assert len(beside) == 2 * ("caffe_files" in options)


def test_behind_one_that_fails_none_is_written() -> None:
    files = FilesBeside(is_beside=True)
    let = Event()
    written: list[int] = []

    def fail() -> None:
        let.wait()
        raise SnapshotError("no room")

    def all_of_them() -> None:
        with files.until_written():
            files.put(fail, written.append)
            files.put(lambda: written.append(1), written.append)
            let.set()
            with pytest.raises(SnapshotError, match="no room"):
                files.wait()
            files.put(lambda: written.append(2), written.append)
            files.wait()

    with pytest.raises(SnapshotError, match="no room"):
        all_of_them()
    assert written == []
    with files.until_written():
        files.put(lambda: 3, written.append)
    assert written == [3]
