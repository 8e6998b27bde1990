"""timm's batch normalization with an activation inside, converted as one of torch's with an activation behind it.

A subclass of torch's modules may compute anything, so that none is converted; of this one it is known what it computes:
`act(drop(batch_norm(x)))`, and most of timm's convolutional networks consist of it. `convert` does not import timm:
where a program has, its class is there.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from jitdnn.frameworks.torch.batch_norm_modules import CONVERTED, REVERTED, BatchNorm2d
from jitdnn.frameworks.torch.registry import OWN
from jitdnn.frameworks.torch.steps import BYPASSED, bypass
from jitdnn.frameworks.torch.stock_calls import remembering
from jitdnn.frameworks.torch.sync_batch_norm import is_watched

_PLACE, _NAME = "timm.layers.norm_act", "BatchNormAct2d"


def register() -> None:
    """Have timm's class converted, too, if there is one."""
    stock: Any = getattr(sys.modules.get(_PLACE), _NAME, None)
    if stock is not None and stock not in CONVERTED:
        ours = _made(stock)
        CONVERTED[stock], REVERTED[ours] = ours, stock
        bypass(stock, ours, __name__)


def __getattr__(name: str) -> Any:
    """The converted class and that of bypassed modules, for who unpickles one."""
    if name in (_NAME, f"Bypassed{_NAME}"):
        from timm.layers.norm_act import BatchNormAct2d

        register()
        ours = CONVERTED[BatchNormAct2d]
        return ours if name == _NAME else BYPASSED[ours]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _made(stock: Any) -> type[Any]:
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
    return type(_NAME, (BatchNorm2d, stock), own)
