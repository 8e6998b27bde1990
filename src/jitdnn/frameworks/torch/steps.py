"""Whole steps of a model on a GPU: by layers as they were chosen, in several ways, or by torch's own functions.

Layers are chosen one by one (whole.py), each by what it costs the host or the GPU, whichever is more. That is right for
a layer among others like it. In a step whose host is behind the GPU, time that a kernel saves is worth nothing and a
microsecond of the host is one of the step; where it is ahead the GPU's time is all that counts. Nothing that is known
of a layer tells which it is: optimizers, losses, loaders of data and layers of torch's take part. So the steps
themselves are measured: the program makes them anyway. Once all layers are chosen, steps by layers as they were chosen,
by layers as the GPU's time alone, the host's, or the sum of both chooses them (both are known of each), and by torch's
own functions take turns, from one call of the model to the next; the fastest way stays, for inputs of this kind.

Modules that torch's functions were chosen for are bypassed, all of them or some: they are of classes whose forward is
torch's own function, so that a call costs what it did before `convert`.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.compiler import is_compiling

from jitdnn.frameworks.torch import choice, kinds, whole
from jitdnn.frameworks.torch.batch_norm_modules import APART, CONVERTED, REVERTED, SUM_APART, Sequential
from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.guards import CALLS, GRADIENTS, TEXT, Remembered
from jitdnn.frameworks.torch.modules import OPTIONS
from jitdnn.frameworks.torch.options import canonical, counting, handle_of
from jitdnn.frameworks.torch.registry import is_dense, is_eager
from jitdnn.frameworks.torch.stock_calls import STOCK_CALLS, StockCalls

STEPS = "_jitdnn_steps"
"""The attribute of a model that remembers its steps."""
_BLOCK = 4  # steps of one way in a row, of which the first, in whose place another way was, does not count
CHOSEN, STOCK = choice.OURS, choice.STOCK
KERNELS, HOST, BOTH = "jitdnn by kernels", "jitdnn by hosts", "jitdnn by both"
"""The ways of a step, as their times are stored: layers as they were chosen, as the GPU's time alone, the host's or the
sum of both chooses them, and torch's functions."""
_MEASURES = {CHOSEN: "first", KERNELS: "kernels", HOST: "host", BOTH: "both"}
_WHOSE = {
    KERNELS: "the GPU's time alone",
    HOST: "the host's time alone",
    BOTH: "the GPU's and the host's time",
}
_ORDER = (
    *(CHOSEN, STOCK, KERNELS, HOST, BOTH),
    *(BOTH, HOST, KERNELS, STOCK, CHOSEN),
    *(KERNELS, BOTH, CHOSEN, HOST, STOCK),
)  # of blocks
_QUIET = 4  # steps without a layer that is chosen for the first time, in which modules remember their calls
_MOST_WAITING = 200  # steps that are waited for those
_MOST_KINDS = 8  # of inputs, for which steps are measured

#: class of a converted module -> the one of bypassed modules
BYPASSED: dict[type[nn.Module], type[nn.Module]] = {}
#: and back
ACTIVE: dict[type[nn.Module], type[nn.Module]] = {}
_JOINED = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
"""What an activation behind may be a part of, in a sequence."""
_ELSEWHERE = (nn.SyncBatchNorm,)  # which all processes must run the same way


def bypass(stock: type[Any], ours: type[Any], place: str = __name__) -> None:
    """Make the class of a bypassed module, in the module of this name: a call that another thread is in the middle of
    goes on, since it is one of ours, too."""
    name = f"Bypassed{ours.__name__}"
    own = {one for base in ours.__mro__ if base.__module__.startswith("jitdnn.") for one in vars(base)}
    back = {one: getattr(stock, one) for one in own if not one.startswith("__") and hasattr(stock, one)}
    back |= {"__module__": place, "__doc__": f"`{stock.__name__}` as it is."}
    made = type(name, (ours,), {**back, "_get_name": lambda self: stock.__name__})
    setattr(sys.modules[place], name, made)
    BYPASSED[ours], ACTIVE[made], REVERTED[made] = made, ours, stock


_PAIRS: list[tuple[type[Any], type[Any]]] = [*CONVERTED.items(), (nn.Sequential, Sequential)]
for _stock, _ours in _PAIRS:
    if not issubclass(_stock, (*_ELSEWHERE, nn.modules.lazy.LazyModuleMixin)):
        bypass(_stock, _ours)


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
    _set(model, CHOSEN)


def _set(model: nn.Module, way: str, bypassed: Collection[nn.Module] = ()) -> None:
    """Let all modules of a model run a way; those that are to be `bypassed` run torch's functions. What wrappers have
    made another class of stays as it is."""
    for module in model.modules():
        other = (BYPASSED if way == STOCK or module in bypassed else ACTIVE).get(type(module))
        if other is not None:
            module.__class__ = other
        options = module.__dict__.get(OPTIONS)
        if options is not None and way != STOCK:
            own = counting(options, _MEASURES[way])
            if own != options:
                module.__dict__[OPTIONS] = own
                for name in (STOCK_CALLS, APART, SUM_APART):
                    calls: StockCalls | None = module.__dict__.get(name)
                    if calls is not None:
                        calls.doubt()


def _torchs(model: nn.Module) -> set[nn.Module]:
    """The modules whose last calls torch's functions ran."""
    found = {one for one in model.modules() if type(one) in BYPASSED and _is_torchs(one)}
    for module in model.modules():
        if type(module) is Sequential and found.issuperset(one for one in module if isinstance(one, _JOINED)):
            found.add(module)
    return found


def _is_torchs(module: nn.Module) -> bool:
    own = module.__dict__
    stock: StockCalls | None = own.get(STOCK_CALLS)
    ours: Remembered | None = own.get(CALLS)
    if stock is None or stock.last is None:
        return False
    now = is_grad_enabled(), own[OPTIONS]
    return ours is None or all((one.state[GRADIENTS], one.state[TEXT]) != now for one in ours.entries)


def _before(model: nn.Module, args: tuple[Any, ...]) -> None:
    """A hook before each call of a model."""
    if is_compiling():
        return
    steps: Steps | None = model.__dict__.get(STEPS)
    if steps is not None:
        steps.begin(model, args)


def decision(model: nn.Module) -> Decision | None:
    """What was decided for the kind of steps that came last, None while it is not."""
    trial = of(model)
    return None if trial is None else trial.decision


def of(model: nn.Module) -> Trial | None:
    """What is known of the kind of steps that came last."""
    steps: Steps | None = model.__dict__.get(STEPS)
    return None if steps is None else steps.trial


def force(model: nn.Module, way: str) -> None:
    """Let steps of the kind that came last run a way from now on, whatever is known of them: for benchmarks."""
    trial = of(model)
    if trial is not None:
        trial.force(way)


class Steps:
    """The steps of one model. Copies and pickled models know nothing."""

    __slots__ = ("_begun", "_thread", "_trials", "_way", "trial")

    def __init__(self) -> None:
        self._trials: dict[tuple[Any, ...], Trial] = {}
        self._way: tuple[str, Collection[nn.Module]] | None = None
        self._thread = threading.get_ident()
        #: of the step that runs: how it runs, its beginning and the choices that were made before
        self._begun: tuple[Trial, Any, int] | None = None
        #: of the last step's kind
        self.trial: Trial | None = None

    def __reduce__(self) -> tuple[type[Steps], tuple[()]]:
        return Steps, ()

    def begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """A call of the model comes: what it runs by, and what the time since the last one tells."""
        given = [one for one in args if isinstance(one, Tensor)]
        x = given[0] if given and all(map(is_dense, given)) else None
        if x is None or not is_measured(x) or kinds.observers or kinds.threads_apart or not is_eager():
            self._begun = None
            self._put(model, CHOSEN if self.trial is None else self.trial.layers)
            return
        key = _key(model, args, x.device.type)
        trial = self._trials.get(key)
        if trial is None:
            if len(self._trials) >= _MOST_KINDS:
                self._trials.clear()
            trial = self._trials[key] = Trial(model, key, x.device)
        self.trial = trial
        begun, now = self._begun, None
        if threading.get_ident() != self._thread and not trial.is_settled:
            trial.stop("several threads call the model")
        if not trial.is_settled:
            now = mark(x.device)
            if begun is not None and begun[0] is trial:
                trial.note(model, begun[1], now, begun[2])
        self._put(model, trial.way, trial.bypassed)
        self._begun = None if trial.is_settled else (trial, now, choice.made())

    def _put(self, model: nn.Module, way: str, bypassed: Collection[nn.Module] = ()) -> None:
        now = self._way
        if now is None or now[0] != way or now[1] is not bypassed:
            _set(model, way, bypassed)
            self._way = way, bypassed


class Trial:
    """Steps of one kind, until it is decided which way is faster.

    Before steps of a way are timed, some run in which layers are chosen and modules remember their calls; that tells
    which of them are bypassed.
    """

    __slots__ = (
        "_bypassed", "_device", "_handle", "_number", "_quiet", "_taken", "_to_learn", "_waited", "_what", "_winner",
        "decision",
    )  # fmt: skip

    def __init__(self, model: nn.Module, key: tuple[Any, ...], device: torch.device) -> None:
        options = next(iter(_options(model)), "")
        self._handle, self._device = handle_of(options, device.type), device
        self._what = f"torch step {_fingerprint(model, key)}"
        #: steps of each way: their beginning and end
        self._taken: dict[str, list[tuple[Any, Any]]] = {way: [] for way in (*_MEASURES, STOCK)}
        #: the modules that each way bypasses, and the ways of which that is not known yet
        self._bypassed: dict[str, Collection[nn.Module]] = {}
        self._to_learn = [*_MEASURES]
        self._number = self._quiet = self._waited = 0
        self._winner = CHOSEN
        self.decision: Decision | None = None
        times = choice.recorded(self._what, self._handle, device)
        if times.keys() >= self._taken.keys():
            self._decide(times, "stored")

    def _decide(self, times: Mapping[str, float], how: str) -> None:
        self._winner = min((*_MEASURES, STOCK), key=times.__getitem__)
        is_ours = self._winner != STOCK
        reason = f"{how}: {'faster' if is_ours else 'slower'}"
        if self._winner in _WHOSE:
            reason += f", with layers chosen by {_WHOSE[self._winner]}"
        ours = min(times[way] for way in _MEASURES)
        self.decision = Decision(is_ours, reason, ours, times[STOCK])
        self._to_learn = [way for way in self._to_learn if way == self._winner]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be learnt from steps any more."""
        return self.decision is not None and not self._to_learn

    @property
    def way(self) -> str:
        """What the next step runs by."""
        if self.decision is not None:
            return self._winner
        return self._to_learn[0] if self._to_learn else _ORDER[self._number // _BLOCK]

    @property
    def layers(self) -> str:
        """How layers are chosen, for who asks them."""
        return CHOSEN if self.decision is None or self._winner == STOCK else self._winner

    @property
    def bypassed(self) -> Collection[nn.Module]:
        """Modules that run torch's functions in the next step, besides."""
        return self._bypassed.get(self.way, ())

    def note(self, model: nn.Module, begun: Any, ended: Any, made: int) -> None:
        """A step has ended that began then, when so many choices had been made."""
        if whole.has_seen_hooks():
            self.stop("checkpoints recompute what was chosen before")
            return
        if choice.made() != made:  # it compiled and measured
            self._quiet = 0
        if self._to_learn:
            self._quiet += 1
            self._waited += 1
            if self._quiet >= _QUIET:
                self._bypassed[self._to_learn.pop(0)] = _torchs(model)
                self._quiet = 0
            elif self._waited > _MOST_WAITING:
                self.stop("there are ever new layers")
            return
        way = self.way
        if self._number % _BLOCK:
            self._taken[way].append((begun, ended))
        self._number += 1
        if self._number == _BLOCK * len(_ORDER):
            times = {way: _quartile([seconds(*one) for one in taken]) for way, taken in self._taken.items()}
            self._taken.clear()
            choice.record(self._what, self._handle, self._device, times)
            self._decide(times, "measured")

    def force(self, way: str) -> None:
        """Run one way, for which is learnt what is bypassed."""
        seconds = (0.0, 1.0) if way != STOCK else (1.0, 0.0)
        self.decision, self._winner = Decision(way != STOCK, "forced", *seconds), way
        self._to_learn = [] if way == STOCK or way in self._bypassed else [way]

    def stop(self, why: str) -> None:
        """Measure and learn nothing any more."""
        self._to_learn.clear()
        if self.decision is None:
            self.decision = Decision(True, f"not measured: {why}")


def _quartile(times: list[float]) -> float:
    """The lower quartile: others on the host make steps longer, not shorter, and a few may be short by chance."""
    return sorted(times)[len(times) // 4]


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
            yield canonical(options)


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
        options = module.__dict__.get(OPTIONS)
        own = None if options is None else canonical(options)
        digest.update(f"{name} {kind} {shapes} {own}\n".encode())
    return digest.hexdigest()
