"""Classes that modules of `torch.nn` are turned into, and back: the same parameters and buffers, another forward.

Only the class of an instance changes and one attribute is added, so that `state_dict`, hooks, optimizers, pickling and
`copy.deepcopy` see the module that they saw before.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.functional import convolution

OPTIONS = "_jitdnn_options"


class _Convolution:
    """What the converted classes of convolutions have in common."""

    _jitdnn_options: str
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return convolution(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            options=self._jitdnn_options,
        )


class Conv1d(_Convolution, nn.Conv1d):
    """`torch.nn.Conv1d`."""


class Conv2d(_Convolution, nn.Conv2d):
    """`torch.nn.Conv2d`."""


class Conv3d(_Convolution, nn.Conv3d):
    """`torch.nn.Conv3d`."""


class _Transposed:
    """What the converted classes of transposed convolutions have in common."""

    _jitdnn_options: str
    _spatial: ClassVar[int]

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self._spatial, self.dilation
        )
        return convolution(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            output_padding=output_padding, options=self._jitdnn_options,
        )  # fmt: skip


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`."""

    _spatial = 1


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`."""

    _spatial = 2


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`."""

    _spatial = 3


class LazyConv1d(nn.LazyConv1d):
    """`torch.nn.LazyConv1d`, which becomes a converted `Conv1d`."""

    cls_to_become = Conv1d


class LazyConv2d(nn.LazyConv2d):
    """`torch.nn.LazyConv2d`, which becomes a converted `Conv2d`."""

    cls_to_become = Conv2d


class LazyConv3d(nn.LazyConv3d):
    """`torch.nn.LazyConv3d`, which becomes a converted `Conv3d`."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(nn.LazyConvTranspose1d):
    """`torch.nn.LazyConvTranspose1d`, which becomes a converted `ConvTranspose1d`."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(nn.LazyConvTranspose2d):
    """`torch.nn.LazyConvTranspose2d`, which becomes a converted `ConvTranspose2d`."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(nn.LazyConvTranspose3d):
    """`torch.nn.LazyConvTranspose3d`, which becomes a converted `ConvTranspose3d`."""

    cls_to_become = ConvTranspose3d


#: torch's class -> ours; only instances of exactly these are converted, for a subclass may compute something else
CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    getattr(nn, ours.__name__): ours
    for ours in (
        Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
        LazyConv1d, LazyConv2d, LazyConv3d, LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d,
    )
}  # fmt: skip
REVERTED = {ours: stock for stock, ours in CONVERTED.items()}
