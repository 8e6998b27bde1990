"""Pooling of two spatial axes with Caffe's rounding and divisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.errors import NotSupported
from jitdnn.ops.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from jitdnn.problems.pooling import output_shape


class PoolingLayer(Layer):
    """Bottom (N, C, H, W), top (N, C, P, Q) with P = ⌈(H + 2 p − k) / s⌉ + 1, one less where the last window
    would start in the padding; `round_mode: FLOOR` rounds down.

    MAX: the first maximum passes the gradient on. AVE: zeros of the padding count in the divisor, an overhang
    past the padding does not. STOCHASTIC and the second top with the mask are refused.
    """

    type = "Pooling"
    tops = (1, 2)
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.pooling_param
        if parameter.pool == "STOCHASTIC":
            raise NotSupported(
                f"layer {self.name!r}{parameter.where('pool')}: pool STOCHASTIC; there are MAX and AVE"
            )
        if len(top) > 1:
            raise NotSupported(
                f"layer {self.name!r}: the second top, a mask of the maxima; drop top {top[1].name!r}"
            )
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        stride = self._pair("stride", "stride_h", "stride_w")
        padding = self._pair("pad", "pad_h", "pad_w")
        if min(stride) < 1:
            raise self.invalid(f"stride is {stride}: it must be positive", "pooling_param")
        self.is_maximum = parameter.pool == "MAX"
        self.kernel: tuple[int, int] | None = None
        if parameter.global_pooling:
            if any(parameter.has(name) for name in ("kernel_size", "kernel_h", "kernel_w")):
                raise self.invalid(
                    "global_pooling takes the whole image: give no kernel size", "pooling_param"
                )
            if padding != (0, 0) or stride != (1, 1):
                raise self.invalid("global_pooling needs pad 0 and stride 1", "pooling_param")
        else:
            self.kernel = self._pair("kernel_size", "kernel_h", "kernel_w")
            if min(self.kernel) < 1:
                raise self.invalid(
                    "kernel_size, or kernel_h and kernel_w, must be given and positive", "pooling_param"
                )
            if any(pad >= extent for pad, extent in zip(padding, self.kernel, strict=True)):
                raise self.invalid(
                    f"pad {padding} must be less than the kernel {self.kernel}", "pooling_param"
                )
        self.arguments: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "rounding": "caffe" if parameter.round_mode == "CEIL" else "floor",
        }

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0], top[0]
        self.window = self.kernel or x.shape[2:]
        padding = [(pad, pad) for pad in self.arguments["padding"]]
        y.reshape(
            output_shape(x.shape, self.window, self.arguments["stride"], padding, self.arguments["rounding"])
        )
        self.output = self.save("output", y.shape) if self.is_maximum and self.is_overwritten else y

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].values, top[0].values
        if self.is_maximum:
            max_pool(x, self.window, out=self.output.values, **self.arguments)
            if self.is_overwritten:
                copy(self.output.values, y)
        else:
            avg_pool(x, self.window, out=y, count_include_pad=True, **self.arguments)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        dy, x, dx = top[0].gradient, bottom[0], bottom[0].gradient
        if self.is_maximum:
            max_pool_backward(dy, x.values, self.output.values, self.window, out=dx, **self.arguments)
        else:
            avg_pool_backward(dy, x.shape, self.window, out=dx, count_include_pad=True, **self.arguments)

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.is_maximum, top=self.is_maximum and not self.is_overwritten)

    def _pair(self, name: str, name_h: str, name_w: str) -> tuple[int, int]:
        parameter = self.parameter.pooling_param
        given = [parameter.has(field) for field in (name, name_h, name_w)]
        if given[1] != given[2] or (given[0] and given[1]):
            raise self.invalid(f"give {name}, or both {name_h} and {name_w}", "pooling_param")
        if given[1]:
            return getattr(parameter, name_h), getattr(parameter, name_w)
        return getattr(parameter, name), getattr(parameter, name)
