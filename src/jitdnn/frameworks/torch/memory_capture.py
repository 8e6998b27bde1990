"""What a chain inside of a model is called with, seen in one forward pass of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.torch.memory_meter import tensors
from jitdnn.frameworks.torch.memory_profile import Call, unchanged


class _Seen:
    """The calls of a chain's parts, which must be one after another, each with the result of the last."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._next = 0
        self._result: Any = None
        self.value: Any = None
        self.call = Call()

    def before(self, index: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A part is about to run."""
        if self._next != index:
            self._refuse(index, f"it was expected to run as number {index} of the chain, not {self._next}")
        if not args:
            self._refuse(
                index, "it has no positional argument, and the first is what passes through the chain"
            )
        call = Call(args[1:], kwargs)
        if index == 0:
            self.value, self.call = tree_map(_cloned, args[0]), call
        elif args[0] is not self._result:
            self._refuse(index, "it does not get the result of the module before it")
        elif not _is_same(call, self.call):
            self._refuse(index, "its other arguments are not those of the first module")
        self._result = None

    def after(self, index: int, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """A part has run."""
        self._result = result
        self._next += 1

    def finish(self) -> None:
        """Check that all have run."""
        if self._next != len(self._names):
            self._refuse(self._next, "it did not run")

    def _refuse(self, index: int, why: str) -> None:
        raise InvalidArgument(
            f"{self._names[index]} is no part of a chain: {why}. A chain's modules must run one after another, each "
            "once in a forward pass, on the result of the one before"
        )


def captured(
    model: nn.Module,
    parts: Sequence[tuple[str, nn.Module]],
    chain: Sequence[nn.Module],
    inputs: tuple[Any, ...],
) -> tuple[Any, Call]:
    """Run the model without gradients; returns what the first of `parts` is given to pass through, and what else all
    are given. `chain` are the modules that the parts consist of.
    """
    seen = _Seen([name for name, _ in parts])
    hooks = []
    for index, (_, module) in enumerate(parts):
        before: Callable[..., Any] = partial(seen.before, index)
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(seen.after, index), with_kwargs=True))
    try:
        with torch.no_grad(), unchanged([model], inputs):
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    seen.finish()
    inside = {id(parameter) for module in chain for parameter in module.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    if any(tensor.requires_grad for tensor in (*outside, *tensors(inputs))):
        seen.value = tree_map(_with_gradient, seen.value)
    return seen.value, seen.call


def _cloned(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _with_gradient(leaf: Any) -> Any:
    is_real = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf.requires_grad_() if is_real else leaf


def _is_same(one: Call, other: Call) -> bool:
    if len(one.args) != len(other.args) or one.kwargs.keys() != other.kwargs.keys():
        return False
    pairs = [
        *zip(one.args, other.args, strict=True),
        *((one.kwargs[key], other.kwargs[key]) for key in one.kwargs),
    ]
    return all(
        a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b) for a, b in pairs
    )
