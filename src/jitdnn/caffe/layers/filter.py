"""Filter: the images that a selector chooses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.embedding import embedding, embedding_backward


class FilterLayer(Layer):
    """Bottoms (N, ...) and, as the last one, the selector (N) or (N, 1, ...); a top for each of the others, with the
    images where the selector is not 0.

    How many these are is known in the forward pass alone: tops and all layers behind them take their shapes there. That
    none is chosen is an error. The selector has no gradient.
    """

    undivided = "it chooses as many images as it happens"
    type = "Filter"
    bottoms = (2, None)
    tops = (1, None)
    may_resize = True
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) != len(bottom) - 1:
            raise self.invalid(
                f"{len(bottom)} bottoms, the last of which selects, need {len(bottom) - 1} tops, not {len(top)}"
            )
        self.chosen: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        images = bottom[-1].size
        if bottom[-1].shape[:1] != (images,):
            raise self.invalid(f"the selector has shape {bottom[-1].shape}: (N), or (N, 1, ...), is needed")
        for blob in bottom[:-1]:
            if blob.shape[:1] != (images,):
                raise self.invalid(
                    f"bottom {blob.name!r} has shape {blob.shape}, and the selector is for {images} images"
                )
        self.images, self.chosen = images, None
        for x, y in zip(bottom, top, strict=False):
            y.reshape(x.shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        chosen = np.flatnonzero(bottom[-1].data).astype(np.int64)
        if not len(chosen):
            raise self.invalid(f"the selector chose none of {self.images} images: the layers behind need one")
        self.chosen = chosen
        for x, y in zip(bottom, top, strict=False):
            y.reshape((len(chosen), *x.shape[1:]))
            embedding(chosen, x.data.reshape(self.images, -1), out=y.data.reshape(len(chosen), -1))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[-1]:
            raise self.invalid("the selector has no gradient: it must not depend on trained weights")
        if self.chosen is None:
            raise self.invalid("backward needs a forward pass before it")
        for x, y, is_wanted in zip(bottom, top, propagate, strict=False):
            if is_wanted:
                dy = y.diff.reshape(len(self.chosen), -1)
                embedding_backward(dy, self.chosen, self.images, out=x.diff.reshape(self.images, -1))

    def may_force_backward(self, index: int) -> bool:
        return index < len(self.parameter.bottom) - 1
