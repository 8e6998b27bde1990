"""How an operator `torch.ops.jitdnn.*` is made: schema, kernels, shapes, gradient, and a short way to call it.

Calls through PyTorch's dispatcher into Python cost tens of microseconds. Where nothing else takes part (no compiler,
no mode, no functorch, no autocast), an `Operator` calls its kernel itself, or an `autograd.Function` of the same kernel
and gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.nn import Parameter

from jitdnn.frameworks.torch.stock import KEYS

library = Library("jitdnn", "DEF")
_OWN = (Tensor, Parameter)


class Operator:
    """An operator that is called in the shortest way that what is going on allows.

    `default`: the operator of PyTorch. `kernel`: what runs it. `function`: the `autograd.Function` for eager calls.
    """

    def __init__(self, default: Any, kernel: Callable[..., Any], function: Any) -> None:
        self.default = default
        self.kernel = kernel
        self.function = function

    def __call__(self, *operands: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_plain(operands):
            return self.default(*operands)
        if torch.is_grad_enabled():
            for operand in operands:
                if isinstance(operand, Tensor) and operand.requires_grad:
                    return (
                        self.default(*operands) if self.function is None else self.function.apply(*operands)
                    )
        return self.kernel(*operands)


def define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    gradient: Callable[..., Any] | None = None,
    is_lowered: bool = False,
) -> Operator:
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
    function = None
    if save is not None and gradient is not None:
        torch.library.register_autograd(full, gradient, setup_context=save, lib=library)
        function = _function(name, kernel, save, gradient)
    default = getattr(torch.ops.jitdnn, name).default
    if is_lowered:
        for device, key in KEYS.items():
            library.impl(name, _lowering(default, device), f"Autocast{key}")
    return Operator(default, kernel, function)


def _function(
    name: str, kernel: Callable[..., Any], save: Callable[..., None], gradient: Callable[..., Any]
) -> Any:
    """The `autograd.Function` of a kernel; with a `setup_context` it would bind its arguments anew at every call."""

    def forward(ctx: Any, *operands: Any) -> Any:
        output = kernel(*operands)
        save(ctx, operands, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    return type(f"jitdnn_{name}", (torch.autograd.Function,), methods)


def _is_plain(operands: tuple[Any, ...]) -> bool:
    """Whether all tensors are ordinary ones and nothing stands between a call and its kernel."""
    device = ""
    for operand in operands:
        if isinstance(operand, Tensor):
            if type(operand) not in _OWN:
                return False
            device = device or operand.device.type
    return (
        device in KEYS
        and not torch.is_autocast_enabled(device)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


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
