"""The queue: order, places, workers that die, servers that follow each other; and what users ask of runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitdnn.errors import DeviceError, InvalidArgument, StoreError
from jitdnn.studio.file_locks import is_locked
from jitdnn.studio.store import Store
from jitdnn.studio.work import control, disk_space
from jitdnn.studio.work.executor import Job, Place
from jitdnn.studio.work.local import LocalExecutor
from jitdnn.studio.work.queue import Queue
from jitdnn.studio.work.run_access import locked
from studio_runs import curves_of, make_run, row_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as made:
        yield made


class Pretended:
    """An executor whose workers are entries of a dictionary; tests say what becomes of them."""

    name = "pretended"

    def __init__(self, *places: Place) -> None:
        self.found: list[Place] = list(places) or [Place("here", "cpu", "processor")]
        self.alive: dict[Job, bool] = {}
        self.error = ""

    def places(self) -> Sequence[Place]:
        return self.found

    def start(self, job: Job) -> None:
        if self.error:
            raise DeviceError(self.error)
        self.alive[job] = True

    def is_alive(self, job: Job) -> bool:
        return self.alive.get(job, False)

    def ending(self, job: Job) -> str:
        return "the worker was ended by SIGKILL"

    def end(self, job: Job) -> None:
        self.alive[job] = False

    def close(self) -> None:
        self.error = "closed"


def states(store: Store) -> list[str]:
    return [row["state"] for row in store.rows("SELECT state FROM run ORDER BY id")]


def runs(store: Store, count: int, **values: object) -> list[int]:
    return [store.insert("run", name=str(number), **values) for number in range(count)]


def finish(store: Store, executor: Pretended, run: int, state: str = "done") -> None:
    store.update("run", run, state=state)
    for job in executor.alive:
        if job.run == run:
            executor.alive[job] = False


def test_runs_start_by_priority_then_order_then_age(store: Store) -> None:
    executor = Pretended()
    queue = Queue(store, [executor])
    first, second, third, fourth = runs(store, 4)
    control.set_priority(store, third, 5)
    control.reorder(store, [fourth, second])
    assert [row["id"] for row in control.queue(store)] == [third, fourth, second, first]
    for run in (third, fourth, second, first):
        queue.step()
        queue.step()
        row = row_of(store, run)
        assert (row["state"], row["lease"]) == ("running", 1)
        assert states(store).count("running") == 1
        finish(store, executor, run)
    queue.step()
    assert states(store) == ["done"] * 4
    with pytest.raises(InvalidArgument, match="-100 to 100"):
        control.set_priority(store, first, 101)


def test_runs_go_where_they_want(store: Store) -> None:
    gpus = [Place("here", "cuda:0", "H100"), Place("here", "cuda:1", "H100")]
    executor = Pretended(*gpus, Place("here", "cpu", "processor", slots=2))
    queue = Queue(store, [executor])
    wants = ["cpu", "cpu", "cpu", "cuda:1", "", "cuda", "opencl:0"]
    made = [store.insert("run", name=want, wants=want) for want in wants]
    queue.step()
    devices = {job.run: job.place.device for job in executor.alive}
    assert [devices.get(run) for run in made] == ["cpu", "cpu", None, "cuda:1", "cuda:0", None, None]
    finish(store, executor, made[4])
    queue.step()
    assert states(store) == ["running", "running", "queued", "running", "done", "running", "queued"]
    executor.found = gpus[:1]
    queue._looked = -1e9
    queue.step()
    places = {row["device"]: row["state"] for row in store.rows("SELECT * FROM place")}
    assert places == {"cuda:0": "free", "cuda:1": "gone", "cpu": "gone"}
    [place] = store.rows("SELECT id FROM place WHERE device = 'cuda:0'")
    store.update("place", place["id"], state="off")  # by its user
    finish(store, executor, made[5])
    queue.step()
    store.update("run", made[6], wants="")
    queue.step()
    assert row_of(store, made[6])["state"] == "queued"
    store.update("place", place["id"], state="free")
    store.update("run", made[6], wants=f"#{place['id']}")
    queue.step()
    assert row_of(store, made[6])["state"] == "running"


def test_a_run_whose_worker_dies_is_queued_again_but_not_for_ever(store: Store) -> None:
    executor = Pretended()
    queue = Queue(store, [executor])
    run, other = runs(store, 2)
    for iteration, lease in ((0, 1), (100, 2), (200, 3), (200, 4)):
        queue.step()
        assert row_of(store, run)["lease"] == lease
        store.update("run", run, iteration=iteration)
        executor.end(Job(run, lease, executor.found[0]))
        queue.step()
        assert row_of(store, run)["lease"] == lease + 1  # at once, and before the other one
        assert row_of(store, other)["state"] == "queued"
    executor.end(Job(run, 5, executor.found[0]))
    queue.step()
    row = row_of(store, run)
    assert (row["state"], row["message"]) == ("interrupted", "the worker was ended by SIGKILL")
    assert row_of(store, other)["state"] == "running"
    marks = [row["text"] for row in store.rows("SELECT text FROM mark WHERE run = ?", run)]
    assert marks == ["the worker was ended by SIGKILL; queued to go on"] * 4 + [
        "the worker was ended by SIGKILL"
    ]
    finish(store, executor, other)
    assert control.resume(store, run) == "queued"
    queue.step()
    assert row_of(store, run)["state"] == "running"
    control.pause(store, run)
    executor.end(Job(run, 6, executor.found[0]))
    queue.step()
    assert row_of(store, run)["state"] == "paused"


def test_a_worker_that_cannot_be_started_leaves_a_reason(store: Store) -> None:
    executor = Pretended()
    executor.error = "the host is not there"
    [run] = runs(store, 1)
    Queue(store, [executor]).step()
    row = row_of(store, run)
    assert (row["state"], row["message"]) == ("interrupted", "the host is not there")


def test_no_run_starts_without_room_on_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [100]
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0] << 20))
    store.set_setting("least_free", 50 << 20)
    run = make_run(store)
    (store.folder(run) / "snap_iter_20.jdsnap").write_bytes(bytes(20 << 20))
    queue = Queue(store, [Pretended()])
    queue.step()
    row = row_of(store, run)
    assert (row["state"], row["message"]) == (
        "queued",
        "waits for room on the disk: 100 MiB are free, and 130 MiB should be",
    )
    free[0] = 140
    queue.step()
    assert (row_of(store, run)["state"], row_of(store, run)["message"]) == ("running", "")


def test_what_users_ask_of_runs(store: Store) -> None:
    [run] = runs(store, 1)
    assert control.pause(store, run) == "paused"
    assert control.pause(store, run) == "paused"
    assert control.resume(store, run) == "queued"
    assert control.stop(store, run) == "stopped"
    assert control.resume(store, run) == "queued"
    store.update("run", run, state="running")
    assert control.pause(store, run) == "running"
    assert row_of(store, run)["intent"] == "pause"
    assert control.resume(store, run) == "running"
    assert row_of(store, run)["intent"] == ""
    store.update("run", run, state="done")
    for ask in (control.pause, control.stop, control.resume):
        with pytest.raises(InvalidArgument, match="run 1 is done"):
            ask(store, run)
        with pytest.raises(InvalidArgument, match="no run 77"):
            ask(store, 77)


def test_nothing_is_asked_of_a_run_whose_files_are_being_written(store: Store) -> None:
    run, trial = runs(store, 1, state="preparing") + runs(store, 1, state="preparing", trial={"number": 1})
    for ask in (control.pause, control.stop, control.resume, disk_space.remove_run):
        with pytest.raises(InvalidArgument, match="run 1 is preparing"):
            ask(store, run)
    control.end_preparing(store)  # by the next server, if this one is killed
    assert states(store) == ["failed", "preparing"]
    assert "begin a copy" in row_of(store, run)["message"]
    with pytest.raises(InvalidArgument, match="begin a copy of it"):
        control.resume(store, run)
    store.folder(run).mkdir(parents=True)
    (store.folder(run) / "solver.prototxt").write_text("")  # it failed later, while it trained
    assert control.resume(store, run) == "queued"
    assert row_of(store, trial)["message"] == ""


def test_one_server_a_home(store: Store) -> None:
    with locked(store.home / "server.lock"), pytest.raises(StoreError, match="another studio serves"):
        asyncio.run(Queue(store, [Pretended()]).serve())
    assert not is_locked(store.home / "server.lock")


def test_the_queue_goes_on_after_a_look_that_failed(store: Store) -> None:
    """One that is raised by a full disk or an executor must not leave all that waits waiting for ever."""
    (run,) = runs(store, 1)
    executor = Pretended()
    found, looks = executor.places, 0

    def places() -> Sequence[Place]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("the driver was being changed")
        return found()

    executor.places = places  # type: ignore[method-assign]

    async def serve() -> None:
        serving = asyncio.create_task(Queue(store, [executor]).serve())
        try:
            while row_of(store, run)["state"] != "running":
                assert not serving.done(), serving.exception()
                await asyncio.sleep(0.02)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(serve(), 20))


_SERVER = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from jitdnn.studio.store import Store
from jitdnn.studio.work.local import LocalExecutor
from jitdnn.studio.work.queue import Queue
store = Store(Path(sys.argv[1]))
executor = LocalExecutor(store)
executor._devices = []
asyncio.run(Queue(store, [executor]).serve())
"""


def test_a_new_server_adopts_what_lives_and_queues_what_died(store: Store) -> None:
    """Servers and workers are killed in turn; the run ends once, with each point."""
    run = make_run(store, 100_000, snapshot=100, test=0)
    server = _serve(store)
    _wait_for(lambda: row_of(store, run)["iteration"] > 10)
    worker = row_of(store, run)["pid"]
    server.kill()
    server.wait()
    server = _serve(store)
    _wait_for(lambda: is_locked(store.home / "server.lock"))
    told = row_of(store, run)["iteration"]
    _wait_for(lambda: row_of(store, run)["iteration"] > told + 100)
    assert row_of(store, run)["lease"] == 1  # adopted
    server.kill()
    server.wait()
    os.kill(worker, signal.SIGKILL)
    server = _serve(store)
    _wait_for(lambda: row_of(store, run)["lease"] == 2 and row_of(store, run)["pid"] not in (None, worker))
    told = row_of(store, run)["iteration"]
    _wait_for(lambda: row_of(store, run)["iteration"] > told)
    control.pause(store, run)
    _wait_for(lambda: row_of(store, run)["state"] == "paused")
    end = row_of(store, run)["iteration"]
    assert curves_of(store, run)["loss"][0] == list(range(1, end + 1))
    server.kill()
    server.wait()
    assert "Error" not in (store.folder(run) / "worker.log").read_text()


def test_the_local_executor_ends_what_an_earlier_one_started(store: Store) -> None:
    run = make_run(store, 1_000_000, test=0, state="running", lease=1)
    first, second = LocalExecutor(store), LocalExecutor(store)
    job = Job(run, 1, Place("here", "cpu", "processor"))
    assert not second.is_alive(job)
    first.start(job)
    assert first.is_alive(job)
    _wait_for(lambda: row_of(store, run)["iteration"] > 0)
    assert second.is_alive(job)
    second.end(job._replace(lease=2))  # of another start: nothing
    assert first.is_alive(job)
    second.end(job)
    _wait_for(lambda: not first.is_alive(job))
    assert first.ending(job) == "the worker was ended by SIGKILL"
    assert first.ending(job) == second.ending(job) == ""
    for executor in (first, second):
        executor.close()


def _serve(store: Store) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _SERVER, str(store.home)])


def _wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
