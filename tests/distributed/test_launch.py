"""`jitdnn train` in several processes: who reports, what is written, and what happens when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from jitdnn.caffe import load_solver, snapshot
from jitdnn.distributed import start as join
from jitdnn.distributed.launch import launch, place
from jitdnn.errors import InvalidArgument, NotSupported, ProcessGroupError
from other_processes import children, is_running
from paths import ROOT

SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 type: "SGD" random_seed: 3 display: 5
max_iter: {iterations} snapshot_prefix: "{prefix}"
net_param {{
  layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "package:data/mnist_5k.npz#train"
  batch_size: 8 }} }} layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{
  num_output: 10 weight_filler {{ type: "xavier" }} }} }} layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip"
  bottom: "label" top: "loss" }}
}}
"""
PATIENCE = 300.0
HELPERS = ROOT / "tests" / "helpers"


def start(folder: Path, iterations: int, *more: str) -> subprocess.Popen[str]:
    solver = folder / "solver.prototxt"
    solver.write_text(SOLVER.format(iterations=iterations, prefix=folder / "net"))
    return subprocess.Popen(
        [sys.executable, "-m", "jitdnn", "train", str(solver), *more],
        env={**os.environ, "JITDNN_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")


def strangers(folder: Path, iteration: int) -> Path:
    """A snapshot of this net under the prefix of the run, which another run took."""
    text = SOLVER.format(iterations=1, prefix=folder / "net")
    made = load_solver(text, snapshot_prefix=str(folder / "other"), run=["another run"])
    made.step(1)
    return made.snapshot(snapshot.path_of(str(folder / "net"), iteration))


@needs_proc
def test_killed_processes_are_started_again_from_the_newest_snapshot_of_their_run(tmp_path: Path) -> None:
    """From where the run began while it took none; and when they may not be started any more, it ends."""
    stranger, first = strangers(tmp_path, 10_000), strangers(tmp_path, 7)
    more = ("--processes", "2", "--max-restarts", "2", "--shard-state", "--resume", str(first))
    process = start(tmp_path, 1_000_000, *more)
    assert process.stdout is not None
    said: list[str] = []

    def read_to(what: str) -> str:
        while not said or what not in said[-1]:
            said.append(process.stdout.readline())  # type: ignore[union-attr]
            assert said[-1], process.communicate()
        return said[-1]

    def taken_snapshot() -> str:
        os.kill(children(process.pid)[0], signal.SIGHUP)
        return read_to("Snapshotting to ").split()[-1]

    def kill(rank: int) -> None:
        ranks = children(process.pid)
        assert len(ranks) == 2
        os.kill(ranks[rank], signal.SIGKILL)

    read_to("Iteration 10,")
    kill(1)
    said.append("killed")
    read_to("Iteration 10,")
    assert "going on from" not in "".join(said)
    newest = taken_snapshot()
    kill(0)
    assert read_to("started again: going on from").split()[-1] == newest
    read_to(", lr = ")
    newest = taken_snapshot()
    kill(1)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, errors
    assert "process 1 of 2 was ended by SIGKILL" in errors
    assert "after 2 restarts" in errors
    assert "".join([*said, output]).count("Solving") == 3  # of each start the first process alone reports

    end = snapshot.read(Path(newest)).meta["iteration"] + 20
    weights = []
    for resume in (newest, first):
        solver = load_solver(SOLVER.format(iterations=end, prefix=tmp_path / "end"))
        solver.solve(resume)
        weights.append(solver.net.parameters[0].blob.data)
    np.testing.assert_allclose(*weights, atol=1e-5)
    assert snapshot.read(stranger).meta["iteration"] == 1  # nobody wrote over it


@needs_proc
def test_of_processes_the_killed_one_is_named_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By processes that train nothing."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")]))
    processes: dict[str, int] = {}

    def kill() -> None:
        ends = time.monotonic() + PATIENCE
        while len(processes) < 2 and time.monotonic() < ends:
            time.sleep(0.02)
            found = [file for file in tmp_path.iterdir() if file.name.isdecimal()]
            processes.update({file.read_text(): int(file.name) for file in found})
        os.kill(processes["1"], signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(ProcessGroupError, match="process 1 of 2 was ended by SIGKILL") as caught:
        launch([str(tmp_path)], 2, module="sleepers")
    killing.join()
    assert caught.value.rank == 1
    assert not is_running(processes["0"])


def test_a_command_that_fails_everywhere_says_so() -> None:
    with pytest.raises(ProcessGroupError, match=r"process \d of 2 failed with exit code 2"):
        launch(["train", "--no-such-option"], 2)


def test_no_processes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="0 processes"):
        launch(["train"], 0)


def test_what_torchrun_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert place() is None
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    found = place()
    assert found is not None
    assert (found.rank, found.size, found.local_rank, found.local_size, found.restarts) == (3, 4, 1, 2, 0)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InvalidArgument, match="torchrun"):
        place()


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has a GPU here")
def test_gpus_that_pytorch_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(NotSupported, match="cuda:1 reduce their gradients by NCCL"):
        join(device="cuda:1")
