"""What layers of a model need in each step and can have together: on a GPU each launch costs the host microseconds.

Under autocast each convolution and linear layer casts its weight anew in each step, and the gradient of it back, and
each batch normalization counts its batches by a launch of its own. While a converted model runs, those that ours run
are done for all layers at once: the weights that were cast in the last call are cast when the next one begins, by one
node of autograd, whose backward pass casts all gradients; and batches are counted when the call ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from jitdnn.frameworks.torch import deferred
from jitdnn.frameworks.torch.fresh import fresh_like
from jitdnn.frameworks.torch.registry import OWN, is_eager

TOGETHER = "_jitdnn_together"
"""The attribute of modules that have the model's one."""


def costs_a_launch(tensor: Tensor) -> bool:
    """Whether what is done to a tensor costs more by itself than together with others."""
    return bool(tensor.is_cuda)


class _Cast:
    """A weight that is cast in each call: its copy of this call, and the version that it is of."""

    __slots__ = ("copy", "dtype", "is_used", "made", "version", "weight")

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self.weight: Any = ref(weight)
        self.dtype = dtype
        form = torch.empty_strided(weight.shape, weight.stride(), dtype=dtype, device="meta")
        self.made: Callable[[], Tensor] = fresh_like(form, weight.device)
        self.copy: Tensor | None = None
        self.version, self.is_used = -1, True


def _is_distributed() -> bool:
    """Whether gradients are sent to other processes as soon as they are there, one after the other."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _is_awaited(weight: Tensor) -> bool:
    """Whether somebody waits for the gradient of this weight alone."""
    return bool(_is_distributed() or getattr(weight, "_post_accumulate_grad_hooks", None))


def _copied(makers: list[Callable[[], Tensor]], originals: list[Tensor]) -> list[Tensor]:
    """Copies of another type, by one launch."""
    with torch.no_grad():
        copies = [made() for made in makers]
        torch._foreach_copy_(copies, originals)
    return copies


class _CastAll(torch.autograd.Function):
    """Weights of another type."""

    @staticmethod
    def forward(ctx: Any, makers: list[Callable[[], Tensor]], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_copied(makers, [*weights]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        found: list[Any] = [None, *grads]
        if torch.is_grad_enabled() or not is_eager():
            return None, *(
                None if one is None else one.to(dtype) for one, dtype in zip(grads, ctx.dtypes, strict=True)
            )
        there = [n for n, one in enumerate(grads, 1) if one is not None]
        made = [torch.empty_like(found[n], dtype=ctx.dtypes[n - 1]) for n in there]
        if there:
            torch._foreach_copy_(made, [found[n] for n in there])
        for n, one in zip(there, made, strict=True):
            found[n] = one
        return tuple(found)


class Together:
    """What the layers of one model have in common while it runs. Copies and pickled models know nothing."""

    __slots__ = ("_call", "_casts", "_counts", "_frame", "_has_joins", "_own", "_thread")

    def __init__(self) -> None:
        self._thread = 0  # that in which the model runs, 0 while it does not
        self._casts: dict[int, _Cast] = {}
        self._own: dict[int, _Cast] | None = None  # while others are cast
        self._counts: dict[int, tuple[Tensor, int]] = {}
        self._call: deferred.Call | None = None
        self._frame: int | None = (
            None  # the id of that which runs the model, where an interrupt may end it untold
        )
        self._has_joins: bool | None = None  # not known yet

    def __reduce__(self) -> tuple[type[Together], tuple[()]]:
        return Together, ()

    def begin(self, model: nn.Module, frame: int | None = None) -> None:
        """A call of the model begins, in the frame of this id, or None where its end is told whatever happens."""
        if self._thread == threading.get_ident() and not deferred.is_running(self._frame, frame):
            self.end(None)
        if self._thread or not is_eager():
            return  # it calls itself, or runs in another thread, too
        self._thread, self._frame = threading.get_ident(), frame
        self._call = deferred.begin(model, self._has_joins, frame)
        casts: list[_Cast] = []
        weights: list[Any] = []
        for number, cast in [*self._casts.items()]:
            weight = cast.weight()
            if not cast.is_used or weight is None or not weight.data_ptr():  # sharded: not gathered yet
                del self._casts[number]
            else:
                casts.append(cast)
                weights.append(weight)
            cast.is_used = False
        if not casts:
            return
        is_recording = torch.is_grad_enabled()
        for wanted in (False, True):
            chosen = [n for n, one in enumerate(weights) if (is_recording and one.requires_grad) is wanted]
            if wanted:  # one node has all gradients together, which is late for some
                chosen = [n for n in chosen if not _is_awaited(weights[n])]
            if chosen:
                own = [weights[n] for n in chosen]
                makers = [casts[n].made for n in chosen]
                copies: Any = _CastAll.apply(makers, *own) if wanted else _copied(makers, own)
                for n, copy in zip(chosen, copies, strict=True):
                    casts[n].copy, casts[n].version = copy, weights[n]._version

    def end(self, result: Any) -> Any:
        """The call is over: its result."""
        if self._thread != threading.get_ident():
            return result
        self._thread, self._frame = 0, None
        call, self._call = self._call, None
        if call is not None:
            result = call.end(result)
            if result is not None:  # as where the model raised an error, which tells nothing
                self._has_joins = deferred.found(call)
        for cast in self._casts.values():
            cast.copy = None
        counts = [*self._counts.values()]
        self._counts.clear()
        if counts:
            torch._foreach_add_([one for one, _ in counts], [number for _, number in counts])
        return result

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """A weight cast to a type when the call of the model began, if it has not changed since; with a history where
        gradients are recorded and it wants one. None where it must be cast by itself, for which it is noted."""
        found = self._casts.get(id(weight))
        if found is not None and found.weight() is weight and found.dtype is dtype:
            found.is_used = True
            copy = found.copy
            if (
                copy is not None
                and found.version == weight._version
                and self._thread == threading.get_ident()
                and (copy.requires_grad or not (weight.requires_grad and torch.is_grad_enabled()))
            ):
                return copy
        elif (
            self._thread == threading.get_ident()
            and type(weight) in OWN
            and not weight.is_inference()  # which counts no versions
            and costs_a_launch(weight)
        ):
            self._casts[id(weight)] = _Cast(weight, dtype)
        return None

    def cast_others(self, others: Mapping[int, Tensor] | None) -> None:
        """Cast others in the place of the weights with these ids, until the weights themselves are asked for by
        None."""
        if others is None:
            self._casts, self._own = self._own or {}, None
            return
        self._own, self._casts = self._casts, {}
        for cast in self._own.values():
            weight = cast.weight()
            other = None if weight is None else others.get(id(weight))
            if other is not None:
                self._casts[id(other)] = _Cast(other, cast.dtype)

    def count(self, batches: Tensor) -> None:
        """Add one to a number of batches, at the latest when the call of the model ends."""
        if self._thread == threading.get_ident() and costs_a_launch(batches):
            _, before = self._counts.get(id(batches), (batches, 0))
            self._counts[id(batches)] = (batches, before + 1)
        else:
            batches.add_(1)


def watch(model: nn.Module, modules: list[nn.Module], has_hooks: bool = True) -> None:
    """Have these modules of a model do together what they can; without hooks, where somebody else tells when a call of
    the model begins and ends."""
    made = Together()
    if has_hooks:
        model.register_forward_pre_hook(_before)
        model.register_forward_hook(_after, always_call=True)
    for module in (model, *modules):
        module.__dict__[TOGETHER] = made


def forget(model: nn.Module) -> None:
    """Have them do it by themselves again."""
    for hooks, own in ((model._forward_pre_hooks, _before), (model._forward_hooks, _after)):
        for number, hook in [*hooks.items()]:
            if hook is own:
                del hooks[number]
                model._forward_hooks_always_called.pop(number, None)
    for module in model.modules():
        module.__dict__.pop(TOGETHER, None)
    deferred.forget(model)


def _before(model: nn.Module, args: Any) -> None:
    if not is_compiling():
        found: Together | None = model.__dict__.get(TOGETHER)
        if found is not None:
            found.begin(model, id(sys._getframe(1)))


def _after(model: nn.Module, args: Any, result: Any) -> Any:
    if not is_compiling():
        found: Together | None = model.__dict__.get(TOGETHER)
        if found is not None:
            ended = found.end(result)
            return None if ended is result else ended
    return None
