"""Data and ImageData: images and labels in batches, in the order of the source, from the start again at its end."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import log
from jitdnn.caffe import paths
from jitdnn.caffe.blob import Blob
from jitdnn.caffe.decoding import label_shape
from jitdnn.caffe.layers.base import BottomlessLayer, Layer
from jitdnn.caffe.pipeline import Pipeline, Waited
from jitdnn.caffe.raw_images import RawBatch, RawForm, RawUpload, refusal
from jitdnn.caffe.sources import ArraySource, ListSource, MappedSource, Source, open_source, read_image_list
from jitdnn.caffe.transform import Transform, Transformer
from jitdnn.errors import InvalidShape, JitdnnError
from jitdnn.settings import check_bytes

#: batches made ahead where no data_param.prefetch says it: Caffe's
PREFETCH = 4
_MOST_PLACES = 1 << 62


def named(layer: Layer, error: JitdnnError) -> JitdnnError:
    """The error with the layer's name in front."""
    where = layer.parameter
    return type(error)(f"layer {layer.name!r} ({layer.type}){where.where()}: {error}").at(where.place())


class SourceLayer(BottomlessLayer):
    """A layer that takes images and labels from a source: tops data (batch_size, C, H, W) and maybe label (batch_size),
    or (batch_size, ...) where the labels of the source are arrays.

    `position` is the place in the source of the next batch. Batches are made ahead by threads (pipeline.py); `waited`
    says how long the net stood still for them. On a GPU images of bytes go up as such (raw_images.py); where they
    cannot, `raw_refusal` says why.
    """

    tops = (1, 2)
    is_random = True

    source: Source | ArraySource
    transformer: Transform
    batch: int
    prefetch = PREFETCH
    position = 0
    raw_refusal: str | None = None
    _pipeline: Pipeline | None = None
    _form: RawForm | None = None
    _upload: RawUpload | None = None

    @abstractmethod
    def open(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Set `source`, `transformer`, `batch` and `position`, from the parameters."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.waited = Waited()
        self.open(bottom, top)
        device = self.context.device
        if device is None or self.context.shapes_only:
            return
        image = self.source.first_image()
        self.raw_refusal = refusal(device, self.transformer, image)
        if self.raw_refusal is not None:
            self._tell(self.raw_refusal)
            return
        self._form = RawForm.like(image, self.transformer.shape, device.host_memory)
        top[0].is_streamed = False  # it is made on the GPU

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.rows = self.context.rows(self.batch, f"a batch of layer {self.name!r}")
        self._count = self.rows.stop - self.rows.start
        if not isinstance(self.source, ArraySource):
            itemsize = self.context.dtype.itemsize if self._form is None else 1
            batch = self._count * math.prod(self.transformer.shape) * itemsize
            what = f"layer {self.name!r}: {self.prefetch} batches made ahead (data_param.prefetch)"
            check_bytes(what, self.prefetch * batch, InvalidShape)
        top[0].reshape((self._count, *self.transformer.shape))
        if len(top) == 2:
            source = self.source
            shape = () if isinstance(source, ArraySource) else label_shape(source, self.transformer)
            top[1].reshape((self._count, *shape))

    def skip(self) -> None:
        self.forward((), ())

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if isinstance(self.source, ArraySource):
            self._copy_arrays(self.source, top)
            return
        try:
            self._take(self.source, top)
        except JitdnnError as error:
            raise named(self, error) from None

    def _take(self, source: Source, top: Sequence[Blob]) -> None:
        pipeline = self._pipeline
        if pipeline is None or not pipeline.is_mine:
            pipeline = self._pipeline = Pipeline(
                source,
                self.transformer,
                self.batch,
                self.context.dtype,
                self.prefetch,
                self.position,
                self.context.random.bit_generator.state,
                self.waited,
                rows=self.rows,
                turns=self.context.turns,
                form=self._form,
            )
        batch = pipeline.take()
        if len(top) == 2:
            np.copyto(top[1].data, batch.labels)
        self.position = batch.next_place
        self.context.random.bit_generator.state = batch.random_state
        if top and batch.images is not None:
            if batch.refusal:
                self._tell(batch.refusal)
            np.copyto(top[0].data, batch.images)
        elif top:
            assert batch.raw is not None
            self._send(batch.raw, top[0], partial(pipeline.give_back, batch))
            return
        pipeline.give_back(batch)

    @cached_property
    def _raw(self) -> RawBatch | None:
        """Memory for a batch of arrays that go up as bytes."""
        return None if self._form is None else self._form.new(self._count)

    def _send(self, batch: RawBatch, top: Blob, give_back: Callable[[], None]) -> None:
        """Have the data made on the GPU."""
        if self._upload is None:
            assert self.context.device is not None
            assert isinstance(self.transformer, Transformer)
            self._upload = RawUpload(self.context.device, self.transformer, self.context.dtype)
        self._upload.send(batch, top, give_back)

    def _tell(self, reason: str) -> None:
        """Say once for each layer that, and why, images are transformed on the host."""
        log.fallback_once(
            ("caffe images on the host", self.name, reason),
            f"layer {self.name!r} ({self.type}): images are transformed on the host and copied to the GPU as "
            f"{self.context.dtype}, not as bytes: {reason}",
        )

    def _copy_arrays(self, source: ArraySource, top: Sequence[Blob]) -> None:
        """Arrays are in memory: they are transformed at once, and not ahead."""
        transformer = self.transformer
        assert isinstance(transformer, Transformer)
        raw = self._raw if top else None
        if raw is not None and self._upload is not None:
            self._upload.finish()
        filled = 0
        while filled < self.batch:
            stop = min(source.size, self.position + self.batch - filled)
            draws = transformer.draw(self.context.random, stop - self.position)
            # of these rows, filled .. of the batch, this process's
            first = max(filled, self.rows.start)
            last = max(first, min(filled + stop - self.position, self.rows.stop))
            rows = slice(first - self.rows.start, last - self.rows.start)
            places = slice(self.position + first - filled, self.position + last - filled)
            drawn = draws[first - filled : last - filled]
            if raw is not None:
                table = transformer.places(transformer.image, drawn)
                raw.fill(rows, source.data[places], table, transformer.crop)
            elif top:
                transformer.apply_drawn(source.data[places], top[0].data[rows], drawn)
            if len(top) == 2 and source.labels is not None:
                top[1].data[rows] = source.labels[places]
            filled += stop - self.position
            self.position = stop % source.size
        if raw is not None:
            self._send(raw, top[0], lambda: None)

    def state(self) -> dict[str, Any]:
        state = {**super().state(), "position": self.position, "size": self.source.size}
        if self._seed() is not None:
            state["seed"] = self._seed()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        if state == self.state():
            return  # what was made ahead stays
        size, position, seed = self.source.size, state["position"], state.get("seed")
        if state["size"] != size:
            raise self.invalid(
                f"the source has {size} images, and had {state['size']} when the state was saved"
            )
        most = _MOST_PLACES if size is None or self._seed() is not None else size
        if type(position) is not int or not 0 <= position < most:
            raise self.invalid(f"the saved position is {position!r}: it must be one of the source's images")
        if (seed is None) != (self._seed() is None) or not (
            seed is None or (type(seed) is int and seed >= 0)
        ):
            raise self.invalid(f"the saved seed of the order is {seed!r}")
        super().restore(state)
        self.position = position
        if isinstance(self.source, ListSource):
            self.source.shuffle_seed = seed
        if self._pipeline is not None:
            self._pipeline.stop()
            self._pipeline = None

    def _seed(self) -> int | None:
        """What the order of the source is drawn from, None where it is not random."""
        return self.source.shuffle_seed if isinstance(self.source, ListSource) else None

    def _refuse_v1(self, field: str) -> None:
        """Raises InvalidArgument if the field holds what belongs in transform_param since V2."""
        for name in ("scale", "mean_file", "crop_size", "mirror"):
            if getattr(self.parameter, field).has(name):
                raise self.invalid(f"{field}.{name} is V1 syntax: in V2 it belongs in transform_param", field)


class DataLayer(SourceLayer):
    """`data_param.source` is a database, LMDB or LevelDB, arrays (.npz, .npy) or a folder of images (sources.py),
    `package:data/mnist_5k.npz#train` for the digits that are shipped. What it is is found out by looking; `backend`
    must agree if it is there. `rand_skip` starts at a random place below it; `prefetch` batches are made ahead.
    """

    type = "Data"

    def open(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, transform = self.parameter.data_param, self.parameter.transform_param
        self._refuse_v1("data_param")
        if not parameter.source:
            raise self.invalid("data_param.source is missing", "data_param")
        if parameter.batch_size == 0:
            raise self.invalid("data_param.batch_size is missing or 0: it must be positive", "data_param")
        if transform.force_color and transform.force_gray:
            raise self.invalid("force_color and force_gray exclude each other", "transform_param")
        is_color = transform.force_color or parameter.force_encoded_color
        mode = "RGB" if is_color else "L" if transform.force_gray else None
        self.batch = parameter.batch_size
        self.prefetch = parameter.prefetch
        backend = parameter.backend if parameter.has("backend") else None
        self.source = open_source(parameter.source, self.context.base, mode, backend)
        if len(top) == 2 and not self.source.has_labels:
            raise self.invalid(
                f"source {parameter.source!r} has no labels for top {top[1].name!r}", "data_param"
            )
        self.transformer = Transformer(
            transform, self.context.base, self.context.phase, self.source.first_shape(), self.context.dtype
        )
        if isinstance(self.source, MappedSource) and len(top) == 2:
            self._refuse_boxes(self.source)
        if parameter.rand_skip:
            self.position = int(self.context.random.integers(parameter.rand_skip))
            if self.source.size is not None:
                self.position %= self.source.size

    def _refuse_boxes(self, source: MappedSource) -> None:
        """Raises InvalidArgument if images would be moved away from under labels that hold places."""
        transform = self.parameter.transform_param
        if len(source.label_shape) > 1 and not source.has_masks and (transform.crop_size or transform.mirror):
            raise self.invalid(
                f"labels of shape {source.label_shape} do not move with their images: take crop_size and mirror out",
                "transform_param",
            )


class ImageDataLayer(SourceLayer):
    """The images of a list, image_data_param.source: a line each, a file's name behind `root_folder`, a blank, a label.
    `new_height` and `new_width` resize them, `is_color` says whether they have three channels or one, `shuffle` draws
    another order for every round, `rand_skip` starts at a random place below it.
    """

    type = "ImageData"

    def open(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, random = self.parameter.image_data_param, self.context.random
        self._refuse_v1("image_data_param")
        if not parameter.source:
            raise self.invalid("image_data_param.source is missing", "image_data_param")
        if parameter.batch_size == 0:
            raise self.invalid("image_data_param.batch_size is 0: it must be positive", "image_data_param")
        size = (parameter.new_height, parameter.new_width)
        if (size[0] == 0) != (size[1] == 0):
            raise self.invalid("new_height and new_width: give both, or none", "image_data_param")
        if size[0] * size[1] > 1 << 26:
            raise self.invalid(
                f"new_height and new_width {size[0]} x {size[1]} are too many pixels", "image_data_param"
            )
        listed = read_image_list(paths.find(parameter.source, self.context.base))
        files = [(Path(parameter.root_folder + name), label) for name, label in listed]
        seed = int(random.integers(1 << 62)) if parameter.shuffle else None
        self.batch = parameter.batch_size
        self.source = ListSource(files, "RGB" if parameter.is_color else "L", size if size[0] else None, seed)
        self.transformer = Transformer(
            self.parameter.transform_param,
            self.context.base,
            self.context.phase,
            self.source.first_shape(),
            self.context.dtype,
        )
        if parameter.rand_skip:
            self.position = int(random.integers(parameter.rand_skip)) % len(files)
