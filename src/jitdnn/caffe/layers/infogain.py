"""InfogainLoss: a softmax and a loss in which every confusion of classes has its own weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.arrays import read_npy
from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.blob_proto import read_binaryproto
from jitdnn.caffe.layers.base import Reads
from jitdnn.caffe.layers.labels import checked_labels
from jitdnn.caffe.layers.losses import LEAST_PROBABILITY
from jitdnn.caffe.layers.softmax import SoftmaxWithLossLayer
from jitdnn.caffe.paths import find
from jitdnn.ops.softmax import softmax


class InfogainLossLayer(SoftmaxWithLossLayer):
    """−Σ H[label, class] log max(p[class], 1e-20) / norm, p the softmax of the scores (outer, classes, inner) along
    infogain_loss_param.axis (1). H (classes, classes) is the third bottom, or the array of the file `source`,
    .binaryproto or .npy. Labels, tops and norm as those of SoftmaxWithLoss. Only the scores have a gradient.
    """

    type = "InfogainLoss"
    is_for_gpu = False
    bottoms = (2, 3)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        source = self.parameter.infogain_loss_param.source
        self.matrix: Array | None = None
        if len(bottom) == 3:
            return
        if not source:
            raise self.invalid(
                "give the matrix as a third bottom, or its file as source", "infogain_loss_param"
            )
        path = find(source, self.context.base)
        matrix = read_npy(path) if path.suffix == ".npy" else read_binaryproto(path)
        self.matrix = matrix.astype(self.context.dtype)

    def axis_given(self) -> int:
        return self.parameter.infogain_loss_param.axis

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        classes = self.view[1]
        shape = bottom[2].shape if self.matrix is None else self.matrix.shape
        if np.prod(shape, dtype=int) != classes * classes or shape[-1:] != (classes,):
            raise self.invalid(f"the matrix has shape {shape}; {classes} classes need ({classes}, {classes})")

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows = self._prepared(bottom, top)
        losses = -(rows * np.log(np.maximum(self.probability.data.reshape(self.view), LEAST_PROBABILITY)))
        total = losses.sum(axis=1, keepdims=True, dtype=np.float64).sum(where=self.is_counted)
        top[0].data[...] = total / self.divisor

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if any(propagate[1:]):
            raise self.invalid("labels and matrix have no gradient: they must not depend on trained weights")
        if not propagate[0]:
            return
        rows = self._rows(bottom)
        dx = bottom[0].diff.reshape(self.view)
        np.multiply(self.probability.data.reshape(self.view), rows.sum(axis=1, keepdims=True), out=dx)
        dx -= rows
        dx *= self.context.dtype.type(float(top[0].diff) / self.divisor)
        np.copyto(dx, 0, where=~self.is_counted)

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.matrix is None, top=False)

    def _prepared(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Array:
        """Compute probabilities, labels and norm, and return the rows of H by the labels."""
        softmax(bottom[0].data, axis=self.axis, algorithm="accurate", out=self.probability.data)
        outer, classes, inner = self.view
        labels, is_counted = checked_labels(self, bottom[1].data, classes, self.ignored)
        self.places, self.is_counted = labels.reshape(outer, 1, inner), is_counted.reshape(outer, 1, inner)
        found = np.array([is_counted.sum()], np.float64)
        if not self.norm and self.context.part is not None:
            self.context.part.sum(found)
        self.divisor = self.norm or float(max(1, found[0]))
        if len(top) == 2:
            np.copyto(top[1].data, self.probability.data)
        return self._rows(bottom)

    def _rows(self, bottom: Sequence[Blob]) -> Array:
        """The rows of H by the labels, as (outer, classes, inner)."""
        classes = self.view[1]
        matrix = bottom[2].data if self.matrix is None else self.matrix
        return np.moveaxis(matrix.reshape(classes, classes)[self.places[:, 0, :]], -1, 1)
