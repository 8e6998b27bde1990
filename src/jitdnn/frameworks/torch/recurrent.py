"""`torch.ops.jitdnn.recurrent`: layers of `nn.LSTM`, `nn.GRU` and `nn.RNN` as one node of a captured graph.

What torch traces in their place is its own kernel, or the steps one by one: a graph of thousands of nodes for a
sentence. The node runs whichever is faster for calls of its kind, as a converted module does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.rnn import CELLS

_NAMES = {stock: name for name, (stock, _, _) in CELLS.items()}


def _kernel(
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    cell: str,
    numbers: Sequence[int],
    options: str = "",
) -> list[Tensor]:
    layers, has_biases, is_both, is_batch_major = numbers
    hx = list(states) if cell == "lstm" else states[0]
    arguments = (
        x,
        hx,
        list(weights),
        bool(has_biases),
        layers,
        0.0,
        False,
        bool(is_both),
        bool(is_batch_major),
    )
    return [one.contiguous() for one in routed(CELLS[cell][0], arguments, {}, options)]


def _fake(
    x: Tensor, states: Sequence[Tensor], weights: Any, cell: str, numbers: Sequence[int], *_: Any
) -> list[Tensor]:
    width = states[0].shape[-1] * (1 + numbers[2])
    return [x.new_empty((*x.shape[:2], width)), *(torch.empty_like(one).contiguous() for one in states)]


recurrent = define(
    'recurrent(Tensor x, Tensor[] states, Tensor[] weights, str cell, int[] numbers, str options="") -> Tensor[]',
    _kernel,
    _fake,
)


class AsNodes(TorchFunctionMode):
    """Puts the operator in the place of torch's functions of padded sequences, without dropout, while a graph is
    captured."""

    def __init__(self, options: str) -> None:
        super().__init__()
        self._options = options

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cell = _NAMES.get(function)
        if cell is None or kwargs or len(args) != 9 or isinstance(args[-1], Tensor) or args[0].dim() != 3:
            return function(*args, **(kwargs or {}))
        x, hx, weights, has_biases, layers, dropout, is_training, is_both, is_batch_major = args
        if not isinstance(has_biases, bool) or (dropout and is_training):
            return function(*args)
        states = list(hx) if cell == "lstm" else [hx]
        numbers = [layers, has_biases, is_both, is_batch_major]
        return tuple(torch.ops.jitdnn.recurrent(x, states, list(weights), cell, numbers, self._options))
