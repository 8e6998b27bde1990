"""LSTM: long short-term memory, as Caffe unrolls it, and the step alone, LSTMUnit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
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


def _quarters(gates: Any) -> list[Any]:
    """The four gates (N, D) in an array (N, 4 D)."""
    width = gates.shape[1] // 4
    return [gates[:, index * width : (index + 1) * width] for index in range(4)]


def _step_of(array: Any) -> Any:
    """An array (1, N, ...) without its first axis."""
    return array.reshape(*array.shape[1:])


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
        gates, cells, before, y = (
            blob.values for blob in (self.gate_values, self.cells, self.before, top[0])
        )
        cont = bottom[1].values
        self.projected(bottom, gates)
        h, start = self.initial(bottom)
        copy(start, cells[0])
        w = self.recurrent.values.T
        given = self.context.empty(gates.shape[1:])
        for t in range(self.sizes.steps):
            k = cont[t].reshape(-1, 1)
            self.conted(h, k, out=before[t])
            copy(gates[t], given)
            matmul(before[t], w, out=given, beta=1.0)
            self.step(*_quarters(given), cells[t], k, out=(*_quarters(gates[t]), cells[t + 1], y[t]))
            h = y[t]
        self.finish(top, (h, cells[-1]))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.check_propagate(propagate)
        gates, cells, cont = self.gate_values.values, self.cells.values, bottom[1].values
        dy, w = top[0].gradient, self.recurrent.values
        dgates = self.context.empty(gates.shape)
        dh, dc = self.final_gradient(top, 0), self.context.empty(dy.shape[1:])
        copy(self.final_gradient(top, 1), dc)
        through, total, earlier = (self.context.empty(dy.shape[1:]) for _ in range(3))
        k: Any = None
        for t in reversed(range(self.sizes.steps)):
            self.add_later(dy[t], dh, k, total)
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
        self.weight_gradients(bottom, propagate, dgates, self.before.values)
        self.initial_gradients(bottom, propagate, (self.conted(dh, k), dc))


class LSTMUnitLayer(Layer):
    """One step: bottoms c' (1, N, D), what the four gates are given (1, N, 4 D), and cont (1, N); tops c and h.

    The gates are in the order i, f, o, g. `cont` has no gradient.
    """

    undivided = "its first axis is time"
    type = "LSTMUnit"
    bottoms = (3, 3)
    tops = (2, 2)
    is_for_gpu = True

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
        before, given, cont = (_step_of(blob.values) for blob in bottom)
        gates, cell, h = (_step_of(blob.values) for blob in (self.gates, self.cell, top[1]))
        self.step(*_quarters(given), before, cont.reshape(-1, 1), out=(*_quarters(gates), cell, h))
        if self.cell is not top[0]:
            copy(self.cell.values, top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[2]:
            raise self.invalid("cont has no gradient: it must not depend on trained weights")
        if not (propagate[0] or propagate[1]):
            return
        dc, dh = (_step_of(blob.gradient) for blob in top)
        before, cont, gates, cell = (
            _step_of(blob.values) for blob in (bottom[0], bottom[2], self.gates, self.cell)
        )
        fresh = self.context.empty
        dgiven = _step_of(bottom[1].gradient) if propagate[1] else fresh(gates.shape)
        dbefore = _step_of(bottom[0].gradient) if propagate[0] else fresh(before.shape)
        self.step_gradient(
            dh, dc, *_quarters(gates), before, cell, cont.reshape(-1, 1), out=(*_quarters(dgiven), dbefore)
        )

    def backward_reads(self) -> Reads:
        return Reads(bottom=True, top=not self.is_overwritten)

    def may_force_backward(self, index: int) -> bool:
        return index != 2
