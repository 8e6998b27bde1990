"""Dropout over anybody's arrays, and the state of its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import flag, integer_number, real_number, settled_before, shown
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.ops.to_device import beside
from jitdnn.problems.dropout import Dropout
from jitdnn.tensor import TensorDescriptor

_RANGE = 1 << 64
_STATE_BYTES = 16


class DropoutState:
    """Where a sequence of random numbers stands: a seed, and how many times it was drawn from.

    Both are integers of 64 bits. They are all that there is: a state made with the same two numbers, or from
    the bytes of another one, goes on exactly as that one does, on any machine. Every use of it by `dropout` or a
    fill adds 1 to `offset`. Not to be used by two threads at once. Raises InvalidArgument.
    """

    __slots__ = ("offset", "seed")

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.seed = _whole("seed", seed)
        self.offset = _whole("offset", offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DropoutState):
            return NotImplemented
        return (self.seed, self.offset) == (other.seed, other.offset)

    def __hash__(self) -> int:
        return hash((self.seed, self.offset))

    def __repr__(self) -> str:
        return f"DropoutState(seed={self.seed}, offset={self.offset})"

    def __bytes__(self) -> bytes:
        return self.seed.to_bytes(8, "little") + self.offset.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, state: bytes) -> DropoutState:
        """The state that `bytes(state)` was made of. Raises InvalidArgument for another number of bytes."""
        if not isinstance(state, (bytes, bytearray, memoryview)) or len(state) != _STATE_BYTES:
            raise InvalidArgument(f"a state has {_STATE_BYTES} bytes, got {shown(state)}")
        return cls(int.from_bytes(state[:8], "little"), int.from_bytes(state[8:], "little"))

    def copy(self) -> DropoutState:
        """A state of its own that stands at the same place."""
        return DropoutState(self.seed, self.offset)

    def words(self) -> npt.NDArray[np.uint32]:
        """The state as kernels read it: four numbers of 32 bits."""
        return np.array(
            [number >> shift & 0xFFFFFFFF for number in (self.seed, self.offset) for shift in (0, 32)],
            np.uint32,
        )

    def advance(self) -> DropoutState:
        """A copy of the state as it is; the state itself goes on to the next numbers."""
        used = self.copy()
        self.offset = (self.offset + 1) % _RANGE
        return used


def _whole(name: str, number: int) -> int:
    return integer_number(number, name, 0, _RANGE - 1)


def dropout(
    x: Any,
    p: float,
    state: DropoutState,
    return_mask: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> tuple[Any, ...]:
    """Return (y, reserve): y = alpha * (x / (1 - p), or 0 with probability p) + beta * out, and what
    `dropout_backward` needs, a state of 16 bytes.

    `x`: 1 to 8 dims, a real dtype; y has its shape and order in memory. `p` from 0 to 1, rounded to a multiple of
    2^-16. The numbers of `state` decide, by the logical index of each element: they are the same for any dtype,
    order in memory, number of threads and processor. `state` goes on to its next numbers. With `return_mask`
    (y, reserve, mask) is returned: a bool for each element, True where it is kept. `out` may be x itself.

    Raises InvalidShape, InvalidType, and InvalidArgument for a `p` or a `state` that is none.
    """
    used = _state(state).copy()
    number = _probability(p)
    if return_mask is not False and flag(return_mask, "return_mask"):
        y, mask = call(
            _MASKED,
            ("x", "state"),
            (x, beside(used.words(), x)),
            (number,),
            (out, None),
            alpha,
            beta,
            handle,
            results=2,
        )
        state.advance()
        return y, used, mask
    y = call(_DROPOUT, ("x", "state"), (x, beside(used.words(), x)), (number,), out, alpha, beta, handle)
    state.advance()
    return y, used


def dropout_backward(
    dy: Any,
    p: float,
    reserve: DropoutState,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (dy / (1 - p) where x was kept, else 0) + beta * out.

    `p` and `reserve` are those of the forward call; `reserve` is not changed. `out` may be dy itself. Arguments
    and errors as for `dropout`.
    """
    words = beside(_state(reserve).words(), dy)
    return call(_DROPOUT, ("dy", "reserve"), (dy, words), (_probability(p),), out, alpha, beta, handle)


def dropout_by(x: Any, p: float, words: Any, out: Any, handle: Handle | None = None) -> Any:
    """`dropout` and its gradient by a state that is in an array already: `DropoutState.words()`, on the device of x.

    For calls that are captured into a graph, before whose replays the words are written anew.
    """
    return call(_DROPOUT, ("x", "state"), (x, words), (_probability(p),), out, 1.0, 0.0, handle)


def _probability(p: float) -> float:
    return real_number(p, "p", 0.0, 1.0)


def _state(state: DropoutState) -> DropoutState:
    if not isinstance(state, DropoutState):
        raise InvalidArgument(f"the state is {shown(state)}: make one with DropoutState(seed)")
    return state


def _make(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, p: float) -> Recipe:
    x = inputs[0]
    return Recipe(Dropout(p, x, out or same_order(x)))


def _make_masked(
    inputs: Sequence[TensorDescriptor], outs: Sequence[TensorDescriptor | None], p: float
) -> Recipe:
    x = inputs[0]
    y, mask = outs
    order = same_order(x)
    return Recipe(Dropout(p, x, y or order, mask or TensorDescriptor(order.shape, order.strides, "bool")))


_P = settled_before("p")

_DROPOUT = Op(_make, (_P,), in_place=(0,))
_MASKED = Op(_make_masked, (_P,), in_place=(0,))
