"""A trained net that answers about images: the weights of a run, held for the next question.

Everything that is asked of a run's net, in evaluation, classification, looking inside and export, comes through
`Trained`, so that there is one way from an image to the net's input.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe import CompiledNet, Net, NetParameter, NetState
from jitdnn.caffe.deployment import Deployment, deployment
from jitdnn.caffe.load import parse_file
from jitdnn.caffe.weights import share_weights
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.studio import texts
from jitdnn.studio.data import Dataset, open_dataset
from jitdnn.studio.store import BEST, run_folder

Array = NDArray[Any]
Row = Mapping[str, Any]
Found = dict[str, Any]
_MOST_BATCH: Final = 64
_BATCH_BYTES: Final = 256 << 20  # of the blobs of a batch
_KEPT: Final = 3  # nets held in this process


class Trained:
    """A net for testing with its weights, for any number of images."""

    def __init__(self, deployment: Deployment, weights: Path | None, base: Path | None, task: str) -> None:
        """Build it for one image and read the weights (None: as its fillers make them)."""
        self.deployment, self.task, self._base = deployment, task, base
        self.input, self.scores, self.answer = deployment.input, deployment.scores, deployment.answer
        self.transformer = deployment.transformer
        self.one = Net(deployment.net.copy(), NetState(phase="TEST"), base=base, seed=0)
        if weights is not None:
            self.one.load_weights(weights)
        self._many: Net | None = None
        self._compiled: CompiledNet | None = None
        self.batch = self._batch()

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the images that it takes, before they are cropped."""
        return self.transformer.image

    def prepare(self, images: Array) -> NDArray[np.float32]:
        """What the net gets for images (N, C, H, W): cropped in the middle, less the mean, scaled.

        Raises InvalidShape for images of another shape.
        """
        if images.ndim != 4 or images.shape[1:] != self.image_shape:
            raise InvalidShape(
                f"images have shape {images.shape}, and this net takes (N, {', '.join(map(str, self.image_shape))})"
            )
        out = np.empty((len(images), *self.transformer.shape), np.float32)
        for start in range(0, len(images), 256):  # of an array on disk as much as is needed
            part = np.asarray(images[start : start + 256])
            self.transformer.apply(part, out[start : start + 256], np.random.default_rng(0))
        return out

    def predict(self, images: Array) -> Array:
        """The answers (N, ...) for images (N, C, H, W): probabilities, or numbers of a regression."""
        return self.run(self.prepare(images))

    def fill(self, images: Array) -> Array:
        """The answer for one image (1, C, H, W), with every blob of `one` as the pass leaves it."""
        self.one.forward(**{self.input: self.prepare(images)})
        return self.one.blobs[self.answer].data.copy()

    def run(self, inputs: Array, blob: str | None = None) -> Array:
        """What a blob (None: the answer) holds for inputs that are prepared, (N, ...)."""
        name = blob or self.answer
        if len(inputs) == 1:
            if name == self.answer:
                answer: Array = self.compiled.forward(**{self.input: inputs})[name]
                return answer
            self.one.forward(**{self.input: inputs})
            return self.one.blobs[name].data.copy()
        net, found = self.many, list[Array]()  # which settles the batch, too
        padded = np.zeros((self.batch, *inputs.shape[1:]), np.float32)
        for start in range(0, len(inputs), self.batch):
            part = inputs[start : start + self.batch]
            padded[: len(part)] = part
            padded[len(part) :] = 0
            if name == self.answer:
                values = self.compiled.forward(**{self.input: padded})[name]
            else:
                net.forward(**{self.input: padded})
                values = net.blobs[name].data
            if len(values) != self.batch:
                raise InvalidArgument(
                    f"blob {name!r} has shape {values.shape}: not one row for each of {self.batch} images"
                )
            found.append(values[: len(part)].copy())
        return np.concatenate(found) if found else np.empty((0, *self.one.blobs[name].shape[1:]), np.float32)

    def boxes(self, images: Array) -> list[Array]:
        """What a net that ends in DetectionOutput finds in images (N, C, H, W): of each (M, 6), class, confidence, and
        edges as parts of width and height. Raises InvalidArgument for a net that gives no boxes.
        """
        found = []
        for inputs in self.prepare(images):
            rows = self.run(inputs[np.newaxis])
            if rows.shape[-1] != 7:
                raise InvalidArgument(
                    f"the net answers with shape {rows.shape}: boxes are (1, 1, M, 7), as DetectionOutput gives them"
                )
            rows = rows.reshape(-1, 7)[:, 1:]
            rows = rows[rows[:, 0] >= 1]  # 0 is the background, -1 that nothing was found
            found.append(rows - np.array([1, 0, 0, 0, 0, 0], rows.dtype))
        return found

    @property
    def compiled(self) -> CompiledNet:
        """The net prepared for its answer alone, with a plan for each number of images."""
        if self._compiled is None:
            self._compiled = self.one.compiled([self.answer])
        return self._compiled

    @property
    def many(self) -> Net:
        """The net for `batch` images at a time, with the weights of `one`."""
        if self._many is None:
            try:
                self._many = self._for_batch()
            except InvalidArgument:  # a net for one number of images, by a Reshape that says so
                self.batch = 1
                self._many = self._for_batch()
        return self._many

    def _for_batch(self) -> Net:
        parameter = self.deployment.net.copy()
        parameter.layer[0].input_param.shape[0].dim[0] = self.batch
        net = Net(parameter, NetState(phase="TEST"), base=self._base, seed=0)
        answer = net.blobs[self.answer].shape
        if self.task != "detection" and answer[:1] != (self.batch,):
            raise InvalidArgument(
                f"the net answers {self.batch} images with shape {answer}: one row each is needed"
            )
        share_weights(net, self.one)
        return net

    def net_with_gradient(self, blob: str, layer: str | None = None, batch: int = 1) -> Net:
        """A net that ends in a blob, as the layer of that name leaves it (None: the last one that writes it), and goes
        backward to its input: fill the blob's `diff`, and read the input's.
        """
        parameter = self.deployment.net.copy()
        writers = [i for i, each in enumerate(parameter.layer) if blob in each.top]
        named = [i for i in writers if parameter.layer[i].name == layer]
        if not writers or (layer is not None and not named):
            raise InvalidArgument(
                f"the net has no blob {blob!r}" + (f" of a layer {layer!r}" if layer else "")
            )
        parameter.layer = parameter.layer[: (named or writers)[-1] + 1]
        parameter.layer = _needed(parameter, blob)
        parameter.force_backward = True
        parameter.layer[0].input_param.shape[0].dim[0] = batch
        net = Net(parameter, NetState(phase="TEST"), base=self._base, seed=0, fuse=False)
        share_weights(net, self.one)
        for each in net.layers:
            each.weight_needs_gradient = [False] * len(each.weights)
        return net

    def _batch(self) -> int:
        bytes_each = sum(blob.nbytes for blob in self.one.blobs.values())
        return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, bytes_each)))


def _needed(parameter: NetParameter, blob: str) -> list[Any]:
    """The layers that a blob depends on, and the input."""
    needed, kept = {blob}, list[Any]()
    for layer in reversed(parameter.layer):
        if needed.intersection(layer.top) or layer.type == "Input":
            kept.append(layer)
            needed.update(layer.bottom)
    return kept[::-1]


class Given(NamedTuple):
    """The image that a net is asked about: the bytes of a file, or (None) image `at` of a part ("": the one that is
    evaluated) of its data set; `inverted`: dark and light change places."""

    content: bytes | None = None
    part: str = ""
    at: int = 0
    inverted: bool = False


class Weights(NamedTuple):
    """Weights of a run: the name that chooses them, the file, and what a list of them says."""

    name: str
    path: Path
    title: str
    #: of the file: another one when it is written anew
    key: str


def weights_of(folder: Path) -> list[Weights]:
    """The weights of a run's folder, the best first, then snapshots, the newest first."""
    found = [(BEST, texts.text("best"))] if (folder / BEST).is_file() else []
    snapshots = sorted(folder.glob("snap_iter_*.jdsnap"), key=lambda file: -_iteration(file))
    found += [
        (file.name, texts.text("iteration %(number)s", number=f"{_iteration(file):,}")) for file in snapshots
    ]
    chosen = []
    for name, title in found:
        try:
            status = (folder / name).stat()
        except FileNotFoundError:  # a newer snapshot took its place meanwhile
            continue
        chosen.append(
            Weights(name, folder / name, title, f"{name}-{status.st_mtime_ns:x}-{status.st_size:x}")
        )
    return chosen


def choose_weights(folder: Path, name: str = "") -> Weights:
    """The weights of that name, "" for the best, or the newest snapshot where there are none yet. Raises
    InvalidArgument."""
    found = weights_of(folder)
    if not found:
        raise InvalidArgument("there are no weights yet: wait for the first test or snapshot")
    for each in found:
        if each.name == name:
            return each
    if name:
        raise InvalidArgument(
            f"there are no weights {name!r}: there are {', '.join(each.name for each in found)}"
        )
    return found[0]


_held: OrderedDict[tuple[str, str], Trained] = OrderedDict()


def open_trained(home: Path, run: Row, dataset: Row, weights: str = "") -> tuple[Trained, Dataset]:
    """The net of a run with the weights of that name, and its data set; a few nets are held for the next question."""
    folder = run_folder(home, run["id"])
    chosen, data = choose_weights(folder, weights), open_dataset(home, dataset)
    key = (str(folder), chosen.key)
    if key not in _held:
        while len(_held) >= _KEPT:
            _held.popitem(last=False)
        deployed = deployment(parse_file(folder / "net.prototxt", NetParameter), tuple(data.shape), folder)
        try:
            _held[key] = Trained(deployed, chosen.path, folder, dataset.get("task") or "classification")
        except (FileNotFoundError, InvalidArgument):
            if chosen.path.exists():
                raise
            raise InvalidArgument(
                f"the weights {chosen.name} are gone, since the run took newer snapshots: look again"
            ) from None
    _held.move_to_end(key)
    return _held[key], data


def _iteration(file: Path) -> int:
    try:
        return int(file.stem.rsplit("_", 1)[1])
    except ValueError:
        return -1
