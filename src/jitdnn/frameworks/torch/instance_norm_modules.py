"""Converted normalizations of instances: of each channel of an image; with the activation behind them one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import instance_norm_activation, whole
from jitdnn.frameworks.torch.batch_norm_modules import APART, CONVERTED, activation_of
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.instance_norm_activation import FUSED
from jitdnn.frameworks.torch.operator_calls import recalled
from jitdnn.frameworks.torch.registry import OWN, plain_device
from jitdnn.frameworks.torch.stock_calls import remember


class InstanceNorm:
    """What the converted classes of normalization by image and channel have in common."""

    def _apply_instance_norm(self: Any, input: Tensor) -> Any:
        arguments = (
            input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        # an image without a batch is made one before
        module = self if input.dim() == self._get_no_batch_dim() + 1 else None
        return _of_one_image(routed(F.instance_norm, arguments, {}, self._jitdnn_options, module))

    def activated(self: Any, input: Tensor, behind: nn.Module) -> Tensor:
        """What the module `behind`, an activation, makes of the normalized input: one operation, if that is faster."""
        name = FUSED.get(activation_of(behind))
        found: Tensor | None = None
        # of excluded modules nothing is ours
        if name is not None and type(behind) not in CONVERTED and not torch.compiler.is_compiling():
            found = recalled(self, input, name)
            if found is None and self._is_joined(input):
                arguments = (
                    input,
                    self.weight,
                    self.bias,
                    name,
                    bool(getattr(behind, "inplace", False)),
                    self.eps,
                )
                options = self._jitdnn_options
                found = routed(instance_norm_activation.stock, arguments, {}, options, self)
                if not whole.is_ours(instance_norm_activation.stock, arguments, options):
                    remember(self, input, APART)
        if found is None:
            found = behind(self(input))
        return found

    def _is_joined(self: Any, input: Any) -> bool:
        """Whether an activation may be one operation with the normalization of this input."""
        if type(input) not in OWN or not (input.is_cuda or input.is_cpu):
            return False
        apart = self.__dict__.get(APART)
        return (
            self.weight is not None and self.bias is not None
            and self.running_mean is None and self.running_var is None
            and input.dim() == self._get_no_batch_dim() + 1 and input.shape[1] == self.num_features
            and (input.is_cuda or len(input) > 1)
            and not (apart is not None and apart.know(self, input))
        )  # fmt: skip


def stock_instance_norm(module: Any, input: Tensor) -> Any:
    """Torch's forward, of what is a batch; its own method calls one of ours."""
    return _of_one_image(nn.modules.instancenorm._InstanceNorm._apply_instance_norm(module, input))


def _of_one_image(y: Any) -> Any:
    """A result whose gradient lies in the order of its axes where it is torch's of one image: its kernel on processors
    takes channels last for something else, and ours hand gradients back in the order of what lies behind."""
    if torch.compiler.is_compiling():
        return y
    if type(y) is Tensor and y.is_cpu and y.requires_grad and len(y) == 1 and plain_device((y,)):
        node = y.grad_fn
        if node is not None and node.name() == "ViewBackward0":
            y.register_hook(Tensor.contiguous)
    return y


def told_of_instances(module: Any) -> tuple[Any, ...]:
    """What tells calls of one apart, besides its parameters: statistics may be given to it later."""
    own = module._buffers  # nn.Module looks for them for longer than all else takes
    return (
        module.training, module.track_running_stats, module.eps, module.num_features, module.affine,
        own.get("running_mean", 0), own.get("running_var", 0),
    )  # fmt: skip


class InstanceNorm1d(InstanceNorm, nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d`."""


class InstanceNorm2d(InstanceNorm, nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d`."""


class InstanceNorm3d(InstanceNorm, nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d`."""
