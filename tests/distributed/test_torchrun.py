"""Literal torchrun: two processes of one agent, and two agents of which one is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jitdnn.caffe import load_solver, snapshot
from other_processes import children, is_running, wait_until
from process_groups import free_port

pytest.importorskip("torch", reason="several processes need PyTorch")

SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 3 display: 50
max_iter: {iterations} snapshot: 50 snapshot_prefix: "{prefix}"
net_param {{
  layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "package:data/mnist_5k.npz#train"
  batch_size: 8 }} }} layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{
  num_output: 10 weight_filler {{ type: "xavier" }} }} }} layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip"
  bottom: "label" top: "loss" }}
}}
"""
PATIENCE = 240.0


def torchrun(folder: Path, iterations: int, *more: str) -> subprocess.Popen[str]:
    solver = folder / "solver.prototxt"
    solver.write_text(SOLVER.format(iterations=iterations, prefix=folder / "net"))
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *more, "-m", "jitdnn", "train", str(solver)],
        env={
            **os.environ,
            "JITDNN_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def expected(folder: Path, iterations: int) -> np.ndarray:
    text = SOLVER.format(iterations=iterations, prefix=folder / "alone")
    made = load_solver(text)
    made.solve()
    weight: np.ndarray = made.net.parameters[0].blob.data
    return weight


def weight(folder: Path, iterations: int) -> np.ndarray:
    return snapshot.read(folder / f"net_iter_{iterations}.jdsnap").arrays["weights/ip/0"]


def answers(port: int) -> bool:
    with socket.socket() as found:
        return not found.connect_ex(("localhost", port))


def test_processes_of_torchrun(tmp_path: Path) -> None:
    run = torchrun(tmp_path, 100, "--nproc-per-node", "2", "--master-port", str(free_port()))
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, output
    assert output.count("Solving") == 1
    np.testing.assert_allclose(weight(tmp_path, 100), expected(tmp_path, 100), atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_of_two_agents_one_is_killed_and_the_other_one_goes_on(tmp_path: Path) -> None:
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    port = free_port()
    words = (
        "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "run",
        "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", conf, "--local-addr", "localhost",
    )  # fmt: skip
    # what an earlier run of this name left there
    other = SOLVER.format(iterations=1, prefix=tmp_path / "net")
    made = load_solver(other, run=["run/elsewhere"])
    made.step(1)
    made.snapshot(tmp_path / "net_iter_99999.jdsnap")
    iterations = 2000
    first = torchrun(tmp_path, iterations, *words)
    wait_until(lambda: answers(port))  # so that the rendezvous is with it
    second = torchrun(tmp_path, iterations, *words)
    try:
        wait_until(lambda: (tmp_path / "net_iter_50.jdsnap").exists() or first.poll() is not None, PATIENCE)
        assert first.poll() is None, first.communicate()
        # the first agent began alone if the second one came late, and is joined by it then
        wait_until(lambda: children(second.pid) or first.poll() is not None, PATIENCE)
        [rank] = children(second.pid)
        second.send_signal(signal.SIGKILL)
        output, _ = first.communicate(timeout=PATIENCE)
        assert not is_running(rank)
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()
    assert first.returncode == 0, output
    assert "started again: going on from" in output
    assert "net_iter_99999" not in output
    np.testing.assert_allclose(weight(tmp_path, iterations), expected(tmp_path, iterations), atol=1e-4)
