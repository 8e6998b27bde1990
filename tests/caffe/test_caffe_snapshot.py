"""Snapshots: exact resume in another process, written whole or not at all, damage found, a way out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.caffe import Solver, load_solver, snapshot
from jitdnn.caffe.snapshot import DamagedSnapshotError
from jitdnn.errors import SnapshotError
from jitdnn.files import write_whole

# dropout, random crops and mirrors, a start at random, averaged losses, a policy with a state, tests that do
# not end where the data do: all that a resume could lose
NET = """
  layer {{ name: "d" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
           data_param {{ source: "{source}" batch_size: 7 rand_skip: 9 }}
           transform_param {{ crop_size: 6 mirror: true scale: 0.01 }} }}
  layer {{ name: "d" type: "Data" top: "data" top: "label" include {{ phase: TEST }}
           data_param {{ source: "{source}" batch_size: 5 }}
           transform_param {{ crop_size: 6 mirror: true scale: 0.01 }} }}
  layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
           param {{ lr_mult: 1 }} param {{ lr_mult: 2 }}
           convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
  layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }}
  layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
           inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" std: 0.1 }} }} }}
  layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
           include {{ phase: TEST }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
SOLVER = """
  lr_policy: "multistep" base_lr: 0.05 gamma: 0.5 stepvalue: 4 stepvalue: 8 stepvalue: 15
  momentum: 0.9 weight_decay: 0.001 max_iter: 20 iter_size: 2 average_loss: 6 display: 4
  test_iter: 3 test_interval: 5 snapshot: 10
"""


@pytest.fixture
def text(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (40, 2, 8, 9), np.uint8)
    np.savez(tmp_path / "images.npz", data=data, label=random.integers(0, 3, 40))
    net = NET.format(source=tmp_path / "images.npz")
    return f'net_param {{ {net} }} {SOLVER} snapshot_prefix: "{tmp_path}/run"'


# a process of its own: train, from a snapshot if one is named; print all that was told and all that is left
PROCESS = """
import hashlib, json, sys
from jitdnn.caffe import load_solver
text, iterations, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3]
told = []
def listen(event):
    told.append(repr(event).split(", iterations_per_second")[0])
solver = load_solver(text, listener=listen, seed=12 if not resume else 99)
if resume:
    solver.restore(resume)
solver.step(iterations)
left = {}
for p in solver.net.parameters:
    both = (p.blob.data, solver.method.history[p.name])
    left[p.name] = [hashlib.sha256(array.tobytes()).hexdigest() for array in both]
print(json.dumps([told, left, solver.rate.current_step]))
"""


def in_a_process(text: str, iterations: int, resume: Path | None = None) -> Any:
    arguments = [sys.executable, "-c", PROCESS, text, str(iterations), str(resume or "")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_resume_is_exact_in_another_process(text: str, tmp_path: Path) -> None:
    told, left, step = in_a_process(text, 20)
    halfway, _, _ = in_a_process(text, 10)
    told_after, left_after, step_after = in_a_process(text, 10, tmp_path / "run_iter_10.jdsnap")
    assert halfway + told_after == told
    assert sum("Iterated" in event for event in told_after) == 10
    assert sum("accuracy" in event for event in told_after) == 2
    assert (left_after, step_after) == (left, step)
    assert step == 3


def test_resume_in_the_same_solver(text: str) -> None:
    """Going back to a snapshot after more training gives the same updates again."""
    solver = load_solver(text, seed=3)
    solver.step(3)
    path = solver.snapshot()
    solver.step(2)
    once = {p.name: p.blob.data.copy() for p in solver.net.parameters}
    solver.restore(path)
    assert solver.iteration == 3
    solver.step(2)
    for parameter in solver.net.parameters:
        np.testing.assert_array_equal(parameter.blob.data, once[parameter.name])


def test_solve_resumes(text: str, tmp_path: Path) -> None:
    solver = load_solver(text, seed=3)
    solver.step(10)
    other = load_solver(text, seed=4)
    other.solve(tmp_path / "run_iter_10.jdsnap")
    assert other.iteration == 20
    assert (tmp_path / "run_iter_20.jdsnap").exists()


# ---- the file


ARRAYS = {
    "weights/a/0": np.arange(6, dtype=np.float32).reshape(2, 3),
    "history/a/0": np.linspace(0, 1, 5),
    "weights/scalar": np.array(2.5, np.float32),
    "weights/empty": np.zeros((0, 3), np.float32),
    "weights/big": np.full((50, 40), 7, ">f4"),
}
META = {"iteration": 3, "losses": [0.1, 1e-300], "large": 2**127}


def good_file(path: Path) -> Path:
    snapshot.write(path, META, ARRAYS)
    return path


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    meta, arrays = snapshot.read(good_file(tmp_path / "x_iter_3.jdsnap"))
    assert meta == META
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype.newbyteorder("<")
    assert [path.name for path in tmp_path.iterdir()] == ["x_iter_3.jdsnap"]


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_one_changed_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: float, change: int
) -> None:
    path = good_file(tmp_path_factory.mktemp("flip") / "x_iter_3.jdsnap")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= change
    path.write_bytes(content)
    with pytest.raises(DamagedSnapshotError):
        snapshot.read(path)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_found(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = good_file(tmp_path_factory.mktemp("cut") / "x_iter_3.jdsnap")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DamagedSnapshotError):
        snapshot.read(path)


def test_a_file_that_is_longer_is_found(tmp_path: Path) -> None:
    path = good_file(tmp_path / "x_iter_3.jdsnap")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DamagedSnapshotError, match="checksum"):
        snapshot.read(path)


def test_the_newest_good_one_is_offered(tmp_path: Path) -> None:
    for iteration in (5, 20, 100, 90):
        good_file(tmp_path / f"x_iter_{iteration}.jdsnap")
    good_file(tmp_path / "xy_iter_500.jdsnap")
    (tmp_path / "x_iter_90.jdsnap").write_bytes(b"")
    path = tmp_path / "x_iter_100.jdsnap"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=r"x_iter_100.* is damaged.*x_iter_20\.jdsnap") as caught:
        snapshot.read(path)
    assert isinstance(caught.value, DamagedSnapshotError)
    assert caught.value.previous == tmp_path / "x_iter_20.jdsnap"
    assert snapshot.newest(str(tmp_path / "x")) == tmp_path / "x_iter_20.jdsnap"
    assert snapshot.newest(str(tmp_path / "z")) is None
    assert snapshot.newest(str(tmp_path / "nowhere" / "z")) is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file") as caught:
        snapshot.read(tmp_path / "x_iter_1.jdsnap")
    assert isinstance(caught.value, DamagedSnapshotError)
    assert caught.value.previous is None


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot write"):
        snapshot.write(tmp_path / "no" / "x_iter_1.jdsnap", META, ARRAYS)


# ---- killed while writing

# waits, once half of the second snapshot is in its file, for the signal that kills it
KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from jitdnn.caffe import snapshot
folder, place = Path(sys.argv[1]), sys.argv[2]
arrays = {"weights/a": np.ones(100_000, np.float32)}
snapshot.write(folder / "x_iter_1.jdsnap", {"iteration": 1}, arrays)
def wait(*arguments):
    print("now", flush=True)
    time.sleep(60)
if place == "before the rename":
    snapshot.write.__globals__["write_whole"].__globals__["os"].replace = wait
else:
    parts = snapshot._parts
    def half(*arguments):
        whole = parts(*arguments)
        yield from whole[:-1]
        yield bytes(whole[-1])[:200_000]
        wait()
    snapshot._parts = half
snapshot.write(folder / "x_iter_2.jdsnap", {"iteration": 2}, {"weights/a": np.zeros(100_000, np.float32)})
"""


@pytest.mark.parametrize("place", ["half-way", "before the rename"])
@pytest.mark.parametrize("is_overwriting", [False, True])
def test_sigkill_leaves_the_last_good_snapshot(tmp_path: Path, place: str, is_overwriting: bool) -> None:
    if is_overwriting:
        snapshot.write(tmp_path / "x_iter_2.jdsnap", {"iteration": -2}, ARRAYS)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        (unfinished,) = tmp_path.glob(".*.unfinished")
        assert unfinished.stat().st_size >= 200_000
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
    assert unfinished.exists()
    newest = snapshot.newest(str(tmp_path / "x"))
    assert newest is not None
    assert snapshot.read(newest).meta["iteration"] == (-2 if is_overwriting else 1)
    assert (snapshot.read(tmp_path / "x_iter_1.jdsnap").arrays["weights/a"] == 1).all()
    # the next write clears up what the dead process left
    snapshot.write(tmp_path / "x_iter_3.jdsnap", META, ARRAYS)
    assert not list(tmp_path.glob(".*"))


def test_what_a_running_process_writes_is_left_alone(tmp_path: Path) -> None:
    others = tmp_path / f".x_iter_9.jdsnap.{socket.gethostname()}.{os.getppid()}.unfinished"
    others.touch()
    elsewhere = tmp_path / ".x_iter_9.jdsnap.another-host.999999999.unfinished"
    elsewhere.touch()
    good_file(tmp_path / "x_iter_1.jdsnap")
    assert others.exists()
    assert elsewhere.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, lambda file: file.write(b"old"))

    def fail(file: Any) -> None:
        file.write(b"new")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# ---- a snapshot of something else


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("num_output: 3", "num_output: 4", r"weights/ip/0 is float32 of shape \(3, 64\)"),
        (
            '"conv" type: "Convolution"',
            '"convolution" type: "Convolution"',
            "history/conv/0 is only in the snapshot",
        ),
        ('name: "drop"', 'name: "dropped"', "'drop' there is 'dropped' here"),
        ("test_iter: 3 test_interval: 5", "", "with 1 test nets, this one has 0"),
    ],
)
def test_snapshots_of_other_nets(text: str, old: str, new: str, reason: str) -> None:
    path = load_solver(text, seed=1).snapshot()
    other = load_solver(text.replace(old, new), seed=1)
    before = [parameter.blob.data.copy() for parameter in other.net.parameters]
    with pytest.raises(SnapshotError, match=reason):
        other.restore(path)
    for parameter, values in zip(other.net.parameters, before, strict=True):
        np.testing.assert_array_equal(parameter.blob.data, values)


def test_snapshots_of_other_precision_versions_and_data(text: str, tmp_path: Path) -> None:
    solver = load_solver(text, seed=1)
    path = solver.snapshot()
    with pytest.raises(SnapshotError, match=r"float32 .* float64"):
        load_solver(text, dtype="f64").restore(path)
    meta, arrays = snapshot.read(path)
    snapshot.write(path, {**meta, "schema": 99}, arrays)
    with pytest.raises(SnapshotError, match="schema 99, this version reads 1"):
        solver.restore(path)
    snapshot.write(path, {**meta, "method": "Adam"}, arrays)
    with pytest.raises(SnapshotError, match="of type Adam, this one is SGD"):
        solver.restore(path)
    snapshot.write(path, meta, arrays)
    with np.load(tmp_path / "images.npz") as file:
        fewer = {name: file[name][:30] for name in file.files}
    np.savez(tmp_path / "images.npz", **fewer)
    with pytest.raises(SnapshotError, match="has 30 images, and had 40"):
        load_solver(text).restore(path)


def test_damage_is_told_by_the_solver(text: str) -> None:
    solver: Solver = load_solver(text, seed=1)
    good = solver.snapshot()
    solver.step(1)
    bad = solver.snapshot()
    bad.write_bytes(bad.read_bytes()[:5000])
    with pytest.raises(SnapshotError, match="the newest good one is") as caught:
        solver.restore(bad)
    assert isinstance(caught.value, DamagedSnapshotError)
    assert caught.value.previous == good


def test_a_snapshot_says_what_it_is_of(text: str) -> None:
    solver = load_solver(text, seed=1)
    meta, arrays = snapshot.read(solver.snapshot())
    assert "SoftmaxWithLoss" in meta["net"]
    assert "multistep" in meta["solver"]
    assert set(arrays) == {
        f"{part}/{p.name}" for p in solver.net.parameters for part in ("weights", "history")
    }
