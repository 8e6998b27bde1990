"""Layers that only move or count: Flatten, and the Split that the net puts behind a blob with several
readers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, canonical_axis, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.tensor_ops import add


class FlattenLayer(Layer):
    """The axes from `axis` to `end_axis` become one. The top is a view of the bottom."""

    type = "Flatten"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.flatten_param, bottom[0].shape
        start = canonical_axis(parameter.axis, len(shape), f"layer {self.name!r}")
        end = canonical_axis(parameter.end_axis, len(shape), f"layer {self.name!r}")
        if end < start:
            raise self.invalid(
                f"end_axis {end} is before axis {start} for a bottom of shape {shape}", "flatten_param"
            )
        flat = (*shape[:start], count(shape, start, end + 1), *shape[end + 1 :])
        if self.is_overwritten:
            top[0].reshape(flat)
        else:
            top[0].share(bottom[0], flat)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_overwritten:
            np.copyto(top[0].data, bottom[0].data.reshape(top[0].shape))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.is_overwritten and propagate[0]:
            np.copyto(bottom[0].diff, top[0].diff.reshape(bottom[0].shape))

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)


class SplitLayer(Layer):
    """The tops are the bottom; its gradient is the sum of theirs."""

    type = "Split"
    tops = (1, None)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob in top:
            blob.share_data(bottom[0])

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        sources = [blob.diff for blob, has in zip(top, self.top_has_gradient, strict=True) if has]
        dx = bottom[0].diff
        if len(sources) == 1:
            np.copyto(dx, sources[0])
            return
        add(sources[0], sources[1], out=dx)
        for source in sources[2:]:
            add(source, out=dx, beta=1.0)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)
