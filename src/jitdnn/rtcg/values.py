"""What a traced kernel computes with: values, registers and pointers that emit LLVM IR as they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.ir as ir

if TYPE_CHECKING:
    from jitdnn.rtcg.builder import Builder

INT = ir.IntType(64)
INT32 = ir.IntType(32)
BOOL = ir.IntType(1)
POINTER = ir.PointerType()
ELEMENTS: dict[str, ir.Type] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i64": INT,
    "i32": INT32,
    "u8": ir.IntType(8),
    "pointer": POINTER,
}
_SUFFIX = {"float": "f32", "double": "f64"}
# Sums may be contracted to fused multiply-adds; nothing is reordered, so that results do not depend on LLVM.
_CONTRACT = ("contract",)
_SHUFFLED_STRIDES = (2, 3, 4)  # here loading whole vectors and shuffling is faster than a gather


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


class Pointer:
    """A pointer to elements of one type; offsets count elements. Nothing is assumed of its alignment."""

    __slots__ = ("dtype", "k", "v")

    def __init__(self, k: Builder, v: Any, dtype: str) -> None:
        self.k, self.v, self.dtype = k, v, dtype

    @property
    def element(self) -> ir.Type:
        return ELEMENTS[self.dtype]

    def __add__(self, offset: int | Value) -> Pointer:
        if isinstance(offset, int) and offset == 0:
            return self
        moved = self.k.b.gep(self.v, [self.k.index(offset)], source_etype=self.element)
        return Pointer(self.k, moved, self.dtype)

    def load(self, offset: int | Value = 0, lanes: int = 1, mask: Value | None = None) -> Value:
        """``lanes`` consecutive elements; those whose ``mask`` bit is off are not read and are zero."""
        k, at = self.k, (self + offset).v
        kind = vector_type(self.element, lanes)
        if mask is None:
            return Value(k, k.b.load(at, align=align_of(self.element), typ=kind))
        if lanes == 1:
            return self._load_if(offset, mask)
        name = suffix(kind)
        function = k.declare(f"llvm.masked.load.{name}.p0", kind, [POINTER, vector_type(BOOL, lanes), kind])
        zero = ir.Constant(kind, [0] * lanes if is_integer(self.element) else [0.0] * lanes)
        return Value(k, k.b.call(function, [at, mask.v, zero]))

    def _load_if(self, offset: int | Value, mask: Value) -> Value:
        result = self.k.register(self.k.constant(0, self.dtype))
        with self.k.when(mask):
            result.set(self.load(offset))
        return result.get()

    def store(self, value: Value, offset: int | Value = 0, mask: Value | None = None) -> None:
        """Store a scalar or consecutive lanes; those whose ``mask`` bit is off are not touched."""
        k, at = self.k, (self + offset).v
        if mask is None:
            k.b.store(value.v, at, align=align_of(self.element))
        elif value.lanes == 1:
            with k.when(mask):
                self.store(value, offset)
        else:
            kind = value.v.type
            function = k.declare(
                f"llvm.masked.store.{suffix(kind)}.p0",
                ir.VoidType(),
                [kind, POINTER, vector_type(BOOL, value.lanes)],
            )
            k.b.call(function, [value.v, at, mask.v])

    def stream(self, value: Value, offset: int | Value = 0) -> None:
        """Store past the caches; the address must be aligned to the whole vector."""
        k, at = self.k, (self + offset).v
        node = k.b.store(value.v, at, align=align_of(self.element) * value.lanes)
        node.set_metadata("nontemporal", k.module.ir.add_metadata([INT32(1)]))

    def prefetch(self, offset: int | Value = 0, write: bool = False) -> None:
        """Ask for the cache line of an element, of any address at all."""
        k = self.k
        function = k.declare("llvm.prefetch.p0", ir.VoidType(), [POINTER, INT32, INT32, INT32])
        k.b.call(function, [(self + offset).v, INT32(int(write)), INT32(3), INT32(1)])

    def splat(self, offset: int | Value, lanes: int) -> Value:
        """One element in every lane."""
        return self.k.splat(self.load(offset), lanes)

    def load_strided(
        self, offset: int | Value, stride: int | Value, lanes: int, mask: Value | None = None
    ) -> Value:
        """``lanes`` elements at ``stride``; zero where the ``mask`` bit is off (it is ignored at stride 0).

        One load at stride 1, a broadcast at 0, shuffled loads at a few small strides, else a gather.
        """
        if isinstance(stride, int) and stride == 1:
            return self.load(offset, lanes, mask)
        if isinstance(stride, int) and stride == 0:
            return self.splat(offset, lanes)
        if lanes == 1:
            return self.load(offset, 1, mask)
        k, kind = self.k, vector_type(self.element, lanes)
        everything = k.mask(lanes, lanes) if mask is None else mask
        if isinstance(stride, int) and stride in _SHUFFLED_STRIDES:
            parts = [
                self.load(offset + part * lanes, lanes, k.spread_mask(everything, stride, part))
                for part in range(stride)
            ]
            return k.pick_every(parts, stride)
        addresses = self._addresses(offset, stride, lanes)
        function = k.declare(
            f"llvm.masked.gather.{suffix(kind)}.v{lanes}p0",
            kind,
            [addresses.type, vector_type(BOOL, lanes), kind],
        )
        zero = ir.Constant(kind, [0] * lanes if is_integer(self.element) else [0.0] * lanes)
        return Value(k, k.b.call(function, [addresses, everything.v, zero]))

    def store_strided(
        self, value: Value, offset: int | Value, stride: int | Value, mask: Value | None = None
    ) -> None:
        """Store the lanes at ``stride``, which must not be 0 unless one lane is active."""
        lanes = value.lanes
        if lanes == 1 or (isinstance(stride, int) and stride == 1):
            self.store(value, offset, mask)
            return
        k = self.k
        everything = k.mask(lanes, lanes) if mask is None else mask
        if isinstance(stride, int) and stride in _SHUFFLED_STRIDES:
            for part in range(stride):
                spread = k.shuffle(value, value, [(part * lanes + j) // stride for j in range(lanes)])
                self.store(spread, offset + part * lanes, k.spread_mask(everything, stride, part))
            return
        addresses = self._addresses(offset, stride, lanes)
        function = k.declare(
            f"llvm.masked.scatter.{suffix(value.v.type)}.v{lanes}p0",
            ir.VoidType(),
            [value.v.type, addresses.type, vector_type(BOOL, lanes)],
        )
        k.b.call(function, [value.v, addresses, everything.v])

    def _addresses(self, offset: int | Value, stride: int | Value, lanes: int) -> Any:
        k = self.k
        steps = k.iota(lanes) * (stride if isinstance(stride, Value) else k.integer(stride))
        addresses = k.b.gep((self + offset).v, [steps.v], source_etype=self.element)
        addresses.type = ir.VectorType(POINTER, lanes)  # llvmlite takes the scalar base's type
        return addresses


def scalar_type(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def is_integer(kind: ir.Type) -> bool:
    return isinstance(scalar_type(kind), ir.IntType)


def constant_of(kind: ir.Type, value: float) -> ir.Constant:
    number: Any = int(value) if is_integer(kind) else float(value)
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def suffix(kind: ir.Type) -> str:
    """LLVM's mangling of a type, such as "v16f32"."""
    element = scalar_type(kind)
    name = f"i{element.width}" if isinstance(element, ir.IntType) else _SUFFIX[str(element)]
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name


def align_of(element: ir.Type) -> int:
    if isinstance(element, ir.IntType):
        return max(1, int(element.width) // 8)
    return {"float": 4, "double": 8}.get(str(element), 8)
