"""Captures of a model's passes as CUDA graphs: of which parameters, where, and what tells that one would fail."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from jitdnn.frameworks.torch.together import TOGETHER, Together


class Aliases:
    """Other parameters of the same memory, which the modules have in a block.

    What autograd accumulates the gradient of a parameter by is of the stream on which it was first asked for, and lives
    as long as the history of an earlier step, whose loss a program mostly still has: a capture must not touch it.
    """

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        if any(type(one) is not nn.Parameter for one in parameters):
            raise TypeError("it has parameters of other classes than torch.nn.Parameter")
        self._made = {id(one): nn.Parameter(one.detach()) for one in parameters}
        self.parameters = [self._made[id(one)] for one in parameters]
        self._places = [
            (module._parameters, name, one)
            for module in model.modules()
            for name, one in module._parameters.items()
            if one is not None and id(one) in self._made
        ]
        self._together: Together | None = model.__dict__.get(TOGETHER)

    def __enter__(self) -> None:
        for own, name, one in self._places:
            own[name] = self._made[id(one)]
        if self._together is not None:
            self._together.cast_others(self._made)

    def __exit__(self, *_: object) -> None:
        for own, name, one in self._places:
            own[name] = one
        if self._together is not None:
            self._together.cast_others(None)


class Place:
    """Where the graphs of a step are captured: a stream of their own, since workspaces belong to one and the steps of
    two models may run side by side, and a pool of memory that both share."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def leave(self) -> None:
        """Have the allocator know that a capture is over, which PyTorch does not tell it where ending it failed."""
        for told in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):
                told(self.device.index, self.pool)


def captured(run: Callable[[], Any], place: Place) -> tuple[Any, Any]:
    """A graph of what a function enqueues, and what it returned. Raises what the function does, and RuntimeError."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(place.device)
    torch.cuda.empty_cache()
    result = problem = None
    with torch.cuda.stream(place.stream), _uncollected():
        graph.capture_begin(place.pool, capture_error_mode="thread_local")
        try:
            result = run()
        except Exception as error:
            problem = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            place.leave()
            problem = problem or error
    if problem is not None:
        raise problem
    return graph, result


@contextmanager
def _uncollected() -> Iterator[None]:
    """A block in which cycles are not collected: of whatever lies in them, a finalizer that frees memory of the GPU or
    waits for it ends a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def waits(run: Callable[[], Any]) -> tuple[Any, bool]:
    """The result of a function, and whether it waited for the GPU, which PyTorch tells by warnings."""
    if not torch.cuda.is_initialized():
        return run(), False
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    others = [one for one in seen if "ynchroniz" not in str(one.message)]
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return result, any("synchronizing CUDA operation" in str(one.message) for one in seen)
