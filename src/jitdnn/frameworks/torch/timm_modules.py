"""timm's own normalizations, of which it is known what they compute, converted as torch's.

A subclass of torch's modules may compute anything, so that none is converted. These are what most of timm's
convolutional networks consist of: `BatchNormAct2d`, `act(drop(batch_norm(x)))`, is a batch normalization with an
activation behind it, and `LayerNorm` and `LayerNorm2d` are layer normalizations, of the channels of an image the
latter. `convert` does not import timm: where a program has, its classes are there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from jitdnn.frameworks.torch import modules
from jitdnn.frameworks.torch.batch_norm_modules import CONVERTED, REVERTED, BatchNorm2d
from jitdnn.frameworks.torch.registry import OWN
from jitdnn.frameworks.torch.steps import BYPASSED, bypass
from jitdnn.frameworks.torch.stock_calls import remembering
from jitdnn.frameworks.torch.sync_batch_norm import is_watched


def register() -> None:
    """Have timm's classes converted, too, those that there are."""
    for name, (place, make) in _MADE.items():
        stock: Any = getattr(sys.modules.get(place), name, None)
        if stock is not None and stock not in CONVERTED:
            ours = make(stock)
            CONVERTED[stock], REVERTED[ours] = ours, stock
            bypass(stock, ours, __name__)


def __getattr__(name: str) -> Any:
    """The converted classes and those of bypassed modules, for who unpickles one."""
    own = name.removeprefix("Bypassed")
    if own in _MADE:
        if own == "BatchNormAct2d":
            from timm.layers.norm_act import BatchNormAct2d

            classes = {own: BatchNormAct2d}
        else:
            from timm.layers.norm import LayerNorm, LayerNorm2d

            classes = {"LayerNorm": LayerNorm, "LayerNorm2d": LayerNorm2d}
        register()
        ours = CONVERTED[classes[own]]
        return ours if name == own else BYPASSED[ours]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _batch_norm(stock: Any) -> type[Any]:
    def forward(self: Any, input: Tensor) -> Tensor:
        found: Tensor
        # tracers and compilers see what timm wrote
        if type(input) not in OWN or torch.compiler.is_compiling():
            found = stock.forward(self, input)
            return found
        act, drop = self.act, self.drop
        if type(drop) is nn.Identity:
            if type(act) is nn.Identity:
                found = self.normalized(input)
                return found
            if not (is_watched(act) or is_watched(drop)):
                found = self.activated(input, act)
                return found
        found = act(drop(self.normalized(input)))
        return found

    own = {
        "__module__": __name__,
        "__doc__": "timm's `BatchNormAct2d`.",
        "forward": remembering(forward, stock.forward),
        "normalized": BatchNorm2d.undeferred,
    }
    return type("BatchNormAct2d", (BatchNorm2d, stock), own)


def _layer_norm_class(stock: Any, name: str, by_ours: Callable[[Any, Tensor], Tensor]) -> type[Any]:
    def forward(self: Any, x: Tensor) -> Tensor:
        if self._fast_norm or type(x) not in OWN or torch.compiler.is_compiling():
            found: Tensor = stock.forward(self, x)  # a fast one is of half precision under autocast, too
            return found
        return by_ours(self, x)

    own = {"__module__": __name__, "__doc__": f"timm's `{name}`.", "forward": forward}
    return type(name, (modules.LayerNorm, stock), own)


@cache
def _layer_norm(stock: Any) -> type[Any]:
    return _layer_norm_class(stock, "LayerNorm", modules.LayerNorm.forward)


@cache
def _layer_norm_of_channels(stock: Any) -> type[Any]:
    def by_ours(self: Any, x: Tensor) -> Tensor:
        return modules.LayerNorm.forward(self, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return _layer_norm_class(stock, "LayerNorm2d", by_ours)


#: name of a class of timm's -> its module, and what makes the converted class of it
_MADE: dict[str, tuple[str, Callable[[Any], type[Any]]]] = {
    "BatchNormAct2d": ("timm.layers.norm_act", _batch_norm),
    "LayerNorm": ("timm.layers.norm", _layer_norm),
    "LayerNorm2d": ("timm.layers.norm", _layer_norm_of_channels),
}
