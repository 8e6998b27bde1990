"""`jitdnn train` in several processes: who reports, what is written, and what happens when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from jitdnn.caffe import load_solver, snapshot
from jitdnn.distributed import start as join
from jitdnn.distributed.launch import launch, place
from jitdnn.errors import InvalidArgument, NotSupported, ProcessGroupError

SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 type: "SGD" random_seed: 3 display: 5
max_iter: {iterations} snapshot: 20 snapshot_prefix: "{prefix}"
net_param {{
  layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "package:data/mnist_5k.npz#train"
  batch_size: 8 }} }} layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{
  num_output: 10 weight_filler {{ type: "xavier" }} }} }} layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip"
  bottom: "label" top: "loss" }}
}}
"""
PATIENCE = 300.0


def start(folder: Path, iterations: int, *more: str, text: str = SOLVER) -> subprocess.Popen[str]:
    solver = folder / "solver.prototxt"
    solver.write_text(text.format(iterations=iterations, prefix=folder / "net"))
    return subprocess.Popen(
        [sys.executable, "-m", "jitdnn", "train", str(solver), *more],
        env={**os.environ, "JITDNN_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = entry.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == process:
            found.append(int(name.split()[0]))
    return sorted(found)


def wait_for(process: subprocess.Popen[str], folder: Path, pattern: str = "net_iter_*.jdsnap") -> None:
    ends = time.monotonic() + PATIENCE
    while not list(folder.glob(pattern)):
        assert time.monotonic() < ends, "no snapshot came"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def kill_one(process: subprocess.Popen[str], folder: Path, pattern: str = "net_iter_*.jdsnap") -> None:
    """Kill the second process of a run when there is a snapshot."""
    wait_for(process, folder, pattern)
    os.kill(children(process.pid)[-1], signal.SIGKILL)


def weights(folder: Path, iterations: int) -> np.ndarray:
    return snapshot.read(folder / f"net_iter_{iterations}.jdsnap").arrays["weights/ip/0"]


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")


@needs_proc
def test_a_killed_process_ends_the_run_and_leaves_a_good_snapshot(tmp_path: Path) -> None:
    process = start(tmp_path, 100_000, "--processes", "2")
    kill_one(process, tmp_path)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "process 1 of 2 was ended by SIGKILL" in errors
    assert output.count("Solving") == 1  # the first process alone reports
    newest = snapshot.newest(str(tmp_path / "net"))
    assert newest is not None
    iterations = snapshot.read(newest).meta["iteration"] + 20
    resumed = start(tmp_path, iterations, "--resume", str(newest))
    assert not resumed.wait(PATIENCE), resumed.communicate()
    resumed.communicate()
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = start(whole, iterations, "--processes", "2", "--shard-state")
    assert not undisturbed.wait(PATIENCE), undisturbed.communicate()
    undisturbed.communicate()
    np.testing.assert_allclose(weights(tmp_path, iterations), weights(whole, iterations), atol=1e-5)


def strangers(folder: Path, iteration: int) -> Path:
    """A snapshot of this net under the prefix of the run, which another run took."""
    text = SOLVER.format(iterations=1, prefix=folder / "net")
    made = load_solver(text, snapshot_prefix=str(folder / "other"), run=["another run"])
    made.step(1)
    return made.snapshot(snapshot.path_of(str(folder / "net"), iteration))


@needs_proc
def test_a_killed_process_is_started_again_from_the_newest_snapshot_of_its_run(tmp_path: Path) -> None:
    strangers(tmp_path, 10_000)
    process = start(tmp_path, 600, "--processes", "2", "--max-restarts", "1")
    kill_one(process, tmp_path, "net_iter_?0.jdsnap")
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "started again: going on from" in output
    assert "net_iter_10000" not in output
    assert (tmp_path / "net_iter_600.jdsnap").exists()


@needs_proc
def test_a_run_that_took_no_snapshot_is_started_again_where_it_began(tmp_path: Path) -> None:
    strangers(tmp_path, 10_000)
    first = strangers(tmp_path, 7)
    solver = SOLVER.replace("snapshot: 20", "snapshot: 0")
    more = ("--processes", "2", "--max-restarts", "1", "--resume", str(first))
    process = start(tmp_path, 900, *more, text=solver)
    assert process.stdout is not None
    while "Iteration 5," not in (line := process.stdout.readline()):
        assert line or process.poll() is None, process.communicate()
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert output.count("Solving") == 1
    assert "going on from" not in output
    one = tmp_path / "one"
    one.mkdir()
    alone = start(one, 900, "--resume", str(first), text=solver)
    assert not alone.wait(PATIENCE), alone.communicate()
    alone.communicate()
    np.testing.assert_allclose(weights(tmp_path, 900), weights(one, 900), atol=1e-5)


@needs_proc
def test_processes_end_when_their_launcher_was_killed(tmp_path: Path) -> None:
    process = start(tmp_path, 1_000_000, "--processes", "2")
    wait_for(process, tmp_path)
    found = children(process.pid)
    assert len(found) == 2
    process.kill()
    process.communicate()
    ends = time.monotonic() + 20
    while any(Path(f"/proc/{each}").exists() and not is_zombie(each) for each in found):
        assert time.monotonic() < ends, "processes train on"
        time.sleep(0.05)


def is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_command_that_fails_everywhere_says_so() -> None:
    with pytest.raises(ProcessGroupError, match=r"process \d of 2 failed with exit code 1"):
        launch(["train", "/there/is/no/such.prototxt"], 2)


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
