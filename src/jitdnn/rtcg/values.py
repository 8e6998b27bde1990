"""What a traced kernel computes with: values and registers that emit LLVM IR as they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.ir as ir

from jitdnn.rtcg.types import constant_of, scalar_type

if TYPE_CHECKING:
    from jitdnn.rtcg.builder import Builder

# Sums may be contracted to fused multiply-adds; nothing is reordered, so that results do not depend on LLVM.
_CONTRACT = ("contract",)


class Value:
    """An integer, a truth value, a floating-point number or a vector of them, with Python's operators."""

    __slots__ = ("k", "v")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, k: Builder, v: Any) -> None:
        self.k, self.v = k, v

    @property
    def is_float(self) -> bool:
        return isinstance(scalar_type(self.v.type), (ir.FloatType, ir.DoubleType))

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 for a scalar."""
        return int(self.v.type.count) if isinstance(self.v.type, ir.VectorType) else 1

    def _lift(self, other: Any) -> Any:
        if not isinstance(other, Value):
            return constant_of(self.v.type, other)
        if self.lanes > 1 and other.lanes == 1:
            return self.k.splat(other, self.lanes).v
        return other.v

    def _binary(self, other: Any, integer: str, floating: str, swap: bool = False) -> Value:
        if isinstance(other, Value) and other.lanes > 1 and self.lanes == 1:
            return self.k.splat(self, other.lanes)._binary(other, integer, floating, swap)
        a, b = self.v, self._lift(other)
        if swap:
            a, b = b, a
        build = self.k.b
        if self.is_float:
            return Value(self.k, getattr(build, floating)(a, b, flags=_CONTRACT))
        return Value(self.k, getattr(build, integer)(a, b))

    def __add__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 0 and not self.is_float:
            return self
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 0 and not self.is_float:
            return self
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 1 and not self.is_float:
            return self
        return self._binary(other, "mul", "fmul")

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "sdiv", "fdiv")

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary(other, "sdiv", "fdiv", swap=True)

    def __floordiv__(self, other: Any) -> Value:
        """Quotient of two integers that are not negative."""
        return self._binary(other, "udiv", "fdiv")

    def __mod__(self, other: Any) -> Value:
        """Remainder of two integers that are not negative."""
        return self._binary(other, "urem", "frem")

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Value:
        return self._binary(other, "sub", "fsub", swap=True)

    def __neg__(self) -> Value:
        build = self.k.b
        return Value(self.k, build.fneg(self.v) if self.is_float else build.neg(self.v))

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "and_", "and_")

    def __or__(self, other: Any) -> Value:
        return self._binary(other, "or_", "or_")

    def __xor__(self, other: Any) -> Value:
        return self._binary(other, "xor", "xor")

    def __lshift__(self, other: Any) -> Value:
        return self._binary(other, "shl", "shl")

    def __rshift__(self, other: Any) -> Value:
        """Arithmetic shift to the right."""
        return self._binary(other, "ashr", "ashr")

    def __invert__(self) -> Value:
        return Value(self.k, self.k.b.not_(self.v))

    def _compare(self, operator: str, other: Any) -> Value:
        if isinstance(other, Value) and other.lanes > 1 and self.lanes == 1:
            return self.k.splat(self, other.lanes)._compare(operator, other)
        b = self._lift(other)
        build = self.k.b
        if self.is_float:  # ordered, but for !=: a NaN differs from everything
            compare = build.fcmp_unordered if operator == "!=" else build.fcmp_ordered
            return Value(self.k, compare(operator, self.v, b))
        return Value(self.k, build.icmp_signed(operator, self.v, b))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("!=", other)

    def min(self, other: Any) -> Value:
        """The smaller one; of two floating-point numbers the second where they are unordered."""
        return self.k.select(self < other, self, other)

    def max(self, other: Any) -> Value:
        """The greater one; of two floating-point numbers the second where they are unordered."""
        return self.k.select(self > other, self, other)


class Register:
    """A value that changes: ``+=`` updates it in place. LLVM keeps it in a register."""

    __slots__ = ("k", "slot", "type")

    def __init__(self, k: Builder, initial: Value) -> None:
        self.k, self.type = k, initial.v.type
        with k.b.goto_entry_block():
            self.slot = k.b.alloca(self.type)
        self.set(initial)

    def get(self) -> Value:
        return Value(self.k, self.k.b.load(self.slot, typ=self.type))

    def set(self, value: Value) -> None:
        self.k.b.store(value.v, self.slot)

    def __iadd__(self, other: Any) -> Register:
        self.set(self.get() + other)
        return self
