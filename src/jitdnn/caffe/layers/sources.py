"""Layers without bottoms that read no file: Parameter, a weight as a blob, and DummyData."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Blob, Shape
from jitdnn.caffe.fillers import fill
from jitdnn.caffe.layers.base import BottomlessLayer, Layer, Reads, copy
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.ops.tensor_ops import add


class ParameterLayer(Layer):
    """A weight of the shape parameter_param.shape, 0 at first, is the top."""

    type = "Parameter"
    bottoms = (0, 0)
    parts_of_top = "same"
    is_for_gpu = True
    writes_gradients = True
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = tuple(self.parameter.parameter_param.shape.dim)
        if any(extent < 0 for extent in shape):
            raise self.invalid(f"shape {shape} has a negative extent", "parameter_param")
        self.add_weight(shape, FillerParameter())

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(self.weights[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        copy(self.weights[0].values, top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.weight_needs_gradient[0]:
            add(
                top[0].gradient.reshape(-1),
                out=self.weights[0].gradient.reshape(-1),
                beta=self.beta(self.weights[0]),
            )


class DummyDataLayer(BottomlessLayer):
    """Tops of the shapes in dummy_data_param: one `shape` for all, or one each, or num, channels, height and width, as
    many of each. `data_filler`: none (0), one for all, or one each; what is not constant is drawn anew in every pass.
    """

    type = "DummyData"
    fills_tops = False  # constants stay
    tops = (1, None)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, tops = self.parameter.dummy_data_param, len(top)
        old = (parameter.num, parameter.channels, parameter.height, parameter.width)
        if parameter.shape and any(old):
            raise self.invalid("shape and num, channels, height, width: keep shape", "dummy_data_param")
        if len({len(values) for values in old}) > 1:
            raise self.invalid("num, channels, height and width: give as many of each", "dummy_data_param")
        shapes: list[Shape] = [tuple(shape.dim) for shape in parameter.shape] or list(zip(*old, strict=True))
        fillers = list(parameter.data_filler) or [FillerParameter()]
        for what, found in (("shapes", len(shapes)), ("data_filler", len(fillers))):
            if found not in (1, tops):
                raise self.invalid(
                    f"{found} {what} for {tops} tops: give one, or one each", "dummy_data_param"
                )
        if any(extent < 0 for shape in shapes for extent in shape):
            raise self.invalid(f"shapes {shapes} have a negative extent", "dummy_data_param")
        self.filled: dict[int, weakref.ref[Any]] = {}
        self.shapes = shapes * (tops if len(shapes) == 1 else 1)
        self.fillers = fillers * (tops if len(fillers) == 1 else 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, shape in zip(top, self.shapes, strict=True):
            blob.reshape(self.context.shape_of_part(shape, f"top {blob.name!r}"))

    def skip(self) -> None:
        for shape, filler in zip(self.shapes, self.fillers, strict=True):
            if filler.type != "constant" or self.is_overwritten:
                fill(filler, np.empty(shape, self.context.dtype), self.context.random)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for place, (blob, filler) in enumerate(zip(top, self.fillers, strict=True)):
            # constants stay, until the blob takes other memory
            if filler.type == "constant" and not self.is_overwritten:
                memory = self.filled.get(place)
                if memory is not None and memory() is blob.memory:
                    continue
                fill(filler, blob.data, self.context.random)
                self.filled[place] = weakref.ref(blob.memory)
            else:
                blob.overwrite_host()
                if self.context.part is None:
                    fill(filler, blob.data, self.context.random)
                else:
                    whole = np.empty(self.shapes[place], self.context.dtype)
                    fill(filler, whole, self.context.random)
                    blob.data[...] = whole[self.context.rows(len(whole), blob.name)]
