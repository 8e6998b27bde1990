"""Solvers: what is told when, which nets, what is refused. `tests/cli/test_cli.py` trains LeNet to its end."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_nets import FIXED
from jitdnn.caffe import Solver, events, load_solver
from jitdnn.caffe.events import Displayed, Event, Finished, Iterated, Output, Snapshotted, Started
from jitdnn.errors import InvalidArgument, NotSupported, ParseError
from jitdnn.retention import Recent

# ---- what is told when

CLASSES = """
    net_param {{
      layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{0}" batch_size: 5 }}
               include {{ phase: TRAIN }} }}
      layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{0}" batch_size: 4 }}
               include {{ phase: TEST }} }}
      layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
               inner_product_param {{ num_output: 2 }} }}
      layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
               include {{ phase: TEST }} }}
      layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
    }}
    lr_policy: "fixed" base_lr: 0.5
"""


@pytest.fixture
def classes(tmp_path: Path) -> str:
    """The text of a solver for two classes that the sign of the first pixel tells apart."""
    random = np.random.default_rng(0)
    data = random.standard_normal((20, 1, 2, 2))
    np.savez(tmp_path / "two.npz", data=data, label=(data[:, 0, 0, 0] > 0).astype(int))
    return CLASSES.format(tmp_path / "two.npz")


def told(text: str, **options: Any) -> tuple[Solver, list[Event]]:
    seen: list[Event] = []
    solver = load_solver(text, listener=seen.append, seed=1, **options)
    solver.solve()
    return solver, seen


def kinds(seen: list[Event]) -> list[tuple[str, int]]:
    return [(type(event).__name__, event.iteration) for event in seen]


def test_the_order_of_events(classes: str, tmp_path: Path) -> None:
    text = classes + "max_iter: 4 test_iter: 5 test_interval: 2 display: 2 snapshot: 3"
    _, seen = told(text, snapshot_prefix=str(tmp_path / "run"))
    assert kinds(seen) == [
        ("Started", 0),
        ("Tested", 0),
        ("Displayed", 0),
        ("Iterated", 1),
        ("Iterated", 2),
        ("Tested", 2),
        ("Displayed", 2),
        ("Iterated", 3),
        ("Snapshotted", 3),
        ("Iterated", 4),
        ("Snapshotted", 4),
        ("Displayed", 4),
        ("Tested", 4),
        ("Finished", 4),
    ]
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run_iter_3.jdsnap", "run_iter_4.jdsnap"]


def test_no_test_at_the_start_and_no_snapshot_at_the_end(classes: str) -> None:
    text = (
        classes
        + "max_iter: 2 test_iter: 1 test_interval: 2 test_initialization: false snapshot_after_train: false"
    )
    _, seen = told(text)
    assert kinds(seen) == [("Started", 0), ("Iterated", 1), ("Iterated", 2), ("Tested", 2), ("Finished", 2)]


def test_training_learns_and_testing_sees_it(classes: str) -> None:
    text = (
        classes
        + "max_iter: 60 test_iter: 5 test_interval: 60 test_compute_loss: true snapshot_after_train: false"
    )
    solver, seen = told(text)
    first, last = (event for event in seen if isinstance(event, events.Tested))
    # weights of 0 give equal scores: every answer is a tie, and the loss is log 2
    assert first.outputs[0] == Output("accuracy", 0, 0)
    assert first.loss == pytest.approx(math.log(2))
    assert last.outputs[0].value == 1
    assert last.loss == pytest.approx(last.outputs[1].value)
    assert last.loss < 0.3
    losses = [event.loss for event in seen if isinstance(event, Iterated)]
    assert len(losses) == 60
    assert losses[-1] < 0.4 < losses[0]
    assert np.shares_memory(solver.net.weights["ip"][0].data, solver.test_nets[0].weights["ip"][0].data)


def test_means_of_tests_are_means_of_batches(classes: str) -> None:
    solver = load_solver(
        classes + "max_iter: 9 test_iter: 3 test_interval: 9 snapshot_after_train: false", seed=1
    )
    solver.step(5)
    net = solver.test_nets[0]
    state = net.layers[0].state()
    tested = solver.test()
    net.layers[0].restore(state)
    outputs = [{name: float(value) for name, value in net.forward().items()} for _ in range(3)]
    for output in tested.outputs:
        assert output.value == pytest.approx(sum(batch[output.name] for batch in outputs) / 3)


def test_average_loss_smooths_what_is_displayed(classes: str) -> None:
    _, seen = told(classes + "max_iter: 6 display: 1 average_loss: 3 snapshot_after_train: false")
    losses = [event.loss for event in seen if isinstance(event, Iterated)]
    shown = [event.loss for event in seen if isinstance(event, Displayed)]
    expected = [sum(losses[max(0, i - 2) : i + 1]) / min(3, i + 1) for i in range(6)]
    assert shown[:6] == pytest.approx(expected)
    assert len(shown) == 7


def test_stopping(classes: str, tmp_path: Path) -> None:
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if event == Iterated(3, event.loss if isinstance(event, Iterated) else 0, 0.5):
            solver.stop()

    solver = load_solver(
        classes + "max_iter: 100 test_iter: 1 test_interval: 3",
        listener=listen,
        snapshot_prefix=str(tmp_path / "s"),
    )
    solver.solve()
    assert solver.iteration == 3
    assert kinds(seen)[-3:] == [("Iterated", 3), ("Snapshotted", 3), ("Finished", 3)]
    assert isinstance(seen[-1], Finished)
    assert seen[-1].is_stopped
    solver.step(2)
    assert solver.iteration == 5


def test_lines_are_caffes(classes: str) -> None:
    outputs = (Output("accuracy", 0.975, 0), Output("loss", 0.25, 1))
    assert Started(0, 10, "LeNet", "inv").lines() == ["Solving LeNet", "Learning Rate Policy: inv"]
    assert events.Tested(500, 1, outputs, None).lines() == [
        "Iteration 500, Testing net (#1)",
        "    Test net output #0: accuracy = 0.975",
        "    Test net output #1: loss = 0.25 (* 1 = 0.25 loss)",
    ]
    assert events.Tested(0, 0, (), 2.5).lines()[1] == "Test loss: 2.5"
    assert Displayed(100, 0.2, (Output("loss", 0.2, 2),), 0.00992565, 50.0, 100).lines() == [
        "Iteration 100 (50 iter/s, 2s/100 iters), loss = 0.2",
        "    Train net output #0: loss = 0.2 (* 2 = 0.4 loss)",
        "Iteration 100, lr = 0.00992565",
    ]
    assert Displayed(0, 0.2).lines() == ["Iteration 0, loss = 0.2"]
    assert Snapshotted(5, Path("a_iter_5.jdsnap")).lines() == ["Snapshotting to a_iter_5.jdsnap"]
    assert Finished(5, False).lines() == ["Optimization Done."]
    assert Iterated(5, 1.0, 1.0).lines() == []


# ---- LeNet


def test_training_takes_no_memory_once_it_runs() -> None:
    """After some iterations nothing of the size of a blob is allocated any more: LeNet's take megabytes."""
    solver = load_solver("package:models/lenet_solver.prototxt", seed=1, snapshot_prefix="unused")
    solver.step(2)
    tracemalloc.start()
    try:
        solver.step(1)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        solver.step(3)
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()


# ---- which nets


def test_states_of_the_nets(tmp_path: Path) -> None:
    body = 'layer {{ name: "{0}" type: "Input" top: "{0}" input_param {{ shape {{ dim: 1 }} }} {1} }}'
    net = (
        'state { stage: "own" level: 1 }'
        + body.format("train", 'include { phase: TRAIN stage: "own" stage: "t" min_level: 1 }')
        + body.format("first", 'include { phase: TEST stage: "own" stage: "a" max_level: 1 }')
        + body.format("second", 'include { phase: TEST stage: "own" stage: "b" min_level: 5 }')
    )
    (tmp_path / "net.prototxt").write_text(net)
    solver = load_solver(
        f"""net: "{tmp_path}/net.prototxt" {FIXED} snapshot_after_train: false train_state {{ stage: "t" }}
            test_state {{ stage: "a" }} test_state {{ stage: "b" level: 5 }}
            test_iter: 1 test_iter: 1 test_interval: 1"""
    )
    assert [net.inputs for net in (solver.net, *solver.test_nets)] == [["train"], ["first"], ["second"]]


def test_nets_beside_the_solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files for training and testing, found from the folder of the solver; its name names the snapshots."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.prototxt").write_text(f'input: "{name}" input_shape {{ dim: 1 }}')
    text = 'train_net: "a.prototxt" test_net: "b.prototxt" test_iter: 1 test_interval: 1 ' + FIXED
    (tmp_path / "s.prototxt").write_text(text)
    monkeypatch.chdir("/")
    solver = load_solver(tmp_path / "s.prototxt")
    assert (solver.net.inputs, solver.test_nets[0].inputs) == (["a"], ["b"])
    assert solver.snapshot_prefix == str(tmp_path / "s")


def test_weights_to_start_from(classes: str, tmp_path: Path) -> None:
    solver, _ = told(classes + "max_iter: 5 snapshot_after_train: false")
    solver.net.save_weights(tmp_path / "w.npz")
    fields = f'max_iter: 5 snapshot_after_train: false weights: "{tmp_path}/w.npz"'
    other = load_solver(classes + fields + " test_iter: 1 test_interval: 1")
    for net in (other.net, *other.test_nets):
        np.testing.assert_array_equal(net.weights["ip"][0].data, solver.net.weights["ip"][0].data)


# ---- what is refused

NET = 'net_param { input: "x" input_shape { dim: 1 } } '
TEST = "test_iter: 1 test_interval: 1 "


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (FIXED, InvalidArgument, "this one has none"),
        (NET + 'net: "x" ' + FIXED, InvalidArgument, "net and net_param"),
        (
            NET + FIXED + 'type: "Adan"',
            NotSupported,
            r"'Adan' \(line 1\): there are SGD, .*did you mean 'Adam'",
        ),
        (NET + FIXED + "iter_size: 0", InvalidArgument, "iter_size is 0"),
        (NET + FIXED + "average_loss: 0", InvalidArgument, "average_loss is 0"),
        (NET + FIXED + "momentum: -1", InvalidArgument, "momentum is -1"),
        (NET + FIXED + 'regularization_type: "L3"', InvalidArgument, "'L3'.*: there are L1, L2"),
        (NET + FIXED + "test_iter: 1", InvalidArgument, "test_interval is 0"),
        (NET + FIXED + "test_iter: 0 test_interval: 1", InvalidArgument, "it must be positive"),
        (
            NET + FIXED + "test_iter: 1 test_interval: 1 test_state { } test_state { }",
            InvalidArgument,
            "2 test_state for 1",
        ),
        (NET + FIXED + "test_net_param { }", InvalidArgument, "0 test_iter for 1 test nets"),
        (
            'train_net_param { input: "x" input_shape { dim: 1 } } test_iter: 1 test_interval: 1 ' + FIXED,
            InvalidArgument,
            "1 test_iter for 0 test nets",
        ),
        (NET + FIXED + "snapshot: 5", InvalidArgument, "have no name: set snapshot_prefix"),
        (
            NET + FIXED + 'snapshot_prefix: "/no/such/folder/x"',
            InvalidArgument,
            "/no/such/folder is no folder",
        ),
        ("bas_lr: 1 # {", ParseError, "did you mean 'base_lr'"),
    ],
)
def test_solvers_that_cannot_be(text: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        load_solver(text)


def test_weights_of_other_shapes_in_testing() -> None:
    layer = (
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" include { phase: %s } '
        "inner_product_param { num_output: %d } } "
    )
    net = 'input: "x" input_shape { dim: 1 dim: 1 } ' + layer % ("TRAIN", 2) + layer % ("TEST", 3)
    with pytest.raises(InvalidArgument, match=r"'ip' has weights \[\(2, 1\), \(2,\)\] in training"):
        load_solver(
            f"net_param {{ {net} }} test_iter: 1 test_interval: 1 snapshot_after_train: false " + FIXED
        )


def test_gpu_mode_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.log._told", Recent(4096))
    load_solver(NET + FIXED + "snapshot_after_train: false")
    assert not caplog.records
    load_solver(NET + FIXED + "snapshot_after_train: false solver_mode: GPU")
    messages = [record.getMessage() for record in caplog.records]
    assert any("training on the processor" in message for message in messages)
