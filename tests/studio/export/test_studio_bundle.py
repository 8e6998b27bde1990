"""Exports: what leaves answers as the net does, says so itself, and nothing of a stranger's bundle is believed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import jitdnn
import studio_trained
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.settings import settings
from jitdnn.studio.export import check_bundle, exports
from jitdnn.studio.export.bundle import open_bundle
from jitdnn.studio.export.predictor import Predictor
from jitdnn.studio.look.classify import classify
from jitdnn.studio.look.trained import Given, open_trained
from studio_trained import Case

TASKS = ("classification", "multi-label", "regression", "segmentation")


def case_of(task: str) -> Case:
    return studio_trained.digits() if task == "classification" else studio_trained.of_task(task)


@pytest.fixture(scope="module")
def bundle() -> Path:
    case = studio_trained.digits()
    return case.folder / "export" / exports.export(*case, "bundle")["file"]


def test_the_script_in_a_bundle_checks_it(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(Path(jitdnn.__file__).parents[1])}
    command = [sys.executable, str(tmp_path / "check.py")]
    good = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout[:5], good.stderr) == (0, "good:", "")
    weights = dict(np.load(tmp_path / "weights.npz"))
    weights["ip2/0"] = weights["ip2/0"] * 1.01
    np.savez(tmp_path / "weights.npz", **weights)
    distance, allowed = check_bundle.check(tmp_path)
    assert distance > allowed == 1e-4
    with Image.open(tmp_path / "samples" / "00.png") as image:
        assert image.size == (28, 28)
    assert (tmp_path / "labels.txt").read_text() == "".join(f"{n}\n" for n in range(10))


@pytest.mark.parametrize("task", TASKS)
def test_a_bundle_answers_as_the_page_does(task: str) -> None:
    """By its own recipe, in NumPy, and by the path of the studio."""
    case = case_of(task)
    trained, data = open_trained(*case)
    path = case.folder / "export" / exports.export(*case, "bundle")["file"]
    predictor = Predictor(path)
    images = np.asarray(data.images("test")[3:9])
    np.testing.assert_allclose(
        predictor.trained.predict(images), trained.predict(images), rtol=1e-6, atol=1e-7
    )
    recipe = check_bundle.prepare(predictor.bundle.folder, images)
    np.testing.assert_allclose(recipe, trained.prepare(images), rtol=1e-6, atol=1e-6)
    content = png(images[0])
    mine, page = predictor.predict(content, pictures=True), classify(*case, Given(content))
    for name in ("top", "labels", "numbers"):
        for a, b in zip(mine.get(name, ()), page.get(name, ()), strict=True):
            assert a["name"] == b["name"]
            assert a.get("probability", a.get("value")) == pytest.approx(
                b.get("probability", b.get("value")), rel=1e-5
            )
    distance, allowed = predictor.check() or (1.0, 0.0)
    assert distance <= allowed
    with pytest.raises(InvalidArgument, match="cannot be read"):
        predictor.predict(b"no image")
    told = predictor.latency()
    assert (told["answers"], told["refused"]) == (1, 1)
    assert told["whole"]["median"] >= told["net"]["median"] > 0
    predictor.close()
    assert not predictor.bundle.folder.exists()


def test_caffes_files_run_in_opencv_too(tmp_path: Path) -> None:
    case = studio_trained.digits()
    trained, data = open_trained(*case)
    found = exports.export(*case, "caffe", "snap_iter_80.jdsnap")
    assert found["name"] == "small-snap_iter_80-caffe.zip"
    with zipfile.ZipFile(case.folder / "export" / found["file"]) as packed:
        packed.extractall(tmp_path)
    images = np.asarray(data.images("test")[:4])
    inputs = trained.prepare(images)
    net = load_net(tmp_path / "deploy.prototxt", weights=tmp_path / "weights.caffemodel")
    net.reshape(**{trained.input: inputs.shape})
    ours = net.forward(**{trained.input: inputs})[trained.answer]
    early, _ = open_trained(*case, "snap_iter_80.jdsnap")
    np.testing.assert_allclose(ours, early.predict(images), rtol=1e-5, atol=1e-6)
    assert abs(ours - trained.predict(images)).max() > 1e-3  # those are other weights
    theirs = cv2.dnn.readNetFromCaffe(str(tmp_path / "deploy.prototxt"), str(tmp_path / "weights.caffemodel"))
    theirs.setInput(inputs)
    np.testing.assert_allclose(theirs.forward(), ours, rtol=1e-4, atol=1e-5)
    assert "channels" not in (tmp_path / "README.md").read_text().split("one grey channel")[0]


def test_onnx_is_checked_and_refused_by_name(tmp_path: Path) -> None:
    case = studio_trained.of_task("multi-label")
    found = exports.export(*case, "onnx")
    assert found["checks"][0]["runner"] == "jitdnn"
    assert all(each["distance"] <= each["allowed"] for each in found["checks"])
    text = (case.folder / "net.prototxt").read_text()
    other = Case(tmp_path, case.run, case.dataset)
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "data").symlink_to(case.home / "data")
    for file in ("best.npz", "mean.npy"):
        (tmp_path / "runs/1" / file).write_bytes((case.folder / file).read_bytes())
    spp = 'layer { name: "pyramid" type: "SPP" bottom: "conv" top: "p" spp_param { pyramid_height: 1 } }\n'
    text = text.replace('bottom: "conv" top: "ip"', 'bottom: "p" top: "ip0"').replace(
        'bottom: "ip"', 'bottom: "ip0"'
    )
    head = 'layer { name: "ip"'
    (tmp_path / "runs/1/net.prototxt").write_text(text.replace(head, spp + 'layer { name: "ip0"'))
    with pytest.raises(NotSupported, match=r"'pyramid' \(SPP\)"):
        exports.export(*other, "onnx")
    assert list((tmp_path / "runs/1/export").iterdir()) == []  # nothing half written
    with pytest.raises(InvalidArgument, match="caffe, onnx, bundle, torch, safetensors, not 'h5'"):
        exports.export(*other, "h5")


def test_names_of_downloads_are_harmless() -> None:
    case = studio_trained.of_task("multi-label")
    evil = case._replace(run=case.run | {"name": "../../<b>é\n.."})
    assert exports.export(*evil, "caffe")["name"] == "b-caffe.zip"
    assert exports.export(*case._replace(run=case.run | {"name": "…"}), "caffe")["name"] == "run-1-caffe.zip"


Change = Callable[[dict[str, bytes]], None]


def _fact(name: str, value: object) -> Change:
    def change(files: dict[str, bytes]) -> None:
        files["bundle.json"] = json.dumps(json.loads(files["bundle.json"]) | {name: value}).encode()

    return change


def _text(name: str, old: bytes, new: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda files: files.pop("weights.npz"), "has no weights.npz"),
        (_fact("format", 2), "format 2, and this version"),
        (_fact("shape", [1, 28]), "channels, height and width"),
        (_fact("shape", [1, 1 << 19, 1 << 19]), "channels, height and width"),
        (_fact("scale", float("nan")), "a finite number"),
        (_fact("crop", -1), "number of pixels"),
        (_fact("crop", 99), "crop_size 99 is larger"),
        (_fact("crop", 25), "prepares images to shape"),
        (_fact("answer", "../x"), "no such blob"),
        (_fact("input", "conv1"), "'conv1' is the net's input"),
        (_fact("task", "arithmetic"), "classification or"),
        (_fact("classes", [1, 2]), "a list of names"),
        (_fact("mean", True), "mean.npy holds none"),
        (lambda files: files.update({"bundle.json": b"[" * 100_000}), "cannot be read"),
        (lambda files: files.update({"bundle.json": b"7"}), "is a int"),
        (_text("deploy.prototxt", b'type: "ReLU"', b'type: "Python"'), r"\(Python\).*runs code"),
        (_text("deploy.prototxt", b'type: "ReLU"', b'type: "HDF5Output"'), "HDF5Output"),
        (_text("deploy.prototxt", b"{", b"{{"), "line"),
        (lambda files: files.update({"weights.npz": files["weights.npz"][:300]}), "cannot be read"),
    ],
)  # fmt: skip
def test_a_strangers_bundle(change: Change, match: str, bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    change(files)
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    with pytest.raises(InvalidArgument, match=match):
        open_bundle(path)


def test_bombs_and_names_that_lead_elsewhere(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    path.write_bytes(bundle.read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("../../outside.txt", "x")
        packed.writestr("mean.npy", bytes(64 << 20))
    with settings(load_limit="32 MiB"), pytest.raises(InvalidArgument, match="load_limit"):
        open_bundle(path)
    opened = open_bundle(path)  # it says that no mean is subtracted: nobody looks at that
    assert {file.name for file in opened.folder.iterdir()} <= {
        "bundle.json", "deploy.prototxt", "weights.npz", "samples.npz", "labels.txt", "README.md", "mean.npy",
    }  # fmt: skip
    opened.close()
    for broken in (b"", b"PK\3\4 no more", bundle.read_bytes()[:-2000]):
        path.write_bytes(broken)
        with pytest.raises(InvalidArgument, match=r"other.zip (cannot be read as|has no bundle.json)"):
            open_bundle(path)
    with pytest.raises(InvalidArgument, match="cannot be read as a bundle"):
        open_bundle(tmp_path / "absent.zip")


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image[::-1].transpose(1, 2, 0))
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
