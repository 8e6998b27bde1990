"""Class weights, label smoothing, averages of weights and one cycle: what trains is what PyTorch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import NetParameter, SolverParameter, load_net, load_solver, parse
from jitdnn.caffe.deployment import deployment
from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets

COUNTS = [20, 5, 7]
NET = """
name: "small"
layer { name: "d" type: "Data" top: "data" top: "label" }
layer { name: "ip" type: "%(kind)s" bottom: "data" top: "ip" %(param)s }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST }
  accuracy_param { ignore_label: 255 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" %(more)s }
"""
FILLER = 'weight_filler { type: "gaussian" std: 0.01 }'
WHOLE = {"kind": "InnerProduct", "param": f"inner_product_param {{ {FILLER} }}", "more": ""}
PIXELS = {
    "kind": "Convolution",
    "param": f"convolution_param {{ kernel_size: 3 pad: 1 {FILLER} }}",
    "more": "loss_param { ignore_label: 255 }",
}


def row(task: str = "classification", shape: tuple[int, ...] = (2, 4, 3)) -> dict[str, Any]:
    counts = {"train": COUNTS, "val": [1, 1, 1]}
    return {"id": 1, "name": "d", "task": task, "shape": list(shape), "classes": ["a", "b", "c"], "counts": counts,
            "train": 32, "val": 8, "test": 0}  # fmt: skip


def written(
    home: Path, options: dict[str, Any], text: str = NET % WHOLE, task: str = "classification"
) -> Path:
    random = np.random.default_rng(0)
    folder = home / "data" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.repeat(np.arange(3), COUNTS)
    random.shuffle(labels)
    if task == "segmentation":
        labels = random.choice([0, 1, 2, 255], (32, 4, 3)).astype(np.uint8)
    for part, count in (("train", 32), ("val", 8)):
        np.save(folder / f"{part}_data.npy", random.integers(0, 256, (count, 2, 4, 3), np.uint8))
        np.save(folder / f"{part}_label.npy", labels[:count])
    run = home / "runs" / "1"
    nets.write(run, text, {"batch": 16, "epochs": 4, "rate": 1e-5} | options, row(task), home)
    return run


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize(
    ("options", "weights", "smoothing"),
    [
        ({"smoothing": 0.1}, [1, 1, 1], 0.1),
        ({"class_weights": "balanced"}, [32 / 3 / count for count in COUNTS], 0),
        ({"class_weights": [0.5, 2, 0], "smoothing": "0.25"}, [0.5, 2, 0], 0.25),
    ],
)
def test_the_loss_is_the_cross_entropy_of_pytorch(
    task: str, options: dict[str, Any], weights: list[float], smoothing: float, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    text = NET % (WHOLE if task == "classification" else PIXELS)
    solver = load_solver(written(tmp_path, options, text, task) / "solver.prototxt")
    net = solver.net
    net.forward()
    net.backward()
    scores = torch.tensor(net.blobs["ip"].data.astype(np.float64), requires_grad=True)
    labels = torch.tensor(net.blobs["label"].data.astype(np.int64))
    loss = torch.nn.functional.cross_entropy(
        scores, labels, torch.tensor(weights, dtype=torch.float64), reduction="sum", label_smoothing=smoothing,
        ignore_index=255,
    ) / (labels != 255).sum()  # fmt: skip
    loss.backward()
    assert float(net.blobs["loss"].data) == pytest.approx(loss.item(), rel=1e-5)
    wanted = scores.grad.numpy()
    np.testing.assert_allclose(net.blobs["ip"].diff, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    # a test is a test: the plain loss, whatever the net is trained with
    (tested,) = solver.test_nets
    tested.forward()
    plain = torch.nn.functional.cross_entropy(
        torch.tensor(tested.blobs["ip"].data.astype(np.float64)),
        torch.tensor(tested.blobs["label"].data.astype(np.int64)),
        ignore_index=255,
    )
    assert float(tested.blobs["loss"].data) == pytest.approx(plain.item(), rel=1e-5)


def test_it_trains_goes_on_and_answers(tmp_path: Path) -> None:
    run = written(tmp_path, {"smoothing": 0.1, "class_weights": "balanced", "weight_average": 0.9})
    solver = load_solver(run / "solver.prototxt", snapshot_prefix=str(run / "snap"))
    solver.solve()
    again = load_solver(run / "solver.prototxt", snapshot_prefix=str(run / "other"))
    again.solve(run / "snap_iter_4.jdsnap")
    assert solver.average is not None
    assert again.average is not None
    for name, average in solver.average.arrays.items():
        np.testing.assert_array_equal(average, again.average.arrays[name])
    solver.save_weights(run / "best.npz")
    answering = load_net(run / "deploy.prototxt", weights=run / "best.npz")
    np.testing.assert_array_equal(answering.weights["ip"][0].data, solver.average.arrays["ip/0"])
    assert [layer.type for layer in answering.layers][-1] == "Softmax"
    net = parse((run / "net.prototxt").read_text(), NetParameter)
    assert deployment(net, (2, 4, 3), run).answer == "prob"


RULES = [
    ("include { phase: TRAIN }", ["InfogainLoss"]),
    ('include { stage: "s" }', ["InfogainLoss", "SoftmaxWithLoss"]),
    ('exclude { stage: "s" }', ["InfogainLoss", "SoftmaxWithLoss"]),
    ("include { phase: TRAIN } include { phase: TEST }", ["InfogainLoss", "SoftmaxWithLoss"]),
]


@pytest.mark.parametrize(("rules", "kinds"), RULES)
def test_rules_of_the_loss_hold(rules: str, kinds: list[str], tmp_path: Path) -> None:
    from jitdnn.studio.nets.binding import bind
    from jitdnn.studio.nets.facts import DataFacts
    from jitdnn.studio.nets.loss_matrix import train_by_matrix

    bound = bind(
        NET % (WHOLE | {"more": rules}), nets.Options().settled(10), DataFacts.of(row()), tmp_path, tmp_path
    )
    train_by_matrix(bound)
    losses = [layer for layer in bound.net.layer if "Loss" in layer.type]
    assert [layer.type for layer in losses] == kinds
    for layer in losses:
        phase, other = ("TRAIN", "TEST") if layer.type == "InfogainLoss" else ("TEST", "TRAIN")
        assert all(rule.phase == phase for rule in layer.include)
        if layer.exclude:
            assert [rule.phase for rule in layer.exclude if rule.has("phase")] == [other]
        assert all(rule.stage == ["s"] for rule in layer.include if "stage" in rules)


def test_a_check_tells_it_and_counts_the_average(tmp_path: Path) -> None:
    text = NET % WHOLE
    plain = nets.check(text, {}, row(), tmp_path)
    found = nets.check(text, {"smoothing": 0.1, "weight_average": 0.99}, row(), tmp_path)
    assert [change["line"] for change in found["changes"] if "InfogainLoss" in change["what"]] == [7]
    assert found["memory"] - plain["memory"] == 4 * found["weights"]
    assert "ema_decay: 0.99" in found["solver"]


@pytest.mark.parametrize(
    ("options", "about", "said"),
    [
        ({"smoothing": 1}, {}, "smoothing is '1'"),
        ({"weight_average": 1}, {}, "weight_average is '1'"),
        ({"class_weights": "1, 2"}, {}, "2 numbers.* 3 classes"),
        ({"class_weights": "a, b, c"}, {}, "class_weights is"),
        ({"class_weights": "0 0 0"}, {}, "above 0"),
        ({"class_weights": "-1 1 1"}, {}, "at least 0"),
        ({"class_weights": "balanced"}, {"counts": {}}, "does not say how many images"),
        ({"smoothing": 0.1}, {"task": "multi-label"}, "is for multi-label"),
        ({"class_weights": "balanced"}, {"task": "regression"}, "is for regression"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], about: dict[str, Any], said: str, tmp_path: Path) -> None:
    import re

    found = nets.check(NET % WHOLE, options, row() | about, tmp_path)
    assert not found["ok"]
    assert re.search(said, found["error"]), found["error"]
    with pytest.raises(InvalidArgument, match=said):
        nets.write(tmp_path / "runs" / "9", NET % WHOLE, options, row() | about, tmp_path)
    assert not (tmp_path / "runs" / "9").exists()


def test_a_net_without_the_loss(tmp_path: Path) -> None:
    text = (NET % WHOLE).replace("SoftmaxWithLoss", "HingeLoss")
    found = nets.check(text, {"smoothing": 0.1}, row(), tmp_path)
    assert "the net has none that reads the labels" in found["error"]


@pytest.mark.parametrize(("epochs", "highest"), [(10, 6), (1, 1)])
def test_one_cycle_has_its_highest_rate_at_a_share_of_the_training(
    epochs: int, highest: int, tmp_path: Path
) -> None:
    run = written(tmp_path, {"policy": "onecycle", "epochs": epochs, "rate": 0.5})
    solver = parse((run / "solver.prototxt").read_text(), SolverParameter)
    assert (solver.lr_policy, solver.stepsize, solver.base_lr) == ("onecycle", highest, 0.5)
    found = nets.check(NET % WHOLE, {"policy": "onecycle", "epochs": 1, "batch": 64}, row(), tmp_path)
    assert found["ok"]
    assert found["rates"][0] == 0.01  # a single iteration
