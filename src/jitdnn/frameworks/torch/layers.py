"""Classes that convolutions and linear layers of `torch.nn` are turned into; those of modules.py are the others.

They remember their calls (calls.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, get_num_threads, is_grad_enabled, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import kinds, whole
from jitdnn.frameworks.torch.calls import has_own, learn, short
from jitdnn.frameworks.torch.convolution_operators import CONVOLUTION
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.guards import Remembered
from jitdnn.frameworks.torch.linear import LINEAR
from jitdnn.frameworks.torch.registry import is_dense
from jitdnn.frameworks.torch.stock_calls import StockCalls

# no attributes of the classes: Dynamo of PyTorch 2.6 does not know built-in functions there
_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _are_tuples(values: tuple[Any, ...]) -> bool:
    return all(type(one) is tuple for one in values)


class _Remembering:
    """What converted classes with weights have in common: a call like one before runs what was chosen then.

    They say how torch's own function is called (`_stock`), what else than the tensors tells calls apart (`_now`, see
    `learn`), and what a call of a new kind does (`_called`).
    """

    _jitdnn_options: str
    _jitdnn_calls: Remembered | None = None
    _jitdnn_stock_calls: StockCalls | None = None
    #: axes of space, of convolutions
    _spatial: ClassVar[int]

    def __init_subclass__(cls, spatial: int = 0, **others: Any) -> None:
        super().__init_subclass__(**others)
        if spatial:
            cls._spatial = spatial

    def _remembered(self: Any, input: Tensor) -> Tensor:
        found: Tensor
        calls = self._jitdnn_calls
        if calls is not None and has_own(self):
            own = self._parameters
            w, bias = own["weight"], own["bias"]
            now = self._now(bias)
            known = calls.find(now, input, w) if bias is None else calls.find(now, input, w, bias)
            if known is not None:
                found = known.run(input, w, bias)
                return found
        stock = self._jitdnn_stock_calls
        known = stock is not None and stock.know(self, input)
        found = self._stock(input) if known else self._called(input)
        return found


class _Convolution(_Remembering):
    """What the converted classes of convolutions have in common."""

    padding_mode: str
    _reversed_padding_repeated_twice: list[int]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int

    def forward(self: Any, input: Tensor) -> Tensor:
        found: Tensor
        if is_compiling():
            found = super().forward(input)  # type: ignore[misc]
            return found
        if self.padding_mode != "zeros":  # what is remembered are convolutions of what is padded
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        return self._remembered(input)

    def _stock(self: Any, input: Tensor) -> Tensor:
        found: Tensor = _FUNCTIONS[self._spatial](*self._arguments(input))
        return found

    def _arguments(self: Any, input: Tensor) -> tuple[Any, ...]:
        """Those of torch's function for an input that is padded, unless the function pads it by zeros."""
        padding = self.padding if self.padding_mode == "zeros" else (0,) * self._spatial
        return input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups

    def _now(self: Any, bias: Tensor | None) -> tuple[Any, ...]:
        """What else than the tensors tells calls apart: see `learn`."""
        return (
            is_grad_enabled(), get_num_threads(), forward_ad._current_level, kinds.epoch, self._jitdnn_options,
            self.padding_mode, self.stride, self.padding, self.dilation, self.groups,
            bias is None,
        )  # fmt: skip

    def _called(self: Any, input: Tensor) -> Tensor:
        function, arguments = _FUNCTIONS[self._spatial], self._arguments(input)
        found: Tensor = routed(function, arguments, {}, self._jitdnn_options, self)
        after = arguments[3:]
        # lists may change in place
        if _are_tuples(after[:3]) and is_dense(input) and input.dim() == self._spatial + 2:
            own = self._parameters
            operands = (
                input, own.get("weight"), own.get("bias"), *after[:3], False, (0,) * self._spatial, self.groups,
            )  # fmt: skip
            learn(
                self, CONVOLUTION, operands, self._jitdnn_options, self._now(own.get("bias")), function, after
            )
        return found

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        module: Any = self
        if module.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        arguments = (input, weight, bias, *module._arguments(input)[3:])
        found: Tensor = routed(_FUNCTIONS[self._spatial], arguments, {}, self._jitdnn_options)
        return found


class Conv1d(_Convolution, nn.Conv1d, spatial=1):
    """`torch.nn.Conv1d`."""


class Conv2d(_Convolution, nn.Conv2d, spatial=2):
    """`torch.nn.Conv2d`."""


class Conv3d(_Convolution, nn.Conv3d, spatial=3):
    """`torch.nn.Conv3d`."""


class _Transposed(_Remembering):
    """What the converted classes of transposed convolutions have in common."""

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        found: Tensor
        if is_compiling() or output_size is not None:
            found = self._transposed(input, output_size)
            return found
        return self._remembered(input)

    def _stock(self: Any, input: Tensor) -> Tensor:
        found: Tensor = super().forward(input)  # type: ignore[misc]
        return found

    def _now(self: Any, bias: Tensor | None) -> tuple[Any, ...]:
        """What else than the tensors tells calls apart: see `learn`."""
        return (
            is_grad_enabled(), get_num_threads(), forward_ad._current_level, kinds.epoch, self._jitdnn_options,
            self.stride, self.padding, self.output_padding, self.groups, self.dilation,
            bias is None,
        )  # fmt: skip

    def _called(self: Any, input: Tensor) -> Tensor:
        found: Tensor = self._transposed(input, None)
        after = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        if _are_tuples((*after[:3], after[4])) and is_dense(input) and input.dim() == self._spatial + 2:
            own = self._parameters
            operands = (
                input, own.get("weight"), own.get("bias"), self.stride, self.padding, self.dilation, True,
                self.output_padding, self.groups,
            )  # fmt: skip
            function = _TRANSPOSED[self._spatial]
            learn(
                self, CONVOLUTION, operands, self._jitdnn_options, self._now(own.get("bias")), function, after
            )
        return found

    def _transposed(self: Any, input: Tensor, output_size: list[int] | None) -> Tensor:
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self._spatial, self.dilation
        )
        arguments = (
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation,
        )  # fmt: skip
        found: Tensor = routed(_TRANSPOSED[self._spatial], arguments, {}, self._jitdnn_options, self)
        return found


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d, spatial=1):
    """`torch.nn.ConvTranspose1d`."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d, spatial=2):
    """`torch.nn.ConvTranspose2d`."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d, spatial=3):
    """`torch.nn.ConvTranspose3d`."""


class LazyConv1d(nn.LazyConv1d):
    """`torch.nn.LazyConv1d`, which becomes a converted `Conv1d`."""

    cls_to_become = Conv1d


class LazyConv2d(nn.LazyConv2d):
    """`torch.nn.LazyConv2d`, which becomes a converted `Conv2d`."""

    cls_to_become = Conv2d


class LazyConv3d(nn.LazyConv3d):
    """`torch.nn.LazyConv3d`, which becomes a converted `Conv3d`."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_Transposed, nn.LazyConvTranspose1d, spatial=1):
    """`torch.nn.LazyConvTranspose1d`, which becomes a converted `ConvTranspose1d`."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_Transposed, nn.LazyConvTranspose2d, spatial=2):
    """`torch.nn.LazyConvTranspose2d`, which becomes a converted `ConvTranspose2d`."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_Transposed, nn.LazyConvTranspose3d, spatial=3):
    """`torch.nn.LazyConvTranspose3d`, which becomes a converted `ConvTranspose3d`."""

    cls_to_become = ConvTranspose3d


class Linear(_Remembering, nn.Linear):
    """`torch.nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        if is_compiling() or not isinstance(input, Tensor):
            return routed(F.linear, (input, self.weight, self.bias), {}, self._jitdnn_options, self)
        # calls of rows are what is remembered; those that lie otherwise are copied, which torch does, too, in training
        is_rows = input.dim() > 2 and is_dense(input) and (is_grad_enabled() or input.is_contiguous())
        if is_rows and input.numel():
            rows = self._remembered(input.reshape(-1, input.shape[-1]))
            return rows.view(*input.shape[:-1], rows.shape[-1])
        return self._remembered(input)

    def _stock(self, input: Tensor) -> Tensor:
        return super().forward(input)

    def _now(self, bias: Tensor | None) -> tuple[Any, ...]:
        """What else than the tensors tells calls apart: see `learn`."""
        return (
            is_grad_enabled(),
            get_num_threads(),
            forward_ad._current_level,
            kinds.epoch,
            self._jitdnn_options,
            bias is None,
        )

    def _called(self, input: Tensor) -> Tensor:
        own = self._parameters
        found: Tensor = routed(F.linear, (input, self.weight, self.bias), {}, self._jitdnn_options, self)
        if input.dim() == 2 and is_dense(input):
            operands = (input, own.get("weight"), own.get("bias"))
            learn(self, LINEAR, operands, self._jitdnn_options, self._now(own.get("bias")), F.linear)
        return found


def _short_convolution(args: tuple[Any, ...], _: dict[str, Any], options: str) -> Any:
    x, w, bias, stride, padding, dilation, groups = args
    if x.dim() != w.dim() or not all(isinstance(one, tuple) for one in (stride, padding, dilation)):
        return None
    operands = (x, w, bias, stride, padding, dilation, False, (0,) * len(padding), groups)
    return short(CONVOLUTION, operands, options, _FUNCTIONS[len(padding)], args[3:])


def _short_transposed(args: tuple[Any, ...], _: dict[str, Any], options: str) -> Any:
    x, w, bias, stride, padding, output_padding, groups, dilation = args
    if x.dim() != w.dim():
        return None
    operands = (x, w, bias, stride, padding, dilation, True, tuple(output_padding), groups)
    return short(CONVOLUTION, operands, options, _TRANSPOSED[len(padding)], args[3:])


def _short_linear(args: tuple[Any, ...], _: dict[str, Any], options: str) -> Any:
    return short(LINEAR, args, options, F.linear, ()) if args[0].dim() == 2 else None


whole.SHORT.update(dict.fromkeys(_FUNCTIONS.values(), _short_convolution))
whole.SHORT.update(dict.fromkeys(_TRANSPOSED.values(), _short_transposed))
whole.SHORT[F.linear] = _short_linear
