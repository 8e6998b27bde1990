"""Whole steps of a model on a GPU: by layers as they were chosen, or by torch's own functions, whichever is faster.

Layers are chosen one by one (whole.py), each by what it costs the host or the GPU, whichever is more. That is right for
a layer among others like it. In a step whose host is behind the GPU, time that a kernel saves is worth nothing and a
microsecond of the host is one of the step; where it is ahead it is the other way round. Nothing that is known of a
layer tells which it is: optimizers, losses, loaders of data and layers of torch's take part. So the steps themselves
are measured: the program makes them anyway. Once all layers are chosen, some steps run by torch's own functions, in
turns with those as chosen, from one call of the model to the next; the faster way stays, for inputs of this kind.

In the meantime, and where torch's functions win, modules are bypassed: they are of classes whose forward is torch's own
function, so that a call costs what it did before `convert`.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from jitdnn.frameworks.torch import choice, kinds, whole
from jitdnn.frameworks.torch.batch_norm_modules import CONVERTED, REVERTED, Sequential
from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.modules import OPTIONS
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import is_eager

STEPS = "_jitdnn_steps"
"""The attribute of a model that remembers its steps."""
_BLOCK = 4  # steps of one way in a row, of which the first, in whose place another way was, does not count
_ORDER = (False, True, True, False, True, False, False, True)  # of blocks: whether modules are bypassed
_QUIET = 3  # steps without a layer that is chosen for the first time, before any counts
_MOST_WAITING = 200  # steps that are waited for those
_MOST_KINDS = 8  # of inputs, for which steps are measured

#: class of a converted module -> the one of bypassed modules
BYPASSED: dict[type[nn.Module], type[nn.Module]] = {}
#: and back
ACTIVE: dict[type[nn.Module], type[nn.Module]] = {}
_ELSEWHERE = (nn.SyncBatchNorm,)  # which all processes must run the same way


def _bypass(stock: type[Any], ours: type[Any]) -> None:
    """Make the class of a bypassed module: a call that another thread is in the middle of goes on, since it is one of
    ours, too."""
    name = f"Bypassed{ours.__name__}"
    own = {one for base in ours.__mro__ if base.__module__.startswith("jitdnn.") for one in vars(base)}
    back = {one: getattr(stock, one) for one in own if not one.startswith("__") and hasattr(stock, one)}
    back |= {"__module__": __name__, "__doc__": f"`torch.nn.{stock.__name__}` as it is."}
    made = type(name, (ours,), {**back, "_get_name": lambda self: stock.__name__})
    setattr(sys.modules[__name__], name, made)
    BYPASSED[ours], ACTIVE[made], REVERTED[made] = made, ours, stock


_PAIRS: list[tuple[type[Any], type[Any]]] = [*CONVERTED.items(), (nn.Sequential, Sequential)]
for _stock, _ours in _PAIRS:
    if not issubclass(_stock, (*_ELSEWHERE, nn.modules.lazy.LazyModuleMixin)):
        _bypass(_stock, _ours)


def watch(model: nn.Module) -> None:
    """Measure the steps of a model that was just converted."""
    forget(model)
    model.__dict__[STEPS] = Steps()
    model.register_forward_pre_hook(_before)


def forget(model: nn.Module) -> None:
    """Measure nothing any more, and bypass no module."""
    if model.__dict__.pop(STEPS, None) is not None:
        for number, hook in [*model._forward_pre_hooks.items()]:
            if hook is _before:
                del model._forward_pre_hooks[number]
    _set(model, False)


def _set(model: nn.Module, bypass: bool) -> None:
    """Bypass all modules of a model, or none. What wrappers have made another class of stays as it is."""
    into = BYPASSED if bypass else ACTIVE
    for module in model.modules():
        other = into.get(type(module))
        if other is not None:
            module.__class__ = other


def _before(model: nn.Module, args: tuple[Any, ...]) -> None:
    """A hook before each call of a model."""
    if is_compiling():
        return
    steps: Steps | None = model.__dict__.get(STEPS)
    if steps is not None:
        steps.begin(model, args)


def decision(model: nn.Module) -> Decision | None:
    """What was decided for the kind of steps that came last, None while it is not."""
    steps: Steps | None = model.__dict__.get(STEPS)
    return None if steps is None or steps.trial is None else steps.trial.decision


class Steps:
    """The steps of one model. Copies and pickled models know nothing."""

    __slots__ = ("_begun", "_is_bypassed", "_thread", "_trials", "trial")

    def __init__(self) -> None:
        self._trials: dict[tuple[Any, ...], Trial] = {}
        self._is_bypassed: bool | None = None
        self._thread = threading.get_ident()
        #: of the step that runs: how it runs, its beginning and the choices that were made before
        self._begun: tuple[Trial, Any, int] | None = None
        #: of the last step's kind
        self.trial: Trial | None = None

    def __reduce__(self) -> tuple[type[Steps], tuple[()]]:
        return Steps, ()

    def begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """A call of the model comes: what it runs by, and what the time since the last one tells."""
        x = next((one for one in args if isinstance(one, Tensor)), None)
        if x is None or not is_measured(x) or kinds.observers or kinds.threads_apart or not is_eager():
            self._begun = None
            self._put(model, False)
            return
        key = _key(model, args, x.device.type)
        trial = self._trials.get(key)
        if trial is None:
            if len(self._trials) >= _MOST_KINDS:
                self._trials.clear()
            trial = self._trials[key] = Trial(model, key, x.device)
        self.trial = trial
        begun, now = self._begun, None
        if threading.get_ident() != self._thread and trial.decision is None:
            trial.decision = Decision(True, "not measured: several threads call the model")
        if trial.decision is None:
            now = mark(x.device)
            if begun is not None and begun[0] is trial:
                trial.note(begun[1], now, begun[2], self._is_bypassed is True)
        self._put(model, trial.bypasses)
        self._begun = None if trial.decision is not None else (trial, now, choice.made())

    def _put(self, model: nn.Module, bypass: bool) -> None:
        if self._is_bypassed is not bypass:
            _set(model, bypass)
            self._is_bypassed = bypass


class Trial:
    """Steps of one kind, until it is decided which way is faster."""

    __slots__ = ("_device", "_handle", "_number", "_quiet", "_taken", "_waited", "_what", "decision")

    def __init__(self, model: nn.Module, key: tuple[Any, ...], device: torch.device) -> None:
        options = next(iter(_options(model)), "")
        self._handle, self._device = handle_of(options, device.type), device
        self._what = f"torch step {_fingerprint(model, key)}"
        #: steps of each way: their beginning and end
        self._taken: dict[bool, list[tuple[Any, Any]]] = {False: [], True: []}
        self._number = self._quiet = self._waited = 0
        self.decision: Decision | None = choice.stored(self._what, self._handle, device)

    @property
    def bypasses(self) -> bool:
        """Whether modules are bypassed in the next step."""
        if self.decision is not None:
            return not self.decision.is_ours
        return self._quiet >= _QUIET and _ORDER[self._number // _BLOCK]

    def note(self, begun: Any, ended: Any, made: int, was_bypassed: bool) -> None:
        """A step has ended that began then, when so many choices had been made."""
        if whole.has_seen_hooks():
            self.decision = Decision(True, "not measured: checkpoints recompute what was chosen before")
            return
        if choice.made() != made:  # it compiled and measured
            self._quiet = 0
        if self._quiet < _QUIET:
            self._quiet += 1
            self._waited += 1
            if self._waited > _MOST_WAITING:
                self.decision = Decision(True, "not measured: there are ever new layers")
            return
        if self._number % _BLOCK:
            self._taken[was_bypassed].append((begun, ended))
        self._number += 1
        if self._number == _BLOCK * len(_ORDER):
            ours, stock = (median(seconds(*one) for one in self._taken[bypass]) for bypass in (False, True))
            self._taken.clear()
            self.decision = choice.compared(self._what, self._handle, self._device, ours, stock)


def is_measured(x: Tensor) -> bool:
    """Whether steps are measured on this input."""
    return x.is_cuda and not torch.cuda.is_current_stream_capturing()


def mark(device: torch.device) -> Any:
    """Now, in the order of the stream."""
    made = torch.cuda.Event(enable_timing=True)
    made.record(torch.cuda.current_stream(device))
    return made


def seconds(begun: Any, ended: Any) -> float:
    """Between two marks."""
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3


def _options(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        options = module.__dict__.get(OPTIONS)
        if options is not None:
            yield options


def _key(model: nn.Module, args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """What tells kinds of steps apart."""
    return (
        model.training,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        kinds.epoch,
        *[(one.shape, one.dtype, one.device) if isinstance(one, Tensor) else type(one) for one in args],
    )


def _fingerprint(model: nn.Module, key: tuple[Any, ...]) -> str:
    """What tells models and kinds of steps apart in the store."""
    digest = hashlib.sha256(repr([one for place, one in enumerate(key) if place != 3]).encode())
    for name, module in model.named_modules():
        kind = ACTIVE.get(type(module), type(module)).__qualname__
        shapes = [tuple(one.shape) for one in module.parameters(recurse=False)]
        digest.update(f"{name} {kind} {shapes} {module.__dict__.get(OPTIONS)}\n".encode())
    return digest.hexdigest()
