"""LSTM: long short-term memory, as Caffe unrolls it, and the step alone, LSTMUnit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.recurrent import RecurrentLayer
from jitdnn.ops.elementwise import ElementwiseKernel, elementwise
from jitdnn.ops.matmul import matmul

# the gates stand in the order input, forget, output, new value; k is `cont`
_STEP = (
    "a, b, c, d, before, k: "
    "i = 1 / (1 + exp(-a)); f = 1 / (1 + exp(-b)); o = 1 / (1 + exp(-c)); g = tanh(d); "
    "cell = k * f * before + i * g; i, f, o, g, cell, o * tanh(cell)"
)
_GRADIENT = (
    "dh, dc, i, f, o, g, before, cell, k: "
    "t = tanh(cell); dcell = dc + dh * o * (1 - t * t); "
    "dcell * g * i * (1 - i), dcell * k * before * f * (1 - f), dh * t * o * (1 - o), dcell * i * (1 - g * g), "
    "dcell * k * f"
)


def _kernels() -> tuple[ElementwiseKernel, ElementwiseKernel]:
    """One step, forward and backward."""
    return elementwise(_STEP), elementwise(_GRADIENT)


def _quarters(gates: Array) -> list[Array]:
    """The four gates (N, D) in an array (N, 4 D)."""
    width = gates.shape[-1] // 4
    return [gates[..., index * width : (index + 1) * width] for index in range(4)]


class LSTMLayer(RecurrentLayer):
    """h = o · tanh(c) with c = cont · f · c' + i · g; i, f, o = sigmoid and g = tanh of what x, x_static, their bias
    and cont · h' give; h' and c' are those of the step before.

    Weights: of x (4 num_output, numbers of x) and the bias (4 num_output), of x_static if there is one, and of h
    (4 num_output, num_output); their rows are those of i, f, o and g, in this order. With `expose_hidden` the states
    are h and c.
    """

    type = "LSTM"
    states = ("h", "c")
    gates = 4

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.step, self.step_gradient = _kernels()

    def allocate(self) -> None:
        steps, streams, _, outputs = self.sizes
        self.gate_values = self.save("gates", (steps, streams, 4 * outputs))
        self.cells = self.save("cells", (steps + 1, streams, outputs))
        self.before = self.save("before", (steps, streams, outputs))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        gates, cells, before, y = (blob.data for blob in (self.gate_values, self.cells, self.before, top[0]))
        cont = bottom[1].data
        self.projected(bottom, gates)
        h, start = self.initial(bottom)
        np.copyto(cells[0], start)
        w = self.recurrent.data.T
        given = np.empty_like(gates[0])
        for t in range(self.sizes.steps):
            k = cont[t].reshape(-1, 1)
            self.conted(h, k, out=before[t])
            np.copyto(given, gates[t])
            matmul(before[t], w, out=given, beta=1.0)
            self.step(*_quarters(given), cells[t], k, out=(*_quarters(gates[t]), cells[t + 1], y[t]))
            h = y[t]
        self.finish(top, (h, cells[-1]))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.check_propagate(propagate)
        gates, cells, cont = self.gate_values.data, self.cells.data, bottom[1].data
        dy, w = top[0].diff, self.recurrent.data
        dgates = np.empty_like(gates)
        dh, dc = self.final_gradient(top, 0), self.final_gradient(top, 1).copy()
        through, total, earlier = (np.empty_like(dc) for _ in range(3))
        k = np.ones_like(cont[0]).reshape(-1, 1)
        for t in reversed(range(self.sizes.steps)):
            self.joined(dy[t], dh, k, out=total)
            k = cont[t].reshape(-1, 1)
            self.step_gradient(
                total,
                dc,
                *_quarters(gates[t]),
                cells[t],
                cells[t + 1],
                k,
                out=(*_quarters(dgates[t]), earlier),
            )
            dc, earlier = earlier, dc
            dh = matmul(dgates[t], w, out=through)
        self.weight_gradients(bottom, propagate, dgates, self.before.data)
        self.initial_gradients(bottom, propagate, (self.conted(dh, k), dc))


class LSTMUnitLayer(Layer):
    """One step: bottoms c' (1, N, D), what the four gates are given (1, N, 4 D), and cont (1, N); tops c and h.

    The gates are in the order i, f, o, g. `cont` has no gradient.
    """

    undivided = "its first axis is time"
    type = "LSTMUnit"
    bottoms = (3, 3)
    tops = (2, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.step, self.step_gradient = _kernels()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        before, given, cont = (blob.shape for blob in bottom)
        if len(before) != 3 or before[0] != 1 or given != (*before[:2], 4 * before[2]) or cont != before[:2]:
            raise self.invalid(
                f"bottoms have shapes {before}, {given} and {cont}: (1, N, D), (1, N, 4 D) and (1, N) are needed"
            )
        for blob in top:
            blob.reshape(before)
        self.gates = self.save("gates", given)
        self.cell = self.save("cell", before) if self.is_overwritten else top[0]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        before, given, cont = (blob.data for blob in bottom)
        self.step(
            *_quarters(given), before, cont[..., None], out=(*_quarters(self.gates.data), self.cell.data, top[1].data)
        )  # fmt: skip
        if self.cell is not top[0]:
            np.copyto(top[0].data, self.cell.data)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[2]:
            raise self.invalid("cont has no gradient: it must not depend on trained weights")
        if not (propagate[0] or propagate[1]):
            return
        dc, dh = (blob.diff for blob in top)
        before, cont = bottom[0].data, bottom[2].data[..., None]
        dgiven = bottom[1].diff if propagate[1] else np.empty_like(self.gates.data)
        dbefore = bottom[0].diff if propagate[0] else np.empty_like(before)
        self.step_gradient(
            dh, dc, *_quarters(self.gates.data), before, self.cell.data, cont, out=(*_quarters(dgiven), dbefore)
        )  # fmt: skip

    def backward_reads(self) -> Reads:
        return Reads(bottom=True, top=not self.is_overwritten)

    def may_force_backward(self, index: int) -> bool:
        return index != 2
