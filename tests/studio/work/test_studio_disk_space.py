"""Disk: what is counted, what may go, what depends on it; and plug-ins that come from other packages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from jitdnn.errors import InvalidArgument
from jitdnn.studio import plugins
from jitdnn.studio.store import Store
from jitdnn.studio.work import control, disk_space
from jitdnn.studio.work.local import LocalExecutor
from jitdnn.studio.work.queue import executors_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as made:
        yield made


def add(store: Store, name: str, size: int = 1000, **values: object) -> int:
    run = store.insert("run", name=name, **{"state": "done"} | values)
    folder = store.folder(run)
    folder.mkdir(parents=True)
    (folder / "best.npz").write_bytes(bytes(size))
    (folder / "snap_iter_9.jdsnap").write_bytes(bytes(3 * size))
    store.add_points(run, [("loss", 1, 2.0)])
    return run


def test_what_takes_up_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data = store.insert("dataset", name="digits")
    store.data_folder(data).mkdir(parents=True)
    (store.data_folder(data) / "train_data.npy").write_bytes(bytes(7000))
    run = add(store, "a")
    (store.folder(run) / "link").symlink_to("/")  # which is not followed
    found = disk_space.usage(store)
    assert (found["runs"], found["datasets"]) == ({run: 4000}, {data: 7000})
    assert found["total"] == 11000 + found["store"] > 11000
    assert found["free"] > 0
    assert (found["quota"], found["warning"]) == (None, "")
    store.set_setting("quota", 10_000)
    assert "its quota is 0 MiB" in disk_space.usage(store)["warning"]
    store.set_setting("quota", 1 << 50)
    store.set_setting("least_free", 1 << 60)
    assert "no training starts" in disk_space.usage(store)["warning"]


def test_runs_go_with_their_files_and_numbers_are_never_used_again(store: Store) -> None:
    run = add(store, "a")
    child = add(store, "b", options={"weights": f"run:{run}"})
    assert [tuple(each) for each in disk_space.dependents(store, run)] == [
        (child, "b", "began from its weights")
    ]
    disk_space.remove_run(store, child)
    disk_space.remove_run(store, run)
    assert list((store.home / "runs").iterdir()) == []
    assert store.rows("SELECT * FROM point") == []
    assert add(store, "c") == child + 1
    with pytest.raises(InvalidArgument, match="no run 1"):
        disk_space.remove_run(store, 1)
    for state in ("running", "queued"):
        busy = add(store, state, state=state)
        with pytest.raises(InvalidArgument, match=f"{state}: stop it first"):
            disk_space.remove_run(store, busy)
        assert (store.folder(busy) / "best.npz").exists()


def test_a_sweep_goes_with_its_trials(store: Store) -> None:
    data = store.insert("dataset", name="digits")
    store.data_folder(data).mkdir(parents=True)
    sweep = store.insert("run", name="sweep", kind="sweep", state="done", dataset=data)
    trials = [add(store, "trial", parent=sweep, dataset=data) for _ in range(2)]
    copy = add(store, "copy", parent=trials[0], dataset=data)
    with pytest.raises(InvalidArgument, match="sweep of 2 trials"):
        disk_space.remove_run(store, sweep)
    disk_space.remove_run(store, sweep, with_trials=True)
    assert [row["id"] for row in store.rows("SELECT id FROM run")] == [copy]


def test_only_what_is_spare_is_tidied(store: Store) -> None:
    run, going = add(store, "done"), add(store, "paused", state="paused")
    for name in (".removed-7-ab", "4711", "not ours"):
        (store.home / "runs" / name).mkdir()
        (store.home / "runs" / name / "file").write_bytes(bytes(5))
    (store.home / "studio.sqlite.schema-1.copy").write_bytes(bytes(11))
    found = {spare.key: spare.bytes for spare in disk_space.spares(store)}
    assert found == {
        f"snapshots/{run}": 3000,
        "runs/.removed-7-ab": 5,
        "runs/4711": 5,
        "studio.sqlite.schema-1.copy": 11,
    }
    for wrong in ("runs/not ours", "../x", f"snapshots/{going}", "studio.sqlite"):
        with pytest.raises(InvalidArgument, match="is nothing that can go"):
            disk_space.tidy(store, [next(iter(found)), wrong])
    assert disk_space.tidy(store, list(found)) == 3021
    assert disk_space.spares(store) == []
    assert (store.folder(run) / "best.npz").exists()
    assert control.resume(store, going) == "queued"
    assert (store.folder(going) / "snap_iter_9.jdsnap").exists()


def test_plug_ins_that_fail_are_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = "jitdnn.studio.executors"
    points = [
        EntryPoint("good", "jitdnn.studio.work.local:LocalExecutor", group),
        EntryPoint("missing", "jitdnn_no_such_package:make", group),
        EntryPoint("wrong", "os:getpid", group),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == points[0].group else [])
    with caplog.at_level(logging.WARNING, "jitdnn"):
        found = executors_of(store)
    assert [type(each) for each in found] == [LocalExecutor, LocalExecutor]
    assert "the plug-in missing (jitdnn_no_such_package:make) is left out" in caplog.text
    assert "the executor wrong is left out: TypeError" in caplog.text
    assert plugins.load("data") == {}
    with pytest.raises(InvalidArgument, match="data, views, nets, executors"):
        plugins.load("pages")
