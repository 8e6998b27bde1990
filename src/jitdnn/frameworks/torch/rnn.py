"""`torch.lstm` and `torch.gru`, what `nn.LSTM` and `nn.GRU` call, by ours: padded sequences, without dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.rnn import gru, gru_backward, lstm, lstm_backward


def _parts(settings: Any, tensors: Any) -> tuple[Any, list[Any], list[Any], dict[str, Any]]:
    """x, the states, the weights, and named arguments of ours."""
    states, _, _, is_both, is_batch_major = settings
    x, *rest = tensors
    return x, rest[:states], rest[states:], {"bidirectional": is_both, "batch_first": is_batch_major}


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, states, weights, named = _parts(settings, tensors)
    cell = lstm if len(states) == 2 else gru
    found = cell(x, weights, *states, training=is_training, handle=handle, **named)
    count = 1 + len(states)
    return tuple(found[:count]), tuple(found[count:])


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, states, weights, named = _parts(settings, tensors)
    dy, *final = grads
    cell = lstm_backward if len(states) == 2 else gru_backward
    dx, *found, dweights = cell(dy, x, weights, saved[0], *states, *final, handle=handle, **named)
    return dx, *found, *dweights


def _stock(settings: Any, tensors: Any) -> Any:
    states, layers, has_biases, is_both, is_batch_major = settings
    x, *rest = tensors
    hx = tuple(rest[:2]) if states == 2 else rest[0]
    stock: Any = torch.lstm if states == 2 else torch.gru
    return stock(x, hx, rest[states:], has_biases, layers, 0.0, True, is_both, is_batch_major)


_EAGER = Eager(_forward, _backward, _stock, needs_outputs=False)


def _route(
    states: int, input: Tensor, hx: Any, params: Any, has_biases: Any, num_layers: Any = None, dropout: float = 0.0,
    train: bool = False, bidirectional: bool = False, batch_first: Any = None, *, options: str = "",
) -> Any:  # fmt: skip
    own = list(hx) if states == 2 and isinstance(hx, Sequence) else [hx]
    is_padded = batch_first is not None and isinstance(params, Sequence) and isinstance(has_biases, bool)
    if not is_padded or len(own) != states or not all(isinstance(one, Tensor) for one in (*own, *params)):
        return NotImplemented
    each = 4 if has_biases else 2  # more of them: projections
    if (dropout and train) or input.dim() != 3 or len(params) != each * num_layers * (1 + bidirectional):
        return NotImplemented
    if not is_taken(input, *own, *params):
        return NotImplemented
    settings = (states, num_layers, has_biases, bidirectional, bool(batch_first))
    return _EAGER(options, settings, input, *own, *params)


lstm_route = partial(_route, 2)
gru_route = partial(_route, 1)
