"""Classes that modules of `torch.nn` are turned into, and back: the same parameters and buffers, another forward.

Only the class of an instance changes and a few attributes are added, so that `state_dict`, hooks, optimizers, pickling
and `copy.deepcopy` see the module that they saw before.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from jitdnn.frameworks.torch.batch_norm_modules import (
    APART,
    CONVERTED,
    INSTANCES,
    REVERTED,
    SUM_APART,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Sequential,
    SyncBatchNorm,
)
from jitdnn.frameworks.torch.deferred import JOIN, activating, deferring
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.guards import CALLS
from jitdnn.frameworks.torch.instance_norm_modules import (
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    stock_instance_norm,
    told_of_instances,
)
from jitdnn.frameworks.torch.layers import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
    Linear,
)
from jitdnn.frameworks.torch.operator_calls import TOLD, recalled
from jitdnn.frameworks.torch.rectifier import ReLU
from jitdnn.frameworks.torch.stock_calls import STOCK_CALLS, remembering

OPTIONS = "_jitdnn_options"
PLACE = "__module__"
"""Where tracers look whether a module is one of torch's, a leaf of their graphs; the class keeps its own."""
OWN = (OPTIONS, PLACE, CALLS, STOCK_CALLS, APART, SUM_APART, JOIN)
"""The attributes that a converted module has beside those of torch's."""


# by name: Dynamo of PyTorch 2.6 knows no built-in functions that are attributes of classes
_FUNCTIONS: dict[str, Any] = {
    one.__name__: one
    for one in (
        F.max_pool1d,
        F.max_pool2d,
        F.max_pool3d,
        F.avg_pool1d,
        F.avg_pool2d,
        F.avg_pool3d,
        F.adaptive_avg_pool1d,
        F.adaptive_avg_pool2d,
        F.adaptive_avg_pool3d,
        F.adaptive_max_pool1d,
        F.adaptive_max_pool2d,
        F.adaptive_max_pool3d,
        F.silu,
        F.mish,
        F.hardswish,
        torch.tanh,
        torch.sigmoid,
        F.softmax,
        F.log_softmax,
    )
}


class _OfFunction:
    """What converted classes have in common that call one function of torch's: its name."""

    _function: ClassVar[str]

    def __init_subclass__(cls, function: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        if function:
            cls._function = function


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        arguments = (input, self.normalized_shape, self.weight, self.bias, self.eps)
        return routed(F.layer_norm, arguments, {}, self._jitdnn_options, self)


class _MaxPool(_OfFunction):
    """What the converted classes of maximum pooling have in common."""

    def forward(self: Any, input: Tensor) -> Any:
        arguments = (
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices,
        )  # fmt: skip
        return routed(_FUNCTIONS[self._function], arguments, {}, self._jitdnn_options, self)


class MaxPool1d(_MaxPool, nn.MaxPool1d, function="max_pool1d"):
    """`torch.nn.MaxPool1d`."""


class MaxPool2d(_MaxPool, nn.MaxPool2d, function="max_pool2d"):
    """`torch.nn.MaxPool2d`."""


class MaxPool3d(_MaxPool, nn.MaxPool3d, function="max_pool3d"):
    """`torch.nn.MaxPool3d`."""


class _AvgPool(_OfFunction):
    """What the converted classes of average pooling have in common."""

    def forward(self: Any, input: Tensor) -> Tensor:
        arguments = (
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )
        divisor = getattr(self, "divisor_override", None)
        named = {} if divisor is None else {"divisor_override": divisor}
        return routed(_FUNCTIONS[self._function], arguments, named, self._jitdnn_options, self)


class AvgPool1d(_AvgPool, nn.AvgPool1d, function="avg_pool1d"):
    """`torch.nn.AvgPool1d`."""


class AvgPool2d(_AvgPool, nn.AvgPool2d, function="avg_pool2d"):
    """`torch.nn.AvgPool2d`."""


class AvgPool3d(_AvgPool, nn.AvgPool3d, function="avg_pool3d"):
    """`torch.nn.AvgPool3d`."""


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        arguments = (input, self.num_groups, self.weight, self.bias, self.eps)
        found: Tensor = routed(F.group_norm, arguments, {}, self._jitdnn_options, self)
        return found


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm`."""

    def forward(self, x: Tensor) -> Tensor:
        arguments = (x, self.normalized_shape, self.weight, self.eps)
        found: Tensor = routed(F.rms_norm, arguments, {}, self._jitdnn_options, self)
        return found


class _AdaptivePool(_OfFunction):
    """What the converted classes of adaptive pooling have in common."""

    def forward(self: Any, input: Tensor) -> Any:
        named = {"return_indices": True} if getattr(self, "return_indices", False) else {}
        return routed(
            _FUNCTIONS[self._function], (input, self.output_size), named, self._jitdnn_options, self
        )


class AdaptiveAvgPool1d(_AdaptivePool, nn.AdaptiveAvgPool1d, function="adaptive_avg_pool1d"):
    """`torch.nn.AdaptiveAvgPool1d`."""


class AdaptiveAvgPool2d(_AdaptivePool, nn.AdaptiveAvgPool2d, function="adaptive_avg_pool2d"):
    """`torch.nn.AdaptiveAvgPool2d`."""


class AdaptiveAvgPool3d(_AdaptivePool, nn.AdaptiveAvgPool3d, function="adaptive_avg_pool3d"):
    """`torch.nn.AdaptiveAvgPool3d`."""


class AdaptiveMaxPool1d(_AdaptivePool, nn.AdaptiveMaxPool1d, function="adaptive_max_pool1d"):
    """`torch.nn.AdaptiveMaxPool1d`."""


class AdaptiveMaxPool2d(_AdaptivePool, nn.AdaptiveMaxPool2d, function="adaptive_max_pool2d"):
    """`torch.nn.AdaptiveMaxPool2d`."""


class AdaptiveMaxPool3d(_AdaptivePool, nn.AdaptiveMaxPool3d, function="adaptive_max_pool3d"):
    """`torch.nn.AdaptiveMaxPool3d`."""


class ELU(nn.ELU):
    """`torch.nn.ELU`."""

    def forward(self, input: Tensor) -> Tensor:
        named = {"inplace": True} if self.inplace else {}
        found: Tensor = routed(F.elu, (input, self.alpha), named, self._jitdnn_options, self)
        return found


class GELU(nn.GELU):
    """`torch.nn.GELU`."""

    def forward(self, input: Tensor) -> Tensor:
        return routed(F.gelu, (input,), {"approximate": self.approximate}, self._jitdnn_options, self)


class _Activation(_OfFunction):
    """What the converted classes of activations have in common."""

    def forward(self: Any, input: Tensor) -> Tensor:
        named = {"inplace": True} if getattr(self, "inplace", False) else {}
        return routed(_FUNCTIONS[self._function], (input,), named, self._jitdnn_options, self)


class SiLU(_Activation, nn.SiLU, function="silu"):
    """`torch.nn.SiLU`."""

    def forward(self, input: Tensor) -> Tensor:
        return activating(F.silu, super().forward, input, self.inplace)


class Mish(_Activation, nn.Mish, function="mish"):
    """`torch.nn.Mish`."""


class Hardswish(_Activation, nn.Hardswish, function="hardswish"):
    """`torch.nn.Hardswish`."""


class Tanh(_Activation, nn.Tanh, function="tanh"):
    """`torch.nn.Tanh`."""


class Sigmoid(_Activation, nn.Sigmoid, function="sigmoid"):
    """`torch.nn.Sigmoid`."""


class _Softmax(_OfFunction):
    """What the converted classes of softmax have in common."""

    def forward(self: Any, input: Tensor) -> Tensor:
        if self.dim is None:
            return super().forward(input)  # type: ignore[misc]
        return routed(_FUNCTIONS[self._function], (input, self.dim), {}, self._jitdnn_options, self)


class Softmax(_Softmax, nn.Softmax, function="softmax"):
    """`torch.nn.Softmax`."""


class LogSoftmax(_Softmax, nn.LogSoftmax, function="log_softmax"):
    """`torch.nn.LogSoftmax`."""


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        named = {
            "weight": self.weight, "ignore_index": self.ignore_index, "reduction": self.reduction,
            "label_smoothing": self.label_smoothing,
        }  # fmt: skip
        return routed(F.cross_entropy, (input, target), named, self._jitdnn_options)


class Upsample(nn.Upsample):
    """`torch.nn.Upsample`."""

    def forward(self, input: Tensor) -> Tensor:
        arguments = (input, self.size, self.scale_factor, self.mode, self.align_corners)
        named = {"recompute_scale_factor": self.recompute_scale_factor}
        return routed(F.interpolate, arguments, named, self._jitdnn_options, self)


class _Routed(TorchFunctionMode):
    """Routes the calls that a forward of torch's makes."""

    def __init__(self, options: str) -> None:
        super().__init__()
        self._options = options

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return routed(function, args, kwargs or {}, self._options)


class _Recurrent:
    """What the converted classes of recurrent layers have in common."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(input, hx)  # type: ignore[misc]
        with _Routed(self._jitdnn_options):
            return super().forward(input, hx)  # type: ignore[misc]


class LSTM(_Recurrent, nn.LSTM):
    """`torch.nn.LSTM`."""


class GRU(_Recurrent, nn.GRU):
    """`torch.nn.GRU`."""


class RNN(_Recurrent, nn.RNN):
    """`torch.nn.RNN`."""


# only instances of exactly these are converted, for a subclass may compute something else
CONVERTED |= {
    getattr(nn, ours.__name__): ours
    for ours in (
        Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
        LazyConv1d, LazyConv2d, LazyConv3d, LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d,
        Linear, BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm, LayerNorm,
        GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, RMSNorm,
        MaxPool1d, MaxPool2d, MaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d,
        AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d,
        AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
        ReLU, ELU, GELU, SiLU, Mish, Hardswish, Tanh, Sigmoid, Softmax, LogSoftmax, CrossEntropyLoss, Upsample,
        LSTM, GRU, RNN,
    )
}  # fmt: skip


#: those that remember inputs that torch's function is faster for, as those of layers.py do; others have several inputs,
#: or call several functions
for _ours in (
    BatchNorm1d, BatchNorm2d, BatchNorm3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, Upsample,
):  # fmt: skip
    _ours.forward = remembering(_ours.forward, getattr(nn, _ours.__name__).forward)  # type: ignore[method-assign]
_WINDOW = ("kernel_size", "stride", "padding", "ceil_mode")
_TOLD: dict[tuple[Any, ...], tuple[str, ...]] = {
    (LayerNorm, RMSNorm): ("normalized_shape", "eps"),
    (GroupNorm,): ("num_groups", "eps"),
    (AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d): ("output_size",),
    (Softmax, LogSoftmax): ("dim",),
    (MaxPool1d, MaxPool2d, MaxPool3d): (*_WINDOW, "dilation", "return_indices"),
    (AvgPool1d,): (*_WINDOW, "count_include_pad"),
    (AvgPool2d, AvgPool3d): (*_WINDOW, "count_include_pad", "divisor_override"),
    (ELU,): ("alpha", "inplace"),
    (GELU,): ("approximate",),
    (SiLU, Mish, Hardswish): ("inplace",),
    (Tanh, Sigmoid): ("training",),  # which tells nothing, as nothing does
}
"""The attributes that tell calls of those apart which remember calls of ours, too (operator_calls.py)."""
_TELLING: dict[Any, Any] = {ours: attrgetter(*names) for classes, names in _TOLD.items() for ours in classes}
_TELLING.update(dict.fromkeys((InstanceNorm1d, InstanceNorm2d, InstanceNorm3d), told_of_instances))
for _ours, _telling in _TELLING.items():
    setattr(_ours, TOLD, staticmethod(_telling))
    _stock = getattr(nn, _ours.__name__).forward
    if issubclass(_ours, InstanceNorm):
        _stock = stock_instance_norm
    _ours.forward = remembering(_ours.forward, _stock, recalled)
INSTANCES |= {getattr(nn, one.__name__): one for one in (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)}
for _normal in (BatchNorm1d, BatchNorm2d, BatchNorm3d):
    _normal.undeferred = _normal.forward
    _normal.forward = deferring(_normal.forward)  # type: ignore[method-assign]
REVERTED |= {ours: stock for stock, ours in CONVERTED.items()}
REVERTED[Sequential] = nn.Sequential
