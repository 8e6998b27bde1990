"""Upsample of Caffe's forks: by the mask of a pooling, or each value several times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, Shape
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.reduce import reduce
from jitdnn.ops.tensor_ops import add
from jitdnn.ops.unpooling import max_unpool, max_unpool_backward


class UpsampleLayer(Layer):
    """Bottom (N, C, H, W), top (N, C, P, Q) with P = `upsample_h`, or H `scale_h` (`scale`, 2), one less with
    `pad_out_h`; Q alike.

    With a mask as second bottom, the second top of a maximum pooling (SegNet's files), each value goes to the place
    that the mask says, and all else is 0; of several for one place the last stays. Without it each value stands
    `scale_h` times `scale_w` times. The mask's gradient is 0.
    """

    type = "Upsample"
    bottoms = (1, 2)
    forced_bottoms = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.upsample_param
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        if parameter.has("upsample_h") != parameter.has("upsample_w"):
            raise self.invalid("give both upsample_h and upsample_w, or neither", "upsample_param")
        self.scales = tuple(
            getattr(parameter, name) if parameter.has(name) else parameter.scale
            for name in ("scale_h", "scale_w")
        )
        if min(self.scales) < 1:
            raise self.invalid(f"scale is {self.scales}: it must be positive", "upsample_param")
        is_sized = parameter.has("upsample_h") or parameter.pad_out_h or parameter.pad_out_w
        if len(bottom) == 1 and is_sized:
            raise self.invalid(
                "without a mask each value stands scale times: upsample_h, upsample_w, pad_out_h and pad_out_w "
                "are for a mask as second bottom",
                "upsample_param",
            )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.upsample_param, bottom[0].shape
        self.space: Shape = tuple(
            extent * scale - is_less
            for extent, scale, is_less in zip(
                shape[2:], self.scales, (parameter.pad_out_h, parameter.pad_out_w), strict=True
            )
        )
        if parameter.has("upsample_h"):
            self.space = (parameter.upsample_h, parameter.upsample_w)
        if min(self.space) < 1:
            raise self.invalid(f"the top would have extents {self.space}", "upsample_param")
        if len(bottom) == 2 and bottom[1].shape != shape:
            raise self.invalid(f"the mask has shape {bottom[1].shape}, the bottom {shape}: they must agree")
        top[0].reshape((*shape[:2], *self.space))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) == 2:
            max_unpool(bottom[0].data, self._places(bottom[1]), self.space, out=top[0].data)
            return
        n, c, h, w = bottom[0].shape
        tall, wide = self.scales
        add(bottom[0].data.reshape(-1, h, 1, w, 1), out=top[0].data.reshape(n * c, h, tall, w, wide))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if any(propagate[1:]):  # a pooling behind trained weights made it
            bottom[1].diff.fill(0)
        if not propagate[0]:
            return
        if len(bottom) == 2:
            max_unpool_backward(top[0].diff, self._places(bottom[1]), out=bottom[0].diff)
            return
        n, c, h, w = bottom[0].shape
        tall, wide = self.scales
        reduce(
            top[0].diff.reshape(n * c, h, tall, w, wide),
            axes=(2, 4),
            out=bottom[0].diff.reshape(n * c, h, w),
        )

    def backward_reads(self) -> Reads:
        return Reads(bottom=len(self.parameter.bottom) == 2, top=False)

    def _places(self, mask: Blob) -> np.ndarray[Shape, np.dtype[np.int32]]:
        size = self.space[0] * self.space[1]
        if not (mask.data < size).all():
            raise self.invalid(
                f"the mask names place {mask.data.max():g} of an image of {self.space[0]} x {self.space[1]}: give the "
                "extents of the pooling's bottom as upsample_h and upsample_w"
            )
        return mask.data.astype(np.int32)
