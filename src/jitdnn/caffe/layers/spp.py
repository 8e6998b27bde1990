"""SPP: spatial pyramid pooling, as many numbers for images of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from jitdnn.caffe.blob import Blob, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.errors import NotSupported
from jitdnn.ops.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from jitdnn.ops.transform import concat, transform
from jitdnn.problems.pooling import output_shape


class _Level(NamedTuple):
    window: tuple[int, int]
    padding: tuple[int, int]
    output: Blob


class SPPLayer(Layer):
    """Bottom (N, C, H, W), top (N, numbers): for each level l of pyramid_height, C · 2^l · 2^l of them, by pooling, MAX
    (default) or AVE, in windows of k = ⌈extent / 2^l⌉ that do not overlap, (k 2^l − extent + 1) / 2 of padding before
    them, with Caffe's rounding. STOCHASTIC is refused, and so is padding that fills a window.
    """

    type = "SPP"
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.spp_param
        if parameter.pool == "STOCHASTIC":
            raise NotSupported(
                f"layer {self.name!r}{parameter.where('pool')}: pool STOCHASTIC; there are MAX and AVE"
            ).at(parameter.place("pool"))
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        if not 1 <= parameter.pyramid_height <= 16:
            raise self.invalid(
                f"pyramid_height is {parameter.pyramid_height}: it must be in 1 .. 16", "spp_param"
            )
        self.is_maximum = parameter.pool == "MAX"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.levels: list[_Level] = []
        for number in range(self.parameter.spp_param.pyramid_height):
            bins = 2**number
            height, width = (-(-extent // bins) for extent in shape[2:])
            padding = ((height * bins - shape[2] + 1) // 2, (width * bins - shape[3] + 1) // 2)
            if padding[0] >= height or padding[1] >= width:
                raise self.invalid(
                    f"level {number} of the pyramid has {bins} x {bins} windows: a bottom of shape {shape} is too "
                    "small; take a smaller pyramid_height",
                    "spp_param",
                )
            pads = [(pad, pad) for pad in padding]
            output = self.save(
                f"level {number}", output_shape(shape, (height, width), (height, width), pads, "caffe")
            )
            self.levels.append(_Level((height, width), padding, output))
        self.widths = [count(level.output.shape, 1) for level in self.levels]
        top[0].reshape((shape[0], sum(self.widths)))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].values
        for window, padding, output in self.levels:
            if self.is_maximum:
                max_pool(x, window, stride=window, padding=padding, rounding="caffe", out=output.values)
            else:
                avg_pool(
                    x,
                    window,
                    stride=window,
                    padding=padding,
                    rounding="caffe",
                    count_include_pad=True,
                    out=output.values,
                )
        concat([level.output.values.reshape(len(x), -1) for level in self.levels], axis=1, out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        x, dx = bottom[0], bottom[0].gradient
        ends = pairwise([0, *accumulate(self.widths)])
        for number, ((start, end), (window, padding, output)) in enumerate(
            zip(ends, self.levels, strict=True)
        ):
            dy = transform(top[0].gradient[:, start:end]).reshape(output.shape)
            beta = 1.0 if number else 0.0
            if self.is_maximum:
                max_pool_backward(
                    dy,
                    x.values,
                    output.values,
                    window,
                    stride=window,
                    padding=padding,
                    rounding="caffe",
                    out=dx,
                    beta=beta,
                )
            else:
                avg_pool_backward(
                    dy, x.shape, window, stride=window, padding=padding, rounding="caffe", count_include_pad=True,
                    out=dx, beta=beta,
                )  # fmt: skip

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.is_maximum, top=False)
