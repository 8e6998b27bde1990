"""One image, or some, to what the net says of them: classes, labels, numbers, the class of each pixel, boxes."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.limits import IMAGE_BYTES
from jitdnn.studio.data.drawing import class_colour
from jitdnn.studio.data.options import options_of
from jitdnn.studio.data.pictures import SUFFIXES, picture
from jitdnn.studio.look import pictures
from jitdnn.studio.look.evaluate import name_of, plain
from jitdnn.studio.look.trained import Array, Found, Given, Row, Trained, open_trained

TOP: Final = 5
#: files in a zip or a list, and bytes that all of them unpack to
MOST_FILES: Final = 10_000
MOST_BYTES: Final = 4 << 30


def classify(home: Path, run: Row, dataset: Row, given: Given, *, weights: str = "") -> Found:
    """What a net says of an image.

    Returns `task`, `image` and `seen` (PNG: what was given, fitted to the data set; what the net gets of it), `true`
    if it is known, `milliseconds` of preparing and running the net, and by the task `top` (class, name, probability),
    `labels`, `numbers`, or `overlay` (PNG). Raises InvalidArgument for a file that is no image, a place that is not
    there.
    """
    trained, data = open_trained(home, run, dataset, weights)
    image, true = given_image(trained, data, dataset, given)
    begun = time.perf_counter()
    inputs = trained.prepare(image[np.newaxis])
    answer = trained.run(inputs)
    took = time.perf_counter() - begun
    found: Found = {
        "task": trained.task,
        "image": pictures.image_png(image),
        "seen": pictures.image_png(inputs[0]),
        "milliseconds": round(1e3 * took, 2),
        **describe(trained.task, answer[0], data.classes),
    }
    if trained.task == "segmentation":
        said = answer[0].argmax(0)
        found["overlay"] = pictures.classes_over(pictures.cropped(image, said.shape), said)
        if true is not None:
            found["true_overlay"] = pictures.classes_over(image, true)
        found["top"] = [
            {**each, "colour": "#{:02x}{:02x}{:02x}".format(*class_colour(each["class"]))}
            for each in found["top"] if each["probability"]
        ]  # fmt: skip
    elif trained.task == "detection":
        boxes = [
            *_true_boxes(true, image, data.classes),
            *_found_boxes(trained.boxes(image[np.newaxis])[0], image, data.classes),
        ]
        found["overlay"] = pictures.boxes_over(image, boxes)
    found["true"] = None if true is None else _true(trained.task, true, data.classes)
    return found


def describe(task: str, answer: Array, classes: Sequence[str], top: int = TOP) -> Found:
    """One answer in words: the `top` classes (of a segmentation by their shares of the pixels), the `labels` that are
    there, or the `numbers`."""
    values = answer.reshape(-1)
    if task == "segmentation":
        values = np.bincount(answer.argmax(0).reshape(-1), minlength=len(answer)) / answer[0].size
    if task in ("classification", "segmentation"):
        best = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:top]
        return {"top": [_entry(classes, int(k), values[k]) for k in best]}
    if task == "multi-label":
        order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
        return {
            "labels": [
                {**_entry(classes, int(k), values[k]), "said": bool(values[k] >= 0.5)} for k in order[:40]
            ]
        }
    if task == "regression":
        return {
            "numbers": [{"name": name_of(classes, k), "value": plain(v)} for k, v in enumerate(values[:100])]
        }
    return {}


def given_image(trained: Trained, data: Any, dataset: Row, given: Given) -> tuple[Array, Any]:
    """The image (C, H, W) of a file or of a part, and its label if it has one."""
    content, part, at, inverted = given
    if content is not None:
        image = decode(dataset, content)
        return (255 - image if inverted else image), None
    part = part or data.evaluation_part
    images = data.images(part)
    if not 0 <= at < len(images):
        raise InvalidArgument(f"there is no image {at} in part {part!r}: 0 to {len(images) - 1} are there")
    image, label = np.array(images[at]), np.array(data.labels(part)[at])
    return (255 - image if inverted and image.dtype == np.uint8 else image), label


def decode(dataset: Row, content: bytes) -> Array:
    """An image file as an image (C, H, W) of a data set, fitted as its own images were. Raises InvalidArgument."""
    if len(content) > IMAGE_BYTES:
        raise InvalidArgument(f"the file has {len(content):,} bytes: at most {IMAGE_BYTES:,} are read")
    shape, settings = tuple(dataset["shape"]), dict(dataset.get("settings") or {})
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InvalidArgument(f"this data set has no images but arrays of shape {shape}: give one of its own")
    settings |= {"height": shape[1], "width": shape[2], "grey": shape[0] == 1, "group": ""}
    return picture(content, options_of(settings))


def count_files(name: str, file: BinaryIO) -> int:
    """How many images `files_in` will give. Raises InvalidArgument as it does."""
    if not _is_zip(file):
        return 1
    with _unpacked(name, file) as packed:
        return len(_members(name, packed))


def files_in(name: str, file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The image files that were given, one after the other: those in a zip file, in the order of names, or the file.

    Raises InvalidArgument for a damaged zip file, and beyond MOST_FILES or MOST_BYTES.
    """
    if not _is_zip(file):
        yield name, file.read(IMAGE_BYTES + 1)
        return
    with _unpacked(name, file) as packed:
        total = 0
        for info in _members(name, packed):
            with packed.open(info) as member:  # counted as it comes, whatever the file says of its size
                taken = member.read(min(IMAGE_BYTES, MOST_BYTES - total) + 1)
            total += len(taken)
            if len(taken) > IMAGE_BYTES or total > MOST_BYTES:
                raise InvalidArgument(
                    f"{info.filename} in {name} unpacks to more than it may: is this a zip bomb?"
                )
            yield info.filename, taken


def _is_zip(file: BinaryIO) -> bool:
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return start == b"PK\3\4"


def _members(name: str, packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    infos = [
        info for info in packed.infolist()
        if not info.is_dir() and PurePosixPath(info.filename).suffix.lower() in SUFFIXES
        and not {"__MACOSX", ".."} & set(PurePosixPath(info.filename).parts)
    ]  # fmt: skip
    if len(infos) > MOST_FILES:
        raise InvalidArgument(f"{name} has {len(infos):,} images: at most {MOST_FILES:,} at a time")
    return sorted(infos, key=lambda each: each.filename)


@contextmanager
def _unpacked(name: str, file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as packed:
            yield packed
    except InvalidArgument:
        raise
    except Exception as error:  # zipfile may raise anything over damaged bytes
        raise InvalidArgument(f"{name} cannot be read as a zip file: {error}") from None


def classify_files(
    home: Path, run: Row, dataset: Row, files: Sequence[tuple[str, bytes | str]], weights: str = ""
) -> list[Found]:
    """What a net says of some image files: `name` and what `describe` gives, or `error` for a file that is no image, or
    could not be had: text in place of its content says why."""
    trained, data = open_trained(home, run, dataset, weights)
    images: list[Array] = []
    found: list[Found] = []
    for name, content in files:
        if isinstance(content, str):
            found.append({"name": name, "error": content})
            continue
        try:
            images.append(decode(dataset, content))
            found.append({"name": name})
        except InvalidArgument as error:
            found.append({"name": name, "error": str(error)})
    answers = iter(trained.predict(np.stack(images))) if images else iter(())
    for each in found:
        if "error" not in each:
            each |= describe(trained.task, next(answers), data.classes)
    return found


def _entry(classes: Sequence[str], number: int, value: Any) -> Found:
    return {"class": number, "name": name_of(classes, number), "probability": plain(value)}


def _true(task: str, label: Any, classes: Sequence[str]) -> Any:
    if task == "classification":
        return {"class": int(label), "name": name_of(classes, int(label))} if int(label) >= 0 else None
    if task == "multi-label":
        return [name_of(classes, int(k)) for k in np.flatnonzero(np.asarray(label) > 0)]
    return [plain(v) for v in np.asarray(label).reshape(-1)[:100]] if task == "regression" else None


def _true_boxes(label: Any, image: Array, classes: Sequence[str]) -> list[pictures.Box]:
    if label is None:
        return []
    height, width = image.shape[1:]
    found = []
    for number, *edges in np.asarray(label).reshape(-1, 5).tolist():
        if number >= 0:
            left, top, right, bottom = (e * s for e, s in zip(edges, (width, height) * 2, strict=True))
            text = name_of(classes, int(number))
            found.append(pictures.Box(left, top, right, bottom, text, int(number), dashed=True))
    return found


def _found_boxes(
    found: Array, image: Array, classes: Sequence[str], least: float = 0.3
) -> list[pictures.Box]:
    """The boxes (M, 6) that are sure enough to be drawn."""
    height, width = image.shape[1:]
    boxes = []
    for number, sure, *edges in found.tolist():
        if sure >= least:
            left, top, right, bottom = (e * s for e, s in zip(edges, (width, height) * 2, strict=True))
            text = f"{name_of(classes, int(number))} {sure:.0%}"
            boxes.append(pictures.Box(left, top, right, bottom, text, int(number)))
    return boxes
