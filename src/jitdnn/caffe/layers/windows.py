"""Windows that slide over the spatial axes: how convolution_param gives them, and taken apart, what each of their
elements meets in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.layers.base import Layer


class Windows(NamedTuple):
    """Windows of `kernel` elements over the last axes of an array, `extents` of it, `outputs` of them in each axis."""

    extents: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    outputs: Shape

    @property
    def taps(self) -> list[Shape]:
        """The places of a window's elements, the last axis fastest."""
        return list(itertools.product(*map(range, self.kernel)))

    def room(self, leading: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
        """Zeros for the array with its padding, and with what windows reach beyond that."""
        spans = (
            (count - 1) * step + distance * (taps - 1) + 1
            for count, step, distance, taps in zip(
                self.outputs, self.stride, self.dilation, self.kernel, strict=True
            )
        )
        extents = (
            max(span, before + extent)
            for span, before, extent in zip(spans, self.padding, self.extents, strict=True)
        )
        return np.zeros((*leading, *extents), dtype)

    def inside(self, room: Array) -> Array:
        """The part of `room` that is the array itself."""
        parts: list[Any] = [
            slice(before, before + extent) for before, extent in zip(self.padding, self.extents, strict=True)
        ]
        return room[(..., *parts)]

    def meets(self, room: Array) -> Iterator[Array]:
        """For each of the `taps`, the view (..., outputs) of what it meets in the windows."""
        for tap in self.taps:
            parts: list[Any] = [
                slice(distance * place, distance * place + (count - 1) * step + 1, step)
                for place, distance, count, step in zip(
                    tap, self.dilation, self.outputs, self.stride, strict=True
                )
            ]
            yield room[(..., *parts)]


class WindowedLayer(Layer):
    """A layer whose windows `convolution_param` gives: `axis` of the channels, `rank` spatial axes behind it."""

    def read_windows(self, shape: Shape) -> None:
        """Set axis, rank and kernel for a bottom of this shape."""
        parameter = self.parameter.convolution_param
        self.axis = self.front_axis(parameter.axis, len(shape))
        self.rank = len(shape) - self.axis - 1
        if not 1 <= self.rank <= 3:
            raise self.invalid(
                f"a bottom of shape {shape} has {self.rank} spatial axes after axis {self.axis}; "
                "1 to 3 can be"
            )
        self.kernel = self._extents("kernel_size", "kernel_h", "kernel_w", None, 1)

    def window_arguments(self) -> dict[str, Any]:
        """Stride, padding and dilation, one each for every spatial axis."""
        return {
            "stride": self._extents("stride", "stride_h", "stride_w", 1, 1),
            "padding": self._extents("pad", "pad_h", "pad_w", 0, 0),
            "dilation": self._extents("dilation", None, None, 1, 1),
        }

    def _extents(
        self, name: str, name_h: str | None, name_w: str | None, default: int | None, least: int
    ) -> tuple[int, ...]:
        """One value for each spatial axis from the list `name` (one for all, or one each) or, in 2-D, from _h
        and _w.
        """
        parameter = self.parameter.convolution_param
        listed: list[int] = getattr(parameter, name)
        if name_h and name_w and (parameter.has(name_h) or parameter.has(name_w)):
            if listed:
                raise self.invalid(
                    f"{name} and {name_h}, {name_w} both are given: keep one form", "convolution_param"
                )
            if self.rank != 2:
                raise self.invalid(
                    f"{name_h} and {name_w} are for 2 spatial axes, and here are {self.rank}: use {name}"
                )
            values: tuple[int, ...] = (getattr(parameter, name_h), getattr(parameter, name_w))
        elif len(listed) in (1, self.rank):
            values = tuple(listed) * (self.rank if len(listed) == 1 else 1)
        elif not listed and default is not None:
            values = (default,) * self.rank
        else:
            raise self.invalid(
                f"{name} has {len(listed)} values; give one, or one for each of the {self.rank} spatial axes",
                "convolution_param",
            )
        if min(values) < least:
            raise self.invalid(f"{name} is {values}: each must be at least {least}", "convolution_param")
        return values
