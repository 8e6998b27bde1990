"""Training within a limit on memory: `limit_memory` and `unlimit_memory`.

The planner chooses which modules of a chain run a second time (planner/recompute.py), and torch's checkpointing runs
them. Only the class of the chain's container changes; its modules stay where they are. A model whose blocks are no
Sequential is a chain by its graph (memory_graph.py): of it the attribute `forward` of the instance is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.frameworks.torch import arena
from jitdnn.frameworks.torch.memory_capture import captured
from jitdnn.frameworks.torch.memory_graph import Pieces
from jitdnn.frameworks.torch.memory_profile import Call, Profile, profile, swapped
from jitdnn.planner.recompute import RecomputePlan, least, plan, without_recomputing
from jitdnn.settings import parse_bytes

MEMORY = "_jitdnn_memory"
_FORWARD = "forward"


class Installed(NamedTuple):
    """What a container runs: the paths of its modules, ranges of them that run again, and, of each range, the buffers
    that its forward pass changes: the path of their module, and their name."""

    paths: tuple[str, ...]
    segments: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[tuple[str, str], ...], ...]


def limit_memory(
    model: nn.Module,
    *inputs: Any,
    memory_limit: int | str | None,
    loss: Callable[[Any], Any] | None = None,
    chain: str = "",
) -> RecomputePlan:
    """Have a model's training step stay within a limit on memory, by computing parts of it twice; returns the plan.

        plan = jitdnn.torch.limit_memory(model, images, memory_limit="2 GiB", loss=lambda y: criterion(y, labels))
        print(plan.explain(), plan.peak, plan.seconds_lost)

    `model` is a torch.nn.Sequential; those inside of it are parts of the chain. Of another model the parts are those
    between the places of its graph, traced by torch.fx, where a single value passes: residual blocks, for one. Where
    it cannot be traced, `chain` is the path of a torch.nn.Sequential or torch.nn.ModuleList inside, whose modules it
    runs one after another, once in a forward pass, in a loop over the list. `inputs` are an example of what the model
    is trained on, with its batch; the model is in the mode in which it is trained. Each part runs a few times, with its
    gradients.

    `memory_limit`: bytes, text such as "512 MiB", "least" for as few as possible, or None for no limit. It bounds the
    bytes of tensors in a forward and backward pass above the model's parameters and buffers, the inputs, and an
    optimizer's state: results and what is saved for the backward pass, their gradients, temporaries of the modules, two
    copies of running statistics, and the gradients of the parameters (and of the input, if it needs one), as if they
    were there from the beginning. The last result, and the loss, are taken to be kept by the caller. Not counted: what
    an operator takes inside of its kernel, the random state that each segment keeps (5 kB), and, of a model with
    `chain`, what is outside of the chain; without `loss` nor is the loss.

    Gradients, buffers and random numbers are those without a limit. A pass without gradients runs plainly. The plan
    holds for inputs up to the size of the example, and a chain whose modules change needs another.

    Raises InvalidArgument for a limit that is too small, with the least that would do, and for a model that is no
    chain; InvalidType for what is no module; NotSupported without SciPy.
    """
    limit = None if memory_limit == "least" else parse_bytes(memory_limit)
    if is_graph(model, chain):
        result = _limit_graph(model, inputs, memory_limit == "least", limit, loss)
    else:
        result = _limit_chain(model, inputs, memory_limit == "least", limit, loss, chain)
    arena.bound(model, result.peak if memory_limit == "least" else limit)
    return result


def _limit_chain(
    model: nn.Module,
    inputs: tuple[Any, ...],
    is_least: bool,
    limit: int | None,
    loss: Callable[[Any], Any] | None,
    chain: str,
) -> RecomputePlan:
    container = chain_of(model, chain)
    paths = _flat(container)
    if not paths:
        raise InvalidArgument(f"the chain {shown(chain)} has no modules: there is nothing to limit")
    modules = [(path, container.get_submodule(path)) for path in paths]
    if container is model:
        if len(inputs) != 1:
            raise InvalidArgument(f"a torch.nn.Sequential takes 1 input, not {len(inputs)}")
        value, call = inputs[0], Call()
    else:
        parts = (
            list(container.named_children()) if isinstance(container, nn.ModuleList) else [(chain, container)]
        )
        value, call = captured(model, parts, list(container.children()), inputs)
    found = profile(modules, value, call, loss, keeps_gradient=container is model)
    result = _planned(found, is_least, limit)
    segments, buffers = _reruns(found, result)
    _install(container, Installed(tuple(paths), segments, buffers))
    return result


def _planned(found: Profile, is_least: bool, limit: int | None) -> RecomputePlan:
    if is_least:
        return least(found.chain)
    return without_recomputing(found.chain) if limit is None else plan(found.chain, limit)


def _reruns(
    found: Profile, result: RecomputePlan
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[str, str], ...], ...]]:
    """The ranges of modules that run again, and the buffers that each changes."""
    segments: list[tuple[int, int]] = []
    buffers: list[tuple[tuple[str, str], ...]] = []
    for segment in result.segments:
        if not found.chain.contents(segment).rerun:
            continue
        start, stop = found.steps[segment.start].start, found.steps[segment.stop - 1].stop
        segments.append((start, stop))
        buffers.append(tuple(place for those in found.changed[start:stop] for place in those))
    return tuple(segments), tuple(buffers)


def is_graph(model: Any, chain: str) -> bool:
    """Whether a model is limited by its graph: it is no chain itself, and no chain of it is named."""
    return (
        isinstance(model, nn.Module)
        and not chain
        and type(model) not in _LIMITED
        and type(model) not in _STOCK
    )


def _limit_graph(
    model: nn.Module,
    inputs: tuple[Any, ...],
    is_least: bool,
    limit: int | None,
    loss: Callable[[Any], Any] | None,
) -> RecomputePlan:
    pieces = Pieces.of(model, inputs)
    value, *others = pieces.given(model, inputs, {})
    found = profile(pieces.modules(model), value, Call(tuple(others)), loss, keeps_gradient=True)
    result = _planned(found, is_least, limit)
    segments, places = _reruns(found, result)
    # of a piece the modules have the names that they have in the model
    buffers = tuple(tuple((path.partition(".")[2], name) for path, name in those) for those in places)
    own = model.__dict__.get(_FORWARD)
    if not isinstance(own, LimitedForward):
        own = model.__dict__[_FORWARD] = LimitedForward(model)
    own.install(pieces, Installed(pieces.names, segments, buffers))
    return result


class LimitedForward:
    """What runs in the place of the forward of a model, an attribute of the instance: the pieces of its graph.

    Without a plan, without gradients and in another mode than that of the plan the forward of the model's class runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._memory: Installed | None = None
        self._training = model.training
        self._arguments: tuple[str, ...] = ()
        self._fixed: tuple[tuple[str, Any], ...] = ()
        self._pieces: Pieces | None = None
        self._parts: list[Callable[..., Any]] = []

    def install(self, pieces: Pieces, memory: Installed) -> None:
        """Run these pieces from now on, and ranges of them again."""
        self._memory, self._training = memory, self._model.training
        self._arguments, self._fixed = pieces.arguments, pieces.fixed
        self._make(pieces)

    def _make(self, pieces: Pieces) -> None:
        model, memory = self._model, self._memory
        assert memory is not None
        if pieces.names != memory.paths:
            raise InvalidArgument(
                "the graph of this model has changed since limit_memory: call it again, or unlimit_memory"
            )
        parts: list[Callable[..., Any]] = [partial(one, model) for one in pieces.functions()]
        for (start, stop), places in zip(memory.segments, memory.buffers, strict=True):
            buffers = [(model.get_submodule(path), name) for path, name in places]
            parts[start:stop] = [_Rerun(parts[start:stop], buffers), *[_passed] * (stop - start - 1)]
        self._pieces, self._parts = pieces, parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pieces": None, "_parts": []}  # made anew where the copy runs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model
        if self._memory is None or not torch.is_grad_enabled() or model.training is not self._training:
            return type(model).forward(model, *args, **kwargs)
        if self._pieces is None:
            self._make(Pieces.traced(model, self._arguments, dict(self._fixed)))
        assert self._pieces is not None
        value, *others = self._pieces.given(model, args, kwargs)
        for part in self._parts:
            value = part(value, *others)
        return value


def without_plan(model: nn.Module, chain: str) -> None:
    """Have a chain, or a model, run as it is by what can be limited later."""
    if is_graph(model, chain):
        model.__dict__[_FORWARD] = LimitedForward(model)
        return
    container = chain_of(model, chain)
    _install(container, Installed(tuple(_flat(container)), (), ()))


def _install(container: nn.Module, memory: Installed) -> None:
    unlimit_memory(container)
    container.__class__ = _LIMITED[type(container)]
    container.__dict__[MEMORY] = memory


def unlimit_memory(model: nn.Module) -> nn.Module:
    """Have a model run as before `limit_memory`; returns the same model."""
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the model is {shown(model)}: it must be a torch.nn.Module")
    arena.bound(model, None)
    for module in model.modules():
        stock = _STOCK.get(type(module))
        if stock is not None:
            module.__class__ = stock
            module.__dict__.pop(MEMORY, None)
        if isinstance(module.__dict__.get(_FORWARD), LimitedForward):
            del module.__dict__[_FORWARD]
    return model


def chain_of(model: nn.Module, chain: str) -> nn.Module:
    """The container whose modules run one after another. Raises InvalidArgument or InvalidType where there is none."""
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the model is {shown(model)}: it must be a torch.nn.Module")
    try:
        container = model.get_submodule(chain)
    except AttributeError as error:
        raise InvalidArgument(f"chain is {shown(chain)}, and the model has no such module: {error}") from None
    if type(container) not in _LIMITED and type(container) not in _STOCK:
        what = f"chain {shown(chain)}" if chain else "the model"
        raise InvalidArgument(
            f"{what} is a {type(container).__qualname__}: it must be a torch.nn.Sequential, not a subclass, or a "
            "torch.nn.ModuleList inside of the model"
        )
    if container is model and isinstance(container, nn.ModuleList):
        raise InvalidArgument(
            "the model is a torch.nn.ModuleList: name it by chain=... in the model that runs it"
        )
    return container


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _flat(container: nn.Module, prefix: str = "") -> list[str]:
    """The paths of the modules that run one after another; a Sequential with hooks is one of them."""
    paths = []
    for name, module in container._modules.items():
        assert module is not None
        # a loop over a list has a turn for each of its modules
        if not isinstance(container, nn.ModuleList) and _is_plain(module):
            paths += _flat(module, f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return paths


def _is_plain(module: nn.Module) -> bool:
    """Whether a module does nothing but run its modules one after another."""
    forward = type(module).forward
    return (
        isinstance(module, nn.Sequential)
        and (forward is nn.Sequential.forward or forward is LimitedSequential.forward)
        and len(module) > 0
        and not any(getattr(module, hooks) for hooks in _HOOKS)
    )


class _Rerun:
    """A range of modules that runs now, and again in the backward pass."""

    def __init__(
        self, modules: Sequence[Callable[..., Any]], buffers: Sequence[tuple[nn.Module, str]]
    ) -> None:
        self._modules = modules
        self._buffers = buffers

    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # which computes again without changing buffers
            return checkpoint(self._run, value, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)
        return checkpoint(
            self._run,
            value,
            *args,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=self._contexts,
            **kwargs,
        )

    def _run(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        for module in self._modules:
            value = module(value, *args, **kwargs)
        return value

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The second time the modules begin with the buffers of the first, and leave no trace in them."""
        buffers = [
            (module, name)
            for module, name in self._buffers
            if module.training and module._buffers[name] is not None
        ]
        if not buffers:
            return nullcontext(), nullcontext()
        values = [cast(torch.Tensor, module._buffers[name]).clone() for module, name in buffers]
        return nullcontext(), _Again(buffers, values)


class _Again:
    """A context that may be entered several times: `retain_graph` runs a segment a third time."""

    def __init__(self, buffers: Sequence[tuple[nn.Module, str]], values: Sequence[torch.Tensor]) -> None:
        self._what = buffers, values

    def __enter__(self) -> None:
        self._now = swapped(*self._what)
        self._now.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._now.__exit__(*error)


def _passed(value: Any, *args: Any, **kwargs: Any) -> Any:
    """In the place of a module that ran with those before it."""
    return value


def _parts(container: nn.Module) -> list[Callable[..., Any]] | None:
    """What a limited container runs, a part for each of its modules; None if it runs plainly."""
    memory: Installed | None = container.__dict__.get(MEMORY)
    if memory is None or not torch.is_grad_enabled():
        return None
    if tuple(_flat(container)) != memory.paths:
        raise InvalidArgument(
            "the modules of this chain, or the hooks of a Sequential inside of it, have changed since limit_memory: "
            "call it again, or unlimit_memory"
        )
    parts: list[Callable[..., Any]] = [container.get_submodule(path) for path in memory.paths]
    for (start, stop), places in zip(memory.segments, memory.buffers, strict=True):
        buffers = [(container.get_submodule(path), name) for path, name in places]
        parts[start:stop] = [_Rerun(parts[start:stop], buffers), *[_passed] * (stop - start - 1)]
    return parts


class LimitedSequential(nn.Sequential):
    """A `torch.nn.Sequential` within a limit on memory."""

    def forward(self, input: Any) -> Any:
        parts = _parts(self)
        if parts is None:
            return super().forward(input)
        for part in parts:
            input = part(input)
        return input


class LimitedModuleList(nn.ModuleList):
    """A `torch.nn.ModuleList` within a limit on memory, where a loop goes over it."""

    def __iter__(self) -> Iterator[Any]:
        parts = _parts(self)
        return super().__iter__() if parts is None else iter(parts)


_LIMITED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Sequential: LimitedSequential,
    nn.ModuleList: LimitedModuleList,
}
_STOCK = {limited: stock for stock, limited in _LIMITED.items()}
