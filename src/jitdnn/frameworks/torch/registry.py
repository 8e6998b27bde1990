"""How an operator `torch.ops.jitdnn.*` is made: schema, kernels, shapes, gradient, and a short way to call it.

Calls through PyTorch's dispatcher into Python cost tens of microseconds. Where nothing else takes part (no compiler,
no mode, no functorch, no autocast), an `Operator` calls its kernel itself, or an `autograd.Function` of the same kernel
and gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.library import Library
from torch.nn import Parameter

from jitdnn.frameworks.torch.stock import KEYS

library = Library("jitdnn", "DEF")
OWN = (Tensor, Parameter)
"""The classes of ordinary tensors: others may do anything with a call."""
_BATCHED = torch._C._dispatch_key_parse("VmapMode")
"""What a thread has while gradients of a batch of results are taken together."""


def _unknown(*_: Any) -> bool:
    return True


def _wants_gradients(*operands: Any) -> bool:
    return any(isinstance(one, Tensor) and one.requires_grad for one in operands)


#: whether one of some operands wants a gradient; in C++ where PyTorch (2.7 and later) has it
any_requires_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", _wants_gradients)
#: of a thread, the hooks of what is saved for backward passes (checkpoints have some), called with False; None without.
#: PyTorch 2.6 cannot be asked, and has some for all we know
hooks_of_saved: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", _unknown
)
#: whether the backward pass of this thread keeps what is saved, for another one; PyTorch that cannot be asked may
is_graph_kept: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)


class Operator:
    """An operator that is called in the shortest way that what is going on allows.

    `default`: the operator of PyTorch. `kernel`: what runs it. `function`: the `autograd.Function` for eager calls.
    `is_lowered`: under autocast its operands are cast.
    """

    def __init__(
        self, default: Any, kernel: Callable[..., Any], function: Any, is_lowered: bool = False
    ) -> None:
        self.default = default
        self.kernel = kernel
        self.function = function
        self._is_lowered = is_lowered

    def __call__(self, *operands: Any) -> Any:
        device = "" if torch.compiler.is_compiling() else plain_device(operands)
        if not device:
            return self.default(*operands)
        if self._is_lowered and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            operands = tuple(as_autocast(operand, device, dtype) for operand in operands)
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
    has_batching: bool = False,
) -> Operator:
    """Define an operator and return it.

    `kernel` runs it on processors and GPUs alike, `fake` gives tensors of the result's form from those that have no
    data. `save(ctx, inputs, output)` keeps what `gradient(ctx, *grads)` needs; without them it has no derivative.
    `is_lowered`: under autocast its operands are cast to the type that autocast asks for.
    `has_batching`: vmap has a rule of its own, which is registered elsewhere; others call it for each of the batch.
    """
    name = schema.partition("(")[0]
    library.define(schema)
    for key in KEYS.values():
        library.impl(name, kernel, key)
    full = f"jitdnn::{name}"
    torch.library.register_fake(full, fake, lib=library)
    operator = getattr(torch.ops.jitdnn, name).default
    function = None
    if gradient is not None and save is not None:
        function = _function(operator, kernel, save, gradient)
        library.impl(name, _differentiable(operator, save, gradient), "Autograd", with_keyset=True)
    if not has_batching:
        torch.library.register_vmap(full, partial(_one_by_one, operator), lib=library)
    if is_lowered:
        for device, key in KEYS.items():
            library.impl(name, _lowering(operator, device), f"Autocast{key}")
    return Operator(operator, kernel, function, is_lowered)


def _function(
    operator: Any, kernel: Callable[..., Any], save: Callable[..., None], gradient: Callable[..., Any]
) -> Any:
    """The `autograd.Function` of a kernel; with a `setup_context` it would bind its arguments anew at every call."""

    defaults = [argument.default_value for argument in operator._schema.arguments]

    def forward(ctx: Any, *operands: Any) -> Any:
        output = kernel(*operands)
        save(ctx, (*operands, *defaults[len(operands) :]), output)
        return output

    def backward(ctx: Any, *grads: Any) -> Any:
        return gradient(ctx, *grads)[: len(ctx.needs_input_grad)]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(operator.name().replace("::", "_"), (torch.autograd.Function,), methods)


def plain_device(operands: tuple[Any, ...]) -> str:
    """The type of the device of ordinary tensors; empty where something stands before a kernel, save autocast."""
    device = ""
    for operand in operands:
        if isinstance(operand, Tensor):
            if type(operand) not in OWN or not is_dense(operand) or operand.is_neg() or operand.is_conj():
                return ""
            device = device or operand.device.type
    return device if device in KEYS and is_eager() else ""


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has one shape, and strides: it is not nested, and of no other layout (sparse, oneDNN's own)."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_eager() -> bool:
    """Whether calls run now and as they are: no mode, no transform of functorch, no batch of gradients
    (`is_grads_batched`) and no tracer takes part."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and not torch._C._dispatch_tls_is_dispatch_key_included(_BATCHED)
    )


def is_transformed() -> bool:
    """Whether a transform of functorch takes part, or gradients of a batch of results are taken together."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._dispatch_tls_is_dispatch_key_included(_BATCHED)
    )


def in_order(tensor: Tensor, form: torch.memory_format) -> Tensor:
    """A tensor with its axes in this order; also one of a batch of vmap's, which has no rule for that."""
    if form is torch.contiguous_format or not is_transformed():
        return tensor.contiguous(memory_format=form)
    like = torch.empty(tensor.shape, device="meta", memory_format=form)
    return tensor.new_empty_strided(tensor.shape, like.stride()).copy_(tensor)


def is_autocast_on(device: str) -> bool:
    """Whether autocast lowers the types of operands on this type of device; on "meta" and others it cannot be asked."""
    return device in KEYS and torch.is_autocast_enabled(device)


def _differentiable(
    operator: Any, save: Callable[..., None], gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator with a derivative, as `torch.library.register_autograd` makes it, and under `torch.func` too.

    At this key a level of `torch.func.grad` or `vjp` is entered already, and nothing is left of it to dispatch: the
    check of `Function.apply`, which keeps functions from being called above it, is left out.
    """
    defaults = [argument.default_value for argument in operator._schema.arguments]

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            *operands, keyset = given
            # the level beneath records too, which Function would keep it from
            with torch.set_grad_enabled(torch._C._are_functorch_transforms_active()):
                result = below(keyset, *operands)
            # the dispatcher leaves out arguments at the end that have their default
            save(ctx, (*operands, *defaults[len(operands) :]), result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            found = gradient(ctx, *grads)
            return (*found[: len(ctx.needs_input_grad) - 1], None)

    def below(keyset: Any, *operands: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *operands)

    def differentiable(keyset: Any, *operands: Any) -> Any:
        if not (torch.is_grad_enabled() and any_requires_grad(*operands)):
            return below(keyset, *operands)
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return super(torch.autograd.Function, Differentiable).apply(*operands, keyset)
        return Differentiable.apply(*operands, keyset)

    return differentiable


def _one_by_one(operator: Any, info: Any, in_dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
    """An operator over the batch of vmap: a call for each, since each has weights or statistics of its own."""
    results = []
    for number in range(info.batch_size):
        results.append(
            operator(
                *(
                    one.select(axis, number) if isinstance(one, Tensor) and axis is not None else one
                    for one, axis in zip(operands, in_dims, strict=True)
                )
            )
        )
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


def _lowering(operator: Any, device: str) -> Callable[..., Any]:
    """The operator on operands cast as autocast asks; double precision stays, as in torch."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{KEYS[device]}"))

    def in_lower_precision(*operands: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*(as_autocast(operand, device, dtype) for operand in operands))

    return in_lower_precision


def as_autocast(operand: Any, device: str, dtype: torch.dtype) -> Any:
    """An operand as autocast gives it; double precision stays, as in torch."""
    if (
        not isinstance(operand, Tensor)
        or operand.dtype in (dtype, torch.float64)
        or operand.device.type != device
        or not operand.is_floating_point()
    ):
        return operand
    return operand.to(dtype)


def node(forward: Callable[..., Any], gradients: Callable[..., Any]) -> Any:
    """What applies a node of autograd of its own, with this forward and backward pass, without the ways through Python
    of `Function.apply` and of the node.

    What the two work with is in their closures: an argument and an attribute of the node take the host longer. No
    transform of functorch takes part, as the guards of remembered calls know.
    """
    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    function = type("_Layer", (torch.autograd.Function,), methods)
    # the engine calls this method of the node, which would look for `backward` and `vjp` of the function first
    backward: Any = getattr(function, "_backward_cls", None)
    if backward is not None:
        backward.apply = gradients
    return super(torch.autograd.Function, function).apply


def differentiated(apply: Any, gradients: Any) -> None:
    """Have the nodes that this applies hand back gradients by another method from now on."""
    backward: Any = getattr(apply.__self__, "_backward_cls", None)
    if backward is not None:
        backward.apply = gradients
