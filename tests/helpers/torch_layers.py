"""Layers of a converted model one by one, on the operands that they have in a training step: how far from float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

import jitdnn.torch as jt
from jitdnn.frameworks.torch.explain import row
from jitdnn.frameworks.torch.kinds import Kind, observers

LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._BatchNorm)


class Error(NamedTuple):
    """What a layer's result or gradient is off, ||found - exact|| / ||exact||, ours and torch's own in the type of the
    model; `bound` is what the algorithm that ran declares, and None where torch's ran or none is declared."""

    layer: str
    direction: str
    ours: float
    stock: float
    bound: float | None

    @property
    def is_good(self) -> bool:
        """Within what is declared. Normalizations declare nothing relative to a result that cancels, as it does over
        few elements: they may be off as torch's own are, and some roundings more."""
        return self.ours <= (2 * self.stock + 1e-6 if self.bound is None else self.bound)


def layer_errors(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[Error]:
    """Of every convolution, linear layer and batch normalization in a step of a converted model, `loss(model)` being
    its loss."""
    calls: dict[str, list[Tensor]] = {}
    hooks = [
        module.register_forward_hook(lambda _, given, result, name=name: _note(calls, name, given[0], result))
        for name, module in model.named_modules()
        if isinstance(module, LAYERS)
    ]
    loss(model).backward()
    for hook in hooks:
        hook.remove()
    errors = []
    for name, (x, dy) in calls.items():
        module = model.get_submodule(name)
        stock = jt.revert(copy.deepcopy(module))
        bounds: dict[str, float | None] = {}

        def observe(kind: Kind, _: Any, bounds: dict[str, float | None] = bounds) -> None:
            bounds[kind.name] = row("", kind).error_bound if kind.decision.is_ours else None

        observers.append(observe)
        try:
            ours = _gradients(copy.deepcopy(module), x, dy)
        finally:
            observers.remove(observe)
        theirs = _gradients(copy.deepcopy(stock), x, dy)
        exact = _gradients(stock.double(), x.double(), dy.double())
        for direction, wanted in exact.items():
            found = [float((each[direction] - wanted).norm() / wanted.norm()) for each in (ours, theirs)]
            errors.append(Error(name, direction, *found, bounds.get(direction)))
    return errors


def _note(calls: dict[str, list[Tensor]], name: str, x: Tensor, result: Tensor) -> None:
    calls[name] = [x.detach().clone()]
    result.register_hook(lambda dy: calls[name].append(dy.detach().clone()))


def _gradients(module: nn.Module, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """The result and the gradients by the names of their directions."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y: Tensor = module(x)
    y.backward(dy)
    parameters = zip(("filter", "bias"), (module.weight, module.bias), strict=True)
    found = {"forward": y.detach(), "data": x.grad} | {
        direction: one.grad for direction, one in parameters if isinstance(one, Tensor)
    }
    return {direction: one.double() for direction, one in found.items() if one is not None}
