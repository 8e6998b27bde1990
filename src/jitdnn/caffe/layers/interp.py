"""Interp: bilinear resizing with the corners aligned, of DeepLab's fork."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.resize import resize, resize_backward
from jitdnn.ops.tensor_ops import fill
from jitdnn.ops.transform import transform


class InterpLayer(Layer):
    """Bottom (N, C, H, W), top (N, C, P, Q), bilinear, corners upon corners. The extents are `height` and `width`, or
    follow from each i by shrink_factor, o = ⌊(i − 1) / s⌋ + 1, and then by zoom_factor, o = i + (i − 1) (z − 1).
    pad_beg and pad_end, 0 or less, cut so many rows and columns off first.
    """

    type = "Interp"
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.interp_param
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        if max(parameter.pad_beg, parameter.pad_end) > 0:
            raise self.invalid(
                f"pad_beg {parameter.pad_beg} and pad_end {parameter.pad_end} cut off: they must be 0 or less",
                "interp_param",
            )
        has_size, has_factor = (
            parameter.has("height"),
            parameter.has("zoom_factor") or parameter.has("shrink_factor"),
        )
        if has_size != parameter.has("width") or has_size == has_factor:
            raise self.invalid(
                "give height and width, or zoom_factor or shrink_factor or both", "interp_param"
            )
        numbers = (
            (parameter.height, parameter.width)
            if has_size
            else (parameter.zoom_factor, parameter.shrink_factor)
        )
        if min(numbers) < 1:
            raise self.invalid(f"extents or factors are {numbers}: they must be positive", "interp_param")
        self.has_size = has_size

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.interp_param, bottom[0].shape
        extents = tuple(extent + parameter.pad_beg + parameter.pad_end for extent in shape[2:])
        if min(extents) < 1:
            raise self.invalid(
                f"pad_beg {parameter.pad_beg} and pad_end {parameter.pad_end} leave nothing of a bottom {shape}"
            )
        inside = [slice(-parameter.pad_beg, extent + parameter.pad_end) for extent in shape[2:]]
        self.part = (slice(None), slice(None), *inside)
        self.cuts = extents != shape[2:]
        if self.has_size:
            self.size = (parameter.height, parameter.width)
        else:
            shrunk = ((extent - 1) // parameter.shrink_factor + 1 for extent in extents)
            height, width = (extent + (extent - 1) * (parameter.zoom_factor - 1) for extent in shrunk)
            self.size = (height, width)
        top[0].reshape((*shape[:2], *self.size))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = transform(bottom[0].values[self.part]) if self.cuts else bottom[0].values
        resize(x, self.size, mode="linear", coordinates="align_corners", out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        dx = bottom[0].gradient
        inside = dx[self.part]
        if self.cuts:
            fill(dx, 0.0)
        resize_backward(top[0].gradient, inside.shape, mode="linear", coordinates="align_corners", out=inside)
