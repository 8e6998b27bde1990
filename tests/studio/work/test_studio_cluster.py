"""Trainings elsewhere: reports over TLS by a token for one start, files by their hash, Dask as the engine."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.studio.store import Store
from jitdnn.studio.work import worker
from jitdnn.studio.work.control import pause
from jitdnn.studio.work.run_access import LeaseLost, Report
from studio_runs import NET, begin, curves_of, make_run, row_of, weights_of

pytest.importorskip("starlette", reason="the extra `studio`")
pytest.importorskip("uvicorn", reason="the extra `studio`")
pytest.importorskip("cryptography", reason="the extra `cluster`")

from jitdnn.studio.work.cluster.certificates import make_certificates, server_context, worker_context
from jitdnn.studio.work.cluster.gateway import Gateway
from jitdnn.studio.work.cluster.remote import RemoteRunAccess
from jitdnn.studio.work.cluster.tokens import FILE, is_token, token_for


class Served:
    """A gateway in a thread, which can be stopped and started again at the same port."""

    def __init__(self, store: Store) -> None:
        self.store, self.tls, self.port = store, store.home / "tls", 0
        make_certificates(self.tls, "127.0.0.1")
        self.start()

    def start(self) -> None:
        import uvicorn

        config = uvicorn.Config(
            Gateway(self.store).app, host="127.0.0.1", port=self.port, log_level="error",
            ssl_certfile=str(self.tls / "server.pem"), ws="none",
        )  # fmt: skip
        config.load()
        config.ssl = server_context(self.tls)
        listener = config.bind_socket()
        self.port = listener.getsockname()[1]
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def access(self, run: int, lease: int, cache: Path, token: str | None = None) -> RemoteRunAccess:
        token = token_for(self.store.home, run, lease) if token is None else token
        made = RemoteRunAccess(self.address, run, lease, token, self.tls, cache)
        made.patience = 5.0
        return made


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("os.nice", lambda by: by)
    monkeypatch.setattr("signal.signal", lambda number, handler: handler)
    with Store(tmp_path / "home") as made:
        yield made


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    made = Served(store)
    yield made
    made.stop()


def with_data_set(store: Store, run: int) -> int:
    """Have a run read a data set of the store, as those of the studio do."""
    data = store.insert("dataset", name="small")
    folder = store.data_folder(data)
    folder.mkdir(parents=True)
    with np.load(store.folder(run) / "images.npz") as images:
        np.savez(folder / "images.npz", **images)
    (store.folder(run) / "images.npz").unlink()
    (store.folder(run) / "net.prototxt").write_text(
        NET.replace("images.npz", f"../../data/{data}/images.npz")
    )
    store.update("run", run, dataset=data)
    return data


def test_a_training_elsewhere_is_the_same_training(served: Served, store: Store, tmp_path: Path) -> None:
    here, there = make_run(store), make_run(store)
    assert worker.train(worker.StoreRunAccess(store, here, begin(store, here))) == 0
    data = with_data_set(store, there)
    cache = tmp_path / "cache"
    access = served.access(there, begin(store, there), cache)
    access.fetch()
    objects = {file: file.stat().st_ino for file in (cache / "objects").iterdir()}
    store.update("run", there, intent="pause")
    assert worker.train(access) == 0
    row = row_of(store, there)
    assert row["state"] == "paused"
    assert 0 < row["iteration"] < 60
    shutil.rmtree(cache / "homes")  # another machine, or a cleaner one, with the data set still kept
    access = served.access(there, begin(store, there), cache)
    access.fetch()
    assert objects.items() <= {file: file.stat().st_ino for file in (cache / "objects").iterdir()}.items()
    assert (access.folder.parent.parent / "data" / str(data) / "images.npz").exists()
    assert worker.train(access) == 0
    assert curves_of(store, there) == curves_of(store, here)
    assert weights_of(store, there, 60) == weights_of(store, here, 60)
    names = sorted(file.name for file in store.folder(there).glob("snap_*"))
    assert names == ["snap_iter_40.jdsnap", "snap_iter_60.jdsnap"]
    row = row_of(store, there)
    assert (row["state"], row["iteration"], row["best"]) == ("done", 60, row_of(store, here)["best"])


def test_a_server_that_is_away_for_a_while_is_waited_for(
    served: Served, store: Store, tmp_path: Path
) -> None:
    run = make_run(store)
    access = served.access(run, begin(store, run), tmp_path / "cache")
    served.stop()
    access.patience = 0.3
    with pytest.raises(StoreError, match="could not be reached"):
        access.tell(Report())
    access.patience = 60
    timer = threading.Timer(0.5, served.start)
    timer.start()
    assert access.tell(Report(marks=[(3, "told late")])) == ""
    timer.join()
    assert access.tell(Report(marks=[(3, "told late")])) == ""  # as when an answer was lost
    assert [row["text"] for row in store.rows("SELECT text FROM mark")] == ["told late"]


def test_a_token_opens_one_start_of_one_run(served: Served, store: Store, tmp_path: Path) -> None:
    run, other = make_run(store), make_run(store)
    lease = begin(store, run)
    begin(store, other)
    token = token_for(store.home, run, lease)
    assert (store.home / FILE).stat().st_mode & 0o777 == 0o600
    assert is_token(store.home, run, lease, token)
    for wrong in ("", "ü", token[:-1], token_for(store.home, run, lease + 1)):
        assert not is_token(store.home, run, lease, wrong)
    served.access(run, lease, tmp_path, token).run()
    for number, start, given in (
        (other, 1, token),
        (run, lease + 1, token),
        (run, lease, ""),
        (run, lease, "x"),
    ):
        with pytest.raises(InvalidArgument, match=r"refused .* 401"):
            served.access(number, start, tmp_path, given).run()
    begin(store, run)
    with pytest.raises(LeaseLost, match="lease 1 is over"):
        served.access(run, lease, tmp_path, token).tell(Report([("loss", 1, 2.0)]))
    assert store.series(run, "loss") == [[], []]


def test_without_a_certificate_there_is_no_connection(served: Served, store: Store, tmp_path: Path) -> None:
    url = f"{served.address}/api/work/1/1"
    context = ssl.create_default_context(cafile=str(served.tls / "ca.pem"))
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(url, timeout=10, context=context)
    make_certificates(tmp_path / "others", "127.0.0.1")
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        urllib.request.urlopen(url, timeout=10, context=worker_context(tmp_path / "others"))
    before = (served.tls / "server.pem").read_bytes()
    make_certificates(served.tls, "127.0.0.1")
    assert (served.tls / "server.pem").read_bytes() == before
    make_certificates(served.tls, "other.example")
    assert (served.tls / "server.pem").read_bytes() != before
    for name in ("ca-key.pem", "server.pem", "worker.pem"):
        assert (served.tls / name).stat().st_mode & 0o777 == 0o600


def test_a_worker_writes_only_what_is_its_own(served: Served, store: Store, tmp_path: Path) -> None:
    run = make_run(store)
    access = served.access(run, begin(store, run), tmp_path / "cache")
    (store.home / "runs" / "secret").write_text("secret")
    (store.folder(run) / "link.npz").symlink_to(store.home / "token")

    def ask(method: str, path: str, body: Any = None) -> bytes:
        return access._ask(method, path, None if body is None else json.dumps(body).encode())

    for path in ("/etc/passwd", "../secret", "runs/secret", "studio.sqlite", f"runs/{run}/link.npz", ""):
        with pytest.raises(InvalidArgument, match="404"):
            ask("GET", f"/file?path={path}")
    for name in ("../x", "net.prototxt", "snap_iter_1.jdsnap/..", "snap_iter_x.jdsnap", ""):
        with pytest.raises(InvalidArgument, match=r"400, .* is no file that a worker writes"):
            ask("PUT", f"/file?name={name}&offset=0&size=1&sha256=x", {})
        with pytest.raises(InvalidArgument, match="400"):
            ask("DELETE", f"/file?name={name}")
    for body in (
        {"values": {"lease": 9}}, {"values": {"token": "x"}}, {"values": {"state": "queued"}},
        {"values": {"intent": "stop"}}, {"values": {"loss": "high"}}, {"values": {"pid": True}},
        {"points": [["loss", -1, 1.0]]}, {"points": [["loss", 1.5, 1.0]]}, {"points": [["", 1, 1.0]]},
        {"points": [["loss", 1]]}, {"points": 7}, {"marks": [[1]]}, [], "x",
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="400"):
            ask("POST", "/report", body)
    with pytest.raises(InvalidArgument, match="400"):
        ask("PUT", "/file?name=best.npz&offset=7&size=9&sha256=x", {})
    with pytest.raises(InvalidArgument, match="came damaged"):
        ask("PUT", "/file?name=best.npz&offset=0&size=2&sha256=x", {})
    assert sorted(file.name for file in store.folder(run).iterdir()) == [
        "images.npz", "link.npz", "net.prototxt", "solver.prototxt",
    ]  # fmt: skip
    assert row_of(store, run)["state"] == "running"
    assert store.since(run).points == {}


def test_files_are_sent_in_pieces(
    served: Served, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jitdnn.studio.work.cluster.remote._PIECE", 1000)
    run = make_run(store)
    access = served.access(run, begin(store, run), tmp_path / "cache")
    access.folder.mkdir(parents=True)
    for size in (0, 1000, 3456):
        content = np.random.default_rng(size).bytes(size)
        (access.folder / "best.npz").write_bytes(content)
        access.saved(access.folder / "best.npz")
        assert (store.folder(run) / "best.npz").read_bytes() == content
    access.removed(access.folder / "best.npz")
    assert not (store.folder(run) / "best.npz").exists()


def test_dask_starts_trainings_at_its_workers(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster`")
    from jitdnn.studio.work.cluster.executor import ClusterExecutor
    from jitdnn.studio.work.queue import Queue

    executor = ClusterExecutor(store, "127.0.0.1", scheduler_port=0, gateway_port=0)
    tls = store.home / "tls"
    command = [
        sys.executable, "-m", "distributed.cli.dask_worker", executor.scheduler_address, "--no-nanny", "--no-dashboard",
        "--tls-ca-file", tls / "ca.pem", "--tls-cert", tls / "worker.pem", "--tls-key", tls / "worker.pem",
        "--nthreads", "1", "--resources", "cpu=1", "--name", "elsewhere", "--local-directory", tmp_path / "dask",
    ]  # fmt: skip
    environment = {**os.environ, "JITDNN_CACHE_DIR": str(tmp_path / "cache"), "JITDNN_THREADS": "1"}
    with open(tmp_path / "log", "wb") as log:
        dask = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        good, wrong = make_run(store), make_run(store, net="layer {")
        with_data_set(store, good)
        queue = Queue(store, [executor])
        deadline = time.monotonic() + 100
        paused = False
        while {row_of(store, good)["state"], row_of(store, wrong)["state"]} != {"done", "failed"}:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            queue._looked = -1e9
            queue.step()
            time.sleep(0.05)
            if row_of(store, good)["iteration"] and not paused:
                paused = row_of(store, good)["state"] == "done" or bool(pause(store, good))
            if row_of(store, good)["state"] == "paused":
                store.update("run", good, state="queued")
        expected = ("elsewhere", "cpu", 1, "free")
        while True:  # a busy machine's worker may be late with its word, and be taken for gone meanwhile
            [place] = store.rows("SELECT * FROM place")
            found = (place["host"], place["device"], place["slots"], place["state"])
            if found == expected:
                break
            assert time.monotonic() < deadline, found
            queue._looked = -1e9
            queue.step()
            time.sleep(0.05)
        assert curves_of(store, good)["loss"][0] == list(range(1, 61))
        assert (store.folder(good) / "best.npz").exists()
        assert "line" in row_of(store, wrong)["message"]
    finally:
        dask.kill()
        dask.wait()
        executor.close()
