"""Data: images and labels in batches, in the order of the source, from the start again at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.sources import SUPPORTED, image_shape, open_source
from jitdnn.caffe.transform import Transformer
from jitdnn.errors import InvalidShape, NotSupported


class DataLayer(Layer):
    """Tops: data (batch_size, C, H, W) and optionally label (batch_size).

    `data_param.source` is an .npz file or a folder of images (sources.py), `package:data/mnist_5k.npz#train`
    for the digits that are shipped. `rand_skip` starts at a random place below it. Batches are not
    prefetched, so `prefetch` changes nothing; an explicit `backend` is refused, for both that exist are
    databases.
    """

    type = "Data"
    bottoms = (0, 0)
    tops = (1, 2)
    may_rerun = False
    is_random = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, transform = self.parameter.data_param, self.parameter.transform_param
        if parameter.has("backend"):
            raise NotSupported(
                f"layer {self.name!r}{parameter.where('backend')}: backend {parameter.backend}; {SUPPORTED}. "
                "Take the backend line out"
            )
        for name in ("scale", "mean_file", "crop_size", "mirror"):
            if parameter.has(name):
                raise self.invalid(
                    f"data_param.{name} is V1 syntax: in V2 it belongs in transform_param", "data_param"
                )
        if not parameter.source:
            raise self.invalid("data_param.source is missing", "data_param")
        if parameter.batch_size == 0:
            raise self.invalid("data_param.batch_size is missing or 0: it must be positive", "data_param")
        if transform.force_color and transform.force_gray:
            raise self.invalid("force_color and force_gray exclude each other", "transform_param")
        mode = "RGB" if transform.force_color else "L" if transform.force_gray else None
        self.batch = parameter.batch_size
        self.source = open_source(parameter.source, self.context.base, mode)
        if len(top) == 2 and self.source.labels is None:
            raise self.invalid(
                f"source {parameter.source!r} has no labels for top {top[1].name!r}", "data_param"
            )
        self.transformer = Transformer(
            transform, self.context.base, self.context.phase, image_shape(self.source), self.context.dtype
        )
        self.position = 0
        if parameter.rand_skip:
            self.position = int(self.context.random.integers(parameter.rand_skip)) % len(self.source)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape((self.batch, *self.transformer.shape))
        if len(top) == 2:
            top[1].reshape((self.batch,))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        filled = 0
        while filled < self.batch:
            stop = min(len(self.source), self.position + self.batch - filled)
            rows = slice(filled, filled + stop - self.position)
            start, images = self.position, self.source.images(self.position, stop)
            target = top[0].data[rows]

            def named(index: int, start: int = start) -> str:
                return self.source.name(start + index)

            try:
                self.transformer.apply(images, target, self.context.random, named)
            except InvalidShape as error:
                raise InvalidShape(str(self.invalid(str(error)))) from error
            if len(top) == 2 and self.source.labels is not None:
                top[1].data[rows] = self.source.labels[self.position : stop]
            filled = rows.stop
            self.position = stop % len(self.source)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        pass

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "position": self.position, "size": len(self.source)}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["size"] != len(self.source):
            raise self.invalid(
                f"the source has {len(self.source)} images, and had {state['size']} when the state was saved"
            )
        position = state["position"]
        if type(position) is not int or not 0 <= position < len(self.source):
            raise self.invalid(f"the saved position is {position!r}: it must be one of the source's images")
        super().restore(state)
        self.position = position
