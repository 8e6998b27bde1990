"""`jitdnn train --on`: at workers of a Dask cluster, one of which goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jitdnn.caffe import load_solver, snapshot
from jitdnn.cluster.engine import Engine
from jitdnn.cluster.places import deaths_in_a_row, devices_of, resources_of
from jitdnn.cluster.shipping import ship
from jitdnn.errors import DeviceError, InvalidArgument

pytest.importorskip("distributed", reason="the extra `cluster`")

from dask_cluster import Cluster
from other_processes import is_running, wait_until
from paths import ROOT

if not Path("/proc/self/stat").exists():
    pytest.skip("processes are found in /proc", allow_module_level=True)

NET = """layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "digits.npz" batch_size: 8 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10
weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 3 display: 100 net: "net.prototxt"
max_iter: %d snapshot: 100 snapshot_prefix: "%s" %s
"""
PATIENCE = 300.0


def write(folder: Path, iterations: int, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    data = random.normal(size=(50, 1, 6, 6)).astype(np.float32)
    np.savez(folder / "digits.npz", data=data, label=random.integers(0, 10, 50))
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER % (iterations, folder / "net", more))
    return folder / "solver.prototxt"


def train(solver: Path, cluster: Cluster, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jitdnn", "train", str(solver), "--on", cluster.address, *more],
        env={**os.environ, "JITDNN_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def weights(file: Path) -> dict[str, np.ndarray]:
    return snapshot.read(file).arrays


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Cluster(folder)
    yield made
    made.close()


def test_a_worker_that_is_killed_is_followed_by_another_one_once(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("first", "second"):
        cluster.add(name)
    solver = write(tmp_path / "here", 2500)
    process = train(solver, cluster)
    here = solver.parent
    try:
        wait_until(lambda: list(here.glob("net_iter_*.jdsnap")) or process.poll() is not None)
        assert process.poll() is None, (*process.communicate(), cluster.logs())
        [(name, training)] = cluster.busy().items()
        cluster.kill(name)
        wait_until(lambda: not is_running(training), 60)
        [left] = cluster.workers
        wait_until(lambda: cluster.busy() or process.poll() is not None)
        assert list(cluster.busy()) == [left]
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, (output, errors, cluster.logs())
    assert output.count("Solving") == 2
    assert output.count("started again from net_iter_") == 1
    assert f"Snapshotting to {here}/net_iter_2500.jdsnap" in output
    assert (here / "net_iter_2500.caffemodel").exists()
    wait_until(lambda: not list((cluster.folder / left).rglob("jitdnn-*")), 60)
    alone = write(tmp_path / "alone", 2500)
    load_solver(alone).solve()
    expected = weights(alone.parent / "net_iter_2500.jdsnap")
    found = weights(here / "net_iter_2500.jdsnap")
    for key, array in expected.items():
        assert np.array_equal(found[key], array), key


def test_ctrl_c_stops_with_a_snapshot_and_the_run_goes_on_from_it(cluster: Cluster, tmp_path: Path) -> None:
    solver = write(tmp_path / "here", 1_000_000)
    here = solver.parent
    process = train(solver, cluster)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "waiting for a worker with cpu=1\n"  # there is none yet
    cluster.add("late")
    while "Iteration 100," not in line:
        line = process.stdout.readline()
        assert line, (process.communicate(), cluster.logs())
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, (output, errors)
    newest = snapshot.newest(str(here / "net"))
    assert newest is not None
    assert f"jitdnn train {solver} --on {cluster.address} --resume {newest}" in output
    stopped = snapshot.read(newest).meta["iteration"]
    write(here, stopped + 150)
    process = train(solver, cluster, "--resume", str(newest))
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (output, errors)
    assert snapshot.read(here / f"net_iter_{stopped + 150}.jdsnap").meta["iteration"] == stopped + 150


def test_exit_codes_and_messages_are_those_of_here(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("one")
    solver = write(tmp_path / "here", 10)
    (solver.parent / "digits.npz").write_bytes(b"no archive")
    process = train(solver, cluster)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "digits.npz" in output
    process = train(solver, cluster, "--gpu", "0,1")
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no worker has cuda:0=1 cuda:1=1: there are workers with cpu=1" in errors
    assert not list(solver.parent.glob("net_iter*"))


def test_two_processes_at_one_worker(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="several processes need PyTorch")
    cluster.add("wide", "cpu=2")
    solver = write(tmp_path / "here", 200)
    process = train(solver, cluster, "--processes", "2", "--shard-state")
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (output, errors, cluster.logs())
    alone = write(tmp_path / "alone", 200)
    load_solver(alone).solve()
    expected = weights(alone.parent / "net_iter_200.jdsnap")
    for key, array in weights(solver.parent / "net_iter_200.jdsnap").items():
        np.testing.assert_allclose(array, expected[key], atol=1e-5, err_msg=key)


def test_what_is_sent_names_files_by_their_whole_paths(tmp_path: Path) -> None:
    solver = write(tmp_path / "here", 10, 'test_net: "net.prototxt" test_iter: 1 test_interval: 5')
    made = ship(str(solver))
    made.solver.clear("random_seed")
    (tmp_path / "there").mkdir()
    sent = tmp_path / "there" / "solver.prototxt"
    sent.write_text(made.text(str(tmp_path / "there")))
    solver.with_name("net.prototxt").unlink()
    there = load_solver(sent)
    assert there.snapshot_prefix == str(tmp_path / "there" / "net")
    assert there.net.layers[0].parameter.data_param.source == str(tmp_path / "here" / "digits.npz")
    assert len(there.test_nets) == 1
    assert made.prefix == tmp_path / "here" / "net"
    for name in ("net_iter_5.jdsnap", "net_iter_12.caffemodel"):
        assert made.is_snapshot(name)
    for name in (
        "net_iter_x.jdsnap",
        "net.jdsnap",
        "other_iter_5.jdsnap",
        "net_iter_5.jdsnap.sh",
        "../net_iter_5.jdsnap",
    ):
        assert not made.is_snapshot(name)


@pytest.mark.parametrize(
    ("address", "tls", "reason"),
    [
        ("127.0.0.1:8786", (), "no address of a scheduler"),
        ("tcp://", (), "no address of a scheduler"),
        ("tls://127.0.0.1:1", (), "takes --tls-ca-file, --tls-cert and --tls-key"),
        ("tcp://127.0.0.1:1", ("a", "a", "a"), "tcp:// none of them"),
        ("tls://127.0.0.1:1", ("/no/such", "/no/such", "/no/such"), "there is no file /no/such"),
    ],
)
def test_addresses_that_cannot_be_are_refused(address: str, tls: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        Engine.at(address, [Path(file) for file in tls])


def test_a_scheduler_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.cluster.engine._SECONDS", 0.5)
    with pytest.raises(DeviceError, match=r"no scheduler of Dask answers at tcp://127\.0\.0\.1:1"):
        Engine.at("tcp://127.0.0.1:1")


def test_devices_and_deaths() -> None:
    assert resources_of("cuda:0+cuda:1") == {"cuda:0": 1, "cuda:1": 1}
    assert resources_of("cpu*2") == {"cpu": 2}
    assert devices_of("cpu*2") == ["cpu", "cpu"]
    assert devices_of("cuda:1") == ["cuda:1"]
    assert deaths_in_a_row(0, None, 0) == 1
    assert deaths_in_a_row(1, 0, 0) == 2
    assert deaths_in_a_row(2, 10, 11) == 1


def test_the_example_of_the_page_makes_a_cluster(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "studio_work.md").read_text()
    [example] = re.findall(r"```python\n(.*?LocalCluster.*?)```", page, re.S)
    script = tmp_path / "cluster.py"
    script.write_text(example.replace("8786", "0"))
    program = subprocess.Popen(
        [sys.executable, "-u", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert program.stdout is not None
        found = re.search(r"--on (tcp://\S+)", program.stdout.readline())
        assert found is not None
        solver = write(tmp_path / "here", 100)
        command = [sys.executable, "-m", "jitdnn", "train", str(solver), "--on", found[1]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        assert (solver.parent / "net_iter_100.jdsnap").exists()
        program.communicate("\n", timeout=60)
    finally:
        program.kill()
        program.communicate()
