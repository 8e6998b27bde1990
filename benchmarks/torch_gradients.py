"""Gradients of a step in float32 held against float64 on the same side of every kink.

A rectifier whose argument lies within rounding of 0, or a maximum of two numbers within rounding of each other, may
come out on the other side in float32. That is no error of what computes it, but moves the gradients by all of that
element's share: of a net whose arguments are off by a relative e, a part of the elements that grows with e changes
sides, and the gradients as one vector are off by about the root of that part, not by e. So the float64 step here goes
where the float32 step went: `watched` notes which elements rectifiers let through and where maxima lie, and `replayed`
takes the same ones in float64. What is left is rounding alone. That a change of sides was within rounding is held
against `NEAR`: the float64 arguments of all elements that changed sides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

#: how far a rectifier's argument, or a maximum's distance from the greatest, may be off where float32 takes the other
#: side, relative to the largest argument of the layer: what outputs of whole networks are held to (torch_models.py)
NEAR = 1e-4
_KINKS = ("ReLU", "ReLU6", "MaxPool2d")  # also of converted classes, which have the same names


def gradients(model: nn.Module) -> Tensor:
    """All gradients of a model as one vector of float64."""
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


@contextmanager
def watched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Note in a block what sides a model's kinks take: by the name of the module, in the forward pass that is last.

    A rectifier at the end of a sequence is watched at the sequence, since one with a hook of its own is not joined with
    the layer before it.
    """
    sides: dict[str, Tensor] = {}
    hooks = []
    for parent_name, parent in model.named_modules():
        parts = list(parent.named_children())
        for name, module in parts:
            full = f"{parent_name}.{name}".lstrip(".")
            kind = type(module).__name__
            if kind == "MaxPool2d":
                hooks.append(module.register_forward_pre_hook(_greatest(sides, full)))
            elif kind in _KINKS:
                is_last = isinstance(parent, nn.Sequential) and name == parts[-1][0]
                most = 6.0 if kind == "ReLU6" else None
                hooks.append(
                    (parent if is_last else module).register_forward_hook(_passed(sides, full, most))
                )
    try:
        yield sides
    finally:
        for hook in hooks:
            hook.remove()


def _passed(sides: dict[str, Tensor], name: str, most: float | None) -> Callable[..., None]:
    def note(_: nn.Module, __: Any, y: Tensor) -> None:
        # 0 for what is cut off at 0, 1 for what passes, 2 for what is cut off above
        side = (y > 0).to(torch.int8) if most is None else (y > 0).to(torch.int8) + (y >= most).to(torch.int8)
        sides[name] = side.contiguous()

    return note


def _greatest(sides: dict[str, Tensor], name: str) -> Callable[..., None]:
    def note(pool: Any, given: tuple[Tensor, ...]) -> None:
        _, places = _pooled(pool, given[0].detach().contiguous())
        sides[name] = places

    return note


def _pooled(pool: Any, x: Tensor) -> Any:
    return F.max_pool2d(
        x, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, return_indices=True
    )


class _Side(nn.Module):
    """A rectifier that takes given sides, and knows how far from a kink the farthest was that it took otherwise."""

    def __init__(self, side: Tensor, most: float | None) -> None:
        super().__init__()
        self.side, self.most, self.far = side, most, 0.0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            low = torch.where((x > 0) != (self.side > 0), x.abs(), 0.0).max()
            high = torch.zeros(())
            if self.most is not None:
                high = torch.where((x >= self.most) != (self.side == 2), (x - self.most).abs(), 0.0).max()
            self.far = float(torch.maximum(low, high.to(x.dtype)) / x.abs().max())
        y = torch.where(self.side == 1, x, torch.zeros_like(x))
        return y if self.most is None else torch.where(self.side == 2, torch.full_like(x, self.most), y)


class _Place(nn.Module):
    """A maximum pool that takes the elements at given places."""

    def __init__(self, places: Tensor, pool: Any) -> None:
        super().__init__()
        self.places, self.pool, self.far = places, pool, 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(2).gather(2, self.places.flatten(2)).view(self.places.shape)
        with torch.no_grad():
            self.far = float((_pooled(self.pool, x)[0] - y).max() / x.abs().max())
        return y


def replayed(model: nn.Module, sides: dict[str, Tensor], x: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """The gradients of a step in float64 that takes these sides, and the farthest of what it would take otherwise.

    `model`: the unconverted one in float32. The second number is relative, as `NEAR` is.
    """
    exact = copy.deepcopy(model).double()
    replaced = []
    for name, side in sides.items():
        parent, _, leaf = name.rpartition(".")
        kink = exact.get_submodule(name)
        is_pool = isinstance(kink, nn.MaxPool2d)
        taken = _Place(side, kink) if is_pool else _Side(side, 6.0 if isinstance(kink, nn.ReLU6) else None)
        setattr(exact.get_submodule(parent), leaf, taken)
        replaced.append(taken)
    F.cross_entropy(exact(x.double()), labels).backward()
    return gradients(exact), max((one.far for one in replaced), default=0.0)
