"""Calls of converted normalizations, activations and pools that were made before, in the shortest way to their kernels.

What calls.py is to layers with a filter: PyTorch's guards tell whether a call is the one of before, and one node of
autograd stands for the operator, with the kernels that were chosen for both directions. What is saved for the backward
pass, and the gradients in the long way, are the operator's own: a checkpoint may begin with the one and go on with the
other. Where torch's function is faster stock_calls.py remembers that, and nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch.autograd import forward_ad

from jitdnn.frameworks.torch import guards, kinds, whole
from jitdnn.frameworks.torch.calls import CALLS
from jitdnn.frameworks.torch.eager import EagerOperation
from jitdnn.frameworks.torch.guards import Remembered
from jitdnn.frameworks.torch.kinds import (
    Operation,
    observers,
    threads_apart,
    watching,
)
from jitdnn.frameworks.torch.registry import OWN, applied, plain_device

_EPOCH = 3  # its place in what tells calls apart
_has_function_modes = torch._C._len_torch_function_stack


#: functions of torch -> what gives the operation and its operands for the function's arguments; None where torch's runs
OPERATIONS: dict[Any, Callable[..., tuple[Operation | EagerOperation, tuple[Any, ...]] | None]] = {}


def recalled(module: Any, x: Tensor, told: str = "") -> Tensor | None:
    """The result of a call that the module has made before; None for another one. `told`: that of its operation."""
    calls: Remembered | None = module.__dict__.get(CALLS)
    # guards end the process for tensors that are nested
    if (
        calls is None
        or observers
        or threads_apart
        or type(x) not in OWN
        or x.is_nested
        or _has_function_modes()
    ):
        return None
    own = module._parameters
    w, bias = own.get("weight"), own.get("bias")
    now = _now(module, w, bias, told)
    for call in calls.entries:
        if call.state == now and (
            call.check(x) if w is None else call.check(x, w) if bias is None else call.check(x, w, bias)
        ):
            found: Tensor = _apply(x, w, bias, call) if call.has_history else call.run(x, w, bias)
            return found
    return None


def learn(module: Any, function: Any, args: tuple[Any, ...], named: dict[str, Any], options: str) -> None:
    """Remember a call of torch's function by a module, which has just run, if ours run calls like it."""
    if function not in OPERATIONS or observers or threads_apart or not hasattr(type(module), TOLD):
        return
    calls: Remembered | None = module.__dict__.get(CALLS)
    if (calls is not None and calls.is_full) or not whole.is_ours(function, args, options, named):
        return
    found = OPERATIONS[function](*args, **named)
    own = module._parameters
    w, bias = own.get("weight"), own.get("bias")
    # where operands are others than the module's own (copies, what parametrizations give), nothing can be remembered
    if found is None or not _are(found, (args[0], w, bias)):
        return
    call = _call_of(found, options)
    if call is not None:
        told = getattr(found[0], "told", "")
        call.state = deepcopy(_now(module, w, bias, told))  # lists are changed in place
        call.tensors = ()
        Remembered.of(module, CALLS).add(call, _EPOCH)


def _are(found: tuple[Operation | EagerOperation, tuple[Any, ...]], own: tuple[Any, ...]) -> bool:
    """Whether an operation's tensors are these ones, and those that there are not, none."""
    operation, operands = found
    return all(one is other for one, other in zip(operands[: 1 + operation.parameters], own, strict=False))


TOLD = "_jitdnn_told"
"""The attribute of a class that gives of a module what tells its calls apart, besides tensors."""


def _now(module: Any, w: Tensor | None, bias: Tensor | None, told: str) -> tuple[Any, ...]:
    """What tells calls of a module apart, besides tensors."""
    return (
        is_grad_enabled(), get_num_threads(), forward_ad._current_level, kinds.epoch, module._jitdnn_options,
        w is None, bias is None, len(module._parameters), told, module._jitdnn_told(module),
    )  # fmt: skip


def _call_of(found: tuple[Operation | EagerOperation, tuple[Any, ...]], options: str) -> Call | None:
    """What runs calls of an operation with such operands, where kernels were chosen for them."""
    operation, operands = found
    if not guards.are_there() or not plain_device(operands):
        return None
    run = operation.forward_of(options, operands)
    return None if run is None else Call(operation, operands, options, run)


def short(function: Any, args: tuple[Any, ...], named: dict[str, Any], options: str) -> Any:
    """A call as a module makes it that remembers it, of which whole.py takes the time."""
    found = OPERATIONS[function](*args, **named)
    call = None if found is None else _call_of(found, options)
    if call is None:
        return None
    tensors = (*call.tensors, *[None] * (3 - len(call.tensors)))
    return partial(_apply, *tensors, call) if call.has_history else partial(call.run, *tensors)


class Call:
    """A call that was made before: who it is for, and what runs it."""

    __slots__ = (
        "_epoch", "_operation", "_options", "arguments", "backwards", "behind", "check", "has_history", "keep",
        "kernel", "may_change", "parameters", "state", "tensors",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation | EagerOperation,
        operands: tuple[Any, ...],
        options: str,
        run: Callable[..., Any],
    ) -> None:
        count = 1 + operation.parameters
        tensors, self.arguments = operands[:count], operands[count:]
        self.keep, self.parameters = operation.keep, operation.parameters
        self.tensors = tensors
        self.check = guards.guard(*[one for one in tensors if one is not None])
        self.state: tuple[Any, ...] = ()
        self._epoch = kinds.epoch
        self._operation, self._options, self.kernel = operation, options, run
        self.behind = operation.behind(tensors[0], *self.arguments)
        self.may_change = operation.may_change
        self.backwards: tuple[_Backward, ...] = ()
        is_wanted = any(one is not None and one.requires_grad for one in tensors)
        self.has_history = is_grad_enabled() and is_wanted

    def run(self, x: Tensor, w: Any, bias: Any) -> Tensor:
        """The layer's result, without a history."""
        if self.parameters == 2:
            found = self.kernel(x, w, bias, *self.arguments)
        elif self.parameters:
            found = self.kernel(x, w, *self.arguments)
        else:
            found = self.kernel(x, *self.arguments)
        first: Tensor = found[0] if type(found) is tuple else found
        return first

    def derivative(
        self, ctx: Any, dy: Tensor, kept: tuple[Tensor | None, ...], is_plain: bool
    ) -> tuple[Tensor | None, ...]:
        """What the node of a call hands back to autograd, by the operator. In a plain backward pass it is remembered
        how such gradients are taken."""
        grads = self._operation.derivative(ctx, dy, kept, self.behind, self._options)
        if is_plain and kinds.epoch == self._epoch and len(self.backwards) < guards.MOST:
            operands = (dy, *kept, *self.behind)
            run = self._operation.gradient_of(self._options, operands) if plain_device(operands) else None
            if run is not None:
                self.backwards = (*self.backwards, _Backward(run, dy, kept))
        return (*grads, *[None] * (4 - len(grads)))


class _Backward:
    """Gradients that were asked for before: `run` is the kernel, `check` whether operands are like those of then."""

    __slots__ = ("check", "run", "threads")

    def __init__(self, run: Callable[..., Any], dy: Tensor, kept: tuple[Tensor | None, ...]) -> None:
        self.run, self.threads = run, get_num_threads()
        self.check = check = guards.guard(dy, *[one for one in kept if one is not None])
        if any(one is None for one in kept):
            self.check = lambda dy, *kept: check(dy, *[one for one in kept if one is not None])


# both are written out: what is called in between takes a tenth of the host's time of a call


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """What the node of a call hands back to autograd: by the kernels of before, or by the operator."""
    call: Call = ctx.call
    kept = ctx.saved_tensors  # which checkpoints hand out once
    is_plain = not (is_grad_enabled() or watching())
    if call.may_change:
        is_plain = is_plain and not (ctx.changes is not None and ctx.changes.are_there)
    if is_plain:
        threads = get_num_threads()
        for known in call.backwards:
            if known.threads == threads and known.check(dy, *kept):
                found = known.run(dy, *kept, *call.behind)
                if type(found) is not tuple:
                    return found, None, None, None
                if len(found) == 1:
                    return found[0], None, None, None
                needs = ctx.needs_input_grad
                dx, dw = (found[0] if needs[0] else None), (found[1] if needs[1] else None)
                return dx, dw, (found[2] if needs[2] and len(found) == 3 else None), None
    return call.derivative(ctx, dy, kept, is_plain)


class _Layer(torch.autograd.Function):
    """A layer with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        ctx.call = call
        arguments, parameters = call.arguments, call.parameters
        if parameters == 2:
            result = call.kernel(x, w, bias, *arguments)
            call.keep(ctx, x, result, arguments, w, bias)
        elif parameters:
            result = call.kernel(x, w, *arguments)
            call.keep(ctx, x, result, arguments, w)
        else:
            result = call.kernel(x, *arguments)
            call.keep(ctx, x, result, arguments)
        first: Tensor = result[0] if type(result) is tuple else result
        return first

    backward = staticmethod(_gradients)


_apply = applied(_Layer, _gradients)
