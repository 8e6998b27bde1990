"""`torch.lstm`, `torch.gru`, `torch.rnn_tanh` and `torch.rnn_relu`, what `nn.LSTM`, `nn.GRU` and `nn.RNN` call, by
ours: padded sequences, without dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.rnn import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward

#: names of cells -> torch's function, ours and its gradients
CELLS: dict[str, tuple[Any, Any, Any]] = {
    "lstm": (torch.lstm, lstm, lstm_backward),
    "gru": (torch.gru, gru, gru_backward),
    "tanh": (torch.rnn_tanh, rnn, rnn_backward),
    "relu": (torch.rnn_relu, rnn, rnn_backward),
}


def _parts(settings: Any, tensors: Any) -> tuple[Any, list[Any], list[Any], dict[str, Any]]:
    """x, the states, the weights, and named arguments of ours."""
    cell, _, _, is_both, is_batch_major = settings
    x, *rest = tensors
    named: dict[str, Any] = {"bidirectional": is_both, "batch_first": is_batch_major}
    if cell in ("tanh", "relu"):
        named["nonlinearity"] = cell
    states = _states(cell)
    return x, rest[:states], rest[states:], named


def _states(cell: str) -> int:
    """How many states a cell has."""
    return 2 if cell == "lstm" else 1


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, states, weights, named = _parts(settings, tensors)
    ours = CELLS[settings[0]][1]
    found = ours(x, weights, *states, training=is_training, handle=handle, **named)
    count = 1 + len(states)
    return tuple(found[:count]), tuple(found[count:])


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, states, weights, named = _parts(settings, tensors)
    dy, *final = grads
    ours = CELLS[settings[0]][2]
    dx, *found, dweights = ours(dy, x, weights, saved[0], *states, *final, handle=handle, **named)
    return dx, *found, *dweights


def _stock(settings: Any, tensors: Any) -> Any:
    cell, layers, has_biases, is_both, is_batch_major = settings
    x, *rest = tensors
    states = _states(cell)
    hx = tuple(rest[:2]) if states == 2 else rest[0]
    stock = CELLS[cell][0]
    found: tuple[Tensor, ...] = stock(
        x, hx, rest[states:], has_biases, layers, 0.0, True, is_both, is_batch_major
    )
    return found


_EAGER = Eager(_forward, _backward, _stock, needs_outputs=False)


def _route(
    cell: str, input: Tensor, hx: Any, params: Any, has_biases: Any, num_layers: Any = None, dropout: float = 0.0,
    train: bool = False, bidirectional: bool = False, batch_first: Any = None, *, options: str = "",
) -> Any:  # fmt: skip
    states = _states(cell)
    own = list(hx) if states == 2 and isinstance(hx, Sequence) else [hx]
    is_padded = batch_first is not None and isinstance(params, Sequence) and isinstance(has_biases, bool)
    if not is_padded or len(own) != states or not all(isinstance(one, Tensor) for one in (*own, *params)):
        return NotImplemented
    each = 4 if has_biases else 2  # more of them: projections
    if (dropout and train) or input.dim() != 3 or len(params) != each * num_layers * (1 + bidirectional):
        return NotImplemented
    if not is_taken(input, *own, *params):
        return NotImplemented
    settings = (cell, num_layers, has_biases, bidirectional, bool(batch_first))
    return _EAGER(options, settings, input, *own, *params)


#: functions of torch -> ours
ROUTES = {stock: partial(_route, cell) for cell, (stock, _, _) in CELLS.items()}
