"""DynamicQuantizeLSTM of com.microsoft: weights are bytes, inputs and states are quantized as the layer runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.frameworks.onnx import recurrent_steps
from jitdnn.frameworks.onnx.operator import Array, Site
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.products import matmul_integer
from jitdnn.frameworks.onnx.quantization import dynamic_quantize_linear
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand
from jitdnn.rtcg.expression import trace

_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_REAL = np.dtype(np.float32)


def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    peepholes: Array | None,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
    /,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    """Weights (D, I, 4 H) and (D, H, 4 H) of 8 bits, with a scale for all or each column, and one zero a direction.

    As onnxruntime on one thread: the inputs of all steps are quantized together, by their range, and the states of each
    step, of all sequences, by theirs. The products are of bytes, with exact sums.
    """
    from jitdnn.ops.quantized_lstm import MOST_UNITS, QuantizedSteps  # which takes the processor's compiler

    hidden = r.shape[1]
    backward = _BACKWARD.get(direction, ())
    _check(x, w, r, (w_scale, w_zero, r_scale, r_zero), len(backward), site)
    if not 0 < hidden <= MOST_UNITS:
        raise site.refuse(f"{hidden} hidden units are not covered: from 1 to {MOST_UNITS}")
    directions, (steps, batch, width) = len(backward), x.shape
    form = recurrent_steps.Form.of(
        "LSTM", activations, activation_alpha, activation_beta, clip, directions, site
    )
    form = form._replace(couples=bool(input_forget))
    ends = np.full(batch, steps, np.int32) if lengths is None else np.asarray(lengths, np.int32)
    longest = int(ends.max(initial=0))
    if ends.shape != (batch,) or longest > steps or int(ends.min(initial=0)) < 0:
        raise InvalidShape(
            f"{site.operator}: lengths {ends.tolist()[:8]} must be {batch}, from 0 to {steps} each"
        )
    if not longest:
        y = np.zeros((steps, directions, batch, hidden), _REAL)
        return y, y[:0].sum(0), y[:0].sum(0)
    cells = tuple(
        _traced(recurrent_steps.lstm_cell(form, form.of_direction(each))) for each in range(directions)
    )
    constants = (w, r, bias, peepholes, w_scale, w_zero, r_scale, r_zero)

    def prepared() -> _Constants:
        return _Constants(*constants)

    given: Sequence[Any] = (x, initial_h, initial_c)
    tracer = next((one.tracer for one in given if isinstance(one, Operand)), None)
    held = prepared() if tracer is None else tracer.memo.get("weights of steps", constants, prepared)
    rows = x[:longest].reshape(longest * batch, width)
    numbers, scale, zero = dynamic_quantize_linear(rows, site=site)
    sums = matmul_integer(numbers, held.inputs, zero, held.input_zeros)
    gates = pointwise(lambda v, p, q: v * (p * q), sums, scale, held.input_scales, dtype=_REAL)
    nothing = np.zeros((directions, batch, hidden), _REAL)
    h, c = (nothing if state is None else state for state in (initial_h, initial_c))
    plan = QuantizedSteps(hidden, backward, held.shifts, cells)
    return jd.quantized_lstm(  # type: ignore[no-any-return]
        gates.reshape(longest, batch, -1), held.packed, held.sums, held.scales, held.bias, held.peepholes, h, c, ends,
        plan=plan, steps=steps,
    )  # fmt: skip


class _Constants:
    """What the kernels read of the weights."""

    def __init__(
        self, w: Array, r: Array, bias: Array | None, peepholes: Array | None, w_scale: Array, w_zero: Array,
        r_scale: Array, r_zero: Array,
    ) -> None:  # fmt: skip
        from jitdnn.ops.quantized_lstm import pack

        w, r, w_scale, r_scale = (np.asarray(one) for one in (w, r, w_scale, r_scale))
        directions, hidden, columns = r.shape
        self.packed, self.sums, self.shifts = pack(r, [int(zero.flat[0]) for zero in np.asarray(r_zero)])
        padded = self.sums.shape[-1]

        def wide(numbers: Array, rows: int) -> Array:
            found = np.zeros((directions, rows, padded), _REAL)
            found[..., :hidden] = numbers.reshape(directions, rows, -1)
            return found

        each = np.ones((directions, columns), _REAL)
        self.scales = wide(r_scale.reshape(directions, -1) * each, 4)
        both = np.zeros((directions, 2, columns), _REAL) if bias is None else np.asarray(bias)
        self.bias = wide(both.reshape(directions, 2, columns).sum(1, _REAL), 4)
        self.peepholes = wide(each[:, : 3 * hidden] * 0 if peepholes is None else np.asarray(peepholes), 3)
        self.inputs = np.concatenate(list(w), 1)
        self.input_scales = (w_scale.reshape(directions, -1) * each).reshape(-1)
        zeros = np.asarray(w_zero).reshape(directions, -1)[:, :1]
        self.input_zeros = np.repeat(zeros, columns, 1).reshape(-1)


def _traced(cell: tuple[Any, Any]) -> tuple[Any, Any]:
    return trace(cell[0]), trace(cell[1])


def _check(x: Array, w: Array, r: Array, scales: Sequence[Array], directions: int, site: Site) -> None:
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise InvalidShape(f"{site.operator}: x {x.shape}, W {w.shape} and R {r.shape} must have 3 axes")
    columns = 4 * r.shape[1]
    wanted = (directions, x.shape[2], columns), (directions, r.shape[1], columns)
    if (w.shape, r.shape) != wanted:
        raise InvalidShape(
            f"{site.operator}: W {w.shape} and R {r.shape} must be {wanted[0]} and {wanted[1]}"
        )
    for scale in scales:
        if scale.shape not in ((directions,), (directions, columns)):
            raise InvalidShape(
                f"{site.operator}: scales and zeros of shape {scale.shape} must be {(directions,)} or "
                f"{(directions, columns)}"
            )
