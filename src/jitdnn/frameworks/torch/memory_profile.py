"""The modules of a chain measured one by one, forward and backward, as the steps of the planner's chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from jitdnn.frameworks.torch.memory_chain import CheckpointChain
from jitdnn.frameworks.torch.memory_meter import MemoryMeter, storages, tensors
from jitdnn.planner.fronts import Point
from jitdnn.planner.recompute import Buffer, Gradient, Step

_REPEATS = 3


class Call(NamedTuple):
    """How a module of a chain is called beside the value that passes through."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012  never changed


@dataclass(frozen=True)
class Profile:
    """`steps` are ranges of modules, `changed` the buffers that a forward pass of each module may change: the path of
    their module, and their name."""

    chain: CheckpointChain
    steps: tuple[range, ...]
    changed: tuple[tuple[tuple[str, str], ...], ...]


@dataclass
class _Cost:
    """A step measured: seconds, and bytes of its output, of what else it saves, of temporaries, and of the gradient of
    its input. `saves_input`, `saves_output`: whether its backward pass reads these. `early`: bytes of gradients that
    its backward pass makes before it reads anything saved, None if it never does."""

    seconds: float = 0.0
    backward_seconds: float = 0.0
    output: int = 0
    saved: int = 0
    temporary: int = 0
    backward_temporary: int = 0
    gradient: int = 0
    early: int | None = None
    saves_input: bool = False
    saves_output: bool = False
    may_rerun: bool = True


def profile(
    modules: Sequence[tuple[str, nn.Module]],
    value: Any,
    call: Call,
    loss: Callable[[Any], Any] | None,
    *,
    keeps_gradient: bool,
) -> Profile:
    """Run every module with its gradients, a few times; neither the modules nor the random numbers change.

    `keeps_gradient`: whether the gradient of `value`, if it needs one, is added up as those of parameters are.
    """
    constant = sum(tensor.nbytes for tensor in tensors(value) if tensor.requires_grad and keeps_gradient)
    with unchanged([module for _, module in modules], value):
        steps, changed, is_changed_in_place = _steps([module for _, module in modules], value, call)
        titles = [
            "+".join(modules[i][0] for i in members) if len(members) < 4
            else f"{modules[members[0]][0]}..{modules[members[-1]][0]}"
            for members in steps
        ]  # fmt: skip
        costs = []
        for members in steps:
            parts = [modules[index][1] for index in members]
            cost, value = _measured(partial(_run, parts, call=call), parts, value, call)
            costs.append(cost)
        costs[0].may_rerun = not is_changed_in_place
        if loss is None:
            last = _Cost()
        else:
            last, _ = _measured(loss, [loss] if isinstance(loss, nn.Module) else [], value, Call())
            last.may_rerun = False
    parameters = {id(p): p for _, module in modules for p in module.parameters() if p.requires_grad}
    constant += sum(parameter.nbytes for parameter in parameters.values())
    places = [list(_changing(*module, names)) for module, names in zip(modules, changed, strict=True)]
    # a copy that a segment begins with the second time, and one that it works on
    buffers = {(id(part), name): part._buffers[name] for those in places for _, part, name in those}
    constant += 2 * sum(buffer.nbytes for buffer in buffers.values() if buffer is not None)
    return Profile(
        _chain(titles, costs, last, constant, value),
        tuple(steps),
        tuple(tuple((path, name) for path, _, name in those) for those in places),
    )


def _chain(names: list[str], costs: list[_Cost], loss: _Cost, constant: int, value: Any) -> CheckpointChain:
    """The last output is the caller's, who keeps it: it is constant, as are the loss and its gradient. Where the last
    step saves its output and runs again, there are two of them."""
    count = len(costs)
    result = costs[-1]
    constant += result.output + 2 * loss.output
    if result.saves_output:
        result.temporary += result.output
        result.backward_temporary += result.output
    # the loss takes the gradient of the output
    loss.gradient = sum(t.nbytes for t in tensors(value) if t.requires_grad)
    loss.may_rerun = False
    buffers, gradients, early = [], [], 0
    for index, cost in enumerate([*costs, loss]):
        if index < count - 1 and cost.output:
            needed = [index] * cost.saves_output + [index + 1] * costs[index + 1].saves_input
            buffers.append(Buffer(f"output {index}", cost.output, index, (index + 1,), tuple(needed)))
        is_held = index == count - 1 and cost.saves_output
        if cost.saved or is_held:  # what saves its output runs again for it
            buffers.append(Buffer(f"saved {index}", cost.saved, index, (), (index,)))
        # a segment runs again when the first that was saved is read: its last step may be under way by then
        if index < count:
            early = early + cost.gradient if cost.early is None else cost.early
            if cost.early is not None:
                cost.backward_temporary = max(0, cost.backward_temporary - early)
            if early:
                gradients.append(Gradient(f"early {index}", early, index + 1, index))
        if cost.gradient:
            gradients.append(Gradient(f"input {index}", cost.gradient, index, max(0, index - 1)))
    steps = [
        Step(
            name,
            (Point(cost.seconds, 0, None),),
            ((Point(cost.backward_seconds, 0, None),),),
            cost.temporary,
            cost.backward_temporary,
            cost.may_rerun,
        )
        for name, cost in zip([*names, "loss"], [*costs, loss], strict=True)
    ]
    return CheckpointChain(tuple(steps), tuple(buffers), tuple(gradients), constant)


def _run(modules: Sequence[Callable[..., Any]], value: Any, call: Call) -> Any:
    for module in modules:
        value = module(value, *call.args, **call.kwargs)
    return value


def _steps(
    modules: Sequence[nn.Module], value: Any, call: Call
) -> tuple[list[range], list[tuple[str, ...]], bool]:
    """Ranges of modules: one that works in place on what another made, or makes a view of it, belongs to that one's.

    With them the buffers that each changes, and whether the first works in place on the input of the chain.
    """
    starts: list[int] = []
    changed: list[tuple[str, ...]] = []
    is_of_input = is_changed_in_place = False
    with torch.no_grad():
        value = _copy(value)
        for index, module in enumerate(modules):
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            versions = [tensor._version for tensor in tensors(value)]
            result = module(value, *call.args, **call.kwargs)
            is_in_place = versions != [tensor._version for tensor in tensors(value)]
            is_shared = is_in_place or storages(result).keys() & storages(value).keys()
            is_of_input = bool(is_shared) and (is_of_input or not starts)
            is_changed_in_place |= is_in_place and (is_of_input or index == 0)
            if not starts or not is_shared:
                starts.append(index)
            changed.append(
                tuple(
                    name
                    for name, buffer in module.named_buffers()
                    if name not in before or not torch.equal(before[name], buffer) or _has_nan(buffer)
                )
            )
            value = result
    stops = [*starts[1:], len(modules)]
    return [range(*ends) for ends in zip(starts, stops, strict=True)], changed, is_changed_in_place


def _has_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _copy(value: Any) -> Any:
    """Tensors of their own, which an operator in place may change, not leaves where they need a gradient."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().requires_grad_(leaf.requires_grad).clone()

    return tree_map(copied, value)


def _measured(
    run: Callable[[Any], Any], modules: Sequence[nn.Module], value: Any, call: Call
) -> tuple[_Cost, Any]:
    cost = _Cost()
    parameters = [p for module in modules for p in module.parameters()]
    states = [*parameters, *(b for module in modules for b in module.buffers()), *tensors(call)]
    with torch.enable_grad():
        copied = _copy(value)
        inputs = [t for t in tensors(copied) if t.requires_grad]
        wanted = [*inputs, *(p for p in parameters if p.requires_grad)]
        foreign, own = storages(states), storages(copied)
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            saved.update(storages(tensor))
            return tensor

        def unpack(tensor: Tensor) -> Tensor:
            if cost.early is None:
                cost.early = meter.now
            return tensor

        with MemoryMeter() as meter, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result = run(copied)
            made = storages(result)
            cost.output = sum(size for key, size in made.items() if key not in own and key not in foreign)
            more = sum(s for key, s in saved.items() if key not in foreign | own | made)
            cost.saved = max(more, meter.now - cost.output)
            cost.temporary = max(0, meter.peak - cost.output - cost.saved)
        cost.saves_input = bool(saved.keys() & own.keys())
        cost.saves_output = bool(saved.keys() & (made.keys() - own.keys() - foreign.keys()))
        cost.gradient = sum(t.nbytes for t in inputs)
        outputs = [t for t in tensors(result) if t.requires_grad]
        if outputs:
            gradients = [torch.ones_like(t) for t in outputs]
            with MemoryMeter() as meter:
                found = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
            cost.backward_temporary = max(0, meter.peak - cost.gradient)
            del gradients, found
        del outputs
        cost.seconds, cost.backward_seconds = _timed(run, value, parameters)
        return cost, tree_map(
            lambda leaf: (
                leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            ),
            result,
        )


def _timed(run: Callable[[Any], Any], value: Any, parameters: list[nn.Parameter]) -> tuple[float, float]:
    forward, backward = [], []
    for _ in range(_REPEATS):
        copied = _copy(value)
        start = _now(copied)
        result = run(copied)
        forward.append(_now(copied) - start)
        outputs = [t for t in tensors(result) if t.requires_grad]
        wanted = [t for t in (*tensors(copied), *parameters) if t.requires_grad]
        gradients = [torch.ones_like(t) for t in outputs]
        start = _now(copied)
        if outputs:
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
        backward.append(_now(copied) - start)
    return min(forward), min(backward)


def _now(value: Any) -> float:
    for device in {tensor.device for tensor in tensors(value)}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def unchanged(modules: Sequence[nn.Module], inputs: Any) -> Iterator[None]:
    """Have modules work on copies of their buffers, and give the random numbers their state back."""
    devices = {tensor.device.index or 0 for tensor in tensors(inputs) if tensor.device.type == "cuda"}
    buffers = [place for module in modules for place in _owned(module)]
    with torch.random.fork_rng(list(devices)), swapped(buffers):
        yield


def _changing(path: str, module: nn.Module, changed: Sequence[str]) -> Iterator[tuple[str, nn.Module, str]]:
    """The buffers that a forward pass of the module may change: what it was seen to, and all running statistics."""
    for prefix, part in module.named_modules():
        is_statistics = isinstance(part, nn.modules.batchnorm._NormBase)
        for name in part._buffers:
            if is_statistics or (f"{prefix}.{name}" if prefix else name) in changed:
                yield f"{path}.{prefix}" if prefix else path, part, name


def _owned(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The buffers of a module and those inside of it, with the modules that own them."""
    return [(part, name) for part in module.modules() for name, b in part._buffers.items() if b is not None]


@contextmanager
def swapped(
    buffers: Sequence[tuple[nn.Module, str]], values: Sequence[Tensor | None] | None = None
) -> Iterator[None]:
    """Let modules have copies of buffers, or of `values` in their place, and give the buffers back at the end."""
    kept = [module._buffers[name] for module, name in buffers]
    copies: dict[int, Tensor] = {}  # a buffer that two modules share stays shared
    for (module, name), value in zip(buffers, kept if values is None else values, strict=True):
        if value is not None:
            module._buffers[name] = copies.setdefault(id(value), value.clone())
    try:
        yield
    finally:
        for (module, name), buffer in zip(buffers, kept, strict=True):
            module._buffers[name] = buffer
