"""What a call of a recurrent layer says beside its arrays, settled and checked: form, lengths, dropout, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.arguments import check_choice, flag, real_number, real_numbers, shown
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.ops.call import whole_array
from jitdnn.ops.dropout import DropoutState
from jitdnn.ops.to_device import beside
from jitdnn.problems.rnn import GATES
from jitdnn.tensor import borrow

_SINGLE_BIASES = {"input": "input_bias", "recurrent": "recurrent_bias"}
Clip = tuple[float, float] | None


class Given(NamedTuple):
    """How layers and sequences are, as the caller says it."""

    cell: str
    bidirectional: bool
    bias: str
    lengths: Any
    batch_sizes: Any
    batch_first: bool
    dropout: float
    state: DropoutState | None
    clip: Clip = None


class Form(NamedTuple):
    """What a call says beside its arrays; part of the key under which it is remembered."""

    cell: str
    is_bidirectional: bool
    single_bias: str
    sequences: str
    batch: int  # of packed sequences, which x does not show
    is_batch_major: bool
    is_training: bool
    has_states: bool
    has_final: bool
    clip: Clip
    dropout: float
    weights: int


def form_of(
    called: Given, x: Any, weights: Sequence[Any], training: bool, states: Sequence[Any],
    final: Sequence[Any] = (None, None),
) -> tuple[Form, list[tuple[str, Any]]]:  # fmt: skip
    """What the arguments say, and the operands of lengths and of dropout's state if there are such.

    `states`: hx and cx; `final`: dhn and dcn.
    """
    cell, bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state, clip = called
    check_choice(bias, tuple(_SINGLE_BIASES), "bias")
    bidirectional, batch_first = flag(bidirectional, "bidirectional"), flag(batch_first, "batch_first")
    training, shape = flag(training, "training"), shape_of(x, "x")
    if len(weights) == 0:
        raise InvalidArgument(
            "weights is empty: each layer and direction needs at least weight_ih and weight_hh"
        )
    if cell == "lstm" and any((one is None) != (other is None) for one, other in (states, final)):
        raise InvalidArgument("hx and cx, and dhn and dcn, of an LSTM: give both or none")
    if lengths is not None and batch_sizes is not None:
        raise InvalidArgument("lengths and batch_sizes are given: sequences are padded or packed, not both")
    sequences, batch = "whole", 0
    index: list[tuple[str, Any]] = []
    if lengths is not None:
        steps = shape[1 if batch_first else 0] if len(shape) == 3 else 0
        lengths, values = _whole("lengths", lengths, x)
        if values is not None and values.size and not (values.min() >= 0 and values.max() <= steps):
            raise InvalidArgument(
                f"lengths are from {values.min()} to {values.max()}: each must be from 0 to {steps}, the steps of x"
            )
        sequences, index = "lengths", [("lengths", lengths)]
    elif batch_sizes is not None:
        batch_sizes, values = _whole("batch_sizes", batch_sizes, x)
        if values is None:
            raise InvalidArgument(
                "batch_sizes is on a GPU: the first of them says the batch, so they must be on the host"
            )
        rows = shape[0] if shape else 0
        is_falling = values.size > 0 and values[-1] >= 1 and (values[1:] <= values[:-1]).all()
        if not is_falling or values[0] > rows or values.sum() != rows:
            raise InvalidArgument(
                f"batch_sizes add up to {values.sum()} for {rows} rows of x: they must add up to the rows, be at "
                "least 1 and never grow"
            )
        sequences, batch, index = "packed", int(values[0]), [("batch_sizes", batch_sizes)]
    dropout = real_number(dropout, "dropout", 0.0, 1.0)
    shapes = (
        [shape_of(weight, f"weights[{place}]") for place, weight in enumerate(weights)] if dropout else []
    )
    if dropout and layers_of(cell, shapes, 2 if bidirectional else 1)[-1] > 1:
        if not isinstance(state, DropoutState):
            raise InvalidArgument(f"dropout is {dropout} and state {shown(state)}: it needs a DropoutState")
        index.append(("state", beside(state.words(), x)))
    else:
        dropout = 0.0
    return Form(
        cell, bidirectional, _SINGLE_BIASES[bias], sequences, batch, batch_first, training,
        states[0] is not None, final[0] is not None, None if clip is None else _clip(clip), dropout, len(weights),
    ), index  # fmt: skip


def _clip(clip: Any) -> Clip:
    ends = real_numbers(clip, "clip")
    if isinstance(ends, float) or len(ends) != 2:
        raise InvalidArgument(f"clip is {shown(clip)}: it must be (lowest, highest), or None")
    return ends[0], ends[1]


def shape_of(x: Any, name: str) -> tuple[int, ...]:
    """The shape of an array, without borrowing one that says it. Raises InvalidType."""
    try:
        shape = x.shape
    except Exception:  # no attribute of its kind, or one that raises
        shape = None
    known: tuple[int, ...] = shape if type(shape) is tuple else borrow(x, False, name).descriptor.shape
    return known


def _whole(name: str, values: Any, x: Any) -> tuple[Any, Any]:
    """A list of integers as an array on the device of x, and its NumPy view; None for what is on a GPU already."""
    values = whole_array(values, name)
    borrowed = borrow(values, False, name)
    if borrowed.device_id is not None:
        return values, None
    array = borrowed.numpy()
    if array.dtype not in (np.int32, np.int64):
        raise InvalidType(f"{name} is {array.dtype}: it must be int32 or int64")
    if array.ndim != 1:
        raise InvalidShape(f"{name} has shape {array.shape}: it must have one dim")
    placed = beside(array, x)
    return values if placed is array else placed, array


def layers_of(cell: str, weights: Sequence[tuple[int, ...]], directions: int) -> tuple[int, int, int, int]:
    """(hidden, projection, biases of a layer and direction, layers) from the weights' shapes."""
    gates = GATES[cell]
    if len(weights) < 2 or len(weights[0]) != 2 or len(weights[1]) != 2 or weights[1][0] % gates:
        raise InvalidShape(
            f"weights start with shapes {weights[:2]}: they must be weight_ih ({gates} * H, I) and weight_hh "
            f"({gates} * H, R) for {cell}"
        )
    hidden, size = weights[1][0] // gates, weights[1][1]
    projection = size if size != hidden else 0
    biases = 0
    while biases < 2 and len(weights) > 2 + biases and len(weights[2 + biases]) == 1:
        biases += 1
    each = 2 + biases + (projection > 0)
    if len(weights) % (each * directions):
        raise InvalidArgument(
            f"there are {len(weights)} weights, but {each} for each layer and direction, of which there "
            f"{'are 2' if directions == 2 else 'is 1'} to a layer"
        )
    return hidden, projection, biases, len(weights) // (each * directions)
