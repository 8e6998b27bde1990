"""Calls of converted modules that torch's own function is known to be faster for.

Such a call should cost no more than it did before the module was converted. The choice (whole.py) is looked up by a key
of everything that tells kinds of calls apart, whose making takes the host up to 30 us, as long as torch needs to hand a
kernel to a GPU. So a module remembers the inputs that torch's function was chosen for, by PyTorch's guards in C++ as
calls.py does, and runs torch's forward for them. That is right for any input: what is remembered concerns speed alone.

So a module that is called with the same kind of input again and again need not look each time: after some calls only
one of several is held against what is remembered, and of the others the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import (
    Tensor,
    get_autocast_dtype,
    get_num_threads,
    is_grad_enabled,
    nn,
)
from torch.compiler import is_compiling

from jitdnn.frameworks.torch import guards, kinds
from jitdnn.frameworks.torch.guards import CALLS, Remembered
from jitdnn.frameworks.torch.kinds import observers, threads_apart
from jitdnn.frameworks.torch.registry import OWN, is_autocast_on

STOCK_CALLS = "_jitdnn_stock_calls"
"""The attribute of a module that remembers them."""


_TRUSTED_FROM, _TRUSTED = (
    8,
    15,
)  # after so many calls of one kind, so many pass by their shape between two looks


class _Known(NamedTuple):
    """What is in force besides the input, and whether an input is like the one of then."""

    state: tuple[Any, ...]
    check: Callable[[Tensor], bool]


class StockCalls(Remembered):
    """What a module remembers of calls by torch's function, and how many more like the last pass by their shape."""

    __slots__ = ("epoch", "last", "left", "shape", "times")

    def __init__(self) -> None:
        super().__init__()
        self.left, self.times, self.epoch = 0, 0, -1
        self.last: _Known | None = None
        self.shape: torch.Size | None = None

    def __reduce__(self) -> tuple[type[StockCalls], tuple[()]]:
        return StockCalls, ()

    def know(self, module: nn.Module, input: Tensor) -> bool:
        """Whether torch's function is known to be faster for a call of the module with such an input."""
        if observers or threads_apart or input.is_nested:  # for which guards end the process
            return False
        if self.left and self.epoch == kinds.epoch and input.shape == self.shape:
            self.left -= 1
            return True
        now = _now(module, input)
        for known in self.entries:
            if known.state == now and known.check(input):
                if known is not self.last:
                    self.last, self.times, self.shape, self.epoch = known, 0, input.shape, kinds.epoch
                self.times += 1
                if self.times >= _TRUSTED_FROM:
                    self.left = _TRUSTED
                return True
        self.last, self.left = None, 0
        return False

    def doubt(self) -> None:
        """Look at the next call: what is in force is another thing now."""
        self.last, self.left = None, 0


def remembering(
    ours: Callable[..., Any], stock: Callable[..., Any], recalled: Callable[[Any, Any], Any] | None = None
) -> Callable[..., Any]:
    """The forward of a converted class: `ours`, or `stock` for inputs that torch's function is faster for. `recalled`
    is asked before, with the module and its only argument, and gives the result of a call that was made before."""

    def forward(self: Any, input: Tensor, *rest: Any, **named: Any) -> Any:
        if is_compiling():
            return ours(self, input, *rest, **named)
        if recalled is not None and not (rest or named):
            remembered = self.__dict__.get(CALLS)
            if remembered is not None:
                found = (remembered.quick or recalled)(self, input)
                if found is not None:
                    return found
        calls: StockCalls | None = self.__dict__.get(STOCK_CALLS)
        if calls is not None and calls.know(self, input):
            return stock(self, input, *rest, **named)
        return ours(self, input, *rest, **named)

    return forward


def remember(module: nn.Module, input: Tensor, name: str = STOCK_CALLS) -> None:
    """Note that torch's function is faster for calls of the module with such an input, from now on, in the attribute
    of this name."""
    if not guards.are_there() or type(input) not in OWN:
        return
    calls = StockCalls.of(module, name)
    if calls.is_learning:
        calls.add(_Known(_now(module, input), guards.guard(input)))


def _now(module: Any, input: Tensor) -> tuple[Any, ...]:
    """What else than the input tells calls of a module apart, as far as speed goes."""
    device = input.device.type
    return (
        is_grad_enabled(), get_num_threads(), module.training, kinds.epoch, module._jitdnn_options,
        is_autocast_on(device) and get_autocast_dtype(device),
    )  # fmt: skip
