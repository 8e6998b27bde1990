"""Runs of several processes, one for each device of a joint place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from jitdnn.caffe import load_solver, snapshot
from jitdnn.cluster.places import Place
from jitdnn.errors import InvalidArgument
from jitdnn.settings import settings
from jitdnn.studio.store import Store
from jitdnn.studio.work.control import pause
from jitdnn.studio.work.joint_places import checked
from jitdnn.studio.work.local import LocalExecutor
from jitdnn.studio.work.queue import Queue
from other_processes import children
from studio_runs import curves_of, make_run, row_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as made:
        yield made


def serve(queue: Queue, until: Callable[[], object], seconds: float = 300) -> None:
    ends = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < ends, "the run does not get there"
        queue.step()
        time.sleep(0.02)


def finish(executor: LocalExecutor) -> None:
    """Wait for the end of its workers."""
    for process in executor._processes.values():
        process.wait(60)
    executor.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_two_processes_train_a_run_and_one_is_killed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="several processes need PyTorch")
    monkeypatch.setattr("jitdnn.studio.work.local._gpus", lambda environment: [])
    monkeypatch.setenv("JITDNN_THREADS", "1")
    store.set_setting("cpu_slots", 2)
    store.set_setting("together", ["cpu*2"])
    run = make_run(store, 100_000, snapshot=50, test=100, wants="cpu*2")
    executor = LocalExecutor(store)
    queue = Queue(store, [executor])

    def log() -> str:
        return (store.folder(run) / "worker.log").read_text()

    over = ("failed", "interrupted", "done")
    serve(queue, lambda: list(store.folder(run).glob("snap_iter_*")) or row_of(store, run)["state"] in over)
    assert row_of(store, run)["state"] == "running", (row_of(store, run)["message"], log())
    launcher = row_of(store, run)["pid"]
    ranks = children(launcher)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    serve(queue, lambda: row_of(store, run)["lease"] == 2)
    serve(queue, lambda: row_of(store, run)["pid"] and row_of(store, run)["iteration"] > 100)
    pause(store, run)
    serve(queue, lambda: row_of(store, run)["state"] not in ("running", "queued"))
    row = row_of(store, run)
    assert (row["state"], row["lease"]) == ("paused", 2), (row["message"], log())
    assert "was ended by SIGKILL" in log()
    marks = [mark["text"] for mark in store.rows("SELECT text FROM mark ORDER BY id")]
    assert sum("of its processes one died" in mark for mark in marks) == 1
    last = row["iteration"]
    assert curves_of(store, run)["loss"][0] == list(range(1, last + 1))
    alone = store.folder(make_run(store, last, snapshot=last, test=100))
    with settings(threads=1):
        load_solver(alone / "solver.prototxt", snapshot_prefix=str(alone / "snap")).step(last)
    name = f"snap_iter_{last}.jdsnap"
    found, expected = (snapshot.read(folder / name).arrays for folder in (store.folder(run), alone))
    for array in expected:
        np.testing.assert_allclose(found[array], expected[array], atol=1e-3, err_msg=array)
    finish(executor)


def test_a_net_that_processes_cannot_divide_fails_with_the_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="several processes need PyTorch")
    monkeypatch.setattr("jitdnn.studio.work.local._gpus", lambda environment: [])
    monkeypatch.setenv("JITDNN_THREADS", "1")
    store.set_setting("cpu_slots", 2)
    store.set_setting("together", ["cpu*2"])
    run = make_run(store, wants="cpu*2")
    net = store.folder(run) / "net.prototxt"
    slicing = 'layer { name: "x" type: "Slice" bottom: "data" top: "a" top: "b" slice_param { axis: 0 } }'
    net.write_text(net.read_text() + slicing)
    executor = LocalExecutor(store)
    queue = Queue(store, [executor])
    serve(queue, lambda: row_of(store, run)["state"] not in ("queued", "running"))
    row = row_of(store, run)
    assert (row["state"], row["deaths"]) == ("failed", 0)
    assert "layer 'x'" in row["message"]
    finish(executor)


class Pretended:
    """An executor that starts nothing."""

    name = "pretended"

    def __init__(self, *places: Place) -> None:
        self.found = places

    def places(self) -> tuple[Place, ...]:
        return self.found

    def start(self, job: object) -> None: ...

    def is_alive(self, job: object) -> bool:
        return True

    def ending(self, job: object) -> str:
        return ""

    def end(self, job: object) -> None: ...

    def close(self) -> None: ...


def test_a_joint_place_and_its_devices_exclude_each_other(store: Store) -> None:
    devices = ("cuda:0", "cuda:1", "cuda:2", "cuda:0+cuda:1")
    places = [Place("here", device, device) for device in devices]
    there = [
        Place("there", "cuda:0+cuda:1", "both"),
        Place("there", "cpu", "cpu", 3),
        Place("there", "cpu*2", "two"),
    ]
    wants = ["cuda:0+cuda:1", "cuda:0+cuda:1", "", "", "cuda:0+cuda:1", "cpu*2", "cpu*2", "cpu"]
    runs = [store.insert("run", name="x", wants=each) for each in wants]
    queue = Queue(store, [Pretended(*places, *there)])
    queue.step()
    found = [store.one("place", row_of(store, run)["place"] or 0) for run in runs]
    names = [None if place is None else (place["host"], place["device"]) for place in found]
    assert names == [
        ("here", "cuda:0+cuda:1"), ("there", "cuda:0+cuda:1"), ("here", "cuda:2"), ("there", "cpu"), None,
        ("there", "cpu*2"), None, None,
    ]  # fmt: skip
    store.update("run", runs[0], state="done")
    queue.step()
    assert row_of(store, runs[4])["state"] == "running"
    store.update("run", runs[4], state="done")
    first = store.insert("run", name="x", wants="cuda:1")
    queue.step()
    later = store.insert("run", name="x", wants="cuda:0+cuda:1")
    queue.step()
    assert [row_of(store, each)["state"] for each in (first, later)] == ["running", "queued"]


def test_names_of_joint_places() -> None:
    for good in ("cuda:0+cuda:1", "cpu*2", "cpu*16", "opencl:0+opencl:1"):
        assert checked(good) == good
    for bad in (
        "cuda:0",
        "cpu",
        "cpu*1",
        "cpu*0",
        "cuda:0+cpu",
        "cuda:0+cuda:0",
        "cuda:0*2",
        "+",
        "",
        "cpu*99",
        "x",
    ):
        with pytest.raises(InvalidArgument, match="no devices that train together"):
            checked(bad)
