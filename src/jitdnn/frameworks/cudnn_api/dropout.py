"""Dropout: its descriptor, whose state lies in the caller's memory, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.handles import checked, inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, byte_count, destroy, number, real, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import tensor_of
from jitdnn.handle import Handle
from jitdnn.ops.dropout import DropoutState, dropout_by
from jitdnn.ops.fetch import fetched
from jitdnn.ops.to_device import beside
from jitdnn.tensor import Array, TensorDescriptor

STATE_BYTES = 16
_WORDS = TensorDescriptor.packed((4,), "u32")


@dataclass
class Dropped:
    """What a dropout descriptor is set to: `state` is what the caller's memory `states` holds."""

    probability: float
    states: Any
    state: DropoutState | None
    seed: int


class cudnnDropoutDescriptor(Descriptor[Dropped]):
    """The probability of dropout and the state of its random numbers."""


def dropped_of(dropoutDesc: Any, name: str = "dropoutDesc") -> Dropped:
    """What a dropout descriptor was set to. Raises BadParam."""
    return value_of(dropoutDesc, cudnnDropoutDescriptor, name)


@api
def cudnnCreateDropoutDescriptor() -> cudnnDropoutDescriptor:
    """Return a dropout descriptor, to be set."""
    return cudnnDropoutDescriptor()


@api
def cudnnDestroyDropoutDescriptor(dropoutDesc: Any) -> None:
    """Destroy a dropout descriptor."""
    destroy(dropoutDesc, cudnnDropoutDescriptor, "dropoutDesc")


@api
def cudnnDropoutGetStatesSize(handle: Any) -> int:
    """Return 16, the bytes of a state: a seed and how often it was drawn from."""
    checked(handle)
    return STATE_BYTES


@api
def cudnnDropoutGetReserveSpaceSize(xdesc: Any) -> int:
    """Return 16: what the gradient needs is the state, not a mask."""
    tensor_of(xdesc, "xdesc")
    return STATE_BYTES


def _states(states: Any, stateSizeInBytes: int, probability: float) -> Array | None:
    size = byte_count(stateSizeInBytes, "stateSizeInBytes")
    if states is None:
        if probability:
            raise BadParam(f"states is None: dropout of {probability} needs {STATE_BYTES} bytes")
        return None
    if size < STATE_BYTES:
        raise BadParam(f"stateSizeInBytes is {size}: a state has {STATE_BYTES}")
    return bound(states, _WORDS, "states", True)


def _write(state: DropoutState, target: Array, own: Handle) -> None:
    """The words of a state into the caller's memory, in the order of the stream."""
    jd.transform(beside(state.words(), target), out=target, handle=own)


def _read(array: Array) -> DropoutState:
    return DropoutState.from_bytes(np.ascontiguousarray(fetched(array)).tobytes())


@api
def cudnnSetDropoutDescriptor(
    dropoutDesc: Any, handle: Any, dropout: float, states: Any, stateSizeInBytes: int, seed: int
) -> None:
    """Set the probability, and begin with a seed, whose state is written to `states` (None where nothing is
    dropped)."""
    own = alive(dropoutDesc, cudnnDropoutDescriptor, "dropoutDesc")
    runner, probability = inner(handle), real(dropout, "dropout", 0.0, 1.0)
    known = number(seed, "seed", 0, 2**64 - 1)
    place, state = _states(states, stateSizeInBytes, probability), DropoutState(known)
    if place is not None:
        _write(state, place, runner)
    own.value = Dropped(probability, states, None if place is None else state, known)


@api
def cudnnRestoreDropoutDescriptor(
    dropoutDesc: Any, handle: Any, dropout: float, states: Any, stateSizeInBytes: int, seed: int
) -> None:
    """Set the probability, and go on with the state that `states` holds."""
    own = alive(dropoutDesc, cudnnDropoutDescriptor, "dropoutDesc")
    checked(handle)
    probability, known = real(dropout, "dropout", 0.0, 1.0), number(seed, "seed", 0, 2**64 - 1)
    place = _states(states, stateSizeInBytes, probability)
    own.value = Dropped(probability, states, None if place is None else _read(place), known)


@api
def cudnnGetDropoutDescriptor(dropoutDesc: Any, handle: Any) -> tuple[float, Any, int]:
    """Return (dropout, states, seed)."""
    checked(handle)
    own = dropped_of(dropoutDesc)
    return own.probability, own.states, own.seed


def advance(own: Dropped, handle: Handle) -> DropoutState | None:
    """The state for a call, after which the descriptor and the caller's memory stand at the next one."""
    if own.state is None:
        return None
    used = own.state.advance()
    _write(own.state, bound(own.states, _WORDS, "states", True), handle)
    return used


def _reserve(reserveSpace: Any, size: int, writes: bool) -> Array:
    if byte_count(size, "reserveSpaceSizeInBytes") < STATE_BYTES:
        raise BadParam(f"reserveSpaceSizeInBytes is {size}: {STATE_BYTES} are needed")
    return bound(reserveSpace, _WORDS, "reserveSpace", writes)


@api
def cudnnDropoutForward(
    handle: Any,
    dropoutDesc: Any,
    xdesc: Any,
    x: Any,
    ydesc: Any,
    y: Any,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:
    """y = x / (1 - p), or 0 with the probability p; the reserve gets what the gradient needs. y may be x."""
    runner, own = inner(handle), dropped_of(dropoutDesc)
    source = bound(x, tensor_of(xdesc, "xdesc"), "x")
    target = bound(y, tensor_of(ydesc, "ydesc"), "y", True)
    reserve = _reserve(reserveSpace, reserveSpaceSizeInBytes, True)
    _write(advance(own, runner) or DropoutState(own.seed), reserve, runner)
    dropout_by(source, own.probability, reserve, target, runner)


@api
def cudnnDropoutBackward(
    handle: Any,
    dropoutDesc: Any,
    dydesc: Any,
    dy: Any,
    dxdesc: Any,
    dx: Any,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:
    """dx = dy / (1 - p) where x was kept, else 0. dx may be dy."""
    runner, own = inner(handle), dropped_of(dropoutDesc)
    slope = bound(dy, tensor_of(dydesc, "dydesc"), "dy")
    target = bound(dx, tensor_of(dxdesc, "dxdesc"), "dx", True)
    dropout_by(slope, own.probability, _reserve(reserveSpace, reserveSpaceSizeInBytes, False), target, runner)
