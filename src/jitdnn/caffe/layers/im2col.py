"""Im2col: the windows of a convolution as columns."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Reads
from jitdnn.caffe.layers.windows import WindowedLayer, Windows
from jitdnn.ops.tensor_ops import add
from jitdnn.ops.transform import transform


class Im2colLayer(WindowedLayer):
    """Bottom (N..., C, spatial), top (N..., C · elements of the kernel, out): for each channel the elements that each
    place of the kernel meets, by the fields of convolution_param, of which num_output and group count for nothing.
    """

    type = "Im2col"
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.read_windows(bottom[0].shape)
        self.arguments = self.window_arguments()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        stride, padding, dilation = self.arguments.values()
        extents = shape[self.axis + 1 :]
        outputs = tuple(
            (i + 2 * p - d * (k - 1) - 1) // s + 1
            for i, k, s, p, d in zip(extents, self.kernel, stride, padding, dilation, strict=True)
        )
        if min(outputs) < 1:
            raise self.invalid(
                f"a bottom of shape {shape} with pad {padding} is smaller than the kernel {self.kernel} with "
                f"dilation {dilation}"
            )
        self.windows = Windows(extents, self.kernel, stride, padding, dilation, outputs)
        channels = shape[self.axis] * len(self.windows.taps)
        top[0].reshape((*shape[: self.axis], channels, *outputs))
        self.view = (*shape[: self.axis + 1], len(self.windows.taps), *outputs)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        room = self.windows.room(bottom[0].shape[: self.axis + 1], self.context.dtype)
        transform(bottom[0].data, out=self.windows.inside(room))
        columns = top[0].data.reshape(self.view)
        for tap, part in enumerate(self.windows.meets(room)):
            transform(part, out=columns[(slice(None),) * (self.axis + 1) + (tap,)])

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        room = self.windows.room(bottom[0].shape[: self.axis + 1], self.context.dtype)
        columns = top[0].diff.reshape(self.view)
        for tap, part in enumerate(self.windows.meets(room)):
            add(columns[(slice(None),) * (self.axis + 1) + (tap,)], out=part, beta=1.0)
        transform(self.windows.inside(room), out=bottom[0].diff)
