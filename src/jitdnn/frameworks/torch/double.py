"""Second derivatives by torch's own operators, for gradients that ours compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def derivatives_of_gradients(
    stock: Callable[..., Tensor],
    operands: tuple[Tensor, Tensor, Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Any]:
    """The gradients of `operands` (dy, x, weight) through those, (dx, dweight, dbias), of `stock(x, weight, bias)`.

    `grads` are those of the three; None where nothing depends on one. Third derivatives are not there.
    """
    dy, x, weight = operands
    with torch.enable_grad():
        dy, x = (one.detach().requires_grad_() for one in (dy, x))
        given = [x]
        bias = None
        if weight is not None:
            weight = weight.detach().requires_grad_()
            bias = torch.zeros_like(weight).requires_grad_()
            given += [weight, bias]
        y = stock(x, weight, bias)
        first = torch.autograd.grad(y, given, dy, create_graph=True)
        pairs = [(one, grad) for one, grad in zip(first, grads, strict=False) if grad is not None]
        inputs = [dy, x] if weight is None else [dy, x, weight]
        found = torch.autograd.grad(
            [one for one, _ in pairs], inputs, [grad for _, grad in pairs], allow_unused=True
        )
    return [*found, *[None] * (3 - len(found))]
