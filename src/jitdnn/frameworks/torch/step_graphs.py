"""Training steps of a model as two CUDA graphs, one of the forward pass and one of the backward pass.

A step of many small kernels waits for the host, which enqueues them one by one. Two graphs are two launches: what the
host saves is nearly all of it. What is captured is replayed as it was, so a step runs so only where nothing says that
it may be another one: the inputs' shapes and types, autocast, the modules' attributes, children, flags and addresses
are those of the capture, and were not changed by the steps before it, nor was the state of a random generator of the
host. All else runs as it did before. Who asks for this says besides that `forward` has no effects elsewhere.

The activations lie in memory of the graphs' own, which is theirs between steps, too. Inputs are copied into it, results
and gradients out of it: tensors that the program has are never written again.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils._pytree import tree_flatten, tree_unflatten

from jitdnn import log
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.torch import choice, kinds
from jitdnn.frameworks.torch.gpu_stretches import allowed_math
from jitdnn.frameworks.torch.graph_capture import Aliases, Place, captured, waits
from jitdnn.frameworks.torch.guards import Remembered
from jitdnn.frameworks.torch.registry import OWN, hooks_of_saved, is_dense, is_eager
from jitdnn.frameworks.torch.stock_calls import StockCalls
from jitdnn.frameworks.torch.together import TOGETHER, Together

FORWARD = "forward"
"""The attribute of a model that stands before its class's `forward`."""
_QUIET = 4  # steps in which no layer was chosen before one is captured
_MOST_KINDS = 2  # of steps that are captured: each has the memory of its activations
_MOST_SEEN = 8
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size))
_NAMED, _LISTED = frozenset((dict, OrderedDict)), frozenset((list, tuple, set))
_RESULT = object()  # in the place of a tensor among the parts of a result
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check(model: nn.Module) -> None:
    """Raises InvalidArgument for a model whose steps cannot be captured, whatever is in them."""
    if FORWARD in model.__dict__ and of(model) is None:
        raise InvalidArgument(
            "graphs is True, and the model has a forward of its own, an attribute of the instance: it must be its "
            "class's (a memory_limit has one, too; memory_limit=None takes it away)"
        )


def watch(model: nn.Module) -> None:
    """Capture training steps of a model that was just converted."""
    model.__dict__[FORWARD] = Forward(model)


def forget(model: nn.Module) -> None:
    """Run the model's steps as before; memory of graphs is given back."""
    if isinstance(model.__dict__.get(FORWARD), Forward):
        del model.__dict__[FORWARD]


def of(model: nn.Module) -> Forward | None:
    """What captures the steps of a model, if anything does."""
    found = model.__dict__.get(FORWARD)
    return found if isinstance(found, Forward) else None


class Forward:
    """A model's `forward`, of which training steps are replayed. Copies and pickled models have captured nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._thread = threading.get_ident()

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        model = self._model()
        return Forward(memo.get(id(model), model))

    def __reduce__(self) -> tuple[type[Forward], tuple[Any, ...]]:
        return Forward, (self._model(),)

    @property
    def reasons(self) -> list[str]:
        """What became of each kind of steps that was seen, in words."""
        return [step.reason for step in self._steps.values()]

    def __call__(self, *args: Any, **named: Any) -> Any:
        model = self._model()
        assert model is not None
        given = (*args, *named.values())
        if is_compiling() or not self._may_replay(given):
            return _called(model, args, named)
        key = (*_key(model, given), tuple(named))
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= _MOST_SEEN:
                return _called(model, args, named)
            step = self._steps[key] = Step()
        if step.is_wanted and sum(one.is_captured for one in self._steps.values()) >= _MOST_KINDS:
            step.refuse(f"{_MOST_KINDS} other kinds of steps have graphs")
        return step.run(model, args, named)

    def _may_replay(self, given: tuple[Any, ...]) -> bool:
        tensors = [one for one in given if isinstance(one, Tensor)]
        return (
            len(tensors) > 0
            and all(
                type(one) is Tensor and is_dense(one) and is_on_gpu(one) and not one.requires_grad
                for one in tensors
            )
            and all(type(one) in _PLAIN for one in given if not isinstance(one, Tensor))
            and torch.is_grad_enabled()
            and is_eager()
            and not (kinds.observers or kinds.threads_apart or torch.is_anomaly_enabled())
            and hooks_of_saved(False) is None
            and not nn.modules.module._has_any_global_hook()
            and threading.get_ident() == self._thread
            and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        )


def is_on_gpu(x: Tensor) -> bool:
    """Whether steps on this input can be captured now."""
    return x.is_cuda and not torch.cuda.is_current_stream_capturing()


def _called(model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of the class's own forward, whose layers do together what they can."""
    together: Together | None = None if is_compiling() else model.__dict__.get(TOGETHER)
    if together is None:
        return type(model).forward(model, *args, **named)
    together.begin(model)
    result = None
    try:
        result = type(model).forward(model, *args, **named)
    finally:
        result = together.end(result)
    return result


def _key(model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What tells kinds of steps apart."""
    cudnn = torch.backends.cudnn
    told = [
        (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else (type(x), x) for x in given
    ]
    return (
        model.training, kinds.epoch, torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        *allowed_math(), cudnn.enabled, cudnn.benchmark, cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(), stream_of(given), *told,
    )  # fmt: skip


def stream_of(given: Sequence[Any]) -> Any:
    """The stream that is in force where the inputs are."""
    device = next(one.device for one in given if isinstance(one, Tensor))
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def state_of(model: nn.Module) -> list[Any]:
    """What the modules of a model say of themselves: classes, attributes, children, flags, addresses of parameters and
    buffers. Their values, and what our modules remember, are none of it."""
    found: list[Any] = []
    note = found.append
    for module in model.modules():
        own = module.__dict__
        note(type(module))
        for value in own.values():
            kind = type(value)
            if kind in _PLAIN:
                note(value)
            elif kind in _NAMED:
                if value:  # of those that are empty nothing is noted: most hooks
                    found += [len(value), *map(id, value.values())]
            elif kind in _LISTED:
                found += [len(value), *(one if type(one) in _PLAIN else id(one) for one in value)]
            elif kind not in _REMEMBERED:
                note(id(value))
        for tensors in (own["_parameters"], own["_buffers"]):
            for one in tensors.values():
                if one is not None:
                    note(one.data_ptr())
                    note(one.requires_grad)
    return found


def _randomness() -> list[Any]:
    """The states of the host's random generators."""
    numpy = sys.modules.get("numpy")
    own = [] if numpy is None else [numpy.random.get_state()[1].tobytes(), numpy.random.get_state()[2]]
    return [random.getstate(), torch.random.get_rng_state().tolist(), *own]


def _hooked(model: nn.Module) -> str | None:
    """Why hooks are in the way, in words; those of the model itself run around its steps."""
    for name, module in model.named_modules():
        if module is not model and any(getattr(module, hooks, None) for hooks in _HOOKS):
            return f"the module {name} has hooks"
    return None


#: attributes of ours, which grow while steps run
_REMEMBERED = (Remembered, StockCalls, Together, Forward)


class Step:
    """One kind of steps: seen as they run until nothing is new in them, then captured, then replayed."""

    def __init__(self) -> None:
        self._quiet = 0
        self._graphs: Graphs | None = None
        self._state: list[Any] = []
        self._is_refused = False
        self.reason = "not captured yet"

    @property
    def is_captured(self) -> bool:
        """Whether there are graphs."""
        return self._graphs is not None

    @property
    def is_wanted(self) -> bool:
        """Whether the next step is to be captured."""
        return self._graphs is None and self._quiet >= _QUIET and not self._is_refused

    def refuse(self, why: str) -> None:
        """Run steps of this kind as before, for good."""
        self._is_refused, self._graphs = True, None
        self.reason = f"runs layer by layer: {why}"
        log.fallback_once(("torch graphs", why), f"a training step is not captured as CUDA graphs: {why}")

    def run(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of the model."""
        if self._is_refused:
            return _called(model, args, named)
        if self._graphs is None and not self.is_wanted:
            return self._watched(model, args, named)
        state = state_of(model)
        if self._graphs is None:
            why = _hooked(model)
            if why is None and state != self._state:
                why = "attributes of its modules differ from step to step"
            if why is None:
                try:
                    graphs = Graphs(model, args, named)
                    why = None if state_of(model) == state else "forward changes attributes of its modules"
                except Exception as problem:  # whatever cannot be captured raises errors of its own
                    why = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            if why is not None:
                self.refuse(why)
                return _called(model, args, named)
            self._graphs, self._state = graphs, state
            self.reason = "captured as CUDA graphs"
        if state != self._state or self._graphs.is_pending:
            return _called(model, args, named)
        return self._graphs((*args, *named.values()))

    def _watched(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result, of a step that tells whether the next ones can be captured."""
        state, made = state_of(model), choice.made()
        is_first = self._quiet == 0
        before = _randomness() if is_first else None
        has_waited = False
        if self._quiet + 1 < _QUIET:
            result = _called(model, args, named)
        else:  # the last one: a capture that fails costs more than one that is not begun
            result, has_waited = waits(lambda: _called(model, args, named))
        if choice.made() != made:
            self._quiet = 0
            return result
        self._state = state_of(model)
        if self._quiet and self._state != state:
            self.refuse("forward changes attributes of its modules")
        elif before is not None and _randomness() != before:
            self.refuse("forward takes random numbers of the host")
        elif has_waited:
            self.refuse("forward waits for the GPU")
        self._quiet += 1
        return result


class Graphs:
    """A captured step."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise ValueError("no parameter of it wants a gradient")
        given = (*args, *named.values())
        self._inputs = [one.clone() for one in given if isinstance(one, Tensor)]
        device = self._inputs[0].device
        if any(one.device != device for one in (*self._inputs, *model.parameters(), *model.buffers())):
            raise ValueError(f"not all of it is on {device}")
        own = iter(self._inputs)
        given = tuple(next(own) if isinstance(one, Tensor) else one for one in given)
        by_name = dict(zip(named, given[len(args) :], strict=True))
        is_cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight that is cast here is cast in each replay
        try:
            aliases = Aliases(model, self._parameters)
            with aliases:
                self._capture(lambda: _called(model, given[: len(args)], by_name), aliases.parameters)
        finally:
            torch.set_autocast_cache_enabled(is_cached)
        self._last: Any = None

    def _capture(self, call: Callable[[], Any], aliases: list[nn.Parameter]) -> None:
        live: list[Tensor] = []
        self._leaves: list[Any]

        def forward() -> list[Tensor]:
            self._leaves, self._form = tree_flatten(call())
            if not all(type(one) in (*OWN, *_PLAIN) for one in self._leaves):
                raise TypeError("its result has parts that are neither tensors nor numbers nor text")
            live[:] = [one for one in self._leaves if isinstance(one, Tensor)]
            # what is no tensor is the same in each step, as far as is known
            self._leaves = [_RESULT if isinstance(one, Tensor) else one for one in self._leaves]
            return [*live]

        def backward() -> list[Tensor | None]:
            wanted = [one for one in live if one.requires_grad]
            is_cast = torch.is_autocast_enabled("cuda")
            # as in a program's backward pass, which is outside of it
            torch.set_autocast_enabled("cuda", False)
            try:
                both = [*aliases, *self._parameters]
                grads = torch.autograd.grad(wanted, both, self._dys, allow_unused=True)
            finally:
                torch.set_autocast_enabled("cuda", is_cast)
            if any(one is not None for one in grads[len(aliases) :]):
                raise ValueError("it has a parameter from elsewhere than the module that the parameter is of")
            return [*grads[: len(aliases)]]

        place = Place(self._inputs[0].device)
        self._forward, leaves = captured(forward, place)
        self._are_wanted = [one.requires_grad for one in leaves]
        if not any(self._are_wanted):
            raise ValueError("no result of it has a gradient")
        self._dys = [torch.zeros_like(one) for one in leaves if one.requires_grad]
        self._backward, grads = captured(backward, place)
        live.clear()
        self._results: list[Tensor] = [one.detach() for one in leaves]
        self._grads: list[Tensor | None] = [None if one is None else one.detach() for one in grads]

    @property
    def is_pending(self) -> bool:
        """Whether a backward pass may come that needs the activations that are there."""
        last = None if self._last is None else self._last()
        return last is not None and not last.is_over

    def __call__(self, given: tuple[Any, ...]) -> Any:
        """The results of a step on other inputs."""
        torch._foreach_copy_(self._inputs, [one for one in given if isinstance(one, Tensor)])
        self._forward.replay()
        own = iter(_Replayed.apply(self, *self._parameters))
        return tree_unflatten([next(own) if one is _RESULT else one for one in self._leaves], self._form)

    def results(self, pass_of: Pass) -> tuple[Tensor, ...]:
        """Copies of the results, whose backward pass is to come."""
        self._last = ref(pass_of)
        return tuple(one.clone() for one in self._results)

    @property
    def constant(self) -> list[int]:
        """The places of results without a gradient."""
        return [place for place, is_wanted in enumerate(self._are_wanted) if not is_wanted]

    def versions(self) -> int:
        """A number that grows with each change of a parameter."""
        return sum(one._version for one in self._parameters)

    def gradients(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Those of the parameters, of gradients of the results."""
        given = [one for one, is_wanted in zip(grads, self._are_wanted, strict=True) if is_wanted]
        torch._foreach_copy_(self._dys, given)
        self._backward.replay()
        there = [one for one in self._grads if one is not None]
        copies = [torch.empty_like(one) for one in there]
        torch._foreach_copy_(copies, there)
        own = iter(copies)
        return [None if one is None else next(own) for one in self._grads]


class Pass:
    """A forward pass: whether its backward pass has run, and the parameters that it was of."""

    __slots__ = ("__weakref__", "is_over", "versions")

    def __init__(self, versions: int) -> None:
        self.is_over, self.versions = False, versions


class _Replayed(torch.autograd.Function):
    """A step whose forward pass was just replayed."""

    @staticmethod
    def forward(ctx: Any, graphs: Graphs, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.graphs, ctx.own = graphs, Pass(graphs.versions())
        results = graphs.results(ctx.own)
        ctx.mark_non_differentiable(*(results[place] for place in graphs.constant))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        own: Pass = ctx.own
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the backward pass was asked for a graph of its own (create_graph=True), but this step runs as CUDA "
                "graphs: convert the model without graphs=True"
            )
        if own.is_over:
            raise RuntimeError(
                "the backward pass of this step has run before, and its activations are gone, with "
                "retain_graph=True, too, as it runs as CUDA graphs: convert the model without graphs=True"
            )
        if own.versions != ctx.graphs.versions():
            raise RuntimeError(
                "a parameter was changed in place between the forward and the backward pass: the gradients would be "
                "those of neither"
            )
        own.is_over = True
        return None, *ctx.graphs.gradients(grads)
