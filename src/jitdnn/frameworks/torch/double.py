"""Second derivatives by torch's own operators, for gradients that ours compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def derivatives_of_gradients(
    stock: Callable[..., Tensor],
    operands: tuple[Tensor, Tensor, Tensor | None] | tuple[Tensor, Tensor, Tensor, Tensor],
    grads: Sequence[Tensor | None],
) -> list[Any]:
    """The gradients of `operands` (dy, x, weight) through those, (dx, dweight, dbias), of `stock(x, weight, bias)`.

    Where these depend on the bias it is the fourth of the operands. `grads` are those of the three; None where nothing
    depends on one. They have derivatives where some are asked for.
    """
    dy, x, weight, *others = operands
    has_more = torch.is_grad_enabled()
    with torch.enable_grad():
        dy, x = alone(dy, has_more), alone(x, has_more)
        given = [x]
        bias = None
        if weight is not None:
            weight = alone(weight, has_more)
            bias = alone(others[0], has_more) if others else torch.zeros_like(weight).requires_grad_()
            given += [weight, bias]
        y = stock(x, weight, bias)
        first = torch.autograd.grad(y, given, dy, create_graph=True)
        pairs = [(one, grad) for one, grad in zip(first, grads, strict=False) if grad is not None]
        inputs = [dy, *given[: len(operands) - 1]]
        found = torch.autograd.grad(
            [one for one, _ in pairs],
            inputs,
            [grad for _, grad in pairs],
            create_graph=has_more,
            allow_unused=True,
        )
    return [*found, *[None] * (len(operands) - len(found))]


def alone(operand: Tensor, has_more: bool) -> Tensor:
    """A tensor to differentiate by, on which no other operand depends; `has_more`: it keeps what led to it."""
    return (
        operand.view_as(operand) if has_more and operand.requires_grad else operand.detach().requires_grad_()
    )
