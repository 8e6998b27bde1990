"""Converted batch normalizations, and sequences in which an activation behind a normalization is a part of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import (
    batch_norm_activation,
    batch_norm_calls,
    batch_norm_sum,
    instance_norm_activation,
    kinds,
    sync_batch_norm,
    whole,
)
from jitdnn.frameworks.torch.calls import has_own
from jitdnn.frameworks.torch.deferred import SUM
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.guards import CALLS, Remembered
from jitdnn.frameworks.torch.registry import OWN
from jitdnn.frameworks.torch.stock_calls import StockCalls, remember
from jitdnn.frameworks.torch.together import TOGETHER, Together

APART = "_jitdnn_apart_calls"
"""The attribute of a normalization that remembers inputs which the activation behind it is no part of."""
SUM_APART = "_jitdnn_sum_apart_calls"
"""And of those which a sum and the rectifier behind it are no part of."""

#: torch's class -> ours; modules.py puts all of them in
CONVERTED: dict[type[nn.Module], type[nn.Module]] = {}
#: and the other way round
REVERTED: dict[type[nn.Module], type[nn.Module]] = {}


class _BatchNorm:
    """What the converted classes of batch normalization have in common."""

    def _next_momentum(self: Any) -> float:
        """Of the running statistics in this call, which is counted in training."""
        momentum: float = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            if self.momentum is not None:
                self._count()
            else:  # the average of all batches
                self.num_batches_tracked.add_(1)
                momentum = 1.0 / float(self.num_batches_tracked)
        return momentum

    def _count(self: Any) -> None:
        """One batch more."""
        together: Together | None = None if torch.compiler.is_compiling() else self.__dict__.get(TOGETHER)
        if together is None:
            self.num_batches_tracked.add_(1)
        else:
            together.count(self.num_batches_tracked)

    def forward(self: Any, input: Tensor) -> Tensor:
        found = self._recalled(input, batch_norm_calls.IDENTITY)
        if found is not None:
            return found
        self._check_input_dim(input)
        momentum = self._next_momentum()
        has_running = self.running_mean is not None or self.running_var is not None
        updates = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if updates else (None, None)
        arguments = (
            input, *running, self.weight, self.bias, self.training or not has_running, momentum, self.eps,
        )  # fmt: skip
        found = routed(F.batch_norm, arguments, {}, self._jitdnn_options, self)
        if self.training and not torch.compiler.is_compiling():
            self._learn(input, running, momentum, batch_norm_calls.IDENTITY, F.batch_norm, arguments)
        return found

    def normalized(self: Any, input: Tensor) -> Tensor:
        """The normalized input, without what a class of somebody else's does behind it."""
        found: Tensor = self(input)
        return found

    def activated(self: Any, input: Tensor, behind: nn.Module) -> Tensor:
        """What the module `behind`, an activation, makes of the normalized input: in training one operation."""
        function = activation_of(behind)
        name = (
            None if type(behind) in CONVERTED else _FUSED.get(function)
        )  # of excluded modules nothing is ours
        is_plain = type(input) in OWN and (input.is_cpu or input.is_cuda)
        found: Any
        if name is None or not is_plain or not self.training or self.weight is None or self.bias is None:
            found = behind(self.normalized(input))
            return found
        found = self._activated(input, name, bool(getattr(behind, "inplace", False)))
        return behind(self.undeferred(input)) if found is None else found

    def activated_by(self: Any, input: Tensor, name: str, inplace: bool) -> Tensor:
        """What an activation of this name makes of the normalized input, in training, with weight and bias."""
        found = self._activated(input, name, inplace)
        if found is None:
            found = batch_norm_activation.FUNCTIONS[name](self.undeferred(input), inplace=inplace)
        return found

    def _activated(self: Any, input: Tensor, name: str, inplace: bool) -> Tensor | None:
        """The same; None where torch's two operations are faster."""
        recalled: Tensor | None = self._recalled(input, name)
        if recalled is not None:
            return recalled
        if self._is_apart(input, APART):
            return None
        self._check_input_dim(input)
        momentum = self._next_momentum()
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        arguments = (input, *running, self.weight, self.bias, True, name, inplace, momentum, self.eps)
        found: Tensor = routed(batch_norm_activation.stock, arguments, {}, self._jitdnn_options)
        if not self._learn(input, running, momentum, name, batch_norm_activation.stock, arguments):
            remember(self, input, APART)
        return found

    def summed(self: Any, input: Tensor, z: Tensor) -> Tensor:
        """The rectified sum of the normalized input and z, in training, with weight and bias."""
        momentum = self._next_momentum()
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        arguments = (input, z, *running, self.weight, self.bias, True, self.eps, momentum)
        found: Tensor = routed(batch_norm_sum.stock, arguments, {}, self._jitdnn_options)
        if not whole.is_ours(batch_norm_sum.stock, arguments, self._jitdnn_options):
            remember(self, input, SUM_APART)
        return found

    def joins(self: Any, input: Tensor, join: str) -> bool:
        """Whether what follows, as deferred.py has found it, may be one operation with this input's normalization."""
        return self.momentum is not None and not self._is_apart(input, SUM_APART if join == SUM else APART)

    def _is_apart(self: Any, input: Tensor, name: str) -> bool:
        apart: StockCalls | None = self.__dict__.get(name)
        return apart is not None and apart.know(self, input)

    def _recalled(self: Any, input: Tensor, name: str) -> Tensor | None:
        """The result of a call that was made before, with this activation behind it."""
        calls: Remembered | None = self.__dict__.get(CALLS)
        if calls is None or torch.compiler.is_compiling() or not has_own(self):
            return None
        parameters, buffers = self._parameters, self._buffers
        w, b, mean, var = (
            parameters["weight"],
            parameters["bias"],
            buffers["running_mean"],
            buffers["running_var"],
        )
        if w is None or b is None:  # which are torch's
            return None
        now = self._now(name, mean is None)
        known = calls.find(now, input, w, b) if mean is None else calls.find(now, input, w, b, mean, var)
        if known is None:
            return None
        if not self.track_running_stats:
            mean = var = None
        elif self.num_batches_tracked is not None:
            self._count()
        return batch_norm_calls.run(known.batch, input, mean, var, w, b)

    def _now(self: Any, name: str, has_no_statistics: bool) -> tuple[Any, ...]:
        """What else than the tensors tells calls apart."""
        return (
            torch.is_grad_enabled(), torch.get_num_threads(), forward_ad._current_level, kinds.epoch,
            self._jitdnn_options, self.training, self.track_running_stats, self.momentum, self.eps, name,
            has_no_statistics,
        )  # fmt: skip

    def _learn(
        self: Any, input: Tensor, running: tuple[Any, Any], momentum: float, name: str, function: Any,
        arguments: tuple[Any, ...],
    ) -> bool:  # fmt: skip
        """Remember a call that has just run, if it is settled that ours run calls like it; whether they may be ours."""
        options = self._jitdnn_options
        if not whole.is_ours(function, arguments, options):
            return False
        batch = None
        if self.momentum is not None:
            batch = batch_norm_calls.prepared(
                input, *running, self.weight, self.bias, momentum, self.eps, name, options
            )
        if batch is not None and has_own(self):
            own = (
                *(self._parameters[one] for one in ("weight", "bias")),
                self.running_mean,
                self.running_var,
            )
            now = self._now(name, self.running_mean is None)
            batch_norm_calls.learn(Remembered.of(self, CALLS), batch, (input, *own), now)
        return True


#: activations that are one operation with the normalization before them, and how ours call them
_FUSED: dict[Any, str] = {
    ("relu", None): "relu",
    ("clipped_relu", 6.0): "clipped_relu",
    ("swish", 1.0): "swish",
}


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d`."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d`."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d`."""


class SyncBatchNorm(_BatchNorm, nn.modules.batchnorm._BatchNorm):
    """`torch.nn.SyncBatchNorm`, on processors too: no subclass, for DistributedDataParallel refuses those there."""

    _check_input_dim = nn.SyncBatchNorm._check_input_dim
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def forward(self, input: Tensor) -> Tensor:
        return self.activated(input, None)

    def activated(self, input: Tensor, behind: nn.Module | None) -> Tensor:
        """What the module `behind`, an activation, makes of the normalized input."""
        compiling = torch.compiler.is_compiling()
        group = None if compiling else sync_batch_norm.group_of(self, input, self._jitdnn_options)
        if group is None:
            if compiling or (self.training and input.is_cuda):
                found: Tensor = nn.SyncBatchNorm.forward(self, input)
            else:
                found = super().forward(input)  # a batch by itself
            return found if behind is None else behind(found)
        momentum = self._next_momentum()
        function = sync_batch_norm.IDENTITY if behind is None else activation_of(behind)
        assert function is not None
        return sync_batch_norm.synchronized(input, self, momentum, function, group, self._jitdnn_options)


def activation_of(module: nn.Module) -> sync_batch_norm.Function | None:
    """The activation that a module is, None for another one."""
    return sync_batch_norm.function_of(REVERTED.get(type(module), type(module)), module)


class Sequential(nn.Sequential):
    """`torch.nn.Sequential`, in which an activation behind a normalization of batches or instances is a part of it."""

    def forward(self, input: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(input)
        before: Any = None
        for module in self:
            if before is not None:
                is_one = activation_of(module) is not None and not (
                    sync_batch_norm.is_watched(before) or sync_batch_norm.is_watched(module)
                )
                input = before.activated(input, module) if is_one else module(before(input))
                before = None
            elif type(module) in _NORMALIZING.values() or type(module) in INSTANCES.values():
                before = module
            else:
                input = module(input)
        return input if before is None else before(input)


def is_block(module: nn.Module) -> bool:
    """Whether a module is a sequence with an activation behind a normalization, which `Sequential` joins."""
    if type(module) not in (nn.Sequential, Sequential):
        return False
    parts = list(module)
    return any(_are_joined(one, behind) for one, behind in pairwise(parts))


#: normalizations that an activation behind them is joined to: torch's class -> ours
_NORMALIZING: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNorm,
}


#: and those of images and channels; modules.py puts them in
INSTANCES: dict[type[nn.Module], type[nn.Module]] = {}


def _are_joined(one: nn.Module, behind: nn.Module) -> bool:
    if type(one) in INSTANCES or type(one) in INSTANCES.values():
        return activation_of(behind) in instance_norm_activation.FUSED
    if type(one) not in _NORMALIZING and type(one) not in _NORMALIZING.values():
        return False
    function = activation_of(behind)
    return function in _FUSED or (function is not None and type(one) in (nn.SyncBatchNorm, SyncBatchNorm))
