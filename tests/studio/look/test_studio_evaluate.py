"""Trained nets asked about their data: the answers are those of the net that was trained, whatever asks."""

from __future__ import annotations

import csv
import io
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import studio_trained
from jitdnn.caffe import NetParameter, load_net, parse
from jitdnn.caffe.deployment import deployment
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.studio.look import classify, evaluate, predictions, saliency
from jitdnn.studio.look import trained as trained_nets
from jitdnn.studio.look.trained import Given, Trained, choose_weights, open_trained, weights_of
from studio_trained import Case


@pytest.fixture(scope="module")
def digits() -> Case:
    return studio_trained.digits()


def evaluated(case: Case, part: str = "test", **options: object) -> tuple[str, dict[str, object]]:
    done = predictions.predict_some(*case, part, **options)  # type: ignore[arg-type]
    assert done["done"] == done["count"]
    return done["key"], pickle.loads(pickle.dumps(evaluate.summarize(*case, part, done["key"])))


def test_accuracy_is_that_of_the_net_in_training(digits: Case) -> None:
    """One way from an image to the net: the Data layer of the test net, and evaluation, count the same images right."""
    net = load_net(digits.folder / "net.prototxt", weights=digits.folder / "best.npz")
    means = np.mean([[float(net.forward()["accuracy"]), net.loss] for _ in range(5)], axis=0)
    key, found = evaluated(digits)
    summary = found["summary"]
    assert summary["accuracy"] == pytest.approx(means[0], abs=1e-6)
    assert summary["accuracy"] > 0.85
    arrays = evaluate.read_predictions(digits.home, digits.run, "test", key)
    trained, data = open_trained(*digits)
    every = trained.predict(data.images("test"))
    at = np.arange(len(every))
    assert -np.log(every[at, data.labels("test")]).mean() == pytest.approx(means[1], rel=1e-5)
    assert arrays["best"][:, 0].tolist() == every.argmax(1).tolist()
    assert summary["top5"] == np.mean(
        [t in row for t, row in zip(arrays["true"], arrays["best"], strict=True)]
    )
    assert sum(map(sum, found["matrix"])) == 500
    assert summary["wrong"] == round(500 * (1 - means[0]))
    sure = [each["sure"] for each in summary["errors"]]
    assert sure == sorted(sure, reverse=True)
    for each in summary["errors"]:
        assert data.labels("test")[each["at"]] == each["true"] != each["said"] == every[each["at"]].argmax()
    surest = evaluate.surest_of(arrays, 7, 5)
    assert [each["at"] for each in surest] == np.argsort(-every[:, 7], kind="stable")[:5].tolist()
    worst = summary["pairs"][0]
    cell = evaluate.images_of_cell(arrays, worst["true"], worst["said"], 1000)
    assert len(cell) == worst["count"] == found["matrix"][worst["true"]][worst["said"]]


def test_predictions_go_on_where_they_were_broken_off(
    digits: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_of(digits, tmp_path)
    monkeypatch.setattr(predictions, "PIECE", 128)
    steps = [predictions.predict_some(home, digits.run, digits.dataset, "test", seconds=1e-6)]
    broken = home / "runs/1/evaluation" / f"test-{steps[0]['key']}" / ".half.npz.unfinished"
    broken.write_bytes(b"what a killed process left")
    while not steps[-1]["file"]:
        steps.append(predictions.predict_some(home, digits.run, digits.dataset, "test", seconds=1e-6))
    assert [step["done"] for step in steps] == [128, 256, 384, 500]
    key, _ = evaluated(digits)
    whole = evaluate.read_predictions(digits.home, digits.run, "test", key)
    pieces = evaluate.read_predictions(home, digits.run, "test", steps[-1]["key"])
    for name, values in whole.items():
        # a piece that is no whole batch is computed in one all the same
        np.testing.assert_array_equal(pieces[name], values, err_msg=name)
    left = [file.name for file in (home / "runs/1/evaluation").iterdir()]
    assert left == [steps[-1]["file"]]


def test_classes_without_labels_and_more_outputs_than_classes(digits: Case, tmp_path: Path) -> None:
    home = copy_of(digits, tmp_path)
    labels = np.load(home / "data/1/test_label.npy")
    labels[:40] = -1
    (home / "data/1/test_label.npy").unlink()  # a link to the others'
    np.save(home / "data/1/test_label.npy", labels)
    case = Case(home, digits.run, digits.dataset | {"classes": ["zero", "=cmd()", "two"]})
    key, found = evaluated(case)
    assert found["summary"]["images"] == 460
    assert found["summary"]["unlabelled"] == 40
    assert len(found["per_class"]) == 10
    arrays = evaluate.read_predictions(home, case.run, "test", key)
    rows = list(csv.reader(io.StringIO(evaluate.predictions_csv(arrays, case.dataset["classes"]))))
    assert rows[0][:4] == ["image", "true", "class 1", "probability 1"]
    assert rows[1][1] == ""
    names = {row[2] for row in rows[1:]}
    assert {"zero", "'=cmd()", "two", "9"} <= names  # what a table calculator would run is text
    matrix = list(csv.reader(io.StringIO(evaluate.matrix_csv(found["matrix"], [str(n) for n in range(10)]))))
    assert sum(int(cell) for row in matrix[1:] for cell in row[1:]) == 460


@pytest.mark.parametrize("task", ["multi-label", "regression", "segmentation"])
def test_other_tasks(task: str) -> None:
    case = studio_trained.of_task(task)
    key, found = evaluated(case)
    trained, data = open_trained(*case)
    answers, labels = trained.predict(data.images("test")), np.asarray(data.labels("test"))
    rows = list(csv.reader(io.StringIO(
        evaluate.predictions_csv(evaluate.read_predictions(case.home, case.run, "test", key), data.classes)
    )))  # fmt: skip
    assert len(rows) == 38
    summary = found["summary"]
    if task == "segmentation":
        said, known = answers.argmax(1), labels < 3
        assert summary["accuracy"] == pytest.approx((said == labels)[known].mean())
        unions = [((said == k) & known) | (labels == k) for k in range(3)]
        ious = [((said == k) & (labels == k)).sum() / unions[k].sum() for k in range(3)]
        assert [each["iou"] for each in found["per_class"]] == pytest.approx(ious)
        shown = classify.classify(*case, Given(part="test", at=5))
        for name in ("overlay", "true_overlay", "image"):
            assert Image.open(io.BytesIO(shown[name])).size == (10, 12)
    elif task == "regression":
        assert summary["mae"] == pytest.approx(abs(answers - labels).mean(), rel=1e-5)
        assert [
            each["value"] for each in classify.classify(*case, Given(part="test", at=5))["numbers"]
        ] == pytest.approx(answers[5].tolist(), rel=1e-5)
    else:
        assert summary["exact"] == pytest.approx(((answers >= 0.5) == (labels > 0)).all(1).mean())
        ranked = classify.classify(*case, Given(part="test", at=5))["labels"]
        assert [each["class"] for each in ranked] == np.argsort(-answers[5]).tolist()


def test_boxes() -> None:
    case = studio_trained.of_task("detection")
    trained, data = open_trained(*case)
    found, labels = trained.boxes(data.images("test")), np.asarray(data.labels("test"))
    assert sum(map(len, found)) > 37  # the net says something
    assert {int(k) for boxes in found for k in boxes[:, 0]} <= {0, 1}
    # boxes that are there as the net finds them: all are hits
    same = np.full((37, 8, 5), -1, np.float32)
    for boxes, rows in zip(found, same, strict=True):
        rows[: len(boxes)] = boxes[:, [0, 2, 3, 4, 5]]
    key, told = evaluated(case)
    summary = told["summary"]
    assert summary["boxes"] == (labels[..., 0] >= 0).sum()
    assert summary["found"] == sum(map(len, found))
    assert summary["mean_average_precision"] < 0.5
    rows = evaluate.predictions_csv(evaluate.read_predictions(case.home, case.run, "test", key), data.classes)
    assert len(rows.splitlines()) == 1 + summary["found"]
    gathered = predictions._detection(trained, data.images("test"), same, 2, 0)
    assert gathered["box_hit"].all()
    assert evaluate._detection(predictions._joined([gathered], 37), ["cat", "dog"])["summary"]["recall"] == 1
    shown = classify.classify(*case, Given(part="test", at=2))
    assert Image.open(io.BytesIO(shown["overlay"])).size == (270, 324)


def test_a_net_for_one_image_at_a_time() -> None:
    """Its Reshape says how many rows there are."""
    text = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
    layer { name: "rows" type: "Reshape" bottom: "data" top: "rows" reshape_param { shape { dim: 1 dim: 16 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "rows" top: "ip"
      inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }"""
    trained = Trained(deployment(parse(text, NetParameter)), None, None, "classification")
    trained.one.weights["ip"][0].data[...] = np.random.default_rng(0).normal(size=(3, 16)) / 255
    images = np.random.default_rng(1).integers(0, 256, (5, 1, 4, 4)).astype(np.uint8)
    alone = np.concatenate([trained.predict(image[np.newaxis]) for image in images])
    np.testing.assert_allclose(trained.predict(images), alone, rtol=1e-6)
    assert saliency.gradient_map(trained, trained.prepare(images)[0], 1, copies=3).any()


def test_the_mean_image_is_cropped_with_the_image() -> None:
    case = studio_trained.of_task("regression")
    trained, data = open_trained(*case)
    images = np.asarray(data.images("test"))
    mean = np.load(case.folder / "mean.npy")
    expected = (images.astype(np.float32) - mean)[:, :, 2:10, 1:9] * np.float32(0.01)
    np.testing.assert_allclose(trained.prepare(images), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidShape, match=r"\(N, 3, 12, 10\)"):
        trained.prepare(images[:, :1])


def test_one_image_by_file_and_by_number(digits: Case) -> None:
    _, data = open_trained(*digits)
    image = np.asarray(data.images("test")[17])
    found = classify.classify(*digits, Given(png(image)), weights="best.npz")
    known = classify.classify(*digits, Given(part="test", at=17))
    assert found["top"] == known["top"]
    assert known["true"]["class"] == data.labels("test")[17]
    assert found["true"] is None
    dark = classify.classify(*digits, Given(png(255 - image), inverted=True))
    assert dark["top"] == found["top"]
    assert Image.open(io.BytesIO(found["seen"])).size == (26, 26)
    large = np.asarray(Image.fromarray(image[0]).resize((280, 280)).convert("RGB"))
    assert (
        classify.classify(*digits, Given(png(large.transpose(2, 0, 1))))["top"][0]["class"]
        == found["top"][0]["class"]
    )


def test_many_images_in_a_zip_file(digits: Case) -> None:
    _, data = open_trained(*digits)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for at in range(70):
            packed.writestr(f"b/{at:02d}.png", png(np.asarray(data.images("test")[at])))
        packed.writestr("a/broken.png", b"no image")
        packed.writestr("../outside.png", png(np.asarray(data.images("test")[0])))
        packed.writestr("notes.txt", b"left out")
    files = list(classify.files_in("all.zip", file))
    assert classify.count_files("all.zip", file) == len(files) == 71
    assert [name for name, _ in files][:2] == ["a/broken.png", "b/00.png"]
    found = classify.classify_files(*digits, files)
    assert "cannot be read" in found[0]["error"]
    for at, each in enumerate(found[1:]):
        alone = classify.classify(*digits, Given(part="test", at=at))["top"]
        assert [t["class"] for t in each["top"]] == [t["class"] for t in alone]
    with pytest.raises(InvalidArgument, match="zip file"):
        list(classify.files_in("cut.zip", io.BytesIO(file.getvalue()[:300])))
    assert classify.classify_files(*digits, []) == []


def test_refusals(digits: Case) -> None:
    with pytest.raises(InvalidArgument, match="0 to 499"):
        classify.classify(*digits, Given(part="test", at=1000))
    with pytest.raises(InvalidArgument, match="no part 'val'"):
        classify.classify(*studio_trained.of_task("regression"), Given(part="val", at=0))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        classify.classify(*digits, Given(b"GIF89a no more"))
    with pytest.raises(InvalidArgument, match=r"best.npz, snap_iter_160.jdsnap, snap_iter_80.jdsnap"):
        choose_weights(digits.folder, "../../other")
    with pytest.raises(InvalidArgument, match=r"part is '\.\./test'"):
        predictions.predictions_file(digits.folder, "key", "../test")
    with pytest.raises(InvalidArgument, match="evaluate it first"):
        evaluate.summarize(*digits, "test", "other")
    assert [each.title for each in weights_of(digits.folder)] == ["best", "iteration 160", "iteration 80"]
    other = digits._replace(dataset=digits.dataset | {"shape": [5, 28, 28]})
    with pytest.raises(InvalidArgument, match="no images but arrays"):
        classify.classify(*other, Given(png(np.zeros((1, 4, 4), np.uint8))))


def test_weights_that_are_written_anew_are_another_evaluation(digits: Case, tmp_path: Path) -> None:
    home = copy_of(digits, tmp_path)
    case = digits._replace(home=home)
    key, before = evaluated(case)
    trained, _ = open_trained(*case)
    trained.one.weights["ip2"][0].data[...] = 0
    (home / "runs/1/best.npz").unlink()
    trained.one.save_weights(home / "runs/1/best.npz")
    other, after = evaluated(case)
    assert other != key
    assert after["summary"]["accuracy"] < 0.2 < before["summary"]["accuracy"]


def test_a_snapshot_that_a_newer_one_replaced_meanwhile_is_told(
    digits: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = digits._replace(home=copy_of(digits, tmp_path))
    folder = case.home / "runs/1"
    gone = folder / "snap_iter_77.jdsnap"
    shutil.copyfile(next(folder.glob("*.jdsnap")), gone)
    chosen = trained_nets.choose_weights(folder, gone.name)
    gone.unlink()  # between the list and the reading
    monkeypatch.setattr(trained_nets, "choose_weights", lambda *_: chosen)
    with pytest.raises(InvalidArgument, match="look again"):
        open_trained(*case, gone.name)
    assert gone.name not in [each.name for each in trained_nets.weights_of(folder)]


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image[::-1].transpose(1, 2, 0))
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def copy_of(case: Case, home: Path) -> Path:
    """A home with links to the files of another one, but for what was evaluated there."""
    for file in case.home.rglob("*"):
        target = home / file.relative_to(case.home)
        if file.is_file() and "evaluation" not in file.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(file)
    return home
