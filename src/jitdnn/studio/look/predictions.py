"""The answers of a net for a part of a data set, piece by piece: each call works for some seconds, writes what it found
and says how far it came, so that a large part shows its progress, can be broken off, and goes on where it was.

What is kept of an image depends on the task, and never on the number of classes alone:

    classification   the five best classes with their probabilities; for each class the images that are surest of it
    multi-label, regression   the numbers
    segmentation     pixels that are right, and that count; the confusion matrix of pixels is added up
    detection        boxes found: class, confidence, image, and whether it is a true one; true boxes of each image
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitdnn.caffe.arrays import read_npz
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole
from jitdnn.studio.look.detections import match
from jitdnn.studio.look.metrics import confusion, finite_mean, intersection_over_union
from jitdnn.studio.look.pictures import cropped
from jitdnn.studio.look.trained import Array, Trained, choose_weights, open_trained
from jitdnn.studio.store import run_folder

Arrays = dict[str, Array]
BEST_OF: Final = 5
SUREST: Final = 100
PIECE: Final = 1024
_SUMS: Final = ("matrix", "support")
_PIECE_FILE = re.compile(r"(\d{12})-(\d{12})\.npz")


def predict_some(
    home: Path,
    run: Mapping[str, Any],
    dataset: Mapping[str, Any],
    part: str,
    weights: str = "",
    seconds: float = 2.0,
) -> dict[str, Any]:
    """Go on with the answers for a part for about so many seconds.

    Returns done and count in images, `key` of the weights, and `file`, the name of the predictions when all are there,
    else "". Raises InvalidArgument for a part or weights that are not there.
    """
    folder = run_folder(home, run["id"])
    chosen = choose_weights(folder, weights)
    target = predictions_file(folder, chosen.key, part)
    told: dict[str, Any] = {"key": chosen.key, "weights": chosen.name}
    if target.is_file():
        count = int(read_npz(target, ["count"])["count"])
        return told | {"done": count, "count": count, "file": target.name}
    trained, data = open_trained(home, run, dataset, chosen.name)
    images, labels = data.images(part), data.labels(part)
    count, pieces = len(images), target.with_suffix("")
    pieces.mkdir(parents=True, exist_ok=True)
    start, end = _reached(pieces), time.monotonic() + seconds
    gather = _GATHER[trained.task]
    first = start
    while start < count and (start == first or time.monotonic() < end):  # one piece at least, however slow
        stop = min(start + _piece(trained, count), count)
        found = gather(trained, images[start:stop], np.asarray(labels[start:stop]), len(data.classes), start)
        _save(pieces / f"{start:012d}-{stop:012d}.npz", found)
        start = stop
    if start < count:
        return told | {"done": start, "count": count, "file": ""}
    _save(target, _joined([read_npz(file) for file, _ in _pieces(pieces)], count))
    for file in pieces.iterdir():
        file.unlink()
    pieces.rmdir()
    return told | {"done": count, "count": count, "file": target.name}


def predictions_file(folder: Path, key: str, part: str) -> Path:
    """Where the predictions of a run for a part by some weights lie."""
    if part not in ("train", "val", "test"):
        raise InvalidArgument(f"the part is {part!r}: train, val or test")
    return folder / "evaluation" / f"{part}-{key}.npz"


def _piece(trained: Trained, count: int) -> int:
    """Images of one piece: whole batches, about a thousand, fewer where one takes long."""
    return max(trained.batch, PIECE // trained.batch * trained.batch) if count > trained.batch else count


def _classification(trained: Trained, images: Array, labels: Array, classes: int, start: int) -> Arrays:
    answers = trained.predict(images)
    scores = _flat(answers)
    known = np.where(np.isfinite(scores), scores, -np.inf)
    best = np.argsort(-known, axis=1, kind="stable")[:, : min(BEST_OF, scores.shape[1])]
    most = min(SUREST, len(scores))
    surest = np.argsort(-known, axis=0, kind="stable")[:most]
    return {
        "true": labels.astype(np.int64).reshape(len(scores), -1)[:, 0],
        "best": best.astype(np.int32),
        "sure": np.take_along_axis(scores, best, 1).astype(np.float32),
        "surest": (surest + start).T.astype(np.int64),
        "surest_sure": np.take_along_axis(known, surest, 0).T.astype(np.float32),
    }


def _numbers(trained: Trained, images: Array, labels: Array, classes: int, start: int) -> Arrays:
    answers = trained.predict(images)
    found = _flat(answers).astype(np.float32)
    true = labels.reshape(len(labels), -1).astype(np.float32)
    if found.shape != true.shape:
        raise InvalidArgument(
            f"the net gives {found.shape[1]} numbers an image, and the data set has {true.shape[1]}: train a net for it"
        )
    return {"scores": found, "true": true}


def _segmentation(trained: Trained, images: Array, labels: Array, classes: int, start: int) -> Arrays:
    answers = trained.predict(images)
    said = answers.argmax(1)
    labels = crop_like(labels, said.shape[1:])
    counts = np.stack(
        [
            confusion(each, one, answers.shape[1])
            for each, one in zip(_known(labels, answers.shape[1]), said, strict=True)
        ]
    )
    return {
        "right": counts.diagonal(axis1=1, axis2=2).sum(1),
        "pixels": counts.sum((1, 2)),
        "matrix": counts.sum(0)[np.newaxis],
        "iou": np.array([finite_mean(intersection_over_union(each)) for each in counts], np.float32),
    }


def _detection(trained: Trained, images: Array, labels: Array, classes: int, start: int) -> Arrays:
    found = trained.boxes(images)
    matched = [match(each, true.reshape(-1, 5)) for each, true in zip(found, labels, strict=True)]
    there = labels.reshape(len(labels), -1, 5)[:, :, 0].astype(np.int64)
    return {
        "box_class": np.concatenate([each.classes for each in matched]).astype(np.int64),
        "box_sure": np.concatenate([each.sure for each in matched]).astype(np.float32),
        "box_hit": np.concatenate([each.is_hit for each in matched]),
        "box_image": np.repeat(np.arange(start, start + len(found)), [len(each) for each in found]),
        "there": (there >= 0).sum(1),
        "hits": np.array([each.is_hit.sum() for each in matched]),
        "support": np.bincount(there[there >= 0], minlength=classes)[np.newaxis, :classes],
    }


_GATHER: dict[str, Callable[[Trained, Array, Array, int, int], Arrays]] = {
    "classification": _classification,
    "multi-label": _numbers,
    "regression": _numbers,
    "segmentation": _segmentation,
    "detection": _detection,
}


def crop_like(labels: Array, extents: tuple[int, ...]) -> Array:
    """The middle of masks (N, H, W), as images are cropped. Raises InvalidArgument for a net of other extents."""
    if any(have < want for have, want in zip(labels.shape[1:], extents, strict=True)):
        raise InvalidArgument(f"the net gives classes of {extents} pixels, the masks have {labels.shape[1:]}")
    return cropped(labels, extents)


def _known(labels: Array, classes: int) -> Array:
    return np.where(labels < classes, labels.astype(np.int64), -1)


def _flat(answers: Array) -> Array:
    return answers.reshape(len(answers), -1)


def _pieces(folder: Path) -> list[tuple[Path, int]]:
    """The pieces that follow one another from the first image on, each with its end."""
    found, reached = list[tuple[Path, int]](), 0
    for file in sorted(folder.glob("*.npz")):
        match = _PIECE_FILE.fullmatch(file.name)
        if match and int(match[1]) == reached:
            reached = int(match[2])
            found.append((file, reached))
    return found


def _reached(folder: Path) -> int:
    pieces = _pieces(folder)
    return pieces[-1][1] if pieces else 0


def _joined(pieces: list[Arrays], count: int) -> Arrays:
    """The arrays of all pieces as one; those that are sums or best lists are joined as such."""
    found: Arrays = {"count": np.array(count)}
    for name in pieces[0] if pieces else ():
        if name.startswith("surest"):
            continue
        values = [piece[name] for piece in pieces]
        found[name] = np.concatenate(values).sum(0) if name in _SUMS else np.concatenate(values)
    if pieces and "surest" in pieces[0]:
        at, sure = (
            np.concatenate([piece[name] for piece in pieces], 1) for name in ("surest", "surest_sure")
        )
        order = np.argsort(-sure, axis=1, kind="stable")[:, :SUREST]
        found["surest"] = np.take_along_axis(at, order, 1)
        found["surest_sure"] = np.take_along_axis(sure, order, 1)
    return found


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    write_whole(path, lambda file: np.savez(file, **dict(arrays)))  # type: ignore[arg-type]
