"""Python's operators of arrays on a GPU, NumPy's functions of them, and reductions.

What they mean is above: `jitdnn.ops.array_expression` and `array_reduction`, imported when one of them is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

Axes = int | Sequence[int] | None


def _expressions() -> Any:
    return import_module("jitdnn.ops.array_expression")


def _reductions() -> Any:
    return import_module("jitdnn.ops.array_reduction")


class Operators:
    """Operators that give an expression, which is computed by one kernel when its elements are wanted."""

    __slots__ = ()

    @staticmethod
    def apply_operation(name: str, values: Sequence[Any]) -> Any:
        """A function of the expression language over arrays and numbers."""
        return _expressions().applied(name, *values)

    def __add__(self, other: Any) -> Any:
        return _expressions().operator("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _expressions().operator("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _expressions().operator("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _expressions().operator("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _expressions().operator("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _expressions().operator("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _expressions().operator("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _expressions().operator("divide", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _expressions().operator("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _expressions().operator("floor_divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return _expressions().operator("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _expressions().operator("remainder", other, self)

    def __pow__(self, other: Any) -> Any:
        return _expressions().operator("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _expressions().operator("power", other, self)

    def __neg__(self) -> Any:
        return _expressions().operator("negative", self)

    def __pos__(self) -> Any:
        return self.copy()

    def __abs__(self) -> Any:
        return _expressions().operator("absolute", self)

    def __lt__(self, other: Any) -> Any:
        return _expressions().operator("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _expressions().operator("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _expressions().operator("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _expressions().operator("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _expressions().operator("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _expressions().operator("not_equal", self, other)

    # as an object, as PyTorch's tensors are: arrays are kept in sets and dictionaries
    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Any:
        return _expressions().operator("logical_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _expressions().operator("logical_and", other, self)

    def __or__(self, other: Any) -> Any:
        return _expressions().operator("logical_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _expressions().operator("logical_or", other, self)

    def __invert__(self) -> Any:
        return _expressions().operator("logical_not", self)

    def __matmul__(self, other: Any) -> Any:
        return self.dot(other)

    def __iadd__(self, other: Any) -> Any:
        return _expressions().updated("add", self, other)

    def __isub__(self, other: Any) -> Any:
        return _expressions().updated("subtract", self, other)

    def __imul__(self, other: Any) -> Any:
        return _expressions().updated("multiply", self, other)

    def __itruediv__(self, other: Any) -> Any:
        return _expressions().updated("divide", self, other)

    def __ifloordiv__(self, other: Any) -> Any:
        return _expressions().updated("floor_divide", self, other)

    def __imod__(self, other: Any) -> Any:
        return _expressions().updated("remainder", self, other)

    def __ipow__(self, other: Any) -> Any:
        return _expressions().updated("power", self, other)

    def __iand__(self, other: Any) -> Any:
        return _expressions().updated("logical_and", self, other)

    def __ior__(self, other: Any) -> Any:
        return _expressions().updated("logical_or", self, other)

    def __setitem__(self, index: Any, value: Any) -> None:
        _expressions().assigned(self, index, value)

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **options: Any) -> Any:
        """NumPy's functions of arrays on a GPU: those that the expression language has."""
        return _expressions().of_numpy(ufunc, method, values, options)

    def sum(self, axis: Axes = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum over `axis`, over all by default; then of shape (1,). One kernel with what made the array.

        `dtype`: of the result, as NumPy's by default: 64 bits for integers.
        """
        return _reductions().reduced("add", self, axis, dtype, out, keepdims)

    def prod(self, axis: Axes = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The product over `axis`; as `sum`."""
        return _reductions().reduced("multiply", self, axis, dtype, out, keepdims)

    def min(self, axis: Axes = None, out: Any = None, keepdims: bool = False) -> Any:
        """The smallest element over `axis`, NaN if there is one; as `sum`."""
        return _reductions().reduced("min", self, axis, None, out, keepdims)

    def max(self, axis: Axes = None, out: Any = None, keepdims: bool = False) -> Any:
        """The largest element over `axis`, NaN if there is one; as `sum`."""
        return _reductions().reduced("max", self, axis, None, out, keepdims)

    def argmin(self, axis: Axes = None, out: Any = None, keepdims: bool = False) -> Any:
        """The position of the smallest element over `axis`, the first of equals."""
        return _reductions().reduced("argmin", self, axis, None, out, keepdims)

    def argmax(self, axis: Axes = None, out: Any = None, keepdims: bool = False) -> Any:
        """The position of the largest element over `axis`, the first of equals."""
        return _reductions().reduced("argmax", self, axis, None, out, keepdims)

    def mean(self, axis: Axes = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The average over `axis`, f64 of integers."""
        return _reductions().mean(self, axis, dtype, out, keepdims)

    def dot(self, other: Any) -> Any:
        """The dot product of vectors, of shape (1,) and by one kernel; of matrices their product (`jitdnn.matmul`)."""
        return _reductions().dot(self, other)

    def astype(self, dtype: Any) -> Any:
        """A copy in another dtype; reals become integers without their fraction, as with NumPy."""
        return _expressions().converted(self, dtype)

    def copy(self) -> Any:
        """A copy, packed, with its axes in the same order in memory."""
        return _expressions().converted(self, None)

    def item(self) -> Any:
        """The number in an array of one element. Raises InvalidShape for others."""
        return _reductions().item(self)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())
