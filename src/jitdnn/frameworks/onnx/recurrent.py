"""RNN, LSTM and GRU: the library's layers, or step by step for the forms that only ONNX has.

Those are peepholes, other activations, clipped sums, coupled gates, and the GRU whose reset gate comes before
the product (`recurrent_steps.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.frameworks.onnx import recurrent_steps as steps
from jitdnn.frameworks.onnx.movement import reverse_sequence
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand

# places of the library's gates among ONNX's: LSTM has i o f c and we i f c o, GRU has z r h and we r z h
_GATES = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
_DEFAULTS = {"RNN": ("Tanh",), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


class _Layer(NamedTuple):
    """The operands with the steps first: x (T, N, I), weights and states with the directions first."""

    x: Array
    w: Array
    r: Array
    bias: Array | None
    lengths: Array | None
    h: Array | None
    c: Array | None
    peepholes: Array | None
    is_backward: bool


def rnn(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    layer = _layer(x, w, r, bias, lengths, initial_h, None, None, direction, layout, site)
    form = steps.Form.of("RNN", activations, activation_alpha, activation_beta, clip, len(w), site)
    kinds = {part.name for part in form.functions}
    if clip is None and len(kinds) == 1 and kinds <= {"Tanh", "Relu"}:
        weights = _constant_weights("RNN", layer)
        y, h = jd.rnn(layer.x, weights, layer.h, kinds.pop().lower(), **_options(layer))
        return _outputs(layer, _split(y, len(w)), h, None, layout)[:2]
    return _outputs(layer, *_by_steps(layer, form), layout)[:2]


def lstm(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    peepholes: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    layer = _layer(x, w, r, bias, lengths, initial_h, initial_c, peepholes, direction, layout, site)
    form = steps.Form.of("LSTM", activations, activation_alpha, activation_beta, clip, len(w), site)
    form = form._replace(couples=bool(input_forget))
    if form.is_plain(_DEFAULTS["LSTM"]) and peepholes is None and not input_forget:
        h, c = layer.h, layer.c
        if (h is None) != (c is None):
            h, c = (
                np.zeros_like(h if state is None else state) if state is None else state for state in (h, c)
            )
        y, h, c = jd.lstm(layer.x, _constant_weights("LSTM", layer), h, c, **_options(layer))
        return _outputs(layer, _split(y, len(w)), h, c, layout)
    return _outputs(layer, *_by_steps(layer, form), layout)


def gru(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    layer = _layer(x, w, r, bias, lengths, initial_h, None, None, direction, layout, site)
    form = steps.Form.of("GRU", activations, activation_alpha, activation_beta, clip, len(w), site)
    form = form._replace(resets_product=bool(linear_before_reset))
    if form.is_plain(_DEFAULTS["GRU"]) and linear_before_reset:
        y, h = jd.gru(layer.x, _constant_weights("GRU", layer), layer.h, **_options(layer))
        return _outputs(layer, _split(y, len(w)), h, None, layout)[:2]
    return _outputs(layer, *_by_steps(layer, form), layout)[:2]


def _layer(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    peepholes: Array | None,
    direction: str,
    layout: int,
    site: Site,
) -> _Layer:
    """`layout` 1 has the sequences first, also in the states. A layer that only goes backwards goes forwards over
    turned sequences."""
    if _DIRECTIONS.get(direction) != len(w):
        raise site.refuse(f"direction {direction!r} with weights for {len(w)} directions is not covered")
    if layout:
        x = x.swapaxes(0, 1)
        h, c = (None if state is None else state.swapaxes(0, 1) for state in (h, c))
    if direction == "reverse":
        x = _turned(x, lengths)
    return _Layer(x, w, r, bias, lengths, h, c, peepholes, direction == "reverse")


def _turned(x: Array, lengths: Array | None) -> Array:
    """Each sequence from its last step to its first; what lies beyond its end stays."""
    return x[::-1] if lengths is None else reverse_sequence(x, lengths)


def _options(layer: _Layer) -> dict[str, Any]:
    """What all of the library's layers take beside operands."""
    lengths = None if layer.lengths is None else layer.lengths.astype(np.int32, copy=False)
    return {"bidirectional": len(layer.w) == 2, "lengths": lengths}


def _weights(kind: str, layer: _Layer) -> list[Array]:
    """The library's list: for each direction the weights, then the biases if there are any."""
    found = []
    for direction in range(len(layer.w)):
        arrays = [layer.w[direction], layer.r[direction]]
        if layer.bias is not None:
            arrays += np.split(layer.bias[direction], 2)
        found += [_gates(kind, array) for array in arrays]
    return found


def _constant_weights(kind: str, layer: _Layer) -> list[Array]:
    """The same, made once for all plans where they are constants."""
    x: Any = layer.x
    constants: tuple[Any, ...] = (layer.w, layer.r, layer.bias)
    if not isinstance(x, Operand) or any(isinstance(one, Operand) for one in constants):
        return _weights(kind, layer)
    found: list[Array] = x.tracer.memo.get("gates", constants, lambda: _weights(kind, layer), kind)
    return found


def _gates(kind: str, array: Array) -> Array:
    order = _GATES[kind]
    gates = array.reshape(len(order), -1, *array.shape[1:])
    return np.ascontiguousarray(gates[list(order)]).reshape(array.shape)


def _split(y: Array, directions: int) -> Array:
    """(T, N, D * H) as ONNX has it: (T, D, N, H)."""
    return y.reshape(*y.shape[:2], directions, -1).transpose(0, 2, 1, 3)


def _outputs(layer: _Layer, y: Array, h: Array, c: Array | None, layout: int) -> tuple[Any, ...]:
    if layer.is_backward:
        y = _turned(y.swapaxes(1, 2), layer.lengths).swapaxes(1, 2)
    if layout:
        y = y.transpose(2, 0, 1, 3)
        h = h.swapaxes(0, 1)
        c = None if c is None else c.swapaxes(0, 1)
    return y, h, c


def _by_steps(layer: _Layer, form: steps.Form) -> tuple[Array, Array, Array | None]:
    """Every direction alone, the second one over turned sequences."""
    ys, hs, cs = [], [], []
    for direction in range(len(layer.w)):
        is_second = direction == 1
        bias, h, c, peepholes = (
            None if each is None else each[direction]
            for each in (layer.bias, layer.h, layer.c, layer.peepholes)
        )
        x = _turned(layer.x, layer.lengths) if is_second else layer.x
        one = steps.Direction(x, layer.w[direction], layer.r[direction], bias, layer.lengths, h, c, peepholes)
        y, h, c = steps.run(one, form, direction)
        ys.append(_turned(y, layer.lengths) if is_second else y)
        hs.append(h)
        cs.append(c)
    return np.stack(ys, 1), np.stack(hs), np.stack(cs) if form.kind == "LSTM" else None


OPERATORS = table(GRU=gru, LSTM=lstm, RNN=rnn)
