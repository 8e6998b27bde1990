"""The definition of recurrent layers, step by step in float64, with their gradients.

Everything inside is in rows: the steps of all sequences, first all sequences of step 0, the longest sequence first.
At step t the sequences 0 to counts[t] - 1 (in that order) are there; they are the rows from starts[t] on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from jitdnn.problems.dropout import Dropout
from jitdnn.problems.philox import philox

Reals = npt.NDArray[np.float64]
Given = dict[str, Any]

DROPOUT_ROWS = 8  # that share a block of random numbers


class Layers(Protocol):
    """What the definition reads of a problem: `Recurrent` (rnn.py), which explains each."""

    @property
    def cell(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def projection(self) -> int: ...
    @property
    def sequences(self) -> str: ...
    @property
    def is_batch_major(self) -> bool: ...
    @property
    def clip(self) -> tuple[float, float] | None: ...
    @property
    def dropout(self) -> float: ...
    @property
    def directions(self) -> int: ...
    @property
    def gates(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def padded(self) -> int: ...
    @property
    def padded_size(self) -> int: ...
    @property
    def kept(self) -> dict[str, int]: ...
    @property
    def slopes(self) -> dict[str, int]: ...
    def depth(self, layer: int) -> int: ...
    def section(self, sections: dict[str, int], layer: int, name: str) -> int: ...


@dataclass(frozen=True)
class Sequences:
    """Which sequences are there at which step: `order` is the caller's number of each, longest first."""

    p: Layers
    order: npt.NDArray[np.int64]
    counts: list[int]
    starts: list[int]

    @classmethod
    def of(cls, p: Layers, given: Given) -> Sequences:
        order = np.arange(p.batch)
        if p.sequences == "packed":
            counts, most, left = [], p.batch, p.rows
            for count in given["lengths"]:
                most = int(max(0, min(most, count, left)))
                left -= most
                counts.append(most)
        else:
            lengths = np.full(p.batch, p.steps)
            if p.sequences == "lengths":
                lengths = np.clip(given["lengths"], 0, p.steps).astype(np.int64)
            order = np.argsort(-lengths, kind="stable")
            counts = [int((lengths > t).sum()) for t in range(p.steps)]
        starts = [0, *np.cumsum(counts).tolist()]
        return cls(p, order, counts, starts)

    @property
    def used(self) -> int:
        return self.starts[-1]

    def at(self, t: int) -> slice:
        return slice(self.starts[t], self.starts[t] + self.counts[t])

    def rows_of(self, x: Reals) -> Reals:
        """A tensor as the caller has it, as rows."""
        if self.p.sequences == "packed":
            return x[: self.used]
        x = x.swapaxes(0, 1) if self.p.is_batch_major else x
        return np.concatenate([x[t, self.order[: self.counts[t]]] for t in range(self.p.steps)])

    def tensor_of(self, rows: Reals) -> Reals:
        """Rows as the caller has them; 0 where no sequence is."""
        p, width = self.p, rows.shape[1]
        if p.sequences == "packed":
            return np.concatenate([rows, np.zeros((p.rows - self.used, width))])
        result = np.zeros((p.steps, p.batch, width))
        for t in range(p.steps):
            result[t, self.order[: self.counts[t]]] = rows[self.at(t)]
        return result.swapaxes(0, 1) if p.is_batch_major else result

    def state_rows(self, state: Reals) -> Reals:
        """One state (batch, size) with the longest sequence first."""
        return state[self.order]

    def state_of(self, rows: Reals) -> Reals:
        result = np.empty_like(rows)
        result[self.order] = rows
        return result


def sigmoid(x: Reals) -> Reals:
    return np.exp(-np.logaddexp(0.0, -x))


def _sections(
    p: Layers, sections: dict[str, int], flat: Reals, layer: int, direction: int
) -> dict[str, Reals]:
    """Views of one layer's and direction's sections of `saved` or `dgates`: (rows, numbers)."""
    found = {}
    for name, numbers in sections.items():
        start = p.section(sections, layer, name)
        whole = flat[start : start + p.rows * p.directions * numbers]
        found[name] = whole.reshape(p.rows, p.directions, numbers)[:, direction]
    return found


def _each(p: Layers) -> Iterator[tuple[int, int, str]]:
    for layer in range(p.layers):
        for direction in range(p.directions):
            yield layer, direction, f"_l{layer}" + ("_reverse" if direction else "")


def _pad(p: Layers, *vectors: tuple[Reals, float]) -> Reals:
    """Vectors of H next to each other, each padded with what units of zero weights give."""
    parts = []
    for values, filling in vectors:
        parts += [values, np.full((len(values), p.padded - values.shape[1]), filling)]
    return np.concatenate(parts, axis=1)


def _unpad(p: Layers, kept: Reals, number: int) -> Reals:
    return kept[:, number * p.padded : number * p.padded + p.hidden]


def _state(p: Layers, given: Given, name: str, place: int, size: int) -> Reals:
    return given[name][place] if name in given else np.zeros((p.batch, size))


def _dropped(p: Layers, given: Given, rows: Reals, below: int) -> Reals:
    """The outputs of layer `below`, or their gradients, (rows, directions * size), with some of them dropped.

    A block of random numbers serves DROPOUT_ROWS rows, each by 16 of its bits; the blocks count through layers,
    groups of rows, and the directions' padded units.
    """
    if not p.dropout:
        return rows
    width, rule = p.directions * p.padded_size, Dropout.make((1,), p.dropout)
    groups = -(-p.rows // DROPOUT_ROWS)
    blocks = np.arange(groups * width, dtype=np.uint64) + np.uint64(below * groups * width)
    seed_low, seed_high, offset_low, offset_high = (int(word) for word in given["state"])
    low, high = blocks & np.uint64(0xFFFFFFFF), blocks >> np.uint64(32)
    counter = np.broadcast_arrays(low, high, offset_low, offset_high)
    words = philox(counter, (seed_low, seed_high))
    halves = [half for word in words for half in (word & np.uint32(0xFFFF), word >> np.uint32(16))]
    mine = (
        np.stack(halves).reshape(DROPOUT_ROWS, groups, width).swapaxes(0, 1).reshape(-1, width)[: len(rows)]
    )
    mine = mine.reshape(-1, p.directions, p.padded_size)[:, :, : p.size].reshape(rows.shape)
    return np.where(mine >= rule.threshold, rows * rule.factor, 0.0)


def _split(p: Layers, rows: Reals) -> list[Reals]:
    return np.split(rows, p.gates, axis=-1)


def forward(p: Layers, given: Given) -> Given:
    """y, hn, cn and saved from x, the first states and the weights."""
    sequences = Sequences.of(p, given)
    x = sequences.rows_of(given["x"])
    flat = np.zeros(p.layers * sum(p.kept.values()) * p.rows * p.directions)
    hn = np.zeros((p.layers * p.directions, p.batch, p.size))
    cn = np.zeros((p.layers * p.directions, p.batch, p.hidden))
    outputs: list[Reals] = []
    for layer, direction, tail in _each(p):
        place = layer * p.directions + direction
        h = sequences.state_rows(_state(p, given, "hx", place, p.size)).copy()
        c = sequences.state_rows(_state(p, given, "cx", place, p.hidden)).copy()
        kept = _sections(p, p.kept, flat, layer, direction)
        wx = x @ given["weight_ih" + tail].T + given.get("bias_ih" + tail, 0.0)
        out = np.empty((sequences.used, p.size))
        for t in range(p.steps) if direction == 0 else range(p.steps - 1, -1, -1):
            here, count = sequences.at(t), sequences.counts[t]
            uh = h[:count] @ given["weight_hh" + tail].T + given.get("bias_hh" + tail, 0.0)
            if p.cell == "lstm":
                i, f, g, o = _split(p, wx[here] + uh)
                i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
                c[:count] = f * c[:count] + i * g
                if p.clip is not None:
                    c[:count] = np.clip(c[:count], *p.clip)
                full = o * np.tanh(c[:count])
                kept["gates"][here] = _pad(p, (i, 0.5), (f, 0.5), (g, 0.0), (o, 0.5))
                kept["cell"][here] = _pad(p, (c[:count], 0.0))
                if p.projection:
                    kept["full"][here] = _pad(p, (full, 0.0))
                    full = full @ given["weight_hr" + tail].T
                h[:count] = full
            elif p.cell == "gru":
                (xr, xz, xn), (hr, hz, m) = _split(p, wx[here]), _split(p, uh)
                r, z = sigmoid(xr + hr), sigmoid(xz + hz)
                n = np.tanh(xn + r * m)
                h[:count] = (1.0 - z) * n + z * h[:count]
                kept["gates"][here] = _pad(p, (r, 0.5), (z, 0.5), (n, 0.0), (m, 0.0))
            else:
                total = wx[here] + uh
                h[:count] = np.tanh(total) if p.cell == "tanh" else np.maximum(total, 0.0)
            out[here] = h[:count]
            kept["out"][here, : p.size] = h[:count]
        hn[place], cn[place] = sequences.state_of(h), sequences.state_of(c)
        outputs.append(out)
        if direction == p.directions - 1:
            y, outputs = np.concatenate(outputs, axis=1), []
            x = _dropped(p, given, y, layer)
    return {"y": sequences.tensor_of(y), "hn": hn, "cn": cn, "saved": flat}


def backward_data(p: Layers, given: Given) -> Given:
    """dx, dhx, dcx and dgates from dy, the gradients of the last states, and what was saved."""
    sequences = Sequences.of(p, given)
    dy = sequences.rows_of(given["dy"])
    flat = np.zeros(p.layers * sum(p.slopes.values()) * p.rows * p.directions)
    dhx = np.zeros((p.layers * p.directions, p.batch, p.size))
    dcx = np.zeros((p.layers * p.directions, p.batch, p.hidden))
    dx = np.zeros((sequences.used, p.depth(p.layers - 1)))
    for layer, direction, tail in reversed(list(_each(p))):
        place = layer * p.directions + direction
        kept = _sections(p, p.kept, given["saved"], layer, direction)
        slopes = _sections(p, p.slopes, flat, layer, direction)
        dh = sequences.state_rows(_state(p, given, "dhn", place, p.size)).copy()
        dc = sequences.state_rows(_state(p, given, "dcn", place, p.hidden)).copy()
        first_h = sequences.state_rows(_state(p, given, "hx", place, p.size))
        first_c = sequences.state_rows(_state(p, given, "cx", place, p.hidden))
        own = dy[:, direction * p.size : (direction + 1) * p.size]
        if direction == p.directions - 1:
            dx = np.zeros((sequences.used, p.depth(layer)))
        for t in range(p.steps - 1, -1, -1) if direction == 0 else range(p.steps):
            here, count = sequences.at(t), sequences.counts[t]
            total = dh[:count] + own[here]
            w_ih, w_hh = given["weight_ih" + tail], given["weight_hh" + tail]
            if p.cell == "lstm":
                if p.projection:
                    slopes["out"][here, : p.size] = total
                    total = total @ given["weight_hr" + tail]
                i, f, g, o = (_unpad(p, kept["gates"][here], gate) for gate in range(4))
                c = _unpad(p, kept["cell"][here], 0)
                before = _before(p, sequences, kept["cell"][:, : p.hidden], first_c, t, direction)
                tanh_c = np.tanh(c)
                dc_here = dc[:count] + total * o * (1.0 - tanh_c) * (1.0 + tanh_c)
                if p.clip is not None:
                    dc_here = np.where((c > p.clip[0]) & (c < p.clip[1]), dc_here, 0.0)
                gates = [
                    dc_here * g * i * (1.0 - i), dc_here * before * f * (1.0 - f),
                    dc_here * i * (1.0 - g) * (1.0 + g), total * tanh_c * o * (1.0 - o),
                ]  # fmt: skip
                dc[:count] = dc_here * f
                dh[:count] = np.concatenate(gates, axis=1) @ w_hh
                dwx = gates
            elif p.cell == "gru":
                r, z, n, m = (_unpad(p, kept["gates"][here], gate) for gate in range(4))
                before = _before(p, sequences, kept["out"][:, : p.size], first_h, t, direction)
                dn = total * (1.0 - z) * (1.0 - n) * (1.0 + n)
                dz = total * (before - n) * z * (1.0 - z)
                dr = dn * m * r * (1.0 - r)
                gates, dwx = [dn, dr, dz, dn * r], [dr, dz, dn]
                dh[:count] = total * z + np.concatenate([dr, dz, dn * r], axis=1) @ w_hh
            else:
                h = kept["out"][here, : p.size]
                slope = (1.0 - h) * (1.0 + h) if p.cell == "tanh" else (h > 0.0).astype(np.float64)
                gates = dwx = [total * slope]
                dh[:count] = gates[0] @ w_hh
            slopes["gates"][here] = _pad(p, *((gate, 0.0) for gate in gates))
            dx[here] += np.concatenate(dwx, axis=1) @ w_ih
        dhx[place], dcx[place] = sequences.state_of(dh), sequences.state_of(dc)
        if direction == 0 and layer > 0:
            dy = _dropped(p, given, dx, layer - 1)
    return {"dx": sequences.tensor_of(dx), "dhx": dhx, "dcx": dcx, "dgates": flat}


def _before(p: Layers, sequences: Sequences, kept: Reals, first: Reals, t: int, direction: int) -> Reals:
    """The state that the sequences of step t had before it: (counts[t], size)."""
    count, other = sequences.counts[t], t - 1 if direction == 0 else t + 1
    result = first[:count].copy()
    if 0 <= other < p.steps:
        known = min(count, sequences.counts[other])
        result[:known] = kept[sequences.at(other)][:known]
    return result


def backward_weights(p: Layers, given: Given) -> Given:
    """The gradients of all weights from x, the first states, what was saved, and dgates."""
    sequences = Sequences.of(p, given)
    x = sequences.rows_of(given["x"])
    used, results, outputs = sequences.used, {}, []
    for layer, direction, tail in _each(p):
        place = layer * p.directions + direction
        kept = _sections(p, p.kept, given["saved"], layer, direction)
        slopes = _sections(p, p.slopes, given["dgates"], layer, direction)
        first = sequences.state_rows(_state(p, given, "hx", place, p.size))
        before = np.zeros((used, p.size))
        for t in range(p.steps):
            before[sequences.at(t)] = _before(p, sequences, kept["out"][:, : p.size], first, t, direction)
        count = slopes["gates"].shape[1] // p.padded
        gates = [_unpad(p, slopes["gates"], gate)[:used] for gate in range(count)]
        if p.cell == "gru":
            dn, dr, dz, dm = gates
            dwx, duh = np.concatenate([dr, dz, dn], axis=1), np.concatenate([dr, dz, dm], axis=1)
        else:
            dwx = duh = np.concatenate(gates, axis=1)
        results["dweight_ih" + tail] = dwx.T @ x
        results["dweight_hh" + tail] = duh.T @ before
        results["dbias_ih" + tail] = dwx.sum(axis=0)
        results["dbias_hh" + tail] = duh.sum(axis=0)
        if p.projection:
            results["dweight_hr" + tail] = slopes["out"][:used, : p.size].T @ kept["full"][:used, : p.hidden]
        outputs.append(kept["out"][:used, : p.size])
        if direction == p.directions - 1:
            x, outputs = _dropped(p, given, np.concatenate(outputs, axis=1), layer), []
    return results


DEFINITIONS = {"fwd": forward, "bwd_data": backward_data, "bwd_weights": backward_weights}
