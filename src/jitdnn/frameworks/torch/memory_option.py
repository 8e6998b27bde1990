"""`memory_limit` as an option of `convert`: training steps that stay within a limit, planned at the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.frameworks.torch.memory import chain_of, is_graph, limit_memory, unlimit_memory, without_plan
from jitdnn.frameworks.torch.memory_meter import tensors
from jitdnn.settings import parse_bytes

_HANDLE = "_jitdnn_memory_hook"


class Planner:
    """A hook of a model that plans when the first step comes, and again when larger inputs than before do."""

    def __init__(self, memory_limit: int | str, loss: Callable[[Any], Any] | None, chain: str) -> None:
        self._given = memory_limit, loss, chain
        self._planned = 0
        self._is_planning = False

    @_disable_dynamo  # type: ignore[untyped-decorator]  # what it does is no part of a graph
    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or not model.training or self._is_planning:
            return
        size = sum(one.nbytes for one in tensors([*args, *kwargs.values()]))
        if size <= self._planned:
            return
        if kwargs:
            raise InvalidArgument(
                f"the model is called with {shown(sorted(kwargs))} by name: a limit on memory is planned for inputs "
                "that are given by place"
            )
        memory_limit, loss, chain = self._given
        self._is_planning = True
        try:
            limit_memory(model, *args, memory_limit=memory_limit, loss=loss, chain=chain)
        finally:
            self._is_planning = False
        self._planned = size


def limited(
    model: nn.Module,
    memory_limit: int | str | None,
    example: Sequence[Any] | None,
    loss: Callable[[Any], Any] | None,
    chain: str,
) -> None:
    """Have a model stay within a limit: planned now for an example, or when its first training step comes.

    Raises InvalidArgument for a limit that is none, and for a chain that is not there; what `limit_memory` raises.
    """
    forget(model)
    if memory_limit != "least" and parse_bytes(memory_limit) is None:
        unlimit_memory(model)
        return
    if example is not None and not isinstance(example, (list, tuple)):
        raise InvalidType(f"example is {shown(example)}: it must be a tuple of the inputs of the model")
    if loss is not None and not callable(loss):
        raise InvalidType(f"loss is {shown(loss)}: it must be a function of the model's output")
    if not is_graph(model, chain):
        chain_of(model, chain)
    assert memory_limit is not None
    if example is not None:
        limit_memory(model, *example, memory_limit=memory_limit, loss=loss, chain=chain)
        model.__dict__[_HANDLE] = None
        return
    without_plan(model, chain)  # a call has looked up the forward of its class before hooks run
    hook = Planner(memory_limit, loss, chain)
    model.__dict__[_HANDLE] = model.register_forward_pre_hook(hook, with_kwargs=True)


def forget(model: nn.Module) -> bool:
    """Plan nothing when a step comes; whether the model was given a limit here."""
    was_given = _HANDLE in model.__dict__
    handle = model.__dict__.pop(_HANDLE, None)
    if handle is not None:
        handle.remove()
    return was_given
