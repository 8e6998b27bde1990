"""Arrays of known shape and type whose elements are not there yet.

Functions that are written for arrays of NumPy are run over them once, for a kind of inputs, and what they do becomes
nodes of a graph: methods and indices here, NumPy's functions by `__array_function__` (`numpy_functions.py`), this
library's by `primitives.py`. What depends on shapes alone is computed on the way, since shapes are numbers. What has
no node raises `Untraceable`; what asks for elements raises `NeedsValue`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from jitdnn.graph.ir import Value
from jitdnn.rtcg.expression import trace

if TYPE_CHECKING:
    from jitdnn.graph.tracer import Tracer


#: types whose arithmetic by operators is a node: results are of the same type, as NumPy's are
CALCULATED = (np.dtype(np.float32), np.dtype(np.float64))


_ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.divide: operator.truediv,
}  # fmt: skip


class Untraceable(Exception):
    """What a function does to its operands has no node: it is run by the host."""


class NeedsValue(Untraceable):
    """A function asked for the elements of an operand."""

    def __init__(self, operand: Operand) -> None:
        super().__init__("the elements of an operand decide what is computed")
        self.operand = operand


def hollow(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of a shape with one element in memory: good for shapes and nothing else."""
    return np.broadcast_to(np.empty((), dtype), tuple(shape))


class Operand:
    """An array that a graph makes; see the module."""

    __slots__ = ("tracer", "value")
    __array_priority__ = 100.0

    def __init__(self, tracer: Tracer, value: Value) -> None:
        self.tracer, self.value = tracer, value

    def __repr__(self) -> str:
        return f"<operand {self.dtype.name} {self.shape}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def itemsize(self) -> int:
        return self.value.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Operand:  # noqa: N802  # as of arrays
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Operand]:
        return (self[number] for number in range(len(self)))

    def _view(self, kind: str, argument: Any, shape: Sequence[int]) -> Operand:
        if kind != "index" and tuple(shape) == self.shape and kind != "transpose":
            return self
        return self.tracer.add("view", [self], [(tuple(shape), self.dtype)], kind=kind, argument=argument)[0]

    def reshape(self, *shape: Any) -> Operand:
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        found = hollow(self.shape, self.dtype).reshape(tuple(int(n) for n in wanted)).shape
        return self._view("reshape", found, found)

    def transpose(self, *axes: Any) -> Operand:
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)) else axes
        if given is None or len(given) == 0:
            given = tuple(reversed(range(self.ndim)))
        order = tuple(int(axis) % self.ndim for axis in given)
        shape = hollow(self.shape, self.dtype).transpose(order).shape
        return self if order == tuple(range(self.ndim)) else self._view("transpose", order, shape)

    def swapaxes(self, one: int, other: int) -> Operand:
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    def squeeze(self, axis: Any = None) -> Operand:
        shape = hollow(self.shape, self.dtype).squeeze(axis).shape
        return self._view("reshape", shape, shape)

    def ravel(self) -> Operand:
        return self.reshape(-1)

    flatten = ravel

    def broadcast_to(self, shape: Sequence[int]) -> Operand:
        found = np.broadcast_to(hollow(self.shape, self.dtype), tuple(shape)).shape
        return self._view("broadcast", found, found)

    def __getitem__(self, index: Any) -> Operand:
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if isinstance(part, Operand):
                raise NeedsValue(part)
            if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))):
                raise Untraceable("elements are picked by an array of indices")
        plain = tuple(int(p) if isinstance(p, np.integer) else p for p in parts)
        found = hollow(self.shape, self.dtype)[plain]
        if found.shape == self.shape and all(
            isinstance(p, slice) and (p.step is None or p.step > 0) for p in plain
        ):
            return self
        return self._view("index", plain, found.shape)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise Untraceable("elements are written in place")

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **more: Any) -> Operand:
        return self.tracer.cast(self, np.dtype(dtype))

    def copy(self) -> Operand:
        return self

    def view(self, *args: Any) -> NoReturn:
        raise Untraceable("bits are taken as those of another type")

    def item(self, *args: Any) -> NoReturn:
        raise NeedsValue(self)

    def __array__(self, *args: Any, **more: Any) -> NoReturn:
        raise NeedsValue(self)

    min = max = any = all = tolist = sum = mean = item
    __bool__ = __int__ = __float__ = __index__ = item

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        if ufunc in _ARITHMETIC and method == "__call__" and not options and len(operands) == 2:
            formula, (first, second) = _ARITHMETIC[ufunc], operands
            if isinstance(first, Operand):
                return first._with(second, formula)
            return second._with(first, lambda v, w: formula(w, v))
        raise Untraceable(f"NumPy computes it (numpy.{ufunc.__name__})")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from jitdnn.graph.numpy_functions import FUNCTIONS

        known = FUNCTIONS.get(function)
        if known is None:
            raise Untraceable(f"NumPy computes it (numpy.{function.__name__})")
        return known(*args, **kwargs)

    def _refuse(self, other: Any) -> NoReturn:
        raise Untraceable("NumPy computes it (arithmetic of arrays)")

    def _with(self, other: Any, formula: Callable[[Any, Any], Any]) -> Operand:
        """Arithmetic as NumPy's, where types are no question: of one real type, and Python's numbers."""
        if self.dtype not in CALCULATED:
            raise Untraceable(f"NumPy computes it (arithmetic of {self.dtype})")
        other = self.tracer.known(other)
        if type(other) in (int, float):
            return self.tracer.pointwise(trace(lambda v: formula(v, other)), [self], self.dtype)
        if not isinstance(other, (Operand, np.ndarray)) or other.dtype != self.dtype:
            raise Untraceable(
                f"arithmetic of {self.dtype} and {getattr(other, 'dtype', type(other).__name__)}"
            )
        return self.tracer.pointwise(trace(lambda v, w: formula(v, w)), [self, other], self.dtype)

    def __add__(self, other: Any) -> Operand:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Operand:
        return self._with(other, lambda v, w: w + v)

    def __sub__(self, other: Any) -> Operand:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Operand:
        return self._with(other, lambda v, w: w - v)

    def __mul__(self, other: Any) -> Operand:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Operand:
        return self._with(other, lambda v, w: w * v)

    def __truediv__(self, other: Any) -> Operand:
        return self._with(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Operand:
        return self._with(other, lambda v, w: w / v)

    def __neg__(self) -> Operand:
        return self._with(-1.0, lambda v, w: v * w)

    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = (
        _refuse
    )
    __iadd__ = __isub__ = __imul__ = __itruediv__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__
