"""Recurrent layers step by step, in every form that ONNX has: two products and one formula a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.graph import primitives as jd

_COUNT = {"RNN": 1, "LSTM": 3, "GRU": 2}


class Function(NamedTuple):
    """An activation by ONNX's name, with its numbers."""

    name: str
    alpha: float
    beta: float

    def __call__(self, x: Any) -> Any:
        """Of a traced value."""
        return _FUNCTIONS[self.name][0](x, self.alpha, self.beta)


# ONNX's activations of recurrent layers: the function, and what alpha and beta are if they are not given
_FUNCTIONS: dict[str, tuple[Callable[[Any, float, float], Any], float, float]] = {
    "Affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "Elu": (lambda x, a, b: jd.where(x >= 0.0, x, a * jd.expm1(x)), 1.0, 0.0),
    "HardSigmoid": (lambda x, a, b: jd.minimum(jd.maximum(a * x + b, 0.0), 1.0), 0.2, 0.5),
    "LeakyRelu": (lambda x, a, b: jd.where(x >= 0.0, x, a * x), 0.01, 0.0),
    "Relu": (lambda x, a, b: jd.maximum(x, 0.0), 0.0, 0.0),
    "ScaledTanh": (lambda x, a, b: a * jd.tanh(b * x), 1.0, 1.0),
    "Sigmoid": (lambda x, a, b: jd.sigmoid(x), 0.0, 0.0),
    "Softplus": (lambda x, a, b: jd.maximum(x, 0.0) + jd.log1p(jd.exp(-abs(x))), 0.0, 0.0),
    "Softsign": (lambda x, a, b: x / (1.0 + abs(x)), 0.0, 0.0),
    "Tanh": (lambda x, a, b: jd.tanh(x), 0.0, 0.0),
    "ThresholdedRelu": (lambda x, a, b: jd.where(x >= a, x, 0.0), 1.0, 0.0),
}
_DEFAULTS = {"RNN": ("Tanh",), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


class Form(NamedTuple):
    """What a layer computes. `functions`: those of the first direction, then those of the second."""

    kind: str
    functions: tuple[Function, ...]
    clip: float | None
    couples: bool = False  # LSTM: the forget gate is what the input gate leaves
    resets_product: bool = False  # GRU: the reset gate comes after the product

    @classmethod
    def of(
        cls,
        kind: str,
        names: Sequence[str],
        alphas: Sequence[float],
        betas: Sequence[float],
        clip: float | None,
        directions: int,
        site: Site,
    ) -> Self:
        """The form that the attributes describe. Raises NotSupported for an activation that there is not."""
        given = tuple(names) or _DEFAULTS[kind] * directions
        if len(given) != _COUNT[kind] * directions:
            raise site.refuse(f"{len(given)} activations for {directions} directions are not covered")
        left, right = list(alphas), list(betas)
        functions = []
        for name in given:
            known = next((known for known in _FUNCTIONS if known.lower() == name.lower()), None)
            if known is None:
                raise site.refuse(f"activation {name!r} is not covered")
            _, alpha, beta = _FUNCTIONS[known]
            functions.append(Function(known, left.pop(0) if left else alpha, right.pop(0) if right else beta))
        return cls(kind, tuple(functions), clip)

    def is_plain(self, names: Sequence[str]) -> bool:
        """True if nothing but the usual activations is asked for."""
        count = len(names)
        return self.clip is None and all(
            function.name == names[place % count] for place, function in enumerate(self.functions)
        )

    def of_direction(self, direction: int) -> tuple[Function, ...]:
        """The activations of one direction."""
        count = _COUNT[self.kind]
        return self.functions[direction * count : (direction + 1) * count]


class Direction(NamedTuple):
    """The operands of one direction."""

    x: Array
    w: Array
    r: Array
    bias: Array | None
    lengths: Array | None
    h: Array | None
    c: Array | None
    peepholes: Array | None


def run(layer: Direction, form: Form, direction: int) -> tuple[Array, Array, Array]:
    """The output of every step (T, N, H) and the last states h and c."""
    steps, batch, width = layer.x.shape
    hidden = layer.r.shape[-1]
    functions = form.of_direction(direction)
    zero = np.zeros((batch, hidden), layer.x.dtype)
    h = zero if layer.h is None else layer.h
    c = zero if layer.c is None else layer.c
    bias = np.zeros(2 * len(layer.r), layer.x.dtype) if layer.bias is None else layer.bias
    for_x, for_h = np.split(bias, 2)
    # what the steps do not have to wait for, in one product
    flat = np.ascontiguousarray(layer.x).reshape(steps * batch, width)
    inputs = jd.add(jd.matmul(flat, layer.w.T), for_x[None]).reshape(steps, batch, -1)
    outputs = []
    for step in range(steps):
        new_h, new_c = _CELLS[form.kind](inputs[step], h, c, layer, for_h, form, functions)
        y = new_h
        if layer.lengths is not None:
            alive = (layer.lengths > step)[:, None]
            new_h, new_c = (
                pointwise(
                    lambda on, new, old: jd.where(on != 0.0, new, old), alive, new, old, dtype=old.dtype
                )
                for new, old in ((new_h, h), (new_c, c))
            )
            y = pointwise(lambda on, new: jd.where(on != 0.0, new, 0.0), alive, y, dtype=y.dtype)
        outputs.append(y)
        h, c = new_h, new_c
    return np.stack(outputs) if outputs else np.zeros((0, batch, hidden), layer.x.dtype), h, c


def _bounded(x: Any, clip: float | None) -> Any:
    return x if clip is None else jd.minimum(jd.maximum(x, -clip), clip)


def _rnn(
    x: Array, h: Array, c: Array, layer: Direction, bias: Array, form: Form, functions: Sequence[Function]
) -> tuple[Array, Array]:
    (f,) = functions
    product = jd.matmul(h, layer.r.T)
    return pointwise(lambda a, b, s: f(_bounded(a + b + s, form.clip)), x, product, bias[None]), c


def _lstm(
    x: Array, h: Array, c: Array, layer: Direction, bias: Array, form: Form, functions: Sequence[Function]
) -> tuple[Array, Array]:
    sums = jd.add(jd.add(x, jd.matmul(h, layer.r.T)), bias[None])
    i, o, forget, new = np.split(sums, 4, 1)
    nothing = np.zeros(3 * h.shape[1], h.dtype)
    p_i, p_o, p_f = np.split(nothing if layer.peepholes is None else layer.peepholes, 3)
    state, output = lstm_cell(form, functions)
    new_c = pointwise(state, i, forget, new, c, p_i[None], p_f[None])
    return pointwise(output, o, new_c, p_o[None]), new_c


def lstm_cell(
    form: Form, functions: Sequence[Function]
) -> tuple[Callable[[Any, Any, Any, Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """c of the sums of i, f and the new state, c before, and the peepholes of i and f; h of the sum of o, c and its
    peephole."""
    f, g, out = functions
    clip = form.clip

    def state(i: Any, forget: Any, new: Any, c: Any, p_i: Any, p_f: Any) -> Any:
        gate = f(_bounded(i + p_i * c, clip))
        kept = 1.0 - gate if form.couples else f(_bounded(forget + p_f * c, clip))
        return kept * c + gate * g(_bounded(new, clip))

    def output(o: Any, c: Any, p: Any) -> Any:
        return f(_bounded(o + p * c, clip)) * out(c)

    return state, output


def _gru(
    x: Array, h: Array, c: Array, layer: Direction, bias: Array, form: Form, functions: Sequence[Function]
) -> tuple[Array, Array]:
    f, g = functions
    clip, width = form.clip, h.shape[1]
    x_gates, x_new = x[:, : 2 * width], x[:, 2 * width :]
    r_gates, r_new = layer.r[: 2 * width], layer.r[2 * width :]
    b_gates, b_new = bias[: 2 * width], bias[2 * width :]
    gates = pointwise(
        lambda a, b, s: f(_bounded(a + b + s, clip)), x_gates, jd.matmul(h, r_gates.T), b_gates[None]
    )
    z, r = np.split(gates, 2, 1)
    if form.resets_product:
        product = jd.matmul(h, r_new.T)
        sums = pointwise(lambda a, r, b, s: a + r * (b + s), x_new, r, product, b_new[None])
    else:
        product = jd.matmul(pointwise(lambda r, h: r * h, r, h), r_new.T)
        sums = pointwise(lambda a, b, s: a + b + s, x_new, product, b_new[None])
    return pointwise(lambda z, h, s: (1.0 - z) * g(_bounded(s, clip)) + z * h, z, h, sums), c


_CELLS: dict[str, Callable[..., tuple[Array, Array]]] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
