"""Two workers of Dask, one of which is killed together with its training: the other one goes on with the run, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitdnn.cluster.places import Start
from jitdnn.studio.store import Store
from jitdnn.studio.work.queue import Queue
from other_processes import children
from studio_runs import curves_of, make_run, row_of

pytest.importorskip("starlette", reason="the extra `studio`")
pytest.importorskip("uvicorn", reason="the extra `studio`")
pytest.importorskip("cryptography", reason="the extra `cluster`")
pytest.importorskip("distributed", reason="the extra `cluster`")

from jitdnn.studio.work.cluster.executor import ClusterExecutor

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")


def test_a_killed_worker_is_followed_by_the_other_one_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    executor = ClusterExecutor(store, "127.0.0.1", scheduler_port=0, gateway_port=0)
    tls = store.home / "tls"
    workers: dict[str, subprocess.Popen[bytes]] = {}
    with open(tmp_path / "log", "wb") as log:
        for name in ("one", "two"):
            command = [
                sys.executable, "-m", "distributed.cli.dask_worker", executor.scheduler_address, "--no-nanny",
                "--no-dashboard", "--tls-ca-file", tls / "ca.pem", "--tls-cert", tls / "worker.pem", "--tls-key",
                tls / "worker.pem", "--nthreads", "1", "--resources", "cpu=1", "--name", name, "--local-directory",
                tmp_path / name,
            ]  # fmt: skip
            environment = {**os.environ, "JITDNN_CACHE_DIR": str(tmp_path / name), "JITDNN_THREADS": "1"}
            workers[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    queue = Queue(store, [executor])

    def serve(until: object, seconds: float = 300) -> None:
        ends = time.monotonic() + seconds
        while not until():  # type: ignore[operator]
            assert time.monotonic() < ends, (tmp_path / "log").read_text()[-5000:]
            queue._looked = -1e9
            queue.step()
            time.sleep(0.05)

    try:
        run = make_run(store, 600, snapshot=40, test=100)
        serve(lambda: list(store.folder(run).glob("snap_iter_*")))
        before = row_of(store, run)
        assert before["state"] == "running"
        place = store.one("place", before["place"])
        assert place is not None
        [training] = children(workers[place["host"]].pid)
        for process in (workers[place["host"]].pid, training):
            os.kill(process, signal.SIGKILL)
        workers[place["host"]].wait()
        serve(lambda: row_of(store, run)["lease"] == 2)
        assert not executor._engine.knows(Start(str(run), 1))
        assert (
            f"run-{run}-1" not in executor._cluster.scheduler.tasks
        )  # nothing that Dask would start once more
        serve(lambda: row_of(store, run)["state"] in ("done", "failed", "interrupted"))
        row = row_of(store, run)
        assert (row["state"], row["lease"]) == ("done", 2), (
            row["message"],
            (tmp_path / "log").read_text()[-5000:],
        )
        second = store.one("place", row["place"])
        assert second is not None
        assert second["host"] != place["host"]
        assert curves_of(store, run)["loss"][0] == list(range(1, 601))
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
        executor.close()
        store.close()
