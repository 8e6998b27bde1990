"""How an operator `torch.ops.jitdnn.*` is made: schema, kernels, shapes, gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from jitdnn.frameworks.torch.stock import KEYS

library = Library("jitdnn", "DEF")


def define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    gradient: Callable[..., Any] | None = None,
    is_lowered: bool = False,
) -> Any:
    """Define an operator and return it.

    `kernel` runs it on processors and GPUs alike, `fake` gives tensors of the result's form from those that have no
    data. `save(ctx, inputs, output)` keeps what `gradient(ctx, *grads)` needs; without them it has no derivative.
    `is_lowered`: under autocast its operands are cast to the type that autocast asks for.
    """
    name = schema.partition("(")[0]
    library.define(schema)
    for key in KEYS.values():
        library.impl(name, kernel, key)
    full = f"jitdnn::{name}"
    torch.library.register_fake(full, fake, lib=library)
    if gradient is not None:
        torch.library.register_autograd(full, gradient, setup_context=save, lib=library)
    operator = getattr(torch.ops.jitdnn, name).default
    if is_lowered:
        for device, key in KEYS.items():
            library.impl(name, _lowering(operator, device), f"Autocast{key}")
    return operator


def _lowering(operator: Any, device: str) -> Callable[..., Any]:
    """The operator on operands cast as autocast asks; double precision stays, as in torch."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{KEYS[device]}"))

    def cast(operand: Any) -> Any:
        is_cast = (
            isinstance(operand, Tensor)
            and operand.device.type == device
            and operand.is_floating_point()
            and operand.dtype is not torch.float64
        )
        return operand.to(torch.get_autocast_dtype(device)) if is_cast else operand

    def in_lower_precision(*operands: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(cast, operands))

    return in_lower_precision
