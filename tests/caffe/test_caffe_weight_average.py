"""ema_decay: averages of the weights, which tests, files and snapshots have."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from caffe_nets import Array
from jitdnn.caffe import Solver, events, load_net, load_solver, snapshot
from jitdnn.caffe.events import Event, Iterated
from jitdnn.errors import InvalidArgument, SnapshotError

NET = """
  name: "small"
  layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{source}" batch_size: 5 }} }}
  layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
           convolution_param {{ num_output: 3 kernel_size: 2 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }}
  layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
           inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "aside" type: "InnerProduct" bottom: "ip" top: "aside" include {{ phase: TRAIN }}
           inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "quiet" type: "Silence" bottom: "aside" include {{ phase: TRAIN }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
SOLVER = """
  net: "{folder}/net.prototxt" snapshot_prefix: "{folder}/run" random_seed: 3 test_interval: 3 test_iter: 4
  lr_policy: "fixed" base_lr: 0.1 momentum: 0.5 max_iter: 9 snapshot: 4 {more}
"""


def solver_of(folder: Path, more: str = "ema_decay: 0.6", **options: object) -> Solver:
    random = np.random.default_rng(0)
    np.savez(folder / "d.npz", data=random.standard_normal((20, 1, 3, 5)), label=random.integers(0, 3, 20))
    (folder / "net.prototxt").write_text(NET.format(source=folder / "d.npz"))
    return load_solver(SOLVER.format(folder=folder, more=more), **options)  # type: ignore[arg-type]


def weights_of(solver: Solver) -> dict[str, Array]:
    return {each.name: each.blob.data.astype(np.float64) for each in solver.net.parameters}


def test_averages_are_those_of_the_formula(tmp_path: Path) -> None:
    seen: list[dict[str, Array]] = []

    def look(event: Event) -> None:
        if isinstance(event, Iterated):
            seen.append(weights_of(solver))

    solver = solver_of(tmp_path, dtype="f64", listener=look)
    average = weights_of(solver)
    solver.step(9)
    for iteration, weights in enumerate(seen):
        keep = min(0.6, (1 + iteration) / (10 + iteration))
        average = {name: keep * average[name] + (1 - keep) * weights[name] for name in weights}
    assert solver.average is not None
    assert average.keys() >= {"conv/0", "norm/0", "norm/2", "aside/1"}
    for name, found in solver.average.arrays.items():
        np.testing.assert_allclose(found, average[name], rtol=1e-12, atol=1e-15)
        assert name.startswith("aside") or not np.array_equal(found, seen[-1][name])


def test_what_is_tested_and_written_are_the_averages(tmp_path: Path) -> None:
    tests: list[events.Tested] = []
    solver = solver_of(
        tmp_path, listener=lambda event: tests.append(event) if isinstance(event, events.Tested) else None
    )
    solver.step(9)
    trained = weights_of(solver)
    (tested,) = solver.test_all()
    for name in ("w.npz", "w.caffemodel"):
        solver.save_weights(tmp_path / name)
        other = load_net(tmp_path / "net.prototxt", phase="TEST", weights=tmp_path / name)
        losses = [
            float(other.forward()["loss"]) for _ in range(4)
        ]  # 4 batches are all images, wherever it begins
        assert tested.outputs[0].value == pytest.approx(np.mean(losses), rel=1e-5)
    for name, weights in weights_of(solver).items():
        np.testing.assert_array_equal(weights, trained[name])
    solver.net.save_weights(tmp_path / "raw.npz")
    other = load_net(tmp_path / "net.prototxt", phase="TEST", weights=tmp_path / "raw.npz")
    raw = np.mean([float(other.forward()["loss"]) for _ in range(4)])
    assert not math.isclose(tested.outputs[0].value, raw, rel_tol=1e-3)


@pytest.mark.parametrize("more", ["", "iter_size: 2 type: 'Adam' clip_gradients: 0.5"])
def test_resume_is_exact(more: str, tmp_path: Path) -> None:
    told: list[list[Event]] = [[], []]
    more += " ema_decay: 0.6"
    through = solver_of(tmp_path, more, listener=told[0].append)
    through.solve()
    again = solver_of(tmp_path, more, seed=4, listener=told[1].append)
    again.solve(tmp_path / "run_iter_4.jdsnap")
    assert through.average is not None
    assert again.average is not None
    for name, average in through.average.arrays.items():
        np.testing.assert_array_equal(average, again.average.arrays[name])
    ends = [[event for event in each if isinstance(event, events.Tested)][-2:] for each in told]
    assert ends[0] == ends[1]


def test_snapshots_have_both_and_are_told_apart(tmp_path: Path) -> None:
    solver = solver_of(tmp_path)
    solver.step(2)
    path = solver.snapshot()
    _, arrays = snapshot.read(path)
    assert {name.partition("/")[0] for name in arrays} == {"weights", "history", "average"}
    without = solver_of(tmp_path, "")
    with pytest.raises(SnapshotError, match="average/"):
        without.restore(path)
    assert without.average is None


def test_memory_limits_count_the_averages(tmp_path: Path) -> None:
    peaks = []
    for more in ("", "ema_decay: 0.6"):
        solver = solver_of(tmp_path, more, memory_limit="least")
        assert solver.net.memory_plan is not None
        peaks.append(solver.net.memory_plan.peak)
    assert peaks[1] - peaks[0] == 4 * solver.net.weight_count


@pytest.mark.parametrize("decay", ["-0.1", "1", "1.5"])
def test_decays_that_cannot_be(decay: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="ema_decay is"):
        solver_of(tmp_path, f"ema_decay: {decay}")


def test_the_norm_that_gradients_are_clipped_by(tmp_path: Path) -> None:
    """It is that of all weights together, and nobody computes it without clip_gradients."""
    events: list[Iterated] = []
    solver = solver_of(
        tmp_path, "clip_gradients: 1e9", dtype="f64",
        listener=lambda event: events.append(event) if isinstance(event, Iterated) else None,
    )  # fmt: skip
    solver.step(1)
    squares = sum(float((each.blob.diff**2).sum()) for each in solver.net.parameters if each.lr_mult)
    assert events[0].gradient_norm == pytest.approx(math.sqrt(squares), rel=1e-12)
    plain = solver_of(
        tmp_path, "", listener=lambda event: events.append(event) if isinstance(event, Iterated) else None
    )
    plain.step(1)
    assert events[-1].gradient_norm is None
