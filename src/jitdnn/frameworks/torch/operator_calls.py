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

from jitdnn.frameworks.torch import guards, kinds, native_calls, native_gradients, whole
from jitdnn.frameworks.torch.eager import EagerOperation
from jitdnn.frameworks.torch.guards import CALLS, Remembered
from jitdnn.frameworks.torch.kinds import Operation, observers, threads_apart, watching
from jitdnn.frameworks.torch.launch import shortening
from jitdnn.frameworks.torch.registry import OWN, differentiated, node, plain_device

_has_function_modes = torch._C._len_torch_function_stack


#: functions of torch -> what gives the operation and its operands for the function's arguments; None where torch's runs
OPERATIONS: dict[Any, Callable[..., tuple[Operation | EagerOperation, tuple[Any, ...]] | None]] = {}


def recalled(module: Any, x: Tensor, told: str = "") -> Tensor | None:
    """The result of a call that the module has made before; None for another one. `told`: that of its operation."""
    attributes = module.__dict__
    calls: Remembered | None = attributes.get(CALLS)
    if calls is None or type(x) not in OWN or _has_function_modes():
        return None
    own = attributes["_parameters"]
    w, bias = (own.get("weight"), own.get("bias")) if own else (None, None)
    now = _now(module, attributes, w, bias, told)
    if w is None:
        call = calls.find(now, x)
    else:
        call = calls.find(now, x, w) if bias is None else calls.find(now, x, w, bias)
    if call is None:
        return None
    if call.quick is not None:
        calls.quick = call.quick
    apply = call.apply
    found: Tensor
    if apply is None:
        found = call.run(x, w, bias)
    elif call.parameters == 0:
        found = apply(x)
    else:
        found = apply(x, w) if call.parameters == 1 else apply(x, w, bias)
    return found


def learn(module: Any, function: Any, args: tuple[Any, ...], named: dict[str, Any], options: str) -> None:
    """Remember a call of torch's function by a module, which has just run, if ours run calls like it."""
    if function not in OPERATIONS or not hasattr(type(module), TOLD):
        return
    calls: Remembered = module.__dict__.get(CALLS) or Remembered()
    if not calls.is_learning or not whole.is_ours(function, args, options, named):
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
        call.state = deepcopy(_now(module, module.__dict__, w, bias, told))  # lists are changed in place
        call.tensors = ()
        calls.add(call)
        if not told:
            calls.quick = call.quick = _quick(call, type(module))
        module.__dict__[CALLS] = calls


def _quick(call: Call, ours: type) -> Callable[[Any, Tensor], Any]:
    """The same as `recalled` of modules of a class, as generated code for such calls alone."""
    apply, takes = (call.run, 3) if call.apply is None else (call.apply, 1 + call.parameters)
    return native_calls.recalled(
        recalled, apply, takes, call.check, call.state, _has_function_modes, getattr(ours, TOLD)
    )


def _are(found: tuple[Operation | EagerOperation, tuple[Any, ...]], own: tuple[Any, ...]) -> bool:
    """Whether an operation's tensors are these ones, and those that there are not, none."""
    operation, operands = found
    return all(one is other for one, other in zip(operands[: 1 + operation.parameters], own, strict=False))


TOLD = "_jitdnn_told"
"""The attribute of a class that gives of a module what tells its calls apart, besides tensors."""


def _now(
    module: Any, attributes: dict[str, Any], w: Tensor | None, bias: Tensor | None, told: str
) -> tuple[Any, ...]:
    """What tells calls of a module apart, besides tensors."""
    return (
        is_grad_enabled(), get_num_threads(), forward_ad._current_level, kinds.epoch, module._jitdnn_options,
        w is None, bias is None, len(attributes["_parameters"]), told, module._jitdnn_told(module),
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
    if call.apply is not None:
        return partial(call.apply, *call.tensors)
    return partial(call.run, *call.tensors, *[None] * (3 - len(call.tensors)))


class Call:
    """A call that was made before: who it is for, and what runs it."""

    __slots__ = (
        "_epoch", "_native", "_operation", "_options", "apply", "arguments", "backwards", "behind", "check",
        "gradients", "keep",
        "kept", "kernel", "parameters", "quick", "saves", "state", "tensors",
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
        self._operation, self._options = operation, options
        #: what the forward pass of its nodes keeps; None where that is not known, False where it is told by nothing
        self.saves: native_calls.Saves | bool | None = None
        #: what finds it again, for modules
        self.quick: Callable[[Any, Tensor], Any] | None = None
        self._native: Callable[..., Any] | None = None
        self.kernel = shortening(self, "kernel", run, self._shortened)
        self.behind = operation.behind(tensors[0], *self.arguments)
        self.kept = operation.kept
        self.backwards: tuple[_Backward, ...] = ()
        is_wanted = any(one is not None and one.requires_grad for one in tensors)
        #: the backward pass of its nodes
        self.gradients = _gradients_of(self)
        #: the result with a history, where there is to be one
        self.apply = _node(self) if is_grad_enabled() and is_wanted else None

    def note(self, operands: tuple[Any, ...], result: Any) -> None:
        """Note what the forward pass of its nodes keeps of operands and of what the kernel gave."""
        found = native_calls.saves_of(
            self.keep, operands, result, self.arguments, self.kept is not None
        )  # fmt: skip
        self.saves = found or False
        self._shorten()

    def _shortened(self, kernel: Callable[..., Any]) -> None:
        self._native = kernel
        self._shorten()

    def _shorten(self) -> None:
        """Have the forward pass of its nodes be generated code where the kernel is."""
        if self._native is None or self.apply is None or not isinstance(self.saves, native_calls.Saves):
            return
        function = self.apply.__self__
        function.forward = native_calls.forward(
            function.forward, self._native, 1 + self.parameters, self.arguments, self.saves
        )

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

    def again(self, x: Tensor) -> Tensor:
        """The layer's result anew, in a backward pass."""
        with torch.no_grad():
            return self.run(x.detach(), None, None)

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
                self.backwards = (*self.backwards, _Backward(self, run, dy, kept))
        return (*grads, *[None] * (1 + self.parameters - len(grads)))


class _Backward:
    """Gradients that were asked for before: `run` is the kernel, `check` whether operands are like those of then."""

    __slots__ = ("check", "run", "threads")

    def __init__(
        self, call: Call, run: Callable[..., Any], dy: Tensor, kept: tuple[Tensor | None, ...]
    ) -> None:
        self.threads = get_num_threads()
        self.check = check = guards.guard(dy, *[one for one in kept if one is not None])
        if any(one is None for one in kept):
            self.check = lambda dy, *kept: check(dy, *[one for one in kept if one is not None])
        needs = (True,) * (1 + call.parameters) if call.parameters else None
        threads = self.threads if dy.is_cpu else None

        def then(found: Callable[..., Any]) -> None:
            if call.apply is not None:
                has_result = call.kept is not None
                own = native_gradients.gradients(
                    call.gradients, found, self.check, len(kept) - has_result, threads, needs, has_result
                )
                differentiated(call.apply, own)

        self.run = shortening(self, "run", run, then)


def _node(call: Call) -> Any:
    """What applies a node of autograd for calls like this one, of x and its parameters."""
    arguments, keep, parameters = call.arguments, call.keep, call.parameters

    # written out: what is called in between takes a tenth of the host's time of a call
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = call.kernel(x, *arguments)
        keep(ctx, x, result, arguments)
        if call.saves is None:
            call.note((x,), result)
        first: Tensor = result[0] if type(result) is tuple else result
        return first

    def forward_with_parameters(ctx: Any, x: Tensor, *others: Tensor | None) -> Tensor:
        result = call.kernel(x, *others, *arguments)
        keep(ctx, x, result, arguments, *others)
        if call.saves is None:
            call.note((x, *others), result)
        first: Tensor = result[0] if type(result) is tuple else result
        return first

    return node(forward_with_parameters if parameters else forward, call.gradients)


def _gradients_of(call: Call) -> Callable[..., Any]:
    """What the node of such a call hands back to autograd: by the kernels of before, or by the operator."""
    behind, own, has_parameters = call.behind, call.kept, call.parameters > 0

    def gradients(ctx: Any, dy: Tensor, kept: Any = None) -> Any:
        if kept is None:
            kept = ctx.saved_tensors  # which checkpoints hand out once
        if own is not None:
            kept = own(ctx, kept, call.again)
        is_plain = not (is_grad_enabled() or ((observers or threads_apart) and watching()))
        if is_plain:
            threads = get_num_threads()
            for known in call.backwards:
                if known.threads == threads and known.check(dy, *kept):
                    found = known.run(dy, *kept, *behind)
                    if type(found) is not tuple:
                        return found
                    if not has_parameters:
                        return found[0]
                    pairs = zip(found, ctx.needs_input_grad)  # noqa: B905 - the time that it takes
                    return tuple([one if is_wanted else None for one, is_wanted in pairs])
        return call.derivative(ctx, dy, kept, is_plain)

    return gradients
