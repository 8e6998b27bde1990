"""A trained net for use elsewhere: Caffe's files, a model of ONNX, a program of torch.export, .safetensors, a bundle
that checks itself.

Each is written whole into the folder `export` of its run, and returned with its name, its bytes and what was checked.
"""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn import __version__
from jitdnn.caffe.blob_proto import write_binaryproto
from jitdnn.caffe.prototxt import to_text
from jitdnn.caffe.weights import weight_arrays
from jitdnn.errors import InvalidArgument
from jitdnn.files import sha256, whole
from jitdnn.studio.data import Dataset
from jitdnn.studio.data.options import options_of
from jitdnn.studio.export import check_bundle, onnx_export, torch_export
from jitdnn.studio.export.readme import readme
from jitdnn.studio.export.safetensors import read_tensors, write_tensors
from jitdnn.studio.look.pictures import image_png
from jitdnn.studio.look.trained import Trained, choose_weights, open_trained
from jitdnn.studio.store import run_folder

Array = NDArray[Any]
Row = Mapping[str, Any]
#: of bundle.json; another number is another layout of the bundle
FORMAT: Final = 1
#: how far answers may be from those that were exported, times the greatest of them (at least 1): other machines run
#: other kernels, whose sums have other roundings
TOLERANCE: Final = 1e-4
SAMPLES: Final = 8


@dataclass(frozen=True)
class Job:
    """What is exported: the net, its data set with the settings that its images were made with, and the weights'
    title."""

    trained: Trained
    data: Dataset
    run: Row
    settings: dict[str, Any]
    title: str


def export(home: Path, run: Row, dataset: Row, kind: str, weights: str = "") -> dict[str, Any]:
    """Write one export: `kind` is one of KINDS. Raises InvalidArgument for another, NotSupported for a net
    that ONNX has no form for, naming its layers, and where a package that writes it is not installed.

    Returns `file` (the name in the run's folder `export`), `name` for a download, `bytes`, and `checks`: who ran it,
    how far its answers are from the net's, and how far they may be.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"nets are exported as {', '.join(KINDS)}, not {kind!r}")
    own = run_folder(home, run["id"])
    chosen = choose_weights(own, weights)
    trained, data = open_trained(home, run, dataset, chosen.name)
    folder = own / "export"
    folder.mkdir(exist_ok=True)
    write, suffix = KINDS[kind]
    target = folder / f"{kind}-{Path(chosen.name).stem}{suffix}"
    with whole(target) as unfinished:
        checks = write(unfinished, Job(trained, data, run, dict(dataset.get("settings") or {}), chosen.title))
    return {
        "file": target.name,
        "name": download_name(run, target.name),
        "bytes": target.stat().st_size,
        "checks": checks,
    }


def download_name(run: Row, file: str) -> str:
    """What an exported file is called for whoever takes it along: after its run, in letters that all systems have."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", str(run["name"])).strip("-.")[:60] or f"run-{run['id']}"
    kind, _, rest = file.partition("-")
    weights = Path(rest).name.split(".")[0]
    chosen = "" if weights == "best" else f"-{weights}"
    suffix = KINDS[kind][1] if kind in KINDS else Path(file).suffix
    return f"{stem}{chosen}{'-caffe' if kind == 'caffe' else ''}{suffix}"


def _caffe(path: Path, job: Job) -> list[dict[str, Any]]:
    """A zip file of deploy.prototxt, weights.caffemodel, labels.txt and the mean."""
    with TemporaryDirectory(dir=path.parent) as scratch, _zip(path) as packed:
        inside = Path(scratch)
        job.trained.one.save_weights(inside / "weights.caffemodel")
        packed.writestr("deploy.prototxt", _definition(job.trained))
        packed.write(inside / "weights.caffemodel", "weights.caffemodel")
        packed.writestr("labels.txt", _labels(job.data))
        if job.trained.transformer.mean is not None:
            write_binaryproto(
                inside / "mean.binaryproto", job.trained.transformer.mean[np.newaxis].astype(np.float32)
            )
            packed.write(inside / "mean.binaryproto", "mean.binaryproto")
        packed.writestr("README.md", readme("caffe", job.trained, job.data, job.run, job.title))
    return []


def _model(job: Job) -> tuple[Any, dict[str, str]]:
    """The net as a model of ONNX with its preprocessing, and what its metadata says."""
    facts = {
        "net": str(job.run["name"]),
        "weights": job.title,
        "task": job.trained.task,
        "channels": "grey" if job.trained.image_shape[0] == 1 else "blue, green, red",
        "range": "0 to 255",
        "classes": json.dumps(job.data.classes),
    }
    made = onnx_export.to_onnx(job.trained.one, job.trained.transformer, [job.trained.answer], facts)
    return made, facts


def _onnx(path: Path, job: Job) -> list[dict[str, Any]]:
    images, _ = _samples(job.data)
    model, _ = _model(job)
    found = onnx_export.check_onnx(
        model, images, {job.trained.answer: job.trained.predict(images)}, TOLERANCE
    )
    path.write_bytes(model.SerializeToString())
    return [
        {"runner": each.runner, "distance": each.distance, "allowed": TOLERANCE * max(1.0, each.largest)}
        for each in found
    ]


def _torch(path: Path, job: Job) -> list[dict[str, Any]]:
    """A program of torch.export, run by PyTorch after it was read back."""
    images, _ = _samples(job.data)
    model, facts = _model(job)
    answers = job.trained.predict(images)
    allowed = TOLERANCE * max(1.0, float(np.abs(answers).max(initial=0.0)))
    distance = torch_export.write_program(path, model, images, answers, facts)
    torch_export.check_distance(distance, allowed)
    return [{"runner": "PyTorch", "distance": distance, "allowed": allowed}]


def _safetensors(path: Path, job: Job) -> list[dict[str, Any]]:
    """The weights by LAYER/INDEX, with `mean` where one is subtracted; what they are of is in the metadata."""
    arrays = dict(weight_arrays(job.trained.one))
    mean = job.trained.transformer.mean
    if mean is not None:
        arrays["mean"] = mean.astype(np.float32)
    facts = {
        "made_by": f"jitdnn {__version__}",
        "net": str(job.run["name"]),
        "weights": job.title,
        "task": job.trained.task,
        "classes": json.dumps(job.data.classes, ensure_ascii=False),
        "shape": json.dumps(list(job.trained.image_shape)),
        "channels": "grey" if job.trained.image_shape[0] == 1 else "blue, green, red",
        "range": "0 to 255",
        "crop": str(job.trained.transformer.crop),
        "scale": repr(float(job.trained.transformer.parameter.scale)),
        "deploy.prototxt": _definition(job.trained),
    }
    write_tensors(path, arrays, facts)
    found, _ = read_tensors(path)
    if any(not np.array_equal(found[name], array, equal_nan=True) for name, array in arrays.items()):
        raise InvalidArgument("the weights that were read back are others: the file is not written")
    return [{"runner": "reading it back", "distance": 0.0, "allowed": 0.0}]


def _bundle(path: Path, job: Job) -> list[dict[str, Any]]:
    """A zip file with all that answering needs, some images with the answers to them, and a script that compares."""
    images, places = _samples(job.data)
    answers = job.trained.predict(images)
    with TemporaryDirectory(dir=path.parent) as scratch:
        inside = Path(scratch)
        job.trained.one.save_weights(inside / "weights.npz")
        (inside / "deploy.prototxt").write_text(_definition(job.trained), "utf-8")
        (inside / "labels.txt").write_text(_labels(job.data), "utf-8")
        mean = job.trained.transformer.mean
        if mean is not None:
            np.save(inside / "mean.npy", mean.astype(np.float32))
        np.savez(inside / "samples.npz", images=images, answers=answers, places=np.array(places))
        facts = _facts(job, inside / "weights.npz")
        (inside / "bundle.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")
        (inside / "check.py").write_text(Path(check_bundle.__file__).read_text("utf-8"), "utf-8")
        (inside / "README.md").write_text(
            readme("bundle", job.trained, job.data, job.run, job.title), "utf-8"
        )
        distance, allowed = check_bundle.check(inside)
        if not distance <= allowed:
            raise InvalidArgument(
                f"the bundle gives answers that differ by {distance:.3g} from the net's, {allowed:.3g} is allowed: "
                "it is not written"
            )
        with _zip(path) as packed:
            for file in sorted(inside.iterdir()):
                packed.write(file, file.name)
            for number, image in enumerate(images):
                packed.writestr(f"samples/{number:02d}.png", image_png(image))
    return [{"runner": "check.py", "distance": distance, "allowed": allowed}]


KINDS: Final[dict[str, tuple[Callable[[Path, Job], list[dict[str, Any]]], str]]] = {
    "caffe": (_caffe, ".zip"),
    "onnx": (_onnx, ".onnx"),
    "bundle": (_bundle, ".bundle.zip"),
    "torch": (_torch, ".pt2"),
    "safetensors": (_safetensors, ".safetensors"),
}


def _facts(job: Job, weights: Path) -> dict[str, Any]:
    trained, shape = job.trained, job.trained.image_shape
    fit = {"height": shape[1], "width": shape[2], "grey": shape[0] == 1}
    options = options_of(job.settings | fit | {"group": ""})
    return {
        "format": FORMAT,
        "made_by": f"jitdnn {__version__}",
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "name": str(job.run["name"]),
        "weights": job.title,
        "sha256": sha256(weights),
        "task": trained.task,
        "classes": list(job.data.classes),
        "shape": list(shape),
        "mode": options.mode,
        "crop": trained.transformer.crop,
        "scale": float(trained.transformer.parameter.scale),
        "mean": trained.transformer.mean is not None,
        "input": trained.input,
        "scores": trained.scores,
        "answer": trained.answer,
        "tolerance": TOLERANCE,
    }


def _samples(data: Dataset) -> tuple[Array, list[int]]:
    """Some images of the part that is evaluated, from all over it."""
    images = data.images(data.evaluation_part)
    places = np.unique(np.linspace(0, len(images) - 1, SAMPLES).astype(int)).tolist()
    return np.stack([images[place] for place in places]), places


def _definition(trained: Trained) -> str:
    return to_text(trained.deployment.net)


def _labels(data: Dataset) -> str:
    """The names of the classes, a line each, as Caffe's tools have them."""
    return "".join(f"{' '.join(str(name).split())}\n" for name in data.classes)


def _zip(path: Path) -> zipfile.ZipFile:
    # weights do not shrink: nothing is compressed
    return zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
