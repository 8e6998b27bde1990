"""Arrays of NumPy in an .npz file: images, signals or rows, by the names that people give them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from jitdnn.caffe.arrays import read_npz
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.folders import part_in, part_of
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.readers import Rows

_DATA: Final = ("data", "x", "images", "image", "features", "arr_0")
_LABEL: Final = ("label", "labels", "y", "target", "targets", "masks", "arr_1")


def list_archive(path: Path, name: str, options: Options) -> Listing:
    """`train_data` and `train_label`, `x_train` and `y_train`, `data` and `label`, and other such names.

    Images are (N, C, H, W), (N, H, W, C) with 1, 3 or 4 channels, red first, or (N, H, W); rows and signals are
    (N, K) or (N, C, K). Labels are whole numbers (N), or (N, K): several 0 or 1, or numbers; or (N, H, W).
    """
    arrays = read_npz(path)
    found: dict[str | None, dict[str, Array]] = {}
    for key, array in arrays.items():
        part, kind = _meaning(key)
        if kind:
            found.setdefault(part, {})[kind] = array
    parts = {part: pair for part, pair in found.items() if len(pair) == 2}
    if not parts:
        raise InvalidArgument(
            f"{name} has the arrays {', '.join(sorted(arrays)[:20]) or '(none)'}; needed are data and "
            "label, train_data and "
            "train_label, or x_train and y_train"
        )
    notes: list[str] = []
    data = [_images(pair["data"], f"{name}, {part or 'data'}", notes) for part, pair in parts.items()]
    labels = [_labels(pair["label"], f"{name}, {part or 'label'}") for part, pair in parts.items()]
    for images, label, part in zip(data, labels, parts, strict=True):
        if len(images) != len(label):
            raise InvalidArgument(
                f"{name}: {part or 'data'} has {len(images):,} images and {len(label):,} labels"
            )
        if images.shape[1:] != data[0].shape[1:] or label.shape[1:] != labels[0].shape[1:]:
            raise InvalidArgument(
                f"{name}: {part} has another shape: {images.shape[1:]} and {data[0].shape[1:]}"
            )
    joined = np.concatenate(labels)
    task, targets, classes = _task(joined, data[0].shape[2:], options.task, name)
    images = np.concatenate(data) if len(data) > 1 else data[0]
    of = [part for part, label in zip(parts, labels, strict=True) for _ in range(len(label))]
    values = targets.tolist() if task in ("classification", "multi-label") else [0] * len(targets)
    entries = [Entry(f"image {k}", k, values[k], of[k]) for k in range(len(images))]
    listing = Listing(task, entries, classes, Rows(images, targets), "an .npz file", notes)
    listing.notes = list(dict.fromkeys(notes))
    return listing


def _meaning(key: str) -> tuple[str | None, str]:
    """The part and the kind, "data" or "label", that an array's name says."""
    words = key.lower().split("_") if not key.lower().startswith("arr_") else [key.lower()]
    part = part_in(words)
    rest = "_".join(word for word in words if part_of(word) is None)
    return part, "data" if rest in _DATA else "label" if rest in _LABEL else ""


def _images(array: Array, what: str, notes: list[str]) -> Array:
    """As N x C x H x W of bytes or float32."""
    if array.dtype.kind not in "uifb" or array.ndim < 2 or array.ndim > 4 or not array.size:
        raise InvalidArgument(
            f"{what} is {array.dtype} of shape {array.shape}: numbers, (N, C, H, W) for one, are needed"
        )
    if array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        array = array[..., :3] if array.shape[3] == 4 else array
        array = array[..., ::-1].transpose(0, 3, 1, 2)  # red first becomes blue first
        notes.append(
            "images with their channels last are taken as red, green, blue, and stored as blue, green, red"
        )
    elif array.ndim == 3:
        # N x H x W pictures, or N x C x K signals
        array = (
            array[:, np.newaxis]
            if array.dtype == np.uint8 or array.shape[1] > 16
            else array[:, :, np.newaxis]
        )
    elif array.ndim == 2:
        array = array[:, np.newaxis, np.newaxis]
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return np.ascontiguousarray(array, np.uint8)
    return np.ascontiguousarray(array, np.float32)


def _labels(labels: Array, what: str) -> Array:
    """Numbers for each image, N for (N, 1)."""
    if labels.dtype.kind not in "uifb" or not labels.ndim or 0 in labels.shape[1:]:
        raise InvalidArgument(
            f"{what}: labels are {labels.dtype} of shape {labels.shape}: one number an image, or several, are needed"
        )
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _task(labels: Array, extents: tuple[int, ...], task: str, name: str) -> tuple[str, Array, list[str]]:
    """What labels are, as they are stored, and the names of classes."""
    is_whole = labels.dtype.kind in "uib" or bool((labels == np.floor(labels)).all())
    if labels.shape[1:] == extents and labels.ndim == 3 and is_whole:
        if labels.min() < 0 or labels.max() > 255:
            raise InvalidArgument(
                f"{name}: masks hold {labels.min()} to {labels.max()}: 0 to 255 are classes of pixels"
            )
        most = int(labels[labels < 255].max(initial=0))
        return "segmentation", labels.astype(np.uint8), [f"class {k}" for k in range(most + 1)]
    if labels.ndim == 1 and is_whole and task in ("", "classification"):
        if labels.min() < 0 or labels.max() >= 100_000:
            raise InvalidArgument(
                f"{name}: labels are {labels.min()} to {labels.max()}: classes are numbered from 0 on"
            )
        return "classification", labels.astype(np.int64), [str(k) for k in range(int(labels.max()) + 1)]
    if labels.ndim > 2:
        raise InvalidArgument(f"{name}: labels of shape {labels.shape} are of no task that is known")
    labels = labels.reshape(len(labels), -1)
    if np.isin(labels, (0, 1)).all() and task in ("", "multi-label") and labels.shape[1] > 1:
        if task == "" and (labels.sum(1) == 1).all():  # one of them in each row: numbers of classes
            return (
                "classification",
                labels.argmax(1).astype(np.int64),
                [str(k) for k in range(labels.shape[1])],
            )
        return "multi-label", labels.astype(np.float32), [f"label {k}" for k in range(labels.shape[1])]
    return "regression", labels.astype(np.float32), []
