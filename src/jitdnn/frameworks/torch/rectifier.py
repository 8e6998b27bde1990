"""`torch.nn.ReLU` in training on a processor: torch's kernels, whose results and gradients lie in memory that stays.

Ours are not faster than torch's. But what torch allocates for them is fresh memory, which the system clears first where
it is large, and which is there beside the memory that other layers of a converted model write to again (arena.py): a
step then takes more at its peak than it takes by torch alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.deferred import activating
from jitdnn.frameworks.torch.fresh import fresh_like
from jitdnn.frameworks.torch.options import is_disabled
from jitdnn.frameworks.torch.registry import OWN, is_eager

aten = torch.ops.aten

LEAST = 4 << 20
"""Bytes of a result from which on it is so: a node of autograd that is written in Python takes longer than a pass over
much less."""


class _Rectified(torch.autograd.Function):
    """max(x, 0), in place or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_in_place: bool) -> Tensor:
        if is_in_place:
            y = torch.relu_(x)
            ctx.mark_dirty(x)
        else:
            y = torch.clamp_min(x, 0, out=fresh_like(x, x.device)())  # what torch.relu is
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (dy,), (y,) = gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or type(dy) not in OWN or not is_eager():
            found: Tensor = aten.threshold_backward.default(dy, y, 0)
            return found, None
        dx = fresh_like(y, y.device)()
        aten.threshold_backward.grad_input(dy, y, 0, grad_input=dx)
        return dx, None


def _is_plain(x: Any, is_in_place: bool) -> bool:
    """Whether a call is one of a training step on a processor with a large result, in which nobody else takes part."""
    return (
        type(x) in OWN
        and x.is_cpu
        and x.requires_grad
        and torch.is_grad_enabled()
        and x.is_floating_point()
        and x.numel() * x.element_size() >= LEAST
        and not (is_in_place and (x.is_leaf or x._is_view()))
        and not torch._C._len_torch_function_stack()
        and forward_ad._current_level < 0
        and is_eager()
        and not is_disabled()
    )


class ReLU(nn.ReLU):
    """`torch.nn.ReLU`."""

    def forward(self, input: Tensor) -> Tensor:
        if is_compiling():
            return super().forward(input)
        return activating(F.relu, self._rectified, input, self.inplace)

    def _rectified(self, input: Tensor) -> Tensor:
        if _is_plain(input, self.inplace):
            found: Tensor = _Rectified.apply(input, self.inplace)
            return found
        return super().forward(input)
