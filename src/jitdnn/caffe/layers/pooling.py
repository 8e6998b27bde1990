"""Pooling of two spatial axes with Caffe's rounding and divisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.layers.stochastic_pooling import Sampling, Weighting
from jitdnn.caffe.layers.windows import Windows
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from jitdnn.problems.pooling import output_shape


class PoolingLayer(Layer):
    """Bottom (N, C, H, W), top (N, C, P, Q) with P = ⌈(H + 2 p − k) / s⌉ + 1, one less where the last window
    would start in the padding; `round_mode: FLOOR`, or `ceil_mode: false` of forks, rounds down.

    MAX: the first maximum passes the gradient on; a second top has its number in the image, h · W + w (-1: the window
    is empty), and no gradient. AVE: zeros of the padding count in the divisor, an overhang past the padding does not.
    STOCHASTIC, for values of 0 or more and without padding: in training each window gives one of its values, drawn
    with its share of their sum as probability, and that one gets the gradient; in testing it gives the mean of its
    values weighted by themselves, Σ x² / Σ x, 0 if all are 0.
    """

    type = "Pooling"
    tops = (1, 2)
    is_random = True  # STOCHASTIC

    @property
    def is_for_gpu(self) -> bool:  # type: ignore[override]
        """STOCHASTIC computes on the host."""
        return self.parameter.pooling_param.pool != "STOCHASTIC"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.pooling_param
        self.method = parameter.pool
        if len(top) > 1 and self.method != "MAX":
            raise self.invalid(
                f"a second top is for pool MAX, the numbers of the maxima; this is {self.method}"
            )
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        stride = self._pair("stride", "stride_h", "stride_w")
        padding = self._pair("pad", "pad_h", "pad_w")
        if min(stride) < 1:
            raise self.invalid(f"stride is {stride}: it must be positive", "pooling_param")
        if self.method == "STOCHASTIC" and padding != (0, 0):
            raise self.invalid(
                f"pad {padding} is for MAX and AVE: STOCHASTIC takes no padding", "pooling_param"
            )
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
            "rounding": "caffe" if self._rounds_up() else "floor",
        }
        self.is_training = self.context.phase == "TRAIN"
        self.stored = elementwise("number: number")
        if self.method == "STOCHASTIC":
            self.sampling, self.weighting = Sampling(), Weighting()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0], top[0]
        self.window = self.kernel or x.shape[2:]
        padding = [(pad, pad) for pad in self.arguments["padding"]]
        y.reshape(
            output_shape(x.shape, self.window, self.arguments["stride"], padding, self.arguments["rounding"])
        )
        for mask in top[1:]:
            mask.reshape(y.shape)
        self.needs_data = self.method == "MAX" or (self.method == "STOCHASTIC" and not self.is_training)
        self.output = self.save("output", y.shape) if self.needs_data and self.is_overwritten else y
        if self.method == "STOCHASTIC" and self.is_training:
            self.pick = self.save("pick", y.shape)
            window, stride = self.window, self.arguments["stride"]
            self.windows = Windows(x.shape[2:], window, stride, (0, 0), (1, 1), y.shape[2:])

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = self._values(bottom[0]), self._values(self.output)
        if self.method == "AVE":
            avg_pool(x, self.window, out=y, count_include_pad=True, **self.arguments)
        elif self.method == "STOCHASTIC" and self.is_training:
            drawn = self.context.draw(y.shape, y.dtype)
            self.sampling.forward(x, self.windows, drawn, y, self.pick.data)
        elif self.method == "STOCHASTIC":
            self.weighting.forward(x, self.window, self.arguments, y)
        elif len(top) == 1:
            max_pool(x, self.window, out=y, **self.arguments)
        else:
            _, numbers = max_pool(x, self.window, out=(y, None), return_indices="i32", **self.arguments)
            self.stored(numbers, out=top[1].values)
        if self.output is not top[0]:
            copy(y, self._values(top[0]))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        x, dy, dx = bottom[0], *((b.gradient if self.is_for_gpu else b.diff) for b in (top[0], bottom[0]))
        if self.method == "AVE":
            avg_pool_backward(dy, x.shape, self.window, out=dx, count_include_pad=True, **self.arguments)
        elif self.method == "STOCHASTIC" and self.is_training:
            self.sampling.backward(dy, self.windows, self.pick.data, dx)
        elif self.method == "STOCHASTIC":
            self.weighting.backward(dy, x.data, self.output.data, self.window, self.arguments, dx)
        else:
            max_pool_backward(dy, x.values, self.output.values, self.window, out=dx, **self.arguments)

    def layout_rule(self) -> str | None:
        return "any" if self.is_for_gpu and not self.parameter.top[1:] else None

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.needs_data, top=self.needs_data and not self.is_overwritten)

    def _values(self, blob: Blob) -> Any:
        """The array to compute with."""
        return blob.values if self.is_for_gpu else blob.data

    def _rounds_up(self) -> bool:
        parameter = self.parameter.pooling_param
        if not parameter.has("ceil_mode"):
            return parameter.round_mode == "CEIL"
        if parameter.has("round_mode") and parameter.ceil_mode != (parameter.round_mode == "CEIL"):
            raise self.invalid(
                f"round_mode {parameter.round_mode} and ceil_mode {str(parameter.ceil_mode).lower()} contradict "
                "each other: keep one",
                "pooling_param",
            )
        return parameter.ceil_mode

    def _pair(self, name: str, name_h: str, name_w: str) -> tuple[int, int]:
        parameter = self.parameter.pooling_param
        given = [parameter.has(field) for field in (name, name_h, name_w)]
        if given[1] != given[2] or (given[0] and given[1]):
            raise self.invalid(f"give {name}, or both {name_h} and {name_w}", "pooling_param")
        if given[1]:
            return getattr(parameter, name_h), getattr(parameter, name_w)
        return getattr(parameter, name), getattr(parameter, name)
