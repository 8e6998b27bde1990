"""Functions that are ours in eager calls alone: forward and backward by ours, each call chosen as a whole (whole.py).

Under `torch.compile`, export, vmap and `torch.func` torch's own function runs: it has decompositions that compilers
fuse, and no operator of ours stands in their way. So it does under autocast, but for functions whose operands autocast
leaves as they are. Gradients of gradients are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.kinds import DEVICES, DTYPES
from jitdnn.frameworks.torch.options import handle_of, is_disabled
from jitdnn.frameworks.torch.outputs import changes_of
from jitdnn.frameworks.torch.registry import (
    OWN,
    any_requires_grad,
    is_autocast_on,
    is_eager,
    plain_device,
)


@dataclass(frozen=True)
class Eager:
    """A function of tensors, some of which may be None, with settings that are none.

    `forward(handle, settings, is_training, tensors)` gives the outputs and, in training, what else the gradient needs;
    `backward(handle, settings, grads, tensors, outputs, saved)` a gradient for each tensor, or None;
    `stock(settings, tensors)` the outputs by torch. All are tuples. Without `needs_outputs` backward is given none.

    What backward does not read is not kept, and may be changed in place before it. `is_linear`: the gradient depends
    on no tensor but on the shape of the first and only one; backward is given one without numbers.
    `derivative(settings, grads, outputs)`: the gradients by torch, from the outputs alone; then no tensor is kept.
    `repeats`: outputs that were changed in place are computed again, from the tensors.
    """

    forward: Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    backward: Callable[..., Sequence[Tensor | None]]
    stock: Callable[..., tuple[Tensor, ...]]
    needs_outputs: bool = True
    is_linear: bool = False
    repeats: bool = False
    derivative: Callable[..., Sequence[Tensor | None]] | None = None

    @property
    def reads_tensors(self) -> bool:
        """Whether the gradient reads the function's operands."""
        return not self.is_linear and self.derivative is None

    def __call__(
        self, options: str, settings: tuple[Any, ...], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The outputs. Raises what ours raise."""
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors):
            found: tuple[Tensor, ...] = _Call.apply(self, options, settings, *tensors)
            return found
        return self.forward(_handle(options, tensors), settings, False, tensors)[0]


def is_taken(*tensors: Tensor | None, is_cast: bool = True) -> bool:
    """Whether ours may run a call: now, of ordinary tensors of one type and device that have elements.

    `is_cast`: autocast gives the function's operands other types. Where it does not, all tensors but the first, as
    parameters of half precision's layers, may be of float32 together.
    """
    if is_disabled() or torch.compiler.is_compiling() or not is_eager():
        return False
    given = [one for one in tensors if one is not None]
    first, *others = given
    if not all(type(one) in OWN for one in given) or (is_cast and is_autocast_on(first.device.type)):
        return False
    types = (first.dtype,) if is_cast or first.dtype is torch.float64 else (first.dtype, torch.float32)
    return (
        first.device.type in DEVICES
        and first.dtype in DTYPES
        and len({one.dtype for one in others}) <= 1
        and all(
            one.dtype in types
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
        _keep(ctx, eager, tensors, outputs, saved)
        ctx.eager, ctx.options, ctx.settings = eager, options, settings
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        needs = ctx.needs_input_grad[3:]
        found = _gradients(ctx, ctx.eager, ctx.options, ctx.settings, ctx.saved_tensors, grads, needs)
        return None, None, None, *found


def _keep(
    ctx: Any, eager: Eager, tensors: Sequence[Tensor | None], outputs: Sequence[Tensor], saved: Sequence[Tensor]
) -> None:  # fmt: skip
    """Keep what the gradient needs."""
    kept = outputs if eager.needs_outputs else ()  # what is kept may not be changed in place
    ctx.output_changes = []
    if eager.repeats:
        ctx.output_changes, kept = zip(*map(changes_of, kept), strict=True)
    read = tensors if eager.reads_tensors else ()
    ctx.save_for_backward(*read, *kept, *saved)
    ctx.counts = len(read), len(kept)
    ctx.shape = tensors[0].shape if eager.is_linear and tensors[0] is not None else None


def _gradients(
    ctx: Any, eager: Eager, options: str, settings: tuple[Any, ...], kept: tuple[Any, ...], grads: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the tensors that are needed, of what `_keep` kept."""
    inputs, results = ctx.counts
    tensors, outputs, saved = kept[:inputs], kept[inputs : inputs + results], kept[inputs + results :]
    if eager.is_linear:
        tensors = (torch.empty((), dtype=grads[0].dtype, device=grads[0].device).expand(ctx.shape),)
    if torch.is_grad_enabled() or not plain_device(tuple(grads)):
        found = _by_torch(eager, settings, grads, tensors, outputs, needs)
    else:
        dense = [one if 0 not in one.stride() else one.contiguous() for one in grads]
        if any(one is not None and one.are_there for one in ctx.output_changes):
            outputs = eager.forward(_handle(options, grads), settings, False, tensors)[0]
        found = eager.backward(_handle(options, grads), settings, dense, tensors, outputs, saved)
    return [one if is_needed else None for one, is_needed in zip(found, needs, strict=True)]


@dataclass(frozen=True)
class EagerOperation:
    """A function with its settings, of which modules remember calls (operator_calls.py), as `Operation` of kinds.py. It
    is none that `repeats`.

    `prepare(handle, settings, is_training, tensors)` gives what returns the output and what `forward` saves, and
    `prepare_gradient(handle, settings, dy, kept)` what takes the output's gradient and all that is kept, for tensors of
    these forms; or None. `told`: what tells calls of a module from others that it makes.
    """

    eager: Eager
    settings: tuple[Any, ...]
    prepare: Callable[..., Callable[..., Any] | None]
    prepare_gradient: Callable[..., Callable[..., Any] | None]
    parameters: int = 0
    told: str = ""
    kept = None

    def forward_of(self, options: str, operands: tuple[Any, ...]) -> Callable[..., Any] | None:
        is_training = torch.is_grad_enabled() and any_requires_grad(*operands)
        return self.prepare(_handle(options, operands), self.settings, is_training, operands)

    def keep(self, ctx: Any, x: Tensor, result: Any, _: Any, *parameters: Tensor | None) -> None:
        """Save what `_keep` saves; what else it notes is the same in all calls."""
        outputs = result if type(result) is tuple else (result,)
        kept = outputs if self.eager.needs_outputs else outputs[1:]
        if self.eager.reads_tensors:
            ctx.save_for_backward(x, *parameters, *kept)
        else:
            ctx.save_for_backward(*kept)

    def behind(self, x: Tensor) -> tuple[torch.Size]:
        return (x.shape,)

    def gradient_of(self, options: str, operands: tuple[Any, ...]) -> Callable[..., Any] | None:
        dy, *kept, _ = operands
        return self.prepare_gradient(_handle(options, operands), self.settings, dy, kept)

    def derivative(self, ctx: Any, dy: Tensor, kept: Any, behind: Any, options: str) -> list[Tensor | None]:
        ctx.counts = (1 + self.parameters) * self.eager.reads_tensors, int(self.eager.needs_outputs)
        (ctx.shape,), ctx.output_changes = behind, ()
        needs = ctx.needs_input_grad[: 1 + self.parameters]
        return _gradients(ctx, self.eager, options, self.settings, kept, (dy,), needs)


def _by_torch(
    eager: Eager, settings: Any, grads: Sequence[Tensor], tensors: Sequence[Any], outputs: Sequence[Tensor],
    needs: Sequence[bool],
) -> Sequence[Tensor | None]:  # fmt: skip
    """The gradients by torch, which have gradients themselves, and rules for batches of gradients."""
    if eager.derivative is not None:
        return eager.derivative(settings, grads, outputs)
    with torch.enable_grad():
        if eager.is_linear:
            (x,) = tensors
            tensors = (torch.zeros((), dtype=x.dtype, device=x.device, requires_grad=True).expand(x.shape),)
        again = eager.stock(settings, tensors)
    pairs = [(y, dy) for y, dy in zip(again, grads, strict=True) if y.requires_grad]
    wanted = [one for one, is_needed in zip(tensors, needs, strict=True) if is_needed]
    ys, dys = zip(*pairs, strict=True)
    has_more = torch.is_grad_enabled()
    found = iter(torch.autograd.grad(ys, wanted, dys, create_graph=has_more, allow_unused=True))
    return [next(found) if is_needed else None for is_needed in needs]
