"""Recurrent layers: what they compute is in `rnn_reference.py`, formula by formula.

    relu, tanh   h = f(W x + b + U h' + c)
    lstm         i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W x + b + U h' + c
                 c = f * c' + i * g,  h = o * tanh(c),  or V (o * tanh(c)) with a projection
    gru          r, z = sigmoid of W x + b + U h' + c,  n = tanh(W x + b + r * (U h' + c)),  h = (1 - z) * n + z * h'

with h' and c' of the step before. Weights are arrays a layer and direction, in PyTorch's order and with its names:
weight_ih (gates * H, inputs), weight_hh (gates * H, R), bias_ih and bias_hh (gates * H), weight_hr (R, H), the rows
in the order of the gates above. R is the size of an output: H, or that of the projection.

Sequences may be of different lengths. A sequence's states stop where it ends, its outputs from there on are 0, and
the backward direction starts at its own end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any, Self

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import rnn_reference
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.dropout import check_probability
from jitdnn.problems.philox import STATE
from jitdnn.problems.problem import Operand, Reals
from jitdnn.problems.words import Words
from jitdnn.tensor import TensorDescriptor, compute_dtype

DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
CELLS = ("relu", "tanh", "lstm", "gru")
BIASES = ("both_biases", "input_bias", "recurrent_bias", "no_bias")
SEQUENCES = ("whole", "lengths", "packed")
INDICES = ("i32", "i64")
GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
KEPT = {"relu": 0, "tanh": 0, "lstm": 4, "gru": 4}  # vectors of H that a step keeps for the gradients
PAD = 16  # what is kept has this multiple of units


@dataclass(frozen=True)
class Recurrent(DirectedProblem, kinds=("rnn_fwd", "rnn_bwd_data", "rnn_bwd_weights")):
    """`layers` recurrent layers over `steps` steps of `batch` sequences of `inputs_size` numbers.

    `sequences` is "whole" (all have every step), "lengths" (an operand says how many steps each has) or "packed":
    x and y are (`rows`, features), without the steps that are not there, longest sequence first, and the operand
    is the number of sequences at each step. Else they are (steps, batch, features), or (batch, steps, features) if
    `is_batch_major`. The states are (layers * directions, batch, size).

    "fwd" saves what the gradients need if `is_training`. "bwd_data" gives the gradients of x and the states and
    saves those of the gates, from which "bwd_weights" makes the weights' ones. Without `has_states` the states
    start at 0 and have no gradient; without `has_final` the gradients of the last states are 0. `clip`: lowest and
    highest value of an LSTM's c. `dropout`: the probability with which a number between two layers is dropped, by the
    operand `state` (`philox`). `orders`: descriptors of operands that are not packed.

    Raises InvalidShape, InvalidArgument and InvalidType for what does not fit.
    """

    direction: str
    cell: str
    steps: int
    batch: int
    inputs_size: int
    hidden: int
    layers: int = 1
    is_bidirectional: bool = False
    projection: int = 0
    bias: str = "both_biases"
    sequences: str = "whole"
    rows: int = 0
    index: str = "i64"
    is_batch_major: bool = False
    is_training: bool = False
    has_states: bool = True
    has_final: bool = True
    clip: tuple[float, float] | None = None
    dropout: float = 0.0
    element: str = "f32"
    orders: tuple[tuple[str, TensorDescriptor], ...] = ()

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.cell, CELLS, "cell")
        check_choice(self.bias, BIASES, "bias")
        check_choice(self.sequences, SEQUENCES, "sequences")
        check_choice(self.index, INDICES, "index")
        sizes = ("steps", "batch", "inputs_size", "hidden", "layers")
        for name in sizes:
            if getattr(self, name) < 1:
                raise InvalidShape(f"{name} is {getattr(self, name)}: it must be at least 1")
        self._check_attributes()
        settled: dict[str, object] = {}
        if self.sequences != "packed":
            settled["rows"] = self.steps * self.batch
        else:
            settled["is_batch_major"] = False
        if self.sequences == "whole":
            settled["index"] = "i64"
        if self.layers == 1:
            settled["dropout"] = 0.0
        if self.direction != "fwd":
            settled["is_training"] = True
        if self.direction != "bwd_data":
            settled["has_final"] = True
        for name, value in settled.items():
            object.__setattr__(self, name, value)
        self._settle_orders()
        self._check_operands()

    def _check_attributes(self) -> None:
        if self.projection and self.cell != "lstm":
            raise InvalidArgument(f"projection is {self.projection}: only lstm has one, not {self.cell}")
        if not 0 <= self.projection < max(self.hidden, 1):
            raise InvalidArgument(
                f"projection is {self.projection}: it must be 0 (none) or less than hidden, {self.hidden}"
            )
        if self.sequences == "packed" and not self.batch <= self.rows <= self.batch * self.steps:
            raise InvalidShape(
                f"rows is {self.rows}: packed sequences of {self.steps} steps have from {self.batch} (the batch) to "
                f"{self.batch * self.steps} rows"
            )
        object.__setattr__(self, "dropout", float(self.dropout))
        check_probability(self.dropout)
        if self.clip is None:
            return
        if self.cell != "lstm":
            raise InvalidArgument(f"clip is given: only lstm has a cell to clip, not {self.cell}")
        low, high = (float(end) for end in self.clip)
        if not (isfinite(low) and isfinite(high) and low <= 0.0 <= high):
            raise InvalidArgument(
                f"clip is {self.clip}: it must be a finite lowest value <= 0 and highest >= 0"
            )
        object.__setattr__(self, "clip", (low, high))

    def _settle_orders(self) -> None:
        """Only what is not packed is kept, by name."""
        shapes = {name: (shape, dtypes) for name, shape, _, dtypes in self._rows_of_operands()}
        kept = []
        for name, tensor in sorted(self.orders, key=lambda entry: entry[0]):
            if name not in shapes:
                raise InvalidArgument(f"{self.kind} has no operand {name}: it has {', '.join(shapes)}")
            shape, dtypes = shapes[name]
            if tensor.shape != shape:
                raise InvalidShape(f"{name} has shape {tensor.shape}: it must have {shape}")
            if tensor != TensorDescriptor.packed(shape, (dtypes or (self.element,))[0]):
                kept.append((name, tensor))
        object.__setattr__(self, "orders", tuple(kept))

    # ---- sizes

    @property
    def directions(self) -> int:
        return 2 if self.is_bidirectional else 1

    @property
    def gates(self) -> int:
        """Vectors of H that the matrices make."""
        return GATES[self.cell]

    @property
    def size(self) -> int:
        """Numbers of one direction's output at a step: R."""
        return self.projection or self.hidden

    @property
    def padded(self) -> int:
        """H as it is kept."""
        return -(-self.hidden // PAD) * PAD

    @property
    def padded_size(self) -> int:
        """R as it is kept."""
        return -(-self.size // PAD) * PAD

    @property
    def biases(self) -> tuple[str, ...]:
        """Names of the biases that there are."""
        known = {
            "both_biases": ("bias_ih", "bias_hh"),
            "input_bias": ("bias_ih",),
            "recurrent_bias": ("bias_hh",),
        }
        return known.get(self.bias, ())

    def depth(self, layer: int) -> int:
        """Numbers that a layer reads at a step."""
        return self.inputs_size if layer == 0 else self.size * self.directions

    @cached_property
    def kept(self) -> dict[str, int]:
        """Sections of `saved` for one layer, each (rows, directions, numbers): the numbers.

        "gates" (i, f, g, o, or r, z, n and U h' + c of n), "cell" (c), "full" (h before the projection), "out" (h).
        Rows are the steps of all sequences, first all of step 0, longest sequence first; those that are not there
        are at the end and 0. Units are padded to a multiple of `PAD` by some of zero weights.
        """
        sections = {"gates": KEPT[self.cell] * self.padded}
        if self.cell == "lstm":
            sections["cell"] = self.padded
        if self.projection:
            sections["full"] = self.padded
        return {**{n: s for n, s in sections.items() if s}, "out": self.padded_size}

    @cached_property
    def slopes(self) -> dict[str, int]:
        """The same of `dgates`: "gates" (of i, f, g, o; or n, r, z and of U h' + c of n), "out" (of a projection)."""
        sections = {"gates": (4 if self.cell == "gru" else self.gates) * self.padded}
        return sections | ({"out": self.padded_size} if self.projection else {})

    def section(self, sections: dict[str, int], layer: int, name: str) -> int:
        """Where a section of a layer begins."""
        before = 0
        for other, numbers in sections.items():
            if other == name:
                break
            before += numbers
        return (layer * sum(sections.values()) + before) * self.rows * self.directions

    # ---- operands

    def weight_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the weights, in their order."""
        for layer in range(self.layers):
            for suffix in ("", "_reverse")[: self.directions]:
                tail = f"_l{layer}{suffix}"
                rows = self.gates * self.hidden
                yield "weight_ih" + tail, (rows, self.depth(layer))
                yield "weight_hh" + tail, (rows, self.size)
                for name in self.biases:
                    yield name + tail, (rows,)
                if self.projection:
                    yield "weight_hr" + tail, (self.projection, self.hidden)

    def _rows_of_operands(self) -> Iterator[tuple[str, tuple[int, ...], str, tuple[str, ...] | None]]:
        """(name, shape, role, dtypes) of every operand, in order.

        fwd: x, lengths, state, hx, cx, weights; y, hn, cn, saved. bwd_data: dy, lengths, state, dhn, dcn, hx (gru) or
        cx (lstm), weights without biases, saved; dx, dhx, dcx, dgates. bwd_weights: x, lengths, state, hx, saved,
        dgates; dweights.
        """
        lead: tuple[int, ...] = (self.batch, self.steps) if self.is_batch_major else (self.steps, self.batch)
        lead = (self.rows,) if self.sequences == "packed" else lead
        x, y = (*lead, self.inputs_size), (*lead, self.size * self.directions)
        states = self.layers * self.directions
        h, c = (states, self.batch, self.size), (states, self.batch, self.hidden)
        own = (compute_dtype(self.element),)
        kept = (self.layers * sum(self.kept.values()) * self.rows * self.directions,)
        slopes = (self.layers * sum(self.slopes.values()) * self.rows * self.directions,)
        is_lstm, weights = self.cell == "lstm", list(self.weight_shapes())
        if self.direction == "bwd_data":
            yield "dy", y, "in", None
        else:
            yield "x", x, "in", None
        if self.sequences != "whole":
            yield "lengths", (self.steps if self.sequences == "packed" else self.batch,), "in", (self.index,)
        if self.dropout:
            yield "state", STATE.shape, "in", (STATE.dtype,)
        if self.direction == "fwd":
            if self.has_states:
                yield "hx", h, "in", None
                if is_lstm:
                    yield "cx", c, "in", None
            for name, shape in weights:
                yield name, shape, "in", None
            yield "y", y, "out", None
            yield "hn", h, "saved", None
            if is_lstm:
                yield "cn", c, "saved", None
            if self.is_training:
                yield "saved", kept, "saved", own
        elif self.direction == "bwd_data":
            if self.has_final:
                yield "dhn", h, "in", None
                if is_lstm:
                    yield "dcn", c, "in", None
            if self.has_states and self.cell in ("lstm", "gru"):
                yield ("cx", c, "in", None) if is_lstm else ("hx", h, "in", None)
            for name, shape in weights:
                if name.startswith("weight"):
                    yield name, shape, "in", None
            yield "saved", kept, "in", own
            yield "dx", x, "out", None
            if self.has_states:
                yield "dhx", h, "saved", None
                if is_lstm:
                    yield "dcx", c, "saved", None
            yield "dgates", slopes, "saved", own
        else:
            if self.has_states:
                yield "hx", h, "in", None
            yield "saved", kept, "in", own
            yield "dgates", slopes, "in", own
            for name, shape in weights:
                yield "d" + name, shape, "out", None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """As the direction says; the first output is the principal one."""
        given = dict(self.orders)
        found = []
        for name, shape, role, dtypes in self._rows_of_operands():
            tensor = given.get(name) or TensorDescriptor.packed(shape, (dtypes or (self.element,))[0])
            values = None
            if name == "lengths":
                values = (1, self.batch) if self.sequences == "packed" else (0, self.steps)
            elif name == "state":
                values = (0, 2**32 - 1)
            found.append(Operand(name, tensor, role, dtypes, values))  # type: ignore[arg-type]
        return tuple(found)

    @cached_property
    def filters(self) -> tuple[int, ...]:
        """The places of the weights, which come last of the inputs."""
        names = ("weight", "bias")
        return tuple(n for n, operand in enumerate(self.inputs) if operand.name.startswith(names))

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of every operand by its name."""
        return {operand.name: place for place, operand in enumerate(self.operands)}

    @property
    def flops(self) -> int:
        """Two for each weight and row."""
        matrices = sum(prod(shape) for name, shape in self.weight_shapes() if name.startswith("weight"))
        return 2 * self.rows * matrices

    def _define(self, *inputs: Reals) -> Any:
        given = dict(zip((operand.name for operand in self.sources), inputs, strict=True))
        results = rnn_reference.DEFINITIONS[self.direction](self, given)
        found = tuple(results[operand.name] for operand in self.outputs)
        return found if len(found) > 1 else found[0]

    # ---- text

    def _body(self) -> list[str]:
        words = [
            self.cell,
            f"t{self.steps}",
            f"n{self.batch}",
            f"inputs{self.inputs_size}",
            f"hidden{self.hidden}",
        ]
        words += [f"layers{self.layers}"] * (self.layers > 1)
        words += ["bidirectional"] * self.is_bidirectional
        words += [f"proj{self.projection}"] * bool(self.projection)
        words += [self.bias] * (self.bias != "both_biases")
        if self.sequences != "whole":
            words += [f"{self.sequences}{self.index[1:]}"]
        words += [f"rows{self.rows}"] * (self.sequences == "packed")
        words += ["batch_major"] * self.is_batch_major
        words += ["training"] * (self.is_training and self.direction == "fwd")
        words += ["zero_states"] * (not self.has_states)
        words += ["no_final"] * (not self.has_final)
        if self.clip is not None:
            words += [f"clip_low{self.clip[0]!r}", f"clip_high{self.clip[1]!r}"]
        words += [f"dropout{self.dropout!r}"] * bool(self.dropout)
        words.append(self.element)
        for name, tensor in self.orders:
            words.append(f"{name}=s{','.join(map(str, tensor.strides))}")
        return words

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        sequences, index, rows = "whole", "i64", 0
        for name in SEQUENCES[1:]:
            if words.has(name):
                bits = words.number(name)
                check_choice(f"i{bits}", INDICES, f"the type of {name}")
                sequences, index = name, f"i{bits}"
        if sequences == "packed":
            rows = words.number("rows")
        clip = None
        if words.has("clip_low") or words.has("clip_high"):
            clip = words.real("clip_low"), words.real("clip_high")
        direction = words.kind.removeprefix("rnn_")
        found = cls(
            direction, words.choice(CELLS), words.number("t"), words.number("n"), words.number("inputs"),
            words.number("hidden"), words.number("layers", 1), words.flag("bidirectional"), words.number("proj", 0),
            words.choice(BIASES, BIASES[0]), sequences, rows, index, words.flag("batch_major"),
            direction == "fwd" and words.flag("training"), not words.flag("zero_states"),
            not (direction == "bwd_data" and words.flag("no_final")), clip, words.real("dropout", 0.0),
            words.dtype(),
        )  # fmt: skip
        orders = []
        for operand in found.operands:
            if words.has(operand.name + "="):
                tensor = operand.descriptor
                orders.append(
                    (
                        operand.name,
                        words.descriptor(operand.name, tensor.shape, tensor.dtype, {"": tensor}, ""),
                    )
                )
        return found.arranged(orders) if orders else found

    def arranged(self, orders: Sequence[tuple[str, TensorDescriptor]]) -> Self:
        """The same with other descriptors of some operands."""
        return replace(self, orders=tuple({**dict(self.orders), **dict(orders)}.items()))

    def directed(self, direction: str, **changes: Any) -> Self:
        """The problem of another direction, its tensors packed."""
        return replace(self, direction=direction, orders=(), **changes)
