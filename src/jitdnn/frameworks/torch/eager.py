"""Functions that are ours in eager calls alone: forward and backward by ours, each call chosen as a whole (whole.py).

Under `torch.compile`, export, vmap, `torch.func` and autocast torch's own function runs: it has decompositions that
compilers fuse, and no operator of ours stands in their way. Gradients of gradients are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.kinds import DEVICES, DTYPES
from jitdnn.frameworks.torch.options import handle_of, is_disabled
from jitdnn.frameworks.torch.registry import OWN, is_eager


@dataclass(frozen=True)
class Eager:
    """A function of tensors, some of which may be None, with settings that are none.

    `forward(handle, settings, is_training, tensors)` gives the outputs and, in training, what else the gradient needs;
    `backward(handle, settings, grads, tensors, outputs, saved)` a gradient for each tensor, or None;
    `stock(settings, tensors)` the outputs by torch. All are tuples. Without `needs_outputs` backward is given none.
    """

    forward: Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    backward: Callable[..., Sequence[Tensor | None]]
    stock: Callable[..., tuple[Tensor, ...]]
    needs_outputs: bool = True

    def __call__(
        self, options: str, settings: tuple[Any, ...], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The outputs. Raises what ours raise."""
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors):
            found: tuple[Tensor, ...] = _Call.apply(self, options, settings, *tensors)
            return found
        return self.forward(_handle(options, tensors), settings, False, tensors)[0]


def is_taken(*tensors: Tensor | None) -> bool:
    """Whether ours may run a call: now, of ordinary tensors of one type and device that have elements."""
    if is_disabled() or torch.compiler.is_compiling() or not is_eager():
        return False
    given = [one for one in tensors if one is not None]
    first = given[0]
    if not all(type(one) in OWN for one in given) or torch.is_autocast_enabled(first.device.type):
        return False
    return (
        first.device.type in DEVICES
        and first.dtype in DTYPES
        and all(
            one.dtype == first.dtype
            and one.device == first.device
            and one.layout is torch.strided
            and one.numel() > 0
            and not one.is_neg()
            for one in given
        )
    )


def _handle(options: str, tensors: Sequence[Tensor | None]) -> Any:
    return handle_of(options, next(one.device.type for one in tensors if one is not None))


class _Call(torch.autograd.Function):
    """A call with gradients."""

    @staticmethod
    def forward(
        ctx: Any, eager: Eager, options: str, settings: tuple[Any, ...], *tensors: Tensor | None
    ) -> Any:
        outputs, saved = eager.forward(_handle(options, tensors), settings, True, tensors)
        kept = outputs if eager.needs_outputs else ()  # what is kept may not be changed in place
        ctx.save_for_backward(*tensors, *kept, *saved)
        ctx.eager, ctx.options, ctx.settings = eager, options, settings
        ctx.counts = len(tensors), len(kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs, results = ctx.counts
        kept = ctx.saved_tensors
        tensors, outputs, saved = kept[:inputs], kept[inputs : inputs + results], kept[inputs + results :]
        needs = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            found = _again(ctx.eager.stock(ctx.settings, tensors), tensors, needs, grads)
        else:
            dense = [one if 0 not in one.stride() else one.contiguous() for one in grads]
            handle = _handle(ctx.options, tensors)
            found = ctx.eager.backward(handle, ctx.settings, dense, tensors, outputs, saved)
        return (
            None,
            None,
            None,
            *(one if is_needed else None for one, is_needed in zip(found, needs, strict=True)),
        )


def _again(
    outputs: Sequence[Tensor], tensors: Sequence[Tensor], needs: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients by torch, which have gradients themselves."""
    pairs = [(y, dy) for y, dy in zip(outputs, grads, strict=True) if y.requires_grad]
    wanted = [one for one, is_needed in zip(tensors, needs, strict=True) if is_needed]
    ys, dys = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(ys, wanted, dys, create_graph=True, allow_unused=True))
    return [next(found) if is_needed else None for is_needed in needs]
